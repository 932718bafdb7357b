//! Where a workspace can be: roots, directories inside, bind mounts, renamed datasets, odd names.

use ah_plugin_api::{Context, ErrorKind, ListRequest, OmitReason, Place, Provider, UsageRequest};

use crate::bench::{Bench, Pool, closed, run};

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_root_and_a_directory_inside() {
    let pool = Pool::new();
    pool.create("home", &[]);
    let root = Bench::named(&pool, "root", &pool.path("home"));
    root.write("me/proj/file", "one");
    let inside = Bench::named(&pool, "inside", &pool.path("home/me/proj"));
    let a = root.take("a");
    assert_eq!(a.pins, None);
    let b = inside.take("a");
    assert_eq!(b.pins, Some(format!("the dataset {}", pool.full("home"))));
    inside.write("file", "two");
    assert_eq!((root.ids().as_str(), inside.ids().as_str()), ("a", "a"));
    assert_eq!((root.seen(&a, "me/proj/file"), inside.seen(&b, "file")), ("one".into(), "one".into()));
    assert_eq!(inside.stat(&b).unwrap(), b);
    // What was captured at one path is seen there, wherever the workspace is now.
    std::fs::rename(pool.path("home/me"), pool.path("home/you")).unwrap();
    let c = inside.take("c");
    assert_eq!((inside.seen(&b, "file"), inside.seen(&c, "file")), ("one".into(), "two".into()));
    // A prefix of a path is no directory above it.
    pool.create("home-2", &[]);
    std::fs::create_dir(pool.path("home-2/ws")).unwrap();
    let beside = Bench::named(&pool, "beside", &pool.path("home-2/ws"));
    assert_eq!(beside.take("a").pins, Some(format!("the dataset {}", pool.full("home-2"))));
    assert_eq!(pool.names("snapshot", "home").len(), 3);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn child_datasets_are_reported_and_not_shown() {
    let pool = Pool::new();
    pool.create("w", &[]);
    pool.create("w/child", &[]);
    std::fs::write(pool.path("w/child/in"), "x").unwrap();
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "x");
    let a = bench.take("a");
    assert_eq!((a.omitted.len(), a.omitted_total), (1, 1));
    assert_eq!((a.omitted[0].path.as_bytes(), &a.omitted[0].reason), (&b"child"[..], &OmitReason::OtherFilesystem));
    assert!(bench.read(&a, "file").is_ok() && bench.read(&a, "child/in").is_err());
    assert_eq!(bench.stat(&a).unwrap().omitted, a.omitted);
    // In the child it is the child's.
    let child = Bench::named(&pool, "child", &pool.path("w/child"));
    let b = child.take("b");
    assert!(b.omitted.is_empty() && child.read(&b, "in").is_ok());
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn the_control_directory_is_reported_where_it_shows() {
    let pool = Pool::new();
    pool.create("w", &["-o", "snapdir=visible"]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "x");
    let a = bench.take("a");
    assert_eq!(a.omitted.iter().map(|o| o.path.as_bytes()).collect::<Vec<_>>(), [b".zfs"]);
    assert_eq!(bench.seen(&a, "file"), "x");
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn snapshots_that_were_looked_at_are_no_part_of_the_workspace() {
    let pool = Pool::new();
    for (name, options, omitted) in [("hidden", ["-o", "snapdir=hidden"], 0), ("shown", ["-o", "snapdir=visible"], 1)] {
        pool.create(name, &options);
        let bench = Bench::named(&pool, name, &pool.path(name));
        bench.write("file", "x");
        let first = bench.take("a");
        assert_eq!(bench.seen(&first, "file"), "x");
        let mounted = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(mounted.contains(&format!("{}@", pool.full(name))), "the kernel has mounted it: {mounted}");
        let second = bench.take("b");
        assert_eq!((second.omitted.len(), second.omitted_total), (omitted, omitted as u64), "{:?}", second.omitted);
        assert_eq!(second.omitted, first.omitted);
    }
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_bind_mount_is_found_in_its_dataset() {
    let pool = Pool::new();
    pool.create("w", &[]);
    std::fs::create_dir_all(pool.path("w/deep/ws/dir")).unwrap();
    let at = pool.temp.path().join("bound");
    std::fs::create_dir(&at).unwrap();
    run("mount", &["--bind", pool.path("w/deep/ws").to_str().unwrap(), at.to_str().unwrap()]);
    let bench = Bench::new(&pool, &at.join("dir"));
    bench.write("file", "x");
    let a = bench.take("a");
    let view = bench.mount(&a, "v").unwrap();
    assert!(view.path.ends_with("deep/ws/dir"), "{:?}", view.path);
    assert_eq!(std::fs::read_to_string(view.path.join("file")).unwrap(), "x");
    bench.unmount(&view);
    drop(bench);
    run("umount", &[at.to_str().unwrap()]);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_renamed_dataset_keeps_its_snapshots() {
    let pool = Pool::new();
    pool.create("old", &[]);
    let bench = Bench::new(&pool, &pool.path("old"));
    bench.write("file", "x");
    let a = bench.take("a");
    let Bench { provider, store, workspace, target } = bench;
    drop(workspace);
    run("zfs", &["rename", &pool.full("old"), &pool.full("new")]);
    let bench = Bench { provider, store, workspace: ah_plugin_api::Dir::open(pool.path("new")).unwrap(), target };
    // Another one has taken the name.
    pool.create("old", &[]);
    assert_eq!(bench.ids(), "a");
    assert_eq!(bench.seen(&a, "file"), "x");
    bench.take("b");
    assert_eq!(bench.ids(), "a b");
    bench.destroy(&a).unwrap();
    assert_eq!(bench.ids(), "b");
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_dataset_is_found_again_where_it_is_mounted_now() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "x");
    let a = bench.take("a");
    bench.read(&a, "file").unwrap();
    let Bench { provider, store, workspace, target } = bench;
    drop(workspace);
    let elsewhere = pool.temp.path().join("elsewhere");
    run("zfs", &["set", &format!("mountpoint={}", elsewhere.display()), &pool.full("w")]);
    // Where it was, there is another one now, with a mount id that may be the same.
    pool.create("other", &["-o", &format!("mountpoint={}", pool.path("w").display())]);
    let bench = Bench { provider, store, workspace: ah_plugin_api::Dir::open(&elsewhere).unwrap(), target };
    bench.read(&a, "file").unwrap();
    assert_eq!(bench.seen(&a, "file"), "x");
    let view = bench.mount(&a, "v").unwrap();
    assert!(view.path.starts_with(&elsewhere), "{view:?}");
    bench.unmount(&view);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn odd_names_everywhere() {
    let pool = Pool::new();
    pool.create("a b:c_d.e-f", &[]);
    let ws = pool.path("a b:c_d.e-f").join("line\nbreak \u{e9} \\ %41");
    std::fs::create_dir(&ws).unwrap();
    let bench = Bench::new(&pool, &ws);
    bench.write("file", "x");
    let a = bench.take("a");
    assert_eq!(bench.stat(&a).unwrap().label.as_deref(), Some("a label\n"));
    assert_eq!(bench.seen(&a, "file"), "x");
    let clone = bench.clone(&a, "odd \n'\"\\ %41 \u{e9} @x").unwrap();
    assert_eq!(std::fs::read_to_string(clone.path.join("file")).unwrap(), "x");
    assert_eq!(clone.notes.len(), 1);
    bench.destroy_clone(&clone.reference).unwrap();
    assert_eq!(std::fs::read_dir(bench.target.path()).unwrap().count(), 0);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn usage_counts_what_snapshots_alone_hold() {
    let pool = Pool::new();
    pool.create("w", &["-o", "compression=off"]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let frees = |snapshots: &[&ah_plugin_api::Snapshot]| {
        let request = UsageRequest { snapshots: snapshots.iter().map(|snapshot| snapshot.reference.clone()).collect() };
        bench.provider.usage(&bench.place(), &request, &Context::quiet()).unwrap().bytes.unwrap()
    };
    const MIB: u64 = 1 << 20;
    assert_eq!(frees(&[]), 0);
    bench.write("file", &"x".repeat(1 << 20));
    let a = bench.take("a");
    assert!(frees(&[&a]) < MIB / 2 && frees(&[]) < MIB / 2, "the filesystem has it as well");
    let same = bench.take("same");
    bench.write("file", &"y".repeat(1 << 20));
    let b = bench.take("b");
    assert!(frees(&[&a]) < MIB / 2 && frees(&[&same]) < MIB / 2, "each has the old contents");
    assert!((MIB..2 * MIB).contains(&frees(&[&same, &a, &a])), "only both together do");
    assert!((MIB..2 * MIB).contains(&frees(&[])));
    // Whoever made what lies between.
    bench.write("file", &"z".repeat(1 << 20));
    run("zfs", &["snapshot", &format!("{}@theirs", pool.full("w"))]);
    let c = bench.take("c");
    bench.write("file", "");
    bench.take("d");
    assert!(frees(&[&b, &c]) < 2 * MIB, "the third is theirs as well");
    // What a hold or a clone keeps does not come back.
    let full = format!(
        "{}@{}",
        pool.full("w"),
        run("zfs", &["list", "-Ho", "name", "-t", "snapshot"])
            .lines()
            .find_map(|line| line.split_once('@').filter(|(_, name)| name.ends_with("-a")))
            .unwrap()
            .1
    );
    run("zfs", &["hold", "kept", &full]);
    assert!(frees(&[&a, &same]) < MIB / 2);
    run("zfs", &["release", "kept", &full]);
    assert!(frees(&[&a, &same]) >= MIB);
    bench.destroy(&a).unwrap();
    assert_eq!(frees(&[&a]), 0);
    assert!(frees(&[&a, &same]) >= MIB);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_dataset_that_was_replaced_keeps_its_snapshots_too() {
    let pool = Pool::new();
    pool.create("ws", &[]);
    let bench = Bench::new(&pool, &pool.path("ws"));
    bench.write("file", "x");
    let a = bench.take("a");
    let Bench { provider, store, workspace, target } = bench;
    drop(workspace);
    let (ws, old) = (pool.full("ws"), pool.full("ws.old"));
    run("zfs", &["rename", &ws, &old]);
    run("zfs", &["snapshot", &format!("{old}@theirs")]);
    run("zfs", &["clone", &format!("{old}@theirs"), &ws]);
    // Nobody needs to have the old one mounted.
    run("zfs", &["unmount", &old]);
    let bench = Bench { provider, store, workspace: ah_plugin_api::Dir::open(pool.path("ws")).unwrap(), target };
    assert_eq!(bench.ids(), "a");
    bench.take("b");
    assert_eq!(bench.ids(), "a b", "those of the old one, and those of the new one");
    assert_eq!(bench.stat(&a).unwrap().id, a.id);
    bench.take("c");
    assert_eq!(bench.ids(), "a b c");
    bench.destroy(&a).unwrap();
    assert_eq!(bench.ids(), "b c");
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_received_copy_has_nothing_twice_and_brings_nothing_back() {
    let pool = Pool::new();
    pool.create("ws", &[]);
    let bench = Bench::new(&pool, &pool.path("ws"));
    let a = bench.take("a");
    let Bench { provider, store, workspace, target } = bench;
    drop(workspace);
    let (ws, old) = (pool.full("ws"), pool.full("ws.old"));
    run("zfs", &["rename", &ws, &old]);
    let full = pool.names("snapshot", "ws.old").remove(0);
    run("sh", &["-c", &format!("zfs send -p '{full}' | zfs recv '{ws}'")]);
    let bench = Bench { provider, store, workspace: ah_plugin_api::Dir::open(pool.path("ws")).unwrap(), target };
    bench.take("b");
    assert_eq!(bench.ids(), "a b");
    bench.destroy(&a).unwrap();
    assert_eq!(bench.ids(), "b");
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn what_is_set_on_the_dataset_is_not_the_snapshots() {
    let pool = Pool::new();
    pool.create("ws", &[]);
    let bench = Bench::new(&pool, &pool.path("ws"));
    let a = bench.try_take_labelled("a", None).unwrap();
    let b = bench.take("b");
    run("zfs", &["set", "org.ah-project:label=theirs", &pool.name]);
    run("zfs", &["set", "org.ah-project:attributes=theirs", &pool.full("ws")]);
    run("zfs", &["set", "org.ah-project:label.1=theirs", &pool.full("ws")]);
    assert_eq!((bench.stat(&a).unwrap(), bench.stat(&b).unwrap()), (a, b));
    assert_eq!(bench.ids(), "a b");
    // What was received with it is its own.
    let bench = closed(&pool, bench);
    let (ws, old) = (pool.full("ws"), pool.full("ws.old"));
    run("zfs", &["rename", &ws, &old]);
    run("sh", &["-c", &format!("zfs snapshot {old}@all && zfs send -R {old}@all | zfs recv {ws}")]);
    let bench = Bench { workspace: ah_plugin_api::Dir::open(pool.path("ws")).unwrap(), ..bench };
    bench.take("c");
    run("zfs", &["destroy", "-r", &old]);
    let labels = bench.list().unwrap().into_iter().map(|snapshot| snapshot.label).collect::<Vec<_>>();
    assert_eq!(labels, [None, Some("a label\n".to_owned()), Some("a label\n".to_owned())]);
}

/// The names of the datasets that a store knows.
fn known(bench: &Bench) -> String {
    let text = std::fs::read_to_string(bench.store.path().join("identity")).unwrap();
    let names = text.split("\"name\":\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    names.collect::<Vec<_>>().join(" ")
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn datasets_that_were_destroyed_are_not_looked_for_for_ever() {
    let pool = Pool::new();
    pool.create("w", &[]);
    pool.create("old", &[]);
    let bench = Bench::new(&pool, &pool.path("old"));
    bench.take("a");
    let Bench { provider, store, workspace, target } = bench;
    drop(workspace);
    let bench = Bench { provider, store, workspace: ah_plugin_api::Dir::open(pool.path("w")).unwrap(), target };
    bench.take("b");
    assert_eq!(known(&bench), format!("{} {}", pool.full("old"), pool.full("w")));
    // One that is only away, and another pool that has its pool's name meanwhile.
    let bench = closed(&pool, bench);
    pool.export();
    bench.reclaim(&[]);
    let other = Pool::new();
    let disks = other.temp.path().to_str().unwrap();
    run("zpool", &["export", &other.name]);
    run("zpool", &["import", "-d", disks, &other.name, &pool.name]);
    bench.reclaim(&[]);
    assert_eq!(known(&bench), format!("{} {}", pool.full("old"), pool.full("w")));
    run("zpool", &["export", &pool.name]);
    run("zpool", &["import", "-d", disks, &pool.name, &other.name]);
    pool.import();
    assert_eq!(bench.ids(), "a b");
    // One that was renamed, and one that is gone: not unasked, behind each snapshot, since it may have to look through all pools.
    run("zfs", &["rename", &pool.full("w"), &pool.full("x")]);
    run("zfs", &["destroy", "-r", &pool.full("old")]);
    bench.try_reclaim(&ah_plugin_api::ReclaimRequest { auto: true, forgotten: Vec::new() }).unwrap();
    assert_eq!(known(&bench), format!("{} {}", pool.full("old"), pool.full("w")));
    bench.reclaim(&[]);
    assert_eq!(known(&bench), pool.full("x"));
    assert_eq!(bench.ids(), "b");
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn what_cannot_be_looked_for_is_not_taken_for_removed() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let Bench { provider, store, workspace, target } = bench;
    drop(workspace);
    pool.export();
    let bench = Bench { provider, store, workspace: ah_plugin_api::Dir::open(pool.temp.path()).unwrap(), target };
    let errors = [bench.list().map(drop), bench.stat(&a).map(drop), bench.destroy(&a), bench.mount(&a, "v").map(drop)];
    for error in errors {
        let error = error.unwrap_err();
        assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error}");
        assert!(error.hint.as_ref().is_some_and(|hint| hint.contains("zpool import")), "{error:?}");
    }
    let store = Place::new(&bench.store);
    let partial = || bench.provider.list(&store, &ListRequest { partial: true }, &Context::quiet()).unwrap().len();
    assert_eq!(partial(), 0);
    bench.reclaim(&[]);
    pool.import();
    assert_eq!((bench.ids().as_str(), partial()), ("a", 1));
    // One that was really destroyed is left out.
    run("zfs", &["destroy", "-r", &pool.full("w")]);
    assert_eq!(bench.ids(), "");
    assert_eq!(bench.stat(&a).unwrap_err().kind, ErrorKind::NotFound);
    bench.destroy(&a).unwrap();
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_volume_that_has_a_datasets_name_is_another_one() {
    let pool = Pool::new();
    pool.create("w", &[]);
    pool.create("old", &[]);
    let bench = Bench::new(&pool, &pool.path("old"));
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    let bench = closed(&pool, bench);
    let bench = Bench { workspace: ah_plugin_api::Dir::open(pool.path("w")).unwrap(), ..bench };
    let b = bench.take("b");
    let fork = pool.names("filesystem", "old").remove(1);
    run("zfs", &["destroy", "-r", &pool.full("old")]);
    let volume = |name: &str| drop(run("zfs", &["create", "-s", "-V", "16M", name]));
    volume(&pool.full("old"));
    assert_eq!((bench.ids().as_str(), bench.stat(&a).unwrap_err().kind), ("b", ErrorKind::NotFound));
    bench.provider.usage(&bench.place(), &UsageRequest { snapshots: Vec::new() }, &Context::quiet()).unwrap();
    bench.destroy(&a).unwrap();
    bench.destroy(&b).unwrap();
    bench.take("c");
    // The same of a branch's.
    run("zfs", &["destroy", &pool.full("old")]);
    pool.create("old", &[]);
    volume(&fork);
    bench.destroy_clone(&clone.reference).unwrap();
    assert_eq!((bench.clone_records().len(), pool.names("volume", "old")), (0, vec![fork]));
    bench.reclaim(&[]);
    assert_eq!((known(&bench), bench.ids().as_str()), (pool.full("w"), "c"));
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_pool_that_is_read_only_is_not_usable() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let usable = || {
        let workspace = ah_plugin_api::Dir::open(pool.path("w")).unwrap();
        ah_provider_zfs::ZfsProvider::new()
            .probe(
                &ah_plugin_api::Place::new(&workspace).with_workspace(&workspace),
                &Default::default(),
                &Context::quiet(),
            )
            .unwrap()
    };
    assert!(usable().usable);
    // A dataset alone is captured as ever.
    run("zfs", &["set", "readonly=on", &pool.full("w")]);
    assert!(usable().usable);
    Bench::new(&pool, &pool.path("w")).take("a");
    pool.export();
    run("zpool", &["import", "-o", "readonly=on", "-d", pool.temp.path().to_str().unwrap(), &pool.name]);
    let probe = usable();
    assert!(!probe.usable && !probe.can_delete, "{probe:?}");
    assert!(probe.remedy.as_ref().is_some_and(|remedy| remedy.contains("zpool import")), "{probe:?}");
    pool.export();
    pool.import();
}
