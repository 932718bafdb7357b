//! What reaches the disk and when.
//!
//! A change is in memory first; within milliseconds its rows are written to the log, which survives the death of the process. A
//! *sync* takes contents and log to the disk and marks how far that goes; where somebody waits for it, few contents go there within the
//! log, by one write of the disk instead of two, and to their places with the next sync. A *checkpoint* moves rows from the log to the base.
//! Blocks that nothing names go back to the disk only after the change that dropped them is on it: an older state that a power
//! cut brings back must find its blocks.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::engine::{Bell, Engine, Synced};
use crate::error::{Error, Result};
use crate::rows::key;
use crate::state::{Layers, Table};
use crate::store::base::Rows;
use crate::store::log::Log;
use crate::store::segments::SEGMENT;
use crate::{lock, read_lock, write_lock};

/// How long a change may stay in memory alone.
const WRITE: Duration = Duration::from_millis(5);
/// How long it may be before it is on the disk, unasked.
const SYNC: Duration = Duration::from_secs(1);

/// What the disk must have left for contents to go into the log, too, in bytes: rows need what there is otherwise.
const ROOM: u64 = 64 << 20;

/// The row that says which log goes on behind the base. It names the base's last batch, too: an older program leaves it as it is when it goes on.
fn goes_on_row(batch: u64, log: u64) -> (Vec<u8>, Vec<u8>) {
    (key::counter("log"), [batch.to_be_bytes(), log.to_be_bytes()].concat())
}

/// Which log has to be there behind a base whose last batch that is; `None`: an older program wrote it. `rows`: the base's alone.
pub(super) fn goes_on(rows: &Layers, batch: u64) -> Result<Option<u64>> {
    let row = rows.get(&key::counter("log"))?;
    let number = row.filter(|row| row.len() == 16 && key::be64(row) == batch).map(|row| key::be64(&row[8..]));
    Ok(number)
}

impl Engine {
    /// Writes all rows that wait to the log, as one batch, and gives its number. They survive the death of the process then.
    pub(crate) fn flush(&self) -> Result<u64> {
        self.write_rows(false)
    }

    /// As [`Engine::flush`]. On a full disk it takes the reserve if something is removed by that, or blocks are free.
    pub(super) fn write_rows(&self, removing: bool) -> Result<u64> {
        let mut log = lock(&self.log);
        let (rows, makes_room) = {
            let mut state = write_lock(&self.state);
            if state.layers.unlogged() == 0 {
                return Ok(log.batch);
            }
            state.note_counters(self.segments.next());
            (state.layers.take_unlogged(), removing || !state.free.is_empty())
        };
        match self.on_reserve(makes_room, || log.append(rows.iter().map(|(row, value)| (&**row, value.as_deref())))) {
            Ok(batch) => {
                self.log_length.store(log.length(), Ordering::Relaxed);
                self.log_is_full.store(false, Ordering::Relaxed);
                Ok(batch)
            }
            Err(error) => {
                write_lock(&self.state).layers.give_back(rows);
                self.log_is_full.store(true, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Takes everything that was changed before this call to the disk, and gives space back that is free since then.
    pub(crate) fn sync(&self) -> Result<()> {
        self.drop_kept_orphans();
        let mut synced = lock(&self.syncing);
        let free = std::mem::take(&mut write_lock(&self.state).free);
        let result = self.sync_to_disk(&mut synced, !free.is_empty());
        if let Err(error) = result {
            write_lock(&self.state).free.extend(free);
            return Err(error);
        }
        // Others may sync meanwhile; who wants to know that the space is back waits for this.
        let giving = lock(&self.giving);
        drop(synced);
        self.give_back(free);
        drop(giving);
        self.keep_reserve();
        Ok(())
    }

    /// As [`Engine::sync`], by one write of the disk if few contents were written: they come with the mark. Gives no space back, so that nobody
    /// writes contents of the log into blocks that were given back.
    pub(crate) fn persist(&self) -> Result<()> {
        let mut synced = lock(&self.syncing);
        self.lost_nothing()?;
        let batch = self.flush()?;
        if batch == synced.batch || self.mark_with_contents(batch, &mut synced)? {
            return Ok(());
        }
        self.mark(batch, &mut synced, false)
    }

    fn sync_to_disk(&self, synced: &mut Synced, makes_room: bool) -> Result<()> {
        self.lost_nothing()?;
        let batch = self.write_rows(makes_room)?;
        if batch == synced.batch && synced.contents {
            return Ok(());
        }
        self.mark(batch, synced, makes_room)
    }

    /// An error once the disk did not take something that it had been given: the system forgets what it could not write, and says
    /// that all is well from then on. And once the thread that writes it down has panicked.
    pub(super) fn lost_nothing(&self) -> Result<()> {
        if self.failed.load(Ordering::SeqCst) {
            let source = std::io::Error::other("something that was written before may never reach the disk");
            return Err(Error::Io { what: "writing; the store has to be opened anew", source });
        }
        Ok(())
    }

    /// Takes a file of the log to the disk: what is needed to read it, that is.
    fn sync_log(&self, file: &File) -> Result<()> {
        self.reached(file.sync_data())
    }

    fn reached(&self, synced: std::io::Result<()>) -> Result<()> {
        synced.inspect_err(|_| self.failed.store(true, Ordering::SeqCst)).map_err(Error::io("syncing the log"))
    }

    /// False: there are too many contents for the log, or it has no room for them, or more than its present file has to reach the disk.
    fn mark_with_contents(&self, batch: u64, synced: &mut Synced) -> Result<bool> {
        // Without a boot's name nobody would know that they have to be written again.
        let free = self.disk_free()?;
        if self.boot.is_empty() || free < ROOM {
            return Ok(false);
        }
        let file = {
            let mut log = lock(&self.log);
            let whole = lock(&self.previous_logs).is_empty() && log.number() == synced.log;
            if !whole || log.length() > self.options.log_limit {
                return Ok(false);
            }
            let Some(contents) = self.segments.take_few() else { return Ok(false) };
            log.write_ahead(free);
            let marked = log.mark_with(batch, synced.batch, &contents).and_then(|()| log.file());
            self.log_length.store(log.length(), Ordering::Relaxed);
            match marked {
                Ok(file) => file,
                Err(_) => {
                    self.segments.many();
                    return Ok(false);
                }
            }
        };
        self.sync_log(&file)?;
        (synced.batch, synced.contents) = (batch, false);
        Ok(true)
    }

    fn mark(&self, batch: u64, synced: &mut Synced, makes_room: bool) -> Result<()> {
        self.segments.begin_anew();
        self.mark_with_all(batch, synced, makes_room).inspect_err(|_| self.segments.many())
    }

    fn mark_with_all(&self, batch: u64, synced: &mut Synced, makes_room: bool) -> Result<()> {
        self.segments.sync(&self.failed)?;
        // The mark may only be read where what it covers can be: in older files, which a checkpoint may leave at any time.
        let file = loop {
            let (older, number) = {
                let mut log = lock(&self.log);
                let older = std::mem::take(&mut *lock(&self.previous_logs));
                if older.is_empty() && log.number() == synced.log {
                    self.on_reserve(makes_room, || log.mark(batch, synced.batch))?;
                    break log.file()?;
                }
                (older, log.number())
            };
            if let Err(error) = older.iter().try_for_each(|file| self.sync_log(file)) {
                lock(&self.previous_logs).extend(older);
                return Err(error);
            }
            if number != synced.log {
                let names = File::open(self.directory.join("log")).map_err(Error::io("syncing the log"))?;
                self.reached(names.sync_all())?;
                synced.log = number;
            }
        };
        self.sync_log(&file)?;
        (synced.batch, synced.contents) = (batch, true);
        Ok(())
    }

    /// Gives blocks back to the disk, and removes segments that nothing is in. What the disk does not take now, as a full one may not, it is
    /// given after the next sync: it is nobody's contents that this is about.
    fn give_back(&self, free: Vec<(u64, u64)>) {
        let mut free = free.into_iter();
        while let Some((block, blocks)) = free.next() {
            if self.segments.give_back(block, blocks).is_err() {
                write_lock(&self.state).free.extend(std::iter::once((block, blocks)).chain(free));
                return;
            }
            let segment = block / SEGMENT;
            // In this order: in one that is full nobody takes blocks any more, who took some before is pending until his rows are counted.
            let full = (segment + 1) * SEGMENT <= self.segments.next();
            let pending = self.segments.is_pending(segment);
            let unused = {
                let mut state = write_lock(&self.state);
                state.layers.remove(&key::stem(b'f', block));
                state.count(block, -(blocks as i64));
                full && !pending && !state.used.contains_key(&segment)
            };
            if unused {
                // One that stays takes no room.
                let _ = self.segments.remove(segment);
            }
        }
    }

    /// Moves the rows of the log to the base. Others go on meanwhile.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let _one = lock(&self.checkpointing);
        self.lost_nothing()?;
        let free = self.room_for_base()?;
        let (table, batch, goes_on, file, numbers) = {
            let mut log = lock(&self.log);
            let next = Log::begin(&self.directory.join("log"), log.number() + 1, log.batch + 1, &self.boot)?;
            let (rows, table, numbers) = {
                let mut state = write_lock(&self.state);
                state.note_counters(self.segments.next());
                let rows = state.layers.take_unlogged();
                (rows, state.layers.freeze(), state.next)
            };
            let append = log.append(rows.iter().map(|(row, value)| (&**row, value.as_deref())));
            if let Err(error) = append {
                let mut state = write_lock(&self.state);
                state.layers.unfreeze();
                state.layers.give_back(rows);
                return Err(error);
            }
            let batch = log.batch;
            lock(&self.previous_logs).push(log.file()?);
            *log = next;
            self.log_length.store(log.length(), Ordering::Relaxed);
            (table, batch, log.number(), log.file()?, numbers)
        };
        match self.to_base(&table, batch, (goes_on, &file)) {
            Ok(fresh) => {
                let mut state = write_lock(&self.state);
                state.layers.thaw(fresh);
                state.counted(numbers);
            }
            Err(error) => {
                // Both logs stay, and so nothing is lost. The rows go with the next checkpoint.
                write_lock(&self.state).layers.unfreeze();
                if matches!(error, Error::NoSpace) {
                    *lock(&self.base_had_no_room) = Some((Instant::now(), free));
                }
                return Err(error);
            }
        }
        lock(&self.previous_logs).clear();
        lock(&self.log).forget_older()
    }

    /// Takes rows to the base, and before that to the disk the contents that they name, and the log that goes on behind them: once the base names that, it is there.
    fn to_base(&self, table: &Table, batch: u64, (goes_on, file): (u64, &File)) -> Result<Arc<Rows>> {
        self.segments.sync(&self.failed)?;
        self.sync_log(file)?;
        let names = File::open(self.directory.join("log")).map_err(Error::io("syncing the log"))?;
        self.reached(names.sync_all())?;
        let own = [(key::counter("batch"), batch.to_be_bytes().to_vec()), goes_on_row(batch, goes_on)];
        let own = own.iter().map(|(row, value)| (row.as_slice(), Some(value.as_slice())));
        let rows = table.iter().map(|(row, value)| (&**row, value.as_deref()));
        self.base.commit(rows.chain(own))?;
        Ok(Arc::new(self.base.rows()?))
    }

    /// Starts two threads: one writes the log every few milliseconds while there is something; the other takes it to the disk every second, and rows to
    /// the base, which nobody waits for who only wants something to survive a kill.
    pub(crate) fn keep(self: &Arc<Self>) -> Result<Vec<JoinHandle<()>>> {
        let start = |name: &str, work: fn(&Weak<Self>)| {
            let weak = Arc::downgrade(self);
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&weak));
            thread.map_err(Error::io("starting a thread"))
        };
        let writes = start("agentfs", |engine| Self::repeat(engine, |engine| &engine.wake, Self::write_log))?;
        let syncs = start("agentfs-disk", |engine| {
            let mut synced = Instant::now();
            Self::repeat(engine, |engine| &engine.log_is_long, |engine| engine.take_to_disk(&mut synced));
        })?;
        Ok(vec![writes, syncs])
    }

    /// Does it until the store is closed, each time when the bell rings, or after as long as it said the last time; a few milliseconds later, so that there is more to do.
    fn repeat(engine: &Weak<Self>, bell: fn(&Self) -> &Bell, mut work: impl FnMut(&Self) -> Duration) {
        loop {
            let Some(engine) = engine.upgrade() else { return };
            if engine.is_stopped() {
                return;
            }
            // What it was in the middle of may never reach the disk: then it is better to take nothing more than to lose that, too.
            let idle = catch_unwind(AssertUnwindSafe(|| work(&engine))).unwrap_or_else(|_| {
                engine.failed.store(true, Ordering::SeqCst);
                SYNC
            });
            let (waiting, bell) = bell(&engine);
            let mut woken = lock(waiting);
            if !*woken {
                woken = bell.wait_timeout(woken, idle).unwrap_or_else(PoisonError::into_inner).0;
            }
            *woken = false;
            drop(woken);
            drop(engine);
            std::thread::sleep(WRITE);
        }
    }

    fn write_log(&self) -> Duration {
        #[cfg(test)]
        assert!(!self.panics.load(Ordering::Relaxed), "as a test wants it");
        // An error shows itself to the next who asks for durability; the rows stay in memory until then.
        let _ = self.flush();
        if self.is_log_long() {
            Self::ring(&self.log_is_long);
        }
        SYNC
    }

    fn take_to_disk(&self, synced: &mut Instant) -> Duration {
        if self.is_log_long() {
            let _ = self.checkpoint();
        }
        if synced.elapsed() >= SYNC {
            if !read_lock(&self.state).dead.is_empty() {
                let _ = self.reclaim();
            }
            let _ = self.sync();
            *synced = Instant::now();
        }
        SYNC.saturating_sub(synced.elapsed())
    }

    fn is_log_long(&self) -> bool {
        self.log_length.load(Ordering::Relaxed) > self.options.log_limit
    }
}
