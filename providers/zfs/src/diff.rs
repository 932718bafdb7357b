//! Differences between two snapshots, or a snapshot and the workspace, by what libzfs says was written between them.
//!
//! libzfs names what it found changed as text, in the form it has for programs. Here it only narrows down where to look: what differs,
//! and how, is found by looking at both sides (`ah_provider_directory::Comparison`), so that a line too many costs time and nothing else. What
//! its text leaves open (a file with several names, of which it tells one) is answered with `Unsupported`: then core walks.
//!
//! Libzfs's text is in its `zfs_show_diffs` (`libzfs_diff.c`): a line each, tabs between a letter and one or two paths, bytes that do not
//! print as `\` and four octal digits.

use std::collections::HashSet;
use std::ffi::CString;
use std::io::{BufRead, BufReader, Seek as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use ah_plugin_api::{
    Changes, Context, DiffMethod, DiffRequest, Dir, Error, ErrorKind, Place, Reference, RelPath, Result, Side as Asked,
};
use ah_provider_directory::{Comparison, Mounts, Side, failed, open_beneath};
use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, Statx, StatxAttributes};

use crate::failure::of_library;
use crate::find::{self, Found};
use crate::locate::{self, Mounted};
use crate::record::Record;
use crate::store::Store;
use crate::sys::{Number, Zfs};
use crate::view;

/// Answers [`ah_plugin_api::Provider::diff`].
pub(crate) fn diff(place: &Place<'_>, request: &DiffRequest, cx: &Context<'_>) -> Result<Changes> {
    let store = Store::new(place.store);
    let open = |asked: &Asked| match asked {
        Asked::Snapshot(reference) => Taken::snapshot(&store, reference),
        Asked::Workspace => Taken::workspace(place.need_workspace()?),
    };
    let (from, to) = (open(&request.from)?, open(&request.to)?);
    if from.dataset != to.dataset || from.rel != to.rel {
        return Err(unknown("the sides are of two datasets, or the workspace was moved within one"));
    }
    // What was written is the same in both directions; libzfs tells it from the older side on.
    let (older, newer) = if from.made_in <= to.made_in { (&from, &to) } else { (&to, &from) };
    let written = match &older.snapshot {
        // Snapshots are made when all else of a transaction group is on the disk.
        Some(_) if older.made_in == newer.made_in => Written::default(),
        Some(snapshot) => Written::between(older, snapshot, newer)?,
        None => return Err(unknown("both sides are the workspace")),
    };
    if written.has_several_names(&[&from.side, &to.side])? {
        return Err(unknown("a file that changed has several names"));
    }
    let touched = |path: &RelPath, _: u64| written.touches(path);
    let comparison =
        Comparison { from: &from.side, to: &to.side, touched: Some(&touched), settled: None, times: request.times };
    let changes = comparison.run(&request.paths, cx)?;
    Ok(Changes { changes, method: DiffMethod::Native, untouched: written.is_empty(), lost: Vec::new() })
}

/// What libzfs cannot tell; a walk can.
fn unknown(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("ZFS does not know all differences by itself: {why}"))
}

/// A side, and when it was taken.
struct Taken {
    side: Side,
    dataset: String,
    /// The dataset's root, as it is in this side.
    root: OwnedFd,
    /// From the dataset's root to the workspace.
    rel: RelPath,
    /// Its full name; none: the workspace.
    snapshot: Option<CString>,
    /// The transaction group that made it; the workspace is newer than all.
    made_in: u64,
}

impl Taken {
    fn snapshot(store: &Store<'_>, reference: &Reference) -> Result<Self> {
        let (found, made_in) = find::with_snapshot(store, reference, |dataset, opened, id| {
            let full = opened.name();
            let record = Record::from_properties(&opened.user_properties(), dataset, id)?;
            Ok((Found { dataset: dataset.to_owned(), full, record }, opened.number(Number::CreateTxg)))
        })?;
        let omitted = found.record.snapshot.omitted.iter().map(|omission| omission.path.clone());
        let side = Side::new(view::directory(&found)?.0, |_| false).hiding(omitted);
        let root = view::root(&found)?;
        let Found { dataset, full, record } = found;
        Ok(Self { side, dataset, root, rel: record.rel, snapshot: Some(full), made_in })
    }

    fn workspace(workspace: &Dir) -> Result<Self> {
        let located = locate::workspace(workspace)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fail = |errno| failed("cannot look at the workspace", errno);
        let top = rustix::fs::openat(workspace, c".", flags, Mode::empty()).map_err(fail)?;
        // What is in memory only, mapped files' pages say, is in no transaction group yet.
        rustix::fs::syncfs(&top).map_err(fail)?;
        let elsewhere = |stat: &Statx| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        let side = Side::new(top, elsewhere).hiding(located.omitted.into_iter().map(|omission| omission.path));
        let Mounted { dataset, root, .. } = located.mounted;
        Ok(Self { side, dataset, root, rel: located.rel, snapshot: None, made_in: u64::MAX })
    }

    /// Whether what is at a path of the dataset has that name alone; not if it is not to be found.
    fn has_no_other_name(&self, path: &RelPath) -> bool {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        open_beneath(self.root.as_fd(), path.as_bytes(), flags)
            .and_then(rustix::fs::fstat)
            .is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_dir() || found.st_nlink == 1)
    }
}

/// What was written between two sides, by paths in the workspace.
#[derive(Debug, Default)]
struct Written {
    /// Files and directories that were written.
    at: HashSet<RelPath>,
    /// All directories that something of this is in.
    above: HashSet<RelPath>,
    /// What was made, removed or renamed: all below it counts.
    whole: HashSet<RelPath>,
}

impl Written {
    /// Whether nothing was.
    fn is_empty(&self) -> bool {
        self.at.is_empty() && self.above.is_empty() && self.whole.is_empty()
    }

    fn between(older: &Taken, snapshot: &CString, newer: &Taken) -> Result<Self> {
        let dataset = older.dataset.as_str();
        let mut text = std::fs::File::from(
            rustix::fs::memfd_create("ah-zfs-diff", MemfdFlags::CLOEXEC)
                .map_err(|errno| failed("cannot get memory", errno))?,
        );
        {
            let zfs = Zfs::get()?;
            let fail = |error| of_library(format!("cannot ask what was written in {dataset}"), &error);
            let opened = find::open_dataset(&zfs, dataset).map_err(fail)?;
            let opened = opened.ok_or_else(|| unknown("the dataset was renamed"))?;
            if let Err(error) = opened.show_differences(snapshot, newer.snapshot.as_deref(), &text) {
                let error = fail(error);
                return match error.kind {
                    // Delegated by the permission `diff`; without it, and on what libzfs does not like, core walks.
                    ErrorKind::PermissionDenied | ErrorKind::FailedPrecondition | ErrorKind::Unavailable => {
                        let why = error.causes.first().map_or(String::new(), |cause| format!(": {cause}"));
                        Err(unknown(&format!("{error}{why}")))
                    }
                    _ => Err(error),
                };
            }
        }
        let fail = |error: std::io::Error| Error::from_io("cannot read what libzfs said", &error);
        text.rewind().map_err(fail)?;
        let mounts = Mounts::read();
        let is_its = |mount: &&ah_provider_directory::Mount| {
            mount.kind == "zfs" && mount.source == dataset.as_bytes() && mount.root == std::path::Path::new("/")
        };
        let points: Vec<&[u8]> = mounts.iter().filter(is_its).map(|mount| mount.point.as_os_str().as_bytes()).collect();
        let mut written = Self::default();
        for line in BufReader::new(text).split(b'\n') {
            written.add(&line.map_err(fail)?, &points, &older.rel, |path| older.has_no_other_name(path))?;
        }
        Ok(written)
    }

    /// Takes in a line of libzfs.
    ///
    /// Of several names libzfs tells one, so what had its only one outside of the workspace has to be known: by `alone`, of the older
    /// side. One that it has been given since is in a directory that was written.
    fn add(
        &mut self,
        line: &[u8],
        points: &[&[u8]],
        workspace: &RelPath,
        alone: impl Fn(&RelPath) -> bool,
    ) -> Result<()> {
        let odd = || unknown(&format!("libzfs says {:?}", String::from_utf8_lossy(line)));
        let mut fields = line.split(|&byte| byte == b'\t');
        let whole = match fields.next() {
            Some(b"M") => false,
            Some(b"+" | b"-" | b"R") => true,
            _ => return Err(odd()),
        };
        for field in fields {
            // By how much its number of names changed.
            if field.starts_with(b"(") {
                continue;
            }
            let path = plain(field).ok_or_else(odd)?;
            let below = |point: &&[u8]| path.strip_prefix(if *point == b"/" { &[][..] } else { *point });
            let in_dataset = points.iter().filter_map(below).min_by_key(|rest| rest.len());
            let Some(in_dataset) = in_dataset else { return Err(odd()) };
            let in_dataset = match in_dataset {
                [] | [b'/'] => RelPath::root(),
                [b'/', rest @ ..] => RelPath::new(rest)?,
                // What was deleted while it was open has no name any more; the directory that it was in is told too.
                b"(on_delete_queue)" => continue,
                _ => return Err(odd()),
            };
            if in_dataset.starts_with(workspace) {
                let rest = &in_dataset.as_bytes()[workspace.as_bytes().len()..];
                self.insert(RelPath::new(rest.strip_prefix(b"/").unwrap_or(rest))?, whole);
            } else if whole && workspace.starts_with(&in_dataset) {
                return Err(unknown("a directory above the workspace was renamed"));
            } else if !whole && !alone(&in_dataset) {
                let why = "was written, is outside of the workspace, and may have a name in it, too";
                return Err(unknown(&format!("{in_dataset} {why}")));
            }
        }
        Ok(())
    }

    fn insert(&mut self, path: RelPath, whole: bool) {
        let mut above = path.parent();
        while let Some(dir) = above {
            above = dir.parent();
            if !self.above.insert(dir) {
                break;
            }
        }
        if whole {
            self.whole.insert(path);
        } else {
            self.at.insert(path);
        }
    }

    /// Whether what is at `path` in both sides may differ there or below.
    fn touches(&self, path: &RelPath) -> bool {
        if self.at.contains(path) || self.above.contains(path) || self.whole.contains(path) {
            return true;
        }
        let mut above = path.parent();
        // In a directory that was written any name may be another's now.
        if above.as_ref().is_some_and(|parent| self.at.contains(parent)) {
            return true;
        }
        while let Some(dir) = above {
            if self.whole.contains(&dir) {
                return true;
            }
            above = dir.parent();
        }
        false
    }

    /// Whether something that was written has more names than the one that libzfs tells.
    fn has_several_names(&self, sides: &[&Side]) -> Result<bool> {
        for path in self.at.iter().chain(&self.whole) {
            for side in sides {
                if side.names_of_file(path)?.is_some_and(|names| names > 1) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// A path without libzfs's escapes; none if they are none.
fn plain(field: &[u8]) -> Option<Vec<u8>> {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'\\' {
            let (digits, after) = after.split_at_checked(4)?;
            let code = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|d| d.is_ascii_digit()))?;
            path.push(u8::from_str_radix(code, 8).ok()?);
            rest = after;
        } else {
            path.push(byte);
            rest = after;
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        RelPath::new(text).unwrap()
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(plain(b"/a\\0040b\\0134\\0377").unwrap(), b"/a b\\\xff");
        for bad in [b"\\".as_slice(), b"\\12", b"\\0888", b"\\+123", b"\\0777"] {
            assert_eq!(plain(bad), None, "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn what_lines_touch() {
        let mut written = Written::default();
        let points: [&[u8]; 2] = [b"/tank", b"/tank/w"];
        for line in ["M\t/tank/w/p/dir", "R\t/tank/w/p/old\t/tank/w/p/new", "M\t/tank/w/p/f\t(+1)", "+\t/tank/w/else/x"]
        {
            written.add(line.as_bytes(), &points, &path("p"), |_| false).unwrap();
        }
        for touched in ["", "dir", "dir/name", "old", "old/a/b", "new/a/b", "f"] {
            assert!(written.touches(&path(touched)), "{touched}");
        }
        for untouched in ["other", "dir/name/below", "else/x", "else"] {
            assert!(!written.touches(&path(untouched)), "{untouched}");
        }
    }

    #[test]
    fn what_has_its_only_name_elsewhere_touches_nothing() {
        let mut written = Written::default();
        written.add(b"M\t/tank/w/else/x", &[b"/tank/w"], &path("p"), |at| *at == path("else/x")).unwrap();
        assert!(written.is_empty(), "{written:?}");
    }

    #[test]
    fn what_is_not_understood_is_left_to_a_walk() {
        let points: [&[u8]; 1] = [b"/tank/w"];
        for line in [
            "",
            "?\t/tank/w/x",
            "M\t/elsewhere",
            "M\t/tank/wx",
            "M\t/tank/w/\\9",
            "R\t/tank/w/a\t/tank/w/p",
            "-\t/tank/w/p",
            "M\t/tank/w/else",
        ] {
            let alone = |at: &RelPath| *at != path("else");
            let error = Written::default().add(line.as_bytes(), &points, &path("p/q"), alone).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported, "{line}");
        }
        let mut written = Written::default();
        written.add(b"M\t/tank/w(on_delete_queue)", &points, &path(""), |_| false).unwrap();
        assert!(!written.touches(&path("")), "what has no name any more touches nothing");
    }
}
