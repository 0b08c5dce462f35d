//! The worker process: runs the jobs that the driver sends, until the driver is gone.

use anyhow::Result;

use crate::core_pinning::allowed_cores;
use crate::crowd;
use crate::depth;
use crate::events;
pub use crate::job::Job;
use crate::link::WorkerLink;
use crate::micro::lanes;
use crate::open_nic::NicChoice;
use crate::peers::{bare_ring_exchange, hostcopy, lmdb, udp};
use crate::probe;
use crate::rows::{connections, wire};

/// Runs jobs until the driver sends [`Job::Stop`] or is gone. A worker on another host than the
/// driver has its own NIC, `nic`, and chooses its own cores.
///
/// # Errors
/// When a job fails; the driver is told why.
pub fn run_jobs(link: &mut WorkerLink, nic: Option<&NicChoice>) -> Result<()> {
    while let Some(job) = link.recv_or_end()? {
        let done = match job {
            Job::Connections(order) => connections::run_worker_side(link, &order),
            Job::Micro(mut order) => {
                if let Some(nic) = nic {
                    order.nic = nic.clone();
                    order.cores = allowed_cores()?;
                }
                lanes::run_worker_side(link, &order)
            }
            Job::Probe(mut order) => {
                if let Some(nic) = nic {
                    order.nic = nic.clone();
                }
                probe::run_worker_side(link, &order)
            }
            Job::Events(order) => events::run_worker_side(link, &order),
            Job::Crowd(order) => crowd::run_worker_side(link, &order),
            Job::Depth(order) => depth::run_worker_side(link, &order),
            Job::HostCopy(request) => hostcopy::run_worker_side(link, request),
            Job::Bare(bare) => bare_ring_exchange::run_worker_side(link, bare),
            Job::Datagrams(request) => udp::run_worker_side(link, request),
            Job::Lmdb(order) => lmdb::run_worker_side(link, order),
            Job::Drive(order) => wire::run_driver_side(link, &order),
            Job::Stop => break,
        };
        if let Err(error) = done {
            link.send_failure(&error);
            return Err(error);
        }
    }
    Ok(())
}
