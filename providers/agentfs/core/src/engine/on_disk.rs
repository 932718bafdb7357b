//! Whether the disk has what was below when a base was taken. A file that was just written has its new attributes on the disk before its contents (ext4: up to half a minute), and what is written through
//! a shared mapping moves no time before the system writes it back. So equal attributes tell of equal contents, also after a power cut, only once the lower filesystem was synced.
//!
//! It is synced behind each base, before anything is hashed, once for all bases that wait then; or by the first who wants a snapshot of such a base to be durable. The row `j` of a base, with a zero, says that it was.
//! What the disk did not take the system tells once. So that is written down, too, until a durable snapshot was refused for it. What is hashed waits for nobody: who opens the store next asks for what is there then.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::remembered::row_of;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lower::Lower;
use crate::rows::key::{self, LineId};
use crate::state::State;
use crate::{lock, platform, read_lock, write_lock};

/// What is known of what is below and the disk.
#[derive(Default)]
pub(super) struct OnDisk {
    /// Bases of which it is not known that the disk has what was below.
    waiting: Mutex<BTreeMap<LineId, Waiting>>,
    /// The disk did not take something since the store was opened, or before that, of which nobody was told.
    lost: AtomicBool,
    /// Those that waited when the store was opened, and those whose fingerprints are older than that: a power cut may have left less than they name.
    doubted: BTreeSet<LineId>,
    /// How many witnesses were called.
    called: Mutex<u64>,
    /// Held while it is taken there.
    syncing: Mutex<()>,
    /// How often it was.
    times: AtomicU64,
}

/// What a base of which that is not known is asked by.
enum Waiting {
    /// From before it was taken; `None`: it was there when the store was opened.
    For(Option<Arc<Witness>>),
    /// Nobody: the disk did not take something since then, which the system tells once, and forgets.
    InVain,
    /// Who had the store open before was told that, and told nobody. What is there now can be taken to the disk, and hashed then, once it `is_there`; no snapshot is durable with it.
    Untold { is_there: bool },
}

/// By which the disk is asked what it lost since it was called, and the how manyth it is.
pub(super) type Witness = (u64, OwnedFd);

/// The row that says that the disk has what was below when a base was taken.
fn row(base: LineId) -> Vec<u8> {
    // No file has that inode.
    key::of_line(b'j', base, Some(0))
}

/// The row that says that the disk did not take something since then, of which nobody was told.
fn untold(base: LineId) -> Vec<u8> {
    // Nor that one.
    key::of_line(b'j', base, Some(u64::MAX))
}

/// What is in the first: zeros if fingerprints are older, else in which boot that was.
fn mark(boot: &str) -> [u8; 8] {
    let mut mark = [0; 8];
    mark.copy_from_slice(&blake3::hash(boot.as_bytes()).as_bytes()[..8]);
    mark
}

impl OnDisk {
    pub(super) fn of(state: &State) -> Result<Self> {
        let (mut waiting, mut doubted, mut lost) = (BTreeMap::new(), BTreeSet::new(), false);
        for (&line, _) in state.lines.iter().filter(|(_, line)| line.parent.is_none() && !line.points.is_empty()) {
            let row = state.layers.get(&row(line))?;
            if row.is_none() {
                let is_untold = state.layers.get(&untold(line))?.is_some();
                lost |= is_untold;
                waiting.insert(line, if is_untold { Waiting::Untold { is_there: false } } else { Waiting::For(None) });
            }
            if row.is_none_or(|row| *row == [0; 8]) {
                doubted.insert(line);
            }
        }
        Ok(Self { waiting: Mutex::new(waiting), lost: AtomicBool::new(lost), doubted, ..Self::default() })
    }

    /// One for a base that is about to be taken. They are called one after the other, so that their numbers say which is the older one.
    pub(super) fn witness(&self, lower: &Lower) -> Option<Witness> {
        let mut called = lock(&self.called);
        *called += 1;
        Some((*called, lower.witness()?))
    }

    /// With the witness that was called before the base was taken.
    pub(super) fn wait_for(&self, base: LineId, witness: Option<Witness>) {
        lock(&self.waiting).insert(base, Waiting::For(witness.map(Arc::new)));
    }

    /// Nobody sees the base any more.
    pub(super) fn forget(&self, base: LineId) {
        lock(&self.waiting).remove(&base);
    }

    /// Whether the disk can be asked for a base.
    fn is_to_be_asked(&self, base: LineId) -> bool {
        matches!(lock(&self.waiting).get(&base), Some(Waiting::For(_) | Waiting::Untold { is_there: false }))
    }

    /// Whether it did not take something since the base was taken, or since the store was opened.
    fn is_lost(&self, base: LineId) -> bool {
        matches!(lock(&self.waiting).get(&base), Some(Waiting::InVain))
    }

    /// How often what is below was taken to the disk: what was hashed before that may not be what is there.
    pub(super) fn times(&self) -> u64 {
        self.times.load(Ordering::SeqCst)
    }
}

impl Engine {
    /// As [`Engine::have_below_on_disk`], for who passes on what the disk lost: it counts as told, and whoever opens the store then asks the disk as if nothing had been.
    pub(crate) fn take_below_to_disk(&self, line: LineId) -> Result<()> {
        let taken = self.have_below_on_disk(line);
        if matches!(taken, Err(Error::LostBelow)) {
            let untold = untold(read_lock(&self.state).chain(line)?.base);
            let is_untold = read_lock(&self.state).layers.get(&untold)?.is_some();
            if is_untold && self.room_for_rows().is_ok() {
                write_lock(&self.state).layers.remove(&untold);
                self.wake();
            }
        }
        taken
    }

    /// Takes what was below when the base of a line was taken to the disk, if it is not known to be there: all that waits to be written on that filesystem, whoever's it is, and so for all bases
    /// that wait. [`Error::LostBelow`] if the disk did not take something since that base was taken, until somebody was told and the store is opened anew.
    pub(crate) fn have_below_on_disk(&self, line: LineId) -> Result<()> {
        if self.below_is_on_disk(line) {
            return Ok(());
        }
        let base = read_lock(&self.state).chain(line)?.base;
        self.ask_for(base)?;
        if self.below_is_on_disk(line) { Ok(()) } else { Err(Error::LostBelow) }
    }

    /// As [`Engine::have_below_on_disk`], for who hashes what is there now: what was lost before the store was opened is none of that, whoever was told.
    pub(super) fn have_below_on_disk_as_it_is(&self, line: LineId) -> Result<()> {
        if self.below_is_on_disk(line) {
            return Ok(());
        }
        let base = read_lock(&self.state).chain(line)?.base;
        self.ask_for(base)?;
        if self.on_disk.is_lost(base) { Err(Error::LostBelow) } else { Ok(()) }
    }

    fn ask_for(&self, base: LineId) -> Result<()> {
        let _one = lock(&self.on_disk.syncing);
        // Another who was waited for may have done so.
        if self.on_disk.is_to_be_asked(base) { self.take_all_below_to_disk() } else { Ok(()) }
    }

    fn take_all_below_to_disk(&self) -> Result<()> {
        let witness_of = |(&base, waiting): (&LineId, &Waiting)| match waiting {
            Waiting::For(witness) => Some((base, witness.clone())),
            Waiting::Untold { is_there: false } => Some((base, None)),
            Waiting::InVain | Waiting::Untold { is_there: true } => None,
        };
        let mut waiting: Vec<_> = lock(&self.on_disk.waiting).iter().filter_map(witness_of).collect();
        waiting.sort_by_key(|(_, witness)| witness.as_ref().map(|witness| witness.0));
        let now = platform::now();
        // The first writes what there is. One that was told of no loss has heard all that the younger ones could: they are asked only behind one that was.
        let (mut since_opening, mut since_then) = (None, false);
        let mut is_there = |witness: &Option<Arc<Witness>>| match witness {
            Some(witness) => {
                since_then = since_then || self.lower.sync(Some(&witness.1)).is_ok();
                since_then
            }
            None => *since_opening.get_or_insert_with(|| self.lower.sync(None).is_ok()),
        };
        let (mut there, lost): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|(_, witness)| is_there(witness));
        for (base, _) in &lost {
            self.on_disk.lost.store(true, Ordering::SeqCst);
            lock(&self.on_disk.waiting).entry(*base).and_modify(|waiting| *waiting = Waiting::InVain);
        }
        // Of these, not what was there when they were taken.
        there.retain(|(base, _)| match lock(&self.on_disk.waiting).get_mut(base) {
            Some(Waiting::Untold { is_there }) => {
                *is_there = true;
                false
            }
            _ => true,
        });
        let pins = self.pins.lie_on(&self.lower) && !self.on_disk.lost.load(Ordering::SeqCst);
        self.on_disk.times.fetch_add(1, Ordering::SeqCst);
        // What cannot be written down is true all the same, as long as the store is open.
        if self.room_for_rows().is_ok() {
            let mut state = write_lock(&self.state);
            for &(base, _) in &there {
                if self.base_seen(&state, base).is_none() {
                    continue;
                }
                let fingerprints = row_of(b'h', base, b"");
                let first = matches!(state.layers.next(&fingerprints, &fingerprints), Ok(None));
                let mark = if first { mark(&self.boot) } else { [0; 8] };
                state.layers.put(&row(base), mark.to_vec());
            }
            for &(base, _) in &lost {
                if self.base_seen(&state, base).is_some() {
                    state.layers.put(&untold(base), vec![1]);
                }
            }
            drop(state);
            if pins && self.pins_are_believed()? {
                self.pins_are_on_disk(now);
            }
            self.wake();
        }
        let mut waiting = lock(&self.on_disk.waiting);
        for (base, _) in there {
            waiting.remove(&base);
        }
        Ok(())
    }

    /// In which boot something is written down.
    pub(super) fn boot_mark(&self) -> [u8; 8] {
        mark(&self.boot)
    }

    /// Whether the disk has what was below when the base of a line was taken, as far as that is known.
    pub(crate) fn below_is_on_disk(&self, line: LineId) -> bool {
        let base = read_lock(&self.state).chain(line).map(|chain| chain.base);
        self.options.without_lower || base.is_ok_and(|base| !lock(&self.on_disk.waiting).contains_key(&base))
    }

    /// Whether what is below can be older than a base's fingerprints say, though its times are from before.
    pub(crate) fn is_doubted(&self, base: LineId) -> bool {
        self.on_disk.doubted.contains(&base)
    }

    /// Whether a file that has the attributes which a fingerprint of that base names holds what that says: it was hashed when the disk had it, and there was no power cut since.
    pub(super) fn is_told_by_attributes(&self, base: LineId) -> Result<bool> {
        // Where boots have no name, no two times are known to be of one.
        let same = |mark: &[u8]| !self.boot.is_empty() && *mark == self.boot_mark();
        Ok(read_lock(&self.state).layers.get(&row(base))?.is_some_and(|row| same(&row)))
    }
}
