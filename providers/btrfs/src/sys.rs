//! The one place of this crate with `unsafe`: the kernel's Btrfs calls, as functions.
//!
//! Types and numbers are those of Linux's `btrfs.h` as `linux-raw-sys` has them; source: `fs/btrfs/ioctl.c` and
//! btrfs-ioctl(2). Each function says which privilege the kernel asks for. Not here: what follows from an error.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use linux_raw_sys::{btrfs as raw, ioctl as op};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, Setter, Updater};

/// The inode number of every subvolume's root, and of nothing else.
pub(crate) const ROOT_INODE: u64 = raw::BTRFS_FIRST_FREE_OBJECTID as u64;

/// The inode number of the directory that stands in a snapshot where a subvolume was nested.
pub(crate) const STUB_INODE: u64 = raw::BTRFS_EMPTY_SUBVOL_DIR_OBJECTID as u64;

/// What statfs(2) says of a Btrfs.
pub(crate) const SUPER_MAGIC: u32 = 0x9123_683e;

const READ_ONLY: u64 = raw::BTRFS_SUBVOL_RDONLY as u64;

/// A UUID of a filesystem or a subvolume.
pub(crate) type Uuid = [u8; 16];

/// What the kernel knows of a subvolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Info {
    /// The transaction that made it.
    pub(crate) made_in: u64,
    /// What names it.
    pub(crate) uuid: Uuid,
    /// What it is a snapshot of; zeros: of nothing.
    pub(crate) parent_uuid: Uuid,
    /// When it was made.
    pub(crate) made: (i64, u32),
}

fn copy_name<const N: usize>(to: &mut [core::ffi::c_char; N], name: &[u8]) -> Result<(), Errno> {
    // The last byte stays the NUL that ends it.
    if name.len() >= N || name.contains(&0) || name.contains(&b'/') {
        return Err(Errno::NAMETOOLONG);
    }
    for (to, from) in to.iter_mut().zip(name) {
        *to = from.cast_signed();
    }
    Ok(())
}

fn text(field: &[core::ffi::c_char]) -> Vec<u8> {
    field.iter().take_while(|&&byte| byte != 0).map(|&byte| byte.cast_unsigned()).collect()
}

fn named(name: &[u8], fd: i64, flags: u64) -> Result<raw::btrfs_ioctl_vol_args_v2, Errno> {
    let mut chars = [0; 4040];
    copy_name(&mut chars, name)?;
    Ok(raw::btrfs_ioctl_vol_args_v2 {
        fd,
        transid: 0,
        flags,
        __bindgen_anon_1: raw::btrfs_ioctl_vol_args_v2__bindgen_ty_1 { unused: [0; 4] },
        __bindgen_anon_2: raw::btrfs_ioctl_vol_args_v2__bindgen_ty_2 { name: chars },
    })
}

/// Makes an empty subvolume in an open directory. Needs what making a directory needs.
pub(crate) fn create(parent: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    const OP: Opcode = op::BTRFS_IOC_SUBVOL_CREATE_V2 as Opcode;
    let args = named(name, 0, 0)?;
    // SAFETY: this call reads a `btrfs_ioctl_vol_args_v2`, all of which is set.
    unsafe { rustix::ioctl::ioctl(parent, Setter::<OP, _>::new(args)) }
}

/// Makes a snapshot of the subvolume whose open root is `source`, and commits it. Needs to own that root.
pub(crate) fn snapshot(source: impl AsFd, parent: impl AsFd, name: &[u8], read_only: bool) -> Result<(), Errno> {
    const OP: Opcode = op::BTRFS_IOC_SNAP_CREATE_V2 as Opcode;
    let source = source.as_fd();
    let args = named(name, source.as_raw_fd().into(), if read_only { READ_ONLY } else { 0 })?;
    // SAFETY: this call reads a `btrfs_ioctl_vol_args_v2`, all of which is set; the descriptor in it is borrowed until after the call.
    unsafe { rustix::ioctl::ioctl(parent, Setter::<OP, _>::new(args)) }
}

/// Removes a subvolume, at once and not durably. Needs `CAP_SYS_ADMIN`, or the mount option `user_subvol_rm_allowed` and a
/// subvolume that one could write to; `ENOTEMPTY` if others are nested in it.
pub(crate) fn destroy(parent: impl AsFd, name: &[u8]) -> Result<(), Errno> {
    const OP: Opcode = op::BTRFS_IOC_SNAP_DESTROY as Opcode;
    let mut args = raw::btrfs_ioctl_vol_args { fd: 0, name: [0; 4088] };
    copy_name(&mut args.name, name)?;
    // SAFETY: this call reads a `btrfs_ioctl_vol_args`, all of which is set.
    unsafe { rustix::ioctl::ioctl(parent, Setter::<OP, _>::new(args)) }
}

fn flags(root: BorrowedFd<'_>) -> Result<u64, Errno> {
    const GET: Opcode = op::BTRFS_IOC_SUBVOL_GETFLAGS as Opcode;
    // SAFETY: this call writes one u64.
    unsafe { rustix::ioctl::ioctl(root, Getter::<GET, u64>::new()) }
}

/// Whether a subvolume whose open root it is is read-only.
pub(crate) fn is_read_only(root: impl AsFd) -> Result<bool, Errno> {
    Ok(flags(root.as_fd())? & READ_ONLY != 0)
}

/// Makes a subvolume writable whose open root it is, which commits. Needs to own that root.
pub(crate) fn make_writable(root: impl AsFd) -> Result<(), Errno> {
    const SET: Opcode = op::BTRFS_IOC_SUBVOL_SETFLAGS as Opcode;
    let root = root.as_fd();
    let flags = flags(root)?;
    if flags & READ_ONLY == 0 {
        return Ok(());
    }
    // SAFETY: this call reads one u64.
    unsafe { rustix::ioctl::ioctl(root, Setter::<SET, u64>::new(flags & !READ_ONLY)) }
}

/// What the kernel knows of the subvolume in which something is open. No privilege.
pub(crate) fn info(inside: impl AsFd) -> Result<Info, Errno> {
    const OP: Opcode = op::BTRFS_IOC_GET_SUBVOL_INFO as Opcode;
    // SAFETY: this call writes a `btrfs_ioctl_get_subvol_info_args`.
    let args = unsafe { rustix::ioctl::ioctl(inside, Getter::<OP, raw::btrfs_ioctl_get_subvol_info_args>::new()) }?;
    Ok(Info {
        made_in: args.otransid,
        uuid: args.uuid,
        parent_uuid: args.parent_uuid,
        made: (args.otime.sec.cast_signed(), args.otime.nsec),
    })
}

/// The filesystem that something open is on. No privilege.
pub(crate) fn filesystem(on: impl AsFd) -> Result<Uuid, Errno> {
    const OP: Opcode = op::BTRFS_IOC_FS_INFO as Opcode;
    // SAFETY: any bytes are a value of this type, which is all integers.
    let mut args: raw::btrfs_ioctl_fs_info_args = unsafe { std::mem::zeroed() };
    // SAFETY: this call reads and writes a `btrfs_ioctl_fs_info_args`.
    unsafe { rustix::ioctl::ioctl(on, Updater::<OP, _>::new(&mut args)) }?;
    Ok(args.fsid)
}

/// The subvolumes that are nested in the one in which something is open: the number of each, and that of the directory it is in. No
/// privilege.
pub(crate) fn nested(inside: impl AsFd) -> Result<Vec<(u64, u64)>, Errno> {
    const OP: Opcode = op::BTRFS_IOC_GET_SUBVOL_ROOTREF as Opcode;
    let inside = inside.as_fd();
    let mut found = Vec::new();
    // SAFETY: any bytes are a value of this type, which is all integers.
    let mut args: raw::btrfs_ioctl_get_subvol_rootref_args = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: this call reads and writes a `btrfs_ioctl_get_subvol_rootref_args`.
        let answer = unsafe { rustix::ioctl::ioctl(inside, Updater::<OP, _>::new(&mut args)) };
        let more = match answer {
            Ok(()) => false,
            // More than fit; `min_treeid` was set to go on from.
            Err(Errno::OVERFLOW) => true,
            Err(errno) => return Err(errno),
        };
        let rows = args.rootref.iter().take(args.num_items.into());
        found.extend(rows.map(|row| (row.treeid, row.dirid)));
        if !more {
            return Ok(found);
        }
    }
}

/// The path from the open directory `below` to a subvolume that [`nested`] named. `EACCES` if it is elsewhere, or this user may not
/// read a directory above the one that it is in; `ENAMETOOLONG` if it is so deep that the kernel gave up before it knew that. No privilege.
pub(crate) fn nested_path(below: impl AsFd, (id, dir): (u64, u64)) -> Result<Vec<u8>, Errno> {
    const OP: Opcode = op::BTRFS_IOC_INO_LOOKUP_USER as Opcode;
    // SAFETY: any bytes are a value of this type, which is all integers.
    let mut args: raw::btrfs_ioctl_ino_lookup_user_args = unsafe { std::mem::zeroed() };
    args.treeid = id;
    args.dirid = dir;
    // SAFETY: this call reads and writes a `btrfs_ioctl_ino_lookup_user_args`.
    unsafe { rustix::ioctl::ioctl(below, Updater::<OP, _>::new(&mut args)) }?;
    // The path ends in a slash unless it is empty.
    let mut path = text(&args.path);
    path.extend(text(&args.name));
    Ok(path)
}

/// One item of a subvolume's tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Item<'a> {
    /// The inode it belongs to.
    pub(crate) inode: u64,
    /// Its kind.
    pub(crate) kind: u32,
    /// The third part of its key.
    pub(crate) offset: u64,
    /// What is in it.
    pub(crate) body: &'a [u8],
}

/// Kinds of items: what stat(2) tells of an inode; a name of it, by the directory that it is in; the same where there are many.
pub(crate) const INODE_ITEM: u32 = raw::BTRFS_INODE_ITEM_KEY;
pub(crate) const INODE_REF: u32 = raw::BTRFS_INODE_REF_KEY;
pub(crate) const INODE_EXTREF: u32 = raw::BTRFS_INODE_EXTREF_KEY;

/// Room for the answers of one search.
const SEARCH_BUFFER: usize = 64 << 10;

/// Commits, and has the kernel begin to give back the space of removed subvolumes. Anybody may.
pub(crate) fn give_back(on: impl AsFd) -> Result<(), Errno> {
    const OP: Opcode = op::BTRFS_IOC_SYNC as Opcode;
    // SAFETY: this call takes no argument.
    unsafe { rustix::ioctl::ioctl(on, NoArg::<OP>::new()) }
}

/// `btrfs_ioctl_search_args_v2` with a buffer behind it.
#[repr(C)]
struct Search {
    key: raw::btrfs_ioctl_search_key,
    buf_size: u64,
    buf: [u8; SEARCH_BUFFER],
}

/// Hands the items of a subvolume in which something is open to `each`, from the key `first` on to `last` (inode, kind, offset), of those
/// parts of its tree that a transaction from `since` on has written. `each` says whether to go on. Needs `CAP_SYS_ADMIN`.
pub(crate) fn search(
    inside: impl AsFd,
    first: (u64, u32, u64),
    last: (u64, u32, u64),
    since: u64,
    mut each: impl FnMut(Item<'_>) -> bool,
) -> Result<(), Errno> {
    const OP: Opcode = op::BTRFS_IOC_TREE_SEARCH_V2 as Opcode;
    const HEADER: usize = 32;
    let inside = inside.as_fd();
    let mut from = first;
    // SAFETY: any bytes are a value of this type, which is all integers.
    let mut args: Box<Search> = Box::new(unsafe { std::mem::zeroed() });
    loop {
        args.key.min_objectid = from.0;
        args.key.min_type = from.1;
        args.key.min_offset = from.2;
        (args.key.max_objectid, args.key.max_type, args.key.max_offset) = last;
        (args.key.min_transid, args.key.max_transid) = (since, u64::MAX);
        args.key.nr_items = u32::MAX;
        args.buf_size = SEARCH_BUFFER as u64;
        // SAFETY: this call reads and writes a `btrfs_ioctl_search_args_v2`, which is what `Search` begins with, and writes at most
        // `buf_size` bytes behind it, which are there.
        unsafe { rustix::ioctl::ioctl(inside, Updater::<OP, _>::new(&mut *args)) }?;
        let mut rest: &[u8] = &args.buf;
        let mut at = None;
        for _ in 0..args.key.nr_items {
            let (Some(header), Some(tail)) = (rest.get(..HEADER), rest.get(HEADER..)) else { return Err(Errno::IO) };
            let long = |at: usize| header.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes);
            let short =
                |at: usize| header.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes);
            // transid, objectid, offset, type, len
            let (inode, offset, kind, length) = (long(8), long(16), short(24), short(28) as usize);
            let (Some(body), Some(next)) = (tail.get(..length), tail.get(length..)) else { return Err(Errno::IO) };
            at = Some((inode, kind, offset));
            if !each(Item { inode, kind, offset, body }) {
                return Ok(());
            }
            rest = next;
        }
        // On with the key behind the last one.
        from = match at {
            None => return Ok(()),
            Some((inode, kind, offset)) => match (offset.checked_add(1), kind.checked_add(1), inode.checked_add(1)) {
                (Some(offset), _, _) => (inode, kind, offset),
                (None, Some(kind), _) => (inode, kind, 0),
                (None, None, Some(inode)) => (inode, 0, 0),
                (None, None, None) => return Ok(()),
            },
        };
        if from > last {
            return Ok(());
        }
    }
}

/// The directory above a directory of the subvolume in which something is open, and its name there. Needs `CAP_SYS_ADMIN`.
pub(crate) fn name_of(inside: impl AsFd, dir: u64) -> Result<(u64, Vec<u8>), Errno> {
    let mut found = None;
    // A directory has no second name. What is in the item: an index, the name's length, the name.
    search(inside, (dir, INODE_REF, 0), (dir, INODE_REF, u64::MAX), 0, |item| {
        found = item.body.get(10..).map(|name| (item.offset, name.to_vec()));
        false
    })?;
    found.ok_or(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_lead_elsewhere_are_refused() {
        for bad in [b"a/b".as_slice(), b"a\0b", &[b'x'; 4040]] {
            assert!(named(bad, 0, 0).is_err());
        }
        assert!(named(b"caf\xe9 \n", 0, 0).is_ok());
    }

    #[test]
    fn what_is_no_btrfs_says_so() {
        let proc = std::fs::File::open("/proc").unwrap();
        for answer in [info(&proc).err(), filesystem(&proc).err(), nested(&proc).err(), create(&proc, b"x").err()] {
            assert!(matches!(answer, Some(Errno::NOTTY | Errno::INVAL)), "{answer:?}");
        }
    }
}
