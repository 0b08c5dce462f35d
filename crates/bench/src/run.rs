//! The benchmark: every row beside its peer, round after round.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::bounce::bounce_ns;
use crate::goal::{Distance, Goal, Row, Unit};
use crate::rows::{self, peer};
use crate::stats::Spread;

pub use crate::setup::{Bench, Measured, Settings};

/// Which side of a row was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// This project's.
    Ours,
    /// The peer's.
    Peer,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Counted from 0.
    pub round: u32,
    /// The row.
    pub row: Row,
    /// Whose.
    pub side: Side,
    /// In the unit of the row.
    pub value: f64,
    /// The row's unit.
    pub unit: Unit,
    /// Operations that the receiving end checked (the peer's count for a peer).
    pub verified_ops: u64,
    /// Datagrams that were sent and did not arrive.
    pub lost_ops: u64,
}

/// What happens during a run, as it happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub enum Event {
    /// A cache line was bounced: one way, between the two cores of this run.
    Bounce {
        /// Counted from 0.
        round: u32,
        /// One way.
        bounce_ns: f64,
    },
    /// A measurement is about to be made.
    Begin {
        /// Counted from 0.
        round: u32,
        /// The row.
        row: Row,
        /// Whose.
        side: Side,
    },
    /// A measurement was made.
    Sample(Sample),
}

/// What came of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// The row.
    pub row: Row,
    /// In words.
    pub what: String,
    /// Of `ours` and `peer`.
    pub unit: Unit,
    /// This project's figure.
    pub ours: Option<Spread>,
    /// Who the peer is.
    pub peer_name: Option<String>,
    /// The peer's figure.
    pub peer: Option<Spread>,
    /// Ours divided by the peer's, of the same round.
    pub ratio: Option<Spread>,
    /// What is wanted: of the ratio, or of our own figure where there is no peer.
    pub goal: Goal,
    /// Whether the median is at least what is wanted at least.
    pub at_least_reached: bool,
    /// Whether the median is what was aimed for.
    pub aim_reached: bool,
    /// Datagrams that did not arrive, of all rounds.
    pub lost_ops: u64,
    /// Why there is no figure, or fewer than rounds.
    pub errors: Vec<String>,
}

/// The whole result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// One way, of every round.
    pub bounce_ns: Spread,
    /// What that means for the goals.
    pub distance: Distance,
    /// In the order of the settings.
    pub rows: Vec<RowResult>,
}

impl Summary {
    /// Whether every row reached what is wanted at least.
    #[must_use]
    pub fn reached(&self) -> bool {
        self.rows.iter().all(|row| row.at_least_reached)
    }
}

/// Runs the benchmark, telling `on_event` what happens.
///
/// A row that fails is noted in the result, and the others go on.
///
/// # Errors
/// When the cores cannot be used, or there is nothing to run.
pub fn run(bench: &Bench, mut on_event: impl FnMut(&Event)) -> Result<Summary> {
    let rows = &bench.settings.rows;
    let mut taken = Taken::default();
    let mut bounces = Vec::new();
    let bounce_rounds = u32::try_from(200_000 / bench.settings.shrink.clamp(1, 1000))?;
    let mut redis = None;
    for round in 0..bench.settings.rounds {
        let ns = bounce_ns(bench.cores, bounce_rounds)?;
        bounces.push(ns);
        on_event(&Event::Bounce {
            round,
            bounce_ns: ns,
        });
        for &row in rows {
            // Who comes first changes, so that neither always meets the warmer machine.
            let mut sides = [Side::Ours, Side::Peer];
            if round % 2 == 1 {
                sides.reverse();
            }
            for side in sides {
                if side == Side::Peer && row.peer().is_none() {
                    continue;
                }
                on_event(&Event::Begin { round, row, side });
                let measured = match (side, row.peer()) {
                    (Side::Peer, Some(peer)) => peer::measure(bench, peer, &mut redis),
                    _ => rows::measure(bench, row),
                };
                match measured {
                    Ok(measured) => {
                        let sample = Sample::new(measured, round, row, side);
                        on_event(&Event::Sample(sample.clone()));
                        taken.samples.push(sample);
                    }
                    Err(err) => taken.errors.entry(row.name()).or_default().push(format!(
                        "round {round}, {}: {err:#}",
                        match side {
                            Side::Ours => "ours",
                            Side::Peer => "peer",
                        }
                    )),
                }
            }
        }
    }
    let bounce_ns = Spread::of(&bounces)
        .ok_or_else(|| anyhow::anyhow!("at least one round is needed: raise the rounds"))?;
    let distance = Distance::of_bounce_ns(bounce_ns.median);
    Ok(Summary {
        bounce_ns,
        distance,
        rows: rows
            .iter()
            .map(|row| taken.result(*row, distance))
            .collect(),
    })
}

impl Sample {
    fn new(measured: Measured, round: u32, row: Row, side: Side) -> Sample {
        Sample {
            round,
            row,
            side,
            value: measured.value,
            unit: row.unit(),
            verified_ops: measured.verified_ops,
            lost_ops: measured.lost_ops,
        }
    }
}

#[derive(Default)]
struct Taken {
    samples: Vec<Sample>,
    errors: BTreeMap<&'static str, Vec<String>>,
}

impl Taken {
    fn result(&self, row: Row, distance: Distance) -> RowResult {
        let of = |side| -> Vec<&Sample> {
            let mine = |s: &&Sample| s.row == row && s.side == side;
            self.samples.iter().filter(mine).collect()
        };
        let (ours, peers) = (of(Side::Ours), of(Side::Peer));
        let values =
            |samples: &[&Sample]| Spread::of(&samples.iter().map(|s| s.value).collect::<Vec<_>>());
        let ratios: Vec<f64> = ours
            .iter()
            .filter_map(|ours| {
                let peer = peers.iter().find(|peer| peer.round == ours.round)?;
                Some(ours.value / peer.value)
            })
            .collect();
        let ratio = Spread::of(&ratios);
        let ours_spread = values(&ours);
        let goal = row.goal(distance);
        let errors = self.errors.get(row.name()).cloned().unwrap_or_default();
        let judged = if row.peer().is_some() {
            ratio
        } else {
            ours_spread
        };
        let reached = |wanted| {
            errors.is_empty() && judged.is_some_and(|spread| row.reaches(spread.median, wanted))
        };
        RowResult {
            row,
            what: row.what().to_owned(),
            unit: row.unit(),
            ours: ours_spread,
            peer_name: row.peer().map(|peer| peer.name().to_owned()),
            peer: values(&peers),
            ratio,
            goal,
            at_least_reached: reached(goal.at_least),
            aim_reached: reached(goal.aim_for),
            lost_ops: ours.iter().map(|s| s.lost_ops).sum(),
            errors,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(round: u32, row: Row, side: Side, value: f64) -> Sample {
        let measured = Measured {
            value,
            verified_ops: 1,
            lost_ops: 0,
        };
        Sample::new(measured, round, row, side)
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let mut taken = Taken::default();
        // The machine is ten times slower in round 1, for both: the ratio does not notice.
        for (round, ours, peer) in [(0, 80.0, 20.0), (1, 8.0, 2.0), (2, 100.0, 25.0)] {
            taken
                .samples
                .push(sample(round, Row::UdSend, Side::Ours, ours));
            taken
                .samples
                .push(sample(round, Row::UdSend, Side::Peer, peer));
        }
        let result = taken.result(Row::UdSend, Distance::Near);
        let ratio = result.ratio.unwrap();
        assert_eq!((ratio.min, ratio.median, ratio.max), (4.0, 4.0, 4.0));
        assert!(result.at_least_reached && !result.aim_reached);
    }

    #[test]
    fn a_limit_is_judged_by_our_own_figure() {
        let mut taken = Taken::default();
        taken.samples.push(sample(0, Row::Connect, Side::Ours, 1.5));
        assert!(taken.result(Row::Connect, Distance::Far).at_least_reached);
        taken.samples.push(sample(1, Row::Connect, Side::Ours, 9.5));
        assert!(!taken.result(Row::Connect, Distance::Far).at_least_reached);
    }

    #[test]
    fn a_row_with_an_error_or_without_a_figure_reaches_nothing() {
        let mut taken = Taken::default();
        assert!(!taken.result(Row::RcSend, Distance::Near).at_least_reached);
        taken.samples.push(sample(0, Row::Connect, Side::Ours, 1.5));
        taken.errors.insert("connect", vec!["no".to_owned()]);
        assert!(!taken.result(Row::Connect, Distance::Near).at_least_reached);
    }

    #[test]
    fn events_are_lines_of_type_and_data() {
        let line = serde_json::to_string(&Event::Bounce {
            round: 0,
            bounce_ns: 31.5,
        })
        .unwrap();
        assert_eq!(
            line,
            r#"{"type":"bounce","data":{"round":0,"bounce_ns":31.5}}"#
        );
        let line = serde_json::to_string(&Event::Sample(sample(2, Row::Connect, Side::Ours, 1.5)))
            .unwrap();
        assert_eq!(
            line,
            r#"{"type":"sample","data":{"round":2,"row":"connect","side":"ours","value":1.5,"unit":"s","verified_ops":1,"lost_ops":0}}"#
        );
    }
}
