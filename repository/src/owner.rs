//! Acting with the rights of a directory's owner.
//!
//! What a repository contains leads anywhere: a `.git` file and borrowed objects name directories. Run by root for somebody else (the helper
//! is), following them would show that user what only root may read. So root follows them as the owner of the work tree would.

use std::os::fd::AsFd;

use nix::unistd::{Gid, Uid, geteuid, setfsgid, setfsuid};

/// Calls `run` with the filesystem rights of the owner of `dir`, on this thread, where this process is root and the owner is not.
pub(crate) fn as_owner<T>(dir: impl AsFd, run: impl FnOnce() -> T) -> T {
    let owner = rustix::fs::fstat(dir).map(|stat| (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)));
    let _acting = match owner {
        Ok((uid, gid)) if geteuid().is_root() && !uid.is_root() => Some(Acting::begin(uid, gid)),
        _ => None,
    };
    run()
}

/// Ends when this goes, also by a panic.
struct Acting {
    uid: Uid,
    gid: Gid,
}

impl Acting {
    fn begin(uid: Uid, gid: Gid) -> Self {
        // The user last: without root's rights the group could not be changed any more. Both answer what was before.
        let gid = setfsgid(gid);
        Self { uid: setfsuid(uid), gid }
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        setfsuid(self.uid);
        setfsgid(self.gid);
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
        let dir = std::fs::File::open(&theirs).unwrap();
        let made = as_owner(&dir, || {
            assert!(std::fs::read(&secret).is_err());
            std::fs::write(theirs.join("made"), "").unwrap();
            theirs.join("made")
        });
        let made = std::fs::metadata(made).unwrap();
        assert_eq!((made.uid(), made.gid()), (65534, 65534));
        // And afterwards it is root again.
        assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
    }
}
