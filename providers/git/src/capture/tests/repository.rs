//! The user's repository beside the files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ah_plugin_api::{Context, Dir, OmitReason, Snapshot};

use super::{Bench, base_request, reasons};
use crate::capture::snapshot;
use crate::store::Store;

/// Contents, inode, mode and times.
type Attributes = (Vec<u8>, u64, u32, [i64; 4]);

/// Everything below a directory, with all attributes but access times.
fn everything(dir: &Path) -> BTreeMap<PathBuf, Attributes> {
    let mut out = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let data = if stat.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else {
            fs::read(&path).unwrap()
        };
        // Keeping objects may add a link to them, which is a ctime.
        let linked = path.components().any(|part| part.as_os_str() == "objects");
        let ctime = if linked { (0, 0) } else { (stat.ctime(), stat.ctime_nsec()) };
        let times = [stat.mtime(), stat.mtime_nsec(), ctime.0, ctime.1];
        out.insert(path, (data, stat.ino(), stat.mode(), times));
    }
    out
}

fn rev_parse(dir: &Path, what: &str) -> String {
    let output = Command::new("git").args(["rev-parse", what]).current_dir(dir).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn the_repository_is_recorded_and_not_touched() {
    let bench = Bench::new();
    bench.write("file", "one");
    assert_eq!(bench.take_and_compare().repository, None);
    bench.git(&["init", "-q", "-b", "trunk"]);
    let unborn = bench.take_and_compare().repository.unwrap();
    assert_eq!((unborn.head, unborn.branch.as_deref()), (None, Some("refs/heads/trunk")));
    bench.git(&["add", "file"]);
    bench.git(&["commit", "-q", "-m", "m"]);
    let index = |taken: &Snapshot| bench.entry(&bench.top(taken), b"index").map(|(_, id)| bench.object(&id).1);
    let before = everything(&bench.path(".git"));
    let taken = bench.take_and_compare();
    assert_eq!(everything(&bench.path(".git")), before);
    let state = taken.repository.clone().unwrap();
    assert_eq!(state.head, Some(rev_parse(&bench.path(""), "HEAD")));
    assert_eq!((state.branch.as_deref(), state.not_kept.clone()), (Some("refs/heads/trunk"), None));
    assert_eq!(index(&taken), Some(fs::read(bench.path(".git/index")).unwrap()));
    // The index changes, and only the index.
    bench.settle();
    bench.take();
    bench.git(&["rm", "-q", "--cached", "file"]);
    assert_eq!(index(&bench.take_and_compare()), Some(fs::read(bench.path(".git/index")).unwrap()));
    bench.git(&["reset", "-q", "--hard"]);

    // A linked worktree has a HEAD and an index of its own.
    bench.git(&["worktree", "add", "-q", "-b", "side", "../linked"]);
    let linked = Bench::new();
    fs::remove_dir(linked.path("")).unwrap();
    fs::rename(bench.dir.path().join("linked"), linked.path("")).unwrap();
    let taken = linked.take();
    assert_eq!(taken.repository.as_ref().unwrap().branch.as_deref(), Some("refs/heads/side"));
    assert_eq!(reasons(&taken), []);
    assert!(linked.listing(&taken).contains_key(Path::new("file")));

    // A directory inside a repository has its rules, and is none.
    bench.write(".gitignore", "*.tmp\n");
    bench.write("inner/x.tmp", &"x".repeat(2 << 20));
    bench.write("inner/y", "y");
    let inner = Dir::open(bench.path("inner")).unwrap();
    let store = tempfile::tempdir().unwrap();
    let store = Store::open(&Dir::open(store.path()).unwrap()).unwrap();
    let taken = snapshot(&store, &inner, &base_request(), &Context::quiet()).unwrap();
    assert_eq!(taken.repository, None);
    assert_eq!(reasons(&taken), [("x.tmp".to_owned(), OmitReason::Ignored)]);

    // Nothing of it is needed any more.
    fs::remove_dir_all(bench.path(".git")).unwrap();
    assert_eq!(bench.take_and_compare().repository, None);
    fs::write(bench.path(".git"), "gitdir: /nowhere/at/all").unwrap();
    assert_eq!(bench.take_and_compare().repository, None);
    fs::remove_file(bench.path(".git")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, bench.path(".git"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    assert_eq!(bench.take_and_compare().repository, None);
}

#[test]
fn a_submodule_in_an_ignored_place() {
    let bench = Bench::new();
    bench.git(&["init", "-q"]);
    bench.write(".gitignore", "vendor/\n");
    bench.git(&["init", "-q", "vendor/lib"]);
    bench.write("vendor/lib/file", "x");
    bench.write("vendor/other", "x");
    assert_eq!(reasons(&bench.take_and_compare()), [("vendor".to_owned(), OmitReason::Ignored)]);
    bench.settle();
    let commit =
        ["-C", "vendor/lib", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-q", "--allow-empty", "-m", "m"];
    bench.git(&commit);
    bench.git(&["-c", "advice.addEmbeddedRepo=false", "add", "-f", "vendor/lib"]);
    let expected = [("vendor/lib/.git", OmitReason::GitDir), ("vendor/other", OmitReason::Ignored)];
    let expected = expected.map(|(path, reason)| (path.to_owned(), reason));
    for _ in 0..3 {
        let taken = bench.take_and_compare();
        assert_eq!(reasons(&taken), expected);
        assert!(bench.listing(&taken).contains_key(Path::new("vendor/lib/file")));
        bench.settle();
    }
    bench.git(&["update-index", "--force-remove", "vendor/lib"]);
    assert_eq!(reasons(&bench.take_and_compare()), [("vendor".to_owned(), OmitReason::Ignored)]);
}

#[test]
fn an_index_of_any_size_holds_nothing_up() {
    let bench = Bench::new();
    bench.write("file", "one");
    bench.git(&["init", "-q"]);
    fs::File::create(bench.path(".git/index")).unwrap().set_len(1 << 40).unwrap();
    let start = std::time::Instant::now();
    let recorded = bench.take().repository.unwrap();
    assert_eq!(recorded.not_kept.as_deref(), Some("its index is larger than 512 MiB"));
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}
