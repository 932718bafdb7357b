//! A second name for a file, or else a second file.

use std::os::fd::OwnedFd;

use ah_plugin_api::Result;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::store::Store;
use crate::store::files::{self, Doing};

/// What came of linking a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It shares its data: hard link or reflink. Or it was there already.
    Shared,
    /// It was copied.
    Copied,
    /// There is no such file.
    Gone,
    /// It is not a regular file.
    Special,
    /// It would have to be copied, and that is more than is allowed.
    TooMuch,
}

/// Links files, and remembers what must be brought to disk.
pub(super) struct Linker<'s> {
    store: &'s Store,
    /// Bytes that may still be copied.
    budget: Option<u64>,
    /// Whether hard links were found not to work.
    no_links: bool,
    /// Whether reflinks were found not to work.
    no_clones: bool,
    changed: Vec<String>,
    pub(super) shared: u64,
    pub(super) copied: u64,
}

/// More changes than this are brought to disk with the whole file system.
const MANY: usize = 128;

impl<'s> Linker<'s> {
    pub(super) fn new(store: &'s Store, budget: Option<u64>) -> Self {
        Self { store, budget, no_links: false, no_clones: false, changed: Vec::new(), shared: 0, copied: 0 }
    }

    /// Makes `to/new` the same as `from/old`. `folder` is what `to` is called inside of `keep`.
    pub(super) fn link(&mut self, from: &OwnedFd, old: &str, to: &OwnedFd, new: &str, folder: &str) -> Result<Way> {
        if !self.no_links {
            // Not following: a symlink would become a link to the symlink, seen and removed below.
            match files::step().and_then(|()| rustix::fs::linkat(from, old, to, new, AtFlags::empty())) {
                Ok(()) => {
                    let stat = rustix::fs::statat(to, new, AtFlags::SYMLINK_NOFOLLOW);
                    let stat = stat.doing(|| format!("look at {new} of the store"))?;
                    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                        files::remove(to, new)?;
                        return Ok(Way::Special);
                    }
                    self.note(folder, None);
                    self.shared += 1;
                    return Ok(Way::Shared);
                }
                Err(Errno::EXIST) => return Ok(Way::Shared),
                Err(Errno::NOENT) => return Ok(Way::Gone),
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => self.no_links = true,
                // Of this file alone: not ours and protected, too many links.
                Err(Errno::PERM | Errno::ACCESS | Errno::MLINK) => {}
                Err(errno) => return Err(errno).doing(|| format!("link {old} into the store")),
            }
        }
        self.copy(from, old, to, new, folder)
    }

    fn copy(&mut self, from: &OwnedFd, old: &str, to: &OwnedFd, new: &str, folder: &str) -> Result<Way> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let source = match rustix::fs::openat(from, old, flags, Mode::empty()) {
            Ok(source) => source,
            Err(Errno::NOENT) => return Ok(Way::Gone),
            Err(Errno::LOOP | Errno::NXIO) => return Ok(Way::Special),
            Err(errno) => return Err(errno).doing(|| format!("open {old} of the user's repository")),
        };
        let stat = rustix::fs::fstat(&source).doing(|| format!("look at {old} of the user's repository"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(Way::Special);
        }
        // Under another name first: a name that is there is whole.
        let temp = files::temp_name("kept")?;
        let target = files::create_new(to, &temp, 0o444)?;
        let way = self.fill(&source, &target, stat.st_size.cast_unsigned());
        let way = way.and_then(|way| match way {
            Way::Shared | Way::Copied => files::rename(to, &temp, to, new).map(|()| way),
            Way::Gone | Way::Special | Way::TooMuch => files::remove(to, &temp).map(|_| way),
        });
        if way.is_err() {
            let _ = files::remove(to, &temp);
        }
        let way = way?;
        match way {
            Way::Shared => self.shared += 1,
            Way::Copied => self.copied += 1,
            Way::Gone | Way::Special | Way::TooMuch => return Ok(way),
        }
        self.note(folder, Some(new));
        Ok(way)
    }

    fn fill(&mut self, source: &OwnedFd, target: &OwnedFd, size: u64) -> Result<Way> {
        if !self.no_clones {
            match files::step().and_then(|()| rustix::fs::ioctl_ficlone(target, source)) {
                Ok(()) => return Ok(Way::Shared),
                Err(Errno::NOSPC | Errno::DQUOT) => {
                    return Err(Errno::NOSPC).doing(|| "copy an object of the user's repository".to_owned());
                }
                Err(_) => self.no_clones = true,
            }
        }
        if let Some(budget) = &mut self.budget {
            match budget.checked_sub(size) {
                Some(left) => *budget = left,
                None => return Ok(Way::TooMuch),
            }
        }
        let mut buffer = vec![0; 256 << 10];
        let mut at = 0;
        loop {
            let read = files::pread_full(source, &mut buffer, at)
                .doing(|| "read an object of the user's repository".to_owned())?;
            files::write_all(target, &buffer[..read]).doing(|| "copy an object of the user's repository".to_owned())?;
            at += read as u64;
            if read < buffer.len() {
                return Ok(Way::Copied);
            }
        }
    }

    fn note(&mut self, folder: &str, file: Option<&str>) {
        if self.changed.len() <= MANY {
            let dir = format!("d {folder}\n");
            if self.changed.last() != Some(&dir) {
                self.changed.extend(file.map(|file| format!("f {folder}/{file}\n")));
                self.changed.push(dir);
            }
        }
    }

    /// Notes what is not yet on disk, if anything.
    pub(super) fn note_unsynced(&mut self) -> Result<()> {
        if self.changed.is_empty() {
            return Ok(());
        }
        let mut content = String::new();
        if self.changed.len() <= MANY {
            self.changed.iter().for_each(|line| content += line);
            content += "end\n";
        }
        super::mark(self.store, content.as_bytes())
    }
}
