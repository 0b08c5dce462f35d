//! TCP sockets of unmodified programs over RDMA.
#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod address;
mod between_hosts;
mod conn;
mod connection_page;
mod cursors;
mod deep_stack;
#[allow(unsafe_code)]
mod destination;
#[allow(unsafe_code)]
mod epoll;
pub mod fork;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[allow(unsafe_code)]
pub mod iovec_cursor;
#[allow(unsafe_code)]
mod nic;
mod peer_lookup;
#[allow(unsafe_code)]
mod pipe;
#[allow(unsafe_code)]
mod poll;
pub mod program_calls;
pub use poll::SelectSets;
pub mod connection_stats;
mod descriptor_table;
mod ended_connection_totals;
#[allow(unsafe_code)]
mod mapped_words;
mod not_rdma_reason;
pub mod own_calls;
mod page_side;
mod parked_watches;
#[allow(unsafe_code)]
pub mod real_libc;
#[allow(unsafe_code)]
mod receiving;
mod remote_peer;
mod remove_stale_pages;
#[allow(unsafe_code)]
mod ring;
#[allow(unsafe_code)]
mod sending;
mod setup;
mod spin;
#[allow(unsafe_code)]
mod splice;
mod watched_connection;
mod watched_connections;
