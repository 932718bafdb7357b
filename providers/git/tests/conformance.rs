//! The conformance suite against this provider, straight through the trait.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ah_conformance::{InProcess, Options, Target, run};
use ah_provider_git::GitProvider;

#[test]
fn git_keeps_the_contract() {
    let target: Arc<dyn Target> = Arc::new(InProcess::new("git", GitProvider::new));
    let report = run(&target, &Options::new(std::env::temp_dir()), &mut |_| {});
    println!("{}", report.to_text(true));
    assert!(report.ok, "see the report above");
}
