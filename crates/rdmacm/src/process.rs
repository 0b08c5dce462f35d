//! Which process is which: liveness that a reused pid cannot fool.

use std::fmt;
use std::str::FromStr;
use std::{fs, io};

use rustix::process::{Pid, test_kill_process};

use crate::errno::Result;

/// A process: its pid, and the clock tick after boot at which it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pid: u32,
    start_time: u64,
}

impl Process {
    /// The calling process.
    ///
    /// # Errors
    /// Where its start time cannot be read for want of descriptors: others would take it for dead.
    pub(crate) fn own() -> Result<Self> {
        let pid = std::process::id();
        Ok(Self {
            pid,
            start_time: start_time(pid)?.unwrap_or(0),
        })
    }

    /// Its pid.
    pub(crate) fn pid(self) -> u32 {
        self.pid
    }

    /// Whether it still runs.
    ///
    /// Where its start time cannot be read, whichever process has the pid is taken for it: it must not be taken for dead
    /// because the calling process has no descriptor left.
    pub(crate) fn is_alive(self) -> bool {
        match start_time(self.pid) {
            Ok(found) => found == Some(self.start_time),
            Err(_) => i32::try_from(self.pid)
                .ok()
                .and_then(Pid::from_raw)
                .is_some_and(|pid| test_kill_process(pid) != Err(rustix::io::Errno::SRCH)),
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.pid, self.start_time)
    }
}

/// Not a process as [`Display`](fmt::Display) prints it.
#[derive(Debug)]
pub(crate) struct NotAProcess;

impl FromStr for Process {
    type Err = NotAProcess;

    fn from_str(text: &str) -> std::result::Result<Self, NotAProcess> {
        let (pid, start_time) = text.split_once('-').ok_or(NotAProcess)?;
        Ok(Self {
            pid: pid.parse().map_err(|_| NotAProcess)?,
            start_time: start_time.parse().map_err(|_| NotAProcess)?,
        })
    }
}

/// Field 22 of `/proc/PID/stat`, or `None` where there is no such process or it is a zombie.
///
/// # Errors
/// Where there is no telling: the calling process has no more descriptors.
fn start_time(pid: u32) -> io::Result<Option<u64>> {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => Ok(parse_stat(&stat)),
        // ESRCH: it ended while its file was open.
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(e) => Err(e),
    }
}

pub(crate) fn parse_stat(stat: &str) -> Option<u64> {
    // The second field is the program's name in parentheses and may contain anything, also `)`.
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    if matches!(fields.next()?, "Z" | "X" | "x") {
        return None;
    }
    // The state was field 3.
    fields.nth(22 - 4)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_with_its_pid() {
        let me = Process::own().unwrap();
        assert!(me.is_alive());
        let copy: Process = me.to_string().parse().unwrap();
        assert_eq!(copy, me);
        let earlier = Process {
            start_time: me.start_time - 1,
            ..me
        };
        assert!(!earlier.is_alive());
        assert!("12".parse::<Process>().is_err());
        assert!("12-x".parse::<Process>().is_err());
    }

    #[test]
    fn stat_with_a_hostile_name_is_parsed() {
        let stat = "42 (a) R 1 (b) S 1 42 42 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 1 0 777 0 0";
        assert_eq!(parse_stat(stat), Some(777));
        assert_eq!(
            parse_stat("42 (a) Z 1 42 42 0 -1 4 1 0 0 0 1 2 0 0 20 0 1 0 777 0"),
            None
        );
        assert_eq!(parse_stat(""), None);
    }
}
