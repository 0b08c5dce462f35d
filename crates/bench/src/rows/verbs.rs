//! Rows of one verb, as parameters of the microbenchmarks.

use anyhow::{Result, bail};

use crate::goal::{BULK_PAYLOAD_BYTES, Row};
use crate::micro::outcome::TaskResult;
use crate::micro::parameters::{MicroParameters, VerbStream};
use crate::micro::task::{MeasurementTask, PingPong};
use crate::micro::verb::Verb;
use crate::micro::worker_pool::WorkerPool;
use crate::peers::bare_ring::WINDOW;
use crate::setup::{BenchSetup, RowFigure};

/// Smallest payload, in bytes, for which a row's figure is a bandwidth instead of a rate.
const MIN_BANDWIDTH_PAYLOAD_BYTES: usize = 4096;

/// Duration of the measurement of a row or its limit, in milliseconds.
pub(super) const DURATION_MS: u64 = 300;

/// Measures a row once.
pub(super) fn measure(bench: &BenchSetup, row: Row) -> Result<RowFigure> {
    let task = task_of_row(bench, row)?;
    let outcome =
        WorkerPool::new(bench.cores, bench.worker_command.clone()).measure(&bench.nic, &task)?;
    Ok(figure_of_result(&task, &outcome))
}

/// Returns the task that measures a row.
pub(crate) fn task_of_row(bench: &BenchSetup, row: Row) -> Result<MeasurementTask> {
    let shrink = bench.settings.shrink_divisor.max(1);
    let duration_ms = (DURATION_MS / shrink).max(1);
    let parameters = |batch, window, signal_every| MicroParameters {
        wrs_per_doorbell: Some(batch),
        window: Some(window),
        signal_every: Some(signal_every),
        ..MicroParameters::default()
    };
    if let Some(sends) = row.as_send_stream() {
        let parameters = MicroParameters {
            payload_bytes: Some(sends.payload_bytes),
            ..parameters(sends.wrs_per_postlist, WINDOW, 16)
        };
        return Ok(MeasurementTask::Stream(VerbStream::new(
            sends.verb,
            &parameters,
            duration_ms,
        )?));
    }
    let (verb, parameters) = match row {
        Row::RcLatency => {
            let ping = PingPong::new(Verb::RcSend, &MicroParameters::default(), duration_ms)?;
            return Ok(MeasurementTask::PingPong(PingPong {
                exchanges_per_sample: u32::try_from(256 / shrink)?.max(1),
                ..ping
            }));
        }
        Row::RcWrite => (Verb::RcWrite, parameters(16, 128, 16)),
        Row::RcWriteSingle => (Verb::RcWrite, parameters(1, 128, 16)),
        Row::FetchAdd => (Verb::Atomics, parameters(16, 16, 1)),
        Row::WriteMapped | Row::WritePrivate => (
            Verb::RcWrite,
            MicroParameters {
                payload_bytes: Some(BULK_PAYLOAD_BYTES),
                private_target_memory: row == Row::WritePrivate,
                ..parameters(1, 1, 1)
            },
        ),
        _ => bail!("{} is not of one verb", row.name()),
    };
    Ok(MeasurementTask::Stream(VerbStream::new(
        verb,
        &parameters,
        duration_ms,
    )?))
}

/// Returns the figure of a row: a rate, a bandwidth for long payloads, or a mean latency.
pub(super) fn figure_of_result(task: &MeasurementTask, outcome: &TaskResult) -> RowFigure {
    match outcome {
        TaskResult::Rate(rate) => RowFigure {
            value: if task.payload_bytes() >= MIN_BANDWIDTH_PAYLOAD_BYTES {
                rate.bandwidth_gbytes_per_s
            } else {
                rate.rate_mops
            },
            verified_ops: rate.verified_ops,
            lost_messages: rate.lost_datagrams,
        },
        TaskResult::Latency(latency) => RowFigure {
            value: latency.latency_ns_mean,
            verified_ops: latency.verified_ops,
            lost_messages: 0,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_pinning::CorePair;
    use crate::link::{WorkerCommand, WorkerLink};
    use crate::open_nic::NicChoice;
    use crate::setup::BenchSettings;

    /// Runs this project's side of `row` briefly, with a thread as the worker.
    fn tiny(row: Row) -> RowFigure {
        let bench = BenchSetup {
            settings: BenchSettings {
                rounds: 1,
                shrink_divisor: 10_000,
                rows: vec![row],
            },
            cores: CorePair::first_two().unwrap(),
            worker_command: WorkerCommand {
                path: "unused".into(),
                args: vec![],
                envs: vec![],
            },
            nic: NicChoice::first_device_of("softnic"),
        };
        let task = task_of_row(&bench, row).unwrap();
        let (left, mut right) = WorkerLink::pair().unwrap();
        let worker = std::thread::spawn(move || crate::worker::run_jobs(&mut right, None));
        let links = &mut [left];
        let outcome = crate::micro::lanes::measure_with_workers(links, &bench.nic, &task, &[], &[]);
        drop(std::mem::replace(links, [WorkerLink::pair().unwrap().0]));
        match (outcome, worker.join().unwrap()) {
            (Ok(outcome), Ok(())) => figure_of_result(&task, &outcome),
            (outcome, worked) => panic!("{}: {outcome:?}, worker: {worked:?}", row.name()),
        }
    }

    #[test]
    fn every_row_of_a_verb_is_measured_and_checked() {
        let sends = Row::all().filter(|row| row.as_send_stream().is_some());
        let others = [
            Row::RcLatency,
            Row::RcWrite,
            Row::RcWriteSingle,
            Row::FetchAdd,
            Row::WriteMapped,
            Row::WritePrivate,
        ];
        for row in sends.chain(others) {
            let measured = tiny(row);
            assert!(measured.value > 0.0, "{}: {measured:?}", row.name());
            assert!(measured.verified_ops > 0, "{}: {measured:?}", row.name());
            assert!(
                row.as_send_stream()
                    .is_some_and(|sends| sends.verb != Verb::RcSend)
                    || measured.lost_messages == 0,
                "{}",
                row.name()
            );
        }
    }
}
