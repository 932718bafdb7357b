//! Making a clone: written down, its directory made, cloned, mounted, written down as whole.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ah_plugin_api::text::shell;
use ah_plugin_api::{CloneRequest, Context, Dir, Error, ErrorKind, Place, Reference, Result, WritableClone};
use ah_provider_directory::{Mounts, failed, open_beneath};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::failure::of_kernel;
use crate::find::{self, Found};
use crate::names::{self, Key};
use crate::store::{Lock, Store};
use crate::sys::{Core, NvList, Zfs};
use crate::view;

use super::record::{self, Record};
use super::{mounting, remove};

/// Answers [`ah_plugin_api::Provider::clone_snapshot`].
pub(crate) fn make(place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
    let (store, target) = (&Store::new(place.store), place.need_target()?);
    let core = Core::get()?;
    let found = find::snapshot(store, &request.snapshot)?;
    if !super::allowed() {
        return Err(Error::new(ErrorKind::Unsupported, "only root can mount a ZFS clone on Linux")
            .with_hint("use the helper, ahd, or run this as root"));
    }
    if let Some(error) = view::without_key(&found.dataset) {
        return Err(error);
    }
    let _lock = store.lock(Lock::Shared, cx)?;
    let identity = store.identity()?.ok_or_else(|| find::no_such(&request.snapshot))?;
    // Where the descriptor is, not where the caller says it was.
    let folder = rustix::fs::readlink(format!("/proc/self/fd/{}", target.as_fd().as_raw_fd()), Vec::new())
        .map_err(|errno| failed("cannot find the target folder's path", errno))?;
    let point = PathBuf::from(std::ffi::OsString::from_vec(folder.into_bytes())).join(request.name.as_os_str());
    let reference = names::clone_reference()?;
    let dataset = names::clone(&found.dataset, &identity.key, &reference)
        .unwrap_or_else(|| unreachable!("a reference of our own making"))?;
    let name = dataset.to_string_lossy().into_owned();
    let mut making = record::begin(store, &reference, Record::new(&name, &point))?;
    if let Err(errno) = rustix::fs::mkdirat(target, request.name.as_os_str(), Mode::RWXU) {
        making.undone(store)?;
        let shown = point.display();
        return Err(failed(format!("cannot make {shown}"), errno));
    }
    let by_itself = !point.parent().is_none_or(mounting::others_may_change);
    let made = cx.check_cancelled().and_then(|()| {
        clone(core, &dataset, &found.full, &point, &identity.key, by_itself)?;
        let guids = find::guids(&Zfs::get()?, &name)?;
        making.made(store, guids.ok_or_else(|| Error::new(ErrorKind::Conflict, format!("{name} is gone")))?)?;
        cx.check_cancelled()?;
        let top = mount(&dataset, target, &request.name, &point)?;
        stand_alone(&top, &point, place.workspace, &found, cx)
    });
    let made = made.and_then(|notes| making.done(store, &reference).map(|()| notes));
    let mut notes = match made {
        Ok(notes) => notes,
        Err(error) => {
            // Should that fail too, `reclaim` finds the record; the error at hand is the one to tell.
            let _ = undo(core, &dataset, target, &request.name).and_then(|()| making.undone(store));
            return Err(error);
        }
    };
    let (rel, mut path) = (&found.record.rel, point);
    if !rel.is_root() {
        path.push(rel.as_path());
        notes.push(format!("all of the dataset {} was cloned; {rel} in it is the workspace's copy", found.dataset));
    }
    if !by_itself {
        notes.push(format!(
            "it is not mounted by itself when the machine starts, because others than root may change the way to it. Before you run zfs mount {}, look where that way leads (namei -l): root follows symlinks on it",
            shell(name.as_ref())
        ));
    }
    Ok(WritableClone { path, reference: Reference::new(reference.as_str())?, notes })
}

fn clone(core: &'static Core, dataset: &CStr, origin: &CStr, point: &Path, key: &Key, by_itself: bool) -> Result<()> {
    let text = |text: Vec<u8>| {
        CString::new(text).map_err(|_| Error::new(ErrorKind::InvalidArgument, "a path with a NUL in it"))
    };
    let texts = [
        (c"mountpoint", text(point.as_os_str().as_bytes().to_vec())?),
        // What the dataset around it has would be inherited: a clone is not to be shared, nor captured by others' timers.
        (c"sharenfs", c"off".to_owned()),
        (c"sharesmb", c"off".to_owned()),
        (c"com.sun:auto-snapshot", c"false".to_owned()),
        (c"org.ah-project:clone", text(key.to_string().into_bytes())?),
    ];
    let mut properties = NvList::of_texts(core, &texts.map(|(name, text)| (name.to_owned(), text)));
    // Nor is it to be read-only because its origin is.
    properties.number(c"readonly", 0);
    // It shows files of whoever owned the workspace, where others may come by.
    properties.number(c"setuid", 0);
    if !by_itself {
        // `noauto`: whatever mounts it at the start goes by the path, and follows symlinks.
        properties.number(c"canmount", 2);
    }
    core.clone_snapshot(dataset, origin, properties)
        .map_err(|failure| of_kernel(format!("cannot clone {}", origin.to_string_lossy()), &failure))
}

/// Makes the repository that the workspace was, if it was one, depend on nothing outside the clone. Gives notes for a person.
fn stand_alone(
    top: &OwnedFd,
    point: &Path,
    workspace: Option<&Dir>,
    found: &Found,
    cx: &Context<'_>,
) -> Result<Vec<String>> {
    let rel = &found.record.rel;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let dir = open_beneath(top.as_fd(), rel.as_bytes(), flags)
        .map_err(|errno| failed(format!("cannot open {rel} in the clone"), errno))?;
    let dir = Dir::from_fd(dir, point.join(rel.as_path()));
    ah_repository::own(&dir, workspace, found.record.snapshot.repository.as_ref(), cx)
}

/// Mounts the clone on the folder that was made for it, and sees that it is there. Gives its root, opened.
fn mount(dataset: &CStr, target: &Dir, name: &ah_plugin_api::FileName, point: &Path) -> Result<OwnedFd> {
    let shown = dataset.to_string_lossy();
    mounting::mount(dataset, &mounting::made(target, name.as_os_str())?, point)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let there = rustix::fs::openat(target, name.as_os_str(), flags, Mode::empty())
        .map_err(|errno| failed(format!("cannot open {shown} where it is mounted"), errno))?;
    match Mounts::read()?.of(&there) {
        Some(mount) if mount.source == dataset.to_bytes() => Ok(there),
        _ => Err(Error::new(ErrorKind::Conflict, "the target folder was moved meanwhile").with_hint("repeat")),
    }
}

fn undo(core: &'static Core, dataset: &CStr, target: &Dir, name: &ah_plugin_api::FileName) -> Result<()> {
    remove::undo(core, dataset)?;
    rustix::fs::unlinkat(target, name.as_os_str(), AtFlags::REMOVEDIR)
        .map_err(|errno| failed("cannot undo the clone's folder", errno))
}
