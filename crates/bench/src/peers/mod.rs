//! Peers: the programs that the software NIC is compared with.

pub(crate) mod bare;
pub(crate) mod bare_phases;
pub(crate) mod bare_ring;
pub mod bare_ring_exchange;
pub(crate) mod copy;
pub(crate) mod datagrams;
pub mod handover;
pub mod hostcopy;
pub mod iperf3;
pub mod lmdb;
mod mapping;
pub mod perftest;
pub(crate) mod port;
pub mod redis;
pub mod ucx;
pub mod udp;

pub use crate::child::KillOnDrop;
