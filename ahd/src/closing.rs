//! Closing the streams of clients that are not served.
//!
//! What a client has sent is closed with its stream: descriptors that nobody has taken out too, and the last close of one can take as long as the client
//! likes (a socket that lingers). So a thread that others wait for closes none. Each account's wait for one thread of its own: a user who has it wait
//! holds up what is theirs, and has open for it no more than what they may have under way in sockets, which is less than this process may have open.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is to be closed, by account; none of those whose peers nobody knows.
#[derive(Debug, Default)]
pub(crate) struct Closers {
    accounts: Mutex<HashMap<Option<u32>, Account>>,
}

#[derive(Debug, Default)]
struct Account {
    streams: Vec<UnixStream>,
    /// Whether a thread is at it.
    at_work: bool,
}

impl Closers {
    /// Closes a stream, behind. Never waits.
    pub(crate) fn close(self: &Arc<Self>, account: Option<u32>, stream: UnixStream) {
        // Its client need not wait, and can send nothing more.
        let _ = stream.shutdown(std::net::Shutdown::Both);
        let mut accounts = self.lock();
        let waiting = accounts.entry(account).or_default();
        waiting.streams.push(stream);
        if !waiting.at_work {
            let closers = Arc::clone(self);
            let work = move || while closers.close_one(account) {};
            // Where the system has no thread now, the account's next one closes this too.
            waiting.at_work = std::thread::Builder::new().name("closing".to_owned()).spawn(work).is_ok();
        }
    }

    /// Closes one of an account's; false if there was none, and this thread is not at it any more.
    fn close_one(&self, account: Option<u32>) -> bool {
        let mut accounts = self.lock();
        let stream = accounts.get_mut(&account).and_then(|waiting| waiting.streams.pop());
        if stream.is_none() {
            accounts.remove(&account);
        }
        drop(accounts);
        stream.map(drop).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<u32>, Account>> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
