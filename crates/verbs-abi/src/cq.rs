//! Completion channels and completion queues.

use std::ffi::{c_int, c_uint, c_void};
use libc::{pthread_cond_t, pthread_mutex_t};

use crate::context::ibv_context;
use crate::pd::ibv_pd;
use crate::wc::{ibv_wc_opcode, ibv_wc_status, ibv_wc_tm_info};

c_consts! {
    /// Bits of [`ibv_modify_cq_attr::attr_mask`].
    enum ibv_cq_attr_mask: u32 {
        IBV_CQ_ATTR_MODERATE = 1 << 0,
        IBV_CQ_ATTR_RESERVED = 1 << 1,
    }

    /// Bits of [`ibv_cq_init_attr_ex::comp_mask`].
    enum ibv_cq_init_attr_mask: u32 {
        IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0,
        IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1,
    }

    /// Bits of [`ibv_cq_init_attr_ex::flags`].
    enum ibv_create_cq_attr_flags: u32 {
        IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0,
        IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1,
    }
}

c_types! {
    /// A completion channel; `fd` is readable while a CQ event is pending:
    /// `ibv_create_comp_channel(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }

    /// A completion queue; `cqe` is its capacity. The mutex guards the two counts of acknowledged
    /// events. Destruction waits until all events are acknowledged.
    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    /// Attributes of `ibv_start_poll`; `comp_mask` must be 0.
    #[derive(Clone, Copy, Debug)]
    struct ibv_poll_cq_attr {
        comp_mask: u32,
    }

    /// A completion queue with the extended poll API; it starts with the fields of [`ibv_cq`]:
    /// `ibv_create_cq_ex(3)`.
    struct ibv_cq_ex {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
        comp_mask: u32,
        status: ibv_wc_status,
        wr_id: u64,
        start_poll: Option<
            unsafe extern "C" fn(
                current: *mut ibv_cq_ex,
                attr: *mut ibv_poll_cq_attr,
            ) -> c_int,
        >,
        next_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_int>,
        end_poll: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex)>,
        read_opcode: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> ibv_wc_opcode>,
        read_vendor_err: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_byte_len: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_imm_data: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_qp_num: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_src_qp: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_wc_flags: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> c_uint>,
        read_slid: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_sl: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
        read_dlid_path_bits: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u8>,
        read_completion_ts: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
        read_cvlan: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u16>,
        read_flow_tag: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u32>,
        read_tm_info: Option<
            unsafe extern "C" fn(
                current: *mut ibv_cq_ex,
                tm_info: *mut ibv_wc_tm_info,
            ),
        >,
        read_completion_wallclock_ns: Option<unsafe extern "C" fn(current: *mut ibv_cq_ex) -> u64>,
    }

    /// CQ event moderation: an event after `cq_count` completions or `cq_period` microseconds.
    #[derive(Clone, Copy, Debug)]
    struct ibv_moderate_cq {
        cq_count: u16,
        cq_period: u16,
    }

    /// The attributes that `ibv_modify_cq(3)` changes.
    #[derive(Clone, Copy, Debug)]
    struct ibv_modify_cq_attr {
        attr_mask: u32,
        moderate: ibv_moderate_cq,
    }

    /// Attributes for the creation of a CQ by `ibv_create_cq_ex(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_cq_init_attr_ex {
        cqe: u32,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        comp_vector: u32,
        wc_flags: u64,
        comp_mask: u32,
        flags: u32,
        parent_domain: *mut ibv_pd,
    }
}
