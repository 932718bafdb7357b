//! Ends the process in `snapshot`, as if all had gone well; everything else is fine.

use ah_test_plugins::Trivial;

fn make() -> Trivial {
    let mut provider = Trivial::new("quits");
    provider.before = |operation, _| {
        if operation == "snapshot" {
            std::process::exit(0);
        }
    };
    provider
}

ah_plugin_api::export_provider!(make());
