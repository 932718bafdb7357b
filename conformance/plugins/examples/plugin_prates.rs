//! Says more of its version than anybody can want to know; everything else is fine.

use ah_test_plugins::Trivial;

fn make() -> Trivial {
    let mut provider = Trivial::new("prates");
    provider.version = "1".repeat(1 << 20);
    provider
}

ah_plugin_api::export_provider!(make());
