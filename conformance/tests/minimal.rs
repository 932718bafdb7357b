//! The suite against the example provider, as a stranger's would be: from its library. Over a socket it is what `ah agent fs check` does, which
//! `scripts/test` runs with it.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use ah_conformance::{Library, Target, run};

#[test]
fn from_its_library() {
    let target: Arc<dyn Target> = Arc::new(Library::new(common::build_example()));
    common::must_keep(&run(&target, &common::options(), &mut |_| {}));
}
