//! A second name for a file, or else a second file.

use std::os::fd::OwnedFd;

use ah_plugin_api::{Context, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::unsynced::Unsynced;
use crate::store::files::{self, Doing};

/// What came of linking a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It is there: linked, copied, or there already.
    Done,
    /// There is no such file.
    Gone,
    /// It is not a regular file, or it is empty, which no file of Git's is.
    Special,
    /// It would have to be copied, and that is more than is allowed.
    TooMuch,
}

fn is_of_git(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && stat.st_size > 0
}

/// Links files, and remembers what must be brought to disk.
pub(super) struct Linker<'a> {
    cx: &'a Context<'a>,
    /// None for a clone, which is not brought to disk.
    unsynced: Option<Unsynced<'a>>,
    /// Bytes that may still be copied.
    budget: Option<u64>,
    /// Whether hard links were found not to work.
    no_links: bool,
    /// Whether reflinks were found not to work.
    no_clones: bool,
}

impl<'a> Linker<'a> {
    /// Links into `keep/`: hard links first, which cost nothing and need nobody's leave to stay as they are.
    pub(super) fn keeping(unsynced: Unsynced<'a>, budget: u64, cx: &'a Context<'a>) -> Self {
        Self { cx, unsynced: Some(unsynced), budget: Some(budget), no_links: false, no_clones: false }
    }

    /// Links into a clone: reflinks first, so that whoever writes into the clone's files writes into no others.
    pub(super) fn filling(cx: &'a Context<'a>) -> Self {
        Self { cx, unsynced: None, budget: None, no_links: false, no_clones: false }
    }

    /// What was noted of new files.
    pub(super) fn unsynced(self) -> Option<Unsynced<'a>> {
        self.unsynced
    }

    /// Makes `to/new` the same as `from/old`. `folder` is what `to` is called inside of `keep`.
    pub(super) fn link(&mut self, from: &OwnedFd, old: &str, to: &OwnedFd, new: &str, folder: &str) -> Result<Way> {
        if let Some(unsynced) = &mut self.unsynced {
            unsynced.begin()?;
        } else if !self.no_clones
            && let Some(way) = self.copy(from, old, to, new, false)?
        {
            return Ok(way);
        }
        let way = match self.hard_link(from, old, to, new)? {
            Some(way) => way,
            None => self.copy(from, old, to, new, true)?.unwrap_or(Way::TooMuch),
        };
        if way == Way::Done {
            self.note(folder, new);
        }
        Ok(way)
    }

    /// Gives `from/name`, which is another file than `to/name`, a second name `temp` beside that one; none if there is no need: they are the same
    /// file after all, or, where it would have to be copied, as large.
    pub(super) fn beside(&mut self, from: &OwnedFd, name: &str, to: &OwnedFd, temp: &str) -> Result<Option<Way>> {
        let look = |dir: &OwnedFd| rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        let ours = look(to).doing(|| format!("look at {name} of the store"))?;
        let theirs = match look(from) {
            Err(Errno::NOENT) => return Ok(Some(Way::Gone)),
            looked => looked.doing(|| format!("look at {name} of the repository"))?,
        };
        let same = (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino);
        if same || (ours.st_dev != theirs.st_dev && ours.st_size == theirs.st_size) {
            return Ok(None);
        }
        if let Some(unsynced) = &mut self.unsynced {
            unsynced.begin()?;
        }
        match self.hard_link(from, name, to, temp)? {
            None if ours.st_size == theirs.st_size => Ok(None),
            None => Ok(Some(self.copy(from, name, to, temp, true)?.unwrap_or(Way::TooMuch))),
            way => Ok(way),
        }
    }

    /// Puts what is called `temp` in the place of `name`.
    pub(super) fn replace(&mut self, dir: &OwnedFd, temp: &str, name: &str, folder: &str) -> Result<()> {
        files::rename(dir, temp, dir, name)?;
        self.note(folder, name);
        Ok(())
    }

    /// None if it cannot be linked.
    fn hard_link(&mut self, from: &OwnedFd, old: &str, to: &OwnedFd, new: &str) -> Result<Option<Way>> {
        if self.no_links {
            return Ok(None);
        }
        // Not following: a symlink would become a link to the symlink, seen and removed below.
        match files::step().and_then(|()| rustix::fs::linkat(from, old, to, new, AtFlags::empty())) {
            Ok(()) => {
                let stat = rustix::fs::statat(to, new, AtFlags::SYMLINK_NOFOLLOW);
                let stat = stat.doing(|| format!("look at {new} of the store"))?;
                if !is_of_git(&stat) {
                    files::remove(to, new)?;
                    return Ok(Some(Way::Special));
                }
                files::changed(to);
                files::changed_inode(&stat);
                Ok(Some(Way::Done))
            }
            Err(Errno::EXIST) => Ok(Some(Way::Done)),
            Err(Errno::NOENT) => Ok(Some(Way::Gone)),
            Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.no_links = true;
                Ok(None)
            }
            // Of this file alone: not ours and protected, too many links.
            Err(Errno::PERM | Errno::ACCESS | Errno::MLINK) => Ok(None),
            Err(errno) => Err(errno).doing(|| format!("link {old} into the store")),
        }
    }

    fn note(&mut self, folder: &str, file: &str) {
        if let Some(unsynced) = &mut self.unsynced {
            unsynced.note(folder, file);
        }
    }

    /// Makes a second file, by a reflink if that works, else, with `bytewise`, by copying. None if neither is to be had.
    fn copy(&mut self, from: &OwnedFd, old: &str, to: &OwnedFd, new: &str, bytewise: bool) -> Result<Option<Way>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let source = match rustix::fs::openat(from, old, flags, Mode::empty()) {
            Ok(source) => source,
            Err(Errno::NOENT) => return Ok(Some(Way::Gone)),
            Err(Errno::LOOP | Errno::NXIO) => return Ok(Some(Way::Special)),
            Err(errno) => return Err(errno).doing(|| format!("open {old} of the user's repository")),
        };
        let stat = rustix::fs::fstat(&source).doing(|| format!("look at {old} of the user's repository"))?;
        if !is_of_git(&stat) {
            return Ok(Some(Way::Special));
        }
        // Under another name first: a name that is there is whole.
        let temp = files::temp_name("kept")?;
        let target = files::create_new(to, &temp, 0o444)?;
        let way = self.fill(&source, &target, stat.st_size.cast_unsigned(), bytewise);
        let way = way.and_then(|way| match way {
            Some(Way::Done) => files::rename(to, &temp, to, new).map(|()| way),
            _ => files::remove(to, &temp).map(|_| way),
        });
        if way.is_err() {
            let _ = files::remove(to, &temp);
        }
        way
    }

    fn fill(&mut self, source: &OwnedFd, target: &OwnedFd, size: u64, bytewise: bool) -> Result<Option<Way>> {
        if !self.no_clones {
            files::changed(target);
            match files::step().and_then(|()| rustix::fs::ioctl_ficlone(target, source)) {
                Ok(()) => return Ok(Some(Way::Done)),
                Err(Errno::NOSPC | Errno::DQUOT) => {
                    return Err(Errno::NOSPC).doing(|| "copy an object of the user's repository".to_owned());
                }
                Err(_) => self.no_clones = true,
            }
        }
        if !bytewise {
            return Ok(None);
        }
        if let Some(budget) = &mut self.budget {
            match budget.checked_sub(size) {
                Some(left) => *budget = left,
                None => return Ok(Some(Way::TooMuch)),
            }
        }
        let mut buffer = vec![0; 256 << 10];
        let mut at = 0;
        loop {
            self.cx.check_cancelled()?;
            let read = files::pread_full(source, &mut buffer, at)
                .doing(|| "read an object of the user's repository".to_owned())?;
            files::write_all(target, &buffer[..read]).doing(|| "copy an object of the user's repository".to_owned())?;
            at += read as u64;
            if read < buffer.len() {
                return Ok(Some(Way::Done));
            }
        }
    }
}
