//! The memory that the SGEs of a work request name: of this process, or of one that shares its protection domain.

use std::mem::MaybeUninit;

use verbs_abi::*;

use crate::device::MAX_SGE;
use crate::nic::Nic;
use crate::region_cache::RegionCache;
use crate::why::{self, FailureCause, MemorySide, NamedMemoryRange};
use nic_core::rights::{
    Access, PermittedRange, QpMemoryRights, RegionGrant, authorize, authorize_region,
};
use shm::keys::RegionPin;
use shm::mem::AccessibleRegion;

/// Room for copies of the SGEs of a work request at an address that is not naturally aligned. Programs put SGEs into
/// packed structures (libiscsi's `iser_rx_desc`), and C reads them there.
pub(crate) struct AlignedSges([MaybeUninit<ibv_sge>; MAX_SGE as usize]);

impl AlignedSges {
    #[inline(always)]
    pub(crate) const fn none() -> Self {
        Self([const { MaybeUninit::uninit() }; MAX_SGE as usize])
    }

    /// Returns the SGEs at `list`, whatever its alignment.
    ///
    /// # Safety
    /// `list` has `count` SGEs, at most [`MAX_SGE`], which do not change while they are used.
    #[inline(always)]
    pub(crate) unsafe fn align_sges(&mut self, list: *const ibv_sge, count: usize) -> &[ibv_sge] {
        // SAFETY: contract of this function.
        unsafe {
            if list.is_aligned() {
                std::slice::from_raw_parts(list, count)
            } else {
                self.copy_sges(list, count)
            }
        }
    }

    /// # Safety
    /// As for [`align_sges`](Self::align_sges).
    #[cold]
    unsafe fn copy_sges(&mut self, list: *const ibv_sge, count: usize) -> &[ibv_sge] {
        for (i, copy) in self.0.iter_mut().take(count).enumerate() {
            // SAFETY: one of the `count`, at any address.
            copy.write(unsafe { list.add(i).read_unaligned() });
        }
        let count = count.min(self.0.len());
        // SAFETY: `count` entries were written just now.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), count) }
    }
}

/// The reason why an SGE gives no access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SgeError {
    /// There is no such region, or it does not allow the access.
    Protection,
    /// The region has no memory (`ibv_alloc_null_mr(3)`), or belongs to another process and is not mapped here. Its
    /// SGEs have no address in this process.
    Unmapped,
}

/// The memory region that the last SGE named, pinned while a run of work requests is executed. `WRITE` tells whether
/// the region is written or read. A run usually uses one region, and a look-up for each work request would cost as much
/// as the work request.
pub(crate) struct LastRegion<const WRITE: bool> {
    lkey: u32,
    grant: RegionGrant,
    mapped_base: *mut u8,
    pin: Option<RegionPin>,
}

impl<const WRITE: bool> LastRegion<WRITE> {
    pub(crate) const fn none() -> Self {
        Self {
            lkey: 0,
            grant: RegionGrant::NOTHING,
            mapped_base: std::ptr::null_mut(),
            pin: None,
        }
    }

    /// Returns the address of a buffer in this process, valid until the window moves.
    #[inline(always)]
    pub(crate) fn buffer_address(
        &mut self,
        nic: &'static Nic,
        pd: u32,
        cache: &mut RegionCache,
        sge: &ibv_sge,
    ) -> Result<*mut u8, SgeError> {
        if sge.lkey == self.lkey
            && let Ok(at) = self.grant.permit_range(sge.addr, sge.length.into())
        {
            return Ok(self.mapped_base.wrapping_add(at.offset() as usize));
        }
        self.move_to_region_of_sge(nic, pd, cache, sge)
    }

    #[inline(never)]
    fn move_to_region_of_sge(
        &mut self,
        nic: &'static Nic,
        pd: u32,
        cache: &mut RegionCache,
        sge: &ibv_sge,
    ) -> Result<*mut u8, SgeError> {
        self.release_region();
        let (region, at, pin) = check_and_pin_sge(nic, cache, pd, sge, WRITE)?;
        let here = region.mapped_address(at).ok_or(SgeError::Unmapped)?;
        // In a region of the whole address space, the mapping is looked up each time.
        if !at.is_in_whole_address_space_region()
            && let Ok(grant) = authorize_region(
                &region.rights,
                local_access(WRITE),
                &QpMemoryRights::for_local_access(pd),
            )
        {
            *self = Self {
                lkey: sge.lkey,
                grant,
                mapped_base: here.wrapping_sub(at.offset() as usize),
                pin: Some(pin),
            };
        }
        Ok(here)
    }

    /// Returns the region of the window, for use while the window does not move.
    #[inline(always)]
    pub(crate) fn current_values(&self) -> LastRegionValues {
        LastRegionValues {
            lkey: self.lkey,
            grant: self.grant,
            mapped_base: self.mapped_base,
        }
    }

    /// Releases the region: a thread has two pins, and later code needs them.
    pub(crate) fn release_region(&mut self) {
        self.pin = None;
        self.grant = RegionGrant::NOTHING;
    }
}

/// The region of a [`LastRegion`] in registers.
#[derive(Clone, Copy)]
pub(crate) struct LastRegionValues {
    lkey: u32,
    grant: RegionGrant,
    mapped_base: *mut u8,
}

impl LastRegionValues {
    /// Returns the address in this process of the first `len` bytes of a buffer, if they lie in the region.
    #[inline(always)]
    pub(crate) fn buffer_address(&self, sge: &ibv_sge, len: usize) -> Option<*mut u8> {
        if sge.lkey != self.lkey {
            return None;
        }
        let at = self.grant.permit_range(sge.addr, len as u64).ok()?;
        Some(self.mapped_base.wrapping_add(at.offset() as usize))
    }
}

/// Returns the access that an SGE needs.
#[inline(always)]
fn local_access(write: bool) -> Access {
    if write {
        Access::LocalWrite
    } else {
        Access::LocalRead
    }
}

/// Checks the bytes that an SGE names, for reading or writing. Returns their region, the permitted range and the
/// region's pin.
#[inline(always)]
pub(crate) fn check_and_pin_sge<'c>(
    nic: &'static Nic,
    cache: &'c mut RegionCache,
    pd: u32,
    sge: &ibv_sge,
    write: bool,
) -> Result<(&'c AccessibleRegion, PermittedRange, RegionPin), SgeError> {
    let (region, pin) = cache
        .get_pinned(nic, nic.this_process(), sge.lkey, || pd)
        .map_err(|error| {
            why::note_cause(if is_made_to_fail(std::slice::from_ref(sge)) {
                FailureCause::InjectedFault
            } else {
                error.failure_cause(MemorySide::Local, named_range_of_sge(sge))
            });
            SgeError::Protection
        })?;
    let range = (sge.addr, sge.length.into());
    let at = authorize(
        &region.rights,
        range,
        local_access(write),
        &QpMemoryRights::for_local_access(pd),
    )
    .map_err(|denied| {
        let (access, rights) = (local_access(write), &region.rights);
        why::note_cause(FailureCause::of_denied_access(
            denied,
            MemorySide::Local,
            named_range_of_sge(sge),
            access,
            rights,
        ));
        SgeError::Protection
    })?;
    if at.is_in_whole_address_space_region() && !is_sge_mapped(region, sge, write) {
        why::note_cause(FailureCause::MemoryInaccessible {
            side: MemorySide::Local,
        });
        return Err(SgeError::Protection);
    }
    Ok((region, at, pin))
}

/// The address in the only SGE of a receive WR that a rule of the fault plan makes fail.
const FAILING_SGE_ADDR: u64 = u64::from_be_bytes(*b"\xffinjectd");

/// Returns an SGE of `length` bytes that makes a receive WR fail: its key is of no region, since no L_Key of this device
/// is 0 (`shm::keys`).
pub(crate) fn make_failing_sge(length: u32) -> ibv_sge {
    ibv_sge {
        addr: FAILING_SGE_ADDR,
        length,
        lkey: 0,
    }
}

/// Returns true if a rule of the fault plan has made the receive WR with these SGEs fail.
#[cold]
pub(crate) fn is_made_to_fail(sges: &[ibv_sge]) -> bool {
    matches!(sges, [only] if only.addr == FAILING_SGE_ADDR && only.lkey == 0)
        && crate::faults::has_plan()
}

fn named_range_of_sge(sge: &ibv_sge) -> NamedMemoryRange {
    NamedMemoryRange {
        addr: sge.addr,
        len: sge.length.into(),
        key: sge.lkey,
    }
}

/// Returns true if an SGE in a region of the whole address space points to memory.
#[cold]
fn is_sge_mapped(region: &AccessibleRegion, sge: &ibv_sge, write: bool) -> bool {
    // The memory of another process is not known here; the system call checks it.
    !region.is_of_this_process || shm::mem::prefault(sge.addr, sge.length.into(), write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sges_may_lie_anywhere() {
        let sge = |n: u32| ibv_sge {
            addr: u64::from(n) << 40,
            length: n,
            lkey: n + 1,
        };
        let mut memory = [0u64; 8];
        for shift in 0..8 {
            let list = memory
                .as_mut_ptr()
                .cast::<u8>()
                .wrapping_add(shift)
                .cast::<ibv_sge>();
            // SAFETY: 7 + 3 * 16 bytes are 55 of 64.
            let read = unsafe {
                for n in 0..3 {
                    list.add(n as usize).write_unaligned(sge(n));
                }
                AlignedSges::none().align_sges(list, 3).to_vec()
            };
            let seen: Vec<_> = read.iter().map(|s| (s.addr, s.length, s.lkey)).collect();
            assert_eq!(
                seen,
                [(0, 0, 1), (1 << 40, 1, 2), (2 << 40, 2, 3)],
                "{shift}"
            );
        }
    }
}
