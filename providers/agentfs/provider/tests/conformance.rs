//! The contract's suite on branches of AgentFS, as root and as an ordinary user. From the library and over a socket it is
//! `ah agent fs check` that runs it, by hand.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use ah_conformance::{InProcess, Options, Target, run};
use ah_provider_agentfs::AgentFsProvider;
use ah_test_disks::{mounting_as_ordinary_user, ordinary_users_path};

fn suite(scratch: &Path) {
    let mut options = Options::new(scratch);
    // To run some cases only: AH_TEST_CASES=exact.,views.names
    let only = std::env::var("AH_TEST_CASES").unwrap_or_default();
    options.only = only.split(',').filter(|part| !part.is_empty()).map(ToOwned::to_owned).collect();
    let target: Arc<dyn Target> = Arc::new(InProcess::new("agentfs", AgentFsProvider::new));
    let report = run(&target, &options, &mut |_| {});
    println!("{}", report.to_text(true));
    assert!(report.ok, "{}", report.to_text(false));
}

#[test]
fn workspaces_that_are_branches() {
    let scratch = tempfile::tempdir().unwrap();
    suite(scratch.path());
}

#[test]
fn as_an_ordinary_user() {
    if let Some(path) = ordinary_users_path() {
        return suite(&path);
    }
    mounting_as_ordinary_user("as_an_ordinary_user");
}
