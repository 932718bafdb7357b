//! Files below that were touched, linked or replaced by equal ones are the same to a snapshot, and others never are.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use ah_agentfs::{BranchId, Error, ROOT, SetAttr, View, Workspace};

use crate::{Place, at, content, make, snapshot};

const FATES: [&str; 6] = ["touched", "linked", "closed", "there and back", "replaced", "rewritten"];

fn done_to(path: &Path, fate: &str, aside: &Path) {
    let bytes = std::fs::read(path).unwrap();
    let open = || std::fs::File::options().write(true).open(path).unwrap();
    match fate {
        "touched" => open().set_modified(SystemTime::UNIX_EPOCH).unwrap(),
        "linked" => std::fs::hard_link(path, aside.join("link")).unwrap(),
        "closed" => std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o444)).unwrap(),
        "there and back" => {
            open().write_all_at(b"other", 0).unwrap();
            open().write_all_at(&bytes, 0).unwrap();
        }
        "replaced" => {
            std::fs::write(aside.join("equal"), &bytes).unwrap();
            std::fs::rename(aside.join("equal"), path).unwrap();
        }
        _ => {
            std::fs::remove_file(path).unwrap();
            std::fs::write(path, &bytes).unwrap();
        }
    }
}

/// A base with fingerprints, without pins, and a branch of it.
fn begin(place: &Place) -> (Workspace, BranchId) {
    let workspace = place.create();
    let base = workspace.base_with_names(b"base").unwrap();
    workspace.take_fingerprints(base).unwrap();
    let branch = workspace.branch(base, b"branch").unwrap();
    (workspace, branch)
}

fn lost(view: &View, path: &str) -> bool {
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let found = view.lookup(at(view, above), name.as_bytes()).and_then(|attr| view.read(attr.ino, 0, 1 << 20));
    matches!(found, Err(Error::DataLoss { .. }))
}

#[test]
fn a_link_that_points_where_it_did_is_the_same() {
    use std::os::unix::fs::symlink;
    let place = Place::new();
    let lower = |name: &str| place.lower().join(name);
    for name in ["touched", "linked", "anew", "other", "file", "longer"] {
        symlink("some/where", lower(name)).unwrap();
    }
    let (workspace, branch) = begin(&place);
    let old = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    let was = |name: &str| old.lookup(ROOT, name.as_bytes()).unwrap();
    let (touched, anew) = (was("touched"), was("anew"));
    let nowhere = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: nowhere, last_modification: nowhere };
    rustix::fs::utimensat(rustix::fs::CWD, lower("touched"), &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    std::fs::hard_link(lower("linked"), place.store().join("aside")).unwrap();
    for name in ["anew", "other", "file", "longer"] {
        std::fs::remove_file(lower(name)).unwrap();
    }
    symlink("some/where", lower("anew")).unwrap();
    symlink("some/thing", lower("other")).unwrap();
    std::fs::write(lower("file"), "some/where").unwrap();
    symlink("some/where/else", lower("longer")).unwrap();
    let kept = |attr: &ah_agentfs::Attr| (attr.ino, attr.mtime, attr.ctime, attr.btime, attr.size);
    let again = workspace.view_of(workspace.snapshots().last().unwrap().id).unwrap();
    for tree in [&old, &again] {
        for name in ["touched", "linked", "anew"] {
            let attr = tree.lookup(ROOT, name.as_bytes()).unwrap();
            assert_eq!(tree.readlink(attr.ino).unwrap(), b"some/where", "{name}");
        }
        assert_eq!(kept(&tree.lookup(ROOT, b"touched").unwrap()), kept(&touched));
        assert_eq!(kept(&tree.lookup(ROOT, b"anew").unwrap()), kept(&anew));
        for name in ["other", "file", "longer"] {
            assert!(matches!(tree.lookup(ROOT, name.as_bytes()), Err(Error::DataLoss { .. })), "{name}");
        }
    }
    let view = workspace.view(branch).unwrap();
    for name in ["touched", "linked", "anew", "other", "file", "longer"] {
        view.hear_of_change(ROOT, name.as_bytes()).unwrap();
    }
    assert_eq!(workspace.changed_below(branch).unwrap(), [&b"file"[..], b"longer", b"other"]);
    // A later base knows it from the earlier one.
    let second = workspace.base_with_names(b"second").unwrap();
    workspace.take_fingerprints(second).unwrap();
    std::fs::remove_file(lower("other")).unwrap();
    symlink("some/thing", lower("other")).unwrap();
    let tree = workspace.view_of(second).unwrap();
    assert_eq!(tree.readlink(tree.lookup(ROOT, b"other").unwrap().ino).unwrap(), b"some/thing");
    drop((view, old, again, tree, workspace));
    place.check();
}

#[test]
fn a_file_that_holds_the_same_is_the_same() {
    for fate in FATES {
        let place = Place::new();
        std::fs::create_dir(place.lower().join("d")).unwrap();
        for name in ["file", "empty", "taken"] {
            let bytes = if name == "empty" { Vec::new() } else { vec![b'o'; 200_000] };
            std::fs::write(place.lower().join("d").join(name), bytes).unwrap();
        }
        let (workspace, branch) = begin(&place);
        let view = workspace.view(branch).unwrap();
        view.write(at(&view, "d/taken"), 100_000, b"T").unwrap();
        let old = workspace.view_of(snapshot(&workspace, branch)).unwrap();
        // One that a host has looked at before, and has open.
        let known = old.lookup(at(&old, "d"), b"file").unwrap();
        assert_eq!(old.read(known.ino, 0, 1).unwrap(), b"o");
        let aside = tempfile::tempdir_in(place.store()).unwrap();
        for name in ["file", "taken"] {
            let aside = tempfile::tempdir_in(&aside).unwrap();
            done_to(&place.lower().join("d").join(name), fate, aside.path());
        }
        if fate != "there and back" {
            done_to(&place.lower().join("d/empty"), fate, aside.path());
        }
        let again = workspace.view_of(workspace.snapshots().last().unwrap().id).unwrap();
        for tree in [&old, &again] {
            assert_eq!(content(tree, "d/file"), vec![b'o'; 200_000], "{fate}");
            assert_eq!(content(tree, "d/empty"), b"", "{fate}");
            let attr = tree.lookup(at(tree, "d"), b"file").unwrap();
            // As it was then, in all that is kept.
            let kept = |attr: &ah_agentfs::Attr| (attr.ino, attr.mode, attr.mtime, attr.ctime, attr.btime, attr.size);
            assert_eq!(kept(&attr), kept(&known), "{fate}");
            assert_eq!(tree.listxattr(attr.ino).unwrap(), Vec::<Vec<u8>>::new(), "{fate}");
        }
        assert_eq!(old.read(known.ino, 199_999, 2).unwrap(), b"o", "{fate}");
        for tree in [&view, &old] {
            assert_eq!(tree.read(at(tree, "d/taken"), 99_999, 3).unwrap(), b"oTo", "{fate}: taken over in part");
        }
        // A look of the branch at all of it hears of nothing but what shows otherwise than in its snapshots.
        assert_eq!(content(&view, "d/file").len(), 200_000);
        for name in ["file", "taken", "empty"] {
            view.hear_of_change(at(&view, "d"), name.as_bytes()).unwrap();
        }
        let told: &[&[u8]] = if fate == "closed" { &[b"d/empty", b"d/file"] } else { &[] };
        assert_eq!(workspace.changed_below(branch).unwrap(), told, "{fate}");
        let base = workspace.view_of(workspace.snapshots()[0].id).unwrap();
        let differences = base.differences(&view, &|_| true).unwrap().unwrap();
        let told: Vec<_> = differences.list.iter().map(|found| (found.path.as_slice(), found.lost)).collect();
        assert_eq!(told, [(b"d/taken".as_slice(), false)], "{fate}");
        drop((view, old, again, base));
        // Written to in the branch it is the branch's own, and the snapshots have what they had.
        let view = workspace.view(branch).unwrap();
        view.write(at(&view, "d/file"), 0, b"mine").unwrap();
        workspace.copy_taken_over().unwrap();
        std::fs::remove_dir_all(place.lower().join("d")).unwrap();
        assert_eq!(content(&view, "d/file")[..5], *b"mineo", "{fate}");
        drop((view, workspace));
        place.check();
    }
}

#[test]
fn other_bytes_are_never_shown_whatever_the_times_say() {
    let place = Place::new();
    for name in ["same-size", "shorter", "swapped", "attribute", "late"] {
        std::fs::write(place.lower().join(name), format!("{name:20}")).unwrap();
    }
    let (workspace, branch) = begin(&place);
    let old = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    let known = at(&old, "late");
    assert_eq!(old.read(known, 0, 4).unwrap(), b"late");
    let lower = |name: &str| place.lower().join(name);
    let put_back = |name: &str, time: SystemTime| {
        std::fs::File::options().write(true).open(lower(name)).unwrap().set_modified(time).unwrap();
    };
    for name in ["same-size", "shorter", "late"] {
        let time = std::fs::metadata(lower(name)).unwrap().modified().unwrap();
        let bytes = if name == "shorter" { &b"other"[..] } else { b"other, but as long.." };
        std::fs::write(lower(name), bytes).unwrap();
        put_back(name, time);
    }
    std::fs::write(lower("swapped.new"), format!("{:20}", "same-size")).unwrap();
    std::fs::rename(lower("swapped.new"), lower("swapped")).unwrap();
    for name in ["same-size", "shorter", "swapped", "late"] {
        assert!(lost(&old, name), "{name}");
    }
    assert!(matches!(old.read(known, 0, 4), Err(Error::DataLoss { .. })));
    // And once it holds what it held, it is there again: each change is looked at anew.
    for round in 0..3 {
        std::fs::write(lower("late"), format!("{:20}", "late")).unwrap();
        assert_eq!(content(&old, "late")[..4], *b"late", "{round}");
        std::fs::write(lower("late"), format!("{:20}", "LATE")).unwrap();
        assert!(lost(&old, "late"), "{round}");
    }
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(lower("attribute"), "user.name", b"value", flags).is_ok() {
        assert!(lost(&old, "attribute"), "its attributes are not what they were");
        rustix::fs::removexattr(lower("attribute"), "user.name").unwrap();
    }
    assert_eq!(content(&old, "attribute")[..4], *b"attr");
    let told = workspace.changed_below(branch).unwrap();
    let told: Vec<_> = told.iter().map(|path| std::str::from_utf8(path).unwrap()).collect();
    assert_eq!(told, ["late", "same-size", "shorter", "swapped"]);
}

#[test]
fn a_directory_in_the_place_of_another_is_not_that() {
    let place = Place::new();
    for name in ["a", "b"] {
        std::fs::create_dir(place.lower().join(name)).unwrap();
        std::fs::write(place.lower().join(name).join("f"), "same").unwrap();
    }
    let (workspace, branch) = begin(&place);
    let old = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    std::fs::rename(place.lower().join("a"), place.lower().join("c")).unwrap();
    std::fs::rename(place.lower().join("b"), place.lower().join("a")).unwrap();
    std::fs::write(place.lower().join("a/f"), "same").unwrap();
    // It is there still, with its names; what is in the other is not its file's.
    let a = at(&old, "a");
    assert_eq!(old.list(a).unwrap().len(), 1);
    assert!(matches!(old.lookup(a, b"f"), Err(Error::DataLoss { .. })));
}

#[test]
fn a_later_base_reads_what_was_changed_alone() {
    let place = Place::new();
    for name in ["same", "changed"] {
        std::fs::write(place.lower().join(name), name).unwrap();
    }
    let (workspace, branch) = begin(&place);
    // A clock of whole seconds would not tell.
    let read = |name: &str| std::fs::metadata(place.lower().join(name)).unwrap().atime();
    std::fs::write(place.lower().join("changed"), "CHANGED").unwrap();
    let past = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 },
        last_modification: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT as _ },
    };
    for name in ["same", "changed"] {
        let file = std::fs::File::open(place.lower().join(name)).unwrap();
        rustix::fs::futimens(&file, &past).unwrap();
    }
    let before = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    assert_eq!(content(&before, "same"), b"same", "a change of the time of access moves the change time too");
    assert!(lost(&before, "changed"));
    let base = workspace.base_with_names(b"").unwrap();
    workspace.take_fingerprints(base).unwrap();
    let third = workspace.base_with_names(b"").unwrap();
    let times = [read("same"), read("changed")];
    workspace.take_fingerprints(third).unwrap();
    assert_eq!([read("same"), read("changed")], times);
    // Each base has its own, and takes it along.
    drop(before);
    for snapshot in workspace.snapshots().into_iter().filter(|info| info.id != third) {
        workspace.delete_snapshot(snapshot.id).unwrap();
    }
    workspace.delete_branch(branch).unwrap();
    workspace.reclaim().unwrap();
    for name in ["same", "changed"] {
        done_to(&place.lower().join(name), "touched", &place.store());
    }
    let view = workspace.view_of(third).unwrap();
    assert_eq!((content(&view, "same"), content(&view, "changed")), (b"same".to_vec(), b"CHANGED".to_vec()));
    drop(view);
    workspace.delete_snapshot(third).unwrap();
    workspace.reclaim().unwrap();
    workspace.sync().unwrap();
    drop(workspace);
    let report = Workspace::fsck(&place.store(), &place.lower(), false).unwrap();
    assert_eq!((report.problems, report.rows), (Vec::new(), 0));
}

#[test]
fn a_racing_writer_below_gets_nothing_under_a_snapshots_name() {
    let place = Place::new();
    let path = place.lower().join("file");
    let [then, other] = [vec![b't'; 100_000], vec![b'o'; 100_000]];
    std::fs::write(&path, &then).unwrap();
    let (workspace, branch) = begin(&place);
    let id = snapshot(&workspace, branch);
    let (shown, refused) = (AtomicU32::new(0), AtomicU32::new(0));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            for round in 0.. {
                for (bytes, rest, reads) in [(&other, 1, &refused), (&then, 12, &shown)] {
                    let seen = reads.load(Relaxed);
                    file.write_all_at(bytes, 0).unwrap();
                    std::thread::sleep(Duration::from_millis(rest));
                    // However slow the machine is, now and then one that lies within the rest has its turn.
                    while round % 8 == 0 && reads.load(Relaxed) == seen && !stop.load(Relaxed) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
                if stop.load(Relaxed) {
                    break;
                }
            }
        });
        let begun = Instant::now();
        let both = || shown.load(Relaxed) > 0 && refused.load(Relaxed) > 0;
        while begun.elapsed().as_secs() < 3 || (!both() && begun.elapsed().as_secs() < 60) {
            let of_view = |view: View| view.read(view.lookup(ROOT, b"file")?.ino, 0, 1 << 20);
            let read = match workspace.view_of(id).and_then(of_view) {
                Ok(bytes) if bytes == then => &shown,
                Err(Error::DataLoss { .. }) => &refused,
                wrong => {
                    stop.store(true, Relaxed);
                    panic!("other bytes, or {:?}", wrong.err());
                }
            };
            read.fetch_add(1, Relaxed);
        }
        stop.store(true, Relaxed);
    });
    assert!(shown.into_inner() > 0 && refused.into_inner() > 0, "one or the other was never seen");
}

#[test]
fn what_a_branch_has_over_it_is_not_harmed() {
    let place = Place::new();
    std::fs::create_dir(place.lower().join("d")).unwrap();
    std::fs::write(place.lower().join("d/one"), "one").unwrap();
    std::fs::hard_link(place.lower().join("d/one"), place.lower().join("d/two")).unwrap();
    let (workspace, branch) = begin(&place);
    let view = workspace.view(branch).unwrap();
    let start = snapshot(&workspace, branch);
    view.setattr(at(&view, "d/one"), SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    make(&view, "d/three", b"three");
    done_to(&place.lower().join("d/two"), "replaced", &place.store());
    let old = workspace.view_of(start).unwrap();
    for name in ["d/one", "d/two"] {
        assert_eq!(content(&old, name), b"one", "{name}");
        assert_eq!(old.getattr(at(&old, name)).unwrap().mode & 0o777, 0o644, "{name}");
    }
    assert_eq!(at(&old, "d/one"), at(&old, "d/two"), "two names of one file, as then");
}
