//! Reading back from the safety snapshot what a plan is about to destroy: the last look before anything is changed.
//!
//! A provider keeps equal contents once. If those were damaged since, the safety snapshot is as damaged as the one before, and what
//! lies in the workspace is the only good copy. Cost: one read of each file that will be overwritten or taken away.

use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use ah_plugin_api::{Capability, Context, EntryKind, Error, ErrorKind, Reference, Result};
use rustix::fs::{Mode, OFlags};

use super::LeftAlone;
use super::apply::{lanes, on_threads};
use super::at::io;
use super::plan::{Plan, Step};
use crate::walk::Shelf;

/// What the safety snapshot, on `shelf`, cannot give back of that which `plan` destroys, by path. Nothing if the provider would not notice.
pub(crate) fn read_back(
    shelf: &Shelf<'_>,
    plan: &Plan,
    safety: &Reference,
    cx: &Context<'_>,
) -> Result<Vec<LeftAlone>> {
    let held = |step: &&Step| step.found.is_some() && step.before.as_ref().is_some_and(|it| it.kind != EntryKind::Dir);
    let going = plan.clear.iter().chain(&plan.puts).chain(&plan.removals).filter(held);
    let going: Vec<&Step> = going.collect();
    if going.is_empty() || !shelf.can(Capability::FindsDamage) {
        return Ok(Vec::new());
    }
    let safety = shelf.open(safety, cx)?;
    // Reading checks; nobody looks at the bytes.
    let nowhere = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
    let nowhere = nowhere.map_err(|e| io("cannot open /dev/null", e))?;
    let damaged = Mutex::new(Vec::new());
    on_threads(lanes(), &going, |step| {
        cx.check_cancelled()?;
        match safety.read(&step.path, nowhere.as_fd(), cx) {
            Ok(()) => Ok(()),
            Err(error) if error.kind == ErrorKind::Cancelled => Err(error),
            Err(error) => {
                let (path, reason) = (step.path.clone(), cannot_give_back(&error));
                damaged.lock().unwrap_or_else(PoisonError::into_inner).push(LeftAlone { path, reason });
                Ok(())
            }
        }
    })?;
    let mut damaged = damaged.into_inner().unwrap_or_else(PoisonError::into_inner);
    damaged.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(damaged)
}

/// What is said of a path that the safety snapshot does not give.
pub(super) fn cannot_give_back(error: &Error) -> String {
    format!("the snapshot of the present state cannot give it back ({error})")
}
