//! The log: items one behind the other in a circle.
//!
//! A block is a whole number of 8-byte units: a header, the time at which the item expires if it does, the key, the
//! value, the two last padded to a unit each. The header:
//!
//! | bits | of an item | of a dead block |
//! |---|---|---|
//! | 63 | 1 | 0 |
//! | 62 | it expires | 0 |
//! | 61..24 | version | 0 |
//! | 23..8 | bytes of the value | units, in bits 31..0 |
//! | 7..0 | bytes of the key | |
//!
//! Where clients READ the log themselves, each item ends in one more unit: a checksum of all bytes before it
//! ([`check_of`]), so that a reader knows an item that is whole from one that is being changed.
//!
//! Room is made at the oldest end; what becomes of items there is the partition's affair.

use verbs::{ProtectionDomain, RemoteMemory};
use zerocopy::{FromBytes, IntoBytes};

use super::memory::{Memory, NoMemory};
use verbs::prefetch;

const LIVE: u64 = 1 << 63;
const EXPIRES: u64 = 1 << 62;
const VERSION_SHIFT: u32 = 24;

/// The last version before they begin again.
pub(super) const LAST_VERSION: u64 = (1 << 38) - 1;
/// The longest key.
pub const MAX_KEY_BYTES: usize = 255;
/// The longest value.
pub const MAX_VALUE_BYTES: usize = 65_535;

/// Units of a block in a log without checksums.
pub(super) fn units(key: usize, value: usize, expires: bool) -> usize {
    1 + usize::from(expires) + key.div_ceil(8) + value.div_ceil(8)
}

/// The checksum of an item's bytes, from its header to the end of its value.
pub(super) fn check_of(block: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(block, seed)
}

/// What a block's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
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
    /// Of an item's first word; `None` of a dead block's.
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

    /// Units without a checksum.
    pub(super) fn units(&self) -> usize {
        units(self.key, self.value, self.expires)
    }

    /// Bytes from the block's start to key and value.
    pub(super) fn offsets(&self) -> (usize, usize) {
        let key = 8 + 8 * usize::from(self.expires);
        (key, key + self.key.next_multiple_of(8))
    }
}

/// An item in the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Item<'l> {
    pub(super) header: ItemHeader,
    pub(super) key: &'l [u8],
    pub(super) value: &'l [u8],
    /// 0 if it does not expire.
    pub(super) expires_ms: u64,
}

#[derive(Debug)]
pub(super) struct Log {
    memory: Memory,
    units: usize,
    /// What checksums of items start from, where items have any.
    checks: Option<u64>,
    /// The oldest block.
    head: usize,
    /// Where the next one goes.
    tail: usize,
    /// Units of blocks, dead ones among them.
    used: usize,
    dead: usize,
}

impl Log {
    /// A log in memory of this process; or, with a protection domain and what checksums start from, for clients to READ.
    pub(super) fn new(
        bytes: usize,
        readers: Option<(&ProtectionDomain, u64)>,
    ) -> Result<Self, NoMemory> {
        let units = (bytes / 8).max(64);
        Ok(Self {
            memory: Memory::zeroed(units * 8, readers.map(|r| r.0))?,
            units,
            checks: readers.map(|r| r.1),
            head: 0,
            tail: 0,
            used: 0,
            dead: 0,
        })
    }

    /// What a peer needs to READ it, if it is registered.
    pub(super) fn remote(&self) -> Option<RemoteMemory> {
        self.memory.remote()
    }

    #[cfg(test)]
    pub(super) fn raw(&self) -> &[u8] {
        &self.memory
    }

    /// Units of an item.
    #[inline]
    pub(super) fn units_of(&self, key: usize, value: usize, expires: bool) -> usize {
        units(key, value, expires) + usize::from(self.checks.is_some())
    }

    /// Units of the item with this header.
    #[inline]
    pub(super) fn units_with(&self, header: &ItemHeader) -> usize {
        header.units() + usize::from(self.checks.is_some())
    }

    /// Units in all.
    pub(super) fn capacity(&self) -> usize {
        self.units
    }

    /// Units of items.
    pub(super) fn live(&self) -> usize {
        self.used - self.dead
    }

    /// Units that hold blocks, dead ones among them.
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

    /// Starts to fetch the two lines in which a short item lies.
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
    fn header(&self, pos: usize) -> Header {
        let word = self.word(pos);
        if word & LIVE != 0 {
            Header::Item(ItemHeader::decode(word))
        } else {
            #[expect(clippy::cast_possible_truncation, reason = "32 bits")]
            Header::Dead {
                units: word as u32 as usize,
            }
        }
    }

    /// The item at a position that the index gave.
    #[inline]
    pub(super) fn item(&self, pos: usize) -> Item<'_> {
        let header = ItemHeader::decode(self.word(pos));
        let (key, value) = header.offsets();
        let start = pos * 8;
        Item {
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

    /// Whether the item at a position has this key.
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

    /// Copies a block out as it is.
    pub(super) fn lift(&self, pos: usize, into: &mut Vec<u8>) {
        let units = self.units_with(&self.item(pos).header);
        into.clear();
        into.extend_from_slice(&self.memory[pos * 8..(pos + units) * 8]);
    }

    /// Copies a block in that [`lift`](Self::lift) copied out.
    pub(super) fn lay(&mut self, pos: usize, block: &[u8]) {
        self.memory[pos * 8..pos * 8 + block.len()].copy_from_slice(block);
    }

    /// The block of this item holds none any more.
    pub(super) fn kill(&mut self, pos: usize) {
        if let Header::Item(header) = self.header(pos) {
            let units = self.units_with(&header);
            self.set_word(pos, units as u64);
            self.dead += units;
        }
    }

    /// Takes a block at the young end, if there is room for it in one piece: its position. Its header is dead until
    /// it is written.
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
            // The rest up to the end stays empty for this round.
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

    /// A block from [`append`](Self::append) has been written.
    pub(super) fn born(&mut self, units: usize) {
        self.dead -= units;
    }

    /// The oldest block, if there is one.
    pub(super) fn oldest(&self) -> Option<(usize, Header)> {
        (self.used > 0).then(|| (self.head, self.header(self.head)))
    }

    /// Gives up the oldest block, which is dead.
    pub(super) fn pop(&mut self) {
        if let Some((_, Header::Dead { units })) = self.oldest() {
            let units = units.clamp(1, self.used);
            self.head += units;
            if self.head >= self.units {
                self.head = 0;
            }
            self.used -= units;
            self.dead -= units;
        }
    }

    /// The block behind one in the order of age, if there is one.
    pub(super) fn after(&self, pos: usize) -> Option<(usize, Header)> {
        let units = match self.header(pos) {
            Header::Item(item) => self.units_with(&item),
            Header::Dead { units } => units.max(1),
        };
        let next = if pos + units >= self.units {
            0
        } else {
            pos + units
        };
        (next != self.tail).then(|| (next, self.header(next)))
    }

    /// How many units are between the oldest block and this one.
    pub(super) fn age_rank(&self, pos: usize) -> usize {
        if pos >= self.head {
            pos - self.head
        } else {
            pos + self.units - self.head
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        (self.head, self.tail, self.used, self.dead) = (0, 0, 0, 0);
    }
}
