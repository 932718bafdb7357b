//! Moments that had to be left beside a timeline that somebody held: what becomes of them, and of the others meanwhile.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ah_core::{Moment, MomentKind, NewMoment, NoticeKind, SessionName};
use ah_plugin_api::Observer;
use rustix::fs::{FlockOperation, flock};

use crate::lab::{Lab, kinds};
use crate::moments::{another, captured};

/// A workspace in which nobody waits for who holds something.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.settings.patience = Duration::ZERO;
    lab.step("a", "0");
    lab
}

/// Holds the timeline as another process would.
fn held(lab: &Lab) -> fs::File {
    let held = fs::File::create(lab.folder().join("timeline.lock")).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    held
}

fn session(name: &str) -> SessionName {
    SessionName::new(name).unwrap()
}

fn add(lab: &Lab, name: &str) {
    lab.wait(1);
    lab.open().add_moment(&session(name), NewMoment::new(MomentKind::Stop)).unwrap();
}

fn last_of(lab: &Lab, name: &str) -> Moment {
    lab.open().moments(Some(&session(name))).unwrap().pop().unwrap()
}

/// What is left beside the timelines, oldest first.
fn unlisted(lab: &Lab) -> Vec<PathBuf> {
    let names = fs::read_dir(lab.folder().join("pending")).unwrap().map(|entry| entry.unwrap().path());
    let is_one = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("unlisted.");
    let mut all: Vec<PathBuf> = names.filter(is_one).collect();
    all.sort();
    all
}

#[test]
fn one_whose_snapshot_comes_long_after_is_inexact() {
    let lab = lab();
    for (wait, is_exact) in [(10, true), (11, false)] {
        let held = held(&lab);
        another(&lab);
        drop(held);
        lab.wait(wait);
        let moment = captured(&lab).record;
        assert!(moment.snapshot.is_some(), "{moment:?}");
        assert_eq!(moment.exact().is_some(), is_exact, "{moment:?}");
        assert_eq!(moment.reason.is_some_and(|reason| reason.contains("held the timeline")), !is_exact);
    }
    // One that waits for its worker alone is as it was.
    another(&lab);
    lab.wait(60);
    assert!(captured(&lab).record.exact().is_some());
}

/// Lets go when it has been looked so often whether to stop.
struct LetsGo(AtomicUsize, Mutex<Option<fs::File>>);

impl Observer for LetsGo {
    fn cancelled(&self) -> bool {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.1.lock().unwrap().take();
        }
        false
    }
}

#[test]
fn the_worker_waits_for_who_holds_a_timeline() {
    let mut lab = lab();
    let held = held(&lab);
    add(&lab, "main");
    lab.settings.observer = Arc::new(LetsGo(AtomicUsize::new(20), Mutex::new(Some(held))));
    lab.open().capture().unwrap();
    assert!(last_of(&lab, "main").record.exact().is_some());
}

#[test]
fn what_is_listed_does_not_wait_for_what_is_not() {
    let lab = lab();
    add(&lab, "one");
    let held = Mutex::new(Some(held(&lab)));
    add(&lab, "two");
    assert_eq!(unlisted(&lab).len(), 1);
    // Who holds it does so until the first one's snapshot is taken.
    let let_go = move |snapshot| {
        held.lock().unwrap().take();
        Ok(snapshot)
    };
    *lab.fake.of_snapshots.lock().unwrap() = Some(Box::new(let_go));
    lab.open().capture().unwrap();
    for name in ["one", "two"] {
        assert!(last_of(&lab, name).record.exact().is_some(), "{name}");
    }
}

#[test]
fn one_that_cannot_be_listed_keeps_back_its_sessions_alone() {
    let lab = lab();
    let held = held(&lab);
    for name in ["broken", "broken", "sound"] {
        add(&lab, name);
    }
    drop(held);
    let first = unlisted(&lab).remove(0);
    let aside = lab.folder().join("aside");
    fs::rename(&first, &aside).unwrap();
    fs::create_dir(&first).unwrap();
    lab.open().capture().unwrap_err();
    assert!(last_of(&lab, "sound").record.exact().is_some());
    assert_eq!(unlisted(&lab).len(), 2, "in their order");
    let workspace = lab.open();
    workspace.moments(None).unwrap();
    assert_eq!(kinds(&workspace.engine().take_notices()), [NoticeKind::Other]);
    fs::remove_dir(&first).unwrap();
    fs::rename(&aside, &first).unwrap();
    lab.open().capture().unwrap();
    let all = lab.open().moments(Some(&session("broken"))).unwrap();
    assert!(all.len() == 2 && all.iter().all(|moment| moment.record.exact().is_some()), "{all:?}");
}

#[test]
fn those_that_were_left_keep_their_order_though_the_clock_is_set_meanwhile() {
    let lab = lab();
    let held = held(&lab);
    let add = |step| {
        lab.wait(step);
        lab.open().add_moment(&session("one"), NewMoment::new(MomentKind::Stop)).unwrap();
        unlisted(&lab).pop().unwrap()
    };
    let left = [0, -86_400, 3_600, 86_400, -1].map(add);
    assert_eq!(unlisted(&lab), left);
    drop(held);
    let moments = lab.open().moments(None).unwrap();
    let times: Vec<i64> = moments.iter().map(|moment| moment.time.secs - moments[0].time.secs).collect();
    assert_eq!(times, [0, -86_400, -82_800, 3_600, 3_599]);
}
