//! The repository of a work tree that a filesystem cloned as it is (a writable snapshot): made to stand on its own.
//!
//! A clone of that kind holds a byte for byte copy of `.git`, which is right but for what leads out of it: objects borrowed from elsewhere, a
//! `.git` file or symlink that names a directory of the user's, symlinks in `.git`, linked work trees, a configured work tree, and locks of
//! a git that was at work at that moment.
//!
//! Not here: repositories further down in the clone. Finding them would take a walk of all of it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ah_plugin_api::{Context, Dir, Error, ErrorKind, RelPath, RepositoryState, Result};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::objects;
use crate::owner::as_owner;
use crate::repository::{CONFIG_LIMIT, Repository, SMALL, read_file};
use crate::write::{make_dir, put, put_head, put_refs};
use crate::{config, ignores_case};

/// What git leaves while it works; in a clone nobody will take it away.
const LOCKS: &[&str] = &["index.lock", "HEAD.lock", "config.lock", "packed-refs.lock", "shallow.lock", "gc.pid"];

/// Folders in a repository that lie deeper are not Git's.
const DEEPEST: usize = 48;

/// Makes the repository at the top of `clone` depend on nothing outside it. Gives notes for a person.
///
/// `state` is where the repository of the workspace that was cloned stood, as recorded with the snapshot. Root acts with the rights of the clone's owner. Does nothing where there is no `.git`, and next to nothing where it is a plain one.
///
/// # Errors
/// Those of the system. A repository that cannot be made whole is no error: its `.git` is taken away, and a note says why.
pub fn own(clone: &Dir, state: Option<&RepositoryState>, cx: &Context<'_>) -> Result<Vec<String>> {
    as_owner(clone, || cut_loose(clone, state, cx)).unwrap_or_else(|| {
        Err(Error::new(
            ErrorKind::PermissionDenied,
            "the clone's repository cannot be looked at with its owner's rights",
        ))
    })
}

fn cut_loose(clone: &Dir, state: Option<&RepositoryState>, cx: &Context<'_>) -> Result<Vec<String>> {
    let kind = match rustix::fs::statat(clone, ".git", AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => FileType::from_raw_mode(stat.st_mode),
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(e) => return Err(failed("look at", ".git", e)),
    };
    match kind {
        FileType::Directory if leads_out(open_dir(clone.as_fd(), ".git")?.as_fd(), false, DEEPEST)? => {
            rebuilt(clone, state, cx)
        }
        FileType::Directory => of_directory(clone, cx),
        FileType::RegularFile | FileType::Symlink => rebuilt(clone, state, cx),
        _ => Ok(Vec::new()),
    }
}

/// Whether a symlink below leads out of the repository, as `git-new-workdir` makes them. `objects`: whether this is the folder of objects,
/// whose files of one object each are not looked at: Git never changes one.
fn leads_out(folder: BorrowedFd<'_>, objects: bool, deepest: usize) -> Result<bool> {
    let entries = rustix::fs::Dir::read_from(folder).map_err(|e| failed("read", "a folder", e))?;
    for entry in entries.flatten() {
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
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let inner = rustix::fs::openat(folder, name, flags, Mode::empty())
                    .map_err(|e| failed("open", "a folder", e))?;
                if deepest == 0 || leads_out(inner.as_fd(), bytes == b"objects", deepest - 1)? {
                    return Ok(true);
                }
            }
            _ => {}
        }
    }
    Ok(false)
}

fn of_directory(clone: &Dir, cx: &Context<'_>) -> Result<Vec<String>> {
    let git = open_dir(clone.as_fd(), ".git")?;
    let mut notes = Vec::new();
    for lock in LOCKS {
        gone(rustix::fs::unlinkat(&git, *lock, AtFlags::empty()), lock)?;
    }
    let borrows = read_file(&git, "objects/info/alternates", CONFIG_LIMIT).ok().flatten().unwrap_or_default();
    if borrows.split(|&byte| byte == b'\n').any(|line| !line.is_empty() && line[0] != b'#') {
        let found = Repository::of(clone);
        let whole = found.as_ref().filter(|found| found.state.not_kept.is_none());
        let Some(found) = whole else {
            let why = found.and_then(|found| found.state.not_kept).unwrap_or_else(|| "it cannot be read".to_owned());
            return without(clone, &why);
        };
        let own = open_dir(git.as_fd(), "objects")?;
        for borrowed in found.objects.iter().skip(1) {
            objects::copy(borrowed.as_fd(), own.as_fd(), cx)?;
        }
        gone(rustix::fs::unlinkat(&own, "info/alternates", AtFlags::empty()), "info/alternates")?;
    }
    notes.extend(drop_work_trees(clone, git.as_fd())?);
    notes.extend(own_config(git.as_fd())?);
    Ok(notes)
}

/// Linked work trees are the user's: what the clone holds of those inside it become plain directories.
fn drop_work_trees(clone: &Dir, git: BorrowedFd<'_>) -> Result<Option<String>> {
    let Ok(trees) = open_dir(git, "worktrees") else { return Ok(None) };
    let entries = rustix::fs::Dir::read_from(&trees).map_err(|e| failed("read", "worktrees", e))?;
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().to_str() else { continue };
        let text = read_file(&trees, &format!("{name}/gitdir"), SMALL).ok().flatten().unwrap_or_default();
        // The path of its `.git` file, as it was in the workspace, wherever that was: the end of it is the path in the clone.
        let link: Vec<&[u8]> = text.trim_ascii_end().split(|&byte| byte == b'/').collect();
        let inside = (0..link.len()).filter_map(|first| RelPath::new(link[first..].join(&b'/')).ok());
        for path in inside {
            unlink_git_file(clone, &path, name)?;
        }
    }
    let path = format!("/proc/self/fd/{}/worktrees", git.as_raw_fd());
    std::fs::remove_dir_all(path).map_err(|e| Error::from_io("cannot take linked work trees out of the clone", &e))?;
    Ok(Some("linked work trees stay with the workspace: in the clone they are plain directories".to_owned()))
}

/// Removes the `.git` file at `link` in the clone if it is that of the linked work tree `name`.
fn unlink_git_file(clone: &Dir, link: &RelPath, name: &str) -> Result<()> {
    let (Some(parent), Some(b".git")) = (link.parent(), link.file_name()) else { return Ok(()) };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = parent.as_bytes().is_empty();
    let path: &[u8] = if top { b"." } else { parent.as_bytes() };
    let Ok(parent) = rustix::fs::openat2(clone, path, flags, Mode::empty(), resolve) else { return Ok(()) };
    let Ok(Some(text)) = read_file(&parent, ".git", SMALL) else { return Ok(()) };
    if !text.trim_ascii_end().ends_with(format!("/worktrees/{name}").as_bytes()) {
        return Ok(());
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
    let meta = gix::config::file::Metadata::from(gix::config::Source::Local);
    let parsed = gix::config::File::from_bytes_no_includes(text, meta, gix::config::file::init::Options::default());
    parsed.map_or(true, |file| file.string("core.worktree").is_some())
}

/// A linked work tree, a submodule, or one whose parts lie elsewhere: its `.git` becomes a repository, with objects and refs as the user's
/// has them now, and HEAD as recorded.
fn rebuilt(clone: &Dir, state: Option<&RepositoryState>, cx: &Context<'_>) -> Result<Vec<String>> {
    let Some(theirs) = Repository::of(clone) else {
        return without(clone, "the repository that it belongs to is gone");
    };
    if let Some(why) = &theirs.state.not_kept {
        return without(clone, why);
    }
    let state = state.filter(|state| state.head.is_some() || state.branch.is_some()).unwrap_or(&theirs.state);
    // What is open of it stays readable until all is copied.
    let aside = format!(".git.ah-{}", std::process::id());
    rustix::fs::renameat(clone, ".git", clone, &*aside).map_err(|e| failed("put aside", ".git", e))?;
    let git = make_dir(clone.as_fd(), ".git")?;
    let git = git.as_fd();
    let own = make_dir(git, "objects")?;
    let info = make_dir(git, "info")?;
    for name in ["heads", "tags"] {
        make_dir(make_dir(git, "refs")?.as_fd(), name)?;
    }
    for folder in &theirs.objects {
        objects::copy(folder.as_fd(), own.as_fd(), cx)?;
    }
    if let Some(shallow) = &theirs.shallow {
        put(git, "shallow", shallow)?;
    }
    for name in ["exclude", "attributes"] {
        if let Some(text) = theirs.common_file(&format!("info/{name}"), CONFIG_LIMIT)? {
            put(info.as_fd(), name, &text)?;
        }
    }
    let made = config(theirs.common_file("config", CONFIG_LIMIT)?.as_slice(), ignores_case(git));
    put(git, "config", &made.text)?;
    let mut notes = made.notes;
    if let Some(refs) = &theirs.refs {
        put_refs(git, refs)?;
    }
    put_head(git, state)?;
    match theirs.index()? {
        Some((index, size)) if state.head == theirs.state.head && size <= ah_rules::LARGEST_INDEX => {
            objects::copy_file(index.as_fd(), git, "index")?;
        }
        Some(_) => notes.push("the index was not taken along; `git reset` in the clone makes one from HEAD".to_owned()),
        None => {}
    }
    take_away(clone, &aside)?;
    Ok(notes)
}

fn without(clone: &Dir, why: &str) -> Result<Vec<String>> {
    take_away(clone, ".git")?;
    Ok(vec![format!("the clone is a plain directory without .git: {why}")])
}

fn take_away(clone: &Dir, name: &str) -> Result<()> {
    let path = format!("/proc/self/fd/{}/{name}", clone.as_fd().as_raw_fd());
    let removed = match std::fs::symlink_metadata(&path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(&path),
        _ => std::fs::remove_file(&path),
    };
    removed.map_err(|e| Error::from_io("cannot take .git out of the clone", &e))
}

fn open_dir(at: BorrowedFd<'_>, name: &str) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(at, name, flags, Mode::empty()).map_err(|e| failed("open", name, e))
}

fn gone(removed: rustix::io::Result<()>, name: &str) -> Result<()> {
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(failed("remove", name, e)),
    }
}

fn failed(doing: &str, name: &str, e: Errno) -> Error {
    Error::from_io(format!("cannot {doing} {name} of the clone's repository"), &e.into())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ah_plugin_api::{Context, Dir};

    use super::own;
    use crate::Repository;
    use crate::testing::git;

    fn write(path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
    }

    /// A repository with two commits, and a copy of it or of its linked work tree, byte for byte.
    fn made(temp: &Path, what: &str) -> Dir {
        let main = temp.join("main");
        std::fs::create_dir(&main).unwrap();
        git(&main, &["init", "-q", "-b", "trunk"]);
        for text in ["one", "two"] {
            write(&main.join("file"), text);
            git(&main, &["add", "."]);
            git(&main, &["commit", "-q", "-m", text]);
        }
        match what {
            "linked" => git(&main, &["worktree", "add", "-q", "../linked", "-b", "other"]),
            "borrower" => git(temp, &["clone", "-q", "--shared", "main", "borrower"]),
            _ => git(&main, &["worktree", "add", "-q", "trees/inside", "-b", "inside"]),
        };
        assert!(
            std::process::Command::new("cp").args(["-a", what, "copy"]).current_dir(temp).status().unwrap().success()
        );
        Dir::open(temp.join("copy")).unwrap()
    }

    fn stands_alone(temp: &Path, expected_head: &str) {
        let copy = temp.join("copy");
        std::fs::rename(temp.join("main"), temp.join("away")).unwrap();
        assert_eq!(git(&copy, &["rev-parse", "HEAD"]), expected_head);
        git(&copy, &["fsck", "--full", "--no-dangling"]);
        assert_eq!(git(&copy, &["status", "--porcelain"]), "");
        assert!(copy.join(".git").symlink_metadata().unwrap().is_dir());
    }

    #[test]
    fn a_linked_work_tree_becomes_a_repository() {
        let temp = tempfile::tempdir().unwrap();
        let copy = made(temp.path(), "linked");
        let linked = temp.path().join("linked");
        let head = git(&linked, &["rev-parse", "HEAD"]);
        let state = Repository::of(&Dir::open(&linked).unwrap()).unwrap().state;
        assert!(own(&copy, Some(&state), &Context::quiet()).unwrap().is_empty());
        assert_eq!(git(&temp.path().join("copy"), &["symbolic-ref", "HEAD"]), "refs/heads/other");
        stands_alone(temp.path(), &head);
    }

    #[test]
    fn a_linked_work_tree_that_went_on_keeps_the_recorded_head() {
        let temp = tempfile::tempdir().unwrap();
        let copy = made(temp.path(), "linked");
        let linked = temp.path().join("linked");
        let state = Repository::of(&Dir::open(&linked).unwrap()).unwrap().state;
        write(&linked.join("file"), "three");
        git(&linked, &["commit", "-q", "-am", "three"]);
        let notes = own(&copy, Some(&state), &Context::quiet()).unwrap();
        assert!(notes.len() == 1 && notes[0].contains("git reset"), "{notes:?}");
        git(&temp.path().join("copy"), &["reset", "-q"]);
        stands_alone(temp.path(), state.head.as_deref().unwrap());
    }

    #[test]
    fn borrowed_objects_become_its_own() {
        let temp = tempfile::tempdir().unwrap();
        let copy = made(temp.path(), "borrower");
        let head = git(&temp.path().join("borrower"), &["rev-parse", "HEAD"]);
        assert!(own(&copy, None, &Context::quiet()).unwrap().is_empty());
        assert!(!temp.path().join("copy/.git/objects/info/alternates").exists());
        stands_alone(temp.path(), &head);
    }

    #[test]
    fn a_plain_repository_loses_its_locks_and_linked_work_trees_only() {
        let temp = tempfile::tempdir().unwrap();
        let copy = made(temp.path(), "main");
        let path = temp.path().join("copy");
        write(&path.join(".git/index.lock"), "");
        let notes = own(&copy, None, &Context::quiet()).unwrap();
        assert_eq!(notes.len(), 1);
        assert!(!path.join("trees/inside/.git").exists() && path.join("trees/inside/file").exists());
        assert!(!path.join(".git/index.lock").exists() && !path.join(".git/worktrees").exists());
        // The user's are as they were.
        assert!(temp.path().join("main/trees/inside/.git").exists());
        git(&temp.path().join("main/trees/inside"), &["status"]);
        assert_eq!(git(&path, &["symbolic-ref", "HEAD"]), "refs/heads/trunk");
    }

    #[test]
    fn what_leads_out_is_cut() {
        let temp = tempfile::tempdir().unwrap();
        let copy = made(temp.path(), "main");
        let path = temp.path().join("copy");
        git(&path, &["config", "core.worktree", temp.path().join("main").to_str().unwrap()]);
        let notes = own(&copy, None, &Context::quiet()).unwrap();
        assert!(notes.iter().any(|note| note.contains("work tree")), "{notes:?}");
        assert_eq!(git(&path, &["rev-parse", "--show-toplevel"]), path.canonicalize().unwrap().to_str().unwrap());
        // A repository that borrows from what is gone cannot be made whole.
        write(&path.join(".git/objects/info/alternates"), "/nowhere/objects\n");
        let notes = own(&copy, None, &Context::quiet()).unwrap();
        assert!(notes[0].contains("/nowhere"), "{notes:?}");
        assert!(!path.join(".git").exists() && path.join("file").exists());
        // And without any there is nothing to do.
        assert!(own(&copy, None, &Context::quiet()).unwrap().is_empty());
    }

    #[test]
    fn symlinks_that_lead_out_are_cut() {
        use std::os::unix::fs::symlink;
        for what in ["the repository", "parts of it"] {
            let temp = tempfile::tempdir().unwrap();
            let copy = made(temp.path(), "main");
            let (path, main) = (temp.path().join("copy"), temp.path().join("main"));
            std::fs::remove_dir_all(main.join(".git/worktrees")).unwrap();
            if what == "the repository" {
                std::fs::remove_dir_all(path.join(".git")).unwrap();
                symlink(main.join(".git"), path.join(".git")).unwrap();
            } else {
                for part in ["objects", "refs", "logs"] {
                    std::fs::remove_dir_all(path.join(".git").join(part)).unwrap();
                    symlink(main.join(".git").join(part), path.join(".git").join(part)).unwrap();
                }
            }
            let head = git(&main, &["rev-parse", "HEAD"]);
            let state = Repository::of(&Dir::open(&main).unwrap()).unwrap().state;
            own(&copy, Some(&state), &Context::quiet()).unwrap();
            // Whole or gone, but never the user's.
            if path.join(".git").symlink_metadata().is_ok() {
                write(&path.join("file"), "three");
                git(&path, &["commit", "-q", "-am", "three"]);
            }
            assert_eq!(git(&main, &["rev-parse", "HEAD"]), head, "{what}");
            let left: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".git.")), "{left:?}");
        }
    }

    #[test]
    fn a_work_tree_named_elsewhere_is_cut() {
        let temp = tempfile::tempdir().unwrap();
        let copy = made(temp.path(), "main");
        let (path, main) = (temp.path().join("copy"), temp.path().join("main"));
        let leads = format!("[core]\n\tworktree = {}\n", main.display());
        git(&path, &["config", "extensions.worktreeConfig", "true"]);
        write(&path.join(".git/config.worktree"), &leads);
        assert_ne!(git(&path, &["rev-parse", "--show-toplevel"]), path.canonicalize().unwrap().to_str().unwrap());
        own(&copy, None, &Context::quiet()).unwrap();
        assert_eq!(git(&path, &["rev-parse", "--show-toplevel"]), path.canonicalize().unwrap().to_str().unwrap());
        // What leads nowhere stays: a sparse checkout's settings, say.
        write(&path.join(".git/config.worktree"), "[core]\n\tsparseCheckout = false\n");
        assert!(own(&copy, None, &Context::quiet()).unwrap().is_empty());
        assert!(path.join(".git/config.worktree").exists());
    }

    #[test]
    fn root_copies_nothing_that_the_clones_owner_could_not_read() {
        if !nix::unistd::geteuid().is_root() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
            eprintln!("skipped: needs root");
            return;
        }
        let temp = tempfile::tempdir().unwrap();
        let only_root = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let copy = made(temp.path(), "main");
        std::fs::set_permissions(temp.path().join("main"), only_root).unwrap();
        let path = temp.path().join("copy");
        let secret = temp.path().join("main/.git");
        for borrowed in [false, true] {
            let _ = std::fs::remove_dir_all(path.join(".git"));
            if borrowed {
                git(&path, &["init", "-q"]);
                write(&path.join(".git/objects/info/alternates"), &format!("{}\n", secret.join("objects").display()));
            } else {
                write(&path.join(".git"), &format!("gitdir: {}\n", secret.display()));
            }
            let theirs = std::process::Command::new("chown").args(["-R", "65534:65534"]).arg(&path).status().unwrap();
            assert!(theirs.success());
            let notes = own(&copy, None, &Context::quiet()).unwrap();
            assert!(notes.len() == 1 && notes[0].contains("without .git"), "{notes:?}");
            assert!(!path.join(".git").exists());
            let standing = Repository::standing(&copy);
            assert!(standing.is_none(), "{standing:?}");
        }
    }
}
