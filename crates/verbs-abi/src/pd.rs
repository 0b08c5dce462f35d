//! Protection, thread, parent and XRC domains.

use std::ffi::{c_int, c_void};

use crate::context::ibv_context;

c_consts! {
    /// Bits of [`ibv_xrcd_init_attr::comp_mask`].
    enum ibv_xrcd_init_attr_mask: u32 {
        IBV_XRCD_INIT_ATTR_FD = 1 << 0,
        IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1,
        IBV_XRCD_INIT_ATTR_RESERVED = 1 << 2,
    }

    /// Bits of [`ibv_parent_domain_init_attr::comp_mask`].
    enum ibv_parent_domain_init_attr_mask: u32 {
        IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0,
        IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1,
    }
}

c_types! {
    /// A protection domain: `ibv_alloc_pd(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    /// Attributes for the creation of a thread domain: `ibv_alloc_td(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_td_init_attr {
        comp_mask: u32,
    }

    /// A thread domain.
    #[derive(Clone, Copy, Debug)]
    struct ibv_td {
        context: *mut ibv_context,
    }

    /// Attributes for opening an XRC domain: `ibv_open_xrcd(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_xrcd_init_attr {
        comp_mask: u32,
        fd: c_int,
        oflags: c_int,
    }

    /// An XRC domain.
    #[derive(Clone, Copy, Debug)]
    struct ibv_xrcd {
        context: *mut ibv_context,
    }

    /// Attributes for the creation of a parent domain: `ibv_alloc_parent_domain(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_parent_domain_init_attr {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                pd_context: *mut c_void,
                size: usize,
                alignment: usize,
                resource_type: u64,
            ) -> *mut c_void,
        >,
        free: Option<
            unsafe extern "C" fn(
                pd: *mut ibv_pd,
                pd_context: *mut c_void,
                ptr: *mut c_void,
                resource_type: u64,
            ),
        >,
        pd_context: *mut c_void,
    }
}
