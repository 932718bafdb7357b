//! Restore as a whole, against a provider in memory.

mod attributes;
mod damage;
mod hazards;
mod lab;
mod model;

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use ah_plugin_api::{Capability, ErrorKind, RelPath};

use super::scope::Scope;
use lab::{Ask, Lab, timeless};

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

fn paths(list: &[super::LeftAlone]) -> BTreeSet<String> {
    list.iter().map(|left| left.path.to_string()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn age(path: &Path) -> Duration {
    SystemTime::now().duration_since(path.symlink_metadata().unwrap().modified().unwrap()).unwrap_or_default()
}

fn make_old(path: &Path) {
    let file = std::fs::File::open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(5000)).unwrap();
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// All kinds of changes at once.
fn mess(lab: &Lab) {
    for name in ["same", "edited", "deleted", "d/deep/file", "mode", "to-dir", "all/of/it"] {
        lab.write(name, &format!("old {name}"));
    }
    lab.write("to-file/a/b", "in a directory");
    std::fs::create_dir(lab.at("empty")).unwrap();
    symlink("edited", lab.at("link")).unwrap();
    symlink("same", lab.at("link-to-file")).unwrap();
    chmod(&lab.at("mode"), 0o755);
    for name in ["same", "edited", "mode"] {
        make_old(&lab.at(name));
    }
}

fn mess_up(lab: &Lab) {
    lab.write("edited", "new, and longer");
    std::fs::remove_file(lab.at("deleted")).unwrap();
    std::fs::remove_dir_all(lab.at("all")).unwrap();
    std::fs::remove_dir(lab.at("empty")).unwrap();
    chmod(&lab.at("mode"), 0o600);
    std::fs::remove_dir_all(lab.at("to-file")).unwrap();
    lab.write("to-file", "now a file");
    std::fs::remove_file(lab.at("to-dir")).unwrap();
    lab.write("to-dir/x/y", "now a directory");
    std::fs::remove_file(lab.at("link")).unwrap();
    symlink("elsewhere", lab.at("link")).unwrap();
    std::fs::remove_file(lab.at("link-to-file")).unwrap();
    lab.write("link-to-file", "a file now");
    lab.write("added/one/two", "added");
    std::fs::create_dir(lab.at("added/empty")).unwrap();
}

fn all_kinds() -> Vec<Lab> {
    let policy = Capability::AppliesPolicy;
    vec![
        Lab::like_git(),
        Lab::new(&[policy, Capability::ReadWithoutMount]),
        Lab::new(&[policy, Capability::ExactViewModes]),
        Lab::new(&[Capability::Diff, Capability::ReadWithoutMount]),
    ]
}

#[test]
fn everything_comes_back_and_goes_again() {
    for lab in all_kinds() {
        mess(&lab);
        let before = lab.shown();
        let target = lab.snapshot();
        mess_up(&lab);
        let after = lab.shown();
        let (safety, outcome) = lab.restore(&target, &Ask::default());
        assert_eq!(timeless(&lab.shown()), timeless(&before));
        for same in ["same", "mode"] {
            assert_eq!(lab.shown()[Path::new(same)].2, before[Path::new(same)].2, "{same}");
        }
        for changed in ["edited", "deleted", "link", "all/of/it", "to-dir"] {
            assert!(age(&lab.at(changed)) < Duration::from_secs(100), "{changed}");
        }
        let (undo_safety, undone) = lab.undo(&safety, &outcome);
        assert_eq!(timeless(&lab.shown()), timeless(&after));
        lab.undo(&undo_safety, &undone);
        assert_eq!(timeless(&lab.shown()), timeless(&before));
        // Once more changes nothing at all.
        let settled = lab.shown();
        let (_, nothing) = lab.restore(&target, &Ask::default());
        assert!(nothing.plan.is_empty());
        assert_eq!(lab.shown(), settled);
    }
}

#[test]
fn exact_times_are_those_of_the_snapshot() {
    let lab = Lab::like_git();
    mess(&lab);
    let before = lab.shown();
    let dir_time = lab.at("d/deep").metadata().unwrap().modified().unwrap();
    let target = lab.snapshot();
    mess_up(&lab);
    lab.write("d/deep/new", "x");
    lab.write("same", "old same");
    lab.restore(&target, &Ask { exact_times: true, ..Ask::default() });
    assert_eq!(lab.shown(), before);
    assert_eq!(lab.at("d/deep").metadata().unwrap().modified().unwrap(), dir_time);
}

#[test]
fn a_directory_in_which_nothing_comes_or_goes_keeps_its_time() {
    let lab = Lab::like_git();
    lab.write("d/f", "one");
    let target = lab.snapshot();
    lab.write("d/f", "two");
    make_old(&lab.at("d"));
    make_old(&lab.at(""));
    lab.restore(&target, &Ask::default());
    assert_eq!(lab.text("d/f"), "one");
    assert!(age(&lab.at("d")) > Duration::from_secs(1000));
    assert!(age(&lab.at("")) > Duration::from_secs(1000));
}

#[test]
fn only_the_paths_asked_for() {
    let lab = Lab::like_git();
    for name in ["a/x", "a/y", "b", "gone/deep/file", "gone/deep/other"] {
        lab.write(name, "old");
    }
    let target = lab.snapshot();
    for name in ["a/x", "a/y", "b", "new"] {
        lab.write(name, "new!");
    }
    std::fs::remove_dir_all(lab.at("gone")).unwrap();
    let below = Scope::Below(vec![path("a/x"), path("gone/deep/file")]);
    lab.restore(&target, &Ask { scope: below, ..Ask::default() });
    assert_eq!([lab.text("a/x"), lab.text("a/y"), lab.text("b"), lab.text("new")], ["old", "new!", "new!", "new!"]);
    assert_eq!(lab.text("gone/deep/file"), "old");
    assert!(!lab.at("gone/deep/other").exists());
}

#[test]
fn a_path_whose_directory_is_a_file_now_is_refused() {
    let lab = Lab::like_git();
    lab.write("d/f", "old");
    let target = lab.snapshot();
    std::fs::remove_dir_all(lab.at("d")).unwrap();
    lab.write("d", "file");
    let scope = Scope::Below(vec![path("d/f")]);
    let plan = lab.plan(&lab.snapshot(), &target, &Ask { scope, ..Ask::default() });
    assert_eq!(paths(&plan.conflicts), set(&["d"]));
}

#[test]
fn ignored_files_come_back_are_not_overwritten_and_never_deleted() {
    for lab in [Lab::like_git(), Lab::new(&[Capability::Diff, Capability::ReadWithoutMount])] {
        lab.write(".gitignore", "*.env\n");
        for name in ["missing.env", "edited.env"] {
            lab.write(name, "old");
        }
        let target = lab.snapshot();
        std::fs::remove_file(lab.at("missing.env")).unwrap();
        lab.write("edited.env", "new!");
        lab.write("added.env", "new");
        lab.write("dir/added.env", "new");
        let (_, outcome) = lab.restore(&target, &Ask::default());
        assert_eq!([lab.text("missing.env"), lab.text("edited.env")], ["old", "new!"]);
        assert!(lab.at("added.env").exists() && lab.at("dir/added.env").exists());
        assert_eq!(paths(&outcome.plan.left), set(&["edited.env", "added.env", "dir/added.env", "dir"]));
        let (safety, outcome) = lab.restore(&target, &Ask { ignored: true, ..Ask::default() });
        assert_eq!(lab.text("edited.env"), "old");
        assert!(lab.at("added.env").exists());
        lab.undo(&safety, &outcome);
        assert_eq!(lab.text("edited.env"), "new!");
    }
}

#[test]
fn undo_takes_away_what_restore_brought_back() {
    let lab = Lab::like_git();
    lab.write(".gitignore", "*.env\n");
    lab.write("x.env", "old");
    let target = lab.snapshot();
    std::fs::remove_file(lab.at("x.env")).unwrap();
    let (safety, outcome) = lab.restore(&target, &Ask::default());
    assert_eq!(lab.text("x.env"), "old");
    lab.undo(&safety, &outcome);
    assert!(!lab.at("x.env").exists());
}

#[test]
fn undo_tells_what_should_go_and_is_held_by_no_snapshot() {
    let lab = Lab::like_git();
    lab.write("log", "old");
    lab.write("other", "old");
    let target = lab.snapshot();
    std::fs::remove_file(lab.at("log")).unwrap();
    std::fs::remove_file(lab.at("other")).unwrap();
    let (safety, outcome) = lab.restore(&target, &Ask::default());
    lab.write("log", &"too large by now".repeat(100));
    let (_, outcome) = lab.undo(&safety, &outcome);
    assert_eq!(paths(&outcome.plan.beyond), set(&["log"]));
    assert!(outcome.plan.beyond[0].reason.contains("too-large"), "{:?}", outcome.plan.beyond);
    assert!(lab.at("log").exists() && !lab.at("other").exists());
}

#[test]
fn undo_leaves_alone_what_restore_did_not_touch() {
    let lab = Lab::like_git();
    lab.write("d/f", "old");
    let target = lab.snapshot();
    std::fs::remove_dir_all(lab.at("d")).unwrap();
    lab.write("other", "1");
    let (safety, outcome) = lab.restore(&target, &Ask { scope: Scope::Below(vec![path("d")]), ..Ask::default() });
    lab.write("d/mine", "work after the restore");
    lab.write("other", "22");
    lab.undo(&safety, &outcome);
    assert!(!lab.at("d/f").exists());
    assert_eq!([lab.text("d/mine"), lab.text("other")], ["work after the restore", "22"]);
}

#[test]
fn what_stands_in_the_way_is_named_once() {
    let lab = Lab::new(&[]);
    lab.write(".gitignore", "*.log\n");
    lab.write("a", "a file");
    let target = lab.snapshot();
    std::fs::remove_file(lab.at("a")).unwrap();
    lab.write("a/mine.log", "ignored");
    lab.write("a/other", "not");
    let plan = lab.plan(&lab.snapshot(), &target, &Ask::default());
    assert_eq!(plan.conflicts.len(), 1, "{:?}", plan.conflicts);
    assert_eq!(plan.conflicts[0].path, path("a/mine.log"));
    assert!(plan.conflicts[0].reason.contains("ignored files are never deleted"), "{:?}", plan.conflicts);
}

#[test]
fn what_the_target_left_out_is_not_deleted() {
    let lab = Lab::like_git();
    lab.write("data/big", &"x".repeat(2000));
    lab.write("data/small", "x");
    let target = lab.snapshot();
    lab.write("data/big", "small now, and captured");
    lab.restore(&target, &Ask::default());
    assert_eq!(lab.text("data/big"), "small now, and captured");
}

#[test]
fn what_the_safety_snapshot_does_not_hold_is_not_overwritten() {
    let lab = Lab::like_git();
    lab.write("f", "small");
    lab.write("g", "was");
    lab.write("becomes-dir", "x");
    let target = lab.snapshot();
    lab.write("f", &"big".repeat(1000));
    lab.write("g", "is!");
    std::fs::remove_file(lab.at("becomes-dir")).unwrap();
    lab.write("becomes-dir/held", "x");
    lab.write("becomes-dir/big", &"big".repeat(1000));
    let plan = lab.plan(&lab.snapshot(), &target, &Ask::default());
    assert_eq!(paths(&plan.conflicts), set(&["f", "becomes-dir/big"]));
    let force = Ask { force: true, ..Ask::default() };
    assert_eq!(paths(&lab.plan(&lab.snapshot(), &target, &force).conflicts), set(&["becomes-dir/big"]));
    let scope = Scope::Below(vec![path("f")]);
    lab.restore(&target, &Ask { scope, force: true, ..Ask::default() });
    assert_eq!(lab.text("f"), "small");
    // Equal contents are no conflict, though nobody holds them.
    let scope = || Scope::Below(vec![path("g")]);
    lab.restore(&target, &Ask { scope: scope(), ..Ask::default() });
    assert_eq!(lab.text("g"), "was");
}

#[test]
fn special_files_and_repositories_are_left_alone() {
    let lab = Lab::like_git();
    lab.write("a", "x");
    let target = lab.snapshot();
    lab.write("sub/.git/HEAD", "ref: refs/heads/main\n");
    lab.write("sub/code", "x");
    lab.write("pipes/code", "x");
    nix::unistd::mkfifo(&lab.at("pipes/fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    lab.restore(&target, &Ask::default());
    assert!(lab.at("sub/.git/HEAD").exists() && !lab.at("sub/code").exists());
    assert!(lab.at("pipes/fifo").exists() && !lab.at("pipes/code").exists());
    // Nor may a file take their directory's place.
    std::fs::remove_dir_all(lab.at("pipes")).unwrap();
    std::fs::remove_dir_all(lab.at("sub")).unwrap();
    lab.write("sub", "a file");
    let target = lab.snapshot();
    std::fs::remove_file(lab.at("sub")).unwrap();
    lab.write("sub/.git/HEAD", "ref: refs/heads/main\n");
    let plan = lab.plan(&lab.snapshot(), &target, &Ask::default());
    assert_eq!(paths(&plan.conflicts), set(&["sub/.git"]));
}

#[test]
fn changes_after_the_safety_snapshot_are_conflicts() {
    let lab = Lab::like_git();
    for name in ["edited", "same-size", "deleted", "grown/a", "replaced"] {
        lab.write(name, "old");
    }
    let target = lab.snapshot();
    for name in ["edited", "same-size", "grown/b", "replaced"] {
        lab.write(name, "new");
    }
    std::fs::remove_file(lab.at("deleted")).unwrap();
    let safety = lab.snapshot();
    lab.write("edited", "newer");
    let stamp = lab.at("same-size").metadata().unwrap().modified().unwrap();
    lab.write("same-size", "NEW");
    std::fs::File::options().write(true).open(lab.at("same-size")).unwrap().set_modified(stamp).unwrap();
    lab.write("deleted", "made again");
    lab.write("grown/b", "newer");
    let plan = lab.plan(&safety, &target, &Ask::default());
    assert_eq!(paths(&plan.conflicts), set(&["edited", "same-size", "deleted", "grown/b"]));
}

#[test]
fn a_change_in_the_last_instant_survives() {
    let lab = Lab::like_git();
    for name in ["a", "b", "c"] {
        lab.write(name, "old");
    }
    let target = lab.snapshot();
    for name in ["a", "b", "extra"] {
        lab.write(name, "new!");
    }
    std::fs::remove_file(lab.at("c")).unwrap();
    let safety = lab.snapshot();
    let plan = lab.plan(&safety, &target, &Ask::default());
    let top = lab.at("");
    *lab.memory.on_read.lock().unwrap() = Some(Box::new(move |_| {
        for (name, text) in [("a", "last instant"), ("c", "last instant"), ("extra", "last instant")] {
            std::fs::write(top.join(name), text).unwrap();
        }
    }));
    let outcome = lab.apply(plan, &safety, &target, false).unwrap();
    assert_eq!(paths(&outcome.applied.failed), set(&["a", "c", "extra"]));
    for name in ["a", "c", "extra"] {
        assert_eq!(lab.text(name), "last instant");
    }
    assert_eq!(lab.text("b"), "old");
    assert_eq!(lab.shown().keys().filter(|path| path.starts_with(".ah-restore-")).count(), 0);
    assert!(!lab.at("").read_dir().unwrap().any(|e| e.unwrap().file_name().to_string_lossy().starts_with(".ah-")));
    // Nor is it an undo's to take back.
    *lab.memory.on_read.lock().unwrap() = None;
    lab.undo(&safety, &outcome);
    assert_eq!(
        ["a", "b", "c", "extra"].map(|name| lab.text(name)),
        ["last instant", "new!", "last instant", "last instant"]
    );
}

#[test]
fn nothing_changes_if_contents_cannot_be_had() {
    let lab = Lab::like_git();
    for name in ["a", "b", "gone"] {
        lab.write(name, "old");
    }
    let target = lab.snapshot();
    lab.write("a", "new");
    lab.write("b", "new");
    std::fs::remove_file(lab.at("gone")).unwrap();
    lab.write("added", "new");
    symlink(".", lab.at("swapped")).unwrap();
    let before = lab.shown();
    let safety = lab.snapshot();
    let mut plan = lab.plan(&safety, &target, &Ask::default());
    lab.refuse(&target, "gone", ErrorKind::Unavailable);
    // What cannot be set back as it was is said.
    let any = plan.parents[0].1;
    plan.parents.push((path("swapped/dir"), any));
    let error = lab.apply(plan, &safety, &target, false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    let [_, cause] = error.causes.as_slice() else { panic!("{error:?}") };
    assert!(cause.starts_with("swapped/dir: its attributes could not be set"), "{cause}");
    assert_eq!(lab.shown(), before);
}

#[test]
fn a_symlink_that_is_swapped_in_leads_nowhere() {
    let lab = Lab::like_git();
    lab.write("d/f", "old");
    let target = lab.snapshot();
    lab.write("d/f", "new!");
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("f"), "new!").unwrap();
    let safety = lab.snapshot();
    let plan = lab.plan(&safety, &target, &Ask::default());
    std::fs::rename(lab.at("d"), lab.at("moved")).unwrap();
    symlink(outside.path(), lab.at("d")).unwrap();
    let outcome = lab.apply(plan, &safety, &target, false).unwrap();
    assert_eq!(paths(&outcome.applied.failed), set(&["d/f"]));
    assert_eq!(std::fs::read_to_string(outside.path().join("f")).unwrap(), "new!");
    let plan = lab.plan(&safety, &target, &Ask::default());
    assert_eq!(paths(&plan.conflicts), set(&["d/f"]));
}

#[test]
fn what_a_kill_left_is_cleared_away_but_for_what_nobody_holds() {
    let lab = Lab::like_git();
    for name in ["a", "b", "c"] {
        lab.write(name, &format!("old {name}"));
    }
    let target = lab.snapshot();
    for name in ["a", "b", "c"] {
        lab.write(name, &format!("newer {name}"));
    }
    let safety = lab.snapshot();
    let plan = lab.plan(&safety, &target, &Ask::default());
    let journal = lab.journal(&plan, &safety, &target);
    // a was exchanged, b half-written, c exchanged with somebody's last-instant change.
    let slot = |n: u64| lab.at(journal.staging.as_path()).join((n % journal.lanes).to_string()).join(n.to_string());
    for lane in 0..journal.lanes {
        std::fs::create_dir_all(lab.at(journal.staging.as_path()).join(lane.to_string())).unwrap();
    }
    std::fs::rename(lab.at("a"), slot(0)).unwrap();
    lab.write("a", "old a");
    std::fs::write(slot(1), "old").unwrap();
    std::fs::write(slot(2), "the last instant").unwrap();
    lab.write("c", "old c");
    let kept = lab.ground(|ground| super::clean::clean(ground, &journal, &ah_plugin_api::Context::quiet())).unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].0, path("c"));
    assert_eq!(lab.text(kept[0].1.as_path().to_str().unwrap()), "the last instant");
    assert!(!slot(0).exists() && !slot(1).exists());
    // The same restore finishes it, and an undo of all of it is still to be had.
    lab.restore(&target, &Ask::default());
    assert_eq!([lab.text("a"), lab.text("b"), lab.text("c")], ["old a", "old b", "old c"]);
    let touched = Scope::Exactly(journal.touched().cloned().collect());
    lab.restore(&safety, &Ask { scope: touched, ignored: true, delete_ignored: true, ..Ask::default() });
    assert_eq!([lab.text("a"), lab.text("b"), lab.text("c")], ["newer a", "newer b", "newer c"]);
}

#[test]
fn names_of_any_bytes() {
    use std::os::unix::ffi::OsStrExt;
    let lab = Lab::like_git();
    let name = std::ffi::OsStr::from_bytes(b"\xff\xfe n\n\x01");
    std::fs::create_dir(lab.at(name)).unwrap();
    std::fs::write(lab.at(name).join(name), "old").unwrap();
    let target = lab.snapshot();
    std::fs::remove_dir_all(lab.at(name)).unwrap();
    let (_, outcome) = lab.restore(&target, &Ask::default());
    assert_eq!(std::fs::read_to_string(lab.at(name).join(name)).unwrap(), "old");
    let text = serde_json::to_string(&outcome.journal).unwrap();
    assert_eq!(serde_json::from_str::<super::journal::Journal>(&text).unwrap(), outcome.journal);
}

#[test]
fn owner_and_hard_links() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: only root gives files away");
        eprintln!("skipped: only root gives files away");
        return;
    }
    let lab = Lab::like_git();
    lab.write("theirs/f", "old");
    lab.write("theirs/deleted", "old");
    let target = lab.snapshot();
    lab.write("theirs/f", "new!");
    std::fs::remove_file(lab.at("theirs/deleted")).unwrap();
    for name in ["theirs", "theirs/f"] {
        std::os::unix::fs::chown(lab.at(name), Some(1234), Some(4321)).unwrap();
    }
    std::fs::hard_link(lab.at("theirs/f"), lab.at("other-name")).unwrap();
    let (_, outcome) = lab.restore(&target, &Ask { scope: Scope::Below(vec![path("theirs")]), ..Ask::default() });
    let [note] = outcome.applied.notes.as_slice() else { panic!("{:?}", outcome.applied.notes) };
    assert!(note.starts_with("theirs/deleted had been missing and came back as root's"), "{note}");
    for (name, owner) in [("theirs/f", (1234, 4321)), ("theirs/deleted", (0, 0))] {
        let meta = lab.at(name).metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid()), owner, "{name}");
        assert_eq!(lab.text(name), "old");
    }
    assert_eq!(lab.text("other-name"), "new!");
}

#[test]
fn an_ignored_file_that_is_named_itself_is_overwritten() {
    let lab = Lab::like_git();
    lab.write(".gitignore", "*.env\n");
    for name in ["d/.env", "d/other.env"] {
        lab.write(name, "old");
    }
    let target = lab.snapshot();
    for name in ["d/.env", "d/other.env"] {
        lab.write(name, "newer");
    }
    let below = |name| Ask { scope: Scope::Below(vec![path(name)]), ..Ask::default() };
    let (_, outcome) = lab.restore(&target, &below("d"));
    assert_eq!(outcome.plan.left[0].reason, "ignored: `--ignored` overwrites it");
    lab.restore(&target, &below("d/.env"));
    assert_eq!([lab.text("d/.env"), lab.text("d/other.env")], ["old", "newer"]);
}

#[test]
fn force_counts_where_it_would_help() {
    let lab = Lab::like_git();
    lab.write("file", "old");
    lab.write("dir/f", "old");
    let target = lab.snapshot();
    std::fs::remove_file(lab.at("file")).unwrap();
    std::fs::remove_dir_all(lab.at("dir")).unwrap();
    for name in ["file", "dir"] {
        nix::unistd::mkfifo(&lab.at(name), nix::sys::stat::Mode::S_IRWXU).unwrap();
    }
    let below = |name| Ask { scope: Scope::Below(vec![path(name)]), ..Ask::default() };
    let counts = |ask: &Ask| {
        let plan = lab.plan(&lab.snapshot(), &target, ask);
        (plan.conflicts.len(), plan.forcible)
    };
    assert_eq!(counts(&below("file")), (1, 1));
    assert_eq!(counts(&Ask { force: true, ..below("file") }).0, 0);
    let (conflicts, forcible) = counts(&below("dir"));
    assert!(conflicts > 0 && forcible == 0);
    assert!(counts(&Ask { force: true, ..below("dir") }).0 > 0);
}

#[test]
fn what_cannot_go_below_what_is_in_the_way_is_not_told_once_more() {
    let lab = Lab::like_git();
    for name in ["dir/a", "dir/sub/b"] {
        lab.write(name, "old");
    }
    let target = lab.snapshot();
    std::fs::remove_dir_all(lab.at("dir")).unwrap();
    nix::unistd::mkfifo(&lab.at("dir"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let files = || [path("dir/a"), path("dir/sub/b")];
    for (scope, is_named) in [
        (Scope::Everything, false),
        (Scope::Below(vec![path("dir")]), false),
        (Scope::Below(files().to_vec()), true),
        // Of an undo.
        (Scope::Exactly(files().into()), false),
    ] {
        let plan = lab.plan(&lab.snapshot(), &target, &Ask { scope, ..Ask::default() });
        let [told] = plan.conflicts.as_slice() else { panic!("{:?}", plan.conflicts) };
        assert_eq!((told.path.clone(), told.reason.contains("restore that, too")), (path("dir"), is_named));
    }
}
