//! Its constructor answers with an error.

use ah_plugin_api::{Error, ErrorKind, Result};
use ah_test_plugins::Trivial;

fn make() -> Result<Trivial> {
    Err(Error::new(ErrorKind::FailedPrecondition, "the moon is not full").with_hint("wait"))
}

ah_plugin_api::export_provider!(make());
