//! Memory regions, access rights, device memory.

use std::ffi::{c_int, c_void};

use crate::context::ibv_context;
use crate::pd::ibv_pd;

c_consts! {
    /// Bits of [`ibv_dm::comp_mask`].
    enum ibv_dm_mask: u32 {
        IBV_DM_MASK_HANDLE = 1 << 0,
    }

    /// Access rights of memory regions and of QPs; an `int`, as the parameter of `ibv_reg_mr`.
    enum ibv_access_flags: c_int {
        IBV_ACCESS_LOCAL_WRITE = 1,
        IBV_ACCESS_REMOTE_WRITE = 1 << 1,
        IBV_ACCESS_REMOTE_READ = 1 << 2,
        IBV_ACCESS_REMOTE_ATOMIC = 1 << 3,
        IBV_ACCESS_MW_BIND = 1 << 4,
        IBV_ACCESS_ZERO_BASED = 1 << 5,
        IBV_ACCESS_ON_DEMAND = 1 << 6,
        IBV_ACCESS_HUGETLB = 1 << 7,
        IBV_ACCESS_RELAXED_ORDERING = 1 << 20,
    }

    /// Flags of `ibv_rereg_mr(3)`.
    enum ibv_rereg_mr_flags: c_int {
        IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0,
        IBV_REREG_MR_CHANGE_PD = 1 << 1,
        IBV_REREG_MR_CHANGE_ACCESS = 1 << 2,
        IBV_REREG_MR_FLAGS_SUPPORTED = (IBV_REREG_MR_CHANGE_ACCESS << 1) - 1,
    }

    /// Errors of `ibv_rereg_mr(3)`. Up to [`IBV_REREG_MR_ERR_DONT_FORK_NEW`], the old region is
    /// still valid. With [`IBV_REREG_MR_ERR_DO_FORK_OLD`], the new region is valid. After the other
    /// errors, neither region may be used.
    enum ibv_rereg_mr_err_code: c_int {
        IBV_REREG_MR_ERR_INPUT = -1,
        IBV_REREG_MR_ERR_DONT_FORK_NEW = -2,
        IBV_REREG_MR_ERR_DO_FORK_OLD = -3,
        IBV_REREG_MR_ERR_CMD = -4,
        IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW = -5,
    }

    /// Advice about memory regions: `ibv_advise_mr(3)`.
    enum ibv_advise_mr_advice: u32 {
        IBV_ADVISE_MR_ADVICE_PREFETCH = 0,
        IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE = 1,
        IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT = 2,
    }

    /// Flags of `ibv_advise_mr(3)`.
    consts advise_mr_flags: u32 {
        IBV_ADVISE_MR_FLAG_FLUSH = 1 << 0,
    }

    /// The range of bits of [`ibv_access_flags`] that a provider may ignore.
    consts optional_access_flags: c_int {
        IBV_ACCESS_OPTIONAL_FIRST = 1 << 20,
        IBV_ACCESS_OPTIONAL_RANGE = 0x3ff0_0000,
    }
}

c_types! {
    /// Attributes for the allocation of device memory: `ibv_alloc_dm(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_alloc_dm_attr {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }

    /// Device memory.
    #[derive(Clone, Copy, Debug)]
    struct ibv_dm {
        context: *mut ibv_context,
        memcpy_to_dm: Option<
            unsafe extern "C" fn(
                dm: *mut ibv_dm,
                dm_offset: u64,
                host_addr: *const c_void,
                length: usize,
            ) -> c_int,
        >,
        memcpy_from_dm: Option<
            unsafe extern "C" fn(
                host_addr: *mut c_void,
                dm: *mut ibv_dm,
                dm_offset: u64,
                length: usize,
            ) -> c_int,
        >,
        comp_mask: u32,
        handle: u32,
    }

    /// A memory region: `ibv_reg_mr(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }
}
