//! The difference between two objects, in Git's pack delta form, both ways.
//!
//! A delta is: size of the base, size of the result (varints), then instructions: copy a range of the base, or insert up to
//! 127 literal bytes. Source of the form: `gitformat-pack(5)`, "Deltified representation".
//!
//! [`encode`] indexes the base in blocks of 16 bytes by a hash, rolls the same hash over the target, and extends every hit
//! both ways. Not here: choosing the base (`merge`).

use crate::leb128;

/// Bytes of a block of the base's index. Shorter matches than this are found only at the ends of longer ones.
const BLOCK: usize = 16;
/// At most so many blocks of one hash are looked at: what keeps repetitive bases from costing quadratic time.
const CHAIN: usize = 16;
/// Objects beyond this are not made deltas of: several of this size are in memory then.
pub(super) const MAX_SIZE: usize = 12 << 20;

/// A delta that cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("damaged delta: {0}")]
pub(super) struct BadDelta(&'static str);

fn varint(data: &mut &[u8]) -> Result<u64, BadDelta> {
    leb128::take(data).map_err(|bad| match bad {
        leb128::Bad::CutShort => BadDelta("it ends within a size"),
        leb128::Bad::TooLarge => BadDelta("a size has too many digits"),
    })
}

/// The sizes of base and result that a delta begins with. Needs its first 20 bytes at most.
pub(super) fn sizes(mut delta: &[u8]) -> Result<(u64, u64), BadDelta> {
    Ok((varint(&mut delta)?, varint(&mut delta)?))
}

/// Applies `delta` to `base`; `out` is cleared first. Never panics, never makes more than the delta declares.
pub(super) fn apply(base: &[u8], mut delta: &[u8], out: &mut Vec<u8>) -> Result<(), BadDelta> {
    out.clear();
    if varint(&mut delta)? != base.len() as u64 {
        return Err(BadDelta("it belongs to another base"));
    }
    let size = usize::try_from(varint(&mut delta)?).map_err(|_| BadDelta("the result is too large"))?;
    // A damaged size must not make us allocate: what is not really written is not reserved either.
    out.reserve(size.min(64 << 20));
    while let Some((&op, rest)) = delta.split_first() {
        delta = rest;
        if op & 0x80 != 0 {
            let (mut offset, mut len) = (0_usize, 0_usize);
            for bit in 0..7 {
                if op & (1 << bit) != 0 {
                    let (&byte, rest) = delta.split_first().ok_or(BadDelta("it ends within a copy"))?;
                    delta = rest;
                    if bit < 4 {
                        offset |= usize::from(byte) << (8 * bit);
                    } else {
                        len |= usize::from(byte) << (8 * (bit - 4));
                    }
                }
            }
            let len = if len == 0 { 0x10000 } else { len };
            let range = base.get(offset..offset + len).ok_or(BadDelta("it copies from beyond the base"))?;
            if len > size - out.len() {
                return Err(BadDelta("it makes more than it says"));
            }
            out.extend_from_slice(range);
        } else if op != 0 {
            let len = usize::from(op);
            let literal = delta.get(..len).ok_or(BadDelta("it ends within an insertion"))?;
            if len > size - out.len() {
                return Err(BadDelta("it makes more than it says"));
            }
            out.extend_from_slice(literal);
            delta = &delta[len..];
        } else {
            return Err(BadDelta("an instruction is unknown"));
        }
    }
    if out.len() == size { Ok(()) } else { Err(BadDelta("it makes less than it says")) }
}

/// A base, indexed to make deltas against it.
pub(super) struct Base<'a> {
    data: &'a [u8],
    /// Head of the chain of each hash; block number + 1.
    heads: Vec<u32>,
    /// The next block of the same hash, by block number; block number + 1.
    next: Vec<u32>,
    shift: u32,
}

impl<'a> Base<'a> {
    /// Indexes `data`.
    pub(super) fn new(data: &'a [u8]) -> Self {
        let data = &data[..data.len().min(MAX_SIZE)];
        let blocks = data.len() / BLOCK;
        let bits = usize::BITS - blocks.next_power_of_two().leading_zeros();
        let mut this =
            Self { data, heads: vec![0; 1 << bits], next: vec![0; blocks], shift: u32::BITS - bits.clamp(1, 31) };
        // From the back, so that the chain gives the first occurrence first.
        for block in (0..blocks).rev() {
            let slot = this.slot(hash(&data[block * BLOCK..][..BLOCK]));
            // Runs of one block would make long chains of the same: the first of the run stands for it.
            let head = this.heads[slot] as usize;
            if head == block + 2 && data[block * BLOCK..][..BLOCK] == data[(block + 1) * BLOCK..][..BLOCK] {
                this.next[block] = this.next[block + 1];
            } else {
                this.next[block] = head as u32;
            }
            this.heads[slot] = block as u32 + 1;
        }
        this
    }

    fn slot(&self, hash: u32) -> usize {
        (hash.wrapping_mul(0x9E37_79B1) >> self.shift) as usize & (self.heads.len() - 1)
    }

    /// The longest match for `target[at..]`: where in the base, and how long.
    fn find(&self, target: &[u8], at: usize, hash: u32) -> Option<(usize, usize)> {
        let mut best: Option<(usize, usize)> = None;
        let mut block = self.heads[self.slot(hash)];
        for _ in 0..CHAIN {
            if block == 0 {
                break;
            }
            let start = (block as usize - 1) * BLOCK;
            let len = common(&self.data[start..], &target[at..]);
            if len >= BLOCK && best.is_none_or(|(_, longest)| len > longest) {
                best = Some((start, len));
            }
            block = self.next[block as usize - 1];
        }
        best
    }

    /// The delta that makes `target` of this base; none as soon as it would take `limit` bytes or more.
    pub(super) fn encode(&self, target: &[u8], limit: usize) -> Option<Vec<u8>> {
        if target.len() > MAX_SIZE {
            return None;
        }
        let mut out = Vec::with_capacity(limit.min(256));
        leb128::put(&mut out, self.data.len() as u64);
        leb128::put(&mut out, target.len() as u64);
        // Equal beginnings and ends are the usual case, and no block boundary gets in their way here.
        let head = common(self.data, target);
        let mut at = 0;
        if head >= 4 {
            copy(&mut out, 0, head);
            at = head;
        }
        let tail = common_back(&self.data[head..], &target[at..]);
        let tail = if tail >= 4 { tail } else { 0 };
        let end = target.len() - tail;
        let (mut pending, mut rolling) = (at, None);
        while at + BLOCK <= end {
            let hash = match rolling {
                Some(previous) => roll(previous, target[at - 1], target[at + BLOCK - 1]),
                None => hash(&target[at..][..BLOCK]),
            };
            rolling = Some(hash);
            let Some((mut start, len)) = self.find(&target[..end], at, hash) else {
                at += 1;
                if out.len() + (at - pending) >= limit {
                    return None;
                }
                continue;
            };
            let back = common_back(&self.data[..start], &target[pending..at]);
            start -= back;
            insert(&mut out, &target[pending..at - back]);
            copy(&mut out, start, len + back);
            at += len;
            pending = at;
            rolling = None;
            if out.len() >= limit {
                return None;
            }
        }
        insert(&mut out, &target[pending..end]);
        if tail > 0 {
            copy(&mut out, self.data.len() - tail, tail);
        }
        (out.len() < limit).then_some(out)
    }
}

/// A hash of 16 bytes that can be rolled on by one.
fn hash(block: &[u8]) -> u32 {
    block.iter().fold(0, |hash: u32, &byte| hash.wrapping_mul(MULTIPLIER).wrapping_add(u32::from(byte) + 1))
}

const MULTIPLIER: u32 = 0x0100_0193;
const OLDEST: u32 = {
    let (mut power, mut i) = (1_u32, 0);
    while i < BLOCK {
        power = power.wrapping_mul(MULTIPLIER);
        i += 1;
    }
    power
};

fn roll(previous: u32, gone: u8, new: u8) -> u32 {
    previous
        .wrapping_mul(MULTIPLIER)
        .wrapping_add(u32::from(new) + 1)
        .wrapping_sub((u32::from(gone) + 1).wrapping_mul(OLDEST))
}

/// How many bytes `a` and `b` begin with in common.
fn common(a: &[u8], b: &[u8]) -> usize {
    let chunks = a.chunks_exact(16).zip(b.chunks_exact(16)).take_while(|(a, b)| a == b).count() * 16;
    chunks + a[chunks..].iter().zip(&b[chunks..]).take_while(|(a, b)| a == b).count()
}

/// How many bytes `a` and `b` end with in common.
fn common_back(a: &[u8], b: &[u8]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

fn insert(out: &mut Vec<u8>, literal: &[u8]) {
    for chunk in literal.chunks(127) {
        out.push(chunk.len() as u8);
        out.extend_from_slice(chunk);
    }
}

fn copy(out: &mut Vec<u8>, mut offset: usize, mut len: usize) {
    // Readers of old take at most 0x10000 bytes at once.
    while len > 0 {
        let now = len.min(0x10000);
        let op_at = out.len();
        out.push(0x80);
        for (bit, byte) in (offset as u32).to_le_bytes().into_iter().enumerate() {
            if byte != 0 {
                out[op_at] |= 1 << bit;
                out.push(byte);
            }
        }
        if now != 0x10000 {
            for (bit, byte) in (now as u32).to_le_bytes().into_iter().take(2).enumerate() {
                if byte != 0 {
                    out[op_at] |= 1 << (bit + 4);
                    out.push(byte);
                }
            }
        }
        offset += now;
        len -= now;
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};

    use super::{Base, apply};

    fn round_trip(base: &[u8], target: &[u8]) -> usize {
        let delta = Base::new(base).encode(target, usize::MAX).unwrap();
        let mut out = Vec::new();
        apply(base, &delta, &mut out).unwrap();
        assert_eq!(out, target);
        delta.len()
    }

    #[test]
    fn small_edits_make_small_deltas() {
        let base: Vec<u8> = (0..2000_u32).flat_map(|n| format!("line {n} {}\n", n * 7919).into_bytes()).collect();
        assert!(round_trip(&base, &base) < 12);
        let mut edited = base.clone();
        edited.splice(10_000..10_010, b"something else".iter().copied());
        assert!(round_trip(&base, &edited) < 40);
        let mut moved = base[20_000..].to_vec();
        moved.extend_from_slice(&base[..20_000]);
        assert!(round_trip(&base, &moved) < 32);
    }

    #[test]
    fn edges() {
        for (base, target) in [("", ""), ("", "abc"), ("abc", ""), ("aaaa", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")]
        {
            round_trip(base.as_bytes(), target.as_bytes());
        }
        round_trip(&vec![0; 300_000], &vec![0; 200_001]);
        round_trip(&[b'x'; 100], &vec![b'x'; 1 << 20]);
    }

    #[test]
    fn a_limit_is_kept() {
        let base = [1; 1000];
        let target: Vec<u8> = (0..1000_u32).map(|n| ((n * n) >> 3) as u8).collect();
        let full = Base::new(&base).encode(&target, usize::MAX).unwrap().len();
        assert!(Base::new(&base).encode(&target, full).is_none());
        assert!(Base::new(&base).encode(&target, full + 1).is_some());
    }

    fn pieces() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
        let piece = prop_oneof![vec(any::<u8>(), 0..40), vec(Just(7_u8), 0..100), vec(0_u8..3, 0..400)];
        (vec(piece, 1..12), vec((0_usize..12, any::<bool>()), 0..16)).prop_map(|(pieces, order)| {
            let target = order
                .into_iter()
                .flat_map(|(n, cut)| {
                    let piece = &pieces[n % pieces.len()];
                    if cut { piece[piece.len() / 3..].to_vec() } else { piece.clone() }
                })
                .collect();
            (pieces.concat(), target)
        })
    }

    proptest! {
        #[test]
        fn applying_gives_the_target((base, target) in pieces()) {
            round_trip(&base, &target);
            round_trip(&target, &base);
        }

        #[test]
        fn any_bytes_round_trip(base in vec(any::<u8>(), 0..200), target in vec(any::<u8>(), 0..200)) {
            round_trip(&base, &target);
        }

        #[test]
        fn a_damaged_delta_is_refused_or_keeps_its_promise(base in vec(any::<u8>(), 0..64), delta in vec(any::<u8>(), 0..64)) {
            let mut out = Vec::new();
            if apply(&base, &delta, &mut out).is_ok() {
                prop_assert_eq!(out.len() as u64, super::sizes(&delta).unwrap().1);
            }
        }
    }
}
