//! The hash of a key, and the partition that the hash selects.

/// Returns the hash of a key. Servers and clients must agree on it.
#[inline]
pub fn hash_of(key: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(key, seed)
}

/// Returns the partition of a hash, for `partitions` partitions.
#[inline]
pub fn partition_of(hash: u64, partitions: usize) -> usize {
    // The upper 16 bits select the partition; other bits select bucket and tag.
    ((hash >> 48) as usize * partitions) >> 16
}
