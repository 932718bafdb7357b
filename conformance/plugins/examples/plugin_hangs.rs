//! Hangs in `snapshot`, without a sign of life; everything else is fine.

use std::time::Duration;

use ah_test_plugins::Trivial;

fn make() -> Trivial {
    let mut provider = Trivial::new("hangs");
    provider.before = |operation, _| {
        if operation == "snapshot" {
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
    };
    provider
}

ah_plugin_api::export_provider!(make());
