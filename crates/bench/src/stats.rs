//! Medians and their spread.

use serde::{Deserialize, Serialize};

/// Median and spread of a few samples of one quantity, all in that quantity's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MedianAndSpread {
    /// Middle sample, or the mean of the two middle samples.
    pub median: f64,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// Median of the samples' distances from the median.
    pub mad: f64,
}

impl MedianAndSpread {
    /// Summarises `samples`. Returns `None` if there are no samples or a sample is NaN.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<MedianAndSpread> {
        let median = median(samples)?;
        let distances: Vec<f64> = samples.iter().map(|x| (x - median).abs()).collect();
        Some(MedianAndSpread {
            median,
            min: samples.iter().copied().fold(f64::INFINITY, f64::min),
            max: samples.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            mad: self::median(&distances)?,
        })
    }

    /// Returns true if the ranges from minimum to maximum overlap: then a difference may be noise.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.min <= other.max && other.min <= self.max
    }
}

/// Returns the median of `samples`, or `None` if there are no samples or a sample is NaN.
#[must_use]
pub fn median(samples: &[f64]) -> Option<f64> {
    if samples.is_empty() || samples.iter().any(|x| x.is_nan()) {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    Some(if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        f64::midpoint(sorted[middle - 1], sorted[middle])
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn odd_even_and_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, f64::NAN]), None);
        assert_eq!(MedianAndSpread::of(&[]), None);
    }

    #[test]
    fn ranges_that_touch_overlap() {
        let of = |samples: &[f64]| MedianAndSpread::of(samples).unwrap();
        let (low, high) = (of(&[1.0, 2.0]), of(&[2.0, 3.0]));
        assert!(low.overlaps(&high) && high.overlaps(&low) && low.overlaps(&of(&[1.5])));
        assert!(!low.overlaps(&of(&[2.5, 3.0])) && !high.overlaps(&of(&[1.0, 1.9])));
    }

    #[test]
    fn spread_of_known_samples() {
        let spread = MedianAndSpread::of(&[10.0, 12.0, 11.0, 50.0, 9.0]).unwrap();
        assert_eq!(spread.median, 11.0);
        assert_eq!((spread.min, spread.max), (9.0, 50.0));
        assert_eq!(spread.mad, 1.0);
    }

    proptest! {
        #[test]
        fn median_splits_the_samples(samples in prop::collection::vec(-1e9..1e9f64, 1..40)) {
            let spread = MedianAndSpread::of(&samples).unwrap();
            let below = samples.iter().filter(|x| **x <= spread.median).count();
            let above = samples.iter().filter(|x| **x >= spread.median).count();
            prop_assert!(2 * below >= samples.len() && 2 * above >= samples.len());
            prop_assert!(spread.min <= spread.median && spread.median <= spread.max);
        }
    }
}
