//! Protection domains, the objects created in them, and address vectors.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use verbs_abi::*;

use super::{ALL_ACCESS, Ah, Buf, Context, Mr, Pd, Qp, QpInitAttr, Srq, expect_ok, set_errno};
use crate::memory::{MemKind, ZeroedMemory};
use crate::progress_notes::record_progress;
use crate::wr::Wc;

impl Pd {
    pub(super) fn symbols(&self) -> &'static Symbols {
        self.0.symbols
    }

    /// Returns the context of the device.
    #[must_use]
    pub fn ctx(&self) -> &Context {
        &self.0.ctx
    }

    /// Calls `ibv_reg_mr` for any range.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn try_reg(&self, addr: *mut c_void, len: usize, access: c_int) -> Result<Mr, i32> {
        set_errno(0);
        // SAFETY: a live PD; the NIC checks the range, and the test keeps the memory while it is used.
        let raw = unsafe { (self.symbols().ibv_reg_mr)(self.raw(), addr, len, access) };
        Mr::wrap(self.symbols(), raw, self.clone())
    }

    /// Calls `ibv_alloc_null_mr`.
    #[must_use]
    #[track_caller]
    pub fn alloc_null_mr(&self) -> Mr {
        set_errno(0);
        // SAFETY: a live PD of a context that has the extended operations.
        let raw = unsafe {
            let alloc = verbs_get_ctx((*self.raw()).context)
                .as_ref()
                .and_then(|extended| extended.alloc_null_mr);
            alloc.map_or(std::ptr::null_mut(), |alloc| alloc(self.raw()))
        };
        expect_ok(
            "ibv_alloc_null_mr",
            Mr::wrap(self.symbols(), raw, self.clone()),
        )
    }

    /// Registers all of `memory`.
    #[must_use]
    #[track_caller]
    pub fn reg(&self, memory: &ZeroedMemory, access: c_int) -> Mr {
        expect_ok(
            "ibv_reg_mr",
            self.try_reg(memory.as_ptr(), memory.len(), access),
        )
    }

    /// Registers new memory of the given kind.
    #[must_use]
    #[track_caller]
    pub fn alloc_buf_of_kind(&self, kind: MemKind, len: usize, access: c_int) -> Buf {
        let memory = Arc::new(ZeroedMemory::new(self.ctx().env(), kind, len));
        let mr = self.reg(&memory, access);
        Buf { mr, memory }
    }

    /// Registers new private memory with all access rights.
    #[must_use]
    #[track_caller]
    pub fn alloc_buf(&self, len: usize) -> Buf {
        self.alloc_buf_of_kind(MemKind::Private, len, ALL_ACCESS)
    }

    /// Calls `ibv_create_qp`, and stores the resulting sizes in `init`.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn try_create_qp(&self, init: &mut QpInitAttr) -> Result<Qp, i32> {
        record_progress();
        let mut attr = init.to_ibv_attr();
        set_errno(0);
        // SAFETY: a live PD; the CQs and the SRQ in `attr` are live (`init` holds them) or NULL.
        let raw = unsafe { (self.symbols().ibv_create_qp)(self.raw(), &raw mut attr) };
        if !raw.is_null() {
            init.cap = attr.cap;
        }
        let cqs = [init.send_cq.clone(), init.recv_cq.clone()];
        Qp::wrap(self.symbols(), raw, self.clone(), cqs, init.srq.clone())
    }

    /// Calls `ibv_create_qp` with a NULL send CQ or a NULL receive CQ, which is always invalid.
    #[must_use]
    pub fn try_create_qp_with_null_cq(&self, init: &QpInitAttr, send: bool) -> Option<Qp> {
        let mut attr = init.to_ibv_attr();
        if send {
            attr.send_cq = std::ptr::null_mut();
        } else {
            attr.recv_cq = std::ptr::null_mut();
        }
        // SAFETY: as in `try_create_qp`; the test checks that NULL is refused.
        let raw = unsafe { (self.symbols().ibv_create_qp)(self.raw(), &raw mut attr) };
        let cqs = [init.send_cq.clone(), init.recv_cq.clone()];
        Qp::wrap(self.symbols(), raw, self.clone(), cqs, None).ok()
    }

    /// Creates a QP.
    #[must_use]
    #[track_caller]
    pub fn create_qp(&self, init: &mut QpInitAttr) -> Qp {
        expect_ok("ibv_create_qp", self.try_create_qp(init))
    }

    /// Calls `ibv_create_srq`, and returns the SRQ and its actual sizes.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn try_create_srq(&self, max_wr: u32, max_sge: u32) -> Result<(Srq, ibv_srq_attr), i32> {
        let mut init = ibv_srq_init_attr::zeroed();
        init.srq_context = std::ptr::without_provenance_mut(0x5e9);
        init.attr.max_wr = max_wr;
        init.attr.max_sge = max_sge;
        set_errno(0);
        // SAFETY: a live PD, readable and writable attributes.
        let raw = unsafe { (self.symbols().ibv_create_srq)(self.raw(), &raw mut init) };
        Ok((Srq::wrap(self.symbols(), raw, self.clone())?, init.attr))
    }

    /// Creates an SRQ of 64 WRs with 4 SGEs.
    #[must_use]
    #[track_caller]
    pub fn create_srq(&self) -> Srq {
        expect_ok("ibv_create_srq", self.try_create_srq(64, 4)).0
    }

    /// Calls `ibv_create_ah`.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn try_create_ah(&self, attr: &ibv_ah_attr) -> Result<Ah, i32> {
        let mut attr = *attr;
        set_errno(0);
        // SAFETY: a live PD, readable attributes.
        let raw = unsafe { (self.symbols().ibv_create_ah)(self.raw(), &raw mut attr) };
        Ah::wrap(self.symbols(), raw, self.clone())
    }

    /// Calls `ibv_create_ah`, and panics if it fails.
    #[must_use]
    #[track_caller]
    pub fn create_ah(&self, attr: &ibv_ah_attr) -> Ah {
        expect_ok("ibv_create_ah", self.try_create_ah(attr))
    }

    /// Calls `ibv_create_ah_from_wc` for the sender of a UD message, whose GRH is in `grh`.
    ///
    /// # Errors
    /// Returns the errno of the call.
    pub fn try_create_ah_from_wc(&self, wc: &Wc, grh: &[u8; 40]) -> Result<Ah, i32> {
        let mut wc = wc.0;
        let mut grh = grh_from_bytes(grh);
        let port = self.ctx().env().settings.port;
        set_errno(0);
        // SAFETY: a live PD; the completion and the GRH are copies of what the NIC delivered.
        let raw = unsafe {
            (self.symbols().ibv_create_ah_from_wc)(self.raw(), &raw mut wc, &raw mut grh, port)
        };
        Ah::wrap(self.symbols(), raw, self.clone())
    }

    /// Calls `ibv_init_ah_from_wc`.
    ///
    /// # Errors
    /// Fails with the call's result if that is not 0.
    pub fn ah_attr_from_wc(&self, wc: &Wc, grh: &[u8; 40]) -> Result<ibv_ah_attr, i32> {
        let mut wc = wc.0;
        let mut grh = grh_from_bytes(grh);
        let mut attr = ibv_ah_attr::zeroed();
        let ctx = self.ctx();
        let port = ctx.env().settings.port;
        // SAFETY: a live context; copies of what the NIC delivered; a writable result.
        let result = unsafe {
            (self.symbols().ibv_init_ah_from_wc)(
                ctx.raw(),
                port,
                &raw mut wc,
                &raw mut grh,
                &raw mut attr,
            )
        };
        if result == 0 { Ok(attr) } else { Err(result) }
    }
}

fn grh_from_bytes(bytes: &[u8; 40]) -> ibv_grh {
    // SAFETY: `ibv_grh` is 40 bytes of plain numbers.
    unsafe { std::mem::transmute_copy(bytes) }
}

/// Returns true if both address vectors have the same GID and the same LID; without GRH, only the LID
/// is compared.
#[must_use]
pub fn is_same_gid_and_lid(a: &ibv_ah_attr, b: &ibv_ah_attr) -> bool {
    // SAFETY: GIDs are 16 bytes of plain numbers.
    let gids = unsafe { a.grh.dgid.raw == b.grh.dgid.raw };
    a.is_global == b.is_global && a.dlid == b.dlid && (a.is_global == 0 || gids)
}
