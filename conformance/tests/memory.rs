//! The suite against the in-memory provider, straight through the trait: the two keep each other honest.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ah_conformance::{InProcess, MemoryProvider, Options, Target, run};

#[test]
fn memory_keeps_the_contract() {
    let shared = MemoryProvider::default();
    let target: Arc<dyn Target> = Arc::new(InProcess::new("memory", move || shared.clone()));
    let nothing_written = "it keeps everything in memory, so that its store can be read-only and nobody notices";
    let options = Options::new(std::env::temp_dir()).expect_failure("failure.read-only-store", nothing_written);
    let report = run(&target, &options, &mut |_| {});
    println!("{}", report.to_text(true));
    assert!(report.ok, "see the report above");
}
