//! Whether memory of the own process is there, and fetching its pages.

use std::io;

use rustix::mm::{Advice, madvise};

use super::areas::{area_of, areas};
use super::page::PAGE;

/// Fetches the pages of a range of this process's memory, as an access on demand does. False where they are not
/// mapped, or not writable.
#[cold]
pub fn populate(addr: u64, len: u64, write: bool) -> bool {
    let (Ok(addr), Ok(len)) = (usize::try_from(addr), usize::try_from(len)) else {
        return false;
    };
    let first = addr & !(PAGE - 1);
    let Some(end) = addr.checked_add(len) else {
        return false;
    };
    let advice = if write {
        Advice::LinuxPopulateWrite
    } else {
        Advice::LinuxPopulateRead
    };
    // SAFETY: fetching pages changes nothing that a program can see; a range that is not mapped is an error.
    let done = unsafe {
        madvise(
            std::ptr::with_exposed_provenance_mut(first),
            end - first,
            advice,
        )
    };
    match done {
        Ok(()) => true,
        // Linux before 5.14.
        Err(rustix::io::Errno::INVAL) => {
            areas().is_ok_and(|areas| area_of(&areas, addr..addr + len, write).is_ok())
        }
        Err(_) => false,
    }
}

/// May this memory of the own process be read? To be asked when a copy has failed: it takes a system call for each page.
#[cold]
pub fn is_readable(at: *const u8, len: usize) -> bool {
    is_accessible(at.cast_mut(), len, libc::process_vm_readv)
}

/// May this memory of the own process be written? As [`is_readable`]; the first bytes of its pages are overwritten, for
/// what a copy that failed has left there is undefined.
#[cold]
pub fn is_writable(at: *mut u8, len: usize) -> bool {
    is_accessible(at, len, libc::process_vm_writev)
}

/// `process_vm_readv(2)` or `process_vm_writev(2)`.
type ProcessVmCall = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

fn is_accessible(at: *mut u8, len: usize, call: ProcessVmCall) -> bool {
    let first = at.addr() % PAGE;
    let pages = (0..first + len).step_by(PAGE);
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
        // SAFETY: one iovec of one byte each; the local one is `byte`, and the kernel checks the other.
        let n = unsafe { call(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        // Where the call is not allowed nothing is known.
        n == 1 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
    })
}
