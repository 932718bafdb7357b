//! What a case works with: a workspace, a store, a target folder, and the provider with its witness.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ah_plugin_api::{
    Capability, CapturePolicy, Changes, CloneRequest, Context, DestroyRequest, DiffRequest, Dir, Durability, Entry,
    EntryKind, Error, FileName, ListRequest, LookupRequest, Mode, MountRequest, Omission, OmitReason, Place,
    ProbeRequest, Provider, Quiet, ReadDirRequest, ReadRequest, ReclaimRequest, Reference, RelPath, Side, Snapshot,
    SnapshotId, SnapshotRef, SnapshotRequest, Timestamp, UnmountRequest, View, WritableClone,
};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::case::{Check, Trouble, ensure, same};
use crate::editor::Editor;
use crate::scratch::mounts_below;
use crate::target::{Instance, Target};
use crate::tree::{Modes, Node, Tree, digest};
use crate::witness::Witness;

/// A name that is nowhere else on any machine: a case may hand it to a provider that takes it literally.
const OUTSIDE: &str = "ah-conformance-outside";

/// All witnesses of a case, shared with the runner.
pub(crate) type Witnesses = Arc<Mutex<Vec<Arc<Witness>>>>;

/// One case's surroundings.
pub struct Fixture {
    /// The workspace, to be changed as a user would.
    pub(crate) ws: Editor,
    root: PathBuf,
    workspace: Dir,
    store: Dir,
    folder: Dir,
    target: Arc<dyn Target>,
    provider: Arc<Witness>,
    witnesses: Witnesses,
    git: Option<PathBuf>,
    clock: Arc<AtomicI64>,
}

/// A snapshot with the tree that it should show.
#[derive(Debug, Clone)]
pub(crate) struct Taken {
    pub(crate) snapshot: Snapshot,
    pub(crate) tree: Tree,
}

impl Taken {
    pub(crate) fn reference(&self) -> Reference {
        self.snapshot.reference.clone()
    }
}

/// Where the workspace lies that the tested one is a branch of, if the provider captures nothing where it is.
const GROWN: &str = "grown";

fn opened(target: &dyn Target) -> Check<Instance> {
    target.open().map_err(|error| Trouble::from(error.context("the provider cannot be opened")))
}

/// Whether the provider captures a plain directory where it is, or else serves it by branches only.
fn captures_in_place(provider: &dyn Provider, root: &Path) -> Check<bool> {
    let (workspace, store) = (Dir::open(root.join("workspace"))?, Dir::open(root.join("store"))?);
    let place = Place::new(&store).with_workspace(&workspace);
    let probe = provider.probe(&place, &ProbeRequest::default(), &Context::new(&Quiet))?;
    Ok(!probe.usable || probe.modes.is_empty() || probe.modes.contains(&Mode::InPlace))
}

/// Makes the workspace a branch of itself: what it was lies in `grown/` then, with the store that the branch is kept by.
fn grow(provider: &dyn Provider, root: &Path) -> Check<()> {
    let grown = root.join(GROWN);
    for folder in [&grown, &grown.join("store")] {
        std::fs::create_dir(folder)?;
    }
    std::fs::rename(root.join("workspace"), grown.join("workspace"))?;
    let (workspace, store) = (Dir::open(grown.join("workspace"))?, Dir::open(grown.join("store"))?);
    let (target, cx) = (Dir::open(root)?, Context::new(&Quiet));
    let place = Place::new(&store).with_workspace(&workspace).with_target(&target);
    let request = SnapshotRequest {
        id: SnapshotId::new("origin")?,
        created: Timestamp::now(),
        label: None,
        attributes: BTreeMap::new(),
        durability: Durability::Durable,
        policy: CapturePolicy::default(),
    };
    let snapshot = provider.snapshot(&place, &request, &cx)?.reference;
    provider.clone_snapshot(&place, &CloneRequest { snapshot, name: FileName::new("workspace")? }, &cx)?;
    Ok(())
}

impl Fixture {
    /// Makes the directories below `root` and opens the provider.
    pub(crate) fn new(target: Arc<dyn Target>, root: &Path, witnesses: Witnesses, git: Option<PathBuf>) -> Check<Self> {
        use std::os::unix::fs::DirBuilderExt;
        target.make_workspace(&root.join("workspace"))?;
        std::fs::DirBuilder::new().mode(0o700).create(root.join("store"))?;
        std::fs::create_dir(root.join("target"))?;
        // Stands for all that is none of the provider's business; nothing ever changes in it.
        let outside = Editor::new(root.join(OUTSIDE));
        outside.write("precious/file", "precious\n")?;
        let instance = opened(&*target)?;
        if !captures_in_place(&*instance.provider, root)? {
            grow(&*instance.provider, root)?;
        }
        Self::open(instance, target, root, witnesses, git, Arc::default())
    }

    fn open(
        instance: Instance,
        target: Arc<dyn Target>,
        root: &Path,
        witnesses: Witnesses,
        git: Option<PathBuf>,
        clock: Arc<AtomicI64>,
    ) -> Check<Self> {
        let workspace = root.join("workspace");
        let provider = Arc::new(Witness::new(instance, workspace.clone()));
        witnesses.lock().unwrap_or_else(PoisonError::into_inner).push(provider.clone());
        Ok(Self {
            ws: Editor::new(&workspace),
            workspace: Dir::open(workspace)?,
            store: Dir::open(root.join("store"))?,
            folder: Dir::open(root.join("target"))?,
            root: root.to_owned(),
            target,
            provider,
            witnesses,
            git,
            clock,
        })
    }

    /// The same directories with another instance of the provider, in another process where that can be had.
    pub(crate) fn another(&self) -> Check<Self> {
        let (target, witnesses) = (self.target.clone(), self.witnesses.clone());
        let other = Self::open(opened(&*target)?, target, &self.root, witnesses, self.git.clone(), self.clock.clone())?;
        Ok(other)
    }

    /// Whether the workspace is a plain directory, and not a branch that the provider made of one.
    pub(crate) fn is_in_place(&self) -> bool {
        !self.root.join(GROWN).exists()
    }

    pub(crate) fn provider(&self) -> &Witness {
        &self.provider
    }

    pub(crate) fn has(&self, capability: Capability) -> bool {
        self.provider.describe().capabilities.contains(&capability)
    }

    /// The program; cases that use it say that they need it.
    pub(crate) fn git(&self) -> Check<&Path> {
        self.git.as_deref().ok_or_else(|| Trouble::Skip("no git program was found".to_owned()))
    }

    /// The place with all directories.
    pub(crate) fn place(&self) -> Place<'_> {
        Place::new(&self.store).with_workspace(&self.workspace).with_target(&self.folder)
    }

    /// The place with another directory as its workspace.
    pub(crate) fn place_of<'a>(&'a self, workspace: &'a Dir) -> Place<'a> {
        self.place_without_workspace().with_workspace(workspace)
    }

    /// The place without a workspace: it may be gone, and nothing but `snapshot`, `probe` and `diff` with it needs it.
    pub(crate) fn place_without_workspace(&self) -> Place<'_> {
        Place::new(&self.store).with_target(&self.folder)
    }

    pub(crate) fn store(&self) -> &Dir {
        &self.store
    }

    pub(crate) fn workspace(&self) -> &Dir {
        &self.workspace
    }

    pub(crate) fn folder(&self) -> &Dir {
        &self.folder
    }

    /// A path beside the workspace, the store and the target.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A directory that is none of the provider's business.
    pub(crate) fn outside(&self) -> PathBuf {
        self.beside(OUTSIDE)
    }

    /// A request with the next second of the case's own clock.
    pub(crate) fn request(&self, id: &str) -> SnapshotRequest {
        let second = self.clock.fetch_add(1, Ordering::Relaxed);
        SnapshotRequest {
            id: id_of(id),
            created: Timestamp { secs: 1_700_000_000 + second, nanos: 500 },
            label: None,
            attributes: BTreeMap::new(),
            durability: Durability::Instant,
            policy: CapturePolicy::default(),
        }
    }

    /// Takes a snapshot from which nothing may be missing.
    pub(crate) fn take(&self, id: &str) -> Check<Taken> {
        self.take_with(&self.request(id), &[])
    }

    /// Takes a snapshot from which only things may be missing for which there is one of `reasons`.
    pub(crate) fn take_with(&self, request: &SnapshotRequest, reasons: &[OmitReason]) -> Check<Taken> {
        let tree = Tree::walk(self.ws.root())?;
        let snapshot = self.provider.snapshot(&self.place(), request, &Context::quiet())?;
        let allowed = |o: &&Omission| o.reason == OmitReason::GitDir || reasons.contains(&o.reason);
        if let Some(omission) = snapshot.omitted.iter().find(|o| !allowed(o)) {
            return Err(Trouble::Failed(format!(
                "{:?} was omitted as {} ({}), for no good reason",
                omission.path,
                omission.reason,
                omission.detail.as_deref().unwrap_or("no detail")
            )));
        }
        Ok(Taken { snapshot, tree })
    }

    /// The tree that a snapshot has to show: the one captured, without what it says it omitted.
    pub(crate) fn expected(&self, taken: &Taken) -> Tree {
        let policy = self.has(Capability::AppliesPolicy);
        let omitted = |path: &RelPath| {
            taken.snapshot.omitted.iter().any(|o| o.path == *path)
                || policy && path.file_name().is_some_and(|name| name == b".git")
        };
        taken.tree.clone().without(omitted)
    }

    /// Fails unless the snapshot shows the tree it was taken of, by a view and, where that can be had, by reading.
    pub(crate) fn shows(&self, taken: &Taken) -> Check {
        self.views(taken)?;
        if self.has(Capability::ReadWithoutMount) {
            let what = "lookup, read_dir or read";
            let read = self.provider.together(what, || self.tree_by_reading(&taken.snapshot.reference))?;
            same(
                &format!("snapshot {} as it is read without a view", taken.snapshot.id),
                &self.expected(taken).differences(&read, Modes::Exact),
            )?;
        }
        Ok(())
    }

    /// Fails unless a view shows the tree that the snapshot was taken of. For cases with many snapshots: reading costs a call a
    /// file.
    pub(crate) fn views(&self, taken: &Taken) -> Check {
        let view = self.mount(taken, "view-of-shows", &[])?;
        let shown = Tree::walk(&view.path)?;
        self.unmount(&view)?;
        let what = format!("the view of snapshot {}", taken.snapshot.id);
        same(&what, &self.expected(taken).differences(&shown, view_modes(&view)))
    }

    pub(crate) fn mount(&self, taken: &Taken, name: &str, paths: &[&str]) -> Check<View> {
        Ok(self.try_mount(&taken.snapshot.reference, name, paths)?)
    }

    pub(crate) fn try_mount(&self, snapshot: &Reference, name: &str, paths: &[&str]) -> Result<View, Error> {
        let paths = paths.iter().map(|path| RelPath::new(*path)).collect::<Result<_, _>>()?;
        let request = MountRequest { snapshot: snapshot.clone(), name: FileName::new(name)?, paths };
        self.provider.mount(&self.place_without_workspace(), &request, &Context::quiet())
    }

    pub(crate) fn unmount(&self, view: &View) -> Check {
        let request = UnmountRequest { view: view.reference.clone(), unused: false };
        self.provider.unmount(&self.place_without_workspace(), &request, &Context::quiet())?;
        Ok(())
    }

    pub(crate) fn try_clone(&self, snapshot: &Reference, name: &str) -> Result<WritableClone, Error> {
        let request = CloneRequest { snapshot: snapshot.clone(), name: FileName::new(name)? };
        self.provider.clone_snapshot(&self.place(), &request, &Context::quiet())
    }

    pub(crate) fn destroy(&self, taken: &Taken) -> Check {
        let request = DestroyRequest::Snapshot(taken.reference());
        self.provider.destroy(&self.place_without_workspace(), &request, &Context::quiet())?;
        Ok(())
    }

    pub(crate) fn destroy_clone(&self, clone: &WritableClone) -> Check {
        let request = DestroyRequest::Clone(clone.reference.clone());
        self.provider.destroy(&self.place_without_workspace(), &request, &Context::quiet())?;
        Ok(())
    }

    /// Does what the user may do with a view or clone of that name: takes it away, and puts something of their own there.
    pub(crate) fn replace(&self, name: &str) -> Check<Theirs> {
        let at = self.folder.path().join(name);
        if at.symlink_metadata().is_ok() && take_off(&at)? {
            // Whoever owns a directory that nobody may write to can move it all the same.
            std::fs::set_permissions(&at, Permissions::from_mode(0o700))?;
            std::fs::rename(&at, self.beside("moved-away"))?;
        }
        let is_free = at.symlink_metadata().is_err();
        if is_free {
            Editor::new(&at).write("in", "theirs")?;
        }
        Ok(Theirs(is_free.then(|| at.join("in"))))
    }

    pub(crate) fn reclaim(&self) -> Check {
        self.provider.reclaim(&self.place_without_workspace(), &ReclaimRequest::default(), &Context::quiet())?;
        Ok(())
    }

    /// The clones that are said to lie in the store.
    pub(crate) fn held(&self) -> Check<Vec<Reference>> {
        let request = ReclaimRequest { auto: true, forgotten: Vec::new() };
        Ok(self.provider.reclaim(&self.place_without_workspace(), &request, &Context::quiet())?.held)
    }

    /// Has a view or clone of that name taken away whose caller never heard of it.
    pub(crate) fn reclaim_forgotten(&self, names: &[&str]) -> Check {
        let forgotten = names.iter().map(|name| FileName::new(*name)).collect::<Result<_, _>>()?;
        let request = ReclaimRequest { auto: false, forgotten };
        let place = Place::new(&self.store).with_target(&self.folder);
        self.provider.reclaim(&place, &request, &Context::quiet())?;
        Ok(())
    }

    pub(crate) fn list(&self) -> Check<Vec<Snapshot>> {
        Ok(self.provider.list(&self.place_without_workspace(), &ListRequest::default(), &Context::quiet())?)
    }

    /// The ids that `list` gives, in its order.
    pub(crate) fn ids(&self) -> Check<Vec<String>> {
        Ok(self.list()?.into_iter().map(|snapshot| snapshot.id.to_string()).collect())
    }

    pub(crate) fn stat(&self, snapshot: &Reference) -> Result<Snapshot, Error> {
        let request = SnapshotRef { snapshot: snapshot.clone() };
        self.provider.stat(&self.place_without_workspace(), &request, &Context::quiet())
    }

    /// Lists the differences in a store that is sound, where this user may look into every directory.
    pub(crate) fn diff(&self, from: Side, to: Side, paths: &[&str], times: bool) -> Check<Changes> {
        let paths = paths.iter().map(|path| RelPath::new(*path)).collect::<Result<_, _>>()?;
        let request = DiffRequest { from, to, paths, times, policy: CapturePolicy::default() };
        let found = self.provider.diff(&self.place(), &request, &Context::quiet())?;
        ensure!(found.lost.is_empty(), "both sides can be read, but told as lost are {:?}", found.lost);
        ensure!(
            found.unread.is_empty(),
            "each directory can be looked into, but told as unread are {:?}",
            found.unread
        );
        Ok(found)
    }

    pub(crate) fn read_dir(&self, snapshot: &Reference, path: &RelPath) -> Result<Vec<Entry>, Error> {
        let request = ReadDirRequest { snapshot: snapshot.clone(), path: path.clone() };
        self.provider.read_dir(&self.place_without_workspace(), &request, &Context::quiet())
    }

    pub(crate) fn lookup(&self, snapshots: &[&Taken], path: &RelPath) -> Result<Vec<Option<Entry>>, Error> {
        let snapshots = snapshots.iter().map(|taken| taken.reference()).collect();
        let request = LookupRequest { snapshots, path: path.clone() };
        self.provider.lookup(&self.place_without_workspace(), &request, &Context::quiet())
    }

    /// Reads a file, or a symlink's target.
    pub(crate) fn read(&self, snapshot: &Reference, path: &RelPath) -> Check<Result<(Entry, Vec<u8>), Error>> {
        let mut output = tempfile::tempfile_in(&self.root)?;
        let request = ReadRequest { snapshot: snapshot.clone(), path: path.clone() };
        let place = self.place_without_workspace().with_output(output.as_fd());
        match self.provider.read(&place, &request, &Context::quiet()) {
            Err(error) => Ok(Err(error)),
            Ok(entry) => {
                let mut bytes = Vec::new();
                output.rewind()?;
                output.read_to_end(&mut bytes)?;
                Ok(Ok((entry, bytes)))
            }
        }
    }

    /// The snapshot's tree from `lookup` of the root, `read_dir` and `read`.
    pub(crate) fn tree_by_reading(&self, snapshot: &Reference) -> Check<Tree> {
        let request = LookupRequest { snapshots: vec![snapshot.clone()], path: RelPath::root() };
        let root = self.provider.lookup(&self.place_without_workspace(), &request, &Context::quiet())?;
        let Some(Some(root)) = root.into_iter().next() else {
            return Err(Trouble::Failed("lookup does not find the root".to_owned()));
        };
        ensure!(root.name.is_empty(), "the root has a name");
        let mut tree = Tree::default();
        tree.0.insert(RelPath::root(), node_of(&root, None));
        let mut pending = vec![RelPath::root()];
        while let Some(dir) = pending.pop() {
            for entry in self.read_dir(snapshot, &dir)? {
                let path = dir.join(&entry.name)?;
                let contents = match entry.kind {
                    EntryKind::Dir => {
                        pending.push(path.clone());
                        None
                    }
                    EntryKind::File | EntryKind::Symlink => {
                        let (again, bytes) = self.read(snapshot, &path)??;
                        ensure!(again == entry, "read and read_dir disagree on {path:?}: {again:?}, {entry:?}");
                        ensure!(
                            bytes.len() as u64 == entry.size,
                            "read of {path:?} gave {} bytes, its entry says {}",
                            bytes.len(),
                            entry.size
                        );
                        Some(digest(&bytes))
                    }
                    _ => None,
                };
                tree.0.insert(path, node_of(&entry, contents));
            }
        }
        Ok(tree)
    }
}

/// What a user has put in the place of something that was made; none where only who made that can take it away.
pub(crate) struct Theirs(Option<PathBuf>);

impl Theirs {
    /// Fails unless it is as they put it there.
    pub(crate) fn is_there(&self) -> Check {
        let Some(at) = &self.0 else { return Ok(()) };
        let stays = std::fs::read(at).is_ok_and(|bytes| bytes == b"theirs");
        ensure!(stays, "what the user has put in its place is not left alone: {} is gone", at.display());
        Ok(())
    }
}

/// Unmounts what is mounted at a path; false where its user may not.
fn take_off(at: &Path) -> Check<bool> {
    let is_mounted = || at.parent().is_some_and(|above| mounts_below(above).iter().any(|mount| mount == at));
    while is_mounted() {
        match umount2(at, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // A process that is just being started has open what the one has that starts it, until it is another program.
            Err(Errno::EBUSY) => std::thread::sleep(Duration::from_millis(5)),
            Err(Errno::EPERM) => return Ok(false),
            Err(errno) => return Err(std::io::Error::from(errno).into()),
        }
    }
    Ok(true)
}

/// What the permission bits in a view are compared by.
pub(crate) fn view_modes(view: &View) -> Modes {
    if view.read_only_mount { Modes::Exact } else { Modes::WithoutWrite }
}

/// An id from a text that the suite itself wrote.
pub(crate) fn id_of(text: &str) -> SnapshotId {
    SnapshotId::new(text).unwrap_or_else(|error| panic!("the suite's own id: {error}"))
}

/// A path from a text that the suite itself wrote.
pub(crate) fn path(text: impl AsRef<[u8]>) -> RelPath {
    RelPath::new(text.as_ref()).unwrap_or_else(|error| panic!("the suite's own path: {error}"))
}

fn node_of(entry: &Entry, digest: Option<u64>) -> Node {
    Node { kind: entry.kind, mode: entry.mode, size: entry.size, mtime: entry.mtime, digest, inode: None }
}
