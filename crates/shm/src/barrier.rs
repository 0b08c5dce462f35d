//! `membarrier(2)`: the seldom side of an asymmetric fence pays for both.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

/// Registers this process for the barriers of this module, before it has a second thread if possible.
///
/// The kernel registers a process with one thread at once. If there are more, it waits for an RCU grace period, which
/// takes longer than the timeouts of a peer where network namespaces are being removed (`sync_runqueues_membarrier_state`
/// in `kernel/sched/membarrier.c`). So no thread that peers wait for may be the first to ask.
pub fn prepare() {
    register();
    if cfg!(target_arch = "x86_64") {
        has_own_threads();
    }
}

/// Takes part in the fabric's barriers. False where the kernel has none.
pub fn register() -> bool {
    call(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
}

/// A full memory barrier on every running thread of every registered process, this one included.
pub fn everywhere() {
    fence(Ordering::SeqCst);
    call(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    fence(Ordering::SeqCst);
}

/// Whether this process may use [`own_threads`]; asks the kernel once.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // locks are biased there only
pub fn has_own_threads() -> bool {
    static PID_AND_ANSWER: OnceLock<(u32, bool)> = OnceLock::new();
    let ask = || call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    let &(pid, answer) = PID_AND_ANSWER.get_or_init(|| (std::process::id(), ask()));
    // A forked child registers for itself; that it asks each time is its own cost.
    if pid == std::process::id() {
        answer
    } else {
        answer && ask()
    }
}

/// A full memory barrier on every running thread of this process. False if it could not be had.
pub fn own_threads() -> bool {
    fence(Ordering::SeqCst);
    let done = call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    fence(Ordering::SeqCst);
    done
}

fn call(command: libc::c_int) -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
