//! Trees. What a function means is said by `ah_agentfs::View`.

use std::ffi::c_void;
use std::sync::Arc;

use ah_agentfs as core;

use crate::outcome::{Failure, Outcome, Stop, call};
use crate::types::{self, Attr, Bytes, Entry, Kind, OnEntry, OnName, Owner, SetAttr, StatFs, give, must_have};

/// A tree: a branch, or a snapshot.
pub struct View {
    inner: core::View,
    /// For the workspace, which counts them.
    _open: Arc<()>,
}

impl View {
    pub(crate) fn new(inner: core::View, open: Arc<()>) -> Self {
        Self { inner, _open: open }
    }
}

/// How much is read from the core at once.
const PART: usize = 1 << 20;

/// The root directory's number: it need not be looked up, and is never forgotten.
pub const AGENTFS_ROOT: u64 = 1;
const _: () = assert!(AGENTFS_ROOT == core::ROOT);

/// What a name in a directory leads to. Counts that it is known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_lookup(
    view: *mut View,
    parent: u64,
    name: Bytes,
    attr: *mut Attr,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { found(view, attr, failure, |view| Ok(view.lookup(parent, name.get()?)?)) }
}

/// Gives back `count` of the counts by which an inode is known. A file without a name goes with the last one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_forget(view: *mut View, ino: u64, count: u64, failure: *mut Failure) -> i32 {
    // SAFETY: the header's contract.
    unsafe {
        with(view, failure, |view| {
            view.forget(ino, count);
            Ok(())
        })
    }
}

/// An inode's attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_getattr(view: *mut View, ino: u64, attr: *mut Attr, failure: *mut Failure) -> i32 {
    // SAFETY: the header's contract.
    unsafe { found(view, attr, failure, |view| Ok(view.getattr(ino)?)) }
}

/// Changes attributes, and says what they are then. `attr` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_setattr(
    view: *mut View,
    ino: u64,
    set: *const SetAttr,
    attr: *mut Attr,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe {
        with(view, failure, |view| {
            let set = set.as_ref().ok_or(Stop::Argument("a null pointer for what is to be set"))?;
            let answer = view.setattr(ino, set.asked()?)?;
            if attr.is_null() { Ok(()) } else { give(attr, answer.into()) }
        })
    }
}

/// Shows the names in a directory, without `.` and `..`, by rising cookie, those behind the cookie `after`; 0: all. A cookie depends on
/// the name alone as a rule, so that going on behind one in a later call misses nothing that was there all the time and shows nothing twice. Costs the
/// directory each time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_readdir(
    view: *mut View,
    directory: u64,
    after: u64,
    show: OnEntry,
    context: *mut c_void,
    failure: *mut Failure,
) -> i32 {
    let list = |view: &core::View| {
        let show = show.ok_or(Stop::Argument("a null pointer for a function"))?;
        let names = view.list(directory)?;
        for name in &names[names.partition_point(|name| name.cookie <= after)..] {
            let entry = Entry {
                cookie: name.cookie,
                ino: name.ino,
                kind: Kind::from(name.kind) as u32,
                reserved: 0,
                name: Bytes::of(&name.name),
            };
            // SAFETY: the header's contract: a function of this kind; what it is shown lives longer than the call.
            if !unsafe { show(context, &raw const entry) } {
                break;
            }
        }
        Ok(())
    };
    // SAFETY: as above.
    unsafe { with(view, failure, list) }
}

/// Where a symbolic link points. `length` is what it takes; TOO_SMALL if that is more than `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_readlink(
    view: *mut View,
    ino: u64,
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { value(view, (buffer, capacity, length), failure, |view| Ok(view.readlink(ino)?)) }
}

/// Makes an empty file, a directory, a pipe, a socket's name or a device node (`rdev` as `makedev` makes it, else 0). `kind`: one of
/// agentfs_kind but a link. Counts that it is known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_mknod(
    view: *mut View,
    parent: u64,
    name: Bytes,
    kind: u32,
    owner: Owner,
    rdev: u64,
    attr: *mut Attr,
    failure: *mut Failure,
) -> i32 {
    let make = |view: &core::View| {
        // SAFETY: the header's contract.
        let name = unsafe { name.get()? };
        match types::kind(kind)? {
            core::Kind::Directory => Ok(view.mkdir(parent, name, owner.into())?),
            kind => Ok(view.mknod(parent, name, kind, owner.into(), rdev)?),
        }
    };
    // SAFETY: as above.
    unsafe { found(view, attr, failure, make) }
}

/// Makes a symbolic link. Counts that it is known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_symlink(
    view: *mut View,
    parent: u64,
    name: Bytes,
    target: Bytes,
    owner: Owner,
    attr: *mut Attr,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { found(view, attr, failure, |view| Ok(view.symlink(parent, name.get()?, target.get()?, owner.into())?)) }
}

/// A regular file without a name, which goes when it is forgotten unless `agentfs_link` gives it one. Counts that it is known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_tmpfile(view: *mut View, owner: Owner, attr: *mut Attr, failure: *mut Failure) -> i32 {
    // SAFETY: the header's contract.
    unsafe { found(view, attr, failure, |view| Ok(view.tmpfile(owner.into())?)) }
}

/// Gives a file one more name. Counts that it is known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_link(
    view: *mut View,
    ino: u64,
    parent: u64,
    name: Bytes,
    attr: *mut Attr,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { found(view, attr, failure, |view| Ok(view.link(ino, parent, name.get()?)?)) }
}

/// Removes a name of anything but a directory. What was its last name leaves a file that lives until it is forgotten.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_unlink(view: *mut View, parent: u64, name: Bytes, failure: *mut Failure) -> i32 {
    // SAFETY: the header's contract.
    unsafe { with(view, failure, |view| Ok(view.unlink(parent, name.get()?)?)) }
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_rmdir(view: *mut View, parent: u64, name: Bytes, failure: *mut Failure) -> i32 {
    // SAFETY: the header's contract.
    unsafe { with(view, failure, |view| Ok(view.rmdir(parent, name.get()?)?)) }
}

/// Renames in one step. `how`: one of agentfs_rename. A directory can take the place of an empty directory only, and cannot go into
/// itself. Inodes stay what they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_rename(
    view: *mut View,
    parent: u64,
    name: Bytes,
    new_parent: u64,
    new_name: Bytes,
    how: u32,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe {
        with(view, failure, |view| {
            Ok(view.rename(parent, name.get()?, new_parent, new_name.get()?, types::rename(how)?)?)
        })
    }
}

/// Reads up to `capacity` bytes. `length` is how many; fewer only at the end. Of more than 1 MiB, parts may be of different moments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_read(
    view: *mut View,
    ino: u64,
    offset: u64,
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
    failure: *mut Failure,
) -> i32 {
    let read = |view: &core::View| {
        must_have(length)?;
        if capacity > 0 {
            must_have(buffer)?;
        }
        let mut done = 0;
        loop {
            let wanted = (capacity - done).min(PART);
            let Some(at) = offset.checked_add(done as u64) else { break };
            let bytes = view.read(ino, at, wanted)?;
            // SAFETY: the header's contract: `buffer` has room for `capacity` bytes, and `done` with these is not more; what was
            // just made cannot overlap it.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.wrapping_add(done), bytes.len()) };
            done += bytes.len();
            if bytes.len() < wanted || done == capacity {
                break;
            }
        }
        // SAFETY: as above.
        unsafe { give(length, done) }
    };
    // SAFETY: as above.
    unsafe { with(view, failure, read) }
}

/// Writes all of the bytes, making the file longer if they reach beyond its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_write(
    view: *mut View,
    ino: u64,
    offset: u64,
    bytes: Bytes,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { with(view, failure, |view| Ok(view.write(ino, offset, bytes.get()?).map(drop)?)) }
}

/// Sets a range's space aside, or makes a hole. `how`: one of agentfs_allocate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_fallocate(
    view: *mut View,
    ino: u64,
    offset: u64,
    length: u64,
    how: u32,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { with(view, failure, |view| Ok(view.fallocate(ino, offset, length, types::allocate(how)?)?)) }
}

/// Where the next data, or the next hole, begins at or behind an offset. `what`: one of agentfs_seek.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_seek(
    view: *mut View,
    ino: u64,
    offset: u64,
    what: u32,
    found: *mut u64,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { with(view, failure, |view| give(found, view.seek(ino, offset, types::seek(what)?)?)) }
}

/// Waits until what was written is on the disk. So is everything else that was changed before the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_fsync(view: *mut View, ino: u64, failure: *mut Failure) -> i32 {
    // SAFETY: the header's contract.
    unsafe { with(view, failure, |view| Ok(view.fsync(ino)?)) }
}

/// What the disk under the store, or the store's limit, has left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_statfs(view: *mut View, stat: *mut StatFs, failure: *mut Failure) -> i32 {
    let ask = |view: &core::View| {
        let core::StatFs { total, free, free_inodes } = view.statfs()?;
        // SAFETY: the header's contract.
        unsafe { give(stat, StatFs { total, free, free_inodes }) }
    };
    // SAFETY: as above.
    unsafe { with(view, failure, ask) }
}

/// The value of an extended attribute. `length` is what it takes; TOO_SMALL if that is more than `capacity`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_getxattr(
    view: *mut View,
    ino: u64,
    name: Bytes,
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { value(view, (buffer, capacity, length), failure, |view| Ok(view.getxattr(ino, name.get()?)?)) }
}

/// Sets an extended attribute. `how`: one of agentfs_set_xattr. Names are any bytes but NUL, up to 255; values up to 64 KiB.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_setxattr(
    view: *mut View,
    ino: u64,
    name: Bytes,
    value: Bytes,
    how: u32,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the header's contract.
    unsafe { with(view, failure, |view| Ok(view.setxattr(ino, name.get()?, value.get()?, types::set_xattr(how)?)?)) }
}

/// Shows the names of an inode's extended attributes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_listxattr(
    view: *mut View,
    ino: u64,
    show: OnName,
    context: *mut c_void,
    failure: *mut Failure,
) -> i32 {
    let list = |view: &core::View| {
        let show = show.ok_or(Stop::Argument("a null pointer for a function"))?;
        for name in view.listxattr(ino)? {
            // SAFETY: the header's contract: a function of this kind; what it is shown lives longer than the call.
            if !unsafe { show(context, Bytes::of(&name)) } {
                break;
            }
        }
        Ok(())
    };
    // SAFETY: as above.
    unsafe { with(view, failure, list) }
}

/// Removes an extended attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn agentfs_removexattr(view: *mut View, ino: u64, name: Bytes, failure: *mut Failure) -> i32 {
    // SAFETY: the header's contract.
    unsafe { with(view, failure, |view| Ok(view.removexattr(ino, name.get()?)?)) }
}

/// # Safety
///
/// The header's contract.
unsafe fn with(view: *mut View, failure: *mut Failure, work: impl FnOnce(&core::View) -> Outcome) -> i32 {
    let work = || {
        // SAFETY: the caller's promise: null or open; only shared references are made of it.
        let view = unsafe { view.as_ref() }.ok_or(Stop::Argument("a null pointer for a view"))?;
        work(&view.inner)
    };
    // SAFETY: as above.
    unsafe { call(failure, work) }
}

/// What leads to an inode, and so counts that it is known: never without saying which.
///
/// # Safety
///
/// The header's contract.
unsafe fn found(
    view: *mut View,
    attr: *mut Attr,
    failure: *mut Failure,
    work: impl FnOnce(&core::View) -> Outcome<core::Attr>,
) -> i32 {
    let work = |view: &core::View| {
        must_have(attr)?;
        // SAFETY: the caller's promise.
        unsafe { give(attr, work(view)?.into()) }
    };
    // SAFETY: as above.
    unsafe { with(view, failure, work) }
}

/// A value into a buffer with a capacity, and its length.
///
/// # Safety
///
/// The header's contract.
unsafe fn value(
    view: *mut View,
    (buffer, capacity, length): (*mut u8, usize, *mut usize),
    failure: *mut Failure,
    work: impl FnOnce(&core::View) -> Outcome<Vec<u8>>,
) -> i32 {
    let work = |view: &core::View| {
        must_have(length)?;
        if capacity > 0 {
            must_have(buffer)?;
        }
        let value = work(view)?;
        // SAFETY: the caller's promise.
        unsafe { give(length, value.len())? };
        if value.len() > capacity {
            return Err(Stop::TooSmall);
        }
        // SAFETY: as above: there is room for `capacity` bytes, and what was just made cannot overlap it.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), buffer, value.len()) };
        Ok(())
    };
    // SAFETY: as above.
    unsafe { with(view, failure, work) }
}
