//! The extended APIs, `ibv_wr_*` and `ibv_start_poll`, whose operations are stored in each object.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;

use verbs_abi::*;

use crate::built_work_requests::{BuiltWr, FlushParameters};
use crate::count::{self, CountedCompletion};
use crate::objects::{CQS, Cq, QPS, Qp, key_of_handle, qp_key};
use crate::provider_operations::{PollOps, PostOps, WrFlushFn};
use crate::trace;

/// Returns the queue pair of a handle.
///
/// # Safety
/// `qp` is a live queue pair.
unsafe fn qp_of_handle(qp: *mut ibv_qp_ex) -> Option<&'static Qp> {
    // SAFETY: contract of this function.
    let key = unsafe { qp_key((*qp).qp_base.context, (*qp).qp_base.qp_num) };
    QPS.find(key)
}

/// Returns the list that the calling thread is building.
///
/// # Safety
/// The caller no longer uses an earlier result of this function.
#[expect(clippy::mut_from_ref, reason = "each thread has a list of its own")]
unsafe fn postlist_being_built(qp: &Qp) -> &mut Vec<BuiltWr> {
    // SAFETY: only this thread uses the list, and only during the functions below, which do not call each
    // other.
    unsafe { &mut *qp.thread_entry_or_create().built_wrs.get() }
}

/// Adds a work request to the list that the calling thread is building.
///
/// # Safety
/// `handle` is the handle of `qp`, between start and complete of this thread (`ibv_wr_post(3)`).
unsafe fn add_built_wr(qp: &Qp, handle: *mut ibv_qp_ex, built: BuiltWr) {
    // SAFETY: contract of this function; the program has set the two fields.
    unsafe {
        postlist_being_built(qp).push(BuiltWr {
            wr_id: (*handle).wr_id,
            flags: built.flags | (*handle).wr_flags & !IBV_SEND_INLINE,
            ..built
        });
    }
}

/// Saves a provider's operations of a queue pair, and replaces them by counting ones.
macro_rules! post_operations {
    (
        begin { $($begin:ident($($arg:ident: $type:ty),*) = $built:expr;)* }
        set { $($set:ident($($set_arg:ident: $set_type:ty),*), |$last:ident| $fill:expr;)* }
    ) => {
        /// Installs counting in a queue pair for `ibv_wr_*`; `flush` is the field of the FLUSH operation, if
        /// the queue pair has it.
        pub(crate) fn install_post(qp: &Qp, handle: &mut ibv_qp_ex, flush: Option<&mut WrFlushFn>) {
            let own = PostOps {
                $($begin: handle.$begin,)*
                $($set: handle.$set,)*
                wr_flush: flush.as_ref().and_then(|flush| **flush),
                wr_start: handle.wr_start,
                wr_complete: handle.wr_complete,
                wr_abort: handle.wr_abort,
            };
            if qp.post_ops.set(own).is_err() {
                return;
            }
            // An operation that the provider lacks stays NULL.
            $(handle.$begin = handle.$begin.and(Some($begin));)*
            $(handle.$set = handle.$set.and(Some($set));)*
            if let Some(flush) = flush {
                *flush = flush.and(Some(wr_flush));
            }
            handle.wr_start = handle.wr_start.and(Some(wr_start));
            handle.wr_complete = handle.wr_complete.and(Some(wr_complete));
            handle.wr_abort = handle.wr_abort.and(Some(wr_abort));
        }

        $(unsafe extern "C" fn $begin(handle: *mut ibv_qp_ex $(, $arg: $type)*) {
            // SAFETY: a queue pair between start and complete of this thread (`ibv_wr_post(3)`).
            unsafe {
                let Some(qp) = qp_of_handle(handle) else { return };
                if let Some(own) = qp.post_ops.get().and_then(|own| own.$begin) {
                    own(handle $(, $arg)*);
                }
                add_built_wr(qp, handle, $built);
            }
        })*

        $(unsafe extern "C" fn $set(handle: *mut ibv_qp_ex $(, $set_arg: $set_type)*) {
            // SAFETY: as above; lists have the length that the caller says.
            unsafe {
                let Some(qp) = qp_of_handle(handle) else { return };
                if let Some(own) = qp.post_ops.get().and_then(|own| own.$set) {
                    own(handle $(, $set_arg)*);
                }
                if let Some($last) = postlist_being_built(qp).last_mut() {
                    $fill;
                }
            }
        })*
    };
}

post_operations! {
    begin {
        wr_send() = BuiltWr::without_remote_address(IBV_WR_SEND);
        wr_send_imm(imm: u32) = BuiltWr::without_remote_address(IBV_WR_SEND_WITH_IMM);
        wr_send_inv(rkey: u32) = BuiltWr::without_remote_address(IBV_WR_SEND_WITH_INV);
        wr_rdma_write(rkey: u32, addr: u64) = BuiltWr::with_remote_address(IBV_WR_RDMA_WRITE, addr, rkey);
        wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = BuiltWr::with_remote_address(IBV_WR_RDMA_WRITE_WITH_IMM, addr, rkey);
        wr_rdma_read(rkey: u32, addr: u64) = BuiltWr::with_remote_address(IBV_WR_RDMA_READ, addr, rkey);
        wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) =
            BuiltWr::with_remote_address(IBV_WR_ATOMIC_CMP_AND_SWP, addr, rkey);
        wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = BuiltWr::with_remote_address(IBV_WR_ATOMIC_FETCH_AND_ADD, addr, rkey);
        // The value has 8 bytes, which the call copies (`ibv_wr_post(3)`, "atomic_wr").
        wr_atomic_write(rkey: u32, addr: u64, value: *const c_void) = BuiltWr {
            flags: IBV_SEND_INLINE,
            payload_bytes: 8,
            ..BuiltWr::with_remote_address(IBV_WR_ATOMIC_WRITE, addr, rkey)
        };
        wr_local_inv(rkey: u32) = BuiltWr::without_remote_address(IBV_WR_LOCAL_INV);
        wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) = BuiltWr::without_remote_address(IBV_WR_BIND_MW);
        wr_send_tso(header: *mut c_void, header_len: u16, mss: u16) = BuiltWr::without_remote_address(IBV_WR_TSO);
    }
    set {
        wr_set_ud_addr(ah: *mut ibv_ah, qpn: u32, qkey: u32), |last| {
            last.ah = ah;
            last.dest_qpn = qpn;
        };
        wr_set_sge(lkey: u32, addr: u64, length: u32), |last| {
            last.num_sge = 1;
            last.payload_bytes = length;
        };
        wr_set_sge_list(count: usize, sges: *const ibv_sge), |last| {
            last.num_sge = u32::try_from(count).unwrap_or(u32::MAX);
            last.payload_bytes = (0..count).fold(0, |sum, at| sum.saturating_add((*sges.add(at)).length));
        };
        wr_set_inline_data(addr: *mut c_void, length: usize), |last| {
            last.flags |= IBV_SEND_INLINE;
            last.payload_bytes = u32::try_from(length).unwrap_or(u32::MAX);
        };
        wr_set_inline_data_list(count: usize, buffers: *const ibv_data_buf), |last| {
            last.flags |= IBV_SEND_INLINE;
            let sum = (0..count).fold(0usize, |sum, at| sum.saturating_add((*buffers.add(at)).length));
            last.payload_bytes = u32::try_from(sum).unwrap_or(u32::MAX);
        };
    }
}

unsafe extern "C" fn wr_flush(
    handle: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    len: usize,
    placement: u8,
    selectivity: u8,
) {
    // SAFETY: a queue pair between start and complete of this thread.
    unsafe {
        let Some(qp) = qp_of_handle(handle) else {
            return;
        };
        if let Some(own) = qp.post_ops.get().and_then(|own| own.wr_flush) {
            own(handle, rkey, addr, len, placement, selectivity);
        }
        let flush = FlushParameters {
            len,
            placement,
            selectivity,
        };
        let built = BuiltWr {
            flush_parameters: Some(flush),
            ..BuiltWr::with_remote_address(IBV_WR_FLUSH, addr, rkey)
        };
        add_built_wr(qp, handle, built);
    }
}

unsafe extern "C" fn wr_start(handle: *mut ibv_qp_ex) {
    // SAFETY: a live queue pair.
    unsafe {
        let Some(qp) = qp_of_handle(handle) else {
            return;
        };
        if let Some(own) = qp.post_ops.get().and_then(|own| own.wr_start) {
            own(handle);
        }
        postlist_being_built(qp).clear();
    }
}

unsafe extern "C" fn wr_complete(handle: *mut ibv_qp_ex) -> c_int {
    // SAFETY: a queue pair between start and complete of this thread.
    unsafe {
        let Some((qp, own)) =
            qp_of_handle(handle).and_then(|qp| Some((qp, qp.post_ops.get()?.wr_complete?)))
        else {
            return libc::EINVAL;
        };
        let traced = trace::start_time_if_tracing();
        let result = own(handle);
        if let Some(at_ns) = traced {
            trace::trace_built_list(at_ns, handle, postlist_being_built(qp), result);
        }
        // The provider has posted the whole list or none of it (`ibv_wr_post(3)`).
        let built = postlist_being_built(qp);
        if result == 0 {
            count::count_posted(qp, built.iter().copied());
        } else {
            crate::mapped_counter_file::add_as_only_writer(
                &qp.thread_entry_or_create().cell.refused_wrs,
                built.len() as u64,
            );
        }
        built.clear();
        result
    }
}

unsafe extern "C" fn wr_abort(handle: *mut ibv_qp_ex) {
    // SAFETY: as in `wr_complete`.
    unsafe {
        let Some(qp) = qp_of_handle(handle) else {
            return;
        };
        postlist_being_built(qp).clear();
        if let Some(own) = qp.post_ops.get().and_then(|own| own.wr_abort) {
            own(handle);
        }
    }
}

/// Installs counting in a completion queue for `ibv_start_poll` and the other poll functions.
///
/// `wc_flags` are the completion fields that the program requested at creation: a provider may fill only
/// these fields.
pub(crate) fn install_poll_counting(cq: &Cq, handle: &mut ibv_cq_ex, wc_flags: u64) {
    let own = PollOps {
        start_poll: handle.start_poll,
        next_poll: handle.next_poll,
        end_poll: handle.end_poll,
        read_opcode: handle.read_opcode,
        read_wc_flags: handle.read_wc_flags,
        read_byte_len: handle
            .read_byte_len
            .filter(|_| wc_flags & IBV_WC_EX_WITH_BYTE_LEN != 0),
        read_qp_num: handle
            .read_qp_num
            .filter(|_| wc_flags & IBV_WC_EX_WITH_QP_NUM != 0),
    };
    if cq.poll_ops.set(own).is_ok() {
        handle.start_poll = handle.start_poll.and(Some(start_poll));
        handle.next_poll = handle.next_poll.and(Some(next_poll));
        handle.end_poll = handle.end_poll.and(Some(end_poll));
    }
}

/// Returns the completion queue of a handle, with the provider's operations.
fn cq_and_provider_poll_ops(handle: *mut ibv_cq_ex) -> Option<(&'static Cq, &'static PollOps)> {
    let cq = CQS.find(key_of_handle(handle))?;
    Some((cq, cq.poll_ops.get()?))
}

unsafe extern "C" fn start_poll(handle: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let Some((cq, own)) = cq_and_provider_poll_ops(handle) else {
        return libc::EINVAL;
    };
    // SAFETY: the caller promises a live queue and attributes.
    let result = own
        .start_poll
        .map_or(libc::EINVAL, |start| unsafe { start(handle, attr) });
    if result == 0 {
        cq.thread_entry_or_create()
            .completions_in_poll
            .store(1, Relaxed);
        // SAFETY: this thread has started polling the queue.
        unsafe { count_current_completion(cq, own, handle, "start_poll") };
    } else {
        count::count_empty_poll(cq);
        if trace::is_tracing_on() {
            trace::count_and_trace_empty_poll(handle.addr(), cq);
        }
    }
    result
}

unsafe extern "C" fn next_poll(handle: *mut ibv_cq_ex) -> c_int {
    let Some((cq, own)) = cq_and_provider_poll_ops(handle) else {
        return libc::EINVAL;
    };
    // SAFETY: the caller promises that this thread polls the queue.
    let result = own
        .next_poll
        .map_or(libc::EINVAL, |next| unsafe { next(handle) });
    if result == 0 {
        crate::mapped_counter_file::add_as_only_writer(
            &cq.thread_entry_or_create().completions_in_poll,
            1,
        );
        // SAFETY: as above.
        unsafe { count_current_completion(cq, own, handle, "next_poll") };
    }
    result
}

unsafe extern "C" fn end_poll(handle: *mut ibv_cq_ex) {
    let Some((cq, own)) = cq_and_provider_poll_ops(handle) else {
        return;
    };
    count::count_successful_poll(
        cq,
        cq.thread_entry_or_create()
            .completions_in_poll
            .swap(0, Relaxed),
    );
    if let Some(end) = own.end_poll {
        // SAFETY: the caller promises that this thread polls the queue.
        unsafe { end(handle) };
    }
}

/// Counts the current completion of a queue, which the poll function named `verb` has returned.
///
/// # Safety
/// The calling thread polls the queue, and there is a current completion.
unsafe fn count_current_completion(cq: &Cq, own: &PollOps, handle: *mut ibv_cq_ex, verb: &str) {
    // SAFETY: contract of this function; the fields were requested, or always exist.
    unsafe {
        let read = |field: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>| {
            field.map_or(0, |read| read(handle))
        };
        let completion = CountedCompletion {
            // A provider that cannot read the QP number gives 0xffffff, which belongs to no queue pair: this
            // number is reserved for multicast (IBTA vol. 1, 3.5.3).
            qpn: own.read_qp_num.map_or(0xff_ffff, |read| read(handle)),
            is_success: (*handle).status == IBV_WC_SUCCESS,
            opcode: read(own.read_opcode),
            bytes: read(own.read_byte_len),
            has_imm: read(own.read_wc_flags) & IBV_WC_WITH_IMM != 0,
        };
        count::count_equal_completions(cq, completion, 1);
        if trace::is_tracing_on() {
            let ok = (*handle).status == IBV_WC_SUCCESS;
            let completion = trace::PolledCompletion {
                wr_id: (*handle).wr_id,
                status: (*handle).status,
                opcode: own.read_opcode.filter(|_| ok).map(|read| read(handle)),
                byte_len: own.read_byte_len.filter(|_| ok).map(|read| read(handle)),
                qp_num: own.read_qp_num.map(|read| read(handle)),
                vendor_err: (*handle).read_vendor_err.map_or(0, |read| read(handle)),
            };
            trace::trace_found_completion(verb, handle, cq, &completion);
        }
    }
}
