//! What of a recording a terminal is shown: what draws, and nothing else.
//!
//! A recording is what some program once wrote for some terminal, and it may come from anywhere. Left out is what asks the terminal for an answer,
//! which would be typed into the user's shell; what changes what keys and mouse send, as nobody reads them now; and what reaches
//! beyond the screen: clipboard, palette, notifications, printer, what was scrolled off, tab stops, the window's size, a shell's marks. So only what is known to draw goes through, and all that it
//! may leave behind is known, too (`LEAVE` in `play`).
//!
//! Sequences are those of ECMA-48 as xterm reads them. One that is cut by an event's end is held back until it is whole.

/// The longest sequence that is let through.
const LONGEST: usize = 4 << 10;
/// Modes of DEC's that only draw: reverse video, origin, wrapping, blinking and showing the cursor, wrapping back, margins, the other screen,
/// saving the cursor, synchronized output.
const MODES: [&str; 12] = ["5", "6", "7", "12", "25", "45", "47", "69", "1047", "1048", "1049", "2026"];
/// Those of them that show the other screen.
const SCREENS: [&str; 3] = ["47", "1047", "1049"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    #[default]
    Ground,
    /// After ESC, and what comes between it and its last character.
    Escape,
    /// After `ESC [`.
    Control,
    /// After `ESC ]`.
    Command,
    /// After the beginning of another string: `ESC P`, `ESC X`, `ESC ^`, `ESC _`.
    Other,
}

/// Leaves out what does not draw.
#[derive(Debug, Default)]
pub(super) struct Filter {
    state: State,
    /// The sequence so far, after what introduces it.
    held: String,
    /// The mode that showed the other screen, if that is shown.
    other_screen: Option<String>,
    /// The mode that showed it last, whether it still is.
    last_other: Option<String>,
}

impl Filter {
    /// What of `text` draws.
    pub(super) fn push(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                // An eight-bit control is ESC and a letter.
                '\u{80}'..='\u{9f}' => {
                    self.one('\x1b', &mut out);
                    self.one(char::from(u8::try_from(u32::from(character) - 0x40).unwrap_or(b'?')), &mut out);
                }
                _ => self.one(character, &mut out),
            }
        }
        out
    }

    /// Forgets a sequence that is not whole.
    pub(super) fn cut(&mut self) {
        self.state = State::Ground;
    }

    /// The mode that shows the other screen, if that is shown.
    pub(super) fn other_screen(&self) -> Option<String> {
        self.other_screen.clone()
    }

    /// Only this of what drew came to the terminal, which was in that mode `before`.
    pub(super) fn cut_short(&mut self, before: Option<String>, came: &str) {
        let mut seen = Self { other_screen: before, ..Self::default() };
        seen.push(came);
        self.other_screen = seen.other_screen;
        self.cut();
    }

    /// Nobody knows what has come to the terminal: if the other screen was ever shown, it may be.
    pub(super) fn lose(&mut self) {
        self.other_screen = self.other_screen.take().or_else(|| self.last_other.clone());
        self.cut();
    }

    /// What shows the main screen again, if another one is shown.
    pub(super) fn main_screen(&mut self) -> String {
        self.other_screen.take().map_or_else(String::new, |mode| format!("\x1b[?{mode}l"))
    }

    fn one(&mut self, character: char, out: &mut String) {
        match (self.state, character) {
            // Begins anew wherever it comes; a string that it ends is told by what follows.
            (State::Command, '\x1b') => {
                self.command(out);
                self.begin(State::Escape);
            }
            (_, '\x1b') => self.begin(State::Escape),
            (_, '\x18' | '\x1a') => self.state = State::Ground,
            (State::Command, '\x07') => {
                self.command(out);
                self.state = State::Ground;
            }
            (State::Command, _) => self.hold(character),
            (State::Other, _) => {
                if character == '\x07' {
                    self.state = State::Ground;
                }
            }
            // Asks the terminal who it is.
            (_, '\x05') => {}
            // Done at once, in the middle of a sequence as well.
            (_, '\0'..='\x1f') => out.push(character),
            (State::Ground, _) => out.push(character),
            (State::Escape, _) => self.escape(character, out),
            (State::Control, _) => self.control(character, out),
        }
    }

    fn begin(&mut self, state: State) {
        self.state = state;
        self.held.clear();
    }

    fn hold(&mut self, character: char) {
        // One that is too long is told by its length.
        if self.held.len() <= LONGEST {
            self.held.push(character);
        }
    }

    fn escape(&mut self, character: char, out: &mut String) {
        match character {
            ' '..='/' => return self.hold(character),
            '[' if self.held.is_empty() => return self.begin(State::Control),
            ']' if self.held.is_empty() => return self.begin(State::Command),
            'P' | 'X' | '^' | '_' if self.held.is_empty() => return self.begin(State::Other),
            _ => {}
        }
        self.state = State::Ground;
        let draws = match self.held.as_bytes() {
            // A reset takes what was scrolled off and the tab stops with it: of it remains what is seen.
            [] if character == 'c' => {
                out.push_str(&self.main_screen());
                out.push_str("\x1b[!p\x1b[2J\x1b[H");
                false
            }
            // Cursor kept and brought back, lines, another set of characters for one.
            [] => "6789DEMNO".contains(character),
            // Sets of characters; tests of the screen.
            [b'(' | b')' | b'*' | b'+' | b'#'] => true,
            _ => false,
        };
        if draws {
            out.extend(['\x1b']);
            out.push_str(&self.held);
            out.push(character);
        }
    }

    fn control(&mut self, character: char, out: &mut String) {
        match character {
            ' '..='?' => return self.hold(character),
            '@'..='~' => {}
            '\x7f' => return,
            // No control: what a terminal makes of it is anybody's guess.
            _ => return self.state = State::Ground,
        }
        self.state = State::Ground;
        if self.held.len() > LONGEST {
            return;
        }
        let held = std::mem::take(&mut self.held);
        let between = held.find(|c| (' '..='/').contains(&c)).unwrap_or(held.len());
        let (parameters, between) = held.split_at(between);
        let (private, numbers) = match parameters.strip_prefix('?') {
            Some(numbers) => (true, numbers),
            None => (false, parameters),
        };
        if !numbers.chars().all(|c| c.is_ascii_digit() || c == ';' || c == ':') {
            return;
        }
        let draws = match (private, between) {
            (true, "") if character == 'h' || character == 'l' => return self.modes(numbers, character, out),
            // What was scrolled off is not the recording's.
            (_, "") if character == 'J' => numbers.bytes().all(|byte| byte != b'3'),
            (true, "") => character == 'K',
            // Replacing or inserting; returns with newlines.
            (false, "") if character == 'h' || character == 'l' => numbers == "4" || numbers == "20",
            (false, "") => "@ABCDEFGHIKLMPSTXZ`abdefmrsu^".contains(character),
            (false, " ") => "@Aq".contains(character),
            (false, "!") => character == 'p',
            (false, "\"") => character == 'q',
            (false, "$") => "rtvxz{".contains(character),
            (false, "*") => character == 'x',
            (false, "'") => "}~".contains(character),
            _ => false,
        };
        if draws {
            out.push_str("\x1b[");
            out.push_str(&held);
            out.push(character);
        }
    }

    /// Modes of DEC's, on or off.
    fn modes(&mut self, numbers: &str, character: char, out: &mut String) {
        let drawing: Vec<&str> = numbers.split(';').filter(|mode| MODES.contains(mode)).collect();
        if let Some(mode) = drawing.iter().find(|mode| SCREENS.contains(mode)) {
            self.other_screen = (character == 'h').then(|| (*mode).to_owned());
            self.last_other = self.other_screen.clone().or(self.last_other.take());
        }
        if !drawing.is_empty() {
            out.push_str(&format!("\x1b[?{}{character}", drawing.join(";")));
        }
    }

    /// The window's title, and links.
    fn command(&mut self, out: &mut String) {
        let draws = ["0;", "1;", "2;", "8;"].iter().any(|start| self.held.starts_with(start));
        if draws && self.held.len() <= LONGEST {
            // What a string holds beside its end is for terminals to judge; controls are none of it.
            let text: String = self.held.chars().filter(|c| !c.is_control()).collect();
            out.push_str(&format!("\x1b]{text}\x1b\\"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Filter;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    fn filtered(text: &str) -> String {
        Filter::default().push(text)
    }

    #[test]
    fn what_draws_goes_through_as_it_is() {
        for text in [
            "plain é text\r\n\ttab\x08\x07",
            "\x1b[1;38:2:1:2:3m\x1b[m\x1b[2J\x1b[10;20H\x1b[K\x1b[?2J\x1b[5 q\x1b[1;5r\x1b[!p\x1b[4h",
            "\x1b[?1049h\x1b[?25l\x1b[?2026h\x1b[?7;25h",
            "\x1b7\x1b8\x1bM\x1b(0lqk\x1b(B\x1b#8\x1bD",
            "\x1b]0;a title\x1b\\\x1b]8;;https://example.org/?a=b\x1b\\link\x1b]8;;\x1b\\",
        ] {
            assert_eq!(filtered(text), text);
        }
    }

    #[test]
    fn the_other_screen_is_left_if_it_came_to_it() {
        const TEXT: &str = "a\x1b[?1049hb\x1b[?1049lc";
        let mut filter = Filter::default();
        for (before, came, leaves) in
            [(None, "a", ""), (None, "a\x1b[?1049hb", "\x1b[?1049l"), (None, TEXT, ""), (Some("47"), "a", "\x1b[?47l")]
        {
            filter.push(TEXT);
            filter.cut_short(before.map(str::to_owned), came);
            assert_eq!(filter.main_screen(), leaves, "{came:?}");
        }
        filter.lose();
        assert_eq!(filter.main_screen(), "\x1b[?1049l");
        let mut other = Filter::default();
        other.push("abc");
        other.lose();
        assert_eq!(other.main_screen(), "");
    }

    #[test]
    fn what_asks_or_reaches_beyond_the_screen_does_not() {
        for text in [
            // Who are you, where is the cursor, which modes, which colours, which keys, how large.
            "\x1b[c\x1b[0c\x1b[>c\x1b[=c\x1bZ\x05\x1b[5n\x1b[6n\x1b[?6n\x1b[x\x1b[>q\x1b[?25$p\x1b[4$p\x1b[?u\x1b[?4m",
            "\x1b]10;?\x07\x1b]11;?\x1b\\\x1b]4;1;?\x07\x1b]52;c;?\x07\x1bP+q544e\x1b\\\x1bP$qm\x1b\\\x1b[14t\x1b[18t\x1b[21t",
            "\x1b[1$w\x1b[1;1;1;1;1;1*y\x1b[?1;1S\x1b[1#R\x1b_Gi=1,a=q;\x1b\\\x1b[&u\x1b['|",
            // The same with eight-bit controls.
            "\u{9b}6n\u{9d}11;?\u{9c}\u{90}+q544e\u{9c}\u{9a}\u{9f}Ga=q\u{9c}",
            // What keys and the mouse send.
            "\x1b[?1h\x1b=\x1b>\x1b[?1000h\x1b[?1002;1006h\x1b[?1003h\x1b[?1004h\x1b[?2004h\x1b[>1u\x1b[=5u\x1b[<u\x1b[>4;2m\x1b[?9001h",
            "\x1b[?2031h\x1b[?2048h\x1b[?66h\x1b[2h\x1b[12l\x1b[?1000r\x1b[?1000s\x1b[1q",
            // Beyond the screen: clipboard, palette, folder, marks, notes, images, printer, window.
            "\x1b]52;c;aGk=\x07\x1b]4;1;red\x07\x1b]104\x07\x1b]7;file:///\x07\x1b]133;A\x07\x1b]9;x\x07\x1b]777;notify;a;b\x07\x1b]1337;File=:x\x07",
            // What was scrolled off, tab stops, a mode that no terminal is left in.
            "\x1b[3J\x1b[?3J\x1bH\x1b[g\x1b[3g\x1b[?2027h",
            "\x1b[5i\x1b[4i\x1b[8;10;10t\x1b[22;0t\x1b[?3h\x1b%@\x1b G\x1b[62\"p\x1bPtmux;\x1b\x1b[c\x1b\\",
        ] {
            assert_eq!(filtered(text).replace("\x1b\\", ""), "", "{text:?}");
        }
        assert_eq!(filtered("a\x1b[?1049;2004;25hb"), "a\x1b[?1049;25hb");
        // A title ends at the next control, whatever that is.
        assert_eq!(filtered("\x1b]0;a\x1b[6nb\x07c"), "\x1b]0;a\x1b\\b\x07c");
        // Of a reset what is seen of it.
        assert_eq!(filtered("\x1bc"), "\x1b[!p\x1b[2J\x1b[H");
        // What is never whole is never shown; what is too long neither.
        assert_eq!(filtered("x\x1b[6\x18n\x1b]0;title"), "xn");
        assert_eq!(filtered(&format!("\x1b[{}my\x1b]2;{}\x07z", "1;".repeat(9000), "t".repeat(9000))), "yz");
        // Controls in the middle of a sequence are done at once.
        assert_eq!(filtered("\x1b[6\n\x05n\x1b[3\r1m"), "\n\r\x1b[31m");
    }

    #[test]
    fn the_other_screen_is_left_if_it_is_shown() {
        let mut filter = Filter::default();
        filter.push("\x1b[?1047h");
        assert_eq!((filter.main_screen().as_str(), filter.main_screen().as_str()), ("\x1b[?1047l", ""));
        for text in ["\x1b[?1049h\x1b[?1049l", "\x1b[?1049h\x1bc"] {
            filter.push(text);
            assert_eq!(filter.main_screen(), "", "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(text in "(\x1b|\\[|\\]|\\?|[0-9;]|c|n|h|l|m|0;|\x07|\\\\|\u{9b}|\u{9d}|P|é| ){0,60}") {
            let (mut filter, whole) = (Filter::default(), filtered(&text));
            let pieces: String = text.chars().map(|c| filter.push(c.encode_utf8(&mut [0; 4]))).collect();
            prop_assert_eq!(&pieces, &whole);
            // What was let through is let through again: there is nothing else in it.
            prop_assert_eq!(filtered(&whole), whole);
        }

        #[test]
        fn nothing_of_any_text_asks_for_an_answer(text in any::<String>()) {
            let shown = filtered(&format!("\x1b[{text}\x1b]{text}"));
            let asks = ["\x05", "\x1bP", "\x1b_", "\u{9b}", "\u{90}"].iter().any(|it| shown.contains(it));
            prop_assert!(!asks, "{:?}", shown);
        }
    }
}
