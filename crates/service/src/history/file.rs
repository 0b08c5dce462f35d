//! Files of histories: records of 48 bytes, little-endian.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use lincheck::{Action, Condition, End, Operation, Outcome};
use rustix::time::{ClockId, clock_gettime};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::verdict::History;

/// What the first record's number says: "kv-hist" and a version.
const MAGIC: u64 = u64::from_le_bytes(*b"kv-hist\x01");

/// A record.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Record {
    kind: u64,
    /// Of the request, within the file; of the first record [`MAGIC`].
    number: u64,
    at_ns: u64,
    /// The key's number; of the first record the client's.
    key: u64,
    /// The stamp of a value.
    value: u64,
    /// The version of a condition, or of an answer.
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
/// It did not happen: there was no room for it.
const NOTHING: u64 = 20;
/// A value came that is not the key's, or not whole.
const WRONG: u64 = 21;
/// The value of a store that tells no versions.
const FOUND: u64 = 22;
/// Whether there was something before a change: 1 or 0 in `value`.
const CHANGED: u64 = 23;
/// A scan was out of order, or not complete: `value` is the entry, `version` says how.
const WRONG_SCAN: u64 = 24;

/// What is wrong with a scan at an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanFault {
    /// An entry was there all the time and did not come.
    Missing = 1,
    /// An entry came twice, or behind a greater one.
    Order = 2,
    /// An entry came that is not in the range of the scan, or that nobody put there.
    Foreign = 3,
    /// An entry came with another value than it has all the time.
    Value = 4,
}

impl ScanFault {
    /// A sentence about it.
    fn told(code: u64, entry: u64) -> Option<String> {
        Some(match code {
            1 => format!("misses {entry:#x}, which was there all the time"),
            2 => format!("has {entry:#x} twice, or behind a greater one"),
            3 => format!("has {entry:#x}, which does not belong there"),
            4 => format!("has a wrong value at {entry:#x}, which nobody changed"),
            _ => return None,
        })
    }
}

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// The system refused.
    #[error("cannot read {path}: {source}")]
    Read {
        /// What.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no file in the folder.
    #[error("{0} holds no history; `--keep` of a check leaves some")]
    Empty(PathBuf),
    /// Not a file that a [`Recorder`] wrote.
    #[error("{path} is no history of this version: record {record} is none")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The first record that is none, from 0 on.
        record: usize,
    },
}

/// Writes the history of a client.
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
    /// A new file in a folder for the client of this number, which no other client of the history has.
    ///
    /// # Errors
    /// When it cannot be made, or is there already.
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

    /// The client's number.
    pub fn client(&self) -> u64 {
        self.client
    }

    fn write(&mut self, record: Record) -> io::Result<()> {
        self.file.write_all(record.as_bytes())
    }

    /// A request for a key is going to be sent. Returns the request's number. No two writes of a history have the same value.
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

    /// The answer to a request has been seen.
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

    /// The answer to a request has been seen: there was no room, so nothing was changed.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn full(&mut self, number: u64) -> io::Result<()> {
        self.end(NOTHING, number, 0, 0)
    }

    /// The answer to a request has been seen, with a value that is not the key's, or not whole. The history is wrong then.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn wrong(&mut self, number: u64, version: u64) -> io::Result<()> {
        self.end(WRONG, number, 0, version)
    }

    /// The answer to a scan has been seen, with a fault at this entry. The history is wrong then.
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
    /// Reads all files of a folder: one for each client.
    ///
    /// # Errors
    /// [`HistoryError`], when a file cannot be read or is no history.
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

/// Adds what a file says; the number of a record that is none.
fn add(bytes: &[u8], history: &mut History) -> Result<(), usize> {
    // Killed before it said who it is: it asked for nothing.
    if bytes.is_empty() {
        return Ok(());
    }
    // What is behind the last whole record was cut by a kill.
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
                let told = ScanFault::told(record.version, record.value).ok_or(i)?;
                history.wrong.push(format!("a scan of client {process} {told}"));
            }
            _ => return Err(i),
        }
    }
    for (key, operation) in calls.into_values() {
        // A read that nobody saw the answer of says nothing.
        if !operation.action.looks() {
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
        // A client that was killed when its file was just made.
        File::create_new(folder.path().join("client-3000")).expect("a file");
        // A record that a kill has cut.
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

        // An answer that came before it was asked for.
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
