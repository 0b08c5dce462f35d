//! Checks how processes of this environment may reach each other's memory, for `verbatim doctor`.

use std::io;
use std::mem::MaybeUninit;

use crate::mem;
use crate::process_memory::{CopyDirection, ProcessMemory};

/// Permits other processes of this user to access this process's memory. Joining a fabric does the
/// same.
pub fn allow_peer_access() {
    crate::process_memory::allow_peer_access();
}

/// A system call by which one process reads the memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerReadCall {
    /// `process_vm_readv(2)`.
    ProcessVm,
    /// `pread(2)` of `/proc/PID/mem`.
    ProcFile,
}

/// Reads `N` bytes at `address` of the process `pid`.
///
/// # Errors
/// Returns the error of the system call, such as `EPERM`.
pub fn read_peer_memory<const N: usize>(
    call: PeerReadCall,
    pid: u64,
    address: u64,
) -> io::Result<[u8; N]> {
    let memory = ProcessMemory::new(pid).ok_or(io::ErrorKind::NotFound)?;
    let remote = usize::try_from(address).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut bytes = MaybeUninit::<[u8; N]>::uninit();
    let into = bytes.as_mut_ptr().cast();
    // SAFETY: `bytes` has room for `N` bytes.
    let read = unsafe {
        match call {
            PeerReadCall::ProcessVm => {
                memory.copy_by_iovecs(CopyDirection::Read, into, remote, (N, N))
            }
            PeerReadCall::ProcFile => memory.copy_by_file(CopyDirection::Read, into, remote, N),
        }
    };
    if read? < N {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    // SAFETY: all of its bytes have been written.
    Ok(unsafe { bytes.assume_init() })
}

/// Checks that pages of registered memory can be replaced while the program runs, so that peers can map them.
///
/// # Errors
/// Returns the error of `userfaultfd(2)`.
pub fn check_userfaultfd() -> io::Result<()> {
    mem::check_userfaultfd()
}
