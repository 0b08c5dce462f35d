//! What came of a measurement.

use serde::{Deserialize, Serialize};

use super::knobs::Stream;
use super::pace::Timed;
use crate::clock::mops;

/// What came of a [`Stream`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Messages in the measured time, in 10^6 a second.
    pub rate_mops: f64,
    /// Their payload, in 10^9 bytes a second.
    pub bandwidth_gbytes_per_s: f64,
    /// Messages of the whole run that were checked: each SEND, READ and atomic, and for WRITEs those
    /// that were last in their place and, by order, all before them.
    pub verified_ops: u64,
    /// Datagrams that did not arrive.
    pub lost_ops: u64,
}

impl Rate {
    pub(super) fn new(stream: &Stream, timed: Timed, verified_ops: u64, lost_ops: u64) -> Rate {
        let rate_mops = mops(timed.ops, timed.elapsed_ns);
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        let bandwidth_gbytes_per_s = rate_mops * stream.payload_bytes as f64 / 1e3;
        Rate {
            rate_mops,
            bandwidth_gbytes_per_s,
            verified_ops,
            lost_ops,
        }
    }

    /// The same with a rate that was found in another way.
    pub(crate) fn at(self, rate_mops: f64) -> Rate {
        let bytes = if self.rate_mops > 0.0 {
            self.bandwidth_gbytes_per_s / self.rate_mops
        } else {
            0.0
        };
        Rate {
            rate_mops,
            bandwidth_gbytes_per_s: rate_mops * bytes,
            ..self
        }
    }

    /// The rate of two threads together.
    pub(super) fn plus(self, other: Rate) -> Rate {
        Rate {
            rate_mops: self.rate_mops + other.rate_mops,
            bandwidth_gbytes_per_s: self.bandwidth_gbytes_per_s + other.bandwidth_gbytes_per_s,
            verified_ops: self.verified_ops + other.verified_ops,
            lost_ops: self.lost_ops + other.lost_ops,
        }
    }
}

/// What came of a [`PingPong`](super::PingPong); times in nanoseconds, less what reading the clock takes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The median.
    pub latency_ns_p50: f64,
    /// 99 % are at most this.
    pub latency_ns_p99: f64,
    /// 99.9 % are at most this.
    pub latency_ns_p999: f64,
    /// The longest.
    pub latency_ns_max: f64,
    /// The mean.
    pub latency_ns_mean: f64,
    /// What one reading of the clock takes; already subtracted.
    pub clock_ns: f64,
    /// Exchanges that were checked.
    pub verified_ops: u64,
    /// The raw samples: each latency that occurred, to three digits, and how often.
    pub histogram: Vec<(f64, u64)>,
}

/// What came of a [`Task`](super::Task).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Of a stream.
    Rate(Rate),
    /// Of a ping-pong.
    Latency(Latency),
}
