//! TCP sockets of unmodified programs over RDMA.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod address;
mod between_hosts;
pub mod calls;
mod conn;
mod cursors;
#[allow(unsafe_code)]
mod destination;
#[allow(unsafe_code)]
mod epoll;
pub mod fork;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[allow(unsafe_code)]
pub mod iovec_cursor;
mod lookup;
#[allow(unsafe_code)]
mod nic;
mod page;
#[allow(unsafe_code)]
mod pipe;
#[allow(unsafe_code)]
mod poll;
pub use poll::Sets;
#[allow(unsafe_code)]
pub mod real;
mod reason;
mod remote;
#[allow(unsafe_code)]
mod ring;
#[allow(unsafe_code)]
mod sending;
mod setup;
mod side;
mod spin;
#[allow(unsafe_code)]
mod splice;
mod stale;
pub mod stat;
#[allow(unsafe_code)]
mod stream;
mod table;
mod totals;
mod watch;
#[allow(unsafe_code)]
mod words;
