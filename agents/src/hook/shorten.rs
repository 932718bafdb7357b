//! A reader that passes JSON through with its long strings cut and its depth limited, so that what parses it needs little memory.
//!
//! It knows strings and brackets, nothing else of JSON: text that was not JSON is not JSON afterwards, and what was stays so. What is nested deeper than the
//! parser behind takes is `null` instead, whatever is in it: a tool's input and output are as deep as the tool has them. A cut
//! never falls into an escape, a surrogate pair or a UTF-8 sequence. Half a surrogate pair, which the grammar allows and parsers to text refuse,
//! becomes U+FFFD.

use std::io::{self, Read};

/// Deepest nesting that is let through: the parser behind refuses more.
const DEEPEST: usize = 127;

/// See the module.
pub(super) struct Shorten<R> {
    input: R,
    longest: usize,
    depth: usize,
    state: State,
    /// An escape of a kept string that is not whole yet, or the first half of a pair and what has come of the second.
    held: Vec<u8>,
    raw: Box<[u8]>,
    out: Vec<u8>,
    taken: usize,
}

/// Where in the text the next byte falls.
#[derive(Clone, Copy)]
enum State {
    Outside,
    /// In a string of which `kept` bytes went through, or are held back.
    Keeping {
        kept: usize,
    },
    /// In a string the rest of which is left out.
    Dropping {
        escaped: bool,
    },
    /// In what is nested too deeply: within so many brackets of it, and in a string or not.
    Skipping {
        open: usize,
        string: Option<Escaped>,
    },
}

/// Where in a string that is skipped the next byte falls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Escaped {
    No,
    Yes,
}

/// What stands for half a character.
const NONE: &[u8] = b"\\ufffd";

impl<R: Read> Shorten<R> {
    /// Cuts strings after about `longest` bytes of their written form.
    pub(super) fn new(input: R, longest: usize) -> Self {
        let raw = vec![0; 64 * 1024].into_boxed_slice();
        let out = Vec::with_capacity(64 * 1024);
        Self { input, longest, depth: 0, state: State::Outside, held: Vec::with_capacity(12), raw, out, taken: 0 }
    }

    /// Moves `raw[..len]` to `out`.
    fn pass(&mut self, len: usize) {
        let mut at = 0;
        while at < len {
            match self.state {
                State::Outside => {
                    let byte = self.raw[at];
                    match byte {
                        b'"' => self.state = State::Keeping { kept: 0 },
                        b'{' | b'[' if self.depth == DEEPEST => {
                            self.out.extend_from_slice(b"null");
                            self.state = State::Skipping { open: 1, string: None };
                            at += 1;
                            continue;
                        }
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
                State::Keeping { kept } => {
                    let byte = self.raw[at];
                    let starts = byte & 0b1100_0000 != 0b1000_0000;
                    // Between two characters; the half of one that has come by then is left out as well.
                    if kept >= self.longest && matches!(self.held.len(), 0 | 6) && starts {
                        self.held.clear();
                        self.state = State::Dropping { escaped: false };
                        continue;
                    }
                    at += 1;
                    let ends = self.keep(byte);
                    self.state = if ends { State::Outside } else { State::Keeping { kept: kept + 1 } };
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
                State::Skipping { open, string } => {
                    self.state = skip(open, string, self.raw[at]);
                    at += 1;
                }
            }
        }
    }

    /// Passes a byte of a string, or holds it back until its escape is whole; true if it ends the string.
    fn keep(&mut self, byte: u8) -> bool {
        let (half, within) = (self.held.len() >= 6, self.held.len() % 6);
        let goes_on = match within {
            0 => byte == b'\\',
            1 => byte == b'u',
            _ => byte.is_ascii_hexdigit(),
        };
        if goes_on {
            self.held.push(byte);
            if within == 5 {
                self.settle();
            }
            return false;
        }
        // A plain byte, another escape than that of a number, or what the parser behind will refuse.
        if half {
            self.give_up_half();
        }
        self.out.append(&mut self.held);
        self.out.push(byte);
        within == 0 && byte == b'"'
    }

    /// An escape of a number is whole.
    fn settle(&mut self) {
        let unit = number(&self.held[self.held.len() - 6..]);
        let (first, second) = ((0xD800..0xDC00).contains(&unit), (0xDC00..0xE000).contains(&unit));
        if self.held.len() > 6 && !second {
            self.give_up_half();
        }
        match self.held.len() {
            // The other half may follow.
            6 if first => {}
            6 if second => self.give_up_half(),
            _ => self.out.append(&mut self.held),
        }
    }

    /// The half that is held stays alone.
    fn give_up_half(&mut self) {
        self.held.drain(..6);
        self.out.extend_from_slice(NONE);
    }
}

/// Where the next byte falls, when this one is skipped.
fn skip(open: usize, string: Option<Escaped>, byte: u8) -> State {
    let (open, string) = match (string, byte) {
        (None, b'{' | b'[') => (open + 1, None),
        (None, b'}' | b']') if open == 1 => return State::Outside,
        (None, b'}' | b']') => (open - 1, None),
        (None, b'"') | (Some(Escaped::Yes), _) => (open, Some(Escaped::No)),
        (Some(Escaped::No), b'"') => (open, None),
        (Some(Escaped::No), b'\\') => (open, Some(Escaped::Yes)),
        (string, _) => (open, string),
    };
    State::Skipping { open, string }
}

/// The number of an escape `\uXXXX`.
fn number(escape: &[u8]) -> u32 {
    escape[2..].iter().fold(0, |number, digit| number << 4 | char::from(*digit).to_digit(16).unwrap_or(0))
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
            self.pass(len);
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
    fn half_a_character_becomes_the_one_that_stands_for_none() {
        let units: [(&str, &[u16]); 8] = [
            (r"\ud800", &[0xD800]),
            (r"\udc00", &[0xDC00]),
            (r"\u0041", &[0x41]),
            (r"\n", &[10]),
            ("x", &[0x78]),
            (r"\uDBFF", &[0xDBFF]),
            (r"\uDFFF", &[0xDFFF]),
            ("", &[]),
        ];
        for all in (0..512).map(|n| [units[n % 8], units[n / 8 % 8], units[n / 64]]) {
            let text: String = all.iter().map(|(text, _)| *text).collect();
            let wide: Vec<u16> = all.iter().flat_map(|(_, wide)| *wide).copied().collect();
            let out = shortened(format!("\"{text}\"").as_bytes(), 100).unwrap();
            assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), String::from_utf16_lossy(&wide), "{text}");
        }
        let out = shortened(format!("\"{}\"", "\\ud800".repeat(100_000)).as_bytes(), 64).unwrap();
        assert!(out.len() < 100, "{}", out.len());
        assert!(serde_json::from_slice::<String>(&out).unwrap().starts_with('\u{fffd}'));
        for bad in [r#""\ud8""#, r#""\ud800\u12""#, r#""\ud800"#] {
            assert!(serde_json::from_slice::<String>(&shortened(bad.as_bytes(), 100).unwrap()).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_nested_too_deeply_is_null_and_brackets_without_end_are_no_json() {
        for depth in [0, 1, DEEPEST, DEEPEST + 1, 100_000] {
            let json = format!("{}{}", "[\"]\\\"\",".repeat(depth) + "[7]", "]".repeat(depth));
            let out = shortened(json.as_bytes(), 64).unwrap();
            let mut value = &serde_json::from_slice::<serde_json::Value>(&out).unwrap();
            for _ in 0..depth.min(DEEPEST) {
                value = &value[1];
            }
            assert_eq!(*value, if depth < DEEPEST { serde_json::json!([7]) } else { serde_json::Value::Null });
        }
        let out = shortened(&[b'['; 4096], 64).unwrap();
        assert!(out.len() < 200 && serde_json::from_slice::<serde_json::Value>(&out).is_err());
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
