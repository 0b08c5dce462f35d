//! A client that records its requests in a [`History`](service::history::KeyHistories), which is then checked for
//! linearizability.

mod client;

pub use client::{RecordingParameters, run_recording_client};
pub use service::history::{HistoryError, HistoryRecorder, HistoryVerdict, KeyHistories};
