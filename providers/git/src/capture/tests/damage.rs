//! Packs that were damaged or taken away under the private index: the next snapshot is whole.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use ah_plugin_api::{Context, Dir, ErrorKind};
use gix::ObjectId;
use sha1::{Digest, Sha1};

use super::Bench;
use crate::store::{Store, hash};

impl Bench {
    fn packs(&self, ending: &str) -> BTreeSet<PathBuf> {
        let all = fs::read_dir(self.dir.path().join("store/git/objects/pack")).unwrap();
        let all = all.map(|entry| entry.unwrap().path());
        all.filter(|path| path.to_str().unwrap().ends_with(ending)).collect()
    }

    /// As another process sees it.
    fn reopen(&mut self) {
        self.store = Store::open(&Dir::open(self.dir.path().join("store")).unwrap()).unwrap();
    }
}

/// Nothing compressible, so that a changed byte in the middle is one of the contents.
fn noise(seed: u32) -> String {
    let next = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'!' + (*state >> 24) as u8 % 90)
    };
    let mut state = seed;
    (0..60_000).map(|_| next(&mut state)).collect()
}

fn blob(text: &str) -> ObjectId {
    hash(gix::objs::Kind::Blob, text.as_bytes())
}

fn flip_in_the_middle(path: &PathBuf) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::remove_file(path).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn what_a_damaged_pack_held_is_captured_again_once_it_is_met() {
    let mut bench = Bench::new();
    bench.write("large", &noise(1));
    bench.write("d/small", "small");
    bench.settle();
    bench.take_and_compare();
    flip_in_the_middle(bench.packs(".pack").first().unwrap());
    bench.reopen();
    let error = bench.store.read(&blob(&noise(1)), &mut Vec::new(), &Context::quiet()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DataLoss);
    assert_eq!((bench.packs(".pack").len(), bench.packs(".damaged").len()), (0, 2));
    // What is whole in it is still there, and nothing counts on that.
    let mut small = Vec::new();
    bench.store.read(&blob("small"), &mut small, &Context::quiet()).unwrap();
    assert_eq!(small, b"small");
    assert!(!bench.store.contains(&blob("small")));

    bench.reopen();
    bench.take_and_compare();
    assert!(bench.store.contains(&blob(&noise(1))) && bench.store.contains(&blob("small")));
    assert!(bench.store.index_holds());
    bench.reopen();
    bench.take_and_compare();
}

#[test]
fn what_gc_finds_damaged_is_captured_again() {
    let mut bench = Bench::new();
    for at in 0..3 {
        bench.write(&format!("f{at}"), &noise(at));
        bench.settle();
        bench.take_and_compare();
    }
    flip_in_the_middle(bench.packs(".pack").first().unwrap());
    bench.reopen();
    bench.store.reclaim(false, &Context::quiet()).unwrap();
    assert_eq!(bench.packs(".damaged").len(), 2);
    bench.take_and_compare();
    bench.store.reclaim(false, &Context::quiet()).unwrap();
    bench.take_and_compare();
}

/// The index is believed as long as all packs are there that it rests on, merged or not.
#[test]
fn a_pack_that_was_deleted_is_missed() {
    let mut bench = Bench::new();
    bench.write("d/one", &noise(1));
    bench.settle();
    bench.take_and_compare();
    let first = bench.packs("");
    bench.write("two", "two");
    bench.settle();
    bench.take_and_compare();
    for path in first {
        fs::remove_file(path).unwrap();
    }
    for _ in 0..2 {
        bench.reopen();
        bench.take_and_compare();
        assert!(bench.store.index_holds());
        bench.store.reclaim(false, &Context::quiet()).unwrap();
        assert!(bench.store.index_holds());
    }
    for path in bench.packs("") {
        fs::remove_file(path).unwrap();
    }
    assert!(!bench.store.index_holds());
    bench.take_and_compare();
}

fn index_that_names(bench: &Bench, id: &ObjectId) -> PathBuf {
    let names = |path: &PathBuf| fs::read(path).unwrap().windows(20).any(|window| window == id.as_slice());
    bench.packs(".idx").into_iter().find(names).unwrap()
}

/// Changes the name of an object in the index of its pack.
fn rename(index: &PathBuf, id: &ObjectId, fit: bool) {
    let mut bytes = fs::read(index).unwrap();
    let at = bytes.windows(20).position(|window| window == id.as_slice()).unwrap();
    bytes[at + 5] ^= 4;
    if fit {
        let end = bytes.len() - 20;
        let sum = Sha1::digest(&bytes[..end]);
        bytes[end..].copy_from_slice(&sum);
    }
    fs::remove_file(index).unwrap();
    fs::write(index, bytes).unwrap();
}

#[test]
fn no_snapshot_rests_on_a_damaged_index() {
    let mut bench = Bench::new();
    bench.write("d/small", "small");
    bench.settle();
    bench.take_and_compare();
    let index = index_that_names(&bench, &blob("small"));
    let good = fs::read(&index).unwrap();
    rename(&index, &blob("small"), false);
    bench.reopen();
    bench.write("other", "1");
    bench.take_and_compare();
    assert!(fs::read(&index).unwrap() == good && bench.packs(".damaged").is_empty());
}

#[test]
fn what_no_pack_has_is_captured_again_once_it_is_missed() {
    let mut bench = Bench::new();
    bench.write("d/small", "small");
    bench.settle();
    bench.take_and_compare();
    rename(&index_that_names(&bench, &blob("small")), &blob("small"), true);
    for round in ["1", "2"] {
        bench.reopen();
        bench.write("other", round);
        bench.settle();
        bench.take();
        let read = bench.store.read(&blob("small"), &mut Vec::new(), &Context::quiet());
        assert_eq!(read.is_ok(), round == "2", "nothing tells before it is read");
    }
    bench.reopen();
    bench.take_and_compare();
    assert!(bench.store.index_holds());
}
