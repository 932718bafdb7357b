//! What those share who write to a branch, and the snapshots that are taken meanwhile.

use std::sync::{Arc, Mutex, RwLock};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::rows::key::{Epoch, LineId};
use crate::{lock, read_lock, write_lock};

/// A span in which a pen writes in place. A snapshot waits for who is in it, and nobody waits for the snapshot.
pub(crate) struct Gate {
    pub(crate) epoch: Epoch,
    pub(crate) inside: RwLock<()>,
}

/// What those share who write through one pen.
pub(crate) struct Pen {
    /// Held while names or attributes change.
    pub(crate) ops: Mutex<()>,
    /// Held, by inode, while contents change.
    pub(crate) stripes: [Mutex<()>; 64],
    /// Held by who takes a snapshot, until nobody is in the gate any more that it closed: the next one is to hold what those write, too.
    snapshots: Mutex<()>,
    pub(crate) gate: Mutex<Arc<Gate>>,
}

impl Engine {
    /// The pen of a line, shared by all who write there.
    pub(crate) fn pen(&self, line: LineId) -> Result<Arc<Pen>> {
        let mut pens = lock(&self.pens);
        if let Some(pen) = pens.get(&line) {
            return Ok(pen.clone());
        }
        let epoch = read_lock(&self.state).lines.get(&line).filter(|line| line.pen).ok_or(Error::NotFound)?.epoch;
        let pen = Arc::new(Pen {
            ops: Mutex::default(),
            stripes: std::array::from_fn(|_| Mutex::default()),
            snapshots: Mutex::default(),
            gate: Mutex::new(Arc::new(Gate { epoch, inside: RwLock::default() })),
        });
        pens.insert(line, pen.clone());
        Ok(pen)
    }

    /// A snapshot of a line: a new name for its state, whatever its size. In it is every change that had returned before this
    /// call, and none that begins after it has returned; each change that runs meanwhile is in it wholly or not at all.
    pub(crate) fn snapshot(&self, line: LineId, label: &[u8]) -> Result<u64> {
        self.room_for_rows()?;
        self.room_for_numbers()?;
        let pen = self.pen(line)?;
        let one = lock(&pen.snapshots);
        let (snapshot, before) = {
            let mut gate = lock(&pen.gate);
            let mut state = write_lock(&self.state);
            if !state.lines.get(&line).is_some_and(|line| line.pen) {
                return Err(Error::NotFound);
            }
            let snapshot = state.name_state(line, label)?;
            let epoch = state.lines.get(&line).map_or(0, |line| line.epoch);
            (snapshot, std::mem::replace(&mut *gate, Arc::new(Gate { epoch, inside: RwLock::default() })))
        };
        // Who began to write before is let finish, into the snapshot; who comes now writes elsewhere.
        drop(write_lock(&before.inside));
        drop(one);
        if let Err(error) = self.flush() {
            let _ = write_lock(&self.state).forget_snapshot(snapshot);
            return Err(error);
        }
        Ok(snapshot)
    }
}
