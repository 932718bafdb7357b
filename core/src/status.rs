//! The state of a workspace at a glance.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ah_plugin_api::{Capability, Dir, Error, ErrorKind, ProviderName, Result, Timestamp};
use serde::Serialize;

use crate::attend::{Standing, is_dead, standing_at};
use crate::branch::{self, BranchFile, BranchRecord};
use crate::engine::{Access, Engine};
use crate::ids::{BranchId, WorkspaceId};
use crate::moments::{Moment, Trying, told};
use crate::notice::{Notice, NoticeKind};
use crate::providers::RefusedPlugin;
use crate::record::{SnapshotKind, SnapshotRecord};
use crate::registry::{Identity, Index, WorkspaceRecord};
use crate::restore::InterruptedRestore;
use crate::seek::{self, LeaseRecord};
use crate::select::Candidate;
use crate::session::{self, SessionRecord};
use crate::state::State;
use crate::text;
use crate::timeline::{Event, EventBody};
use crate::workspace::Workspace;

/// The state of a workspace.
#[derive(Debug, Clone, Serialize)]
pub struct Status {
    /// Where it is.
    #[serde(with = "text::abs")]
    pub root: PathBuf,
    /// Its id; none: nothing was ever captured here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceId>,
    /// The first twelve digits of its repository's first commit, the same in every clone; none: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_commit: Option<String>,
    /// The branch that it is, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<BranchRecord>,
    /// The provider that captures it; none: no one can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderName>,
    /// The provider by which new branches of the present state grow; none: no one can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch_provider: Option<ProviderName>,
    /// Each provider's verdict, by rank.
    pub candidates: Vec<Candidate>,
    /// Plugins that were not loaded, and why.
    pub refused: Vec<RefusedPlugin>,
    /// Its sessions.
    pub sessions: Vec<SessionRecord>,
    /// How many snapshots there are.
    pub snapshots: u64,
    /// The latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<SnapshotRecord>,
    /// Whether that is of what an agent did about the last prompt: not of a person's shell since, say.
    #[serde(skip)]
    pub of_prompt: bool,
    /// Its branches.
    pub branches: Vec<BranchRecord>,
    /// Its views.
    pub leases: Vec<LeaseRecord>,
    /// A restore that did not come to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<InterruptedRestore>,
    /// The last time that the chosen provider failed, and who took over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degraded: Option<String>,
    /// What the process that took the last automatic snapshot was at when it ended, if it did not come to the end of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
    /// Whether automatic snapshots are paused, as the disk has less room than shall stay free.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Other workspaces whose directories are not where they were.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingWorkspace>,
}

/// A workspace whose directory is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MissingWorkspace {
    /// Its id.
    pub id: WorkspaceId,
    /// Where it was.
    #[serde(with = "text::abs")]
    pub path: PathBuf,
    /// Whether another workspace was moved there since: then only its id leads to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub displaced: bool,
}

impl MissingWorkspace {
    pub(crate) fn of(workspace: &Workspace) -> Self {
        let WorkspaceRecord { id, path, displaced, .. } = workspace.record.clone();
        Self { id, path, displaced }
    }
}

impl Engine {
    /// What can be said of `path`, registered or not: provider and candidates, sessions, last snapshot, notices. Changes nothing
    /// in the workspace and registers nothing.
    ///
    /// # Errors
    /// `NotFound` if the path is not there; `FailedPrecondition` inside `$AH_HOME` or a view.
    pub fn status(&self, path: &Path) -> Result<Status> {
        let workspace = match self.workspace(path, Access::Existing) {
            Ok(workspace) => Some(workspace),
            Err(error) if error.kind == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let root = match &workspace {
            Some(workspace) => workspace.root().to_owned(),
            None => self.find(path)?.0,
        };
        let config = self.config(Some(&root))?;
        let dir = Dir::open(&root).map_err(|error| match (&workspace, error.kind) {
            (Some(_), ErrorKind::NotFound) => {
                error.with_hint("`ah agent fs snapshots` and `ah agent fs branches` list what is kept of it")
            }
            _ => error,
        })?;
        let elsewhere = workspace.as_ref().is_some_and(Workspace::is_elsewhere);
        let candidates = self.verdicts(&config, &dir, elsewhere, |name| {
            let store = workspace.as_ref().map(|workspace| workspace.store_path(name)).filter(|path| path.is_dir());
            store.map_or_else(|| self.scratch_store(), Dir::open)
        })?;
        if let Some(original) = self.home().original() {
            let message = format!(
                "this AH_HOME is a copy of {}: nothing is removed in it that is also that one's",
                original.display()
            );
            self.notify(Notice::new(NoticeKind::Other, message));
        }
        // No other one is asked then, which no verdict says.
        if let Some(name) = config.provider()?.filter(|name| candidates.iter().all(|candidate| candidate.name != *name))
            && let Err(error) = self.provider(&name)
        {
            let message = format!("{}; `ah config list` shows where it is asked for", told(&error));
            let notice = Notice::new(NoticeKind::Config, message);
            self.notify(error.hint.into_iter().fold(notice, Notice::with_hint));
        }
        let chosen = candidates.iter().find(|candidate| candidate.chosen).map(|candidate| candidate.name.clone());
        let grows = candidates.iter().find(|candidate| candidate.branches).map(|candidate| candidate.name.clone());
        let refused = self.providers(Vec::new).refused;
        let mut status = Status {
            root,
            workspace: None,
            first_commit: None,
            branch: None,
            provider: chosen,
            branch_provider: grows,
            candidates,
            refused,
            sessions: Vec::new(),
            snapshots: 0,
            latest: None,
            of_prompt: false,
            branches: Vec::new(),
            leases: Vec::new(),
            interrupted: None,
            degraded: None,
            stopped: None,
            paused: false,
            missing: self
                .missing()?
                .into_iter()
                .map(|record| (record.path.clone(), record))
                .map(|(path, record)| self.handle(record, path))
                .filter(Workspace::holds_something)
                .map(|workspace| MissingWorkspace::of(&workspace))
                .collect(),
        };
        if let Some(workspace) = workspace {
            status.add(&workspace, &dir)?;
        } else {
            self.tell_of_unkept(&status.root, None);
        }
        config.of_what_is_kept().into_iter().for_each(|notice| self.notify(notice));
        self.tell_of_own_state(&status);
        self.tell_of_full_disk();
        self.tell_of_unreadable()?;
        Ok(status)
    }

    /// Of records that cannot be read: until then nothing goes that they may need, which is better heard before the disk is full.
    fn tell_of_unreadable(&self) -> Result<()> {
        self.tell_unreadable([branch::read_all(self.home())?.1, seek::read_all(self.home())?.1].concat());
        Ok(())
    }

    /// The same of these.
    pub(crate) fn tell_unreadable(&self, errors: Vec<Error>) {
        for error in errors {
            let message = format!("{}; nothing is removed that it may need", error.message);
            let notice = Notice::new(NoticeKind::Other, message);
            self.notify(error.hint.into_iter().fold(notice, Notice::with_hint));
        }
    }
}

impl Engine {
    /// The registered workspaces whose directories are not there. Branches that are only not mounted are not among them.
    pub(crate) fn missing(&self) -> Result<Vec<WorkspaceRecord>> {
        let records = Index::load(self.home())?.0.workspaces.into_iter();
        // Nor are those of which nothing is heard, and those that came along with an `$AH_HOME` that was moved.
        let branches = branch::all(self.home())?;
        let waits = |record: &WorkspaceRecord| {
            let is_elsewhere =
                |file: &BranchFile| file.standing() != Standing::There || file.record.path != record.path;
            let of_it = |id: &BranchId| branches.iter().find(|file| file.record.id == *id);
            record.branch.as_ref().and_then(of_it).is_some_and(is_elsewhere)
        };
        // Nothing is to be asked of one that does not answer.
        let is_mounted = |record: &WorkspaceRecord| {
            record.mounted_by.is_some() && (standing_at(&record.path) == Standing::Silent || is_dead(&record.path))
        };
        let is_missing = |record: &WorkspaceRecord| !is_mounted(record) && Identity::of_path(&record.path).is_none();
        Ok(records.filter(|record| record.displaced || !waits(record) && is_missing(record)).collect())
    }
}

impl Engine {
    /// Where hardly anything can be written to `$AH_HOME`: what hooks could not keep is perhaps told nowhere.
    fn tell_of_full_disk(&self) {
        if let Some(error) = self.home().full() {
            let home = text::shell(self.home().path().as_os_str());
            let message = format!("{}: snapshots and agents' moments are kept in part at best", told(&error));
            self.notify(Notice::new(NoticeKind::Other, message).with_hint(format!(
                "free some space there (`df -h {home}`, `df -i {home}`); `ah agent fs prune` and `ah agent fs gc` work on a full disk"
            )));
        }
    }

    /// Where `$AH_HOME` lies in a workspace whose provider captures everything: then it is captured with it, again and again.
    fn tell_of_own_state(&self, status: &Status) {
        let captures_all = |name: &ProviderName| {
            let provider = self.provider(name);
            provider.is_ok_and(|it| !it.describe().capabilities.contains(&Capability::AppliesPolicy))
        };
        let home = self.home().path();
        if home.starts_with(&status.root) && status.provider.as_ref().is_some_and(captures_all) {
            let message =
                format!("the state of ah is in the workspace, and in each of its snapshots: {}", home.display());
            let hint = "set AH_HOME to a folder outside of it, or make it a subvolume or dataset of its own";
            self.notify(Notice::new(NoticeKind::Other, message).with_hint(hint));
        }
    }
}

impl Status {
    fn add(&mut self, workspace: &Workspace, dir: &Dir) -> Result<()> {
        let state = workspace.state()?;
        workspace.tell_of_wreck(&state, dir);
        workspace.engine.tell_of_unkept(&workspace.root, Some(&state));
        self.workspace = Some(workspace.id().clone());
        self.first_commit.clone_from(&workspace.record.first_commit);
        self.branch = branch::of_workspace(workspace.engine.home(), workspace.record.branch.as_ref())?;
        self.sessions = session::list(&workspace.folder())?;
        tell_of_elsewhere(workspace, &state, &self.sessions);
        self.snapshots = state.snapshots.len() as u64;
        self.latest = state.snapshots.iter().rev().find(|snapshot| snapshot.counts()).cloned();
        let by_itself = self.latest.as_ref().filter(|latest| latest.kind == SnapshotKind::Auto);
        self.of_prompt =
            by_itself.is_some_and(|latest| workspace.with_resolver(&state, |resolver| resolver.is_of_prompt(latest)));
        self.branches = workspace.branches()?;
        self.leases = workspace.leases()?;
        self.interrupted = workspace.interrupted()?;
        self.degraded = degraded(&state.events);
        self.stopped = Trying::stopped(workspace).map(|trying| trying.told());
        self.paused = workspace.is_paused();
        Ok(())
    }
}

/// Of agents that have not ended and are at work elsewhere than in the workspace, by what they did last.
fn tell_of_elsewhere(workspace: &Workspace, state: &State, sessions: &[SessionRecord]) {
    for session in sessions.iter().filter(|session| session.ended.is_none()) {
        let is_its = |moment: &&Moment| moment.session == session.name && moment.record.is_an_agents();
        let mut calls = state.moments.iter().rev().filter(is_its).filter(|moment| !moment.record.meanwhile);
        if let Some(at) = calls.next().and_then(|moment| moment.record.elsewhere.as_ref()) {
            let message = format!(
                "the agent of {} is at work in {}: what it does there is kept only as far as it is among the captured files of this workspace",
                session.name,
                at.display()
            );
            workspace.engine.notify(Notice::new(NoticeKind::Other, message));
        }
    }
}

/// The last failure of a provider, unless it has worked since.
fn degraded(events: &[Event]) -> Option<String> {
    let mut worked = BTreeSet::new();
    for event in events.iter().rev() {
        match &event.body {
            EventBody::Snapshot { snapshot } => drop(worked.insert(&snapshot.provider)),
            EventBody::Degraded { provider, .. } if worked.contains(provider) => return None,
            EventBody::Degraded { provider, reason, next } => {
                let time = text::format_time(Timestamp { nanos: 0, ..event.time });
                return Some(format!("{time}: {provider} failed and {next} took over: {reason}"));
            }
            _ => {}
        }
    }
    None
}
