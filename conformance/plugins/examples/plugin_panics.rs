//! Panics in `snapshot`; everything else is fine.

use ah_test_plugins::Trivial;

fn make() -> Trivial {
    let mut provider = Trivial::new("panics");
    provider.before = |operation, _| assert!(operation != "snapshot", "as it was told to");
    provider
}

ah_plugin_api::export_provider!(make());
