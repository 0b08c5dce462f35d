//! FLUSH and atomic write: additions to `<infiniband/verbs.h>` since rdma-core 45 (IBTA vol. 1,
//! annex A19).
//!
//! The headers that the test `layout` compares with lack these additions, so the tables of this
//! crate do not contain them. The values are the kernel's, of
//! `linux:include/uapi/rdma/ib_user_verbs.h` and `ib_user_ioctl_verbs.h`, which cannot change.

use crate::mr::ibv_access_flags;
use crate::qp::ibv_qp_ex;
use crate::wc::ibv_wc_opcode;
use crate::wr::ibv_wr_opcode;

/// Bit of `device_cap_flags_ex`: the device supports FLUSH with global visibility.
pub const IBV_DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
/// Bit of `device_cap_flags_ex`: the device supports atomic write.
pub const IBV_DEVICE_ATOMIC_WRITE: u64 = 1 << 40;
/// Access right for FLUSH with global visibility.
pub const IBV_ACCESS_FLUSH_GLOBAL: ibv_access_flags = 1 << 8;
/// Access right for FLUSH to persistence.
pub const IBV_ACCESS_FLUSH_PERSISTENT: ibv_access_flags = 1 << 9;
/// Operation of a work request: FLUSH.
pub const IBV_WR_FLUSH: ibv_wr_opcode = 14;
/// Operation in the completion of a FLUSH.
pub const IBV_WC_FLUSH: ibv_wc_opcode = 8;
/// Bit of `send_ops_flags`: the program uses [`ibv_qp_ex_with_flush::wr_flush`].
pub const IBV_QP_EX_WITH_FLUSH: u64 = 1 << 11;
/// Bit of `enum ibv_placement_type`: flushed data is globally visible, to every reader of the
/// memory.
pub const IBV_FLUSH_GLOBAL: u8 = 1 << 0;
/// Bit of `enum ibv_placement_type`: flushed data survives a loss of power.
pub const IBV_FLUSH_PERSISTENT: u8 = 1 << 1;
/// `enum ibv_selectivity_level`: flush the address range in the work request.
pub const IBV_FLUSH_RANGE: u8 = 0;
/// `enum ibv_selectivity_level`: flush the whole memory region of the R_Key.
pub const IBV_FLUSH_MR: u8 = 1;

/// A queue pair with the extended post API since rdma-core 45: [`ibv_qp_ex`] with one more
/// operation. The last field exists only if the queue pair was created with
/// [`IBV_QP_EX_WITH_FLUSH`]; otherwise the structure may end before this field.
#[repr(C)]
#[allow(
    missing_debug_implementations,
    reason = "as the queue pair that it begins with"
)]
pub struct ibv_qp_ex_with_flush {
    /// The extended queue pair as it was before rdma-core 45.
    pub ex: ibv_qp_ex,
    /// Operation of `ibv_wr_flush(3)`. `placement` is `IBV_FLUSH_GLOBAL`, `IBV_FLUSH_PERSISTENT` or
    /// both; `selectivity` is `IBV_FLUSH_RANGE` or `IBV_FLUSH_MR`.
    pub wr_flush: Option<
        unsafe extern "C" fn(
            qp: *mut ibv_qp_ex,
            rkey: u32,
            remote_addr: u64,
            len: usize,
            placement: u8,
            selectivity: u8,
        ),
    >,
}
