//! Rows over packets: the two processes have two addresses of this host.
//!
//! When a process opens the NIC, it reads its address and its fault plan from the environment. The
//! benchmark therefore starts a separate process that measures, and that process starts the worker
//! at the other end.

use anyhow::{Result, bail};

use super::connections::{self, IDLE_QUEUE_PAIRS};
use super::verbs::figure_of_result;
use crate::core_pinning::run_pinned;
use crate::goal::Row;
use crate::job::{DriveJob, DrivenMeasurement, Job};
use crate::link::{WorkerCommand, WorkerLink};
use crate::micro::parameters::{MicroParameters, VerbStream};
use crate::micro::task::{MeasurementTask, PingPong};
use crate::micro::verb::Verb;
use crate::micro::worker_pool::WorkerPool;
use crate::setup::{BenchSetup, RowFigure};

/// Duration of a row in milliseconds. It is longer than for shared memory, because a packet takes
/// longer.
const DURATION_MS: u64 = 500;

/// Payload of the rows that measure bandwidth.
const BANDWIDTH_PAYLOAD_BYTES: usize = 64 << 10;

/// Addresses of the driver and of the worker: loopback addresses that other programs are unlikely
/// to use.
const DRIVER_AND_WORKER_ADDRESSES: [&str; 2] = ["127.47.91.1", "127.47.91.2"];

/// Fault plan that drops one in a hundred of a process's sent packets.
const LOSS_FAULT_PLAN: &str = "drop,direction=send,p=0.01";

/// Measures a row of [`Row::WIRE_ROWS`] once.
pub(super) fn measure(bench: &BenchSetup, row: Row) -> Result<RowFigure> {
    let fault = if row == Row::WireLoss {
        LOSS_FAULT_PLAN
    } else {
        ""
    };
    measure_between_processes(bench, measurement_of_row(bench, row)?, fault)
}

/// Measures the row with losses without its fault plan.
pub(super) fn measure_without_faults(bench: &BenchSetup) -> Result<RowFigure> {
    measure_between_processes(bench, measurement_of_row(bench, Row::WireLoss)?, "")
}

fn measurement_of_row(bench: &BenchSetup, row: Row) -> Result<DrivenMeasurement> {
    let duration_ms = (DURATION_MS / bench.settings.shrink_divisor.max(1)).max(1);
    let stream =
        |verb, parameters: MicroParameters| VerbStream::new(verb, &parameters, duration_ms);
    let of = |payload, batch, window, signal_every| MicroParameters {
        payload_bytes: Some(payload),
        wrs_per_doorbell: Some(batch),
        window: Some(window),
        signal_every: Some(signal_every),
        ..MicroParameters::default()
    };
    let task = match row {
        Row::WireSend | Row::WireSendRate => {
            MeasurementTask::Stream(stream(Verb::RcSend, of(8, 16, 512, 16))?)
        }
        Row::WireWrite | Row::WireWriteRate => {
            MeasurementTask::Stream(stream(Verb::RcWrite, of(8, 16, 512, 16))?)
        }
        Row::WireTcp | Row::WireUdp | Row::WireLoss => MeasurementTask::Stream(stream(
            Verb::RcWrite,
            of(BANDWIDTH_PAYLOAD_BYTES, 1, 32, 1),
        )?),
        Row::WireLatency => {
            let ping = PingPong::new(Verb::RcSend, &MicroParameters::default(), duration_ms)?;
            MeasurementTask::PingPong(PingPong {
                exchanges_per_sample: u32::try_from(64 / bench.settings.shrink_divisor.max(1))?
                    .max(1),
                ..ping
            })
        }
        Row::WireIdle => {
            let queue_pairs = usize::try_from(bench.shrink_count(IDLE_QUEUE_PAIRS))?;
            return Ok(DrivenMeasurement::IdleCpu { queue_pairs });
        }
        _ => bail!("{} is no row of packets", row.name()),
    };
    Ok(DrivenMeasurement::Task(task))
}

/// Measures between a process with the first address and a process with the second, both under a
/// fault plan.
fn measure_between_processes(
    bench: &BenchSetup,
    driven: DrivenMeasurement,
    fault: &str,
) -> Result<RowFigure> {
    let exe = |address| {
        bench.worker_command.with_envs([
            ("VERBATIM_PATH", "packets"),
            ("VERBATIM_ADDRESS", address),
            ("VERBATIM_FAULT", fault),
            ("VERBATIM_FAULT_SEED", "1"),
        ])
    };
    let [near, far] = DRIVER_AND_WORKER_ADDRESSES.map(exe);
    let mut driver = WorkerLink::spawn(&near, bench.cores.requester)?;
    driver.send(&Job::Drive(DriveJob {
        cores: bench.cores,
        worker_command: far,
        nic: bench.nic.clone(),
        measurement: driven,
    }))?;
    driver.recv()
}

/// Runs the process with the first address.
///
/// # Errors
/// When the measurement fails, or the benchmark's process is gone.
pub(crate) fn run_driver_side(link: &mut WorkerLink, order: &DriveJob) -> Result<()> {
    let measured = match &order.measurement {
        DrivenMeasurement::Task(task) => {
            let mut runner = WorkerPool::new(order.cores, order.worker_command.clone());
            figure_of_result(task, &runner.measure(&order.nic, task)?)
        }
        DrivenMeasurement::IdleCpu { queue_pairs } => {
            measure_idle_cpu(&order.worker_command, order, *queue_pairs)?
        }
    };
    link.send(&measured)
}

fn measure_idle_cpu(
    far: &WorkerCommand,
    order: &DriveJob,
    queue_pairs: usize,
) -> Result<RowFigure> {
    run_pinned(order.cores.requester, || {
        let mut link = WorkerLink::spawn(far, order.cores.responder)?;
        connections::measure_idle_cpu_over(&mut link, &order.nic, queue_pairs)
    })
}
