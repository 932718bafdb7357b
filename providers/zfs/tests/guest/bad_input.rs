//! States of a machine that people really have: not mounted, no key, no space, read-only.

use ah_plugin_api::{Context, ErrorKind, ProbeRequest, Provider};

use crate::bench::{Bench, Pool, closed, run};

#[test]
#[ignore = "needs a kernel with ZFS"]
fn datasets_that_are_not_mounted() {
    let pool = Pool::new();
    pool.create("my work", &[]);
    let bench = Bench::new(&pool, &pool.path("my work"));
    bench.write("file", "x");
    let a = bench.take("a");
    let bench = closed(&pool, bench);
    run("zfs", &["unmount", &pool.full("my work")]);
    assert_eq!(bench.ids(), "a");
    let error = bench.mount(&a, "v").unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    // As a shell reads it.
    let word = format!("'{}'", pool.full("my work"));
    assert_eq!(error.hint.unwrap(), format!("zfs mount {word}"));
    run("zfs", &["set", "mountpoint=legacy", &pool.full("my work")]);
    let error = bench.mount(&a, "v").unwrap_err();
    assert!(error.hint.unwrap().contains(&format!("mount -t zfs {word} ")));
    // Mounted by hand, it works as any other.
    let at = pool.temp.path().join("legacy");
    std::fs::create_dir(&at).unwrap();
    run("mount", &["-t", "zfs", &pool.full("my work"), at.to_str().unwrap()]);
    let bench = Bench { workspace: ah_plugin_api::Dir::open(&at).unwrap(), ..bench };
    let b = bench.take("b");
    assert_eq!((bench.seen(&a, "file"), bench.seen(&b, "file")), ("x".into(), "x".into()));
    drop(bench);
    run("umount", &[at.to_str().unwrap()]);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_key_that_is_not_loaded() {
    let pool = Pool::new();
    let key = pool.temp.path().join("key");
    std::fs::write(&key, [7; 32]).unwrap();
    let location = format!("keylocation=file://{}", key.display());
    pool.create("w", &["-o", "encryption=on", "-o", "keyformat=raw", "-o", &location]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "x");
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    assert_eq!(std::fs::read_to_string(clone.path.join("file")).unwrap(), "x");
    bench.destroy_clone(&clone.reference).unwrap();
    let bench = closed(&pool, bench);
    run("zfs", &["unmount", &pool.full("w")]);
    run("zfs", &["unload-key", &pool.full("w")]);
    assert_eq!(bench.ids(), "a");
    let error = bench.mount(&a, "v").unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition);
    assert!(error.hint.unwrap().contains("zfs load-key"));
    let error = bench.clone(&a, "fork").unwrap_err();
    assert!(error.kind == ErrorKind::FailedPrecondition && error.hint.is_some(), "{error:?}");
    assert_eq!(std::fs::read_dir(bench.target.path()).unwrap().count(), 0, "a refused clone leaves nothing behind");
    assert_eq!(pool.names("filesystem", "w").len(), 1);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn quotas_and_read_only() {
    let pool = Pool::new();
    pool.create("w", &["-o", "quota=8M", "-o", "compression=off"]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("small", "x");
    let full = std::fs::write(bench.workspace.path().join("big"), vec![1; 16 << 20]).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(122), "EDQUOT");
    // It may be that there is room for a snapshot; if not, it is said what is lacking.
    match bench.try_take("a") {
        Ok(a) => assert_eq!(bench.seen(&a, "small"), "x"),
        Err(error) => assert_eq!(error.kind, ErrorKind::ResourceExhausted, "{error:?}"),
    }
    run("zfs", &["set", "quota=none", "readonly=on", &pool.full("w")]);
    let b = bench.take("b");
    assert_eq!(bench.seen(&b, "small"), "x");
    let bench = closed(&pool, bench);
    let disks = pool.temp.path().to_str().unwrap();
    run("zpool", &["export", &pool.name]);
    run("zpool", &["import", "-d", disks, "-o", "readonly=on", &pool.name]);
    let bench = Bench { workspace: ah_plugin_api::Dir::open(pool.path("w")).unwrap(), ..bench };
    let error = bench.try_take("c").unwrap_err();
    assert_eq!(error.kind, ErrorKind::FailedPrecondition, "{error:?}");
    assert_eq!(bench.seen(&b, "small"), "x");
    assert_eq!(bench.destroy(&b).unwrap_err().kind, ErrorKind::FailedPrecondition);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn workspaces_that_cannot_be_captured() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("dir/file", "x");
    let a = bench.take("a");
    let view = bench.mount(&a, "v").unwrap();
    let probe =
        |bench: &Bench| bench.provider.probe(&bench.place(), &ProbeRequest::default(), &Context::quiet()).unwrap();
    let yes = probe(&bench);
    assert!(yes.usable && yes.can_delete, "{yes:?}");
    let inside = Bench::named(&pool, "inside", &view.path.join("dir"));
    let no = probe(&inside);
    assert!(!no.usable && no.reason.contains("in a snapshot"), "{no:?}");
    assert_eq!(inside.try_take("a").unwrap_err().kind, ErrorKind::FailedPrecondition);
    let elsewhere = Bench::named(&pool, "elsewhere", pool.temp.path());
    let no = probe(&elsewhere);
    assert!(!no.usable && no.reason.contains("not on ZFS"), "{no:?}");
    // A name that is too long for what has to be added to it.
    let long = "l".repeat(230);
    pool.create(&long, &[]);
    let long = Bench::named(&pool, "long", &pool.path(&long));
    assert_eq!(long.try_take("a").unwrap_err().kind, ErrorKind::FailedPrecondition);
}
