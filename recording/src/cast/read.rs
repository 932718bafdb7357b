//! Reading lines, one at a time: a recording of any length takes the memory of its longest line.
//!
//! A file that was cut off anywhere is read up to there. A line that cannot be read is passed over and counted; only a file
//! whose header cannot be read is an error.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::time::Duration;

use ah_plugin_api::{Error, ErrorKind, Result};
use serde_json::Value;

use super::{Event, EventKind, Format, Header, sane_size};

/// The longest line that is read; longer ones are passed over. What we write ourselves stays far below.
const MAX_LINE: usize = 16 << 20;
/// Times beyond this (31 years) are nonsense, and could not be added up.
const MAX_TIME: f64 = 1e9;

/// An event, and where its line lies.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// The event.
    pub event: Event,
    /// The first byte of its line, from the beginning of the file.
    pub start: u64,
    /// The byte after its line.
    pub end: u64,
}

/// Reads a recording event by event.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    header: Header,
    line: Vec<u8>,
    /// The byte after the last line that was read.
    offset: u64,
    time: Duration,
    faults: u64,
    torn: bool,
}

/// How a line ended.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Whole,
    /// The file ends in it.
    Unended,
    TooLong,
    /// There is none.
    End,
}

impl<R: BufRead> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// `InvalidArgument` if this is no asciicast of version 2 or 3; what reading gives.
    pub fn open(input: R) -> Result<Self> {
        let mut this = Self {
            input,
            header: Header::default(),
            line: Vec::new(),
            offset: 0,
            time: Duration::ZERO,
            faults: 0,
            torn: false,
        };
        loop {
            match this.read_line()? {
                Line::End => return Err(not_a_recording("the file is empty")),
                Line::TooLong => return Err(not_a_recording("its first line is too long")),
                Line::Whole | Line::Unended if this.is_empty_line() => {}
                Line::Whole | Line::Unended => break,
            }
        }
        this.header = read_header(&this.line)?;
        Ok(this)
    }

    /// Reads on in the middle: `input` begins with the line at `offset`, before which the last event was at `time`.
    pub fn resume(input: R, header: Header, offset: u64, time: Duration) -> Self {
        Self { input, header, line: Vec::new(), offset, time, faults: 0, torn: false }
    }

    /// The byte after the last line that was read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Lines that could not be read.
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// Whether the file ended in the middle of a line that cannot be read, as far as it has been read.
    pub fn torn(&self) -> bool {
        self.torn
    }

    /// The next event; none at the end.
    ///
    /// # Errors
    /// What reading gives.
    pub fn next_event(&mut self) -> Result<Option<Placed>> {
        loop {
            let start = self.offset;
            let line = self.read_line()?;
            match line {
                Line::End => return Ok(None),
                Line::TooLong => {
                    self.faults += 1;
                    continue;
                }
                Line::Whole | Line::Unended if self.is_empty_line() => continue,
                Line::Whole | Line::Unended => {}
            }
            match self.read_event() {
                Some(event) => return Ok(Some(Placed { event, start, end: self.offset })),
                None if line == Line::Unended => {
                    self.torn = true;
                    return Ok(None);
                }
                None => self.faults += 1,
            }
        }
    }

    /// Nothing, or a comment of version 3.
    fn is_empty_line(&self) -> bool {
        self.line.iter().find(|byte| !byte.is_ascii_whitespace()).is_none_or(|&first| first == b'#')
    }

    fn read_event(&mut self) -> Option<Event> {
        let (time, code, data): (f64, String, Value) = serde_json::from_slice(&self.line).ok()?;
        let seconds = Duration::from_secs_f64(time.clamp(0.0, MAX_TIME));
        let time = match self.header.format {
            // Some tools write times that run back a little.
            Format::V2 => seconds.max(self.time),
            Format::V3 => (self.time + seconds).min(Duration::from_secs_f64(MAX_TIME)),
        };
        let kind = match (code.as_str(), data) {
            ("o", Value::String(text)) => EventKind::Output(text),
            ("i", Value::String(text)) => EventKind::Input(text),
            ("m", Value::String(label)) => EventKind::Marker(label),
            ("r", Value::String(size)) => {
                let (cols, rows) = size.split_once('x')?;
                let (cols, rows) = sane_size(cols.trim().parse().ok()?, rows.trim().parse().ok()?);
                EventKind::Resize { cols, rows }
            }
            ("x", Value::String(status)) => EventKind::Exit(status.trim().parse().ok()?),
            ("x", Value::Number(status)) => EventKind::Exit(i32::try_from(status.as_i64()?).ok()?),
            ("o" | "i" | "m" | "r" | "x", _) => return None,
            (_, data) => EventKind::Other { code, data: data.to_string() },
        };
        self.time = time;
        Some(Event { time, kind })
    }

    /// The next line into `line`, without its end.
    fn read_line(&mut self) -> Result<Line> {
        self.line.clear();
        let mut length = 0u64;
        let mut too_long = false;
        loop {
            let available = match self.input.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // A compressed file that was cut off.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => &[],
                Err(error) => return Err(Error::from_io("the recording cannot be read", &error)),
            };
            if available.is_empty() {
                self.offset += length;
                return Ok(match () {
                    () if length == 0 => Line::End,
                    () if too_long => Line::TooLong,
                    () => Line::Unended,
                });
            }
            let newline = memchr::memchr(b'\n', available);
            let part = &available[..newline.unwrap_or(available.len())];
            too_long |= self.line.len() + part.len() > MAX_LINE;
            if too_long {
                self.line.clear();
            } else {
                self.line.extend_from_slice(part);
            }
            let used = part.len() + usize::from(newline.is_some());
            length += used as u64;
            self.input.consume(used);
            if newline.is_some() {
                self.offset += length;
                return Ok(if too_long { Line::TooLong } else { Line::Whole });
            }
        }
    }
}

fn not_a_recording(why: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("this is not a recording in asciicast 2 or 3: {why}"))
        .with_hint("`ah agent cast import` takes asciicast 2 and 3, and ttyrec")
}

fn read_header(line: &[u8]) -> Result<Header> {
    let Ok(Value::Object(fields)) = serde_json::from_slice::<Value>(line) else {
        return Err(not_a_recording("its first line is not a JSON object"));
    };
    let number = |value: Option<&Value>| value.and_then(Value::as_u64).and_then(|n| u16::try_from(n).ok()).unwrap_or(0);
    let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    let (format, size) = match fields.get("version").and_then(Value::as_u64) {
        Some(2) => (Format::V2, (number(fields.get("width")), number(fields.get("height")))),
        Some(3) => {
            let term = fields.get("term");
            let of = |name: &str| number(term.and_then(|term| term.get(name)));
            (Format::V3, (of("cols"), of("rows")))
        }
        Some(other) => return Err(not_a_recording(&format!("its version is {other}"))),
        None => return Err(not_a_recording("it has no version")),
    };
    let (cols, rows) = sane_size(size.0, size.1);
    let env = fields.get("env").and_then(Value::as_object);
    let mut env: BTreeMap<String, String> = env
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect();
    if let Some(name) = fields.get("term").and_then(|term| term.get("type")).and_then(Value::as_str) {
        env.entry("TERM".to_owned()).or_insert_with(|| name.to_owned());
    }
    #[allow(clippy::cast_possible_truncation)]
    let timestamp = fields.get("timestamp").and_then(|at| at.as_i64().or_else(|| at.as_f64().map(|at| at as i64)));
    Ok(Header {
        format,
        cols,
        rows,
        timestamp,
        command: text("command"),
        title: text("title"),
        env,
        idle_limit: fields.get("idle_time_limit").and_then(Value::as_f64).filter(|limit| *limit > 0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Encoder;
    use super::*;
    use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

    fn read(bytes: &[u8]) -> (Vec<Placed>, u64, bool) {
        let mut reader = Reader::open(bytes).unwrap();
        let mut events = Vec::new();
        while let Some(event) = reader.next_event().unwrap() {
            events.push(event);
        }
        (events, reader.faults(), reader.torn())
    }

    #[test]
    fn bad_lines_are_passed_over_and_a_torn_end_is_told() {
        let file = b"{\"version\":2,\"width\":0,\"height\":0}\n[1,\"o\",\"a\"]\nnonsense\n\n[0.5,\"o\",\"b\"]\n[2,\"z\",{\"k\":1}]\n[3,\"o\",\"to";
        let (events, faults, torn) = read(file);
        assert_eq!((events.len(), faults, torn), (3, 1, true));
        assert_eq!(events[1].event.time, Duration::from_secs(1), "time does not run back");
        assert_eq!(events[2].event.kind, EventKind::Other { code: "z".into(), data: "{\"k\":1}".into() });
        assert_eq!(file[usize::try_from(events[1].start).unwrap()..][..4], *b"[0.5");
        let header = Reader::open(&file[..]).unwrap().header().clone();
        assert_eq!((header.cols, header.rows), (80, 24));
    }

    #[test]
    fn version_3_counts_from_the_event_before_and_has_comments() {
        let file = b"{\"version\":3,\"term\":{\"cols\":90,\"rows\":20,\"type\":\"vt\"}}\n# comment\n[0.5,\"o\",\"a\"]\n[0.25,\"x\",\"2\"]\n";
        let (events, faults, torn) = read(file);
        assert_eq!((events[1].event.time, faults, torn), (Duration::from_millis(750), 0, false));
        assert_eq!(events[1].event.kind, EventKind::Exit(2));
    }

    #[test]
    fn what_is_no_recording_says_so() {
        for bad in ["", "\n\n", "[1]\n", "{\"version\":1}\n", "{}", "\x7fELF\x02\x01"] {
            let error = Reader::open(bad.as_bytes()).unwrap_err();
            assert_eq!((error.kind, error.hint.is_some()), (ErrorKind::InvalidArgument, true), "{bad}");
        }
    }

    fn kinds() -> impl Strategy<Value = EventKind> {
        prop_oneof![
            any::<String>().prop_map(EventKind::Output),
            any::<String>().prop_map(EventKind::Input),
            any::<String>().prop_map(EventKind::Marker),
            (1..500u16, 1..500u16).prop_map(|(cols, rows)| EventKind::Resize { cols, rows }),
            Just(EventKind::Exit(7)),
        ]
    }

    proptest! {
        #[test]
        fn what_was_written_comes_back_however_it_is_cut(
            events in proptest::collection::vec((0..5_000_000u64, kinds()), 0..20),
            v3 in any::<bool>(),
            cut in any::<proptest::sample::Index>(),
        ) {
            let format = if v3 { Format::V3 } else { Format::V2 };
            let header = Header { format, cols: 80, rows: 24, ..Header::default() };
            let mut bytes = Encoder::header(&header);
            let head = bytes.len();
            let mut encoder = Encoder::new(format);
            let mut time = 0;
            let mut expected = Vec::new();
            for (step, kind) in events {
                time += step;
                let length = bytes.len();
                encoder.event(&mut bytes, Duration::from_micros(time), &kind);
                if bytes.len() > length {
                    expected.push((time, kind, bytes.len()));
                }
            }
            let cut = head + cut.index(bytes.len() - head + 1);
            let (found, faults, torn) = read(&bytes[..cut]);
            // The last line may lack nothing but its newline.
            let whole = expected.iter().take_while(|(_, _, end)| *end <= cut + 1).count();
            prop_assert_eq!(found.len(), whole);
            prop_assert_eq!(faults, 0);
            prop_assert!(!torn || cut < bytes.len());
            for (placed, (time, kind, _)) in found.iter().zip(&expected) {
                prop_assert_eq!(&placed.event.kind, kind);
                let off = placed.event.time.as_secs_f64() - Duration::from_micros(*time).as_secs_f64();
                prop_assert!(off.abs() < 1e-5);
            }
        }

        #[test]
        fn any_bytes_are_no_panic(bytes in any::<Vec<u8>>()) {
            let mut file = b"{\"version\":3}\n".to_vec();
            file.extend(bytes);
            read(&file);
        }

        #[test]
        fn nearly_events_are_no_panic(
            lines in "(\\[(-?[0-9]{0,12}(e[0-9]{1,3})?|null), ?\"[oirmxz]\", ?(\"[0-9x\\\\u]{0,8}\"|[0-9]{1,12}|\\{\\})\\]?\n){0,5}",
        ) {
            for version in ["{\"version\":2}\n", "{\"version\":3}\n"] {
                read(format!("{version}{lines}").as_bytes());
            }
        }
    }
}
