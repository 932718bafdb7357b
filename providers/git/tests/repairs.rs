//! A user's repository in which something is damaged, and put right again: what is kept of it follows.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};

use ah_plugin_api::Snapshot;
use common::{Bench, git};

/// A repository with a blob of some size in a file, packed or loose.
fn repository(packed: bool) -> Bench {
    let bench = Bench::new();
    let work = bench.workspace.path();
    git(work, &["init", "-q", "-b", "main"]);
    let noise: Vec<u8> = (0..5000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    bench.write("a", "1");
    bench.write("b", noise);
    commit(&bench, "first");
    if packed {
        git(work, &["repack", "-q", "-a", "-d"]);
    }
    bench
}

fn commit(bench: &Bench, text: &str) {
    git(bench.workspace.path(), &["add", "."]);
    git(bench.workspace.path(), &["commit", "-q", "--allow-empty", "-m", text]);
}

/// The file of the blob, or of the pack that holds it.
fn file(bench: &Bench, packed: bool) -> PathBuf {
    let objects = bench.work(".git/objects");
    if packed {
        let all = std::fs::read_dir(objects.join("pack")).unwrap().map(|entry| entry.unwrap().path());
        return all.filter(|path| path.extension().is_some_and(|ending| ending == "pack")).min().unwrap();
    }
    let id = git(bench.workspace.path(), &["rev-parse", "HEAD:b"]);
    objects.join(&id[..2]).join(id[2..].trim())
}

/// Puts a new file in the place of one, as programs do that repair or copy.
fn put(path: &Path, bytes: &[u8]) {
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, bytes).unwrap();
}

fn overwritten(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4].iter_mut().for_each(|byte| *byte ^= 0x55);
    bytes
}

/// Whether a clone is a repository in which nothing is missing or damaged.
fn is_whole(bench: &Bench, snapshot: &Snapshot) -> bool {
    let name = format!("c{}", std::fs::read_dir(bench.target.path()).unwrap().count());
    let clone = bench.clone(snapshot, &name);
    common::try_git(&clone.path, &["fsck", "--full", "--strict"]).status.success()
}

#[test]
fn what_was_put_right_is_whole_in_all_clones() {
    for packed in [false, true] {
        let bench = repository(packed);
        let file = file(&bench, packed);
        let good = std::fs::read(&file).unwrap();
        put(&file, &overwritten(&good));
        let damaged = bench.snapshot();
        assert!(!is_whole(&bench, &damaged), "packed: {packed}");
        put(&file, &good);
        // Nothing else changed.
        let mended = bench.snapshot();
        assert!(is_whole(&bench, &mended), "packed: {packed}");
        assert!(is_whole(&bench, &damaged), "packed: {packed}");
        commit(&bench, "more");
        assert!(is_whole(&bench, &bench.snapshot()), "packed: {packed}");
    }
}

#[test]
fn an_empty_object_is_not_kept_and_a_whole_one_is_once_it_is_there() {
    let bench = repository(false);
    let file = file(&bench, false);
    put(&file, b"");
    let damaged = bench.snapshot();
    let below = file.strip_prefix(bench.workspace.path()).unwrap();
    assert!(!bench.clone(&damaged, "empty").path.join(below).exists());
    std::fs::remove_file(&file).unwrap();
    git(bench.workspace.path(), &["hash-object", "-w", "b"]);
    assert!(is_whole(&bench, &bench.snapshot()));
}

#[test]
fn what_is_kept_whole_is_not_replaced_by_what_is_damaged() {
    for packed in [false, true] {
        let bench = repository(packed);
        let file = file(&bench, packed);
        let good = std::fs::read(&file).unwrap();
        let whole = bench.snapshot();
        for bad in [Vec::new(), good[..good.len() / 2].to_vec(), good[..good.len() - 1].to_vec(), overwritten(&good)] {
            put(&file, &bad);
            let damaged = bench.snapshot();
            assert!(is_whole(&bench, &damaged), "packed: {packed}, {} bytes", bad.len());
        }
        assert!(is_whole(&bench, &whole));
    }
}
