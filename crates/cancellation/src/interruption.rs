//! Interruption of waits by signals.
//!
//! The kernel restarts `read(2)` and `write(2)` after a handler with `SA_RESTART`. `poll(2)` is never restarted
//! (`signal(7)`). So waits of sockets by `poll(2)` decide here whether they are restarted.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

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

    use rustix::io::Errno;

    use super::*;
    use crate::{take_or_wait, take_token_bytes_read_from, wait_for_token};

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
            if take_token_bytes_read_from(reader.as_raw_fd()).is_some() {
                return 0;
            }
            assert_eq!(wait_for_token(&reader, 1), Err(Errno::AGAIN));
            // SAFETY: errno of this thread.
            unsafe { *libc::__errno_location() = libc::EAGAIN };
            -1
        };
        // SAFETY: nobody cancels this thread; errno is this thread's.
        unsafe { (take_or_wait(take), *libc::__errno_location()) }
    }

    /// The actions of signals are the process's, so all cases are in one test.
    #[test]
    fn the_handler_that_has_run_decides_whether_a_wait_is_restarted() {
        let counting = count as *const () as usize;
        let wait = |reader| wait_for_token(&reader, 1);
        set_action(libc::SIGUSR1, counting, libc::SA_RESTART);
        assert!(should_restart_wait());
        assert_eq!(under_signals(wait), Ok(()));
        assert_eq!(under_signals(take).0, 0);
        // Another signal has another handler: only a wait by poll(2) has to take its action into account, ...
        for (action, flags) in [(counting, 0), (libc::SIG_DFL, libc::SA_RESTART)] {
            set_action(libc::SIGUSR2, action, flags);
            assert!(!should_restart_wait());
            assert_eq!(under_signals(wait), Ok(()));
            assert_eq!(under_signals(take).0, 0);
        }
        // ... but no ignored one.
        set_action(libc::SIGUSR2, libc::SIG_IGN, 0);
        assert!(should_restart_wait());
        set_action(libc::SIGUSR1, counting, 0);
        assert_eq!(under_signals(wait), Err(Errno::INTR));
        assert_eq!(under_signals(take), (-1, libc::EINTR));
    }
}
