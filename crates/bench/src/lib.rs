//! The verbs microbenchmarks, compared with their peers.
//!
//! A benchmark is two processes pinned to two cores. The *driver* posts and measures. The *worker*
//! is the other end, the same program started again. They agree on the measurement over a pipe
//! ([`link`]) and exchange real verbs. Only work that the receiving end has checked is counted.
//! - [`goal`]: the rows, their peers, and their goals;
//! - [`run`]: the interleaved rounds and their summary, with near and far cores apart; [`run_circumstances`]:
//!   the circumstances of a run;
//! - [`message_time_breakdown`]: the breakdown of a message's time;
//! - [`micro`]: one verb at a time with every parameter, and the same on two NICs;
//! - `rows`: this project's side of every row, mostly parameters of the microbenchmarks;
//! - [`events`]: round trips between processes that sleep, compared with sockets;
//! - [`calibrate`]: a profile of a NIC from measurements;
//! - [`simulated`]: the verbs and the systems on a simulated cluster, in virtual time;
//! - [`collective`]: collectives over a ring of threads;
//! - [`crowd`]: many polling processes on two cores;
//! - [`depth`]: requests and responses of a storage target, at several depths;
//! - [`core_pinning`], [`cache_line_bounce`]: the choice of cores, and their distance;
//! - [`guidelines`]: for each design guideline a program that breaks it and one that keeps it;
//! - [`peers`]: UCX, Redis, LMDB behind TCP, plain copies, bare rings, plain UDP and TCP between
//!   processes;
//! - [`resource_usage`]: CPU time and memory of a process;
//! - [`worker`], [`link`]: the worker process and the connection to it; [`remote`]: a worker on
//!   another host;
//! - [`open_nic`]: the NIC that is measured.
//!
//! Results are medians of interleaved rounds with their spread ([`stats`]).

#![deny(unsafe_code)]

pub mod cache_line_bounce;
pub mod calibrate;
mod child;
mod clock;
pub mod collective;
mod connect;
pub mod core_pinning;
pub mod crowd;
pub mod depth;
pub mod events;
pub mod goal;
pub mod guidelines;
mod job;
pub mod link;
pub mod message_time_breakdown;
pub mod micro;
mod one_core_phases;
pub mod open_nic;
pub mod peers;
mod poll_timeout;
pub mod probe;
pub mod remote;
pub mod resource_usage;
mod rows;
pub mod run;
pub mod run_circumstances;
mod setup;
pub mod simulated;
pub mod stats;
mod summary;
pub mod worker;
