//! Random numbers that depend only on seed, rule, stream and occurrence number.

/// Mixes 64 bits (the finalizer of SplitMix64; Steele, Lea and Flood, 2014).
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// Returns a hash of a text: FNV-1a, mixed.
pub(crate) fn hash_text(text: &str) -> u64 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    mix(hash)
}

/// The random numbers of one rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleRandom {
    key: u64,
}

impl RuleRandom {
    pub(crate) fn new(seed: u64, rule: u64) -> Self {
        Self {
            key: mix(seed) ^ rule,
        }
    }

    /// Returns the random number for occurrence `number` of `stream`; `purpose` distinguishes
    /// several numbers of one occurrence.
    pub(crate) fn draw_for_occurrence(self, stream: u64, number: u64, purpose: u64) -> u64 {
        mix(mix(mix(self.key ^ mix(stream)) ^ number) ^ mix(purpose))
    }
}

/// Returns true for a fraction `probability` of all draws.
pub(crate) fn is_draw_within_probability(draw: u64, probability: f64) -> bool {
    // 53 bits are exact in an f64.
    #[allow(clippy::cast_precision_loss)]
    let unit = (draw >> 11) as f64 / (1u64 << 53) as f64;
    unit < probability
}

/// Returns a number from `low` to `high`, both included.
pub(crate) fn map_draw_to_range(draw: u64, low: u64, high: u64) -> u64 {
    match high.saturating_sub(low).checked_add(1) {
        Some(width) => low + draw % width,
        None => draw,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_about_as_asked() {
        let draws = RuleRandom::new(1, hash_text("rule"));
        for percent in [0, 1, 10, 50, 99, 100] {
            let hits = (0..100_000)
                .filter(|&n| {
                    is_draw_within_probability(
                        draws.draw_for_occurrence(3, n, 0),
                        f64::from(percent) / 100.0,
                    )
                })
                .count();
            let expected = usize::try_from(percent).unwrap() * 1000;
            assert!(hits.abs_diff(expected) < 600, "{percent} %: {hits}");
        }
    }

    #[test]
    fn numbers_are_between_their_ends() {
        assert_eq!(map_draw_to_range(17, 5, 5), 5);
        assert_eq!(map_draw_to_range(u64::MAX, 0, u64::MAX), u64::MAX);
        assert!((0..100).all(|draw| (3..=9).contains(&map_draw_to_range(draw, 3, 9))));
    }
}
