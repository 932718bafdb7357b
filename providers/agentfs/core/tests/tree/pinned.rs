//! What was pinned behind a base is shown by snapshots, whatever is done below; and nothing else ever is.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use ah_agentfs::{Error, Kind, Options, ROOT, Seek, SetAttr, View, Workspace};

use crate::pins::begin;
use crate::{HOLES, Place, at, content, everything, make, on_each_disk, snapshot};

/// A tree with what there is: links, hard links, directories, an empty file, one of several blocks.
pub(crate) fn plant(lower: &Path) {
    std::fs::create_dir_all(lower.join("src/deep/er")).unwrap();
    std::fs::create_dir_all(lower.join("other")).unwrap();
    for (name, bytes) in [
        ("top", &b"top"[..]),
        ("empty", b""),
        ("src/one", b"one"),
        ("src/deep/two", b"two"),
        ("src/deep/er/three", &[b'3'; 20_000]),
        ("other/four", b"four"),
    ] {
        std::fs::write(lower.join(name), bytes).unwrap();
    }
    std::fs::hard_link(lower.join("src/one"), lower.join("src/deep/one")).unwrap();
    symlink("src/one", lower.join("link")).unwrap();
    symlink("two", lower.join("src/deep/link")).unwrap();
    std::fs::set_permissions(lower.join("src/deep"), std::fs::Permissions::from_mode(0o2750)).unwrap();
}

fn replace(path: &Path, bytes: &[u8]) {
    let new = path.with_extension("new");
    std::fs::write(&new, bytes).unwrap();
    std::fs::rename(new, path).unwrap();
}

/// What somebody does below, and what it is called.
type Fate = (&'static str, fn(&Path));

fn fates() -> Vec<Fate> {
    vec![
        ("changed", |lower| {
            for name in ["top", "empty", "src/one", "src/deep/er/three", "other/four"] {
                std::fs::write(lower.join(name), "other").unwrap();
            }
        }),
        ("changed, and as long", |lower| {
            for name in ["top", "src/one", "src/deep/er/three"] {
                let file = std::fs::File::options().write(true).open(lower.join(name)).unwrap();
                file.write_all_at(b"XX", 0).unwrap();
            }
        }),
        ("replaced", |lower| {
            for name in ["top", "empty", "src/one", "src/deep/two", "src/deep/er/three", "link"] {
                replace(&lower.join(name), b"new");
            }
        }),
        ("removed", |lower| {
            for name in ["top", "empty", "src/one", "src/deep/one", "link", "src/deep/link", "src/deep/two"] {
                std::fs::remove_file(lower.join(name)).unwrap();
            }
        }),
        ("its directory removed", |lower| std::fs::remove_dir_all(lower.join("src")).unwrap()),
        ("everything removed", |lower| {
            for name in std::fs::read_dir(lower).unwrap() {
                let name = name.unwrap();
                match name.file_type().unwrap().is_dir() {
                    true => std::fs::remove_dir_all(name.path()).unwrap(),
                    false => std::fs::remove_file(name.path()).unwrap(),
                }
            }
        }),
        ("its directory made anew", |lower| {
            std::fs::remove_dir_all(lower.join("src")).unwrap();
            std::fs::create_dir_all(lower.join("src/deep/er")).unwrap();
            for name in ["src/one", "src/deep/one", "src/deep/er/three", "src/deep/new"] {
                std::fs::write(lower.join(name), "new").unwrap();
            }
        }),
        ("directories swapped", |lower| {
            std::fs::rename(lower.join("src"), lower.join("away")).unwrap();
            std::fs::rename(lower.join("other"), lower.join("src")).unwrap();
            std::fs::rename(lower.join("away"), lower.join("other")).unwrap();
        }),
        ("a directory renamed", |lower| std::fs::rename(lower.join("src"), lower.join("lib")).unwrap()),
        ("a directory moved into a directory", |lower| {
            std::fs::rename(lower.join("src/deep"), lower.join("other/deep")).unwrap();
        }),
        ("a file where a directory was", |lower| {
            std::fs::remove_dir_all(lower.join("src")).unwrap();
            std::fs::write(lower.join("src"), "file").unwrap();
        }),
        ("a directory where a file was", |lower| {
            std::fs::remove_file(lower.join("top")).unwrap();
            std::fs::create_dir(lower.join("top")).unwrap();
        }),
        ("a link where a directory was", |lower| {
            std::fs::rename(lower.join("src"), lower.join("away")).unwrap();
            symlink("away", lower.join("src")).unwrap();
        }),
        ("links pointed elsewhere", |lower| {
            for name in ["link", "src/deep/link"] {
                std::fs::remove_file(lower.join(name)).unwrap();
                symlink("nowhere", lower.join(name)).unwrap();
            }
        }),
        ("files swapped", |lower| {
            std::fs::rename(lower.join("src/one"), lower.join("away")).unwrap();
            std::fs::rename(lower.join("src/deep/two"), lower.join("src/one")).unwrap();
            std::fs::rename(lower.join("away"), lower.join("src/deep/two")).unwrap();
        }),
        ("numbers used again", |lower| {
            std::fs::remove_dir_all(lower.join("src")).unwrap();
            std::fs::remove_file(lower.join("top")).unwrap();
            for n in 0..30 {
                std::fs::write(lower.join(format!("new{n}")), format!("{n}")).unwrap();
                std::fs::create_dir(lower.join(format!("dir{n}"))).unwrap();
            }
            std::fs::write(lower.join("top"), "again").unwrap();
        }),
    ]
}

type Attrs = BTreeMap<Vec<u8>, (u64, u32, u32, u32, u64, ah_agentfs::Time, ah_agentfs::Time)>;

/// What must stay of all attributes, and that each number leads to one thing.
fn attrs(view: &View) -> Attrs {
    let mut found = BTreeMap::new();
    let mut directories = vec![(ROOT, Vec::new())];
    let mut numbers = BTreeMap::new();
    while let Some((directory, path)) = directories.pop() {
        for entry in view.list(directory).unwrap() {
            let attr = view.lookup(directory, &entry.name).unwrap();
            assert_eq!((attr.ino, attr.kind), (entry.ino, entry.kind), "lists agree with looking up");
            let path = [&path[..], b"/", &entry.name].concat();
            let again = view.getattr(attr.ino).unwrap();
            assert_eq!((again.ino, again.mode, again.size, again.mtime), (attr.ino, attr.mode, attr.size, attr.mtime));
            let size = if attr.kind == Kind::Directory { 0 } else { attr.size };
            let holds = match attr.kind {
                Kind::File => view.read(attr.ino, 0, 1 << 20).unwrap(),
                Kind::Symlink => view.readlink(attr.ino).unwrap(),
                _ => path.clone(),
            };
            assert_eq!(numbers.entry(attr.ino).or_insert_with(|| holds.clone()), &holds, "{path:?}");
            assert_eq!(view.listxattr(attr.ino).unwrap(), Vec::<Vec<u8>>::new());
            assert!(matches!(view.getxattr(attr.ino, b"user.x"), Err(Error::NoAttribute)));
            if attr.kind == Kind::Directory {
                directories.push((attr.ino, path.clone()));
            }
            if attr.kind == Kind::File && !holds.is_empty() {
                assert_eq!(view.seek(attr.ino, 0, Seek::Hole).unwrap(), attr.size);
                assert_eq!(view.seek(attr.ino, 0, Seek::Data).unwrap(), 0);
            }
            let ctime = if attr.kind == Kind::Directory { attr.mtime } else { attr.ctime };
            found.insert(path, (attr.ino, attr.mode, attr.uid, attr.gid, size, attr.mtime, ctime));
        }
    }
    found
}

#[test]
fn snapshots_read_what_was_there_whatever_is_done_below() {
    for kind in ["xfs", "btrfs"] {
        let Some(disk) = ah_test_disks::Disk::new(kind, 400, "") else { return };
        all_fates(&disk);
    }
}

fn all_fates(disk: &ah_test_disks::Disk) {
    for (fate, done) in fates() {
        for looked_before in [false, true] {
            let place = Place::on(disk);
            plant(&place.lower());
            let (workspace, branch) = begin(&place);
            let view = workspace.view(branch).unwrap();
            make(&view, "src/mine", b"mine");
            let id = snapshot(&workspace, branch);
            let base = workspace.snapshots()[0].id;
            let open = || [workspace.view_of(base).unwrap(), workspace.view_of(id).unwrap()];
            let then = open();
            let was = then.each_ref().map(|tree| (everything(tree), attrs(tree)));
            // A host that knows all of it already, or nothing.
            let known = looked_before.then_some(then);
            done(&place.lower());
            for trees in known.into_iter().chain([open()]) {
                for (tree, was) in trees.iter().zip(&was) {
                    assert_eq!(everything(tree), was.0, "{fate}, {looked_before}");
                    assert_eq!(attrs(tree), was.1, "{fate}, {looked_before}");
                }
            }
            // So does the branch, to who knows it and to who does not.
            for pen in [&view, &workspace.look(branch).unwrap()] {
                assert_eq!(everything(pen), was[1].0, "{fate}, {looked_before}");
            }
            let differences = open()[0].differences(&open()[1], &|_| true).unwrap().unwrap();
            let told: Vec<_> = differences.list.iter().map(|found| (found.path.as_slice(), found.lost)).collect();
            assert_eq!(told, [(b"src".as_slice(), false), (b"src/mine".as_slice(), false)], "{fate}");
            drop(view);
            drop(workspace);
            place.check();
            let workspace = place.open();
            let tree = workspace.view_of(id).unwrap();
            assert_eq!(everything(&tree), was[1].0, "{fate}, opened anew");
        }
    }
}

#[test]
fn what_a_branch_changed_is_told_against_what_was_there() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        plant(&place.lower());
        let (workspace, branch) = begin(&place);
        let base = workspace.view_of(workspace.snapshots()[0].id).unwrap();
        let view = workspace.view(branch).unwrap();
        view.write(at(&view, "top"), 0, b"TOP").unwrap();
        view.write(at(&view, "src/deep/er/three"), 5000, b"mine").unwrap();
        view.unlink(at(&view, "src/deep"), b"two").unwrap();
        view.rename(ROOT, b"other", ROOT, b"here", ah_agentfs::Rename::Replace).unwrap();
        let id = snapshot(&workspace, branch);
        // Not copied yet: snapshots read it from its pin.
        std::fs::remove_dir_all(place.lower().join("src")).unwrap();
        std::fs::remove_dir_all(place.lower().join("other")).unwrap();
        std::fs::write(place.lower().join("top"), "new").unwrap();
        let then = workspace.view_of(id).unwrap();
        let differences = base.differences(&then, &|_| true).unwrap().unwrap();
        let told: Vec<_> = differences
            .list
            .iter()
            .filter(|found| found.contents)
            .map(|found| (std::str::from_utf8(&found.path).unwrap(), found.before.is_some(), found.after.is_some()))
            .collect();
        let expected = [
            ("here", false, true),
            ("here/four", false, true),
            ("other", true, false),
            ("other/four", true, false),
            ("src/deep/er/three", true, true),
            ("src/deep/two", true, false),
            ("top", true, true),
        ];
        assert_eq!(told, expected);
        assert!(differences.list.iter().all(|found| !found.lost), "{differences:?}");
        assert_eq!(content(&base, "src/deep/two"), b"two");
        assert_eq!(content(&base, "src/deep/er/three"), vec![b'3'; 20_000]);
        let three = content(&then, "src/deep/er/three");
        assert_eq!((&three[..5000], &three[5000..5005]), (&[b'3'; 5000][..], &b"mine3"[..]));
        assert_eq!(content(&then, "here/four"), b"four");
        assert_eq!((content(&base, "top"), content(&then, "top")), (b"top".to_vec(), b"TOP".to_vec()));
    });
}

#[test]
fn what_is_taken_over_after_it_was_changed_below_is_what_was_there() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        std::fs::write(place.lower().join("file"), vec![b'o'; 2 << 20]).unwrap();
        let (workspace, branch) = begin(&place);
        let base = workspace.view_of(workspace.snapshots()[0].id).unwrap();
        let view = workspace.view(branch).unwrap();
        let shares = base.getattr(at(&base, "file")).unwrap().mtime;
        // In one MiB below, in the other here; by the times nothing was changed below.
        let file = std::fs::File::options().write(true).open(place.lower().join("file")).unwrap();
        let time = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(b"theirs", 0).unwrap();
        file.set_modified(time).unwrap();
        let ino = at(&view, "file");
        view.write(ino, 1 << 20, b"o").unwrap();
        view.setattr(ino, SetAttr { mtime: Some(ah_agentfs::SetTime::At(shares)), ..SetAttr::default() }).unwrap();
        let then = workspace.view_of(snapshot(&workspace, branch)).unwrap();
        let differences = base.differences(&then, &|_| true).unwrap().unwrap();
        let told: Vec<_> = differences.list.iter().map(|found| (found.path.as_slice(), found.contents)).collect();
        assert_eq!(told, [], "what was written was there");
        assert_eq!(content(&view, "file"), vec![b'o'; 2 << 20]);
        view.write(ino, 5, b"mine").unwrap();
        workspace.copy_taken_over().unwrap();
        // What is pinned is not synced, and what was written in the branch is to survive a power cut: the rest was copied.
        std::fs::remove_dir_all(place.store().join("pins")).unwrap();
        let all = [b"ooooomine".as_slice(), &vec![b'o'; (2 << 20) - 9]].concat();
        assert!(content(&view, "file") == all);
        drop((view, base, then));
        drop(workspace);
        place.check();
    });
}

#[test]
fn a_number_that_is_used_again_below_is_not_two_files() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        let lower = place.lower();
        for n in 0..20 {
            std::fs::write(lower.join(format!("old{n}")), format!("old{n}")).unwrap();
        }
        let (workspace, branch) = begin(&place);
        let numbers = |prefix: &str| -> Vec<u64> {
            (0..20).map(|n| std::fs::metadata(lower.join(format!("{prefix}{n}"))).unwrap().ino()).collect()
        };
        let old = numbers("old");
        for n in 0..20 {
            std::fs::remove_file(lower.join(format!("old{n}"))).unwrap();
        }
        for n in 0..20 {
            std::fs::write(lower.join(format!("new{n}")), format!("new{n}")).unwrap();
        }
        let again = numbers("new").iter().filter(|new| old.contains(new)).count();
        eprintln!("{again} of 20 numbers were used again");
        // The branch does not see them, and makes its own.
        let view = workspace.view(branch).unwrap();
        for n in 0..20 {
            assert!(matches!(view.lookup(ROOT, format!("new{n}").as_bytes()), Err(Error::NotFound)));
            make(&view, &format!("new{n}"), b"MINE");
        }
        let then = workspace.view_of(snapshot(&workspace, branch)).unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for n in 0..20 {
            assert_eq!(content(&then, &format!("old{n}")), format!("old{n}").as_bytes());
            assert_eq!(content(&then, &format!("new{n}"))[..4], *b"MINE");
            assert!(seen.insert(at(&then, &format!("old{n}"))) && seen.insert(at(&then, &format!("new{n}"))), "{n}");
        }
        for n in 0..20 {
            let attr = then.getattr(at(&then, &format!("old{n}"))).unwrap();
            assert_eq!(attr.size, format!("old{n}").len() as u64);
        }
    });
}

#[test]
fn one_of_two_names_is_not_shown_as_another_file() {
    on_each_disk(|disk| {
        // Names of one file, of which the branch changed what it found under one of them, and one was then removed below.
        let place = Place::on(&disk);
        let lower = place.lower();
        for name in ["moved", "linked", "x"] {
            std::fs::write(lower.join(name), "then").unwrap();
        }
        std::fs::hard_link(lower.join("x"), lower.join("y")).unwrap();
        let (workspace, branch) = begin(&place);
        let view = workspace.view(branch).unwrap();
        view.write(at(&view, "x"), 0, b"mine").unwrap();
        let id = snapshot(&workspace, branch);
        assert_eq!(content(&workspace.view_of(id).unwrap(), "y"), b"mine");
        std::fs::remove_file(lower.join("y")).unwrap();
        let then = workspace.view_of(id).unwrap();
        assert_eq!(content(&then, "x"), b"mine");
        for tree in [&then, &view] {
            assert_eq!(content(tree, "y"), b"mine");
        }
        view.unlink(ROOT, b"x").unwrap();
        assert_eq!(content(&view, "y"), b"mine", "the other name's still");
        // Names that came later are not shown, and the old ones are.
        std::fs::rename(lower.join("moved"), lower.join("now")).unwrap();
        std::fs::hard_link(lower.join("linked"), lower.join("later")).unwrap();
        for name in ["now", "later"] {
            assert!(matches!(view.lookup(ROOT, name.as_bytes()), Err(Error::NotFound)));
        }
        std::fs::remove_file(lower.join("linked")).unwrap();
        for tree in [&workspace.view_of(snapshot(&workspace, branch)).unwrap(), &view] {
            assert_eq!((content(tree, "moved"), content(tree, "linked")), (b"then".to_vec(), b"then".to_vec()));
        }
        let base = workspace.view_of(workspace.snapshots()[0].id).unwrap();
        assert_eq!(content(&base, "linked"), b"then");
        assert_eq!((content(&base, "x"), content(&base, "y")), (b"then".to_vec(), b"then".to_vec()));
        assert_eq!(at(&base, "x"), at(&base, "y"));
    });
}

#[test]
fn what_its_owner_closed_since_is_shown_as_it_was() {
    let place = match ah_test_disks::ordinary_users_path() {
        Some(_) => Place::pinned(),
        None => {
            return on_each_disk(|disk| {
                std::fs::set_permissions(disk.at(), std::fs::Permissions::from_mode(0o777)).unwrap();
                ah_test_disks::as_ordinary_user("pinned::what_its_owner_closed_since_is_shown_as_it_was", disk.at());
            });
        }
    };
    plant(&place.lower());
    let (workspace, _) = begin(&place);
    let base = workspace.snapshots()[0].id;
    let was = everything(&workspace.view_of(base).unwrap());
    for closed in ["top", "src/deep"] {
        std::fs::set_permissions(place.lower().join(closed), std::fs::Permissions::from_mode(0o000)).unwrap();
    }
    assert_eq!(everything(&workspace.view_of(base).unwrap()), was);
    std::fs::set_permissions(place.lower().join("src/deep"), std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_repository_that_is_packed_below_works_in_snapshots() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        let git = |arguments: &[&str]| {
            let output = std::process::Command::new("git")
                .arg("-C")
                .arg(place.lower())
                .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "gc.auto=0"])
                .args(arguments)
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
        };
        git(&["init", "-q", "-b", "main"]);
        for n in 0..30 {
            std::fs::write(place.lower().join(format!("f{n}")), format!("{n}\n").repeat(n + 1)).unwrap();
            git(&["add", "."]);
            git(&["commit", "-qm", "c"]);
        }
        git(&["checkout", "-qb", "side", "HEAD~10"]);
        git(&["checkout", "-q", "main"]);
        let (workspace, branch) = begin(&place);
        let then = snapshot(&workspace, branch);
        let was = everything(&workspace.view_of(then).unwrap());
        git(&["checkout", "-q", "side"]);
        git(&["branch", "-qD", "main"]);
        git(&["reflog", "expire", "--expire=now", "--all"]);
        git(&["gc", "-q", "--prune=now"]);
        let loose = was.keys().filter(|path| path.starts_with(b"/.git/objects/") && path.len() > 50).count();
        assert!(loose > 50, "{loose}");
        assert_eq!(everything(&workspace.view_of(then).unwrap()), was);
    });
}

#[test]
fn who_changes_a_file_without_moving_its_time_changes_nothing_that_is_pinned() {
    use std::io::{BufRead, BufReader, Write};
    const WRITER: &str = "import mmap, sys
file = open(sys.argv[1], 'r+b')
mapped = mmap.mmap(file.fileno(), 0)
for byte in (mapped[0:1], b'X'):
    mapped[0:1] = byte
    print(byte, flush=True)
    sys.stdin.readline()";
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        let path = place.lower().join("file");
        std::fs::write(&path, "then").unwrap();
        let (workspace, branch) = begin(&place);
        let then = workspace.view_of(snapshot(&workspace, branch)).unwrap();
        let mut writer = std::process::Command::new("python3")
            .args(["-c", WRITER, path.to_str().unwrap()])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(writer.stdout.take().unwrap()).lines();
        // The same bytes, with another time; then others, with that.
        for bytes in ["b't'", "b'X'"] {
            assert_eq!(said.next().unwrap().unwrap(), bytes);
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(std::fs::read(&path).unwrap()[0], bytes.as_bytes()[2]);
            for view in [workspace.view(branch).unwrap(), workspace.view_of(snapshot(&workspace, branch)).unwrap()] {
                assert_eq!(content(&view, "file"), b"then");
            }
            assert_eq!(content(&then, "file"), b"then");
            writer.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        }
        writer.wait().unwrap();
    });
}

#[test]
fn branches_and_snapshots_are_whole_without_the_directory_below() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        plant(&place.lower());
        std::fs::write(place.lower().join("large"), vec![b'x'; 3 << 20]).unwrap();
        let (workspace, branch) = begin(&place);
        let view = workspace.view(branch).unwrap();
        // Some of it is the branch's own, some is taken over in part, or only its mode.
        let large = at(&view, "large");
        view.write(large, 4096, b"mine").unwrap();
        make(&view, "mine", b"mine");
        let id = snapshot(&workspace, branch);
        let was = everything(&view);
        drop((view, workspace));
        // Not there for now: the volume is not mounted, say.
        let away = place.lower().with_file_name("away");
        std::fs::rename(place.lower(), &away).unwrap();
        let without = || place.open_with(Options { without_lower: true, ..Options::default() });
        let workspace = without();
        let view = workspace.view(branch).unwrap();
        assert_eq!(everything(&view), was);
        assert_eq!(everything(&workspace.view_of(id).unwrap()), was);
        // Work goes on in it.
        make(&view, "late", b"late");
        view.write(at(&view, "large"), 2 << 20, b"more").unwrap();
        let now = everything(&view);
        let other = snapshot(&workspace, branch);
        drop((view, workspace));
        // There again, elsewhere; then gone for good.
        let workspace =
            Workspace::open(&place.store(), &away, Options { background: false, ..Options::default() }).unwrap();
        assert_eq!(everything(&workspace.view(branch).unwrap()), now);
        assert_eq!(everything(&workspace.view_of(id).unwrap()), was);
        drop(workspace);
        std::fs::remove_dir_all(&away).unwrap();
        let workspace = without();
        assert_eq!(everything(&workspace.view(branch).unwrap()), now);
        assert_eq!(everything(&workspace.view_of(other).unwrap()), now);
        assert_eq!(everything(&workspace.view_of(id).unwrap()), was);
    });
}

#[test]
fn a_hole_is_a_hole_and_a_racing_writer_gets_nothing_in() {
    on_each_disk(|disk| {
        let place = Place::on(&disk);
        let path = place.lower().join("hole");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(b"end", (1 << 20) - 3).unwrap();
        drop(file);
        let [then, other] = [vec![b't'; 100_000], vec![b'o'; 100_000]];
        std::fs::write(place.lower().join("file"), &then).unwrap();
        let (workspace, branch) = begin(&place);
        let id = snapshot(&workspace, branch);
        std::fs::remove_file(&path).unwrap();
        let tree = workspace.view_of(id).unwrap();
        let ino = at(&tree, "hole");
        assert_eq!(tree.read(ino, (1 << 20) - 5, 10).unwrap(), b"\0\0end");
        if HOLES {
            // By the disk's own blocks.
            assert!(((1 << 20) - 4096..1 << 20).contains(&tree.seek(ino, 0, Seek::Data).unwrap()));
            assert_eq!(tree.seek(ino, 0, Seek::Hole).unwrap(), 0);
        }
        let stop = std::sync::atomic::AtomicBool::new(false);
        let mut shown = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = std::fs::File::options().write(true).open(place.lower().join("file")).unwrap();
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for (bytes, rest) in [(&other, 1), (&then, 3)] {
                        file.write_all_at(bytes, 0).unwrap();
                        std::thread::sleep(std::time::Duration::from_millis(rest));
                    }
                }
            });
            let begun = std::time::Instant::now();
            while begun.elapsed().as_secs() < 2 {
                let view = workspace.view_of(id).unwrap();
                assert!(content(&view, "file") == then, "other bytes");
                shown += 1;
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(shown > 0);
    });
}
