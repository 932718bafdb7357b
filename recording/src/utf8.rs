//! Bytes of a terminal made text, piece by piece: what is invalid becomes U+FFFD, and a character that comes in two pieces
//! stays one.

/// Turns bytes into text.
#[derive(Debug, Clone, Default)]
pub struct Utf8 {
    /// The beginning of a character whose rest has not come yet; at most three bytes.
    carried: Vec<u8>,
}

impl Utf8 {
    /// Appends the text of `bytes`, and of what was carried over to them, to `into`.
    pub fn push(&mut self, mut bytes: &[u8], into: &mut String) {
        while !self.carried.is_empty() && !bytes.is_empty() {
            self.carried.push(bytes[0]);
            bytes = &bytes[1..];
            match std::str::from_utf8(&self.carried) {
                Ok(text) => {
                    into.push_str(text);
                    self.carried.clear();
                }
                // Still only a beginning.
                Err(error) if error.error_len().is_none() => {}
                // It was none; its last byte may begin another one.
                Err(error) => {
                    into.push(char::REPLACEMENT_CHARACTER);
                    let bad = error.error_len().unwrap_or(1);
                    let rest = self.carried.split_off(bad.min(self.carried.len()));
                    self.carried.clear();
                    self.decode(&rest, into);
                }
            }
        }
        if !bytes.is_empty() {
            self.decode(bytes, into);
        }
    }

    /// Whatever is carried over at the end is the beginning of nothing.
    pub fn finish(&mut self, into: &mut String) {
        if !self.carried.is_empty() {
            self.carried.clear();
            into.push(char::REPLACEMENT_CHARACTER);
        }
    }

    fn decode(&mut self, mut bytes: &[u8], into: &mut String) {
        loop {
            let error = match std::str::from_utf8(bytes) {
                Ok(text) => return into.push_str(text),
                Err(error) => error,
            };
            let (good, rest) = bytes.split_at(error.valid_up_to());
            // Checked just now; the lossy way would only look again.
            into.push_str(std::str::from_utf8(good).unwrap_or_default());
            match error.error_len() {
                None => {
                    self.carried.extend_from_slice(rest);
                    return;
                }
                Some(bad) => {
                    into.push(char::REPLACEMENT_CHARACTER);
                    bytes = &rest[bad..];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Utf8;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    fn all(pieces: &[&[u8]]) -> String {
        let (mut utf8, mut text) = (Utf8::default(), String::new());
        pieces.iter().for_each(|piece| utf8.push(piece, &mut text));
        utf8.finish(&mut text);
        text
    }

    #[test]
    fn characters_in_pieces_stay_whole() {
        assert_eq!(all(&[b"a\xe2", b"\x82", b"\xac b"]), "a€ b");
        assert_eq!(all(&[b"\xf0\x9f\x98", b"\x80"]), "😀");
        assert_eq!(all(&[b"\xe2\x82", b"x"]), "\u{fffd}x");
        assert_eq!(all(&[b"\xe2", b"\xe2\x82\xac"]), "\u{fffd}€");
        assert_eq!(all(&[b"\xff\xfe", b"ok\xc3"]), "\u{fffd}\u{fffd}ok\u{fffd}");
        assert_eq!(all(&[b"\xed", b"\xa0\x80"]), String::from_utf8_lossy(b"\xed\xa0\x80"));
    }

    proptest! {
        #[test]
        fn pieces_give_what_the_whole_gives(bytes in any::<Vec<u8>>(), size in 1..5usize) {
            let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            prop_assert_eq!(all(&pieces), String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn little_is_carried(bytes in any::<Vec<u8>>()) {
            let (mut utf8, mut text) = (Utf8::default(), String::new());
            utf8.push(&bytes, &mut text);
            prop_assert!(utf8.carried.len() < 4);
        }
    }
}
