//! Which files the kernel has open, where large ones are passed through: each either by what it has cached of what it asked here, or by the file that their contents are, which it then reads by
//! itself. It cannot be both: of a file that is passed through it takes no other answer to an open until all of that are closed.
//!
//! So who wants to change such a file waits a moment, since the kernel tells of the last one that was closed behind that, and is refused then. Nobody who serves the mount waits with him: what was
//! asked is put aside, and answered by who hears that the file was closed, or by a thread that is there while somebody waits.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ah_agentfs::{Ino, SetAttr, Whole};
use fuser::{BackingId, Errno, OpenAccMode, OpenFlags, ReplyAttr, ReplyOpen};
use rustix::fs::OFlags;

/// So long it is waited for that a file is closed which is passed through.
const PATIENCE: Duration = Duration::from_secs(1);
/// So many files are passed through at a time by a mount: for each the kernel holds one open.
const MOST: usize = 4096;
/// Passing through is root's in the first user namespace, which has this inode.
const FIRST_NAMESPACE: u64 = 0xefff_fffd;
/// The bit of `CAP_SYS_ADMIN`.
const SYS_ADMIN: u32 = 21;

/// Whether large files of a mount are passed through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Passthrough {
    /// It was not asked for.
    #[default]
    Off,
    /// They are.
    On,
    /// It was asked for by who may not: only root may, outside of user namespaces of their own.
    NotPermitted,
    /// It was asked for, and the kernel does not have it: Linux 6.9 with `CONFIG_FUSE_PASSTHROUGH` does.
    NoKernel,
}

impl Passthrough {
    /// Whether this process may have files passed through, as far as is known before it tries.
    pub fn is_permitted() -> bool {
        use std::os::unix::fs::MetadataExt;
        let is_first = std::fs::metadata("/proc/self/ns/user").map_or(true, |it| it.ino() == FIRST_NAMESPACE);
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        is_first && effective.map_or_else(|| rustix::process::geteuid().is_root(), |bits| bits >> SYS_ADMIN & 1 == 1)
    }

    /// Why nothing is passed through that was asked for.
    pub fn why_not(self) -> Option<&'static str> {
        match self {
            Self::Off | Self::On => None,
            Self::NotPermitted => {
                Some("nothing is passed through: only root may have that, outside of user namespaces of their own")
            }
            Self::NoKernel => {
                Some("nothing is passed through: that needs Linux 6.9 or newer, with CONFIG_FUSE_PASSTHROUGH")
            }
        }
    }
}

/// What is told of it.
#[derive(Debug, Default)]
pub(crate) struct Told {
    is: Mutex<Passthrough>,
    /// Whether the kernel was told that opening and making files is answered: then it is for as long as the mount is there, as cutting what is opened comes with that.
    is_answered: AtomicBool,
    passes: AtomicBool,
    count: AtomicU64,
}

impl Told {
    /// It was asked for. What it takes is agreed on with the kernel only for who may have it.
    pub(crate) fn begin(&self, agree: impl FnOnce() -> bool) {
        let is = match Passthrough::is_permitted() {
            false => Passthrough::NotPermitted,
            true if agree() => Passthrough::On,
            true => Passthrough::NoKernel,
        };
        self.is_answered.store(is == Passthrough::On, Ordering::SeqCst);
        self.set(is);
    }

    fn set(&self, is: Passthrough) {
        *lock(&self.is) = is;
        self.passes.store(is == Passthrough::On, Ordering::SeqCst);
    }

    pub(crate) fn is(&self) -> Passthrough {
        *lock(&self.is)
    }

    pub(crate) fn add(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// How often a file was opened that was passed through.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }
}

/// A file that another's contents are, as the kernel has it.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) id: BackingId,
    pub(crate) whole: Whole,
    /// Whether it can be read past the cache (`O_DIRECT`).
    pub(crate) is_direct: bool,
}

/// What is asked of a file and may have to wait.
#[derive(Debug)]
pub(crate) enum Asked {
    Open {
        ino: Ino,
        flags: OpenFlags,
        uid: u32,
        reply: ReplyOpen,
    },
    /// Attributes, the size among them.
    Set {
        ino: Ino,
        set: SetAttr,
        uid: u32,
        reply: ReplyAttr,
    },
}

impl Asked {
    pub(crate) fn ino(&self) -> Ino {
        match self {
            Self::Open { ino, .. } | Self::Set { ino, .. } => *ino,
        }
    }

    /// Whether the file is only to be read.
    pub(crate) fn reads(&self) -> bool {
        matches!(self, Self::Open { flags, .. } if flags.acc_mode() == OpenAccMode::O_RDONLY && !cuts(*flags))
    }

    /// It stays as it was with the file for too long: as with a program that runs, for who would change it.
    fn refuse(self) {
        let errno = if self.reads() { Errno::EBUSY } else { Errno::ETXTBSY };
        match self {
            Self::Open { reply, .. } => reply.error(errno),
            Self::Set { reply, .. } => reply.error(errno),
        }
    }
}

/// Whether who opens a file so has it cut to nothing.
pub(crate) fn cuts(flags: OpenFlags) -> bool {
    OFlags::from_bits_retain(flags.0.cast_unsigned()).contains(OFlags::TRUNC)
}

/// How a file is opened. It counts as open from then on.
pub(crate) enum How {
    /// As any.
    Cached,
    /// As is to be found out: then [`Opens::found`] is told. Until then whoever else opens it waits.
    Unknown(Finding),
    /// As others have it open.
    Through(Arc<Backing>),
}

/// A file of which it is being found out whether it is passed through. Dropped, it is not open.
pub(crate) struct Finding {
    opens: Arc<Opens>,
    ino: Ino,
    is_over: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    state: Mutex<State>,
    pub(crate) told: Arc<Told>,
}

#[derive(Debug, Default)]
struct State {
    inodes: HashMap<Ino, Open>,
    through: usize,
    /// Whether there is a thread that refuses who waits for too long.
    is_timed: bool,
}

/// Those who have a file open, or cut it at this moment.
#[derive(Debug)]
enum Open {
    Cached(u64),
    Unknown(Vec<Asked>),
    Through { count: u64, backing: Arc<Backing>, waits: VecDeque<(Instant, Asked)> },
}

impl Opens {
    /// Whether open files are looked after at all. If not, the kernel opens them without asking.
    pub(crate) fn are_answered(&self) -> bool {
        self.told.is_answered.load(Ordering::SeqCst)
    }

    /// It turned out that this process may not. Opening is answered all the same from then on.
    pub(crate) fn refused(&self) {
        if self.told.count() == 0 {
            self.told.set(Passthrough::NotPermitted);
        }
    }

    /// How a file is opened, or held while it is cut. `None`: that is put aside, and answered later.
    pub(crate) fn enter(self: &Arc<Self>, asked: Asked) -> Option<(Asked, How)> {
        let (ino, reads) = (asked.ino(), asked.reads());
        let mut state = self.lock();
        let is_room = state.through < MOST && self.told.passes.load(Ordering::SeqCst);
        match state.inodes.get_mut(&ino) {
            None if reads && is_room => {
                state.inodes.insert(ino, Open::Unknown(Vec::new()));
                let finding = Finding { opens: Arc::clone(self), ino, is_over: false };
                Some((asked, How::Unknown(finding)))
            }
            None => {
                state.inodes.insert(ino, Open::Cached(1));
                Some((asked, How::Cached))
            }
            Some(Open::Cached(count)) => {
                *count += 1;
                Some((asked, How::Cached))
            }
            Some(Open::Unknown(waits)) => {
                waits.push(asked);
                None
            }
            Some(Open::Through { count, backing, .. }) if reads => {
                *count += 1;
                let backing = Arc::clone(backing);
                Some((asked, How::Through(backing)))
            }
            Some(Open::Through { .. }) => {
                self.put_aside(state, asked);
                None
            }
        }
    }

    /// A file was made, and is open.
    pub(crate) fn made(&self, ino: Ino) {
        if let Open::Cached(count) = self.lock().inodes.entry(ino).or_insert(Open::Cached(0)) {
            *count += 1;
        }
    }

    /// Puts aside what has to wait until a file is not passed through any more. Given back if it is not.
    pub(crate) fn wait(self: &Arc<Self>, asked: Asked) -> Option<Asked> {
        let state = self.lock();
        match state.inodes.get(&asked.ino()) {
            Some(Open::Through { .. }) => {
                self.put_aside(state, asked);
                None
            }
            _ => Some(asked),
        }
    }

    fn put_aside(self: &Arc<Self>, mut state: MutexGuard<'_, State>, asked: Asked) {
        if !state.is_timed {
            let opens = Arc::clone(self);
            // Without one nobody is kept waiting.
            if std::thread::Builder::new().name("opens".into()).spawn(move || opens.refuse_in_time()).is_err() {
                drop(state);
                return asked.refuse();
            }
            state.is_timed = true;
        }
        if let Some(Open::Through { waits, .. }) = state.inodes.get_mut(&asked.ino()) {
            waits.push_back((Instant::now() + PATIENCE, asked));
        }
    }

    /// One who had it open has closed it, or has cut it. Gives what was put aside until then, if anybody can have it now.
    pub(crate) fn leave(&self, ino: Ino) -> Vec<Asked> {
        let mut state = self.lock();
        let (is_last, is_through) = match state.inodes.get_mut(&ino) {
            Some(Open::Cached(count)) => {
                *count -= 1;
                (*count == 0, false)
            }
            Some(Open::Through { count, .. }) => {
                *count -= 1;
                (*count == 0, true)
            }
            // Opened before anything was looked after.
            Some(Open::Unknown(_)) | None => return Vec::new(),
        };
        if !is_last {
            return Vec::new();
        }
        state.through -= usize::from(is_through);
        let gone = state.inodes.remove(&ino);
        drop(state);
        match gone {
            // The kernel is told to let go of the file with what goes here.
            Some(Open::Through { waits, .. }) => waits.into_iter().map(|(_, asked)| asked).collect(),
            _ => Vec::new(),
        }
    }

    /// Refuses those who have waited for too long, as long as there are any.
    fn refuse_in_time(&self) {
        loop {
            let mut state = self.lock();
            let now = Instant::now();
            let mut next: Option<Instant> = None;
            let mut late = Vec::new();
            for open in state.inodes.values_mut() {
                let Open::Through { waits, .. } = open else { continue };
                while waits.front().is_some_and(|(until, _)| *until <= now) {
                    late.extend(waits.pop_front().map(|(_, asked)| asked));
                }
                let first = waits.front().map(|(until, _)| *until);
                next = next.into_iter().chain(first).min();
            }
            state.is_timed = next.is_some();
            drop(state);
            late.into_iter().for_each(Asked::refuse);
            // Who comes meanwhile waits for longer.
            let Some(next) = next else { return };
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Every change here is whole before the lock is let go.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Finding {
    /// It is passed through, or not. Gives what others asked meanwhile.
    pub(crate) fn found(mut self, backing: Option<Arc<Backing>>) -> Vec<Asked> {
        self.is_over = true;
        let mut state = self.opens.lock();
        state.through += usize::from(backing.is_some());
        let open = match backing {
            Some(backing) => Open::Through { count: 1, backing, waits: VecDeque::new() },
            None => Open::Cached(1),
        };
        match state.inodes.insert(self.ino, open) {
            Some(Open::Unknown(waits)) => waits,
            _ => Vec::new(),
        }
    }

    /// It was not opened. Gives what others asked meanwhile.
    pub(crate) fn failed(mut self) -> Vec<Asked> {
        self.is_over = true;
        self.end()
    }

    fn end(&self) -> Vec<Asked> {
        match self.opens.lock().inodes.remove(&self.ino) {
            Some(Open::Unknown(waits)) => waits,
            _ => Vec::new(),
        }
    }
}

impl Drop for Finding {
    fn drop(&mut self) {
        if !self.is_over {
            // Who waits is told an error.
            drop(self.end());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opening_stays_answered_where_passing_through_turns_out_to_be_refused() {
        if !Passthrough::is_permitted() {
            return;
        }
        let (agreed, lacking) = (Opens::default(), Opens::default());
        agreed.told.begin(|| true);
        lacking.told.begin(|| false);
        assert_eq!((agreed.told.is(), agreed.are_answered()), (Passthrough::On, true));
        assert_eq!((lacking.told.is(), lacking.are_answered()), (Passthrough::NoKernel, false));
        agreed.refused();
        // The kernel cuts nothing by itself in such a mount.
        assert_eq!((agreed.told.is(), agreed.are_answered()), (Passthrough::NotPermitted, true));
        assert!(!agreed.told.passes.load(Ordering::SeqCst));
    }
}
