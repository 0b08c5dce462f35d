//! Files in the pcap format that several processes write at the same time.

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

/// The header of a file: the magic number for time stamps in nanoseconds, version 2.4, time zone
/// and accuracy 0, the largest frame length, and the link type Ethernet. Numbers are little-endian.
const PCAP_FILE_HEADER: [u8; 24] = [
    0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0,
];
/// Bytes of the pcap record header before each frame.
const RECORD_HEADER_BYTES: usize = 16;
/// Bytes of Ethernet, IPv6 and UDP headers.
const MAX_PACKET_HEADER_BYTES: usize = 14 + 40 + 8;
/// The time that a process waits for its turn. A busy machine delays the current holder of the turn
/// for less than this.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The reason why a capture cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The operating system refuses access to the file.
    #[error("{}: cannot open the capture: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file exists and is no capture of this kind.
    #[error(
        "{}: not a capture of Ethernet frames with time stamps in nanoseconds; name another file, or remove this one",
        path.display()
    )]
    NotACapture {
        /// The file.
        path: PathBuf,
    },
}

/// A pcap file to which several processes append, one at a time.
#[derive(Debug)]
pub struct Capture {
    file: File,
    /// The turn among the threads of this process, since file locks do not exclude threads that
    /// share an open file.
    thread_lock: Mutex<()>,
    /// True once a process has kept its turn for longer than [`LOCK_TIMEOUT`], for example because it
    /// was stopped.
    is_lock_holder_stuck: AtomicBool,
}

/// The exclusive right to write, until this value is dropped.
#[derive(Debug)]
pub struct WriteLock<'a> {
    /// The file, if locked.
    locked_file: Option<&'a File>,
    _threads: MutexGuard<'a, ()>,
}

impl Drop for WriteLock<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.locked_file {
            // Only locking can fail, not unlocking.
            let _ = file.unlock();
        }
    }
}

/// Packets to be written by one system call.
#[derive(Debug, Default)]
pub struct CapturedPackets {
    bytes: Vec<u8>,
}

impl CapturedPackets {
    /// Returns true if no packets were added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends a packet that was sent or received at `time`.
    ///
    /// # Errors
    /// The datagram has no frame; the records are unchanged.
    pub fn push(&mut self, time: SystemTime, datagram: &Datagram<'_>) -> Result<(), FrameError> {
        let start = self.bytes.len();
        let frame = start + RECORD_HEADER_BYTES;
        self.bytes
            .reserve(RECORD_HEADER_BYTES + MAX_PACKET_HEADER_BYTES + datagram.payload.len());
        self.bytes.resize(frame, 0);
        datagram
            .append_frame(&mut self.bytes)
            .inspect_err(|_| self.bytes.truncate(start))?;
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        // Seconds have 32 bits, which suffice until 2106.
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
    /// Creates a file, and replaces an existing one.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path) -> Result<Self, OpenError> {
        let write = || {
            let (file, temporary) = create_hidden_file_with_header(path)?;
            run_step_or_remove_file(&temporary, || fs::rename(&temporary, path))?;
            Ok(Self::from_file(file))
        };
        write().map_err(|source| open_error(path, source))
    }

    /// Opens an existing file for appending, or creates the file.
    ///
    /// # Errors
    /// The file cannot be opened or created, or is no capture of this kind.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        loop {
            match OpenOptions::new().read(true).append(true).open(path) {
                Ok(file) => return Self::from_existing(file, path),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(source) => return Err(open_error(path, source)),
            }
            match create_unless_exists(path) {
                Ok(file) => return Ok(Self::from_file(file)),
                // Another process has created the file first.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(source) => return Err(open_error(path, source)),
            }
        }
    }

    /// Checks the header of an existing file.
    fn from_existing(mut file: File, path: &Path) -> Result<Self, OpenError> {
        let mut header = [0; PCAP_FILE_HEADER.len()];
        match file.read_exact(&mut header) {
            Ok(()) if header == PCAP_FILE_HEADER => Ok(Self::from_file(file)),
            Err(source) if source.kind() != ErrorKind::UnexpectedEof => {
                Err(open_error(path, source))
            }
            _ => Err(OpenError::NotACapture { path: path.into() }),
        }
    }

    fn from_file(file: File) -> Self {
        Self {
            file,
            thread_lock: Mutex::default(),
            is_lock_holder_stuck: AtomicBool::new(false),
        }
    }

    /// Waits for the exclusive right to write, among all threads and processes that write the file.
    ///
    /// A process can send packets and write them in one turn. Then they precede the answers of a
    /// process that does the same. If a process keeps its turn for longer than a second because it
    /// was stopped, the others continue without turns. The same holds if the file system has no
    /// locks.
    pub fn lock_for_writing(&self) -> WriteLock<'_> {
        let threads = self
            .thread_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let is_locked = loop {
            match self.file.try_lock() {
                Ok(()) => break true,
                Err(fs::TryLockError::Error(error)) if error.kind() != ErrorKind::Interrupted => {
                    break false;
                }
                Err(_) => {}
            }
            if self.is_lock_holder_stuck.load(Ordering::Relaxed) || began.elapsed() > LOCK_TIMEOUT {
                self.is_lock_holder_stuck.store(true, Ordering::Relaxed);
                break false;
            }
            thread::yield_now();
        };
        if is_locked {
            self.is_lock_holder_stuck.store(false, Ordering::Relaxed);
        }
        WriteLock {
            locked_file: is_locked.then_some(&self.file),
            _threads: threads,
        }
    }

    /// Writes a packet that was sent or received at `time`.
    ///
    /// # Errors
    /// The datagram has no frame (`InvalidInput`), or as [`Capture::append`].
    pub fn write_packet(&self, time: SystemTime, datagram: &Datagram<'_>) -> io::Result<()> {
        let mut records = CapturedPackets::default();
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
    pub fn append(&self, records: &CapturedPackets) -> io::Result<()> {
        // Use one system call: with O_APPEND, records of several processes do not mix.
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

fn open_error(path: &Path, source: io::Error) -> OpenError {
    OpenError::Io {
        path: path.into(),
        source,
    }
}

/// Creates a hidden file beside `path` that contains only the header.
fn create_hidden_file_with_header(path: &Path) -> io::Result<(File, PathBuf)> {
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
    run_step_or_remove_file(&temporary, || file.write_all(&PCAP_FILE_HEADER))?;
    Ok((file, temporary))
}

/// Creates a file at `path`, header included, unless the path already exists.
fn create_unless_exists(path: &Path) -> io::Result<File> {
    let (file, temporary) = create_hidden_file_with_header(path)?;
    run_step_or_remove_file(&temporary, || fs::hard_link(&temporary, path))?;
    fs::remove_file(&temporary)?;
    Ok(file)
}

/// Runs `step`, and removes `temporary` if the step fails.
fn run_step_or_remove_file(
    temporary: &Path,
    step: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    step().inspect_err(|_| {
        // Report only the error of the step.
        let _ = fs::remove_file(temporary);
    })
}
