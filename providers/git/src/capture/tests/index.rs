//! The private index: it costs or saves time, and changes no result.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use ah_plugin_api::{Context, Dir, ErrorKind, OmitReason, SnapshotId, SnapshotRequest};

use gix::ObjectId;

use super::{Bench, reasons};
use crate::capture::snapshot;
use crate::index::{ITEM_IGNORED, ITEM_RECHECK, ITEM_TRACKED, Index, ItemRecord, NewDir, Patch, What};
use crate::store::Store;

#[test]
fn a_damaged_index_costs_time_and_nothing_else() {
    let bench = Bench::new();
    for at in 0..50 {
        bench.write(&format!("d{}/f{at}", at % 4), &format!("content {at}"));
    }
    bench.take_and_compare();
    bench.settle();
    let index = bench.dir.path().join("store/index");
    let whole = fs::read(&index).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        fs::write(&index, &damaged).unwrap();
        bench.take_and_compare();
        fs::write(&index, &whole[..at]).unwrap();
        bench.take_and_compare();
    }
    fs::remove_file(&index).unwrap();
    bench.take_and_compare();
}

#[test]
fn what_a_destroyed_snapshot_held_is_read_again() {
    let bench = Bench::new();
    bench.write("f", "held by the first only");
    bench.write("d/g", "too");
    bench.settle();
    let first = bench.take_and_compare();
    let guard = bench.store.lock(&Context::quiet()).unwrap();
    assert!(bench.store.remove_snapshot(&guard, &first.id).unwrap());
    drop(guard);
    bench.store.reclaim(false, &Context::quiet()).unwrap();
    bench.take_and_compare();
}

#[test]
fn the_limit_of_entries() {
    let mut bench = Bench::new();
    for at in 0..10 {
        bench.write(&format!("f{at}"), "x");
    }
    bench.policy.max_entries = 10;
    bench.take_and_compare();
    bench.write("one-more", "x");
    let refused = snapshot(&bench.store, &bench.workspace(), &bench.request(), &Context::quiet()).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::FailedPrecondition);
    let request = SnapshotRequest { id: SnapshotId::new("s1").unwrap(), ..bench.request() };
    let taken = snapshot(&bench.store, &bench.workspace(), &request, &Context::quiet()).unwrap_err();
    assert_eq!(taken.kind, ErrorKind::AlreadyExists);
}

#[test]
fn a_clock_that_went_back() {
    let bench = Bench::new();
    bench.write("d/f", "one");
    bench.settle();
    bench.take();
    // As if that scan had taken place tomorrow.
    let path = bench.dir.path().join("store");
    let fd = fs::File::open(&path).unwrap();
    let mut index = crate::index::Index::load(fd.as_fd()).unwrap();
    let mut header = index.header().clone();
    header.started.secs += 86_400;
    crate::index::Patch::default().write(fd.as_fd(), &mut index, &header).unwrap();
    let time = fs::metadata(bench.path("d/f")).unwrap().modified().unwrap();
    bench.write("d/f", "two");
    fs::File::open(bench.path("d/f")).unwrap().set_modified(time).unwrap();
    bench.take_and_compare();
    bench.write("d/g", "new");
    bench.take_and_compare();
}

impl Bench {
    /// Makes the private index say something else: `header` changes its header, `item` what it says of each item of the directory `dir`.
    fn rewrite_index(
        &self,
        dir: &[u8],
        header: impl FnOnce(&mut crate::index::Header),
        item: impl Fn(&mut ItemRecord<'_>),
    ) {
        let fd = fs::File::open(self.dir.path().join("store")).unwrap();
        let (mut index, copy) = (Index::load(fd.as_fd()).unwrap(), Index::load(fd.as_fd()).unwrap());
        let at = (0..copy.len()).find(|&at| copy.path(at) == dir).unwrap();
        let (record, mut patch) = (copy.dir(at), Patch::default());
        let new = NewDir {
            path: copy.path(at),
            rule: copy.rule(at),
            parent: record.parent as usize,
            flags: record.flags,
            entries: u64::from(record.entries),
            stat: record.stat,
            tree: record.tree,
            meta: record.meta,
            meta_is_tree: record.meta_is_tree(),
        };
        let items: Vec<ItemRecord<'_>> = copy
            .items(at)
            .map(|mut record| {
                item(&mut record);
                record
            })
            .collect();
        assert!(patch.dir(&copy, at, &new, Some(items.into_iter())));
        let mut changed = copy.header().clone();
        header(&mut changed);
        patch.write(fd.as_fd(), &mut index, &changed).unwrap();
    }

    fn index_item(&self, dir: &[u8], name: &[u8]) -> (What, u8, ObjectId) {
        let fd = fs::File::open(self.dir.path().join("store")).unwrap();
        let index = Index::load(fd.as_fd()).unwrap();
        let at = (0..index.len()).find(|&at| index.path(at) == dir).unwrap();
        let item = index.items(at).find(|item| item.name == name).unwrap();
        (item.what, item.flags, item.id)
    }
}

/// What the disk has after a power cut: the times of a change, and contents from before it.
#[test]
fn what_changed_shortly_before_the_machine_stopped_is_read_again() {
    let bench = Bench::new();
    bench.git(&["init", "-q"]);
    bench.write("f", "what the disk has");
    bench.write("other", "what was in memory");
    bench.git(&["add", "f"]);
    bench.settle();
    let first = bench.take_and_compare();
    let index_of = |taken| bench.entry(&bench.top(taken), b"index").unwrap().1;
    let (right, wrong) = (index_of(&first), bench.index_item(b"", b"other").2);
    // So that the root is listed anew.
    bench.write("new", "x");
    bench.rewrite_index(
        b"",
        |header| {
            assert_ne!(header.boot, 0);
            header.boot ^= 1;
            header.user_index_blob = wrong;
        },
        |item| {
            if item.name == b"f" {
                item.id = wrong;
            }
        },
    );
    let second = bench.take_and_compare();
    assert_eq!(index_of(&second), right);
}

#[test]
fn what_could_not_be_read_once_is_tried_again() {
    let bench = Bench::new();
    bench.write("f", "x");
    symlink("f", bench.path("link")).unwrap();
    bench.settle();
    bench.take();
    let unread = |item: &mut ItemRecord<'_>| {
        (item.what, item.flags) = (What::Omitted(OmitReason::Unreadable), ITEM_RECHECK);
        item.id = crate::scan::null();
    };
    bench.rewrite_index(b"", |_| {}, unread);
    assert_eq!(reasons(&bench.take_and_compare()), []);
}

#[test]
fn the_index_of_a_nested_repository_that_changed_just_then_is_asked_again() {
    let bench = Bench::new();
    bench.git(&["init", "-q"]);
    bench.git(&["init", "-q", "n"]);
    bench.write("n/.gitignore", "*.log\n");
    bench.write("n/h.log", "x");
    bench.settle();
    let before = ah_plugin_api::Timestamp::now();
    bench.settle();
    bench.git(&["-C", "n", "add", "-f", "h.log"]);
    bench.take();
    let tracked = bench.index_item(b"n", b"h.log").1;
    assert_eq!(tracked, ITEM_TRACKED);
    // As if the scan had been between two changes of the index that look the same.
    bench.rewrite_index(
        b"n",
        |header| header.started = before,
        |item| {
            if item.name == b"h.log" {
                item.flags = ITEM_IGNORED;
            }
        },
    );
    bench.take();
    assert_eq!(bench.index_item(b"n", b"h.log").1, ITEM_TRACKED);
}

/// A change to the workspace.
#[derive(Debug, Clone)]
enum Op {
    Write(&'static str, u8),
    Remove(&'static str),
    Rename(&'static str, &'static str),
    MakeDir(&'static str),
    Link(&'static str),
    Chmod(&'static str, u32),
    Touch(&'static str),
    Ignore(&'static str, &'static str),
    Track(&'static str),
    Repository(&'static str),
    Settle,
}

fn op() -> impl proptest::strategy::Strategy<Value = Op> {
    use proptest::prelude::{Just, Strategy, any, prop_oneof};
    use proptest::sample::select;
    const PATHS: &[&str] =
        &["a", "a/b", "a/b/c", "a/d", "e", "e/f", "e/f/g", "e/b", "h.log", "a/h.log", "e/f/h.log", "build", "build/x"];
    const RULES: &[&str] = &["*.log\n", "build/\n", "e/\n!e/f\n", "/a/b\n", "\n", "b\n"];
    let path = || select(PATHS);
    prop_oneof![
        4 => (path(), any::<u8>()).prop_map(|(path, byte)| Op::Write(path, byte)),
        2 => path().prop_map(Op::Remove),
        2 => (path(), path()).prop_map(|(from, to)| Op::Rename(from, to)),
        2 => path().prop_map(Op::MakeDir),
        1 => path().prop_map(Op::Link),
        1 => (path(), select(&[0o600, 0o755, 0o711][..])).prop_map(|(path, mode)| Op::Chmod(path, mode)),
        1 => path().prop_map(Op::Touch),
        2 => (select(&["", "a/", "e/f/"][..]), select(RULES)).prop_map(|(dir, rules)| Op::Ignore(dir, rules)),
        1 => path().prop_map(Op::Track),
        1 => select(&["a", "e/f"][..]).prop_map(Op::Repository),
        1 => Just(Op::Settle),
    ]
}

impl Bench {
    /// Does what can be done of it.
    fn apply(&self, op: &Op) {
        let _ = match op {
            Op::Write(path, byte) => {
                let _ = fs::create_dir_all(self.path(path).parent().unwrap());
                fs::write(self.path(path), vec![*byte; usize::from(*byte % 40)])
            }
            Op::Remove(path) => fs::remove_file(self.path(path)).or_else(|_| fs::remove_dir_all(self.path(path))),
            Op::Rename(from, to) => fs::rename(self.path(from), self.path(to)),
            Op::MakeDir(path) => fs::create_dir_all(self.path(path)),
            Op::Link(path) => symlink("some/where", self.path(path)),
            Op::Chmod(path, mode) => fs::set_permissions(self.path(path), fs::Permissions::from_mode(*mode)),
            Op::Touch(path) => {
                fs::File::open(self.path(path)).and_then(|file| file.set_modified(std::time::UNIX_EPOCH))
            }
            Op::Ignore(dir, rules) => fs::write(self.path(dir).join(".gitignore"), rules),
            Op::Track(path) => {
                if self.path(path).is_file() {
                    let _ = Command::new("git")
                        .args(["add", "-f", path])
                        .current_dir(self.path(""))
                        .stderr(std::process::Stdio::null())
                        .status();
                }
                Ok(())
            }
            Op::Repository(path) => {
                if self.path(path).is_dir() {
                    self.git(&["init", "-q", path]);
                }
                Ok(())
            }
            Op::Settle => {
                self.settle();
                Ok(())
            }
        };
    }
}

/// So many cases, unless `PROPTEST_CASES` says otherwise.
fn config(cases: u32) -> proptest::prelude::ProptestConfig {
    let usual = proptest::prelude::ProptestConfig { max_shrink_iters: 200, ..Default::default() };
    if std::env::var_os("PROPTEST_CASES").is_some() {
        usual
    } else {
        proptest::prelude::ProptestConfig { cases, ..usual }
    }
}

proptest::proptest! {
    #![proptest_config(config(24))]

    /// A scan by the index comes to the same as one that knows nothing.
    #[test]
    fn what_the_index_knows_changes_no_result(steps in proptest::collection::vec(proptest::collection::vec(op(), 0..5), 1..8), caps in proptest::prelude::any::<bool>()) {
        let mut bench = Bench::new();
        if caps {
            bench.policy.max_file_size = 30;
            bench.policy.max_ignored_size = 10;
            bench.policy.include = vec!["/e/f/".into()];
        }
        bench.git(&["init", "-q"]);
        for step in steps {
            step.iter().for_each(|op| bench.apply(op));
            let (live, taken) = (bench.live(), bench.take());
            let store = tempfile::tempdir().unwrap();
            let fresh = Store::open(&Dir::open(store.path()).unwrap()).unwrap();
            let scratch = snapshot(&fresh, &bench.workspace(), &bench.request(), &Context::quiet()).unwrap();
            proptest::prop_assert_eq!(&taken.omitted, &scratch.omitted);
            proptest::prop_assert_eq!(&taken.tree, &scratch.tree);
            proptest::prop_assert_eq!(taken.entries, scratch.entries);
            proptest::prop_assert_eq!(Some(crate::capture::tree_id(&live.tree, &live.meta)), taken.tree.clone());
            // Everything can be read back.
            let _ = bench.listing(&taken);
        }
    }
}
