//! The text of a REF. Which of its meanings counts is `resolve`'s.

use ah_plugin_api::{Error, ErrorKind, Result, Timestamp};

use crate::text::parse_time;

/// A REF as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Parsed {
    /// `@`, `@{N}`: the latest, N back.
    Back(u64),
    /// `@prompt`, `@prompt{N}`: before the N-th last prompt, from 1.
    Prompt(u64),
    /// An id, a label, a time or the beginning of an id.
    Text {
        /// The time that it may mean.
        time: Option<When>,
    },
}

/// A time as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// Nanoseconds after the beginning of the session.
    Into(i128),
    /// Nanoseconds ago.
    Ago(i128),
    /// A point in time.
    At(Timestamp),
}

/// Reads a REF.
pub(super) fn parse(text: &str) -> Result<Parsed> {
    let bad =
        |why: &str| Error::new(ErrorKind::InvalidArgument, format!("{text:?} is not a REF: {why}")).with_hint(HINT);
    if text.is_empty() {
        return Err(bad("it is empty"));
    }
    let Some(rest) = text.strip_prefix('@') else { return Ok(Parsed::Text { time: time(text) }) };
    let (prompt, count) = match rest.strip_prefix("prompt") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let number = match count.strip_prefix('{').and_then(|count| count.strip_suffix('}')) {
        None if count.is_empty() => u64::from(prompt),
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            digits.parse().map_err(|_| bad("the number is too large"))?
        }
        _ => return Err(bad("after @ or @prompt comes nothing, or a number in braces")),
    };
    match (prompt, number) {
        (true, 0) => Err(bad("prompts are counted from 1")),
        (true, number) => Ok(Parsed::Prompt(number)),
        (false, number) => Ok(Parsed::Back(number)),
    }
}

const HINT: &str = "ah agent fs snapshots lists ids and labels; `@` is the latest, `@{2}` two back, `5m-ago` a time";

fn time(text: &str) -> Option<When> {
    if let Some(ago) = text.strip_suffix("-ago").or_else(|| text.strip_prefix('-')) {
        return parse_duration(ago).map(When::Ago);
    }
    parse_duration(text).map(When::Into).or_else(|| parse_time(text).map(When::At))
}

/// Whether a text looks like an option (`-x`, `--stat`), and not like a time (`-5m`) or a sentence (`- one`): who names a snapshot so has mostly mistyped
/// one, so no REF and no label is such.
#[must_use]
pub fn reads_as_option(text: &str) -> bool {
    let rest = text.strip_prefix('-');
    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()) && !rest.contains(char::is_whitespace))
}

/// Whether a text by itself means a time.
pub(crate) fn reads_as_time(text: &str) -> bool {
    time(text).is_some()
}

/// `12.5s`, `5m`, `1h30m`, `7d`, `250ms`: nanoseconds. Bounded by about 3,000 years, so that sums with times do not overflow.
pub(crate) fn parse_duration(text: &str) -> Option<i128> {
    const MAX: i128 = 100_000_000_000 * 1_000_000_000;
    let mut rest = text;
    let mut total = 0i128;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let unit_end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit: i128 = match unit {
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            "w" => 604_800_000_000_000,
            _ => return None,
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || whole.len() > 12 || part.len() > 9 || part.contains('.') || number.ends_with('.') {
            return None;
        }
        total += whole.parse::<i128>().ok()? * unit;
        if !part.is_empty() {
            total += part.parse::<i128>().ok()? * unit / 10i128.pow(u32::try_from(part.len()).ok()?);
        }
        if total > MAX {
            return None;
        }
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

#[cfg(test)]
mod tests {
    use super::{Parsed, When, parse, parse_duration};
    use proptest::prelude::{any, proptest};

    #[test]
    fn forms_are_told_apart() {
        assert_eq!(parse("@").unwrap(), Parsed::Back(0));
        assert_eq!(parse("@{12}").unwrap(), Parsed::Back(12));
        assert_eq!(parse("@prompt").unwrap(), Parsed::Prompt(1));
        assert_eq!(parse("@prompt{3}").unwrap(), Parsed::Prompt(3));
        for bad in ["", "@{", "@{}", "@{-1}", "@{1}x", "@x", "@prompt{0}", "@prompts", "@{99999999999999999999}", "@@"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        let minutes = 60_000_000_000;
        assert_eq!(parse("5m-ago").unwrap(), Parsed::Text { time: Some(When::Ago(5 * minutes)) });
        assert_eq!(parse("-5m").unwrap(), Parsed::Text { time: Some(When::Ago(5 * minutes)) });
        assert_eq!(parse("12.5s").unwrap(), Parsed::Text { time: Some(When::Into(12_500_000_000)) });
        assert!(matches!(parse("2026-03-01T12:00:00+02:00").unwrap(), Parsed::Text { time: Some(When::At(_)) }));
        for plain in ["before the mess", "kmz", "5", "m", "-", "-ago", "5x", "1..2s", "2026-13-01T00:00:00Z", "."] {
            assert_eq!(parse(plain).unwrap(), Parsed::Text { time: None }, "{plain}");
        }
    }

    #[test]
    fn durations_add_up_and_are_bounded() {
        assert_eq!(parse_duration("1h30m"), Some(5400 * 1_000_000_000));
        assert_eq!(parse_duration("0.250s"), parse_duration("250ms"));
        for bad in ["", "1", "s", "1s2", "999999999999w", "1.0000000001s", "1é", "1.s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_no_panic(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn nearly_refs_are_no_panic(text in "(@|@prompt|-)?\\{?[0-9.]{0,25}\\}?(ms|s|m|h|d|w|é)?(-ago)?") {
            let _ = parse(&text);
        }
    }
}
