//! Putting what was made in place: renames and the like, nothing that reads or writes contents.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ah_plugin_api::{Error, RelPath, Result, Timestamp};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use super::staging::made;
use super::{CHANGED, Slotted, Staging, Work, lanes, locked, on_threads};
use crate::crash;
use crate::restore::at::{self, Found, LastDir};
use crate::restore::plan::{Plan, Step};

const SECOND: i128 = 1_000_000_000;

/// What a directory is called while it is made, in the first of the staging folder's lanes. No number: it is no file's.
pub(super) const DIRECTORY: &[u8] = b"directory";

/// Why a path could not be changed.
enum Trouble {
    /// Somebody else changed it in the last instant; it is as they left it.
    Changed,
    /// Likewise, and it could not be put back to its name.
    Aside,
    /// The system said no.
    System(Errno),
}

impl From<Errno> for Trouble {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

impl Work<'_> {
    /// Carries out all steps; gives the slots that hold something that must not be lost.
    pub(super) fn commit(&self, staging: &Staging, slots: &[Option<u64>]) -> HashSet<u64> {
        let plan = self.plan;
        let mut rest = slots;
        let mut slotted = |steps: &'_ [Step]| -> Vec<Option<u64>> {
            let (mine, others) = rest.split_at(steps.len());
            rest = others;
            mine.to_vec()
        };
        let (clear, _, puts, removals) =
            (slotted(&plan.clear), slotted(&plan.dirs), slotted(&plan.puts), slotted(&plan.removals));
        let kept = Mutex::new(HashSet::new());
        let total = (plan.clear.len() + plan.dirs.len() + plan.puts.len() + plan.removals.len()) as u64;
        let changed = AtomicU64::new(0);
        let one_more = || {
            let count = changed.fetch_add(1, Ordering::Relaxed);
            if count.is_multiple_of(256) {
                self.cx.progress("changing files", count, Some(total));
            }
        };

        let twins = twins(plan);
        let unread = std::mem::take(&mut *locked(&self.unread));
        let stay = self.kept(&unread);
        let makes_room = plan.clear.iter().zip(clear).filter(|(step, _)| !self.stays(&stay, &unread, &step.path));
        self.take_all(staging, makes_room, &twins, &kept, &one_more);
        let has_place = |step: &Step| !self.has_no_place(&stay, &unread, &step.path);
        self.make_dirs(staging, plan.dirs.iter().filter(|step| has_place(step)));
        let times = self.times();
        let puts = plan.puts.iter().zip(puts).filter(|(step, _)| has_place(step));
        let puts: Vec<Slotted<'_>> = puts.map(|(step, slot)| Slotted { step, slot }).collect();
        // Neighbours share a directory, so each thread remembers the one it was in last.
        let chunks: Vec<&[Slotted<'_>]> = puts.chunks(64).collect();
        let placed = on_threads(lanes(), &chunks, |chunk| {
            let mut dirs = LastDir::new(self.tree);
            for put in *chunk {
                let done = self.put(staging, &mut dirs, put, &twins, &times);
                self.settle(&put.step.path, put.slot, &done, &kept);
                one_more();
            }
            Ok(())
        });
        debug_assert!(placed.is_ok(), "each path's trouble is settled where it arises");
        let goes = plan.removals.iter().zip(removals).filter(|(step, _)| !self.does_not_go(&unread, &step.path));
        self.take_all(staging, goes, &twins, &kept, &one_more);
        self.cx.progress("changing files", total, Some(total));
        kept.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, path: &RelPath, slot: Option<u64>, done: &Result<(), Trouble>, kept: &Mutex<HashSet<u64>>) {
        match done {
            Ok(()) => {}
            Err(Trouble::Changed) => self.left_undone(path, CHANGED),
            Err(Trouble::Aside) => {
                let slot = slot.inspect(|slot| _ = kept.lock().unwrap_or_else(PoisonError::into_inner).insert(*slot));
                let called = slot.map(|slot| format!(", called {slot}")).unwrap_or_default();
                self.fail(path, format!(
                    "it was changed in the last instant; what was there is put aside in the restore's own folder{called}"
                ));
            }
            Err(Trouble::System(error)) => self.left_undone(path, error.to_string()),
        }
    }

    fn make_dirs<'s>(&self, staging: &Staging, steps: impl Iterator<Item = &'s Step>) {
        let mut dirs = LastDir::new(self.tree);
        for step in steps {
            let made = step_point("restore-mkdir")
                .and_then(|()| dirs.parent(&step.path))
                .and_then(|place| self.make_dir(staging, step, place));
            match made {
                Ok(found) => drop(locked(&self.made).insert(step.path.clone(), found)),
                Err(Errno::EXIST) => {
                    self.left_undone(&step.path, "it was made in the last instant, and is left as it is");
                }
                Err(error) => self.left_undone(&step.path, error.to_string()),
            }
        }
    }

    /// Makes a directory, closed to others until its mode is set at the end, and gives what was made. Its owner is set before it is in its place: once it is there,
    /// nobody looks whose it is.
    fn make_dir(&self, staging: &Staging, step: &Step, place: (BorrowedFd<'_>, &[u8])) -> Result<Found, Errno> {
        let look = |dir: &OwnedFd| at::stat(dir.as_fd(), b"")?.ok_or(Errno::NOENT);
        if self.view.is_none() {
            return made(place.0, place.1).and_then(|dir| look(&dir));
        }
        let aside = (staging.lanes[0].as_fd(), DIRECTORY);
        let (path, shown) = (&step.path, self.shown(&step.path));
        let done = made(aside.0, aside.1).and_then(|dir| {
            let attributes = shown.give_attributes(dir.as_fd());
            let given = self.give(path, &shown, self.owner(step), |uid, gid| rustix::fs::fchown(&dir, uid, gid));
            // What is in it comes back all the same; it stays closed to others.
            if let Err(error) = given {
                self.came_bare(path, format!("its owner could not be set, so only you can look into it now ({error})"));
            } else if let Err(error) = attributes.and(shown.give_lists(dir.as_fd())) {
                self.came_bare(
                    path,
                    format!(
                        "its extended attributes could not be set, so only its owner can look into it now ({error})"
                    ),
                );
            }
            rustix::fs::fchmod(&dir, Mode::RWXU)?;
            at::rename_new(aside, place)?;
            look(&dir)
        });
        if done.is_err() {
            let _ = rustix::fs::unlinkat(aside.0, aside.1, AtFlags::REMOVEDIR);
        }
        done
    }

    /// The modification times that files get: the captured one where that is wanted, and for ignored ones, so that what a build
    /// made never looks newer than what it was made of. The others get the present time, and keep their order among themselves.
    fn times(&self) -> HashMap<&RelPath, Timestamp> {
        let captured = |step: &Step| step.after.as_ref().map(|after| after.mtime).unwrap_or_default();
        let keeps = |step: &Step| self.exact_times || step.after.as_ref().is_some_and(|after| after.ignored);
        // What has the contents already has its own.
        let own = |step: &Step| step.found.filter(|_| !self.exact_times && self.plan.anew.contains(&step.path));
        let is_of_now = |step: &&Step| !keeps(step) && own(step).is_none();
        let mut order: Vec<Timestamp> = self.plan.puts.iter().filter(is_of_now).map(captured).collect();
        order.sort_unstable();
        order.dedup();
        // The clock by which the kernel stamps: what is written right after this must not look older.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        let now = i128::from(now.tv_sec) * SECOND + i128::from(now.tv_nsec);
        let present = |captured: Timestamp| {
            let later = order.len() - order.partition_point(|time| *time <= captured);
            let nanos = now - i128::try_from(later).unwrap_or(0);
            Timestamp {
                secs: i64::try_from(nanos.div_euclid(SECOND)).unwrap_or(0),
                nanos: u32::try_from(nanos.rem_euclid(SECOND)).unwrap_or(0),
            }
        };
        let time = |step: &Step| match own(step) {
            Some(found) => found.mtime,
            None if keeps(step) => captured(step),
            None => present(captured(step)),
        };
        self.plan.puts.iter().map(|step| (&step.path, time(step))).collect()
    }

    fn put(
        &self,
        staging: &Staging,
        dirs: &mut LastDir<'_>,
        put: &Slotted<'_>,
        twins: &Twins,
        times: &HashMap<&RelPath, Timestamp>,
    ) -> Result<(), Trouble> {
        let slot = put.slot.ok_or(Errno::INVAL)?;
        let (lane, name) = staging.slot(slot).ok_or(Errno::INVAL)?;
        let made = (lane, name.as_bytes());
        step_point("restore-put")?;
        let time = times.get(&put.step.path).copied().ok_or(Errno::INVAL)?;
        rustix::fs::utimensat(lane, made.1, &at::times(time), AtFlags::SYMLINK_NOFOLLOW)?;
        let (dir, name) = dirs.parent(&put.step.path)?;
        let place = (dir, name);
        let new = || {
            at::rename_new(made, place).map_err(|error| match error {
                Errno::EXIST => Trouble::Changed,
                error => error.into(),
            })
        };
        let Some(found) = put.step.found else { return new() };
        match at::stat(dir, name)? {
            None => return new(),
            Some(now) if !is_still(&now, &found, twins) => return Err(Trouble::Changed),
            Some(_) => {}
        }
        match at::exchange(made, place) {
            Ok(true) => check_or_put_back(made, place, &found),
            // A plain rename is what this filesystem has.
            Ok(false) => Ok(rustix::fs::renameat(lane, made.1, dir, name)?),
            Err(Errno::NOENT) => new(),
            Err(error) => Err(error.into()),
        }
    }

    fn take_all<'s>(
        &self,
        staging: &Staging,
        steps: impl Iterator<Item = (&'s Step, Option<u64>)>,
        twins: &Twins,
        kept: &Mutex<HashSet<u64>>,
        one_more: &dyn Fn(),
    ) {
        let mut dirs = LastDir::new(self.tree);
        for (step, slot) in steps {
            let done = take(staging, &mut dirs, step, slot, twins);
            self.settle(&step.path, slot, &done, kept);
            one_more();
        }
    }
}

/// Files that this restore itself touches under more than one name, which changes what the second look at them shows.
type Twins = HashSet<((u32, u32), u64)>;

fn twins(plan: &Plan) -> Twins {
    let mut seen = HashSet::new();
    let linked = plan.steps().filter_map(|step| step.found).filter(|found| found.nlink > 1);
    linked.map(|found| (found.dev, found.ino)).filter(|file| !seen.insert(*file)).collect()
}

/// Whether the last look before a change shows what the plan saw. Not the size and time alone: those can be set.
fn is_still(now: &Found, planned: &Found, twins: &Twins) -> bool {
    now.untouched_since(planned) || (twins.contains(&(planned.dev, planned.ino)) && now.same_file(planned))
}

/// Takes away what is at a path: a file goes to its slot, to be looked at; a directory must be empty.
fn take(
    staging: &Staging,
    dirs: &mut LastDir<'_>,
    step: &Step,
    slot: Option<u64>,
    twins: &Twins,
) -> Result<(), Trouble> {
    step_point("restore-remove")?;
    let (dir, name) = match dirs.parent(&step.path) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let Some(slot) = slot else {
        let gone = rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR);
        dirs.forget();
        return match gone {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Err(Trouble::Changed),
            Err(error) => Err(error.into()),
        };
    };
    let (lane, aside) = staging.slot(slot).ok_or(Errno::INVAL)?;
    let aside = (lane, aside.as_bytes());
    if at::stat(dir, name)?.zip(step.found).is_some_and(|(now, found)| !is_still(&now, &found, twins)) {
        return Err(Trouble::Changed);
    }
    match at::rename_new((dir, name), aside) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    }
    // From here on whatever goes wrong must not cost what was taken.
    let taken = at::stat(aside.0, aside.1).map_err(|_| Trouble::Aside)?;
    if step.found.is_some_and(|found| taken.is_some_and(|taken| taken.same_file(&found))) {
        return Ok(());
    }
    match at::rename_new(aside, (dir, name)) {
        Ok(()) => Err(Trouble::Changed),
        Err(_) => Err(Trouble::Aside),
    }
}

/// After an exchange: what came out must be what was looked at before, else it goes back.
fn check_or_put_back(
    slot: (BorrowedFd<'_>, &[u8]),
    place: (BorrowedFd<'_>, &[u8]),
    found: &Found,
) -> Result<(), Trouble> {
    // What cannot be looked at now may be somebody's newer file, which must not be swept away.
    let look = |(dir, name): (BorrowedFd<'_>, &[u8])| at::stat(dir, name).map_err(|_| Trouble::Aside);
    let Some(old) = look(slot)? else { return Err(Trouble::Aside) };
    if old.same_file(found) {
        return Ok(());
    }
    let ours = look(place)?;
    match at::exchange(slot, place) {
        // What comes back out must be the file that was made; if even that was replaced meanwhile, both stay.
        Ok(true) if look(slot)?.zip(ours).is_some_and(|(now, ours)| now.same_file(&ours)) => Err(Trouble::Changed),
        _ => Err(Trouble::Aside),
    }
}

/// A point at which a test may kill the process or make the step fail.
fn step_point(name: &str) -> Result<(), Errno> {
    crash::point(name).map_err(|e| Error::from_io(name, &e).errno.map_or(Errno::IO, Errno::from_raw_os_error))
}
