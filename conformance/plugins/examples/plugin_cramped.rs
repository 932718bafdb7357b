//! Cannot read a file for want of room of its own; everything else is fine.

use ah_plugin_api::{Error, ErrorKind};
use ah_test_plugins::Trivial;

fn make() -> Trivial {
    let mut provider = Trivial::new("cramped");
    provider.refuse =
        || Err(Error::new(ErrorKind::ResourceExhausted, "there is no room to unpack it").with_hint("enlarge the pool"));
    provider
}

ah_plugin_api::export_provider!(make());
