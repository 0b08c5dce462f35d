//! Work requests.

use std::ffi::{c_int, c_uint, c_void};

use crate::gid::ibv_ah;
use crate::mw::{ibv_mw, ibv_mw_bind_info};

c_consts! {
    /// Operation of a send WR: [`ibv_send_wr::opcode`].
    enum ibv_wr_opcode: u32 {
        IBV_WR_RDMA_WRITE = 0,
        IBV_WR_RDMA_WRITE_WITH_IMM = 1,
        IBV_WR_SEND = 2,
        IBV_WR_SEND_WITH_IMM = 3,
        IBV_WR_RDMA_READ = 4,
        IBV_WR_ATOMIC_CMP_AND_SWP = 5,
        IBV_WR_ATOMIC_FETCH_AND_ADD = 6,
        IBV_WR_LOCAL_INV = 7,
        IBV_WR_BIND_MW = 8,
        IBV_WR_SEND_WITH_INV = 9,
        IBV_WR_TSO = 10,
        IBV_WR_DRIVER1 = 11,
        IBV_WR_ATOMIC_WRITE = 15,
    }

    /// Bits of [`ibv_send_wr::send_flags`].
    enum ibv_send_flags: u32 {
        IBV_SEND_FENCE = 1 << 0,
        IBV_SEND_SIGNALED = 1 << 1,
        IBV_SEND_SOLICITED = 1 << 2,
        IBV_SEND_INLINE = 1 << 3,
        IBV_SEND_IP_CSUM = 1 << 4,
    }
}

c_types! {
    /// A buffer with inline data, for the extended post API.
    #[derive(Clone, Copy, Debug)]
    struct ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }

    /// A scatter/gather element: `length` bytes at `addr`, under the L_Key `lkey`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    /// The first anonymous union in [`ibv_send_wr`]: the immediate for `*_WITH_IMM`, the R_Key to
    /// invalidate for `*_INV`.
    #[derive(Clone, Copy)]
    union ibv_send_wr_imm as "struct ibv_send_wr", anonymous "imm_data" {
        /// Immediate data, big-endian.
        imm_data: u32,
        invalidate_rkey: u32,
    }

    /// Remote address and R_Key of RDMA WRITE and RDMA READ.
    #[derive(Clone, Copy, Debug)]
    struct ibv_send_wr_wr_rdma as "typeof(((typeof(((struct ibv_send_wr *)0)->wr) *)0)->rdma)" {
        remote_addr: u64,
        rkey: u32,
    }

    /// Remote address, R_Key and operands of the atomics.
    #[derive(Clone, Copy, Debug)]
    struct ibv_send_wr_wr_atomic as "typeof(((typeof(((struct ibv_send_wr *)0)->wr) *)0)->atomic)" {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    /// Destination of a UD SEND.
    #[derive(Clone, Copy, Debug)]
    struct ibv_send_wr_wr_ud as "typeof(((typeof(((struct ibv_send_wr *)0)->wr) *)0)->ud)" {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    /// The union `wr` in [`ibv_send_wr`]: opcode and transport determine the valid member.
    #[derive(Clone, Copy)]
    union ibv_send_wr_wr as "typeof(((struct ibv_send_wr *)0)->wr)" {
        rdma: ibv_send_wr_wr_rdma,
        atomic: ibv_send_wr_wr_atomic,
        ud: ibv_send_wr_wr_ud,
    }

    /// Destination SRQ of an XRC send.
    #[derive(Clone, Copy, Debug)]
    struct ibv_send_wr_qp_type_xrc as "typeof(((typeof(((struct ibv_send_wr *)0)->qp_type) *)0)->xrc)" {
        remote_srqn: u32,
    }

    /// The union `qp_type` in [`ibv_send_wr`].
    #[derive(Clone, Copy)]
    union ibv_send_wr_qp_type as "typeof(((struct ibv_send_wr *)0)->qp_type)" {
        xrc: ibv_send_wr_qp_type_xrc,
    }

    /// Operands of `IBV_WR_BIND_MW`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_send_wr_bind_tso_bind_mw as "typeof(((struct ibv_send_wr *)0)->bind_mw)" {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }

    /// Operands of `IBV_WR_TSO`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_send_wr_bind_tso_tso as "typeof(((struct ibv_send_wr *)0)->tso)" {
        hdr: *mut c_void,
        hdr_sz: u16,
        mss: u16,
    }

    /// The second anonymous union in [`ibv_send_wr`]: operands of `IBV_WR_BIND_MW` or of
    /// `IBV_WR_TSO`.
    #[derive(Clone, Copy)]
    union ibv_send_wr_bind_tso as "struct ibv_send_wr", anonymous "bind_mw" {
        bind_mw: ibv_send_wr_bind_tso_bind_mw,
        tso: ibv_send_wr_bind_tso_tso,
    }

    /// A work request for a send queue, with a link to the next work request of the postlist:
    /// `ibv_post_send(3)`.
    #[derive(Clone, Copy)]
    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode,
        send_flags: c_uint,
        imm as "imm_data": ibv_send_wr_imm,
        wr: ibv_send_wr_wr,
        qp_type: ibv_send_wr_qp_type,
        bind_tso as "bind_mw": ibv_send_wr_bind_tso,
    }

    /// A work request for a receive queue, with a link to the next work request of the postlist:
    /// `ibv_post_recv(3)`.
    #[derive(Clone, Copy, Debug)]
    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
}
