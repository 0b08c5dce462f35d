//! How a tensor is divided among queue pairs; pure.

use std::ops::Range;

/// Smallest stripe: a tensor uses one more queue pair for each such number of bytes.
const STRIPE_BYTES_MIN: u64 = 1 << 20;
/// Stripes begin at multiples of this, so that each has whole pages.
const STRIPE_ALIGNMENT_BYTES: u64 = 4096;
/// Bytes of an RDMA WRITE at most: verbs take 2 GiB (IBTA vol. 1, 9.7.8).
pub const WRITE_BYTES_MAX: u64 = 1 << 30;

/// Into how many stripes so many bytes go with so many queue pairs: at least one, so that also an empty tensor has an
/// immediate.
pub fn stripe_count(bytes: u64, queue_pairs: u64) -> u64 {
    (bytes / STRIPE_BYTES_MIN).clamp(1, queue_pairs.max(1))
}

/// The bytes of each stripe. Each stripe ends with one WRITE with immediate.
pub fn stripe_ranges(bytes: u64, queue_pairs: u64) -> impl Iterator<Item = Range<u64>> {
    let count = stripe_count(bytes, queue_pairs);
    let each = bytes
        .div_ceil(count)
        .next_multiple_of(STRIPE_ALIGNMENT_BYTES);
    (0..count).map(move |i| (i * each).min(bytes)..((i + 1) * each).min(bytes))
}

/// The WRITEs of a stripe: at least one, none larger than [`WRITE_BYTES_MAX`].
pub fn write_ranges(stripe: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let count = (stripe.end - stripe.start).div_ceil(WRITE_BYTES_MAX).max(1);
    (0..count).map(move |i| {
        let from = stripe.start + i * WRITE_BYTES_MAX;
        from..(from + WRITE_BYTES_MAX).min(stripe.end)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn stripes_cover_each_byte_once(bytes in 0..(64u64 << 30), queue_pairs in 1..9u64) {
            let stripes: Vec<_> = stripe_ranges(bytes, queue_pairs).collect();
            prop_assert_eq!(stripes.len() as u64, stripe_count(bytes, queue_pairs));
            prop_assert!(stripes.len() as u64 <= queue_pairs);
            let writes: Vec<_> = stripes.iter().cloned().flat_map(write_ranges).collect();
            prop_assert_eq!((writes[0].start, writes[writes.len() - 1].end), (0, bytes));
            prop_assert!(writes.windows(2).all(|w| w[0].end == w[1].start));
            prop_assert!(writes.iter().all(|w| w.end - w.start <= WRITE_BYTES_MAX));
        }
    }
}
