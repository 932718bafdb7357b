//! Signals. Ctrl-C: the first asks the operation to stop and clean up, a second one ends the process at once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

/// Starts listening; the flag is true from the first signal on. No thread is involved, so `exec` may still
/// unshare afterwards, and an `execve` gives the signals their defaults back.
pub(crate) fn listen() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let ignored = ignored();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // `nohup`, and shells that run a script's background job, mean it.
        if ignored & (1 << (signal - 1)) != 0 {
            continue;
        }
        // The order matters: the first of the two looks whether a signal came before, the second takes note of this one.
        // Failing leaves the default action, which ends the process: restores and snapshots are safe against that too.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag));
        let _ = signal_hook::flag::register(signal, Arc::clone(&flag));
    }
    flag
}

/// Where files may not grow (`ulimit -f`), a write fails, as it does on a full disk, and does not end the process. What this one starts finds the signal as it was.
pub(crate) fn outlive_limits() {
    if ignored() & (1 << (SIGXFSZ - 1)) == 0 {
        let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    }
}

/// The signals that whoever started this process had it ignore, as a bit each; none where `/proc` is missing.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
