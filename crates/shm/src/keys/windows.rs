//! The memory windows of this process, and the regions to which they are bound.
//!
//! A window keeps its slot in the table of keys from allocation to deallocation. While the window is bound,
//! the slot describes its bytes like those of a region, so peers access them in the same way. The
//! [owner](nic_core::rights::OwningPdOrQp) distinguishes a window from a region.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use crate::fabric::Fabric;

/// Bit of [`MrShared::access`](crate::fabric::layout::MrShared::access): memory windows are bound to the region.
pub(super) const ACCESS_HAS_WINDOWS: u32 = 1 << 31;

/// Type of a memory window, as in `ibv_alloc_mw(3)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// Usable by every queue pair of its protection domain.
    One,
    /// Usable only by the queue pair that bound it (type 2B of IBTA vol. 1, 10.6.7.2.3: within its protection
    /// domain).
    Two,
}

/// Index of a window in the table of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowId(pub(super) usize);

/// The parameters of a bind request.
#[derive(Clone, Copy, Debug)]
pub struct BindRequest {
    /// The window to bind.
    pub window: WindowId,
    /// The new key of the window.
    pub new_window_key: u32,
    /// L_Key of the region; 0 for none.
    pub mr_key: u32,
    /// First address of the bound range.
    pub addr: u64,
    /// Length of the bound range in bytes; 0 unbinds.
    pub len: u64,
    /// `IBV_ACCESS_*`.
    pub access: u32,
}

pub(super) struct MemoryWindow {
    pub(super) window_type: WindowType,
    pub(super) pd: u32,
    /// Key of the window: the current key, or the last key if the window is unbound.
    pub(super) current_or_last_key: u32,
    /// Index of the region to which the window is bound; `None` if the window is unbound.
    pub(super) bound_region_index: Option<usize>,
}

/// The windows of this process by index, and the number of windows bound to each region.
#[derive(Default)]
pub(super) struct MemoryWindows {
    pub(super) windows: HashMap<usize, MemoryWindow>,
    windows_per_region: HashMap<usize, usize>,
}

impl MemoryWindows {
    pub(super) fn is_window_slot(&self, index: usize) -> bool {
        self.windows.contains_key(&index)
    }

    pub(super) fn key_at(&self, index: usize) -> Option<u32> {
        self.windows.get(&index).map(|w| w.current_or_last_key)
    }

    pub(super) fn has_bound_windows(&self, region: usize) -> bool {
        self.windows_per_region.contains_key(&region)
    }

    /// Records that the window at `index` is bound to `region`, or to none.
    pub(super) fn record_bound_region(
        &mut self,
        fabric: &Fabric,
        index: usize,
        region: Option<usize>,
    ) {
        let Some(window) = self.windows.get_mut(&index) else {
            return;
        };
        let access = |region| Some(&fabric.this_process.segment.mr(region)?.access);
        let before = std::mem::replace(&mut window.bound_region_index, region);
        if let Some(region) = region {
            *self.windows_per_region.entry(region).or_default() += 1;
            // SYNC POINT B
            access(region).map(|a| a.fetch_or(ACCESS_HAS_WINDOWS, Ordering::SeqCst));
        }
        if let Some(before) = before
            && let Some(n) = self.windows_per_region.get_mut(&before)
        {
            *n -= 1;
            if *n == 0 {
                self.windows_per_region.remove(&before);
                access(before).map(|a| a.fetch_and(!ACCESS_HAS_WINDOWS, Ordering::SeqCst));
            }
        }
    }
}
