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

/// Many may have taken short turns: who is named is the last of them.
fn busy(store: impl AsFd) -> Error {
    let last = files::read_file(store, "lock", 64).ok().flatten().unwrap_or_default();
    let last = String::from_utf8_lossy(&last);
    let who = match last.trim() {
        "" => String::new(),
        pid => format!(", process {pid} the last of them"),
    };
    Error::new(ErrorKind::Busy, format!("others have been writing to the store for 30 s{who}"))
        .with_hint("repeat when they are done")
}

#[cfg(test)]
mod tests {
    use super::{busy, take_if_free};

    #[test]
    fn who_took_the_last_of_many_turns_is_not_said_to_have_written_all_the_time() {
        let dir = tempfile::tempdir().unwrap();
        let store = std::fs::File::open(dir.path()).unwrap();
        assert_eq!(busy(&store).message, "others have been writing to the store for 30 s");
        for _ in 0..2 {
            assert!(take_if_free(&store).unwrap().is_some());
        }
        let told =
            format!("others have been writing to the store for 30 s, process {} the last of them", std::process::id());
        assert_eq!(busy(&store).message, told);
    }
}
