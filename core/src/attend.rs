//! Mounts that a process has to keep: branches, and workspaces that were put behind a filesystem, whose provider's process was killed, or that were mounted before the machine was started anew.
//! Whoever comes by one has it mounted again, by a call of its provider.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use ah_plugin_api::{Dir, Error, ErrorKind, NOT_MOUNTED, ProviderName, ReclaimRequest, Result};
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::branch::{self, BranchFile, BranchState};
use crate::engine::Engine;
use crate::fsio;
use crate::home::Home;
use crate::ids::WorkspaceId;
use crate::lock::Lock;
use crate::moments::told;
use crate::mounts;
use crate::notice::{Notice, NoticeKind};
use crate::open::absolute;
use crate::place;
use crate::registry::{Identity, Index, WorkspaceRecord};
use crate::text;
use crate::workspace::Workspace;

/// So long a filesystem is waited for that another process serves; a disk fifteen times as long.
const PATIENCE: Duration = Duration::from_secs(2);

/// So many commands are named.
const AT_A_GLANCE: usize = 5;

const NOT_THERE: &str = "is not mounted";

impl Engine {
    /// Has those of `branches` mounted again that should be and are not. Gives whether there were any; what could not be done is a notice.
    pub(crate) fn attend<'a>(&self, branches: impl IntoIterator<Item = &'a BranchFile>) -> bool {
        let mut answers: BTreeMap<(Option<WorkspaceId>, ProviderName), Result<()>> = BTreeMap::new();
        let mut any = false;
        for branch in branches.into_iter().filter(|branch| branch.need_mounted(self.home()).is_err()) {
            any = true;
            let provider = &branch.record.provider;
            let keeper = self.keeper_of(branch).unwrap_or_default();
            let of = (keeper.as_ref().map(|keeper| keeper.id().clone()), provider.clone());
            let answer =
                answers.entry(of).or_insert_with(|| keeper.map_or(Ok(()), |keeper| self.call(&keeper, provider)));
            self.tell_lost(branch, answer.as_ref().err());
        }
        any
    }

    fn tell_lost(&self, branch: &BranchFile, error: Option<&Error>) {
        let (name, at) = (&branch.record.name, branch.point());
        let notice = match error {
            Some(error) => {
                let what = match branch.standing() {
                    Standing::Silent => "does not answer",
                    _ => "is not mounted, and cannot be",
                };
                let message = format!("the branch {name} {what}: {}", told(error));
                let notice = Notice::new(NoticeKind::Other, message);
                error.hint.iter().fold(notice, Notice::with_hint)
            }
            None if !branch.is_lost() => return,
            None if is_dead(at) => {
                let message = format!("the branch {name} is not mounted here any more: what served it has ended");
                Notice::new(NoticeKind::Other, message).with_hint(
                    "in a command of `ah agent fs exec`: end it, and start it again; elsewhere `ah agent fs branches`",
                )
            }
            None if holds_work(at) => {
                let message = format!(
                    "the branch {name} is not mounted: there are files in {}, where it should be",
                    at.display()
                );
                Notice::new(NoticeKind::Other, message).with_hint("move them away, then `ah agent fs branches`")
            }
            None if !branch.target.is_dir() => {
                let (at, place) = (at.display(), branch.target.display());
                let message = format!("the branch {name} is not mounted at {at}: {place} is not there");
                Notice::new(NoticeKind::Other, message).with_hint("if AH_HOME was moved, move it back to where it was")
            }
            None => Notice::new(NoticeKind::Other, format!("the branch {name} is not mounted at {}", at.display())),
        };
        self.notify(notice);
    }

    /// As [`Engine::attend`] of one branch that is about to be worked in. It is also written down under which device number it is now, since
    /// that is what it is known by where `exec` shows it.
    pub(crate) fn attend_one(&self, branch: &BranchFile) {
        self.attend([branch]);
        if branch.standing() == Standing::Silent {
            return;
        }
        let Ok(Some(own)) = branch.record.workspace.as_ref().map_or(Ok(None), |id| self.workspace_by_id(id)) else {
            return;
        };
        let renumbered =
            |there: &Identity| own.record.identity.same_but_for_device(there) && !own.record.identity.same(there);
        if let Some(there) = Identity::of_path(&branch.made_at).filter(renumbered)
            && let Err(error) = self.note_identity(&own.id, there)
        {
            let name = &branch.record.name;
            self.notify(Notice::new(
                NoticeKind::Other,
                format!("it cannot be written down where the branch {name} is: {error}"),
            ));
        }
    }

    /// As [`Engine::attend`], of the branches that a path is in.
    ///
    /// # Errors
    /// `FailedPrecondition` if one is not mounted then: what is there in its place is not it.
    pub(crate) fn attend_at(&self, path: &Path) -> Result<bool> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let all = branch::all(self.home())?;
        let around: Vec<_> = all.iter().filter(|branch| path.starts_with(branch.point())).collect();
        let any = self.attend(around.iter().copied());
        around.into_iter().try_for_each(|branch| branch.need_mounted(self.home()))?;
        Ok(self.attend_workspaces(&path)? || any)
    }

    /// The same of workspaces that a provider mounts.
    fn attend_workspaces(&self, path: &Path) -> Result<bool> {
        let mut any = false;
        // By what links lead to, where that can be asked for without waiting.
        let path = if is_dead(path) { absolute(path) } else { path.to_owned() };
        for record in Index::load(self.home())?.0.workspaces {
            let Some(provider) = record.mounted_by.clone().filter(|_| path.starts_with(&record.path)) else {
                continue;
            };
            if standing_at(&record.path) == Standing::There {
                continue;
            }
            any = true;
            let root = record.path.clone();
            let called = self.ask(&self.handle(record.clone(), root.clone()), &provider);
            let how = match standing_at(&root) {
                Standing::There => continue,
                Standing::Silent => "does not answer",
                // What was begun and not finished was undone, or somebody has made another directory there.
                Standing::Unmounted if called.is_ok() && !is_dead(&root) && !is_stand_in(&root.join(NOT_MOUNTED)) => {
                    continue;
                }
                Standing::Unmounted => NOT_THERE,
            };
            let message = format!("the workspace {} {how}: {provider} keeps it", root.display());
            if let (Ok(_), Some(hint)) = (&called, self.original_has_it()) {
                return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint));
            }
            return Err(match called {
                // It was given up: what is there is somebody's.
                Ok(Keeps::Nothing) if how == NOT_THERE && holds_work(&root) => continue,
                Ok(Keeps::Nothing) if how == NOT_THERE => {
                    let message = format!("the workspace {} {how}: {provider} keeps nothing of it", root.display());
                    let left = format!(
                        "`umount {}` takes away what is left of it, then repeat",
                        text::shell(root.as_os_str())
                    );
                    let out = || {
                        format!(
                            "if its store was on another disk or in another AH_HOME, bring that back first; if that is gone, {}",
                            place::way_out(&root)
                        )
                    };
                    let hint = if is_dead(&root) { left } else { out() };
                    Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint)
                }
                Ok(_) if !is_dead(&root) && holds_work(&root) => Error::new(ErrorKind::FailedPrecondition, message)
                    .with_hint(
                        "somebody has put files in its place, beside NOT-MOUNTED.txt: move them away, then repeat",
                    ),
                Ok(_) => Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
                    "repeat it; give a folder above it its old name if that was changed; {}/log says more",
                    text::shell(self.handle(record, root).store_path(&provider).as_os_str())
                )),
                Err(cause) => Error { kind: ErrorKind::FailedPrecondition, ..cause.context(message) },
            });
        }
        Ok(any)
    }

    /// The workspace that a path is in, to read what is kept of it, where its provider should have it mounted and cannot, as `error` says.
    ///
    /// # Errors
    /// `error`, unless that is so, and nothing is in its place but what a provider leaves there.
    pub(crate) fn unmounted(&self, path: &Path, error: Error) -> Result<Workspace> {
        if !answers(path) || self.home().original().is_some() {
            return Err(error);
        }
        let path = std::fs::canonicalize(path).ok().filter(|_| !is_dead(path)).unwrap_or_else(|| absolute(path));
        let is_it = |record: &WorkspaceRecord| {
            let root = &record.path;
            record.mounted_by.is_some() && path.starts_with(root) && (is_dead(root) || is_place(root))
        };
        let Some(record) = Index::load(self.home())?.0.workspaces.into_iter().find(is_it) else { return Err(error) };
        let message = format!("{}; what else is kept of it can be read", told(&error));
        self.notify(error.hint.iter().fold(Notice::new(NoticeKind::Other, message), Notice::with_hint));
        let root = record.path.clone();
        Ok(self.handle(record, root))
    }

    /// What to do where a copy of an `$AH_HOME` mounts nothing; none where this is no copy.
    fn original_has_it(&self) -> Option<String> {
        let original = text::shell(self.home().original()?.as_os_str());
        Some(format!("this AH_HOME is a copy of {original}, which has it: AH_HOME={original}"))
    }

    /// Has workspaces mounted that are, and that are known at another path than at which something stands in for one.
    ///
    /// # Errors
    /// `FailedPrecondition` if nothing is mounted at `root` then: what stands there is no workspace.
    pub(crate) fn attend_moved(&self, root: &Path) -> Result<()> {
        for record in Index::load(self.home())?.0.workspaces {
            let Some(provider) = record.mounted_by.clone() else { continue };
            if standing_at(&record.path) != Standing::There {
                let path = record.path.clone();
                // Where it cannot be, whoever asks for that one is told.
                let _ = self.call(&self.handle(record, path), &provider);
            }
        }
        if mounts::at(root).0 > 0 {
            return Ok(());
        }
        let message = format!("{} is only the place of what ah mounts there, and is not mounted", root.display());
        if let Some(hint) = self.original_has_it() {
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint));
        }
        let records = Index::load(self.home())?.0.workspaces.into_iter();
        let mounted: Vec<WorkspaceRecord> = records.filter(|record| record.mounted_by.is_some()).collect();
        let gone = mounted.iter().filter(|record| !record.path.exists());
        let gone: Vec<_> = gone.map(|record| record.path.display().to_string()).collect();
        if !gone.is_empty() {
            let hint = format!("give the folder above it its old name: it was {}", gone.join(" or "));
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint));
        }
        // Beside what was moved with its folder that lies, too: who knows it is named before.
        let out = place::way_out(root);
        let typed = |path: &Path| text::shell(path.as_os_str());
        let mut ways: Vec<_> = mounted.iter().map(|record| format!("`ah -C {}`", typed(&record.path))).collect();
        let branches = branch::all(self.home())?.into_iter().filter(|branch| branch.mounted);
        let origins: BTreeSet<_> = branches.map(|branch| branch.record.origin_now(self.home())).collect();
        // What is typed in this very place is refused as this is.
        ways.extend(
            origins
                .iter()
                .filter(|origin| *origin != root)
                .map(|origin| format!("`ah -C {} agent fs branches`", typed(origin))),
        );
        let more = ways.len().saturating_sub(AT_A_GLANCE);
        ways.truncate(AT_A_GLANCE);
        let more = if more > 0 { format!(", or one of {more} more") } else { String::new() };
        Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(match ways.is_empty() {
            true => format!(
                "nothing that is known here would be mounted there: if it was in another AH_HOME, or a later copy of this one, use that; if that is gone, {out}"
            ),
            false => format!(
                "it was moved from the place of what is mounted: {}{more}; if it is none of these, and of no other AH_HOME, {out}",
                ways.join(" or ")
            ),
        }))
    }

    /// The workspace in whose store a branch is kept: the one that it grew from, or, where that was a branch and is gone, the one whose store its reference
    /// names.
    pub(crate) fn keeper_of(&self, branch: &BranchFile) -> Result<Option<Workspace>> {
        if let Some(origin) = self.workspace_by_id(&branch.record.origin)? {
            return Ok(Some(origin));
        }
        let Some(reference) = &branch.record.reference else { return Ok(None) };
        let names = |record: &WorkspaceRecord| reference.as_str().contains(&format!("/workspaces/{}/", record.id));
        let record = Index::load(self.home())?.0.workspaces.into_iter().find(names);
        record.map_or(Ok(None), |record| self.workspace_by_id(&record.id))
    }

    /// Any call does: a provider whose process is started mounts first.
    pub(crate) fn call(&self, workspace: &Workspace, provider: &ProviderName) -> Result<()> {
        self.ask(workspace, provider).map(drop)
    }

    /// The same; gives whether anything that is worked in lies in its store.
    fn ask(&self, workspace: &Workspace, provider: &ProviderName) -> Result<Keeps> {
        let served = workspace.serve(provider)?;
        let request = ReclaimRequest { auto: true, forgotten: Vec::new() };
        let dir = workspace.dir_that_answers();
        let place = dir.as_ref().map_or(served.place(), |dir| served.place().with_workspace(dir));
        let reclaimed = served.provider.reclaim(&place, &request, &workspace.context())?;
        // Who converts it at this moment has nothing there yet.
        let is_free = || !matches!(Lock::try_take(&workspace.folder().join("restore.lock"), true), Ok(None));
        Ok(if reclaimed.held.is_empty() && is_free() { Keeps::Nothing } else { Keeps::Something })
    }
}

impl Workspace {
    /// Its directory, if it is there and its filesystem answers. It may have been moved, which a provider learns from the descriptor.
    pub(crate) fn dir_that_answers(&self) -> Option<Dir> {
        // What is at the place of one that another one was moved to is that one's.
        (!self.record.displaced && answers(&self.root)).then(|| self.open_dir().ok()).flatten()
    }
}

/// What a provider says of its store.
enum Keeps {
    /// Neither a branch nor a workspace is in it.
    Nothing,
    Something,
}

/// How a branch stands, or a workspace that a provider mounts.
#[derive(PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is there, as far as mounts go.
    There,
    /// It is a mount, and nothing is mounted at its place, or by a process that is gone.
    Unmounted,
    /// It is a mount, and the process that serves it says nothing: whoever looks at it waits for that.
    Silent,
}

impl BranchFile {
    /// How it stands now.
    pub(crate) fn standing(&self) -> Standing {
        if self.mounted { standing_at(self.point()) } else { Standing::There }
    }

    /// Whether it should be mounted, and is not.
    pub(crate) fn is_lost(&self) -> bool {
        self.record.state == BranchState::Ready && self.standing() == Standing::Unmounted
    }

    /// Refuses what would take something else for a branch that is not mounted, or wait for one that does not answer.
    pub(crate) fn need_mounted(&self, home: &Home) -> Result<()> {
        match self.standing() {
            Standing::Unmounted if self.record.state == BranchState::Ready => Err(self.away(home, "is not mounted")),
            Standing::Silent => Err(self.away(home, "does not answer")),
            _ => Ok(()),
        }
    }

    /// Refuses what would wait for one that does not answer.
    pub(crate) fn need_answer(&self, home: &Home) -> Result<()> {
        if self.standing() == Standing::Silent { Err(self.away(home, "does not answer")) } else { Ok(()) }
    }

    fn away(&self, home: &Home, how: &str) -> Error {
        let message = format!("the branch {} {how} at {}", self.record.name, self.point().display());
        Error::new(ErrorKind::FailedPrecondition, message).with_hint(format!(
            "`ah -C {} agent fs branches` says why",
            text::shell(self.record.origin_now(home).as_os_str())
        ))
    }
}

/// How what a process mounts at a path stands.
pub(crate) fn standing_at(path: &Path) -> Standing {
    // In this order: between an unmount and the mount that follows, what is below answers.
    match asked(path) {
        None if mounts::at(path).0 > 0 => Standing::Silent,
        Some(answer) if !ended(&answer) && answer.ok().flatten().unwrap_or_else(|| mounts::at(path).0 > 0) => {
            Standing::There
        }
        _ => Standing::Unmounted,
    }
}

/// Whether a place at which nothing is mounted holds what somebody put there.
fn holds_work(at: &Path) -> bool {
    let work = |entry: std::io::Result<std::fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() != NOT_MOUNTED);
    std::fs::read_dir(at).is_ok_and(|mut there| there.any(work))
}

/// Whether a file is what a provider leaves in the place of a branch that is not mounted, by its name and how it begins.
pub(crate) fn is_stand_in(file: &Path) -> bool {
    const BEGINS: &[u8] = b"This is the place of a branch that ah keeps in ";
    let mut begins = [0; BEGINS.len()];
    let read = std::fs::File::open(file).and_then(|mut file| file.read_exact(&mut begins));
    file.file_name().is_some_and(|name| name == NOT_MOUNTED) && read.is_ok() && begins == BEGINS
}

/// Whether a directory is nothing but what stands in for what is not mounted there.
pub(crate) fn is_place(dir: &Path) -> bool {
    // In a repository, a file that is called so is a file like others.
    let is_alone = || std::fs::read_dir(dir).is_ok_and(|entries| entries.take(2).count() == 1);
    is_stand_in(&dir.join(NOT_MOUNTED)) && is_alone() && mounts::at(dir).0 == 0
}

/// Takes away what stands in the place of a branch that is gone, as far as it is a provider's own.
pub(crate) fn take_down(at: &Path) -> Result<()> {
    let note = at.join(NOT_MOUNTED);
    let Ok(mut entries) = std::fs::read_dir(at) else { return Ok(()) };
    let ours = entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == NOT_MOUNTED));
    if !ours || mounts::at(at).0 > 0 || note.exists() && !is_stand_in(&note) {
        return Ok(());
    }
    fsio::remove_tree(at)
}

/// Whether something is mounted at a path by a process that is not there any more. Attributes may still come from the kernel's memory;
/// what `statfs` tells never does.
pub(crate) fn is_dead(path: &Path) -> bool {
    asked(path).is_some_and(|answer| ended(&answer))
}

/// Whether that is what a mount answers whose process is gone.
fn ended<T>(answer: &rustix::io::Result<T>) -> bool {
    answer.as_ref().is_err_and(|errno| has_ended(*errno))
}

/// Whether a mount fails so whose process is gone.
pub(crate) fn has_ended(errno: Errno) -> bool {
    // Aborted: it ends at this moment.
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED)
}

/// Refuses what is mounted by a process that is gone, and what does not answer: where no branch could be, it is not given a thread to wait in.
pub(crate) fn look_alive(path: &Path, among_branches: bool) -> std::io::Result<()> {
    match if among_branches { asked(path) } else { Some(rustix::fs::statfs(path).map(|_| None)) } {
        None => Err(std::io::ErrorKind::TimedOut.into()),
        Some(answer) if ended(&answer) => Err(std::io::ErrorKind::NotConnected.into()),
        Some(_) => Ok(()),
    }
}

/// Whether the filesystem at a path answers at all. One that another process serves may not, and who asks then waits in the kernel.
pub(crate) fn answers(path: &Path) -> bool {
    asked(path).is_some()
}

/// What `statfs` says, with whether something is mounted at that path, where the kernel tells; none if it says nothing for as long as [`PATIENCE`] says.
fn asked(path: &Path) -> Option<rustix::io::Result<Option<bool>>> {
    /// Whether something has been waited for in vain: what comes then is given less time.
    static SILENT: AtomicBool = AtomicBool::new(false);
    let (tell, told) = channel();
    let asked = path.to_owned();
    // One that is never answered ends with this process.
    let ask = move || _ = tell.send(rustix::fs::statfs(&asked).map(|_| is_mount_point(&asked)));
    if std::thread::Builder::new().name("statfs".to_owned()).spawn(ask).is_err() {
        return None;
    }
    let patience = if SILENT.load(Ordering::Relaxed) { PATIENCE / 20 } else { PATIENCE };
    let mut said = told.recv_timeout(patience).ok();
    // A disk answers in the end, however busy it is; where a path leads by links is not known here.
    if said.is_none() && mounts::served(path).is_none() {
        said = told.recv_timeout(patience * 14).ok();
    }
    SILENT.fetch_or(said.is_none(), Ordering::Relaxed);
    said
}

/// Whether something is mounted at a path itself, by the kernel's own word, without reading the table of all mounts; none where it does not tell (before Linux 5.8).
fn is_mount_point(path: &Path) -> Option<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(CWD, path, flags, StatxFlags::empty()).ok()?;
    let told = found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
    told.then(|| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_told_without_the_table_and_nothing_below_it_nor_a_link_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        let told = |path: &Path| is_mount_point(path).map(|is| (is, mounts::at(path).0 > 0));
        for path in [Path::new("/proc"), Path::new("/proc/self"), dir.path(), &link] {
            let both = told(path).expect("this kernel tells");
            assert_eq!((both.0, both.1), (path == Path::new("/proc"), both.0), "{}", path.display());
        }
        assert_eq!(told(&dir.path().join("missing")), None);
    }
}
