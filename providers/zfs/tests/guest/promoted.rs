//! Branches that their user has promoted (`zfs promote`): what they were made from has its snapshots in them from then on.

use ah_plugin_api::Provider as _;

use crate::bench::{Bench, Pool, closed, run};

/// The snapshots of a dataset itself, by the last letters of their names.
fn own(pool: &Pool, dataset: &str) -> String {
    let prefix = format!("{dataset}@");
    let all = pool.names("snapshot", "w");
    let ends = all.iter().filter_map(|name| name.strip_prefix(&prefix)?.rsplit('-').next());
    let mut ends: Vec<&str> = ends.collect();
    ends.sort_unstable();
    ends.join(" ")
}

fn promote(dataset: &str) {
    run("zfs", &["promote", dataset]);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_branch_that_was_promoted_takes_nothing_of_the_workspace_with_it() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    let other = Bench::named(&pool, "other", &pool.path("w"));
    bench.write("file", "one");
    let a = bench.take("a");
    let theirs = other.take("theirs");
    let early = bench.clone(&a, "early").unwrap();
    let b = bench.take("b");
    let fork = bench.clone(&b, "fork").unwrap();
    let dataset =
        pool.names("filesystem", "w").into_iter().find(|name| name.ends_with(fork.reference.as_str())).unwrap();
    let inner = Bench::named(&pool, "inner", &fork.path);
    inner.take("mine");
    drop(inner);
    bench.write("file", "two");
    let c = bench.take("c");
    promote(&dataset);
    assert_eq!((own(&pool, &pool.full("w")).as_str(), own(&pool, &dataset).as_str()), ("c", "a b mine theirs"));
    bench.destroy_clone(&fork.reference).unwrap();
    assert_eq!(own(&pool, &pool.full("w")), "a b c theirs");
    assert_eq!((bench.ids().as_str(), other.ids().as_str()), ("a b c", "theirs"));
    assert_eq!(
        (bench.seen(&a, "file"), bench.seen(&b, "file"), bench.seen(&c, "file")),
        ("one".into(), "one".into(), "two".into())
    );
    assert_eq!(other.seen(&theirs, "file"), "one");
    assert_eq!(std::fs::read_to_string(early.path.join("file")).unwrap(), "one");
    assert_eq!((pool.names("filesystem", "w").len(), fork.path.exists()), (2, false));
    bench.destroy_clone(&early.reference).unwrap();
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn snapshots_are_found_in_a_branch_that_was_promoted() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "one");
    let (a, b) = (bench.take("a"), bench.take("b"));
    let (first, second) = (bench.clone(&a, "first").unwrap(), bench.clone(&b, "second").unwrap());
    let named = |end: &str| pool.names("filesystem", "w").into_iter().find(|name| name.ends_with(end)).unwrap();
    let inner = Bench::named(&pool, "inner", &second.path);
    inner.take("mine");
    // One in each of them.
    promote(&named(second.reference.as_str()));
    promote(&named(first.reference.as_str()));
    bench.write("file", "two");
    bench.take("c");
    assert_eq!(bench.ids(), "a b c");
    assert_eq!((bench.stat(&a).unwrap().id, bench.stat(&b).unwrap().id), (a.id.clone(), b.id.clone()));
    assert_eq!((bench.seen(&a, "file"), bench.seen(&b, "file")), ("one".into(), "one".into()));
    assert_eq!(inner.ids(), "mine", "what is the workspace's is not theirs");
    let request = ah_plugin_api::UsageRequest { snapshots: Vec::new() };
    assert!(bench.provider.usage(&bench.place(), &request, &ah_plugin_api::Context::quiet()).is_ok());
    bench.reclaim(&[]);
    assert_eq!(bench.ids(), "a b c");
    bench.destroy(&b).unwrap();
    assert_eq!(bench.ids(), "a c");
    drop(inner);
    for clone in [&second, &first] {
        bench.destroy_clone(&clone.reference).unwrap();
    }
    assert_eq!((own(&pool, &pool.full("w")).as_str(), pool.names("filesystem", "w").len()), ("a c", 1));
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn a_branch_takes_along_its_snapshots_that_another_one_was_given() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let bench = Bench::new(&pool, &pool.path("w"));
    bench.write("file", "one");
    let a = bench.take("a");
    let first = bench.clone(&a, "first").unwrap();
    let inner = Bench::named(&pool, "inner", &first.path);
    inner.take("early");
    let grown = inner.take("grown");
    let second = inner.clone(&grown, "second").unwrap();
    inner.take("late");
    let inner = closed(&pool, inner);
    // By its user; or by a removal of the first that was cut off right behind that.
    let dataset =
        pool.names("filesystem", "w").into_iter().find(|name| name.ends_with(second.reference.as_str())).unwrap();
    promote(&dataset);
    assert_eq!(own(&pool, &dataset), "early grown");
    assert_eq!(inner.ids(), "early grown late");
    bench.destroy_clone(&first.reference).unwrap();
    assert_eq!(own(&pool, &dataset), "", "nothing needs them any more");
    assert_eq!(std::fs::read_to_string(second.path.join("file")).unwrap(), "one");
    inner.destroy_clone(&second.reference).unwrap();
    assert_eq!((bench.ids().as_str(), pool.names("filesystem", "w").len()), ("a", 1));
}
