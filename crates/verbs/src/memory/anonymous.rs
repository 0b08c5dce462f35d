//! Page-aligned memory of this process alone.

#![allow(unsafe_code)]

use std::io;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::types::PageSize;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed, page-aligned memory; dropping the value frees it.
pub(crate) struct AnonymousMemory {
    addr: *mut u8,
    mapped_bytes: usize,
}

// SAFETY: this value owns the range of addresses, and returns only a raw pointer to it.
unsafe impl Send for AnonymousMemory {}
// SAFETY: as above.
unsafe impl Sync for AnonymousMemory {}

impl AnonymousMemory {
    /// Allocates `len` bytes. Allocations of 1 MiB or more use transparent huge pages if no size is given.
    pub(crate) fn new(len: usize, pages: Option<PageSize>) -> io::Result<Self> {
        if len == 0 || len > 1 << 46 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let huge = match pages {
            None => len >= HUGE_PAGE_BYTES / 2,
            Some(pages) => pages == PageSize::Huge,
        };
        let mapped = len.next_multiple_of(if huge { HUGE_PAGE_BYTES } else { 4096 });
        let mut flags = MapFlags::PRIVATE;
        if pages == Some(PageSize::Huge) {
            flags |= MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes; nothing else refers to it.
        let addr = unsafe { mmap_anonymous(std::ptr::null_mut(), mapped, access, flags) }?;
        let advice = match pages {
            None if huge => Some(Advice::LinuxHugepage),
            Some(PageSize::Small) => Some(Advice::LinuxNoHugepage),
            _ => None,
        };
        if let Some(advice) = advice {
            // SAFETY: the range was just mapped. Without huge pages, the mapping keeps small pages.
            let _ = unsafe { madvise(addr, mapped, advice) };
        }
        Ok(Self {
            addr: addr.cast(),
            mapped_bytes: mapped,
        })
    }

    /// Returns the address of the first byte.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.addr
    }
}

impl Drop for AnonymousMemory {
    fn drop(&mut self) {
        // SAFETY: the range came from `new` and belongs to this value alone.
        let _ = unsafe { munmap(self.addr.cast(), self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_writable_and_page_aligned() {
        for (len, pages) in [(1, None), (5000, Some(PageSize::Small)), (3 << 20, None)] {
            let memory = AnonymousMemory::new(len, pages).expect("memory");
            let (first, last) = (memory.as_ptr(), memory.as_ptr().wrapping_add(len - 1));
            assert_eq!(first.addr() % 4096, 0);
            // SAFETY: both bytes are in the mapping, and nobody else knows it.
            unsafe {
                assert_eq!((first.read(), last.read()), (0, 0));
                last.write(7);
                assert_eq!(last.read(), 7);
            }
        }
    }

    #[test]
    fn lengths_that_no_memory_has_are_refused() {
        for len in [0, usize::MAX, 1 << 47] {
            assert!(AnonymousMemory::new(len, None).is_err(), "{len}");
        }
    }
}
