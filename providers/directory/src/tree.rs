//! Reading a snapshot that is a directory.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, Entry, EntryKind, Error, ErrorKind, RelPath, Result};
use rustix::fs::{FileType, OFlags, SeekFrom, Statx};
use rustix::io::Errno;

use crate::{entry_of, failed, look, names, open_beneath};

/// A directory with what was captured, the workspace's own.
pub struct Tree {
    top: OwnedFd,
    hidden: BTreeSet<RelPath>,
    is_stub: fn(&Statx) -> bool,
}

impl Tree {
    /// The tree at and below an open directory.
    #[must_use]
    pub fn new(top: OwnedFd) -> Self {
        Self { top, hidden: BTreeSet::new(), is_stub: |_| false }
    }

    /// Does not show these paths: something was mounted on them when the snapshot was taken, and what the snapshot has there is not
    /// what was seen.
    #[must_use]
    pub fn hiding(mut self, paths: impl IntoIterator<Item = RelPath>) -> Self {
        self.hidden.extend(paths);
        self
    }

    /// Does not show the directories that the filesystem leaves in the place of what it did not capture.
    #[must_use]
    pub fn without_stubs(mut self, is_stub: fn(&Statx) -> bool) -> Self {
        self.is_stub = is_stub;
        self
    }

    /// The entry of a path, none if it is not there. Answers `lookup`.
    ///
    /// # Errors
    /// `DataLoss` for damage that the filesystem found; `PermissionDenied`.
    pub fn entry(&self, path: &RelPath) -> Result<Option<Entry>> {
        Ok(self.look(path)?.map(|stat| entry_of(&stat, path.file_name().unwrap_or_default())))
    }

    fn look(&self, path: &RelPath) -> Result<Option<Statx>> {
        let fail = |errno| failed(format!("cannot look at {path} in the snapshot"), errno);
        let Some(name) = path.file_name() else { return look(&self.top, b"").map(Some).map_err(fail) };
        if self.hidden.iter().any(|hidden| path.starts_with(hidden)) {
            return Ok(None);
        }
        let parent = path.parent().unwrap_or_default();
        let found = open_beneath(self.top.as_fd(), parent.as_bytes(), OFlags::PATH | OFlags::DIRECTORY)
            .and_then(|parent| look(&parent, name));
        match found {
            Ok(stat) => Ok(Some(stat).filter(|stat| !self.is_left_out(stat))),
            // Nothing is below a file or a symlink, and what is mounted inside is not the snapshot's.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(errno) => Err(fail(errno)),
        }
    }

    fn is_left_out(&self, stat: &Statx) -> bool {
        FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory && (self.is_stub)(stat)
    }

    /// The entries of a directory, ordered by name bytes. Answers `read_dir`.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` if it is not a directory; `DataLoss`; `PermissionDenied`.
    pub fn read_dir(&self, path: &RelPath) -> Result<Vec<Entry>> {
        let fail = |errno| failed(format!("cannot list {path} in the snapshot"), errno);
        match self.entry(path)? {
            None => return Err(no_such_path(path)),
            Some(entry) if entry.kind != EntryKind::Dir => {
                return Err(Error::new(ErrorKind::InvalidArgument, format!("{path} is not a directory")));
            }
            Some(_) => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir = open_beneath(self.top.as_fd(), path.as_bytes(), flags).map_err(fail)?;
        let mut entries = Vec::new();
        for name in names(dir.as_fd()).map_err(fail)? {
            let stat = match look(&dir, &name) {
                Err(Errno::NOENT) => continue,
                other => other.map_err(fail)?,
            };
            let hidden = !self.hidden.is_empty() && self.hidden.contains(&path.join(&name)?);
            if !hidden && !self.is_left_out(&stat) {
                entries.push(entry_of(&stat, &name));
            }
        }
        Ok(entries)
    }

    /// Writes a file's contents, or a symlink's target, to `output`, and gives its entry. Answers `read`.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` if it is neither; `DataLoss`; `PermissionDenied`; those of the output.
    pub fn read(&self, path: &RelPath, output: BorrowedFd<'_>, cx: &Context<'_>) -> Result<Entry> {
        let fail = |errno| failed(format!("cannot read {path} in the snapshot"), errno);
        let entry = self.entry(path)?.ok_or_else(|| no_such_path(path))?;
        let name = path.file_name().unwrap_or_default();
        let parent = path.parent().unwrap_or_default();
        match entry.kind {
            EntryKind::Symlink => {
                let parent = open_beneath(self.top.as_fd(), parent.as_bytes(), OFlags::PATH | OFlags::DIRECTORY);
                let target =
                    parent.and_then(|parent| rustix::fs::readlinkat(parent, name, Vec::new())).map_err(fail)?;
                write_all(output, target.as_bytes())?;
            }
            EntryKind::File => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
                let file = open_beneath(self.top.as_fd(), path.as_bytes(), flags).map_err(fail)?;
                copy(file.as_fd(), output, cx, fail)?;
            }
            EntryKind::Dir => {
                return Err(Error::new(ErrorKind::InvalidArgument, format!("{path} is a directory")));
            }
            _ => return Err(Error::new(ErrorKind::InvalidArgument, format!("{path} has no contents"))),
        }
        Ok(entry)
    }
}

fn no_such_path(path: &RelPath) -> Error {
    Error::new(ErrorKind::NotFound, format!("the snapshot has no {path}"))
}

/// By plain reads and writes: the output may be a pipe, errors of the two sides are to be told apart, and what is damaged is to be found
/// now. Into an empty file, holes stay holes.
fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, cx: &Context<'_>, fail: impl Fn(Errno) -> Error) -> Result<()> {
    let mut buffer = vec![0; 256 << 10];
    if is_new_file(to) {
        let size = u64::try_from(rustix::fs::fstat(from).map_err(&fail)?.st_size).unwrap_or(0);
        let mut at = 0;
        while at < size {
            // The end of a file is a hole.
            let data = match rustix::fs::seek(from, SeekFrom::Data(at)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(errno) => return Err(fail(errno)),
            };
            at = rustix::fs::seek(from, SeekFrom::Hole(data)).map_err(&fail)?;
            rustix::fs::seek(from, SeekFrom::Start(data)).map_err(&fail)?;
            rustix::fs::seek(to, SeekFrom::Start(data)).map_err(of_output)?;
            let mut left = at - data;
            while left > 0 {
                cx.check_cancelled()?;
                let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                match rustix::io::read(from, &mut buffer[..most]) {
                    Ok(0) => break,
                    Ok(n) => {
                        write_all(to, &buffer[..n])?;
                        left -= n as u64;
                    }
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(fail(errno)),
                }
            }
        }
        rustix::fs::ftruncate(to, size).map_err(of_output)?;
        return rustix::fs::seek(to, SeekFrom::End(0)).map(drop).map_err(of_output);
    }
    loop {
        cx.check_cancelled()?;
        match rustix::io::read(from, &mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => write_all(to, buffer.get(..n).unwrap_or_default())?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(fail(errno)),
        }
    }
}

/// Whether an output is an empty regular file that is written from its beginning, in which holes can be left.
#[must_use]
pub fn is_new_file(output: BorrowedFd<'_>) -> bool {
    let is_file =
        |stat: rustix::fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size == 0;
    rustix::fs::fstat(output).is_ok_and(is_file)
        && rustix::fs::tell(output) == Ok(0)
        && rustix::fs::fcntl_getfl(output).is_ok_and(|flags| !flags.contains(OFlags::APPEND))
}

fn of_output(errno: Errno) -> Error {
    Error::from_io("cannot write to the output", &errno.into())
}

fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(of_output(errno)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    #[test]
    fn shows_what_is_there_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().join("top");
        std::fs::create_dir_all(top.join("dir/mounted/in")).unwrap();
        std::fs::write(top.join("dir/file"), "contents").unwrap();
        std::fs::write(temp.path().join("secret"), "secret").unwrap();
        symlink("../secret", top.join("out")).unwrap();
        symlink("..", top.join("up")).unwrap();
        let open = || rustix::fs::open(&top, OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap();
        let tree = Tree::new(open()).hiding([path("dir/mounted")]);
        let names = |at: &str| -> Vec<String> {
            let entries = tree.read_dir(&path(at)).unwrap();
            entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
        };
        assert_eq!(names(""), ["dir", "out", "up"]);
        assert_eq!(names("dir"), ["file"]);
        for nothing in ["dir/mounted", "dir/mounted/in", "up/secret", "out/x", "dir/file/x", "none/none"] {
            assert!(tree.entry(&path(nothing)).unwrap().is_none(), "{nothing}");
            assert_eq!(tree.read_dir(&path(nothing)).unwrap_err().kind, ErrorKind::NotFound, "{nothing}");
        }
        assert_eq!(tree.read_dir(&path("up")).unwrap_err().kind, ErrorKind::InvalidArgument);
        let read = |at: &str| {
            let out = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            tree.read(&path(at), out.as_fd(), &Context::quiet()).map(|_| {
                let mut bytes = vec![0; 100];
                let n = rustix::io::pread(&out, &mut bytes, 0).unwrap();
                bytes.truncate(n);
                bytes
            })
        };
        assert_eq!(read("dir/file").unwrap(), b"contents");
        assert_eq!(read("out").unwrap(), b"../secret");
        assert_eq!(read("dir").unwrap_err().kind, ErrorKind::InvalidArgument);
        let no_directories = Tree::new(open()).without_stubs(|_| true);
        assert!(no_directories.entry(&path("dir")).unwrap().is_none());
        assert!(no_directories.entry(&path("")).unwrap().is_some());
    }

    #[test]
    fn holes_stay_holes_in_a_new_file_and_nowhere_else() {
        use std::io::{Read, Seek, Write};
        use std::os::unix::fs::{FileExt, MetadataExt};
        let temp = tempfile::tempdir().unwrap();
        let top = temp.path().join("top");
        std::fs::create_dir(&top).unwrap();
        let sparse = std::fs::File::create(top.join("sparse")).unwrap();
        sparse.set_len(64 << 20).unwrap();
        sparse.write_all_at(b"middle", 32 << 20).unwrap();
        let tree = Tree::new(rustix::fs::open(&top, OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap());
        let read = |out: &std::fs::File| tree.read(&path("sparse"), out.as_fd(), &Context::quiet()).unwrap();
        let whole = std::fs::read(top.join("sparse")).unwrap();

        let options = || std::fs::OpenOptions::new().read(true).write(true).create(true).clone();
        let mut new = options().open(temp.path().join("new")).unwrap();
        read(&new);
        assert_eq!(new.stream_position().unwrap(), 64 << 20, "what comes next goes behind it");
        assert!(new.metadata().unwrap().blocks() * 512 < 4 << 20, "{}", new.metadata().unwrap().blocks());
        assert!(std::fs::read(temp.path().join("new")).unwrap() == whole);
        // Behind something, and at the end of whatever there is.
        let mut old = options().open(temp.path().join("old")).unwrap();
        old.write_all(b"before").unwrap();
        read(&old);
        let appended = options().append(true).open(temp.path().join("appended")).unwrap();
        read(&appended);
        let mut text = Vec::new();
        old.rewind().unwrap();
        old.read_to_end(&mut text).unwrap();
        assert!(text.starts_with(b"before") && text[6..] == whole);
        assert!(std::fs::read(temp.path().join("appended")).unwrap() == whole);
        // Empty, and nothing but a hole.
        for size in [0, 1 << 20] {
            sparse.set_len(0).unwrap();
            sparse.set_len(size).unwrap();
            let other = options().open(temp.path().join(size.to_string())).unwrap();
            read(&other);
            assert_eq!((other.metadata().unwrap().len(), other.metadata().unwrap().blocks()), (size, 0));
        }
    }
}
