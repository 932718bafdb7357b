//! Making lines. Nothing in them is a control but their ends, whatever they tell of: a recording may be shown on a terminal as the file that it is.

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{EventKind, Format, Header};

/// Makes the lines of one file, in order.
#[derive(Debug, Clone)]
pub struct Encoder {
    format: Format,
    /// Microseconds of the last event: version 3 counts from it, and time never runs backwards.
    last: u64,
}

impl Encoder {
    /// An encoder that has written nothing.
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self { format, last: 0 }
    }

    /// The header's line.
    #[must_use]
    pub fn header(header: &Header) -> Vec<u8> {
        let mut fields = Map::new();
        match header.format {
            Format::V2 => {
                fields.insert("width".into(), header.cols.into());
                fields.insert("height".into(), header.rows.into());
            }
            Format::V3 => {
                let mut term = json!({"cols": header.cols, "rows": header.rows});
                if let Some(name) = header.env.get("TERM") {
                    term["type"] = name.as_str().into();
                }
                fields.insert("term".into(), term);
            }
        }
        if let Some(timestamp) = header.timestamp {
            fields.insert("timestamp".into(), timestamp.into());
        }
        if let Some(limit) = header.idle_limit {
            fields.insert("idle_time_limit".into(), limit.into());
        }
        for (name, text) in [("command", &header.command), ("title", &header.title)] {
            if let Some(text) = text {
                fields.insert(name.into(), text.as_str().into());
            }
        }
        let env: Map<String, Value> = header
            .env
            .iter()
            .filter(|(name, _)| header.format == Format::V2 || *name != "TERM")
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        if !env.is_empty() {
            fields.insert("env".into(), env.into());
        }
        // The version comes first, where whoever guesses at what a file is looks for it; there are more fields after it.
        let rest = Value::Object(fields).to_string();
        let mut line = format!("{{\"version\":{},", header.format.number()).into_bytes();
        without_controls(&mut line, &rest[1..]);
        line.push(b'\n');
        line
    }

    /// Appends an event's line to `into`. What the format has no event for is left out.
    pub fn event(&mut self, into: &mut Vec<u8>, time: Duration, kind: &EventKind) {
        match kind {
            EventKind::Output(text) => self.text(into, time, "o", text),
            EventKind::Input(text) => self.text(into, time, "i", text),
            EventKind::Resize { cols, rows } => self.text(into, time, "r", &format!("{cols}x{rows}")),
            EventKind::Marker(label) => self.text(into, time, "m", label),
            EventKind::Exit(status) if self.format == Format::V3 => self.text(into, time, "x", &status.to_string()),
            EventKind::Exit(_) => {}
            EventKind::Other { code, data } => self.line(into, time, code, data),
        }
    }

    /// As [`Encoder::event`], of an event whose data is text.
    pub(crate) fn text(&mut self, into: &mut Vec<u8>, time: Duration, code: &str, data: &str) {
        self.begin(into, time, code);
        escape(into, data, None);
        into.extend_from_slice(b"]\n");
    }

    /// As [`Encoder::text`] of what was shown, with a return before each newline that has none. `after_return` says whether what was
    /// shown last was one.
    pub(crate) fn bare(&mut self, into: &mut Vec<u8>, time: Duration, data: &str, after_return: &mut bool) {
        self.begin(into, time, "o");
        escape(into, data, Some(after_return));
        into.extend_from_slice(b"]\n");
    }

    fn line(&mut self, into: &mut Vec<u8>, time: Duration, code: &str, data: &str) {
        self.begin(into, time, code);
        without_controls(into, data);
        into.extend_from_slice(b"]\n");
    }

    fn begin(&mut self, into: &mut Vec<u8>, time: Duration, code: &str) {
        let now = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(self.last);
        let shown = match self.format {
            Format::V2 => now,
            Format::V3 => now - self.last,
        };
        self.last = now;
        // Writing into memory does not fail.
        let _ = write!(into, "[{}.{:06}, ", shown / 1_000_000, shown % 1_000_000);
        escape(into, code, None);
        into.extend_from_slice(b", ");
    }
}

/// Appends JSON on one line, and escapes what else it lets stand as it is: DEL, and the controls of eight bits.
fn without_controls(into: &mut Vec<u8>, json: &str) {
    for character in json.chars() {
        match character {
            // Writing into memory does not fail.
            '\u{7f}'..='\u{9f}' => drop(write!(into, "\\u{:04x}", u32::from(character))),
            _ => into.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// What stands for a byte in a JSON string: 0 the byte itself, `u` four hex digits, `8` the same for it and the one before if that says
/// that the two are a control of eight bits, else this letter after a backslash.
const ESCAPES: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = b'u';
        byte += 1;
    }
    table[0x7f] = b'u';
    byte = 0x80;
    while byte < 0xa0 {
        table[byte] = b'8';
        byte += 1;
    }
    (table[0x0a], table[0x0d], table[0x09]) = (b'n', b'r', b't');
    (table[0x22], table[0x5c]) = (b'"', b'\\');
    table
};

/// What begins a control of eight bits in UTF-8: the byte after it is the control's number.
const EIGHT_BITS: u8 = 0xc2;

/// A JSON string. With `after_return`, a newline gets a return before it if it has none; that says whether the last byte was one.
///
/// All that a terminal shows goes through here, and a byte of that can become six: they are put together in a small buffer, so that the
/// large one is looked at once for many.
fn escape(into: &mut Vec<u8>, text: &str, mut after_return: Option<&mut bool>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    const PART: usize = 512;
    let mut buffer = [0; PART * 6];
    let returned = after_return.as_ref().is_none_or(|after| **after);
    let mut last = if returned { b'\r' } else { 0 };
    let add = after_return.is_some();
    into.push(b'"');
    for part in text.as_bytes().chunks(PART) {
        let mut at = 0;
        for &byte in part {
            match ESCAPES[usize::from(byte)] {
                0 => {
                    buffer[at] = byte;
                    at += 1;
                }
                b'8' if last != EIGHT_BITS => {
                    buffer[at] = byte;
                    at += 1;
                }
                kind @ (b'u' | b'8') => {
                    match at {
                        _ if kind == b'u' => {}
                        // The part before this one ended with it.
                        0 => drop(into.pop()),
                        _ => at -= 1,
                    }
                    let code = [b'\\', b'u', b'0', b'0', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
                    buffer[at..at + 6].copy_from_slice(&code);
                    at += 6;
                }
                letter => {
                    if add && letter == b'n' && last != b'\r' {
                        buffer[at..at + 2].copy_from_slice(b"\\r");
                        at += 2;
                    }
                    buffer[at..at + 2].copy_from_slice(&[b'\\', letter]);
                    at += 2;
                }
            }
            last = byte;
        }
        into.extend_from_slice(&buffer[..at]);
    }
    into.push(b'"');
    if let Some(after) = &mut after_return {
        **after = last == b'\r';
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    fn lines(format: Format, events: &[(u64, EventKind)]) -> String {
        let mut encoder = Encoder::new(format);
        let mut out = Vec::new();
        for (micros, kind) in events {
            encoder.event(&mut out, Duration::from_micros(*micros), kind);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn times_are_absolute_or_relative_and_never_run_back() {
        let events = [
            (1_500_000, EventKind::Output("a\r\n\u{1b}[0m\"\\é".into())),
            (1_000_000, EventKind::Marker("back".into())),
            (2_000_001, EventKind::Resize { cols: 100, rows: 30 }),
            (2_000_001, EventKind::Exit(3)),
        ];
        let shown = "\"a\\r\\n\\u001b[0m\\\"\\\\é\"";
        assert_eq!(
            lines(Format::V2, &events),
            format!("[1.500000, \"o\", {shown}]\n[1.500000, \"m\", \"back\"]\n[2.000001, \"r\", \"100x30\"]\n")
        );
        assert_eq!(
            lines(Format::V3, &events),
            format!(
                "[1.500000, \"o\", {shown}]\n[0.000000, \"m\", \"back\"]\n[0.500001, \"r\", \"100x30\"]\n[0.000000, \"x\", \"3\"]\n"
            )
        );
    }

    #[test]
    fn headers_have_the_shape_of_their_version() {
        let mut header = Header { cols: 80, rows: 24, timestamp: Some(7), ..Header::default() };
        header.env.insert("TERM".into(), "xterm".into());
        let v2: Value = serde_json::from_slice(&Encoder::header(&header)).unwrap();
        assert_eq!(v2, json!({"version": 2, "width": 80, "height": 24, "timestamp": 7, "env": {"TERM": "xterm"}}));
        header.format = Format::V3;
        let v3: Value = serde_json::from_slice(&Encoder::header(&header)).unwrap();
        assert_eq!(v3, json!({"version": 3, "term": {"cols": 80, "rows": 24, "type": "xterm"}, "timestamp": 7}));
    }

    #[test]
    fn returns_are_added_where_there_are_none() {
        let (mut out, mut after) = (Vec::new(), false);
        for text in ["a\nb\r", "\n\n", "c"] {
            escape(&mut out, text, Some(&mut after));
        }
        assert_eq!(String::from_utf8(out).unwrap(), r#""a\r\nb\r""\n\r\n""c""#);
        assert!(!after);
    }

    proptest! {
        #[test]
        fn every_text_is_sound_json(text in any::<String>()) {
            let mut out = Vec::new();
            escape(&mut out, &text, None);
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
            prop_assert_eq!(out.iter().filter(|&&b| b == b'\n').count(), 0);
        }

        #[test]
        fn no_text_leaves_a_control_in_a_line(text in "[\u{7e}-\u{a1}é\n]{0,10}", before in 500usize..520) {
            let text = format!("{}{text}", "x".repeat(before));
            let header = Header { cols: 1, rows: 1, title: Some(text.clone()), ..Header::default() };
            let data = json!([text]).to_string();
            let kinds = [EventKind::Marker(text.clone()), EventKind::Other { code: text.clone(), data }];
            let mut out = Encoder::header(&header);
            let mut encoder = Encoder::new(Format::V2);
            kinds.iter().for_each(|kind| encoder.event(&mut out, Duration::ZERO, kind));
            let out = String::from_utf8(out).unwrap();
            prop_assert_eq!(out.chars().filter(|c| c.is_control()).count(), 3, "{}", out);
            let mut reader = super::super::Reader::open(out.as_bytes()).unwrap();
            prop_assert_eq!(reader.header().title.as_ref(), Some(&text));
            for kind in kinds {
                prop_assert_eq!(reader.next_event().unwrap().unwrap().event.kind, kind);
            }
        }
    }
}
