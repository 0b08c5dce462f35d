//! Additions to `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>` in rdma-core 57 to 65: DMA handles, `ibv_reg_mr_ex`,
//! buffers, completion counters, and address resolution by events.
//!
//! The headers that the test `layout` compares with lack these additions, so the tables of this crate do not contain
//! them. Layouts and values are those of the headers of rdma-core 65.

use std::ffi::{c_int, c_void};

use crate::context::ibv_context;

/// Bit of [`ibv_dmah_init_attr::comp_mask`]: `cpu_id` is set.
pub const IBV_DMAH_INIT_ATTR_MASK_CPU_ID: u32 = 1 << 0;
/// Bit of [`ibv_dmah_init_attr::comp_mask`]: `ph` is set.
pub const IBV_DMAH_INIT_ATTR_MASK_PH: u32 = 1 << 1;
/// Bit of [`ibv_dmah_init_attr::comp_mask`]: `tph_mem_type` is set.
pub const IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE: u32 = 1 << 2;
/// The largest value of `enum ibv_tph_mem_type`: persistent memory.
pub const IBV_TPH_MEM_TYPE_PM: u8 = 1;

/// Hints for the PCIe transactions of a memory region: `ibv_alloc_dmah(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_dmah_init_attr {
    /// The fields that are set, as `IBV_DMAH_INIT_ATTR_MASK_*` bits.
    pub comp_mask: u32,
    /// The core that will read the data.
    pub cpu_id: u32,
    /// Processing hints (PCIe base specification 6.0, 6.17): 0 to 3.
    pub ph: u8,
    /// Type of the memory: 0 is volatile memory, 1 persistent memory.
    pub tph_mem_type: u8,
}

/// A DMA handle.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_dmah {
    /// The device on which the handle was allocated.
    pub context: *mut ibv_context,
}

/// Bit of [`ibv_mr_init_attr::comp_mask`]: `iova` is set.
pub const IBV_REG_MR_MASK_IOVA: u64 = 1 << 0;
/// Bit of [`ibv_mr_init_attr::comp_mask`]: `addr` is set.
pub const IBV_REG_MR_MASK_ADDR: u64 = 1 << 1;
/// Bit of [`ibv_mr_init_attr::comp_mask`]: `fd` is set.
pub const IBV_REG_MR_MASK_FD: u64 = 1 << 2;
/// Bit of [`ibv_mr_init_attr::comp_mask`]: `fd_offset` is set.
pub const IBV_REG_MR_MASK_FD_OFFSET: u64 = 1 << 3;
/// Bit of [`ibv_mr_init_attr::comp_mask`]: `dmah` is set.
pub const IBV_REG_MR_MASK_DMAH: u64 = 1 << 4;
/// Bit of [`ibv_mr_init_attr::comp_mask`]: [`ibv_mr_init_attr_with_buf::buf`] is set.
pub const IBV_REG_MR_MASK_BUF: u64 = 1 << 5;

/// Attributes of a memory region for `ibv_reg_mr_ex(3)`, before the addition of buffers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mr_init_attr {
    /// The length in bytes.
    pub length: usize,
    /// The access rights, as `ibv_access_flags`.
    pub access: c_int,
    /// The fields behind `comp_mask` that are set, as `IBV_REG_MR_MASK_*` bits.
    pub comp_mask: u64,
    /// The address of the first byte in work requests.
    pub iova: u64,
    /// The address of the first byte in memory.
    pub addr: *mut c_void,
    /// The file descriptor of a dma-buf.
    pub fd: c_int,
    /// The offset of the region in the dma-buf.
    pub fd_offset: u64,
    /// The DMA handle with the hints for PCIe transactions.
    pub dmah: *mut ibv_dmah,
}

/// Attributes of a memory region, since the addition of buffers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_mr_init_attr_with_buf {
    /// The attributes as they were before the addition of buffers.
    pub attr: ibv_mr_init_attr,
    /// The buffer that contains `addr`.
    pub buf: *mut ibv_buf,
}

/// A buffer: `ibv_alloc_buf(3)`; opaque to programs.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_buf {
    opaque: usize,
}

/// Value of [`ibv_comp_cntr_init_attr::kind`]: the counter counts work requests.
pub const IBV_COMP_CNTR_TYPE_WRS: u32 = 0;
/// Value of [`ibv_comp_cntr_init_attr::kind`]: the counter counts bytes.
pub const IBV_COMP_CNTR_TYPE_BYTES: u32 = 1;

/// Attributes for the creation of a completion counter: `ibv_create_comp_cntr(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_comp_cntr_init_attr {
    /// Reserved; no bit is defined.
    pub comp_mask: u32,
    /// Kind of the counter, `type` in C: one of `enum ibv_comp_cntr_type`.
    pub kind: u32,
    /// Flags of the counter; must be 0.
    pub flags: u32,
}

/// A completion counter. The header has the first two fields; programs do not allocate it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_comp_cntr {
    /// The device on which the counter was created.
    pub context: *mut ibv_context,
    /// The kernel's handle of the counter.
    pub handle: u32,
    /// The largest count of successes, after which the count wraps to 0.
    pub comp_count_max_value: u64,
    /// The largest count of errors, after which the count wraps to 0.
    pub err_count_max_value: u64,
}

/// Capabilities of the completion counters of a device: `ibv_query_comp_cntr_caps(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_comp_cntr_caps {
    /// The largest count that a counter can hold.
    pub max_value: u64,
    /// The maximum number of counters on the device.
    pub max_counters: u32,
    /// The operations that a counter can count, as `enum ibv_qp_attach_comp_cntr_op` bits.
    pub supported_qp_attach_ops: u32,
}

/// Bit of [`ibv_qp_attach_comp_cntr_attr::op_mask`]: the counter counts SENDs.
pub const IBV_QP_ATTACH_COMP_CNTR_OP_SEND: u32 = 1 << 0;
/// Bit of [`ibv_qp_attach_comp_cntr_attr::op_mask`]: the counter counts receive work requests.
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RECV: u32 = 1 << 1;
/// Bit of [`ibv_qp_attach_comp_cntr_attr::op_mask`]: the counter counts READs.
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ: u32 = 1 << 2;
/// Bit of [`ibv_qp_attach_comp_cntr_attr::op_mask`]: the counter counts WRITEs.
pub const IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE: u32 = 1 << 4;

/// The operations that a counter of a queue pair counts: `ibv_qp_attach_comp_cntr(3)`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ibv_qp_attach_comp_cntr_attr {
    /// Reserved; no bit is defined.
    pub comp_mask: u32,
    /// The operations that the counter counts, as `IBV_QP_ATTACH_COMP_CNTR_OP_*` bits.
    pub op_mask: u32,
}

/// Event of the connection manager: `rdma_resolve_addrinfo` has succeeded.
pub const RDMA_CM_EVENT_ADDRINFO_RESOLVED: u32 = 16;
/// Event of the connection manager: `rdma_resolve_addrinfo` has failed.
pub const RDMA_CM_EVENT_ADDRINFO_ERROR: u32 = 17;
/// Event of the connection manager: `rdma_write_cm_event` was called.
pub const RDMA_CM_EVENT_USER: u32 = 18;
/// Bit of `ai_flags`: resolve the address by the subnet administrator.
pub const RAI_SA: c_int = 0x10;
/// Bit of `ai_flags`: resolve the address by the name service. This is also the default without any bit.
pub const RAI_DNS: c_int = 0x20;
