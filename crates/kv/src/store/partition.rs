//! A partition: one index and one log, used by one thread at a time.

use serde::{Deserialize, Serialize};
use verbs::{ProtectionDomain, RemoteMemory};

use super::hash::hash_of;
use super::index::{self, Index};
use super::log::{BlockHeader, ItemLog, MAX_KEY_BYTES, MAX_VALUE_BYTES, MAX_VERSION};
use super::memory::NoMemory;

/// The behaviour of a partition when it is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FullPolicy {
    /// The oldest items are evicted.
    #[default]
    Cache,
    /// New items are refused. A sixteenth of the log is kept free, because moving items would cost too much in a fuller
    /// log.
    Store,
}

/// Configuration of a [`Partition`].
#[derive(Debug, Clone, Copy)]
pub struct PartitionConfig {
    /// Number of items that the index is sized for.
    pub nominal_items: usize,
    /// Bytes of the log; at least 512.
    pub log_bytes: usize,
    /// The behaviour when the partition is full.
    pub full_policy: FullPolicy,
    /// A clock in milliseconds; only called for items that expire.
    pub clock_ms: fn() -> u64,
    /// The seed of key hashes.
    pub hash_seed: u64,
}

/// The condition of a [`Partition::set`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetCondition {
    /// Sets the value always.
    #[default]
    Always,
    /// Sets the value only if the key is absent (`NX`).
    Absent,
    /// Sets the value only if the key is present (`XX`).
    Present,
    /// Sets the value only if the key is present with this version: compare-and-set.
    Version(u64),
}

/// Options of a [`Partition::set`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetOptions {
    /// The condition for setting the value.
    pub condition: SetCondition,
    /// The expiry time of the item, by the partition's clock; 0 for never.
    pub expiry_time_ms: u64,
}

/// An item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemView<'p> {
    /// The value.
    pub value: &'p [u8],
    /// The version: grows with every change of the key, and is never 0.
    pub version: u64,
    /// The expiry time, by the partition's clock; 0 for never.
    pub expiry_time_ms: u64,
}

/// The reason why a partition did not execute a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The store is full. The previous value, if any, is unchanged.
    #[error("the store is full; delete something, or give it more memory")]
    StoreFull,
    /// The item takes more than a 32nd of the log, or key or value are longer than [`MAX_KEY_BYTES`] and
    /// [`MAX_VALUE_BYTES`].
    #[error(
        "the item is too long: keys have at most {MAX_KEY_BYTES} bytes, values {MAX_VALUE_BYTES}, and an item at most a 32nd of the log"
    )]
    TooLong,
    /// The condition does not hold. The field is the present version, 0 if the key is absent.
    #[error("the condition does not hold: the version there is {0}")]
    ConditionNotMetAtVersion(u64),
}

/// Counters and contents of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionStats {
    /// Number of items present.
    pub items: u64,
    /// Bytes of the keys and values present.
    pub data_bytes: u64,
    /// Bytes of the index and of the used part of the log.
    pub memory_bytes: u64,
    /// Items that were evicted because the partition was full ([`FullPolicy::Cache`]).
    pub evictions: u64,
    /// Items that were moved to make room ([`FullPolicy::Store`]).
    pub moves: u64,
    /// Items that were removed because they had expired.
    pub expired: u64,
    /// Items that were refused because the store is full.
    pub refused_full: u64,
}

impl PartitionStats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.items += other.items;
        self.data_bytes += other.data_bytes;
        self.memory_bytes += other.memory_bytes;
        self.evictions += other.evictions;
        self.moves += other.moves;
        self.expired += other.expired;
        self.refused_full += other.refused_full;
    }
}

/// A hash table with its own index and log. The caller passes the hash of each key: [`super::hash_of`] with the
/// partition's seed. The caller needs the hash earlier, to find the partition and to prefetch.
#[derive(Debug)]
pub struct Partition {
    index: Index,
    log: ItemLog,
    full_policy: FullPolicy,
    clock_ms: fn() -> u64,
    hash_seed: u64,
    /// The highest version of a removed key. New keys get greater versions.
    max_removed_version: u64,
    /// Number of items that have an expiry time.
    expiring_items: u64,
    /// Time of the last sweep for expired items.
    last_sweep_ms: u64,
    /// The most units that were ever used, for which the system has allocated memory.
    max_touched_units: usize,
    moved_block_buffer: Vec<u8>,
    stats: PartitionStats,
}

impl Partition {
    /// Creates an empty partition.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn new(config: &PartitionConfig) -> Result<Self, NoMemory> {
        Self::new_with_optional_pd(config, None)
    }

    /// Creates an empty partition in memory registered with this protection domain, for clients' READs.
    pub(super) fn new_with_optional_pd(
        config: &PartitionConfig,
        pd: Option<&ProtectionDomain>,
    ) -> Result<Self, NoMemory> {
        let max_log_bytes = usize::try_from(index::MAX_LOG_UNITS).unwrap_or(usize::MAX) / 8;
        Ok(Self {
            index: Index::new(config.nominal_items, pd)?,
            log: ItemLog::new(
                config.log_bytes.min(max_log_bytes),
                pd.map(|pd| (pd, config.hash_seed)),
            )?,
            full_policy: config.full_policy,
            clock_ms: config.clock_ms,
            hash_seed: config.hash_seed,
            max_removed_version: 0,
            expiring_items: 0,
            last_sweep_ms: 0,
            max_touched_units: 0,
            moved_block_buffer: Vec::new(),
            stats: PartitionStats::default(),
        })
    }

    /// Prefetches the home bucket of a hash.
    #[inline]
    pub fn prefetch_index(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    /// Prefetches the item that this hash most likely means. The home bucket should be in the cache by then, by
    /// [`prefetch_index`](Self::prefetch_index).
    #[inline]
    pub fn prefetch_item(&self, hash: u64) {
        if let Some(pos) = self.index.likely_item_position(hash) {
            self.log.prefetch(pos);
        }
    }

    /// Returns the number of items. Expired items count until an operation finds and removes them.
    pub fn len(&self) -> u64 {
        self.stats.items
    }

    /// Returns true if the partition has no items.
    pub fn is_empty(&self) -> bool {
        self.stats.items == 0
    }

    /// Returns counters and contents.
    pub fn stats(&self) -> PartitionStats {
        PartitionStats {
            memory_bytes: (self.index.memory_bytes() + self.max_touched_units * 8) as u64,
            ..self.stats
        }
    }

    /// Returns the addresses and keys of index and log, if clients READ them.
    pub(crate) fn remote_index_and_log(&self) -> Option<(RemoteMemory, RemoteMemory)> {
        self.index
            .remote_memory_if_registered()
            .zip(self.log.remote_memory_if_registered())
    }

    /// Returns index and log as a client READs them.
    #[cfg(test)]
    pub(super) fn index_and_log_bytes(&self) -> (&[u8], &[u8]) {
        (self.index.raw(), self.log.raw())
    }

    /// Returns the time by this partition's clock.
    pub fn now_ms(&self) -> u64 {
        (self.clock_ms)()
    }

    /// Returns the item of a key.
    #[inline]
    pub fn get(&mut self, hash: u64, key: &[u8]) -> Option<ItemView<'_>> {
        let (place, pos) = self.index.find(hash, |pos| self.log.has_key(pos, key))?;
        if self.is_expired(pos) {
            self.remove(place, pos);
            self.stats.expired += 1;
            return None;
        }
        let item = self.log.item(pos);
        Some(ItemView {
            value: item.value,
            version: item.header.version,
            expiry_time_ms: item.expiry_time_ms,
        })
    }

    /// Sets the value of a key, and returns its new version.
    ///
    /// # Errors
    /// [`Refusal`]; the partition is then unchanged.
    #[inline]
    pub fn set(
        &mut self,
        hash: u64,
        key: &[u8],
        value: &[u8],
        how: SetOptions,
    ) -> Result<u64, Refusal> {
        let expires = how.expiry_time_ms != 0;
        let units = self.log.units_for_lengths(key.len(), value.len(), expires);
        if key.len() > MAX_KEY_BYTES
            || value.len() > MAX_VALUE_BYTES
            || units > self.log.capacity_units() / 32
        {
            return Err(Refusal::TooLong);
        }
        let mut old = self.index.find(hash, |pos| self.log.has_key(pos, key));
        if let Some((place, pos)) = old
            && self.is_expired(pos)
        {
            self.remove(place, pos);
            self.stats.expired += 1;
            old = None;
        }
        let there = old.map_or(0, |(_, pos)| self.log.item(pos).header.version);
        let holds = match how.condition {
            SetCondition::Always => true,
            SetCondition::Absent => there == 0,
            SetCondition::Present => there != 0,
            SetCondition::Version(version) => there != 0 && there == version,
        };
        if !holds {
            return Err(Refusal::ConditionNotMetAtVersion(there));
        }
        let last_version = if old.is_some() {
            there
        } else {
            self.max_removed_version
        };
        let version = if last_version >= MAX_VERSION {
            1
        } else {
            last_version + 1
        };
        if let Some((_, pos)) = old {
            let header = self.log.item(pos).header;
            // In a cache, setting an item among the oldest quarter moves it to the young end.
            let stays_in_place = self.full_policy == FullPolicy::Store
                || self.log.units_from_oldest(pos) >= self.log.live_and_dead_units() / 4
                || self.log.live_and_dead_units() < self.log.capacity_units() / 4 * 3;
            if self.log.units_of_item_with_header(&header) == units
                && header.has_expiry_time == expires
                && stays_in_place
            {
                self.stats.data_bytes += value.len() as u64;
                self.stats.data_bytes -= header.value_bytes as u64;
                self.log
                    .write_item(pos, version, key, value, how.expiry_time_ms);
                return Ok(version);
            }
        }
        self.set_in_new_block(hash, key, value, how.expiry_time_ms, version)?;
        Ok(version)
    }

    /// Sets a value in a new block.
    fn set_in_new_block(
        &mut self,
        hash: u64,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
        version: u64,
    ) -> Result<(), Refusal> {
        let units = self
            .log
            .units_for_lengths(key.len(), value.len(), expires_ms != 0);
        let find = |s: &Self| s.index.find(hash, |pos| s.log.has_key(pos, key));
        if self.full_policy == FullPolicy::Store {
            if !self.has_room_for(units) {
                self.remove_expired_items_if_due();
            }
            let room = self.stats.items < self.index.max_items() as u64
                && self.index.has_free_slot_for(hash);
            let indexed = room || find(self).is_some();
            if !self.has_room_for(units) || !indexed {
                self.stats.refused_full += 1;
                return Err(Refusal::StoreFull);
            }
        }
        while self.stats.items >= self.index.max_items() as u64
            && self.full_policy == FullPolicy::Cache
        {
            self.free_oldest_block();
        }
        let pos = self.make_room_and_allocate_block(units);
        // Making room may have moved or evicted the old item.
        if let Some((place, old)) = find(self) {
            let header = self.log.item(old).header;
            self.remove_from_log(old);
            self.max_removed_version = self.max_removed_version.max(header.version);
            self.index.set_position(place, pos);
        } else if !self.index.insert(hash, pos) {
            // In a cache with a full index, the oldest item of the home bucket is evicted.
            let rank = |(_, pos): &(_, usize)| self.log.units_from_oldest(*pos);
            if let Some((place, oldest)) = self.index.home_bucket_items(hash).min_by_key(rank) {
                self.max_removed_version = self
                    .max_removed_version
                    .max(self.log.item(oldest).header.version);
                self.remove_from_log(oldest);
                self.index.replace_in_home_bucket(place, hash, pos);
                self.stats.evictions += 1;
            }
        }
        self.log.write_item(pos, version, key, value, expires_ms);
        self.log.count_block_live(units);
        self.stats.items += 1;
        self.stats.data_bytes += (key.len() + value.len()) as u64;
        self.expiring_items += u64::from(expires_ms != 0);
        Ok(())
    }

    /// Sets the expiry time of an item, 0 for never, and keeps its value. Returns false if the key is absent.
    ///
    /// # Errors
    /// [`Refusal::StoreFull`]: an item with an expiry time takes eight bytes more.
    pub fn set_expiry(&mut self, hash: u64, key: &[u8], expires_ms: u64) -> Result<bool, Refusal> {
        let Some(entry) = self.get(hash, key) else {
            return Ok(false);
        };
        let value = entry.value.to_vec();
        let how = SetOptions {
            expiry_time_ms: expires_ms,
            ..SetOptions::default()
        };
        self.set(hash, key, &value, how).map(|_| true)
    }

    /// Removes a key, if its version is `version` or no version is given. Returns the removed version, or 0 if the key
    /// was absent.
    ///
    /// # Errors
    /// [`Refusal::ConditionNotMetAtVersion`] if the key is absent or has another version.
    pub fn delete(&mut self, hash: u64, key: &[u8], version: Option<u64>) -> Result<u64, Refusal> {
        let Some((place, pos)) = self.index.find(hash, |pos| self.log.has_key(pos, key)) else {
            return match version {
                Some(_) => Err(Refusal::ConditionNotMetAtVersion(0)),
                None => Ok(0),
            };
        };
        let there = self.log.item(pos).header.version;
        if self.is_expired(pos) {
            self.remove(place, pos);
            self.stats.expired += 1;
            return match version {
                Some(_) => Err(Refusal::ConditionNotMetAtVersion(0)),
                None => Ok(0),
            };
        }
        if version.is_some_and(|v| v != there) {
            return Err(Refusal::ConditionNotMetAtVersion(there));
        }
        self.remove(place, pos);
        Ok(there)
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        let highest = self
            .item_positions()
            .map(|pos| self.log.item(pos).header.version);
        self.max_removed_version = highest.max().unwrap_or(0).max(self.max_removed_version);
        self.index.clear();
        self.log.clear();
        self.expiring_items = 0;
        (self.stats.items, self.stats.data_bytes) = (0, 0);
    }

    /// Calls `each` for every item with its key, from the oldest on. Expired items are left out.
    pub fn for_each(&self, mut each: impl FnMut(&[u8], ItemView<'_>)) {
        let now = self.now_ms();
        for pos in self.item_positions() {
            let item = self.log.item(pos);
            if item.expiry_time_ms == 0 || item.expiry_time_ms > now {
                let entry = ItemView {
                    value: item.value,
                    version: item.header.version,
                    expiry_time_ms: item.expiry_time_ms,
                };
                each(item.key, entry);
            }
        }
    }

    /// Returns the positions of items, from the oldest on.
    fn item_positions(&self) -> impl Iterator<Item = usize> {
        let mut next = self.log.oldest_block();
        std::iter::from_fn(move || {
            loop {
                let (pos, header) = next?;
                next = self.log.next_younger_block(pos);
                if let BlockHeader::Item(_) = header {
                    return Some(pos);
                }
            }
        })
    }

    #[inline]
    fn is_expired(&self, pos: usize) -> bool {
        let item = self.log.item(pos);
        item.header.has_expiry_time && item.expiry_time_ms <= (self.clock_ms)()
    }

    /// Removes an item from index and log.
    fn remove(&mut self, place: index::SlotPosition, pos: usize) {
        let version = self.log.item(pos).header.version;
        self.max_removed_version = self.max_removed_version.max(version);
        self.index.remove(place);
        self.remove_from_log(pos);
    }

    /// Removes an item from the log.
    fn remove_from_log(&mut self, pos: usize) {
        let header = self.log.item(pos).header;
        self.stats.items -= 1;
        self.stats.data_bytes -= (header.key_bytes + header.value_bytes) as u64;
        self.expiring_items -= u64::from(header.has_expiry_time);
        self.log.mark_dead(pos);
    }

    /// Returns true if a store may take `units` more units. The reserved sixteenth is the size of two of the longest
    /// items, so that moving all items once always frees a contiguous block.
    fn has_room_for(&self, units: usize) -> bool {
        let capacity = self.log.capacity_units();
        self.log.live_units() + units <= capacity - capacity / 16
    }

    /// Allocates a block of `units` units, and makes room at the old end if necessary. Its header is a dead block's.
    fn make_room_and_allocate_block(&mut self, units: usize) -> usize {
        loop {
            if let Some(pos) = self.log.allocate_block(units) {
                self.max_touched_units = self.max_touched_units.max(pos + units);
                return pos;
            }
            self.free_oldest_block();
        }
    }

    /// Frees the oldest block: evicts its item, or moves the item to the young end.
    fn free_oldest_block(&mut self) {
        let Some((pos, header)) = self.log.oldest_block() else {
            return;
        };
        let BlockHeader::Item(header) = header else {
            self.log.free_oldest_if_dead();
            return;
        };
        let item = self.log.item(pos);
        let hash = hash_of(item.key, self.hash_seed);
        let Some((place, _)) = self.index.find(hash, |there| there == pos) else {
            // Unreachable: the index has every item.
            self.log.mark_dead(pos);
            return;
        };
        if self.is_expired(pos) {
            self.remove(place, pos);
            self.stats.expired += 1;
            return;
        }
        if self.full_policy == FullPolicy::Cache {
            self.remove(place, pos);
            self.stats.evictions += 1;
            return;
        }
        let units = self.log.units_of_item_with_header(&header);
        self.log.copy_block_out(pos, &mut self.moved_block_buffer);
        self.log.mark_dead(pos);
        self.log.free_oldest_if_dead();
        // This runs only if no contiguous room was left. The freed oldest block is adjacent to the room, so the append
        // succeeds.
        if let Some(to) = self.log.allocate_block(units) {
            self.log.copy_block_back(to, &self.moved_block_buffer);
            self.log.count_block_live(units);
            self.index.set_position(place, to);
            self.stats.moves += 1;
        }
    }

    /// Removes expired items, at most once a second, and only if some item has an expiry time.
    fn remove_expired_items_if_due(&mut self) {
        let now = self.now_ms();
        if self.expiring_items == 0 || now < self.last_sweep_ms.saturating_add(1000) {
            return;
        }
        self.last_sweep_ms = now;
        let expired: Vec<usize> = self
            .item_positions()
            .filter(|&pos| self.is_expired(pos))
            .collect();
        for pos in expired {
            let hash = hash_of(self.log.item(pos).key, self.hash_seed);
            if let Some((place, _)) = self.index.find(hash, |there| there == pos) {
                self.remove(place, pos);
                self.stats.expired += 1;
            }
        }
    }
}
