//! What is known of a damaged log before it is cut, for a person; and what is lost of the segments before contents of the log make them longer.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::engine::{Opening, room};
use crate::error::{Error, Result};
use crate::rows::key;
use crate::state::{Layers, Numbers, State};
use crate::store::base::Base;
use crate::store::log::{self, Found, Kept, Piece};
use crate::store::segments::{Segments, Written};

/// What is said of a store whose log was cut by a repair that did not end.
pub(super) const BROKEN_OFF: &str = "the damaged log was cut by a repair that did not end: `--repair` says which contents are lost by that (what the log was may be kept in the store, as log/<number>.damaged)";

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

/// The row that says that the log was cut, and that nobody has looked yet what that lost of contents. It is in the base alone, so that nothing that counts of a log takes it away.
fn cut_row() -> Vec<u8> {
    key::counter("cut")
}

/// Whether that is so.
pub(super) fn is_cut(rows: &Layers) -> Result<bool> {
    Ok(rows.get(&cut_row())?.is_some())
}

/// The log is about to be cut.
pub(super) fn note_cut(base: &Base) -> Result<()> {
    base.commit(std::iter::once((cut_row().as_slice(), Some(&b"1"[..]))))
}

/// It was looked at what is lost, and that is on the disk. Who opens the store next takes it for whole: the numbers that are next are counted for good.
pub(super) fn forget_cut(base: &Base, next: Numbers) -> Result<()> {
    let (cut, rows) = (cut_row(), next.rows());
    let counted = rows.iter().map(|(row, value)| (row.as_slice(), Some(value.as_slice())));
    base.commit(counted.chain(std::iter::once((cut.as_slice(), None))))
}

/// Who opens a store to use it does not get one whose log is damaged, or was cut by a repair that did not end. Who looks at it gets one that was cut.
pub(super) fn refuse(damage: Option<&Damage>, rows: &Layers, how: Opening) -> Result<()> {
    match (damage, how) {
        (_, Opening::Repair) => Ok(()),
        (Some(damage), _) => Err(Error::corrupt(damage.to_string())),
        (None, Opening::Use | Opening::Restored) if is_cut(rows)? => Err(Error::corrupt(BROKEN_OFF)),
        _ => Ok(()),
    }
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
    /// The disk cannot read all of it.
    is_unread: bool,
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
        let (is_unread, batches, bytes) = (found.unread, found.gone, found.rest());
        Ok(Some(Self { is_lost, is_unread, batches, bytes, snapshots }))
    }

    /// Before the log is cut: keeps what it was, as far as there is room, and writes down that it is cut. Gives what is said of that.
    pub(super) fn give_up(
        &self,
        directory: &Path,
        files: &[Piece],
        base: &Arc<Base>,
        rows: &mut Layers,
    ) -> Result<String> {
        let kept = log::set_aside(&directory.join("log"), files, || room::disk_free(directory))?;
        note_cut(base)?;
        rows.thaw(Arc::new(base.rows()?));
        Ok(self.given_up(&kept))
    }

    /// Whether nothing tells how much is gone.
    fn is_unknown(&self) -> bool {
        (self.is_lost || self.is_unread) && self.batches == 0
    }

    fn given_up(&self, kept: &Kept) -> String {
        let Self { batches, bytes, .. } = self;
        let what = match (self.is_lost, self.is_unread) {
            (true, _) => {
                "the newest log was lost, or its beginning, and what was changed since the last checkpoint with it"
            }
            (false, true) => "the disk could not read all of the log, which ends there",
            (false, false) => "the log was damaged, and ends there",
        };
        let much = match self.is_unknown() {
            true => "nobody knows how much that was".to_owned(),
            false => {
                let least = self.least();
                format!("{bytes} bytes of changes behind that are lost ({least}{batches} batches{})", self.taken())
            }
        };
        let names = match kept.names.is_empty() {
            true => String::new(),
            false => format!("; what it was is kept in the store: log/{}", kept.names.join(", log/")),
        };
        let room = if kept.had_no_room { "; the disk had no room to keep all that it was" } else { "" };
        format!("{what}: {much}{names}{room}")
    }

    /// Behind another block that cannot be read there may be more.
    fn least(&self) -> &'static str {
        if self.is_unread { "at least " } else { "" }
    }

    fn taken(&self) -> String {
        match self.snapshots {
            0 => String::new(),
            count => format!(", in which {count} snapshots were taken at least,"),
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match (self.is_lost, self.is_unread) {
            (true, _) => {
                "the newest log is not there, or not its beginning: what was changed since the last checkpoint is lost unless it is found again"
            }
            (false, true) => "the log is damaged: the disk cannot read all of it",
            (false, false) => "the log is damaged before its end",
        };
        if self.is_unknown() {
            return write!(f, "{what}, and nobody knows how much that is; `--repair` goes on without it");
        }
        let (batches, bytes, taken) = (self.batches, self.bytes, self.taken());
        let least = self.least();
        write!(
            f,
            "{what}; `--repair` ends it there, and {least}{batches} batches of changes ({bytes} bytes){taken} are lost"
        )
    }
}
