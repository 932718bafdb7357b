//! A world for one test: state, home and workspace in a folder that goes with it, and `ah` in an environment of its own.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A state folder, a home and a workspace.
#[derive(Debug)]
pub struct World {
    temp: tempfile::TempDir,
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

impl World {
    /// Makes one, with an empty workspace.
    #[must_use]
    pub fn new() -> Self {
        let temp = tempfile::Builder::new().prefix("ah-agents-").tempdir().unwrap();
        let world = Self { temp };
        for name in ["home", "work", "bin"] {
            fs::create_dir(world.path(name)).unwrap();
        }
        // However full the disk is that the tests run on, automatic snapshots are taken.
        world.ah(["config", "set", "prune.min-free", "0%"]);
        world
    }

    /// A path in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().canonicalize().unwrap().join(name)
    }

    /// A program in the workspace, with nothing in its environment but what it needs.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let programs = crate::programs();
        let node = crate::agents::node_folder().unwrap_or_else(|| "/usr/bin".into());
        let folders = [self.path("bin"), programs, "/usr/local/bin".into(), "/usr/bin".into(), "/bin".into(), node];
        command
            .env_clear()
            .env("PATH", std::env::join_paths(folders).unwrap())
            .env("HOME", self.path("home"))
            .env("AH_HOME", self.path("state"))
            .env("AH_HELPER_SOCKET", "")
            .env("TMPDIR", self.path(""))
            .env("TZ", "UTC")
            .current_dir(self.path("work"))
            .stdin(Stdio::null());
        command
    }

    /// Runs `ah`, which must succeed; its stdout without the last newline.
    pub fn ah<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        let output = self.command("ah").args(arguments).output().unwrap();
        well(&output);
        let text = String::from_utf8(output.stdout).unwrap();
        text.strip_suffix('\n').map(ToOwned::to_owned).unwrap_or(text)
    }

    /// Runs `ah … --json`, which must succeed.
    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ah(arguments.iter().chain(&["--json"]))).unwrap()
    }

    /// The text of a file of the workspace; none if it is not there.
    #[must_use]
    pub fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path("work").join(name)).ok()
    }

    /// Waits for a file of the workspace.
    pub fn await_file(&self, name: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        while self.read(name).is_none() {
            assert!(Instant::now() < until, "{name} never came");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All files below a folder, with kinds, permission bits and contents; a repository's own database is left out.
    #[must_use]
    pub fn contents(folder: &Path) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        look(folder, folder, &mut found);
        found
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Work behind goes on for a moment, and would make again what is removed under it.
        let home = [b"AH_HOME=", self.path("state").as_os_str().as_encoded_bytes()].concat();
        let belongs = |process: &Path| {
            fs::read(process.join("environ")).is_ok_and(|text| text.split(|byte| *byte == 0).any(|part| part == home))
        };
        for _ in 0..200 {
            if !fs::read_dir("/proc").is_ok_and(|all| all.flatten().any(|process| belongs(&process.path()))) {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        // Views are read-only.
        for _ in 0..100 {
            let _ = Command::new("chmod").args(["-R", "u+rwX"]).arg(self.temp.path()).stderr(Stdio::null()).status();
            if fs::remove_dir_all(self.temp.path()).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("{} could not be removed", self.temp.path().display());
    }
}

fn look(top: &Path, folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
    use std::os::unix::fs::PermissionsExt;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.file_name().is_some_and(|name| name == ".git") {
            continue;
        }
        let about = fs::symlink_metadata(&path).unwrap();
        let mode = about.permissions().mode() & 0o777;
        let what = match () {
            () if about.is_symlink() => format!("-> {:?}", fs::read_link(&path).unwrap()),
            () if about.is_dir() => format!("{mode:o} folder"),
            () => format!("{mode:o} {:?}", String::from_utf8_lossy(&fs::read(&path).unwrap())),
        };
        found.insert(path.strip_prefix(top).unwrap().to_owned(), what);
        if about.is_dir() {
            look(top, &path, found);
        }
    }
}

/// Fails the test unless a program succeeded.
pub fn well(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}
