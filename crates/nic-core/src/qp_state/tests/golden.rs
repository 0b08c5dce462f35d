//! The kernel's table of transitions.

use crate::qp_state::QpState;
use crate::qp_state::transitions::RequiredOptionalBits;

/// Required and optional bits by transition and transport (RC, UC, UD, XRC_SEND, XRC_RECV, RAW_PACKET), without
/// `IBV_QP_STATE`. These are the tables of `ibv_modify_qp(3)` and of Linux `ib_modify_qp_is_ok` as numbers.
pub(super) const GOLDEN: [(QpState, QpState, [RequiredOptionalBits; 6]); 9] = [
    (
        QpState::Reset,
        QpState::Init,
        [
            (0x38, 0x0),
            (0x38, 0x0),
            (0x70, 0x0),
            (0x38, 0x0),
            (0x38, 0x0),
            (0x20, 0x0),
        ],
    ),
    (
        QpState::Init,
        QpState::Init,
        [
            (0x0, 0x38),
            (0x0, 0x38),
            (0x0, 0x70),
            (0x0, 0x38),
            (0x0, 0x38),
            (0x0, 0x0),
        ],
    ),
    (
        QpState::Init,
        QpState::Rtr,
        [
            (0x0012_9180, 0x4018),
            (0x0010_1180, 0x4018),
            (0x0, 0x50),
            (0x0010_1180, 0x4018),
            (0x0012_9180, 0x4018),
            (0x0, 0x0),
        ],
    ),
    (
        QpState::Rtr,
        QpState::Rts,
        [
            (0x12e00, 0x4c00a),
            (0x10000, 0x4400a),
            (0x10000, 0x42),
            (0x12e00, 0x4400a),
            (0x10200, 0x4c00a),
            (0x0, 0x0),
        ],
    ),
    (
        QpState::Rts,
        QpState::Rts,
        [
            (0x0, 0x4c00a),
            (0x0, 0x4400a),
            (0x0, 0x42),
            (0x0, 0x4400a),
            (0x0, 0x4c00a),
            (0x0, 0x0),
        ],
    ),
    (
        QpState::Rts,
        QpState::Sqd,
        [
            (0x0, 0x4),
            (0x0, 0x4),
            (0x0, 0x4),
            (0x0, 0x4),
            (0x0, 0x4),
            (0x0, 0x0),
        ],
    ),
    (
        QpState::Sqd,
        QpState::Rts,
        [
            (0x0, 0x4c00a),
            (0x0, 0x4400a),
            (0x0, 0x42),
            (0x0, 0x4400a),
            (0x0, 0x4c00a),
            (0x0, 0x0),
        ],
    ),
    (
        QpState::Sqd,
        QpState::Sqd,
        [
            (0x0, 0x6eeb8),
            (0x0, 0x44098),
            (0x0, 0x50),
            (0x0, 0x46eb8),
            (0x0, 0x6c2b8),
            (0x0, 0x0),
        ],
    ),
    (
        QpState::Sqe,
        QpState::Rts,
        [
            (0x0, 0x0),
            (0x0, 0xa),
            (0x0, 0x42),
            (0x0, 0x0),
            (0x0, 0x0),
            (0x0, 0x0),
        ],
    ),
];
