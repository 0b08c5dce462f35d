//! The attributes of the C interface for the state machine of a queue pair (`nic_core::qp_state`).

use nic_core::qp_state::attributes as core;
use nic_core::qp_state::{AddressVectorToCheck, AttributesToCheck};
use verbs_abi::*;

pub(crate) use nic_core::qp_state::attributes::STANDARD_ATTRIBUTES;
pub(crate) use nic_core::qp_state::{DeviceLimits, QpState, QpType, check_transition};

/// Returns the attributes that the state machine checks.
pub(crate) fn attributes_to_check(attr: &ibv_qp_attr) -> AttributesToCheck {
    AttributesToCheck {
        qp_state: attr.qp_state,
        cur_qp_state: attr.cur_qp_state,
        path_mtu: attr.path_mtu,
        path_mig_state: attr.path_mig_state,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qp_num,
        ah_attr: address_vector_to_check(&attr.ah_attr),
        alt_ah_attr: address_vector_to_check(&attr.alt_ah_attr),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
    }
}

fn address_vector_to_check(ah: &ibv_ah_attr) -> AddressVectorToCheck {
    AddressVectorToCheck {
        port_num: ah.port_num,
        is_global: ah.is_global != 0,
        sgid_index: ah.grh.sgid_index,
    }
}

/// Asserts that the codes of `nic_core` are those of the C interface.
macro_rules! assert_equal {
    ($($bit:ident)*) => {
        const _: () = {
            $(assert!(core::$bit == $bit);)*
        };
    };
}

assert_equal! {
    IBV_QP_STATE IBV_QP_CUR_STATE IBV_QP_EN_SQD_ASYNC_NOTIFY IBV_QP_ACCESS_FLAGS IBV_QP_PKEY_INDEX IBV_QP_PORT
    IBV_QP_QKEY IBV_QP_AV IBV_QP_PATH_MTU IBV_QP_TIMEOUT IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_RQ_PSN
    IBV_QP_MAX_QP_RD_ATOMIC IBV_QP_ALT_PATH IBV_QP_MIN_RNR_TIMER IBV_QP_SQ_PSN IBV_QP_MAX_DEST_RD_ATOMIC
    IBV_QP_PATH_MIG_STATE IBV_QP_CAP IBV_QP_DEST_QPN IBV_QP_RATE_LIMIT IBV_MTU_256 IBV_MTU_4096 IBV_MIG_ARMED
}

const _: () = {
    assert!(QpState::Reset.code() == IBV_QPS_RESET);
    assert!(QpState::Init.code() == IBV_QPS_INIT);
    assert!(QpState::Rtr.code() == IBV_QPS_RTR);
    assert!(QpState::Rts.code() == IBV_QPS_RTS);
    assert!(QpState::Sqd.code() == IBV_QPS_SQD);
    assert!(QpState::Sqe.code() == IBV_QPS_SQE);
    assert!(QpState::Err.code() == IBV_QPS_ERR);
    assert!(QpType::Rc.code() == IBV_QPT_RC);
    assert!(QpType::Uc.code() == IBV_QPT_UC);
    assert!(QpType::Ud.code() == IBV_QPT_UD);
    assert!(QpType::RawPacket.code() == IBV_QPT_RAW_PACKET);
    assert!(QpType::XrcSend.code() == IBV_QPT_XRC_SEND);
    assert!(QpType::XrcRecv.code() == IBV_QPT_XRC_RECV);
};
