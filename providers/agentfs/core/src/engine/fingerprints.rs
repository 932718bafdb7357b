//! What files below held when a base was taken, as hashes: written down behind the base, after the names, so that a snapshot knows a file again whose times were
//! moved or that was replaced by an equal one.
//!
//! A hash covers contents and extended attributes but SELinux's, of a link where it points. It is noted of what had not changed by its turn, and taken over from an earlier base where the file is the same.
//! What is taken over is of this boot: after a power cut a file can have the attributes that it had, and other contents. Before anything is hashed the disk has it (`on_disk`).
//! A file is hashed when whatever is changed in it from then on bears a later change time, and counts if that time is the same afterwards. One that bears a time to come is another as soon as it is changed.

use std::collections::HashMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use crate::engine::Engine;
use crate::engine::objects::{AT_FIRST, AT_LAST};
use crate::engine::pinning::Pinning;
use crate::engine::remembered::row_of;
use crate::error::{Error, Result};
use crate::lower::{Found, Listed, join, split, xattrs};
use crate::rows::key::{self, LineId};
use crate::rows::value::{Origin, Reader, Writer};
use crate::types::{Kind, Time};
use crate::{lock, platform, read_lock, write_lock};

/// Larger files are not hashed, in bytes.
const LARGEST: u64 = 64 << 20;
/// What a file may have to be small: they are worth more of what is read for a base than others are.
const SMALL: u64 = 1 << 20;
/// What is read for a base, in bytes: of small files, and of others.
const READ: [u64; 2] = [2 << 30, 1 << 30];
/// About how large a row becomes, in bytes: two fill a page of the base.
const ROW: usize = 1900;
/// Rows that are written while others wait.
const STEP: usize = 128;
/// Earlier bases that are looked at.
const EARLIER: usize = 4;
/// Files of which it is remembered in memory what they were found to hold.
const HASHES: usize = 1 << 16;

/// The attribute that no hash is of: SELinux gives every file one, by where it lies, and no mount of ours shows it to SELinux.
pub(super) const LABEL: &[u8] = b"security.selinux";

pub(crate) type Hash = [u8; 32];

/// A file or link below, as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
    pub(crate) hash: Hash,
}

/// Files and links of a directory below: a few, with names that follow each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fingerprints {
    /// The directory's number and birth.
    of: (u64, Time),
    files: Vec<Fingerprint>,
}

/// What files were found to hold, by device and inode: size, times of modification and change, how often what is below had been taken to the disk, hash.
pub(crate) type Hashes = HashMap<(u64, u64), (u64, Time, Time, u64, Hash)>;

/// What of a fingerprint is not its name is smaller, in bytes.
const ENTRY: usize = 110;

/// What is told of what a file or link below holds.
pub(super) enum Told {
    /// The file, if it had to be opened for that.
    Hash(Hash, Option<File>),
    /// It is too large, or all is read that may be.
    TooMuch,
    /// It is being changed, is another by now, or cannot be read.
    Nothing,
}

/// The row of the fingerprints from a name on.
pub(super) fn row_from(base: LineId, directory: &[u8], first: &[u8]) -> Vec<u8> {
    [&row_of(b'h', base, directory), [0].as_slice(), first].concat()
}

/// The rows of fingerprints in a directory, which are by name.
pub(super) fn rows_of(
    base: LineId,
    directory: &[u8],
    of: (u64, Time),
    files: Vec<Fingerprint>,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rows = Vec::new();
    let mut files = files.into_iter().peekable();
    while let Some(first) = files.next() {
        let row = row_from(base, directory, &first.name);
        let mut value = Fingerprints::header(of);
        first.write_to(&mut value);
        while let Some(next) = files.next_if(|next| value.0.len() + next.name.len() + ENTRY < ROW) {
            next.write_to(&mut value);
        }
        rows.push((row, value.0));
    }
    rows
}

/// What a link has for a hash. No file has it: the target has a byte before it, which does not count for its size.
pub(crate) fn hash_of_target(target: &[u8]) -> Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[0]).update(target);
    hasher.finalize().into()
}

impl Fingerprints {
    /// What a row begins with.
    fn header(of: (u64, Time)) -> Writer {
        let mut writer = Writer::default();
        writer.number(of.0).time(of.1);
        writer
    }

    pub(crate) fn decode(row: &[u8]) -> Result<Self> {
        let mut reader = Reader(row);
        let mut prints = Self { of: (reader.number()?, reader.time()?), files: Vec::new() };
        while !reader.0.is_empty() {
            prints.files.push(Fingerprint {
                name: reader.bytes()?.to_vec(),
                ino: reader.number()?,
                mode: reader.small()?,
                uid: reader.small()?,
                gid: reader.small()?,
                size: reader.number()?,
                mtime: reader.time()?,
                ctime: reader.time()?,
                btime: reader.time()?,
                hash: {
                    let (hash, rest) = reader.0.split_first_chunk().ok_or_else(|| Error::corrupt("a hash is short"))?;
                    reader.0 = rest;
                    *hash
                },
            });
        }
        Ok(prints)
    }

    pub(super) fn hashes(&self) -> impl Iterator<Item = &Hash> {
        self.files.iter().map(|file| &file.hash)
    }

    pub(super) fn into_files(self) -> impl Iterator<Item = Fingerprint> {
        self.files.into_iter()
    }
}

impl Fingerprint {
    fn write_to(&self, writer: &mut Writer) {
        writer.bytes(&self.name).number(self.ino).number(u64::from(self.mode)).number(u64::from(self.uid));
        writer.number(u64::from(self.gid)).number(self.size).time(self.mtime).time(self.ctime).time(self.btime);
        writer.0.extend_from_slice(&self.hash);
    }

    /// Whether it shows as what is found now.
    pub(crate) fn shows_as(&self, now: &Found) -> bool {
        (self.mode, self.uid, self.gid) == (now.mode, now.uid, now.gid)
    }

    /// Whether it is of that file as it was then.
    pub(crate) fn is_of(&self, origin: &Origin) -> bool {
        origin.device == 0
            && (self.ino, self.size, self.mtime, self.ctime) == (origin.ino, origin.size, origin.mtime, origin.ctime)
    }

    /// Whether it is of what is found now, to all that attributes tell.
    pub(crate) fn is_of_found(&self, found: &Found) -> bool {
        (self.ino, self.size, self.btime) == (found.ino, found.size, found.btime)
            && (self.mtime, self.ctime) == (found.mtime, found.ctime)
    }

    /// What was found when it was taken, if what is found now is another of the same contents.
    pub(crate) fn as_found(&self, now: &Found) -> Found {
        Found {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            ino: self.ino,
            mtime: self.mtime,
            ctime: self.ctime,
            btime: self.btime,
            ..now.clone()
        }
    }
}

impl Engine {
    /// What a thread does behind a base, and behind one behind which a kill ended that.
    pub(crate) fn keep_below(&self, base: LineId) {
        // What is not written down is not known, as it is of what changes before it is its turn.
        let named = self.remember_names(base);
        platform::stand_back();
        let _ = self.fingerprint_and_pin(base, matches!(named, Ok(true)));
    }

    /// Writes down what the files hold in directories whose names were written down. Costs reading those that no earlier base knows, up to a limit. Ends early when
    /// the base is gone or the store is being closed. What they name is pinned, if there is room for it.
    pub(crate) fn take_fingerprints(&self, base: LineId) -> Result<()> {
        self.fingerprint_and_pin(base, true)
    }

    /// `named`: all names are written down that can be. Else the next who opens the store goes on.
    fn fingerprint_and_pin(&self, base: LineId, named: bool) -> Result<()> {
        // What the disk does not have yet is not what a power cut leaves, and a mapping that is shared goes on changing it under the same time.
        self.have_below_on_disk_as_it_is(base)?;
        let mut pinning = self.begin_pinning(base);
        let whole = self.fingerprint_directories(base, &mut pinning);
        if let Some(pinning) = pinning {
            self.end_pinning(base, named && matches!(whole, Ok(true)), pinning.all_are_named());
        }
        whole.map(drop)
    }

    /// Gives whether it is done with all.
    fn fingerprint_directories(&self, base: LineId, pinning: &mut Option<Pinning>) -> Result<bool> {
        let earlier: Vec<LineId> = {
            let state = read_lock(&self.state);
            let bases = state.lines.iter().rev().filter(|&(&id, line)| id < base && line.parent.is_none());
            bases.map(|(&id, _)| id).collect()
        };
        let earlier: Vec<LineId> = earlier
            .into_iter()
            .filter(|&earlier| self.is_told_by_attributes(earlier).unwrap_or(false))
            .take(EARLIER)
            .collect();
        let mut left = READ;
        if self.keep_stores(base, &earlier, AT_FIRST, (&mut left, pinning))?.is_break() {
            return Ok(false);
        }
        let mut next = self.next_remembered(base, None)?;
        while let Some((path, _)) = next {
            if self.fingerprint_directory(base, &earlier, &path, (&mut left, pinning))?.is_break() {
                return Ok(false);
            }
            next = self.next_remembered(base, Some(&path))?;
        }
        Ok(self.keep_stores(base, &earlier, AT_LAST, (&mut left, pinning))?.is_continue())
    }

    /// Breaks where the whole is over.
    fn fingerprint_directory(
        &self,
        base: LineId,
        earlier: &[LineId],
        path: &[u8],
        (left, pinning): (&mut [u64; 2], &mut Option<Pinning>),
    ) -> Result<ControlFlow<()>> {
        // Until they are written down.
        let _deciding = self.decide();
        let Some(directory) = self.remembered(base, path)? else { return Ok(ControlFlow::Continue(())) };
        // Before a kill, or a full disk, as far as it came: what was changed since then has its fingerprint only there.
        let noted = self.last_fingerprinted(base, path)?;
        let is_noted = |name: &Vec<u8>| noted.as_ref().is_some_and(|noted| name <= noted);
        let of = (directory.ino, directory.birth);
        let mut files = Vec::new();
        let mut several = Vec::new();
        let wanted = |(name, _, kind): &&Listed| matches!(kind, Kind::File | Kind::Symlink) && !is_noted(name);
        for (name, ino, kind) in directory.names.iter().filter(wanted) {
            let Some(time) = self.base_seen(&read_lock(&self.state), base).filter(|_| !self.is_stopped()) else {
                return Ok(ControlFlow::Break(()));
            };
            let below = join(path, name);
            // One that cannot be read is none of this user's.
            let Ok(Some(found)) = self.lower.find(&below) else { continue };
            if (found.kind, found.ino, found.device) != (*kind, *ino, 0) || self.lower.is_later(found.ctime, time) {
                continue;
            }
            let Told::Hash(hash, open) = self.told_of(earlier, &below, &found, left)? else { continue };
            if let Some(pinning) = pinning {
                self.pin((&below, &found, &hash), open, pinning);
            }
            if found.nlink > 1 {
                let names = u64::from(found.nlink).to_be_bytes().to_vec();
                several.push((key::of_line(b'j', base, Some(found.ino)), names));
            }
            let Found { ino, mode, uid, gid, size, mtime, ctime, btime, .. } = found;
            let name = name.clone();
            files.push(Fingerprint { name, ino, mode, uid, gid, size, mtime, ctime, btime, hash });
        }
        if let Some(pinning) = pinning {
            // What was changed since it was looked at branches have shown as it is by then, and go on to.
            let is_so_still = |file: &Fingerprint| {
                let now = self.lower.find(&join(path, &file.name));
                matches!(now, Ok(Some(now)) if file.is_of_found(&now))
            };
            let noted = files.len();
            files.retain(is_so_still);
            pinning.count_unnamed(noted - files.len());
        }
        // Before the fingerprints, which count.
        let mut rows = several;
        rows.extend(rows_of(base, path, of, files));
        Ok(if self.put_behind(base, &rows)? { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    }

    /// What a file or link that was found below holds, by what earlier bases know of it or by reading it, which `left` is told of.
    pub(super) fn told_of(&self, earlier: &[LineId], below: &[u8], found: &Found, left: &mut [u64; 2]) -> Result<Told> {
        for &base in earlier {
            let before = self.fingerprint(base, below)?.map(|(print, _)| print);
            if let Some(print) = before.filter(|print| print.is_of_found(found)) {
                return Ok(Told::Hash(print.hash, None));
            }
        }
        if found.kind == Kind::Symlink {
            let Ok(Some(target)) = self.lower.target(below) else { return Ok(Told::Nothing) };
            return Ok(match self.lower.find(below) {
                Ok(Some(now)) if now.is_as(found) => Told::Hash(hash_of_target(&target), None),
                _ => Told::Nothing,
            });
        }
        let left = &mut left[usize::from(found.size > SMALL)];
        match left.checked_sub(found.size).filter(|_| found.size <= LARGEST) {
            Some(rest) => *left = rest,
            None => return Ok(Told::TooMuch),
        }
        let Ok(Some(file)) = self.lower.open_file(below) else { return Ok(Told::Nothing) };
        Ok(match self.hash_of(&file) {
            Ok(Some((hashed, hash))) if hashed.is_as(found) => Told::Hash(hash, Some(file)),
            _ => Told::Nothing,
        })
    }

    /// Writes rows down that are of a base. False: nobody sees that any more.
    pub(super) fn put_behind(&self, base: LineId, rows: &[(Vec<u8>, Vec<u8>)]) -> Result<bool> {
        // In small steps, and with nothing more to do in them: others wait meanwhile, for a thread of the lowest priority.
        for rows in rows.chunks(STEP) {
            self.room_for_rows()?;
            let mut state = write_lock(&self.state);
            if self.base_seen(&state, base).is_none() {
                return Ok(false);
            }
            for (row, value) in rows {
                state.layers.put(row, value.clone());
            }
            drop(state);
            self.wake();
        }
        Ok(true)
    }

    /// The last name in a directory of which a fingerprint is written down: they are by name.
    fn last_fingerprinted(&self, base: LineId, path: &[u8]) -> Result<Option<Vec<u8>>> {
        let last = [0xff; 256];
        let row = read_lock(&self.state).layers.last(&row_from(base, path, b""), &row_from(base, path, &last))?;
        let Some((_, row)) = row else { return Ok(None) };
        Ok(Fingerprints::decode(&row)?.files.pop().map(|file| file.name))
    }

    /// What is written down of a file below, and of the directory that it was in: number and birth.
    pub(crate) fn fingerprint(&self, base: LineId, path: &[u8]) -> Result<Option<(Fingerprint, (u64, Time))>> {
        let (above, name) = split(path);
        let state = read_lock(&self.state);
        let row = state.layers.last(&row_from(base, above, b""), &row_from(base, above, name))?;
        drop(state);
        let Some((_, row)) = row else { return Ok(None) };
        let prints = Fingerprints::decode(&row)?;
        let of = prints.of;
        Ok(prints.files.into_iter().find(|file| file.name == name).map(|file| (file, of)))
    }

    /// What a file is, and the hash of what it holds as that; `None`: it is too large, or being changed. Costs reading it, once for each change.
    pub(crate) fn hash_of(&self, file: &File) -> Result<Option<(Found, Hash)>> {
        let found = self.lower.find_open(file)?;
        if found.kind != Kind::File || found.size > LARGEST {
            return Ok(None);
        }
        let name = (found.device, found.ino);
        let times = self.on_disk.times();
        let was = lock(&self.hashes).get(&name).copied();
        if let Some((size, mtime, ctime, then, hash)) = was
            && (size, mtime, ctime, then) == (found.size, found.mtime, found.ctime, times)
        {
            return Ok(Some((found, hash)));
        }
        let whole_seconds = found.ctime.nanos == 0 && found.mtime.nanos == 0;
        let changed = if whole_seconds { Time { nanos: 999_999_999, ..found.ctime } } else { found.ctime };
        if !self.lower.is_to_come(changed) && !platform::settle(changed) {
            return Ok(None);
        }
        let Some(hash) = self.hash(file, found.size)? else { return Ok(None) };
        if !self.lower.find_open(file)?.is_as(&found) {
            return Ok(None);
        }
        let mut hashes = lock(&self.hashes);
        if hashes.len() >= HASHES {
            hashes.clear();
        }
        hashes.insert(name, (found.size, found.mtime, found.ctime, times, hash));
        Ok(Some((found, hash)))
    }

    fn hash(&self, file: &File, size: u64) -> Result<Option<Hash>> {
        let mut hasher = blake3::Hasher::new();
        let mut bytes = vec![0; (1 << 20).min(size as usize)];
        let mut at = 0;
        while at < size {
            if self.is_stopped() {
                return Ok(None);
            }
            let rest = usize::try_from(size - at).unwrap_or(usize::MAX).min(bytes.len());
            match file.read_exact_at(&mut bytes[..rest], at) {
                Ok(()) => hasher.update(&bytes[..rest]),
                // It was cut meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(Error::io("reading a file below")(error)),
            };
            at += rest as u64;
        }
        let mut xattrs = xattrs(file)?;
        xattrs.retain(|(name, _)| name != LABEL);
        if xattrs.is_empty() {
            return Ok(Some(hasher.finalize().into()));
        }
        xattrs.sort_unstable();
        let mut whole = Writer::default();
        whole.bytes(hasher.finalize().as_bytes());
        for (name, value) in &xattrs {
            whole.bytes(name).bytes(value);
        }
        Ok(Some(blake3::hash(&whole.0).into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_come_back_as_they_were() {
        let file = |name: &[u8], byte| Fingerprint {
            name: name.to_vec(),
            ino: u64::MAX,
            mode: 0o4755,
            uid: u32::MAX,
            gid: 0,
            size: 1 << 40,
            mtime: Time { secs: -1, nanos: 999_999_999 },
            ctime: Time { secs: 5, nanos: 1 },
            btime: Time::default(),
            hash: [byte; 32],
        };
        let prints = Fingerprints { of: (7, Time::default()), files: vec![file(b"a\xff", 1), file(b"b", 255)] };
        let mut row = Fingerprints::header(prints.of);
        prints.files.iter().for_each(|file| file.write_to(&mut row));
        let row = row.0;
        assert_eq!(Fingerprints::decode(&row).unwrap(), prints);
        assert!(matches!(Fingerprints::decode(&row[..row.len() - 1]), Err(Error::Corrupt(_))));
    }
}
