//! What comes along of a repository's own files, and what is said where it does not.

#![allow(clippy::unwrap_used)]

mod common;

use ah_plugin_api::Dir;
use common::{Bench, git};

fn repository() -> Bench {
    let bench = Bench::new();
    let work = bench.workspace.path();
    git(work, &["init", "-q", "-b", "main"]);
    bench.write("kept/f", "1");
    bench.write("other/f", "2");
    git(work, &["add", "."]);
    git(work, &["commit", "-q", "-m", "first"]);
    bench
}

#[test]
fn that_there_are_too_many_refs_to_take_along_is_said() {
    let bench = repository();
    assert_eq!(bench.clone(&bench.snapshot(), "few").notes, Vec::<String>::new());
    let head = git(bench.workspace.path(), &["rev-parse", "HEAD"]);
    let lines: Vec<_> = (0..80_000).map(|n| format!("{} refs/tags/t{n:05}\n", head.trim())).collect();
    bench.write(".git/packed-refs", lines.concat());
    let clone = bench.clone(&bench.snapshot(), "many");
    assert!(clone.notes.len() == 1 && clone.notes[0].contains("too many"), "{:?}", clone.notes);
    assert_eq!(git(&clone.path, &["rev-parse", "main"]), head);
}

/// Git keeps what says so in `config.worktree`, and of a linked work tree both beside its HEAD.
#[test]
fn a_clone_of_a_sparse_checkout_is_sparse() {
    for linked in [false, true] {
        let mut bench = repository();
        if linked {
            let main = bench.temp.path().join("main");
            std::fs::rename(bench.workspace.path(), &main).unwrap();
            git(&main, &["worktree", "add", "-q", "../work"]);
            bench.workspace = Dir::open(bench.temp.path().join("work")).unwrap();
        }
        let work = bench.workspace.path();
        let list = |dir| git(dir, &["sparse-checkout", "list"]);
        git(work, &["sparse-checkout", "set", "--cone", "kept"]);
        let clone = bench.clone(&bench.snapshot(), "sparse");
        assert_eq!(list(&clone.path), "kept\n", "linked: {linked}");
        assert_eq!(git(&clone.path, &["status", "--porcelain"]), "");
        git(&clone.path, &["sparse-checkout", "disable"]);
        assert!(clone.path.join("other/f").exists());
        assert_eq!(list(work), "kept\n");

        // Not where Git would not read it.
        git(work, &["config", "extensions.worktreeConfig", "false"]);
        let clone = bench.clone(&bench.snapshot(), "full");
        assert!(!common::try_git(&clone.path, &["sparse-checkout", "list"]).status.success());
    }
}

/// What is left of a branch's old name when it was renamed, for those who still use that.
#[test]
fn a_clone_is_on_the_branch_that_leads_to_another_one() {
    let bench = repository();
    let work = bench.workspace.path();
    git(work, &["symbolic-ref", "refs/heads/master", "refs/heads/main"]);
    git(work, &["symbolic-ref", "refs/heads/old", "refs/heads/master"]);
    git(work, &["symbolic-ref", "HEAD", "refs/heads/old"]);
    let head = git(work, &["rev-parse", "HEAD"]);
    let clone = bench.clone(&bench.snapshot(), "symbolic");
    assert_eq!(clone.notes, Vec::<String>::new());
    let refs = |dir| git(dir, &["for-each-ref", "--format=%(refname) %(symref) %(objectname)"]);
    assert_eq!(refs(&clone.path), refs(work));
    assert_eq!(git(&clone.path, &["symbolic-ref", "--no-recurse", "HEAD"]), "refs/heads/old\n");
    assert_eq!(git(&clone.path, &["status", "--porcelain"]), "");
    git(&clone.path, &["commit", "-q", "--allow-empty", "-m", "second"]);
    assert_eq!(git(&clone.path, &["rev-parse", "main^"]), head);
    assert_eq!(git(work, &["rev-parse", "HEAD"]), head);
}
