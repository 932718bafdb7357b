//! Differences between two directories of one filesystem, walked side by side.
//!
//! Where the filesystem says what was written, whatever holds none of that is not looked into: the cost grows with what changed. Where it
//! does not, every entry is looked at, but contents are read only of what its times leave open: a snapshot has the inodes of what it is a
//! snapshot of, so one with the same number and an old change time is the same.

mod side;

use std::cmp::Ordering;
use std::iter::Peekable;
use std::os::fd::BorrowedFd;
use std::vec::IntoIter;

use ah_plugin_api::{Change, Context, EntryKind, Error, ErrorKind, RelPath, Result};
use rustix::fs::Statx;
use rustix::io::Errno;

use crate::{Way, entry_of, failed};
pub use side::Side;
use side::{Found, Listing};

/// Whether anything of what both sides have at a path, with the same inode, may differ, at it or below it.
pub type Touched<'a> = dyn Fn(&RelPath, u64) -> bool + 'a;

/// What of two sides is compared, and what is known beforehand.
pub struct Comparison<'a> {
    /// The older side, as asked for.
    pub from: &'a Side,
    /// The newer side.
    pub to: &'a Side,
    /// What the filesystem says was written; none: anything may have been.
    pub touched: Option<&'a Touched<'a>>,
    /// What was written before that second is equal if its inode and times are; none: the sides' inodes have nothing to do with each other.
    pub settled: Option<i64>,
    /// Whether a file that differs in its modification time alone is a difference.
    pub times: bool,
}

impl Comparison<'_> {
    /// The differences at `paths` and below them (everywhere, if there are none), ordered by path bytes; and the directories that may not be
    /// looked into on one side, or are damaged, of whose contents nothing is told, with those of `paths` that are in such, and with what
    /// cannot even be looked at.
    ///
    /// # Errors
    /// Those of the filesystem; `Cancelled`.
    pub fn run(&self, paths: &[RelPath], cx: &Context<'_>) -> Result<(Vec<Change>, Vec<RelPath>)> {
        let mut walk = Walk { of: self, cx, changes: Vec::new(), unread: Vec::new(), seen: 0 };
        let mut tops: Vec<RelPath> = paths.to_vec();
        if tops.is_empty() {
            tops.push(RelPath::root());
        }
        tops.sort();
        tops.dedup();
        for (at, top) in tops.iter().enumerate() {
            // One that lies below another was walked with it.
            if !tops[..at].iter().any(|above| top.starts_with(above)) {
                walk.top(top)?;
            }
        }
        walk.changes.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok((walk.changes, walk.unread))
    }
}

struct Walk<'a> {
    of: &'a Comparison<'a>,
    cx: &'a Context<'a>,
    changes: Vec<Change>,
    unread: Vec<RelPath>,
    seen: u64,
}

/// An entry of a side, and the open directory that it is in.
type At<'d> = Option<(BorrowedFd<'d>, &'d Found)>;

/// A directory on the way down: what is in it on each side and was not compared yet, and the sides that went down into it.
struct Level {
    entries: [Peekable<IntoIter<Found>>; 2],
    went: [bool; 2],
}

impl Level {
    /// The next name, with what each side has of it.
    fn next(&mut self) -> Option<[Option<Found>; 2]> {
        let [a, b] = &mut self.entries;
        let order = match (a.peek(), b.peek()) {
            (None, None) => return None,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.name.cmp(&b.name),
        };
        Some([if order.is_le() { a.next() } else { None }, if order.is_ge() { b.next() } else { None }])
    }
}

impl Walk<'_> {
    /// One of the paths asked for, and all below it.
    fn top(&mut self, path: &RelPath) -> Result<()> {
        let both = self.of.from.find(path).and_then(|before| Ok([before, self.of.to.find(path)?]));
        let both = match both {
            // It lies in a directory that may not be looked into or is damaged, or is damaged itself.
            Err(error) if error.kind == ErrorKind::PermissionDenied || error.is_unreadable() && !path.is_root() => {
                self.unread.push(path.clone());
                return Ok(());
            }
            both => both?,
        };
        let (mut ways, mut found) = ([None, None], [None, None]);
        for (at, side) in both.into_iter().enumerate() {
            if let Some((dir, entry)) = side {
                ways[at] = Some(Way::from(dir));
                found[at] = Some(entry);
            }
        }
        let mut path = path.clone();
        let mut levels: Vec<Level> = self.pair(&path, &mut ways, &found)?.into_iter().collect();
        while let Some(level) = levels.last_mut() {
            if let Some(found) = level.next() {
                let Some(name) = found.iter().flatten().next().map(|found| &found.name) else { continue };
                let below = path.join(name)?;
                if let Some(level) = self.pair(&below, &mut ways, &found)? {
                    path = below;
                    levels.push(level);
                }
                continue;
            }
            for (way, _) in ways.iter_mut().zip(level.went).filter(|(_, went)| *went) {
                way.as_mut().map_or(Ok(()), |way| way.up().map(drop)).map_err(|errno| cannot_compare(&path, errno))?;
            }
            levels.pop();
            path = path.parent().unwrap_or_default();
        }
        Ok(())
    }

    /// What each side has at a path, in the directories at hand. Goes down where there is a directory, and gives what is in it.
    fn pair(
        &mut self,
        path: &RelPath,
        ways: &mut [Option<Way>; 2],
        found: &[Option<Found>; 2],
    ) -> Result<Option<Level>> {
        self.seen += 1;
        if self.seen.is_multiple_of(512) {
            self.cx.check_cancelled()?;
            self.cx.progress("comparing", self.seen, None);
        }
        if let [Some(a), Some(b)] = found
            && self.is_untouched(path, &a.stat, &b.stat)
        {
            return Ok(None);
        }
        let [before, after] = [0, 1].map(|side| ways[side].as_ref().map(Way::at).zip(found[side].as_ref()));
        let is_directory = |it: &At<'_>| it.is_some_and(|(_, found)| found.kind() == EntryKind::Dir);
        let list = |side: &Side, it: &At<'_>| match it {
            Some((dir, found)) if is_directory(it) => side.list(*dir, &found.name, path),
            _ => Ok(Some(Listing::default())),
        };
        let both = list(self.of.from, &before).and_then(|from| Ok((from, list(self.of.to, &after)?)));
        let both = match both {
            // Nothing goes, and nothing makes room, for a directory of which nobody knows what is in it.
            Err(error) if error.is_unreadable() && !path.is_root() => {
                self.unread.push(path.clone());
                return Ok(None);
            }
            // What is to go would go whole.
            Ok((Some(before), _)) if !before.unread.is_empty() && !is_directory(&after) => {
                self.unread.push(path.clone());
                return Ok(None);
            }
            both => both?,
        };
        if !self.is_equal(path, &before, &after)? {
            // A name is the last part of the path, also of what was asked for by its path.
            let entry =
                |it: &At<'_>| it.as_ref().map(|(_, found)| entry_of(&found.stat, path.file_name().unwrap_or_default()));
            self.changes.push(Change { path: path.clone(), before: entry(&before), after: entry(&after) });
        }
        if !(is_directory(&before) || is_directory(&after)) {
            return Ok(None);
        }
        // What may not be looked into on one side is not known to differ from the other.
        let (Some(before), Some(after)) = both else {
            self.unread.push(path.clone());
            return Ok(None);
        };
        // Neither is what can be looked at on one side only.
        let unread = &before.unread | &after.unread;
        for name in &unread {
            self.unread.push(path.join(name)?);
        }
        // At the top, the ways begin in the directory itself.
        let dirs = [before.dir, after.dir].map(|dir| dir.filter(|_| !path.is_root()));
        let went = [0, 1].map(|side| dirs[side].is_some());
        let entries = [before.entries, after.entries].map(|mut entries| {
            entries.retain(|found| !unread.contains(&found.name));
            entries.into_iter().peekable()
        });
        for (way, dir) in ways.iter_mut().zip(dirs) {
            if let (Some(way), Some(dir)) = (way, dir) {
                way.down(dir).map_err(|errno| cannot_compare(path, errno))?;
            }
        }
        Ok(Some(Level { entries, went }))
    }

    /// Whether nothing at all was written in it, or below it, between the two sides.
    fn is_untouched(&self, path: &RelPath, a: &Statx, b: &Statx) -> bool {
        a.stx_ino == b.stx_ino && self.of.touched.is_some_and(|touched| !touched(path, a.stx_ino))
    }

    fn is_equal(&self, path: &RelPath, before: &At<'_>, after: &At<'_>) -> Result<bool> {
        let (Some((a_dir, a)), Some((b_dir, b))) = (*before, *after) else {
            return Ok(before.is_none() && after.is_none());
        };
        let time = |stat: &Statx| (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec);
        if a.kind() != b.kind()
            || a.stat.stx_mode != b.stat.stx_mode
            || (self.of.times && time(&a.stat) != time(&b.stat))
        {
            return Ok(false);
        }
        if !matches!(a.kind(), EntryKind::File | EntryKind::Symlink) {
            // Which device it is; zero for all others.
            let device = |stat: &Statx| (stat.stx_rdev_major, stat.stx_rdev_minor);
            return Ok(device(&a.stat) == device(&b.stat));
        }
        if a.stat.stx_size != b.stat.stx_size {
            return Ok(false);
        }
        let change = |stat: &Statx| (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec);
        let same_look =
            a.stat.stx_ino == b.stat.stx_ino && change(&a.stat) == change(&b.stat) && time(&a.stat) == time(&b.stat);
        if same_look && self.of.settled.is_some_and(|settled| a.stat.stx_ctime.tv_sec < settled) {
            return Ok(true);
        }
        match side::same_contents((a_dir, a), (b_dir, b), self.cx) {
            // What may not be read: as its attributes say.
            Err(Errno::ACCESS) => Ok(same_look),
            // What is damaged is not known to be equal, and says so to who reads it.
            Err(Errno::IO | Errno::BADMSG | Errno::UCLEAN) => Ok(false),
            Err(Errno::CANCELED) => self.cx.check_cancelled().map(|()| false),
            other => other.map_err(|errno| cannot_compare(path, errno)),
        }
    }
}

fn cannot_compare(path: &RelPath, errno: Errno) -> Error {
    match errno {
        // On the way up it was not where it had been.
        Errno::STALE => {
            Error::new(ErrorKind::Busy, format!("{path} was moved while it was compared")).with_hint("repeat")
        }
        errno => failed(format!("cannot compare {path}"), errno),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use rustix::fs::{Mode, OFlags};

    use super::*;
    use crate::look;

    fn side(dir: impl AsRef<Path>) -> Side {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Side::new(rustix::fs::open(dir.as_ref(), flags, Mode::empty()).unwrap(), |_| false)
    }

    /// What differs, and what could not be compared.
    fn compared(from: &Side, to: &Side, paths: &[&str]) -> [Vec<String>; 2] {
        let paths: Vec<RelPath> = paths.iter().map(|path| RelPath::new(*path).unwrap()).collect();
        let comparison = Comparison { from, to, touched: None, settled: None, times: false };
        let (changes, unread) = comparison.run(&paths, &Context::quiet()).unwrap();
        let changes: Vec<RelPath> = changes.into_iter().map(|change| change.path).collect();
        [changes, unread].map(|paths| paths.iter().map(ToString::to_string).collect())
    }

    /// Two directories with these files, whose contents are not the same.
    fn two(files: [&[&str]; 2]) -> tempfile::TempDir {
        let temp = tempfile::tempdir().unwrap();
        for (of, files) in ["from", "to"].iter().zip(files) {
            for file in files {
                let file = temp.path().join(of).join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, of).unwrap();
            }
        }
        temp
    }

    #[test]
    fn what_cannot_be_read_differs_and_keeps_nothing_else_from_being_compared() {
        // Nothing is mapped where this one begins: `EIO`, as of a damaged file.
        let [changes, unread] = compared(&side("/proc/self"), &side("/proc/self"), &["mem"]);
        assert_eq!((changes, unread), (vec!["mem".to_owned()], vec![]));
    }

    #[test]
    fn what_cannot_be_looked_at_on_one_side_keeps_nothing_beside_it_from_being_compared() {
        let files = ["bad", "dir/bad", "dir/other", "gone/bad", "gone/other", "other"];
        let temp = two([&files, &files[..3]]);
        let [mut from, mut to] = ["from", "to"].map(|of| side(temp.path().join(of)));
        let whole = to.look;
        to.look = |dir, name| if name == b"bad" { Err(Errno::IO) } else { look(dir, name) };
        let [changes, unread] = compared(&from, &to, &[]);
        assert_eq!(changes, ["dir/other", "gone", "gone/bad", "gone/other", "other"]);
        assert_eq!(unread, ["bad", "dir/bad"]);
        // Of what goes nothing may be unknown.
        (from.look, to.look) = (to.look, whole);
        let [changes, unread] = compared(&from, &to, &[]);
        assert_eq!((changes, unread), (strings(&["dir/other", "other"]), strings(&["bad", "dir/bad", "gone"])));
    }

    #[test]
    fn what_is_named_and_cannot_be_looked_at_keeps_nothing_else_that_is_named_from_being_compared() {
        let temp = two([&["bad", "dir/bad", "other"]; 2]);
        let [mut from, to] = ["from", "to"].map(|of| side(temp.path().join(of)));
        from.look = |dir, name| if name == b"bad" { Err(Errno::IO) } else { look(dir, name) };
        let [changes, unread] = compared(&from, &to, &["bad", "dir/bad", "other"]);
        assert_eq!((changes, unread), (strings(&["other"]), strings(&["bad", "dir/bad"])));
    }

    #[test]
    fn what_is_named_is_compared_where_its_directory_may_be_entered_and_not_listed() {
        // Deeper than a way is open.
        let deep = format!("dir/{}file", "d/".repeat(20));
        let temp = two([&["dir/file", &deep]; 2]);
        let of = |side: &str| temp.path().join(side);
        let mode = |mode| fs::set_permissions(of("to/dir"), fs::Permissions::from_mode(mode)).unwrap();
        mode(0o100);
        let [changes, unread] = compared(&side(of("from")), &side(of("to")), &["dir/file", "dir/d"]);
        mode(0o700);
        assert_eq!((changes, unread), (vec![deep, "dir/file".to_owned()], vec![]));
    }

    fn strings(paths: &[&str]) -> Vec<String> {
        paths.iter().map(|&path| path.to_owned()).collect()
    }
}
