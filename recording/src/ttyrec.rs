//! ttyrec, the older format: frames of bytes, each with a time, and nothing else. What it has no room for (markers, input,
//! how it ended) is left out on the way there; sizes travel as the sequence that asks a terminal for one, as by custom.

use std::io::{self, BufRead, Read, Write};
use std::time::Duration;

use ah_plugin_api::{Error, ErrorKind, Result};

use crate::cast::{Encoder, EventKind, Format, Header, Reader, sane_size};
use crate::utf8::Utf8;

/// The longest frame that is read. A terminal shows a few kilobytes at once.
const MAX_FRAME: u32 = 16 << 20;

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
    let mut head = [0; 12];
    if !filled(input, &mut head)? {
        return Ok(None);
    }
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (seconds, micros, length) = (word(0), word(4), word(8));
    if micros >= 1_000_000 || length > MAX_FRAME {
        return Err(Error::new(ErrorKind::InvalidArgument, "this is not a recording in ttyrec's format")
            .with_hint("`ah agent cast import` takes asciicast 2 and 3, and ttyrec"));
    }
    let mut bytes = Vec::new();
    let wanted = usize::try_from(length).unwrap_or(0);
    io::copy(&mut input.take(u64::from(length)), &mut bytes).map_err(|error| cannot("read", &error))?;
    if bytes.len() < wanted && bytes.is_empty() {
        return Ok(None);
    }
    Ok(Some(Frame { micros: u64::from(seconds) * 1_000_000 + u64::from(micros), bytes }))
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

/// Writes a ttyrec as asciicast.
///
/// # Errors
/// `InvalidArgument` if it is none; what reading and writing give.
pub fn import(input: &mut impl Read, format: Format, out: &mut impl Write) -> Result<()> {
    let first = read_frame(input)?.ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, "this is not a recording: there is no whole frame in it")
            .with_hint("`ah agent cast import` takes asciicast 2 and 3, and ttyrec")
    })?;
    let (cols, rows) = first_size(&first.bytes).unwrap_or((80, 24));
    let timestamp = i64::try_from(first.micros / 1_000_000).ok().filter(|at| *at > 0);
    let header = Header { format, cols, rows, timestamp, ..Header::default() };
    let put = |out: &mut dyn Write, lines: &[u8]| out.write_all(lines).map_err(|error| cannot("written", &error));
    put(out, &Encoder::header(&header))?;
    let (start, mut encoder, mut utf8) = (first.micros, Encoder::new(format), Utf8::default());
    let mut next = Some(first);
    let (mut lines, mut text) = (Vec::new(), String::new());
    while let Some(frame) = next {
        lines.clear();
        text.clear();
        utf8.push(&frame.bytes, &mut text);
        let time = Duration::from_micros(frame.micros.saturating_sub(start));
        if !text.is_empty() {
            encoder.event(&mut lines, time, &EventKind::Output(text.clone()));
            put(out, &lines)?;
        }
        // What is cut off, or no frame any more, ends it.
        next = read_frame(input).unwrap_or_default();
    }
    Ok(())
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

/// Fills `buffer`; false if there is not so much.
fn filled(input: &mut impl Read, buffer: &mut [u8]) -> Result<bool> {
    match input.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(cannot("read", &error)),
    }
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
        for cut in [bytes.len() - 3, bytes.len() - 10] {
            let mut out = Vec::new();
            import(&mut &bytes[..cut], Format::V3, &mut out).unwrap();
            assert!(out.ends_with(b"[0.000000, \"o\", \"one\"]\n"), "{}", String::from_utf8_lossy(&out));
        }
        let mut out = Vec::new();
        let error = import(&mut &b"#!/bin/sh\necho hello\n"[..], Format::V2, &mut out).unwrap_err();
        assert_eq!((error.kind, out.len()), (ErrorKind::InvalidArgument, 0));
        assert_eq!(import(&mut &b""[..], Format::V2, &mut out).unwrap_err().kind, ErrorKind::InvalidArgument);
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
