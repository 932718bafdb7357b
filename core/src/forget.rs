//! Removing all that is kept of a workspace, so that it is none any more: its directory, and those below it, are like others from then on.
//!
//! Killed anywhere, it leaves a workspace: first goes what is to be written off, which its provider may refuse; then the timeline says that the snapshots are
//! removed, then the providers remove them, and only when nothing of it is held outside of its folder that goes, by a rename. What is left then lies in the trash, which `gc` empties. Until then `gc` goes on with what was begun,
//! and so does a second try.

use std::path::{Path, PathBuf};

use ah_plugin_api::{DestroyRequest, Error, ErrorKind, ListRequest, NOT_MOUNTED, ProviderName, Reference, Result};
use serde::Serialize;

use crate::branch;
use crate::fsio;
use crate::gc::GcReport;
use crate::ids::{WorkspaceId, letters};
use crate::record::SnapshotRecord;
use crate::registry::{Index, WorkspaceRecord};
use crate::restore::InterruptedRestore;
use crate::seek::{self, LeaseFile};
use crate::session;
use crate::text;
use crate::timeline::{EventBody, WorkspaceChange};
use crate::versioned;
use crate::workspace::Workspace;

/// What is kept of a workspace beside its snapshots.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Its id.
    pub id: WorkspaceId,
    /// How many moments its timelines have.
    pub moments: u64,
    /// How many sessions there are.
    pub sessions: u64,
    /// How many recordings.
    pub recordings: u64,
}

/// What goes with a workspace.
#[derive(Debug, Clone)]
pub struct Forgotten {
    /// Its snapshots, oldest first, also those that are pinned.
    pub snapshots: Vec<SnapshotRecord>,
    /// What else is kept of it.
    pub kept: Kept,
    /// What was written in it while a provider mounted it, where the rest is gone.
    pub written_off: Option<WrittenOff>,
}

/// What a provider keeps of a workspace that it was to mount, and of which what lay behind is not where it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenOff {
    /// The provider.
    pub provider: ProviderName,
    /// Where that was.
    pub behind: PathBuf,
}

/// The same, as it is removed.
struct Lost {
    what: WrittenOff,
    reference: Reference,
}

impl Workspace {
    /// What [`Workspace::forget`] would remove.
    ///
    /// # Errors
    /// As there; those of the providers only where one keeps what is to be written off.
    pub fn to_forget(&self) -> Result<Forgotten> {
        self.refuse_in_use(Self::interrupted)?;
        self.all_that_is_kept(self.lost()?.as_ref())
    }

    /// Removes all that is kept of the workspace: its snapshots, pinned ones too, and what is written down of it. It is no workspace from then on. Its files are
    /// left alone. Of one that was converted, and of which what lay behind is gone, what the provider keeps goes, too, once another directory is in its place.
    ///
    /// # Errors
    /// `FailedPrecondition` inside an agent's own session, in a copy of an `$AH_HOME` that is there, of a branch, while branches that grew from it or views of it are there, of what a provider
    /// mounts in its place, or if a restore was interrupted; `Busy` while one of its sessions is recorded; `DataLoss` if it cannot be read what needs it; the
    /// provider's.
    pub fn forget(&self) -> Result<Forgotten> {
        let engine = &self.engine;
        engine.refuse_to_agents("`rm`")?;
        engine.home().may_remove("`rm`")?;
        self.forget_what_the_killed_saw();
        let _ = self.settle_restores();
        // From here on nothing is taken, shown, restored, recorded or branched.
        let _gc = self.lock("gc")?;
        let _capture = engine.home().with_reserve(|| self.lock("capture"))?;
        let (_restore, _stays) = (self.lock("restore")?, self.lock("stays")?);
        self.give_back_unheld()?;
        let _numbers = engine.home().with_reserve(|| self.lock("recordings"))?;
        let _making = self.lock("orphans")?;
        self.refuse_in_use(Self::interrupted_by_now)?;
        let lost = self.lost()?;
        branch::refuse_held_by_store_but(self, lost.as_ref().map(|lost| &lost.reference))?;
        let stores = self.stores()?;
        // Who cannot be asked may hold what nobody would know of any more.
        for name in stores.iter().filter(|name| !self.is_empty_store(name)) {
            self.serve(name)?;
        }
        let forgotten = self.all_that_is_kept(lost.as_ref())?;
        // Its provider may know better, and refuse: then all is there still.
        if let Some(Lost { what, reference }) = lost {
            let served = self.serve(&what.provider)?;
            served.provider.destroy(&served.place(), &DestroyRequest::Clone(reference), &self.context())?;
        }
        if !forgotten.snapshots.is_empty() {
            self.take_off(&forgotten.snapshots, "rm")?;
            self.destroy_each(&forgotten.snapshots)?;
        }
        for name in &stores {
            self.empty_store(name)?;
        }
        self.refuse_left_behind().map_err(|error| {
            error.context(format!("the snapshots of {} are removed, and it is a workspace still", self.root.display()))
        })?;
        self.take_folder()?;
        Ok(forgotten)
    }

    /// What is to be written off of the workspace, if anything is.
    ///
    /// # Errors
    /// `FailedPrecondition` where nothing is at its path either: a folder above may have been moved, or its disk may not be there.
    fn lost(&self) -> Result<Option<Lost>> {
        let now = self.record_now()?;
        let provider = now.mounted_by.clone().filter(|_| now.has_lost_behind() && !now.is_mounted());
        let (Some(provider), Some(behind)) = (provider, now.behind()) else { return Ok(None) };
        // Were there more, it would not be known which of them it is.
        let [reference] = &branch::nameless_in_store(self, &provider)?[..] else { return Ok(None) };
        if now.path.symlink_metadata().is_ok_and(|there| there.is_dir()) {
            return Ok(Some(Lost { what: WrittenOff { provider, behind }, reference: reference.clone() }));
        }
        let (root, behind) = (now.path.display(), behind.display());
        let message =
            format!("neither {root} is there, nor {behind}, which is a part of it: {provider} keeps the rest");
        Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
            "if they are elsewhere, or their disk is not attached, bring them back; if they are gone for good, `mkdir -p {at}`, then `ah -C {at} agent fs rm --all`",
            at = text::shell(now.path.as_os_str())
        )))
    }

    /// As it is written down now: another command may have changed that since this one was opened.
    fn record_now(&self) -> Result<WorkspaceRecord> {
        Ok(self.engine.workspace_by_id(&self.id)?.map_or_else(|| self.record.clone(), |now| now.record))
    }

    fn all_that_is_kept(&self, lost: Option<&Lost>) -> Result<Forgotten> {
        let state = self.state()?;
        state.whole()?;
        let sessions = session::names(&self.folder())?;
        let mut recordings = 0;
        for session in &sessions {
            recordings += self.recordings(session)?.len();
        }
        let (moments, sessions) = (state.moments.len() as u64, sessions.len() as u64);
        let kept = Kept { id: self.id.clone(), moments, sessions, recordings: recordings as u64 };
        let written_off = lost.map(|lost| lost.what.clone());
        Ok(Forgotten { snapshots: state.snapshots, kept, written_off })
    }

    /// Refuses while something is there that would lose what it needs. `interrupted`: finds an interrupted restore.
    fn refuse_in_use(&self, interrupted: impl Fn(&Self) -> Result<Option<InterruptedRestore>>) -> Result<()> {
        let refused =
            |message: String, hint: String| Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint));
        let (home, root) = (self.engine.home(), self.root.display());
        let now = self.record_now()?;
        if now.displaced {
            return refused(
                format!("another workspace came to {root}, and this one may be elsewhere by now, with its files"),
                format!(
                    "in the directory where it is now, or in a new one: `ah -C . agent fs adopt {} && ah -C . agent fs rm --all`",
                    self.id
                ),
            );
        }
        if let Some(branch) = branch::of_workspace(home, now.branch.as_ref())? {
            let name = text::shell(branch.name.as_ref());
            let origin = text::shell(branch.origin_now(home).as_os_str());
            let there =
                if home.workspace(branch.origin.as_str()).is_dir() { format!("-C {origin} ") } else { String::new() };
            return refused(
                format!("{root} is the branch {}, which goes as a whole", branch.name),
                format!("`cd / && ah {there}agent fs rm {name}`"),
            );
        }
        let branches = self.branches_for_certain()?;
        if !branches.is_empty() {
            let named: Vec<&str> = branches.iter().map(|branch| branch.name.as_str()).collect();
            let typed: Vec<String> = branches.iter().map(|branch| self.typed(branch)).collect();
            return refused(
                format!("branches grew from {root}: {}", named.join(", ")),
                format!("bring home what they hold, then take them away: `ah agent fs rm {}`", typed.join(" ")),
            );
        }
        if let (true, Some(provider)) = (now.is_mounted(), &now.mounted_by) {
            let typed = text::shell(self.root.as_os_str());
            let back =
                format!("make it a plain directory again first: `cd / && ah -C {typed} agent fs convert --back`");
            return refused(
                format!("{root} is mounted by {provider}, in whose store its files are"),
                if now.has_lost_behind() { without_behind(&self.root) } else { back },
            );
        }
        let leases = self.own_leases()?.into_iter().filter(|lease| !lease.is_stale());
        let views: Vec<_> = leases.map(|lease| lease.shown.map(|shown| shown.path)).collect();
        if views.contains(&None) {
            return Err(Error::new(ErrorKind::Busy, format!("a view of a snapshot of {root} is being made")));
        }
        if let Some(view) = views.iter().flatten().next() {
            let hint = match views.len() {
                1 => format!("`ah agent fs release {}`", text::shell(view.as_os_str())),
                many => format!("`ah agent fs release --all` gives back all {many} of them"),
            };
            return refused(format!("the view {} shows a snapshot of {root}", view.display()), hint);
        }
        for session in session::names(&self.folder())? {
            if let Some(live) = self.recordings(&session)?.iter().find(|recording| recording.is_live()) {
                let message = format!("recording {} of the session {session} of {root} is being made", live.number);
                let hint = "wait for the command that is recorded to end, or end it, then repeat";
                return Err(Error::new(ErrorKind::Busy, message).with_hint(hint));
            }
        }
        // What is half restored needs what it came from; where the directory is gone, nothing is.
        let is_gone = || self.open_dir().is_err_and(|error| error.kind == ErrorKind::NotFound);
        if let Some(interrupted) = interrupted(self)?.filter(|_| !is_gone()) {
            let (finish, back) = (interrupted.finish, interrupted.back);
            return refused(
                format!("the restore {} in {root} was interrupted", interrupted.restore),
                format!("finish it first with `{finish}`, or go back with `{back}`"),
            );
        }
        Ok(())
    }

    fn own_leases(&self) -> Result<Vec<LeaseFile>> {
        let leases = versioned::whole(seek::read_all(self.engine.home())?)?;
        Ok(leases.into_iter().filter(|lease| lease.workspace == self.id).collect())
    }

    /// Gives back views that nobody holds any more.
    fn give_back_unheld(&self) -> Result<()> {
        let mut report = GcReport::default();
        self.give_back_stale_leases(&mut report)?;
        if self.own_leases()?.iter().any(LeaseFile::is_stale) {
            let why = report.failures.join("; ");
            let message = format!("a view that nobody holds any more could not be given back: {why}");
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("ah agent fs gc"));
        }
        Ok(())
    }

    fn is_empty_store(&self, name: &ProviderName) -> bool {
        fsio::names(&self.store_path(name)).is_ok_and(|names| names.is_empty())
    }

    /// Has a provider remove what no timeline lists. What lies in its store goes with that; what does not has to go now, as nobody finds it later.
    fn empty_store(&self, name: &ProviderName) -> Result<()> {
        let served = match self.serve(name) {
            Err(_) if self.is_empty_store(name) => return Ok(()),
            served => served?,
        };
        let empty = || {
            let held = served.provider.list(&served.place(), &ListRequest::default(), &self.context())?;
            for snapshot in held.into_iter().filter(|snapshot| self.is_mine(snapshot)) {
                let request = DestroyRequest::Snapshot(snapshot.reference);
                served.provider.destroy(&served.place(), &request, &self.context())?;
            }
            // It knows by its store alone of what has to stay for now.
            match self.reclaim(name, false, &mut GcReport::default())?.into_iter().next() {
                None => Ok(()),
                Some(what) => {
                    Err(Error::new(ErrorKind::FailedPrecondition, what).with_hint("see to that, then repeat"))
                }
            }
        };
        match empty() {
            Err(error) if error.kind == ErrorKind::Cancelled || !served.keeps_in_store() => {
                let what = format!("{name} could not remove what it keeps of {}", self.root.display());
                Err(error.context(what))
            }
            _ => Ok(()),
        }
    }

    /// Refuses while the directory that a provider once read in the workspace's place is still there: it may be all that there is of somebody's changes.
    fn refuse_left_behind(&self) -> Result<()> {
        let converted =
            |body: &EventBody| matches!(body, EventBody::Workspace { change: WorkspaceChange::Converted, .. });
        if !self.state()?.events.iter().any(|event| converted(&event.body)) {
            return Ok(());
        }
        match self.record.place_behind().filter(|behind| seek::is_there(behind)) {
            None => Ok(()),
            Some(behind) => {
                let message = format!("{}, which is left of `convert`, is still there", behind.display());
                Err(Error::new(ErrorKind::FailedPrecondition, message)
                    .with_hint("`ah agent fs gc` takes it away, or says what holds it; or move it away, then repeat"))
            }
        }
    }

    /// Takes away what is written down of the workspace, if it is there still.
    pub(crate) fn take_folder(&self) -> Result<()> {
        let (engine, folder) = (&self.engine, self.folder());
        engine.forget_sessions_of(&self.id);
        let trash = engine.home().join("trash");
        engine.home().with_reserve(|| fsio::make_dir(&trash))?;
        let aside = trash.join(format!("workspace-{}-{}", self.id, letters(&engine.settings().ids)));
        {
            let _registry = engine.lock_registry()?;
            if seek::is_there(&folder) {
                let _timeline = self.lock("timeline")?;
                crate::crash::point("forget.rename")
                    .and_then(|()| std::fs::rename(&folder, &aside))
                    .map_err(|e| fsio::failed("move away", &folder, &e))?;
            }
            Index::refresh(engine.home())?;
        }
        // What cannot be removed now, gc removes.
        let _ = fsio::remove_tree(&aside);
        Ok(())
    }
}

/// How what is mounted at a path comes to be plain files there, as far as it can be read, where `convert --back` would lack what lay behind.
fn without_behind(root: &Path) -> String {
    let named = |end: &str| {
        let mut name = root.as_os_str().to_owned();
        name.push(end);
        name
    };
    let (mut saved, mut number) = (named(".saved"), 1);
    // What is in one that is there is older than what is shown.
    while seek::is_there(Path::new(&saved)) {
        number += 1;
        saved = named(&format!(".saved-{number}"));
    }
    let (there, saved) = (text::shell(root.as_os_str()), text::shell(&saved));
    let stands = text::shell(root.join(NOT_MOUNTED).as_os_str());
    format!(
        "copy out what it shows still: `cd / && mkdir {saved} && cp -aT {there} {saved}`; put that in its place: `cd / && test -d {saved} && umount {there} && chmod u+w {there} && rm {stands} && mv -T {saved} {there}`; then `ah -C {there} agent fs rm --all` says what is left to go"
    )
}
