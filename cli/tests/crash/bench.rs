//! A workspace whose snapshots' contents are known, and `ah` run so that it is killed, or a call of it fails, at a chosen place.
//!
//! strace does both: it counts the calls of one kind that a thread makes and, before the N-th, kills the process or lets
//! the call fail. Nothing in the product knows of it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{Ran, World};

/// The calls that change something on disk.
pub(crate) const DURABLE: [&str; 27] = [
    "write",
    "pwrite64",
    "writev",
    "fsync",
    "fdatasync",
    "syncfs",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "unlink",
    "unlinkat",
    "mkdir",
    "mkdirat",
    "rmdir",
    "symlink",
    "symlinkat",
    "chmod",
    "fchmod",
    "fchmodat",
    "fchown",
    "utimensat",
    "ftruncate",
    "copy_file_range",
    "mount",
    "umount2",
];

/// What the folders in which restores prepare files are called.
const OURS: &str = ".ah-restore-";

/// What a tree holds: path to kind, execute bit and contents. Times are not part of it.
pub(crate) type Picture = BTreeMap<PathBuf, String>;

/// Takes a picture of a tree. `.git` is nobody's; what a killed restore left at the top is looked for elsewhere.
pub(crate) fn picture(top: &Path) -> Picture {
    fn look(top: &Path, dir: &Path, picture: &mut Picture) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let found = path.symlink_metadata().unwrap();
            let rel = path.strip_prefix(top).unwrap().to_owned();
            if rel == Path::new(".git") || (dir == top && rel.to_string_lossy().starts_with(OURS)) {
                continue;
            }
            let shown = if found.is_dir() {
                look(top, &path, picture);
                "directory".to_owned()
            } else if found.is_symlink() {
                format!("-> {}", fs::read_link(&path).unwrap().display())
            } else {
                let runs = if found.permissions().mode() & 0o100 == 0 { ' ' } else { 'x' };
                let contents = fs::read_to_string(&path).unwrap();
                // Rounds differ at the beginning and in length.
                format!("{runs} {:.24} ({} bytes)", contents, contents.len())
            };
            picture.insert(rel, shown);
        }
    }
    let mut shown = Picture::new();
    look(top, top, &mut shown);
    shown
}

/// A place to strike at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Point {
    pub(crate) call: &'static str,
    pub(crate) nth: usize,
}

/// What happens there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Strike {
    /// SIGKILL before the call.
    Kill,
    /// The call, and no other, fails with this error.
    Fail(&'static str),
    /// This call and all later ones of its kind fail with this error.
    FailFromThenOn(&'static str),
}

/// A world, and what each snapshot in it must hold.
pub(crate) struct Bench {
    pub(crate) world: World,
    known: BTreeMap<String, Picture>,
    /// What the workspace was like at each run since the last check: what snapshots that come to light may hold.
    recent: Vec<Picture>,
    round: u32,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let world = World::new();
        assert!(Command::new("git").args(["init", "-q"]).current_dir(world.root()).status().unwrap().success());
        fs::write(world.root().join(".gitignore"), "ignored\n").unwrap();
        let mut this = Self { world, known: BTreeMap::new(), recent: Vec::new(), round: 0 };
        this.change();
        this
    }

    /// Changes the workspace in all kinds of ways, to a state that it never had.
    pub(crate) fn change(&mut self) {
        self.round += 1;
        let (root, round) = (self.world.root(), self.round);
        for name in ["plain", "swap", "sub", "link", "gone"] {
            let path = root.join(name);
            if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
                fs::remove_dir_all(path).unwrap();
            } else {
                let _ = fs::remove_file(path);
            }
        }
        fs::write(root.join("plain"), format!("round {round}")).unwrap();
        fs::write(root.join("same"), "always the same").unwrap();
        fs::create_dir_all(root.join("sub/deep")).unwrap();
        fs::write(root.join("sub/deep/file"), format!("round {round}").repeat(500)).unwrap();
        fs::write(root.join("sub/run"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(root.join("sub/run"), fs::Permissions::from_mode(0o644 | ((round % 2) * 0o111))).unwrap();
        std::os::unix::fs::symlink(format!("round-{round}"), root.join("link")).unwrap();
        fs::create_dir(root.join(format!("empty-{}", round % 3))).ok();
        fs::remove_dir(root.join(format!("empty-{}", (round + 1) % 3))).ok();
        if round.is_multiple_of(2) {
            fs::create_dir(root.join("swap")).unwrap();
            fs::write(root.join("swap/file"), "x").unwrap();
            fs::write(root.join("gone"), "there every second time").unwrap();
        } else {
            fs::write(root.join("swap"), "now a file").unwrap();
        }
    }

    /// What the workspace holds.
    pub(crate) fn now(&self) -> Picture {
        picture(&self.world.root())
    }

    /// Runs `ah agent fs …`, which must succeed; whatever snapshot it takes must hold what the workspace held before.
    pub(crate) fn fs(&mut self, arguments: &[&str]) -> String {
        self.remember();
        let out = self.world.fs(arguments);
        self.learn();
        out
    }

    fn remember(&mut self) {
        let now = self.now();
        if !self.recent.contains(&now) {
            self.recent.push(now);
        }
    }

    /// Runs it with a strike at a point. The answer is none if the process was killed.
    pub(crate) fn struck(&mut self, arguments: &[&str], point: Point, strike: Strike) -> Option<Ran> {
        self.remember();
        let Point { call, nth } = point;
        let inject = match strike {
            Strike::Kill => format!("inject={call}:signal=SIGKILL:when={nth}"),
            Strike::Fail(error) => format!("inject={call}:error={error}:when={nth}"),
            Strike::FailFromThenOn(error) => format!("inject={call}:error={error}:when={nth}+"),
        };
        let trace = format!("trace={call}");
        let ran = Ran::of(&mut self.strace(&["-e", &trace, "-e", &inject], arguments, Path::new("/dev/null")));
        self.learn();
        (ran.code != 137).then_some(ran)
    }

    /// How often each thread at most makes each durable call.
    pub(crate) fn points(&mut self, arguments: &[&str]) -> Vec<Point> {
        self.remember();
        let log = self.world.path("strace.log");
        let trace = format!("trace={}", DURABLE.join(","));
        let ran = Ran::of(&mut self.strace(&["-e", &trace], arguments, &log));
        assert_eq!(ran.code, 0, "{ran:?}");
        let mut counts: BTreeMap<(&str, &'static str), usize> = BTreeMap::new();
        self.learn();
        let text = fs::read_to_string(log).unwrap();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(thread), Some(rest)) = (words.next(), words.next()) else { continue };
            let made =
                DURABLE.into_iter().find(|call| rest.strip_prefix(call).is_some_and(|rest| rest.starts_with('(')));
            if let Some(call) = made {
                *counts.entry((thread, call)).or_default() += 1;
            }
        }
        let most =
            |call| counts.iter().filter(|((_, other), _)| *other == call).map(|(_, count)| *count).max().unwrap_or(0);
        DURABLE.into_iter().flat_map(|call| (1..=most(call)).map(move |nth| Point { call, nth })).collect()
    }

    fn strace(&self, options: &[&str], arguments: &[&str], log: &Path) -> Command {
        let ah = self.world.command(["agent", "fs"].iter().chain(arguments));
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o"]).arg(log).args(options).arg("--").arg(ah.get_program()).args(ah.get_args());
        strace.env_clear().current_dir(self.world.root()).stdin(Stdio::null());
        for (name, value) in ah.get_envs() {
            if let Some(value) = value {
                strace.env(name, value);
            }
        }
        strace
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["agent", "fs"];
        all.extend(arguments);
        all.push("--json");
        let ran = self.world.run(&all);
        assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// The ids of all snapshots, the latest first.
    pub(crate) fn listed(&self) -> Vec<String> {
        let answer = self.json(&["snapshots"]);
        let all = answer["snapshots"].as_array().unwrap();
        all.iter().map(|snapshot| snapshot["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Takes note of new snapshots: each must hold what the workspace was like at one of the latest runs.
    fn learn(&mut self) {
        for id in self.listed() {
            if !self.known.contains_key(&id) {
                let shown = self.shown(&id);
                assert!(
                    self.recent.contains(&shown),
                    "{id} holds what never was: {shown:#?}\nbut not {:#?}",
                    self.recent
                );
                self.known.insert(id, shown);
            }
        }
    }

    /// The restore that was interrupted, if one was.
    pub(crate) fn interrupted(&self) -> bool {
        let answer = self.json(&["status"]);
        !answer["status"]["interrupted"].is_null()
    }

    fn shown(&self, id: &str) -> Picture {
        let view = self.world.fs(["seek", id]);
        let shown = picture(Path::new(&view));
        self.world.fs(["release", &view]);
        shown
    }

    /// What must hold after whatever happened: gc has nothing to complain about, every snapshot that was there is there
    /// (but for `removed`) and holds what it held, and nothing is left that is not listed.
    pub(crate) fn check(&mut self, removed: &[String], all: bool) {
        let gc = self.json(&["gc"]);
        assert_eq!(gc["gc"]["failures"].as_array().map(Vec::len), Some(0), "{gc}");
        self.learn();
        self.recent.clear();
        let listed = self.listed();
        self.known.retain(|id, _| {
            let there = listed.contains(id);
            assert!(there || removed.contains(id), "snapshot {id} is gone");
            there
        });
        let look_at = if all { listed.len() } else { 1 };
        for id in &listed[..look_at.min(listed.len())] {
            assert_eq!(self.shown(id), self.known[id], "snapshot {id} changed");
        }
        let (mut held, mut wanted) = (self.held(), listed);
        held.sort();
        wanted.sort();
        assert_eq!(held, wanted, "the store holds what is not listed");
        let left = leftovers(&self.world.path("state"));
        assert!(left.is_empty(), "left over after gc: {left:?}");
    }

    /// What the providers' stores hold.
    fn held(&self) -> Vec<String> {
        let workspaces = fs::read_dir(self.world.path("state/workspaces")).unwrap();
        let folders = workspaces.flat_map(|entry| {
            let providers = entry.unwrap().path().join("providers");
            ["git/git/refs/ah/snapshots", "btrfs/depot/snapshots"].map(|folder| providers.join(folder))
        });
        let names = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// No folder of ours is in the workspace.
    pub(crate) fn nothing_of_ours_in_the_workspace(&self) {
        let names = fs::read_dir(self.world.root()).unwrap().map(|entry| entry.unwrap().file_name());
        let ours: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with(OURS)).collect();
        assert!(ours.is_empty(), "{ours:?}");
    }
}

/// Temporary files and folders below `folder`.
fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let mut left = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if entry.file_type().unwrap().is_dir() {
            left.extend(leftovers(&path));
        } else if name.starts_with("tmp_") || name.contains(".tmp") || name.ends_with(".temp") {
            left.push(path);
        }
    }
    left
}
