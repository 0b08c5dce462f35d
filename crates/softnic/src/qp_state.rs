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
    IBV_QPS_RTS, IBV_QPS_SQD, IBV_QPS_SQE, IBV_QPT_RAW_PACKET, IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD,
    IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_ah_attr, ibv_mtu, ibv_qp_attr, ibv_qp_state,
    ibv_qp_type,
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
        // A `match`, since every post and every poll asks.
        Ok(match code {
            IBV_QPS_RESET => Self::Reset,
            IBV_QPS_INIT => Self::Init,
            IBV_QPS_RTR => Self::Rtr,
            IBV_QPS_RTS => Self::Rts,
            IBV_QPS_SQD => Self::Sqd,
            IBV_QPS_SQE => Self::Sqe,
            IBV_QPS_ERR => Self::Err,
            _ => return Err(UnknownQpState(code)),
        })
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
    /// Whole Ethernet frames.
    RawPacket,
    /// XRC, sending: a reliable connection's requester.
    XrcSend,
    /// XRC, receiving: a reliable connection's responder.
    XrcRecv,
}

impl QpType {
    /// Every transport service, in the order of their codes.
    pub(crate) const ALL: [Self; 6] = [
        Self::Rc,
        Self::Uc,
        Self::Ud,
        Self::RawPacket,
        Self::XrcSend,
        Self::XrcRecv,
    ];

    /// The attributes of `mask` that this type has. The kernel drops the others before it looks at what is
    /// left (`modify_qp_mask` of `linux:drivers/infiniband/core/uverbs_cmd.c`), and programs rely on it.
    #[must_use]
    pub(crate) const fn relevant(self, mask: i32) -> i32 {
        match self {
            Self::XrcSend => mask & !RESPONDER,
            Self::XrcRecv => mask & !REQUESTER,
            Self::Rc | Self::Uc | Self::Ud | Self::RawPacket => mask,
        }
    }

    /// The transport service whose packets and acknowledgements it has: XRC's are those of RC.
    #[must_use]
    pub(crate) const fn service(self) -> Self {
        match self {
            Self::Rc | Self::XrcSend | Self::XrcRecv => Self::Rc,
            Self::Uc => Self::Uc,
            Self::Ud => Self::Ud,
            Self::RawPacket => Self::RawPacket,
        }
    }

    /// Has it one peer, that it is connected to?
    #[must_use]
    pub(crate) const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud | Self::RawPacket)
    }

    /// The code in the ABI: one of `IBV_QPT_*`.
    #[must_use]
    pub(crate) const fn as_abi(self) -> ibv_qp_type {
        match self {
            Self::Rc => IBV_QPT_RC,
            Self::Uc => IBV_QPT_UC,
            Self::Ud => IBV_QPT_UD,
            Self::RawPacket => IBV_QPT_RAW_PACKET,
            Self::XrcSend => IBV_QPT_XRC_SEND,
            Self::XrcRecv => IBV_QPT_XRC_RECV,
        }
    }
}

/// A code that is no [`QpType`]: unknown, or a transport service that is not implemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "QP type {0} is not supported (2 RC, 3 UC, 4 UD, 8 RAW_PACKET, 9 XRC_SEND and 10 XRC_RECV are)"
)]
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
            Self::RawPacket => "RAW_PACKET",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
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
    raw: Attrs,
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
        raw: (IBV_QP_PORT, 0),
    },
    Transition {
        from: QpState::Init,
        to: QpState::Init,
        rc: (0, CONNECTED_PORT),
        uc: (0, CONNECTED_PORT),
        ud: (0, DATAGRAM_PORT),
        raw: (0, 0),
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
        raw: (0, 0),
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
        raw: (0, 0),
    },
    Transition {
        from: QpState::Rts,
        to: QpState::Rts,
        rc: (0, RC_TO_RTS),
        uc: (0, UC_TO_RTS),
        ud: (0, UD_TO_RTS),
        raw: (0, 0),
    },
    Transition {
        from: QpState::Rts,
        to: QpState::Sqd,
        rc: (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        uc: (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        ud: (0, IBV_QP_EN_SQD_ASYNC_NOTIFY),
        raw: (0, 0),
    },
    Transition {
        from: QpState::Sqd,
        to: QpState::Rts,
        rc: (0, RC_TO_RTS),
        uc: (0, UC_TO_RTS),
        ud: (0, UD_TO_RTS),
        raw: (0, 0),
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
        raw: (0, 0),
    },
    Transition {
        from: QpState::Sqe,
        to: QpState::Rts,
        rc: (0, 0), // RC has no SQE; Linux allows the way out all the same.
        uc: (0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS),
        ud: (0, IBV_QP_CUR_STATE | IBV_QP_QKEY),
        raw: (0, 0),
    },
];

/// Attributes of a requester, which an XRC queue pair that receives does not have.
const REQUESTER: i32 = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
/// Attributes of a responder, which an XRC queue pair that sends does not have.
const RESPONDER: i32 = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

fn without((required, optional): Attrs, bits: i32) -> Attrs {
    (required & !bits, optional & !bits)
}

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
                QpType::RawPacket => transition.raw,
                QpType::XrcSend => without(transition.rc, RESPONDER),
                QpType::XrcRecv => without(transition.rc, REQUESTER),
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
mod tests;
