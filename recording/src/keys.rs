//! The recorder's own key: Ctrl-] and then `m` makes a moment. Everything else goes through unchanged.
//!
//! Ctrl-] twice types one Ctrl-]. With any other key after it, or none for half a second, both go through. Terminals that speak
//! one of the newer keyboard protocols send a sequence for Ctrl-], which is known here as well.

use std::time::{Duration, Instant};

/// Ctrl-] as a byte, and as the sequences that the protocols of kitty and of xterm have for it.
const PREFIXES: [&[u8]; 3] = [b"\x1d", b"\x1b[93;5u", b"\x1b[27;5;93~"];
/// `m`, plain or as kitty's protocol writes every key.
const MOMENT: [&[u8]; 3] = [b"m", b"\x1b[109u", b"\x1b[109;1u"];
/// How long a Ctrl-] waits for the next key.
const PATIENCE: Duration = Duration::from_millis(500);

/// What of the input is ours.
#[derive(Debug, Clone, Default)]
pub struct Keys {
    /// A Ctrl-] that was held back, and since when.
    held: Option<(&'static [u8], Instant)>,
}

impl Keys {
    /// Takes what was typed; appends what goes on to the command to `through` and gives how many moments are to be made.
    pub fn push(&mut self, mut typed: &[u8], now: Instant, through: &mut Vec<u8>) -> usize {
        let mut moments = 0;
        while !typed.is_empty() {
            if let Some((held, _)) = self.held.take() {
                if let Some(key) = MOMENT.iter().find(|key| typed.starts_with(key)) {
                    moments += 1;
                    typed = &typed[key.len()..];
                } else if let Some(again) = PREFIXES.iter().find(|key| typed.starts_with(key)) {
                    through.extend_from_slice(held);
                    typed = &typed[again.len()..];
                } else {
                    through.extend_from_slice(held);
                }
                continue;
            }
            let next = PREFIXES.iter().filter_map(|key| Some((memchr::memmem::find(typed, key)?, *key))).min();
            match next {
                Some((at, key)) => {
                    through.extend_from_slice(&typed[..at]);
                    typed = &typed[at + key.len()..];
                    self.held = Some((key, now));
                }
                None => {
                    through.extend_from_slice(typed);
                    break;
                }
            }
        }
        moments
    }

    /// When [`Keys::give_up`] is to be called, if nothing is typed before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.held.map(|(_, since)| since + PATIENCE)
    }

    /// Lets a held key go through if it has waited long enough.
    pub fn give_up(&mut self, now: Instant, through: &mut Vec<u8>) {
        if let Some((held, since)) = self.held
            && now >= since + PATIENCE
        {
            self.held = None;
            through.extend_from_slice(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Keys, PATIENCE};
    use proptest::prelude::{prop_assert_eq, proptest};
    use std::time::Instant;

    fn typed(pieces: &[&[u8]]) -> (Vec<u8>, usize) {
        let (mut keys, mut through, now) = (Keys::default(), Vec::new(), Instant::now());
        let moments = pieces.iter().map(|piece| keys.push(piece, now, &mut through)).sum();
        keys.give_up(now + PATIENCE, &mut through);
        (through, moments)
    }

    #[test]
    fn only_the_two_keys_together_are_ours() {
        assert_eq!(typed(&[b"ab\x1dmc"]), (b"abc".to_vec(), 1));
        assert_eq!(typed(&[b"\x1d", b"m"]), (vec![], 1));
        assert_eq!(typed(&[b"\x1d\x1d"]), (b"\x1d".to_vec(), 0));
        assert_eq!(typed(&[b"\x1dx\x1d"]), (b"\x1dx\x1d".to_vec(), 0));
        assert_eq!(typed(&[b"\x1b[93;5u", b"\x1b[109u"]), (vec![], 1));
        assert_eq!(typed(&[b"\x1b[93;5u\x1b[A"]), (b"\x1b[93;5u\x1b[A".to_vec(), 0));
        assert_eq!(typed(&[b"\x1b[27;5;93~m\x1dm"]), (vec![], 2));
    }

    #[test]
    fn a_key_that_waits_alone_goes_through() {
        let (mut keys, mut through, now) = (Keys::default(), Vec::new(), Instant::now());
        assert_eq!(keys.push(b"\x1d", now, &mut through), 0);
        keys.give_up(now + PATIENCE / 2, &mut through);
        assert_eq!((through.len(), keys.deadline()), (0, Some(now + PATIENCE)));
        keys.give_up(now + PATIENCE, &mut through);
        assert_eq!((through.as_slice(), keys.deadline()), (&b"\x1d"[..], None));
    }

    proptest! {
        #[test]
        fn without_the_prefix_all_goes_through(bytes in proptest::collection::vec(0x1e..=255u8, 0..50)) {
            prop_assert_eq!(typed(&[&bytes]), (bytes, 0));
        }
    }
}
