//! Escapes of half a character (`\ud800` alone), which JSON's grammar and JavaScript allow and parsers to text refuse: put aside while settings are parsed
//! and changed, and put back as they were spelled.

/// What stood for what.
pub(super) struct Aside(Vec<(String, String)>);

impl Aside {
    /// The text with each such escape replaced by one of a private character that is nowhere in it.
    pub(super) fn put(text: &str) -> (String, Self) {
        let (mut out, mut all) = (String::with_capacity(text.len()), Vec::<(String, String)>::new());
        let mut free = (0xE000..0xF8FFu32).map(|unit| format!("\\u{unit:04x}"));
        let mut rest = text;
        while let Some(at) = rest.find('\\') {
            let (before, escape) = rest.split_at(at);
            out.push_str(before);
            let len = match (unit(escape), escape.get(6..).and_then(unit)) {
                (Some(0xD800..0xDC00), Some(0xDC00..0xE000)) => 12,
                (Some(0xD800..0xE000), _) => 6,
                _ => 1 + escape[1..].chars().next().map_or(0, char::len_utf8),
            };
            let (escape, after) = escape.split_at(len);
            rest = after;
            if len != 6 {
                out.push_str(escape);
                continue;
            }
            let known = all.iter().find(|(_, spelled)| spelled == escape).map(|(stand_in, _)| stand_in.clone());
            // As many as there are private characters would have to be taken for none to be left.
            let stand_in = known.or_else(|| {
                let found = free.find(|stand_in| !holds(text, stand_in))?;
                all.push((found.clone(), escape.to_owned()));
                Some(found)
            });
            out.push_str(stand_in.as_deref().unwrap_or(escape));
        }
        out.push_str(rest);
        (out, Self(all))
    }

    /// The text with the escapes as they were.
    pub(super) fn back(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (stand_in, spelled)| text.replace(stand_in.as_str(), spelled))
    }
}

fn holds(text: &str, escape: &str) -> bool {
    text.contains(escape) || text.to_ascii_lowercase().contains(escape)
}

/// The number of an escape `\uXXXX` at the beginning of a text.
fn unit(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::Aside;

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
