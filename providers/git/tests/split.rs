//! Clones of repositories with a split index.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{Bench, git};
use sha1::{Digest, Sha1};

fn status(dir: &Path) -> String {
    git(dir, &["status", "--porcelain=v2", "--branch", "--untracked-files=all"])
}

#[test]
fn a_split_index_is_whole_in_the_clone() {
    let bench = Bench::new();
    let work = bench.workspace.path().to_owned();
    for n in 0..30 {
        bench.write(&format!("d{}/f{n}", n % 3), format!("{n}"));
    }
    for args in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "one"], &["update-index", "--split-index"]]
    {
        git(&work, args);
    }
    // Changed, deleted, added and staged again, so that the first file says other than the second.
    for n in [1, 2, 3] {
        bench.write(&format!("d{}/f{n}", n % 3), format!("changed {n}"));
    }
    bench.write("new", "new");
    git(&work, &["rm", "-q", "--cached", "d1/f4"]);
    git(&work, &["add", "d1/f1", "new"]);
    git(&work, &["update-index", "--skip-worktree", "d2/f5"]);
    let shared = std::fs::read_dir(work.join(".git")).unwrap();
    assert!(shared.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("sharedindex.")));
    let snapshot = bench.snapshot();
    let staged = git(&work, &["ls-files", "--stage", "-t", "-v"]);
    let before = status(&work);
    std::fs::remove_dir_all(work.join(".git")).unwrap();
    let clone = bench.clone(&snapshot, "c");
    assert_eq!(git(&clone.path, &["ls-files", "--stage", "-t", "-v"]), staged);
    assert_eq!(status(&clone.path), before);
    assert!(std::fs::read_dir(bench.store.path().join("tmp")).unwrap().next().is_none());
}

/// The caches of an index, which whoever takes them apart by recursion does not come back from.
#[test]
fn a_split_index_with_caches_nested_without_end_is_whole_in_the_clone() {
    let bench = Bench::new();
    let work = bench.workspace.path().to_owned();
    bench.write("f", "x");
    for args in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "one"], &["update-index", "--split-index"]]
    {
        git(&work, args);
    }
    let staged = git(&work, &["ls-files", "--stage"]);
    let shared = std::fs::read_dir(work.join(".git")).unwrap().flatten().map(|entry| entry.path());
    let shared = shared.into_iter().find(|path| path.to_string_lossy().contains("/sharedindex.")).unwrap();
    let cache = [&b"\0-1 1\n"[..], &b"a\0-1 1\n".repeat(400_000), b"a\0-1 0\n"].concat();
    let with_cache = |path: &Path| {
        let mut index = std::fs::read(path).unwrap();
        index.truncate(index.len() - 20);
        index.extend_from_slice(b"TREE");
        index.extend_from_slice(&u32::try_from(cache.len()).unwrap().to_be_bytes());
        index.extend_from_slice(&cache);
        let checksum = Sha1::digest(&index);
        index.extend_from_slice(&checksum);
        (index, checksum)
    };
    // In the second half, which is named by its checksum then, and in the first.
    let index = work.join(".git/index");
    let former = std::fs::read(&shared).unwrap();
    let (whole, checksum) = with_cache(&shared);
    let name: String = checksum.iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(shared.with_file_name(format!("sharedindex.{name}")), whole).unwrap();
    let mut main = std::fs::read(&index).unwrap();
    let link = main.windows(20).position(|at| *at == former[former.len() - 20..]).unwrap();
    main[link..link + 20].copy_from_slice(&checksum);
    std::fs::write(&index, main).unwrap();
    let (whole, _) = with_cache(&index);
    std::fs::write(&index, whole).unwrap();
    let snapshot = bench.snapshot();
    let clone = bench.clone(&snapshot, "c");
    assert_eq!(git(&clone.path, &["ls-files", "--stage"]), staged);
}
