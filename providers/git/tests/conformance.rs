//! The conformance suite as an ordinary user, where the tests run as root. As whoever runs them, and over a socket, it is in
//! `ah-conformance`, which has no second user.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use ah_conformance::{InProcess, Options, Target, run};
use ah_provider_git::GitProvider;

#[test]
fn git_keeps_the_contract_for_an_ordinary_user() {
    if !common::as_ordinary_user("git_keeps_the_contract_for_an_ordinary_user") {
        return;
    }
    let target: Arc<dyn Target> = Arc::new(InProcess::new("git", GitProvider::new));
    let report = run(&target, &Options::new(std::env::temp_dir()), &mut |_| {});
    println!("{}", report.to_text(true));
    assert!(report.ok, "see the report above");
}
