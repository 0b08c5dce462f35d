//! Files of histories: records of 48 bytes, little-endian.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lincheck::{Action, Condition, End, Operation, Outcome};
use rustix::time::{ClockId, clock_gettime};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::verdict::History;

/// Number of the first record: "kv-hist" and a version.
const MAGIC: u64 = u64::from_le_bytes(*b"kv-hist\x01");

/// A record.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Record {
    kind: u64,
    /// Number of the request within the file; in the first record [`MAGIC`].
    number: u64,
    at_ns: u64,
    /// Number of the key; in the first record the client's number.
    key: u64,
    /// Stamp of a value.
    value: u64,
    /// Version of a condition, or of an answer.
    version: u64,
}

const CLIENT: u64 = 0;
const GET: u64 = 1;
const PUT: u64 = 2;
const PUT_ABSENT: u64 = 3;
const PUT_PRESENT: u64 = 4;
const PUT_VERSION: u64 = 5;
const DELETE: u64 = 6;
const DELETE_VERSION: u64 = 7;
const SCAN: u64 = 8;
const VALUE: u64 = 16;
const ABSENT: u64 = 17;
const DONE: u64 = 18;
const REFUSED: u64 = 19;
/// The request had no effect, because the store had no room.
const NOTHING: u64 = 20;
/// The answer's value is not the key's, or incomplete.
const WRONG: u64 = 21;
/// A value from a store that reports no versions.
const FOUND: u64 = 22;
/// Answer to a change: `value` is 1 if the key existed before the change, otherwise 0.
const CHANGED: u64 = 23;
/// A scan was out of order or incomplete: `value` is the entry, `version` the [`ScanFault`].
const WRONG_SCAN: u64 = 24;

/// Fault of a scan at an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanFault {
    /// An entry that existed all the time is missing.
    Missing = 1,
    /// An entry occurred twice, or after a greater entry.
    Order = 2,
    /// An entry is outside of the scan's range, or was never written.
    Foreign = 3,
    /// An entry has another value than the one that it had all the time.
    Value = 4,
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
    /// The file was not written by a [`Recorder`] of this version.
    #[error("{path} is no history of this version: record {record} is none")]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Index of the first invalid record, counted from 0.
        record: usize,
    },
}

/// Recorder of one client's history.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    client: u64,
    next: u64,
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let ns = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(ns).unwrap_or(0)
}

impl Recorder {
    /// Creates a file in a folder for the client with this number, which must be unique in the
    /// history.
    ///
    /// # Errors
    /// When the file cannot be created, or exists already.
    pub fn create(folder: &Path, client: u64) -> io::Result<Self> {
        let file = File::create_new(folder.join(format!("client-{client}")))?;
        let mut recorder = Self {
            file,
            client,
            next: 0,
        };
        recorder.write(Record {
            kind: CLIENT,
            number: MAGIC,
            key: client,
            ..Record::default()
        })?;
        Ok(recorder)
    }

    /// Returns the client's number.
    pub fn client(&self) -> u64 {
        self.client
    }

    fn write(&mut self, record: Record) -> io::Result<()> {
        self.file.write_all(record.as_bytes())
    }

    /// Records that a request for a key is about to be sent. Returns the request's number. All
    /// writes of a history must have different values.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn call(&mut self, key: u64, action: Action) -> io::Result<u64> {
        let (kind, value, version) = match action {
            Action::Read => (GET, 0, 0),
            Action::Scan => (SCAN, 0, 0),
            Action::Write { value, condition } => match condition {
                Condition::Always => (PUT, value, 0),
                Condition::Absent => (PUT_ABSENT, value, 0),
                Condition::Present => (PUT_PRESENT, value, 0),
                Condition::Version(version) => (PUT_VERSION, value, version),
            },
            Action::Remove { version: None } => (DELETE, 0, 0),
            Action::Remove { version: Some(v) } => (DELETE_VERSION, 0, v),
        };
        let number = self.next;
        self.next += 1;
        self.write(Record {
            kind,
            number,
            at_ns: now_ns(),
            key,
            value,
            version,
        })?;
        Ok(number)
    }

    /// Records that the answer to a request was received.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn answered(&mut self, number: u64, outcome: Outcome) -> io::Result<()> {
        let (kind, value, version) = match outcome {
            Outcome::Value { value, version } => (VALUE, value, version),
            Outcome::Absent => (ABSENT, 0, 0),
            Outcome::Done { version } => (DONE, 0, version),
            Outcome::Refused { version } => (REFUSED, 0, version),
            Outcome::Found { value } => (FOUND, value, 0),
            Outcome::Changed { found } => (CHANGED, u64::from(found), 0),
        };
        self.end(kind, number, value, version)
    }

    /// Records the answer that the store had no room, so the request changed nothing.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn full(&mut self, number: u64) -> io::Result<()> {
        self.end(NOTHING, number, 0, 0)
    }

    /// Records an answer with a value that is not the key's, or incomplete. The history is wrong
    /// then.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn wrong(&mut self, number: u64, version: u64) -> io::Result<()> {
        self.end(WRONG, number, 0, version)
    }

    /// Records the answer to a scan, with a fault at this entry. The history is wrong then.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn wrong_scan(&mut self, number: u64, fault: ScanFault, entry: u64) -> io::Result<()> {
        self.end(WRONG_SCAN, number, entry, fault as u64)
    }

    fn end(&mut self, kind: u64, number: u64, value: u64, version: u64) -> io::Result<()> {
        self.write(Record {
            kind,
            number,
            at_ns: now_ns(),
            key: 0,
            value,
            version,
        })
    }
}

impl Record {
    fn action(&self) -> Option<Action> {
        let write = |condition| Action::Write {
            value: self.value,
            condition,
        };
        Some(match self.kind {
            GET => Action::Read,
            SCAN => Action::Scan,
            PUT => write(Condition::Always),
            PUT_ABSENT => write(Condition::Absent),
            PUT_PRESENT => write(Condition::Present),
            PUT_VERSION => write(Condition::Version(self.version)),
            DELETE => Action::Remove { version: None },
            DELETE_VERSION => Action::Remove {
                version: Some(self.version),
            },
            _ => return None,
        })
    }

    fn outcome(&self) -> Option<Outcome> {
        let (value, version) = (self.value, self.version);
        Some(match self.kind {
            VALUE => Outcome::Value { value, version },
            ABSENT => Outcome::Absent,
            DONE => Outcome::Done { version },
            REFUSED => Outcome::Refused { version },
            FOUND => Outcome::Found { value },
            CHANGED if value <= 1 => Outcome::Changed { found: value == 1 },
            _ => return None,
        })
    }
}

impl History {
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
        let mut history = History::default();
        for path in paths {
            let bytes = fs::read(&path).map_err(|e| of(&path, e))?;
            if let Err(record) = add(&bytes, &mut history) {
                return Err(HistoryError::Malformed { path, record });
            }
        }
        Ok(history)
    }
}

/// Adds the records of a file to the history. The error is the index of the first invalid record.
fn add(bytes: &[u8], history: &mut History) -> Result<(), usize> {
    // The client was killed before it wrote its first record, so it sent no request.
    if bytes.is_empty() {
        return Ok(());
    }
    // A kill may cut off the last record; ignore an incomplete one.
    let records = bytes
        .chunks_exact(size_of::<Record>())
        .map_while(|chunk| Record::read_from_bytes(chunk).ok());
    let mut records = records.enumerate();
    let process = match records.next() {
        Some((_, first)) if (first.kind, first.number) == (CLIENT, MAGIC) => first.key,
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
                .insert(record.number, (record.key, operation))
                .is_some()
            {
                return Err(i);
            }
            continue;
        }
        let (key, mut operation) = calls.remove(&record.number).ok_or(i)?;
        if record.at_ns < operation.call_ns {
            return Err(i);
        }
        match (record.outcome(), record.kind) {
            (Some(outcome), _) => {
                let at_ns = record.at_ns;
                operation.end = Some(End { at_ns, outcome });
                history.keys.entry(key).or_default().push(operation);
            }
            (None, NOTHING) => {}
            (None, WRONG) => history.wrong.push(format!(
                "key {key}: client {process} got a value of version {} that is not the key's, or not whole",
                record.version
            )),
            (None, WRONG_SCAN) => {
                let fault = ScanFault::describe(record.version, record.value).ok_or(i)?;
                history.wrong.push(format!("a scan of client {process} {fault}"));
            }
            _ => return Err(i),
        }
    }
    for (key, operation) in calls.into_values() {
        // A read without an answer gives no information.
        if !operation.action.is_read_only() {
            history.keys.entry(key).or_default().push(operation);
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
        let mut one = Recorder::create(folder.path(), 1).expect("a file");
        let mut record = |action, outcome| {
            let number = one.call(7, action).expect("written");
            one.answered(number, outcome).expect("written");
        };
        let condition = Condition::Absent;
        let insert = |value| Action::Write { value, condition };
        record(insert(1), Outcome::Changed { found: false });
        record(insert(2), Outcome::Changed { found: true });
        record(Action::Scan, Outcome::Found { value: 1 });
        record(
            Action::Remove { version: None },
            Outcome::Changed { found: true },
        );
        record(Action::Read, Outcome::Absent);
        let verdict = History::read(folder.path()).expect("read").judge();
        assert!(verdict.is_linearizable(), "{verdict:?}");
        assert_eq!(verdict.operations, 5);
        let scan = one.call(7, Action::Scan).expect("written");
        one.answered(scan, Outcome::Found { value: 1 })
            .expect("written");
        let verdict = History::read(folder.path()).expect("read").judge();
        assert_eq!(verdict.violations.len(), 1, "{verdict:?}");
        let ghost = "SCAN -> 0x1   fits nowhere";
        assert!(verdict.violations[0].contains(ghost), "{verdict:?}");
    }

    #[test]
    fn what_is_recorded_is_read_and_judged() {
        let folder = tempfile::tempdir().expect("a folder");
        let empty = History::read(folder.path()).expect_err("nothing there");
        assert!(matches!(empty, HistoryError::Empty(_)));
        let mut one = Recorder::create(folder.path(), 1).expect("a file");
        let mut two = Recorder::create(folder.path(), 2).expect("a file");
        let put = |value| Action::Write {
            value,
            condition: Condition::Always,
        };
        let (first, second) = (one.call(7, put(1)).expect("written"), 1);
        one.answered(first, Outcome::Done { version: 1 })
            .expect("written");
        assert_eq!(one.call(7, put(2)).expect("written"), second);
        let read = two.call(7, Action::Read).expect("written");
        let found = Outcome::Value {
            value: 2,
            version: 2,
        };
        two.answered(read, found).expect("written");
        let full = two.call(8, put(9)).expect("written");
        two.full(full).expect("written");
        // Empty file, as of a client that was killed right after creating it.
        File::create_new(folder.path().join("client-3000")).expect("a file");
        // Record that a kill has cut off.
        two.file.write_all(&[1; 20]).expect("written");
        let verdict = History::read(folder.path()).expect("read").judge();
        assert!(verdict.is_linearizable(), "{verdict:?}");
        assert_eq!(
            (verdict.keys, verdict.operations, verdict.unknown),
            (1, 3, 1)
        );

        let mut three = Recorder::create(folder.path(), 3).expect("a file");
        let read = three.call(7, Action::Read).expect("written");
        let stale = Outcome::Value {
            value: 1,
            version: 1,
        };
        three.answered(read, stale).expect("written");
        let read = three.call(9, Action::Read).expect("written");
        three.wrong(read, 5).expect("written");
        let scan = three.call(9, Action::Scan).expect("written");
        three
            .wrong_scan(scan, ScanFault::Missing, 0x700)
            .expect("written");
        let verdict = History::read(folder.path()).expect("read").judge();
        let parts = ["not whole", "misses 0x700", "GET -> 0x1, version 1"];
        assert_eq!(verdict.violations.len(), parts.len(), "{verdict:?}");
        for (violation, part) in verdict.violations.iter().zip(parts) {
            assert!(violation.contains(part), "{violation}");
        }

        // Answer with a time before its request.
        let other = tempfile::tempdir().expect("a folder");
        let mut four = Recorder::create(other.path(), 4).expect("a file");
        let read = four.call(7, Action::Read).expect("written");
        let early = Record {
            kind: ABSENT,
            number: read,
            ..Record::default()
        };
        four.write(early).expect("written");
        let e = History::read(other.path()).expect_err("no history");
        assert!(matches!(e, HistoryError::Malformed { record: 2, .. }));

        fs::write(folder.path().join("client-4"), [0; 48]).expect("written");
        let e = History::read(folder.path()).expect_err("no history");
        assert!(matches!(e, HistoryError::Malformed { record: 0, .. }));
    }
}
