use std::cell::Cell;
use std::path::Path;

use ah_plugin_api::{Context, Dir, ErrorKind, Observer};

use super::own;
use crate::Repository;
use crate::testing::git;

thread_local! {
    /// How often this thread took something to the disk.
    pub(super) static SYNCED: Cell<u32> = const { Cell::new(0) };
}

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
    assert!(std::process::Command::new("cp").args(["-a", what, "copy"]).current_dir(temp).status().unwrap().success());
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
    assert!(own(&copy, None, Some(&state), &Context::quiet()).unwrap().is_empty());
    assert_eq!(git(&temp.path().join("copy"), &["symbolic-ref", "HEAD"]), "refs/heads/other");
    stands_alone(temp.path(), &head);
}

#[test]
fn nothing_but_ids_comes_into_the_shallow_file() {
    let temp = tempfile::tempdir().unwrap();
    let copy = made(temp.path(), "linked");
    let head = git(&temp.path().join("linked"), &["rev-parse", "HEAD"]);
    // A link that an agent put there which may not read the file itself.
    write(&temp.path().join("key"), &format!("secret\n{head}\nsecret {head}\n"));
    std::os::unix::fs::symlink(temp.path().join("key"), temp.path().join("main/.git/shallow")).unwrap();
    own(&copy, None, None, &Context::quiet()).unwrap();
    let shallow = std::fs::read_to_string(temp.path().join("copy/.git/shallow")).unwrap();
    assert_eq!(shallow, format!("{head}\n"));
}

#[test]
fn a_linked_work_tree_stays_on_the_branch_that_leads_to_another_one() {
    let temp = tempfile::tempdir().unwrap();
    made(temp.path(), "linked");
    let (linked, copy) = (temp.path().join("linked"), temp.path().join("copy"));
    let head = git(&linked, &["rev-parse", "HEAD"]);
    git(&linked, &["symbolic-ref", "refs/heads/alias", "refs/heads/other"]);
    git(&linked, &["symbolic-ref", "HEAD", "refs/heads/alias"]);
    let state = Repository::of(&Dir::open(&linked).unwrap()).unwrap().state;
    assert!(own(&Dir::open(&copy).unwrap(), None, Some(&state), &Context::quiet()).unwrap().is_empty());
    assert_eq!(git(&copy, &["symbolic-ref", "--no-recurse", "HEAD"]), "refs/heads/alias");
    assert_eq!(git(&copy, &["symbolic-ref", "refs/heads/alias"]), "refs/heads/other");
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
    let notes = own(&copy, None, Some(&state), &Context::quiet()).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("git reset"), "{notes:?}");
    git(&temp.path().join("copy"), &["reset", "-q"]);
    stands_alone(temp.path(), state.head.as_deref().unwrap());
}

#[test]
fn a_sparse_linked_work_tree_becomes_a_sparse_repository() {
    let temp = tempfile::tempdir().unwrap();
    made(temp.path(), "linked");
    git(&temp.path().join("linked"), &["sparse-checkout", "set", "--cone", "some"]);
    std::fs::remove_dir_all(temp.path().join("copy")).unwrap();
    let copied = std::process::Command::new("cp").args(["-a", "linked", "copy"]).current_dir(temp.path()).status();
    assert!(copied.unwrap().success());
    let copy = temp.path().join("copy");
    assert!(own(&Dir::open(&copy).unwrap(), None, None, &Context::quiet()).unwrap().is_empty());
    assert_eq!(git(&copy, &["sparse-checkout", "list"]), "some");
}

#[test]
fn borrowed_objects_become_its_own() {
    let temp = tempfile::tempdir().unwrap();
    let copy = made(temp.path(), "borrower");
    let head = git(&temp.path().join("borrower"), &["rev-parse", "HEAD"]);
    assert!(own(&copy, None, None, &Context::quiet()).unwrap().is_empty());
    assert!(!temp.path().join("copy/.git/objects/info/alternates").exists());
    stands_alone(temp.path(), &head);
}

#[test]
fn a_plain_repository_loses_its_locks_and_linked_work_trees_only() {
    let temp = tempfile::tempdir().unwrap();
    let copy = made(temp.path(), "main");
    let path = temp.path().join("copy");
    std::fs::create_dir_all(path.join(".git/refs/heads/topic/deep")).unwrap();
    let locks = ["index.lock", "ORIG_HEAD.lock", "gc.pid", "refs/heads/trunk.lock", "refs/heads/topic/deep/x.lock"];
    locks.iter().for_each(|lock| write(&path.join(".git").join(lock), ""));
    // A ref may be called so.
    std::fs::copy(path.join(".git/refs/heads/trunk"), path.join(".git/refs/heads/gc.pid")).unwrap();
    let notes = own(&copy, None, None, &Context::quiet()).unwrap();
    assert_eq!(notes.len(), 1);
    assert!(!path.join("trees/inside/.git").exists() && path.join("trees/inside/file").exists());
    assert_eq!(locks.map(|lock| path.join(".git").join(lock).exists()), [false; 5]);
    assert!(path.join(".git/refs/heads/gc.pid").exists());
    git(&path, &["update-ref", "refs/heads/trunk", "refs/heads/inside"]);
    assert!(!path.join(".git/worktrees").exists());
    // The user's are as they were.
    assert!(temp.path().join("main/trees/inside/.git").exists());
    git(&temp.path().join("main/trees/inside"), &["status"]);
    assert_eq!(git(&path, &["symbolic-ref", "HEAD"]), "refs/heads/trunk");
}

#[test]
fn what_was_changed_is_on_disk_and_a_plain_repository_costs_nothing() {
    // A power cut that brings the raw copy back is tried where a filesystem makes one (Btrfs).
    for what in ["linked", "borrower", "main"] {
        let temp = tempfile::tempdir().unwrap();
        let copy = made(temp.path(), what);
        let git = temp.path().join("copy/.git");
        let synced = |expected: u32, why: &str| {
            SYNCED.set(0);
            own(&copy, None, None, &Context::quiet()).unwrap();
            assert_eq!(SYNCED.get(), expected, "{what}: {why}");
        };
        synced(1, "as it was copied");
        synced(0, "it stands on its own");
        write(&git.join("index.lock"), "");
        synced(1, "a lock");
        write(&git.join("config.worktree"), "[core]\n\tworktree = /\n");
        synced(1, "a configured work tree");
        std::fs::create_dir_all(git.join("objects/info")).unwrap();
        write(&git.join("objects/info/alternates"), "/nowhere/objects\n");
        synced(1, "what cannot be made whole");
        synced(0, "no repository");
    }
}

#[test]
fn what_leads_out_is_cut() {
    let temp = tempfile::tempdir().unwrap();
    let copy = made(temp.path(), "main");
    let path = temp.path().join("copy");
    git(&path, &["config", "core.worktree", temp.path().join("main").to_str().unwrap()]);
    let notes = own(&copy, None, None, &Context::quiet()).unwrap();
    assert!(notes.iter().any(|note| note.contains("work tree")), "{notes:?}");
    assert_eq!(git(&path, &["rev-parse", "--show-toplevel"]), path.canonicalize().unwrap().to_str().unwrap());
    // A repository that borrows from what is gone cannot be made whole.
    write(&path.join(".git/objects/info/alternates"), "/nowhere/objects\n");
    let notes = own(&copy, None, None, &Context::quiet()).unwrap();
    assert!(notes[0].contains("/nowhere"), "{notes:?}");
    assert!(!path.join(".git").exists() && path.join("file").exists());
    // And without any there is nothing to do.
    assert!(own(&copy, None, None, &Context::quiet()).unwrap().is_empty());
}

#[test]
fn a_common_directory_elsewhere_is_cut() {
    let temp = tempfile::tempdir().unwrap();
    let copy = made(temp.path(), "main");
    let (path, main) = (temp.path().join("copy"), temp.path().join("main"));
    std::fs::remove_dir_all(path.join("trees")).unwrap();
    let heads = || git(&main, &["for-each-ref"]);
    let before = heads();
    write(&path.join(".git/commondir"), &format!("{}\n", main.join(".git").display()));
    let state = Repository::of(&Dir::open(&main).unwrap()).unwrap().state;
    own(&copy, None, Some(&state), &Context::quiet()).unwrap();
    git(&path, &["branch", "evil"]);
    assert_eq!(heads(), before);
    assert!(!path.join(".git/commondir").exists());
    let head = git(&main, &["rev-parse", "HEAD"]);
    stands_alone(temp.path(), &head);
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
        own(&copy, None, Some(&state), &Context::quiet()).unwrap();
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
    own(&copy, None, None, &Context::quiet()).unwrap();
    assert_eq!(git(&path, &["rev-parse", "--show-toplevel"]), path.canonicalize().unwrap().to_str().unwrap());
    // What leads nowhere stays: a sparse checkout's settings, say.
    write(&path.join(".git/config.worktree"), "[core]\n\tsparseCheckout = false\n");
    assert!(own(&copy, None, None, &Context::quiet()).unwrap().is_empty());
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
        let notes = own(&copy, None, None, &Context::quiet()).unwrap();
        assert!(notes.len() == 1 && notes[0].contains("without .git"), "{notes:?}");
        assert!(!path.join(".git").exists());
        let standing = Repository::standing(&copy);
        assert!(standing.is_none(), "{standing:?}");
    }
}

/// What a path in `.git` is relative to is where the workspace is, wherever its clone was put.
#[test]
fn relative_ways_lead_on_from_the_workspace() {
    let temp = tempfile::tempdir().unwrap();
    made(temp.path(), "borrower");
    let top = temp.path().join("top");
    std::fs::create_dir(&top).unwrap();
    git(&top, &["init", "-q"]);
    git(&top, &["-c", "protocol.file.allow=always", "submodule", "add", "-q", "../main", "deep/sub"]);
    let borrower = temp.path().join("borrower");
    write(&borrower.join(".git/objects/info/alternates"), "../../../main/.git/objects\n");
    for workspace in [top.join("deep/sub"), borrower] {
        let way = std::fs::read_to_string(workspace.join(".git")).unwrap_or_else(|_| "a folder".into());
        let place = temp.path().join("elsewhere/for/clones");
        std::fs::create_dir_all(&place).unwrap();
        let copy = place.join("copy");
        let cp = std::process::Command::new("cp").arg("-a").args([&workspace, &copy]).status().unwrap();
        assert!(cp.success());
        let head = git(&workspace, &["rev-parse", "HEAD"]);
        let (clone, workspace) = (Dir::open(&copy).unwrap(), Dir::open(&workspace).unwrap());
        let state = Repository::of(&workspace).unwrap().state;
        let notes = own(&clone, Some(&workspace), Some(&state), &Context::quiet()).unwrap();
        assert!(notes.is_empty(), "{way}: {notes:?}");
        assert!(copy.join(".git").is_dir() && !copy.join(".git/objects/info/alternates").exists(), "{way}");
        std::fs::rename(temp.path().join("main"), temp.path().join("away")).unwrap();
        assert_eq!(git(&copy, &["rev-parse", "HEAD"]), head);
        git(&copy, &["fsck", "--full", "--no-dangling"]);
        assert_eq!(git(&copy, &["status", "--porcelain"]), "");
        std::fs::rename(temp.path().join("away"), temp.path().join("main")).unwrap();
        std::fs::remove_dir_all(temp.path().join("elsewhere")).unwrap();
    }
}

/// Nobody may keep the helper busy with what their `.git` says of linked work trees, least of all when they are gone.
#[test]
fn long_paths_of_linked_work_trees_are_passed_over_and_whoever_asks_may_stop() {
    let temp = tempfile::tempdir().unwrap();
    let copy = made(temp.path(), "main");
    let trees = temp.path().join("copy/.git/worktrees");
    let cancelled = || own(&copy, None, None, &Context::new(&Gone)).unwrap_err().kind;
    assert_eq!(cancelled(), ErrorKind::Cancelled);
    assert!(trees.exists());
    // 64 KiB that lead to the work tree in the end.
    let long = format!("{}/trees/inside/.git\n", "/d".repeat(32_000));
    write(&trees.join("inside/gitdir"), &long);
    let notes = own(&copy, None, None, &Context::quiet()).unwrap();
    // Had it been followed, it would have been found.
    assert!(notes[0].contains("does not work in them"), "{notes:?}");
}

/// Somebody who does not wait any more.
struct Gone;

impl Observer for Gone {
    fn cancelled(&self) -> bool {
        true
    }
}

#[test]
fn a_linked_work_tree_is_found_by_the_end_of_its_path() {
    for leads in ["/wherever/it/was/trees/inside/.git", "../../../trees/inside/.git", "/trees/inside/.git\n"] {
        let temp = tempfile::tempdir().unwrap();
        let copy = made(temp.path(), "main");
        let path = temp.path().join("copy");
        write(&path.join(".git/worktrees/inside/gitdir"), leads);
        own(&copy, None, None, &Context::quiet()).unwrap();
        assert!(!path.join("trees/inside/.git").exists(), "{leads}");
    }
}

#[test]
fn a_linked_work_tree_of_any_name_is_found() {
    use std::os::unix::ffi::OsStrExt;
    let temp = tempfile::tempdir().unwrap();
    let copy = made(temp.path(), "main");
    let path = temp.path().join("copy");
    let (trees, name) = (path.join(".git/worktrees"), std::ffi::OsStr::from_bytes(b"caf\xe9"));
    std::fs::rename(trees.join("inside"), trees.join(name)).unwrap();
    let leads = [b"gitdir: ", trees.join(name).as_os_str().as_bytes(), b"\n"].concat();
    std::fs::write(path.join("trees/inside/.git"), leads).unwrap();
    own(&copy, None, None, &Context::quiet()).unwrap();
    assert!(!path.join("trees/inside/.git").exists() && path.join("trees/inside/file").exists());
}
