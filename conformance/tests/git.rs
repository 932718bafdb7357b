//! The suite against the Git provider: through the trait, and over a socket from a child that loads its library, which is both adapters at once. From
//! a library alone it is the example provider's (`minimal.rs`).

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex, PoisonError};

use ah_conformance::{InProcess, Target, check, run};
use ah_provider_git::GitProvider;

/// One at a time: a process that the other test starts has what is open here open, too, until it runs its program, and a view would be in use.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn through_the_trait() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let target: Arc<dyn Target> = Arc::new(InProcess::new("git", GitProvider::default));
    common::must_keep(&run(&target, &common::options(), &mut |_| {}));
}

#[test]
fn over_a_socket() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let library = common::build("providers/git/plugin/Cargo.toml", "libah_provider_git.so");
    common::must_keep(&check(common::child(), &library, &common::options(), &mut |_| {}));
}
