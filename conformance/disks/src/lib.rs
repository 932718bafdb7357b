//! Small filesystems on loop devices, for tests: mounted while the guard lives, gone when it goes, also when a test fails.
//!
//! Needs root, `mkfs.<kind>` and loop devices. What is missing is said on stdout and skips the test, or fails it where
//! `AH_TEST_REQUIRE_ALL` is set. And [`as_ordinary_user`], which runs a test once more as somebody else, and what else tests of mounts ask of a
//! machine.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A mounted filesystem.
#[derive(Debug)]
pub struct Disk {
    temp: tempfile::TempDir,
    at: PathBuf,
}

impl Disk {
    /// A new filesystem of that kind (`btrfs`, `xfs`), mounted with those options (may be empty). None: skipped.
    ///
    /// # Panics
    /// If there is none although nothing may be missing.
    #[must_use]
    pub fn new(kind: &str, megabytes: u64, options: &str) -> Option<Self> {
        Self::formatted(kind, megabytes, &[], options)
    }

    /// The same, with arguments for what formats it.
    #[must_use]
    pub fn formatted(kind: &str, megabytes: u64, arguments: &[&str], options: &str) -> Option<Self> {
        let made = Self::try_new(kind, megabytes, arguments, options, &place(megabytes));
        made.map_err(|why| skip(&format!("{kind} on a loop device: {why}"))).ok()
    }

    /// A disk whose image lies on this one, and takes no room there before it is written to: what is written when there is none is lost.
    ///
    /// # Panics
    /// If it cannot be made.
    #[must_use]
    pub fn below(&self, kind: &str, megabytes: u64, arguments: &[&str]) -> Self {
        Self::try_new(kind, megabytes, arguments, "", self.at()).unwrap()
    }

    fn try_new(kind: &str, megabytes: u64, arguments: &[&str], options: &str, place: &Path) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can mount".to_owned());
        }
        let temp = tempfile::Builder::new().prefix("ah-disk-").tempdir_in(place).map_err(|e| e.to_string())?;
        // Ordinary users are to come to it.
        std::fs::set_permissions(temp.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let (image, at) = (temp.path().join("image"), temp.path().join("at"));
        std::fs::File::create(&image).and_then(|file| file.set_len(megabytes << 20)).map_err(|e| e.to_string())?;
        std::fs::create_dir(&at).map_err(|e| e.to_string())?;
        run(Command::new(format!("mkfs.{kind}")).arg("-q").args(arguments).arg(&image))?;
        let options = if options.is_empty() { "loop".to_owned() } else { format!("loop,{options}") };
        run(Command::new("mount").args(["-t", kind, "-o", &options]).arg(&image).arg(&at))?;
        Ok(Self { temp, at })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// The file that it is kept in.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.temp.path().join("image")
    }

    /// Mounts it anew with other options.
    ///
    /// # Panics
    /// If that cannot be done.
    pub fn remount(&self, options: &str) {
        run(Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.at)).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // What works there behind a command would make its folders anew where the disk was.
        wait_for_those_that_name(&self.at);
        // What is mounted below goes with it; what is in use goes when it is not any more.
        if run(Command::new("umount").arg("-R").arg(&self.at)).is_err() {
            let _ = run(Command::new("umount").args(["-R", "-l"]).arg(&self.at));
        }
        let top = self.temp.path();
        let gone = (0..50).any(|round| {
            std::thread::sleep(std::time::Duration::from_millis(if round == 0 { 0 } else { 100 }));
            let removed = std::fs::remove_dir_all(top);
            removed.is_ok() || !top.exists()
        });
        let left = || run(Command::new("find").arg(top)).map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
        assert!(gone || std::thread::panicking(), "{} cannot be removed: {:?}", top.display(), left());
    }
}

/// A disk as it was at a moment, as after a power cut: nothing that the filesystem still held in memory is in it.
#[derive(Debug)]
pub struct Cut(tempfile::TempDir);

impl Cut {
    /// Of the disk as it is now.
    ///
    /// # Panics
    /// If there is no room for it.
    #[must_use]
    pub fn off(disk: &Disk) -> Self {
        let temp = tempfile::tempdir_in(disk.temp.path().parent().unwrap()).unwrap();
        run(Command::new("cp").arg("--sparse=always").arg(disk.image()).arg(temp.path().join("image"))).unwrap();
        Self(temp)
    }

    /// What the disk, which is not mounted now, has from now on.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn put_back(&self, disk: &Disk) {
        run(Command::new("cp").arg("--sparse=always").arg(self.0.path().join("image")).arg(disk.image())).unwrap();
    }

    /// Mounted in the place of the one that it was taken of: the kernel takes both for one filesystem.
    ///
    /// # Panics
    /// If something is in use on the disk.
    pub fn look(&self, disk: &Disk, at: impl FnOnce(&Path)) {
        let change = |image: PathBuf| {
            unmount(disk.at());
            run(Command::new("mount").args(["-o", "loop"]).arg(image).arg(disk.at())).unwrap();
        };
        change(self.0.path().join("image"));
        at(disk.at());
        change(disk.image());
    }
}

/// Unmounts what is at a place, and below it. A process that another test has just started, or one that ends at this moment, may have
/// something there open still.
///
/// # Panics
/// If it cannot be done.
pub fn unmount(at: &Path) {
    let unmounted = || run(Command::new("umount").env("LC_ALL", "C").arg("-R").arg(at));
    let began = std::time::Instant::now();
    let mut last = unmounted();
    while last.as_ref().is_err_and(|why| why.contains("busy")) && began.elapsed().as_secs() < 20 {
        std::thread::sleep(std::time::Duration::from_millis(20));
        last = unmounted();
    }
    last.unwrap();
}

/// Waits until no other process was started with that path, or one below, in its words or its environment; ten seconds at most.
fn wait_for_those_that_name(path: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let path = path.as_os_str().as_bytes();
    let names = |process: &Path| {
        let has = |file: &str| {
            std::fs::read(process.join(file)).is_ok_and(|text| text.windows(path.len()).any(|part| part == path))
        };
        has("cmdline") || has("environ")
    };
    let own = std::process::id().to_string();
    let others =
        || std::fs::read_dir("/proc").into_iter().flatten().flatten().filter(|entry| *entry.file_name() != *own);
    let began = std::time::Instant::now();
    while others().any(|process| names(&process.path())) && began.elapsed().as_secs() < 10 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The mounts of this process, as the kernel lists them. Names are bytes, of other tests' mounts too.
///
/// # Panics
/// If `/proc` is not there.
#[must_use]
pub fn mounts() -> String {
    String::from_utf8_lossy(&std::fs::read("/proc/self/mountinfo").unwrap()).into_owned()
}

/// Where to keep an image of that size: in memory if there is room twice over, so that a commit costs what the filesystem costs.
fn place(megabytes: u64) -> PathBuf {
    let memory = Path::new("/dev/shm");
    match rustix::fs::statvfs(memory) {
        Ok(room) if room.f_bavail * room.f_frsize >= megabytes << 21 => memory.to_owned(),
        _ => std::env::temp_dir(),
    }
}

/// Runs a command to its end; its last words if it fails.
fn run(command: &mut Command) -> Result<Output, String> {
    let out = command.stdin(Stdio::null()).output().map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    if out.status.success() {
        Ok(out)
    } else {
        Err(format!("{:?}: {}", command.get_program(), String::from_utf8_lossy(&out.stderr).trim()))
    }
}

/// Says that something was not tested.
///
/// # Panics
/// Where nothing may be missing.
pub fn skip(why: &str) {
    assert!(std::env::var_os("AH_TEST_REQUIRE_ALL").is_none(), "missing: {why}");
    println!("skipped: {why}");
}

/// Whether this kernel can pass files of a FUSE mount through; else it is said that something is skipped.
///
/// # Panics
/// Where it cannot and nothing may be missing.
#[must_use]
pub fn kernel_passes_through() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|part| part.trim().parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let config = "zcat /proc/config.gz 2>/dev/null || cat /boot/config-$(uname -r) 2>/dev/null || true";
    let config = run(Command::new("sh").args(["-c", config])).unwrap().stdout;
    let config = String::from_utf8_lossy(&config);
    let is_there = version >= (6, 9) && (config.is_empty() || config.contains("CONFIG_FUSE_PASSTHROUGH=y"));
    if !is_there {
        skip("Linux 6.9 with CONFIG_FUSE_PASSTHROUGH");
    }
    is_there
}

/// An ordinary user's number.
pub const NOBODY: u32 = 65534;

/// Runs the test of that name once more as an ordinary user, with `path` for [`ordinary_users_path`]; its output if it passed.
///
/// # Panics
/// If it fails.
pub fn as_ordinary_user(test: &str, path: &Path) -> String {
    let out = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--include-ignored"])
        .env("AH_TEST_AS_ORDINARY_USER", path)
        .env("HOME", "/nonexistent")
        .env("TMPDIR", path)
        .current_dir("/")
        .output()
        .expect("setpriv (util-linux) is needed to test what an ordinary user gets");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

/// As [`as_ordinary_user`], in a folder of that user's, for a test that mounts by FUSE; skipped where that user cannot.
///
/// # Panics
/// If it fails, or is skipped although nothing may be missing.
pub fn mounting_as_ordinary_user(test: &str) {
    use std::os::unix::fs::PermissionsExt;
    let open = std::fs::metadata("/dev/fuse").is_ok_and(|device| device.permissions().mode() & 0o006 == 0o006);
    if !rustix::process::geteuid().is_root() || !open {
        return skip("needs root, and /dev/fuse open to all");
    }
    let scratch = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(scratch.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    print!("{}", as_ordinary_user(test, scratch.path()));
}

/// In a process that [`as_ordinary_user`] started: where that user may work.
#[must_use]
pub fn ordinary_users_path() -> Option<PathBuf> {
    std::env::var_os("AH_TEST_AS_ORDINARY_USER").map(PathBuf::from)
}
