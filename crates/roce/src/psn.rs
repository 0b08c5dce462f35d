//! Packet sequence numbers: 24 bits that wrap (IBTA vol. 1, 9.7.1).

/// A packet sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

/// Numbers that a PSN can have.
const NUMBERS: u32 = 1 << 24;

impl Psn {
    /// The lower 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value % NUMBERS)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number `packets` behind this one.
    #[must_use]
    pub const fn plus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The number `packets` in front of this one.
    #[must_use]
    pub const fn minus(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_sub(packets))
    }

    /// How far this number lies behind `other`: from -2^23 to 2^23 - 1.
    #[must_use]
    pub const fn distance(self, other: Self) -> i32 {
        let ahead = self.0.wrapping_sub(other.0) % NUMBERS;
        if ahead < NUMBERS / 2 {
            ahead.cast_signed()
        } else {
            ahead.cast_signed() - NUMBERS.cast_signed()
        }
    }

    /// Whether this number comes before `other`, of two that are less than 2^23 apart.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.distance(other) < 0
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
            prop_assert_eq!(second.distance(first), apart.cast_signed());
            prop_assert_eq!(second.minus(apart), first);
        }
    }
}
