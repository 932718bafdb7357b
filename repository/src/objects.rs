//! Copying object folders: shared by reflink where the filesystem can, byte by byte where not.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};

use ah_plugin_api::{Context, Error, Result};
use ah_rules::without_magic;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::repository::open_file;
use crate::write::make_dir;

/// Copies packs and loose objects that `to` has not. Caches over them (multi-pack index, commit graph) are left behind: git makes them anew.
pub(crate) fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>, cx: &Context<'_>) -> Result<()> {
    for name in names(from)? {
        let wanted: fn(&str) -> bool = match name.as_str() {
            "pack" => is_pack,
            _ if name.len() == 2 && is_hex(&name) => |name| name.len() == 38 && is_hex(name),
            _ => continue,
        };
        cx.check_cancelled()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(folder) = without_magic(from, name.as_str(), flags) else { continue };
        let into = make_dir(to, &name)?;
        let mut files = names(folder.as_fd())?;
        files.retain(|file| wanted(file));
        // A pack counts once its index is there.
        files.sort_by_key(|file| file.ends_with(".idx"));
        for file in files {
            if let Ok(Some((source, _))) = open_file(&folder, &file) {
                copy_file(source.as_fd(), into.as_fd(), &file, cx)?;
            }
        }
    }
    Ok(())
}

/// How much is copied between two looks whether it shall stop: whose the file is, it may be of any size.
const PIECE: u64 = 16 << 20;

/// Copies one open file to `name`, read-only as git has objects; one that is there already is left alone.
pub(crate) fn copy_file(source: BorrowedFd<'_>, into: BorrowedFd<'_>, name: &str, cx: &Context<'_>) -> Result<()> {
    cx.check_cancelled()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = if name == "index" { 0o644 } else { 0o444 };
    let to = match rustix::fs::openat(into, name, flags, Mode::from_raw_mode(mode)) {
        Ok(to) => to,
        Err(Errno::EXIST) => return Ok(()),
        Err(e) => return Err(failed(name, &e.into())),
    };
    if rustix::fs::ioctl_ficlone(&to, source).is_ok() {
        return Ok(());
    }
    let source = source.try_clone_to_owned().map_err(|e| failed(name, &e))?;
    let (source, mut to) = (File::from(source), File::from(to));
    while std::io::copy(&mut (&source).take(PIECE), &mut to).map_err(|e| failed(name, &e))? > 0 {
        cx.check_cancelled()?;
    }
    Ok(())
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn is_pack(name: &str) -> bool {
    name.starts_with("pack-") && [".pack", ".idx", ".rev"].iter().any(|end| name.ends_with(end))
}

fn names(dir: BorrowedFd<'_>) -> Result<Vec<String>> {
    let read = |e: Errno| Error::from_io("cannot read a folder of objects", &e.into());
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir).map_err(read)? {
        names.extend(entry.map_err(read)?.file_name().to_str().ok().map(str::to_owned));
    }
    Ok(names)
}

fn failed(name: &str, e: &std::io::Error) -> Error {
    Error::from_io(format!("cannot copy {name} into the clone's repository"), e)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use ah_plugin_api::{ErrorKind, Observer};

    use super::*;

    /// Lets so many pieces be copied.
    struct Until(AtomicU64);

    impl Observer for Until {
        fn cancelled(&self) -> bool {
            self.0.fetch_sub(1, Ordering::Relaxed) == 0
        }
    }

    #[test]
    fn a_large_file_is_copied_whole_or_until_it_shall_stop() {
        let temp = tempfile::tempdir().unwrap();
        let into = File::open(temp.path()).unwrap();
        // In memory, so that nothing of it can be shared.
        let source = File::from(rustix::fs::memfd_create("pack", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        source.set_len(3 * PIECE + 1).unwrap();
        let copied = |name: &str, pieces| {
            rustix::fs::seek(&source, rustix::fs::SeekFrom::Start(0)).unwrap();
            let until = Until(AtomicU64::new(pieces));
            let outcome = copy_file(source.as_fd(), into.as_fd(), name, &Context::new(&until));
            let length = std::fs::metadata(temp.path().join(name)).map_or(0, |at| at.len());
            (outcome.err().map(|error| error.kind), length)
        };
        assert_eq!(copied("whole", 100), (None, 3 * PIECE + 1));
        assert_eq!(copied("none", 0), (Some(ErrorKind::Cancelled), 0));
        assert_eq!(copied("part", 2), (Some(ErrorKind::Cancelled), 2 * PIECE));
    }
}
