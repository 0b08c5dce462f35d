//! The memory that the SGEs of a work request name: this process's, or that of one that shares its
//! protection domain.

use std::mem::MaybeUninit;

use verbs_abi::*;

use crate::device::MAX_SGE;
use crate::nic::Nic;
use crate::region_cache::RegionCache;
use shm::keys::{IMPLICIT, Pin};
use shm::mem::Region;

/// Room for the SGEs of a work request that lie where a processor would not have them: programs put them into packed
/// structures (libiscsi's `iser_rx_desc`), and C reads them there.
pub(crate) struct Copies([MaybeUninit<ibv_sge>; MAX_SGE as usize]);

impl Copies {
    #[inline(always)]
    pub(crate) const fn none() -> Self {
        Self([const { MaybeUninit::uninit() }; MAX_SGE as usize])
    }

    /// The SGEs at `list`, wherever that is.
    ///
    /// # Safety
    /// There are `count` of them, at most [`MAX_SGE`], which nobody changes while they are used.
    #[inline(always)]
    pub(crate) unsafe fn of(&mut self, list: *const ibv_sge, count: usize) -> &[ibv_sge] {
        // SAFETY: contract of this function.
        unsafe {
            if list.is_aligned() {
                std::slice::from_raw_parts(list, count)
            } else {
                self.copied(list, count)
            }
        }
    }

    /// # Safety
    /// As for [`of`](Self::of).
    #[cold]
    unsafe fn copied(&mut self, list: *const ibv_sge, count: usize) -> &[ibv_sge] {
        for (i, copy) in self.0.iter_mut().take(count).enumerate() {
            // SAFETY: one of the `count`, at any address.
            copy.write(unsafe { list.add(i).read_unaligned() });
        }
        let count = count.min(self.0.len());
        // SAFETY: so many were written just now.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), count) }
    }
}

/// Why an SGE gives no access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SgeError {
    /// There is no such region, or it does not allow the access.
    Protection,
    /// The region has no memory (`ibv_alloc_null_mr(3)`), or belongs to another process and is not mapped here: an SGE
    /// of it has no address.
    Unmapped,
}

/// The memory region that the last SGE named, kept pinned while a run of work requests is executed, to be written or
/// to be read: a run usually goes to one region, and looking it up for each would cost as much as the work request.
pub(crate) struct Window<const WRITE: bool> {
    lkey: u32,
    addr: u64,
    len: u64,
    first: *mut u8,
    pin: Option<Pin>,
}

impl<const WRITE: bool> Window<WRITE> {
    pub(crate) const fn none() -> Self {
        Self {
            lkey: 0,
            addr: 0,
            len: 0,
            first: std::ptr::null_mut(),
            pin: None,
        }
    }

    /// The own address of a buffer, valid until the window moves.
    #[inline(always)]
    pub(crate) fn buffer(
        &mut self,
        nic: &'static Nic,
        pd: u32,
        cache: &mut RegionCache,
        sge: &ibv_sge,
    ) -> Result<*mut u8, SgeError> {
        let offset = sge.addr.wrapping_sub(self.addr);
        // `len` is 0 where there is no window, and lengths are below 2^63.
        if sge.lkey == self.lkey && offset < self.len && u64::from(sge.length) <= self.len - offset
        {
            return Ok(self.first.wrapping_add(offset as usize));
        }
        self.move_to(nic, pd, cache, sge)
    }

    #[inline(never)]
    fn move_to(
        &mut self,
        nic: &'static Nic,
        pd: u32,
        cache: &mut RegionCache,
        sge: &ibv_sge,
    ) -> Result<*mut u8, SgeError> {
        self.close();
        let (region, pin) = checked_sge(nic, cache, pd, sge, WRITE)?;
        let Some(first) = region.direct(region.addr) else {
            return Err(SgeError::Unmapped);
        };
        if region.pd != pd {
            // A region of the whole address space: what is mapped there is looked up each time.
            return region.direct(sge.addr).ok_or(SgeError::Protection);
        }
        *self = Self {
            lkey: sge.lkey,
            addr: region.addr,
            len: region.len,
            first,
            pin: Some(pin),
        };
        Ok(first.wrapping_add((sge.addr - self.addr) as usize))
    }

    /// Lets go of the region: a thread has two pins, and what follows needs them.
    pub(crate) fn close(&mut self) {
        self.pin = None;
        self.len = 0;
    }
}

/// The own region that an SGE names, checked: protection domain, range and, for `write`, local write access.
#[inline(always)]
pub(crate) fn checked_sge<'c>(
    nic: &'static Nic,
    cache: &'c mut RegionCache,
    pd: u32,
    sge: &ibv_sge,
    write: bool,
) -> Result<(&'c Region, Pin), SgeError> {
    let (region, pin) = cache
        .get(nic, nic.me(), sge.lkey, || pd)
        .map_err(|_| SgeError::Protection)?;
    let writable = region.access & IBV_ACCESS_LOCAL_WRITE.cast_unsigned() != 0;
    if !region.contains(sge.addr, u64::from(sge.length))
        || (write && !writable)
        || (region.pd != pd && !on_demand(region, pd, sge, write))
    {
        return Err(SgeError::Protection);
    }
    Ok((region, pin))
}

/// Is it a region of the whole address space, and the SGE mapped there?
#[cold]
fn on_demand(region: &Region, pd: u32, sge: &ibv_sge, write: bool) -> bool {
    // In another process that is not known; the system call finds out.
    let mapped = || !region.own || shm::mem::populate(sge.addr, sge.length.into(), write);
    region.pd == IMPLICIT | pd && mapped()
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
                Copies::none().of(list, 3).to_vec()
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
