//! Sockets over RDMA, as C functions: `rsocket(7)`. Each is what the system call without the `r` is to sockets.
//!
//! # Safety
//! As for the C functions: pointers to arguments are NULL or valid for what the man page says.
#![allow(
    clippy::missing_safety_doc,
    reason = "the module says it for all of them, and the man page for each"
)]

mod connections;
mod data;
mod edge;
mod mapped;
mod options;
mod poll;

pub use connections::*;
pub use data::*;
pub use mapped::*;
pub use options::*;
pub use poll::*;
