//! The lifetime of a process: whether it still runs, and which of its descriptors end with it. A pid alone does not
//! tell, since it may be reused, so a process is known by its pid and start time. A peer on another host is known by
//! its answers to probes of TCP ([`keepalive`]).
#![deny(unsafe_code)]

#[allow(unsafe_code)]
pub mod descriptors_replaced_in_children;
pub mod keepalive;
pub mod socket_file;

use std::{fs, io};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// Start time of process `pid`: field 22 of `/proc/PID/stat`, in clock ticks after boot. `None` if there is no such
/// process, or if it is dead already (a zombie or being taken down).
///
/// # Errors
/// When the start time cannot be read, because this process has no more descriptors.
pub fn start_time_ticks(pid: u64) -> io::Result<Option<u64>> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(start_time_from_stat(&stat)),
        // ESRCH: it ended while its file was open.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The process is being taken down: `include/linux/sched.h`.
const PF_EXITING: u32 = 4;

/// The start time in the text of `/proc/PID/stat`; `None` for a process that is dead or being taken down.
#[must_use]
pub fn start_time_from_stat(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses and may contain anything, also `)`.
    let rest = stat.get(stat.rfind(')')? + 2..)?;
    let mut fields = rest.split(' ');
    let state = fields.next()?;
    if matches!(state, "Z" | "X" | "x") {
        return None;
    }
    // `state` was field 3; `flags` is field 9 and `starttime` field 22.
    let flags: u32 = fields.nth(9 - 4)?.parse().ok()?;
    if flags & PF_EXITING != 0 {
        return None;
    }
    fields.nth(22 - 10)?.parse().ok()
}

/// Returns true if the process that has `pid` and started at `start` still runs.
///
/// If the start time cannot be read, any process with the pid counts as that process. A live process must not count as
/// dead because this process has no descriptor left.
#[must_use]
pub fn is_alive(pid: u64, start: u64) -> bool {
    match start_time_ticks(pid) {
        Ok(found) => found == Some(start),
        Err(_) => to_pid(pid).is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH)),
    }
}

/// A `Pid` for system calls.
#[must_use]
pub fn to_pid(pid: u64) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_pid() -> u64 {
        std::process::id().into()
    }

    #[test]
    fn stat_with_a_hostile_name_is_parsed() {
        let stat = "42 (a) R 1 (b) S 1 42 42 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 1 0 777 0 0";
        assert_eq!(start_time_from_stat(stat), Some(777));
        assert_eq!(
            start_time_from_stat("42 (a) Z 1 42 42 0 -1 4 1 0 0 0 1 2 0 0 20 0 1 0 777 0"),
            None
        );
        let exiting = "42 (a) R 1 42 42 0 -1 4194308 1 0 0 0 1 2 0 0 20 0 1 0 777 0";
        assert_eq!(start_time_from_stat(exiting), None);
        assert_eq!(start_time_from_stat(""), None);
        assert_eq!(start_time_from_stat("1 (x)"), None);
    }

    #[test]
    fn this_process_lives_and_pid_0_does_not() {
        let start = start_time_ticks(own_pid()).unwrap().unwrap();
        assert!(is_alive(own_pid(), start));
        assert!(!is_alive(own_pid(), start + 1));
        assert!(!is_alive(0, start));
    }
}
