//! Timeouts of a benchmark.

use anyhow::{Result, bail};

use crate::clock::now_ns;

/// Timeout for an event that should happen at once, in ns.
pub(crate) const DEFAULT_EVENT_TIMEOUT_NS: u64 = 10_000_000_000;

/// Time of one poll of unchanged memory on a simulated core, in nanoseconds, as in
/// [`verbs::Waiter`].
const SIMULATED_POLL_COST_NS: u64 = 20;

/// A timeout that does not read the clock at each poll.
pub(crate) struct PollTimeout {
    empty_polls: u32,
    first_empty_poll_ns: Option<u64>,
    timeout_ns: u64,
    pauses_between_polls: bool,
}

impl PollTimeout {
    pub(crate) fn new(timeout_ns: u64) -> PollTimeout {
        PollTimeout {
            empty_polls: 0,
            first_empty_poll_ns: None,
            timeout_ns,
            pauses_between_polls: true,
        }
    }

    /// Creates a timeout that polls again without a pause, for latencies. A processor's pause
    /// instruction takes up to a hundred cycles, and makes an emulated processor leave its
    /// translated code.
    pub(crate) fn without_pause(timeout_ns: u64) -> PollTimeout {
        PollTimeout {
            pauses_between_polls: false,
            ..PollTimeout::new(timeout_ns)
        }
    }

    /// Restarts the timeout after an event.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.empty_polls = 0;
        self.first_empty_poll_ns = None;
    }

    /// Notes a poll without an event. Returns true once no event has happened for the whole time.
    #[inline]
    pub(crate) fn is_over_after_empty_poll(&mut self) -> bool {
        if simnic::is_simulated() {
            simnic::suspend_while_idle(SIMULATED_POLL_COST_NS, None);
        } else if self.pauses_between_polls {
            std::hint::spin_loop();
        }
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if !self.empty_polls.is_multiple_of(4096) {
            return false;
        }
        let now = now_ns();
        now - *self.first_empty_poll_ns.get_or_insert(now) > self.timeout_ns
    }

    /// Returns the approximate time of the last event in ns, or the current time if an event
    /// happened lately.
    pub(crate) fn quiet_since_ns(&self) -> u64 {
        self.first_empty_poll_ns.unwrap_or_else(now_ns)
    }

    /// Notes a poll without an event. Fails once no event has happened for the whole time.
    #[inline]
    pub(crate) fn fail_if_over_after_empty_poll(&mut self, what: &str) -> Result<()> {
        if self.is_over_after_empty_poll() {
            bail!(
                "nothing came for {} s: {what}",
                self.timeout_ns / 1_000_000_000
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_ends() {
        let mut timeout = PollTimeout::new(1_000_000);
        while timeout.fail_if_over_after_empty_poll("the test").is_ok() {}
        timeout.reset();
        assert!(!timeout.is_over_after_empty_poll());
    }
}
