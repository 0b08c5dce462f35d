//! Waiting for sockets as both ends do: looking again for a while, then sleeping.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long to look again before sleeping: each end has a core of its own.
const SPIN: Duration = Duration::from_micros(100);

/// Since when nothing has come.
#[derive(Debug, Default)]
pub(super) struct Idle(Option<Instant>);

impl Idle {
    /// Something has come.
    #[inline]
    pub(super) fn end(&mut self) {
        self.0 = None;
    }

    /// Nothing has come: for how long now. Sleeps for at most `timeout`, until one of `sockets` has something to read, if that
    /// is long.
    pub(super) fn wait<'s>(
        &mut self,
        sockets: impl Iterator<Item = BorrowedFd<'s>>,
        timeout: Duration,
    ) -> Result<Duration> {
        let since = *self.0.get_or_insert_with(Instant::now);
        if since.elapsed() < SPIN {
            std::hint::spin_loop();
            return Ok(Duration::ZERO);
        }
        let mut fds: Vec<_> = sockets
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec::try_from(timeout)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(since.elapsed()),
            Err(e) => Err(e.into()),
        }
    }
}
