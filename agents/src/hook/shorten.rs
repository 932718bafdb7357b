//! A reader that passes JSON through with its long strings cut and its depth limited, so that what parses it needs little memory.
//!
//! It knows strings and brackets, nothing else of JSON: text that was not JSON is not JSON afterwards, and what was stays so. A cut
//! never falls into an escape, a surrogate pair or a UTF-8 sequence.

use std::io::{self, Read};

/// Deepest nesting that is let through: what the parser behind refuses anyway.
const DEEPEST: usize = 128;

/// See the module.
pub(super) struct Shorten<R> {
    input: R,
    longest: usize,
    depth: usize,
    state: State,
    raw: Box<[u8]>,
    out: Vec<u8>,
    taken: usize,
}

/// Where in the text the next byte falls.
#[derive(Clone, Copy)]
enum State {
    Outside,
    /// In a string of which `kept` bytes went through.
    Keeping {
        kept: usize,
        escape: Escape,
    },
    /// In a string the rest of which is left out.
    Dropping {
        escaped: bool,
    },
}

/// How far into an escape sequence a kept string is.
#[derive(Clone, Copy, PartialEq)]
enum Escape {
    /// Not in one: a cut may fall here, if the next byte begins a character.
    None,
    /// After a backslash; the flag says that a low surrogate is due.
    Slash(bool),
    /// In the digits of `\u`: how many are left, and those read.
    Digits(u8, u16),
    /// After a high surrogate: the low one must follow at once.
    Pair,
}

impl<R: Read> Shorten<R> {
    /// Cuts strings after about `longest` bytes of their written form.
    pub(super) fn new(input: R, longest: usize) -> Self {
        let raw = vec![0; 64 * 1024].into_boxed_slice();
        Self { input, longest, depth: 0, state: State::Outside, raw, out: Vec::with_capacity(64 * 1024), taken: 0 }
    }

    /// Moves `raw[..len]` to `out`.
    fn pass(&mut self, len: usize) -> io::Result<()> {
        let mut at = 0;
        while at < len {
            match self.state {
                State::Outside => {
                    let byte = self.raw[at];
                    match byte {
                        b'"' => self.state = State::Keeping { kept: 0, escape: Escape::None },
                        b'{' | b'[' if self.depth == DEEPEST => return Err(io::Error::other("nested too deeply")),
                        b'{' | b'[' => self.depth += 1,
                        b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                        _ => {}
                    }
                    // Space between tokens is left out: there could be megabytes of it.
                    if !matches!(byte, b' ' | b'\n' | b'\t' | b'\r') || self.out.last() != Some(&b' ') {
                        self.out.push(if matches!(byte, b'\n' | b'\t' | b'\r') { b' ' } else { byte });
                    }
                    at += 1;
                }
                State::Keeping { kept, escape } => {
                    let byte = self.raw[at];
                    let starts = byte & 0b1100_0000 != 0b1000_0000;
                    if kept >= self.longest && escape == Escape::None && starts {
                        self.state = State::Dropping { escaped: false };
                        continue;
                    }
                    self.out.push(byte);
                    at += 1;
                    self.state = match (escape, byte) {
                        (Escape::None | Escape::Pair, b'"') => State::Outside,
                        _ => State::Keeping { kept: kept + 1, escape: escape.after(byte) },
                    };
                }
                State::Dropping { escaped: true } => {
                    self.state = State::Dropping { escaped: false };
                    at += 1;
                }
                State::Dropping { escaped: false } => match memchr::memchr2(b'"', b'\\', &self.raw[at..len]) {
                    None => at = len,
                    Some(gap) if self.raw[at + gap] == b'"' => {
                        self.out.push(b'"');
                        self.state = State::Outside;
                        at += gap + 1;
                    }
                    Some(gap) => {
                        self.state = State::Dropping { escaped: true };
                        at += gap + 1;
                    }
                },
            }
        }
        Ok(())
    }
}

impl Escape {
    fn after(self, byte: u8) -> Self {
        match (self, byte) {
            (Self::None, b'\\') => Self::Slash(false),
            (Self::Pair, b'\\') => Self::Slash(true),
            (Self::Slash(_), b'u') => Self::Digits(4, 0),
            (Self::Digits(left, value), byte) => {
                // A digit that is none makes the text invalid; the parser behind says so.
                let value = value << 4 | char::from(byte).to_digit(16).unwrap_or(0) as u16;
                match left {
                    1 if (0xD800..0xDC00).contains(&value) => Self::Pair,
                    1 => Self::None,
                    _ => Self::Digits(left - 1, value),
                }
            }
            _ => Self::None,
        }
    }
}

impl<R: Read> Read for Shorten<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.taken == self.out.len() {
            self.out.clear();
            self.taken = 0;
            let len = match self.input.read(&mut self.raw) {
                Ok(0) => return Ok(0),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.pass(len)?;
        }
        let len = buffer.len().min(self.out.len() - self.taken);
        buffer[..len].copy_from_slice(&self.out[self.taken..self.taken + len]);
        self.taken += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shortened(text: &[u8], longest: usize) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        Shorten::new(text, longest).read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn long_strings_are_cut_and_short_ones_are_not() {
        let out = shortened(br#"{ "a" : "0123456789", "b":"01" }"#, 4).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value, serde_json::json!({"a": "0123", "b": "01"}));
    }

    #[test]
    fn a_string_of_escapes_alone_is_cut_too() {
        let text = format!("\"{}\"", "\\ud83d\\ude00".repeat(100_000));
        let out = shortened(text.as_bytes(), 64).unwrap();
        assert!(out.len() < 100, "{}", out.len());
        assert!(serde_json::from_slice::<String>(&out).unwrap().chars().all(|c| c == '😀'));
    }

    #[test]
    fn brackets_without_end_are_refused() {
        assert!(shortened(&[b'['; 4096], 64).is_err());
    }

    proptest! {
        #[test]
        fn what_was_json_is_json_and_only_strings_are_shorter(text in "(\\PC|[\"\\\\\\n]|😀){0,40}", longest in 0usize..30, ascii: bool) {
            let mut json = serde_json::to_string(&serde_json::json!([{"k": text}, text, 1])).unwrap();
            if ascii {
                json = json.chars().map(|c| if c.is_ascii() { c.to_string() } else {
                    c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
                }).collect();
            }
            let out = shortened(json.as_bytes(), longest).unwrap();
            let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
            let cut = value[1].as_str().unwrap();
            prop_assert!(text.starts_with(cut));
            prop_assert!(cut == text || cut.len() * 12 + 12 > longest);
            prop_assert_eq!(&value[2], &serde_json::json!(1));
        }
    }
}
