//! Which snapshots are shown, for providers whose views are the snapshots themselves: no mount of ours says so.
//!
//! One symlink a view, in a folder of the store; what it "points to" is the record, written in the one call that makes it:
//! `<boot id>/<snapshot's id>`. Its own name is made of the target folder's identity and the view's name, so that the same name cannot
//! be taken twice, and a forgotten view is found by its name. A record of an earlier run of the machine counts for nothing: whoever
//! held the view is gone.

use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ah_plugin_api::{Dir, Error, ErrorKind, FileName, Reference, Result, SnapshotId};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::{How, Process, Use, boot_id, failed, look, names};

/// The records of views.
#[derive(Debug)]
pub struct Views(OwnedFd);

/// What a record's name begins with.
const PREFIX: &str = "view-";

/// How long to wait for those who are about to leave a view, and how often to look.
const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(20);

impl Views {
    /// Those in an open folder, in which nothing else begins with `view-`.
    #[must_use]
    pub fn new(folder: OwnedFd) -> Self {
        Self(folder)
    }

    /// Those in a folder that is open for something else.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn in_folder(folder: &Dir) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(folder, c".", flags, Mode::empty());
        folder.map(Self::new).map_err(|errno| failed("cannot open the folder of views", errno))
    }

    /// Writes down that `snapshot` is shown as `name` in `target`, although nothing is made there.
    ///
    /// # Errors
    /// `AlreadyExists` if another view has that name, or something is there.
    pub fn add(&self, target: &Dir, name: &FileName, snapshot: &SnapshotId) -> Result<Reference> {
        let taken = || {
            Error::new(
                ErrorKind::AlreadyExists,
                format!("{} exists already", target.path().join(name.as_os_str()).display()),
            )
        };
        let fail = |errno| failed("cannot write down the view", errno);
        match look(target, name.as_bytes()) {
            Ok(_) => return Err(taken()),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(fail(errno)),
        }
        let reference = Self::reference(target, name)?;
        let record = format!("{}/{snapshot}", boot_id());
        for _ in 0..2 {
            match rustix::fs::symlinkat(&record, &self.0, reference.as_str()) {
                Ok(()) => return Ok(reference),
                Err(Errno::EXIST) if self.shown(reference.as_str()).is_some() => return Err(taken()),
                // One of an earlier run of the machine.
                Err(Errno::EXIST) => self.remove(&reference)?,
                Err(errno) => return Err(fail(errno)),
            }
        }
        Err(taken())
    }

    /// What a view is known by, which is its record's name: which folder (an inode number is used again, but not with the same birth time) and
    /// which name in it. Two different ones that come out the same only make the second view wait for the first.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn reference(target: &Dir, name: &FileName) -> Result<Reference> {
        let stat = look(target, b"").map_err(|errno| failed("cannot look at the target folder", errno))?;
        let mut key = Vec::with_capacity(64);
        key.extend(stat.stx_ino.to_le_bytes());
        key.extend(stat.stx_btime.tv_sec.to_le_bytes());
        key.extend(stat.stx_btime.tv_nsec.to_le_bytes());
        key.extend(name.as_bytes());
        let mut text = String::from(PREFIX);
        // Twice 64 bits of FNV-1a, from two beginnings: names are chosen by the caller, who would only be in their own way.
        for basis in [0xcbf2_9ce4_8422_2325_u64, 0x9e37_79b9_7f4a_7c15] {
            let hash = key.iter().fold(basis, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
            // Writing to a string does not fail.
            let _ = write!(text, "{hash:016x}");
        }
        Reference::new(text)
    }

    /// Takes a record away. One that is not there is gone already.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn remove(&self, view: &Reference) -> Result<()> {
        // A reference comes from outside; one that is not of ours must not become a path.
        if !is_reference(view.as_str()) {
            return Ok(());
        }
        match rustix::fs::unlinkat(&self.0, view.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            // Where nothing can be removed, the kernel says so before it looks.
            Err(Errno::ROFS) if matches!(look(&self.0, view.as_str().as_bytes()), Err(Errno::NOENT)) => Ok(()),
            Err(errno) => Err(failed("cannot take the view away", errno)),
        }
    }

    /// The snapshot that a view of this run of the machine shows.
    fn shown(&self, name: &str) -> Option<String> {
        let record = rustix::fs::readlinkat(&self.0, name, Vec::new()).ok()?;
        let (boot, snapshot) = record.to_str().ok()?.split_once('/')?;
        (boot == boot_id()).then(|| snapshot.to_owned())
    }

    /// The snapshot that a view shows; none if there is no such view, or it is of an earlier run of the machine.
    #[must_use]
    pub fn snapshot(&self, view: &Reference) -> Option<SnapshotId> {
        let name = Some(view.as_str()).filter(|name| is_reference(name))?;
        SnapshotId::new(self.shown(name)?).ok()
    }

    /// How many views of a snapshot there are.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn of(&self, snapshot: &SnapshotId) -> Result<usize> {
        let names = names(self.0.as_fd()).map_err(|errno| failed("cannot look for views", errno))?;
        let ours = names.iter().filter_map(|name| std::str::from_utf8(name).ok()).filter(|name| is_reference(name));
        Ok(ours.filter(|name| self.shown(name).as_deref() == Some(snapshot.as_str())).count())
    }

    /// Takes away the records of views with these names in `target`, whose caller never heard of them; answers how many.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn forget(&self, target: &Dir, forgotten: &[FileName]) -> Result<usize> {
        let mut count = 0;
        for name in forgotten {
            let reference = Self::reference(target, name)?;
            if look(&self.0, reference.as_str().as_bytes()).is_ok() {
                self.remove(&reference)?;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// For giving back a view of a snapshot that is a filesystem or subvolume of its own: it has a device number that nothing else has, by whichever
/// path it is looked at. Waits a moment for those who are about to leave.
///
/// # Errors
/// `Busy` if another process uses something in it, with the process named.
pub fn refuse_if_used(root: impl AsFd) -> Result<()> {
    let Ok(root) = look(root, b"") else { return Ok(()) };
    let inside = |used: &Use| {
        let device = |stat: rustix::fs::Statx| (stat.stx_dev_major, stat.stx_dev_minor);
        used.how != How::Maps && used.stat().is_some_and(|stat| device(stat) == device(root))
    };
    let began = Instant::now();
    loop {
        let holder = Process::others().find_map(|process| process.uses(inside).map(|used| (process, used)));
        let Some((process, used)) = holder else { return Ok(()) };
        if began.elapsed() >= PATIENCE {
            let message = format!("it is in use by process {process}: {used}");
            return Err(Error::new(ErrorKind::Busy, message).with_hint(process.how_to_stop(used.how)));
        }
        std::thread::sleep(PAUSE);
    }
}

fn is_reference(text: &str) -> bool {
    text.strip_prefix(PREFIX).is_some_and(|rest| rest.len() == 32 && rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_once_and_records_of_another_boot_are_void() {
        let temp = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            std::fs::create_dir(temp.path().join(name)).unwrap();
            Dir::open(temp.path().join(name)).unwrap()
        };
        let (folder, target) = (dir("views"), dir("target"));
        let views = Views::in_folder(&folder).unwrap();
        let (a, b) = (SnapshotId::new("a").unwrap(), SnapshotId::new("b").unwrap());
        let name = |text: &str| FileName::new(text).unwrap();
        let first = views.add(&target, &name("v"), &a).unwrap();
        assert_eq!(views.add(&target, &name("v"), &b).unwrap_err().kind, ErrorKind::AlreadyExists);
        let second = views.add(&target, &name("w"), &a).unwrap();
        assert_ne!(first, second);
        assert_eq!((views.of(&a).unwrap(), views.of(&b).unwrap()), (2, 0));
        views.remove(&first).unwrap();
        views.remove(&first).unwrap();
        views.remove(&Reference::new("../target").unwrap()).unwrap();
        assert_eq!(views.forget(&target, &[name("w"), name("x")]).unwrap(), 1);
        assert_eq!(views.of(&a).unwrap(), 0);
        std::fs::write(target.path().join("there"), "").unwrap();
        assert_eq!(views.add(&target, &name("there"), &a).unwrap_err().kind, ErrorKind::AlreadyExists);
        // As it would be after a power cut.
        let old = Views::reference(&target, &name("v")).unwrap();
        std::os::unix::fs::symlink("another-boot/a", folder.path().join(old.as_str())).unwrap();
        assert_eq!(views.of(&a).unwrap(), 0);
        assert_eq!(views.add(&target, &name("v"), &b).unwrap(), old);
        assert_eq!(views.of(&b).unwrap(), 1);
    }
}
