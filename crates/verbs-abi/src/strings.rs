//! The texts of codes, word for word as libibverbs of rdma-core 44 prints them: programs match on them.
//!
//! libibverbs returns them without a device, so each provider's functions return the same texts.

use std::ffi::CStr;

use crate::{
    IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL,
    IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
    IBV_EVENT_PKEY_CHANGE, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR,
    IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SM_CHANGE,
    IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_WQ_FATAL,
    IBV_NODE_CA, IBV_NODE_RNIC, IBV_NODE_ROUTER, IBV_NODE_SWITCH, IBV_NODE_UNSPECIFIED,
    IBV_NODE_USNIC, IBV_NODE_USNIC_UDP, IBV_PORT_ACTIVE, IBV_PORT_ACTIVE_DEFER, IBV_PORT_ARMED,
    IBV_PORT_DOWN, IBV_PORT_INIT, IBV_PORT_NOP, IBV_WC_BAD_RESP_ERR, IBV_WC_FATAL_ERR,
    IBV_WC_GENERAL_ERR, IBV_WC_INV_EEC_STATE_ERR, IBV_WC_INV_EECN_ERR, IBV_WC_LOC_ACCESS_ERR,
    IBV_WC_LOC_EEC_OP_ERR, IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_LOC_RDD_VIOL_ERR, IBV_WC_MW_BIND_ERR, IBV_WC_REM_ABORT_ERR, IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_RD_REQ_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RESP_TIMEOUT_ERR,
    IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_SUCCESS, IBV_WC_TM_ERR,
    IBV_WC_TM_RNDV_INCOMPLETE, IBV_WC_WR_FLUSH_ERR, ibv_event_type, ibv_node_type, ibv_port_state,
    ibv_wc_opcode, ibv_wc_status,
};

/// The text for every unknown code.
const UNKNOWN: &CStr = c"unknown";

/// Returns the text of a completion status, as `ibv_wc_status_str` does.
#[must_use]
pub fn wc_status_str(status: ibv_wc_status) -> &'static CStr {
    match status {
        IBV_WC_SUCCESS => c"success",
        IBV_WC_LOC_LEN_ERR => c"local length error",
        IBV_WC_LOC_QP_OP_ERR => c"local QP operation error",
        IBV_WC_LOC_EEC_OP_ERR => c"local EE context operation error",
        IBV_WC_LOC_PROT_ERR => c"local protection error",
        IBV_WC_WR_FLUSH_ERR => c"Work Request Flushed Error",
        IBV_WC_MW_BIND_ERR => c"memory management operation error",
        IBV_WC_BAD_RESP_ERR => c"bad response error",
        IBV_WC_LOC_ACCESS_ERR => c"local access error",
        IBV_WC_REM_INV_REQ_ERR => c"remote invalid request error",
        IBV_WC_REM_ACCESS_ERR => c"remote access error",
        IBV_WC_REM_OP_ERR => c"remote operation error",
        IBV_WC_RETRY_EXC_ERR => c"transport retry counter exceeded",
        IBV_WC_RNR_RETRY_EXC_ERR => c"RNR retry counter exceeded",
        IBV_WC_LOC_RDD_VIOL_ERR => c"local RDD violation error",
        IBV_WC_REM_INV_RD_REQ_ERR => c"remote invalid RD request",
        IBV_WC_REM_ABORT_ERR => c"aborted error",
        IBV_WC_INV_EECN_ERR => c"invalid EE context number",
        IBV_WC_INV_EEC_STATE_ERR => c"invalid EE context state",
        IBV_WC_FATAL_ERR => c"fatal error",
        IBV_WC_RESP_TIMEOUT_ERR => c"response timeout error",
        IBV_WC_GENERAL_ERR => c"general error",
        IBV_WC_TM_ERR => c"TM error",
        IBV_WC_TM_RNDV_INCOMPLETE => c"TM software rendezvous",
        _ => UNKNOWN,
    }
}

/// Defines a function that returns the enumerator of a code, as `verbs.h` spells it.
macro_rules! names {
    ($(#[$doc:meta])* fn $function:ident($code:ident: $type:ty) { $($name:ident)* }) => {
        $(#[$doc])*
        #[must_use]
        pub fn $function($code: $type) -> &'static str {
            match $code {
                $(crate::$name => stringify!($name),)*
                _ => "unknown",
            }
        }
    };
}

names! {
    /// Returns the enumerator of a completion status.
    fn wc_status_name(status: ibv_wc_status) {
        IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_QP_OP_ERR IBV_WC_LOC_EEC_OP_ERR IBV_WC_LOC_PROT_ERR
        IBV_WC_WR_FLUSH_ERR IBV_WC_MW_BIND_ERR IBV_WC_BAD_RESP_ERR IBV_WC_LOC_ACCESS_ERR IBV_WC_REM_INV_REQ_ERR
        IBV_WC_REM_ACCESS_ERR IBV_WC_REM_OP_ERR IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR IBV_WC_LOC_RDD_VIOL_ERR
        IBV_WC_REM_INV_RD_REQ_ERR IBV_WC_REM_ABORT_ERR IBV_WC_INV_EECN_ERR IBV_WC_INV_EEC_STATE_ERR IBV_WC_FATAL_ERR
        IBV_WC_RESP_TIMEOUT_ERR IBV_WC_GENERAL_ERR IBV_WC_TM_ERR IBV_WC_TM_RNDV_INCOMPLETE
    }
}

names! {
    /// Returns the enumerator of a completion's opcode.
    fn wc_opcode_name(opcode: ibv_wc_opcode) {
        IBV_WC_SEND IBV_WC_RDMA_WRITE IBV_WC_RDMA_READ IBV_WC_COMP_SWAP IBV_WC_FETCH_ADD IBV_WC_BIND_MW IBV_WC_LOCAL_INV
        IBV_WC_FLUSH IBV_WC_ATOMIC_WRITE IBV_WC_RECV IBV_WC_RECV_RDMA_WITH_IMM IBV_WC_TM_RECV
    }
}

/// Returns the text of an asynchronous event type, as `ibv_event_type_str` does.
#[must_use]
pub fn event_type_str(event: ibv_event_type) -> &'static CStr {
    match event {
        IBV_EVENT_CQ_ERR => c"CQ error",
        IBV_EVENT_QP_FATAL => c"local work queue catastrophic error",
        IBV_EVENT_QP_REQ_ERR => c"invalid request local work queue error",
        IBV_EVENT_QP_ACCESS_ERR => c"local access violation work queue error",
        IBV_EVENT_COMM_EST => c"communication established",
        IBV_EVENT_SQ_DRAINED => c"send queue drained",
        IBV_EVENT_PATH_MIG => c"path migrated",
        IBV_EVENT_PATH_MIG_ERR => c"path migration request error",
        IBV_EVENT_DEVICE_FATAL => c"local catastrophic error",
        IBV_EVENT_PORT_ACTIVE => c"port active",
        IBV_EVENT_PORT_ERR => c"port error",
        IBV_EVENT_LID_CHANGE => c"LID change",
        IBV_EVENT_PKEY_CHANGE => c"P_Key change",
        IBV_EVENT_SM_CHANGE => c"SM change",
        IBV_EVENT_SRQ_ERR => c"SRQ catastrophic error",
        IBV_EVENT_SRQ_LIMIT_REACHED => c"SRQ limit reached",
        IBV_EVENT_QP_LAST_WQE_REACHED => c"last WQE reached",
        IBV_EVENT_CLIENT_REREGISTER => c"client reregistration",
        IBV_EVENT_GID_CHANGE => c"GID table change",
        IBV_EVENT_WQ_FATAL => c"WQ fatal",
        _ => UNKNOWN,
    }
}

/// Returns the text of a node type, as `ibv_node_type_str` does.
#[must_use]
pub fn node_type_str(node_type: ibv_node_type) -> &'static CStr {
    match node_type {
        IBV_NODE_CA => c"InfiniBand channel adapter",
        IBV_NODE_SWITCH => c"InfiniBand switch",
        IBV_NODE_ROUTER => c"InfiniBand router",
        IBV_NODE_RNIC => c"iWARP NIC",
        IBV_NODE_USNIC => c"usNIC",
        IBV_NODE_USNIC_UDP => c"usNIC UDP",
        IBV_NODE_UNSPECIFIED => c"unspecified",
        _ => UNKNOWN,
    }
}

/// Returns the text of a port state, as `ibv_port_state_str` does.
#[must_use]
pub fn port_state_str(port_state: ibv_port_state) -> &'static CStr {
    match port_state {
        IBV_PORT_NOP => c"no state change (NOP)",
        IBV_PORT_DOWN => c"down",
        IBV_PORT_INIT => c"init",
        IBV_PORT_ARMED => c"armed",
        IBV_PORT_ACTIVE => c"active",
        IBV_PORT_ACTIVE_DEFER => c"active defer",
        _ => UNKNOWN,
    }
}

/// Returns the text of an opcode of work requests, as `ibv_wr_opcode_str` of rdma-core 56 does.
#[must_use]
pub fn wr_opcode_str(opcode: crate::ibv_wr_opcode) -> &'static CStr {
    use crate::*;
    match opcode {
        IBV_WR_RDMA_WRITE => c"rdma-write",
        IBV_WR_RDMA_WRITE_WITH_IMM => c"rdma-write-with-imm",
        IBV_WR_SEND => c"send",
        IBV_WR_SEND_WITH_IMM => c"send-with-imm",
        IBV_WR_RDMA_READ => c"rdma-read",
        IBV_WR_ATOMIC_CMP_AND_SWP => c"atomic-cmp-and-swp",
        IBV_WR_ATOMIC_FETCH_AND_ADD => c"atomic-fetch-and-add",
        IBV_WR_LOCAL_INV => c"local-inv",
        IBV_WR_BIND_MW => c"bind-mw",
        IBV_WR_SEND_WITH_INV => c"send-with-inv",
        IBV_WR_TSO => c"tso",
        IBV_WR_DRIVER1 => c"driver1",
        IBV_WR_FLUSH => c"flush",
        IBV_WR_ATOMIC_WRITE => c"atomic-write",
        _ => UNKNOWN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of libibverbs 1.14.44.0 for 0, 1, 2 …, one a line.
    const WC_STATUS: &str = "success
local length error
local QP operation error
local EE context operation error
local protection error
Work Request Flushed Error
memory management operation error
bad response error
local access error
remote invalid request error
remote access error
remote operation error
transport retry counter exceeded
RNR retry counter exceeded
local RDD violation error
remote invalid RD request
aborted error
invalid EE context number
invalid EE context state
fatal error
response timeout error
general error
TM error
TM software rendezvous
unknown
unknown";
    const EVENT_TYPE: &str = "CQ error
local work queue catastrophic error
invalid request local work queue error
local access violation work queue error
communication established
send queue drained
path migrated
path migration request error
local catastrophic error
port active
port error
LID change
P_Key change
SM change
SRQ catastrophic error
SRQ limit reached
last WQE reached
client reregistration
GID table change
WQ fatal
unknown
unknown";
    const NODE_TYPE: &str = "unknown
InfiniBand channel adapter
InfiniBand switch
InfiniBand router
iWARP NIC
usNIC
usNIC UDP
unspecified
unknown
unknown";
    const PORT_STATE: &str = "no state change (NOP)
down
init
armed
active
active defer
unknown
unknown";
    /// The texts of libibverbs 1.14.56.1. For 12 and 13, which are no opcodes, it returns NULL.
    const WR_OPCODE: &str = "rdma-write
rdma-write-with-imm
send
send-with-imm
rdma-read
atomic-cmp-and-swp
atomic-fetch-and-add
local-inv
bind-mw
send-with-inv
tso
driver1
unknown
unknown
flush
atomic-write
unknown";

    fn assert_texts(text: impl Fn(u32) -> &'static CStr, expected: &str) {
        for (code, expected) in (0..).zip(expected.lines()) {
            assert_eq!(text(code).to_str(), Ok(expected), "code {code}");
        }
    }

    #[test]
    fn texts_are_those_of_libibverbs() {
        assert_texts(wc_status_str, WC_STATUS);
        assert_texts(event_type_str, EVENT_TYPE);
        assert_texts(|code| node_type_str(code.cast_signed()), NODE_TYPE);
        assert_texts(port_state_str, PORT_STATE);
        assert_texts(wr_opcode_str, WR_OPCODE);
    }

    #[test]
    fn codes_out_of_range_are_unknown() {
        assert_eq!(wc_status_str(u32::MAX), UNKNOWN);
        assert_eq!(event_type_str(u32::MAX), UNKNOWN);
        assert_eq!(node_type_str(-1), UNKNOWN);
        assert_eq!(node_type_str(i32::MIN), UNKNOWN);
        assert_eq!(port_state_str(u32::MAX), UNKNOWN);
    }
}
