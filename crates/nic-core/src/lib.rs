//! The decisions of an RDMA NIC, without their execution.
//!
//! Each function depends only on its arguments. The crate has no clock, thread, atomic, system call or C type. Its
//! decisions can therefore be tested by tables and properties, run under miri, and be used by a NIC in simulated time.
//! A decision that depends on time takes `now` as an argument.
//!
//! - [`core_migration`]: the move of a polling thread away from the core of its peer.
//! - [`flows`]: the queue pairs that get a packet.
//! - [`peer_wakeup`]: the time at which a poller wakes the engines of its peers.
//! - [`qp_state`]: the states of a queue pair, and its legal modifications.
//! - [`retry_timeouts`]: the time after which a requester gives up.
//! - [`rights`]: the access check of work requests.
//! - [`tag_matching`]: the receive that a tagged message matches.
//! - [`transport_opcodes`]: the verbs of each transport, and the opcodes of their completions.
//! - [`yielding`]: yielding of the core by a thread that polls without success.

#![forbid(unsafe_code)]

pub mod core_migration;
pub mod flows;
pub mod peer_wakeup;
pub mod qp_state;
pub mod retry_timeouts;
pub mod rights;
pub mod tag_matching;
pub mod transport_opcodes;
pub mod yielding;
