//! Killed on the way, there and back; and stopped behind it.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ah_plugin_api::{Context, Converted, ErrorKind, Observer, Place, Progress, Provider, ReclaimRequest, Result};
use ah_provider_agentfs::AgentFsProvider;
use rustix::process::{Signal, kill_process};

use super::writers::Hears;
use super::{Holder, Scene, tree};

/// Killed between the copy and the exchange; and where the next one looks, the folder around it is not to be found, as on a disk that is not mounted yet.
#[test]
fn while_the_folder_around_it_is_away_nothing_goes() {
    struct Holds(PathBuf, Mutex<Option<Holder>>);
    impl Observer for Holds {
        fn progress(&self, progress: &Progress) {
            if progress.stage == "putting it on disk" {
                *self.1.lock().unwrap() = Some(Holder::of(&self.0));
            }
        }
    }
    let scene = Scene::new();
    scene.there().unwrap();
    fs::write(scene.workspace().join("fresh"), "only here").unwrap();
    let was = tree(&scene.workspace());
    let away = Scene { _temp: None, dir: scene.dir.with_extension("away"), provider: AgentFsProvider::new() };
    // While somebody has something open, the copy does not get its place.
    let holds = Holds(scene.workspace().join("a"), Mutex::default());
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| scene.back_watched(&Context::new(&holds)));
        let began = Instant::now();
        while holds.1.lock().unwrap().is_none() {
            assert!(began.elapsed() < Duration::from_secs(20), "it is not copied");
            std::thread::sleep(Duration::from_millis(5));
        }
        // It is waited for so long, and longer.
        std::thread::sleep(Duration::from_millis(500));
        let service = scene.service().unwrap();
        fs::rename(&scene.dir, &away.dir).unwrap();
        kill_process(service, Signal::KILL).unwrap();
        asked.join().unwrap().unwrap_err();
    });
    drop(holds);
    away.end(Signal::KILL);
    let copies = || away.beside().iter().filter(|name| name.starts_with(".ah-convert-")).count();
    assert_eq!(copies(), 1);
    for auto in [true, false] {
        let _ = away.reclaim(auto);
    }
    assert_eq!(copies(), 1);
    let dir = away.dir.clone();
    drop(away);
    fs::rename(&dir, &scene.dir).unwrap();
    scene.settle();
    scene.reclaim(false).unwrap();
    assert_eq!((tree(&scene.workspace()), scene.is_mounted()), (was.clone(), true));
    assert_eq!(scene.beside(), [".ah-behind-work"]);
    scene.back().unwrap();
    assert_eq!(tree(&scene.workspace()), was);
}

/// Killed anywhere on the way, there and back in turn: who asks next finds the one or the other, whole.
#[test]
fn killed_anywhere_it_is_whole() {
    let scene = Scene::new();
    let was = tree(&scene.workspace());
    // How long it takes: there, and back.
    let timed = |work: &dyn Fn() -> Result<Converted>| {
        let began = Instant::now();
        work().unwrap();
        began.elapsed()
    };
    let takes = [timed(&|| scene.there()), timed(&|| scene.back())];
    let (mut left, mut told) = (0, 0);
    // Before it had changed anything for good, after, and not at all.
    let (mut undone, mut finished, mut whole) = (0, 0, 0);
    for round in 0..60_u32 {
        let back = scene.is_mounted();
        let _ = scene.reclaim(true);
        let done = std::thread::scope(|scope| {
            let asked = scope.spawn(|| if back { scene.back() } else { scene.there() });
            // A golden section of that each time, so that no part of it is left out.
            std::thread::sleep(takes[usize::from(back)].mul_f64(f64::from(round) * 0.618_034 % 1.1));
            scene.end(Signal::KILL);
            asked.join().unwrap()
        });
        scene.end(Signal::KILL);
        let cut_short = scene.dir.join("store/converting").exists();
        let hears = Hears::default();
        scene.settle_heard(&Context::new(&hears));
        let heard = hears.0.into_inner().unwrap();
        // Whoever comes first is told: mostly that is this one, and not who was asking as it was killed.
        left += u32::from(cut_short);
        told += u32::from(heard.iter().any(|said| said.contains("was cut short, and is")));
        assert_eq!(tree(&scene.workspace()), was, "round {round}, back: {back}");
        let (mounted, beside) = (scene.is_mounted(), scene.beside());
        match done {
            Ok(_) => whole += 1,
            Err(_) if mounted == back => undone += 1,
            Err(_) => finished += 1,
        }
        if !mounted {
            // What a kill left of it, a person's `gc` takes away: not while anybody has it open, as a program that another test starts at that moment may.
            for _ in 0..20 {
                scene.reclaim(false).unwrap();
                if scene.beside().is_empty() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        assert_eq!(beside.len(), if mounted { 1 } else { beside.len().min(1) }, "{beside:?}");
        assert_eq!(scene.beside() == [".ah-behind-work"], mounted, "{beside:?}");
        assert!(!scene.dir.join("store/converting").exists());
    }
    println!("{undone} were undone, {finished} were finished, {whole} came to their end");
    assert!(undone > 0 && finished > 0 && whole > 0, "{undone} {finished} {whole}");
    println!("of {left} that were left to the next, {told} were told of");
    assert!(left < 3 || told > 0, "{left} {told}");
}

#[test]
fn who_has_what_lay_behind_taken_away_sees_how_far_it_is_and_may_stop_it() {
    #[derive(Default)]
    struct Stops(AtomicBool);
    impl Observer for Stops {
        fn progress(&self, progress: &Progress) {
            self.0.fetch_or(progress.stage == "removing", Ordering::Relaxed);
        }
        fn cancelled(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }
    }
    let scene = Scene::new();
    (0..2000).for_each(|n| fs::write(scene.workspace().join(format!("src/many {n}")), "").unwrap());
    scene.there().unwrap();
    let snapshot = scene.snapshot("kept").unwrap();
    scene.back().unwrap();
    assert_eq!(scene.beside(), [".ah-behind-work"]);
    scene.destroy(snapshot);
    let request = ReclaimRequest { auto: false, forgotten: Vec::new() };
    let (store, stops) = (scene.store(), Stops::default());
    // It may be at its end by the time that it hears of that.
    let stopped = scene.provider.reclaim(&Place::new(&store), &request, &Context::new(&stops));
    assert!(stops.cancelled(), "nothing was said");
    assert!(scene.beside().is_empty() || stopped.is_err_and(|error| error.kind == ErrorKind::Cancelled));
    scene.reclaim(false).unwrap();
    assert_eq!(scene.beside(), Vec::<String>::new());
}
