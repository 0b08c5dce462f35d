//! The two ends of a lane: the requester's thread and the responder's thread.

use anyhow::Result;

use super::outcome::TaskResult;
use super::parameters::MeasuredRole;
use super::target::ResponderMemory;
use super::task::MeasurementTask;
use super::{one_sided, ping, send};
use crate::link::WorkerLink;
use crate::nic::OpenNic;

/// Runs the thread of a lane on the measured side. Returns the result of the lane's requester.
pub(crate) fn run_measured_side(
    link: &mut WorkerLink,
    nic: &OpenNic,
    task: &MeasurementTask,
    target: &ResponderMemory,
) -> Result<TaskResult> {
    match task.direction() {
        MeasuredRole::Outbound => drive_on(link, nic, task),
        MeasuredRole::Inbound => {
            work_on(link, nic, task, target)?;
            link.recv()
        }
    }
}

/// Runs the thread of a lane on the other side.
pub(crate) fn run_other_side(
    link: &mut WorkerLink,
    nic: &OpenNic,
    task: &MeasurementTask,
    target: &ResponderMemory,
) -> Result<()> {
    match task.direction() {
        MeasuredRole::Outbound => work_on(link, nic, task, target),
        MeasuredRole::Inbound => {
            let outcome = drive_on(link, nic, task)?;
            link.send(&outcome)
        }
    }
}

/// Runs the requester on an open NIC.
fn drive_on(link: &mut WorkerLink, nic: &OpenNic, task: &MeasurementTask) -> Result<TaskResult> {
    Ok(match task {
        MeasurementTask::Stream(stream) if stream.verb.is_send() => {
            TaskResult::Rate(send::drive(link, nic, stream)?)
        }
        MeasurementTask::Stream(stream) => TaskResult::Rate(one_sided::drive(link, nic, stream)?),
        MeasurementTask::PingPong(ping) => TaskResult::Latency(ping::drive(link, nic, ping)?),
    })
}

/// Runs the responder on an open NIC.
fn work_on(
    link: &mut WorkerLink,
    nic: &OpenNic,
    task: &MeasurementTask,
    target: &ResponderMemory,
) -> Result<()> {
    match task {
        MeasurementTask::Stream(stream) if stream.verb.is_send() => send::work(link, nic, stream),
        MeasurementTask::Stream(stream) => one_sided::work(link, nic, stream, target),
        MeasurementTask::PingPong(ping) => ping::work(link, nic, ping),
    }
}
