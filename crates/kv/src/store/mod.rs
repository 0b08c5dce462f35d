//! The storage engine: partitions, each an index and a log, pure and without a network.
//!
//! A [`Partition`] is a hash table in the manner of MICA (Lim et al., NSDI 2014): a bucketed index that points into a
//! circular log. What happens when the log is full is its [`Mode`]:
//!
//! - [`Mode::Cache`]: the oldest items go. A key that was set may be gone at any later time: **cache semantics**.
//! - [`Mode::Store`]: nothing goes. The oldest items are moved to the young end over dead ones, and when there is too
//!   little that is dead, or the index has no room, a new item is refused as [`Refusal::Full`].
//!
//! Updates of the same size are made in place. Every item has a [version](Entry::version), which grows with every change
//! of its key, also across removals: it is what compare-and-set compares. After 2^38 - 1 changes versions begin again.
//!
//! A [`Store`] is all partitions of a server. Its partitions are behind locks, so that any thread can use them: the
//! workers of the server, each for a batch of its own partition, and other fronts beside them.

mod hash;
mod index;
mod log;
mod memory;
mod partition;
pub(crate) mod record;
pub(crate) mod remote;

use std::sync::{Mutex, MutexGuard, PoisonError};

use verbs::ProtectionDomain;

pub use hash::{hash_of, partition_of};
pub use log::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
pub use memory::NoMemory;
pub use partition::{
    Condition, Entry, Mode, Partition, PartitionConfig, PartitionStats, Refusal, Set,
};
pub use record::{LockPlacement, Shape};

/// Bytes of an item with this key and value in the log. The index takes a slot of eight bytes besides, and an eighth
/// of its slots is free when there are as many items as it is made for.
pub fn item_bytes(key: usize, value: usize, expires: bool) -> usize {
    8 * log::units(key, value, expires)
}

/// How a [`Store`] is made.
#[derive(Debug, Clone, Copy)]
pub struct StoreConfig {
    /// Partitions: one a worker, 1 to 64.
    pub partitions: usize,
    /// Items that all partitions are made for together.
    pub items: usize,
    /// Bytes of all logs together. [`item_bytes`] says what an item takes.
    pub log_bytes: usize,
    /// What happens when there is no room.
    pub mode: Mode,
    /// Tells the time in milliseconds from some start on, for items that expire.
    pub clock: fn() -> u64,
    /// What hashes start from.
    pub seed: u64,
}

impl StoreConfig {
    /// Room for `items` with keys and values of at most these lengths, spread over partitions by chance.
    pub fn for_items(partitions: usize, items: usize, key: usize, value: usize) -> Self {
        // Partitions get their share give or take; a sixteenth of a log is never full (see `Mode::Store`).
        let items = items + items / 32 + 1024 * partitions;
        Self {
            partitions,
            items,
            log_bytes: items * item_bytes(key, value, false) / 15 * 16 + (partitions << 21),
            mode: Mode::Cache,
            clock: unix_ms,
            seed: 0,
        }
    }
}

/// Milliseconds since 1970, as the system's clock has it.
pub fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX))
}

/// All partitions of a server.
///
/// ```
/// use kv::store::{Condition, Set, Store, StoreConfig};
/// let store = Store::new(&StoreConfig::for_items(2, 1000, 16, 32))?;
/// let (hash, mut partition) = store.lock(b"a key");
/// let version = partition.set(hash, b"a key", b"a value", Set::default()).expect("room");
/// assert_eq!(partition.get(hash, b"a key").map(|e| e.value), Some(&b"a value"[..]));
/// let newer = Set { condition: Condition::Version(version), ..Set::default() };
/// assert!(partition.set(hash, b"a key", b"b value", newer).is_ok());
/// assert!(partition.set(hash, b"a key", b"c value", newer).is_err());
/// # Ok::<(), kv::store::NoMemory>(())
/// ```
#[derive(Debug)]
pub struct Store {
    partitions: Box<[Padded]>,
    seed: u64,
}

/// A lock in cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(Mutex<Partition>);

impl Store {
    /// An empty store.
    ///
    /// # Errors
    /// When there is not so much memory.
    pub fn new(config: &StoreConfig) -> Result<Self, NoMemory> {
        Self::with(config, None)
    }

    /// An empty store that clients READ by the keys of this protection domain. Each item takes eight bytes more.
    ///
    /// # Errors
    /// When there is not so much memory.
    pub fn exposed(config: &StoreConfig, pd: &ProtectionDomain) -> Result<Self, NoMemory> {
        Self::with(config, Some(pd))
    }

    fn with(config: &StoreConfig, pd: Option<&ProtectionDomain>) -> Result<Self, NoMemory> {
        let n = config.partitions.max(1);
        let of_one = PartitionConfig {
            items: config.items.div_ceil(n),
            log_bytes: config.log_bytes.div_ceil(n),
            mode: config.mode,
            clock: config.clock,
            seed: config.seed,
        };
        let partitions = (0..n).map(|_| Ok(Padded(Mutex::new(Partition::with(&of_one, pd)?))));
        Ok(Self {
            partitions: partitions.collect::<Result<_, _>>()?,
            seed: config.seed,
        })
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// What hashes start from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The hash of a key, as its partition wants it.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> u64 {
        hash_of(key, self.seed)
    }

    /// The partition of a key, for the caller alone as long as it holds it, and the key's hash.
    pub fn lock(&self, key: &[u8]) -> (u64, MutexGuard<'_, Partition>) {
        let hash = self.hash(key);
        (
            hash,
            self.partition(partition_of(hash, self.partitions.len())),
        )
    }

    /// A partition by its number, for the caller alone as long as it holds it.
    ///
    /// # Panics
    /// When there is no partition of that number.
    #[inline]
    pub fn partition(&self, number: usize) -> MutexGuard<'_, Partition> {
        let lock = &self.partitions[number].0;
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all items.
    pub fn clear(&self) {
        (0..self.partitions()).for_each(|n| self.partition(n).clear());
    }

    /// Sums over all partitions.
    pub fn stats(&self) -> PartitionStats {
        let mut sum = PartitionStats::default();
        for n in 0..self.partitions() {
            sum.add(&self.partition(n).stats());
        }
        sum
    }
}

#[cfg(test)]
mod tests;
