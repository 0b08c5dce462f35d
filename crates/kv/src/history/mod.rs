//! A client that records its requests in a [`History`], which is then checked for linearizability.

mod client;

pub use client::{Plan, ask};
pub use service::history::{History, HistoryError, Recorder, Verdict};
