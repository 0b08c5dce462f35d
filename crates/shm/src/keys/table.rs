//! Registration and deregistration of memory regions in the table of keys.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use nic_core::rights::OwningPdOrQp;

use super::hazards::{Hazards, RegionPin, wait_until_unpinned};
use super::key_slots::{
    MAX_PROBED_SLOTS, find_slot_of_key, hash_of_key_prefix, key_of_generation_and_key, key_prefix,
    next_generation_and_key, publish_key, remove_key,
};
use super::windows::{ACCESS_HAS_WINDOWS, MemoryWindows};
use crate::fabric::layout::*;
use crate::fabric::{Fabric, Peer};
use crate::lock::lock;
use crate::mem::RangeBacking;

/// The description of a new region.
pub struct NewRegion<'a> {
    /// Owner of the region: its protection domain.
    pub owner: OwningPdOrQp,
    /// Address of the first byte in work requests.
    pub iova: u64,
    /// Address of the first byte in this process.
    pub owner_address: u64,
    /// Length in bytes.
    pub len: u64,
    /// `ibv_access_flags`.
    pub access: u32,
    /// The backing of the region.
    pub backing: &'a RangeBacking,
}

/// The part of the table of keys that only this process sees.
#[derive(Default)]
pub(super) struct ProcessPrivateKeyTableState {
    /// Number of slots in use.
    pub(super) used_slot_count: usize,
    pub(super) windows: MemoryWindows,
}

/// The table of keys and the hazard slots of this process.
pub struct KeyTable {
    /// Serialises registration.
    private_table: Mutex<ProcessPrivateKeyTableState>,
    hazards: Hazards,
}

impl KeyTable {
    /// Returns an empty table.
    #[allow(clippy::new_without_default)] // a table with 4096 hazard slots is not a default value
    pub fn new() -> Self {
        Self {
            private_table: Mutex::new(ProcessPrivateKeyTableState::default()),
            hazards: Hazards::new(),
        }
    }

    /// Locks the table for registration or bind.
    pub(super) fn lock_private_table(&self) -> MutexGuard<'_, ProcessPrivateKeyTableState> {
        lock(&self.private_table)
    }

    /// Registers a region, and returns its new key; `taken` returns true for keys that must not be
    /// chosen.
    ///
    /// # Errors
    /// Returns `ENOMEM` if the table or shared memory is full.
    pub fn register_under_new_key(
        &self,
        fabric: &Fabric,
        new: &NewRegion<'_>,
        taken: impl Fn(u32) -> bool,
    ) -> Result<u32, i32> {
        for _ in 0..1000 {
            #[allow(clippy::cast_possible_truncation)] // 32 random bits are wanted
            let key = crate::fabric::random_nonzero() as u32;
            if taken(key) {
                continue;
            }
            match self.register_under_given_key(fabric, key, new) {
                Ok(()) => return Ok(key),
                Err(libc::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(libc::ENOMEM)
    }

    /// Registers a region under a given key.
    ///
    /// # Errors
    /// Returns `EEXIST` if the key is taken, is 0, or has no free slot in the table. Returns `ENOMEM` as
    /// [`register_under_new_key`](Self::register_under_new_key) does.
    pub fn register_under_given_key(
        &self,
        fabric: &Fabric,
        key: u32,
        new: &NewRegion<'_>,
    ) -> Result<(), i32> {
        let mut table = self.lock_private_table();
        let (index, mr) = self.find_free_slot_for_key(fabric, &table, key)?;
        mr.access.store(new.access, Ordering::Relaxed);
        mr.iova.store(new.iova, Ordering::Relaxed);
        mr.len.store(new.len, Ordering::Relaxed);
        mr.owner_pd_or_qp
            .store(new.owner.to_word(), Ordering::Relaxed);
        mr.backing_kind.store(new.backing.kind, Ordering::Relaxed);
        mr.backing_fd_or_sysv_id
            .store(new.backing.fd_or_sysv_id, Ordering::Relaxed);
        mr.backing_inode.store(new.backing.inode, Ordering::Relaxed);
        mr.backing_offset
            .store(new.backing.offset, Ordering::Relaxed);
        mr.owner_address.store(new.owner_address, Ordering::Relaxed);
        publish_key(mr, key);
        table.used_slot_count += 1;
        debug_assert!(!table.windows.is_window_slot(index));
        Ok(())
    }

    /// Returns a slot in which `key` can be entered.
    ///
    /// # Errors
    /// Returns the errors of [`register_under_given_key`](Self::register_under_given_key).
    #[allow(clippy::unused_self)] // `table` is what its lock protects
    pub(super) fn find_free_slot_for_key<'f>(
        &self,
        fabric: &'f Fabric,
        table: &ProcessPrivateKeyTableState,
        key: u32,
    ) -> Result<(usize, &'f MrShared), i32> {
        if table.used_slot_count >= MR_SLOTS / 2 {
            return Err(libc::ENOMEM);
        }
        let me = &fabric.this_process.segment;
        let start = hash_of_key_prefix(me.header().key_hash_secret.load(Ordering::Relaxed), key);
        // Reserve memory for the slots before reading them. If /dev/shm is full, reading a page
        // without memory raises SIGBUS.
        let begin = start % MR_SLOTS;
        let wrapped = (begin + MAX_PROBED_SLOTS).saturating_sub(MR_SLOTS);
        for (first, count) in [(begin, MAX_PROBED_SLOTS - wrapped), (0, wrapped)] {
            if count > 0 {
                let at = MRS_AT + first * size_of::<MrShared>();
                fabric
                    .back_with_memory(at, count * size_of::<MrShared>())
                    .map_err(|_| libc::ENOMEM)?;
            }
        }
        let places = || {
            (0..MAX_PROBED_SLOTS).filter_map(move |i| {
                let index = (start + i) % MR_SLOTS;
                me.mr(index).map(|mr| (index, mr))
            })
        };
        let taken = |(index, mr): (usize, &MrShared)| {
            let there = match table.windows.key_at(index) {
                Some(window) => window,
                None => key_of_generation_and_key(mr.generation_and_key.load(Ordering::Relaxed)),
            };
            there != 0 && key_prefix(there) == key_prefix(key)
        };
        if key_prefix(key) == 0 || places().any(taken) {
            return Err(libc::EEXIST);
        }
        places()
            .find(|&(index, mr)| {
                key_of_generation_and_key(mr.generation_and_key.load(Ordering::Relaxed)) == 0
                    && !table.windows.is_window_slot(index)
            })
            .ok_or(libc::EEXIST)
    }

    /// Invalidates `key` and waits until no thread accesses its region any more. Returns false if another
    /// process has invalidated the key already.
    ///
    /// # Errors
    /// Returns `EBUSY` while memory windows are bound to the region.
    pub fn deregister(&self, fabric: &Fabric, key: u32) -> Result<bool, i32> {
        let mut table = self.lock_private_table();
        let Some((index, mr)) = find_slot_of_key(&fabric.this_process, key) else {
            // Another process has removed the key, but `used_slot_count` still counts the region's slot.
            table.used_slot_count -= 1;
            return Ok(false);
        };
        if table.windows.has_bound_windows(index) {
            return Err(libc::EBUSY);
        }
        let ours = remove_key(mr, key).is_some();
        table.used_slot_count -= 1;
        drop(table);
        wait_until_unpinned(fabric, &fabric.this_process, index);
        signal_backing_release(&fabric.this_process, mr);
        Ok(ours)
    }

    /// Keeps region `index` of `peer` registered while the result lives. A thread holds at most two pins.
    ///
    /// Returns `None` if the region's entry is no longer `entry`, or if shared memory is full at the thread's
    /// first access to a region.
    #[inline(always)]
    pub fn pin_region(
        &'static self,
        fabric: &'static Fabric,
        peer: &Peer,
        index: usize,
        entry: u64,
    ) -> Option<RegionPin> {
        self.hazards.pin_region(fabric, peer, index, entry)
    }

    /// Returns the calling thread's hazard slot, if the thread has claimed one.
    #[inline(always)]
    pub fn hazard_slot_of_this_thread(&'static self) -> Option<&'static HazardSlot> {
        self.hazards.slot_of_this_thread()
    }

    /// Pins a region as [`pin_region`](Self::pin_region) does, in a free word of the calling thread's hazard slot.
    #[inline(always)]
    pub fn pin_in_hazard_word(
        &self,
        hazard: &'static AtomicU64,
        peer: &Peer,
        index: usize,
        entry: u64,
    ) -> Option<RegionPin> {
        self.hazards.pin_in_hazard_word(hazard, peer, index, entry)
    }
}

/// Invalidates a key of another process, and returns the owner of its region.
///
/// The owner keeps its resources for the region until the owner itself deregisters the region.
///
/// # Errors
/// Returns `ENOENT` if `owner` has no such region. Returns `EBUSY` while memory windows are bound to it.
pub fn deregister_remote(fabric: &Fabric, owner: &Peer, key: u32) -> Result<OwningPdOrQp, i32> {
    let (index, mr) = find_slot_of_key(owner, key).ok_or(libc::ENOENT)?;
    let belongs_to = OwningPdOrQp::from_word(mr.owner_pd_or_qp.load(Ordering::Relaxed));
    // SYNC POINT B: a thread that binds a window first sets ACCESS_WINDOWS, and then checks that
    // the key is still valid.
    let bound = || mr.access.load(Ordering::SeqCst) & ACCESS_HAS_WINDOWS != 0;
    if bound() {
        return Err(libc::EBUSY);
    }
    let taken = remove_key(mr, key).ok_or(libc::ENOENT)?;
    if bound() {
        let back = next_generation_and_key(taken, key);
        // This fails if the slot has changed since the key was removed. Then the owner has deregistered the region and
        // reused the slot, and there is no key to put back.
        let _ = mr.generation_and_key.compare_exchange(
            taken,
            back,
            Ordering::SeqCst,
            Ordering::Relaxed,
        );
        return Err(libc::EBUSY);
    }
    wait_until_unpinned(fabric, owner, index);
    signal_backing_release(owner, mr);
    Ok(belongs_to)
}

/// Makes peers drop their mappings of a region's memory.
fn signal_backing_release(owner: &Peer, mr: &MrShared) {
    if mr.backing_kind.load(Ordering::Relaxed) != BACKING_PRIVATE {
        owner
            .segment
            .header()
            .backing_release_count
            .fetch_add(1, Ordering::Relaxed);
    }
}
