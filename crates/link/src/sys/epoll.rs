//! The ready descriptors of an epoll instance.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Largest number of descriptors that one call finds.
pub(crate) const MAX_READY_FDS_PER_CALL: usize = 16;

/// Calls `ready` with the registered number of each readable descriptor, without waiting.
///
/// The code does not call `epoll_wait(3)`, which is a cancellation point. It passes all six arguments, because memcheck
/// requires initialised values.
pub(crate) fn for_each_ready_fd(epoll: BorrowedFd<'_>, mut ready: impl FnMut(u64)) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX_READY_FDS_PER_CALL];
    // SAFETY: the kernel writes at most `MAX_READY_FDS_PER_CALL` events, and no signal mask is passed.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            MAX_READY_FDS_PER_CALL,
            0,
            std::ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    };
    // The only possible error is an interrupt; the next call finds the ready descriptors.
    for event in &events[..usize::try_from(count).unwrap_or(0)] {
        ready(event.u64);
    }
}
