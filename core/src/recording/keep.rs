//! What becomes of recordings that are closed: they are compressed, and removed by a policy of their own (`prune.recordings`).
//!
//! Whoever makes a recording holds an flock on it from before its first byte on. So a file that is not empty, and that can be locked, is
//! nobody's any more, also if its recorder was killed. Offsets in it are those of what is inside of the compressed file.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ah_plugin_api::{Durability, Result, Timestamp};
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use rustix::fs::FlockOperation;
use serde::Serialize;

use super::{Recording, name_of};
use crate::conversation::is_untrimmed;
use crate::crash;
use crate::fsio::{self, FILE_MODE, NOFOLLOW_NONBLOCK, failed};
use crate::ids::SessionName;
use crate::prune::{ClockSet, Policy, clock_set};
use crate::session;
use crate::text;
use crate::workspace::Workspace;

/// What is done with one recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RecordingVerdict {
    /// The session it is of.
    pub session: SessionName,
    /// Which of that session's, from 1.
    pub number: u32,
    /// The file.
    #[serde(with = "text::abs")]
    pub path: PathBuf,
    /// When it was last written to, as far as the clock can be believed: not in the future, nor before an earlier one of its session.
    #[serde(with = "text::time")]
    pub time: Timestamp,
    /// Bytes on disk.
    pub bytes: u64,
    /// Whether it stays.
    pub stays: bool,
    /// Why: the rule that keeps it, or that none does.
    pub reason: String,
}

impl Workspace {
    /// Compresses recordings that are closed; gives how many.
    ///
    /// # Errors
    /// The first that could not be; the others are done all the same.
    pub(crate) fn compress_recordings(&self) -> Result<u64> {
        let (mut done, mut first_error) = (0, None);
        for session in session::names(&self.folder())? {
            for recording in self.recordings(&session)?.iter().filter(|recording| !recording.compressed) {
                match compress(&recording.path, || self.lock("recordings")) {
                    Ok(compressed) => done += u64::from(compressed),
                    Err(error) => drop(first_error.get_or_insert(error)),
                }
            }
        }
        first_error.map_or(Ok(done), Err)
    }

    /// Recordings of these sessions, oldest first, each with its time and size. A session's numbers say more than the clock did when they were
    /// written, which may have been set.
    pub(super) fn recordings_by_age(&self, sessions: &[SessionName]) -> Result<Vec<(Timestamp, u64, Recording)>> {
        let now = self.engine.settings().clock.now();
        let mut all = Vec::new();
        for session in sessions {
            let mut last = timestamp(SystemTime::UNIX_EPOCH);
            for recording in self.recordings(session)? {
                // One that went this moment is nobody's loss.
                let Ok(found) = fs::metadata(&recording.path) else { continue };
                last = last.max(timestamp(found.modified().unwrap_or(SystemTime::UNIX_EPOCH)).min(now));
                all.push((last, found.len(), recording));
            }
        }
        all.sort_by(|(a_time, _, a), (b_time, _, b)| {
            (a_time, &a.session, a.number).cmp(&(b_time, &b.session, b.number))
        });
        Ok(all)
    }

    /// What a policy says of each recording, oldest first.
    pub(crate) fn recording_verdicts(&self, policy: &Policy) -> Result<Vec<RecordingVerdict>> {
        let by_age = self.recordings_by_age(&session::names(&self.folder())?)?;
        let mut verdicts: Vec<_> = by_age
            .into_iter()
            .map(|(time, bytes, recording)| {
                let live = recording.is_live();
                RecordingVerdict {
                    session: recording.session,
                    number: recording.number,
                    path: recording.path,
                    time,
                    bytes,
                    stays: live,
                    reason: if live { "it is being made".to_owned() } else { String::new() },
                }
            })
            .collect();
        judge(policy, &mut verdicts, self.engine.settings().clock.now(), &clock_set(self));
        Ok(verdicts)
    }

    /// Removes the recordings that do not stay; gives how many, and their bytes.
    pub(crate) fn remove_recordings(&self, verdicts: &[RecordingVerdict]) -> Result<(u64, u64)> {
        let _numbers = self.lock("recordings")?;
        let (mut count, mut bytes) = (0, 0);
        for verdict in verdicts.iter().filter(|verdict| !verdict.stays) {
            for recording in self.recordings(&verdict.session)? {
                if recording.number == verdict.number && !recording.is_live() {
                    self.engine.home().with_reserve(|| self.note_removed(&recording))?;
                    // Whether it is the plain or the compressed one by now; a kill leaves both.
                    let plain = recording.path.with_file_name(name_of(recording.number));
                    fsio::remove_file(&packed_path(&plain))?;
                    fsio::remove_file(&plain)?;
                    count += 1;
                    bytes += verdict.bytes;
                }
            }
        }
        Ok((count, bytes))
    }
}

impl Workspace {
    /// Removes copies of whole transcripts (`conversation/`) that the policy would not keep if they were recordings, the newest always kept. The
    /// agent's own transcript is another file.
    pub(crate) fn remove_untrimmed(&self, policy: &Policy) -> Result<()> {
        let mut copies = Vec::new();
        for session in session::names(&self.folder())? {
            let folder = session::folder(&self.folder(), &session);
            for name in fsio::names(&folder)?.iter().filter(|name| is_untrimmed(name)) {
                let path = folder.join(name);
                let Ok(found) = fs::metadata(&path) else { continue };
                copies.push(RecordingVerdict {
                    session: session.clone(),
                    number: 0,
                    path,
                    time: timestamp(found.modified().unwrap_or(SystemTime::UNIX_EPOCH)),
                    bytes: found.len(),
                    stays: false,
                    reason: String::new(),
                });
            }
        }
        copies.sort_by(|a, b| (a.time, &a.path).cmp(&(b.time, &b.path)));
        judge(policy, &mut copies, self.engine.settings().clock.now(), &clock_set(self));
        copies.iter().filter(|copy| !copy.stays).try_for_each(|copy| fsio::remove_file(&copy.path))
    }

    /// The highest number of a session's recordings that were removed: moments name it, and it shall not mean another one.
    pub(super) fn removed_up_to(&self, session: &SessionName) -> u32 {
        let bytes = fsio::read(&self.removed_file(session)).ok().flatten();
        bytes.and_then(|bytes| std::str::from_utf8(&bytes).ok()?.trim().parse().ok()).unwrap_or(0)
    }

    pub(super) fn note_removed(&self, recording: &Recording) -> Result<()> {
        if recording.number <= self.removed_up_to(&recording.session) {
            return Ok(());
        }
        let text = format!("{}\n", recording.number);
        fsio::replace(&self.removed_file(&recording.session), text.as_bytes(), Durability::Durable)
    }

    fn removed_file(&self, session: &SessionName) -> PathBuf {
        session::folder(&self.folder(), session).join("recordings-removed")
    }
}

/// Says of each which rule keeps it; what is marked to stay already does.
fn judge(policy: &Policy, verdicts: &mut [RecordingVerdict], now: Timestamp, clock: &ClockSet) {
    let newest = verdicts.len().wrapping_sub(1);
    let mut of_session: BTreeMap<SessionName, u64> = BTreeMap::new();
    let live: Vec<bool> = verdicts.iter().map(|verdict| verdict.stays).collect();
    for (back, (at, verdict)) in verdicts.iter_mut().enumerate().rev().enumerate() {
        let back_in = of_session.entry(verdict.session.clone()).or_default();
        let (own, in_session) = (back as u64, *back_in);
        *back_in += 1;
        let reason = if live[at] {
            continue;
        } else if at == newest {
            // Whatever the clock says.
            Some("the newest")
        } else if policy.last.is_some_and(|last| own < last) {
            Some("keep-last")
        } else if policy.last_of_session.is_some_and(|last| in_session < last) {
            Some("keep-last of its session")
        } else if policy.within.is_some_and(|within| clock.age_of_file(now, verdict.time) <= within) {
            Some("keep-within")
        } else if policy.keeps_by_rule() {
            None
        } else {
            Some("no rule says otherwise")
        };
        verdict.stays = reason.is_some();
        reason.unwrap_or("no rule keeps it").clone_into(&mut verdict.reason);
    }
    // What is being made cannot go, so it pushes no other out either.
    let mut closed: Vec<(usize, &mut RecordingVerdict)> =
        verdicts.iter_mut().enumerate().filter(|(at, verdict)| verdict.stays && !live[*at]).collect();
    let mut totals: BTreeMap<SessionName, u64> = BTreeMap::new();
    for (_, verdict) in &closed {
        *totals.entry(verdict.session.clone()).or_default() += verdict.bytes;
    }
    let mut total: u64 = totals.values().sum();
    for (_, verdict) in closed.iter_mut().filter(|(at, _)| *at != newest) {
        let own = totals.entry(verdict.session.clone()).or_default();
        let why = match (policy.max_size_of_session, policy.max_size) {
            (Some(max), _) if *own > max => "max-size of its session",
            (_, Some(max)) if total > max => "max-size",
            _ => continue,
        };
        *own -= verdict.bytes;
        total -= verdict.bytes;
        verdict.stays = false;
        why.clone_into(&mut verdict.reason);
    }
}

/// Compresses a recording that is closed; false if it is being made, or empty. Killed anywhere, the plain file is there, and whole, or the
/// compressed one is. While it takes the other's place it holds what `lock` takes, against who removes both.
fn compress<L>(path: &Path, lock: impl FnOnce() -> Result<L>) -> Result<bool> {
    let cannot = |e: io::Error| failed("compress the recording", path, &e);
    // In this order: a recorder locks its file before it writes, and is not to find it locked by us.
    let length = match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => found.len(),
        Ok(_) => return Ok(false),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(cannot(e)),
    };
    if length == 0 {
        return Ok(false);
    }
    let plain = OpenOptions::new().read(true).custom_flags(NOFOLLOW_NONBLOCK).open(path).map_err(cannot)?;
    // Shared: nobody is to take it for one that is being made meanwhile.
    match rustix::fs::flock(&plain, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
        Err(e) => return Err(cannot(e.into())),
    }
    let packed = packed_path(path);
    let temp = fsio::temp_beside(&packed);
    let run = || -> Result<L> {
        write_packed(&plain, &temp).map_err(cannot)?;
        let locked = lock()?;
        put_in_place(&plain, &temp, &packed).map_err(cannot)?;
        Ok(locked)
    };
    let outcome = run();
    if outcome.is_err() {
        let _ = fs::remove_file(&temp);
    }
    let _locked = outcome?;
    crash::point("recording.compressed").map_err(cannot)?;
    fsio::remove_file(path)?;
    Ok(true)
}

fn packed_path(path: &Path) -> PathBuf {
    let mut packed = path.as_os_str().to_owned();
    packed.push(".gz");
    PathBuf::from(packed)
}

fn write_packed(plain: &File, temp: &Path) -> io::Result<()> {
    let found = plain.metadata()?;
    crash::point("recording.compress")?;
    let file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(temp)?;
    let mut encoder = GzEncoder::new(file, Compression::default());
    let length = io::copy(&mut BufReader::with_capacity(1 << 16, plain), &mut encoder)?;
    let mut file = encoder.finish()?;
    file.flush()?;
    // Which one is the latest goes by that.
    file.set_modified(found.modified()?)?;
    file.sync_all()?;
    // The plain one goes: what is left must be readable, all of it.
    let read = io::copy(&mut MultiGzDecoder::new(BufReader::new(File::open(temp)?)), &mut io::sink())?;
    if read != length || length != found.len() {
        return Err(io::Error::other("what was compressed is not what was read"));
    }
    Ok(())
}

fn put_in_place(plain: &File, temp: &Path, packed: &Path) -> io::Result<()> {
    if plain.metadata()?.nlink() == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it was removed meanwhile"));
    }
    fs::rename(temp, packed)?;
    if let Some(folder) = packed.parent() {
        fsio::sync_dir(folder)?;
    }
    Ok(())
}

fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => {
            Timestamp { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
        }
        Err(before) => {
            Timestamp { secs: i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |secs| -secs), nanos: 0 }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsFd;

    fn verdict(session: &str, number: u32, secs: i64, bytes: u64) -> RecordingVerdict {
        RecordingVerdict {
            session: SessionName::new(session).unwrap(),
            number,
            path: PathBuf::from("/x"),
            time: Timestamp { secs, nanos: 0 },
            bytes,
            stays: false,
            reason: String::new(),
        }
    }

    fn kept(policy: &str, mut verdicts: Vec<RecordingVerdict>) -> Vec<(String, u32)> {
        let (policy, now) = (Policy::parse_for_recordings(policy).unwrap(), Timestamp { secs: 1_000, nanos: 0 });
        judge(&policy, &mut verdicts, now, &ClockSet::default());
        let stays = verdicts.into_iter().filter(|verdict| verdict.stays);
        stays.map(|verdict| (verdict.session.to_string(), verdict.number)).collect()
    }

    #[test]
    fn by_count_age_and_size_each_and_all() {
        let all =
            || vec![verdict("a", 1, 100, 5), verdict("a", 2, 200, 5), verdict("b", 1, 300, 5), verdict("a", 3, 900, 5)];
        let names =
            |these: &[(&str, u32)]| these.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect::<Vec<_>>();
        assert_eq!(kept("keep-last=2", all()), names(&[("b", 1), ("a", 3)]));
        assert_eq!(kept("keep-last=1/session", all()), names(&[("b", 1), ("a", 3)]));
        assert_eq!(kept("keep-within=750s", all()), names(&[("b", 1), ("a", 3)]));
        assert_eq!(kept("max-size=10B", all()), names(&[("b", 1), ("a", 3)]));
        assert_eq!(kept("max-size=10B/session", all()), names(&[("a", 2), ("b", 1), ("a", 3)]));
        assert_eq!(kept("max-size=1T", all()).len(), 4);
        // The newest stays whatever the rule, and what is being made whatever its age.
        assert_eq!(kept("max-size=0", all()), names(&[("a", 3)]));
        let mut live = all();
        live[0].stays = true;
        assert_eq!(kept("keep-last=0,max-size=0", live), names(&[("a", 1), ("a", 3)]));
        // However large that is, it pushes no other out: it cannot go itself.
        let mut live = all();
        live[3] = RecordingVerdict { stays: true, bytes: 100, ..live[3].clone() };
        assert_eq!(kept("max-size=10B", live.clone()), names(&[("a", 2), ("b", 1), ("a", 3)]));
        assert_eq!(kept("max-size=5B/session", live), names(&[("a", 2), ("b", 1), ("a", 3)]));
        // The clock was set back.
        assert_eq!(kept("keep-within=1s", vec![verdict("a", 1, 5_000, 1), verdict("a", 2, 6_000, 1)]).len(), 2);
        assert_eq!(kept("keep-last=1", Vec::new()), Vec::new());
    }

    fn unlocked() -> Result<()> {
        Ok(())
    }

    #[test]
    fn closed_ones_are_compressed_and_read_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording.cast");
        let text = "{\"version\": 2}\n[0.1, \"o\", \"hello\"]\n".repeat(1000);
        fs::write(&path, &text).unwrap();
        // Somebody makes it.
        let held = File::open(&path).unwrap();
        rustix::fs::flock(held.as_fd(), FlockOperation::LockExclusive).unwrap();
        assert!(!compress(&path, unlocked).unwrap() && path.exists());
        drop(held);
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        assert!(compress(&path, unlocked).unwrap() && !path.exists());
        let packed = dir.path().join("recording.cast.gz");
        let found = fs::metadata(&packed).unwrap();
        assert!(found.len() < text.len() as u64 / 10 && found.modified().unwrap() == before);
        let mut read = String::new();
        super::super::open_at(&packed, true, 15).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, text[15..]);
        // What a kill left beside the plain one is made anew.
        fs::write(&path, "another").unwrap();
        assert!(compress(&path, unlocked).unwrap());
        let mut read = String::new();
        super::super::open_at(&packed, true, 0).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, "another");
        fs::write(&path, "").unwrap();
        assert!(!compress(&path, unlocked).unwrap() && !compress(&dir.path().join("none"), unlocked).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn one_that_is_removed_while_it_is_compressed_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording.cast");
        fs::write(&path, "removed").unwrap();
        compress(&path, || fsio::remove_file(&path)).unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
