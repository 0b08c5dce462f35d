//! Calls of the C library: for signals that the library's thread must not receive, and for the exit of the process.

use std::mem::MaybeUninit;

/// Registers `f` to be called at the exit of the process, or of a forked child.
pub(crate) fn at_exit(f: extern "C" fn()) {
    // SAFETY: the function lives as long as this library, which is never unloaded once its thread runs.
    unsafe { libc::atexit(f) };
}

/// Blocks all signals in the calling thread and in threads that it starts; returns the previous mask.
pub(crate) fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the pointers lead to places for two sets, and a zeroed set is a valid set.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Undoes [`block_signals`].
pub(crate) fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: `mask` is a valid set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}
