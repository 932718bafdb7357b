//! The service and those who keep a connection to it: killed, ended by itself, asked for many branches.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ah_plugin_api::{
    CapturePolicy, CloneRequest, Context, DestroyRequest, Dir, Durability, FileName, ListRequest, MountRequest, Place,
    Provider, ReclaimRequest, Reference, Result, Snapshot, SnapshotId, SnapshotRequest, Timestamp, UsageRequest, View,
    WritableClone,
};
use ah_provider_agentfs::AgentFsProvider;
use rustix::process::{Pid, Signal, kill_process};

/// A directory with a file, a store, and a provider that keeps its connection.
struct Scene {
    dir: tempfile::TempDir,
    provider: AgentFsProvider,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["lower", "store", "branches"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("lower/a"), "below").unwrap();
        Self { dir, provider: AgentFsProvider::new() }
    }

    fn open(&self, name: &str) -> Dir {
        Dir::open(self.dir.path().join(name)).unwrap()
    }

    fn snapshot(&self, workspace: &Path, store: &str, id: &str, durability: Durability) -> Result<Snapshot> {
        let (store, workspace) = (self.open(store), Dir::open(workspace)?);
        let request = SnapshotRequest {
            id: SnapshotId::new(id).unwrap(),
            created: Timestamp { secs: 1, nanos: 2 },
            label: None,
            attributes: BTreeMap::new(),
            durability,
            policy: CapturePolicy::default(),
        };
        self.provider.snapshot(&Place::new(&store).with_workspace(&workspace), &request, &Context::quiet())
    }

    fn base(&self, id: &str) -> Result<Snapshot> {
        self.snapshot(&self.dir.path().join("lower"), "store", id, Durability::Instant)
    }

    fn branch(&self, from: &Reference, name: &str) -> Result<WritableClone> {
        self.branch_in(from, &self.dir.path().join("branches"), name)
    }

    fn branch_in(&self, from: &Reference, target: &Path, name: &str) -> Result<WritableClone> {
        let (store, target) = (self.open("store"), Dir::open(target)?);
        let request = CloneRequest { snapshot: from.clone(), name: FileName::new(name).unwrap() };
        self.provider.clone_snapshot(&Place::new(&store).with_target(&target), &request, &Context::quiet())
    }

    fn remove(&self, branch: Reference) -> Result<()> {
        let request = DestroyRequest::Clone(branch);
        self.provider.destroy(&Place::new(&self.open("store")), &request, &Context::quiet()).map(drop)
    }

    fn view(&self, store: &str, of: &Snapshot, name: &str) -> Result<View> {
        let (store, target) = (self.open(store), self.open("branches"));
        let name = FileName::new(name).unwrap();
        let request = MountRequest { snapshot: of.reference.clone(), name, paths: Vec::new() };
        self.provider.mount(&Place::new(&store).with_target(&target), &request, &Context::quiet())
    }

    /// As whoever comes by has it done.
    fn mount_again(&self) {
        let request = ReclaimRequest { auto: true, forgotten: Vec::new() };
        self.provider.reclaim(&Place::new(&self.open("store")), &request, &Context::quiet()).unwrap();
    }

    fn end(&self, signal: Signal) {
        let service = self.service().unwrap();
        kill_process(service, signal).unwrap();
        self.until_it_ended(service, Duration::from_secs(20));
    }

    /// Ends the service, and what it knew of branches and snapshots is lost: its log, which is given up, or all of its tree.
    fn lose(&self, all: bool) {
        self.end(Signal::KILL);
        let home = self.dir.path().join("store");
        if all {
            std::fs::rename(home.join("tree"), home.join("tree.lost")).unwrap();
            return std::fs::remove_file(home.join("lower")).unwrap();
        }
        for log in std::fs::read_dir(home.join("tree/log")).unwrap() {
            std::fs::write(log.unwrap().path(), "").unwrap();
        }
        let (_, said) = fsck(&home, true);
        assert!(said.contains("is lost") || said.contains("are lost") || said.contains("was lost"), "{said}");
    }

    fn ids(&self) -> BTreeSet<String> {
        let store = self.open("store");
        let all = self.provider.list(&Place::new(&store), &ListRequest::default(), &Context::quiet()).unwrap();
        all.into_iter().map(|snapshot| snapshot.id.to_string()).collect()
    }

    /// The process of the home's service.
    fn service(&self) -> Option<Pid> {
        let home = self.dir.path().join("store");
        let is_it = |proc: &PathBuf| {
            let line = std::fs::read(proc.join("cmdline")).unwrap_or_default();
            let mut words = line.split(|&byte| byte == 0).skip(1);
            words.next() == Some(b"--serve") && words.next() == Some(home.as_os_str().as_bytes())
        };
        let mut all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let found = all.find(is_it)?;
        Pid::from_raw(found.file_name()?.to_str()?.parse().ok()?)
    }

    fn until_it_ended(&self, service: Pid, patience: Duration) {
        let began = Instant::now();
        // Its sockets are closed when the last of its threads is gone; what is left then is a zombie, perhaps.
        let is_there = || {
            let threads = std::fs::read_dir(format!("/proc/{}/task", service.as_raw_nonzero())).into_iter().flatten();
            threads.flatten().any(|thread| {
                let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
            })
        };
        while is_there() {
            assert!(began.elapsed() < patience, "the service does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.dir.path().join("store/log"));
            eprintln!("service {:?}, its log:\n{}", self.service(), log.unwrap_or_default());
        }
        if let Some(service) = self.service() {
            let _ = kill_process(service, Signal::TERM);
            self.until_it_ended(service, Duration::from_secs(20));
        }
    }
}

#[test]
fn a_killed_service_is_followed_by_another_although_the_connection_was_kept() {
    let scene = Scene::new();
    scene.base("first").unwrap();
    for round in 0..3 {
        let service = scene.service().expect("it was started");
        kill_process(service, Signal::KILL).unwrap();
        scene.until_it_ended(service, Duration::from_secs(20));
        scene.base(&format!("after-{round}")).unwrap();
        assert_ne!(scene.service(), Some(service));
    }
    let expected = ["first", "after-0", "after-1", "after-2"].map(ToOwned::to_owned);
    assert_eq!(scene.ids(), BTreeSet::from(expected));
}

#[test]
fn who_takes_a_branch_away_that_was_lost_takes_no_other() {
    for all in [false, true] {
        let scene = Scene::new();
        let lost = scene.branch(&scene.base("first").unwrap().reference, "lost").unwrap();
        scene.lose(all);
        let made = scene.branch(&scene.base("second").unwrap().reference, "made").unwrap();
        let work = made.path.join("work");
        std::fs::write(&work, "mine").unwrap();
        scene.remove(lost.reference).unwrap();
        for _ in 0..2 {
            assert_eq!(std::fs::read_to_string(&work).ok().as_deref(), Some("mine"), "all: {all}");
            scene.end(Signal::TERM);
            scene.mount_again();
        }
        scene.remove(made.reference).unwrap();
        assert!(!made.path.exists());
    }
}

#[test]
fn what_a_view_showed_that_was_lost_is_not_shown_as_another_snapshot() {
    for all in [false, true] {
        let scene = Scene::new();
        std::fs::create_dir(scene.dir.path().join("own")).unwrap();
        let branch = |base: &str, name: &str| {
            let branch = scene.branch(&scene.base(base).unwrap().reference, name).unwrap().path;
            std::fs::write(branch.join("mark"), name).unwrap();
            branch
        };
        let lost = branch("first", "lost");
        let snapshot = scene.snapshot(&lost, "own", "one", Durability::Durable).unwrap();
        let view = scene.view("own", &snapshot, "view").unwrap().path;
        let mark = || std::fs::read_to_string(view.join("mark")).ok();
        scene.end(Signal::KILL);
        scene.mount_again();
        assert_eq!(mark().as_deref(), Some("lost"));
        let views = scene.dir.path().join("store/views");
        let record = std::fs::read_dir(&views).unwrap().next().unwrap().unwrap().path();
        let written = std::fs::read(&record).unwrap();
        scene.lose(all);
        let made = branch("second", "made");
        for id in ["a", "b", "c", "d"] {
            scene.snapshot(&made, "own", id, Durability::Durable).unwrap();
        }
        for signal in [None, Some(Signal::KILL)] {
            if let Some(signal) = signal {
                scene.end(signal);
                // As of a service that did not look before another had its number.
                std::fs::write(&record, &written).unwrap();
            }
            scene.mount_again();
            assert_eq!(mark(), None, "all: {all}");
            assert!(!view.exists(), "all: {all}");
        }
        assert!(!view.exists());
        assert_eq!(std::fs::read_dir(&views).unwrap().count(), 0);
    }
}

#[test]
fn a_branch_within_anothers_place_is_mounted_again_behind_that_or_not_at_all() {
    let scene = Scene::new();
    let origin = scene.base("origin").unwrap().reference;
    let outer = scene.branch(&origin, "outer").unwrap().path;
    let inner = scene.branch_in(&origin, &outer, "inner").unwrap().path;
    let innermost = scene.branch_in(&origin, &inner, "innermost").unwrap().path;
    let content = |at: &Path| std::fs::read_to_string(at.join("a")).ok();
    let seen = || [&outer, &inner, &innermost].map(|at| content(at).is_some());
    std::fs::write(innermost.join("a"), "branch").unwrap();
    for signal in [Signal::TERM, Signal::KILL] {
        scene.end(signal);
        scene.ids();
        assert_eq!((seen(), content(&innermost)), ([true; 3], Some("branch".to_owned())), "{signal:?}");
    }
    scene.end(Signal::TERM);
    // It cannot be mounted there then. What stands there lets nobody but root write.
    std::fs::set_permissions(&outer, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(outer.join("work"), "").unwrap();
    scene.ids();
    assert_eq!(seen(), [false; 3]);
    assert!(!inner.exists(), "nothing is made in what stands in its place");
    scene.end(Signal::TERM);
    std::fs::remove_file(outer.join("work")).unwrap();
    scene.ids();
    assert_eq!(seen(), [true; 3]);
    scene.end(Signal::TERM);
}

#[test]
fn what_all_snapshots_hold_is_counted_once_and_asked_without_starting_a_service() {
    const MIB: u64 = 1 << 20;
    let scene = Scene::new();
    let told = |store: &str, snapshots: &[&Snapshot]| {
        let request = UsageRequest { snapshots: snapshots.iter().map(|it| it.reference.clone()).collect() };
        let store = scene.open(store);
        scene.provider.usage(&Place::new(&store), &request, &Context::quiet()).unwrap().bytes
    };
    let held = |store: &str, snapshots: &[&Snapshot]| told(store, snapshots).unwrap();
    assert_eq!((held("store", &[]), scene.service()), (0, None));
    let first = scene.base("first").unwrap();
    let branch = scene.branch(&first.reference, "b").unwrap();
    std::fs::create_dir(scene.dir.path().join("own")).unwrap();
    let write = |byte: u8| std::fs::write(branch.path.join("file"), vec![byte; MIB as usize]).unwrap();
    let take = |id: &str| scene.snapshot(&branch.path, "own", id, Durability::Durable).unwrap();
    write(1);
    let (a, b) = (take("a"), take("b"));
    write(2);
    let c = take("c");
    assert_eq!((held("own", &[&a]), held("own", &[&a, &b]), held("own", &[&c])), (0, MIB, 0));
    // The branch itself has another mebibyte.
    assert_eq!((held("store", &[]), held("own", &[]), held("store", &[&a, &b])), (0, MIB, 0));
    let service = scene.service().unwrap();
    kill_process(service, Signal::TERM).unwrap();
    scene.until_it_ended(service, Duration::from_secs(20));
    assert_eq!((told("store", &[]), told("own", &[]), scene.service()), (None, None, None));
    assert_eq!(held("own", &[&a, &b]), MIB);
}

#[test]
fn a_service_that_nobody_needs_ends_although_a_connection_was_kept() {
    let scene = Scene::new();
    scene.base("first").unwrap();
    let service = scene.service().expect("it was started");
    // 10 s until it hangs up, 30 s more until it ends.
    scene.until_it_ended(service, Duration::from_secs(70));
    scene.base("second").unwrap();
    assert_eq!(scene.ids(), BTreeSet::from(["first", "second"].map(ToOwned::to_owned)));
}

#[test]
fn branches_that_are_made_quickly_or_slowly_are_each_their_own() {
    let scene = Scene::new();
    let origin = scene.base("origin").unwrap().reference;
    let mut branches = Vec::new();
    for n in 0..9 {
        // Slowly: root's mount is ready before it is asked for. A base makes it one for nobody.
        if n >= 3 {
            std::thread::sleep(Duration::from_millis(50));
        }
        if n == 6 {
            scene.base("between").unwrap();
        }
        let branch = scene.branch(&origin, &format!("b{n}")).unwrap();
        assert_eq!(std::fs::read(branch.path.join("a")).unwrap(), b"below");
        std::fs::write(branch.path.join("a"), format!("branch {n}")).unwrap();
        branches.push(branch);
    }
    let table = ah_test_disks::mounts().replace("\\043", "#");
    let mut roots = BTreeSet::new();
    for (n, branch) in branches.iter().enumerate() {
        assert_eq!(std::fs::read_to_string(branch.path.join("a")).unwrap(), format!("branch {n}"));
        let of_it = format!(" {} ", branch.path.display());
        let line = table.lines().find(|line| line.contains(&of_it)).expect("it is mounted");
        // The reference says the same, and behind that its mark.
        let (source, mark) = branch.reference.as_str().rsplit_once('.').unwrap();
        assert!(line.contains(&format!(" {source} ")) && mark.len() == 32, "{line}");
        assert!(line.contains("nosuid,nodev"), "{line}");
        roots.insert(std::fs::metadata(&branch.path).unwrap().ino());
    }
    assert_eq!(roots.len(), branches.len());
    // Branches are captured by their service, which finds them by device and number; a store of their own is needed.
    for (n, branch) in branches.iter().enumerate() {
        let store = format!("store-{n}");
        std::fs::create_dir(scene.dir.path().join(&store)).unwrap();
        for (id, durability) in [("one", Durability::Instant), ("two", Durability::Durable)] {
            assert_eq!(scene.snapshot(&branch.path, &store, id, durability).unwrap().durability, durability);
        }
        // Nor is one taken for another, nor for a plain directory.
        let refused = scene.snapshot(&scene.dir.path().join("lower"), &store, "x", Durability::Instant).unwrap_err();
        assert_eq!(refused.kind, ah_plugin_api::ErrorKind::FailedPrecondition);
        let refused = scene.snapshot(&branch.path, "store", "x", Durability::Instant).unwrap_err();
        assert_eq!(refused.kind, ah_plugin_api::ErrorKind::FailedPrecondition);
    }
    for branch in branches {
        scene.remove(branch.reference).unwrap();
        assert!(!branch.path.exists());
    }
}

#[test]
fn what_somebody_mounts_over_a_branch_stays_and_so_does_who_works_in_it() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
        return;
    }
    let scene = Scene::new();
    let branch = scene.branch(&scene.base("origin").unwrap().reference, "one").unwrap();
    let works = std::fs::OpenOptions::new().append(true).open(branch.path.join("a")).unwrap();
    rustix::mount::mount("none", &branch.path, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    let file = branch.path.join("theirs");
    std::fs::write(&file, "").unwrap();
    let removed = scene.remove(branch.reference.clone());
    let (stays, goes_on) = (file.exists(), std::io::Write::write_all(&mut &works, b" and on"));
    let _ = rustix::mount::unmount(&branch.path, rustix::mount::UnmountFlags::DETACH);
    let refused = removed.expect_err("something is mounted over it");
    assert_eq!(refused.kind, ah_plugin_api::ErrorKind::Busy);
    assert!(refused.hint.is_some_and(|hint| hint.contains("umount")));
    assert!(stays && goes_on.is_ok(), "{stays}, {goes_on:?}");
    drop(works);
    assert_eq!(std::fs::read_to_string(branch.path.join("a")).unwrap(), "below and on");
    scene.remove(branch.reference).unwrap();
    assert!(!branch.path.exists());
}

/// What `--fsck` gives and says.
fn fsck(home: &Path, repair: bool) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ah-agentfsd"));
    let output = command.arg("--fsck").arg(home).args(repair.then_some("--repair")).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn a_key_that_nothing_vouches_for_is_not_mended_into_a_home() {
    let scene = Scene::new();
    let home = scene.dir.path().join("store");
    scene.base("one").unwrap();
    let service = scene.service().unwrap();
    kill_process(service, Signal::TERM).unwrap();
    scene.until_it_ended(service, Duration::from_secs(20));
    // As older programs left it, and one digit of it changed.
    std::fs::remove_file(home.join("shelf.copy")).unwrap();
    let whole = std::fs::read(home.join("shelf")).unwrap();
    let mut other = whole.clone();
    other[20] = if other[20] == b'0' { b'1' } else { b'0' };
    std::fs::write(home.join("shelf"), &other).unwrap();
    for repair in [false, true] {
        let (code, said) = fsck(&home, repair);
        assert!(code == Some(1) && said.contains("/shelf is not one"), "{said}");
        assert!(std::fs::read(home.join("shelf")).unwrap() == other && !home.join("shelf.copy").exists(), "{said}");
    }
    std::fs::write(home.join("shelf"), whole).unwrap();
    assert_eq!(fsck(&home, false).0, Some(0));
    assert_eq!(scene.ids(), BTreeSet::from(["one".to_owned()]));
}

#[test]
fn a_damaged_log_is_told_of_and_cut_by_fsck_which_nobody_runs_beside_the_service() {
    let scene = Scene::new();
    let home = scene.dir.path().join("store");
    let logs = home.join("tree/log");
    let newest = || std::fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    let fsck = |repair: bool| fsck(&home, repair);
    scene.base("early").unwrap();
    let bytes = std::fs::read(newest()).unwrap();
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    scene.base("late").unwrap();
    scene.base("latest").unwrap();
    for repair in [false, true] {
        let (code, said) = fsck(repair);
        assert!(code == Some(1) && said.contains("hint: "), "{said}");
    }
    assert_eq!(scene.ids().len(), 3);
    let service = scene.service().unwrap();
    kill_process(service, Signal::KILL).unwrap();
    scene.until_it_ended(service, Duration::from_secs(20));
    let mut bytes = std::fs::read(newest()).unwrap();
    bytes[end + 20] ^= 1;
    std::fs::write(newest(), &bytes).unwrap();
    let list = || {
        let store = scene.open("store");
        scene.provider.list(&Place::new(&store), &ListRequest::default(), &Context::quiet())
    };
    let refused = list().unwrap_err();
    assert!(refused.hint.as_ref().is_some_and(|hint| hint.contains("ah-agentfsd --fsck")), "{refused:?}");
    let (code, said) = fsck(false);
    assert!(code == Some(1) && std::fs::read(newest()).unwrap() == bytes, "{said}");
    list().unwrap_err();
    // The workspace's own branch may be among what is lost.
    let behind = home.join("behind");
    std::fs::write(&behind, "damaged").unwrap();
    let (code, said) = fsck(true);
    assert!(code == Some(1) && said.contains("lost") && said.contains(".damaged"), "{said}");
    assert!(said.contains("`behind` is left as it is") && std::fs::read(&behind).unwrap() == b"damaged", "{said}");
    std::fs::remove_file(&behind).unwrap();
    assert_eq!(scene.ids(), BTreeSet::from(["early".to_owned()]));
    let service = scene.service().unwrap();
    kill_process(service, Signal::TERM).unwrap();
    scene.until_it_ended(service, Duration::from_secs(20));
    assert_eq!(fsck(false).0, Some(0));
}

/// Whether who has a file open reads it while the service does nothing. What is in it, if so.
fn read_by_the_kernel_alone(path: &Path, service: Pid) -> Option<Vec<u8>> {
    let mut file = std::fs::File::open(path).unwrap();
    // What the kernel has of it is not what it was answered before.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    kill_process(service, Signal::STOP).unwrap();
    let (told, heard) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        let _ = told.send(bytes);
    });
    let bytes = heard.recv_timeout(Duration::from_secs(1)).ok();
    kill_process(service, Signal::CONT).unwrap();
    reader.join().unwrap();
    bytes
}

#[test]
fn that_large_files_are_passed_through_is_kept_in_the_home() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return ah_test_disks::skip("needs root and /dev/fuse");
    }
    if !ah_test_disks::kernel_passes_through() {
        return;
    }
    let scene = Scene::new();
    let large: Vec<u8> = (0..3 << 20).map(|at: u32| (at / 4096 * 7 + at % 251) as u8).collect();
    std::fs::write(scene.dir.path().join("lower/large"), &large).unwrap();
    let base = scene.base("base").unwrap().reference;
    let home = scene.dir.path().join("store");
    let agentfsd = |arguments: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ah-agentfsd"));
        let output = command.arg("--passthrough").arg(&home).args(arguments).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert!(!agentfsd(&["--on"]).0, "there is no such option");
    let (done, said) = agentfsd(&[]);
    assert!(done && said.contains("once the service of this home has begun anew"), "{said}");
    scene.end(Signal::TERM);
    assert!(agentfsd(&[]).1.contains("from now on"));
    let path = scene.branch(&base, "branch").unwrap().path.join("large");
    let second = scene.branch(&base, "second").unwrap().path.join("large");
    for round in 0..2 {
        for path in [&path, &second] {
            // What it is to be of is pinned behind the base.
            let began = Instant::now();
            let bytes = loop {
                if let Some(bytes) = read_by_the_kernel_alone(path, scene.service().unwrap()) {
                    break bytes;
                }
                assert!(began.elapsed() < Duration::from_secs(180), "it is not passed through");
            };
            assert!(bytes == large, "{round}");
        }
        // Mounted again by the next.
        scene.end(Signal::KILL);
        assert_eq!(scene.ids().len(), 1);
    }
    assert!(agentfsd(&["--off"]).0);
    scene.end(Signal::TERM);
    assert_eq!(scene.ids().len(), 1);
    assert_eq!(read_by_the_kernel_alone(&path, scene.service().unwrap()), None);
    assert!(std::fs::read(&path).unwrap() == large);
    // In another user namespace it is nobody's.
    let mut command = std::process::Command::new("unshare");
    let refused = command.args(["--user", "--map-root-user", env!("CARGO_BIN_EXE_ah-agentfsd"), "--passthrough"]);
    let refused = refused.arg(&home).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("only root may have that"), "{said}");
    assert!(!home.join("passthrough").exists());
}
