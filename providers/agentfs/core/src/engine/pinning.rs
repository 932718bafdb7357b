//! When pins are made, and when they go.
//!
//! They are made with the fingerprints behind a base, of what is there for the taking: shared where the disk can do that, else copied as long as that is little and there is much more room. What
//! fails here is not pinned, and nobody hears of it.
//!
//! They go when no base's fingerprints name them any more. A row `p` of a base says that there may be such: it is there while pins are made behind that base, since its fingerprints come after
//! them, and since it began to be forgotten. So whatever is killed in between leaves it to the next who opens the store.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::fingerprints::{Hash, SMALL, hash_of_target};
use super::fsck::Report;
use super::pins::Listed;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::lower::Found;
use crate::rows::chunk::BLOCK;
use crate::rows::key::{self, LineId};
use crate::state::{Row, State};
use crate::types::Kind;
use crate::{lock, platform, read_lock, write_lock};

/// What is copied behind a base where the disk shares nothing, in bytes.
const COPIED: u64 = 512 << 20;
/// Pins are made where there is so many times the room that all of the base's take, inodes too: what is left is for who writes.
const ROOM: u64 = 8;
/// Rows that are looked at while others wait.
const STEP: usize = 128;

/// How far the pins of a base are.
pub(super) struct Pinning {
    /// Whether the disk may share contents, as far as it was tried.
    shares: bool,
    /// Bytes that were copied.
    copied: u64,
    /// Blocks that the pins take, and how many there are.
    blocks: u64,
    made: u64,
    /// There is no room for more.
    full: bool,
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
    /// From now on there may be pins that no fingerprint names. `None`: none are made.
    pub(super) fn begin_pinning(&self, base: LineId) -> Option<Pinning> {
        self.room_for_rows().ok()?;
        {
            let mut state = write_lock(&self.state);
            self.base_seen(&state, base)?;
            if !lock(&self.pins.decided).bases.insert(base) {
                return None;
            }
            self.mark_pins(&mut state, base);
        }
        match self.flush() {
            Ok(_) => Some(Pinning { shares: true, copied: 0, blocks: 0, made: 0, full: false }),
            Err(_) => {
                lock(&self.pins.decided).bases.remove(&base);
                None
            }
        }
    }

    /// There may be pins from now on that no fingerprint names.
    pub(super) fn mark_pins(&self, state: &mut State, base: LineId) {
        let mut decided = lock(&self.pins.decided);
        decided.marks += 1;
        state.layers.put(&key::of_line(b'p', base, None), decided.marks.to_be_bytes().to_vec());
    }

    /// `whole`: fingerprints name all pins that were made.
    pub(super) fn end_pinning(&self, base: LineId, whole: bool) {
        let mut state = write_lock(&self.state);
        lock(&self.pins.decided).bases.remove(&base);
        // What forgets a base puts the row there once nobody sees it.
        if whole && self.base_seen(&state, base).is_some() {
            state.layers.remove(&key::of_line(b'p', base, None));
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

    /// Pins a file or link below, of which that hash is noted. `file`: it, if it is open. `left`: how much may be read yet.
    pub(super) fn pin(
        &self,
        (path, found, hash): (&[u8], &Found, &Hash),
        file: Option<&File>,
        left: &mut u64,
        pinning: &mut Pinning,
    ) {
        let there = {
            let mut decided = lock(&self.pins.decided);
            decided.pins.insert((found.kind, *hash));
            self.pins.is_there(found.kind, hash, found.size)
        };
        if !there && !pinning.full && !self.is_stopped() {
            let done = match found.kind {
                Kind::Symlink => self.pin_target(path, hash, pinning),
                _ => self.pin_contents((path, found.size, hash), file, left, pinning),
            };
            // Whatever else went wrong may have been this one alone.
            pinning.full |= matches!(done, Err(Error::NoSpace));
        }
    }

    fn pin_target(&self, path: &[u8], hash: &Hash, pinning: &mut Pinning) -> Result<()> {
        let Some(target) = self.lower.target(path)?.filter(|target| hash_of_target(target) == *hash) else {
            return Ok(());
        };
        self.room_for_pin(1, pinning)?;
        let mut fill = |pin: &File| pin.write_all_at(&target, 0).map(|()| true);
        let made = self.pins.make(Kind::Symlink, hash, target.len() as u64, &|| self.is_stopped(), &mut fill);
        pinning.count(made.map_err(Error::io("pinning a link"))?, 1);
        Ok(())
    }

    fn pin_contents(
        &self,
        (path, size, hash): (&[u8], u64, &Hash),
        file: Option<&File>,
        left: &mut u64,
        pinning: &mut Pinning,
    ) -> Result<()> {
        let small = size <= SMALL && pinning.copied + size <= COPIED;
        if !pinning.shares && !small {
            return Ok(());
        }
        let opened;
        let file = match file {
            Some(file) => file,
            None => {
                let Some(rest) = left.checked_sub(size) else { return Ok(()) };
                *left = rest;
                let Some(file) = self.lower.open_file(path)? else { return Ok(()) };
                opened = file;
                &opened
            }
        };
        // The hash is of these, too, and a pin has none.
        if has_xattrs(file) {
            return Ok(());
        }
        let whole = size.div_ceil(BLOCK).max(1);
        self.room_for_pin(if pinning.shares { 1 } else { whole }, pinning)?;
        let (mut shares, mut copied) = (pinning.shares, false);
        let mut fill = |pin: &File| {
            if shares && size > 0 {
                match platform::clone(file, pin) {
                    Ok(true) => return Ok(true),
                    Ok(false) => shares = false,
                    // This one cannot be shared.
                    Err(_) => {}
                }
            }
            copied = true;
            // Else the room for all of it was seen to.
            let room = !pinning.shares || self.room_for_pin(whole, pinning).is_ok();
            Ok(small && room && copy(file, pin, size)?)
        };
        let made = self.pins.make(Kind::File, hash, size, &|| self.is_stopped(), &mut fill);
        pinning.shares = shares;
        let made = made.map_err(Error::io("pinning a file"))?;
        if made && copied {
            pinning.copied += size;
        }
        pinning.count(made, if copied { whole } else { 1 });
        Ok(())
    }

    fn room_for_pin(&self, blocks: u64, pinning: &Pinning) -> Result<()> {
        self.room_for_blocks((pinning.blocks + blocks) * ROOM)?;
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
                            // What cannot be removed is tried again with the next.
                            let _ = self.pins.remove(*kind, hash);
                        }
                    }
                }
                Ok(())
            })?;
            self.pins.tidy();
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
            if rests && !lock(&self.pins.decided).bases.contains(&base) {
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

    /// Reads all pins. Those that do not hold what their names say are told, and removed if `repair`.
    pub(super) fn examine_pins(&self, repair: bool, report: &mut Report) -> Result<()> {
        self.pins.list(&mut |pins| {
            for pin in pins {
                let sound = self.pins.is_sound(pin).map_err(Error::io("reading a pin"));
                if !matches!(sound, Ok(Some(true) | None)) {
                    report.problems.push("a pin does not hold what its name says".to_owned());
                    if repair {
                        self.pins.remove(pin.kind, &pin.hash).map_err(Error::io("removing a pin"))?;
                    }
                }
            }
            Ok(())
        })
    }
}

impl Pinning {
    fn count(&mut self, made: bool, blocks: u64) {
        self.made += u64::from(made);
        self.blocks += if made { blocks } else { 0 };
    }
}

/// Whether it has any, or that cannot be told.
fn has_xattrs(file: &File) -> bool {
    !matches!(rustix::fs::flistxattr(file, &mut [0_u8; 0]), Ok(0) | Err(rustix::io::Errno::OPNOTSUPP))
}

/// Copies a small file; blocks of zeros stay nowhere. False if it is shorter.
fn copy(from: &File, to: &File, size: u64) -> io::Result<bool> {
    let mut bytes = vec![0; size as usize];
    match from.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
        answer => answer?,
    }
    to.set_len(size)?;
    let blocks = bytes.chunks(BLOCK as usize).zip((0..).step_by(BLOCK as usize));
    for (block, at) in blocks.filter(|(block, _)| block.iter().any(|&byte| byte != 0)) {
        to.write_all_at(block, at)?;
    }
    Ok(true)
}
