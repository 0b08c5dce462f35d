//! Copies between processes by system call.
//!
//! Copies use `process_vm_readv(2)` and `process_vm_writev(2)`. If a seccomp filter refuses these
//! calls, copies use `pread(2)` and `pwrite(2)` on `/proc/PID/mem`. For both ways the kernel
//! requires the permission of `ptrace(2)`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// The memory of another process.
#[derive(Debug)]
pub(crate) struct ProcessMemory {
    pid: libc::pid_t,
    /// `/proc/PID/mem`, opened when the kernel first refuses `process_vm_readv(2)` or `process_vm_writev(2)`.
    file: OnceLock<File>,
}

/// The direction of a copy, seen from this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyDirection {
    /// Bytes are copied from the other process.
    Read,
    /// Bytes are copied to the other process.
    Write,
}

impl ProcessMemory {
    /// Returns the memory of the process `pid`; `None` if `pid` is not a valid process id.
    pub(crate) fn new(pid: u64) -> Option<Self> {
        let pid = libc::pid_t::try_from(pid).ok()?;
        Some(Self {
            pid,
            file: OnceLock::new(),
        })
    }

    /// Copies `len` bytes between `local` and the address `remote` of the process. The last `apart`
    /// bytes are copied after all others, because the kernel copies one iovec after the other.
    ///
    /// # Errors
    /// Returns an error if some of the bytes are not mapped on either side, the process has ended, or the
    /// kernel refuses the access.
    ///
    /// # Safety
    /// `local` is valid for reads (to write) or writes (to read) of `len` bytes.
    pub(crate) unsafe fn transfer(
        &self,
        direction: CopyDirection,
        local: *mut u8,
        remote: usize,
        (len, apart): (usize, usize),
    ) -> io::Result<()> {
        let rest = len.saturating_sub(apart);
        let mut done = 0;
        while done < len {
            let piece = if done < rest { rest - done } else { len - done };
            let (local, remote) = (local.wrapping_add(done), remote.wrapping_add(done));
            // SAFETY: `local` is valid for the `len - done` bytes (contract of this function).
            let n =
                match unsafe { self.copy_by_iovecs(direction, local, remote, (piece, len - done)) }
                {
                    Err(e) if is_call_refused(&e) => {
                        // SAFETY: as above.
                        unsafe { self.copy_by_file(direction, local, remote, piece) }
                    }
                    copied => copied,
                };
            match n? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => done += n,
            }
        }
        Ok(())
    }

    /// Calls `process_vm_readv(2)` or `process_vm_writev(2)` once, with two iovecs: the first
    /// `piece` of `len` bytes, and the bytes after them.
    ///
    /// # Errors
    /// Returns the error of the call.
    ///
    /// # Safety
    /// The contract of [`Self::transfer`] applies.
    pub(crate) unsafe fn copy_by_iovecs(
        &self,
        direction: CopyDirection,
        local: *mut u8,
        remote: usize,
        (piece, len): (usize, usize),
    ) -> io::Result<usize> {
        let pieces = |base: *mut u8| {
            [(base, piece), (base.wrapping_add(piece), len - piece)].map(|(base, iov_len)| {
                libc::iovec {
                    iov_base: base.cast(),
                    iov_len,
                }
            })
        };
        let local = pieces(local);
        let remote = pieces(std::ptr::without_provenance_mut(remote));
        let call = match direction {
            CopyDirection::Read => libc::process_vm_readv,
            CopyDirection::Write => libc::process_vm_writev,
        };
        // SAFETY: two iovecs each; `local` is valid for `len` bytes (contract of this function), and the
        // kernel checks the remote addresses.
        let n = unsafe { call(self.pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    /// Calls `pread(2)` or `pwrite(2)` once on the process's `/proc/PID/mem`.
    ///
    /// # Errors
    /// Returns the error of the call, or of opening the file.
    ///
    /// # Safety
    /// The contract of [`Self::transfer`] applies.
    #[cold]
    pub(crate) unsafe fn copy_by_file(
        &self,
        direction: CopyDirection,
        local: *mut u8,
        remote: usize,
        len: usize,
    ) -> io::Result<usize> {
        let fd = self.file()?.as_raw_fd();
        let offset = libc::off_t::try_from(remote).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: `local` is valid for `len` bytes (contract of this function); the descriptor is open.
        let n = unsafe {
            match direction {
                CopyDirection::Read => libc::pread(fd, local.cast(), len, offset),
                CopyDirection::Write => libc::pwrite(fd, local.cast(), len, offset),
            }
        };
        usize::try_from(n).map_err(|_| io::Error::last_os_error())
    }

    fn file(&self) -> io::Result<&File> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let _hold_off = cancellation::HoldOff::new();
        let path = format!("/proc/{}/mem", self.pid);
        let file = File::options().read(true).write(true).open(path)?;
        Ok(self.file.get_or_init(|| file))
    }
}

/// Returns true if the kernel refused the system call itself, rather than an address.
fn is_call_refused(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS)
    )
}

/// Lets other processes of this user access this process's memory, although Yama permits only
/// ancestors.
///
/// Under `kernel.yama.ptrace_scope` 1, the default of Ubuntu, a process declares its permitted tracers
/// (`PR_SET_PTRACER`). The checks of users and capabilities still apply. Without Yama the call changes
/// nothing.
pub(crate) fn allow_peer_access() {
    // SAFETY: sets an attribute of this process; no pointer is passed.
    let set = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
    if set != 0 {
        tracing::debug!("PR_SET_PTRACER: {}", io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads and writes this process's own memory through the calls for another process's memory.
    #[test]
    fn a_file_is_as_good_as_the_system_calls() {
        let memory = ProcessMemory::new(u64::from(std::process::id())).expect("a process");
        let mut target = *b"0123456789abcdef";
        let address = target.as_mut_ptr().expose_provenance();
        let mut source = *b"ABCDEFGHIJKLMNOP";
        // SAFETY: both arrays have 16 bytes, and no reference to them is used meanwhile.
        unsafe {
            let source = source.as_mut_ptr();
            let n = memory.copy_by_file(CopyDirection::Write, source, address, 10);
            assert_eq!(n.expect("it writes"), 10);
            memory
                .transfer(CopyDirection::Write, source.add(10), address + 10, (3, 2))
                .expect("it writes");
            std::ptr::write_bytes(source, 0, 16);
            let n = memory.copy_by_file(CopyDirection::Read, source, address, 8);
            assert_eq!(n.expect("it reads"), 8);
            memory
                .transfer(CopyDirection::Read, source.add(8), address + 8, (8, 8))
                .expect("it reads");
        }
        assert_eq!(&source, b"ABCDEFGHIJKLMdef");
    }

    #[test]
    fn an_address_that_is_not_there_is_a_fault() {
        let memory = ProcessMemory::new(u64::from(std::process::id())).expect("a process");
        let mut byte = 0u8;
        // SAFETY: one byte is valid; the kernel checks the other address.
        let read = unsafe { memory.transfer(CopyDirection::Read, &raw mut byte, 8, (1, 8)) };
        assert!(read.is_err());
    }

    #[test]
    fn a_refusal_is_told_from_a_bad_address() {
        assert!(is_call_refused(&io::Error::from_raw_os_error(libc::EPERM)));
        assert!(is_call_refused(&io::Error::from_raw_os_error(libc::ENOSYS)));
        assert!(!is_call_refused(&io::Error::from_raw_os_error(
            libc::EFAULT
        )));
        assert!(!is_call_refused(&io::Error::from_raw_os_error(libc::ESRCH)));
    }
}
