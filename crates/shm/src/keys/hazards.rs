//! Hazard slots: they keep a region registered while it is accessed.
//!
//! A thread that accesses a region first writes the region's name into its hazard slot, and then
//! checks again that the key is still valid. Deregistration clears the key, and then waits until no
//! hazard slot of any process names the region. Both sides need a full barrier between store and
//! load. Only the rare deregistration pays for both barriers: `membarrier(2)` makes every running
//! thread of the fabric's processes execute one. An access therefore costs two plain stores to the
//! thread's own cache line.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use crate::fabric::layout::*;
use crate::fabric::{Fabric, Peer};
use crate::lock::lock;
use crate::membarrier;

/// The hazard slots of this process.
pub(super) struct Hazards {
    free_slots: Mutex<Vec<usize>>,
    /// True if `membarrier` is unavailable, so that every access needs a full fence.
    needs_fence_on_access: bool,
}

impl Hazards {
    pub(super) fn new() -> Self {
        Self {
            free_slots: Mutex::new((0..HAZARD_SLOTS).rev().collect()),
            needs_fence_on_access: !membarrier::register_global_expedited(),
        }
    }

    /// Keeps region `index` of `peer` registered while the result lives. A thread holds at most two pins.
    ///
    /// Returns `None` if the region's entry is no longer `entry`, or if shared memory is full at the thread's
    /// first access to a region.
    #[inline(always)]
    pub(super) fn pin_region(
        &'static self,
        fabric: &'static Fabric,
        peer: &Peer,
        index: usize,
        entry: u64,
    ) -> Option<RegionPin> {
        let hazard = match self.slot_of_this_thread() {
            Some(hazard) => hazard,
            None => claim_hazard_slot(self, fabric)?,
        };
        let [first, second] = &hazard.pinned_regions;
        let free = first.load(Ordering::Relaxed) == 0;
        self.pin_in_hazard_word(if free { first } else { second }, peer, index, entry)
    }

    /// Returns the calling thread's hazard slot, if the thread has claimed one.
    #[inline(always)]
    pub(super) fn slot_of_this_thread(&'static self) -> Option<&'static HazardSlot> {
        // After a fork the child has its own keys, and the claim belongs to the parent.
        CLAIM
            .get()
            .filter(|claim| std::ptr::eq(claim.hazards, self))
            .map(|claim| claim.hazard_slot)
    }

    /// Pins a region as [`pin`](Self::pin_region) does, in a free word of the calling thread's hazard slot.
    #[inline(always)]
    pub(super) fn pin_in_hazard_word(
        &self,
        hazard: &'static AtomicU64,
        peer: &Peer,
        index: usize,
        entry: u64,
    ) -> Option<RegionPin> {
        debug_assert_eq!(hazard.load(Ordering::Relaxed), 0);
        hazard.store(encode_hazard_word(peer.slot, index), Ordering::Relaxed);
        // SYNC POINT H
        if self.needs_fence_on_access {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        let pin = RegionPin {
            hazard_word: hazard,
        };
        let mr = peer.segment.mr(index)?;
        (mr.generation_and_key.load(Ordering::Acquire) == entry).then_some(pin)
    }
}

/// Waits until no thread accesses the region or window of `owner` at `index`, whose key has just become
/// invalid.
pub(super) fn wait_until_unpinned(fabric: &Fabric, owner: &Peer, index: usize) {
    // SYNC POINT H
    membarrier::membarrier_all_processes();
    let name = encode_hazard_word(owner.slot, index);
    for peer in fabric.live_processes() {
        let used = peer
            .segment
            .header()
            .hazard_slots_end
            .load(Ordering::Acquire);
        for i in 0..usize::try_from(used)
            .unwrap_or(HAZARD_SLOTS)
            .min(HAZARD_SLOTS)
        {
            let Some(hazard) = peer.segment.hazard(i) else {
                continue;
            };
            let mut waits = 0u32;
            while hazard
                .pinned_regions
                .iter()
                .any(|m| m.load(Ordering::Acquire) == name)
                && !peer.is_dead()
            {
                waits += 1;
                if waits < 100 {
                    std::thread::yield_now();
                } else {
                    // A copy of many megabytes is in progress, or its process is stopped.
                    cancellation::sleep(std::time::Duration::from_micros(100));
                }
            }
        }
    }
}

#[inline]
fn encode_hazard_word(slot: usize, index: usize) -> u64 {
    (slot as u64) << 32 | index as u64
}

/// A pin: the region stays registered while this value lives.
pub struct RegionPin {
    hazard_word: &'static AtomicU64,
}

impl Drop for RegionPin {
    #[inline]
    fn drop(&mut self) {
        self.hazard_word.store(0, Ordering::Release);
    }
}

/// The hazard slot of a thread, claimed at its first access.
#[derive(Clone, Copy)]
struct HazardSlotClaim {
    hazards: &'static Hazards,
    hazard_slot: &'static HazardSlot,
}

thread_local! {
    /// The thread-local has no destructor, so that an access finds the claim by a single load.
    static CLAIM: Cell<Option<HazardSlotClaim>> = const { Cell::new(None) };
    static RELEASE_AT_THREAD_EXIT: ReleaseAtThreadExit = const { ReleaseAtThreadExit { slot: Cell::new(None) } };
}

#[cold]
fn claim_hazard_slot(
    hazards: &'static Hazards,
    fabric: &'static Fabric,
) -> Option<&'static HazardSlot> {
    let slot = loop {
        match lock(&hazards.free_slots).pop() {
            Some(slot) => break slot,
            None => cancellation::sleep(std::time::Duration::from_millis(1)),
        }
    };
    let at = HAZARDS_AT + slot * size_of::<HazardSlot>();
    if let Err(e) = fabric.back_with_memory(at, size_of::<HazardSlot>()) {
        // A store to a slot without memory would raise SIGBUS; the work request fails instead.
        tracing::warn!("shared memory is used up: {e}");
        lock(&hazards.free_slots).push(slot);
        return None;
    }
    fabric
        .this_process
        .segment
        .header()
        .hazard_slots_end
        .fetch_max(slot as u64 + 1, Ordering::SeqCst);
    let hazard = fabric.this_process.segment.hazard(slot)?;
    CLAIM.set(Some(HazardSlotClaim {
        hazards,
        hazard_slot: hazard,
    }));
    // A thread that uses verbs after its thread-local destructors have run never frees its hazard slot.
    let _ = RELEASE_AT_THREAD_EXIT.try_with(|release| release.slot.set(Some((hazards, slot))));
    Some(hazard)
}

/// Frees the hazard slot of a thread when the thread ends.
struct ReleaseAtThreadExit {
    slot: Cell<Option<(&'static Hazards, usize)>>,
}

impl Drop for ReleaseAtThreadExit {
    fn drop(&mut self) {
        CLAIM.set(None);
        if let Some((hazards, slot)) = self.slot.get() {
            lock(&hazards.free_slots).push(slot);
        }
    }
}
