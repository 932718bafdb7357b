//! The helper at work for ordinary users: what it gives them, and what survives its end.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use std::path::{Path, PathBuf};

use ah_plugin_api::{
    Capability, Context, DestroyRequest, Dir, ErrorKind, FileName, ReclaimRequest, Reference, SnapshotRef,
};
use ah_test_disks::{Cut, Disk};
use common::{ALICE, ALLOWED, BOB, Daemon, Home, Open, as_user, in_groups, is_root};

#[test]
fn a_user_has_snapshots_views_and_clones_of_what_is_theirs() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let home = daemon.home(ALICE);
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), home.open());
        let description = provider.describe();
        assert_eq!((description.name.as_str(), description.rank), ("copies_ahd", Some(49)));
        for gone in [Capability::ReadWithoutMount, Capability::Diff, Capability::RepositoryClones] {
            assert!(!description.capabilities.contains(&gone), "{gone}");
        }
        // Asking writes nothing; the first snapshot makes the token.
        let probe = open.probe(&*provider).unwrap();
        assert!(probe.usable && probe.can_delete, "{probe:?}");
        assert!(open.list(&*provider).unwrap().is_empty());
        assert_eq!(fs::read_dir(home.at("store")).unwrap().count(), 0);
        let snapshot = open.snapshot(&*provider, "one").unwrap();
        assert_eq!(open.list(&*provider).unwrap().len(), 1);
        assert_eq!(open.snapshot(&*provider, "one").unwrap_err().kind, ErrorKind::AlreadyExists);

        fs::write(home.at("w/file"), "later").unwrap();
        let view = open.mount(&*provider, &snapshot.reference, "v").unwrap();
        assert_eq!(view.path, home.at("target/v"));
        assert_eq!(fs::read_to_string(view.path.join("file")).unwrap(), format!("of {ALICE}"));
        assert!(fs::write(view.path.join("file"), "x").is_err());
        assert!(fs::write(view.path.join("new"), "x").is_err());
        assert_eq!(open.mount(&*provider, &snapshot.reference, "v").unwrap_err().kind, ErrorKind::AlreadyExists);

        let clone = open.fork(&*provider, &snapshot.reference, "c").unwrap();
        assert_eq!(clone.path, home.at("target/c"));
        fs::write(clone.path.join("new"), "mine").unwrap();
        assert_eq!(fs::metadata(&clone.path).unwrap().uid(), ALICE);
        assert!(!home.at("w/new").exists());

        let busy = open.destroy(&*provider, &DestroyRequest::Snapshot(snapshot.reference.clone())).unwrap_err();
        assert_eq!(busy.kind, ErrorKind::Busy);
        let user = fs::File::open(view.path.join("file")).unwrap();
        let busy = open.unmount(&*provider, &view.reference).unwrap_err();
        assert_eq!(busy.kind, ErrorKind::Busy);
        drop(user);
        open.unmount(&*provider, &view.reference).unwrap();
        open.unmount(&*provider, &view.reference).unwrap();
        assert!(!view.path.exists());
        open.destroy(&*provider, &DestroyRequest::Snapshot(snapshot.reference.clone())).unwrap();
        assert_eq!(fs::read_to_string(clone.path.join("new")).unwrap(), "mine", "a clone outlives its snapshot");
        open.destroy(&*provider, &DestroyRequest::Clone(clone.reference.clone())).unwrap();
        assert!(!clone.path.exists());
        assert!(open.list(&*provider).unwrap().is_empty());
    });
    assert!(daemon.mounts().is_empty());
    assert!(daemon.state("records").is_empty() && daemon.state("clones").is_empty());
    // Each step that changed something is written down, with who and where.
    let log = fs::read_to_string(daemon.base.path().join("state/audit.log")).unwrap();
    for op in ["snapshot", "mount", "clone", "unmount", "destroy"] {
        assert!(log.contains(&format!("\"op\":\"{op}\"")), "{op}: {log}");
    }
    assert!(log.contains(&format!("\"uid\":{ALICE}")) && log.contains(&home.at("w").display().to_string()));
}

#[test]
fn what_cannot_be_made_is_told_by_the_place_that_it_was_asked_for() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let home = daemon.home(ALICE);
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), home.open());
        fs::write(home.at("w/no-room"), "").unwrap();
        let one = open.snapshot(&*provider, "one").unwrap().reference;
        let view = open.mount(&*provider, &one, "new").unwrap_err();
        let clone = open.fork(&*provider, &one, "new").unwrap_err();
        for error in [view, clone] {
            let place = home.at("target/new").display().to_string();
            let told = (error.message.as_str(), error.hint.as_deref());
            assert_eq!(told, (&*format!("cannot make {place}"), Some(&*format!("make room for {place}"))));
        }
    });
}

#[test]
fn mounts_are_nosuid_nodev_and_views_read_only() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let home = daemon.home(ALICE);
    // A program of root's in the user's directory, with the bit.
    fs::copy("/usr/bin/id", home.at("w/id")).unwrap();
    fs::set_permissions(home.at("w/id"), fs::Permissions::from_mode(0o4755)).unwrap();
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), home.open());
        let snapshot = open.snapshot(&*provider, "one").unwrap();
        open.mount(&*provider, &snapshot.reference, "v").unwrap();
        open.fork(&*provider, &snapshot.reference, "c").unwrap();
        for place in ["target/v", "target/c"] {
            assert_eq!(fs::metadata(home.at(place).join("id")).unwrap().mode() & 0o7777, 0o4755);
        }
    });
    let mounts = daemon.mounts();
    assert_eq!(mounts.len(), 2);
    for (point, options) in &mounts {
        let has = |option: &str| options.split(',').any(|one| one == option);
        assert!(has("nosuid") && has("nodev"), "{point:?} {options}");
        assert_eq!(has("ro"), point.ends_with("v"), "{point:?} {options}");
        use std::os::unix::process::CommandExt;
        let run = std::process::Command::new(point.join("id")).arg("-u").uid(ALICE).gid(ALICE).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&run.stdout).trim(), ALICE.to_string());
    }
}

#[test]
fn what_belongs_to_somebody_else_around_a_directory_needs_the_administrator() {
    if !is_root() {
        return;
    }
    let refused = |daemon: &Daemon, uid, groups: &[u32]| {
        let home = daemon.home(uid);
        in_groups(uid, groups, || {
            let (provider, open) = (daemon.provider(), home.open());
            let probe = open.probe(&*provider).unwrap();
            let taken = open.snapshot(&*provider, "one");
            assert_eq!(probe.usable, taken.is_ok());
            if let Err(error) = &taken {
                assert_eq!(error.kind, ErrorKind::PermissionDenied);
                assert!(probe.remedy.unwrap().contains("allow-containing"));
            }
            taken.is_err()
        })
    };
    // /run is root's.
    let nobody = Daemon::start("{}");
    assert!(refused(&nobody, ALICE, &[]));
    drop(nobody);
    let some = Daemon::start(r#"{"allow-containing": ["12345", "@777"]}"#);
    assert!(refused(&some, ALICE, &[]));
    assert!(!refused(&some, BOB, &[]));
    assert!(!refused(&some, 4711, &[5, 777]));
}

#[test]
fn what_is_theirs_alone_needs_nobody() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start("{}");
    let home = daemon.home(ALICE);
    // A filesystem of the user's own.
    let options = format!("mode=0700,uid={ALICE},gid={ALICE}");
    nix::mount::mount(Some("ahd-test"), &home.at("w"), Some("tmpfs"), nix::mount::MsFlags::empty(), Some(&*options))
        .unwrap();
    as_user(ALICE, || {
        fs::create_dir(home.at("w/below")).unwrap();
        let (provider, open) = (daemon.provider(), home.open());
        assert!(open.probe(&*provider).unwrap().usable);
        open.snapshot(&*provider, "one").unwrap();
    });
    // A bind mount of a directory of theirs in a filesystem of root's is not it.
    let (from, to) = (home.at("target"), home.at("bound"));
    fs::create_dir(&to).unwrap();
    nix::mount::mount(Some(&from), &to, None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>).unwrap();
    as_user(ALICE, || {
        let (provider, mut open) = (daemon.provider(), home.open());
        open.workspace = ah_plugin_api::Dir::open(&to).unwrap();
        assert!(!open.probe(&*provider).unwrap().usable);
    });
}

#[test]
fn views_and_clones_outlive_the_helper_and_clones_come_back_after_a_restart_of_the_machine() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(ALLOWED);
    let home = daemon.home(ALICE);
    let (view, clone, snapshot) = as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), home.open());
        let snapshot = open.snapshot(&*provider, "one").unwrap();
        let view = open.mount(&*provider, &snapshot.reference, "v").unwrap();
        let clone = open.fork(&*provider, &snapshot.reference, "c").unwrap();
        fs::write(clone.path.join("new"), "mine").unwrap();
        (view, clone, snapshot)
    });
    daemon.restart();
    assert_eq!(daemon.mounts().len(), 2, "a restart of the helper alone takes nothing away");
    daemon.kill();
    // As if the machine had been down.
    for (point, _) in daemon.mounts() {
        ah_test_disks::unmount(&point);
    }
    assert!(!clone.path.join("new").exists());
    daemon.run().unwrap();
    assert_eq!(fs::read_to_string(clone.path.join("new")).unwrap(), "mine");
    assert!(!view.path.exists(), "what is left of a view goes");
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), home.open());
        open.unmount(&*provider, &view.reference).unwrap();
        let again = open.mount(&*provider, &snapshot.reference, "v").unwrap();
        open.unmount(&*provider, &again.reference).unwrap();
        open.destroy(&*provider, &DestroyRequest::Clone(clone.reference)).unwrap();
        assert!(!clone.path.exists());
    });
    // With something else in its place, a clone is not mounted over it.
    let clone = as_user(ALICE, || home.open().fork(&*daemon.provider(), &snapshot.reference, "c").unwrap());
    daemon.kill();
    ah_test_disks::unmount(&clone.path);
    fs::write(clone.path.join("in the way"), "x").unwrap();
    daemon.run().unwrap();
    assert!(daemon.mounts().is_empty() && clone.path.join("in the way").exists());
    assert!(daemon.said("something in its place"));
    fs::remove_file(clone.path.join("in the way")).unwrap();
    daemon.restart();
    assert_eq!(daemon.mounts().len(), 1);
    // A home that was not there when the helper started: the clone is there when its user comes.
    daemon.kill();
    ah_test_disks::unmount(&clone.path);
    let records = daemon.base.path().join("state/records");
    for entry in fs::read_dir(&records).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        fs::write(&path, text.replace(boot.trim(), "another")).unwrap();
    }
    let away = daemon.base.path().join("away");
    fs::rename(&home.root, &away).unwrap();
    daemon.run().unwrap();
    fs::rename(&away, &home.root).unwrap();
    assert!(daemon.mounts().is_empty());
    as_user(ALICE, || home.open().list(&*daemon.provider()).unwrap());
    assert_eq!(daemon.mounts().len(), 1);
}

#[test]
fn what_was_forgotten_can_be_taken_away_by_name() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(ALLOWED);
    let (alice, bob) = (daemon.home(ALICE), daemon.home(BOB));
    let forgotten = |home: &common::Home| {
        let request =
            ReclaimRequest { auto: false, forgotten: ["v", "c"].map(|name| FileName::new(name).unwrap()).into() };
        let open = home.open();
        daemon.provider().reclaim(&open.place(), &request, &Context::quiet()).unwrap().actions.len()
    };
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        let snapshot = open.snapshot(&*provider, "one").unwrap();
        open.mount(&*provider, &snapshot.reference, "v").unwrap();
        open.fork(&*provider, &snapshot.reference, "c").unwrap();
        open.fork(&*provider, &snapshot.reference, "stays").unwrap();
    });
    as_user(BOB, || {
        bob.open().snapshot(&*daemon.provider(), "one").unwrap();
        assert_eq!(forgotten(&bob), 0);
    });
    as_user(ALICE, || assert_eq!(forgotten(&alice), 2));
    assert_eq!(daemon.mounts().len(), 1);
    assert!(!alice.at("target/v").exists() && alice.at("target/stays/file").exists());
}

#[test]
fn what_was_kept_under_a_lost_token_can_be_found_and_forgotten_by_root() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(ALLOWED);
    daemon.kill();
    let (status, said) = daemon.command(&["--stores"]);
    assert!(status && said.contains("nothing is kept for anybody"), "{said}");
    daemon.run().unwrap();
    let (alice, bob) = (daemon.home(ALICE), daemon.home(BOB));
    for home in [&alice, &bob] {
        as_user(home.uid, || {
            let (provider, open) = (daemon.provider(), home.open());
            let one = open.snapshot(&*provider, "one").unwrap();
            open.snapshot(&*provider, "two").unwrap();
            open.fork(&*provider, &one.reference, "c").unwrap();
        });
    }
    let token = fs::read_to_string(alice.at("store/ahd-token")).unwrap();
    fs::remove_file(alice.at("store/ahd-token")).unwrap();
    let name = format!("{ALICE}/{token}");
    let (status, said) = daemon.command(&["--stores"]);
    assert!(!status && said.contains("another ahd works on"), "{said}");
    daemon.kill();
    let (status, said) = daemon.command(&["--stores"]);
    assert!(status && said.contains(&format!("{name}  copies  2 snapshots")) && said.contains("1 view or branch"));
    assert_eq!(said.lines().count(), 2);
    for wrong in [format!("{ALICE}/../{token}"), format!("{BOB}/{token}"), format!("{ALICE}/"), token] {
        assert!(!daemon.command(&["--forget-store", &wrong]).0, "{wrong}");
    }
    let (status, said) = daemon.command(&["--forget-store", &name]);
    assert!(status, "{said}");
    assert!(!alice.at("target/c").exists());
    let (_, said) = daemon.command(&["--stores"]);
    assert!(!said.contains(&name) && said.contains(&format!("{BOB}/")), "{said}");
    daemon.run().unwrap();
    as_user(BOB, || {
        assert_eq!(bob.open().list(&*daemon.provider()).unwrap().len(), 2);
        assert_eq!(fs::read_to_string(bob.at("target/c/file")).unwrap(), format!("of {BOB}"));
    });
    as_user(ALICE, || assert_eq!(alice.open().snapshot(&*daemon.provider(), "one").unwrap().id.as_str(), "one"));
}

/// The folder of that name below `top`.
fn folder(top: &Path, name: &str) -> Option<PathBuf> {
    fs::read_dir(top)
        .ok()?
        .flatten()
        .filter(|entry| entry.file_type().unwrap().is_dir())
        .find_map(|entry| if entry.file_name() == name { Some(entry.path()) } else { folder(&entry.path(), name) })
}

#[test]
fn a_snapshot_that_cannot_be_read_is_not_taken_for_gone() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 512, "") else { return };
    let home = Home::make(disk.at().join("home"), ALICE);
    let daemon = Daemon::with(ALLOWED, &["btrfs"], &[]);
    let taken = as_user(ALICE, || home.open().snapshot(&*daemon.named("btrfs_ahd"), "damaged").unwrap());
    let at = folder(disk.at(), "damaged").unwrap();
    rustix::fs::removexattr(&at, "user.ah.snapshot").unwrap();
    as_user(ALICE, || {
        let (provider, open) = (daemon.named("btrfs_ahd"), home.open());
        assert!(open.list(&*provider).unwrap().is_empty());
        let request = SnapshotRef { snapshot: taken.reference.clone() };
        let error = provider.stat(&open.place(), &request, &Context::quiet()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::DataLoss);
        let removed = open.destroy(&*provider, &DestroyRequest::Snapshot(taken.reference.clone()));
        assert!(removed.is_err() || !at.exists(), "it is not said to be gone while it is there");
        // What was never there is.
        open.destroy(&*provider, &DestroyRequest::Snapshot(Reference::new("another").unwrap())).unwrap();
    });
}

#[test]
fn a_clone_is_told_of_as_its_user_sees_it() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    // The helper's state is on another filesystem, and the workspace only a part of the subvolume: the provider says so, and where it has the clone.
    let (daemon, alice) = (Daemon::with(ALLOWED, &["btrfs"], &[]), Home::make(disk.at().join("home"), ALICE));
    fs::write(alice.at("w/.git"), "gitdir: /nowhere").unwrap();
    as_user(ALICE, || {
        let (provider, open) = (daemon.named("btrfs_ahd"), alice.open());
        let one = open.snapshot(&*provider, "one").unwrap().reference;
        let clone = open.fork(&*provider, &one, "c").unwrap();
        // What was done about its repository is told all the same, and what else is in it.
        let notes = clone.notes;
        assert!(notes.len() == 2 && notes.iter().all(|note| !note.contains("snapshots")), "{notes:?}");
        assert!(notes.iter().any(|note| note.contains("a copy of the subvolume")), "{notes:?}");
    });
}

#[test]
fn the_place_of_a_clone_is_not_back_after_a_power_cut_when_nobody_knows_the_clone_any_more() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 300, "commit=300") else { return };
    let mut daemon = Daemon::start(ALLOWED);
    let home = Home::make(disk.at().join("u"), ALICE);
    let clone = as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), home.open());
        let snapshot = open.snapshot(&*provider, "one").unwrap();
        open.fork(&*provider, &snapshot.reference, "c").unwrap()
    });
    rustix::fs::syncfs(fs::File::open(disk.at()).unwrap()).unwrap();
    let before = Cut::off(&disk);
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), home.open());
        open.destroy(&*provider, &DestroyRequest::Clone(clone.reference.clone())).unwrap();
    });
    let after = Cut::off(&disk);
    assert_eq!(daemon.state("records").len(), 0);
    daemon.kill();
    before.look(&disk, |_| assert!(clone.path.is_dir()));
    after.look(&disk, |_| assert!(!clone.path.exists()));
}

#[test]
fn the_helper_does_not_advise_to_set_it_up() {
    if !is_root() {
        return;
    }
    let (Some(disk), Some(closed)) = (Disk::new("btrfs", 300, ""), Disk::new("btrfs", 300, "")) else { return };
    let daemon = Daemon::with(ALLOWED, &["btrfs"], &[]);
    let here = daemon.home(ALICE);
    let remedy = |workspace: &Path| {
        as_user(ALICE, || {
            let open = Open { workspace: Dir::open(workspace).unwrap(), ..here.open() };
            let probe = open.probe(&*daemon.named("btrfs_ahd")).unwrap();
            assert!(!probe.usable && probe.reason.contains("no place for snapshots"), "{probe:?}");
            // An error has an advice as well.
            let error = open.snapshot(&*daemon.named("btrfs_ahd"), "one").unwrap_err();
            let hint = error.hint.unwrap_or_default();
            assert!(error.message.contains("no place for snapshots") && !hint.contains("ahd"), "{hint}");
            probe.remedy.unwrap_or_default()
        })
    };
    // Where that would make no difference.
    std::os::unix::fs::chown(disk.at(), Some(ALICE), Some(ALICE)).unwrap();
    let advice = remedy(disk.at());
    assert!(advice.contains("a directory in it") && !advice.contains("ahd"), "{advice}");
    // And where it would help, were it not there. Root cannot write there either.
    let there = Home::make(closed.at().join("u"), ALICE);
    let lock = |flag: &str| {
        let mut chattr = std::process::Command::new("chattr");
        assert!(chattr.arg(flag).args([closed.at(), &there.root]).status().unwrap().success());
    };
    lock("+i");
    let advice = remedy(&there.at("w"));
    lock("-i");
    assert!(!advice.contains("ahd"), "{advice}");
}
