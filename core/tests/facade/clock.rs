//! Clocks that are set: nothing goes unasked for that, and the last restore is the one that began last.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use ah_core::{RelPath, RestoreOptions, SessionName, UndoOptions};

use crate::lab::Lab;
use crate::prune::{auto, behind, count};
use crate::restores::{reboot, restored};

const DAY: i64 = 86_400;

/// A machine that has run for as long as it lets pass.
struct Machine {
    lab: Lab,
    up: Arc<AtomicI64>,
}

impl Machine {
    fn new() -> Self {
        let (mut lab, up) = (Lab::new(), Arc::new(AtomicI64::new(100)));
        let uptime = Arc::clone(&up);
        lab.settings.clock = lab.settings.clock.clone().with_uptime(move || uptime.load(Ordering::Relaxed));
        Self { lab, up }
    }

    /// So many seconds later, what is due is done behind an automatic snapshot.
    fn works(&self, seconds: i64) {
        self.up.fetch_add(seconds, Ordering::Relaxed);
        auto(&self.lab, seconds);
        behind(&self.lab);
    }

    /// It is started anew: what was written down is of another start.
    fn starts_anew(&self) {
        let file = self.lab.folder().join("pruned");
        let text = std::fs::read_to_string(&file).unwrap();
        let (first, rest) = text.split_once('\n').unwrap();
        let (_, since) = rest.split_once(' ').unwrap();
        std::fs::write(&file, format!("{first}\nthe-start-before {since}")).unwrap();
        self.up.store(10, Ordering::Relaxed);
    }

    fn set_clock(&self, by: i64) {
        self.lab.wait(by);
    }
}

#[test]
fn one_that_is_set_back_prunes_nothing() {
    let lab = Lab::new();
    (0..5).for_each(|_| drop(auto(&lab, 60)));
    lab.wait(-400 * 86_400);
    auto(&lab, 0);
    behind(&lab);
    lab.wait(7_200);
    behind(&lab);
    assert_eq!(count(&lab), 6);
}

#[test]
fn one_that_is_put_right_prunes_nothing() {
    let machine = Machine::new();
    machine.set_clock(-2_000 * DAY);
    (0..5).for_each(|_| machine.works(60));
    machine.set_clock(2_000 * DAY);
    for (seconds, left) in [(60, 6), (3_700, 7), (12 * 3_600, 8)] {
        machine.works(seconds);
        assert_eq!(count(&machine.lab), left);
    }
    // They are a day old now: one an hour stays, by the time that was shown then.
    machine.works(13 * 3_600);
    assert_eq!(count(&machine.lab), 5);
}

#[test]
fn one_that_is_put_right_soon_after_a_start_prunes_nothing() {
    let machine = Machine::new();
    (0..2).for_each(|_| machine.works(60));
    machine.starts_anew();
    (0..4).for_each(|_| machine.works(5));
    machine.set_clock(3 * DAY);
    machine.works(5);
    // Seconds ago by the machine, and days by the clock.
    assert_eq!(count(&machine.lab), 7);
}

#[test]
fn one_that_is_ahead_for_a_while_prunes_nothing() {
    let machine = Machine::new();
    (0..5).for_each(|_| machine.works(60));
    machine.set_clock(400 * DAY);
    machine.works(60);
    assert_eq!(count(&machine.lab), 6);
    machine.set_clock(-400 * DAY);
    machine.works(60);
    assert_eq!(count(&machine.lab), 7);
    machine.works(26 * 3_600);
    assert!(count(&machine.lab) < 7, "a day later they are old");
}

#[test]
fn one_that_is_put_ahead_removes_no_recording() {
    let mut machine = Machine::new();
    machine.lab.settings.environment.insert("prune.recordings".into(), "keep-within=14d".into());
    machine.works(60);
    for _ in 0..3 {
        let (_, mut file) = machine.lab.open().begin_recording().unwrap();
        std::io::Write::write_all(&mut file, b"[0.1, \"o\", \"x\"]\n").unwrap();
        let now = u64::try_from(machine.lab.settings.clock.now().secs).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(now)).unwrap();
    }
    let left = || machine.lab.open().recordings(&SessionName::main()).unwrap().len();
    machine.works(3_700);
    machine.set_clock(400 * DAY);
    machine.works(3_700);
    assert_eq!(left(), 3);
    // Two weeks later they are old; the newest stays whatever its age.
    machine.works(20 * DAY);
    assert_eq!(left(), 1);
}

#[test]
fn of_two_interrupted_restores_the_later_one_comes_first_whatever_the_clock_said() {
    let lab = Lab::new();
    lab.write("b", "b one");
    reboot(&restored(&lab));
    lab.write("b", "b edited");
    lab.wait(-3600);
    let named = RestoreOptions { paths: vec![RelPath::new("b").unwrap()], ..RestoreOptions::default() };
    let later = lab.open().restore("@{1}", &named).unwrap();
    let restore = later.restore.unwrap();
    reboot(&lab.folder().join(format!("restoring/{restore}.json")));
    let interrupted = lab.open().interrupted().unwrap().unwrap();
    assert_eq!((interrupted.restore, interrupted.back.as_str()), (restore, "ah agent fs undo"));
    let undone = lab.open().undo(&UndoOptions::default()).unwrap();
    assert_eq!(undone.target.id, later.safety.unwrap().id);
    assert_eq!(std::fs::read_to_string(lab.path().join("b")).unwrap(), "b edited");
}
