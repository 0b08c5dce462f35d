//! Work completions.

use std::ffi::c_uint;

c_consts! {
    /// Status of a completion: [`ibv_wc::status`].
    enum ibv_wc_status: u32 {
        IBV_WC_SUCCESS = 0,
        IBV_WC_LOC_LEN_ERR = 1,
        IBV_WC_LOC_QP_OP_ERR = 2,
        IBV_WC_LOC_EEC_OP_ERR = 3,
        IBV_WC_LOC_PROT_ERR = 4,
        IBV_WC_WR_FLUSH_ERR = 5,
        IBV_WC_MW_BIND_ERR = 6,
        IBV_WC_BAD_RESP_ERR = 7,
        IBV_WC_LOC_ACCESS_ERR = 8,
        IBV_WC_REM_INV_REQ_ERR = 9,
        IBV_WC_REM_ACCESS_ERR = 10,
        IBV_WC_REM_OP_ERR = 11,
        IBV_WC_RETRY_EXC_ERR = 12,
        IBV_WC_RNR_RETRY_EXC_ERR = 13,
        IBV_WC_LOC_RDD_VIOL_ERR = 14,
        IBV_WC_REM_INV_RD_REQ_ERR = 15,
        IBV_WC_REM_ABORT_ERR = 16,
        IBV_WC_INV_EECN_ERR = 17,
        IBV_WC_INV_EEC_STATE_ERR = 18,
        IBV_WC_FATAL_ERR = 19,
        IBV_WC_RESP_TIMEOUT_ERR = 20,
        IBV_WC_GENERAL_ERR = 21,
        IBV_WC_TM_ERR = 22,
        IBV_WC_TM_RNDV_INCOMPLETE = 23,
    }

    /// The operation of a completion: [`ibv_wc::opcode`]. Receives have the bit [`IBV_WC_RECV`].
    enum ibv_wc_opcode: u32 {
        IBV_WC_SEND = 0,
        IBV_WC_RDMA_WRITE = 1,
        IBV_WC_RDMA_READ = 2,
        IBV_WC_COMP_SWAP = 3,
        IBV_WC_FETCH_ADD = 4,
        IBV_WC_BIND_MW = 5,
        IBV_WC_LOCAL_INV = 6,
        IBV_WC_TSO = 7,
        IBV_WC_ATOMIC_WRITE = 9,
        IBV_WC_RECV = 1 << 7,
        IBV_WC_RECV_RDMA_WITH_IMM = 129,
        IBV_WC_TM_ADD = 130,
        IBV_WC_TM_DEL = 131,
        IBV_WC_TM_SYNC = 132,
        IBV_WC_TM_RECV = 133,
        IBV_WC_TM_NO_TAG = 134,
        IBV_WC_DRIVER1 = 135,
        IBV_WC_DRIVER2 = 136,
        IBV_WC_DRIVER3 = 137,
    }

    /// Bit position of [`IBV_WC_IP_CSUM_OK`] in [`ibv_wc::wc_flags`].
    consts ibv_wc_ip_csum_ok_shift: u32 {
        IBV_WC_IP_CSUM_OK_SHIFT = 2,
    }

    /// Completion fields that an extended CQ must deliver:
    /// [`ibv_cq_init_attr_ex::wc_flags`](crate::ibv_cq_init_attr_ex::wc_flags).
    enum ibv_create_cq_wc_flags: u64 {
        IBV_WC_EX_WITH_BYTE_LEN = 1 << 0,
        IBV_WC_EX_WITH_IMM = 1 << 1,
        IBV_WC_EX_WITH_QP_NUM = 1 << 2,
        IBV_WC_EX_WITH_SRC_QP = 1 << 3,
        IBV_WC_EX_WITH_SLID = 1 << 4,
        IBV_WC_EX_WITH_SL = 1 << 5,
        IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7,
        IBV_WC_EX_WITH_CVLAN = 1 << 8,
        IBV_WC_EX_WITH_FLOW_TAG = 1 << 9,
        IBV_WC_EX_WITH_TM_INFO = 1 << 10,
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11,
    }

    /// The [`ibv_create_cq_wc_flags`] that every provider supports.
    consts ibv_wc_standard_flags: u64 {
        IBV_WC_STANDARD_FLAGS = (((((IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM) | IBV_WC_EX_WITH_QP_NUM) | IBV_WC_EX_WITH_SRC_QP) | IBV_WC_EX_WITH_SLID) | IBV_WC_EX_WITH_SL) | IBV_WC_EX_WITH_DLID_PATH_BITS,
    }

    /// All [`ibv_create_cq_wc_flags`] of this version of the header.
    consts ibv_create_cq_sup_wc_flags: u64 {
        IBV_CREATE_CQ_SUP_WC_FLAGS = ((((IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) | IBV_WC_EX_WITH_CVLAN) | IBV_WC_EX_WITH_FLOW_TAG) | IBV_WC_EX_WITH_TM_INFO) | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
    }

    /// Bits of [`ibv_wc::wc_flags`].
    enum ibv_wc_flags: u32 {
        IBV_WC_GRH = 1 << 0,
        IBV_WC_WITH_IMM = 1 << 1,
        IBV_WC_IP_CSUM_OK = 1 << IBV_WC_IP_CSUM_OK_SHIFT,
        IBV_WC_WITH_INV = 1 << 3,
        IBV_WC_TM_SYNC_REQ = 1 << 4,
        IBV_WC_TM_MATCH = 1 << 5,
        IBV_WC_TM_DATA_VALID = 1 << 6,
    }
}

c_types! {
    /// The anonymous union in [`ibv_wc`]: the immediate with [`IBV_WC_WITH_IMM`], the invalidated
    /// R_Key with [`IBV_WC_WITH_INV`].
    #[derive(Clone, Copy)]
    union ibv_wc_imm as "struct ibv_wc", anonymous "imm_data" {
        /// Immediate data, big-endian.
        imm_data: u32,
        invalidated_rkey: u32,
    }

    /// A work completion: `ibv_poll_cq(3)`. Unless `status` is [`IBV_WC_SUCCESS`], only `wr_id`,
    /// `status`, `qp_num` and `vendor_err` are valid.
    #[derive(Clone, Copy)]
    struct ibv_wc {
        wr_id: u64,
        status: ibv_wc_status,
        opcode: ibv_wc_opcode,
        vendor_err: u32,
        byte_len: u32,
        imm as "imm_data": ibv_wc_imm,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: u16,
        slid: u16,
        sl: u8,
        dlid_path_bits: u8,
    }

    /// Tag and user data of a tag matching completion.
    #[derive(Clone, Copy, Debug)]
    struct ibv_wc_tm_info {
        tag: u64,
        r#priv: u32,
    }
}
