//! A workspace that is put behind AgentFS and taken back: what is in it stays, whoever is in the way and whenever it is killed.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ah_plugin_api::{
    CapturePolicy, CloneRequest, Context, ConvertRequest, Converted, DestroyRequest, DiffRequest, Dir, Durability,
    ErrorKind, FileName, LogLevel, Observer, Place, Progress, Provider, ReadRequest, ReclaimRequest, Reclaimed,
    Reference, RelPath, Result, Side, SnapshotId, SnapshotRequest, Timestamp,
};
use ah_provider_agentfs::AgentFsProvider;
use ah_test_disks::{mounting_as_ordinary_user, ordinary_users_path};
use rustix::process::{Pid, Signal, kill_process};
use writers::Hears;

mod kills;
mod power;
mod shut;
mod writers;

/// A workspace with something of each kind, its store, and a provider.
struct Scene {
    _temp: Option<tempfile::TempDir>,
    dir: PathBuf,
    provider: AgentFsProvider,
}

/// What is in a directory, by path: kind and bits, modification time, and contents.
type Tree = BTreeMap<PathBuf, (u32, (i64, i64), Vec<u8>)>;

fn tree(top: &Path) -> Tree {
    let mut found = Tree::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let at = top.join(&path);
        let stat = fs::symlink_metadata(&at).unwrap();
        let contents = match stat.file_type() {
            kind if kind.is_symlink() => fs::read_link(&at).unwrap().as_os_str().as_bytes().to_vec(),
            kind if kind.is_file() => [fs::read(&at).unwrap(), format!("{}", stat.nlink()).into_bytes()].concat(),
            kind if kind.is_dir() => {
                waiting.extend(fs::read_dir(&at).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
                Vec::new()
            }
            _ => Vec::new(),
        };
        found.insert(path, (stat.mode(), (stat.mtime(), stat.mtime_nsec()), contents));
    }
    found
}

impl Scene {
    fn new() -> Self {
        // An ordinary user's tests are given a place of their own.
        let (temp, dir) = match ordinary_users_path() {
            Some(path) => (None, path),
            None => {
                let temp = tempfile::tempdir().unwrap();
                let dir = temp.path().to_owned();
                (Some(temp), dir)
            }
        };
        Self::at(temp, dir)
    }

    fn at(temp: Option<tempfile::TempDir>, dir: PathBuf) -> Self {
        let scene = Self { _temp: temp, dir, provider: AgentFsProvider::new() };
        fs::create_dir(scene.dir.join("store")).unwrap();
        let work = scene.workspace();
        fs::create_dir_all(work.join("src/deep")).unwrap();
        fs::create_dir(work.join("empty")).unwrap();
        for n in 0..40 {
            fs::write(work.join(format!("src/deep/{n}")), format!("file {n}")).unwrap();
        }
        fs::write(work.join("a"), "as it was").unwrap();
        fs::hard_link(work.join("a"), work.join("src/also a")).unwrap();
        symlink("a", work.join("link")).unwrap();
        fs::set_permissions(work.join("src/deep/1"), fs::Permissions::from_mode(0o751)).unwrap();
        fs::set_permissions(work.join("empty"), fs::Permissions::from_mode(0o555)).unwrap();
        // As Go leaves its modules.
        fs::create_dir(work.join("module")).unwrap();
        fs::write(work.join("module/file"), "of others").unwrap();
        fs::set_permissions(work.join("module"), fs::Permissions::from_mode(0o555)).unwrap();
        scene
    }

    fn workspace(&self) -> PathBuf {
        self.dir.join("work")
    }

    fn behind(&self) -> PathBuf {
        self.dir.join(".ah-behind-work")
    }

    /// What is beside the workspace.
    fn beside(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| name != "store" && name != "work");
        names.sort();
        names
    }

    fn store(&self) -> Dir {
        Dir::open(self.dir.join("store")).unwrap()
    }

    fn there(&self) -> Result<Converted> {
        let (store, work) = (self.store(), Dir::open(self.workspace())?);
        let place = Place::new(&store).with_workspace(&work);
        self.provider.convert(&place, &ConvertRequest { back: false }, &Context::quiet())
    }

    fn back(&self) -> Result<Converted> {
        self.back_watched(&Context::quiet())
    }

    fn back_watched(&self, cx: &Context<'_>) -> Result<Converted> {
        self.provider.convert(&Place::new(&self.store()), &ConvertRequest { back: true }, cx)
    }

    fn snapshot(&self, id: &str) -> Result<Reference> {
        let (store, work) = (self.store(), Dir::open(self.workspace())?);
        let request = SnapshotRequest {
            id: SnapshotId::new(id).unwrap(),
            created: Timestamp { secs: 1, nanos: 2 },
            label: None,
            attributes: BTreeMap::new(),
            durability: Durability::Durable,
            policy: CapturePolicy::default(),
        };
        let place = Place::new(&store).with_workspace(&work);
        self.provider.snapshot(&place, &request, &Context::quiet()).map(|snapshot| snapshot.reference)
    }

    /// What a file held.
    fn cat(&self, snapshot: &Reference, path: &str) -> String {
        let mut file = tempfile::tempfile().unwrap();
        let request = ReadRequest { snapshot: snapshot.clone(), path: RelPath::new(path).unwrap() };
        let store = self.store();
        self.provider.read(&Place::new(&store).with_output(file.as_fd()), &request, &Context::quiet()).unwrap();
        let mut text = String::new();
        std::io::Seek::rewind(&mut file).unwrap();
        std::io::Read::read_to_string(&mut file, &mut text).unwrap();
        text
    }

    fn changed(&self, from: &Reference) -> Vec<String> {
        let (store, work) = (self.store(), Dir::open(self.workspace()).unwrap());
        let request = DiffRequest {
            from: Side::Snapshot(from.clone()),
            to: Side::Workspace,
            paths: Vec::new(),
            times: false,
            policy: CapturePolicy::default(),
        };
        let place = Place::new(&store).with_workspace(&work);
        let changes = self.provider.diff(&place, &request, &Context::quiet()).unwrap().changes;
        changes.into_iter().map(|change| change.path.to_string()).collect()
    }

    fn destroy(&self, snapshot: Reference) {
        let request = DestroyRequest::Snapshot(snapshot);
        self.provider.destroy(&Place::new(&self.store()), &request, &Context::quiet()).unwrap();
    }

    fn reclaim(&self, auto: bool) -> Result<Reclaimed> {
        let request = ReclaimRequest { auto, forgotten: Vec::new() };
        self.provider.reclaim(&Place::new(&self.store()), &request, &Context::quiet())
    }

    /// As the next command does, and the one after that: who had just connected to a service that was being killed is told so.
    fn settle(&self) {
        self.settle_heard(&Context::quiet());
    }

    fn settle_heard(&self, cx: &Context<'_>) {
        let request = ReclaimRequest { auto: true, forgotten: Vec::new() };
        let reclaim = || self.provider.reclaim(&Place::new(&self.store()), &request, cx);
        for _ in 0..2 {
            match reclaim() {
                Err(error) if error.kind == ErrorKind::Unavailable => {}
                settled => return drop(settled.unwrap()),
            }
        }
        reclaim().unwrap();
    }

    fn is_mounted(&self) -> bool {
        let table = ah_test_disks::mounts();
        table.contains(&format!(" {} ", self.workspace().display()))
    }

    fn service(&self) -> Option<Pid> {
        let home = self.dir.join("store");
        let is_it = |proc: &PathBuf| {
            let line = fs::read(proc.join("cmdline")).unwrap_or_default();
            let mut words = line.split(|&byte| byte == 0).skip(1);
            words.next() == Some(b"--serve") && words.next() == Some(home.as_os_str().as_bytes())
        };
        let found = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).find(is_it)?;
        Pid::from_raw(found.file_name()?.to_str()?.parse().ok()?)
    }

    fn end(&self, signal: Signal) {
        let Some(service) = self.service() else { return };
        let _ = kill_process(service, signal);
        let began = Instant::now();
        // Its sockets are closed when the last of its threads is gone; what is left then is a zombie, perhaps.
        let goes_on = || {
            let threads = fs::read_dir(format!("/proc/{}/task", service.as_raw_nonzero())).into_iter().flatten();
            threads.flatten().any(|thread| {
                let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
                stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
            })
        };
        while goes_on() {
            assert!(began.elapsed() < Duration::from_secs(20), "the service does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.join("store/log"));
            eprintln!("{:?}, the service's log:\n{}", self.beside(), log.unwrap_or_default());
        }
        if let Some(service) = self.service() {
            let _ = kill_process(service, Signal::TERM);
            let began = Instant::now();
            while self.service().is_some() && began.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        // The service was killed, perhaps, and nobody has come by since.
        let _ = Command::new("umount").arg("-l").arg(self.workspace()).stderr(Stdio::null()).status();
    }
}

/// A process that has a file open.
struct Holder(Child);

impl Holder {
    fn of(file: &Path) -> Self {
        Self(Command::new("sleep").arg("60").stdin(fs::File::open(file).unwrap()).spawn().unwrap())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn there_and_back(scene: &Scene) {
    if !rustix::process::geteuid().is_root() {
        fs::set_permissions(scene.workspace().join("src/deep/3"), fs::Permissions::from_mode(0o000)).unwrap();
        let refused = scene.there().unwrap_err();
        assert!(
            refused.kind == ErrorKind::FailedPrecondition && refused.to_string().contains("src/deep/3"),
            "{refused}"
        );
        fs::set_permissions(scene.workspace().join("src/deep/3"), fs::Permissions::from_mode(0o644)).unwrap();
    }
    let was = tree(&scene.workspace());
    let plain = scene.there().unwrap();
    assert!(plain.changed && plain.mounted && scene.is_mounted());
    assert_eq!(tree(&scene.workspace()), was);
    assert_eq!(scene.beside(), [".ah-behind-work"]);
    let again = scene.there().unwrap();
    assert!(!again.changed && again.mounted);
    // Snapshots of what is there, however it is changed.
    let first = scene.snapshot("first").unwrap();
    fs::write(scene.workspace().join("a"), "changed").unwrap();
    fs::remove_file(scene.workspace().join("src/deep/7")).unwrap();
    fs::write(scene.workspace().join("new"), "new").unwrap();
    assert_eq!(scene.changed(&first), ["a", "new", "src/also a", "src/deep/7"]);
    let second = scene.snapshot("second").unwrap();
    assert_eq!((scene.cat(&first, "a"), scene.cat(&second, "a")), ("as it was".to_owned(), "changed".to_owned()));
    // A branch of it, which does not see what comes after.
    fs::create_dir(scene.dir.join("branches")).unwrap();
    let (store, target) = (scene.store(), Dir::open(scene.dir.join("branches")).unwrap());
    let request = CloneRequest { snapshot: second.clone(), name: FileName::new("one").unwrap() };
    let branch =
        scene.provider.clone_snapshot(&Place::new(&store).with_target(&target), &request, &Context::quiet()).unwrap();
    assert_eq!(branch.notes, Vec::<String>::new(), "what is to be let rest lies behind already");
    fs::write(scene.workspace().join("src/deep/3"), "later").unwrap();
    assert_eq!(fs::read_to_string(branch.path.join("src/deep/3")).unwrap(), "file 3");
    assert_eq!(fs::read_to_string(branch.path.join("a")).unwrap(), "changed");
    // Ended and begun again, it is where it was.
    let worked = tree(&scene.workspace());
    scene.end(Signal::TERM);
    assert!(!scene.is_mounted() && fs::metadata(scene.workspace().join("NOT-MOUNTED.txt")).is_ok());
    scene.reclaim(true).unwrap();
    assert_eq!(tree(&scene.workspace()), worked);

    let back = scene.back().unwrap();
    assert!(back.changed && !back.mounted && !scene.is_mounted());
    assert_eq!(tree(&scene.workspace()), worked);
    assert_eq!(fs::read_to_string(branch.path.join("src/deep/3")).unwrap(), "file 3");
    assert_eq!(scene.cat(&first, "src/deep/7"), "file 7");
    // What reads it keeps it, and another one is not put behind it.
    scene.reclaim(false).unwrap();
    assert_eq!(scene.beside(), [".ah-behind-work", "branches"]);
    let refused = scene.there().unwrap_err();
    assert_eq!(refused.kind, ErrorKind::FailedPrecondition, "{refused}");
    let again = scene.back().unwrap();
    assert!(!again.changed && !again.mounted);
    scene.provider.destroy(&Place::new(&store), &DestroyRequest::Clone(branch.reference), &Context::quiet()).unwrap();
    scene.destroy(first);
    scene.destroy(second);
    fs::remove_dir(scene.dir.join("branches")).unwrap();
    // With nothing kept, it can be put there again, though nobody has cleared up yet, and taken back at once.
    assert!(scene.there().unwrap().changed);
    assert_eq!(scene.beside(), [".ah-behind-work"]);
    assert_eq!(tree(&scene.workspace()), worked);
    scene.back().unwrap();
    assert_eq!(tree(&scene.workspace()), worked);
    assert_eq!(scene.beside(), Vec::<String>::new());
}

#[test]
fn it_goes_there_and_back_with_all_that_is_in_it() {
    there_and_back(&Scene::new());
}

#[test]
fn an_ordinary_user_may_do_so() {
    if ordinary_users_path().is_some() {
        return there_and_back(&Scene::new());
    }
    mounting_as_ordinary_user("an_ordinary_user_may_do_so");
}

#[test]
fn it_is_refused_while_somebody_is_in_it() {
    let scene = Scene::new();
    let was = tree(&scene.workspace());
    let holder = Holder::of(&scene.workspace().join("src/deep/3"));
    let refused = scene.there().unwrap_err();
    assert!(refused.kind == ErrorKind::Busy && refused.to_string().contains(&holder.0.id().to_string()), "{refused}");
    assert!(scene.beside().is_empty() && !scene.is_mounted());
    drop(holder);
    scene.there().unwrap();
    let holder = Holder::of(&scene.workspace().join("src/deep/3"));
    // Nothing was cut short: the error is all that is said.
    let hears = Hears::default();
    let refused = scene.back_watched(&Context::new(&hears)).unwrap_err();
    assert!(refused.kind == ErrorKind::Busy && refused.to_string().contains(&holder.0.id().to_string()), "{refused}");
    assert_eq!(*hears.0.lock().unwrap(), Vec::<String>::new());
    assert_eq!(scene.beside(), [".ah-behind-work"]);
    assert!(scene.is_mounted());
    assert_eq!(tree(&scene.workspace()), was);
    drop(holder);
    scene.back().unwrap();
    assert_eq!(tree(&scene.workspace()), was);
}

#[test]
fn nothing_of_anybody_elses_is_touched() {
    let scene = Scene::new();
    fs::create_dir(scene.behind()).unwrap();
    fs::write(scene.behind().join("mine"), "mine").unwrap();
    let refused = scene.there().unwrap_err();
    assert_eq!(refused.kind, ErrorKind::AlreadyExists, "{refused}");
    assert_eq!(fs::read_to_string(scene.behind().join("mine")).unwrap(), "mine");
    assert!(!scene.is_mounted());
    fs::remove_dir_all(scene.behind()).unwrap();
    // What lies behind was worked in all the same: it stays.
    scene.there().unwrap();
    fs::write(scene.behind().join("src/deep/5"), "worked here").unwrap();
    let back = scene.back().unwrap();
    assert!(back.notes.iter().any(|note| note.contains("was worked in")), "{:?}", back.notes);
    assert_eq!(fs::read_to_string(scene.behind().join("src/deep/5")).unwrap(), "worked here");
    scene.reclaim(false).unwrap();
    assert_eq!(scene.beside(), [".ah-behind-work"]);
}

#[test]
fn what_is_written_while_it_is_copied_back_is_not_lost() {
    struct Writes(PathBuf, AtomicBool);
    impl Observer for Writes {
        fn progress(&self, _progress: &Progress) {
            // Whatever of it was copied by then: it is told when nobody can write any more.
            std::thread::sleep(Duration::from_millis(20));
            fs::write(&self.0, "written meanwhile").unwrap();
            self.1.store(true, Ordering::Relaxed);
        }
    }
    let scene = Scene::new();
    scene.there().unwrap();
    let writes = Writes(scene.workspace().join("src/deep/9"), AtomicBool::new(false));
    let back = scene.back_watched(&Context::new(&writes));
    assert!(writes.1.load(Ordering::Relaxed));
    // It came in time to be copied, or it is refused.
    if let Err(refused) = back {
        assert_eq!(refused.kind, ErrorKind::Conflict, "{refused}");
        assert!(scene.is_mounted());
        assert_eq!(scene.beside(), [".ah-behind-work"]);
        assert_eq!(fs::read_to_string(scene.workspace().join("src/deep/9")).unwrap(), "written meanwhile");
        scene.back().unwrap();
    }
    assert_eq!(fs::read_to_string(scene.workspace().join("src/deep/9")).unwrap(), "written meanwhile");
}

#[test]
fn what_is_changed_behind_the_copy_is_not_lost() {
    struct Changes(PathBuf, Hears);
    impl Observer for Changes {
        fn progress(&self, progress: &Progress) {
            if progress.stage == "putting it on disk" {
                rustix::fs::setxattr(&self.0, "user.later", b"1", rustix::fs::XattrFlags::empty()).unwrap();
            }
        }

        fn log(&self, level: LogLevel, message: &str) {
            self.1.log(level, message);
        }
    }
    let scene = Scene::new();
    scene.there().unwrap();
    let file = scene.workspace().join("src/deep/9");
    // Each time that it is tried.
    let changes = Changes(file.clone(), Hears::default());
    let refused = scene.back_watched(&Context::new(&changes)).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Conflict, "{refused}");
    assert_eq!(*changes.1.0.lock().unwrap(), Vec::<String>::new(), "it was not cut short");
    assert!(scene.is_mounted() && scene.beside() == [".ah-behind-work"]);
    scene.back().unwrap();
    assert_eq!(rustix::fs::getxattr(&file, "user.later", &mut [0; 4][..]).unwrap(), 1);
}

#[test]
fn a_copy_for_which_there_is_no_room_is_gone_at_once() {
    let Some(disk) = ah_test_disks::Disk::new("ext4", 64, "defaults") else { return };
    let scene = Scene::at(None, disk.at().to_owned());
    fs::write(scene.workspace().join("large"), vec![7; 36 << 20]).unwrap();
    let was = tree(&scene.workspace());
    scene.there().unwrap();
    assert_eq!(scene.back().unwrap_err().kind, ErrorKind::ResourceExhausted);
    assert_eq!(scene.beside(), [".ah-behind-work", "lost+found"]);
    assert!(!scene.dir.join("store/converting").exists());
    assert_eq!(tree(&scene.workspace()), was);
}

#[test]
fn without_what_lies_behind_it_is_not_taken_back() {
    let scene = Scene::new();
    scene.there().unwrap();
    fs::write(scene.workspace().join("new"), "new").unwrap();
    scene.end(Signal::TERM);
    fs::rename(scene.behind(), scene.dir.join("elsewhere")).unwrap();
    let refused = scene.back().unwrap_err();
    assert_eq!(refused.kind, ErrorKind::FailedPrecondition, "{refused}");
    assert_eq!(fs::read_to_string(scene.workspace().join("new")).unwrap(), "new");
    scene.end(Signal::TERM);
    fs::rename(scene.dir.join("elsewhere"), scene.behind()).unwrap();
    scene.back().unwrap();
    assert_eq!(fs::read_to_string(scene.workspace().join("src/deep/9")).unwrap(), "file 9");
    assert_eq!(fs::read_to_string(scene.workspace().join("new")).unwrap(), "new");
}

#[test]
fn others_who_ask_meanwhile_are_in_nobodys_way() {
    let scene = Scene::new();
    let was = tree(&scene.workspace());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (other, store) = (AgentFsProvider::new(), scene.store());
                let request = ReclaimRequest { auto: true, forgotten: Vec::new() };
                while !done.load(Ordering::Relaxed) {
                    other.reclaim(&Place::new(&store), &request, &Context::quiet()).unwrap();
                }
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..10 {
                scene.there().unwrap();
                assert_eq!(tree(&scene.workspace()), was, "{round}");
                scene.back().unwrap();
                assert_eq!(tree(&scene.workspace()), was, "{round}");
                assert_eq!(scene.beside(), Vec::<String>::new());
            }
        }));
        done.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
}

#[test]
fn what_was_written_is_not_lost_when_what_lies_behind_is_put_back_by_hand() {
    let scene = Scene::new();
    scene.there().unwrap();
    fs::write(scene.workspace().join("new"), "new").unwrap();
    scene.snapshot("taken").unwrap();
    scene.end(Signal::TERM);
    let aside = scene.dir.join("aside");
    fs::rename(scene.workspace(), &aside).unwrap();
    fs::rename(scene.behind(), scene.workspace()).unwrap();
    // As `gc` does there, which finds the directory again that was branched.
    let (store, work) = (scene.store(), Dir::open(scene.workspace()).unwrap());
    let request = ReclaimRequest { auto: false, forgotten: Vec::new() };
    scene.provider.reclaim(&Place::new(&store).with_workspace(&work), &request, &Context::quiet()).unwrap();
    assert!(!scene.is_mounted() && !scene.workspace().join("new").exists());
    drop(work);
    scene.end(Signal::TERM);
    fs::rename(scene.workspace(), scene.behind()).unwrap();
    fs::rename(&aside, scene.workspace()).unwrap();
    let behind = Dir::open(scene.behind()).unwrap();
    scene.provider.reclaim(&Place::new(&store).with_workspace(&behind), &request, &Context::quiet()).unwrap();
    drop(behind);
    assert_eq!(fs::read_to_string(scene.workspace().join("new")).unwrap(), "new");
    assert_eq!(fs::read_to_string(scene.workspace().join("src/deep/9")).unwrap(), "file 9");
    scene.back().unwrap();
    assert_eq!(fs::read_to_string(scene.workspace().join("new")).unwrap(), "new");
}

#[test]
fn what_could_not_be_taken_back_is_not_put_there() {
    let scene = Scene::new();
    // A file that this very process has open, which the kernel tells of.
    let open = fs::File::options().append(true).open(scene.workspace().join("a")).unwrap();
    assert_eq!(scene.there().unwrap_err().kind, ErrorKind::Busy);
    assert!(scene.beside().is_empty() && !scene.is_mounted());
    drop(open);
    scene.there().unwrap();
}

#[test]
fn a_log_that_was_lost_does_not_take_what_lies_behind_along() {
    let scene = Scene::new();
    scene.there().unwrap();
    fs::write(scene.workspace().join("new"), "new").unwrap();
    scene.end(Signal::KILL);
    assert!(Command::new("umount").arg("-l").arg(scene.workspace()).status().unwrap().success());
    for log in fs::read_dir(scene.dir.join("store/tree/log")).unwrap() {
        fs::File::options().write(true).open(log.unwrap().path()).unwrap().set_len(0).unwrap();
    }
    fs::set_permissions(scene.workspace(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_dir_all(scene.workspace()).unwrap();
    fs::create_dir(scene.workspace()).unwrap();
    // Nothing is opened until what was changed since is given up.
    assert_eq!(scene.reclaim(true).unwrap_err().kind, ErrorKind::DataLoss);
    scene.end(Signal::TERM);
    let mut check = Command::new(env!("CARGO_BIN_EXE_ah-agentfsd"));
    let check = check.arg("--fsck").arg(scene.dir.join("store")).arg("--repair").output().unwrap();
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    for auto in [true, false] {
        scene.reclaim(auto).unwrap();
        assert_eq!(fs::read_to_string(scene.behind().join("src/deep/9")).unwrap(), "file 9");
    }
    let log = fs::read_to_string(scene.dir.join("store/log")).unwrap();
    assert!(log.contains("its log is damaged"), "{log}");
}
