//! Files among a user's that are root's alone, as containers leave them: a filesystem that snapshots by itself captures them, and neither
//! `diff` nor `restore` nor the removal of a branch may fail for them.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::sync::Arc;

use ah_core::{
    Access, BranchOptions, DiffOptions, Engine, HelperSocket, ProviderSet, ProviderSource, RestoreOptions,
    RestoreReport, Settings, SnapshotOptions,
};
use ah_test_disks::Disk;
use common::{ALICE, Daemon, Home, as_user, is_root};

fn close(home: &Home, name: &str, mode: u32, contents: &str) {
    fs::write(home.at(name), contents).unwrap();
    fs::set_permissions(home.at(name), fs::Permissions::from_mode(mode)).unwrap();
}

fn left(report: &RestoreReport) -> Vec<String> {
    let mut left: Vec<String> = report.left.iter().map(|left| left.path.to_string()).collect();
    left.sort();
    left
}

fn a_day_beside_closed_files(home: &Home, settings: &Settings, serves: &str) {
    close(home, "w/root.key", 0o600, "secret");
    close(home, "w/second.key", 0o600, "secret, too");
    fs::create_dir(home.at("w/closed")).unwrap();
    fs::set_permissions(home.at("w/closed"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(home.at("w/closed/file"), "closed").unwrap();
    let (first, id) = as_user(ALICE, || {
        let engine = Engine::open(settings.clone()).unwrap();
        let workspace = engine.workspace(&home.at("w"), Access::Create).unwrap();
        let first = workspace.snapshot(&SnapshotOptions::default()).unwrap();
        assert_eq!(first.provider.as_str(), serves);
        let branch = workspace.branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() }).unwrap();
        // Nothing was done in the branch, and nothing is told.
        let there = engine.workspace(&branch.path, Access::Create).unwrap();
        let (origin, grown) = there.grown_from().unwrap().unwrap();
        assert_eq!(there.diff_since(&origin, grown, &DiffOptions::default()).unwrap().changes, []);
        workspace.remove_branch("b", false).unwrap();
        (first.clone(), first.id.to_string())
    });
    // Root goes on: a file is written, another becomes readable, one directory is opened.
    close(home, "w/root.key", 0o600, "secret, and longer");
    fs::set_permissions(home.at("w/closed"), fs::Permissions::from_mode(0o755)).unwrap();
    as_user(ALICE, || {
        let engine = Engine::open(settings.clone()).unwrap();
        let workspace = engine.workspace(&home.at("w"), Access::Existing).unwrap();
        fs::write(home.at("w/file"), "later").unwrap();
        fs::write(home.at("w/new"), "new").unwrap();
        let diff = workspace.diff(&id, None, &DiffOptions::default()).unwrap();
        assert_eq!(diff.unreadable.iter().map(ToString::to_string).collect::<Vec<_>>(), ["closed"]);
        let told: Vec<String> = diff.changes.iter().map(|change| change.path.to_string()).collect();
        // That of `closed` only the mode is known to differ: what is in it nobody could compare.
        assert_eq!(told, ["closed", "file", "new", "root.key"]);
        let report = workspace.restore(&id, &RestoreOptions::default()).unwrap();
        assert!(report.conflicts.is_empty() && report.failed.is_empty(), "{report:?}");
        assert_eq!(left(&report), ["closed", "root.key"]);
        assert_eq!(fs::read_to_string(home.at("w/file")).unwrap(), format!("of {ALICE}"));
        assert!(!home.at("w/new").exists());
        workspace.undo(&Default::default()).unwrap();
        assert_eq!(fs::read_to_string(home.at("w/file")).unwrap(), "later");
        // The directory is theirs: they may take it away, and cannot have it back.
        fs::remove_file(home.at("w/second.key")).unwrap();
        let report = workspace.restore(&id, &RestoreOptions::default()).unwrap();
        assert!(report.conflicts.is_empty() && report.failed.is_empty(), "{report:?}");
        assert_eq!(left(&report), ["closed", "root.key", "second.key"]);
        assert!(!home.at("w/second.key").exists() && !home.at("w/new").exists());
    });
    assert_eq!(fs::read_to_string(home.at("w/root.key")).unwrap(), "secret, and longer");
    assert_eq!(fs::read_to_string(home.at("w/closed/file")).unwrap(), "closed");
    as_user(ALICE, || {
        let engine = Engine::open(settings.clone()).unwrap();
        let workspace = engine.workspace(&home.at("w"), Access::Existing).unwrap();
        let all = workspace.snapshots(&Default::default()).unwrap();
        assert!(all.iter().any(|snapshot| snapshot.id == first.id));
        let all: Vec<String> = all.iter().map(|snapshot| snapshot.id.to_string()).collect();
        workspace.rm(&all, &Default::default()).unwrap();
    });
}

/// A restore has put files into a directory that somebody else closes afterwards: `undo` does the rest, and says that it could not do all.
fn an_undo_beside_a_closed_directory(home: &Home, settings: &Settings) {
    use std::os::unix::fs::chown;
    // Few paths are compared one by one, many all at once.
    for many in [2, 50] {
        let at = |i: usize| home.at(&format!("w/file-{many}-{i}"));
        as_user(ALICE, || {
            fs::create_dir_all(home.at("w/shut")).unwrap();
            fs::write(home.at("w/shut/inside"), "first").unwrap();
            (0..many).for_each(|i| fs::write(at(i), "first").unwrap());
            let engine = Engine::open(settings.clone()).unwrap();
            let workspace = engine.workspace(&home.at("w"), Access::Create).unwrap();
            let first = workspace.snapshot(&SnapshotOptions::default()).unwrap().id.to_string();
            fs::remove_file(home.at("w/shut/inside")).unwrap();
            (0..many).for_each(|i| fs::remove_file(at(i)).unwrap());
            let report = workspace.restore(&first, &RestoreOptions::default()).unwrap();
            assert!(
                report.left.is_empty() && report.failed.is_empty() && home.at("w/shut/inside").exists(),
                "{report:?}"
            );
        });
        chown(home.at("w/shut"), Some(0), Some(0)).unwrap();
        fs::set_permissions(home.at("w/shut"), fs::Permissions::from_mode(0o700)).unwrap();
        as_user(ALICE, || {
            let engine = Engine::open(settings.clone()).unwrap();
            let workspace = engine.workspace(&home.at("w"), Access::Existing).unwrap();
            let report = workspace.undo(&Default::default()).unwrap();
            let failed: Vec<String> = report.failed.iter().map(|failed| failed.path.to_string()).collect();
            assert!(failed == ["shut"] || failed == ["shut/inside"], "{report:?}");
            assert!((0..many).all(|i| !at(i).exists()), "{report:?}");
        });
        assert!(home.at("w/shut/inside").exists());
        chown(home.at("w/shut"), Some(ALICE), Some(ALICE)).unwrap();
    }
}

fn settings(home: &Home, source: ProviderSource) -> Settings {
    Settings { user_home: Some(home.root.clone()), ..Settings::new(home.at("ah"), source) }
}

#[test]
fn through_the_helper() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 512, "") else { return };
    let home = Home::make(disk.at().join("home"), ALICE);
    let daemon = Daemon::with(r#"{"allow-containing": ["65534"]}"#, &["btrfs"], &[]);
    let helper = Some(HelperSocket { path: daemon.socket.clone(), named: true });
    let settings = Settings { helper, ..settings(&home, ProviderSource::Plugins(Vec::new())) };
    an_undo_beside_a_closed_directory(&home, &settings);
    a_day_beside_closed_files(&home, &settings, "btrfs_ahd");
}

#[test]
fn in_a_subvolume_of_their_own() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 512, "user_subvol_rm_allowed") else { return };
    let root = disk.at().join("home");
    assert!(Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(&root).status().unwrap().success());
    let home = Home::make(root, ALICE);
    let provider = Arc::new(ah_provider_btrfs::BtrfsProvider::new());
    let settings = settings(&home, ProviderSource::Given(ProviderSet::of(vec![provider])));
    an_undo_beside_a_closed_directory(&home, &settings);
    a_day_beside_closed_files(&home, &settings, "btrfs");
}
