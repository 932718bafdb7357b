//! Files of our own under `$AH_HOME`: read whole, replaced whole, folders made and synced.
//!
//! Files of the user's workspace are not opened here, but relative to descriptors, where they are used.

mod remove;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ah_plugin_api::{Dir, Durability, Error, ErrorKind, Result};

use crate::crash;
use crate::lock::me_in_a_name;
use crate::text;

pub(crate) use remove::remove_tree;

/// The mode of every file of ours.
pub(crate) const FILE_MODE: u32 = 0o600;
/// The mode of every folder of ours.
pub(crate) const DIR_MODE: u32 = 0o700;
/// No file that is read whole is larger; timelines are the largest.
pub(crate) const MAX_READ: u64 = 1 << 30;

/// An I/O error with what was being done and to what. A folder in the place of a file of ours is nothing that whoever called has said wrong.
pub(crate) fn failed(what: &str, path: &Path, failure: &io::Error) -> Error {
    let error = Error::from_io(format!("cannot {what} {}", path.display()), failure);
    if failure.kind() != io::ErrorKind::IsADirectory {
        return error;
    }
    let hint = format!("a folder is in the place of a file of ours: `{}`", put_aside(path));
    Error { kind: ErrorKind::DataLoss, ..error }.with_hint(hint)
}

/// `path` with a dot and a suffix behind its name.
pub(crate) fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name.push(suffix);
    path.with_file_name(name)
}

/// The same, with a number behind that where something is there already.
pub(crate) fn suffixed_free(path: &Path, suffix: &str) -> PathBuf {
    free(&suffixed(path, suffix))
}

/// That path, or with a number behind it where something is there already.
pub(crate) fn free(first: &Path) -> PathBuf {
    let numbered = (2..).map(|n| {
        let mut path = first.as_os_str().to_owned();
        path.push(format!("-{n}"));
        PathBuf::from(path)
    });
    let mut paths = std::iter::once(first.to_owned()).chain(numbered);
    paths.find(|path| path.symlink_metadata().is_err()).unwrap_or_default()
}

/// What [`put_aside`] puts behind the name.
pub(crate) const UNREAD: &str = "unread";

/// The command by which a person puts aside what cannot be read. It stays beside its place: to get there it need not be read, it takes nobody else's place, and it is known there.
pub(crate) fn put_aside(path: &Path) -> String {
    let aside = suffixed_free(path, UNREAD);
    format!("mv -T {} {}", text::shell(path.as_os_str()), text::shell(aside.as_os_str()))
}

/// Whether there is no directory at `path`: nothing at all, or something else, such as a symlink, wherever that leads. What cannot be looked at may be one.
pub(crate) fn is_no_dir(path: &Path) -> bool {
    match fs::symlink_metadata(path) {
        Ok(there) => !there.is_dir(),
        Err(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

/// Reads a file whole; none if it is not there.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    read_until(path, None)
}

/// The same up to the first `mark`, if there is one; what comes after it is not read.
pub(crate) fn read_up_to(path: &Path, mark: &[u8]) -> Result<Option<Vec<u8>>> {
    read_until(path, Some(mark))
}

fn read_until(path: &Path, mark: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
    let run = || -> io::Result<Vec<u8>> {
        let file = OpenOptions::new().read(true).custom_flags(NOFOLLOW_NONBLOCK).open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() || meta.len() > MAX_READ {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file of ours"));
        }
        let Some(mark) = mark else {
            let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0) + 1);
            (&file).read_to_end(&mut bytes)?;
            return Ok(bytes);
        };
        let mut bytes = Vec::new();
        loop {
            // It may lie across two pieces.
            let looked_at = bytes.len().saturating_sub(mark.len());
            if (&file).take(16 << 10).read_to_end(&mut bytes)? == 0 {
                return Ok(bytes);
            }
            if let Some(at) = bytes[looked_at..].windows(mark.len()).position(|part| part == mark) {
                bytes.truncate(looked_at + at);
                return Ok(bytes);
            }
        }
    };
    match run() {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed("read", path, &e)),
    }
}

/// Counts one more in a file that is as long as what it counts; for processes of one run of the machine.
pub(crate) fn count_up(path: &Path) -> Result<()> {
    let run = || {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(FILE_MODE).custom_flags(NOFOLLOW_NONBLOCK).open(path)?.write_all(b".")
    };
    run().map_err(|e| failed("write", path, &e))
}

/// How often [`count_up`] was called.
pub(crate) fn count(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |at| at.len())
}

/// `O_NOFOLLOW | O_NONBLOCK`: neither a symlink nor a FIFO put in our place can lead us astray.
pub(crate) const NOFOLLOW_NONBLOCK: i32 =
    (rustix::fs::OFlags::NOFOLLOW.bits() | rustix::fs::OFlags::NONBLOCK.bits()).cast_signed();

/// A name beside `path` that no other process uses. `gc` removes those left behind.
pub(crate) fn temp_beside(path: &Path) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let unique = NEXT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{name}.tmp-{}-{unique}", me_in_a_name()))
}

/// Whether a file name is one that [`temp_beside`] gave.
pub(crate) fn is_temp(name: &str) -> bool {
    name.starts_with('.') && name.contains(".tmp-")
}

/// Replaces a file whole: written beside it, synced if `Durable`, renamed. Who reads sees the old contents or the new.
pub(crate) fn replace(path: &Path, bytes: &[u8], durability: Durability) -> Result<()> {
    replace_after(path, bytes, durability, || ())
}

/// As [`replace`]; `ready` is called when the new file is written, and not yet in its place.
pub(crate) fn replace_after(path: &Path, bytes: &[u8], durability: Durability, ready: impl Fn()) -> Result<()> {
    put(path, bytes, durability, ready)?;
    let run = || -> io::Result<()> {
        if durability == Durability::Durable {
            crash::point("replace.sync-dir")?;
            sync_dir(path.parent().unwrap_or(Path::new("/")))?;
        }
        Ok(())
    };
    run().map_err(|e| failed("write", path, &e))
}

/// As [`replace`] if `Durable`, but for the folder: a power cut may bring the former file back, or none, and never a part of one.
pub(crate) fn replace_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    put(path, bytes, Durability::Durable, || ())
}

fn put(path: &Path, bytes: &[u8], durability: Durability, ready: impl Fn()) -> Result<()> {
    let temp = temp_beside(path);
    let run = || -> io::Result<()> {
        crash::point("replace.create")?;
        let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&temp)?;
        crash::point("replace.write")?;
        file.write_all(bytes)?;
        if durability == Durability::Durable {
            crash::point("replace.sync")?;
            file.sync_all()?;
        }
        crash::point("replace.rename")?;
        ready();
        fs::rename(&temp, path)
    };
    run().map_err(|e| {
        let _ = fs::remove_file(&temp);
        failed("write", path, &e)
    })
}

/// Makes a folder's entries survive a power cut.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Makes a folder of ours, with those above it; true if it was not there before. Synced, as what is in it is worth no less. The folder of a workspace is made
/// for itself alone: nothing of one that was taken away meanwhile begins anew.
pub(crate) fn make_dir(path: &Path) -> Result<bool> {
    if path.is_dir() {
        return Ok(false);
    }
    let run = || -> io::Result<bool> {
        crash::point("make-dir")?;
        let made = match DirBuilder::new().mode(DIR_MODE).create(path) {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => false,
            Err(e) => return Err(e),
        };
        sync_dir(path.parent().unwrap_or(Path::new("/")))?;
        Ok(made)
    };
    if let Some(parent) = path.parent()
        && !parent.exists()
    {
        let of_all = |above: &Path| above.ends_with("workspaces") && above.with_file_name("home.json").exists();
        if parent.parent().is_some_and(of_all) {
            let message = format!("the state of the workspace was removed this moment: {}", parent.display());
            return Err(Error::new(ErrorKind::Conflict, message).with_hint("repeat the command"));
        }
        make_dir(parent)?;
    }
    run().map_err(|e| failed("make the folder", path, &e))
}

/// Opens a folder of ours, making it if need be.
pub(crate) fn open_made(path: &Path) -> Result<Dir> {
    make_dir(path)?;
    Dir::open(path)
}

/// The names in a folder, in order; none if it is not there. Names that are not UTF-8 are not ours.
pub(crate) fn names(path: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed("read the folder", path, &e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| failed("read the folder", path, &e))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Removes a file; one that is gone already is no error.
pub(crate) fn remove_file(path: &Path) -> Result<()> {
    let run = || -> io::Result<()> {
        crash::point("remove-file")?;
        fs::remove_file(path)
    };
    match run() {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", path, &e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Durability, is_temp, make_dir, names, read, replace, temp_beside};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn replaces_whole_and_privately() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/file.json");
        make_dir(path.parent().unwrap()).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        for text in [&b"one"[..], b"two"] {
            replace(&path, text, Durability::Durable).unwrap();
            assert_eq!(read(&path).unwrap().as_deref(), Some(text));
        }
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(names(path.parent().unwrap()).unwrap(), ["file.json"]);
        let temp = temp_beside(&path);
        assert!(is_temp(temp.file_name().unwrap().to_str().unwrap()) && !is_temp("file.json"));
    }

    #[test]
    fn a_fifo_in_the_place_of_a_file_does_not_hang() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(read(&path).is_err());
    }
}
