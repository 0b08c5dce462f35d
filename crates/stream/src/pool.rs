//! The pool of registered blocks into which messages are received and from which they are sent.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use bytes::Bytes;
use verbs::{Access, MemoryRegion, MrSlice, ProtectionDomain, VerbError};

/// Minimum number of bytes that are registered by one call.
const MIN_SLAB_BYTES: usize = 2 << 20;

/// Allowed block sizes in bytes: the three block sizes of brpc.
pub const ALLOWED_BLOCK_BYTES: [u32; 3] = [8 << 10, 64 << 10, 2 << 20];

/// A pool of registered blocks of one size. Clones share the same pool.
///
/// The pool grows when it is empty and never shrinks: registered memory is reused.
#[derive(Clone)]
pub struct Pool {
    inner: Arc<Inner>,
}

struct Inner {
    pd: ProtectionDomain,
    block_bytes: u32,
    free_blocks: Mutex<Vec<BlockMemory>>,
    /// Registered regions in the order of their addresses. Regions are never removed, so blocks
    /// stay valid as long as the pool.
    slabs: RwLock<Vec<MemoryRegion>>,
}

/// A block in the pool that is not in use.
struct BlockMemory {
    ptr: *mut u8,
    slice: MrSlice,
}

// SAFETY: the pointer is into a region of the pool, which the holder of a `BlockMemory` keeps alive. Each
// block has a single holder.
unsafe impl Send for BlockMemory {}
// SAFETY: a shared reference to `BlockMemory` gives no access to the bytes.
unsafe impl Sync for BlockMemory {}

/// An exclusively owned block of registered memory. Dropping a block returns it to its pool.
///
/// Fill a block and [freeze](Self::freeze) it: a [`Stream`](crate::Stream) sends the frozen bytes
/// without copying them.
pub struct Block {
    memory: Option<BlockMemory>,
    pool: Arc<Inner>,
}

impl Pool {
    /// Creates a pool of blocks of `block_bytes`, one of [`ALLOWED_BLOCK_BYTES`].
    pub(crate) fn new(pd: &ProtectionDomain, block_bytes: u32) -> Self {
        Self {
            inner: Arc::new(Inner {
                pd: pd.clone(),
                block_bytes,
                free_blocks: Mutex::new(Vec::new()),
                slabs: RwLock::new(Vec::new()),
            }),
        }
    }

    /// Returns the size of a block in bytes.
    pub fn block_bytes(&self) -> usize {
        usize::try_from(self.inner.block_bytes).unwrap_or(usize::MAX)
    }

    /// Returns the number of bytes that the pool has registered now.
    pub fn registered_bytes(&self) -> usize {
        let slabs = self.inner.slabs.read();
        let slabs = slabs.unwrap_or_else(PoisonError::into_inner);
        slabs.iter().map(MemoryRegion::len).sum()
    }

    /// Takes a block out of the pool. The content of the block is unspecified.
    ///
    /// # Errors
    /// Returns an error if memory cannot be allocated or registered.
    pub fn take_block(&self) -> Result<Block, VerbError> {
        let mut free = self.inner.lock_free_blocks();
        if free.is_empty() {
            self.grow(&mut free)?;
        }
        Ok(Block {
            memory: free.pop(),
            pool: Arc::clone(&self.inner),
        })
    }

    fn grow(&self, free: &mut Vec<BlockMemory>) -> Result<(), VerbError> {
        let block = self.block_bytes();
        let region = self
            .inner
            .pd
            .alloc(MIN_SLAB_BYTES.max(block), Access::LOCAL_WRITE)?;
        for offset in (0..region.len()).step_by(block) {
            let slice = region
                .slice(offset..offset + block)
                .expect("a block of the region");
            // SAFETY: the offset is inside of the region.
            let ptr = unsafe { region.as_mut_ptr().add(offset) };
            free.push(BlockMemory { ptr, slice });
        }
        let slabs = self.inner.slabs.write();
        let mut slabs = slabs.unwrap_or_else(PoisonError::into_inner);
        let at = slabs.partition_point(|slab| slab.addr() < region.addr());
        slabs.insert(at, region);
        Ok(())
    }

    /// Returns the scatter/gather element for bytes in this pool's memory, or `None` if `bytes` lie
    /// elsewhere.
    pub(crate) fn find_registered_slice(&self, bytes: &[u8]) -> Option<MrSlice> {
        let addr = bytes.as_ptr().addr() as u64;
        let slabs = self.inner.slabs.read();
        let slabs = slabs.unwrap_or_else(PoisonError::into_inner);
        let after = slabs.partition_point(|slab| slab.addr() <= addr);
        let slab = slabs.get(after.checked_sub(1)?)?;
        let start = usize::try_from(addr - slab.addr()).ok()?;
        slab.slice(start..start.checked_add(bytes.len())?).ok()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (block, all) = (self.block_bytes(), self.registered_bytes());
        write!(f, "Pool(blocks of {block} bytes, {all} bytes registered)")
    }
}

impl Inner {
    fn lock_free_blocks(&self) -> MutexGuard<'_, Vec<BlockMemory>> {
        self.free_blocks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Block {
    fn memory(&self) -> &BlockMemory {
        self.memory.as_ref().expect("a block until it is dropped")
    }

    /// Returns the whole block, as a WR's scatter/gather element.
    pub(crate) fn slice(&self) -> MrSlice {
        self.memory().slice
    }

    /// Returns the bytes of the block. No receive may be posted for this block.
    fn bytes(&self) -> &[u8] {
        let free = self.memory();
        // SAFETY: the memory is live, and initialised because it was zeroed at first. Nothing
        // writes to it: the block's only holder is borrowed, no peer may write (the region has
        // `LOCAL_WRITE` alone), and the NIC writes only while a receive is posted. `Connection`
        // exposes a block only between its receive's completion and the next post. A block that was
        // dropped while a receive is posted was dropped after its queue pair (`Connection::drop`),
        // which ends the receive.
        unsafe { std::slice::from_raw_parts(free.ptr, free.slice.len() as usize) }
    }

    /// Returns all bytes of the block.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let free = self.memory();
        // SAFETY: as in `bytes`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(free.ptr, free.slice.len() as usize) }
    }

    /// Freezes the first `len` bytes of the block, to be sent or kept. The block returns to its
    /// pool when the last clone of the frozen bytes is dropped.
    ///
    /// # Panics
    /// Panics if the block is shorter than `len`.
    pub fn freeze(self, len: usize) -> Bytes {
        self.freeze_range(0..len)
    }

    /// Freezes a range of the block.
    pub(crate) fn freeze_range(self, range: Range<usize>) -> Bytes {
        Bytes::from_owner(self).slice(range)
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(free) = self.memory.take() {
            self.pool.lock_free_blocks().push(free);
        }
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block({} bytes)", self.slice().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(block_bytes: u32) -> Pool {
        let device = verbs::Provider::softnic().device(None).expect("a device");
        let pd = device.open().expect("opens").alloc_pd();
        Pool::new(&pd.expect("a domain"), block_bytes)
    }

    #[test]
    fn blocks_are_used_again_after_the_last_clone() {
        let pool = pool(8 << 10);
        let mut block = pool.take_block().expect("memory");
        block.as_mut_slice()[..5].copy_from_slice(b"hello");
        let bytes = block.freeze(5);
        let (at, part) = (bytes.as_ptr(), bytes.slice(1..3));
        drop(bytes);
        assert_ne!(pool.take_block().expect("memory").as_ref().as_ptr(), at);
        assert_eq!(&part[..], b"el");
        drop(part);
        assert_eq!(pool.take_block().expect("memory").as_ref().as_ptr(), at);
    }

    #[test]
    fn memory_of_the_pool_is_recognised() {
        let pool = pool(64 << 10);
        let held: Vec<_> = (0..40)
            .map(|_| pool.take_block().expect("memory"))
            .collect();
        assert_eq!(pool.registered_bytes(), 2 * MIN_SLAB_BYTES);
        for block in held {
            let whole = block.slice();
            let bytes = block.freeze(1000).slice(10..);
            let found = pool.find_registered_slice(&bytes).expect("registered");
            assert_eq!(Some(found), whole.subrange(10..1000));
        }
        assert_eq!(pool.find_registered_slice(b"not registered"), None);
    }
}
