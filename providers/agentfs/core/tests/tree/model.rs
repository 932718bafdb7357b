//! Random operations against a tree in memory, which is copied as a whole for each snapshot.

use std::collections::BTreeMap;

use ah_agentfs::{Allocate, BranchId, Class, Ino, Kind, ROOT, Rename, SetAttr, SetXattr, SnapshotId, View, Workspace};
use proptest::prelude::*;

use crate::{HOLES, ME, OnDisk, Place};

mod lower;
mod memory;

use lower::{change, plant};
use memory::{Thing, Tree};

#[derive(Debug, Clone)]
enum Op {
    Create(usize, u8),
    Mkdir(usize, u8),
    Symlink(usize, u8),
    Write(usize, u32, u32, u8),
    Cut(usize, u32),
    Punch(usize, u32, u32),
    Remove(usize),
    Rename(usize, usize, u8, u8),
    Link(usize, usize, u8),
    Mode(usize, u8),
    Xattr(usize, u8),
    Snapshot,
    Branch(usize),
    Switch(usize),
    DeleteSnapshot(usize),
    DeleteBranch(usize),
    Reclaim,
    Checkpoint,
    Copy,
    Touch,
    Replace,
    Below(u8),
    Forget,
    Reopen,
    Crash,
    PowerCut(usize, u32, u32, u8),
}

fn op() -> impl Strategy<Value = Op> {
    let (at, name, byte) = (0..1000_usize, 0..4_u8, 1..=255_u8);
    // Around blocks' and chunks' edges, where mistakes are.
    let offset =
        prop_oneof![0..20_000_u32, (0..270_u32, 0..3_u32).prop_map(|(block, d)| (block * 4096 + d).max(1) - 1)];
    let length = prop_oneof![1..100_u32, Just(4096), 1..30_000_u32];
    let (offset2, length2, byte2) = (offset.clone(), length.clone(), byte.clone());
    prop_oneof![
        4 => (at.clone(), name.clone()).prop_map(|(a, n)| Op::Create(a, n)),
        3 => (at.clone(), name.clone()).prop_map(|(a, n)| Op::Mkdir(a, n)),
        1 => (at.clone(), name.clone()).prop_map(|(a, n)| Op::Symlink(a, n)),
        10 => (at.clone(), offset.clone(), length.clone(), byte.clone()).prop_map(|(a, o, l, b)| Op::Write(a, o, l, b)),
        3 => (at.clone(), offset.clone()).prop_map(|(a, o)| Op::Cut(a, o)),
        3 => (at.clone(), offset, length).prop_map(|(a, o, l)| Op::Punch(a, o, l)),
        4 => at.clone().prop_map(Op::Remove),
        5 => (at.clone(), at.clone(), name.clone(), 0..3_u8).prop_map(|(a, b, n, h)| Op::Rename(a, b, n, h)),
        2 => (at.clone(), at.clone(), name).prop_map(|(a, b, n)| Op::Link(a, b, n)),
        1 => (at.clone(), byte.clone()).prop_map(|(a, m)| Op::Mode(a, m)),
        1 => (at.clone(), byte).prop_map(|(a, b)| Op::Xattr(a, b)),
        1 => (at.clone(), offset2, length2, byte2).prop_map(|(a, o, l, b)| Op::PowerCut(a, o, l, b)),
        4 => Just(Op::Snapshot),
        1 => at.clone().prop_map(Op::Branch),
        2 => at.clone().prop_map(Op::Switch),
        2 => at.clone().prop_map(Op::DeleteSnapshot),
        1 => at.prop_map(Op::DeleteBranch),
        1 => Just(Op::Reclaim),
        1 => Just(Op::Checkpoint),
        2 => Just(Op::Copy),
        1 => Just(Op::Touch),
        1 => Just(Op::Replace),
        2 => (0..9_u8).prop_map(Op::Below),
        1 => Just(Op::Forget),
        1 => Just(Op::Reopen),
        1 => Just(Op::Crash),
    ]
}

struct World {
    place: Place,
    workspace: Option<Workspace>,
    view: Option<View>,
    branch: BranchId,
    branches: Vec<(BranchId, Tree)>,
    snapshots: Vec<(SnapshotId, Tree)>,
    /// Whether a file below has several names, not all of which are known once one of them is written to.
    links: bool,
    /// Whether what is below is pinned.
    pins: bool,
    /// Touched below since the base was taken.
    touched: bool,
    /// The newest base. What grew from others is read from pins, where it was changed below since.
    base: SnapshotId,
}

impl World {
    fn new(place: Place, links: bool, pins: bool) -> Self {
        let lower = place.lower();
        plant(&lower, b'l');
        if links {
            std::fs::hard_link(lower.join("a/b/a"), lower.join("c")).unwrap();
        }
        let workspace = place.create();
        let base = workspace.base_with_names(b"").unwrap();
        workspace.take_fingerprints(base).unwrap();
        let branch = workspace.branch(base, b"").unwrap();
        let view = workspace.view(branch).unwrap();
        let tree = Tree::read(&view);
        let base = workspace.snapshots()[0].id;
        let snapshots = vec![(base, tree.clone())];
        let (workspace, view, branches) = (Some(workspace), Some(view), vec![(branch, tree)]);
        Self { place, workspace, view, branch, branches, snapshots, links, pins, touched: false, base }
    }

    fn workspace(&self) -> &Workspace {
        self.workspace.as_ref().unwrap()
    }

    fn view(&self) -> &View {
        self.view.as_ref().unwrap()
    }

    fn tree(&mut self) -> &mut Tree {
        let branch = self.branch;
        &mut self.branches.iter_mut().find(|(id, _)| *id == branch).unwrap().1
    }

    fn ino(&self, path: &str) -> Ino {
        crate::at(self.view(), path)
    }

    fn parent<'a>(&self, path: &'a str) -> (Ino, &'a [u8]) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.ino(parent), name.as_bytes())
    }

    fn switch(&mut self, branch: BranchId) {
        self.view = None;
        self.branch = branch;
        self.view = Some(self.workspace().view(branch).unwrap());
    }

    fn reopen(&mut self) {
        (self.view, self.workspace) = (None, None);
        self.workspace = Some(self.place.open());
        self.switch(self.branch);
    }

    fn compare_snapshots(&self) {
        for (id, tree) in &self.snapshots {
            let seen = Tree::read(&self.workspace().view_of(*id).unwrap());
            assert_eq!(seen.shape(), tree.shape(), "snapshot {id:?}");
        }
    }

    fn compare(&mut self) {
        self.compare_snapshots();
        for (id, tree) in self.branches.clone() {
            self.switch(id);
            let seen = Tree::read(self.view());
            assert_eq!(seen.shape(), tree.shape(), "branch {id:?}");
        }
        self.differences();
    }

    /// What differs is told as comparing the trees name by name tells it: of neighbours, and of everything from the first and to the last.
    fn differences(&self) {
        let workspace = self.workspace();
        let snapshots = self.snapshots.iter().map(|(id, tree)| (workspace.view_of(*id).unwrap(), tree));
        let all: Vec<_> =
            snapshots.chain(self.branches.iter().map(|(id, tree)| (workspace.look(*id).unwrap(), tree))).collect();
        for (at, (one, before)) in all.iter().enumerate() {
            for to in [0, at + 1, all.len() - 1] {
                let Some((other, after)) = all.get(to) else { continue };
                let Some(told) = one.differences(other, &|_| true).unwrap() else {
                    let of_other_bases = self.is_older(at) != self.is_older(to) || self.is_older(at);
                    assert!(self.links || of_other_bases, "nothing is told of {at} and {to}");
                    continue;
                };
                let paths: Vec<_> = told.list.iter().map(|found| &found.path).collect();
                assert!(paths.is_sorted());
                let told: BTreeMap<_, _> = told.list.iter().map(|found| (found.path.as_slice(), found)).collect();
                for path in before.names.keys().chain(after.names.keys()) {
                    let thing = |tree: &Tree| tree.names.get(path).map(|id| tree.things[id].clone());
                    let seen = |thing: &Option<Thing>| thing.as_ref().map(|thing| (thing.kind, thing.mode));
                    let (was, is) = (thing(before), thing(after));
                    let bytes = |thing: &Option<Thing>| thing.as_ref().map(|thing| (thing.kind, thing.bytes.clone()));
                    let found = told.get(path.as_bytes());
                    let attr = |attr: Option<&ah_agentfs::Attr>| attr.map(|attr| (attr.kind, attr.mode));
                    match found {
                        None => assert_eq!((seen(&was), bytes(&was)), (seen(&is), bytes(&is)), "{path}, {at} to {to}"),
                        Some(found) => {
                            let attrs = (attr(found.before.as_ref()), attr(found.after.as_ref()));
                            assert_eq!(attrs, (seen(&was), seen(&is)), "{path}, {at} to {to}");
                            assert_eq!(found.contents, bytes(&was) != bytes(&is), "{path}, {at} to {to}");
                        }
                    }
                }
                let strange = told.keys().find(|path| {
                    let path = std::str::from_utf8(path).unwrap();
                    !path.is_empty() && !before.names.contains_key(path) && !after.names.contains_key(path)
                });
                assert_eq!(strange, None, "{at} to {to}");
            }
        }
    }

    fn is_older(&self, at: usize) -> bool {
        self.snapshots.get(at).is_some_and(|(id, _)| *id < self.base)
    }

    /// Somebody changes the lower directory, and goes on from there: with a base and a branch of it as it is then. What there was before shows what it showed.
    fn below(&mut self, how: u8) {
        let lower = self.place.lower();
        if self.touched {
            // What was taken over since then is not what the fingerprints are of.
            self.workspace().copy_taken_over().unwrap();
        }
        let byte = b'A' + (self.base.0 % 50) as u8;
        change(&lower, how, byte);
        self.compare_snapshots();
        if lower.join("a").is_file() {
            std::fs::remove_file(lower.join("a")).unwrap();
        }
        plant(&lower, byte);
        self.compare_snapshots();
        self.view = None;
        for (id, _) in std::mem::take(&mut self.branches) {
            self.workspace().delete_branch(id).unwrap();
        }
        self.base = self.workspace().base_with_names(b"").unwrap();
        self.workspace().take_fingerprints(self.base).unwrap();
        self.touched = false;
        let branch = self.workspace().branch(self.base, b"").unwrap();
        self.branches = vec![(branch, Tree::default())];
        self.switch(branch);
        *self.tree() = Tree::read(self.view());
        let tree = self.tree().clone();
        self.snapshots.push((self.base, tree));
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Create(at, name) | Op::Mkdir(at, name) | Op::Symlink(at, name) => {
                let path = self.tree().place(at, name);
                let (parent, name) = self.parent(&path);
                let (kind, done) = match op {
                    Op::Create(..) => (Kind::File, self.view().create(parent, name, ME)),
                    Op::Mkdir(..) => (Kind::Directory, self.view().mkdir(parent, name, ME)),
                    _ => (Kind::Symlink, self.view().symlink(parent, name, b"target", ME)),
                };
                let bytes = if kind == Kind::Symlink { &b"target"[..] } else { b"" };
                assert_eq!(self.tree().make(path, kind, bytes), done.is_ok(), "{done:?}");
            }
            Op::Write(at, offset, length, byte) => self.file(at, |view, ino, bytes| {
                let data: Vec<u8> = (0..length).map(|nth| byte.wrapping_add(nth as u8)).collect();
                view.write(ino, u64::from(offset), &data).unwrap();
                let end = (offset + length) as usize;
                bytes.resize(bytes.len().max(end), 0);
                bytes[offset as usize..end].copy_from_slice(&data);
            }),
            Op::Cut(at, size) => self.file(at, |view, ino, bytes| {
                view.setattr(ino, SetAttr { size: Some(u64::from(size)), ..SetAttr::default() }).unwrap();
                bytes.resize(size as usize, 0);
            }),
            Op::Punch(at, offset, length) => self.file(at, |view, ino, bytes| {
                view.fallocate(ino, u64::from(offset), u64::from(length), Allocate::Punch).unwrap();
                let end = bytes.len().min((offset + length) as usize);
                if (offset as usize) < end {
                    bytes[offset as usize..end].fill(0);
                }
            }),
            Op::Remove(at) => {
                let Some(path) = self.tree().pick(at) else { return };
                let (parent, name) = self.parent(&path);
                let id = self.tree().names[&path];
                if self.tree().is_directory(id) {
                    let done = self.view().rmdir(parent, name);
                    assert_eq!(done.is_ok(), !self.tree().has_children(&path), "{done:?}");
                    if done.is_ok() {
                        self.tree().names.remove(&path);
                    }
                } else {
                    self.view().unlink(parent, name).unwrap();
                    self.tree().names.remove(&path);
                }
            }
            Op::Rename(from, to, name, how) => {
                let Some(from) = self.tree().pick(from) else { return };
                let to = self.tree().place(to, name);
                let how = [Rename::Replace, Rename::NoReplace, Rename::Exchange][usize::from(how)];
                let ((parent, name), (new_parent, new_name)) = (self.parent(&from), self.parent(&to));
                let done = self.view().rename(parent, name, new_parent, new_name, how);
                assert_eq!(self.tree().rename(&from, &to, how), done.is_ok(), "{from} {to} {how:?} {done:?}");
            }
            Op::Link(from, to, name) => {
                let Some(from) = self.tree().pick(from) else { return };
                let to = self.tree().place(to, name);
                let (ino, (parent, name)) = (self.ino(&from), self.parent(&to));
                let done = self.view().link(ino, parent, name);
                let tree = self.tree();
                let id = tree.names[&from];
                let fine = !tree.is_directory(id) && !tree.names.contains_key(&to);
                assert_eq!(done.is_ok(), fine, "{done:?}");
                if fine {
                    tree.names.insert(to, id);
                }
            }
            Op::Mode(at, mode) => {
                let Some(path) = self.tree().pick(at) else { return };
                let set = SetAttr { mode: Some(u32::from(mode)), ..SetAttr::default() };
                self.view().setattr(self.ino(&path), set).unwrap();
                let tree = self.tree();
                let id = tree.names[&path];
                tree.things.get_mut(&id).unwrap().mode = u32::from(mode);
            }
            Op::Xattr(at, byte) => {
                let Some(path) = self.tree().pick(at) else { return };
                let ino = self.ino(&path);
                let id = self.tree().names[&path];
                let thing = self.tree().things.get_mut(&id).unwrap();
                let had = thing.xattr.is_some();
                thing.xattr = (byte % 3 != 0).then_some(byte);
                let done = match thing.xattr {
                    Some(byte) => self.view().setxattr(ino, b"user.x", &[byte], SetXattr::Any),
                    None => self.view().removexattr(ino, b"user.x"),
                };
                assert_eq!(done.is_ok(), byte % 3 != 0 || had);
            }
            Op::Snapshot => {
                let id = self.workspace().snapshot(self.branch, b"", Class::Instant).unwrap();
                let tree = self.tree().clone();
                self.snapshots.push((id, tree));
            }
            Op::Branch(at) => {
                // A pen of an older base would show what is below now.
                let of_base: Vec<_> = self.snapshots.iter().filter(|(id, _)| *id >= self.base).collect();
                if let Some((id, tree)) = of_base.get(at % of_base.len().max(1)).copied().cloned()
                    && self.branches.len() < 5
                {
                    let branch = self.workspace().branch(id, b"").unwrap();
                    self.branches.push((branch, tree));
                    self.switch(branch);
                }
            }
            Op::Switch(at) => self.switch(self.branches[at % self.branches.len()].0),
            Op::DeleteSnapshot(at) => {
                if !self.snapshots.is_empty() {
                    let (id, _) = self.snapshots.remove(at % self.snapshots.len());
                    self.workspace().delete_snapshot(id).unwrap();
                }
            }
            Op::DeleteBranch(at) => {
                if self.branches.len() > 1 {
                    let (id, _) = self.branches.remove(at % self.branches.len());
                    self.view = None;
                    self.workspace().delete_branch(id).unwrap();
                    self.switch(self.branches[0].0);
                }
            }
            Op::Reclaim => self.workspace().reclaim().unwrap(),
            Op::Checkpoint => self.workspace().checkpoint().unwrap(),
            Op::Copy => self.workspace().copy_taken_over().unwrap(),
            // What was taken over is copied before, and written down, since what is below is another after that.
            Op::Touch | Op::Replace => {
                self.touched = true;
                self.workspace().copy_taken_over().unwrap();
                self.workspace().flush().unwrap();
                let lower = self.place.lower();
                if matches!(op, Op::Touch) {
                    // Of a file of several names what is left when one is removed is not copied.
                    let path = if self.links { "a/a" } else { "a/b/a" };
                    let file = std::fs::File::options().write(true).open(lower.join(path)).unwrap();
                    file.set_modified(std::time::SystemTime::now()).unwrap();
                } else {
                    std::fs::copy(lower.join("a/a"), self.place.store().join("equal")).unwrap();
                    std::fs::rename(self.place.store().join("equal"), lower.join("a/a")).unwrap();
                }
            }
            // Of one of several names that was changed here it is not known what the others show once they are changed below.
            Op::Below(how) => {
                if self.pins && !self.links {
                    self.below(how);
                }
            }
            Op::Forget => self.switch(self.branch),
            Op::Reopen => {
                self.workspace().sync().unwrap();
                self.reopen();
            }
            Op::Crash => {
                // What was not written to the log is lost: of branches some state is there, of snapshots exactly theirs.
                self.reopen();
                for nth in 0..self.branches.len() {
                    self.switch(self.branches[nth].0);
                    self.branches[nth].1 = Tree::read(self.view());
                }
                let there = self.workspace().snapshots();
                assert!(self.snapshots.iter().all(|(id, _)| there.iter().any(|found| found.id == *id)));
            }
            Op::PowerCut(at, offset, length, byte) => {
                self.view().setattr(ROOT, SetAttr { mode: Some(0o755), ..SetAttr::default() }).unwrap();
                self.workspace().sync().unwrap();
                let disk = OnDisk::now(&self.place.store());
                self.apply(&Op::Write(at, offset, length, byte));
                self.apply(&Op::Create(at, byte % 4));
                let id = self.workspace().snapshot(self.branch, b"", Class::Durable).unwrap();
                let tree = self.tree().clone();
                self.snapshots.push((id, tree));
                self.apply(&Op::Write(at + 1, offset, length, byte ^ 1));
                self.apply(&Op::Write(at, offset / 2, length, byte ^ 2));
                self.view().fsync(ROOT).unwrap();
                let kept = self.tree().clone();
                // The same place again, then what nobody has asked to be kept.
                self.apply(&Op::Write(at, offset / 2, length, byte ^ 4));
                self.apply(&Op::Mkdir(at, byte % 4));
                self.workspace().flush().unwrap();
                *self.tree() = kept;
                (self.view, self.workspace) = (None, None);
                disk.is_all(&self.place.store());
                self.reopen();
                self.compare();
            }
        }
    }

    fn file(&mut self, at: usize, change: impl FnOnce(&View, Ino, &mut Vec<u8>)) {
        let tree = self.tree();
        let files: Vec<_> = tree
            .names
            .iter()
            .filter(|(_, id)| tree.things[id].kind == Kind::File)
            .map(|(n, i)| (n.clone(), *i))
            .collect();
        let Some((path, id)) = files.get(at % files.len().max(1)).cloned() else { return };
        let mut bytes = std::mem::take(&mut tree.things.get_mut(&id).unwrap().bytes);
        change(self.view(), self.ino(&path), &mut bytes);
        self.tree().things.get_mut(&id).unwrap().bytes = bytes;
    }

    fn finish(mut self) {
        self.compare();
        self.workspace().reclaim().unwrap();
        self.compare();
        self.view = None;
        self.workspace().sync().unwrap();
        self.workspace = None;
        self.place.check();
        // With everything deleted nothing is left.
        let workspace = self.place.open();
        for (id, _) in &self.branches {
            workspace.delete_branch(*id).unwrap();
        }
        for (id, _) in &self.snapshots {
            workspace.delete_snapshot(*id).unwrap();
        }
        workspace.reclaim().unwrap();
        // XFS sets more room aside behind what is written.
        let data = if HOLES && !self.pins { self.place.data_on_disk() } else { 0 };
        assert_eq!((workspace.used(), data), (0, 0));
        drop(workspace);
        assert!(!self.place.store().join("pins").exists());
        let report = Workspace::fsck(&self.place.store(), &self.place.lower(), false).unwrap();
        assert_eq!((report.problems, report.rows), (Vec::new(), 0));
    }
}

/// A tenth of all cases, unless `AH_TEST_FULL` (`scripts/test --full`) or `PROPTEST_CASES` says otherwise.
pub(crate) fn config() -> ProptestConfig {
    let usual = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return usual;
    }
    let cases = if std::env::var_os("AH_TEST_FULL").is_some() { 240 } else { 24 };
    ProptestConfig { cases, ..usual }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_operations_do_what_they_do_to_a_tree_in_memory(ops in prop::collection::vec(op(), 1..150), links: bool) {
        let mut world = World::new(Place::new(), links, false);
        for op in &ops {
            world.apply(op);
        }
        world.finish();
    }
}

#[test]
fn any_operations_do_so_whatever_becomes_of_what_is_below() {
    crate::on_each_disk(|disk| {
        let ops = prop::collection::vec(op(), 1..150);
        let outcome = proptest::test_runner::TestRunner::new(config()).run(&ops, |ops| {
            let mut world = World::new(Place::on(&disk), false, true);
            for op in &ops {
                world.apply(op);
            }
            world.finish();
            Ok(())
        });
        outcome.unwrap();
    });
}
