//! Completion queues with the extended poll API: `ibv_create_cq_ex(3)`.
//!
//! From a successful `ibv_start_poll` to `ibv_end_poll` the queue belongs to one thread, which looks at one
//! completion at a time: the current one.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::time::{ClockId, clock_gettime};
use verbs_abi::*;

use super::objects::create_cq;
use super::*;
use crate::cq::Cq;
use crate::recv::TagInfo;
use crate::xrc;

/// The fields of completions that are delivered.
const SUPPORTED: u64 = IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_TM_INFO
    | IBV_WC_EX_WITH_FLOW_TAG
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// What the extended poll API keeps of a queue.
pub(crate) struct Polling {
    /// A thread is between start and end.
    busy: AtomicBool,
    /// That is left to the program (`IBV_CREATE_CQ_ATTR_SINGLE_THREADED`).
    single_threaded: bool,
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
    pub(crate) ignores_overrun: bool,
    wc_flags: u64,
    current: UnsafeCell<Current>,
}

/// The current completion; it belongs to the thread that polls.
struct Current {
    wc: ibv_wc,
    timestamp_ns: u64,
    wallclock_ns: u64,
    tag: TagInfo,
}

impl Polling {
    fn new(wc_flags: u64, flags: u32) -> Self {
        Self {
            busy: AtomicBool::new(false),
            single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
            ignores_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            wc_flags,
            current: UnsafeCell::new(Current {
                wc: ibv_wc::zeroed(),
                timestamp_ns: 0,
                wallclock_ns: 0,
                tag: TagInfo::default(),
            }),
        }
    }

    fn start(&self) {
        if self.single_threaded {
            return;
        }
        while self.busy.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    fn end(&self) {
        self.busy.store(false, Ordering::Release);
    }
}

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let _hold_off = cancellation::HoldOff::new();
    const FLAGS: u32 = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    // SAFETY: NULL or the program's attributes.
    let Some(init) = (unsafe { init.as_ref() }) else {
        return or_null(Err(libc::EINVAL));
    };
    let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    let flags = if init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
        init.flags
    } else {
        0
    };
    if init.comp_mask & !known != 0 {
        return or_null(Err(libc::EINVAL));
    }
    if init.wc_flags & !SUPPORTED != 0 || flags & !FLAGS != 0 {
        return or_null(Err(libc::EOPNOTSUPP));
    }
    let polling = Polling::new(init.wc_flags, flags);
    // SAFETY: handles of ours.
    let made = unsafe {
        create_cq(
            context,
            (init.cqe, init.comp_vector),
            init.cq_context,
            init.channel,
            Some(polling),
        )
    };
    or_null(made.map(|cq| {
        let cq = cq.cast::<ibv_cq_ex>();
        // SAFETY: nobody else has seen the queue yet; each starts with a whole `ibv_cq_ex`.
        let ops = unsafe { &mut *cq };
        ops.start_poll = Some(start_poll);
        ops.next_poll = Some(next_poll);
        ops.end_poll = Some(end_poll);
        ops.read_opcode = Some(read_opcode);
        ops.read_vendor_err = Some(read_vendor_err);
        ops.read_byte_len = Some(read_byte_len);
        ops.read_imm_data = Some(read_imm_data);
        ops.read_qp_num = Some(read_qp_num);
        ops.read_src_qp = Some(read_src_qp);
        ops.read_wc_flags = Some(read_wc_flags);
        ops.read_slid = Some(read_slid);
        ops.read_sl = Some(read_sl);
        ops.read_dlid_path_bits = Some(read_dlid_path_bits);
        ops.read_completion_ts = Some(read_completion_ts);
        ops.read_tm_info = Some(read_tm_info);
        ops.read_flow_tag = Some(read_flow_tag);
        ops.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
        cq
    }))
}

/// Makes the next completion the current one. `ENOENT` if there is none.
///
/// # Safety
/// `handle` is a queue of ours and this thread polls it.
unsafe fn advance(handle: *mut ibv_cq_ex, cq: &Cq, polling: &Polling) -> c_int {
    let mut out = [MaybeUninit::uninit()];
    if xrc::in_use() {
        xrc::progress(cq.nic);
    }
    if cq.poll_on(&mut out, true) == 0 {
        return libc::ENOENT;
    }
    let [wc] = out;
    // SAFETY: the poll has filled it; `current` and the fields of the handle belong to the polling thread.
    unsafe {
        let wc = wc.assume_init();
        (*handle).wr_id = wc.wr_id;
        (*handle).status = wc.status;
        let current = &mut *polling.current.get();
        current.wc = wc;
        current.tag = TagInfo::take(&mut current.wc);
        if polling.wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP != 0 {
            current.timestamp_ns = now_ns(ClockId::Monotonic);
        }
        if polling.wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK != 0 {
            current.wallclock_ns = now_ns(ClockId::Realtime);
        }
    }
    0
}

/// A clock's time.
pub(super) fn now_ns(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_nsec.cast_unsigned()
}

/// The queue and its extended side.
///
/// # Safety
/// `handle` is a queue of ours that is not destroyed while the result is used.
unsafe fn polled<'a>(handle: *mut ibv_cq_ex) -> Option<(&'a Cq, &'a Polling)> {
    // SAFETY: contract of this function.
    let cq = unsafe { follow::<Cq, _>(handle) }?;
    Some((cq, cq.polling.as_ref()?))
}

unsafe extern "C" fn start_poll(handle: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: a handle of ours; NULL or the program's attributes.
    let (cq, attr) = unsafe { (polled(handle), attr.as_ref()) };
    let Some((cq, polling)) = cq else {
        return libc::EINVAL;
    };
    if attr.is_some_and(|a| a.comp_mask != 0) {
        return libc::EINVAL;
    }
    polling.start();
    // SAFETY: this thread polls now.
    let result = unsafe { advance(handle, cq, polling) };
    if result != 0 {
        // "Only if it succeeds is ibv_end_poll to be called" (`ibv_create_cq_ex(3)`).
        cq.polled();
        polling.end();
    }
    result
}

unsafe extern "C" fn next_poll(handle: *mut ibv_cq_ex) -> c_int {
    // SAFETY: a handle of ours, and this thread polls it (`ibv_create_cq_ex(3)`).
    unsafe {
        match polled(handle) {
            Some((cq, polling)) => advance(handle, cq, polling),
            None => libc::EINVAL,
        }
    }
}

unsafe extern "C" fn end_poll(handle: *mut ibv_cq_ex) {
    // SAFETY: a handle of ours.
    if let Some((cq, polling)) = unsafe { polled(handle) } {
        cq.polled();
        polling.end();
    }
}

/// Reads something of the current completion; 0 where there is no such queue.
///
/// # Safety
/// `handle` is a queue of ours and this thread polls it.
unsafe fn read<T: Default>(handle: *mut ibv_cq_ex, f: impl FnOnce(&Current) -> T) -> T {
    // SAFETY: contract of this function.
    unsafe { polled(handle).map_or_else(T::default, |(_, p)| f(&*p.current.get())) }
}

unsafe extern "C" fn read_tm_info(handle: *mut ibv_cq_ex, info: *mut ibv_wc_tm_info) {
    // SAFETY: as for the readers below; NULL or a place for the answer.
    unsafe {
        let tag = read(handle, |c| c.tag);
        if let Some(info) = info.as_mut() {
            info.tag = tag.tag;
            info.r#priv = tag.app;
        }
    }
}

macro_rules! readers {
    ($($(#[$meta:meta])* fn $name:ident -> $type:ty = |$c:ident| $value:expr;)*) => {$(
        $(#[$meta])*
        unsafe extern "C" fn $name(handle: *mut ibv_cq_ex) -> $type {
            // SAFETY: a handle of ours, read by the thread that polls it (`ibv_create_cq_ex(3)`).
            unsafe { read(handle, |$c| $value) }
        }
    )*};
}

readers! {
    fn read_opcode -> ibv_wc_opcode = |c| c.wc.opcode;
    fn read_vendor_err -> u32 = |c| c.wc.vendor_err;
    fn read_byte_len -> u32 = |c| c.wc.byte_len;
    /// Also for the invalidated R_Key: `ibv_wc_read_invalidated_rkey` of verbs.h calls this.
    fn read_imm_data -> u32 = |c| c.wc.imm.imm_data;
    /// A raw packet has its flow's tag where others have an immediate.
    fn read_flow_tag -> u32 = |c| c.wc.imm.imm_data;
    fn read_qp_num -> u32 = |c| c.wc.qp_num;
    fn read_src_qp -> u32 = |c| c.wc.src_qp;
    fn read_wc_flags -> c_uint = |c| c.wc.wc_flags;
    fn read_slid -> u32 = |c| u32::from(c.wc.slid);
    fn read_sl -> u8 = |c| c.wc.sl;
    fn read_dlid_path_bits -> u8 = |c| c.wc.dlid_path_bits;
    fn read_completion_ts -> u64 = |c| c.timestamp_ns;
    fn read_completion_wallclock_ns -> u64 = |c| c.wallclock_ns;
}
