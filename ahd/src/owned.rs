//! What a caller's descriptors must be before anything is done with them.
//!
//! Everything is decided on the open descriptor; a path that came with it is for messages. A directory is the caller's if it
//! belongs to their user id. Whether they may have *all* of the subvolume or dataset that it lies in captured is another question: its root
//! must be theirs too, or the administrator must have allowed it.

use std::os::fd::BorrowedFd;

use ah_plugin_api::{Dir, Error, ErrorKind, Result};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::mounts::{self, About, Mount};
use crate::peer::Peer;

/// The longest token, bytes.
const MAX_TOKEN: usize = 64;
/// A tree deeper than this is not climbed.
const MAX_DEPTH: usize = 4096;
/// The number of the root directory of each subvolume of Btrfs.
const BTRFS_ROOT: u64 = 256;

/// A directory of the caller's.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) about: About,
    pub(crate) mount: Mount,
}

/// Refuses what is not a directory of the caller's on a filesystem of this machine. `what` is the word for it in errors.
pub(crate) fn directory(dir: &Dir, peer: &Peer, what: &str) -> Result<Owned> {
    let shown = dir.path().display();
    let about = About::of(dir).map_err(|e| Error::from_io(format!("cannot look at the {what} {shown}"), &e.into()))?;
    if about.kind != FileType::Directory {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("the {what} {shown} is not a directory")));
    }
    let Some(mount) = mounts::find(about.mount)? else {
        let message = format!("the {what} {shown} is mounted where the helper ahd does not see it");
        return Err(Error::new(ErrorKind::FailedPrecondition, message)
            .with_hint("the helper serves programs outside containers and other mount namespaces only"));
    };
    if !is_local(&mount.kind) {
        let message = format!("the helper ahd does not work on {} ({what} {shown})", mount.kind);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if about.uid != peer.uid {
        return Err(Error::new(ErrorKind::PermissionDenied, format!("the {what} {shown} does not belong to you"))
            .with_hint("the helper ahd works on directories of yours only"));
    }
    if about.links == 0 {
        return Err(Error::new(ErrorKind::NotFound, format!("the {what} {shown} was removed")));
    }
    Ok(Owned { about, mount })
}

/// Filesystems whose contents another program or machine makes up, or that are no place for files.
fn is_local(kind: &str) -> bool {
    let remote = ["nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "ceph", "afs", "orangefs", "autofs"];
    let pseudo =
        ["proc", "sysfs", "cgroup", "cgroup2", "devpts", "debugfs", "tracefs", "securityfs", "bpf", "configfs"];
    !kind.starts_with("fuse") && !remote.contains(&kind) && !pseudo.contains(&kind)
}

/// The token in the file that stands for a store of the caller's.
pub(crate) fn token(store: &Dir, peer: &Peer) -> Result<String> {
    let wrong = |why: &str| {
        Err(Error::new(ErrorKind::InvalidArgument, format!("what names the store is not its token file: {why}")))
    };
    let about = About::of(store).map_err(|e| Error::from_io("cannot look at the store's token file", &e.into()))?;
    if about.kind != FileType::RegularFile {
        return wrong("it is no regular file");
    }
    if about.uid != peer.uid {
        return wrong("it does not belong to you");
    }
    if about.size > MAX_TOKEN as u64 {
        return wrong("it is too long");
    }
    let mut bytes = [0; MAX_TOKEN + 1];
    let length = match rustix::io::pread(store, &mut bytes[..], 0) {
        Ok(length) => length,
        Err(Errno::BADF) => return wrong("it is not open for reading"),
        Err(e) => return Err(Error::from_io("cannot read the store's token file", &e.into())),
    };
    match std::str::from_utf8(&bytes[..length]) {
        Ok(text) if is_token(text) => Ok(text.to_owned()),
        _ => wrong("it holds something else"),
    }
}

/// Whether a text is a token: safe as a file's name.
pub(crate) fn is_token(text: &str) -> bool {
    (1..=MAX_TOKEN).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
}

/// Whose the root of the subvolume, dataset or filesystem is that a directory lies in; none if it cannot be reached from here.
///
/// Goes up from one open directory to the next, on one mount, until a root is passed.
pub(crate) fn owner_above(dir: BorrowedFd<'_>, mount: &Mount) -> Result<Option<u32>> {
    let failed = |e: Errno| Error::from_io("cannot look at the directories above", &e.into());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_SYMLINKS;
    let mut here = rustix::fs::openat(dir, c".", flags, Mode::empty()).map_err(failed)?;
    let mut about = About::of(&here).map_err(failed)?;
    for _ in 0..MAX_DEPTH {
        let above = match rustix::fs::openat2(&here, c"..", flags, Mode::empty(), resolve) {
            Err(Errno::XDEV) => None,
            above => Some(above.map_err(failed)?),
        };
        let next = above.map(|fd| About::of(&fd).map(|about| (fd, about))).transpose().map_err(failed)?;
        match next {
            // Another device number in one mount: the root of a subvolume is passed.
            Some((_, next)) if next.dev != about.dev => return Ok(Some(about.uid)),
            // The root of all is its own parent.
            Some((fd, next)) if !next.same_file(&about) => (here, about) = (fd, next),
            _ => {
                // A bind mount may begin anywhere: only a root that is known to be one tells whose all of it is.
                let is_root = mount.root.as_os_str() == "/" || (mount.kind == "btrfs" && about.ino == BTRFS_ROOT);
                return Ok(is_root.then_some(about.uid));
            }
        }
    }
    Err(Error::new(ErrorKind::Unsupported, "the directory lies too deep"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn only_tokens_are_tokens() {
        for bad in ["", "..", "a/b", "A", "a\0", "ä", &"a".repeat(65)] {
            assert!(!is_token(bad), "{bad:?}");
        }
        assert!(is_token("abc123"));
    }

    #[test]
    fn the_root_is_found_and_foreign_filesystems_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let fd = mounts::open_plain(&dir.path().canonicalize().unwrap()).unwrap();
        let mount = mounts::find(About::of(&fd).unwrap().mount).unwrap().unwrap();
        let owner = owner_above(fd.as_fd(), &mount).unwrap();
        assert_eq!(owner.is_some(), mount.root.as_os_str() == "/" || mount.kind == "btrfs");
        assert!(is_local("btrfs") && is_local("zfs") && is_local("ext4"));
        assert!(!is_local("fuse.sshfs") && !is_local("fuseblk") && !is_local("nfs4") && !is_local("proc"));
    }
}
