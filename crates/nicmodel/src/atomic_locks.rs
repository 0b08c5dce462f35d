//! The NIC's locks that atomics take.

use crate::profile::Profile;
use crate::verb::ATOMIC_BYTES;

/// Returns the lock of an atomic on this address: the address's low bits. `None` if the NIC's locks are unknown.
pub fn lock_of_address(profile: &Profile, address: u64) -> Option<u64> {
    let bits = profile.atomics.lock_bits.as_ref()?.value;
    // The profile allows at most 32 bits.
    Some(address & ((1 << bits) - 1))
}

/// Returns the locks that atomics can reach: addresses are multiples of 8, so with 4096 locks the result is 512.
pub fn reachable_lock_count(profile: &Profile) -> Option<u32> {
    lock_count_of_counters(profile, u64::MAX, u64::from(ATOMIC_BYTES))
}

/// Returns the locks that `count` counters use if the counters are `stride_bytes` apart.
///
/// Counters in records of 2^k bytes use 2^(bits-k) locks. Counters at the same offset of pages of 4096 bytes use one
/// lock.
pub fn lock_count_of_counters(profile: &Profile, count: u64, stride_bytes: u64) -> Option<u32> {
    let bits = profile.atomics.lock_bits.as_ref()?.value;
    // The multiples of the stride modulo 2^bits are 2^bits / gcd(stride, 2^bits) values.
    let common = stride_bytes.trailing_zeros().min(bits);
    let distinct = 1u64 << (bits - common);
    u32::try_from(distinct.min(count)).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::profile::builtin_profile;
    use crate::published;

    fn cib() -> &'static Profile {
        builtin_profile("cib").expect("built in")
    }

    #[test]
    fn locks_of_connect_ib() {
        let all = lock_count_of_counters(cib(), u64::MAX, 1).expect("known");
        let printed = published::published_number_by_id("atomics_cib_buckets").expect("published");
        assert_eq!(f64::from(all), printed.value);
        assert_eq!(reachable_lock_count(cib()), Some(512));
        assert_eq!(lock_count_of_counters(cib(), 1_000_000, 64), Some(64));
        assert_eq!(lock_count_of_counters(cib(), 1_000_000, 4096), Some(1));
        assert_eq!(lock_count_of_counters(cib(), 100, 8), Some(100));
        assert_eq!(lock_of_address(cib(), 0x7000_1238), Some(0x238));
    }

    #[test]
    fn connectx_3_has_one_lock_and_others_are_unknown() {
        let cx3 = builtin_profile("cx3").expect("built in");
        assert_eq!(
            (reachable_lock_count(cx3), lock_of_address(cx3, 0x1238)),
            (Some(1), Some(0))
        );
        assert_eq!(
            reachable_lock_count(builtin_profile("cx").expect("built in")),
            None
        );
    }

    proptest! {
        #[test]
        fn as_many_as_one_counts(count in 0u64..5000, stride in 1u64..10_000, base in 0u64..1 << 40) {
            let counted = (0..count).filter_map(|i| lock_of_address(cib(), base * 8 + i * stride));
            let counted = counted.collect::<BTreeSet<_>>().len();
            prop_assert_eq!(lock_count_of_counters(cib(), count, stride).map(|n| n as usize), Some(counted));
        }
    }
}
