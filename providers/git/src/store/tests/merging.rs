//! Packs do not pile up, and nothing is lost while they are made one.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ah_plugin_api::{Context, Durability};
use gix::ObjectId;
use gix::objs::Kind;

use super::{Fixture, check, commit, fixture, fsck, git, id, open, pack_files, publish, some_files, tempdir, tree};
use crate::store::files::faults::{self, Fault};
use crate::store::{Store, hash};

type Files = Vec<(String, Vec<u8>)>;
type Entries = Vec<(String, ObjectId)>;

/// Deterministic numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Publishes `count` snapshots that each change one file, with a `reclaim(auto)` after each as the program does.
fn history(store: &Store, count: usize, files: usize) -> Vec<(Files, Entries)> {
    let mut dice = Dice(7);
    let mut files = some_files(files, 0);
    let mut before = Vec::new();
    let mut all = Vec::new();
    for n in 0..count {
        let at = dice.roll(files.len() as u64) as usize;
        let place = dice.roll(files[at].1.len() as u64) as usize;
        files[at].1.splice(place..place, format!("edit {n}\n").into_bytes());
        before = publish(store, &format!("s{n}"), &files, &before, Durability::Instant).unwrap();
        store.reclaim(true, &Context::quiet()).unwrap();
        all.push((files.clone(), before.clone()));
    }
    all
}

#[test]
fn packs_do_not_pile_up_and_nothing_is_lost() {
    let f = fixture();
    let all = history(&f.store, 120, 30);
    assert!(pack_files(f.temp.path(), "pack").len() <= 28);
    for store in [Arc::clone(&f.store), open(f.temp.path())] {
        for (n, (files, entries)) in all.iter().enumerate() {
            check(&store, &format!("s{n}"), files, entries);
        }
    }
    fsck(f.temp.path());
    f.store.reclaim(false, &Context::quiet()).unwrap();
    assert_eq!(pack_files(f.temp.path(), "pack").len(), 1);
    assert_eq!(f.store.reclaim(false, &Context::quiet()).unwrap().actions, Vec::<String>::new());
    for (n, (files, entries)) in all.iter().enumerate() {
        check(&f.store, &format!("s{n}"), files, entries);
    }
    fsck(f.temp.path());
    let listed = git(f.temp.path(), &["verify-pack", "-v", pack_files(f.temp.path(), "idx")[0].to_str().unwrap()]);
    let depths = listed.lines().filter_map(|line| line.split_whitespace().nth(5)?.parse::<u32>().ok());
    assert!((1..=96).contains(&depths.max().unwrap()));
    assert!(std::fs::read_dir(f.temp.path().join("hints")).unwrap().next().is_none());
    assert!(std::fs::read_dir(f.temp.path().join("unsynced")).unwrap().next().is_none());
}

#[test]
fn what_no_snapshot_needs_is_dropped_and_the_rest_stays() {
    let f = fixture();
    let all = history(&f.store, 60, 10);
    f.store.reclaim(false, &Context::quiet()).unwrap();
    let before = f.store.disk_usage().unwrap();
    for n in 0..60 {
        if n % 7 != 3 {
            let guard = f.store.lock(&Context::quiet()).unwrap();
            f.store.remove_snapshot(&guard, &id(&format!("s{n}"))).unwrap();
        }
    }
    f.store.reclaim(false, &Context::quiet()).unwrap();
    for (n, (files, entries)) in all.iter().enumerate().filter(|(n, _)| n % 7 == 3) {
        check(&f.store, &format!("s{n}"), files, entries);
    }
    assert!(!f.store.contains(&hash(Kind::Commit, &commit(hash(Kind::Tree, &tree(&all[0].1)), "s0"))));
    fsck(f.temp.path());
    assert!(!git(f.temp.path(), &["fsck", "--unreachable", "--no-progress"]).contains("unreachable"));
    let after = f.store.disk_usage().unwrap();
    assert!(after < before, "{after} {before}");
    for n in 0..60 {
        let guard = f.store.lock(&Context::quiet()).unwrap();
        f.store.remove_snapshot(&guard, &id(&format!("s{n}"))).unwrap();
    }
    f.store.reclaim(false, &Context::quiet()).unwrap();
    assert!(pack_files(f.temp.path(), "pack").is_empty());
    assert!(!f.temp.path().join("garbage").exists());
}

#[test]
fn what_snapshots_hold_together_is_what_comes_back() {
    let f = fixture();
    history(&f.store, 40, 10);
    f.store.reclaim(false, &Context::quiet()).unwrap();
    let ids = |numbers: std::ops::Range<usize>| numbers.map(|n| id(&format!("s{n}"))).collect::<BTreeSet<_>>();
    let held = |numbers| f.store.usage_of(&ids(numbers), &Context::quiet()).unwrap();
    let alone: u64 = (0..30).map(|n| held(n..n + 1).unwrap()).sum();
    let (together, all) = (held(0..30).unwrap(), held(0..40).unwrap());
    assert!(together > alone && all > together, "{alone} {together} {all}");
    assert_eq!(held(40..50), Some(0), "what is not there holds nothing");
    assert_eq!(held(0..50), held(0..40));
    let before = f.store.disk_usage().unwrap();
    for id in ids(0..30) {
        let guard = f.store.lock(&Context::quiet()).unwrap();
        f.store.remove_snapshot(&guard, &id).unwrap();
    }
    f.store.reclaim(false, &Context::quiet()).unwrap();
    let came_back = before - f.store.disk_usage().unwrap();
    assert!(came_back * 2 > together && came_back < together * 2, "{came_back} came back, {together} were told");
    // Nothing is given back beside one that cannot be read.
    std::fs::write(f.temp.path().join("git/refs/ah/snapshots/s36"), "nothing\n").unwrap();
    assert_eq!(held(30..31), None);
}

fn all_below(dir: &Path, out: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all_below(&path, out);
        }
        out.insert(path);
    }
}

#[test]
fn what_nothing_needs_goes_without_a_new_file() {
    let f = fixture();
    publish(&f.store, "one", &some_files(2, 0), &[], Durability::Durable).unwrap();
    f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("one")).unwrap();
    let (mut before, mut after) = (BTreeSet::new(), BTreeSet::new());
    all_below(f.temp.path(), &mut before);
    f.store.reclaim(false, &Context::quiet()).unwrap();
    all_below(f.temp.path(), &mut after);
    assert!(pack_files(f.temp.path(), "pack").is_empty());
    // A full disk may have no room for it.
    assert_eq!(after.difference(&before).next(), None);
}

#[test]
fn what_starts_a_sweep_is_there_once_a_store_was_opened() {
    let f = fixture();
    let lock = f.temp.path().join("merge/lock");
    // As in one that was made before that was so.
    std::fs::remove_file(&lock).unwrap();
    open(f.temp.path());
    assert!(lock.exists());
}

#[test]
fn packs_that_nothing_needs_go_before_others_are_merged() {
    let mut seen = false;
    for step in 0.. {
        let f = fixture();
        for (n, name) in ["dead", "a", "b"].into_iter().enumerate() {
            publish(&f.store, name, &some_files(4, n + 1), &[], Durability::Durable).unwrap();
            if n == 0 {
                // Nothing of it is in another one.
                f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id(name)).unwrap();
            }
        }
        let before = pack_files(f.temp.path(), "pack");
        assert_eq!(before.len(), 3);
        faults::arm(Fault::NoSpace, step);
        let outcome = f.store.reclaim(false, &Context::quiet());
        let missed = faults::disarm();
        let left = pack_files(f.temp.path(), "pack");
        seen |= outcome.is_err() && left.len() == 2 && left.iter().all(|pack| before.contains(pack));
        if missed {
            assert_eq!(left.len(), 1);
            break;
        }
    }
    assert!(seen, "no room for the merged one, but those that nothing needs are gone");
}

#[test]
fn what_much_of_the_store_is_of_is_dropped_unasked() {
    // Nothing of one is in another.
    const SIZE: u64 = 200_000;
    let mut f = fixture();
    let large = |n: u64| {
        let mut dice = Dice(n);
        vec![("f".to_owned(), (0..SIZE).map(|_| dice.roll(256) as u8).collect::<Vec<_>>())]
    };
    let remove = |f: &Fixture, names: std::ops::Range<u64>| {
        names.for_each(|n| {
            assert!(f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id(&format!("s{n}"))).unwrap());
        });
        f.store.reclaim(true, &Context::quiet()).unwrap();
        f.store.disk_usage().unwrap() / SIZE
    };
    let take = |f: &Fixture, count: u64| {
        (0..count)
            .for_each(|n| drop(publish(&f.store, &format!("s{n}"), &large(n), &[], Durability::Durable).unwrap()));
    };
    take(&f, 17);
    f.store = open(f.temp.path());
    assert!(f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("s3")).unwrap());
    let notes = std::fs::read(f.temp.path().join("garbage")).unwrap();
    let parts = notes.iter().filter(|note| **note == b'X').count();
    assert!((14..=16).contains(&parts), "one of seventeen is {parts} parts of 256");
    f = fixture();
    take(&f, 6);
    assert_eq!(remove(&f, 0..1), 6, "a sixth is not worth a look at all of it");
    assert_eq!(remove(&f, 1..2), 4);
    // In one pack nobody tells how large each was: they go once no more are left than went.
    f.store.reclaim(false, &Context::quiet()).unwrap();
    assert_eq!(remove(&f, 2..3), 4);
    assert_eq!(remove(&f, 3..4), 2);
    assert_eq!(remove(&f, 4..6), 0);
    assert!(!f.temp.path().join("garbage").exists());
}

#[test]
fn a_disk_that_fails_while_merging_or_sweeping_loses_nothing() {
    for fault in [Fault::NoSpace, Fault::Killed, Fault::Short] {
        for step in 0.. {
            let f = fixture();
            let mut before = Vec::new();
            let mut all = Vec::new();
            for n in 0..4 {
                let files = some_files(4, n);
                before = publish(&f.store, &format!("s{n}"), &files, &before, Durability::Instant).unwrap();
                all.push((files, before.clone()));
            }
            f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("s1")).unwrap();
            faults::arm(fault, step);
            let outcome = f.store.reclaim(false, &Context::quiet());
            let missed = faults::disarm();
            let store = open(f.temp.path());
            for again in 0..2 {
                for n in [0, 2, 3] {
                    check(&store, &format!("s{n}"), &all[n].0, &all[n].1);
                }
                if step % 5 == 0 {
                    fsck(f.temp.path());
                }
                if again == 0 {
                    store.reclaim(false, &Context::quiet()).unwrap();
                }
            }
            assert_eq!(pack_files(f.temp.path(), "pack").len(), 1);
            assert_eq!(pack_files(f.temp.path(), "idx").len(), 1);
            for folder in ["tmp", "hints", "unsynced"] {
                assert!(std::fs::read_dir(f.temp.path().join(folder)).unwrap().next().is_none(), "{folder}");
            }
            assert_eq!(std::fs::read_dir(f.temp.path().join("merge")).unwrap().count(), 1);
            assert!(
                step % 5 > 0
                    || !git(f.temp.path(), &["fsck", "--unreachable", "--no-progress"]).contains("unreachable")
            );
            if missed || fault == Fault::Short && step > 3 {
                outcome.unwrap();
                break;
            }
        }
    }
}

#[test]
fn a_damaged_pack_does_not_keep_the_others_from_being_merged() {
    let f = fixture();
    let mut before = Vec::new();
    let mut all = Vec::new();
    for n in 0..6 {
        let files = some_files(4, n);
        let present = pack_files(f.temp.path(), "pack");
        before = publish(&f.store, &format!("s{n}"), &files, &before, Durability::Durable).unwrap();
        let new = pack_files(f.temp.path(), "pack").into_iter().find(|path| !present.contains(path)).unwrap();
        all.push((files, before.clone(), new));
    }
    let victim = &all[2].2;
    let mut bytes = std::fs::read(victim).unwrap();
    std::fs::set_permissions(victim, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    bytes[40] ^= 1;
    std::fs::write(victim, bytes).unwrap();
    f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("s5")).unwrap();
    let store = open(f.temp.path());
    store.reclaim(false, &Context::quiet()).unwrap();
    assert_eq!((pack_files(f.temp.path(), "pack").len(), pack_files(f.temp.path(), "damaged").len()), (1, 2));
    for n in [0, 1, 3, 4] {
        check(&store, &format!("s{n}"), &all[n].0, &all[n].1);
    }
    assert!(all[2].1.iter().any(|(_, id)| store.read(id, &mut Vec::new(), &Context::quiet()).is_err()));
    store.remove_snapshot(&store.lock(&Context::quiet()).unwrap(), &id("s2")).unwrap();
    store.reclaim(false, &Context::quiet()).unwrap();
    store.reclaim(false, &Context::quiet()).unwrap();
    fsck(f.temp.path());
}

#[test]
fn large_files_that_change_a_little_are_merged_into_little() {
    let f = fixture();
    let path = f.temp.path().join("large");
    let mut data: Vec<u8> =
        (0..6_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 ^ (n >> 7) as u8).collect();
    let mut blobs: Vec<ObjectId> = Vec::new();
    for n in 0..4 {
        data[n * 1_000_000] ^= 1;
        std::fs::write(&path, &data).unwrap();
        let guard = f.store.lock(&Context::quiet()).unwrap();
        let batch = f.store.begin(&guard).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let before = blobs.last().map(|id| &**id);
        let blob = batch.blob_from(file.as_fd(), data.len() as u64, before, &Context::quiet());
        let blob = blob.unwrap().unwrap().unwrap();
        let root = batch.object(Kind::Tree, &tree(&[("large".into(), blob)]), None).unwrap();
        let commit = batch.object(Kind::Commit, &commit(root, "x"), None).unwrap();
        batch.publish(&id(&format!("l{n}")), commit, Durability::Durable).unwrap();
        blobs.push(blob);
    }
    let before = f.store.disk_usage().unwrap();
    f.store.reclaim(false, &Context::quiet()).unwrap();
    let after = f.store.disk_usage().unwrap();
    assert!(after < before / 2, "{after} {before}");
    for blob in blobs {
        f.store.read(&blob, &mut Vec::new(), &Context::quiet()).unwrap();
    }
    fsck(f.temp.path());
}

#[test]
fn writers_readers_and_merging_at_once() {
    let temp = tempdir();
    open(temp.path());
    let published = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for writer in 0..3 {
            let (path, published) = (temp.path(), &published);
            scope.spawn(move || {
                let store = open(path);
                let mut before = Vec::new();
                for n in 0..25 {
                    let files = some_files(5, writer * 100 + n);
                    let name = format!("w{writer}-{n}");
                    before = publish(&store, &name, &files, &before, Durability::Instant).unwrap();
                    if n % 3 == 0 {
                        let guard = store.lock(&Context::quiet()).unwrap();
                        store.remove_snapshot(&guard, &id(&name)).unwrap();
                    } else {
                        published.lock().unwrap().push((name, files, before.clone()));
                    }
                }
            });
        }
        let (path, published) = (temp.path(), &published);
        for _ in 0..2 {
            scope.spawn(move || {
                let store = open(path);
                for _ in 0..20 {
                    store.reclaim(false, &Context::quiet()).unwrap();
                    let seen = published.lock().unwrap().clone();
                    for (name, files, entries) in &seen {
                        check(&store, name, files, entries);
                    }
                }
            });
        }
    });
    let store = open(temp.path());
    store.reclaim(false, &Context::quiet()).unwrap();
    let published = published.into_inner().unwrap();
    assert_eq!(store.snapshots(&Context::quiet()).unwrap().len(), published.len());
    for (name, files, entries) in &published {
        check(&store, name, files, entries);
    }
    fsck(temp.path());
}
