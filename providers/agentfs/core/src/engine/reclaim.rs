//! Deleting: what only a snapshot or a branch needed goes, in small steps, and nobody waits for it.
//!
//! What is looked at is what the epochs wrote that the deleted point stood for, never the whole tree. The name is gone at once; that
//! there is something to clear up is a row, so that a crash in between leaves it to the next who opens the store.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::rows::chunk::BLOCK;
use crate::rows::key::{self, Epoch, LineId};
use crate::state::{State, View};
use crate::{lock, read_lock, write_lock};

/// Rows that are looked at while others wait.
const STEP: usize = 128;
/// Points to clear up from which on it pays to bring the base up to date before.
const MANY: usize = 8;

impl Engine {
    pub(crate) fn delete_snapshot(&self, id: u64) -> Result<()> {
        self.spend_reserve();
        {
            let mut state = write_lock(&self.state);
            let snapshot = state.snapshots.get(&id).ok_or(Error::NotFound)?;
            if self.is_held(snapshot.line, snapshot.epoch) {
                return Err(Error::Busy("a view of the snapshot is open"));
            }
            state.forget_snapshot(id)?;
        }
        self.flush().map(drop)
    }

    pub(crate) fn delete_branch(&self, line: LineId) -> Result<()> {
        self.spend_reserve();
        {
            let mut state = write_lock(&self.state);
            if self.is_held(line, Epoch::MAX) {
                return Err(Error::Busy("a view of the branch is open"));
            }
            state.drop_pen(line)?;
        }
        lock(&self.pens).remove(&line);
        self.flush().map(drop)
    }

    /// Clears up behind everything that was deleted. The space itself comes back with the next sync. Costs what the
    /// deleted epochs wrote.
    pub(crate) fn reclaim(&self) -> Result<()> {
        let _one = lock(&self.reclaiming);
        if read_lock(&self.state).dead.len() > MANY {
            // Each point looks through the rows in memory, so that few should be there. A full disk may not allow it.
            let _ = self.checkpoint();
        }
        loop {
            let Some(&(line, epoch)) = read_lock(&self.state).dead.first() else { return Ok(()) };
            self.clear(line, epoch)?;
            write_lock(&self.state).rest(line, epoch);
            self.wake();
        }
    }

    fn clear(&self, line: LineId, epoch: Epoch) -> Result<()> {
        let (chain, epochs, in_memory, base) = {
            let state = read_lock(&self.state);
            let epochs = state.epochs_of(line, epoch);
            let base = state.layers.base.clone();
            (state.chain(line)?, epochs, state.layers.written(line, epochs)?, base)
        };
        let step = |rows: &mut dyn Iterator<Item = (&[u8], Epoch)>| -> Result<()> {
            self.flush_if_many()?;
            let mut state = write_lock(&self.state);
            for (stem, epoch) in rows {
                let next = state.next_version(stem, line, epoch)?.map(|(next, _)| next);
                if state.lines.get(&line).is_some_and(|line| !line.needs(epoch, next)) {
                    state.erase(stem, epoch, View { line, until: epoch, chain: &chain })?;
                }
            }
            Ok(())
        };
        for rows in in_memory.chunks(STEP) {
            step(&mut rows.iter().map(|(stem, epoch)| (stem.as_slice(), *epoch)))?;
        }
        let mut after: Option<Vec<u8>> = None;
        loop {
            let rows = base.written(line, epochs, after.as_deref(), STEP)?;
            let Some((last, _, _)) = rows.last() else { return Ok(()) };
            after = Some(last.clone());
            step(&mut rows.iter().map(|(_, stem, epoch)| (stem.as_slice(), *epoch)))?;
        }
    }

    fn flush_if_many(&self) -> Result<()> {
        if read_lock(&self.state).layers.unlogged() > super::WAITING { self.flush().map(drop) } else { Ok(()) }
    }

    /// Bytes of contents that only this snapshot holds: what deleting it would give back. Costs what its epochs wrote.
    pub(crate) fn usage(&self, id: u64) -> Result<u64> {
        let state = read_lock(&self.state);
        let snapshot = state.snapshots.get(&id).ok_or(Error::NotFound)?;
        let (line, epoch) = (snapshot.line, snapshot.epoch);
        let of = state.lines.get(&line).ok_or_else(|| Error::corrupt("a snapshot's line is missing"))?;
        if of.points.get(&epoch).is_none_or(|&count| count > 1) {
            return Ok(0);
        }
        let epochs = state.epochs_of(line, epoch);
        let mut without = of.clone();
        without.points.remove(&epoch);
        let chain = state.chain(line)?;
        let mut blocks = 0;
        let mut add = |stem: &[u8], at: Epoch, state: &State| -> Result<()> {
            let next = state.next_version(stem, line, at)?.map(|(next, _)| next);
            if stem.first() == Some(&b'c')
                && !without.needs(at, next)
                && let Some(row) = state.layers.get(&key::versioned(stem, line, at))?
            {
                blocks += state.only_here(stem, &row, View { line, until: at, chain: &chain })?.len() as u64;
            }
            Ok(())
        };
        let in_memory = state.layers.written(line, epochs)?;
        for (stem, at) in &in_memory {
            add(stem, *at, &state)?;
        }
        let mut after: Option<Vec<u8>> = None;
        loop {
            let rows = state.layers.base.written(line, epochs, after.as_deref(), STEP)?;
            let Some((last, _, _)) = rows.last() else { return Ok(blocks * BLOCK) };
            after = Some(last.clone());
            for (_, stem, at) in &rows {
                let counted = in_memory.iter().any(|(other, epoch)| other == stem && epoch == at);
                if !counted {
                    add(stem, *at, &state)?;
                }
            }
        }
    }
}

impl Engine {
    /// Removes what was without a name but open when the store was last used.
    pub(crate) fn drop_orphans(&self) -> Result<()> {
        let mut state = write_lock(&self.state);
        for (row, _) in state.layers.prefix(b"o")? {
            let (line, ino) = (key::be32(&row[1..]), key::be64(&row[5..]));
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
