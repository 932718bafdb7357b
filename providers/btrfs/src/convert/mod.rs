//! Making a subvolume of a directory.
//!
//! In this order, so that being killed anywhere leaves the old directory or the new one in place, whole, and a note by which `reclaim`
//! finds the other:
//!
//! 1. the note in the store, on disk (`note`);
//! 2. a subvolume beside the workspace, under a name of ours, which nobody else can come to; what it is, into the note; in it a copy of
//!    everything ([`Copier`]), on disk; a look whether anything was changed meanwhile; only then the copy gets its owner and bits;
//! 3. both change names in one step;
//! 4. a last look at the old directory, which nobody can reach by name any more: if somebody changed it meanwhile or holds something in
//!    it open ([`holders`]), both change names back, unless somebody has begun to work in the new one by then; and because they may have done
//!    so until that very moment, the copy gets a last look of the same kind, now that nobody can reach that by name;
//! 5. that on disk; that the last look ended well, into the note; then the one that is not needed goes, then the note.
//!
//! Nothing is removed but what is, by its descriptor, the copy that was made or the directory that was copied, and once somebody else could
//! come to it, only after a look that found it as it was.

mod note;

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use ah_plugin_api::{Context, Converted, Dir, Error, ErrorKind, Result, text};
use ah_provider_directory::{Copier, Mounts, State, TICK, changed, failed, holders, look, mount_of, names, path_of};
use rustix::fs::{Mode, OFlags, RenameFlags, Statx};
use rustix::io::Errno;

use crate::depot::unique;
use crate::omitted;
use crate::subvolume::{Subvolume, is_root};
use crate::sys::{self, Info};
pub(crate) use note::reclaim;
use note::{Note, is_copy, remove_if};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What the new subvolume's name, and then the old directory's, begins with.
const PREFIX: &str = ".ah-convert-";

/// Answers [`ah_plugin_api::Provider::convert`].
pub(crate) fn convert(store: &Dir, workspace: &Dir, cx: &Context<'_>) -> Result<Converted> {
    let shown = workspace.path().display().to_string();
    let source = Subvolume::around(workspace)?;
    if source.rel.is_root() {
        return Ok(Converted {
            changed: false,
            mounted: false,
            notes: vec![format!("{shown} is a subvolume already")],
        });
    }
    let old = Old::open(workspace, &shown)?;
    refuse_boundaries(workspace, &source, store, &shown, cx)?;
    holders::refuse(workspace.as_fd(), None)?;
    holders::refuse_mounts(workspace.as_fd())?;
    let temp = format!("{PREFIX}{}", unique()?);
    let mut note = Note::write(store, &old.above, &temp, workspace.as_fd())?;
    let mut made = None;
    let stopped = copy_and_exchange(&old, workspace, &temp, &mut note, &mut made, cx);
    let mut notes = match stopped {
        Ok(notes) => notes,
        Err(Stopped { error, left }) => {
            match left {
                // Without that on the note, an end in between would leave a copy of which nobody knows whether it was used.
                Left::Unused if note.looked().is_err() => {}
                Left::Copy | Left::Unused => {
                    let removed = made.is_none_or(|copy| {
                        let is_it = |dir: &OwnedFd| is_copy(dir, &copy);
                        remove_if(old.above.as_fd(), &temp, is_it, &Context::quiet()).unwrap_or(false)
                    });
                    // What cannot be removed now, `reclaim` removes; an empty one that could not be looked at, too.
                    if removed && look(&old.above, temp.as_bytes()).is_err() {
                        note.forget();
                    }
                }
                Left::Kept => {}
            }
            return Err(error);
        }
    };
    let about =
        "is a subvolume of its own now, and another directory: programs that were in it have to be started anew";
    notes.insert(0, format!("{shown} {about}"));
    notes.insert(
        1,
        format!(
            "snapshots and backups that other programs make of the subvolume {} do not hold it from now on: \
             have them made of it too",
            source.path.display()
        ),
    );
    // It is done whatever comes now; what cannot be removed, `reclaim` tries again.
    let marked = note.looked();
    let is_it = |dir: &OwnedFd| look(dir, b"").is_ok_and(|stat| same(&stat, &old.stat));
    match marked.and_then(|()| remove_if(old.above.as_fd(), &temp, is_it, &Context::quiet())) {
        Ok(true) => note.forget(),
        Ok(false) => notes.push(format!("{temp}, beside it, is not the former directory any more, and was left alone")),
        Err(error) => notes.push(format!("the former directory is still there as {temp}, beside it: {error}")),
    }
    Ok(Converted { changed: true, mounted: false, notes })
}

/// Why it was not done.
struct Stopped {
    error: Error,
    left: Left,
}

/// What is under our name then.
enum Left {
    /// A copy that nobody could come to.
    Copy,
    /// A copy that was in the workspace's place, and was not used there.
    Unused,
    /// What must stay for now, and the note with it: somebody's work, which `reclaim` names until it is gone; or what the disk says after a power
    /// cut, which it takes away once that is known.
    Kept,
}

impl From<Error> for Stopped {
    /// Before the exchange.
    fn from(error: Error) -> Self {
        Self { error, left: Left::Copy }
    }
}

/// The directory that is to be converted, and where it is.
struct Old {
    above: OwnedFd,
    name: Vec<u8>,
    stat: Statx,
}

impl Old {
    fn open(workspace: &Dir, shown: &str) -> Result<Self> {
        let fail = |errno| failed(format!("cannot look at what is around {shown}"), errno);
        let above = rustix::fs::openat(workspace, c"..", DIRECTORY, Mode::empty()).map_err(fail)?;
        if mount_of(&above).map_err(fail)? != mount_of(workspace).map_err(fail)? {
            return Err(Error::new(ErrorKind::FailedPrecondition, format!("{shown} is a mount point"))
                .with_hint("unmount it, convert the directory where it is mounted from, then mount it again"));
        }
        let stat = look(workspace, b"").map_err(fail)?;
        let is_it = |name: &[u8]| look(&above, name).is_ok_and(|there| same(&there, &stat));
        let path = path_of(workspace.as_fd());
        let known = path.file_name().map(|name| name.as_encoded_bytes().to_vec()).filter(|name| is_it(name));
        let name = match known {
            Some(name) => Some(name),
            None => names(above.as_fd()).map_err(fail)?.into_iter().find(|name| is_it(name)),
        };
        let name = name.ok_or_else(|| {
            Error::new(ErrorKind::Conflict, format!("{shown} was moved meanwhile")).with_hint("repeat")
        })?;
        Ok(Self { above, name, stat })
    }
}

fn same(a: &Statx, b: &Statx) -> bool {
    (a.stx_ino, a.stx_dev_major, a.stx_dev_minor) == (b.stx_ino, b.stx_dev_major, b.stx_dev_minor)
}

/// Other filesystems and subvolumes inside would have to come along, which is not to be had in one step.
fn refuse_boundaries(workspace: &Dir, source: &Subvolume, store: &Dir, shown: &str, cx: &Context<'_>) -> Result<()> {
    if let Some(inside) = Mounts::read()?.below(workspace).first() {
        let message = format!("{} is mounted inside of {shown}", inside.path);
        return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("unmount it, then repeat"));
    }
    // With this process's own rights, with which it is copied and removed: root also finds what the workspace's owner may not read.
    if let Some(nested) = omitted::first_nested(workspace, source, cx)? {
        let message = format!("{nested} in {shown} is a subvolume, which would have to be moved");
        return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("move it out of there, then repeat"));
    }
    let key = look(workspace, b"").map_err(|errno| failed("cannot look at the workspace", errno))?;
    let around = ah_provider_directory::climb(store.as_fd(), |stat| same(stat, &key))?;
    if around.is_some() {
        let message = format!("the program's own state is inside of {shown}");
        return Err(Error::new(ErrorKind::FailedPrecondition, message)
            .with_hint("convert the directories in it that you work in, each by itself"));
    }
    Ok(())
}

/// Makes the subvolume that the copy will be, which nobody else can come to.
fn make(old: &Old, temp: &str) -> Result<(OwnedFd, Info)> {
    let fail = |errno| failed("cannot make a subvolume beside the workspace", errno);
    // What was changed before is older than the copy then, and not taken for newer by `reclaim`.
    std::thread::sleep(TICK);
    sys::create(&old.above, temp.as_bytes()).map_err(fail)?;
    let new = rustix::fs::openat(&old.above, temp, DIRECTORY, Mode::empty()).map_err(fail)?;
    let stat = look(&new, b"").map_err(fail)?;
    // Whoever may write above could have put something else there.
    if !is_root(&stat) || stat.stx_uid != rustix::process::geteuid().as_raw() {
        return Err(moved());
    }
    // It was made with what the umask leaves.
    rustix::fs::fchmod(&new, Mode::RWXU).map_err(fail)?;
    if !names(new.as_fd()).map_err(fail)?.is_empty() {
        return Err(moved());
    }
    let info = sys::info(&new).map_err(fail)?;
    Ok((new, info))
}

/// Gives notes for a person. `made`: what the copy is, as soon as there is one.
fn copy_and_exchange(
    old: &Old,
    workspace: &Dir,
    temp: &str,
    note: &mut Note<'_>,
    made: &mut Option<Info>,
    cx: &Context<'_>,
) -> Result<Vec<String>, Stopped> {
    let fail = |errno| failed("cannot make a subvolume beside the workspace", errno);
    let (new, copy) = make(old, temp)?;
    note.made(made.insert(copy))?;
    let from = rustix::fs::openat(workspace, c".", DIRECTORY, Mode::empty()).map_err(fail)?;
    cx.progress("copying", 0, None);
    let mut copier = Copier::new(new.as_fd(), workspace.path().to_owned(), cx);
    let top = copier.run(from.as_fd())?;
    cx.progress("comparing", 0, None);
    let mut copied = State::of(new.as_fd(), cx, |_, _, _| Ok(()))?;
    rustix::fs::syncfs(&new).map_err(fail)?;
    // Looked at once more before anybody is disturbed.
    unchanged(&copier.state, from.as_fd(), cx)?;
    copier.finish(from.as_fd(), &top)?;
    let finished = look(&new, b"").map_err(fail)?;
    copied.set_top(&finished);
    // What is done in it from now on has a later time than anything in it.
    std::thread::sleep(TICK);
    cx.check_cancelled()?;
    note.finished(&finished)?;
    exchange(old, temp)?;
    cx.progress("looking once more", 0, None);
    let before = &copier.state;
    let last_look = nobody_is_in(before, from.as_fd())
        .and_then(|()| holders::refuse_mounts(new.as_fd()))
        .and_then(|()| if are_exchanged(old, temp, new.as_fd()) { Ok(()) } else { Err(moved()) });
    if let Err(error) = last_look {
        return Err(put_back(old, temp, &copied, new.as_fd(), error, cx));
    }
    on_disk(&new)?;
    Ok(copier.notes())
}

/// Puts the former directory back, for that reason; gives what is left to be done about the other one.
fn put_back(old: &Old, temp: &str, copied: &State, new: BorrowedFd<'_>, error: Error, cx: &Context<'_>) -> Stopped {
    let is_at = |name: &[u8], stat: &Statx| look(&old.above, name).is_ok_and(|there| same(&there, stat));
    // Somebody may have begun to work in the new one: nobody's work changes its place, so that stays, and so does the old one. As it does
    // where the names are not ours to give any more.
    let back = nobody_is_in(copied, new)
        .and_then(|()| if are_exchanged(old, temp, new) { Ok(()) } else { Err(moved()) })
        .and_then(|()| {
            cx.progress("putting it back", 0, None);
            exchange(old, temp)
        });
    if let Err(why) = back {
        let is_there = are_exchanged(old, temp, new);
        let which = ("the former directory", is_at(temp.as_bytes(), &old.stat));
        return kept(old, temp, error.with_cause(&why), which, is_there.then_some("the new subvolume"));
    }
    // They may have begun while that was looked for: only now nobody comes to it by name.
    let is_kept = look(new, b"").is_ok_and(|stat| is_at(temp.as_bytes(), &stat));
    let last_look = nobody_is_in(copied, new).and_then(|()| if is_kept { Ok(()) } else { Err(moved()) });
    if let Err(why) = last_look {
        let is_there = is_at(&old.name, &old.stat);
        let which = ("the new subvolume", is_kept);
        return kept(old, temp, error.with_cause(&why), which, is_there.then_some("the former directory, as before"));
    }
    match on_disk(new) {
        Ok(()) => Stopped { error, left: Left::Unused },
        Err(_) => Stopped { error, left: Left::Kept },
    }
}

/// What is to be done about what stays under our name. `which`: what that is, and whether it is still there, or somebody moved it. `there`: what the
/// workspace is, if it is where it was.
fn kept(old: &Old, temp: &str, error: Error, (which, is_kept): (&str, bool), there: Option<&str>) -> Stopped {
    let above = path_of(old.above.as_fd());
    let place = |name: &[u8]| text::shell(above.join(OsStr::from_bytes(name)).as_os_str());
    let (kept, workspace) = (place(temp.as_bytes()), place(&old.name));
    let (there, paths) = match there {
        Some(there) => (format!("the workspace is {there}"), format!(" --no-dereference {kept} {workspace}")),
        None => ("the workspace was moved".to_owned(), String::new()),
    };
    let hint = if is_kept {
        format!(
            "{which} is kept as {kept}, and what was written meanwhile may be only there; {there}. Compare them (`diff -r{paths}`), take over what is \
             missing in the workspace, then remove {kept}; until then `ah agent fs gc` names it"
        )
    } else {
        format!(
            "{which} was moved away from {kept}, where now may lie what is somebody else's; {there}. What was written meanwhile may be only in what was \
             moved: find it, and take over what is missing in the workspace"
        )
    };
    Stopped { error: error.with_hint(hint), left: Left::Kept }
}

/// Before it is written down that what is under our name is not needed: until then a power cut may change which of the two that is.
fn on_disk(new: impl AsFd) -> Result<(), Stopped> {
    rustix::fs::syncfs(new)
        .map_err(|errno| Stopped { error: failed("cannot put the exchange on disk", errno), left: Left::Kept })
}

fn are_exchanged(old: &Old, temp: &str, new: BorrowedFd<'_>) -> bool {
    let is = |name: &[u8], stat: &Statx| look(&old.above, name).is_ok_and(|there| same(&there, stat));
    is(temp.as_bytes(), &old.stat) && look(new, b"").is_ok_and(|stat| is(&old.name, &stat))
}

/// That a directory is as it was, and nobody works in it or has anything in it open or mounted.
fn nobody_is_in(before: &State, dir: BorrowedFd<'_>) -> Result<()> {
    holders::refuse(dir, Some(before))?;
    holders::refuse_mounts(dir)?;
    untouched(before, dir)
}

fn moved() -> Error {
    Error::new(ErrorKind::Conflict, "the workspace was moved while it was converted").with_hint("repeat")
}

fn exchange(old: &Old, temp: &str) -> Result<()> {
    let above = old.above.as_fd();
    rustix::fs::renameat_with(above, old.name.as_slice(), above, temp, RenameFlags::EXCHANGE).map_err(|errno| {
        match errno {
            Errno::NOENT => moved(),
            errno => failed("cannot put the subvolume in the workspace's place", errno),
        }
    })
}

fn unchanged(before: &State, dir: BorrowedFd<'_>, cx: &Context<'_>) -> Result<()> {
    if State::of(dir, cx, |_, _, _| Ok(()))? == *before { Ok(()) } else { Err(changed()) }
}

/// As [`unchanged`], and nobody has any of the files open.
fn untouched(before: &State, dir: BorrowedFd<'_>) -> Result<()> {
    if State::of(dir, &Context::quiet(), holders::refuse_open_entry)? == *before { Ok(()) } else { Err(changed()) }
}
