//! Queue pairs with the extended post API: `ibv_create_qp_ex(3)`, `ibv_wr_post(3)`.
//!
//! From `ibv_wr_start` to `ibv_wr_complete` one thread builds a postlist; then all of it is posted, or nothing.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use verbs_abi::*;

use super::objects::{create_qp, create_xrc_recv};
use super::*;
use crate::qp::Qp;
use crate::send::{self, FlushRange};

/// The operations of each transport: Table 1 of the paper; IBTA vol. 1, table 44.
fn supported(qp_type: ibv_qp_type) -> u64 {
    const SEND: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const WRITE: u64 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    const FETCH: u64 = IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | IBV_QP_EX_WITH_ATOMIC_WRITE
        | IBV_QP_EX_WITH_FLUSH;
    const WINDOWS: u64 = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
    match qp_type {
        IBV_QPT_RC => SEND | WRITE | FETCH | WINDOWS | IBV_QP_EX_WITH_SEND_WITH_INV,
        IBV_QPT_UC => SEND | WRITE | WINDOWS,
        IBV_QPT_XRC_SEND => SEND | WRITE | FETCH | WINDOWS | IBV_QP_EX_WITH_SEND_WITH_INV,
        IBV_QPT_UD => SEND,
        IBV_QPT_RAW_PACKET => IBV_QP_EX_WITH_SEND,
        _ => 0,
    }
}

/// The postlist that is being built.
pub(crate) struct Builder {
    /// A thread is between start and complete.
    busy: AtomicBool,
    list: UnsafeCell<List>,
}

#[derive(Default)]
struct List {
    wrs: Vec<Building>,
    sges: Vec<ibv_sge>,
    inline: Vec<u8>,
    /// The first mistake of the program.
    error: c_int,
}

/// A work request whose pointers are not made yet: the lists still move.
struct Building {
    wr: ibv_send_wr,
    /// Its SGEs, in `List::sges`.
    sges: std::ops::Range<usize>,
    /// Its payload, in `List::inline`.
    inline: Option<std::ops::Range<usize>>,
}

// SAFETY: the pointers in the work requests are the program's, and only handed on.
unsafe impl Send for Builder {}
// SAFETY: `list` belongs to the thread that has set `busy`.
unsafe impl Sync for Builder {}

impl Builder {
    fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            list: UnsafeCell::new(List::default()),
        }
    }
}

pub(super) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let _hold_off = cancellation::HoldOff::new();
    // SAFETY: a handle of ours; the program's attributes.
    or_null(unsafe { create(context, init) })
}

/// # Safety
/// `init` is NULL or attributes as `ibv_create_qp_ex(3)` describes them.
unsafe fn create(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, c_int> {
    const KNOWN: u32 =
        IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    const SPREAD: u32 = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    // SAFETY: contract of this function.
    let attr = unsafe { init.as_ref() }.ok_or(libc::EINVAL)?;
    let mask = attr.comp_mask;
    if attr.qp_type == IBV_QPT_XRC_RECV {
        if mask & !(KNOWN | IBV_QP_INIT_ATTR_XRCD) != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        if mask & IBV_QP_INIT_ATTR_XRCD == 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: handles of ours.
        return unsafe { create_xrc_recv(context, attr) };
    }
    if mask & SPREAD == SPREAD && mask & !(KNOWN | SPREAD) == 0 {
        let flags = mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && attr.create_flags != 0;
        if flags || mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: handles of ours, and a key.
        return unsafe { wq::create_spreading_qp(context, attr) };
    }
    if mask & !KNOWN != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if mask & IBV_QP_INIT_ATTR_PD == 0 {
        return Err(libc::EINVAL);
    }
    let flags = if mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 {
        attr.create_flags
    } else {
        0
    };
    let block_self = flags == IBV_QP_CREATE_BLOCK_SELF_MCAST_LB && attr.qp_type == IBV_QPT_UD;
    if flags != 0 && !block_self {
        return Err(libc::EOPNOTSUPP);
    }
    let ops = (mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(attr.send_ops_flags);
    if ops.is_some_and(|ops| ops & !supported(attr.qp_type) != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: the extended attributes start with the plain ones (verbs.h); handles of ours.
    let qp = unsafe { create_qp(attr.pd, init.cast(), ops.map(|_| Builder::new())) }?;
    if block_self {
        // SAFETY: just made.
        if let Some(qp) = unsafe { borrow::<Qp, _>(qp) } {
            qp.block_self.store(true, Ordering::Relaxed);
        }
    }
    if let Some(ops) = ops {
        // SAFETY: nobody else has seen the queue pair yet; each starts with a whole `ibv_qp_ex_with_flush`.
        fill(unsafe { &mut *qp.cast::<ibv_qp_ex_with_flush>() }, ops);
    }
    Ok(qp)
}

/// Enters the operations that were asked for.
fn fill(handle: &mut ibv_qp_ex_with_flush, ops: u64) {
    let ibv_qp_ex_with_flush { ex: qp, wr_flush } = handle;
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
    qp.wr_complete = Some(if xrc {
        wr_complete::<true>
    } else {
        wr_complete::<false>
    });
    qp.wr_abort = Some(wr_abort);
}

pub(super) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: a handle of ours.
    match unsafe { borrow::<Qp, _>(qp) } {
        Some(q) if q.builder.is_some() => qp.cast(),
        _ => std::ptr::null_mut(),
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: a handle of ours.
    let Some(builder) = (unsafe { follow::<Qp, _>(qp) }).and_then(|q| q.builder.as_ref()) else {
        return;
    };
    while builder.busy.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

unsafe extern "C" fn wr_complete<const XRC: bool>(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: a handle of ours, between start and complete of this thread.
    let Some((q, list)) = (unsafe { building(qp) }) else {
        return libc::EINVAL;
    };
    let result = if list.error == 0 {
        list.link();
        let first = list
            .wrs
            .first_mut()
            .map_or(std::ptr::null_mut(), |b| &raw mut b.wr);
        // SAFETY: `link` has made a list of work requests whose pointers lead to the lists of this builder.
        unsafe { send::post_send_all::<XRC>(q, first, list.wrs.len()) }
    } else {
        list.error
    };
    finish(q, list);
    result
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: a handle of ours, between start and abort of this thread.
    if let Some((q, list)) = unsafe { building(qp) } {
        finish(q, list);
    }
}

/// The list that this thread builds.
///
/// # Safety
/// `qp` is a queue pair of ours between start and complete of this thread; the result is used by it alone.
unsafe fn building<'a>(qp: *mut ibv_qp_ex) -> Option<(&'a Qp, &'a mut List)> {
    // SAFETY: contract of this function.
    unsafe {
        let q = follow::<Qp, _>(qp)?;
        let list = &mut *q.builder.as_ref()?.list.get();
        Some((q, list))
    }
}

fn finish(qp: &Qp, list: &mut List) {
    list.wrs.clear();
    list.sges.clear();
    list.inline.clear();
    list.error = 0;
    if let Some(builder) = &qp.builder {
        builder.busy.store(false, Ordering::Release);
    }
}

impl List {
    /// Makes the pointers.
    fn link(&mut self) {
        for b in &mut self.wrs {
            if let Some(bytes) = b.inline.take() {
                let at = self.inline[bytes.clone()].as_ptr().expose_provenance();
                b.sges = self.sges.len()..self.sges.len() + 1;
                self.sges.push(ibv_sge {
                    addr: at as u64,
                    // At most `max_inline_data`, which is checked when it is set.
                    length: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
                    lkey: 0,
                });
            }
        }
        let mut next = std::ptr::null_mut();
        for b in self.wrs.iter_mut().rev() {
            b.wr.sg_list = self.sges[b.sges.clone()].as_mut_ptr();
            b.wr.num_sge = c_int::try_from(b.sges.len()).unwrap_or(c_int::MAX);
            b.wr.next = next;
            next = &raw mut b.wr;
        }
    }

    /// Adds to the inline payload of a work request.
    fn copy_inline(&mut self, last: usize, bytes: &[u8]) {
        let end = self.inline.len() + bytes.len();
        let this = &mut self.wrs[last];
        let start = this.inline.take().map_or(self.inline.len(), |r| r.start);
        this.wr.send_flags |= IBV_SEND_INLINE;
        this.inline = Some(start..end);
        self.inline.extend_from_slice(bytes);
    }

    fn fail(&mut self, errno: c_int) {
        if self.error == 0 {
            self.error = errno;
        }
    }
}

/// Begins a work request, with the `wr_id` and `wr_flags` that the program has set.
///
/// # Safety
/// As for [`building`].
unsafe fn begin(qp: *mut ibv_qp_ex, opcode: ibv_wr_opcode, fill: impl FnOnce(&mut ibv_send_wr)) {
    // SAFETY: contract of this function; the two fields are the program's.
    unsafe {
        let Some((_, list)) = building(qp) else {
            return;
        };
        let mut wr = ibv_send_wr::zeroed();
        wr.wr_id = (*qp).wr_id;
        wr.send_flags = (*qp).wr_flags & !IBV_SEND_INLINE;
        wr.opcode = opcode;
        fill(&mut wr);
        let end = list.sges.len();
        list.wrs.push(Building {
            wr,
            sges: end..end,
            inline: None,
        });
    }
}

/// Changes the work request that was begun last.
///
/// # Safety
/// As for [`building`].
unsafe fn with_last(qp: *mut ibv_qp_ex, f: impl FnOnce(&Qp, &mut List, usize)) {
    // SAFETY: contract of this function.
    let Some((q, list)) = (unsafe { building(qp) }) else {
        return;
    };
    match list.wrs.len().checked_sub(1) {
        Some(last) => f(q, list, last),
        // A setter before any operation.
        None => list.fail(libc::EINVAL),
    }
}

/// The operations: a work request of a kind, and what it is filled with.
macro_rules! operations {
    ($(fn $name:ident($($arg:ident: $type:ty),*) = $opcode:ident, |$wr:ident| $fill:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: a queue pair of ours between start and complete of this thread (`ibv_wr_post(3)`).
            unsafe { begin(qp, $opcode, |$wr| $fill) };
        }
    )*};
}

operations! {
    fn wr_send() = IBV_WR_SEND, |_wr| {};
    fn wr_send_imm(imm: u32) = IBV_WR_SEND_WITH_IMM, |wr| wr.imm.imm_data = imm;
    fn wr_rdma_write(rkey: u32, addr: u64) = IBV_WR_RDMA_WRITE, |wr| wr.wr.rdma = rdma(addr, rkey);
    fn wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = IBV_WR_RDMA_WRITE_WITH_IMM, |wr| {
        wr.wr.rdma = rdma(addr, rkey);
        wr.imm.imm_data = imm;
    };
    fn wr_rdma_read(rkey: u32, addr: u64) = IBV_WR_RDMA_READ, |wr| wr.wr.rdma = rdma(addr, rkey);
    fn wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = IBV_WR_ATOMIC_CMP_AND_SWP,
        |wr| wr.wr.atomic = atomic(addr, rkey, compare, swap);
    fn wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = IBV_WR_ATOMIC_FETCH_AND_ADD,
        |wr| wr.wr.atomic = atomic(addr, rkey, add, 0);
    fn wr_send_inv(rkey: u32) = IBV_WR_SEND_WITH_INV, |wr| wr.imm.invalidate_rkey = rkey;
    fn wr_local_inv(rkey: u32) = IBV_WR_LOCAL_INV, |wr| wr.imm.invalidate_rkey = rkey;
    fn wr_flush(rkey: u32, addr: u64, len: usize, placement: u8, selectivity: u8) = IBV_WR_FLUSH,
        |wr| wr.wr.atomic = FlushRange {
            rkey,
            remote_addr: addr,
            len: len as u64,
            placement,
            whole_region: selectivity != IBV_FLUSH_RANGE,
        }
        .operands();
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // SAFETY: as in `operations!`; NULL or the program's description.
    unsafe {
        begin(qp, IBV_WR_BIND_MW, |wr| {
            if let Some(&bind_info) = bind_info.as_ref() {
                wr.bind_tso.bind_mw = ibv_send_wr_bind_tso_bind_mw {
                    mw,
                    rkey,
                    bind_info,
                };
            }
        });
    }
}

/// "The 8 bytes of `atomic_wr` are copied", as if they were inline data (`ibv_wr_post(3)`).
unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    atomic_wr: *const c_void,
) {
    // SAFETY: as in `operations!`; 8 bytes are readable.
    unsafe {
        begin(qp, IBV_WR_ATOMIC_WRITE, |wr| {
            wr.wr.rdma = rdma(remote_addr, rkey);
        });
        with_last(qp, |_, list, last| {
            if atomic_wr.is_null() {
                return list.fail(libc::EINVAL);
            }
            let bytes = atomic_wr.cast::<[u8; 8]>().read_unaligned();
            list.copy_inline(last, &bytes);
        });
    }
}

fn rdma(remote_addr: u64, rkey: u32) -> ibv_send_wr_wr_rdma {
    ibv_send_wr_wr_rdma { remote_addr, rkey }
}

fn atomic(remote_addr: u64, rkey: u32, compare_add: u64, swap: u64) -> ibv_send_wr_wr_atomic {
    ibv_send_wr_wr_atomic {
        remote_addr,
        compare_add,
        swap,
        rkey,
    }
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: as in `operations!`.
    unsafe {
        with_last(qp, |_, list, last| {
            list.wrs[last].wr.wr.ud = ibv_send_wr_wr_ud {
                ah,
                remote_qpn: qpn,
                remote_qkey: qkey,
            };
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: as in `operations!`.
    unsafe {
        with_last(qp, |_, list, last| {
            list.wrs[last].wr.qp_type.xrc = ibv_send_wr_qp_type_xrc { remote_srqn };
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // "The SGE count is 0 if the length is 0" (`ibv_wr_post(3)`: a zero-length message needs no SGE).
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: as in `operations!`.
    unsafe { with_last(qp, |_, list, last| set_sges(list, last, &[sge])) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, n: usize, sges: *const ibv_sge) {
    // SAFETY: as in `operations!`; the list has `n` entries.
    unsafe {
        let sges = if n == 0 || sges.is_null() {
            &[]
        } else {
            std::slice::from_raw_parts(sges, n)
        };
        with_last(qp, |_, list, last| set_sges(list, last, sges));
    }
}

fn set_sges(list: &mut List, last: usize, sges: &[ibv_sge]) {
    let start = list.sges.len();
    list.sges.extend_from_slice(sges);
    list.wrs[last].sges = start..list.sges.len();
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: as in `operations!`; `length` bytes are readable.
    unsafe { set_inline(qp, &[ibv_data_buf { addr, length }]) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    n: usize,
    buffers: *const ibv_data_buf,
) {
    // SAFETY: as in `operations!`; the list has `n` entries.
    unsafe {
        let buffers = if n == 0 || buffers.is_null() {
            &[]
        } else {
            std::slice::from_raw_parts(buffers, n)
        };
        set_inline(qp, buffers);
    }
}

/// Copies the payload: "the buffers can be reused immediately" (`ibv_wr_post(3)`).
///
/// # Safety
/// As for [`building`]; the buffers are readable.
unsafe fn set_inline(qp: *mut ibv_qp_ex, buffers: &[ibv_data_buf]) {
    // SAFETY: contract of this function.
    unsafe {
        with_last(qp, |q, list, last| {
            let total = buffers
                .iter()
                .fold(0usize, |sum, b| sum.saturating_add(b.length));
            if total > q.max_inline_data() {
                return list.fail(libc::ENOMEM);
            }
            list.copy_inline(last, &[]);
            for b in buffers.iter().filter(|b| b.length != 0) {
                let from = std::slice::from_raw_parts(b.addr.cast::<u8>(), b.length);
                list.copy_inline(last, from);
            }
        });
    }
}
