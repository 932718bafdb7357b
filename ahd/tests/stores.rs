//! What is kept for somebody is given back when it is known to hold nothing, and not before.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::fs;
use std::path::PathBuf;

use ah_plugin_api::{DestroyRequest, Dir, ErrorKind, Provider};
use ah_test_disks::Disk;
use common::{ALICE, Daemon, Home, Open, as_user, is_root};

const TWO_STORES: &str = r#"{"allow-containing": ["65534"], "limits": {"stores": 2}}"#;

/// Two stores, all that Alice may have: a clone in the first, whose snapshot is gone, and a snapshot in the second. Gives the token of the first.
fn a_clone_and_a_snapshot(provider: &dyn Provider, home: &Home) -> String {
    as_user(ALICE, || {
        let open = home.open();
        let one = open.snapshot(provider, "one").unwrap().reference;
        open.fork(provider, &one, "c").unwrap();
        open.destroy(provider, &DestroyRequest::Snapshot(one)).unwrap();
        assert!(open.list(provider).unwrap().is_empty());
        let token = fs::read_to_string(home.at("store/ahd-token")).unwrap();
        fs::remove_file(home.at("store/ahd-token")).unwrap();
        open.snapshot(provider, "two").unwrap();
        fs::remove_file(home.at("store/ahd-token")).unwrap();
        token
    })
}

/// Whether Alice gets a third store, which there is room for if the first is given back.
fn a_third(provider: &dyn Provider, home: &Home) -> bool {
    match as_user(ALICE, || home.open().snapshot(provider, "three")) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error}");
            false
        }
    }
}

/// The file of the only record.
fn record(daemon: &Daemon) -> PathBuf {
    let names = daemon.state("records");
    assert_eq!(names.len(), 1);
    daemon.base.path().join("state/records").join(&names[0])
}

#[test]
fn no_store_is_given_back_while_a_clone_may_be_of_any() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(TWO_STORES);
    let alice = daemon.home(ALICE);
    let token = a_clone_and_a_snapshot(&*daemon.provider(), &alice);
    assert!(!a_third(&*daemon.provider(), &alice), "there is a clone of the first");
    let (record, name) = (record(&daemon), format!("{ALICE}/{token}"));
    // Damaged, and then lost.
    for (loss, told) in [(true, "record"), (false, "clones")] {
        daemon.kill();
        if loss {
            fs::write(&record, "{").unwrap();
        } else {
            fs::remove_file(&record).unwrap();
        }
        let (status, said) = daemon.command(&["--forget-store", &name]);
        assert!(!status && said.contains("nobody knows of which store") && said.contains(told), "{said}");
        daemon.run().unwrap();
        assert!(!a_third(&*daemon.provider(), &alice));
        assert!(daemon.said("no store is given back"));
        assert!(daemon.state(&format!("stores/{ALICE}")).contains(&token));
    }
    ah_test_disks::unmount(&alice.at("target/c"));
    let clones = daemon.state("clones");
    assert_eq!(clones.len(), 1);
    fs::remove_dir_all(daemon.base.path().join("state/clones").join(&clones[0])).unwrap();
    assert!(a_third(&*daemon.provider(), &alice));
    assert!(!daemon.state(&format!("stores/{ALICE}")).contains(&token));
}

#[test]
fn what_a_power_cut_left_of_a_views_record_keeps_no_store() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(TWO_STORES);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        let one = open.snapshot(&*provider, "one").unwrap().reference;
        open.mount(&*provider, &one, "v").unwrap();
    });
    let record = record(&daemon);
    let whole = fs::read(&record).unwrap();
    ah_test_disks::unmount(&alice.at("target/v"));
    for left in [0, 60, whole.len() - 1] {
        for zeros in [0, 8] {
            daemon.kill();
            fs::write(&record, [&whole[..left], &vec![0; zeros]].concat()).unwrap();
            daemon.run().unwrap();
            assert!(daemon.state("records").is_empty(), "{left} bytes and {zeros} zeros");
        }
    }
    // What is there of a clone's is lost by no power cut.
    daemon.kill();
    let clone = String::from_utf8(whole).unwrap().replace(r#""view""#, r#""clone""#);
    fs::write(&record, &clone[..60]).unwrap();
    daemon.run().unwrap();
    assert!(daemon.said("no store is given back") && record.exists());
}

#[test]
fn a_store_in_which_a_clone_lies_is_not_given_back_though_no_record_is_left_of_it() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 512, "") else { return };
    let alice = Home::make(disk.at().join("home"), ALICE);
    let mut daemon = Daemon::with(TWO_STORES, &["btrfs"], &[]);
    let token = a_clone_and_a_snapshot(&*daemon.named("btrfs_ahd"), &alice);
    let record = record(&daemon);
    daemon.kill();
    fs::remove_file(&record).unwrap();
    daemon.run().unwrap();
    // The state is on another filesystem than what is captured, so the clone is beside the snapshots.
    assert!(daemon.state("clones").is_empty());
    assert!(!a_third(&*daemon.named("btrfs_ahd"), &alice));
    daemon.kill();
    let (status, said) = daemon.command(&["--forget-store", &format!("{ALICE}/{token}")]);
    assert!(!status && said.contains("of which there is no record"), "{said}");
    assert_eq!(fs::read_to_string(alice.at("target/c/file")).unwrap(), format!("of {ALICE}"));
    assert!(daemon.state(&format!("stores/{ALICE}")).contains(&token));
    ah_test_disks::unmount(&alice.at("target/c"));
}

/// The store of the only snapshots, some of which are said to be where nobody can look now.
fn with_some_elsewhere(daemon: &Daemon, home: &Home) -> (String, PathBuf) {
    let token = fs::read_to_string(home.at("store/ahd-token")).unwrap();
    let store = daemon.base.path().join(format!("state/stores/{ALICE}/{token}/copies"));
    fs::write(store.join("elsewhere"), "").unwrap();
    (token, store)
}

#[test]
fn what_cannot_be_looked_for_keeps_nobody_from_taking_more_as_far_as_the_limit_goes() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(r#"{"allow-containing": ["65534"], "limits": {"snapshots": 3}}"#);
    let alice = daemon.home(ALICE);
    let taken = |daemon: &Daemon, id: &str| as_user(ALICE, || alice.open().snapshot(&*daemon.provider(), id));
    let first = taken(&daemon, "one").unwrap().reference;
    let (_, store) = with_some_elsewhere(&daemon, &alice);
    // It has to look anew.
    daemon.restart();
    taken(&daemon, "two").unwrap();
    taken(&daemon, "three").unwrap();
    assert_eq!(taken(&daemon, "four").unwrap_err().kind, ErrorKind::ResourceExhausted);
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        // Nobody is told that what is not seen is gone.
        assert_eq!(open.list(&*provider).unwrap_err().kind, ErrorKind::FailedPrecondition);
        let unseen = ah_plugin_api::Reference::new(format!("{first}-elsewhere")).unwrap();
        let error = open.destroy(&*provider, &DestroyRequest::Snapshot(unseen)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition);
        // What is seen goes, and makes room.
        open.destroy(&*provider, &DestroyRequest::Snapshot(first)).unwrap();
    });
    taken(&daemon, "four").unwrap();
    fs::remove_file(store.join("elsewhere")).unwrap();
    assert_eq!(as_user(ALICE, || alice.open().list(&*daemon.provider()).unwrap().len()), 3);
    assert_eq!(taken(&daemon, "five").unwrap_err().kind, ErrorKind::ResourceExhausted);
}

#[test]
fn a_store_is_forgotten_though_some_of_it_cannot_be_looked_for() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(TWO_STORES);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || alice.open().snapshot(&*daemon.provider(), "one")).unwrap();
    let (token, store) = with_some_elsewhere(&daemon, &alice);
    // One that holds nothing else is not given back by itself, when there is no room.
    fs::rename(store.join("one"), daemon.base.path().join("aside")).unwrap();
    as_user(ALICE, || {
        for id in ["two", "three"] {
            fs::remove_file(alice.at("store/ahd-token")).unwrap();
            let _ = alice.open().snapshot(&*daemon.provider(), id);
        }
    });
    assert!(daemon.state(&format!("stores/{ALICE}")).contains(&token));
    fs::rename(daemon.base.path().join("aside"), store.join("one")).unwrap();
    daemon.kill();
    let (status, said) = daemon.command(&["--forget-store", &format!("{ALICE}/{token}")]);
    assert!(status && said.contains("is forgotten, with 1 snapshot"), "{said}");
    assert!(said.contains("stays") && said.contains("the disk of some is not there"), "{said}");
    assert!(!daemon.state(&format!("stores/{ALICE}")).contains(&token));
}

#[test]
fn a_disk_that_never_comes_back_is_forgotten_and_whose_snapshots_it_had_hears_who_can() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let mut daemon = Daemon::with(TWO_STORES, &["btrfs"], &[]);
    let (there, here) = (Home::make(disk.at().join("u"), ALICE), daemon.home(ALICE));
    as_user(ALICE, || {
        let open = Open { workspace: Dir::open(there.at("w")).unwrap(), ..here.open() };
        let one = open.snapshot(&*daemon.named("btrfs_ahd"), "one").unwrap().reference;
        // What was written down of it is on that disk, too.
        open.mount(&*daemon.named("btrfs_ahd"), &one, "v").unwrap();
    });
    let token = fs::read_to_string(here.at("store/ahd-token")).unwrap();
    let name = format!("{ALICE}/{token}");
    daemon.kill();
    ah_test_disks::unmount(&here.at("target/v"));
    ah_test_disks::unmount(disk.at());
    daemon.run().unwrap();
    as_user(ALICE, || {
        let (provider, open) = (daemon.named("btrfs_ahd"), here.open());
        let another = ah_plugin_api::Reference::new("another").unwrap();
        let listed = open.list(&*provider).unwrap_err();
        let removed = open.destroy(&*provider, &DestroyRequest::Snapshot(another)).unwrap_err();
        for (kind, hint) in [listed, removed].map(|error| (error.kind, error.hint.unwrap())) {
            assert_eq!(kind, ErrorKind::FailedPrecondition);
            assert!(hint.starts_with("mount that filesystem where it was"), "{hint}");
            // What only root can get at is root's to do, by what asks for nothing else.
            assert!(
                hint.contains(&format!("as root, while no helper runs: `ahd --forget-store {name}/btrfs ")),
                "{hint}"
            );
            assert!(!hint.contains("/state/") && !hint.contains("rm '"), "{hint}");
        }
    });
    daemon.kill();
    let (status, said) = daemon.command(&["--forget-store", &name]);
    assert!(status && said.contains("is forgotten, with 0 snapshots") && said.contains("cannot be reached"), "{said}");
    assert!(!daemon.state(&format!("stores/{ALICE}")).contains(&token) && daemon.state("records").is_empty());
}

/// Alice's directories, in one of which is a snapshot on a disk, and what else is kept for that workspace is here: a snapshot and a branch with work in it.
fn on_a_disk_and_here(daemon: &Daemon, disk: &Disk) -> Home {
    let (there, here) = (Home::make(disk.at().join("u"), ALICE), daemon.home(ALICE));
    as_user(ALICE, || {
        let open = Open { workspace: Dir::open(there.at("w")).unwrap(), ..here.open() };
        open.snapshot(&*daemon.named("btrfs_ahd"), "far").unwrap();
        let near = here.open().snapshot(&*daemon.provider(), "near").unwrap().reference;
        here.open().fork(&*daemon.provider(), &near, "c").unwrap();
        fs::write(here.at("target/c/WORK"), "mine").unwrap();
    });
    here
}

#[test]
fn what_is_advised_for_a_lost_disk_forgets_nothing_of_other_providers() {
    if !is_root() {
        return;
    }
    let Some(disk) = Disk::new("btrfs", 300, "") else { return };
    let mut daemon = Daemon::with(TWO_STORES, &["copies", "btrfs"], &[]);
    let here = on_a_disk_and_here(&daemon, &disk);
    let name = format!("{ALICE}/{}", fs::read_to_string(here.at("store/ahd-token")).unwrap());
    ah_test_disks::unmount(disk.at());
    daemon.restart();
    let hint = as_user(ALICE, || here.open().list(&*daemon.named("btrfs_ahd")).unwrap_err().hint.unwrap());
    assert!(hint.contains("branches too"), "{hint}");
    daemon.kill();
    let (_, said) = daemon.command(&["--stores"]);
    assert!(said.contains(&format!("{name}  copies  1 snapshot, ")), "{said}");
    assert_eq!(said.matches("1 view or branch").count(), 1, "{said}");
    for wrong in ["zfs", "", "../copies", "copies/"] {
        let (status, said) = daemon.command(&["--forget-store", &format!("{name}/{wrong}")]);
        assert!(!status && said.contains("hint: ahd --stores"), "{said}");
    }
    let (status, said) = daemon.advised(&words(&hint));
    assert!(status && said.contains("is forgotten, with 0 snapshots\n"), "{said}");
    daemon.run().unwrap();
    as_user(ALICE, || {
        assert_eq!(here.open().list(&*daemon.provider()).unwrap().len(), 1);
        assert_eq!(fs::read_to_string(here.at("target/c/WORK")).unwrap(), "mine");
        assert!(here.open().list(&*daemon.named("btrfs_ahd")).unwrap().is_empty());
    });
    daemon.kill();
    let (status, said) = daemon.command(&["--forget-store", &name]);
    assert!(status && said.contains("is forgotten, with 1 snapshot and 1 branch\n"), "{said}");
}

/// The arguments of the command that a text has between backticks.
fn words(text: &str) -> Vec<&str> {
    text.split('`').nth(1).unwrap().split(' ').skip(1).collect()
}

fn records(daemon: &Daemon) -> Vec<PathBuf> {
    let names = daemon.state("records").into_iter().filter(|name| name.ends_with(".json"));
    names.map(|name| daemon.base.path().join("state/records").join(name)).collect()
}

#[test]
fn a_branch_on_a_lost_disk_is_forgotten_by_who_says_so_once_more() {
    if !is_root() {
        return;
    }
    for half_made in [false, true] {
        let Some(disk) = Disk::new("btrfs", 300, "") else { return };
        let mut daemon = Daemon::with(TWO_STORES, &["copies", "btrfs"], &[]);
        let here = on_a_disk_and_here(&daemon, &disk);
        as_user(ALICE, || {
            let (provider, open) = (daemon.named("btrfs_ahd"), here.open());
            let far = open.list(&*provider).unwrap()[0].reference.clone();
            open.fork(&*provider, &far, "far").unwrap();
        });
        let name = format!("{ALICE}/{}", fs::read_to_string(here.at("store/ahd-token")).unwrap());
        daemon.kill();
        ah_test_disks::unmount(&here.at("target/far"));
        ah_test_disks::unmount(disk.at());
        let is_far = |record: &PathBuf| fs::read_to_string(record).unwrap().contains("\"btrfs\"");
        let far = records(&daemon).into_iter().find(is_far).unwrap();
        if half_made {
            // Nobody was ever given it.
            let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&far).unwrap()).unwrap();
            (value["inner"], value["source"], value["mark"]) = Default::default();
            value["ready"] = false.into();
            fs::write(&far, serde_json::to_vec(&value).unwrap()).unwrap();
            let (status, said) = daemon.command(&["--forget-store", &format!("{name}/btrfs")]);
            assert!(status && said.contains("is forgotten, with 0 snapshots\n"), "{said}");
        } else {
            let mut advised = String::new();
            for store in [name.clone(), format!("{name}/btrfs")] {
                let (status, said) = daemon.command(&["--forget-store", &store]);
                let place = here.at("target/far");
                let told = format!("the branch at {} is on that disk, and nothing is forgotten", place.display());
                assert!(!status && said.contains(&told), "{said}");
                assert!(said.contains("hint: mount that filesystem where it was"), "{said}");
                assert!(!said.contains("rm ") && said.contains(&format!("`ahd --forget-store {store} --force ")));
                assert_eq!(records(&daemon).len(), 2);
                assert_eq!(fs::read_to_string(here.at("target/c/WORK")).unwrap(), "mine");
                advised = said;
            }
            let (status, said) = daemon.advised(&words(&advised));
            assert!(status && said.contains("is forgotten, with 0 snapshots\n"), "{said}");
            assert!(said.contains(&format!("the branch at {}", here.at("target/far").display())), "{said}");
        }
        assert!(!far.exists() && records(&daemon).len() == 1);
        daemon.run().unwrap();
        as_user(ALICE, || {
            assert!(here.open().list(&*daemon.named("btrfs_ahd")).unwrap().is_empty());
            assert_eq!(fs::read_to_string(here.at("target/c/WORK")).unwrap(), "mine");
        });
    }
}

#[test]
fn before_it_is_refused_no_branch_goes_that_is_there() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(TWO_STORES);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        let one = open.snapshot(&*provider, "one").unwrap().reference;
        ["a", "b"].iter().for_each(|name| drop(open.fork(&*provider, &one, name).unwrap()));
    });
    let (token, _) = with_some_elsewhere(&daemon, &alice);
    let forget = format!("{ALICE}/{token}");
    daemon.kill();
    let clones = daemon.base.path().join("state/clones");
    let of = |daemon: &Daemon, name: &str| {
        let value = |path: &PathBuf| serde_json::from_slice::<serde_json::Value>(&fs::read(path).unwrap()).unwrap();
        let record = records(daemon).iter().map(value).find(|value| value["name"] == name).unwrap();
        clones.join(record["id"].as_str().unwrap())
    };
    let aside = daemon.base.path().join("aside");
    for (lost, there) in [("a", "b"), ("b", "a")] {
        // As a pool that is not imported leaves it: where its dataset is mounted.
        let (path, point) = (of(&daemon, lost), alice.at("target").join(lost));
        ah_test_disks::unmount(&point);
        fs::rename(&path, &aside).unwrap();
        fs::create_dir(&path).unwrap();
        let (status, said) = daemon.command(&["--forget-store", &forget]);
        assert!(!status && said.contains(&format!("the branch at {} is on that disk", point.display())), "{said}");
        let file = alice.at("target").join(there).join("file");
        assert_eq!(fs::read_to_string(file).unwrap(), format!("of {ALICE}"));
        assert_eq!((records(&daemon).len(), daemon.state("clones").len()), (2, 2));
        if lost == "a" {
            fs::remove_dir(&path).unwrap();
            fs::rename(&aside, &path).unwrap();
            daemon.run().unwrap();
            daemon.kill();
        }
    }
    let (status, said) = daemon.command(&["--forget-store", &forget, "--force"]);
    assert!(status && said.contains("is forgotten, with 1 snapshot and 1 branch\n"), "{said}");
    assert!(records(&daemon).is_empty() && daemon.state("clones").is_empty());
}

#[test]
fn of_a_store_that_is_not_forgotten_as_nobody_can_look_into_it_no_view_is_forgotten() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(TWO_STORES);
    let alice = daemon.home(ALICE);
    as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        let one = open.snapshot(&*provider, "one").unwrap().reference;
        open.mount(&*provider, &one, "v").unwrap();
    });
    let token = fs::read_to_string(alice.at("store/ahd-token")).unwrap();
    daemon.kill();
    ah_test_disks::unmount(&alice.at("target/v"));
    let sign = daemon.base.path().join(format!("state/stores/{ALICE}/{token}/copies/nowhere"));
    fs::write(&sign, "").unwrap();
    let forget = || daemon.command(&["--forget-store", &format!("{ALICE}/{token}")]);
    let (status, said) = forget();
    assert!(!status && said.contains("the disk of all is not there"), "{said}");
    assert_eq!(daemon.state("records").len(), 1);
    fs::remove_file(sign).unwrap();
    let (status, said) = forget();
    assert!(status && daemon.state("records").is_empty(), "{said}");
}

#[test]
fn what_a_user_calls_their_folders_moves_no_cursor_of_the_administrators() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(TWO_STORES);
    let alice = Home::make(daemon.base.path().join("u\u{1b}]0;owned\u{7}\u{202e}\n"), ALICE);
    let clone = as_user(ALICE, || {
        let (provider, open) = (daemon.provider(), alice.open());
        let one = open.snapshot(&*provider, "one").unwrap().reference;
        open.fork(&*provider, &one, "c").unwrap().path
    });
    let token = fs::read_to_string(alice.at("store/ahd-token")).unwrap();
    daemon.kill();
    let held = Dir::open(&clone).unwrap();
    let (status, said) = daemon.command(&["--forget-store", &format!("{ALICE}/{token}")]);
    drop(held);
    assert!(!status && said.contains("is in use") && said.contains("hint: leave") && said.contains("owned"), "{said}");
    let moves = |c: char| c != '\n' && ah_plugin_api::text::misleads(c);
    assert!(!said.contains(moves) && !said.lines().any(|line| line.starts_with('/')), "{said:?}");
    assert!(daemon.mounts().iter().any(|(point, _)| *point == clone), "it is not taken away when this fails");
}
