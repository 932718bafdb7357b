//! A recording while it is made: takes what a terminal shows from the threads that show it, and puts it into a file.
//!
//! Whoever shows something hands it over and goes on ([`Tape::output`]); one thread (`writer.rs`) makes lines of it, a few
//! milliseconds' worth at a time, and another one (`disk.rs`) has the kernel put them on the disk. So what was shown survives the
//! recorder's death some milliseconds later, and the machine's within a quarter of a second. What is handed over faster than it
//! can be written waits in a queue of [`QUEUE`] bytes, and then whoever hands it over waits too: memory is bounded, however long.
//!
//! Nothing that happens to the file stops what is recorded, and no recording fills a disk: where it has no room any more, it ends with a marker that
//! says so. All that comes later goes by; a shell's marks are still heard, and are at its end.

mod disk;
mod writer;

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::cast::{Encoder, EventKind, Header};
use crate::input::Echo;
use crate::osc133::Mark;

pub use disk::has_room;

/// How much may wait to be written, in bytes.
pub const QUEUE: usize = 1 << 20;
/// The most that one event holds.
const EVENT: usize = 64 << 10;
/// Output that follows so soon on other output is one event with it.
const MERGE: Duration = Duration::from_millis(2);

/// Who is told of what is seen in the output. Called by the thread that writes: it must not take long.
pub trait Listener: Send + Sync {
    /// A shell's mark; the recording shows it up to `offset`, and all before that is in the file, unless that has ended before.
    fn mark(&self, mark: Mark, offset: u64);
}

/// Nobody.
impl Listener for () {
    fn mark(&self, _: Mark, _: u64) {}
}

/// Where output comes from; each has characters of its own that may be cut in two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The pty.
    Terminal,
    /// Standard error, where that does not go to the terminal.
    Errors,
}

/// How a tape is made.
pub struct Options {
    /// The first line.
    pub header: Header,
    /// Whether output of the terminal comes with bare newlines, and a recording needs returns before them.
    pub bare_newlines: bool,
    /// The time at which it begins.
    pub start: Instant,
    /// The most bytes that its file may have, one last line aside.
    pub most: u64,
}

/// What came of a recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Bytes of the file.
    pub bytes: u64,
    /// How long it is.
    pub time: Duration,
    /// Bytes of output that came after the recording's end.
    pub lost: u64,
    /// Why it ended before what it records.
    pub stopped: Option<Stopped>,
}

/// Why a recording ended before what it records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stopped {
    /// It has as many bytes as it may have.
    TooLarge(u64),
    /// Its disk is full, or fails.
    Disk(String),
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge(bytes) => write!(f, "it has {} MiB, and may have no more", bytes >> 20),
            Self::Disk(why) => f.write_str(why),
        }
    }
}

/// A recording that is being made. Clones are the same one.
#[derive(Clone)]
pub struct Tape {
    shared: Arc<Shared>,
}

/// The threads of a tape; [`Running::finish`] ends it.
pub struct Running {
    shared: Arc<Shared>,
    writer: JoinHandle<Summary>,
}

pub(crate) struct Shared {
    start: Instant,
    queue: Mutex<Queue>,
    /// Something is to be written, or it is over.
    filled: Condvar,
    /// There is room again.
    room: Condvar,
    /// Bytes that are in the file.
    written: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Queue {
    /// The bytes of all items, in order.
    bytes: Vec<u8>,
    items: Vec<(Duration, Item)>,
    /// The writer sleeps until something comes.
    idle: bool,
    /// The writer is at what it took.
    busy: bool,
    over: bool,
}

pub(crate) enum Item {
    Output(Source, usize),
    Input(Echo, usize),
    Event(EventKind),
}

impl Tape {
    /// Begins a recording in `file`, which is empty, opened for appending, and nobody else's.
    ///
    /// # Errors
    /// If the first line cannot be written.
    pub fn start(file: File, options: &Options, listener: Arc<dyn Listener>) -> Result<(Self, Running)> {
        let cannot =
            |what: &str, error: &std::io::Error| Error::from_io(format!("the recording cannot be {what}"), error);
        let head = Encoder::header(&options.header);
        let disk = disk::Disk::begin(file, &head, options.most).map_err(|error| cannot("written", &error))?;
        let shared = Arc::new(Shared {
            start: options.start,
            queue: Mutex::default(),
            filled: Condvar::new(),
            room: Condvar::new(),
            written: AtomicU64::new(head.len() as u64),
        });
        let writer = writer::Writer::new(Arc::clone(&shared), disk, options, listener);
        let thread = std::thread::Builder::new().name("ah-tape".into()).spawn(move || writer.run());
        let writer = thread.map_err(|error| cannot("begun", &error))?;
        Ok((Self { shared: Arc::clone(&shared) }, Running { shared, writer }))
    }

    /// Something was shown. Waits only while [`QUEUE`] bytes are still to be written.
    pub fn output(&self, source: Source, bytes: &[u8]) {
        let mut queue = self.shared.lock();
        while queue.bytes.len() >= QUEUE && !queue.over {
            queue = self.shared.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let now = self.shared.start.elapsed();
        queue.bytes.extend_from_slice(bytes);
        if let Some((time, Item::Output(last, length))) = queue.items.last_mut()
            && *last == source
            && *length < EVENT
            && now < *time + MERGE
        {
            *length += bytes.len();
        } else {
            queue.items.push((now, Item::Output(source, bytes.len())));
        }
        self.shared.wake(queue);
    }

    /// Something was typed.
    pub fn input(&self, bytes: &[u8], echo: Echo) {
        let mut queue = self.shared.lock();
        queue.bytes.extend_from_slice(bytes);
        let item = Item::Input(echo, bytes.len());
        queue.items.push((self.shared.start.elapsed(), item));
        self.shared.wake(queue);
    }

    /// The terminal has another size.
    pub fn resize(&self, cols: u16, rows: u16) {
        self.event(EventKind::Resize { cols, rows });
    }

    /// Puts a marker into the recording.
    pub fn mark(&self, label: &str) {
        self.event(EventKind::Marker(label.to_owned()));
    }

    /// Waits until all that was handed over before is written, or lost, and whoever listens has heard of it.
    pub fn flush(&self) {
        let mut queue = self.shared.lock();
        while (!queue.items.is_empty() || queue.busy) && !queue.over {
            queue = self.shared.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// How many bytes of the recording are in its file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.shared.written.load(Ordering::Acquire)
    }

    fn event(&self, kind: EventKind) {
        let mut queue = self.shared.lock();
        // Nobody makes so many; if somebody does, the recording does without them.
        if queue.items.len() < QUEUE / 16 {
            queue.items.push((self.shared.start.elapsed(), Item::Event(kind)));
        }
        self.shared.wake(queue);
    }
}

impl Running {
    /// Ends the recording: with how the command ended, if it did.
    ///
    /// # Errors
    /// `Internal` if the thread that wrote it failed.
    pub fn finish(self, status: Option<i32>) -> Result<Summary> {
        let mut queue = self.shared.lock();
        if let Some(status) = status {
            queue.items.push((self.shared.start.elapsed(), Item::Event(EventKind::Exit(status))));
        }
        queue.over = true;
        drop(queue);
        self.shared.filled.notify_all();
        self.shared.room.notify_all();
        self.writer.join().map_err(|_| Error::new(ErrorKind::Internal, "the thread that wrote the recording failed"))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, mut queue: MutexGuard<'_, Queue>) {
        if std::mem::take(&mut queue.idle) {
            drop(queue);
            self.filled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::Reader;
    use std::io::{BufReader, Read, Seek};

    struct Marks(Mutex<Vec<(Mark, u64)>>);

    impl Listener for Marks {
        fn mark(&self, mark: Mark, offset: u64) {
            self.0.lock().unwrap().push((mark, offset));
        }
    }

    fn options() -> Options {
        let header = Header { cols: 80, rows: 24, ..Header::default() };
        Options { header, bare_newlines: false, start: Instant::now(), most: u64::MAX }
    }

    fn file() -> File {
        tempfile::tempfile().unwrap()
    }

    fn events(mut file: File) -> Vec<EventKind> {
        file.rewind().unwrap();
        let mut reader = Reader::open(BufReader::new(file)).unwrap();
        let mut events = Vec::new();
        while let Some(placed) = reader.next_event().unwrap() {
            events.push(placed.event.kind);
        }
        assert_eq!((reader.faults(), reader.torn()), (0, false));
        events
    }

    #[test]
    fn all_kinds_of_events_come_in_order() {
        let file = file();
        let marks = Arc::new(Marks(Mutex::default()));
        let listener: Arc<dyn Listener> = Arc::clone(&marks) as Arc<dyn Listener>;
        let (tape, running) = Tape::start(file.try_clone().unwrap(), &options(), listener).unwrap();
        tape.output(Source::Terminal, b"caf\xc3");
        tape.resize(100, 30);
        tape.output(Source::Errors, b"err\xff");
        tape.output(Source::Terminal, b"\xa9\x1b]133;C\x07");
        tape.mark("here");
        tape.input(b"typed", Echo::Shown);
        let summary = running.finish(Some(0)).unwrap();
        assert_eq!(
            events(file.try_clone().unwrap()),
            [
                EventKind::Output("caf".into()),
                EventKind::Resize { cols: 100, rows: 30 },
                EventKind::Output("err\u{fffd}".into()),
                EventKind::Output("é\x1b]133;C\x07".into()),
                EventKind::Marker("here".into()),
                EventKind::Input("typed".into()),
            ]
        );
        assert_eq!((summary.bytes, summary.lost), (file.metadata().unwrap().len(), 0));
        let marks = marks.0.lock().unwrap();
        let (mark, offset) = &marks[0];
        assert_eq!(*mark, Mark::Start { command: None });
        let mut before = String::new();
        (&file).rewind().unwrap();
        (&file).take(*offset).read_to_string(&mut before).unwrap();
        assert!(before.ends_with("133;C\\u0007\"]\n"), "{before}");
    }

    #[test]
    fn a_marks_place_is_right_behind_it_however_much_came_at_once() {
        let file = file();
        let marks = Arc::new(Marks(Mutex::default()));
        let listener: Arc<dyn Listener> = Arc::clone(&marks) as Arc<dyn Listener>;
        let (tape, running) = Tape::start(file.try_clone().unwrap(), &options(), listener).unwrap();
        tape.output(Source::Terminal, b"one\x1b]133;D;0\x07two\x1b]133;D;1\x07");
        tape.output(Source::Terminal, b"three\x1b]133;");
        tape.output(Source::Terminal, b"D\x1b\\rest");
        running.finish(Some(0)).unwrap();
        let text =
            std::fs::read_to_string(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file))).unwrap();
        for (nth, (has, has_not)) in [("one", "two"), ("two", "three"), ("three", "rest")].into_iter().enumerate() {
            let (_, offset) = marks.0.lock().unwrap()[nth].clone();
            let before = &text[..usize::try_from(offset).unwrap()];
            assert!(before.ends_with("\n") && before.contains(has) && !before.contains(has_not), "{before}");
        }
    }

    #[test]
    fn what_is_shown_is_in_the_file_soon_and_however_much_it_is() {
        let file = file();
        let (tape, running) = Tape::start(file.try_clone().unwrap(), &options(), Arc::new(())).unwrap();
        tape.output(Source::Terminal, b"first");
        // Without anybody waiting for it.
        let (head, since) = (Encoder::header(&options().header).len() as u64, Instant::now());
        while tape.offset() == head {
            assert!(since.elapsed() < Duration::from_secs(60), "it is never written");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(tape.offset(), file.metadata().unwrap().len());
        assert_eq!(events(file.try_clone().unwrap()), [EventKind::Output("first".into())]);
        // Much more than may wait.
        let block = vec![b'x'; 8192];
        for _ in 0..(4 * QUEUE / block.len()) {
            tape.output(Source::Terminal, &block);
            assert!(tape.shared.lock().bytes.len() <= QUEUE + block.len());
        }
        running.finish(None).unwrap();
        let length: usize = events(file)
            .iter()
            .map(|event| match event {
                EventKind::Output(text) => text.len(),
                other => panic!("{other:?}"),
            })
            .sum();
        assert_eq!(length, 5 + 4 * QUEUE);
    }

    #[test]
    fn bare_newlines_get_their_returns() {
        let file = file();
        let options = Options { bare_newlines: true, ..options() };
        let (tape, running) = Tape::start(file.try_clone().unwrap(), &options, Arc::new(())).unwrap();
        tape.output(Source::Terminal, b"a\nb\r\n\n");
        running.finish(None).unwrap();
        assert_eq!(events(file), [EventKind::Output("a\r\nb\r\n\r\n".into())]);
    }

    #[test]
    fn endless_output_ends_the_recording_and_nothing_else() {
        let file = file();
        let options = Options { most: 1 << 20, ..options() };
        let marks = Arc::new(Marks(Mutex::default()));
        let listener: Arc<dyn Listener> = Arc::clone(&marks) as Arc<dyn Listener>;
        let (tape, running) = Tape::start(file.try_clone().unwrap(), &options, listener).unwrap();
        let block = vec![b'x'; 8192];
        for _ in 0..1000 {
            tape.output(Source::Terminal, &block);
        }
        tape.flush();
        let full = file.metadata().unwrap().len();
        tape.output(Source::Terminal, b"\x1b]133;C\x07");
        tape.resize(100, 30);
        let summary = running.finish(Some(0)).unwrap();
        assert!(summary.stopped.is_some() && summary.bytes == full, "{summary:?}");
        assert!((1 << 19..(1 << 20) + 1000).contains(&full), "{full}");
        let mut events = events(file);
        let last = events.pop();
        assert!(matches!(&last, Some(EventKind::Marker(label)) if label.contains("ends here")), "{last:?}");
        let shown = |event: &EventKind| if let EventKind::Output(text) = event { text.len() as u64 } else { 0 };
        assert_eq!(events.iter().map(shown).sum::<u64>() + summary.lost, 8_192_000 + 8);
        assert_eq!(*marks.0.lock().unwrap(), [(Mark::Start { command: None }, full)]);
    }

    #[test]
    fn a_full_disk_is_no_place_to_begin() {
        // Every write to it fails as on a full disk.
        let full = File::options().append(true).open("/dev/full").unwrap();
        let error = Tape::start(full, &options(), Arc::new(())).map(|_| ()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ResourceExhausted);
    }
}
