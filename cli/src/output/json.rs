//! JSON as it may go to a terminal, too: a label or a recording's title must not be able to move the cursor.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

/// On one line, without its end.
pub(crate) fn write<T: Serialize>(out: &mut impl Write, shape: &T) -> io::Result<()> {
    shape.serialize(&mut Serializer::with_formatter(out, Shown)).map_err(io::Error::from)
}

/// Escapes the controls that JSON lets stand as they are: DEL, and those of eight bits.
struct Shown;

impl Formatter for Shown {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(|c| matches!(c, '\u{7f}'..='\u{9f}')) {
            let (before, from) = rest.split_at(at);
            let mut characters = from.chars();
            writer.write_all(before.as_bytes())?;
            characters.next().map_or(Ok(()), |control| write!(writer, "\\u{:04x}", u32::from(control)))?;
            rest = characters.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_control_stands_as_it_is() {
        let text = "a\u{7e}\u{7f}\u{80}\u{9b}6n\u{9f}\u{a0}é\x1b\"";
        let mut out = Vec::new();
        super::write(&mut out, &text).unwrap();
        let shown = String::from_utf8(out).unwrap();
        assert_eq!(shown, "\"a~\\u007f\\u0080\\u009b6n\\u009f\u{a0}é\\u001b\\\"\"");
        assert_eq!(serde_json::from_str::<String>(&shown).unwrap(), text);
    }
}
