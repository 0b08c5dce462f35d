//! The result of an address resolution that an id keeps until the program asks for it.

use verbs_abi::rdma_addrinfo;

/// A list of addresses, which is freed with this unless it was given away.
pub(crate) struct Found {
    list: *mut rdma_addrinfo,
    free: unsafe extern "C" fn(*mut rdma_addrinfo),
}

// SAFETY: nobody else knows the list (contract of `Found::new`), so it belongs to whoever has this.
unsafe impl Send for Found {}

impl Found {
    /// # Safety
    /// `free` may be called once with `list`, which nobody else knows.
    pub(crate) unsafe fn new(
        list: *mut rdma_addrinfo,
        free: unsafe extern "C" fn(*mut rdma_addrinfo),
    ) -> Self {
        Self { list, free }
    }

    /// Gives the list away.
    pub(crate) fn into_list(mut self) -> *mut rdma_addrinfo {
        std::mem::replace(&mut self.list, std::ptr::null_mut())
    }
}

impl Drop for Found {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: contract of `Found::new`; `into_list` leaves NULL behind.
            unsafe { (self.free)(self.list) };
        }
    }
}
