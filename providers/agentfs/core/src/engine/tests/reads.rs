//! Rows that cannot be read in the middle of a change: it is as if that had not been begun.
//!
//! Each change is tried with its first read failing, its second, and so on, until none fails any more.

use std::collections::BTreeMap;

use super::*;
use crate::Report;
use crate::error::Result;
use crate::store::base::failing;
use crate::types::{Allocate, Attr, Ino, Kind, Time};
use crate::view::SetXattr;

const MIB: usize = 1 << 20;

/// Everything that a tree shows, by path.
type Tree = BTreeMap<Vec<u8>, (Attr, Vec<u8>, Vec<Vec<u8>>)>;
type Change = fn(&Setting) -> Result<()>;

/// A branch with files of its own and of the lower directory, all of whose rows are in the base. The host knows all but `unknown`.
struct Setting {
    place: Place,
    engine: Arc<Engine>,
    line: u32,
    snapshot: u64,
    view: View,
    inodes: BTreeMap<&'static str, Ino>,
}

impl Setting {
    /// `merged`: the snapshot is deleted, so that who writes a row removes the version before it.
    fn new(merged: bool) -> Self {
        let place = Place::new();
        let lower = place.0.path().join("lower");
        for (name, size) in [("small", 5000), ("large", 100_000), ("linked", 10), ("unseen", 5000)] {
            std::fs::write(lower.join(name), vec![7; size]).unwrap();
        }
        std::fs::hard_link(lower.join("linked"), lower.join("also linked")).unwrap();
        for directory in ["dir", "dir/empty"] {
            std::fs::create_dir(lower.join(directory)).unwrap();
        }
        std::fs::write(lower.join("dir/inner"), "inner").unwrap();
        let engine = place.open();
        let (line, view) = branch(&engine);
        for (name, size) in [("ours", MIB + 9000), ("other", 9000), ("unknown", 9000), ("loose", 9000)] {
            make(&view, name, &vec![1; size]);
        }
        for directory in ["own", "bare"] {
            view.mkdir(ROOT, directory.as_bytes(), ME).unwrap();
        }
        let ours = view.lookup(ROOT, b"ours").unwrap().ino;
        view.setxattr(ours, b"user.of", b"ours", SetXattr::Any).unwrap();
        let snapshot = engine.snapshot(line, b"").unwrap();
        view.write(ours, MIB as u64 - 5000, &[2; 10_000]).unwrap();
        let other = view.lookup(ROOT, b"other").unwrap().ino;
        view.setattr(other, SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
        let second = engine.snapshot(line, b"").unwrap();
        if merged {
            engine.delete_snapshot(second).unwrap();
            engine.reclaim().unwrap();
        }
        engine.sync().unwrap();
        engine.checkpoint().unwrap();
        drop(view);
        let view = View::new(engine.clone(), line, Held::Pen).unwrap();
        let mut setting = Self { place, engine, line, snapshot, view, inodes: BTreeMap::new() };
        setting.look_up();
        setting
    }

    fn look_up(&mut self) {
        let names = ["ours", "other", "loose", "small", "large", "linked", "dir", "own", "bare"];
        self.inodes = names.map(|name| (name, self.view.lookup(ROOT, name.as_bytes()).unwrap().ino)).into();
        for name in ["inner", "empty"] {
            self.inodes.insert(name, self.view.lookup(self.inodes["dir"], name.as_bytes()).unwrap().ino);
        }
    }

    fn ino(&self, name: &str) -> Ino {
        self.inodes[name]
    }

    fn set(&self, name: &str, set: SetAttr) -> Result<()> {
        self.view.setattr(self.ino(name), set).map(drop)
    }

    fn rename(&self, from: (&str, &str), to: (&str, &str), how: Rename) -> Result<()> {
        let directory = |name: &str| if name.is_empty() { ROOT } else { self.ino(name) };
        self.view.rename(directory(from.0), from.1.as_bytes(), directory(to.0), to.1.as_bytes(), how)
    }

    /// With `reads` that can be done before one fails. Gives whether one failed, too.
    fn fails_after(&self, reads: u32, change: Change) -> (Result<()>, bool) {
        failing::after(Some(reads));
        let result = change(self);
        let failed = failing::is_over();
        failing::after(None);
        (result, failed)
    }

    fn is_sound(&self, when: &str) {
        let mut report = Report { repaired: true, ..Report::default() };
        self.engine.examine(false, &mut report).unwrap();
        assert_eq!(report.problems, Vec::<String>::new(), "{when}");
    }
}

fn tree(view: &View) -> Tree {
    let mut found = BTreeMap::new();
    let mut directories = vec![(ROOT, Vec::new())];
    while let Some((directory, path)) = directories.pop() {
        found.insert(path.clone(), (still(&view.getattr(directory).unwrap()), Vec::new(), Vec::new()));
        for entry in view.list(directory).unwrap() {
            let attr = view.lookup(directory, &entry.name).unwrap();
            let path = [&path[..], b"/", &entry.name].concat();
            if attr.kind == Kind::Directory {
                directories.push((attr.ino, path));
                continue;
            }
            let content = view.read(attr.ino, 0, 2 * MIB).unwrap();
            let xattrs = view.listxattr(attr.ino).unwrap();
            view.forget(attr.ino, 1);
            found.insert(path, (still(&attr), content, xattrs));
        }
    }
    found
}

/// Without the time of access, which reading moves below.
fn still(attr: &Attr) -> Attr {
    Attr { atime: Time::default(), ..attr.clone() }
}

const SIZE: fn(u64) -> SetAttr = |size| SetAttr { size: Some(size), ..SetAttr::default() };
const MODE: SetAttr = SetAttr { mode: Some(0o640), size: None, uid: None, gid: None, atime: None, mtime: None };

/// Each with whether it is two changes, of which the first is the whole: attributes are read again behind a cut.
const CHANGES: [(&str, bool, Change); 35] = [
    ("write over", false, |of| of.view.write(of.ino("ours"), 4000, &[9; 300_000]).map(drop)),
    ("write at the end", false, |of| of.view.write(of.ino("ours"), MIB as u64 + 10_000, &[9; 5000]).map(drop)),
    ("write two chunks", false, |of| of.view.write(of.ino("ours"), MIB as u64 - 4096, &[9; 8192]).map(drop)),
    ("write below, small", false, |of| of.view.write(of.ino("small"), 10, &[9; 10]).map(drop)),
    ("write below, large", false, |of| of.view.write(of.ino("large"), 50_001, &[9; 10]).map(drop)),
    ("write deep below", false, |of| of.view.write(of.ino("inner"), 1, b"9").map(drop)),
    ("cut", true, |of| of.set("ours", SIZE(10_001))),
    ("cut by a chunk", true, |of| of.set("ours", SIZE(MIB as u64))),
    ("cut to nothing", true, |of| of.set("ours", SIZE(0))),
    ("cut below", true, |of| of.set("large", SIZE(70_001))),
    ("lengthen", true, |of| of.set("ours", SIZE(3 << 20))),
    ("punch", false, |of| of.view.fallocate(of.ino("ours"), 100, MIB as u64 + 5000, Allocate::Punch)),
    ("punch below", false, |of| of.view.fallocate(of.ino("large"), 100, 50_000, Allocate::Punch)),
    ("mode", false, |of| of.set("ours", MODE)),
    ("mode below", false, |of| of.set("large", MODE)),
    ("mode deep below", false, |of| of.set("inner", MODE)),
    ("set an attribute", false, |of| of.view.setxattr(of.ino("small"), b"user.new", b"9", SetXattr::Any)),
    ("remove an attribute", false, |of| of.view.removexattr(of.ino("ours"), b"user.of")),
    ("create", false, |of| of.view.create(of.ino("dir"), b"new", ME).map(drop)),
    ("make a directory", false, |of| of.view.mkdir(of.ino("own"), b"new", ME).map(drop)),
    ("link", false, |of| of.view.link(of.ino("ours"), of.ino("dir"), b"new").map(drop)),
    ("link below", false, |of| of.view.link(of.ino("large"), ROOT, b"new").map(drop)),
    ("remove", false, |of| of.view.unlink(ROOT, b"ours")),
    ("remove, not known", false, |of| of.view.unlink(ROOT, b"unknown")),
    ("remove below", false, |of| of.view.unlink(ROOT, b"small")),
    ("remove below, not known", false, |of| of.view.unlink(ROOT, b"unseen")),
    ("remove deep below", false, |of| of.view.unlink(of.ino("dir"), b"inner")),
    ("remove a name below", false, |of| of.view.unlink(ROOT, b"linked")),
    ("remove a directory", false, |of| of.view.rmdir(ROOT, b"own")),
    ("remove a directory below", false, |of| of.view.rmdir(of.ino("dir"), b"empty")),
    ("rename", false, |of| of.rename(("", "ours"), ("own", "new"), Rename::Replace)),
    ("rename over", false, |of| of.rename(("", "other"), ("", "ours"), Rename::Replace)),
    ("rename over, not known", false, |of| of.rename(("", "large"), ("", "unknown"), Rename::Replace)),
    ("rename over below", false, |of| of.rename(("", "ours"), ("dir", "inner"), Rename::Replace)),
    ("exchange", false, |of| of.rename(("", "bare"), ("dir", "inner"), Rename::Exchange)),
];

#[test]
fn a_change_in_which_a_row_cannot_be_read_is_none() {
    let mut failures = 0;
    for (what, twice, change) in CHANGES {
        for merged in [false, true] {
            let mut of = Setting::new(merged);
            let mut before = tree(&of.view);
            let mut done = Tree::new();
            for reads in 0.. {
                let when = format!("{what}, merged: {merged}, after {reads} reads");
                let (result, failed) = of.fails_after(reads, change);
                let now = tree(&of.view);
                of.is_sound(&when);
                match result {
                    Ok(()) if failed => {
                        // It did without.
                        of = Setting::new(merged);
                        before = tree(&of.view);
                        continue;
                    }
                    Ok(()) => {
                        done = now;
                        assert!(reads > 0, "{when}: nothing was read");
                        break;
                    }
                    Err(error) => assert!(failed, "{when}: {error}"),
                }
                failures += 1;
                if twice && now != before {
                    of = Setting::new(merged);
                    before = tree(&of.view);
                    continue;
                }
                assert!(now == before, "{when}");
                // Nor does anything go now that it is not open any more.
                of.inodes.values().for_each(|&ino| of.view.forget(ino, u64::MAX));
                assert!(tree(&of.view) == before, "{when}, and is forgotten");
                of.look_up();
            }
            assert!(done != before, "{what}: nothing was changed");
            // The disk has the same.
            of.engine.sync().unwrap();
            let Setting { place, engine, line, view, .. } = of;
            drop((view, engine));
            let engine = place.open();
            assert!(tree(&View::new(engine, line, Held::Pen).unwrap()) == done, "{what}, merged: {merged}");
            let report = check(&place.store(), &place.0.path().join("lower"), false).unwrap();
            assert_eq!(report.problems, Vec::<String>::new(), "{what}, merged: {merged}");
        }
    }
    assert!(failures > 500, "{failures}");
}

#[test]
fn a_copy_for_which_a_row_cannot_be_read_is_made_another_time() {
    for cut in [false, true] {
        let of = Setting::new(false);
        of.view.write(of.ino("large"), 50_001, &[9; 10]).unwrap();
        if cut {
            // Then only the snapshot needs it.
            of.engine.snapshot(of.line, b"").unwrap();
            of.set("large", SIZE(0)).unwrap();
        }
        of.engine.checkpoint().unwrap();
        let before = tree(&of.view);
        for reads in 0.. {
            let (result, failed) = of.fails_after(reads, |of| of.engine.copy_taken_over());
            of.is_sound(&format!("after {reads} reads, cut: {cut}"));
            assert!(tree(&of.view) == before, "after {reads} reads, cut: {cut}");
            assert_eq!(result.is_err(), failed, "after {reads} reads, cut: {cut}");
            if !failed {
                break;
            }
        }
        std::fs::remove_file(of.place.0.path().join("lower/large")).unwrap();
        assert!(tree(&of.view) == before, "it is copied, cut: {cut}");
    }
}

#[test]
fn what_a_deleted_branch_leaves_is_cleared_up_another_time_if_a_row_cannot_be_read() {
    let of = Setting::new(false);
    let Setting { place, engine, line, snapshot, view, .. } = of;
    drop(view);
    let child = engine.branch(snapshot, b"").unwrap();
    engine.delete_snapshot(snapshot).unwrap();
    {
        let view = View::new(engine.clone(), child, Held::Pen).unwrap();
        let ino = view.lookup(ROOT, b"ours").unwrap().ino;
        view.write(ino, 0, &[3; 9000]).unwrap();
        let ino = view.lookup(ROOT, b"large").unwrap().ino;
        view.setattr(ino, MODE).unwrap();
    }
    engine.delete_branch(child).unwrap();
    engine.checkpoint().unwrap();
    let view = View::new(engine.clone(), line, Held::Pen).unwrap();
    let before = tree(&view);
    let of = Setting { place, engine, line, snapshot, view, inodes: BTreeMap::new() };
    for reads in 0.. {
        let (result, failed) = of.fails_after(reads, |of| of.engine.reclaim());
        of.is_sound(&format!("after {reads} reads"));
        assert!(tree(&of.view) == before, "after {reads} reads");
        assert_eq!(result.is_err(), failed, "after {reads} reads");
        if !failed {
            break;
        }
    }
    let state = read_lock(&of.engine.state);
    assert!(!state.lines.contains_key(&child) && state.dead.is_empty());
    assert!(state.layers.prefix(&key::of_line(b'q', child, None)).unwrap().is_empty());
    let rows = state.layers.prefix(b"").unwrap();
    let of_child = |row: &[u8]| key::is_versioned(row) && key::split(row).unwrap().1 == child;
    assert_eq!(rows.iter().filter(|(row, _)| of_child(row)).count(), 0);
    assert_eq!(state.lines[&line].points.len(), 1, "the second snapshot alone");
}

#[test]
fn a_file_below_that_was_removed_and_is_open_stays_removed_when_it_gets_no_row() {
    let of = Setting::new(true);
    let ino = of.ino("small");
    of.view.unlink(ROOT, b"small").unwrap();
    let (before, removed) = (tree(&of.view), of.view.getattr(ino).unwrap());
    assert_eq!(removed.nlink, 0);
    let rows = || {
        let state = read_lock(&of.engine.state);
        let open = state.layers.get(&key::of_line(b'o', of.line, Some(ino))).unwrap();
        (open.is_some(), state.layers.prefix(&key::inode(ino)).unwrap().len())
    };
    for reads in 0.. {
        let (result, failed) = of.fails_after(reads, |of| of.set("small", MODE));
        if !failed {
            result.unwrap();
            break;
        }
        result.unwrap_err();
        assert_eq!((of.view.getattr(ino).unwrap(), rows()), (removed.clone(), (false, 0)), "after {reads} reads");
    }
    assert_eq!((of.view.getattr(ino).unwrap().nlink, rows()), (0, (true, 1)));
    of.view.forget(ino, u64::MAX);
    assert_eq!(rows(), (false, 0));
    assert!(tree(&of.view) == before);
    of.is_sound("at last");
}

#[test]
fn a_removed_file_whose_rows_cannot_be_read_when_it_is_closed_goes_with_the_next_sync() {
    let used = |of: &Setting| read_lock(&of.engine.state).used_blocks();
    let mut failures = 0;
    for reads in 0.. {
        let of = Setting::new(true);
        let ino = of.ino("loose");
        of.engine.delete_snapshot(of.snapshot).unwrap();
        of.engine.reclaim().unwrap();
        of.view.unlink(ROOT, b"loose").unwrap();
        of.engine.sync().unwrap();
        of.engine.checkpoint().unwrap();
        let before = used(&of);
        let (_, failed) = of.fails_after(reads, |of| {
            of.view.forget(of.ino("loose"), u64::MAX);
            Ok(())
        });
        of.is_sound(&format!("after {reads} reads"));
        of.engine.sync().unwrap();
        assert_eq!(used(&of), before - 3, "after {reads} reads");
        assert!(read_lock(&of.engine.state).layers.get(&key::of_line(b'o', of.line, Some(ino))).unwrap().is_none());
        failures += u32::from(failed);
        if !failed {
            break;
        }
    }
    assert!(failures > 0);
}
