//! The simulation of the calling thread; without the feature `simnic`, no thread is simulated.

#[cfg(feature = "simnic")]
pub(crate) use simnic::{
    is_simulated, now, now_ns, poll_cqs_while_empty, spend_core_time, spend_empty_memory_polls,
    spend_random_accesses, spend_server_request_work, spend_shared_atomic_add,
    suspend_while_polling_cq, suspend_while_polling_memory, wait_until_channel_readable,
};

#[cfg(not(feature = "simnic"))]
pub(crate) use never::{
    is_simulated, now, now_ns, poll_cqs_while_empty, spend_core_time, spend_empty_memory_polls,
    spend_random_accesses, spend_server_request_work, spend_shared_atomic_add,
    suspend_while_polling_cq, suspend_while_polling_memory, wait_until_channel_readable,
};

/// The functions of `simnic` as a thread without a simulation sees them. The compiler removes the branches that call
/// them.
#[cfg(not(feature = "simnic"))]
mod never {
    use std::time::Duration;

    #[inline(always)]
    pub(crate) fn is_simulated() -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn now() -> Option<Duration> {
        None
    }

    #[inline(always)]
    pub(crate) fn now_ns() -> Option<u64> {
        None
    }

    #[inline(always)]
    pub(crate) fn suspend_while_polling_cq(misses: u32, _until_ns: u64) -> u32 {
        misses
    }

    #[inline(always)]
    pub(crate) fn suspend_while_polling_memory(misses: u32, _rkey: Option<u32>) -> u32 {
        misses
    }

    #[inline(always)]
    pub(crate) fn poll_cqs_while_empty(_cqs: &[u32]) -> usize {
        0
    }

    #[inline(always)]
    pub(crate) fn wait_until_channel_readable(_fd: i32, _at_most: Duration) -> bool {
        false
    }

    #[inline(always)]
    pub(crate) fn spend_core_time(_work: Duration) {}

    #[inline(always)]
    pub(crate) fn spend_server_request_work(_count: u64) {}

    #[inline(always)]
    pub(crate) fn spend_empty_memory_polls(_count: u64) {}

    #[inline(always)]
    pub(crate) fn spend_shared_atomic_add(_addr: u64) {}

    #[inline(always)]
    pub(crate) fn spend_random_accesses(_working_set_bytes: u64, _lines: u64, _overlapped: u64) {}
}
