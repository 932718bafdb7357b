//! What a caller's descriptors must be before anything is done with them.
//!
//! Everything is decided on the open descriptor; a path that came with it is for messages. A directory is the caller's if it
//! belongs to their user id. Whether they may have *all* of the subvolume or dataset that it lies in captured is another question: its root
//! must be theirs too, or the administrator must have allowed it.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use ah_plugin_api::{Dir, Error, ErrorKind, Result};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, StatVfsMountFlags};
use rustix::io::Errno;

use crate::mounts::{self, About, Mount};
use crate::peer::Peer;
use crate::sys::Handle;

/// The longest token, bytes.
const MAX_TOKEN: usize = 64;
/// A tree deeper than this is not climbed.
const MAX_DEPTH: usize = 4096;
/// So many mounts are looked through.
const MAX_MOUNTS: usize = 512;
/// The number of the root directory of each subvolume of Btrfs.
const BTRFS_ROOT: u64 = 256;

/// A directory of the caller's.
#[derive(Debug)]
pub(crate) struct Owned {
    pub(crate) about: About,
    pub(crate) mount: Mount,
    /// The directory as it is reached from here, if the caller reaches it by a mount that is not to be seen from here.
    pub(crate) from_here: Option<Dir>,
}

impl Owned {
    /// The directory, as it is reached from here.
    pub(crate) fn dir<'a>(&'a self, given: &'a Dir) -> &'a Dir {
        self.from_here.as_ref().unwrap_or(given)
    }

    /// Refuses a target folder that its caller reaches by a mount of their own which allows less than the one by which it is reached from here: what is
    /// kept in a sandbox by that would be let out of it.
    pub(crate) fn refuse_more(&self, given: &Dir) -> Result<()> {
        if self.from_here.is_none() {
            return Ok(());
        }
        // It is one of those that are looked at here, so nobody's program is asked.
        let theirs = rustix::fs::fstatvfs(given)
            .map_err(|e| Error::from_io("cannot look at the target folder's mount", &e.into()))?
            .f_flag;
        let more = [
            // Where neither may be written to, that is found soon enough.
            (StatVfsMountFlags::RDONLY, false, "read-only"),
            (StatVfsMountFlags::NOEXEC, self.mount.noexec, "noexec"),
            (NOSYMFOLLOW, self.mount.nosymfollow, "nosymfollow"),
        ];
        match more.into_iter().find(|(flag, here, _)| theirs.contains(*flag) && !here) {
            None => Ok(()),
            Some((_, _, what)) => {
                let message =
                    format!("the target folder {} is mounted {what} for this program", given.path().display());
                Err(Error::new(ErrorKind::PermissionDenied, message)
                    .with_hint("the helper ahd puts nothing where a sandbox forbids it: repeat it outside"))
            }
        }
    }
}

/// `ST_NOSYMFOLLOW` of statfs(2), which no crate in use names.
const NOSYMFOLLOW: StatVfsMountFlags = StatVfsMountFlags::from_bits_retain(0x2000);

/// Refuses what is not a directory of the caller's on a filesystem of this machine. `what` is the word for it in errors.
pub(crate) fn directory(dir: &Dir, peer: &Peer, what: &str) -> Result<Owned> {
    let shown = dir.path().display();
    let cannot = |e: Errno| Error::from_io(format!("cannot look at the {what} {shown}"), &e.into());
    let about = About::of(dir).map_err(cannot)?;
    if about.kind != FileType::Directory {
        return Err(Error::new(ErrorKind::InvalidArgument, format!("the {what} {shown} is not a directory")));
    }
    // Of all that is asked before this, nothing can be made up by a filesystem in a user's program: it is asked for nothing.
    if about.uid != peer.uid {
        return Err(Error::new(ErrorKind::PermissionDenied, format!("the {what} {shown} does not belong to you"))
            .with_hint("the helper ahd works on directories of yours only"));
    }
    if about.links == 0 {
        return Err(Error::new(ErrorKind::NotFound, format!("the {what} {shown} was removed")));
    }
    let owned = match mounts::find(about.mount)? {
        Some(mount) => Owned { about, mount, from_here: None },
        None => match from_here(dir, &about)? {
            Some((found, mount)) => {
                let about = About::of(&found).map_err(cannot)?;
                Owned { about, mount, from_here: Some(found) }
            }
            None => {
                let message = format!("the {what} {shown} is on a filesystem that the helper ahd does not see");
                return Err(Error::new(ErrorKind::FailedPrecondition, message)
                    .with_hint("the helper does not serve what is mounted inside a container only"));
            }
        },
    };
    if !is_local(&owned.mount.kind) {
        let message = format!("the helper ahd does not work on {} ({what} {shown})", owned.mount.kind);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(owned)
}

/// The same directory by way of a mount of this process's own namespace, where one shows it.
///
/// Where an agent runs in a branch (`exec`), the workspace is a mount that is nowhere else; and what is above it there, is what the
/// caller says.
fn from_here(dir: &Dir, about: &About) -> Result<Option<(Dir, Mount)>> {
    // A filesystem that cannot be told of in this way is none of those that snapshots are taken of.
    let Ok(handle) = Handle::of(dir.as_fd()) else { return Ok(None) };
    for mount in reached(mounts::all()?).take(MAX_MOUNTS) {
        let same = |found: &About| found.same_file(about) && found.mount == mount.id;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let Ok(top) = rustix::fs::openat2(rustix::fs::CWD, &mount.point, flags, Mode::empty(), resolve) else {
            continue;
        };
        // Another mount may be on top of it.
        if !About::of(&top).is_ok_and(|top| top.mount == mount.id) {
            continue;
        }
        let Ok(found) = handle.open(top.as_fd()) else { continue };
        if !About::of(&found).is_ok_and(|found| same(&found)) {
            continue;
        }
        // It may lie on that filesystem, but outside what is mounted, or below another mount.
        let Ok(path) = mounts::path_of(found.as_fd()) else { continue };
        let reached = mounts::open_plain(&path).and_then(|reached| About::of(&reached));
        if reached.is_ok_and(|reached| same(&reached)) {
            return Ok(Some((Dir::from_fd(found, dir.path().to_owned()), mount)));
        }
    }
    Ok(None)
}

/// The mounts of local filesystems, but those that a filesystem in a user's program stands on the way to: it may keep who passes for ever.
fn reached(all: Vec<Mount>) -> impl Iterator<Item = Mount> {
    let programs = all.iter().filter(|mount| mount.kind.starts_with("fuse") && mount.point.as_os_str() != "/");
    let programs: HashSet<PathBuf> = programs.map(|mount| mount.point.clone()).collect();
    let is_free = move |mount: &Mount| !mount.point.ancestors().any(|above| programs.contains(above));
    all.into_iter().filter(move |mount| is_local(&mount.kind) && is_free(mount))
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
    use super::*;

    #[test]
    fn only_tokens_are_tokens() {
        for bad in ["", "..", "a/b", "A", "a\0", "ä", &"a".repeat(65)] {
            assert!(!is_token(bad), "{bad:?}");
        }
        assert!(is_token("abc123"));
    }

    #[test]
    fn no_way_leads_through_a_program_of_a_users() {
        let mount = |kind: &str, point: &str| Mount {
            id: 1,
            root: "/".into(),
            point: point.into(),
            kind: kind.to_owned(),
            noexec: false,
            nosymfollow: false,
        };
        let all = vec![
            mount("ext4", "/"),
            mount("btrfs", "/home/u/work/branch"),
            mount("fuse.sshfs", "/home/u/work"),
            mount("btrfs", "/home/u/works"),
            mount("nfs", "/srv"),
            mount("ext4", "/srv/disk"),
        ];
        let found: Vec<_> = reached(all).map(|mount| mount.point).collect();
        assert_eq!(found, ["/", "/home/u/works", "/srv/disk"].map(PathBuf::from));
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
