//! The paths from one queue pair to another.
//!
//! There are two paths. Everything above them (posting, order, completions, rights, states) is the same:
//!
//! - *Shared memory*, for the processes of one fabric: SENDs are records in a ring, and the requester executes
//!   one-sided verbs (`send::out_ring`, `send::one_sided`).
//! - *Packets*: RoCEv2 over UDP. The crate `roce` has requester and responder as state machines, the crate `link` the
//!   sockets. `send::packets` turns work requests into requests and processes answers; `recv::packets` processes
//!   requests.
//!
//! `capture` writes packets into a pcap file, and `faulty` applies a fault plan to them. `counters` counts packets and
//! their fates, and `hw_counters` are the files that all processes of a port add to. `traffic` counts octets and
//! packets of the ports, also of messages by shared memory. `heard` knows the time up to which all arrived packets have
//! been processed. `bursts` decides whether the packets of a post wait for the next post. `gsi` forwards the management
//! datagrams that arrive at QP1 to their processes, and `mads` sends management datagrams.
//!
//! [`PathMode`] selects the path of a queue pair. The [`PacketPath`] is the state that all queue pairs of a process
//! share on the path by packets.

mod capture;
mod congestion;
mod counters;
mod gsi;
pub(crate) mod hw_counters;
mod mode;
mod network;
mod packet_checks;
mod packet_faults;
mod post_bursts;
mod send_mad;
pub(crate) mod traffic;

pub use capture::PCAP_VAR;
pub use congestion::{DCQCN_VAR, check_dcqcn_setting};
pub(crate) use counters::{
    COUNTER_PUBLICATION_INTERVAL, CountedPort, Counter, DropReason, NAMES, PacketCounters,
};
pub(crate) use gsi::MadDelivery;
pub(crate) use mode::PathMode;
pub(crate) use network::{
    BadNetwork, CounterPublication, PacketArrival, PacketPath, are_packets_in_use,
    note_packets_in_use,
};

/// The P_Key of a port's only partition: the default partition, full member (IBTA vol. 1, 10.9.1.2).
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;
