//! The pause of a process, with all its threads.

use std::time::Duration;

use rustix::process::{PidfdFlags, getpid, pidfd_open};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Stops the process, as `SIGSTOP` does, and lets it continue after `time`.
///
/// A stopped process cannot continue itself. A helper does: a copy of this process that only sleeps and signals.
pub(super) fn stop_process_for(time: Duration) {
    let pidfd = match pidfd_open(getpid(), PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(error) => return tracing::error!("no pause: this process cannot be named: {error}"),
    };
    // SAFETY: no memory and no descriptor is shared, so the child is a copy of this thread alone; it runs
    // `stop_sleep_and_continue`, which allocates nothing, takes no lock and never returns. Without an exit signal, the
    // program's handlers of SIGCHLD and its `wait` do not see the child (clone(2)).
    let child = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    match child {
        0 => stop_sleep_and_continue(std::os::fd::AsFd::as_fd(&pidfd), time),
        child if child > 0 => wait_for_helper(child),
        _ => {
            let error = std::io::Error::last_os_error();
            tracing::error!("no pause: no helper: {error}");
        }
    }
}

/// Stops the process behind `pidfd`, sleeps, and continues it.
fn stop_sleep_and_continue(pidfd: BorrowedFd<'_>, time: Duration) -> ! {
    let fd = pidfd.as_raw_fd();
    let sleep = libc::timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    };
    // SAFETY: system calls on plain values and places of this stack. Descriptors are closed in this copy alone: a peer
    // that waits for the end of a pipe must not wait for the helper. No signal may end the helper before the process
    // continues.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        if fd > 0 {
            libc::syscall(libc::SYS_close_range, 0, fd - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, fd + 1, libc::c_uint::MAX, 0);
        let none = std::ptr::null::<libc::siginfo_t>();
        libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGSTOP, none, 0);
        libc::syscall(
            libc::SYS_nanosleep,
            &raw const sleep,
            std::ptr::null_mut::<libc::timespec>(),
        );
        libc::syscall(libc::SYS_pidfd_send_signal, fd, libc::SIGCONT, none, 0);
        libc::syscall(libc::SYS_exit_group, 0);
    }
    // `exit_group` does not return.
    std::process::abort()
}

/// Waits for the helper's end, which comes after the pause.
fn wait_for_helper(child: libc::c_long) {
    loop {
        // SAFETY: a child of this process; no status is asked for.
        let ended = unsafe {
            libc::syscall(
                libc::SYS_wait4,
                child,
                std::ptr::null_mut::<libc::c_int>(),
                libc::__WCLONE,
                std::ptr::null_mut::<libc::rusage>(),
            )
        };
        let error = std::io::Error::last_os_error();
        if ended >= 0 || error.kind() != std::io::ErrorKind::Interrupted {
            return;
        }
    }
}
