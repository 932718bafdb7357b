//! Nothing is wrong with this one.

ah_plugin_api::export_provider!(ah_test_plugins::Trivial::new("good"));
