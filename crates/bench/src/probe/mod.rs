//! Probes of what a NIC's WRITEs look like to the target's processor.
//!
//! No specification says in which order the bytes of one RDMA WRITE appear in memory, and systems that poll memory for a
//! request depend on it all the same: they take a message for whole when its last byte is there (HERD, FaRM). And a WRITE
//! that has completed at the requester must be in the target's memory for whoever hears of it by other means.

mod ends;
pub(crate) mod question;

pub use self::ends::run;
pub(crate) use self::ends::work;
pub use self::question::{Probe, Question, Seen};
