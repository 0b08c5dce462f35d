//! The storage engine: partitions, each with an index and a log. The engine needs no network.
//!
//! A [`Partition`] is a hash table in the manner of MICA (Lim et al., NSDI 2014): a bucketed index that points into a
//! circular log. Its [`FullPolicy`] decides what happens when the log is full:
//!
//! - [`FullPolicy::Cache`]: the oldest items are evicted. A key that was set can be gone at any later time: **cache
//!   semantics**.
//! - [`FullPolicy::Store`]: nothing is evicted. The oldest items are moved to the young end, over dead blocks. If too few
//!   blocks are dead, or the index has no room, a new item is refused with [`Refusal::StoreFull`].
//!
//! Updates of the same size are made in place. Every item has a [version](ItemView::version), which grows with every
//! change of its key, also across removals. Compare-and-set compares this version. After 2^38 - 1 changes versions
//! restart at 1.
//!
//! A [`Store`] is all partitions of a server. Each partition has a lock, so that any thread can use it. A worker locks
//! its partition for a batch; other front ends lock partitions too.

pub(crate) mod client_reads;
mod hash;
mod index;
mod log;
mod memory;
mod partition;
pub(crate) mod record;

use std::sync::{Mutex, MutexGuard, PoisonError};

use verbs::ProtectionDomain;

pub use hash::{hash_of, partition_of};
pub use log::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
pub use memory::NoMemory;
pub use partition::{
    FullPolicy, ItemView, Partition, PartitionConfig, PartitionStats, Refusal, SetCondition,
    SetOptions,
};
pub use record::{LockPlacement, RecordLayout};

/// Returns the bytes of an item with this key and value in the log. The index adds a slot of eight bytes; an eighth of
/// its slots is free at its nominal number of items.
pub fn item_bytes(key: usize, value: usize, expires: bool) -> usize {
    8 * log::units_without_checksum(key, value, expires)
}

/// Configuration of a [`Store`].
#[derive(Debug, Clone, Copy)]
pub struct StoreConfig {
    /// Number of partitions, one per worker, 1 to 64.
    pub partitions: usize,
    /// Number of items that all partitions together are sized for.
    pub nominal_items: usize,
    /// Bytes of all logs together. [`item_bytes`] returns the bytes of an item.
    pub log_bytes: usize,
    /// The behaviour when the store is full.
    pub full_policy: FullPolicy,
    /// A clock in milliseconds since any fixed time, for items that expire.
    pub clock_ms: fn() -> u64,
    /// The seed of key hashes.
    pub hash_seed: u64,
}

impl StoreConfig {
    /// Returns a configuration for `items` items with keys and values of at most these lengths, hashed to partitions.
    pub fn for_items(partitions: usize, items: usize, key: usize, value: usize) -> Self {
        // Hashing gives partitions slightly different shares; a sixteenth of a log is never full (see
        // `FullPolicy::Store`).
        let items = items + items / 32 + 1024 * partitions;
        Self {
            partitions,
            nominal_items: items,
            log_bytes: items * item_bytes(key, value, false) / 15 * 16 + (partitions << 21),
            full_policy: FullPolicy::Cache,
            clock_ms: unix_ms,
            hash_seed: 0,
        }
    }
}

/// Returns the milliseconds since 1970 by the system's clock.
pub fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX))
}

/// All partitions of a server.
///
/// ```
/// use kv::store::{SetCondition, SetOptions, Store, StoreConfig};
/// let store = Store::new(&StoreConfig::for_items(2, 1000, 16, 32))?;
/// let (hash, mut partition) = store.hash_and_lock_partition(b"a key");
/// let version = partition.set(hash, b"a key", b"a value", SetOptions::default()).expect("room");
/// assert_eq!(partition.get(hash, b"a key").map(|e| e.value), Some(&b"a value"[..]));
/// let newer = SetOptions { condition: SetCondition::Version(version), ..SetOptions::default() };
/// assert!(partition.set(hash, b"a key", b"b value", newer).is_ok());
/// assert!(partition.set(hash, b"a key", b"c value", newer).is_err());
/// # Ok::<(), kv::store::NoMemory>(())
/// ```
#[derive(Debug)]
pub struct Store {
    partitions: Box<[PaddedPartition]>,
    hash_seed: u64,
}

/// A lock in its own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct PaddedPartition(Mutex<Partition>);

impl Store {
    /// Creates an empty store.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn new(config: &StoreConfig) -> Result<Self, NoMemory> {
        Self::new_with_optional_pd(config, None)
    }

    /// Creates an empty store in memory that is registered with this protection domain, for clients' READs. Each item
    /// takes eight bytes more.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn new_registered(config: &StoreConfig, pd: &ProtectionDomain) -> Result<Self, NoMemory> {
        Self::new_with_optional_pd(config, Some(pd))
    }

    fn new_with_optional_pd(
        config: &StoreConfig,
        pd: Option<&ProtectionDomain>,
    ) -> Result<Self, NoMemory> {
        let n = config.partitions.max(1);
        let of_one = PartitionConfig {
            nominal_items: config.nominal_items.div_ceil(n),
            log_bytes: config.log_bytes.div_ceil(n),
            full_policy: config.full_policy,
            clock_ms: config.clock_ms,
            hash_seed: config.hash_seed,
        };
        let partitions = (0..n).map(|_| {
            Ok(PaddedPartition(Mutex::new(
                Partition::new_with_optional_pd(&of_one, pd)?,
            )))
        });
        Ok(Self {
            partitions: partitions.collect::<Result<_, _>>()?,
            hash_seed: config.hash_seed,
        })
    }

    /// Returns the number of partitions.
    pub fn partition_count(&self) -> usize {
        self.partitions.len()
    }

    /// Returns the seed of key hashes.
    pub fn hash_seed(&self) -> u64 {
        self.hash_seed
    }

    /// Returns the hash of a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        hash_of(key, self.hash_seed)
    }

    /// Locks the partition of a key. Returns the key's hash and the partition.
    pub fn hash_and_lock_partition(&self, key: &[u8]) -> (u64, MutexGuard<'_, Partition>) {
        let hash = self.hash(key);
        (
            hash,
            self.lock_partition(partition_of(hash, self.partitions.len())),
        )
    }

    /// Locks a partition by its number.
    ///
    /// # Panics
    /// If no partition has that number.
    #[inline]
    pub fn lock_partition(&self, number: usize) -> MutexGuard<'_, Partition> {
        let lock = &self.partitions[number].0;
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all items.
    pub fn clear(&self) {
        (0..self.partition_count()).for_each(|n| self.lock_partition(n).clear());
    }

    /// Returns the sums of all partitions' statistics.
    pub fn stats(&self) -> PartitionStats {
        let mut sum = PartitionStats::default();
        for n in 0..self.partition_count() {
            sum.add(&self.lock_partition(n).stats());
        }
        sum
    }
}

#[cfg(test)]
mod tests;
