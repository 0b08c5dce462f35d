//! The verbs microbenchmarks, side by side with their peers.
//!
//! A benchmark is two processes pinned to two cores: the *driver* posts and measures, the *worker*
//! is the other end (the same program, started again). They agree on what to do over a pipe
//! ([`link`]), exchange real verbs, and count only work that the receiving end has checked.
//!
//! - [`goal`]: the rows, their peers, and what is wanted of them;
//! - [`run`]: the interleaved rounds and their summary, near and far cores apart; [`record`]: the circumstances;
//! - [`breakdown`]: where the time of a message goes;
//! - [`micro`]: one verb at a time with every knob, and the same on two NICs side by side;
//! - `rows`: our side of every row: most are settings of the microbenchmarks;
//! - [`events`]: round trips between processes that sleep, beside sockets;
//! - [`calibrate`]: a profile of a NIC from measurements;
//! - [`simulated`]: the verbs and the systems on a simulated cluster, in virtual time;
//! - [`collective`]: collectives over a ring of threads;
//! - [`crowd`]: many polling processes on two cores;
//! - [`depth`]: requests and responses of a storage target, at several depths;
//! - [`pin`], [`bounce`]: which cores, and how far apart they are;
//! - [`guidelines`]: for each design guideline a program that breaks it and one that keeps it;
//! - [`peers`]: UCX, Redis, LMDB behind TCP, plain copies, bare rings, plain UDP and TCP between processes;
//! - [`usage`]: CPU time and memory of a process;
//! - [`worker`], [`link`]: the other process; [`remote`]: on another host;
//! - [`nic`]: the NIC that is measured.
//!
//! Results are medians of interleaved rounds with their spread ([`stats`]).

#![deny(unsafe_code)]

pub mod bounce;
pub mod breakdown;
pub mod calibrate;
mod child;
mod clock;
pub mod collective;
mod connect;
pub mod crowd;
pub mod depth;
pub mod events;
pub mod goal;
pub mod guidelines;
mod job;
pub mod link;
pub mod micro;
pub mod nic;
mod patience;
pub mod peers;
mod phases;
pub mod pin;
pub mod probe;
pub mod record;
pub mod remote;
mod rows;
pub mod run;
mod setup;
pub mod simulated;
pub mod stats;
mod summary;
pub mod usage;
pub mod worker;
