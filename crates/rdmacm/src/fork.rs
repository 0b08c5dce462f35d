//! Descriptors that forked children must not inherit, and signals that the library's thread must not receive.
//!
//! A connection lasts as long as its socket is open. A child that inherited the socket would keep a connection open
//! after its parent has died. So the child replaces every such descriptor with `/dev/null`. The descriptor number stays
//! in use, because the objects that own it still exist.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once};

use crate::errno::Result;
use crate::lock::lock;

/// The descriptors to replace in children, and their replacement.
struct ForkedDescriptors {
    replaced_in_child: Vec<RawFd>,
    dev_null: Option<OwnedFd>,
}

static FDS: Mutex<ForkedDescriptors> = Mutex::new(ForkedDescriptors {
    replaced_in_child: Vec::new(),
    dev_null: None,
});

thread_local! {
    /// The lock of `FDS`, held across a fork in the forking thread and in its copy.
    static FORK_GUARD: RefCell<Option<MutexGuard<'static, ForkedDescriptors>>> = const { RefCell::new(None) };
}

/// Opens the replacement that [`replace_by_dev_null_in_children`] needs.
///
/// # Errors
/// The error of opening `/dev/null`.
pub(crate) fn open_dev_null_for_children() -> Result {
    let mut fds = lock(&FDS);
    if fds.dev_null.is_none() {
        fds.dev_null = Some(std::fs::File::open("/dev/null")?.into());
    }
    Ok(())
}

/// Registers `f` to be called at the exit of the process, or of a forked child.
pub(crate) fn at_exit(f: extern "C" fn()) {
    // SAFETY: as for `pthread_atfork` below: the function lives as long as this library.
    unsafe { libc::atexit(f) };
}

/// Replaces the descriptor with `/dev/null` in children that are forked from now on.
pub(crate) fn replace_by_dev_null_in_children(fd: &OwnedFd) {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: the functions live as long as this library, which is never unloaded once its thread runs.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    });
    lock(&FDS).replaced_in_child.push(fd.as_raw_fd());
}

/// Undoes [`replace_by_dev_null_in_children`] for a descriptor that is about to be closed.
pub(crate) fn stop_replacing_in_children(fd: &OwnedFd) {
    let fd = fd.as_raw_fd();
    lock(&FDS).replaced_in_child.retain(|&open| open != fd);
}

extern "C" fn prepare() {
    FORK_GUARD.set(Some(lock(&FDS)));
}

extern "C" fn parent() {
    drop(FORK_GUARD.take());
}

extern "C" fn child() {
    let mut held = FORK_GUARD.take();
    if let Some(fds) = held.as_deref_mut() {
        for fd in std::mem::take(&mut fds.replaced_in_child) {
            if let Some(null) = &fds.dev_null {
                // SAFETY: the call uses only descriptor numbers; the objects that own `fd` keep owning it.
                unsafe { libc::dup3(null.as_raw_fd(), fd, libc::O_CLOEXEC) };
            }
        }
    }
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
