//! Who is at the other end, and doing things with no more rights on files than they have.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use ah_plugin_api::{Error, Result};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

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

/// Runs `work` on this thread with a user's rights on files, as [`ah_plugin_api::sys::as_user`] does, in no group but that one.
///
/// # Panics
/// If they cannot be had: nothing is done with root's.
pub(crate) fn as_user<T>(uid: u32, gid: u32, work: impl FnOnce() -> T) -> T {
    ah_plugin_api::sys::as_user(uid, gid, &[], work)
        .unwrap_or_else(|| panic!("the rights of a user cannot be taken on"))
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
