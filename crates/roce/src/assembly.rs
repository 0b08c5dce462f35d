//! Checks and execution of the packets of a message at the responder.

use crate::opcode::{Operation, Position, Tail};
use crate::packet::{Extended, Packet, Reth};
use crate::target::{Refusal, Target};

/// Largest message (IBTA vol. 1, 9.7.4.1.6).
const MAX_MESSAGE_BYTES: u32 = 1 << 31;

/// A message whose last packet has not arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
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

impl Message {
    /// Writes the payload of a packet to the target; returns the message with its new length.
    ///
    /// # Errors
    /// The target's refusal.
    pub(crate) fn place(
        self,
        packet: &Packet<'_>,
        target: &mut impl Target,
    ) -> Result<Self, Refusal> {
        let payload = packet.payload;
        #[allow(clippy::cast_possible_truncation)] // at most the MTU
        let len = payload.len() as u32;
        match self {
            Self::Send { received } => {
                if len > 0 {
                    target.receive(received, payload)?;
                }
                let received = received + len;
                Ok(Self::Send { received })
            }
            Self::Write { reth, received } => {
                if len > 0 {
                    let addr = reth.addr.wrapping_add(u64::from(received));
                    target.write(addr, reth.rkey, payload)?;
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
    pub(crate) fn finish(
        self,
        packet: &Packet<'_>,
        target: &mut impl Target,
    ) -> Result<(), Refusal> {
        let Extended { imm, ieth, .. } = packet.extended;
        let solicited = packet.bth.solicited;
        match self {
            Self::Send { .. } => {
                let tail = match (imm, ieth) {
                    (Some(imm), _) => Tail::Imm(imm),
                    (None, Some(rkey)) => Tail::Invalidate(rkey),
                    (None, None) => Tail::None,
                };
                target.finish_receive(None, tail, solicited)
            }
            Self::Write { received, .. } => match imm {
                Some(imm) => target.finish_receive(Some(received), Tail::Imm(imm), solicited),
                None => Ok(()),
            },
        }
    }
}

/// Returns true if a packet consumes a receive work request: the first of a SEND, or the last of a WRITE with immediate
/// (IBTA vol. 1, 9.7.4.1.4).
pub(crate) fn needs_receive(packet: &Packet<'_>) -> bool {
    match packet.bth.operation {
        Operation::Send => packet.bth.position.is_first(),
        Operation::Write => packet.extended.imm.is_some(),
        _ => false,
    }
}

/// Checks that the packet continues the message, or begins a new one after its end, and returns that message (IBTA vol.
/// 1, 9.7.4.1.2). `None` if the packet is a request other than SEND and WRITE.
///
/// # Errors
/// The packet does not fit: NAK invalid request.
pub(crate) fn opcode_sequence(
    message: Option<Message>,
    packet: &Packet<'_>,
) -> Result<Option<Message>, Refusal> {
    let position = packet.bth.position;
    let operation = packet.bth.operation;
    match (message, operation, position.is_first()) {
        (None, Operation::Send, true) => Ok(Some(Message::Send { received: 0 })),
        (None, Operation::Write, true) => {
            let reth = packet.extended.reth.ok_or(Refusal::InvalidRequest)?;
            Ok(Some(Message::Write { reth, received: 0 }))
        }
        (Some(Message::Send { .. }), Operation::Send, false)
        | (Some(Message::Write { .. }), Operation::Write, false) => Ok(message),
        (None, Operation::Send | Operation::Write, false) | (Some(_), ..) => {
            Err(Refusal::InvalidRequest)
        }
        (None, _, _) => Ok(None),
    }
}

/// Checks the lengths of a packet (IBTA vol. 1, 9.7.4.1.6).
///
/// # Errors
/// A length is wrong: NAK invalid request.
pub(crate) fn length(
    message: Option<Message>,
    packet: &Packet<'_>,
    mtu_bytes: u32,
) -> Result<(), Refusal> {
    let is_valid = match message {
        Some(message) => part_fits(message, packet, mtu_bytes),
        None => is_single_valid(packet),
    };
    is_valid.then_some(()).ok_or(Refusal::InvalidRequest)
}

/// Returns true if a packet of a SEND or WRITE has the length that its position in the message requires.
fn part_fits(message: Message, packet: &Packet<'_>, mtu_bytes: u32) -> bool {
    let Ok(len) = u32::try_from(packet.payload.len()) else {
        return false;
    };
    let position = packet.bth.position;
    let fits_mtu = match position {
        Position::First | Position::Middle => len == mtu_bytes,
        Position::Last => len >= 1 && len <= mtu_bytes,
        Position::Only => len <= mtu_bytes,
    };
    let fits_message = match message {
        Message::Send { received } => received
            .checked_add(len)
            .is_some_and(|received| received <= MAX_MESSAGE_BYTES),
        Message::Write { reth, received } => {
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
fn is_single_valid(packet: &Packet<'_>) -> bool {
    let Extended {
        reth, atomic, feth, ..
    } = packet.extended;
    let payload = packet.payload.len();
    match packet.bth.operation {
        Operation::ReadRequest => {
            payload == 0 && reth.is_some_and(|reth| reth.len <= MAX_MESSAGE_BYTES)
        }
        Operation::CompareSwap | Operation::FetchAdd => {
            payload == 0 && atomic.is_some_and(|atomic| atomic.addr.is_multiple_of(8))
        }
        Operation::AtomicWrite => {
            payload == 8 && reth.is_some_and(|reth| reth.len == 8 && reth.addr.is_multiple_of(8))
        }
        Operation::Flush => payload == 0 && reth.is_some() && feth.is_some(),
        _ => false,
    }
}

/// Checks the R_Key and range of the first packet of a WRITE, or of a READ. Requests of 0 bytes are not checked (IBTA
/// vol. 1, 9.7.4.1.5).
///
/// # Errors
/// The target's refusal.
pub(crate) fn rights(packet: &Packet<'_>, target: &mut impl Target) -> Result<(), Refusal> {
    match (packet.extended.reth, packet.bth.operation) {
        (Some(reth), Operation::Write) if reth.len > 0 => {
            target.check_write(reth.addr, reth.rkey, reth.len)
        }
        (Some(reth), Operation::ReadRequest) if reth.len > 0 => {
            target.check_read(reth.addr, reth.rkey, reth.len)
        }
        _ => Ok(()),
    }
}
