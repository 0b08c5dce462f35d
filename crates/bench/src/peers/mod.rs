//! Peers: the programs that the software NIC is compared with.

pub(crate) mod bare_exchange_parameters;
pub(crate) mod bare_ring;
pub mod bare_ring_exchange;
pub(crate) mod bare_ring_phases;
pub(crate) mod copy_parameters;
pub mod copy_pipeline;
pub(crate) mod datagram_parameters;
pub mod hostcopy;
pub mod iperf3;
pub mod lmdb;
mod mapping;
pub mod perftest;
pub mod redis;
pub(crate) mod tcp_port;
pub mod ucx;
pub mod udp;

pub use crate::child::KillOnDrop;
