//! The codes of the RNR NAK timer (IBTA vol. 1, table 46).

/// Times of the codes, in units of 10 microseconds.
const RNR_WAITS_10_US: [u64; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// Returns the time in nanoseconds that a requester waits after an RNR NAK with this code.
#[must_use]
pub fn rnr_wait_ns(code: u8) -> u64 {
    RNR_WAITS_10_US[usize::from(code % 32)] * 10_000
}

#[cfg(test)]
mod tests {
    use super::rnr_wait_ns;

    #[test]
    fn times_are_those_of_the_specification() {
        for (code, wait_us) in [(0, 655_360), (1, 10), (12, 640), (14, 1_280), (31, 491_520)] {
            assert_eq!(rnr_wait_ns(code), wait_us * 1000, "code {code}");
        }
    }
}
