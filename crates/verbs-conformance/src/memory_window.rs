//! Memory windows, and the work requests that bind and invalidate them.

use std::ffi::c_int;
use std::ptr::NonNull;

use verbs_abi::*;

use crate::objects::{Buf, Pd, Qp};
use crate::wr::{RemoteAddress, SendWr, Verb};

/// A memory window of `ibv_alloc_mw(3)`, deallocated when dropped.
pub struct MemoryWindow {
    raw: NonNull<ibv_mw>,
    _pd: Pd,
}

/// A part of a buffer, and the access rights of peers to it.
#[derive(Clone, Copy)]
pub struct BufferPart<'a> {
    /// The buffer.
    pub buf: &'a Buf,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Access rights of peers to the part, as `IBV_ACCESS_*` bits.
    pub access: c_int,
}

impl BufferPart<'_> {
    fn bind_info(&self) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.buf.mr.raw(),
            addr: self.buf.memory.addr() + self.offset,
            length: self.len,
            mw_access_flags: self.access.cast_unsigned(),
        }
    }
}

impl MemoryWindow {
    /// Calls `ibv_alloc_mw`.
    ///
    /// # Errors
    /// Returns the errno of the call; `EOPNOTSUPP` if the provider lacks the operation.
    pub fn try_new(pd: &Pd, mw_type: ibv_mw_type) -> Result<Self, i32> {
        // SAFETY: the PD and its context are live, and the context's operations do not change. The call has
        // the form of the inline function in verbs.h.
        unsafe {
            let Some(alloc) = (*(*pd.raw()).context).ops.alloc_mw else {
                return Err(libc::EOPNOTSUPP);
            };
            let raw = NonNull::new(alloc(pd.raw(), mw_type));
            let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            Ok(Self {
                raw: raw.ok_or_else(errno)?,
                _pd: pd.clone(),
            })
        }
    }

    /// Allocates a window of this type.
    ///
    /// # Panics
    /// Panics if the device refuses the allocation.
    #[must_use]
    #[track_caller]
    pub fn new(pd: &Pd, mw_type: ibv_mw_type) -> Self {
        Self::try_new(pd, mw_type).expect("ibv_alloc_mw")
    }

    /// Returns the window's R_Key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: the window is live.
        unsafe { self.raw.as_ref().rkey }
    }

    /// Calls `ibv_bind_mw`, signaled, for a window of type 1.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn bind_type_1(&self, qp: &Qp, wr_id: u64, part: &BufferPart<'_>) -> Result<(), i32> {
        let mut bind = ibv_mw_bind {
            wr_id,
            send_flags: IBV_SEND_SIGNALED,
            bind_info: part.bind_info(),
        };
        // SAFETY: live objects, as in `try_new`; the call reads the request before it returns.
        let errno = unsafe {
            let op = (*(*qp.raw()).context)
                .ops
                .bind_mw
                .expect("there is ibv_alloc_mw");
            op(qp.raw(), self.raw.as_ptr(), &raw mut bind)
        };
        if errno == 0 { Ok(()) } else { Err(errno) }
    }

    /// Returns an `IBV_WR_BIND_MW` work request that gives the window the key `rkey`.
    #[must_use]
    pub fn bind_wr(&self, rkey: u32, part: &BufferPart<'_>) -> SendWr {
        let mut wr = SendWr::new(Verb::Send, []).with_opcode(IBV_WR_BIND_MW);
        wr.raw.bind_tso.bind_mw = ibv_send_wr_bind_tso_bind_mw {
            mw: self.raw.as_ptr(),
            rkey,
            bind_info: part.bind_info(),
        };
        wr
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // SAFETY: live objects, as in `try_new`; this value is the only handle.
        let errno = unsafe {
            let raw = self.raw.as_ptr();
            let op = (*(*raw).context).ops.dealloc_mw;
            op.map_or(0, |dealloc| dealloc(raw))
        };
        if errno != 0 && !std::thread::panicking() {
            panic!("ibv_dealloc_mw returned {errno}");
        }
    }
}

/// Increments the tag of an R_Key: `ibv_inc_rkey(3)`.
#[must_use]
pub fn inc_rkey(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

/// Returns an `IBV_WR_LOCAL_INV` work request.
#[must_use]
pub fn local_inv(rkey: u32) -> SendWr {
    let mut wr = SendWr::new(Verb::Send, []).with_opcode(IBV_WR_LOCAL_INV);
    wr.raw.imm.invalidate_rkey = rkey;
    wr
}

/// Returns an `IBV_WR_SEND_WITH_INV` work request.
pub fn send_inv(sges: impl IntoIterator<Item = ibv_sge>, rkey: u32) -> SendWr {
    let mut wr = SendWr::new(Verb::Send, sges).with_opcode(IBV_WR_SEND_WITH_INV);
    wr.raw.imm.invalidate_rkey = rkey;
    wr
}

/// Returns the remote address of byte `offset` of a part, for a peer that has the window's key.
#[must_use]
pub fn remote_address_in_window(rkey: u32, part: &BufferPart<'_>, offset: u64) -> RemoteAddress {
    RemoteAddress {
        addr: part.bind_info().addr + offset,
        rkey,
    }
}
