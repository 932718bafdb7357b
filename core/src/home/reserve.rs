//! What is kept in `$AH_HOME` to be given up when its disk is full: room for removals and gc, and for what a hook has to say.

use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use ah_plugin_api::{Durability, Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::Home;
use crate::fsio;
use crate::settings::Settings;

/// The files that are given up on a full disk. Those after the first are empty, for one that takes no more files.
const RESERVES: [&str; 8] =
    ["reserve", "reserve-2", "reserve-3", "reserve-4", "reserve-5", "reserve-6", "reserve-7", "reserve-8"];
/// Bytes of the first: a few blocks, for a few lines and small files.
const RESERVE: usize = 64 << 10;
/// Given up, once, for what a hook has to say on a full disk: a line of the timeline, or the log and its folder. Bytes.
const HOOKS_RESERVE: (&str, usize) = ("reserve-hooks", 16 << 10);
/// Who waits for room looks so often whether it has come.
const PAUSE: Duration = Duration::from_millis(100);
/// And has the filesystem bring to disk so often what was removed, which may take long.
const SYNC: Duration = Duration::from_secs(3);

impl Home {
    /// Keeps room for removals, gc and what a hook has to say, should the disk be full then. Best effort.
    pub(crate) fn keep_reserve(&self) {
        for (name, size) in reserves() {
            let path = self.path.join(name);
            // An older version kept blanks.
            let is_blank = || fs::read(&path).is_ok_and(|bytes| bytes.iter().all(|byte| *byte == b' '));
            if !path.exists() || size > 0 && is_blank() {
                let _ = fsio::replace(&path, &random(size), Durability::Instant);
            }
        }
    }

    /// Writes down what a hook has to say: if there is no room for it, again with what is kept for that given up.
    pub(crate) fn with_hooks_reserve<T>(&self, run: impl Fn() -> Result<T>) -> Result<T> {
        match run() {
            Err(error) if lacks_room(&error) && fs::remove_file(self.path.join(HOOKS_RESERVE.0)).is_ok() => run(),
            done => done,
        }
    }

    /// Why hardly more than what is kept for it can be written on its disk, where that is full; none also where that cannot be tried.
    pub(crate) fn full(&self) -> Option<Error> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        // What was given up is room that is spoken for.
        let given_up = reserves().filter(|(name, _)| !self.path.join(name).exists()).map(|(_, size)| size);
        let room = random(RESERVE + given_up.sum::<usize>());
        let trial = || fs::File::from(rustix::fs::open(&self.path, flags, Mode::RUSR)?).write_all(&room);
        let error = Error::from_io(format!("the disk of AH_HOME ({}) is full", self.path.display()), &trial().err()?);
        lacks_room(&error).then_some(error)
    }

    /// Does what is to free a full disk: if it fails for want of room on one, again with a part of that given up, as long as there is one. What is not
    /// needed now is there for the next.
    pub(crate) fn with_reserve<T>(&self, run: impl Fn() -> Result<T>) -> Result<T> {
        let give_up = || {
            let takes_no_file = rustix::fs::statvfs(&self.path).is_ok_and(|on| on.f_files > 0 && on.f_favail == 0);
            let (bytes, files) = RESERVES.split_at(1);
            let (first, then) = if takes_no_file { (files, bytes) } else { (bytes, files) };
            first.iter().chain(then).any(|name| fs::remove_file(self.path.join(name)).is_ok())
        };
        for _ in RESERVES {
            match run() {
                Err(error) if lacks_room(&error) && give_up() => {}
                done => return done,
            }
        }
        run()
    }

    /// Does what wants room behind a removal: some filesystems give it back by and by. Nothing is begun once patience is over; what takes long by then is
    /// waited for.
    pub(crate) fn once_there_is_room<T>(&self, settings: &Settings, run: impl Fn() -> Result<T>) -> Result<T> {
        let (since, patience) = (Instant::now(), settings.patience_left());
        let mut synced: Option<Instant> = None;
        loop {
            match run() {
                Err(error) if lacks_room(&error) && since.elapsed() < patience && !settings.observer.cancelled() => {}
                done => return done,
            }
            // As soon as the removal is on disk.
            if synced.is_none_or(|at| at.elapsed() >= SYNC) {
                let _ = fs::File::open(&self.path).map(rustix::fs::syncfs);
                synced = Some(Instant::now());
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// All that is given up, with its size in bytes.
fn reserves() -> impl Iterator<Item = (&'static str, usize)> {
    let sizes = std::iter::once(RESERVE).chain(std::iter::repeat(0));
    RESERVES.into_iter().zip(sizes).chain([HOOKS_RESERVE])
}

/// Filesystems that compress would keep no room for blanks, nor those that keep the same once for what is in another file, too. It need not be secret, and so
/// much of the system's own random numbers would be waited for (SplitMix64, Steele et al. 2014).
fn random(size: usize) -> Vec<u8> {
    let mut state = getrandom::u64().unwrap_or_default();
    let mut bytes = vec![0; size];
    for part in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        part.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..part.len()]);
    }
    bytes
}

/// Whether a disk had no room. Memory and descriptors are used up without that, and no file that goes gives any back.
pub(crate) fn lacks_room(error: &Error) -> bool {
    let others = [Errno::NOMEM, Errno::NFILE, Errno::MFILE].map(Errno::raw_os_error);
    error.kind == ErrorKind::ResourceExhausted && !error.errno.is_some_and(|errno| others.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn blanks_take_no_room_everywhere_and_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(&dir.path().join("home"), None).unwrap();
        let first = home.join(RESERVES[0]);
        fs::write(&first, vec![b' '; RESERVE]).unwrap();
        home.keep_reserve();
        let kept = fs::read(&first).unwrap();
        assert!(kept.len() == RESERVE && kept.iter().any(|byte| *byte != b' '));
        home.keep_reserve();
        assert_eq!(fs::read(&first).unwrap(), kept);
    }

    #[test]
    fn nothing_in_what_is_kept_is_there_twice() {
        let (one, other) = (random(RESERVE), random(HOOKS_RESERVE.1));
        let parts: BTreeSet<&[u8]> = one.chunks(8).chain(other.chunks(8)).collect();
        assert_eq!(parts.len() * 8, RESERVE + HOOKS_RESERVE.1);
        assert!(random(0).is_empty());
    }

    #[test]
    fn what_is_kept_for_a_full_disk_is_given_up_for_that_alone() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(&dir.path().join("home"), None).unwrap();
        home.keep_reserve();
        let left = |errno: Errno| {
            let fails = || Err::<(), _>(Error::from_io("cannot remove", &errno.into()));
            assert_eq!(home.with_reserve(fails).unwrap_err().kind, ErrorKind::ResourceExhausted);
            assert_eq!(home.with_hooks_reserve(fails).unwrap_err().kind, ErrorKind::ResourceExhausted);
            let is_there = |name: &&str| home.join(name).exists();
            (RESERVES.iter().filter(|name| is_there(name)).count(), is_there(&HOOKS_RESERVE.0))
        };
        assert_eq!([Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(left), [(8, true); 3]);
        assert_eq!(left(Errno::NOSPC), (0, false));
    }
}
