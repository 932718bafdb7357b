//! Ends the process in its constructor.

#![allow(unsafe_code)]

extern "C" fn exit() {
    std::process::exit(3);
}

// SAFETY: the section holds functions of that type, which is what this is.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = exit;

ah_plugin_api::export_provider!(ah_test_plugins::Trivial::new("exits"));
