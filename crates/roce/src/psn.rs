//! Packet sequence numbers: 24 bits that wrap (IBTA vol. 1, 9.7.1).

/// A packet sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

/// Number of different PSNs.
const PSN_COUNT: u32 = 1 << 24;

impl Psn {
    /// Makes a PSN of the lower 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value % PSN_COUNT)
    }

    /// Returns the PSN as a number below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the PSN of the packet `packets` after this one.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// Returns the PSN of the packet `packets` before this one.
    #[must_use]
    pub const fn minus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_sub(packets))
    }

    /// Returns the signed distance from `other` to this PSN, from -2^23 to 2^23 - 1; it is positive if this PSN is
    /// later.
    #[must_use]
    pub const fn signed_distance_from(self, other: Self) -> i32 {
        let ahead = self.0.wrapping_sub(other.0) % PSN_COUNT;
        if ahead < PSN_COUNT / 2 {
            ahead.cast_signed()
        } else {
            ahead.cast_signed() - PSN_COUNT.cast_signed()
        }
    }

    /// Returns true if this PSN precedes `other`; the two must be less than 2^23 apart.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.signed_distance_from(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn order_survives_the_wrap(start: u32, apart in 1u32..1 << 23) {
            let (first, second) = (Psn::new(start), Psn::new(start).plus(apart));
            prop_assert!(first.is_before(second) && !second.is_before(first));
            prop_assert_eq!(second.signed_distance_from(first), apart.cast_signed());
            prop_assert_eq!(second.minus(apart), first);
        }
    }
}
