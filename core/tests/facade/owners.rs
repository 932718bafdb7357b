//! Whose `.git` above a directory makes it part of a workspace.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use ah_core::{Access, Settings};

use crate::lab::Lab;

/// Two users that the system does not know.
const THEY: u32 = 12_345;
const OTHERS: u32 = 12_346;

fn give(path: &Path, owner: u32) {
    chown(path, Some(owner), Some(owner)).unwrap();
}

/// `shared`, in which everybody may write, with a directory `mine` in it; none: this cannot be made here.
fn shared(lab: &Lab) -> Option<(PathBuf, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
        eprintln!("skipped: needs root");
        return None;
    }
    let shared = lab.top.join("shared");
    fs::create_dir_all(shared.join("mine/deep")).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    Some((shared.clone(), shared.join("mine")))
}

#[test]
fn a_strangers_git_above_makes_no_workspace_and_is_told_of() {
    let lab = Lab::new();
    let Some((shared, mine)) = shared(&lab) else { return };
    let git = shared.join(".git");
    fs::write(&git, "").unwrap();
    give(&git, THEY);
    let engine = lab.engine();
    assert_eq!(engine.root_of(&mine.join("deep")).unwrap(), mine.join("deep"));
    let notices = engine.take_notices();
    assert!(notices.len() == 1 && notices[0].message.contains("12345"), "{notices:?}");
    assert!(notices[0].hint.as_ref().unwrap().contains(shared.to_str().unwrap()), "{notices:?}");
    // Nor does it hide a repository of one's own further up, or a workspace.
    fs::create_dir(lab.top.join(".git")).unwrap();
    assert_eq!(engine.root_of(&mine).unwrap(), lab.top);
    fs::remove_dir(lab.top.join(".git")).unwrap();
    assert_eq!(engine.workspace(&mine, Access::Create).unwrap().root(), mine);
    drop(engine.take_notices());
    assert_eq!(engine.root_of(&mine.join("deep")).unwrap(), mine);
    assert!(engine.take_notices().is_empty());
    // Their directory may have anybody's file in it by that name: a link to one, say.
    give(&git, 0);
    give(&shared, THEY);
    fs::create_dir(shared.join("other")).unwrap();
    assert_eq!(engine.root_of(&shared.join("other")).unwrap(), shared.join("other"));
    // Who names the top means it, and it is found from below from then on.
    assert_eq!(engine.workspace(&shared, Access::Create).unwrap().root(), shared);
    assert_eq!(engine.root_of(&shared.join("other")).unwrap(), shared);
}

#[test]
fn root_finds_the_repository_of_the_user_in_whose_directory_it_is() {
    let lab = Lab::new();
    let Some((theirs, below)) = shared(&lab) else { return };
    fs::create_dir(theirs.join(".git")).unwrap();
    for path in [&theirs, &theirs.join(".git"), &below] {
        give(path, THEY);
    }
    assert_eq!(lab.engine().root_of(&below).unwrap(), theirs);
    // What root has made in it is root's: by `sudo`, it is still in the repository of who became root.
    assert_eq!(lab.engine().root_of(&below.join("deep")).unwrap(), below.join("deep"));
    let by_sudo = |user| Settings { sudo_user: Some(user), ..lab.settings.clone() };
    let root = |user| ah_core::Engine::open(by_sudo(user)).unwrap().root_of(&below.join("deep")).unwrap();
    assert_eq!((root(THEY), root(OTHERS)), (theirs.clone(), below.join("deep")));
    give(&below, OTHERS);
    assert_eq!(lab.engine().root_of(&below).unwrap(), below);
    // One's own is found whosever the directory in it is.
    for path in [&theirs, &theirs.join(".git")] {
        give(path, 0);
    }
    assert_eq!(lab.engine().root_of(&below).unwrap(), theirs);
}
