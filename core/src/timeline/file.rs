//! The file of one session's timeline: appended to under a lock, mended when a crash tore its end, read without a lock.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ah_plugin_api::{Durability, Result, Timestamp};

use crate::crash;
use crate::fsio::{self, FILE_MODE, NOFOLLOW_NONBLOCK, failed};
use crate::ids::SessionName;
use crate::timeline::event::{Event, EventBody};
use crate::timeline::{FaultKind, TimelineFault, line};

const BLOCK: u64 = 4096;

/// Whether a timeline that could not be read was put aside ([`fsio::put_aside`]), and no line of the one in its place says so yet.
pub(super) fn is_put_aside(path: &Path) -> bool {
    fsio::suffixed(path, fsio::UNREAD).symlink_metadata().is_ok()
}

/// Takes note that a line says so by now, which survives a power cut. If that fails, another line will.
pub(super) fn forget_put_aside(path: &Path) {
    // The file in which that line is may be new.
    let is_there = path.parent().is_some_and(|folder| fsio::sync_dir(folder).is_ok());
    if is_there {
        let _ = std::fs::rename(fsio::suffixed(path, fsio::UNREAD), fsio::suffixed_free(path, "lost"));
    }
}

/// Opens a file of ours: what else is in its place neither holds anybody up, nor leads anywhere, nor is written to.
fn opened(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(NOFOLLOW_NONBLOCK).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "not a file of ours")),
    }
}

fn opened_to_read(path: &Path) -> io::Result<File> {
    opened(OpenOptions::new().read(true), path)
}

/// A timeline opened for appending. Whoever has one holds the workspace's timeline lock.
pub(super) struct TimelineFile {
    file: File,
    path: PathBuf,
    len: u64,
}

/// What was found at the end of a timeline.
pub(super) struct Tail {
    /// The number of its last sound line; none: there is none.
    pub(super) last_seq: Option<u64>,
    /// Bytes of a torn last line that were cut off.
    pub(super) torn: u64,
}

impl TimelineFile {
    /// Opens or makes the file, and mends its end.
    pub(super) fn open(path: &Path) -> Result<(Self, Tail)> {
        let run = || -> io::Result<(Self, Tail)> {
            let file = opened(OpenOptions::new().read(true).append(true).create(true).mode(FILE_MODE), path)?;
            let len = file.metadata()?.len();
            let mut this = Self { file, path: path.to_owned(), len };
            let tail = this.mend()?;
            Ok((this, tail))
        };
        run().map_err(|e| failed("open the timeline", path, &e))
    }

    /// Appends one event: one write.
    pub(super) fn append(&mut self, event: &Event) -> Result<()> {
        let bytes = line::encode(event)?;
        let mut run = || -> io::Result<()> {
            crash::point("timeline.append")?;
            self.file.write_all(&bytes)
        };
        run().map_err(|e| failed("append to the timeline", &self.path, &e))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// How long it is now, for [`Self::take_back`].
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Takes back what was appended since it was `len` long: whoever is told of a failure must not find it done all the same.
    pub(super) fn take_back(&mut self, len: u64) {
        // If even that fails, a torn line is mended by the next one to open the file.
        let _ = crash::point("timeline.take-back").and_then(|()| self.file.set_len(len));
        self.len = len;
    }

    /// Makes what was appended survive a power cut.
    pub(super) fn sync(&mut self) -> Result<()> {
        let run = || -> io::Result<()> {
            crash::point("timeline.sync")?;
            self.file.sync_data()
        };
        run().map_err(|e| failed("sync the timeline", &self.path, &e))
    }

    /// Cuts a torn last line off and keeps it in `timeline.torn`. One that is whole but for its newline is completed.
    fn mend(&mut self) -> io::Result<Tail> {
        let mut lines = Backwards::of(&self.file, self.len);
        let bytes = lines.next()?.unwrap_or_default();
        if bytes.is_empty() {
            return Ok(Tail { last_seq: lines.last_seq()?, torn: 0 });
        }
        if let Some(seq) = line::seq_of(&bytes) {
            crash::point("timeline.mend")?;
            (&self.file).write_all(b"\n")?;
            self.len += 1;
            return Ok(Tail { last_seq: Some(seq), torn: 0 });
        }
        let torn = bytes.len() as u64;
        let aside = self.path.with_extension("torn");
        let mut kept = opened(OpenOptions::new().append(true).create(true).mode(FILE_MODE), &aside)?;
        kept.write_all(&bytes)?;
        kept.write_all(b"\n")?;
        crash::point("timeline.mend")?;
        self.file.set_len(self.len - torn)?;
        self.len -= torn;
        Ok(Tail { last_seq: lines.last_seq()?, torn })
    }
}

/// The lines of a timeline from its end on, without their newlines; first what stands behind the last one.
///
/// Each byte is read once, however many lines there are, and however long they are.
struct Backwards<'a> {
    file: &'a File,
    /// How much of the file has not been read.
    unread: u64,
    /// What was read and not given; none: the first line was given.
    bytes: Option<Vec<u8>>,
}

impl<'a> Backwards<'a> {
    fn of(file: &'a File, len: u64) -> Self {
        Self { file, unread: len, bytes: Some(Vec::new()) }
    }

    fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(bytes) = &mut self.bytes else { return Ok(None) };
        let mut searched = 0;
        loop {
            if let Some(at) = bytes[..bytes.len() - searched].iter().rposition(|&b| b == b'\n') {
                let line = bytes.split_off(at + 1);
                bytes.pop();
                return Ok(Some(line));
            }
            if self.unread == 0 {
                return Ok(self.bytes.take());
            }
            searched = bytes.len();
            let from = self.unread.saturating_sub(BLOCK.max(searched as u64));
            let mut block = vec![0; usize::try_from(self.unread - from).map_err(io::Error::other)?];
            self.file.read_exact_at(&mut block, from)?;
            block.append(bytes);
            *bytes = block;
            self.unread = from;
        }
    }

    /// The number of the last sound line among those that are left.
    fn last_seq(&mut self) -> io::Result<Option<u64>> {
        while let Some(line) = self.next()? {
            if let Some(seq) = line::seq_of(&line) {
                return Ok(Some(seq));
            }
        }
        Ok(None)
    }
}

/// What a timeline's file holds.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) events: Vec<Event>,
    pub(super) faults: Vec<TimelineFault>,
    /// The number of the last line, if it has no newline: torn, or being written this moment.
    pub(super) torn: Option<u64>,
    /// Where it says itself that lines before it were lost, by the number of the event that does.
    pub(super) lost: Vec<(u64, TimelineFault)>,
    /// How many lines it has.
    lines: u64,
    /// Whether the last one is damaged, or blank, as a person leaves one to do without it.
    is_last_damaged: bool,
}

impl Contents {
    /// That the end is missing, if an event of that number is known to have been written. A last line that is there and damaged is told as that,
    /// and one that was made blank not any more.
    pub(super) fn lacks(&self, session: &SessionName, last: u64) -> Option<TimelineFault> {
        let has = self.events.iter().any(|event| event.seq >= last);
        (!has && !self.is_last_damaged).then(|| lines_lost(session, self.lines + 1, last))
    }

    /// That all is missing that was put aside.
    pub(super) fn lacks_what_is_aside(&self, session: &SessionName, path: &Path) -> TimelineFault {
        let aside = fsio::suffixed(path, fsio::UNREAD);
        let reason = format!("what was there lies unread in {}", aside.display());
        TimelineFault { session: session.clone(), kind: FaultKind::End, line: self.lines + 1, reason, way_out: None }
    }
}

fn lines_lost(session: &SessionName, line: u64, last: u64) -> TimelineFault {
    let reason = format!("from there on lines were lost, up to event {last}");
    TimelineFault { session: session.clone(), kind: FaultKind::End, line, reason, way_out: None }
}

/// Reads a timeline whole; a file that is not there is an empty one.
pub(super) fn read(path: &Path, session: &SessionName) -> Result<Contents> {
    let bytes = fsio::read(path)?.unwrap_or_default();
    let mut contents = Contents::default();
    // A blank line has lost nothing: it is no damage, and not worth a word, however many there are.
    let lines = (1..).zip(bytes.split(|&b| b == b'\n')).filter(|(_, line)| !line.is_empty());
    let (mut numbers, mut lines): (Vec<u64>, Vec<&[u8]>) = lines.unzip();
    if !bytes.ends_with(b"\n") {
        contents.torn = numbers.pop();
        lines.pop();
    }
    for (number, read) in numbers.into_iter().zip(decode_all(&lines, session)) {
        (contents.lines, contents.is_last_damaged) = (number, read.is_err());
        match read {
            Ok(event) => {
                if let EventBody::LinesLost { last } = event.body {
                    contents.lost.push((event.seq, lines_lost(session, number, last)));
                }
                contents.events.push(event);
            }
            Err(reason) => {
                let (session, kind) = (session.clone(), FaultKind::Line);
                contents.faults.push(TimelineFault { session, kind, line: number, reason, way_out: None });
            }
        }
    }
    contents.is_last_damaged |= bytes == b"\n" || bytes.ends_with(b"\n\n");
    Ok(contents)
}

/// Reads lines; many of them by several threads.
fn decode_all(lines: &[&[u8]], session: &SessionName) -> Vec<Result<Event, String>> {
    const MANY: usize = 2000;
    let decode = |lines: &[&[u8]]| -> Vec<_> { lines.iter().map(|line| line::decode(line, session)).collect() };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    if lines.len() < MANY || threads == 1 {
        return decode(lines);
    }
    std::thread::scope(|scope| {
        let parts = lines.chunks(lines.len().div_ceil(threads));
        let workers: Vec<_> = parts.map(|part| (part, scope.spawn(move || decode(part)))).collect();
        // A thread that did not come to its end is a defect; what it was to read is read here, and shows it.
        workers.into_iter().flat_map(|(part, worker)| worker.join().unwrap_or_else(|_| decode(part))).collect()
    })
}

/// The time of the first sound line, without reading the rest.
pub(super) fn first_time(path: &Path) -> Option<Timestamp> {
    use std::io::{BufRead, BufReader};
    let file = opened_to_read(path).ok()?;
    BufReader::new(file).split(b'\n').take(100).find_map(|line| line::time_of(&line.ok()?))
}

/// The number of the last sound line, without changing anything.
pub(super) fn last_seq(path: &Path) -> Option<u64> {
    let file = opened_to_read(path).ok()?;
    let len = file.metadata().ok()?.len();
    Backwards::of(&file, len).last_seq().ok()?
}

/// The events after that one, read from the end; none if a line among them is not sound.
pub(super) fn read_since(path: &Path, session: &SessionName, seq: u64) -> Result<Option<Vec<Event>>> {
    let run = || -> io::Result<Option<Vec<Event>>> {
        let file = match opened_to_read(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Some(Vec::new())),
            file => file?,
        };
        let mut lines = Backwards::of(&file, file.metadata()?.len());
        if lines.next()?.is_some_and(|torn| !torn.is_empty()) {
            return Ok(None);
        }
        let mut events = Vec::new();
        while let Some(line) = lines.next()? {
            if line.is_empty() {
                continue;
            }
            match line::decode(&line, session) {
                Ok(event) if event.seq <= seq => break,
                Ok(event) => events.push(event),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(events))
    };
    run().map_err(|e| failed("read", path, &e))
}

/// Makes a timeline survive a power cut, for those who appended without.
pub(super) fn sync(path: &Path, durability: Durability) -> Result<()> {
    if durability != Durability::Durable {
        return Ok(());
    }
    let run = || {
        crash::point("timeline.sync")?;
        opened_to_read(path)?.sync_data()
    };
    match run() {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("sync the timeline", path, &e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, SessionName, TimelineFile, Timestamp, read};
    use crate::timeline::event::EventBody;
    use proptest::collection::vec;
    use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};

    fn event(seq: u64) -> Event {
        Event {
            seq,
            time: Timestamp::default(),
            session: SessionName::main(),
            body: EventBody::Repaired { bytes: seq },
        }
    }

    #[derive(Debug, Clone)]
    enum Harm {
        Cut(usize),
        Flip(usize, u8),
        Insert(usize, Vec<u8>),
        Zero(usize, usize),
        Remove(usize, usize),
    }

    fn harm() -> impl Strategy<Value = Harm> {
        prop_oneof![
            any::<usize>().prop_map(Harm::Cut),
            (any::<usize>(), 1u8..).prop_map(|(at, bits)| Harm::Flip(at, bits)),
            (any::<usize>(), vec(prop_oneof![any::<u8>(), Just(b'\n')], 0..200))
                .prop_map(|(at, b)| Harm::Insert(at, b)),
            (any::<usize>(), 0usize..5000).prop_map(|(at, n)| Harm::Zero(at, n)),
            (any::<usize>(), 0usize..300).prop_map(|(at, n)| Harm::Remove(at, n)),
        ]
    }

    fn apply(bytes: &mut Vec<u8>, harm: Harm) {
        let len = bytes.len();
        let inside = |at: usize| at % (len + 1);
        match harm {
            Harm::Cut(at) => bytes.truncate(inside(at)),
            Harm::Flip(at, bits) if len > 0 => bytes[at % len] ^= bits,
            Harm::Flip(..) => {}
            Harm::Insert(at, more) => drop(bytes.splice(inside(at)..inside(at), more)),
            Harm::Zero(at, n) => bytes.iter_mut().skip(inside(at)).take(n).for_each(|b| *b = 0),
            Harm::Remove(at, n) => drop(bytes.drain(inside(at)..(inside(at) + n).min(len))),
        }
    }

    proptest! {
        #[test]
        fn whatever_happens_to_the_file_sound_lines_are_read_and_more_can_be_written(
            count in 0u64..30, harms in vec(harm(), 0..4),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("t.jsonl");
            let mut bytes: Vec<u8> = (1..=count).flat_map(|seq| super::line::encode(&event(seq)).unwrap()).collect();
            harms.into_iter().for_each(|harm| apply(&mut bytes, harm));
            std::fs::write(&path, &bytes).unwrap();
            let before = read(&path, &SessionName::main()).unwrap();
            for event_read in &before.events {
                assert_eq!(*event_read, event(event_read.seq), "only what was written is read");
            }
            let (mut file, tail) = TimelineFile::open(&path).unwrap();
            let next = before.events.last().map_or(0, |event| event.seq).max(tail.last_seq.unwrap_or(0)) + 1;
            file.append(&event(next)).unwrap();
            let after = read(&path, &SessionName::main()).unwrap();
            assert_eq!(after.torn, None);
            assert_eq!(after.events.last(), Some(&event(next)));
            assert!(after.events.len() > before.events.len());
            assert_eq!(super::last_seq(&path), Some(next));
            for seq in [0, next / 2, next] {
                if let Some(since) = super::read_since(&path, &SessionName::main(), seq).unwrap() {
                    let mut wanted: Vec<_> = after.events.iter().rev().take_while(|event| event.seq > seq).collect();
                    wanted.truncate(since.len());
                    assert_eq!(since.iter().collect::<Vec<_>>(), wanted);
                }
            }
        }
    }
}
