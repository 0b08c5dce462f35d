//! The file: lines are appended whole, by any process, also by one that is about to crash.
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

/// Names the file that each process appends its lines to: an absolute path. Without it nothing is traced.
pub const VARIABLE: &str = "VERBATIM_TRACE";

/// A file that this process appends to.
///
/// One `write(2)` to a file that was opened with `O_APPEND` goes to its end as a whole ("the adjustment of the file
/// offset and the write operation are performed as an atomic step", open(2)); so no lock is held while another
/// thread forks or crashes, and nothing is kept back.
struct Trace {
    path: PathBuf,
    fd: AtomicI32,
    /// Which file that is: a program may close every descriptor that it does not know, and get the number again.
    device: u64,
    inode: u64,
}

/// Makes the file of a trace, with `command` and the legend at its head.
///
/// # Errors
/// Those of the file system.
pub fn create(path: &Path, command: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    writeln!(file, "# verbatim trace of: {command}")?;
    file.write_all(LEGEND.as_bytes())
}

fn open(path: &Path) -> io::Result<File> {
    // Not created: a file that is gone when a late process comes is nobody's any more.
    OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(path)
}

fn trace() -> Option<&'static Trace> {
    static TRACE: OnceLock<Option<Trace>> = OnceLock::new();
    let trace = TRACE.get_or_init(|| {
        let path = PathBuf::from(std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?);
        let opened = open(&path).and_then(|file| Ok((file.metadata()?, file)));
        match opened {
            Ok((about, file)) => Some(Trace {
                path,
                fd: AtomicI32::new(file.into_raw_fd()),
                device: about.dev(),
                inode: about.ino(),
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

/// Whether this process is to be traced.
#[must_use]
#[inline]
pub fn is_on() -> bool {
    trace().is_some()
}

impl Trace {
    /// The descriptor, if it still is one of the file; else a new one.
    fn fd(&self) -> i32 {
        let fd = self.fd.load(Relaxed);
        // SAFETY: a place for the answer, of which any bytes are a value.
        let mut about: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: as above; whatever the descriptor is, it is only asked about.
        let known = unsafe { libc::fstat(fd, &raw mut about) } == 0
            && about.st_dev == self.device
            && about.st_ino == self.inode;
        if known {
            return fd;
        }
        let new = open(&self.path).map_or(-1, IntoRawFd::into_raw_fd);
        self.fd.store(new, Relaxed);
        new
    }
}

/// Appends lines, each with a newline at its end. Lines that cannot be written are lost.
pub(super) fn append(lines: &str) {
    let Some(trace) = trace() else { return };
    let _hold_off = cancellation::HoldOff::new();
    let fd = trace.fd();
    loop {
        // SAFETY: bytes of a string; the descriptor is the trace's, or none.
        let written = unsafe { libc::write(fd, lines.as_ptr().cast(), lines.len()) };
        if written >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}
