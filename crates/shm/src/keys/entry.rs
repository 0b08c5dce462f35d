//! The places of a process's table of keys: where a key is looked for, and how a place gets a key and loses it.

use std::sync::atomic::Ordering;

use crate::fabric::Peer;
use crate::fabric::layout::*;

/// Slots that are searched from a key's hash on.
pub(super) const PROBES: usize = 16;

#[inline]
pub(super) fn hash(secret: u64, key: u32) -> usize {
    let mixed = (u64::from(prefix(key)) ^ (secret >> 32)).wrapping_mul(secret | 1);
    (mixed >> (64 - MR_SLOTS.trailing_zeros())) as usize
}

/// The key in a [`MrShared::entry`].
#[allow(clippy::cast_possible_truncation)] // the low half
#[inline]
pub fn key_of(entry: u64) -> u32 {
    entry as u32
}

/// The part of a key that the program does not choose.
#[inline]
pub(super) fn prefix(key: u32) -> u32 {
    key >> 8
}

/// The entry that follows `entry` in its place, for a region with `key`.
pub(super) fn next_entry(entry: u64, key: u32) -> u64 {
    ((entry >> 32) + 1) << 32 | u64::from(key)
}

/// The region of `peer` that has `key`: its index and its entry.
#[inline]
pub fn find(peer: &Peer, key: u32) -> Option<(usize, &MrShared)> {
    if key == 0 {
        return None;
    }
    let start = hash(
        peer.segment.header().key_secret.load(Ordering::Relaxed),
        key,
    );
    (0..PROBES).find_map(|i| {
        let index = (start + i) % MR_SLOTS;
        // A key is anybody's say, and may lead to where no region ever was.
        let mr = peer.segment.find_mr(index)?;
        (key_of(mr.entry.load(Ordering::Acquire)) == key).then_some((index, mr))
    })
}

/// Gives the region or window in a place its key: peers find it from now on.
pub(super) fn enter(mr: &MrShared, key: u32) {
    let entry = mr.entry.load(Ordering::Relaxed);
    // SYNC POINT K: the other fields belong to this key (see `find`).
    mr.entry.store(next_entry(entry, key), Ordering::Release);
}

/// Takes the key of a region away, unless somebody else has: what its entry is now.
pub(super) fn take(mr: &MrShared, key: u32) -> Option<u64> {
    let entry = mr.entry.load(Ordering::Relaxed);
    let gone = next_entry(entry, 0);
    let taken = key_of(entry) == key
        && mr
            .entry
            .compare_exchange(entry, gone, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
    taken.then_some(gone)
}

/// Takes the key of the window in a place away: nobody finds it any more.
pub(super) fn invalidate(mr: &MrShared) {
    let entry = mr.entry.load(Ordering::Relaxed);
    mr.entry.store(next_entry(entry, 0), Ordering::SeqCst);
}
