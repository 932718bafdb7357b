//! Who is at the other end, and doing things with no more rights on files than they have.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use ah_plugin_api::{Error, Result};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::sys;

/// The process at the other end of a connection, as it was when it connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// For the log only: the number may be another process's by now.
    pub(crate) pid: i32,
    pub(crate) groups: Vec<u32>,
}

impl Peer {
    /// Asks the kernel.
    pub(crate) fn of(stream: &UnixStream) -> Result<Self> {
        let cannot = |e: std::io::Error| Error::from_io("cannot find out who connects", &e);
        let who = getsockopt(stream, PeerCredentials).map_err(|e| cannot(e.into()))?;
        let groups = sys::peer_groups(stream.as_fd()).map_err(cannot)?;
        Ok(Self { uid: who.uid(), gid: who.gid(), pid: who.pid(), groups })
    }
}

/// Runs `work` on this thread with a user's rights on files: permissions, owner of what is made, quota. The helper itself is in no
/// groups, so neither is the user here.
pub(crate) fn as_user<T>(uid: u32, gid: u32, work: impl FnOnce() -> T) -> T {
    /// Gives the thread its own rights back, also when `work` panics.
    struct Back(Uid, Gid, Option<CapabilitySets>);
    impl Drop for Back {
        fn drop(&mut self) {
            // What was this thread's before can be had again.
            let _ = self.2.map(|may| set_capabilities(None, may));
            setfsuid(self.0);
            setfsgid(self.1);
        }
    }
    let may = capabilities(None).ok();
    // The calls are of this thread alone.
    let gid_before = setfsgid(Gid::from_raw(gid));
    let uid_before = setfsuid(Uid::from_raw(uid));
    let _back = Back(uid_before, gid_before, may);
    // They answer what was before and nothing else; asked with what is no id, they change nothing.
    let now = (setfsuid(Uid::from_raw(u32::MAX)).as_raw(), setfsgid(Gid::from_raw(u32::MAX)).as_raw());
    assert_eq!(now, (uid, gid), "the rights of a user cannot be taken on");
    // With the user id the kernel takes away the capabilities that override permissions, and leaves all others.
    let powerless = may.map(|may| CapabilitySets { effective: CapabilitySet::empty(), ..may });
    let given_up = powerless.is_some_and(|sets| set_capabilities(None, sets).is_ok());
    assert!(given_up, "root's rights cannot be given up");
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_for_a_user_is_done_with_their_rights() {
        if !nix::unistd::geteuid().is_root() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
            eprintln!("skipped: needs root");
            return;
        }
        use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (closed, own) = (dir.path().join("closed"), dir.path().join("own"));
        std::fs::create_dir(&own).unwrap();
        std::fs::write(&closed, "x").unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o600)).unwrap();
        chown(&own, Some(12345), Some(12345)).unwrap();
        let panicked = std::panic::catch_unwind(|| {
            as_user(12345, 12345, || {
                assert!(std::fs::read(&closed).is_err());
                std::fs::create_dir(own.join("made")).unwrap();
                panic!("told to");
            })
        });
        assert!(panicked.is_err());
        let made = std::fs::metadata(own.join("made")).unwrap();
        assert_eq!((made.uid(), made.gid()), (12345, 12345));
        assert!(std::fs::read(&closed).is_ok(), "the thread has its own rights again");
    }
}
