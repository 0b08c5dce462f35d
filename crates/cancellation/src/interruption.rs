//! Interruption of waits by signals.
//!
//! rdma-core waits for events in `read(2)` and `write(2)`, which the kernel restarts after a handler with `SA_RESTART`.
//! `poll(2)` is never restarted (`signal(7)`). So waits by `poll(2)` decide here whether they are restarted.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::ptr;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Signals of faults: the faulting instruction raises them, so none interrupts a wait. Their handlers often lack
/// `SA_RESTART`, e.g. those of Rust's standard library.
const FAULT_SIGNALS: [c_int; 6] = [
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGSYS,
];

/// Waits until a descriptor is readable, or in error.
///
/// # Errors
/// `EINTR` if a signal interrupted the wait and [`should_restart_wait`] returns false; other errors of `poll(2)`.
pub fn wait_until_readable(fd: impl AsFd) -> Result<(), Errno> {
    loop {
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], None) {
            Err(Errno::INTR) if should_restart_wait() => {}
            polled => return polled.map(drop),
        }
    }
}

/// Returns true if a wait that a signal has interrupted must go on, and false if it must fail with `EINTR`. Does not
/// change errno.
///
/// `poll(2)` does not tell which signal came. So the result is true only if every handler that may have run has
/// `SA_RESTART`. The check takes a system call for each signal.
#[must_use]
#[allow(unsafe_code)]
pub fn should_restart_wait() -> bool {
    // SAFETY: errno of this thread.
    let errno = unsafe { *libc::__errno_location() };
    let mut blocked = MaybeUninit::uninit();
    // SAFETY: room for the mask, which the call fills in.
    let blocked = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), blocked.as_mut_ptr());
        blocked.assume_init()
    };
    let restarted = (1..=libc::SIGRTMAX())
        .filter(|signal| !FAULT_SIGNALS.contains(signal))
        // SAFETY: an initialised mask.
        .filter(|signal| unsafe { libc::sigismember(&raw const blocked, *signal) } == 0)
        .all(|signal| !signal_may_end_wait(signal));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    restarted
}

/// Returns true if a handler of `signal` may have run, and has no `SA_RESTART`.
#[allow(unsafe_code)]
fn signal_may_end_wait(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: room for the action, which the call fills in if it succeeds.
    let action = unsafe {
        if libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) != 0 {
            // The C library's own signals, whose handlers have SA_RESTART.
            return false;
        }
        action.assume_init()
    };
    match action.sa_sigaction {
        libc::SIG_IGN => false,
        // A handler may have reset the action, also by SA_RESETHAND, which keeps the flags. The flags of an action that
        // was never changed are 0.
        libc::SIG_DFL => action.sa_flags != 0,
        _ => action.sa_flags & libc::SA_RESTART == 0,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Write};
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::{is_wait_deferred, take_or_wait};

    static HANDLED: AtomicU32 = AtomicU32::new(0);

    extern "C" fn count(_: c_int) {
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }

    #[allow(unsafe_code)]
    fn set_action(signal: c_int, handler: usize, flags: c_int) {
        // SAFETY: zeros are valid, and the handlers of these tests are async-signal-safe.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = flags;
            assert_eq!(
                libc::sigaction(signal, &raw const action, ptr::null_mut()),
                0
            );
        }
    }

    /// Calls `wait` in a thread that gets SIGUSR1 until it returns. After ten signals its descriptor becomes readable.
    #[allow(unsafe_code)]
    fn under_signals<T: Send>(wait: impl FnOnce(PipeReader) -> T + Send) -> T {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (started, thread_id) = channel();
        let (end, may_end) = channel();
        let returned = &AtomicBool::new(false);
        HANDLED.store(0, Ordering::Relaxed);
        thread::scope(|scope| {
            let waiting = scope.spawn(move || {
                // SAFETY: no arguments.
                started.send(unsafe { libc::pthread_self() }).unwrap();
                let result = wait(reader);
                returned.store(true, Ordering::Relaxed);
                // Signals are sent only to a thread that lives.
                may_end.recv().unwrap();
                result
            });
            let waiter = thread_id.recv().unwrap();
            while !returned.load(Ordering::Relaxed) {
                if HANDLED.load(Ordering::Relaxed) >= 10 {
                    writer.write_all(b"x").unwrap();
                }
                // SAFETY: the thread lives until `end` is used.
                unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) };
                thread::sleep(Duration::from_millis(5));
            }
            end.send(()).unwrap();
            waiting.join().unwrap()
        })
    }

    /// Waits as the functions that wait for events do: -1 with errno if they fail.
    #[allow(unsafe_code)]
    fn take(reader: PipeReader) -> (c_int, c_int) {
        let take = || {
            let _ = is_wait_deferred(reader.as_raw_fd());
            let mut fd = [PollFd::new(&reader, PollFlags::IN)];
            let now = rustix::event::Timespec::default();
            if poll(&mut fd, Some(&now)) == Ok(1) {
                return 0;
            }
            // SAFETY: errno of this thread.
            unsafe { *libc::__errno_location() = libc::EAGAIN };
            -1
        };
        // SAFETY: nobody cancels this thread; errno is this thread's.
        unsafe { (take_or_wait(take), *libc::__errno_location()) }
    }

    /// The actions of signals are the process's, so all cases are in one test.
    #[test]
    fn a_wait_is_restarted_if_all_handlers_ask_for_that() {
        let counting = count as *const () as usize;
        let wait = |reader| wait_until_readable(&reader);
        set_action(libc::SIGUSR1, counting, libc::SA_RESTART);
        assert_eq!(under_signals(wait), Ok(()));
        assert_eq!(under_signals(take).0, 0);
        // Another signal may have come, ...
        set_action(libc::SIGUSR2, counting, 0);
        assert_eq!(under_signals(wait), Err(Errno::INTR));
        // ... and its handler may have reset the action, ...
        set_action(libc::SIGUSR2, libc::SIG_DFL, libc::SA_RESTART);
        assert_eq!(under_signals(wait), Err(Errno::INTR));
        // ... but no ignored one.
        set_action(libc::SIGUSR2, libc::SIG_IGN, 0);
        assert_eq!(under_signals(wait), Ok(()));
        set_action(libc::SIGUSR1, counting, 0);
        assert_eq!(under_signals(wait), Err(Errno::INTR));
        assert_eq!(under_signals(take), (-1, libc::EINTR));
    }
}
