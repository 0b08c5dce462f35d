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
//! If clients READ the log, each item ends in one more unit: a checksum of all bytes before it ([`check_of`]). By the
//! checksum, readers distinguish an intact item from one that is being changed.
//!
//! Space is freed at the oldest end. The partition decides what happens to the items there.

use verbs::{ProtectionDomain, RemoteMemory};
use zerocopy::{FromBytes, IntoBytes};

use super::memory::{NoMemory, StoreMemory};
use verbs::prefetch;

const LIVE: u64 = 1 << 63;
const EXPIRES: u64 = 1 << 62;
const VERSION_SHIFT: u32 = 24;

/// The last version before versions restart at 1.
pub(super) const LAST_VERSION: u64 = (1 << 38) - 1;
/// Bytes of the longest key.
pub const MAX_KEY_BYTES: usize = 255;
/// Bytes of the longest value.
pub const MAX_VALUE_BYTES: usize = 65_535;

/// Returns the units of a block in a log without checksums.
pub(super) fn units(key: usize, value: usize, expires: bool) -> usize {
    1 + usize::from(expires) + key.div_ceil(8) + value.div_ceil(8)
}

/// Returns the checksum of an item's bytes, from its header to the end of its value.
pub(super) fn check_of(block: &[u8], seed: u64) -> u64 {
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
    pub(super) key: usize,
    pub(super) value: usize,
    pub(super) version: u64,
    pub(super) expires: bool,
}

impl ItemHeader {
    /// Decodes an item's first word; returns `None` for a dead block.
    pub(super) fn of(word: u64) -> Option<Self> {
        (word & LIVE != 0).then(|| Self::decode(word))
    }

    #[inline]
    fn decode(word: u64) -> Self {
        Self {
            key: (word & 0xff) as usize,
            value: (word >> 8 & 0xffff) as usize,
            version: word >> VERSION_SHIFT & LAST_VERSION,
            expires: word & EXPIRES != 0,
        }
    }

    fn encode(&self) -> u64 {
        LIVE | if self.expires { EXPIRES } else { 0 }
            | self.version << VERSION_SHIFT
            | (self.value as u64) << 8
            | self.key as u64
    }

    /// Returns the item's units without a checksum.
    pub(super) fn units(&self) -> usize {
        units(self.key, self.value, self.expires)
    }

    /// Returns the byte offsets of key and value from the block's start.
    pub(super) fn offsets(&self) -> (usize, usize) {
        let key = 8 + 8 * usize::from(self.expires);
        (key, key + self.key.next_multiple_of(8))
    }
}

/// An item in the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct LogItem<'l> {
    pub(super) header: ItemHeader,
    pub(super) key: &'l [u8],
    pub(super) value: &'l [u8],
    /// The expiry time; 0 if the item does not expire.
    pub(super) expires_ms: u64,
}

#[derive(Debug)]
pub(super) struct ItemLog {
    memory: StoreMemory,
    units: usize,
    /// The seed of items' checksums, if items have checksums.
    checks: Option<u64>,
    /// The position of the oldest block.
    head: usize,
    /// The position of the next block.
    tail: usize,
    /// Units of all blocks, including dead ones.
    used: usize,
    dead: usize,
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
            units,
            checks: readers.map(|r| r.1),
            head: 0,
            tail: 0,
            used: 0,
            dead: 0,
        })
    }

    /// Returns the address and key by which a peer READs the log, if it is registered.
    pub(super) fn remote(&self) -> Option<RemoteMemory> {
        self.memory.remote()
    }

    #[cfg(test)]
    pub(super) fn raw(&self) -> &[u8] {
        &self.memory
    }

    /// Returns the units of an item with these lengths.
    #[inline]
    pub(super) fn units_of(&self, key: usize, value: usize, expires: bool) -> usize {
        units(key, value, expires) + usize::from(self.checks.is_some())
    }

    /// Returns the units of the item with this header.
    #[inline]
    pub(super) fn units_with(&self, header: &ItemHeader) -> usize {
        header.units() + usize::from(self.checks.is_some())
    }

    /// Returns the capacity in units.
    pub(super) fn capacity(&self) -> usize {
        self.units
    }

    /// Returns the units of live items.
    pub(super) fn live(&self) -> usize {
        self.used - self.dead
    }

    /// Returns the units of all blocks, including dead ones.
    pub(super) fn used(&self) -> usize {
        self.used
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
    fn header(&self, pos: usize) -> BlockHeader {
        let word = self.word(pos);
        if word & LIVE != 0 {
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
        let (key, value) = header.offsets();
        let start = pos * 8;
        LogItem {
            header,
            key: &self.memory[start + key..start + key + header.key],
            value: &self.memory[start + value..start + value + header.value],
            expires_ms: if header.expires {
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
        let start = pos * 8 + header.offsets().0;
        header.key == key.len() && self.memory[start..start + key.len()] == *key
    }

    /// Writes an item into a block of the right size.
    #[inline]
    pub(super) fn write(
        &mut self,
        pos: usize,
        version: u64,
        key: &[u8],
        value: &[u8],
        expires_ms: u64,
    ) {
        let header = ItemHeader {
            key: key.len(),
            value: value.len(),
            version,
            expires: expires_ms != 0,
        };
        self.set_word(pos, header.encode());
        if header.expires {
            self.set_word(pos + 1, expires_ms);
        }
        let (key_at, value_at) = header.offsets();
        let start = pos * 8;
        self.memory[start + key_at..start + key_at + key.len()].copy_from_slice(key);
        self.memory[start + value_at..start + value_at + value.len()].copy_from_slice(value);
        if let Some(seed) = self.checks {
            let end = pos + header.units();
            let check = check_of(&self.memory[start..end * 8], seed);
            self.set_word(end, check);
        }
    }

    /// Copies a whole block out of the log.
    pub(super) fn copy_out(&self, pos: usize, into: &mut Vec<u8>) {
        let units = self.units_with(&self.item(pos).header);
        into.clear();
        into.extend_from_slice(&self.memory[pos * 8..(pos + units) * 8]);
    }

    /// Copies a block that [`copy_out`](Self::copy_out) copied out back into the log.
    pub(super) fn copy_in(&mut self, pos: usize, block: &[u8]) {
        self.memory[pos * 8..pos * 8 + block.len()].copy_from_slice(block);
    }

    /// Marks the block of this item as dead.
    pub(super) fn mark_dead(&mut self, pos: usize) {
        if let BlockHeader::Item(header) = self.header(pos) {
            let units = self.units_with(&header);
            self.set_word(pos, units as u64);
            self.dead += units;
        }
    }

    /// Allocates a block at the young end, and returns its position, if it fits in one piece. The header is a dead
    /// block's until the item is written.
    pub(super) fn append(&mut self, units: usize) -> Option<usize> {
        if self.used == 0 {
            (self.head, self.tail) = (0, 0);
        }
        let wrapped = self.tail < self.head || (self.used > 0 && self.tail == self.head);
        let end = if wrapped { self.head } else { self.units };
        if end - self.tail < units {
            if wrapped || self.used == 0 {
                return None;
            }
            // The rest up to the end becomes a dead block.
            let rest = end - self.tail;
            if rest > 0 {
                self.set_word(self.tail, rest as u64);
                self.used += rest;
                self.dead += rest;
            }
            self.tail = 0;
            if self.head < units {
                return None;
            }
        }
        let pos = self.tail;
        self.tail += units;
        if self.tail == self.units {
            self.tail = 0;
        }
        self.used += units;
        self.set_word(pos, units as u64);
        self.dead += units;
        Some(pos)
    }

    /// Counts a block from [`append`](Self::append) as live, after it was written.
    pub(super) fn mark_live(&mut self, units: usize) {
        self.dead -= units;
    }

    /// Returns the oldest block, if any.
    pub(super) fn oldest(&self) -> Option<(usize, BlockHeader)> {
        (self.used > 0).then(|| (self.head, self.header(self.head)))
    }

    /// Frees the oldest block if it is dead.
    pub(super) fn pop(&mut self) {
        if let Some((_, BlockHeader::Dead { units })) = self.oldest() {
            let units = units.clamp(1, self.used);
            self.head += units;
            if self.head >= self.units {
                self.head = 0;
            }
            self.used -= units;
            self.dead -= units;
        }
    }

    /// Returns the next younger block, if any.
    pub(super) fn after(&self, pos: usize) -> Option<(usize, BlockHeader)> {
        let units = match self.header(pos) {
            BlockHeader::Item(item) => self.units_with(&item),
            BlockHeader::Dead { units } => units.max(1),
        };
        let next = if pos + units >= self.units {
            0
        } else {
            pos + units
        };
        (next != self.tail).then(|| (next, self.header(next)))
    }

    /// Returns the units between the oldest block and this one.
    pub(super) fn age_rank(&self, pos: usize) -> usize {
        if pos >= self.head {
            pos - self.head
        } else {
            pos + self.units - self.head
        }
    }

    /// Removes all blocks.
    pub(super) fn clear(&mut self) {
        (self.head, self.tail, self.used, self.dead) = (0, 0, 0, 0);
    }
}
