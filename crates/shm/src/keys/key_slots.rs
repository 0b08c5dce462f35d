//! The slots of a process's table of keys: lookup of a key, and entry and removal of keys.

use std::sync::atomic::Ordering;

use crate::fabric::Peer;
use crate::fabric::layout::*;

/// Maximum number of slots that a lookup of a key searches, beginning at the key's hash.
pub(super) const MAX_PROBED_SLOTS: usize = 16;

#[inline]
pub(super) fn hash_of_key_prefix(secret: u64, key: u32) -> usize {
    let mixed = (u64::from(key_prefix(key)) ^ (secret >> 32)).wrapping_mul(secret | 1);
    (mixed >> (64 - MR_SLOTS.trailing_zeros())) as usize
}

/// Returns the key in a [`MrShared::generation_and_key`].
#[allow(clippy::cast_possible_truncation)] // the low half
#[inline]
pub fn key_of_generation_and_key(entry: u64) -> u32 {
    entry as u32
}

/// Returns the upper 24 bits of a key, which the process chooses and not the program.
#[inline]
pub(super) fn key_prefix(key: u32) -> u32 {
    key >> 8
}

/// Returns the next value of [`MrShared::generation_and_key`] after `entry`, for a region with `key`.
pub(super) fn next_generation_and_key(entry: u64, key: u32) -> u64 {
    ((entry >> 32) + 1) << 32 | u64::from(key)
}

/// Returns index and slot of the region of `peer` that has `key`.
#[inline]
pub fn find_slot_of_key(peer: &Peer, key: u32) -> Option<(usize, &MrShared)> {
    if key == 0 {
        return None;
    }
    let start = hash_of_key_prefix(
        peer.segment
            .header()
            .key_hash_secret
            .load(Ordering::Relaxed),
        key,
    );
    (0..MAX_PROBED_SLOTS).find_map(|i| {
        let index = (start + i) % MR_SLOTS;
        // A key is untrusted input, and may hash to a slot that was never in use.
        let mr = peer.segment.find_mr(index)?;
        (key_of_generation_and_key(mr.generation_and_key.load(Ordering::Acquire)) == key)
            .then_some((index, mr))
    })
}

/// Stores the key of a region or window in its slot; peers find it from now on.
pub(super) fn publish_key(mr: &MrShared, key: u32) {
    let entry = mr.generation_and_key.load(Ordering::Relaxed);
    // SYNC POINT K: the slot's other fields already describe the region of this key (see `find`).
    mr.generation_and_key
        .store(next_generation_and_key(entry, key), Ordering::Release);
}

/// Removes the key of a region, and returns the slot's new entry; `None` if another process has
/// already removed the key.
pub(super) fn remove_key(mr: &MrShared, key: u32) -> Option<u64> {
    let entry = mr.generation_and_key.load(Ordering::Relaxed);
    let gone = next_generation_and_key(entry, 0);
    let taken = key_of_generation_and_key(entry) == key
        && mr
            .generation_and_key
            .compare_exchange(entry, gone, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
    taken.then_some(gone)
}

/// Removes the key of the window in a slot; peers no longer find it.
pub(super) fn remove_window_key(mr: &MrShared) {
    let entry = mr.generation_and_key.load(Ordering::Relaxed);
    mr.generation_and_key
        .store(next_generation_and_key(entry, 0), Ordering::SeqCst);
}
