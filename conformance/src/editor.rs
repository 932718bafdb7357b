//! Makes and changes trees in the plain ways a user's programs do.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use ah_plugin_api::Timestamp;
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

/// Changes the tree below a directory. Paths are relative to it, and bytes.
#[derive(Debug, Clone)]
pub struct Editor(PathBuf);

impl Editor {
    /// An editor of the tree at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// The tree's root.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The whole path of `path`.
    pub fn at(&self, path: impl AsRef<[u8]>) -> PathBuf {
        // Joined with nothing it would end in a slash, which follows a symlink and refuses a file.
        if path.as_ref().is_empty() { self.0.clone() } else { self.0.join(OsStr::from_bytes(path.as_ref())) }
    }

    /// Writes a file, over the one that is there, making the directories above it.
    pub fn write(&self, path: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> io::Result<()> {
        let path = self.at(path);
        if let Some(above) = path.parent() {
            std::fs::create_dir_all(above)?;
        }
        std::fs::write(path, data)
    }

    /// Writes a file in place, through a shared mapping that is gone then, as linkers and databases do.
    pub fn write_mapped(&self, path: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> io::Result<()> {
        let file =
            std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.at(path))?;
        crate::sys::write_mapped(file, data.as_ref())
    }

    /// The contents of a file.
    pub fn read(&self, path: impl AsRef<[u8]>) -> io::Result<Vec<u8>> {
        std::fs::read(self.at(path))
    }

    /// Whether anything is there, a dangling symlink included.
    pub fn exists(&self, path: impl AsRef<[u8]>) -> bool {
        self.at(path).symlink_metadata().is_ok()
    }

    /// Makes a directory and those above it.
    pub fn mkdir(&self, path: impl AsRef<[u8]>) -> io::Result<()> {
        std::fs::create_dir_all(self.at(path))
    }

    /// Makes a symlink at `path` to `target`.
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> io::Result<()> {
        symlink(OsStr::from_bytes(target.as_ref()), self.at(path))
    }

    /// Makes a second name of a file.
    pub fn link(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> io::Result<()> {
        std::fs::hard_link(self.at(from), self.at(to))
    }

    /// Makes a FIFO.
    pub fn fifo(&self, path: impl AsRef<[u8]>) -> io::Result<()> {
        Ok(rustix::fs::mknodat(CWD, self.at(path), FileType::Fifo, Mode::from_raw_mode(0o644), 0)?)
    }

    /// Sets permission bits.
    pub fn chmod(&self, path: impl AsRef<[u8]>, mode: u32) -> io::Result<()> {
        std::fs::set_permissions(self.at(path), std::fs::Permissions::from_mode(mode))
    }

    /// Sets the modification time, of a symlink itself too.
    pub fn mtime(&self, path: impl AsRef<[u8]>, time: Timestamp) -> io::Result<()> {
        let time = Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() };
        let times = Timestamps { last_access: time, last_modification: time };
        Ok(rustix::fs::utimensat(CWD, self.at(path), &times, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The modification time, of a symlink itself too.
    pub fn mtime_of(&self, path: impl AsRef<[u8]>) -> io::Result<Timestamp> {
        use std::os::unix::fs::MetadataExt;
        let meta = self.at(path).symlink_metadata()?;
        // A kernel's nanoseconds are below 10⁹.
        Ok(Timestamp { secs: meta.mtime(), nanos: u32::try_from(meta.mtime_nsec()).unwrap_or_default() })
    }

    /// Renames, over what is there.
    pub fn rename(&self, from: impl AsRef<[u8]>, to: impl AsRef<[u8]>) -> io::Result<()> {
        std::fs::rename(self.at(from), self.at(to))
    }

    /// Swaps two names.
    pub fn exchange(&self, one: impl AsRef<[u8]>, other: impl AsRef<[u8]>) -> io::Result<()> {
        match rustix::fs::renameat_with(CWD, self.at(&one), CWD, self.at(&other), RenameFlags::EXCHANGE) {
            // Not every filesystem can: ZFS before 2.2.
            Err(Errno::INVAL) => {
                let aside = [one.as_ref(), b".aside"].concat();
                self.rename(&one, &aside)?;
                self.rename(&other, &one)?;
                self.rename(&aside, &other)
            }
            exchanged => Ok(exchanged?),
        }
    }

    /// Removes a file, symlink or tree.
    pub fn remove(&self, path: impl AsRef<[u8]>) -> io::Result<()> {
        let path = self.at(path);
        if path.symlink_metadata()?.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
    }

    /// Makes a small tree with something of everything: files, modes, an empty directory, symlinks, odd names, times of
    /// its own on each entry.
    pub fn sample(&self) -> io::Result<()> {
        self.write("README.md", "# sample\n")?;
        self.write("src/main.rs", "fn main() {}\n")?;
        self.write("src/lib/deep/er.rs", "pub fn deep() {}\n")?;
        self.write("empty", "")?;
        self.write("run.sh", "#!/bin/sh\necho hello\n")?;
        self.chmod("run.sh", 0o755)?;
        self.write("secret", "s3cret\n")?;
        self.chmod("secret", 0o600)?;
        self.write("read-only", "do not touch\n")?;
        self.chmod("read-only", 0o444)?;
        self.mkdir("void")?;
        self.mkdir("private")?;
        self.write("private/key", "key\n")?;
        self.chmod("private", 0o700)?;
        self.symlink("src/main.rs", "to-file")?;
        self.symlink("src", "to-dir")?;
        self.symlink("../nowhere", "dangling")?;
        self.write(b"caf\xe9 \xff\n*", b"\0\x01binary\r\n\xff")?;
        self.write("big", vec![b'x'; 200_000])?;
        // Innermost first, because making an entry changes its directory's time.
        let odd = b"caf\xe9 \xff\n*".as_slice();
        let inner: [&[u8]; 16] = [
            b"src/lib/deep/er.rs",
            b"src/lib/deep",
            b"src/lib",
            b"src/main.rs",
            b"src",
            b"private/key",
            b"private",
            b"void",
            b"README.md",
            b"empty",
            b"run.sh",
            b"to-file",
            b"to-dir",
            b"dangling",
            odd,
            b"",
        ];
        for (i, path) in (0u32..).zip(inner) {
            self.mtime(path, Timestamp { secs: 1_600_000_000 + i64::from(i) * 1000, nanos: 123_456_789 + i })?;
        }
        Ok(())
    }
}
