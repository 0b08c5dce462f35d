//! Memory windows.

use std::ffi::c_uint;

use crate::context::ibv_context;
use crate::mr::ibv_mr;
use crate::pd::ibv_pd;

c_consts! {
    /// Type of a memory window: type 1 is bound by `ibv_bind_mw`, type 2 by a send WR.
    enum ibv_mw_type: u32 {
        IBV_MW_TYPE_1 = 1,
        IBV_MW_TYPE_2 = 2,
    }
}

c_types! {
    /// The memory region and the address range to which a memory window is bound.
    #[derive(Clone, Copy, Debug)]
    struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    /// A memory window: `ibv_alloc_mw(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_mw {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        rkey: u32,
        handle: u32,
        r#type: ibv_mw_type,
    }

    /// The bind request of `ibv_bind_mw(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_mw_bind {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }
}
