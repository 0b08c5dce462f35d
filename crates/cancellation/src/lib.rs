//! Cancellation of threads inside verbs (`pthread_cancel(3)`).
//!
//! Programs cancel threads that wait for events: `ibv_get_cq_event`, `ibv_get_async_event` and `rdma_get_cm_event` are
//! cancellation points in rdma-core, since each is a read(2). A thread that is cancelled unwinds from within the C
//! library. In the middle of a verb neither the state of these libraries nor Rust allows that, and frames of `extern
//! "C"` functions end the process. So
//!
//! - verbs hold cancellation off while they run ([`HoldOff`]): one that was asked for takes effect at the program's next
//!   cancellation point. The data path does without, and calls nothing in the C library that is one;
//! - the three that wait do so in the outermost frame ([`take_or_wait`]), which has nothing to be unwound.
//!
//! A signal ends a wait for events only if its handler has no `SA_RESTART`. The kernel decides that: the wait is a
//! read(2) of a *token* of the event, which the kernel restarts ([`wait_for_token`]). No system call that waits without
//! reading is restarted (`signal(7)`).

#![deny(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{Timespec, nanosleep};

mod event_count;
mod interruption;

pub use event_count::EventCount;
pub use interruption::should_restart_wait;

/// Cancellation of the calling thread is held off while this lives.
#[must_use]
pub struct HoldOff {
    previous_cancel_state: c_int,
    /// The state is the thread's.
    not_send: PhantomData<*const ()>,
}

impl HoldOff {
    /// Begins to.
    #[inline]
    #[allow(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> Self {
        Self {
            previous_cancel_state: set_cancel_state(PTHREAD_CANCEL_DISABLE),
            not_send: PhantomData,
        }
    }
}

impl Drop for HoldOff {
    #[inline]
    fn drop(&mut self) {
        set_cancel_state(self.previous_cancel_state);
    }
}

/// `PTHREAD_CANCEL_DISABLE` of glibc's and musl's `<pthread.h>`.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

#[inline]
#[allow(unsafe_code)]
fn set_cancel_state(state: c_int) -> c_int {
    unsafe extern "C" {
        fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    }
    let mut before = 0;
    // SAFETY: a state that the same function gave, or one of its own, and a place for the one before. It is no
    // cancellation point.
    unsafe { pthread_setcancelstate(state, &mut before) };
    before
}

/// The function that waits when there is no event.
#[derive(Clone, Copy)]
enum WaitMode {
    /// Whoever looks for it.
    WaitInPlace,
    /// [`take_or_wait`], on a descriptor that it has not been told yet.
    DeferWait,
    /// [`take_or_wait`], by a read of so many bytes of this one.
    DeferredWaitOn { fd: c_int, token_bytes: usize },
}

/// The most bytes that a token has.
const TOKEN_BYTES_MAX: usize = 8;

/// A token that a wait has read.
#[derive(Clone, Copy)]
struct ReadToken {
    fd: c_int,
    bytes: [u8; TOKEN_BYTES_MAX],
}

thread_local! {
    static WAIT_MODE: Cell<WaitMode> = const { Cell::new(WaitMode::WaitInPlace) };
    static READ_TOKEN: Cell<Option<ReadToken>> = const { Cell::new(None) };
}

/// Waits for an event by a read of its token, which has `token_bytes` (at most 8). The token is kept for this thread's
/// next [`take_token_bytes_read_from`].
///
/// # Errors
/// `EAGAIN` at once if the calling thread is in [`take_or_wait`], which then waits; `EINTR` after a signal whose handler
/// has no `SA_RESTART`; other errors of `read(2)`.
pub fn wait_for_token(fd: impl AsFd, token_bytes: usize) -> Result<(), Errno> {
    let raw_fd = fd.as_fd().as_raw_fd();
    let token_bytes = token_bytes.min(TOKEN_BYTES_MAX);
    if !matches!(WAIT_MODE.get(), WaitMode::WaitInPlace) {
        WAIT_MODE.set(WaitMode::DeferredWaitOn {
            fd: raw_fd,
            token_bytes,
        });
        return Err(Errno::AGAIN);
    }
    let mut bytes = [0; TOKEN_BYTES_MAX];
    rustix::io::read(fd, &mut bytes[..token_bytes])?;
    READ_TOKEN.set(Some(ReadToken { fd: raw_fd, bytes }));
    Ok(())
}

/// Takes the token that the last wait of this thread has read from `fd`. A token of another descriptor is dropped.
#[must_use]
pub fn take_token_bytes_read_from(fd: c_int) -> Option<[u8; TOKEN_BYTES_MAX]> {
    let token = READ_TOKEN.take()?;
    (token.fd == fd).then_some(token.bytes)
}

/// Takes an event by `take`, which returns -1 with errno where it fails; waits where `take` has left it
/// ([`wait_for_token`]).
///
/// Nothing lies between the look and the wait: another thread may destroy meanwhile what `take` looked at.
///
/// Waiting is a cancellation point.
///
/// # Safety
/// A cancelled thread unwinds through the caller: nothing in its frames, up to the program's, has a destructor or is
/// `extern "C"`.
#[allow(unsafe_code)]
pub unsafe extern "C-unwind" fn take_or_wait(take: impl Fn() -> c_int) -> c_int {
    loop {
        WAIT_MODE.set(WaitMode::DeferWait);
        let taken = take();
        let waits = WAIT_MODE.replace(WaitMode::WaitInPlace);
        READ_TOKEN.set(None);
        let WaitMode::DeferredWaitOn { fd, token_bytes } = waits else {
            return taken;
        };
        if taken == 0 || errno() != libc::EAGAIN {
            return taken;
        }
        // SAFETY: contract of this function; nothing here has a destructor.
        if unsafe { read_token(fd, token_bytes) } < 0 {
            return -1;
        }
    }
}

/// Reads a token; -1 with errno if that fails.
///
/// # Safety
/// As [`take_or_wait`].
#[allow(unsafe_code)]
unsafe extern "C-unwind" fn read_token(fd: c_int, token_bytes: usize) -> isize {
    unsafe extern "C-unwind" {
        fn read(fd: c_int, bytes: *mut c_void, len: usize) -> isize;
    }
    let mut bytes = [0; TOKEN_BYTES_MAX];
    // SAFETY: room for the bytes: `token_bytes` is at most their number (`wait_for_token`). `libc::read` would not say
    // that it may unwind.
    let read = unsafe { read(fd, bytes.as_mut_ptr().cast(), token_bytes) };
    if read > 0 {
        READ_TOKEN.set(Some(ReadToken { fd, bytes }));
    }
    read
}

#[allow(unsafe_code)]
fn errno() -> c_int {
    // SAFETY: errno of this thread.
    unsafe { *libc::__errno_location() }
}

/// Sleeps so long, or until a signal comes. [`std::thread::sleep`] is a cancellation point.
pub fn sleep(time: Duration) {
    if let Ok(time) = Timespec::try_from(time) {
        let _ = nanosleep(&time);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn holding_off_nests() {
        let outer = HoldOff::new();
        let inner = HoldOff::new();
        assert_eq!(
            (outer.previous_cancel_state, inner.previous_cancel_state),
            (0, PTHREAD_CANCEL_DISABLE)
        );
        drop(inner);
        drop(outer);
        assert_eq!(HoldOff::new().previous_cancel_state, 0);
    }

    /// As the C library's functions fail.
    #[allow(unsafe_code)]
    fn fail(errno: c_int) -> c_int {
        // SAFETY: errno of this thread.
        unsafe { *libc::__errno_location() = errno };
        -1
    }

    #[test]
    fn what_is_there_is_taken_and_a_failure_is_given_back() {
        // SAFETY: nobody cancels this thread.
        #[allow(unsafe_code)]
        let of = |take: fn() -> c_int| unsafe { (take_or_wait(take), errno()) };
        assert_eq!(of(|| 0).0, 0);
        assert_eq!(of(|| fail(libc::EINVAL)), (-1, libc::EINVAL));
        // Nobody said that it would wait: the descriptor does not block.
        assert_eq!(of(|| fail(libc::EAGAIN)), (-1, libc::EAGAIN));
        assert!(take_token_bytes_read_from(0).is_none());
    }

    #[test]
    fn waits_on_the_descriptor_that_was_looked_at() {
        let (reader, writer) = std::io::pipe().unwrap();
        let looks = Cell::new(0);
        let take = || {
            looks.set(looks.get() + 1);
            if looks.get() == 2 {
                let token = take_token_bytes_read_from(reader.as_raw_fd());
                assert_eq!(token.map(|bytes| bytes[0]), Some(b'x'));
                return 0;
            }
            assert_eq!(wait_for_token(&reader, 1), Err(Errno::AGAIN));
            (&writer).write_all(b"x").unwrap();
            fail(libc::EAGAIN)
        };
        // SAFETY: as above.
        #[allow(unsafe_code)]
        let taken = unsafe { take_or_wait(take) };
        assert_eq!((taken, looks.get()), (0, 2));
    }
}
