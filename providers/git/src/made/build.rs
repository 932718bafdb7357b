//! Making a thing in a target folder: under a temporary name first, then, when it is whole, under its own.
//!
//! So whatever bears its final name is whole, whenever its maker is killed, and what bears a temporary one is garbage once nobody
//! holds its record. Not so after a power cut: the files are not brought to disk, so a thing may have its name and lack contents.
//! Views and clones can be made again.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use ah_plugin_api::{Context, Dir, Error, ErrorKind, FileName, LogLevel, Reference, Result, SnapshotId, Timestamp};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::identity::Identity;
use super::record::{Kind, Making, Record, Records};
use super::remove::remove_tree;

/// A thing in the making.
pub(crate) struct Build<'a> {
    record: Record,
    target: &'a Dir,
    name: FileName,
    dir: OwnedFd,
    identity: Identity,
}

impl<'a> Build<'a> {
    /// Makes an empty directory (0700) under a temporary name, recorded durably, lets `make` fill it and give it its name
    /// ([`Build::install`]), and gives what `make` gives, with the reference. When anything fails, all is taken away again.
    ///
    /// # Errors
    /// `AlreadyExists` if the name is taken; those of `make`.
    pub(crate) fn run<T>(
        store: &Dir,
        kind: Kind,
        snapshot: &SnapshotId,
        (target, name): (&'a Dir, &FileName),
        cx: &Context<'_>,
        make: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(T, Reference)> {
        match rustix::fs::statat(target, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {}
            Ok(_) => return Err(taken(target, name)),
            Err(e) => return Err(failed(target, "look into", e)),
        }
        let record = Records::open(store)?.create(Making {
            kind,
            snapshot: snapshot.clone(),
            name: name.clone(),
            target: Identity::of(target)?,
            target_path: target.path().as_os_str().as_bytes().to_vec(),
            created: Timestamp::now(),
        })?;
        let mut build = Self::begin(record, target, name)?;
        let made = make(&mut build).and_then(|made| {
            build.record.ready()?;
            Ok((made, build.record.reference()?))
        });
        if made.is_err() {
            build.give_up(cx);
        }
        made
    }

    fn begin(mut record: Record, target: &'a Dir, name: &FileName) -> Result<Self> {
        let temporary = record.temporary();
        let made = rustix::fs::mkdirat(target, temporary.as_c_str(), Mode::RWXU)
            .and_then(|()| {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::openat(target, temporary.as_c_str(), flags, Mode::empty())
            })
            .map_err(|e| failed(target, "make a directory in", e))
            .and_then(|dir| {
                let identity = Identity::of(&dir)?;
                record.directory_made(identity)?;
                Ok((dir, identity))
            });
        match made {
            Ok((dir, identity)) => Ok(Self { record, target, name: name.clone(), dir, identity }),
            Err(error) => {
                // Nothing is in it yet. If even this fails, `reclaim` finds the record.
                match rustix::fs::unlinkat(target, temporary.as_c_str(), AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => drop(record.remove()),
                    Err(_) => {}
                }
                Err(error)
            }
        }
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &OwnedFd {
        &self.dir
    }

    /// Its name in the target until it is installed.
    pub(crate) fn temporary(&self) -> CString {
        self.record.temporary()
    }

    /// Its name in the target from then on.
    pub(crate) fn name(&self) -> CString {
        c_name(&self.name)
    }

    /// Where it is once installed.
    pub(crate) fn path(&self) -> PathBuf {
        self.target.path().join(self.name.as_os_str())
    }

    /// Gives it its final name. From here on it counts as whole.
    ///
    /// # Errors
    /// `AlreadyExists` if the name was taken meanwhile.
    pub(crate) fn install(&mut self) -> Result<()> {
        let (from, to) = (self.record.temporary(), self.name.as_bytes());
        let renamed = match rustix::fs::renameat_with(self.target, &from, self.target, to, RenameFlags::NOREPLACE) {
            // NFS and some others know no flags. A plain rename replaces nothing but an empty directory.
            Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(self.target, &from, self.target, to),
            other => other,
        };
        match renamed {
            Ok(()) => Ok(()),
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => Err(taken(self.target, &self.name)),
            Err(e) => Err(failed(self.target, "rename in", e)),
        }
    }

    fn give_up(self, cx: &Context<'_>) {
        let Self { mut record, target, name, dir, identity } = self;
        drop(dir);
        // What was cancelled is cleaned up all the same: nobody is asked any more.
        let undone = record.removing().and_then(|()| {
            let names = [record.temporary(), c_name(&name)];
            // What bears its final name counts as whole: so not under that one.
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(made) = rustix::fs::openat(target, names[1].as_c_str(), flags, Mode::empty())
                && Identity::of(&made)?.is(&identity)
            {
                let _ = rustix::fs::renameat_with(target, &names[1], target, &names[0], RenameFlags::NOREPLACE);
            }
            for name in names {
                remove_tree(target.as_fd(), &name, &identity, &Context::quiet())?;
            }
            record.remove()
        });
        if let Err(error) = undone {
            cx.log(LogLevel::Warn, &format!("{error}; `reclaim` will try again"));
        }
    }
}

/// A file name as the operating system takes it.
pub(crate) fn c_name(name: &FileName) -> CString {
    // A file name has no NUL.
    CString::new(name.as_bytes()).unwrap_or_default()
}

fn taken(target: &Dir, name: &FileName) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("{name} exists already in {}", target.path().display()))
}

fn failed(target: &Dir, what: &str, e: Errno) -> Error {
    Error::from_io(format!("cannot {what} {}", target.path().display()), &e.into())
}
