//! What branches show where what is below is pinned: what was there, whatever is done below; before it is pinned, what is there.

use std::os::unix::fs::PermissionsExt;

use ah_agentfs::{BranchId, Error, Kind, Options, ROOT, SetAttr, View, Workspace};

use crate::pinned::plant;
use crate::pins::{begin, only_pin, pins};
use crate::{Place, at, content, everything, make, on_each_disk, snapshot};

#[test]
fn a_branch_goes_on_as_it_was_and_nothing_is_told() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        plant(&place.lower());
        let (workspace, branch): (Workspace, BranchId) = begin(&place);
        let view = workspace.view(branch).unwrap();
        std::fs::write(place.lower().join("top"), "new").unwrap();
        std::fs::remove_dir_all(place.lower().join("src")).unwrap();
        assert_eq!(content(&view, "top"), b"top");
        for name in ["top", "src"] {
            view.hear_of_change(ROOT, name.as_bytes()).unwrap();
        }
        assert_eq!(workspace.changed_below(branch).unwrap(), Vec::<Vec<u8>>::new());
        make(&view, "src/mine", b"mine");
        view.write(at(&view, "src/deep/two"), 1, b"mine").unwrap();
        view.setattr(at(&view, "src/one"), SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        workspace.copy_taken_over().unwrap();
        let id = snapshot(&workspace, branch);
        for tree in [&workspace.view_of(id).unwrap(), &view] {
            assert_eq!((content(tree, "src/deep/two"), content(tree, "src/one")), (b"tmine".to_vec(), b"one".to_vec()));
            assert_eq!(content(tree, "src/mine"), b"mine");
        }
        let second = workspace.branch(id, b"").unwrap();
        assert_eq!(everything(&workspace.view(second).unwrap()), everything(&view));
        drop(view);
        drop(workspace);
        place.check();
    });
}

#[test]
fn what_is_not_pinned_is_shown_as_it_is_and_told() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        std::fs::create_dir(place.lower().join("pack")).unwrap();
        for name in ["pack/large", "pack/in place"] {
            std::fs::File::create(place.lower().join(name)).unwrap().set_len(65 << 20).unwrap();
        }
        std::fs::write(place.lower().join("pack/small"), "small").unwrap();
        let (workspace, branch): (Workspace, BranchId) = begin(&place);
        let view = workspace.view(branch).unwrap();
        // Another has what was in it.
        std::fs::write(place.lower().join("pack/new"), "new").unwrap();
        let pack = at(&view, "pack");
        assert!(matches!(view.lookup(pack, b"new"), Err(Error::NotFound)), "all that was there is");
        std::fs::remove_file(place.lower().join("pack/large")).unwrap();
        std::fs::remove_file(place.lower().join("pack/small")).unwrap();
        std::fs::write(place.lower().join("pack/in place"), "now").unwrap();
        for name in ["large", "small", "in place", "new"] {
            view.hear_of_change(pack, name.as_bytes()).unwrap();
        }
        assert!(matches!(view.lookup(pack, b"large"), Err(Error::NotFound)));
        assert_eq!((content(&view, "pack/new"), content(&view, "pack/small")), (b"new".to_vec(), b"small".to_vec()));
        assert_ne!(at(&view, "pack/new"), at(&view, "pack/small"), "the number may have been given out again");
        assert_eq!(content(&view, "pack/in place"), b"now");
        let names: Vec<_> = view.list(pack).unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!((names.len(), names.contains(&b"new".to_vec())), (3, true));
        let told = workspace.changed_below(branch).unwrap();
        assert_eq!(told, [&b"pack/in place"[..], b"pack/large", b"pack/new"]);
    });
}

/// Removes everything in a directory, as `rm -r` does.
fn clear(view: &View, directory: u64) {
    for entry in view.list(directory).unwrap() {
        let ino = view.lookup(directory, &entry.name).unwrap().ino;
        match entry.kind {
            Kind::Directory => {
                clear(view, ino);
                view.rmdir(directory, &entry.name).unwrap();
            }
            _ => view.unlink(directory, &entry.name).unwrap(),
        }
    }
}

#[test]
fn a_directory_made_anew_below_and_removed_in_the_branch_stops_no_diff() {
    on_each_disk(|disk| {
        for order in 0..8 {
            let place = Place::on(&disk);
            let lower = place.lower();
            let plant = |bytes: &[u8]| {
                std::fs::create_dir_all(lower.join("nm/pkg/deep")).unwrap();
                std::fs::File::create(lower.join("nm/pkg/native")).unwrap().set_len(65 << 20).unwrap();
                for name in ["nm/pkg/small", "nm/pkg/deep/one"] {
                    std::fs::write(lower.join(name), bytes).unwrap();
                }
            };
            plant(b"then");
            std::fs::write(lower.join("a"), "then").unwrap();
            let (workspace, branch): (Workspace, BranchId) = begin(&place);
            let view = workspace.view(branch).unwrap();
            let then = snapshot(&workspace, branch);
            std::fs::remove_dir_all(lower.join("nm")).unwrap();
            // The new ones get the numbers of the old ones, each time of others.
            for n in 0..order {
                std::fs::write(lower.join(format!("new{n}")), "").unwrap();
            }
            plant(b"other");
            clear(&view, at(&view, "nm"));
            view.rmdir(ROOT, b"nm").unwrap();
            view.write(at(&view, "a"), 0, b"mine").unwrap();
            let now = workspace.view_of(snapshot(&workspace, branch)).unwrap();
            for (from, to) in [(workspace.view_of(then).unwrap(), &now), (workspace.view_of(then).unwrap(), &view)] {
                let told = from.differences(to, &|_| true).unwrap().unwrap();
                let list: Vec<_> = told.list.iter().filter(|found| found.contents).collect();
                let told = |path: &str| list.iter().find(|found| found.path == path.as_bytes());
                assert!(told("a").is_some_and(|found| !found.lost), "{order}: {list:?}");
                for path in ["nm", "nm/pkg", "nm/pkg/small", "nm/pkg/deep", "nm/pkg/deep/one"] {
                    let found = told(path).unwrap_or_else(|| panic!("{order}, {path}: {list:?}"));
                    assert!(found.before.is_some() && found.after.is_none() && !found.lost, "{order}: {found:?}");
                }
                assert!(
                    told("nm/pkg/native").is_some_and(|found| found.lost && found.after.is_none()),
                    "{order}: {list:?}"
                );
                assert_eq!(list.len(), 7, "{order}: {list:?}");
                assert_eq!(content(&from, "nm/pkg/small"), b"then");
            }
        }
    });
}

#[test]
fn names_that_came_in_both_were_not_there_before() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        let lower = place.lower();
        std::fs::write(lower.join("x"), "then").unwrap();
        let (workspace, branch): (Workspace, BranchId) = begin(&place);
        let view = workspace.view(branch).unwrap();
        let told = |from: &View, to: &View| {
            let told = from.differences(to, &|_| true).unwrap().unwrap().list;
            assert!(told.iter().all(|found| !found.lost), "{told:?}");
            let letter = |found: &ah_agentfs::Difference| match (&found.before, &found.after) {
                (None, _) => 'A',
                (_, None) => 'D',
                _ => 'M',
            };
            let list = told.iter().filter(|found| found.contents);
            list.map(|found| format!("{} {}", letter(found), String::from_utf8_lossy(&found.path))).collect::<Vec<_>>()
        };
        let before = workspace.view_of(snapshot(&workspace, branch)).unwrap();
        let both = |text: &str| {
            std::fs::write(lower.join(format!("y{text}")), text).unwrap();
            std::fs::create_dir(lower.join(format!("dist{text}"))).unwrap();
            std::fs::write(lower.join(format!("dist{text}/x")), text).unwrap();
        };
        let mine = |text: &str| {
            make(&view, &format!("y{text}"), b"mine");
            view.mkdir(ROOT, format!("dist{text}").as_bytes(), crate::ME).unwrap();
            make(&view, &format!("dist{text}/x"), b"mine");
        };
        // In the one order and in the other.
        mine("1");
        both("1");
        both("2");
        mine("2");
        let all = ["A dist1", "A dist1/x", "A dist2", "A dist2/x", "A y1", "A y2"];
        let with = workspace.view_of(snapshot(&workspace, branch)).unwrap();
        assert_eq!(told(&before, &with), all);
        assert_eq!(told(&before, &view), all);
        for text in ["1", "2"] {
            clear(&view, at(&view, &format!("dist{text}")));
            view.rmdir(ROOT, format!("dist{text}").as_bytes()).unwrap();
            view.unlink(ROOT, format!("y{text}").as_bytes()).unwrap();
        }
        assert_eq!(told(&before, &view), [""; 0]);
        assert_eq!(told(&with, &view), all.map(|line| line.replace('A', "D")));
        let now = workspace.view_of(snapshot(&workspace, branch)).unwrap();
        assert_eq!(told(&before, &now), [""; 0]);
        // As a restore makes them anew.
        mine("1");
        mine("2");
        assert_eq!(told(&before, &view), all);
    });
}

#[test]
fn a_branch_goes_on_where_something_was_closed_below() {
    let place = match ah_test_disks::ordinary_users_path() {
        Some(_) => Place::pinned(),
        None => {
            return on_each_disk(|disk| {
                std::fs::set_permissions(disk.at(), std::fs::Permissions::from_mode(0o777)).unwrap();
                ah_test_disks::as_ordinary_user(
                    "isolated::a_branch_goes_on_where_something_was_closed_below",
                    disk.at(),
                );
            });
        }
    };
    plant(&place.lower());
    let (workspace, branch): (Workspace, BranchId) = begin(&place);
    let known = workspace.view(branch).unwrap();
    let was = everything(&known);
    let close = |mode| {
        for closed in ["top", "src/one", "src/deep/er", "src/deep", "src", "other"] {
            // Those within a closed one cannot be reached, nor need they be.
            let _ = std::fs::set_permissions(place.lower().join(closed), std::fs::Permissions::from_mode(mode));
        }
    };
    close(0o000);
    let fresh = workspace.look(branch).unwrap();
    for view in [&known, &fresh] {
        assert_eq!(everything(view), was);
    }
    for name in [b"top".as_slice(), b"src", b"other"] {
        known.hear_of_change(ROOT, name).unwrap();
    }
    assert_eq!(workspace.changed_below(branch).unwrap(), Vec::<Vec<u8>>::new());
    for (path, bytes) in [("src/mine", &b"mine"[..]), ("src/deep/er/mine", b"mine"), ("other/mine", b"mine")] {
        make(&known, path, bytes);
    }
    known.write(at(&known, "src/deep/two"), 1, b"TWO").unwrap();
    known.write(at(&known, "src/deep/er/three"), 5000, b"THREE").unwrap();
    known.unlink(at(&known, "other"), b"four").unwrap();
    known.rename(at(&known, "src"), b"one", ROOT, b"here", ah_agentfs::Rename::Replace).unwrap();
    known.setattr(at(&known, "top"), SetAttr { mode: Some(0o640), ..SetAttr::default() }).unwrap();
    workspace.copy_taken_over().unwrap();
    let then = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    let base = workspace.view_of(workspace.snapshots()[0].id).unwrap();
    for tree in [&known, &then] {
        assert_eq!((content(tree, "src/deep/two"), content(tree, "here")), (b"tTWO".to_vec(), b"one".to_vec()));
        assert_eq!(content(tree, "src/deep/er/three")[4999..5006], *b"3THREE3");
        let told = base.differences(tree, &|_| true).unwrap().unwrap().list;
        assert!(told.iter().all(|found| !found.lost), "{told:?}");
        let told: Vec<_> = told.iter().filter(|found| found.contents).map(|found| found.path.as_slice()).collect();
        let changed = [
            "here",
            "other/four",
            "other/mine",
            "src/deep/er/mine",
            "src/deep/er/three",
            "src/deep/two",
            "src/mine",
            "src/one",
        ];
        assert_eq!(told, changed.map(str::as_bytes));
    }
    clear(&known, at(&known, "src"));
    known.rmdir(ROOT, b"src").unwrap();
    assert!(matches!(known.lookup(ROOT, b"src"), Err(Error::NotFound)));
    close(0o755);
}

#[test]
fn what_was_not_kept_when_the_store_was_closed_is_kept_when_it_is_opened() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        let (directories, files) = (100, 20);
        for d in 0..directories {
            std::fs::create_dir(place.lower().join(d.to_string())).unwrap();
            for n in 0..files {
                std::fs::write(place.lower().join(format!("{d}/{n}")), format!("then {d} {n}")).unwrap();
            }
        }
        drop(place.create());
        let workspace = place.open_with(Options::default());
        let branch = workspace.branch(workspace.base(b"").unwrap(), b"").unwrap();
        let made = || pins(&place.store()).len();
        while made() < 100 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(workspace.is_keeping(branch));
        drop(workspace);
        let (first, all) = (made(), directories * files);
        assert!(first < all, "it was done already");
        // What was kept is so whatever becomes of it, and of what was not, nothing else is.
        let kept: Vec<_> = (0..directories).map(|d| place.lower().join(format!("{d}/0"))).collect();
        kept.iter().for_each(|file| std::fs::write(file, "now").unwrap());
        let workspace = place.open_with(Options::default());
        let begun = std::time::Instant::now();
        while workspace.is_keeping(branch) {
            assert!(begun.elapsed().as_secs() < 60, "{} of {all}", made());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let tree = workspace.view(branch).unwrap();
        let (mut then, mut now) = (0, 0);
        for d in 0..directories {
            match content(&tree, &format!("{d}/0")).as_slice() {
                b"now" => now += 1,
                other => {
                    assert_eq!(other, format!("then {d} 0").as_bytes());
                    then += 1;
                }
            }
            std::fs::remove_dir_all(place.lower().join(d.to_string())).unwrap();
        }
        assert!(then > 0 && now > 0, "{then} {now}");
        for d in 0..directories {
            (1..files).for_each(|n| {
                assert_eq!(content(&tree, &format!("{d}/{n}")), format!("then {d} {n}").as_bytes());
            });
        }
    });
}

#[test]
fn a_name_that_came_is_looked_up_without_listing_its_directory() {
    let place = Place::pinned();
    let lower = place.lower();
    std::fs::create_dir(lower.join("d")).unwrap();
    for n in 0..6000 {
        std::fs::write(lower.join(format!("d/was{n}")), format!("{n}")).unwrap();
    }
    // Nothing is ever pinned of it.
    std::fs::File::create(lower.join("d/large")).unwrap().set_len(65 << 20).unwrap();
    let (workspace, branch) = begin(&place);
    let view = workspace.view(branch).unwrap();
    let d = at(&view, "d");
    let took = |what: &mut dyn FnMut(usize)| {
        let begun = std::time::Instant::now();
        (0..100).for_each(what);
        begun.elapsed()
    };
    for n in 0..100 {
        std::fs::write(lower.join(format!("d/came{n}")), "came").unwrap();
    }
    let shows = |n: usize| match view.lookup(d, format!("came{n}").as_bytes()) {
        Ok(attr) => {
            view.forget(attr.ino, 1);
            true
        }
        Err(Error::NotFound) => false,
        Err(error) => panic!("{error}"),
    };
    assert!(!shows(0));
    let lists = took(&mut |_| assert_eq!(view.list(d).unwrap().len(), 6001));
    let hidden = took(&mut |n| {
        // It goes on.
        std::fs::write(lower.join(format!("d/more{n}")), "came").unwrap();
        assert!(!shows(n));
    });
    assert!(hidden * 5 < lists, "{hidden:?}, {lists:?}");
    // Something is lost: what came shows.
    std::fs::remove_file(lower.join("d/large")).unwrap();
    assert!(shows(0));
    let shown = took(&mut |n| assert!(shows(n)));
    assert!(shown * 5 < lists, "{shown:?}, {lists:?}");
}

#[test]
fn what_came_is_hidden_no_longer_once_a_pin_does_not_match() {
    let place = Place::pinned();
    let lower = place.lower();
    std::fs::create_dir(lower.join("d")).unwrap();
    std::fs::write(lower.join("d/was"), "was").unwrap();
    let (workspace, branch) = begin(&place);
    let view = workspace.view(branch).unwrap();
    std::fs::rename(lower.join("d/was"), lower.join("d/came")).unwrap();
    let d = at(&view, "d");
    assert!(matches!(view.lookup(d, b"came"), Err(Error::NotFound)));
    let pin = only_pin(&place.store());
    std::fs::set_permissions(&pin, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&pin, "saw").unwrap();
    assert!(matches!(view.read(at(&view, "d/was"), 0, 10), Err(Error::Stale)));
    assert_eq!(content(&view, "d/came"), b"was");
}

#[test]
fn a_file_whose_pin_does_not_match_is_not_shown_by_attributes_that_were_the_pins() {
    let place = Place::pinned();
    std::fs::write(place.lower().join("file"), "then").unwrap();
    let (workspace, branch) = begin(&place);
    std::fs::write(place.lower().join("file"), "and it is longer now").unwrap();
    let view = workspace.view(branch).unwrap();
    // As the host knows it.
    let known = view.lookup(ROOT, b"file").unwrap();
    assert_eq!(known.size, 4);
    // A power cut came before it was on the disk.
    let pin = only_pin(&place.store());
    std::fs::set_permissions(&pin, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(&pin, [0; 4]).unwrap();
    assert!(matches!(view.read(known.ino, 0, 4), Err(Error::Stale)));
    // Asked for again, it is what is there.
    assert_eq!(view.lookup(ROOT, b"file").unwrap().size, 20);
    assert_eq!(content(&view, "file"), b"and it is longer now");
}

#[test]
fn what_a_branch_showed_before_it_was_pinned_it_goes_on_showing() {
    let place = Place::pinned();
    let lower = place.lower();
    std::fs::write(lower.join("a"), "then").unwrap();
    std::fs::write(lower.join("b"), "removed").unwrap();
    // These take a while.
    for n in 0..4_u64 {
        std::fs::write(lower.join(format!("c{n}")), n.to_le_bytes().repeat(1 << 18)).unwrap();
    }
    let workspace = place.create();
    let base = workspace.base_with_names(b"base").unwrap();
    let branch = workspace.branch(base, b"branch").unwrap();
    let view = workspace.view(branch).unwrap();
    std::thread::scope(|scope| {
        let pinning = scope.spawn(|| workspace.take_fingerprints(base));
        while pins(&place.store()).iter().filter(|pin| pin.file_name().unwrap().len() == 64).count() < 2 {
            std::thread::yield_now();
        }
        std::fs::write(lower.join("a"), "and now").unwrap();
        std::fs::remove_file(lower.join("b")).unwrap();
        let shown = (content(&view, "a"), view.lookup(ROOT, b"b").map(drop));
        pinning.join().unwrap().unwrap();
        assert_eq!(content(&view, "a"), shown.0);
        assert_eq!(view.lookup(ROOT, b"b").is_ok(), shown.1.is_ok());
    });
    assert!(!workspace.is_keeping(branch));
}
