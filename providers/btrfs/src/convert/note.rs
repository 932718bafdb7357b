//! The note of a conversion that is under way: `convert-<key>` in the store, one line: the inode and birth time of the directory above the
//! workspace, our name in it, its path. Locked by whoever converts.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use ah_plugin_api::{Context, Dir, Error, Result};
use ah_provider_directory::{failed, look, names, path_of};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::PREFIX;
use crate::depot::identity;
use crate::remove;

/// A note that is there until it is forgotten.
pub(super) struct Note<'a> {
    store: &'a Dir,
    name: String,
    _lock: std::fs::File,
}

impl<'a> Note<'a> {
    /// Writes one down, on disk.
    pub(super) fn write(store: &'a Dir, above: impl AsFd, temp: &str) -> Result<Self> {
        let fail = |e: &std::io::Error| Error::from_io("cannot write down that the workspace is being converted", e);
        let errno = |e: Errno| fail(&e.into());
        let above = above.as_fd();
        let path = path_of(above);
        let known = identity(above).map_err(errno)?;
        let line = [
            known.as_bytes(),
            b" ",
            temp.as_bytes(),
            b" ",
            path.as_os_str().as_bytes(),
            b"
",
        ]
        .concat();
        let name = format!("convert-{}", temp.trim_start_matches(PREFIX));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(store, &name, flags, Mode::RUSR | Mode::WUSR).map_err(errno)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(errno)?;
        let mut file = std::fs::File::from(file);
        file.write_all(&line).and_then(|()| file.sync_all()).map_err(|e| fail(&e))?;
        rustix::fs::fsync(store).map_err(errno)?;
        Ok(Self { store, name, _lock: file })
    }

    /// Takes it away. One that stays does no harm: what it names is gone.
    pub(super) fn forget(self) {
        let _ = rustix::fs::unlinkat(self.store, &self.name, AtFlags::empty());
    }
}

/// Takes away what conversions left that did not come to their end; says what was done.
///
/// Before the exchange that is the copy, after it the former directory. That the exchange is on disk is seen to first.
pub(crate) fn reclaim(store: &Dir, cx: &Context<'_>) -> Result<Vec<String>> {
    let mut actions = Vec::new();
    for name in names(store.as_fd()).map_err(|errno| failed("cannot look into the store", errno))? {
        if !name.starts_with(b"convert-") {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(store, name.as_slice(), flags, Mode::empty()) else { continue };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let mut line = Vec::new();
        let read = std::fs::File::from(file).take(16384).read_to_end(&mut line);
        let forget = || match rustix::fs::unlinkat(store, name.as_slice(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed("cannot forget a conversion", errno)),
        };
        let Some((known, temp, path)) = read.ok().and_then(|_| parse(&line)) else {
            // Cut off before anything was made.
            forget()?;
            continue;
        };
        let Ok(above) = Dir::open(&path) else { continue };
        if identity(&above).ok().as_deref() != Some(known.as_str()) {
            continue;
        }
        rustix::fs::syncfs(&above).map_err(|errno| failed("cannot put an exchange on disk", errno))?;
        if look(&above, temp.as_bytes()).is_ok() {
            remove::entry(above.as_fd(), temp.as_bytes(), 0, cx)?;
            actions.push(format!("took away what a conversion left in {}", path.display()));
        }
        forget()?;
    }
    Ok(actions)
}

fn parse(line: &[u8]) -> Option<(String, String, PathBuf)> {
    let mut fields = line.strip_suffix(b"\n")?.splitn(3, |&b| b == b' ');
    let mut text = || String::from_utf8(fields.next()?.to_vec()).ok();
    let (identity, temp) = (text()?, text()?);
    let path = PathBuf::from(OsString::from_vec(fields.next()?.to_vec()));
    // The name becomes a path: it must be one of ours.
    let key = temp.strip_prefix(PREFIX)?;
    (key.len() == 32 && key.bytes().all(|b| b.is_ascii_hexdigit()) && path.is_absolute())
        .then_some((identity, temp, path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_are_read() {
        let key = "0123456789abcdef0123456789abcdef";
        let line = format!("1.2.3 {PREFIX}{key} /a b\n");
        let read = parse(line.as_bytes()).unwrap();
        assert_eq!(read, ("1.2.3".to_owned(), format!("{PREFIX}{key}"), PathBuf::from("/a b")));
        for bad in ["", "1.2.3", "1.2.3 x /a\n", "1.2.3 .ah-convert-../x /a\n"] {
            assert_eq!(parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(parse(line.trim_end().as_bytes()), None, "cut off");
    }
}
