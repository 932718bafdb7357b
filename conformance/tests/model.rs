//! Random sequences of what users and callers do, on a real directory, with a provider beside the in-memory one: after each
//! step the two have to agree, and both with the directory.
//!
//! A failure is shrunk, and kept in `model.proptest-regressions`, to be tried first from then on.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;

use ah_conformance::{Editor, MemoryProvider, Modes, Tree};
use ah_plugin_api::{
    CapturePolicy, Change, CloneRequest, Context, DestroyRequest, DiffRequest, Dir, Durability, EntryKind, FileName,
    ListRequest, LookupRequest, MountRequest, Place, Provider, ReadDirRequest, ReadRequest, ReclaimRequest, Reference,
    RelPath, Side, SnapshotId, SnapshotRequest, Timestamp, UnmountRequest,
};
use ah_provider_git::GitProvider;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

/// One step. Paths are from a small set, so that steps meet; a step that cannot be done is passed over.
#[derive(Debug, Clone)]
enum Step {
    Write { path: usize, contents: u8 },
    WriteKeepingTime { path: usize, contents: u8 },
    Append { path: usize },
    Rename { from: usize, to: usize },
    Exchange { one: usize, other: usize },
    Link { from: usize, to: usize },
    Remove { path: usize },
    Chmod { path: usize, mode: usize },
    SetTime { path: usize, secs: i64 },
    Symlink { path: usize, target: usize },
    Mkdir { path: usize },
    Snapshot,
    Destroy { which: usize },
    Diff { from: usize, to: usize },
    DiffWorkspace { which: usize },
    View { which: usize },
    Clone { which: usize },
    Lookup { path: usize },
    Reclaim,
    Reopen,
}

const PATHS: &[&[u8]] = &[
    b"a",
    b"b",
    b"a.b",
    b"dir",
    b"dir/a",
    b"dir/b",
    b"dir/sub",
    b"dir/sub/c",
    b"dir/sub/d",
    b"dir.x",
    b"dir-x",
    b"dir0",
    b"other/sub/e",
    b"other/sub",
    b"other",
    b"caf\xe9",
    b"dir/\xff\xfe",
];
const MODES: &[u32] = &[0o644, 0o600, 0o755, 0o777, 0o444, 0o700];

fn step() -> impl Strategy<Value = Step> {
    let path = 0..PATHS.len();
    let which = 0..8usize;
    prop_oneof![
        6 => (path.clone(), any::<u8>()).prop_map(|(path, contents)| Step::Write { path, contents }),
        2 => (path.clone(), any::<u8>()).prop_map(|(path, contents)| Step::WriteKeepingTime { path, contents }),
        1 => path.clone().prop_map(|path| Step::Append { path }),
        4 => (path.clone(), path.clone()).prop_map(|(from, to)| Step::Rename { from, to }),
        1 => (path.clone(), path.clone()).prop_map(|(one, other)| Step::Exchange { one, other }),
        1 => (path.clone(), path.clone()).prop_map(|(from, to)| Step::Link { from, to }),
        3 => path.clone().prop_map(|path| Step::Remove { path }),
        2 => (path.clone(), 0..MODES.len()).prop_map(|(path, mode)| Step::Chmod { path, mode }),
        1 => (path.clone(), -5i64..5_000_000_000).prop_map(|(path, secs)| Step::SetTime { path, secs }),
        2 => (path.clone(), path.clone()).prop_map(|(path, target)| Step::Symlink { path, target }),
        2 => path.clone().prop_map(|path| Step::Mkdir { path }),
        7 => Just(Step::Snapshot),
        2 => which.clone().prop_map(|which| Step::Destroy { which }),
        2 => (which.clone(), which.clone()).prop_map(|(from, to)| Step::Diff { from, to }),
        2 => which.clone().prop_map(|which| Step::DiffWorkspace { which }),
        1 => which.clone().prop_map(|which| Step::View { which }),
        1 => which.prop_map(|which| Step::Clone { which }),
        1 => path.prop_map(|path| Step::Lookup { path }),
        1 => Just(Step::Reclaim),
        1 => Just(Step::Reopen),
    ]
}

/// A provider with its store.
struct Side1 {
    provider: Box<dyn Provider>,
    store: Dir,
}

/// Two providers that do the same, and the directory that they do it with.
struct Pair {
    root: tempfile::TempDir,
    ws: Editor,
    workspace: Dir,
    target: Dir,
    sides: [Side1; 2],
    /// Snapshots that are there, with their references on both sides, and the directory as it was.
    snapshots: Vec<([Reference; 2], Tree)>,
    count: i64,
}

fn cx() -> Context<'static> {
    Context::quiet()
}

impl Pair {
    fn new(reference: &MemoryProvider, tested: &dyn Fn() -> Box<dyn Provider>) -> Self {
        let root = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            std::fs::create_dir(root.path().join(name)).unwrap();
            Dir::open(root.path().join(name)).unwrap()
        };
        let sides = [
            Side1 { provider: Box::new(reference.clone()), store: dir("reference") },
            Side1 { provider: tested(), store: dir("tested") },
        ];
        let (workspace, target) = (dir("workspace"), dir("target"));
        let ws = Editor::new(root.path().join("workspace"));
        Self { root, ws, workspace, target, sides, snapshots: Vec::new(), count: 0 }
    }

    fn place(&self, side: usize) -> Place<'_> {
        Place::new(&self.sides[side].store).with_workspace(&self.workspace).with_target(&self.target)
    }

    /// Asks both, compares the answers, and gives the one.
    fn both<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        ask: impl Fn(usize, &dyn Provider, &Place<'_>) -> T,
    ) -> T {
        let [reference, tested] = [0, 1].map(|side| ask(side, &*self.sides[side].provider, &self.place(side)));
        assert_eq!(reference, tested, "{what}: the reference (left) and the tested provider (right) disagree");
        reference
    }

    fn run(&mut self, step: &Step, tested: &dyn Fn() -> Box<dyn Provider>) {
        let at = |path: usize| PATHS[path];
        // What the file system refuses (a file where a directory is needed, something not there) is passed over.
        let _ = match *step {
            Step::Write { path, contents } => self.ws.write(at(path), body(contents)),
            Step::WriteKeepingTime { path, contents } => self.write_keeping_time(at(path), contents),
            Step::Append { path } => {
                self.ws.read(at(path)).and_then(|old| self.ws.write(at(path), [&old[..], b"+"].concat()))
            }
            Step::Rename { from, to } => self.ws.rename(at(from), at(to)),
            Step::Exchange { one, other } => self.ws.exchange(at(one), at(other)),
            Step::Link { from, to } => self.ws.link(at(from), at(to)),
            Step::Remove { path } => self.ws.remove(at(path)),
            Step::Chmod { path, mode } => self.chmod(at(path), MODES[mode]),
            Step::SetTime { path, secs } => self.ws.mtime(at(path), Timestamp { secs, nanos: 7 }),
            Step::Symlink { path, target } => self.ws.symlink(at(target), at(path)),
            Step::Mkdir { path } => self.ws.mkdir(at(path)),
            Step::Snapshot => {
                self.snapshot();
                Ok(())
            }
            Step::Reopen => {
                self.sides[1].provider = tested();
                Ok(())
            }
            Step::Reclaim => {
                for side in 0..2 {
                    self.sides[side].provider.reclaim(&self.place(side), &ReclaimRequest::default(), &cx()).unwrap();
                }
                self.check_all();
                Ok(())
            }
            Step::DiffWorkspace { .. }
            | Step::Destroy { .. }
            | Step::Diff { .. }
            | Step::View { .. }
            | Step::Clone { .. }
                if self.snapshots.is_empty() =>
            {
                Ok(())
            }
            Step::Destroy { which } => {
                let (references, _) = self.snapshots.remove(which % self.snapshots.len());
                self.both("destroy", |side, provider, place| {
                    provider.destroy(place, &DestroyRequest::Snapshot(references[side].clone()), &cx()).unwrap()
                });
                self.check_list();
                Ok(())
            }
            Step::Diff { from, to } => {
                let (from, to) = (from % self.snapshots.len(), to % self.snapshots.len());
                let [from, to] = [from, to].map(|i| self.snapshots[i].0.clone());
                for times in [false, true] {
                    self.diff(
                        |side| Side::Snapshot(from[side].clone()),
                        |side| Side::Snapshot(to[side].clone()),
                        times,
                    );
                }
                Ok(())
            }
            Step::DiffWorkspace { which } => {
                let from = self.snapshots[which % self.snapshots.len()].0.clone();
                self.diff(|side| Side::Snapshot(from[side].clone()), |_| Side::Workspace, false);
                self.diff(|_| Side::Workspace, |side| Side::Snapshot(from[side].clone()), true);
                Ok(())
            }
            Step::View { which } => {
                self.check_view(which % self.snapshots.len());
                Ok(())
            }
            Step::Clone { which } => {
                self.check_clone(which % self.snapshots.len());
                Ok(())
            }
            Step::Lookup { path } => {
                let path = RelPath::new(at(path)).unwrap();
                self.both("lookup", |side, provider, place| {
                    let snapshots = self.snapshots.iter().map(|(references, _)| references[side].clone()).collect();
                    let found =
                        provider.lookup(place, &LookupRequest { snapshots, path: path.clone() }, &cx()).unwrap();
                    found.into_iter().map(|entry| entry.map(plain)).collect::<Vec<_>>()
                });
                Ok(())
            }
        };
    }

    /// As `cp -p` and `touch -d` leave it: other contents, the same size and time.
    fn write_keeping_time(&self, path: &[u8], contents: u8) -> std::io::Result<()> {
        let time = self.ws.mtime_of(path)?;
        self.ws.write(path, body(contents))?;
        self.ws.mtime(path, time)
    }

    fn chmod(&self, path: &[u8], mode: u32) -> std::io::Result<()> {
        let kind = self.ws.at(path).symlink_metadata()?.file_type();
        match () {
            // Through a symlink it would be another entry's.
            () if kind.is_symlink() => Ok(()),
            // A directory that its owner cannot enter ends the game for an ordinary user.
            () if kind.is_dir() => self.ws.chmod(path, mode | 0o700),
            () => self.ws.chmod(path, mode),
        }
    }

    fn snapshot(&mut self) {
        // One for every few, so that the counts stay small.
        if self.snapshots.len() >= 6 {
            return;
        }
        self.count += 1;
        let request = SnapshotRequest {
            id: SnapshotId::new(format!("s{}", self.count)).unwrap(),
            created: Timestamp { secs: self.count, nanos: 0 },
            label: (self.count % 2 == 0).then(|| format!("label {}", self.count)),
            attributes: BTreeMap::from([("count".to_owned(), self.count.to_string())]),
            durability: Durability::Instant,
            policy: CapturePolicy::default(),
        };
        let tree = Tree::walk(self.ws.root()).unwrap();
        let references = [0, 1].map(|side| {
            let snapshot = self.sides[side].provider.snapshot(&self.place(side), &request, &cx()).unwrap();
            assert_eq!(snapshot.omitted, [], "nothing here is to be omitted");
            snapshot.reference
        });
        let touched = tree.touched(&Tree::walk(self.ws.root()).unwrap());
        assert!(touched.is_empty(), "snapshot changed the workspace: {touched:?}");
        self.snapshots.push((references, tree));
        self.check_list();
        self.check_read(self.snapshots.len() - 1);
    }

    fn diff(&self, from: impl Fn(usize) -> Side, to: impl Fn(usize) -> Side, times: bool) {
        self.both("diff", |side, provider, place| {
            let request =
                DiffRequest { from: from(side), to: to(side), paths: vec![], times, policy: CapturePolicy::default() };
            let changes = provider.diff(place, &request, &cx()).unwrap().changes;
            // Whether times of what is not a file count, the contract leaves open.
            let counts = |change: &Change| match (&change.before, &change.after) {
                (Some(before), Some(after)) if before.kind != EntryKind::File => {
                    (before.kind, before.mode, before.size) != (after.kind, after.mode, after.size)
                        || before.kind == EntryKind::Symlink && before.mtime == after.mtime
                }
                _ => true,
            };
            let plain =
                |change: Change| Change { before: change.before.map(plain), after: change.after.map(plain), ..change };
            changes.into_iter().filter(|change| !times || counts(change)).map(plain).collect::<Vec<_>>()
        });
    }

    fn check_list(&self) {
        let list = self.both("list", |_, provider, place| {
            let list = provider.list(place, &ListRequest::default(), &cx()).unwrap();
            list.into_iter().map(|s| (s.id, s.created, s.label, s.attributes, s.entries)).collect::<Vec<_>>()
        });
        assert_eq!(list.len(), self.snapshots.len(), "as many are listed as there are");
    }

    /// Compares all of a snapshot, as it is read, with the directory that it was taken of.
    fn check_read(&self, which: usize) {
        let (references, tree) = &self.snapshots[which];
        for (side, reference) in references.iter().enumerate() {
            let provider = &*self.sides[side].provider;
            let shown = read_all(provider, &self.place(side), reference, self.root.path());
            let differences = tree.differences(&shown, Modes::Exact);
            assert!(differences.is_empty(), "{} shows: {differences:#?}", provider.describe().name);
        }
    }

    fn check_view(&self, which: usize) {
        let (references, tree) = &self.snapshots[which];
        let provider = &*self.sides[1].provider;
        let request =
            MountRequest { snapshot: references[1].clone(), name: FileName::new("view").unwrap(), paths: vec![] };
        let view = provider.mount(&self.place(1), &request, &cx()).unwrap();
        let shown = Tree::walk(&view.path);
        provider.unmount(&self.place(1), &UnmountRequest { view: view.reference, unused: false }, &cx()).unwrap();
        let modes = if view.read_only_mount { Modes::Exact } else { Modes::WithoutWrite };
        let differences = tree.differences(&shown.unwrap(), modes);
        assert!(differences.is_empty(), "the view: {differences:#?}");
    }

    fn check_clone(&self, which: usize) {
        let (references, tree) = &self.snapshots[which];
        let provider = &*self.sides[1].provider;
        let request = CloneRequest { snapshot: references[1].clone(), name: FileName::new("clone").unwrap() };
        let clone = provider.clone_snapshot(&self.place(1), &request, &cx()).unwrap();
        let differences = tree.differences(&Tree::walk(&clone.path).unwrap(), Modes::Exact);
        assert!(differences.is_empty(), "the clone: {differences:#?}");
        Editor::new(&clone.path).write("written in the clone", "x").unwrap();
        provider.destroy(&self.place(1), &DestroyRequest::Clone(clone.reference), &cx()).unwrap();
        assert!(!clone.path.exists());
    }

    fn check_all(&self) {
        self.check_list();
        (0..self.snapshots.len()).for_each(|which| self.check_read(which));
    }
}

/// Contents by number; a few of one size, one large.
fn body(contents: u8) -> Vec<u8> {
    match contents {
        0 => Vec::new(),
        1..=9 => vec![contents; 70_000],
        _ => format!("contents {}\n", contents % 10).into_bytes(),
    }
}

/// An entry without what only its provider knows.
fn plain(entry: ah_plugin_api::Entry) -> ah_plugin_api::Entry {
    ah_plugin_api::Entry { content: None, ..entry }
}

/// A snapshot's tree by `lookup`, `read_dir` and `read`.
fn read_all(provider: &dyn Provider, place: &Place<'_>, snapshot: &Reference, scratch: &Path) -> Tree {
    use std::io::{Read, Seek};
    let node = |entry: &ah_plugin_api::Entry, digest| ah_conformance::Node {
        kind: entry.kind,
        mode: entry.mode,
        size: entry.size,
        mtime: entry.mtime,
        digest,
        inode: None,
    };
    let request = LookupRequest { snapshots: vec![snapshot.clone()], path: RelPath::root() };
    let root = provider.lookup(place, &request, &cx()).unwrap().remove(0).unwrap();
    let mut tree = Tree::default();
    tree.0.insert(RelPath::root(), node(&root, None));
    let mut pending = vec![RelPath::root()];
    while let Some(dir) = pending.pop() {
        let request = ReadDirRequest { snapshot: snapshot.clone(), path: dir.clone() };
        for entry in provider.read_dir(place, &request, &cx()).unwrap() {
            let path = dir.join(&entry.name).unwrap();
            let digest = if entry.kind == EntryKind::Dir {
                pending.push(path.clone());
                None
            } else {
                let mut output = tempfile::tempfile_in(scratch).unwrap();
                let request = ReadRequest { snapshot: snapshot.clone(), path: path.clone() };
                provider.read(&place.with_output(output.as_fd()), &request, &cx()).unwrap();
                let mut bytes = Vec::new();
                output.rewind().unwrap();
                output.read_to_end(&mut bytes).unwrap();
                Some(ah_conformance::digest(&bytes))
            };
            tree.0.insert(path, node(&entry, digest));
        }
    }
    tree
}

/// Runs sequences for about as long as the environment says (`AH_TEST_MODEL_CASES`), else a few seconds.
fn compare(tested: &dyn Fn() -> Box<dyn Provider>) {
    let cases = std::env::var("AH_TEST_MODEL_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    let persistence = FileFailurePersistence::SourceParallel("proptest-regressions");
    let config = Config {
        cases,
        max_shrink_time: 60_000,
        failure_persistence: Some(Box::new(persistence)),
        source_file: Some(file!()),
        ..Config::default()
    };
    let steps = proptest::collection::vec(step(), 5..60);
    let outcome = TestRunner::new(config).run(&steps, |steps| {
        let mut pair = Pair::new(&MemoryProvider::default(), tested);
        steps.iter().for_each(|step| pair.run(step, tested));
        pair.check_all();
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn git_does_what_the_model_does() {
    compare(&|| Box::new(GitProvider::default()));
}

#[test]
fn the_model_agrees_with_the_directory() {
    let shared = MemoryProvider::default();
    compare(&|| Box::new(shared.clone()));
}
