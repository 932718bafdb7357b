//! Who uses something in a directory.
//!
//! Asked in three ways, each of which sees what the others do not: what each process says of itself; of each file, whether somebody else has
//! it open, which the kernel knows of every process there is; and the mounts of each process, of which one may show the directory elsewhere, or
//! something else in its place.
//!
//! A descriptor of the directory itself holds nobody up: whoever has one finds an empty, removed directory in the end, and the caller has one.
//! Nor does this process's own working directory: whoever asks for it from inside, by `-C`, knows what they do.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ah_plugin_api::{Context, Error, ErrorKind, LogLevel, RelPath, Result, text};
use rustix::fs::{FileType, Mode, OFlags, Statx};
use rustix::io::Errno;

use crate::lease::is_open_elsewhere;
use crate::state::{State, is};
use crate::{How, Mount, Mounts, Process, Use, failed, look, path_of};

/// So often a file is asked for that somebody may just be looking at, or have open without knowing: who was just started has it until it is another program.
const ATTEMPTS: u32 = 25;

const PAUSE: Duration = Duration::from_millis(20);

/// An error if a process has something in `dir` open. `state`: what is in it, to recognise what has lost its name.
pub fn refuse(dir: BorrowedFd<'_>, state: Option<&State>) -> Result<()> {
    among(Process::all, dir, state, ATTEMPTS, &Context::quiet())
}

/// As [`refuse`], but who has something open, and nothing else, is waited for so long, as what `ah` does in the background.
pub fn refuse_after(dir: BorrowedFd<'_>, patience: Duration, cx: &Context<'_>) -> Result<()> {
    let attempts = patience.as_millis().div_ceil(PAUSE.as_millis());
    among(Process::all, dir, None, attempts.try_into().unwrap_or(u32::MAX), cx)
}

/// Whether what a process uses is in a directory. `state`: what is in it, to recognise what has lost its name.
fn is_inside(used: &Use, root: &Statx, path: &Path, state: Option<&State>) -> bool {
    let known = |inode| state.is_some_and(|state| state.has(inode));
    if used.how == How::Maps {
        return used.is_below(path) && (state.is_none() || used.inode.is_some_and(known));
    }
    let Some(stat) = used.stat() else { return false };
    if (stat.stx_dev_major, stat.stx_dev_minor) != (root.stx_dev_major, root.stx_dev_minor) {
        return false;
    }
    if stat.stx_ino == root.stx_ino {
        return matches!(used.how, How::Works | How::Rooted);
    }
    known(stat.stx_ino) || used.is_below(path)
}

/// As [`refuse`], of other processes than this one, which has its reasons.
///
/// # Errors
/// `Busy`, with the process named.
pub fn refuse_others(dir: BorrowedFd<'_>) -> Result<()> {
    among(|| Process::others().collect(), dir, None, ATTEMPTS, &Context::quiet())
}

/// The other processes that have something in `dir` open, each with the first thing that it has.
pub fn others_in(dir: BorrowedFd<'_>) -> Result<Vec<(Process, Use)>> {
    let root = look(dir, b"").map_err(|errno| failed("cannot look at the workspace", errno))?;
    let path = path_of(dir);
    let used = |process: Process| Some((process.uses(|used| is_inside(used, &root, &path, None))?, process));
    Ok(Process::others().filter_map(used).map(|(used, process)| (process, used)).collect())
}

fn among(
    processes: impl Fn() -> Vec<Process>,
    dir: BorrowedFd<'_>,
    state: Option<&State>,
    attempts: u32,
    cx: &Context<'_>,
) -> Result<()> {
    let root = look(dir, b"").map_err(|errno| failed("cannot look at the workspace", errno))?;
    let path = path_of(dir);
    let inside = |used: &Use| is_inside(used, &root, &path, state);
    // Who was started while somebody was waited for is not among those that were listed before.
    match wait_for(processes(), &path, inside, attempts, cx)? {
        true => wait_for(processes(), &path, inside, attempts, cx).map(drop),
        false => Ok(()),
    }
}

/// An error if one of them stays; whether any was waited for.
fn wait_for(
    processes: Vec<Process>,
    path: &Path,
    inside: impl Fn(&Use) -> bool,
    attempts: u32,
    cx: &Context<'_>,
) -> Result<bool> {
    let mut waited = false;
    for process in processes {
        let own = process.is_own();
        let find = || process.uses(|used| !(own && matches!(used.how, How::Works | How::Rooted)) && inside(used));
        let mut used = find();
        for _ in 1..attempts {
            if used.as_ref().is_none_or(|used| used.how != How::Open) {
                break;
            }
            cx.check_cancelled()?;
            std::thread::sleep(PAUSE);
            waited = true;
            used = find();
        }
        if let Some(used) = used {
            let message = format!("the process {process} is in the workspace: {used}");
            let hint = match used.how {
                How::Works if process.is_above() => {
                    let path = text::shell(path.as_os_str());
                    format!("leave it (`cd /`), and repeat the command with -C {path}")
                }
                how => process.how_to_stop(how),
            };
            return Err(Error::new(ErrorKind::Busy, message).with_hint(hint));
        }
    }
    Ok(waited)
}

/// That somebody has a file open who cannot be named.
pub fn is_open(path: &RelPath) -> Error {
    Error::new(ErrorKind::Busy, format!("{path} is open in a process that cannot be seen from here"))
        .with_hint("end what works in the workspace, in containers and as other users too, then repeat")
}

/// An error if anybody else has an open file open; whether the kernel would say. `path`: what it is called.
pub fn refuse_open(file: BorrowedFd<'_>, path: &RelPath) -> Result<bool> {
    for attempt in 1.. {
        match is_open_elsewhere(file) {
            Ok(false) => return Ok(true),
            Ok(true) if attempt < ATTEMPTS => std::thread::sleep(PAUSE),
            Ok(true) => break,
            Err(_) => return Ok(false),
        }
    }
    Err(is_open(path))
}

/// As [`refuse_open`] for an entry of a directory. What is not there any more, or may not be read, is nobody's.
pub fn refuse_open_entry(dir: BorrowedFd<'_>, name: &[u8], stat: &Statx) -> Result<()> {
    if !is(stat, FileType::RegularFile) {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = || RelPath::new(name).unwrap_or_default();
    match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => refuse_open(file.as_fd(), &path()).map(drop),
        Err(Errno::AGAIN) => Err(is_open(&path())),
        Err(_) => Ok(()),
    }
}

/// After so many mounts it is looked whether this shall stop; a process counts as ten, whatever its table.
const BETWEEN_LOOKS: usize = 10_000;

/// How much of other processes' tables is looked at.
#[derive(Debug, Clone, Copy)]
struct Most {
    /// Of tables that differ, bytes: who has a namespace may fill it with mounts.
    distinct: usize,
    /// Of what has to be read to tell that, bytes: nobody but root is told of others' processes that they share a namespace.
    read: usize,
}

impl Most {
    /// Where it is done again and again: a container host has thousands of processes with a hundred kilobytes each, of few namespaces.
    const USUAL: Self = Self { distinct: 64 << 20, read: 1 << 30 };
    const ALL: Self = Self { distinct: usize::MAX, read: usize::MAX };
}

/// What each process has mounted; none of one whose table is another's, too. No more are read once that was as much as may be, which `unread` then says.
fn tables_of(
    processes: impl Iterator<Item = Process>,
    most: Most,
    unread: &Cell<bool>,
) -> impl Iterator<Item = Option<(Process, Mounts)>> {
    let (state, mut views, mut seen) = (RandomState::new(), HashSet::new(), HashSet::new());
    let (mut distinct, mut read) = (0_usize, 0_usize);
    processes.map_while(move |process| {
        let view = process.view();
        if view.as_ref().is_some_and(|view| views.contains(view)) {
            return Some(None);
        }
        if distinct > most.distinct || read > most.read {
            unread.set(true);
            return None;
        }
        let table = std::fs::read(process.folder.join("mountinfo")).unwrap_or_default();
        read = read.saturating_add(table.len());
        // Of one that has ended by now nothing is known.
        if table.is_empty() {
            return Some(None);
        }
        views.extend(view);
        Some(seen.insert(state.hash_one(&table)).then(|| {
            distinct = distinct.saturating_add(table.len());
            (process, Mounts::parse(&table))
        }))
    })
}

/// A place where something is mounted.
#[derive(Debug)]
struct Somewhere {
    point: PathBuf,
    /// Whose mount it is, if it is none of this process's.
    process: Option<Arc<str>>,
}

/// What is mounted of a filesystem, and on it, for all processes that can be seen. Read once: that costs a look at each of them.
#[derive(Debug)]
pub struct Tables {
    own: Mounts,
    device: String,
    /// Its directories that are mounted, and those on which something is, each with one such place.
    shown: BTreeMap<PathBuf, Somewhere>,
    covered: BTreeMap<PathBuf, Somewhere>,
}

impl Tables {
    /// Reads them for the filesystem on which something open is.
    ///
    /// # Errors
    /// As [`Mounts::read`]; `Cancelled`.
    pub fn read(on: BorrowedFd<'_>, cx: &Context<'_>) -> Result<Self> {
        Self::up_to(Most::USUAL, on, cx)
    }

    fn up_to(most: Most, on: BorrowedFd<'_>, cx: &Context<'_>) -> Result<Self> {
        let own = Mounts::read()?;
        let device = own.of(on).map_or_else(String::new, |mount| mount.device.clone());
        let mut this = Self { own: Mounts::default(), device, shown: BTreeMap::new(), covered: BTreeMap::new() };
        this.add(&own, None);
        this.own = own;
        let (mut unlooked, unread) = (0, Cell::new(false));
        for found in tables_of(Process::others(), most, &unread) {
            unlooked += 10;
            if let Some((process, table)) = found {
                this.add(&table, Some(&process.to_string().into()));
                unlooked += table.iter().count();
            }
            if unlooked > BETWEEN_LOOKS {
                cx.check_cancelled()?;
                unlooked = 0;
            }
        }
        // Who fills a namespace with mounts is to keep nobody from removing what is theirs.
        if unread.get() {
            let message = format!(
                "processes have so many mounts that not all of them were looked at (more than {} MiB, or {} MiB with those of processes that share them): \
                 what is removed may be in use in one of them",
                most.distinct >> 20,
                most.read >> 20
            );
            cx.log(LogLevel::Warn, &message);
        }
        Ok(this)
    }

    fn add(&mut self, table: &Mounts, process: Option<&Arc<str>>) {
        let of_it: HashMap<u64, &Mount> =
            table.iter().filter(|mount| mount.device == self.device).map(|mount| (mount.id, mount)).collect();
        let somewhere = |mount: &Mount| Somewhere { point: mount.point.clone(), process: process.cloned() };
        for mount in of_it.values() {
            self.shown.entry(mount.root.clone()).or_insert_with(|| somewhere(mount));
        }
        for mount in table.iter() {
            // Whatever that place is called there.
            let Some(on) = of_it.get(&mount.parent) else { continue };
            let Ok(at) = mount.point.strip_prefix(&on.point) else { continue };
            self.covered.entry(on.root.join(at)).or_insert_with(|| somewhere(mount));
        }
    }

    /// Whether they were read for the filesystem on which something open is.
    #[must_use]
    pub fn are_of(&self, fd: BorrowedFd<'_>) -> bool {
        self.own.of(fd).is_some_and(|mount| mount.device == self.device)
    }

    /// An error if the directory of that name in an open one has something mounted in it, for any process; with `shown` also if it is mounted
    /// somewhere itself, in whole or in part.
    ///
    /// # Errors
    /// `Busy`.
    pub fn refuse(&self, parent: BorrowedFd<'_>, name: &[u8], shown: bool) -> Result<()> {
        let path = path_of(parent);
        let Some(mount) = self.own.of(parent) else { return Ok(()) };
        let Ok(inside) = path.strip_prefix(&mount.point) else { return Ok(()) };
        let root = mount.root.join(inside).join(OsStr::from_bytes(name));
        // Paths are in the order of their components, so what is inside comes right behind.
        let places = [Some(&self.covered), shown.then_some(&self.shown)].into_iter().flatten();
        let mut next = places.filter_map(|places| places.range(root.clone()..).next());
        let Some((_, Somewhere { point, process })) = next.find(|(at, _)| at.starts_with(&root)) else {
            return Ok(());
        };
        let what = path.join(OsStr::from_bytes(name)).display().to_string();
        let (message, hint) = match process {
            None => (
                format!("{what} is in use: something of it, or in it, is mounted at {}", point.display()),
                format!("umount {}; then repeat", text::shell(point.as_os_str())),
            ),
            Some(process) => (
                format!(
                    "{what} is in use: the process {process} has mounts of its own, one of which is of it, or in it: {}",
                    point.display()
                ),
                "unmount it there, or end it, then repeat".to_owned(),
            ),
        };
        Err(Error::new(ErrorKind::Busy, message).with_hint(hint))
    }
}

/// An error if the directory is mounted elsewhere, or if something is mounted over it or in it for some process: that would go on in the
/// former one, or in the new one.
pub fn refuse_mounts(dir: BorrowedFd<'_>) -> Result<()> {
    let own = Mounts::read()?;
    let path = path_of(dir);
    let Some(mount) = own.of(dir) else { return Ok(()) };
    let Ok(inside) = path.strip_prefix(&mount.point) else { return Ok(()) };
    let place = Place { device: mount.device.clone(), root: mount.root.join(inside), path, top: top(&own) };
    if let Some(found) = own.iter().find(|mount| place.is_in(mount)) {
        let message = format!("the workspace is mounted at {} too", found.point.display());
        return Err(Error::new(ErrorKind::FailedPrecondition, message).with_hint("unmount it, then repeat"));
    }
    for (process, theirs) in tables_of(Process::others(), Most::ALL, &Cell::default()).flatten() {
        // Another namespace's paths say something only where its root is ours.
        let is_ours = top(&theirs) == place.top;
        let own_too = |mount: &Mount| own.iter().any(|own| own.id == mount.id);
        let is_at = |mount: &Mount| is_ours && !own_too(mount) && mount.point.starts_with(&place.path);
        if let Some(found) = theirs.iter().find(|mount| place.is_in(mount) || is_at(mount)) {
            let message = format!(
                "the process {process} has mounts of its own, one of which concerns the workspace: {}",
                found.point.display()
            );
            return Err(Error::new(ErrorKind::Busy, message).with_hint("unmount it there, or end it, then repeat"));
        }
    }
    Ok(())
}

/// Where the directory is.
struct Place {
    device: String,
    /// In its filesystem.
    root: PathBuf,
    path: PathBuf,
    top: Option<(String, PathBuf)>,
}

impl Place {
    /// Whether a mount shows the directory, or something in it.
    fn is_in(&self, mount: &Mount) -> bool {
        mount.device == self.device && mount.root.starts_with(&self.root)
    }
}

/// What is mounted at `/`.
fn top(mounts: &Mounts) -> Option<(String, PathBuf)> {
    let top = mounts.iter().filter(|mount| mount.point == Path::new("/")).last()?;
    Some((top.device.clone(), top.root.clone()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;
    use std::process::{Command, Stdio};
    use std::sync::Mutex;

    use ah_plugin_api::Observer;

    use super::*;

    #[derive(Default)]
    struct Told(Mutex<Vec<String>>);

    impl Observer for Told {
        fn log(&self, _level: LogLevel, message: &str) {
            self.0.lock().unwrap().push(message.to_owned());
        }
    }

    #[test]
    fn that_not_all_mounts_were_looked_at_is_told() {
        // Another process there is for sure, and a third.
        let mut others = [(); 2].map(|()| Command::new("sleep").arg("60").spawn().unwrap());
        let top = File::open("/").unwrap();
        let told = [Most { distinct: 0, ..Most::ALL }, Most { read: 0, ..Most::ALL }, Most::ALL].map(|most| {
            let told = Told::default();
            Tables::up_to(most, top.as_fd(), &Context::new(&told)).unwrap();
            told.0.into_inner().unwrap().len()
        });
        for other in &mut others {
            other.kill().unwrap();
            other.wait().unwrap();
        }
        assert_eq!(told, [1, 1, 0]);
    }

    #[test]
    fn a_table_that_many_processes_share_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let line = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
        // What is told of the processes: their mounts, and by `shared` that they share a namespace.
        let found = |shared: bool, most: Most| {
            let processes = (0..20).map(|pid| {
                let folder = dir.path().join(format!("{shared}-{pid}"));
                std::fs::create_dir_all(folder.join("ns")).unwrap();
                std::fs::write(folder.join("mountinfo"), line).unwrap();
                if shared && !folder.join("root").is_symlink() {
                    symlink("mnt:[1]", folder.join("ns/mnt")).unwrap();
                    symlink("/", folder.join("root")).unwrap();
                }
                Process { pid, folder }
            });
            let unread = Cell::new(false);
            let tables = tables_of(processes, most, &unread).flatten().count();
            (tables, unread.get())
        };
        let few = Most { distinct: line.len(), read: usize::MAX };
        assert_eq!(found(false, few), (1, false));
        assert_eq!(found(true, few), (1, false));
        let short = Most { distinct: usize::MAX, read: line.len() };
        assert_eq!(found(false, short), (1, true));
        assert_eq!(found(true, short), (1, false), "one is read");
    }

    #[test]
    fn who_has_a_file_open_for_a_moment_only_is_not_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "x").unwrap();
        let top = File::open(dir.path()).unwrap();
        let holder = |script: &str| {
            let file = File::open(dir.path().join("f")).unwrap();
            let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::from(file)).spawn().unwrap();
            let refused = refuse_others(top.as_fd());
            child.kill().unwrap();
            child.wait().unwrap();
            refused
        };
        holder("sleep 0.1 && exec sleep 60 </dev/null").unwrap();
        // Who has it from that one by then is.
        holder("exec 3<&0 </dev/null; sleep 0.2; sleep 2 & exec sleep 60 3<&-").unwrap_err();
        let error = holder("exec sleep 60").unwrap_err();
        assert!(error.kind == ErrorKind::Busy && error.to_string().contains("(sleep)"), "{error}");
    }
}
