//! Hashes of keys, and the partitions that they choose.

/// The hash of a key: servers and clients must agree.
#[inline]
pub fn hash_of(key: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(key, seed)
}

/// The partition of a hash, of so many.
#[inline]
pub fn partition_of(hash: u64, partitions: usize) -> usize {
    // The upper 16 bits: the others choose bucket and tag.
    ((hash >> 48) as usize * partitions) >> 16
}
