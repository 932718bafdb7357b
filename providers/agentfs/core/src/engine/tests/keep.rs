//! The threads that write down what was changed, and take it to the disk.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::*;

#[test]
fn what_is_changed_while_the_disk_is_waited_for_is_written_down() {
    for checkpoint in [false, true] {
        let place = Place::new();
        let log_limit = if checkpoint { 512 } else { 4 << 20 };
        let options = Options { background: false, log_limit, ..Options::default() };
        let opened = Engine::open(&place.store(), &place.0.path().join("lower"), options, Opening::Use);
        let engine = Arc::new(opened.unwrap());
        let (_, view) = branch(&engine);
        make(&view, "file", b"content");
        let disk = Arc::new(Barrier::new(2));
        *lock(&engine.segments.refuse) = Some(Refuse::Wait(disk.clone()));
        let keepers = engine.keep().unwrap();
        disk.wait();
        make(&view, "meanwhile", b"content");
        let began = Instant::now();
        while read_lock(&engine.state).layers.unlogged() > 0 && began.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let waits = read_lock(&engine.state).layers.unlogged();
        *lock(&engine.segments.refuse) = None;
        disk.wait();
        engine.stop();
        keepers.into_iter().for_each(|keeper| keeper.join().unwrap());
        assert_eq!(waits, 0, "{checkpoint}");
    }
}

#[test]
fn nothing_is_taken_any_more_once_the_thread_that_writes_it_down_has_panicked() {
    let place = Place::new();
    let engine = place.open();
    let (line, view) = branch(&engine);
    make(&view, "before", b"");
    let file = view.lookup(ROOT, b"before").unwrap().ino;
    engine.panics.store(true, std::sync::atomic::Ordering::Relaxed);
    let keepers = engine.keep().unwrap();
    let began = Instant::now();
    while view.write(file, 0, b"bytes").is_ok() {
        assert!(began.elapsed() < Duration::from_secs(10), "it is written to though nobody writes it down");
    }
    view.create(ROOT, b"after", ME).unwrap_err();
    view.unlink(ROOT, b"before").unwrap_err();
    engine.snapshot(line, b"").unwrap_err();
    engine.sync().unwrap_err();
    engine.stop();
    keepers.into_iter().for_each(|keeper| keeper.join().unwrap());
}
