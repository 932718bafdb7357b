//! Reading trees entry by entry: a snapshot through its provider, a mounted view of it, or the workspace; and the difference of
//! two of them, for providers that cannot tell it cheaper.
//!
//! Cost of `diff` grows with what is there: one listing for each directory of both sides, and a read of both files where size
//! and time leave it open whether they are equal. Which differences matter to a restore is decided in `restore/`.

mod shown;
mod trouble;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use ah_plugin_api::{
    Capability, Change, Changes, Context, DiffMethod, DiffRequest, Dir, Entry, EntryKind, Error, ErrorKind,
    LookupRequest, Place, Provider, ReadDirRequest, ReadRequest, Reference, RelPath, Result, Side,
};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::restore::at::{self, Tree, io};
use shown::Mounted;
pub(crate) use shown::{mark_of, of_marked};
pub(crate) use trouble::Trouble;

/// Larger contents are compared by way of a file, not of memory.
const IN_MEMORY: u64 = 32 << 20;

/// A provider and its store, as a place to read snapshots from.
#[derive(Clone, Copy)]
pub(crate) struct Shelf<'a> {
    /// The provider.
    pub(crate) provider: &'a dyn Provider,
    /// Its store for this workspace.
    pub(crate) store: &'a Dir,
    /// The workspace, which is no view of its snapshots.
    root: &'a Path,
    /// A folder of ours in which a view may be mounted for a while, and large contents kept for a comparison.
    pub(crate) scratch: &'a Dir,
    /// The workspace's id.
    of: &'a str,
    /// Whether its content ids are not told, since what they would be compared with is another provider's.
    strange: bool,
}

impl<'a> Shelf<'a> {
    /// The shelf of a provider with its store.
    pub(crate) fn new(
        provider: &'a dyn Provider,
        store: &'a Dir,
        (root, of): (&'a Path, &'a str),
        scratch: &'a Dir,
    ) -> Self {
        Self { provider, store, root, scratch, of, strange: false }
    }

    /// The same, to be compared with another provider's.
    pub(crate) fn strange(self) -> Self {
        Self { strange: true, ..self }
    }

    /// Whether the provider has a capability.
    #[must_use]
    pub(crate) fn can(&self, capability: Capability) -> bool {
        self.provider.describe().capabilities.contains(&capability)
    }

    /// Opens a snapshot for reading; mounts a view of it if the provider cannot read without.
    ///
    /// # Errors
    /// Those of `mount`.
    pub(crate) fn open(&self, snapshot: &Reference, cx: &Context<'_>) -> Result<Source<'a>> {
        if self.can(Capability::ReadWithoutMount) {
            return Ok(Source::Snapshot { shelf: *self, snapshot: snapshot.clone() });
        }
        self.show(snapshot, cx)
    }

    /// The differences between two snapshots, ordered by path, by the provider's own knowledge or by a walk.
    ///
    /// # Errors
    /// Those of the provider.
    pub(crate) fn diff(
        &self,
        from: &Reference,
        to: &Reference,
        paths: &[RelPath],
        times: bool,
        cx: &Context<'_>,
    ) -> Result<Changes> {
        if self.can(Capability::Diff) {
            let request = DiffRequest {
                from: Side::Snapshot(from.clone()),
                to: Side::Snapshot(to.clone()),
                paths: paths.to_vec(),
                times,
                policy: ah_plugin_api::CapturePolicy::default(),
            };
            match self.provider.diff(&Place::new(self.store), &request, cx) {
                Err(error) if error.kind == ErrorKind::Unsupported => {}
                other => return other,
            }
        }
        diff(&self.open(from, cx)?, &self.open(to, cx)?, paths, times, &|_| false, cx)
    }

    /// An unnamed file for `size` bytes that are looked at and thrown away.
    fn spool(&self, size: u64) -> Result<OwnedFd> {
        if size > IN_MEMORY {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            if let Ok(fd) = rustix::fs::openat(self.scratch, ".", flags, Mode::RUSR | Mode::WUSR) {
                return Ok(fd);
            }
        }
        rustix::fs::memfd_create("ah-compare", MemfdFlags::CLOEXEC).map_err(|e| io("cannot get memory", e))
    }
}

/// A tree that can be read.
pub(crate) enum Source<'a> {
    /// A snapshot, read through its provider.
    Snapshot {
        /// Where it is.
        shelf: Shelf<'a>,
        /// Which it is.
        snapshot: Reference,
    },
    /// A snapshot, read from a mounted view.
    View {
        /// The view.
        mounted: Mounted<'a>,
        /// Whether the view shows write bits as they were captured.
        exact_modes: bool,
    },
    /// A directory that is read as it is: the workspace, a branch.
    Directory {
        /// The directory.
        root: &'a Dir,
        /// Says of a path with its kind and size if it is left out, with all below it.
        skip: &'a (dyn Fn(&RelPath, EntryKind, u64) -> bool + Sync),
    },
}

impl Source<'_> {
    /// Whether it is read from a view.
    pub(crate) fn is_view(&self) -> bool {
        matches!(self, Source::View { .. })
    }

    /// The directory that it is read from, if it is one.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub(crate) fn tree(&self) -> Result<Option<Tree<'_>>> {
        match self {
            Source::Snapshot { .. } => Ok(None),
            Source::View { mounted, .. } => match &mounted.root {
                Some(root) => Tree::new(root.as_fd()).map(Some),
                None => Err(Error::new(ErrorKind::Internal, "a view was read after it was taken away")),
            },
            Source::Directory { root, .. } => Tree::new(root.as_fd()).map(Some),
        }
    }

    /// The entry of a path, `None` if there is none.
    ///
    /// # Errors
    /// Those of the provider or the filesystem.
    pub(crate) fn entry(&self, path: &RelPath, cx: &Context<'_>) -> Result<Option<Entry>> {
        if let Source::Snapshot { shelf, snapshot } = self {
            let request = LookupRequest { snapshots: vec![snapshot.clone()], path: path.clone() };
            let found = shelf.provider.lookup(&Place::new(shelf.store), &request, cx)?.pop().flatten();
            return Ok(found.map(|entry| self.shown(entry)));
        }
        let Some(tree) = self.tree()? else { return Ok(None) };
        match tree.stat(path) {
            Ok(found) => Ok(found.map(|found| self.shown(found.entry(path.file_name().unwrap_or_default())))),
            Err(Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(error) => Err(io(format!("cannot look at {path}"), error)),
        }
    }

    /// The entries of a directory, ordered by name bytes.
    ///
    /// # Errors
    /// Those of the provider or the filesystem.
    pub(crate) fn children(&self, path: &RelPath, cx: &Context<'_>) -> Result<Vec<Entry>> {
        if let Source::Snapshot { shelf, snapshot } = self {
            let request = ReadDirRequest { snapshot: snapshot.clone(), path: path.clone() };
            let entries = shelf.provider.read_dir(&Place::new(shelf.store), &request, cx)?;
            return Ok(entries.into_iter().map(|entry| self.shown(entry)).collect());
        }
        let Some(tree) = self.tree()? else { return Ok(Vec::new()) };
        let fail = |e| io(format!("cannot list {path}"), e);
        let dir = tree.listing(path).map_err(fail)?;
        let mut entries = Vec::new();
        for name in at::names(dir.as_fd()).map_err(fail)? {
            let Some(found) = at::stat(dir.as_fd(), &name).map_err(fail)? else { continue };
            let is_dir = found.kind == EntryKind::Dir;
            let elsewhere = is_dir && (found.mounted == Some(true) || found.dev != tree.dev());
            let left_out = |skip: &dyn Fn(&RelPath, EntryKind, u64) -> bool| -> Result<bool> {
                Ok(skip(&path.join(&name)?, found.kind, found.size))
            };
            if elsewhere || matches!(self, Source::Directory { skip, .. } if left_out(skip)?) {
                continue;
            }
            entries.push(self.shown(found.entry(&name)));
        }
        Ok(entries)
    }

    /// Writes a file's contents, or a symlink's target, to `out`, from its present offset on.
    ///
    /// # Errors
    /// Those of the provider or the filesystem.
    pub(crate) fn read(&self, path: &RelPath, out: BorrowedFd<'_>, cx: &Context<'_>) -> Result<()> {
        if let Source::Snapshot { shelf, snapshot } = self {
            let request = ReadRequest { snapshot: snapshot.clone(), path: path.clone() };
            shelf.provider.read(&Place::new(shelf.store).with_output(out), &request, cx)?;
            return Ok(());
        }
        let Some(tree) = self.tree()? else { return Ok(()) };
        let fail = |e| io(format!("cannot read {path}"), e);
        let parent = tree.dir(&path.parent().unwrap_or_default()).map_err(fail)?;
        let name = path.file_name().unwrap_or_default();
        match at::stat(parent.as_fd(), name).map_err(fail)?.map(|found| found.kind) {
            Some(EntryKind::Symlink) => {
                write_all(out, &at::read_link(parent.as_fd(), name).map_err(fail)?).map_err(fail)
            }
            _ => {
                let file = at::open_file(parent.as_fd(), name).map_err(fail)?;
                match copy_contents(file.as_fd(), out, u64::MAX, cx) {
                    Err(Errno::CANCELED) => cx.check_cancelled(),
                    done => done.map(drop).map_err(fail),
                }
            }
        }
    }

    /// Whether this user may not read a file, or look into a directory, as it was captured.
    ///
    /// # Errors
    /// Those of the filesystem.
    pub(crate) fn is_unreadable(&self, path: &RelPath, kind: EntryKind, cx: &Context<'_>) -> Result<bool> {
        let Source::Snapshot { shelf, snapshot } = self else {
            return Ok(self.tree()?.is_some_and(|tree| tree.is_unreadable(path)));
        };
        // Who captures by reading has read all of it.
        if shelf.can(Capability::AppliesPolicy) || !matches!(kind, EntryKind::File | EntryKind::Dir) {
            return Ok(false);
        }
        let (place, snapshot, path) = (Place::new(shelf.store), snapshot.clone(), path.clone());
        let asked = match kind {
            EntryKind::Dir => shelf.provider.read_dir(&place, &ReadDirRequest { snapshot, path }, cx).map(drop),
            // Into what cannot be written to: nothing is read for that, and it fails in another way where the file could be opened.
            _ => {
                let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                let nothing = nothing.map_err(|e| io("cannot open /dev/null", e))?;
                let place = place.with_output(nothing.as_fd());
                shelf.provider.read(&place, &ReadRequest { snapshot, path }, cx).map(drop)
            }
        };
        match asked {
            Err(error) => Ok(error.kind == ErrorKind::PermissionDenied),
            Ok(()) => Ok(false),
        }
    }

    /// A symlink's target.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub(crate) fn link_target(&self, path: &RelPath, cx: &Context<'_>) -> Result<Vec<u8>> {
        let fd = rustix::fs::memfd_create("ah-symlink", MemfdFlags::CLOEXEC).map_err(|e| io("cannot get memory", e))?;
        self.read(path, fd.as_fd(), cx)?;
        read_all(fd.as_fd()).map_err(|e| io(format!("cannot read {path}"), e))
    }

    /// A descriptor with the contents of a file or symlink, at any offset.
    ///
    /// # Errors
    /// Those of [`Self::read`], and `DataLoss` if a provider gives other than the `size` that it told of.
    pub(crate) fn contents(
        &self,
        path: &RelPath,
        size: u64,
        shelf: Option<&Shelf<'_>>,
        cx: &Context<'_>,
    ) -> Result<OwnedFd> {
        let spool = match (self, shelf) {
            (Source::Snapshot { shelf, .. }, _) | (_, Some(shelf)) => shelf.spool(size)?,
            _ => rustix::fs::memfd_create("ah-compare", MemfdFlags::CLOEXEC).map_err(|e| io("cannot get memory", e))?,
        };
        self.read(path, spool.as_fd(), cx)?;
        if let Source::Snapshot { shelf, .. } = self {
            let given = rustix::fs::fstat(&spool).map_err(|e| io(format!("cannot read {path}"), e))?.st_size;
            if u64::try_from(given) != Ok(size) {
                let name = shelf.provider.describe().name;
                let message = format!("the provider {name} gave {given} bytes of {path}, not {size}");
                return Err(Error::new(ErrorKind::DataLoss, message));
            }
        }
        Ok(spool)
    }

    /// The shelf that it is on, if it is no directory.
    pub(crate) fn shelf(&self) -> Option<&Shelf<'_>> {
        match self {
            Source::Snapshot { shelf, .. } => Some(shelf),
            Source::View { mounted, .. } => Some(&mounted.shelf),
            Source::Directory { .. } => None,
        }
    }

    /// Write bits that a view had to take off are put back for the owner: nobody makes a tree that its owner cannot write to. What
    /// says nothing about contents here is taken out.
    fn shown(&self, mut entry: Entry) -> Entry {
        if self.shelf().is_some_and(|shelf| shelf.strange) {
            entry.content = None;
        }
        if matches!(self, Source::View { exact_modes: false, .. }) && entry.kind != EntryKind::Symlink {
            entry.mode |= 0o200;
        }
        entry
    }
}

/// Whether two entries have the same kind and contents; reads both where nothing else tells.
///
/// # Errors
/// Those of [`Source::read`].
pub(crate) fn same_contents(
    (a, a_path, a_entry): (&Source<'_>, &RelPath, &Entry),
    (b, b_path, b_entry): (&Source<'_>, &RelPath, &Entry),
    cx: &Context<'_>,
) -> Result<bool> {
    if a_entry.kind != b_entry.kind {
        return Ok(false);
    }
    if !matches!(a_entry.kind, EntryKind::File | EntryKind::Symlink) {
        return Ok(true);
    }
    if a_entry.size != b_entry.size {
        return Ok(false);
    }
    if let (Some(a), Some(b)) = (&a_entry.content, &b_entry.content) {
        return Ok(a == b);
    }
    cx.check_cancelled()?;
    let shelf = a.shelf().or_else(|| b.shelf());
    let a = a.contents(a_path, a_entry.size, shelf, cx)?;
    let b = b.contents(b_path, b_entry.size, shelf, cx)?;
    same_bytes(a.as_fd(), b.as_fd()).map_err(|e| io(format!("cannot compare {a_path}"), e))
}

/// The differences between two trees, by comparing them entry by entry, but for what `pass_over` says and all below it. The order is the contract's.
///
/// # Errors
/// Those of both sources.
pub(crate) fn diff(
    from: &Source<'_>,
    to: &Source<'_>,
    paths: &[RelPath],
    times: bool,
    pass_over: &dyn Fn(&RelPath) -> bool,
    cx: &Context<'_>,
) -> Result<Changes> {
    let mut walk = Walk { from, to, times, pass_over, cx, changes: Vec::new(), unread: Vec::new(), seen: 0 };
    let mut tops: Vec<&RelPath> = paths.iter().collect();
    tops.sort();
    tops.dedup();
    if tops.is_empty() {
        walk.top(&RelPath::root())?;
    }
    for (at, top) in tops.iter().enumerate() {
        // One that lies below another was walked with it.
        if !tops[..at].iter().any(|above| top.starts_with(above)) {
            walk.top(top)?;
        }
    }
    let mut changes = walk.changes;
    changes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Changes { changes, method: DiffMethod::Walk, untouched: false, lost: Vec::new(), unread: walk.unread })
}

struct Walk<'a, 'c> {
    from: &'a Source<'a>,
    to: &'a Source<'a>,
    times: bool,
    pass_over: &'a dyn Fn(&RelPath) -> bool,
    cx: &'a Context<'c>,
    changes: Vec<Change>,
    /// Directories that cannot be looked into on one side, and paths asked for that are in such.
    unread: Vec<RelPath>,
    seen: u64,
}

impl Walk<'_, '_> {
    /// One of the paths asked for, which may lie where nobody can look.
    fn top(&mut self, path: &RelPath) -> Result<()> {
        let both = self.from.entry(path, self.cx).and_then(|before| Ok((before, self.to.entry(path, self.cx)?)));
        match both {
            Ok((before, after)) => self.pair(path, before, after),
            Err(error) if error.kind == ErrorKind::PermissionDenied || error.is_unreadable() && !path.is_root() => {
                self.unread.push(path.clone());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn pair(&mut self, path: &RelPath, before: Option<Entry>, after: Option<Entry>) -> Result<()> {
        self.seen += 1;
        if self.seen.is_multiple_of(512) {
            self.cx.check_cancelled()?;
            self.cx.progress("comparing", self.seen, None);
        }
        if (self.pass_over)(path) {
            return Ok(());
        }
        let is_dir = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.kind == EntryKind::Dir);
        let list = |side: &Source<'_>, is_dir: bool| match is_dir.then(|| side.children(path, self.cx)).transpose() {
            Err(error) if error.kind == ErrorKind::PermissionDenied => Ok(None),
            entries => entries.map(|entries| Some(entries.unwrap_or_default())),
        };
        let listed = list(self.from, is_dir(&before)).and_then(|from| Ok((from, list(self.to, is_dir(&after))?)));
        let listed = match listed {
            // Nothing goes, and nothing makes room, for a directory of which nobody knows what is in it.
            Err(error) if error.is_unreadable() && !path.is_root() => {
                self.unread.push(path.clone());
                return Ok(());
            }
            listed => listed?,
        };
        if let (Some(a), Some(b)) = (&before, &after) {
            let same = || match same_contents((self.from, path, a), (self.to, path, b), self.cx) {
                // What this user may not read: as its attributes say.
                Err(error) if error.kind == ErrorKind::PermissionDenied => Ok(a.mtime == b.mtime),
                // What is damaged is not known to be equal, and says so to who reads it.
                Err(error) if error.is_unreadable() => Ok(false),
                answer => answer,
            };
            let equal = a.mode == b.mode && (!self.times || a.mtime == b.mtime) && same()?;
            if !equal {
                self.changes.push(Change { path: path.clone(), before, after });
            }
        } else if before.is_some() || after.is_some() {
            self.changes.push(Change { path: path.clone(), before, after });
        }
        // What this user may not look into on one side is not known to differ from the other.
        let (Some(before), Some(after)) = listed else {
            self.unread.push(path.clone());
            return Ok(());
        };
        let (mut before, mut after) = (before.into_iter().peekable(), after.into_iter().peekable());
        loop {
            let order = match (before.peek(), after.peek()) {
                (Some(a), Some(b)) => a.name.cmp(&b.name),
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (None, None) => return Ok(()),
            };
            let a = if order.is_le() { before.next() } else { None };
            let b = if order.is_ge() { after.next() } else { None };
            let name = a.as_ref().or(b.as_ref()).map(|entry| entry.name.clone()).unwrap_or_default();
            self.pair(&path.join(&name)?, a, b)?;
        }
    }
}

/// Writes all of `bytes`.
pub(crate) fn write_all(out: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(out, bytes) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fills `buffer` from `at` on as far as the file goes.
fn read_at(fd: BorrowedFd<'_>, buffer: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(fd, &mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Everything in a file, from its start.
pub(crate) fn read_all(fd: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let n = read_at(fd, &mut chunk, bytes.len() as u64)?;
        bytes.extend_from_slice(&chunk[..n]);
        if n < chunk.len() {
            return Ok(bytes);
        }
    }
}

/// Copies a file's contents to `out`, from its start: by reflink, in the kernel, or by hand, whichever this pair of files can. Gives how many
/// bytes were written, which are `most` at most however the file grows meanwhile; none if they are shared. `ECANCELED` if the caller wants to stop.
pub(crate) fn copy_contents(
    from: BorrowedFd<'_>,
    out: BorrowedFd<'_>,
    most: u64,
    cx: &Context<'_>,
) -> Result<Option<u64>, Errno> {
    /// Some tens of milliseconds on a slow disk.
    const STEP: u64 = 8 << 20;
    if rustix::fs::ioctl_ficlone(out, from).is_ok() {
        return Ok(None);
    }
    let mut written = 0;
    let go_on = || cx.check_cancelled().map_err(|_| Errno::CANCELED);
    let step = |most: u64, longest: u64| usize::try_from(most.min(longest)).unwrap_or(0);
    while written < most {
        go_on()?;
        match rustix::fs::copy_file_range(from, None, out, None, step(most - written, STEP)) {
            Ok(0) => break,
            Ok(n) => written += n as u64,
            Err(Errno::INTR) => {}
            // Not between these two; the offsets of both tell the loop below where to go on.
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => break,
            Err(error) => return Err(error),
        }
    }
    // Also after a 0 above: some filesystems answer 0 for files whose size is not known beforehand.
    let mut chunk = vec![0; 128 << 10];
    while written < most {
        go_on()?;
        let wanted = step(most - written, chunk.len() as u64);
        match rustix::io::read(from, &mut chunk[..wanted]) {
            Ok(0) => break,
            Ok(n) => {
                write_all(out, &chunk[..n])?;
                written += n as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(written))
}

/// Whether two files have the same bytes.
pub(crate) fn same_bytes(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> Result<bool, Errno> {
    let (mut left, mut right) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    let mut at = 0;
    loop {
        let (n, m) = (read_at(a, &mut left, at)?, read_at(b, &mut right, at)?);
        if left[..n] != right[..m] {
            return Ok(false);
        }
        if n < left.len() {
            return Ok(true);
        }
        at += n as u64;
    }
}
