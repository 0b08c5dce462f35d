//! RECVs, posted to a queue pair or a shared receive queue, and counted.
//!
//! Programs post most RECVs one at a time, and a receiver is often what bounds a message rate, so the way of one that
//! is like the one before is as short as it can be: nothing is kept over the provider's call but the list and the
//! queue, and one word is counted up. Everything else is done out of line.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use verbs_abi::*;

use crate::data_path::{context_of, key_of_qp, place_for_bad, room};
use crate::layout::Recvs;
use crate::objects::{Context, QPS, Qp, SRQS, Srq, key_of};
use crate::session::add;
use crate::table::Table;
use crate::trace;

/// A provider's `post_recv` or `post_srq_recv`.
type PostRecvs<H> = unsafe extern "C" fn(*mut H, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// What RECVs are posted to.
pub(crate) trait Queue: Sized + 'static {
    type Handle;
    /// The call, and what it is called on, in a trace.
    const CALL: (&'static str, &'static str);
    const ALL: &'static Table<Self>;

    /// The key among all.
    ///
    /// # Safety
    /// The handle is live.
    unsafe fn key(handle: *mut Self::Handle) -> u64;

    /// The device of a handle.
    ///
    /// # Safety
    /// The handle is live.
    unsafe fn device(handle: *mut Self::Handle) -> *mut ibv_context;

    fn context(&self) -> &'static Context;
    fn post(context: &Context) -> Option<PostRecvs<Self::Handle>>;

    /// The calling thread's counters, if it has some.
    fn known(&self) -> Option<&'static Recvs<AtomicU64>>;
    /// The calling thread's counters.
    fn counters(&self) -> &'static Recvs<AtomicU64>;
}

macro_rules! queue {
    ($type:ty, $handle:ty, $all:ident, $call:ident, $kind:literal, $key:expr) => {
        impl Queue for $type {
            type Handle = $handle;
            const CALL: (&'static str, &'static str) = (stringify!($call), $kind);
            const ALL: &'static Table<Self> = &$all;

            #[inline(always)]
            unsafe fn key(handle: *mut $handle) -> u64 {
                // SAFETY: contract of this function.
                #[allow(unused_unsafe, reason = "the address is enough for some")]
                unsafe {
                    $key(handle)
                }
            }

            unsafe fn device(handle: *mut $handle) -> *mut ibv_context {
                // SAFETY: contract of this function.
                unsafe { (*handle).context }
            }

            #[inline(always)]
            fn context(&self) -> &'static Context {
                self.context
            }

            #[inline(always)]
            fn post(context: &Context) -> Option<PostRecvs<$handle>> {
                context.ops.$call
            }

            #[inline(always)]
            fn known(&self) -> Option<&'static Recvs<AtomicU64>> {
                Some(&self.known_use()?.cell.recvs)
            }

            fn counters(&self) -> &'static Recvs<AtomicU64> {
                &self.mine().cell.recvs
            }
        }
    };
}

queue!(Qp, ibv_qp, QPS, post_recv, "qp", key_of_qp);
queue!(Srq, ibv_srq, SRQS, post_srq_recv, "srq", key_of);

/// Posts and counts.
///
/// # Safety
/// As `ibv_post_recv(3)` or `ibv_post_srq_recv(3)`.
pub(crate) unsafe extern "C" fn post<Q: Queue>(
    handle: *mut Q::Handle,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut own = ptr::null_mut();
    let bad_wr = place_for_bad(bad_wr, &mut own);
    // SAFETY: contract of this function; the provider's operation gets the same.
    unsafe {
        if let Some(queue) = Q::ALL.find_first(Q::key(handle))
            && let Some(post) = Q::post(queue.context())
        {
            let result = post(handle, wr, bad_wr);
            if let Some(known) = queue.known()
                && result == 0
                && let Some(one) = wr.as_ref()
                && one.next.is_null()
                && one.num_sge == 1
                && known.add_one_alike(crate::data_path::length_at(one.sg_list))
            {
                return 0;
            }
            return count(queue, wr, bad_wr, result);
        }
        post_traced::<Q>(handle, wr, bad_wr)
    }
}

/// As [`post`], with a line of the trace if there is one, and for queues that are hard to find or not counted.
///
/// # Safety
/// As that.
#[cold]
#[inline(never)]
pub(crate) unsafe extern "C" fn post_traced<Q: Queue>(
    handle: *mut Q::Handle,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut own = ptr::null_mut();
    let bad_wr = place_for_bad(bad_wr, &mut own);
    // SAFETY: contract of this function; the provider's operation gets the same.
    unsafe {
        let queue = Q::ALL.find(Q::key(handle));
        let context = queue.map(Q::context);
        let context = context.or_else(|| context_of(Q::device(handle)));
        let Some(post) = context.and_then(Q::post) else {
            *bad_wr = wr;
            return libc::EINVAL;
        };
        let traced = trace::started();
        let result = post(handle, wr, bad_wr);
        if let Some(at_ns) = traced {
            let (call, kind) = Q::CALL;
            let queue = (call, trace::Kind(kind), handle.addr());
            trace::recvs_posted(at_ns, queue, wr, end_of(bad_wr, result), result);
        }
        match queue {
            Some(queue) => count(queue, wr, bad_wr, result),
            None => result,
        }
    }
}

/// The first RECV of a list that a provider did not take; NULL if there is none.
///
/// # Safety
/// `result` is the provider's, and where it is an error, `bad_wr` has what was refused.
unsafe fn end_of(bad_wr: *mut *mut ibv_recv_wr, result: c_int) -> *mut ibv_recv_wr {
    if result == 0 {
        ptr::null_mut()
    } else {
        // SAFETY: contract of this function.
        unsafe { *bad_wr }
    }
}

/// Counts what a provider took of a list, as its `result` says, which is returned: so a caller that ends with this
/// keeps nothing for itself.
///
/// # Safety
/// It is a list as `ibv_post_recv(3)` describes it, and `bad_wr` has what was refused, if something was.
#[inline(never)]
unsafe fn count<Q: Queue>(
    queue: &Q,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    result: c_int,
) -> c_int {
    // SAFETY: contract of this function.
    unsafe {
        let end = end_of(bad_wr, result);
        let (mut next, mut count, mut bytes) = (wr, 0, 0);
        while next != end
            && let Some(this) = next.as_ref()
        {
            count += 1;
            bytes += u64::from(room(this.sg_list, this.num_sge).1);
            next = this.next;
        }
        queue.counters().add(count, bytes);
    }
    result
}

impl Recvs<AtomicU64> {
    /// Counts a RECV that was posted alone, if it is like the one before; false if it is not.
    #[inline(always)]
    fn add_one_alike(&self, room: u32) -> bool {
        let alike = self.alike_room.load(Relaxed) == u64::from(room);
        if alike {
            add(&self.alike, 1);
        }
        alike
    }

    /// Counts a call that posted RECVs.
    fn add(&self, count: u64, bytes: u64) {
        let (alike, room) = (self.alike.load(Relaxed), self.alike_room.load(Relaxed));
        self.alike.store(0, Relaxed);
        add(&self.posts, alike + 1);
        add(&self.wrs, alike + count);
        add(&self.bytes, alike * room + bytes);
        if count == 1 {
            self.alike_room.store(bytes, Relaxed);
        }
    }
}
