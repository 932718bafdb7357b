//! Random numbers from a seed that is printed, so that a run can be had again (splitmix64).

/// A generator.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The numbers that this seed gives.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A seed that nobody chose.
    pub fn seed() -> u64 {
        getrandom::u64().unwrap_or(1) >> 16
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// Bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.number().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}
