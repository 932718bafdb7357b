//! Crashes in its constructor: the system's loader runs it, before anyone can ask this library for anything.

#![allow(unsafe_code)]

extern "C" fn crash() {
    // SAFETY: it is not; this is the crash.
    unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
}

// SAFETY: the section holds functions of that type, which is what this is.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = crash;

ah_plugin_api::export_provider!(ah_test_plugins::Trivial::new("crashes"));
