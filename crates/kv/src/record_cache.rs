//! A client-side cache of record numbers, by which clients find keys in the server's memory.

use std::sync::atomic::{AtomicU32, Ordering};

/// A cache of the keys' record numbers, which clients share. Clients detect and correct outdated entries.
#[derive(Debug)]
pub struct RecordCache {
    /// The record number plus 1 of the last key with these hash bits; 0 if unknown.
    record_numbers_plus_one: Box<[AtomicU32]>,
}

impl RecordCache {
    /// Creates a cache for about `keys` keys: the next power of two, four bytes each, at most 2^24 entries.
    pub fn new(keys: usize) -> Self {
        let entries = keys.clamp(1, 1 << 24).next_power_of_two();
        Self {
            record_numbers_plus_one: (0..entries).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "masked")]
    fn entry(&self, hash: u64) -> &AtomicU32 {
        &self.record_numbers_plus_one
            [(hash ^ hash >> 32) as usize & (self.record_numbers_plus_one.len() - 1)]
    }

    #[inline]
    pub(crate) fn get(&self, hash: u64) -> Option<u64> {
        let entry = self.entry(hash).load(Ordering::Relaxed);
        entry.checked_sub(1).map(u64::from)
    }

    /// Records that a key with this hash has this record.
    #[inline]
    pub(crate) fn set(&self, hash: u64, record: u64) {
        let entry = u32::try_from(record + 1).unwrap_or(0);
        self.entry(hash).store(entry, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, hash: u64) {
        self.entry(hash).store(0, Ordering::Relaxed);
    }
}
