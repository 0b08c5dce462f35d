//! Registered memory.

use std::ffi::c_int;
use std::sync::Arc;

use verbs_abi::*;

use super::Mr;
use crate::memory::ZeroedMemory;
use crate::wr::RemoteAddress;

impl Mr {
    /// Calls `ibv_rereg_mr` to change only the access rights, and returns the call's result.
    #[must_use]
    pub fn rereg_access(&self, access: c_int) -> c_int {
        let flags = IBV_REREG_MR_CHANGE_ACCESS;
        let (pd, addr) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live region; the call ignores arguments of fields that do not change.
        unsafe { (self.0.symbols.ibv_rereg_mr)(self.raw(), flags, pd, addr, 0, access) }
    }

    /// Returns the region's structure as the library filled it.
    #[must_use]
    pub fn copy_ibv_mr(&self) -> ibv_mr {
        // SAFETY: the region is live, and the library does not write to it.
        unsafe { *self.raw() }
    }

    /// Returns the L_Key.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.copy_ibv_mr().lkey
    }

    /// Returns the R_Key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.copy_ibv_mr().rkey
    }
}

/// Registered memory, with its memory region.
#[derive(Clone)]
pub struct Buf {
    /// The memory region. It is declared first, so that it is deregistered before its memory is
    /// freed.
    pub mr: Mr,
    /// The memory.
    pub memory: Arc<ZeroedMemory>,
}

impl Buf {
    /// Returns an SGE of `len` bytes from `offset`; the range may exceed the buffer.
    #[must_use]
    pub fn sge(&self, offset: u64, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.memory.addr().wrapping_add(offset),
            length: u32::try_from(len).expect("a length"),
            lkey: self.mr.lkey(),
        }
    }

    /// Returns an SGE of the whole buffer.
    #[must_use]
    pub fn whole_sge(&self) -> ibv_sge {
        self.sge(0, self.memory.len())
    }

    /// Returns the buffer's address for one-sided verbs.
    #[must_use]
    pub fn remote_address(&self) -> RemoteAddress {
        RemoteAddress {
            addr: self.memory.addr(),
            rkey: self.mr.rkey(),
        }
    }

    /// Returns SGEs for `len` bytes from `offset`. `cuts` are the lengths of the first SGEs; the
    /// last SGE has all other bytes.
    #[must_use]
    #[track_caller]
    pub fn sges_cut_at(&self, mut offset: u64, len: usize, cuts: &[usize]) -> Vec<ibv_sge> {
        let mut left = len;
        let mut sges = Vec::new();
        for &cut in cuts {
            assert!(cut <= left);
            sges.push(self.sge(offset, cut));
            offset += cut as u64;
            left -= cut;
        }
        sges.push(self.sge(offset, left));
        sges
    }
}
