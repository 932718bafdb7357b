//! A workspace that is open: the handle that all operations hang on, and what they share.

use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use ah_plugin_api::{
    Capability, CapturePolicy, Context, Dir, Durability, Error, ErrorKind, Place, Provider, ProviderName, RelPath,
    Result, Timestamp,
};

use crate::attend::is_place;
use crate::background;
use crate::config::Config;
use crate::engine::Engine;
use crate::fsio;
use crate::ids::{SessionName, WorkspaceId};
use crate::lock::Lock;
use crate::moments::{Point, told};
use crate::notice::{Notice, NoticeKind};
use crate::open::no_more;
use crate::record::SnapshotRecord;
use crate::refs::Resolver;
use crate::registry::{Identity, Index, WorkspaceRecord};
use crate::restore::at::Tree;
use crate::session;
use crate::state::State;
use crate::text;
use crate::timeline::{Came, Event, EventBody, FaultKind, Head, Log, TimelineFault, TimelineReport};
use crate::walk::Shelf;

/// A registered workspace.
pub struct Workspace {
    pub(crate) engine: Engine,
    pub(crate) id: WorkspaceId,
    pub(crate) root: PathBuf,
    pub(crate) record: WorkspaceRecord,
    /// Held as long as nothing is kept of it (`fresh`).
    pub(crate) fresh: Option<Lock>,
    /// The timelines' lock, where all that this handle does is done under it.
    pub(crate) timeline: Option<Lock>,
}

impl Workspace {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> &WorkspaceId {
        &self.id
    }

    /// Where it is, canonical.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where it is also when `exec` shows it at another path, canonical.
    #[must_use]
    pub fn own_path(&self) -> &Path {
        &self.record.path
    }

    /// Whether it is shown at another path than its own.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.root != self.record.path
    }

    /// Its own path, where it is shown at another one, as in a command of `exec`.
    #[must_use]
    pub fn own_place(&self) -> Option<&Path> {
        self.is_elsewhere().then_some(self.record.path.as_path())
    }

    /// The engine it belongs to.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The session that is written to.
    #[must_use]
    pub fn own_session(&self) -> SessionName {
        self.writing_session()
    }

    /// The path inside this workspace that `path` means when said in directory `cwd`. It need not exist any more.
    ///
    /// # Errors
    /// `InvalidArgument` if it is outside the workspace.
    pub fn rel_path(&self, cwd: &Path, path: &Path) -> Result<RelPath> {
        let mut full = PathBuf::new();
        for part in cwd.join(path).components() {
            match part {
                Component::ParentDir => drop(full.pop()),
                Component::CurDir => {}
                part => full.push(part),
            }
        }
        // What is above the named thing may be spelled through symlinks (`/tmp` on some systems); the thing itself is not followed.
        let spelled = full.parent().zip(full.file_name()).and_then(|(above, name)| {
            let there = above.ancestors().find_map(|dir| Some((std::fs::canonicalize(dir).ok()?, dir)))?;
            Some(there.0.join(above.strip_prefix(there.1).ok()?).join(name))
        });
        let inside = full.strip_prefix(&self.root).ok().map(Path::to_owned).or_else(|| {
            let spelled = spelled.unwrap_or_else(|| full.clone());
            let same = || std::fs::canonicalize(&full).is_ok_and(|full| full == self.root);
            spelled.strip_prefix(&self.root).ok().map(Path::to_owned).or_else(|| same().then(PathBuf::new))
        });
        let inside = inside.ok_or_else(|| {
            let message = format!("{} is outside the workspace {}", path.display(), self.root.display());
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        RelPath::new(inside.as_os_str().as_bytes())
    }

    /// Whether there is something at that path; no symlink on the way to it is followed.
    #[must_use]
    pub fn is_there(&self, path: &RelPath) -> bool {
        let look = |dir: Dir| Tree::new(dir.as_fd()).ok()?.stat(path).ok().flatten();
        self.open_dir().ok().and_then(look).is_some()
    }

    /// The snapshot that a REF names (DESIGN §7): `@`, `@{2}`, an id or a beginning of one, a label, a time.
    ///
    /// # Errors
    /// `InvalidArgument` if it is ambiguous, with the candidates in the hint, or not well-formed; `NotFound` if it names nothing.
    pub fn resolve(&self, reference: &str) -> Result<SnapshotRecord> {
        self.resolve_and_tell(&self.state()?, reference)
    }

    /// As [`Workspace::resolve`]: where a neighbour stands in for the moment that is named, a notice says so.
    pub(crate) fn resolve_and_tell(&self, state: &State, reference: &str) -> Result<SnapshotRecord> {
        let Point { snapshot, moment, exact, named } = self.point_in(state, reference)?;
        if let Some(moment) = moment.filter(|_| named && !exact) {
            let why = moment.record.reason.as_deref().map_or_else(String::new, |reason| format!(" ({reason})"));
            let id = &snapshot.id;
            let message =
                format!("no snapshot shows {reference} exactly{why}; {id} is taken, which shows what was before it");
            let notice = Notice::new(NoticeKind::Other, message);
            let own = moment.record.snapshot.filter(|own| *own != snapshot.id);
            self.engine.notify(match own {
                Some(own) => notice.with_hint(format!("`ah agent fs show {own}`: taken for it, a little later")),
                None => notice,
            });
        }
        Ok(snapshot)
    }

    /// As [`Workspace::resolve`] of each, with one look at the timeline.
    ///
    /// # Errors
    /// If the timeline cannot be read; what a REF does not name is in its place.
    pub fn resolve_each(&self, references: &[String]) -> Result<Vec<Result<SnapshotRecord>>> {
        let state = &self.state()?;
        let resolve = |resolver: &Resolver<'_>, text: &String| {
            resolver.resolve(text).map_err(|error| self.of_nothing(state, text, error))
        };
        Ok(self.with_resolver(state, |resolver| references.iter().map(|text| resolve(resolver, text)).collect()))
    }

    /// As [`Workspace::resolve`] of each, of what is to go or to be marked: no REF means a neighbour of what it names there.
    pub(crate) fn resolve_own_in(&self, state: &State, references: &[String]) -> Result<Vec<SnapshotRecord>> {
        let own = |resolver: &Resolver<'_>, text: &String| {
            resolver.resolve_own(text).map_err(|error| self.of_nothing(state, text, error))
        };
        self.with_resolver(state, |resolver| references.iter().map(|text| own(resolver, text)).collect())
    }

    pub(crate) fn resolve_in(&self, state: &State, reference: &str) -> Result<SnapshotRecord> {
        self.point_in(state, reference).map(|point| point.snapshot)
    }

    pub(crate) fn point_in(&self, state: &State, reference: &str) -> Result<Point> {
        let point = self.with_resolver(state, |resolver| resolver.point(reference));
        point.map_err(|error| self.of_nothing(state, reference, error))
    }

    /// Where a REF names nothing, or more than one thing: why, or where it does.
    fn of_nothing(&self, state: &State, reference: &str, error: Error) -> Error {
        self.of_branches(reference, self.of_branchs_beginning(state, reference, error))
    }

    /// Where a branch has no snapshots yet, that is why a REF names nothing; what it began with is the workspace's that it grew from, whatever it has.
    fn of_branchs_beginning(&self, state: &State, reference: &str, error: Error) -> Error {
        if error.kind != ErrorKind::NotFound || self.record.branch.is_none() {
            return error;
        }
        let is_fresh = state.snapshots.is_empty();
        let has = "a branch has the snapshots that were taken in it";
        match self.grown_from() {
            Ok(Some((origin, from))) if is_fresh || from.id.as_str() == reference => {
                let (there, id) = (text::shell(origin.root.as_os_str()), &from.id);
                // Where it is shown at another path, that is the origin's.
                let begun = match self.is_elsewhere() {
                    false => format!("`ah -C {there} agent fs seek {id}` shows what it began with"),
                    true => {
                        format!("what it began with is shown outside of `exec`: `ah -C {there} agent fs seek {id}`")
                    }
                };
                error.with_hint(match is_fresh {
                    true => format!(
                        "{has}, and none yet: `ah agent fs diff` shows what was changed since it was made, and {begun}"
                    ),
                    false => format!("{has}: {begun}"),
                })
            }
            _ if is_fresh => error.with_hint(format!("{has}, and none yet: `ah agent fs snapshot`")),
            _ => error,
        }
    }

    pub(crate) fn with_resolver<T>(&self, state: &State, ask: impl FnOnce(&Resolver<'_>) -> T) -> T {
        let settings = self.engine.settings();
        let own = settings.session.as_ref().or(settings.agent_session.as_ref());
        let resolver = Resolver {
            state,
            only: settings.session.as_ref(),
            own,
            began: self.began(&self.writing_session()),
            now: settings.clock.now(),
            local: settings.local_time,
            named: settings.named_time,
        };
        ask(&resolver)
    }

    fn began(&self, session: &SessionName) -> Option<Timestamp> {
        let record = session::load(&self.folder(), session).ok().flatten();
        record.map(|record| record.created).or_else(|| self.log().began(session))
    }
}

/// A provider with its store for one workspace.
#[derive(Clone)]
pub(crate) struct Served {
    /// Its name.
    pub(crate) name: ProviderName,
    /// The provider itself.
    pub(crate) provider: Arc<dyn Provider>,
    /// Its folder for this workspace.
    pub(crate) store: Arc<Dir>,
}

impl Served {
    /// A place with the store; workspace, target and output are added as the operation needs.
    pub(crate) fn place(&self) -> Place<'_> {
        Place::new(&self.store)
    }

    /// Whether what it captures lies in its store. One that serves certain filesystems alone leaves it to these.
    pub(crate) fn keeps_in_store(&self) -> bool {
        self.provider.describe().filesystems.is_empty()
    }

    /// Whether it can do that.
    pub(crate) fn can(&self, capability: Capability) -> bool {
        self.provider.describe().capabilities.contains(&capability)
    }
}

/// For the operations in other modules.
impl Workspace {
    /// The workspace's directory, opened; `FailedPrecondition` if it is not the registered one any more.
    pub(crate) fn open_dir(&self) -> Result<Dir> {
        let is_it = |dir: &Dir| Ok::<_, Error>(Identity::of_fd(dir)?.same(&self.record.identity));
        // Where `exec` shows it at another path, its own one says more: which filesystem it is a part of.
        if self.root != self.record.path
            && let Ok(dir) = Dir::open(&self.record.path)
            && is_it(&dir)?
        {
            return Ok(dir);
        }
        let dir = Dir::open(&self.root).map_err(|error| match error.kind {
            ErrorKind::NotFound => no_more(&self.root, "@"),
            _ => error,
        })?;
        if is_it(&dir)? {
            return Ok(dir);
        }
        if self.record.mounted_by.is_some() && is_place(&self.root) {
            let message = format!("the workspace {} is not mounted", self.root.display());
            return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("`ah agent fs status` says why"));
        }
        let message = format!("{} is another directory now than when it was looked for", self.root.display());
        Err(Error::new(ErrorKind::Conflict, message).with_hint("repeat the command"))
    }

    /// `$AH_HOME/workspaces/<id>`.
    pub(crate) fn folder(&self) -> PathBuf {
        self.engine.home().workspace(self.id.as_str())
    }

    /// `$AH_HOME/mounts`, opened: the target of views.
    pub(crate) fn mounts_dir(&self) -> Result<Dir> {
        fsio::open_made(&self.engine.home().join("mounts"))
    }

    /// A provider's snapshots of this workspace, to read them.
    pub(crate) fn shelf<'a>(&'a self, served: &'a Served, scratch: &'a Dir) -> Shelf<'a> {
        Shelf::new(&*served.provider, &served.store, (&self.root, self.id.as_str()), scratch)
    }

    /// The folder of a provider's store for this workspace.
    pub(crate) fn store_path(&self, name: &ProviderName) -> PathBuf {
        self.folder().join("providers").join(name.as_str())
    }

    /// The provider of that name, to serve what it made.
    pub(crate) fn serve(&self, name: &ProviderName) -> Result<Served> {
        self.engine.plugins(|| self.config().map(|config| config.provider_path()).unwrap_or_default());
        let provider = self.engine.provider(name)?;
        // Somebody who takes the workspace's state away must not find a new beginning of it.
        if !self.folder().is_dir() {
            let message = format!("the state of the workspace {} was removed this moment", self.root.display());
            return Err(Error::new(ErrorKind::Conflict, message).with_hint("repeat the command"));
        }
        let store = Arc::new(fsio::open_made(&self.store_path(name))?);
        Ok(Served { name: name.clone(), provider, store })
    }

    /// Configuration in force here.
    pub(crate) fn config(&self) -> Result<Config> {
        self.engine.config(Some(&self.root))
    }

    /// Says where a project's file that nobody has trusted decides what is captured: to whoever acts by that, not in agents' hooks.
    pub(crate) fn tell_what_is_kept(&self) -> Result<()> {
        self.config()?.of_what_is_kept().into_iter().for_each(|notice| self.engine.notify(notice));
        Ok(())
    }

    /// What is captured here: configuration, the user's global ignore files, our own state.
    pub(crate) fn policy(&self) -> Result<CapturePolicy> {
        self.policy_of(&self.config()?)
    }

    /// By which policies is asked what would be lost here, in a branch of `origin` or in that itself: what one of them would capture counts, so that a
    /// project's file hides nothing unless `origin` has it and somebody trusts it there.
    pub(crate) fn policies_of_loss(&self, origin: &Self) -> Result<Vec<CapturePolicy>> {
        let (own, there) = (self.config()?, origin.config()?);
        let trusted = there.is_a_strangers().then(|| self.engine.config(None)).transpose()?;
        let mut policies = Vec::new();
        for config in [own, there].into_iter().chain(trusted) {
            let policy = self.policy_of(&config)?;
            if !policies.contains(&policy) {
                policies.push(policy);
            }
        }
        Ok(policies)
    }

    pub(crate) fn policy_of(&self, config: &Config) -> Result<CapturePolicy> {
        let mut policy = CapturePolicy { global_ignore: self.engine.global_ignore(), ..config.capture_policy() };
        if let Ok(own) = self.engine.home().path().strip_prefix(&self.root) {
            policy.own_state.push(RelPath::new(own.as_os_str().as_bytes())?);
        }
        for (own, record) in self.inside()? {
            let is_mounted = record.is_mounted();
            let behind = record.place_behind().filter(|path| is_mounted || is_there(path));
            let inside = |path: &Path| RelPath::new(path.strip_prefix(&self.root).ok()?.as_os_str().as_bytes()).ok();
            policy.own_state.extend(is_mounted.then_some(own));
            policy.own_state.extend(behind.and_then(|path| inside(&path)));
        }
        Ok(policy)
    }

    /// What a provider mounts inside is a workspace of its own, also while something stands in for it: where such are. No snapshot and no branch
    /// of this one has what is in them.
    ///
    /// # Errors
    /// If the list of workspaces cannot be read.
    pub fn mounted_inside(&self) -> Result<Vec<RelPath>> {
        let is_mounted = |record: &WorkspaceRecord| record.behind().is_some_and(|path| is_there(&path));
        Ok(self.inside()?.into_iter().filter(|(_, record)| is_mounted(record)).map(|(path, _)| path).collect())
    }

    /// The workspaces inside this one. What is mounted at this very place is the one in whose place `exec` shows this one.
    fn inside(&self) -> Result<Vec<(RelPath, WorkspaceRecord)>> {
        let mut inside = Vec::new();
        for record in Index::load(self.engine.home())?.0.workspaces {
            if let Ok(path) = record.path.strip_prefix(&self.root)
                && record.path != self.root
                && record.id != self.id
            {
                inside.push((RelPath::new(path.as_os_str().as_bytes())?, record));
            }
        }
        Ok(inside)
    }

    /// Whether there are snapshots or branches of it, as far as can be told.
    pub(crate) fn holds_something(&self) -> bool {
        let no_snapshots = self.state().is_ok_and(|state| state.snapshots.is_empty() && state.gap.is_none());
        !(no_snapshots && self.branches().is_ok_and(|branches| branches.is_empty()))
    }

    /// What provider calls run beside.
    pub(crate) fn context(&self) -> Context<'_> {
        Context::new(&*self.engine.settings().observer)
    }

    /// The session that is written to.
    pub(crate) fn writing_session(&self) -> SessionName {
        let settings = self.engine.settings();
        settings.session.clone().or_else(|| settings.agent_session.clone()).unwrap_or_else(SessionName::main)
    }

    /// The session that reading is limited to: the one asked for, else the one of the settings. `main` is always there.
    pub(crate) fn reading_session(&self, asked: Option<&SessionName>) -> Result<Option<SessionName>> {
        let Some(session) = asked.or(self.engine.settings().session.as_ref()) else { return Ok(None) };
        if *session == SessionName::main() || session::names(&self.folder())?.contains(session) {
            return Ok(Some(session.clone()));
        }
        Err(Error::new(
            ErrorKind::NotFound,
            format!("there is no session {session:?} in this workspace", session = session.as_str()),
        )
        .with_hint("ah session list"))
    }

    /// All sessions' timelines, and what they amount to. What is damaged is a notice.
    pub(crate) fn state(&self) -> Result<State> {
        self.read_timelines().map(State::of)
    }

    /// The same, not yet summed up.
    pub(crate) fn read_timelines(&self) -> Result<TimelineReport> {
        let report = self.read_log(None)?;
        if let Some(fault) = report.faults.first() {
            let TimelineFault { session, line, reason, way_out, .. } = fault;
            let (message, hint) = match fault.kind {
                FaultKind::End => (
                    format!(
                        "the end of a timeline is missing, and no snapshot goes by itself meanwhile: line {line} of session {session}: {reason}"
                    ),
                    "ah agent fs gc lists again snapshots that were lost with it, and pins what may have been pinned"
                        .to_owned(),
                ),
                FaultKind::File => (
                    format!(
                        "the timeline of session {session} is passed over, and no snapshot goes by itself meanwhile: {reason}"
                    ),
                    format!(
                        "{}; `ah agent fs snapshots` lists the others' meanwhile",
                        way_out.as_deref().unwrap_or_default()
                    ),
                ),
                FaultKind::Line | FaultKind::Unknown => (
                    format!(
                        "{} passed over, and no snapshot goes by itself meanwhile; the first is line {line} of session {session}: {reason}",
                        text::count(
                            report.faults.len(),
                            "damaged line of the timeline is",
                            "damaged lines of the timeline are"
                        ),
                    ),
                    "ah agent fs gc lists again snapshots that were lost with them".to_owned(),
                ),
            };
            self.engine.notify(Notice::new(NoticeKind::TimelineDamaged, message).with_hint(hint));
        }
        Ok(report)
    }

    /// Puts an event on a session's timeline. With `Durable` it survives a power cut when this returns.
    pub(crate) fn append(&self, session: &SessionName, body: EventBody, durability: Durability) -> Result<Event> {
        let mut events = self.append_with(session, durability, |_| vec![body])?;
        events.pop().ok_or_else(|| Error::new(ErrorKind::Internal, "an event was not written"))
    }

    /// As [`Workspace::append`], with events that depend on what is last on the timeline.
    pub(crate) fn append_with(
        &self,
        session: &SessionName,
        durability: Durability,
        make: impl FnOnce(&Head) -> Vec<EventBody>,
    ) -> Result<Vec<Event>> {
        self.append_to(&self.log(), session, durability, make)
    }

    /// The same by a log of this workspace that has its own patience.
    pub(crate) fn append_to(
        &self,
        log: &Log<'_>,
        session: &SessionName,
        durability: Durability,
        make: impl FnOnce(&Head) -> Vec<EventBody>,
    ) -> Result<Vec<Event>> {
        let appended = log.append(session, durability, make)?;
        self.settle();
        self.attend_to(appended.came);
        Ok(appended.events)
    }

    /// All timelines, or one, as they are.
    pub(crate) fn read_log(&self, only: Option<&SessionName>) -> Result<TimelineReport> {
        let (report, came) = self.log().read(only)?;
        self.attend_to(came);
        Ok(report)
    }

    /// Has the snapshots taken of moments that came on a timeline late, and tells what else is to be told.
    fn attend_to(&self, Came { torn, waits, error }: Came) {
        if waits {
            background::capture(self);
        }
        // What somebody holds is no news, nor that this is to end.
        if let Some(error) = error.filter(|error| !matches!(error.kind, ErrorKind::Busy | ErrorKind::Cancelled)) {
            let message =
                format!("what happened while somebody held the timeline cannot be put there: {}", told(&error));
            let notice = Notice::new(NoticeKind::Other, message);
            self.engine.notify(match error.hint {
                Some(hint) => notice.with_hint(hint),
                None => notice,
            });
        }
        self.tell_repaired(torn);
    }

    pub(crate) fn tell_repaired(&self, torn: u64) {
        if torn > 0 {
            let message = format!(
                "the timeline's last line was torn by a crash; {} cut off and kept in timeline.torn",
                text::count(torn, "byte was", "bytes were")
            );
            self.engine.notify(
                Notice::new(NoticeKind::TimelineRepaired, message)
                    .with_hint("ah agent fs gc lists again a snapshot that was lost with it"),
            );
        }
    }

    /// Held by the one that makes snapshots durable.
    pub(crate) fn sync_lock(&self) -> PathBuf {
        self.folder().join("sync.lock")
    }

    pub(crate) fn log(&self) -> Log<'_> {
        let settings = self.engine.settings();
        let patience = settings.patience_left();
        let held = self.timeline.as_ref();
        Log { folder: self.folder(), clock: &settings.clock, observer: &*settings.observer, patience, held }
    }

    /// Held by who is about to pin, to label or to need a snapshot, from before it is looked for until that is written down: what goes
    /// unasked is not decided meanwhile (`prune::unasked`).
    pub(crate) fn lock_stays(&self) -> Result<Lock> {
        self.lock_as("stays", false)
    }

    /// Takes the lock of that name in this workspace (`restore`, `orphans`, …), waiting briefly for another process.
    pub(crate) fn lock(&self, name: &str) -> Result<Lock> {
        self.lock_as(name, true)
    }

    /// As [`Workspace::lock`], alone or shared.
    pub(crate) fn lock_as(&self, name: &str, alone: bool) -> Result<Lock> {
        Lock::take(
            &self.folder().join(format!("{name}.lock")),
            alone,
            self.engine.settings().patience_left(),
            &*self.engine.settings().observer,
        )
    }
}

fn is_there(directory: &Path) -> bool {
    directory.symlink_metadata().is_ok_and(|found| found.is_dir())
}
