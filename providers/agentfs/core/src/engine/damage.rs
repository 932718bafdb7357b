//! What is known of a damaged log before it is cut, for a person; and what is lost of the segments before contents of the log make them longer.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;
use crate::rows::key;
use crate::state::{Layers, State};
use crate::store::base::Base;
use crate::store::log::Found;
use crate::store::segments::{Segments, Written};

/// Before contents of the log are written again, which makes segments longer: what those did not reach is lost, and that is on the disk first. `base`: none where nothing is changed.
pub(super) fn before_writing_again(
    state: &mut State,
    segments: &Segments,
    contents: &[Written],
    base: Option<&Arc<Base>>,
) -> Result<()> {
    state.lose_none_from(segments.next());
    let rows = state.lose(segments.left_out(contents));
    if let Some(base) = base
        && !rows.is_empty()
    {
        at_once(base, &mut state.layers, &rows)?;
    }
    state.lost.iter().for_each(|&(first, count)| segments.lose(first, count));
    Ok(())
}

/// Takes rows to the base before anything else is.
fn at_once(base: &Arc<Base>, layers: &mut Layers, rows: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
    base.commit(rows.iter().map(|(row, value)| (row.as_slice(), Some(value.as_slice()))))?;
    layers.thaw(Arc::new(base.rows()?));
    rows.iter().for_each(|(row, value)| layers.put(row, value.clone()));
    Ok(())
}

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
