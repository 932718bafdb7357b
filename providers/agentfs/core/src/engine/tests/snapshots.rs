//! Snapshots of one branch at once.

use std::sync::mpsc;
use std::time::Duration;

use super::*;

#[test]
fn a_snapshot_waits_for_who_writes_since_before_the_last_one_which_is_waiting_still() {
    let place = Place::new();
    let engine = place.open();
    let (line, view) = branch(&engine);
    make(&view, "file", b"before");
    let ino = view.lookup(ROOT, b"file").unwrap().ino;
    let (taken, takes) = mpsc::channel();
    let snapshot = || {
        let (engine, taken) = (engine.clone(), taken.clone());
        std::thread::spawn(move || taken.send(engine.snapshot(line, b"").unwrap()).unwrap())
    };
    let mut threads = Vec::new();
    let meanwhile = || {
        let epoch = read_lock(&engine.state).lines[&line].epoch;
        threads.push(snapshot());
        while read_lock(&engine.state).lines[&line].epoch == epoch {
            std::thread::yield_now();
        }
        view.setattr(ino, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        threads.push(snapshot());
        let early = takes.recv_timeout(Duration::from_millis(300));
        assert!(early.is_err(), "a snapshot does not hold what is being written: {early:?}");
    };
    view.write_and(ino, &[b'w'; 5000], meanwhile).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let snapshots: Vec<u64> = takes.try_iter().collect();
    assert_eq!(snapshots.len(), 2);
    let at = |id: &u64| {
        let epoch = read_lock(&engine.state).snapshots[id].epoch;
        View::new(engine.clone(), line, Held::At(epoch)).unwrap()
    };
    for tree in snapshots.iter().map(at).chain([view]) {
        assert_eq!(content(&tree, "file"), [b'w'; 5000]);
        assert_eq!(tree.lookup(ROOT, b"file").unwrap().blocks, 16);
    }
}
