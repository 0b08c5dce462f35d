//! Registered memory that queue pairs read and write.
//!
//! Peers change the memory at any time, so it is accessed only through raw pointers and atomics.

use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use verbs_abi::*;

use rdmacm::device_port::{DevicePort, last_errno};
use rdmacm::errno::{Errno, Result};

/// Zeroed, registered memory. It is deregistered and freed on drop.
pub(crate) struct ZeroedRegion {
    start: NonNull<u8>,
    len: usize,
    is_sysv: bool,
    mr: *mut ibv_mr,
    lkey: u32,
    rkey: u32,
    device: &'static DevicePort,
}

// SAFETY: an address range and a registration, which only this value owns.
unsafe impl Send for ZeroedRegion {}

impl ZeroedRegion {
    /// Allocates `len` bytes and registers them in `pd` with the rights `access`.
    ///
    /// # Safety
    /// `pd` is a live protection domain of the device.
    pub(crate) unsafe fn new(
        device: &'static DevicePort,
        pd: *mut ibv_pd,
        len: usize,
        access: c_int,
    ) -> Result<Self> {
        let (start, is_sysv) = match create_sysv_segment(len) {
            Some(start) => (start, true),
            None => (map_private_pages(len)?, false),
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
        // SAFETY: contract of this function; the memory stays mapped until it is deregistered.
        unsafe {
            memory.mr = (device.verbs.ibv_reg_mr)(pd, start.as_ptr().cast(), len, access);
            let mr = memory.mr.as_ref().ok_or_else(last_errno)?;
            (memory.lkey, memory.rkey) = (mr.lkey, mr.rkey);
        }
        Ok(memory)
    }

    /// Returns the address of byte `offset`.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        (self.start.as_ptr().expose_provenance() + offset) as u64
    }

    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Copies `bytes` to the memory at `offset`.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(
            offset
                .checked_add(bytes.len())
                .is_some_and(|end| end <= self.len)
        );
        // SAFETY: the range is inside the memory, as was just checked. `bytes` is a reference, so it does not overlap.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.as_ptr().add(offset), bytes.len());
        }
    }

    /// Copies bytes from the memory at `offset`.
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

    /// Reads the word at `offset`, which is a multiple of 8.
    pub(crate) fn read_word(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: the word is inside the memory, whose start is page-aligned, so it is aligned. Only another process
        // may write it at the same time, through the NIC.
        unsafe { &*self.start.as_ptr().add(offset).cast::<AtomicU64>() }.load(Ordering::Acquire)
    }
}

impl Drop for ZeroedRegion {
    fn drop(&mut self) {
        // SAFETY: `new` made both objects, each is released once, and no reference into the memory exists.
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

/// Makes a System V segment that is destroyed with its last detach. The software NIC lets peers map such a segment, and
/// writes to it without a system call.
fn create_sysv_segment(len: usize) -> Option<NonNull<u8>> {
    // SAFETY: a new segment, attached at an address that the kernel selects. It is marked for destruction at once; on
    // Linux, other processes can attach it until it is destroyed (`shmctl(2)`, IPC_RMID).
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

fn map_private_pages(len: usize) -> Result<NonNull<u8>> {
    // SAFETY: new pages, at an address that the kernel selects.
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
