//! The screen at any point of a recording.
//!
//! A terminal emulator follows what is played. Now and then its whole screen is kept, with the line of the recording that comes
//! next: to go back is to start from the last one kept and to follow from there.

use std::io::BufRead;
use std::time::{Duration, Instant};

use ah_plugin_api::{Error, ErrorKind, Result};
use avt::Terminal;

use super::{Point, Source};
use crate::cast::{EventKind, Header, Placed, Reader};

/// A screen is kept after so much of the file at the earliest.
const EVERY: u64 = 256 << 10;
/// So many are kept at most; then every other one is dropped, and they are kept half as often.
const MOST: usize = 256;
/// And so many bytes of them.
const MOST_BYTES: usize = 64 << 20;
/// Sizes beyond these are nonsense, and would take memory: columns or rows, and cells.
const LARGEST: usize = 2000;
const MOST_CELLS: usize = 1 << 19;
/// A hostile recording has few bytes print for seconds: so many are followed before somebody is looked for who ends it.
const PIECE: usize = 512;
/// Nobody goes to more markers one by one.
const MOST_MARKERS: usize = 100_000;

struct Kept {
    time: Duration,
    offset: u64,
    size: (usize, usize),
    dump: String,
    /// Lines before it that could not be read.
    faults: u64,
}

/// A recording that is followed.
pub(super) struct Screens<'a> {
    source: &'a dyn Source,
    header: Header,
    reader: Reader<Box<dyn BufRead + 'a>>,
    /// Lines that could not be read before the reader began.
    before: u64,
    /// The most of those that were come to by now, and whether the end is in the middle of a line.
    unread: (u64, bool),
    terminal: Terminal,
    /// The time of the last event that was shown.
    time: Duration,
    /// The byte after its line.
    offset: u64,
    /// An event that was read, and not shown yet.
    next: Option<Placed>,
    kept: Vec<Kept>,
    every: u64,
    /// The markers that were seen so far, in order: their times, and the bytes after them.
    markers: Vec<(Duration, u64)>,
    /// Whether what began then is not to be gone on with.
    stop: Box<dyn Fn(Instant) -> bool + 'a>,
    /// An event was not followed to its end: until it is gone back, the screen is not what it was then, and none is kept.
    is_cut: bool,
}

impl<'a> Screens<'a> {
    pub(super) fn open(source: &'a dyn Source) -> Result<Self> {
        let reader = Reader::open(source.open_at(0)?)?;
        let header = reader.header().clone();
        let terminal = terminal((header.cols.into(), header.rows.into()))?;
        let offset = reader.offset();
        let kept = vec![Kept { time: Duration::ZERO, offset, size: terminal.size(), dump: String::new(), faults: 0 }];
        Ok(Self {
            source,
            header,
            reader,
            before: 0,
            unread: (0, false),
            terminal,
            time: Duration::ZERO,
            offset,
            next: None,
            kept,
            every: EVERY,
            markers: Vec::new(),
            stop: Box::new(|_| false),
            is_cut: false,
        })
    }

    /// Asks from now on whether to go on, with the time at which something began. What is cut short so leaves the screen as far as it came.
    pub(super) fn ask(&mut self, stop: impl Fn(Instant) -> bool + 'a) {
        self.stop = Box::new(stop);
    }

    pub(super) fn header(&self) -> &Header {
        &self.header
    }

    /// The lines that could not be read, of all that were come to, and whether the last one is not whole. To go back does not take it back.
    pub(super) fn unread(&self) -> (u64, bool) {
        let (most, torn) = self.unread;
        (most.max(self.before + self.reader.faults()), torn || self.reader.torn())
    }

    pub(super) fn time(&self) -> Duration {
        self.time
    }

    /// The next event, which is to be [`Screens::shown`] or [`Screens::put_back`].
    pub(super) fn next(&mut self) -> Result<Option<Placed>> {
        match self.next.take() {
            Some(next) => Ok(Some(next)),
            None => self.reader.next_event(),
        }
    }

    pub(super) fn put_back(&mut self, next: Placed) {
        self.next = Some(next);
    }

    /// Follows an event.
    pub(super) fn shown(&mut self, placed: Placed) {
        self.time = self.time.max(placed.event.time);
        self.offset = placed.end;
        match placed.event.kind {
            EventKind::Output(text) => self.follow(&text),
            EventKind::Resize { cols, rows } => {
                let (cols, rows) = sane((cols.into(), rows.into()));
                self.terminal.resize(cols, rows);
            }
            EventKind::Marker(_)
                if self.markers.len() < MOST_MARKERS
                    && self.markers.last().is_none_or(|(_, end)| *end < placed.end) =>
            {
                self.markers.push((placed.event.time, placed.end));
            }
            _ => {}
        }
        if !self.is_cut && self.kept.last().is_none_or(|last| self.offset >= last.offset + self.every) {
            self.keep();
        }
    }

    fn follow(&mut self, mut text: &str) {
        let began = Instant::now();
        while !text.is_empty() {
            let mut ends = PIECE.min(text.len())..=text.len();
            let (piece, rest) = text.split_at(ends.find(|at| text.is_char_boundary(*at)).unwrap_or(text.len()));
            self.terminal.feed(piece);
            text = rest;
            if !text.is_empty() && (self.stop)(began) {
                self.is_cut = true;
                return;
            }
        }
    }

    fn keep(&mut self) {
        let (size, dump) = (self.terminal.size(), self.terminal.dump());
        let faults = self.before + self.reader.faults();
        self.kept.push(Kept { time: self.time, offset: self.offset, size, dump, faults });
        // The first one is the beginning, which takes nothing.
        while self.kept.len() > MOST || self.kept.iter().map(|kept| kept.dump.len()).sum::<usize>() > MOST_BYTES {
            let mut number = 0;
            self.kept.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// Goes to a point; to the end if that comes before.
    pub(super) fn go_to(&mut self, point: Point) -> Result<()> {
        // All that is shown at that very time belongs to it.
        let before = |time: Duration, end: u64| match point {
            Point::Time(wanted) => time <= wanted,
            Point::Offset(wanted) => end <= wanted,
        };
        if !before(self.time, self.offset) {
            self.back_to(self.kept.iter().rposition(|kept| before(kept.time, kept.offset)).unwrap_or(0))?;
        }
        let began = Instant::now();
        while let Some(next) = self.next()? {
            if (self.stop)(began) {
                self.put_back(next);
                break;
            }
            if !before(next.event.time, next.end) {
                self.put_back(next);
                // Played on from between two events, only what is left of the pause is waited for.
                if let Point::Time(wanted) = point {
                    self.time = wanted;
                }
                break;
            }
            self.shown(next);
        }
        Ok(())
    }

    /// Goes to the next marker; to the end if there is none.
    pub(super) fn go_to_next_marker(&mut self) -> Result<()> {
        let began = Instant::now();
        while let Some(next) = self.next()? {
            if (self.stop)(began) {
                self.put_back(next);
                break;
            }
            let found = matches!(next.event.kind, EventKind::Marker(_));
            self.shown(next);
            if found {
                break;
            }
        }
        Ok(())
    }

    /// Goes to the marker before; to the beginning if there is none. One that was passed within the last second is left, too, so
    /// that pressed again and again it goes further back while the recording plays on.
    pub(super) fn go_to_last_marker(&mut self) -> Result<()> {
        let (now, offset) = (self.time, self.offset);
        let far = |time: Duration| time + Duration::from_secs(1) < now;
        let last = self.markers.iter().rev().find(|(time, end)| *end < offset && far(*time));
        match last.copied() {
            Some((_, end)) => self.go_to(Point::Offset(end)),
            None => self.back_to(0),
        }
    }

    fn back_to(&mut self, kept: usize) -> Result<()> {
        self.unread = self.unread();
        let kept = self.kept.get(kept).ok_or_else(|| Error::new(ErrorKind::Internal, "no screen was kept"))?;
        self.terminal = terminal(kept.size)?;
        self.terminal.feed(kept.dump.as_str());
        self.reader = Reader::resume(self.source.open_at(kept.offset)?, self.header.clone(), kept.offset, kept.time);
        self.before = kept.faults;
        (self.time, self.offset, self.next, self.is_cut) = (kept.time, kept.offset, None, false);
        Ok(())
    }

    /// What paints the screen as it is now on a terminal that shows nothing.
    pub(super) fn paint(&self) -> String {
        self.terminal.dump()
    }

    /// The screen as it is now, as text up to the cursor, for what is no terminal.
    pub(super) fn text(&self) -> String {
        let cursor = self.terminal.cursor();
        let mut lines: Vec<String> =
            self.terminal.screen().visible_lines().map(|line| line.text().trim_end().to_owned()).collect();
        lines.truncate(cursor.row + 1);
        let mut text = lines.join("\r\n");
        // What comes next goes on from there.
        let last = lines.last().map_or(0, |line| line.chars().count());
        text.extend(std::iter::repeat_n(' ', cursor.col.saturating_sub(last)));
        text.trim_start_matches("\r\n").to_owned()
    }
}

fn sane((cols, rows): (usize, usize)) -> (usize, usize) {
    let cols = cols.clamp(1, LARGEST);
    (cols, rows.clamp(1, LARGEST.min(MOST_CELLS / cols)))
}

fn terminal(size: (usize, usize)) -> Result<Terminal> {
    let (cols, rows) = sane(size);
    let made = Terminal::new(cols, rows);
    made.map_err(|error| Error::new(ErrorKind::Internal, "there is no such screen").with_cause(&error))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Text, sample};
    use super::*;

    fn text(screens: &Screens<'_>) -> String {
        let lines = screens.terminal.screen().text();
        lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }

    fn play_all(screens: &mut Screens<'_>) {
        while let Some(next) = screens.next().unwrap() {
            screens.shown(next);
        }
    }

    #[test]
    fn every_point_is_reached_from_both_sides() {
        let source = sample();
        let mut forwards = Screens::open(&source).unwrap();
        let mut backwards = Screens::open(&source).unwrap();
        play_all(&mut backwards);
        for at in (0..100).step_by(7) {
            forwards.go_to(Point::Time(Duration::from_secs(at))).unwrap();
            assert!(text(&forwards).ends_with(&format!("line {at}")), "{at}: {}", text(&forwards));
        }
        for at in (0..100).rev().step_by(7) {
            backwards.go_to(Point::Time(Duration::from_secs(at))).unwrap();
            assert!(text(&backwards).ends_with(&format!("line {at}")), "{at}");
        }
    }

    #[test]
    fn markers_are_gone_to_one_by_one() {
        let source = sample();
        let mut screens = Screens::open(&source).unwrap();
        for at in [5, 15, 25] {
            screens.go_to_next_marker().unwrap();
            assert!(text(&screens).ends_with(&format!("line {at}")), "{}", text(&screens));
        }
        screens.go_to(Point::Time(Duration::from_secs(28))).unwrap();
        for at in [25, 15, 5] {
            screens.go_to_last_marker().unwrap();
            assert!(text(&screens).ends_with(&format!("line {at}")), "{at}: {}", text(&screens));
        }
        screens.go_to_last_marker().unwrap();
        assert_eq!(text(&screens), "");
        play_all(&mut screens);
        assert!(text(&screens).ends_with("line 99"));
    }

    #[test]
    fn what_cannot_be_read_counts_once_however_often_it_is_passed() {
        let mut source = sample();
        source.0 = source.0.replace("]\n[", "]\nnonsense\n[");
        let lines = source.0.matches("nonsense").count() as u64;
        source.0.push_str("[99.5, \"o\", \"not who");
        let mut screens = Screens::open(&source).unwrap();
        screens.every = 100;
        let to = |screens: &mut Screens<'_>, seconds| {
            screens.go_to(Point::Time(Duration::from_secs(seconds))).unwrap();
            screens.unread()
        };
        let half = to(&mut screens, 50);
        assert!((50..70).contains(&half.0) && !half.1, "{half:?}");
        assert_eq!(to(&mut screens, 20), half);
        assert_eq!(to(&mut screens, 200), (lines, true));
        assert_eq!(to(&mut screens, 10), (lines, true));
        assert_eq!(to(&mut screens, 200), (lines, true));
    }

    #[test]
    fn offsets_are_those_of_moments() {
        let source = sample();
        let offset = source.0.find("[40.0").unwrap() as u64;
        let mut screens = Screens::open(&source).unwrap();
        screens.go_to(Point::Offset(offset)).unwrap();
        assert!(text(&screens).ends_with("line 39"), "{}", text(&screens));
        screens.go_to(Point::Offset(u64::MAX)).unwrap();
        assert!(text(&screens).ends_with("line 99"));
    }

    #[test]
    fn few_screens_are_kept_of_a_long_recording() {
        let mut long = "{\"version\":3,\"term\":{\"cols\":20,\"rows\":5}}\n".to_owned();
        let block = "x".repeat(3000);
        for i in 0..3000 {
            long.push_str(&format!("[0.1, \"o\", \"{block}\\r\\n{i}\"]\n"));
        }
        let source = Text(long);
        let mut screens = Screens::open(&source).unwrap();
        screens.every = 3000;
        play_all(&mut screens);
        assert!(screens.kept.len() <= MOST && screens.kept.len() > MOST / 4, "{}", screens.kept.len());
        screens.go_to(Point::Time(Duration::from_millis(100_050))).unwrap();
        assert!(text(&screens).ends_with("\n999"), "{}", text(&screens));
    }

    #[test]
    fn what_is_kept_of_large_screens_is_bounded() {
        let cells: String = (0..300 * 300).map(|i| format!("\\u001b[38;2;{};{};99mx", i % 200, i / 450)).collect();
        let mut text = format!("{{\"version\":2,\"width\":300,\"height\":300}}\n[0, \"o\", \"{cells}\"]\n");
        for _ in 0..100 {
            text.push_str("[0, \"i\", \"typed\"]\n");
        }
        let source = Text(text);
        let mut screens = Screens::open(&source).unwrap();
        screens.every = 10;
        play_all(&mut screens);
        let bytes: usize = screens.kept.iter().map(|kept| kept.dump.len()).sum();
        assert!(bytes <= 64 << 20 && screens.kept.len() > 8, "{bytes} in {}", screens.kept.len());
    }

    #[test]
    fn nonsense_is_ended_amid_it() {
        let mut text = "{\"version\":2,\"width\":200,\"height\":50}\n".to_owned();
        text.push_str(&format!("[0, \"o\", \"x{}\"]\n", "\\u001b[65535b".repeat(10_000)));
        for at in 0..100 {
            text.push_str(&format!("[{at}, \"r\", \"{}x50\"]\n[{at}, \"m\", \"\"]\n", 100 + at));
        }
        let source = Text(text);
        let mut screens = Screens::open(&source).unwrap();
        let asked = std::rc::Rc::new(std::cell::Cell::new(0));
        let counts = asked.clone();
        screens.ask(move |_| {
            counts.set(counts.get() + 1);
            counts.get() > 2
        });
        // The first of some 180 pieces, and then nothing more.
        let first = screens.next().unwrap().unwrap();
        screens.shown(first);
        assert_eq!(asked.get(), 3);
        screens.go_to(Point::Time(Duration::from_secs(50))).unwrap();
        screens.go_to_next_marker().unwrap();
        assert_eq!((screens.terminal.size(), screens.time(), asked.get()), ((200, 50), Duration::ZERO, 5));
    }

    #[test]
    fn nonsense_takes_no_memory() {
        let mut text = "{\"version\":2,\"width\":65535,\"height\":65535}\n".to_owned();
        text.push_str(&"[0, \"m\", \"\"]\n".repeat(100_010));
        text.push_str("[0, \"r\", \"3000x1999\"]\n");
        let source = Text(text);
        let mut screens = Screens::open(&source).unwrap();
        let cells = |screens: &Screens<'_>| screens.terminal.size().0 * screens.terminal.size().1;
        assert!(cells(&screens) <= 1 << 19, "{:?}", screens.terminal.size());
        play_all(&mut screens);
        assert!(cells(&screens) <= 1 << 19, "{:?}", screens.terminal.size());
        assert_eq!(screens.markers.len(), 100_000);
    }
}
