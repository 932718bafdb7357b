//! Does not come to an end in its constructor, which the system's loader runs.

#![allow(unsafe_code)]

use std::time::Duration;

extern "C" fn stall() {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

// SAFETY: the section holds functions of that type, which is what this is.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = stall;

ah_plugin_api::export_provider!(ah_test_plugins::Trivial::new("stalls"));
