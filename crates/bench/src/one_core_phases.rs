//! Time of each phase of a message on one core. One thread posts a window, then receives its
//! messages, posts the RECVs again, and polls the completions. All cache lines stay in that core's
//! cache, so the time is spent on instructions.

use anyhow::{Context, Result, ensure};
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use serde::{Deserialize, Serialize};

use crate::clock::now_ns;
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Two ends of a connection on one core. `post` and `post_recv` handle a whole window per call.
pub(crate) trait OneCoreConnection {
    /// Returns the number of messages in a window.
    fn window_messages(&self) -> u64;
    /// Fills and posts the WRs of a window.
    fn post_window(&mut self) -> Result<()>;
    /// Polls for messages and checks them. Returns the number of messages.
    fn poll_messages(&mut self) -> Result<u64>;
    /// Posts the RECVs of a window again.
    fn repost_window_recvs(&mut self) -> Result<()>;
    /// Polls for completions of SENDs. Returns the number of messages that they cover.
    fn poll_send_completions(&mut self) -> Result<u64>;
    /// Returns the number of correct messages so far.
    fn verified_messages(&self) -> Result<u64>;
}

/// A figure per message for each phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PhaseCosts {
    /// Filling WRs and posting them.
    pub post: f64,
    /// Polling for completions of SENDs.
    pub poll: f64,
    /// Polling for messages, and checking them.
    pub receive: f64,
    /// Posting RECVs again.
    pub post_recv: f64,
}

impl PhaseCosts {
    fn per_message(sums: [u64; 4], messages: u64) -> PhaseCosts {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let [post, receive, post_recv, poll] = sums.map(|sum| sum as f64 / messages.max(1) as f64);
        PhaseCosts {
            post,
            poll,
            receive,
            post_recv,
        }
    }

    /// Returns the sum of the sender's phases.
    #[must_use]
    pub fn sender_sum(self) -> f64 {
        self.post + self.poll
    }

    /// Returns the sum of the receiver's phases.
    #[must_use]
    pub fn receiver_sum(self) -> f64 {
        self.receive + self.post_recv
    }
}

/// Result of a measurement on one core.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseMeasurement {
    /// Nanoseconds per message.
    #[serde(rename = "ns")]
    pub ns_per_message: PhaseCosts,
    /// Instructions per message; `None` if the processor's counters cannot be read.
    #[serde(rename = "instructions")]
    pub instructions_per_message: Option<PhaseCosts>,
    /// Cycles per message; `None` if the processor's counters cannot be read.
    #[serde(rename = "cycles")]
    pub cycles_per_message: Option<PhaseCosts>,
    /// Messages that were checked.
    pub verified_ops: u64,
}

/// Measures times for `duration_ms`, and each available hardware counter for half as long.
///
/// # Errors
/// When a verb fails, no message arrives, or a message is wrong.
pub(crate) fn measure_phases(
    ends: &mut dyn OneCoreConnection,
    duration_ms: u64,
) -> Result<PhaseMeasurement> {
    // Warm up the caches.
    measure_with_reader(ends, duration_ms / 10, now_ns)?;
    let ns = measure_with_reader(ends, duration_ms, now_ns)?;
    let mut count = |event| -> Result<Option<PhaseCosts>> {
        let Some(mut counter) = start_hardware_counter(event) else {
            return Ok(None);
        };
        // If reading an open counter fails, its phases are 0.
        measure_with_reader(ends, duration_ms / 2, || counter.read().unwrap_or(0)).map(Some)
    };
    Ok(PhaseMeasurement {
        ns_per_message: ns,
        instructions_per_message: count(Hardware::INSTRUCTIONS)?,
        cycles_per_message: count(Hardware::CPU_CYCLES)?,
        verified_ops: ends.verified_messages()?,
    })
}

/// Starts a hardware counter of this thread in user mode. Returns `None` without support by the
/// kernel and the processor, as in most virtual machines.
fn start_hardware_counter(event: Hardware) -> Option<Counter> {
    let mut counter = Builder::new().kind(event).build().ok()?;
    counter.enable().ok()?;
    Some(counter)
}

/// Measures the phases as differences of `read` at their ends.
fn measure_with_reader(
    ends: &mut dyn OneCoreConnection,
    duration_ms: u64,
    mut read: impl FnMut() -> u64,
) -> Result<PhaseCosts> {
    let window = ends.window_messages();
    let until_ns = now_ns() + duration_ms * 1_000_000;
    let mut sums = [0; 4];
    let mut messages = 0;
    loop {
        let mut last = read();
        let mut lap = |phase: usize| {
            let now = read();
            sums[phase] += now.saturating_sub(last);
            last = now;
        };
        ends.post_window()?;
        lap(0);
        repeat_until(window, || ends.poll_messages(), "messages on one core")?;
        lap(1);
        ends.repost_window_recvs()?;
        lap(2);
        repeat_until(
            window,
            || ends.poll_send_completions(),
            "completions on one core",
        )?;
        lap(3);
        messages += window;
        if now_ns() >= until_ns {
            break;
        }
    }
    ensure!(
        ends.verified_messages()? >= messages,
        "messages were lost on one core"
    );
    Ok(PhaseCosts::per_message(sums, messages))
}

fn repeat_until(count: u64, mut step: impl FnMut() -> Result<u64>, what: &str) -> Result<()> {
    let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
    let mut done = 0;
    while done < count {
        let more = step()?;
        if more == 0 {
            timeout.fail_if_over_after_empty_poll(what)?;
        }
        done += more;
    }
    ensure!(done == count, "{done} {what} of {count}");
    Ok(())
}

/// Returns `verified`, or the error of ends that noticed a wrong message.
pub(crate) fn verified_or_fault(wrong: Option<&str>, verified: u64) -> Result<u64> {
    match wrong {
        None => Ok(verified),
        Some(wrong) => Err(anyhow::anyhow!("{wrong}")).context("on one core"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends that only count calls; the test supplies the readings of the clock.
    #[derive(Default)]
    struct CountingEnds {
        calls: u64,
        loses: bool,
    }

    impl OneCoreConnection for CountingEnds {
        fn window_messages(&self) -> u64 {
            4
        }
        fn post_window(&mut self) -> Result<()> {
            self.calls += 1;
            Ok(())
        }
        fn poll_messages(&mut self) -> Result<u64> {
            Ok(2)
        }
        fn repost_window_recvs(&mut self) -> Result<()> {
            Ok(())
        }
        fn poll_send_completions(&mut self) -> Result<u64> {
            Ok(4)
        }
        fn verified_messages(&self) -> Result<u64> {
            Ok(if self.loses { 0 } else { 4 * self.calls })
        }
    }

    #[test]
    fn phases_are_kept_apart_per_message() {
        let mut times = [0u64, 4, 12, 16, 32].into_iter();
        let measured =
            measure_with_reader(&mut CountingEnds::default(), 0, || times.next().unwrap()).unwrap();
        let want = PhaseCosts {
            post: 1.0,
            receive: 2.0,
            post_recv: 1.0,
            poll: 4.0,
        };
        assert_eq!(measured, want);
        assert_eq!((want.sender_sum(), want.receiver_sum()), (5.0, 3.0));
        let mut loses = CountingEnds {
            loses: true,
            ..CountingEnds::default()
        };
        assert!(measure_phases(&mut loses, 0).is_err());
    }
}
