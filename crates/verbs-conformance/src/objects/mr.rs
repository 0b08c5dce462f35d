//! Registered memory.

use std::ffi::c_int;
use std::sync::Arc;

use verbs_abi::*;

use super::Mr;
use crate::memory::Memory;
use crate::wr::Remote;

impl Mr {
    /// `ibv_rereg_mr` of the access rights alone: what it returns.
    #[must_use]
    pub fn rereg_access(&self, access: c_int) -> c_int {
        let flags = IBV_REREG_MR_CHANGE_ACCESS;
        let (pd, addr) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: a live region; what is not to be changed is not looked at.
        unsafe { (self.0.symbols.ibv_rereg_mr)(self.raw(), flags, pd, addr, 0, access) }
    }

    /// The region as the library filled it.
    #[must_use]
    pub fn fields(&self) -> ibv_mr {
        // SAFETY: live; the library does not write to it.
        unsafe { *self.raw() }
    }

    /// Its L_Key.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.fields().lkey
    }

    /// Its R_Key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.fields().rkey
    }
}

/// Registered memory.
#[derive(Clone)]
pub struct Buf {
    /// The region: deregistered before the memory goes.
    pub mr: Mr,
    /// The memory.
    pub memory: Arc<Memory>,
}

impl Buf {
    /// `len` bytes from `offset`, also where these are out of range.
    #[must_use]
    pub fn sge(&self, offset: u64, len: usize) -> ibv_sge {
        ibv_sge {
            addr: self.memory.addr().wrapping_add(offset),
            length: u32::try_from(len).expect("a length"),
            lkey: self.mr.lkey(),
        }
    }

    /// All of it.
    #[must_use]
    pub fn all(&self) -> ibv_sge {
        self.sge(0, self.memory.len())
    }

    /// As the target of one-sided verbs.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote {
            addr: self.memory.addr(),
            rkey: self.mr.rkey(),
        }
    }

    /// `len` bytes from `offset`, cut into SGEs of the given lengths; the last takes the rest.
    #[must_use]
    #[track_caller]
    pub fn split(&self, mut offset: u64, len: usize, cuts: &[usize]) -> Vec<ibv_sge> {
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
