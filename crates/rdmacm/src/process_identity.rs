//! The identity of a process, as in the names of ports.

use std::fmt;
use std::str::FromStr;

use liveness::{is_alive, start_time_ticks};

use crate::errno::Result;

/// A process: its pid, and the clock tick after boot at which it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessIdentity {
    pid: u32,
    start_time_ticks: u64,
}

impl ProcessIdentity {
    /// Returns the identity of the calling process.
    ///
    /// # Errors
    /// The start time could not be read for lack of descriptors. Without it, other processes would consider this one
    /// dead.
    pub(crate) fn own() -> Result<Self> {
        let pid = std::process::id();
        Ok(Self {
            pid,
            start_time_ticks: start_time_ticks(pid.into())?.unwrap_or(0),
        })
    }

    /// Returns the process id.
    pub(crate) fn pid(self) -> u32 {
        self.pid
    }

    /// Returns true if the process still runs.
    pub(crate) fn is_alive(self) -> bool {
        is_alive(self.pid.into(), self.start_time_ticks)
    }
}

impl fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.pid, self.start_time_ticks)
    }
}

/// Error: the text is not a process as [`Display`](fmt::Display) prints it.
#[derive(Debug)]
pub(crate) struct InvalidProcessIdentityText;

impl FromStr for ProcessIdentity {
    type Err = InvalidProcessIdentityText;

    fn from_str(text: &str) -> std::result::Result<Self, InvalidProcessIdentityText> {
        let (pid, start_time) = text.split_once('-').ok_or(InvalidProcessIdentityText)?;
        Ok(Self {
            pid: pid.parse().map_err(|_| InvalidProcessIdentityText)?,
            start_time_ticks: start_time.parse().map_err(|_| InvalidProcessIdentityText)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_a_later_one_with_its_pid() {
        let me = ProcessIdentity::own().unwrap();
        assert!(me.is_alive());
        let copy: ProcessIdentity = me.to_string().parse().unwrap();
        assert_eq!(copy, me);
        let earlier = ProcessIdentity {
            start_time_ticks: me.start_time_ticks - 1,
            ..me
        };
        assert!(!earlier.is_alive());
        assert!("12".parse::<ProcessIdentity>().is_err());
        assert!("12-x".parse::<ProcessIdentity>().is_err());
    }
}
