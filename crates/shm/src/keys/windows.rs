//! Memory windows: keys to a part of a memory region, which a program binds and invalidates by work requests.
//!
//! A window keeps its place in the table of keys from allocation to deallocation; bound, the place describes the
//! bytes as a region's would, so peers reach them in the same way. What tells it from a region is its
//! [owner](nic_core::rights::Owner).

use std::collections::HashMap;

use super::*;

/// Type of a memory window: `ibv_alloc_mw(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// For every queue pair of its protection domain.
    One,
    /// For the queue pair that bound it alone (type 2B of IBTA vol. 1, 10.6.7.2.3: within its protection domain).
    Two,
}

/// A window's place in the table of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowId(usize);

/// What a program asks for when it binds a window.
#[derive(Clone, Copy, Debug)]
pub struct BindRequest {
    /// The window.
    pub window: WindowId,
    /// The key that the window gets.
    pub key: u32,
    /// L_Key of the region; 0 for none.
    pub mr_key: u32,
    /// First address of the bound range.
    pub addr: u64,
    /// Length of the bound range in bytes; 0 unbinds.
    pub len: u64,
    /// `IBV_ACCESS_*`.
    pub access: u32,
}

struct Window {
    window_type: WindowType,
    pd: u32,
    /// The key that it has, or would have had last.
    key: u32,
    /// Place of the region that it is bound to.
    bound: Option<usize>,
}

/// The windows of this process, by place, and how many are bound to each region.
#[derive(Default)]
pub(super) struct Windows {
    windows: HashMap<usize, Window>,
    bound: HashMap<usize, usize>,
}

impl Windows {
    pub(super) fn is_place(&self, index: usize) -> bool {
        self.windows.contains_key(&index)
    }

    pub(super) fn key_at(&self, index: usize) -> Option<u32> {
        self.windows.get(&index).map(|w| w.key)
    }

    pub(super) fn bound_to(&self, region: usize) -> bool {
        self.bound.contains_key(&region)
    }

    /// The window at `index` is bound to `region` from now on, or to none.
    fn set_bound(&mut self, fabric: &Fabric, index: usize, region: Option<usize>) {
        let Some(window) = self.windows.get_mut(&index) else {
            return;
        };
        let access = |region| Some(&fabric.me.segment.mr(region)?.access);
        let before = std::mem::replace(&mut window.bound, region);
        if let Some(region) = region {
            *self.bound.entry(region).or_default() += 1;
            // SYNC POINT B
            access(region).map(|a| a.fetch_or(ACCESS_WINDOWS, Ordering::SeqCst));
        }
        if let Some(before) = before
            && let Some(n) = self.bound.get_mut(&before)
        {
            *n -= 1;
            if *n == 0 {
                self.bound.remove(&before);
                access(before).map(|a| a.fetch_and(!ACCESS_WINDOWS, Ordering::SeqCst));
            }
        }
    }
}

impl Keys {
    /// Makes a window that is not bound, and the key that it starts with.
    ///
    /// # Errors
    /// `ENOMEM` where the table or shared memory is full.
    pub fn alloc_window(
        &self,
        fabric: &Fabric,
        window_type: WindowType,
        pd: u32,
    ) -> Result<(WindowId, u32), i32> {
        let mut table = lock(&self.registering);
        for _ in 0..1000 {
            #[allow(clippy::cast_possible_truncation)] // 32 random bits are wanted
            let key = crate::fabric::random_nonzero() as u32;
            match self.free_place(fabric, &table, key) {
                Ok((index, _)) => {
                    let window = Window {
                        window_type,
                        pd,
                        key,
                        bound: None,
                    };
                    table.windows.windows.insert(index, window);
                    table.used += 1;
                    return Ok((WindowId(index), key));
                }
                Err(libc::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(libc::ENOMEM)
    }

    /// Gives a window up; "it is unbound" first (`ibv_dealloc_mw(3)`).
    pub fn free_window(&self, fabric: &Fabric, WindowId(index): WindowId) {
        let mut table = lock(&self.registering);
        let bound = table
            .windows
            .windows
            .get(&index)
            .is_some_and(|w| w.bound.is_some());
        if bound && let Some(mr) = fabric.me.segment.mr(index) {
            invalidate(mr);
            // Under the lock: the region must not be deregistered before its last access through the window.
            wait_for_accesses(fabric, &fabric.me, index);
        }
        table.windows.set_bound(fabric, index, None);
        table.windows.windows.remove(&index);
        table.used -= 1;
    }

    /// Binds a window for queue pair `qpn` in protection domain `pd`; without a region or a length it unbinds
    /// one of type 1. False where the request breaks a rule of IBTA vol. 1, 10.6.7.2: `IBV_WC_MW_BIND_ERR`.
    pub fn bind(&self, fabric: &Fabric, (pd, qpn): (u32, u32), new: &BindRequest) -> bool {
        let mut table = lock(&self.registering);
        let WindowId(index) = new.window;
        let Some(window) = table.windows.windows.get(&index) else {
            return false;
        };
        let Some(place) = fabric.me.segment.mr(index) else {
            return false;
        };
        let key_fits = prefix(new.key) == prefix(window.key);
        let allowed = match window.window_type {
            WindowType::One => key_fits,
            // A window of type 2 is invalidated before it is bound again, and then under another key.
            WindowType::Two => {
                key_fits && new.key != window.key && window.bound.is_none() && new.len != 0
            }
        };
        if !allowed || window.pd != pd {
            return false;
        }
        let unbind = new.mr_key == 0 || new.len == 0;
        let region = if unbind {
            None
        } else {
            match bindable(fabric, &table, pd, new) {
                Some(region) => Some(region),
                None => return false,
            }
        };
        let owner = match window.window_type {
            WindowType::One => Owner::window_type_1(pd),
            WindowType::Two => Owner::window_type_2(qpn),
        };
        if window.bound.is_some() {
            invalidate(place);
            wait_for_accesses(fabric, &fabric.me, index);
        }
        table
            .windows
            .set_bound(fabric, index, region.map(|(at, _)| at));
        // SYNC POINT B: another process that shares the domain may have deregistered the region.
        let gone = |mr: &MrShared| key_of(mr.entry.load(Ordering::SeqCst)) != new.mr_key;
        if region.is_some_and(|(_, mr)| gone(mr)) {
            table.windows.set_bound(fabric, index, None);
            return false;
        }
        if let Some(window) = table.windows.windows.get_mut(&index) {
            window.key = new.key;
        }
        if let Some((_, mr)) = region {
            describe(place, mr, new, owner);
            enter(place, new.key);
        }
        true
    }

    /// Invalidates a window of type 2 that queue pair `qpn` has bound: a local or a remote invalidation. False
    /// for any other key: "the R_Key of a memory region that was registered by the register verb cannot be
    /// invalidated" (IBTA vol. 1, 10.6.6.3), nor can a window of type 1.
    pub fn invalidate_window(&self, fabric: &Fabric, qpn: u32, key: u32) -> bool {
        let mut table = lock(&self.registering);
        let Some((index, mr)) = find(&fabric.me, key) else {
            return false;
        };
        let owner = Owner::from_word(mr.pd.load(Ordering::Relaxed));
        if owner != Owner::window_type_2(qpn) || !table.windows.is_place(index) {
            return false;
        }
        invalidate(mr);
        wait_for_accesses(fabric, &fabric.me, index);
        table.windows.set_bound(fabric, index, None);
        true
    }
}

/// The region that a window is to be bound to, if it may be.
fn bindable<'f>(
    fabric: &'f Fabric,
    table: &Table,
    pd: u32,
    new: &BindRequest,
) -> Option<(usize, &'f MrShared)> {
    const REMOTE_CHANGES: u32 =
        (verbs_abi::IBV_ACCESS_REMOTE_WRITE | verbs_abi::IBV_ACCESS_REMOTE_ATOMIC).cast_unsigned();
    // Local write says nothing about peers; programs set it, and adapters let it pass.
    const KNOWN: u32 = REMOTE_CHANGES
        | verbs_abi::IBV_ACCESS_LOCAL_WRITE.cast_unsigned()
        | (verbs_abi::IBV_ACCESS_REMOTE_READ | verbs_abi::IBV_ACCESS_ZERO_BASED).cast_unsigned();
    let (index, mr) = find(&fabric.me, new.mr_key)?;
    let has = |access: verbs_abi::ibv_access_flags| {
        mr.access.load(Ordering::Relaxed) & access.cast_unsigned() != 0
    };
    let first = mr.addr.load(Ordering::Relaxed);
    let inside = new
        .addr
        .checked_sub(first)
        .and_then(|o| o.checked_add(new.len))
        .is_some_and(|end| end <= mr.len.load(Ordering::Relaxed));
    let good = !table.windows.is_place(index)
        && mr.pd.load(Ordering::Relaxed) == pd
        && inside
        && new.access & !KNOWN == 0
        && has(verbs_abi::IBV_ACCESS_MW_BIND)
        && !has(verbs_abi::IBV_ACCESS_ZERO_BASED)
        && (new.access & REMOTE_CHANGES == 0 || has(verbs_abi::IBV_ACCESS_LOCAL_WRITE));
    good.then_some((index, mr))
}

/// Describes the bytes of a window in its place.
fn describe(place: &MrShared, mr: &MrShared, new: &BindRequest, owner: Owner) {
    let skipped = new.addr - mr.addr.load(Ordering::Relaxed);
    let zero_based = new.access & verbs_abi::IBV_ACCESS_ZERO_BASED.cast_unsigned() != 0;
    let copy = |to: &std::sync::atomic::AtomicU32, from: &std::sync::atomic::AtomicU32| {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    let addr = if zero_based { 0 } else { new.addr };
    place.access.store(new.access, Ordering::Relaxed);
    place.pd.store(owner.word(), Ordering::Relaxed);
    place.addr.store(addr, Ordering::Relaxed);
    place.len.store(new.len, Ordering::Relaxed);
    copy(&place.backing, &mr.backing);
    copy(&place.handle, &mr.handle);
    let inode = mr.inode.load(Ordering::Relaxed);
    place.inode.store(inode, Ordering::Relaxed);
    let offset = mr.offset.load(Ordering::Relaxed) + skipped;
    place.offset.store(offset, Ordering::Relaxed);
    let base = mr.base.load(Ordering::Relaxed) + skipped;
    place.base.store(base, Ordering::Relaxed);
}
