//! Tasks: measurements of a rate or a latency.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::parameters::{MeasuredRole, MicroParameters, VerbStream};
use super::verb::Verb;

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

/// A ping-pong: one message back and forth, for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PingPong {
    /// Verb that is posted.
    pub verb: Verb,
    /// Payload bytes.
    pub payload_bytes: usize,
    /// True if the payload is inline.
    pub inline: bool,
    /// Exchanges per sample, which is the time between two readings of the clock. With 1, the
    /// histogram shows single exchanges. With more, the mean excludes the cost of each sample.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub exchanges_per_sample: u32,
    /// Duration in ms; the first tenth is not measured.
    pub duration_ms: u64,
}

impl PingPong {
    /// Creates a ping-pong and fills in the parameters that `parameters` leaves open. Batch, window and
    /// signaled period are ignored.
    ///
    /// # Errors
    /// When parameters contradict each other. The message says which one to change.
    pub fn new(verb: Verb, parameters: &MicroParameters, duration_ms: u64) -> Result<PingPong> {
        let payload_bytes = parameters.payload_bytes.unwrap_or(8);
        verb.check_payload_fits_stamp(payload_bytes)?;
        Ok(PingPong {
            verb,
            payload_bytes,
            inline: parameters.resolve_inline(verb, payload_bytes)?,
            exchanges_per_sample: 1,
            duration_ms,
        })
    }

    /// Returns the inline payload bytes of a WR.
    pub(super) fn inline_bytes(&self) -> usize {
        if self.inline { self.payload_bytes } else { 0 }
    }

    /// Returns true if the latency is half of a round trip, false if it is the time from post to
    /// completion.
    #[must_use]
    pub fn has_one_way_latency(&self) -> bool {
        self.verb.request_carries_payload()
    }
}

/// A measurement of a rate or a latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasurementTask {
    /// Measures a rate.
    Stream(VerbStream),
    /// Measures a latency.
    PingPong(PingPong),
}

impl MeasurementTask {
    /// Returns the verb that is posted.
    #[must_use]
    pub fn verb(&self) -> Verb {
        match self {
            MeasurementTask::Stream(stream) => stream.verb,
            MeasurementTask::PingPong(ping) => ping.verb,
        }
    }

    /// Returns the payload bytes of each message.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        match self {
            MeasurementTask::Stream(stream) => stream.payload_bytes,
            MeasurementTask::PingPong(ping) => ping.payload_bytes,
        }
    }

    pub(super) fn threads_and_processes(&self) -> (usize, usize) {
        match self {
            MeasurementTask::Stream(stream) => (stream.threads, stream.other_side_processes),
            MeasurementTask::PingPong(_) => (1, 1),
        }
    }

    /// Returns the number of processes of the other side.
    #[must_use]
    pub fn other_side_processes(&self) -> usize {
        self.threads_and_processes().1
    }

    pub(super) fn measured_role(&self) -> MeasuredRole {
        match self {
            MeasurementTask::Stream(stream) => stream.measured_role,
            MeasurementTask::PingPong(_) => MeasuredRole::Outbound,
        }
    }
}
