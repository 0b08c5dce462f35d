//! Records of fixed size in the server's memory, which clients READ, and in the atomics-based design also WRITE. This
//! module has their layout, and checks of bytes that may change while they are copied.
//!
//! A record's body: a meta word, a checksum of all the rest, the key and the value, both padded to their maximum
//! length.
//!
//! | bits of the meta word | meaning |
//! |---|---|
//! | 63 | the record has a key; a word of 0 is a record that never had one |
//! | 62 | the key was removed |
//! | 61..24 | version |
//! | 23..8 | bytes of the value |
//! | 7..0 | bytes of the key |
//!
//! A key's record is in the *neighbourhood* of records that begins at the key's home, so one READ of the neighbourhood
//! finds it. If the neighbourhood is full, the record is anywhere after the last neighbourhood, and only the server
//! knows where. A record keeps its key while it is in use, so concurrent readers always see the same key.
//!
//! A lock is a word: the owner in bits 63..40, its lease in milliseconds in bits 39..24, and the owner's acquisition
//! number in bits 23..0. The word is 0 if the lock is free.

use serde::{Deserialize, Serialize};

use super::partition::{Refusal, SetCondition};

const FLAG_USED: u64 = 1 << 63;
const FLAG_REMOVED: u64 = 1 << 62;
const VERSION_SHIFT: u32 = 24;
/// The last version before versions restart at 1.
pub(crate) const MAX_VERSION: u64 = super::log::MAX_VERSION;
/// Bytes of a body's header, before the key.
const BODY_HEADER_BYTES: usize = 16;

/// The placement of lock words, which decides how many of a NIC's internal locks they share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockPlacement {
    /// In an array of adjacent words: their addresses differ in the bits by which NICs select an internal lock.
    #[default]
    Spread,
    /// In each record, at the same offset: with large, aligned records the lower address bits of all locks are equal.
    Record,
}

impl std::str::FromStr for LockPlacement {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "spread" => Ok(Self::Spread),
            "record" => Ok(Self::Record),
            _ => Err(format!(
                "no placement of locks is called {s:?}: spread, record"
            )),
        }
    }
}

impl std::fmt::Display for LockPlacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Spread => "spread",
            Self::Record => "record",
        })
    }
}

/// The layout of a partition's records. Servers and clients must agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordLayout {
    /// Number of records, including those after the last neighbourhood.
    #[serde(rename = "records")]
    pub record_count: u64,
    /// Number of homes: each is the first record of a neighbourhood.
    #[serde(rename = "homes")]
    pub home_count: u64,
    /// Number of records in a neighbourhood.
    #[serde(rename = "neighbours")]
    pub records_per_neighbourhood: usize,
    /// Distance between records in bytes.
    pub stride: usize,
    /// Bytes of the longest key, padded.
    pub key_bytes: usize,
    /// Bytes of the longest value, padded.
    pub value_bytes: usize,
    /// The placement of lock words.
    #[serde(rename = "locks")]
    pub lock_placement: LockPlacement,
}

impl RecordLayout {
    /// Returns a layout for `items` items. One READ of `read_bytes` bytes fetches a neighbourhood, which has at least
    /// one record. Records begin at multiples of `align`.
    pub(crate) fn new(
        items: usize,
        (key, value): (usize, usize),
        read_bytes: usize,
        locks: LockPlacement,
        align: usize,
    ) -> Self {
        let (key_bytes, value_bytes) = (key.next_multiple_of(8), value.next_multiple_of(8));
        let body = BODY_HEADER_BYTES + key_bytes + value_bytes;
        let stride = match locks {
            LockPlacement::Spread => body,
            LockPlacement::Record => body + 8,
        };
        let stride = stride.next_multiple_of(align.max(8));
        let neighbours = (read_bytes / stride).max(1);
        // At two thirds load, few neighbourhoods of eight records are full; of smaller ones more are.
        let homes = items + items / 2 + 64;
        let records = homes + neighbours + items / neighbours.min(8) + 64;
        Self {
            record_count: records as u64,
            home_count: homes as u64,
            records_per_neighbourhood: neighbours,
            stride,
            key_bytes,
            value_bytes,
            lock_placement: locks,
        }
    }

    /// Returns true if an untrusted layout is consistent and fits into `memory` bytes.
    pub(crate) fn is_valid_for_memory(&self, memory: u64) -> bool {
        let small = self.key_bytes <= 1 << 10
            && self.value_bytes <= 1 << 16
            && self.stride <= 1 << 18
            && self.record_count < 1 << 32
            && (1..=1 << 10).contains(&self.records_per_neighbourhood);
        let lock = match self.lock_placement {
            LockPlacement::Spread => 0,
            LockPlacement::Record => 8,
        };
        let words = [self.key_bytes, self.value_bytes, self.stride];
        small
            && words.iter().all(|n| n.is_multiple_of(8))
            && self.body_bytes() + lock <= self.stride
            && self.home_count > 0
            && self
                .home_count
                .saturating_add(self.records_per_neighbourhood as u64)
                <= self.record_count
            && self.memory_bytes() <= memory
    }

    /// Returns the bytes of memory for the records and their locks.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let locks = match self.lock_placement {
            LockPlacement::Spread => 8 * self.record_count,
            LockPlacement::Record => 0,
        };
        self.record_count * self.stride as u64 + locks
    }

    /// Returns the bytes of a body.
    pub(crate) fn body_bytes(&self) -> usize {
        BODY_HEADER_BYTES + self.key_bytes + self.value_bytes
    }

    /// Returns the first record of a hash's neighbourhood.
    #[inline]
    pub(crate) fn first_record_of_hash(&self, hash: u64) -> u64 {
        super::index::home_bucket(hash, self.home_count)
    }

    /// Returns the offset of a record's body.
    #[inline]
    pub(crate) fn body_offset(&self, record: u64) -> u64 {
        record * self.stride as u64
    }

    /// Returns the offset of a record's lock.
    #[inline]
    pub(crate) fn lock_offset(&self, record: u64) -> u64 {
        match self.lock_placement {
            LockPlacement::Spread => self.record_count * self.stride as u64 + 8 * record,
            LockPlacement::Record => self.body_offset(record) + self.body_bytes() as u64,
        }
    }

    /// Returns true if key and value are short enough.
    pub(crate) fn fits_key_and_value(&self, key: &[u8], value: &[u8]) -> bool {
        key.len() <= self.key_bytes && value.len() <= self.value_bytes
    }

    /// Encodes a body into `into`. A removed key has no value. Key and value must [fit](Self::fits_key_and_value).
    pub(crate) fn encode_body(
        &self,
        into: &mut [u8],
        (seed, record): (u64, u64),
        key: &[u8],
        version: u64,
        value: Option<&[u8]>,
    ) {
        let into = &mut into[..self.body_bytes()];
        into.fill(0);
        let bytes = value.unwrap_or_default();
        let removed = if value.is_none() { FLAG_REMOVED } else { 0 };
        let lengths = (bytes.len() as u64) << 8 | key.len() as u64;
        let meta = FLAG_USED | removed | version << VERSION_SHIFT | lengths;
        into[..8].copy_from_slice(&meta.to_le_bytes());
        into[BODY_HEADER_BYTES..BODY_HEADER_BYTES + key.len()].copy_from_slice(key);
        let value_at = BODY_HEADER_BYTES + self.key_bytes;
        into[value_at..value_at + bytes.len()].copy_from_slice(bytes);
        let check = body_checksum(
            meta,
            &into[BODY_HEADER_BYTES..value_at + bytes.len()],
            seed,
            record,
        );
        into[8..BODY_HEADER_BYTES].copy_from_slice(&check.to_le_bytes());
    }

    /// Decodes a body with any contents, for a reader that looks for `key`.
    #[inline]
    pub(crate) fn decode_body<'b>(
        &self,
        body: &'b [u8],
        (seed, record): (u64, u64),
        key: &[u8],
    ) -> DecodedBody<'b> {
        let Some(body) = body.get(..self.body_bytes()) else {
            return DecodedBody::OtherKey;
        };
        let (meta, check) = (read_word(body, 0), read_word(body, 8));
        let (key_len, value_len) = ((meta & 0xff) as usize, (meta >> 8 & 0xffff) as usize);
        let value_at = BODY_HEADER_BYTES + self.key_bytes;
        if meta & FLAG_USED == 0
            || key_len != key.len()
            || key_len > self.key_bytes
            || body[BODY_HEADER_BYTES..BODY_HEADER_BYTES + key_len] != *key
        {
            return DecodedBody::OtherKey;
        }
        if value_len > self.value_bytes
            || check
                != body_checksum(
                    meta,
                    &body[BODY_HEADER_BYTES..value_at + value_len],
                    seed,
                    record,
                )
        {
            return DecodedBody::Torn;
        }
        DecodedBody::Match {
            version: meta >> VERSION_SHIFT & MAX_VERSION,
            value: (meta & FLAG_REMOVED == 0).then(|| &body[value_at..value_at + value_len]),
        }
    }

    /// Returns the version of a record whose key was removed; `None` if the record is in another state.
    pub(crate) fn version_if_removed(
        &self,
        body: &[u8],
        (seed, record): (u64, u64),
    ) -> Option<u64> {
        let key =
            body.get(BODY_HEADER_BYTES..BODY_HEADER_BYTES + (read_word(body, 0) & 0xff) as usize)?;
        match self.decode_body(body, (seed, record), key) {
            DecodedBody::Match {
                version,
                value: None,
            } => Some(version),
            _ => None,
        }
    }

    /// Finds the key's record in a neighbourhood that was READ as a whole. Returns its record number and body.
    #[inline]
    pub(crate) fn find_in_neighbourhood<'b>(
        &self,
        bytes: &'b [u8],
        (seed, home): (u64, u64),
        key: &[u8],
    ) -> Option<(u64, DecodedBody<'b>)> {
        let mut bodies = (home..)
            .zip(bytes.chunks(self.stride))
            .map(|(record, body)| (record, self.decode_body(body, (seed, record), key)));
        bodies.find(|(_, body)| *body != DecodedBody::OtherKey)
    }
}

/// The result of decoding a body for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecodedBody<'b> {
    /// The intact record of the key; without a value if the key was removed.
    Match {
        version: u64,
        value: Option<&'b [u8]>,
    },
    /// The record of another key, or a free record.
    OtherKey,
    /// The key's record while it is being changed.
    Torn,
}

fn read_word(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|w| w.try_into().ok());
    u64::from_le_bytes(word.unwrap_or_default())
}

#[inline]
fn body_checksum(meta: u64, rest: &[u8], seed: u64, record: u64) -> u64 {
    let seed = (seed ^ meta).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ record;
    xxhash_rust::xxh3::xxh3_64_with_seed(rest, seed)
}

/// Returns the version that a change makes. `last` is the key's last version. Returns `None` if there is nothing to
/// remove. A refusal carries version 0 if the key is absent.
pub(crate) fn version_after_change_unless_no_op(
    last: u64,
    present: bool,
    puts: bool,
    condition: SetCondition,
) -> Result<Option<u64>, Refusal> {
    let holds = match condition {
        SetCondition::Always => true,
        SetCondition::Absent => !present,
        SetCondition::Present => present,
        SetCondition::Version(version) => present && version == last,
    };
    if !holds {
        return Err(Refusal::ConditionNotMetAtVersion(if present {
            last
        } else {
            0
        }));
    }
    Ok(match (puts, present) {
        (true, _) => Some(if last >= MAX_VERSION { 1 } else { last + 1 }),
        (false, true) => Some(last),
        (false, false) => None,
    })
}

/// The redo entry that a client writes before it changes a record, so that the server can finish the change if the
/// client dies. An entry has the record, its lock word, the new body and a checksum.
pub(crate) mod redo {
    use super::{RecordLayout, read_word};

    const ENTRY_HEADER_BYTES: usize = 16;

    /// Returns the bytes of an entry.
    pub(crate) fn entry_bytes(shape: &RecordLayout) -> usize {
        ENTRY_HEADER_BYTES + shape.body_bytes() + 8
    }

    /// Offset of the body in an entry.
    pub(crate) const ENTRY_BODY_OFFSET: usize = ENTRY_HEADER_BYTES;

    /// Completes an entry that already contains the body.
    pub(crate) fn write_entry_header_and_checksum(
        entry: &mut [u8],
        shape: &RecordLayout,
        (partition, record): (usize, u64),
        lock: u64,
    ) {
        let place = (partition as u64) << 32 | record;
        entry[..8].copy_from_slice(&place.to_le_bytes());
        entry[8..ENTRY_HEADER_BYTES].copy_from_slice(&lock.to_le_bytes());
        let end = ENTRY_HEADER_BYTES + shape.body_bytes();
        let check = xxhash_rust::xxh3::xxh3_64(&entry[..end]);
        entry[end..end + 8].copy_from_slice(&check.to_le_bytes());
    }

    /// Returns the partition of an entry.
    pub(crate) fn partition_of(entry: &[u8]) -> Option<usize> {
        usize::try_from(read_word(entry, 0) >> 32).ok()
    }

    /// Returns record, lock word and body of an entry, or `None` if its checksum is wrong. The bytes are untrusted.
    pub(crate) fn decode_entry<'e>(
        entry: &'e [u8],
        shape: &RecordLayout,
    ) -> Option<(u64, u64, &'e [u8])> {
        let end = ENTRY_HEADER_BYTES + shape.body_bytes();
        let whole = entry.get(..end + 8)?;
        let (record, lock) = (read_word(whole, 0) & 0xffff_ffff, read_word(whole, 8));
        let right = xxhash_rust::xxh3::xxh3_64(&whole[..end]) == read_word(whole, end);
        (right && lock != 0 && record < shape.record_count)
            .then(|| (record, lock, &whole[ENTRY_HEADER_BYTES..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use service::lock_recovery::lock_word;

    fn shape(locks: LockPlacement) -> RecordLayout {
        RecordLayout::new(100, (16, 32), 512, locks, 64)
    }

    #[test]
    fn a_record_of_the_papers_items_is_a_cache_line_and_eight_are_a_neighbourhood() {
        let spread = shape(LockPlacement::Spread);
        assert_eq!(
            (
                spread.body_bytes(),
                spread.stride,
                spread.records_per_neighbourhood
            ),
            (64, 64, 8)
        );
        assert!(
            spread.is_valid_for_memory(spread.memory_bytes())
                && !spread.is_valid_for_memory(spread.memory_bytes() - 1)
        );
        let inside = shape(LockPlacement::Record);
        assert_eq!(
            (
                inside.stride,
                inside.records_per_neighbourhood,
                inside.lock_offset(3)
            ),
            (128, 4, 3 * 128 + 64)
        );
        assert!(
            inside.is_valid_for_memory(inside.memory_bytes())
                && !inside.is_valid_for_memory(inside.memory_bytes() - 1)
        );
        let pages = RecordLayout::new(100, (16, 32), 512, LockPlacement::Record, 4096);
        assert!((0..9).all(|n| pages.lock_offset(n) % 4096 == 64));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_and_mixtures_are_torn(
            key in prop::collection::vec(any::<u8>(), 0..=16),
            first in prop::option::of(prop::collection::vec(any::<u8>(), 0..=32)),
            second in prop::option::of(prop::collection::vec(any::<u8>(), 0..=32)),
            version in 1u64..1 << 37,
            choice: u8,
        ) {
            let shape = shape(LockPlacement::Spread);
            let body = |version, value: &Option<Vec<u8>>| {
                let mut body = [0; 64];
                shape.encode_body(&mut body, (5, 9), &key, version, value.as_deref());
                body
            };
            let (old, new) = (body(version, &first), body(version + 1, &second));
            let ours = DecodedBody::Match { version, value: first.as_deref() };
            prop_assert_eq!(shape.decode_body(&old, (5, 9), &key), ours);
            // At another place or with another seed, the checksum is wrong.
            prop_assert_eq!(shape.decode_body(&old, (5, 8), &key), DecodedBody::Torn);
            prop_assert_eq!(shape.decode_body(&old, (6, 9), &key), DecodedBody::Torn);
            let mut mixed = old;
            for word in (0..8).filter(|word| choice >> word & 1 != 0) {
                mixed[word * 8..word * 8 + 8].copy_from_slice(&new[word * 8..word * 8 + 8]);
            }
            // Bytes after a value are not in the checksum.
            let whole = [ours, DecodedBody::Match { version: version + 1, value: second.as_deref() }];
            let seen = shape.decode_body(&mixed, (5, 9), &key);
            prop_assert!(seen == DecodedBody::Torn || whole.contains(&seen), "{seen:?}");
            let (meta, check) = (choice & 1 != 0, choice & 2 != 0);
            prop_assert!(meta == check || seen == DecodedBody::Torn, "{seen:?}");
        }

        #[test]
        fn any_bytes_are_nothing_that_was_put(bytes in prop::collection::vec(any::<u8>(), 0..600), key: [u8; 4]) {
            let shape = shape(LockPlacement::Spread);
            let found = shape.find_in_neighbourhood(&bytes, (5, 3), &key).map(|f| f.1);
            let ours = matches!(found, Some(DecodedBody::Match { .. }));
            prop_assert!(!ours, "{found:?}");
            prop_assert_eq!(redo::decode_entry(&bytes, &shape), None);
        }

        #[test]
        fn a_redo_entry_is_whole_or_none(at in 0usize..88, bit in 0u32..8) {
            let shape = shape(LockPlacement::Spread);
            let mut entry = vec![0; redo::entry_bytes(&shape)];
            shape.encode_body(&mut entry[redo::ENTRY_BODY_OFFSET..], (5, 7), b"key", 3, Some(b"value"));
            redo::write_entry_header_and_checksum(&mut entry, &shape, (2, 7), lock_word(1, 2, 3));
            prop_assert_eq!(redo::partition_of(&entry), Some(2));
            let body = entry[redo::ENTRY_BODY_OFFSET..redo::ENTRY_BODY_OFFSET + 64].to_vec();
            prop_assert_eq!(redo::decode_entry(&entry, &shape), Some((7, lock_word(1, 2, 3), &body[..])));
            entry[at] ^= 1 << bit;
            prop_assert_eq!(redo::decode_entry(&entry, &shape), None);
        }
    }
}
