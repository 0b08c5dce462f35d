//! Load generation: the choice of keys, and values that can be checked.
//!
//! Keys are numbers. [`KeyGenerator`] chooses them by their [`Popularity`], and [`write_key_bytes`] converts
//! them to bytes. A value begins with a stamp (its writer and time). All other bytes are a function
//! of key and stamp ([`write_value_bytes`]). So [`verified_stamp`] detects a value that is mixed from two
//! values, belongs to another key, or is cut off.

use serde::{Deserialize, Serialize};

use crate::random::{Random, mix_bits};

mod zipf;

use zipf::Zipf;

/// Distribution by which keys are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Popularity {
    /// All keys are equally popular.
    Uniform,
    /// Zipf's law: a key's popularity falls with its rank to this power, 0 or more; 0.99 in YCSB.
    /// Popular keys are scattered over all keys.
    Zipf(f64),
    /// The most recently written keys are the most popular, as in YCSB D. The exponent is as in
    /// [`Zipf`](Self::Zipf).
    Latest(f64),
    /// As [`Zipf`](Self::Zipf), but a key's rank is its distance from the key `first`, so popular
    /// keys are neighbours. The last key is followed by key 0.
    ZipfFrom {
        /// Exponent of Zipf's law.
        exponent: f64,
        /// Most popular key.
        first: u64,
    },
    /// A share of all requests goes to a range of neighbouring keys, with equal popularity. The
    /// other requests go to all keys, with equal popularity. The last key is followed by key 0.
    HotRange {
        /// Share of requests, 0 to 1.
        share: f64,
        /// First key of the range.
        first: u64,
        /// Number of keys in the range.
        keys: u64,
    },
}

/// Generator of keys.
#[derive(Debug, Clone)]
pub struct KeyGenerator {
    random: Random,
    key_count: u64,
    popularity: Popularity,
    zipf: Option<Zipf>,
}

impl KeyGenerator {
    /// Creates a generator of numbers below `keys`, which is at least 1. The same seed gives the
    /// same keys.
    pub fn new(keys: u64, popularity: Popularity, seed: u64) -> Self {
        let keys = keys.max(1);
        let exponent = match popularity {
            Popularity::Uniform | Popularity::HotRange { .. } => None,
            Popularity::Zipf(exponent)
            | Popularity::Latest(exponent)
            | Popularity::ZipfFrom { exponent, .. } => Some(exponent),
        };
        Self {
            random: Random::new(seed),
            key_count: keys,
            popularity,
            zipf: exponent.map(|exponent| Zipf::new(keys, exponent)),
        }
    }

    /// Makes `key` the first key of the hot range or of the popular neighbours. Other popularities
    /// do not change.
    pub fn move_hot_range_to(&mut self, key: u64) {
        match &mut self.popularity {
            Popularity::ZipfFrom { first, .. } | Popularity::HotRange { first, .. } => *first = key,
            Popularity::Uniform | Popularity::Zipf(_) | Popularity::Latest(_) => {}
        }
    }

    /// Returns a random number below 2^32, for other choices.
    #[inline]
    pub fn draw_u32_as_u64(&mut self) -> u64 {
        self.random.next_u64() >> 32
    }

    /// Returns the next key's number. `newest` is the most recently written key, used only by
    /// [`Popularity::Latest`].
    #[inline]
    pub fn next(&mut self, newest: u64) -> u64 {
        let Some(zipf) = &self.zipf else {
            return self.next_key_without_zipf();
        };
        let rank = zipf.draw_rank(&mut self.random).min(self.key_count - 1);
        match self.popularity {
            Popularity::Latest(_) => (newest + self.key_count - rank) % self.key_count,
            Popularity::ZipfFrom { first, .. } => (first % self.key_count + rank) % self.key_count,
            // Scatter popular keys over all keys.
            _ => mix_bits(rank) % self.key_count,
        }
    }

    #[inline]
    fn next_key_without_zipf(&mut self) -> u64 {
        match self.popularity {
            Popularity::HotRange { share, first, keys } if self.random.next_unit_f64() < share => {
                let within = self.random.next_below(keys.clamp(1, self.key_count));
                (first % self.key_count + within) % self.key_count
            }
            _ => self.random.next_below(self.key_count),
        }
    }
}

/// Writes the bytes of key number `n`: the number and mixed bits of it, cut or repeated to the
/// length. With four bytes or more, different numbers below 2^32 have different keys.
#[inline]
pub fn write_key_bytes(n: u64, into: &mut [u8]) {
    let words = [n, mix_bits(n)];
    for (i, chunk) in into.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&words[i % 2].to_le_bytes()[..chunk.len()]);
    }
}

/// Writes the value of a key and a stamp (the writer and time of the value). It consists of the
/// stamp and of bytes that are a function of both.
#[inline]
pub fn write_value_bytes(key: u64, stamp: u64, into: &mut [u8]) {
    let mut state = mix_bits(key ^ stamp.rotate_left(32));
    let mut chunks = into.chunks_mut(8);
    if let Some(first) = chunks.next() {
        first.copy_from_slice(&stamp.to_le_bytes()[..first.len()]);
    }
    for chunk in chunks {
        state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ key;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

/// Returns the stamp of a value, or `None` if the value is not a complete value of this key.
#[inline]
pub fn verified_stamp(key: u64, value: &[u8]) -> Option<u64> {
    let mut chunks = value.chunks(8);
    let mut stamp = [0; 8];
    if let Some(first) = chunks.next() {
        stamp[..first.len()].copy_from_slice(first);
    }
    let stamp = u64::from_le_bytes(stamp);
    let mut state = mix_bits(key ^ stamp.rotate_left(32));
    for chunk in chunks {
        state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ key;
        if *chunk != state.to_le_bytes()[..chunk.len()] {
            return None;
        }
    }
    Some(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_belongs_to_one_key_and_stamp_and_every_byte_counts() {
        for len in [8, 9, 16, 31, 32, 100] {
            let mut value = vec![0; len];
            write_value_bytes(77, 1234, &mut value);
            assert_eq!(verified_stamp(77, &value), Some(1234));
            if len > 15 {
                assert_eq!(verified_stamp(78, &value), None);
                for i in 0..len {
                    let mut other = value.clone();
                    other[i] ^= 0x40;
                    assert_ne!(verified_stamp(77, &other), Some(1234), "{i} of {len}");
                    assert!(i < 8 || verified_stamp(77, &other).is_none());
                }
            }
        }
    }

    #[test]
    fn keys_differ() {
        let mut all = std::collections::HashSet::new();
        for n in 0..10_000 {
            let mut key = [0; 16];
            write_key_bytes(n, &mut key);
            assert!(all.insert(key));
        }
    }

    /// Zipf's law: the most popular key has a share of 1 / zeta, and the second has 0.5^0.99 of
    /// that.
    #[test]
    fn popularity_follows_the_law() {
        let exact: f64 = (1..=50_000).map(|i| f64::from(i).powf(-0.99)).sum();
        let mut chooser = KeyGenerator::new(50_000, Popularity::Zipf(0.99), 1);
        let mut counts = std::collections::HashMap::new();
        let draws = 200_000;
        for _ in 0..draws {
            *counts.entry(chooser.next(0)).or_insert(0u32) += 1;
        }
        let mut counts: Vec<u32> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let first = f64::from(counts[0]) / f64::from(draws);
        assert!((first * exact - 1.0).abs() < 0.05, "{first}");
        let second = f64::from(counts[1]) / f64::from(counts[0]);
        assert!((second - 0.5f64.powf(0.99)).abs() < 0.05, "{second}");
        let mut uniform = KeyGenerator::new(10, Popularity::Uniform, 1);
        let mut seen = [0u32; 10];
        (0..10_000).for_each(|_| seen[usize::try_from(uniform.next(0)).expect("small")] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }

    #[test]
    fn the_latest_keys_are_the_most_popular() {
        let mut chooser = KeyGenerator::new(1000, Popularity::Latest(0.99), 1);
        let near = (0..1000)
            .filter(|_| (490..=500).contains(&chooser.next(500)))
            .count();
        assert!(near > 300, "{near}");
    }

    #[test]
    fn popular_neighbours_move_together() {
        let (keys, draws) = (1000, 10_000);
        let near = |chooser: &mut KeyGenerator, first: u64| {
            let is_near = |key: u64| (key + keys - first) % keys < 20;
            (0..draws).filter(|_| is_near(chooser.next(0))).count()
        };
        let hot = Popularity::HotRange {
            share: 0.9,
            first: 990,
            keys: 20,
        };
        let zipf = Popularity::ZipfFrom {
            exponent: 1.2,
            first: 990,
        };
        // 0.9 + 0.1 * 20 / 1000, and the share of the first 20 ranks of 1000.
        let weight = |k: u32| f64::from(k).powf(-1.2);
        let share = |n: u32| (1..=n).map(weight).sum::<f64>();
        for (popularity, expected) in [(hot, 0.902), (zipf, share(20) / share(1000))] {
            let mut chooser = KeyGenerator::new(keys, popularity, 3);
            for first in [990, 300] {
                chooser.move_hot_range_to(first);
                let seen = f64::from(u32::try_from(near(&mut chooser, first)).expect("small"));
                let expected = expected * 10_000.0;
                assert!(
                    (seen - expected).abs() < 250.0,
                    "{popularity:?}: {seen}, {expected}"
                );
            }
        }
    }
}
