//! The management datagrams (MADs) of an InfiniBand subnet whose ports are on this host.
//!
//! One switch connects all ports. The port with the smallest LID runs the subnet manager and the subnet administration.
//! [`Subnet::answer_request`] answers requests to all of these agents; it has no state and never waits.
//!
//! Layouts are those of the InfiniBand Architecture Specification, volume 1 (IBTA). `linux:` and `rdma-core:` name
//! files of those projects.

mod answering_agent;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod mad;
mod node_port_and_group_records;
mod path_records;
mod performance_management;
mod record_table;
mod smp;
mod subnet_administration;
mod topology;

pub use answering_agent::SubnetAnswer;
pub use topology::{ChannelAdapter, GroupMember, MULTICAST_LID, Port, PortTraffic, Subnet};

#[cfg(test)]
mod tests;
