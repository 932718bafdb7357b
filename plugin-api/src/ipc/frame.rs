//! Frames on a socket: whole ones, within limits, with their descriptors, and never blocking for ever.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::PAUSE;
use crate::error::{Error, ErrorKind};
use crate::wire::MAX_FDS;

/// Bytes of a frame before its payload.
const HEADER: usize = 8;
/// Payloads are read in pieces, so that a frame that promises much and holds little costs little.
const PIECE: usize = 256 << 10;
/// What is said while a call runs is shorter.
const SMALL: usize = 1024;

/// Kinds of frames; numbers that this side does not know are no error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Hello,
    Call,
    Cancel,
    Progress,
    Log,
    Alive,
    Answer,
    Error,
    Unknown(u8),
}

impl Kind {
    const KNOWN: [Self; 8] =
        [Self::Hello, Self::Call, Self::Cancel, Self::Progress, Self::Log, Self::Alive, Self::Answer, Self::Error];

    fn number(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Call => 2,
            Self::Cancel => 3,
            Self::Progress => 4,
            Self::Log => 5,
            Self::Alive => 6,
            Self::Answer => 7,
            Self::Error => 8,
            Self::Unknown(number) => number,
        }
    }

    fn of(number: u8) -> Self {
        Self::KNOWN.into_iter().find(|kind| kind.number() == number).unwrap_or(Self::Unknown(number))
    }
}

/// One frame as it was read.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    pub(super) payload: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// Why a frame could not be read or written. The connection is of no use afterwards, but for [`FrameError::Waited`].
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("the other side closed the connection")]
    Closed,
    #[error("the other side closed the connection in the middle of a message")]
    CutOff,
    #[error("the other side paused in the middle of a message")]
    Paused,
    #[error("nothing came in time")]
    Waited,
    #[error("a message of {length} bytes is too large, the limit is {limit}")]
    TooLarge { length: u64, limit: u32 },
    #[error("a message came with other descriptors than it said, or with more than {MAX_FDS}")]
    Descriptors,
    #[error("a message has a header that means nothing")]
    Header,
    #[error("the socket failed: {0}")]
    Socket(#[from] Errno),
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Self {
        let kind = match &error {
            FrameError::Closed
            | FrameError::CutOff
            | FrameError::Paused
            | FrameError::Waited
            | FrameError::Socket(_) => ErrorKind::Unavailable,
            FrameError::TooLarge { .. } => ErrorKind::ResourceExhausted,
            FrameError::Descriptors | FrameError::Header => ErrorKind::InvalidArgument,
        };
        let mut result = Self::new(kind, error.to_string());
        if let FrameError::Socket(errno) = error {
            result.errno = Some(errno.raw_os_error());
        }
        result
    }
}

/// Reads one frame with a payload of at most `limit` bytes. Waits up to `wait` for its beginning, for ever without.
pub(super) fn read(socket: BorrowedFd<'_>, limit: u32, wait: Option<Duration>) -> Result<Frame, FrameError> {
    let mut header = [0_u8; HEADER];
    let mut fds = Vec::new();
    let mut have = 0;
    while have < HEADER {
        match receive(socket, &mut header[have..], &mut fds)? {
            None => match (have, wait) {
                (0, None) => ready(socket, PollFlags::POLLIN, None).map(drop)?,
                (0, Some(wait)) if !ready(socket, PollFlags::POLLIN, Some(wait))? => return Err(FrameError::Waited),
                (0, Some(_)) => {}
                _ if !ready(socket, PollFlags::POLLIN, Some(PAUSE))? => return Err(FrameError::Paused),
                _ => {}
            },
            Some(0) if have == 0 => return Err(FrameError::Closed),
            Some(0) => return Err(FrameError::CutOff),
            Some(more) => have += more,
        }
    }
    let [a, b, c, d, kind, count, zero, nought] = header;
    let length = u32::from_le_bytes([a, b, c, d]);
    if (zero, nought) != (0, 0) {
        return Err(FrameError::Header);
    }
    if length > limit {
        return Err(FrameError::TooLarge { length: length.into(), limit });
    }
    if usize::from(count) != fds.len() || fds.len() > MAX_FDS {
        return Err(FrameError::Descriptors);
    }
    let payload = payload(socket, length as usize)?;
    Ok(Frame { kind: Kind::of(kind), payload, fds })
}

fn payload(socket: BorrowedFd<'_>, length: usize) -> Result<Vec<u8>, FrameError> {
    let mut payload = Vec::new();
    while payload.len() < length {
        let have = payload.len();
        payload.resize(length.min(have + PIECE), 0);
        // Without room for control messages the kernel closes descriptors that do not belong here.
        let got = match rustix::net::recv(socket, &mut payload[have..], RecvFlags::DONTWAIT) {
            Ok((0, _)) | Err(Errno::CONNRESET) => return Err(FrameError::CutOff),
            Ok((got, _)) => got,
            Err(Errno::AGAIN) if !ready(socket, PollFlags::POLLIN, Some(PAUSE))? => return Err(FrameError::Paused),
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(e) => return Err(e.into()),
        };
        payload.truncate(have + got);
    }
    Ok(payload)
}

/// Of which kind the next frame is, if that much of it has come that reading it does not wait; nothing is taken out of the socket. Of a frame
/// with a payload of more than [`SMALL`] none.
pub(super) fn next(socket: BorrowedFd<'_>) -> Result<Option<Kind>, FrameError> {
    let mut bytes = [0_u8; HEADER + SMALL];
    let have = match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
        Ok((0, _)) | Err(Errno::CONNRESET) => return Err(FrameError::Closed),
        Ok((have, _)) => have,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let [a, b, c, d, kind, ..] = bytes;
    let whole = HEADER.saturating_add(u32::from_le_bytes([a, b, c, d]) as usize);
    if have >= HEADER && have >= whole {
        return Ok(Some(Kind::of(kind)));
    }
    // What is there hides the end behind it.
    if ready(socket, PollFlags::empty(), Some(Duration::ZERO))? { Err(FrameError::Closed) } else { Ok(None) }
}

/// Receives into `buffer`, and descriptors that come along. `None`: nothing there after all.
fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<Option<usize>, FrameError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        // The other side closed without reading everything that was said to it.
        Err(Errno::CONNRESET) => return Ok(Some(0)),
        Err(e) => return Err(e.into()),
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    // What did not fit was closed by the kernel, the rest is closed when `fds` goes.
    if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > MAX_FDS {
        return Err(FrameError::Descriptors);
    }
    Ok(Some(received.bytes))
}

/// Writes one frame. The payload must be within the other side's limit, see [`fits`].
pub(super) fn write(
    socket: BorrowedFd<'_>,
    kind: Kind,
    payload: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), FrameError> {
    send(socket, kind, payload, fds, true).map(drop)
}

/// Writes one small frame if that can be done at once. `false`: it could not, and nothing was written.
pub(super) fn try_write(socket: BorrowedFd<'_>, kind: Kind, payload: &[u8]) -> Result<bool, FrameError> {
    send(socket, kind, payload, &[], false)
}

/// Refuses a payload that the other side would refuse.
pub(super) fn fits(payload: &[u8], limit: u32) -> Result<u32, FrameError> {
    let length = u32::try_from(payload.len()).ok().filter(|length| *length <= limit);
    length.ok_or(FrameError::TooLarge { length: payload.len() as u64, limit })
}

fn send(
    socket: BorrowedFd<'_>,
    kind: Kind,
    payload: &[u8],
    fds: &[BorrowedFd<'_>],
    patient: bool,
) -> Result<bool, FrameError> {
    let length = fits(payload, u32::MAX)?;
    let count = u8::try_from(fds.len()).ok().filter(|_| fds.len() <= MAX_FDS).ok_or(FrameError::Descriptors)?;
    let mut header = [0_u8; HEADER];
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4] = kind.number();
    header[5] = count;
    let mut sent = 0;
    while sent < HEADER + payload.len() {
        let begun = &header[sent.min(HEADER)..];
        let rest = &payload[sent.saturating_sub(HEADER)..];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if sent == 0 && !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(FrameError::Descriptors);
        }
        let parts = [IoSlice::new(begun), IoSlice::new(rest)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match rustix::net::sendmsg(socket, &parts, &mut control, flags) {
            Ok(more) => sent += more,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if sent == 0 && !patient => return Ok(false),
            Err(Errno::AGAIN) => {
                if !ready(socket, PollFlags::POLLOUT, Some(PAUSE))? {
                    return Err(FrameError::Paused);
                }
            }
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(FrameError::Closed),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(true)
}

/// Waits until the socket is ready, or has failed or ended, which the next call on it will tell. `false`: `wait` is over.
pub(super) fn ready(socket: BorrowedFd<'_>, flags: PollFlags, wait: Option<Duration>) -> Result<bool, FrameError> {
    let end = wait.map(|wait| Instant::now() + wait);
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let timeout = match left {
            None => PollTimeout::NONE,
            // Rounded up, or the last millisecond would be spent in a busy loop.
            Some(left) => PollTimeout::try_from(left.as_micros().div_ceil(1000)).unwrap_or(PollTimeout::MAX),
        };
        match nix::poll::poll(&mut [PollFd::new(socket.as_fd(), flags)], timeout) {
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return Ok(false),
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(e) => return Err(Errno::from_raw_os_error(e as i32).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::{any, prop, proptest};

    use super::*;

    const LIMIT: u32 = 1 << 16;

    /// Everything that comes out of `bytes`, until nothing more does.
    fn read_all(bytes: &[u8]) -> (Vec<Frame>, FrameError) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let _ = theirs.write_all(bytes);
            });
            let mut frames = Vec::new();
            loop {
                match read(ours.as_fd(), LIMIT, Some(PAUSE)) {
                    Ok(frame) => frames.push(frame),
                    Err(error) => {
                        drop(ours);
                        return (frames, error);
                    }
                }
            }
        })
    }

    fn bytes_of(kind: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend([kind, 0, 0, 0]);
        bytes.extend(payload);
        bytes
    }

    proptest! {
        #[test]
        fn any_bytes_are_frames_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (frames, _) = read_all(&bytes);
            assert!(frames.iter().map(|frame| frame.payload.len() + HEADER).sum::<usize>() <= bytes.len());
        }

        #[test]
        fn frames_come_out_as_they_went_in_and_a_cut_is_noticed(
            frames in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..400)), 1..5),
            cut in 0_usize..2000,
        ) {
            let whole: Vec<u8> = frames.iter().flat_map(|(kind, payload)| bytes_of(*kind, payload)).collect();
            let cut = cut.min(whole.len());
            let (read, error) = read_all(&whole[..cut]);
            for (read, (kind, payload)) in read.iter().zip(&frames) {
                assert_eq!((read.kind.number(), &read.payload), (*kind, payload));
            }
            let used: usize = read.iter().map(|frame| frame.payload.len() + HEADER).sum();
            assert_eq!(matches!(error, FrameError::Closed), used == cut, "{error:?}");
            assert_eq!(matches!(error, FrameError::CutOff), used != cut, "{error:?}");
        }
    }

    #[test]
    fn a_giant_is_refused_by_its_header() {
        let (frames, error) = read_all(&[0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0]);
        assert!(frames.is_empty());
        assert!(matches!(error, FrameError::TooLarge { length: 0xffff_ffff, limit: LIMIT }));
    }

    #[test]
    fn descriptors_that_were_not_announced_are_refused_and_closed() {
        for (announced, sent) in [(0, 1), (2, 1), (1, 0), (5, 5), (4, 9)] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let (reader, writer) = std::io::pipe().unwrap();
            let fds = vec![writer.as_fd(); sent];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(9))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if sent > 0 {
                assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            }
            let header = [0, 0, 0, 0, 2, announced, 0, 0];
            rustix::net::sendmsg(&theirs, &[IoSlice::new(&header)], &mut control, SendFlags::NOSIGNAL).unwrap();
            drop(fds);
            drop(writer);
            let error = read(ours.as_fd(), LIMIT, Some(PAUSE)).unwrap_err();
            assert!(matches!(error, FrameError::Descriptors), "{announced} {sent}: {error:?}");
            // If a copy of the writer were still open, this would wait for ever.
            assert!(ready(reader.as_fd(), PollFlags::POLLIN, Some(PAUSE)).unwrap());
        }
    }

    #[test]
    fn descriptors_travel_and_are_not_inherited() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let fds = [file.as_fd(); MAX_FDS];
        write(theirs.as_fd(), Kind::Call, b"x", &fds).unwrap();
        assert!(matches!(
            write(theirs.as_fd(), Kind::Call, b"x", &[file.as_fd(); MAX_FDS + 1]),
            Err(FrameError::Descriptors)
        ));
        let frame = read(ours.as_fd(), LIMIT, Some(PAUSE)).unwrap();
        assert_eq!((frame.kind, frame.payload.as_slice(), frame.fds.len()), (Kind::Call, b"x".as_slice(), MAX_FDS));
        for fd in &frame.fds {
            assert!(rustix::io::fcntl_getfd(fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        }
    }

    #[test]
    fn a_reader_that_is_slow_gets_everything_and_one_that_is_gone_is_noticed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let payload: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
        std::thread::scope(|scope| {
            scope.spawn(|| write(theirs.as_fd(), Kind::Answer, &payload, &[]).unwrap());
            std::thread::sleep(Duration::from_millis(50));
            let frame = read(ours.as_fd(), 4 << 20, Some(PAUSE)).unwrap();
            assert!(frame.payload == payload);
        });
        drop(ours);
        assert!(matches!(write(theirs.as_fd(), Kind::Answer, &payload, &[]), Err(FrameError::Closed)));
    }

    #[test]
    fn what_cannot_be_said_at_once_is_left_out_whole() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut written = 0;
        while try_write(theirs.as_fd(), Kind::Progress, &[7; 1000]).unwrap() {
            written += 1;
        }
        assert!(written > 10);
        drop(theirs);
        for _ in 0..written {
            assert_eq!(read(ours.as_fd(), LIMIT, Some(PAUSE)).unwrap().payload, [7; 1000]);
        }
        assert!(matches!(read(ours.as_fd(), LIMIT, Some(PAUSE)), Err(FrameError::Closed)));
    }

    #[test]
    fn what_comes_next_is_told_once_it_is_whole() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let bytes = bytes_of(3, &[7; 100]);
        for byte in &bytes {
            assert_eq!(next(ours.as_fd()).unwrap(), None);
            theirs.write_all(&[*byte]).unwrap();
        }
        assert_eq!(next(ours.as_fd()).unwrap(), Some(Kind::Cancel));
        assert_eq!(read(ours.as_fd(), LIMIT, Some(Duration::ZERO)).unwrap().payload, [7; 100]);
        assert_eq!(next(ours.as_fd()).unwrap(), None);
        // A piece does not hide that nobody is there any more.
        theirs.write_all(&bytes[..50]).unwrap();
        assert_eq!(next(ours.as_fd()).unwrap(), None);
        drop(theirs);
        assert!(matches!(next(ours.as_fd()), Err(FrameError::Closed)));
    }

    #[test]
    fn waiting_ends() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let waited = read(ours.as_fd(), LIMIT, Some(Duration::from_millis(30)));
        assert!(matches!(waited, Err(FrameError::Waited)));
    }
}
