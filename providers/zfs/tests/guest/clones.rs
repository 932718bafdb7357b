//! Clones: what is inherited, who holds them, clones of clones, others' snapshots in them.

use std::process::{Command, Stdio};

use ah_plugin_api::ErrorKind;

use crate::bench::{Bench, Pool, run, wait};

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_clone_is_writable_and_comes_back_by_itself() {
    let pool = Pool::new();
    pool.create("w", &["-o", "atime=off", "-o", "compression=gzip"]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "one");
    run("zfs", &["set", "readonly=on", &pool.full("w")]);
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    std::fs::write(clone.path.join("file"), "two").unwrap();
    let dataset = pool.names("filesystem", "w").remove(1);
    let of = |property: &str| run("zfs", &["get", "-H", "-o", "value", property, &dataset]).trim().to_owned();
    assert_eq!((of("atime").as_str(), of("compression").as_str(), of("canmount").as_str()), ("off", "gzip", "on"));
    // As after a reboot.
    run("zfs", &["unmount", &dataset]);
    run("zfs", &["mount", &dataset]);
    assert_eq!(std::fs::read_to_string(clone.path.join("file")).unwrap(), "two");
    bench.destroy_clone(&clone.reference).unwrap();
    assert!(!clone.path.exists());
    assert_eq!(pool.names("filesystem", "w").len(), 1);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn who_uses_a_clone_is_named_in_whatever_namespace() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    std::fs::write(clone.path.join("file"), "x").unwrap();
    let mut user = Command::new("sleep").arg("600").current_dir(&clone.path).stdin(Stdio::null()).spawn().unwrap();
    let error = bench.destroy_clone(&clone.reference).unwrap_err();
    assert!(error.kind == ErrorKind::Busy && error.message.contains(&format!("process {}", user.id())), "{error}");
    user.kill().unwrap();
    user.wait().unwrap();
    // In a namespace of its own, that a mount here has no part in.
    let mut other = Command::new("unshare").args(["-m", "--propagation", "private", "sleep", "600"]).spawn().unwrap();
    let space = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/mnt")).ok();
    wait("the namespace", || space(&other.id().to_string()).is_some_and(|it| Some(it) != space("self")));
    let comm = format!("/proc/{}/comm", other.id());
    wait("sleep", || std::fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep"));
    let error = bench.destroy_clone(&clone.reference).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
    let number = space(&other.id().to_string()).unwrap().display().to_string();
    assert!(error.message.contains(number.trim_start_matches("mnt:[").trim_end_matches(']')), "{error}, {number}");
    assert_eq!(std::fs::read_to_string(clone.path.join("file")).unwrap(), "x", "what is refused is undone");
    other.kill().unwrap();
    other.wait().unwrap();
    wait("the end of the namespace", || bench.destroy_clone(&clone.reference).is_ok());
    assert!(!clone.path.exists());
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_clone_of_a_clone_outlives_it() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "one");
    let a = bench.take("a");
    let first = bench.clone(&a, "first").unwrap();
    let inner = Bench::named(&pool, "inner", &first.path);
    inner.write("file", "two");
    let (early, b) = (inner.take("early"), inner.take("b"));
    let second = inner.clone(&b, "second").unwrap();
    inner.take("late");
    drop(inner);
    let _ = early;
    bench.destroy_clone(&first.reference).unwrap();
    assert_eq!(std::fs::read_to_string(second.path.join("file")).unwrap(), "two");
    assert!(!first.path.exists());
    assert_eq!(pool.names("filesystem", "w").len(), 2);
    bench.destroy(&a).unwrap();
    assert_eq!(std::fs::read_to_string(second.path.join("file")).unwrap(), "two");
    let inner = Bench::named(&pool, "inner", &pool.path("w"));
    inner.destroy_clone(&second.reference).unwrap();
    assert_eq!(pool.names("filesystem,snapshot", "w"), [pool.full("w")]);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn others_snapshots_in_a_clone_are_left_alone_and_not_in_the_way() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let a = bench.take("a");
    let clone = bench.clone(&a, "fork").unwrap();
    run("zfs", &["snapshot", "-r", &format!("{}@autosnap", pool.full("w"))]);
    bench.destroy_clone(&clone.reference).unwrap();
    assert!(!clone.path.exists());
    let theirs = pool.names("snapshot", "w").into_iter().find(|name| name.contains("/ah-")).unwrap();
    assert!(theirs.ends_with("@autosnap"));
    assert_eq!(bench.reclaim(&[]).actions.len(), 0);
    bench.clone(&a, "fork").unwrap();
    run("zfs", &["destroy", &theirs]);
    assert_eq!(bench.reclaim(&["fork"]).actions.len(), 2, "the old one, and the new one that its caller forgot");
    assert_eq!(pool.names("filesystem", "w").len(), 1);
    assert_eq!(std::fs::read_dir(bench.target.path()).unwrap().count(), 0);
}
