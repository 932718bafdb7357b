//! The one place of this crate with `unsafe`: asking the kernel whether somebody has a file open for writing.
//!
//! Neither rustix nor nix offers leases. Not here: what follows from the answer (`scan`).

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

/// From Linux's `asm-generic/fcntl.h`; the libc crate has it for some targets only.
const F_SETSIG: libc::c_int = 10;

/// Whether somebody may be writing to the open regular file, which this process has open for reading only: through a descriptor
/// or a shared mapping. Where the kernel does not tell (it tells the file's owner and root, on most local filesystems), somebody may.
///
/// A read lease is only to be had on a file that nobody has open for writing; it is given back at once. Whoever opens the file
/// for writing in between waits for those microseconds. Source: `fcntl(2)`, "Leases"; `check_conflicting_open` in Linux's
/// `fs/locks.c`.
pub(crate) fn may_have_writer(file: BorrowedFd<'_>) -> bool {
    let raw = file.as_raw_fd();
    // That the lease is wanted back is told by SIGIO, which ends a process; so by one that is ignored unless someone asked for it.
    // SAFETY: `F_SETSIG` takes an integer and touches no memory; the descriptor is open as long as `file` is borrowed.
    if unsafe { libc::fcntl(raw, F_SETSIG, libc::SIGURG) } != 0 {
        return true;
    }
    // SAFETY: as above; `F_SETLEASE` takes an integer too.
    if unsafe { libc::fcntl(raw, libc::F_SETLEASE, libc::F_RDLCK) } != 0 {
        return true;
    }
    // SAFETY: as above. Should it fail, closing the descriptor gives the lease back.
    let _ = unsafe { libc::fcntl(raw, libc::F_SETLEASE, libc::F_UNLCK) };
    false
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::fs::OpenOptionsExt;
    use std::ptr::NonNull;

    use nix::libc;

    use super::may_have_writer;

    /// One page of a file, mapped for writing and shared with all others.
    pub(crate) struct Mapping(NonNull<u8>);

    const PAGE: usize = 4096;

    impl Mapping {
        pub(crate) fn new(file: &File) -> Self {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let at =
                unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
            assert_ne!(at, libc::MAP_FAILED);
            Self(NonNull::new(at.cast()).unwrap())
        }

        pub(crate) fn store(&self, at: usize, byte: u8) {
            assert!(at < PAGE);
            // SAFETY: within the page, which is mapped for writing as long as `self` lives.
            unsafe { self.0.as_ptr().add(at).write_volatile(byte) }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: the very mapping that `new` made; nobody has a reference into it.
            unsafe { libc::munmap(self.0.as_ptr().cast(), PAGE) };
        }
    }

    #[test]
    fn writers_are_seen_while_they_have_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [0; PAGE]).unwrap();
        let look = || may_have_writer(File::open(&path).unwrap().as_fd());
        assert!(!look());
        let writer = File::options().read(true).write(true).open(&path).unwrap();
        assert!(look());
        let mapping = Mapping::new(&writer);
        drop(writer);
        assert!(look(), "a mapping writes too");
        drop(mapping);
        assert!(!look());
        // Nothing of the lease stays behind, though the descriptor does.
        let kept = File::open(&path).unwrap();
        assert!(!may_have_writer(kept.as_fd()));
        File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    }
}
