//! Locks between processes, and whether a process that wrote its name somewhere is still there.
//!
//! A lock is an flock: the kernel lets go of it when its holder dies, so a dead holder blocks nobody. Who holds it, for the message that a
//! waiting person gets, says `/proc/locks`: nothing is written to a lock's file. Locks are taken in this order and
//! never the other way round: one of `gc`, `agents-x` and `agents`, `late`, `seen`; capture; prune; room; restore; stays; views; one of recordings, leases, orphans;
//! home; timeline; a session's. Who forgets a workspace takes `recordings`, then `orphans`. `new` (`fresh`) is only tried. Who wants `stays` alone without being asked waits two seconds at most.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ah_plugin_api::{Error, ErrorKind, Observer, Result};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::fsio::{FILE_MODE, NOFOLLOW_NONBLOCK, failed};

/// How long a person's command waits for another process before it says `Busy`. A hook has an end of its own (`Settings::deadline`).
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// How often it is looked whether a lock is free, at the least: among many who want it, one that looks seldom finds it taken each time.
const LOOK: Duration = Duration::from_millis(5);

/// The lowest number of a descriptor that is left to a command.
const HIGH: i32 = 200;

/// A lock that is held until it is dropped, or its process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock at `path`, shared or alone, waiting at most `patience`.
    pub(crate) fn take(path: &Path, alone: bool, patience: Duration, observer: &dyn Observer) -> Result<Self> {
        let file = open(path)?;
        let since = Instant::now();
        let mut pause = Duration::from_millis(1);
        while !try_lock(&file, alone).map_err(|e| failed("lock", path, &e))? {
            if observer.cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "cancelled"));
            }
            if since.elapsed() >= patience {
                return Err(busy(path, &file));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LOOK);
        }
        Ok(Self { file })
    }

    /// As [`Lock::take`], of a file that others take away while they hold it: then of another one, which is made.
    pub(crate) fn take_there(path: &Path, alone: bool, patience: Duration, observer: &dyn Observer) -> Result<Self> {
        let since = Instant::now();
        loop {
            let lock = Self::take(path, alone, patience.saturating_sub(since.elapsed()), observer)?;
            if lock.is_there() {
                return Ok(lock);
            }
            // A filesystem may count no names at all.
            if since.elapsed() >= patience {
                return Err(busy(path, &lock.file));
            }
        }
    }

    /// Takes the lock alone, waiting as long as it takes.
    pub(crate) fn wait(path: &Path) -> Result<Self> {
        let file = open(path)?;
        loop {
            match rustix::fs::flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Self { file }),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(failed("lock", path, &e.into())),
            }
        }
    }

    /// Makes the file of a lock that is not there yet, best effort: on a full disk it could not be.
    pub(crate) fn prepare(path: &Path) {
        let _ = open(path);
    }

    /// As [`Lock::try_take`], of a file that is there.
    pub(crate) fn of_there(path: &Path, alone: bool) -> Result<Option<Self>> {
        let opened = OpenOptions::new().read(true).custom_flags(NOFOLLOW_NONBLOCK).open(path);
        let file = opened.map_err(|e| failed("open the lock", path, &e))?;
        Ok(try_lock(&file, alone).map_err(|e| failed("lock", path, &e))?.then_some(Self { file }))
    }

    /// Whether nobody has removed its file. Only who holds a lock may: who waited for it meanwhile holds nothing that others would wait for.
    pub(crate) fn is_there(&self) -> bool {
        self.file.metadata().is_ok_and(|at| at.nlink() > 0)
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_take(path: &Path, alone: bool) -> Result<Option<Self>> {
        let file = open(path)?;
        Ok(try_lock(&file, alone).map_err(|e| failed("lock", path, &e))?.then_some(Self { file }))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A process that a provider's library forked has a copy of the descriptor, and would hold the lock as long as it has that.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Lock {
    /// Leaves the lock to what this process becomes, and to all that it starts: until the last of them has ended.
    pub(crate) fn leave_to_command(self, path: &Path) -> Result<()> {
        // Programs close or take the low numbers (`exec 3>log`). Where there are no high ones, it stays where it is.
        let high = rustix::io::fcntl_dupfd_cloexec(&self.file, HIGH).ok();
        let open = high.as_ref().map_or_else(|| self.file.as_fd(), AsFd::as_fd);
        rustix::io::fcntl_setfd(open, rustix::io::FdFlags::empty())
            .map_err(|e| failed("keep the lock", path, &e.into()))?;
        // Neither is closed here, nor the lock given up.
        std::mem::forget((high, self));
        Ok(())
    }
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .custom_flags(NOFOLLOW_NONBLOCK)
        .open(path)
        .map_err(|e| failed("open the lock", path, &e))
}

fn try_lock(file: &File, alone: bool) -> io::Result<bool> {
    let operation =
        if alone { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

fn busy(path: &Path, file: &File) -> Error {
    let who = match holder(file) {
        Some(pid) if start_time(pid).is_some() => format!("process {pid}"),
        Some(pid) => format!("something that process {pid} (ended) left running"),
        None => "another process".to_owned(),
    };
    Error::new(ErrorKind::Busy, format!("{who} holds {}", path.display())).with_hint("wait for it to end, then repeat")
}

/// Who took the flock of a file, as far as that can be seen. Files of several filesystems may have the same number, so one that
/// verifiably has this file open comes first.
fn holder(file: &File) -> Option<u32> {
    let at = file.metadata().ok()?;
    // Lines are passed over when others give up locks in the middle of the list while it is read.
    let holders = (0..3).find_map(|_| {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let holders: Vec<u32> = locks.lines().filter_map(|line| holder_of(line, at.ino())).collect();
        (!holders.is_empty()).then_some(holders)
    })?;
    let has_it = |pid: &u32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|fd| std::fs::metadata(fd.path()).ok()).any(|it| (it.dev(), it.ino()) == (at.dev(), at.ino()))
    };
    holders.iter().copied().find(has_it).or_else(|| holders.first().copied())
}

/// The process in a line of `/proc/locks` (`1: FLOCK  ADVISORY  WRITE 4711 00:2f:815 0 EOF`) if it is about that inode; see `proc_locks(5)`.
fn holder_of(line: &str, inode: u64) -> Option<u32> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None;
    }
    let pid = words.nth(2)?;
    let its = words.next()?.rsplit(':').next()?;
    // 0: of another namespace.
    (its.parse() == Ok(inode)).then(|| pid.parse().ok()).flatten().filter(|pid| *pid != 0)
}

/// A process by pid and start time, which together are never used again while the machine runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    /// Clock ticks from the machine's start to the process's; 0: not known.
    pub(crate) start: u64,
    /// The kernel's id of this run of the machine.
    #[serde(default)]
    pub(crate) boot: String,
    /// The namespace in which `pid` means that process: a container has one of its own.
    #[serde(default)]
    pub(crate) namespace: u64,
}

impl Holder {
    /// This process.
    pub(crate) fn me() -> Self {
        let pid = std::process::id();
        Self { pid, start: start_time(pid).unwrap_or(0), boot: boot_id(), namespace: namespace() }
    }

    /// That process; none if it is not there.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start: start_time(pid)?, boot: boot_id(), namespace: namespace() })
    }

    /// Whether that process is seen to run from here, where one of another namespace is not.
    pub(crate) fn is_seen_alive(&self) -> bool {
        (self.namespace == 0 || self.namespace == namespace()) && self.alive()
    }

    /// Whether that process still runs. In doubt, it does, but for another machine's, of which nobody here can tell: that is taken for one of an
    /// earlier run of this machine.
    pub(crate) fn alive(&self) -> bool {
        let boot = boot_id();
        // Who does not see /proc (in a chroot, say) knows of no run of the machine: that is no other one.
        if !self.boot.is_empty() && !boot.is_empty() && self.boot != boot {
            return false;
        }
        // What runs in another namespace cannot be seen from here.
        if self.namespace != 0 && self.namespace != namespace() {
            return true;
        }
        match start_time(self.pid) {
            Some(start) => self.start == 0 || start == self.start,
            // Without /proc nothing can be said.
            None => !Path::new("/proc/self/stat").exists(),
        }
    }
}

/// The kernel's id of this run of the machine; empty where there is none.
pub(crate) fn boot_id() -> String {
    static KNOWN: OnceLock<String> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    KNOWN.get_or_init(read).clone()
}

/// The inode that stands for this process's namespace of pids; 0: not known.
fn namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |at| at.ino())
}

/// What a name of ours says of the process that made it: `<pid>.<namespace>`.
pub(crate) fn me_in_a_name() -> String {
    format!("{}.{}", std::process::id(), namespace())
}

/// Whether the process that is named so may still run. One of another namespace cannot be seen from here, so it may.
pub(crate) fn may_run(name: &str) -> bool {
    let (pid, space) = name.split_once('.').unwrap_or((name, "0"));
    let elsewhere = space.parse::<u64>().is_ok_and(|space| space != 0 && space != namespace());
    elsewhere || pid.parse::<u32>().is_ok_and(|pid| Path::new("/proc").join(pid.to_string()).exists())
}

/// Field 22 of `/proc/PID/stat`, counted after the name, which may hold spaces and parentheses. A zombie has ended.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Holder, Lock, holder_of, may_run, me_in_a_name};
    use ah_plugin_api::{ErrorKind, Quiet};
    use std::time::Duration;

    #[test]
    fn is_free_once_it_is_dropped_whoever_has_a_copy_of_its_descriptor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::take(&path, true, Duration::ZERO, &Quiet).unwrap();
        // As a forked process has one.
        let copy = held.file.try_clone().unwrap();
        assert!(Lock::try_take(&path, true).unwrap().is_none());
        drop(held);
        assert!(Lock::try_take(&path, true).unwrap().is_some());
        drop(copy);
    }

    #[test]
    fn excludes_and_names_the_holder() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::take(&path, true, Duration::ZERO, &Quiet).unwrap();
        let error = Lock::take(&path, true, Duration::from_millis(5), &Quiet).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(error.message.contains(&std::process::id().to_string()), "{error}");
        assert!(Lock::try_take(&path, false).unwrap().is_none());
        drop(held);
        // Another test's child may hold a copy of the descriptor between its fork and its exec.
        let one = Lock::take(&path, false, Duration::from_secs(5), &Quiet).unwrap();
        let _two = Lock::take(&path, false, Duration::from_secs(5), &Quiet).unwrap();
        assert!(Lock::try_take(&path, true).unwrap().is_none());
        assert!(one.is_there());
        std::fs::remove_file(&path).unwrap();
        assert!(!one.is_there());
    }

    #[test]
    fn one_that_is_taken_away_while_it_is_waited_for_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::take(&path, true, Duration::ZERO, &Quiet).unwrap();
        let lock = std::thread::scope(|scope| {
            let waits = scope.spawn(|| Lock::take_there(&path, false, Duration::from_secs(5), &Quiet).unwrap());
            std::thread::sleep(Duration::from_millis(100));
            std::fs::remove_file(&path).unwrap();
            drop(held);
            waits.join().unwrap()
        });
        assert!(lock.is_there() && Lock::of_there(&path, true).unwrap().is_none());
    }

    #[test]
    fn reads_the_kernels_list_of_locks() {
        let line = "12: FLOCK  ADVISORY  WRITE 4711 00:2f:815 0 EOF";
        assert_eq!((holder_of(line, 815), holder_of(line, 81)), (Some(4711), None));
        assert_eq!(holder_of("12: POSIX  ADVISORY  WRITE 4711 00:2f:815 0 EOF", 815), None);
        assert_eq!(holder_of("12: FLOCK  ADVISORY  WRITE 0 00:2f:815 0 EOF", 815), None);
        assert_eq!(holder_of("12: -> FLOCK  ADVISORY  WRITE 5 00:2f:815 0 EOF", 815), None, "one that waits");
        assert_eq!(holder_of("", 815), None);
    }

    #[test]
    fn knows_the_living_from_the_dead() {
        let me = Holder::me();
        assert!(me.start > 0 && me.alive());
        assert!(!Holder { start: me.start + 1, ..me.clone() }.alive());
        assert!(!Holder { boot: "another".into(), ..me.clone() }.alive());
        assert!(me.is_seen_alive() && !Holder { namespace: me.namespace + 1, ..me.clone() }.is_seen_alive());
        // A container's, say.
        assert!(Holder { start: me.start + 1, namespace: me.namespace + 1, ..me.clone() }.alive());
        assert!(may_run(&me_in_a_name()) && may_run(&me.pid.to_string()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(!may_run(&pid.to_string()) && !may_run(&format!("{pid}.{}", me.namespace)));
        assert!(may_run(&format!("{pid}.{}", me.namespace + 1)) && !may_run("x"));
        assert!(!Holder { pid, ..me.clone() }.alive());
        // One that saw no /proc could not say which run of the machine it is of.
        assert!(Holder { boot: String::new(), ..me.clone() }.alive());
        assert!(!Holder { pid, boot: String::new(), ..me }.alive());
    }
}
