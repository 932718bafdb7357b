//! A process that looks on as the service is killed.
//!
//! A thread of the service that waits for what the service itself has mounted (it copies a new branch's repository there, and asks what others have open)
//! cannot be killed: the answer comes from threads that are gone. As long as it waits the process does not end, nor do its mounts, and whoever looks
//! into one waits, too. The kernel tells a child of the service when the service's main thread has gone; it cuts the mounts then. Where
//! that cannot be done, or this process was killed too, the next command does (`crate::reach`).

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ah_plugin_api::{Error, Result};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use signal_hook::consts::SIGUSR1;

use crate::reach::{connections, cut, is_dying};

/// So often it is looked whether the service has come to its end.
const LOOKS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// Starts it, as a child of the service of a home. Without it there is none of the above.
pub(super) fn start(home: &Path) {
    let started = std::env::current_exe().and_then(|program| {
        let mut command = Command::new(program);
        command.arg("--mourn").arg(home).arg(std::process::id().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()
    });
    if let Err(error) = started {
        eprintln!("ah-agentfsd: nobody cuts what is mounted if this is killed: {error}");
    }
}

/// Is that process, until the service is gone.
///
/// # Errors
/// If the kernel does not tell.
pub fn mourn(home: &Path, service: &str) -> Result<()> {
    let cannot = |e: std::io::Error| Error::from_io("cannot wait for the end of the service", &e);
    // One that is killed by its name is not to take this with it.
    let _ = rustix::thread::set_name(c"ah-afs-mourner");
    let (mut told, tell) = UnixStream::pair().map_err(cannot)?;
    signal_hook::low_level::pipe::register(SIGUSR1, tell).map_err(cannot)?;
    set_parent_process_death_signal(Some(Signal::USR1)).map_err(|errno| cannot(errno.into()))?;
    let service = service.parse().ok().and_then(Pid::from_raw);
    let Some(pid) = service.map(|service| service.as_raw_nonzero().get()) else { return Ok(()) };
    // It may have gone before that was to be told.
    if getppid() == service && !is_dying(pid) {
        told.read_exact(&mut [0]).map_err(cannot)?;
    }
    // At once: somebody may take away what is mounted (`umount -l`), and then nothing leads to it any more.
    let first = connections(home);
    for _ in 0..LOOKS {
        std::thread::sleep(PAUSE);
        if !is_dying(pid) {
            break;
        }
        cut(first.iter().chain(&connections(home)), pid);
    }
    Ok(())
}
