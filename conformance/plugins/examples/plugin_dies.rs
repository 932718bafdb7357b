//! Takes the process along in `snapshot`, by a signal, as a crash would, but that no core file is left; everything else is fine.

use ah_test_plugins::Trivial;
use rustix::process::{Signal, getpid, kill_process};

fn make() -> Trivial {
    let mut provider = Trivial::new("dies");
    provider.before = |operation, _| {
        if operation == "snapshot" {
            kill_process(getpid(), Signal::KILL).expect("a process may end itself");
        }
    };
    provider
}

ah_plugin_api::export_provider!(make());
