//! Its constructor panics.

fn make() -> ah_test_plugins::Trivial {
    panic!("no moon at all")
}

ah_plugin_api::export_provider!(make());
