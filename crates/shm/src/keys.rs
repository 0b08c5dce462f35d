//! L_Keys and R_Keys: the table of memory regions in each segment, and how a region is kept from being
//! deregistered while it is accessed.
//!
//! A key is 32 random bits; the table is a hash table with a secret of its process, so neither keys nor
//! their places can be guessed. One table serves both keys, as one number serves as both.
//!
//! The upper 24 bits of a key choose its place, and no two keys have them in common: the lower eight are the
//! tag of a memory window, which changes with each of its bindings (`ibv_inc_rkey(3)`).
//!
//! # Deregistration against access
//!
//! Whoever accesses a region first writes its name into the hazard slot of its thread and then looks again
//! whether the key is still valid. Deregistration clears the key and then waits until no hazard slot of any
//! process names the region. Between the two stores and loads stands a full barrier, but only on the side of
//! the rare deregistration: `membarrier(2)` makes every running thread of the fabric's processes pass one.
//! An access so costs two plain stores to its own cache line.

mod windows;

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence, fence};

use nic_core::rights::Owner;

use crate::barrier;
use crate::fabric::layout::*;
use crate::fabric::{Fabric, Peer};
use crate::mem::RangeBacking;

pub use windows::{BindRequest, WindowId, WindowType};

use windows::Windows;

/// Slots that are searched from a key's hash on.
const PROBES: usize = 16;

/// Bit of [`MrShared::access`]: memory windows are bound to the region.
const ACCESS_WINDOWS: u32 = 1 << 31;

fn hash(secret: u64, key: u32) -> usize {
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
fn prefix(key: u32) -> u32 {
    key >> 8
}

/// The entry that follows `entry` in its place, for a region with `key`.
fn next_entry(entry: u64, key: u32) -> u64 {
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

/// What a new region is.
pub struct NewRegion<'a> {
    /// Number of its protection domain.
    pub owner: Owner,
    /// What work requests call its first byte.
    pub addr: u64,
    /// Where its first byte lies.
    pub base: u64,
    /// Length in bytes.
    pub len: u64,
    /// `ibv_access_flags`.
    pub access: u32,
    /// What lies behind it.
    pub backing: &'a RangeBacking,
}

/// What only this process knows of its keys.
#[derive(Default)]
struct Table {
    /// Places in use.
    used: usize,
    windows: Windows,
}

/// Registrations and hazards of this process.
pub struct Keys {
    /// Serialises registration.
    registering: Mutex<Table>,
    free_hazards: Mutex<Vec<usize>>,
    /// `membarrier` is not there: every access needs a full fence.
    fence_on_access: bool,
}

impl Keys {
    /// An empty table.
    #[allow(clippy::new_without_default)] // 4096 hazards are no default value
    pub fn new() -> Self {
        Self {
            registering: Mutex::new(Table::default()),
            free_hazards: Mutex::new((0..HAZARDS).rev().collect()),
            fence_on_access: !barrier::register(),
        }
    }

    /// Enters a region; its key, which is none that is `taken` elsewhere.
    ///
    /// # Errors
    /// `ENOMEM` where the table or shared memory is full.
    pub fn register(
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
            match self.register_as(fabric, key, new) {
                Ok(()) => return Ok(key),
                Err(libc::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(libc::ENOMEM)
    }

    /// Enters a region under a key that is wanted.
    ///
    /// # Errors
    /// `EEXIST` where the key is taken, is 0, or has no room in the table; `ENOMEM` as for
    /// [`register`](Self::register).
    pub fn register_as(&self, fabric: &Fabric, key: u32, new: &NewRegion<'_>) -> Result<(), i32> {
        let mut table = lock(&self.registering);
        let (index, mr) = self.free_place(fabric, &table, key)?;
        mr.access.store(new.access, Ordering::Relaxed);
        mr.addr.store(new.addr, Ordering::Relaxed);
        mr.len.store(new.len, Ordering::Relaxed);
        mr.pd.store(new.owner.word(), Ordering::Relaxed);
        mr.backing.store(new.backing.kind, Ordering::Relaxed);
        mr.handle.store(new.backing.handle, Ordering::Relaxed);
        mr.inode.store(new.backing.inode, Ordering::Relaxed);
        mr.offset.store(new.backing.offset, Ordering::Relaxed);
        mr.base.store(new.base, Ordering::Relaxed);
        enter(mr, key);
        table.used += 1;
        debug_assert!(!table.windows.is_place(index));
        Ok(())
    }

    /// A place in which `key` can be entered.
    ///
    /// # Errors
    /// As for [`register_as`](Self::register_as).
    #[allow(clippy::unused_self)] // `table` is what its lock protects
    fn free_place<'f>(
        &self,
        fabric: &'f Fabric,
        table: &Table,
        key: u32,
    ) -> Result<(usize, &'f MrShared), i32> {
        if table.used >= MR_SLOTS / 2 {
            return Err(libc::ENOMEM);
        }
        let me = &fabric.me.segment;
        let start = hash(me.header().key_secret.load(Ordering::Relaxed), key);
        // Before they are looked at: where /dev/shm is full, reading what has no memory yet is a SIGBUS.
        let begin = start % MR_SLOTS;
        let wrapped = (begin + PROBES).saturating_sub(MR_SLOTS);
        for (first, count) in [(begin, PROBES - wrapped), (0, wrapped)] {
            if count > 0 {
                let at = MRS_AT + first * size_of::<MrShared>();
                fabric
                    .reserve(at, count * size_of::<MrShared>())
                    .map_err(|_| libc::ENOMEM)?;
            }
        }
        let places = || {
            (0..PROBES).filter_map(move |i| {
                let index = (start + i) % MR_SLOTS;
                me.mr(index).map(|mr| (index, mr))
            })
        };
        let taken = |(index, mr): (usize, &MrShared)| {
            let there = match table.windows.key_at(index) {
                Some(window) => window,
                None => key_of(mr.entry.load(Ordering::Relaxed)),
            };
            there != 0 && prefix(there) == prefix(key)
        };
        if prefix(key) == 0 || places().any(taken) {
            return Err(libc::EEXIST);
        }
        places()
            .find(|&(index, mr)| {
                key_of(mr.entry.load(Ordering::Relaxed)) == 0 && !table.windows.is_place(index)
            })
            .ok_or(libc::EEXIST)
    }

    /// Makes `key` invalid and waits until nobody accesses its region any more. False if another process has done so
    /// already.
    ///
    /// # Errors
    /// `EBUSY` while memory windows are bound to the region.
    pub fn deregister(&self, fabric: &Fabric, key: u32) -> Result<bool, i32> {
        let mut table = lock(&self.registering);
        let Some((index, mr)) = find(&fabric.me, key) else {
            // The place that it had counted.
            table.used -= 1;
            return Ok(false);
        };
        if table.windows.bound_to(index) {
            return Err(libc::EBUSY);
        }
        let ours = take(mr, key).is_some();
        table.used -= 1;
        drop(table);
        wait_for_accesses(fabric, &fabric.me, index);
        forget_backing(&fabric.me, mr);
        Ok(ours)
    }

    /// Keeps region `index` of `peer` registered while the result lives; `None` if its entry is no longer
    /// `entry`, or shared memory is full when the thread accesses a region for the first time. A thread holds at most two pins.
    #[inline(always)]
    pub fn pin(
        &'static self,
        fabric: &'static Fabric,
        peer: &Peer,
        index: usize,
        entry: u64,
    ) -> Option<Pin> {
        let hazard = match self.known_hazard() {
            Some(hazard) => hazard,
            None => claim(self, fabric)?,
        };
        let [first, second] = &hazard.mrs;
        let free = first.load(Ordering::Relaxed) == 0;
        self.pin_at(if free { first } else { second }, peer, index, entry)
    }

    /// Where the calling thread says what it accesses, if it has done so before.
    #[inline(always)]
    pub fn known_hazard(&'static self) -> Option<&'static Hazard> {
        // After a fork the child has keys of its own, and the claim is another process's.
        CLAIM
            .get()
            .filter(|claim| std::ptr::eq(claim.keys, self))
            .map(|claim| claim.hazard)
    }

    /// [`pin`](Self::pin) in a free place of the calling thread's hazard.
    #[inline(always)]
    pub fn pin_at(
        &self,
        hazard: &'static AtomicU64,
        peer: &Peer,
        index: usize,
        entry: u64,
    ) -> Option<Pin> {
        debug_assert_eq!(hazard.load(Ordering::Relaxed), 0);
        hazard.store(hazard_name(peer.slot, index), Ordering::Relaxed);
        // SYNC POINT H
        if self.fence_on_access {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        let pin = Pin { hazard };
        let mr = peer.segment.mr(index)?;
        (mr.entry.load(Ordering::Acquire) == entry).then_some(pin)
    }
}

/// Gives the region or window in a place its key: peers find it from now on.
fn enter(mr: &MrShared, key: u32) {
    let entry = mr.entry.load(Ordering::Relaxed);
    // SYNC POINT K: the other fields belong to this key (see `find`).
    mr.entry.store(next_entry(entry, key), Ordering::Release);
}

/// Makes `key` of another process invalid, as that one does with its own. It keeps what it has for the region until it
/// deregisters it, too. Returns whom the region belonged to.
///
/// # Errors
/// `ENOENT` where `owner` has no such region; `EBUSY` while memory windows are bound to it.
pub fn deregister_of(fabric: &Fabric, owner: &Peer, key: u32) -> Result<Owner, i32> {
    let (index, mr) = find(owner, key).ok_or(libc::ENOENT)?;
    let belongs_to = Owner::from_word(mr.pd.load(Ordering::Relaxed));
    // SYNC POINT B: whoever binds a window says so first, and then looks whether the key is still there.
    let bound = || mr.access.load(Ordering::SeqCst) & ACCESS_WINDOWS != 0;
    if bound() {
        return Err(libc::EBUSY);
    }
    let taken = take(mr, key).ok_or(libc::ENOENT)?;
    if bound() {
        let back = next_entry(taken, key);
        // Where it is not as it was left, its owner has deregistered it and used the place again.
        let _ = mr
            .entry
            .compare_exchange(taken, back, Ordering::SeqCst, Ordering::Relaxed);
        return Err(libc::EBUSY);
    }
    wait_for_accesses(fabric, owner, index);
    forget_backing(owner, mr);
    Ok(belongs_to)
}

/// Has peers drop their mappings of a region's memory.
fn forget_backing(owner: &Peer, mr: &MrShared) {
    if mr.backing.load(Ordering::Relaxed) != BACKING_PRIVATE {
        owner
            .segment
            .header()
            .mem_epoch
            .fetch_add(1, Ordering::Relaxed);
    }
}

/// Takes the key of a region away, unless somebody else has: what its entry is now.
fn take(mr: &MrShared, key: u32) -> Option<u64> {
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
fn invalidate(mr: &MrShared) {
    let entry = mr.entry.load(Ordering::Relaxed);
    mr.entry.store(next_entry(entry, 0), Ordering::SeqCst);
}

/// Waits until nobody accesses the region or window of `owner` at `index`, whose key has just become invalid.
fn wait_for_accesses(fabric: &Fabric, owner: &Peer, index: usize) {
    // SYNC POINT H
    barrier::everywhere();
    let name = hazard_name(owner.slot, index);
    for peer in fabric.all_peers() {
        let used = peer.segment.header().hazards_used.load(Ordering::Acquire);
        for i in 0..usize::try_from(used).unwrap_or(HAZARDS).min(HAZARDS) {
            let Some(hazard) = peer.segment.hazard(i) else {
                continue;
            };
            let mut waits = 0u32;
            while hazard.mrs.iter().any(|m| m.load(Ordering::Acquire) == name) && !peer.is_dead() {
                waits += 1;
                if waits < 100 {
                    std::thread::yield_now();
                } else {
                    // A copy of many megabytes is under way, or its process is stopped.
                    cancellation::sleep(std::time::Duration::from_micros(100));
                }
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn hazard_name(slot: usize, index: usize) -> u64 {
    (slot as u64) << 32 | index as u64
}

/// A region that stays registered.
pub struct Pin {
    hazard: &'static AtomicU64,
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        self.hazard.store(0, Ordering::Release);
    }
}

/// The hazard of a thread: claimed at its first access.
#[derive(Clone, Copy)]
struct Claim {
    keys: &'static Keys,
    hazard: &'static Hazard,
}

thread_local! {
    /// Without a destructor, so that an access finds it with one look.
    static CLAIM: Cell<Option<Claim>> = const { Cell::new(None) };
    static GIVE_BACK: GiveBack = const { GiveBack { slot: Cell::new(None) } };
}

#[cold]
fn claim(keys: &'static Keys, fabric: &'static Fabric) -> Option<&'static Hazard> {
    let slot = loop {
        match lock(&keys.free_hazards).pop() {
            Some(slot) => break slot,
            None => cancellation::sleep(std::time::Duration::from_millis(1)),
        }
    };
    let at = HAZARDS_AT + slot * size_of::<Hazard>();
    if let Err(e) = fabric.reserve(at, size_of::<Hazard>()) {
        // To use it all the same would be a SIGBUS: the work request fails instead.
        tracing::warn!("shared memory is used up: {e}");
        lock(&keys.free_hazards).push(slot);
        return None;
    }
    fabric
        .me
        .segment
        .header()
        .hazards_used
        .fetch_max(slot as u64 + 1, Ordering::SeqCst);
    let hazard = fabric.me.segment.hazard(slot)?;
    CLAIM.set(Some(Claim { keys, hazard }));
    // A thread that still uses verbs when its destructors have run keeps its hazard for good.
    let _ = GIVE_BACK.try_with(|give_back| give_back.slot.set(Some((keys, slot))));
    Some(hazard)
}

/// Gives the hazard of a thread back when it ends.
struct GiveBack {
    slot: Cell<Option<(&'static Keys, usize)>>,
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        CLAIM.set(None);
        if let Some((keys, slot)) = self.slot.get() {
            lock(&keys.free_hazards).push(slot);
        }
    }
}
