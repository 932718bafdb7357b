//! What all end-to-end tests share: the real binary with an environment of its own, a directory to work in, the shapes of
//! `docs/schema` to check JSON against, and running as an ordinary user.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

pub(crate) mod bench;
pub(crate) mod schema;

/// The user that tests run as when root is too much.
const NOBODY: u32 = 65534;

/// Says that a test had nothing to do here, and why; where all is required that is a failure.
pub(crate) fn skip(reason: &str) {
    assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "skipped: {reason}");
    eprintln!("skipped: {reason}");
}

/// Whether all counts are wanted in full (`scripts/test --full`).
pub(crate) fn full() -> bool {
    std::env::var_os("AH_TEST_FULL").is_some()
}

/// Whether root runs the tests.
pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Who runs `ah` in a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Whoever runs the tests.
    Me,
    /// An ordinary user; tests run by root only.
    Ordinary,
}

/// A world of its own: `$AH_HOME`, a home directory and a workspace, all gone at the end.
pub(crate) struct World {
    pub(crate) user: User,
    temp: tempfile::TempDir,
}

impl World {
    /// A world for whoever runs the tests.
    pub(crate) fn new() -> Self {
        Self::of(User::Me)
    }

    /// A world for `user`, with an empty workspace `w`.
    pub(crate) fn of(user: User) -> Self {
        Self::within(user, &std::env::temp_dir())
    }

    /// The same in that directory.
    pub(crate) fn within(user: User, directory: &Path) -> Self {
        need_library();
        let temp = tempfile::Builder::new().prefix("ah-cli-").tempdir_in(directory).unwrap();
        let world = Self { user, temp };
        fs::create_dir(world.path("home")).unwrap();
        // On Btrfs as `ah agent fs convert` makes it, so that the provider there serves both users.
        let subvolume = on_btrfs(&world.path(""))
            && Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(world.root()).status().unwrap().success();
        if !subvolume {
            fs::create_dir(world.root()).unwrap();
        }
        world.give_away();
        world.capture_on_full_disks();
        world
    }

    /// The same for a test of what only the Git provider does, whatever the filesystem that the tests run on.
    pub(crate) fn on_git() -> Self {
        let world = Self::new();
        world.use_git();
        world
    }

    /// From now on the Git provider serves.
    pub(crate) fn use_git(&self) {
        self.set("provider", "git");
    }

    /// Automatic snapshots are taken however full the disk is that the tests run on.
    pub(crate) fn capture_on_full_disks(&self) {
        self.set("prune.min-free", "0%");
    }

    fn set(&self, key: &str, value: &str) {
        let ran = self.run(["config", "set", key, value]);
        assert_eq!(ran.code, 0, "{ran:?}");
    }

    /// Once for each user that the tests can run as: always me, and an ordinary user where I am root.
    pub(crate) fn each(test: impl Fn(&Self)) {
        test(&Self::new());
        if is_root() {
            test(&Self::of(User::Ordinary));
        } else {
            skip("needs root, to act as an ordinary user as well");
        }
    }

    /// A path in this world.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.temp.path().canonicalize().unwrap().join(name)
    }

    /// The workspace.
    pub(crate) fn root(&self) -> PathBuf {
        self.path("w")
    }

    /// Writes a file of the workspace, with the folders above it.
    pub(crate) fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let (root, path) = (self.root(), self.root().join(name));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        if self.user == User::Ordinary {
            // Not all that there is: work in the background may be taking some of it away.
            for made in path.ancestors().take_while(|above| *above != root) {
                std::os::unix::fs::lchown(made, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
    }

    /// The text of a file of the workspace; none if it is not there.
    pub(crate) fn read(&self, name: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.root().join(name)).ok()
    }

    /// Whether the provider that serves the workspace has that capability: what a test expects may depend on that, never on its name.
    pub(crate) fn can(&self, capability: &str) -> bool {
        let status = self.json("status", &["agent", "fs", "status"]);
        let serving = &status["status"]["provider"];
        let listed = self.json("providers", &["agent", "fs", "providers"]);
        let provider = listed["providers"].as_array().unwrap().iter().find(|provider| provider["name"] == *serving);
        let capabilities = provider.unwrap_or_else(|| panic!("{serving} is not listed: {listed}"));
        capabilities["capabilities"].as_array().unwrap().iter().any(|has| has == capability)
    }

    /// Hands everything to the user that `ah` runs as.
    pub(crate) fn give_away(&self) {
        if self.user == User::Ordinary {
            let owner = format!("{NOBODY}:{NOBODY}");
            // Snapshots that are read-only subvolumes are theirs already.
            let mut find = Command::new("find");
            find.arg(self.temp.path())
                .args(["-name", "depot", "-prune", "-o", "-exec", "chown", "-h", &owner, "{}", "+"]);
            assert!(find.status().unwrap().success());
        }
    }

    /// `ah` with arguments, in the workspace, with nothing in its environment but what it needs.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = match self.user {
            User::Me => Command::new(ah()),
            User::Ordinary => {
                let mut command = Command::new("setpriv");
                let id = NOBODY.to_string();
                command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--inh-caps=-all"]).arg(ah());
                command
            }
        };
        command
            .args(arguments)
            .env_clear()
            .env("AH_HOME", self.path("state"))
            // Not a helper that this machine may have.
            .env("AH_HELPER_SOCKET", "")
            .env("HOME", self.path("home"))
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("TZ", "UTC")
            .current_dir(self.root())
            .stdin(Stdio::null());
        command
    }

    /// Runs `ah`, whatever comes of it.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ran {
        Ran::of(&mut self.command(arguments))
    }

    /// Runs `ah agent fs …`, which must succeed; gives stdout without the last newline.
    pub(crate) fn fs<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> String {
        let words = ["agent", "fs"].into_iter().map(OsString::from);
        let all = words.chain(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        let ran = self.run(all);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout.strip_suffix('\n').unwrap_or(&ran.stdout).to_owned()
    }

    /// Runs `ah … --json`, which must succeed and keep the shape of that name.
    pub(crate) fn json(&self, shape: &str, arguments: &[&str]) -> Value {
        let ran = self.run(arguments.iter().chain(&["--json"]));
        assert_eq!(ran.code, 0, "{ran:?}");
        let value: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        schema::check(shape, &value);
        value
    }

    /// Runs a command that must fail with `code`, first for people, then with JSON; gives the error's `kind`.
    pub(crate) fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, code, "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("error: "), "{ran:?}");
        assert!(ran.stderr.lines().any(|line| line.starts_with("hint: ")), "no hint: {ran:?}");
        // The options of a command end at `--`.
        let json = ["--json"];
        let ran = self.run(json.iter().chain(arguments));
        assert_eq!(ran.code, code, "{arguments:?}: {ran:?}");
        let value: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        schema::check("error", &value);
        assert!(value["error"]["hint"].is_string(), "{value}");
        value["error"]["kind"].as_str().unwrap().to_owned()
    }

    /// Waits until nothing of `ah` works behind for this world, half a minute at most: it would go on writing into what is removed.
    pub(crate) fn wait_for_background(&self) {
        let left = self.left_in_background();
        assert!(left.is_empty(), "in the background there is still: {left:#?}");
    }

    /// The command lines of what works behind all the same when that time is over.
    fn left_in_background(&self) -> Vec<String> {
        let home = [b"AH_HOME=", self.path("state").as_os_str().as_encoded_bytes()].concat();
        let works = |process: &Path| {
            let words = |file: &str| {
                let text = fs::read(process.join(file)).unwrap_or_default();
                text.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect::<Vec<_>>()
            };
            let line = words("cmdline");
            let ours =
                line.iter().any(|word| word == b"__capture" || word == b"--auto") && words("environ").contains(&home);
            ours.then(|| String::from_utf8_lossy(&line.join(&b' ')).into_owned())
        };
        let all = || fs::read_dir("/proc").unwrap().flatten().filter_map(|process| works(&process.path())).collect();
        let mut left: Vec<String> = all();
        for _ in 0..600 {
            if left.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            left = all();
        }
        left
    }

    /// Every path below `folder` with kind, permission bits, modification time and contents: equal before and after means
    /// that nothing was touched.
    pub(crate) fn picture(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let mut lines = Vec::new();
        let top = self.path(folder);
        look(&top, &top, &mut lines);
        lines
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // It may mount a branch again.
        let left = self.left_in_background();
        // Views are read-only, for root by a mount.
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let mounts = String::from_utf8_lossy(&mounts);
        let top = self.temp.path().to_string_lossy().into_owned();
        for mount in mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|path| path.starts_with(&top)) {
            let _ = nix::mount::umount2(mount, nix::mount::MntFlags::MNT_DETACH);
        }
        // Snapshots are read-only subvolumes.
        let mut writable = Command::new("find");
        writable.arg(self.temp.path()).args(["-depth", "-inum", "256", "-type", "d", "-exec"]);
        writable.args(["btrfs", "property", "set", "-ts", "{}", "ro", "false", ";"]);
        if on_btrfs(self.temp.path()) {
            let _ = writable.stderr(Stdio::null()).status();
        }
        let _ = Command::new("chmod").args(["-R", "u+rwX"]).arg(self.temp.path()).stderr(Stdio::null()).status();
        let removed = (0..100).any(|round| {
            std::thread::sleep(std::time::Duration::from_millis(if round == 0 { 0 } else { 100 }));
            fs::remove_dir_all(self.temp.path()).is_ok() && !self.temp.path().exists()
        });
        assert!(removed || std::thread::panicking(), "{top} cannot be removed; in the background: {left:#?}");
        assert!(left.is_empty() || std::thread::panicking(), "in the background there was still: {left:#?}");
    }
}

fn look(top: &Path, path: &Path, lines: &mut Vec<String>) {
    use std::os::unix::fs::MetadataExt;
    let Ok(found) = fs::symlink_metadata(path) else { return };
    let content = match () {
        () if found.is_symlink() => format!("-> {:?}", fs::read_link(path).unwrap()),
        () if found.is_file() => format!("{:?}", fs::read(path).map(OsString::from_vec)),
        () => String::new(),
    };
    lines.push(format!(
        "{:?} {:o} {}.{:09} {content}",
        path.strip_prefix(top).unwrap(),
        found.mode(),
        found.mtime(),
        found.mtime_nsec(),
    ));
    if found.is_dir() {
        let Ok(entries) = fs::read_dir(path) else { return };
        let mut names: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names.iter().for_each(|path| look(top, path, lines));
    }
}

/// What a run of `ah` came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) raw: Vec<u8>,
}

impl Ran {
    /// Runs `command` to its end.
    pub(crate) fn of(command: &mut Command) -> Self {
        let Output { status, stdout, stderr } = command.output().unwrap();
        Self {
            code: status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(-1),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            raw: stdout,
        }
    }
}

/// The binary under test.
pub(crate) fn ah() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_ah"))
}

/// Builds the Git provider's library beside the binary, where that looks for it: `cargo test` builds none that nothing links
/// to. A no-op after `cargo build`.
pub(crate) fn need_library() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        build("ah-provider-git-plugin");
        assert!(library().is_file(), "the Git provider's library is not where it should be");
    });
}

/// Builds the Btrfs provider's library, too.
pub(crate) fn need_btrfs() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| build("ah-provider-btrfs-plugin"));
}

/// Builds the AgentFS provider's library and its service, too.
pub(crate) fn need_agentfs() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        build("ah-provider-agentfs-plugin");
        build("ah-provider-agentfs");
    });
}

fn build(package: &str) {
    // By who builds everything in one go: for one package alone, dependencies have other features, and are built again.
    if std::env::var_os("AH_TEST_PLUGINS_BUILT").is_some() {
        return;
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--offline", "-p", package]);
    if ah().parent().is_some_and(|folder| folder.ends_with("release")) {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).status().unwrap();
    assert!(status.success(), "{package} could not be built");
}

/// The Git provider's library.
pub(crate) fn library() -> PathBuf {
    ah().parent().unwrap().join("libah_provider_git.so")
}

/// Whether a path is on Btrfs.
pub(crate) fn on_btrfs(path: &Path) -> bool {
    nix::sys::statfs::statfs(path).is_ok_and(|found| found.filesystem_type() == nix::sys::statfs::BTRFS_SUPER_MAGIC)
}
