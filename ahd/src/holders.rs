//! Who keeps a mount from being taken away: looked for with the user's own rights, so that nobody learns of others' processes.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::graft::Ids;
use crate::peer::as_user;

/// Looking stops after so many processes and descriptors.
const MAX_LOOKS: usize = 50_000;

/// The first process found that is in a directory, or has something in it open.
pub(crate) struct Holder(Option<(String, String)>);

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some((pid, name)) => write!(f, " by process {pid} ({name})"),
            None => Ok(()),
        }
    }
}

/// Who of the user's own processes is in `place`.
pub(crate) fn of(place: &Path, user: Ids) -> Holder {
    Holder(as_user(user.uid, user.gid, || find(place)))
}

fn find(place: &Path) -> Option<(String, String)> {
    let mut looks = 0;
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if !pid.bytes().all(|b| b.is_ascii_digit()) {
            continue;
        }
        let process = entry.path();
        let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|fd| fd.path());
        let links = [process.join("cwd"), process.join("root"), process.join("exe")].into_iter().chain(open);
        for link in links {
            looks += 1;
            if looks > MAX_LOOKS {
                return None;
            }
            let there: Option<PathBuf> = std::fs::read_link(link).ok();
            if there.is_some_and(|there| there.starts_with(place)) {
                let name = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
                return Some((pid, name.trim().to_owned()));
            }
        }
    }
    None
}
