//! Others write in it at that moment, who have nothing open for long.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ah_plugin_api::{Context, ErrorKind, LogLevel, Observer, Place, Provider, ReclaimRequest};
use ah_test_disks::{mounting_as_ordinary_user, ordinary_users_path};

use super::Scene;

/// Writes until it is done: new files, and lines into one that is there. Gives the names and the lines of which it was told that they are written.
fn write(work: &Path, writer: &str, done: &AtomicBool) -> Vec<String> {
    let mut written = Vec::new();
    for n in 0.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("{writer}-{n}");
        if fs::write(work.join(&name), &name).is_ok() {
            written.push(name.clone());
        }
        let line = format!("{writer}+{n}\n");
        let append =
            || fs::File::options().append(true).create(true).open(work.join("lines"))?.write_all(line.as_bytes());
        if append().is_ok() {
            written.push(line);
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    written
}

/// The names in a directory, and the lines in its file of lines.
fn there(directory: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let lines = fs::read_to_string(directory.join("lines")).unwrap_or_default();
    names.chain(lines.split_inclusive('\n').map(str::to_owned)).collect()
}

fn nothing_is_lost(scene: &Scene) {
    let work = scene.workspace();
    fs::write(work.join("lines"), "").unwrap();
    let (mut refused, mut left) = (0, BTreeSet::new());
    // At most, as it depends on who comes when.
    for round in 0..60 {
        if refused >= 4 {
            break;
        }
        let done = AtomicBool::new(false);
        let (asked, written) = std::thread::scope(|scope| {
            let [one, two] = ["one", "two"].map(|writer| {
                let (work, done, writer) = (&work, &done, format!("{writer}-{round}"));
                scope.spawn(move || write(work, &writer, done))
            });
            std::thread::sleep(Duration::from_millis(5));
            let asked = scene.there();
            std::thread::sleep(Duration::from_millis(5));
            done.store(true, Ordering::Relaxed);
            (asked, [one.join().unwrap(), two.join().unwrap()].concat())
        });
        match asked {
            Ok(_) => drop(scene.back().unwrap()),
            Err(error) => {
                refused += u32::from(error.kind == ErrorKind::FailedPrecondition);
                let new: Vec<_> = scene.beside().into_iter().filter(|name| !left.contains(name)).collect();
                assert!(new.iter().all(|name| error.to_string().contains(name)), "{new:?} {error}");
                left.extend(new);
            }
        }
        let found: BTreeSet<_> =
            left.iter().map(|name| scene.dir.join(name)).chain([work.clone()]).flat_map(|at| there(&at)).collect();
        let lost: Vec<_> = written.iter().filter(|written| !found.contains(*written)).collect();
        assert!(lost.is_empty(), "round {round}: {lost:?} of {}", written.len());
    }
    println!("{refused} were refused, {left:?} is left");
    assert!(refused > 0);
}

/// What is said to who asks.
#[derive(Default)]
pub(super) struct Hears(pub(super) Mutex<Vec<String>>);

impl Observer for Hears {
    fn log(&self, _level: LogLevel, message: &str) {
        self.0.lock().unwrap().push(message.to_owned());
    }
}

#[test]
fn what_lies_beneath_it_is_told_when_it_is_taken_back_and_by_gc() {
    let scene = Scene::new();
    scene.there().unwrap();
    // Without what is mounted in it.
    let around = tempfile::tempdir().unwrap();
    let run = |command: &mut Command| assert!(command.status().unwrap().success());
    run(Command::new("mount").arg("--bind").arg(&scene.dir).arg(around.path()));
    for name in ["a", "new"] {
        fs::write(around.path().join("work").join(name), "beneath").unwrap();
    }
    run(Command::new("umount").arg(around.path()));
    let back = scene.back().unwrap();
    let [left] = scene.beside().try_into().unwrap();
    assert!(back.notes.iter().any(|note| note.contains(&left)), "{:?}", back.notes);
    assert_eq!(fs::read_to_string(scene.dir.join(&left).join("a")).unwrap(), "beneath");
    assert_eq!(fs::read_to_string(scene.workspace().join("a")).unwrap(), "as it was");
    assert_eq!(fs::read_to_string(scene.workspace().join("new")).unwrap(), "beneath");
    let hears = Hears::default();
    let request = ReclaimRequest { auto: false, forgotten: Vec::new() };
    scene.provider.reclaim(&Place::new(&scene.store()), &request, &Context::new(&hears)).unwrap();
    let heard = hears.0.into_inner().unwrap();
    assert!(heard.iter().any(|said| said.contains(&left)), "{heard:?}");
}

#[test]
fn what_others_write_while_it_is_put_there_is_not_lost() {
    nothing_is_lost(&Scene::new());
}

#[test]
fn nor_what_an_ordinary_user_writes() {
    if ordinary_users_path().is_some() {
        return nothing_is_lost(&Scene::new());
    }
    mounting_as_ordinary_user("writers::nor_what_an_ordinary_user_writes");
}
