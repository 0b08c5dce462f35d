//! Device memory, which is memory of the host here: shared memory that peers can map.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use shm::mem::SharedMemory;
use verbs_abi::{IBV_DM_MASK_HANDLE, ibv_dm};

use crate::abi_cell::AbiCell;
use crate::imports::{MaybeShared, SharedObject};
use crate::live_handles;

/// Device memory; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Dm {
    abi: AbiCell<ibv_dm>,
    memory: SharedMemory,
    pub(crate) shared_object: SharedObject,
}

live_handles::object!(Dm, ibv_dm);

impl MaybeShared for Dm {
    fn shared_object(&self) -> Option<&SharedObject> {
        Some(&self.shared_object)
    }
}

impl Dm {
    /// Makes device memory. `abi` is the program's structure, except for its handle.
    pub(crate) fn new(mut abi: ibv_dm, of: SharedObject, memory: SharedMemory) -> Self {
        abi.comp_mask = IBV_DM_MASK_HANDLE;
        abi.handle = of.handle();
        let abi = AbiCell::new(abi);
        Self {
            abi,
            memory,
            shared_object: of,
        }
    }

    /// Counts a memory region that is made of the device memory, and [leaves](Self::remove_region_use) it at its end.
    pub(crate) fn add_region_use(&self) {
        if let Some(uses) = self.shared_object.derived_object_count() {
            uses.fetch_add(1, Ordering::Release);
        }
    }

    pub(crate) fn remove_region_use(&self) {
        if let Some(uses) = self.shared_object.derived_object_count() {
            uses.fetch_sub(1, Ordering::Release);
        }
    }

    /// Returns the address of `length` bytes at `offset`. With `words`, both must be multiples of four bytes.
    pub(crate) fn checked_address(
        &self,
        offset: u64,
        length: usize,
        words: bool,
    ) -> Result<*mut c_void, c_int> {
        let offset = usize::try_from(offset).map_err(|_| libc::EINVAL)?;
        let end = offset.checked_add(length).ok_or(libc::EINVAL)?;
        let whole = offset.is_multiple_of(4) && length.is_multiple_of(4);
        if end > self.memory.len() || (words && !whole) {
            return Err(libc::EINVAL);
        }
        Ok(self.memory.as_ptr().wrapping_add(offset).cast())
    }
}
