//! The state of the extended poll API for a completion queue: `ibv_create_cq_ex(3)`.
//!
//! From a successful `ibv_start_poll` to `ibv_end_poll` the queue belongs to one thread, which reads one completion at
//! a time: the current one.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

use verbs_abi::*;

use crate::recv::CompletionTag;

/// The extended part of a completion queue.
pub(crate) struct ExtendedPollState {
    /// True while a thread is between `ibv_start_poll` and `ibv_end_poll`.
    is_polling: AtomicBool,
    /// True if the program itself ensures that only one thread polls (`IBV_CREATE_CQ_ATTR_SINGLE_THREADED`).
    is_single_threaded: bool,
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
    pub(crate) ignores_overrun: bool,
    wc_flags: u64,
    current_completion: UnsafeCell<CurrentCompletion>,
}

// SAFETY: `current_completion` is reached through `ExtendedPollState::current_completion` alone, whose callers are the
// one thread that polls; the rest is atomic or constant.
unsafe impl Sync for ExtendedPollState {}

/// The current completion.
pub(crate) struct CurrentCompletion {
    pub(crate) wc: ibv_wc,
    pub(crate) timestamp_ns: u64,
    pub(crate) wallclock_ns: u64,
    pub(crate) tag: CompletionTag,
}

impl ExtendedPollState {
    pub(crate) fn new(wc_flags: u64, flags: u32) -> Self {
        Self {
            is_polling: AtomicBool::new(false),
            is_single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
            ignores_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
            wc_flags,
            current_completion: UnsafeCell::new(CurrentCompletion {
                wc: ibv_wc::zeroed(),
                timestamp_ns: 0,
                wallclock_ns: 0,
                tag: CompletionTag::default(),
            }),
        }
    }

    /// Acquires the queue for this thread, until [`release`](Self::release).
    pub(crate) fn acquire(&self) {
        if self.is_single_threaded {
            return;
        }
        while self.is_polling.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn release(&self) {
        self.is_polling.store(false, Ordering::Release);
    }

    /// Returns true if the queue was made to deliver this field.
    #[inline(always)]
    pub(crate) fn delivers_wc_field(&self, wc_flag: u64) -> bool {
        self.wc_flags & wc_flag != 0
    }

    /// Returns the current completion, which belongs to the polling thread.
    #[inline(always)]
    pub(crate) fn current_completion(&self) -> *mut CurrentCompletion {
        self.current_completion.get()
    }
}
