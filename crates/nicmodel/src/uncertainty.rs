//! The range in which the real rate probably lies, and the smallest gain that the model can tell from none.
//!
//! Both come from the errors of predictions for published rates, in `data/errors.csv`. No number of a profile was
//! fitted to the predicted rate (`predicted`), or the profile was fitted again without it (`left-out`). `verbatim paper
//! --leave-one-out --csv` writes such a file.
//!
//! - *Ranges.* The error of a prediction is the logarithm of the published over the predicted rate. Of the `n` errors
//!   of rates with the same bottleneck, the one of rank `ceil(0.8 (n + 1))` by size is the half-width of the range. If
//!   a new rate has an error like these, it lies in the range with a probability of at least 80 %. Fewer than
//!   [`MIN_ERROR_COUNT`] errors have no such rank, so the errors of all bottlenecks are taken together. No half-width is
//!   below the median of all errors: measurements that repeat one another have small errors, but say little of others.
//! - *Gains.* Two predictions for one NIC share most of their error, and their ratio does not have that part. So the
//!   noise of a gain comes from pairs of published rates of one NIC, whose bottlenecks are those before and after the
//!   change. Both are predicted by the profile as it is. The error of a pair is the difference of its two errors,
//!   and four of five pairs have no larger one.

use std::sync::LazyLock;

use serde::de::IntoDeserializer;
use serde::de::value::{Error as NameError, StrDeserializer};
use serde::{Deserialize, Serialize};

use crate::bounds::{Bounds, Resource};
use crate::published;

/// Share of rates that the range is to contain, and of pairs with an error below the noise of a gain.
const COVERED_SHARE: f64 = 0.8;

/// Fewest errors of one bottleneck that give a range. With fewer, rank `ceil(0.8 (n + 1))` exceeds their number.
pub const MIN_ERROR_COUNT: usize = 4;

/// The prediction for a published rate, without a fit to this rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnfittedPrediction {
    /// Id of the published rate.
    pub id: &'static str,
    /// The cluster or NIC of the published rate.
    pub nic: &'static str,
    /// The bottleneck by the model; `None` if only a simulation gives the rate.
    pub bottleneck: Option<Resource>,
    /// True if the profile was fitted again without this rate.
    pub profile_refitted_without_rate: bool,
    /// The published rate, in 10^6 a second.
    pub published_mops: f64,
    /// The predicted rate, in 10^6 a second.
    pub predicted_mops: f64,
}

impl UnfittedPrediction {
    /// The logarithm of the published over the predicted rate.
    pub fn log_error(&self) -> f64 {
        (self.published_mops / self.predicted_mops).ln()
    }
}

/// A range of rates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LikelyRange {
    /// Lower end, in 10^6 a second.
    pub low_mops: f64,
    /// Upper end, in 10^6 a second.
    pub high_mops: f64,
}

const ERRORS_CSV: &str = include_str!("../data/errors.csv");

const ERRORS_CSV_HEADER: &str = "id,bottleneck,how,published,predicted,error";

static UNFITTED_PREDICTIONS: LazyLock<Vec<UnfittedPrediction>> = LazyLock::new(|| {
    // A test parses the table. Without it, predictions have no range.
    parse(ERRORS_CSV).unwrap_or_default()
});

/// Returns the predictions for published rates that no number was fitted to.
pub fn unfitted_predictions() -> &'static [UnfittedPrediction] {
    &UNFITTED_PREDICTIONS
}

fn parse(text: &'static str) -> Result<Vec<UnfittedPrediction>, String> {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default();
    if header != ERRORS_CSV_HEADER {
        return Err(format!(
            "line 1 is {header:?} and must be {ERRORS_CSV_HEADER:?}"
        ));
    }
    let mut rows: Vec<UnfittedPrediction> = Vec::new();
    for (number, line) in (2..).zip(lines) {
        let row = parse_line(line).map_err(|why| format!("line {number}, {line:?}: {why}"))?;
        if rows.iter().any(|known| known.id == row.id) {
            return Err(format!("line {number}: {} is there twice", row.id));
        }
        rows.push(row);
    }
    Ok(rows)
}

fn parse_line(line: &'static str) -> Result<UnfittedPrediction, String> {
    let fields: Vec<&'static str> = line.split(',').collect();
    let [id, bottleneck, how, published, predicted, error] = fields[..] else {
        return Err(format!("{} fields instead of 6", fields.len()));
    };
    if !["left-out", "predicted"].contains(&how) {
        return Err(format!("{how:?} is neither left-out nor predicted"));
    }
    let number = |text: &str| {
        text.parse()
            .ok()
            .filter(|value: &f64| value.is_finite())
            .ok_or_else(|| format!("{text:?} is no number"))
    };
    let rate = |text: &str| match number(text)? {
        rate if rate > 0.0 => Ok(rate),
        _ => Err(format!("{text:?} is no rate above 0")),
    };
    let known = published::published_number_by_id(id)
        .ok_or_else(|| format!("{id:?} is no published number"))?;
    let row = UnfittedPrediction {
        id,
        nic: known.nic,
        bottleneck: match bottleneck {
            "" => None,
            name => Some(resource_from_name(name)?),
        },
        profile_refitted_without_rate: how == "left-out",
        published_mops: rate(published)?,
        predicted_mops: rate(predicted)?,
    };
    let computed = row.predicted_mops / row.published_mops - 1.0;
    if (number(error)? - computed).abs() > 1e-3 {
        return Err(format!("the error is {computed:.4} by the two rates"));
    }
    Ok(row)
}

fn resource_from_name(name: &str) -> Result<Resource, String> {
    let words: StrDeserializer<'_, NameError> = name.into_deserializer();
    Resource::deserialize(words).map_err(|_| format!("{name:?} is no resource"))
}

/// Returns the rank, counted from 1, that bounds the share [`COVERED_SHARE`] of a new value beside `count` known ones.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "counts of published numbers are small"
)]
fn rank_of_covering_error(count: usize) -> usize {
    (COVERED_SHARE * (count as f64 + 1.0) - 1e-9).ceil() as usize
}

/// Returns the size below which the share [`COVERED_SHARE`] of new errors lies; `None` if there are too few errors.
fn covered_error_size(errors: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sizes: Vec<f64> = errors.map(f64::abs).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    sizes
        .get(rank_of_covering_error(sizes.len()).checked_sub(1)?)
        .copied()
}

/// Returns the half-width of the range of a rate with this bottleneck, as a logarithm.
fn log_half_width(rows: &[UnfittedPrediction], bottleneck: Option<Resource>) -> Option<f64> {
    let same = rows
        .iter()
        .filter(|row| bottleneck.is_some() && row.bottleneck == bottleneck);
    let all = || rows.iter().map(UnfittedPrediction::log_error);
    let width = covered_error_size(same.map(UnfittedPrediction::log_error))
        .or_else(|| covered_error_size(all()))?;
    Some(width.max(median_magnitude(all())))
}

/// Returns the median of the sizes of errors, or 0 if there are none.
fn median_magnitude(errors: impl Iterator<Item = f64>) -> f64 {
    let mut sizes: Vec<f64> = errors.map(f64::abs).collect();
    sizes.sort_unstable_by(f64::total_cmp);
    sizes.get(sizes.len() / 2).copied().unwrap_or(0.0)
}

fn range_from_errors(
    rows: &[UnfittedPrediction],
    bottleneck: Option<Resource>,
    mops: f64,
) -> Option<LikelyRange> {
    let wide = log_half_width(rows, bottleneck)?.exp();
    Some(LikelyRange {
        low_mops: mops / wide,
        high_mops: mops * wide,
    })
}

/// Returns the range in which a rate probably lies that the model predicts with this bottleneck.
pub fn likely_range_of_rate(bottleneck: Resource, mops: f64) -> Option<LikelyRange> {
    range_from_errors(unfitted_predictions(), Some(bottleneck), mops)
}

/// Returns the range in which the rate of a mix probably lies. `None` if a resource is unknown, which may make the rate
/// much lower.
pub fn likely_range_of_mix(bounds: &Bounds) -> Option<LikelyRange> {
    if !bounds.unknown_resources.is_empty() {
        return None;
    }
    likely_range_of_rate(bounds.bottleneck()?, bounds.predicted_mops?)
}

/// Returns the largest relative gain that is within the noise of the model, for a change of the program after which
/// `after` is the bottleneck instead of `before`.
pub fn noise_of_gain(before: Resource, after: Resource) -> f64 {
    let mut noises = NOISE_OF_GAINS.iter();
    let found = noises.find(|known| (known.0, known.1) == (before, after));
    found.map_or(0.0, |known| known.2)
}

/// The noise of gains, by the bottlenecks before and after.
static NOISE_OF_GAINS: LazyLock<Vec<(Resource, Resource, f64)>> = LazyLock::new(|| {
    let mut noises = Vec::new();
    for before in Resource::ALL {
        for after in Resource::ALL {
            noises.push((
                before,
                after,
                noise_from_error_pairs(unfitted_predictions(), before, after),
            ));
        }
    }
    noises
});

fn noise_from_error_pairs(rows: &[UnfittedPrediction], before: Resource, after: Resource) -> f64 {
    let pairs = |is_pair: &dyn Fn(&UnfittedPrediction, &UnfittedPrediction) -> bool| {
        let mut errors = Vec::new();
        for (at, one) in rows.iter().enumerate() {
            for other in &rows[at + 1..] {
                let pair = is_pair(one, other) || is_pair(other, one);
                let one_profile =
                    !one.profile_refitted_without_rate && !other.profile_refitted_without_rate;
                if pair && one_profile && one.nic == other.nic {
                    errors.push(one.log_error() - other.log_error());
                }
            }
        }
        covered_error_size(errors.into_iter())
    };
    let alike = |one: &UnfittedPrediction, other: &UnfittedPrediction| {
        one.bottleneck == Some(before) && other.bottleneck == Some(after)
    };
    let noise = pairs(&alike).or_else(|| pairs(&|_, _| true));
    noise.map_or(0.0, f64::exp_m1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read() {
        let rows = parse(ERRORS_CSV).expect("the table of this crate");
        assert_eq!(rows.len(), ERRORS_CSV.lines().count() - 1);
        assert!(rows.len() >= 20, "{}", rows.len());
        for row in unfitted_predictions() {
            let known = published::published_number_by_id(row.id).expect("published");
            assert_eq!(row.published_mops, known.value, "{}", row.id);
        }
    }

    #[test]
    fn bad_tables_are_refused_with_the_line() {
        let good =
            "id,bottleneck,how,published,predicted,error\nseq_rpc_base_1c,cpu,left-out,7,7.7,0.1\n";
        assert_eq!(parse(good).map(|rows| rows.len()), Ok(1));
        let simulated =
            "id,bottleneck,how,published,predicted,error\nseq_rpc_base_1c,,predicted,7,7,0\n";
        assert_eq!(parse(simulated).map(|rows| rows[0].bottleneck), Ok(None));
        for (text, why) in [
            ("", "line 1"),
            ("id,error\n", "line 1"),
            ("a,cpu,predicted,1,1", "5 fields instead of 6"),
            ("a,cpu,predicted,1,1,0", "\"a\" is no published number"),
            ("seq_rpc_base_1c,cpu,guessed,7,7,0", "\"guessed\""),
            (
                "seq_rpc_base_1c,gpu,predicted,7,7,0",
                "\"gpu\" is no resource",
            ),
            ("seq_rpc_base_1c,cpu,predicted,7,0,-1", "\"0\" is no rate"),
            (
                "seq_rpc_base_1c,cpu,predicted,7,inf,0",
                "\"inf\" is no number",
            ),
            (
                "seq_rpc_base_1c,cpu,predicted,7,7.7,x",
                "\"x\" is no number",
            ),
            (
                "seq_rpc_base_1c,cpu,predicted,7,7.7,0.2",
                "the error is 0.1000",
            ),
            ("seq_rpc_base_1c,cpu,left-out,7,7.7,0.1", "there twice"),
        ] {
            let text = match text.contains("id,") || text.is_empty() {
                true => text.to_owned(),
                false => format!("{good}{text}"),
            };
            let refused = parse(text.leak()).expect_err(why);
            assert!(refused.contains(why), "{refused}");
        }
    }

    fn rows(bottleneck: Resource, errors: &[f64]) -> Vec<UnfittedPrediction> {
        let row = |error: &f64| UnfittedPrediction {
            id: "seq_rpc_base_1c",
            nic: "CIB",
            bottleneck: Some(bottleneck),
            profile_refitted_without_rate: false,
            published_mops: error.exp(),
            predicted_mops: 1.0,
        };
        errors.iter().map(row).collect()
    }

    #[test]
    fn a_range_has_the_error_that_four_of_five_stay_below() {
        assert_eq!([3, 4, 5, 8, 9].map(rank_of_covering_error), [4, 4, 5, 8, 8]);
        let mut all = rows(Resource::Cpu, &[0.1, -0.3, 0.2, -0.05]);
        let range = |all: &[UnfittedPrediction], resource| {
            let range = range_from_errors(all, Some(resource), 10.0).expect("errors");
            [(10.0 / range.low_mops).ln(), (range.high_mops / 10.0).ln()]
        };
        for end in range(&all, Resource::Cpu) {
            assert!((end - 0.3).abs() < 1e-9, "{end}");
        }
        // Three errors are too few, so those of all bottlenecks count: rank 7 of 7.
        all.extend(rows(Resource::LinkOut, &[0.4, 0.01, 0.02]));
        for resource in [Resource::LinkOut, Resource::RoundTrips] {
            for end in range(&all, resource) {
                assert!((end - 0.4).abs() < 1e-9, "{end}");
            }
        }
        // Errors of measurements that repeat one another are below the median of all errors.
        all.extend(rows(Resource::NicInbound, &[0.001, 0.001, 0.002, 0.002]));
        for end in range(&all, Resource::NicInbound) {
            assert!((end - 0.02).abs() < 1e-9, "{end}");
        }
        assert_eq!(
            super::range_from_errors(&[], Some(Resource::Cpu), 10.0),
            None
        );
    }

    /// Errors that all rates share cancel in a gain.
    #[test]
    fn the_noise_of_a_gain_is_that_of_ratios() {
        let mut all = rows(Resource::Cpu, &[0.30, 0.31, 0.32, 0.33]);
        let logarithm = |all: &[UnfittedPrediction], before, after| {
            noise_from_error_pairs(all, before, after).ln_1p()
        };
        // Six pairs: three differ by 0.01, two by 0.02, one by 0.03.
        let within = logarithm(&all, Resource::Cpu, Resource::Cpu);
        assert!((within - 0.03).abs() < 1e-9, "{within}");
        all.extend(rows(Resource::LinkOut, &[0.1; 4]));
        for (before, after) in [
            (Resource::Cpu, Resource::LinkOut),
            (Resource::LinkOut, Resource::Cpu),
        ] {
            let between = logarithm(&all, before, after);
            assert!((between - 0.23).abs() < 1e-9, "{between}");
        }
        // A rate that was left out is predicted by another profile than the rest.
        all[0].profile_refitted_without_rate = true;
        assert!(logarithm(&all[..4], Resource::Cpu, Resource::Cpu) < 1e-9);
        assert_eq!(
            noise_from_error_pairs(&[], Resource::Cpu, Resource::Cpu),
            0.0
        );
    }

    /// A range that the rate itself has no part in contains at least four of five published rates.
    #[test]
    fn published_rates_lie_in_their_ranges() {
        let (mut inside, mut inside_without) = (0, 0);
        for (at, row) in unfitted_predictions().iter().enumerate() {
            let others = [
                &unfitted_predictions()[..at],
                &unfitted_predictions()[at + 1..],
            ]
            .concat();
            let contains = |range: LikelyRange| {
                (range.low_mops..=range.high_mops).contains(&row.published_mops)
            };
            let with =
                range_from_errors(unfitted_predictions(), row.bottleneck, row.predicted_mops);
            let without = range_from_errors(&others, row.bottleneck, row.predicted_mops);
            inside += usize::from(contains(with.expect("errors")));
            inside_without += usize::from(contains(without.expect("errors")));
        }
        let counts = format!(
            "{inside} and {inside_without} of {}",
            unfitted_predictions().len()
        );
        assert!(5 * inside >= 4 * unfitted_predictions().len(), "{counts}");
        assert!(
            5 * inside_without >= 4 * unfitted_predictions().len() - 5,
            "{counts}"
        );
    }
}
