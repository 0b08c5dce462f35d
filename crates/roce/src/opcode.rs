//! Opcodes of the base transport header (IBTA vol. 1, table 38; annexes A14, A17 and A19).

/// The transport service, in the upper three bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification packet (annex A17).
    Cnp,
    /// Extended reliable connection (annex A14).
    Xrc,
}

/// The operation that a packet requests or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketOperation {
    /// Part of a SEND.
    Send,
    /// Part of an RDMA WRITE.
    Write,
    /// An RDMA READ request.
    ReadRequest,
    /// Part of the response to a READ, a FLUSH or an ATOMIC WRITE.
    ReadResponse,
    /// A positive or negative acknowledgement.
    Acknowledge,
    /// The response to a compare-and-swap or fetch-and-add.
    AtomicAcknowledge,
    /// A compare-and-swap request.
    CompareSwap,
    /// A fetch-and-add request.
    FetchAdd,
    /// A FLUSH request (annex A19).
    Flush,
    /// An ATOMIC WRITE request (annex A19).
    AtomicWrite,
    /// A congestion notification.
    Cnp,
}

impl PacketOperation {
    /// Returns true if packets of this operation go to a requester: they answer a request or notify of congestion.
    #[must_use]
    pub const fn goes_to_requester(self) -> bool {
        matches!(
            self,
            Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge | Self::Cnp
        )
    }
}

/// The position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePosition {
    /// The first of several packets.
    First,
    /// A packet between the first and the last.
    Middle,
    /// The last of several packets.
    Last,
    /// The only packet of a message.
    Only,
}

impl MessagePosition {
    /// Returns true if the message begins with this packet.
    #[must_use]
    pub const fn is_first(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Returns true if the message ends with this packet.
    #[must_use]
    pub const fn is_last(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }

    /// Returns a packet's position from whether the packet is the first and whether it is the last of its message.
    #[must_use]
    pub const fn from_first_and_last_flags(is_first: bool, is_last: bool) -> Self {
        match (is_first, is_last) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }
}

/// The field that the last packet of a SEND or WRITE carries in addition to its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastPacketField {
    /// No additional field.
    #[default]
    None,
    /// Four bytes of immediate data, as they lie in `ibv_send_wr::imm_data`.
    Imm([u8; 4]),
    /// The R_Key that the responder invalidates.
    Invalidate(u32),
}

/// The kind of a [`LastPacketField`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LastPacketFieldKind {
    /// No immediate data and no key.
    #[default]
    None,
    /// Immediate data.
    Imm,
    /// An R_Key to invalidate.
    Invalidate,
}

/// The meaning of the opcode byte, the first byte of a BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opcode {
    /// The transport service.
    pub transport: Transport,
    /// The operation that the packet requests or answers.
    pub operation: PacketOperation,
    /// The packet's position in its message; `Only` for operations of a single packet.
    pub position: MessagePosition,
    /// The additional field in the last packet of a SEND or WRITE.
    pub last_packet_field: LastPacketFieldKind,
}

/// The lower five bits of each opcode, with their meaning; RC, UC, UD and XRC use the same values.
const OPCODES_BY_LOW_BITS: [(u8, PacketOperation, MessagePosition, LastPacketFieldKind); 25] = {
    use LastPacketFieldKind::{Imm, Invalidate, None};
    use MessagePosition::{First, Last, Middle, Only};
    use PacketOperation as O;
    [
        (0x00, O::Send, First, None),
        (0x01, O::Send, Middle, None),
        (0x02, O::Send, Last, None),
        (0x03, O::Send, Last, Imm),
        (0x04, O::Send, Only, None),
        (0x05, O::Send, Only, Imm),
        (0x06, O::Write, First, None),
        (0x07, O::Write, Middle, None),
        (0x08, O::Write, Last, None),
        (0x09, O::Write, Last, Imm),
        (0x0a, O::Write, Only, None),
        (0x0b, O::Write, Only, Imm),
        (0x0c, O::ReadRequest, Only, None),
        (0x0d, O::ReadResponse, First, None),
        (0x0e, O::ReadResponse, Middle, None),
        (0x0f, O::ReadResponse, Last, None),
        (0x10, O::ReadResponse, Only, None),
        (0x11, O::Acknowledge, Only, None),
        (0x12, O::AtomicAcknowledge, Only, None),
        (0x13, O::CompareSwap, Only, None),
        (0x14, O::FetchAdd, Only, None),
        (0x16, O::Send, Last, Invalidate),
        (0x17, O::Send, Only, Invalidate),
        (0x1c, O::Flush, Only, None),
        (0x1d, O::AtomicWrite, Only, None),
    ]
};

/// Opcode of a CNP, the only opcode of its transport.
const CNP_OPCODE: u8 = 0x81;

/// The meaning of each opcode byte.
const OPCODES_BY_BYTE: [Option<Opcode>; 256] = {
    let mut table = [None; 256];
    let transports = [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc];
    let mut each = 0;
    while each < transports.len() {
        let transport = transports[each];
        let mut row = 0;
        while row < OPCODES_BY_LOW_BITS.len() {
            let (low, operation, position, tail) = OPCODES_BY_LOW_BITS[row];
            if transport.defines_opcode(low) {
                table[(transport.high_bits() | low) as usize] = Some(Opcode {
                    transport,
                    operation,
                    position,
                    last_packet_field: tail,
                });
            }
            row += 1;
        }
        each += 1;
    }
    table[CNP_OPCODE as usize] = Some(Opcode {
        transport: Transport::Cnp,
        operation: PacketOperation::Cnp,
        position: MessagePosition::Only,
        last_packet_field: LastPacketFieldKind::None,
    });
    table
};

impl Transport {
    /// Returns the transport's code in the upper three bits of a byte.
    const fn high_bits(self) -> u8 {
        match self {
            Self::Rc => 0x00,
            Self::Uc => 0x20,
            Self::Ud => 0x60,
            Self::Cnp => 0x80,
            Self::Xrc => 0xa0,
        }
    }

    /// Returns true if the transport service defines the opcode with these lower five bits.
    const fn defines_opcode(self, low: u8) -> bool {
        match self {
            Self::Rc => true,
            Self::Uc => low <= 0x0b,
            Self::Ud => low == 0x04 || low == 0x05,
            Self::Xrc => low < 0x18,
            Self::Cnp => low == CNP_OPCODE & 0x1f,
        }
    }
}

impl Opcode {
    /// Decodes an opcode byte; `None` if it is reserved or belongs to a transport that RoCEv2 devices do not have.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        OPCODES_BY_BYTE[byte as usize]
    }

    /// Encodes the opcode; `None` if the transport has no such packet, e.g. a READ request of UC.
    #[must_use]
    pub const fn to_byte(self) -> Option<u8> {
        let Some(low) = self.low_bits_without_transport_check() else {
            return None;
        };
        if self.transport.defines_opcode(low)
            && matches!(self.transport, Transport::Cnp)
                == matches!(self.operation, PacketOperation::Cnp)
        {
            Some(self.transport.high_bits() | low)
        } else {
            None
        }
    }

    /// Returns the lower five bits of the opcode, without a check of the transport.
    const fn low_bits_without_transport_check(self) -> Option<u8> {
        let position = match self.position {
            MessagePosition::First => 0,
            MessagePosition::Middle => 1,
            MessagePosition::Last => 2,
            MessagePosition::Only => 4,
        };
        let single = matches!(self.position, MessagePosition::Only);
        Some(match (self.operation, self.last_packet_field) {
            (PacketOperation::Send, LastPacketFieldKind::None) => position,
            (PacketOperation::Write, LastPacketFieldKind::None) => 0x06 + position,
            (PacketOperation::Send, LastPacketFieldKind::Imm) if self.position.is_last() => {
                position + 1
            }
            (PacketOperation::Write, LastPacketFieldKind::Imm) if self.position.is_last() => {
                0x06 + position + 1
            }
            (PacketOperation::Send, LastPacketFieldKind::Invalidate) if single => 0x17,
            (PacketOperation::Send, LastPacketFieldKind::Invalidate) if self.position.is_last() => {
                0x16
            }
            (PacketOperation::ReadResponse, LastPacketFieldKind::None) if single => 0x10,
            (PacketOperation::ReadResponse, LastPacketFieldKind::None) => 0x0d + position,
            (PacketOperation::ReadRequest, LastPacketFieldKind::None) if single => 0x0c,
            (PacketOperation::Acknowledge, LastPacketFieldKind::None) if single => 0x11,
            (PacketOperation::AtomicAcknowledge, LastPacketFieldKind::None) if single => 0x12,
            (PacketOperation::CompareSwap, LastPacketFieldKind::None) if single => 0x13,
            (PacketOperation::FetchAdd, LastPacketFieldKind::None) if single => 0x14,
            (PacketOperation::Flush, LastPacketFieldKind::None) if single => 0x1c,
            (PacketOperation::AtomicWrite, LastPacketFieldKind::None) if single => 0x1d,
            (PacketOperation::Cnp, LastPacketFieldKind::None) if single => CNP_OPCODE & 0x1f,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_that_is_an_opcode_comes_back() {
        let known: Vec<u8> = (0..=255)
            .filter(|byte| Opcode::from_byte(*byte).is_some())
            .collect();
        for byte in &known {
            let opcode = Opcode::from_byte(*byte).expect("it is known");
            assert_eq!(opcode.to_byte(), Some(*byte), "{opcode:?}");
        }
        // RC: 0x00 to 0x14, two with invalidate, FLUSH and ATOMIC WRITE. Then UC and UD, and XRC: as RC without FLUSH
        // and ATOMIC WRITE.
        assert_eq!(known.len(), 25 + 12 + 2 + 23 + 1);
        for reserved in [
            0x15, 0x18, 0x1e, 0x2c, 0x40, 0x60, 0x66, 0x80, 0xb5, 0xbc, 0xff,
        ] {
            assert_eq!(Opcode::from_byte(reserved), None, "{reserved:#x}");
        }
    }

    #[test]
    fn what_a_service_lacks_has_no_byte() {
        let only = |transport, operation, tail| Opcode {
            transport,
            operation,
            position: MessagePosition::Only,
            last_packet_field: tail,
        };
        for none in [
            only(
                Transport::Uc,
                PacketOperation::ReadRequest,
                LastPacketFieldKind::None,
            ),
            only(
                Transport::Ud,
                PacketOperation::Write,
                LastPacketFieldKind::None,
            ),
            only(
                Transport::Rc,
                PacketOperation::Write,
                LastPacketFieldKind::Invalidate,
            ),
            only(
                Transport::Rc,
                PacketOperation::Cnp,
                LastPacketFieldKind::None,
            ),
            only(
                Transport::Cnp,
                PacketOperation::Send,
                LastPacketFieldKind::None,
            ),
            Opcode {
                position: MessagePosition::Middle,
                ..only(
                    Transport::Rc,
                    PacketOperation::Send,
                    LastPacketFieldKind::Imm,
                )
            },
        ] {
            assert_eq!(none.to_byte(), None, "{none:?}");
        }
    }
}
