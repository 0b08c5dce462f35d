//! Copies between processes by system call.

use super::copy::LAST;
use super::fault::Fault;

/// `process_vm_readv(2)` or `process_vm_writev(2)`.
pub(super) type ProcessVmCall = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

/// Copies `len` bytes between `local` and the address `remote` of process `pid`, in the direction of `call`.
///
/// # Errors
/// Where some of the bytes are not there on either side, or that process has ended.
///
/// # Safety
/// `local` is valid for `len` bytes, which `call` reads or writes.
pub(super) unsafe fn transfer(
    call: ProcessVmCall,
    local: *mut u8,
    (pid, remote): (libc::pid_t, usize),
    len: usize,
) -> Result<(), Fault> {
    // The last bytes come last, as in `copy`: the kernel takes one piece after the other.
    let rest = len.saturating_sub(LAST);
    let mut done = 0;
    while done < len {
        let piece = if done < rest { rest - done } else { len - done };
        let pieces = |base: *mut u8| {
            let from = base.wrapping_add(done);
            [
                (from, piece),
                (from.wrapping_add(piece), len - done - piece),
            ]
            .map(|(base, iov_len)| libc::iovec {
                iov_base: base.cast(),
                iov_len,
            })
        };
        let local = pieces(local);
        let remote = pieces(std::ptr::without_provenance_mut(remote));
        // SAFETY: two iovecs each; `local` is valid for `len` bytes (contract of this function), and the
        // kernel checks the remote addresses.
        let n = unsafe { call(pid, local.as_ptr(), 2, remote.as_ptr(), 2, 0) };
        match usize::try_from(n) {
            Ok(n) if n > 0 => done += n,
            _ => return Err(Fault),
        }
    }
    Ok(())
}
