//! ttyrec, the older format: frames of bytes, each with a time, and nothing else. What it has no room for (markers, input,
//! how it ended) is left out on the way there; sizes travel as the sequence that asks a terminal for one, as by custom.

use std::io::{self, BufRead, Read, Write};
use std::time::Duration;

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::cast::{Encoder, EventKind, Format, Header, Reader, sane_size};
use crate::utf8::Utf8;

/// The longest frame that is read. A terminal shows a few kilobytes at once.
const MAX_FRAME: u32 = 16 << 20;
/// The most that one event of a recording is given, in bytes: its line is several times as long where each byte is written as an escape.
const EVENT: usize = 64 << 10;

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// When, in microseconds since 1970, or since whatever the writer counted from.
    pub micros: u64,
    /// What was shown.
    pub bytes: Vec<u8>,
}

/// Reads the next frame; none at the end, or where the file is cut off.
///
/// # Errors
/// `InvalidArgument` if that is no frame; what reading gives.
pub fn read_frame(input: &mut impl Read) -> Result<Option<Frame>> {
    next(input).map(|(frame, _)| frame)
}

/// Whether a file that begins so may be a ttyrec. No text does: what would be the microseconds are far too many there.
#[must_use]
pub fn is_begun_by(start: &[u8]) -> bool {
    start.first_chunk().is_some_and(|head| fields(head).is_some())
}

/// The time of a frame, in microseconds, and its length; none if that begins no frame.
fn fields(head: &[u8; 12]) -> Option<(u64, u32)> {
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (seconds, micros, length) = (word(0), word(4), word(8));
    (micros < 1_000_000 && length <= MAX_FRAME).then(|| (u64::from(seconds) * 1_000_000 + u64::from(micros), length))
}

/// The next frame, none at the end; and whether the file was cut off in it.
fn next(input: &mut impl Read) -> Result<(Option<Frame>, bool)> {
    let mut head = Vec::new();
    let torn = read(input, 12, &mut head)?;
    let Some(head) = head.first_chunk() else { return Ok((None, torn || !head.is_empty())) };
    let (micros, length) = fields(head).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, "this is not a recording in ttyrec's format")
            .with_hint("`ah agent cast import` takes asciicast 2 and 3, and ttyrec")
    })?;
    let mut bytes = Vec::new();
    let torn = read(input, length, &mut bytes)? || bytes.len() as u64 != u64::from(length);
    Ok(((!torn || !bytes.is_empty()).then_some(Frame { micros, bytes }), torn))
}

/// Reads so many bytes, or up to the end; whether that is one in the middle of compressed data.
fn read(input: &mut impl Read, count: u32, bytes: &mut Vec<u8>) -> Result<bool> {
    match input.take(u64::from(count)).read_to_end(bytes) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
        Err(error) => Err(cannot("read", &error)),
    }
}

/// Writes a frame.
///
/// # Errors
/// What writing gives.
pub fn write_frame(out: &mut impl Write, frame: &Frame) -> Result<()> {
    for part in frame.bytes.chunks(MAX_FRAME as usize) {
        let seconds = u32::try_from(frame.micros / 1_000_000).unwrap_or(u32::MAX);
        let micros = u32::try_from(frame.micros % 1_000_000).unwrap_or(0);
        let length = u32::try_from(part.len()).unwrap_or(0);
        let head = [seconds.to_le_bytes(), micros.to_le_bytes(), length.to_le_bytes()].concat();
        out.write_all(&head).and_then(|()| out.write_all(part)).map_err(|error| cannot("written", &error))?;
    }
    Ok(())
}

/// Writes all that a recording shows as ttyrec.
///
/// # Errors
/// What reading and writing give.
pub fn export<R: BufRead>(reader: &mut Reader<R>, out: &mut impl Write) -> Result<()> {
    let start = reader.header().timestamp.and_then(|at| u64::try_from(at).ok()).unwrap_or(0).saturating_mul(1_000_000);
    let header = reader.header();
    write_frame(out, &Frame { micros: start, bytes: resize(header.cols, header.rows) })?;
    while let Some(placed) = reader.next_event()? {
        let bytes = match placed.event.kind {
            EventKind::Output(text) => text.into_bytes(),
            EventKind::Resize { cols, rows } => resize(cols, rows),
            _ => continue,
        };
        let micros = start.saturating_add(u64::try_from(placed.event.time.as_micros()).unwrap_or(u64::MAX));
        write_frame(out, &Frame { micros, bytes })?;
    }
    Ok(())
}

/// Writes a ttyrec as asciicast, as far as it can be read: whether it was cut off, or what came then was no frame any more.
///
/// # Errors
/// `InvalidArgument` if it is none; what reading and writing give.
pub fn import(input: &mut impl Read, format: Format, out: &mut impl Write) -> Result<bool> {
    let (first, mut torn) = next(input)?;
    let first = first.ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, "this is not a recording: there is no whole frame in it")
            .with_hint("`ah agent cast import` takes asciicast 2 and 3, and ttyrec")
    })?;
    let (cols, rows) = first_size(&first.bytes).unwrap_or((80, 24));
    let timestamp = i64::try_from(first.micros / 1_000_000).ok().filter(|at| *at > 0);
    let header = Header { format, cols, rows, timestamp, ..Header::default() };
    let put = |out: &mut dyn Write, lines: &[u8]| out.write_all(lines).map_err(|error| cannot("written", &error));
    put(out, &Encoder::header(&header))?;
    let (start, mut encoder, mut utf8) = (first.micros, Encoder::new(format), Utf8::default());
    let mut frame = Some(first);
    let (mut lines, mut text) = (Vec::new(), String::new());
    while let Some(Frame { micros, bytes }) = frame {
        text.clear();
        utf8.push(&bytes, &mut text);
        let time = Duration::from_micros(micros.saturating_sub(start));
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let at = (0..=rest.len().min(EVENT)).rev().find(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
            let (event, more) = rest.split_at(at);
            lines.clear();
            encoder.event(&mut lines, time, &EventKind::Output(event.to_owned()));
            put(out, &lines)?;
            rest = more;
        }
        if torn {
            break;
        }
        (frame, torn) = match next(input) {
            Err(error) if error.kind == ErrorKind::InvalidArgument => (None, true),
            read => read?,
        };
    }
    Ok(torn)
}

fn resize(cols: u16, rows: u16) -> Vec<u8> {
    format!("\x1b[8;{rows};{cols}t").into_bytes()
}

/// The size that a recording begins with, if it says one.
fn first_size(bytes: &[u8]) -> Option<(u16, u16)> {
    let text = std::str::from_utf8(bytes.get(..bytes.len().min(64))?).ok()?;
    let (rows, rest) = text.split_once("\x1b[8;")?.1.split_once(';')?;
    let (cols, _) = rest.split_once('t')?;
    Some(sane_size(cols.parse().ok()?, rows.parse().ok()?))
}

fn cannot(what: &str, error: &io::Error) -> Error {
    Error::from_io(format!("the recording cannot be {what}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    fn cast(text: &str) -> Vec<u8> {
        format!("{{\"version\":2,\"width\":90,\"height\":20,\"timestamp\":1000}}\n{text}").into_bytes()
    }

    #[test]
    fn what_is_shown_survives_both_ways() {
        let before =
            cast("[0.5, \"o\", \"a\\r\\né\"]\n[0.75, \"m\", \"gone\"]\n[1.25, \"r\", \"100x30\"]\n[2, \"o\", \"b\"]\n");
        let mut bytes = Vec::new();
        export(&mut Reader::open(&before[..]).unwrap(), &mut bytes).unwrap();
        assert_eq!(bytes[..12], [0xe8, 3, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0]);
        let mut after = Vec::new();
        import(&mut &bytes[..], Format::V2, &mut after).unwrap();
        let after = String::from_utf8(after).unwrap();
        let expected = "[0.000000, \"o\", \"\\u001b[8;20;90t\"]\n[0.500000, \"o\", \"a\\r\\né\"]\n[1.250000, \"o\", \"\\u001b[8;30;100t\"]\n[2.000000, \"o\", \"b\"]\n";
        let (head, events) = after.split_once('\n').unwrap();
        assert_eq!(events, expected);
        assert_eq!(Reader::open(head.as_bytes()).unwrap().header().cols, 90);
    }

    #[test]
    fn what_is_cut_off_or_nonsense_ends_it() {
        let mut bytes = Vec::new();
        for (micros, text) in [(5, "one"), (6, "two")] {
            write_frame(&mut bytes, &Frame { micros, bytes: text.into() }).unwrap();
        }
        for cut in [bytes.len() - 3, bytes.len() - 10, bytes.len() / 2] {
            let mut out = Vec::new();
            let torn = import(&mut &bytes[..cut], Format::V3, &mut out).unwrap();
            assert_eq!(torn, cut != bytes.len() / 2);
            assert!(out.ends_with(b"[0.000000, \"o\", \"one\"]\n"), "{}", String::from_utf8_lossy(&out));
        }
        let mut out = Vec::new();
        assert!(import(&mut &bytes[..bytes.len() - 1], Format::V3, &mut out).unwrap());
        assert!(out.ends_with(b"\"tw\"]\n"), "what is there of it is shown");
        let nonsense = [&bytes[..], b"#!/bin/sh\necho hello\n"].concat();
        assert!(import(&mut &nonsense[..], Format::V3, &mut Vec::new()).unwrap());
        let mut out = Vec::new();
        let error = import(&mut &b"#!/bin/sh\necho hello\n"[..], Format::V2, &mut out).unwrap_err();
        assert_eq!((error.kind, out.len()), (ErrorKind::InvalidArgument, 0));
        assert_eq!(import(&mut &b""[..], Format::V2, &mut out).unwrap_err().kind, ErrorKind::InvalidArgument);
    }

    /// A reader that ends with an error of that kind.
    struct Fails<'a>(&'a [u8], io::ErrorKind);

    impl Read for Fails<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() { Err(self.1.into()) } else { self.0.read(buffer) }
        }
    }

    #[test]
    fn what_cannot_be_read_to_its_end_is_told() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &Frame { micros: 5, bytes: b"one".into() }).unwrap();
        for whole in [bytes.len(), bytes.len() - 1] {
            let read = |kind| import(&mut Fails(&bytes[..whole], kind), Format::V2, &mut Vec::new());
            // Of compressed data that was cut off.
            assert!(read(io::ErrorKind::UnexpectedEof).unwrap());
            assert_eq!(read(io::ErrorKind::PermissionDenied).unwrap_err().kind, ErrorKind::PermissionDenied);
        }
    }

    #[test]
    fn a_long_frame_is_events_that_can_be_read_again() {
        let text = "\x1b".repeat(3 << 20) + &"é".repeat(EVENT);
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        write_frame(&mut bytes, &Frame { micros: 5, bytes: text.clone().into() }).unwrap();
        assert!(!import(&mut &bytes[..], Format::V2, &mut out).unwrap());
        let mut reader = Reader::open(&out[..]).unwrap();
        let mut shown = String::new();
        while let Some(placed) = reader.next_event().unwrap() {
            let EventKind::Output(text) = placed.event.kind else { continue };
            shown.push_str(&text);
        }
        assert!(shown == text && reader.faults() == 0);
    }

    #[test]
    fn no_text_begins_like_a_frame() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &Frame { micros: 0x6000_007b * 1_000_000, bytes: b"hi".into() }).unwrap();
        assert!(bytes.starts_with(b"{") && is_begun_by(&bytes));
        assert!(
            !is_begun_by(&bytes[..11])
                && !is_begun_by(b"{\"version\": 2}")
                && !is_begun_by(b"{\t\t\t\t\t\t\t\t\t\t\t\t")
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_no_panic(bytes in any::<Vec<u8>>()) {
            let _ = import(&mut &bytes[..], Format::V2, &mut Vec::new());
        }

        #[test]
        fn frames_come_back(micros in 0..4_000_000_000_000_000u64, bytes in any::<Vec<u8>>()) {
            let frame = Frame { micros, bytes };
            let mut out = Vec::new();
            write_frame(&mut out, &frame).unwrap();
            let back = read_frame(&mut &out[..]).unwrap();
            prop_assert_eq!(back, Some(frame).filter(|frame| !frame.bytes.is_empty()));
        }
    }

    #[test]
    fn a_time_that_no_clock_says_is_no_panic() {
        for (timestamp, time) in [(i64::MAX, 1.0), (18_446_744_073_709, 1e9)] {
            let cast = format!(
                "{{\"version\":2,\"width\":9,\"height\":9,\"timestamp\":{timestamp}}}\n[{time}, \"o\", \"x\"]\n"
            );
            let mut out = Vec::new();
            export(&mut Reader::open(cast.as_bytes()).unwrap(), &mut out).unwrap();
            let mut rest = &out[..];
            let frames: Vec<Frame> = std::iter::from_fn(|| read_frame(&mut rest).unwrap()).collect();
            assert_eq!(frames[1].bytes, b"x");
        }
    }
}
