//! Memory that queue pairs read and write.
//!
//! It changes under our eyes, so it is only reached through raw pointers and atomics.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use verbs_abi::*;

use rdmacm::device::{Device, last_errno};
use rdmacm::errno::{Errno, Result};

/// Zeroed, registered memory. Deregistered and given back when dropped.
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
    is_sysv: bool,
    mr: *mut ibv_mr,
    lkey: u32,
    rkey: u32,
    device: &'static Device,
}

// SAFETY: a range of addresses and a registration, which belong to this value alone.
unsafe impl Send for Memory {}

impl Memory {
    /// `len` bytes, registered in `pd` with the rights `access`.
    ///
    /// # Safety
    /// `pd` is a live protection domain of the device.
    pub(crate) unsafe fn new(
        device: &'static Device,
        pd: *mut ibv_pd,
        len: usize,
        access: c_int,
    ) -> Result<Self> {
        let (start, is_sysv) = match sysv_segment(len) {
            Some(start) => (start, true),
            None => (private_pages(len)?, false),
        };
        let mut memory = Self {
            start,
            len,
            is_sysv,
            mr: ptr::null_mut(),
            lkey: 0,
            rkey: 0,
            device,
        };
        // SAFETY: contract of this function; the memory stays until it is deregistered.
        unsafe {
            memory.mr = (device.verbs.ibv_reg_mr)(pd, start.as_ptr().cast(), len, access);
            let mr = memory.mr.as_ref().ok_or_else(last_errno)?;
            (memory.lkey, memory.rkey) = (mr.lkey, mr.rkey);
        }
        Ok(memory)
    }

    /// The address of byte `offset`.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        (self.start.as_ptr().expose_provenance() + offset) as u64
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Copies bytes in, at `offset`.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(
            offset
                .checked_add(bytes.len())
                .is_some_and(|end| end <= self.len)
        );
        // SAFETY: inside the memory, as was just checked; `bytes` is a reference, so it is not inside.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len());
        }
    }

    /// Copies bytes out, from `offset`.
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(
            offset
                .checked_add(bytes.len())
                .is_some_and(|end| end <= self.len)
        );
        // SAFETY: as above.
        unsafe {
            ptr::copy_nonoverlapping(
                self.start.as_ptr().add(offset),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
    }

    /// The word at `offset`, which is a multiple of 8.
    pub(crate) fn word(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: inside the memory, and aligned like it, which is to pages. Whoever writes it at the same time
        // is another process, through the NIC.
        unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU64>() }.load(Ordering::Acquire)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: what `new` made, each once; nobody has a reference into it.
        unsafe {
            if !self.mr.is_null() {
                (self.device.verbs.ibv_dereg_mr)(self.mr);
            }
            if self.is_sysv {
                libc::shmdt(self.start.as_ptr().cast());
            } else {
                libc::munmap(self.start.as_ptr().cast(), self.len);
            }
        }
    }
}

/// A SysV segment that goes when nobody is attached to it any more. The software NIC lets peers map such a segment,
/// and writes to it without a system call.
fn sysv_segment(len: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new segment, attached where the kernel likes. It is marked for destruction at once: attaching to it
    // stays possible until it is gone (`shmctl(2)`, IPC_RMID, on Linux).
    unsafe {
        let id = libc::shmget(libc::IPC_PRIVATE, len, libc::IPC_CREAT | 0o600);
        if id < 0 {
            return None;
        }
        let start = libc::shmat(id, ptr::null(), 0);
        libc::shmctl(id, libc::IPC_RMID, ptr::null_mut());
        if start.addr() == usize::MAX {
            return None;
        }
        NonNull::new(start.cast())
    }
}

fn private_pages(len: usize) -> Result<NonNull<u8>> {
    // SAFETY: new pages, where the kernel likes.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(last_errno());
    }
    NonNull::new(start.cast()).ok_or(Errno(libc::ENOMEM))
}
