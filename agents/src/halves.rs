//! Escapes in JSON of half a character (`\ud800` alone), which its grammar and JavaScript allow and parsers to text refuse.
//!
//! Not here: replacing them in what is not in memory as a whole (`hook/shorten`).

/// An escape in a JSON text, or a pair of them that is one character.
pub(crate) struct Escape<'a> {
    /// What is between it and the one before.
    pub(crate) before: &'a str,
    /// As it is spelled.
    pub(crate) spelled: &'a str,
    /// Its number, if it is one `\uXXXX` and not a pair.
    pub(crate) unit: Option<u32>,
}

impl Escape<'_> {
    /// Whether it is half a character.
    pub(crate) fn is_half(&self) -> bool {
        self.unit.is_some_and(|unit| (0xD800..0xE000).contains(&unit))
    }
}

/// The escapes in a text, in order, with one look at each byte.
pub(crate) struct Escapes<'a> {
    /// What is behind the last one.
    pub(crate) rest: &'a str,
}

impl<'a> Escapes<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        Self { rest: text }
    }
}

impl<'a> Iterator for Escapes<'a> {
    type Item = Escape<'a>;

    fn next(&mut self) -> Option<Escape<'a>> {
        let (before, escape) = self.rest.split_at(self.rest.find('\\')?);
        let (len, unit) = match (unit(escape), escape.get(6..).and_then(unit)) {
            (Some(0xD800..0xDC00), Some(0xDC00..0xE000)) => (12, None),
            (Some(unit), _) => (6, Some(unit)),
            (None, _) => (1 + escape[1..].chars().next().map_or(0, char::len_utf8), None),
        };
        let (spelled, rest) = escape.split_at(len);
        self.rest = rest;
        Some(Escape { before, spelled, unit })
    }
}

/// The number of an escape `\uXXXX` at the beginning of a text.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
}

/// The text with U+FFFD for each.
pub(crate) fn replaced(text: &str) -> String {
    let (mut out, mut escapes) = (String::with_capacity(text.len()), Escapes::of(text));
    for escape in &mut escapes {
        out.push_str(escape.before);
        out.push_str(if escape.is_half() { "\\ufffd" } else { escape.spelled });
    }
    out + escapes.rest
}
