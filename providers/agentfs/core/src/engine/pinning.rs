//! When pins are made, and when they go.
//!
//! They are made with the fingerprints behind a base, of what is there for the taking. Where the disk shares contents between files they take none of it; else they are copies, each of which begins to be
//! written at once, so that they do not pile up in memory. What fails here is not pinned, and nobody hears of it.
//!
//! They are not synced when they are made, and a power cut can leave one with its size and other bytes. So before the first base of a boot relies on any, those are hashed that were changed since it was last known that the disk had them, as it is when the lower filesystem was
//! synced and the store lies on it. The row `m`, `pins`, says until when that was: a time (8 bytes of seconds, 4 of nanoseconds), and in which boot that was written down, as the row `j` does.
//!
//! They go when no base's fingerprints name them any more. A row `p` of a base says that there may be such: it is there while pins are made behind that base, since its fingerprints come after
//! them, and since it began to be forgotten. So whatever is killed in between leaves it to the next who opens the store.

use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::Ordering;

use super::fingerprints::{Fingerprint, Hash, LABEL, hash_of_target};
use super::fsck::Report;
use super::pins::{Listed, may_be_attributes};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lower::{Found, join, xattrs};
use crate::rows::chunk::BLOCK;
use crate::rows::key::{self, LineId};
use crate::state::{Row, State};
use crate::types::{Kind, Time};
use crate::{lock, platform, read_lock, write_lock};

/// Pins are made where there is so many times the room that all of the base's take, inodes too: what is left is for who writes.
const ROOM: u64 = 8;
/// What is copied before it is looked whether the store is being closed, in bytes.
const PART: u64 = 4 << 20;
/// So many paths are told at most of which what was pinned is lost.
const MOST: usize = 1000;
/// Rows that are looked at while others wait.
const STEP: usize = 16;

/// The row `j` of a base as long as what it needs is not all kept, and then.
pub(super) const KEEPING: [u8; 1] = [1];
const KEPT: [u8; 1] = [2];

/// The name of the row that says how far pins are believed.
const BELIEVED: &str = "pins";

/// How far the pins of a base are.
pub(super) struct Pinning {
    /// How many were made.
    made: u64,
    /// What they take of the disk, in blocks.
    blocks: u64,
    /// How many of them no fingerprint may name.
    unnamed: usize,
    /// No more are: there is no room for them.
    over: bool,
}

impl Pinning {
    pub(super) fn count_unnamed(&mut self, more: usize) {
        self.unnamed += more;
    }

    pub(super) fn all_are_named(&self) -> bool {
        self.unnamed == 0
    }
}

/// Somebody whose decisions about pins count, until fingerprints say the same.
pub(super) struct Deciding<'a>(&'a Engine);

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        let mut decided = lock(&self.0.pins.decided);
        decided.users -= 1;
        if decided.users == 0 {
            decided.pins = Default::default();
        }
    }
}

impl Engine {
    /// Whether branches of a base show what is pinned as it was.
    pub(crate) fn isolates(&self, base: LineId) -> Result<bool> {
        Ok(read_lock(&self.state).layers.get(&key::of_line(b'j', base, None))?.is_some())
    }

    /// The bases behind which not all is kept yet that is to be.
    pub(crate) fn unfinished(&self) -> Vec<LineId> {
        let state = read_lock(&self.state);
        let bases = state.lines.iter().filter(|(_, line)| line.parent.is_none() && !line.points.is_empty());
        bases.map(|(&base, _)| base).filter(|&base| is_unfinished(&state, base)).collect()
    }

    /// Whether not all is kept yet behind a base that is to be.
    pub(crate) fn is_unfinished(&self, base: LineId) -> bool {
        is_unfinished(&read_lock(&self.state), base)
    }

    /// See [`crate::Workspace::is_keeping`].
    pub(crate) fn is_keeping(&self, branch: LineId) -> bool {
        let state = read_lock(&self.state);
        state.lines.contains_key(&branch) && state.chain(branch).is_ok_and(|chain| is_unfinished(&state, chain.base))
    }

    /// How many names a file below had when its fingerprint was taken.
    pub(crate) fn names_then(&self, base: LineId, ino: u64) -> Result<u32> {
        let row = read_lock(&self.state).layers.get(&key::of_line(b'j', base, Some(ino)))?;
        Ok(row.map_or(1, |row| u32::try_from(key::be64(&row)).unwrap_or(u32::MAX)))
    }

    /// From now on there may be pins that no fingerprint names. `None`: none are made.
    pub(super) fn begin_pinning(&self, base: LineId) -> Option<Pinning> {
        self.options.pins.then_some(())?;
        self.room_for_rows().ok()?;
        self.believe_pins().ok()?;
        let left = {
            let mut state = write_lock(&self.state);
            self.base_seen(&state, base)?;
            if !lock(&self.pins.bases).insert(base) {
                return None;
            }
            // By who was killed: of what was changed since, fingerprints will not name the pins.
            let left = !matches!(state.layers.get(&key::of_line(b'p', base, None)), Ok(None));
            self.mark_pins(&mut state, base);
            left
        };
        match self.flush() {
            Ok(_) => Some(Pinning { made: 0, blocks: 0, unnamed: usize::from(left), over: false }),
            Err(_) => {
                lock(&self.pins.bases).remove(&base);
                None
            }
        }
    }

    /// Removes pins that do not hold what their names say, of those that the disk may not have had when there was a power cut. Costs looking at all pins, and reading those, once in each boot.
    fn believe_pins(&self) -> Result<()> {
        let _one = lock(&self.believing);
        if self.pins_are_believed()? {
            return Ok(());
        }
        let row = read_lock(&self.state).layers.get(&key::counter(BELIEVED))?;
        let since = row.as_deref().and_then(believed).map(|(until, _)| until);
        // What is read now, the disk has.
        let now = platform::now();
        if self.pins.any() {
            self.pins.list(&mut |pins| {
                pins.iter().try_for_each(|pin| match self.is_stopped() {
                    true => Err(Error::Busy("the store is being closed")),
                    false => {
                        self.pins.doubt(pin, since);
                        Ok(())
                    }
                })
            })?;
        }
        self.pins_are_on_disk(now);
        Ok(())
    }

    /// Whether all pins are believed that are there, in this boot.
    pub(super) fn pins_are_believed(&self) -> Result<bool> {
        let row = read_lock(&self.state).layers.get(&key::counter(BELIEVED))?;
        Ok(row.as_deref().and_then(believed).is_some_and(|(_, boot)| !self.boot.is_empty() && boot == self.boot_mark()))
    }

    /// The disk has the pins that were made before that time.
    pub(super) fn pins_are_on_disk(&self, until: Time) {
        let value = [&until.secs.to_be_bytes()[..], &until.nanos.to_be_bytes(), &self.boot_mark()].concat();
        write_lock(&self.state).layers.put(&key::counter(BELIEVED), value);
        self.wake();
    }

    /// Whether pins are being made behind a base.
    pub(crate) fn is_pinning(&self, base: LineId) -> bool {
        lock(&self.pins.bases).contains(&base)
    }

    /// There may be pins from now on that no fingerprint names.
    pub(super) fn mark_pins(&self, state: &mut State, base: LineId) {
        let mark = self.pins.marks.fetch_add(1, Ordering::Relaxed);
        state.layers.put(&key::of_line(b'p', base, None), mark.to_be_bytes().to_vec());
    }

    /// `whole`: nothing more is to be pinned. `named`: fingerprints name all pins that were made.
    pub(super) fn end_pinning(&self, base: LineId, whole: bool, named: bool) {
        let mut state = write_lock(&self.state);
        lock(&self.pins.bases).remove(&base);
        // What forgets a base puts the row there once nobody sees it.
        if whole && self.base_seen(&state, base).is_some() {
            if named {
                state.layers.remove(&key::of_line(b'p', base, None));
            }
            let isolates = key::of_line(b'j', base, None);
            if matches!(state.layers.get(&isolates), Ok(Some(_))) {
                state.layers.put(&isolates, KEPT.to_vec());
            }
        }
        drop(state);
        self.wake();
        Self::ring(&self.to_copy);
    }

    /// Pins that are decided on from now on stay, until this is gone and the fingerprints of each who decides are written down.
    pub(super) fn decide(&self) -> Deciding<'_> {
        lock(&self.pins.decided).users += 1;
        Deciding(self)
    }

    /// Pins a file or link below, of which that hash is noted. `open`: it, if it is open.
    pub(super) fn pin(&self, (path, found, hash): (&[u8], &Found, &Hash), open: Option<File>, pinning: &mut Pinning) {
        let there = {
            let mut decided = lock(&self.pins.decided);
            decided.pins.insert((found.kind, *hash));
            self.pins.is_there(found.kind, hash, found.size)
        };
        if there || pinning.over || self.is_stopped() {
            return;
        }
        let made = self.room_for_pin(pinning).and_then(|()| match found.kind {
            Kind::Symlink => self.pin_target(path, found.size, hash),
            _ => self.pin_contents((path, found, hash), open, pinning),
        });
        match made {
            Ok(made) => {
                pinning.made += u64::from(made);
                pinning.blocks += u64::from(made);
            }
            // Whatever else went wrong may have been this one alone.
            Err(error) => pinning.over = matches!(error, Error::NoSpace),
        }
    }

    fn pin_target(&self, path: &[u8], size: u64, hash: &Hash) -> Result<bool> {
        let target = self.lower.target(path)?.filter(|target| hash_of_target(target) == *hash);
        let Some(target) = target else { return Ok(false) };
        let fill = |pin: &File| pin.write_all_at(&target, 0).map_err(Error::io("pinning a link")).map(|()| true);
        self.pins.make(Kind::Symlink, hash, size, &mut { fill })
    }

    fn pin_contents(
        &self,
        (path, found, hash): (&[u8], &Found, &Hash),
        open: Option<File>,
        pinning: &mut Pinning,
    ) -> Result<bool> {
        let file = match open {
            Some(file) => file,
            None => match self.lower.open_file(path)? {
                Some(file) => file,
                None => return Ok(false),
            },
        };
        // Another may be there by now, of any size.
        let is_it = || Ok(self.lower.find_open(&file)?.is_as(found));
        let error = Error::io("pinning a file");
        if !is_it()? || has_xattrs(&file) || may_be_attributes(&file, found.size).map_err(error)? {
            return Ok(false);
        }
        // Without holes.
        let held = file.metadata().map_or(found.size, |metadata| metadata.blocks() * 512).min(found.size);
        let blocks = held.div_ceil(BLOCK);
        let mut fill = |pin: &File| {
            // Some say so for two files alone, of those that share.
            if platform::clone(&file, pin).unwrap_or(false) {
                return is_it();
            }
            // A smaller one may have the room.
            if self.room_for_blocks((pinning.blocks + 1 + blocks) * ROOM).is_err() {
                return Ok(false);
            }
            pinning.blocks += blocks;
            let copied = self.copy_to_pin(&file, found.size, pin)? && is_it()?;
            // All told it can be so much that who syncs something would wait for it.
            platform::begin_to_write(pin);
            Ok(copied)
        };
        self.pins.make(Kind::File, hash, found.size, &mut fill)
    }

    /// False where it was stopped, or the file has ended.
    fn copy_to_pin(&self, file: &File, size: u64, pin: &File) -> Result<bool> {
        let error = Error::io::<std::io::Error>;
        pin.set_len(size).map_err(error("pinning a file"))?;
        let mut at = 0;
        while let Some(data) = platform::seek(file, at, false).map_err(error("pinning a file"))?.filter(|&at| at < size)
        {
            let hole = platform::seek(file, data, true).map_err(error("pinning a file"))?.unwrap_or(size);
            at = data;
            let hole = hole.min(size).max(data + 1);
            while at < hole {
                let part = (hole - at).min(PART);
                if self.is_stopped() || platform::copy(file, at, pin, at, part).map_err(error("pinning a file"))? < part
                {
                    return Ok(false);
                }
                at += part;
            }
        }
        Ok(true)
    }

    fn room_for_pin(&self, pinning: &Pinning) -> Result<()> {
        self.room_for_blocks((pinning.blocks + 1) * ROOM)?;
        if !pinning.made.is_multiple_of(64) {
            return Ok(());
        }
        let stat = rustix::fs::statvfs(&self.directory).map_err(Error::io("looking at the disk"))?;
        // Some make inodes as they are needed, and have none to tell of.
        if stat.f_files > 0 && stat.f_favail < (pinning.made + 64) * ROOM { Err(Error::NoSpace) } else { Ok(()) }
    }

    /// What a file held that had that hash, from its pin, and what the pin is: it holds that for as long as it is this. Costs reading it, once.
    pub(crate) fn pinned(&self, hash: &Hash, size: u64) -> Result<Option<(File, Found)>> {
        let Some((file, is)) = self.pins.contents(hash, size, &|| self.is_stopped()) else { return Ok(None) };
        let found = self.lower.find_open(&file)?;
        let same = (found.ino, found.size, found.mtime, found.ctime) == (is.1, is.2, is.3, is.4);
        Ok(Some((file, found)).filter(|_| same))
    }

    /// Removes pins that nothing names any more, if there may be such; `all`: if not, too. Costs looking at all fingerprints and pins.
    pub(crate) fn sweep_pins(&self, all: bool) -> Result<()> {
        let _one = lock(&self.sweeping);
        let due = self.due()?;
        if due.is_empty() && !all {
            return Ok(());
        }
        let _deciding = self.decide();
        let mut all_gone = true;
        if self.pins.any() {
            let named = self.named()?;
            self.pins.list(&mut |pins| {
                for Listed { kind, hash } in pins {
                    if self.is_stopped() {
                        return Err(Error::Busy("the store is being closed"));
                    }
                    if named.binary_search(&key::be64(hash)).is_err() {
                        let decided = lock(&self.pins.decided);
                        if !decided.pins.contains(&(*kind, *hash)) {
                            all_gone &= self.pins.remove(*kind, hash).is_ok();
                        }
                    }
                }
                Ok(())
            })?;
            self.pins.tidy();
        }
        if !all_gone {
            // Another time.
            return Ok(());
        }
        let mut state = write_lock(&self.state);
        for (row, mark) in due {
            // It may have been put there again meanwhile.
            if state.layers.get(&row)?.is_some_and(|now| now == mark) {
                state.layers.remove(&row);
            }
        }
        drop(state);
        self.wake();
        Ok(())
    }

    /// The rows that say that there may be pins to remove. Those of bases are not among them behind which pins are being made, or that are being forgotten.
    fn due(&self) -> Result<Vec<Row>> {
        let state = read_lock(&self.state);
        let mut due = Vec::new();
        for (row, mark) in state.layers.prefix(b"p")? {
            let base = key::be32(row.get(1..).unwrap_or_default());
            let rests = state.lines.get(&base).is_none_or(|line| !line.points.is_empty());
            if rests && !lock(&self.pins.bases).contains(&base) {
                due.push((row, mark));
            }
        }
        Ok(due)
    }

    /// The beginnings of all hashes that fingerprints name, by rising value: a pin that has one of them by chance stays.
    fn named(&self) -> Result<Vec<u64>> {
        let mut named = Vec::new();
        let mut after = b"h".to_vec();
        'all: loop {
            if self.is_stopped() {
                return Err(Error::Busy("the store is being closed"));
            }
            let state = read_lock(&self.state);
            for _ in 0..STEP {
                let Some((row, value)) = state.layers.next(b"h", &after)? else { break 'all };
                named.extend(super::Fingerprints::decode(&value)?.hashes().map(|hash| key::be64(hash)));
                after = row;
            }
        }
        named.sort_unstable();
        named.dedup();
        Ok(named)
    }

    /// Reads all pins. Those that do not hold what their names say are told, and removed if `repair`; what nothing below holds any more is lost then. One that cannot be read
    /// stays: the next time it may be. `is_cut`: bases may be back whose pins went with them.
    pub(super) fn examine_pins(&self, repair: bool, is_cut: bool, report: &mut Report) -> Result<()> {
        let mut damaged = HashSet::new();
        self.pins.list(&mut |pins| {
            for pin in pins {
                match self.pins.is_sound(pin) {
                    Ok(Some(true) | None) => {}
                    Ok(Some(false)) => {
                        report.problems.push("a pin does not hold what its name says".to_owned());
                        damaged.insert(pin.hash);
                        if repair {
                            self.pins.remove(pin.kind, &pin.hash).map_err(Error::io("removing a pin"))?;
                        }
                    }
                    Err(error) => report.lost(format!("a pin cannot be read, and is left as it is: {error}")),
                }
            }
            Ok(())
        })?;
        let missing = is_cut && !self.options.without_lower;
        if is_cut && !missing {
            report.lost("what is below is not there: of what was pinned for bases that are back since the log was cut nobody knows what is lost".into());
        }
        if !damaged.is_empty() || missing {
            self.tell_what_was_pinned(&damaged, missing, report);
        }
        Ok(())
    }

    /// The paths of what these pins held, if it is not as it was below. `missing`: of what has none, too, where all is kept behind a base that is to be, or was about to be.
    fn tell_what_was_pinned(&self, damaged: &HashSet<Hash>, missing: bool, report: &mut Report) {
        let (mut told, mut after) = (BTreeSet::new(), b"h".to_vec());
        let state = read_lock(&self.state);
        // Rows that cannot be read are told with the others.
        while let Ok(Some((row, value))) = state.layers.next(b"h", &after) {
            let files = super::Fingerprints::decode(&value).map(super::Fingerprints::into_files).ok();
            let directory = row.get(5..).and_then(|rest| rest.split(|&byte| byte == 0).next()).unwrap_or_default();
            let base = key::be32(row.get(1..5).unwrap_or_default());
            let how = state.layers.get(&key::of_line(b'j', base, None));
            let is_kept = matches!(how, Ok(Some(how)) if *how == KEPT || *how == KEEPING);
            // A file that has a link's hash has another size.
            let has_none = |file: &Fingerprint| {
                !self.pins.is_there(Kind::File, &file.hash, file.size)
                    && !self.pins.is_there(Kind::Symlink, &file.hash, file.size)
            };
            let is_gone = |file: &Fingerprint| damaged.contains(&file.hash) || missing && is_kept && has_none(file);
            for file in files.into_iter().flatten().filter(is_gone) {
                let path = join(directory, &file.name);
                let now = self.lower.find(&path);
                if !matches!(&now, Ok(Some(now)) if file.is_of_found(now))
                    && told.insert(path.clone())
                    && told.len() <= MOST
                {
                    let path = String::from_utf8_lossy(&path);
                    report.lost(match now {
                        Ok(_) => format!("what {path} held when a base was taken is lost: neither its pin nor what is below is that any more"),
                        Err(error) => {
                            let why = std::io::Error::from_raw_os_error(error.errno());
                            format!("what {path} held when a base was taken may be lost: its pin is not that any more, and what is below cannot be looked at: {why}")
                        }
                    });
                }
            }
            after = row;
        }
        if told.len() > MOST {
            report.lost(format!("and so it is with {} paths more", told.len() - MOST));
        }
    }
}

/// Until when, and in which boot that was written down.
fn believed(row: &[u8]) -> Option<(Time, [u8; 8])> {
    let secs = i64::from_be_bytes(row.get(..8)?.try_into().ok()?);
    let nanos = u32::from_be_bytes(row.get(8..12)?.try_into().ok()?);
    Some((Time { secs, nanos }, row.get(12..)?.try_into().ok()?))
}

fn is_unfinished(state: &State, base: LineId) -> bool {
    matches!(state.layers.get(&key::of_line(b'j', base, None)), Ok(Some(row)) if *row == KEEPING)
}

/// Whether it has any that its hash is of, too, or that cannot be told.
fn has_xattrs(file: &File) -> bool {
    !xattrs(file).is_ok_and(|all| all.iter().all(|(name, _)| name == LABEL))
}
