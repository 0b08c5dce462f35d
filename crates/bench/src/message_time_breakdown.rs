//! Breakdown of the time of a message: instructions on one core, and waiting between two cores.
//!
//! - *Measured*: the time of each phase on one core (`crate::phases`), and the time of a message
//!   between two cores.
//! - *Derived*: waiting is the time between two cores less the time of the busier end on one core.
//!   It includes waiting for cache lines, for the other end, and for credits that the other end
//!   grants.
//! - *Modelled*: a message moves the lines of its record, and a 16th of a line for the receiver's
//!   progress that the sender reads. Each line takes one bounce, as if no transfers overlapped.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::cache_line_bounce::quick_one_way_bounce_ns;
use crate::core_pinning::run_pinned;
use crate::goal::{BareRingLimit, CoreDistance, Row};
use crate::micro::one_core;
use crate::micro::task::MeasurementTask;
use crate::peers::bare_ring_phases;
use crate::rows::{self, limit, verbs};
use crate::setup::BenchSetup;
use crate::stats::median;

pub use crate::one_core_phases::{PhaseCosts, PhaseMeasurement};

/// Duration of the measurement on one core, in milliseconds.
const ONE_CORE_MEASUREMENT_MS: u64 = 40;

/// Bytes of a cache line.
const LINE_BYTES: f64 = 64.0;

/// Implementation that sends the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasuredImplementation {
    /// This project's verbs.
    Ours,
    /// The bare ring, which is the limit.
    Limit,
}

/// Times of messages between two cores that are all near, or all far.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimesAtOneDistance {
    /// Measured time per message, in ns.
    #[serde(rename = "ns")]
    pub ns_per_message: f64,
    /// Derived: `ns` less the time of the busier end on one core, at least 0.
    #[serde(rename = "waiting_ns")]
    pub waiting_ns_per_message: f64,
    /// Modelled: cache lines per message times the median bounce of these rounds, in ns.
    #[serde(rename = "lines_ns")]
    pub modelled_line_transfer_ns: f64,
    /// Rounds that were measured between such cores.
    #[serde(rename = "rounds")]
    pub round_count: usize,
}

/// Breakdown of the time of a row's messages; all figures are medians of the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MessageTimeBreakdown {
    /// Row that was measured.
    pub row: Row,
    /// Implementation that sent the messages.
    #[serde(rename = "side")]
    pub implementation: MeasuredImplementation,
    /// Phases measured on one core.
    pub one_core: PhaseMeasurement,
    /// Cache lines that a message moves, by the model.
    #[serde(rename = "lines")]
    pub cache_lines_per_message: f64,
    /// Times between near cores; `None` if no round had near cores.
    #[serde(rename = "near")]
    pub near_cores: Option<TimesAtOneDistance>,
    /// Times between far cores; `None` if no round had far cores.
    #[serde(rename = "far")]
    pub far_cores: Option<TimesAtOneDistance>,
}

/// One round of one side of a row.
struct RoundOfImplementation {
    one_core_phases: PhaseMeasurement,
    two_core_ns_per_message: f64,
    bounce_before_after_ns: [f64; 2],
}

/// Measures the rows of the settings, which must SEND as fast as possible. Calls `on_row` before
/// each row. Once `should_end` returns true, the run ends after the current row, and returns the
/// rows measured so far.
///
/// # Errors
/// When a row is not a row of SENDs, or a measurement fails.
pub fn run(
    bench: &BenchSetup,
    mut on_row: impl FnMut(Row),
    should_end: impl Fn() -> bool,
) -> Result<Vec<MessageTimeBreakdown>> {
    let rows = &bench.settings.rows;
    if let Some(row) = rows.iter().find(|row| row.as_send_stream().is_none()) {
        bail!(
            "{} has no phases to break down; name rows of SENDs, such as rc-send",
            row.name()
        );
    }
    let mut taken: Vec<[Vec<RoundOfImplementation>; 2]> =
        rows.iter().map(|_| Default::default()).collect();
    'rounds: for _ in 0..bench.settings.rounds {
        for (row, taken) in rows.iter().zip(&mut taken) {
            if should_end() {
                break 'rounds;
            }
            on_row(*row);
            let both = [MeasuredImplementation::Ours, MeasuredImplementation::Limit]
                .map(|side| measure_round(bench, *row, side));
            let [ours, limit] = match both {
                [Ok(ours), Ok(limit)] => [ours, limit],
                _ if should_end() => break 'rounds,
                [ours, limit] => [ours?, limit?],
            };
            taken[0].push(ours);
            taken[1].push(limit);
        }
    }
    let measured = rows.iter().zip(&taken);
    let measured = measured.filter(|(_, [ours, _])| !ours.is_empty() || !should_end());
    let results = measured.flat_map(|(row, taken)| {
        let sides = [MeasuredImplementation::Ours, MeasuredImplementation::Limit]
            .into_iter()
            .zip(taken);
        sides.map(|(side, rounds)| summarize_rounds(*row, side, rounds))
    });
    results.collect()
}

fn measure_round(
    bench: &BenchSetup,
    row: Row,
    side: MeasuredImplementation,
) -> Result<RoundOfImplementation> {
    let limit = row
        .bare_ring_limit()
        .context("a row of SENDs has a limit")?;
    let duration_ms = (ONE_CORE_MEASUREMENT_MS / bench.settings.shrink_divisor.max(1)).max(1);
    let one_core = run_pinned(bench.cores.requester, || {
        match (side, verbs::task_of_row(bench, row)?) {
            (MeasuredImplementation::Ours, MeasurementTask::Stream(mut stream)) => {
                stream.duration_ms = duration_ms;
                one_core::measure_one_core_phases(&bench.nic, &stream)
            }
            _ => bare_ring_phases::measure_one_core_phases(
                limit.has_payload,
                limit.messages_per_list,
                duration_ms,
            ),
        }
    })?;
    let before = quick_one_way_bounce_ns(bench.cores)?;
    let rate = match side {
        MeasuredImplementation::Ours => rows::measure(bench, row)?,
        MeasuredImplementation::Limit => limit::measure(bench, limit)?,
    };
    Ok(RoundOfImplementation {
        one_core_phases: one_core,
        two_core_ns_per_message: 1e3 / rate.value,
        bounce_before_after_ns: [before, quick_one_way_bounce_ns(bench.cores)?],
    })
}

/// Cache lines that a message moves, by the model.
fn cache_lines_per_message(limit: BareRingLimit) -> f64 {
    let record_bytes = if limit.has_payload { 32.0 } else { 16.0 };
    record_bytes / LINE_BYTES + 1.0 / 16.0
}

fn summarize_rounds(
    row: Row,
    side: MeasuredImplementation,
    rounds: &[RoundOfImplementation],
) -> Result<MessageTimeBreakdown> {
    let of = |figure: &dyn Fn(&RoundOfImplementation) -> f64| {
        median(&rounds.iter().map(figure).collect::<Vec<_>>()).context("there was no round")
    };
    let phases =
        |of_round: fn(&PhaseMeasurement) -> Option<PhaseCosts>| -> Result<Option<PhaseCosts>> {
            if rounds
                .iter()
                .any(|round| of_round(&round.one_core_phases).is_none())
            {
                return Ok(None);
            }
            let phase = |phase: fn(PhaseCosts) -> f64| {
                of(&|round| of_round(&round.one_core_phases).map_or(f64::NAN, phase))
            };
            Ok(Some(PhaseCosts {
                post: phase(|p| p.post)?,
                poll: phase(|p| p.poll)?,
                receive: phase(|p| p.receive)?,
                post_recv: phase(|p| p.post_recv)?,
            }))
        };
    let one_core = PhaseMeasurement {
        ns_per_message: phases(|m| Some(m.ns_per_message))?.context("times are always there")?,
        instructions_per_message: phases(|m| m.instructions_per_message)?,
        cycles_per_message: phases(|m| m.cycles_per_message)?,
        verified_ops: rounds
            .iter()
            .map(|round| round.one_core_phases.verified_ops)
            .sum(),
    };
    let lines = cache_lines_per_message(
        row.bare_ring_limit()
            .context("a row of SENDs has a limit")?,
    );
    let busier = one_core
        .ns_per_message
        .sender_sum()
        .max(one_core.ns_per_message.receiver_sum());
    let at = |distance: CoreDistance| {
        let is_there = |round: &&RoundOfImplementation| {
            round.bounce_before_after_ns.map(CoreDistance::of_bounce_ns) == [distance; 2]
        };
        let there: Vec<_> = rounds.iter().filter(is_there).collect();
        let ns = median(
            &there
                .iter()
                .map(|r| r.two_core_ns_per_message)
                .collect::<Vec<_>>(),
        )?;
        let bounces: Vec<_> = there
            .iter()
            .flat_map(|r| r.bounce_before_after_ns)
            .collect();
        Some(TimesAtOneDistance {
            ns_per_message: ns,
            waiting_ns_per_message: (ns - busier).max(0.0),
            modelled_line_transfer_ns: lines * median(&bounces)?,
            round_count: there.len(),
        })
    };
    Ok(MessageTimeBreakdown {
        row,
        implementation: side,
        cache_lines_per_message: lines,
        near_cores: at(CoreDistance::Near),
        far_cores: at(CoreDistance::Far),
        one_core,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(
        post: f64,
        receive: f64,
        two_cores_ns: f64,
        bounce_ns: [f64; 2],
    ) -> RoundOfImplementation {
        let ns = PhaseCosts {
            post,
            poll: 1.0,
            receive,
            post_recv: 2.0,
        };
        RoundOfImplementation {
            one_core_phases: PhaseMeasurement {
                ns_per_message: ns,
                instructions_per_message: None,
                cycles_per_message: Some(ns),
                verified_ops: 10,
            },
            two_core_ns_per_message: two_cores_ns,
            bounce_before_after_ns: bounce_ns,
        }
    }

    #[test]
    fn waiting_is_what_the_busier_end_does_not_take() {
        let rounds = [
            round(9.0, 14.0, 20.0, [30.0, 40.0]),
            round(9.0, 14.0, 100.0, [200.0, 200.0]),
            round(9.0, 14.0, 1.0, [30.0, 200.0]),
        ];
        let result = summarize_rounds(Row::RcSend, MeasuredImplementation::Ours, &rounds).unwrap();
        let (near, far) = (result.near_cores.unwrap(), result.far_cores.unwrap());
        assert_eq!(
            (
                near.ns_per_message,
                near.waiting_ns_per_message,
                near.round_count
            ),
            (20.0, 4.0, 1)
        );
        assert_eq!(
            (far.ns_per_message, far.waiting_ns_per_message),
            (100.0, 84.0)
        );
        // Half a line for the record, and a 16th of a line for the receiver's progress.
        assert_eq!(far.modelled_line_transfer_ns, 200.0 * 0.5625);
        assert_eq!(result.one_core.verified_ops, 30);
        assert!(
            result.one_core.instructions_per_message.is_none()
                && result.one_core.cycles_per_message.is_some()
        );
        assert!(summarize_rounds(Row::RcSend, MeasuredImplementation::Ours, &[]).is_err());
    }
}
