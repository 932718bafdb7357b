//! A session's recordings: where they lie, which of them is being made, and how far it has come.
//!
//! `sessions/<session>/recording.cast` is a session's first recording, `recording-2.cast` its second, and so on. Moments name the number, so
//! it is not given again when the file that bore it has been removed; only that of one that came to nothing is, of which no moment tells,
//! or whose file is empty. Whoever makes a recording holds an flock on it, so that one whose recorder was killed counts as closed.
//! Closed ones are compressed (`.cast.gz`) and removed by a policy of their own: `keep`.
//!
//! A moment's place in a recording is how many bytes that had at the time, whoever adds the moment: what runs inside of a recording is told of
//! it by `$AH_RECORDING`, and for all others it is the session's own. `follow` is the other direction: moments for the recorder's markers.
//!
//! Not here: what a recording says (`ah-recording`, which knows no sessions).

mod follow;
mod keep;

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ah_agents::files::open_regular;
use ah_plugin_api::{Durability, Error, ErrorKind, Result};
use flate2::read::MultiGzDecoder;
use rustix::fs::FlockOperation;

use crate::fsio::{self, FILE_MODE, NOFOLLOW_NONBLOCK, failed};
use crate::ids::SessionName;
use crate::moments::RecordingPosition;
use crate::prune::Policy;
use crate::session;
use crate::text;
use crate::workspace::Workspace;

pub use follow::MomentFollower;
pub use keep::RecordingVerdict;

/// Nobody who only asks holds a recording's lock for as long.
const ASKED: Duration = Duration::from_secs(10);

/// A recording of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// The session.
    pub session: SessionName,
    /// Which of its recordings, from 1.
    pub number: u32,
    /// The file.
    pub path: PathBuf,
    /// Whether it is compressed.
    pub compressed: bool,
}

impl Recording {
    /// Opens it for reading from byte `offset` of its uncompressed contents on.
    ///
    /// # Errors
    /// If it cannot be opened or read.
    pub fn open_at(&self, offset: u64) -> Result<Box<dyn BufRead>> {
        open_at(&self.path, self.compressed, offset)
    }

    /// Whether it is being made at this moment.
    #[must_use]
    pub fn is_live(&self) -> bool {
        is_live(&self.path)
    }
}

/// Opens a recording anywhere for reading from byte `offset` of its uncompressed contents on.
///
/// # Errors
/// `InvalidArgument` if it is no regular file; if it cannot be opened or read.
pub fn open_at(path: &Path, compressed: bool, offset: u64) -> Result<Box<dyn BufRead>> {
    let run = || -> io::Result<Box<dyn BufRead>> {
        let mut file = open_regular(path)?;
        if !compressed {
            file.seek(SeekFrom::Start(offset))?;
            return Ok(Box::new(BufReader::with_capacity(1 << 16, file)));
        }
        let mut unpacked = BufReader::with_capacity(1 << 16, MultiGzDecoder::new(BufReader::new(file)));
        io::copy(&mut (&mut unpacked).take(offset), &mut io::sink())?;
        Ok(Box::new(unpacked))
    };
    run().map_err(|e| {
        if e.kind() == io::ErrorKind::Unsupported {
            return Error::new(ErrorKind::InvalidArgument, format!("{} is no regular file", path.display()))
                .with_hint("what comes as a stream becomes a recording by `ah agent cast import -`");
        }
        let error = failed("read the recording", path, &e);
        error.with_hint("`ls -l` shows what is there; `ah agent replay` without a name plays the latest recording")
    })
}

/// A time into a recording as a person writes it: `12.5s`, `1m30s`.
#[must_use]
pub fn time_into(text: &str) -> Option<Duration> {
    let nanos = crate::refs::parse_duration(text)?;
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

/// Whether somebody holds the lock of a recording.
fn is_live(path: &Path) -> bool {
    let Ok(file) = OpenOptions::new().read(true).custom_flags(NOFOLLOW_NONBLOCK).open(path) else { return false };
    matches!(rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared), Err(rustix::io::Errno::WOULDBLOCK))
}

/// Locks a recording that begins. Whoever asks just now whether it is being made holds its lock for a moment.
fn lock(file: &File) -> io::Result<()> {
    let since = Instant::now();
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if since.elapsed() < ASKED => {
                std::thread::sleep(Duration::from_millis(1));
            }
            locked => return Ok(locked?),
        }
    }
}

/// The number that a file's name says, and whether the file is compressed.
fn number_of(name: &str) -> Option<(u32, bool)> {
    let (stem, compressed) = match name.strip_suffix(".cast.gz") {
        Some(stem) => (stem, true),
        None => (name.strip_suffix(".cast")?, false),
    };
    let number = match stem.strip_prefix("recording")? {
        "" => 1,
        rest => rest.strip_prefix('-')?.parse().ok().filter(|number| *number > 1)?,
    };
    (name_of(number) == format!("{stem}.cast")).then_some((number, compressed))
}

fn name_of(number: u32) -> String {
    if number == 1 { "recording.cast".to_owned() } else { format!("recording-{number}.cast") }
}

impl Workspace {
    /// Begins a recording of the session that is written to, which is made if it is not there: an empty file that is nobody
    /// else's, locked until it is closed everywhere.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn begin_recording(&self) -> Result<(Recording, File)> {
        let session = self.writing_session();
        // That there is a session is the timeline's to see to.
        self.append_with(&session, Durability::Instant, |_| Vec::new())?;
        let folder = session::folder(&self.folder(), &session);
        let _numbers = self.lock("recordings")?;
        let last = self.recordings(&session)?.last().map_or(0, |last| last.number);
        let number = last.max(self.removed_up_to(&session)) + 1;
        let path = folder.join(name_of(number));
        // If it is there, it came to nothing.
        fsio::remove_file(&path)?;
        let made = OpenOptions::new().read(true).append(true).create_new(true).mode(FILE_MODE).open(&path);
        let file = made.map_err(|e| failed("make the recording", &path, &e))?;
        lock(&file).map_err(|e| failed("lock the recording", &path, &e))?;
        // Its name is worth as much as what will be in it.
        fsio::sync_dir(&folder).map_err(|e| failed("write", &folder, &e))?;
        Ok((Recording { session, number, path, compressed: false }, file))
    }

    /// Takes back a recording whose command did not run. That is told of on the timeline: its number is not given again.
    ///
    /// # Errors
    /// If it cannot be written down, or removed.
    pub fn take_back_recording(&self, recording: &Recording) -> Result<()> {
        let _numbers = self.lock("recordings")?;
        self.note_removed(recording)?;
        fsio::remove_file(&recording.path)
    }

    /// The most bytes that a recording may have: more than all of them together would go by the policy in any case.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub fn largest_recording(&self) -> Result<u64> {
        let policy = Policy::parse_for_recordings(self.config()?.recordings_policy())?;
        Ok([policy.max_size, policy.max_size_of_session].into_iter().flatten().min().unwrap_or(u64::MAX))
    }

    /// A session's recordings, oldest first.
    ///
    /// # Errors
    /// If its folder cannot be read.
    pub fn recordings(&self, session: &SessionName) -> Result<Vec<Recording>> {
        let folder = session::folder(&self.folder(), session);
        let names = fsio::names(&folder)?;
        let mut found: Vec<Recording> = names
            .iter()
            .filter_map(|name| {
                let (number, compressed) = number_of(name)?;
                Some(Recording { session: session.clone(), number, path: folder.join(name), compressed })
            })
            // What a recorder left that was killed before its first line is none.
            .filter(|recording| {
                let empty = std::fs::metadata(&recording.path).is_ok_and(|found| found.len() == 0);
                !empty || recording.is_live()
            })
            .collect();
        // While one is being compressed both are there; the one that was there first is whole.
        found.sort_by_key(|recording| (recording.number, recording.compressed));
        found.dedup_by_key(|recording| recording.number);
        Ok(found)
    }

    /// The recording of that number, or the latest one, of the session asked for; without `--session` and `$AH_SESSION` the latest
    /// one of all sessions.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn recording(&self, number: Option<u32>) -> Result<Recording> {
        let settings = self.engine.settings();
        let sessions = match settings.session.as_ref().or(settings.agent_session.as_ref()) {
            Some(session) => vec![session.clone()],
            None if number.is_some() => vec![SessionName::main()],
            None => session::names(&self.folder())?,
        };
        let mut latest_first = self.recordings_by_age(&sessions)?.into_iter().rev().map(|(_, _, recording)| recording);
        latest_first.find(|recording| number.is_none_or(|number| number == recording.number)).ok_or_else(|| {
            let which = number.map_or_else(String::new, |number| format!(" {number}"));
            let whose = match sessions.as_slice() {
                [session] => format!("session {session}"),
                _ => "this workspace".to_owned(),
            };
            let error = Error::new(ErrorKind::NotFound, format!("there is no recording{which} of {whose}"));
            let around = match sessions.as_slice() {
                [session] => self.recorded_around(session),
                _ => None,
            };
            match around {
                Some(Recording { session, number, .. }) => error.with_hint(format!(
                    "what was at work in it was recorded in session {session}: `ah agent replay --session {} {number}`",
                    text::shell(session.as_str().as_ref())
                )),
                None => error.with_hint("ah agent record -- CMD makes one; `ah session show` lists a session's"),
            }
        })
    }

    /// The recording of another session that a session ran in, by its latest moment that names one; none if that is not there any more.
    #[must_use]
    pub fn recorded_around(&self, session: &SessionName) -> Option<Recording> {
        let moments = self.state().ok()?.moments;
        let (around, number) = moments.iter().rev().filter(|moment| moment.session == *session).find_map(|moment| {
            let at = moment.record.recording.as_ref()?;
            Some((at.session.clone()?, at.number.unwrap_or(1)))
        })?;
        self.recordings(&around).ok()?.into_iter().find(|recording| recording.number == number)
    }

    /// How far the recording has come at this moment that a moment of `session` belongs to; none if nothing is recorded.
    pub(crate) fn recording_now(&self, session: &SessionName) -> Option<RecordingPosition> {
        let inside = || {
            let path = self.engine.settings().agent_recording.as_ref()?;
            let name = SessionName::new(path.parent()?.file_name()?.to_str()?).ok()?;
            // One of another workspace has no place on this one's timeline.
            let ours = session::folder(&self.folder(), &name) == path.parent()?;
            let (number, _) = number_of(path.file_name()?.to_str()?).filter(|_| ours && is_live(path))?;
            Some(Recording { session: name, number, path: path.clone(), compressed: false })
        };
        let own = |session: &SessionName| {
            let all = self.recordings(session).ok()?;
            all.into_iter().rev().find(|recording| !recording.compressed && recording.is_live())
        };
        // An agent may have a session of its own in one that is recorded.
        let around = || own(self.engine.settings().agent_session.as_ref()?);
        let recording = inside().or_else(|| own(session)).or_else(around)?;
        Some(RecordingPosition {
            offset: std::fs::metadata(&recording.path).ok()?.len(),
            session: Some(recording.session).filter(|its| its != session),
            number: Some(recording.number).filter(|number| *number > 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn names_and_numbers_belong_together() {
        for number in [1, 2, 10, u32::MAX] {
            assert_eq!(number_of(&name_of(number)), Some((number, false)));
            assert_eq!(number_of(&format!("{}.gz", name_of(number))), Some((number, true)));
        }
        for other in
            ["recording", "recording-1.cast", "recording-02.cast", "recording-x.cast", "a.cast", ".recording.cast"]
        {
            assert_eq!(number_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_recording_lives_while_its_lock_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording.cast");
        let file = File::create(&path).unwrap();
        assert!(!is_live(&path));
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(is_live(&path));
        drop(file);
        assert!(!is_live(&path) && !is_live(&dir.path().join("none")));
    }

    #[test]
    fn one_that_begins_waits_for_those_who_ask_whether_it_is_made() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let asking = File::open(file.path()).unwrap();
        rustix::fs::flock(&asking, FlockOperation::NonBlockingLockShared).unwrap();
        let asked = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&asked);
        let asks = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            done.store(true, Ordering::SeqCst);
            drop(asking);
        });
        lock(file.as_file()).unwrap();
        assert!(asked.load(Ordering::SeqCst) && is_live(file.path()));
        asks.join().unwrap();
    }

    #[test]
    fn compressed_ones_are_read_from_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("recording.cast.gz");
        let mut packed = flate2::write::GzEncoder::new(File::create(&path).unwrap(), flate2::Compression::fast());
        packed.write_all(b"0123456789").unwrap();
        packed.finish().unwrap();
        let mut read = String::new();
        open_at(&path, true, 4).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, "456789");
        std::fs::write(&path, "plain").unwrap();
        open_at(&path, false, 2).unwrap().read_to_string(&mut read).unwrap();
        assert_eq!(read, "456789ain");
    }
}
