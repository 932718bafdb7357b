//! Snapshots, looking into them, views and differences, through the contract.

#![allow(clippy::unwrap_used)]

mod common;

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use ah_plugin_api::{
    Context, DestroyRequest, EntryKind, ErrorKind, ListRequest, LookupRequest, Provider, ReadDirRequest, ReadRequest,
    ReclaimRequest, RelPath, Side, SnapshotRef, UnmountRequest,
};
use common::{Bench, listing, side};

fn fill(bench: &Bench) {
    bench.write("a.txt", "alpha");
    bench.write("dir/b.txt", "beta");
    bench.write("dir/deep/er/c", "gamma");
    bench.write("dir-x", "sorts between dir and dir/");
    bench.write("empty file", "");
    std::fs::create_dir_all(bench.work("empty/dir")).unwrap();
    symlink("dir/b.txt", bench.work("link")).unwrap();
    symlink("/nowhere/at all", bench.work("dangling")).unwrap();
    bench.write("run.sh", "#!/bin/sh\n");
    let set = |path: &str, mode: u32| {
        std::fs::set_permissions(bench.work(path), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set("run.sh", 0o750);
    set("a.txt", 0o604);
    set("dir/deep", 0o711);
    let odd = bench.workspace.path().join(std::ffi::OsStr::from_bytes(b"odd \xff\n name"));
    std::fs::write(&odd, "bytes").unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    std::fs::File::open(bench.work("dir/b.txt")).unwrap().set_modified(old).unwrap();
    std::fs::File::open(bench.work("empty/dir")).unwrap().set_modified(old).unwrap();
}

#[test]
fn a_view_is_the_captured_tree_and_cannot_be_written_to() {
    let bench = Bench::new();
    fill(&bench);
    let before = listing(bench.workspace.path());
    let snapshot = bench.snapshot();
    assert_eq!(snapshot.entries, Some(before.len() as u64 - 1));
    std::fs::remove_dir_all(bench.work("dir")).unwrap();
    bench.write("a.txt", "changed");

    let view = bench.mount(&snapshot, "v");
    assert_eq!(view.path, bench.target.path().join("v"));
    if view.read_only_mount {
        assert_eq!(listing(&view.path), before);
        let error = std::fs::write(view.path.join("a.txt"), "x").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert!(std::fs::write(view.path.join("dir/new"), "x").is_err());
        assert!(std::fs::remove_file(view.path.join("a.txt")).is_err());
        let mounts = ah_test_disks::mounts();
        let line = mounts.lines().find(|line| line.contains(view.path.to_str().unwrap())).unwrap();
        let options = line.split(' ').nth(5).unwrap();
        assert!(["ro", "nosuid", "nodev"].iter().all(|option| options.split(',').any(|o| o == *option)), "{line}");
    }
    let again = bench.try_mount(&snapshot, "v", &[]).err().unwrap();
    assert_eq!(again.kind, ErrorKind::AlreadyExists);

    bench.unmount(&view).unwrap();
    assert!(!view.path.exists());
    bench.unmount(&view).unwrap();
    assert_eq!(std::fs::read_dir(bench.target.path()).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(bench.store.path().join("views")).unwrap().count(), 0);
}

#[test]
fn a_view_of_some_paths_has_nothing_else() {
    let bench = Bench::new();
    fill(&bench);
    let before = listing(bench.workspace.path());
    let snapshot = bench.snapshot();
    let view = bench.try_mount(&snapshot, "v", &["dir/deep", "a.txt"]).unwrap();
    let seen = listing(&view.path);
    let names: Vec<_> = seen.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    assert_eq!(names, ["", "a.txt", "dir", "dir/deep", "dir/deep/er", "dir/deep/er/c"]);
    if view.read_only_mount {
        assert!(seen.iter().all(|(name, line)| before[name] == *line));
    }
    let error = bench.try_mount(&snapshot, "w", &["a.txt", "no/such"]).err().unwrap();
    assert_eq!(error.kind, ErrorKind::NotFound);
    assert!(!bench.target.path().join("w").exists());
}

#[test]
fn a_view_in_use_is_busy_and_its_user_named() {
    let bench = Bench::new();
    bench.write("d/f", "x");
    let view = bench.mount(&bench.snapshot(), "v");
    let mut child = std::process::Command::new("sleep").arg("60").current_dir(view.path.join("d")).spawn().unwrap();
    let error = bench.unmount(&view).err();
    child.kill().unwrap();
    child.wait().unwrap();
    let error = error.unwrap();
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(error.message.contains(&child.id().to_string()), "{error:?}");
    assert!(view.path.join("d/f").exists());
    bench.unmount(&view).unwrap();
}

#[test]
fn unmount_takes_nothing_that_is_not_ours() {
    let bench = Bench::new();
    bench.write("f", "x");
    let view = bench.mount(&bench.snapshot(), "v");
    let foreign = UnmountRequest { view: ah_plugin_api::Reference::new("../../work").unwrap(), unused: false };
    bench.provider.unmount(&bench.place(), &foreign, &Context::quiet()).unwrap();
    assert!(bench.work("f").exists());
    if view.read_only_mount {
        rustix::mount::unmount(&view.path, rustix::mount::UnmountFlags::empty()).unwrap();
    }
    // Somebody moved it and put something of their own in its place.
    std::fs::rename(&view.path, bench.target.path().join("moved")).unwrap();
    std::fs::create_dir(&view.path).unwrap();
    std::fs::write(view.path.join("precious"), "x").unwrap();
    bench.unmount(&view).unwrap();
    assert!(view.path.join("precious").exists());
}

#[test]
fn looking_without_mounting() {
    let bench = Bench::new();
    fill(&bench);
    let (first, cx) = (bench.snapshot(), Context::quiet());
    std::fs::remove_file(bench.work("dir/b.txt")).unwrap();
    let second = bench.snapshot();

    let read_dir = |path: &str| {
        let request = ReadDirRequest { snapshot: first.reference.clone(), path: RelPath::new(path).unwrap() };
        bench.provider.read_dir(&bench.place(), &request, &cx)
    };
    let names: Vec<_> =
        read_dir("").unwrap().iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
    assert_eq!(
        names,
        ["a.txt", "dangling", "dir", "dir-x", "empty", "empty file", "link", "odd \u{fffd}\n name", "run.sh"]
    );
    let deep = &read_dir("dir").unwrap()[1];
    assert_eq!((deep.kind, deep.mode, deep.name.as_slice()), (EntryKind::Dir, 0o711, b"deep".as_slice()));
    assert_eq!(read_dir("a.txt").err().unwrap().kind, ErrorKind::InvalidArgument);
    assert_eq!(read_dir("zzz").err().unwrap().kind, ErrorKind::NotFound);

    let out = tempfile::tempfile().unwrap();
    let place = bench.place().with_output(std::os::fd::AsFd::as_fd(&out));
    let read = |path: &str| {
        let request = ReadRequest { snapshot: first.reference.clone(), path: RelPath::new(path).unwrap() };
        bench.provider.read(&place, &request, &cx)
    };
    let entry = read("dir/b.txt").unwrap();
    assert_eq!((entry.size, entry.mtime.secs, entry.mtime.nanos), (4, 1_000_000_000, 123_456_789));
    read("link").unwrap();
    assert_eq!(
        std::io::read_to_string({
            use std::io::Seek;
            (&out).rewind().unwrap();
            &out
        })
        .unwrap(),
        "betadir/b.txt"
    );
    assert_eq!(read("dir").err().unwrap().kind, ErrorKind::InvalidArgument);

    let lookup = |path: &str| {
        let snapshots = vec![first.reference.clone(), second.reference.clone()];
        let request = LookupRequest { snapshots, path: RelPath::new(path).unwrap() };
        bench.provider.lookup(&bench.place(), &request, &cx).unwrap()
    };
    let found = lookup("dir/b.txt");
    assert!(found[0].is_some() && found[1].is_none());
    let found = lookup("a.txt");
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0].as_ref().unwrap().content.as_ref().unwrap().0.len(), 20);
    assert!(lookup("").iter().all(Option::is_some));
    assert!(lookup("a.txt/x").iter().all(Option::is_none));
}

#[test]
fn differences_are_complete_ordered_and_only_real() {
    let bench = Bench::new();
    fill(&bench);
    let first = bench.snapshot();
    assert_eq!(bench.diff(side(&first), Side::Workspace, &[], true), Vec::<String>::new());

    std::fs::remove_dir_all(bench.work("dir/deep")).unwrap();
    bench.write("dir/deep", "now a file");
    bench.write("new/x/y", "1");
    bench.write("new-y", "1");
    std::fs::set_permissions(bench.work("a.txt"), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::set_permissions(bench.work("empty"), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::remove_file(bench.work("link")).unwrap();
    let later = SystemTime::UNIX_EPOCH + Duration::new(1_100_000_000, 1);
    std::fs::File::open(bench.work("run.sh")).unwrap().set_modified(later).unwrap();
    let expected = [
        "M a.txt",
        "T dir/deep",
        "D dir/deep/er",
        "D dir/deep/er/c",
        "M empty",
        "D link",
        "A new",
        "A new-y",
        "A new/x",
        "A new/x/y",
    ];
    assert_eq!(bench.diff(side(&first), Side::Workspace, &[], false), expected);
    let second = bench.snapshot();
    assert_eq!(bench.diff(side(&first), side(&second), &[], false), expected);
    let with_times = bench.diff(side(&first), side(&second), &[], true);
    assert_eq!(with_times.len(), expected.len() + 1);
    assert!(with_times.contains(&"M run.sh".to_owned()));
    assert_eq!(
        bench.diff(side(&second), side(&first), &["new", "link"], false),
        ["A link", "D new", "D new/x", "D new/x/y"]
    );
    assert_eq!(bench.diff(side(&second), side(&first), &["dir/deep/er"], false), ["A dir/deep/er", "A dir/deep/er/c"]);
}

#[test]
fn snapshots_are_listed_found_and_taken_away() {
    let bench = Bench::new();
    let cx = Context::quiet();
    bench.write("f", "1");
    let (first, second) = (bench.snapshot(), bench.snapshot());
    assert_eq!(bench.try_snapshot("s1").err().unwrap().kind, ErrorKind::AlreadyExists);
    let list = || {
        let list = bench.provider.list(&bench.place(), &ListRequest::default(), &cx).unwrap();
        list.iter().map(|snapshot| snapshot.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(list(), ["s1", "s2"]);
    assert_eq!(first.tree, second.tree);
    bench.destroy(&DestroyRequest::Snapshot(first.reference.clone())).unwrap();
    bench.destroy(&DestroyRequest::Snapshot(first.reference.clone())).unwrap();
    assert_eq!(list(), ["s2"]);
    let stat = |reference: &ah_plugin_api::Reference| {
        bench.provider.stat(&bench.place(), &SnapshotRef { snapshot: reference.clone() }, &cx)
    };
    assert_eq!(stat(&first.reference).err().unwrap().kind, ErrorKind::NotFound);
    assert_eq!(stat(&second.reference).unwrap().id, second.id);
    bench.provider.reclaim(&bench.place(), &ReclaimRequest::default(), &cx).unwrap();
    let view = bench.mount(&second, "v");
    assert_eq!(std::fs::read(view.path.join("f")).unwrap(), b"1");
}

#[test]
fn files_of_every_size_come_back() {
    let bench = Bench::new();
    let mut state = 7_u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        (0..len).map(|_| next()).collect()
    };
    // Around every buffer on the way: windows, pieces, what is streamed instead of read whole.
    let edges: [usize; 9] = [0, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 128 << 10, 140_000, 256 << 10, 1 << 20];
    for edge in edges {
        for size in [edge, edge + 1, edge.saturating_sub(1)] {
            bench.write(&format!("{edge}/{size}"), noise(size));
        }
        // One snapshot with each, so that each is the first of a pack, too.
        let before = listing(bench.workspace.path());
        let snapshot = bench.snapshot();
        let view = bench.mount(&snapshot, "v");
        let after = listing(&view.path);
        assert!(after.keys().eq(before.keys()) && (!view.read_only_mount || after == before), "{edge}");
        bench.unmount(&view).unwrap();
    }
}
