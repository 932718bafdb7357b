//! Snapshots and branches: a point in time, immutable, apart from each other.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ah_agentfs::{Allocate, Class, Error, ROOT, Rename, Seek, SetAttr, SnapshotId, View};

use crate::{Place, at, branch, content, everything, make, snapshot};

#[test]
fn branches_of_branches_go_their_own_ways() {
    let place = Place::new();
    std::fs::write(place.lower().join("below"), "below").unwrap();
    let workspace = place.create();
    let mut branches = vec![branch(&workspace)];
    // Longer than what is asked line by line.
    for nth in 0..12_u8 {
        let view = workspace.view(branches[usize::from(nth)]).unwrap();
        make(&view, &format!("of{nth}"), &[nth; 5000]);
        view.write(at(&view, "below"), u64::from(nth % 5), &[b'0' + nth]).unwrap();
        let from = snapshot(&workspace, branches[usize::from(nth)]);
        make(&view, "after", b"");
        branches.push(workspace.branch(from, &[nth]).unwrap());
    }
    for (nth, &branch) in branches.iter().enumerate() {
        let view = workspace.view(branch).unwrap();
        assert_eq!(view.list(ROOT).unwrap().len(), 1 + nth + 2 * usize::from(nth < 12), "branch {nth}");
        for of in 0..nth.min(12) {
            assert_eq!(content(&view, &format!("of{of}")), [of as u8; 5000]);
        }
    }
    let names: Vec<_> = workspace.branches().into_iter().map(|branch| branch.id).collect();
    assert_eq!(names, branches);
    workspace.sync().unwrap();
    drop(workspace);
    place.check();
}

#[test]
fn a_snapshot_taken_while_others_write_is_a_point_in_time() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    // Each writer numbers its steps: the same number all over a file of 40 KB, in one call, and then in a second file.
    let files: Vec<_> = (0..3)
        .map(|nth| (make(&view, &format!("one{nth}"), &[0; 40_000]), make(&view, &format!("two{nth}"), &[0; 40_000])))
        .collect();
    let stop = AtomicBool::new(false);
    let done: Vec<_> = files.iter().map(|_| AtomicU64::new(0)).collect();
    let slowest = AtomicU64::new(0);
    // Each with the steps that were done before and after, and what was in the files at once.
    type Taken = (SnapshotId, Vec<u64>, Vec<u64>, Vec<Vec<u8>>);
    let snapshots: Vec<Taken> = std::thread::scope(|scope| {
        for (&(one, two), done) in files.iter().zip(&done) {
            let (view, stop, slowest) = (&view, &stop, &slowest);
            scope.spawn(move || {
                for step in 1..=u64::MAX {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let bytes: Vec<u8> = std::iter::repeat_n(step.to_be_bytes(), 5000).flatten().collect();
                    let begun = std::time::Instant::now();
                    view.write(one, 0, &bytes).unwrap();
                    view.write(two, 0, &bytes).unwrap();
                    slowest.fetch_max(begun.elapsed().as_micros() as u64, Ordering::SeqCst);
                    done.store(step, Ordering::SeqCst);
                }
            });
        }
        let counts = || done.iter().map(|done| done.load(Ordering::SeqCst)).collect::<Vec<_>>();
        let taken = (0..30)
            .map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                let before = counts();
                let id = snapshot(&workspace, branch);
                let after = counts();
                // What is seen at once is what will be seen for ever.
                let old = workspace.view_of(id).unwrap();
                let inodes = files.iter().flat_map(|&(one, two)| [one, two]);
                (id, before, after, inodes.map(|ino| old.read(ino, 0, 50_000).unwrap()).collect())
            })
            .collect();
        stop.store(true, Ordering::SeqCst);
        taken
    });
    for (id, before, after, at_once) in &snapshots {
        let old = workspace.view_of(*id).unwrap();
        let inodes = files.iter().flat_map(|&(one, two)| [one, two]);
        let now: Vec<_> = inodes.map(|ino| old.read(ino, 0, 50_000).unwrap()).collect();
        assert!(now == *at_once, "a snapshot changed after it was taken");
        for (nth, &(one, two)) in files.iter().enumerate() {
            assert!(old.lookup(ROOT, format!("one{nth}").as_bytes()).unwrap().ino == one);
            let step = |ino| {
                let bytes = old.read(ino, 0, 50_000).unwrap();
                assert_eq!(bytes.len(), 40_000);
                let (first, _) = bytes.split_first_chunk::<8>().unwrap();
                assert!(bytes.chunks(8).all(|chunk| chunk == first), "a write is in it in part");
                u64::from_be_bytes(*first)
            };
            let (one, two) = (step(one), step(two));
            assert!(one == two || one == two + 1, "what was written later is in it, what was written earlier is not");
            assert!(before[nth] <= two && one <= after[nth] + 1, "{before:?} {one} {two} {after:?}");
        }
    }
    for (id, _, _, _) in snapshots {
        workspace.delete_snapshot(id).unwrap();
    }
    drop(view);
    workspace.reclaim().unwrap();
    assert_eq!(workspace.used(), 6 * 40_960);
    drop(workspace);
    place.check();
}

#[test]
fn a_view_keeps_its_snapshot_from_being_deleted() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let id = snapshot(&workspace, branch);
    let old = workspace.view_of(id).unwrap();
    assert!(matches!(workspace.delete_snapshot(id), Err(Error::Busy(_))));
    let view = workspace.view(branch).unwrap();
    assert!(matches!(workspace.delete_branch(branch), Err(Error::Busy(_))));
    assert!(matches!(workspace.view(branch), Err(Error::Busy(_))), "inodes are counted in one place");
    drop((old, view));
    workspace.delete_snapshot(id).unwrap();
    assert!(matches!(workspace.delete_snapshot(id), Err(Error::NotFound)));
    workspace.delete_branch(branch).unwrap();
    assert!(matches!(workspace.view(branch), Err(Error::NotFound)));
    assert!(matches!(workspace.snapshot(branch, b"", Class::Instant), Err(Error::NotFound)));
}

#[test]
fn snapshots_keep_their_names_and_order() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    make(&view, "file", b"x");
    let ids: Vec<_> = (0..20_u8).map(|nth| workspace.snapshot(branch, &[nth], Class::Durable).unwrap()).collect();
    drop((view, workspace));
    let workspace = place.open();
    let listed = workspace.snapshots();
    assert_eq!(listed[1..].iter().map(|snapshot| snapshot.id).collect::<Vec<_>>(), ids);
    assert!(listed.windows(2).all(|pair| pair[0].time <= pair[1].time));
    assert_eq!((listed[0].label.as_slice(), listed[0].branch), (&b"base"[..], None));
    assert_eq!((listed[20].label.as_slice(), listed[20].branch), (&[19_u8][..], Some(branch)));
    for id in ids {
        assert_eq!(everything(&workspace.view_of(id).unwrap()).len(), 1);
    }
}

/// What there is of a file of three chunks and in a directory beside it, as far as all versions of its rows are walked over for that: where data
/// begins behind each chunk's beginning, and the names with their contents.
type Shown = ([Option<u64>; 3], Vec<(Vec<u8>, Vec<u8>)>);

fn shown(view: &View) -> Shown {
    let (file, directory) = (at(view, "file"), at(view, "d"));
    let data = [0, 1, 2].map(|chunk| view.seek(file, chunk << 20, Seek::Data).ok());
    let names = view.list(directory).unwrap().into_iter().map(|entry| entry.name);
    let mut names: Vec<_> =
        names.map(|name| (name.clone(), content(view, &format!("d/{}", String::from_utf8(name).unwrap())))).collect();
    names.sort();
    (data, names)
}

#[test]
fn what_has_many_versions_is_seen_as_it_was() {
    let place = Place::new();
    let workspace = place.create();
    let branch = branch(&workspace);
    let view = workspace.view(branch).unwrap();
    let file = make(&view, "file", b"");
    view.setattr(file, SetAttr { size: Some(3 << 20), ..SetAttr::default() }).unwrap();
    let directory = view.mkdir(ROOT, b"d", crate::ME).unwrap().ino;
    let (mut chunks, mut names) = ([false; 3], std::collections::BTreeMap::new());
    let mut kept: Vec<(SnapshotId, Shown)> = Vec::new();
    for round in 0..60_usize {
        // Each of them dozens of times: a chunk comes and goes, a name is put over another, removed, made anew.
        let chunk = round % 3;
        chunks[chunk] = round % 5 < 3;
        if chunks[chunk] {
            view.write(file, (chunk as u64) << 20, &[round as u8; 5]).unwrap();
        } else {
            view.fallocate(file, (chunk as u64) << 20, 1 << 20, Allocate::Punch).unwrap();
        }
        let (made, gone) = (format!("n{}", round % 4), format!("n{}", round % 7));
        make(&view, "new", &[round as u8; 9]);
        view.rename(ROOT, b"new", directory, made.as_bytes(), Rename::Replace).unwrap();
        names.insert(made.into_bytes(), vec![round as u8; 9]);
        if round % 3 == 0 && names.remove(gone.as_bytes()).is_some() {
            view.unlink(directory, gone.as_bytes()).unwrap();
        }
        // Some are in the base, some in memory.
        if round % 25 == 20 {
            workspace.checkpoint().unwrap();
        }
        let data = [0, 1, 2].map(|from| (from..3).find(|&at| chunks[at]).map(|at| (at as u64) << 20));
        let expected = (data, names.clone().into_iter().collect());
        assert_eq!(shown(&view), expected, "round {round}");
        kept.push((snapshot(&workspace, branch), expected));
    }
    for (id, expected) in &kept {
        assert_eq!(&shown(&workspace.view_of(*id).unwrap()), expected, "{id:?}");
    }
    // Those that grow from the midst see what there was then, too.
    for (id, expected) in kept.iter().step_by(13) {
        let view = workspace.view(workspace.branch(*id, b"").unwrap()).unwrap();
        assert_eq!(&shown(&view), expected, "from {id:?}");
        view.setattr(at(&view, "file"), SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        assert_eq!(shown(&view), ([None; 3], expected.1.clone()));
    }
    drop(view);
    workspace.sync().unwrap();
    drop(workspace);
    place.check();
}

#[test]
fn a_durable_snapshot_has_what_it_reads_below_on_the_disk_and_others_do_not_wait_for_that() {
    let place = Place::new();
    std::fs::write(place.lower().join("below"), "below").unwrap();
    let workspace = place.create();
    let base = workspace.base(b"base").unwrap();
    let branch = workspace.branch(base, b"branch").unwrap();
    let instant = snapshot(&workspace, branch);
    assert_eq!([base, instant].map(|id| workspace.below_is_on_disk(id)), [false, false]);
    workspace.persist().unwrap();
    assert!(!workspace.below_is_on_disk(instant));
    let durable = workspace.snapshot(branch, b"durable", Class::Durable).unwrap();
    assert_eq!([base, instant, durable].map(|id| workspace.below_is_on_disk(id)), [true; 3]);
    let later = workspace.base_with_names(b"later").unwrap();
    assert_eq!([durable, later].map(|id| workspace.below_is_on_disk(id)), [true, false]);
    workspace.sync().unwrap();
    drop(workspace);
    // That it was is known by who opens the store next.
    let workspace = place.open();
    assert_eq!([durable, later].map(|id| workspace.below_is_on_disk(id)), [true, false]);
    // Nothing is hashed before.
    workspace.take_fingerprints(later).unwrap();
    assert!(workspace.below_is_on_disk(later));
    workspace.sync().unwrap();
    drop(workspace);
    place.check();
    assert!(place.open().below_is_on_disk(later));
}
