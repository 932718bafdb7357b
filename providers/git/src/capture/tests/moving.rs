//! Files that change while they are read.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Arc;

use ah_plugin_api::{Context, Dir, OmitReason, SnapshotId, SnapshotRequest};

use super::{Bench, base_request, reasons};
use crate::capture::snapshot;
use crate::index::Index;
use crate::scan::{State, scan};
use crate::sys::tests::Mapping;

#[test]
fn a_file_that_never_stands_still_is_omitted_or_whole() {
    let bench = Bench::new();
    bench.write("still", "still");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each state of the file is one letter throughout.
            let file = fs::File::create(bench.dir.path().join("ws/busy")).unwrap();
            for letter in (b'a'..=b'z').cycle() {
                use std::os::unix::fs::FileExt;
                file.write_all_at(&vec![letter; 1 << 16], 0).unwrap();
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        let store = Arc::clone(&bench.store);
        for at in 0..30 {
            let request = SnapshotRequest { id: SnapshotId::new(format!("x{at}")).unwrap(), ..base_request() };
            let workspace = Dir::open(bench.dir.path().join("ws")).unwrap();
            let taken = snapshot(&store, &workspace, &request, &Context::quiet()).unwrap();
            assert!(reasons(&taken).iter().all(|(path, reason)| path == "busy" && *reason == OmitReason::Changing));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    bench.settle();
    assert_eq!(reasons(&bench.take_and_compare()), []);
}

#[test]
fn a_tree_that_changes_all_the_time_is_captured_all_the_same() {
    let bench = Bench::new();
    for at in 0..40 {
        bench.write(&format!("d{}/f{at}", at % 4), "x");
    }
    let root = bench.path("");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let outside = bench.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "secret").unwrap();
    std::thread::scope(|scope| {
        let (stop, outside) = (&stop, &outside);
        scope.spawn(move || {
            for at in (0..4).cycle() {
                // A directory goes away and comes back, with a link to the outside in its place meanwhile; others are swapped with files.
                let (dir, away) = (root.join(format!("d{at}")), root.join("away"));
                let _ = fs::rename(&dir, &away);
                let _ = symlink(outside, &dir);
                let _ = fs::remove_file(&dir);
                let _ = fs::write(&dir, "a file");
                let _ = fs::remove_file(&dir);
                let _ = fs::rename(&away, &dir);
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        for at in 0..60 {
            let request = SnapshotRequest { id: SnapshotId::new(format!("x{at}")).unwrap(), ..base_request() };
            let workspace = Dir::open(bench.dir.path().join("ws")).unwrap();
            let taken = snapshot(&bench.store, &workspace, &request, &Context::quiet()).unwrap();
            let listing = bench.listing(&taken);
            assert!(!listing.keys().any(|path| path.ends_with("secret")));
            assert!(listing.values().all(|seen| seen.data != b"secret"));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    bench.take_and_compare();
}

/// How many files the next scan would read.
fn to_be_read(bench: &Bench) -> usize {
    let index = Index::load(bench.store.folder());
    let scan = scan(bench.workspace().as_fd(), &bench.policy, index, &bench.store, true, &Context::quiet()).unwrap();
    let pending = |node: &crate::scan::Node| match &node.state {
        State::Listed(listed) => listed.items.iter().filter(|item| item.pending).count(),
        _ => 0,
    };
    scan.nodes.iter().map(pending).sum()
}

/// A page that is dirty already takes stores without a new time.
fn stores_through_a_mapping_are_seen(bench: &Bench) {
    bench.write("still", "still");
    fs::write(bench.path("mapped"), [b'a'; 4096]).unwrap();
    let file = fs::File::options().read(true).write(true).open(bench.path("mapped")).unwrap();
    let mapping = Mapping::new(&file);
    drop(file);
    // The kernel writes a page out when it likes (another test's `syncfs` is enough), and the next store then sets the time.
    let unseen = (0..200).any(|_| {
        mapping.store(0, b'b');
        bench.settle();
        bench.take_and_compare();
        let before = fs::metadata(bench.path("mapped")).unwrap();
        mapping.store(0, b'c');
        let after = fs::metadata(bench.path("mapped")).unwrap();
        bench.settle();
        bench.take_and_compare();
        (before.ctime(), before.ctime_nsec()) == (after.ctime(), after.ctime_nsec())
    });
    assert!(unseen, "nothing to test: each store set a new time");
    // Until it is gone, and then once more for the last stores.
    mapping.store(1, b'd');
    drop(mapping);
    assert_eq!(to_be_read(bench), 1);
    bench.settle();
    bench.take_and_compare();
    assert_eq!(to_be_read(bench), 0);
}

#[test]
fn a_mapping_that_goes_on_is_seen() {
    stores_through_a_mapping_are_seen(&Bench::new());
}

#[test]
fn a_mapping_that_goes_on_is_seen_where_nothing_is_ever_written_out() {
    let bench = Bench::of(tempfile::tempdir_in("/dev/shm").unwrap());
    stores_through_a_mapping_are_seen(&bench);
}

/// A `write` that takes long sets the times when it begins: as long as somebody could be at it, the file counts as changed.
#[test]
fn what_has_a_writer_is_read_again_and_nothing_else() {
    let bench = Bench::new();
    for at in 0..200 {
        bench.write(&format!("d{}/f{at}", at % 4), &format!("content {at}"));
    }
    let writer = fs::File::options().write(true).open(bench.path("d1/f1")).unwrap();
    bench.settle();
    bench.take_and_compare();
    assert_eq!(to_be_read(&bench), 1);
    bench.take_and_compare();
    assert_eq!(to_be_read(&bench), 1);
    {
        use std::io::Write;
        (&writer).write_all(b"changed").unwrap();
    }
    bench.take_and_compare();
    drop(writer);
    bench.settle();
    bench.take_and_compare();
    assert_eq!(to_be_read(&bench), 0);
    bench.write("d2/.gitignore", "f2\n");
    let rules = fs::File::options().write(true).open(bench.path("d2/.gitignore")).unwrap();
    bench.settle();
    bench.take_and_compare();
    drop(rules);
    bench.take_and_compare();
    assert_eq!(to_be_read(&bench), 0);
}
