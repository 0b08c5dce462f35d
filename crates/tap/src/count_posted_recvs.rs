//! Counting of receives that are posted to a queue pair or a shared receive queue.
//!
//! Programs post most receives one at a time, and a receiver often limits a message rate. The path of a
//! receive with the same buffer size as the previous one is therefore as short as possible. It keeps only the
//! counter's address across the provider's call, and increments one word. All other cases are handled out of
//! line.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use verbs_abi::*;

use crate::layout::RecvCounters;
use crate::mapped_counter_file::add_as_only_writer;
use crate::object_table::OpenAddressingTable;
use crate::objects::{Context, QPS_BY_HANDLE, Qp, SRQS, Srq, context_of_handle, key_of_handle};
use crate::postlist::{bad_wr_slot, sge_count_and_bytes, sge_length};
use crate::trace;

/// A provider's `post_recv` or `post_srq_recv`.
type PostRecvsFn<H> =
    unsafe extern "C" fn(*mut H, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// A queue that accepts receives.
pub(crate) trait ReceivingQueue: Sized + 'static {
    type Handle;
    /// Name of the function that posts receives, and name of the queue's kind, in a trace.
    const POST_VERB_AND_QUEUE_KIND: (&'static str, &'static str);
    const QUEUES_BY_HANDLE: &'static OpenAddressingTable<Self>;

    /// Returns the device of a handle.
    ///
    /// # Safety
    /// The handle is live.
    unsafe fn device(handle: *mut Self::Handle) -> *mut ibv_context;

    /// Returns the provider's operation that posts receives to a queue of this kind.
    fn provider_post_op_of_context(context: &Context) -> Option<PostRecvsFn<Self::Handle>>;
    fn provider_post_op(&self) -> Option<PostRecvsFn<Self::Handle>>;

    /// Returns the calling thread's counters, if it has them.
    fn counters_if_any(&self) -> Option<&'static RecvCounters<AtomicU64>>;
    /// Returns the calling thread's counters, and makes them if necessary.
    fn counters_or_create(&self) -> &'static RecvCounters<AtomicU64>;
}

macro_rules! queue {
    ($type:ty, $handle:ty, $all:ident, $call:ident, $own_call:ident, $kind:literal) => {
        impl ReceivingQueue for $type {
            type Handle = $handle;
            const POST_VERB_AND_QUEUE_KIND: (&'static str, &'static str) =
                (stringify!($call), $kind);
            const QUEUES_BY_HANDLE: &'static OpenAddressingTable<Self> = &$all;

            unsafe fn device(handle: *mut $handle) -> *mut ibv_context {
                // SAFETY: contract of this function.
                unsafe { (*handle).context }
            }

            fn provider_post_op_of_context(context: &Context) -> Option<PostRecvsFn<$handle>> {
                context.ops.$call
            }

            #[inline(always)]
            fn provider_post_op(&self) -> Option<PostRecvsFn<$handle>> {
                self.$own_call
            }

            #[inline(always)]
            fn counters_if_any(&self) -> Option<&'static RecvCounters<AtomicU64>> {
                Some(&self.existing_entry()?.cell.recvs)
            }

            fn counters_or_create(&self) -> &'static RecvCounters<AtomicU64> {
                &self.thread_entry_or_create().cell.recvs
            }
        }
    };
}

queue!(
    Qp,
    ibv_qp,
    QPS_BY_HANDLE,
    post_recv,
    provider_post_recv,
    "qp"
);
queue!(
    Srq,
    ibv_srq,
    SRQS,
    post_srq_recv,
    provider_post_srq_recv,
    "srq"
);

/// Posts and counts receives. Before the provider's call, the function detects whether a receive has the same
/// buffer size as the previous one.
///
/// # Safety
/// The contract of `ibv_post_recv(3)` or `ibv_post_srq_recv(3)` applies.
pub(crate) unsafe extern "C" fn post<Q: ReceivingQueue>(
    handle: *mut Q::Handle,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: contract of this function; the provider's operation gets the same arguments.
    unsafe {
        if let Some(one) = wr.as_ref()
            && one.next.is_null()
            && one.num_sge == 1
            && !one.sg_list.is_null()
            && !bad_wr.is_null()
            && let Some(queue) = Q::QUEUES_BY_HANDLE.find_in_first_slot(key_of_handle(handle))
            && let Some(post) = queue.provider_post_op()
            && let Some(known) = queue.counters_if_any()
            && known.repeated_buffer_bytes.load(Relaxed) == u64::from(sge_length(one.sg_list))
        {
            let result = post(handle, wr, bad_wr);
            if result == 0 {
                add_as_only_writer(&known.unmerged_repeated_recvs, 1);
            }
            return result;
        }
        post_counted::<Q>(handle, wr, bad_wr)
    }
}

/// Posts and counts as [`post`] does, for lists and for receives that differ from the previous one.
///
/// # Safety
/// The contract of [`post`] applies.
#[inline(never)]
unsafe extern "C" fn post_counted<Q: ReceivingQueue>(
    handle: *mut Q::Handle,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut own = ptr::null_mut();
    let bad_wr = bad_wr_slot(bad_wr, &mut own);
    // SAFETY: contract of this function; the provider's operation gets the same arguments.
    unsafe {
        if let Some(queue) = Q::QUEUES_BY_HANDLE.find_in_first_slot(key_of_handle(handle))
            && let Some(post) = queue.provider_post_op()
        {
            let result = post(handle, wr, bad_wr);
            return count_posted_recvs(queue, wr, bad_wr, result);
        }
        post_traced::<Q>(handle, wr, bad_wr)
    }
}

/// Posts as [`post`] does, with a trace line if tracing is on. The function also handles queues that are not
/// counted or not in their first table slot.
///
/// # Safety
/// The contract of [`post`] applies.
#[cold]
#[inline(never)]
pub(crate) unsafe extern "C" fn post_traced<Q: ReceivingQueue>(
    handle: *mut Q::Handle,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut place = ptr::null_mut();
    let bad_wr = bad_wr_slot(bad_wr, &mut place);
    // SAFETY: contract of this function; the provider's operation gets the same arguments.
    unsafe {
        let queue = Q::QUEUES_BY_HANDLE.find(key_of_handle(handle));
        let own = match queue {
            Some(queue) => queue.provider_post_op(),
            None => context_of_handle(Q::device(handle)).and_then(Q::provider_post_op_of_context),
        };
        let Some(post) = own else {
            *bad_wr = wr;
            return libc::EINVAL;
        };
        let traced = trace::start_time_if_tracing();
        let result = post(handle, wr, bad_wr);
        if let Some(at_ns) = traced {
            let (call, kind) = Q::POST_VERB_AND_QUEUE_KIND;
            let queue = (call, trace::HandleKind(kind), handle.addr());
            trace::trace_posted_recvs(at_ns, queue, wr, first_refused_recv(bad_wr, result), result);
        }
        match queue {
            Some(queue) => count_posted_recvs(queue, wr, bad_wr, result),
            None => result,
        }
    }
}

/// Returns the first receive of a list that the provider refused; NULL if the provider accepted all receives.
///
/// # Safety
/// `result` is the provider's result. If it is an error, `bad_wr` points to the refused receive.
unsafe fn first_refused_recv(bad_wr: *mut *mut ibv_recv_wr, result: c_int) -> *mut ibv_recv_wr {
    if result == 0 {
        ptr::null_mut()
    } else {
        // SAFETY: contract of this function.
        unsafe { *bad_wr }
    }
}

/// Counts the accepted part of a list according to the provider's `result`, and returns `result`. A caller
/// whose last action is this call keeps no values across it.
///
/// # Safety
/// The list is as `ibv_post_recv(3)` describes it. If `result` is an error, `bad_wr` points to the refused
/// receive.
#[inline(never)]
unsafe fn count_posted_recvs<Q: ReceivingQueue>(
    queue: &Q,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    result: c_int,
) -> c_int {
    // SAFETY: contract of this function.
    unsafe {
        let end = first_refused_recv(bad_wr, result);
        let (mut next, mut count, mut bytes) = (wr, 0, 0);
        while next != end
            && let Some(this) = next.as_ref()
        {
            count += 1;
            bytes += u64::from(sge_count_and_bytes(this.sg_list, this.num_sge).1);
            next = this.next;
        }
        queue.counters_or_create().count_post_call(count, bytes);
    }
    result
}

impl RecvCounters<AtomicU64> {
    /// Counts a call that posted `count` receives, whose buffers have `bytes` bytes in all.
    fn count_post_call(&self, count: u64, bytes: u64) {
        let (repeated, room) = (
            self.unmerged_repeated_recvs.load(Relaxed),
            self.repeated_buffer_bytes.load(Relaxed),
        );
        self.unmerged_repeated_recvs.store(0, Relaxed);
        add_as_only_writer(&self.post_calls, repeated + 1);
        add_as_only_writer(&self.posted_recvs, repeated + count);
        add_as_only_writer(&self.buffer_bytes, repeated * room + bytes);
        if count == 1 {
            self.repeated_buffer_bytes.store(bytes, Relaxed);
        }
    }
}
