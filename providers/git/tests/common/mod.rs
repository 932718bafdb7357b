//! A workspace, a store and a target in a temporary directory, and the provider over them.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use ah_plugin_api::{
    CapturePolicy, CloneRequest, Context, DestroyRequest, DiffRequest, Dir, Durability, FileName, MountRequest, Place,
    Provider, Reference, RelPath, Result, Side, Snapshot, SnapshotId, SnapshotRequest, Timestamp, UnmountRequest, View,
    WritableClone,
};
use ah_provider_git::GitProvider;

/// Everything that an operation needs. Views are taken away when it goes.
pub struct Bench {
    pub temp: tempfile::TempDir,
    pub provider: GitProvider,
    pub store: Dir,
    pub workspace: Dir,
    pub target: Dir,
    count: std::cell::Cell<u32>,
    views: std::cell::RefCell<Vec<Reference>>,
}

impl Bench {
    pub fn new() -> Self {
        Self::on(std::env::temp_dir().as_path())
    }

    /// Everything below that folder.
    pub fn on(folder: &Path) -> Self {
        let temp = tempfile::tempdir_in(folder).unwrap();
        let dir = |name: &str| {
            std::fs::create_dir(temp.path().join(name)).unwrap();
            Dir::open(temp.path().join(name)).unwrap()
        };
        let (store, workspace, target) = (dir("store"), dir("work"), dir("target"));
        let (count, views) = (std::cell::Cell::new(0), std::cell::RefCell::default());
        Self { temp, provider: GitProvider::new(), store, workspace, target, count, views }
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

    pub fn try_snapshot(&self, id: &str) -> Result<Snapshot> {
        let request = SnapshotRequest {
            id: SnapshotId::new(id).unwrap(),
            created: Timestamp::now(),
            label: None,
            attributes: BTreeMap::new(),
            durability: Durability::Instant,
            policy: CapturePolicy::default(),
        };
        self.provider.snapshot(&self.place(), &request, &Context::quiet())
    }

    pub fn snapshot(&self) -> Snapshot {
        self.count.set(self.count.get() + 1);
        self.try_snapshot(&format!("s{}", self.count.get())).unwrap()
    }

    pub fn try_mount(&self, snapshot: &Snapshot, name: &str, paths: &[&str]) -> Result<View> {
        let request = MountRequest {
            snapshot: snapshot.reference.clone(),
            name: FileName::new(name).unwrap(),
            paths: paths.iter().map(|path| RelPath::new(*path).unwrap()).collect(),
        };
        let view = self.provider.mount(&self.place(), &request, &Context::quiet())?;
        self.views.borrow_mut().push(view.reference.clone());
        Ok(view)
    }

    pub fn mount(&self, snapshot: &Snapshot, name: &str) -> View {
        self.try_mount(snapshot, name, &[]).unwrap()
    }

    pub fn unmount(&self, view: &View) -> Result<()> {
        let request = UnmountRequest { view: view.reference.clone(), unused: false };
        self.provider.unmount(&self.place(), &request, &Context::quiet()).map(drop)
    }

    pub fn try_clone(&self, snapshot: &Snapshot, name: &str) -> Result<WritableClone> {
        let request = CloneRequest { snapshot: snapshot.reference.clone(), name: FileName::new(name).unwrap() };
        self.provider.clone_snapshot(&self.place(), &request, &Context::quiet())
    }

    pub fn clone(&self, snapshot: &Snapshot, name: &str) -> WritableClone {
        self.try_clone(snapshot, name).unwrap()
    }

    pub fn destroy(&self, request: &DestroyRequest) -> Result<()> {
        self.provider.destroy(&self.place(), request, &Context::quiet()).map(drop)
    }

    /// One line a change: `A path`, `D path`, `M path`, `T path` (another kind).
    pub fn diff(&self, from: Side, to: Side, paths: &[&str], times: bool) -> Vec<String> {
        let paths = paths.iter().map(|path| RelPath::new(*path).unwrap()).collect();
        let request = DiffRequest { from, to, paths, times, policy: CapturePolicy::default() };
        let changes = self.provider.diff(&self.place(), &request, &Context::quiet()).unwrap().changes;
        changes
            .iter()
            .map(|change| {
                let letter = match (&change.before, &change.after) {
                    (None, _) => 'A',
                    (_, None) => 'D',
                    (Some(a), Some(b)) if a.kind != b.kind => 'T',
                    _ => 'M',
                };
                format!("{letter} {}", change.path)
            })
            .collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for view in self.views.take() {
            let _ = self.provider.unmount(&self.place(), &UnmountRequest { view, unused: false }, &Context::quiet());
        }
    }
}

pub fn side(snapshot: &Snapshot) -> Side {
    Side::Snapshot(snapshot.reference.clone())
}

/// What a tree holds, one line an entry: path, kind, mode, time, contents. Without any top `.git`.
pub fn listing(root: &Path) -> BTreeMap<Vec<u8>, String> {
    let mut out = BTreeMap::new();
    list_into(root, root, &mut out);
    out
}

fn list_into(root: &Path, dir: &Path, out: &mut BTreeMap<Vec<u8>, String>) {
    let meta = std::fs::symlink_metadata(dir).unwrap();
    let time = format!("{}.{:09}", meta.mtime(), meta.mtime_nsec());
    let mode = meta.permissions().mode() & 0o7777;
    let key = dir.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
    let kind = meta.file_type();
    let line = if kind.is_dir() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.file_name().unwrap() != ".git" {
                list_into(root, &path, out);
            }
        }
        format!("dir {mode:o} {time}")
    } else if kind.is_symlink() {
        format!("link {time} {:?}", std::fs::read_link(dir).unwrap())
    } else {
        let contents = std::fs::read(dir).unwrap();
        let shown = String::from_utf8_lossy(&contents[..contents.len().min(60)]).into_owned();
        let mut hash = std::hash::DefaultHasher::new();
        std::hash::Hash::hash(&contents, &mut hash);
        format!("file {mode:o} {time} {} {:x} {shown:?}", contents.len(), std::hash::Hasher::finish(&hash))
    };
    out.insert(key, line);
}

/// Every file below a directory with contents (their hash), mode and time, whatever it is called; for "nothing was touched".
pub fn fingerprint(root: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let mut hash = std::hash::DefaultHasher::new();
        if meta.is_file() {
            std::hash::Hash::hash(&std::fs::read(&path).unwrap(), &mut hash);
        }
        let hash = std::hash::Hasher::finish(&hash);
        out.push(format!("{} {:o} {hash:x} {}.{}", path.display(), meta.mode(), meta.mtime(), meta.mtime_nsec()));
        if meta.is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    out.sort();
    out
}

/// Panics with what differs between two [`fingerprint`]s. With `object_times_too` false, times below `.git/objects` may differ: Git
/// renews the time of an object that it would otherwise have to write again, also where it is a link that both sides have.
pub fn assert_untouched(before: &[String], after: &[String], object_times_too: bool) {
    let lines = |lines: &[String]| -> std::collections::BTreeSet<String> {
        let cut = |line: &String| match line.rsplit_once(' ') {
            Some((rest, _)) if !object_times_too && line.contains("/.git/objects") => rest.to_owned(),
            _ => line.clone(),
        };
        lines.iter().map(cut).collect()
    };
    let (before, after) = (lines(before), lines(after));
    let changed: Vec<_> = before.symmetric_difference(&after).collect();
    assert!(changed.is_empty(), "{changed:#?}");
}

/// Runs git in a directory, without any configuration of this machine. Gives its output; panics if it fails.
pub fn git(dir: &Path, args: &[&str]) -> String {
    let out = try_git(dir, args);
    assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

pub fn try_git(dir: &Path, args: &[&str]) -> std::process::Output {
    Command::new("git")
        .args(args)
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .env("GIT_AUTHOR_NAME", "t")
        .env("GIT_AUTHOR_EMAIL", "t@t")
        .env("GIT_COMMITTER_NAME", "t")
        .env("GIT_COMMITTER_EMAIL", "t@t")
        .output()
        .unwrap()
}

/// Runs the test of that name once more as an ordinary user, if this process is root. Whether the caller is to run the body:
/// it is that second process, or was an ordinary user's from the start.
pub fn as_ordinary_user(test: &str) -> bool {
    const MARK: &str = "AH_TEST_ORDINARY_USER";
    if std::env::var_os(MARK).is_some() || !rustix::process::geteuid().is_root() {
        return true;
    }
    let out = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(MARK, "1")
        .env("HOME", "/nonexistent")
        .current_dir("/")
        .output()
        .expect("setpriv (util-linux) is needed to test what an ordinary user gets");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&out.stderr));
    false
}
