//! What the worker is trying: a note in the workspace's folder, beside `pending/`, from just before it calls a provider until that has answered.
//!
//! A library that crashes, or ends the process, takes the worker along, which nobody waits for and nobody hears of. The note is what is left
//! then: the next worker writes the reason down for the moments that it was tried for, and gives up those that it was tried for [`TRIES`] times;
//! until a try comes to its end, `status` and every command say so. Others that wait are tried as often, each.
//!
//! Not here: what is said of a library that ends the process of a person's command by `exit` (`ah-host`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use ah_plugin_api::{Durability, ProviderName, Result, SnapshotId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::fsio;
use crate::lock::{Holder, Lock};
use crate::moments::pending::{self, Pending, Waiting};
use crate::notice::{Notice, NoticeKind};
use crate::text;
use crate::workspace::Workspace;

/// So often a moment's snapshot is tried by workers that do not live to see its end. More than once, since one may be killed by somebody.
const TRIES: u32 = 3;

/// How often moments were tried.
pub(super) type Tries = BTreeMap<SnapshotId, u32>;

/// What is tried.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Trying {
    /// Who is asked.
    provider: ProviderName,
    /// Its library; none for one of the helper's.
    #[serde(default, with = "text::abs_option", skip_serializing_if = "Option::is_none")]
    library: Option<PathBuf>,
    /// For what.
    operation: String,
    /// Since when.
    #[serde(with = "text::time")]
    since: Timestamp,
    /// By whom.
    holder: Holder,
    /// The moments that it is for.
    moments: Vec<SnapshotId>,
    /// How often each that waits was tried and not brought to an end, this time included.
    tries: Tries,
}

impl Trying {
    fn read(workspace: &Workspace) -> Option<Self> {
        let bytes = fsio::read(&path(workspace)).ok().flatten()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// What was tried by a process that is gone; none as well if that cannot be told.
    pub(crate) fn stopped(workspace: &Workspace) -> Option<Self> {
        Self::read(workspace).filter(|trying| !trying.holder.alive())
    }

    /// What was left by a worker before this one, which holds the lock of all workers.
    fn left(workspace: &Workspace, _workers: &Lock) -> Option<Self> {
        Self::read(workspace).filter(|trying| trying.holder != Holder::me())
    }

    fn tries(&self, moment: &SnapshotId) -> u32 {
        self.tries.get(moment).copied().unwrap_or(0)
    }

    /// Whose call was the end of the process.
    fn call(&self) -> String {
        let library = self.library.as_ref().map_or_else(String::new, |path| format!(" ({})", path.display()));
        format!("the operation {} of the provider {}{library}", self.operation, self.provider)
    }

    /// For a person, with the time.
    pub(crate) fn told(&self) -> String {
        let since = text::format_time(Timestamp { nanos: 0, ..self.since });
        format!("{since}: the process that took an automatic snapshot ended in {}", self.call())
    }

    /// As the reason that moments have no snapshot.
    fn reason(&self, tries: u32) -> String {
        let often = if tries > 1 { format!(", {tries} times by now") } else { String::new() };
        format!("the process that took its snapshot ended in {}{often}", self.call())
    }
}

fn path(workspace: &Workspace) -> PathBuf {
    workspace.folder().join("trying.json")
}

/// One try to take a snapshot for moments.
pub(crate) struct Attempt<'a> {
    workspace: &'a Workspace,
    moments: Vec<SnapshotId>,
    tries: Tries,
}

impl<'a> Attempt<'a> {
    /// `before`: how often each was tried by workers that are gone.
    pub(super) fn of(workspace: &'a Workspace, moments: &[(Waiting, Pending)], before: &Tries) -> Result<Self> {
        let so_far = |waiting: Waiting| Some((waiting.moment.clone(), *before.get(&waiting.moment)?));
        let mut tries: Tries = pending::all(workspace)?.into_iter().filter_map(so_far).collect();
        let moments: Vec<_> = moments.iter().map(|(waiting, _)| waiting.moment.clone()).collect();
        for moment in &moments {
            *tries.entry(moment.clone()).or_default() += 1;
        }
        Ok(Self { workspace, moments, tries })
    }

    /// Notes that a provider is called, until what is returned is dropped. Without room for the note it is called all the same.
    pub(crate) fn calls(&self, provider: &ProviderName, operation: &str) -> Noted<'a> {
        let trying = Trying {
            provider: provider.clone(),
            library: self.workspace.engine.library_of(provider),
            operation: operation.to_owned(),
            since: self.workspace.engine.settings().clock.now(),
            holder: Holder::me(),
            moments: self.moments.clone(),
            tries: self.tries.clone(),
        };
        let bytes = serde_json::to_vec(&trying).unwrap_or_default();
        let _ = fsio::replace(&path(self.workspace), &bytes, Durability::Instant);
        Noted { workspace: self.workspace }
    }
}

/// A provider is called, and that is noted.
pub(crate) struct Noted<'a> {
    workspace: &'a Workspace,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let _ = fsio::remove_file(&path(self.workspace));
    }
}

impl Workspace {
    /// Says of moments that a worker did not live to take the snapshot of why they have none so far; gives how often those that wait were tried. Those
    /// that were tried often enough wait no longer.
    pub(super) fn settle_stopped(&self, workers: &Lock) -> Result<Tries> {
        let Some(trying) = Trying::left(self, workers) else { return Ok(Tries::default()) };
        for waiting in pending::all(self)?.into_iter().filter(|waiting| trying.moments.contains(&waiting.moment)) {
            let Some(left) = pending::read(self, &waiting)? else { continue };
            let (session, tries) = (waiting.session.clone(), trying.tries(&waiting.moment));
            let moment = [(waiting, left)];
            self.give_up(&session, &moment, &trying.reason(tries))?;
            if tries >= TRIES {
                self.settled(&session, &moment)?;
            }
        }
        Ok(trying.tries)
    }

    /// Tells that automatic snapshots are not brought to an end, until one is.
    pub(crate) fn tell_of_stopped(&self) {
        if let Some(trying) = Trying::stopped(self) {
            let notice = Notice::new(NoticeKind::CaptureStopped, trying.told());
            let again = pending::all(self).is_ok_and(|waiting| !waiting.is_empty());
            let again = if again { "`ah agent fs gc` tries it again; " } else { "" };
            let other = "`ah agent fs status` lists the providers, `ah config set provider NAME` has another one asked";
            self.engine.notify(notice.with_hint(format!("{again}{other}")));
        }
    }

    /// A provider has taken a snapshot of this workspace for a person: what is noted of it from before is over.
    pub(crate) fn forget_stopped(&self, provider: &ProviderName) {
        let is_its = |trying: &Trying| trying.provider == *provider;
        if Trying::stopped(self).as_ref().is_some_and(is_its)
            // A worker that is at it now has a note of its own.
            && let Ok(Some(workers)) = Lock::try_take(&self.capture_lock(), true)
            && Trying::left(self, &workers).as_ref().is_some_and(is_its)
        {
            let _ = fsio::remove_file(&path(self));
        }
    }
}
