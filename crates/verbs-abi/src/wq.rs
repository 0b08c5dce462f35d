//! Work queues of raw packet QPs.

use std::ffi::{c_int, c_void};
use libc::{pthread_cond_t, pthread_mutex_t};

use crate::context::ibv_context;
use crate::cq::ibv_cq;
use crate::pd::ibv_pd;
use crate::wr::ibv_recv_wr;

c_consts! {
    /// Kind of a work queue.
    enum ibv_wq_type: u32 {
        IBV_WQT_RQ = 0,
    }

    /// Bits of [`ibv_wq_init_attr::comp_mask`].
    enum ibv_wq_init_attr_mask: u32 {
        IBV_WQ_INIT_ATTR_FLAGS = 1 << 0,
        IBV_WQ_INIT_ATTR_RESERVED = 1 << 1,
    }

    /// Bits of [`ibv_wq_init_attr::create_flags`] and [`ibv_wq_attr::flags`].
    enum ibv_wq_flags: u32 {
        IBV_WQ_FLAGS_CVLAN_STRIPPING = 1 << 0,
        IBV_WQ_FLAGS_SCATTER_FCS = 1 << 1,
        IBV_WQ_FLAGS_DELAY_DROP = 1 << 2,
        IBV_WQ_FLAGS_PCI_WRITE_END_PADDING = 1 << 3,
        IBV_WQ_FLAGS_RESERVED = 1 << 4,
    }

    /// State of a work queue.
    enum ibv_wq_state: u32 {
        IBV_WQS_RESET = 0,
        IBV_WQS_RDY = 1,
        IBV_WQS_ERR = 2,
        IBV_WQS_UNKNOWN = 3,
    }

    /// Bits of [`ibv_wq_attr::attr_mask`].
    enum ibv_wq_attr_mask: u32 {
        IBV_WQ_ATTR_STATE = 1 << 0,
        IBV_WQ_ATTR_CURR_STATE = 1 << 1,
        IBV_WQ_ATTR_FLAGS = 1 << 2,
        IBV_WQ_ATTR_RESERVED = 1 << 3,
    }

    /// Bits of [`ibv_rwq_ind_table_init_attr::comp_mask`].
    enum ibv_ind_table_init_attr_mask: u32 {
        IBV_CREATE_IND_TABLE_RESERVED = 1 << 0,
    }
}

c_types! {
    /// Attributes for the creation of a work queue: `ibv_create_wq(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_wq_init_attr {
        wq_context: *mut c_void,
        wq_type: ibv_wq_type,
        max_wr: u32,
        max_sge: u32,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        comp_mask: u32,
        create_flags: u32,
    }

    /// The attributes that `ibv_modify_wq(3)` changes.
    #[derive(Clone, Copy, Debug)]
    struct ibv_wq_attr {
        attr_mask: u32,
        wq_state: ibv_wq_state,
        curr_wq_state: ibv_wq_state,
        flags: u32,
        flags_mask: u32,
    }

    /// An indirection table: the receive work queues over which packets are distributed.
    #[derive(Clone, Copy, Debug)]
    struct ibv_rwq_ind_table {
        context: *mut ibv_context,
        ind_tbl_handle: c_int,
        ind_tbl_num: c_int,
        comp_mask: u32,
    }

    /// Attributes for the creation of an indirection table: `ibv_create_rwq_ind_table(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_rwq_ind_table_init_attr {
        log_ind_tbl_size: u32,
        ind_tbl: *mut *mut ibv_wq,
        comp_mask: u32,
    }

    /// A work queue that raw packet QPs share.
    struct ibv_wq {
        context: *mut ibv_context,
        wq_context: *mut c_void,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        wq_num: u32,
        handle: u32,
        state: ibv_wq_state,
        wq_type: ibv_wq_type,
        post_recv: Option<
            unsafe extern "C" fn(
                current: *mut ibv_wq,
                recv_wr: *mut ibv_recv_wr,
                bad_recv_wr: *mut *mut ibv_recv_wr,
            ) -> c_int,
        >,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
        comp_mask: u32,
    }
}
