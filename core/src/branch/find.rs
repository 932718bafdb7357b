//! Which branches a workspace has, and which one is meant by a name.

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::branch::{BranchFile, BranchRecord, BranchState, all, read_all};
use crate::engine::Engine;
use crate::ids::WorkspaceId;
use crate::lock::Lock;
use crate::notice::{Notice, NoticeKind};
use crate::refs::reads_as_time;
use crate::registry::Found;
use crate::text;
use crate::versioned;
use crate::workspace::Workspace;

/// So many branches, the newest, are looked through for a snapshot that is not here.
const LOOKED_THROUGH: usize = 100;

impl Workspace {
    /// The branches that grew from this workspace, oldest first.
    ///
    /// # Errors
    /// If the folder of branches cannot be read.
    pub fn branches(&self) -> Result<Vec<BranchRecord>> {
        Ok(self.branch_files()?.into_iter().map(|branch| branch.record).collect())
    }

    /// As [`Workspace::branches`], for who is not to take away what they need.
    ///
    /// # Errors
    /// Also if the record of any branch cannot be read: then nobody knows what that grew from.
    pub(crate) fn branches_for_certain(&self) -> Result<Vec<BranchRecord>> {
        let all = versioned::whole(read_all(self.engine.home())?)?.into_iter().map(|file| file.record);
        Ok(all.filter(|branch| branch.origin == self.id).collect())
    }

    /// Those that a process is making now, as far as their records can be read.
    pub(crate) fn branches_being_made(&self) -> Result<Vec<BranchRecord>> {
        let made = self.branch_files()?.into_iter().filter(|file| self.is_being_made(file));
        Ok(made.map(|file| file.record).collect())
    }

    /// Whether a process is making a branch now. Of one on another machine, or in another namespace of pids, which is not seen from here, its lock says so, which who makes a branch
    /// holds. Where there is none to be looked at, its maker lives in doubt.
    pub(crate) fn is_being_made(&self, file: &BranchFile) -> bool {
        file.record.state == BranchState::Making
            && match Lock::of_there(&self.branch_lock(&file.record.id), true) {
                Ok(None) => true,
                Ok(Some(_)) => file.maker.is_seen_alive(),
                Err(_) => file.maker.alive(),
            }
    }

    pub(super) fn branch_files(&self) -> Result<Vec<BranchFile>> {
        let mine = all(self.engine.home())?.into_iter().filter(|branch| branch.record.origin == self.id);
        Ok(mine.collect())
    }

    /// As [`Workspace::branches`], and those that grew from a branch that is gone, unless another workspace has them; with a notice for each whose directory is not there,
    /// or which a killed process left unfinished, and for each record of a branch, of whichever workspace, that cannot be read.
    ///
    /// # Errors
    /// As there.
    pub fn branches_looked_at(&self) -> Result<Vec<BranchRecord>> {
        let branches = self.mine_and_orphans()?;
        self.engine.attend(&branches);
        self.engine.tell_unreadable(read_all(self.engine.home())?.1);
        for file in &branches {
            let (what, unless) = match file.record.state {
                BranchState::Making => ("made", ""),
                BranchState::Removing => ("taken away", ", or says what it holds that is nowhere else"),
                _ => continue,
            };
            if file.is_left_unfinished(self.engine.home()).unwrap_or(false) {
                let message = format!("the branch {} is half {what}: the process at it has ended", file.record.name);
                let hint = format!("`ah agent fs gc` takes away what is left of it{unless}");
                self.engine.notify(Notice::new(NoticeKind::Other, message).with_hint(hint));
            }
        }
        let looked_at = |file: BranchFile| BranchRecord { state: file.state_told(), ..file.record };
        let branches: Vec<_> = branches.into_iter().map(looked_at).collect();
        for branch in branches.iter().filter(|branch| branch.state == BranchState::Gone) {
            let (message, hint) = self.gone(branch);
            self.engine.notify(Notice::new(NoticeKind::Other, message).with_hint(hint));
        }
        Ok(branches)
    }

    /// The branch of that name, id or path, grown from this workspace, or from a branch of it that is gone.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn find_branch(&self, name: &str) -> Result<BranchRecord> {
        self.branch_file(name).map(|branch| branch.record)
    }

    /// By what `rm` here takes a branch alone, as a shell takes it: its name, or its id where a snapshot is called so, too.
    pub(crate) fn typed(&self, branch: &BranchRecord) -> String {
        let name = branch.name.as_str();
        let found = self.state().map(|state| self.with_resolver(&state, |resolver| resolver.resolve(name)));
        let is_both = matches!(found, Ok(Ok(snapshot)) if snapshot.is_wholly(name));
        text::shell(if is_both { branch.id.as_str() } else { name }.as_ref())
    }

    /// The branch that this workspace is; none if it is none.
    ///
    /// # Errors
    /// If the folder of branches cannot be read.
    pub fn own_branch(&self) -> Result<Option<BranchRecord>> {
        let all = all(self.engine.home())?.into_iter().map(|file| file.record);
        Ok(all.into_iter().find(|branch| branch.workspace.as_ref() == Some(&self.id)))
    }

    /// The branches to be removed that have these names, with one look at the folder of branches; none where there is none. One whose
    /// origin is gone, a branch that was removed itself, is everybody's to remove.
    ///
    /// # Errors
    /// If the folder of branches cannot be read.
    pub fn find_branch_each(&self, names: &[String]) -> Result<Vec<Option<BranchRecord>>> {
        let known = self.removable_branches()?;
        let find = |name: &String| called(&known, name).map(|branch| branch.record.clone());
        Ok(names.iter().map(find).collect())
    }

    /// As [`Workspace::find_branch`], of one that can be worked in.
    ///
    /// # Errors
    /// `NotFound`, also if its directory is not there; `FailedPrecondition` if it is being made or taken away.
    pub fn find_ready_branch(&self, name: &str) -> Result<BranchRecord> {
        let file = self.branch_file(name)?;
        file.need_mounted(self.engine.home())?;
        let (state, branch) = (file.state_told(), file.record);
        match state {
            BranchState::Ready => Ok(branch),
            BranchState::Gone => {
                let (message, hint) = self.gone(&branch);
                Err(Error::new(ErrorKind::NotFound, message).with_hint(hint))
            }
            state => Err(Error::new(ErrorKind::FailedPrecondition, format!("the branch {name} is not ready: {state}"))
                .with_hint("ah agent fs branches; `ah agent fs gc` clears up what a killed process left")),
        }
    }

    /// The branch, of this workspace or of a branch of it, however far, that one of that name, id or path grew from; none if it did not, or grew from this
    /// workspace itself, or that branch is gone.
    ///
    /// # Errors
    /// If the folder of branches cannot be read.
    pub fn bough_of(&self, name: &str) -> Result<Option<Self>> {
        let all = all(self.engine.home())?;
        let Some(file) = called(&all, name).filter(|file| file.record.origin != self.id) else { return Ok(None) };
        let origin = &file.record.origin;
        let line = line_of(&all, origin);
        let Some(here) = self.place_in(&line)? else { return Ok(None) };
        // Each may be mounted by what reads in the one before.
        self.engine.attend(line.into_iter().take(here + 1).rev());
        self.engine.workspace_by_id(origin)
    }

    /// Where in a line of branches the first one is that grew from this workspace, or from a branch that is gone, unless another workspace has it.
    pub(crate) fn place_in(&self, line: &[&BranchFile]) -> Result<Option<usize>> {
        let mine = self.mine_and_orphans()?;
        Ok(line.iter().position(|branch| mine.iter().any(|own| own.record.id == branch.record.id)))
    }

    pub(super) fn branch_file(&self, name: &str) -> Result<BranchFile> {
        let file = called(&self.mine_and_orphans()?, name).cloned().ok_or_else(|| self.no_branch(name))?;
        self.engine.attend_one(&file);
        Ok(file)
    }

    /// The branches of this workspace, then those of workspaces that are gone.
    fn mine_and_nobodys(&self) -> Result<Vec<BranchFile>> {
        let home = self.engine.home();
        let gone = |branch: &BranchFile| !home.workspace(branch.record.origin.as_str()).is_dir();
        let (mut mine, others): (Vec<_>, Vec<_>) =
            all(home)?.into_iter().partition(|branch| branch.record.origin == self.id);
        mine.extend(others.into_iter().filter(gone));
        Ok(mine)
    }

    /// The branches of this workspace, then those of workspaces that are gone whose files no other workspace's store has.
    fn mine_and_orphans(&self) -> Result<Vec<BranchFile>> {
        let mut found = Vec::new();
        for branch in self.mine_and_nobodys()? {
            if self.engine.keeper_of(&branch)?.is_none_or(|keeper| keeper.id == self.id) {
                found.push(branch);
            }
        }
        Ok(found)
    }

    /// Those that may be removed from here, mounted again if need be.
    pub(super) fn removable_branches(&self) -> Result<Vec<BranchFile>> {
        let branches = self.mine_and_nobodys()?;
        self.engine.attend(&branches);
        Ok(branches)
    }

    /// What is to be said of a REF that names nothing here, or more than one thing: that it is a branch, or a snapshot in one, and how that is brought home.
    pub(crate) fn of_branches(&self, reference: &str, error: Error) -> Error {
        let settings = self.engine.settings();
        let is_name = || {
            let is_time = || reads_as_time(reference) || (settings.local_time)(reference).is_some();
            // What was asked for in one session is told of the others.
            settings.session.is_none() && !reference.starts_with('@') && !is_time()
        };
        // A short name can begin ids of snapshots, too.
        let is_ambiguous = error.kind == ErrorKind::InvalidArgument;
        if !(is_ambiguous || error.kind == ErrorKind::NotFound) || !is_name() {
            return error;
        }
        let Ok(branches) = self.branch_files() else { return error };
        let home = |file: &BranchFile| {
            let (name, root) = (text::shell(file.record.name.as_ref()), text::shell(self.root.as_os_str()));
            format!(
                "`ah agent fs exec {name} -- ah agent fs diff --patch | git -C {root} apply` brings home what was done in it"
            )
        };
        if let Some(branch) = called(&branches, reference) {
            let message = format!("{reference:?} is a branch, and no snapshot's id, label or time here");
            return Error::new(ErrorKind::NotFound, message).with_hint(home(branch));
        }
        if is_ambiguous {
            return error;
        }
        let has = |file: &&BranchFile| {
            let Ok(Some(own)) = file.own_workspace(&self.engine) else { return false };
            own.state().is_ok_and(|state| own.with_resolver(&state, |resolver| resolver.point(reference)).is_ok())
        };
        let Some(branch) = branches.iter().rev().take(LOOKED_THROUGH).find(has) else {
            return self.unless_unread(error);
        };
        let (name, place) = (&branch.record.name, text::shell(branch.record.path.as_os_str()));
        let message = format!("{reference:?} was taken in the branch {name}, and names nothing here");
        let there = format!("`ah -C {place} agent fs show {}`", text::shell(reference.as_ref()));
        Error::new(ErrorKind::NotFound, message).with_hint(format!("{there}; {}", home(branch)))
    }

    /// What is to be said of a branch that is not at its place, and what to do.
    fn gone(&self, branch: &BranchRecord) -> (String, String) {
        let name = self.typed(branch);
        (
            format!("the branch {} is not at {} any more", branch.name, branch.path.display()),
            format!(
                "if it was moved, any command there takes it up: `ah -C NEWPLACE agent fs status`; if it is deleted, take what is left of it away: `ah agent fs rm --force {name}`"
            ),
        )
    }

    /// That something is not there, which may only be so as the record of a branch cannot be read.
    fn unless_unread(&self, error: Error) -> Error {
        let unread = read_all(self.engine.home()).ok().and_then(|(_, unread)| unread.into_iter().next());
        let Some(unread) = unread else { return error };
        let message = format!("{}; it may be a branch whose record cannot be read", error.message);
        let causes = [vec![unread.message], unread.causes].concat();
        Error { message, causes, hint: unread.hint, ..error }
    }

    pub(crate) fn no_branch(&self, name: &str) -> Error {
        let error = || {
            let error = Error::new(ErrorKind::NotFound, format!("there is no branch {name:?} of this workspace"));
            let shown = text::shell(name.as_ref());
            match self.state().and_then(|state| self.resolve_in(&state, name)) {
                Ok(_) => {
                    error.with_hint(format!("it is a snapshot; `ah agent fs branch {shown}` makes a branch of that"))
                }
                Err(_) => self.unless_unread(error.with_hint("ah agent fs branches")),
            }
        };
        self.engine.foreign_branch(Some(&self.id), name, |_| "branches".to_owned()).unwrap_or_else(error)
    }
}

impl Engine {
    /// What is to be said of a name that is not known in a workspace and is another one's branch; none if it is none. `command` is what was wanted, as the words
    /// after `ah agent fs`, of the name as a shell takes it. `here`: the workspace in which it was looked for, if there is one.
    pub fn foreign_branch(
        &self,
        here: Option<&WorkspaceId>,
        name: &str,
        command: impl FnOnce(&str) -> String,
    ) -> Option<Error> {
        let file = called(&all(self.home()).ok()?, name)?.clone();
        if here == Some(&file.record.origin) {
            let message = format!("{} is just being made or taken away", file.record.name);
            return Some(Error::new(ErrorKind::Conflict, message).with_hint("repeat the command"));
        }
        // That of a branch which is gone has it in its keeper's store.
        let keeper = self.keeper_of(&file).ok().flatten().map(|keeper| keeper.root().to_owned());
        let origin = keeper.unwrap_or_else(|| file.record.origin_now(self.home()));
        let name = &file.record.name;
        let there =
            format!("ah -C {} agent fs {}", text::shell(origin.as_os_str()), command(&text::shell(name.as_ref())));
        let at = origin.display();
        let error = |message| Error::new(ErrorKind::NotFound, message);
        Some(match self.find(&origin) {
            // Who asks sees a branch there.
            Ok((_, _, Found::Elsewhere(shown))) => {
                let message = match file.record.workspace == Some(shown.id) {
                    true => format!("{name} is the branch that is shown at {at} here, by `exec`"),
                    false => {
                        format!("{name} is a branch of the workspace at {at}, where `exec` shows another one here")
                    }
                };
                error(message).with_hint(format!("in a shell outside of `exec`: `{there}`"))
            }
            _ => error(format!("{name} is a branch of another workspace: {at}")).with_hint(there),
        })
    }
}

/// The branch that a workspace is, and those that this grew from, one after the other; none if it is none.
pub(crate) fn line_of<'a>(branches: &'a [BranchFile], workspace: &WorkspaceId) -> Vec<&'a BranchFile> {
    let (mut line, mut at): (Vec<&BranchFile>, _) = (Vec::new(), workspace);
    // None can have grown from itself, however damaged the records.
    while line.len() < branches.len() {
        let Some(branch) = branches.iter().find(|branch| branch.record.workspace.as_ref() == Some(at)) else { break };
        line.push(branch);
        at = &branch.record.origin;
    }
    line
}

/// The one that a person calls so: by its name, else its id, else the path that leads to it.
pub(super) fn called<'a>(branches: &'a [BranchFile], name: &str) -> Option<&'a BranchFile> {
    let by = |is_it: &dyn Fn(&BranchRecord) -> bool| branches.iter().find(|branch| is_it(&branch.record));
    let by_path = || {
        let there = std::fs::canonicalize(name).ok()?;
        by(&|branch| branch.path == there)
    };
    by(&|branch| branch.name == name).or_else(|| by(&|branch| branch.id.as_str() == name)).or_else(by_path)
}
