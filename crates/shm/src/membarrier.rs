//! `membarrier(2)`: an asymmetric fence, whose rare side pays for both.

#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

/// Registers this process for the barriers of this module, if possible before it has a second thread.
///
/// The kernel registers a single-threaded process at once. For a multithreaded process the kernel
/// waits for an RCU grace period (`sync_runqueues_membarrier_state` in
/// `kernel/sched/membarrier.c`). The grace period exceeds a peer's timeouts while network
/// namespaces are being removed. A thread that peers wait for must therefore not be the first to
/// register.
pub fn register_for_membarriers() {
    register_global_expedited();
    if cfg!(target_arch = "x86_64") {
        is_private_barrier_available();
    }
}

/// Registers this process for [`membarrier_all_processes`] barriers. Returns false if the kernel does not support them.
pub fn register_global_expedited() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED)
}

/// Executes a full memory barrier on every running thread of every registered process, this process included.
pub fn membarrier_all_processes() {
    fence(Ordering::SeqCst);
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    fence(Ordering::SeqCst);
}

/// Returns true if this process may use [`membarrier_own_threads`]; asks the kernel at the first call.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // locks are biased only on x86-64
pub fn is_private_barrier_available() -> bool {
    static PID_AND_ANSWER: OnceLock<(u32, bool)> = OnceLock::new();
    let ask = || membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    let &(pid, answer) = PID_AND_ANSWER.get_or_init(|| (std::process::id(), ask()));
    // A child of `fork` must register again, so a process with another pid asks the kernel at each
    // call.
    if pid == std::process::id() {
        answer
    } else {
        answer && ask()
    }
}

/// Executes a full memory barrier on every running thread of this process. Returns false if the kernel
/// refused it.
pub fn membarrier_own_threads() -> bool {
    fence(Ordering::SeqCst);
    let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    fence(Ordering::SeqCst);
    done
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: the call takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
