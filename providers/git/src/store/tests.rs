//! The store as a whole, against real Git and a failing disk.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use ah_plugin_api::{Context, Dir, Durability, ErrorKind, SnapshotId};
use gix::ObjectId;
use gix::objs::Kind;

use super::files::faults::{self, Fault};
use super::{Store, hash};

struct Fixture {
    temp: tempfile::TempDir,
    store: Arc<Store>,
}

/// In memory where that is to be had: these tests bring thousands of files to disk.
fn tempdir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn fixture() -> Fixture {
    let temp = tempdir();
    let store = open(temp.path());
    Fixture { temp, store }
}

fn open(path: &Path) -> Arc<Store> {
    Store::open(&Dir::open(path).unwrap()).unwrap()
}

fn id(text: &str) -> SnapshotId {
    SnapshotId::new(text).unwrap()
}

/// The bytes of a tree of blobs.
fn tree(entries: &[(String, ObjectId)]) -> Vec<u8> {
    let mut sorted = entries.to_vec();
    sorted.sort();
    let mut out = Vec::new();
    for (name, id) in sorted {
        write!(out, "100644 {name}\0").unwrap();
        out.extend_from_slice(id.as_slice());
    }
    out
}

fn commit(root: ObjectId, note: &str) -> Vec<u8> {
    format!("tree {root}\nauthor ah <ah@localhost> 0 +0000\ncommitter ah <ah@localhost> 0 +0000\n\n{note}\n")
        .into_bytes()
}

/// Publishes a snapshot of `files`; contents replace those of the same name in `before`.
fn publish(
    store: &Store,
    name: &str,
    files: &[(String, Vec<u8>)],
    before: &[(String, ObjectId)],
    durability: Durability,
) -> ah_plugin_api::Result<Vec<(String, ObjectId)>> {
    let guard = store.lock(&Context::quiet())?;
    let batch = store.begin(&guard)?;
    let mut entries = Vec::new();
    for (file, data) in files {
        let replaces = before.iter().find(|(old, _)| old == file).map(|(_, id)| *id);
        entries.push((file.clone(), batch.object(Kind::Blob, data, replaces.as_deref())?));
    }
    let old_tree = hash(Kind::Tree, &tree(before));
    let root = batch.object(Kind::Tree, &tree(&entries), Some(&old_tree))?;
    let commit = batch.object(Kind::Commit, &commit(root, name), None)?;
    batch.publish(&id(name), commit, durability)?;
    Ok(entries)
}

fn git(fixture: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .arg("--git-dir")
        .arg(fixture.join("git"))
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {args:?}: {text}");
    text
}

fn fsck(fixture: &Path) {
    let said = git(fixture, &["fsck", "--full", "--strict", "--no-progress", "--no-dangling"]);
    for line in said.lines() {
        assert!(line.starts_with("notice: "), "{said}");
    }
}

fn some_files(count: usize, version: usize) -> Vec<(String, Vec<u8>)> {
    (0..count)
        .map(|n| {
            let text: String = (0..60)
                .map(|line| {
                    let edited = if line == (version + n) % 60 { version } else { 0 };
                    format!("file {n} line {line} {} {edited}\n", line * 7919 % 1000)
                })
                .collect();
            (format!("f{n}"), text.into_bytes())
        })
        .collect()
}

fn check(store: &Store, name: &str, files: &[(String, Vec<u8>)], entries: &[(String, ObjectId)]) {
    assert!(store.snapshot(&id(name)).unwrap().is_some());
    let mut data = Vec::new();
    for ((_, wanted), (_, id)) in files.iter().zip(entries) {
        assert_eq!(store.read(id, &mut data).unwrap(), Kind::Blob);
        assert_eq!(&data, wanted);
    }
}

#[test]
fn what_is_published_is_read_back_here_elsewhere_and_by_git() {
    let f = fixture();
    let files = some_files(20, 0);
    let entries = publish(&f.store, "one", &files, &[], Durability::Durable).unwrap();
    check(&f.store, "one", &files, &entries);
    check(&open(f.temp.path()), "one", &files, &entries);
    fsck(f.temp.path());
    let text = git(f.temp.path(), &["cat-file", "blob", &entries[3].1.to_string()]);
    assert_eq!(text.as_bytes(), files[3].1);
    let again = publish(&f.store, "one", &files, &[], Durability::Durable);
    assert_eq!(again.unwrap_err().kind, ErrorKind::AlreadyExists);
    assert!(std::fs::read_dir(f.temp.path().join("tmp")).unwrap().next().is_none());
}

#[test]
fn large_files_are_streamed() {
    let f = fixture();
    let path = f.temp.path().join("large");
    let mut data: Vec<u8> = (0..9_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    data.extend(std::iter::repeat_n(0, 2_000_000));
    std::fs::write(&path, &data).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let guard = f.store.lock(&Context::quiet()).unwrap();
    let batch = f.store.begin(&guard).unwrap();
    let size = data.len() as u64;
    assert_eq!(batch.blob_from(file.as_fd(), size - 1, None, &Context::quiet()).unwrap(), Ok(None));
    assert_eq!(batch.blob_from(file.as_fd(), size + 1, None, &Context::quiet()).unwrap(), Ok(None));
    let blob = batch.blob_from(file.as_fd(), size, None, &Context::quiet()).unwrap().unwrap().unwrap();
    assert_eq!(blob, hash(Kind::Blob, &data));
    assert_eq!(batch.blob_from(file.as_fd(), size, None, &Context::quiet()).unwrap(), Ok(Some(blob)));
    let root = batch.object(Kind::Tree, &tree(&[("large".into(), blob)]), None).unwrap();
    let commit = batch.object(Kind::Commit, &commit(root, "x"), None).unwrap();
    batch.publish(&id("large"), commit, Durability::Durable).unwrap();
    drop(guard);
    let mut back = Vec::new();
    f.store.read(&blob, &mut back).unwrap();
    assert!(back == data);
    let out = std::fs::File::create(f.temp.path().join("out")).unwrap();
    assert_eq!(f.store.read_to(&blob, out.as_fd(), &Context::quiet()).unwrap(), size);
    assert!(std::fs::read(f.temp.path().join("out")).unwrap() == data);
    fsck(f.temp.path());
}

#[test]
fn several_threads_write_one_batch() {
    let f = fixture();
    let guard = f.store.lock(&Context::quiet()).unwrap();
    let batch = f.store.begin(&guard).unwrap();
    let ids: Vec<Vec<ObjectId>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let batch = &batch;
                scope.spawn(move || {
                    (0..500).map(|n| batch.object(Kind::Blob, format!("{n}").as_bytes(), None).unwrap()).collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|each| *each == ids[0]));
    let entries: Vec<_> = ids[0].iter().enumerate().map(|(n, id)| (format!("{n}"), *id)).collect();
    let root = batch.object(Kind::Tree, &tree(&entries), None).unwrap();
    let commit = batch.object(Kind::Commit, &commit(root, "x"), None).unwrap();
    batch.publish(&id("x"), commit, Durability::Instant).unwrap();
    assert!(!f.store.is_durable(&id("x")));
    drop(guard);
    f.store.sync(&Context::quiet()).unwrap();
    assert!(f.store.is_durable(&id("x")));
    fsck(f.temp.path());
}

#[test]
fn a_disk_that_fails_at_any_step_leaves_whole_snapshots_only() {
    for fault in [Fault::NoSpace, Fault::Killed, Fault::Short] {
        for durability in [Durability::Durable, Durability::Instant] {
            for step in 0.. {
                let f = fixture();
                let (old_files, new_files) = (some_files(3, 0), some_files(3, 1));
                let old = publish(&f.store, "old", &old_files, &[], Durability::Instant).unwrap();
                faults::arm(fault, step);
                let outcome = publish(&f.store, "new", &new_files, &old, durability);
                let missed = faults::disarm();
                let store = open(f.temp.path());
                check(&store, "old", &old_files, &old);
                match &outcome {
                    Ok(new) => check(&store, "new", &new_files, new),
                    Err(error) => {
                        assert!(fault != Fault::Short, "{error:?}");
                        let shown = store.snapshot(&id("new")).unwrap();
                        assert!(fault == Fault::Killed || shown.is_none(), "{error:?} at step {step}");
                    }
                }
                // The next writer finds a clean place, whatever was left.
                if store.snapshot(&id("new")).unwrap().is_none() {
                    let new = publish(&store, "new", &new_files, &old, Durability::Durable).unwrap();
                    check(&store, "new", &new_files, &new);
                }
                // A new process each time: not for every step.
                if step % 5 == 0 {
                    fsck(f.temp.path());
                }
                assert!(std::fs::read_dir(f.temp.path().join("tmp")).unwrap().next().is_none());
                if missed || fault == Fault::Short && outcome.is_ok() && step > 2 {
                    assert!(outcome.is_ok(), "{outcome:?}");
                    break;
                }
            }
        }
    }
}

fn pack_files(path: &Path, ending: &str) -> Vec<PathBuf> {
    let dir = std::fs::read_dir(path.join("git/objects/pack")).unwrap();
    let mut all: Vec<_> = dir.map(|e| e.unwrap().path()).filter(|p| p.extension().unwrap() == ending).collect();
    all.sort();
    all
}

#[test]
fn damage_is_named_and_harms_nothing_else() {
    let f = fixture();
    let first = publish(&f.store, "one", &some_files(2, 0), &[], Durability::Durable).unwrap();
    let mine = pack_files(f.temp.path(), "pack").remove(0);
    let second = publish(&f.store, "two", &some_files(2, 9), &first, Durability::Durable).unwrap();
    let good = std::fs::read(&mine).unwrap();
    let index = std::fs::read(mine.with_extension("idx")).unwrap();
    let put = |bytes: &[u8]| {
        for (ending, bytes) in [("pack", bytes), ("idx", &index)] {
            let path = mine.with_extension(ending);
            // It may have been set aside.
            for path in [path.clone(), mine.with_extension(format!("{ending}.damaged"))] {
                let _ = std::fs::remove_file(path);
            }
            std::fs::write(path, bytes).unwrap();
        }
    };
    for at in 0..good.len() - 20 {
        let mut bad = good.clone();
        bad[at] ^= 0x55;
        put(&bad);
        let store = open(f.temp.path());
        let mut data = Vec::new();
        for ((_, id), (_, wanted)) in first.iter().zip(some_files(2, 0)) {
            match store.read(id, &mut data) {
                Ok(_) => assert_eq!(data, wanted),
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::DataLoss);
                    let name = mine.file_name().unwrap().to_str().unwrap();
                    assert!(error.causes.iter().any(|cause| cause.contains(name)), "{error:?}");
                }
            }
        }
        check(&store, "two", &some_files(2, 9), &second);
    }
    for cut in 0..good.len() {
        put(&good[..cut]);
        let store = open(f.temp.path());
        for (_, id) in &first {
            if let Err(error) = store.read(id, &mut Vec::new()) {
                assert_eq!(error.kind, ErrorKind::DataLoss);
            }
        }
        check(&store, "two", &some_files(2, 9), &second);
    }
}

#[test]
fn what_a_person_does_with_git_does_not_break_it() {
    let f = fixture();
    let mut before = Vec::new();
    let mut all = Vec::new();
    for n in 0..12 {
        let files = some_files(15, n);
        before = publish(&f.store, &format!("s{n}"), &files, &before, Durability::Durable).unwrap();
        all.push((files, before.clone()));
    }
    git(f.temp.path(), &["gc", "--prune=now", "--quiet"]);
    git(f.temp.path(), &["pack-refs", "--all"]);
    for store in [Arc::clone(&f.store), open(f.temp.path())] {
        assert_eq!(store.snapshots(&Context::quiet()).unwrap().len(), 12);
        for (n, (files, entries)) in all.iter().enumerate() {
            check(&store, &format!("s{n}"), files, entries);
        }
    }
    assert!(pack_files(f.temp.path(), "pack").len() == 1);
    let next = publish(&f.store, "next", &some_files(15, 77), &before, Durability::Durable).unwrap();
    check(&f.store, "next", &some_files(15, 77), &next);
    assert!(f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("s3")).unwrap());
    assert!(!f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("s3")).unwrap());
    assert_eq!(f.store.snapshots(&Context::quiet()).unwrap().len(), 12);
    git(f.temp.path(), &["pack-refs", "--all"]);
    let lock = std::fs::File::create(f.temp.path().join("git/packed-refs.lock")).unwrap();
    let refused = f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("s4"));
    assert_eq!(refused.unwrap_err().kind, ErrorKind::Busy);
    lock.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(100)).unwrap();
    assert!(f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("s4")).unwrap());
    git(f.temp.path(), &["pack-refs", "--all"]);
    let refs = git(f.temp.path(), &["for-each-ref"]);
    assert_eq!(refs.lines().count(), 11);
    fsck(f.temp.path());
    // All loose.
    for pack in pack_files(f.temp.path(), "pack") {
        let moved = f.temp.path().join("moved.pack");
        std::fs::rename(&pack, &moved).unwrap();
        std::fs::remove_file(pack.with_extension("idx")).unwrap();
        let line = format!("git --git-dir {}/git unpack-objects -q < {}", f.temp.path().display(), moved.display());
        assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
    }
    check(&open(f.temp.path()), "next", &some_files(15, 77), &next);
    assert!(open(f.temp.path()).contains(&next[0].1));
}

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
    assert!(all[2].1.iter().any(|(_, id)| store.read(id, &mut Vec::new()).is_err()));
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
        f.store.read(&blob, &mut Vec::new()).unwrap();
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

/// As if the machine had been started again since.
fn after_another_boot(path: &Path) {
    for entry in std::fs::read_dir(path.join("unsynced")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.to_str().unwrap().split('@').next().unwrap().to_owned();
        std::fs::rename(&path, format!("{name}@0123456789abcdef")).unwrap();
    }
}

#[test]
fn what_did_not_survive_a_power_cut_is_gone_and_the_rest_is_there() {
    let f = fixture();
    let old = publish(&f.store, "old", &some_files(3, 0), &[], Durability::Durable).unwrap();
    let first = pack_files(f.temp.path(), "pack");
    publish(&f.store, "lost", &some_files(3, 1), &old, Durability::Instant).unwrap();
    let second = pack_files(f.temp.path(), "pack").into_iter().find(|path| !first.contains(path)).unwrap();
    publish(&f.store, "torn", &some_files(3, 1), &old, Durability::Instant).unwrap();
    let whole = publish(&f.store, "whole", &some_files(3, 2), &old, Durability::Instant).unwrap();
    // What ext4 leaves of files that were renamed, but not synced: names without data.
    std::fs::set_permissions(&second, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(&second, "").unwrap();
    std::fs::write(f.temp.path().join("git/refs/ah/snapshots/torn"), "").unwrap();
    after_another_boot(f.temp.path());
    // Nobody has to write first.
    let store = open(f.temp.path());
    let left: Vec<_> = store.snapshots(&Context::quiet()).unwrap().into_iter().map(|(id, _)| id.to_string()).collect();
    assert_eq!(left, ["old", "whole"]);
    check(&store, "old", &some_files(3, 0), &old);
    check(&store, "whole", &some_files(3, 2), &whole);
    fsck(f.temp.path());
}

#[test]
fn after_a_power_cut_nothing_counts_as_durable_until_it_was_looked_at() {
    let f = fixture();
    publish(&f.store, "torn", &some_files(3, 0), &[], Durability::Instant).unwrap();
    publish(&f.store, "whole", &some_files(3, 1), &[], Durability::Instant).unwrap();
    std::fs::write(f.temp.path().join("git/refs/ah/snapshots/torn"), "").unwrap();
    after_another_boot(f.temp.path());
    // Somebody holds the lock, so that opening the store cannot look.
    let busy = super::lock::take(&f.store.folders.store, &Context::quiet()).unwrap();
    let store = open(f.temp.path());
    assert!(!store.is_durable(&id("whole")) && !store.is_durable(&id("torn")));
    drop(busy);
    store.sync(&Context::quiet()).unwrap();
    assert!(store.is_durable(&id("whole")));
    assert!(store.snapshot(&id("torn")).unwrap().is_none());
}

#[test]
fn what_cannot_be_read_at_this_moment_is_not_dropped() {
    let f = fixture();
    let entries = publish(&f.store, "one", &some_files(3, 0), &[], Durability::Instant).unwrap();
    after_another_boot(f.temp.path());
    for file in [pack_files(f.temp.path(), "pack").remove(0), pack_files(f.temp.path(), "idx").remove(0)] {
        // A symlink cannot be opened: an error of the system, which says nothing about the file.
        let aside = f.temp.path().join("aside");
        std::fs::rename(&file, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, &file).unwrap();
        let store = open(f.temp.path());
        let error = store.lock(&Context::quiet()).unwrap_err();
        assert_ne!(error.kind, ErrorKind::DataLoss, "{error:?}");
        assert_ne!(store.read(&entries[0].1, &mut Vec::new()).unwrap_err().kind, ErrorKind::DataLoss);
        assert!(store.snapshot(&id("one")).unwrap().is_some() && !store.is_durable(&id("one")));
        std::fs::rename(&aside, &file).unwrap();
    }
    let store = open(f.temp.path());
    drop(store.lock(&Context::quiet()).unwrap());
    assert!(store.is_durable(&id("one")));
    check(&store, "one", &some_files(3, 0), &entries);
}

#[test]
fn a_ref_that_cannot_be_read_keeps_everything() {
    let f = fixture();
    let mut all = Vec::new();
    for n in 0..3 {
        let files = some_files(3, n * 20 + 1);
        let entries = publish(&f.store, &format!("s{n}"), &files, &[], Durability::Durable).unwrap();
        all.push((files, entries));
    }
    f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("s2")).unwrap();
    let path = f.temp.path().join("git/refs/ah/snapshots/s0");
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, "").unwrap();
    f.store.reclaim(false, &Context::quiet()).unwrap();
    // The same as a packed one.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(f.temp.path().join("git/packed-refs"), format!("{} refs/ah/snapshots/s0\n", &good[..30])).unwrap();
    f.store.reclaim(false, &Context::quiet()).unwrap();
    assert_eq!(f.store.snapshot(&id("s0")).unwrap_err().kind, ErrorKind::DataLoss);
    std::fs::write(f.temp.path().join("git/packed-refs"), format!("{} refs/ah/snapshots/s0\n", good.trim())).unwrap();
    for (n, (files, entries)) in all.iter().enumerate().take(2) {
        check(&f.store, &format!("s{n}"), files, entries);
    }
    f.store.reclaim(false, &Context::quiet()).unwrap();
    assert!(!f.store.contains(&all[2].1[0].1));
    // One that is damaged for good can be taken away.
    std::fs::write(f.temp.path().join("git/refs/ah/snapshots/s0"), "x").unwrap();
    std::fs::write(f.temp.path().join("git/packed-refs"), "12 refs/ah/snapshots/s0\n").unwrap();
    f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("s0")).unwrap();
    f.store.reclaim(false, &Context::quiet()).unwrap();
    assert!(!f.store.contains(&all[0].1[0].1) && f.store.contains(&all[1].1[0].1));
}

#[test]
fn a_reader_finds_what_is_merged_while_it_looks() {
    let f = fixture();
    let reader = open(f.temp.path());
    let mut all = Vec::new();
    for n in 0..3 {
        all.push(publish(&f.store, &format!("s{n}"), &some_files(3, n * 20), &[], Durability::Durable).unwrap());
    }
    let merger = Arc::clone(&f.store);
    faults::when_listed(move || {
        merger.reclaim(false, &Context::quiet()).unwrap();
    });
    for (n, entries) in all.iter().enumerate() {
        check(&reader, &format!("s{n}"), &some_files(3, n * 20), entries);
    }
}

/// Cancels at the nth time it is asked.
struct CancelAt(std::sync::atomic::AtomicI32);

impl ah_plugin_api::Observer for CancelAt {
    fn cancelled(&self) -> bool {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::Relaxed) <= 0
    }
}

#[test]
fn large_files_can_be_cancelled_at_any_piece() {
    let f = fixture();
    let path = f.temp.path().join("large");
    let data: Vec<u8> = (0..9_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&path, &data).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let size = data.len() as u64;
    let guard = f.store.lock(&Context::quiet()).unwrap();
    let batch = f.store.begin(&guard).unwrap();
    let cancelled = |error: ah_plugin_api::Error| assert_eq!(error.kind, ErrorKind::Cancelled, "{error:?}");
    for at in [0, 10, 30, 40, 60] {
        let observer = CancelAt(at.into());
        cancelled(batch.blob_from(file.as_fd(), size, None, &Context::new(&observer)).unwrap_err());
    }
    // What was given up in the middle leaves nothing behind in what is written next, be it small or large.
    let text = b"some text ".repeat(1000);
    let small = batch.object(Kind::Blob, &text, None).unwrap();
    assert!(batch.blob_from(file.as_fd(), size, None, &Context::new(&CancelAt(50.into()))).is_err());
    let blob = batch.blob_from(file.as_fd(), size, None, &Context::quiet()).unwrap().unwrap().unwrap();
    let root = batch.object(Kind::Tree, &tree(&[("large".into(), blob), ("small".into(), small)]), None).unwrap();
    let commit = batch.object(Kind::Commit, &commit(root, "x"), None).unwrap();
    batch.publish(&id("large"), commit, Durability::Durable).unwrap();
    drop(guard);
    fsck(f.temp.path());
    let out = std::fs::File::create(f.temp.path().join("out")).unwrap();
    for at in [0, 20] {
        let observer = CancelAt(at.into());
        cancelled(f.store.read_to(&blob, out.as_fd(), &Context::new(&observer)).unwrap_err());
        let pack = Arc::clone(&f.store.packs().packs[0]);
        cancelled(pack.is_sound(&Context::new(&observer)).unwrap_err());
    }
}

#[test]
fn a_file_that_cannot_be_read_is_no_fault_of_the_store() {
    let f = fixture();
    let path = f.temp.path().join("file");
    let guard = f.store.lock(&Context::quiet()).unwrap();
    let batch = f.store.begin(&guard).unwrap();
    for size in [2 << 20, 8 << 20] {
        // Open for writing only: reading it is an error.
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(size).unwrap();
        let taken = batch.blob_from(file.as_fd(), size, None, &Context::quiet()).unwrap();
        assert_eq!(taken, Err(rustix::io::Errno::BADF));
    }
}

#[test]
fn an_index_that_points_past_its_pack_loses_nothing() {
    let f = fixture();
    let kept = publish(&f.store, "kept", &some_files(3, 0), &[], Durability::Durable).unwrap();
    let first = pack_files(f.temp.path(), "idx");
    publish(&f.store, "gone", &some_files(3, 1), &kept, Durability::Durable).unwrap();
    for path in pack_files(f.temp.path(), "idx").into_iter().filter(|path| !first.contains(path)) {
        let mut bytes = std::fs::read(&path).unwrap();
        let count = u32::from_be_bytes(bytes[1028..1032].try_into().unwrap()) as usize;
        // The first of the offsets, behind names and checksums.
        bytes[1032 + count * 24..][..4].copy_from_slice(&0x7fff_ffff_u32.to_be_bytes());
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    let store = open(f.temp.path());
    store.remove_snapshot(&store.lock(&Context::quiet()).unwrap(), &id("gone")).unwrap();
    store.reclaim(false, &Context::quiet()).unwrap();
    check(&store, "kept", &some_files(3, 0), &kept);
}
