//! The outcome of a case.

use regex::Regex;
use serde::{Deserialize, Serialize};

/// The outcome of one case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub(crate) enum Outcome {
    Passed,
    Failed { reason: String },
    Skipped { reason: String },
}

impl Outcome {
    pub(crate) fn failed(reason: impl Into<String>) -> Outcome {
        Outcome::Failed {
            reason: reason.into(),
        }
    }

    /// Returns a rank of the outcome: a higher rank means that the case showed more.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Outcome::Failed { .. } => 0,
            Outcome::Skipped { .. } => 1,
            Outcome::Passed => 2,
        }
    }

    /// Returns the reason why the case did not pass; `None` if it passed.
    pub(crate) fn reason(&self) -> Option<&str> {
        match self {
            Outcome::Passed => None,
            Outcome::Failed { reason } | Outcome::Skipped { reason } => Some(reason),
        }
    }

    pub(crate) fn word(&self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed { .. } => "failed",
            Outcome::Skipped { .. } => "skipped",
        }
    }
}

/// Returns the first of `patterns` that `output` does not match.
pub(crate) fn unmatched<'a>(output: &str, patterns: &'a [Regex]) -> Option<&'a Regex> {
    patterns.iter().find(|pattern| !pattern.is_match(output))
}

/// Returns the first line of `output` that one of `patterns` matches. If the pattern has a group, only the
/// text of the first group is returned.
pub(crate) fn first_match<'a>(output: &'a str, patterns: &[Regex]) -> Option<&'a str> {
    output.lines().find_map(|line| {
        let found = patterns.iter().find_map(|pattern| pattern.captures(line))?;
        Some(found.get(1).map_or(line, |group| group.as_str()).trim())
    })
}

/// Returns the number of measurement rows in the output of perftest. A row counts if it stands behind a
/// heading `#bytes …` and has a positive average bandwidth, message rate or average latency. The bandwidth in
/// MB/s may round to zero for small messages, the rate in millions a second for large ones, so one of them suffices.
///
/// Before each row perftest measures the frequency of the clock. On a busy machine this measurement may fail.
/// perftest then prints a message and a row of zeros or infinities. All iterations were executed, so this row
/// counts.
pub(crate) fn count_measurement_rows(output: &str) -> usize {
    let mut columns: Option<&[usize]> = None;
    let mut clockless = false;
    let mut rows = 0;
    for line in output.lines() {
        let line = line.trim();
        if line.starts_with("#bytes") {
            // Names of columns may contain blanks, so the columns are counted in the rows and not in the
            // heading.
            columns = if line.contains("MsgRate") {
                Some(BANDWIDTH_AND_RATE)
            } else if line.contains("t_avg") {
                Some(AVERAGE_LATENCY)
            } else {
                None
            };
            clockless = false;
        } else if line.starts_with("Correlation coefficient r^2") {
            clockless = true;
        } else if let Some(columns) = columns {
            let numbers: Option<Vec<f64>> = line
                .split_whitespace()
                .map(|word| word.parse().ok())
                .collect();
            let values: Option<Vec<f64>> = numbers.and_then(|numbers| {
                let values = columns.iter().map(|column| numbers.get(*column).copied());
                values.collect()
            });
            if let Some(values) = values {
                let is_finite = values.iter().all(|value| value.is_finite());
                let is_positive = values.iter().any(|value| *value > 0.0);
                rows += usize::from(clockless || (is_finite && is_positive));
                clockless = false;
            }
        }
    }
    rows
}

/// The columns of the average bandwidth and of the message rate, in the table of perftest's bandwidths.
const BANDWIDTH_AND_RATE: &[usize] = &[3, 4];

/// The column of the average latency, in the table of perftest's latencies.
const AVERAGE_LATENCY: &[usize] = &[5];

#[cfg(test)]
mod tests {
    use super::*;

    const BANDWIDTH: &str = "\
 remote address: LID 0000 QPN 0x0015 PSN 0x2e0b21
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
Conflicting CPU frequency values detected: 2595.124000 != 2445.436000. CPU Frequency is not max.
 2          5              0.00               0.00                 0.000773
 65536      5              91.39              48.30  \t\t   0.000772
---------------------------------------------------------------------------------------
";
    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       100          412.45         5162.17      602.18              650.75           300.11          5162.17                 5162.17
";

    #[test]
    fn rows_of_both_tables_are_counted() {
        assert_eq!(count_measurement_rows(BANDWIDTH), 2);
        assert_eq!(count_measurement_rows(LATENCY), 1);
    }

    #[test]
    fn rows_that_measure_nothing_do_not_count() {
        assert_eq!(count_measurement_rows(""), 0);
        assert_eq!(
            count_measurement_rows("2 5 0.00 0.00 0.5\n"),
            0,
            "no heading"
        );
        assert_eq!(
            count_measurement_rows("#bytes MsgRate[Mpps]\n 2 5 0.00 0.00 0.000000\n"),
            0
        );
        assert_eq!(
            count_measurement_rows("#bytes MsgRate[Mpps]\n 2 5 1.0 1.0 -nan\n"),
            0
        );
        assert_eq!(
            count_measurement_rows("#bytes MsgRate[Mpps]\n 2 5 1.0 1.0 inf\n"),
            0
        );
        assert_eq!(
            count_measurement_rows("#bytes t_avg[usec]\n 2 5 1.0\n"),
            0,
            "cut short"
        );
        assert_eq!(
            count_measurement_rows("#bytes what\n 2 5 1.0 1 1 1 1\n"),
            0,
            "unknown table"
        );
    }

    #[test]
    fn a_slow_row_counts_by_its_bandwidth() {
        let heading = "#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]\n";
        let slow = " 8388608    5                3.54               3.54   \t\t   0.000000\n";
        assert_eq!(count_measurement_rows(&format!("{heading}{slow}")), 1);
    }

    #[test]
    fn a_row_without_a_clock_counts_once() {
        let heading = "#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]\n";
        let clockless = "Correlation coefficient r^2: 0.416328 < 0.9\n";
        let row = " 2 5 0.00 0.00 0.000000\n";
        assert_eq!(count_measurement_rows(&format!("{heading}{row}")), 0);
        assert_eq!(
            count_measurement_rows(&format!("{heading}{clockless}{row}")),
            1
        );
        assert_eq!(
            count_measurement_rows(&format!("{heading}{clockless}{row}{row}")),
            1
        );
        assert_eq!(
            count_measurement_rows(&format!("{heading}{clockless}Can't produce a report\n")),
            0
        );
        let inf = " 2 96 inf inf inf \t inf \t-nan \tinf \tinf\n";
        assert_eq!(
            count_measurement_rows(&format!("#bytes t_avg[usec]\n{clockless}{inf}")),
            1
        );
        assert_eq!(
            count_measurement_rows(&format!("#bytes t_avg[usec]\n{inf}")),
            0
        );
    }

    #[test]
    fn a_program_says_why_it_cannot() {
        let patterns = [Regex::new("not supported").unwrap()];
        let output = "Couldn't open\n  XRC is not supported here\nfailed\n";
        assert_eq!(
            first_match(output, &patterns),
            Some("XRC is not supported here")
        );
        assert_eq!(first_match("failed", &patterns), None);
        assert!(unmatched(output, &patterns).is_none());
        assert_eq!(unmatched("", &patterns).unwrap().as_str(), "not supported");
    }

    #[test]
    fn outcomes_are_ranked_without_their_reasons() {
        let skipped = |reason: &str| Outcome::Skipped {
            reason: reason.to_owned(),
        };
        assert_eq!(skipped("a").rank(), skipped("b").rank());
        assert!(skipped("a").rank() > Outcome::failed("a").rank());
        assert!(Outcome::Passed.rank() > skipped("a").rank());
    }
}
