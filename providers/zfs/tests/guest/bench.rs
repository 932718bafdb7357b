//! A pool in a file, with a workspace, a store and a target; destroyed when dropped.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use ah_plugin_api::{
    CapturePolicy, CloneRequest, Context, DestroyRequest, Dir, Durability, FileName, ListRequest, MountRequest, Place,
    Provider, ReadRequest, ReclaimRequest, Reclaimed, Reference, RelPath, Result, Snapshot, SnapshotId, SnapshotRef,
    SnapshotRequest, Timestamp, UnmountRequest, View, WritableClone,
};
use ah_provider_zfs::ZfsProvider;

pub struct Pool {
    pub name: String,
    pub temp: tempfile::TempDir,
}

impl Pool {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let temp = tempfile::tempdir().unwrap();
        let name = format!("ahtest{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let disk = temp.path().join("disk");
        std::fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
        let mountpoint = format!("mountpoint={}", temp.path().join("pool").display());
        run("zpool", &["create", "-O", &mountpoint, &name, disk.to_str().unwrap()]);
        Self { name, temp }
    }

    /// The full name of what is called so in the pool.
    pub fn full(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    /// Where the dataset of that name is mounted.
    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join("pool").join(name)
    }

    pub fn create(&self, name: &str, options: &[&str]) {
        let full = self.full(name);
        run("zfs", &[&["create"], options, &[full.as_str()]].concat());
    }

    /// Takes the pool away from the machine, and gives it back.
    pub fn export(&self) {
        run("zpool", &["export", &self.name]);
    }

    pub fn import(&self) {
        run("zpool", &["import", "-d", self.temp.path().to_str().unwrap(), &self.name]);
    }

    /// The names below a dataset, or of its snapshots.
    pub fn names(&self, kind: &str, below: &str) -> Vec<String> {
        let out = run("zfs", &["list", "-H", "-r", "-t", kind, "-o", "name", &self.full(below)]);
        out.lines().map(ToOwned::to_owned).collect()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // A test that failed may have left something in it busy: then the guest's end is its end.
        let gone =
            Command::new("zpool").args(["destroy", "-f", &self.name]).status().is_ok_and(|status| status.success());
        if !gone {
            // One that is read-only cannot be destroyed.
            let _ = Command::new("zpool").args(["export", "-f", &self.name]).status();
        }
    }
}

/// Runs a program that has to succeed, and gives what it says.
pub fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

pub struct Bench {
    pub provider: ZfsProvider,
    pub store: Dir,
    pub workspace: Dir,
    pub target: Dir,
}

impl Bench {
    /// Beside the pool a store and a target; the workspace is at `workspace`.
    pub fn new(pool: &Pool, workspace: &Path) -> Self {
        Self::named(pool, "bench", workspace)
    }

    pub fn named(pool: &Pool, name: &str, workspace: &Path) -> Self {
        let dir = |part: &str| {
            let path = pool.temp.path().join(format!("{name}-{part}"));
            std::fs::create_dir_all(&path).unwrap();
            Dir::open(path).unwrap()
        };
        let (store, target) = (dir("store"), dir("target"));
        Self { provider: ZfsProvider::new(), store, workspace: Dir::open(workspace).unwrap(), target }
    }

    pub fn place(&self) -> Place<'_> {
        Place::new(&self.store).with_workspace(&self.workspace).with_target(&self.target)
    }

    fn without_workspace(&self) -> Place<'_> {
        Place::new(&self.store).with_target(&self.target)
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.workspace.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    pub fn try_take(&self, id: &str) -> Result<Snapshot> {
        self.try_take_labelled(id, Some("a label\n"))
    }

    pub fn try_take_labelled(&self, id: &str, label: Option<&str>) -> Result<Snapshot> {
        let request = SnapshotRequest {
            id: SnapshotId::new(id).unwrap(),
            created: Timestamp::now(),
            label: label.map(ToOwned::to_owned),
            attributes: BTreeMap::new(),
            durability: Durability::Durable,
            policy: CapturePolicy::default(),
        };
        self.provider.snapshot(&self.place(), &request, &Context::quiet())
    }

    pub fn take(&self, id: &str) -> Snapshot {
        self.try_take(id).unwrap()
    }

    pub fn list(&self) -> Result<Vec<Snapshot>> {
        self.provider.list(&self.without_workspace(), &ListRequest::default(), &Context::quiet())
    }

    pub fn ids(&self) -> String {
        let list = self.list().unwrap();
        let mut ids = String::new();
        list.iter().for_each(|snapshot| write!(ids, "{} ", snapshot.id).unwrap());
        ids.trim_end().to_owned()
    }

    pub fn stat(&self, snapshot: &Snapshot) -> Result<Snapshot> {
        let request = SnapshotRef { snapshot: snapshot.reference.clone() };
        self.provider.stat(&self.without_workspace(), &request, &Context::quiet())
    }

    pub fn destroy(&self, snapshot: &Snapshot) -> Result<()> {
        let request = DestroyRequest::Snapshot(snapshot.reference.clone());
        self.provider.destroy(&self.without_workspace(), &request, &Context::quiet()).map(drop)
    }

    pub fn mount(&self, snapshot: &Snapshot, name: &str) -> Result<View> {
        let request =
            MountRequest { snapshot: snapshot.reference.clone(), name: FileName::new(name).unwrap(), paths: vec![] };
        self.provider.mount(&self.without_workspace(), &request, &Context::quiet())
    }

    pub fn try_unmount(&self, view: &View) -> Result<()> {
        let request = UnmountRequest { view: view.reference.clone(), unused: false };
        self.provider.unmount(&self.without_workspace(), &request, &Context::quiet()).map(drop)
    }

    pub fn unmount(&self, view: &View) {
        self.try_unmount(view).unwrap();
    }

    /// What a view of it shows in a file.
    pub fn seen(&self, snapshot: &Snapshot, path: &str) -> String {
        let view = self.mount(snapshot, "seen").unwrap();
        let text = std::fs::read_to_string(view.path.join(path)).unwrap();
        self.unmount(&view);
        text
    }

    pub fn read(&self, snapshot: &Snapshot, path: &str) -> Result<()> {
        use std::os::fd::AsFd;
        let out = tempfile::tempfile().unwrap();
        let request = ReadRequest { snapshot: snapshot.reference.clone(), path: RelPath::new(path).unwrap() };
        let place = self.without_workspace().with_output(out.as_fd());
        self.provider.read(&place, &request, &Context::quiet()).map(drop)
    }

    pub fn clone(&self, snapshot: &Snapshot, name: &str) -> Result<WritableClone> {
        let request = CloneRequest { snapshot: snapshot.reference.clone(), name: FileName::new(name).unwrap() };
        self.provider.clone_snapshot(&self.without_workspace(), &request, &Context::quiet())
    }

    pub fn destroy_clone(&self, reference: &Reference) -> Result<()> {
        self.destroy_clone_in(reference, &Context::quiet())
    }

    pub fn destroy_clone_in(&self, reference: &Reference, cx: &Context<'_>) -> Result<()> {
        let request = DestroyRequest::Clone(reference.clone());
        self.provider.destroy(&self.without_workspace(), &request, cx).map(drop)
    }

    pub fn reclaim(&self, forgotten: &[&str]) -> Reclaimed {
        let forgotten = forgotten.iter().map(|name| FileName::new(*name).unwrap()).collect();
        self.try_reclaim(&ReclaimRequest { auto: false, forgotten }).unwrap()
    }

    pub fn try_reclaim(&self, request: &ReclaimRequest) -> Result<Reclaimed> {
        self.provider.reclaim(&self.without_workspace(), request, &Context::quiet())
    }

    /// What is written down of clones: `.part`, `.gone` or nothing for a whole one.
    pub fn clone_records(&self) -> Vec<String> {
        let names =
            std::fs::read_dir(self.store.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let clones = names.filter(|name| name.starts_with("clone-"));
        clones.map(|name| name.find('.').map_or_else(String::new, |dot| name[dot..].to_owned())).collect()
    }
}

/// The bench with its workspace closed, so that the dataset can be unmounted, or the pool exported.
pub fn closed(pool: &Pool, bench: Bench) -> Bench {
    let away = ah_plugin_api::Dir::open(pool.temp.path()).unwrap();
    Bench { workspace: away, ..bench }
}

/// A process in a mount namespace of its own, in which a mount here has no part any more.
pub struct Elsewhere(std::process::Child);

impl Elsewhere {
    pub fn new() -> Self {
        let child = Command::new("unshare").args(["-m", "--propagation", "private", "sleep", "600"]).spawn().unwrap();
        let elsewhere = Self(child);
        wait("the namespace", || elsewhere.space().is_some_and(|it| Some(it) != space("self")));
        let comm = format!("/proc/{}/comm", elsewhere.0.id());
        wait("sleep", || std::fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep"));
        elsewhere
    }

    /// The namespace's name.
    pub fn space(&self) -> Option<String> {
        space(&self.0.id().to_string())
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn space(of: &str) -> Option<String> {
    Some(std::fs::read_link(format!("/proc/{of}/ns/mnt")).ok()?.display().to_string())
}

/// Waits until something is so, for as long as a slow machine may need.
pub fn wait(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..600 {
        if is() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{what}: not in 30 s");
}
