//! Which processes use what: by what the kernel says of each, its working directory, its root, its program, its descriptors, what it has
//! mapped. Of other users' processes an ordinary user is told nothing; where there is no `/proc`, nobody is.
//!
//! Not here: what counts as in the way, and for how long to wait until it is not. A mount that is busy may be held by another mount
//! namespace's mounts too; who looks for that asks each [`Process`] for its own.

use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Statx};

use crate::MASK;

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its folder in `/proc`.
    pub folder: PathBuf,
}

/// In which way a process uses something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It is its working directory.
    Works,
    /// It is its root.
    Rooted,
    /// It is the program that it runs.
    Runs,
    /// It has a descriptor of it.
    Open,
    /// It has mapped it.
    Maps,
}

/// One thing that a process uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// In which way.
    pub how: How,
    /// Its path as the kernel gives it: in that process's view, and with ` (deleted)` behind it when it has none any more.
    pub path: PathBuf,
    /// Of what is mapped: its inode number; the device there is the filesystem's, not a subvolume's.
    pub inode: Option<u64>,
    /// What leads to it; none of what is mapped.
    link: Option<PathBuf>,
}

impl Process {
    /// All that can be seen, this one too.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let numbered = |entry: std::fs::DirEntry| {
            Some(Self { pid: entry.file_name().to_str()?.parse().ok()?, folder: entry.path() })
        };
        entries.filter_map(numbered).collect()
    }

    /// All that can be seen but this one.
    pub fn others() -> impl Iterator<Item = Self> {
        Self::all().into_iter().filter(|process| !process.is_own())
    }

    /// Whether it is the one that asks.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Whether it is the parent of the one that asks, or that one's, and so on.
    #[must_use]
    pub fn is_above(&self) -> bool {
        let mut at = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().get().unsigned_abs());
        for _ in 0..64 {
            let Some(parent) = at.filter(|parent| *parent > 1) else { return false };
            if parent == self.pid {
                return true;
            }
            // Field 4, counted after the name, which may hold anything.
            let stat = std::fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
            at = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        }
        false
    }

    /// By what its table of mounts is the same as another's: its namespace and its root; none if it may not be known.
    pub(crate) fn view(&self) -> Option<(PathBuf, PathBuf)> {
        let link = |name: &str| std::fs::read_link(self.folder.join(name)).ok();
        Some((link("ns/mnt")?, link("root")?))
    }

    /// The hint for a person who waits for it to stop using something in that way. Nobody is to kill the shell that they type in, or what
    /// started it; and one that only works there, a shell in another window, need not end.
    #[must_use]
    pub fn how_to_stop(&self, how: How) -> String {
        match how {
            How::Works if self.is_above() => "leave that directory (`cd /`), then repeat".to_owned(),
            How::Works => "leave that directory there, or end it, then repeat".to_owned(),
            _ if self.is_above() => "this command was started from it: close that there, then repeat".to_owned(),
            _ => format!("end it, then repeat: kill {}", self.pid),
        }
    }

    /// The first thing it uses of which that is true. What takes longest to find out comes last.
    pub fn uses(&self, mut is_it: impl FnMut(&Use) -> bool) -> Option<Use> {
        for (name, how) in [("cwd", How::Works), ("root", How::Rooted), ("exe", How::Runs)] {
            if let Some(used) = Use::by(self.folder.join(name), how).filter(&mut is_it) {
                return Some(used);
            }
        }
        for fd in std::fs::read_dir(self.folder.join("fd")).into_iter().flatten().flatten() {
            if let Some(used) = Use::by(fd.path(), How::Open).filter(&mut is_it) {
                return Some(used);
            }
        }
        let maps = std::fs::read(self.folder.join("maps")).unwrap_or_default();
        maps.split(|&b| b == b'\n').filter_map(Use::mapped).find(is_it)
    }
}

/// `12 (name)`
impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = std::fs::read(self.folder.join("comm")).unwrap_or_default();
        write!(f, "{} ({})", self.pid, String::from_utf8_lossy(&name).trim_end())
    }
}

impl Use {
    fn by(link: PathBuf, how: How) -> Option<Self> {
        let path = std::fs::read_link(&link).ok()?;
        // A pipe, a socket and the like.
        path.is_absolute().then_some(Self { how, path, inode: None, link: Some(link) })
    }

    /// A line of `maps`: address, rights, offset, device, inode, path.
    fn mapped(line: &[u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |&b| b == b' ');
        let inode: u64 = std::str::from_utf8(fields.nth(4)?).ok()?.parse().ok()?;
        let path = fields.next()?.trim_ascii_start();
        let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
        (inode != 0).then_some(Self { how: How::Maps, path, inode: Some(inode), link: None })
    }

    /// Attributes of what is used, if they can be had; asks no server. None of what is mapped.
    #[must_use]
    pub fn stat(&self) -> Option<Statx> {
        let flags = AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        rustix::fs::statx(rustix::fs::CWD, self.link.as_ref()?, flags, MASK).ok()
    }

    /// Whether it is a directory or below it, by its path.
    #[must_use]
    pub fn is_below(&self, top: &Path) -> bool {
        // Not by components, which would take what is called `x (deleted)` for something else than `x`.
        let (path, top) = (self.path.as_os_str().as_bytes(), top.as_os_str().as_bytes());
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/") || top.ends_with(b"/"))
    }
}

/// For a person: `it works in /path`.
impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.how {
            How::Works => write!(f, "it works in {path}"),
            How::Rooted => write!(f, "it has its root in {path}"),
            How::Open => write!(f, "it has {path} open"),
            How::Runs | How::Maps => write!(f, "it runs or maps {path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn nobody_is_told_to_kill_the_shell_they_type_in() {
        let process = |pid: u32| Process { pid, folder: PathBuf::from(format!("/proc/{pid}")) };
        let above = process(std::os::unix::process::parent_id());
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let beside = process(child.id());
        assert!(above.is_above() && !beside.is_above() && !process(std::process::id()).is_above());
        for how in [How::Works, How::Rooted, How::Runs, How::Open, How::Maps] {
            assert!(!above.how_to_stop(how).contains("kill"), "{how:?}");
            assert_eq!(beside.how_to_stop(how).contains("kill"), how != How::Works, "{how:?}");
        }
        let _ = child.kill();
        let _ = child.wait();
    }

    #[test]
    fn a_process_is_found_by_what_it_uses_and_by_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let (inside, beside) = (top.join("v/deep"), top.join("v2"));
        std::fs::create_dir_all(&inside).unwrap();
        std::fs::create_dir_all(&beside).unwrap();
        std::fs::write(inside.join("f"), "x").unwrap();
        let open = std::fs::File::open(inside.join("f")).unwrap();
        let mut works = Command::new("sleep").arg("60").current_dir(&inside).stdin(Stdio::null()).spawn().unwrap();
        let mut holds = Command::new("sleep").arg("60").stdin(Stdio::from(open)).spawn().unwrap();
        let find = |top: &Path| -> Vec<(u32, How)> {
            let found = Process::others().filter_map(|p| Some((p.pid, p.uses(|used| used.is_below(top))?.how)));
            found.collect()
        };
        let (found, none) = (find(&top.join("v")), find(&beside));
        // By number too, whatever it is called.
        std::fs::rename(inside.join("f"), beside.join("g")).unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(beside.join("g")).unwrap());
        let by_number = |used: &Use| used.stat().is_some_and(|stat| stat.stx_ino == inode);
        let again: Vec<u32> = Process::others().filter(|p| p.uses(by_number).is_some()).map(|p| p.pid).collect();
        for child in [&mut works, &mut holds] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(found.contains(&(works.id(), How::Works)) && found.contains(&(holds.id(), How::Open)), "{found:?}");
        assert_eq!(none, []);
        assert!(again.contains(&holds.id()), "{again:?}");
    }

    #[test]
    fn what_it_runs_and_maps_is_known_too() {
        let own = Process::all().into_iter().find(Process::is_own).unwrap();
        let program = std::env::current_exe().unwrap();
        assert_eq!(own.uses(|used| used.is_below(&program)).unwrap().how, How::Runs);
        assert!(own.uses(|used| used.how == How::Maps && used.inode.is_some()).is_some());
        assert!(own.to_string().starts_with(&format!("{} (", own.pid)), "{own}");
    }

    #[test]
    fn below_is_by_whole_names() {
        let used = |path: &str| Use { how: How::Open, path: path.into(), inode: None, link: None };
        for (path, is) in [("/a/b", true), ("/a/b/c", true), ("/a/bc", false), ("/a/b (deleted)", true), ("/a", false)]
        {
            assert_eq!(used(path).is_below(Path::new("/a/b")), is, "{path}");
        }
        assert!(used("/a").is_below(Path::new("/")));
    }
}
