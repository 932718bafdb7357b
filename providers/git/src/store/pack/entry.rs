//! The few bytes that an entry begins with.

use gix::objs::Kind;

/// What follows an entry's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum Body {
    /// The object itself.
    Whole(Kind),
    /// A delta against the entry so many bytes before this one.
    Before(u64),
    /// A delta against an object of this pack, by its id.
    Against([u8; 20]),
}

/// An entry's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct Entry {
    /// What follows.
    pub(in crate::store) body: Body,
    /// Bytes of the object, or of the delta.
    pub(in crate::store) size: u64,
    /// Bytes of this header.
    pub(in crate::store) len: usize,
}

/// The longest header: ten bytes of kind and size, 20 of a base's id.
pub(in crate::store) const LONGEST: usize = 30;

const OFS_DELTA: u8 = 6;
const REF_DELTA: u8 = 7;

fn number(kind: Kind) -> u8 {
    match kind {
        Kind::Commit => 1,
        Kind::Tree => 2,
        Kind::Blob => 3,
        Kind::Tag => 4,
    }
}

impl Entry {
    /// Reads a header from the beginning of `data`; none if that is none.
    pub(in crate::store) fn parse(data: &[u8]) -> Option<Self> {
        let first = *data.first()?;
        let (mut size, mut shift, mut len) = (u64::from(first & 15), 4, 1);
        let mut more = first & 0x80 != 0;
        while more {
            let byte = *data.get(len)?;
            if shift > 60 {
                return None;
            }
            size |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            len += 1;
            more = byte & 0x80 != 0;
        }
        let body = match first >> 4 & 7 {
            1 => Body::Whole(Kind::Commit),
            2 => Body::Whole(Kind::Tree),
            3 => Body::Whole(Kind::Blob),
            4 => Body::Whole(Kind::Tag),
            OFS_DELTA => {
                let mut byte = *data.get(len)?;
                len += 1;
                let mut back = u64::from(byte & 0x7f);
                while byte & 0x80 != 0 {
                    byte = *data.get(len)?;
                    len += 1;
                    back = back.checked_add(1)?.checked_mul(128)? | u64::from(byte & 0x7f);
                }
                Body::Before(back)
            }
            REF_DELTA => {
                let id = data.get(len..len + 20)?;
                len += 20;
                Body::Against(id.try_into().ok()?)
            }
            _ => return None,
        };
        Some(Self { body, size, len })
    }

    /// Writes a header.
    pub(in crate::store) fn write(body: Body, size: u64, out: &mut Vec<u8>) {
        let kind = match body {
            Body::Whole(kind) => number(kind),
            Body::Before(_) => OFS_DELTA,
            Body::Against(_) => REF_DELTA,
        };
        let mut rest = size >> 4;
        out.push(kind << 4 | (size & 15) as u8 | if rest > 0 { 0x80 } else { 0 });
        while rest > 0 {
            out.push((rest & 0x7f) as u8 | if rest > 0x7f { 0x80 } else { 0 });
            rest >>= 7;
        }
        match body {
            Body::Whole(_) => {}
            Body::Against(id) => out.extend_from_slice(&id),
            Body::Before(mut back) => {
                let mut digits = [0; 10];
                let mut at = digits.len() - 1;
                digits[at] = (back & 0x7f) as u8;
                while back > 0x7f {
                    back = (back >> 7) - 1;
                    at -= 1;
                    digits[at] = 0x80 | (back & 0x7f) as u8;
                }
                out.extend_from_slice(&digits[at..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::{Body, Entry, LONGEST};

    proptest! {
        #[test]
        fn headers_round_trip(size in 0..=u64::MAX >> 1, shift in 0_u32..63, back in 1..u64::MAX >> 2, id in any::<[u8; 20]>()) {
            let size = size >> shift;
            for body in [Body::Whole(gix::objs::Kind::Blob), Body::Before(back >> shift), Body::Against(id)] {
                let mut out = Vec::new();
                Entry::write(body, size, &mut out);
                prop_assert!(out.len() <= LONGEST);
                prop_assert_eq!(Entry::parse(&out), Some(Entry { body, size, len: out.len() }));
                prop_assert_eq!(Entry::parse(&out[..out.len() - 1]), None);
            }
        }

        #[test]
        fn any_bytes_are_a_header_or_none(data in vec(any::<u8>(), 0..40)) {
            if let Some(entry) = Entry::parse(&data) {
                prop_assert!(entry.len <= data.len());
            }
        }
    }
}
