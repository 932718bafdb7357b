//! Differences by the filesystem's own knowledge and by walking, against a comparison that is too simple to be wrong.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Changes, Context, DiffMethod, DiffRequest, Provider, RelPath, Side, Snapshot};
use ah_test_disks::{Disk, NOBODY, as_ordinary_user, ordinary_users_path, unmount};
use common::{Bench, run, side, subvolume};

/// Kind, mode and contents of each path.
type Picture = BTreeMap<String, (u32, Vec<u8>)>;

/// What a tree holds.
fn picture(root: &Path) -> Picture {
    let mut out = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let contents = if meta.is_file() {
            fs::read(&path).unwrap()
        } else {
            fs::read_link(&path).map(|to| to.into_os_string().into_encoded_bytes()).unwrap_or_default()
        };
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        out.insert(name, (meta.mode(), contents));
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    out
}

fn differences(a: &Picture, b: &Picture) -> BTreeSet<String> {
    a.keys().chain(b.keys()).filter(|path| a.get(*path) != b.get(*path)).cloned().collect()
}

fn changes(bench: &Bench, from: Side, to: Side) -> Changes {
    let request = DiffRequest { from, to, paths: Vec::new(), times: false, policy: Default::default() };
    bench.provider.diff(&bench.place(), &request, &Context::quiet()).unwrap()
}

fn found(bench: &Bench, from: Side, to: Side, method: DiffMethod) -> BTreeSet<String> {
    let changes = changes(bench, from, to);
    assert_eq!(changes.method, method);
    changes.changes.iter().map(|change| change.path.as_path().to_str().unwrap().to_owned()).collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % n
    }
}

/// Something that people and programs do to a tree.
fn step(root: &Path, random: &mut Random) {
    let all: Vec<PathBuf> =
        picture(root).into_keys().filter(|path| !path.is_empty()).map(|path| root.join(path)).collect();
    let is_dir = |path: &PathBuf| fs::symlink_metadata(path).unwrap().is_dir();
    let mut dirs: Vec<&PathBuf> = all.iter().filter(|path| is_dir(path)).collect();
    let top = root.to_owned();
    dirs.push(&top);
    let dir = dirs[random.below(dirs.len())];
    let new = dir.join(format!("n{}", random.below(40)));
    let any = (!all.is_empty()).then(|| all[random.below(all.len())].clone());
    match (random.below(9), any) {
        (0 | 1, _) => drop(fs::write(&new, format!("{}", random.below(50)))),
        (2, _) => drop(fs::create_dir(&new)),
        (3, _) => drop(std::os::unix::fs::symlink(format!("to{}", random.below(3)), &new)),
        // Directories with all that is below them, too.
        (4, Some(any)) => drop(fs::rename(any, &new)),
        (5, Some(any)) if !is_dir(&any) => drop(fs::hard_link(any, &new)),
        (6, Some(any)) => drop(if is_dir(&any) { fs::remove_dir_all(any) } else { fs::remove_file(any) }),
        (7, Some(any)) if fs::symlink_metadata(&any).unwrap().is_file() => {
            // In place, the size kept.
            let length = fs::metadata(&any).unwrap().len();
            drop(fs::write(
                &any,
                vec![b'0' + u8::try_from(random.below(10)).unwrap(); usize::try_from(length).unwrap()],
            ));
        }
        (8, Some(any)) if !fs::symlink_metadata(&any).unwrap().is_symlink() => {
            let mode = [0o700, 0o755, 0o750][random.below(3)];
            drop(fs::set_permissions(any, std::os::unix::fs::PermissionsExt::from_mode(mode)));
        }
        _ => {}
    }
}

fn compare_many(folder: &Path, method: DiffMethod) {
    for seed in 1..5 {
        let bench = Bench::in_folder(&folder.join(format!("seed{seed}")));
        let mut random = Random(seed);
        let mut taken: Vec<(Snapshot, Picture)> = Vec::new();
        for round in 0..7 {
            for _ in 0..random.below(40) {
                step(bench.workspace.path(), &mut random);
            }
            taken.push((bench.snapshot(&format!("s{round}")), picture(bench.workspace.path())));
        }
        for _ in 0..random.below(20) {
            step(bench.workspace.path(), &mut random);
        }
        let now = picture(bench.workspace.path());
        for (a, before) in &taken {
            for (b, after) in &taken {
                let expected = differences(before, after);
                assert_eq!(found(&bench, side(a), side(b), method), expected, "seed {seed}: {} to {}", a.id, b.id);
            }
            let expected = differences(before, &now);
            assert_eq!(found(&bench, side(a), Side::Workspace, method), expected, "seed {seed}: {} to now", a.id);
            assert_eq!(found(&bench, Side::Workspace, side(a), method), expected, "seed {seed}: now to {}", a.id);
        }
    }
}

#[test]
fn whatever_is_done_shows_by_the_filesystems_knowledge() {
    let Some(disk) = Disk::new("btrfs", 400, "") else { return };
    compare_many(disk.at(), DiffMethod::Native);
}

#[test]
fn whatever_is_done_shows_by_walking() {
    if let Some(path) = ordinary_users_path() {
        return compare_many(&path, DiffMethod::Walk);
    }
    let Some(disk) = Disk::new("btrfs", 400, "user_subvol_rm_allowed") else { return };
    let home = disk.at().join("home");
    subvolume(&home);
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    as_ordinary_user("whatever_is_done_shows_by_walking", &home);
}

#[test]
fn what_did_not_change_is_not_looked_at() {
    let Some(disk) = Disk::new("btrfs", 600, "") else { return };
    let bench = Bench::in_folder(disk.at());
    for i in 0..20_000 {
        if i % 200 == 0 {
            fs::create_dir(bench.work(&format!("d{}", i / 200))).unwrap();
        }
        fs::write(bench.work(&format!("d{}/f{i}", i / 200)), "x").unwrap();
    }
    let a = bench.snapshot("a");
    bench.write("d7/f1400", "y");
    let b = bench.snapshot("b");
    // A listing of everything takes longer by two orders of magnitude, whatever else the machine does.
    let shortest = |run: &dyn Fn()| {
        let times = (0..5).map(|_| {
            let start = std::time::Instant::now();
            run();
            start.elapsed()
        });
        times.min().unwrap()
    };
    let told = shortest(&|| assert_eq!(bench.diff(side(&a), side(&b), &[], true), ["M d7/f1400"]));
    let listed = shortest(&|| assert!(picture(&bench.work("")).len() > 20_000));
    assert!(told * 10 < listed, "{told:?} and {listed:?}");
    assert_eq!(bench.diff(side(&a), side(&b), &["d8", "d7/f1400"], true), ["M d7/f1400"]);
    assert_eq!(bench.diff(side(&b), Side::Workspace, &[], true), Vec::<String>::new());
    // Another subvolume in its place, with other inodes: told by contents.
    assert!(bench.convert().unwrap().changed);
    let bench = Bench::in_folder(disk.at());
    bench.write("d0/f1", "new");
    run("sync", &[]);
    let c = bench.snapshot("c");
    assert_eq!(bench.diff(side(&b), side(&c), &["d0", "d1"], false), ["M d0/f1"]);
    assert_eq!(bench.diff(Side::Workspace, side(&b), &["d0"], false), ["M d0/f1"]);
    assert!(RelPath::new("d0").is_ok());
}

#[test]
fn what_something_was_mounted_over_differs_though_nobody_wrote_to_it() {
    // To list a directory is to write its access time.
    let Some(disk) = Disk::new("btrfs", 300, "noatime") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("e/d/under", "x");
    bench.write("e/f", "x");
    bench.write("other/f", "x");
    let mount = || run("mount", &["-t", "tmpfs", "tmpfs", bench.work("e/d").to_str().unwrap()]);
    mount();
    let covered = bench.snapshot("covered");
    let untouched = |from: Side, to: Side| changes(&bench, from, to).untouched;
    assert!(untouched(side(&covered), Side::Workspace));
    unmount(&bench.work("e/d"));
    let bare = bench.snapshot("bare");
    let shows = |from: Side, to: Side, letter: char| {
        let told = ["e/d", "e/d/under"].map(|path| format!("{letter} {path}"));
        for paths in [vec![], vec!["e"], vec!["e/d"]] {
            assert_eq!(bench.diff(from.clone(), to.clone(), &paths, true), told, "{paths:?}");
        }
        let changes = changes(&bench, from, to);
        assert!(changes.method == DiffMethod::Native && !changes.untouched);
    };
    shows(side(&covered), side(&bare), 'A');
    shows(side(&bare), side(&covered), 'D');
    shows(side(&covered), Side::Workspace, 'A');
    assert!(untouched(side(&bare), Side::Workspace));
    mount();
    shows(side(&bare), Side::Workspace, 'D');
    let again = bench.snapshot("again");
    unmount(&bench.work("e/d"));
    assert!(untouched(side(&covered), side(&again)));
}

/// Names of the directories with these inodes in which the filesystem keeps them in one place: it goes by a hash of both.
fn names_of_one_hash(a: u64, b: u64) -> (String, String) {
    let step = |crc: u32, byte: &u8| {
        let crc = crc ^ u32::from(*byte);
        (0..8).fold(crc, |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    };
    let hash = |dir: u64, name: &str| name.as_bytes().iter().fold(u32::try_from(dir).unwrap(), step);
    let mut random = Random(7);
    let mut name = || (0..10).map(|_| char::from(b'a' + u8::try_from(random.below(26)).unwrap())).collect::<String>();
    let known: BTreeMap<u32, String> = (0..100_000).map(|_| name()).map(|name| (hash(a, &name), name)).collect();
    std::iter::repeat_with(name).find_map(|name| Some((known.get(&hash(b, &name))?.clone(), name))).unwrap()
}

#[test]
fn a_file_of_many_names_differs_at_each_of_them() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    bench.write("A/first", "former");
    fs::create_dir(bench.work("B")).unwrap();
    let link = |name: &str| fs::hard_link(bench.work("A/first"), bench.work(name)).unwrap();
    // So many that there is no more room where names are otherwise.
    let fill: Vec<String> =
        ["A", "B"].iter().flat_map(|dir| (0..90).map(move |n| format!("{dir}/{}{n:03}", "l".repeat(190)))).collect();
    fill.iter().for_each(|name| link(name));
    let inode = |dir: &str| fs::metadata(bench.work(dir)).unwrap().ino();
    let (a, b) = names_of_one_hash(inode("A"), inode("B"));
    let (a, b) = (format!("A/{a}"), format!("B/{b}"));
    link(&a);
    link(&b);
    fill.iter().for_each(|name| fs::remove_file(bench.work(name)).unwrap());
    fs::remove_file(bench.work("A/first")).unwrap();
    let taken = bench.snapshot("a");
    bench.write(&b, "other!");
    let told = [format!("M {a}"), format!("M {b}")];
    assert_eq!(bench.diff(side(&taken), Side::Workspace, &[], true), told);
    assert_eq!(bench.diff(side(&taken), Side::Workspace, &["B"], true), told[1..]);
}

#[test]
fn a_device_that_became_another_differs() {
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let bench = Bench::in_folder(disk.at());
    let make = |kind: &str, minor: &str| run("mknod", &[bench.work(kind).to_str().unwrap(), kind, "1", minor]);
    for kind in ["b", "c"] {
        make(kind, "3");
    }
    let taken = bench.snapshot("a");
    for kind in ["b", "c"] {
        fs::remove_file(bench.work(kind)).unwrap();
        make(kind, "5");
    }
    assert_eq!(bench.diff(side(&taken), Side::Workspace, &[], false), ["M b", "M c"]);
    assert_eq!(bench.diff(side(&taken), side(&bench.snapshot("b")), &[], false), ["M b", "M c"]);
}
