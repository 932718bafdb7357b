//! A workspace, a store and a target on a real Btrfs, and the provider over them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ah_plugin_api::{
    CloneRequest, Context, ConvertRequest, Converted, DestroyRequest, DiffRequest, Dir, Durability, FileName,
    ListRequest, MountRequest, Observer, Omission, Place, Probe, ProbeRequest, Progress, Provider, Quiet,
    ReclaimRequest, Reclaimed, RelPath, Result, Side, Snapshot, SnapshotId, SnapshotRef, SnapshotRequest, Timestamp,
    UnmountRequest, View, WritableClone,
};
use ah_provider_btrfs::BtrfsProvider;

/// Everything that an operation needs.
pub struct Bench {
    pub provider: BtrfsProvider,
    pub store: Dir,
    pub workspace: Dir,
    pub target: Dir,
}

impl Bench {
    /// `work`, `store` and `target` in that folder, made if need be.
    pub fn in_folder(folder: &Path) -> Self {
        let dir = |name: &str| folder.join(name);
        Self::of(&dir("work"), &dir("store"), &dir("target"))
    }

    pub fn of(workspace: &Path, store: &Path, target: &Path) -> Self {
        let open = |path: &Path| {
            std::fs::create_dir_all(path).unwrap();
            Dir::open(path).unwrap()
        };
        Self { provider: BtrfsProvider::new(), store: open(store), workspace: open(workspace), target: open(target) }
    }

    pub fn place(&self) -> Place<'_> {
        Place::new(&self.store).with_workspace(&self.workspace).with_target(&self.target)
    }

    pub fn work(&self, path: &str) -> PathBuf {
        self.workspace.path().join(path)
    }

    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.work(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn probe(&self) -> Probe {
        self.provider.probe(&self.place(), &ProbeRequest::default(), &Context::quiet()).unwrap()
    }

    pub fn try_snapshot(&self, id: &str) -> Result<Snapshot> {
        self.watched_snapshot(id, &Quiet)
    }

    pub fn watched_snapshot(&self, id: &str, watch: &dyn Observer) -> Result<Snapshot> {
        let request = SnapshotRequest {
            id: SnapshotId::new(id).unwrap(),
            created: Timestamp::now(),
            label: None,
            attributes: BTreeMap::new(),
            durability: Durability::Durable,
            policy: Default::default(),
        };
        self.provider.snapshot(&self.place(), &request, &Context::new(watch))
    }

    pub fn snapshot(&self, id: &str) -> Snapshot {
        self.try_snapshot(id).unwrap()
    }

    pub fn ids(&self) -> Vec<String> {
        let place = Place::new(&self.store);
        let list = self.provider.list(&place, &ListRequest::default(), &Context::quiet()).unwrap();
        list.into_iter().map(|snapshot| snapshot.id.to_string()).collect()
    }

    pub fn stat(&self, snapshot: &Snapshot) -> Result<Snapshot> {
        let request = SnapshotRef { snapshot: snapshot.reference.clone() };
        self.provider.stat(&Place::new(&self.store), &request, &Context::quiet())
    }

    pub fn view(&self, snapshot: &Snapshot, name: &str) -> View {
        let request = MountRequest {
            snapshot: snapshot.reference.clone(),
            name: FileName::new(name).unwrap(),
            paths: Vec::new(),
        };
        self.provider.mount(&self.place(), &request, &Context::quiet()).unwrap()
    }

    pub fn unmount(&self, view: &View) {
        let request = UnmountRequest { view: view.reference.clone(), unused: false };
        self.provider.unmount(&self.place(), &request, &Context::quiet()).unwrap();
    }

    pub fn clone(&self, snapshot: &Snapshot, name: &str) -> WritableClone {
        let request = CloneRequest { snapshot: snapshot.reference.clone(), name: FileName::new(name).unwrap() };
        self.provider.clone_snapshot(&self.place(), &request, &Context::quiet()).unwrap()
    }

    pub fn destroy(&self, request: &DestroyRequest) -> Result<()> {
        self.provider.destroy(&self.place(), request, &Context::quiet()).map(drop)
    }

    pub fn remove(&self, snapshot: &Snapshot) {
        self.destroy(&DestroyRequest::Snapshot(snapshot.reference.clone())).unwrap();
    }

    pub fn reclaim(&self) -> Reclaimed {
        self.provider.reclaim(&self.place(), &ReclaimRequest::default(), &Context::quiet()).unwrap()
    }

    pub fn convert(&self) -> Result<Converted> {
        self.provider.convert(&self.place(), &ConvertRequest::default(), &Context::quiet())
    }

    /// Converts, with somebody doing something as it says what it is about to do.
    pub fn convert_watched(&self, watch: impl Fn(&str) + Sync) -> Result<Converted> {
        struct Watch<F>(F);
        impl<F: Fn(&str) + Sync> Observer for Watch<F> {
            fn progress(&self, progress: &Progress) {
                (self.0)(&progress.stage);
            }
        }
        let watch = Watch(watch);
        self.provider.convert(&self.place(), &ConvertRequest::default(), &Context::new(&watch))
    }

    /// Names in a directory of a snapshot.
    pub fn names(&self, snapshot: &Snapshot, path: &str) -> Vec<String> {
        let request =
            ah_plugin_api::ReadDirRequest { snapshot: snapshot.reference.clone(), path: RelPath::new(path).unwrap() };
        let entries = self.provider.read_dir(&Place::new(&self.store), &request, &Context::quiet()).unwrap();
        entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect()
    }

    /// One line a change: `A path`, `D path`, `M path`, `T path` (another kind).
    pub fn diff(&self, from: Side, to: Side, paths: &[&str], times: bool) -> Vec<String> {
        let paths = paths.iter().map(|path| RelPath::new(*path).unwrap()).collect();
        let request = DiffRequest { from, to, paths, times, policy: Default::default() };
        let changes = self.provider.diff(&self.place(), &request, &Context::quiet()).unwrap().changes;
        let letter = |change: &ah_plugin_api::Change| match (&change.before, &change.after) {
            (None, _) => 'A',
            (_, None) => 'D',
            (Some(a), Some(b)) if a.kind != b.kind => 'T',
            _ => 'M',
        };
        changes.iter().map(|change| format!("{} {}", letter(change), change.path)).collect()
    }
}

pub fn side(snapshot: &Snapshot) -> Side {
    Side::Snapshot(snapshot.reference.clone())
}

pub fn omitted(omissions: &[Omission]) -> Vec<String> {
    omissions.iter().map(|omission| format!("{} {}", omission.reason, omission.path)).collect()
}

/// Runs a program that must succeed; gives what it said.
pub fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

pub fn subvolume(path: &Path) {
    run("btrfs", &["subvolume", "create", path.to_str().unwrap()]);
}

/// How many subvolumes a filesystem has.
pub fn subvolumes(at: &Path) -> usize {
    run("btrfs", &["subvolume", "list", at.to_str().unwrap()]).lines().count()
}

/// Everything that is to be kept, one line an entry.
pub fn listing(root: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().display().to_string();
        let xattrs: Vec<String> = ["user.test", "trusted.test"]
            .iter()
            .filter_map(|name| {
                let mut value = [0; 100];
                let got = rustix::fs::lgetxattr(&path, *name, &mut value).ok()?;
                Some(format!("{name}={}", String::from_utf8_lossy(&value[..got])))
            })
            .collect();
        let contents = if meta.is_file() { fs::read(&path).unwrap().len() } else { 0 };
        out.push(format!(
            "{name} {:o} {}:{} {}.{:09} {}.{} {} {} {contents} {xattrs:?} {:?}",
            meta.mode(),
            meta.uid(),
            meta.gid(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.atime(),
            meta.atime_nsec(),
            meta.nlink(),
            meta.rdev(),
            fs::read_link(&path).ok(),
        ));
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    out.sort();
    out
}

/// What a conversion left beside the workspace stays, and whoever puts things in order is told of it, until somebody has taken it away.
pub fn is_named_until_it_is_gone(bench: &Bench, kept: &Path) {
    let notes = || {
        let names = fs::read_dir(bench.store.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with("convert-")).count()
    };
    for _ in 0..2 {
        let stays = bench.reclaim().stays;
        assert!(stays.len() == 1 && stays[0].contains(kept.to_str().unwrap()), "{stays:?}");
        assert!(kept.exists() && notes() == 1);
    }
    fs::remove_dir_all(kept).unwrap();
    assert_eq!((bench.reclaim().stays, notes()), (Vec::new(), 0));
}
