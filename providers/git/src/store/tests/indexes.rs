//! Indexes of packs that are not what was written, while the packs are: nothing is lost, whatever is done next.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Mutex;

use ah_plugin_api::{Context, Durability, LogLevel, Observer};
use gix::ObjectId;
use sha1::{Digest, Sha1};

use super::damage::after_another_boot;
use super::{check, fixture, fsck, id, open, pack_files, publish, some_files, tempdir};
use crate::store::pack::remake;
use crate::store::{Store, reclaim};

type Files = Vec<(String, Vec<u8>)>;
type Entries = Vec<(String, ObjectId)>;

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

fn put(path: &Path, bytes: &[u8]) {
    std::fs::remove_file(path).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Where an index has the name of an object.
fn place(index: &[u8], id: &ObjectId) -> usize {
    index.windows(20).position(|window| window == id.as_slice()).unwrap()
}

/// Changes the name of an object in the one index that has it; with `right`, so that its checksum fits.
fn rename_in_index(store: &Path, id: &ObjectId, right: bool) -> ObjectId {
    for path in pack_files(store, "idx") {
        let mut bytes = std::fs::read(&path).unwrap();
        if !bytes.windows(20).any(|window| window == id.as_slice()) {
            continue;
        }
        let at = place(&bytes, id);
        bytes[at + 5] ^= 4;
        let wrong = ObjectId::from_bytes_or_panic(&bytes[at..at + 20]);
        if right {
            let end = bytes.len() - 20;
            let sum = Sha1::digest(&bytes[..end]);
            bytes[end..].copy_from_slice(&sum);
        }
        put(&path, &bytes);
        return wrong;
    }
    panic!("no index has it");
}

fn remove(store: &Store, name: &str) {
    assert!(store.remove_snapshot(&store.lock(&Context::quiet()).unwrap(), &id(name)).unwrap());
}

/// A store with a merged pack, in which are deltas, and one that was not merged: what two snapshots of it need.
fn two_packs(path: &Path) -> Vec<(&'static str, Files, Entries)> {
    let store = open(path);
    let mut out = Vec::new();
    let mut before = Vec::new();
    for (version, name) in ["gone", "one", "two"].into_iter().enumerate() {
        let files = some_files(2, version);
        before = publish(&store, name, &files, &before, Durability::Durable).unwrap();
        out.push((name, files, before.clone()));
        if version == 1 {
            store.reclaim(false, &Context::quiet()).unwrap();
        }
    }
    assert_eq!(pack_files(path, "idx").len(), 2);
    out.remove(0);
    out
}

#[test]
fn no_byte_of_an_index_can_take_anything_with_it() {
    let made = tempdir();
    let needed = two_packs(made.path());
    let name = |path: &Path| path.file_name().unwrap().to_owned();
    for index in pack_files(made.path(), "idx") {
        let good = std::fs::read(&index).unwrap();
        // The table at the beginning is mostly the same number.
        for at in (0..1032).step_by(43).chain(1032..good.len()) {
            for way in ["gc", "merge", "auto"] {
                let temp = tempdir();
                copy(made.path(), temp.path());
                let mut bad = good.clone();
                bad[at] ^= 0x81;
                put(&temp.path().join("git/objects/pack").join(name(&index)), &bad);
                let store = open(temp.path());
                if way != "merge" {
                    remove(&store, "gone");
                }
                if way == "auto" {
                    (0..16).for_each(|_| reclaim::note_garbage(&store).unwrap());
                }
                store.reclaim(way == "auto", &Context::quiet()).unwrap();
                for store in [store, open(temp.path())] {
                    for (name, files, entries) in &needed {
                        check(&store, name, files, entries);
                        assert!(entries.iter().all(|(_, id)| store.contains(id)), "byte {at}, {way}");
                    }
                }
                assert!(pack_files(temp.path(), "damaged").is_empty(), "byte {at}, {way}");
                if at % 40 == 0 {
                    fsck(temp.path());
                }
            }
        }
    }
}

#[test]
fn an_index_is_made_anew_as_it_was() {
    let made = tempdir();
    two_packs(made.path());
    let store = open(made.path());
    for index in pack_files(made.path(), "idx") {
        let stem = index.file_stem().unwrap().to_str().unwrap();
        let packs = store.folders.packs.as_fd();
        let again = remake(packs, stem, store.number(), &Context::quiet()).unwrap().unwrap();
        assert!(again == std::fs::read(&index).unwrap());
        let pack = index.with_extension("pack");
        let mut bytes = std::fs::read(&pack).unwrap();
        bytes[40] ^= 1;
        put(&pack, &bytes);
        assert_eq!(remake(packs, stem, store.number(), &Context::quiet()).unwrap(), None);
    }
}

#[test]
fn an_index_that_is_made_anew_serves_before_it_can_be_written() {
    for torn in [false, true] {
        let f = fixture();
        let entries = publish(&f.store, "one", &some_files(3, 0), &[], Durability::Durable).unwrap();
        let index = pack_files(f.temp.path(), "idx").remove(0);
        let good = std::fs::read(&index).unwrap();
        match torn {
            true => put(&index, &good[..good.len() / 2]),
            false => drop(rename_in_index(f.temp.path(), &entries[1].1, false)),
        }
        let bad = std::fs::read(&index).unwrap();
        // Somebody is writing.
        let busy = crate::store::lock::take(&f.store.folders.store, &Context::quiet()).unwrap();
        let store = open(f.temp.path());
        for _ in 0..2 {
            check(&store, "one", &some_files(3, 0), &entries);
        }
        assert!(std::fs::read(&index).unwrap() == bad, "torn: {torn}");
        assert!(!store.contains(&entries[1].1), "nothing new rests on it");
        drop(busy);
        drop(store.lock(&Context::quiet()).unwrap());
        assert!(std::fs::read(&index).unwrap() == good && store.contains(&entries[1].1), "torn: {torn}");
        check(&store, "one", &some_files(3, 0), &entries);
    }
}

#[test]
fn a_large_index_is_looked_at_once_something_is_missed_in_it() {
    let f = fixture();
    let files: Files = (0..9500).map(|n| (format!("f{n}"), format!("{n}").into_bytes())).collect();
    let entries = publish(&f.store, "many", &files, &[], Durability::Instant).unwrap();
    let index = pack_files(f.temp.path(), "idx").remove(0);
    let good = std::fs::read(&index).unwrap();
    assert!(good.len() > 256 << 10);
    rename_in_index(f.temp.path(), &entries[77].1, false);
    let store = open(f.temp.path());
    drop(store.lock(&Context::quiet()).unwrap());
    assert!(std::fs::read(&index).unwrap() != good, "nobody reads all of a large one without need");
    check(&store, "many", &files[77..78], &entries[77..78]);
    assert!(std::fs::read(&index).unwrap() == good);
}

#[test]
fn what_a_power_cut_took_of_an_index_alone_costs_nothing() {
    for torn in [true, false] {
        let f = fixture();
        let entries = publish(&f.store, "one", &some_files(3, 0), &[], Durability::Instant).unwrap();
        let index = pack_files(f.temp.path(), "idx").remove(0);
        let good = std::fs::read(&index).unwrap();
        put(&index, if torn { &good[..good.len() / 2] } else { b"" });
        after_another_boot(f.temp.path());
        let store = open(f.temp.path());
        check(&store, "one", &some_files(3, 0), &entries);
        assert!(store.is_durable(&id("one")) && std::fs::read(&index).unwrap() == good);
    }
}

#[test]
fn what_a_power_cut_took_of_a_large_index_costs_nothing() {
    let f = fixture();
    let files: Files = (0..9500).map(|n| (format!("f{n}"), format!("{n}").into_bytes())).collect();
    let entries = publish(&f.store, "many", &files, &[], Durability::Instant).unwrap();
    let index = pack_files(f.temp.path(), "idx").remove(0);
    let good = std::fs::read(&index).unwrap();
    let (ids, offsets, end) = (1032, 1032 + 24 * 9502, good.len());
    assert!(end > 256 << 10);
    for zeros in [end - (40 << 10)..end, ids..ids + 4096, offsets..offsets + 4096] {
        let temp = tempdir();
        copy(f.temp.path(), temp.path());
        let mut torn = good.clone();
        torn[zeros.clone()].fill(0);
        let index = temp.path().join("git/objects/pack").join(index.file_name().unwrap());
        put(&index, &torn);
        after_another_boot(temp.path());
        let store = open(temp.path());
        assert!(store.is_durable(&id("many")) && std::fs::read(&index).unwrap() == good, "{zeros:?}");
        check(&store, "many", &files, &entries);
    }
}

#[test]
fn no_snapshot_goes_after_a_power_cut_for_the_index_of_an_older_pack() {
    let f = fixture();
    let files: Files = (0..9500).map(|n| (format!("f{n}"), format!("{n}").into_bytes())).collect();
    let entries = publish(&f.store, "many", &files, &[], Durability::Durable).unwrap();
    publish(&f.store, "same", &files, &[], Durability::Instant).unwrap();
    rename_in_index(f.temp.path(), &entries[77].1, false);
    after_another_boot(f.temp.path());
    let store = open(f.temp.path());
    assert!(store.is_durable(&id("same")));
    check(&store, "same", &files, &entries);
}

/// Keeps what is logged.
#[derive(Default)]
struct Said(Mutex<Vec<String>>);

impl Observer for Said {
    fn log(&self, _level: LogLevel, message: &str) {
        self.0.lock().unwrap().push(message.to_owned());
    }
}

#[test]
fn an_index_that_was_written_wrong_is_made_anew_when_that_is_met() {
    let f = fixture();
    let entries = publish(&f.store, "one", &some_files(3, 0), &[], Durability::Durable).unwrap();
    rename_in_index(f.temp.path(), &entries[1].1, true);
    let store = open(f.temp.path());
    store.reclaim(false, &Context::quiet()).unwrap();
    check(&store, "one", &some_files(3, 0), &entries);
    fsck(f.temp.path());
}

/// Earlier versions carried objects of merged packs over under the wrong name that a damaged index gave them, into an index whose
/// checksum was right.
#[test]
fn as_long_as_a_snapshot_lacks_something_nothing_is_dropped() {
    let f = fixture();
    let first = publish(&f.store, "one", &some_files(3, 0), &[], Durability::Durable).unwrap();
    f.store.reclaim(false, &Context::quiet()).unwrap();
    let gone = publish(&f.store, "gone", &some_files(3, 1), &[], Durability::Durable).unwrap();
    let lost = first[1].1;
    let wrong = rename_in_index(f.temp.path(), &lost, true);
    let store = open(f.temp.path());
    remove(&store, "gone");
    let says = |auto| {
        let said = Said::default();
        store.reclaim(auto, &Context::new(&said)).unwrap();
        let said = said.0.into_inner().unwrap();
        said.iter().any(|line| line.contains("rm one") && line.contains(&lost.to_string()))
    };
    // Unasked, it is looked for again only once there is more to be dropped.
    assert!(says(true) && !says(true) && says(false) && !says(true));
    reclaim::note_garbage(&store).unwrap();
    assert!(says(true));
    let store = open(f.temp.path());
    assert!(store.contains(&wrong) && gone.iter().all(|(_, id)| store.contains(id)));
    // It is there again, as the next snapshot captures it.
    publish(&store, "again", &some_files(3, 0), &[], Durability::Durable).unwrap();
    store.reclaim(false, &Context::quiet()).unwrap();
    check(&store, "one", &some_files(3, 0), &first);
    assert!(!store.contains(&wrong) && !store.contains(&gone[1].1));
    assert!(!f.temp.path().join("garbage").exists());
}
