//! Playing a recording in the terminal, forwards and backwards.
//!
//! Played straight on, of what was recorded all that draws is written to the terminal as it is, and nothing else (`filter.rs`): a recording may be
//! anybody's. After a jump the screen is painted as it was at that point (`screens.rs`), so that nothing flashes by. The recording is read as it
//! is played: its length does not matter. However it ends, by a signal too, the terminal is as it was.

mod filter;
mod keys;
mod screens;

use std::cell::RefCell;
use std::io::BufRead;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use ah_plugin_api::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::{QueueSelector, tcflush};

use crate::cast::{EventKind, Placed};
use crate::outlet::Outlet;
use crate::run::{Raw, Signals};
use filter::Filter;
use keys::{Key, Typed};
use screens::Screens;

/// How far an arrow key jumps.
const JUMP: Duration = Duration::from_secs(5);

/// A recording that can be read from any line of it.
pub trait Source {
    /// Opens it at the line that begins at byte `offset`.
    ///
    /// # Errors
    /// What opening and reading give.
    fn open_at(&self, offset: u64) -> Result<Box<dyn BufRead + '_>>;
}

/// A point in a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// So long after its beginning.
    Time(Duration),
    /// So many bytes after it, as a moment notes it.
    Offset(u64),
}

/// How it is to be played.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// So many times as fast; above 0.
    pub speed: f64,
    /// Pauses are at most so long; none: what the recording itself wishes.
    pub idle_limit: Option<Duration>,
    /// Where it begins.
    pub from: Option<Point>,
}

impl Default for Options {
    fn default() -> Self {
        Self { speed: 1.0, idle_limit: None, from: None }
    }
}

/// How it was played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Played {
    /// The signal that ended it on a terminal, if one did.
    pub signal: Option<i32>,
    /// Lines that could not be read, of those that were come to.
    pub faults: u64,
    /// It was come to the end, which is in the middle of a line.
    pub torn: bool,
}

/// What a player waits for, beside keys and signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The time of the next event.
    Due,
    /// That the terminal takes more.
    Room,
}

/// What came.
enum Wake {
    /// What was waited for.
    Ready,
    /// A key that goes somewhere else.
    Key(Key),
    /// Somebody ends it; by that signal, if it was one.
    Over(Option<i32>),
}

/// Plays `source` on `out`, with keys from `keys` if that is a terminal. Where `out` is no terminal, everything is written at once.
/// On a terminal it is ended by SIGHUP, SIGINT, SIGQUIT and SIGTERM, which do nothing else meanwhile.
///
/// # Errors
/// `InvalidArgument` if it is no recording; what reading and writing give.
pub fn play(
    source: &dyn Source,
    options: &Options,
    out: BorrowedFd<'_>,
    keys: Option<BorrowedFd<'_>>,
) -> Result<Played> {
    let timed = rustix::termios::isatty(out);
    let keys = keys.filter(|keys| timed && rustix::termios::isatty(keys));
    let keys = keys.and_then(|keys| keys.try_clone_to_owned().ok());
    let mut screens = Screens::open(source)?;
    let cannot = |error: std::io::Error| Error::from_io("signals cannot be waited for", &error);
    let signals = timed.then(Signals::of_player).transpose().map_err(cannot)?;
    let raw = keys.as_ref().and_then(|keys| Raw::new(keys).ok());
    let signals = signals.map(Rc::new);
    let typed = Rc::new(RefCell::new(Typed::default()));
    let (asked, ended) = (keys.as_ref().and_then(|keys| keys.try_clone().ok()), signals.clone());
    let waiting = Rc::clone(&typed);
    // A key that comes while a jump takes its time means the end of that.
    screens.ask(move |began| {
        if began.elapsed() > PATIENCE && waiting.borrow().waits() {
            return true;
        }
        let mut fds: Vec<PollFd<'_>> = ended.iter().map(|signals| PollFd::new(&**signals, PollFlags::IN)).collect();
        fds.extend(asked.iter().filter(|_| began.elapsed() > PATIENCE).map(|keys| PollFd::new(keys, PollFlags::IN)));
        !fds.is_empty() && poll(&mut fds, Some(&NOW)).is_ok_and(|ready| ready > 0)
    });
    let wished = screens.header().idle_limit.and_then(|limit| Duration::try_from_secs_f64(limit).ok());
    let mut player = Player {
        screens,
        filter: Filter::default(),
        out: Outlet::new(out),
        keys: keys.as_ref(),
        typed,
        signals,
        speed: if options.speed.is_finite() && options.speed > 0.0 { options.speed } else { 1.0 },
        limit: options.idle_limit.or(wished).unwrap_or(Duration::MAX),
        due: Instant::now(),
        paused: false,
        timed,
    };
    let played = player.run(options.from);
    if timed {
        player.leave(!matches!(played, Ok(Over::AtItsEnd)));
        // Nothing is asked of the terminal; what was typed ahead for the player is not for the shell.
        if let Some(keys) = &keys {
            let _ = tcflush(keys, QueueSelector::IFlush);
        }
    }
    drop(raw);
    let (faults, torn) = player.screens.unread();
    let signal = match played? {
        Over::AtItsEnd => None,
        Over::Ended(signal) => signal,
    };
    Ok(Played { signal, faults, torn })
}

/// So long a jump takes that nobody cuts short who presses the next key already.
const PATIENCE: Duration = Duration::from_secs(1);

/// No time at all.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The window's title, put aside.
const TITLE_KEPT: &str = "\x1b[22;0t";

/// All that [`Filter`] lets through, as usual again, in the line below: no synchronized output, soft reset, and for terminals that know none of that:
/// replacing, wrapping, the whole screen without origin or margins (the cursor stays where it is), no reverse video, the cursor shown and of
/// the usual shape, the usual characters and colours, no link; and the window's title.
const LEAVE: &str = "\x1b[?2026l\x1b[!p\x1b[4l\x1b[20l\x1b[?7h\x1b[?45l\x1b7\x1b[?6l\x1b[?69l\x1b[r\x1b8\x1b[?5l\x1b[?12l\x1b[?25h\x1b[0 q\x1b(B\x1b)B\x0f\x1b[0m\x1b]8;;\x1b\\\x1b[23;0t\r\n";

/// How it ended.
enum Over {
    AtItsEnd,
    /// Somebody did that; by that signal, if it was one.
    Ended(Option<i32>),
}

struct Player<'a> {
    screens: Screens<'a>,
    filter: Filter,
    out: Outlet<'a>,
    keys: Option<&'a OwnedFd>,
    typed: Rc<RefCell<Typed>>,
    signals: Option<Rc<Signals>>,
    speed: f64,
    limit: Duration,
    /// When the next event is due, if it came right after the last one.
    due: Instant,
    paused: bool,
    timed: bool,
}

impl Player<'_> {
    /// Plays it, from a point or its beginning.
    fn run(&mut self, from: Option<Point>) -> Result<Over> {
        let mut wake = if self.timed { self.show(TITLE_KEPT, None)? } else { Wake::Ready };
        if let (Wake::Ready, Some(from)) = (&wake, from) {
            self.screens.go_to(from)?;
            wake = self.paint()?;
        }
        loop {
            wake = match wake {
                Wake::Over(signal) => return Ok(Over::Ended(signal)),
                Wake::Key(key) => self.jump(key)?,
                Wake::Ready => match self.screens.next()? {
                    Some(next) => self.event(next)?,
                    None => return Ok(Over::AtItsEnd),
                },
            };
        }
    }

    /// Shows an event, when it is due.
    fn event(&mut self, next: Placed) -> Result<Wake> {
        if self.timed {
            let pause = next.event.time.saturating_sub(self.screens.time()).min(self.limit);
            // What took longer than it should is not made up for in one go.
            self.due = (self.due + scaled(pause, self.speed)).max(Instant::now());
            let wake = self.wait(Until::Due);
            if !matches!(wake, Wake::Ready) {
                self.screens.put_back(next);
                return Ok(wake);
            }
        }
        let mut wake = Wake::Ready;
        if let EventKind::Output(text) = &next.event.kind {
            let before = self.filter.other_screen();
            let text = self.filter.push(text);
            wake = self.show(&text, before)?;
        }
        if !matches!(wake, Wake::Over(_)) {
            self.screens.shown(next);
        }
        Ok(wake)
    }

    /// Writes it as fast as it is taken, with the mode of the other screen that was shown `before`. What comes before that is done leaves the rest out.
    fn show(&mut self, text: &str, before: Option<String>) -> Result<Wake> {
        let mut bytes = text.as_bytes();
        while !bytes.is_empty() {
            let wake = self.wait(Until::Room);
            if !matches!(wake, Wake::Ready) {
                let came = String::from_utf8_lossy(&text.as_bytes()[..text.len() - bytes.len()]);
                self.filter.cut_short(before, &came);
                if !self.has_room(Some(&NOW)) {
                    self.drop_rest();
                }
                return Ok(wake);
            }
            let written =
                self.out.write(bytes).map_err(|e| Error::from_io("the recording cannot be shown", &e.into()))?;
            bytes = &bytes[written..];
        }
        Ok(Wake::Ready)
    }

    /// Has the terminal not shown what it has not taken yet.
    fn drop_rest(&mut self) {
        let _ = tcflush(&self.out, QueueSelector::OFlush);
        self.filter.lose();
    }

    /// Leaves the terminal as it was. If it was `ended` before its end, what the terminal has not taken yet is not waited for.
    fn leave(&mut self, ended: bool) {
        if !self.has_room(Some(&NOW).filter(|_| ended)) {
            self.drop_rest();
        }
        let text = format!("{}{LEAVE}", self.filter.main_screen());
        let mut bytes = text.as_bytes();
        while !bytes.is_empty()
            && self.has_room(Some(&NOW))
            && let Ok(written) = self.out.write(bytes)
        {
            bytes = &bytes[written..];
        }
    }

    /// Whether the terminal takes more; until it does, that or a signal is waited for.
    fn has_room(&self, patience: Option<&Timespec>) -> bool {
        let mut fds = vec![self.out.room()];
        fds.extend(self.signals.iter().map(|signals| PollFd::new(&**signals, PollFlags::IN)));
        let _ = poll(&mut fds, patience);
        !fds[0].revents().is_empty()
    }

    /// Waits for that, or for what comes before.
    fn wait(&mut self, until: Until) -> Wake {
        loop {
            // A terminal that takes all at once is shown all that was begun.
            if until == Until::Room && self.has_room(Some(&NOW)) {
                return Wake::Ready;
            }
            if let Some(signal) = self.signals.as_ref().and_then(|signals| signals.take().first().copied()) {
                return Wake::Over(Some(signal));
            }
            // Keys come first: events may be due all the time.
            let key = self.typed.borrow_mut().take();
            match key {
                None => {}
                Some(Key::Pause) => {
                    self.paused = !self.paused;
                    continue;
                }
                Some(Key::Quit) => return Wake::Over(None),
                Some(key) => return Wake::Key(key),
            }
            let left = match until {
                Until::Due if !self.paused => Some(self.due.saturating_duration_since(Instant::now())),
                Until::Due | Until::Room => None,
            };
            let mut fds: Vec<PollFd<'_>> = self.keys.iter().map(|keys| PollFd::new(*keys, PollFlags::IN)).collect();
            fds.extend(self.signals.as_ref().map(|signals| PollFd::new(&**signals, PollFlags::IN)));
            fds.extend((until == Until::Room).then(|| self.out.room()));
            let _ = poll(&mut fds, left.and_then(|left| Timespec::try_from(left).ok()).as_ref());
            let Some(keys) = self.keys.filter(|_| !fds[0].revents().is_empty()) else {
                if left.is_some_and(|left| left.is_zero()) {
                    return Wake::Ready;
                }
                continue;
            };
            let mut buffer = [0; 64];
            match rustix::io::read(keys, &mut buffer) {
                Ok(0) | Err(rustix::io::Errno::IO) => return Wake::Over(None),
                Ok(count) => self.typed.borrow_mut().push(&buffer[..count]),
                Err(_) => {}
            }
        }
    }

    fn jump(&mut self, key: Key) -> Result<Wake> {
        let now = self.screens.time();
        match key {
            Key::Forward => self.screens.go_to(Point::Time(now + JUMP))?,
            Key::Back => self.screens.go_to(Point::Time(now.saturating_sub(JUMP)))?,
            Key::NextMarker => self.screens.go_to_next_marker()?,
            Key::LastMarker => self.screens.go_to_last_marker()?,
            Key::Pause | Key::Quit => return Ok(Wake::Ready),
        }
        self.paint()
    }

    fn paint(&mut self) -> Result<Wake> {
        self.due = Instant::now();
        let before = self.filter.other_screen();
        let mut text = String::new();
        if self.timed {
            // From a known state: the main screen, no scrolling region, nothing shown.
            text.push_str(&self.filter.main_screen());
            text.push_str("\x1b[!p\x1b[r\x1b[0m\x1b[2J\x1b[H");
        }
        // What began before is not gone on with.
        self.filter.cut();
        match self.timed {
            true => text.push_str(&self.filter.push(&self.screens.paint())),
            false => text.push_str(&self.screens.text()),
        }
        self.show(&text, before)
    }
}

fn scaled(pause: Duration, speed: f64) -> Duration {
    // A year is as good as for ever, and can be added to the present.
    const LONG: f64 = 31e6;
    Duration::from_secs_f64((pause.as_secs_f64() / speed).min(LONG))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Cursor, Read, Seek};
    use std::os::fd::AsFd;

    pub(super) struct Text(pub(super) String);

    impl Source for Text {
        fn open_at(&self, offset: u64) -> Result<Box<dyn BufRead + '_>> {
            let mut cursor = Cursor::new(self.0.as_bytes());
            cursor.set_position(offset);
            Ok(Box::new(cursor))
        }
    }

    pub(super) fn sample() -> Text {
        let mut text = "{\"version\":2,\"width\":20,\"height\":5}\n".to_owned();
        for i in 0..100 {
            text.push_str(&format!("[{i}.0, \"o\", \"\\r\\nline {i}\"]\n"));
            if i % 10 == 5 {
                text.push_str(&format!("[{i}.5, \"m\", \"mark {i}\"]\n"));
            }
        }
        Text(text)
    }

    fn played(options: &Options) -> String {
        let mut file = tempfile::tempfile().unwrap();
        play(&sample(), options, file.as_fd(), None).unwrap();
        let mut shown = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut shown).unwrap();
        shown
    }

    #[test]
    fn without_a_terminal_all_is_written_at_once() {
        let shown = played(&Options::default());
        assert!(shown.starts_with("\r\nline 0\r\nline 1") && shown.ends_with("line 99"), "{shown}");
    }

    #[test]
    fn from_a_point_the_screen_of_then_comes_first() {
        let shown = played(&Options { from: Some(Point::Time(Duration::from_secs(97))), ..Options::default() });
        // As text: nobody who reads a pipe moves a cursor.
        let lines: Vec<String> = (93..100).map(|i| format!("line {i}")).collect();
        assert_eq!(shown, lines.join("\r\n"));
    }

    #[test]
    fn no_pause_is_too_long_to_wait_for() {
        for speed in [1e-300, 1.0, 1e300] {
            assert!(Instant::now().checked_add(scaled(Duration::from_secs(1_000_000_000), speed)).is_some());
        }
    }
}
