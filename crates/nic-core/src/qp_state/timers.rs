//! Times and sizes that are encoded in attributes.

/// RNR NAK timer of each code, in units of 10 µs: IBTA vol. 1, table "Encoding for RNR NAK Timer Field".
const RNR_TIMERS_IN_10US_BY_CODE: [u64; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// Returns the path MTU in bytes of the code `code` (`enum ibv_mtu`): 256 (1) to 4096 (5). A code outside this range is
/// treated as the nearest valid code.
#[must_use]
pub fn path_mtu_bytes(code: u32) -> u32 {
    128 << code.clamp(1, 5)
}

/// Returns the time of the RNR NAK timer code `code` in nanoseconds: from 10 µs (1) to 491.52 ms (31), and 655.36 ms
/// for 0.
///
/// The field has 5 bits; higher bits of `code` are ignored.
#[must_use]
pub fn rnr_timer_ns(code: u8) -> u64 {
    RNR_TIMERS_IN_10US_BY_CODE[usize::from(code & 0x1f)] * 10_000
}

/// Returns the time of the local ACK timeout code `code` in nanoseconds: 4.096 µs * 2^`code`. `None` for 0, which means
/// no timeout.
///
/// The field has 5 bits; higher bits of `code` are ignored.
///
/// Source: IBTA vol. 1, 9.9.2.1.1.
#[must_use]
pub fn ack_timeout_ns(code: u8) -> Option<u64> {
    match code & 0x1f {
        0 => None,
        code => Some(4_096 << code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RNR NAK times in milliseconds, from code 0 on: IBTA vol. 1, "Encoding for RNR NAK Timer Field".
    const RNR_TIMER_MS: &str = "655.36 0.01 0.02 0.03 0.04 0.06 0.08 0.12 0.16 0.24 0.32 0.48 0.64 0.96 1.28 1.92 \
    2.56 3.84 5.12 7.68 10.24 15.36 20.48 30.72 40.96 61.44 81.92 122.88 163.84 245.76 327.68 491.52";

    #[test]
    fn rnr_timer_is_the_table_of_the_specification() {
        let mut codes = 0;
        for (code, ms) in (0..).zip(RNR_TIMER_MS.split_whitespace()) {
            let (whole, hundredths) = ms.split_once('.').unwrap();
            let expected = whole.parse::<u64>().unwrap() * 1_000_000
                + hundredths.parse::<u64>().unwrap() * 10_000;
            assert_eq!(rnr_timer_ns(code), expected, "code {code}");
            codes += 1;
        }
        assert_eq!(codes, 32);
    }

    #[test]
    fn rnr_timer_follows_its_formula() {
        // The time of an even code is twice that of the even code before it, from 20 µs on; code 0 stands for 32. An
        // odd code is halfway between its neighbours; code 1 is an exception.
        for code in 2..=32_u8 {
            let power = 10_000_u64 << (code / 2);
            let expected = if code % 2 == 0 {
                power
            } else {
                power + power / 2
            };
            assert_eq!(rnr_timer_ns(code % 32), expected, "code {code}");
        }
        assert_eq!(rnr_timer_ns(1), 10_000);
    }

    #[test]
    fn timer_codes_have_five_bits() {
        for code in 0..=u8::MAX {
            assert_eq!(rnr_timer_ns(code), rnr_timer_ns(code % 32));
            assert_eq!(ack_timeout_ns(code), ack_timeout_ns(code % 32));
        }
    }

    #[test]
    fn ack_timeout_doubles_from_8_microseconds() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(1), Some(8_192));
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(ack_timeout_ns(31), Some(8_796_093_022_208));
    }
}
