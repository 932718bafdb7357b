//! Writing a snapshot's tree to disk, in parallel, with exact modes and times. Used by `view` and `clone`.
//!
//! A stack of jobs, most of them one directory each, is worked off by a few threads. A directory's job makes all its
//! entries: files with their contents, subdirectories empty (each a new job). What is made below a subdirectory does not change
//! the time of this one, so its own time and mode are set as soon as its own entries are there. Large
//! directories are cut into several jobs; the last one to finish settles the directory.
//!
//! Everything is created exclusively, relative to open directories, through no symlink. What the store has lost makes it fail, as a tree
//! without it would be another one; the error names it. Not here: where the tree goes and what
//! becomes of it when this fails (`view`, `clone`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ah_plugin_api::{Context, Error, ErrorKind, RelPath, Result, Timestamp, text};
use gix::ObjectId;
use gix::objs::Kind;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;

use crate::made::mounts;
use crate::meta::FileMeta;
use crate::paths::Part;
use crate::share::Share;
use crate::store::{Store, write_all};
use crate::tree::{Directory, Item, Reader, What, damaged};

/// How a tree is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options<'a> {
    /// Only these paths and what is below them; empty: everything.
    pub(crate) paths: &'a [RelPath],
    /// Permission bits that are taken off everything.
    pub(crate) without: u32,
    /// Whether files keep their set-user-id and set-group-id bits, see [`gives_set_id`].
    pub(crate) set_id: bool,
    /// How many entries there are, for the progress bar.
    pub(crate) total: Option<u64>,
    /// Where the same files may lie already.
    pub(crate) share: Option<&'a Share<'a>>,
}

/// Whether files in that folder may be given set-user-id and set-group-id bits. Whoever a file belonged to when it was captured, the copy belongs to
/// this user, and would run as them for everybody who can reach it. Root's never get them: who has a branch is told its path.
pub(crate) fn gives_set_id(target: BorrowedFd<'_>) -> bool {
    !rustix::process::geteuid().is_root() && mounts::is_private(target)
}

/// Both bits.
const SET_ID: u32 = 0o6000;

/// Mode and time that a directory gets when nothing will be made in it any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settle {
    mode: u32,
    mtime: Timestamp,
}

impl Settle {
    /// Sets them.
    pub(crate) fn apply(&self, dir: impl AsFd) -> Result<()> {
        let done =
            rustix::fs::futimens(&dir, &times(self.mtime)).and_then(|()| rustix::fs::fchmod(&dir, mode(self.mode)));
        done.map_err(|e| Error::from_io("cannot set a directory's mode and time", &e.into()))
    }
}

/// Writes the tree into the open, empty directory `into`. Gives what `into` itself is to get at the very end.
///
/// # Errors
/// `DataLoss`, with the paths, if any cannot be read. After any error `into` holds a part of the tree.
pub(crate) fn checkout(
    store: &Store,
    root: &Directory,
    into: OwnedFd,
    options: Options<'_>,
    cx: &Context<'_>,
) -> Result<Settle> {
    let work = Work {
        store,
        without: options.without,
        without_of_files: options.without | if options.set_id { 0 } else { SET_ID },
        total: options.total,
        share: options.share,
        cx,
        queue: Mutex::new(Queue { jobs: Vec::new(), working: 0, failed: None }),
        wake: Condvar::new(),
        lost: Mutex::default(),
        written: AtomicU64::new(0),
    };
    let mut reader = Reader::new(store, cx);
    let own = reader.own(root)?;
    let at = At::Open(into, Vec::new());
    lock(&work.queue).jobs.push(Job::Dir { at, root: true, node: *root, part: Part::of(options.paths) });
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|| work.run());
        }
        work.run();
    });
    let queue = work.queue.into_inner().unwrap_or_else(PoisonError::into_inner);
    let lost = work.lost.into_inner().unwrap_or_else(PoisonError::into_inner);
    match queue.failed {
        Some(error) if error.kind != ErrorKind::DataLoss => Err(error),
        _ if !lost.is_empty() => Err(lost_paths(lost)),
        Some(error) => Err(error),
        None => Ok(Settle { mode: own.mode & !options.without, mtime: own.mtime }),
    }
}

/// So many paths that cannot be read are named; then it is given up.
const NAMED: usize = 20;

fn lost_paths(mut lost: Vec<(Vec<u8>, Error)>) -> Error {
    lost.sort_by(|(a, _), (b, _)| a.cmp(b));
    let count = text::count(lost.len() as u64, "path", "paths");
    let least = if lost.len() < NAMED { "" } else { "at least " };
    let mut error = damaged(format!("{least}{count} of the snapshot cannot be read, and no tree is made without"));
    error.causes = lost.iter().map(|(path, why)| format!("{}: {}", text::path(path), why.message)).collect();
    // In which pack it was, for who wants to look there.
    error.causes.extend(lost.into_iter().next().into_iter().flat_map(|(_, why)| why.causes));
    error
}

/// Files in one job at most.
const CHUNK: usize = 256;
/// Larger files are streamed from the store instead of being read whole.
const SMALL: u64 = 1 << 20;

struct Work<'a> {
    store: &'a Store,
    without: u32,
    without_of_files: u32,
    total: Option<u64>,
    share: Option<&'a Share<'a>>,
    cx: &'a Context<'a>,
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Paths below the root that the store has lost, and how that was seen.
    lost: Mutex<Vec<(Vec<u8>, Error)>>,
    written: AtomicU64,
}

struct Queue {
    jobs: Vec<Job>,
    working: usize,
    failed: Option<Error>,
}

enum Job {
    /// Make the entries of a directory.
    Dir { at: At, root: bool, node: Directory, part: Part },
    /// Make some files of a large one.
    Files { dir: Arc<Opened>, items: Arc<Vec<Item>>, from: usize },
}

/// Where a directory is.
enum At {
    /// Open already.
    Open(OwnedFd, Vec<u8>),
    /// There, to be opened: most wait in this form, so that descriptors do not run out.
    Below(Arc<Opened>, Vec<u8>),
}

/// A directory in which entries are being made.
struct Opened {
    fd: OwnedFd,
    /// Below the root; empty for the root.
    path: Vec<u8>,
    /// None for the root, which the caller settles.
    settle: Option<Settle>,
    /// Jobs that still make entries in it.
    pending: AtomicUsize,
}

impl Opened {
    /// The path of an entry, below the root.
    fn join(&self, name: &[u8]) -> Vec<u8> {
        if self.path.is_empty() { name.to_vec() } else { [&self.path, b"/".as_slice(), name].concat() }
    }

    fn finish_one(&self) -> Result<()> {
        match &self.settle {
            Some(settle) if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 => settle.apply(&self.fd),
            _ => Ok(()),
        }
    }
}

/// Counts a worker as idle again, whatever happened to its job.
struct Working<'a, 'b>(&'a Work<'b>);

impl Drop for Working<'_, '_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        queue.working -= 1;
        if std::thread::panicking() {
            queue.failed.get_or_insert_with(|| Error::new(ErrorKind::Internal, "writing files panicked"));
        }
        if queue.failed.is_some() || (queue.working == 0 && queue.jobs.is_empty()) {
            self.0.wake.notify_all();
        }
    }
}

impl Work<'_> {
    fn run(&self) {
        let mut reader = Reader::new(self.store, self.cx);
        let mut buffer = Vec::new();
        while let Some(job) = self.next() {
            let working = Working(self);
            if let Err(error) = self.job(job, &mut reader, &mut buffer) {
                lock(&self.queue).failed.get_or_insert(error);
            }
            drop(working);
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = lock(&self.queue);
        loop {
            if queue.failed.is_some() {
                return None;
            }
            if let Some(job) = queue.jobs.pop() {
                queue.working += 1;
                return Some(job);
            }
            if queue.working == 0 {
                return None;
            }
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn push(&self, jobs: Vec<Job>) {
        let count = jobs.len();
        if count > 0 {
            lock(&self.queue).jobs.extend(jobs);
            if count == 1 { self.wake.notify_one() } else { self.wake.notify_all() }
        }
    }

    fn job(&self, job: Job, reader: &mut Reader<'_>, buffer: &mut Vec<u8>) -> Result<()> {
        self.cx.check_cancelled()?;
        match job {
            Job::Dir { at, root, node, part } => self.directory(at, root, &node, &part, reader, buffer),
            Job::Files { dir, items, from } => {
                let to = items.len().min(from + CHUNK);
                for item in &items[from..to] {
                    self.leaf(&dir, item, buffer)?;
                }
                self.count(to - from);
                dir.finish_one()
            }
        }
    }

    fn directory(
        &self,
        at: At,
        root: bool,
        node: &Directory,
        part: &Part,
        reader: &mut Reader<'_>,
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        let (fd, path) = match at {
            At::Open(fd, path) => (fd, path),
            At::Below(parent, name) => (open_dir(parent.fd.as_fd(), &name)?, parent.join(&name)),
        };
        let listing = match reader.list(node) {
            Err(error) => return self.lose(path, error),
            Ok(listing) => listing,
        };
        let settle = Settle { mode: listing.own.mode & !self.without, mtime: listing.own.mtime };
        let (mut dirs, mut leaves) = (Vec::new(), Vec::new());
        for item in listing.items {
            let Some(below) = part.enter(&item.name) else { continue };
            match item.what {
                What::Dir(node) => dirs.push((item.name, node, below)),
                What::File(..) | What::Symlink(..) if below.is_whole() => leaves.push(item),
                What::File(..) | What::Symlink(..) => {}
            }
        }
        let chunks = if leaves.len() > 2 * CHUNK { leaves.len().div_ceil(CHUNK) } else { 0 };
        let opened =
            Arc::new(Opened { fd, path, settle: (!root).then_some(settle), pending: AtomicUsize::new(1 + chunks) });
        let mut jobs = Vec::with_capacity(dirs.len() + chunks);
        // Once this directory is settled its children can still be opened, unless its mode forbids that.
        let open_now = settle.mode & 0o100 == 0;
        self.count(dirs.len());
        for (name, node, part) in dirs {
            rustix::fs::mkdirat(&opened.fd, name.as_slice(), Mode::RWXU).map_err(|e| failed("make", &name, e))?;
            let at = if open_now {
                At::Open(open_dir(opened.fd.as_fd(), &name)?, opened.join(&name))
            } else {
                At::Below(Arc::clone(&opened), name)
            };
            jobs.push(Job::Dir { at, root: false, node, part });
        }
        if chunks == 0 {
            self.push(jobs);
            for item in &leaves {
                self.leaf(&opened, item, buffer)?;
            }
            self.count(leaves.len());
        } else {
            let items = Arc::new(leaves);
            jobs.extend((0..chunks).map(|chunk| Job::Files {
                dir: Arc::clone(&opened),
                items: Arc::clone(&items),
                from: chunk * CHUNK,
            }));
            self.push(jobs);
        }
        opened.finish_one()
    }

    fn leaf(&self, dir: &Opened, item: &Item, buffer: &mut Vec<u8>) -> Result<()> {
        let made = match &item.what {
            What::File(id, meta) => self.file(dir, &item.name, id, meta, buffer),
            What::Symlink(id, meta) => self.symlink(dir.fd.as_fd(), &item.name, id, meta, buffer),
            What::Dir(_) => Ok(()),
        };
        made.or_else(|error| self.lose(dir.join(&item.name), error))
    }

    /// Notes what cannot be read, so that all of it can be named. Any other error ends the work, and so do too many of these.
    fn lose(&self, path: Vec<u8>, error: Error) -> Result<()> {
        if error.kind != ErrorKind::DataLoss {
            return Err(error);
        }
        let mut lost = lock(&self.lost);
        if lost.len() < NAMED {
            lost.push((path, error.clone()));
        }
        if lost.len() < NAMED { Ok(()) } else { Err(error) }
    }

    fn file(&self, dir: &Opened, name: &[u8], id: &ObjectId, meta: &FileMeta, buffer: &mut Vec<u8>) -> Result<()> {
        let share = self.share.filter(|share| share.is_for(meta.size));
        let access = if share.is_some() { OFlags::RDWR } else { OFlags::WRONLY };
        let flags = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file =
            rustix::fs::openat(&dir.fd, name, flags, Mode::RUSR | Mode::WUSR).map_err(|e| failed("make", name, e))?;
        let shared = match share {
            Some(share) => share.fill(file.as_fd(), &dir.join(name), (id, meta), self.cx)?,
            None => false,
        };
        let size = if shared {
            meta.size
        } else if meta.size <= SMALL {
            if self.store.read(id, buffer, self.cx)? != Kind::Blob {
                return Err(damaged(format!("the object {id} is no file")));
            }
            write_all(file.as_fd(), buffer).map_err(|e| failed("write", name, e))?;
            buffer.len() as u64
        } else {
            self.store.read_to(id, file.as_fd(), self.cx)?
        };
        if size != meta.size {
            let name = String::from_utf8_lossy(name);
            return Err(damaged(format!("{name} is {size} bytes long instead of {}", meta.size)));
        }
        rustix::fs::fchmod(&file, mode(meta.mode & !self.without_of_files))
            .and_then(|()| rustix::fs::futimens(&file, &times(meta.mtime)))
            .map_err(|e| failed("set mode and time of", name, e))
    }

    fn symlink(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        id: &ObjectId,
        meta: &FileMeta,
        buffer: &mut Vec<u8>,
    ) -> Result<()> {
        if self.store.read(id, buffer, self.cx)? != Kind::Blob || buffer.is_empty() || buffer.contains(&0) {
            return Err(damaged(format!("the object {id} is no symlink")));
        }
        rustix::fs::symlinkat(buffer.as_slice(), dir, name)
            .and_then(|()| rustix::fs::utimensat(dir, name, &times(meta.mtime), AtFlags::SYMLINK_NOFOLLOW))
            .map_err(|e| failed("make", name, e))
    }

    fn count(&self, entries: usize) {
        let before = self.written.fetch_add(entries as u64, Ordering::Relaxed);
        if before / 512 != (before + entries as u64) / 512 {
            self.cx.progress("writing files", before + entries as u64, self.total);
        }
    }
}

fn open_dir(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty()).map_err(|e| failed("open", name, e))
}

fn mode(bits: u32) -> Mode {
    Mode::from_raw_mode(bits & 0o7777)
}

fn times(mtime: Timestamp) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.secs, tv_nsec: mtime.nanos.into() },
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(what: &str, name: &[u8], e: Errno) -> Error {
    let name = String::from_utf8_lossy(name);
    let mut error = Error::from_io(format!("cannot {what} {name:?}"), &e.into());
    if e == Errno::EXIST {
        // `AlreadyExists` would say that the name of the view or clone is taken.
        error.kind = ErrorKind::FailedPrecondition;
        error.hint = Some("this filesystem takes different names for the same; use a folder on another one".into());
    }
    error
}
