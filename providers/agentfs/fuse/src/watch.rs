//! Hears what somebody changes in the lower directory, and has the kernel forget what it remembers of it: it is told once that names and contents are its
//! to keep.
//!
//! A directory below is watched (inotify) from before the first answer about it until the mount ends: the kernel may keep pages of a file when it has long forgotten
//! its directory. Where no more can be watched, or this process has its share of what its user may watch, which editors want too, the rest is as it is
//! without: seen late, or not at all. What befalls names that the branch has written itself is nobody's business here.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use ah_agentfs::{Ino, Kind, View};
use fuser::{INodeNo, Notifier};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// What comes within this time is told the kernel at once.
const TOGETHER: Duration = Duration::from_millis(2);
/// After so long it is told again: an answer that was under way may have been older than the change.
const AGAIN: Duration = Duration::from_millis(200);
/// Bytes of events that are read at a time, and how often before what they say is told.
const BUFFER: usize = 64 << 10;
const READS: usize = 4;
/// So many names are told before it is looked whether anybody still wants that.
const STEP: usize = 64;
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
}

#[derive(Debug, Default)]
struct Watched {
    numbers: HashMap<Ino, i32>,
    directories: HashMap<i32, Ino>,
    /// There are no more to be had.
    full: bool,
}

/// What happened to a name, the lesser first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The file that it leads to was changed.
    Changed,
    /// It came, went, or leads to another.
    Other,
}

/// By directory and name; an empty name is everything in the directory, absent names too.
#[derive(Debug, Default)]
struct Happened(BTreeMap<(Ino, Vec<u8>), What>);

impl Happened {
    fn add(&mut self, place: (Ino, Vec<u8>), what: What) {
        let known = self.0.entry(place).or_insert(what);
        *known = (*known).max(what);
    }
}

impl Watch {
    pub(crate) fn new() -> std::io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        Ok(Self { inotify, watched: Mutex::default() })
    }

    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the directory below that shines through, from now on.
    pub(crate) fn begin(&self, view: &View, directory: Ino) {
        let done = |watched: &Watched| watched.full || watched.numbers.contains_key(&directory);
        if done(&self.watched()) || COUNT.load(Ordering::Relaxed) >= most() {
            return;
        }
        let Ok(Some(below)) = view.open_below(directory) else { return };
        let wanted = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::ONLYDIR;
        // What happens at once is read when it is known whose it is.
        let mut watched = self.watched();
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

    /// What is watched for a directory is not what shines through it any more: the next question about it finds out what is.
    fn renew(&self, directory: Ino) {
        let mut watched = self.watched();
        if let Some(number) = watched.numbers.remove(&directory)
            && watched.directories.remove(&number).is_some()
        {
            COUNT.fetch_sub(1, Ordering::Relaxed);
            let _ = inotify::remove_watch(&self.inotify, number);
        }
    }

    /// Reads some of what happened; where it was lost, everything may have.
    fn read(&self, happened: &mut Happened) {
        let mut buffer = [MaybeUninit::uninit(); BUFFER];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        let mut reads = 0;
        loop {
            if reader.is_buffer_empty() {
                reads += 1;
                if reads > READS {
                    return;
                }
            }
            let Ok(event) = reader.next() else { return };
            let flags = event.events();
            let mut watched = self.watched();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                watched.numbers.keys().for_each(|&directory| happened.add((directory, Vec::new()), What::Other));
                continue;
            }
            let Some(&directory) = watched.directories.get(&event.wd()) else { continue };
            if flags.contains(ReadFlags::IGNORED) {
                // It is gone, and what was in it was told. Another may be made in its place.
                watched.directories.remove(&event.wd());
                watched.numbers.retain(|_, number| *number != event.wd());
                watched.full = false;
                COUNT.fetch_sub(1, Ordering::Relaxed);
            }
            let Some(name) = event.file_name() else { continue };
            let changed = flags.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB);
            let what = if changed { What::Changed } else { What::Other };
            happened.add((directory, name.to_bytes().to_vec()), what);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let watched = self.watched.get_mut().unwrap_or_else(PoisonError::into_inner);
        COUNT.fetch_sub(watched.directories.len(), Ordering::Relaxed);
    }
}

/// A tree that comes when it is mounted, or before; and, dropped behind it, what tells the mount that it is given back.
pub(crate) type Tree = OnceLock<(View, Arc<()>)>;

/// Tells the kernel what happens, until the other end of `until` is closed.
pub(crate) fn listen(watch: &Weak<Watch>, until: &UnixStream, tree: &Weak<Tree>, kernel: &Notifier) {
    let Some(inotify) = watch.upgrade().and_then(|watch| watch.inotify.try_clone().ok()) else { return };
    let mut again: VecDeque<(Instant, Happened)> = VecDeque::new();
    loop {
        let left = again.front().map(|(when, _)| when.saturating_duration_since(Instant::now()));
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
        let (Some(watch), Some(tree)) = (watch.upgrade(), tree.upgrade()) else { return };
        // Nothing is watched before it is there.
        let Some((view, _)) = tree.get() else { continue };
        let tell = |happened: &Happened, settled| {
            let pending = RefCell::default();
            Teller { watch: &watch, view, kernel, until, settled, pending }.tell(happened);
        };
        if has_more {
            let mut happened = Happened::default();
            watch.read(&mut happened);
            tell(&happened, false);
            if !happened.0.is_empty() {
                again.push_back((Instant::now() + AGAIN, happened));
            }
        }
        while again.front().is_some_and(|(when, _)| Instant::now() >= *when) {
            again.pop_front().iter().for_each(|(_, earlier)| tell(earlier, true));
        }
    }
}

struct Teller<'a> {
    watch: &'a Watch,
    view: &'a View,
    kernel: &'a Notifier,
    until: &'a UnixStream,
    /// What happened is some time ago: what is as it was before, like an editor's temporary file, need not be told to people.
    settled: bool,
    /// Directories of which everything is still to be told.
    pending: RefCell<HashSet<Ino>>,
}

impl Teller<'_> {
    fn tell(&self, happened: &Happened) {
        for (nth, ((directory, name), what)) in happened.0.iter().enumerate() {
            if nth % STEP == 0 && self.is_over() {
                return;
            }
            if name.is_empty() {
                self.pending.borrow_mut().insert(*directory);
            } else {
                self.one(*directory, name, *what);
                if self.settled {
                    let _ = self.view.hear_of_change(*directory, name);
                }
            }
        }
        let mut done = HashSet::new();
        loop {
            let directories: HashSet<Ino> = self.pending.take().difference(&done).copied().collect();
            if directories.is_empty() {
                return;
            }
            done.extend(&directories);
            let mut names: HashMap<Ino, BTreeSet<Vec<u8>>> = HashMap::new();
            for (directory, name) in self.view.known_below(&directories) {
                names.entry(directory).or_default().insert(name);
            }
            for directory in directories {
                if !self.everything(directory, names.remove(&directory).unwrap_or_default()) {
                    return;
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(self.until, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0)
    }

    /// The names that the kernel knows in a directory, and those that are there now, of which it may know that they are not. Gives whether anybody still wants that.
    fn everything(&self, directory: Ino, mut names: BTreeSet<Vec<u8>>) -> bool {
        // First: the kernel may ask no more questions about it.
        self.watch.begin(self.view, directory);
        names.extend(self.view.list(directory).unwrap_or_default().into_iter().map(|entry| entry.name));
        for (nth, name) in names.iter().enumerate() {
            if nth % STEP == 0 && self.is_over() {
                return false;
            }
            self.one(directory, name, What::Other);
            if self.settled {
                let _ = self.view.hear_of_change(directory, name);
            }
        }
        let _ = self.kernel.inval_inode(INodeNo(directory), 0, 0);
        true
    }

    // What the kernel does not know any more needs nothing.
    fn one(&self, directory: Ino, name: &[u8], what: What) {
        let Ok(shining) = self.view.shining_through(directory, name) else { return };
        let Some(now) = shining else { return self.own(directory, name, what) };
        if let Some(ino) = now {
            let _ = self.kernel.inval_inode(INodeNo(ino), 0, 0);
        }
        if what != What::Other {
            return;
        }
        // Who works in a directory that is the same as before must find it at its name.
        if !now.is_some_and(|ino| self.view.is_known_as(ino, directory, name)) {
            let _ = self.kernel.inval_entry(INodeNo(directory), OsStr::from_bytes(name));
        }
        // The list of names, which it keeps as contents.
        let _ = self.kernel.inval_inode(INodeNo(directory), 0, 0);
    }

    /// A name of the branch's own: that stays. But if it is a directory, another may shine through it now.
    fn own(&self, directory: Ino, name: &[u8], what: What) {
        if what != What::Other {
            return;
        }
        if let Ok(attr) = self.view.lookup(directory, name) {
            if attr.kind == Kind::Directory {
                self.watch.renew(attr.ino);
                self.pending.borrow_mut().insert(attr.ino);
            }
            self.view.forget(attr.ino, 1);
        }
    }
}
