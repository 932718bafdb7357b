//! Ends the process as if all had gone well while it is loaded, where `AH_TEST_FLEE` says; without that, everything is fine.

#![allow(unsafe_code)]

use ah_test_plugins::Trivial;

fn flee(here: &str) {
    if std::env::var("AH_TEST_FLEE").is_ok_and(|place| place == here) {
        std::process::exit(0);
    }
}

extern "C" fn construct() {
    flee("constructor");
}

// SAFETY: the section holds functions of that type, which is what this is.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

fn make() -> Trivial {
    flee("initialiser");
    Trivial::new("flees")
}

ah_plugin_api::export_provider!(make());
