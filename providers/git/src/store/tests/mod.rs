//! The store as a whole, against real Git and a failing disk: what is written is there. Merging and sweeping are tested in `merging.rs`, what a
//! disk does to it in `damage.rs`, to packs' indexes in `indexes.rs`.

mod damage;
mod indexes;
mod merging;

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
        assert_eq!(store.read(id, &mut data, &Context::quiet()).unwrap(), Kind::Blob);
        assert_eq!(&data, wanted);
    }
}

fn pack_files(path: &Path, ending: &str) -> Vec<PathBuf> {
    let dir = std::fs::read_dir(path.join("git/objects/pack")).unwrap();
    let mut all: Vec<_> = dir.map(|e| e.unwrap().path()).filter(|p| p.extension().unwrap() == ending).collect();
    all.sort();
    all
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
    f.store.read(&blob, &mut back, &Context::quiet()).unwrap();
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
