//! What killed processes left that `gc` takes away, and what of it somebody still holds.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ah_core::{BranchOptions, GcOptions};
use rustix::fs::{FlockOperation, flock};

use crate::lab::Lab;

fn gc(lab: &Lab) -> ah_core::GcReport {
    lab.open().gc(&GcOptions::default()).unwrap()
}

/// The number of a process that has ended.
fn dead() -> u32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
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
