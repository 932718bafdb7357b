//! Closing the streams of clients that are not served.
//!
//! What a client has sent is closed with its stream: descriptors that nobody has taken out too, and the last close of one can take as long as the client
//! likes (a socket that lingers). So a thread that others wait for closes none with which any came; all others it closes at once. The former wait for one thread of each
//! account: a user who has it wait holds up what is theirs, and has no more streams open for it than descriptors under way in sockets, of which the
//! kernel allows them less than this process may have open.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, recv, recvmsg, sockopt};

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
    /// Closes a stream: behind, if that may take long. Never waits.
    pub(crate) fn close(self: &Arc<Self>, account: Option<u32>, stream: UnixStream) {
        // Its client need not wait, and can send nothing more.
        let _ = stream.shutdown(std::net::Shutdown::Both);
        if brought_none(&stream) {
            return;
        }
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

/// Whether no descriptor waits in a stream that is shut down. What comes before one is taken out.
fn brought_none(stream: &UnixStream) -> bool {
    // What was sent out of turn is passed over otherwise, and stays.
    if sockopt::set_socket_oobinline(stream, true).is_err() {
        return false;
    }
    let mut bytes = [0; 4096];
    loop {
        let (mut room, mut none) = ([IoSliceMut::new(&mut bytes)], RecvAncillaryBuffer::default());
        // Not taken out: its descriptors would be closed here, as there is no room for any.
        match recvmsg(stream, &mut room, &mut none, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok(seen) if seen.flags.contains(ReturnFlags::CTRUNC) => return false,
            Ok(seen) if seen.bytes > 0 => {
                // No more than what was seen: behind it may be one.
                let _ = recv(stream, &mut bytes[..seen.bytes], RecvFlags::DONTWAIT);
            }
            Err(Errno::INTR) => {}
            // At the end; or its client has reset it, which is told behind all that it sent.
            Ok(_) | Err(_) => return rustix::io::ioctl_fionread(stream).is_ok_and(|bytes| bytes == 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, Write};
    use std::mem::MaybeUninit;
    use std::net::Shutdown;
    use std::os::fd::AsFd;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, send, sendmsg};

    use super::*;

    fn pair(write: impl FnOnce(&mut UnixStream)) -> UnixStream {
        let (mut client, stream) = UnixStream::pair().unwrap();
        write(&mut client);
        stream.shutdown(Shutdown::Both).unwrap();
        stream
    }

    /// Sends a byte with a descriptor.
    fn bring_one(client: &UnixStream, flags: SendFlags) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let file = std::fs::File::open("/dev/null").unwrap();
        let fds = [file.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        assert_eq!(sendmsg(client, &[IoSlice::new(b"x")], &mut control, flags).unwrap(), 1);
    }

    #[test]
    fn a_stream_is_closed_at_once_only_if_no_descriptor_waits_in_it() {
        assert!(brought_none(&pair(|_| {})));
        assert!(brought_none(&pair(|client| client.write_all(&[0; 10_000]).unwrap())));
        let answered = pair(|_| {});
        assert!(brought_none(&answered) && brought_none(&answered));
        for before in [0, 1, 4096, 5000] {
            let stream = pair(|client| {
                client.write_all(&vec![0; before]).unwrap();
                bring_one(client, SendFlags::empty());
                client.write_all(&[0; 5000]).unwrap();
            });
            assert!(!brought_none(&stream), "behind {before} bytes");
            assert!(!brought_none(&stream), "it is there still");
        }
    }

    #[test]
    fn a_descriptor_that_was_sent_out_of_turn_is_seen() {
        assert!(brought_none(&pair(|client| assert_eq!(send(client, b"x", SendFlags::OOB).unwrap(), 1))));
        assert!(!brought_none(&pair(|client| bring_one(client, SendFlags::OOB))));
    }

    #[test]
    fn a_stream_that_its_client_reset_is_closed_at_once() {
        let (client, mut stream) = UnixStream::pair().unwrap();
        stream.write_all(b"refused").unwrap();
        drop(client);
        stream.shutdown(Shutdown::Both).unwrap();
        assert!(brought_none(&stream));
    }
}
