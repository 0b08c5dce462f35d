//! The two ends of a lane: the requester's thread and the responder's thread.

use anyhow::Result;

use super::outcome::Outcome;
use super::parameters::Direction;
use super::target::Target;
use super::task::Task;
use super::{one_sided, ping, send};
use crate::link::Link;
use crate::nic::Nic;

/// Runs the thread of a lane on the measured side. Returns the result of the lane's requester.
pub(crate) fn run_measured_side(
    link: &mut Link,
    nic: &Nic,
    task: &Task,
    target: &Target,
) -> Result<Outcome> {
    match task.direction() {
        Direction::Outbound => drive_on(link, nic, task),
        Direction::Inbound => {
            work_on(link, nic, task, target)?;
            link.recv()
        }
    }
}

/// Runs the thread of a lane on the other side.
pub(crate) fn run_other_side(
    link: &mut Link,
    nic: &Nic,
    task: &Task,
    target: &Target,
) -> Result<()> {
    match task.direction() {
        Direction::Outbound => work_on(link, nic, task, target),
        Direction::Inbound => {
            let outcome = drive_on(link, nic, task)?;
            link.send(&outcome)
        }
    }
}

/// Runs the requester on an open NIC.
fn drive_on(link: &mut Link, nic: &Nic, task: &Task) -> Result<Outcome> {
    Ok(match task {
        Task::Stream(stream) if stream.verb.is_send() => {
            Outcome::Rate(send::drive(link, nic, stream)?)
        }
        Task::Stream(stream) => Outcome::Rate(one_sided::drive(link, nic, stream)?),
        Task::PingPong(ping) => Outcome::Latency(ping::drive(link, nic, ping)?),
    })
}

/// Runs the responder on an open NIC.
fn work_on(link: &mut Link, nic: &Nic, task: &Task, target: &Target) -> Result<()> {
    match task {
        Task::Stream(stream) if stream.verb.is_send() => send::work(link, nic, stream),
        Task::Stream(stream) => one_sided::work(link, nic, stream, target),
        Task::PingPong(ping) => ping::work(link, nic, ping),
    }
}
