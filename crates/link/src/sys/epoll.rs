//! Which descriptors of an epoll instance are ready.

use std::os::fd::{AsRawFd, BorrowedFd};

/// Descriptors that one look finds at most.
pub(crate) const MAX_READY: usize = 16;

/// Calls `ready` with the number that each readable descriptor was registered with, without waiting.
///
/// Six arguments, all with a value, as memcheck wants them; and not `epoll_wait(3)`, which is a cancellation point.
pub(crate) fn for_each_ready(epoll: BorrowedFd<'_>, mut ready: impl FnMut(u64)) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; MAX_READY];
    // SAFETY: the kernel writes at most `MAX_READY` events; there is no signal mask.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            epoll.as_raw_fd(),
            events.as_mut_ptr(),
            MAX_READY,
            0,
            std::ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    };
    // An error is an interrupt: the next look finds what is ready.
    for event in &events[..usize::try_from(count).unwrap_or(0)] {
        ready(event.u64);
    }
}
