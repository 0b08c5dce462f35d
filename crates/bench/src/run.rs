//! The benchmark: measures every row with its peer and its limit, round by round.
//!
//! A peer or a limit that several rows share is measured once per round. Two bounce measurements of
//! a cache line enclose each measurement. They tell whether the cores were near or far, or moved in
//! between ([`RowSample::core_distance`]).

use std::collections::HashSet;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::cache_line_bounce::{one_way_bounce_ns, quick_one_way_bounce_ns};
use crate::child;
use crate::goal::{BareRingLimit, PeerSystem, Row};
use crate::peers::redis;
use crate::rows::{self, limit, peer};
use crate::stats::MedianAndSpread;
use crate::summary::RunSamples;

pub use crate::setup::{BenchSettings, BenchSetup, RowFigure};
pub use crate::summary::{
    ComparedSide, GoalVerdict, RowFigures, RowResult, RowSample, RunEvent, RunSummary,
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

/// The time that the current measurement has left once a run is to end.
const END_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// The interval at which a run looks whether it is to end. It is long, because the wake-ups take time from the
/// measurement.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A message of the thread that measures.
enum Progress {
    Event(RunEvent),
    /// A measurement has failed.
    Failed {
        round: u32,
        row: Row,
        side: ComparedSide,
        error: anyhow::Error,
    },
}

/// Runs the benchmark and reports progress to `on_event`.
///
/// A row that fails is noted in the result, and the other rows go on. Once `should_end` returns
/// true, the run ends after the current measurement, and the result has the rows measured so far. A
/// measurement that fails at that time is not noted. A measurement that takes more than a second
/// from then is given up: all child processes of this process are killed, and its thread is left to
/// end by itself.
///
/// # Errors
/// When the cores cannot be used, or the settings have no rounds.
pub fn run(
    bench: &BenchSetup,
    mut on_event: impl FnMut(&RunEvent),
    should_end: impl Fn() -> bool + Copy + Send + 'static,
) -> Result<RunSummary> {
    let (tell, progress) = mpsc::channel();
    let setup = bench.clone();
    let measuring = std::thread::Builder::new()
        .name("measure".to_owned())
        .spawn(move || measure_rounds(&setup, &tell, should_end))?;
    let mut samples = RunSamples::default();
    let mut bounces = Vec::new();
    let mut give_up_at = None;
    loop {
        match progress.recv_timeout(END_CHECK_INTERVAL) {
            Ok(Progress::Event(event)) => {
                on_event(&event);
                match event {
                    RunEvent::Bounce { bounce_ns, .. } => bounces.push(bounce_ns),
                    RunEvent::Sample(sample) => samples.samples.push(sample),
                    RunEvent::Begin { .. } => {}
                }
            }
            Ok(Progress::Failed {
                round,
                row,
                side,
                error,
            }) => samples.record_error(row, side, round, &error),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let ended = measuring.join();
                ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                break;
            }
        }
        if should_end() {
            let at = *give_up_at.get_or_insert_with(|| Instant::now() + END_GRACE_PERIOD);
            if Instant::now() >= at {
                child::kill_descendants();
                // Most measurements fail now, and remove their files.
                while progress.recv_timeout(END_CHECK_INTERVAL).is_ok() {}
                break;
            }
        }
    }
    if bounces.is_empty() && !should_end() {
        bail!("at least one round is needed: raise the rounds");
    }
    let mut summary = samples.summarize_rows(&bench.settings.rows, MedianAndSpread::of(&bounces));
    if should_end() {
        let is_measured = |row: &RowResult| {
            row.near_cores.is_some()
                || row.far_cores.is_some()
                || row.measurements_with_moved_cores > 0
                || !row.errors.is_empty()
        };
        summary.rows.retain(is_measured);
    }
    Ok(summary)
}

/// Measures all rounds and sends the progress. Returns early once `should_end` returns true, or if nobody receives.
fn measure_rounds(
    bench: &BenchSetup,
    tell: &Sender<Progress>,
    should_end: impl Fn() -> bool,
) -> Result<()> {
    let bounce_rounds = u32::try_from(200_000 / bench.settings.shrink_divisor.clamp(1, 1000))?;
    let mut redis = None;
    for round in 0..bench.settings.rounds {
        let bounce_ns = one_way_bounce_ns(bench.cores, bounce_rounds)?;
        let bounce = RunEvent::Bounce { round, bounce_ns };
        if tell.send(Progress::Event(bounce)).is_err() {
            return Ok(());
        }
        let mut before = quick_one_way_bounce_ns(bench.cores)?;
        for (row, side) in measurement_order(&bench.settings.rows, round) {
            if should_end() {
                return Ok(());
            }
            let begin = RunEvent::Begin { round, row, side };
            if tell.send(Progress::Event(begin)).is_err() {
                return Ok(());
            }
            let measured = measure_side(bench, row, side, &mut redis);
            let after = quick_one_way_bounce_ns(bench.cores)?;
            let progress = match measured {
                Ok(measured) => {
                    let sample = RowSample::new(measured, round, row, side, [before, after]);
                    Progress::Event(RunEvent::Sample(sample))
                }
                Err(_) if should_end() => return Ok(()),
                Err(error) => Progress::Failed {
                    round,
                    row,
                    side,
                    error,
                },
            };
            if tell.send(progress).is_err() {
                return Ok(());
            }
            before = after;
        }
    }
    Ok(())
}

/// Returns the measurements of a round, in order.
fn measurement_order(rows: &[Row], round: u32) -> Vec<(Row, ComparedSide)> {
    let (mut peers, mut limits) = (HashSet::new(), HashSet::new());
    let mut order = Vec::new();
    for &row in rows {
        let mut sides = vec![ComparedSide::Ours];
        if row.peer().is_some_and(|peer| peers.insert(peer)) {
            sides.push(ComparedSide::Peer);
        }
        if row
            .bare_ring_limit()
            .is_some_and(|limit| limits.insert(limit))
        {
            sides.push(ComparedSide::Limit);
        }
        // Alternate the order of the sides, so that no side always finds the machine warmer.
        if round % 2 == 1 {
            sides.reverse();
        }
        order.extend(sides.into_iter().map(|side| (row, side)));
    }
    order
}

fn measure_side(
    bench: &BenchSetup,
    row: Row,
    side: ComparedSide,
    redis: &mut Option<redis::Server>,
) -> Result<RowFigure> {
    match (side, row.peer(), row.bare_ring_limit()) {
        (ComparedSide::Peer, Some(peer), _) => peer::measure(bench, peer, redis),
        (ComparedSide::Limit, _, Some(limit)) => limit::measure(bench, limit),
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
            (
                of(ComparedSide::Ours),
                of(ComparedSide::Peer),
                of(ComparedSide::Limit)
            ),
            (4, 1, 2)
        );
        assert_eq!(order_of(0).len(), measurements_per_round(&rows));
        assert_eq!(order_of(0)[0], (Row::UdSend, ComparedSide::Ours));
        assert_eq!(order_of(1)[0], (Row::UdSend, ComparedSide::Limit));
    }
}
