//! What a refusal of ZFS amounts to for a caller: by its numbers, never by its text.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;

use ah_plugin_api::{Error, ErrorKind, text};
use rustix::io::Errno;

use crate::sys::{Failure, LibError, Missing, code};

/// A library or the kernel module that cannot be had.
impl From<Missing> for Error {
    fn from(missing: Missing) -> Self {
        let kind = match &missing {
            Missing::Device { errno } if denied(*errno) => ErrorKind::PermissionDenied,
            Missing::Library { .. } | Missing::Version { .. } | Missing::Module | Missing::Device { .. } => {
                ErrorKind::Unavailable
            }
        };
        let mut error = Self::new(kind, missing.to_string()).with_hint(missing.remedy());
        match missing {
            Missing::Library { cause, .. } => error.causes.push(cause),
            Missing::Device { errno } => error.errno = Some(errno),
            Missing::Version { .. } | Missing::Module => {}
        }
        error
    }
}

fn denied(errno: i32) -> bool {
    errno == Errno::PERM.raw_os_error() || errno == Errno::ACCESS.raw_os_error()
}

/// A refusal of libzfs_core while doing what `what` says.
pub(crate) fn of_kernel(what: impl Into<String>, failure: &Failure) -> Error {
    // The error of a name says more than that of the whole.
    let errno = failure.each.first().map_or(failure.errno, |(_, errno)| *errno);
    of_errno(what, errno)
}

/// A refusal to give a clone the snapshots of what it was made from, of which `origin` is one.
pub(crate) fn of_promotion(clone: &CStr, origin: &CStr, failure: &Failure) -> Error {
    let what = format!("cannot promote {}", clone.to_string_lossy());
    let Some((name, _)) = failure.each.first() else { return of_kernel(what, failure) };
    let origin = origin.to_string_lossy();
    let from = origin.split('@').next().unwrap_or_default();
    let name_shown = text::path(name);
    let own = [clone.to_bytes(), b"@", name].concat();
    of_kernel(format!("{what}: it has a snapshot {name_shown}, as has {from}, whose snapshots it would get"), failure)
        .with_hint(format!("rename one, then repeat: zfs rename {} NEW", text::shell(OsStr::from_bytes(&own))))
}

/// A refusal of libzfs while doing what `what` says.
pub(crate) fn of_library(what: impl Into<String>, error: &LibError) -> Error {
    let errno = match error.code {
        code::PERMISSION => Some(Errno::PERM),
        code::BUSY => Some(Errno::BUSY),
        code::NO_SPACE => Some(Errno::NOSPC),
        code::IO => Some(Errno::IO),
        code::EXISTS => Some(Errno::EXIST),
        code::NOT_FOUND => Some(Errno::NOENT),
        code::NO_MEMORY => Some(Errno::NOMEM),
        code::POOL_UNAVAILABLE => Some(Errno::AGAIN),
        _ => None,
    };
    let mut made = match errno.map(Errno::raw_os_error).or_else(|| Some(error.errno).filter(|errno| *errno != 0)) {
        Some(errno) => of_errno(what, errno),
        // What it says of itself alone: a state that it does not like.
        None => Error::new(ErrorKind::FailedPrecondition, what),
    };
    if !error.text.is_empty() {
        made.causes.insert(0, error.text.clone());
    }
    made
}

/// Whether libzfs refused because what was to be looked at, and is there, is damaged.
pub(crate) fn is_damage(error: &LibError) -> bool {
    of_library("", error).kind == ErrorKind::DataLoss
}

/// An error number that came from the module, whose meaning differs from that of files here and there.
fn of_errno(what: impl Into<String>, number: i32) -> Error {
    let what = what.into();
    // Above 1024 they are OpenZFS's own.
    let Some(errno) = (1..1024).contains(&number).then(|| Errno::from_raw_os_error(number)) else {
        return Error::new(ErrorKind::Unavailable, format!("{what}: ZFS answers {number}"));
    };
    let (kind, hint) = match errno {
        Errno::NOENT => (ErrorKind::NotFound, None),
        Errno::EXIST => (ErrorKind::AlreadyExists, None),
        Errno::PERM | Errno::ACCESS => (
            ErrorKind::PermissionDenied,
            Some("as root: zfs allow USER snapshot,userprop,destroy,mount DATASET; or use the helper, ahd"),
        ),
        Errno::BUSY => (ErrorKind::Busy, None),
        Errno::NOSPC => {
            (ErrorKind::ResourceExhausted, Some("the pool is full: remove old snapshots with `ah agent fs prune`"))
        }
        Errno::DQUOT => (
            ErrorKind::ResourceExhausted,
            Some(
                "a quota or a limit is reached: zfs get quota,refquota,snapshot_limit,filesystem_limit shows which; `ah agent fs prune` removes old snapshots",
            ),
        ),
        // Where the pool delegates nothing. Source: `dsl_deleg_access_impl`.
        Errno::CANCELED => (
            ErrorKind::PermissionDenied,
            Some("the pool lets none but root do that: as root, zpool set delegation=on POOL; or use the helper, ahd"),
        ),
        // What the module says while a pool is suspended.
        Errno::AGAIN => (
            ErrorKind::Unavailable,
            Some("the pool is suspended, a device is gone: see zpool status, then zpool clear"),
        ),
        Errno::ROFS => (ErrorKind::FailedPrecondition, Some("the pool is read-only: import it for writing")),
        // EBADE stands for a checksum that is wrong there.
        Errno::IO | Errno::BADE => (ErrorKind::DataLoss, Some("see zpool status -v")),
        Errno::NAMETOOLONG => (ErrorKind::FailedPrecondition, Some("give the dataset a shorter name: zfs rename")),
        Errno::OPNOTSUPP => (ErrorKind::Unsupported, Some("the pool is of an old version: zpool upgrade")),
        Errno::NXIO | Errno::NODEV | Errno::NOTCONN => (ErrorKind::Unavailable, Some("see zpool status")),
        Errno::NOMEM => (ErrorKind::ResourceExhausted, None),
        Errno::INVAL => (ErrorKind::FailedPrecondition, None),
        _ => (ErrorKind::Unavailable, None),
    };
    let mut error = Error::new(kind, what);
    error.errno = Some(number);
    error.causes.push(std::io::Error::from(errno).to_string());
    error.hint = hint.map(str::to_owned);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promotion_says_which_snapshot_is_in_its_way() {
        let exists = Errno::EXIST.raw_os_error();
        let of = |each| of_promotion(c"tank/clone", c"tank/work@first", &Failure { errno: exists, each });
        let error = of(vec![(b"monday".to_vec(), exists)]);
        let said = format!("{error} {:?}", error.causes);
        assert!(["tank/clone", "tank/work", "snapshot monday"].iter().all(|name| said.contains(name)), "{said}");
        assert_eq!((error.kind, error.errno), (ErrorKind::AlreadyExists, Some(exists)));
        assert!(error.hint.unwrap().ends_with("zfs rename tank/clone@monday NEW"));
        assert!(of(Vec::new()).hint.is_none());
    }

    #[test]
    fn kinds_follow_from_numbers() {
        let kind = |errno: Errno| of_errno("x", errno.raw_os_error()).kind;
        assert_eq!(kind(Errno::DQUOT), ErrorKind::ResourceExhausted);
        assert_eq!(kind(Errno::CANCELED), ErrorKind::PermissionDenied);
        assert_eq!(kind(Errno::AGAIN), ErrorKind::Unavailable);
        assert_eq!(kind(Errno::ROFS), ErrorKind::FailedPrecondition);
        assert_eq!(of_errno("x", 1030).kind, ErrorKind::Unavailable);
        let failure = Failure { errno: 5, each: vec![(b"tank@a".to_vec(), Errno::EXIST.raw_os_error())] };
        assert_eq!(of_kernel("x", &failure).kind, ErrorKind::AlreadyExists);
        let damage =
            |code, errno: Errno| is_damage(&LibError { code, errno: errno.raw_os_error(), text: String::new() });
        assert!(damage(code::IO, Errno::IO) && damage(2099, Errno::BADE) && !damage(code::NOT_FOUND, Errno::IO));
        let error = LibError { code: code::PERMISSION, errno: 0, text: "permission denied".into() };
        let error = of_library("x", &error);
        let odd = of_library("x", &LibError { code: 2099, errno: 0, text: "encryption failure".into() });
        assert_eq!((odd.kind, odd.errno), (ErrorKind::FailedPrecondition, None));
        assert!(error.kind == ErrorKind::PermissionDenied && error.hint.is_some());
    }
}
