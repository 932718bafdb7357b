//! The one place of this crate with `unsafe`: system calls that no crate in use wraps, and the sockets that systemd hands over.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;

/// `struct mount_attr` of mount_setattr(2), in its first version.
#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_NOEXEC: u64 = 0x8;
const MOUNT_ATTR_NOSYMFOLLOW: u64 = 0x0020_0000;

/// What a mount does not allow, beside set-id programs and devices.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forbidden {
    pub(crate) writing: bool,
    pub(crate) programs: bool,
    pub(crate) symlinks: bool,
}

/// Sets a mount that is nowhere yet nosuid, nodev, private, and whatever else is forbidden.
pub(crate) fn harden(mount: BorrowedFd<'_>, forbidden: Forbidden) -> io::Result<()> {
    let set = |forbidden, attribute| if forbidden { attribute } else { 0 };
    let attr = MountAttr {
        attr_set: MOUNT_ATTR_NOSUID
            | MOUNT_ATTR_NODEV
            | set(forbidden.writing, MOUNT_ATTR_RDONLY)
            | set(forbidden.programs, MOUNT_ATTR_NOEXEC)
            | set(forbidden.symlinks, MOUNT_ATTR_NOSYMFOLLOW),
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    // SAFETY: the descriptor is open while it is borrowed, the path is an empty C string, and the structure is as long as is said;
    // the kernel only reads both.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The supplementary groups that the process at the other end of a Unix socket had when it connected.
pub(crate) fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<libc::gid_t>> {
    // The kernel's own limit is 65,536 groups.
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut length = libc::socklen_t::try_from(size_of_val(&groups[..])).unwrap_or(libc::socklen_t::MAX);
        // SAFETY: the descriptor is open while it is borrowed, and the kernel writes at most `length` bytes into the buffer, which has as
        // many.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let wanted = length as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(wanted);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || wanted <= groups.len() || wanted > 1 << 17 {
            return Err(error);
        }
        groups.resize(wanted, 0);
    }
}

/// Takes over a descriptor that this process was started with.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: asks for the flags of a number; one that is not open is an error.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, as was just seen, it came from outside, and the caller takes each number once, before there are threads.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
    Ok(fd)
}

/// What a file is known by on its filesystem, whichever way it is reached; `struct file_handle` with room for the largest.
#[repr(C)]
pub(crate) struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    data: [u8; 128],
}

impl Handle {
    /// Asks the kernel.
    pub(crate) fn of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let mut handle = Self { bytes: 128, kind: 0, data: [0; 128] };
        let mut mount: libc::c_int = 0;
        // SAFETY: the descriptor is open while it is borrowed, the path is an empty C string, and the kernel writes at most as much behind the
        // two numbers as the first of them says there is room for.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file.as_raw_fd(),
                c"".as_ptr(),
                &raw mut handle,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        if result == 0 { Ok(handle) } else { Err(io::Error::last_os_error()) }
    }

    /// Opens the directory on the filesystem that `mount` is on. Whether it is the one that was meant, is for the caller to see: another
    /// filesystem may take it for something of its own.
    pub(crate) fn open(&self, mount: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the descriptor is open while it is borrowed, and the kernel only reads the handle, which is as long as it says.
        let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), &raw const *self, flags) };
        let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
