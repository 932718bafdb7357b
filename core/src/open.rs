//! Opening the workspace of a path: found, registered, followed when it moved, adopted.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use ah_plugin_api::{Durability, Error, ErrorKind, Result};

use crate::attend::{is_dead, is_place, look_alive};
use crate::background;
use crate::branch;
use crate::engine::{Access, Engine};
use crate::fresh;
use crate::fsio;
use crate::ids::{BranchId, WorkspaceId, letters};
use crate::lock::Lock;
use crate::mounts;
use crate::notice::{Notice, NoticeKind};
use crate::registry::{self, Finder, Found, Identity, Index, Strange, WorkspaceRecord, is_the_kernels, too_much};
use crate::seek;
use crate::session;
use crate::text;
use crate::timeline::{EventBody, WorkspaceChange};
use crate::workspace::Workspace;

impl Engine {
    /// The workspace of `path`: the nearest ancestor that is registered or the top of a Git work tree, else the directory itself.
    /// Takes care of one that was moved, copied or made anew, with a notice.
    ///
    /// # Errors
    /// `NotFound` if the path is not there, unless a workspace was with [`Access::Existing`] or [`Access::Reading`], or not registered with those; `FailedPrecondition` inside `$AH_HOME`,
    /// a view, or for `$HOME` and `/`.
    pub fn workspace(&self, path: &Path, access: Access) -> Result<Workspace> {
        let workspace = self.find_or_register(path, access)?;
        workspace.tell_what_lacks();
        workspace.tell_of_stopped();
        let unsettled = workspace.look_at_restores()?;
        background::resume(&workspace, unsettled);
        Ok(workspace)
    }

    /// Where the workspace was whose timeline `adopt` would have go on at `path`, if it was moved there: nothing is registered there yet, and one of that
    /// name is gone from its place.
    ///
    /// # Errors
    /// As [`Engine::workspace`].
    pub fn may_be_moved(&self, path: &Path) -> Result<Option<PathBuf>> {
        let (index, _) = Index::load(self.home())?;
        let (root, identity, found) = self.find_in(path, &index)?;
        let former = may_have_been(&index, &root, &identity).filter(|_| matches!(found, Found::New));
        Ok(former.map(|record| record.path.clone()))
    }

    /// The root that the workspace of `path` has, or would have once it is registered.
    ///
    /// # Errors
    /// As [`Engine::workspace`].
    pub fn root_of(&self, path: &Path) -> Result<PathBuf> {
        self.find(path).map(|(root, ..)| root)
    }

    /// Whether `root` holds the whole home directory or system, so that it becomes a workspace only by force, or no files at all.
    #[must_use]
    pub fn is_too_much(&self, root: &Path) -> bool {
        too_much(root, self.user_home().as_deref()) || is_the_kernels(root)
    }

    fn find_or_register(&self, path: &Path, access: Access) -> Result<Workspace> {
        let (root, _, found) = match self.find(path) {
            Err(error) if error.kind == ErrorKind::NotFound && access.is_of_what_there_is() => {
                return self.deleted(path)?.ok_or(error);
            }
            Err(error) if error.kind == ErrorKind::FailedPrecondition && access == Access::Reading => {
                return self.unmounted(path, error);
            }
            Err(error) if error.kind == ErrorKind::NotFound => {
                return Err(match self.record_of_deleted(path)? {
                    Some(record) => no_more(&record.path, "@"),
                    None => error,
                });
            }
            found => found?,
        };
        if let Found::Same(record) | Found::Elsewhere(record) = found
            && let Some(workspace) = self.opened(record, root)
        {
            return Ok(workspace);
        }
        match self.find_and_write_down(path, access) {
            // Who only asks for what there is, or makes room, needs nothing written down.
            Err(error) if access.is_of_what_there_is() && nothing_can_be_written(&error) => self.unwritten(path, error),
            done => done,
        }
    }

    fn find_and_write_down(&self, path: &Path, access: Access) -> Result<Workspace> {
        // Something is to be written down, or was not found: look again with the registry locked and read anew, as another process
        // may have written it down by now.
        let _lock = self.lock_registry()?;
        let index = Index::refresh(self.home())?;
        let (root, identity, found) = self.find_in(path, &index)?;
        match found {
            Found::Same(record) | Found::Elsewhere(record) => self.opened(record, root).ok_or_else(removed),
            Found::Renumbered(record) => {
                let record = self.relocate(&record, &root, identity)?;
                Ok(self.handle(record, root))
            }
            Found::Moved(former) => {
                self.displace(&index, &former.id, &root)?;
                let record = self.relocate(&former, &root, identity)?;
                self.moved(record, &former.path, root, WorkspaceChange::Moved)
            }
            Found::MadeAnew(former) => {
                let record = self.rewrite(&former.id, |record| record.replace(identity))?;
                self.moved(record, &former.path, root, WorkspaceChange::MadeAnew)
            }
            Found::New if access.is_of_what_there_is() => Err(not_registered(&index, &root, &identity)?),
            Found::New => {
                index.need_all()?;
                self.guard(&root, access)?;
                let record = self.register(&root, identity, None)?;
                self.inner.made.lock().unwrap_or_else(PoisonError::into_inner).push(record.id.clone());
                self.opened(record, root).ok_or_else(removed)
            }
        }
    }

    /// The workspace of `path` as it would be written down, on a disk that is full or read-only now: `error`.
    fn unwritten(&self, path: &Path, error: Error) -> Result<Workspace> {
        let (index, _) = Index::load(self.home())?;
        let (root, identity, found) = self.find_in(path, &index)?;
        let (mut record, change) = match found {
            Found::Same(record) | Found::Elsewhere(record) => return Ok(self.handle(record, root)),
            Found::Renumbered(record) => (record, None),
            Found::Moved(record) => (record, Some(WorkspaceChange::Moved)),
            Found::MadeAnew(record) => (record, Some(WorkspaceChange::MadeAnew)),
            Found::New => return Err(not_registered(&index, &root, &identity)?),
        };
        let from = record.path.clone();
        match change {
            Some(WorkspaceChange::MadeAnew) => record.replace(identity),
            _ => record.relocate(&root, identity),
        }
        if let Some(change) = change {
            self.tell_moved(&record, &from, &root, change);
            let Error { message, .. } = error;
            self.notify(Notice::new(NoticeKind::Other, format!("that cannot be written down now: {message}")));
        }
        Ok(self.handle(record, root))
    }

    /// Whether a workspace was at a path where nothing is any more: its snapshots and branches may be there still.
    ///
    /// # Errors
    /// If the index of workspaces cannot be read.
    pub fn was_workspace(&self, path: &Path) -> Result<bool> {
        self.record_of_deleted(path).map(|record| record.is_some())
    }

    fn record_of_deleted(&self, path: &Path) -> Result<Option<WorkspaceRecord>> {
        let path = absolute(path);
        let mut all = Index::load(self.home())?.0.workspaces;
        all.retain(|record| record.path == path);
        all.sort_by_key(|record| record.displaced);
        let record = all.into_iter().next();
        Ok(record.filter(|_| !seek::is_there(&path)))
    }

    fn deleted(&self, path: &Path) -> Result<Option<Workspace>> {
        let Some(record) = self.record_of_deleted(path)? else { return Ok(None) };
        let root = record.path.clone();
        let message = format!("there is nothing at {} any more; this is what is kept of it", root.display());
        self.notify(Notice::new(NoticeKind::Other, message));
        Ok(Some(self.handle(record, root)))
    }

    /// Makes the timeline of the workspace that was at `old_path` that of the one at `path`, after a move that was not noticed.
    /// The name of `old_path`, where nothing is, may be a workspace's id too.
    ///
    /// # Errors
    /// `NotFound` if no workspace was at `old_path`; `Conflict` if that one is elsewhere by now, if `path` is not the top of a workspace, has a timeline of its own with snapshots or recordings, or the
    /// old directory is still there and `path` is not what was there before it.
    pub fn adopt(&self, path: &Path, old_path: &Path) -> Result<Workspace> {
        let lock = self.lock_registry()?;
        let index = Index::refresh(self.home())?;
        let old_path = absolute(old_path);
        let at = || index.workspaces.iter().filter(|record| record.path == old_path);
        // A name that is none at that place may be an id.
        let by_id = || {
            let id = WorkspaceId::new(old_path.file_name()?.to_str()?).ok()?;
            index.by_id(&id).filter(|_| !seek::is_there(&old_path))
        };
        let former = at().find(|record| !record.displaced).or_else(|| at().next()).or_else(by_id);
        let Some(former) = former.cloned() else {
            index.need_all()?;
            drop(lock);
            return self.adopted_already(path, &old_path, index);
        };
        let (root, identity, found) = self.find_in(path, &index)?;
        // A copy may have taken the place of one that was moved, and its timeline with it.
        let is_there = Identity::of_path(&former.path).is_some_and(|there| there.same(&former.identity));
        if is_there && !former.was(&identity) {
            let message = format!("the workspace is still at {}", former.path.display());
            let there = text::shell(former.path.as_os_str());
            let mut hint = format!("to copy files out of its snapshots: `ah -C {there} agent fs seek @`");
            if let Some(record) = at().find(|record| record.displaced) {
                hint = format!("{hint}; of what was there before it: `ah agent fs adopt {}`", record.id);
            }
            return Err(Error::new(ErrorKind::Conflict, message).with_hint(hint));
        }
        self.guard(&root, Access::Existing)?;
        let known = match found {
            Found::Same(record) | Found::Elsewhere(record) if record.id == former.id => {
                return Ok(self.handle(record, root));
            }
            other => other.record().filter(|record| record.id != former.id).cloned(),
        };
        if std::fs::canonicalize(path).is_ok_and(|whole| whole != root) {
            let (path, around) = (path.display(), text::shell(root.as_os_str()));
            let message = format!("{path} lies in {}, which would take the timeline over", root.display());
            let hint =
                format!("if that is meant: `ah -C {around} agent fs adopt {}`", text::shell(old_path.as_os_str()));
            return Err(Error::new(ErrorKind::Conflict, message).with_hint(hint));
        }
        if let Some(record) = known {
            self.give_up(&self.handle(record, root.clone()))?;
        }
        self.displace(&Index::refresh(self.home())?, &former.id, &root)?;
        let record = self.relocate(&former, &root, identity)?;
        drop(lock);
        self.moved(record, &former.path, root, WorkspaceChange::Adopted)
    }

    /// The workspace of `path`, if it was at `old_path` and was found again where it is now.
    fn adopted_already(&self, path: &Path, old_path: &Path, index: Index) -> Result<Workspace> {
        let was_there = |workspace: &Workspace| {
            let is_from = |body: &EventBody| matches!(body, EventBody::Workspace { from, .. } if from == old_path);
            workspace.state().is_ok_and(|state| state.events.iter().any(|event| is_from(&event.body)))
        };
        if let Ok(here) = self.find_or_register(path, Access::Existing)
            && was_there(&here)
        {
            let message = format!("the timeline of what was at {} goes on here already", old_path.display());
            self.notify(Notice::new(NoticeKind::WorkspaceMoved, message));
            return Ok(here);
        }
        let all = index.workspaces.into_iter().map(|record| self.handle(record.clone(), record.path));
        Err(match all.into_iter().find(was_there) {
            Some(there) => {
                let (old, new) = (old_path.display(), there.root().display());
                Error::new(ErrorKind::Conflict, format!("the workspace that was at {old} was moved, and is at {new}"))
                    .with_hint(format!("ah -C {} agent fs snapshots", text::shell(there.root().as_os_str())))
            }
            None => Error::new(ErrorKind::NotFound, format!("no workspace was at {}", old_path.display()))
                .with_hint("name the directory by its full path, as it was"),
        })
    }

    /// Puts away a workspace that another one's timeline is to take the place of, or of which nothing came, if it has nothing to lose; gives where
    /// to. The registry is locked.
    pub(crate) fn give_up(&self, workspace: &Workspace) -> Result<PathBuf> {
        let (id, root, is_branch) = (&workspace.id, &workspace.root, workspace.record.branch.is_some());
        // Not waited for: who takes a snapshot may wait for the registry.
        let alone = Lock::try_take(&workspace.folder().join("orphans.lock"), true)?.ok_or_else(|| {
            let message = format!("a snapshot of {} is being taken", root.display());
            Error::new(ErrorKind::Busy, message).with_hint("wait for it to end, then repeat")
        })?;
        let mut held = workspace.snapshots_held(&alone)?;
        // They would lose what they grew from.
        if !workspace.branches()?.is_empty() {
            held.push("branches".to_owned());
        }
        for session in session::names(&workspace.folder())? {
            held.extend(workspace.recordings(&session)?.into_iter().map(|it| text::shell(it.path.as_os_str())));
        }
        if is_branch || !held.is_empty() {
            let its = if held.is_empty() { String::new() } else { format!(": {}", held.join(", ")) };
            let message = format!("{} has a timeline of its own{its}", root.display());
            return Err(Error::new(ErrorKind::Conflict, message).with_hint(
                "ah agent fs snapshots shows it (`ah agent fs gc` lists what is missing there); `ah agent fs rm` its snapshots first to give it up, and `rm` its recordings (`ah agent cast export` saves one)",
            ));
        }
        self.home().may_remove("`adopt`")?;
        branch::refuse_held_by_store(workspace)?;
        branch::empty_stores(workspace)?;
        let trash = self.home().join("trash");
        fsio::make_dir(&trash)?;
        let aside = trash.join(format!("workspace-{id}-{}", letters(&self.settings().ids)));
        let folder = self.home().workspace(id.as_str());
        std::fs::rename(&folder, &aside).map_err(|e| fsio::failed("move away", &folder, &e))?;
        Ok(aside)
    }

    /// The root, its identity, and what is known of it. Writes nothing but caches.
    pub(crate) fn find(&self, path: &Path) -> Result<(PathBuf, Identity, Found)> {
        let (index, damaged) = Index::load(self.home())?;
        if damaged {
            self.notify(Notice::new(NoticeKind::Rebuilt, "the index of workspaces was damaged and has been rebuilt"));
        }
        self.find_in(path, &index)
    }

    fn find_in(&self, path: &Path, index: &Index) -> Result<(PathBuf, Identity, Found)> {
        // A mount whose process is gone is a directory too, that cannot be looked at; and one whose process is stopped would be waited for.
        let look = || {
            look_alive(path, index.workspaces.iter().any(WorkspaceRecord::may_be_mounted))?;
            let canonical = std::fs::canonicalize(path)?;
            let is_dir = std::fs::metadata(&canonical)?.is_dir();
            Ok((canonical, is_dir))
        };
        let found = match look() {
            Err(_) if self.attend_at(path)? => look(),
            first => first,
        };
        let cannot = |e: std::io::Error| {
            let failed = fsio::failed("find", path, &e);
            if let (std::io::ErrorKind::NotConnected, Some(mount)) = (e.kind(), mounts::served(path)) {
                let message =
                    format!("what served {} has ended, and nothing that is known here has it", mount.display());
                return failed.context(message).with_hint(format!(
                    "if it is of another AH_HOME, use that; else `umount {}` takes away what is left of it, then repeat",
                    text::shell(mount.as_os_str())
                ));
            }
            if e.kind() != std::io::ErrorKind::TimedOut {
                return failed.with_hint("name an existing directory with `-C DIR`");
            }
            match mounts::served(path) {
                Some(mount) => failed
                    .context(format!("what is mounted at {} does not answer", mount.display()))
                    .with_hint("wait for who serves it, or let that go on, then repeat it"),
                None => failed.with_hint("its disk is very busy: repeat it"),
            }
        };
        let (canonical, is_dir) = found.map_err(cannot)?;
        let dir = if is_dir { canonical } else { canonical.parent().unwrap_or(Path::new("/")).to_owned() };
        // Permission is asked for now, so that the message names what the person said.
        ah_plugin_api::Dir::open(&dir).map_err(|e| e.with_hint("name a directory that you may read with `-C DIR`"))?;
        let views = seek::all(self.home())?;
        let user_home = self.user_home();
        let finder = Finder {
            home: self.home(),
            index,
            views: &views,
            user_home: user_home.as_deref(),
            sudo_user: self.settings().sudo_user,
            passed_over: &|strange, root| self.tell_passed_over(strange, root),
        };
        let found = finder.find(&dir)?;
        // What is there in its place may be where it is to be mounted, or a mount whose process is gone.
        let is_lost = |record: &WorkspaceRecord| matches!(found.2, Found::MadeAnew(_)) || is_dead(&record.path);
        match found.2.record().filter(|record| record.may_be_mounted() && is_lost(record)) {
            Some(record) if self.attend_at(&record.path)? => finder.find(&dir),
            _ if is_place(&found.0) => {
                self.attend_moved(&found.0)?;
                finder.find(&dir)
            }
            _ => Ok(found),
        }
    }

    fn tell_passed_over(&self, strange: &Strange, root: &Path) {
        let Strange { top, owner } = strange;
        let (around, root) = (top.display(), root.display());
        let message =
            format!("{around} is a Git work tree of the user {owner}, and is passed over: the workspace is {root}");
        let hint = format!("if that is meant: `ah -C {} agent fs snapshot`, once", text::shell(top.as_os_str()));
        self.notify(Notice::new(NoticeKind::Other, message).with_hint(hint));
    }

    fn user_home(&self) -> Option<PathBuf> {
        self.settings().user_home.as_deref().and_then(|home| std::fs::canonicalize(home).ok())
    }

    pub(crate) fn handle(&self, record: WorkspaceRecord, root: PathBuf) -> Workspace {
        Workspace { engine: self.clone(), id: record.id.clone(), root, record, fresh: None, timeline: None }
    }

    /// The workspace that is known around `path`, which need not be there any more; none if there is none.
    pub(crate) fn workspace_around(&self, path: &Path) -> Option<Workspace> {
        let (root, _, found) = path.ancestors().find_map(|path| self.find(path).ok())?;
        match found {
            Found::Same(record) | Found::Elsewhere(record) => Some(self.handle(record, root)),
            _ => None,
        }
    }

    /// The handle of a registered workspace by its id.
    pub(crate) fn workspace_by_id(&self, id: &WorkspaceId) -> Result<Option<Workspace>> {
        let doc = registry::load(self.home(), id.as_str())?;
        Ok(doc.map(|doc| {
            let root = doc.value.path.clone();
            self.handle(doc.value, root)
        }))
    }

    pub(crate) fn lock_registry(&self) -> Result<Lock> {
        Lock::take(&self.home().join("lock"), true, self.settings().patience_left(), &*self.settings().observer)
    }

    /// Registers a directory. The registry is locked.
    pub(crate) fn register(
        &self,
        root: &Path,
        identity: Identity,
        branch: Option<BranchId>,
    ) -> Result<WorkspaceRecord> {
        let id = WorkspaceId::new(letters(&self.settings().ids))?;
        let created = self.settings().clock.now();
        let path = root.to_owned();
        let record = WorkspaceRecord {
            id,
            path,
            identity,
            former: Vec::new(),
            displaced: false,
            created,
            branch,
            mounted_by: None,
            lies_behind: None,
            first_commit: None,
        };
        let folder = self.home().workspace(record.id.as_str());
        if !fsio::make_dir(&folder)? {
            return Err(Error::new(ErrorKind::Internal, format!("the id {} is taken already", record.id)));
        }
        if record.branch.is_none() {
            fresh::mark(&folder);
        }
        // What reads only needs it to be there, also when nothing can be written any more.
        fsio::make_dir(&self.home().join("mounts"))?;
        registry::save_new(self.home(), &record)?;
        self.home().keep_reserve();
        // What frees a full disk takes these.
        for name in ["gc", "orphans", "prune", "restore", "stays", "sync", "timeline"] {
            Lock::prepare(&folder.join(format!("{name}.lock")));
        }
        Lock::prepare(&self.leases_lock());
        Lock::prepare(&self.views_lock());
        Index::refresh(self.home())?;
        Ok(record)
    }

    /// Writes down where a workspace is now. The registry is locked.
    fn relocate(&self, former: &WorkspaceRecord, root: &Path, identity: Identity) -> Result<WorkspaceRecord> {
        self.rewrite(&former.id, |record| record.relocate(root, identity))
    }

    /// Writes down that what was registered at `root` is no more there, and that the workspace `id` is. The registry is locked.
    fn displace(&self, index: &Index, id: &WorkspaceId, root: &Path) -> Result<()> {
        for record in index.workspaces.iter().filter(|record| record.is_at(root) && record.id != *id) {
            let record = self.rewrite(&record.id, |record| record.displaced = true)?;
            let id = record.id.clone();
            if self.handle(record, root.to_owned()).holds_something() {
                let message = format!(
                    "the workspace that was at {} before is not there any more; its snapshots are kept",
                    root.display()
                );
                let hint = format!(
                    "where it is now, or in a new directory, this takes them up: `ah -C . agent fs adopt {id}`"
                );
                self.notify(Notice::new(NoticeKind::Other, message).with_hint(hint));
            }
        }
        Ok(())
    }

    fn moved(&self, record: WorkspaceRecord, from: &Path, to: PathBuf, change: WorkspaceChange) -> Result<Workspace> {
        self.tell_moved(&record, from, &to, change);
        let workspace = self.handle(record, to.clone());
        let body = EventBody::Workspace { change, from: from.to_owned(), to };
        workspace.append(&workspace.writing_session(), body, Durability::Durable)?;
        Ok(workspace)
    }

    fn tell_moved(&self, record: &WorkspaceRecord, from: &Path, to: &Path, change: WorkspaceChange) {
        let notice = match change {
            // What a provider mounts is not moved by hand.
            WorkspaceChange::MadeAnew if record.mounted_by.is_some() => Notice::new(
                NoticeKind::WorkspaceMadeAnew,
                format!("{} is another directory since: its timeline goes on", to.display()),
            )
            // Neither does anything where it was not. The other one would, where the workspace was given up.
            .with_hint(match mounts::at(to).0 > 0 {
                true => "if `ah agent fs convert` was cut short: repeat it",
                false => "if `ah agent fs convert --back` was cut short: repeat it",
            }),
            WorkspaceChange::MadeAnew => Notice::new(
                NoticeKind::WorkspaceMadeAnew,
                format!(
                    "{} is another directory since: its timeline goes on. If the one before was moved, `ah -C . agent fs adopt {0}` there takes it along",
                    to.display()
                ),
            ),
            _ => Notice::new(
                NoticeKind::WorkspaceMoved,
                format!("this workspace was at {}; its timeline goes on here", from.display()),
            ),
        };
        self.notify(notice);
    }

    /// Refuses what nobody means to capture whole.
    fn guard(&self, root: &Path, access: Access) -> Result<()> {
        if !self.is_too_much(root) {
            return Ok(());
        }
        if is_the_kernels(root) {
            let message =
                format!("{} holds no files: what is there is made by the kernel as it is read", root.display());
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("go to a project's directory"));
        }
        if access != Access::CreateForced {
            let message = format!(
                "{} is too much for a workspace: it is the system's, or holds your whole home directory",
                root.display()
            );
            return Err(Error::new(ErrorKind::FailedPrecondition, message)
                .with_hint("go to a project's directory, or insist with `ah agent fs snapshot --force`: from then on all folders below it that are no Git repositories belong to this workspace, until `ah agent fs rm --all --force`"));
        }
        Ok(())
    }
}

/// Whether a write failed for what holds for all writes: the disk, or what its user may have of it, is full, or it is read-only.
fn nothing_can_be_written(error: &Error) -> bool {
    use rustix::io::Errno;
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::ROFS].map(Errno::raw_os_error);
    error.errno.is_some_and(|errno| full.contains(&errno))
}

pub(crate) fn removed() -> Error {
    Error::new(ErrorKind::Conflict, "the workspace was removed this moment").with_hint("repeat the command")
}

/// What the hint begins with where nothing was captured yet.
pub const FIRST_SNAPSHOT: &str = "`ah agent fs snapshot`";

/// What is to be said where nothing is registered; an error if that is not certain.
fn not_registered(index: &Index, root: &Path, identity: &Identity) -> Result<Error> {
    index.need_all()?;
    let message = format!("{} has no snapshots", root.display());
    let hint = match may_have_been(index, root, identity) {
        Some(record) => {
            let old = text::shell(record.path.as_os_str());
            format!("{FIRST_SNAPSHOT}; or, if it was moved here: `ah agent fs adopt {old}`")
        }
        None => FIRST_SNAPSHOT.to_owned(),
    };
    Ok(Error::new(ErrorKind::NotFound, message).with_hint(hint))
}

/// The workspace that may have been moved to where nothing is registered.
fn may_have_been<'a>(index: &'a Index, root: &Path, identity: &Identity) -> Option<&'a WorkspaceRecord> {
    // A move to another filesystem is a copy to all appearance; the name often stays.
    let named_alike = |old: &PathBuf| old.file_name() == root.file_name() && !seek::is_there(old);
    let all = || index.workspaces.iter();
    all().find(|record| record.was(identity)).or_else(|| all().find(|record| named_alike(&record.path)))
}

/// What is to be said where a workspace's directory is needed, and was deleted; `reference` is the snapshot that somebody wants there.
pub(crate) fn no_more(root: &Path, reference: &str) -> Error {
    let (typed, wanted) = (text::shell(root.as_os_str()), text::shell(reference.as_ref()));
    let what = if reference == "@" { "the latest snapshot" } else { "that" };
    Error::new(ErrorKind::NotFound, format!("there is nothing at {} any more", root.display())).with_hint(format!(
        "`ah agent fs snapshots` and `ah agent fs branches` list what is kept of it; `mkdir {typed} && ah -C {typed} agent fs restore {wanted}` brings {what} back, `ah agent fs branch {wanted}` makes a copy of it"
    ))
}

/// The path made absolute and without symlinks as far as it still exists: its last part may be gone.
pub(crate) fn absolute(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in path.ancestors() {
        if let (Ok(there), Ok(rest)) = (std::fs::canonicalize(ancestor), path.strip_prefix(ancestor)) {
            return if rest.as_os_str().is_empty() { there } else { there.join(rest) };
        }
    }
    path
}
