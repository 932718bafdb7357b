//! A shell's marks in what it shows: `ESC ] 133 ; C … ST`, as `ah shell-init` makes shells print them, and as some print by themselves.
//!
//! A terminal shows nothing of them. Any program can print them, so they are hints on where a command begins and ends, never more.

/// A mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// A prompt begins.
    Prompt,
    /// The prompt ends, what is typed begins.
    Typing,
    /// A command begins to run.
    Start {
        /// The command line, if the shell says it.
        command: Option<String>,
    },
    /// A command ended.
    End {
        /// With this status, if the shell says it.
        status: Option<i32>,
    },
}

/// The longest mark that is kept; a command line beyond it is not told.
const MAX: usize = 8 << 10;
const INTRODUCER: &[u8] = b"133;";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Ground,
    /// After ESC.
    Escape,
    /// Inside an OSC that is, so far, one of ours.
    Ours,
    /// In it, after ESC: a backslash ends it.
    OursEscape,
}

/// Finds marks in bytes that come in pieces.
#[derive(Debug, Clone, Default)]
pub struct Scanner {
    state: State,
    body: Vec<u8>,
}

impl Scanner {
    /// Calls `found` for each mark that `bytes` completes, with the place behind it in them.
    pub fn push(&mut self, bytes: &[u8], mut found: impl FnMut(Mark, usize)) {
        let mut at = 0;
        while at < bytes.len() {
            if self.state == State::Ground {
                let Some(next) = memchr::memchr(0x1b, &bytes[at..]) else { return };
                at += next + 1;
                self.state = State::Escape;
                continue;
            }
            at += 1;
            self.byte(bytes[at - 1], &mut |mark| found(mark, at));
        }
    }

    fn byte(&mut self, byte: u8, found: &mut impl FnMut(Mark)) {
        self.state = match (self.state, byte) {
            (State::Escape, b']') => {
                self.body.clear();
                State::Ours
            }
            (State::Escape, 0x1b) => State::Escape,
            (State::Ours, 0x07) | (State::OursEscape, b'\\') => {
                if let Some(mark) = self.body.strip_prefix(INTRODUCER).and_then(read) {
                    found(mark);
                }
                State::Ground
            }
            (State::Ours, 0x1b) => State::OursEscape,
            // CAN and SUB end every sequence.
            (State::Ours, 0x18 | 0x1a) => State::Ground,
            (State::Ours, byte) if INTRODUCER.get(self.body.len()).is_some_and(|wanted| *wanted != byte) => {
                State::Ground
            }
            (State::Ours, byte) => {
                if self.body.len() < MAX {
                    self.body.push(byte);
                }
                State::Ours
            }
            // A sequence that was broken off by another one.
            (State::OursEscape, b']') => {
                self.body.clear();
                State::Ours
            }
            (State::OursEscape, 0x1b) => State::Escape,
            (State::OursEscape | State::Escape | State::Ground, _) => State::Ground,
        };
    }
}

fn read(body: &[u8]) -> Option<Mark> {
    let mut parts = body.split(|&byte| byte == b';');
    let kind = parts.next()?;
    Some(match kind {
        b"A" => Mark::Prompt,
        b"B" => Mark::Typing,
        b"C" => {
            // One that was cut off at the end is not what was typed.
            let whole = body.len() + INTRODUCER.len() < MAX;
            let command = parts.find_map(|part| part.strip_prefix(b"cmdline_url=")).filter(|_| whole);
            Mark::Start { command: command.map(unescape) }
        }
        b"D" => {
            let status = parts.next().and_then(|status| std::str::from_utf8(status).ok()?.trim().parse().ok());
            Mark::End { status }
        }
        _ => return None,
    })
}

/// Percent escapes read.
fn unescape(text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| first == b'%');
        let code = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Mark, Scanner};
    use proptest::prelude::{any, prop_assert_eq, proptest};

    fn marks(pieces: &[&[u8]]) -> Vec<Mark> {
        let (mut scanner, mut found) = (Scanner::default(), Vec::new());
        pieces.iter().for_each(|piece| scanner.push(piece, |mark, _| found.push(mark)));
        found
    }

    #[test]
    fn marks_are_found_in_pieces_and_between_other_things() {
        let start = Mark::Start { command: Some("ls -l; é".into()) };
        assert_eq!(
            marks(&[
                b"\x1b]133;A\x07$ \x1b]133;B\x1b\\",
                b"ls\x1b[0m\x1b",
                b"]133;C;cmdline_url=ls%20-l%3B%20%C3%A9\x07x"
            ]),
            [Mark::Prompt, Mark::Typing, start]
        );
        assert_eq!(
            marks(&[b"\x1b]133;D;130\x07\x1b]133;D\x07"]),
            [Mark::End { status: Some(130) }, Mark::End { status: None }]
        );
        assert_eq!(marks(&[b"\x1b]0;133;A\x07\x1b]13\x07\x1b]133;Z\x07\x1b]133;D;\x18;0\x07"]), []);
        assert_eq!(marks(&[b"\x1b]133;D\x1b]133;A\x07\x1b\x1b]133;B\x07"]), [Mark::Prompt, Mark::Typing]);
    }

    #[test]
    fn what_never_ends_takes_no_memory() {
        let mut scanner = Scanner::default();
        scanner.push(b"\x1b]133;C;cmdline_url=", |_, _| ());
        for _ in 0..100 {
            scanner.push(&[b'a'; 4096], |_, _| ());
        }
        assert!(scanner.body.len() <= super::MAX);
        let mut found = Vec::new();
        scanner.push(b"\x07", |mark, _| found.push(mark));
        assert_eq!(found, [Mark::Start { command: None }]);
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(text in "(\x1b|\\]|133;|[A-D]|;|\x07|\\\\|7|%4|cmdline_url=|x){0,40}", size in 1..6usize) {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            prop_assert_eq!(marks(&pieces), marks(&[text.as_bytes()]));
        }

        #[test]
        fn any_bytes_are_no_panic(bytes in any::<Vec<u8>>()) {
            marks(&[b"\x1b]133;C;cmdline_url=", &bytes, b"\x07"]);
        }
    }
}
