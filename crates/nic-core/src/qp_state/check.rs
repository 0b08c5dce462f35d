//! The check of a queue pair's modification.

use super::attributes::*;
use super::codes::{QpState, QpType, UnknownQpState};
use super::transitions::{TransitionAttrs, transition_attrs};

/// The limits of a device and its ports, against which attributes are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Number of ports; port numbers begin at 1.
    pub phys_port_cnt: u8,
    /// Number of entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Number of entries of the GID table.
    pub gid_tbl_len: u16,
    /// Largest path MTU of the port, as a code of `enum ibv_mtu`.
    pub max_mtu_code: u32,
    /// Largest number of outstanding READs and atomics of a QP as requester (`max_qp_init_rd_atom`).
    pub max_qp_init_rd_atom: u8,
    /// Largest number of incoming READs and atomics at a time of a QP as responder (`max_qp_rd_atom`).
    pub max_qp_rd_atom: u8,
}

/// The reason why `ibv_modify_qp` fails without any change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyQpError {
    /// `qp_state` or `cur_qp_state` is not a state.
    #[error("{qp_type} QP in {from}: {field} = {value} is not a QP state (0 RESET to 6 ERR)")]
    UnknownState {
        /// Transport of the QP.
        qp_type: QpType,
        /// State of the QP.
        from: QpState,
        /// The field of `ibv_qp_attr`.
        field: &'static str,
        /// Value of the field.
        value: u32,
    },
    /// `IBV_QP_CUR_STATE` names another state than the QP's.
    #[error("{qp_type} QP going to {to}: cur_qp_state = {assumed}, but the QP is in {from}")]
    CurStateMismatch {
        /// Transport of the QP.
        qp_type: QpType,
        /// State of the QP.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// State in `cur_qp_state`.
        assumed: QpState,
    },
    /// The state machine does not have this transition.
    #[error("{qp_type} QP in {from} cannot go to {to}; it can go to {}", list_next_states(*.qp_type, *.from))]
    NoTransition {
        /// Transport of the QP.
        qp_type: QpType,
        /// State of the QP.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// The transition exists, but requires or allows other attributes than the mask selects.
    #[error("{qp_type} QP from {from} to {to}: {}", describe_wrong_attrs(*.missing, *.not_allowed))]
    WrongAttrs {
        /// Transport of the QP.
        qp_type: QpType,
        /// State of the QP.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// Required bits that are not set.
        missing: AttrMask,
        /// Bits that are set but not allowed.
        not_allowed: AttrMask,
    },
    /// An attribute has a value outside its range.
    #[error("{qp_type} QP from {from} to {to}: {field} = {value} is not in {min}..={max}")]
    OutOfRange {
        /// Transport of the QP.
        qp_type: QpType,
        /// State of the QP.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// The field of `ibv_qp_attr`.
        field: &'static str,
        /// Value of the field.
        value: u32,
        /// Smallest value allowed.
        min: u32,
        /// Largest value allowed; below `min` if the device allows none.
        max: u32,
    },
}

/// Lists the states that a QP can go to from `from`, for an error message.
fn list_next_states(qp_type: QpType, from: QpState) -> String {
    let next: Vec<String> = QpState::ALL
        .into_iter()
        .filter(|&to| transition_attrs(qp_type, from, to).is_some())
        .map(|to| to.to_string())
        .collect();
    next.join(", ")
}

/// Describes the wrong bits of a mask, for an error message.
fn describe_wrong_attrs(missing: AttrMask, not_allowed: AttrMask) -> String {
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("missing {missing}"));
    }
    if !not_allowed.is_empty() {
        parts.push(format!("not allowed {not_allowed}"));
    }
    parts.join("; ")
}

/// Largest value of a 24-bit field: PSNs and QP numbers.
pub(super) const MAX_24_BIT: u32 = (1 << 24) - 1;
/// Largest value of a 5-bit field: ACK timeout and RNR timer codes.
pub(super) const MAX_5_BIT: u32 = (1 << 5) - 1;
/// Largest value of a 3-bit field: retry counts. As RNR retry count it means "unlimited".
pub(super) const MAX_3_BIT: u32 = (1 << 3) - 1;

/// Checks if `ibv_modify_qp(attr, attr_mask)` is legal for a QP of `qp_type` in state `cur`. Returns the new state:
/// `attr.qp_state` with `IBV_QP_STATE`, else `cur`.
///
/// Only fields whose bit is set are checked. A mask without `IBV_QP_STATE` is the transition from `cur` to itself. The
/// states RTR and SQE do not have this transition; RESET and ERR have it only for a mask without attributes.
///
/// # Errors
/// Returns the first error in this order: an invalid state code, a wrong `cur_qp_state`, an illegal transition, missing
/// or extra bits, values out of range.
///
/// Source: IBTA vol. 1, 11.2.5.2; `ibv_modify_qp(3)`; Linux `ib_modify_qp_is_ok`.
pub fn check_transition(
    qp_type: QpType,
    cur: QpState,
    attr_mask: i32,
    attr: &AttributesToCheck,
    limits: &DeviceLimits,
) -> Result<QpState, ModifyQpError> {
    let mask = AttrMask(attr_mask);
    let state = |field, value| {
        QpState::try_from(value).map_err(|UnknownQpState(value)| ModifyQpError::UnknownState {
            qp_type,
            from: cur,
            field,
            value,
        })
    };
    let to = if mask.contains(IBV_QP_STATE) {
        state("qp_state", attr.qp_state)?
    } else {
        cur
    };
    if mask.contains(IBV_QP_CUR_STATE) {
        let assumed = state("cur_qp_state", attr.cur_qp_state)?;
        if assumed != cur {
            return Err(ModifyQpError::CurStateMismatch {
                qp_type,
                from: cur,
                to,
                assumed,
            });
        }
    }

    let Some(TransitionAttrs { required, optional }) = transition_attrs(qp_type, cur, to) else {
        return Err(ModifyQpError::NoTransition {
            qp_type,
            from: cur,
            to,
        });
    };
    let missing = AttrMask(required.0 & !mask.0);
    let not_allowed = AttrMask(mask.0 & !(required.0 | optional.0 | IBV_QP_STATE));
    if !missing.is_empty() || !not_allowed.is_empty() {
        return Err(ModifyQpError::WrongAttrs {
            qp_type,
            from: cur,
            to,
            missing,
            not_allowed,
        });
    }

    for AttributeValueAndRange {
        mask_bit: bit,
        field_name: field,
        value,
        min,
        max,
    } in attribute_ranges(attr, limits)
    {
        if mask.contains(bit) && !(min..=max).contains(&value) {
            return Err(ModifyQpError::OutOfRange {
                qp_type,
                from: cur,
                to,
                field,
                value,
                min,
                max,
            });
        }
    }
    Ok(to)
}

/// The allowed range of an attribute's field, which is checked if the field's bit is set.
pub(super) struct AttributeValueAndRange {
    pub(super) mask_bit: i32,
    pub(super) field_name: &'static str,
    pub(super) value: u32,
    pub(super) min: u32,
    pub(super) max: u32,
}

/// Returns the ranges of all fields of [`AttributesToCheck`] that have a range, except the states.
pub(super) fn attribute_ranges(
    attr: &AttributesToCheck,
    limits: &DeviceLimits,
) -> [AttributeValueAndRange; 19] {
    let range = |bit, field, value, min, max| AttributeValueAndRange {
        mask_bit: bit,
        field_name: field,
        value,
        min,
        max,
    };
    let ports = u32::from(limits.phys_port_cnt);
    // An index into a table of n entries is at most n - 1. Every port has at least one P_Key and one GID.
    let last_pkey = u32::from(limits.pkey_tbl_len.saturating_sub(1));
    let last_gid = u32::from(limits.gid_tbl_len.saturating_sub(1));
    let sgid_index = |ah: &AddressVectorToCheck| {
        if ah.is_global {
            u32::from(ah.sgid_index)
        } else {
            0
        }
    };
    [
        range(IBV_QP_PORT, "port_num", attr.port_num.into(), 1, ports),
        range(
            IBV_QP_PKEY_INDEX,
            "pkey_index",
            attr.pkey_index.into(),
            0,
            last_pkey,
        ),
        range(
            IBV_QP_PATH_MTU,
            "path_mtu",
            attr.path_mtu,
            IBV_MTU_256,
            limits.max_mtu_code.min(IBV_MTU_4096),
        ),
        range(
            IBV_QP_AV,
            "ah_attr.port_num",
            attr.ah_attr.port_num.into(),
            1,
            ports,
        ),
        range(
            IBV_QP_AV,
            "ah_attr.grh.sgid_index",
            sgid_index(&attr.ah_attr),
            0,
            last_gid,
        ),
        range(
            IBV_QP_DEST_QPN,
            "dest_qp_num",
            attr.dest_qp_num,
            0,
            MAX_24_BIT,
        ),
        range(IBV_QP_RQ_PSN, "rq_psn", attr.rq_psn, 0, MAX_24_BIT),
        range(IBV_QP_SQ_PSN, "sq_psn", attr.sq_psn, 0, MAX_24_BIT),
        range(IBV_QP_TIMEOUT, "timeout", attr.timeout.into(), 0, MAX_5_BIT),
        range(
            IBV_QP_RETRY_CNT,
            "retry_cnt",
            attr.retry_cnt.into(),
            0,
            MAX_3_BIT,
        ),
        range(
            IBV_QP_RNR_RETRY,
            "rnr_retry",
            attr.rnr_retry.into(),
            0,
            MAX_3_BIT,
        ),
        range(
            IBV_QP_MAX_QP_RD_ATOMIC,
            "max_rd_atomic",
            attr.max_rd_atomic.into(),
            0,
            limits.max_qp_init_rd_atom.into(),
        ),
        range(
            IBV_QP_MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic.into(),
            0,
            limits.max_qp_rd_atom.into(),
        ),
        range(
            IBV_QP_PATH_MIG_STATE,
            "path_mig_state",
            attr.path_mig_state,
            0,
            IBV_MIG_ARMED,
        ),
        range(
            IBV_QP_ALT_PATH,
            "alt_port_num",
            attr.alt_port_num.into(),
            1,
            ports,
        ),
        range(
            IBV_QP_ALT_PATH,
            "alt_pkey_index",
            attr.alt_pkey_index.into(),
            0,
            last_pkey,
        ),
        range(
            IBV_QP_ALT_PATH,
            "alt_timeout",
            attr.alt_timeout.into(),
            0,
            MAX_5_BIT,
        ),
        range(
            IBV_QP_ALT_PATH,
            "alt_ah_attr.port_num",
            attr.alt_ah_attr.port_num.into(),
            1,
            ports,
        ),
        range(
            IBV_QP_ALT_PATH,
            "alt_ah_attr.grh.sgid_index",
            sgid_index(&attr.alt_ah_attr),
            0,
            last_gid,
        ),
    ]
}
