//! Lookup of the backing of memory that is being registered.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::process_mappings::first_mapping_if_all_mapped;
use super::share_pages::PrivateRegion;
use super::shared_memory::find_memfd_of_range;
use super::shared_pages::lock_shared_pages;
use crate::errno::exhaustion_errno;
use crate::fabric::layout::*;

/// The backing of a range of this process's memory, in the form of [`MrShared`].
pub struct RangeBacking {
    /// One of `BACKING_*`.
    pub kind: u32,
    /// File descriptor, or the id of the SysV segment.
    pub fd_or_sysv_id: u32,
    /// Inode of the file.
    pub inode: u64,
    /// Offset of the range in the backing.
    pub offset: u64,
    /// Resource that keeps the backing unchanged while the region is registered.
    pub reachability_guard: ReachabilityGuard,
}

/// A resource that keeps memory reachable for peers while it is registered.
pub enum ReachabilityGuard {
    /// No resource is needed.
    Nothing,
    /// An open descriptor.
    Descriptor(#[allow(dead_code, reason = "keeps it open")] Arc<OwnedFd>),
    /// Private pages that are shared while the region is registered.
    SharedPrivatePages(#[allow(dead_code, reason = "keeps its pages shared")] PrivateRegion),
}

impl RangeBacking {
    /// Returns the backing of a region without memory.
    pub fn null() -> Self {
        Self {
            kind: BACKING_NULL,
            ..Self::accessed_by_system_call()
        }
    }

    /// Returns the backing of memory that peers access by system call.
    pub fn accessed_by_system_call() -> Self {
        Self {
            kind: BACKING_PRIVATE,
            fd_or_sysv_id: 0,
            inode: 0,
            offset: 0,
            reachability_guard: ReachabilityGuard::Nothing,
        }
    }
}

/// Looks up the backing of `len` bytes at `addr`, and checks that they are mapped, and writable if `write` is
/// set.
///
/// If `share` is set and sharing is safe, the function gives private memory a backing that peers can map.
///
/// # Errors
/// Returns `EFAULT` as `ibv_reg_mr(3)` does. Returns `EMFILE`, `ENFILE` or `ENOMEM` if `/proc/self/maps`
/// cannot be read for lack of descriptors or memory.
pub fn find_or_make_backing(
    addr: usize,
    len: usize,
    write: bool,
    share: bool,
) -> Result<RangeBacking, i32> {
    let end = addr.checked_add(len).ok_or(libc::EFAULT)?;
    if let Some((memory, offset)) = find_memfd_of_range(addr, end) {
        return Ok(RangeBacking {
            kind: BACKING_MEMFD,
            fd_or_sysv_id: memory.fd.as_raw_fd().cast_unsigned(),
            inode: memory.inode,
            offset: offset as u64,
            reachability_guard: ReachabilityGuard::Descriptor(memory.fd),
        });
    }
    // The lock of `sharing` is held from here on, so that the set of shared pages does not change.
    let mut sharing = lock_shared_pages();
    let areas = sharing
        .mappings_of_process()
        .map_err(|e| exhaustion_errno(&e).unwrap_or(libc::EFAULT))?;
    let first = first_mapping_if_all_mapped(&areas, addr..end, write)?;
    if let Some(id) = first.sysv_id.filter(|_| end <= first.end) {
        return Ok(RangeBacking {
            kind: BACKING_SYSV,
            fd_or_sysv_id: u32::try_from(id).map_err(|_| libc::EFAULT)?,
            inode: id,
            offset: first.file_offset + (addr - first.start) as u64,
            reachability_guard: ReachabilityGuard::Nothing,
        });
    }
    let region = sharing.register_region(&areas, (addr, len), share);
    let mut backing = RangeBacking::accessed_by_system_call();
    if let Some((handle, inode)) = region.shared_file_fd_and_inode() {
        backing = RangeBacking {
            kind: BACKING_ADDRESS_SPACE_MEMFD,
            fd_or_sysv_id: handle,
            inode,
            offset: addr as u64,
            ..backing
        };
    }
    backing.reachability_guard = ReachabilityGuard::SharedPrivatePages(region);
    Ok(backing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::alloc_shared;

    #[test]
    fn shared_memory_is_found_and_private_memory_is_private() {
        let m = alloc_shared(5000).unwrap();
        let at = m.as_ptr().addr();
        let b = find_or_make_backing(at + 100, 4900, true, false).unwrap();
        assert_eq!((b.kind, b.offset), (BACKING_MEMFD, 100));
        let v = Box::new([0u8; 100]);
        assert_eq!(
            find_or_make_backing(v.as_ptr().addr(), 100, true, false)
                .unwrap()
                .kind,
            BACKING_PRIVATE
        );
    }

    #[test]
    fn unmapped_and_read_only_memory_is_refused() {
        assert_eq!(
            find_or_make_backing(8, 8, false, false).err(),
            Some(libc::EFAULT)
        );
        assert_eq!(
            find_or_make_backing(usize::MAX, 8, false, false).err(),
            Some(libc::EFAULT)
        );
        let text = shared_memory_is_found_and_private_memory_is_private as fn() as usize;
        assert!(find_or_make_backing(text, 8, false, true).is_ok());
        assert_eq!(
            find_or_make_backing(text, 8, true, true).err(),
            Some(libc::EFAULT)
        );
    }
}
