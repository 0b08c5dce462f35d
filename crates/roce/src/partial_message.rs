//! Checks and execution of the packets of a message at the responder.

use crate::opcode::{LastPacketField, MessagePosition, PacketOperation};
use crate::packet::{ExtendedHeaders, Packet, Reth};
use crate::responder_target::{Refusal, ResponderTarget};

/// Largest message (IBTA vol. 1, 9.7.4.1.6).
const MAX_MESSAGE_BYTES: u32 = 1 << 31;

/// A message whose last packet has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartialMessage {
    /// A SEND.
    Send {
        /// Bytes that have arrived.
        received: u32,
    },
    /// A WRITE.
    Write {
        /// The RETH of the first packet.
        reth: Reth,
        /// Bytes that have arrived.
        received: u32,
    },
}

impl PartialMessage {
    /// Bytes that have arrived.
    pub(crate) fn received_bytes(&self) -> u32 {
        match self {
            Self::Send { received } | Self::Write { received, .. } => *received,
        }
    }

    /// The length in the RETH of a WRITE.
    pub(crate) fn announced_bytes(&self) -> Option<u32> {
        match self {
            Self::Send { .. } => None,
            Self::Write { reth, .. } => Some(reth.len),
        }
    }

    /// Writes the payload of a packet to the target; returns the message with its new length.
    ///
    /// # Errors
    /// The target's refusal.
    pub(crate) fn write_payload(
        self,
        packet: &Packet<'_>,
        target: &mut impl ResponderTarget,
    ) -> Result<Self, Refusal> {
        let payload = packet.payload;
        #[allow(clippy::cast_possible_truncation)] // at most the MTU
        let len = payload.len() as u32;
        match self {
            Self::Send { received } => {
                if len > 0 {
                    target.write_to_receive_buffers(received, payload)?;
                }
                let received = received + len;
                Ok(Self::Send { received })
            }
            Self::Write { reth, received } => {
                if len > 0 {
                    let addr = reth.addr.wrapping_add(u64::from(received));
                    target.write_memory(addr, reth.rkey, payload)?;
                }
                let received = received + len;
                Ok(Self::Write { reth, received })
            }
        }
    }

    /// Completes the message whose last packet is `packet`.
    ///
    /// # Errors
    /// The target's refusal.
    pub(crate) fn complete_with_last_packet(
        self,
        packet: &Packet<'_>,
        target: &mut impl ResponderTarget,
    ) -> Result<(), Refusal> {
        let ExtendedHeaders {
            imm,
            ieth_rkey: ieth,
            ..
        } = packet.extended;
        let solicited = packet.bth.solicited;
        match self {
            Self::Send { .. } => {
                let tail = match (imm, ieth) {
                    (Some(imm), _) => LastPacketField::Imm(imm),
                    (None, Some(rkey)) => LastPacketField::Invalidate(rkey),
                    (None, None) => LastPacketField::None,
                };
                target.finish_receive(None, tail, solicited)
            }
            Self::Write { received, .. } => match imm {
                Some(imm) => {
                    target.finish_receive(Some(received), LastPacketField::Imm(imm), solicited)
                }
                None => Ok(()),
            },
        }
    }
}

/// Returns true if a packet consumes a receive work request: the first of a SEND, or the last of a WRITE with immediate
/// (IBTA vol. 1, 9.7.4.1.4).
pub(crate) fn consumes_receive_work_request(packet: &Packet<'_>) -> bool {
    match packet.bth.operation {
        PacketOperation::Send => packet.bth.position.is_first(),
        PacketOperation::Write => packet.extended.imm.is_some(),
        _ => false,
    }
}

/// Checks that the packet continues the message, or begins a new one after its end, and returns that message (IBTA vol.
/// 1, 9.7.4.1.2). `None` if the packet is a request other than SEND and WRITE.
///
/// # Errors
/// The packet does not fit: NAK invalid request.
pub(crate) fn check_opcode_sequence(
    message: Option<PartialMessage>,
    packet: &Packet<'_>,
) -> Result<Option<PartialMessage>, Refusal> {
    let position = packet.bth.position;
    let operation = packet.bth.operation;
    match (message, operation, position.is_first()) {
        (None, PacketOperation::Send, true) => Ok(Some(PartialMessage::Send { received: 0 })),
        (None, PacketOperation::Write, true) => {
            let reth = packet.extended.reth.ok_or(Refusal::InvalidRequest)?;
            Ok(Some(PartialMessage::Write { reth, received: 0 }))
        }
        (Some(PartialMessage::Send { .. }), PacketOperation::Send, false)
        | (Some(PartialMessage::Write { .. }), PacketOperation::Write, false) => Ok(message),
        (None, PacketOperation::Send | PacketOperation::Write, false) | (Some(_), ..) => {
            Err(Refusal::InvalidRequest)
        }
        (None, _, _) => Ok(None),
    }
}

/// Checks the lengths of a packet (IBTA vol. 1, 9.7.4.1.6).
///
/// # Errors
/// A length is wrong: NAK invalid request.
pub(crate) fn check_length(
    message: Option<PartialMessage>,
    packet: &Packet<'_>,
    mtu_bytes: u32,
) -> Result<(), Refusal> {
    let is_valid = match message {
        Some(message) => has_valid_length(message, packet, mtu_bytes),
        None => is_other_request_well_formed(packet),
    };
    is_valid.then_some(()).ok_or(Refusal::InvalidRequest)
}

/// Returns true if a packet of a SEND or WRITE has the length that its position in the message requires.
fn has_valid_length(message: PartialMessage, packet: &Packet<'_>, mtu_bytes: u32) -> bool {
    let Ok(len) = u32::try_from(packet.payload.len()) else {
        return false;
    };
    let position = packet.bth.position;
    let fits_mtu = match position {
        MessagePosition::First | MessagePosition::Middle => len == mtu_bytes,
        MessagePosition::Last => len >= 1 && len <= mtu_bytes,
        MessagePosition::Only => len <= mtu_bytes,
    };
    let fits_message = match message {
        PartialMessage::Send { received } => received
            .checked_add(len)
            .is_some_and(|received| received <= MAX_MESSAGE_BYTES),
        PartialMessage::Write { reth, received } => {
            let received = received.checked_add(len);
            reth.len <= MAX_MESSAGE_BYTES
                && received.is_some_and(|received| match position.is_last() {
                    true => received == reth.len,
                    false => received < reth.len,
                })
        }
    };
    fits_mtu && fits_message
}

/// Returns true if a request other than SEND and WRITE is well-formed.
fn is_other_request_well_formed(packet: &Packet<'_>) -> bool {
    let ExtendedHeaders {
        reth, atomic, feth, ..
    } = packet.extended;
    let payload = packet.payload.len();
    match packet.bth.operation {
        PacketOperation::ReadRequest => {
            payload == 0 && reth.is_some_and(|reth| reth.len <= MAX_MESSAGE_BYTES)
        }
        PacketOperation::CompareSwap | PacketOperation::FetchAdd => {
            payload == 0 && atomic.is_some_and(|atomic| atomic.addr.is_multiple_of(8))
        }
        PacketOperation::AtomicWrite => {
            payload == 8 && reth.is_some_and(|reth| reth.len == 8 && reth.addr.is_multiple_of(8))
        }
        PacketOperation::Flush => payload == 0 && reth.is_some() && feth.is_some(),
        _ => false,
    }
}

/// Returns the remote address of an atomic; `None` for another request.
pub(crate) fn atomic_address(packet: &Packet<'_>) -> Option<u64> {
    match packet.bth.operation {
        PacketOperation::CompareSwap | PacketOperation::FetchAdd => {
            packet.extended.atomic.map(|atomic| atomic.addr)
        }
        PacketOperation::AtomicWrite => packet.extended.reth.map(|reth| reth.addr),
        _ => None,
    }
}

/// Checks the R_Key and range of the first packet of a WRITE, or of a READ. Requests of 0 bytes are not checked (IBTA
/// vol. 1, 9.7.4.1.5).
///
/// # Errors
/// The target's refusal.
pub(crate) fn check_rkey_and_range(
    packet: &Packet<'_>,
    target: &mut impl ResponderTarget,
) -> Result<(), Refusal> {
    match (packet.extended.reth, packet.bth.operation) {
        (Some(reth), PacketOperation::Write) if reth.len > 0 => {
            target.check_write(reth.addr, reth.rkey, reth.len)
        }
        (Some(reth), PacketOperation::ReadRequest) if reth.len > 0 => {
            target.check_read(reth.addr, reth.rkey, reth.len)
        }
        _ => Ok(()),
    }
}
