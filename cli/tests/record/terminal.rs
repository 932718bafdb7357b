//! A terminal for a test: a pty with a program on it that has it as its controlling terminal.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

/// Slow machines are slow.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Terminal {
    ours: File,
    theirs: OwnedFd,
    /// The terminal's modes before anything ran on it.
    pub(crate) before: Termios,
    pub(crate) child: Child,
    shown: Arc<Mutex<Vec<u8>>>,
    frozen: Arc<AtomicBool>,
}

impl Terminal {
    /// Runs `command` on a terminal of that size.
    pub(crate) fn run(command: &Command, cols: u16, rows: u16) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let theirs = ioctl_tiocgptpeer(&ours, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        let this = |ours: OwnedFd| File::from(ours);
        resize(&ours, cols, rows);
        let before = tcgetattr(&theirs).unwrap();
        // A session of its own, with this terminal.
        let mut setsid = Command::new("setsid");
        setsid.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        setsid.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        setsid.current_dir(command.get_current_dir().unwrap());
        let copy = || Stdio::from(theirs.try_clone().unwrap());
        let child = setsid.stdin(copy()).stdout(copy()).stderr(copy()).spawn().unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut from, into) = (this(ours.try_clone().unwrap()), Arc::clone(&shown));
        let frozen = Arc::new(AtomicBool::new(false));
        let waits = Arc::clone(&frozen);
        std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(count) = from.read(&mut buffer) {
                into.lock().unwrap().extend_from_slice(&buffer[..count]);
                while waits.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        });
        Self { ours: this(ours), theirs, before, child, shown, frozen }
    }

    pub(crate) fn resize(&self, cols: u16, rows: u16) {
        resize(&self.ours, cols, rows);
    }

    pub(crate) fn modes(&self) -> Termios {
        tcgetattr(&self.theirs).unwrap()
    }

    pub(crate) fn type_in(&mut self, text: impl AsRef<[u8]>) {
        self.ours.write_all(text.as_ref()).unwrap();
    }

    pub(crate) fn shown(&self) -> Vec<u8> {
        self.shown.lock().unwrap().clone()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown()).into_owned()
    }

    /// Waits until `text` was shown so many times.
    pub(crate) fn wait_for(&self, text: &str, times: usize) {
        wait(|| self.text().matches(text).count() >= times, || format!("{text:?} in {:?}", self.text()));
    }

    /// Reads no more of what is shown, or does so again; once it is frozen something may be read one more time.
    pub(crate) fn freeze(&self, frozen: bool) {
        self.frozen.store(frozen, Ordering::Release);
    }

    /// Waits until this process can write no more.
    pub(crate) fn wait_until_full(&self, process: i32) {
        let written = || fs::read_to_string(format!("/proc/{process}/io")).unwrap();
        let mut before = String::new();
        // A terminal takes some thousand bytes.
        let much = |io: &str| {
            let bytes = io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok());
            bytes.is_some_and(|bytes| bytes > 2000)
        };
        let stands = || {
            let last = std::mem::replace(&mut before, written());
            std::thread::sleep(Duration::from_millis(300));
            last == before && much(&before)
        };
        wait(stands, || "a full terminal".into());
    }

    /// Waits for the end; the exit status as a shell has it.
    pub(crate) fn end(&mut self) -> i32 {
        let mut status = None;
        let (child, shown) = (&mut self.child, &self.shown);
        wait(
            || {
                status = child.try_wait().unwrap();
                status.is_some()
            },
            || format!("the end, after {:?}", String::from_utf8_lossy(&shown.lock().unwrap())),
        );
        // What was shown last is read by another thread: it is there when what comes after it is.
        const LAST: &[u8] = b"<\0the end\0>";
        File::from(self.theirs.try_clone().unwrap()).write_all(LAST).unwrap();
        let place = || self.shown().windows(LAST.len()).rposition(|bytes| bytes == LAST);
        wait(|| place().is_some(), || "what was shown last".into());
        let at = place().unwrap();
        self.shown.lock().unwrap().drain(at..at + LAST.len());
        let status = status.unwrap();
        status.code().or_else(|| Some(128 + status.signal()?)).unwrap()
    }

    /// Waits until a process whose command line begins with these words runs below this terminal; its id.
    pub(crate) fn process(&self, words: &[&OsStr]) -> i32 {
        let mut found = None;
        wait(
            || {
                found = process(self.child.id(), words);
                found.is_some()
            },
            || format!("a process {words:?}"),
        );
        found.unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.freeze(false);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(ours: &impl std::os::fd::AsFd, cols: u16, rows: u16) {
    tcsetwinsize(ours, Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// Waits until `done`.
pub(crate) fn wait(mut done: impl FnMut() -> bool, what: impl Fn() -> String) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < PATIENCE, "waited in vain for {}", what());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The first process, `above` or below it, whose command line begins with `words`.
fn process(above: u32, words: &[&OsStr]) -> Option<i32> {
    let line = std::fs::read(format!("/proc/{above}/cmdline")).ok()?;
    let there: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
    let wanted: Vec<&[u8]> = words.iter().map(|word| word.as_encoded_bytes()).collect();
    if there.starts_with(&wanted) {
        return above.try_into().ok();
    }
    let children = std::fs::read_to_string(format!("/proc/{above}/task/{above}/children")).ok()?;
    children.split_whitespace().find_map(|pid| process(pid.parse().ok()?, words))
}
