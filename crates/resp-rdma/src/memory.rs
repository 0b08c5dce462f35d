//! The memory of connections: slots of slabs.
//!
//! A slab is one allocation for several connections, because each allocation takes a descriptor and a mapping of this
//! process, and a mapping of each peer. A peer still reaches only the receive buffer of its own connection: each receive
//! buffer is registered for itself.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use verbs::{Access, MemoryRegion, MrSlice, ProtectionDomain, RangeError, VerbError};

/// Bytes between the starts of the parts of a slot are a multiple of a page.
const PAGE_BYTES: usize = 4096;
/// The most slots of a slab. The first slab has one, and each later slab as many as there are slots so far.
const MAX_SLOTS_PER_SLAB: usize = 32;
/// Zeros with which a slot is cleared.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The slabs of a connector's connections. Clones share them.
#[derive(Clone)]
pub(crate) struct MemoryPool {
    pd: ProtectionDomain,
    layout: SlotLayout,
    slabs: Arc<Mutex<Vec<Slab>>>,
}

/// The parts of a slot in bytes.
#[derive(Clone, Copy)]
struct SlotLayout {
    receive_buffer_bytes: usize,
    private_bytes: usize,
}

impl SlotLayout {
    /// Returns the offset of the private memory, behind the receive buffer.
    fn private_offset(self) -> usize {
        self.receive_buffer_bytes.next_multiple_of(PAGE_BYTES)
    }

    fn slot_bytes(self) -> usize {
        self.private_offset() + self.private_bytes.next_multiple_of(PAGE_BYTES)
    }
}

struct Slab {
    region: Arc<MemoryRegion>,
    slot_count: usize,
    /// Offsets of the free slots, and whether a connection used the slot before.
    free_slots: Vec<(usize, bool)>,
}

/// The memory of one connection. Dropping it frees its slot.
pub(crate) struct ConnectionMemory {
    /// The receive buffer, into which the peer writes. `None` only while the memory is dropped.
    receive_buffer: Option<MemoryRegion>,
    slab_region: Arc<MemoryRegion>,
    offset: usize,
    pool: MemoryPool,
}

impl MemoryPool {
    pub(crate) fn new(
        pd: &ProtectionDomain,
        receive_buffer_bytes: usize,
        private_bytes: usize,
    ) -> Self {
        Self {
            pd: pd.clone(),
            layout: SlotLayout {
                receive_buffer_bytes,
                private_bytes,
            },
            slabs: Arc::default(),
        }
    }

    /// Takes a slot, whose bytes are zero.
    pub(crate) fn take(&self) -> Result<ConnectionMemory, VerbError> {
        let (slab_region, offset, used) = self.take_slot()?;
        let mut memory = ConnectionMemory {
            receive_buffer: None,
            slab_region,
            offset,
            pool: self.clone(),
        };
        if used {
            // The peer must not read what another client sent. Its immediate can count bytes that it did not write.
            memory.clear().expect("bytes of the slot");
        }
        let end = offset + self.layout.receive_buffer_bytes;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        memory.receive_buffer = Some(memory.slab_region.register_part(offset..end, access)?);
        Ok(memory)
    }

    /// Returns a free slot: its slab, its offset there, and whether a connection used it before.
    fn take_slot(&self) -> Result<(Arc<MemoryRegion>, usize, bool), VerbError> {
        let mut slabs = self.lock_slabs();
        // The newest slabs are the largest, and have free slots as long as connections come.
        let free = slabs.iter_mut().rev().find_map(|slab| {
            let (offset, used) = slab.free_slots.pop()?;
            Some((Arc::clone(&slab.region), offset, used))
        });
        if let Some(slot) = free {
            return Ok(slot);
        }
        let so_far: usize = slabs.iter().map(|slab| slab.slot_count).sum();
        let slot_count = so_far.clamp(1, MAX_SLOTS_PER_SLAB);
        let bytes = self.layout.slot_bytes();
        let region = self.pd.alloc(slot_count * bytes, Access::LOCAL_WRITE)?;
        let region = Arc::new(region);
        let free_slots = (1..slot_count).map(|n| (n * bytes, false)).collect();
        slabs.push(Slab {
            region: Arc::clone(&region),
            slot_count,
            free_slots,
        });
        Ok((region, 0, false))
    }

    /// Frees a slot. A slab without used slots is freed if another slab has free slots.
    fn free_slot(&self, region: &Arc<MemoryRegion>, offset: usize) {
        let mut slabs = self.lock_slabs();
        let of = |slab: &Slab| Arc::ptr_eq(&slab.region, region);
        let Some(at) = slabs.iter().position(of) else {
            return;
        };
        let Some(slab) = slabs.get_mut(at) else {
            return;
        };
        slab.free_slots.push((offset, true));
        let is_unused = slab.free_slots.len() == slab.slot_count;
        let others = slabs.iter().enumerate().filter(|(number, _)| *number != at);
        let others_have_free = others.into_iter().any(|(_, s)| !s.free_slots.is_empty());
        if is_unused && others_have_free {
            slabs.swap_remove(at);
        }
    }

    fn lock_slabs(&self) -> MutexGuard<'_, Vec<Slab>> {
        self.slabs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryPool({} slabs)", self.lock_slabs().len())
    }
}

impl ConnectionMemory {
    fn clear(&self) -> Result<(), RangeError> {
        let bytes = self.pool.layout.slot_bytes();
        for at in (0..bytes).step_by(ZEROS.len()) {
            let zeros = ZEROS.get(..ZEROS.len().min(bytes - at));
            self.slab_region
                .write_at(self.offset + at, zeros.unwrap_or_default())?;
        }
        Ok(())
    }

    /// Returns the receive buffer.
    pub(crate) fn receive_buffer(&self) -> &MemoryRegion {
        self.receive_buffer.as_ref().expect("memory that is in use")
    }

    /// Returns a range of the private memory for a WR; the range must be inside of it.
    pub(crate) fn private_slice(&self, range: Range<usize>) -> MrSlice {
        let at = self.offset_of_private();
        let slice = self.slab_region.slice(at + range.start..at + range.end);
        slice.expect("a range of the private memory")
    }

    /// Reads private memory; the bytes must be inside of it.
    pub(crate) fn read_private(&self, at: usize, into: &mut [u8]) {
        let read = self
            .slab_region
            .read_at(self.offset_of_private() + at, into);
        read.expect("bytes of the private memory");
    }

    /// Writes private memory; the bytes must be inside of it.
    pub(crate) fn write_private(&self, at: usize, bytes: &[u8]) {
        let written = self
            .slab_region
            .write_at(self.offset_of_private() + at, bytes);
        written.expect("bytes of the private memory");
    }

    fn offset_of_private(&self) -> usize {
        self.offset + self.pool.layout.private_offset()
    }
}

impl Drop for ConnectionMemory {
    fn drop(&mut self) {
        // From here on the peer has no access, so the slot can get another user.
        self.receive_buffer = None;
        self.pool.free_slot(&self.slab_region, self.offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool() -> MemoryPool {
        let context = verbs::Provider::softnic()
            .device(None)
            .expect("a device")
            .open()
            .expect("the software NIC");
        MemoryPool::new(&context.alloc_pd().expect("a domain"), 64 << 10, 5000)
    }

    #[test]
    fn slots_share_slabs_and_no_bytes() {
        let pool = pool();
        let mut all: Vec<ConnectionMemory> =
            (0..100).map(|_| pool.take().expect("memory")).collect();
        let slabs = pool.lock_slabs().len();
        assert_eq!(slabs, 9, "1, 1, 2, 4, 8, 16, 32, 32 and 32 slots");
        all.sort_by_key(|memory| memory.receive_buffer().addr());
        for pair in all.windows(2) {
            let end = pair[0].private_slice(0..5000).addr() + 5000;
            assert!(end <= pair[1].receive_buffer().addr());
            assert_ne!(
                pair[0].receive_buffer().rkey(),
                pair[1].receive_buffer().rkey()
            );
        }
        drop(all);
        assert_eq!(pool.lock_slabs().len(), 1);
    }

    #[test]
    fn a_slot_that_was_used_is_cleared() {
        let pool = pool();
        let first = pool.take().expect("memory");
        first
            .receive_buffer()
            .write_at(60_000, b"secret")
            .expect("inside");
        first.write_private(4000, b"secret");
        let at = first.receive_buffer().addr();
        drop(first);
        let second = pool.take().expect("memory");
        assert_eq!(second.receive_buffer().addr(), at);
        let mut bytes = [1; 6];
        second
            .receive_buffer()
            .read_at(60_000, &mut bytes)
            .expect("inside");
        assert_eq!(bytes, [0; 6]);
        bytes = [1; 6];
        second.read_private(4000, &mut bytes);
        assert_eq!(bytes, [0; 6]);
    }
}
