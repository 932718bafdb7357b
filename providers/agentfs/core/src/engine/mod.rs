//! The engine: the state, the log, the base and the segments of one open store, and the order in which they are written.
//!
//! - here: opening and changing.
//! - `pen`: who writes to a branch, and what a snapshot of it is.
//! - `durable`: log, marks, checkpoints, giving space back, and the threads that do this unasked.
//! - `numbers`: none is given out twice.
//! - `room`: who may still change something when the disk is full.
//! - `complete`: what branches took over of files below is copied behind them.
//! - `remembered`: the names in the directories below, as they were when a base was taken.
//! - `fingerprints`: what the files below held then, as hashes; `objects`: the stores of objects that repositories have, which are kept whole.
//! - `on_disk`: whether the disk has what was below when a base was taken.
//! - `pins`: files of their own that hold it, for snapshots; `pinning`: when those are made, and when they go; `unkept`: what there is none of.
//! - `reclaim`: what deleted snapshots and branches leave.
//! - `fsck`: everything compared with everything.
//!
//! Locks, in the order in which they are taken: a pen's `snapshots`, a pen's stripe, a pen's `ops`, `copying`, `believing`, `sweeping`, `reclaiming`, `checkpointing`, that of `on_disk`, `syncing`, `giving`, the log, a pen's gate, the state;
//! a pin's making, or what is decided about pins, is taken last, and so is the base.

mod complete;
mod damage;
mod durable;
mod fingerprints;
mod fsck;
mod numbers;
mod objects;
mod on_disk;
mod pen;
mod pinning;
mod pins;
mod reclaim;
mod remembered;
mod restored;
mod room;
#[cfg(test)]
mod tests;
mod unkept;
mod whose;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Instant;

use damage::Damage;
pub(crate) use fingerprints::{Fingerprint, Fingerprints, hash_of_target};
pub use fsck::Report;
pub(crate) use fsck::check;
pub(crate) use pen::Pen;
pub(crate) use remembered::Remembered;
pub use restored::Restored;
pub(crate) use restored::take_restored;
use room::spend_reserve;

use crate::error::{Error, Result};
use crate::lower::Lower;
use crate::platform;
use crate::rows::key::{self, Epoch, LineId};
use crate::state::{Chain, InBase, Layers, State, View};
use crate::store::base::Base;
use crate::store::log::{self, Log};
use crate::store::segments::Segments;
use crate::types::{Ino, Time};
use crate::{lock, read_lock, write_lock};

/// The format that is written, and the newest that is read. Stores of an older one are of this one once they are open: 1 had no contents in the log.
const FORMAT: u32 = 2;
/// Rows that wait for the log, in bytes, before who changes more has to write them himself.
const WAITING: usize = 512 << 10;
/// So many changes below are remembered of each branch.
const MOST_CHANGED: usize = 10_000;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// The most that contents of files may take in the store, in bytes; `None`: what the disk has.
    pub limit: Option<u64>,
    /// Whether threads of its own write the log every few milliseconds and sync every second. Without them nothing is on
    /// disk but by `sync`, `fsync` and snapshots: for tests.
    pub background: bool,
    /// How large the log may grow, in bytes, before its rows move to the base. It bounds how long opening after a crash takes.
    pub log_limit: u64,
    /// Open it although the lower directory is not there any more, or is another: as if everything had been removed from it.
    pub without_lower: bool,
    /// Whether what is below is pinned behind a base: shared where the disk can, else copied.
    pub pins: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { limit: None, background: true, log_limit: 4 << 20, without_lower: false, pins: true }
    }
}

/// What a store is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    Use,
    /// To look at it: nothing of it is changed, but what the database writes of itself in its file when it is opened and closed.
    Check,
    /// A log that is damaged in the middle ends there, instead of being refused.
    Repair,
    /// By another lower directory than it was made for.
    Restored,
}

/// Paths below that somebody changed, and the snapshot with which that was told.
type ChangedPaths = BTreeMap<Vec<u8>, Option<u64>>;

/// Whether there is something to do, and who waits for that.
pub(crate) type Bell = (Mutex<bool>, Condvar);

/// What a view shows of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Held {
    /// A snapshot.
    At(Epoch),
    /// What its pen writes.
    Pen,
    /// The same, without writing.
    Look,
}

/// How far the disk has it.
#[derive(Default)]
struct Synced {
    /// The last batch that a mark covers.
    batch: u64,
    /// Whether the contents of that are in their places, and not only in the log.
    contents: bool,
    /// The log file whose name is on the disk.
    log: u64,
}

/// See the module.
pub(crate) struct Engine {
    pub(crate) state: RwLock<State>,
    pub(crate) segments: Segments,
    pub(crate) lower: Lower,
    pub(crate) options: Options,
    pub(crate) directory: PathBuf,
    log: Mutex<Log>,
    /// The log's, for those who only want to know that.
    log_length: AtomicU64,
    /// Whether the log could not take the rows that it was last given.
    log_is_full: AtomicBool,
    /// What is free on the disk may be what the reserve left for removals.
    reserve_is_spent: AtomicBool,
    /// Older files of the log that no sync has taken to the disk yet. Changed only by who holds `log`, but for the end of a checkpoint,
    /// which has no need of them.
    previous_logs: Mutex<Vec<File>>,
    /// What the disk has is not known any more: it did not take something that it had been given, or who gives it has panicked.
    failed: AtomicBool,
    #[cfg(test)]
    panics: AtomicBool,
    base: Arc<Base>,
    /// When that was, and what the disk had left before.
    base_had_no_room: Mutex<Option<(Instant, u64)>>,
    checkpointing: Mutex<()>,
    reclaiming: Mutex<()>,
    syncing: Mutex<Synced>,
    giving: Mutex<()>,
    /// Inodes without a name that nobody has open any more, and whose rows could not be removed yet.
    orphans: Mutex<BTreeSet<(LineId, Ino)>>,
    pens: Mutex<HashMap<LineId, Arc<Pen>>>,
    views: Mutex<HashMap<(LineId, Held), usize>>,
    /// Of each branch what somebody changed below.
    changed_below: Mutex<BTreeMap<LineId, ChangedPaths>>,
    /// What files below were found to hold.
    hashes: Mutex<fingerprints::Hashes>,
    on_disk: on_disk::OnDisk,
    /// What is not kept of what is below.
    not_kept: Mutex<unkept::Unkept>,
    /// That there is something for the log.
    wake: Bell,
    log_is_long: Bell,
    /// That files were taken over.
    pub(crate) to_copy: Bell,
    copying: Mutex<()>,
    pub(crate) pins: pins::Pins,
    believing: Mutex<()>,
    sweeping: Mutex<()>,
    stop: AtomicBool,
    boot: String,
    /// What was given up of a damaged log as it was opened, in a sentence.
    given_up: Option<String>,
    /// Held as long as the store is open.
    _lock: File,
}

impl Engine {
    /// Makes an empty store.
    pub(crate) fn create(directory: &Path, lower: &Path) -> Result<()> {
        if let (Ok(store), Ok(lower)) = (std::path::absolute(directory), lower.canonicalize())
            && store.ancestors().any(|above| above.canonicalize().is_ok_and(|above| above == lower))
        {
            return Err(Error::Invalid("the store cannot be in the lower directory"));
        }
        let lower = Lower::open(lower)?;
        for part in ["", "log", "data"] {
            match std::fs::create_dir(directory.join(part)) {
                Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                    return Err(Error::io("making the store")(error));
                }
                _ => {}
            }
        }
        if directory.join("format").exists() {
            return Err(Error::Exists);
        }
        // One that was whole, and opened, has a log: what is in it is not to go.
        if std::fs::read_dir(directory.join("log")).map_err(Error::io("making the store"))?.next().is_some() {
            return Err(Error::corrupt("the file `format` is missing"));
        }
        // Whoever was killed before it was whole may have left half of one.
        match std::fs::remove_file(directory.join("rows.redb")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("making the store")(error));
            }
            _ => {}
        }
        Base::create(&directory.join("rows.redb"))?;
        write_format(directory, &lower.identity())
    }

    /// See [`crate::Workspace::begin_anew`].
    pub(crate) fn begin_anew(&self, lower: &Path) -> Result<()> {
        let state = read_lock(&self.state);
        if !state.snapshots.is_empty() || state.lines.values().any(|line| line.pen) {
            return Err(Error::Busy("there is a branch or a snapshot"));
        }
        write_format(&self.directory, &Lower::open(lower)?.identity())
    }

    /// Opens a store.
    pub(crate) fn open(directory: &Path, lower: &Path, options: Options, how: Opening) -> Result<Self> {
        // Where there is no store, not even a lock is left.
        format(directory)?;
        let held = held(directory)?;
        let (number, identity) = format(directory)?;
        let lower = if options.without_lower { Lower::nothing(directory)? } else { Lower::open(lower)? };
        if !lower.may_be(&identity) && !options.without_lower && how != Opening::Restored {
            return Err(Error::OtherLower);
        }
        let base = Arc::new(patiently(|| Base::open(&directory.join("rows.redb")))?);
        File::open(directory).and_then(|dir| dir.sync_all()).map_err(Error::io("opening the store"))?;
        let logs = directory.join("log");
        let mut layers = Layers::new(Arc::new(base.rows()?));
        let in_base = layers.get(&key::counter("batch"))?.map_or(0, |value| key::be64(&value));
        let counted = InBase::of(&layers)?;
        let boot = platform::boot_id().unwrap_or_default();
        let goes_on = durable::goes_on(&layers, in_base)?;
        let mut found = log::read(&logs, &boot, in_base)?;
        let damage = Damage::of(&mut found, goes_on, &layers)?;
        damage::refuse(damage.as_ref(), &layers, how)?;
        let changes = how != Opening::Check;
        // A full disk has no room for a log; deleting takes an open store.
        let reserve_is_spent = changes && spend_reserve(directory);
        let given_up = match damage {
            Some(damage) => Some(damage.give_up(directory, &found.files, &base, &mut layers)?),
            None => None,
        };
        found.batches.into_iter().for_each(|changes| layers.replay(changes));
        let next_block = layers.get(&key::counter("block"))?.map(|value| key::be64(&value));
        let segments = Segments::open(&directory.join("data"), next_block, how != Opening::Check)?;
        let mut state = State::load(layers)?;
        damage::before_writing_again(&mut state, &segments, &found.contents, changes.then_some(&base))?;
        // Before anything is written of this boot: then it was done.
        found.contents.iter().try_for_each(|written| segments.write_again(written, changes))?;
        segments.leave_short();
        if changes {
            // Of a check that was killed. Nobody checks now.
            let _ = std::fs::remove_file(directory.join(fsck::COPY));
            log::cut(&logs, &found.files)?;
            if number < FORMAT {
                write_format(directory, &identity)?;
            }
        }
        let newest = found.files.last();
        let resumable = newest.filter(|file| file.present && file.counts > 0 && !found.damaged);
        let is_whole = resumable.is_some() && !boot.is_empty() && found.files.iter().all(|file| file.present);
        state.count_from(counted, is_whole && !damage::is_cut(&state.layers)?, newest.is_none())?;
        let next = newest.map(|file| file.number).max(goes_on).map_or(1, |number| number + 1);
        let log = match resumable {
            _ if !changes => Log::at_rest(&logs, next, found.last)?,
            Some(file) => Log::resume(&logs, file.number, file.counts, found.last)?,
            None => Log::begin(&logs, next, found.last, &boot)?,
        };
        let resumed = resumable.is_some();
        // What a process wrote that died may not be on the disk.
        let older = log::older(&logs, log.number())?;
        let engine = Self {
            on_disk: on_disk::OnDisk::of(&state)?,
            state: RwLock::new(state),
            segments,
            lower,
            options,
            directory: directory.to_owned(),
            log_length: AtomicU64::new(log.length()),
            log_is_full: AtomicBool::new(false),
            reserve_is_spent: AtomicBool::new(reserve_is_spent),
            log: Mutex::new(log),
            previous_logs: Mutex::new(older),
            failed: AtomicBool::new(false),
            #[cfg(test)]
            panics: AtomicBool::new(false),
            base,
            base_had_no_room: Mutex::default(),
            checkpointing: Mutex::new(()),
            reclaiming: Mutex::default(),
            syncing: Mutex::default(),
            giving: Mutex::default(),
            orphans: Mutex::default(),
            pens: Mutex::default(),
            views: Mutex::default(),
            changed_below: Mutex::default(),
            hashes: Mutex::default(),
            not_kept: Mutex::default(),
            wake: Bell::default(),
            log_is_long: Bell::default(),
            to_copy: Bell::default(),
            copying: Mutex::default(),
            pins: pins::Pins::open(directory)?,
            believing: Mutex::default(),
            sweeping: Mutex::default(),
            stop: AtomicBool::new(false),
            boot,
            given_up,
            _lock: held,
        };
        if !changes {
            return Ok(engine);
        }
        if !resumed {
            // Better now than with the next crash: the files of another boot are read again until then.
            match engine.checkpoint() {
                // The older files stay, and count as they are.
                Ok(()) | Err(Error::NoSpace) => {}
                Err(error) => return Err(error),
            }
        }
        engine.drop_orphans()?;
        engine.keep_reserve();
        Ok(engine)
    }

    /// The lower directory as it is now, as a snapshot on a line of its own. Waits for the kernel's clock to tick, so that no
    /// later change of a file can bear an earlier time.
    pub(crate) fn base(&self, label: &[u8], pins: bool) -> Result<(u64, LineId)> {
        self.room_for_rows()?;
        self.room_for_numbers()?;
        let witness = self.on_disk.witness(&self.lower);
        let root = self.lower.find(b"")?;
        let whole_seconds = root.is_some_and(|root| root.ctime.nanos == 0 && root.mtime.nanos == 0);
        let time = platform::settled_time(whole_seconds);
        let isolates = !whole_seconds && pins && self.options.pins;
        let (snapshot, line) = {
            let mut state = write_lock(&self.state);
            let line = state.grow(None, time, false, label)?;
            if isolates {
                state.layers.put(&key::of_line(b'j', line, None), pinning::KEEPING.to_vec());
            }
            (state.name_state(line, label)?, line)
        };
        if let Err(error) = self.flush() {
            let _ = write_lock(&self.state).forget_snapshot(snapshot);
            return Err(error);
        }
        self.on_disk.wait_for(line, witness);
        Ok((snapshot, line))
    }

    /// A new branch that begins at a snapshot.
    pub(crate) fn branch(&self, snapshot: u64, label: &[u8]) -> Result<LineId> {
        self.room_for_rows()?;
        self.room_for_numbers()?;
        let line = {
            let mut state = write_lock(&self.state);
            let from = state.snapshots.get(&snapshot).ok_or(Error::NotFound)?;
            let (line, epoch) = (from.line, from.epoch);
            let base = state.lines.get(&line).ok_or_else(|| Error::corrupt("a snapshot's line is missing"))?.base;
            state.grow(Some((line, epoch)), base, true, label)?
        };
        if let Err(error) = self.flush() {
            let _ = write_lock(&self.state).drop_pen(line);
            return Err(error);
        }
        Ok(line)
    }

    /// Changes rows of a line under its present epoch. After an error nothing is changed.
    pub(crate) fn change<T>(
        &self,
        line: LineId,
        chain: &Chain,
        change: impl FnOnce(&mut State, View<'_>) -> Result<T>,
    ) -> Result<T> {
        self.room_for_change()?;
        self.change_rows(line, chain, change)
    }

    /// The same where something is removed, which goes on for a while where the log cannot be written, and has the reserve: on a full disk it makes room.
    pub(crate) fn change_removing<T>(
        &self,
        line: LineId,
        chain: &Chain,
        change: impl FnOnce(&mut State, View<'_>) -> Result<T>,
    ) -> Result<T> {
        self.room_for_removal()?;
        self.change_rows(line, chain, change)
    }

    fn change_rows<T>(
        &self,
        line: LineId,
        chain: &Chain,
        change: impl FnOnce(&mut State, View<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut state = write_lock(&self.state);
        let until = state.lines.get(&line).filter(|line| line.pen).ok_or(Error::NotFound)?.epoch;
        let result = state.whole(|state| change(state, View { line, until, chain }));
        drop(state);
        self.wake();
        result
    }

    /// Notes that somebody changed what a branch shows of the lower directory. The list is bounded.
    pub(crate) fn note_changed(&self, line: LineId, path: &[u8]) {
        let mut changed = lock(&self.changed_below);
        let mine = changed.entry(line).or_default();
        if mine.len() < MOST_CHANGED {
            mine.entry(path.to_vec()).or_insert(None);
        }
    }

    /// What was noted of a branch.
    pub(crate) fn changed_below(&self, line: LineId) -> Vec<Vec<u8>> {
        lock(&self.changed_below).get(&line).map(|mine| mine.keys().cloned().collect()).unwrap_or_default()
    }

    /// What was noted of a branch and not told yet. It is told with that snapshot, and is as before if that is deleted.
    pub(crate) fn tell_changed(&self, line: LineId, snapshot: u64) -> Vec<Vec<u8>> {
        let mut changed = lock(&self.changed_below);
        let mine = changed.get_mut(&line).into_iter().flatten().filter(|(_, told)| told.is_none());
        mine.map(|(path, told)| {
            *told = Some(snapshot);
            path.clone()
        })
        .collect()
    }

    pub(crate) fn take_back_told(&self, snapshot: u64) {
        let mut changed = lock(&self.changed_below);
        let told = changed.values_mut().flat_map(BTreeMap::values_mut).filter(|told| **told == Some(snapshot));
        told.for_each(|told| *told = None);
    }

    pub(crate) fn forget_changed_at(&self, line: LineId, path: &[u8]) {
        lock(&self.changed_below).get_mut(&line).map(|mine| mine.remove(path));
    }

    pub(crate) fn forget_changed(&self, line: LineId) {
        lock(&self.changed_below).remove(&line);
    }

    /// A view is open, and keeps what it shows from being deleted. Of a pen there is one at most.
    pub(crate) fn hold(&self, line: LineId, of: Held) -> Result<()> {
        let mut views = lock(&self.views);
        let count = views.entry((line, of)).or_default();
        if of == Held::Pen && *count > 0 {
            return Err(Error::Busy("a view of the branch is open"));
        }
        *count += 1;
        Ok(())
    }

    pub(crate) fn release(&self, line: LineId, of: Held) {
        let mut views = lock(&self.views);
        if let Some(count) = views.get_mut(&(line, of)) {
            *count -= 1;
            if *count == 0 {
                views.remove(&(line, of));
            }
        }
    }

    fn is_held(&self, line: LineId, of: Held) -> bool {
        lock(&self.views).contains_key(&(line, of))
    }

    /// Whether the store is being closed.
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Tells the thread that writes the log that there is something to do.
    fn wake(&self) {
        Self::ring(&self.wake);
    }

    pub(crate) fn ring((waiting, bell): &Bell) {
        let mut waiting = lock(waiting);
        if !*waiting {
            *waiting = true;
            bell.notify_one();
        }
    }

    /// Ends the threads at their next step.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        [&self.wake, &self.log_is_long, &self.to_copy].into_iter().for_each(Self::ring);
    }

    /// The number of an inode below. Most have their own; a row says which number the others were given.
    pub(crate) fn number_of(&self, device: u64, ino: u64, birth: Time, reused: bool) -> Result<u64> {
        if device == 0 && ino < LOWER && !reused {
            return Ok(LOWER | ino);
        }
        let mut row = key::stem(b'n', device);
        row.extend_from_slice(&ino.to_be_bytes());
        row.extend_from_slice(&birth.secs.to_be_bytes());
        row.extend_from_slice(&birth.nanos.to_be_bytes());
        if let Some(number) = read_lock(&self.state).layers.get(&row)? {
            return Ok(key::be64(&number));
        }
        let mut state = write_lock(&self.state);
        if let Some(number) = state.layers.get(&row)? {
            return Ok(key::be64(&number));
        }
        let number = state.new_ino();
        state.layers.put(&row, number.to_be_bytes().to_vec());
        Ok(number)
    }
}

/// Tries for a quarter of a second while somebody has the store open: a process that was just being started by the last one to have it
/// holds copies of all its descriptors until it runs its program.
fn patiently<T>(mut open: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..50 {
        match open() {
            Err(Error::Busy(_)) => std::thread::sleep(std::time::Duration::from_millis(5)),
            answer => return answer,
        }
    }
    open()
}

/// Set in the numbers of inodes below that keep their own.
pub(crate) const LOWER: u64 = 1 << 48;

/// Keeps other processes from a store, as long as what it gives is there.
fn held(directory: &Path) -> Result<File> {
    let held = File::create(directory.join("lock")).map_err(Error::io("opening the store"))?;
    patiently(|| match rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Busy("another process has the store open")),
        Err(error) => Err(Error::io("locking the store")(error)),
    })?;
    Ok(held)
}

fn write_format(directory: &Path, identity: &str) -> Result<()> {
    let text = format!("agentfs {FORMAT}\n{identity}");
    let temporary = directory.join("format.new");
    std::fs::write(&temporary, text).map_err(Error::io("making the store"))?;
    File::open(&temporary).and_then(|file| file.sync_all()).map_err(Error::io("making the store"))?;
    std::fs::rename(&temporary, directory.join("format")).map_err(Error::io("making the store"))?;
    File::open(directory).and_then(|dir| dir.sync_all()).map_err(Error::io("making the store"))
}

/// Whether a store may have been made for that lower directory. Reads one small file, and takes no lock.
pub(crate) fn may_be_of(directory: &Path, lower: &Path) -> Result<bool> {
    Ok(Lower::open(lower)?.may_be(&format(directory)?.1))
}

/// Checks the store's format, and gives its number and what is written of the lower directory it was made for.
fn format(directory: &Path) -> Result<(u32, String)> {
    let text = match std::fs::read_to_string(directory.join("format")) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Error::NotFound),
        Err(error) => return Err(Error::io("reading the store's format")(error)),
    };
    let (first, identity) = text.split_once('\n').unwrap_or((&text, ""));
    let found = first.strip_prefix("agentfs ").and_then(|number| number.parse::<u32>().ok());
    let found = found.ok_or_else(|| Error::corrupt("the file `format` cannot be read"))?;
    if found > FORMAT {
        return Err(Error::NewerFormat { found, known: FORMAT });
    }
    let has_inode = identity.lines().any(|line| line.starts_with("lower-inode "));
    has_inode.then(|| (found, identity.to_owned())).ok_or_else(|| Error::corrupt("the file `format` cannot be read"))
}
