//! HERD RPC: requests are RDMA WRITEs into slots of a region that the server polls, responses are UD SENDs.
//!
//! # The request region
//!
//! Every client has `window` slots; request `k` (from 0 on) goes to slot `k mod window`. At the end of a slot is an
//! aligned 8-byte word, and the payload, padded to 8 bytes, lies before it, so that a short request is a short WRITE:
//!
//! | bits | meaning |
//! |---|---|
//! | 63..32 | `k + 1`, wrapping |
//! | 31..16 | payload length |
//! | 15..0 | a checksum of the payload |
//!
//! The server looks only at the slot of the next request of each client, and takes it when the number is
//! the one it expects. NICs that write a message in address order make the word arrive last. Nothing here
//! relies on it: while payload and checksum differ the request counts as not there yet. A request without
//! payload is that one word, which no NIC tears.
//!
//! A client of several workers has such a part of each one's region, and WRITEs to all of them through one queue pair
//! ([`Client::select`]). The immediates of answers tell it the worker ([`Tag`]).

mod client;
mod layout;
mod server;

use verbs::Capability;

pub use client::{Client, PreparedClient};
pub use layout::{Layout, Tag, region_of};
pub use server::{Connected, Doorbells, Scan, Server, connect_client};

/// Capabilities that HERD needs of a device.
pub const NEEDS: &[Capability] = &[Capability::Uc, Capability::Ud, Capability::Immediates];
