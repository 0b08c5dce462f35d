//! The two ends of a lane: the requester's thread and the responder's thread.

use anyhow::Result;

use super::outcome::TaskResult;
use super::parameters::MeasuredRole;
use super::shared_atomic_counters::SharedAtomicCounters;
use super::task::MeasurementTask;
use super::{one_sided, ping, send_rates};
use crate::link::WorkerLink;
use crate::open_nic::OpenNic;

/// Runs the thread of a lane on the measured side. Returns the result of the lane's requester.
pub(crate) fn run_measured_side(
    link: &mut WorkerLink,
    nic: &OpenNic,
    task: &MeasurementTask,
    target: &SharedAtomicCounters,
) -> Result<TaskResult> {
    match task.measured_role() {
        MeasuredRole::Outbound => run_requester(link, nic, task),
        MeasuredRole::Inbound => {
            run_responder(link, nic, task, target)?;
            link.recv()
        }
    }
}

/// Runs the thread of a lane on the other side.
pub(crate) fn run_other_side(
    link: &mut WorkerLink,
    nic: &OpenNic,
    task: &MeasurementTask,
    target: &SharedAtomicCounters,
) -> Result<()> {
    match task.measured_role() {
        MeasuredRole::Outbound => run_responder(link, nic, task, target),
        MeasuredRole::Inbound => {
            let outcome = run_requester(link, nic, task)?;
            link.send(&outcome)
        }
    }
}

/// Runs the requester on an open NIC.
fn run_requester(
    link: &mut WorkerLink,
    nic: &OpenNic,
    task: &MeasurementTask,
) -> Result<TaskResult> {
    Ok(match task {
        MeasurementTask::Stream(stream) if stream.verb.is_send() => {
            TaskResult::Rate(send_rates::run_driver_side(link, nic, stream)?)
        }
        MeasurementTask::Stream(stream) => {
            TaskResult::Rate(one_sided::run_driver_side(link, nic, stream)?)
        }
        MeasurementTask::PingPong(ping) => {
            TaskResult::Latency(ping::run_driver_side(link, nic, ping)?)
        }
    })
}

/// Runs the responder on an open NIC.
fn run_responder(
    link: &mut WorkerLink,
    nic: &OpenNic,
    task: &MeasurementTask,
    target: &SharedAtomicCounters,
) -> Result<()> {
    match task {
        MeasurementTask::Stream(stream) if stream.verb.is_send() => {
            send_rates::run_worker_side(link, nic, stream)
        }
        MeasurementTask::Stream(stream) => one_sided::run_worker_side(link, nic, stream, target),
        MeasurementTask::PingPong(ping) => ping::run_worker_side(link, nic, ping),
    }
}
