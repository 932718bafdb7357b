//! The lock that makes writers take turns.
//!
//! `flock` on a file that stays: the kernel gives it back when its holder dies, so there are no stale locks. The file's
//! content names the holder, for a message only.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ah_plugin_api::{Context, Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::files::{self, Doing};

/// How long a writer waits for another one.
const PATIENCE: Duration = Duration::from_secs(30);

/// The exclusive right to write to a store; given back when dropped.
#[derive(Debug)]
pub(crate) struct WriteGuard {
    file: OwnedFd,
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        // Closing is not enough at once: a child that another thread is just starting has the descriptor too, until it
        // becomes another program.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Takes the lock; waits up to 30 s.
pub(super) fn take(store: impl AsFd, cx: &Context<'_>) -> Result<WriteGuard> {
    let file = open(&store)?;
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if attempt(&file)?.is_some() {
            return Ok(WriteGuard { file });
        }
        cx.check_cancelled()?;
        if start.elapsed() > PATIENCE {
            return Err(busy(&store));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Takes the lock if nobody has it.
pub(super) fn take_if_free(store: impl AsFd) -> Result<Option<WriteGuard>> {
    let file = open(&store)?;
    Ok(attempt(&file)?.map(|()| WriteGuard { file }))
}

fn open(store: impl AsFd) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(store, "lock", flags, Mode::from_raw_mode(0o600)).doing(|| "open the store's lock".to_owned())
}

fn attempt(file: &OwnedFd) -> Result<Option<()>> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            // Fixed width, so that a shorter number leaves nothing of a longer one.
            let text = format!("{:<10}\n", std::process::id());
            let _ = rustix::io::pwrite(file, text.as_bytes(), 0);
            Ok(Some(()))
        }
        Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno).doing(|| "lock the store".to_owned()),
    }
}

fn busy(store: impl AsFd) -> Error {
    let holder = files::read_file(store, "lock", 64).ok().flatten().unwrap_or_default();
    let holder = String::from_utf8_lossy(&holder);
    Error::new(
        ErrorKind::Busy,
        format!("another process (pid {}) has been writing to the store for 30 s", holder.trim()),
    )
    .with_hint("repeat when it is done")
}
