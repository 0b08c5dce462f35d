//! Figures that clients of all services report, as JSON.

use serde::{Deserialize, Serialize};

/// Latencies in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Number of samples.
    pub samples: u64,
    /// Mean, if the service reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_ns: Option<f64>,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

impl LatencySummary {
    /// Returns the percentiles of a histogram of nanoseconds, without the mean; all 0 for an empty
    /// histogram.
    pub fn from_histogram(histogram: &hdrhistogram::Histogram<u64>) -> Self {
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

    /// Returns the percentiles and the mean of a histogram of nanoseconds.
    pub fn from_histogram_with_mean(histogram: &hdrhistogram::Histogram<u64>) -> Self {
        let mean_ns = Some(if histogram.is_empty() {
            0.0
        } else {
            histogram.mean()
        });
        Self {
            mean_ns,
            ..Self::from_histogram(histogram)
        }
    }
}
