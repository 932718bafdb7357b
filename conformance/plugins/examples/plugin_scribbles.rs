//! Says of its version what would be written over other lines of a terminal; everything else is fine.

use ah_test_plugins::Trivial;

fn make() -> Trivial {
    let mut provider = Trivial::new("scribbles");
    provider.version = "1.0\n\u{1b}[2J".to_owned();
    provider
}

ah_plugin_api::export_provider!(make());
