//! Figures that clients of every service report: they travel as JSON.

use serde::{Deserialize, Serialize};

/// Latencies in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many were measured.
    pub samples: u64,
    /// The mean, where the service reports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<f64>,
    /// The median.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Latency {
    /// The percentiles of a histogram of nanoseconds; all 0 of an empty one.
    pub fn of(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        Self {
            samples: histogram.len(),
            mean_ns: None,
            p50_ns: histogram.value_at_quantile(0.5),
            p99_ns: histogram.value_at_quantile(0.99),
            p999_ns: histogram.value_at_quantile(0.999),
            max_ns: histogram.max(),
        }
    }

    /// The same with the mean.
    pub fn with_mean(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        let mean_ns = Some(if histogram.is_empty() {
            0.0
        } else {
            histogram.mean()
        });
        Self {
            mean_ns,
            ..Self::of(histogram)
        }
    }
}
