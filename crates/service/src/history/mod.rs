//! Histories: the requests of concurrent clients, their answers and their times, recorded for a
//! check by [`lincheck`].
//!
//! The objects are numbered registers, such as the keys of a store. Each client has a [`HistoryRecorder`],
//! which writes its own file: a record before a request is sent, and a record when its answer has
//! been received. Each record is one `write(2)`, so a killed client leaves records of all requests
//! that it sent. A request without an answer has an unknown outcome. Times are those of
//! `CLOCK_MONOTONIC`, which all processes of a host share. [`KeyHistories::read`] merges the files of a
//! folder, and [`KeyHistories::check`] checks them.
//!
//! ```
//! use service::history::{KeyHistories, HistoryRecorder};
//! use lincheck::{RegisterAction, WriteCondition, OperationOutcome};
//!
//! let folder = tempfile::tempdir()?;
//! let mut client = HistoryRecorder::create(folder.path(), 1)?;
//! let put = client.record_call(7, RegisterAction::Write { value: 55, condition: WriteCondition::Always })?;
//! client.record_answer(put, OperationOutcome::Done { version: 1 })?;
//! let get = client.record_call(7, RegisterAction::Read)?;
//! client.record_answer(get, OperationOutcome::Absent)?;
//!
//! let verdict = KeyHistories::read(folder.path())?.check();
//! assert!(!verdict.is_linearizable());
//! println!("{}", verdict.violations[0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod file;
mod verdict;

pub use file::{HistoryError, HistoryRecorder, ScanFault, recorded_operation_count};
pub use verdict::{HistoryVerdict, KeyHistories};
