//! The player's keys: of what was typed, one after the other, however many come at once.

/// A key that means something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Pause,
    Forward,
    Back,
    NextMarker,
    LastMarker,
    Quit,
}

/// What was typed, and not done yet.
#[derive(Debug, Default)]
pub(super) struct Typed(Vec<u8>);

impl Typed {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Whether a whole key waits, of whatever meaning.
    pub(super) fn waits(&self) -> bool {
        length(&self.0).is_some()
    }

    /// The next key that means something.
    pub(super) fn take(&mut self) -> Option<Key> {
        while let Some(length) = length(&self.0) {
            let key = meaning(&self.0[..length]);
            self.0.drain(..length);
            if key.is_some() {
                return key;
            }
        }
        None
    }
}

/// How long the first key is; none if there is none, or more of it is to come.
fn length(typed: &[u8]) -> Option<usize> {
    let last = |byte: &u8| usize::from((0x40..=0x7e).contains(byte));
    match typed {
        [] | [0x1b] | [0x1b, b'[' | b'O'] => None,
        [0x1b, b'O', end, ..] => Some(2 + last(end)),
        [0x1b, b'[', rest @ ..] => {
            let end = rest.iter().position(|byte| !(0x20..=0x3f).contains(byte))?;
            // What is no part of it breaks it off, and begins the next one.
            Some(2 + end + last(&rest[end]))
        }
        _ => Some(1),
    }
}

fn meaning(key: &[u8]) -> Option<Key> {
    match key {
        b" " => Some(Key::Pause),
        b"\x1b[C" | b"\x1bOC" => Some(Key::Forward),
        b"\x1b[D" | b"\x1bOD" => Some(Key::Back),
        b"]" => Some(Key::NextMarker),
        b"[" => Some(Key::LastMarker),
        b"q" | b"Q" | b"\x03" | b"\x04" => Some(Key::Quit),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, Typed};
    use proptest::prelude::{any, prop_assert_eq, proptest};

    fn keys(pieces: &[&[u8]]) -> Vec<Key> {
        let mut typed = Typed::default();
        let mut of = |piece: &&[u8]| {
            typed.push(piece);
            std::iter::from_fn(|| typed.take()).collect::<Vec<_>>()
        };
        pieces.iter().flat_map(&mut of).collect()
    }

    #[test]
    fn keys_are_known_by_their_bytes() {
        assert_eq!(keys(&[b" "]), [Key::Pause]);
        assert_eq!(keys(&[b"\x1b[C"]), [Key::Forward]);
        assert_eq!(keys(&[b"\x1b[?62;22c\x1b[1;5D"]), [], "what a terminal answers is no key");
    }

    #[test]
    fn keys_that_come_together_all_count_and_a_sequence_may_come_in_pieces() {
        assert_eq!(keys(&[b"\x1b[C\x1bOD q"]), [Key::Forward, Key::Back, Key::Pause, Key::Quit]);
        assert_eq!(keys(&[b"x\xc3\xa9[", b"\x1b", b"[", b"C]"]), [Key::LastMarker, Key::Forward, Key::NextMarker]);
        // Escape means nothing, and takes nothing with it.
        assert_eq!(keys(&[b"\x1b", b"q"]), [Key::Quit]);
        assert_eq!(keys(&[b"\x1b[1\x1b[C"]), [Key::Forward]);
        assert_eq!(keys(&[b"\x1b[\x03"]), [Key::Quit]);
    }

    proptest! {
        #[test]
        fn it_does_not_matter_in_what_pieces_they_come(bytes in any::<Vec<u8>>(), some in "[\x1b\\[OCD; q]{0,20}") {
            let all = [&bytes[..], some.as_bytes()].concat();
            let single: Vec<&[u8]> = all.chunks(1).collect();
            prop_assert_eq!(keys(&[&all]), keys(&single));
        }
    }
}
