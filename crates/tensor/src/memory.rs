//! Memory that tensors are sent from and come into.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use verbs::{Access, MemoryRegion, ProtectionDomain, VerbError};

use crate::meta::TensorMeta;

/// Bytes of freed memory that are kept for the next tensors, unless configured.
pub const DEFAULT_MAX_FREE_POOL_BYTES: usize = 512 << 20;

/// A tensor: what it is, and its bytes. Clones are the same tensor.
#[derive(Clone)]
pub struct Tensor {
    pub(crate) meta: TensorMeta,
    // Before the owner: the last use of a region deregisters it.
    pub(crate) memory: TensorMemory,
    owner: Option<MemoryKeeper>,
}

/// Something that keeps memory.
type MemoryKeeper = Arc<dyn Send + Sync>;

/// The bytes of a tensor.
#[derive(Clone)]
pub(crate) enum TensorMemory {
    /// There are none.
    Empty,
    /// Somebody else's, registered.
    RegisteredByCaller(Arc<MemoryRegion>),
    /// Of a [`RegisteredPool`].
    Pooled(Arc<PooledMemory>),
}

impl TensorMemory {
    /// The region, if there are bytes.
    pub(crate) fn region(&self) -> Option<&MemoryRegion> {
        match self {
            Self::Empty => None,
            Self::RegisteredByCaller(region) => Some(region),
            Self::Pooled(pooled) => pooled.region.as_ref(),
        }
    }

    /// Has memory of a pool deregistered after its last use, as other memory is.
    pub(crate) fn prevent_reuse(&self) {
        if let Self::Pooled(pooled) = self {
            pooled.never_reuse.store(true, Ordering::Relaxed);
        }
    }
}

impl Tensor {
    /// A tensor whose bytes are the first of a region; none for an empty tensor.
    ///
    /// The bytes must not change while the tensor is published: a receiver may find old and new ones.
    ///
    /// # Errors
    /// Gives the region back when it is shorter than the tensor.
    pub fn new(
        meta: TensorMeta,
        region: Option<Arc<MemoryRegion>>,
    ) -> Result<Self, Option<Arc<MemoryRegion>>> {
        let there = region.as_ref().map_or(0, |r| r.len() as u64);
        if there < meta.total_bytes() {
            return Err(region);
        }
        let memory = region.map_or(TensorMemory::Empty, TensorMemory::RegisteredByCaller);
        Ok(Self::in_memory(meta, memory))
    }

    /// A tensor in this memory, which is large enough.
    pub(crate) fn in_memory(meta: TensorMeta, memory: TensorMemory) -> Self {
        Self {
            meta,
            memory,
            owner: None,
        }
    }

    /// The same tensor, which keeps `owner` until neither this process nor the NIC uses the memory any more.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Send + Sync + 'static) -> Self {
        self.owner = Some(Arc::new(owner));
        self
    }

    /// Returns the metadata of the tensor.
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// The memory with its bytes; the region may be longer. None if it is empty.
    pub fn region(&self) -> Option<&MemoryRegion> {
        self.memory.region().filter(|_| self.meta.total_bytes() > 0)
    }

    /// A copy of its bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let len = usize::try_from(self.meta.total_bytes()).unwrap_or(0);
        let mut bytes = vec![0; len];
        if let Some(region) = self.region() {
            // A tensor is inside of its region.
            let _ = region.read_at(0, &mut bytes);
        }
        bytes
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({})", self.meta)
    }
}

/// Registered memory that is used again: registering takes longer than most transfers.
#[derive(Debug)]
pub(crate) struct RegisteredPool {
    pd: ProtectionDomain,
    free: Mutex<FreeRegions>,
    max_free_bytes: usize,
}

#[derive(Debug, Default)]
struct FreeRegions {
    by_size: HashMap<usize, Vec<MemoryRegion>>,
    total_bytes: usize,
}

/// Memory of a pool, which goes back there.
#[derive(Debug)]
pub(crate) struct PooledMemory {
    region: Option<MemoryRegion>,
    pool: Arc<RegisteredPool>,
    /// A peer may still WRITE here: the region is deregistered and does not go back.
    never_reuse: AtomicBool,
}

impl RegisteredPool {
    pub(crate) fn new(pd: ProtectionDomain, keep_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            pd,
            free: Mutex::default(),
            max_free_bytes: keep_bytes,
        })
    }

    /// Memory for a tensor that comes.
    pub(crate) fn allocate_for_tensor(
        self: &Arc<Self>,
        meta: &TensorMeta,
    ) -> Result<TensorMemory, VerbError> {
        let len = usize::try_from(meta.total_bytes()).unwrap_or(usize::MAX);
        if len == 0 {
            return Ok(TensorMemory::Empty);
        }
        let size = round_up_to_size_class(len);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = match self.take_free(size) {
            Some(region) => region,
            None => self.pd.alloc(size, access)?,
        };
        Ok(TensorMemory::Pooled(Arc::new(PooledMemory {
            region: Some(region),
            pool: Arc::clone(self),
            never_reuse: AtomicBool::new(false),
        })))
    }

    fn take_free(&self, size: usize) -> Option<MemoryRegion> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let region = free.by_size.get_mut(&size)?.pop()?;
        free.total_bytes -= size;
        Some(region)
    }
}

/// Sizes of memory: an eighth is lost at most above 32 KiB.
fn round_up_to_size_class(len: usize) -> usize {
    let step = (len.next_power_of_two() / 8).max(4096);
    len.next_multiple_of(step)
}

impl Drop for PooledMemory {
    fn drop(&mut self) {
        let Some(region) = self.region.take() else {
            return;
        };
        if *self.never_reuse.get_mut() {
            return;
        }
        let free = self.pool.free.lock();
        let mut free = free.unwrap_or_else(PoisonError::into_inner);
        if free.total_bytes + region.len() <= self.pool.max_free_bytes {
            free.total_bytes += region.len();
            free.by_size.entry(region.len()).or_default().push(region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::DType;

    #[test]
    fn classes_hold_what_they_are_for() {
        for len in [1, 4096, 4097, 70_000, 1 << 26, (1 << 26) + 1] {
            let size = round_up_to_size_class(len);
            assert!(size >= len && size <= len + len / 4 + 4096, "{len}: {size}");
        }
    }

    #[test]
    fn memory_is_used_again_until_there_is_enough() {
        let context = verbs::Provider::softnic().device(None).expect("there");
        let pd = context.open().expect("opens").alloc_pd().expect("a PD");
        let pool = RegisteredPool::new(pd, 8192);
        let meta = |n| TensorMeta::new(DType::U8, vec![n]).expect("small");
        let address = |m: &TensorMemory| m.region().map(MemoryRegion::addr);
        let first = pool.allocate_for_tensor(&meta(100)).expect("memory");
        let was = address(&first);
        drop(first);
        let again = pool.allocate_for_tensor(&meta(4000)).expect("memory");
        assert_eq!(address(&again), was);
        let large = pool.allocate_for_tensor(&meta(100_000)).expect("memory");
        drop((again, large));
        let free = pool.free.lock().expect("whole").total_bytes;
        assert_eq!(free, 4096, "the large one was not kept");
        assert!(
            pool.allocate_for_tensor(&meta(0))
                .expect("nothing")
                .region()
                .is_none()
        );
    }

    #[test]
    fn memory_that_a_peer_may_write_is_not_used_again() {
        let context = verbs::Provider::softnic().device(None).expect("there");
        let pd = context.open().expect("opens").alloc_pd().expect("a PD");
        let pool = RegisteredPool::new(pd, 8192);
        let meta = TensorMeta::new(DType::U8, vec![100]).expect("small");
        let memory = pool.allocate_for_tensor(&meta).expect("memory");
        memory.clone().prevent_reuse();
        drop(memory);
        assert_eq!(pool.free.lock().expect("whole").total_bytes, 0);
    }
}
