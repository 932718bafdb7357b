//! Says more of a snapshot than anybody can want to know; everything else is fine.

use ah_plugin_api::RepositoryState;
use ah_test_plugins::Trivial;

fn make() -> Trivial {
    let mut provider = Trivial::new("floods");
    provider.tell = |snapshot| {
        snapshot.repository = Some(RepositoryState { head: Some("x".repeat(5 << 20)), ..RepositoryState::default() });
    };
    provider
}

ah_plugin_api::export_provider!(make());
