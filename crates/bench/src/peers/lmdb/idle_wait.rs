//! Waiting for sockets on both ends: polls for a while, then sleeps.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time to poll before sleeping; each end has its own core.
const SPIN_DURATION: Duration = Duration::from_micros(100);

/// Start of the current period without data.
#[derive(Debug, Default)]
pub(super) struct IdlePeriod(Option<Instant>);

impl IdlePeriod {
    /// Ends the period without data.
    #[inline]
    pub(super) fn end_idle_period(&mut self) {
        self.0 = None;
    }

    /// Notes that no data have arrived, and returns how long the period lasts. After a short time
    /// of polling, it sleeps until one of `sockets` is readable, for at most `timeout`.
    pub(super) fn spin_or_sleep_and_idle_time<'s>(
        &mut self,
        sockets: impl Iterator<Item = BorrowedFd<'s>>,
        timeout: Duration,
    ) -> Result<Duration> {
        let since = *self.0.get_or_insert_with(Instant::now);
        if since.elapsed() < SPIN_DURATION {
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
