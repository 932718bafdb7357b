//! Says that it captured every file, but what it gives back is not what was there.

use ah_test_plugins::Trivial;

fn make() -> Trivial {
    let mut provider = Trivial::new("lies");
    provider.capture = |bytes| {
        if let Some(last) = bytes.last_mut() {
            *last = last.wrapping_add(1);
        }
    };
    provider
}

ah_plugin_api::export_provider!(make());
