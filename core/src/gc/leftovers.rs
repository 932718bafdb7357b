//! Leases, views, branches and files that nobody holds any more.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ah_plugin_api::{Error, ErrorKind, FileName, ReclaimRequest, Result};

use crate::branch::{self, BranchFile, BranchState};
use crate::fresh::is_mark;
use crate::fsio;
use crate::gc::GcReport;
use crate::home::Home;
use crate::ids::{BranchId, SessionName};
use crate::lock::{Lock, may_run};
use crate::registry::{self, Index, WorkspaceRecord};
use crate::seek;
use crate::session;
use crate::text;
use crate::walk::{mark_of, of_marked};
use crate::workspace::Workspace;

/// What the names begin with that providers give to what is not finished.
const PROVIDERS_OWN: &str = ".ah-";

impl Workspace {
    /// Gives back the views of processes that have ended, and those that the machine's restart took away; also those of workspaces whose folders somebody
    /// removed by hand, in which no `gc` is run. What such a view shows may be the last that there is of it: as long as it stands it is named.
    ///
    /// Nobody comes to hold one again that nobody holds. So the leases are locked while they are looked through and each time that one is taken off, and not while providers are asked, which may take long.
    pub(crate) fn give_back_stale_leases(&self, report: &mut GcReport) -> Result<()> {
        let home = self.engine.home();
        let mut stale = Vec::new();
        {
            // Whose maker is found dead with the leases locked writes nothing in them any more.
            let _lock = self.engine.lock_leases()?;
            let (leases, unreadable) = seek::read_all(home)?;
            report.tell(&unreadable);
            for lease in leases {
                let is_nobodys = lease.workspace != self.id && is_gone(&home.workspace(lease.workspace.as_str()));
                if lease.workspace != self.id && !is_nobodys {
                    continue;
                }
                let shown = lease.shown.as_ref().map(|shown| shown.path.as_path()).filter(|_| is_nobodys);
                if lease.is_stale() || shown.is_some_and(holds_nothing) {
                    stale.push((lease, is_nobodys));
                } else {
                    report.failures.extend(shown.map(of_no_workspace));
                }
            }
        }
        if stale.is_empty() {
            return Ok(());
        }
        let views = self.lock_views(self.engine.settings().patience_left())?;
        for (lease, is_nobodys) in stale {
            // Another one may have seen to it before it gave `views` up.
            if !lease.is_on_record(home) {
                continue;
            }
            if lease.is_settled() {
                let outcome = self.engine.give_back_stale(&lease, &views);
                let failed = outcome.is_err();
                report.note(&format!("giving back the view {}", lease.id), outcome)?;
                if failed {
                    continue;
                }
            } else {
                // Its view, if the provider made one, has its name; what the provider does not know, is swept.
                if !is_nobodys {
                    let outcome = self.forget_view(&lease);
                    report.note(&format!("taking away the view {}", lease.id), outcome)?;
                }
                let _lock = self.engine.lock_leases()?;
                lease.remove(home)?;
            }
            report.did(format!("gave back the view {}, which nobody held any more", lease.id));
        }
        Ok(())
    }

    fn forget_view(&self, lease: &seek::LeaseFile) -> Result<()> {
        let served = self.serve(&lease.provider)?;
        let mounts = self.mounts_dir()?;
        let request = ReclaimRequest { auto: false, forgotten: vec![FileName::new(lease.id.as_str())?] };
        served.provider.reclaim(&served.place().with_target(&mounts), &request, &self.context()).map(|_| ())
    }

    /// Takes away what a killed restore of this workspace was shown, as nobody may remove what is shown. What cannot be done now, as another one is at it, is `gc`'s, and
    /// other workspaces' providers, which may hang, are not asked, nor waited for.
    pub(crate) fn forget_what_the_killed_saw(&self) {
        let _ = self.forget_dead_views([self], Duration::ZERO, &mut GcReport::default());
    }

    /// Has the providers of some workspaces take away views whose holders were killed before they could be given back. A view does not say
    /// whose it is: they all lie in one folder.
    pub(super) fn forget_dead_views<'a>(
        &self,
        of: impl IntoIterator<Item = &'a Self>,
        patience: Duration,
        report: &mut GcReport,
    ) -> Result<()> {
        if self.dead_views()?.is_empty() {
            return Ok(());
        }
        let _views = self.lock_views(patience)?;
        // Another one may have seen to it.
        let dead = self.dead_views()?;
        if dead.is_empty() {
            return Ok(());
        }
        let forgotten: Vec<FileName> = dead.iter().filter_map(|name| FileName::new(name.as_str()).ok()).collect();
        let mounts = self.mounts_dir()?;
        for workspace in of {
            let failed = report.failures.len();
            for name in workspace.stores()? {
                let request = ReclaimRequest { auto: true, forgotten: forgotten.clone() };
                let outcome = workspace.serve(&name).and_then(|served| {
                    let place = served.place().with_target(&mounts);
                    served.provider.reclaim(&place, &request, &workspace.context())
                });
                report.note(&format!("giving back views of {name}"), outcome.map(drop))?;
            }
            if report.failures.len() == failed {
                for name in &dead {
                    fsio::remove_file(&self.engine.home().join("mounts").join(mark_of(name, workspace.id.as_str())))?;
                }
            }
        }
        let left = self.dead_views()?;
        for name in dead.iter().filter(|name| !left.contains(name)) {
            report.did(format!("removed the view {name}, which nobody held any more"));
        }
        Ok(())
    }

    /// The names of views that nobody holds. Nobody comes to hold one again: they are random, or of processes that have ended. So the leases need not stay locked
    /// until these are gone: providers may take long, and who shows something or gives it back does not wait for them.
    fn dead_views(&self) -> Result<Vec<String>> {
        let _lock = self.engine.lock_leases()?;
        dead_views(self.engine.home())
    }

    /// Held by who takes away views that nobody holds: what one asks a provider to unmount, no other removes.
    fn lock_views(&self, patience: Duration) -> Result<Lock> {
        let take = || Lock::take(&self.engine.views_lock(), true, patience, &*self.engine.settings().observer);
        // Homes of older versions have none.
        self.engine.home().with_reserve(take)
    }

    /// What is left in `mounts/` that no provider knows of.
    fn sweep_views(&self, report: &mut GcReport) -> Result<()> {
        let home = self.engine.home();
        if self.dead_views()?.is_empty() {
            return Ok(());
        }
        let _views = self.lock_views(self.engine.settings().patience_left())?;
        for name in self.dead_views()? {
            let folder = home.join("mounts").join(&name);
            if is_gone(&folder) {
                self.sweep_marks(&name)?;
                continue;
            }
            let outcome = remove_view_folder(&folder, home);
            let failed = outcome.is_err();
            report.note(&format!("removing the view {name}"), outcome)?;
            if !failed {
                report.did(format!("removed the view {name}, which nobody held any more"));
            }
        }
        Ok(())
    }

    /// What says that a view is shown of a workspace that is not there any more.
    fn sweep_marks(&self, view: &str) -> Result<()> {
        let home = self.engine.home();
        let mounts = home.join("mounts");
        for name in fsio::names(&mounts)? {
            if let Some((_, of)) = of_marked(&name).filter(|(of, _)| *of == view)
                && is_gone(&home.workspace(of))
            {
                fsio::remove_file(&mounts.join(&name))?;
            }
        }
        Ok(())
    }

    /// Locks of branches that were never written down, as their makers were killed just before. One that somebody holds stays: who waits for it while it is taken away
    /// sees that, and makes another.
    fn sweep_branch_locks(&self, report: &mut GcReport) -> Result<()> {
        let folder = self.folder();
        for name in fsio::names(&folder)? {
            let id = name.strip_prefix("branch-").and_then(|rest| rest.strip_suffix(".lock"));
            let Some(id) = id.and_then(|id| BranchId::new(id).ok()) else { continue };
            let path = folder.join(&name);
            let is_nobodys = || branch::has_left_nothing(self.engine.home(), &id);
            // Whoever works in a branch is not to find its lock taken. With the lock it is asked again: its maker may have written it down meanwhile.
            if !is_nobodys() {
                continue;
            }
            let Ok(Some(_alone)) = Lock::of_there(&path, true) else { continue };
            if is_nobodys() {
                fsio::remove_file(&path)?;
                report.did(format!("removed the lock of a branch, {name}, which was never made"));
            }
        }
        Ok(())
    }

    /// All workspaces that are known.
    pub(super) fn all_known(&self) -> Result<Vec<Self>> {
        let handle = |known: WorkspaceRecord| {
            let root = known.path.clone();
            self.engine.handle(known, root)
        };
        Ok(Index::load(self.engine.home())?.0.workspaces.into_iter().map(handle).collect())
    }

    /// Takes away branches whose makers or removers were killed.
    pub(super) fn finish_branches(&self, report: &mut GcReport) -> Result<()> {
        let (branches, unreadable) = branch::read_all(self.engine.home())?;
        report.tell(&unreadable);
        for file in branches {
            // One that cannot be looked at keeps no other from it.
            let what = format!("looking at the branch {}", file.record.name);
            let outcome = self.finish_branch(file, report);
            report.note(&what, outcome)?;
        }
        Ok(())
    }

    fn finish_branch(&self, mut file: BranchFile, report: &mut GcReport) -> Result<()> {
        let is_left = match file.record.state {
            BranchState::Making => !self.is_being_made(&file),
            BranchState::Removing => !file.maker.alive(),
            _ => false,
        };
        if file.record.origin != self.id || !is_left {
            return Ok(());
        }
        self.go_on_removing(&file)?;
        // Who was in it when it was removed by force may still be.
        let Ok(_alone) = self.alone_in(&file)? else { return Ok(()) };
        if !file.is_as_it_was_read(self.engine.home())? {
            return Ok(());
        }
        let maker = file.maker.clone();
        if file.record.state == BranchState::Removing {
            let registry = self.engine.lock_registry()?;
            self.mark_removing(&mut file, &registry)?;
        }
        // Somebody may have worked in it since its removal was cut short.
        if file.record.state == BranchState::Removing
            && let Err(error) = self.refuse_held(&file)
        {
            if error.kind != ErrorKind::FailedPrecondition {
                return Err(error);
            }
            report.did(format!("kept the branch {}, whose removal was cut short: {error}", file.record.name));
            // In doubt it is none to work in.
            let half = self.is_half_removed(&file).unwrap_or(true);
            let state = if half { BranchState::Removing } else { BranchState::Ready };
            self.leave_as_it_was(file, (state, maker), true);
            return Ok(());
        }
        let outcome = self.take_unfinished(&file);
        let failed = outcome.is_err();
        report.note(&format!("taking away the branch {}", file.record.name), outcome)?;
        if !failed {
            report.did(format!(
                "took away the branch {}, which was {}",
                file.record.name,
                unfinished(file.record.state)
            ));
            if file.record.state == BranchState::Making {
                let outcome = self.give_up_base_of_unmade(&file.record.snapshot);
                report.note(&format!("removing what was taken for the branch {}", file.record.name), outcome)?;
            }
        }
        Ok(())
    }

    /// Takes away branches that were made for a command which has ended, where who waited for that was killed. An agent's are left to who works behind.
    pub(crate) fn finish_branches_made_once(&self, report: &mut GcReport) -> Result<()> {
        let engine = &self.engine;
        if engine.refuse_to_agents("`gc`").is_err() || engine.home().may_remove("`gc`").is_err() {
            return Ok(());
        }
        for file in branch::all(engine.home())? {
            // The maker becomes the command.
            let ready = file.record.state == BranchState::Ready;
            if file.record.origin != self.id || !file.once || !ready || file.maker.alive() {
                continue;
            }
            let name = &file.record.name;
            let alone = match self.alone_in(&file) {
                Ok(Ok(alone)) => alone,
                Ok(Err(_)) => continue,
                Err(error) => {
                    report.note(&format!("looking at the branch {name}"), Err(error))?;
                    continue;
                }
            };
            match self.remove_done(&file, alone) {
                Ok(()) => {
                    report.did(format!("took away the branch {name}, which was made for a command that has ended"));
                }
                Err(error) if error.kind == ErrorKind::FailedPrecondition => {
                    report.did(format!("kept the branch {name}, which was made for a command that has ended: {error}"));
                }
                failed => report.note(&format!("taking away the branch {name}"), failed)?,
            }
        }
        Ok(())
    }

    /// Views without a lease, trash, temporary files, locks of branches that are none, folders without a record, the index.
    pub(super) fn sweep(&self, report: &mut GcReport) -> Result<()> {
        let home = self.engine.home();
        let outcome = self.sweep_views(report);
        report.note("sweeping views", outcome)?;
        let trash = home.join("trash");
        for name in fsio::names(&trash)? {
            let outcome = fsio::remove_tree(&trash.join(&name));
            report.note("emptying the trash", outcome)?;
        }
        let folder = self.folder();
        for place in ["", "leases", "branches"] {
            sweep_temps(&home.join(place), report)?;
        }
        let outcome = sweep_backups(&home.join("branches"));
        report.note("sweeping backups of records of branches", outcome)?;
        let outcome = self.sweep_branch_locks(report);
        report.note("sweeping locks of branches", outcome)?;
        for name in ah_host::sweep(&home.join("plugins")) {
            report.did(format!("removed the temporary file {name}"));
        }
        for agent in fsio::names(&home.join("agents"))? {
            sweep_temps(&home.join("agents").join(agent), report)?;
        }
        for place in ["", "restoring", "conversations", "pending", "unsynced"] {
            sweep_temps(&folder.join(place), report)?;
        }
        for name in fsio::names(&folder.join("sessions"))? {
            let session = folder.join("sessions").join(&name);
            sweep_temps(&session, report)?;
            sweep_temps(&session.join("tools"), report)?;
            session::remove_unmade(&session, || {
                if let Ok(name) = SessionName::new(name.as_str()) {
                    self.engine.forget_unmade(self.id(), &name);
                }
            });
        }
        let _lock = self.engine.lock_registry()?;
        // Writes anew what is lost and still known, before it is taken for something that was never finished.
        Index::refresh(home)?;
        let mut unknown = Vec::new();
        for id in fsio::names(&home.join("workspaces"))? {
            let orphan = home.workspace(&id);
            match registry::load(home, &id) {
                Ok(None) if fsio::names(&orphan)?.iter().all(|name| fsio::is_temp(name) || is_mark(name)) => {
                    fsio::remove_tree(&orphan)?;
                    report.did(format!("removed the workspace {id}, which was never finished"));
                }
                Ok(Some(_)) => {}
                Ok(None) => unknown.push(orphan),
                Err(error) => report.failures.push(super::with_causes(&error)),
            }
        }
        report.failures.extend(of_nobody(&unknown));
        Index::refresh(home)?;
        Ok(())
    }
}

/// Whether a folder is not there: not one that cannot be looked at.
fn is_gone(folder: &Path) -> bool {
    std::fs::symlink_metadata(folder).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Whether nothing is to be seen in a view, as where who mounted it has gone.
fn holds_nothing(view: &Path) -> bool {
    std::fs::read_dir(view).is_ok_and(|mut names| names.next().is_none())
}

/// What is said of a view of a workspace of which nothing else is there.
fn of_no_workspace(view: &Path) -> String {
    let (path, typed) = (view.display(), text::shell(view.as_os_str()));
    format!(
        "the folder of the workspace that the view {path} is of is gone, and with it what is known of the snapshot: copy what is needed of it, then `ah agent fs release {typed}`"
    )
}

/// What is said of folders whose workspaces nobody knows; mostly all of them have one cause.
fn of_nobody(folders: &[PathBuf]) -> Option<String> {
    let first = folders.first()?;
    let (path, typed) = (first.display(), text::shell(first.as_os_str()));
    let those = match folders.len() {
        1 => format!("the workspace folder {path} has"),
        many => format!("{many} workspace folders have ({path} is the first)"),
    };
    // They may be all that somebody has of their work: nothing here removes them.
    Some(format!(
        "{those} no workspace.json; if AH_HOME was removed by hand, what is left there are snapshots that go by the filesystem's own command alone; \
         `mv {typed} ~` puts that away as it is, and nothing is said of it any more"
    ))
}

fn unfinished(state: BranchState) -> &'static str {
    match state {
        BranchState::Removing => "being removed by a killed process",
        _ => "being made by a killed process",
    }
}

/// The names of views that are in `mounts/`, or said there to be shown, that no lease names and no living process uses for itself.
fn dead_views(home: &Home) -> Result<Vec<String>> {
    let leases = seek::all(home)?;
    let mounts = home.join("mounts");
    let dead = |name: &String| {
        let path = mounts.join(name);
        let leased = leases.iter().any(|lease| {
            lease.id.as_str() == name || lease.shown.as_ref().is_some_and(|shown| shown.path.starts_with(&path))
        });
        // `walk` names its views `walk-<process>-<n>`.
        let in_use = name.split('-').nth(1).is_some_and(may_run);
        // What a provider is making, or takes down, is its own: it knows whether its maker lives, and `reclaim` has asked it.
        let unfinished = name.starts_with(PROVIDERS_OWN);
        !(leased || in_use || unfinished || home.join("leases").join(format!("{name}.json")).exists())
    };
    let names: BTreeSet<String> = fsio::names(&mounts)?
        .into_iter()
        .map(|name| of_marked(&name).map_or_else(|| name.clone(), |(view, _)| view.to_owned()))
        .collect();
    Ok(names.into_iter().filter(dead).collect())
}

/// Takes a view away without its provider: unmounts what is mounted there, removes what is left.
pub(crate) fn remove_view_folder(path: &Path, home: &Home) -> Result<()> {
    if !path.starts_with(home.join("mounts")) {
        let message = format!("{} is not in AH_HOME, so only its provider could take it away", path.display());
        return Err(Error::new(ErrorKind::FailedPrecondition, message));
    }
    // Not a mount point, or not root: then the removal says what is the matter.
    let _ = nix::mount::umount(path);
    fsio::remove_tree(path)
}

/// Backups of records of branches that are not there: a person moved one out of the way, or an older version, which knows of none, took it away.
fn sweep_backups(folder: &Path) -> Result<()> {
    for name in fsio::names(folder)? {
        let id = name.strip_suffix(".json.bak1").filter(|id| BranchId::new(*id).is_ok());
        let backup = folder.join(&name);
        // A branch may be called so.
        let is_dir = backup.symlink_metadata().is_ok_and(|found| found.is_dir());
        if !is_dir && id.is_some_and(|id| is_gone(&folder.join(format!("{id}.json")))) {
            fsio::remove_file(&backup)?;
        }
    }
    Ok(())
}

/// Temporary files of processes that have ended.
fn sweep_temps(folder: &Path, report: &mut GcReport) -> Result<()> {
    for name in fsio::names(folder)? {
        let maker = name.rsplit_once(".tmp-").and_then(|(_, rest)| rest.split('-').next());
        if fsio::is_temp(&name) && maker.is_some_and(|maker| !may_run(maker)) {
            fsio::remove_file(&folder.join(&name))?;
            report.did(format!("removed the temporary file {name}"));
        }
    }
    Ok(())
}
