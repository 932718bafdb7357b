//! A disk that fell ill, or is full: what was captured can be looked at all the same.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::Path;

use ah_plugin_api::{Context, DestroyRequest, Durability, ErrorKind, Provider, SnapshotRef};
use ah_test_disks::{Disk, NOBODY, as_ordinary_user, ordinary_users_path};
use common::{Bench, subvolume};

/// A user's subvolume on that disk, and beside it a folder of theirs on another one, which leads there.
fn folder(disk: &Disk) -> tempfile::TempDir {
    let (own, folder) = (disk.at().join("own"), tempfile::tempdir().unwrap());
    subvolume(&own);
    symlink(&own, folder.path().join("disk")).unwrap();
    for path in [own.as_path(), folder.path()] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    folder
}

/// What the store holds is shown, and nothing takes it away meanwhile.
fn shows(bench: &Bench) {
    let request = SnapshotRef { snapshot: ah_plugin_api::Reference::new("a").unwrap() };
    let taken = bench.provider.stat(&bench.place(), &request, &Context::quiet()).unwrap();
    assert_eq!((taken.durability, bench.names(&taken, "")), (Durability::Durable, vec!["f".to_owned()]));
    let view = bench.view(&taken, "v");
    assert_eq!(fs::read_to_string(view.path.join("f")).unwrap(), "x");
    let refused = bench.destroy(&DestroyRequest::Snapshot(taken.reference.clone())).unwrap_err();
    assert!(matches!(refused.kind, ErrorKind::Busy | ErrorKind::FailedPrecondition), "{refused:?}");
    bench.unmount(&view);
    bench.unmount(&view);
}

fn bench(folder: &Path, store: &str) -> Bench {
    let disk = folder.join("disk").canonicalize().unwrap();
    let store = if store == "on it" { disk.join("store") } else { folder.join("store") };
    Bench::of(&disk.join("work"), &store, &folder.join("target"))
}

#[test]
fn a_snapshot_is_shown_on_a_disk_that_is_read_only_now_and_on_a_full_one() {
    const TEST: &str = "a_snapshot_is_shown_on_a_disk_that_is_read_only_now_and_on_a_full_one";
    if let Some(path) = ordinary_users_path() {
        let step = fs::read_to_string(path.join("step")).unwrap();
        let (what, store) = step.split_once(' ').unwrap();
        let bench = bench(&path, store);
        match what {
            "take" => {
                bench.write("f", "x");
                bench.snapshot("a");
            }
            "fill" => {
                let fill = bench.workspace.path().with_file_name("fill");
                // Until not even one more symlink fits.
                for (size, name) in [(1 << 20, "m"), (1 << 12, "k")] {
                    (0..100_000).any(|i| fs::write(fill.with_extension(format!("{name}{i}")), vec![2; size]).is_err());
                }
                (0..1_000_000).any(|i| symlink("y".repeat(3000), fill.with_extension(format!("s{i}"))).is_err());
                shows(&bench);
            }
            _ => shows(&bench),
        }
        return;
    }
    for (store, troubles) in [("elsewhere", ["fill", "read-only"].as_slice()), ("on it", &["read-only"])] {
        let Some(disk) = Disk::formatted("btrfs", 100, &["--mixed"], "") else { return };
        let folder = folder(&disk);
        let run = |step: &str| {
            fs::write(folder.path().join("step"), format!("{step} {store}")).unwrap();
            as_ordinary_user(TEST, folder.path());
        };
        run("take");
        for trouble in troubles {
            if *trouble == "read-only" {
                disk.remount("ro");
            }
            run(trouble);
        }
    }
}
