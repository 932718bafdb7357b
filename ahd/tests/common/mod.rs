//! The real program with a state of its own, and users to call it.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::missing_panics_doc)]

#[allow(unsafe_code)]
mod sys;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ah_host::helper::{self, Helper};
use ah_plugin_api::{
    CapturePolicy, CloneRequest, Context, DestroyRequest, Dir, Durability, FileName, ListRequest, MountRequest, Place,
    Probe, ProbeRequest, Provider, Reference, Result, Snapshot, SnapshotId, SnapshotRequest, Timestamp, UnmountRequest,
    View, WritableClone,
};

pub const ALICE: u32 = 65534;
pub const BOB: u32 = 12345;
pub const LIMIT: Duration = Duration::from_secs(20);

/// Says that a test had nothing to do here; where all is required that is a failure.
pub fn is_root() -> bool {
    if nix::unistd::geteuid().is_root() {
        return true;
    }
    assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root");
    eprintln!("skipped: needs root");
    false
}

/// Runs `work` on a thread that belongs to a user.
pub fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    in_groups(uid, &[], work)
}

/// As [`as_user`], with further groups.
pub fn in_groups<T: Send>(uid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            sys::become_user(uid, groups);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Everybody may have everything captured.
pub const ALLOWED: &str = r#"{"allow-containing": ["65534", "12345"]}"#;

/// The helper, running.
pub struct Daemon {
    pub base: tempfile::TempDir,
    pub socket: PathBuf,
    pub log: Arc<Mutex<Vec<String>>>,
    extra: Vec<(String, String)>,
    child: Option<Child>,
}

impl Daemon {
    /// With a configuration, and the test's plugin.
    pub fn start(config: &str) -> Self {
        Self::with(config, &["copies"], &[])
    }

    /// With plugins of this crate or of ah-test-plugins, and an environment.
    pub fn with(config: &str, plugins: &[&str], env: &[(&str, &str)]) -> Self {
        // In /run because every folder above has to be root's.
        let base = tempfile::Builder::new().prefix("ahd-test-").tempdir_in("/run").unwrap();
        open_up(base.path(), 0o755);
        let libraries = base.path().join("providers");
        fs::create_dir(&libraries).unwrap();
        for name in plugins {
            let to = libraries.join(format!("libah_provider_{name}.so"));
            fs::copy(library(name), &to).unwrap();
            open_up(&to, 0o644);
        }
        fs::write(base.path().join("ahd.conf"), config).unwrap();
        open_up(&base.path().join("ahd.conf"), 0o644);
        let socket = base.path().join("socket/ahd.sock");
        let extra = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut daemon = Self { base, socket, log: Arc::default(), extra, child: None };
        daemon.run().unwrap();
        daemon
    }

    /// Starts it; what it said if it does not come up.
    pub fn run(&mut self) -> std::result::Result<(), String> {
        let base = self.base.path();
        // With the capabilities that its unit leaves it; scripts/test-systemd has it run with all that the unit forbids.
        let mut child = Command::new("setpriv")
            .args(["--no-new-privs", "--inh-caps=-all", "--bounding-set", &capabilities(), "--"])
            .arg(env!("CARGO_BIN_EXE_ahd"))
            .arg("--socket")
            .arg(&self.socket)
            .arg("--state")
            .arg(base.join("state"))
            .arg("--config")
            .arg(base.join("ahd.conf"))
            .arg("--provider-dir")
            .arg(base.join("providers"))
            .envs(self.extra.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (log, (sender, receiver)) = (Arc::clone(&self.log), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            for line in lines.map_while(std::result::Result::ok) {
                let ready = line.contains("\"ready\"");
                log.lock().unwrap().push(line);
                if ready {
                    let _ = sender.send(());
                }
            }
        });
        // An error if it ends without being ready: its stderr is closed.
        let up = receiver.recv_timeout(LIMIT).is_ok();
        self.child = Some(child);
        if up { Ok(()) } else { Err(self.log.lock().unwrap().join("\n")) }
    }

    /// Asks the program something as its administrator; whether it could answer, and what it said.
    pub fn command(&self, arguments: &[&str]) -> (bool, String) {
        let [state, providers] = ["state", "providers"].map(|name| self.base.path().join(name));
        let own = ["--state", state.to_str().unwrap(), "--provider-dir", providers.to_str().unwrap()];
        self.advised(&[arguments, &own].concat())
    }

    /// The same of words that say all, as those of a hint do.
    pub fn advised(&self, arguments: &[&str]) -> (bool, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_ahd")).args(arguments).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    /// Ends it, at once.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub fn restart(&mut self) {
        self.kill();
        self.run().unwrap();
    }

    /// Whether it is still the process that was started.
    pub fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Whether it says that, sooner or later: its lines are read by a thread that may lag behind.
    pub fn said(&self, text: &str) -> bool {
        let began = Instant::now();
        loop {
            if self.log.lock().unwrap().iter().any(|line| line.contains(text)) {
                return true;
            }
            if began.elapsed() > LIMIT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its provider, as `ah` would use it.
    pub fn provider(&self) -> Arc<dyn Provider> {
        self.named("copies_ahd")
    }

    pub fn named(&self, name: &str) -> Arc<dyn Provider> {
        let helper = Helper { socket: self.socket.clone(), named: true, limit: LIMIT };
        let all = helper::load(&helper).unwrap();
        all.into_iter().find(|(description, _)| description.name.as_str() == name).unwrap().1
    }

    pub fn dial(&self) -> UnixStream {
        UnixStream::connect(&self.socket).unwrap()
    }

    /// A world of directories of a user's.
    pub fn home(&self, uid: u32) -> Home {
        Home::make(self.base.path().join(format!("u{uid}")), uid)
    }
}

impl Home {
    /// Makes a user's directories in one that is made if need be.
    pub fn make(root: PathBuf, uid: u32) -> Self {
        fs::create_dir_all(&root).unwrap();
        for name in ["w", "store", "target"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        for path in [root.clone(), root.join("w"), root.join("store"), root.join("target")] {
            chown(&path, Some(uid), Some(uid)).unwrap();
            open_up(&path, 0o700);
        }
        fs::write(root.join("w/file"), format!("of {uid}")).unwrap();
        chown(root.join("w/file"), Some(uid), Some(uid)).unwrap();
        Home { uid, root }
    }
}

impl Daemon {
    /// The mount points below its folder, with their options.
    pub fn mounts(&self) -> Vec<(PathBuf, String)> {
        // Names are bytes, of other tests' mounts too.
        let table = ah_test_disks::mounts();
        let fields = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        fields
            .map(|fields| (unescaped(fields[4]), fields[5].to_owned()))
            .filter(|(point, _)| point.starts_with(self.base.path()))
            .collect()
    }

    /// The names in a folder of its state.
    pub fn state(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.base.path().join("state").join(folder)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        for (point, _) in self.mounts().iter().rev() {
            let _ = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
        }
        if std::thread::panicking() {
            let log = self.log.lock().unwrap();
            eprintln!("{}", log[log.len().saturating_sub(20)..].join("\n"));
        }
    }
}

/// A user's directories.
#[derive(Clone)]
pub struct Home {
    pub uid: u32,
    pub root: PathBuf,
}

/// Those directories, open.
pub struct Open {
    pub workspace: Dir,
    pub store: Dir,
    pub target: Dir,
}

impl Home {
    pub fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn open(&self) -> Open {
        let open = |name: &str| Dir::open(self.at(name)).unwrap();
        Open { workspace: open("w"), store: open("store"), target: open("target") }
    }
}

impl Open {
    pub fn place(&self) -> Place<'_> {
        Place::new(&self.store).with_workspace(&self.workspace).with_target(&self.target)
    }

    pub fn probe(&self, provider: &dyn Provider) -> Result<Probe> {
        provider.probe(&self.place(), &ProbeRequest::default(), &Context::quiet())
    }

    pub fn snapshot(&self, provider: &dyn Provider, id: &str) -> Result<Snapshot> {
        provider.snapshot(&self.place(), &request(id, None), &Context::quiet())
    }

    pub fn list(&self, provider: &dyn Provider) -> Result<Vec<Snapshot>> {
        provider.list(&self.place(), &ListRequest::default(), &Context::quiet())
    }

    pub fn mount(&self, provider: &dyn Provider, snapshot: &Reference, name: &str) -> Result<View> {
        let name = FileName::new(name).unwrap();
        let request = MountRequest { snapshot: snapshot.clone(), name, paths: Vec::new() };
        provider.mount(&self.place(), &request, &Context::quiet())
    }

    pub fn unmount(&self, provider: &dyn Provider, view: &Reference) -> Result<()> {
        let request = UnmountRequest { view: view.clone(), unused: false };
        provider.unmount(&self.place(), &request, &Context::quiet()).map(|_| ())
    }

    pub fn fork(&self, provider: &dyn Provider, snapshot: &Reference, name: &str) -> Result<WritableClone> {
        let request = CloneRequest { snapshot: snapshot.clone(), name: FileName::new(name).unwrap() };
        provider.clone_snapshot(&self.place(), &request, &Context::quiet())
    }

    pub fn destroy(&self, provider: &dyn Provider, request: &DestroyRequest) -> Result<()> {
        provider.destroy(&self.place(), request, &Context::quiet()).map(|_| ())
    }
}

pub fn request(id: &str, label: Option<&str>) -> SnapshotRequest {
    SnapshotRequest {
        id: SnapshotId::new(id).unwrap(),
        created: Timestamp { secs: 1, nanos: 2 },
        label: label.map(str::to_owned),
        attributes: BTreeMap::new(),
        durability: Durability::Instant,
        policy: CapturePolicy::default(),
    }
}

pub fn open_up(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A path as the kernel's table of mounts has it: what would end a field there is in octal.
fn unescaped(text: &str) -> PathBuf {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    PathBuf::from(escapes.iter().fold(text.to_owned(), |text, (escape, is)| text.replace(escape, is)))
}

/// Waits until something is so.
pub fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn library(name: &str) -> PathBuf {
    if !["copies", "btrfs"].contains(&name) {
        return ah_test_plugins::library(name);
    }
    // target/<profile>/deps/<test>
    let exe = std::env::current_exe().unwrap();
    let profile = exe.parent().unwrap().parent().unwrap();
    profile.join(format!("examples/libplugin_{name}.so"))
}

/// The capabilities that the unit file leaves it, as setpriv takes them.
fn capabilities() -> String {
    let unit = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/ahd.service")).unwrap();
    let line = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let names = line.split(' ').map(|name| format!("+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()));
    std::iter::once("-all".to_owned()).chain(names).collect::<Vec<_>>().join(",")
}
