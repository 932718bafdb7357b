//! Locks between processes, and whether a process that wrote its name somewhere is still there.
//!
//! A lock is an flock: the kernel lets go of it when its holder dies, so a dead holder blocks nobody. Who holds it stands in
//! the file (pid and start time), for the message that a waiting person gets. Locks are taken in the order home, restore,
//! orphans, timeline; never the other way round.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ah_plugin_api::{Error, ErrorKind, Observer, Result};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::fsio::{FILE_MODE, NOFOLLOW_NONBLOCK, failed};

/// How long a person's command waits for another process before it says `Busy`.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

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
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        let mut lock = Self { file };
        if alone {
            // Only for messages: a failure to write it harms nothing.
            let _ = lock.sign();
        }
        Ok(lock)
    }

    /// Takes the lock if it is free.
    pub(crate) fn try_take(path: &Path, alone: bool) -> Result<Option<Self>> {
        let file = open(path)?;
        Ok(try_lock(&file, alone).map_err(|e| failed("lock", path, &e))?.then_some(Self { file }))
    }

    fn sign(&mut self) -> io::Result<()> {
        let holder = serde_json::to_vec(&Holder::me())?;
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&holder)
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

fn busy(path: &Path, mut file: &File) -> Error {
    let mut text = String::new();
    let holder: Option<Holder> = file
        .rewind()
        .ok()
        .and_then(|()| file.read_to_string(&mut text).ok())
        .and_then(|_| serde_json::from_str(&text).ok());
    let who = match holder {
        Some(holder) if holder.alive() => format!("process {}", holder.pid),
        Some(holder) => format!("something that process {} (ended) left running", holder.pid),
        None => "another process".to_owned(),
    };
    Error::new(ErrorKind::Busy, format!("{who} holds {}", path.display())).with_hint("wait for it to end, then repeat")
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

    /// Whether that process still runs. In doubt, it does.
    pub(crate) fn alive(&self) -> bool {
        if self.boot != boot_id() {
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
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The inode that stands for this process's namespace of pids; 0: not known.
fn namespace() -> u64 {
    use std::os::unix::fs::MetadataExt;
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
    use super::{Holder, Lock, may_run, me_in_a_name};
    use ah_plugin_api::{ErrorKind, Quiet};
    use std::time::Duration;

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
        let _one = Lock::take(&path, false, Duration::from_secs(5), &Quiet).unwrap();
        let _two = Lock::take(&path, false, Duration::from_secs(5), &Quiet).unwrap();
        assert!(Lock::try_take(&path, true).unwrap().is_none());
    }

    #[test]
    fn knows_the_living_from_the_dead() {
        let me = Holder::me();
        assert!(me.start > 0 && me.alive());
        assert!(!Holder { start: me.start + 1, ..me.clone() }.alive());
        assert!(!Holder { boot: "another".into(), ..me.clone() }.alive());
        // A container's, say.
        assert!(Holder { start: me.start + 1, namespace: me.namespace + 1, ..me.clone() }.alive());
        assert!(may_run(&me_in_a_name()) && may_run(&me.pid.to_string()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        assert!(!may_run(&pid.to_string()) && !may_run(&format!("{pid}.{}", me.namespace)));
        assert!(may_run(&format!("{pid}.{}", me.namespace + 1)) && !may_run("x"));
        assert!(!Holder { pid, ..me }.alive());
    }
}
