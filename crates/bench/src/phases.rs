//! What each phase of a message takes on one core: a window is posted while nobody receives, then received, then its RECVs
//! are posted again, then its completions are polled. All cache lines are that core's own, so it is instructions that take
//! the time.

use anyhow::{Context, Result, ensure};
use perf_event::events::Hardware;
use perf_event::{Builder, Counter};
use serde::{Deserialize, Serialize};

use crate::clock::now_ns;
use crate::patience::{PATIENCE_NS, Patience};

/// Two ends of a connection on one core. Each method moves so many messages as a window has.
pub(crate) trait OneCore {
    /// Messages of a window.
    fn window(&self) -> u64;
    /// Fills and posts WRs of a window.
    fn post(&mut self) -> Result<()>;
    /// Polls for messages and checks them; how many came.
    fn receive(&mut self) -> Result<u64>;
    /// Posts RECVs for a window again.
    fn post_recv(&mut self) -> Result<()>;
    /// Polls for completions of SENDs; for how many messages they are.
    fn poll(&mut self) -> Result<u64>;
    /// Messages that were right so far.
    fn verified(&self) -> Result<u64>;
}

/// A figure of each phase, per message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phases {
    /// Filling WRs and posting them.
    pub post: f64,
    /// Polling for completions of SENDs.
    pub poll: f64,
    /// Polling for messages, and checking them.
    pub receive: f64,
    /// Posting RECVs again.
    pub post_recv: f64,
}

impl Phases {
    fn of(sums: [u64; 4], messages: u64) -> Phases {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let [post, receive, post_recv, poll] = sums.map(|sum| sum as f64 / messages.max(1) as f64);
        Phases {
            post,
            poll,
            receive,
            post_recv,
        }
    }

    /// Of the sender's core.
    #[must_use]
    pub fn sender(self) -> f64 {
        self.post + self.poll
    }

    /// Of the receiver's core.
    #[must_use]
    pub fn receiver(self) -> f64 {
        self.receive + self.post_recv
    }
}

/// What was measured on one core.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Nanoseconds a message.
    pub ns: Phases,
    /// Instructions a message, where the processor's counters can be read.
    pub instructions: Option<Phases>,
    /// Cycles a message, where the processor's counters can be read.
    pub cycles: Option<Phases>,
    /// Messages that were checked.
    pub verified_ops: u64,
}

/// Measures for `duration_ms`, and as long again where there are counters.
///
/// # Errors
/// When a verb fails, nothing comes, or something wrong does.
pub(crate) fn measure(ends: &mut dyn OneCore, duration_ms: u64) -> Result<Measured> {
    // The first windows find cold caches.
    phases(ends, duration_ms / 10, now_ns)?;
    let ns = phases(ends, duration_ms, now_ns)?;
    let mut count = |event| -> Result<Option<Phases>> {
        let Some(mut counter) = counter(event) else {
            return Ok(None);
        };
        // Where the counter cannot be read once it could be opened, its phases are 0.
        phases(ends, duration_ms / 2, || counter.read().unwrap_or(0)).map(Some)
    };
    Ok(Measured {
        ns,
        instructions: count(Hardware::INSTRUCTIONS)?,
        cycles: count(Hardware::CPU_CYCLES)?,
        verified_ops: ends.verified()?,
    })
}

/// A running counter of this thread in user mode, where the kernel and the processor have it: most virtual machines do not.
fn counter(event: Hardware) -> Option<Counter> {
    let mut counter = Builder::new().kind(event).build().ok()?;
    counter.enable().ok()?;
    Some(counter)
}

/// Phases by what `read` says at their ends.
fn phases(
    ends: &mut dyn OneCore,
    duration_ms: u64,
    mut read: impl FnMut() -> u64,
) -> Result<Phases> {
    let window = ends.window();
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
        ends.post()?;
        lap(0);
        until(window, || ends.receive(), "messages on one core")?;
        lap(1);
        ends.post_recv()?;
        lap(2);
        until(window, || ends.poll(), "completions on one core")?;
        lap(3);
        messages += window;
        if now_ns() >= until_ns {
            break;
        }
    }
    ensure!(
        ends.verified()? >= messages,
        "messages were lost on one core"
    );
    Ok(Phases::of(sums, messages))
}

fn until(count: u64, mut step: impl FnMut() -> Result<u64>, what: &str) -> Result<()> {
    let mut patience = Patience::new(PATIENCE_NS);
    let mut done = 0;
    while done < count {
        let more = step()?;
        if more == 0 {
            patience.check(what)?;
        }
        done += more;
    }
    ensure!(done == count, "{done} {what} of {count}");
    Ok(())
}

/// The error of ends that saw something wrong.
pub(crate) fn right(wrong: Option<&str>, verified: u64) -> Result<u64> {
    match wrong {
        None => Ok(verified),
        Some(wrong) => Err(anyhow::anyhow!("{wrong}")).context("on one core"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a tick of a counter for each message in phases 1 to 4, so many ticks as the phase's number.
    #[derive(Default)]
    struct Ticks {
        calls: u64,
        loses: bool,
    }

    impl OneCore for Ticks {
        fn window(&self) -> u64 {
            4
        }
        fn post(&mut self) -> Result<()> {
            self.calls += 1;
            Ok(())
        }
        fn receive(&mut self) -> Result<u64> {
            Ok(2)
        }
        fn post_recv(&mut self) -> Result<()> {
            Ok(())
        }
        fn poll(&mut self) -> Result<u64> {
            Ok(4)
        }
        fn verified(&self) -> Result<u64> {
            Ok(if self.loses { 0 } else { 4 * self.calls })
        }
    }

    #[test]
    fn phases_are_kept_apart_per_message() {
        let mut times = [0u64, 4, 12, 16, 32].into_iter();
        let measured = phases(&mut Ticks::default(), 0, || times.next().unwrap()).unwrap();
        let want = Phases {
            post: 1.0,
            receive: 2.0,
            post_recv: 1.0,
            poll: 4.0,
        };
        assert_eq!(measured, want);
        assert_eq!((want.sender(), want.receiver()), (5.0, 3.0));
        let mut loses = Ticks {
            loses: true,
            ..Ticks::default()
        };
        assert!(measure(&mut loses, 0).is_err());
    }
}
