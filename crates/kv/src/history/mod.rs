//! A client that records its requests in a [`History`](service::history::KeyHistories), which is then checked for
//! linearizability.

mod recording_client;

pub use recording_client::{RecordingParameters, run_recording_client};
pub use service::history::{HistoryError, HistoryRecorder, HistoryVerdict, KeyHistories};
