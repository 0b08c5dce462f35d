//! The trace file: any process appends whole lines, even if it is about to crash.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use super::legend::LEGEND;

/// Environment variable that names the trace file, to which each process appends its lines: an absolute path. Without
/// the variable nothing is traced.
pub const TRACE_FILE_ENV_VAR: &str = "VERBATIM_TRACE";

/// A trace file to which this process appends lines.
///
/// A single `write(2)` to a file that was opened with `O_APPEND` appends its bytes in one atomic step (open(2)).
/// The process therefore needs no lock and no buffer: a fork or a crash loses no line.
struct TraceFile {
    path: PathBuf,
    fd: AtomicI32,
    /// Device and inode of the file. A program may close unknown descriptors, and a new file may get the same number.
    file_device_number: u64,
    inode: u64,
}

/// Creates a trace file, with `command` and the legend at its head.
///
/// # Errors
/// Returns the errors of the file system.
pub fn create_trace_file(path: &Path, command: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    writeln!(file, "# verbatim trace of: {command}")?;
    file.write_all(LEGEND.as_bytes())
}

fn open_for_append(path: &Path) -> io::Result<File> {
    // Do not create the file: if it was removed, no reader waits for the lines of a late process.
    OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
}

fn trace_file() -> Option<&'static TraceFile> {
    static TRACE: OnceLock<Option<TraceFile>> = OnceLock::new();
    let trace = TRACE.get_or_init(|| {
        let path =
            PathBuf::from(std::env::var_os(TRACE_FILE_ENV_VAR).filter(|path| !path.is_empty())?);
        let opened = open_for_append(&path).and_then(|file| Ok((file.metadata()?, file)));
        match opened {
            Ok((stat, file)) => Some(TraceFile {
                path,
                fd: AtomicI32::new(file.into_raw_fd()),
                file_device_number: stat.dev(),
                inode: stat.ino(),
            }),
            Err(error) => {
                let path = String::from_utf8_lossy(path.as_os_str().as_bytes());
                eprintln!("verbatim: what this process does is not traced: {path}: {error}");
                None
            }
        }
    });
    trace.as_ref()
}

/// Returns true if the verbs of this process are traced.
#[must_use]
#[inline]
pub fn is_tracing_on() -> bool {
    trace_file().is_some()
}

impl TraceFile {
    /// Returns the descriptor if it still refers to the trace file; otherwise opens the trace file again.
    fn fd_reopened_if_replaced(&self) -> i32 {
        let fd = self.fd.load(Relaxed);
        // SAFETY: any bytes are a valid `stat`, which receives the answer.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above; the call only queries the descriptor, whatever it is.
        let known = unsafe { libc::fstat(fd, &raw mut stat) } == 0
            && stat.st_dev == self.file_device_number
            && stat.st_ino == self.inode;
        if known {
            return fd;
        }
        let new = open_for_append(&self.path).map_or(-1, IntoRawFd::into_raw_fd);
        self.fd.store(new, Relaxed);
        new
    }
}

/// Appends lines to the trace file, each with a newline at its end. Lines that cannot be written are lost.
pub(super) fn append_lines(lines: &str) {
    let Some(trace) = trace_file() else { return };
    let _hold_off = cancellation::HoldOff::new();
    let fd = trace.fd_reopened_if_replaced();
    loop {
        // SAFETY: the bytes belong to a string; the descriptor is the trace's, or invalid.
        let written = unsafe { libc::write(fd, lines.as_ptr().cast(), lines.len()) };
        if written >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}
