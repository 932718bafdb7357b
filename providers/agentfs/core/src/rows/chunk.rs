//! The map of a chunk: for each of its 256 blocks of 4 KiB, where the block lies.
//!
//! A version of a chunk's row is whole: it repeats what older versions said about the blocks that it does not change, so that
//! one row answers for a megabyte, and a write of 4 KiB costs one row, however large the file. Written as runs.

use crate::error::{Error, Result};
use crate::rows::key::Epoch;
use crate::rows::value::{HERE, Reader, Writer};
use crate::store::segments::{LARGEST, SEGMENT};

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 4096;
/// Blocks of a chunk.
pub(crate) const BLOCKS: usize = 256;
/// Bytes of a chunk.
pub(crate) const CHUNK: u64 = BLOCK * BLOCKS as u64;

/// Where a block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Place {
    /// In the file below if that reaches so far, else nowhere: zeros.
    #[default]
    Below,
    /// Nowhere: zeros.
    Hole,
    /// In the store, at this block; written during this epoch.
    Store { block: u64, born: Epoch },
}

/// Where the blocks of a chunk lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk(pub(crate) [Place; BLOCKS]);

impl Default for Chunk {
    fn default() -> Self {
        Self([Place::Below; BLOCKS])
    }
}

impl Chunk {
    /// Whether it says no more than no row at all.
    pub(crate) fn is_default(&self) -> bool {
        self.0.iter().all(|place| *place == Place::Below)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new(HERE);
        let mut at = 0;
        while at < BLOCKS {
            let length = self.run(at);
            match self.0[at] {
                Place::Below => writer.number((length as u64) << 2),
                Place::Hole => writer.number((length as u64) << 2 | 1),
                Place::Store { block, born } => writer.number((length as u64) << 2 | 2).number(block).number(born),
            };
            at += length;
        }
        writer.0
    }

    /// How many blocks from `at` on lie one behind the other in the same way, and in one segment: what is written or read of them at once lies in one file.
    pub(crate) fn run(&self, at: usize) -> usize {
        let first = self.0[at];
        let goes_on = |(ahead, place): (usize, &Place)| match (first, *place) {
            (Place::Store { block, born }, Place::Store { block: next, born: also }) => {
                next == block + ahead as u64 && next / SEGMENT == block / SEGMENT && born == also
            }
            (one, other) => one == other,
        };
        self.0[at..].iter().enumerate().take_while(|&item| goes_on(item)).count()
    }

    /// A row that says that there is none reads as the default.
    pub(crate) fn decode(row: &[u8]) -> Result<Self> {
        let mut chunk = Self::default();
        let Some(mut reader) = Reader::here(row) else { return Ok(chunk) };
        let mut at = 0;
        while at < BLOCKS {
            let word = reader.number()?;
            let length = (word >> 2) as usize;
            let end = at.checked_add(length).filter(|&end| end <= BLOCKS && length > 0);
            let run =
                end.and_then(|end| chunk.0.get_mut(at..end)).ok_or_else(|| Error::corrupt("a run is too long"))?;
            match word & 3 {
                0 => {}
                1 => run.fill(Place::Hole),
                2 => {
                    let (first, born) = (reader.number()?, reader.number()?);
                    if first >= LARGEST {
                        return Err(Error::corrupt("a block lies behind all others"));
                    }
                    for (place, block) in run.iter_mut().zip(first..) {
                        *place = Place::Store { block, born };
                    }
                }
                _ => return Err(Error::corrupt("a run is of no known kind")),
            }
            at += length;
        }
        Ok(chunk)
    }

    /// The blocks in the store, each with the epoch that wrote it.
    pub(crate) fn stored(&self) -> impl Iterator<Item = (u64, Epoch)> + '_ {
        self.0.iter().filter_map(|place| match *place {
            Place::Store { block, born } => Some((block, born)),
            Place::Below | Place::Hole => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_that_cannot_be_is_refused() {
        let mut writer = Writer::new(HERE);
        writer.number(256 << 2 | 2).number(u64::MAX).number(1);
        assert!(matches!(Chunk::decode(&writer.0), Err(Error::Corrupt(_))));
    }

    #[test]
    fn runs_come_back_as_they_were() {
        let mut chunk = Chunk::default();
        assert_eq!(chunk.encode().len(), 3, "a chunk that says nothing is short");
        for (at, place) in chunk.0.iter_mut().enumerate() {
            *place = match at {
                0..=9 => Place::Store { block: 1000 + at as u64, born: 7 },
                10..=11 => Place::Store { block: 1010 + at as u64, born: 7 },
                12..=200 => Place::Hole,
                253..=254 => Place::Store { block: SEGMENT - 254 + at as u64, born: 7 },
                255 => Place::Store { block: LARGEST - 1, born: u64::MAX },
                _ => Place::Below,
            };
        }
        assert_eq!([0, 4, 253, 254].map(|at| chunk.run(at)), [10, 6, 1, 1], "none reaches beyond its segment");
        let row = chunk.encode();
        assert_eq!(Chunk::decode(&row).unwrap(), chunk);
        assert!(row.len() < 48, "{}", row.len());
        for cut in 1..row.len() {
            assert!(Chunk::decode(&row[..cut]).is_err(), "cut at {cut}");
        }
    }
}
