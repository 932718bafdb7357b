//! Bytes in text that holds only some: `%` and two hexadecimal digits for each of the others. Which those are is for who writes it to say.

/// The bytes that a text stands for; none if a `%` has not two digits behind it.
#[must_use]
pub fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            out.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            out.push(first);
            rest = after;
        }
    }
    Some(out)
}
