//! Sequence numbers of 64 bits, which do not wrap, and their PSNs on the wire.

use crate::psn::Psn;

/// The sequence number of a queue pair's first packet.
///
/// The value is a multiple of 2^24. It is large enough that no PSN of an earlier packet translates to a number below 0.
pub(crate) const FIRST_SEQUENCE: u64 = 1 << 24;

/// The translation between PSNs and sequence numbers of 64 bits, which begin at [`FIRST_SEQUENCE`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct PsnNumbering {
    first_psn: Psn,
}

impl PsnNumbering {
    /// Makes the translation in which `first` is the PSN of [`FIRST_SEQUENCE`].
    pub(crate) const fn new(first: Psn) -> Self {
        Self { first_psn: first }
    }

    /// Returns the PSN of a sequence number.
    pub(crate) const fn psn(self, sequence: u64) -> Psn {
        #[allow(clippy::cast_possible_truncation)] // PSNs are numbers modulo 2^24
        self.first_psn.plus(sequence as u32)
    }

    /// Returns the sequence number with the PSN `psn` that is nearest to `near`; `near` is at least [`FIRST_SEQUENCE`].
    pub(crate) fn sequence_of_psn_nearest_to(self, psn: Psn, near: u64) -> u64 {
        near.saturating_add_signed(i64::from(psn.signed_distance_from(self.psn(near))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_psn_finds_its_sequence_number(first: u32, near in 0u64..1 << 40, apart in -(1i64 << 23)..1 << 23) {
            let numbering = PsnNumbering::new(Psn::new(first));
            let near = FIRST_SEQUENCE + near;
            let sequence = near.saturating_add_signed(apart);
            prop_assert_eq!(numbering.sequence_of_psn_nearest_to(numbering.psn(sequence), near), sequence);
        }
    }
}
