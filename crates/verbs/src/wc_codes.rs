//! The opcode and the status of completions.

use verbs_abi as abi;

use crate::types::c_enum;

c_enum! {
    /// The operation of a successful completion.
    WcOpcode {
        /// A SEND.
        Send = abi::IBV_WC_SEND, "SEND";
        /// An RDMA WRITE.
        RdmaWrite = abi::IBV_WC_RDMA_WRITE, "RDMA_WRITE";
        /// An RDMA READ.
        RdmaRead = abi::IBV_WC_RDMA_READ, "RDMA_READ";
        /// A compare-and-swap.
        CompSwap = abi::IBV_WC_COMP_SWAP, "COMP_SWAP";
        /// A fetch-and-add.
        FetchAdd = abi::IBV_WC_FETCH_ADD, "FETCH_ADD";
        /// A memory window bind.
        BindMw = abi::IBV_WC_BIND_MW, "BIND_MW";
        /// A local invalidate.
        LocalInv = abi::IBV_WC_LOCAL_INV, "LOCAL_INV";
        /// A RECV.
        Recv = abi::IBV_WC_RECV, "RECV";
        /// A RECV consumed by an RDMA WRITE with immediate.
        RecvRdmaWithImm = abi::IBV_WC_RECV_RDMA_WITH_IMM, "RECV_RDMA_WITH_IMM";
    }
}

c_enum! {
    /// The status of a completion, displayed with the text of `ibv_wc_status_str`.
    WcStatus {
        /// The work request succeeded.
        Success = abi::IBV_WC_SUCCESS, "success";
        /// A message was longer than the buffer, or longer than allowed.
        LocLenErr = abi::IBV_WC_LOC_LEN_ERR, "local length error";
        /// A local inconsistency of the QP.
        LocQpOpErr = abi::IBV_WC_LOC_QP_OP_ERR, "local QP operation error";
        /// Deprecated.
        LocEecOpErr = abi::IBV_WC_LOC_EEC_OP_ERR, "local EE context operation error";
        /// An SGE refers to memory that is not registered for this use.
        LocProtErr = abi::IBV_WC_LOC_PROT_ERR, "local protection error";
        /// The QP was in error before the work request was executed.
        WrFlushErr = abi::IBV_WC_WR_FLUSH_ERR, "Work Request Flushed Error";
        /// A memory window could not be bound.
        MwBindErr = abi::IBV_WC_MW_BIND_ERR, "memory management operation error";
        /// The responder sent something unexpected.
        BadRespErr = abi::IBV_WC_BAD_RESP_ERR, "bad response error";
        /// A protection error on a local buffer during a WRITE with immediate.
        LocAccessErr = abi::IBV_WC_LOC_ACCESS_ERR, "local access error";
        /// The responder found the request invalid.
        RemInvReqErr = abi::IBV_WC_REM_INV_REQ_ERR, "remote invalid request error";
        /// The responder's memory does not permit the access.
        RemAccessErr = abi::IBV_WC_REM_ACCESS_ERR, "remote access error";
        /// The responder could not finish the operation.
        RemOpErr = abi::IBV_WC_REM_OP_ERR, "remote operation error";
        /// The peer did not answer within timeout and retries.
        RetryExcErr = abi::IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded";
        /// The peer had no RECV posted within the RNR retries.
        RnrRetryExcErr = abi::IBV_WC_RNR_RETRY_EXC_ERR, "RNR retry counter exceeded";
        /// Deprecated.
        LocRddViolErr = abi::IBV_WC_LOC_RDD_VIOL_ERR, "local RDD violation error";
        /// Deprecated.
        RemInvRdReqErr = abi::IBV_WC_REM_INV_RD_REQ_ERR, "remote invalid RD request";
        /// The responder aborted the operation.
        RemAbortErr = abi::IBV_WC_REM_ABORT_ERR, "aborted error";
        /// Deprecated.
        InvEecnErr = abi::IBV_WC_INV_EECN_ERR, "invalid EE context number";
        /// Deprecated.
        InvEecStateErr = abi::IBV_WC_INV_EEC_STATE_ERR, "invalid EE context state";
        /// A fatal error of the device.
        FatalErr = abi::IBV_WC_FATAL_ERR, "fatal error";
        /// The peer's response was too late.
        RespTimeoutErr = abi::IBV_WC_RESP_TIMEOUT_ERR, "response timeout error";
        /// Anything else.
        GeneralErr = abi::IBV_WC_GENERAL_ERR, "general error";
        /// Tag matching.
        TmErr = abi::IBV_WC_TM_ERR, "TM error";
        /// Tag matching: software must finish the rendezvous.
        TmRndvIncomplete = abi::IBV_WC_TM_RNDV_INCOMPLETE, "TM software rendezvous";
    }
}
