//! A workspace in a temporary folder, and a provider that keeps snapshots in memory: enough to try restore on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ah_plugin_api::{
    Capability, CapturePolicy, Change, Changes, ContentId, Context, Description, DestroyRequest, DiffMethod,
    DiffRequest, Dir, Done, Durability, Entry, EntryKind, Error, ErrorKind, ListRequest, LookupRequest, Lost,
    MountRequest, Omission, OmitReason, Place, Probe, ProbeRequest, Provider, ProviderName, ReadDirRequest,
    ReadRequest, ReclaimRequest, Reclaimed, Reference, RelPath, Result, Side, Snapshot, SnapshotId, SnapshotRef,
    SnapshotRequest, Timestamp, UnmountRequest, View,
};
use ah_rules::{DirRules, Rules};

use crate::restore::Ignores;
use crate::restore::apply::{Applied, apply, lanes};
use crate::restore::at::{self, Tree};
use crate::restore::journal::{Journal, Named};
use crate::restore::plan::{Ground, Plan, Wish, plan};
use crate::restore::scope::Scope;
use crate::walk::{Shelf, write_all};

type Held = BTreeMap<RelPath, (Entry, Vec<u8>)>;
type OnRead = Box<dyn Fn(&RelPath) + Send + Sync>;

/// Keeps snapshots in memory.
pub(super) struct Memory {
    pub(super) capabilities: BTreeSet<Capability>,
    snapshots: Mutex<HashMap<String, (Snapshot, Held)>>,
    /// Called with each path that is read: for what happens meanwhile.
    pub(super) on_read: Mutex<Option<OnRead>>,
    /// What a snapshot cannot give any more.
    pub(super) lost: Mutex<Vec<(Reference, Lost)>>,
    /// What is answered to who reads a path of a snapshot.
    pub(super) refuses: Mutex<Vec<(Reference, RelPath, Error)>>,
    /// Whether it is answered once only.
    pub(super) passes: AtomicBool,
    /// Whether no path leads anywhere in a snapshot whose top is refused.
    pub(super) leads_nowhere: AtomicBool,
    /// After how many times that something of a snapshot was read it is away.
    pub(super) away_after: Mutex<Option<usize>>,
}

impl Memory {
    fn held(&self, reference: &Reference) -> Held {
        self.snapshots.lock().unwrap()[reference.as_str()].1.clone()
    }

    /// As a provider answers whose store went away: it is not known to be gone.
    fn is_there(&self) -> Result<()> {
        match &mut *self.away_after.lock().unwrap() {
            Some(0) => Err(Error::new(ErrorKind::DataLoss, "the store is away")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn refused(&self, snapshot: &Reference, path: &RelPath) -> Result<()> {
        let mut refuses = self.refuses.lock().unwrap();
        let found = refuses.iter().position(|(of, refused, _)| of == snapshot && refused == path);
        let Some(at) = found else { return Ok(()) };
        let error = refuses[at].2.clone();
        if self.passes.load(Ordering::Relaxed) {
            refuses.remove(at);
        }
        Err(error)
    }

    fn capture(&self, tree: Tree<'_>, rules: &DirRules, at: &RelPath, held: &mut Held, omitted: &mut Vec<Omission>) {
        let policy = self.capabilities.contains(&Capability::AppliesPolicy);
        let dir = tree.dir(at).unwrap();
        for name in tree.names(at).unwrap() {
            let path = at.join(&name).unwrap();
            let found = at::stat(dir.as_fd(), &name).unwrap().unwrap();
            let class = rules.classify(&name, found.kind, found.size);
            if name.starts_with(b".ah-restore-") {
                continue;
            }
            if policy && !class.is_captured() {
                let ah_rules::Class::Omitted { reason, detail, .. } = class else { unreachable!() };
                omitted.push(Omission { path, reason, detail });
                continue;
            }
            if name == b".git" {
                continue;
            }
            let mut entry = found.entry(&name);
            entry.ignored = policy && class.is_ignored();
            let bytes = match found.kind {
                EntryKind::File => std::fs::read(at::proc_name(tree.file(&path).unwrap().as_fd())).unwrap(),
                EntryKind::Symlink => at::read_link(dir.as_fd(), &name).unwrap(),
                EntryKind::Dir => {
                    let below = tree.dir(&path).unwrap();
                    let rules = rules.enter(&name, &class, below.as_fd(), None);
                    self.capture(tree, &rules, &path, held, omitted);
                    Vec::new()
                }
                _ => {
                    omitted.push(Omission { path, reason: OmitReason::SpecialFile, detail: None });
                    continue;
                }
            };
            if self.capabilities.contains(&Capability::Diff) && entry.kind != EntryKind::Dir {
                entry.content = Some(ContentId(bytes.clone().into_iter().chain([1]).collect()));
            }
            held.insert(path, (entry, bytes));
        }
    }
}

impl Provider for Memory {
    fn describe(&self) -> Description {
        let name = ProviderName::new("memory").unwrap();
        let capabilities = self.capabilities.clone();
        Description { name, version: "0".into(), rank: None, filesystems: [].into(), capabilities }
    }

    fn probe(&self, _: &Place<'_>, _: &ProbeRequest, _: &Context<'_>) -> Result<Probe> {
        Err(Error::new(ErrorKind::Unsupported, "not here"))
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, _: &Context<'_>) -> Result<Snapshot> {
        let top = place.need_workspace()?;
        let tree = Tree::new(top.as_fd())?;
        let rules = Rules::open(top.as_fd(), &request.policy).root(top.as_fd());
        let (mut held, mut omitted) = (Held::new(), Vec::new());
        let root = tree.stat(&RelPath::root()).unwrap().unwrap().entry(b"");
        held.insert(RelPath::root(), (root, Vec::new()));
        self.capture(tree, &rules, &RelPath::root(), &mut held, &mut omitted);
        let snapshot = Snapshot {
            id: request.id.clone(),
            reference: Reference::new(request.id.as_str())?,
            created: request.created,
            label: None,
            attributes: BTreeMap::new(),
            durability: Durability::Durable,
            tree: None,
            entries: None,
            omitted_total: omitted.len() as u64,
            omitted,
            repository: None,
            pins: None,
            changed_below: None,
        };
        self.snapshots.lock().unwrap().insert(request.id.as_str().to_owned(), (snapshot.clone(), held));
        Ok(snapshot)
    }

    fn sync(&self, _: &Place<'_>, _: &SnapshotRef, _: &Context<'_>) -> Result<Done> {
        Ok(Done {})
    }

    fn list(&self, _: &Place<'_>, _: &ListRequest, _: &Context<'_>) -> Result<Vec<Snapshot>> {
        Ok(Vec::new())
    }

    fn stat(&self, _: &Place<'_>, request: &SnapshotRef, _: &Context<'_>) -> Result<Snapshot> {
        self.is_there()?;
        Ok(self.snapshots.lock().unwrap()[request.snapshot.as_str()].0.clone())
    }

    fn destroy(&self, _: &Place<'_>, _: &DestroyRequest, _: &Context<'_>) -> Result<Done> {
        Ok(Done {})
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, _: &Context<'_>) -> Result<View> {
        let path = place.need_target()?.path().join(request.name.as_os_str());
        std::fs::create_dir(&path).unwrap();
        for (rel, (entry, bytes)) in self.held(&request.snapshot).iter().skip(1) {
            let at = path.join(rel.as_path());
            match entry.kind {
                EntryKind::Dir => std::fs::create_dir(&at).unwrap(),
                EntryKind::Symlink => std::os::unix::fs::symlink(std::str::from_utf8(bytes).unwrap(), &at).unwrap(),
                _ => {
                    std::fs::write(&at, bytes).unwrap();
                    std::fs::set_permissions(&at, std::fs::Permissions::from_mode(entry.mode)).unwrap();
                }
            }
            if entry.kind != EntryKind::Dir {
                at::set_mtime(rustix::fs::CWD, at.as_os_str().as_encoded_bytes(), entry.mtime).unwrap();
            }
        }
        let reference = Reference::new(path.to_str().unwrap()).unwrap();
        Ok(View { path, reference, read_only_mount: false })
    }

    fn unmount(&self, _: &Place<'_>, request: &UnmountRequest, _: &Context<'_>) -> Result<Done> {
        std::fs::remove_dir_all(request.view.as_str()).unwrap();
        Ok(Done {})
    }

    fn diff(&self, _: &Place<'_>, request: &DiffRequest, _: &Context<'_>) -> Result<Changes> {
        let (Side::Snapshot(from), Side::Snapshot(to)) = (&request.from, &request.to) else { unreachable!() };
        let (from, to) = (self.held(from), self.held(to));
        let mut changes = Vec::new();
        for path in from.keys().chain(to.keys()).cloned().collect::<BTreeSet<RelPath>>() {
            if !request.paths.is_empty() && !request.paths.iter().any(|top| path.starts_with(top)) {
                continue;
            }
            let (before, after) = (from.get(&path), to.get(&path));
            let same = before.zip(after).is_some_and(|((a, x), (b, y))| {
                a.kind == b.kind && a.mode == b.mode && x == y && (!request.times || a.mtime == b.mtime)
            });
            if !same {
                let entry = |side: Option<&(Entry, Vec<u8>)>| side.map(|(entry, _)| entry.clone());
                changes.push(Change { path, before: entry(before), after: entry(after) });
            }
        }
        let lost: Vec<Lost> = self.lost.lock().unwrap().iter().map(|(_, lost)| lost.clone()).collect();
        for change in changes.iter_mut().filter(|it| lost.iter().any(|lost| lost.absent && lost.path == it.path)) {
            change.after = change.after.take().or_else(|| change.before.clone());
        }
        Ok(Changes { changes, method: DiffMethod::Native, untouched: false, lost, unread: Vec::new() })
    }

    fn read_dir(&self, _: &Place<'_>, request: &ReadDirRequest, _: &Context<'_>) -> Result<Vec<Entry>> {
        self.refused(&request.snapshot, &request.path)?;
        let held = self.held(&request.snapshot);
        Ok(held
            .iter()
            .filter(|(path, _)| path.parent().as_ref() == Some(&request.path))
            .map(|(_, (entry, _))| entry.clone())
            .collect())
    }

    fn read(&self, place: &Place<'_>, request: &ReadRequest, _: &Context<'_>) -> Result<Entry> {
        if let Some(hook) = &*self.on_read.lock().unwrap() {
            hook(&request.path);
        }
        self.refused(&request.snapshot, &request.path)?;
        self.is_there()?;
        let (entry, bytes) = self.held(&request.snapshot)[&request.path].clone();
        write_all(place.need_output()?, &bytes).map_err(|e| at::io("cannot write", e))?;
        Ok(entry)
    }

    fn lookup(&self, _: &Place<'_>, request: &LookupRequest, _: &Context<'_>) -> Result<Vec<Option<Entry>>> {
        let lost = |snapshot| {
            self.lost.lock().unwrap().iter().any(|(of, it)| of == snapshot && it.path == request.path && !it.absent)
        };
        if request.snapshots.iter().any(lost) {
            return Err(Error::new(ErrorKind::DataLoss, "changed below"));
        }
        if self.leads_nowhere.load(Ordering::Relaxed) {
            request.snapshots.iter().try_for_each(|snapshot| self.refused(snapshot, &RelPath::root()))?;
        }
        let find = |snapshot| self.held(snapshot).get(&request.path).map(|(entry, _)| entry.clone());
        Ok(request.snapshots.iter().map(find).collect())
    }

    fn reclaim(&self, _: &Place<'_>, _: &ReclaimRequest, _: &Context<'_>) -> Result<Reclaimed> {
        Ok(Reclaimed::default())
    }
}

/// What is asked of a restore.
pub(super) struct Ask {
    pub(super) scope: Scope,
    pub(super) ignored: bool,
    pub(super) delete_ignored: bool,
    pub(super) exact_times: bool,
    pub(super) force: bool,
}

impl Default for Ask {
    fn default() -> Self {
        Self { scope: Scope::Everything, ignored: false, delete_ignored: false, exact_times: false, force: false }
    }
}

/// A restore that was done.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) plan: Plan,
    pub(super) applied: Applied,
    pub(super) journal: Journal,
}

/// All there is.
pub(super) struct Lab {
    tmp: tempfile::TempDir,
    pub(super) memory: Memory,
    store: Dir,
    scratch: Dir,
    workspace: Dir,
    next: Mutex<u32>,
}

/// Everything a listing shows of a path.
pub(super) type Shown = BTreeMap<PathBuf, (u32, Vec<u8>, Timestamp)>;

impl Lab {
    pub(super) fn new(capabilities: &[Capability]) -> Self {
        Self::within(&std::env::temp_dir(), capabilities)
    }

    pub(super) fn within(folder: &Path, capabilities: &[Capability]) -> Self {
        let tmp = tempfile::tempdir_in(folder).unwrap();
        let dir = |name: &str| {
            std::fs::create_dir(tmp.path().join(name)).unwrap();
            Dir::open(tmp.path().join(name)).unwrap()
        };
        let (store, scratch, workspace) = (dir("store"), dir("scratch"), dir("ws"));
        let memory = Memory {
            capabilities: capabilities.iter().copied().collect(),
            snapshots: Mutex::default(),
            on_read: Mutex::default(),
            lost: Mutex::default(),
            refuses: Mutex::default(),
            passes: AtomicBool::default(),
            leads_nowhere: AtomicBool::default(),
            away_after: Mutex::default(),
        };
        // Rules apply from the top of a repository on, as with Git.
        for part in ["objects", "refs"] {
            std::fs::create_dir_all(tmp.path().join("ws/.git").join(part)).unwrap();
        }
        std::fs::write(tmp.path().join("ws/.git/HEAD"), "ref: refs/heads/main\n").unwrap();
        Self { memory, store, scratch, workspace, tmp, next: Mutex::new(0) }
    }

    /// A provider like Git's.
    pub(super) fn like_git() -> Self {
        Self::new(&[Capability::Diff, Capability::ReadWithoutMount, Capability::AppliesPolicy])
    }

    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.tmp.path().join("ws").join(path)
    }

    pub(super) fn write(&self, path: &str, contents: &str) {
        std::fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        std::fs::write(self.at(path), contents).unwrap();
    }

    pub(super) fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.at(path)).unwrap()
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let mut next = self.next.lock().unwrap();
        *next += 1;
        let request = SnapshotRequest {
            id: SnapshotId::new(format!("s{next}")).unwrap(),
            created: Timestamp::now(),
            label: None,
            attributes: BTreeMap::new(),
            durability: Durability::Durable,
            policy: CapturePolicy { max_file_size: 1000, max_ignored_size: 100, ..CapturePolicy::default() },
        };
        let place = Place::new(&self.store).with_workspace(&self.workspace);
        self.memory.snapshot(&place, &request, &Context::quiet()).unwrap()
    }

    /// A snapshot that left out what is below a directory at the top, as a provider does where something is mounted.
    pub(super) fn snapshot_without(&self, name: &str) -> Snapshot {
        let mut snapshots = self.memory.snapshots.lock().unwrap();
        let (id, held) = (snapshots.len().to_string(), snapshots.values().next().unwrap().clone());
        let mut held = held;
        held.0.id = SnapshotId::new(format!("w{id}")).unwrap();
        held.0.reference = Reference::new(held.0.id.as_str()).unwrap();
        let top = RelPath::new(name).unwrap();
        held.1.retain(|path, _| *path == top || !path.starts_with(&top));
        held.0.omitted.push(Omission { path: top, reason: OmitReason::OtherFilesystem, detail: None });
        snapshots.insert(held.0.id.as_str().to_owned(), held.clone());
        held.0
    }

    /// Has the provider tell of a path in a snapshot what is not so.
    pub(super) fn falsify(&self, held: &Snapshot, path: &str, with: impl FnOnce(&mut Entry)) {
        let mut snapshots = self.memory.snapshots.lock().unwrap();
        let (_, held) = snapshots.get_mut(held.reference.as_str()).unwrap();
        with(&mut held.get_mut(&RelPath::new(path).unwrap()).unwrap().0);
    }

    pub(super) fn ground<T>(&self, with: impl FnOnce(&Ground<'_>) -> T) -> T {
        let policy = CapturePolicy::default();
        let everything = !self.memory.capabilities.contains(&Capability::AppliesPolicy);
        let ignores = everything.then(|| Ignores::open(Dir::open(self.at("")).unwrap(), &policy).unwrap());
        let shelf = Shelf::new(&self.memory, &self.store, (self.workspace.path(), "lab"), &self.scratch);
        with(&Ground { workspace: &self.workspace, shelf, own_state: &[], ignores: ignores.as_ref() })
    }

    pub(super) fn plan(&self, safety: &Snapshot, target: &Snapshot, ask: &Ask) -> Plan {
        self.try_plan(safety, target, ask).unwrap()
    }

    pub(super) fn try_plan(&self, safety: &Snapshot, target: &Snapshot, ask: &Ask) -> Result<Plan> {
        let wish = Wish {
            safety,
            safety_shelf: None,
            target,
            scope: ask.scope.clone(),
            ignored: ask.ignored,
            delete_ignored: ask.delete_ignored,
            exact_times: ask.exact_times,
            force: ask.force,
        };
        self.ground(|ground| {
            let source = ground.shelf.open(&target.reference, &Context::quiet()).unwrap();
            plan(ground, &wish, &source, &Context::quiet())
        })
    }

    pub(super) fn journal(&self, plan: &Plan, safety: &Snapshot, target: &Snapshot) -> Journal {
        let named = |snapshot: &Snapshot| Named { id: snapshot.id.clone(), reference: snapshot.reference.clone() };
        let restore = format!("r{}", self.next.lock().unwrap());
        Journal {
            version: 1,
            session: crate::ids::SessionName::main(),
            began: Timestamp::now(),
            boot: String::new(),
            provider: ProviderName::new("memory").unwrap(),
            target: named(target),
            safety: named(safety),
            back: named(safety),
            back_paths: Vec::new(),
            undoes: None,
            rewind: None,
            paths: Vec::new(),
            ignored: false,
            exact_times: false,
            force: false,
            staging: Journal::staging_of(&restore).unwrap(),
            lanes: lanes(),
            unlocked: Vec::new(),
            left: Vec::new(),
            steps: Journal::steps_of(plan),
            restore,
        }
    }

    pub(super) fn apply(&self, plan: Plan, safety: &Snapshot, target: &Snapshot, exact: bool) -> Result<Outcome> {
        self.apply_watched(plan, safety, target, exact, &Context::quiet())
    }

    /// As [`Lab::apply`], while somebody watches.
    pub(super) fn apply_watched(
        &self,
        plan: Plan,
        safety: &Snapshot,
        target: &Snapshot,
        exact: bool,
        cx: &Context<'_>,
    ) -> Result<Outcome> {
        assert_eq!(plan.conflicts, []);
        let mut journal = self.journal(&plan, safety, target);
        let applied = self.ground(|ground| {
            let source = ground.shelf.open(&target.reference, cx).unwrap();
            apply(ground, &plan, &journal, &source, exact, cx)
        })?;
        journal.leave(&applied.undone);
        Ok(Outcome { plan, applied, journal })
    }

    /// A whole restore that must succeed; gives the safety snapshot, too.
    pub(super) fn restore(&self, target: &Snapshot, ask: &Ask) -> (Snapshot, Outcome) {
        let safety = self.snapshot();
        let plan = self.plan(&safety, target, ask);
        let outcome = self.apply(plan, &safety, target, ask.exact_times).unwrap();
        assert_eq!(outcome.applied.failed, []);
        assert!(std::fs::read_dir(self.tmp.path().join("scratch")).unwrap().next().is_none(), "a view is left");
        (safety, outcome)
    }

    /// What is answered to who reads that path of a snapshot from now on.
    pub(super) fn refuse(&self, of: &Snapshot, path: &str, kind: ErrorKind) {
        self.refuse_with(of, path, Error::new(kind, "refused"));
    }

    /// Likewise, of the disk's own.
    pub(super) fn break_disk_under(&self, of: &Snapshot, path: &str) {
        self.refuse_with(of, path, at::io("cannot read", rustix::io::Errno::IO));
    }

    fn refuse_with(&self, of: &Snapshot, path: &str, error: Error) {
        self.memory.refuses.lock().unwrap().push((of.reference.clone(), RelPath::new(path).unwrap(), error));
    }

    /// Takes a restore back.
    pub(super) fn undo(&self, safety: &Snapshot, outcome: &Outcome) -> (Snapshot, Outcome) {
        let touched = outcome.journal.touched().cloned().collect();
        self.restore(
            safety,
            &Ask { scope: Scope::Exactly(touched), ignored: true, delete_ignored: true, ..Ask::default() },
        )
    }

    /// Everything in the workspace but `.git`; of directories no times.
    pub(super) fn shown(&self) -> Shown {
        fn walk(top: &Path, dir: &Path, shown: &mut Shown) {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let meta = path.symlink_metadata().unwrap();
                let rel = path.strip_prefix(top).unwrap().to_path_buf();
                if rel == Path::new(".git") {
                    continue;
                }
                let time = Timestamp { secs: meta.mtime(), nanos: u32::try_from(meta.mtime_nsec()).unwrap() };
                if meta.is_dir() {
                    shown.insert(rel, (meta.mode(), b"dir".to_vec(), Timestamp::default()));
                    walk(top, &path, shown);
                } else if meta.is_symlink() {
                    let link = std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
                    shown.insert(rel, (meta.mode(), link, time));
                } else if meta.is_file() {
                    shown.insert(rel, (meta.mode(), std::fs::read(&path).unwrap(), time));
                } else {
                    shown.insert(rel, (meta.mode(), b"special".to_vec(), time));
                }
            }
        }
        let mut shown = Shown::new();
        walk(&self.at(""), &self.at(""), &mut shown);
        shown
    }
}

/// Without times.
pub(super) fn timeless(shown: &Shown) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    shown.iter().map(|(path, (mode, bytes, _))| (path.clone(), (*mode, bytes.clone()))).collect()
}
