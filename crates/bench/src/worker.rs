//! The responder's process: does the jobs that the driver sends it, until the driver is gone.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::link::Link;
use crate::micro;
use crate::peers::hostcopy;
use crate::{probe, workload};

/// One job.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Job {
    /// Be the other end of a verbs workload.
    Verbs(workload::Order),
    /// Be the other end of one verb's measurement.
    Micro(micro::Order),
    /// Be the target of WRITEs that are looked at.
    Probe(probe::Order),
    /// Be the target of copies without a NIC.
    HostCopy(hostcopy::Request),
    /// End.
    Stop,
}

/// Does jobs until told to stop or the driver is gone.
///
/// # Errors
/// When a job fails.
pub fn serve(link: &mut Link) -> Result<()> {
    while let Some(job) = link.recv_or_end()? {
        match job {
            Job::Verbs(order) => workload::work(link, &order)?,
            Job::Micro(order) => micro::work(link, &order)?,
            Job::Probe(order) => probe::work(link, &order)?,
            Job::HostCopy(request) => hostcopy::work(link, request)?,
            Job::Stop => break,
        }
    }
    Ok(())
}
