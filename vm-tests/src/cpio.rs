//! Archives in the kernel's `newc` format. The kernel unpacks several of them that stand one behind the other in a single file, so a
//! run adds its own to the guest's.

use std::io::{self, Write};

const DIRECTORY: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;
const FILE: u32 = 0o100_000;

/// An archive that is being written.
pub struct Archive<W> {
    out: W,
    at: u64,
    inode: u32,
}

impl<W: Write> Archive<W> {
    /// An archive that starts at the position `at` of `out`.
    pub fn new(out: W, at: u64) -> Self {
        Self { out, at, inode: 0 }
    }

    /// A directory, whose parent is there. One that is in the archive before stays.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(path, DIRECTORY, &[])
    }

    /// A file.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, FILE | (mode & 0o7777), content)
    }

    /// A symlink.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, SYMLINK, target.as_bytes())
    }

    /// Ends the archive and gives back what it was written to.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.pad()?;
        self.inode += 1;
        let size = u32::try_from(content.len()).map_err(|_| io::Error::other(format!("{path} is too large")))?;
        let name = u32::try_from(path.len() + 1).map_err(io::Error::other)?;
        let links = if mode == DIRECTORY { 2 } else { 1 };
        let mut header = b"070701".to_vec();
        for field in [self.inode, mode, 0, 0, links, 1, size, 0, 0, 0, 0, name, 0] {
            write!(header, "{field:08X}")?;
        }
        header.extend_from_slice(path.as_bytes());
        header.push(0);
        self.put(&header)?;
        self.pad()?;
        self.put(content)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self) -> io::Result<()> {
        let missing = usize::try_from(self.at.wrapping_neg() % 4).unwrap_or(0);
        self.put(&[0; 4][..missing])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_as_the_kernel_reads_it() {
        let mut archive = Archive::new(Vec::new(), 2);
        archive.directory("ah").unwrap();
        archive.file("ah/x", 0o755, b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(&bytes[..2], b"\0\0", "aligned within the whole file");
        assert_eq!(&bytes[2..8], b"070701");
        let file = 2 + 110 + 3 + 3;
        assert_eq!(&bytes[file..file + 6], b"070701");
        assert_eq!(&bytes[file + 14..file + 22], b"000081ED", "mode");
        assert_eq!(&bytes[file + 54..file + 62], b"00000005", "size");
        assert_eq!(&bytes[file + 110..file + 115], b"ah/x\0");
        assert!(bytes.windows(11).any(|part| part == b"TRAILER!!!\0"));
    }
}
