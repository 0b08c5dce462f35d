//! Sockets over RDMA, as C functions: `rsocket(7)`. Each corresponds to the system call without the leading `r`.
//!
//! # Safety
//! As for the C functions: pointers are NULL or valid as the man page requires.
#![allow(
    clippy::missing_safety_doc,
    reason = "the module says it for all of them, and the man page for each"
)]

mod connections;
mod edge;
mod iomap;
mod options;
mod poll;
mod send_and_recv;

pub use connections::*;
pub use iomap::*;
pub use options::*;
pub use poll::*;
pub use send_and_recv::*;
