//! Memory for regions that the crate itself allocates.

#[cfg(any(test, not(feature = "softnic")))]
mod anonymous;

use std::io;

#[cfg(not(feature = "softnic"))]
pub(crate) use anonymous::AnonymousMemory as SharedMemory;
#[cfg(feature = "softnic")]
pub(crate) use softnic::SharedMemory;

use crate::types::PageSize;

/// Allocates `len` zeroed bytes that other processes of this host can map; in pages of the given size, or in
/// transparent huge pages if the allocation is long.
#[cfg(feature = "softnic")]
pub(crate) fn alloc_shared(len: usize, pages: Option<PageSize>) -> io::Result<SharedMemory> {
    match pages {
        None => softnic::alloc_shared(len),
        Some(PageSize::Small) => {
            softnic::alloc_shared_with_page_size(len, softnic::PageSize::Small)
        }
        Some(PageSize::Huge) => softnic::alloc_shared_with_page_size(len, softnic::PageSize::Huge),
    }
}

/// The same in memory of this process alone: the other providers have no use for mappings.
#[cfg(not(feature = "softnic"))]
pub(crate) fn alloc_shared(len: usize, pages: Option<PageSize>) -> io::Result<SharedMemory> {
    SharedMemory::new(len, pages)
}
