//! Bind and invalidation of memory windows: keys that give access to a part of a memory region.

use std::sync::atomic::Ordering;

use nic_core::rights::OwningPdOrQp;

use super::hazards::wait_until_unpinned;
use super::key_slots::{
    find_slot_of_key, key_of_generation_and_key, key_prefix, publish_key, remove_window_key,
};
use super::table::{KeyTable, ProcessPrivateKeyTableState};
use super::windows::{BindRequest, MemoryWindow, WindowId, WindowType};
use crate::fabric::Fabric;
use crate::fabric::layout::*;

impl KeyTable {
    /// Allocates an unbound memory window, and returns its id and its initial key.
    ///
    /// # Errors
    /// Returns `ENOMEM` if the table or shared memory is full.
    pub fn alloc_window(
        &self,
        fabric: &Fabric,
        window_type: WindowType,
        pd: u32,
    ) -> Result<(WindowId, u32), i32> {
        let mut table = self.lock_private_table();
        for _ in 0..1000 {
            #[allow(clippy::cast_possible_truncation)] // 32 random bits are wanted
            let key = crate::fabric::random_nonzero() as u32;
            match self.find_free_slot_for_key(fabric, &table, key) {
                Ok((index, _)) => {
                    let window = MemoryWindow {
                        window_type,
                        pd,
                        current_or_last_key: key,
                        bound_region_index: None,
                    };
                    table.windows.windows.insert(index, window);
                    table.used_slot_count += 1;
                    return Ok((WindowId(index), key));
                }
                Err(libc::EEXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(libc::ENOMEM)
    }

    /// Deallocates a window, and unbinds it first if it is bound (`ibv_dealloc_mw(3)`).
    pub fn free_window(&self, fabric: &Fabric, WindowId(index): WindowId) {
        let mut table = self.lock_private_table();
        let bound = table
            .windows
            .windows
            .get(&index)
            .is_some_and(|w| w.bound_region_index.is_some());
        if bound && let Some(mr) = fabric.this_process.segment.mr(index) {
            remove_window_key(mr);
            // The table stays locked: the region must not be deregistered before its last access through the
            // window.
            wait_until_unpinned(fabric, &fabric.this_process, index);
        }
        table.windows.record_bound_region(fabric, index, None);
        table.windows.windows.remove(&index);
        table.used_slot_count -= 1;
    }

    /// Binds a window for queue pair `qpn` in protection domain `pd`. A request without a region or with
    /// length 0 unbinds a window of type 1.
    ///
    /// Returns false if the request breaks a rule of IBTA vol. 1, 10.6.7.2: `IBV_WC_MW_BIND_ERR`.
    pub fn bind_window(&self, fabric: &Fabric, (pd, qpn): (u32, u32), new: &BindRequest) -> bool {
        let mut table = self.lock_private_table();
        let WindowId(index) = new.window;
        let Some(window) = table.windows.windows.get(&index) else {
            return false;
        };
        let Some(place) = fabric.this_process.segment.mr(index) else {
            return false;
        };
        let key_fits = key_prefix(new.new_window_key) == key_prefix(window.current_or_last_key);
        let allowed = match window.window_type {
            WindowType::One => key_fits,
            // A window of type 2 must be invalidated before it is bound again, and is then bound under
            // another key.
            WindowType::Two => {
                key_fits
                    && new.new_window_key != window.current_or_last_key
                    && window.bound_region_index.is_none()
                    && new.len != 0
            }
        };
        if !allowed || window.pd != pd {
            return false;
        }
        let unbind = new.mr_key == 0 || new.len == 0;
        let region = if unbind {
            None
        } else {
            match bindable_region(fabric, &table, pd, new) {
                Some(region) => Some(region),
                None => return false,
            }
        };
        let owner = match window.window_type {
            WindowType::One => OwningPdOrQp::window_type_1(pd),
            WindowType::Two => OwningPdOrQp::window_type_2(qpn),
        };
        if window.bound_region_index.is_some() {
            remove_window_key(place);
            wait_until_unpinned(fabric, &fabric.this_process, index);
        }
        table
            .windows
            .record_bound_region(fabric, index, region.map(|(at, _)| at));
        // SYNC POINT B: another process that shares the domain may have deregistered the region.
        let gone = |mr: &MrShared| {
            key_of_generation_and_key(mr.generation_and_key.load(Ordering::SeqCst)) != new.mr_key
        };
        if region.is_some_and(|(_, mr)| gone(mr)) {
            table.windows.record_bound_region(fabric, index, None);
            return false;
        }
        if let Some(window) = table.windows.windows.get_mut(&index) {
            window.current_or_last_key = new.new_window_key;
        }
        if let Some((_, mr)) = region {
            write_window_entry(place, mr, new, owner);
            publish_key(place, new.new_window_key);
        }
        true
    }

    /// Invalidates a window of type 2 that queue pair `qpn` has bound, for a local or remote invalidation.
    ///
    /// Returns false if `key` is not the key of such a window. Neither a memory region of
    /// `ibv_reg_mr` nor a window of type 1 can be invalidated (IBTA vol. 1, 10.6.6.3).
    pub fn invalidate_window(&self, fabric: &Fabric, qpn: u32, key: u32) -> bool {
        let mut table = self.lock_private_table();
        let Some((index, mr)) = find_slot_of_key(&fabric.this_process, key) else {
            return false;
        };
        let owner = OwningPdOrQp::from_word(mr.owner_pd_or_qp.load(Ordering::Relaxed));
        if owner != OwningPdOrQp::window_type_2(qpn) || !table.windows.is_window_slot(index) {
            return false;
        }
        remove_window_key(mr);
        wait_until_unpinned(fabric, &fabric.this_process, index);
        table.windows.record_bound_region(fabric, index, None);
        true
    }
}

/// Returns the region of a bind request, if the window may be bound to it.
fn bindable_region<'f>(
    fabric: &'f Fabric,
    table: &ProcessPrivateKeyTableState,
    pd: u32,
    new: &BindRequest,
) -> Option<(usize, &'f MrShared)> {
    const REMOTE_CHANGE_ACCESS: u32 =
        (verbs_abi::IBV_ACCESS_REMOTE_WRITE | verbs_abi::IBV_ACCESS_REMOTE_ATOMIC).cast_unsigned();
    // Access flags that a bind may have. LOCAL_WRITE does not concern peers, but programs set it
    // and adapters accept it.
    const KNOWN_ACCESS_FLAGS: u32 = REMOTE_CHANGE_ACCESS
        | verbs_abi::IBV_ACCESS_LOCAL_WRITE.cast_unsigned()
        | (verbs_abi::IBV_ACCESS_REMOTE_READ | verbs_abi::IBV_ACCESS_ZERO_BASED).cast_unsigned();
    let (index, mr) = find_slot_of_key(&fabric.this_process, new.mr_key)?;
    let has = |access: verbs_abi::ibv_access_flags| {
        mr.access.load(Ordering::Relaxed) & access.cast_unsigned() != 0
    };
    let first = mr.iova.load(Ordering::Relaxed);
    let inside = new
        .addr
        .checked_sub(first)
        .and_then(|o| o.checked_add(new.len))
        .is_some_and(|end| end <= mr.len.load(Ordering::Relaxed));
    let good = !table.windows.is_window_slot(index)
        && mr.owner_pd_or_qp.load(Ordering::Relaxed) == pd
        && inside
        && new.access & !KNOWN_ACCESS_FLAGS == 0
        && has(verbs_abi::IBV_ACCESS_MW_BIND)
        && !has(verbs_abi::IBV_ACCESS_ZERO_BASED)
        && (new.access & REMOTE_CHANGE_ACCESS == 0 || has(verbs_abi::IBV_ACCESS_LOCAL_WRITE));
    good.then_some((index, mr))
}

/// Writes the description of a window's bytes into its slot.
fn write_window_entry(place: &MrShared, mr: &MrShared, new: &BindRequest, owner: OwningPdOrQp) {
    let skipped = new.addr - mr.iova.load(Ordering::Relaxed);
    let zero_based = new.access & verbs_abi::IBV_ACCESS_ZERO_BASED.cast_unsigned() != 0;
    let copy = |to: &std::sync::atomic::AtomicU32, from: &std::sync::atomic::AtomicU32| {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    let addr = if zero_based { 0 } else { new.addr };
    place.access.store(new.access, Ordering::Relaxed);
    place
        .owner_pd_or_qp
        .store(owner.to_word(), Ordering::Relaxed);
    place.iova.store(addr, Ordering::Relaxed);
    place.len.store(new.len, Ordering::Relaxed);
    copy(&place.backing_kind, &mr.backing_kind);
    copy(&place.backing_fd_or_sysv_id, &mr.backing_fd_or_sysv_id);
    let inode = mr.backing_inode.load(Ordering::Relaxed);
    place.backing_inode.store(inode, Ordering::Relaxed);
    let offset = mr.backing_offset.load(Ordering::Relaxed) + skipped;
    place.backing_offset.store(offset, Ordering::Relaxed);
    let base = mr.owner_address.load(Ordering::Relaxed) + skipped;
    place.owner_address.store(base, Ordering::Relaxed);
}
