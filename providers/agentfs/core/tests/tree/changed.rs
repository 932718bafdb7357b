//! What differs between trees, and what snapshots know, while somebody changes the lower directory.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use ah_agentfs::{Error, ROOT, Rename, SetAttr};

use crate::{ME, Place, at, branch, content, make, snapshot};

#[test]
fn what_a_branch_changed_is_told_whatever_was_changed_below() {
    let place = Place::new();
    for directory in ["a/b/c", "gone/in", "moved"] {
        std::fs::create_dir_all(place.lower().join(directory)).unwrap();
    }
    for name in ["same", "theirs", "both", "a/b/c/deep", "gone/in/file", "moved/file", "removed", "large"] {
        std::fs::write(place.lower().join(name), vec![b'o'; if name == "large" { 3 << 20 } else { 3 }]).unwrap();
    }
    std::fs::write(place.lower().join("one"), "").unwrap();
    for other in [place.lower().join("other"), place.lower().with_file_name("outside")] {
        std::fs::hard_link(place.lower().join("one"), other).unwrap();
    }
    let workspace = place.create();
    let base = workspace.base(b"base").unwrap();
    let branch = workspace.branch(base, b"branch").unwrap();
    let (view, base) = (workspace.view(branch).unwrap(), workspace.view_of(base).unwrap());
    let told = |from: &ah_agentfs::View, to: &ah_agentfs::View| {
        let told = from.differences(to, &|_| true).unwrap().unwrap();
        let list = told.list.iter().filter(|found| found.contents || found.before.is_none() || found.after.is_none());
        let letter = |found: &ah_agentfs::Difference| match (&found.before, &found.after) {
            (None, _) => 'A',
            (_, None) => 'D',
            _ if found.lost => 'L',
            _ => 'M',
        };
        list.map(|found| format!("{} {}", letter(found), String::from_utf8_lossy(&found.path))).collect::<Vec<_>>()
    };
    assert!(base.differences(&workspace.look(branch).unwrap(), &|_| true).unwrap().unwrap().untouched);
    for name in ["both", "a/b/c/deep", "removed"] {
        view.write(at(&view, name), 0, b"mine").unwrap();
    }
    view.write(at(&view, "large"), 2 << 20, b"mine").unwrap();
    let gone = at(&view, "gone/in");
    view.unlink(gone, b"file").unwrap();
    view.rmdir(at(&view, "gone"), b"in").unwrap();
    view.rmdir(ROOT, b"gone").unwrap();
    view.rename(ROOT, b"moved", at(&view, "a"), b"here", Rename::Replace).unwrap();
    make(&view, "made", b"mine");
    view.mkdir(ROOT, b"new", ME).unwrap();
    make(&view, "new/n", b"mine");
    let then = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    let all = [
        "M a/b/c/deep",
        "A a/here",
        "A a/here/file",
        "M both",
        "D gone",
        "D gone/in",
        "D gone/in/file",
        "M large",
        "A made",
        "D moved",
        "D moved/file",
        "A new",
        "A new/n",
        "M removed",
    ];
    assert_eq!(told(&base, &then), all);
    assert_eq!(told(&then, &workspace.look(branch).unwrap()), [""; 0]);

    // Files that the branch left alone are no difference, and do not stop it; of what both changed the earlier contents are lost.
    std::fs::write(place.lower().join("theirs"), "new").unwrap();
    std::fs::write(place.lower().join("both"), "new").unwrap();
    // The branch's work, brought home: nothing of that was there before.
    std::fs::create_dir(place.lower().join("new")).unwrap();
    for name in ["strange", "made", "new/n"] {
        std::fs::write(place.lower().join(name), "new").unwrap();
    }
    std::fs::remove_file(place.lower().join("removed")).unwrap();
    let now = all.map(|line| line.replace("M both", "L both").replace("M removed", "L removed"));
    assert_eq!(told(&base, &then), now);
    let list = base.differences(&then, &|path| path == b"both").unwrap().unwrap().list;
    let [found] = list.as_slice() else { panic!("{list:?}") };
    assert_eq!(found.before.as_ref().unwrap().size, 3, "what it was when it was taken over");
    assert!(!found.absent, "it was there");
    // The other way round, too.
    assert!(told(&then, &base).contains(&"L both".to_owned()));

    // Only what is asked for is looked at.
    let some = base.differences(&then, &|path| b"a/here".starts_with(path) || path.starts_with(b"a/here")).unwrap();
    let paths: Vec<_> = some.unwrap().list.into_iter().map(|found| found.path).collect();
    assert_eq!(paths, [&b""[..], b"a", b"a/here", b"a/here/file"]);

    // One of three names below, one of which is outside: the other is found.
    view.write(at(&view, "one"), 0, b"x").unwrap();
    assert_eq!(told(&then, &workspace.look(branch).unwrap()), ["M one", "M other"]);
    // Trees with two bases have nothing in common that could be told.
    let other = workspace.view_of(workspace.base(b"later").unwrap()).unwrap();
    assert!(base.differences(&other, &|_| true).unwrap().is_none());
}

#[test]
fn a_branch_that_is_looked_at_stays_and_cannot_be_written() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "file", b"one");
    let look = workspace.look(branch).unwrap();
    let second = workspace.look(branch).unwrap();
    assert_eq!(content(&look, "file"), b"one");
    view.write(at(&view, "file"), 0, b"two").unwrap();
    assert_eq!(content(&second, "file"), b"two", "as it is now");
    assert!(matches!(look.unlink(ROOT, b"file"), Err(Error::ReadOnly)));
    drop((view, second));
    assert!(matches!(workspace.delete_branch(branch), Err(Error::Busy(_))));
    drop(look);
    workspace.delete_branch(branch).unwrap();
    assert!(matches!(workspace.look(branch), Err(Error::NotFound)));
}

#[test]
fn a_snapshot_knows_which_names_there_were_below() {
    let place = Place::new();
    let lower = place.lower();
    std::fs::create_dir_all(lower.join("dir/deep")).unwrap();
    std::fs::create_dir_all(lower.join("swapped")).unwrap();
    for name in ["dir/gone", "dir/renamed", "dir/same", "dir/deep/file", "swapped/file", "top"] {
        std::fs::write(lower.join(name), "then").unwrap();
    }
    let workspace = place.create();
    let base = workspace.base_with_names(b"base").unwrap();
    let branch = workspace.branch(base, b"branch").unwrap();
    let view = workspace.view(branch).unwrap();
    view.unlink(at(&view, "dir"), b"gone").unwrap();
    let then = snapshot(&workspace, branch);
    let links = view.getattr(at(&view, "dir/deep")).unwrap().nlink;
    // In all directories above each other, at once.
    std::fs::create_dir(lower.join("dir/deep/more")).unwrap();
    std::fs::write(lower.join("later"), "").unwrap();
    std::fs::remove_file(lower.join("top")).unwrap();
    std::fs::remove_file(lower.join("dir/gone")).unwrap();
    std::fs::rename(lower.join("dir/renamed"), lower.join("dir/other")).unwrap();
    std::fs::write(lower.join("dir/deep/later"), "").unwrap();
    std::fs::remove_file(lower.join("dir/deep/file")).unwrap();
    std::fs::rename(lower.join("swapped"), lower.join("elsewhere")).unwrap();
    std::fs::create_dir(lower.join("swapped")).unwrap();

    let names = |view: &ah_agentfs::View, directory| {
        let mut names: Vec<_> = view.list(directory).unwrap().into_iter().map(|entry| entry.name).collect();
        names.sort();
        names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect::<Vec<_>>()
    };
    let check = |workspace: &ah_agentfs::Workspace| {
        let (old, then) = (workspace.view_of(base).unwrap(), workspace.view_of(then).unwrap());
        assert_eq!(names(&old, ROOT), ["dir", "swapped", "top"]);
        let (dir, deep) = (at(&old, "dir"), at(&old, "dir/deep"));
        assert_eq!(names(&old, dir), ["deep", "gone", "renamed", "same"]);
        assert_eq!(names(&old, deep), ["file"]);
        let (shown, now) = (old.getattr(deep).unwrap(), std::fs::metadata(lower.join("dir/deep")).unwrap());
        assert_eq!(shown.nlink, links);
        assert!((shown.ctime.secs, i64::from(shown.ctime.nanos)) < (now.ctime(), now.ctime_nsec()), "{shown:?}");
        assert_eq!(names(&then, at(&then, "dir")), ["deep", "renamed", "same"], "what the branch removed is not there");
        assert_eq!(content(&old, "dir/same"), b"then");
        let swapped = at(&old, "swapped");
        assert_eq!(names(&old, swapped), ["file"], "the one that was there");
        for (directory, name) in [(ROOT, "top"), (swapped, "file"), (dir, "gone"), (dir, "renamed"), (deep, "file")] {
            let answer = old.lookup(directory, name.as_bytes());
            assert!(matches!(answer, Err(Error::DataLoss { .. })), "{name}: {answer:?}");
        }
        for (directory, name) in [(ROOT, "later"), (ROOT, "elsewhere"), (dir, "other"), (deep, "later"), (dir, "never")]
        {
            let answer = old.lookup(directory, name.as_bytes());
            assert!(matches!(answer, Err(Error::NotFound)), "{name}: {answer:?}");
        }
    };
    check(&workspace);
    // A branch shows what is there now.
    assert_eq!(names(&view, ROOT), ["dir", "elsewhere", "later", "swapped"]);
    assert_eq!(names(&view, at(&view, "dir")), ["deep", "other", "same"]);
    view.unlink(ROOT, b"later").unwrap();
    // What the branch removed is told, although it is gone below, too.
    let told = workspace.view_of(base).unwrap().differences(&workspace.view_of(then).unwrap(), &|_| true).unwrap();
    let told: Vec<_> = told.unwrap().list.into_iter().filter(|found| found.contents).collect();
    assert!(
        matches!(told.as_slice(), [found] if found.path == b"dir/gone" && found.lost && found.after.is_none()),
        "{told:?}"
    );
    workspace.sync().unwrap();
    workspace.checkpoint().unwrap();
    drop((view, workspace));
    place.check();
    let workspace = place.open();
    check(&workspace);

    // It goes when nobody can ask any more.
    workspace.delete_snapshot(base).unwrap();
    workspace.reclaim().unwrap();
    let then_view = workspace.view_of(then).unwrap();
    assert_eq!(names(&then_view, at(&then_view, "dir")), ["deep", "renamed", "same"]);
    drop(then_view);
    workspace.delete_snapshot(then).unwrap();
    workspace.delete_branch(branch).unwrap();
    workspace.reclaim().unwrap();
    drop(workspace);
    let report = ah_agentfs::Workspace::fsck(&place.store(), &lower, false).unwrap();
    assert_eq!((report.problems, report.rows), (Vec::new(), 0));
}

#[test]
fn names_are_written_down_behind_a_base() {
    let place = Place::new();
    let lower = place.lower();
    for n in 0..50 {
        std::fs::create_dir_all(lower.join(format!("{n}/in"))).unwrap();
    }
    drop(place.create());
    let workspace = ah_agentfs::Workspace::open(&place.store(), &lower, ah_agentfs::Options::default()).unwrap();
    let old = workspace.view_of(workspace.base(b"base").unwrap()).unwrap();
    let began = std::time::Instant::now();
    // Each of them is removed until it was late enough.
    let known = (0..50).position(|n| {
        std::thread::sleep(Duration::from_millis(10));
        std::fs::remove_dir(lower.join(format!("{n}/in"))).unwrap();
        old.lookup(at(&old, &n.to_string()), b"in").is_ok()
    });
    assert!(known.is_some(), "{:?}", began.elapsed());
    // Closing waits for it.
    workspace.base(b"again").unwrap();
    drop((old, workspace));
    drop(place.open());
}

/// What differs but for times, a line each: what only the first has, only the second, or both have otherwise.
fn told(from: &ah_agentfs::View, to: &ah_agentfs::View) -> Vec<String> {
    let told = from.differences(to, &|_| true).unwrap().unwrap();
    let letter = |found: &ah_agentfs::Difference| match (&found.before, &found.after) {
        (None, _) => 'A',
        (_, None) => 'D',
        _ => 'M',
    };
    let list = told.list.iter().filter(|found| found.contents);
    list.map(|found| format!("{} {}", letter(found), String::from_utf8_lossy(&found.path))).collect()
}

#[test]
fn nothing_that_was_written_is_left_untold() {
    let place = Place::new();
    let lower = place.lower();
    for directory in ["a", "b", "p"] {
        std::fs::create_dir(lower.join(directory)).unwrap();
    }
    std::fs::write(lower.join("a/x"), "linked").unwrap();
    std::fs::hard_link(lower.join("a/x"), lower.join("b/y")).unwrap();
    std::fs::write(lower.join("f"), vec![b'f'; 100 << 10]).unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let snapshot = || workspace.view_of(snapshot(&workspace, branch)).unwrap();

    // Found under one name, removed by the other.
    make(&view, "a/made", b"");
    let before = snapshot();
    let (a, _) = (at(&view, "a/x"), at(&view, "b/y"));
    view.unlink(at(&view, "a"), b"x").unwrap();
    view.write(a, 0, b"L").unwrap();
    assert_eq!(told(&before, &snapshot()), ["D a/x", "M b/y"]);

    // Cut and grown again, with the time put back: no chunk says so.
    let f = at(&view, "f");
    view.setattr(f, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    let before = snapshot();
    let then = view.getattr(f).unwrap().mtime;
    for size in [0, 100 << 10] {
        view.setattr(f, SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
    }
    view.setattr(f, SetAttr { mtime: Some(ah_agentfs::SetTime::At(then)), ..SetAttr::default() }).unwrap();
    assert_eq!(told(&before, &snapshot()), ["M f"]);

    // The filesystem below gives a number to another directory that the branch has removed one of.
    make(&view, "p/made", b"");
    let before = snapshot();
    view.unlink(at(&view, "p"), b"made").unwrap();
    view.rmdir(ROOT, b"p").unwrap();
    std::fs::remove_dir(lower.join("p")).unwrap();
    std::fs::create_dir_all(lower.join("q/sub")).unwrap();
    std::fs::write(lower.join("q/sub/file"), "").unwrap();
    view.write(at(&view, "q/sub/file"), 0, b"mine").unwrap();
    let (now, known) = (snapshot(), ["D p", "D p/made"]);
    let all = before.differences(&now, &|_| true);
    // Where the number was not used again, the directory is simply one that came later.
    match all {
        Ok(Some(all)) => assert!(all.list.iter().any(|found| found.path == b"q/sub/file"), "{all:?}"),
        Ok(None) | Err(Error::DataLoss { .. }) => {}
        Err(error) => panic!("{error}, with {known:?}"),
    }
}

#[test]
fn what_a_snapshot_had_is_never_guessed() {
    let place = Place::new();
    let lower = place.lower();
    for directory in ["build", "src"] {
        std::fs::create_dir(lower.join(directory)).unwrap();
        std::fs::write(lower.join(directory).join("file"), "then").unwrap();
    }
    for name in ["f", "moved", "n"] {
        std::fs::write(lower.join(name), "then").unwrap();
    }
    for with_names in [false, true] {
        let store = tempfile::tempdir().unwrap();
        let (store, copy) = (store.path().join("store"), store.path().join("lower"));
        let copied = std::process::Command::new("cp").arg("-a").args([&lower, &copy]).status().unwrap();
        assert!(copied.success());
        ah_agentfs::Workspace::create(&store, &copy).unwrap();
        let options = ah_agentfs::Options { background: false, ..ah_agentfs::Options::default() };
        let workspace = ah_agentfs::Workspace::open(&store, &copy, options).unwrap();
        let base = if with_names { workspace.base_with_names(b"") } else { workspace.base(b"") }.unwrap();
        let of = |n: u32| workspace.branch(base, n.to_string().as_bytes()).unwrap();
        let base = workspace.view_of(base).unwrap();
        let lost = |what: &str, answer: Result<Option<ah_agentfs::Differences>, Error>| match answer {
            Err(Error::DataLoss { .. }) => true,
            Ok(Some(told)) => told.list.iter().any(|found| found.lost),
            other => panic!("{what}, {with_names}: {other:?}"),
        };

        // A file in the branch, a directory below now.
        let one = workspace.view(of(1)).unwrap();
        one.write(at(&one, "f"), 0, b"mine").unwrap();
        std::fs::remove_file(copy.join("f")).unwrap();
        std::fs::create_dir(copy.join("f")).unwrap();
        assert!(lost("a directory", base.differences(&one, &|path| path == b"f")), "{with_names}");

        // Removed in both, and made again below.
        let two = workspace.view(of(2)).unwrap();
        two.unlink(at(&two, "build"), b"file").unwrap();
        two.rmdir(ROOT, b"build").unwrap();
        std::fs::remove_dir_all(copy.join("build")).unwrap();
        std::fs::create_dir(copy.join("build")).unwrap();
        assert!(lost("made again", base.differences(&two, &|path| path.starts_with(b"build"))), "{with_names}");

        // Renamed in the branch, and so brought home: nothing is left of it below.
        let three = workspace.view(of(3)).unwrap();
        three.rename(ROOT, b"moved", ROOT, b"here", Rename::Replace).unwrap();
        std::fs::rename(copy.join("moved"), copy.join("here")).unwrap();
        assert!(lost("renamed", base.differences(&three, &|path| path == b"moved" || path == b"here")), "{with_names}");

        // Worked in, and all of it removed below.
        let four = workspace.view(of(4)).unwrap();
        four.write(at(&four, "src/file"), 0, b"mine").unwrap();
        make(&four, "src/new", b"mine");
        std::fs::remove_dir_all(copy.join("src")).unwrap();
        assert!(lost("all removed", base.differences(&four, &|path| path.starts_with(b"src"))), "{with_names}");

        // Away for a while, and back.
        let five = workspace.view(of(5)).unwrap();
        std::fs::rename(copy.join("n"), copy.join("away")).unwrap();
        make(&five, "n", b"mine");
        std::fs::rename(copy.join("away"), copy.join("n")).unwrap();
        assert!(lost("back", base.differences(&five, &|path| path == b"n")), "{with_names}");
    }
}

#[test]
fn what_a_branch_showed_of_what_came_later_is_not_forgotten() {
    let place = Place::new();
    let lower = place.lower();
    std::fs::create_dir(lower.join("modules")).unwrap();
    std::fs::write(lower.join("modules/old"), "").unwrap();
    let workspace = place.create();
    let base = workspace.base_with_names(b"").unwrap();
    let branch = workspace.branch(base, b"").unwrap();
    let view = workspace.view(branch).unwrap();
    // Seen in the branch, and renamed there; a snapshot in between has it under neither name, and does not say that it had nothing.
    std::fs::write(lower.join("notes"), "later").unwrap();
    assert_eq!(content(&view, "notes"), b"later");
    let then = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    view.rename(ROOT, b"notes", ROOT, b"docs", Rename::Replace).unwrap();
    let told = then.differences(&workspace.look(branch).unwrap(), &|_| true).unwrap().unwrap().list;
    let notes = told.iter().find(|found| found.path == b"notes").unwrap();
    assert!(notes.lost && notes.after.is_none(), "{told:?}");
    assert!(notes.absent, "the snapshot does not show it: {told:?}");
    assert!(told.iter().any(|found| found.path == b"docs" && found.before.is_none()), "{told:?}");
    // The base itself knows that it had none.
    let told = workspace.view_of(base).unwrap().differences(&view, &|_| true).unwrap().unwrap().list;
    assert!(told.iter().all(|found| found.path != b"notes"), "{told:?}");

    // Another directory in the place of one: its names are its own, also where the branch has made something in it.
    std::fs::rename(lower.join("modules"), lower.join("away")).unwrap();
    std::fs::create_dir(lower.join("modules")).unwrap();
    std::fs::write(lower.join("modules/new"), "").unwrap();
    make(&view, "modules/mine", b"");
    let now = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    let names: Vec<_> = now.list(at(&now, "modules")).unwrap().into_iter().map(|entry| entry.name).collect();
    assert!(names.contains(&b"mine".to_vec()) && names.contains(&b"new".to_vec()), "{names:?}");
    assert!(!names.contains(&b"old".to_vec()), "{names:?}");
}

#[test]
fn names_go_with_their_base_however_many_and_whatever_is_under_way() {
    let place = Place::new();
    let lower = place.lower();
    for n in 0..2000 {
        std::fs::create_dir(lower.join(n.to_string())).unwrap();
    }
    drop(place.create());
    let open = || ah_agentfs::Workspace::open(&place.store(), &lower, ah_agentfs::Options::default()).unwrap();
    let workspace = open();
    let base = workspace.base_with_names(b"").unwrap();
    workspace.checkpoint().unwrap();
    let began = std::time::Instant::now();
    workspace.delete_snapshot(base).unwrap();
    workspace.reclaim().unwrap();
    let one = began.elapsed();
    // Removed while its names are still being written down.
    for _ in 0..5 {
        let base = workspace.base(b"").unwrap();
        std::thread::sleep(Duration::from_millis(2));
        workspace.delete_snapshot(base).unwrap();
        workspace.reclaim().unwrap();
    }
    workspace.sync().unwrap();
    drop(workspace);
    let report = ah_agentfs::Workspace::fsck(&place.store(), &lower, false).unwrap();
    assert_eq!((report.problems, report.rows), (Vec::new(), 0), "{one:?}");
}

#[test]
fn a_snapshot_finds_what_a_branch_changed_at_no_name_that_was_anothers() {
    for fate in ["moved there", "linked there", "alone", "moved and back"] {
        let place = Place::new();
        let lower = place.lower();
        for name in ["x", "z"] {
            std::fs::write(lower.join(name), name).unwrap();
        }
        std::fs::hard_link(lower.join("x"), lower.join("y")).unwrap();
        let workspace = place.create();
        let base = workspace.base_with_names(b"").unwrap();
        workspace.take_fingerprints(base).unwrap();
        let branch = workspace.branch(base, b"").unwrap();
        let view = workspace.view(branch).unwrap();
        view.write(at(&view, "x"), 0, b"mine").unwrap();
        let id = snapshot(&workspace, branch);
        let shown = |name: &str| {
            let tree = workspace.view_of(id).unwrap();
            match tree.lookup(ROOT, name.as_bytes()).and_then(|attr| tree.read(attr.ino, 0, 10)) {
                Err(Error::DataLoss { .. }) => None,
                bytes => Some(bytes.unwrap()),
            }
        };
        let shows = |name: &str, bytes: &[u8]| shown(name).is_none_or(|shown| shown == bytes);
        assert_eq!(["x", "y", "z"].map(|name| shown(name).unwrap()), [&b"mine"[..], b"mine", b"z"]);
        match fate {
            "moved there" => std::fs::rename(lower.join("y"), lower.join("z")).unwrap(),
            "linked there" => {
                std::fs::remove_file(lower.join("z")).unwrap();
                std::fs::hard_link(lower.join("x"), lower.join("z")).unwrap();
            }
            "alone" => std::fs::remove_file(lower.join("x")).unwrap(),
            _ => {
                std::fs::rename(lower.join("y"), lower.join("away")).unwrap();
                std::fs::rename(lower.join("away"), lower.join("y")).unwrap();
                assert_eq!(shown("y").unwrap(), b"mine", "it is the one that it was");
            }
        }
        assert_eq!(shown("x").unwrap(), b"mine", "{fate}");
        assert!(shows("y", b"mine") && shows("z", b"z"), "{fate}");
    }
}

#[test]
fn a_directory_of_which_nothing_is_known_any_more_is_lost_and_the_rest_is_told() {
    for (in_between, made_anew) in [(false, false), (false, true), (true, false), (true, true)] {
        let place = Place::new();
        let lower = place.lower();
        let plant = |text: &str| {
            std::fs::create_dir_all(lower.join("nm/pkg")).unwrap();
            std::fs::write(lower.join("nm/pkg/file"), text).unwrap();
        };
        plant("then");
        for directory in ["worked", "other"] {
            std::fs::create_dir_all(lower.join(directory).join("in")).unwrap();
            std::fs::write(lower.join(directory).join("in/file"), "then").unwrap();
        }
        std::fs::write(lower.join("a"), "then").unwrap();
        let workspace = place.create();
        let base = workspace.base(b"base").unwrap();
        let branch = workspace.branch(base, b"branch").unwrap();
        let view = workspace.view(branch).unwrap();
        let before = if in_between { snapshot(&workspace, branch) } else { base };
        view.write(at(&view, "worked/in/file"), 0, b"mine").unwrap();
        make(&view, "worked/in/new", b"mine");
        view.write(at(&view, "a"), 0, b"mine").unwrap();
        make(&view, "b", b"mine");
        for directory in ["nm", "worked", "other"] {
            std::fs::remove_dir_all(lower.join(directory)).unwrap();
        }
        if made_anew {
            plant("other");
            for (directory, name) in [("nm/pkg", "file"), ("nm", "pkg"), ("", "nm")] {
                match name {
                    "file" => view.unlink(at(&view, directory), name.as_bytes()).unwrap(),
                    _ => view.rmdir(at(&view, directory), name.as_bytes()).unwrap(),
                }
            }
            std::fs::create_dir_all(lower.join("worked/in")).unwrap();
            std::fs::write(lower.join("worked/in/file"), "other").unwrap();
        }
        let from = workspace.view_of(before).unwrap();
        let now = workspace.view_of(snapshot(&workspace, branch)).unwrap();
        for (one, other) in [(&from, &now), (&now, &from), (&from, &workspace.look(branch).unwrap())] {
            let told = one.differences(other, &|_| true).unwrap();
            let told = told.unwrap_or_else(|| panic!("{in_between}, {made_anew}")).list;
            let is_lost = |path: &str| told.iter().find(|found| found.path == path.as_bytes()).map(|found| found.lost);
            let all = (in_between, made_anew, &told);
            assert_eq!((is_lost("a"), is_lost("b")), (Some(false), Some(false)), "{all:?}");
            // There was none when the branch made it; in another directory that is not known.
            assert!(is_lost("worked/in/new").is_some(), "{all:?}");
            for path in ["nm", "worked/in/file"] {
                // The branch showed nothing of the one that was merely removed, and changed nothing there.
                assert_eq!(is_lost(path), (path != "nm" || made_anew).then_some(true), "{path}: {all:?}");
            }
            assert_eq!(is_lost("other"), None, "{all:?}");
            assert!(
                told.iter()
                    .all(|found| found.lost || [&b""[..], b"a", b"b", b"worked/in/new"].contains(&&found.path[..])),
                "{all:?}"
            );
        }
    }
}
