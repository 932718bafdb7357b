//! What is left out, and why.

use std::fs;

use ah_plugin_api::OmitReason;

use super::{Bench, reasons};

#[test]
fn ignored_things_and_the_policy() {
    let mut bench = Bench::new();
    bench.policy.max_ignored_size = 10;
    bench.policy.max_file_size = 100;
    bench.policy.exclude = vec!["*.secret".into(), "/out/".into()];
    bench.policy.include = vec!["/target/keep/".into(), "/logs/*.txt".into()];
    bench.policy.own_state = vec![ah_plugin_api::RelPath::new("state/ah").unwrap()];
    bench.write(".gitignore", "target/\n*.env\nlogs/\n");
    bench.write("small.env", "tiny");
    bench.write("large.env", "larger than ten");
    bench.write("huge", &"x".repeat(101));
    bench.write("target/junk", "junk");
    bench.write("target/keep/this", "this is more than ten bytes");
    bench.write("logs/a.txt", "a");
    bench.write("logs/b.bin", "b");
    bench.write("x.secret", "x");
    bench.write("out/put", "x");
    bench.write("state/ah/db", "x");
    rustix::fs::mknodat(rustix::fs::CWD, bench.path("fifo"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
        .unwrap();
    let expected = [
        ("fifo", OmitReason::SpecialFile),
        ("huge", OmitReason::TooLarge),
        ("large.env", OmitReason::Ignored),
        ("logs/b.bin", OmitReason::Ignored),
        ("out", OmitReason::Excluded),
        ("state/ah", OmitReason::OwnState),
        ("target/junk", OmitReason::Ignored),
        ("x.secret", OmitReason::Excluded),
    ]
    .map(|(path, reason)| (path.to_owned(), reason));
    assert_eq!(reasons(&bench.take_and_compare()), expected);
    bench.settle();
    assert_eq!(reasons(&bench.take_and_compare()), expected);
    // What was too large shrinks, what was small grows, without a change to the directory.
    fs::write(bench.path("huge"), "small").unwrap();
    fs::write(bench.path("large.env"), "small").unwrap();
    fs::write(bench.path("small.env"), "no longer that small").unwrap();
    let taken = bench.take_and_compare();
    let now: Vec<_> = reasons(&taken).into_iter().map(|(path, _)| path).collect();
    assert!(now.contains(&"small.env".to_owned()) && !now.contains(&"huge".to_owned()));
    assert!(!now.contains(&"large.env".to_owned()));
    // Nothing left that is included: the directory is one omission.
    fs::remove_dir_all(bench.path("target/keep")).unwrap();
    let taken = bench.take_and_compare();
    assert!(reasons(&taken).contains(&("target".to_owned(), OmitReason::Ignored)), "{:?}", taken.omitted);
    bench.settle();
    bench.take_and_compare();
    bench.write("target/keep/again", "again");
    let taken = bench.take_and_compare();
    assert!(reasons(&taken).contains(&("target/junk".to_owned(), OmitReason::Ignored)), "{:?}", taken.omitted);
    // Rules that change.
    bench.settle();
    bench.take_and_compare();
    bench.write(".gitignore", "logs/\n");
    let taken = bench.take_and_compare();
    assert!(!reasons(&taken).iter().any(|(path, _)| path.starts_with("target") || path.ends_with(".env")));
    bench.write("state/.gitignore", "*\n");
    bench.write("state/more", "more than ten bytes");
    let taken = bench.take_and_compare();
    assert!(reasons(&taken).contains(&("state/more".to_owned(), OmitReason::Ignored)), "{:?}", taken.omitted);
}

#[test]
fn tracked_files_are_not_ignored() {
    let bench = Bench::new();
    bench.git(&["init", "-q"]);
    bench.write(".gitignore", "build/\n*.o\n");
    bench.write("build/tracked", "t");
    bench.write("build/deep/er/tracked", "t");
    bench.write("build/not", "n");
    bench.write("x.o", "x");
    assert_eq!(reasons(&bench.take_and_compare()), [("build".to_owned(), OmitReason::Ignored)]);
    bench.git(&["add", "-f", "build/tracked", "build/deep/er/tracked", "x.o"]);
    bench.settle();
    let taken = bench.take_and_compare();
    assert_eq!(reasons(&taken), [("build/not".to_owned(), OmitReason::Ignored)]);
    bench.settle();
    bench.git(&["rm", "-q", "--cached", "build/deep/er/tracked"]);
    let taken = bench.take_and_compare();
    let expected = [("build/deep", OmitReason::Ignored), ("build/not", OmitReason::Ignored)];
    assert_eq!(reasons(&taken), expected.map(|(path, reason)| (path.to_owned(), reason)));
    bench.git(&["commit", "-q", "-m", "m"]);
    fs::write(bench.path(".git/info/exclude"), "*.txt\n").unwrap();
    bench.write("a.txt", &"x".repeat(2 << 20));
    let taken = bench.take_and_compare();
    assert!(reasons(&taken).contains(&("a.txt".to_owned(), OmitReason::Ignored)));
}

#[test]
fn nested_repositories_are_captured_as_files_by_their_own_rules() {
    let bench = Bench::new();
    bench.git(&["init", "-q"]);
    bench.write(".gitignore", "*.log\n");
    bench.write("sub/a.log", "not ignored in there");
    bench.write("sub/b.tmp", &"x".repeat(2 << 20));
    bench.git(&["init", "-q", "sub"]);
    bench.settle();
    let taken = bench.take_and_compare();
    assert_eq!(reasons(&taken), [("sub/.git".to_owned(), OmitReason::GitDir)]);
    bench.settle();
    bench.take_and_compare();
    fs::write(bench.path("sub/.git/info/exclude"), "*.tmp\n").unwrap();
    let taken = bench.take_and_compare();
    let expected = [("sub/.git", OmitReason::GitDir), ("sub/b.tmp", OmitReason::Ignored)];
    assert_eq!(reasons(&taken), expected.map(|(path, reason)| (path.to_owned(), reason)));
    bench.settle();
    fs::remove_dir_all(bench.path("sub/.git")).unwrap();
    let taken = bench.take_and_compare();
    assert_eq!(reasons(&taken), []);
}
