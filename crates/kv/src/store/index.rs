//! The index: maps the hash of a key to the position of its item in the log.
//!
//! The index has buckets of eight slots, one cache line each. A slot is a word:
//!
//! | bits | meaning |
//! |---|---|
//! | 63..48 | tag: 16 bits of the hash that do not choose the bucket |
//! | 47..40 | distance in buckets from the home bucket |
//! | 39..0 | 1 + position in the log, in units of 8 bytes; the whole word is 0 in an empty slot |
//!
//! An item whose home bucket is full goes into the next bucket with room, at most 255 away. All buckets between its
//! home and its place stay full while it is there, because removal moves items back. So a search ends at the first
//! bucket with room, mostly after one cache line.

use verbs::{ProtectionDomain, RemoteMemory};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::memory::{NoMemory, StoreMemory};
use verbs::prefetch;

/// Number of slots in a bucket.
pub(super) const SLOTS_PER_BUCKET: usize = 8;
const POS_BITS: u32 = 40;
const POS_MASK: u64 = (1 << POS_BITS) - 1;

/// Number of positions that a slot can encode.
pub(super) const MAX_LOG_UNITS: u64 = POS_MASK - 1;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
struct Bucket([u64; SLOTS_PER_BUCKET]);

/// A slot of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotPosition {
    bucket: usize,
    slot: usize,
}

#[derive(Debug)]
pub(super) struct Index {
    memory: StoreMemory,
    bucket_count: usize,
    max_home_distance: usize,
}

/// Returns the tag of a hash.
pub(super) fn tag_of_hash(hash: u64) -> u64 {
    hash >> 32 & 0xffff
}

/// Returns the home bucket of a hash, for `buckets` buckets.
#[inline]
pub(super) fn home_bucket(hash: u64, buckets: u64) -> u64 {
    ((hash & 0xffff_ffff) * buckets) >> 32
}

fn encode_slot(hash: u64, distance: usize, pos: usize) -> u64 {
    tag_of_hash(hash) << 48 | (distance as u64) << POS_BITS | (pos as u64 + 1)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "positions are of memory that is there"
)]
pub(super) fn position_in_slot(word: u64) -> usize {
    ((word & POS_MASK) - 1) as usize
}

fn home_distance_in_slot(word: u64) -> usize {
    (word >> POS_BITS & 0xff) as usize
}

impl Index {
    /// Creates an index in which `items` items fill seven eighths of the slots.
    pub(super) fn new(items: usize, pd: Option<&ProtectionDomain>) -> Result<Self, NoMemory> {
        let buckets = items.div_ceil(7).max(1);
        let memory = StoreMemory::zeroed(buckets * size_of::<Bucket>(), pd)?;
        Ok(Self {
            memory,
            bucket_count: buckets,
            max_home_distance: (buckets - 1).min(255),
        })
    }

    /// Returns the largest sensible number of items: with more, searches become long.
    pub(super) fn max_items(&self) -> usize {
        self.bucket_count * SLOTS_PER_BUCKET / 16 * 15
    }

    /// Returns the address and key by which a peer READs the index, if it is registered.
    pub(super) fn remote_memory_if_registered(&self) -> Option<RemoteMemory> {
        self.memory.remote_memory_if_registered()
    }

    #[cfg(test)]
    pub(super) fn raw(&self) -> &[u8] {
        &self.memory
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.memory.len()
    }

    #[inline]
    fn all_buckets(&self) -> &[Bucket] {
        // A mapping begins at a page and consists of whole buckets.
        <[Bucket]>::ref_from_bytes(&self.memory).unwrap_or(&[])
    }

    #[inline]
    fn all_buckets_mut(&mut self) -> &mut [Bucket] {
        <[Bucket]>::mut_from_bytes(&mut self.memory).unwrap_or(&mut [])
    }

    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "below the number of buckets"
    )]
    fn home_bucket(&self, hash: u64) -> usize {
        home_bucket(hash, self.bucket_count as u64) as usize
    }

    #[inline]
    fn next_bucket(&self, bucket: usize) -> usize {
        if bucket + 1 == self.bucket_count {
            0
        } else {
            bucket + 1
        }
    }

    /// Prefetches the home bucket of a hash.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch(&self.all_buckets()[self.home_bucket(hash)]);
    }

    /// Returns the log position of the item that has this hash most likely: the first in the home bucket with the
    /// hash's tag.
    #[inline]
    pub(super) fn likely_item_position(&self, hash: u64) -> Option<usize> {
        let bucket = &self.all_buckets()[self.home_bucket(hash)].0;
        let hit = bucket
            .iter()
            .find(|w| **w >> 48 == tag_of_hash(hash) && **w != 0);
        hit.map(|w| position_in_slot(*w))
    }

    /// Returns the place and the position of the item with this hash for which `is_it` returns true.
    #[inline]
    pub(super) fn find(
        &self,
        hash: u64,
        mut is_it: impl FnMut(usize) -> bool,
    ) -> Option<(SlotPosition, usize)> {
        let all = self.all_buckets();
        let mut bucket = self.home_bucket(hash);
        for _ in 0..=self.max_home_distance {
            let mut room = false;
            for (slot, &w) in all[bucket].0.iter().enumerate() {
                room |= w == 0;
                if w >> 48 == tag_of_hash(hash) && w != 0 && is_it(position_in_slot(w)) {
                    return Some((SlotPosition { bucket, slot }, position_in_slot(w)));
                }
            }
            if room {
                return None;
            }
            bucket = self.next_bucket(bucket);
        }
        None
    }

    /// Returns true if [`insert`](Self::insert) would find a free slot.
    pub(super) fn has_free_slot_for(&self, hash: u64) -> bool {
        self.find_free_slot(hash).is_some()
    }

    fn find_free_slot(&self, hash: u64) -> Option<(SlotPosition, usize)> {
        let all = self.all_buckets();
        let mut bucket = self.home_bucket(hash);
        for distance in 0..=self.max_home_distance {
            if let Some(slot) = all[bucket].0.iter().position(|w| *w == 0) {
                return Some((SlotPosition { bucket, slot }, distance));
            }
            bucket = self.next_bucket(bucket);
        }
        None
    }

    /// Adds an item that is not in the index. Returns false if no bucket in reach has room.
    #[must_use]
    pub(super) fn insert(&mut self, hash: u64, pos: usize) -> bool {
        let Some((place, distance)) = self.find_free_slot(hash) else {
            return false;
        };
        self.all_buckets_mut()[place.bucket].0[place.slot] = encode_slot(hash, distance, pos);
        true
    }

    /// Returns the places and positions of the items in the home bucket of a hash.
    pub(super) fn home_bucket_items(
        &self,
        hash: u64,
    ) -> impl Iterator<Item = (SlotPosition, usize)> {
        let bucket = self.home_bucket(hash);
        let words = self.all_buckets()[bucket].0;
        words
            .into_iter()
            .enumerate()
            .filter(|(_, w)| *w != 0)
            .map(move |(slot, w)| (SlotPosition { bucket, slot }, position_in_slot(w)))
    }

    /// Replaces an item in the home bucket by another item with the same home.
    pub(super) fn replace_in_home_bucket(&mut self, place: SlotPosition, hash: u64, pos: usize) {
        self.all_buckets_mut()[place.bucket].0[place.slot] = encode_slot(hash, 0, pos);
    }

    /// Updates the position of the item at a place.
    pub(super) fn set_position(&mut self, place: SlotPosition, pos: usize) {
        let w = &mut self.all_buckets_mut()[place.bucket].0[place.slot];
        *w = *w & !POS_MASK | (pos as u64 + 1);
    }

    /// Removes the item at a place, and moves items back that had overflowed past this bucket.
    pub(super) fn remove(&mut self, place: SlotPosition) {
        let (buckets, max_distance) = (self.bucket_count, self.max_home_distance);
        let all = self.all_buckets_mut();
        let mut hole = place;
        loop {
            // If the bucket had a free slot, no item has overflowed past it.
            let was_full = all[hole.bucket].0.iter().all(|w| *w != 0);
            let mut found = None;
            if was_full {
                let mut bucket = hole.bucket;
                for distance in 1..=max_distance {
                    bucket = if bucket + 1 == buckets { 0 } else { bucket + 1 };
                    let words = &all[bucket].0;
                    let went_past = |w: &u64| *w != 0 && home_distance_in_slot(*w) >= distance;
                    if let Some(slot) = words.iter().position(went_past) {
                        found = Some((SlotPosition { bucket, slot }, distance));
                        break;
                    }
                    if words.contains(&0) {
                        break;
                    }
                }
            }
            let Some((from, distance)) = found else {
                all[hole.bucket].0[hole.slot] = 0;
                return;
            };
            let w = all[from.bucket].0[from.slot];
            all[hole.bucket].0[hole.slot] = w - ((distance as u64) << POS_BITS);
            hole = from;
        }
    }

    pub(super) fn clear(&mut self) {
        self.memory.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn what_does_not_fit_at_home_is_found_behind_it() {
        let mut index = Index::new(28, None).expect("memory");
        assert_eq!((index.memory_bytes(), index.max_items()), (256, 30));
        // All hashes have the same home, and the items are more than a bucket holds.
        let hash = |i: u64| i << 32 | 1;
        for (i, pos) in (0..32).zip(0usize..) {
            assert!(index.insert(hash(i), pos));
        }
        for (i, pos) in (0..32).zip(0usize..) {
            assert_eq!(index.find(hash(i), |p| p == pos).expect("there").1, pos);
        }
        assert!(!index.has_free_slot_for(hash(32)) && !index.insert(hash(32), 32));
    }

    proptest! {
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec((0u64..300, any::<bool>()), 1..2_000)) {
            // Few homes and few tags make everything collide.
            let hash = |key: u64| (key % 5) << 32 | (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
            let mut index = Index::new(200, None).expect("memory");
            let mut model = BTreeMap::new();
            for (n, (key, add)) in steps.into_iter().enumerate() {
                // Positions are unique and encode the key.
                let pos = n * 1000 + usize::try_from(key).expect("small");
                let is_key = |pos: usize| pos % 1000 == usize::try_from(key).expect("small");
                let found = index.find(hash(key), is_key);
                prop_assert_eq!(found.map(|f| f.1), model.get(&key).copied());
                match (add, found) {
                    (true, Some((place, _))) => {
                        index.set_position(place, pos);
                        model.insert(key, pos);
                    }
                    (true, None) => {
                        if index.insert(hash(key), pos) {
                            model.insert(key, pos);
                        } else {
                            prop_assert!(model.len() >= 200);
                        }
                    }
                    (false, Some((place, _))) => {
                        index.remove(place);
                        model.remove(&key);
                    }
                    (false, None) => {}
                }
            }
            for (key, pos) in model {
                prop_assert!(index.find(hash(key), |p| p == pos).is_some());
            }
        }
    }
}
