//! Probes of how a NIC's WRITEs appear to the target's processor.
//!
//! No specification states the order in which the bytes of one RDMA WRITE appear in memory. Systems
//! that poll memory for requests depend on this order: they take a message as complete when its
//! last byte has arrived (HERD, FaRM). Also, a WRITE that has completed at the requester must be
//! visible in the target's memory. This holds even if the target learns of the completion by other
//! means.

mod requester_and_target;
pub(crate) mod write_probe;

pub use self::requester_and_target::run;
pub(crate) use self::requester_and_target::run_worker_side;
pub use self::write_probe::{ProbeResult, ProbedProperty, WriteProbe};
