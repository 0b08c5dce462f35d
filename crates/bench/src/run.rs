//! The benchmark: measures every row with its peer and its limit, round by round.
//!
//! A peer or a limit that several rows share is measured once per round. Two bounce measurements of
//! a cache line enclose each measurement. They tell whether the cores were near or far, or moved in
//! between ([`RowSample::distance`]).

use std::collections::HashSet;

use anyhow::Result;

use crate::bounce::{one_way_bounce_ns, quick_one_way_bounce_ns};
use crate::goal::{BareRingLimit, PeerSystem, Row};
use crate::peers::redis;
use crate::rows::{self, limit, peer};
use crate::stats::MedianAndSpread;
use crate::summary::RunSamples;

pub use crate::setup::{BenchSetup, RowFigure, Settings};
pub use crate::summary::{
    GoalVerdict, RowFigures, RowResult, RowSample, RowSide, RunEvent, RunSummary,
};

/// Returns the number of measurements in a round of `rows`.
#[must_use]
pub fn measurements_per_round(rows: &[Row]) -> usize {
    let peers: HashSet<PeerSystem> = rows.iter().filter_map(|row| row.peer()).collect();
    let limits: HashSet<BareRingLimit> = rows
        .iter()
        .filter_map(|row| row.bare_ring_limit())
        .collect();
    rows.len() + peers.len() + limits.len()
}

/// Runs the benchmark and reports progress to `on_event`.
///
/// A row that fails is noted in the result, and the other rows go on. Once `should_end` returns
/// true, the run ends after the current measurement, and the result has the rows measured so far. A
/// measurement that fails at that time is not noted.
///
/// # Errors
/// When the cores cannot be used, or the settings have no rounds.
pub fn run(
    bench: &BenchSetup,
    mut on_event: impl FnMut(&RunEvent),
    should_end: impl Fn() -> bool,
) -> Result<RunSummary> {
    let rows = &bench.settings.rows;
    let mut samples = RunSamples::default();
    let mut bounces = Vec::new();
    let bounce_rounds = u32::try_from(200_000 / bench.settings.shrink.clamp(1, 1000))?;
    let mut redis = None;
    'rounds: for round in 0..bench.settings.rounds {
        let ns = one_way_bounce_ns(bench.cores, bounce_rounds)?;
        bounces.push(ns);
        on_event(&RunEvent::Bounce {
            round,
            bounce_ns: ns,
        });
        let mut before = quick_one_way_bounce_ns(bench.cores)?;
        for (row, side) in measurement_order(rows, round) {
            if should_end() {
                break 'rounds;
            }
            on_event(&RunEvent::Begin { round, row, side });
            let measured = measure(bench, row, side, &mut redis);
            let after = quick_one_way_bounce_ns(bench.cores)?;
            match measured {
                Ok(measured) => {
                    let sample = RowSample::new(measured, round, row, side, [before, after]);
                    on_event(&RunEvent::Sample(sample.clone()));
                    samples.samples.push(sample);
                }
                Err(_) if should_end() => break 'rounds,
                Err(err) => samples.record_error(row, side, round, &err),
            }
            before = after;
        }
    }
    let bounce_ns = MedianAndSpread::of(&bounces)
        .ok_or_else(|| anyhow::anyhow!("at least one round is needed: raise the rounds"))?;
    let mut summary = samples.summary(rows, bounce_ns);
    if should_end() {
        let is_measured = |row: &RowResult| {
            row.near.is_some() || row.far.is_some() || row.moved > 0 || !row.errors.is_empty()
        };
        summary.rows.retain(is_measured);
    }
    Ok(summary)
}

/// Returns the measurements of a round, in order.
fn measurement_order(rows: &[Row], round: u32) -> Vec<(Row, RowSide)> {
    let (mut peers, mut limits) = (HashSet::new(), HashSet::new());
    let mut order = Vec::new();
    for &row in rows {
        let mut sides = vec![RowSide::Ours];
        if row.peer().is_some_and(|peer| peers.insert(peer)) {
            sides.push(RowSide::Peer);
        }
        if row
            .bare_ring_limit()
            .is_some_and(|limit| limits.insert(limit))
        {
            sides.push(RowSide::Limit);
        }
        // Alternate the order of the sides, so that no side always finds the machine warmer.
        if round % 2 == 1 {
            sides.reverse();
        }
        order.extend(sides.into_iter().map(|side| (row, side)));
    }
    order
}

fn measure(
    bench: &BenchSetup,
    row: Row,
    side: RowSide,
    redis: &mut Option<redis::Server>,
) -> Result<RowFigure> {
    match (side, row.peer(), row.bare_ring_limit()) {
        (RowSide::Peer, Some(peer), _) => peer::measure(bench, peer, redis),
        (RowSide::Limit, _, Some(limit)) => limit::measure(bench, limit),
        _ => rows::measure(bench, row),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rows_share_is_measured_once_a_round() {
        let rows = [Row::UdSend, Row::RcSend, Row::UcSend, Row::Connect];
        let order_of = |round| measurement_order(&rows, round);
        let of = |side| order_of(0).iter().filter(|(_, s)| *s == side).count();
        assert_eq!(
            (of(RowSide::Ours), of(RowSide::Peer), of(RowSide::Limit)),
            (4, 1, 2)
        );
        assert_eq!(order_of(0).len(), measurements_per_round(&rows));
        assert_eq!(order_of(0)[0], (Row::UdSend, RowSide::Ours));
        assert_eq!(order_of(1)[0], (Row::UdSend, RowSide::Limit));
    }
}
