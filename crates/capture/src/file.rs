//! Files in the format of pcap that several processes write.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::frame::{Datagram, FrameError};

/// The header of a file: magic number of time stamps in nanoseconds, version 2.4, time zone and accuracy 0, the longest
/// frame, and the link type Ethernet. Numbers are little-endian.
const HEADER: [u8; 24] = [
    0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0,
];
/// Bytes in front of each frame.
const RECORD_HEADER: usize = 16;
/// Bytes of Ethernet, IPv6 and UDP headers.
const HEADROOM: usize = 14 + 40 + 8;
/// How long a process waits for its turn: longer than a busy machine keeps the process from running that has it.
const PATIENCE: Duration = Duration::from_secs(1);

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
    /// The turn among the threads of this process, whose locks of one open file do not exclude each other.
    threads: Mutex<()>,
    /// The process that has the turn kept it for longer than [`PATIENCE`]: it may be stopped.
    is_stuck: AtomicBool,
}

/// The right to write next, which ends when this is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    /// The file, if it is locked.
    locked: Option<&'a File>,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.locked {
            // What can fail is the lock, not its end.
            let _ = file.unlock();
        }
    }
}

/// Packets that are written by one system call.
#[derive(Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
}

impl Records {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends a packet that was sent or received at `time`.
    ///
    /// # Errors
    /// The datagram has no frame. The records are as before.
    pub fn push(&mut self, time: SystemTime, datagram: &Datagram<'_>) -> Result<(), FrameError> {
        let start = self.bytes.len();
        let frame = start + RECORD_HEADER;
        self.bytes
            .reserve(RECORD_HEADER + HEADROOM + datagram.payload.len());
        self.bytes.resize(frame, 0);
        datagram
            .emit(&mut self.bytes)
            .inspect_err(|_| self.bytes.truncate(start))?;
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        // Seconds are 32 bits, until 2106.
        let seconds = u32::try_from(since.as_secs()).unwrap_or(u32::MAX);
        // A frame has at most 65,535 bytes and an Ethernet header.
        let len = u32::try_from(self.bytes.len() - frame).unwrap_or(u32::MAX);
        let numbers = [seconds, since.subsec_nanos(), len, len];
        let fields = self.bytes[start..frame].chunks_exact_mut(4);
        for (field, number) in fields.zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        Ok(())
    }
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
            Ok(Self::of(file))
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
                Ok(file) => return Ok(Self::of(file)),
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
            Ok(()) if header == HEADER => Ok(Self::of(file)),
            Err(source) if source.kind() != ErrorKind::UnexpectedEof => Err(at(path, source)),
            _ => Err(OpenError::Foreign { path: path.into() }),
        }
    }

    fn of(file: File) -> Self {
        Self {
            file,
            threads: Mutex::default(),
            is_stuck: AtomicBool::new(false),
        }
    }

    /// Waits for the right to write next, among all processes that take turns.
    ///
    /// A process that sends packets and writes them in one turn has them in front of the answers of a process that does the
    /// same. Where a process keeps its turn for longer than a second, since it was stopped, the others go on without it. So
    /// they do where the file system has no locks.
    pub fn turn(&self) -> Turn<'_> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let is_locked = loop {
            match self.file.try_lock() {
                Ok(()) => break true,
                Err(fs::TryLockError::Error(error)) if error.kind() != ErrorKind::Interrupted => {
                    break false;
                }
                Err(_) => {}
            }
            if self.is_stuck.load(Ordering::Relaxed) || began.elapsed() > PATIENCE {
                self.is_stuck.store(true, Ordering::Relaxed);
                break false;
            }
            thread::yield_now();
        };
        if is_locked {
            self.is_stuck.store(false, Ordering::Relaxed);
        }
        Turn {
            locked: is_locked.then_some(&self.file),
            _threads: threads,
        }
    }

    /// Writes a packet that was sent or received at `time`.
    ///
    /// # Errors
    /// The datagram has no frame (`InvalidInput`), or as [`Capture::append`].
    pub fn write(&self, time: SystemTime, datagram: &Datagram<'_>) -> io::Result<()> {
        let mut records = Records::default();
        records
            .push(time, datagram)
            .map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
        self.append(&records)
    }

    /// Writes packets.
    ///
    /// # Errors
    /// The file cannot be written. If only a part could be written (`WriteZero`), e.g. because the disk is full, the file
    /// is of no use from there on.
    pub fn append(&self, records: &Records) -> io::Result<()> {
        // One system call: with O_APPEND, records of processes do not mix.
        let written = loop {
            match (&self.file).write(&records.bytes) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        if written == records.bytes.len() {
            Ok(())
        } else {
            Err(ErrorKind::WriteZero.into())
        }
    }
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
