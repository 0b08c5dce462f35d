//! The log: a ring of items, one after the other.
//!
//! A block is a whole number of 8-byte units: a header, the expiry time if the item has one, the key and the value. Key
//! and value are each padded to a unit. The header:
//!
//! | bits | of an item | of a dead block |
//! |---|---|---|
//! | 63 | 1 | 0 |
//! | 62 | it expires | 0 |
//! | 61..24 | version | 0 |
//! | 23..8 | bytes of the value | units, in bits 31..0 |
//! | 7..0 | bytes of the key | |
//!
//! If clients READ the log, each item ends in one more unit: a checksum of all bytes before it ([`checksum_of`]). By
//! the checksum, readers distinguish an intact item from one that is being changed.
//!
//! Space is freed at the oldest end. The partition decides what happens to the items there.

use verbs::{ProtectionDomain, RemoteMemory};
use zerocopy::{FromBytes, IntoBytes};

use super::memory::{NoMemory, StoreMemory};
use verbs::prefetch;

const FLAG_LIVE: u64 = 1 << 63;
const FLAG_EXPIRES: u64 = 1 << 62;
const VERSION_SHIFT: u32 = 24;

/// The last version before versions restart at 1.
pub(super) const MAX_VERSION: u64 = (1 << 38) - 1;
/// Bytes of the longest key.
pub const MAX_KEY_BYTES: usize = 255;
/// Bytes of the longest value.
pub const MAX_VALUE_BYTES: usize = 65_535;

/// Returns the units of a block in a log without checksums.
pub(super) fn units_without_checksum(key: usize, value: usize, expires: bool) -> usize {
    1 + usize::from(expires) + key.div_ceil(8) + value.div_ceil(8)
}

/// Returns the checksum of an item's bytes, from its header to the end of its value.
pub(super) fn checksum_of(block: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(block, seed)
}

/// A block's decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockHeader {
    Item(ItemHeader),
    Dead { units: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ItemHeader {
    pub(super) key_bytes: usize,
    pub(super) value_bytes: usize,
    pub(super) version: u64,
    pub(super) has_expiry_time: bool,
}

impl ItemHeader {
    /// Decodes an item's first word; returns `None` for a dead block.
    pub(super) fn decode_if_live(word: u64) -> Option<Self> {
        (word & FLAG_LIVE != 0).then(|| Self::decode(word))
    }

    #[inline]
    fn decode(word: u64) -> Self {
        Self {
            key_bytes: (word & 0xff) as usize,
            value_bytes: (word >> 8 & 0xffff) as usize,
            version: word >> VERSION_SHIFT & MAX_VERSION,
            has_expiry_time: word & FLAG_EXPIRES != 0,
        }
    }

    fn encode(&self) -> u64 {
        FLAG_LIVE
            | if self.has_expiry_time {
                FLAG_EXPIRES
            } else {
                0
            }
            | self.version << VERSION_SHIFT
            | (self.value_bytes as u64) << 8
            | self.key_bytes as u64
    }

    /// Returns the item's units without a checksum.
    pub(super) fn units_without_checksum(&self) -> usize {
        units_without_checksum(self.key_bytes, self.value_bytes, self.has_expiry_time)
    }

    /// Returns the byte offsets of key and value from the block's start.
    pub(super) fn key_and_value_offsets(&self) -> (usize, usize) {
        let key = 8 + 8 * usize::from(self.has_expiry_time);
        (key, key + self.key_bytes.next_multiple_of(8))
    }
}

/// An item in the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogItem<'l> {
    pub(super) header: ItemHeader,
    pub(super) key: &'l [u8],
    pub(super) value: &'l [u8],
    /// The expiry time; 0 if the item does not expire.
    pub(super) expiry_time_ms: u64,
}

#[derive(Debug)]
pub(super) struct ItemLog {
    memory: StoreMemory,
    capacity_units: usize,
    /// The seed of items' checksums, if items have checksums.
    checksum_seed: Option<u64>,
    /// Position of the oldest block, in units of 8 bytes.
    oldest_pos: usize,
    /// Position of the next block, in units of 8 bytes; wraps at `capacity_units`.
    append_pos: usize,
    /// Units of all blocks, including dead ones.
    live_and_dead_units: usize,
    dead_units: usize,
}

impl ItemLog {
    /// Creates a log in private memory; or, with a protection domain and a checksum seed, in memory that clients READ.
    pub(super) fn new(
        bytes: usize,
        readers: Option<(&ProtectionDomain, u64)>,
    ) -> Result<Self, NoMemory> {
        let units = (bytes / 8).max(64);
        Ok(Self {
            memory: StoreMemory::zeroed(units * 8, readers.map(|r| r.0))?,
            capacity_units: units,
            checksum_seed: readers.map(|r| r.1),
            oldest_pos: 0,
            append_pos: 0,
            live_and_dead_units: 0,
            dead_units: 0,
        })
    }

    /// Returns the address and key by which a peer READs the log, if it is registered.
    pub(super) fn remote_memory_if_registered(&self) -> Option<RemoteMemory> {
        self.memory.remote_memory_if_registered()
    }

    #[cfg(test)]
    pub(super) fn raw(&self) -> &[u8] {
        &self.memory
    }

    /// Returns the units of an item with these lengths.
    #[inline]
    pub(super) fn units_for_lengths(&self, key: usize, value: usize, expires: bool) -> usize {
        units_without_checksum(key, value, expires) + usize::from(self.checksum_seed.is_some())
    }

    /// Returns the units of the item with this header.
    #[inline]
    pub(super) fn units_of_item_with_header(&self, header: &ItemHeader) -> usize {
        header.units_without_checksum() + usize::from(self.checksum_seed.is_some())
    }

    /// Returns the capacity in units.
    pub(super) fn capacity_units(&self) -> usize {
        self.capacity_units
    }

    /// Returns the units of live items.
    pub(super) fn live_units(&self) -> usize {
        self.live_and_dead_units - self.dead_units
    }

    /// Returns the units of all blocks, including dead ones.
    pub(super) fn live_and_dead_units(&self) -> usize {
        self.live_and_dead_units
    }

    #[inline]
    fn word(&self, pos: usize) -> u64 {
        self.memory
            .get(pos * 8..pos * 8 + 8)
            .and_then(|b| u64::read_from_bytes(b).ok())
            .unwrap_or(0)
    }

    #[inline]
    fn set_word(&mut self, pos: usize, word: u64) {
        if let Some(bytes) = self.memory.get_mut(pos * 8..pos * 8 + 8) {
            bytes.copy_from_slice(word.as_bytes());
        }
    }

    /// Prefetches the two cache lines of a short item.
    #[inline]
    pub(super) fn prefetch(&self, pos: usize) {
        let start = pos * 8;
        if let Some(first) = self.memory.get(start) {
            prefetch(first);
        }
        if let Some(second) = self.memory.get((start | 63) + 1) {
            prefetch(second);
        }
    }

    #[inline]
    fn block_header(&self, pos: usize) -> BlockHeader {
        let word = self.word(pos);
        if word & FLAG_LIVE != 0 {
            BlockHeader::Item(ItemHeader::decode(word))
        } else {
            #[expect(clippy::cast_possible_truncation, reason = "32 bits")]
            BlockHeader::Dead {
                units: word as u32 as usize,
            }
        }
    }

    /// Returns the item at a position that the index gave.
    #[inline]
    pub(super) fn item(&self, pos: usize) -> LogItem<'_> {
        let header = ItemHeader::decode(self.word(pos));
        let (key, value) = header.key_and_value_offsets();
        let start = pos * 8;
        LogItem {
            header,
            key: &self.memory[start + key..start + key + header.key_bytes],
            value: &self.memory[start + value..start + value + header.value_bytes],
            expiry_time_ms: if header.has_expiry_time {
                self.word(pos + 1)
            } else {
                0
            },
        }
    }

    /// Returns true if the item at a position has this key.
    #[inline]
    pub(super) fn has_key(&self, pos: usize, key: &[u8]) -> bool {
        let header = ItemHeader::decode(self.word(pos));
        let start = pos * 8 + header.key_and_value_offsets().0;
        header.key_bytes == key.len() && self.memory[start..start + key.len()] == *key
    }

    /// Writes an item into a block of the right size.
    #[inline]
    pub(super) fn write_item(
        &mut self,
        pos: usize,
        version: u64,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
    ) {
        let header = ItemHeader {
            key_bytes: key.len(),
            value_bytes: value.len(),
            version,
            has_expiry_time: expires_ms != 0,
        };
        self.set_word(pos, header.encode());
        if header.has_expiry_time {
            self.set_word(pos + 1, expires_ms);
        }
        let (key_at, value_at) = header.key_and_value_offsets();
        let start = pos * 8;
        self.memory[start + key_at..start + key_at + key.len()].copy_from_slice(key);
        self.memory[start + value_at..start + value_at + value.len()].copy_from_slice(value);
        if let Some(seed) = self.checksum_seed {
            let end = pos + header.units_without_checksum();
            let check = checksum_of(&self.memory[start..end * 8], seed);
            self.set_word(end, check);
        }
    }

    /// Copies a whole block out of the log.
    pub(super) fn copy_block_out(&self, pos: usize, into: &mut Vec<u8>) {
        let units = self.units_of_item_with_header(&self.item(pos).header);
        into.clear();
        into.extend_from_slice(&self.memory[pos * 8..(pos + units) * 8]);
    }

    /// Copies a block that [`copy_block_out`](Self::copy_block_out) copied out back into the log.
    pub(super) fn copy_block_back(&mut self, pos: usize, block: &[u8]) {
        self.memory[pos * 8..pos * 8 + block.len()].copy_from_slice(block);
    }

    /// Marks the block of this item as dead.
    pub(super) fn mark_dead(&mut self, pos: usize) {
        if let BlockHeader::Item(header) = self.block_header(pos) {
            let units = self.units_of_item_with_header(&header);
            self.set_word(pos, units as u64);
            self.dead_units += units;
        }
    }

    /// Allocates a block at the young end, and returns its position, if it fits in one piece. The header is a dead
    /// block's until the item is written.
    pub(super) fn allocate_block(&mut self, units: usize) -> Option<usize> {
        if self.live_and_dead_units == 0 {
            (self.oldest_pos, self.append_pos) = (0, 0);
        }
        let wrapped = self.append_pos < self.oldest_pos
            || (self.live_and_dead_units > 0 && self.append_pos == self.oldest_pos);
        let end = if wrapped {
            self.oldest_pos
        } else {
            self.capacity_units
        };
        if end - self.append_pos < units {
            if wrapped || self.live_and_dead_units == 0 {
                return None;
            }
            // The rest up to the end becomes a dead block.
            let rest = end - self.append_pos;
            if rest > 0 {
                self.set_word(self.append_pos, rest as u64);
                self.live_and_dead_units += rest;
                self.dead_units += rest;
            }
            self.append_pos = 0;
            if self.oldest_pos < units {
                return None;
            }
        }
        let pos = self.append_pos;
        self.append_pos += units;
        if self.append_pos == self.capacity_units {
            self.append_pos = 0;
        }
        self.live_and_dead_units += units;
        self.set_word(pos, units as u64);
        self.dead_units += units;
        Some(pos)
    }

    /// Counts a block from [`allocate_block`](Self::allocate_block) as live, after it was written.
    pub(super) fn count_block_live(&mut self, units: usize) {
        self.dead_units -= units;
    }

    /// Returns the oldest block, if any.
    pub(super) fn oldest_block(&self) -> Option<(usize, BlockHeader)> {
        (self.live_and_dead_units > 0)
            .then(|| (self.oldest_pos, self.block_header(self.oldest_pos)))
    }

    /// Frees the oldest block if it is dead.
    pub(super) fn free_oldest_if_dead(&mut self) {
        if let Some((_, BlockHeader::Dead { units })) = self.oldest_block() {
            let units = units.clamp(1, self.live_and_dead_units);
            self.oldest_pos += units;
            if self.oldest_pos >= self.capacity_units {
                self.oldest_pos = 0;
            }
            self.live_and_dead_units -= units;
            self.dead_units -= units;
        }
    }

    /// Returns the next younger block, if any.
    pub(super) fn next_younger_block(&self, pos: usize) -> Option<(usize, BlockHeader)> {
        let units = match self.block_header(pos) {
            BlockHeader::Item(item) => self.units_of_item_with_header(&item),
            BlockHeader::Dead { units } => units.max(1),
        };
        let next = if pos + units >= self.capacity_units {
            0
        } else {
            pos + units
        };
        (next != self.append_pos).then(|| (next, self.block_header(next)))
    }

    /// Returns the units between the oldest block and this one.
    pub(super) fn units_from_oldest(&self, pos: usize) -> usize {
        if pos >= self.oldest_pos {
            pos - self.oldest_pos
        } else {
            pos + self.capacity_units - self.oldest_pos
        }
    }

    /// Removes all blocks.
    pub(super) fn clear(&mut self) {
        (
            self.oldest_pos,
            self.append_pos,
            self.live_and_dead_units,
            self.dead_units,
        ) = (0, 0, 0, 0);
    }
}
