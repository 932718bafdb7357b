//! Hears what somebody changes in the lower directory, and has the kernel forget what it remembers of it: it is told once that names and contents are its
//! to keep.
//!
//! A directory below is watched (inotify) from before the first answer about it until the kernel forgets it. Where no more can be watched, or this process has
//! its share of what its user may watch, which editors want too, the rest is as it is without: seen late, or not at all. What befalls names that the branch has written itself is nobody's business here.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use ah_agentfs::{Ino, View};
use fuser::{INodeNo, Notifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// What comes within this time is told the kernel at once.
const TOGETHER: Duration = Duration::from_millis(2);
/// After so long it is told again: an answer that was under way may have been older than the change.
const AGAIN: Duration = Duration::from_millis(200);
/// Bytes of events that are read at a time.
const BUFFER: usize = 64 << 10;
/// This process takes one in so many of the directories that its user may watch.
const SHARE: usize = 8;
/// How many it watches, in all mounts.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// How many it may.
fn most() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let most = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_watches");
        most.ok().and_then(|most| most.trim().parse::<usize>().ok()).unwrap_or(8192) / SHARE
    })
}

/// The directories that are watched.
#[derive(Debug)]
pub(crate) struct Watch {
    inotify: OwnedFd,
    watched: Mutex<Watched>,
    /// Hung up when this is dropped: nobody listens any more.
    _end: UnixStream,
}

#[derive(Debug, Default)]
struct Watched {
    numbers: HashMap<Ino, i32>,
    directories: HashMap<i32, Ino>,
    /// There are no more to be had.
    full: bool,
}

/// What happened to a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The file that it leads to was changed.
    Changed,
    /// It came, went, or leads to another.
    Other,
}

type Happened = BTreeMap<(Ino, Vec<u8>), What>;

impl Watch {
    /// The other end is for [`listen`].
    pub(crate) fn new() -> std::io::Result<(Self, UnixStream)> {
        let (end, until) = UnixStream::pair()?;
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok((Self { inotify, watched: Mutex::default(), _end: end }, until))
    }

    /// Watches the directory below that shines through, from now on.
    pub(crate) fn begin(&self, view: &View, directory: Ino) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if watched.full || watched.numbers.contains_key(&directory) || COUNT.load(Ordering::Relaxed) >= most() {
            return;
        }
        let Ok(Some(below)) = view.open_below(directory) else { return };
        let wanted = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::ONLYDIR;
        match inotify::add_watch(&self.inotify, format!("/proc/self/fd/{}", below.as_raw_fd()), wanted) {
            Ok(number) => {
                // One directory below may shine through two: the later is told.
                if watched.directories.insert(number, directory).is_none() {
                    COUNT.fetch_add(1, Ordering::Relaxed);
                }
                watched.numbers.insert(directory, number);
            }
            Err(Errno::NOSPC | Errno::NOMEM) => watched.full = true,
            Err(_) => {}
        }
    }

    /// The kernel knows nothing of the directory any more.
    pub(crate) fn end(&self, directory: Ino) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(number) = watched.numbers.remove(&directory) else { return };
        if watched.directories.get(&number) == Some(&directory) {
            watched.directories.remove(&number);
            COUNT.fetch_sub(1, Ordering::Relaxed);
            watched.full = false;
            let _ = inotify::remove_watch(&self.inotify, number);
        }
    }

    /// Reads what happened since; if some of it was lost, everything may have.
    fn read(&self, happened: &mut Happened) {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        while let Ok(event) = reader.next() {
            let flags = event.events();
            let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                happened.extend(watched.numbers.keys().map(|&directory| ((directory, Vec::new()), What::Other)));
                continue;
            }
            let Some((&directory, name)) = watched.directories.get(&event.wd()).zip(event.file_name()) else {
                continue;
            };
            let changed = flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB);
            let what = if changed { What::Changed } else { What::Other };
            let place = happened.entry((directory, name.to_bytes().to_vec())).or_insert(what);
            *place = (*place).max(what);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let watched = self.watched.get_mut().unwrap_or_else(PoisonError::into_inner);
        COUNT.fetch_sub(watched.directories.len(), Ordering::Relaxed);
    }
}

/// Tells the kernel what happens, until the watch is gone.
pub(crate) fn listen(watch: &Weak<Watch>, until: &UnixStream, view: &Weak<View>, kernel: &Notifier) {
    let Some(inotify) = watch.upgrade().and_then(|watch| watch.inotify.try_clone().ok()) else { return };
    let mut again: Option<(Instant, Happened)> = None;
    loop {
        let left = again.as_ref().map(|(when, _)| when.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(&inotify, PollFlags::IN), PollFd::new(until, PollFlags::IN)];
        let _ = poll(&mut fds, left.as_ref());
        if !fds[1].revents().is_empty() {
            return;
        }
        let has_more = !fds[0].revents().is_empty();
        if has_more {
            std::thread::sleep(TOGETHER);
        }
        let (Some(watch), Some(view)) = (watch.upgrade(), view.upgrade()) else { return };
        let mut happened = Happened::new();
        if has_more {
            watch.read(&mut happened);
            tell(&view, kernel, &happened);
        }
        match &mut again {
            Some((when, earlier)) if Instant::now() >= *when => {
                tell(&view, kernel, earlier);
                again = (!happened.is_empty()).then(|| (Instant::now() + AGAIN, happened));
            }
            Some((_, earlier)) => earlier.append(&mut happened),
            None => again = (!happened.is_empty()).then(|| (Instant::now() + AGAIN, happened)),
        }
    }
}

fn tell(view: &View, kernel: &Notifier, happened: &Happened) {
    for ((directory, name), what) in happened {
        if name.is_empty() {
            // Whatever its names lead to.
            for entry in view.list(*directory).unwrap_or_default() {
                tell_one(view, kernel, *directory, &entry.name, What::Other);
                tell_one(view, kernel, *directory, &entry.name, What::Changed);
            }
            let _ = kernel.inval_inode(INodeNo(*directory), 0, 0);
        } else {
            tell_one(view, kernel, *directory, name, *what);
        }
    }
}

fn tell_one(view: &View, kernel: &Notifier, directory: Ino, name: &[u8], what: What) {
    // What the kernel does not know any more needs nothing.
    match (what, view.shining_through(directory, name)) {
        (What::Other, Ok(Some(_))) => {
            let _ = kernel.inval_entry(INodeNo(directory), OsStr::from_bytes(name));
            // The list of names, which it keeps as contents.
            let _ = kernel.inval_inode(INodeNo(directory), 0, 0);
        }
        (What::Changed, Ok(Some(Some(ino)))) => drop(kernel.inval_inode(INodeNo(ino), 0, 0)),
        _ => {}
    }
}
