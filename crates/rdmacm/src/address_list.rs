//! The result of an address resolution that an id keeps until the program asks for it.

use verbs_abi::rdma_addrinfo;

/// A list of addresses, which is freed on drop unless [`into_list`](Self::into_list) gives it to the caller.
pub(crate) struct AddressList {
    list: *mut rdma_addrinfo,
    free_list_fn: unsafe extern "C" fn(*mut rdma_addrinfo),
}

// SAFETY: no other code has the list (contract of `AddressList::new`), so it may move to another thread with this
// value.
unsafe impl Send for AddressList {}

impl AddressList {
    /// # Safety
    /// `list` may be freed once with `free`, and no other code uses it.
    pub(crate) unsafe fn new(
        list: *mut rdma_addrinfo,
        free: unsafe extern "C" fn(*mut rdma_addrinfo),
    ) -> Self {
        Self {
            list,
            free_list_fn: free,
        }
    }

    /// Returns the list, which the caller must free.
    pub(crate) fn into_list(mut self) -> *mut rdma_addrinfo {
        std::mem::replace(&mut self.list, std::ptr::null_mut())
    }
}

impl Drop for AddressList {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: contract of `AddressList::new`. `into_list` leaves NULL behind, so the list is freed once.
            unsafe { (self.free_list_fn)(self.list) };
        }
    }
}
