//! Clocks that are set: nothing goes unasked for that.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::lab::Lab;
use crate::prune::{auto, behind, count};

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
