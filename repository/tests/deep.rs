//! A repository with folders without end. A file of its own: the limit holds for all of a process.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::fd::OwnedFd;

use ah_plugin_api::{Context, Dir};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Of a service that serves several, one caller's folders must not take all the descriptors.
#[test]
fn taking_a_deep_repository_away_takes_few_descriptors() {
    let few = Rlimit { current: Some(256), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, few).unwrap();
    let temp = tempfile::tempdir().unwrap();
    let git = temp.path().join(".git");
    std::fs::create_dir(&git).unwrap();
    let mut at = OwnedFd::from(std::fs::File::open(&git).unwrap());
    for _ in 0..3000 {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let notes = ah_repository::own(&Dir::open(temp.path()).unwrap(), None, None, &Context::quiet()).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("without .git"), "{notes:?}");
    assert!(!git.exists());
}
