//! Built against the table as it was one operation ago: without `convert`.

ah_plugin_api::export_provider!(@with ah_plugin_api::abi::frozen::header, ah_test_plugins::Trivial::new("older"));
