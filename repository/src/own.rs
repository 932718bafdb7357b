//! The repository of a work tree that a filesystem cloned as it is (a writable snapshot): made to stand on its own.
//!
//! A clone of that kind holds a byte for byte copy of `.git`, which is right but for what leads out of it: objects borrowed from elsewhere, a
//! `.git` file or symlink that names a directory of the user's, symlinks in `.git`, linked work trees, a configured work tree, and locks of
//! a git that was at work at that moment.
//!
//! The filesystem has the raw copy on disk when it has made it; what is done to it here would come there some time later. In between, a power
//! cut would bring back a clone whose `.git` is the user's own, and which its maker has on record as ready. So [`own`] sees to it that
//! whatever it changed is on disk when it returns, and no caller can forget to.
//!
//! Not here: repositories further down in the clone. Finding them would take a walk of all of it.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, Dir, Error, ErrorKind, RepositoryState, Result};
use ah_provider_directory::{Plain, remove_entry};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::config::parsed;
use crate::objects;
use crate::owner::as_owner;
use crate::repository::{CONFIG_LIMIT, Repository, SMALL, read_file};
use crate::write::{make_dir, put, put_head, put_refs, put_settings};
use crate::{config, ignores_case};

/// What git leaves at the top of a repository and beside its refs while it works; in a clone nobody will take it away. No ref ends so.
const LOCK: &[u8] = b".lock";

/// The same, at the top alone.
const GC: &[u8] = b"gc.pid";

/// Folders in a repository that lie deeper are not Git's.
const DEEPEST: usize = 48;

/// The system takes no longer paths.
const PATH_MAX: u64 = 4096;

/// Makes the repository at the top of `clone` depend on nothing outside it. Gives notes for a person.
///
/// `workspace` is what was cloned, if it is there: a path in `.git` that is relative leads on from there, not from the clone.
/// `state` is where its repository stood, as recorded with the snapshot. Root acts with the rights of the clone's owner. Does nothing where there is no `.git`, and next to nothing where it is a plain one.
///
/// # Errors
/// Those of the system. A repository that cannot be made whole is no error: its `.git` is taken away, and a note says why.
pub fn own(
    clone: &Dir,
    workspace: Option<&Dir>,
    state: Option<&RepositoryState>,
    cx: &Context<'_>,
) -> Result<Vec<String>> {
    let cut = as_owner(clone, || cut_loose(clone, workspace, state, cx)).unwrap_or_else(|| {
        Err(Error::new(
            ErrorKind::PermissionDenied,
            "the clone's repository cannot be looked at with its owner's rights",
        ))
    })?;
    if cut.changed {
        sync(clone)?;
    }
    Ok(cut.notes)
}

/// What was done to a clone.
#[derive(Default)]
struct Cut {
    changed: bool,
    /// For a person.
    notes: Vec<String>,
}

impl Cut {
    fn changed(notes: Vec<String>) -> Self {
        Self { changed: true, notes }
    }
}

/// Takes what was done in the clone to the disk.
fn sync(clone: &Dir) -> Result<()> {
    #[cfg(test)]
    tests::SYNCED.set(tests::SYNCED.get() + 1);
    // All of it, since it is many files. A filesystem in user space hears nothing of that; of the second it does.
    rustix::fs::syncfs(clone)
        .and_then(|()| rustix::fs::fsync(clone))
        .map_err(|e| Error::from_io("cannot put the clone's repository on disk", &e.into()))
}

fn cut_loose(clone: &Dir, workspace: Option<&Dir>, state: Option<&RepositoryState>, cx: &Context<'_>) -> Result<Cut> {
    let kind = match rustix::fs::statat(clone, ".git", AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
        Err(Errno::NOENT) => return Ok(Cut::default()),
        Err(e) => return Err(failed("look at", ".git", e)),
    };
    match kind {
        // Where git is told by that file to work, whatever else is in the folder.
        FileType::Directory if rustix::fs::statat(clone, ".git/commondir", AtFlags::SYMLINK_NOFOLLOW).is_ok() => {
            rebuilt(clone, workspace, state, cx).map(Cut::changed)
        }
        FileType::Directory if leads_out(open_dir(clone.as_fd(), ".git")?.as_fd(), false, DEEPEST, cx)? => {
            rebuilt(clone, workspace, state, cx).map(Cut::changed)
        }
        FileType::Directory => of_directory(clone, workspace, cx),
        FileType::RegularFile | FileType::Symlink => rebuilt(clone, workspace, state, cx).map(Cut::changed),
        _ => Ok(Cut::default()),
    }
}

/// Whether a symlink below leads out of the repository, as `git-new-workdir` makes them. `objects`: whether this is the folder of objects,
/// whose files of one object each are not looked at: Git never changes one.
fn leads_out(folder: BorrowedFd<'_>, objects: bool, deepest: usize, cx: &Context<'_>) -> Result<bool> {
    let entries = rustix::fs::Dir::read_from(folder).map_err(|e| failed("read", "a folder", e))?;
    for entry in entries.flatten() {
        cx.check_cancelled()?;
        let name = entry.file_name();
        let bytes = name.to_bytes();
        if bytes == b"." || bytes == b".." {
            continue;
        }
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::Symlink) => {
                let target =
                    rustix::fs::readlinkat(folder, name, Vec::new()).map_err(|e| failed("read", "a link", e))?;
                let target = target.to_bytes();
                if target.starts_with(b"/") || target.split(|&byte| byte == b'/').any(|part| part == b"..") {
                    return Ok(true);
                }
            }
            Ok(FileType::Directory) if !(objects && bytes.len() == 2) => {
                let inner = open_inner(folder, name)?;
                if deepest == 0 || leads_out(inner.as_fd(), bytes == b"objects", deepest - 1, cx)? {
                    return Ok(true);
                }
            }
            _ => {}
        }
    }
    Ok(false)
}

/// The repository that the clone's `.git` leads to: as seen from the workspace, where that has the same way to it.
fn origin(clone: &Dir, workspace: Option<&Dir>) -> Option<Repository> {
    let same_way = |workspace: &&Dir| way_out(clone).is_some_and(|way| way_out(workspace) == Some(way));
    Repository::of(workspace.filter(same_way).unwrap_or(clone))
}

/// What in `.git` names the place of the repository, or of the objects that it borrows.
fn way_out(dir: &Dir) -> Option<Vec<u8>> {
    if let Ok(target) = rustix::fs::readlinkat(dir, ".git", Vec::new()) {
        return Some(target.into_bytes());
    }
    let read = |name: &str| read_file(dir, name, CONFIG_LIMIT).ok().flatten();
    [".git", ".git/commondir", ".git/objects/info/alternates"].into_iter().find_map(read)
}

fn of_directory(clone: &Dir, workspace: Option<&Dir>, cx: &Context<'_>) -> Result<Cut> {
    let git = open_dir(clone.as_fd(), ".git")?;
    let mut cut = Cut::default();
    cut.changed |= drop_locks(git.as_fd(), DEEPEST, cx)?;
    let borrows = read_file(&git, "objects/info/alternates", CONFIG_LIMIT).ok().flatten().unwrap_or_default();
    if borrows.split(|&byte| byte == b'\n').any(|line| !line.is_empty() && line[0] != b'#') {
        let found = origin(clone, workspace);
        let whole = found.as_ref().filter(|found| found.state.not_kept.is_none());
        let Some(found) = whole else {
            let why = found.and_then(|found| found.state.not_kept).unwrap_or_else(|| "it cannot be read".to_owned());
            return without(clone, &why, cx).map(Cut::changed);
        };
        cut.changed = true;
        let own = open_dir(git.as_fd(), "objects")?;
        for borrowed in found.objects.iter().skip(1) {
            objects::copy(borrowed.as_fd(), own.as_fd(), cx)?;
        }
        gone(rustix::fs::unlinkat(&own, "info/alternates", AtFlags::empty()), "info/alternates")?;
    }
    // Each of these has something to say of what it changes.
    cut.notes.extend(drop_work_trees(clone, git.as_fd(), cx)?);
    cut.notes.extend(own_config(git.as_fd())?);
    cut.changed |= !cut.notes.is_empty();
    Ok(cut)
}

/// Takes away the locks in a folder and, of folders in it, in `refs` and below. Whether there were any.
fn drop_locks(folder: BorrowedFd<'_>, deepest: usize, cx: &Context<'_>) -> Result<bool> {
    let (mut locks, mut folders) = (Vec::new(), Vec::new());
    let is_lock = |name: &[u8]| name.ends_with(LOCK) || deepest == DEEPEST && name == GC;
    for entry in rustix::fs::Dir::read_from(folder).map_err(|e| failed("read", "a folder", e))?.flatten() {
        cx.check_cancelled()?;
        let name = entry.file_name();
        let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        match stat.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Ok(FileType::RegularFile) if is_lock(name.to_bytes()) => locks.push(name.to_owned()),
            Ok(FileType::Directory) if deepest < DEEPEST || name.to_bytes() == b"refs" => {
                folders.push(name.to_owned());
            }
            _ => {}
        }
    }
    let mut changed = false;
    for lock in locks {
        changed |= gone(rustix::fs::unlinkat(folder, &lock, AtFlags::empty()), "a lock")?;
    }
    for inner in folders.iter().filter(|name| ![&b"."[..], b".."].contains(&name.to_bytes())) {
        let inner = open_inner(folder, inner)?;
        changed |= deepest > 0 && drop_locks(inner.as_fd(), deepest - 1, cx)?;
    }
    Ok(changed)
}

/// Linked work trees are the user's: what the clone holds of those inside it become plain directories.
fn drop_work_trees(clone: &Dir, git: BorrowedFd<'_>, cx: &Context<'_>) -> Result<Option<String>> {
    let Ok(trees) = open_dir(git, "worktrees") else { return Ok(None) };
    let entries = rustix::fs::Dir::read_from(&trees).map_err(|e| failed("read", "worktrees", e))?;
    let mut some_inside = false;
    for entry in entries.flatten() {
        let name = entry.file_name().to_bytes();
        cx.check_cancelled()?;
        let text = read_file(&trees, [name, b"/gitdir"].concat(), PATH_MAX).ok().flatten().unwrap_or_default();
        // The path of its `.git` file, as it was in the workspace, wherever that was: the end of it is the path in the clone.
        let Some(path) = text.trim_ascii_end().strip_suffix(b"/.git") else { continue };
        for (slash, _) in path.iter().enumerate().filter(|&(_, &byte)| byte == b'/') {
            cx.check_cancelled()?;
            some_inside |= unlink_git_file(clone, &path[slash + 1..], name)?;
        }
    }
    remove_entry(git, b"worktrees", &Plain, cx)
        .map_err(|error| error.context("cannot take linked work trees out of the clone"))?;
    let now =
        if some_inside { "in the clone they are plain directories" } else { "git does not work in them for the clone" };
    Ok(Some(format!("linked work trees stay with the workspace: {now}")))
}

/// Removes the `.git` file in the folder `tree` of the clone if it is that of the linked work tree `name`. Whether it was.
fn unlink_git_file(clone: &Dir, tree: &[u8], name: &[u8]) -> Result<bool> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(parent) = rustix::fs::openat2(clone, tree, flags, Mode::empty(), resolve) else { return Ok(false) };
    let Ok(Some(text)) = read_file(&parent, ".git", SMALL) else { return Ok(false) };
    if !text.trim_ascii_end().ends_with(&[b"/worktrees/", name].concat()) {
        return Ok(false);
    }
    gone(rustix::fs::unlinkat(&parent, ".git", AtFlags::empty()), ".git")
}

/// A configured work tree leads back to the user's files; then the configuration is made anew of what is safe in it.
fn own_config(git: BorrowedFd<'_>) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    // Git reads it after the other one.
    if let Ok(Some(text)) = read_file(git, "config.worktree", CONFIG_LIMIT)
        && names_a_work_tree(&text)
    {
        gone(rustix::fs::unlinkat(git, "config.worktree", AtFlags::empty()), "config.worktree")?;
        notes.push("config.worktree names a work tree, so it was not taken along".to_owned());
    }
    let Ok(Some(text)) = read_file(git, "config", CONFIG_LIMIT) else { return Ok(notes) };
    if !names_a_work_tree(&text) {
        return Ok(notes);
    }
    let made = config(&[text], ignores_case(git));
    gone(rustix::fs::unlinkat(git, "config", AtFlags::empty()), "config")?;
    put(git, "config", &made.text)?;
    notes.extend(made.notes);
    notes.push(
        "the repository's configuration names a work tree, so only harmless settings were taken along".to_owned(),
    );
    Ok(notes)
}

/// Whether a configuration names a work tree; one that cannot be read may. Git looks for that in no file that is included.
fn names_a_work_tree(text: &[u8]) -> bool {
    parsed(text).is_none_or(|file| file.string("core.worktree").is_some())
}

/// A linked work tree, a submodule, or one whose parts lie elsewhere: its `.git` becomes a repository, with objects and refs as the user's
/// has them now, and HEAD as recorded.
fn rebuilt(
    clone: &Dir,
    workspace: Option<&Dir>,
    state: Option<&RepositoryState>,
    cx: &Context<'_>,
) -> Result<Vec<String>> {
    let Some(theirs) = origin(clone, workspace) else {
        return without(clone, "the repository that it belongs to cannot be found", cx);
    };
    if let Some(why) = &theirs.state.not_kept {
        return without(clone, why, cx);
    }
    let state = state.filter(|state| state.head.is_some() || state.branch_name().is_some()).unwrap_or(&theirs.state);
    // What is open of it stays readable until all is copied.
    let aside = format!(".git.ah-{}", std::process::id());
    rustix::fs::renameat(clone, ".git", clone, &*aside).map_err(|e| failed("put aside", ".git", e))?;
    let git = make_dir(clone.as_fd(), ".git")?;
    let git = git.as_fd();
    let own = make_dir(git, "objects")?;
    for name in ["heads", "tags"] {
        make_dir(make_dir(git, "refs")?.as_fd(), name)?;
    }
    for folder in &theirs.objects {
        objects::copy(folder.as_fd(), own.as_fd(), cx)?;
    }
    if !theirs.shallow.is_empty() {
        let ids: String = theirs.shallow.iter().map(|id| format!("{id}\n")).collect();
        put(git, "shallow", ids.as_bytes())?;
    }
    let mut notes = put_settings(git, Some(&theirs))?;
    notes.extend(put_refs(git, theirs.refs.as_deref())?);
    put_head(git, state, theirs.refs.as_deref())?;
    match theirs.index()? {
        Some((index, size)) if state.head == theirs.state.head && size <= ah_rules::LARGEST_INDEX => {
            objects::copy_file(index.as_fd(), git, "index", cx)?;
        }
        Some(_) => notes.push("the index was not taken along; `git reset` in the clone makes one from HEAD".to_owned()),
        None => {}
    }
    take_away(clone, &aside, cx)?;
    Ok(notes)
}

fn without(clone: &Dir, why: &str, cx: &Context<'_>) -> Result<Vec<String>> {
    take_away(clone, ".git", cx)?;
    Ok(vec![format!("the clone is a plain directory without .git: {why}")])
}

fn take_away(clone: &Dir, name: &str, cx: &Context<'_>) -> Result<()> {
    remove_entry(clone.as_fd(), name.as_bytes(), &Plain, cx)
        .map_err(|error| error.context("cannot take .git out of the clone"))
}

/// A folder that was found in another one, whatever it is called.
fn open_inner(folder: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty()).map_err(|e| failed("open", "a folder", e))
}

fn open_dir(at: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty()).map_err(|e| failed("open", name, e))
}

/// Whether it was there.
fn gone(removed: rustix::io::Result<()>, name: &str) -> Result<bool> {
    match removed {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(e) => Err(failed("remove", name, e)),
    }
}

fn failed(doing: &str, name: &str, e: Errno) -> Error {
    Error::from_io(format!("cannot {doing} {name} of the clone's repository"), &e.into())
}

#[cfg(test)]
mod tests;
