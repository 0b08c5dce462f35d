//! HERD RPC: requests are RDMA WRITEs into slots of a region that the server polls, responses are UD SENDs.
//!
//! # The request region
//!
//! Every client has `window` slots; request `k` (from 0 on) uses slot `k mod window`. A slot ends
//! with an aligned 8-byte word. The payload, padded to 8 bytes, precedes the word, so that a short
//! request is a short WRITE:
//!
//! | bits | meaning |
//! |---|---|
//! | 63..32 | `k + 1`, wrapping |
//! | 31..16 | payload length |
//! | 15..0 | a checksum of the payload |
//!
//! For each client, the server polls only the slot of the next request, and accepts the request if
//! its number is the expected one. NICs that write a message in address order write the word last,
//! but correctness does not depend on this order: the request counts as incomplete while payload
//! and checksum differ. A request without payload is a single word, which no NIC tears.
//!
//! A client of several workers has a part of each worker's region, and WRITEs to all of them
//! through one queue pair ([`Client::select_worker`]). The immediates of answers identify the worker
//! ([`WorkerTag`]).

mod client;
mod layout;
mod server;

use verbs::Capability;

pub use client::{Client, PreparedClient};
pub use layout::{RequestRegionLayout, WorkerTag, client_region};
pub use server::{BatchPolicy, ConnectedClient, RequestsPerClient, Server, connect_client};

/// Capabilities that HERD needs of a device.
pub const NEEDED_CAPABILITIES: &[Capability] =
    &[Capability::Uc, Capability::Ud, Capability::Immediates];
