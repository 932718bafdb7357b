//! Numbers in seven bits a byte, the lowest first: what packs' deltas and `meta` have in common.

/// Why there is no number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bad {
    /// The data end within it.
    CutShort,
    /// It has more than 64 bits.
    TooLarge,
}

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads a number, and moves `data` behind it.
pub(crate) fn take(data: &mut &[u8]) -> Result<u64, Bad> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = data.split_first().ok_or(Bad::CutShort)?;
        *data = rest;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            break;
        }
        value |= part << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Bad::TooLarge)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{Bad, put, take};

    proptest! {
        #[test]
        fn numbers_round_trip(value in any::<u64>(), shift in 0_u32..64) {
            let mut out = Vec::new();
            put(&mut out, value >> shift);
            prop_assert_eq!(take(&mut &out[..out.len() - 1]), Err(Bad::CutShort));
            out.push(7);
            let mut rest = &out[..];
            prop_assert_eq!(take(&mut rest), Ok(value >> shift));
            prop_assert_eq!(rest, &[7][..]);
        }
    }

    #[test]
    fn more_than_64_bits_are_too_many() {
        assert_eq!(take(&mut &[0xff; 11][..]), Err(Bad::TooLarge));
        assert_eq!(take(&mut &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2][..]), Err(Bad::TooLarge));
    }
}
