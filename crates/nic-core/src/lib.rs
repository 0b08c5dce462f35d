//! The decisions of an RDMA NIC, without their execution.
//!
//! Everything here is a function of its arguments. There is no clock, thread, atomic, system call or C type. So the
//! decisions of a NIC can be tested by table and by property, run under miri, and be used by a NIC in simulated time. A
//! decision that depends on time takes `now`.
//!
//! - [`flows`]: which queue pairs get a packet.
//! - [`qp_state`]: the states of a queue pair, and which modifications are legal.
//! - [`retry`]: when a requester gives up.
//! - [`rights`]: may this work request touch these bytes?
//! - [`tags`]: which receive a message with a tag is for.
//! - [`verbs`]: which verbs a transport has, and what their completions say.
//! - [`yielding`]: when a thread that polls in vain gives its core to others.

#![forbid(unsafe_code)]

pub mod flows;
pub mod qp_state;
pub mod retry;
pub mod rights;
pub mod tags;
pub mod verbs;
pub mod yielding;
