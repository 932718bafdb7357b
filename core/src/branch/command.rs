//! Who works in a branch: commands of `exec`, and what they started.
//!
//! Two signs tell of them. A lock, which the command inherits with all that it starts, costs nothing, and can be waited for; but a program may
//! close what it inherited. And the mount by which `exec` shows the branch at the workspace's path: a process has that as long as it lives, in a
//! namespace that it made below, too. It is looked for in each `/proc/PID/mountinfo`, which everybody may read, and only where a
//! branch is about to be taken away. Nothing is written down for it that could be out of date. The kernel takes that mount away where the
//! workspace's directory is removed: so it also counts if a process of another namespace has its working directory or root in the branch.
//!
//! What cannot be seen is not found so: processes of a namespace of pids that this one is not above of, and those of others where `/proc` hides
//! them. The lock alone tells of those.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ah_plugin_api::sys::BEHIND;
use ah_plugin_api::{Dir, Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::attend::Standing;
use crate::background;
use crate::branch::{BranchFile, BranchRecord, BranchState};
use crate::fsio;
use crate::ids::BranchId;
use crate::lock::Lock;
use crate::mounts::{self, Mount};
use crate::workspace::Workspace;

/// Who works in a branch after the command has ended is looked for again after so long, and less and less often. Where one
/// is known, its end is heard at once.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// So long a removal waits for who looks at the branch of a command that has ended.
const LOOKED_AT: Duration = Duration::from_secs(2);
/// So often who waits to work in a branch looks whether it is being removed.
const LOOKS_AGAIN: Duration = Duration::from_millis(100);

impl Workspace {
    /// Says that the command which this process becomes works in a branch, as long as that or what it starts runs. Who only looks whether the branch may
    /// go is waited for.
    ///
    /// # Errors
    /// `Busy` if the branch is being removed, or looked at for too long; `NotFound` if it was removed just now.
    pub fn hold_branch(&self, branch: &BranchRecord) -> Result<()> {
        let path = self.branch_lock(&branch.id);
        let settings = self.engine.settings();
        let (begun, patience) = (Instant::now(), settings.patience_left());
        let lock = loop {
            // Nobody waits for the end of a removal.
            self.refuse_to_hold(branch)?;
            let left = patience.saturating_sub(begun.elapsed());
            match Lock::take(&path, false, left.min(LOOKS_AGAIN), &*settings.observer) {
                Err(error) if error.kind == ErrorKind::Busy && begun.elapsed() < patience => {}
                Err(error) if error.kind == ErrorKind::Busy => {
                    return Err(
                        error.context(format!("it is being found out whether the branch {} may go", branch.name))
                    );
                }
                taken => break taken?,
            }
        };
        // Between the look at the branch and the lock, somebody may have begun to remove it, or have done so, with the lock's file.
        self.refuse_to_hold(branch)?;
        lock.leave_to_command(&path)
    }

    /// Refuses to work in a branch that is being removed, or was just now.
    fn refuse_to_hold(&self, branch: &BranchRecord) -> Result<()> {
        let refused = |kind, what| {
            Err(Error::new(kind, format!("the branch {} {what}", branch.name))
                .with_hint("ah agent fs branches shows the others"))
        };
        match BranchFile::load(self.engine.home(), &branch.id)? {
            None => {
                let _ = fsio::remove_file(&self.branch_lock(&branch.id));
                refused(ErrorKind::NotFound, "was removed just now")
            }
            Some(file) if file.record.state == BranchState::Removing => refused(ErrorKind::Busy, "is being removed"),
            Some(_) => Ok(()),
        }
    }

    /// As [`Workspace::hold_branch`], of a branch that was made for that command alone: it goes when the command has ended, unless it then
    /// holds what is nowhere else.
    ///
    /// # Errors
    /// As there.
    pub fn hold_branch_once(&self, branch: &BranchRecord) -> Result<()> {
        // In this order: the other process is not to inherit the lock that it waits for.
        background::after_command(self, &branch.id);
        self.hold_branch(branch)
    }

    /// Waits until nobody works in a branch any more, then takes it away, with the snapshot that was taken for it, if nothing in
    /// it is nowhere else.
    ///
    /// # Errors
    /// As [`Workspace::remove_branch`].
    pub fn remove_branch_when_done(&self, branch: &str) -> Result<()> {
        let mut pause = FIRST_PAUSE;
        loop {
            let file = self.branch_file(branch)?;
            let alone = Lock::wait(&self.branch_lock(&file.record.id))?;
            let Some(pid) = self.worker_in(&file)? else { return self.remove_done(&file, alone) };
            // Others may begin to work there while this one is waited for.
            drop(alone);
            wait_for_end(pid, pause);
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Takes away a branch that was made for a command which has ended. One that holds what is nowhere else is a branch like any other from then on.
    pub(crate) fn remove_done(&self, branch: &BranchFile, alone: Lock) -> Result<()> {
        let removed = self.remove_held(branch.record.id.as_str(), false, Some(alone));
        if removed.is_err() {
            // If that cannot be written down, the next gc asks again.
            let _ = self.keep_if_held(branch);
        }
        removed?;
        self.give_up_base_if_as_it_was(&branch.record.snapshot)
    }

    fn keep_if_held(&self, branch: &BranchFile) -> Result<()> {
        let Ok(_alone) = self.alone_in(branch)? else { return Ok(()) };
        let Some(mut file) = self.branch_files()?.into_iter().find(|file| file.record.id == branch.record.id) else {
            return Ok(());
        };
        let held = || self.refuse_grown(&file).and_then(|()| self.refuse_held(&file));
        let open = file.once && file.record.state == BranchState::Ready && file.standing() == Standing::There;
        if open && held().is_err_and(|error| error.kind == ErrorKind::FailedPrecondition) {
            file.once = false;
            let home = self.engine.home();
            home.with_reserve(|| file.save(home))?;
        }
        Ok(())
    }

    /// Held shared by whoever makes a branch, or runs a command in it.
    pub(crate) fn branch_lock(&self, id: &BranchId) -> PathBuf {
        self.folder().join(format!("branch-{id}.lock"))
    }

    /// The lock of a branch in which nobody works: none begins to while it is held. Else who does.
    pub(crate) fn alone_in(&self, branch: &BranchFile) -> Result<std::result::Result<Lock, Worker>> {
        let path = self.branch_lock(&branch.record.id);
        let lock = self.engine.home().with_reserve(|| Lock::try_take(&path, true))?;
        let worker = self.worker_in(branch);
        Ok(match lock {
            Some(lock) => worker?.map_or(Ok(lock), |pid| Err(Worker::Other(pid))),
            None => Err(Worker::Command(worker.ok().flatten())),
        })
    }

    /// Refuses while a command runs in a branch. None is begun in it while the lock is held.
    pub(super) fn refuse_at_work(&self, file: &BranchFile) -> Result<Lock> {
        let name = &file.record.name;
        let (begun, mut pause) = (Instant::now(), Duration::from_millis(5));
        let worker = loop {
            match self.alone_in(file)? {
                Ok(lock) => return Ok(lock),
                // Nobody is seen in it: behind a command that has ended it is looked whether its branch stays.
                Err(Worker::Command(None))
                    if begun.elapsed() < LOOKED_AT && !self.engine.settings().observer.cancelled() =>
                {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(100));
                }
                Err(worker) => break worker,
            }
        };
        Err(match worker {
            Worker::Command(pid) => {
                let who = pid.map_or_else(String::new, |pid| format!(": process {pid}"));
                let message = format!("a command of `ah agent fs exec` runs in the branch {name}{who}");
                Error::new(ErrorKind::Busy, message).with_hint("wait for it to end, or end it, then repeat")
            }
            Worker::Other(pid) => {
                let message = format!("process {pid} has the branch {name} mounted, or works in it");
                Error::new(ErrorKind::Busy, message).with_hint("end it, or unmount the branch there, then repeat")
            }
        })
    }

    /// A process that is shown the branch elsewhere than at its place. What works behind for `ah` itself is none, as it does not hold the lock.
    fn worker_in(&self, branch: &BranchFile) -> Result<Option<u32>> {
        branch.need_answer(self.engine.home())?;
        let Some(shown) = Shown::of(&branch.record.path)? else { return Ok(None) };
        let own = view_of(std::process::id());
        let is_foreign = |(namespace, _): &(PathBuf, PathBuf)| own.as_ref().is_some_and(|own| own.0 != *namespace);
        // Twice: a process that had not been started when its number was passed may be one of somebody's who had ended when theirs was reached.
        for _ in 0..2 {
            let mut others = HashSet::new();
            for pid in processes()? {
                // Most processes share one table.
                let view = view_of(pid);
                let known = view.as_ref().is_some_and(|view| others.contains(view));
                let is_shown = !known && table_of(pid).is_some_and(|table| shown.is_in(&table));
                if (is_shown || view.as_ref().is_some_and(is_foreign) && shown.is_around(pid)) && !works_behind(pid) {
                    return Ok(Some(pid));
                }
                if !is_shown {
                    others.extend(view);
                }
            }
        }
        Ok(None)
    }
}

/// Who keeps a branch from being taken away.
pub(crate) enum Worker {
    /// Who holds its lock, as a command of `exec` does; and a process that is seen in it.
    Command(Option<u32>),
    /// A process that is seen in it, or has it mounted: a container, or what a command left behind.
    Other(u32),
}

/// A directory as filesystems have it: of which device what.
type Spot = (Vec<u8>, PathBuf);

/// By what a branch is known where it is shown.
struct Shown {
    /// Its filesystem, and what of that it is; if it is a mount itself, what that lies on, as all processes have it there. None in a `chroot`
    /// that has no mount of it.
    mount: Option<(Vec<u8>, PathBuf, Option<Spot>)>,
    inode: ((u32, u32), u64),
}

impl Shown {
    /// None if no directory is there. A symlink to one is refused: what was moved may be behind it.
    fn of(path: &Path) -> Result<Option<Self>> {
        match fs::metadata(path).map_err(|error| error.kind()) {
            Ok(there) if !there.is_dir() => return Ok(None),
            Err(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
            _ => {}
        }
        let dir = match Dir::open(path) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            dir => dir?,
        };
        let number = dir.as_fd().as_raw_fd();
        let link = PathBuf::from(format!("/proc/self/fd/{number}"));
        let read = |path: &str| fs::read(path).map_err(|e| fsio::failed("read", path.as_ref(), &e));
        let info = read(&format!("/proc/self/fdinfo/{number}"))?;
        let id =
            String::from_utf8_lossy(&info).lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
        let path = fs::read_link(&link).map_err(|e| fsio::failed("read", &link, &e))?;
        let table = mounts::parse(&read(mounts::OWN)?);
        let mount = table.iter().find(|mount| id == Some(mount.id)).and_then(|mount| {
            let below = path.strip_prefix(&mount.point).ok()?;
            let place = if below == Path::new("") { mount.lies_on(&table) } else { None };
            Some((mount.device.clone(), mount.root.join(below), place))
        });
        let inode = inode(&link).ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, format!("it cannot be told which directory {} is", path.display()))
        })?;
        Ok(Some(Self { mount, inode }))
    }

    /// Whether a table shows it, or something in it, by a mount that not everybody has.
    fn is_in(&self, table: &[Mount]) -> bool {
        let Some((device, root, place)) = &self.mount else { return false };
        let elsewhere = |mount: &Mount| place.is_none() || mount.lies_on(table) != *place;
        table.iter().any(|mount| mount.device == *device && mount.root.starts_with(root) && elsewhere(mount))
    }

    /// Whether a process has its working directory or its root in it, as far as that may be known.
    fn is_around(&self, pid: u32) -> bool {
        let is_above = |name: &str| {
            let mut at = PathBuf::from(format!("/proc/{pid}/{name}"));
            let mut below = None;
            // Not beyond its filesystem, whatever serves others may not answer. Above the uppermost there is itself.
            while let Some(found) = inode(&at).filter(|found| found.0 == self.inode.0 && below != Some(*found)) {
                if found == self.inode {
                    return true;
                }
                below = Some(found);
                at.push("..");
            }
            false
        };
        is_above("cwd") || is_above("root")
    }
}

/// A directory's device and inode, as the kernel has them without asking whoever serves it.
fn inode(path: &Path) -> Option<((u32, u32), u64)> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some(((found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

fn processes() -> Result<impl Iterator<Item = u32>> {
    let failed = |e| fsio::failed("list", Path::new("/proc"), &e);
    let listed = fs::read_dir("/proc").map_err(failed)?;
    Ok(listed.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()))
}

/// What a process is shown; none if it has ended. Its first thread may have ended before the others.
fn table_of(pid: u32) -> Option<Vec<Mount>> {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let first = fs::read(folder.join("mountinfo"));
    let other = |_| {
        let threads = fs::read_dir(folder.join("task")).ok()?;
        threads.flatten().find_map(|thread| fs::read(thread.path().join("mountinfo")).ok())
    };
    first.map_or_else(other, Some).map(|table| mounts::parse(&table))
}

/// By what a process's table is the same as another's: its namespace and its root; none if it may not be known.
fn view_of(pid: u32) -> Option<(PathBuf, PathBuf)> {
    let link = |name: &str| fs::read_link(format!("/proc/{pid}/{name}")).ok();
    Some((link("ns/mnt")?, link("root")?))
}

/// Whether a process is at work behind `ah`, in its service or the background.
fn works_behind(pid: u32) -> bool {
    let mark = format!("{BEHIND}=1");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|&b| b == 0).any(|word| word == mark.as_bytes())
}

/// Waits until a process has ended, or so long. Kernels before 5.3 do not tell.
fn wait_for_end(pid: u32, at_most: Duration) {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let Some(process) = number.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return std::thread::sleep(at_most);
    };
    let at_most = rustix::time::Timespec { tv_sec: at_most.as_secs() as _, tv_nsec: at_most.subsec_nanos().into() };
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&at_most));
}
