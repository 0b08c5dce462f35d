//! The responder's process: does the jobs that the driver sends it, until the driver is gone.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::link::Link;
use crate::micro;
use crate::peers::hostcopy;
use crate::pin::allowed;
use crate::workload::NicChoice;
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

/// Does jobs until told to stop or the driver is gone. Where this host is not the driver's it has a NIC of its own,
/// `nic`, and cores of its own.
///
/// # Errors
/// When a job fails; the driver is told why.
pub fn serve(link: &mut Link, nic: Option<&NicChoice>) -> Result<()> {
    while let Some(job) = link.recv_or_end()? {
        let done = match job {
            Job::Verbs(order) => workload::work(link, &order),
            Job::Micro(mut order) => {
                if let Some(nic) = nic {
                    order.nic = nic.clone();
                    order.cores = allowed()?;
                }
                micro::work(link, &order)
            }
            Job::Probe(mut order) => {
                if let Some(nic) = nic {
                    order.nic = nic.clone();
                }
                probe::work(link, &order)
            }
            Job::HostCopy(request) => hostcopy::work(link, request),
            Job::Stop => break,
        };
        if let Err(error) = done {
            link.fail(&error);
            return Err(error);
        }
    }
    Ok(())
}
