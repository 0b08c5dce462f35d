//! Results of measurements.

use serde::{Deserialize, Serialize};

use super::parameters::VerbStream;
use super::timer::TimedOperations;
use crate::clock::mops;

/// Result of a [`VerbStream`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamRate {
    /// Messages in the measured time, in 10^6 per second.
    pub rate_mops: f64,
    /// Payload in the measured time, in 10^9 bytes per second.
    pub bandwidth_gbytes_per_s: f64,
    /// Messages of the whole run that were checked. Each SEND, READ and atomic is checked. For
    /// WRITEs, the last one of each slot is checked, which by ordering confirms all before it.
    pub verified_ops: u64,
    /// Datagrams that did not arrive.
    #[serde(rename = "lost_ops")]
    pub lost_datagrams: u64,
}

impl StreamRate {
    pub(super) fn new(
        stream: &VerbStream,
        timed: TimedOperations,
        verified_ops: u64,
        lost_ops: u64,
    ) -> StreamRate {
        let rate_mops = mops(timed.ops, timed.elapsed_ns);
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        let bandwidth_gbytes_per_s = rate_mops * stream.payload_bytes as f64 / 1e3;
        StreamRate {
            rate_mops,
            bandwidth_gbytes_per_s,
            verified_ops,
            lost_datagrams: lost_ops,
        }
    }

    /// Returns the result with another rate, measured in another way.
    pub(crate) fn with_rate(self, rate_mops: f64) -> StreamRate {
        let bytes = if self.rate_mops > 0.0 {
            self.bandwidth_gbytes_per_s / self.rate_mops
        } else {
            0.0
        };
        StreamRate {
            rate_mops,
            bandwidth_gbytes_per_s: rate_mops * bytes,
            ..self
        }
    }

    /// Adds the results of two threads.
    pub(super) fn plus(self, other: StreamRate) -> StreamRate {
        StreamRate {
            rate_mops: self.rate_mops + other.rate_mops,
            bandwidth_gbytes_per_s: self.bandwidth_gbytes_per_s + other.bandwidth_gbytes_per_s,
            verified_ops: self.verified_ops + other.verified_ops,
            lost_datagrams: self.lost_datagrams + other.lost_datagrams,
        }
    }
}

/// Result of a [`PingPong`](super::PingPong). Times are in nanoseconds, less the time of reading
/// the clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PingPongLatency {
    /// Median.
    pub latency_ns_p50: f64,
    /// 99th percentile.
    pub latency_ns_p99: f64,
    /// 99.9th percentile.
    pub latency_ns_p999: f64,
    /// Maximum.
    pub latency_ns_max: f64,
    /// Mean.
    pub latency_ns_mean: f64,
    /// Time of one reading of the clock, which is already subtracted.
    #[serde(rename = "clock_ns")]
    pub clock_read_ns: f64,
    /// Exchanges that were checked.
    pub verified_ops: u64,
    /// Raw samples: each latency that occurred, to three digits, with its count.
    pub histogram: Vec<(f64, u64)>,
}

/// Result of a [`MeasurementTask`](super::MeasurementTask).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskResult {
    /// Result of a stream.
    Rate(StreamRate),
    /// Result of a ping-pong.
    Latency(PingPongLatency),
}
