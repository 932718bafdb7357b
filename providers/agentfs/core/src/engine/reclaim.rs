//! Deleting: what only a snapshot or a branch needed goes, in small steps, and nobody waits for it.
//!
//! What is looked at is what was written between the deleted point and the one before it, or the next one, never the whole tree. The name is gone at once; that
//! there is something to clear up is a row, so that a crash in between leaves it to the next who opens the store.

use std::collections::BTreeSet;

use crate::engine::{Engine, Held};
use crate::error::{Error, Result};
use crate::rows::chunk::BLOCK;
use crate::rows::key::{self, Epoch, LineId};
use crate::state::{Chain, Line, State, View};
use crate::types::Ino;
use crate::{lock, read_lock, write_lock};

/// Rows that are looked at while others wait.
const STEP: usize = 128;
/// Points to clear up from which on it pays to bring the base up to date before.
const MANY: usize = 8;

impl Engine {
    pub(crate) fn delete_snapshot(&self, id: u64) -> Result<()> {
        {
            let mut state = write_lock(&self.state);
            let snapshot = state.snapshots.get(&id).ok_or(Error::NotFound)?;
            if self.is_held(snapshot.line, Held::At(snapshot.epoch)) {
                return Err(Error::Busy("a view of the snapshot is open"));
            }
            state.forget_snapshot(id)?;
        }
        self.write_rows(true).map(drop)
    }

    pub(crate) fn delete_branch(&self, line: LineId) -> Result<()> {
        {
            let mut state = write_lock(&self.state);
            if self.is_held(line, Held::Pen) || self.is_held(line, Held::Look) {
                return Err(Error::Busy("a view of the branch is open"));
            }
            state.drop_pen(line)?;
        }
        lock(&self.pens).remove(&line);
        self.write_rows(true).map(drop)
    }

    /// Clears up behind everything that was deleted. The space itself comes back with the next sync. Costs what the
    /// deleted epochs wrote. What cannot be cleared up now keeps nothing else from that.
    pub(crate) fn reclaim(&self) -> Result<()> {
        let _one = lock(&self.reclaiming);
        if read_lock(&self.state).dead.len() > MANY {
            // Each point looks through the rows in memory, so that few should be there. A full disk may not allow it.
            let _ = self.checkpoint();
        }
        let (mut stuck, mut result) = (BTreeSet::new(), Ok(()));
        loop {
            let Some((line, points)) = read_lock(&self.state).dead_together(&stuck) else { return result };
            let cleared = self.clear(line, &points).and_then(|()| {
                let mut state = write_lock(&self.state);
                points.into_iter().try_for_each(|epoch| state.rest(line, epoch))
            });
            if let Err(error) = cleared {
                stuck.insert(line);
                result = result.and(Err(error));
                continue;
            }
            self.wake();
            // Who copies removes pins, too, so that whoever is here does not wait for that.
            Self::ring(&self.to_copy);
        }
    }

    /// As `reclaim`, and on return the space is back.
    pub(crate) fn reclaim_space(&self) -> Result<()> {
        let (cleared, swept) = (self.reclaim(), self.sweep_pins(false));
        self.sync()?;
        // What another thread's sync was about to give back.
        drop(lock(&self.giving));
        cleared.and(swept)
    }

    fn clear(&self, line: LineId, points: &[Epoch]) -> Result<()> {
        if read_lock(&self.state).lines.get(&line).is_some_and(|line| line.parent.is_none()) {
            // A base has one point, and no other rows.
            self.forget_below(line)?;
        }
        let chain = read_lock(&self.state).chain(line)?;
        self.scan(line, points, &mut |side, rows| {
            self.flush_if_many()?;
            let mut state = write_lock(&self.state);
            state.whole(|state| {
                for (stem, written) in rows {
                    let Some(epoch) = side.version(state, stem, line, *written)? else { continue };
                    let next = state.next_version(stem, line, epoch)?.map(|(next, _)| next);
                    if state.lines.get(&line).is_some_and(|line| !line.needs(epoch, next)) {
                        state.erase(stem, epoch, View { line, until: epoch, chain: &chain })?;
                    }
                }
                Ok(())
            })
        })?;
        Ok(())
    }

    /// Shows rows among which everything is that is seen from these points alone, between which no other is, and says on which side of
    /// them that was so.
    ///
    /// What only they see was written since the point before them, and was replaced before the next one. Both sides are looked at in turn
    /// until one is through: deleting one snapshot after the other, in whatever order, must not look at the same rows again and again.
    fn scan(&self, line: LineId, points: &[Epoch], visit: &mut Visit<'_>) -> Result<Side> {
        let (older, newer, in_memory, base) = {
            let state = read_lock(&self.state);
            let first = points.iter().copied().min().unwrap_or_default();
            let last = points.iter().copied().max().unwrap_or_default();
            let older = (state.epochs_of(line, first).0, last);
            let newer = if last == Epoch::MAX {
                None
            } else {
                state.epochs_behind(line, last).map(|(_, until)| (first + 1, until))
            };
            let written = |epochs: Option<(Epoch, Epoch)>| match epochs {
                Some(epochs) => state.layers.written(line, epochs),
                None => Ok(Vec::new()),
            };
            (older, newer, [written(Some(older))?, written(newer)?], state.layers.base.clone())
        };
        for (side, rows) in [Side::Older, Side::Newer].into_iter().zip(&in_memory) {
            rows.chunks(STEP).try_for_each(|rows| visit(side, rows))?;
        }
        let [seen_older, seen_newer] = in_memory.map(|rows| rows.into_iter().collect::<BTreeSet<_>>());
        let mut sides = vec![(Side::Older, older, seen_older, None::<Vec<u8>>)];
        sides.extend(newer.map(|newer| (Side::Newer, newer, seen_newer, None)));
        loop {
            for (side, epochs, seen, after) in &mut sides {
                let rows = base.written(line, *epochs, after.as_deref(), STEP)?;
                let Some((last, _, _)) = rows.last() else { return Ok(*side) };
                *after = Some(last.clone());
                let fresh = rows.into_iter().map(|(_, stem, epoch)| (stem, epoch));
                let fresh: Vec<_> = fresh.filter(|row| !seen.contains(row)).collect();
                visit(*side, &fresh)?;
            }
        }
    }

    fn flush_if_many(&self) -> Result<()> {
        if read_lock(&self.state).layers.unlogged() > super::WAITING { self.write_rows(true).map(drop) } else { Ok(()) }
    }

    /// Bytes of contents that only these snapshots hold: what deleting them would give back. Those that are not there hold nothing. Costs what their
    /// epochs wrote, or the next ones, whichever is less.
    pub(crate) fn usage(&self, ids: &BTreeSet<u64>) -> Result<u64> {
        let runs = read_lock(&self.state).held_together(ids);
        let mut bytes = 0;
        for (line, points) in runs {
            bytes += self.held_by(line, &points)? * BLOCK;
        }
        Ok(bytes)
    }

    /// Blocks that go with points of a line between which no other is.
    fn held_by(&self, line: LineId, points: &[Epoch]) -> Result<u64> {
        let (mut without, chain, after) = {
            let state = read_lock(&self.state);
            // It may have gone since.
            let Some(of) = state.lines.get(&line) else { return Ok(0) };
            let last = points.last().copied().unwrap_or_default();
            (of.clone(), state.chain(line)?, state.epochs_behind(line, last).map(|(_, after)| after))
        };
        // What only deleted points see, that are not cleared up yet, comes back anyway.
        let mut own = Line { pen: false, ..without.clone() };
        own.points.retain(|epoch, _| points.contains(epoch));
        without.points.retain(|epoch, _| !points.contains(epoch));
        let mut blocks = [0, 0];
        let side = self.scan(line, points, &mut |side, rows| {
            let state = read_lock(&self.state);
            for (stem, written) in rows.iter().filter(|(stem, _)| stem.first() == Some(&b'c')) {
                let Some(at) = side.version(&state, stem, line, *written)? else { continue };
                let next = state.next_version(stem, line, at)?.map(|(next, _)| next);
                if own.needs(at, next)
                    && !without.needs(at, next)
                    && let Some(row) = state.layers.get(&key::versioned(stem, line, at))?
                {
                    let after = after.map(|until| View { line, until, chain: &chain });
                    let only = state.last_seen_here(stem, &row, View { line, until: at, chain: &chain }, after)?;
                    blocks[side as usize] += only;
                }
            }
            Ok(())
        })?;
        Ok(blocks[side as usize])
    }
}

/// Is shown rows: their stems and the epochs that wrote them.
type Visit<'a> = dyn FnMut(Side, &[(Vec<u8>, Epoch)]) -> Result<()> + 'a;

/// Where rows were written that are looked at.
#[derive(Clone, Copy)]
enum Side {
    /// Since the point before.
    Older,
    /// After the point, until the next.
    Newer,
}

impl Side {
    /// The version that may be needed no more: the one that was written, or the one that it replaced.
    fn version(self, state: &State, stem: &[u8], line: LineId, written: Epoch) -> Result<Option<Epoch>> {
        match self {
            Self::Older => Ok(Some(written)),
            Self::Newer => state.version_before(stem, line, written),
        }
    }
}

impl Engine {
    /// Removes an inode without a name that nobody has open any more. Where that cannot be done now, as on a full disk, it is with a later sync.
    pub(crate) fn drop_orphan(&self, line: LineId, chain: &Chain, ino: Ino) {
        match self.change_removing(line, chain, |state, view| state.purge(ino, view)) {
            // It goes with its branch.
            Ok(()) | Err(Error::NotFound) => {}
            Err(_) => drop(lock(&self.orphans).insert((line, ino))),
        }
    }

    /// Removes those that could not be removed before. What fails is kept for another time, and fails nobody.
    pub(super) fn drop_kept_orphans(&self) {
        if lock(&self.orphans).is_empty() || self.room_for_removal().is_err() {
            return;
        }
        let kept = std::mem::take(&mut *lock(&self.orphans));
        for (line, ino) in kept {
            let chain = read_lock(&self.state).chain(line);
            if let Ok(chain) = chain {
                self.drop_orphan(line, &chain, ino);
            }
        }
    }

    /// Removes what was without a name but open when the store was last used.
    pub(crate) fn drop_orphans(&self) -> Result<()> {
        let mut state = write_lock(&self.state);
        for (row, _) in state.layers.prefix(b"o")? {
            let (line, ino) = key::line_and_number(&row)?;
            match state.lines.get(&line) {
                Some(of) if of.pen => {
                    let (until, chain) = (of.epoch, state.chain(line)?);
                    state.purge(ino, View { line, until, chain: &chain })?;
                }
                _ => state.layers.remove(&row),
            }
        }
        Ok(())
    }
}
