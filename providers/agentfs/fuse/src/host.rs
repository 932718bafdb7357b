//! What the kernel asks, answered by a tree. Permissions are the kernel's to check (`default_permissions`); what it leaves to a
//! filesystem is done here: who owns what is new in a directory whose group is inherited; and in `change`.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use ah_agentfs::{Attr, DirEntry, Error, Ino, Kind, Owner, ROOT, Rename, Result, Seek, SetAttr, SetXattr, View};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig,
    LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{Mode, XattrFlags};

use crate::aside::Aside;
use crate::lists::{Lists, Names};
use crate::opens::{Asked, Opens};
use crate::replies::{FOREVER, GENERATION, NEVER, attr, bare, empty, entry, offset, value};
use crate::watch::{Tree, Watch};
use crate::words::{attributes, device, errno, file_type, kind, set_time};

/// How much the kernel writes or reads by one message, in bytes.
pub(crate) const LARGEST: u32 = 1 << 20;
/// Set in the number of an inode that the tree does not have: its own are below 2^62, the root is told as one of 2^62 and more.
const NOBODYS: Ino = 1 << 63;
/// Where `.` and `..` come in a list; the tree's own names have higher cookies.
const DOT: u64 = 1;
const DOTS: u64 = 2;

/// A regular file, as Linux has it in a mode.
const FILE: u32 = 0o100_000;
/// What `lseek` asks for, as Linux numbers it.
const SEEK_DATA: i32 = 3;

pub(crate) const CAPABILITY: &[u8] = b"security.capability";
/// Access control lists are kept, but nobody here would enforce them, so they are not shown either.
const ACL: &[u8] = b"system.posix_acl_";

/// What attributes' names begin with on Linux' own filesystems: others could not be put back there.
const SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
const TRUSTED: &[u8] = b"trusted.";

/// The kernel's side of a tree.
pub(crate) struct Host {
    view: Arc<Tree>,
    /// Of a snapshot, none: that shows nothing that was changed below.
    watch: Option<Arc<Watch>>,
    /// Closed when all is over: nobody need be told any more.
    _end: Option<UnixStream>,
    /// The root's number as others are told it.
    root: Ino,
    lists: Lists,
    /// Files of which it is known that they have no capabilities which a write would have to take away.
    pub(crate) plain: Mutex<HashSet<Ino>>,
    /// Does what the kernel is to be told first.
    aside: Sender<Aside>,
    /// To tell the kernel, from when it has been greeted.
    kernel: Arc<OnceLock<Notifier>>,
    /// Where large files are passed through. `None`: the kernel opens files without asking.
    pub(crate) opens: Option<Arc<Opens>>,
}

impl Host {
    /// `watch` comes with an end that is closed with the host.
    pub(crate) fn new(
        view: Arc<Tree>,
        watch: Option<(Arc<Watch>, UnixStream)>,
        root: Ino,
        aside: Sender<Aside>,
        kernel: Arc<OnceLock<Notifier>>,
        opens: Option<Arc<Opens>>,
    ) -> Self {
        let (watch, _end) = watch.unzip();
        Self { view, watch, _end, root, lists: Lists::default(), plain: Mutex::default(), aside, kernel, opens }
    }

    /// Whoever is there before the tree waits for it.
    pub(crate) fn view(&self) -> &View {
        &self.view.wait().0
    }

    /// What was asked of an inode. If it is not there any more, the kernel is to ask again before the next one opens it.
    pub(crate) fn asked<T>(&self, ino: INodeNo, outcome: Result<T>) -> Result<T> {
        if let Err(Error::Stale) = outcome {
            // Nobody listens any more when all is over.
            let _ = self.aside.send(Aside::Stale(ino.0));
        }
        outcome
    }

    /// Before anything is said of what is in a directory: the kernel is told when that is not true any more.
    fn watch(&self, directory: Ino) {
        if let Some(watch) = &self.watch {
            watch.begin(self.view(), directory);
        }
    }

    /// Has the kernel ask for an inode's attributes again, before it is answered.
    pub(crate) fn renew(&self, ino: INodeNo) {
        if let Some(kernel) = self.kernel.get() {
            // Attributes alone: it waits for nobody.
            let _ = kernel.inval_inode(ino, -1, 0);
        }
    }

    /// A name in a directory came or went, about to be answered. The kernel by itself forgets the directory's attributes then, but takes them for known again by an answer
    /// that was given before and comes through later, to who lists what is above, say. Told of it, it takes none that is older.
    fn changed<T>(&self, directory: INodeNo, outcome: Result<T>) -> Result<T> {
        if outcome.is_ok() {
            // Who asked holds the directory.
            self.renew(directory);
        }
        outcome
    }

    /// Attributes as `stat` is to show them.
    pub(crate) fn told(&self, attr: Attr) -> Attr {
        if attr.ino == ROOT { Attr { ino: self.root, ..attr } } else { attr }
    }

    /// Who owns what is made in a directory, and with which permissions.
    fn owner(&self, request: &Request, parent: Ino, mode: u32, kind: Kind) -> Result<Owner> {
        let set_gid = Mode::SGID.bits();
        let above = self.view().getattr(parent)?;
        let mut owner = Owner { mode: mode & 0o7777, uid: request.uid(), gid: request.gid() };
        if above.mode & set_gid != 0 {
            owner.gid = above.gid;
            if kind == Kind::Directory {
                owner.mode |= set_gid;
            }
        }
        Ok(owner)
    }

    fn make(&self, request: &Request, parent: Ino, name: &OsStr, mode: u32, rdev: u32) -> Result<Attr> {
        let kind = kind(mode).ok_or(Error::Invalid("not a kind of file"))?;
        let owner = self.owner(request, parent, mode, kind)?;
        self.view().mknod(parent, name.as_bytes(), kind, owner, device(rdev))
    }

    /// All names of a directory: as they were when its reading began, if they are remembered still. A list of any time goes on rightly behind
    /// a cookie; what its names lead to is to be looked up.
    fn names(&self, directory: Ino, from: u64) -> Result<Names> {
        if from > DOTS
            && let Some(names) = self.lists.get(directory)
        {
            return Ok(names);
        }
        self.watch(directory);
        let names = Arc::new(self.view().list(directory)?);
        self.lists.put(directory, names.clone());
        Ok(names)
    }

    /// What a directory's entry leads to, counted as known, and how long that may be kept; none if it was renamed or removed since the list was
    /// made. What cannot be looked up, as a file that was changed below, is still a name there: not counted and not to be kept, so that it is
    /// asked for again, and answered with the error.
    ///
    /// Never is the number told of what was not looked up: the kernel takes what it is told for that inode's attributes, and another name may
    /// lead to it still. That it has a size of 0 would cut what is cached of it, and the next who appends would write at its beginning.
    fn looked_up(&self, directory: Ino, entry: &DirEntry) -> Option<(FileAttr, Duration)> {
        match self.view().lookup(directory, &entry.name) {
            Ok(attr) => Some((attributes(&attr), FOREVER)),
            Err(Error::NotFound) => None,
            Err(_) => Some((bare(NOBODYS | entry.ino, file_type(entry.kind)), NEVER)),
        }
    }

    fn forget_one(&self, ino: Ino, count: u64) {
        self.view().forget(ino, count);
        lock(&self.plain).remove(&ino);
    }
}

/// Every change here is whole before the lock is let go.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Filesystem for Host {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            InitFlags::FUSE_NO_OPEN_SUPPORT,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            // Only the kernel changes contents, so nothing it has cached is ever stale.
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            // Else each write asks for capabilities first.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        ];
        for flag in wanted {
            // What an older kernel does not have costs speed only; see `open` for the one that it must have.
            let _ = config.add_capabilities(flag);
        }
        if !config.capabilities().contains(InitFlags::FUSE_NO_OPEN_SUPPORT | InitFlags::FUSE_NO_OPENDIR_SUPPORT) {
            return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "Linux 5.1 or newer is needed"));
        }
        let _ = config.set_max_write(LARGEST);
        let _ = config.set_max_background(64);
        if let Some(opens) = &self.opens {
            // That who opens a file has it cut is said with that: what is only read is passed through, and what it is opened for is what the kernel opens the other for.
            // With that the kernel cuts nothing by itself any more: it must not be agreed on where opening is not answered then.
            let wanted = InitFlags::FUSE_PASSTHROUGH | InitFlags::FUSE_ATOMIC_O_TRUNC;
            opens.told.begin(|| config.add_capabilities(wanted).is_ok() && config.set_max_stack_depth(1).is_ok());
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        #[cfg(test)]
        assert_ne!(name, "panics", "as a test wants it");
        self.watch(parent.0);
        match self.view().lookup(parent.0, name.as_bytes()) {
            // That there is nothing may be kept as well: an inode of number 0 says so.
            Err(Error::NotFound) => {
                reply.entry(&FOREVER, &bare(0, FileType::RegularFile), GENERATION);
            }
            outcome => entry(reply, outcome),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        self.forget_one(ino.0, count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        attr(reply, self.view().getattr(ino.0).map(|attr| self.told(attr)));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (mode, atime, mtime) = (mode.map(|mode| mode & 0o7777), atime.map(set_time), mtime.map(set_time));
        let set = SetAttr { mode, uid, gid, size, atime, mtime };
        if size.is_some() && self.opens.is_some() {
            return self.admit(Asked::Set { ino: ino.0, set, uid: request.uid(), reply });
        }
        attr(reply, self.set_attributes(request.uid(), ino.0, set).map(|attr| self.told(attr)));
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.asked(ino, self.view().readlink(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, rdev: u32, reply: ReplyEntry) {
        entry(reply, self.changed(parent, self.make(request, parent.0, name, mode, rdev)));
    }

    /// Refused for good, where OPEN is: the kernel then makes a file by `mknod` and opens it by itself. Where it is not, that would be two messages, the second of which cuts what was just made.
    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, _: i32, reply: ReplyCreate) {
        let Some(opens) = self.opens.as_ref().filter(|opens| opens.are_answered()) else {
            return reply.error(Errno::ENOSYS);
        };
        match self.changed(parent, self.make(request, parent.0, name, FILE | mode & 0o7777, 0)) {
            Ok(attr) => {
                opens.made(attr.ino);
                let keep = FopenFlags::FOPEN_KEEP_CACHE;
                reply.created(&FOREVER, &attributes(&attr), GENERATION, FileHandle(0), keep);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _: u32, reply: ReplyEntry) {
        let owner = self.owner(request, parent.0, mode, Kind::Directory);
        let made = owner.and_then(|owner| self.view().mkdir(parent.0, name.as_bytes(), owner));
        entry(reply, self.changed(parent, made));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.changed(parent, self.view().unlink(parent.0, name.as_bytes())));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.changed(parent, self.view().rmdir(parent.0, name.as_bytes())));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let owner = self.owner(request, parent.0, 0o777, Kind::Symlink);
        let target = target.as_os_str().as_bytes();
        let made = owner.and_then(|owner| self.view().symlink(parent.0, name.as_bytes(), target, owner));
        entry(reply, self.changed(parent, made));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            _ if flags.is_empty() => Rename::Replace,
            RenameFlags::RENAME_NOREPLACE => Rename::NoReplace,
            RenameFlags::RENAME_EXCHANGE => Rename::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let renamed = self.view().rename(parent.0, name.as_bytes(), new_parent.0, new_name.as_bytes(), how);
        empty(reply, self.changed(new_parent, self.changed(parent, renamed)));
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        entry(reply, self.changed(parent, self.view().link(ino.0, parent.0, name.as_bytes())));
    }

    /// Unless files are passed through, refused for good: from then on the kernel opens files without a message.
    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match &self.opens {
            Some(opens) if opens.are_answered() => {
                self.admit(Asked::Open { ino: ino.0, flags, uid: request.uid(), reply });
            }
            _ => reply.error(Errno::ENOSYS),
        }
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
        self.closed(ino.0);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.asked(ino, self.view().read(ino.0, offset, size as usize)) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let strip = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        match self.asked(ino, self.strip(ino.0, strip).and_then(|()| self.view().write(ino.0, offset, data))) {
            Ok(written) => reply.written(written as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Nothing is kept back here, so closing has nothing to do; asked once.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(reply, self.view().fsync(ino.0));
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        empty(reply, self.view().fsync(ino.0));
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let names = match self.names(ino.0, offset) {
            Ok(names) => names,
            Err(error) => return reply.error(errno(&error)),
        };
        for (cookie, name) in [(DOT, "."), (DOTS, "..")] {
            if offset < cookie && reply.add(ino, cookie, FileType::Directory, name) {
                return reply.ok();
            }
        }
        let behind = names.partition_point(|entry| entry.cookie <= offset);
        if offset >= DOTS && behind == names.len() {
            self.lists.forget(ino.0, &names);
        }
        for entry in &names[behind..] {
            if reply.add(INodeNo(entry.ino), entry.cookie, file_type(entry.kind), OsStr::from_bytes(&entry.name)) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let (names, own) = match self.names(ino.0, offset).and_then(|names| Ok((names, self.view().getattr(ino.0)?))) {
            Ok(both) => both,
            Err(error) => return reply.error(errno(&error)),
        };
        let own = attributes(&own);
        for (cookie, name) in [(DOT, "."), (DOTS, "..")] {
            // The kernel takes neither for an inode that it knows now.
            if offset < cookie && reply.add(ino, cookie, name, &NEVER, &own, GENERATION) {
                return reply.ok();
            }
        }
        let behind = names.partition_point(|entry| entry.cookie <= offset);
        if offset >= DOTS && behind == names.len() {
            self.lists.forget(ino.0, &names);
        }
        for entry in &names[behind..] {
            let Some((attr, keep)) = self.looked_up(ino.0, entry) else { continue };
            if reply.add(attr.ino, entry.cookie, OsStr::from_bytes(&entry.name), &keep, &attr, GENERATION) {
                // It did not fit, so the kernel will not give it back.
                if keep == FOREVER {
                    self.view().forget(attr.ino.0, 1);
                }
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.view().statfs() {
            Ok(stat) => {
                let (total, free) = (stat.total / 4096, stat.free / 4096);
                reply.statfs(total, free, free, stat.free_inodes, stat.free_inodes, 4096, 255, 4096);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, _: u32, reply: ReplyEmpty) {
        let name = name.as_bytes();
        match SPACES.iter().find_map(|space| name.strip_prefix(*space)) {
            None => return reply.error(Errno::EOPNOTSUPP),
            Some([]) => return reply.error(Errno::EINVAL),
            Some(_) => {}
        }
        let how = match XattrFlags::from_bits_retain(flags as u32) {
            flags if flags.is_empty() => SetXattr::Any,
            XattrFlags::CREATE => SetXattr::Create,
            XattrFlags::REPLACE => SetXattr::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        if name == CAPABILITY {
            lock(&self.plain).remove(&ino.0);
        }
        empty(reply, self.view().setxattr(ino.0, name, value, how));
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if name.as_bytes().starts_with(ACL) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        value(reply, size, self.view().getxattr(ino.0, name.as_bytes()));
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.view().listxattr(ino.0).map(|mut names| {
            names.retain(|name| !name.starts_with(ACL) && (request.uid() == 0 || !name.starts_with(TRUSTED)));
            names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect()
        });
        value(reply, size, names);
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if name.as_bytes().starts_with(ACL) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        empty(reply, self.view().removexattr(ino.0, name.as_bytes()));
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match self.allocate(request, ino.0, offset, length, mode) {
            // Nobody listens any more when all is over, and nobody asks.
            Ok(Some(end)) => _ = self.aside.send(Aside::Longer(ino.0, end, reply)),
            outcome => empty(reply, outcome.map(drop)),
        }
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, at: i64, whence: i32, reply: ReplyLseek) {
        // The kernel asks only for these two.
        let what = if whence == SEEK_DATA { Seek::Data } else { Seek::Hole };
        let Ok(from) = u64::try_from(at) else { return reply.error(Errno::ENXIO) };
        // Nothing is written to a snapshot, by a mapping neither: what is cached of it is what it holds.
        if self.view().is_snapshot() {
            return offset(reply, self.view().seek(ino.0, from, what));
        }
        // Nobody listens any more when all is over, and nobody asks.
        let _ = self.aside.send(Aside::Seek(ino.0, from, what, reply));
    }
}
