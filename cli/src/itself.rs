//! Where this program is: what the kernel tells in `/proc`.

use std::path::{Path, PathBuf};

use ah_plugin_api::{Error, ErrorKind, Result};

/// This program's file.
///
/// # Errors
/// `FailedPrecondition` where `/proc` is not mounted; anything else that keeps the kernel from telling.
pub(crate) fn program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|error| match Path::new("/proc/self").exists() {
        true => Error::from_io("ah cannot find itself", &error),
        false => {
            let message = "/proc is not mounted: ah cannot find itself, nor the providers beside it";
            Error::new(ErrorKind::FailedPrecondition, message).with_hint("`mount -t proc proc /proc`")
        }
    })
}
