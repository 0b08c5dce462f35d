//! What is measured: a rate or a latency.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::knobs::{Direction, Knobs, Stream};
use super::verb::Verb;

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

/// One message to and fro, for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingPong {
    /// What is posted.
    pub verb: Verb,
    /// Bytes of payload.
    pub payload_bytes: usize,
    /// Whether the payload is inline.
    pub inline: bool,
    /// Exchanges from one reading of the clock to the next. With 1 the histogram is that of single exchanges; with
    /// more the mean is without what each sample costs.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub exchanges_per_sample: u32,
    /// How long it runs; the first tenth is not measured.
    pub duration_ms: u64,
}

impl PingPong {
    /// Fills in what `knobs` leaves open; batch, window and signaled period do not matter.
    ///
    /// # Errors
    /// When knobs contradict each other; the message says which to change.
    pub fn new(verb: Verb, knobs: &Knobs, duration_ms: u64) -> Result<PingPong> {
        let payload_bytes = knobs.payload_bytes.unwrap_or(8);
        verb.check_payload(payload_bytes)?;
        Ok(PingPong {
            verb,
            payload_bytes,
            inline: knobs.inline(verb, payload_bytes)?,
            exchanges_per_sample: 1,
            duration_ms,
        })
    }

    /// Bytes of payload that a WR carries itself.
    pub(super) fn inline_bytes(&self) -> usize {
        if self.inline { self.payload_bytes } else { 0 }
    }

    /// Whether its latency is half of a round trip, or all of it from post to completion.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.verb.carries_payload()
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// A rate.
    Stream(Stream),
    /// A latency.
    PingPong(PingPong),
}

impl Task {
    /// What is posted.
    #[must_use]
    pub fn verb(&self) -> Verb {
        match self {
            Task::Stream(stream) => stream.verb,
            Task::PingPong(ping) => ping.verb,
        }
    }

    /// Bytes of payload of each message.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        match self {
            Task::Stream(stream) => stream.payload_bytes,
            Task::PingPong(ping) => ping.payload_bytes,
        }
    }

    pub(super) fn threads_and_processes(&self) -> (usize, usize) {
        match self {
            Task::Stream(stream) => (stream.threads, stream.processes),
            Task::PingPong(_) => (1, 1),
        }
    }

    /// Processes of the other side.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.threads_and_processes().1
    }

    pub(super) fn direction(&self) -> Direction {
        match self {
            Task::Stream(stream) => stream.direction,
            Task::PingPong(_) => Direction::Outbound,
        }
    }
}
