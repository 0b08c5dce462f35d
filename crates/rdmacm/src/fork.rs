//! What a child process that was forked must not inherit, and what a thread of ours must not take away.
//!
//! A connection lasts as long as its socket is open. A child that inherited the socket would keep the
//! connection of a dead parent open, so in the child every such descriptor is replaced by `/dev/null`: the
//! number stays taken, because the objects that own it are still there.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once};

use crate::errno::Result;
use crate::lock::lock;

/// The descriptors, and the one that replaces them.
struct Fds {
    open: Vec<RawFd>,
    null: Option<OwnedFd>,
}

static FDS: Mutex<Fds> = Mutex::new(Fds {
    open: Vec::new(),
    null: None,
});

thread_local! {
    /// Holds the lock from before a fork until after it, in the thread that forks and its copy.
    static HELD: RefCell<Option<MutexGuard<'static, Fds>>> = const { RefCell::new(None) };
}

/// Makes ready for [`close_in_children`].
///
/// # Errors
/// Where what is to replace descriptors cannot be opened.
pub(crate) fn prepare_replacement() -> Result {
    let mut fds = lock(&FDS);
    if fds.null.is_none() {
        fds.null = Some(std::fs::File::open("/dev/null")?.into());
    }
    Ok(())
}

/// Calls `f` when the process ends by itself. A child that was forked calls it as well.
pub(crate) fn at_exit(f: extern "C" fn()) {
    // SAFETY: as for `pthread_atfork` below: the function lives as long as this library.
    unsafe { libc::atexit(f) };
}

/// Closes the descriptor in children that are forked from now on.
pub(crate) fn close_in_children(fd: &OwnedFd) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: functions that live as long as this library, which is never unloaded once its thread runs.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
    lock(&FDS).open.push(fd.as_raw_fd());
}

/// Forgets a descriptor that is about to be closed.
pub(crate) fn keep_in_children(fd: &OwnedFd) {
    let fd = fd.as_raw_fd();
    lock(&FDS).open.retain(|&open| open != fd);
}

extern "C" fn prepare() {
    HELD.set(Some(lock(&FDS)));
}

extern "C" fn parent() {
    drop(HELD.take());
}

extern "C" fn child() {
    let mut held = HELD.take();
    if let Some(fds) = held.as_deref_mut() {
        for fd in std::mem::take(&mut fds.open) {
            if let Some(null) = &fds.null {
                // SAFETY: only descriptor numbers; the objects that own `fd` stay its owners.
                unsafe { libc::dup3(null.as_raw_fd(), fd, libc::O_CLOEXEC) };
            }
        }
    }
}

/// Blocks all signals for the calling thread, and threads that it starts; the mask before.
pub(crate) fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: places for two sets; zeroed sets are sets.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    }
}

/// Undoes [`block_signals`].
pub(crate) fn restore_signals(mask: &libc::sigset_t) {
    // SAFETY: a set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut()) };
}
