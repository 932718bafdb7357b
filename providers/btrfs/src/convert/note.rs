//! The note of a conversion that is under way: `convert-<key>` in the store, locked by whoever converts. What it says, each with a NUL
//! behind it:
//!
//! 1. the identity of the directory above the workspace, our name in it, its path; what the workspace's directory is, and looks like;
//! 2. once there is one, which subvolume the copy is, and when it was made;
//! 3. once it is whole, before it comes to the workspace's place: `finished`, when it was last changed, and what it looks like;
//! 4. once the last look ended well, `looked`: what is under our name then is not needed.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use ah_plugin_api::text::shell;
use ah_plugin_api::{Context, Dir, Error, ErrorKind, Place, Reclaimed, Result};
use ah_provider_directory::{State, changed, failed, holders, look, names, path_of};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Statx};
use rustix::io::{Errno, retry_on_intr};

use super::PREFIX;
use crate::depot::{hex, identity};
use crate::remove;
use crate::subvolume::is_root;
use crate::sys::{self, Info};

const LOOKED: &[u8] = b"looked";

const FINISHED: &[u8] = b"finished ";

/// So often a note is written anew that somebody takes for a leftover.
const ATTEMPTS: u32 = 100;

/// A note that is there until it is forgotten.
pub(super) struct Note<'a> {
    store: &'a Dir,
    name: String,
    file: std::fs::File,
}

fn fail(e: &std::io::Error) -> Error {
    Error::from_io("cannot write down that the workspace is being converted", e)
}

impl<'a> Note<'a> {
    /// Writes one down, on disk: `old`, open, is in `above`, and gets the name `temp`.
    pub(super) fn write(store: &'a Dir, above: impl AsFd, temp: &str, old: BorrowedFd<'_>) -> Result<Self> {
        let errno = |e: Errno| fail(&e.into());
        let path = path_of(above.as_fd());
        let which = identity(above).map_err(errno)?;
        let former = look_of(old).map_err(errno)?;
        let fields = [which.as_bytes(), temp.as_bytes(), path.as_os_str().as_bytes(), former.as_bytes()];
        let name = format!("convert-{}", temp.trim_start_matches(PREFIX));
        let mut note = Self { store, file: claim(store, &name)?, name };
        fields.into_iter().try_for_each(|field| note.add(field))?;
        rustix::fs::fsync(store).map_err(errno)?;
        Ok(note)
    }

    fn add(&mut self, field: &[u8]) -> Result<()> {
        let line = [field, b"\0"].concat();
        self.file.write_all(&line).and_then(|()| self.file.sync_data()).map_err(|e| fail(&e))
    }

    /// Which subvolume the copy is.
    pub(super) fn made(&mut self, copy: &Info) -> Result<()> {
        self.add(copy_of(copy).as_bytes())
    }

    /// The copy is whole and looks like this; others come to it from now on.
    pub(super) fn finished(&mut self, copy: &Statx) -> Result<()> {
        self.add(&[FINISHED, finished_of(copy).as_bytes()].concat())
    }

    /// The last look ended well: what is under our name from now on is not needed by anybody.
    pub(super) fn looked(&mut self) -> Result<()> {
        self.add(LOOKED)
    }

    /// Takes it away. One that stays does no harm: what it names is gone, or is told from what is.
    pub(super) fn forget(self) {
        let _ = rustix::fs::unlinkat(self.store, &self.name, AtFlags::empty());
    }
}

/// An empty file of that name, locked.
fn claim(store: &Dir, name: &str) -> Result<std::fs::File> {
    let errno = |e: Errno| fail(&e.into());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    for _ in 0..ATTEMPTS {
        let file = rustix::fs::openat(store, name, flags, Mode::RUSR | Mode::WUSR).map_err(errno)?;
        #[cfg(test)]
        tests::before_it_is_locked(store);
        retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive)).map_err(errno)?;
        // Before it was locked, `reclaim` may have taken it for a leftover.
        let ours = look(&file, b"").map_err(errno)?;
        if look(store, name.as_bytes()).is_ok_and(|there| there.stx_ino == ours.stx_ino) {
            return Ok(file.into());
        }
    }
    Err(Error::new(ErrorKind::Busy, "what is written down of the conversion is taken away again and again")
        .with_hint("repeat"))
}

/// What a directory is, and looks like from outside.
fn look_of(dir: BorrowedFd<'_>) -> Result<String, Errno> {
    let stat = look(dir, b"")?;
    let (time, mode) = (stat.stx_mtime, stat.stx_mode);
    Ok(format!("{} {:x}.{:x} {mode:o}", identity(dir)?, time.tv_sec, time.tv_nsec))
}

fn copy_of(copy: &Info) -> String {
    format!("{} {}.{}", hex(&copy.uuid), copy.made.0, copy.made.1)
}

/// When the copy was last changed, and what tells that it was changed since, but for its own time of change, which a new name changes.
fn finished_of(copy: &Statx) -> String {
    let (changed, time, mode) = (copy.stx_ctime, copy.stx_mtime, copy.stx_mode);
    format!("{}.{} {:x}.{:x} {mode:o}", changed.tv_sec, changed.tv_nsec, time.tv_sec, time.tv_nsec)
}

/// Removes a directory whose descriptor says that it is the one that is meant; whether it was.
pub(super) fn remove_if(
    above: BorrowedFd<'_>,
    temp: &str,
    is_meant: impl Fn(&OwnedFd) -> bool,
    cx: &Context<'_>,
) -> Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match rustix::fs::openat(above, temp, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(true),
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(false),
        dir => dir.map_err(|errno| failed(format!("cannot remove {temp}"), errno))?,
    };
    if !is_meant(&dir) {
        return Ok(false);
    }
    remove::contents(dir.as_fd(), cx)?;
    // No more than an empty directory goes by its name.
    match rustix::fs::unlinkat(above, temp, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(errno) => Err(failed(format!("cannot remove {temp}"), errno)),
    }
}

/// Whether that is the copy which was made.
pub(super) fn is_copy(dir: &OwnedFd, copy: &Info) -> bool {
    look(dir, b"").is_ok_and(|stat| is_root(&stat)) && sys::info(dir).is_ok_and(|info| info.uuid == copy.uuid)
}

/// What a note says.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    above: String,
    temp: String,
    path: PathBuf,
    former: String,
    copy: Option<String>,
    finished: Option<String>,
    looked: bool,
}

impl Said {
    fn parse(bytes: &[u8]) -> Option<Self> {
        // What is behind the last NUL was cut off.
        let whole = bytes.iter().rposition(|&b| b == 0).and_then(|end| bytes.get(..end))?;
        let mut fields = whole.split(|&b| b == 0);
        let mut text = || String::from_utf8(fields.next()?.to_vec()).ok();
        let (above, temp) = (text()?, text()?);
        let path = PathBuf::from(OsString::from_vec(fields.next()?.to_vec()));
        let former = String::from_utf8(fields.next()?.to_vec()).ok()?;
        let copy = fields.next().and_then(|field| String::from_utf8(field.to_vec()).ok());
        let (mut finished, mut looked) = (None, false);
        for field in fields {
            looked |= field == LOOKED;
            finished = finished.or(field.strip_prefix(FINISHED).map(|text| String::from_utf8_lossy(text).into_owned()));
        }
        // The name becomes a path: it must be one of ours.
        let key = temp.strip_prefix(PREFIX)?;
        (key.len() == 32 && key.bytes().all(|b| b.is_ascii_hexdigit()) && path.is_absolute()).then_some(Self {
            above,
            temp,
            path,
            former,
            copy,
            finished,
            looked,
        })
    }

    /// The directory above the workspace: where it was, or is with the workspace by now. None if another one, or none, is where it was.
    ///
    /// # Errors
    /// If it cannot be looked at.
    fn find_above(&self, workspace: Option<&Dir>) -> Result<Option<Dir>> {
        let around = || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let around = rustix::fs::openat(workspace?, c"..", flags, Mode::empty()).ok()?;
            let path = path_of(around.as_fd());
            Some(Dir::from_fd(around, path))
        };
        let is_it = |above: &Dir| identity(above).is_ok_and(|is| is == self.above);
        let there = match Dir::open(&self.path) {
            Ok(there) if is_it(&there) => return Ok(Some(there)),
            there => there,
        };
        let is_gone = |errno| [Errno::NOENT, Errno::NOTDIR].map(Errno::raw_os_error).contains(&errno);
        match (around().filter(is_it), there) {
            (None, Err(error)) if !error.errno.is_some_and(is_gone) => Err(error),
            (around, _) => Ok(around),
        }
    }

    /// What is there under our name.
    fn found(&self, dir: &OwnedFd) -> Result<Found, Errno> {
        let stat = look(dir, b"")?;
        if is_root(&stat) {
            let info = sys::info(dir)?;
            return Ok(match &self.copy {
                Some(copy) if copy.split(' ').next() == Some(&hex(&info.uuid)) => Found::Copy,
                // Killed before it could be written down.
                None if names(dir.as_fd())?.is_empty() => Found::Copy,
                _ => Found::Other,
            });
        }
        let is_it = self.former.split_once(' ').is_some_and(|(which, _)| identity(dir).is_ok_and(|is| is == which));
        Ok(if is_it { Found::Former } else { Found::Other })
    }

    /// Whether the copy is where it took the former directory's place, whatever it is called by now.
    fn is_copy_in(&self, above: &Dir) -> Result<bool, Errno> {
        let Some(copy) = self.copy.as_deref().and_then(|copy| copy.split(' ').next()) else { return Ok(false) };
        for name in names(above.as_fd())? {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            // Opened only where it can be one: a look at another one may wake an automount.
            if !look(above, &name).is_ok_and(|stat| is_root(&stat)) {
                continue;
            }
            match rustix::fs::openat(above, name.as_slice(), flags, Mode::empty()).and_then(sys::info) {
                Ok(info) if hex(&info.uuid) == copy => return Ok(true),
                // It may be the one.
                Err(Errno::ACCESS) => return Err(Errno::ACCESS),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(false)
    }

    /// Whether nobody did anything in the former directory since the copy was begun: nothing in it has changed since that was made.
    fn is_former_untouched(&self, dir: &OwnedFd, cx: &Context<'_>) -> Result<bool> {
        let Some(made) = self.copy.as_deref().and_then(made_of) else { return Ok(false) };
        let is_it = look_of(dir.as_fd()).is_ok_and(|now| now == self.former);
        Ok(is_it && Self::is_unused(dir, |changed| changed >= made, cx)?)
    }

    /// Whether nobody did anything in the copy since others could come to it.
    fn is_copy_untouched(&self, dir: &OwnedFd, cx: &Context<'_>) -> Result<bool> {
        let Some(finished) = &self.finished else { return Ok(true) };
        let Some((when, looks)) = finished.split_once(' ').and_then(|(when, looks)| Some((time(when)?, looks))) else {
            return Ok(false);
        };
        let now = look(dir, b"").map_err(|errno| failed("cannot look at what a conversion left", errno))?;
        let is_it = finished_of(&now).split_once(' ').is_some_and(|(_, now)| now == looks);
        Ok(is_it && Self::is_unused(dir, |changed| changed > when, cx)?)
    }

    /// Whether nothing in it has such a time of change, and nobody has anything in it open.
    fn is_unused(dir: &OwnedFd, is_later: impl Fn((i64, u32)) -> bool, cx: &Context<'_>) -> Result<bool> {
        let changed_later = |stat: &Statx| is_later((stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec));
        let looked = State::of(dir.as_fd(), cx, |above, name, stat| {
            if changed_later(stat) {
                return Err(changed());
            }
            holders::refuse_open_entry(above, name, stat)
        });
        match looked.and_then(|state| holders::refuse(dir.as_fd(), Some(&state))) {
            Ok(()) => Ok(true),
            Err(error) if error.kind == ErrorKind::Busy => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn made_of(copy: &str) -> Option<(i64, u32)> {
    time(copy.split_once(' ')?.1)
}

fn time(text: &str) -> Option<(i64, u32)> {
    let (secs, nanos) = text.split_once('.')?;
    Some((secs.parse().ok()?, nanos.parse().ok()?))
}

enum Found {
    Copy,
    Former,
    Other,
}

/// Takes away what conversions left that did not come to their end; says what was done, and what stays.
///
/// Before the exchange, and where it was taken back, that is the copy, after it the former directory. That the exchange is on disk is seen to
/// first. A former directory that somebody changed after it was copied, or whose copy is not beside it any more, a copy that somebody used while it was in the workspace's place, and
/// anything that is neither of the two, stay. What the directory above was moved away with is found beside the workspace as it is now.
pub(crate) fn reclaim(place: &Place<'_>, cx: &Context<'_>) -> Result<Reclaimed> {
    let (store, mut reclaimed) = (place.store, Reclaimed::default());
    for name in names(store.as_fd()).map_err(|errno| failed("cannot look into the store", errno))? {
        if !name.starts_with(b"convert-") {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(store, name.as_slice(), flags, Mode::empty()) else { continue };
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let mut file = std::fs::File::from(file);
        let mut bytes = Vec::new();
        let read = (&mut file).take(16384).read_to_end(&mut bytes);
        let settled = match read.ok().and_then(|_| Said::parse(&bytes)) {
            Some(said) => match said.find_above(place.workspace) {
                Ok(Some(above)) => settle(&said, &above, &mut reclaimed, cx)?,
                Err(error) => {
                    reclaimed.stays.push(format!(
                        "cannot look for what a conversion left as {}, beside the workspace: {error}",
                        said.temp
                    ));
                    false
                }
                Ok(None) => {
                    let note = store.path().join(OsStr::from_bytes(&name));
                    reclaimed.stays.push(format!(
                        "did not find what a conversion left as {}, beside the workspace, when the directory around both was {}: \
                         if it was moved, move it back, or mount its disk; if it is gone for good, forget it: rm {}",
                        said.temp,
                        said.path.display(),
                        shell(note.as_os_str())
                    ));
                    false
                }
            },
            // Cut off before anything was made.
            None => true,
        };
        if settled {
            match rustix::fs::unlinkat(store, name.as_slice(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed("cannot forget a conversion", errno)),
            }
        }
    }
    Ok(reclaimed)
}

/// Whether nothing is left to do for a note, whose directory above the workspace is `above`.
fn settle(said: &Said, above: &Dir, reclaimed: &mut Reclaimed, cx: &Context<'_>) -> Result<bool> {
    let shown = above.path().join(&said.temp);
    rustix::fs::syncfs(above).map_err(|errno| failed("cannot put an exchange on disk", errno))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match rustix::fs::openat(above, &said.temp, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(true),
        dir => dir.map_err(|errno| failed(format!("cannot look at {}", shown.display()), errno))?,
    };
    let found = said.found(&dir).map_err(|errno| failed(format!("cannot look at {}", shown.display()), errno))?;
    match found {
        Found::Copy if said.looked || said.is_copy_untouched(&dir, cx)? => {}
        Found::Copy => {
            reclaimed.stays.push(format!(
                "kept {}, which was in the workspace's place for a moment while it was converted: files in it were changed \
                 there, or are in use; take over what is missing in the workspace, then remove it",
                shown.display()
            ));
            return Ok(false);
        }
        // In a snapshot of what is above, which somebody has gone back to, it may be all that there is.
        Found::Former
            if !said
                .is_copy_in(above)
                .map_err(|errno| failed(format!("cannot look into {}", above.path().display()), errno))? =>
        {
            reclaimed.stays.push(format!(
                "kept {}, the former directory of a conversion: the subvolume that took its place is not in {} any more; \
                 if it is elsewhere, whole, remove this one, else move it to where it was",
                shown.display(),
                above.path().display()
            ));
            return Ok(false);
        }
        Found::Former if said.looked || said.is_former_untouched(&dir, cx)? => {}
        Found::Former => {
            reclaimed.stays.push(format!(
                "kept {}, the former directory of a conversion that was cut short: files in it were changed after they \
                 were copied, or are in use; take over what is missing in the new one, then remove it",
                shown.display()
            ));
            return Ok(false);
        }
        Found::Other => {
            reclaimed
                .actions
                .push(format!("left {} alone, which is not what a conversion left there", shown.display()));
            return Ok(true);
        }
    }
    let key = |dir: &OwnedFd| look(dir, b"").map(|stat| (stat.stx_ino, stat.stx_dev_major, stat.stx_dev_minor));
    let settled = remove_if(above.as_fd(), &said.temp, |now| key(now).is_ok() && key(now) == key(&dir), cx)?;
    if settled {
        reclaimed.actions.push(format!("took away what a conversion left in {}", above.path().display()));
    }
    Ok(settled)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static RECLAIMS: Cell<u32> = const { Cell::new(0) };
    }

    /// Somebody else clears up.
    pub(super) fn before_it_is_locked(store: &Dir) {
        if let Some(left) = RECLAIMS.get().checked_sub(1) {
            RECLAIMS.set(left);
            reclaim(&Place::new(store), &Context::quiet()).unwrap();
        }
    }

    #[test]
    fn only_names_of_ours_are_read() {
        let key = "0123456789abcdef0123456789abcdef";
        let start = format!("1.2.3\0{PREFIX}{key}\0/a\nb\x004.5.6 7.8 755\0");
        let said = Said::parse(start.as_bytes()).unwrap();
        assert_eq!((said.above.as_str(), said.path.to_str().unwrap()), ("1.2.3", "/a\nb"));
        assert_eq!((said.former.as_str(), &said.copy, said.looked), ("4.5.6 7.8 755", &None, false));
        let said = Said::parse(format!("{start}ab 12.34\0look").as_bytes()).unwrap();
        assert_eq!((said.copy.as_deref().and_then(made_of), said.looked), (Some((12, 34)), false));
        assert!(Said::parse(format!("{start}ab 12.34\0looked\0").as_bytes()).unwrap().looked);
        let said = Said::parse(format!("{start}ab 12.34\0finished 5.6 7.8 755\0looked\0").as_bytes()).unwrap();
        assert_eq!((said.finished.as_deref(), said.looked), (Some("5.6 7.8 755"), true));
        assert_eq!((time("5.6"), time("5"), time("")), (Some((5, 6)), None, None));
        for bad in ["", "1.2.3", "1.2.3\0x\0/a\0b\0", "1.2.3\0.ah-convert-../x\0/a\0b\0"] {
            assert_eq!(Said::parse(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(Said::parse(start.trim_end_matches('\0').as_bytes()), None, "cut off");
    }

    #[test]
    fn a_note_that_was_taken_for_a_leftover_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = Dir::open(dir.path()).unwrap();
        RECLAIMS.set(3);
        let temp = format!("{PREFIX}{}", "5".repeat(32));
        let note = Note::write(&store, &store, &temp, store.as_fd()).unwrap();
        assert!(dir.path().join(&note.name).exists() && RECLAIMS.get() == 0);
        reclaim(&Place::new(&store), &Context::quiet()).unwrap();
        assert!(dir.path().join(&note.name).exists());
        note.forget();
        assert!(!dir.path().join(format!("convert-{}", "5".repeat(32))).exists());
    }
}
