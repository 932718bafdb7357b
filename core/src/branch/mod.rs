//! Branches: writable workspaces grown from a snapshot. Which ignored files come along is `carry`'s.
//!
//! First the branch is written down as `making`, then the provider makes it, then files are carried, then it is registered as a workspace of
//! its own and written down as `ready`. What a killed process leaves `making`, `gc` takes away, and who makes one of that name. Removing goes the other way.
//!
//! Taken away is only what holds nothing that is nowhere else (`held.rs`, `repository.rs`, `known.rs`, how that comes home `fetch.rs`; `base.rs`, of the snapshot it grew from), and in which nobody works (`command.rs`), unless it is forced.

mod base;
mod command;
mod fetch;
mod find;
mod held;
mod inside;
mod known;
mod linked;
mod place;
mod record;
mod remove;
mod repository;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ah_plugin_api::{
    Capability, CloneRequest, Context, DestroyRequest, Dir, Durability, Error, ErrorKind, FileName, Mode, ProbeRequest,
    ProviderName, RelPath, Result, WritableClone,
};

use crate::carry::{Carry, CarryOptions, CarryReport};
use crate::fsio;
use crate::ids::{BranchId, letters};
use crate::lock::{Holder, Lock, PATIENCE};
use crate::moments::told;
use crate::notice::{Notice, NoticeKind};
use crate::record::{SnapshotKind, SnapshotRecord};
use crate::registry::Identity;
use crate::select::Purpose;
use crate::snapshot::{SnapshotOptions, another_may_help, offered};
use crate::text;
use crate::timeline::EventBody;
use crate::workspace::{Served, Workspace};

use find::called;
pub(crate) use find::line_of;
pub(crate) use known::is_id;
use place::no_dir;
pub(crate) use record::{BranchFile, all, has_left_nothing, of_workspace, read_all};
pub use record::{BranchRecord, BranchState};
pub use remove::BranchRemoved;
pub(crate) use remove::{
    empty_stores, nameless_in_store, refuse_held_by_store, refuse_held_by_store_but, refuse_held_unless_captured,
};
use repository::RepositoryMark;
pub(crate) use repository::text as text_of;

/// What can be said about a branch to be made.
#[derive(Debug, Clone, Default)]
pub struct BranchOptions {
    /// The REF to grow from; none: the present state, of which a snapshot is taken.
    pub from: Option<String>,
    /// Its name; none: made from the workspace's name.
    pub name: Option<String>,
    /// Where it is made: a path that does not exist yet; none: `$AH_HOME/branches/<name>`.
    pub at: Option<PathBuf>,
    /// Whether ignored files that work needs come along; none: as configured.
    pub carry: Option<Carry>,
    /// Whether it is made for one command alone, by [`Workspace::hold_branch_once`]: `gc` takes it away, too, when that has ended.
    pub once: bool,
}

impl BranchOptions {
    /// The command that asks for it, as it is typed.
    fn command(&self) -> String {
        let mut words = vec!["branch".to_owned()];
        words.extend(self.name.iter().map(|name| format!("--name {}", text::shell(name.as_ref()))));
        words.extend(self.at.iter().map(|at| format!("--at {}", text::shell(at.as_os_str()))));
        words.extend(self.carry.map(|carry| format!("--carry {carry}")));
        words.join(" ")
    }
}

impl Workspace {
    /// Makes a writable workspace from a snapshot; the origin does not change.
    ///
    /// # Errors
    /// As [`Workspace::resolve`]; `AlreadyExists` if the name or the path is taken; the provider's.
    pub fn branch(&self, options: &BranchOptions) -> Result<BranchRecord> {
        // What can be refused is refused before a snapshot is taken for it.
        let name = match &options.name {
            Some(name) => checked_name(name)?,
            None => match self.name_of_place(options.at.as_deref())? {
                Some(name) => name,
                None => self.default_name(&self.branch_id()?, &all(self.engine.home())?),
            },
        };
        self.free_name(&name);
        let place = self.branch_place(&name, options.at.as_deref())?;
        refuse_taken(&all(self.engine.home())?, &name, &place.path())?;
        if let Some(from) = &options.from {
            let stays = self.lock_stays()?;
            let snapshot = self.resolve(from)?;
            let id = self.branch_id()?;
            let mut made = self.branch_from((&snapshot, stays), id, name, &place, options, |_, _| Ok(()))?;
            made.notes.extend(self.no_overlay(&snapshot)?);
            return Ok(made);
        }
        let config = self.config()?;
        let mut choices = self.choices(&config, Purpose::Branch)?;
        let mut served = choices.next_usable()?.ok_or_else(|| choices.nobody())?;
        loop {
            if let Some((passed, error)) = choices.take_unasked() {
                return Err(offered(error, &options.command(), &passed, &served.name));
            }
            let error = match self.branch_by(&served, &name, &place, options) {
                Ok(made) => return Ok(made),
                Err(error) if !another_may_help(&error) => return Err(error),
                Err(error) => error,
            };
            let by_itself = choices.serves_by_itself_for_branches_alone();
            let next = match choices.next_usable() {
                Err(stopped) if stopped.kind == ErrorKind::Cancelled => return Err(stopped),
                Err(_) | Ok(None) => return Err(error),
                Ok(Some(next)) => next,
            };
            // Nobody has asked for the one that only branches: where it fails, it is as if it were not there.
            if !by_itself {
                return Err(offered(error, &options.command(), &served.name, &next.name));
            }
            // Who may go on with it still has the name and the place, until gc has taken it away: that they are taken is no answer.
            if refuse_taken(&all(self.engine.home())?, &name, &place.path()).is_err() {
                return Err(error);
            }
            let message = format!("{} could not grow the branch, {} does: {}", served.name, next.name, told(&error));
            self.engine.notify(Notice::new(NoticeKind::Degraded, message).with_hint("ah agent fs status"));
            served = next;
        }
    }

    /// A branch of the present state, by that provider.
    fn branch_by(&self, served: &Served, name: &str, place: &Place, options: &BranchOptions) -> Result<BranchRecord> {
        let id = self.branch_id()?;
        let base = SnapshotOptions {
            kind: SnapshotKind::Branch,
            label: Some(format!("branch {name}")),
            ..SnapshotOptions::default()
        };
        let stays = self.lock_stays()?;
        let (snapshot, _) = self.snapshot_of(&base, Some(served))?;
        let made = self.branch_from((&snapshot, stays), id, name.to_owned(), place, options, |_, _| Ok(()));
        if made.is_err() {
            // It was taken for the branch alone, but somebody may have come to need it. What cannot be taken back now, prune finds.
            let _ = self.give_up_base_of_unmade(&snapshot.id);
        }
        let mut made = made?;
        let carry = match options.carry {
            Some(carry) => carry,
            None => self.config()?.carry(),
        };
        if carry == Carry::None && !served.can(Capability::AppliesPolicy) {
            made.notes.push(format!("ignored files are there too: {} takes all there is", served.name));
        }
        Ok(made)
    }

    fn branch_id(&self) -> Result<BranchId> {
        BranchId::new(letters(&self.engine.settings().ids))
    }

    /// What is to be said where an overlay is wanted, and the snapshot's provider makes copies.
    fn no_overlay(&self, snapshot: &SnapshotRecord) -> Result<Option<String>> {
        if self.config()?.mode() != Some(Mode::CowOverlay) {
            return Ok(None);
        }
        let served = self.serve(&snapshot.provider)?;
        let Ok(workspace) = self.open_dir() else { return Ok(None) };
        let place = served.place().with_workspace(&workspace);
        let modes = served.provider.probe(&place, &ProbeRequest::default(), &self.context())?.modes;
        let told = || format!("it is a copy: the snapshot is of {}, which makes no overlays", snapshot.provider);
        Ok((!modes.contains(&Mode::CowOverlay)).then(told))
    }

    /// As [`Workspace::branch`] of one snapshot, furnished before it is ready: if that fails, or is killed, there is no branch.
    /// `furnish` gets the branch and the workspace that it is. `stays` is as for [`Workspace::branch_from`].
    pub(crate) fn furnished_branch(
        &self,
        name: &str,
        (snapshot, stays): (&SnapshotRecord, Lock),
        furnish: impl FnOnce(&BranchRecord, &Self) -> Result<()>,
    ) -> Result<BranchRecord> {
        let (name, place) = self.free_branch(name)?;
        let id = self.branch_id()?;
        let options = BranchOptions { from: Some(snapshot.id.to_string()), ..BranchOptions::default() };
        self.branch_from((snapshot, stays), id, name, &place, &options, furnish)
    }

    /// Whether a branch may be called so, and where it would be.
    ///
    /// # Errors
    /// `InvalidArgument` if it is no name; `AlreadyExists` if the name or the path is taken.
    pub(crate) fn may_branch_as(&self, name: &str) -> Result<PathBuf> {
        self.free_branch(name).map(|(_, place)| place.path())
    }

    fn free_branch(&self, name: &str) -> Result<(String, Place)> {
        let name = checked_name(name)?;
        let place = self.branch_place(&name, None)?;
        refuse_taken(&all(self.engine.home())?, &name, &place.path())?;
        Ok((name, place))
    }

    /// A branch of one snapshot. `stays` is held from before that was looked for or taken, and given up once it is written down who needs it: to make the branch may
    /// take long, and what goes meanwhile has nothing to do with it.
    fn branch_from(
        &self,
        (snapshot, stays): (&SnapshotRecord, Lock),
        id: BranchId,
        name: String,
        place: &Place,
        options: &BranchOptions,
        furnish: impl FnOnce(&BranchRecord, &Self) -> Result<()>,
    ) -> Result<BranchRecord> {
        let served = self.serve(&snapshot.provider)?;
        // Said by a lock, too: of a process on another machine, which shares this state, nobody here sees whether it runs.
        let path = self.branch_lock(&id);
        let making = Lock::take_there(&path, false, PATIENCE, &*self.engine.settings().observer)?;
        let claimed = self.claim(id, name, place, snapshot, options.once);
        drop(stays);
        let mut file = claimed.inspect_err(|_| drop(fsio::remove_file(&path)))?;
        match self.grow(&mut file, &served, place, snapshot, options, furnish) {
            Ok(()) => Ok(file.record),
            Err(error) => {
                // A provider that failed left nothing behind. What is left of the rest, gc finds by the record. Who stopped it wants no less to be taken away.
                let _ = match file.record.reference {
                    None if !may_be_left(error.kind) => file.forget(self.engine.home()),
                    _ => remove::finish(&self.engine, &file, &served, &Context::quiet()),
                };
                drop(making);
                let _ = fsio::remove_file(&path);
                Err(error)
            }
        }
    }

    /// Writes down that the branch is being made, if neither name nor path is taken.
    fn claim(
        &self,
        id: BranchId,
        name: String,
        place: &Place,
        snapshot: &SnapshotRecord,
        once: bool,
    ) -> Result<BranchFile> {
        let home = self.engine.home();
        let _lock = self.engine.lock_registry()?;
        self.refuse_going()?;
        let path = place.path();
        refuse_taken(&all(home)?, &name, &path)?;
        let record = BranchRecord {
            id,
            name,
            state: BranchState::Making,
            path: path.clone(),
            origin: self.id.clone(),
            origin_path: self.root.clone(),
            snapshot: snapshot.id.clone(),
            workspace: None,
            provider: snapshot.provider.clone(),
            reference: None,
            created: self.engine.settings().clock.now(),
            notes: Vec::new(),
            carried: None,
        };
        let file = BranchFile {
            record,
            maker: Holder::me(),
            target: place.target.clone(),
            repository: None,
            mounted: false,
            mounted_at: None,
            once,
            made_at: path,
        };
        file.save(home)?;
        Ok(file)
    }

    fn grow(
        &self,
        file: &mut BranchFile,
        served: &Served,
        place: &Place,
        snapshot: &SnapshotRecord,
        options: &BranchOptions,
        furnish: impl FnOnce(&BranchRecord, &Self) -> Result<()>,
    ) -> Result<()> {
        let home = self.engine.home();
        let target = if place.ours { fsio::open_made(&place.target)? } else { Dir::open(&place.target)? };
        // A deleted workspace does not keep its snapshots from being worked in.
        let workspace = self.open_dir().ok();
        let mut at = served.place().with_target(&target);
        if let Some(workspace) = &workspace {
            at = at.with_workspace(workspace);
        }
        let request = CloneRequest { snapshot: snapshot.reference.clone(), name: place.name.clone() };
        let WritableClone { path, reference, notes } = served
            .provider
            .clone_snapshot(&at, &request, &self.context())
            .map_err(|error| self.explain_lost(snapshot, error))?;
        // From here on it is taken away by that, should anything fail.
        file.record.reference = Some(reference);
        self.refuse_others_place(&path, &file.made_at, &target, served)?;
        if fsio::is_no_dir(&path) {
            return Err(no_dir(file, &path, &at, place.ours, served));
        }
        file.made_at.clone_from(&path);
        file.note_mount();
        file.record.path = path;
        file.record.notes = notes;
        file.record.notes.extend(workspace.as_ref().and_then(|workspace| whose(workspace, served)));
        file.save(home)?;

        let branch = Dir::open(&file.record.path)?;
        file.record.notes.extend(self.mounted_inside()?.iter().filter_map(|path| self.not_along(path, &branch)));
        file.record.carried = match &workspace {
            Some(workspace) => self.carry_along(served, snapshot, workspace, &branch, options)?,
            None => None,
        };
        file.repository = RepositoryMark::of(&branch)?;
        let identity = Identity::of_fd(&branch)?;
        let own = {
            let _lock = self.engine.lock_registry()?;
            self.engine.register(&file.record.path, identity, Some(file.record.id.clone()))?
        };
        file.record.workspace = Some(own.id.clone());
        furnish(&file.record, &self.engine.handle(own, file.record.path.clone()))?;
        file.record.state = BranchState::Ready;
        file.save(home)?;
        let body = EventBody::Branch {
            branch: file.record.id.clone(),
            name: file.record.name.clone(),
            snapshot: snapshot.id.clone(),
            path: file.record.path.clone(),
        };
        self.append(&self.writing_session(), body, Durability::Durable)?;
        Ok(())
    }

    /// What is to be said of a workspace that a provider mounts inside this one, and of which the branch has nothing.
    fn not_along(&self, path: &RelPath, branch: &Dir) -> Option<String> {
        let behind = inside::bare(branch, path)?;
        let place = text::shell(self.root.join(path.as_path()).as_os_str());
        let behind = behind.map_or_else(String::new, |behind| format!("; {behind} does not have what is in it now"));
        Some(format!(
            "what is in {path} is not in the branch: it is a workspace of its own, and `ah -C {place} agent fs branch` makes one of it{behind}"
        ))
    }

    fn carry_along(
        &self,
        served: &Served,
        snapshot: &SnapshotRecord,
        workspace: &Dir,
        branch: &Dir,
        options: &BranchOptions,
    ) -> Result<Option<CarryReport>> {
        // Who captures everything has captured these files a moment ago.
        if options.from.is_none() && !served.can(Capability::AppliesPolicy) {
            return Ok(None);
        }
        let config = self.config()?;
        if options.carry.unwrap_or_else(|| config.carry()) == Carry::None {
            return Ok(None);
        }
        let options = CarryOptions { limit: config.carry_limit() };
        self.bring_along(served, snapshot, workspace, branch, &options)
    }

    /// The branches that read in the workspace what was not changed in them.
    ///
    /// # Errors
    /// If the folder of branches cannot be read.
    pub(crate) fn branches_reading_here(&self) -> Result<Vec<BranchFile>> {
        let mut captures_by: BTreeMap<ProviderName, bool> = BTreeMap::new();
        let mut branches = self.branch_files()?;
        branches.retain(|branch| {
            let provider = &branch.record.provider;
            // What is no mount has files of its own.
            let captures = || self.serve(provider).is_ok_and(|served| self.can_capture(&served).is_ok());
            branch.mounted && !*captures_by.entry(provider.clone()).or_insert_with(captures)
        });
        Ok(branches)
    }

    /// Whether a provider captures the workspace where it is. One that grows branches of it without that goes on reading there.
    ///
    /// # Errors
    /// `FailedPrecondition` or `Unavailable` if it does not.
    pub(crate) fn can_capture(&self, served: &Served) -> Result<()> {
        let dir = self.open_dir()?;
        let place = served.place().with_workspace(&dir);
        let request = ProbeRequest { mode: Some(Mode::InPlace), ..ProbeRequest::default() };
        let probe = served.provider.probe(&place, &request, &self.context())?;
        if !probe.usable {
            return Err(Error::new(ErrorKind::Unavailable, format!("{}: {}", served.name, probe.reason)));
        }
        match probe.modes.is_empty() || probe.modes.contains(&Mode::InPlace) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::FailedPrecondition,
                format!("{} does not capture {} where it is", served.name, self.root.display()),
            )),
        }
    }

    /// What the place of a branch is called, if that is a name, and free.
    fn name_of_place(&self, at: Option<&Path>) -> Result<Option<String>> {
        let name = at.and_then(|at| at.file_name()?.to_str()).and_then(|name| checked_name(name).ok());
        let others = if name.is_some() { all(self.engine.home())? } else { Vec::new() };
        Ok(name.filter(|name| !others.iter().any(|other| other.record.name == *name)))
    }

    /// As short as is free: among a few hundred branches two ids begin alike.
    fn default_name(&self, id: &BranchId, others: &[BranchFile]) -> String {
        let own = self.root.file_name().unwrap_or_default().to_string_lossy();
        let own: String =
            own.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).take(40).collect();
        let own = own.trim_matches('-');
        let own = if own.is_empty() { "branch" } else { own };
        let id = id.as_str();
        let named = |length: usize| format!("{own}-{}", &id[..length.min(id.len())]);
        let is_free = |name: &String| others.iter().all(|other| other.record.name != *name);
        (4..id.len()).map(named).find(is_free).unwrap_or_else(|| named(id.len()))
    }

    /// Refuses to make a branch in what a provider mounts as another one: it would be in the way of that one's removal, and be mounted only once that is.
    fn refuse_within_mounted(&self, target: &Path, at: &Path) -> Result<()> {
        let mut around = all(self.engine.home())?.into_iter().filter(|branch| branch.mounted);
        around.find(|branch| target.starts_with(branch.point())).map_or(Ok(()), |BranchFile { record, .. }| {
            let (at, name, provider) = (at.display(), &record.name, &record.provider);
            let message = format!("{at} is inside the branch {name}, which {provider} mounts");
            Err(Error::new(ErrorKind::InvalidArgument, message).with_hint("choose a place outside of it"))
        })
    }

    /// Where a branch is to be made.
    fn branch_place(&self, name: &str, at: Option<&Path>) -> Result<Place> {
        let Some(at) = at else {
            let target = self.engine.home().join("branches");
            return Ok(Place { target, name: FileName::new(name)?, ours: true });
        };
        let bad = |why: String| Error::new(ErrorKind::InvalidArgument, why);
        let at = std::path::absolute(at).map_err(|e| fsio::failed("use", at, &e))?;
        let (Some(parent), Some(last)) = (at.parent(), at.file_name()) else {
            return Err(bad(format!("{} cannot be a branch", at.display())));
        };
        // First by its name: what is mounted may not answer.
        self.refuse_within_mounted(parent, &at)?;
        let target = std::fs::canonicalize(parent).map_err(|e| {
            let failed = fsio::failed("use the folder", parent, &e);
            match failed.kind {
                ErrorKind::NotFound => failed.with_hint(format!("mkdir -p {}", text::shell(parent.as_os_str()))),
                _ => failed,
            }
        })?;
        if target.starts_with(&self.root) {
            return Err(bad(format!("{} is inside the workspace that the branch grows from", at.display()))
                .with_hint("choose a place beside it"));
        }
        if target.starts_with(self.engine.home().path()) {
            return Err(bad(format!("{} is inside AH_HOME", at.display()))
                .with_hint("leave `--at` out, or choose another place"));
        }
        if crate::seek::view_paths(self.engine.home())?.iter().any(|view| target.starts_with(view)) {
            return Err(bad(format!("{} is inside a read-only view", at.display())));
        }
        self.refuse_within_mounted(&target, &at)?;
        Ok(Place { target, name: FileName::new(last.as_bytes())?, ours: false })
    }
}

/// Whether something may be left of a branch that its provider failed to make with such an error: it may go on with it still, or have made
/// it and answered what cannot be relied on. What comes of that is taken away, now or by gc.
fn may_be_left(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Cancelled | ErrorKind::Unavailable | ErrorKind::Internal)
}

/// Where a branch is made.
struct Place {
    target: PathBuf,
    name: FileName,
    /// Whether the target is a folder of ours, which is made if need be.
    ours: bool,
}

impl Place {
    fn path(&self) -> PathBuf {
        self.target.join(OsString::from(self.name.as_os_str()))
    }
}

/// What root is told whose branch of another's workspace is root's, as its provider knows no owners.
fn whose(workspace: &Dir, served: &Served) -> Option<String> {
    let others = rustix::fs::fstat(workspace).is_ok_and(|stat| stat.st_uid != 0);
    let told = rustix::process::geteuid().is_root() && others && !served.can(Capability::Owners);
    told.then(|| format!("what comes from the snapshot is root's in the branch: {} keeps no owners", served.name))
}

fn refuse_taken(others: &[BranchFile], name: &str, path: &Path) -> Result<()> {
    let exists = |what: String, hint| {
        Err(Error::new(ErrorKind::AlreadyExists, format!("{what} exists already")).with_hint(hint))
    };
    // It may be another workspace's.
    if let Some(other) = others.iter().find(|other| other.record.name == name) {
        let (origin, place) = (other.record.origin_path.display(), other.record.path.display());
        return exists(format!("a branch {name} of {origin} ({place})"), "choose another name: `--name`");
    }
    if others.iter().any(|other| other.record.path == path) || std::fs::symlink_metadata(path).is_ok() {
        return exists(path.display().to_string(), "choose a place that is not there yet: `--at`");
    }
    Ok(())
}

fn checked_name(name: &str) -> Result<String> {
    let bad = |c: char| c.is_control() || c == '/';
    if name.trim().is_empty()
        || name.len() > 100
        || name.starts_with(['.', '-', '@'])
        || name.contains(bad)
        || name.ends_with(".json")
    {
        let message = format!(
            "{name:?} cannot be a branch's name: 1 to 100 bytes, not blanks alone, no slash or control character, not beginning with ., - or @, not ending with .json"
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(name.to_owned())
}

/// The request that takes a branch's directory away.
pub(crate) fn destroy_request(file: &BranchFile) -> Option<DestroyRequest> {
    file.record.reference.clone().map(DestroyRequest::Clone)
}
