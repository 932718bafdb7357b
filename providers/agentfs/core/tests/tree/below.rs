//! What has to do with the lower directory: it is never touched, renamed as a whole, and not believed when it was changed.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use ah_agentfs::{Error, ROOT, Rename, SetAttr};

use crate::{ME, Place, at, branch, content, everything, make, snapshot};

#[test]
fn a_directory_of_the_lower_one_moves_as_a_whole() {
    let place = Place::new();
    std::fs::create_dir_all(place.lower().join("a/b")).unwrap();
    std::fs::create_dir_all(place.lower().join("empty")).unwrap();
    std::fs::create_dir_all(place.lower().join("full")).unwrap();
    std::fs::write(place.lower().join("a/b/deep"), "deep").unwrap();
    std::fs::write(place.lower().join("full/file"), "").unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    assert!(matches!(view.rename(ROOT, b"a", ROOT, b"full", Rename::Replace), Err(Error::NotEmpty)));
    let (a, inside) = (at(&view, "a"), at(&view, "a/b"));
    assert!(matches!(view.rename(ROOT, b"a", inside, b"in", Rename::Replace), Err(Error::Invalid(_))));
    assert!(matches!(view.rename(ROOT, b"a", a, b"in", Rename::Replace), Err(Error::Invalid(_))));
    let start = snapshot(&workspace, branch);
    view.rename(ROOT, b"a", ROOT, b"empty", Rename::Replace).unwrap();
    assert_eq!(content(&view, "empty/b/deep"), b"deep");
    assert!(matches!(view.lookup(ROOT, b"a"), Err(Error::NotFound)));
    // What takes the old name does not show what is below it.
    view.mkdir(ROOT, b"a", ME).unwrap();
    assert!(view.list(at(&view, "a")).unwrap().is_empty());
    view.rename(ROOT, b"empty", ROOT, b"full", Rename::Exchange).unwrap();
    assert_eq!(content(&view, "full/b/deep"), b"deep");
    assert_eq!(content(&view, "empty/file"), b"");
    make(&view, "full/b/new", b"new");
    assert!(matches!(view.rename(ROOT, b"a", ROOT, b"full", Rename::NoReplace), Err(Error::Exists)));
    let names = |view: &ah_agentfs::View| everything(view).into_keys().collect::<Vec<_>>();
    let end: [&[u8]; 7] = [b"/a", b"/empty", b"/empty/file", b"/full", b"/full/b", b"/full/b/deep", b"/full/b/new"];
    assert_eq!(names(&view), end);
    let old = workspace.view_of(start).unwrap();
    let begin: [&[u8]; 6] = [b"/a", b"/a/b", b"/a/b/deep", b"/empty", b"/full", b"/full/file"];
    assert_eq!(names(&old), begin);
    workspace.sync().unwrap();
    drop((view, old, workspace));
    place.check();
    let workspace = place.open();
    assert_eq!(names(&workspace.view(branch).unwrap()), end);
    assert_eq!(std::fs::read_dir(place.lower()).unwrap().count(), 3);
}

#[test]
fn four_kilobytes_in_a_large_file_cost_four_kilobytes() {
    let place = Place::new();
    let lower = std::fs::File::create(place.lower().join("large")).unwrap();
    lower.set_len(1 << 30).unwrap();
    lower.write_all_at(b"end", (1 << 30) - 3).unwrap();
    drop(lower);
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = at(&view, "large");
    view.write(ino, 500 << 20, &[1; 4096]).unwrap();
    let first = snapshot(&workspace, branch);
    view.write(ino, 500 << 20, &[2; 4096]).unwrap();
    view.write(ino, (500 << 20) + 10, b"within").unwrap();
    workspace.sync().unwrap();
    assert!(place.data_on_disk() < 1 << 20, "{}", place.data_on_disk());
    assert_eq!(workspace.used(), 2 * 4096);
    assert_eq!(view.getattr(ino).unwrap().size, 1 << 30);
    assert_eq!(view.read(ino, (500 << 20) + 8, 10).unwrap(), b"\x02\x02within\x02\x02");
    assert_eq!(view.read(ino, (500 << 20) - 1, 2).unwrap(), [0, 2]);
    assert_eq!(view.read(ino, (1 << 30) - 4, 100).unwrap(), b"\0end");
    let old = workspace.view_of(first).unwrap();
    let ino = at(&old, "large");
    assert_eq!(old.read(ino, (500 << 20) + 4094, 4).unwrap(), [1, 1, 0, 0]);
    assert!(matches!(old.write(ino, 0, b"no"), Err(Error::ReadOnly)));
    assert_eq!(workspace.usage(&[first]).unwrap(), 4096);
}

#[test]
fn what_was_changed_below_is_not_shown_under_a_snapshots_name() {
    let place = Place::new();
    for name in ["same", "edited", "replaced", "taken", "large"] {
        std::fs::write(place.lower().join(name), vec![b'o'; if name == "large" { 1 << 20 } else { 3 }]).unwrap();
    }
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    view.write(at(&view, "taken"), 0, b"T").unwrap();
    view.write(at(&view, "large"), 4096, b"L").unwrap();
    let old = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    let large = at(&old, "large");
    assert_eq!(old.read(large, 4095, 3).unwrap(), b"oLo");
    assert!(workspace.changed_below(branch).unwrap().is_empty());
    std::fs::write(place.lower().join("edited"), "new").unwrap();
    std::fs::write(place.lower().join("taken"), "new").unwrap();
    std::fs::write(place.lower().join("x"), "new").unwrap();
    std::fs::rename(place.lower().join("x"), place.lower().join("replaced")).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(place.lower().join("large")).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    // Even if the times are put back.
    file.set_modified(std::time::SystemTime::now() - Duration::from_secs(1000)).unwrap();

    assert_eq!(content(&old, "same"), b"ooo");
    assert_eq!(content(&old, "taken"), b"Too", "it was copied when it was written first");
    for name in ["edited", "replaced"] {
        let error = old.lookup(ROOT, name.as_bytes()).unwrap_err();
        assert!(matches!(error, Error::DataLoss { .. }), "{name}: {error}");
    }
    assert_eq!(old.read(large, 4096, 1).unwrap(), b"L", "what was written is ours");
    assert!(matches!(old.read(large, 0, 3), Err(Error::DataLoss { .. })));
    let told = [b"edited".to_vec(), b"large".to_vec(), b"replaced".to_vec()];
    let (first, second) = (snapshot(&workspace, branch), snapshot(&workspace, branch));
    assert_eq!(workspace.newly_changed_below(branch, first).unwrap(), told);
    // The branch goes on with what is there now. It is told once, unless what it was told with is gone.
    assert_eq!(content(&view, "edited"), b"new");
    assert_eq!(workspace.newly_changed_below(branch, second).unwrap(), Vec::<Vec<u8>>::new());
    assert_eq!(workspace.changed_below(branch).unwrap(), told);
    workspace.delete_snapshot(first).unwrap();
    assert_eq!(workspace.newly_changed_below(branch, second).unwrap(), told);
    // Another one that is a line of its own has heard of nothing; what is told of one goes with it.
    let other = workspace.branch(workspace.base(b"now").unwrap(), b"other").unwrap();
    assert_eq!(workspace.changed_below(other).unwrap(), Vec::<Vec<u8>>::new());
    workspace.delete_branch(other).unwrap();
    // From then on it is its own.
    view.write(at(&view, "edited"), 1, b"E").unwrap();
    assert_eq!(workspace.changed_below(branch).unwrap(), [b"large".to_vec(), b"replaced".to_vec()]);
    let later = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    assert_eq!(content(&later, "edited"), b"nEw");
    // A new base knows what is there now.
    let fresh = workspace.view_of(workspace.base(b"now").unwrap()).unwrap();
    assert_eq!(content(&fresh, "edited"), b"new");
    assert_eq!(content(&fresh, "replaced"), b"new");
}

#[test]
fn what_a_branch_took_over_stays_at_its_name_when_an_editor_replaces_the_file_below() {
    let place = Place::new();
    std::fs::write(place.lower().join("file"), "below").unwrap();
    let workspace = place.create();
    let view = workspace.view(branch(&workspace)).unwrap();
    let ino = at(&view, "file");
    view.write(ino, 0, b"OURS!").unwrap();
    std::fs::write(place.lower().join("new"), "theirs").unwrap();
    std::fs::rename(place.lower().join("new"), place.lower().join("file")).unwrap();
    assert_eq!(content(&view, "file"), b"OURS!");
    assert_eq!(at(&view, "file"), ino);
}

#[test]
fn a_link_below_leads_nowhere_outside() {
    let place = Place::new();
    std::fs::create_dir(place.lower().join("directory")).unwrap();
    std::fs::write(place.lower().join("directory/file"), "inside").unwrap();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("file"), "outside").unwrap();
    std::fs::write(outside.path().join("secret"), "outside").unwrap();
    let workspace = place.create();
    let view = workspace.view(branch(&workspace)).unwrap();
    let (directory, file) = (at(&view, "directory"), at(&view, "directory/file"));
    std::fs::rename(place.lower().join("directory"), place.lower().join("away")).unwrap();
    std::os::unix::fs::symlink(outside.path(), place.lower().join("directory")).unwrap();
    assert!(matches!(view.lookup(directory, b"secret"), Err(Error::NotFound)));
    assert!(view.read(file, 0, 10).is_err());
    assert!(view.names_of(directory).is_empty());
}

trait Names {
    fn names_of(&self, directory: u64) -> Vec<Vec<u8>>;
}

impl Names for ah_agentfs::View {
    fn names_of(&self, directory: u64) -> Vec<Vec<u8>> {
        self.list(directory).map_or_else(|_| Vec::new(), |list| list.into_iter().map(|entry| entry.name).collect())
    }
}

#[test]
fn cutting_a_file_below_never_brings_its_old_end_back() {
    let place = Place::new();
    std::fs::write(place.lower().join("file"), vec![b'x'; 300_000]).unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = at(&view, "file");
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    view.setattr(ino, size(100_001)).unwrap();
    view.setattr(ino, size(300_000)).unwrap();
    let bytes = view.read(ino, 0, 400_000).unwrap();
    assert_eq!(bytes.len(), 300_000);
    assert!(bytes[..100_001].iter().all(|&byte| byte == b'x') && bytes[100_001..].iter().all(|&byte| byte == 0));
    assert_eq!(workspace.used(), 0);
    view.write(ino, 100_000, b"yz").unwrap();
    assert_eq!(view.read(ino, 99_999, 4).unwrap(), b"xyz\0");
}

#[test]
fn directories_below_that_are_swapped_do_not_show_each_others_files_in_snapshots() {
    let place = Place::new();
    let path = |name: &str| place.lower().join(name);
    for name in ["D", "G", "taken", "other"] {
        std::fs::create_dir(path(name)).unwrap();
        std::fs::write(path(name).join("x"), name).unwrap();
    }
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "taken/mine", b"mine");
    let id = snapshot(&workspace, branch);
    let old = workspace.view_of(id).unwrap();
    let known = at(&old, "D");
    assert_eq!(content(&old, "taken/x"), b"taken");
    for (name, by) in [("D", "G"), ("taken", "other")] {
        std::fs::rename(path(name), path("away")).unwrap();
        std::fs::rename(path(by), path(name)).unwrap();
        std::fs::rename(path("away"), path(by)).unwrap();
    }
    let lost = |result: Result<u64, Error>| assert!(matches!(result, Err(Error::DataLoss { .. })), "{result:?}");
    let attr = |directory, name: &str| old.lookup(directory, name.as_bytes()).map(|attr| attr.ino);
    lost(attr(known, "x"));
    lost(old.list(known).map(|_| 0));
    lost(attr(ROOT, "D"));
    let taken = at(&old, "taken");
    lost(attr(taken, "x"));
    lost(old.list(taken).map(|_| 0));
    assert_eq!(content(&old, "taken/mine"), b"mine");
    // A view that never saw what was there is not misled either.
    lost(workspace.view_of(id).unwrap().lookup(ROOT, b"D").map(|attr| attr.ino));
    assert_eq!(content(&view, "taken/x"), b"other");
    assert!(workspace.changed_below(branch).unwrap().contains(&b"taken".to_vec()));
}

#[test]
fn what_a_branch_changed_stays_whatever_becomes_of_the_directories_above_it() {
    for fate in ["removed", "made anew", "moved", "replaced by another's number"] {
        let place = Place::new();
        let lower = place.lower();
        std::fs::create_dir_all(lower.join("a/b")).unwrap();
        std::fs::write(lower.join("a/b/f"), "one").unwrap();
        std::fs::write(lower.join("a/b/other"), "other").unwrap();
        let workspace = place.create();
        let branch = branch(&workspace);
        let view = workspace.view(branch).unwrap();
        view.write(at(&view, "a/b/f"), 0, b"two").unwrap();
        let old = workspace.view_of(snapshot(&workspace, branch)).unwrap();
        match fate {
            "removed" => std::fs::remove_dir_all(lower.join("a")).unwrap(),
            "made anew" => {
                std::fs::remove_dir_all(lower.join("a")).unwrap();
                std::fs::create_dir_all(lower.join("a/b")).unwrap();
                std::fs::write(lower.join("a/b/f"), "three").unwrap();
                std::fs::write(lower.join("a/b/other"), "another").unwrap();
            }
            "moved" => std::fs::rename(lower.join("a"), lower.join("z")).unwrap(),
            _ => {
                std::fs::remove_dir_all(lower.join("a")).unwrap();
                // On many filesystems the numbers that became free are given out next.
                for name in ["x", "y", "z"] {
                    std::fs::create_dir(lower.join(name)).unwrap();
                    std::fs::write(lower.join(name).join("f"), "three").unwrap();
                }
            }
        }
        for (what, tree) in [("branch", &view), ("snapshot", &old)] {
            assert_eq!(content(tree, "a/b/f"), b"two", "{fate}, {what}");
        }
        if fate == "made anew" {
            assert_eq!(content(&view, "a/b/other"), b"another");
        }
        for name in ["x", "y", "z"] {
            let Ok(there) = view.lookup(ROOT, name.as_bytes()) else { continue };
            assert_ne!(there.ino, at(&view, "a"), "{fate}: two names of one directory");
            let within = if fate == "moved" { format!("{name}/b/f") } else { format!("{name}/f") };
            let below = if fate == "moved" { b"one".as_slice() } else { b"three" };
            assert_eq!(content(&view, &within), below, "{fate}: what somebody else has there");
            // What is done there is not done to what the branch has.
            view.write(at(&view, &within), 0, b"mine").unwrap();
        }
        assert_eq!(content(&view, "a/b/f"), b"two", "{fate}");
    }
}

#[test]
fn a_name_that_comes_below_takes_no_directory_from_snapshots() {
    let place = Place::new();
    std::fs::create_dir_all(place.lower().join("a/b")).unwrap();
    std::fs::write(place.lower().join("a/b/file"), "old").unwrap();
    let workspace = place.create();
    let old = workspace.view_of(workspace.base(b"").unwrap()).unwrap();
    std::fs::write(place.lower().join("a/b/new"), "new").unwrap();
    assert_eq!(content(&old, "a/b/file"), b"old");
    assert!(matches!(old.lookup(at(&old, "a/b"), b"new"), Err(Error::DataLoss { .. })));
}

#[test]
fn a_name_that_comes_below_for_an_inode_that_was_removed_here_is_a_new_file() {
    let place = Place::new();
    std::fs::create_dir(place.lower().join("directory")).unwrap();
    std::fs::write(place.lower().join("directory/file"), "below").unwrap();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let (directory, file) = (at(&view, "directory"), at(&view, "directory/file"));
    view.write(file, 0, b"OURS!").unwrap();
    // What it holds has to be hidden from now on.
    let id = snapshot(&workspace, branch);
    view.unlink(directory, b"file").unwrap();
    view.forget(file, 9);
    std::fs::rename(place.lower().join("directory/file"), place.lower().join("directory/again")).unwrap();
    assert_eq!(content(&view, "directory/again"), b"below");
    let again = at(&view, "directory/again");
    view.write(again, 0, b"A").unwrap();
    assert_eq!(content(&view, "directory/again"), b"Aelow");
    assert!(view.lookup(directory, b"file").is_err());
    view.unlink(directory, b"again").unwrap();
    view.rmdir(ROOT, b"directory").unwrap();
    assert_eq!(content(&workspace.view_of(id).unwrap(), "directory/file"), b"OURS!");
}

#[test]
fn extended_attributes_of_a_file_that_was_copied_do_not_go_with_the_one_below() {
    let place = Place::new();
    let path = place.lower().join("file");
    std::fs::write(&path, "below").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    if rustix::fs::setxattr(&path, "user.name", b"value", flags).is_err() {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "extended attributes are needed");
        eprintln!("skipped: no extended attributes here");
        return;
    }
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let ino = at(&view, "file");
    view.write(ino, 0, b"OURS").unwrap();
    let old = workspace.view_of(snapshot(&workspace, branch)).unwrap();
    assert_eq!(view.listxattr(ino).unwrap(), [b"user.name"]);
    std::fs::write(&path, "theirs").unwrap();
    rustix::fs::setxattr(&path, "user.name", b"theirs", flags).unwrap();
    for view in [&view, &old] {
        let ino = at(view, "file");
        assert_eq!(view.getxattr(ino, b"user.name").unwrap(), b"value");
        assert_eq!(view.listxattr(ino).unwrap(), [b"user.name"]);
    }
    view.removexattr(ino, b"user.name").unwrap();
    assert!(view.listxattr(ino).unwrap().is_empty());
    assert!(matches!(view.getxattr(ino, b"user.name"), Err(Error::NoAttribute)));
}

#[test]
fn what_may_be_an_attribute_of_a_file_that_is_lost_can_be_taken_away() {
    let place = Place::new();
    std::fs::write(place.lower().join("file"), [7; 100_000]).unwrap();
    let workspace = place.create();
    let view = workspace.view(branch(&workspace)).unwrap();
    let ino = at(&view, "file");
    view.write(ino, 0, b"ours").unwrap();
    std::fs::remove_file(place.lower().join("file")).unwrap();
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    view.setattr(ino, cut).unwrap();
    view.write(ino, 0, b"ours again").unwrap();
    assert!(matches!(view.getxattr(ino, b"security.capability"), Err(Error::DataLoss { .. })), "it stays a loss");
    // As the host does before a change of contents: not known to be there.
    view.removexattr(ino, b"security.capability").unwrap();
    for _ in 0..2 {
        assert!(matches!(view.removexattr(ino, b"security.capability"), Err(Error::NoAttribute)));
    }
    assert!(matches!(view.getxattr(ino, b"security.capability"), Err(Error::NoAttribute)));
    assert!(matches!(view.getxattr(ino, b"user.name"), Err(Error::DataLoss { .. })), "of others nothing is known");
    assert_eq!(content(&view, "file"), b"ours again");
}

#[test]
fn writing_nothing_changes_nothing() {
    let place = Place::new();
    std::fs::write(place.lower().join("file"), "below").unwrap();
    let workspace = place.create();
    let view = workspace.view(branch(&workspace)).unwrap();
    let ino = at(&view, "file");
    let before = view.getattr(ino).unwrap();
    assert_eq!(view.write(ino, 1 << 20, b"").unwrap(), 0);
    assert_eq!(view.getattr(ino).unwrap(), before);
}

#[test]
fn a_file_is_written_though_the_directory_of_its_other_name_was_forgotten() {
    let place = Place::new();
    let lower = place.lower();
    for directory in ["one", "two/deep"] {
        std::fs::create_dir_all(lower.join(directory)).unwrap();
    }
    std::fs::write(lower.join("one/a"), "old").unwrap();
    std::fs::hard_link(lower.join("one/a"), lower.join("two/deep/b")).unwrap();
    let workspace = place.create();
    let view = workspace.view(branch(&workspace)).unwrap();
    let file = at(&view, "one/a");
    assert_eq!(at(&view, "two/deep/b"), file);
    let [two, deep] = ["two", "two/deep"].map(|path| at(&view, path));
    // As the kernel does when nothing there is in use, and the file is open by its first name.
    view.forget(deep, 9);
    view.forget(two, 9);
    view.write(file, 0, b"new").unwrap();
    assert_eq!(["one/a", "two/deep/b"].map(|path| content(&view, path)), [b"new", b"new"]);
    assert_eq!(std::fs::read(lower.join("one/a")).unwrap(), b"old");
}
