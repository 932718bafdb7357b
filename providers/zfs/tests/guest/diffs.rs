//! Differences beside what is known to have been done.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use ah_plugin_api::{Changes, DiffMethod, DiffRequest, Provider as _, Result, Side, Snapshot};

use crate::bench::{Bench, Pool, run};

fn diff(bench: &Bench, from: &Snapshot, to: Option<&Snapshot>) -> Result<Changes> {
    let side = |snapshot: &Snapshot| Side::Snapshot(snapshot.reference.clone());
    let request = DiffRequest {
        from: side(from),
        to: to.map_or(Side::Workspace, side),
        paths: Vec::new(),
        times: false,
        policy: ah_plugin_api::CapturePolicy::default(),
    };
    bench.provider.diff(&bench.place(), &request, &ah_plugin_api::Context::quiet())
}

/// What differs, a word each: `+` for what came, `-` for what went, `~` for what changed.
fn words(changes: &Changes) -> String {
    let word = |change: &ah_plugin_api::Change| {
        let sign = match (&change.before, &change.after) {
            (None, _) => '+',
            (_, None) => '-',
            _ => '~',
        };
        format!("{sign}{}", change.path.as_path().as_os_str().as_bytes().escape_ascii())
    };
    assert_eq!(changes.method, if changes.untouched { DiffMethod::Native } else { DiffMethod::Walk });
    changes.changes.iter().map(word).collect::<Vec<_>>().join(" ")
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn what_was_written_is_told() {
    let pool = Pool::new();
    pool.create("w", &[]);
    for below in ["", "deep/project"] {
        let root = pool.path("w").join(below);
        fs::create_dir_all(&root).unwrap();
        let name = if below.is_empty() { "top" } else { "deep" };
        let bench = Bench::named(&pool, name, &root);
        for path in ["keep/a", "edit/a", "gone/a/b", "old/a", "old/sub/b", "mode", "empty/x", "same/size"] {
            bench.write(path, "one");
        }
        let first = bench.take("a");
        assert_eq!(words(&diff(&bench, &first, None).unwrap()), "");
        bench.write("edit/a", "two");
        bench.write("new/dir/file", "new");
        bench.write("same/size", "eno");
        fs::remove_dir_all(root.join("gone")).unwrap();
        fs::rename(root.join("old"), root.join("renamed")).unwrap();
        fs::set_permissions(root.join("mode"), fs::Permissions::from_mode(0o600)).unwrap();
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"tab\there nl\nback\\slash \xff"));
        fs::write(root.join(odd), "odd").unwrap();
        // Neither outside of the workspace nor equal contents are a difference.
        fs::write(pool.path("w").join("deep-beside"), below).unwrap();
        fs::write(root.join("keep/a"), "one").unwrap();
        let expected = "~edit/a -gone -gone/a -gone/a/b ~mode +new +new/dir +new/dir/file -old -old/a -old/sub -old/sub/b \
                        +renamed +renamed/a +renamed/sub +renamed/sub/b ~same/size \
                        +tab\\there nl\\nback\\\\slash \\xff";
        let beside = if below.is_empty() { format!("+deep-beside {expected}") } else { expected.to_owned() };
        assert_eq!(words(&diff(&bench, &first, None).unwrap()), beside, "{below}");
        let second = bench.take("b");
        assert_eq!(words(&diff(&bench, &first, Some(&second)).unwrap()), beside, "{below}");
        let back = words(&diff(&bench, &second, Some(&first)).unwrap());
        assert!(back.contains("~edit/a +gone +gone/a +gone/a/b") && back.contains("-renamed/sub/b"), "{back}");
        fs::remove_file(root.join(odd)).unwrap();
        for path in ["keep", "edit", "new", "renamed", "mode", "empty", "same"] {
            let path = root.join(path);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
        }
        let _ = fs::remove_file(pool.path("w").join("deep-beside"));
    }
    let left = run("zfs", &["list", "-H", "-t", "snapshot", "-o", "name", "-r", &pool.full("w")]);
    assert_eq!(left.lines().count(), 4, "no snapshot of libzfs's own stays: {left}");
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn what_libzfs_does_not_tell_is_told() {
    let pool = Pool::new();
    pool.create("w", &[]);
    let (project, outside) = (pool.path("w/project"), pool.path("w/outside"));
    fs::create_dir(&project).unwrap();
    fs::create_dir(&outside).unwrap();
    let bench = Bench::new(&pool, &project);
    bench.write("a/one", "x");
    let one = project.join("a/one");
    let first = bench.take("a");
    // Written under a name outside that was renamed: libzfs tells of that name alone.
    fs::hard_link(&one, outside.join("old")).unwrap();
    fs::rename(outside.join("old"), outside.join("new")).unwrap();
    fs::write(outside.join("new"), "y").unwrap();
    let second = bench.take("b");
    assert_eq!(words(&diff(&bench, &first, Some(&second)).unwrap()), "~a/one");
    // The name that it was given last is gone: libzfs tells nothing of what is written from then on.
    fs::remove_dir_all(&outside).unwrap();
    let third = bench.take("c");
    fs::write(&one, "z").unwrap();
    assert_eq!(words(&diff(&bench, &third, None).unwrap()), "~a/one");
    let fourth = bench.take("d");
    let found = diff(&bench, &third, Some(&fourth)).unwrap();
    assert_eq!((words(&found).as_str(), found.untouched), ("~a/one", false));
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().count();
    for _ in 0..3 {
        let _ = diff(&bench, &first, Some(&second));
    }
    assert_eq!(fs::read_dir("/proc/self/fd").unwrap().count(), descriptors);
}

#[test]
#[ignore = "needs a kernel with ZFS"]
fn what_nobody_wrote_to_is_untouched() {
    use std::os::unix::fs::symlink;
    let pool = Pool::new();
    pool.create("w", &["-o", "atime=off"]);
    pool.create("w/child", &[]);
    for below in ["", "project"] {
        let root = pool.path("w").join(below);
        fs::create_dir_all(&root).unwrap();
        let bench = Bench::named(&pool, if below.is_empty() { "top" } else { "deep" }, &root);
        for path in ["data", "mode", "gone", "times", "attribute", "same"] {
            bench.write(path, "one");
        }
        let untouched = |from: &Snapshot, to: &Snapshot| {
            let found = diff(&bench, from, Some(to)).unwrap();
            // It is told without a look at the files.
            let told = if found.untouched { DiffMethod::Native } else { DiffMethod::Walk };
            assert_eq!(found.method, told);
            found.untouched
        };
        let first = bench.take("first");
        let again = bench.take("again");
        fs::read(root.join("data")).unwrap();
        let third = bench.take("third");
        assert!(untouched(&first, &first) && untouched(&first, &again) && untouched(&first, &third));
        assert!(!diff(&bench, &third, None).unwrap().untouched, "of the present nobody knows");
        let (mut last, at) = (third.clone(), |name: &str| root.join(name));
        let flags = rustix::fs::XattrFlags::empty();
        let writes: [(&str, &dyn Fn()); 10] = [
            ("attribute", &|| rustix::fs::setxattr(at("attribute"), c"user.test", b"value", flags).unwrap()),
            ("data", &|| fs::write(at("data"), "two").unwrap()),
            ("mode", &|| fs::set_permissions(at("mode"), fs::Permissions::from_mode(0o600)).unwrap()),
            ("removed", &|| fs::remove_file(at("gone")).unwrap()),
            ("times", &|| drop(run("touch", &["-m", "-d", "@1000000000", at("times").to_str().unwrap()]))),
            ("same", &|| fs::write(at("same"), "one").unwrap()),
            ("directory", &|| fs::create_dir(at("new")).unwrap()),
            ("symlink", &|| symlink("data", at("link")).unwrap()),
            ("renamed", &|| fs::rename(at("data"), at("moved")).unwrap()),
            ("owner", &|| std::os::unix::fs::chown(at("mode"), Some(1000), None).unwrap()),
        ];
        for (what, write) in writes {
            write();
            let now = bench.take(what);
            assert!(!untouched(&last, &now) && !untouched(&first, &now), "{below}: {what}");
            last = now;
        }
        // Undone is not untouched.
        bench.write("undone", "x");
        fs::remove_file(at("undone")).unwrap();
        let undone = bench.take("undone");
        assert!(!untouched(&last, &undone));
        assert!(!untouched(&undone, &last) && untouched(&again, &first), "which was first is no matter");
        // Nothing was written, but what is left out is another thing now.
        if below.is_empty() {
            run("zfs", &["unmount", &pool.full("w/child")]);
            let shown = bench.take("shown");
            assert!(!untouched(&undone, &shown));
            run("zfs", &["mount", &pool.full("w/child")]);
        }
    }
}
