//! Power cuts, flipped bits, files that cannot be read.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use ah_plugin_api::{Context, Durability, ErrorKind};
use gix::objs::Kind;

use super::{check, commit, fixture, fsck, id, open, pack_files, publish, some_files, tree};
use crate::store::files::faults::{self};

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
            match store.read(id, &mut data, &Context::quiet()) {
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
            if let Err(error) = store.read(id, &mut Vec::new(), &Context::quiet()) {
                assert_eq!(error.kind, ErrorKind::DataLoss);
            }
        }
        check(&store, "two", &some_files(2, 9), &second);
    }
}

/// As if the machine had been started again since.
pub(super) fn after_another_boot(path: &Path) {
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
fn what_did_not_survive_goes_also_where_it_was_set_aside_first() {
    let f = fixture();
    let entries = publish(&f.store, "torn", &some_files(3, 0), &[], Durability::Instant).unwrap();
    let pack = pack_files(f.temp.path(), "pack").remove(0);
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[30] ^= 0x55;
    std::fs::set_permissions(&pack, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(&pack, &bytes).unwrap();
    after_another_boot(f.temp.path());
    let busy = crate::store::lock::take(&f.store.folders.store, &Context::quiet()).unwrap();
    let store = open(f.temp.path());
    drop(busy);
    store.read(&entries[0].1, &mut Vec::new(), &Context::quiet()).unwrap_err();
    assert_eq!(pack_files(f.temp.path(), "damaged").len(), 2);
    drop(store.lock(&Context::quiet()).unwrap());
    assert!(store.snapshot(&id("torn")).unwrap().is_none());
    assert!(std::fs::read_dir(pack.parent().unwrap()).unwrap().next().is_none());
}

#[test]
fn what_was_set_aside_and_is_whole_after_all_is_taken_back_after_a_power_cut() {
    let f = fixture();
    let entries = publish(&f.store, "whole", &some_files(3, 0), &[], Durability::Instant).unwrap();
    let pack = pack_files(f.temp.path(), "pack").remove(0);
    for ending in ["idx", "pack"] {
        let path = pack.with_extension(ending);
        std::fs::rename(&path, pack.with_extension(format!("{ending}.damaged"))).unwrap();
    }
    after_another_boot(f.temp.path());
    let store = open(f.temp.path());
    drop(store.lock(&Context::quiet()).unwrap());
    assert!(pack.exists() && pack_files(f.temp.path(), "damaged").is_empty());
    check(&store, "whole", &some_files(3, 0), &entries);
    assert!(store.is_durable(&id("whole")));
}

#[test]
fn what_cannot_be_read_for_long_is_given_up() {
    let f = fixture();
    publish(&f.store, "one", &some_files(3, 0), &[], Durability::Durable).unwrap();
    publish(&f.store, "gone", &some_files(3, 9), &[], Durability::Durable).unwrap();
    f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("gone")).unwrap();
    let (file, aside) = (f.temp.path().join("git/refs/ah/snapshots/one"), f.temp.path().join("aside"));
    std::fs::rename(&file, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &file).unwrap();
    let notes = || std::fs::read(f.temp.path().join("garbage")).unwrap();
    let sweep = || open(f.temp.path()).reclaim(true, &Context::quiet()).unwrap();
    let mut before = Vec::new();
    while notes() != before {
        assert!(before.len() < 2000, "each of them is a sweep");
        before = notes();
        sweep();
    }
    assert!(before.ends_with(b"~-"));
    // Whoever asks for it may know that it is put right.
    std::fs::rename(&aside, &file).unwrap();
    open(f.temp.path()).reclaim(false, &Context::quiet()).unwrap();
    assert!(!f.temp.path().join("garbage").exists());
}

/// What was said to a person.
#[derive(Default)]
struct Said(std::sync::Mutex<Vec<String>>);

impl ah_plugin_api::Observer for Said {
    fn log(&self, _level: ah_plugin_api::LogLevel, message: &str) {
        self.0.lock().unwrap().push(message.to_owned());
    }
}

/// What a sweep says.
fn swept(path: &Path, auto: bool) -> Vec<String> {
    let said = Said::default();
    open(path).reclaim(auto, &Context::new(&said)).unwrap();
    said.0.into_inner().unwrap()
}

/// A pack without an index, as a removal that was killed leaves it.
fn orphan(path: &Path) -> std::path::PathBuf {
    let pack = pack_files(path, "pack").remove(0);
    let orphan = pack.with_file_name(format!("pack-{}.pack", "0".repeat(40)));
    std::fs::copy(pack, &orphan).unwrap();
    orphan
}

#[test]
fn unasked_nobody_looks_at_everything_for_ever_for_a_pack_without_an_index() {
    let f = fixture();
    publish(&f.store, "one", &some_files(3, 0), &[], Durability::Durable).unwrap();
    let orphan = orphan(f.temp.path());
    let (file, aside) = (f.temp.path().join("git/refs/ah/snapshots/one"), f.temp.path().join("aside"));
    std::fs::rename(&file, &aside).unwrap();
    std::os::unix::fs::symlink(&aside, &file).unwrap();
    let looked = |auto| swept(f.temp.path(), auto).iter().any(|line| line.contains("so nothing is dropped"));
    let times = (0..20).take_while(|_| looked(true)).count();
    assert!((2..20).contains(&times), "{times}");
    assert!(!looked(true) && looked(false) && orphan.exists());
    std::fs::rename(&aside, &file).unwrap();
    swept(f.temp.path(), false);
    assert!(!orphan.exists() && !f.temp.path().join("garbage").exists());
}

#[test]
fn a_sweep_names_what_is_damaged_once() {
    let f = fixture();
    publish(&f.store, "one", &some_files(3, 0), &[], Durability::Durable).unwrap();
    publish(&f.store, "gone", &some_files(3, 9), &[], Durability::Durable).unwrap();
    f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("gone")).unwrap();
    orphan(f.temp.path());
    let whole = pack_files(f.temp.path(), "pack");
    for pack in whole.iter().filter(|pack| pack.with_extension("idx").exists()) {
        let mut bytes = std::fs::read(pack).unwrap();
        let end = bytes.len() - 30;
        bytes[end] ^= 0x55;
        std::fs::set_permissions(pack, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        std::fs::write(pack, bytes).unwrap();
    }
    let said = swept(f.temp.path(), false);
    assert_eq!(said.iter().filter(|line| line.contains("so nothing is dropped")).count(), 1, "{said:?}");
}

#[test]
fn what_cannot_be_read_at_this_moment_ends_no_sweep_for_good() {
    for file in ["pack", "ref"] {
        let f = fixture();
        let kept = publish(&f.store, "one", &some_files(3, 0), &[], Durability::Durable).unwrap();
        let file = match file {
            "pack" => pack_files(f.temp.path(), "pack").remove(0),
            _ => f.temp.path().join("git/refs/ah/snapshots/one"),
        };
        let gone = publish(&f.store, "gone", &some_files(3, 9), &[], Durability::Durable).unwrap();
        f.store.remove_snapshot(&f.store.lock(&Context::quiet()).unwrap(), &id("gone")).unwrap();
        // A symlink cannot be opened: an error of the system, which says nothing about the file.
        let aside = f.temp.path().join("aside");
        std::fs::rename(&file, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, &file).unwrap();
        open(f.temp.path()).reclaim(true, &Context::quiet()).unwrap();
        assert!(open(f.temp.path()).contains(&gone[0].1), "{}", file.display());
        std::fs::rename(&aside, &file).unwrap();
        let store = open(f.temp.path());
        store.reclaim(true, &Context::quiet()).unwrap();
        assert!(!store.contains(&gone[0].1), "{}", file.display());
        check(&store, "one", &some_files(3, 0), &kept);
    }
}

#[test]
fn after_a_power_cut_nothing_counts_as_durable_until_it_was_looked_at() {
    let f = fixture();
    publish(&f.store, "torn", &some_files(3, 0), &[], Durability::Instant).unwrap();
    publish(&f.store, "whole", &some_files(3, 1), &[], Durability::Instant).unwrap();
    std::fs::write(f.temp.path().join("git/refs/ah/snapshots/torn"), "").unwrap();
    after_another_boot(f.temp.path());
    // Somebody holds the lock, so that opening the store cannot look.
    let busy = crate::store::lock::take(&f.store.folders.store, &Context::quiet()).unwrap();
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
        assert_ne!(
            store.read(&entries[0].1, &mut Vec::new(), &Context::quiet()).unwrap_err().kind,
            ErrorKind::DataLoss
        );
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
fn looking_at_a_damaged_pack_can_be_cancelled_and_is_done_the_next_time() {
    let f = fixture();
    let entries = publish(&f.store, "one", &some_files(3, 0), &[], Durability::Durable).unwrap();
    let path = pack_files(f.temp.path(), "pack").remove(0);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[30] ^= 0x55;
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let store = open(f.temp.path());
    let read = |cx: &Context<'_>| {
        let all = entries.iter().map(|(_, id)| store.read(id, &mut Vec::new(), cx).map(drop));
        all.collect::<ah_plugin_api::Result<Vec<()>>>().unwrap_err()
    };
    let stopped = read(&Context::new(&CancelAt(0.into())));
    assert_eq!((stopped.kind, path.exists()), (ErrorKind::Cancelled, true));
    let said = Said::default();
    assert_eq!(read(&Context::new(&said)).kind, ErrorKind::DataLoss);
    assert!(path.with_extension("pack.damaged").exists());
    let said = said.0.into_inner().unwrap();
    assert!(said.iter().any(|line| line.contains("is damaged; it is set aside")), "{said:?}");
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

#[test]
fn a_pack_whose_index_was_lost_is_removed_only_if_nothing_needs_it() {
    let f = fixture();
    let first = publish(&f.store, "one", &some_files(2, 0), &[], Durability::Durable).unwrap();
    let mine = pack_files(f.temp.path(), "pack").remove(0);
    let second = publish(&f.store, "two", &some_files(2, 9), &first, Durability::Durable).unwrap();
    let (pack, index) = (std::fs::read(&mine).unwrap(), std::fs::read(mine.with_extension("idx")).unwrap());
    // As a removal that was killed leaves it.
    let left = mine.with_file_name(format!("pack-{}.pack", "0".repeat(40)));
    std::fs::write(&left, &pack).unwrap();
    let said = open(f.temp.path()).reclaim(true, &Context::quiet()).unwrap().actions;
    assert!(!left.exists() && said.iter().any(|action| action.starts_with("removed ")), "{said:?}");

    std::fs::remove_file(mine.with_extension("idx")).unwrap();
    let said = open(f.temp.path()).reclaim(false, &Context::quiet()).unwrap().actions;
    let aside = mine.with_extension("pack.damaged");
    assert!(said.iter().any(|action| action.starts_with("set aside ")), "{said:?}");
    assert_eq!(std::fs::read(&aside).unwrap(), pack);
    // As a person does, by `git index-pack`.
    std::fs::rename(&aside, &mine).unwrap();
    std::fs::write(mine.with_extension("idx"), index).unwrap();
    let store = open(f.temp.path());
    check(&store, "one", &some_files(2, 0), &first);
    check(&store, "two", &some_files(2, 9), &second);
}

#[test]
fn a_pack_that_is_damaged_with_its_index_is_read_once_and_set_aside() {
    let f = fixture();
    let lost = publish(&f.store, "one", &some_files(2, 0), &[], Durability::Durable).unwrap();
    let mine = pack_files(f.temp.path(), "pack").remove(0);
    let second = publish(&f.store, "two", &some_files(2, 9), &[], Durability::Durable).unwrap();
    for path in [mine.clone(), mine.with_extension("idx")] {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[30] ^= 0x55;
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        std::fs::write(&path, bytes).unwrap();
    }
    drop(open(f.temp.path()).lock(&Context::quiet()).unwrap());
    assert!(mine.with_extension("pack.damaged").exists() && mine.with_extension("idx.damaged").exists());
    let store = open(f.temp.path());
    assert!(store.packs().bad.is_empty());
    let error = store.read(&lost[0].1, &mut Vec::new(), &Context::quiet()).unwrap_err();
    let name = mine.file_name().unwrap().to_str().unwrap();
    assert!(error.kind == ErrorKind::DataLoss && error.causes.iter().any(|cause| cause.contains(name)), "{error:?}");
    check(&store, "two", &some_files(2, 9), &second);
}

#[test]
fn a_damaged_format_file_costs_nothing() {
    let f = fixture();
    let entries = publish(&f.store, "one", &some_files(2, 0), &[], Durability::Durable).unwrap();
    let path = f.temp.path().join("format");
    let good = std::fs::read(&path).unwrap();
    for bad in [&b""[..], b"{\"version\":", b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0", b"{\"vers)on\":1}\n"] {
        std::fs::write(&path, bad).unwrap();
        // Somebody is writing: it is read all the same.
        let busy = crate::store::lock::take(&f.store.folders.store, &Context::quiet()).unwrap();
        check(&open(f.temp.path()), "one", &some_files(2, 0), &entries);
        assert_eq!(std::fs::read(&path).unwrap(), bad);
        drop(busy);
        check(&open(f.temp.path()), "one", &some_files(2, 0), &entries);
        assert_eq!(std::fs::read(&path).unwrap(), good);
    }
    std::fs::write(&path, "{\"version\":2}\n").unwrap();
    let refused = crate::store::Store::open(&ah_plugin_api::Dir::open(f.temp.path()).unwrap()).unwrap_err();
    assert!(refused.kind == ErrorKind::FailedPrecondition && refused.hint.is_some(), "{refused:?}");
    assert_eq!(std::fs::read(&path).unwrap(), b"{\"version\":2}\n");
}
