//! Numbers in Redis's notation.

/// Parses a number in Redis's canonical notation only (`string2ll`): no plus, no leading zeros, no spaces.
pub(crate) fn parse_canonical_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', ..] => true,
        _ => false,
    };
    let text = std::str::from_utf8(text).ok()?;
    canonical.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::parse_canonical_integer;

    #[test]
    fn a_number_has_one_spelling() {
        for n in [0, 1, -1, 10, i64::MAX, i64::MIN] {
            assert_eq!(parse_canonical_integer(n.to_string().as_bytes()), Some(n));
        }
        let wrong = ["", "-", "-0", "+1", "01", " 1", "1 ", "1a", "1.0"];
        for text in wrong.iter().copied().chain(["9223372036854775808"]) {
            assert_eq!(parse_canonical_integer(text.as_bytes()), None, "{text:?}");
        }
    }
}
