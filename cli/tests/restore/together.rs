//! Several processes at once in one workspace, snapshotting and restoring different paths: nothing is lost, nothing waits for ever.

use std::fs;
use std::time::{Duration, Instant};

use crate::support::{User, World};

/// How long; the bar is 30 s.
fn duration() -> Duration {
    Duration::from_secs(if crate::support::full() { 30 } else { 8 })
}

#[test]
fn eight_processes() {
    let world = World::of(User::Me);
    world.write("shared", "x");
    world.fs(["snapshot"]);
    let until = Instant::now() + duration();
    let work = |worker: usize| -> Vec<(String, String)> {
        let (path, session) = (format!("p{worker}/deep/file"), format!("s{worker}"));
        let file = world.root().join(&path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let mut taken = Vec::new();
        while Instant::now() < until {
            let text = format!("worker {worker}, round {}", taken.len());
            fs::write(&file, &text).unwrap();
            let _ = fs::remove_file(file.with_file_name("extra"));
            let id = world.fs(["--session", &session, "snapshot"]);
            fs::write(&file, "overwritten").unwrap();
            fs::write(file.with_file_name("extra"), "extra").unwrap();
            world.fs(["--session", &session, "restore", &id, "--", &format!("p{worker}")]);
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            assert!(!file.with_file_name("extra").exists());
            world.fs(["--session", &session, "undo"]);
            assert_eq!(fs::read_to_string(&file).unwrap(), "overwritten");
            taken.push((id, text));
        }
        taken
    };
    let all: Vec<Vec<(String, String)>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|worker| scope.spawn(move || work(worker))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    for (worker, taken) in all.iter().enumerate() {
        assert!(!taken.is_empty(), "worker {worker} never came to its turn");
        for (id, text) in taken {
            assert_eq!(&world.fs(["cat", id, &format!("p{worker}/deep/file")]), text);
        }
    }
    let left: Vec<_> = fs::read_dir(world.root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".ah-"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let gc = world.json("gc", &["agent", "fs", "gc"]);
    assert_eq!(gc["gc"]["failures"].as_array().unwrap().len(), 0, "{gc}");
}
