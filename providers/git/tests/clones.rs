//! Writable clones, with and without a repository, against what real Git says of them.

#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use ah_plugin_api::{Context, DestroyRequest, Dir, ErrorKind, FileName, Place, Provider, ReclaimRequest};
use common::{Bench, as_ordinary_user, assert_untouched, fingerprint, git, listing, try_git};

#[test]
fn what_its_caller_did_not_live_to_hear_of_goes_by_its_name() {
    let bench = Bench::new();
    bench.write("a", "1");
    let snapshot = bench.snapshot();
    let (clone, kept) = (bench.clone(&snapshot, "c1"), bench.clone(&snapshot, "c2"));
    let (view, shown) = (bench.mount(&snapshot, "v1"), bench.mount(&snapshot, "v2"));
    std::fs::create_dir(bench.target.path().join("someone-elses")).unwrap();
    let names = ["c1", "v1", "someone-elses", "nothing"].map(|name| FileName::new(name).unwrap());
    let request = ReclaimRequest { auto: false, forgotten: names.to_vec() };
    let place = bench.place().with_target(&bench.target);
    let done = bench.provider.reclaim(&place, &request, &Context::quiet()).unwrap();
    assert!(!clone.path.exists() && !view.path.exists(), "{done:?}");
    assert!(kept.path.join("a").exists() && shown.path.join("a").exists());
    assert!(bench.target.path().join("someone-elses").exists());
    bench.unmount(&shown).unwrap();
}

/// A repository with a history, a file each staged, changed, deleted, untracked and ignored.
fn repository(bench: &Bench) {
    let work = bench.workspace.path();
    git(work, &["init", "-q", "-b", "main"]);
    git(work, &["config", "user.name", "Local \"Name\""]);
    git(work, &["config", "alias.st", "!touch /tmp/never"]);
    git(work, &["remote", "add", "origin", "https://example.invalid/x.git"]);
    bench.write(".gitignore", "*.log\n/target/\n");
    for file in ["kept", "changed", "deleted", "staged", "dir/inner"] {
        bench.write(file, format!("{file} 1\n"));
    }
    git(work, &["add", "."]);
    git(work, &["commit", "-q", "-m", "first"]);
    bench.write("kept2", "second\n");
    git(work, &["add", "."]);
    git(work, &["commit", "-q", "-m", "second"]);
    git(work, &["tag", "-a", "v1", "-m", "one"]);
    git(work, &["update-ref", "refs/remotes/origin/main", "HEAD~1"]);
    git(work, &["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main"]);
    git(work, &["checkout", "-q", "-b", "feature/x"]);
    bench.write("changed", "changed 2\n");
    bench.write("staged", "staged 2\n");
    git(work, &["add", "staged"]);
    bench.write("staged", "staged 3\n");
    std::fs::remove_file(bench.work("deleted")).unwrap();
    bench.write("untracked", "u\n");
    bench.write("target/big", "ignored\n");
    bench.write(".git/info/exclude", "*.tmp\n");
}

fn status(dir: &Path) -> String {
    git(dir, &["status", "--porcelain=v2", "--branch", "--untracked-files=all"])
}

#[test]
fn a_plain_clone_is_exact_writable_and_on_its_own() {
    let bench = Bench::new();
    bench.write("a/b", "1");
    bench.write("c", "2");
    std::fs::set_permissions(bench.work("c"), std::fs::Permissions::from_mode(0o1755)).unwrap();
    let before = listing(bench.workspace.path());
    let snapshot = bench.snapshot();
    let clone = bench.clone(&snapshot, "c1");
    assert_eq!(listing(&clone.path), before);
    assert!(!clone.path.join(".git").exists());
    std::fs::write(clone.path.join("a/b"), "changed in the clone").unwrap();
    assert_eq!(listing(bench.workspace.path()), before);
    let view = bench.mount(&snapshot, "v");
    assert_eq!(std::fs::read(view.path.join("a/b")).unwrap(), b"1");
    assert_eq!(bench.try_clone(&snapshot, "c1").err().unwrap().kind, ErrorKind::AlreadyExists);

    // A clone outlives its snapshot.
    bench.destroy(&DestroyRequest::Snapshot(snapshot.reference)).unwrap();
    bench.provider.reclaim(&bench.place(), &ReclaimRequest::default(), &Context::quiet()).unwrap();
    assert_eq!(std::fs::read(clone.path.join("a/b")).unwrap(), b"changed in the clone");
    let gone = DestroyRequest::Clone(clone.reference.clone());
    bench.destroy(&gone).unwrap();
    assert!(!clone.path.exists());
    bench.destroy(&gone).unwrap();
    std::fs::create_dir(&clone.path).unwrap();
    bench.destroy(&gone).unwrap();
    assert!(clone.path.exists());
}

/// Its remover was killed before anything happened to it.
#[test]
fn a_clone_that_bears_its_name_is_whole_though_its_removal_began() {
    let bench = Bench::new();
    bench.write("a", "1");
    let snapshot = bench.snapshot();
    let clone = bench.clone(&snapshot, "c1");
    std::fs::write(clone.path.join("work"), "not saved anywhere").unwrap();
    let record = bench.store.path().join("views").join(clone.reference.as_str());
    let mut lines = std::fs::read_to_string(&record).unwrap();
    lines.push_str("\"removing\"\n");
    std::fs::write(&record, lines).unwrap();
    let reclaim = |forgotten: Vec<FileName>| {
        let request = ReclaimRequest { forgotten, ..ReclaimRequest::default() };
        bench.provider.reclaim(&bench.place(), &request, &Context::quiet()).unwrap().actions
    };
    // What it does to packs is not looked at.
    let reclaim =
        |forgotten| -> Vec<_> { reclaim(forgotten).into_iter().filter(|done| done.contains("clone")).collect() };
    assert_eq!(reclaim(Vec::new()), Vec::<String>::new());
    assert_eq!(std::fs::read(clone.path.join("work")).unwrap(), b"not saved anywhere");
    // It can still be taken away by its reference, and by its name where its maker never heard of it.
    let other = bench.clone(&snapshot, "c2");
    bench.destroy(&DestroyRequest::Clone(clone.reference)).unwrap();
    assert!(!clone.path.exists());
    assert_eq!(reclaim(vec![FileName::new("c2").unwrap()]).len(), 1);
    assert!(!other.path.exists());
}

/// A file of anybody's with these bits would run as who copied it, for whoever reaches the copy.
#[test]
fn no_set_id_programs_are_made_where_others_reach_them() {
    let bench = Bench::new();
    let is_root = rustix::process::geteuid().is_root();
    let set = |path: &str, mode: u32| {
        std::fs::set_permissions(bench.work(path), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    for (name, mode) in [("u", 0o4755), ("g", 0o2755), ("both", 0o6711), ("sticky", 0o1755)] {
        bench.write(name, "x");
        set(name, mode);
    }
    bench.write("d/x", "x");
    set("d", 0o2755);
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let snapshot = bench.snapshot();
    std::fs::set_permissions(bench.temp.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let clone = bench.clone(&snapshot, "c");
    let without = if is_root { 0o6000 } else { 0 };
    for name in ["u", "g", "both", "sticky"] {
        assert_eq!(mode(clone.path.join(name)), mode(bench.work(name)) & !without, "{name}");
    }
    assert_eq!(mode(clone.path.join("d")), 0o2755);

    // A view behind a closed door, and under a mount, has the exact modes; one that others can reach without it has not.
    let view = bench.mount(&snapshot, "private");
    let as_captured = if view.read_only_mount { 0 } else { without | 0o222 };
    assert_eq!(mode(view.path.join("both")), 0o6711 & !as_captured);
    std::fs::set_permissions(bench.temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let view = bench.mount(&snapshot, "open");
    let taken_off = 0o6000 | if view.read_only_mount { 0 } else { 0o222 };
    assert_eq!(mode(view.path.join("both")), 0o6711 & !taken_off);
    assert_eq!(mode(bench.clone(&snapshot, "reachable").path.join("both")), 0o711);
}

#[test]
fn a_clone_whose_folder_is_elsewhere_is_not_forgotten() {
    let bench = Bench::new();
    bench.write("f", "x");
    let clone = bench.clone(&bench.snapshot(), "c");
    let gone = DestroyRequest::Clone(clone.reference.clone());
    let destroy = || bench.provider.destroy(&Place::new(&bench.store), &gone, &Context::quiet());
    // Another folder is there instead, as below the mount point of a disk that is not mounted.
    let (target, aside) = (bench.target.path().to_owned(), bench.temp.path().join("aside"));
    std::fs::rename(&target, &aside).unwrap();
    std::fs::create_dir(&target).unwrap();
    let refused = destroy().unwrap_err();
    assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
    assert!(refused.hint.is_some());
    std::fs::remove_dir(&target).unwrap();
    std::fs::rename(&aside, &target).unwrap();
    destroy().unwrap();
    assert!(!clone.path.exists());

    // Really gone.
    let clone = bench.clone(&bench.snapshot(), "d");
    std::fs::rename(&target, &aside).unwrap();
    let gone = DestroyRequest::Clone(clone.reference);
    bench.provider.destroy(&Place::new(&bench.store), &gone, &Context::quiet()).unwrap();
    std::fs::rename(&aside, &target).unwrap();
}

#[test]
fn what_was_in_progress_goes_on_in_the_clone_or_is_said() {
    let bench = Bench::new();
    let work = bench.workspace.path();
    bench.write("f", "base\n");
    for args in [&["init", "-q", "-b", "main"][..], &["add", "."], &["commit", "-q", "-m", "base"]] {
        git(work, args);
    }
    git(work, &["checkout", "-q", "-b", "side"]);
    bench.write("f", "side\n");
    git(work, &["commit", "-q", "-a", "-m", "side"]);
    git(work, &["checkout", "-q", "main"]);
    bench.write("f", "main\n");
    git(work, &["commit", "-q", "-a", "-m", "main"]);

    assert!(!try_git(work, &["merge", "side"]).status.success());
    let clone = bench.clone(&bench.snapshot(), "merge");
    assert_eq!(git(&clone.path, &["status"]), git(work, &["status"]));
    assert_eq!(clone.notes, Vec::<String>::new());
    std::fs::write(clone.path.join("f"), "both\n").unwrap();
    git(&clone.path, &["commit", "-q", "-a", "--no-edit"]);
    assert_eq!(git(&clone.path, &["rev-list", "--parents", "-n", "1", "HEAD"]).split_whitespace().count(), 3);
    git(work, &["merge", "--abort"]);

    assert!(!try_git(work, &["cherry-pick", "side"]).status.success());
    let clone = bench.clone(&bench.snapshot(), "pick");
    assert_eq!(git(&clone.path, &["status"]), git(work, &["status"]));
    git(&clone.path, &["cherry-pick", "--abort"]);
    git(work, &["cherry-pick", "--abort"]);

    assert!(!try_git(work, &["rebase", "side"]).status.success());
    let clone = bench.clone(&bench.snapshot(), "rebase");
    assert_eq!(clone.notes.len(), 1, "{:?}", clone.notes);
    assert!(clone.notes[0].contains("a rebase"));
    git(work, &["rebase", "--abort"]);
    assert_eq!(bench.clone(&bench.snapshot(), "done").notes, Vec::<String>::new());
}

#[test]
fn a_clone_that_was_replaced_by_somebody_is_left_alone() {
    let bench = Bench::new();
    bench.write("a", "1");
    let clone = bench.clone(&bench.snapshot(), "c");
    std::fs::rename(&clone.path, bench.target.path().join("moved")).unwrap();
    std::fs::create_dir(&clone.path).unwrap();
    std::fs::write(clone.path.join("precious"), "x").unwrap();
    bench.destroy(&DestroyRequest::Clone(clone.reference)).unwrap();
    assert!(clone.path.join("precious").exists());
    assert!(bench.target.path().join("moved/a").exists());
}

#[test]
fn git_sees_in_the_clone_what_it_saw_in_the_workspace() {
    let bench = Bench::new();
    repository(&bench);
    let work = bench.workspace.path();
    let (seen, log) = (status(work), git(work, &["log", "--format=%H %s", "HEAD"]));
    let staged = git(work, &["diff", "--cached"]);
    let untouched = fingerprint(work);
    let snapshot = bench.snapshot();
    let clone = bench.clone(&snapshot, "c");
    assert_untouched(&untouched, &fingerprint(work), true);

    assert_eq!(status(&clone.path), seen);
    assert_eq!(git(&clone.path, &["log", "--format=%H %s", "HEAD"]), log);
    assert_eq!(git(&clone.path, &["diff", "--cached"]), staged);
    assert_eq!(git(&clone.path, &["symbolic-ref", "HEAD"]), "refs/heads/feature/x\n");
    assert_eq!(git(&clone.path, &["for-each-ref"]), git(work, &["for-each-ref"]));
    assert_eq!(git(&clone.path, &["config", "user.name"]), "Local \"Name\"\n");
    assert_eq!(git(&clone.path, &["remote", "get-url", "origin"]), "https://example.invalid/x.git\n");
    assert!(!try_git(&clone.path, &["config", "alias.st"]).status.success());
    assert_eq!(std::fs::read_to_string(clone.path.join(".git/info/exclude")).unwrap(), "*.tmp\n");
    assert!(!clone.path.join(".git/objects/info/alternates").exists());
    git(&clone.path, &["fsck", "--strict", "--no-dangling"]);

    // Work goes on in it, and the user's repository does not notice.
    git(&clone.path, &["add", "-A"]);
    git(&clone.path, &["commit", "-q", "-m", "in the clone"]);
    git(&clone.path, &["gc", "-q", "--prune=now"]);
    git(&clone.path, &["fsck", "--strict"]);
    git(&clone.path, &["checkout", "-q", "HEAD~2"]);
    assert_untouched(&untouched, &fingerprint(work), false);
    git(work, &["fsck", "--strict"]);
}

#[test]
fn a_clone_outlives_the_users_repository() {
    let bench = Bench::new();
    repository(&bench);
    let work = bench.workspace.path();
    let seen = status(work);
    let snapshot = bench.snapshot();
    git(work, &["commit", "-q", "-a", "-m", "third"]);
    git(work, &["checkout", "-q", "--orphan", "other"]);
    git(work, &["branch", "-q", "-D", "feature/x", "main"]);
    git(work, &["reflog", "expire", "--expire=now", "--all"]);
    git(work, &["gc", "-q", "--prune=now"]);
    let first = bench.clone(&snapshot, "first");
    assert_eq!(status(&first.path), seen);
    assert_eq!(git(&first.path, &["log", "--format=%s", "main"]), "second\nfirst\n");
    std::fs::remove_dir_all(bench.work(".git")).unwrap();
    let second = bench.clone(&snapshot, "second");
    assert_eq!(status(&second.path), seen);
    assert!(!second.notes.is_empty());
    git(&second.path, &["fsck", "--strict", "--no-dangling"]);
}

#[test]
fn refs_that_moved_without_head_are_kept_too() {
    let bench = Bench::new();
    repository(&bench);
    let work = bench.workspace.path();
    std::thread::sleep(std::time::Duration::from_millis(60));
    bench.snapshot();
    // As a fetch does it: new objects and refs, HEAD and index as before.
    let tree = git(work, &["rev-parse", "HEAD^{tree}"]);
    let commit = git(work, &["commit-tree", "-m", "theirs", "-p", "HEAD", tree.trim()]);
    git(work, &["update-ref", "refs/remotes/origin/main", commit.trim()]);
    let clone = bench.clone(&bench.snapshot(), "c");
    assert_eq!(git(&clone.path, &["log", "-1", "--format=%s", "origin/main"]), "theirs\n");
    git(&clone.path, &["fsck", "--strict", "--no-dangling"]);
}

#[test]
fn unchanged_files_are_not_read_again_and_changed_ones_are_seen() {
    let bench = Bench::new();
    repository(&bench);
    let clone = bench.clone(&bench.snapshot(), "c");
    // As Git itself has it: nothing to refresh for files in step, everything for the others.
    let out = try_git(&clone.path, &["diff-files", "--name-only"]);
    let names = String::from_utf8(out.stdout).unwrap();
    assert_eq!(names, "changed\ndeleted\nstaged\n");
}

#[test]
fn a_change_that_kept_size_and_time_is_seen() {
    let bench = Bench::new();
    let work = bench.workspace.path();
    git(work, &["init", "-q"]);
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let write = |content: &str| {
        bench.write("f", content);
        std::fs::File::options().write(true).open(bench.work("f")).unwrap().set_modified(then).unwrap();
    };
    write("version=1");
    git(work, &["add", "."]);
    git(work, &["commit", "-q", "-m", "first"]);
    // Git may compare whole seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    write("version=2");
    assert_eq!(git(work, &["status", "--porcelain"]), " M f\n");
    let clone = bench.clone(&bench.snapshot(), "c");
    assert_eq!(git(&clone.path, &["status", "--porcelain"]), " M f\n");
    // Of the packed one as well.
    git(work, &["repack", "-qad"]);
    let clone = bench.clone(&bench.snapshot(), "d");
    assert_eq!(git(&clone.path, &["status", "--porcelain"]), " M f\n");
}

#[test]
fn line_ends_that_git_converts_are_no_change() {
    let bench = Bench::new();
    let work = bench.workspace.path();
    git(work, &["init", "-q"]);
    git(work, &["config", "core.autocrlf", "true"]);
    bench.write("text", "one\ntwo\n");
    git(work, &["add", "."]);
    git(work, &["commit", "-q", "-m", "first"]);
    std::fs::remove_file(bench.work("text")).unwrap();
    git(work, &["checkout", "-q", "."]);
    assert_eq!(std::fs::read(bench.work("text")).unwrap(), b"one\r\ntwo\r\n");
    let clone = bench.clone(&bench.snapshot(), "c");
    assert_eq!(std::fs::read(clone.path.join("text")).unwrap(), b"one\r\ntwo\r\n");
    assert_eq!(git(&clone.path, &["status", "--porcelain"]), "");
}

#[test]
fn heads_of_every_kind() {
    // Unborn.
    let bench = Bench::new();
    git(bench.workspace.path(), &["init", "-q", "-b", "trunk"]);
    bench.write("f", "1");
    git(bench.workspace.path(), &["add", "f"]);
    let clone = bench.clone(&bench.snapshot(), "unborn");
    assert_eq!(status(&clone.path), status(bench.workspace.path()));
    git(&clone.path, &["commit", "-q", "-m", "first in the clone"]);

    // Detached.
    git(bench.workspace.path(), &["commit", "-q", "-m", "first"]);
    git(bench.workspace.path(), &["checkout", "-q", "--detach"]);
    let clone = bench.clone(&bench.snapshot(), "detached");
    assert_eq!(status(&clone.path), status(bench.workspace.path()));
    assert!(!try_git(&clone.path, &["symbolic-ref", "-q", "HEAD"]).status.success());

    // In the middle of a merge with a conflict.
    let work = bench.workspace.path();
    git(work, &["checkout", "-q", "-b", "one"]);
    bench.write("f", "one");
    git(work, &["commit", "-q", "-am", "one"]);
    git(work, &["checkout", "-q", "-b", "two", "HEAD~1"]);
    bench.write("f", "two");
    git(work, &["commit", "-q", "-am", "two"]);
    assert!(!try_git(work, &["merge", "one"]).status.success());
    let clone = bench.clone(&bench.snapshot(), "conflict");
    assert_eq!(git(&clone.path, &["ls-files", "-s"]), git(work, &["ls-files", "-s"]));
    assert_eq!(status(&clone.path), status(work));
}

#[test]
fn index_formats_and_flags() {
    for version in ["2", "3", "4"] {
        let bench = Bench::new();
        repository(&bench);
        let work = bench.workspace.path();
        git(work, &["update-index", "--assume-unchanged", "kept"]);
        git(work, &["update-index", "--skip-worktree", "kept2"]);
        bench.write("later", "x");
        git(work, &["add", "--intent-to-add", "later"]);
        git(work, &["update-index", "--index-version", version]);
        git(work, &["config", "core.untrackedCache", "true"]);
        git(work, &["update-index", "--untracked-cache"]);
        status(work);
        let clone = bench.clone(&bench.snapshot(), "c");
        assert_eq!(status(&clone.path), status(work), "version {version}");
        assert_eq!(git(&clone.path, &["ls-files", "-t", "-v"]), git(work, &["ls-files", "-t", "-v"]));
        git(&clone.path, &["fsck", "--strict", "--no-dangling"]);
    }
}

#[test]
fn a_linked_worktree_gives_a_repository_of_its_own() {
    let bench = Bench::new();
    let main = bench.temp.path().join("main");
    std::fs::create_dir(&main).unwrap();
    git(&main, &["init", "-q", "-b", "main"]);
    std::fs::write(main.join("f"), "1").unwrap();
    git(&main, &["add", "."]);
    git(&main, &["commit", "-q", "-m", "first"]);
    std::fs::remove_dir(bench.workspace.path()).unwrap();
    git(&main, &["worktree", "add", "-q", "-b", "linked", bench.workspace.path().to_str().unwrap()]);
    let workspace = Dir::open(bench.workspace.path()).unwrap();
    let mut bench = bench;
    bench.workspace = workspace;
    bench.write("f", "2");
    let clone = bench.clone(&bench.snapshot(), "c");
    assert_eq!(status(&clone.path), status(bench.workspace.path()));
    assert!(clone.path.join(".git").is_dir());
    git(&clone.path, &["commit", "-q", "-am", "in the clone"]);
    assert_eq!(git(bench.workspace.path(), &["log", "--format=%s", "linked"]), "first\n");
}

#[test]
fn a_shallow_repository_stays_shallow() {
    let bench = Bench::new();
    let origin = bench.temp.path().join("origin");
    std::fs::create_dir(&origin).unwrap();
    git(&origin, &["init", "-q", "-b", "main"]);
    for text in ["1", "2", "3"] {
        std::fs::write(origin.join("f"), text).unwrap();
        git(&origin, &["add", "."]);
        git(&origin, &["commit", "-q", "-m", text]);
    }
    std::fs::remove_dir(bench.workspace.path()).unwrap();
    let url = format!("file://{}", origin.display());
    git(bench.temp.path(), &["clone", "-q", "--depth=2", &url, "work"]);
    let workspace = Dir::open(bench.workspace.path()).unwrap();
    let mut bench = bench;
    bench.workspace = workspace;
    let snapshot = bench.snapshot();
    git(bench.workspace.path(), &["fetch", "-q", "--unshallow"]);
    let clone = bench.clone(&snapshot, "c");
    assert_eq!(git(&clone.path, &["log", "--format=%s"]), "3\n2\n");
    git(&clone.path, &["fsck", "--strict", "--no-dangling"]);
}

#[test]
fn a_subdirectory_of_a_repository_gives_a_plain_clone() {
    let bench = Bench::new();
    git(bench.temp.path(), &["init", "-q"]);
    bench.write("f", "1");
    let snapshot = bench.snapshot();
    let clone = bench.clone(&snapshot, "c");
    assert!(!clone.path.join(".git").exists());
    assert_eq!(std::fs::read(clone.path.join("f")).unwrap(), b"1");
}

#[test]
fn make_builds_again_what_changed_and_the_right_program_runs() {
    let bench = Bench::new();
    bench.write("Makefile", "prog: part.o main.o\n\tcat part.o main.o > prog\n%.o: %.in\n\tcp $< $@\n");
    bench.write("part.in", "#!/bin/sh\necho part 1\n");
    bench.write("main.in", "echo main 1\n");
    let make = |dir: &Path| {
        let out = Command::new("make").current_dir(dir).output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let run = |dir: &Path| {
        String::from_utf8(Command::new("sh").arg("prog").current_dir(dir).output().unwrap().stdout).unwrap()
    };
    let pause = || std::thread::sleep(std::time::Duration::from_millis(20));
    make(bench.workspace.path());
    let first = bench.snapshot();
    pause();
    bench.write("part.in", "#!/bin/sh\necho part 2\n");
    make(bench.workspace.path());
    assert_eq!(run(bench.workspace.path()), "part 2\nmain 1\n");
    let clone = bench.clone(&first, "c");
    assert!(make(&clone.path).contains("up to date"));
    assert_eq!(run(&clone.path), "part 1\nmain 1\n");
    pause();
    std::fs::write(clone.path.join("main.in"), "echo main 3\n").unwrap();
    assert!(!make(&clone.path).contains("cp part.in"));
    assert_eq!(run(&clone.path), "part 1\nmain 3\n");
}

#[test]
fn an_ordinary_user_gets_views_without_write_bits_and_exact_clones() {
    if !as_ordinary_user("an_ordinary_user_gets_views_without_write_bits_and_exact_clones") {
        return;
    }
    let bench = Bench::new();
    bench.write("d/e/f", "1");
    bench.write("x", "1");
    let set = |path: &str, mode: u32| {
        std::fs::set_permissions(bench.work(path), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set("x", 0o755);
    set("d/e", 0o555);
    let before = listing(bench.workspace.path());
    let snapshot = bench.snapshot();
    let view = bench.mount(&snapshot, "v");
    assert!(!view.read_only_mount);
    for (path, line) in listing(&view.path) {
        let path = view.path.join(std::str::from_utf8(&path).unwrap());
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o222, 0, "{path:?} {line}");
    }
    assert_eq!(std::fs::metadata(view.path.join("x")).unwrap().mode() & 0o7777, 0o555);
    assert!(std::fs::write(view.path.join("d/new"), "x").is_err());
    assert!(std::fs::write(view.path.join("x"), "x").is_err());
    bench.unmount(&view).unwrap();
    assert!(!view.path.exists());
    let clone = bench.clone(&snapshot, "c");
    assert_eq!(listing(&clone.path), before);
    bench.destroy(&DestroyRequest::Clone(clone.reference)).unwrap();
    assert!(!clone.path.exists());
    set("d/e", 0o755);
}

#[test]
fn that_repositories_inside_are_plain_directories_in_a_clone_is_said() {
    let bench = Bench::new();
    bench.write("a", "1");
    assert_eq!(bench.clone(&bench.snapshot(), "none").notes, Vec::<String>::new());
    for (nested, said) in [("one", "clone: one"), ("b/two", "clone: b/two and 1 more")] {
        bench.write(&format!("{nested}/f"), "1");
        git(&bench.work(nested), &["init", "-q"]);
        let clone = bench.clone(&bench.snapshot(), &nested.replace('/', "-"));
        assert!(clone.notes.len() == 1 && clone.notes[0].ends_with(said), "{:?}", clone.notes);
        assert!(!clone.path.join(nested).join(".git").exists());
    }
}
