//! Histories: what clients asked for and got, and when, kept so that [`lincheck`] can judge it.
//!
//! Each client writes a file of its own: a record before a request is sent, and one when its answer has been seen. A
//! record is one `write(2)`, so a client that is killed leaves all that it sent; a request without an answer has an
//! unknown outcome. Times are those of `CLOCK_MONOTONIC`, which all processes of a host share.

mod client;
mod file;
mod verdict;

pub use client::{Plan, ask};
pub use file::{HistoryError, Recorder};
pub use verdict::{History, Verdict};
