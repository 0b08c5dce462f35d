//! A client whose requests are recorded, so that its [`History`] can be judged.

mod client;

pub use client::{Plan, ask};
pub use service::history::{History, HistoryError, Recorder, Verdict};
