//! Signals to a thread that waits for an event.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

static HANDLED_SIGNAL_COUNT: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: c_int) {
    HANDLED_SIGNAL_COUNT.fetch_add(1, Ordering::Relaxed);
}

/// Calls `wait` in a thread that gets SIGUSR1 until it returns. The handler has the flags `flags` of `sigaction(2)`.
/// Calls `wake` once after ten signals.
pub(crate) fn wait_under_signals<T: Send>(
    flags: c_int,
    wait: impl FnOnce() -> T + Send,
    wake: impl FnOnce(),
) -> T {
    // SAFETY: zeros are valid, and the handler is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    HANDLED_SIGNAL_COUNT.store(0, Ordering::Relaxed);
    let (started, thread_id) = channel();
    let (end, may_end) = channel();
    let returned = &AtomicBool::new(false);
    let mut wake = Some(wake);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            // SAFETY: no arguments.
            started
                .send(unsafe { libc::pthread_self() })
                .expect("the test waits");
            let result = wait();
            returned.store(true, Ordering::Relaxed);
            // Signals are sent only to a thread that lives.
            may_end.recv().expect("the test ends it");
            result
        });
        let waiter = thread_id.recv().expect("it starts");
        while !returned.load(Ordering::Relaxed) {
            if HANDLED_SIGNAL_COUNT.load(Ordering::Relaxed) >= 10
                && let Some(wake) = wake.take()
            {
                wake();
            }
            // SAFETY: the thread lives until `end` is used.
            unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) };
            std::thread::sleep(Duration::from_millis(5));
        }
        end.send(()).expect("it lives");
        waiting.join().expect("no panic")
    })
}
