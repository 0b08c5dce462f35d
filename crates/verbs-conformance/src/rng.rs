//! Reproducible random numbers and payloads.

/// A small random number generator: splitmix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Returns the generator with the given seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next_u64() % n
    }

    /// Returns true with probability 1/`n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Returns `len` bytes, each of which depends on `seed` and on its position.
///
/// A payload at the wrong place, of the wrong length or of the wrong message therefore differs from
/// the expected bytes.
#[must_use]
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_depends_on_its_seed_and_not_on_its_length() {
        assert_eq!(pattern(1, 100)[..50], pattern(1, 50)[..]);
        assert_ne!(pattern(1, 50), pattern(2, 50));
        assert!(pattern(1, 0).is_empty());
    }

    #[test]
    fn numbers_stay_below() {
        let mut rng = Rng::new(7);
        assert!((0..1000).all(|_| rng.below(3) < 3));
        assert!((0..1000).any(|_| rng.one_in(10)));
    }
}
