//! For tests: a provider that does what a filesystem with snapshots does, by copying everything, owners included. It believes whatever it is
//! told, a reference being a path, so that what stops an attack is the helper.

#![allow(clippy::unwrap_used, reason = "a helper of tests")]

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ah_plugin_api::wire::{decode, encode};
use ah_plugin_api::{
    Capability, CloneRequest, Context, Description, DestroyRequest, Dir, Done, Error, ErrorKind, ListRequest, LogLevel,
    Mode, MountRequest, Omission, OmitReason, Place, Probe, ProbeRequest, Provider, ProviderName, ReclaimRequest,
    Reclaimed, Reference, RelPath, Result, Snapshot, SnapshotRef, SnapshotRequest, UnmountRequest, View, WritableClone,
};

struct Copies;

fn io<T>(result: std::io::Result<T>) -> Result<T> {
    result.map_err(|e| Error::from_io("cannot copy", &e))
}

fn real(dir: &Dir) -> Result<PathBuf> {
    io(fs::read_link(format!("/proc/self/fd/{}", dir.as_fd().as_raw_fd())))
}

fn copy(from: &Path, to: &Path, at: &RelPath, omitted: &mut Vec<Omission>, cx: &Context<'_>) -> Result<()> {
    cx.check_cancelled()?;
    let stat = io(fs::symlink_metadata(from))?;
    let kind = stat.file_type();
    if kind.is_dir() {
        io(fs::DirBuilder::new().mode(0o700).create(to))?;
        for entry in io(fs::read_dir(from))?.flatten() {
            let name = entry.file_name();
            copy(&entry.path(), &to.join(&name), &at.join(name.as_bytes())?, omitted, cx)?;
        }
    } else if kind.is_symlink() {
        io(symlink(io(fs::read_link(from))?, to))?;
    } else if kind.is_file() {
        io(fs::copy(from, to))?;
    } else if kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device() {
        omitted.push(Omission { path: at.clone(), reason: OmitReason::SpecialFile, detail: None });
        return Ok(());
    }
    io(lchown(to, Some(stat.uid()), Some(stat.gid())))?;
    if !kind.is_symlink() {
        io(fs::set_permissions(to, fs::Permissions::from_mode(stat.mode() & 0o7777)))?;
    }
    let time = |secs: i64, nanos: i64| rustix::fs::Timespec { tv_sec: secs, tv_nsec: nanos };
    let times = rustix::fs::Timestamps {
        last_access: time(stat.atime(), stat.atime_nsec()),
        last_modification: time(stat.mtime(), stat.mtime_nsec()),
    };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, to, &times, flags).map_err(|e| Error::from_io("cannot copy", &e.into()))
}

/// The folder of the snapshot that a reference names: whatever it names.
fn folder(reference: &Reference) -> Result<PathBuf> {
    let path = PathBuf::from(reference.as_str());
    if path.join("record").is_file() {
        return Ok(path);
    }
    Err(Error::new(ErrorKind::NotFound, format!("there is no snapshot {reference}")))
}

/// Refuses where a test says that some of a store's snapshots are where nobody can look now.
fn refuse_elsewhere(place: &Place<'_>) -> Result<()> {
    if real(place.store)?.join("elsewhere").exists() {
        return Err(Error::new(ErrorKind::FailedPrecondition, "the disk of some is not there").with_hint("plug it in"));
    }
    Ok(())
}

/// Refuses where a test says that nobody can look for anything in a store.
fn refuse_nowhere(place: &Place<'_>) -> Result<()> {
    if real(place.store)?.join("nowhere").exists() {
        return Err(Error::new(ErrorKind::FailedPrecondition, "the disk of all is not there").with_hint("plug it in"));
    }
    Ok(())
}

/// Refuses what a test says that there is no room for, and names the place, as providers do.
fn refuse_full(tree: &Path, path: &Path) -> Result<()> {
    if tree.join("no-room").exists() {
        let message = format!("cannot make {}", path.display());
        return Err(
            Error::new(ErrorKind::ResourceExhausted, message).with_hint(format!("make room for {}", path.display()))
        );
    }
    Ok(())
}

fn record(path: &Path) -> Result<Snapshot> {
    decode(&io(fs::read(path.join("record")))?)
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => io(Err(e)),
        _ => Ok(()),
    }
}

impl Provider for Copies {
    fn describe(&self) -> Description {
        let capabilities = [
            Capability::AlwaysDurable,
            Capability::Owners,
            Capability::Xattrs,
            Capability::Clone,
            Capability::ExactViewModes,
            Capability::ReadWithoutMount,
            Capability::Diff,
            Capability::RepositoryClones,
        ];
        let name = ProviderName::new("copies").unwrap();
        let (rank, filesystems) = (Some(50), BTreeSet::new());
        Description { name, version: "0.1.0".to_owned(), rank, filesystems, capabilities: capabilities.into() }
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, _cx: &Context<'_>) -> Result<Probe> {
        place.need_workspace()?;
        // So that a test can see whether the environment came through.
        let reason = format!("{} variables", std::env::vars_os().count());
        let modes: BTreeSet<_> = [Mode::InPlace].into();
        let usable = request.mode.is_none_or(|mode| modes.contains(&mode));
        Ok(Probe { usable, reason, remedy: None, modes, can_delete: false, convertible: None })
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        if request.label.as_deref() == Some("panic") {
            panic!("told to");
        }
        if request.label.as_deref() == Some("slow") {
            for _ in 0..1000 {
                cx.check_cancelled()?;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        let store = real(place.store)?;
        let path = store.join(request.id.as_str());
        if path.exists() {
            return Err(Error::new(ErrorKind::AlreadyExists, format!("there is a snapshot {}", request.id)));
        }
        let temp = store.join(format!("tmp-{}", request.id.as_str()));
        io(fs::DirBuilder::new().mode(0o700).create(&temp))?;
        let mut omitted = Vec::new();
        let copied = copy(&real(place.need_workspace()?)?, &temp.join("tree"), &RelPath::root(), &mut omitted, cx);
        if let Err(error) = copied {
            remove(&temp)?;
            return Err(error);
        }
        let snapshot = Snapshot {
            id: request.id.clone(),
            reference: Reference::new(path.display().to_string())?,
            created: request.created,
            label: request.label.clone(),
            attributes: request.attributes.clone(),
            durability: ah_plugin_api::Durability::Durable,
            tree: None,
            entries: None,
            omitted_total: omitted.len() as u64,
            omitted,
            repository: None,
            pins: None,
            changed_below: None,
        };
        io(fs::write(temp.join("record"), encode(&snapshot)?))?;
        io(fs::rename(&temp, &path))?;
        Ok(snapshot)
    }

    fn sync(&self, _place: &Place<'_>, request: &SnapshotRef, _cx: &Context<'_>) -> Result<Done> {
        folder(&request.snapshot).map(|_| Done {})
    }

    fn list(&self, place: &Place<'_>, request: &ListRequest, _cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        refuse_nowhere(place)?;
        if !request.partial {
            refuse_elsewhere(place)?;
        }
        let entries = io(fs::read_dir(real(place.store)?))?.flatten();
        let kept = entries.filter(|entry| !entry.file_name().as_bytes().starts_with(b"tmp-"));
        let mut all: Vec<_> = kept.filter_map(|entry| record(&entry.path()).ok()).collect();
        all.iter_mut().for_each(|snapshot| snapshot.omitted.clear());
        all.sort_by_key(|snapshot| snapshot.created);
        Ok(all)
    }

    fn stat(&self, _place: &Place<'_>, request: &SnapshotRef, _cx: &Context<'_>) -> Result<Snapshot> {
        record(&folder(&request.snapshot)?)
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, _cx: &Context<'_>) -> Result<Done> {
        let (DestroyRequest::Snapshot(reference) | DestroyRequest::Clone(reference)) = request;
        // A clone's mount point, of whose disk that is told in other words than of those of a list.
        let is_point = || fs::read_dir(reference.as_str()).is_ok_and(|mut entries| entries.next().is_none());
        if matches!(request, DestroyRequest::Clone(_)) && refuse_elsewhere(place).is_err() && is_point() {
            return Err(Error::new(ErrorKind::FailedPrecondition, format!("the disk of {reference} is not there")));
        }
        if Path::new(reference.as_str()).join("held").exists() {
            return Err(Error::new(ErrorKind::Busy, "it is held"));
        }
        remove(Path::new(reference.as_str()))?;
        Ok(Done {})
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, _cx: &Context<'_>) -> Result<View> {
        let tree = folder(&request.snapshot)?.join("tree");
        refuse_full(&tree, &real(place.need_target()?)?.join(request.name.as_os_str()))?;
        for path in &request.paths {
            // By components, because a symlink is not followed.
            let mut at = tree.clone();
            for name in path.components() {
                if !fs::symlink_metadata(&at).is_ok_and(|stat| stat.is_dir()) {
                    return Err(Error::new(ErrorKind::NotFound, format!("there is no {path}")));
                }
                at.push(std::ffi::OsStr::from_bytes(name));
            }
            if fs::symlink_metadata(&at).is_err() {
                return Err(Error::new(ErrorKind::NotFound, format!("there is no {path}")));
            }
        }
        Ok(View { path: tree, reference: Reference::new("view")?, read_only_mount: true })
    }

    fn unmount(&self, place: &Place<'_>, _request: &UnmountRequest, _cx: &Context<'_>) -> Result<Done> {
        refuse_nowhere(place)?;
        Ok(Done {})
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        let path = real(place.need_target()?)?.join(request.name.as_os_str());
        let tree = folder(&request.snapshot)?.join("tree");
        refuse_full(&tree, &path)?;
        let made = copy(&tree, &path, &RelPath::root(), &mut Vec::new(), cx);
        if let Err(error) = made {
            remove(&path)?;
            return Err(error);
        }
        Ok(WritableClone { reference: Reference::new(path.display().to_string())?, path, notes: Vec::new() })
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        if let Err(error) = refuse_elsewhere(place) {
            cx.log(LogLevel::Warn, &format!("left for later: {error}"));
        }
        if let Some(target) = place.target {
            let target = real(target)?;
            for name in &request.forgotten {
                remove(&target.join(name.as_os_str()))?;
            }
        }
        Ok(Reclaimed::default())
    }
}

ah_plugin_api::export_provider!(Copies);
