//! The ledger: a document with the verbs that the processes of a command have called.

use std::fs;
use std::io;
use std::path::Path;

use nicmodel::op_profile::{OpProfileError, OperationProfile};
use serde::{Deserialize, Serialize};

use crate::mapped_counter_file::COUNTER_FILE_EXTENSION;
use crate::read::{self, ReadError};

/// The version of the ledger document that this crate reads and writes.
pub const LEDGER_VERSION: u32 = 2;

/// Value of [`Ledger::format`].
const LEDGER_FORMAT: &str = "verbatim ledger";

/// The verbs of a command's processes: a JSON document that can be kept and compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// Type of the document: always `verbatim ledger`.
    pub format: String,
    /// Version of the document: [`LEDGER_VERSION`].
    pub version: u32,
    /// Command line of the command.
    pub command: String,
    /// Provider that the command used: `softnic` or `system`; empty if it used none.
    pub provider: String,
    /// Processes of the command that opened an RDMA device, in the order in which they began to use it.
    pub processes: Vec<OperationProfile>,
    /// Cache lines that the processor counted on PCIe while the command ran, for all devices of the
    /// machine; `None` if they were not counted.
    #[serde(default)]
    pub pcie: Option<PcieLines>,
    /// Notes on data that is missing from the ledger.
    pub notes: Vec<String>,
}

/// Cache lines that PCIe devices transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieLines {
    /// Number of lines that devices read from memory (PCIeRdCur).
    pub rd_cur: u64,
    /// Number of lines that devices wrote to memory (ItoM).
    pub itom: u64,
}

/// The reason why a text is not a ledger.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LedgerError {
    /// The text is not JSON, or its JSON does not have the structure of a ledger.
    #[error("it is no ledger; make one by --ledger FILE of verbatim run, sequencer or bench")]
    WrongForm(#[from] serde_json::Error),
    /// The text is JSON of another document.
    #[error(
        "it is JSON, but no ledger; make one by --ledger FILE of verbatim run, sequencer or bench"
    )]
    NotALedger,
    /// The ledger has another version.
    #[error(
        "it is a ledger of version {0}; this program reads version {LEDGER_VERSION}: record it again with \
         this one, or read it with the program that wrote it"
    )]
    WrongVersion(String),
    /// A process's numbers contradict each other.
    #[error("it contradicts itself: process {pid}")]
    InconsistentProfile {
        /// The process id of the process.
        pid: u32,
        /// The contradiction in the process's profile.
        source: OpProfileError,
    },
}

impl Ledger {
    /// Makes a ledger from the files that the processes of a command left in `folder`.
    ///
    /// The notes name invalid files, which do not affect the other files.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read.
    pub fn collect(folder: &Path, command: &str) -> io::Result<Self> {
        let mut ledger = Self {
            format: LEDGER_FORMAT.to_owned(),
            version: LEDGER_VERSION,
            command: command.to_owned(),
            provider: String::new(),
            processes: Vec::new(),
            pcie: None,
            notes: Vec::new(),
        };
        let mut files = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|e| e == COUNTER_FILE_EXTENSION)
            {
                files.push(path);
            }
        }
        files.sort();
        let mut recorded = Vec::new();
        for path in files {
            match read::read_counter_file(&path) {
                Ok(one) => recorded.push(one),
                // The process was killed before it had written the header of its file.
                Err(ReadError::NotACounterFile) => {
                    ledger
                        .notes
                        .push("a process ended before it was counted".to_owned());
                }
                Err(error) => ledger.notes.push(format!("{}: {error}", path.display())),
            }
        }
        recorded.sort_by_key(|one| one.first_use_ns);
        if let Some(one) = recorded.first() {
            ledger.provider.clone_from(&one.provider);
        }
        ledger.processes = recorded.into_iter().map(|one| one.profile).collect();
        Ok(ledger)
    }

    /// Parses the JSON text of a ledger.
    ///
    /// # Errors
    /// Returns the reason why the text is not a valid ledger.
    pub fn parse(text: &str) -> Result<Self, LedgerError> {
        let value: serde_json::Value = serde_json::from_str(text)?;
        let field = |name: &str| value.get(name);
        if field("format").and_then(|format| format.as_str()) != Some(LEDGER_FORMAT) {
            return Err(LedgerError::NotALedger);
        }
        match field("version") {
            Some(version) if version.as_u64() == Some(LEDGER_VERSION.into()) => {}
            Some(version) => return Err(LedgerError::WrongVersion(version.to_string())),
            None => return Err(LedgerError::NotALedger),
        }
        // Parse the text again, because the errors of this parser name line and column.
        let ledger: Self = serde_json::from_str(text)?;
        for process in &ledger.processes {
            process
                .check()
                .map_err(|source| LedgerError::InconsistentProfile {
                    pid: process.pid,
                    source,
                })?;
        }
        Ok(ledger)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use proptest::prelude::*;

    use super::*;

    fn ledger() -> Ledger {
        let text = r#"{"format": "verbatim ledger", "version": 2, "command": "a", "provider": "softnic",
            "processes": [], "notes": []}"#;
        Ledger::parse(text).expect("a ledger")
    }

    #[test]
    fn ledgers_are_read_back() {
        let text = serde_json::to_string(&ledger()).expect("JSON");
        assert_eq!(Ledger::parse(&text).expect("the same"), ledger());
    }

    #[test]
    fn what_is_none_is_refused_with_words() {
        let other = Ledger {
            version: 1,
            ..ledger()
        };
        let other = serde_json::to_string(&other).expect("JSON");
        let profile = OperationProfile {
            pid: 7,
            ..OperationProfile::default()
        };
        let contradicting = Ledger {
            processes: vec![profile],
            ..ledger()
        };
        let contradicting = serde_json::to_string(&contradicting).expect("JSON");
        for (text, words) in [
            ("", "no ledger"),
            ("{", "line 1"),
            ("[1]", "but no ledger"),
            ("{\"format\": \"x\"}", "but no ledger"),
            (&other, "version 1"),
            (&contradicting, "process 7"),
            (
                r#"{"format": "verbatim ledger", "version": 2}"#,
                "missing field",
            ),
        ] {
            let error = Ledger::parse(text).expect_err("no ledger");
            let source = error.source().map(ToString::to_string).unwrap_or_default();
            let message = format!("{error}: {source}");
            assert!(message.contains(words), "{text}: {message}");
            // A caller that prints an error and its sources would otherwise print the same text twice.
            let once = source.is_empty() || !error.to_string().contains(&source);
            assert!(once, "{text}: {message}");
        }
    }

    #[test]
    fn an_unreadable_file_is_named_and_the_others_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("1.tap"), b"garbage").expect("written");
        fs::write(folder.path().join("notes.txt"), b"something else").expect("written");
        let ledger = Ledger::collect(folder.path(), "program").expect("read");
        assert_eq!((ledger.processes.len(), ledger.notes.len()), (0, 1));
    }

    proptest! {
        #[test]
        fn truncated_and_damaged_documents_are_refused_without_a_panic(cut in 0usize..200, at in 0usize..200, byte in 32u8..127) {
            let text = serde_json::to_string(&ledger()).expect("JSON");
            prop_assert!(Ledger::parse(&text[..cut.min(text.len() - 1)]).is_err());
            let mut damaged = text.into_bytes();
            let at = at % damaged.len();
            damaged[at] = byte;
            let _ = Ledger::parse(&String::from_utf8(damaged).expect("ASCII"));
        }
    }
}
