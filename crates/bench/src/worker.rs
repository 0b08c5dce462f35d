//! The worker process: runs the jobs that the driver sends, until the driver is gone.

use anyhow::Result;

use crate::crowd;
use crate::depth;
use crate::events;
pub use crate::job::Job;
use crate::link::WorkerLink;
use crate::micro::lanes;
use crate::nic::NicChoice;
use crate::peers::{bare_pair, hostcopy, lmdb, udp};
use crate::pin::allowed;
use crate::probe;
use crate::rows::{connections, wire};

/// Runs jobs until the driver sends [`Job::Stop`] or is gone. A worker on another host than the
/// driver has its own NIC, `nic`, and chooses its own cores.
///
/// # Errors
/// When a job fails; the driver is told why.
pub fn serve(link: &mut WorkerLink, nic: Option<&NicChoice>) -> Result<()> {
    while let Some(job) = link.recv_or_end()? {
        let done = match job {
            Job::Connections(order) => connections::work(link, &order),
            Job::Micro(mut order) => {
                if let Some(nic) = nic {
                    order.nic = nic.clone();
                    order.cores = allowed()?;
                }
                lanes::work(link, &order)
            }
            Job::Probe(mut order) => {
                if let Some(nic) = nic {
                    order.nic = nic.clone();
                }
                probe::work(link, &order)
            }
            Job::Events(order) => events::work(link, &order),
            Job::Crowd(order) => crowd::work(link, &order),
            Job::Depth(order) => depth::work(link, &order),
            Job::HostCopy(request) => hostcopy::work(link, request),
            Job::Bare(bare) => bare_pair::work(link, bare),
            Job::Datagrams(request) => udp::work(link, request),
            Job::Lmdb(order) => lmdb::work(link, order),
            Job::Drive(order) => wire::drive(link, &order),
            Job::Stop => break,
        };
        if let Err(error) = done {
            link.fail(&error);
            return Err(error);
        }
    }
    Ok(())
}
