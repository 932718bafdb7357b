//! Acting with the rights of a directory's owner.
//!
//! What a repository contains leads anywhere: a `.git` file and borrowed objects name directories. Run by root for somebody else (the helper
//! is), following them would show that user what only root may read. So root follows them as the owner of the work tree would.

use std::os::fd::AsFd;

use nix::unistd::{Gid, Uid, geteuid, setfsgid, setfsuid};
use rustix::thread::set_thread_groups;

/// Calls `run` with the filesystem rights of the owner of `dir`, on this thread, where this process is root and the owner is not. None if
/// these rights cannot be had: then nothing was called.
pub(crate) fn as_owner<T>(dir: impl AsFd, run: impl FnOnce() -> T) -> Option<T> {
    let owner = rustix::fs::fstat(dir).ok()?;
    let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
    let _acting = if geteuid().is_root() && !uid.is_root() { Some(Acting::begin(uid, gid)?) } else { None };
    Some(run())
}

/// Ends when this goes, also by a panic.
struct Acting {
    uid: Uid,
    gid: Gid,
    groups: Vec<rustix::process::Gid>,
}

impl Acting {
    fn begin(uid: Uid, gid: Gid) -> Option<Self> {
        // Root's own groups may read what the owner may not. Which groups the owner is in, nobody asks here.
        let groups = rustix::process::getgroups().ok()?;
        set_thread_groups(&[]).ok()?;
        // Both answer what was before, and nothing else: whether it came about is told by asking again, with what is no id.
        let nobody = u32::MAX;
        let acting = Self { gid: setfsgid(gid), uid: setfsuid(uid), groups };
        let came_about = setfsuid(Uid::from_raw(nobody)) == uid && setfsgid(Gid::from_raw(nobody)) == gid;
        came_about.then_some(acting)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        setfsuid(self.uid);
        setfsgid(self.gid);
        // It cannot fail: they were this thread's before.
        let _ = set_thread_groups(&self.groups);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::as_owner;

    #[test]
    fn root_reads_nothing_for_others_that_they_could_not() {
        if !nix::unistd::geteuid().is_root() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
            eprintln!("skipped: needs root");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (theirs, secret) = (temp.path().join("theirs"), temp.path().join("secret"));
        std::fs::create_dir(&theirs).unwrap();
        std::fs::write(&secret, "secret").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).unwrap();
        // A group that this thread has, and the owner has not.
        let shared = temp.path().join("shared");
        std::fs::write(&shared, "for the group").unwrap();
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o040)).unwrap();
        std::os::unix::fs::chown(&shared, Some(1), Some(4711)).unwrap();
        let group = rustix::process::Gid::from_raw(4711);
        rustix::thread::set_thread_groups(&[group]).unwrap();
        let dir = std::fs::File::open(&theirs).unwrap();
        let made = as_owner(&dir, || {
            assert!(std::fs::read(&secret).is_err() && std::fs::read(&shared).is_err());
            std::fs::write(theirs.join("made"), "").unwrap();
            theirs.join("made")
        });
        let made = made.unwrap();
        let made = std::fs::metadata(made).unwrap();
        assert_eq!((made.uid(), made.gid()), (65534, 65534));
        // And afterwards it is root again.
        assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
        assert_eq!(rustix::process::getgroups().unwrap(), [group]);
    }
}
