//! How one queue pair reaches another.
//!
//! There are two paths, and everything above them (posting, order, completions, rights, states) is the same:
//!
//! - *Shared memory*, for the processes of one fabric: SENDs are records in a ring, one-sided verbs are executed by the
//!   requester (`send::out_ring`, `send::one_sided`).
//! - *Packets*: RoCEv2 over UDP. The crate `roce` has requester and responder as state machines, the crate `link` the
//!   sockets. `send::packets` makes requests of work requests and takes answers, `recv::packets` takes requests.
//!
//! `capture` writes packets into a pcap file, `faulty` does with them what a plan of faults says.
//! `counters` counts what becomes of packets, and `hw_counters` are the files that all processes of a port add to.
//! `heard` knows up to when all packets that came have been taken, `bursts` whether the packets of a post wait for the next
//! post. `gsi` hands the management datagrams that come to QP1 to the processes that they are for, `mads` sends such.
//!
//! [`Mode`] says which of them a queue pair takes. The [`Network`] is what all queue pairs of a process share on the
//! way by packets.

mod bursts;
mod capture;
mod counters;
mod faulty;
mod gsi;
mod heard;
pub(crate) mod hw_counters;
mod mads;
mod mode;
mod network;

pub use capture::PCAP_VAR;
pub(crate) use counters::{Counter, Counters, Drop, NAMES, PUBLICATION_INTERVAL};
pub(crate) use mode::Mode;
pub(crate) use network::{Arrival, Audience, BadNetwork, Network, in_use, note_use};

/// The P_Key of the one partition that ports are in: the default partition, full member (IBTA vol. 1, 10.9.1.2).
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;
