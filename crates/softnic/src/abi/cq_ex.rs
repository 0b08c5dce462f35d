//! Completion queues with the extended poll API: `ibv_create_cq_ex(3)`.

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;

use rustix::time::{ClockId, clock_gettime};
use verbs_abi::*;

use super::cq::new_cq;
use super::data_path::deref_handle;
use super::edge::{Arg, In, Out, c_functions};
use crate::cq::{Cq, CurrentCompletion, ExtendedPollState};
use crate::faults;
use crate::live_handles;
use crate::recv::CompletionTag;

/// The fields of completions that are delivered.
const SUPPORTED_WC_FLAGS: u64 = IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_TM_INFO
    | IBV_WC_EX_WITH_FLOW_TAG
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

pub(super) fn create_cq_ex(
    context: *mut ibv_context,
    init: In<'_, ibv_cq_init_attr_ex>,
) -> Result<*mut ibv_cq_ex, c_int> {
    let _hold_off = cancellation::HoldOff::new();
    const SUPPORTED_CREATE_FLAGS: u32 =
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    let init = init.get()?;
    let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    let flags = if init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
        init.flags
    } else {
        0
    };
    if init.comp_mask & !known != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if init.wc_flags & !SUPPORTED_WC_FLAGS != 0 || flags & !SUPPORTED_CREATE_FLAGS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mut abi = ibv_cq_ex::zeroed();
    abi.context = context;
    abi.channel = init.channel;
    abi.cq_context = init.cq_context;
    let (start, next) = if faults::has_plan() {
        (
            start_poll_under_faults as StartPoll,
            next_poll_under_faults as NextPoll,
        )
    } else {
        (start_poll as StartPoll, next_poll as NextPoll)
    };
    abi.start_poll = Some(start);
    abi.next_poll = Some(next);
    abi.end_poll = Some(end_poll);
    abi.read_opcode = Some(read_opcode);
    abi.read_vendor_err = Some(read_vendor_err);
    abi.read_byte_len = Some(read_byte_len);
    abi.read_imm_data = Some(read_imm_data);
    abi.read_qp_num = Some(read_qp_num);
    abi.read_src_qp = Some(read_src_qp);
    abi.read_wc_flags = Some(read_wc_flags);
    abi.read_slid = Some(read_slid);
    abi.read_sl = Some(read_sl);
    abi.read_dlid_path_bits = Some(read_dlid_path_bits);
    abi.read_completion_ts = Some(read_completion_ts);
    abi.read_tm_info = Some(read_tm_info);
    abi.read_flow_tag = Some(read_flow_tag);
    abi.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    let polling = ExtendedPollState::new(init.wc_flags, flags);
    let cq = new_cq((init.cqe, init.comp_vector), abi, Some(polling))?;
    Ok(live_handles::make_handle(cq).cast())
}

/// The functions that begin and continue a poll.
type StartPoll = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
type NextPoll = unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int;

/// Returns the time of a clock in nanoseconds.
pub(super) fn now_ns(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec.cast_unsigned() * 1_000_000_000 + t.tv_nsec.cast_unsigned()
}

/// A queue and its extended part, owned by the thread that polls it. `None` if there is no such queue.
struct PolledCq<'a>(Option<(&'a Cq, &'a ExtendedPollState)>);

impl Arg for PolledCq<'_> {
    type C = *mut ibv_cq_ex;
    #[inline(always)]
    unsafe fn from_c(handle: *mut ibv_cq_ex) -> Self {
        // SAFETY: NULL or live, since the program polls it: "it should only be called after ibv_start_poll"
        // (`ibv_create_cq_ex(3)`).
        let cq = unsafe { deref_handle::<Cq>(handle.cast()) };
        Self(cq.and_then(|cq| Some((cq, cq.extended_poll_state.as_ref()?))))
    }
}

impl PolledCq<'_> {
    /// Reads a value of the current completion; 0 if there is no such queue.
    #[inline(always)]
    fn read_current<T: Default>(&self, f: impl FnOnce(&CurrentCompletion) -> T) -> T {
        self.0.map_or_else(T::default, |(_, polling)| {
            // SAFETY: `current` belongs to the thread that polls, which is this one (`ibv_create_cq_ex(3)`: only it may
            // read); the reference ends with `f`.
            f(unsafe { &*polling.current_completion() })
        })
    }
}

/// Makes the next completion the current one. Returns `ENOENT` if there is none.
///
/// The calling thread polls the queue: it has passed `ExtendedPollState::start`.
fn advance_to_next_completion<const FAULTS: bool>(cq: &Cq, polling: &ExtendedPollState) -> c_int {
    let mut out = [MaybeUninit::uninit()];
    let polled = if FAULTS {
        cq.poll_under_faults(&mut out)
    } else {
        cq.poll(&mut out)
    };
    if polled == 0 {
        return libc::ENOENT;
    }
    let [wc] = out;
    let handle = cq.handle().0.cast::<ibv_cq_ex>();
    // SAFETY: `poll` has filled one place (above); `current` and these fields of the structure, which `cq` keeps,
    // belong to the polling thread.
    unsafe {
        let wc = wc.assume_init();
        (*handle).wr_id = wc.wr_id;
        (*handle).status = wc.status;
        let current = &mut *polling.current_completion();
        current.wc = wc;
        current.tag = CompletionTag::take_from_completion(&mut current.wc);
        if polling.delivers_wc_field(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
            current.timestamp_ns = now_ns(ClockId::Monotonic);
        }
        if polling.delivers_wc_field(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
            current.wallclock_ns = now_ns(ClockId::Realtime);
        }
    }
    0
}

fn start_polling<const FAULTS: bool>(cq: PolledCq<'_>, attr: In<'_, ibv_poll_cq_attr>) -> c_int {
    let Some((cq, polling)) = cq.0 else {
        return libc::EINVAL;
    };
    if attr.optional().is_some_and(|a| a.comp_mask != 0) {
        return libc::EINVAL;
    }
    polling.acquire();
    let result = advance_to_next_completion::<FAULTS>(cq, polling);
    if result != 0 {
        // "Only if it succeeds is ibv_end_poll to be called" (`ibv_create_cq_ex(3)`).
        polling.release();
    }
    result
}

fn next<const FAULTS: bool>(cq: PolledCq<'_>) -> c_int {
    match cq.0 {
        Some((cq, polling)) => advance_to_next_completion::<FAULTS>(cq, polling),
        None => libc::EINVAL,
    }
}

fn end_ibv_poll(cq: PolledCq<'_>) {
    if let Some((_, polling)) = cq.0 {
        polling.release();
    }
}

fn tm_info(cq: PolledCq<'_>, info: Out<'_, ibv_wc_tm_info>) {
    let tag = cq.read_current(|c| c.tag);
    info.put(ibv_wc_tm_info {
        tag: tag.tag,
        r#priv: tag.app_context,
    });
}

c_functions! {
    start_poll => start_polling::<false>, (cq: PolledCq, attr: In<ibv_poll_cq_attr>) -> c_int;
    start_poll_under_faults => start_polling::<true>, (cq: PolledCq, attr: In<ibv_poll_cq_attr>) -> c_int;
    next_poll => next::<false>, (cq: PolledCq) -> c_int;
    next_poll_under_faults => next::<true>, (cq: PolledCq) -> c_int;
    end_poll => end_ibv_poll, (cq: PolledCq) -> ();
    read_tm_info => tm_info, (cq: PolledCq, info: Out<ibv_wc_tm_info>) -> ();
}

macro_rules! readers {
    ($($(#[$meta:meta])* fn $name:ident -> $type:ty = |$c:ident| $value:expr;)*) => {$(
        $(#[$meta])*
        unsafe extern "C" fn $name(handle: *mut ibv_cq_ex) -> $type {
            // SAFETY: the program reads a queue that this thread polls (`ibv_create_cq_ex(3)`).
            unsafe { PolledCq::from_c(handle) }.read_current(|$c| $value)
        }
    )*};
}

readers! {
    fn read_opcode -> ibv_wc_opcode = |c| c.wc.opcode;
    fn read_vendor_err -> u32 = |c| c.wc.vendor_err;
    fn read_byte_len -> u32 = |c| c.wc.byte_len;
    /// Also reads the invalidated R_Key: `ibv_wc_read_invalidated_rkey` of verbs.h calls this.
    fn read_imm_data -> u32 = |c| imm_data(c);
    /// A raw packet has the tag of its flow in place of an immediate.
    fn read_flow_tag -> u32 = |c| imm_data(c);
    fn read_qp_num -> u32 = |c| c.wc.qp_num;
    fn read_src_qp -> u32 = |c| c.wc.src_qp;
    fn read_wc_flags -> c_uint = |c| c.wc.wc_flags;
    fn read_slid -> u32 = |c| u32::from(c.wc.slid);
    fn read_sl -> u8 = |c| c.wc.sl;
    fn read_dlid_path_bits -> u8 = |c| c.wc.dlid_path_bits;
    fn read_completion_ts -> u64 = |c| c.timestamp_ns;
    fn read_completion_wallclock_ns -> u64 = |c| c.wallclock_ns;
}

#[inline(always)]
fn imm_data(current: &CurrentCompletion) -> u32 {
    // SAFETY: both members of the union are a `u32`.
    unsafe { current.wc.imm.imm_data }
}
