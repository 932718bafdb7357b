//! What the helper costs: not a test, but numbers. `cargo test -p ahd --release --test cost -- --ignored --nocapture`

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::time::{Duration, Instant};

use ah_host::helper::{self, Helper};
use ah_plugin_api::{Context, DestroyRequest};
use ah_test_disks::Disk;
use common::{ALICE, Daemon, Home, LIMIT, as_user, is_root, request};

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let result = work();
    (result, began.elapsed())
}

#[test]
#[ignore = "numbers"]
fn cost() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 1024, "") else { return };
    let home = Home::make(disk.at().join("home"), ALICE);
    let daemon =
        Daemon::with(r#"{"allow-containing": ["65534"], "limits": {"calls-per-minute": 1000000}}"#, &["btrfs"], &[]);
    let helper = |socket: &std::path::Path| Helper { socket: socket.to_owned(), named: true, limit: LIMIT };
    as_user(ALICE, || {
        let none = (0..200).map(|_| timed(|| helper::load(&helper(&home.at("none"))).unwrap()).1).collect();
        println!("no helper: {:?}", median(none));
        let load = (0..200).map(|_| timed(|| helper::load(&helper(&daemon.socket)).unwrap()).1).collect();
        println!("what it has: {:?}", median(load));
        let open = home.open();
        let (mut probes, mut again, mut first, mut rest, mut mounts) = (vec![], vec![], vec![], vec![], vec![]);
        for i in 0..40 {
            let provider = daemon.named("btrfs_ahd");
            probes.push(timed(|| open.probe(&*provider).unwrap()).1);
            again.push(timed(|| open.probe(&*provider).unwrap()).1);
            let take = |name: &str| {
                let request = request(&format!("{name}-{i}"), None);
                timed(|| provider.snapshot(&open.place(), &request, &Context::quiet()).unwrap())
            };
            let (one, took) = take("a");
            first.push(took);
            let (two, took) = take("b");
            rest.push(took);
            let (view, took) = timed(|| open.mount(&*provider, &one.reference, "v").unwrap());
            mounts.push(took);
            open.unmount(&*provider, &view.reference).unwrap();
            for snapshot in [one, two] {
                open.destroy(&*provider, &DestroyRequest::Snapshot(snapshot.reference)).unwrap();
            }
        }
        println!("probe, connecting: {:?}, then {:?}", median(probes), median(again));
        println!("snapshot: {:?}, the next {:?}; mount {:?}", median(first), median(rest), median(mounts));
    });
    let direct = ah_provider_btrfs::BtrfsProvider::new();
    let root = Home::make(disk.at().join("root"), 0);
    let open = root.open();
    let direct = (0..40).map(|i| timed(|| open.snapshot(&direct, &format!("r{i}")).unwrap()).1).collect();
    println!("snapshot as root, without: {:?}", median(direct));
}
