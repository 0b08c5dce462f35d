//! What the verbs make of `pthread_cancel(3)`.
//!
//! Programs cancel threads that wait for events: `ibv_get_cq_event`, `ibv_get_async_event` and `rdma_get_cm_event` are
//! cancellation points in rdma-core, since each is a read(2). A thread that is cancelled unwinds from within the C
//! library, and neither the state of these libraries nor Rust allows that in the middle of a verb: frames of
//! `extern "C"` functions end the process. So
//!
//! - verbs hold cancellation off while they run ([`HoldOff`]): one that was asked for takes effect at the program's next
//!   cancellation point. The data path does without, and calls nothing in the C library that is one;
//! - the three that wait do so in the outermost frame ([`take_or_wait`]), which has nothing to be unwound.

#![deny(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_short};
use std::marker::PhantomData;
use std::time::Duration;

use rustix::thread::{Timespec, nanosleep};

/// Cancellation of the calling thread is held off while this lives.
#[must_use]
pub struct HoldOff {
    before: c_int,
    /// The state is the thread's.
    of_thread: PhantomData<*const ()>,
}

impl HoldOff {
    /// Begins to.
    #[inline]
    #[allow(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> Self {
        Self {
            before: set_state(PTHREAD_CANCEL_DISABLE),
            of_thread: PhantomData,
        }
    }
}

impl Drop for HoldOff {
    #[inline]
    fn drop(&mut self) {
        set_state(self.before);
    }
}

/// `PTHREAD_CANCEL_DISABLE` of glibc's and musl's `<pthread.h>`.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

#[inline]
#[allow(unsafe_code)]
fn set_state(state: c_int) -> c_int {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    let mut before = 0;
    // SAFETY: a state that the same function gave, or one of its own, and a place for the one before. It is no
    // cancellation point.
    unsafe { pthread_setcancelstate(state, &mut before) };
    before
}

thread_local! {
    static WAITS_OUTSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is within [`take_or_wait`]: what would wait says `EAGAIN` then.
#[must_use]
pub fn waits_outside() -> bool {
    WAITS_OUTSIDE.get()
}

/// Takes an event by `take`, which returns -1 with errno where it fails; waits for one where there is none, unless the
/// descriptor has `O_NONBLOCK`. `fd` says which descriptor that is, for a `take` that said `EAGAIN`.
///
/// Waiting is a cancellation point.
///
/// # Safety
/// A cancelled thread unwinds through the caller: nothing in its frames, up to the program's, has a destructor or is
/// `extern "C"`.
#[allow(unsafe_code)]
pub unsafe extern "C-unwind" fn take_or_wait(
    take: impl Fn() -> c_int,
    fd: impl Fn() -> c_int,
) -> c_int {
    loop {
        WAITS_OUTSIDE.set(true);
        let taken = take();
        WAITS_OUTSIDE.set(false);
        if taken == 0 || errno() != libc::EAGAIN {
            return taken;
        }
        let fd = fd();
        if !blocks(fd) {
            set_errno(libc::EAGAIN);
            return -1;
        }
        // SAFETY: contract of this function; nothing here has a destructor.
        if unsafe { wait(fd) } < 0 {
            return -1;
        }
    }
}

/// Waits until a descriptor is readable, or is none any more; -1 with errno if a signal comes.
///
/// # Safety
/// As [`take_or_wait`].
#[allow(unsafe_code)]
unsafe extern "C-unwind" fn wait(fd: c_int) -> c_int {
    #[repr(C)]
    struct PollFd {
        fd: c_int,
        events: c_short,
        revents: c_short,
    }
    unsafe extern "C-unwind" {
        fn poll(fds: *mut PollFd, count: libc::nfds_t, timeout: c_int) -> c_int;
    }
    let mut fd = PollFd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one descriptor, and its place; `libc::poll` would not say that it may unwind.
    unsafe { poll(&raw mut fd, 1, -1) }
}

/// Whether reads of a descriptor wait.
#[allow(unsafe_code)]
fn blocks(fd: c_int) -> bool {
    // SAFETY: asks for flags, of whatever the number stands for. It is no cancellation point.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK == 0
}

#[allow(unsafe_code)]
fn errno() -> c_int {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() }
}

#[allow(unsafe_code)]
fn set_errno(errno: c_int) {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Sleeps so long, or until a signal comes. [`std::thread::sleep`] is a cancellation point.
pub fn sleep(time: Duration) {
    if let Ok(time) = Timespec::try_from(time) {
        let _ = nanosleep(&time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holding_off_nests() {
        let outer = HoldOff::new();
        let inner = HoldOff::new();
        assert_eq!((outer.before, inner.before), (0, PTHREAD_CANCEL_DISABLE));
        drop(inner);
        drop(outer);
        assert_eq!(HoldOff::new().before, 0);
    }

    #[test]
    fn what_is_there_is_taken_and_a_failure_is_given_back() {
        // SAFETY: nobody cancels this thread.
        #[allow(unsafe_code)]
        let of = |result: c_int, error: c_int| unsafe {
            let take = || {
                assert!(waits_outside());
                set_errno(error);
                result
            };
            (take_or_wait(take, || -1), errno())
        };
        assert_eq!(of(0, libc::EAGAIN).0, 0);
        assert_eq!(of(-1, libc::EINVAL), (-1, libc::EINVAL));
        // The descriptor is none: no reason to wait.
        assert_eq!(of(-1, libc::EAGAIN), (-1, libc::EAGAIN));
        assert!(!waits_outside());
    }
}
