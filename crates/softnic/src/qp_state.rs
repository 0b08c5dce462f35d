//! The state machine of a queue pair, as data.
//!
//! Which `ibv_modify_qp` calls are legal: IBTA vol. 1, 10.3.1 (states) and 11.2.5.2 (attributes of each
//! transition), `ibv_modify_qp(3)`, and where these leave room, what Linux accepts (`ib_modify_qp_is_ok`),
//! because that is what programs were tested on.
//!
//! Nothing here changes a queue pair: [`check_transition`] says what a call would do, or why it is refused.
//! "If any of the modify attributes or the modify mask are invalid, none of the attributes will be
//! modified" (`ibv_modify_qp(3)`): check first, then apply.

use std::fmt;

use verbs_abi::{
    IBV_MIG_ARMED, IBV_MTU_256, IBV_MTU_4096, IBV_QP_ACCESS_FLAGS, IBV_QP_ALT_PATH, IBV_QP_AV,
    IBV_QP_CAP, IBV_QP_CUR_STATE, IBV_QP_DEST_QPN, IBV_QP_EN_SQD_ASYNC_NOTIFY,
    IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MIG_STATE, IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_QKEY,
    IBV_QP_RATE_LIMIT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN,
    IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR,
    IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, ibv_ah_attr,
    ibv_mtu, ibv_qp_attr, ibv_qp_state, ibv_qp_type,
};

/// State of a queue pair: IBTA vol. 1, 10.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QpState {
    /// As created: no work is accepted.
    Reset,
    /// Initialized: receive WRs may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained, or draining.
    Sqd,
    /// Send queue error: receiving goes on. Not for RC.
    Sqe,
    /// Error: everything posted is flushed.
    Err,
}

impl QpState {
    /// Every state, in the order of their codes.
    pub(crate) const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// The code in the ABI: one of `IBV_QPS_*`.
    #[must_use]
    pub(crate) const fn as_abi(self) -> ibv_qp_state {
        match self {
            Self::Reset => IBV_QPS_RESET,
            Self::Init => IBV_QPS_INIT,
            Self::Rtr => IBV_QPS_RTR,
            Self::Rts => IBV_QPS_RTS,
            Self::Sqd => IBV_QPS_SQD,
            Self::Sqe => IBV_QPS_SQE,
            Self::Err => IBV_QPS_ERR,
        }
    }
}

/// A code that is no [`QpState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a QP state (0 RESET to 6 ERR)")]
pub(crate) struct UnknownQpState(pub(crate) u32);

impl TryFrom<u32> for QpState {
    type Error = UnknownQpState;

    fn try_from(code: u32) -> Result<Self, UnknownQpState> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_abi() == code)
            .ok_or(UnknownQpState(code))
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpType {
    /// Every transport service, in the order of their codes.
    pub(crate) const ALL: [Self; 3] = [Self::Rc, Self::Uc, Self::Ud];

    /// The code in the ABI: one of `IBV_QPT_*`.
    #[must_use]
    pub(crate) const fn as_abi(self) -> ibv_qp_type {
        match self {
            Self::Rc => IBV_QPT_RC,
            Self::Uc => IBV_QPT_UC,
            Self::Ud => IBV_QPT_UD,
        }
    }
}

/// A code that is no [`QpType`]: unknown, or a transport service that is not implemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("QP type {0} is not supported (2 RC, 3 UC and 4 UD are)")]
pub(crate) struct UnsupportedQpType(pub(crate) u32);

impl TryFrom<u32> for QpType {
    type Error = UnsupportedQpType;

    fn try_from(code: u32) -> Result<Self, UnsupportedQpType> {
        Self::ALL
            .into_iter()
            .find(|qp_type| qp_type.as_abi() == code)
            .ok_or(UnsupportedQpType(code))
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
        })
    }
}

/// A set of `IBV_QP_*` bits that prints their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AttrMask(pub(crate) i32);

impl AttrMask {
    const NAMES: [(i32, &'static str); 22] = [
        (IBV_QP_STATE, "IBV_QP_STATE"),
        (IBV_QP_CUR_STATE, "IBV_QP_CUR_STATE"),
        (IBV_QP_EN_SQD_ASYNC_NOTIFY, "IBV_QP_EN_SQD_ASYNC_NOTIFY"),
        (IBV_QP_ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"),
        (IBV_QP_PKEY_INDEX, "IBV_QP_PKEY_INDEX"),
        (IBV_QP_PORT, "IBV_QP_PORT"),
        (IBV_QP_QKEY, "IBV_QP_QKEY"),
        (IBV_QP_AV, "IBV_QP_AV"),
        (IBV_QP_PATH_MTU, "IBV_QP_PATH_MTU"),
        (IBV_QP_TIMEOUT, "IBV_QP_TIMEOUT"),
        (IBV_QP_RETRY_CNT, "IBV_QP_RETRY_CNT"),
        (IBV_QP_RNR_RETRY, "IBV_QP_RNR_RETRY"),
        (IBV_QP_RQ_PSN, "IBV_QP_RQ_PSN"),
        (IBV_QP_MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"),
        (IBV_QP_ALT_PATH, "IBV_QP_ALT_PATH"),
        (IBV_QP_MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"),
        (IBV_QP_SQ_PSN, "IBV_QP_SQ_PSN"),
        (IBV_QP_MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"),
        (IBV_QP_PATH_MIG_STATE, "IBV_QP_PATH_MIG_STATE"),
        (IBV_QP_CAP, "IBV_QP_CAP"),
        (IBV_QP_DEST_QPN, "IBV_QP_DEST_QPN"),
        (IBV_QP_RATE_LIMIT, "IBV_QP_RATE_LIMIT"),
    ];

    /// Whether no bit is set.
    #[must_use]
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all bits of `other` are set.
    #[must_use]
    pub(crate) const fn contains(self, other: i32) -> bool {
        self.0 & other == other
    }
}

impl fmt::Display for AttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        let mut separator = "";
        for (bit, name) in Self::NAMES {
            if rest & bit != 0 {
                write!(f, "{separator}{name}")?;
                separator = " | ";
                rest &= !bit;
            }
        }
        if rest != 0 {
            write!(f, "{separator}{rest:#x}")?;
        } else if separator.is_empty() {
            f.write_str("0")?;
        }
        Ok(())
    }
}

/// What a transition takes, apart from `IBV_QP_STATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransitionAttrs {
    /// Bits that must be set.
    pub(crate) required: AttrMask,
    /// Bits that may be set.
    pub(crate) optional: AttrMask,
}

/// Required and optional bits of one transport.
type Attrs = (i32, i32);

/// A legal transition, with what it takes on each transport.
struct Transition {
    from: QpState,
    to: QpState,
    rc: Attrs,
    uc: Attrs,
    ud: Attrs,
}

/// Alternate path and migration, which travel together on the connected transports.
const MIGRATION: i32 = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
/// What names the port and its access rights, on the connected transports.
const CONNECTED_PORT: i32 = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
/// The same for UD, which has a Q_Key and no remote access.
const DATAGRAM_PORT: i32 = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
/// What a connected QP must know of its peer to receive.
const PEER: i32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
/// What may change on the way into RTS, and in it.
const UC_TO_RTS: i32 = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | MIGRATION;
const RC_TO_RTS: i32 = UC_TO_RTS | IBV_QP_MIN_RNR_TIMER;
const UD_TO_RTS: i32 = IBV_QP_CUR_STATE | IBV_QP_QKEY;

/// Every transition that takes attributes. Those to RESET and ERR take none: see [`transition_attrs`].
const TRANSITIONS: [Transition; 9] = [
    Transition {
        from: QpState::Reset,
        to: QpState::Init,
        rc: (CONNECTED_PORT, 0),
        uc: (CONNECTED_PORT, 0),
        ud: (DATAGRAM_PORT, 0),
    },
    Transition {
        from: QpState::Init,
        to: QpState::Init,
        rc: (0, CONNECTED_PORT),
        uc: (0, CONNECTED_PORT),
        ud: (0, DATAGRAM_PORT),
    },
    Transition {
        from: QpState::Init,
        to: QpState::Rtr,
        rc: (
            PEER | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
            IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
        ),
        uc: (
            PEER,
            IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
        ),
        ud: (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
    },
    Transition {
        from: QpState::Rtr,
        to: QpState::Rts,
        rc: (
            IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC,
            RC_TO_RTS,
        ),
        uc: (IBV_QP_SQ_PSN, UC_TO_RTS),
        ud: (IBV_QP_SQ_PSN, UD_TO_RTS),
    },
    Transition {
        from: QpState::Rts,
        to: QpState::Rts,
        rc: (0, RC_TO_RTS),
        uc: (0, UC_TO_RTS),
        ud: (0, UD_TO_RTS),
    },
    Transition {
        from: QpState::Rts,
        to: QpState::Sqd,
        rc: (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        uc: (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        ud: (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
    },
    Transition {
        from: QpState::Sqd,
        to: QpState::Rts,
        rc: (0, RC_TO_RTS),
        uc: (0, UC_TO_RTS),
        ud: (0, UD_TO_RTS),
    },
    Transition {
        from: QpState::Sqd,
        to: QpState::Sqd,
        rc: (
            0,
            IBV_QP_PORT
                | IBV_QP_AV
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_MAX_QP_RD_ATOMIC
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_ACCESS_FLAGS
                | IBV_QP_PKEY_INDEX
                | IBV_QP_MIN_RNR_TIMER
                | MIGRATION,
        ),
        uc: (
            0,
            IBV_QP_AV | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | MIGRATION,
        ),
        ud: (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
    },
    Transition {
        from: QpState::Sqe,
        to: QpState::Rts,
        rc: (0, 0), // RC has no SQE; Linux allows the way out all the same.
        uc: (0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS),
        ud: (0, IBV_QP_CUR_STATE | IBV_QP_QKEY),
    },
];

/// What the transition from `from` to `to` takes; `None` if there is no such transition.
#[must_use]
pub(crate) fn transition_attrs(
    qp_type: QpType,
    from: QpState,
    to: QpState,
) -> Option<TransitionAttrs> {
    let (required, optional) = match (from, to) {
        (_, QpState::Reset) => (0, 0),
        (QpState::Reset, QpState::Err) => return None,
        (_, QpState::Err) => (0, 0),
        _ => {
            let transition = TRANSITIONS
                .iter()
                .find(|transition| (transition.from, transition.to) == (from, to))?;
            match qp_type {
                QpType::Rc => transition.rc,
                QpType::Uc => transition.uc,
                QpType::Ud => transition.ud,
            }
        }
    };
    Some(TransitionAttrs {
        required: AttrMask(required),
        optional: AttrMask(optional),
    })
}

/// Limits of the device and its ports that attributes are held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Number of ports; ports count from 1.
    pub(crate) phys_port_cnt: u8,
    /// Entries of the P_Key table.
    pub(crate) pkey_tbl_len: u16,
    /// Entries of the GID table.
    pub(crate) gid_tbl_len: u16,
    /// Largest path MTU of the port, coded.
    pub(crate) max_mtu: ibv_mtu,
    /// Most READs and atomics that a QP may have outstanding as requester (`max_qp_init_rd_atom`).
    pub(crate) max_qp_init_rd_atom: u8,
    /// Most READs and atomics that a QP serves at a time as responder (`max_qp_rd_atom`).
    pub(crate) max_qp_rd_atom: u8,
}

/// Why `ibv_modify_qp` is refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ModifyQpError {
    /// `qp_state` or `cur_qp_state` holds no state.
    #[error("{qp_type} QP in {from}: {field} = {value} is not a QP state (0 RESET to 6 ERR)")]
    UnknownState {
        /// Transport of the QP.
        qp_type: QpType,
        /// State of the QP.
        from: QpState,
        /// The field of `ibv_qp_attr`.
        field: &'static str,
        /// Its value.
        value: u32,
    },
    /// `IBV_QP_CUR_STATE` names another state than the QP is in.
    #[error("{qp_type} QP going to {to}: cur_qp_state = {assumed}, but the QP is in {from}")]
    CurStateMismatch {
        /// Transport of the QP.
        qp_type: QpType,
        /// State of the QP.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// State that the caller took the QP to be in.
        assumed: QpState,
    },
    /// The state machine has no such transition.
    #[error("{qp_type} QP in {from} cannot go to {to}; it can go to {}", next_states(*.qp_type, *.from))]
    NoTransition {
        /// Transport of the QP.
        qp_type: QpType,
        /// State of the QP.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// The transition exists, but not with these attributes.
    #[error("{qp_type} QP from {from} to {to}: {}", wrong_attrs(*.missing, *.not_allowed))]
    WrongAttrs {
        /// Transport of the QP.
        qp_type: QpType,
        /// State of the QP.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Required bits that are not set.
        missing: AttrMask,
        /// Bits that are set and may not be.
        not_allowed: AttrMask,
    },
    /// An attribute has a value outside its range.
    #[error("{qp_type} QP from {from} to {to}: {field} = {value} is not in {min}..={max}")]
    OutOfRange {
        /// Transport of the QP.
        qp_type: QpType,
        /// State of the QP.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// The field of `ibv_qp_attr`.
        field: &'static str,
        /// Its value.
        value: u32,
        /// Smallest value allowed.
        min: u32,
        /// Largest value allowed; below `min` if the device allows none.
        max: u32,
    },
}

impl ModifyQpError {
    /// What `ibv_modify_qp` returns: `EINVAL`.
    #[must_use]
    pub(crate) const fn errno(&self) -> i32 {
        libc::EINVAL
    }
}

/// The states that a QP can go to from `from`, for an error message.
fn next_states(qp_type: QpType, from: QpState) -> String {
    let next: Vec<String> = QpState::ALL
        .into_iter()
        .filter(|&to| transition_attrs(qp_type, from, to).is_some())
        .map(|to| to.to_string())
        .collect();
    next.join(", ")
}

/// What is wrong with a mask, for an error message.
fn wrong_attrs(missing: AttrMask, not_allowed: AttrMask) -> String {
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
const MAX_24_BIT: u32 = (1 << 24) - 1;
/// Largest value of a 5-bit field: ACK timeout and RNR timer codes.
const MAX_5_BIT: u32 = (1 << 5) - 1;
/// Largest value of a 3-bit field: retry counts; as RNR retry it means "for ever".
const MAX_3_BIT: u32 = (1 << 3) - 1;

/// Decides whether `ibv_modify_qp(attr, attr_mask)` is legal for a QP of `qp_type` in state `cur`, and
/// returns the state that it leads to: `attr.qp_state` with `IBV_QP_STATE`, else `cur`.
///
/// Only fields whose bit is set are looked at. A mask without `IBV_QP_STATE` is the transition from
/// `cur` to itself, which RTR, SQE and (but for no attributes at all) RESET and ERR do not have.
///
/// # Errors
/// In this order: a state code that is none, a wrong `cur_qp_state`, no such transition, missing or
/// extra bits, values out of range. All are `EINVAL`.
///
/// Source: IBTA vol. 1, 11.2.5.2; `ibv_modify_qp(3)`; Linux `ib_modify_qp_is_ok`.
pub(crate) fn check_transition(
    qp_type: QpType,
    cur: QpState,
    attr_mask: i32,
    attr: &ibv_qp_attr,
    limits: &Limits,
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

    for Range {
        bit,
        field,
        value,
        min,
        max,
    } in ranges(attr, limits)
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

/// The range of a field, which counts if its bit is set.
struct Range {
    bit: i32,
    field: &'static str,
    value: u32,
    min: u32,
    max: u32,
}

/// The range of every field that has one, other than the states.
fn ranges(attr: &ibv_qp_attr, limits: &Limits) -> [Range; 20] {
    let range = |bit, field, value, min, max| Range {
        bit,
        field,
        value,
        min,
        max,
    };
    let ports = u32::from(limits.phys_port_cnt);
    // An index into a table of n entries is at most n - 1. Every port has a P_Key and a GID.
    let last_pkey = u32::from(limits.pkey_tbl_len.saturating_sub(1));
    let last_gid = u32::from(limits.gid_tbl_len.saturating_sub(1));
    let sgid_index = |ah: &ibv_ah_attr| {
        if ah.is_global == 0 {
            0
        } else {
            u32::from(ah.grh.sgid_index)
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
            limits.max_mtu.min(IBV_MTU_4096),
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
        range(
            IBV_QP_MIN_RNR_TIMER,
            "min_rnr_timer",
            attr.min_rnr_timer.into(),
            0,
            MAX_5_BIT,
        ),
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

/// RNR NAK timer of each code, in units of 10 µs: IBTA vol. 1, table "Encoding for RNR NAK Timer Field".
const RNR_TIMER_10US: [u64; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024,
    1_536, 2_048, 3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// The time that the RNR NAK timer code `code` stands for, in nanoseconds: from 10 µs (1) to
/// 491.52 ms (31), and 655.36 ms for 0.
///
/// The field has 5 bits; higher bits of `code` are ignored.
#[must_use]
pub(crate) fn rnr_timer_ns(code: u8) -> u64 {
    RNR_TIMER_10US[usize::from(code & 0x1f)] * 10_000
}

/// The time that the local ACK timeout code `code` stands for, in nanoseconds: 4.096 µs * 2^`code`;
/// `None` for 0, which means to wait for ever.
///
/// The field has 5 bits; higher bits of `code` are ignored.
///
/// Source: IBTA vol. 1, 9.9.2.1.1.
#[must_use]
pub(crate) fn ack_timeout_ns(code: u8) -> Option<u64> {
    match code & 0x1f {
        0 => None,
        code => Some(4_096 << code),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Required and optional bits by transition and transport (RC, UC, UD), without `IBV_QP_STATE`: what
    /// the tables of `ibv_modify_qp(3)` and of Linux `ib_modify_qp_is_ok` come to as numbers.
    const GOLDEN: [(QpState, QpState, [Attrs; 3]); 9] = [
        (
            QpState::Reset,
            QpState::Init,
            [(0x38, 0x0), (0x38, 0x0), (0x70, 0x0)],
        ),
        (
            QpState::Init,
            QpState::Init,
            [(0x0, 0x38), (0x0, 0x38), (0x0, 0x70)],
        ),
        (
            QpState::Init,
            QpState::Rtr,
            [(0x0012_9180, 0x4018), (0x0010_1180, 0x4018), (0x0, 0x50)],
        ),
        (
            QpState::Rtr,
            QpState::Rts,
            [(0x12e00, 0x4c00a), (0x10000, 0x4400a), (0x10000, 0x42)],
        ),
        (
            QpState::Rts,
            QpState::Rts,
            [(0x0, 0x4c00a), (0x0, 0x4400a), (0x0, 0x42)],
        ),
        (
            QpState::Rts,
            QpState::Sqd,
            [(0x0, 0x4), (0x0, 0x4), (0x0, 0x4)],
        ),
        (
            QpState::Sqd,
            QpState::Rts,
            [(0x0, 0x4c00a), (0x0, 0x4400a), (0x0, 0x42)],
        ),
        (
            QpState::Sqd,
            QpState::Sqd,
            [(0x0, 0x6eeb8), (0x0, 0x44098), (0x0, 0x50)],
        ),
        (
            QpState::Sqe,
            QpState::Rts,
            [(0x0, 0x0), (0x0, 0xa), (0x0, 0x42)],
        ),
    ];

    /// A slow and obvious second version of [`transition_attrs`].
    fn golden(qp_type: QpType, from: QpState, to: QpState) -> Option<Attrs> {
        if to == QpState::Reset || (to == QpState::Err && from != QpState::Reset) {
            return Some((0, 0));
        }
        let (_, _, attrs) = GOLDEN.iter().find(|row| row.0 == from && row.1 == to)?;
        Some(match qp_type {
            QpType::Rc => attrs[0],
            QpType::Uc => attrs[1],
            QpType::Ud => attrs[2],
        })
    }

    const LIMITS: Limits = Limits {
        phys_port_cnt: 2,
        pkey_tbl_len: 8,
        gid_tbl_len: 16,
        max_mtu: IBV_MTU_4096,
        max_qp_init_rd_atom: 16,
        max_qp_rd_atom: 32,
    };

    /// Attributes in range whatever the mask, for a QP in `from` that is to go to `to`.
    fn attr(from: QpState, to: QpState) -> ibv_qp_attr {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = to.as_abi();
        attr.cur_qp_state = from.as_abi();
        attr.path_mtu = IBV_MTU_4096;
        attr.port_num = 1;
        attr.alt_port_num = 2;
        attr.ah_attr.port_num = 1;
        attr.alt_ah_attr.port_num = 2;
        attr
    }

    fn check(
        qp_type: QpType,
        from: QpState,
        to: QpState,
        mask: i32,
    ) -> Result<QpState, ModifyQpError> {
        check_transition(qp_type, from, mask, &attr(from, to), &LIMITS)
    }

    fn every_case() -> impl Iterator<Item = (QpType, QpState, QpState)> {
        QpType::ALL.into_iter().flat_map(|qp_type| {
            QpState::ALL
                .into_iter()
                .flat_map(move |from| QpState::ALL.into_iter().map(move |to| (qp_type, from, to)))
        })
    }

    fn every_bit() -> impl Iterator<Item = i32> {
        (0..32).map(|shift| 1_i32 << shift)
    }

    #[test]
    fn codes_round_trip_and_others_are_refused() {
        for (code, state) in (0..).zip(QpState::ALL) {
            assert_eq!(state.as_abi(), code);
            assert_eq!(QpState::try_from(code), Ok(state));
        }
        for code in [7, 8, 255, u32::MAX] {
            assert_eq!(QpState::try_from(code), Err(UnknownQpState(code)));
        }
        for (code, qp_type) in (2..).zip(QpType::ALL) {
            assert_eq!(qp_type.as_abi(), code);
            assert_eq!(QpType::try_from(code), Ok(qp_type));
        }
        for code in [0, 1, 5, 8, 9, 10, 255, u32::MAX] {
            assert_eq!(QpType::try_from(code), Err(UnsupportedQpType(code)));
        }
    }

    #[test]
    fn states_print_as_in_the_specification() {
        let printed: Vec<String> = QpState::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(
            printed,
            ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"]
        );
        assert_eq!(format!("{:<6}|", QpState::Rtr), "RTR   |");
    }

    #[test]
    fn the_table_is_the_golden_one() {
        for (qp_type, from, to) in every_case() {
            let ours = transition_attrs(qp_type, from, to)
                .map(|attrs| (attrs.required.0, attrs.optional.0));
            assert_eq!(ours, golden(qp_type, from, to), "{qp_type} {from} to {to}");
        }
    }

    #[test]
    fn the_required_attributes_are_those_of_the_man_page() {
        let required = |qp_type, from, to| {
            transition_attrs(qp_type, from, to)
                .unwrap()
                .required
                .to_string()
        };
        let (reset, init, rtr, rts) = (QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts);
        assert_eq!(
            required(QpType::Ud, reset, init),
            "IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY"
        );
        assert_eq!(required(QpType::Ud, init, rtr), "0");
        assert_eq!(required(QpType::Ud, rtr, rts), "IBV_QP_SQ_PSN");
        assert_eq!(
            required(QpType::Uc, reset, init),
            "IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT"
        );
        assert_eq!(
            required(QpType::Uc, init, rtr),
            "IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_RQ_PSN | IBV_QP_DEST_QPN"
        );
        assert_eq!(required(QpType::Uc, rtr, rts), "IBV_QP_SQ_PSN");
        assert_eq!(
            required(QpType::Rc, reset, init),
            "IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT"
        );
        assert_eq!(
            required(QpType::Rc, init, rtr),
            "IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_RQ_PSN | IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC | \
             IBV_QP_DEST_QPN"
        );
        assert_eq!(
            required(QpType::Rc, rtr, rts),
            "IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_SQ_PSN"
        );
    }

    #[test]
    fn required_bits_suffice_each_is_needed_and_no_foreign_bit_is_taken() {
        let mut legal = 0;
        for (qp_type, from, to) in every_case() {
            let Some((required, optional)) = golden(qp_type, from, to) else {
                for mask in every_bit().map(|bit| bit | IBV_QP_STATE) {
                    assert!(
                        check(qp_type, from, to, mask).is_err(),
                        "{qp_type} {from} to {to}"
                    );
                }
                assert_eq!(
                    check(qp_type, from, to, IBV_QP_STATE),
                    Err(ModifyQpError::NoTransition { qp_type, from, to })
                );
                continue;
            };
            legal += 1;
            let required_mask = required | IBV_QP_STATE;
            assert_eq!(
                check(qp_type, from, to, required_mask),
                Ok(to),
                "{qp_type} {from} to {to}"
            );
            assert_eq!(
                check(qp_type, from, to, required_mask | optional),
                Ok(to),
                "{qp_type} {from} to {to}"
            );
            for bit in every_bit() {
                let result = if required & bit != 0 {
                    check(qp_type, from, to, required_mask & !bit)
                } else {
                    check(qp_type, from, to, required_mask | bit)
                };
                if (optional | IBV_QP_STATE) & bit != 0 {
                    assert_eq!(
                        result,
                        Ok(to),
                        "{qp_type} {from} to {to}, {}",
                        AttrMask(bit)
                    );
                    continue;
                }
                let (missing, not_allowed) = if required & bit != 0 {
                    (bit, 0)
                } else {
                    (0, bit)
                };
                assert_eq!(
                    result,
                    Err(ModifyQpError::WrongAttrs {
                        qp_type,
                        from,
                        to,
                        missing: AttrMask(missing),
                        not_allowed: AttrMask(not_allowed),
                    })
                );
            }
        }
        // To RESET from all 7, to ERR from 6, and the 9 rows, for each of 3 transports.
        assert_eq!(legal, 3 * (7 + 6 + 9));
    }

    #[test]
    fn without_ibv_qp_state_the_qp_stays() {
        let stays = |qp_type, cur, mask| check(qp_type, cur, QpState::Reset, mask & !IBV_QP_STATE);
        assert_eq!(
            stays(QpType::Rc, QpState::Rts, IBV_QP_MIN_RNR_TIMER),
            Ok(QpState::Rts)
        );
        assert_eq!(
            stays(QpType::Ud, QpState::Init, IBV_QP_QKEY),
            Ok(QpState::Init)
        );
        assert_eq!(
            stays(QpType::Rc, QpState::Sqd, IBV_QP_TIMEOUT),
            Ok(QpState::Sqd)
        );
        assert_eq!(stays(QpType::Rc, QpState::Reset, 0), Ok(QpState::Reset));
        assert_eq!(stays(QpType::Rc, QpState::Err, 0), Ok(QpState::Err));
        assert!(stays(QpType::Rc, QpState::Rtr, IBV_QP_MIN_RNR_TIMER).is_err());
        assert!(stays(QpType::Uc, QpState::Sqe, IBV_QP_ACCESS_FLAGS).is_err());
    }

    #[test]
    fn cur_state_must_be_the_state_of_the_qp() {
        let mask = IBV_QP_STATE | IBV_QP_CUR_STATE;
        let mut attr = attr(QpState::Rts, QpState::Rts);
        let error = check_transition(QpType::Ud, QpState::Sqe, mask, &attr, &LIMITS).unwrap_err();
        assert_eq!(
            error,
            ModifyQpError::CurStateMismatch {
                qp_type: QpType::Ud,
                from: QpState::Sqe,
                to: QpState::Rts,
                assumed: QpState::Rts
            }
        );
        assert_eq!(
            error.to_string(),
            "UD QP going to RTS: cur_qp_state = RTS, but the QP is in SQE"
        );
        attr.cur_qp_state = IBV_QPS_SQE;
        assert_eq!(
            check_transition(QpType::Ud, QpState::Sqe, mask, &attr, &LIMITS),
            Ok(QpState::Rts)
        );
        // Without its bit the field is not looked at.
        attr.cur_qp_state = 99;
        assert_eq!(
            check_transition(QpType::Ud, QpState::Sqe, IBV_QP_STATE, &attr, &LIMITS),
            Ok(QpState::Rts)
        );
    }

    #[test]
    fn codes_that_are_no_state_are_refused() {
        let mut attr = attr(QpState::Rts, QpState::Rts);
        attr.cur_qp_state = u32::MAX;
        let error = check_transition(QpType::Rc, QpState::Rts, IBV_QP_CUR_STATE, &attr, &LIMITS)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "RC QP in RTS: cur_qp_state = 4294967295 is not a QP state (0 RESET to 6 ERR)"
        );
        attr.qp_state = 7;
        let error =
            check_transition(QpType::Rc, QpState::Rts, IBV_QP_STATE, &attr, &LIMITS).unwrap_err();
        assert_eq!(
            error.to_string(),
            "RC QP in RTS: qp_state = 7 is not a QP state (0 RESET to 6 ERR)"
        );
    }

    #[test]
    fn refusals_name_states_bits_and_ranges() {
        let text = |result: Result<QpState, ModifyQpError>| {
            let error = result.unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL);
            error.to_string()
        };
        assert_eq!(
            text(check(
                QpType::Rc,
                QpState::Reset,
                QpState::Rts,
                IBV_QP_STATE
            )),
            "RC QP in RESET cannot go to RTS; it can go to RESET, INIT"
        );
        assert_eq!(
            text(check(
                QpType::Uc,
                QpState::Init,
                QpState::Rtr,
                IBV_QP_STATE | IBV_QP_AV | IBV_QP_RQ_PSN | IBV_QP_QKEY | 1 << 23
            )),
            "UC QP from INIT to RTR: missing IBV_QP_PATH_MTU | IBV_QP_DEST_QPN; not allowed IBV_QP_QKEY | 0x800000"
        );
        let mut attr = attr(QpState::Reset, QpState::Init);
        attr.port_num = 3;
        let mask = IBV_QP_STATE | CONNECTED_PORT;
        assert_eq!(
            text(check_transition(
                QpType::Rc,
                QpState::Reset,
                mask,
                &attr,
                &LIMITS
            )),
            "RC QP from RESET to INIT: port_num = 3 is not in 1..=2"
        );
    }

    /// Sets one field to a value.
    type Set = fn(&mut ibv_qp_attr, u32);

    /// Every field with a range: a transition that takes it, its name, smallest and largest value.
    fn every_range() -> Vec<(QpState, QpState, &'static str, u32, u32, Set)> {
        fn byte(value: u32) -> u8 {
            u8::try_from(value).unwrap()
        }
        use QpState::{Init, Reset, Rtr, Rts};
        vec![
            (Reset, Init, "port_num", 1, 2, |a, v| a.port_num = byte(v)),
            (Reset, Init, "pkey_index", 0, 7, |a, v| {
                a.pkey_index = u16::try_from(v).unwrap()
            }),
            (Init, Rtr, "path_mtu", 1, 5, |a, v| a.path_mtu = v),
            (Init, Rtr, "ah_attr.port_num", 1, 2, |a, v| {
                a.ah_attr.port_num = byte(v)
            }),
            (Init, Rtr, "ah_attr.grh.sgid_index", 0, 15, |a, v| {
                a.ah_attr.is_global = 1;
                a.ah_attr.grh.sgid_index = byte(v);
            }),
            (Init, Rtr, "dest_qp_num", 0, 0xff_ffff, |a, v| {
                a.dest_qp_num = v
            }),
            (Init, Rtr, "rq_psn", 0, 0xff_ffff, |a, v| a.rq_psn = v),
            (Init, Rtr, "max_dest_rd_atomic", 0, 32, |a, v| {
                a.max_dest_rd_atomic = byte(v)
            }),
            (Init, Rtr, "min_rnr_timer", 0, 31, |a, v| {
                a.min_rnr_timer = byte(v)
            }),
            (Init, Rtr, "alt_port_num", 1, 2, |a, v| {
                a.alt_port_num = byte(v)
            }),
            (Init, Rtr, "alt_pkey_index", 0, 7, |a, v| {
                a.alt_pkey_index = u16::try_from(v).unwrap()
            }),
            (Init, Rtr, "alt_timeout", 0, 31, |a, v| {
                a.alt_timeout = byte(v)
            }),
            (Init, Rtr, "alt_ah_attr.port_num", 1, 2, |a, v| {
                a.alt_ah_attr.port_num = byte(v)
            }),
            (Init, Rtr, "alt_ah_attr.grh.sgid_index", 0, 15, |a, v| {
                a.alt_ah_attr.is_global = 1;
                a.alt_ah_attr.grh.sgid_index = byte(v);
            }),
            (Rtr, Rts, "sq_psn", 0, 0xff_ffff, |a, v| a.sq_psn = v),
            (Rtr, Rts, "max_rd_atomic", 0, 16, |a, v| {
                a.max_rd_atomic = byte(v)
            }),
            (Rtr, Rts, "timeout", 0, 31, |a, v| a.timeout = byte(v)),
            (Rtr, Rts, "retry_cnt", 0, 7, |a, v| a.retry_cnt = byte(v)),
            (Rtr, Rts, "rnr_retry", 0, 7, |a, v| a.rnr_retry = byte(v)),
            (Rtr, Rts, "path_mig_state", 0, 2, |a, v| {
                a.path_mig_state = v
            }),
        ]
    }

    #[test]
    fn values_at_the_ends_of_a_range_pass_and_those_beyond_fail() {
        let checked = every_range();
        let known = ranges(&ibv_qp_attr::zeroed(), &LIMITS);
        assert_eq!(checked.len(), known.len(), "a range is not tested");
        assert!(
            known
                .iter()
                .all(|range| checked.iter().any(|case| case.2 == range.field))
        );

        for (from, to, field, min, max, set) in checked {
            let (required, optional) = golden(QpType::Rc, from, to).unwrap();
            let try_value = |value| {
                let mut attr = attr(from, to);
                set(&mut attr, value);
                check_transition(
                    QpType::Rc,
                    from,
                    IBV_QP_STATE | required | optional,
                    &attr,
                    &LIMITS,
                )
            };
            let refused = |value| {
                Err(ModifyQpError::OutOfRange {
                    qp_type: QpType::Rc,
                    from,
                    to,
                    field,
                    value,
                    min,
                    max,
                })
            };
            assert_eq!(try_value(min), Ok(to), "{field} = {min}");
            assert_eq!(try_value(max), Ok(to), "{field} = {max}");
            assert_eq!(try_value(max + 1), refused(max + 1));
            assert_eq!(try_value(255.max(max + 1)), refused(255.max(max + 1)));
            if let Some(below) = min.checked_sub(1) {
                assert_eq!(try_value(below), refused(below));
            }
        }
    }

    #[test]
    fn a_field_counts_only_with_its_bit() {
        let mut attr = attr(QpState::Rts, QpState::Rts);
        for (_, _, _, _, max, set) in every_range() {
            set(&mut attr, max + 1);
        }
        assert_eq!(
            check_transition(QpType::Rc, QpState::Rts, IBV_QP_STATE, &attr, &LIMITS),
            Ok(QpState::Rts)
        );
    }

    #[test]
    fn the_source_gid_counts_only_with_a_global_route() {
        let (required, _) = golden(QpType::Rc, QpState::Init, QpState::Rtr).unwrap();
        let mut attr = attr(QpState::Init, QpState::Rtr);
        attr.ah_attr.grh.sgid_index = 255;
        let check = |attr: &ibv_qp_attr| {
            check_transition(
                QpType::Rc,
                QpState::Init,
                IBV_QP_STATE | required,
                attr,
                &LIMITS,
            )
        };
        assert_eq!(check(&attr), Ok(QpState::Rtr));
        attr.ah_attr.is_global = 1;
        assert!(check(&attr).is_err());
    }

    #[test]
    fn a_path_mtu_above_that_of_the_port_is_refused() {
        let (required, _) = golden(QpType::Uc, QpState::Init, QpState::Rtr).unwrap();
        let limits = Limits {
            max_mtu: verbs_abi::IBV_MTU_1024,
            ..LIMITS
        };
        let check = |path_mtu| {
            let mut attr = attr(QpState::Init, QpState::Rtr);
            attr.path_mtu = path_mtu;
            check_transition(
                QpType::Uc,
                QpState::Init,
                IBV_QP_STATE | required,
                &attr,
                &limits,
            )
        };
        assert_eq!(check(verbs_abi::IBV_MTU_1024), Ok(QpState::Rtr));
        assert!(check(verbs_abi::IBV_MTU_2048).is_err());
    }

    proptest! {
        #[test]
        fn any_mask_is_judged_as_the_golden_table_says(
            qp_type in 0_usize..3,
            from in 0_usize..7,
            to in 0_usize..7,
            mask in prop_oneof![any::<i32>(), 0_i32..1 << 21, proptest::sample::subsequence(
                (0..21).map(|shift| 1_i32 << shift).collect::<Vec<_>>(), 0..8).prop_map(|bits| bits.iter().sum())],
        ) {
            let (qp_type, from, to) = (QpType::ALL[qp_type], QpState::ALL[from], QpState::ALL[to]);
            let next = if mask & IBV_QP_STATE != 0 { to } else { from };
            let legal = golden(qp_type, from, next).is_some_and(|(required, optional)| {
                (0..32).map(|shift| 1_i32 << shift).all(|bit| {
                    let set = mask & bit != 0;
                    if bit == IBV_QP_STATE { true }
                    else if required & bit != 0 { set }
                    else { !set || optional & bit != 0 }
                })
            });
            prop_assert_eq!(check(qp_type, from, to, mask).ok(), legal.then_some(next));
        }

        #[test]
        fn no_attributes_make_it_panic(
            qp_type in 0_usize..3,
            from in 0_usize..7,
            mask in any::<i32>(),
            numbers in any::<[u32; 8]>(),
            bytes in any::<[u8; 12]>(),
            limits in any::<[u8; 4]>(),
        ) {
            let mut attr = ibv_qp_attr::zeroed();
            [attr.qp_state, attr.cur_qp_state, attr.path_mtu, attr.path_mig_state] =
                [numbers[0], numbers[1], numbers[2], numbers[3]];
            [attr.rq_psn, attr.sq_psn, attr.dest_qp_num, attr.qkey] = [numbers[4], numbers[5], numbers[6], numbers[7]];
            [attr.port_num, attr.timeout, attr.retry_cnt, attr.rnr_retry] = [bytes[0], bytes[1], bytes[2], bytes[3]];
            [attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.min_rnr_timer] = [bytes[4], bytes[5], bytes[6]];
            [attr.ah_attr.port_num, attr.ah_attr.is_global, attr.ah_attr.grh.sgid_index] =
                [bytes[7], bytes[8], bytes[9]];
            let limits = Limits {
                phys_port_cnt: limits[0],
                pkey_tbl_len: limits[1].into(),
                gid_tbl_len: limits[2].into(),
                max_mtu: limits[3].into(),
                max_qp_init_rd_atom: bytes[10],
                max_qp_rd_atom: bytes[11],
            };
            let result = check_transition(QpType::ALL[qp_type], QpState::ALL[from], mask, &attr, &limits);
            if let Err(error) = result {
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }

    /// IBTA vol. 1, "Encoding for RNR NAK Timer Field", in milliseconds, from code 0 on.
    const RNR_TIMER_MS: &str = "655.36 0.01 0.02 0.03 0.04 0.06 0.08 0.12 0.16 0.24 0.32 0.48 0.64 0.96 1.28 1.92 \
        2.56 3.84 5.12 7.68 10.24 15.36 20.48 30.72 40.96 61.44 81.92 122.88 163.84 245.76 327.68 491.52";

    #[test]
    fn rnr_timer_is_the_table_of_the_specification() {
        let mut codes = 0;
        for (code, ms) in (0..).zip(RNR_TIMER_MS.split_whitespace()) {
            let (whole, hundredths) = ms.split_once('.').unwrap();
            let expected = whole.parse::<u64>().unwrap() * 1_000_000
                + hundredths.parse::<u64>().unwrap() * 10_000;
            assert_eq!(rnr_timer_ns(code), expected, "code {code}");
            codes += 1;
        }
        assert_eq!(codes, 32);
    }

    #[test]
    fn rnr_timer_follows_its_formula() {
        // Even codes double from 20 µs (0 counts as 32), odd ones lie half way to the next; 1 is the exception.
        for code in 2..=32_u8 {
            let power = 10_000_u64 << (code / 2);
            let expected = if code % 2 == 0 {
                power
            } else {
                power + power / 2
            };
            assert_eq!(rnr_timer_ns(code % 32), expected, "code {code}");
        }
        assert_eq!(rnr_timer_ns(1), 10_000);
    }

    #[test]
    fn timer_codes_have_five_bits() {
        for code in 0..=u8::MAX {
            assert_eq!(rnr_timer_ns(code), rnr_timer_ns(code % 32));
            assert_eq!(ack_timeout_ns(code), ack_timeout_ns(code % 32));
        }
    }

    #[test]
    fn ack_timeout_doubles_from_8_microseconds() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(1), Some(8_192));
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        assert_eq!(ack_timeout_ns(31), Some(8_796_093_022_208));
    }
}
