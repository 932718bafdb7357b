//! Says more of a snapshot than anybody can want to know; everything else is fine.

use ah_plugin_api::{Omission, OmitReason, RelPath};
use ah_test_plugins::Trivial;

fn make() -> Trivial {
    let mut provider = Trivial::new("floods");
    provider.tell = |snapshot| {
        let path = |number: u32| RelPath::new(format!("{number:0>200}")).expect("a path");
        let omission = |number| Omission { path: path(number), reason: OmitReason::Ignored, detail: None };
        snapshot.omitted = (0..40_000).map(omission).collect();
    };
    provider
}

ah_plugin_api::export_provider!(make());
