//! Where a provider may say that it shows a snapshot.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::wire::DEFECT;
use ah_plugin_api::{Context, Error, ErrorKind, MountRequest, Place, Provider, Result, UnmountRequest, View};
use rustix::fs::{Access, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use crate::fsio;

/// Has a provider show a snapshot of the workspace at `root`, and refuses a view that is what is worked in, or others' files: that would be read, or
/// handed on, as what was captured; or one that is no directory, for which nobody else is to blame.
///
/// # Errors
/// Those of `mount`; `Internal`: the provider's answer is wrong.
pub(crate) fn mount(
    provider: &dyn Provider,
    place: &Place<'_>,
    request: &MountRequest,
    root: &Path,
    cx: &Context<'_>,
) -> Result<View> {
    let asked = place.need_target()?.path().join(request.name.as_os_str());
    let view = provider.mount(place, request, cx)?;
    let what = match &view.path {
        path if is_worked_in(path, &asked, root) => "what is worked in",
        path if fsio::is_no_dir(path) => "what is no directory",
        path if !may_be_shown(path, &asked, place) => {
            "what is neither where it was asked for, nor in its store, nor read-only on another filesystem"
        }
        _ => return Ok(view),
    };
    let (name, path) = (provider.describe().name, view.path.display());
    let message = format!("the provider {name} shows as a view {what}: {path}");
    // What it made all the same is not left to stand.
    let _ = provider.unmount(place, &UnmountRequest { view: view.reference, unused: false }, &Context::quiet());
    Err(Error::new(ErrorKind::Internal, message).with_hint(DEFECT))
}

/// Whether a view at `path` would be the workspace, or something in or around it. What lies in it by name may be another filesystem, which shows
/// snapshots; or in the folder of views, which lies in it: `asked`.
fn is_worked_in(path: &Path, asked: &Path, root: &Path) -> bool {
    let there = real(path);
    let inside = || there.starts_with(root) && device(&there) == device(root);
    root.starts_with(&there) || !there.starts_with(asked) && inside()
}

/// Whether a view may be at `path`: where it was `asked` for, or where its provider shows the snapshot anyway: below its store, or read-only on a filesystem that
/// is not the one of the folder of views. What can be written there is others' files, and not a snapshot; others' that nobody can write, as those on a disc, are not told from one.
fn may_be_shown(path: &Path, asked: &Path, place: &Place<'_>) -> bool {
    let (there, store) = (real(path), real(place.store.path()));
    let is_apart = || {
        let target = place.target.and_then(|target| device(target.path()));
        device(&there).zip(target).is_some_and(|(there, target)| there != target) && is_read_only(&there)
    };
    there.starts_with(real(asked)) || there.starts_with(&store) && there != store || is_apart()
}

/// Whether nobody can write there, whoever asks: of a mount its flags say so, of a subvolume the kernel does when it is asked. Of what is immutable, or whose owner the mount has no
/// number for, it says that first: such a directory is judged by what is in it.
fn is_read_only(path: &Path) -> bool {
    let is_mounted_so = rustix::fs::statvfs(path).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::RDONLY));
    is_mounted_so
        || match rustix::fs::access(path, Access::WRITE_OK) {
            Err(Errno::PERM | Errno::ACCESS) => has_what_is_read_only(path),
            asked => asked == Err(Errno::ROFS),
        }
}

/// Whether something in a directory is read-only, as only what lies in a read-only subvolume is where nothing else is mounted.
fn has_what_is_read_only(path: &Path) -> bool {
    let Ok((top, entries)) = path.metadata().and_then(|top| Ok((top, path.read_dir()?))) else { return false };
    entries.flatten().any(|entry| {
        let is_of_it = entry.metadata().is_ok_and(|it| it.dev() == top.dev() && !it.is_symlink());
        is_of_it && rustix::fs::access(entry.path(), Access::WRITE_OK) == Err(Errno::ROFS)
    })
}

fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn device(path: &Path) -> Option<u64> {
    // A look alone mounts nothing where opening does.
    let there = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    rustix::fs::fstat(there).map(|stat| stat.st_dev).ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::fs::IFlags;

    use super::*;

    #[test]
    fn what_lies_in_a_read_only_subvolume_is_read_only_though_it_is_immutable() {
        let Some(disk) = ah_test_disks::Disk::new("btrfs", 300, "") else { return };
        let (tree, shown) = (disk.at().join("tree"), disk.at().join("shown"));
        let run = |program: &str, args: &[&str], paths: &[&Path]| {
            assert!(Command::new(program).args(args).args(paths).status().unwrap().success());
        };
        let set = |flags| rustix::fs::ioctl_setflags(std::fs::File::open(&tree).unwrap(), flags).unwrap();
        run("btrfs", &["-q", "subvolume", "create"], &[&tree]);
        std::fs::create_dir(tree.join("d")).unwrap();
        set(IFlags::IMMUTABLE);
        run("btrfs", &["-q", "subvolume", "snapshot", "-r"], &[&tree, &shown]);
        assert_eq!(rustix::fs::access(&shown, Access::WRITE_OK), Err(Errno::PERM));
        assert_eq!([&shown, &tree].map(|path| is_read_only(path)), [true, false]);
        // What is mounted in it, or where a link of it leads, says nothing of it.
        set(IFlags::empty());
        std::os::unix::fs::symlink(shown.join("d"), tree.join("link")).unwrap();
        set(IFlags::IMMUTABLE);
        run("mount", &["-t", "tmpfs", "-o", "ro", "none"], &[&tree.join("d")]);
        let is_so = is_read_only(&tree);
        ah_test_disks::unmount(&tree.join("d"));
        assert!(!is_so);
        run("btrfs", &["property", "set", "-ts"], &[&shown, Path::new("ro"), Path::new("false")]);
        assert!(!is_read_only(&shown));
    }
}
