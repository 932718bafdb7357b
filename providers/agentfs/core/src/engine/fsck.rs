//! Checking: every row read, every block accounted for, every name followed.
//!
//! Costs everything there is, once; the store must not be open elsewhere. What can be repaired without guessing is: counts, blocks that
//! nothing names, rows that nobody sees, a log whose end is damaged (it ends there then). What is lost stays lost and is reported, and
//! then nothing is given back or removed: what seems superfluous may belong to what could not be read. Where a part of the database cannot be read, that is passed over, and
//! told by its inodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::engine::{Engine, Fingerprints, LOWER, Opening, Options, Remembered, damage, patiently};
use crate::error::{Error, Result};
use crate::rows::chunk::Chunk;
use crate::rows::key::{self, Epoch};
use crate::rows::value::{Entry, Inode};
use crate::state::{Row, State, View};
use crate::store::base::Base;
use crate::store::segments::SEGMENT;
use crate::types::{Kind, ROOT};
use crate::workspace::{BranchInfo, SnapshotInfo};
use crate::{platform, read_lock, write_lock};

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// What was wrong, one sentence each; empty: the store is sound.
    pub problems: Vec<String>,
    /// Whether all of it was repaired.
    pub repaired: bool,
    /// Rows that were read.
    pub rows: u64,
    /// Blocks of 4 KiB that are in use.
    pub blocks: u64,
    /// Whether the branches and snapshots could be read: where not, that there are none says nothing.
    pub is_read: bool,
    /// Whether some of what was in it may be gone without a trace: its log was cut, or its database was repaired.
    pub is_cut: bool,
    /// The branches that are in it.
    pub branches: Vec<BranchInfo>,
    /// The snapshots.
    pub snapshots: Vec<SnapshotInfo>,
}

/// A copy of the database that is checked.
pub(super) const COPY: &str = "rows.check";
/// What is said of a database that cannot be repaired.
const DAMAGED: &str = "the database of rows is damaged, and nothing repairs that: bring home what can be read, from branches by `cp -a`, from snapshots by `cat`";

/// Checks a store that is not open. With `repair` mends what can be.
pub(crate) fn check(directory: &Path, lower: &Path, repair: bool) -> Result<Report> {
    let mut report = Report { repaired: true, ..Report::default() };
    super::format(directory)?;
    let held = super::held(directory)?;
    let base = patiently(|| Base::open(&directory.join("rows.redb")))?;
    // A database that is checked is repaired, by what it was before if need be: without `repair` this is a copy.
    match if repair { base.check() } else { check_copy(directory) } {
        Ok(true) => {}
        // Rows may be missing, and nobody knows which.
        Ok(false) if repair => {
            report.is_cut = true;
            report.lost("the database of rows was damaged, and was repaired as far as it could be".into());
        }
        Ok(false) => report.lost("the database of rows is damaged; `--repair` repairs it as far as it can be".into()),
        Err(Error::Corrupt(_)) => report.lost(DAMAGED.into()),
        // It may be where nothing is that anybody needs.
        Err(error @ Error::Io { .. }) if !repair && error.is_damage() => {
            report.lost("the disk cannot read all of the database of rows: `--repair` checks it where it is".into());
        }
        Err(error) => return Err(error),
    }
    drop((base, held));
    // It need not be there: what is kept is compared with itself.
    let without_lower = !lower.is_dir() || !super::may_be_of(directory, lower)?;
    let options = Options { background: false, without_lower, ..Options::default() };
    let engine = match Engine::open(directory, lower, options, if repair { Opening::Repair } else { Opening::Check }) {
        Err(Error::Corrupt(what)) if !repair || !report.repaired => {
            report.lost(what);
            return Ok(report);
        }
        engine => engine?,
    };
    report.is_cut |= engine.given_up.is_some() || engine.is_cut()?;
    if let Some(what) = &engine.given_up {
        report.lost(what.clone());
    } else if engine.is_cut()? {
        report.lost(damage::BROKEN_OFF.into());
    }
    engine.examine(repair, &mut report)?;
    {
        let state = read_lock(&engine.state);
        (report.branches, report.snapshots) = (BranchInfo::all(&state), SnapshotInfo::all(&state));
        report.is_read = true;
    }
    if repair {
        if report.repaired {
            engine.reclaim()?;
            engine.sweep_pins(true)?;
        }
        engine.sync()?;
        if engine.is_cut()? {
            damage::forget_cut(&engine.base, read_lock(&engine.state).next)?;
        }
    }
    report.repaired &= repair || report.problems.is_empty();
    Ok(report)
}

/// The same of a copy of the database.
fn check_copy(directory: &Path) -> Result<bool> {
    let copy = directory.join(COPY);
    let checked = std::fs::copy(directory.join("rows.redb"), &copy)
        .map_err(Error::io("copying the rows, to check them"))
        .and_then(|_| Base::open(&copy)?.check());
    let _ = std::fs::remove_file(copy);
    checked
}

impl Engine {
    /// Compares everything with everything; what is found is added to the report.
    pub(crate) fn examine(&self, repair: bool, report: &mut Report) -> Result<()> {
        let mut runs = Vec::new();
        let mut garbage = Vec::new();
        let is_whole;
        {
            let state = read_lock(&self.state);
            is_whole = rows(&state, report, &mut runs, &mut garbage)?;
            let mut are_followed = true;
            let lines: Vec<_> = state.lines.iter().map(|(&line, of)| (line, of.clone())).collect();
            for (line, of) in lines {
                let chain = state.chain(line)?;
                for until in of.points.keys().copied().chain(of.pen.then_some(Epoch::MAX)) {
                    match names(&state, View { line, until, chain: &chain }, report) {
                        Err(Error::Corrupt(_)) => are_followed = false,
                        followed => followed?,
                    }
                }
            }
            if !are_followed {
                report
                    .lost("names could not be followed where others of their branch or snapshot cannot be read".into());
            }
        }
        self.blocks(runs, is_whole, repair, report)?;
        self.examine_pins(repair, self.is_cut()?, report)?;
        if repair && report.repaired {
            let mut state = write_lock(&self.state);
            for (stem, line, epoch) in garbage {
                let chain = state.chain(line)?;
                state.erase(&stem, epoch, View { line, until: epoch, chain: &chain })?;
            }
        }
        Ok(())
    }

    /// Each block belongs to one place of one chunk, lies where a segment reaches, and is counted: that is told if these are all that are named.
    fn blocks(&self, mut runs: Vec<(u64, u64, u64)>, are_all: bool, repair: bool, report: &mut Report) -> Result<()> {
        runs.sort_unstable();
        runs.dedup();
        let lengths = self.segments.lengths()?;
        let next = self.segments.next();
        let mut merged: Vec<(u64, u64, u64)> = Vec::new();
        for (first, end, place) in runs {
            if end > next {
                report.lost(format!("block {first} was never given out"));
            }
            match merged.last_mut() {
                Some((_, last, other)) if first < *last => {
                    if place != *other {
                        report.lost(format!("block {first} is named by two places"));
                    }
                    *last = end.max(*last);
                }
                _ => merged.push((first, end, place)),
            }
        }
        let mut used: BTreeMap<u64, u64> = BTreeMap::new();
        let mut lost = Vec::new();
        // Of each segment the first block and how many.
        let mut beyond: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for &(first, end, _) in &merged {
            *used.entry(first / SEGMENT).or_default() += end - first;
            // A segment ends with its last byte that was written, which may be within a run's last block.
            if lengths.get(&(first / SEGMENT)).is_none_or(|&length| (end - 1) % SEGMENT >= length) {
                let reach = lengths.get(&(first / SEGMENT)).copied().unwrap_or_default();
                let first = first.max(first / SEGMENT * SEGMENT + reach);
                beyond.entry(first / SEGMENT).or_insert((first, 0)).1 += end - first;
                lost.push((first, end));
            }
        }
        for (segment, (first, count)) in beyond {
            report.lost(format!("{count} blocks from block {first} on are beyond the end of segment {segment}"));
        }
        for (&segment, &length) in lengths.iter().filter(|&(_, &length)| length > SEGMENT) {
            // Older programs wrote over the end of a segment where the next went on in the same file. Nobody knows which is the newer.
            let (from, to) = ((segment + 1) * SEGMENT, segment * SEGMENT + length);
            if merged.iter().any(|&(first, end, _)| first < to && from < end) {
                report.lost(format!("what was written behind the end of segment {segment} may be missing in the next"));
            }
        }
        if self.is_cut()? {
            self.lose_what_was_given_back(&merged, report)?;
        }
        for &(first, count) in &read_lock(&self.state).lost {
            let end = first + count;
            let named = merged.iter().map(|&(from, to, _)| to.min(end).saturating_sub(from.max(first))).sum::<u64>();
            if named > 0 {
                lost.push((first, end));
                report.lost(format!("{named} blocks from block {first} on are lost: they were given back to the disk before the log was cut, or were zeros in a store that was copied sparsely then, or their segment ended before them"));
            }
        }
        if !lost.is_empty() {
            self.tell_whose(&lost, report)?;
        }
        report.blocks += merged.iter().map(|(first, end, _)| end - first).sum::<u64>();
        let mut state = write_lock(&self.state);
        for &(first, count) in &state.free {
            *used.entry(first / SEGMENT).or_default() += count;
            if merged.iter().any(|&(from, to, _)| first < to && from < first + count) {
                report.lost(format!("block {first} is free and in use"));
            }
        }
        let counted: BTreeMap<_, _> = state.used.iter().map(|(&segment, &count)| (segment, count)).collect();
        let segments: BTreeSet<_> = used.keys().chain(counted.keys()).copied().collect();
        for segment in segments {
            let (is, was) = (used.get(&segment).copied(), counted.get(&segment).copied());
            let (is, was) = (is.unwrap_or_default(), was.unwrap_or_default());
            if is != was && are_all {
                report.problems.push(format!("segment {segment} holds {is} blocks in use, not {was}"));
                if repair && report.repaired {
                    state.count(segment * SEGMENT, is as i64 - was as i64);
                }
            }
        }
        let free = state.free.clone();
        if repair && report.repaired {
            // Nothing names them any more.
            for (first, _) in std::mem::take(&mut state.lost) {
                state.layers.remove(&key::stem(b'y', first));
            }
        }
        drop(state);
        if repair && report.repaired {
            // What nothing names goes back to the disk: the gaps between what is named, within each segment.
            merged.extend(free.into_iter().map(|(first, count)| (first, first + count, 0)));
            merged.sort_unstable();
            for (&segment, &length) in &lengths {
                let end = segment * SEGMENT + length.min(SEGMENT);
                let mut at = segment * SEGMENT;
                for &(first, last, _) in merged.iter().filter(|run| run.0 / SEGMENT == segment) {
                    if first > at {
                        self.segments.give_back(at, first - at)?;
                    }
                    at = at.max(last);
                }
                if end > at {
                    self.segments.give_back(at, end - at)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the log was cut, now or by a repair that did not end.
    fn is_cut(&self) -> Result<bool> {
        damage::is_cut(&read_lock(&self.state).layers)
    }

    /// The log was cut: rows are back whose blocks may have been given back to the disk since. Those are written down, so that they are no zeros to anybody.
    fn lose_what_was_given_back(&self, named: &[(u64, u64, u64)], report: &mut Report) -> Result<()> {
        if !std::fs::File::open(&self.directory).is_ok_and(|store| platform::keeps_zeros(&store)) {
            report.lost("files that are back since the log was cut may read as zeros: it is not known of this disk that it tells what was given back to it".into());
            return Ok(());
        }
        let mut lost = Vec::new();
        for &(first, end, _) in named {
            // What cannot be read at all is told, and is no zeros.
            let holes = self.segments.holes(first, end).unwrap_or_default();
            lost.extend(holes.into_iter().map(|(from, to)| (from, to - from)));
        }
        lost.iter().for_each(|&(first, count)| self.segments.lose(first, count));
        write_lock(&self.state).lose(lost);
        Ok(())
    }
}

impl Report {
    /// Something that no repair brings back.
    pub(super) fn lost(&mut self, what: String) {
        self.problems.push(what);
        self.repaired = false;
    }
}

type Garbage = Vec<(Vec<u8>, key::LineId, Epoch)>;

/// Reads rows of a kind in order, and passes those over that cannot be read.
pub(super) struct Reading<'a> {
    state: &'a State,
    kind: u8,
    after: Vec<u8>,
    /// Whether all could be.
    is_whole: bool,
}

impl<'a> Reading<'a> {
    pub(super) fn of(state: &'a State, kind: u8) -> Self {
        Self { state, kind, after: vec![kind], is_whole: true }
    }

    pub(super) fn next(&mut self, report: &mut Report) -> Result<Option<Row>> {
        let next = match self.state.layers.next(&[self.kind], &self.after) {
            Err(Error::Corrupt(_)) => self.next_behind(report)?,
            next => next?,
        };
        if let Some((row, _)) = &next {
            self.after.clone_from(row);
        }
        Ok(next)
    }

    fn from(&self, number: u64) -> Result<Option<Row>> {
        self.state.layers.walk(&[self.kind], &key::stem(self.kind, number))?.next().transpose()
    }

    /// The first row of a later number that can be read. What a page of the database held are rows of numbers behind one another.
    fn next_behind(&mut self, report: &mut Report) -> Result<Option<Row>> {
        self.is_whole = false;
        let mut number = [0; 8];
        number.iter_mut().zip(&self.after[1..]).for_each(|(to, from)| *to = *from);
        let first = u64::from_be_bytes(number);
        // Those below `unread` cannot be read, from `read` on they can.
        let (mut unread, mut step) = (first, 1_u64);
        let mut read = loop {
            let Some(at) = unread.checked_add(step) else { break u64::MAX };
            match self.from(at) {
                Err(Error::Corrupt(_)) => (unread, step) = (at, step.saturating_mul(2)),
                found => {
                    found?;
                    break at;
                }
            }
        };
        while read - unread > 1 {
            let at = unread + (read - unread) / 2;
            match self.from(at) {
                Err(Error::Corrupt(_)) => unread = at,
                found => {
                    found?;
                    read = at;
                }
            }
        }
        let what = match self.kind {
            b'd' => "the names in directories",
            b'i' => "the attributes of inodes",
            b'c' => "the contents of inodes",
            b'x' => "the extended attributes of inodes",
            _ => return self.passed("some of what was noted of files below", report, read),
        };
        self.passed(&format!("{what} {first} to {unread}, or some of them,"), report, read)
    }

    fn passed(&self, what: &str, report: &mut Report, read: u64) -> Result<Option<Row>> {
        report.lost(format!("{what} cannot be read: the database is damaged there"));
        match self.from(read) {
            Err(Error::Corrupt(_)) => Ok(None),
            found => found,
        }
    }
}

/// Reads all versioned rows: they must decode, and somebody must see them. Gives whether all could be read.
fn rows(state: &State, report: &mut Report, runs: &mut Vec<(u64, u64, u64)>, garbage: &mut Garbage) -> Result<bool> {
    let mut is_whole = true;
    for kind in *b"dicx" {
        let mut reading = Reading::of(state, kind);
        while let Some((row, value)) = reading.next(report)? {
            report.rows += 1;
            let (stem, line, epoch) = key::split(&row)?;
            let sound = match kind {
                b'd' => Entry::decode(&value).map(drop),
                b'i' => Inode::decode(&value).map(drop),
                b'c' => Chunk::decode(&value).map(|chunk| note_runs(stem, &chunk, runs)),
                _ => Ok(()),
            };
            if let Err(error) = sound {
                report.lost(format!("a row of inode {}: {error}", key::number(stem)));
            }
            let next = match state.next_version(stem, line, epoch) {
                // Told as the next row.
                Err(Error::Corrupt(_)) => continue,
                next => next?.map(|(next, _)| next),
            };
            match state.lines.get(&line) {
                None => report.lost(format!("a row of line {line}, which is not there")),
                Some(of) if !of.needs(epoch, next) && !state.dead.iter().any(|&(dead, _)| dead == line) => {
                    report.problems.push(format!("a row of inode {} is seen by nobody", key::number(stem)));
                    garbage.push((stem.to_vec(), line, epoch));
                }
                Some(_) => {}
            }
        }
        is_whole &= reading.is_whole;
    }
    let mut reading = Reading::of(state, b'q');
    while let Some((row, value)) = reading.next(report)? {
        report.rows += 1;
        if value.len() != 8 || key::line_and_number(&row).is_err() {
            report.lost("a row of a file that is to be copied cannot be read".to_owned());
        }
    }
    let kinds = [
        (b'b', "the names in a directory below"),
        (b'h', "the fingerprints of a directory below"),
        (b'j', "what branches show of what is pinned, or a file's names below,"),
    ];
    for (kind, what) in kinds {
        let mut reading = Reading::of(state, kind);
        while let Some((row, value)) = reading.next(report)? {
            report.rows += 1;
            let sound = match kind {
                b'b' => Remembered::decode(&value).map(drop),
                b'j' if !matches!(value.len(), 1 | 8) => Err(Error::corrupt("a number is missing")),
                b'j' => Ok(()),
                _ => Fingerprints::decode(&value).map(drop),
            };
            if let Err(error) = sound {
                report.lost(format!("{what}: {error}"));
            }
            if !state.lines.contains_key(&key::be32(row.get(1..5).unwrap_or_default())) {
                report.lost(format!("{what} are of a base that is not there"));
            }
        }
    }
    Ok(is_whole)
}

/// The runs of blocks that a chunk names, each with the place that it holds: the same block elsewhere is another place.
fn note_runs(stem: &[u8], chunk: &Chunk, runs: &mut Vec<(u64, u64, u64)>) {
    let place = u64::from(crc32fast::hash(stem));
    let mut blocks: Vec<u64> = chunk.stored().map(|(block, _)| block).collect();
    blocks.sort_unstable();
    for block in blocks {
        match runs.last_mut() {
            Some((_, end, of)) if *end == block && *of == place && block % SEGMENT != 0 => *end += 1,
            _ => runs.push((block, block + 1, place)),
        }
    }
}

/// Follows the names of one state of the tree.
fn names(state: &State, view: View<'_>, report: &mut Report) -> Result<()> {
    let mut inodes = BTreeMap::new();
    for (stem, value) in state.all_seen(b"i", view)? {
        if let Ok(Some(inode)) = Inode::decode(&value) {
            inodes.insert(key::number(&stem), inode);
        }
    }
    let exists = |ino| ino == ROOT || ino >= LOWER || inodes.contains_key(&ino);
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    for (stem, value) in state.all_seen(b"d", view)? {
        let Ok(Some(entry)) = Entry::decode(&value) else { continue };
        let parent = key::number(&stem);
        *counts.entry(entry.ino).or_default() += 1;
        if !exists(parent) {
            report.lost(format!("a name is in directory {parent}, which is not there"));
        }
        if !exists(entry.ino) {
            report.lost(format!("a name in directory {parent} leads to inode {}, which is not there", entry.ino));
        }
    }
    for (ino, inode) in inodes {
        let names = counts.get(&ino).copied().unwrap_or_default();
        let expected = match inode.kind {
            Kind::Directory => 1,
            _ => inode.nlink,
        };
        // Names that the lower directory gives are not counted here.
        let removed = inode.nlink == 0 && names == 0;
        let sound = if inode.origin.is_some() || ino == ROOT { names <= expected } else { names == expected };
        if !sound && !removed {
            report.lost(format!("inode {ino} has {names} names, not {expected}"));
        }
    }
    Ok(())
}
