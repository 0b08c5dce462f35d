//! Queue pairs with the extended post API: `ibv_wr_post(3)`.
//!
//! From `ibv_wr_start` to `ibv_wr_complete` one thread builds a postlist. Then the whole list is posted, or nothing.

use std::ffi::{c_int, c_void};

use verbs_abi::*;

use super::data_path::deref_handle;
use super::edge::{Arg, InConst, slice_from_c};
use super::fault_injection;
use crate::faults;
use crate::incidents;
use crate::live_handles;
use crate::qp::Qp;
use crate::send::{self, BuiltPostlist, FlushRange, WrBuilder};

/// Returns the operations of each transport: Table 1 of the paper; IBTA vol. 1, table 44.
pub(super) fn supported_send_ops(qp_type: ibv_qp_type) -> u64 {
    const SEND: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const WRITE: u64 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    const READ_AND_ATOMIC_OPS: u64 = IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | IBV_QP_EX_WITH_ATOMIC_WRITE
        | IBV_QP_EX_WITH_FLUSH;
    const MW_OPS: u64 = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
    match qp_type {
        IBV_QPT_RC => SEND | WRITE | READ_AND_ATOMIC_OPS | MW_OPS | IBV_QP_EX_WITH_SEND_WITH_INV,
        IBV_QPT_UC => SEND | WRITE | MW_OPS,
        IBV_QPT_XRC_SEND => {
            SEND | WRITE | READ_AND_ATOMIC_OPS | MW_OPS | IBV_QP_EX_WITH_SEND_WITH_INV
        }
        IBV_QPT_UD => SEND,
        IBV_QPT_RAW_PACKET => IBV_QP_EX_WITH_SEND,
        _ => 0,
    }
}

/// Stores the functions of the requested operations in a queue pair that was just made.
pub(super) fn install_wr_functions(qp: &Qp, ops: u64) {
    let handle = qp.handle().cast::<ibv_qp_ex_with_flush>();
    // SAFETY: `qp` keeps the structure, which is a whole `ibv_qp_ex_with_flush` (`Qp::abi`); the program does not have the
    // handle yet (`create_ordinary_qp_ex` returns it later).
    let ibv_qp_ex_with_flush { ex: qp, wr_flush } = unsafe { &mut *handle };
    if ops & IBV_QP_EX_WITH_FLUSH != 0 {
        *wr_flush = Some(self::wr_flush);
    }
    macro_rules! enter {
        ($($flag:ident: $op:ident;)*) => {$(
            if ops & $flag != 0 {
                qp.$op = Some($op);
            }
        )*};
    }
    enter! {
        IBV_QP_EX_WITH_RDMA_WRITE: wr_rdma_write;
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM: wr_rdma_write_imm;
        IBV_QP_EX_WITH_SEND: wr_send;
        IBV_QP_EX_WITH_SEND_WITH_IMM: wr_send_imm;
        IBV_QP_EX_WITH_RDMA_READ: wr_rdma_read;
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP: wr_atomic_cmp_swp;
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD: wr_atomic_fetch_add;
        IBV_QP_EX_WITH_ATOMIC_WRITE: wr_atomic_write;
        IBV_QP_EX_WITH_BIND_MW: wr_bind_mw;
        IBV_QP_EX_WITH_LOCAL_INV: wr_local_inv;
        IBV_QP_EX_WITH_SEND_WITH_INV: wr_send_inv;
    }
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    let xrc = qp.qp_base.qp_type == IBV_QPT_XRC_SEND;
    if xrc {
        qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    }
    qp.wr_complete = Some(match (xrc, faults::has_plan()) {
        (false, false) => wr_complete::<false, false>,
        (true, false) => wr_complete::<true, false>,
        (false, true) => wr_complete::<false, true>,
        (true, true) => wr_complete::<true, true>,
    });
    qp.wr_abort = Some(wr_abort);
}

pub(super) fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    match live_handles::find_object::<Qp>(qp) {
        Some(q) if q.builder.is_some() => qp.cast(),
        _ => std::ptr::null_mut(),
    }
}

/// The postlist that this thread builds, from `ibv_wr_start` to `ibv_wr_complete`.
struct PostlistBeingBuilt<'a> {
    qp: &'a Qp,
    builder: &'a WrBuilder,
    postlist: &'a mut BuiltPostlist,
    /// The `wr_id` and `wr_flags` that the program has set for the next operation.
    wr_id: u64,
    wr_flags: u32,
}

impl<'a> PostlistBeingBuilt<'a> {
    /// # Safety
    /// `handle` is NULL, or a queue pair that this thread builds a list for: between `ibv_wr_start` and
    /// `ibv_wr_complete` or `ibv_wr_abort`. Until the result ends there is no other for that queue pair.
    #[inline(always)]
    unsafe fn from_handle(handle: *mut ibv_qp_ex) -> Option<Self> {
        // SAFETY: NULL or live, since the program builds a list for it; `postlist` belongs to this thread, and so do
        // the two fields (contract of this function).
        unsafe {
            let qp = deref_handle::<Qp>(handle.cast())?;
            let builder = qp.builder.as_ref()?;
            Some(Self {
                qp,
                builder,
                postlist: &mut *builder.postlist(),
                wr_id: (*handle).wr_id,
                wr_flags: (*handle).wr_flags,
            })
        }
    }

    /// Begins a work request, with the `wr_id` and `wr_flags` that the program has set.
    #[inline(always)]
    fn begin_wr(&mut self, opcode: ibv_wr_opcode, fill: impl FnOnce(&mut ibv_send_wr)) {
        let mut wr = ibv_send_wr::zeroed();
        wr.wr_id = self.wr_id;
        wr.send_flags = self.wr_flags & !IBV_SEND_INLINE;
        wr.opcode = opcode;
        fill(&mut wr);
        self.postlist.append_wr(wr);
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: NULL or live, since the program begins a list for it (`ibv_wr_post(3)`).
    let qp = unsafe { deref_handle::<Qp>(qp.cast()) };
    if let Some(builder) = qp.and_then(|qp| qp.builder.as_ref()) {
        builder.acquire_postlist();
    }
}

unsafe extern "C" fn wr_complete<const XRC: bool, const FAULTS: bool>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program has begun a list from this thread, and ends it here (`ibv_wr_post(3)`).
    let Some(building) = (unsafe { PostlistBeingBuilt::from_handle(qp) }) else {
        return libc::EINVAL;
    };
    let PostlistBeingBuilt {
        qp,
        builder,
        postlist,
        ..
    } = building;
    let refused = if FAULTS {
        fault_injection::decide_injected_errno_for_qp("ibv_wr_complete", qp.fault_plan_identity())
    } else {
        None
    };
    let result = match (refused, postlist.set_pointers()) {
        (Some(errno), _) | (None, Err(errno)) => errno,
        // SAFETY: `link` has made a list of `len` work requests, whose pointers lead to the vectors of `postlist`.
        (None, Ok((first, len))) => unsafe {
            send::post_send_all_or_none::<XRC, FAULTS>(qp, first, len)
        },
    };
    builder.empty_and_release(postlist);
    if FAULTS {
        incidents::carry_out_deferred_incidents(qp.nic);
    }
    result
}

/// Defines C functions that work on the list: `fn name(arguments) = |building| what is done;`.
macro_rules! building {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),*) = |$building:ident| $body:expr;)*) => {$(
        $(#[$meta])*
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: <$type as Arg>::C)*) {
            $(
                // SAFETY: the program passes what `ibv_wr_post(3)` says.
                let $arg = unsafe { <$type as Arg>::from_c($arg) };
            )*
            // SAFETY: the program has begun a list from this thread (`ibv_wr_post(3)`).
            if let Some($building) = &mut unsafe { PostlistBeingBuilt::from_handle(qp) } {
                $body;
            }
        }
    )*};
}

building! {
    fn wr_abort() = |list| list.builder.empty_and_release(list.postlist);
    fn wr_send() = |list| list.begin_wr(IBV_WR_SEND, |_| {});
    fn wr_send_imm(imm: u32) = |list| list.begin_wr(IBV_WR_SEND_WITH_IMM, |wr| wr.imm.imm_data = imm);
    fn wr_rdma_write(rkey: u32, addr: u64) = |list| list.begin_wr(IBV_WR_RDMA_WRITE, |wr| {
        wr.wr.rdma = rdma_wr_fields(addr, rkey);
    });
    fn wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = |list| {
        list.begin_wr(IBV_WR_RDMA_WRITE_WITH_IMM, |wr| {
            wr.wr.rdma = rdma_wr_fields(addr, rkey);
            wr.imm.imm_data = imm;
        })
    };
    fn wr_rdma_read(rkey: u32, addr: u64) = |list| list.begin_wr(IBV_WR_RDMA_READ, |wr| {
        wr.wr.rdma = rdma_wr_fields(addr, rkey);
    });
    fn wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = |list| {
        list.begin_wr(IBV_WR_ATOMIC_CMP_AND_SWP, |wr| wr.wr.atomic = atomic_wr_fields(addr, rkey, compare, swap))
    };
    fn wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = |list| {
        list.begin_wr(IBV_WR_ATOMIC_FETCH_AND_ADD, |wr| wr.wr.atomic = atomic_wr_fields(addr, rkey, add, 0))
    };
    fn wr_send_inv(rkey: u32) = |list| list.begin_wr(IBV_WR_SEND_WITH_INV, |wr| {
        wr.imm.invalidate_rkey = rkey;
    });
    fn wr_local_inv(rkey: u32) = |list| list.begin_wr(IBV_WR_LOCAL_INV, |wr| {
        wr.imm.invalidate_rkey = rkey;
    });
    fn wr_flush(rkey: u32, addr: u64, len: usize, placement: u8, selectivity: u8) = |list| {
        let range = FlushRange {
            rkey,
            remote_addr: addr,
            len: len as u64,
            placement,
            covers_whole_region: selectivity != IBV_FLUSH_RANGE,
        };
        list.begin_wr(IBV_WR_FLUSH, |wr| wr.wr.atomic = range.to_atomic_operands())
    };
    fn wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: InConst<ibv_mw_bind_info>) = |list| {
        list.begin_wr(IBV_WR_BIND_MW, |wr| {
            if let Some(&bind_info) = bind_info.optional() {
                wr.bind_tso.bind_mw = ibv_send_wr_bind_tso_bind_mw {
                    mw,
                    rkey,
                    bind_info,
                };
            }
        })
    };
    /// "The 8 bytes of `atomic_wr` are copied", as if they were inline data (`ibv_wr_post(3)`).
    fn wr_atomic_write(rkey: u32, addr: u64, atomic_wr: AtomicWriteValue) = |list| {
        list.begin_wr(IBV_WR_ATOMIC_WRITE, |wr| wr.wr.rdma = rdma_wr_fields(addr, rkey));
        match atomic_wr.0 {
            Some(bytes) => list.postlist.append_inline_bytes(&bytes),
            None => list.postlist.record_errno(libc::EINVAL),
        }
    };
    fn wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32) = |list| {
        if let Some(wr) = list.postlist.last_wr() {
            wr.wr.ud = ibv_send_wr_wr_ud { ah, remote_qpn, remote_qkey };
        }
    };
    fn wr_set_xrc_srqn(remote_srqn: u32) = |list| if let Some(wr) = list.postlist.last_wr() {
        wr.qp_type.xrc = ibv_send_wr_qp_type_xrc { remote_srqn };
    };
    /// A zero-length message needs no SGE, but may have one.
    fn wr_set_sge(lkey: u32, addr: u64, length: u32) = |list| {
        list.postlist.set_sges(&[ibv_sge { addr, length, lkey }])
    };
    fn wr_set_sge_list(n: usize, sges: *const ibv_sge) = |list| {
        // SAFETY: the list has `n` entries (`ibv_wr_set_sge_list(3)`).
        list.postlist.set_sges(unsafe { slice_from_c(sges, n) })
    };
    fn wr_set_inline_data(addr: *mut c_void, length: usize) = |list| {
        copy_inline_payload(list, &[ibv_data_buf { addr, length }])
    };
    fn wr_set_inline_data_list(n: usize, buffers: *const ibv_data_buf) = |list| {
        // SAFETY: the list has `n` entries (`ibv_wr_set_inline_data_list(3)`).
        copy_inline_payload(list, unsafe { slice_from_c(buffers, n) })
    };
}

/// The value of an atomic WRITE, at any alignment; `None` for NULL.
struct AtomicWriteValue(Option<[u8; 8]>);

impl Arg for AtomicWriteValue {
    type C = *const c_void;
    #[inline(always)]
    unsafe fn from_c(c: *const c_void) -> Self {
        // SAFETY: not NULL, so 8 readable bytes (contract of `from_c`); read without regard to alignment.
        Self((!c.is_null()).then(|| unsafe { c.cast::<[u8; 8]>().read_unaligned() }))
    }
}

fn rdma_wr_fields(remote_addr: u64, rkey: u32) -> ibv_send_wr_wr_rdma {
    ibv_send_wr_wr_rdma { remote_addr, rkey }
}

fn atomic_wr_fields(
    remote_addr: u64,
    rkey: u32,
    compare_add: u64,
    swap: u64,
) -> ibv_send_wr_wr_atomic {
    ibv_send_wr_wr_atomic {
        remote_addr,
        compare_add,
        swap,
        rkey,
    }
}

/// Copies the payload: "the buffers can be reused immediately" (`ibv_wr_post(3)`).
#[inline(always)]
fn copy_inline_payload(building: &mut PostlistBeingBuilt<'_>, buffers: &[ibv_data_buf]) {
    if building.postlist.last_wr().is_none() {
        return;
    }
    let total = buffers
        .iter()
        .fold(0usize, |sum, b| sum.saturating_add(b.length));
    if total > building.qp.max_inline_data() {
        return building.postlist.record_errno(libc::ENOMEM);
    }
    building.postlist.append_inline_bytes(&[]);
    for b in buffers {
        // SAFETY: each buffer has as many readable bytes as it says (`ibv_wr_set_inline_data_list(3)`).
        let bytes = unsafe { slice_from_c(b.addr.cast::<u8>(), b.length) };
        building.postlist.append_inline_bytes(bytes);
    }
}
