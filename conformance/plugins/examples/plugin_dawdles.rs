//! Does not come to an end in its initialiser.

use std::time::Duration;

use ah_test_plugins::Trivial;

fn make() -> Trivial {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

ah_plugin_api::export_provider!(make());
