//! What of the typed input is written down, where that was asked for: never what the terminal did not show.
//!
//! - While the terminal echoes, everything.
//! - While it reads lines without echo, as for a password, nothing but that something was typed.
//! - Programs that read key by key (shells' line editors, agents' screens) switch the echo off and show what is typed themselves.
//!   There a character counts as shown if what is shown next, and soon, begins or ends with it; else it is hidden too. That can be wrong
//!   in a program that shows something else at that moment which does: whoever records input should know that.
//!
//! Not here: whether input is recorded at all (`run`).

use std::collections::VecDeque;
use std::time::Duration;

use avt::Parser;
use avt::parser::Function;

use crate::utf8::Utf8;

/// What stands for input that was not shown, once for a whole run of it.
pub const HIDDEN: &str = "[hidden]";
/// How long a character may take to be shown.
const PATIENCE: Duration = Duration::from_millis(400);
/// More than anybody types while nothing is shown; beyond it the oldest is hidden at once.
const MAX_WAITING: usize = 4096;

/// What a terminal does with what is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Echo {
    /// It shows it.
    Shown,
    /// It reads lines and shows nothing.
    Hidden,
    /// It hands keys on; the program may show them.
    Program,
}

#[derive(Debug)]
struct Waiting {
    /// What has to be shown; none: nothing, it is a key that is no character, or it was not shown when it should have been.
    needle: Option<char>,
    text: String,
    since: Duration,
    shown: bool,
}

/// Decides what of the input may be written down.
#[derive(Debug, Default)]
pub struct Redactor {
    utf8: Utf8,
    waiting: VecDeque<Waiting>,
    /// The last thing written was [`HIDDEN`].
    hiding: bool,
}

impl Redactor {
    /// Takes what was typed at `now`; appends what may be written down by now to `out`.
    pub fn input(&mut self, bytes: &[u8], echo: Echo, now: Duration, out: &mut String) {
        if echo == Echo::Hidden {
            self.give_up(out);
            self.utf8 = Utf8::default();
            self.hide(out);
            return;
        }
        let mut text = String::new();
        self.utf8.push(bytes, &mut text);
        if echo == Echo::Shown {
            self.give_up(out);
            self.show(&text, out);
            return;
        }
        let mut rest = text.as_str();
        while let Some(first) = rest.chars().next() {
            let length = key_length(rest);
            let (key, after) = rest.split_at(length);
            let needle =
                if length > first.len_utf8() { typed_by(key) } else { Some(first).filter(|c| !c.is_control()) };
            self.waiting.push_back(Waiting { needle, text: key.to_owned(), since: now, shown: needle.is_none() });
            rest = after;
        }
        while self.waiting.len() > MAX_WAITING {
            self.settle_first(out);
        }
        self.settle(out);
    }

    /// Takes what was shown; appends what of the input may be written down now. A program that shows what is typed writes it, or the
    /// line anew up to it. In doubt it was something else.
    pub fn output(&mut self, text: &str, out: &mut String) {
        let mut parser = Parser::new();
        let printed = |c| if let Some(Function::Print(c)) = parser.feed(c) { Some(c) } else { None };
        let seen: Vec<char> = text.chars().filter_map(printed).collect();
        if seen.is_empty() {
            return;
        }
        let mut waiting: Vec<&mut Waiting> =
            self.waiting.iter_mut().filter(|waiting| !waiting.shown && waiting.needle.is_some()).collect();
        let needles: Vec<char> = waiting.iter().filter_map(|waiting| waiting.needle).collect();
        let first = needles.iter().zip(&seen).take_while(|(needle, seen)| needle == seen).count();
        let last = (1..=needles.len()).rev().find(|&count| seen.ends_with(&needles[..count])).unwrap_or(0);
        let shown = first.max(last);
        waiting.iter_mut().take(shown).for_each(|waiting| waiting.shown = true);
        if shown == 0 {
            waiting.iter_mut().for_each(|waiting| waiting.needle = None);
        }
        self.settle(out);
    }

    /// Hides what has waited too long at `now`.
    pub fn tick(&mut self, now: Duration, out: &mut String) {
        while self.waiting.front().is_some_and(|first| first.shown || now >= first.since + PATIENCE) {
            self.settle_first(out);
        }
    }

    /// Whether [`Redactor::tick`] has something to do before long.
    #[must_use]
    pub fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Settles everything: what was not shown by now is hidden.
    pub fn give_up(&mut self, out: &mut String) {
        while !self.waiting.is_empty() {
            self.settle_first(out);
        }
    }

    fn settle(&mut self, out: &mut String) {
        while self.waiting.front().is_some_and(|first| first.shown) {
            self.settle_first(out);
        }
    }

    fn settle_first(&mut self, out: &mut String) {
        let Some(first) = self.waiting.pop_front() else { return };
        if first.shown { self.show(&first.text, out) } else { self.hide(out) }
    }

    fn show(&mut self, text: &str, out: &mut String) {
        self.hiding &= text.is_empty();
        out.push_str(text);
    }

    fn hide(&mut self, out: &mut String) {
        if !std::mem::replace(&mut self.hiding, true) {
            out.push_str(HIDDEN);
        }
    }
}

/// The length of the key at the beginning of `text`: a character, or a whole escape sequence.
fn key_length(text: &str) -> usize {
    let first = text.chars().next().map_or(0, char::len_utf8);
    let Some(after) = text.strip_prefix('\x1b') else { return first };
    let Some(introducer) = after.chars().next() else { return 1 };
    match introducer {
        '[' => {
            let end = after.char_indices().skip(1).find(|(_, c)| ('\u{40}'..='\u{7e}').contains(c));
            end.map_or(text.len(), |(at, _)| 1 + at + 1)
        }
        'O' => 1 + after.char_indices().nth(2).map_or(after.len(), |(at, _)| at),
        // Alt and a character: the character may be part of what is typed.
        c if c.is_control() => 1 + c.len_utf8(),
        _ => 1,
    }
}

/// The character that a key's sequence stands for in the protocols that write every key as one.
fn typed_by(key: &str) -> Option<char> {
    let inside = key.strip_prefix("\x1b[")?;
    let code = if let Some(kitty) = inside.strip_suffix('u') {
        kitty.split([';', ':']).next()?
    } else {
        inside.strip_suffix('~')?.strip_prefix("27;")?.split(';').nth(1)?
    };
    code.parse().ok().and_then(char::from_u32).filter(|c| !c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    const AT: Duration = Duration::from_secs(1);

    #[test]
    fn passwords_are_hidden_once_for_all_of_them() {
        let (mut redactor, mut out) = (Redactor::default(), String::new());
        redactor.input(b"sudo ls\n", Echo::Shown, AT, &mut out);
        for byte in b"s3cret\n" {
            redactor.input(&[*byte], Echo::Hidden, AT, &mut out);
        }
        redactor.input(b"y\n", Echo::Shown, AT, &mut out);
        assert_eq!(out, "sudo ls\n[hidden]y\n");
    }

    #[test]
    fn keys_that_a_program_shows_are_kept_and_others_hidden() {
        let (mut redactor, mut out) = (Redactor::default(), String::new());
        redactor.input(b"l", Echo::Program, AT, &mut out);
        redactor.output("\x1b[1ml", &mut out);
        redactor.input(b"s\x1b[A\r", Echo::Program, AT, &mut out);
        assert_eq!(out, "l");
        redactor.output("...s", &mut out);
        assert_eq!(out, "ls\x1b[A\r");
        redactor.input(b"hunter2\r", Echo::Program, AT, &mut out);
        redactor.output("*******", &mut out);
        redactor.tick(AT + PATIENCE / 2, &mut out);
        assert_eq!(out, "ls\x1b[A\r");
        redactor.tick(AT + PATIENCE, &mut out);
        assert_eq!(out, "ls\x1b[A\r[hidden]\r");
        assert!(!redactor.waits());
    }

    #[test]
    fn pastes_and_keys_as_sequences_are_characters_too() {
        let (mut redactor, mut out) = (Redactor::default(), String::new());
        redactor.input(b"\x1b[200~tok\x1b[201~\x1b[97;1u\x1b[27;2;66~\x1bOP\x1bx", Echo::Program, AT, &mut out);
        redactor.tick(AT + PATIENCE, &mut out);
        assert_eq!(out, "\x1b[200~[hidden]\x1b[201~[hidden]\x1bOP\x1b[hidden]");
    }

    #[test]
    fn what_else_is_on_the_screen_shows_nothing() {
        let (mut redactor, mut out) = (Redactor::default(), String::new());
        let mut now = AT;
        for key in b"hunter2\r" {
            redactor.input(&[*key], Echo::Program, now, &mut out);
            for frame in
                ["\r\x1b[2K- the jury in turn fetches 27 things \x1b[0m|", "\x1b]0;hunter\x07\r/ 27 hunters \x1b[5h."]
            {
                now += PATIENCE / 4;
                redactor.output(frame, &mut out);
                redactor.tick(now, &mut out);
            }
        }
        redactor.give_up(&mut out);
        assert_eq!(out, "[hidden]\r");
    }

    #[test]
    fn only_what_is_shown_next_counts() {
        let (mut redactor, mut out) = (Redactor::default(), String::new());
        redactor.input(b"x", Echo::Program, AT, &mut out);
        redactor.output("\x1b[?25l\x07", &mut out);
        redactor.output("*", &mut out);
        redactor.output("x", &mut out);
        redactor.tick(AT + PATIENCE, &mut out);
        assert_eq!(out, HIDDEN);
        // Typed faster than it is shown, and written anew with what was there, as by highlighters.
        out.clear();
        redactor.input(b"ls", Echo::Program, AT, &mut out);
        redactor.output("l", &mut out);
        redactor.output("\x08\x1b[32mls\x1b[0m", &mut out);
        redactor.input(b" -", Echo::Program, AT, &mut out);
        redactor.output("\x08\x08\x1b[1mls\x1b[0m -", &mut out);
        assert_eq!(out, "ls -");
    }

    proptest! {
        #[test]
        fn nothing_hidden_ever_comes_out(typed in "[a-z]{1,20}", shown in "[A-Z0-9]{0,20}") {
            let (mut redactor, mut out) = (Redactor::default(), String::new());
            redactor.input(typed.as_bytes(), Echo::Program, AT, &mut out);
            redactor.output(&shown, &mut out);
            redactor.input(typed.as_bytes(), Echo::Hidden, AT, &mut out);
            redactor.give_up(&mut out);
            assert_eq!(out, HIDDEN);
        }

        #[test]
        fn any_bytes_are_no_panic(bytes in any::<Vec<u8>>(), escaped in "(\x1b|\\[|O|[0-9;:u~]|é){0,20}") {
            let (mut redactor, mut out) = (Redactor::default(), String::new());
            redactor.input(&bytes, Echo::Program, AT, &mut out);
            redactor.input(escaped.as_bytes(), Echo::Program, AT, &mut out);
            redactor.give_up(&mut out);
        }
    }
}
