//! A lower directory, a store and places to mount at, in a temporary folder; nothing stays mounted when the test fails.

// Not every test program uses all of it.
#![allow(dead_code)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ah_agentfs::{Options, Workspace};
use ah_agentfs_fuse::{Error, Face, Mount};
use rustix::mount::UnmountFlags;

/// How many of so many are done: all if `AH_TEST_FULL` is set (`scripts/test --full`), else a tenth.
pub(crate) fn full_or_tenth(all: u32) -> u32 {
    if std::env::var_os("AH_TEST_FULL").is_some() { all } else { all / 10 }
}

/// An ordinary user.
pub(crate) const USER: u32 = 65534;

pub(crate) struct Lab {
    temp: tempfile::TempDir,
    places: AtomicU32,
}

impl Lab {
    /// With the files `a` ("lower"), `d/f` ("deep") and the link `l` to the first below. None: skipped.
    pub(crate) fn new() -> Option<Self> {
        Self::within(&std::env::temp_dir())
    }

    /// In that directory.
    pub(crate) fn within(directory: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: needs root and /dev/fuse");
            println!("skipped: needs root and /dev/fuse");
            return None;
        }
        let temp = tempfile::Builder::new().prefix("ah-fuse-").tempdir_in(directory).unwrap();
        fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let lab = Self { temp, places: AtomicU32::new(0) };
        fs::create_dir_all(lab.lower().join("d")).unwrap();
        fs::write(lab.lower().join("a"), "lower\n").unwrap();
        fs::write(lab.lower().join("d/f"), "deep\n").unwrap();
        std::os::unix::fs::symlink("a", lab.lower().join("l")).unwrap();
        Some(lab)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub(crate) fn lower(&self) -> PathBuf {
        self.path("lower")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// A new empty directory.
    pub(crate) fn place(&self) -> PathBuf {
        let place = self.path(&format!("at{}", self.places.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&place).unwrap();
        place
    }

    /// The store, made if there is none, and its branch of that label, mounted.
    pub(crate) fn mount(&self, label: &str) -> (Workspace, Mount) {
        self.mount_with(label, Options::default())
    }

    /// The same, where nothing is pinned: a branch shows what is done below.
    pub(crate) fn mount_unpinned(&self, label: &str) -> (Workspace, Mount) {
        self.mount_with(label, Options { pins: false, ..Options::default() })
    }

    fn mount_with(&self, label: &str, options: Options) -> (Workspace, Mount) {
        self.mount_as(label, options, &Face::default())
    }

    pub(crate) fn mount_as(&self, label: &str, options: Options, face: &Face) -> (Workspace, Mount) {
        let _ = Workspace::create(&self.store(), &self.lower());
        let workspace = Workspace::open(&self.store(), &self.lower(), options).unwrap();
        let there = workspace.branches().into_iter().find(|branch| branch.label == label.as_bytes());
        let branch = there
            .map(|branch| branch.id)
            .unwrap_or_else(|| workspace.branch(workspace.base(b"").unwrap(), label.as_bytes()).unwrap());
        let mount = Mount::with_face(workspace.view(branch).unwrap(), &self.place(), face, || true).unwrap();
        (workspace, mount)
    }

    /// The program `agentfs-mount`, where everybody may run it.
    pub(crate) fn program(&self) -> PathBuf {
        let copy = self.path("agentfs-mount");
        let tests = std::env::current_exe().unwrap();
        let built = tests.parent().and_then(Path::parent).unwrap().join("examples/agentfs-mount");
        if !copy.exists() {
            fs::copy(&built, &copy).unwrap();
        }
        copy
    }

    /// Runs a script as root in a mount namespace of its own, in which `/dev/fuse` has those permissions; gives what it printed. In it, `$HOST AT` starts
    /// the host as the ordinary user, with a store of theirs, and `$AS` runs something else as them.
    pub(crate) fn as_user(&self, permissions: &str, script: &str) -> String {
        sh(
            self.temp.path(),
            &format!(
                "mkdir -p home && cp -a lower home && mknod fuse c 10 229 && chmod {permissions} fuse && chown -R {USER}:{USER} home"
            ),
        );
        let as_user = format!("setpriv --reuid {USER} --regid {USER} --clear-groups");
        let host = format!("{as_user} {} home/store home/lower", self.program().display());
        let script = format!("mount --bind fuse /dev/fuse; AS='{as_user}' HOST='{host}'; {script}");
        let output = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "bash", "-ec", &script])
            .current_dir(self.temp.path())
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for number in 0..self.places.load(Ordering::Relaxed) {
            let _ = rustix::mount::unmount(self.path(&format!("at{number}")), UnmountFlags::DETACH);
        }
    }
}

/// A process, `agentfs-mount` for one. Killed when it goes.
pub(crate) struct Child(pub(crate) std::process::Child);

impl Child {
    /// Starts `agentfs-mount`, and waits until it serves.
    pub(crate) fn start(lab: &Lab, at: &Path) -> Self {
        Self::start_with(lab, &[], at)
    }

    pub(crate) fn start_with(lab: &Lab, options: &[&str], at: &Path) -> Self {
        let mut child = Command::new(lab.program())
            .args(options)
            .args([lab.store(), lab.lower()])
            .arg(at)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("mounted at "), "{line}");
        Self(child)
    }

    pub(crate) fn kill(&mut self) -> ExitStatus {
        let _ = self.0.kill();
        self.0.wait().unwrap()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Unmounts. A process that another test is just starting has our files open until it is another program.
pub(crate) fn unmount(mut mount: Mount) {
    for _ in 0..500 {
        match mount.unmount() {
            Err(Error::Busy(_)) => std::thread::sleep(Duration::from_millis(10)),
            outcome => return outcome.unwrap(),
        }
    }
    panic!("{} stays in use", mount.at().display());
}

/// Runs a script; gives what it printed.
pub(crate) fn sh(at: &Path, script: &str) -> String {
    let output = Command::new("bash").args(["-ec", script]).current_dir(at).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A program that `scripts/setup filesystems` has installed, of its own or of the system's.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let tests = std::env::current_exe().unwrap();
    let ours = tests.ancestors().nth(3).unwrap().join("tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(tool) =
        [ours].into_iter().chain(std::env::split_paths(&path)).map(|at| at.join(name)).find(|at| at.exists())
    {
        return Some(tool);
    }
    assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: scripts/setup filesystems installs {name}");
    println!("skipped: scripts/setup filesystems installs {name}");
    None
}

/// Nothing is wrong with what lies on the disk. The store is closed.
pub(crate) fn is_sound(store: &Path, lower: &Path) {
    let report = Workspace::fsck(store, lower, false).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
}
