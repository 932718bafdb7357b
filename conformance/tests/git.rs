//! The suite against the Git provider, all three ways.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ah_conformance::{InProcess, Library, Target, check, run};
use ah_provider_git::GitProvider;

fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| common::build("providers/git/plugin/Cargo.toml", "libah_provider_git.so")).clone()
}

#[test]
fn through_the_trait() {
    let target: Arc<dyn Target> = Arc::new(InProcess::new("git", GitProvider::default));
    common::must_keep(&run(&target, &common::options(), &mut |_| {}));
}

#[test]
fn from_its_library() {
    let target: Arc<dyn Target> = Arc::new(Library::new(library()));
    common::must_keep(&run(&target, &common::options(), &mut |_| {}));
}

#[test]
fn over_a_socket() {
    common::must_keep(&check(common::child(), &library(), &common::options(), &mut |_| {}));
}
