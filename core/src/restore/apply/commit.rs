//! Putting what was made in place: renames and the like, nothing that reads or writes contents.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use ah_plugin_api::{EntryKind, Error, RelPath, Result, Timestamp};
use rustix::fs::{AtFlags, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use super::{Slotted, Staging, Work, lanes, on_threads};
use crate::crash;
use crate::restore::at::{self, Found, LastDir};
use crate::restore::plan::Step;

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
        self.cx.progress("changing files", 0, Some(total));

        self.take_all(staging, &plan.clear, &clear, &kept);
        self.make_dirs();
        let puts: Vec<Slotted<'_>> = plan.puts.iter().zip(puts).map(|(step, slot)| Slotted { step, slot }).collect();
        // Neighbours share a directory, so each thread remembers the one it was in last.
        let chunks: Vec<&[Slotted<'_>]> = puts.chunks(64).collect();
        let placed = on_threads(lanes(), &chunks, |chunk| {
            let mut dirs = LastDir::new(self.tree);
            for put in *chunk {
                let done = self.put(staging, &mut dirs, put);
                self.settle(&put.step.path, put.slot, &done, &kept);
            }
            Ok(())
        });
        debug_assert!(placed.is_ok(), "each path's trouble is settled where it arises");
        self.take_all(staging, &plan.removals, &removals, &kept);
        self.cx.progress("changing files", total, Some(total));
        kept.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, path: &RelPath, slot: Option<u64>, done: &Result<(), Trouble>, kept: &Mutex<HashSet<u64>>) {
        let reason = match done {
            Ok(()) => return,
            Err(Trouble::Changed) => "it was changed in the last instant, and is left as it is".to_owned(),
            Err(Trouble::Aside) => {
                if let Some(slot) = slot {
                    kept.lock().unwrap_or_else(PoisonError::into_inner).insert(slot);
                }
                "it was changed in the last instant; what was there is put aside in the staging folder".to_owned()
            }
            Err(Trouble::System(error)) => error.to_string(),
        };
        self.fail(path, reason);
    }

    fn make_dirs(&self) {
        let mut dirs = LastDir::new(self.tree);
        for step in &self.plan.dirs {
            let made = step_point("restore-mkdir").and_then(|()| dirs.parent(&step.path)).and_then(|(parent, name)| {
                // Closed to others until its mode is set at the end.
                match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
                    Err(Errno::EXIST) if at::stat(parent, name)?.is_some_and(|found| found.kind == EntryKind::Dir) => {
                        Ok(())
                    }
                    Err(error) => Err(error),
                    Ok(()) => give_to_parents_owner(parent, name),
                }
            });
            if let Err(error) = made {
                self.fail(&step.path, error.to_string());
            }
        }
    }

    fn put(&self, staging: &Staging, dirs: &mut LastDir<'_>, put: &Slotted<'_>) -> Result<(), Trouble> {
        let slot = put.slot.ok_or(Errno::INVAL)?;
        let (lane, name) = staging.slot(slot);
        let made = (lane, name.as_bytes());
        step_point("restore-put")?;
        // Now, not when it was made: a build that ended meanwhile must not look newer than its source.
        let mtime = put.step.after.as_ref().filter(|_| self.exact_times).map(|after| after.mtime);
        rustix::fs::utimensat(lane, made.1, &times(mtime), AtFlags::SYMLINK_NOFOLLOW)?;
        let (dir, name) = dirs.parent(&put.step.path)?;
        let place = (dir, name);
        let Some(found) = put.step.found else {
            return at::rename_new(made, place).map_err(|error| match error {
                Errno::EXIST => Trouble::Changed,
                error => error.into(),
            });
        };
        match at::exchange(made, place) {
            Ok(true) => check_or_put_back(made, place, &found),
            Ok(false) => {
                // A plain rename is what this filesystem has: a last look, then it is done.
                if at::stat(dir, name)?.is_none_or(|now| !now.same_file(&found)) {
                    return Err(Trouble::Changed);
                }
                Ok(rustix::fs::renameat(lane, made.1, dir, name)?)
            }
            Err(Errno::NOENT) => at::rename_new(made, place).map_err(|error| match error {
                Errno::EXIST => Trouble::Changed,
                error => error.into(),
            }),
            Err(error) => Err(error.into()),
        }
    }

    fn take_all(&self, staging: &Staging, steps: &[Step], slots: &[Option<u64>], kept: &Mutex<HashSet<u64>>) {
        let mut dirs = LastDir::new(self.tree);
        for (step, &slot) in steps.iter().zip(slots) {
            let done = take(staging, &mut dirs, step, slot);
            self.settle(&step.path, slot, &done, kept);
        }
    }
}

/// Takes away what is at a path: a file goes to its slot, to be looked at; a directory must be empty.
fn take(staging: &Staging, dirs: &mut LastDir<'_>, step: &Step, slot: Option<u64>) -> Result<(), Trouble> {
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
    let (lane, aside) = staging.slot(slot);
    let aside = (lane, aside.as_bytes());
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
    let Some(old) = look(slot)? else { return Err(Errno::NOENT.into()) };
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

fn give_to_parents_owner(parent: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    use rustix::fs::{Gid, Uid};
    if rustix::process::geteuid().is_root()
        && let Some(above) = at::stat(parent, b"")?
        && (above.uid, above.gid) != (0, 0)
    {
        let (uid, gid) = (Uid::from_raw(above.uid), Gid::from_raw(above.gid));
        // Where owners are not kept there is nothing to give.
        let _ = rustix::fs::chownat(parent, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
    }
    Ok(())
}

fn times(mtime: Option<Timestamp>) -> Timestamps {
    match mtime {
        Some(mtime) => at::times(mtime),
        None => Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        },
    }
}

/// A point at which a test may kill the process or make the step fail.
fn step_point(name: &str) -> Result<(), Errno> {
    crash::point(name).map_err(|e| Error::from_io(name, &e).errno.map_or(Errno::IO, Errno::from_raw_os_error))
}
