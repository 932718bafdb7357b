//! What killed processes left that `gc` takes away, and what of it somebody still holds.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ah_core::{BranchOptions, GcOptions, LeaseRecord, Release, RmOptions, SeekOptions};
use ah_plugin_api::{ErrorKind, View};
use rustix::fs::{FlockOperation, flock};

use crate::branches::{killed, record};
use crate::lab::Lab;

fn gc(lab: &Lab) -> ah_core::GcReport {
    lab.open().gc(&GcOptions::default()).unwrap()
}

/// The number of a process that has ended.
fn dead() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

fn is_free(lock: &Path) -> bool {
    let lock = fs::File::open(lock).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[test]
fn nobody_who_shows_or_gives_back_waits_for_providers_that_take_dead_views_away() {
    let lab = Lab::new();
    lab.step("a", "1");
    let (old, lock) = (format!("walk-{}-0", dead()), lab.settings.home.join("leases.lock"));
    fs::create_dir_all(lab.settings.home.join("mounts").join(&old)).unwrap();
    let (asked, free) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (heard, found) = (Arc::clone(&asked), Arc::clone(&free));
    *lab.fake.of_reclaims.lock().unwrap() = Some(Box::new(move |answer| {
        heard.fetch_add(1, Ordering::Relaxed);
        found.fetch_add(usize::from(is_free(&lock)), Ordering::Relaxed);
        Ok(answer)
    }));
    let report = gc(&lab);
    assert_eq!(*lab.fake.forgotten.lock().unwrap(), [old]);
    assert_eq!(asked.load(Ordering::Relaxed), free.load(Ordering::Relaxed), "{report:?}");
}

#[test]
fn what_a_killed_process_began_to_write_of_plugins_goes() {
    let lab = Lab::new();
    lab.step("a", "1");
    let folder = lab.settings.home.join("plugins");
    fs::create_dir_all(&folder).unwrap();
    let left = folder.join(format!("plugins.tried.{}", dead()));
    let stays = [format!("plugins.tried.{}", std::process::id()), "plugins.tried".into(), "plugins.tried.x".into()];
    let stays = stays.map(|name| folder.join(name));
    fs::write(&left, "").unwrap();
    stays.iter().for_each(|path| fs::write(path, "").unwrap());
    let report = gc(&lab);
    assert!(!left.exists() && stays.iter().all(|path| path.exists()), "{report:?}");
    assert!(report.failures.is_empty() && report.actions.len() == 1, "{report:?}");
}

#[test]
fn the_lock_of_a_branch_that_was_never_made_goes_unless_somebody_holds_it() {
    let lab = Lab::new();
    lab.step("a", "1");
    let branch = lab.open().branch(&BranchOptions::default()).unwrap();
    let lock = |id: &str| lab.folder().join(format!("branch-{id}.lock"));
    let [left, held, own] = [lock("kkkkkkkkkkkk"), lock("llllllllllll"), lock(branch.id.as_str())];
    fs::write(&left, "").unwrap();
    let holder = fs::File::create(&held).unwrap();
    flock(&holder, FlockOperation::LockShared).unwrap();
    assert!(own.exists());
    let report = gc(&lab);
    assert!(!left.exists() && held.exists() && own.exists(), "{report:?}");
    drop(holder);
    gc(&lab);
    assert!(!held.exists() && own.exists());
}

/// Has it that a lease's holder has ended, before it had a view or after that.
fn abandon(lab: &Lab, lease: &LeaseRecord, had_view: bool) {
    let file = lab.settings.home.join(format!("leases/{}.json", lease.id));
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    value["maker"]["start"] = 1.into();
    if !had_view {
        value.as_object_mut().unwrap().remove("shown");
    }
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
}

fn bound() -> SeekOptions {
    SeekOptions { while_process_lives: true, ..SeekOptions::default() }
}

#[test]
fn nor_for_those_that_take_away_views_of_the_dead() {
    for had_view in [false, true] {
        let lab = Lab::new();
        lab.step("a", "1");
        let lease = lab.open().seek("@", &bound()).unwrap();
        abandon(&lab, &lease, had_view);
        let [leases, views] = ["leases.lock", "views.lock"].map(|name| lab.settings.home.join(name));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        let note = move || heard.lock().unwrap().push((is_free(&leases), is_free(&views)));
        match had_view {
            true => {
                *lab.fake.of_unmounts.lock().unwrap() = Some(Box::new(move |done| {
                    note();
                    Ok(done)
                }));
            }
            // The first time that it is asked it is for that.
            false => {
                *lab.fake.of_reclaims.lock().unwrap() = Some(Box::new(move |answer| {
                    note();
                    Ok(answer)
                }));
            }
        }
        let report = gc(&lab);
        assert!(report.failures.is_empty() && lab.open().leases().unwrap().is_empty(), "{report:?}");
        // No other takes away what it is asked to.
        assert_eq!(asked.lock().unwrap().first(), Some(&(true, false)), "{had_view}");
        assert!(!lease.path.exists() && !lab.settings.home.join(format!("leases/{}.json", lease.id)).exists());
    }
}

#[test]
fn a_view_that_nobody_holds_any_more_is_not_shared() {
    let lab = Lab::new();
    lab.step("a", "1");
    *lab.fake.of_views.lock().unwrap() = Some(Box::new(|view| Ok(View { read_only_mount: true, ..view })));
    let workspace = lab.open();
    let first = workspace.seek("@", &bound()).unwrap();
    let second = workspace.seek("@", &bound()).unwrap();
    assert_eq!((&second.path, second.shared), (&first.path, true));
    abandon(&lab, &first, true);
    abandon(&lab, &second, true);
    let third = workspace.seek("@", &bound()).unwrap();
    assert!(third.path != first.path && !third.shared);
    gc(&lab);
    assert!(!first.path.exists() && third.path.exists());
    assert_eq!(workspace.leases().unwrap().iter().map(|lease| &lease.id).collect::<Vec<_>>(), [&third.id]);
    workspace.release(&Release::All).unwrap();
}

#[test]
fn nor_is_one_whose_holder_others_may_see_to_be_dead() {
    let lab = Lab::new();
    lab.step("a", "1");
    *lab.fake.of_views.lock().unwrap() = Some(Box::new(|view| Ok(View { read_only_mount: true, ..view })));
    let workspace = lab.open();
    let first = workspace.seek("@", &bound()).unwrap();
    // In another namespace of pids, which is not seen from here.
    let file = lab.settings.home.join(format!("leases/{}.json", first.id));
    let mut value: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    value["maker"]["namespace"] = 1.into();
    fs::write(&file, serde_json::to_vec(&value).unwrap()).unwrap();
    let second = workspace.seek("@", &bound()).unwrap();
    assert!(second.path != first.path && !second.shared);
    gc(&lab);
    assert!(first.path.exists() && second.path.exists(), "in doubt it lives");
    workspace.release(&Release::All).unwrap();
}

/// A filesystem in memory.
struct InMemory<'a>(&'a Path);

impl<'a> InMemory<'a> {
    fn mount(at: &'a Path, options: &str) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "ah-test"]).arg(at).output();
        if mounted.is_ok_and(|ran| ran.status.success()) {
            return Some(Self(at));
        }
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: cannot mount");
        eprintln!("skipped: cannot mount");
        None
    }
}

impl Drop for InMemory<'_> {
    fn drop(&mut self) {
        ah_test_disks::unmount(self.0);
    }
}

#[test]
fn views_of_the_dead_go_on_a_full_disk_where_nobody_had_taken_any_away_before() {
    let lab = Lab::new();
    let Some(_disk) = InMemory::mount(&lab.settings.home, "size=16m,nr_inodes=300") else { return };
    lab.step("a", "1");
    let lease = lab.open().seek("@", &bound()).unwrap();
    abandon(&lab, &lease, true);
    // As an older version has left it.
    fs::remove_file(lab.settings.home.join("views.lock")).unwrap();
    let fill = |n: &usize| fs::write(lab.settings.home.join(format!("fill-{n}")), "").is_err();
    assert!((0..1000).find(fill).is_some());
    let report = gc(&lab);
    assert_eq!(report.failures, [""; 0]);
    assert!(!lease.path.exists() && lab.open().leases().unwrap().is_empty());
}

#[test]
fn who_has_ended_is_not_said_to_make_the_branch_that_another_takes_away() {
    let lab = Lab::new();
    lab.step("a", "1");
    let workspace = lab.open();
    let branch = workspace.branch(&BranchOptions { name: Some("b".into()), ..BranchOptions::default() }).unwrap();
    let refused = || {
        let error = workspace.remove_branch("b", false).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Busy);
        error.message.contains(&format!("process {}", std::process::id()))
    };
    let held = fs::File::open(lab.folder().join(format!("branch-{}.lock", branch.id))).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let ready = fs::read_to_string(record(&lab, &branch)).unwrap();
    fs::write(record(&lab, &branch), ready.replace("\"ready\"", "\"making\"")).unwrap();
    assert!(refused(), "it is alive");
    killed(&lab, &branch, "making");
    assert!(!refused());
    drop(held);
    workspace.remove_branch("b", false).unwrap();
}

#[test]
fn dead_views_are_left_to_who_is_at_them() {
    let mut lab = Lab::new();
    let taken = lab.step("a", "1");
    let old = format!("walk-{}-0", dead());
    let view = lab.settings.home.join("mounts").join(&old);
    fs::create_dir_all(&view).unwrap();
    let other = fs::File::create(lab.settings.home.join("views.lock")).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    lab.settings.patience = Duration::from_millis(50);
    let report = gc(&lab);
    assert_eq!(report.failures.len(), 2, "{report:?}");
    assert!(view.exists() && lab.fake.forgotten.lock().unwrap().is_empty());
    // Who removes something does not wait for that.
    lab.settings.patience = Duration::from_secs(60);
    let began = Instant::now();
    lab.open().rm(&[taken.id.to_string()], &RmOptions::default()).unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert!(view.exists() && lab.fake.forgotten.lock().unwrap().is_empty());
    drop(other);
    gc(&lab);
    assert!(!view.exists());
    assert_eq!(*lab.fake.forgotten.lock().unwrap(), [old]);
}

#[test]
fn who_makes_a_branch_holds_a_lock_that_others_find() {
    let made = |lab: &Lab| {
        lab.step("a", "1");
        lab.open()
    };
    let named = BranchOptions { from: Some("@".into()), ..BranchOptions::default() };
    // Each lab gives the same ids.
    let lab = Lab::new();
    let id = made(&lab).branch(&named).unwrap().id;
    let lab = Lab::new();
    let workspace = made(&lab);
    let lock = lab.folder().join(format!("branch-{id}.lock"));
    let other = fs::File::create(&lock).unwrap();
    flock(&other, FlockOperation::LockExclusive).unwrap();
    let (heard, path) = (Arc::new(Mutex::new(None)), lock.clone());
    let told = Arc::clone(&heard);
    *lab.fake.of_clones.lock().unwrap() = Some(Box::new(move |made| {
        *told.lock().unwrap() = Some(path.exists() && !is_free(&path));
        Ok(made)
    }));
    let branch = std::thread::scope(|scope| {
        let branch = scope.spawn(|| workspace.branch(&named).unwrap());
        // It waits for who has it, and takes it away.
        std::thread::sleep(Duration::from_millis(300));
        fs::remove_file(&lock).unwrap();
        drop(other);
        branch.join().unwrap()
    });
    assert_eq!((branch.id, *heard.lock().unwrap()), (id, Some(true)));
}
