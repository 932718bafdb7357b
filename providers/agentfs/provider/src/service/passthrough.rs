//! Whether large files are passed through in what a home's service mounts: a file in the home says that they are, if there is one.

use std::path::Path;
use std::process::ExitCode;

use ah_agentfs_fuse::Passthrough;
use ah_plugin_api::{Error, ErrorKind, Result, text};
use ah_provider_directory::failed;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::listen;
use crate::home;

const NAME: &str = "passthrough";

/// Whether they are to be, in what is mounted from now on.
pub(super) fn is_wanted(home: &Path) -> bool {
    std::fs::symlink_metadata(home.join(NAME)).is_ok_and(|there| there.is_file())
}

/// Has large files of a home passed through, or not any more. Counts for all that is mounted once its service has begun anew.
///
/// # Errors
/// `PermissionDenied` if this user may not have that, or it is none of their homes.
pub fn passthrough(path: &Path, on: bool) -> Result<ExitCode> {
    if on && !Passthrough::is_permitted() {
        let why = Passthrough::NotPermitted.why_not().unwrap_or_default();
        return Err(Error::new(ErrorKind::PermissionDenied, why));
    }
    let home = home::own(path)?;
    if on && !is_wanted(path) {
        home::write(&home, NAME, b"on\n", true)?;
    } else if !on {
        match rustix::fs::unlinkat(&home, NAME, AtFlags::empty()).and_then(|()| rustix::fs::fsync(&home)) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(format!("cannot remove {}/{NAME}", path.display()), errno)),
        }
    }
    let how = if on { "large files are passed through" } else { "nothing is passed through" };
    match listen::alone(&home)? {
        Some(_) => println!("{how} in what is mounted from now on"),
        None => println!(
            "{how} once the service of this home has begun anew: end it (`pgrep -f {}` finds it), which unmounts its branches; the next command mounts them again",
            text::shell(format!("ah-agentfsd --serve {}", path.display()).as_ref())
        ),
    }
    Ok(ExitCode::SUCCESS)
}
