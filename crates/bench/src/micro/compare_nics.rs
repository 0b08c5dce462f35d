//! Compares two NICs round by round: the software NIC and a device of this machine. `perftest` on
//! that device checks that this benchmark measures the device fairly.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use verbs::Provider;

use super::outcome::TaskResult;
use super::parameters::{MicroParameters, VerbStream};
use super::task::{MeasurementTask, PingPong};
use super::verb::Verb;
use super::worker_pool::WorkerPool;
use crate::core_pinning::CorePair;
use crate::link::WorkerCommand;
use crate::open_nic::NicChoice;
use crate::peers::perftest;
use crate::stats::MedianAndSpread;

/// Payload sizes that are compared, in bytes.
pub const PAYLOADS_BYTES: [usize; 5] = [8, 64, 4096, 64 << 10, 1 << 20];

/// Goal for 8-byte messages: the software NIC's rate is at least this multiple of the device's
/// rate.
pub const GOAL_MIN_RATE_RATIO: f64 = 20.0;

/// Goal for 8-byte messages: the software NIC's latency is at most this share of the device's
/// latency.
pub const GOAL_MAX_LATENCY_RATIO: f64 = 0.1;

/// Extent of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComparisonSettings {
    /// Number of measurements of each row on each side.
    pub rounds: u32,
    /// Duration of each measurement, in ms.
    pub duration_ms: u64,
    /// Payload sizes in bytes.
    pub payloads_bytes: Vec<usize>,
    /// True if `perftest` is run too.
    #[serde(rename = "perftest")]
    pub runs_perftest: bool,
}

/// A comparison: its extent, its devices, and its cores.
#[derive(Clone, Debug)]
pub struct ComparisonSetup {
    /// Extent of the comparison.
    pub settings: ComparisonSettings,
    /// Cores on which the two processes run.
    pub cores: CorePair,
    /// Program that starts a worker.
    pub worker_command: WorkerCommand,
    /// Software NIC.
    pub softnic: NicChoice,
    /// NIC that the software NIC is compared with.
    pub system_nic: NicChoice,
    /// Device name of `system`.
    pub system_device_name: String,
    /// Index of the entry in the device's GID table that is used as source GID.
    pub gid_index: u8,
    /// Smaller path MTU of the two devices, which is the longest datagram.
    pub smaller_mtu_bytes: u32,
}

impl ComparisonSetup {
    /// Queries both devices.
    ///
    /// # Errors
    /// When a device does not exist or cannot be opened.
    pub fn new(
        settings: ComparisonSettings,
        cores: CorePair,
        worker: WorkerCommand,
        softnic: NicChoice,
        system: NicChoice,
    ) -> Result<ComparisonSetup> {
        let (device, gid_index, mtu) = device_name_gid_index_and_mtu(&system)?;
        let (_, _, own_mtu) = device_name_gid_index_and_mtu(&softnic)?;
        Ok(ComparisonSetup {
            settings,
            cores,
            worker_command: worker,
            softnic,
            system_nic: system,
            system_device_name: device,
            gid_index,
            smaller_mtu_bytes: mtu.min(own_mtu),
        })
    }

    /// Returns the tasks that are measured, in the order of the table.
    ///
    /// # Errors
    /// When a payload size is invalid.
    pub fn tasks(&self) -> Result<Vec<MeasurementTask>> {
        let duration_ms = self.settings.duration_ms;
        let parameters = |payload_bytes: usize| MicroParameters {
            payload_bytes: Some(payload_bytes),
            ..MicroParameters::default()
        };
        let mut tasks = Vec::new();
        for verb in [Verb::UdSend, Verb::RcSend, Verb::RcWrite, Verb::RcRead] {
            for &payload in &self.settings.payloads_bytes {
                if verb == Verb::UdSend && payload > self.smaller_mtu_bytes as usize {
                    continue;
                }
                let stream = VerbStream::new(verb, &parameters(payload), duration_ms)?;
                tasks.push(MeasurementTask::Stream(stream));
            }
        }
        for verb in [Verb::RcSend, Verb::RcWrite] {
            for &payload in &self.settings.payloads_bytes {
                let ping = PingPong::new(verb, &parameters(payload), duration_ms)?;
                tasks.push(MeasurementTask::PingPong(ping));
            }
        }
        Ok(tasks)
    }
}

/// Returns the name of a device, and the GID index and the active MTU of its port.
fn device_name_gid_index_and_mtu(choice: &NicChoice) -> Result<(String, u8, u32)> {
    let device = Provider::by_name(&choice.provider)?.device(choice.device.as_deref())?;
    let context = device.open()?;
    let mtu = context.query_port(choice.port_num)?.active_mtu.bytes();
    let gid_index = match choice.gid_index {
        Some(index) => index,
        None => context.default_gid_index(choice.port_num)?,
    };
    Ok((device.name().to_owned(), gid_index, mtu))
}

/// Program and NIC that produced a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicSide {
    /// This benchmark, on the software NIC.
    Softnic,
    /// This benchmark, on the device.
    System,
    /// `perftest`, on the device.
    Perftest,
}

impl NicSide {
    /// Returns the name for printed tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NicSide::Softnic => "software NIC",
            NicSide::System => "device",
            NicSide::Perftest => "perftest",
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparisonSample {
    /// Round, counted from 0.
    #[serde(rename = "round")]
    pub round_index: u32,
    /// Row, counted from 0.
    #[serde(rename = "row")]
    pub row_index: usize,
    /// Program and NIC that were measured.
    pub side: NicSide,
    /// Rate in 10^6 messages per second, or the median latency in nanoseconds.
    #[serde(rename = "value")]
    pub rate_mops_or_latency_ns: f64,
    /// Full result, if this benchmark measured it.
    pub outcome: Option<TaskResult>,
}

/// Progress of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum ComparisonEvent {
    /// A measurement begins.
    Begin {
        /// Task that is measured.
        task: MeasurementTask,
        /// Program and NIC that are measured.
        side: NicSide,
    },
    /// A measurement has succeeded.
    Sample(ComparisonSample),
}

/// Result of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// Task that was measured.
    pub task: MeasurementTask,
    /// Unit of `softnic`, `system` and `perftest`: `mops` or `ns`.
    pub unit: String,
    /// Figures of the software NIC.
    pub softnic: Option<MedianAndSpread>,
    /// Figures of the device.
    pub system: Option<MedianAndSpread>,
    /// Figures of `perftest` on the device.
    pub perftest: Option<MedianAndSpread>,
    /// The software NIC's figure divided by the device's figure of the same round.
    #[serde(rename = "ratio")]
    pub softnic_to_system_ratio: Option<MedianAndSpread>,
    /// The device's figure by this benchmark divided by `perftest`'s figure of the same round.
    pub system_to_perftest: Option<MedianAndSpread>,
    /// Goal for the ratio, if the row has one: a minimum for a rate, a maximum for a latency.
    #[serde(rename = "goal")]
    pub ratio_goal: Option<f64>,
    /// True if the median of the ratio meets the goal.
    pub goal_met: Option<bool>,
    /// Datagrams that did not arrive, on the software NIC and on the device.
    #[serde(rename = "lost_ops")]
    pub lost_datagrams: [u64; 2],
    /// Errors of measurements that failed.
    pub errors: Vec<String>,
}

/// Result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparisonSummary {
    /// Results of the rows, in the order of [`ComparisonSetup::tasks`].
    pub rows: Vec<RowResult>,
}

impl ComparisonSummary {
    /// Returns true if every goal is met and every row was measured on both NICs.
    #[must_use]
    pub fn are_goals_met(&self) -> bool {
        self.rows.iter().all(|row| row.goal_met != Some(false))
            && self
                .rows
                .iter()
                .all(|row| row.softnic_to_system_ratio.is_some())
    }
}

/// Runs the comparison and reports progress to `on_event`. Failures are noted in the result, and
/// the other measurements go on. Once `should_end` returns true, the run ends after the current
/// measurement, and the result has the rows measured so far.
///
/// # Errors
/// When the tasks of the comparison are invalid.
pub fn run(
    comparison: &ComparisonSetup,
    mut on_event: impl FnMut(&ComparisonEvent),
    should_end: impl Fn() -> bool,
) -> Result<ComparisonSummary> {
    let tasks = comparison.tasks()?;
    let mut runner = WorkerPool::new(comparison.cores, comparison.worker_command.clone());
    let mut samples = ComparisonSamples::default();
    'rounds: for round in 0..comparison.settings.rounds {
        for (row, task) in tasks.iter().enumerate() {
            // Alternate the order of the sides, so that neither always finds the machine warmer.
            let mut sides = [NicSide::Softnic, NicSide::System];
            if round % 2 == 1 {
                sides.reverse();
            }
            let mut on_device = None;
            for side in sides {
                if should_end() {
                    break 'rounds;
                }
                on_event(&ComparisonEvent::Begin { task: *task, side });
                let nic = match side {
                    NicSide::Softnic => &comparison.softnic,
                    _ => &comparison.system_nic,
                };
                match runner.measure(nic, task) {
                    Ok(outcome) => {
                        let value = mops_or_median_latency_ns(&outcome);
                        if side == NicSide::System {
                            on_device = Some(value);
                        }
                        samples.record_and_report_sample(
                            round,
                            row,
                            side,
                            value,
                            Some(outcome),
                            &mut on_event,
                        );
                    }
                    Err(_) if should_end() => break 'rounds,
                    Err(err) => samples.record_error(round, row, side, &err),
                }
            }
            if comparison.settings.runs_perftest
                && !should_end()
                && perftest::tool_for_task(task).is_some()
                && let Some(on_device) = on_device
            {
                let side = NicSide::Perftest;
                on_event(&ComparisonEvent::Begin { task: *task, side });
                match perftest_mops_or_latency_ns(comparison, task, on_device) {
                    Ok(value) => samples.record_and_report_sample(
                        round,
                        row,
                        side,
                        value,
                        None,
                        &mut on_event,
                    ),
                    Err(_) if should_end() => break 'rounds,
                    Err(err) => samples.record_error(round, row, side, &err),
                }
            }
        }
    }
    let rows = tasks.iter().enumerate();
    let mut rows: Vec<_> = rows
        .map(|(row, task)| samples.row_result(row, *task))
        .collect();
    if should_end() {
        rows.retain(|row| row.softnic.is_some() || row.system.is_some() || !row.errors.is_empty());
    }
    Ok(ComparisonSummary { rows })
}

fn perftest_mops_or_latency_ns(
    comparison: &ComparisonSetup,
    task: &MeasurementTask,
    on_device: f64,
) -> Result<f64> {
    let per_s = match task {
        MeasurementTask::Stream(_) => on_device * 1e6,
        MeasurementTask::PingPong(ping) => {
            1e9 / on_device / if ping.has_one_way_latency() { 2.0 } else { 1.0 }
        }
    };
    // Count of operations that takes the same duration.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss
    )] // `as` saturates, and the count is bounded once more
    let wanted = (per_s * comparison.settings.duration_ms as f64 / 1e3) as u64;
    let report = perftest::run(
        task,
        wanted,
        &comparison.system_device_name,
        (comparison.system_nic.port_num, comparison.gid_index),
        comparison.cores,
    )
    .context("perftest")?;
    Ok(report.mops_or_ns())
}

fn mops_or_median_latency_ns(outcome: &TaskResult) -> f64 {
    match outcome {
        TaskResult::Rate(rate) => rate.rate_mops,
        TaskResult::Latency(latency) => latency.latency_ns_p50,
    }
}

#[derive(Default)]
struct ComparisonSamples {
    samples: Vec<ComparisonSample>,
    errors_by_row: BTreeMap<usize, Vec<String>>,
}

impl ComparisonSamples {
    fn record_and_report_sample(
        &mut self,
        round: u32,
        row: usize,
        side: NicSide,
        value: f64,
        outcome: Option<TaskResult>,
        on_event: &mut impl FnMut(&ComparisonEvent),
    ) {
        let sample = ComparisonSample {
            round_index: round,
            row_index: row,
            side,
            rate_mops_or_latency_ns: value,
            outcome,
        };
        on_event(&ComparisonEvent::Sample(sample.clone()));
        self.samples.push(sample);
    }

    fn record_error(&mut self, round: u32, row: usize, side: NicSide, err: &anyhow::Error) {
        let error = format!("round {round}, {}: {err:#}", side.name());
        self.errors_by_row.entry(row).or_default().push(error);
    }

    fn row_result(&self, row: usize, task: MeasurementTask) -> RowResult {
        let of = |side| -> Vec<&ComparisonSample> {
            let mine = |s: &&ComparisonSample| s.row_index == row && s.side == side;
            self.samples.iter().filter(mine).collect()
        };
        let spread = |side| {
            MedianAndSpread::of(
                &of(side)
                    .iter()
                    .map(|s| s.rate_mops_or_latency_ns)
                    .collect::<Vec<_>>(),
            )
        };
        let ratio = |over, under| {
            let unders = of(under);
            let ratios: Vec<f64> = of(over)
                .iter()
                .filter_map(|over| {
                    let under = unders
                        .iter()
                        .find(|under| under.round_index == over.round_index)?;
                    Some(over.rate_mops_or_latency_ns / under.rate_mops_or_latency_ns)
                })
                .collect();
            MedianAndSpread::of(&ratios)
        };
        let lost = |side| {
            let lost = of(side).into_iter().map(|s| match s.outcome {
                Some(TaskResult::Rate(rate)) => rate.lost_datagrams,
                _ => 0,
            });
            lost.sum()
        };
        let (unit, goal) = match task {
            MeasurementTask::Stream(_) => ("mops", GOAL_MIN_RATE_RATIO),
            MeasurementTask::PingPong(_) => ("ns", GOAL_MAX_LATENCY_RATIO),
        };
        let goal = (task.payload_bytes() == 8).then_some(goal);
        let to_device = ratio(NicSide::Softnic, NicSide::System);
        let meets = |goal: f64, ratio: f64| match task {
            MeasurementTask::Stream(_) => ratio >= goal,
            MeasurementTask::PingPong(_) => ratio <= goal,
        };
        RowResult {
            task,
            unit: unit.to_owned(),
            softnic: spread(NicSide::Softnic),
            system: spread(NicSide::System),
            perftest: spread(NicSide::Perftest),
            softnic_to_system_ratio: to_device,
            system_to_perftest: ratio(NicSide::System, NicSide::Perftest),
            ratio_goal: goal,
            goal_met: goal.map(|goal| to_device.is_some_and(|ratio| meets(goal, ratio.median))),
            lost_datagrams: [lost(NicSide::Softnic), lost(NicSide::System)],
            errors: self.errors_by_row.get(&row).cloned().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(rounds: u32, payloads_bytes: Vec<usize>) -> ComparisonSetup {
        let nic = NicChoice::first_device_of("softnic");
        let exe = WorkerCommand {
            path: "/nonexistent/verbatim".into(),
            args: vec![],
            envs: vec![],
        };
        ComparisonSetup::new(
            ComparisonSettings {
                rounds,
                duration_ms: 1,
                payloads_bytes,
                runs_perftest: false,
            },
            CorePair::first_two().unwrap(),
            exe,
            nic.clone(),
            nic,
        )
        .unwrap()
    }

    fn stream(payload_bytes: usize) -> MeasurementTask {
        let parameters = MicroParameters {
            payload_bytes: Some(payload_bytes),
            ..MicroParameters::default()
        };
        MeasurementTask::Stream(VerbStream::new(Verb::RcSend, &parameters, 1).unwrap())
    }

    fn ping() -> MeasurementTask {
        MeasurementTask::PingPong(
            PingPong::new(Verb::RcSend, &MicroParameters::default(), 1).unwrap(),
        )
    }

    fn result(task: MeasurementTask, rounds: &[(f64, f64)]) -> RowResult {
        let mut samples = ComparisonSamples::default();
        for (round, (softnic, system)) in (0..).zip(rounds) {
            samples.record_and_report_sample(
                round,
                0,
                NicSide::Softnic,
                *softnic,
                None,
                &mut |_| {},
            );
            samples.record_and_report_sample(round, 0, NicSide::System, *system, None, &mut |_| {});
        }
        samples.row_result(0, task)
    }

    #[test]
    fn every_verb_with_every_payload_that_fits() {
        let tasks = comparison(1, PAYLOADS_BYTES.to_vec()).tasks().unwrap();
        assert_eq!(tasks.len(), 3 + 3 * 5 + 2 * 5);
        let datagrams = tasks.iter().filter(|task| task.verb() == Verb::UdSend);
        assert_eq!(
            datagrams.map(MeasurementTask::payload_bytes).max(),
            Some(4096)
        );
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        // The machine is ten times slower in round 1, for both sides: the ratio does not change.
        let row = result(stream(8), &[(25.0, 1.0), (2.5, 0.1), (50.0, 2.0)]);
        let ratio = row.softnic_to_system_ratio.unwrap();
        assert_eq!((ratio.min, ratio.max), (25.0, 25.0));
        assert_eq!(row.goal_met, Some(true));
    }

    #[test]
    fn goals_are_of_8_bytes() {
        assert_eq!(result(stream(8), &[(19.0, 1.0)]).goal_met, Some(false));
        assert_eq!(result(stream(64), &[(19.0, 1.0)]).goal_met, None);
        assert_eq!(result(ping(), &[(10.0, 100.0)]).goal_met, Some(true));
        assert_eq!(result(ping(), &[(11.0, 100.0)]).goal_met, Some(false));
    }

    #[test]
    fn what_fails_is_noted_and_meets_nothing() {
        let mut begun = 0;
        let on_event = |event: &ComparisonEvent| {
            begun += u32::from(matches!(event, ComparisonEvent::Begin { .. }))
        };
        let summary = run(&comparison(2, vec![8]), on_event, || false).unwrap();
        assert_eq!((begun, summary.rows.len()), (2 * 2 * 6, 6));
        assert!(!summary.are_goals_met());
        for row in &summary.rows {
            assert_eq!(row.goal_met, Some(false));
            assert_eq!(row.errors.len(), 4);
            assert!(
                row.errors[0].contains("/nonexistent/verbatim"),
                "{:?}",
                row.errors
            );
        }
    }

    #[test]
    fn a_run_that_is_asked_to_end_notes_no_failure() {
        let begun = std::cell::Cell::new(0);
        let on_event = |event: &ComparisonEvent| {
            begun.set(begun.get() + u32::from(matches!(event, ComparisonEvent::Begin { .. })));
        };
        let summary = run(&comparison(2, vec![8]), on_event, || begun.get() == 3).unwrap();
        // All measurements fail. The third fails after the request to end, so its error is not noted.
        assert_eq!((begun.get(), summary.rows.len()), (3, 1));
        assert_eq!(summary.rows[0].errors.len(), 2);
    }
}
