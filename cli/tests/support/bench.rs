//! A bench for tests of AgentFS: a world whose services and mounts are gone at the end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Ran, User, World, is_root, need_agentfs, skip};

/// A world whose mounts and services are gone at the end, also if the test fails.
pub(crate) struct Bench(pub(crate) World);

impl Bench {
    pub(crate) fn new(user: User) -> Self {
        Self::within(user, &std::env::temp_dir())
    }

    /// The same in that directory.
    pub(crate) fn within(user: User, directory: &Path) -> Self {
        need_agentfs();
        let world = World::within(user, directory);
        world.write("f", "one");
        world.write("src/main", "fn main() {}");
        world.write(".gitignore", "node_modules/\n");
        world.write("node_modules/big", "ignored, and needed");
        Self(world)
    }

    pub(crate) fn each(test: impl Fn(&Self)) {
        Self::each_within(&std::env::temp_dir(), test);
    }

    /// On a disk that has no room for pins, as each is an inode: branches show what is changed in the workspace. All that lies in `AH_HOME` can be
    /// removed by hand there, whatever the tests run on.
    pub(crate) fn each_unpinned(test: impl Fn(&Self)) {
        let Some(disk) = ah_test_disks::Disk::formatted("ext4", 400, &["-b", "4096", "-N", "500"], "") else { return };
        Self::each_within(disk.at(), test);
    }

    /// On a disk of its own that makes no snapshots itself, whatever the tests run on.
    pub(crate) fn each_plain(test: impl Fn(&Self)) {
        let Some(disk) = ah_test_disks::Disk::formatted("ext4", 400, &["-b", "4096"], "") else { return };
        Self::each_within(disk.at(), test);
    }

    fn each_within(directory: &Path, test: impl Fn(&Self)) {
        test(&Self::within(User::Me, directory));
        // As distributions have it, and scripts/setup makes it.
        let open = fs::metadata("/dev/fuse").is_ok_and(|device| device.permissions().mode() & 0o006 == 0o006);
        match (is_root(), open) {
            (true, true) => test(&Self::within(User::Ordinary, directory)),
            (true, false) => skip("/dev/fuse is root's alone: chmod 0666 /dev/fuse"),
            (false, _) => skip("needs root, to act as an ordinary user as well"),
        }
    }

    pub(crate) fn branch(&self, name: &str) -> PathBuf {
        self.0.fs(["branch", "--mode", "cow-overlay", "--name", name]).into()
    }

    /// What is changed in a file of the workspace from now on is lost to snapshots on any disk: such as have attributes are not pinned.
    pub(crate) fn unpin(&self, name: &str) {
        use rustix::fs::{XattrFlags, setxattr};
        // A disk that has none shares nothing, either.
        let _ = setxattr(self.0.root().join(name), "user.ah-test", b"1", XattrFlags::empty());
    }

    pub(crate) fn ran(&self, at: &Path, words: &[&str]) -> Ran {
        let mut command = self.0.command(["-C", at.to_str().unwrap(), "agent", "fs"].iter().chain(words));
        Ran::of(command.current_dir("/"))
    }

    pub(crate) fn at(&self, at: &Path, words: &[&str]) -> String {
        let ran = self.ran(at, words);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout.trim_end().to_owned()
    }

    /// A shell's line, as the user.
    pub(crate) fn sh(&self, line: &str) -> String {
        let output = self.program("sh").arg("-c").arg(line).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// A copy of `AH_HOME` as it is now, made by the user: where it is.
    pub(crate) fn copy_of_state(&self) -> PathBuf {
        let copy = self.0.path("state-copy");
        self.sh(&format!("cp -a --one-file-system {} {}", self.0.path("state").display(), copy.display()));
        copy
    }

    /// A program, as the user.
    pub(crate) fn program(&self, name: &str) -> Command {
        match self.0.user {
            User::Me => Command::new(name),
            User::Ordinary => {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", name]);
                command
            }
        }
    }

    /// The processes that serve a home of this world.
    pub(crate) fn services(&self) -> Vec<i32> {
        let ours = self.0.path("state");
        let serves = |pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains("--serve") && line.contains(ours.to_str().unwrap())
        };
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        all.filter(serves).collect()
    }

    pub(crate) fn kill_services(&self) {
        let services = self.services();
        for pid in &services {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), nix::sys::signal::SIGKILL);
        }
        // The last of its threads may answer still while the first are gone.
        let is_gone = |pid: &i32| {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            threads == 0 || threads == 1 && stat.contains(") Z ")
        };
        until(|| services.iter().all(is_gone));
    }

    pub(crate) fn mounts(&self) -> Vec<String> {
        let below = self.0.path("");
        let table = ah_test_disks::mounts();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        points.filter(|point| Path::new(point).starts_with(&below)).map(ToOwned::to_owned).collect()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.kill_services();
        for point in self.mounts() {
            let _ = Command::new("umount").args(["-l", &point]).status();
        }
    }
}

/// Waits for that, half a minute at most.
pub(crate) fn until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(30), "it took too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}
