//! What comes along of a repository's own files, and what is said where it does not.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Bench, git};

fn repository() -> Bench {
    let bench = Bench::new();
    let work = bench.workspace.path();
    git(work, &["init", "-q", "-b", "main"]);
    bench.write("kept/f", "1");
    bench.write("other/f", "2");
    git(work, &["add", "."]);
    git(work, &["commit", "-q", "-m", "first"]);
    bench
}

#[test]
fn that_there_are_too_many_refs_to_take_along_is_said() {
    let bench = repository();
    assert_eq!(bench.clone(&bench.snapshot(), "few").notes, Vec::<String>::new());
    let head = git(bench.workspace.path(), &["rev-parse", "HEAD"]);
    let lines: Vec<_> = (0..80_000).map(|n| format!("{} refs/tags/t{n:05}\n", head.trim())).collect();
    bench.write(".git/packed-refs", lines.concat());
    let clone = bench.clone(&bench.snapshot(), "many");
    assert!(clone.notes.len() == 1 && clone.notes[0].contains("too many"), "{:?}", clone.notes);
    assert_eq!(git(&clone.path, &["rev-parse", "main"]), head);
}
