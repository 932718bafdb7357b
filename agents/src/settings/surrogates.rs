//! Escapes of half a character (`crate::halves`) are put aside while settings are parsed and changed, and put back as they were spelled.
//!
//! A repository's settings are anybody's: each text is gone through a fixed number of times, whatever is in it.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::ops::Range;

use crate::halves::Escapes;

/// The private characters.
const PRIVATE: Range<u32> = 0xE000..0xF8FF;

/// Which private character stood for what.
#[derive(PartialEq, Eq)]
pub(super) struct Aside(HashMap<u32, String>);

impl Aside {
    /// The text with each such escape replaced by one of a private character whose escape is nowhere in it.
    pub(super) fn put(text: &str) -> (String, Self) {
        let taken: HashSet<u32> = Escapes::of(text).filter_map(|escape| escape.unit).collect();
        let mut free = PRIVATE.filter(|unit| !taken.contains(unit));
        let mut stand_ins = HashMap::<&str, u32>::new();
        let (mut out, mut escapes) = (String::with_capacity(text.len()), Escapes::of(text));
        for escape in &mut escapes {
            out.push_str(escape.before);
            let known = || stand_ins.get(escape.spelled).copied();
            // As many as there are private characters would have to be taken for none to be left.
            match if escape.is_half() { known().or_else(|| free.next()) } else { None } {
                None => out.push_str(escape.spelled),
                Some(unit) => {
                    stand_ins.insert(escape.spelled, unit);
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
        out.push_str(escapes.rest);
        (out, Self(stand_ins.into_iter().map(|(spelled, unit)| (unit, spelled.to_owned())).collect()))
    }

    /// The text with the escapes as they were.
    pub(super) fn back(&self, text: &str) -> String {
        let (mut out, mut escapes) = (String::with_capacity(text.len()), Escapes::of(text));
        for escape in &mut escapes {
            out.push_str(escape.before);
            let was = escape.unit.and_then(|unit| self.0.get(&unit));
            out.push_str(was.map_or(escape.spelled, String::as_str));
        }
        out + escapes.rest
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::Aside;

    #[test]
    fn as_many_halves_as_there_are_take_no_longer_in_a_large_text() {
        // A look through all of it for each of them would take hours.
        let mut text = "\\u".repeat(4 << 20);
        for unit in 0xD800..0xE000 {
            write!(text, "\\u{unit:04x} \\u{unit:04X} ").unwrap();
        }
        text += "\\uE000\\ue001";
        let (put, aside) = Aside::put(&text);
        assert!(put.len() == text.len() && !put.contains("\\ud8") && put.matches("\\ue001").count() == 1);
        assert!(aside.back(&put) == text);
    }

    #[test]
    fn only_halves_are_put_aside_and_come_back_as_they_were() {
        for (text, halves) in [
            (r#"{"a": "\ud83d\ude00 \n \u00e4 \\ud800 ä"}"#, 0),
            (r#"["\ud800", "\uD800", "\udc00\ud800", "\ud800\ud83d\ude00", "\ud800\n\ue000 \uE001"]"#, 6),
            (r#""\ud80"#, 0),
            ("\\", 0),
            ("\\ä\\ud8\u{e4}", 0),
        ] {
            let (put, aside) = Aside::put(text);
            assert_eq!(text.len(), put.len());
            let differ = text.bytes().zip(put.bytes()).enumerate().filter(|(_, (a, b))| a != b);
            let places: std::collections::BTreeSet<usize> =
                differ.map(|(at, _)| text[..at].rfind("\\u").unwrap()).collect();
            assert_eq!(places.len(), halves, "{put}");
            assert_eq!(aside.back(&put), text);
            assert!(halves == 0 || serde_json::from_str::<serde_json::Value>(&put).is_ok(), "{put}");
        }
    }
}
