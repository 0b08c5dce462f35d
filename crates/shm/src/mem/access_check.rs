//! Checks that memory of this process is accessible, and prefaults its pages.

use std::io;

use rustix::mm::{Advice, madvise};

use super::page::PAGE_BYTES;
use super::process_mappings::{first_mapping_if_all_mapped, mappings_of_process};

/// Prefaults the pages of a range of this process's memory, as on-demand paging does. Returns false
/// if the range is not mapped, or not mapped writable although `write` is set.
#[cold]
pub fn prefault(addr: u64, len: u64, write: bool) -> bool {
    let (Ok(addr), Ok(len)) = (usize::try_from(addr), usize::try_from(len)) else {
        return false;
    };
    let first = addr & !(PAGE_BYTES - 1);
    let Some(end) = addr.checked_add(len) else {
        return false;
    };
    let advice = if write {
        Advice::LinuxPopulateWrite
    } else {
        Advice::LinuxPopulateRead
    };
    // SAFETY: prefaulting changes nothing that a program can see; for an unmapped range the call returns an
    // error.
    let done = unsafe {
        madvise(
            std::ptr::with_exposed_provenance_mut(first),
            end - first,
            advice,
        )
    };
    match done {
        Ok(()) => true,
        // Linux before 5.14 does not know `MADV_POPULATE_WRITE`.
        Err(rustix::io::Errno::INVAL) => mappings_of_process().is_ok_and(|areas| {
            first_mapping_if_all_mapped(&areas, addr..addr + len, write).is_ok()
        }),
        Err(_) => false,
    }
}

/// Returns true if this process may read the memory. Call this function only after a failed copy:
/// it makes a system call for each page.
#[cold]
pub fn is_readable(at: *const u8, len: usize) -> bool {
    is_accessible(at.cast_mut(), len, libc::process_vm_readv)
}

/// Returns true if this process may write the memory. Call this function only after a failed copy,
/// whose target bytes are undefined: it overwrites the first byte in each page.
#[cold]
pub fn probe_writable(at: *mut u8, len: usize) -> bool {
    is_accessible(at, len, libc::process_vm_writev)
}

/// Signature of `process_vm_readv(2)` and `process_vm_writev(2)`.
type ProcessVmCall = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

fn is_accessible(at: *mut u8, len: usize, call: ProcessVmCall) -> bool {
    let first = at.addr() % PAGE_BYTES;
    let pages = (0..first + len).step_by(PAGE_BYTES);
    pages.map(|page| page.saturating_sub(first)).all(|offset| {
        let mut byte = 0u8;
        let local = libc::iovec {
            iov_base: (&raw mut byte).cast(),
            iov_len: 1,
        };
        let remote = libc::iovec {
            iov_base: at.wrapping_add(offset).cast(),
            iov_len: 1,
        };
        // SAFETY: both iovecs have one byte; the local one is `byte`, and the kernel checks the other.
        let n = unsafe { call(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        // If the system call itself is refused, assume that the memory is accessible.
        n == 1 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
    })
}
