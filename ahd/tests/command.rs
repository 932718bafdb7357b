//! What `ah` does for an ordinary user, on a Btrfs whose home is root's, as most are: through the helper.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ah_core::{
    Access, BranchOptions, Engine, HelperSocket, ProviderSource, Release, RestoreOptions, SeekOptions, Settings,
    SnapshotOptions,
};
use ah_plugin_api::ErrorKind;
use ah_test_disks::Disk;
use common::{ALICE, Daemon, Home, as_user, is_root};

fn settings(home: &Home, socket: &Path, named: bool) -> Settings {
    let mut settings = Settings::new(home.at("ah"), ProviderSource::Plugins(Vec::new()));
    settings.user_home = Some(home.root.clone());
    settings.helper = Some(HelperSocket { path: socket.to_owned(), named });
    settings
}

/// A disk with a home on it, and the helper.
fn scene(config: &str) -> Option<(Disk, Home, Daemon)> {
    if !is_root() {
        return None;
    }
    let disk = Disk::new("btrfs", 512, "")?;
    let home = Home::make(disk.at().join("home"), ALICE);
    let daemon = Daemon::with(config, &["btrfs"], &[]);
    Some((disk, home, daemon))
}

#[test]
fn a_day_with_the_helper() {
    let Some((_disk, home, mut daemon)) = scene(r#"{"allow-containing": ["65534"]}"#) else { return };
    let branch = as_user(ALICE, || {
        // Its socket and all that is above belong to root alone, as they do in /run/ahd.
        let engine = Engine::open(settings(&home, &daemon.socket, false)).unwrap();
        let status = engine.status(&home.at("w")).unwrap();
        assert_eq!(status.provider.unwrap().as_str(), "btrfs_ahd", "{:?}", status.candidates);

        let workspace = engine.workspace(&home.at("w"), Access::Create).unwrap();
        let first = workspace.snapshot(&SnapshotOptions::default()).unwrap();
        fs::write(home.at("w/file"), "later").unwrap();
        fs::write(home.at("w/new"), "new").unwrap();
        workspace.snapshot(&SnapshotOptions::default()).unwrap();
        let seen = workspace.seek(first.id.as_str(), &SeekOptions::default()).unwrap();
        assert_eq!(fs::read_to_string(seen.path.join("file")).unwrap(), format!("of {ALICE}"));
        assert!(seen.read_only_mount);
        assert_eq!(fs::read(seen.path.join("../../../../etc/hostname")).ok(), None);
        workspace.release(&Release::All).unwrap();
        workspace.restore(first.id.as_str(), &RestoreOptions::default()).unwrap();
        assert_eq!(fs::read_to_string(home.at("w/file")).unwrap(), format!("of {ALICE}"));
        assert!(!home.at("w/new").exists());

        let options = BranchOptions { name: Some("fix".into()), ..BranchOptions::default() };
        let branch = workspace.branch(&options).unwrap();
        fs::write(branch.path.join("fixed"), "yes").unwrap();
        // A branch is a workspace, with snapshots of its own.
        let there = engine.workspace(&branch.path, Access::Create).unwrap();
        let of_branch = there.snapshot(&SnapshotOptions::default()).unwrap();
        fs::remove_file(branch.path.join("fixed")).unwrap();
        there.restore(of_branch.id.as_str(), &RestoreOptions::default()).unwrap();
        assert_eq!(fs::read_to_string(branch.path.join("fixed")).unwrap(), "yes");
        branch
    });
    assert!(!home.at("w/fixed").exists());
    // The machine goes down, and comes up again.
    daemon.kill();
    ah_test_disks::unmount(&branch.path);
    daemon.run().unwrap();
    as_user(ALICE, || {
        let engine = Engine::open(settings(&home, &daemon.socket, false)).unwrap();
        let workspace = engine.workspace(&home.at("w"), Access::Existing).unwrap();
        assert_eq!(fs::read_to_string(branch.path.join("fixed")).unwrap(), "yes");
        assert!(workspace.remove_branch("fix", false).is_err(), "there is work in it");
        workspace.remove_branch("fix", true).unwrap();
        assert!(!branch.path.exists());
        let all = workspace.snapshots(&Default::default()).unwrap();
        let all: Vec<String> = all.iter().map(|snapshot| snapshot.id.to_string()).collect();
        workspace.rm(&all, &Default::default()).unwrap();
    });
    assert!(daemon.mounts().is_empty() && daemon.state("records").is_empty());
}

#[test]
fn branches_that_were_removed_leave_room_for_others() {
    let Some((_disk, home, daemon)) = scene(r#"{"allow-containing": ["65534"], "limits": {"stores": 2}}"#) else {
        return;
    };
    as_user(ALICE, || {
        let engine = Engine::open(settings(&home, &daemon.socket, false)).unwrap();
        let workspace = engine.workspace(&home.at("w"), Access::Create).unwrap();
        workspace.snapshot(&SnapshotOptions::default()).unwrap();
        for name in ["one", "two", "three"] {
            let options = BranchOptions { name: Some(name.into()), ..BranchOptions::default() };
            let branch = workspace.branch(&options).unwrap();
            let there = engine.workspace(&branch.path, Access::Create).unwrap();
            there.snapshot(&SnapshotOptions::default()).unwrap();
            workspace.remove_branch(name, true).unwrap();
        }
    });
    assert!(daemon.mounts().is_empty() && daemon.state("records").is_empty());
    assert_eq!(daemon.state(&format!("stores/{ALICE}")).len(), 2);
}

#[test]
fn without_permission_and_without_a_helper_the_verdicts_say_so() {
    let Some((_disk, home, mut daemon)) = scene("{}") else { return };
    as_user(ALICE, || {
        let engine = Engine::open(settings(&home, &daemon.socket, false)).unwrap();
        let status = engine.status(&home.at("w")).unwrap();
        assert!(status.provider.is_none());
        let verdict = status.candidates.into_iter().find(|verdict| verdict.name.as_str() == "btrfs_ahd").unwrap();
        assert!(!verdict.usable && verdict.remedy.unwrap().contains("allow-containing"));
    });
    // One that hangs holds nobody up for long.
    let stop = |signal| nix::sys::signal::kill(nix::unistd::Pid::from_raw(daemon.pid() as i32), signal).unwrap();
    stop(nix::sys::signal::Signal::SIGSTOP);
    as_user(ALICE, || {
        let engine = Engine::open(settings(&home, &daemon.socket, false)).unwrap();
        let began = Instant::now();
        let status = engine.status(&home.at("w")).unwrap();
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
        assert!(status.candidates.is_empty());
        assert!(!engine.take_notices().is_empty());
    });
    stop(nix::sys::signal::Signal::SIGCONT);
    daemon.kill();
    as_user(ALICE, || {
        // A socket that nobody listens at, and none at all.
        for socket in [daemon.socket.clone(), home.at("nothing")] {
            let engine = Engine::open(settings(&home, &socket, false)).unwrap();
            let error = engine.workspace(&home.at("w"), Access::Create).unwrap().snapshot(&SnapshotOptions::default());
            assert_eq!(error.unwrap_err().kind, ErrorKind::Unavailable);
            assert!(engine.take_notices().is_empty());
        }
        // Somebody else's is not talked to.
        let listener = std::os::unix::net::UnixListener::bind(home.at("false.sock")).unwrap();
        let engine = Engine::open(settings(&home, &home.at("false.sock"), true)).unwrap();
        engine.status(&home.at("w")).unwrap();
        let notices = engine.take_notices();
        assert!(notices.iter().any(|notice| notice.message.contains("not to be trusted")), "{notices:?}");
        drop(listener);
    });
}

#[test]
fn its_help_has_each_limit_and_who_can_be_allowed_what() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_ahd")).arg("--help").output().unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    for name in ["connections", "calls-per-minute", "stores", "snapshots", "views", "clones", "allow-containing"] {
        assert!(told.contains(&format!("\"{name}\"")), "{name}: {told}");
    }
    // Another's defaults are no help.
    assert!(told.contains("\"connections\" (16)") && told.contains("{\"connections\": 32}"), "{told}");
}
