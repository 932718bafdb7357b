//! Writing through a shared mapping, as linkers and databases do: no safe call does that.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::libc;

/// Writes `data` to the beginning of a file, which gets that length, through a mapping that is gone when this returns. Nothing but the mapping has the file open
/// meanwhile: its end alone is what a filesystem may hear of.
pub(crate) fn write_mapped(file: File, data: &[u8]) -> io::Result<()> {
    file.set_len(data.len() as u64)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), data.len(), protection, libc::MAP_SHARED, file.as_raw_fd(), 0).cast::<u8>()
    };
    if at.cast() == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    drop(file);
    // SAFETY: the very mapping, which is writable, of that length and nobody else's. Nobody cuts the file short meanwhile: it is a case's own.
    unsafe {
        std::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len());
        libc::munmap(at.cast(), data.len());
    }
    Ok(())
}
