//! Taking branches away, finished or not.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ah_plugin_api::{
    Context, DestroyRequest, Dir, Durability, Error, ErrorKind, FileName, ListRequest, ProviderName, ReclaimRequest,
    Reference, Result,
};
use serde::Serialize;

use crate::agent::own_and_above;
use crate::attend::{Standing, take_down};
use crate::branch::held::{Whereabouts, grown_from};
use crate::branch::{BranchFile, BranchRecord, BranchState, all, called, destroy_request};
use crate::engine::Engine;
use crate::fsio;
use crate::home::lacks_room;
use crate::lock::{Holder, Lock};
use crate::mounts;
use crate::notice::{Notice, NoticeKind};
use crate::text;
use crate::timeline::EventBody;
use crate::workspace::{Served, Workspace};

/// A branch that was taken away.
#[derive(Debug, Clone, Serialize)]
pub struct BranchRemoved {
    /// What it was.
    #[serde(flatten)]
    pub branch: BranchRecord,
}

impl Workspace {
    /// Takes a branch away with everything in it, its own snapshots too. If that fails, the branch stays what it was, unless its files went first to make room.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` inside an agent's own session, in a copy of an `$AH_HOME` that is there, if it holds something that is nowhere else, branches grew from it, or it is not where it was made, and `force` is not
    /// given; `Busy` while a view of one of its snapshots is used, something is mounted in it, or a command of `exec` runs in it; the provider's.
    pub fn remove_branch(&self, name: &str, force: bool) -> Result<BranchRemoved> {
        self.remove_held(name, force, None)
    }

    /// As [`Workspace::remove_branch`], by who has the branch's lock alone already.
    pub(super) fn remove_held(&self, name: &str, force: bool, lock: Option<Lock>) -> Result<BranchRemoved> {
        self.engine.refuse_to_agents("`rm`")?;
        let (mut file, _alone) = self.removable(name, force, lock)?;
        let served = self.serve(&file.record.provider)?;
        let before = (file.record.state, file.maker.clone());
        let own = file.own_workspace(&self.engine)?;
        if let Some(own) = &own {
            own.forget_what_the_killed_saw();
        }
        let was_in_place = file.whereabouts(own.as_ref()) == Whereabouts::InPlace;
        let grown = grown_from(&self.engine, &file, all(self.engine.home())?)?;
        self.refuse_from_within(&file, force)?;
        prepare(&self.engine, &file)?;
        let looked_at = force || before.0 == BranchState::Making;
        let home = self.engine.home();
        let registry = self.engine.lock_registry()?;
        let marked = self.mark_removing(&mut file, &registry);
        drop(registry);
        match marked {
            Err(error) if lacks_room(&error) => self.take_away_unmarked(&file, &served, looked_at)?,
            Err(error) => {
                // The record may say so by now.
                self.leave_as_it_was(file, before, was_in_place);
                return Err(error);
            }
            Ok(()) => {
                if !looked_at && let Err(error) = self.refuse_made_meanwhile(&file) {
                    self.leave_as_it_was(file, before, was_in_place);
                    return Err(error);
                }
            }
        }
        if let Err(error) = finish(&self.engine, &file, &served, &self.context()) {
            let what = format!("the branch {} cannot be taken away", file.record.name);
            self.leave_as_it_was(file, before, was_in_place);
            return Err(if error.kind == ErrorKind::Busy { error.context(what) } else { error });
        }
        let _ = fsio::remove_file(&self.branch_lock(&file.record.id));
        let body = EventBody::BranchRemoved { branch: file.record.id.clone(), name: file.record.name.clone() };
        home.with_reserve(|| self.append(&self.writing_session(), body.clone(), Durability::Durable))?;
        let (path, name) = (&file.record.path, &file.record.name);
        if *path != file.made_at && path.exists() {
            let message = format!("the files of {name}, which was moved, stay in {}", path.display());
            self.engine.notify(Notice::new(NoticeKind::Other, message));
        }
        if file.point().exists() {
            let place = file.point().display();
            let message = format!("what is at {place} stays: as far as can be told, it is not what was made as {name}");
            self.engine
                .notify(Notice::new(NoticeKind::Other, message).with_hint("look at it, and remove it or move it away"));
        }
        if !grown.is_empty() {
            let message = format!("what {} grew from is gone with the branch {}", grown.join(", "), file.record.name);
            self.engine.notify(Notice::new(NoticeKind::Other, message).with_hint(
                "`diff` there needs a snapshot of its own from now on; what was changed before its first one cannot be told any more",
            ));
        }
        Ok(BranchRemoved { branch: file.record })
    }

    /// Takes the directory of a branch away before that is written down, on a disk that has no room for it: as of snapshots ([`Workspace::take_off`]), what frees it may
    /// hold the reserve. Whoever makes something in the branch, or of it, waits for the branch's own locks until it is marked, and nobody else. Killed before, it is a branch that is gone.
    fn take_away_unmarked(&self, file: &BranchFile, served: &Served, looked_at: bool) -> Result<()> {
        let own = file.own_workspace(&self.engine)?;
        let _stays = own.as_ref().map(|own| own.lock("stays")).transpose()?;
        let making = own.as_ref().map(|own| own.lock("orphans")).transpose()?;
        if !looked_at {
            self.refuse_made(file, own.as_ref().zip(making.as_ref()))?;
        }
        take_directory(&self.engine, file, own.as_ref(), served, &self.context())?;
        // It may have been put aside only.
        let _ = self.reclaim_store(&served.name);
        let home = self.engine.home();
        let mark = || {
            let _registry = self.engine.lock_registry()?;
            file.save(home)
        };
        home.once_there_is_room(self.engine.settings(), mark).map_err(|error| {
            let name = &file.record.name;
            error.context(format!(
                "the files of the branch {name} are removed, and there is no room yet to write that down"
            ))
        })
    }

    /// Takes away what is left of a branch whose maker or remover has ended, by who has its lock alone.
    pub(crate) fn take_unfinished(&self, file: &BranchFile) -> Result<()> {
        let served = self.serve(&file.record.provider)?;
        prepare(&self.engine, file)?;
        finish(&self.engine, file, &served, &self.context())?;
        let _ = fsio::remove_file(&self.branch_lock(&file.record.id));
        Ok(())
    }

    /// Takes away what is left under a name of a branch whose maker has ended: nobody was ever given it, and who makes another one need not wait for `gc`.
    /// What cannot be taken away now has the name still. Who asks does not hold `stays`, which the snapshot that was taken for it waits for.
    pub(crate) fn free_name(&self, name: &str) {
        let home = self.engine.home();
        let is_unmade = |file: &BranchFile| {
            let record = &file.record;
            record.name == name && record.origin == self.id && record.state == BranchState::Making
        };
        let Some(file) = all(home).ok().and_then(|files| files.into_iter().find(is_unmade)) else { return };
        if home.may_remove("`branch`").is_err() || self.go_on_removing(&file).is_err() {
            return;
        }
        let Ok(_alone) = self.refuse_being_made(&file) else { return };
        if self.take_unfinished(&file).is_ok() {
            // What cannot be taken back now, prune finds.
            let _ = self.give_up_base_of_unmade(&file.record.snapshot);
        }
    }

    /// Writes down that this process takes a branch away, with the registry locked. Who is about to make a branch of it has done so then, or sees this.
    pub(crate) fn mark_removing(&self, file: &mut BranchFile, _registry: &Lock) -> Result<()> {
        file.record.state = BranchState::Removing;
        file.maker = Holder::me();
        let home = self.engine.home();
        home.with_reserve(|| file.save(home))
    }

    /// Whether [`Workspace::remove_branch`] would begin; for who removes several things, all or none.
    ///
    /// # Errors
    /// As there.
    pub fn may_remove_branch(&self, name: &str, force: bool) -> Result<()> {
        self.removable(name, force, None).map(|_| ())
    }

    /// The branch, and its lock, which keeps commands from being run in it from before it is looked at until it is gone. By
    /// `force` it is removed without where it cannot be told who works in it.
    fn removable(&self, name: &str, force: bool, mut lock: Option<Lock>) -> Result<(BranchFile, Option<Lock>)> {
        let file = called(&self.removable_branches()?, name).cloned().ok_or_else(|| self.no_branch(name))?;
        // What a copy made is its own.
        let of_original = |home: &Path| BranchFile::path_in(home, &file.record.id).exists();
        if self.engine.home().original().is_none_or(of_original) {
            self.engine.home().may_remove("`rm`")?;
        }
        file.need_answer(self.engine.home())?;
        let (pid, alive) = (file.maker.pid, file.maker.alive());
        match file.record.state {
            BranchState::Making if self.is_being_made(&file) => {
                // Who takes away what a killed maker left has its lock as well.
                let message = match file.maker.is_seen_alive() {
                    true => format!("process {pid} is making the branch {name}"),
                    false => format!("the branch {name} is being made or taken away"),
                };
                return Err(Error::new(ErrorKind::Busy, message).with_hint("wait for it to end, then repeat"));
            }
            BranchState::Removing if alive && file.maker != Holder::me() => {
                return Err(Error::new(ErrorKind::Busy, format!("process {pid} is removing the branch {name}"))
                    .with_hint("wait for it to end, then repeat"));
            }
            // Nobody was ever given it.
            BranchState::Making => match self.refuse_being_made(&file) {
                Err(error) if !force || error.kind == ErrorKind::Busy => return Err(error),
                alone => lock = alone.ok(),
            },
            _ if force => {
                if lock.is_none() {
                    lock = match self.refuse_at_work(&file) {
                        Err(error) if error.kind == ErrorKind::Busy => return Err(error),
                        // Force is for what cannot be looked at, too.
                        alone => alone.ok(),
                    };
                }
            }
            _ => {
                self.go_on_removing(&file)?;
                if lock.is_none() {
                    lock = Some(self.refuse_at_work(&file)?);
                }
                self.refuse_grown(&file)?;
                self.refuse_held(&file)?;
            }
        }
        // One of a command that has ended may have gone meanwhile.
        match BranchFile::load(self.engine.home(), &file.record.id)? {
            Some(_) => Ok((file, lock)),
            None => Err(self.no_branch(name)),
        }
    }

    /// Refuses while a branch is being made, or if it was when `file` was read and is made now.
    fn refuse_being_made(&self, file: &BranchFile) -> Result<Lock> {
        let refused = || {
            Error::new(ErrorKind::Busy, format!("the branch {} is being made", file.record.name))
                .with_hint("wait for it to end, then repeat")
        };
        if self.is_being_made(file) {
            return Err(refused());
        }
        let lock = self.alone_in(file)?.map_err(|_| refused())?;
        match file.is_as_it_was_read(self.engine.home())? {
            true => Ok(lock),
            false => Err(refused()),
        }
    }

    /// Has the provider of a branch whose removal was cut short, and which is not mounted, go on with what it had begun, or mount it, so that it can be looked at. Refuses if
    /// nobody would answer who looks.
    pub(crate) fn go_on_removing(&self, file: &BranchFile) -> Result<()> {
        match file.standing() {
            Standing::Unmounted if file.record.state == BranchState::Removing => {
                self.engine.call(self, &file.record.provider)
            }
            _ => file.need_answer(self.engine.home()),
        }
    }

    /// Refuses while the caller, or who called it, works in a branch that is to be unmounted: nobody is to end their own shell.
    fn refuse_from_within(&self, file: &BranchFile, force: bool) -> Result<()> {
        if !file.mounted || file.standing() != Standing::There {
            return Ok(());
        }
        let works_there =
            |pid: &u32| std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(file.point()));
        let Some(pid) = own_and_above().find(works_there) else { return Ok(()) };
        let message =
            format!("this command was called from within the branch {}: process {pid} works there", file.record.name);
        // Not by the branch's own path: that leads into it again.
        let origin = match self.root.starts_with(file.point()) {
            true => self.engine.keeper_of(file)?,
            false => None,
        };
        let origin = origin.as_ref().unwrap_or(self);
        let (root, name) = (text::shell(origin.root.as_os_str()), origin.typed(&file.record));
        let force = if force { "--force " } else { "" };
        let hint = format!("leave the directory first: `cd / && ah -C {root} agent fs rm {force}{name}`");
        Err(Error::new(ErrorKind::Busy, message).with_hint(hint))
    }

    /// After a removal that failed.
    pub(crate) fn leave_as_it_was(&self, mut file: BranchFile, before: (BranchState, Holder), was_in_place: bool) {
        if was_in_place && before.0 != BranchState::Removing {
            return self.take_back(file, before);
        }
        // Nothing of it was there to be taken away, or some of it may be gone already.
        (file.record.state, file.maker) = before;
        let _ = file.save(self.engine.home());
    }

    /// The same of one whose directory was there: as long as that is, the branch is one that can be worked in.
    fn take_back(&self, mut file: BranchFile, (state, maker): (BranchState, Holder)) {
        let own = file.own_workspace(&self.engine).ok().flatten();
        if own.is_none() || file.whereabouts(own.as_ref()) != Whereabouts::InPlace {
            return;
        }
        file.record.state = if state == BranchState::Making { state } else { BranchState::Ready };
        file.maker = maker;
        // If this fails too, gc finds it removing, and looks before it goes on.
        let _ = file.save(self.engine.home());
    }
}

/// Does away with what would stop a removal half-way, or refuses: views of the branch's snapshots, and mounts in it.
fn prepare(engine: &Engine, file: &BranchFile) -> Result<()> {
    if let Some(own) = file.own_workspace(engine)? {
        refuse_held_by_store(&own)?;
        let _lock = engine.lock_leases()?;
        for lease in crate::seek::all(engine.home())?.iter().filter(|lease| lease.workspace == own.id) {
            if lease.is_settled() {
                engine.give_back(lease)?;
            }
        }
    }
    let (there, below) = mounts::at(file.point());
    // The mount that the branch itself is goes with it, none that came on top. Whether it is one, nobody wrote down who was killed
    // while making it.
    let may_be_one = file.mounted || file.record.state == BranchState::Making;
    let on_top = (there > usize::from(may_be_one)).then(|| file.point().to_owned());
    match on_top.or(below) {
        None => Ok(()),
        Some(point) => Err(is_mounted(&point)),
    }
}

fn is_mounted(point: &Path) -> Error {
    Error::new(ErrorKind::Busy, format!("something is mounted at {}", point.display()))
        .with_hint(format!("umount {}", text::shell(point.as_os_str())))
}

/// Takes away everything that a branch is: its directory, its own history, and its record last.
pub(super) fn finish(engine: &Engine, file: &BranchFile, served: &Served, cx: &Context<'_>) -> Result<()> {
    let own = file.own_workspace(engine)?;
    take_directory(engine, file, own.as_ref(), served, cx)?;
    if let Some(own) = own {
        forget_workspace(&own)?;
    }
    file.forget(engine.home())
}

/// Takes away the directory of a branch, which may be the workspace `own`. What is there in its place is not ours.
fn take_directory(
    engine: &Engine,
    file: &BranchFile,
    own: Option<&Workspace>,
    served: &Served,
    cx: &Context<'_>,
) -> Result<()> {
    let is_replaced = || file.whereabouts(own) == Whereabouts::Replaced && file.standing() != Standing::Unmounted;
    if is_replaced() {
        // A mount whose process was killed with the branch's maker looks so: what it is only its provider knows.
        if let (None, Ok(target)) = (&file.record.reference, Dir::open(&file.target)) {
            reclaim_unfinished(file, served, &target, cx)?;
        }
        if is_replaced() {
            return Ok(());
        }
    }
    take_away(engine, file, served, cx)?;
    // A provider that has lost its store knows of no branch, nor of what it put in its place.
    if file.mounted {
        take_down(file.point())?;
    }
    take_what_stayed(engine, file, own)
}

/// Takes away the branch's directory if it is still there, as its provider has lost what it knew of it, or if its origin was removed, and others know
/// nothing of it: its files are all that there is of it then.
///
/// # Errors
/// `FailedPrecondition` if it is not known to be ours to remove.
fn take_what_stayed(engine: &Engine, file: &BranchFile, own: Option<&Workspace>) -> Result<()> {
    let stays = match file.mounted {
        true => mounts::at(file.point()).0 > 0,
        false => file.whereabouts(own) == Whereabouts::InPlace,
    };
    if !stays {
        return Ok(());
    }
    let branches = engine.home().join("branches");
    // Without its workspace nobody can tell that it is the branch.
    let ours =
        own.is_some() && (file.target == branches || !engine.home().workspace(file.record.origin.as_str()).is_dir());
    match file.made(&branches).filter(|_| ours && !file.mounted) {
        Some(made) => {
            let (there, below) = mounts::at(&made);
            match (there > 0).then(|| made.clone()).or(below) {
                None => fsio::remove_tree(&made),
                Some(point) => Err(is_mounted(&point)),
            }
        }
        None => {
            let BranchRecord { name, provider, .. } = &file.record;
            let place = file.made_at.display();
            let message =
                format!("the files of the branch {name} stay in {place}: {provider} knows nothing of them any more");
            let hint = match file.mounted {
                true => format!(
                    "umount {} (as root, if the helper ahd mounted it); then repeat",
                    text::shell(file.point().as_os_str())
                ),
                false => "look at them, and remove them or move them away, then repeat".to_owned(),
            };
            Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint))
        }
    }
}

/// Takes the branch's directory away, also one that was never finished.
fn take_away(engine: &Engine, file: &BranchFile, served: &Served, cx: &Context<'_>) -> Result<()> {
    let Ok(target) = Dir::open(&file.target) else {
        // What is mounted may be elsewhere than where it was made.
        let Some(request) = destroy_request(file).filter(|_| file.mounted) else {
            if std::fs::symlink_metadata(&file.made_at).is_err() {
                return Ok(());
            }
            let (name, target) = (&file.record.name, file.target.display());
            let message = format!("the folder in which the branch {name} was asked for is not there: {target}");
            return Err(Error::new(ErrorKind::FailedPrecondition, message)
                .with_hint(format!("mkdir -p {}; then repeat", text::shell(file.target.as_os_str()))));
        };
        return match served.provider.destroy(&served.place(), &request, cx) {
            Err(error) if error.kind != ErrorKind::InvalidArgument => Err(error),
            _ => Ok(()),
        };
    };
    let place = served.place().with_target(&target);
    if let Some(request) = destroy_request(file) {
        return served.provider.destroy(&place, &request, cx).map(|_| ());
    }
    reclaim_unfinished(file, served, &target, cx)?;
    let path = &file.made_at;
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    if file.target == engine.home().join("branches") {
        return fsio::remove_tree(path);
    }
    let message = format!("{} may be what a killed process left of the branch {}", path.display(), file.record.name);
    Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("look at it, and remove it or move it away"))
}

/// Has the provider take away a branch whose maker died before its reference was written down: whole or not, it is known there by its name.
fn reclaim_unfinished(file: &BranchFile, served: &Served, target: &Dir, cx: &Context<'_>) -> Result<()> {
    let name = FileName::new(file.made_at.file_name().unwrap_or_default().as_bytes())?;
    let request = ReclaimRequest { auto: false, forgotten: vec![name] };
    served.provider.reclaim(&served.place().with_target(target), &request, cx).map(drop)
}

/// Refuses if branches live in one of the workspace's stores, which would go with it.
pub(crate) fn refuse_held_by_store(workspace: &Workspace) -> Result<()> {
    refuse_held_by_store_but(workspace, None)
}

/// As [`refuse_held_by_store`], with that one let go.
pub(crate) fn refuse_held_by_store_but(workspace: &Workspace, gone: Option<&Reference>) -> Result<()> {
    refuse_held_by(workspace, workspace.stores()?, gone)
}

/// As [`refuse_held_by_store`], by the stores of providers that do not capture the workspace where it is.
pub(crate) fn refuse_held_unless_captured(workspace: &Workspace) -> Result<()> {
    let mut stores = workspace.stores()?;
    stores.retain(|name| !workspace.serve(name).is_ok_and(|served| workspace.can_capture(&served).is_ok()));
    refuse_held_by(workspace, stores, None)
}

/// What a store of the workspace holds that is none of the branches that are known: the workspace itself, say.
pub(crate) fn nameless_in_store(workspace: &Workspace, name: &ProviderName) -> Result<Vec<Reference>> {
    let known: Vec<_> = all(workspace.engine.home())?.into_iter().filter_map(|file| file.record.reference).collect();
    let held = held_by_store(workspace, name)?.into_iter();
    Ok(held.filter(|reference| !known.contains(reference)).collect())
}

fn refuse_held_by(workspace: &Workspace, stores: Vec<ProviderName>, gone: Option<&Reference>) -> Result<()> {
    let branches = all(workspace.engine.home())?;
    let mut held = Vec::new();
    for name in stores {
        match held_by_store(workspace, &name) {
            Ok(mut answer) => held.append(&mut answer),
            // It cannot be asked now. A branch that lives in the workspace's folder says so by its reference.
            Err(_) => {
                let folder = format!("/workspaces/{}/", workspace.id);
                let mine = branches.iter().filter(|file| file.record.provider == name);
                let references = mine.filter_map(|file| file.record.reference.clone());
                held.extend(references.filter(|reference| reference.as_str().contains(&folder)));
            }
        }
    }
    held.retain(|reference| Some(reference) != gone);
    if held.is_empty() {
        return Ok(());
    }
    let root = workspace.root();
    let name_of = |reference: &Reference| {
        let file = branches.iter().find(|file| file.record.reference.as_ref() == Some(reference));
        file.map(|file| text::shell(file.record.name.as_ref()))
    };
    let names: Vec<String> = held.iter().filter_map(name_of).collect();
    let (message, hint) = if names.is_empty() {
        (
            format!("the store of {} holds a workspace or branch that is not mounted", root.display()),
            format!(
                "`ah -C {} agent fs status` says of which provider, and what is to be done",
                text::shell(root.as_os_str())
            ),
        )
    } else {
        (
            format!("what was branched from {} lives in its store: {}", root.display(), names.join(", ")),
            format!("take those away first: ah agent fs rm {}", names.join(" ")),
        )
    };
    Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint(hint))
}

fn held_by_store(workspace: &Workspace, name: &ProviderName) -> Result<Vec<Reference>> {
    let served = workspace.serve(name)?;
    let request = ReclaimRequest { auto: true, forgotten: Vec::new() };
    Ok(served.provider.reclaim(&served.place(), &request, &workspace.context())?.held)
}

/// Has each provider take out of its store what it knows of: snapshots that no timeline names, and what destroyed ones left. Files may
/// not be all that is in a store, or be elsewhere. What this cannot do, is tried as far as removing files goes.
pub(crate) fn empty_stores(workspace: &Workspace) -> Result<()> {
    let cx = workspace.context();
    for name in workspace.stores()? {
        let Ok(served) = workspace.serve(&name) else { continue };
        for snapshot in served.provider.list(&served.place(), &ListRequest::default(), &cx).unwrap_or_default() {
            let _ = served.provider.destroy(&served.place(), &DestroyRequest::Snapshot(snapshot.reference), &cx);
        }
        let _ = served.provider.reclaim(&served.place(), &ReclaimRequest::default(), &cx);
    }
    Ok(())
}

/// Takes away a workspace's state with all its snapshots.
fn forget_workspace(workspace: &Workspace) -> Result<()> {
    for snapshot in workspace.state()?.snapshots {
        let served = workspace.serve(&snapshot.provider)?;
        let request = DestroyRequest::Snapshot(snapshot.reference);
        served.provider.destroy(&served.place(), &request, &workspace.context())?;
    }
    empty_stores(workspace)?;
    workspace.take_folder()
}
