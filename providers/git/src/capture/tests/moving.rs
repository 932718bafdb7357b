//! Files that change while they are read.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use ah_plugin_api::{Context, Dir, OmitReason, SnapshotId, SnapshotRequest};

use super::{Bench, base_request, reasons};
use crate::capture::snapshot;

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
