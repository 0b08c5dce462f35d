//! The description of a request that a responder refuses as invalid, for its user.

use std::fmt::{self, Display, Formatter};

use crate::opcode::{MessagePosition, PacketOperation};
use crate::psn::Psn;

/// A request that was refused with NAK invalid request: its first offending packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRequest {
    /// PSN of the packet.
    pub psn: Psn,
    /// Operation of the packet.
    pub operation: PacketOperation,
    /// Position of the packet in its message.
    pub position: MessagePosition,
    /// Bytes of payload in the packet.
    pub payload_bytes: usize,
    /// The check that refused the packet.
    pub failed_check: FailedCheck,
}

/// The check that refuses a request as invalid (IBTA vol. 1, 9.7.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedCheck {
    /// The packet does not follow the previous one in a message: `received` bytes of a message have arrived, or no
    /// message has begun.
    PacketOrder {
        /// Bytes of the message that has begun.
        received: Option<u32>,
    },
    /// The queue pair does not allow the operation.
    OperationNotAllowed,
    /// The queue pair has no responder resources: its `max_dest_rd_atomic` is 0.
    NoResponderResources,
    /// The address of an atomic is not a multiple of 8.
    UnalignedAtomic(u64),
    /// The length of the packet or of the message is wrong.
    Length {
        /// Bytes of the message in front of the packet.
        received: u32,
        /// Bytes of the message as its RETH announced, if it has one.
        announced: Option<u32>,
        /// Payload of a full packet.
        mtu: u32,
    },
    /// The queue pair that executes the request refused it.
    RefusedByTarget,
}

impl Display for InvalidRequest {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            operation,
            position,
            payload_bytes,
            ..
        } = self;
        let psn = self.psn.get();
        write!(
            f,
            "{operation:?} {position:?} with PSN {psn:#x} and {payload_bytes} bytes: {}",
            self.failed_check
        )
    }
}

impl Display for FailedCheck {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::PacketOrder { received: None } => write!(f, "no message has begun"),
            Self::PacketOrder {
                received: Some(received),
            } => write!(
                f,
                "it does not continue a message of which {received} bytes have arrived"
            ),
            Self::OperationNotAllowed => {
                write!(f, "qp_access_flags of the queue pair lack the access")
            }
            Self::NoResponderResources => write!(f, "max_dest_rd_atomic of the queue pair is 0"),
            Self::UnalignedAtomic(addr) => write!(
                f,
                "the remote address {addr:#x} of an atomic is not a multiple of 8"
            ),
            Self::Length {
                received,
                announced,
                mtu,
            } => {
                write!(
                    f,
                    "its length is wrong behind {received} bytes of the message"
                )?;
                if let Some(announced) = announced {
                    write!(f, ", which has {announced}")?;
                }
                write!(f, "; the path MTU is {mtu}")
            }
            Self::RefusedByTarget => write!(f, "the queue pair could not execute it"),
        }
    }
}
