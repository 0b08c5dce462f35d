//! Formats of numbers of bytes.

/// Formats a number of bytes in the largest unit that divides it.
pub(super) fn format_byte_limit(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    units
        .iter()
        .find(|(shift, _)| bytes >> shift > 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(
            || {
                // No address space has more bytes, so the number means that the device sets no
                // limit.
                if i64::try_from(bytes).is_ok_and(|bytes| bytes < i64::MAX) {
                    format!("{bytes} bytes")
                } else {
                    "any size".to_owned()
                }
            },
            |(shift, unit)| format!("{} {unit}", bytes >> shift),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole() {
        let shown: Vec<_> = [0, 1000, 1024, 1 << 31, 3 << 40, u64::MAX, (1 << 63) - 1]
            .map(format_byte_limit)
            .into();
        let whole = ["0 bytes", "1000 bytes", "1 KiB", "2 GiB", "3 TiB"];
        assert_eq!(shown[..5], whole);
        assert_eq!(shown[5..], ["any size"; 2]);
    }
}
