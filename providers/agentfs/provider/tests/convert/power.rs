//! The power fails in the middle of it: what the disk has at that moment is looked at in its place.
//!
//! The disk is told to keep nothing by itself for minutes, so that it has what was synced, and nothing else, if it is that strict. While it is copied,
//! those who write are stopped.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use ah_provider_agentfs::AgentFsProvider;
use ah_test_disks::{Cut, Disk};
use rustix::process::{Pid, Signal, kill_process};

use super::{Scene, tree};

/// What the child is told, and where.
const WHAT: &str = "AH_TEST_CONVERT";
const WHERE: &str = "AH_TEST_CONVERT_AT";
/// How the disk is mounted.
const OPTIONS: &str = "commit=300";

/// Not a test by itself: the child of the one below, which is stopped and killed.
#[test]
fn convert_what_the_environment_names() {
    let (Some(what), Some(at)) = (std::env::var_os(WHAT), std::env::var_os(WHERE)) else { return };
    let scene = Scene { _temp: None, dir: at.into(), provider: AgentFsProvider::new() };
    let _ = if what == "back" { scene.back() } else { scene.there() };
    // The service is the parent's to end.
    std::mem::forget(scene);
}

fn child(scene: &Scene, back: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "power::convert_what_the_environment_names"]);
    command.env(WHAT, if back { "back" } else { "there" }).env(WHERE, &scene.dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).stderr(Stdio::null()).status().unwrap().success()
}

/// Takes the disk away from whoever has it, and puts it back as it was when the power failed.
fn restart(scene: &Scene, disk: &Disk, cut: &Cut) {
    let (at, image) = (disk.at().to_str().unwrap(), disk.image());
    run("umount", &["-l", scene.workspace().to_str().unwrap()]);
    // The process that looks on as the service ends has the log open.
    ah_test_disks::unmount(disk.at());
    cut.put_back(disk);
    assert!(run("mount", &["-o", &format!("loop,{OPTIONS}"), image.to_str().unwrap(), at]));
}

#[test]
fn whenever_the_power_fails_it_is_whole() {
    let Some(disk) = Disk::new("ext4", 64, OPTIONS) else { return };
    let mut scene = Scene::at(None, disk.at().to_owned());
    let was = tree(&scene.workspace());
    assert!(run("sync", &["-f", disk.at().to_str().unwrap()]));
    let timed = |back: bool| {
        let began = Instant::now();
        child(&scene, back).wait().unwrap();
        began.elapsed()
    };
    let takes = [timed(false), timed(true)];
    let (mut undone, mut done) = (0, 0);
    for round in 0..if std::env::var_os("AH_TEST_FULL").is_some() { 100 } else { 12 } {
        let back = scene.is_mounted();
        let mut child = child(&scene, back);
        if round % 4 == 3 {
            // It has just said that it is done.
            child.wait().unwrap();
        } else {
            std::thread::sleep(takes[usize::from(back)].mul_f64(f64::from(round) * 0.618_034 % 1.0));
        }
        let client = child.try_wait().unwrap().is_none().then(|| Pid::from_child(&child));
        let pids: Vec<Pid> = client.into_iter().chain(scene.service()).collect();
        pids.iter().for_each(|pid| _ = kill_process(*pid, Signal::STOP));
        let cut = Cut::off(&disk);
        pids.iter().for_each(|pid| _ = kill_process(*pid, Signal::KILL));
        child.wait().unwrap();
        scene.end(Signal::KILL);
        restart(&scene, &disk, &cut);
        // A machine that starts has none that goes on.
        scene.provider = AgentFsProvider::new();
        scene.settle();
        assert_eq!(tree(&scene.workspace()), was, "round {round}, back: {back}");
        scene.reclaim(false).unwrap();
        let mounted = scene.is_mounted();
        if mounted == back {
            undone += 1;
        } else {
            done += 1;
        }
        let beside: Vec<String> = scene.beside().into_iter().filter(|name| name != "lost+found").collect();
        assert_eq!(beside, if mounted { vec![".ah-behind-work".to_owned()] } else { Vec::new() }, "round {round}");
        sync(disk.at());
    }
    println!("{undone} were undone, {done} were done");
    assert!(undone > 0 && done > 0, "{undone} {done}");
}

fn sync(disk: &Path) {
    rustix::fs::syncfs(fs::File::open(disk).unwrap()).unwrap();
}
