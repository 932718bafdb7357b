//! What is known of a damaged log before it is cut, for a person.

use std::fmt;

use crate::error::Result;
use crate::rows::key;
use crate::state::Layers;
use crate::store::log::Found;

/// Why a log is no whole one, and what does not count of it.
pub(super) struct Damage {
    /// The log that goes on behind the base is not there, or not even its beginning.
    is_lost: bool,
    batches: u64,
    bytes: u64,
    snapshots: usize,
}

impl Damage {
    /// `goes_on`: the log that has to be there. `rows`: what was known before the log.
    pub(super) fn of(found: &mut Found, goes_on: Option<u64>, rows: &Layers) -> Result<Option<Self>> {
        let is_lost = goes_on.is_some_and(|number| !found.has(number));
        found.damaged |= is_lost;
        if !found.damaged {
            return Ok(None);
        }
        let mut snapshots = 0;
        for &snapshot in &found.snapshots {
            snapshots += usize::from(rows.get(&key::stem(b's', snapshot))?.is_none());
        }
        Ok(Some(Self { is_lost, batches: found.gone, bytes: found.rest(), snapshots }))
    }

    /// What is said once it was cut. `kept`: the names of the files that it was kept in.
    pub(super) fn given_up(&self, kept: &[String]) -> String {
        let what = match self.is_lost {
            true => "the newest log was lost, or its beginning, and what was changed since the last checkpoint with it",
            false => "the log was damaged, and ends there",
        };
        let kept = match kept.is_empty() {
            true => String::new(),
            false => format!("; what it was is kept in the store: log/{}", kept.join(", log/")),
        };
        format!("{what}: {self:#}{kept}")
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batches, bytes, snapshots, .. } = self;
        let taken = match snapshots {
            0 => String::new(),
            count => format!(", in which {count} snapshots were taken at least,"),
        };
        if f.alternate() {
            return write!(f, "{bytes} bytes of changes behind that are lost ({batches} batches{taken})");
        }
        let what = match self.is_lost {
            true => {
                "the newest log is not there, or not its beginning: what was changed since the last checkpoint is lost unless it is found again"
            }
            false => "the log is damaged before its end",
        };
        write!(f, "{what}; `--repair` ends it there, and {batches} batches of changes ({bytes} bytes){taken} are lost")
    }
}
