//! The state file records which numbers may have been given, so that a restarted server gives none of them again.
//!
//! The file has one record of 64 bytes: every number below its value may have been given. Before the server gives a
//! number that is not below this value, it writes a higher value to a temporary file and calls `fsync`. Then it renames
//! the file, and calls `fsync` on the directory. So the file always has the complete old or the complete new record. A
//! kill -9 at any moment skips at most the reserved numbers.
//!
//! | bytes | meaning |
//! |---|---|
//! | 0..16 | `verbatim-seq-st\n` |
//! | 16..24 | version, 1, little-endian |
//! | 24..32 | numbers below this may have been given, little-endian |
//! | 32..40 | FNV-1a of the bytes before, little-endian |
//! | 40..64 | zero |
//!
//! A lock on `FILE.lock` keeps two servers from sharing a file.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 16] = b"verbatim-seq-st\n";
const VERSION: u64 = 1;
const RECORD_BYTES: usize = 64;

/// An open, locked state file.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    lowest_unreserved_number: u64,
    _lock: File,
}

/// The reason why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The file is not a state file, or is damaged.
    #[error(
        "{path} is no usable state file: {what}. Restore it from a backup, or move it away and start with \
         --start above every number that was ever given"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The defect.
        what: String,
    },
    /// Another server uses the file.
    #[error("{path} is in use by another server: stop that one, or give this one another --state")]
    Locked {
        /// The file.
        path: PathBuf,
    },
}

impl StateFile {
    /// Opens the file and locks it. If the file does not exist, numbers start from `start`.
    pub fn open(path: &Path, start: u64) -> Result<Self, StateError> {
        let io = |source| StateError::Io {
            path: path.to_owned(),
            source,
        };
        let lock = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(sibling_path(path, ".lock"))
            .map_err(io)?;
        match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(StateError::Locked {
                    path: path.to_owned(),
                });
            }
            Err(e) => return Err(io(e.into())),
        }
        let next = match File::open(path) {
            Ok(mut file) => {
                let mut bytes = Vec::new();
                Read::take(&mut file, RECORD_BYTES as u64 + 1)
                    .read_to_end(&mut bytes)
                    .map_err(io)?;
                decode(&bytes)
                    .map_err(|what| StateError::Foreign {
                        path: path.to_owned(),
                        what,
                    })?
                    .max(start)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => start,
            Err(e) => return Err(io(e)),
        };
        Ok(Self {
            path: path.to_owned(),
            lowest_unreserved_number: next,
            _lock: lock,
        })
    }

    /// Returns the lowest number that may be given.
    pub fn lowest_unreserved_number(&self) -> u64 {
        self.lowest_unreserved_number
    }

    /// Records durably that numbers below `next` may have been given.
    pub fn reserve_below(&mut self, next: u64) -> Result<(), StateError> {
        if next <= self.lowest_unreserved_number && self.path.exists() {
            return Ok(());
        }
        let next = next.max(self.lowest_unreserved_number);
        self.write(next).map_err(|source| StateError::Io {
            path: self.path.clone(),
            source,
        })?;
        self.lowest_unreserved_number = next;
        Ok(())
    }

    fn write(&self, next: u64) -> io::Result<()> {
        let temporary = sibling_path(&self.path, ".new");
        let mut file = File::create(&temporary)?;
        file.write_all(&encode(next))?;
        file.sync_all()?;
        std::fs::rename(&temporary, &self.path)?;
        let directory = self
            .path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        File::open(directory)?.sync_all()
    }
}

fn sibling_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn encode(next: u64) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..16].copy_from_slice(MAGIC);
    record[16..24].copy_from_slice(&VERSION.to_le_bytes());
    record[24..32].copy_from_slice(&next.to_le_bytes());
    let sum = fnv1a(&record[..32]);
    record[32..40].copy_from_slice(&sum.to_le_bytes());
    record
}

fn decode(bytes: &[u8]) -> Result<u64, String> {
    let Ok(record) = <&[u8; RECORD_BYTES]>::try_from(bytes) else {
        return Err(format!(
            "it has {} bytes instead of {RECORD_BYTES}",
            if bytes.len() > RECORD_BYTES {
                "more".into()
            } else {
                bytes.len().to_string()
            }
        ));
    };
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| record[at + i]));
    if &record[..16] != MAGIC {
        return Err("it does not start as one".to_owned());
    }
    if word(16) != VERSION {
        return Err(format!(
            "its version is {}, this server knows {VERSION}",
            word(16)
        ));
    }
    if word(32) != fnv1a(&record[..32]) || record[40..] != [0; RECORD_BYTES - 40] {
        return Err("its checksum is wrong".to_owned());
    }
    Ok(word(24))
}

/// Returns the 64-bit FNV-1a hash.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reserved_is_found_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state");
        let mut state = StateFile::open(&path, 5).expect("opens");
        assert_eq!(state.lowest_unreserved_number(), 5);
        state.reserve_below(1000).expect("writes");
        drop(state);
        assert_eq!(
            StateFile::open(&path, 5)
                .expect("opens")
                .lowest_unreserved_number(),
            1000
        );
        assert_eq!(
            StateFile::open(&path, 2000)
                .expect("opens")
                .lowest_unreserved_number(),
            2000
        );
    }

    #[test]
    fn two_servers_cannot_share_a_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state");
        let _first = StateFile::open(&path, 0).expect("opens");
        assert!(matches!(
            StateFile::open(&path, 0),
            Err(StateError::Locked { .. })
        ));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state");
        let good = encode(123_456);
        for bit in 0..RECORD_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bad).is_err(), "bit {bit}");
        }
        for len in (0..RECORD_BYTES).chain([RECORD_BYTES + 1]) {
            let mut bad = good.to_vec();
            bad.resize(len, 0);
            std::fs::write(&path, &bad).expect("writes");
            let e = StateFile::open(&path, 0).expect_err("refused");
            assert!(e.to_string().contains("no usable state file"), "{e}");
        }
    }

    #[test]
    fn a_directory_in_its_place_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("state");
        std::fs::create_dir(&path).expect("makes it");
        assert!(matches!(
            StateFile::open(&path, 0),
            Err(StateError::Io { .. })
        ));
    }
}
