//! The suite against the example provider, as a stranger's would be: from its library, and over a socket.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use ah_conformance::{Library, Target, check, run};

fn library() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| common::build("examples/minimal-provider/Cargo.toml", "libah_provider_minimal.so")).clone()
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
