//! States and transport services of queue pairs, with their codes.

use std::fmt;

use super::attributes::{REQUESTER_ATTRIBUTES, RESPONDER_ATTRIBUTES};

/// State of a queue pair: IBTA vol. 1, 10.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpState {
    /// Reset, the state after creation: no work requests are accepted.
    Reset,
    /// Initialized: receive WRs may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Send queue drained, or being drained.
    Sqd,
    /// Send queue error: receiving continues. RC does not have this state.
    Sqe,
    /// Error: all posted work requests are flushed.
    Err,
}

impl QpState {
    /// All states, in the order of their codes.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// Returns the code in the C interface: one of `IBV_QPS_*`.
    #[must_use]
    #[inline]
    pub const fn code(self) -> u32 {
        match self {
            Self::Reset => 0,
            Self::Init => 1,
            Self::Rtr => 2,
            Self::Rts => 3,
            Self::Sqd => 4,
            Self::Sqe => 5,
            Self::Err => 6,
        }
    }
}

/// Error: the code is not a [`QpState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a QP state (0 RESET to 6 ERR)")]
pub struct UnknownQpState(pub u32);

impl TryFrom<u32> for QpState {
    type Error = UnknownQpState;

    #[inline]
    fn try_from(code: u32) -> Result<Self, UnknownQpState> {
        // This conversion is a `match` for speed, because every post and poll converts a state.
        Ok(match code {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::Rtr,
            3 => Self::Rts,
            4 => Self::Sqd,
            5 => Self::Sqe,
            6 => Self::Err,
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
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Raw Ethernet frames.
    RawPacket,
    /// XRC_SEND: the requester of a reliable connection.
    XrcSend,
    /// XRC_RECV: the responder of a reliable connection.
    XrcRecv,
}

impl QpType {
    /// All transport services, in the order of their codes.
    pub const ALL: [Self; 6] = [
        Self::Rc,
        Self::Uc,
        Self::Ud,
        Self::RawPacket,
        Self::XrcSend,
        Self::XrcRecv,
    ];

    /// Returns the attributes of `mask` that this type has. The kernel drops all other attributes before its
    /// checks (`modify_qp_mask` of `linux:drivers/infiniband/core/uverbs_cmd.c`), and programs rely on that.
    #[must_use]
    #[inline]
    pub const fn relevant_attributes(self, mask: i32) -> i32 {
        match self {
            Self::XrcSend => mask & !RESPONDER_ATTRIBUTES,
            Self::XrcRecv => mask & !REQUESTER_ATTRIBUTES,
            Self::Rc | Self::Uc | Self::Ud | Self::RawPacket => mask,
        }
    }

    /// Returns the transport service whose packets and acknowledgements the type uses; for XRC this is RC.
    #[must_use]
    #[inline]
    pub const fn service_with_xrc_as_rc(self) -> Self {
        match self {
            Self::Rc | Self::XrcSend | Self::XrcRecv => Self::Rc,
            Self::Uc => Self::Uc,
            Self::Ud => Self::Ud,
            Self::RawPacket => Self::RawPacket,
        }
    }

    /// Returns true if the type is connected to a single peer.
    #[must_use]
    #[inline]
    pub const fn is_connected(self) -> bool {
        !matches!(self, Self::Ud | Self::RawPacket)
    }

    /// Returns the code in the C interface: one of `IBV_QPT_*`.
    #[must_use]
    #[inline]
    pub const fn code(self) -> u32 {
        match self {
            Self::Rc => 2,
            Self::Uc => 3,
            Self::Ud => 4,
            Self::RawPacket => 8,
            Self::XrcSend => 9,
            Self::XrcRecv => 10,
        }
    }
}

/// Error: the code is not a [`QpType`]; it is unknown, or its transport service is not implemented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "QP type {0} is not supported (2 RC, 3 UC, 4 UD, 8 RAW_PACKET, 9 XRC_SEND and 10 XRC_RECV are)"
)]
pub struct UnsupportedQpType(pub u32);

impl TryFrom<u32> for QpType {
    type Error = UnsupportedQpType;

    fn try_from(code: u32) -> Result<Self, UnsupportedQpType> {
        Self::ALL
            .into_iter()
            .find(|qp_type| qp_type.code() == code)
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
