//! The table of state transitions, with the attributes of each.

use super::attributes::*;
use super::codes::{QpState, QpType};

/// The attributes of a transition, without `IBV_QP_STATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitionAttrs {
    /// Bits that must be set.
    pub required: AttrMask,
    /// Bits that may be set.
    pub optional: AttrMask,
}

/// Required and optional bits of a transition on one transport.
pub(super) type RequiredOptionalBits = (i32, i32);

/// A legal transition, with its attributes on each transport.
struct Transition {
    from: QpState,
    to: QpState,
    rc: RequiredOptionalBits,
    uc: RequiredOptionalBits,
    ud: RequiredOptionalBits,
    raw: RequiredOptionalBits,
}

/// Alternate path and migration state, which connected transports set together.
const MIGRATION_ATTRS: i32 = IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE;
/// Attributes of the port and its access rights, on the connected transports.
pub(super) const CONNECTED_PORT_ATTRS: i32 = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
/// Attributes of the port for UD, which has a Q_Key and no remote access.
const DATAGRAM_PORT_ATTRS: i32 = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
/// Attributes of the peer that a connected QP needs to receive.
const PEER_ATTRS: i32 = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
/// Attributes of UC that may change in transitions to RTS, and from RTS to RTS.
const UC_TO_RTS_ATTRS: i32 = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | MIGRATION_ATTRS;
const RC_TO_RTS_ATTRS: i32 = UC_TO_RTS_ATTRS | IBV_QP_MIN_RNR_TIMER;
const UD_TO_RTS_ATTRS: i32 = IBV_QP_CUR_STATE | IBV_QP_QKEY;

/// All transitions with attributes. Transitions to RESET and ERR have none: see [`transition_attrs`].
const TRANSITIONS: [Transition; 9] = [
    Transition {
        from: QpState::Reset,
        to: QpState::Init,
        rc: (CONNECTED_PORT_ATTRS, 0),
        uc: (CONNECTED_PORT_ATTRS, 0),
        ud: (DATAGRAM_PORT_ATTRS, 0),
        raw: (IBV_QP_PORT, 0),
    },
    Transition {
        from: QpState::Init,
        to: QpState::Init,
        rc: (0, CONNECTED_PORT_ATTRS),
        uc: (0, CONNECTED_PORT_ATTRS),
        ud: (0, DATAGRAM_PORT_ATTRS),
        raw: (0, 0),
    },
    Transition {
        from: QpState::Init,
        to: QpState::Rtr,
        rc: (
            PEER_ATTRS | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
            IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
        ),
        uc: (
            PEER_ATTRS,
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
            RC_TO_RTS_ATTRS,
        ),
        uc: (IBV_QP_SQ_PSN, UC_TO_RTS_ATTRS),
        ud: (IBV_QP_SQ_PSN, UD_TO_RTS_ATTRS),
        raw: (0, 0),
    },
    Transition {
        from: QpState::Rts,
        to: QpState::Rts,
        rc: (0, RC_TO_RTS_ATTRS),
        uc: (0, UC_TO_RTS_ATTRS),
        ud: (0, UD_TO_RTS_ATTRS),
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
        rc: (0, RC_TO_RTS_ATTRS),
        uc: (0, UC_TO_RTS_ATTRS),
        ud: (0, UD_TO_RTS_ATTRS),
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
                | MIGRATION_ATTRS,
        ),
        uc: (
            0,
            IBV_QP_AV | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | MIGRATION_ATTRS,
        ),
        ud: (0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY),
        raw: (0, 0),
    },
    Transition {
        from: QpState::Sqe,
        to: QpState::Rts,
        rc: (0, 0), // RC has no SQE, but Linux allows this transition.
        uc: (0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS),
        ud: (0, IBV_QP_CUR_STATE | IBV_QP_QKEY),
        raw: (0, 0),
    },
];

fn without_bits((required, optional): RequiredOptionalBits, bits: i32) -> RequiredOptionalBits {
    (required & !bits, optional & !bits)
}

/// Returns the attributes of the transition from `from` to `to`; `None` if the transition is illegal.
#[must_use]
pub fn transition_attrs(qp_type: QpType, from: QpState, to: QpState) -> Option<TransitionAttrs> {
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
                QpType::XrcSend => without_bits(transition.rc, RESPONDER_ATTRIBUTES),
                QpType::XrcRecv => without_bits(transition.rc, REQUESTER_ATTRIBUTES),
            }
        }
    };
    Some(TransitionAttrs {
        required: AttrMask(required),
        optional: AttrMask(optional),
    })
}
