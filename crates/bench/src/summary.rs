//! Samples of a run, and the summary of each row, with near and far cores apart.

use serde::{Deserialize, Serialize};

use crate::goal::{CoreDistance, Row, RowGoal, Unit};
use crate::setup::RowFigure;
use crate::stats::MedianAndSpread;

/// Which of the compared measurements: ours, the peer's, or the limit of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparedSide {
    /// This project's implementation.
    Ours,
    /// The peer.
    Peer,
    /// The limit of both.
    Limit,
}

impl ComparedSide {
    /// Returns the side's name for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ComparedSide::Ours => "ours",
            ComparedSide::Peer => "peer",
            ComparedSide::Limit => "limit",
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowSample {
    /// Round, counted from 0.
    #[serde(rename = "round")]
    pub round_index: u32,
    /// Row that was measured; for a peer or a limit that several rows share, the first of them.
    pub row: Row,
    /// Side that was measured.
    pub side: ComparedSide,
    /// Figure in the unit of the row.
    pub value: f64,
    /// Unit of the row.
    pub unit: Unit,
    /// Operations that the receiving end checked (the peer's count for a peer).
    pub verified_ops: u64,
    /// Datagrams that were sent and did not arrive.
    #[serde(rename = "lost_ops")]
    pub lost_messages: u64,
    /// One-way time of a cache line between the two cores, before and after the measurement.
    #[serde(rename = "bounce_ns")]
    pub bounce_before_after_ns: [f64; 2],
}

impl RowSample {
    /// Returns the distance of the cores, or `None` if they moved during the measurement.
    #[must_use]
    pub fn core_distance(&self) -> Option<CoreDistance> {
        let [before, after] = self.bounce_before_after_ns.map(CoreDistance::of_bounce_ns);
        (before == after).then_some(before)
    }
}

/// Progress of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub enum RunEvent {
    /// The bounce of a cache line between the two cores was measured.
    Bounce {
        /// Round, counted from 0.
        round: u32,
        /// One-way time in nanoseconds.
        bounce_ns: f64,
    },
    /// A measurement begins.
    Begin {
        /// Round, counted from 0.
        round: u32,
        /// Row that is measured.
        row: Row,
        /// Side that is measured.
        side: ComparedSide,
    },
    /// A measurement has succeeded.
    Sample(RowSample),
}

/// Comparison of a median with its goal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GoalVerdict {
    /// The goal.
    pub goal: RowGoal,
    /// True if the median reaches the goal's minimum.
    #[serde(rename = "at_least_reached")]
    pub is_minimum_reached: bool,
    /// True if the median reaches the goal's aim.
    pub aim_reached: bool,
}

impl GoalVerdict {
    fn judge(
        row: Row,
        goal: Option<RowGoal>,
        judged: Option<MedianAndSpread>,
    ) -> Option<GoalVerdict> {
        let (goal, judged) = (goal?, judged?);
        let reached = |wanted| row.reaches_goal(judged.median, wanted);
        Some(GoalVerdict {
            goal,
            is_minimum_reached: reached(goal.worst_acceptable),
            aim_reached: reached(goal.aim_for),
        })
    }
}

/// A row's figures of the rounds with one distance of the cores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowFigures {
    /// This project's figure.
    pub ours: Option<MedianAndSpread>,
    /// The peer's figure.
    pub peer: Option<MedianAndSpread>,
    /// This project's figure divided by the peer's figure of the same round.
    #[serde(rename = "ratio")]
    pub ratio_to_peer: Option<MedianAndSpread>,
    /// Verdict on the ratio, or on this project's figure if the row has no peer; `None` without
    /// such a figure.
    pub verdict: Option<GoalVerdict>,
    /// The limit's figure.
    pub limit: Option<MedianAndSpread>,
    /// This project's figure divided by the limit's figure of the same round.
    #[serde(rename = "share")]
    pub share_of_limit: Option<MedianAndSpread>,
    /// Verdict on the share of the limit.
    pub limit_verdict: Option<GoalVerdict>,
}

impl RowFigures {
    /// Returns true if every verdict reaches its minimum.
    #[must_use]
    pub fn are_minimums_reached(&self) -> bool {
        let verdicts = [self.verdict, self.limit_verdict];
        verdicts.iter().flatten().all(|v| v.is_minimum_reached)
    }
}

/// Result of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// Row that was measured.
    pub row: Row,
    /// Description of the row.
    #[serde(rename = "what")]
    pub description: String,
    /// Unit of all figures except ratios and shares.
    pub unit: Unit,
    /// Name of the peer.
    pub peer_name: Option<String>,
    /// Name of the limit.
    pub limit_name: Option<String>,
    /// Figures with near cores; `None` if no measurement of this project's side had near cores.
    #[serde(rename = "near")]
    pub near_cores: Option<RowFigures>,
    /// Figures with far cores; `None` if no measurement of this project's side had far cores.
    #[serde(rename = "far")]
    pub far_cores: Option<RowFigures>,
    /// Measurements of this project's side during which the cores moved; `near` and `far` exclude
    /// them.
    #[serde(rename = "moved")]
    pub measurements_with_moved_cores: u32,
    /// True if every minimum is reached, near and far, as far as both occurred.
    #[serde(rename = "at_least_reached")]
    pub are_minimums_reached: bool,
    /// Datagrams of all rounds that did not arrive.
    #[serde(rename = "lost_ops")]
    pub lost_messages: u64,
    /// Errors of measurements that failed.
    pub errors: Vec<String>,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// One-way bounce time in nanoseconds, measured at the start of every round. `None` if the run ended before the first
    /// was measured.
    pub bounce_ns: Option<MedianAndSpread>,
    /// Results of the rows, in the order of the settings.
    pub rows: Vec<RowResult>,
}

impl RunSummary {
    /// Returns true if every row reached its minimum.
    #[must_use]
    pub fn are_minimums_reached(&self) -> bool {
        self.rows.iter().all(|row| row.are_minimums_reached)
    }
}

impl RowSample {
    pub(crate) fn new(
        measured: RowFigure,
        round: u32,
        row: Row,
        side: ComparedSide,
        bounce_ns: [f64; 2],
    ) -> RowSample {
        RowSample {
            round_index: round,
            row,
            side,
            value: measured.value,
            unit: row.unit(),
            verified_ops: measured.verified_ops,
            lost_messages: measured.lost_messages,
            bounce_before_after_ns: bounce_ns,
        }
    }
}

/// All samples and errors.
#[derive(Default)]
pub(crate) struct RunSamples {
    pub(crate) samples: Vec<RowSample>,
    errors: Vec<(Row, ComparedSide, String)>,
}

/// Returns true if a measurement of `side` for row `of` also counts for `row`.
fn measurement_counts_for_row(of: Row, side: ComparedSide, row: Row) -> bool {
    match side {
        ComparedSide::Ours => of == row,
        ComparedSide::Peer => row.peer().is_some() && of.peer() == row.peer(),
        ComparedSide::Limit => {
            row.bare_ring_limit().is_some() && of.bare_ring_limit() == row.bare_ring_limit()
        }
    }
}

impl RunSamples {
    pub(crate) fn record_error(
        &mut self,
        row: Row,
        side: ComparedSide,
        round: u32,
        err: &anyhow::Error,
    ) {
        let text = format!("round {round}, {}: {err:#}", side.name());
        self.errors.push((row, side, text));
    }

    pub(crate) fn summarize_rows(
        &self,
        rows: &[Row],
        bounce_ns: Option<MedianAndSpread>,
    ) -> RunSummary {
        RunSummary {
            bounce_ns,
            rows: rows.iter().map(|row| self.row_result(*row)).collect(),
        }
    }

    fn samples_of(&self, row: Row, side: ComparedSide) -> impl Iterator<Item = &RowSample> {
        let is_of =
            move |s: &&RowSample| s.side == side && measurement_counts_for_row(s.row, side, row);
        self.samples.iter().filter(is_of)
    }

    fn figures_at_distance(&self, row: Row, distance: CoreDistance) -> Option<RowFigures> {
        let of = |side| -> Vec<&RowSample> {
            let there = |s: &&RowSample| s.core_distance() == Some(distance);
            self.samples_of(row, side).filter(there).collect()
        };
        let ours = of(ComparedSide::Ours);
        let values = |samples: &[&RowSample]| {
            MedianAndSpread::of(&samples.iter().map(|s| s.value).collect::<Vec<_>>())
        };
        let over = |others: &[&RowSample]| {
            let ratios = ours.iter().filter_map(|ours| {
                let other = others
                    .iter()
                    .find(|other| other.round_index == ours.round_index)?;
                Some(ours.value / other.value)
            });
            MedianAndSpread::of(&ratios.collect::<Vec<_>>())
        };
        let (peers, limits) = (of(ComparedSide::Peer), of(ComparedSide::Limit));
        let ours_spread = Some(values(&ours)?);
        let (ratio, share) = (over(&peers), over(&limits));
        let judged = if row.peer().is_some() {
            ratio
        } else {
            ours_spread
        };
        Some(RowFigures {
            ours: ours_spread,
            peer: values(&peers),
            ratio_to_peer: ratio,
            verdict: GoalVerdict::judge(row, row.goal(distance), judged),
            limit: values(&limits),
            share_of_limit: share,
            limit_verdict: GoalVerdict::judge(row, row.limit_share_goal(), share),
        })
    }

    fn row_result(&self, row: Row) -> RowResult {
        let near = self.figures_at_distance(row, CoreDistance::Near);
        let far = self.figures_at_distance(row, CoreDistance::Far);
        let mut both = near.iter().chain(&far).peekable();
        let errors = self.errors.iter();
        let errors: Vec<_> = errors
            .filter(|(of, side, _)| measurement_counts_for_row(*of, *side, row))
            .map(|(.., text)| text.clone())
            .collect();
        let ours = || self.samples_of(row, ComparedSide::Ours);
        let moved = ours().filter(|s| s.core_distance().is_none()).count();
        RowResult {
            row,
            description: row.description(),
            unit: row.unit(),
            peer_name: row.peer().map(|peer| peer.name().to_owned()),
            limit_name: row.bare_ring_limit().map(|limit| limit.name().to_owned()),
            near_cores: near,
            far_cores: far,
            measurements_with_moved_cores: u32::try_from(moved).unwrap_or(u32::MAX),
            are_minimums_reached: errors.is_empty()
                && both.peek().is_some()
                && both.all(RowFigures::are_minimums_reached),
            lost_messages: ours().map(|s| s.lost_messages).sum(),
            errors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEAR: [f64; 2] = [30.0, 31.0];
    const FAR: [f64; 2] = [170.0, 180.0];
    const MOVED: [f64; 2] = [30.0, 170.0];

    fn samples_with(samples: &[(u32, Row, ComparedSide, f64, [f64; 2])]) -> RunSamples {
        let of =
            |&(round, row, side, value, bounce_ns): &(u32, Row, ComparedSide, f64, [f64; 2])| {
                let measured = RowFigure {
                    value,
                    verified_ops: 1,
                    lost_messages: 0,
                };
                RowSample::new(measured, round, row, side, bounce_ns)
            };
        RunSamples {
            samples: samples.iter().map(of).collect(),
            errors: vec![],
        }
    }

    /// Makes the result of rounds, each with a figure of this project, a peer and a limit.
    fn rounds(of_rounds: &[(f64, f64, f64, [f64; 2])]) -> RowResult {
        let samples = (0..)
            .zip(of_rounds)
            .flat_map(|(round, &(ours, peer, limit, at))| {
                [
                    (ComparedSide::Ours, ours),
                    (ComparedSide::Peer, peer),
                    (ComparedSide::Limit, limit),
                ]
                .map(|(side, value)| (round, Row::UdSend, side, value, at))
            });
        samples_with(&samples.collect::<Vec<_>>()).row_result(Row::UdSend)
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine is ten times slower in round 1 for all sides: ratio and share do not change.
        let result = rounds(&[(80.0, 20.0, 160.0, NEAR), (8.0, 2.0, 16.0, NEAR)]);
        let near = result.near_cores.unwrap();
        let ratio = near.ratio_to_peer.unwrap();
        assert_eq!((ratio.min, ratio.median, ratio.max), (4.0, 4.0, 4.0));
        assert_eq!(near.share_of_limit.unwrap().median, 0.5);
        let (verdict, limit) = (near.verdict.unwrap(), near.limit_verdict.unwrap());
        assert!(verdict.is_minimum_reached && !verdict.aim_reached);
        assert!(limit.is_minimum_reached && !limit.aim_reached);
        assert!(result.are_minimums_reached && result.far_cores.is_none());
    }

    #[test]
    fn near_and_far_are_apart_and_moving_is_neither() {
        let result = rounds(&[
            (80.0, 10.0, 100.0, NEAR),
            (8.0, 2.0, 100.0, FAR),
            (1.0, 1.0, 1.0, MOVED),
        ]);
        assert_eq!(result.near_cores.unwrap().ours.unwrap().median, 80.0);
        assert_eq!(result.far_cores.unwrap().ours.unwrap().max, 8.0);
        assert_eq!(result.measurements_with_moved_cores, 1);
        // The near figure reaches its share of the limit, the far figure does not.
        assert!(
            result.near_cores.unwrap().are_minimums_reached()
                && !result.far_cores.unwrap().are_minimums_reached()
        );
        assert!(!result.are_minimums_reached);
        // Figures of different distances are not compared.
        let samples = [
            (0, Row::UdSend, ComparedSide::Ours, 80.0, NEAR),
            (0, Row::UdSend, ComparedSide::Peer, 2.0, FAR),
        ];
        let near = samples_with(&samples)
            .row_result(Row::UdSend)
            .near_cores
            .unwrap();
        assert!(near.ratio_to_peer.is_none() && near.verdict.is_none());
    }

    #[test]
    fn rows_share_peers_and_limits() {
        let samples = samples_with(&[
            (0, Row::RcSend, ComparedSide::Ours, 80.0, NEAR),
            (0, Row::UdSend, ComparedSide::Peer, 20.0, NEAR),
            (0, Row::UdSend8, ComparedSide::Limit, 100.0, NEAR),
            (0, Row::UdSend, ComparedSide::Limit, 200.0, NEAR),
        ]);
        let near = samples.row_result(Row::RcSend).near_cores.unwrap();
        assert_eq!(near.ratio_to_peer.unwrap().median, 4.0);
        assert_eq!(near.share_of_limit.unwrap().median, 0.8);
    }

    #[test]
    fn a_limit_is_judged_by_our_own_figure() {
        let of = |value| samples_with(&[(0, Row::Connect, ComparedSide::Ours, value, FAR)]);
        assert!(of(1.5).row_result(Row::Connect).are_minimums_reached);
        assert!(!of(9.5).row_result(Row::Connect).are_minimums_reached);
    }

    #[test]
    fn a_row_with_an_error_or_without_a_figure_reaches_nothing() {
        let mut samples = samples_with(&[(0, Row::Connect, ComparedSide::Ours, 1.5, NEAR)]);
        assert!(!samples.row_result(Row::RcSend).are_minimums_reached);
        samples.record_error(Row::Connect, ComparedSide::Ours, 1, &anyhow::anyhow!("no"));
        let result = samples.row_result(Row::Connect);
        assert_eq!(result.errors, ["round 1, ours: no"]);
        assert!(!result.are_minimums_reached);
        // A failed peer is an error of all rows that have it.
        samples.record_error(Row::UdSend, ComparedSide::Peer, 0, &anyhow::anyhow!("none"));
        assert_eq!(samples.row_result(Row::RcSend).errors.len(), 1);
        assert_eq!(samples.row_result(Row::Connect).errors.len(), 1);
    }

    #[test]
    fn events_are_lines_of_type_and_data() {
        let bounce = RunEvent::Bounce {
            round: 0,
            bounce_ns: 31.5,
        };
        assert_eq!(
            serde_json::to_string(&bounce).unwrap(),
            r#"{"type":"bounce","data":{"round":0,"bounce_ns":31.5}}"#
        );
        let sample = samples_with(&[(2, Row::Connect, ComparedSide::Ours, 1.5, NEAR)])
            .samples
            .remove(0);
        assert_eq!(
            serde_json::to_string(&RunEvent::Sample(sample)).unwrap(),
            r#"{"type":"sample","data":{"round":2,"row":"connect","side":"ours","value":1.5,"unit":"s","verified_ops":1,"lost_ops":0,"bounce_ns":[30.0,31.0]}}"#
        );
    }
}
