//! A home, a workspace and providers for one test.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use ah_conformance::MemoryProvider;
use ah_core::{
    Access, Clock, Engine, IdSource, Notice, NoticeKind, ProviderSet, ProviderSource, Settings, SnapshotOptions,
    SnapshotRecord, Timestamp, Workspace,
};
use ah_plugin_api::{
    Capability, Changes, CloneRequest, Context, ConvertRequest, Converted, Description, DestroyRequest, DiffRequest,
    Done, Entry, Error, ListRequest, LookupRequest, MountRequest, Observer, Place, Probe, ProbeRequest, Provider,
    ProviderName, ReadDirRequest, ReadRequest, ReclaimRequest, Reclaimed, Reference, RelPath, RepositoryState, Result,
    Snapshot, SnapshotRef, SnapshotRequest, UnmountRequest, Usage, UsageRequest, View, WritableClone,
};

type Then = Box<dyn FnOnce() + Send>;

/// What is answered in place of what is true.
type Lie<A> = Arc<Mutex<Option<Box<dyn Fn(A) -> Result<A> + Send>>>>;

/// The in-memory provider under a name and a rank, made to fail when a test wants it to.
#[derive(Clone)]
pub(crate) struct Fake {
    inner: MemoryProvider,
    name: &'static str,
    rank: Option<u32>,
    /// Where it can serve at all.
    pub(crate) filesystems: BTreeSet<u32>,
    /// How often it was asked whether it can serve.
    pub(crate) probes: Arc<AtomicI64>,
    /// What the next snapshots fail with.
    pub(crate) fails: Arc<Mutex<Option<Error>>>,
    /// What `probe` says.
    pub(crate) probe: Arc<Mutex<Option<Probe>>>,
    pub(crate) syncs: Arc<AtomicI64>,
    /// A snapshot that cannot be made durable.
    pub(crate) unsyncable: Arc<Mutex<Option<Reference>>>,
    pub(crate) reclaims: Arc<AtomicI64>,
    /// The names of views that it was told to forget.
    pub(crate) forgotten: Arc<Mutex<Vec<String>>>,
    /// What the next snapshots say of the repository.
    pub(crate) repository: Arc<Mutex<Option<RepositoryState>>>,
    /// What the next snapshots say that they pin.
    pub(crate) pins: Arc<Mutex<Option<String>>>,
    /// A view that cannot be given back.
    pub(crate) stuck: Arc<Mutex<Option<Reference>>>,
    /// Whether reading a file of a snapshot fails.
    pub(crate) reads_fail: Arc<AtomicBool>,
    /// Whether reading succeeds without anything that was read.
    pub(crate) reads_nothing: Arc<AtomicBool>,
    /// Whether what is read is cut short, which it does not say.
    pub(crate) reads_short: Arc<AtomicBool>,
    /// What it has of outputs, as a process that hangs would; none are kept otherwise.
    pub(crate) outputs: Arc<Mutex<Option<Vec<OwnedFd>>>>,
    /// Whether views say that they are read-only mounts.
    pub(crate) read_only: Arc<AtomicBool>,
    /// Whether making a branch fails.
    pub(crate) clones_fail: Arc<AtomicBool>,
    /// Whether taking away what was not finished fails.
    pub(crate) reclaims_fail: Arc<AtomicBool>,
    /// Whether taking anything away fails.
    pub(crate) destroys_fail: Arc<AtomicBool>,
    /// What is done, once, when something is taken away.
    pub(crate) on_destroy: Arc<Mutex<Option<Then>>>,
    /// What is done, once, when it is asked which snapshots there are.
    pub(crate) on_list: Arc<Mutex<Option<Then>>>,
    /// What is done, once, when it is asked what differs.
    pub(crate) on_diff: Arc<Mutex<Option<Then>>>,
    /// A directory that it cannot list, and why.
    pub(crate) unlisted: Arc<Mutex<Option<(RelPath, Error)>>>,
    /// Whether nothing can be mounted, and nothing read without that.
    pub(crate) no_mounts: Arc<AtomicBool>,
    /// Whether it shows its snapshots, and neither reads nor compares them without that.
    pub(crate) shows_alone: Arc<AtomicBool>,
    /// What is done, once, when it is asked what snapshots hold.
    pub(crate) on_usage: Arc<Mutex<Option<Then>>>,
    /// A snapshot that cannot be read: passed over in lists.
    pub(crate) damaged: Arc<Mutex<Option<Reference>>>,
    /// Whether the next snapshots have no tree by which equal ones are told.
    pub(crate) treeless: Arc<AtomicBool>,
    /// Whether it dies of being asked to convert, before anything was done.
    pub(crate) converts_die: Arc<AtomicBool>,
    /// Whether it refuses to.
    pub(crate) converts_fail: Arc<AtomicBool>,
    /// What it says of the snapshots that it takes.
    pub(crate) of_snapshots: Lie<Snapshot>,
    /// What it says of the branches that it makes.
    pub(crate) of_clones: Lie<WritableClone>,
    /// What it says of the views that it makes.
    pub(crate) of_views: Lie<View>,
    /// What it says that it has cleared up.
    pub(crate) of_reclaims: Lie<Reclaimed>,
    /// What it says once it has taken a view away.
    pub(crate) of_unmounts: Lie<Done>,
}

impl Fake {
    pub(crate) fn new(name: &'static str, rank: Option<u32>) -> Self {
        Self {
            inner: MemoryProvider::default(),
            name,
            rank,
            filesystems: BTreeSet::new(),
            probes: Arc::default(),
            fails: Arc::default(),
            probe: Arc::default(),
            syncs: Arc::default(),
            unsyncable: Arc::default(),
            reclaims: Arc::default(),
            forgotten: Arc::default(),
            repository: Arc::default(),
            pins: Arc::default(),
            stuck: Arc::default(),
            reads_fail: Arc::default(),
            reads_nothing: Arc::default(),
            reads_short: Arc::default(),
            outputs: Arc::default(),
            read_only: Arc::default(),
            clones_fail: Arc::default(),
            reclaims_fail: Arc::default(),
            destroys_fail: Arc::default(),
            on_destroy: Arc::default(),
            on_list: Arc::default(),
            on_diff: Arc::default(),
            unlisted: Arc::default(),
            no_mounts: Arc::default(),
            shows_alone: Arc::default(),
            on_usage: Arc::default(),
            damaged: Arc::default(),
            treeless: Arc::default(),
            converts_die: Arc::default(),
            converts_fail: Arc::default(),
            of_snapshots: Arc::default(),
            of_clones: Arc::default(),
            of_views: Arc::default(),
            of_reclaims: Arc::default(),
            of_unmounts: Arc::default(),
        }
    }
}

fn told<A>(lie: &Lie<A>, answer: A) -> Result<A> {
    match &*lie.lock().unwrap() {
        Some(lie) => lie(answer),
        None => Ok(answer),
    }
}

macro_rules! forward {
    ($($method:ident($request:ty) -> $answer:ty;)+) => {
        $(fn $method(&self, place: &Place<'_>, request: &$request, cx: &Context<'_>) -> Result<$answer> {
            self.inner.$method(place, request, cx)
        })+
    };
}

impl Provider for Fake {
    fn describe(&self) -> Description {
        let mut inner = self.inner.describe();
        inner.capabilities.extend([Capability::FindsDamage, Capability::Convert]);
        if self.no_mounts.load(Ordering::Relaxed) {
            inner.capabilities.remove(&Capability::ReadWithoutMount);
        }
        if self.shows_alone.load(Ordering::Relaxed) {
            let more = [Capability::ReadWithoutMount, Capability::Diff];
            inner.capabilities.retain(|capability| !more.contains(capability));
        }
        let filesystems = self.filesystems.clone();
        Description { name: ProviderName::new(self.name).unwrap(), rank: self.rank, filesystems, ..inner }
    }

    fn probe(&self, place: &Place<'_>, request: &ProbeRequest, cx: &Context<'_>) -> Result<Probe> {
        self.probes.fetch_add(1, Ordering::Relaxed);
        match &*self.probe.lock().unwrap() {
            Some(probe) => Ok(probe.clone()),
            None => self.inner.probe(place, request, cx),
        }
    }

    fn snapshot(&self, place: &Place<'_>, request: &SnapshotRequest, cx: &Context<'_>) -> Result<Snapshot> {
        match &*self.fails.lock().unwrap() {
            Some(error) => Err(error.clone()),
            None => {
                let mut snapshot = self.inner.snapshot(place, request, cx)?;
                snapshot.pins = self.pins.lock().unwrap().clone();
                snapshot.repository = self.repository.lock().unwrap().clone().or(snapshot.repository);
                snapshot.tree = snapshot.tree.filter(|_| !self.treeless.load(Ordering::Relaxed));
                told(&self.of_snapshots, snapshot)
            }
        }
    }

    fn list(&self, place: &Place<'_>, request: &ListRequest, cx: &Context<'_>) -> Result<Vec<Snapshot>> {
        if let Some(then) = self.on_list.lock().unwrap().take() {
            then();
        }
        let mut all = self.inner.list(place, request, cx)?;
        all.retain(|snapshot| self.damaged.lock().unwrap().as_ref() != Some(&snapshot.reference));
        Ok(all)
    }

    fn stat(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Snapshot> {
        if self.damaged.lock().unwrap().as_ref() == Some(&request.snapshot) {
            return Err(Error::new(ah_core::ErrorKind::DataLoss, "its record is damaged").with_hint("look at it"));
        }
        self.inner.stat(place, request, cx)
    }

    fn sync(&self, place: &Place<'_>, request: &SnapshotRef, cx: &Context<'_>) -> Result<Done> {
        if self.unsyncable.lock().unwrap().as_ref() == Some(&request.snapshot) {
            return Err(Error::new(ah_core::ErrorKind::Unavailable, "made to fail"));
        }
        self.syncs.fetch_add(1, Ordering::Relaxed);
        self.inner.sync(place, request, cx)
    }

    fn read(&self, place: &Place<'_>, request: &ReadRequest, cx: &Context<'_>) -> Result<Entry> {
        if let Some(outputs) = &mut *self.outputs.lock().unwrap() {
            outputs.push(place.need_output()?.try_clone_to_owned().unwrap());
        }
        if self.reads_fail.load(Ordering::Relaxed) {
            return Err(Error::new(ah_core::ErrorKind::DataLoss, "made to fail"));
        }
        if self.reads_nothing.load(Ordering::Relaxed) {
            let nowhere = std::fs::File::options().write(true).open("/dev/null").unwrap();
            return self.inner.read(&place.with_output(nowhere.as_fd()), request, cx);
        }
        let entry = self.inner.read(place, request, cx)?;
        if self.reads_short.load(Ordering::Relaxed) {
            // Where nobody looks at what is read, nothing can be cut.
            let output = std::fs::File::from(place.need_output()?.try_clone_to_owned().unwrap());
            let _ = output.set_len(entry.size / 2);
        }
        Ok(entry)
    }

    fn usage(&self, place: &Place<'_>, request: &UsageRequest, cx: &Context<'_>) -> Result<Usage> {
        if !request.snapshots.is_empty()
            && let Some(then) = self.on_usage.lock().unwrap().take()
        {
            then();
        }
        self.inner.usage(place, request, cx)
    }

    fn reclaim(&self, place: &Place<'_>, request: &ReclaimRequest, cx: &Context<'_>) -> Result<Reclaimed> {
        self.reclaims.fetch_add(1, Ordering::Relaxed);
        if self.reclaims_fail.load(Ordering::Relaxed) {
            return Err(Error::new(ah_core::ErrorKind::Unavailable, "made to fail"));
        }
        // As one that is asked through a socket.
        cx.check_cancelled()?;
        let forgotten = request.forgotten.iter().map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned());
        self.forgotten.lock().unwrap().extend(forgotten);
        told(&self.of_reclaims, self.inner.reclaim(place, request, cx)?)
    }

    fn unmount(&self, place: &Place<'_>, request: &UnmountRequest, cx: &Context<'_>) -> Result<Done> {
        if self.stuck.lock().unwrap().as_ref() == Some(&request.view) {
            return Err(Error::new(ah_core::ErrorKind::Busy, "made to fail"));
        }
        told(&self.of_unmounts, self.inner.unmount(place, request, cx)?)
    }

    fn destroy(&self, place: &Place<'_>, request: &DestroyRequest, cx: &Context<'_>) -> Result<Done> {
        if self.destroys_fail.load(Ordering::Relaxed) {
            return Err(Error::new(ah_core::ErrorKind::Busy, "made to fail"));
        }
        // As one that is asked through a socket.
        cx.check_cancelled()?;
        if let Some(then) = self.on_destroy.lock().unwrap().take() {
            then();
        }
        self.inner.destroy(place, request, cx)
    }

    fn mount(&self, place: &Place<'_>, request: &MountRequest, cx: &Context<'_>) -> Result<View> {
        if self.no_mounts.load(Ordering::Relaxed) {
            return Err(Error::new(ah_core::ErrorKind::Unavailable, "made to fail"));
        }
        let read_only_mount = self.read_only.load(Ordering::Relaxed);
        told(&self.of_views, View { read_only_mount, ..self.inner.mount(place, request, cx)? })
    }

    fn clone_snapshot(&self, place: &Place<'_>, request: &CloneRequest, cx: &Context<'_>) -> Result<WritableClone> {
        if self.clones_fail.load(Ordering::Relaxed) {
            return Err(Error::new(ah_core::ErrorKind::Unavailable, "made to fail"));
        }
        told(&self.of_clones, self.inner.clone_snapshot(place, request, cx)?)
    }

    /// Puts a copy of the directory in its place.
    fn convert(&self, place: &Place<'_>, _: &ConvertRequest, _: &Context<'_>) -> Result<Converted> {
        assert!(!self.converts_die.load(Ordering::Relaxed), "made to die");
        if self.converts_fail.load(Ordering::Relaxed) {
            return Err(Error::new(ah_core::ErrorKind::Unavailable, "made to fail"));
        }
        let path = place.need_workspace()?.path();
        let (new, old) = (path.with_extension("new"), path.with_extension("old"));
        assert!(std::process::Command::new("cp").arg("-a").args([path, &new]).status().unwrap().success());
        std::fs::rename(path, &old).unwrap();
        std::fs::rename(&new, path).unwrap();
        std::fs::remove_dir_all(&old).unwrap();
        Ok(Converted { changed: true, mounted: false, notes: vec!["copied".to_owned()] })
    }

    fn diff(&self, place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
        if let Some(then) = self.on_diff.lock().unwrap().take() {
            then();
            cx.check_cancelled()?;
        }
        let mut changes = self.inner.diff(place, request, cx)?;
        if let Some((path, _)) = &*self.unlisted.lock().unwrap() {
            changes.changes.retain(|change| !change.path.starts_with(path));
            changes.unread.push(path.clone());
        }
        Ok(changes)
    }

    fn read_dir(&self, place: &Place<'_>, request: &ReadDirRequest, cx: &Context<'_>) -> Result<Vec<Entry>> {
        match &*self.unlisted.lock().unwrap() {
            Some((path, error)) if *path == request.path => Err(error.clone()),
            _ => self.inner.read_dir(place, request, cx),
        }
    }

    forward! {
        lookup(LookupRequest) -> Vec<Option<Entry>>;
    }
}

/// Stops what runs once it is told to.
#[derive(Default)]
pub(crate) struct Stop(pub(crate) Arc<AtomicBool>);

impl Observer for Stop {
    fn cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Everything that a test needs.
pub(crate) struct Lab {
    _dir: tempfile::TempDir,
    /// A folder for workspaces.
    pub(crate) top: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) fake: Fake,
    now: Arc<AtomicI64>,
}

/// When every lab's time begins.
pub(crate) const BEGIN: i64 = 1_800_000_000;

impl Lab {
    pub(crate) fn new() -> Self {
        let fake = Fake::new("fake", Some(50));
        Self::with(vec![fake.clone()], fake)
    }

    #[allow(dead_code)]
    /// In memory where there is such a place: for tests of very many steps, which wait for the disk otherwise.
    pub(crate) fn in_memory() -> Self {
        let fake = Fake::new("fake", Some(50));
        let dir = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap());
        Self::at(dir, vec![fake.clone()], fake)
    }

    pub(crate) fn with(fakes: Vec<Fake>, fake: Fake) -> Self {
        Self::at(tempfile::tempdir().unwrap(), fakes, fake)
    }

    fn at(dir: tempfile::TempDir, fakes: Vec<Fake>, fake: Fake) -> Self {
        let top = dir.path().canonicalize().unwrap();
        let providers = fakes.into_iter().map(|fake| Arc::new(fake) as Arc<dyn Provider>).collect();
        let mut settings = Settings::new(top.join("home"), ProviderSource::Given(ProviderSet::of(providers)));
        let now = Arc::new(AtomicI64::new(BEGIN));
        let clock = Arc::clone(&now);
        settings.clock = Clock::from_fn(move || Timestamp { secs: clock.load(Ordering::Relaxed), nanos: 0 });
        settings.ids = IdSource::counting();
        // However full the disk is that the tests run on.
        settings.environment.insert("prune.min-free".into(), "0%".into());
        std::fs::create_dir(top.join("ws")).unwrap();
        Self { _dir: dir, top, settings, fake, now }
    }

    pub(crate) fn engine(&self) -> Engine {
        Engine::open(self.settings.clone()).unwrap()
    }

    /// Lets time pass.
    pub(crate) fn wait(&self, secs: i64) {
        self.now.fetch_add(secs, Ordering::Relaxed);
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.top.join("ws")
    }

    pub(crate) fn open(&self) -> Workspace {
        self.engine().workspace(&self.path(), Access::Create).unwrap()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        write(&self.path().join(name), text);
    }

    /// Writes a file and takes a snapshot, one minute later.
    pub(crate) fn step(&self, name: &str, text: &str) -> SnapshotRecord {
        self.wait(60);
        self.write(name, text);
        self.open().snapshot(&SnapshotOptions::default()).unwrap()
    }

    /// The folder of the only workspace.
    pub(crate) fn folder(&self) -> PathBuf {
        self.settings.home.join("workspaces").join(self.open().id().as_str())
    }

    /// Puts the timeline back to how a kill before its last lines would have left it: `head`, which is written behind them, names none of them.
    pub(crate) fn unwrite(&self, timeline: impl AsRef<[u8]>) {
        std::fs::write(self.timeline_file(), timeline).unwrap();
        std::fs::remove_file(self.folder().join("head")).unwrap();
    }

    pub(crate) fn timeline_file(&self) -> PathBuf {
        self.folder().join("sessions/main/timeline.jsonl")
    }
}

pub(crate) fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

pub(crate) fn labelled(label: &str) -> SnapshotOptions {
    SnapshotOptions { label: Some(label.to_owned()), ..SnapshotOptions::default() }
}

pub(crate) fn kinds(notices: &[Notice]) -> Vec<NoticeKind> {
    notices.iter().map(|notice| notice.kind).collect()
}
