//! Directories without end, as an agent that runs wild leaves them. A file of its own: the limit holds for all of a process.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use ah_plugin_api::{Context, EntryKind, RelPath};
use ah_provider_directory::{Comparison, Plain, Side, remove_contents};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LEVELS: usize = 5000;

fn open(path: &Path) -> OwnedFd {
    std::fs::File::open(path).unwrap().into()
}

/// Directories in one another, with a file at the bottom.
fn deep(top: &Path, text: &str) {
    let mut at = open(top);
    for _ in 0..LEVELS {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let file = rustix::fs::openat(&at, "file", OFlags::WRONLY | OFlags::CREATE, Mode::RUSR).unwrap();
    rustix::io::write(&file, text.as_bytes()).unwrap();
}

#[test]
fn deep_directories_are_compared_with_few_descriptors() {
    let few = Rlimit { current: Some(128), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, few).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let [one, other, empty] = ["one", "other", "empty"].map(|name| temp.path().join(name));
    for dir in [&one, &other, &empty] {
        std::fs::create_dir(dir).unwrap();
        std::fs::write(dir.join("zuletzt"), dir.as_os_str().as_encoded_bytes()).unwrap();
    }
    deep(&one, "1");
    deep(&other, "2");
    let differ = |from: &Path, to: &Path, paths: &[RelPath]| {
        let [from, to] = [from, to].map(|top| Side::new(open(top), |_| false));
        let all = Comparison { from: &from, to: &to, touched: None, settled: None, times: false };
        let (changes, unread) = all.run(paths, &Context::quiet()).unwrap();
        assert_eq!(unread, []);
        changes
    };
    let bottom = RelPath::new(format!("{}file", "d/".repeat(LEVELS))).unwrap();
    let last = RelPath::new("zuletzt").unwrap();
    let changes = differ(&one, &other, &[]);
    assert_eq!(changes.iter().map(|change| &change.path).collect::<Vec<_>>(), [&bottom, &last]);
    assert_eq!(differ(&one, &other, &[bottom.parent().unwrap()]).len(), 1);
    // On one side only.
    for (from, to) in [(&one, &empty), (&empty, &one)] {
        let changes = differ(from, to, &[]);
        assert_eq!(changes.len(), LEVELS + 2);
        let is_dir = |entry: &ah_plugin_api::Entry| entry.kind == EntryKind::Dir;
        let [before, after] = [&changes[0].before, &changes[0].after].map(|it| it.as_ref().is_some_and(is_dir));
        assert_eq!((before, after), (from == &one, from == &empty));
        assert_eq!((&changes[LEVELS].path, &changes[LEVELS + 1].path), (&bottom, &last));
    }
    for dir in [one, other] {
        remove_contents(open(&dir).as_fd(), &Plain, &Context::quiet()).unwrap();
    }
}
