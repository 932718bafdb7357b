//! What the tests with agents stand on: a network in which there is nothing but loopback, a world of their own, the agents.
//!
//! The tests are in `tests/real/`. They run the real `ah`, the mock agent, and Claude Code and Codex as they come from npm
//! (`scripts/setup agents`) against `mock-model-server`. Each runs in a network namespace of its own in which only loopback is up, and in a process
//! namespace that ends with it: nothing of an agent reaches the network or outlives its test.
//!
//! Not here: tests that need no agent (`cli/tests`), and the mocks' own (`mocks/tests`).

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "for tests only; a panic is a failed test")]

pub mod agents;
pub mod namespace;
pub mod server;
pub mod world;

use std::path::PathBuf;

/// A test had nothing to do here, and why; in CI, and where all is required, that is a failure.
pub fn skip(reason: &str) {
    let required = ["CI", "AH_TEST_REQUIRE_ALL"].iter().any(|name| std::env::var_os(name).is_some());
    assert!(!required, "skipped: {reason}");
    eprintln!("skipped: {reason}");
}

/// The folder of the programs under test, which is that above the test's own.
#[must_use]
pub fn programs() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().and_then(std::path::Path::parent).unwrap().to_owned()
}
