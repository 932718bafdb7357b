//! Who keeps a mount from being taken away: looked for with the user's own rights, so that nobody learns of others' processes.

use std::fmt;
use std::path::Path;

use ah_provider_directory::Process;

use crate::graft::Ids;
use crate::peer::as_user;

/// Looking stops after so many processes and descriptors.
const MAX_LOOKS: usize = 50_000;

/// The first process found that is in a directory, or has something in it open.
pub(crate) struct Holder(Option<Process>);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(process) => write!(f, " by process {process}"),
            None => Ok(()),
        }
    }
}

/// Who of the user's own processes is in `place`.
pub(crate) fn of(place: &Path, user: Ids) -> Holder {
    Holder(as_user(user.uid, user.gid, || find(place)))
}

fn find(place: &Path) -> Option<Process> {
    let mut looks = 0;
    for process in Process::all() {
        let used = process.uses(|used| {
            looks += 1;
            looks > MAX_LOOKS || used.is_below(place)
        });
        if looks > MAX_LOOKS {
            return None;
        }
        if used.is_some() {
            return Some(process);
        }
    }
    None
}
