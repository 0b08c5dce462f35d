//! Which keys a load asks for, and what each must hold.

use serde::{Deserialize, Serialize};

use crate::random::{Random, mix};

/// How keys are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Popularity {
    /// All alike.
    Uniform,
    /// A key's popularity falls with its rank to this power, 0 to 1 without 1: 0.99 in YCSB. Which keys are popular is
    /// spread over all of them.
    Zipf(f64),
    /// Keys that were put last are the most popular, as in YCSB D.
    Latest(f64),
}

/// Chooses ranks by Zipf's law: Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994, the
/// method of YCSB.
#[derive(Debug, Clone)]
struct Zipf {
    n: f64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    #[expect(clippy::cast_precision_loss, reason = "counts of keys")]
    fn new(n: u64, theta: f64) -> Self {
        let zeta = zeta(n, theta);
        let count = n as f64;
        let two = zeta_of_two(theta);
        Self {
            n: count,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta,
            eta: (1.0 - (2.0 / count).powf(1.0 - theta)) / (1.0 - two / zeta),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank"
    )]
    fn rank(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < zeta_of_two(self.theta) {
            return 1;
        }
        (self.n * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
    }
}

fn zeta_of_two(theta: f64) -> f64 {
    1.0 + 0.5f64.powf(theta)
}

/// The sum of `1 / i^theta` for `i` from 1 to `n`; the tail by the integral (Euler and Maclaurin), exact to 1e-9.
#[expect(clippy::cast_precision_loss, reason = "counts of keys")]
fn zeta(n: u64, theta: f64) -> f64 {
    let head = n.min(10_000);
    let sum: f64 = (1..=head).map(|i| (i as f64).powf(-theta)).sum();
    let (from, to) = (head as f64, n as f64);
    let integral = (to.powf(1.0 - theta) - from.powf(1.0 - theta)) / (1.0 - theta);
    sum + integral + (to.powf(-theta) - from.powf(-theta)) / 2.0
}

/// Chooses keys.
#[derive(Debug, Clone)]
pub(crate) struct Chooser {
    random: Random,
    keys: u64,
    popularity: Popularity,
    zipf: Option<Zipf>,
}

impl Chooser {
    pub(crate) fn new(keys: u64, popularity: Popularity, seed: u64) -> Self {
        let theta = match popularity {
            Popularity::Uniform => None,
            Popularity::Zipf(theta) | Popularity::Latest(theta) => Some(theta),
        };
        Self {
            random: Random::new(seed),
            keys,
            popularity,
            zipf: theta.map(|theta| Zipf::new(keys, theta)),
        }
    }

    /// A number below 2^32, for other choices.
    #[inline]
    pub(crate) fn dice(&mut self) -> u64 {
        self.random.bits() >> 32
    }

    /// The next key's number; `newest` is the one that was put last.
    #[inline]
    pub(crate) fn next(&mut self, newest: u64) -> u64 {
        let Some(zipf) = &self.zipf else {
            return self.random.below(self.keys);
        };
        let rank = zipf.rank(&mut self.random).min(self.keys - 1);
        match self.popularity {
            Popularity::Latest(_) => (newest + self.keys - rank) % self.keys,
            // Popular keys are anywhere.
            _ => mix(rank) % self.keys,
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
        assert!((zeta(50_000, 0.99) - exact).abs() < 1e-6);
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
}
