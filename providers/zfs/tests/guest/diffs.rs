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
