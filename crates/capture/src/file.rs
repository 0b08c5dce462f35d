//! Files in the format of pcap that several processes write.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::frame::Datagram;

/// The header of a file: magic number of time stamps in nanoseconds, version 2.4, time zone and accuracy 0, the longest
/// frame, and the link type Ethernet. Numbers are little-endian.
const HEADER: [u8; 24] = [
    0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0,
];
/// Bytes in front of each frame.
const RECORD_HEADER: usize = 16;
/// Bytes of Ethernet, IPv6 and UDP headers.
const HEADROOM: usize = 14 + 40 + 8;

/// Why a capture cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operating system refuses.
    #[error("{}: cannot open the capture: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file exists and is something else.
    #[error(
        "{}: not a capture of Ethernet frames with time stamps in nanoseconds; name another file, or remove this one",
        path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
    },
}

/// A pcap file that is open to be written. Other processes may write it, too.
#[derive(Debug)]
pub struct Capture {
    file: File,
}

impl Capture {
    /// A new file in place of one that may be there.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(path: &Path) -> Result<Self, OpenError> {
        let write = || {
            let (file, temporary) = new_file(path)?;
            keep_or_remove(&temporary, || fs::rename(&temporary, path))?;
            Ok(Self { file })
        };
        write().map_err(|source| at(path, source))
    }

    /// The file that is there, to be continued; a new one, if there is none.
    ///
    /// # Errors
    /// The file cannot be opened or made, or is no capture of this kind.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        loop {
            match OpenOptions::new().read(true).append(true).open(path) {
                Ok(file) => return Self::continued(file, path),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(source) => return Err(at(path, source)),
            }
            match linked(path) {
                Ok(file) => return Ok(Self { file }),
                // Another process was faster.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(at(path, source)),
            }
        }
    }

    /// A file with a header of ours.
    fn continued(mut file: File, path: &Path) -> Result<Self, OpenError> {
        let mut header = [0; HEADER.len()];
        match file.read_exact(&mut header) {
            Ok(()) if header == HEADER => Ok(Self { file }),
            Err(source) if source.kind() != ErrorKind::UnexpectedEof => Err(at(path, source)),
            _ => Err(OpenError::Foreign { path: path.into() }),
        }
    }

    /// Writes a packet that was sent or received at `time`.
    ///
    /// # Errors
    /// The datagram has no frame (`InvalidInput`), or the file cannot be written. If only a part of the record could be
    /// written (`WriteZero`), e.g. because the disk is full, the file is of no use from there on.
    pub fn write(&self, time: SystemTime, datagram: &Datagram<'_>) -> io::Result<()> {
        let record = record(time, datagram)?;
        // One system call: with O_APPEND, records of processes do not mix.
        let written = loop {
            match (&self.file).write(&record) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        if written == record.len() {
            Ok(())
        } else {
            Err(ErrorKind::WriteZero.into())
        }
    }
}

/// The bytes of a record.
fn record(time: SystemTime, datagram: &Datagram<'_>) -> io::Result<Vec<u8>> {
    let mut record = Vec::with_capacity(RECORD_HEADER + HEADROOM + datagram.payload.len());
    record.resize(RECORD_HEADER, 0);
    datagram
        .emit(&mut record)
        .map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    // Seconds are 32 bits, until 2106.
    let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
    let len = u32::try_from(record.len() - RECORD_HEADER).map_err(io::Error::other)?;
    for (at, number) in [seconds, since.subsec_nanos(), len, len]
        .into_iter()
        .enumerate()
    {
        record[4 * at..4 * at + 4].copy_from_slice(&number.to_le_bytes());
    }
    Ok(record)
}

fn at(path: &Path, source: io::Error) -> OpenError {
    OpenError::Io {
        path: path.into(),
        source,
    }
}

/// A file with nothing but a header, beside `path`.
fn new_file(path: &Path) -> io::Result<(File, PathBuf)> {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(format!(
        ".{}.{}",
        process::id(),
        FILES.fetch_add(1, Ordering::Relaxed)
    ));
    let temporary = path.with_file_name(hidden);
    let mut file = OpenOptions::new()
        .append(true)
        .create_new(true)
        .open(&temporary)?;
    keep_or_remove(&temporary, || file.write_all(&HEADER))?;
    Ok((file, temporary))
}

/// A new file that gets its name only if nobody has it, with the header in it already.
fn linked(path: &Path) -> io::Result<File> {
    let (file, temporary) = new_file(path)?;
    keep_or_remove(&temporary, || fs::hard_link(&temporary, path))?;
    fs::remove_file(&temporary)?;
    Ok(file)
}

/// Does `step`; if it fails, `temporary` goes.
fn keep_or_remove(temporary: &Path, step: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    step().inspect_err(|_| {
        // The error that is reported is that of the step.
        let _ = fs::remove_file(temporary);
    })
}
