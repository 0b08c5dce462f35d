//! Files of histories: records of 48 bytes, little-endian.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lincheck::{Operation, OperationEnd, OperationOutcome, RegisterAction, WriteCondition};
use rustix::time::{ClockId, clock_gettime};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::verdict::KeyHistories;

/// Number of the first record: "kv-hist" and a version.
const MAGIC: u64 = u64::from_le_bytes(*b"kv-hist\x01");

/// A record.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct HistoryRecord {
    kind: u64,
    /// Number of the request within the file; in the first record [`MAGIC`].
    operation_number: u64,
    at_ns: u64,
    /// Number of the key; in the first record the client's number.
    key_or_client_number: u64,
    /// Stamp of a value.
    value: u64,
    /// Version of a condition, or of an answer.
    version: u64,
}

const KIND_FILE_HEADER: u64 = 0;
const GET: u64 = 1;
const PUT: u64 = 2;
const PUT_ABSENT: u64 = 3;
const PUT_PRESENT: u64 = 4;
const PUT_VERSION: u64 = 5;
const DELETE: u64 = 6;
const DELETE_VERSION: u64 = 7;
const SCAN: u64 = 8;
const ANSWER_VALUE: u64 = 16;
const ANSWER_ABSENT: u64 = 17;
const ANSWER_DONE: u64 = 18;
const ANSWER_REFUSED: u64 = 19;
/// The request had no effect, because the store had no room.
const ANSWER_NO_ROOM: u64 = 20;
/// The answer's value is not the key's, or incomplete.
const ANSWER_WRONG_VALUE: u64 = 21;
/// A value from a store that reports no versions.
const ANSWER_UNVERSIONED_VALUE: u64 = 22;
/// Answer to a change: `value` is 1 if the key existed before the change, otherwise 0.
const ANSWER_UNVERSIONED_CHANGE: u64 = 23;
/// A scan was out of order or incomplete: `value` is the entry, `version` the [`ScanFault`].
const ANSWER_WRONG_SCAN: u64 = 24;

/// Fault of a scan at an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanFault {
    /// An entry that existed all the time is missing.
    Missing = 1,
    /// An entry occurred twice, or after a greater entry.
    OutOfOrderOrTwice = 2,
    /// An entry is outside of the scan's range, or was never written.
    Foreign = 3,
    /// An entry has another value than the one that it had all the time.
    WrongValue = 4,
}

impl ScanFault {
    /// Describes a fault in words.
    fn describe(code: u64, entry: u64) -> Option<String> {
        Some(match code {
            1 => format!("misses {entry:#x}, which was there all the time"),
            2 => format!("has {entry:#x} twice, or behind a greater one"),
            3 => format!("has {entry:#x}, which does not belong there"),
            4 => format!("has a wrong value at {entry:#x}, which nobody changed"),
            _ => return None,
        })
    }
}

/// Error of reading a history.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The system failed to read a file or folder.
    #[error("cannot read {path}: {source}")]
    Read {
        /// Path of the file or folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The folder has no history files.
    #[error("{0} holds no history; `--keep` of a check leaves some")]
    Empty(PathBuf),
    /// The file was not written by a [`HistoryRecorder`] of this version.
    #[error("{path} is no history of this version: record {record} is none")]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Index of the first invalid record, counted from 0.
        record: usize,
    },
}

/// Returns the number of operations in a folder to which clients still write, from the sizes of its files. An operation
/// without an answer counts half.
///
/// # Errors
/// When the folder or the size of a file cannot be read.
pub fn recorded_operation_count(folder: &Path) -> io::Result<u64> {
    let record_bytes = size_of::<HistoryRecord>() as u64;
    let mut operations = 0;
    for entry in fs::read_dir(folder)? {
        // The first record is none of an operation. The others are a request and an answer each.
        let records = entry?.metadata()?.len() / record_bytes;
        operations += records.saturating_sub(1) / 2;
    }
    Ok(operations)
}

/// Recorder of one client's history.
#[derive(Debug)]
pub struct HistoryRecorder {
    file: File,
    client_number: u64,
    next_operation_number: u64,
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let ns = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(ns).unwrap_or(0)
}

impl HistoryRecorder {
    /// Creates a file in a folder for the client with this number, which must be unique in the
    /// history.
    ///
    /// # Errors
    /// When the file cannot be created, or exists already.
    pub fn create(folder: &Path, client: u64) -> io::Result<Self> {
        let file = File::create_new(folder.join(format!("client-{client}")))?;
        let mut recorder = Self {
            file,
            client_number: client,
            next_operation_number: 0,
        };
        recorder.write(HistoryRecord {
            kind: KIND_FILE_HEADER,
            operation_number: MAGIC,
            key_or_client_number: client,
            ..HistoryRecord::default()
        })?;
        Ok(recorder)
    }

    /// Returns the client's number.
    pub fn client_number(&self) -> u64 {
        self.client_number
    }

    fn write(&mut self, record: HistoryRecord) -> io::Result<()> {
        self.file.write_all(record.as_bytes())
    }

    /// Records that a request for a key is about to be sent. Returns the request's number. All
    /// writes of a history must have different values.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn record_call(&mut self, key: u64, action: RegisterAction) -> io::Result<u64> {
        let (kind, value, version) = match action {
            RegisterAction::Read => (GET, 0, 0),
            RegisterAction::Scan => (SCAN, 0, 0),
            RegisterAction::Write { value, condition } => match condition {
                WriteCondition::Always => (PUT, value, 0),
                WriteCondition::Absent => (PUT_ABSENT, value, 0),
                WriteCondition::Present => (PUT_PRESENT, value, 0),
                WriteCondition::Version(version) => (PUT_VERSION, value, version),
            },
            RegisterAction::Remove { version: None } => (DELETE, 0, 0),
            RegisterAction::Remove { version: Some(v) } => (DELETE_VERSION, 0, v),
        };
        let number = self.next_operation_number;
        self.next_operation_number += 1;
        self.write(HistoryRecord {
            kind,
            operation_number: number,
            at_ns: now_ns(),
            key_or_client_number: key,
            value,
            version,
        })?;
        Ok(number)
    }

    /// Records that the answer to a request was received.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn record_answer(&mut self, number: u64, outcome: OperationOutcome) -> io::Result<()> {
        let (kind, value, version) = match outcome {
            OperationOutcome::FoundVersioned { value, version } => (ANSWER_VALUE, value, version),
            OperationOutcome::Absent => (ANSWER_ABSENT, 0, 0),
            OperationOutcome::Done { version } => (ANSWER_DONE, 0, version),
            OperationOutcome::Refused { version } => (ANSWER_REFUSED, 0, version),
            OperationOutcome::FoundUnversioned { value } => (ANSWER_UNVERSIONED_VALUE, value, 0),
            OperationOutcome::UnversionedChangeAnswer { found } => {
                (ANSWER_UNVERSIONED_CHANGE, u64::from(found), 0)
            }
        };
        self.append_answer_record(kind, number, value, version)
    }

    /// Records the answer that the store had no room, so the request changed nothing.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn record_no_room(&mut self, number: u64) -> io::Result<()> {
        self.append_answer_record(ANSWER_NO_ROOM, number, 0, 0)
    }

    /// Records an answer with a value that is not the key's, or incomplete. The history is wrong
    /// then.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn record_wrong_value(&mut self, number: u64, version: u64) -> io::Result<()> {
        self.append_answer_record(ANSWER_WRONG_VALUE, number, 0, version)
    }

    /// Records the answer to a scan, with a fault at this entry. The history is wrong then.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn record_wrong_scan(
        &mut self,
        number: u64,
        fault: ScanFault,
        entry: u64,
    ) -> io::Result<()> {
        self.append_answer_record(ANSWER_WRONG_SCAN, number, entry, fault as u64)
    }

    fn append_answer_record(
        &mut self,
        kind: u64,
        number: u64,
        value: u64,
        version: u64,
    ) -> io::Result<()> {
        self.write(HistoryRecord {
            kind,
            operation_number: number,
            at_ns: now_ns(),
            key_or_client_number: 0,
            value,
            version,
        })
    }
}

impl HistoryRecord {
    fn action(&self) -> Option<RegisterAction> {
        let write = |condition| RegisterAction::Write {
            value: self.value,
            condition,
        };
        Some(match self.kind {
            GET => RegisterAction::Read,
            SCAN => RegisterAction::Scan,
            PUT => write(WriteCondition::Always),
            PUT_ABSENT => write(WriteCondition::Absent),
            PUT_PRESENT => write(WriteCondition::Present),
            PUT_VERSION => write(WriteCondition::Version(self.version)),
            DELETE => RegisterAction::Remove { version: None },
            DELETE_VERSION => RegisterAction::Remove {
                version: Some(self.version),
            },
            _ => return None,
        })
    }

    fn outcome(&self) -> Option<OperationOutcome> {
        let (value, version) = (self.value, self.version);
        Some(match self.kind {
            ANSWER_VALUE => OperationOutcome::FoundVersioned { value, version },
            ANSWER_ABSENT => OperationOutcome::Absent,
            ANSWER_DONE => OperationOutcome::Done { version },
            ANSWER_REFUSED => OperationOutcome::Refused { version },
            ANSWER_UNVERSIONED_VALUE => OperationOutcome::FoundUnversioned { value },
            ANSWER_UNVERSIONED_CHANGE if value <= 1 => {
                OperationOutcome::UnversionedChangeAnswer { found: value == 1 }
            }
            _ => return None,
        })
    }
}

impl KeyHistories {
    /// Reads all files of a folder, one for each client.
    ///
    /// # Errors
    /// [`HistoryError`], when a file cannot be read or is not a history.
    pub fn read(folder: &Path) -> Result<Self, HistoryError> {
        let of = |path: &Path, source| HistoryError::Read {
            path: path.to_owned(),
            source,
        };
        let mut paths = Vec::new();
        for entry in fs::read_dir(folder).map_err(|e| of(folder, e))? {
            let path = entry.map_err(|e| of(folder, e))?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if name.is_some_and(|name| name.starts_with("client-")) {
                paths.push(path);
            }
        }
        if paths.is_empty() {
            return Err(HistoryError::Empty(folder.to_owned()));
        }
        paths.sort();
        let mut history = KeyHistories::default();
        for path in paths {
            let bytes = fs::read(&path).map_err(|e| of(&path, e))?;
            if let Err(record) = add_records(&bytes, &mut history) {
                return Err(HistoryError::Malformed { path, record });
            }
        }
        Ok(history)
    }
}

/// Adds the records of a file to the history. The error is the index of the first invalid record.
fn add_records(bytes: &[u8], history: &mut KeyHistories) -> Result<(), usize> {
    // The client was killed before it wrote its first record, so it sent no request.
    if bytes.is_empty() {
        return Ok(());
    }
    // A kill may cut off the last record; ignore an incomplete one.
    let records = bytes
        .chunks_exact(size_of::<HistoryRecord>())
        .map_while(|chunk| HistoryRecord::read_from_bytes(chunk).ok());
    let mut records = records.enumerate();
    let process = match records.next() {
        Some((_, first)) if (first.kind, first.operation_number) == (KIND_FILE_HEADER, MAGIC) => {
            first.key_or_client_number
        }
        _ => return Err(0),
    };
    let mut calls: HashMap<u64, (u64, Operation)> = HashMap::new();
    for (i, record) in records {
        if let Some(action) = record.action() {
            let operation = Operation {
                process,
                call_ns: record.at_ns,
                action,
                end: None,
            };
            if calls
                .insert(
                    record.operation_number,
                    (record.key_or_client_number, operation),
                )
                .is_some()
            {
                return Err(i);
            }
            continue;
        }
        let (key, mut operation) = calls.remove(&record.operation_number).ok_or(i)?;
        if record.at_ns < operation.call_ns {
            return Err(i);
        }
        match (record.outcome(), record.kind) {
            (Some(outcome), _) => {
                let at_ns = record.at_ns;
                operation.end = Some(OperationEnd { at_ns, outcome });
                history.operations_by_key.entry(key).or_default().push(operation);
            }
            (None, ANSWER_NO_ROOM) => {}
            (None, ANSWER_WRONG_VALUE) => history.observed_faults.push(format!(
                "key {key}: client {process} got a value of version {} that is not the key's, or not whole",
                record.version
            )),
            (None, ANSWER_WRONG_SCAN) => {
                let fault = ScanFault::describe(record.version, record.value).ok_or(i)?;
                history.observed_faults.push(format!("a scan of client {process} {fault}"));
            }
            _ => return Err(i),
        }
    }
    for (key, operation) in calls.into_values() {
        // A read without an answer gives no information.
        if !operation.action.is_read_only() {
            history
                .operations_by_key
                .entry(key)
                .or_default()
                .push(operation);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_without_versions_is_recorded_and_judged() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut one = HistoryRecorder::create(folder.path(), 1).expect("a file");
        let mut record = |action, outcome| {
            let number = one.record_call(7, action).expect("written");
            one.record_answer(number, outcome).expect("written");
        };
        let condition = WriteCondition::Absent;
        let insert = |value| RegisterAction::Write { value, condition };
        record(
            insert(1),
            OperationOutcome::UnversionedChangeAnswer { found: false },
        );
        record(
            insert(2),
            OperationOutcome::UnversionedChangeAnswer { found: true },
        );
        record(
            RegisterAction::Scan,
            OperationOutcome::FoundUnversioned { value: 1 },
        );
        record(
            RegisterAction::Remove { version: None },
            OperationOutcome::UnversionedChangeAnswer { found: true },
        );
        record(RegisterAction::Read, OperationOutcome::Absent);
        let verdict = KeyHistories::read(folder.path()).expect("read").check();
        assert!(verdict.is_linearizable(), "{verdict:?}");
        assert_eq!(verdict.operations, 5);
        assert_eq!(recorded_operation_count(folder.path()).expect("read"), 5);
        let scan = one.record_call(7, RegisterAction::Scan).expect("written");
        one.record_answer(scan, OperationOutcome::FoundUnversioned { value: 1 })
            .expect("written");
        let verdict = KeyHistories::read(folder.path()).expect("read").check();
        assert_eq!(verdict.violations.len(), 1, "{verdict:?}");
        let ghost = "SCAN -> 0x1   fits nowhere";
        assert!(verdict.violations[0].contains(ghost), "{verdict:?}");
    }

    #[test]
    fn what_is_recorded_is_read_and_judged() {
        let folder = tempfile::tempdir().expect("a folder");
        let empty = KeyHistories::read(folder.path()).expect_err("nothing there");
        assert!(matches!(empty, HistoryError::Empty(_)));
        let mut one = HistoryRecorder::create(folder.path(), 1).expect("a file");
        let mut two = HistoryRecorder::create(folder.path(), 2).expect("a file");
        let put = |value| RegisterAction::Write {
            value,
            condition: WriteCondition::Always,
        };
        let (first, second) = (one.record_call(7, put(1)).expect("written"), 1);
        one.record_answer(first, OperationOutcome::Done { version: 1 })
            .expect("written");
        assert_eq!(one.record_call(7, put(2)).expect("written"), second);
        let read = two.record_call(7, RegisterAction::Read).expect("written");
        let found = OperationOutcome::FoundVersioned {
            value: 2,
            version: 2,
        };
        two.record_answer(read, found).expect("written");
        let full = two.record_call(8, put(9)).expect("written");
        two.record_no_room(full).expect("written");
        // Empty file, as of a client that was killed right after creating it.
        File::create_new(folder.path().join("client-3000")).expect("a file");
        // Record that a kill has cut off.
        two.file.write_all(&[1; 20]).expect("written");
        let verdict = KeyHistories::read(folder.path()).expect("read").check();
        assert!(verdict.is_linearizable(), "{verdict:?}");
        assert_eq!(
            (verdict.keys, verdict.operations, verdict.unknown_outcomes),
            (1, 3, 1)
        );

        let mut three = HistoryRecorder::create(folder.path(), 3).expect("a file");
        let read = three.record_call(7, RegisterAction::Read).expect("written");
        let stale = OperationOutcome::FoundVersioned {
            value: 1,
            version: 1,
        };
        three.record_answer(read, stale).expect("written");
        let read = three.record_call(9, RegisterAction::Read).expect("written");
        three.record_wrong_value(read, 5).expect("written");
        let scan = three.record_call(9, RegisterAction::Scan).expect("written");
        three
            .record_wrong_scan(scan, ScanFault::Missing, 0x700)
            .expect("written");
        let verdict = KeyHistories::read(folder.path()).expect("read").check();
        let parts = ["not whole", "misses 0x700", "GET -> 0x1, version 1"];
        assert_eq!(verdict.violations.len(), parts.len(), "{verdict:?}");
        for (violation, part) in verdict.violations.iter().zip(parts) {
            assert!(violation.contains(part), "{violation}");
        }

        // Answer with a time before its request.
        let other = tempfile::tempdir().expect("a folder");
        let mut four = HistoryRecorder::create(other.path(), 4).expect("a file");
        let read = four.record_call(7, RegisterAction::Read).expect("written");
        let early = HistoryRecord {
            kind: ANSWER_ABSENT,
            operation_number: read,
            ..HistoryRecord::default()
        };
        four.write(early).expect("written");
        let e = KeyHistories::read(other.path()).expect_err("no history");
        assert!(matches!(e, HistoryError::Malformed { record: 2, .. }));

        fs::write(folder.path().join("client-4"), [0; 48]).expect("written");
        let e = KeyHistories::read(folder.path()).expect_err("no history");
        assert!(matches!(e, HistoryError::Malformed { record: 0, .. }));
    }
}
