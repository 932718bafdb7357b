//! What killed processes left that `gc` takes away, and what of it somebody still holds.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ah_core::GcOptions;
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
