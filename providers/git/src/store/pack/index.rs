//! The `.idx` file (version 2): where in its pack an object lies.
//!
//! Small ones are read whole. Of large ones, only what a look-up needs is read: ids are evenly spread, so a guess is rarely
//! off by more than one read of 4 KiB. Nothing is mapped: a file that is cut short meanwhile must not kill the process.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use gix::{ObjectId, oid};
use rustix::io::Errno;
use sha1::{Digest, Sha1};

use super::bad::Bad;
use crate::store::files;

const MAGIC: [u8; 8] = [0xff, b't', b'O', b'c', 0, 0, 0, 2];
const FANOUT: u64 = 8;
const IDS: u64 = FANOUT + 1024;
/// Up to this size, an index is read whole at once, bytes.
const SMALL: u64 = 256 << 10;
/// Ids in one read of a look-up.
const WINDOW: u64 = 204;

/// An index file, open.
#[derive(Debug)]
pub(in crate::store) struct Index {
    /// None where all of it was read at once: a store has many small packs, and descriptors are few.
    file: Option<OwnedFd>,
    size: u64,
    fanout: Box<[u32; 256]>,
    /// All of it, once that pays.
    whole: OnceLock<Vec<u8>>,
    /// Whether that is what was once written, once that was looked at.
    sound: OnceLock<bool>,
    /// Look-ups that went to the file.
    asked: AtomicU32,
    /// The error number of the last read that failed; 0: none did.
    trouble: AtomicI32,
}

/// One line of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::store) struct IndexEntry {
    /// The object.
    pub(in crate::store) id: ObjectId,
    /// CRC-32 of its entry in the pack, header included.
    pub(in crate::store) crc: u32,
    /// Where its entry begins.
    pub(in crate::store) offset: u64,
}

fn be32(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(data.get(at..at + 4)?.try_into().ok()?))
}

impl Index {
    /// Checks the form of an index file; the message says what is wrong with it.
    pub(in crate::store) fn open(file: OwnedFd, size: u64) -> Result<Self, Bad> {
        if size <= SMALL {
            let mut all = vec![0; size as usize];
            let read = files::pread_full(&file, &mut all, 0)?;
            all.truncate(read);
            return Self::in_memory(all);
        }
        let mut head = vec![0; IDS as usize];
        let read = files::pread_full(&file, &mut head, 0)?;
        Self::checked(&head[..read], Some(file), size, OnceLock::new())
    }

    /// The same of what such a file holds, or is to hold.
    pub(in crate::store) fn in_memory(all: Vec<u8>) -> Result<Self, Bad> {
        let (head, size) = (all[..all.len().min(IDS as usize)].to_vec(), all.len() as u64);
        let this = Self::checked(&head, None, size, OnceLock::from(all))?;
        // Small mostly, so this costs less than opening it did.
        this.is_sound()?;
        Ok(this)
    }

    fn checked(head: &[u8], file: Option<OwnedFd>, size: u64, whole: OnceLock<Vec<u8>>) -> Result<Self, Bad> {
        if head.len() < IDS as usize {
            return Err("its index is too short".into());
        }
        if head[..8] != MAGIC {
            return Err("its index is not one of version 2".into());
        }
        let mut fanout = Box::new([0; 256]);
        let mut last = 0;
        for (slot, bytes) in fanout.iter_mut().zip(head[8..].chunks_exact(4)) {
            let count = be32(bytes, 0).unwrap_or(0);
            if count < last {
                return Err("its index is damaged: counts are out of order".into());
            }
            (*slot, last) = (count, count);
        }
        let (asked, trouble) = (AtomicU32::new(0), AtomicI32::new(0));
        let this = Self { file, size, fanout, whole, sound: OnceLock::new(), asked, trouble };
        let least = this.large_offsets() + 40;
        if size < least || !(size - least).is_multiple_of(8) {
            return Err("its index has the wrong size".into());
        }
        Ok(this)
    }

    /// One that lists nothing, for a pack that is read without its own.
    pub(in crate::store) fn nothing() -> Self {
        Self {
            file: None,
            size: 0,
            fanout: Box::new([0; 256]),
            whole: OnceLock::from(Vec::new()),
            sound: OnceLock::new(),
            asked: AtomicU32::new(0),
            trouble: AtomicI32::new(0),
        }
    }

    /// How many objects it lists.
    pub(in crate::store) fn count(&self) -> u64 {
        u64::from(self.fanout[255])
    }

    fn crcs(&self) -> u64 {
        IDS + 20 * self.count()
    }

    fn offsets(&self) -> u64 {
        self.crcs() + 4 * self.count()
    }

    fn large_offsets(&self) -> u64 {
        self.offsets() + 4 * self.count()
    }

    /// Reads `buf` from `at`; whether all of it was there.
    fn get(&self, at: u64, buf: &mut [u8]) -> bool {
        if let Some(whole) = self.whole.get() {
            let range = usize::try_from(at).ok().and_then(|at| whole.get(at..at.checked_add(buf.len())?));
            range.map(|range| buf.copy_from_slice(range)).is_some()
        } else {
            self.read(at, buf) == Some(buf.len())
        }
    }

    /// Reads from the file; none if that fails.
    fn read(&self, at: u64, buf: &mut [u8]) -> Option<usize> {
        let read = files::pread_full(self.file.as_ref()?, buf, at);
        read.inspect_err(|errno| self.trouble.store(errno.raw_os_error(), Ordering::Relaxed)).ok()
    }

    /// The error of a read that failed. What was not found then may be there all the same.
    pub(in crate::store) fn trouble(&self) -> Option<Errno> {
        let errno = self.trouble.load(Ordering::Relaxed);
        (errno != 0).then(|| Errno::from_raw_os_error(errno))
    }

    /// Reads the whole file once so many look-ups were made that it is cheaper than going on one by one.
    fn count_look_up(&self) {
        if self.whole.get().is_none() {
            let asked = self.asked.fetch_add(1, Ordering::Relaxed);
            if u64::from(asked) * WINDOW * 20 > self.size {
                self.load();
            }
        }
    }

    fn load(&self) {
        if self.whole.get().is_none() {
            let mut all = vec![0; usize::try_from(self.size).unwrap_or(0)];
            if let Some(read) = self.read(0, &mut all) {
                all.truncate(read);
                let _ = self.whole.set(all);
            }
        }
    }

    /// Where in the pack the object lies; none if it is not in it.
    pub(in crate::store) fn find(&self, id: &oid) -> Option<u64> {
        self.position(id).and_then(|at| self.offset(at))
    }

    fn position(&self, id: &oid) -> Option<u64> {
        let bytes = id.as_bytes();
        let first = usize::from(id.first_byte());
        let mut low = if first == 0 { 0 } else { u64::from(self.fanout[first - 1]) };
        let mut high = u64::from(self.fanout[first]);
        self.count_look_up();
        if let Some(whole) = self.whole.get() {
            let ids = whole.get(IDS as usize..self.crcs() as usize)?;
            while low < high {
                let middle = low.midpoint(high);
                match ids.get(middle as usize * 20..middle as usize * 20 + 20)?.cmp(bytes) {
                    std::cmp::Ordering::Less => low = middle + 1,
                    std::cmp::Ordering::Equal => return Some(middle),
                    std::cmp::Ordering::Greater => high = middle,
                }
            }
            return None;
        }
        let mut window = [0; WINDOW as usize * 20];
        while low < high {
            // Where the id would be if ids were spread evenly between `low` and `high`: exact for the whole bucket,
            // and good enough after one miss.
            let fraction = u64::from(u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]));
            let bucket_low = if first == 0 { 0 } else { u64::from(self.fanout[first - 1]) };
            let bucket = u64::from(self.fanout[first]) - bucket_low;
            let guess = bucket_low + ((bucket * fraction) >> 32);
            let start = if (low..high).contains(&guess) { guess } else { low.midpoint(high) };
            let start = start.saturating_sub(WINDOW / 2).max(low);
            let len = WINDOW.min(high - start);
            let window = &mut window[..len as usize * 20];
            if !self.get(IDS + start * 20, window) {
                return None;
            }
            if &window[..20] > bytes {
                high = start;
            } else if &window[window.len() - 20..] < bytes {
                low = start + len;
            } else {
                let ids = window.chunks_exact(20);
                return ids.zip(start..).find(|(id, _)| *id == bytes).map(|(_, at)| at);
            }
        }
        None
    }

    fn offset(&self, at: u64) -> Option<u64> {
        let mut small = [0; 4];
        if !self.get(self.offsets() + at * 4, &mut small) {
            return None;
        }
        let small = u32::from_be_bytes(small);
        if small & 0x8000_0000 == 0 {
            return Some(u64::from(small));
        }
        let mut large = [0; 8];
        let place = self.large_offsets() + u64::from(small & 0x7fff_ffff) * 8;
        (place + 8 + 40 <= self.size && self.get(place, &mut large)).then(|| u64::from_be_bytes(large))
    }

    /// All entries, ordered by id. They can be relied on: the whole file is checked first.
    ///
    /// # Errors
    /// If it cannot be read, or is not what was once written.
    pub(in crate::store) fn entries(&self) -> Result<Vec<IndexEntry>, Bad> {
        if !self.is_sound()? {
            return Err("its index is damaged: the checksum is another".into());
        }
        self.listed().ok_or_else(|| "its index is damaged: it points outside of itself".into())
    }

    fn listed(&self) -> Option<Vec<IndexEntry>> {
        let whole = self.whole.get()?;
        let (crcs, ids) = (self.crcs() as usize, whole.get(IDS as usize..self.crcs() as usize)?);
        let mut out = Vec::with_capacity(ids.len() / 20);
        for (at, id) in ids.chunks_exact(20).enumerate() {
            let crc = be32(whole, crcs + at * 4)?;
            out.push(IndexEntry { id: ObjectId::Sha1(id.try_into().ok()?), crc, offset: self.offset(at as u64)? });
        }
        Some(out)
    }

    /// Whether the file is what was once written: its own checksum. Reads all of it, the first time.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(in crate::store) fn is_sound(&self) -> rustix::io::Result<bool> {
        if let Some(sound) = self.sound.get() {
            return Ok(*sound);
        }
        self.load();
        let Some(whole) = self.whole.get() else { return Err(self.trouble().unwrap_or(Errno::IO)) };
        let sound = whole
            .split_last_chunk::<20>()
            .is_some_and(|(body, sum)| self.size == body.len() as u64 + 20 && Sha1::digest(body)[..] == sum[..]);
        Ok(*self.sound.get_or_init(|| sound))
    }

    /// Whether it is, as far as it was read, these bytes.
    pub(in crate::store) fn is(&self, bytes: &[u8]) -> bool {
        self.whole.get().is_some_and(|whole| whole == bytes)
    }

    /// Whether it is known not to be what was once written. Small ones are looked at when they are opened, others where something
    /// hangs on them.
    pub(in crate::store) fn is_known_damaged(&self) -> bool {
        self.sound.get() == Some(&false)
    }
}

/// Writes an index for `entries`, which are put in order, of the pack with the checksum `pack`.
pub(in crate::store) fn encode(entries: &mut [IndexEntry], pack: &[u8; 20]) -> Vec<u8> {
    entries.sort_unstable();
    let mut out = Vec::with_capacity(IDS as usize + entries.len() * 28 + 40);
    out.extend_from_slice(&MAGIC);
    let mut counted = 0;
    for first in 0..=u8::MAX {
        counted += entries[counted..].partition_point(|entry| entry.id.first_byte() <= first);
        out.extend_from_slice(&(counted as u32).to_be_bytes());
    }
    entries.iter().for_each(|entry| out.extend_from_slice(entry.id.as_slice()));
    entries.iter().for_each(|entry| out.extend_from_slice(&entry.crc.to_be_bytes()));
    let mut large = Vec::new();
    for entry in &*entries {
        let small = u32::try_from(entry.offset).ok().filter(|offset| offset & 0x8000_0000 == 0).unwrap_or_else(|| {
            large.push(entry.offset);
            0x8000_0000 | (large.len() - 1) as u32
        });
        out.extend_from_slice(&small.to_be_bytes());
    }
    large.iter().for_each(|offset| out.extend_from_slice(&offset.to_be_bytes()));
    out.extend_from_slice(pack);
    let sum = Sha1::digest(&out);
    out.extend_from_slice(&sum);
    out
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use gix::ObjectId;
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::{Bad, Index, IndexEntry, encode};

    fn open(bytes: &[u8]) -> Result<Index, Bad> {
        let file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut &file, bytes).unwrap();
        Index::open(OwnedFd::from(file), bytes.len() as u64)
    }

    fn entries(count: u32) -> Vec<IndexEntry> {
        (0..count)
            .map(|n| IndexEntry {
                id: crate::store::hash(gix::objs::Kind::Blob, &n.to_le_bytes()),
                crc: n,
                offset: if n % 3 == 0 { u64::from(n) << 20 | 5 } else { u64::from(n) },
            })
            .collect()
    }

    #[test]
    fn every_object_is_found_in_small_and_large_indexes() {
        for count in [0, 1, 255, 20_000] {
            let mut wanted = entries(count);
            let bytes = encode(&mut wanted, &[7; 20]);
            let index = open(&bytes).unwrap();
            assert_eq!(index.count(), u64::from(count));
            for entry in &wanted {
                assert_eq!(index.find(&entry.id), Some(entry.offset));
            }
            for n in 0..2000_u32 {
                let other = crate::store::hash(gix::objs::Kind::Tree, &n.to_le_bytes());
                assert_eq!(open(&bytes).unwrap().find(&other), None);
            }
            assert_eq!(index.entries().unwrap(), wanted);
            assert!(index.is_sound().unwrap());
        }
    }

    #[test]
    fn damage_is_an_answer_not_a_panic() {
        let good = encode(&mut entries(3), &[7; 20]);
        for cut in 0..good.len() {
            assert!(open(&good[..cut]).is_err(), "{cut}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x81;
            if let Ok(index) = open(&bad) {
                assert!(!index.is_sound().unwrap());
                for entry in entries(3) {
                    let _ = index.find(&entry.id);
                }
                assert!(index.is_known_damaged() && index.entries().is_err());
                let _ = index.listed();
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_open_or_not(body in vec(any::<u8>(), 0..400), fanout in any::<u8>()) {
            let mut bytes = super::MAGIC.to_vec();
            for n in 0..256_u32 {
                bytes.extend_from_slice(&(n * u32::from(fanout % 8) / 255).to_be_bytes());
            }
            bytes.extend_from_slice(&body);
            if let Ok(index) = open(&bytes) {
                let _ = index.find(&ObjectId::Sha1([body.first().copied().unwrap_or(0); 20]));
                if let Some(all) = index.listed() {
                    prop_assert_eq!(all.len() as u64, index.count());
                }
                prop_assert!(index.count() < 100);
            }
        }
    }
}
