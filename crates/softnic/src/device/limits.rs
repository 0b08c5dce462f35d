//! Limits of the device and lengths of its tables.

use std::ffi::c_int;

/// Most queue pairs of a context. 16 Ki leave room above the 10,000 that the benchmark connects.
pub(crate) const MAX_QP: u32 = 16_384;
/// Most WRs of one work queue. Bounds what one `ibv_create_qp` can make us allocate.
pub(crate) const MAX_QP_WR: u32 = 16_384;
/// Most scatter/gather elements of a WR; as Soft-RoCE (`RXE_MAX_SGE`).
pub(crate) const MAX_SGE: u32 = 32;
/// Most bytes of one WR's inline payload. Not in `ibv_device_attr`: `ibv_create_qp` refuses more.
///
/// A real NIC's inline payload must fit its largest WQE, about 1 KiB on mlx5.
pub(crate) const MAX_INLINE_DATA: u32 = 1024;
/// Most completion queues of a context: one for each queue pair.
pub(crate) const MAX_CQ: u32 = MAX_QP;
/// Most entries of a completion queue: 2^22 - 1, as mlx5 devices report.
pub(crate) const MAX_CQE: u32 = 4_194_303;
/// Most memory regions of a context: two for each queue pair.
pub(crate) const MAX_MR: u32 = 2 * MAX_QP;
/// Most bytes of a memory region: no object of a process is larger than `isize::MAX`.
pub(crate) const MAX_MR_SIZE: u64 = u64::MAX >> 1;
/// Most protection domains of a context.
pub(crate) const MAX_PD: u32 = 65_536;
/// Most outstanding READs and atomics of a queue pair, as responder; as Soft-RoCE
/// (`RXE_MAX_QP_RD_ATOM`).
pub(crate) const MAX_QP_RD_ATOM: u32 = 128;
/// Most outstanding READs and atomics of a queue pair, as requester; as Soft-RoCE
/// (`RXE_MAX_QP_INIT_RD_ATOM`).
pub(crate) const MAX_QP_INIT_RD_ATOM: u32 = 128;
/// Most shared receive queues of a context: one for each queue pair.
pub(crate) const MAX_SRQ: u32 = MAX_QP;
/// Most WRs of a shared receive queue: as for any other receive queue.
pub(crate) const MAX_SRQ_WR: u32 = MAX_QP_WR;
/// Most scatter/gather elements of a WR on a shared receive queue: as on any other.
pub(crate) const MAX_SRQ_SGE: u32 = MAX_SGE;
/// Most work queues of a table over which raw packets are spread: the size of its place in shared memory.
#[allow(clippy::cast_possible_truncation)] // 128
pub(crate) const MAX_IND_TBL_SIZE: u32 = shm::fabric::layout::MAX_IND_TBL as u32;
/// Bytes of the headers of a rendezvous message.
pub(crate) const MAX_RNDV_HEADER: u32 = 32;
/// Most entries of the list of a shared receive queue for tag matching. A message may have to be compared with each.
pub(crate) const MAX_TAGS: u32 = 1024;
/// Most operations on such a list whose completions have not been polled.
pub(crate) const MAX_TAG_OPS: u32 = 1024;
/// Most address handles of a context.
pub(crate) const MAX_AH: u32 = 65_536;

/// Most attachments of a process's queue pairs to multicast groups: the number of places in its table.
pub(super) const MAX_MCAST_ATTACHMENTS: u32 = 4096;
const _: () = assert!(MAX_MCAST_ATTACHMENTS as usize == shm::fabric::layout::MAX_MCAST_ATTACHMENTS);

/// Most bytes of device memory in one allocation: 256 KiB, about what ConnectX NICs have.
pub(crate) const MAX_DM_SIZE: u64 = 256 << 10;

/// Maximum number of entries of the GID table. An address vector names an entry by an 8-bit `sgid_index`, so no further
/// one could be used.
pub(crate) const MAX_GIDS: u32 = 256;
/// Entries of the P_Key table.
pub(crate) const PKEY_TBL_LEN: u16 = 1;
/// The default P_Key with full membership: the one that every
/// port starts with (`IB_DEFAULT_PKEY_FULL` of `linux:include/rdma/ib_mad.h`).
pub(crate) const DEFAULT_PKEY: u16 = 0xffff;
/// Most bytes of a message: 2^31, the largest DMA length of a RETH (IBTA vol. 1, 9.3.3).
pub(crate) const MAX_MSG_SZ: u32 = 1 << 31;

/// Returns a limit in the type of the C ABI.
pub(super) fn limit_as_c_int(limit: u32) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}
