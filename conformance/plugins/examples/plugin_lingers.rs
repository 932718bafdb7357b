//! Takes the process along at its very end, in a finalizer, when all is done; everything else is fine.

#![allow(unsafe_code)]

use rustix::process::{Signal, getpid, kill_process};

extern "C" fn linger() {
    // As a crash would, but that no core file is left.
    kill_process(getpid(), Signal::KILL).expect("a process may end itself");
}

// SAFETY: the section holds functions of that type, which is what this is.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINALIZER: extern "C" fn() = linger;

ah_plugin_api::export_provider!(ah_test_plugins::Trivial::new("lingers"));
