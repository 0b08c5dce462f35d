//! Parses times and rates with units.

/// Units of time, with the number of nanoseconds of each.
const TIME_UNITS_NS: [(&str, f64); 6] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("ms", 1e6),
    ("min", 60e9),
    ("s", 1e9),
    ("h", 3600e9),
];

/// Units of rates, with the number of bits per second of each.
const RATE_UNITS_BPS: [(&str, f64); 4] =
    [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3), ("bit", 1.0)];

/// The longest time in a plan: a year.
const MAX_TIME_NS: f64 = 365.0 * 24.0 * 3600e9;

/// Parses a time, such as 10us, 2.5ms or 3s; returns nanoseconds.
pub(crate) fn parse_time_ns(text: &str) -> Result<u64, String> {
    let allowed = "a time, such as 500ns, 10us, 2.5ms, 3s or 1min";
    parse_number_with_unit(text, &TIME_UNITS_NS, MAX_TIME_NS)
        .ok_or_else(|| format!("{text:?} is not {allowed} (at most a year)"))
}

/// Parses a time, or a range of times such as 1ms..5ms; returns nanoseconds.
pub(crate) fn parse_time_range_ns(text: &str) -> Result<(u64, u64), String> {
    let Some((low, high)) = text.split_once("..") else {
        return parse_time_ns(text).map(|time| (time, time));
    };
    let (low, high) = (parse_time_ns(low.trim())?, parse_time_ns(high.trim())?);
    if low > high {
        return Err(format!("{text:?} ends before it begins"));
    }
    Ok((low, high))
}

/// Parses a rate, such as 10Mbit; returns bits per second.
pub(crate) fn parse_bits_per_second(text: &str) -> Result<u64, String> {
    let allowed = "a rate in bits per second, such as 500kbit, 10Mbit or 1Gbit";
    match parse_number_with_unit(text, &RATE_UNITS_BPS, 1e15) {
        Some(rate) if rate > 0 => Ok(rate),
        _ => Err(format!("{text:?} is not {allowed}")),
    }
}

fn parse_number_with_unit(text: &str, units: &[(&str, f64)], max: f64) -> Option<u64> {
    let (number, factor) = units.iter().find_map(|(unit, factor)| {
        let number = text.strip_suffix(unit)?;
        let ends_in_digit = number.trim_end().ends_with(|c: char| c.is_ascii_digit());
        ends_in_digit.then(|| (number.trim(), *factor))
    })?;
    let plain = |c: char| c.is_ascii_digit() || c == '.';
    let value = number
        .chars()
        .all(plain)
        .then(|| number.parse::<f64>().ok())??;
    let scaled = (value * factor).round();
    // The value is not negative, since no sign is parsed, and is at most `max`, which is below
    // 2^63.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    (scaled <= max).then_some(scaled as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_as_people_write_them() {
        assert_eq!(parse_time_ns("2.5ms"), Ok(2_500_000));
        assert_eq!(parse_time_ns("1min"), Ok(60_000_000_000));
        assert_eq!(parse_time_ns("3s"), Ok(3_000_000_000));
        assert_eq!(parse_time_range_ns("1us..2ms"), Ok((1000, 2_000_000)));
        assert_eq!(parse_bits_per_second("1.5Gbit"), Ok(1_500_000_000));
        for wrong in [
            "", "s", "5", "-1s", "1e3s", "nans", "infs", "400000h", "1 0s",
        ] {
            assert!(parse_time_ns(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["0bit", "1", "Mbit"] {
            assert!(parse_bits_per_second(wrong).is_err(), "{wrong:?}");
        }
        assert!(parse_time_range_ns("2s..1s").is_err());
    }
}
