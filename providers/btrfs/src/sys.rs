//! The one place of this crate with `unsafe`: the kernel's Btrfs calls, as functions.
//!
//! Types and numbers are those of Linux's `btrfs.h` as `linux-raw-sys` has them; source: `fs/btrfs/ioctl.c` and
//! btrfs-ioctl(2). Each function says which privilege the kernel asks for. Not here: what follows from an error.

use std::os::fd::{AsFd, AsRawFd};

use linux_raw_sys::{btrfs as raw, ioctl as op};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, Updater};

/// The inode number of every subvolume's root, and of nothing else.
pub(crate) const ROOT_INODE: u64 = raw::BTRFS_FIRST_FREE_OBJECTID as u64;

/// The inode number of the directory that stands in a snapshot where a subvolume was nested.
pub(crate) const STUB_INODE: u64 = raw::BTRFS_EMPTY_SUBVOL_DIR_OBJECTID as u64;

/// What statfs(2) says of a Btrfs.
pub(crate) const MAGIC: i64 = 0x9123_683e;

const READ_ONLY: u64 = raw::BTRFS_SUBVOL_RDONLY as u64;

/// A UUID of a filesystem or a subvolume.
pub(crate) type Uuid = [u8; 16];

/// What the kernel knows of a subvolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Info {
    /// Its number.
    pub(crate) id: u64,
    /// The transaction that changed it last.
    pub(crate) generation: u64,
    /// The transaction that made it.
    pub(crate) made_in: u64,
    /// What names it.
    pub(crate) uuid: Uuid,
    /// What it is a snapshot of; zeros: of nothing.
    pub(crate) parent_uuid: Uuid,
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

/// Makes a subvolume writable whose open root it is, which commits. Needs to own that root.
pub(crate) fn make_writable(root: impl AsFd) -> Result<(), Errno> {
    const GET: Opcode = op::BTRFS_IOC_SUBVOL_GETFLAGS as Opcode;
    const SET: Opcode = op::BTRFS_IOC_SUBVOL_SETFLAGS as Opcode;
    let root = root.as_fd();
    // SAFETY: this call writes one u64.
    let flags: u64 = unsafe { rustix::ioctl::ioctl(root, Getter::<GET, u64>::new()) }?;
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
        id: args.treeid,
        generation: args.generation,
        made_in: args.otransid,
        uuid: args.uuid,
        parent_uuid: args.parent_uuid,
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
/// read a directory on the way. No privilege.
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
