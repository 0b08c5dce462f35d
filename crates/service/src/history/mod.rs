//! Histories: the requests of concurrent clients, their answers and their times, recorded for a
//! check by [`lincheck`].
//!
//! The objects are numbered registers, such as the keys of a store. Each client has a [`Recorder`],
//! which writes its own file: a record before a request is sent, and a record when its answer has
//! been received. Each record is one `write(2)`, so a killed client leaves records of all requests
//! that it sent. A request without an answer has an unknown outcome. Times are those of
//! `CLOCK_MONOTONIC`, which all processes of a host share. [`History::read`] merges the files of a
//! folder, and [`History::judge`] checks them.
//!
//! ```
//! use service::history::{History, Recorder};
//! use lincheck::{Action, Condition, Outcome};
//!
//! let folder = tempfile::tempdir()?;
//! let mut client = Recorder::create(folder.path(), 1)?;
//! let put = client.call(7, Action::Write { value: 55, condition: Condition::Always })?;
//! client.answered(put, Outcome::Done { version: 1 })?;
//! let get = client.call(7, Action::Read)?;
//! client.answered(get, Outcome::Absent)?;
//!
//! let verdict = History::read(folder.path())?.judge();
//! assert!(!verdict.is_linearizable());
//! println!("{}", verdict.violations[0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod file;
mod verdict;

pub use file::{HistoryError, Recorder, ScanFault};
pub use verdict::{History, Verdict};
