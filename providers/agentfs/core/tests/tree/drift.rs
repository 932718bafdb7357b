//! What a snapshot has shown once it never shows as something else, whatever is done below and in branches, in any order; nor does a branch by what is done below, where that is pinned.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ah_agentfs::{BranchId, Error, Kind, ROOT, Rename, SetAttr, SnapshotId, View, Workspace};
use proptest::prelude::*;

use crate::{ME, Place, at, content, on_each_disk, snapshot};

/// Paths that there are at the beginning, and that are made and moved later.
const PATHS: [&str; 9] = ["a", "b", "d/a", "d/b", "d/e/a", "d", "d/e", "f", "f/a"];

#[derive(Debug, Clone)]
enum Op {
    /// Below: write to, replace, remove, move, link, point, make a directory, touch.
    Below(u8, usize, usize),
    /// In the branch: write to, remove, move, link, set the mode.
    Here(u8, usize, usize),
    Snapshot,
    Base,
    Copy,
}

fn op() -> impl Strategy<Value = Op> {
    let path = || 0..PATHS.len();
    prop_oneof![
        6 => (0..9_u8, path(), path()).prop_map(|(how, one, other)| Op::Below(how, one, other)),
        4 => (0..6_u8, path(), path()).prop_map(|(how, one, other)| Op::Here(how, one, other)),
        2 => Just(Op::Snapshot),
        1 => Just(Op::Base),
        1 => Just(Op::Copy),
    ]
}

/// What is shown at a path; `None`: it is lost.
type Shown = BTreeMap<PathBuf, Option<Vec<u8>>>;

fn shown(view: &View) -> Shown {
    let mut all = Shown::new();
    let mut waiting = vec![(ROOT, PathBuf::new())];
    while let Some((directory, path)) = waiting.pop() {
        let entries = match view.list(directory) {
            Ok(entries) => entries,
            Err(Error::DataLoss { .. }) => {
                all.insert(path, None);
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        for entry in entries {
            let path = path.join(std::str::from_utf8(&entry.name).unwrap());
            let found = view.lookup(directory, &entry.name).and_then(|attr| match attr.kind {
                Kind::Directory => {
                    waiting.push((attr.ino, path.clone()));
                    Ok(b"directory".to_vec())
                }
                Kind::Symlink => view.readlink(attr.ino),
                _ => view.read(attr.ino, 0, 1 << 20),
            });
            match found {
                Ok(bytes) => drop(all.insert(path, Some(bytes))),
                Err(Error::DataLoss { .. }) => drop(all.insert(path, None)),
                Err(error) => panic!("{path:?}: {error}"),
            }
        }
    }
    all
}

/// To be compared, and read by people.
fn text(shown: &Shown) -> BTreeMap<&Path, Option<String>> {
    shown
        .iter()
        .map(|(path, bytes)| (path.as_path(), bytes.as_deref().map(|it| String::from_utf8_lossy(it).into())))
        .collect()
}

fn below(lower: &Path, how: u8, one: &str, other: &str, nth: usize) {
    let (one, other) = (lower.join(one), lower.join(other));
    // What cannot be done is not done.
    let _ = match how {
        0 => std::fs::write(&one, format!("below {nth}")),
        1 => std::fs::write(lower.join("new"), format!("new {nth}"))
            .and_then(|()| std::fs::rename(lower.join("new"), &one)),
        2 => std::fs::remove_file(&one).or_else(|_| std::fs::remove_dir_all(&one)),
        3 | 4 => std::fs::rename(&one, &other),
        5 => std::fs::hard_link(&one, &other),
        6 => std::fs::remove_file(&one).and_then(|()| std::os::unix::fs::symlink(nth.to_string(), &one)),
        7 => std::fs::create_dir(&one),
        _ => std::fs::File::open(&one).and_then(|file| file.set_modified(std::time::SystemTime::now())),
    };
}

fn here(view: &View, how: u8, one: &str, other: &str, nth: usize) {
    let place = |path: &str| {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut directory = ROOT;
        for part in above.split('/').filter(|part| !part.is_empty()) {
            directory = view.lookup(directory, part.as_bytes()).ok()?.ino;
        }
        Some((directory, name.as_bytes().to_vec()))
    };
    let (Some((above, name)), Some((to, new))) = (place(one), place(other)) else { return };
    let found = view.lookup(above, &name);
    let _ = match (how, found) {
        (0 | 1, Ok(attr)) => view.write(attr.ino, 0, format!("here {nth}").as_bytes()).map(drop),
        (0 | 1, Err(_)) => view.create(above, &name, ME).map(drop),
        (2, _) => view.unlink(above, &name).or_else(|_| view.rmdir(above, &name)),
        (3, _) => view.rename(above, &name, to, &new, Rename::Replace),
        (4, Ok(attr)) => view.link(attr.ino, to, &new).map(drop),
        (5, Ok(attr)) => view.setattr(attr.ino, SetAttr { mode: Some(0o700), ..SetAttr::default() }).map(drop),
        _ => Ok(()),
    };
}

struct Seen {
    id: SnapshotId,
    /// Whether all its names are known: a branch may have taken a directory over that came later, of which they are not.
    names: bool,
    known: View,
    first: Shown,
}

fn look(workspace: &Workspace, seen: &mut [Seen], op: &Op) {
    for Seen { id, names, known, first } in seen {
        for view in [&*known, &workspace.view_of(*id).unwrap()] {
            let now = shown(view);
            for (path, bytes) in &now {
                let was = first.get(path);
                // What is in a directory that was lost may be there again.
                let above = path.ancestors().skip(1).any(|above| matches!(first.get(above), Some(None)));
                assert!(was.is_some() || above || !*names, "{id:?}: {path:?} came by {op:?}");
                if let (Some(Some(was)), Some(bytes)) = (was, bytes) {
                    assert_eq!(
                        String::from_utf8_lossy(was),
                        String::from_utf8_lossy(bytes),
                        "{id:?}: {path:?} by {op:?}"
                    );
                }
            }
            for path in first.keys() {
                let above = path.ancestors().skip(1).any(|above| matches!(now.get(above), Some(None)));
                assert!(now.contains_key(path) || above || !*names, "{id:?}: {path:?} went by {op:?}");
            }
            for (path, bytes) in now {
                let was = first.entry(path).or_default();
                if was.is_none() {
                    *was = bytes;
                }
            }
        }
    }
}

/// How much is known of what is below.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Knows {
    Nothing,
    Names,
    Fingerprints,
}

/// `pinned`: all that is below is pinned, and so what the branch shows is not changed by what is done there.
fn run(place: &Place, knows: Knows, pinned: bool, ops: &[Op]) {
    let lower = place.lower();
    std::fs::create_dir_all(lower.join("d/e")).unwrap();
    for name in &PATHS[..5] {
        std::fs::write(lower.join(name), format!("then {name}")).unwrap();
    }
    std::fs::hard_link(lower.join("a"), lower.join("d/l")).unwrap();
    std::os::unix::fs::symlink("then", lower.join("s")).unwrap();
    let workspace = place.create();
    let begin = || -> (SnapshotId, BranchId) {
        let base = match knows {
            Knows::Nothing => workspace.base(b"").unwrap(),
            Knows::Names | Knows::Fingerprints => workspace.base_with_names(b"").unwrap(),
        };
        if knows == Knows::Fingerprints {
            workspace.take_fingerprints(base).unwrap();
        }
        (base, workspace.branch(base, b"").unwrap())
    };
    let watch = |id, is_base| {
        let known = workspace.view_of(id).unwrap();
        let first = shown(&known);
        Seen { id, names: is_base && knows != Knows::Nothing, known, first }
    };
    let (base, mut branch) = begin();
    let mut seen = vec![watch(base, true)];
    let mut view = workspace.view(branch).unwrap();
    for (nth, op) in ops.iter().enumerate() {
        match *op {
            Op::Below(how, one, other) => {
                let before = pinned.then(|| shown(&view));
                below(&lower, how, PATHS[one], PATHS[other], nth);
                if let Some(before) = before {
                    assert_eq!(text(&before), text(&shown(&view)), "by {op:?}");
                    let look = workspace.look(branch).unwrap();
                    assert_eq!(text(&before), text(&shown(&look)), "to who looks anew, by {op:?}");
                    assert_eq!(workspace.changed_below(branch).unwrap(), Vec::<Vec<u8>>::new(), "by {op:?}");
                }
            }
            Op::Here(how, one, other) => here(&view, how, PATHS[one], PATHS[other], nth),
            Op::Snapshot => {
                let id = snapshot(&workspace, branch);
                seen.push(watch(id, false));
                if pinned {
                    assert_eq!(
                        text(&shown(&view)),
                        text(&shown(&workspace.view_of(id).unwrap())),
                        "the snapshot is the branch"
                    );
                }
            }
            Op::Base => {
                let (base, new) = begin();
                seen.push(watch(base, true));
                (branch, view) = (new, workspace.view(new).unwrap());
            }
            Op::Copy => workspace.copy_taken_over().unwrap(),
        }
        look(&workspace, &mut seen, op);
    }
    drop((view, seen));
    drop(workspace);
    place.check();
}

fn run_any(knows: Knows, pinned: bool, place: impl Fn() -> Place) {
    let ops = prop::collection::vec(op(), 1..40);
    let outcome = proptest::test_runner::TestRunner::new(crate::model::config()).run(&ops, |ops| {
        run(&place(), knows, pinned, &ops);
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn what_was_shown_once_is_never_shown_as_something_else() {
    for knows in [Knows::Fingerprints, Knows::Names, Knows::Nothing] {
        run_any(knows, false, Place::new);
    }
}

#[test]
fn what_is_pinned_is_never_shown_as_something_else() {
    on_each_disk(|disk| {
        run_any(Knows::Fingerprints, true, || Place::on(&disk));
    });
}

#[test]
fn a_name_that_came_below_goes_without_what_the_branch_wrote() {
    let link = [Op::Here(0, 2, 0), Op::Below(2, 1, 0), Op::Below(5, 2, 1)];
    // Removed, and replaced.
    for gone in [Op::Here(2, 1, 0), Op::Here(3, 0, 1)] {
        for knows in [Knows::Fingerprints, Knows::Names, Knows::Nothing] {
            let place = Place::new();
            run(&place, knows, false, &[&link[..], &[gone.clone(), Op::Snapshot]].concat());
            let workspace = place.open();
            let view = workspace.view(workspace.branches()[0].id).unwrap();
            assert_eq!(crate::content(&view, "d/a"), b"here 0/a", "{knows:?}");
        }
    }
}

#[test]
fn what_was_written_by_one_name_is_at_the_other_when_the_first_goes_below() {
    for (gone_here, how) in [(false, "removed"), (false, "replaced"), (true, "removed"), (true, "replaced")] {
        let place = Place::new();
        let lower = place.lower();
        std::fs::write(lower.join("a"), "below").unwrap();
        std::fs::hard_link(lower.join("a"), lower.join("b")).unwrap();
        std::fs::write(lower.join("alone"), "below").unwrap();
        let workspace = place.create();
        let branch = workspace.branch(workspace.base_with_names(b"").unwrap(), b"").unwrap();
        let view = workspace.view(branch).unwrap();
        for name in ["a", "alone"] {
            view.write(at(&view, name), 0, b"mine!").unwrap();
        }
        if gone_here {
            view.unlink(ROOT, b"a").unwrap();
        }
        match how {
            "removed" => std::fs::remove_file(lower.join("a")).unwrap(),
            _ => std::fs::write(lower.join("new"), "other")
                .and_then(|()| std::fs::rename(lower.join("new"), lower.join("a")))
                .unwrap(),
        }
        assert_eq!(content(&view, "b"), b"mine!", "{gone_here}, {how}");
        assert_eq!(view.getattr(at(&view, "b")).unwrap().nlink, if gone_here { 1 } else { 2 });
        // One that had no other name is where it was, and another where it was moved to.
        std::fs::rename(lower.join("alone"), lower.join("moved")).unwrap();
        assert_eq!((content(&view, "alone"), content(&view, "moved")), (b"mine!".to_vec(), b"below".to_vec()));
        let old = workspace.view_of(snapshot(&workspace, branch)).unwrap();
        drop(view);
        let view = workspace.view(branch).unwrap();
        assert_eq!(content(&view, "b"), b"mine!", "{gone_here}, {how}");
        let then = old.lookup(ROOT, b"b").and_then(|attr| old.read(attr.ino, 0, 10));
        assert!(
            matches!(&then, Err(Error::DataLoss { .. })) || then.as_ref().is_ok_and(|it| it == b"mine!"),
            "{then:?}"
        );
        view.unlink(ROOT, b"b").unwrap();
        assert!(matches!(view.lookup(ROOT, b"b"), Err(Error::NotFound)));
        if !gone_here {
            assert_eq!(content(&view, "a"), b"mine!");
        }
        drop((view, old, workspace));
        place.check();
    }
}
