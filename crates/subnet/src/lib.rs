//! The management datagrams (MADs) of an InfiniBand subnet whose ports are on this host.
//!
//! One switch connects all ports. The port with the smallest LID runs the subnet manager and the subnet administration.
//! [`Subnet::answer`] answers requests to all of these agents; it has no state and never waits.
//!
//! Layouts are those of the InfiniBand Architecture Specification, volume 1 (IBTA). `linux:` and `rdma-core:` name files
//! of those projects.

mod answer;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod mad;
mod path_records;
mod performance;
mod record_table;
mod record_tables;
mod records;
mod smp;
mod topology;

pub use answer::SubnetAnswer;
pub use topology::{ChannelAdapter, GroupMember, MULTICAST_LID, Port, PortTraffic, Subnet};

#[cfg(test)]
mod tests;
