//! Shared receive queues.

use std::ffi::{c_int, c_void};
use libc::{pthread_cond_t, pthread_mutex_t};

use crate::context::ibv_context;
use crate::cq::ibv_cq;
use crate::pd::{ibv_pd, ibv_xrcd};
use crate::wr::ibv_sge;

c_consts! {
    /// The valid fields of an [`ibv_srq_attr`]; an `int`, as the parameter of `ibv_modify_srq`.
    enum ibv_srq_attr_mask: c_int {
        IBV_SRQ_MAX_WR = 1 << 0,
        IBV_SRQ_LIMIT = 1 << 1,
    }

    /// Kind of an SRQ: [`ibv_srq_init_attr_ex::srq_type`].
    enum ibv_srq_type: u32 {
        IBV_SRQT_BASIC = 0,
        IBV_SRQT_XRC = 1,
        IBV_SRQT_TM = 2,
    }

    /// Bits of [`ibv_srq_init_attr_ex::comp_mask`].
    enum ibv_srq_init_attr_mask: u32 {
        IBV_SRQ_INIT_ATTR_TYPE = 1 << 0,
        IBV_SRQ_INIT_ATTR_PD = 1 << 1,
        IBV_SRQ_INIT_ATTR_XRCD = 1 << 2,
        IBV_SRQ_INIT_ATTR_CQ = 1 << 3,
        IBV_SRQ_INIT_ATTR_TM = 1 << 4,
        IBV_SRQ_INIT_ATTR_RESERVED = 1 << 5,
    }

    /// Operation of an [`ibv_ops_wr`].
    enum ibv_ops_wr_opcode: u32 {
        IBV_WR_TAG_ADD = 0,
        IBV_WR_TAG_DEL = 1,
        IBV_WR_TAG_SYNC = 2,
    }

    /// Bits of [`ibv_ops_wr::flags`].
    enum ibv_ops_flags: u32 {
        IBV_OPS_SIGNALED = 1 << 0,
        IBV_OPS_TM_SYNC = 1 << 1,
    }
}

c_types! {
    /// Sizes and limit of an SRQ: `ibv_modify_srq(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_srq_attr {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }

    /// Attributes for the creation of an SRQ: `ibv_create_srq(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_srq_init_attr {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
    }

    /// Sizes of the tag matching list of an SRQ.
    #[derive(Clone, Copy, Debug)]
    struct ibv_tm_cap {
        max_num_tags: u32,
        max_ops: u32,
    }

    /// Attributes for the creation of an SRQ by `ibv_create_srq_ex(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_srq_init_attr_ex {
        srq_context: *mut c_void,
        attr: ibv_srq_attr,
        comp_mask: u32,
        srq_type: ibv_srq_type,
        pd: *mut ibv_pd,
        xrcd: *mut ibv_xrcd,
        cq: *mut ibv_cq,
        tm_cap: ibv_tm_cap,
    }

    /// The entry that a tag matching request adds to the list.
    #[derive(Clone, Copy, Debug)]
    struct ibv_ops_wr_tm_add as "typeof(((typeof(((struct ibv_ops_wr *)0)->tm) *)0)->add)" {
        recv_wr_id: u64,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        tag: u64,
        mask: u64,
    }

    /// The tag matching part of [`ibv_ops_wr`].
    #[derive(Clone, Copy, Debug)]
    struct ibv_ops_wr_tm as "typeof(((struct ibv_ops_wr *)0)->tm)" {
        unexpected_cnt: u32,
        handle: u32,
        add: ibv_ops_wr_tm_add,
    }

    /// A tag matching request: `ibv_post_srq_ops(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_ops_wr {
        wr_id: u64,
        next: *mut ibv_ops_wr,
        opcode: ibv_ops_wr_opcode,
        flags: c_int,
        tm: ibv_ops_wr_tm,
    }

    /// A shared receive queue. The mutex guards `events_completed`; destruction waits until all
    /// events are acknowledged.
    struct ibv_srq {
        context: *mut ibv_context,
        srq_context: *mut c_void,
        pd: *mut ibv_pd,
        handle: u32,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }
}
