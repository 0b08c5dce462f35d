//! What a load asks for: which keys, and what each must hold.
//!
//! Keys are numbers. [`Chooser`] chooses them by their [`Popularity`]; [`key_bytes`] makes keys of bytes of them. A value
//! begins with a stamp (who put it, and when), and all its other bytes follow from key and stamp ([`value_bytes`]). So
//! [`stamp_of`] finds a value that is mixed from two, of another key, or cut, whoever put it.

use serde::{Deserialize, Serialize};

use crate::random::{Random, mix};

mod zipf;

use zipf::Zipf;

/// How keys are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Popularity {
    /// All alike.
    Uniform,
    /// A key's popularity falls with its rank to this power, 0 or more: 0.99 in YCSB. Popular keys are spread over all of
    /// them.
    Zipf(f64),
    /// Keys that were put last are the most popular, as in YCSB D; the exponent is as in [`Zipf`](Self::Zipf).
    Latest(f64),
    /// As [`Zipf`](Self::Zipf), but a key's rank is its distance from the key `first`: popular keys are neighbours. Behind the
    /// last key the first one follows.
    ZipfFrom {
        /// The power.
        exponent: f64,
        /// The most popular key.
        first: u64,
    },
    /// A share of all requests are for a range of neighbouring keys, all alike; the others are for all keys alike. Behind the
    /// last key the first one follows.
    HotRange {
        /// The share, 0 to 1.
        share: f64,
        /// The first key of the range.
        first: u64,
        /// Keys of the range.
        keys: u64,
    },
}

/// Chooses keys.
#[derive(Debug, Clone)]
pub struct Chooser {
    random: Random,
    keys: u64,
    popularity: Popularity,
    zipf: Option<Zipf>,
}

impl Chooser {
    /// Chooses numbers below `keys`, at least 1. The same seed gives the same keys.
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
            keys,
            popularity,
            zipf: exponent.map(|exponent| Zipf::new(keys, exponent)),
        }
    }

    /// Makes `key` the first one of the hot range or of the popular neighbours; nothing, where the popularity has neither.
    pub fn move_to(&mut self, key: u64) {
        match &mut self.popularity {
            Popularity::ZipfFrom { first, .. } | Popularity::HotRange { first, .. } => *first = key,
            Popularity::Uniform | Popularity::Zipf(_) | Popularity::Latest(_) => {}
        }
    }

    /// A number below 2^32, for other choices.
    #[inline]
    pub fn dice(&mut self) -> u64 {
        self.random.bits() >> 32
    }

    /// The next key's number; `newest` is the one that was put last, which only [`Popularity::Latest`] asks for.
    #[inline]
    pub fn next(&mut self, newest: u64) -> u64 {
        let Some(zipf) = &self.zipf else {
            return self.uniform();
        };
        let rank = zipf.rank(&mut self.random).min(self.keys - 1);
        match self.popularity {
            Popularity::Latest(_) => (newest + self.keys - rank) % self.keys,
            Popularity::ZipfFrom { first, .. } => (first % self.keys + rank) % self.keys,
            // Popular keys are anywhere.
            _ => mix(rank) % self.keys,
        }
    }

    #[inline]
    fn uniform(&mut self) -> u64 {
        match self.popularity {
            Popularity::HotRange { share, first, keys } if self.random.unit() < share => {
                let within = self.random.below(keys.clamp(1, self.keys));
                (first % self.keys + within) % self.keys
            }
            _ => self.random.below(self.keys),
        }
    }
}

/// The bytes of key number `n`: its number and random bytes, cut or repeated to the length. Different numbers have
/// different keys from four bytes on, as long as there are less than 2^32.
#[inline]
pub fn key_bytes(n: u64, into: &mut [u8]) {
    let words = [n, mix(n)];
    for (i, chunk) in into.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&words[i % 2].to_le_bytes()[..chunk.len()]);
    }
}

/// Writes the value that belongs to a key and a stamp, which says who put it when: the stamp, then bytes that follow
/// from both.
#[inline]
pub fn value_bytes(key: u64, stamp: u64, into: &mut [u8]) {
    let mut state = mix(key ^ stamp.rotate_left(32));
    let mut chunks = into.chunks_mut(8);
    if let Some(first) = chunks.next() {
        first.copy_from_slice(&stamp.to_le_bytes()[..first.len()]);
    }
    for chunk in chunks {
        state = state.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ key;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

/// The stamp of a value of this key, if it is a value of this key and all of it.
#[inline]
pub fn stamp_of(key: u64, value: &[u8]) -> Option<u64> {
    let mut chunks = value.chunks(8);
    let mut stamp = [0; 8];
    if let Some(first) = chunks.next() {
        stamp[..first.len()].copy_from_slice(first);
    }
    let stamp = u64::from_le_bytes(stamp);
    let mut state = mix(key ^ stamp.rotate_left(32));
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
            value_bytes(77, 1234, &mut value);
            assert_eq!(stamp_of(77, &value), Some(1234));
            if len > 15 {
                assert_eq!(stamp_of(78, &value), None);
                for i in 0..len {
                    let mut other = value.clone();
                    other[i] ^= 0x40;
                    assert_ne!(stamp_of(77, &other), Some(1234), "{i} of {len}");
                    assert!(i < 8 || stamp_of(77, &other).is_none());
                }
            }
        }
    }

    #[test]
    fn keys_differ() {
        let mut all = std::collections::HashSet::new();
        for n in 0..10_000 {
            let mut key = [0; 16];
            key_bytes(n, &mut key);
            assert!(all.insert(key));
        }
    }

    /// Zipf's law: how often the most popular key comes is 1 / zeta, and half of all requests are for few keys.
    #[test]
    fn popularity_follows_the_law() {
        let exact: f64 = (1..=50_000).map(|i| f64::from(i).powf(-0.99)).sum();
        let mut chooser = Chooser::new(50_000, Popularity::Zipf(0.99), 1);
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
        let mut uniform = Chooser::new(10, Popularity::Uniform, 1);
        let mut seen = [0u32; 10];
        (0..10_000).for_each(|_| seen[usize::try_from(uniform.next(0)).expect("small")] += 1);
        assert!(seen.iter().all(|n| (800..1200).contains(n)), "{seen:?}");
    }

    #[test]
    fn the_latest_keys_are_the_most_popular() {
        let mut chooser = Chooser::new(1000, Popularity::Latest(0.99), 1);
        let near = (0..1000)
            .filter(|_| (490..=500).contains(&chooser.next(500)))
            .count();
        assert!(near > 300, "{near}");
    }

    #[test]
    fn popular_neighbours_move_together() {
        let (keys, draws) = (1000, 10_000);
        let near = |chooser: &mut Chooser, first: u64| {
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
            let mut chooser = Chooser::new(keys, popularity, 3);
            for first in [990, 300] {
                chooser.move_to(first);
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
