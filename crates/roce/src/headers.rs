//! The headers of a packet: the BTH, and the extended headers that its opcode determines.

use crate::opcode::{LastPacketFieldKind, MessagePosition, Opcode, PacketOperation, Transport};
use crate::psn::Psn;

/// The base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The transport service.
    pub transport: Transport,
    /// The operation that the packet requests or answers.
    pub operation: PacketOperation,
    /// The packet's position in its message.
    pub position: MessagePosition,
    /// Solicited event bit: the responder generates a completion event.
    pub solicited: bool,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification: set in a CNP.
    pub becn: bool,
    /// Number of the destination queue pair, 24 bits.
    pub dest_qpn: u32,
    /// Acknowledge request bit: the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

/// RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address in the responder's memory region.
    pub addr: u64,
    /// R_Key of the memory region or window.
    pub rkey: u32,
    /// Bytes of the whole operation, not of the packet.
    pub len: u32,
}

/// Syndrome of an ACK extended transport header (IBTA vol. 1, 9.7.5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// A positive acknowledgement with its coded credit count; 31 if credits are not used.
    Ack(u8),
    /// RNR NAK: the receiver has no receive work request. The value is the coded time to wait (`min_rnr_timer`).
    RnrNak(u8),
    /// A negative acknowledgement with its code.
    Nak(u8),
}

/// NAK code: PSN sequence error.
pub const NAK_PSN_SEQUENCE: u8 = 0;
/// NAK code: invalid request.
pub const NAK_INVALID_REQUEST: u8 = 1;
/// NAK code: remote access error.
pub const NAK_REMOTE_ACCESS: u8 = 2;
/// NAK code: remote operational error.
pub const NAK_REMOTE_OPERATIONAL: u8 = 3;

/// ACK extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// The acknowledgement or NAK.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key.
    pub qkey: u32,
    /// Number of the source queue pair, 24 bits.
    pub src_qpn: u32,
}

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address in the responder's memory region.
    pub addr: u64,
    /// R_Key of the memory region or window.
    pub rkey: u32,
    /// The value to swap in or to add.
    pub swap_or_add: u64,
    /// The value to compare with.
    pub compare: u64,
}

/// FLUSH extended transport header (annex A19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement type: bit 0 global visibility, bit 1 persistence.
    pub placement: u8,
    /// Selectivity level: 0 for a range, 1 for the whole memory region.
    pub selectivity: u8,
}

/// The extended headers of a packet. The opcode determines which of them the packet has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedHeaders {
    /// DETH, in datagrams.
    pub deth: Option<Deth>,
    /// XRC: number of the destination shared receive queue.
    pub xrceth_srqn: Option<u32>,
    /// FETH, in FLUSH requests.
    pub feth: Option<Feth>,
    /// RETH, in the first packet of a WRITE and in READ, FLUSH and ATOMIC WRITE requests.
    pub reth: Option<Reth>,
    /// AtomicETH, in compare-and-swap and fetch-and-add requests.
    pub atomic: Option<AtomicEth>,
    /// AETH, in acknowledgements and in the first and last packet of a READ response.
    pub aeth: Option<Aeth>,
    /// The value before the operation, in atomic acknowledgements.
    pub original_value: Option<u64>,
    /// Immediate data, in the byte order of the work request.
    pub imm: Option<[u8; 4]>,
    /// IETH: the R_Key to invalidate.
    pub ieth_rkey: Option<u32>,
}

/// The reason why bytes cannot be parsed as a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ParseError {
    /// The bytes end within a header.
    #[error("the packet ends within a header")]
    Truncated,
    /// The opcode is reserved, or belongs to a transport that is not supported.
    #[error("opcode {0:#04x} is unknown")]
    UnknownOpcode(u8),
    /// The transport header version is not 0.
    #[error("transport header version {0} is unknown")]
    WrongTransportVersion(u8),
    /// The syndrome of the AETH is reserved.
    #[error("AETH syndrome {0:#04x} is reserved")]
    ReservedSyndrome(u8),
    /// The pad is longer than the payload.
    #[error("the pad is longer than the payload")]
    PadTooLong,
    /// Payload and pad are not a multiple of four bytes.
    #[error("payload and pad are not a multiple of four bytes")]
    Misaligned,
    /// The packet has a payload, but its opcode has none.
    #[error("a packet without payload by its opcode has one")]
    UnexpectedPayload,
}

/// Bytes of the BTH.
pub const BTH_BYTES: usize = 12;
/// Mask of the 24 bits of queue pair numbers and MSNs.
const MASK_24: u32 = 0x00ff_ffff;

/// The extended headers, and the payload, that an opcode determines.
#[derive(Clone, Copy)]
pub(crate) struct OpcodeLayout {
    pub(crate) has_deth: bool,
    pub(crate) has_xrceth: bool,
    pub(crate) has_feth: bool,
    pub(crate) has_reth: bool,
    pub(crate) has_atomic_eth: bool,
    pub(crate) has_aeth: bool,
    pub(crate) has_original_value: bool,
    pub(crate) has_imm: bool,
    pub(crate) has_ieth: bool,
    pub(crate) can_have_payload: bool,
}

impl OpcodeLayout {
    pub(crate) const fn for_opcode(opcode: Opcode) -> Self {
        use PacketOperation as O;
        let operation = opcode.operation;
        let response = matches!(
            operation,
            O::ReadResponse | O::Acknowledge | O::AtomicAcknowledge
        );
        let first = opcode.position.is_first();
        Self {
            has_deth: matches!(opcode.transport, Transport::Ud),
            has_xrceth: matches!(opcode.transport, Transport::Xrc) && !response,
            has_feth: matches!(operation, O::Flush),
            has_reth: match operation {
                O::Write => first,
                O::ReadRequest | O::Flush | O::AtomicWrite => true,
                _ => false,
            },
            has_atomic_eth: matches!(operation, O::CompareSwap | O::FetchAdd),
            has_aeth: match operation {
                O::ReadResponse => !matches!(opcode.position, MessagePosition::Middle),
                _ => response,
            },
            has_original_value: matches!(operation, O::AtomicAcknowledge),
            has_imm: matches!(opcode.last_packet_field, LastPacketFieldKind::Imm),
            has_ieth: matches!(opcode.last_packet_field, LastPacketFieldKind::Invalidate),
            can_have_payload: matches!(
                operation,
                O::Send | O::Write | O::ReadResponse | O::AtomicWrite
            ),
        }
    }
}

/// A cursor that takes fields from the front of a byte slice.
pub(crate) struct FieldReader<'a>(pub(crate) &'a [u8]);

impl FieldReader<'_> {
    pub(crate) fn take_bytes<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let (head, rest) = self.0.split_first_chunk().ok_or(ParseError::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn take_u32(&mut self) -> Result<u32, ParseError> {
        self.take_bytes().map(u32::from_be_bytes)
    }

    pub(crate) fn take_u64(&mut self) -> Result<u64, ParseError> {
        self.take_bytes().map(u64::from_be_bytes)
    }
}

impl Bth {
    /// Parses the BTH; also returns the opcode and the number of pad bytes.
    #[inline]
    pub(crate) fn parse(reader: &mut FieldReader<'_>) -> Result<(Self, Opcode, u8), ParseError> {
        let [byte, flags, key_high, key_low] = reader.take_bytes()?;
        let (queue_pair, sequence) = (reader.take_u32()?, reader.take_u32()?);
        let opcode = Opcode::from_byte(byte).ok_or(ParseError::UnknownOpcode(byte))?;
        let version = flags & 0x0f;
        if version != 0 {
            return Err(ParseError::WrongTransportVersion(version));
        }
        let bth = Self {
            transport: opcode.transport,
            operation: opcode.operation,
            position: opcode.position,
            solicited: flags & 0x80 != 0,
            pkey: u16::from_be_bytes([key_high, key_low]),
            fecn: queue_pair >> 31 != 0,
            becn: queue_pair >> 30 & 1 != 0,
            dest_qpn: queue_pair & MASK_24,
            ack_request: sequence >> 31 != 0,
            psn: Psn::new(sequence),
        };
        Ok((bth, opcode, flags >> 4 & 3))
    }

    /// Appends the BTH to `out`.
    #[inline]
    pub(crate) fn emit(&self, opcode: u8, pad: u8, out: &mut Vec<u8>) {
        // No queue pair migrates to an alternate path. So the migration state is `migrated`, in which MigReq is 1 (IBTA
        // vol. 1, 17.2.8).
        let migrated = !matches!(self.transport, Transport::Cnp);
        let flags = u8::from(self.solicited) << 7 | u8::from(migrated) << 6 | pad << 4;
        let key = u32::from(self.pkey);
        let word = u32::from(opcode) << 24 | u32::from(flags) << 16 | key;
        let queue_pair =
            u32::from(self.fecn) << 31 | u32::from(self.becn) << 30 | self.dest_qpn & MASK_24;
        let sequence = u32::from(self.ack_request) << 31 | self.psn.get();
        // Appends the header at once: growing the buffer three times is slower.
        let header = u128::from(word) << 64 | u128::from(queue_pair) << 32 | u128::from(sequence);
        out.extend_from_slice(&header.to_be_bytes()[4..]);
    }
}

impl Reth {
    pub(crate) fn parse(reader: &mut FieldReader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            addr: reader.take_u64()?,
            rkey: reader.take_u32()?,
            len: reader.take_u32()?,
        })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.addr.to_be_bytes());
        out.extend_from_slice(&self.rkey.to_be_bytes());
        out.extend_from_slice(&self.len.to_be_bytes());
    }
}

impl AtomicEth {
    pub(crate) fn parse(reader: &mut FieldReader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            addr: reader.take_u64()?,
            rkey: reader.take_u32()?,
            swap_or_add: reader.take_u64()?,
            compare: reader.take_u64()?,
        })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.addr.to_be_bytes());
        out.extend_from_slice(&self.rkey.to_be_bytes());
        out.extend_from_slice(&self.swap_or_add.to_be_bytes());
        out.extend_from_slice(&self.compare.to_be_bytes());
    }
}

impl Syndrome {
    /// Encodes the syndrome as its byte on the wire.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack(credits) => credits & 0x1f,
            Self::RnrNak(timer) => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code & 0x1f,
        }
    }

    /// Decodes a syndrome byte; `None` if it is reserved.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        let low = byte & 0x1f;
        match byte >> 5 {
            0 => Some(Self::Ack(low)),
            1 => Some(Self::RnrNak(low)),
            3 => Some(Self::Nak(low)),
            _ => None,
        }
    }
}

impl Aeth {
    pub(crate) fn parse(reader: &mut FieldReader<'_>) -> Result<Self, ParseError> {
        let word = reader.take_u32()?;
        let [byte, ..] = word.to_be_bytes();
        Ok(Self {
            syndrome: Syndrome::from_byte(byte).ok_or(ParseError::ReservedSyndrome(byte))?,
            msn: word & MASK_24,
        })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let word = u32::from(self.syndrome.to_byte()) << 24 | self.msn & MASK_24;
        out.extend_from_slice(&word.to_be_bytes());
    }
}

impl Deth {
    pub(crate) fn parse(reader: &mut FieldReader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            qkey: reader.take_u32()?,
            src_qpn: reader.take_u32()? & MASK_24,
        })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.qkey.to_be_bytes());
        out.extend_from_slice(&(self.src_qpn & MASK_24).to_be_bytes());
    }
}

impl Feth {
    pub(crate) fn parse(reader: &mut FieldReader<'_>) -> Result<Self, ParseError> {
        let [.., low] = reader.take_bytes::<4>()?;
        Ok(Self {
            placement: low & 0x0f,
            selectivity: low >> 4 & 0x03,
        })
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        let low = self.placement & 0x0f | (self.selectivity & 0x03) << 4;
        out.extend_from_slice(&[0, 0, 0, low]);
    }
}

impl ExtendedHeaders {
    #[inline]
    pub(crate) fn parse(
        layout: OpcodeLayout,
        reader: &mut FieldReader<'_>,
    ) -> Result<Self, ParseError> {
        let mut extended = Self::default();
        if layout.has_deth {
            extended.deth = Some(Deth::parse(reader)?);
        }
        if layout.has_xrceth {
            extended.xrceth_srqn = Some(reader.take_u32()? & MASK_24);
        }
        if layout.has_feth {
            extended.feth = Some(Feth::parse(reader)?);
        }
        if layout.has_reth {
            extended.reth = Some(Reth::parse(reader)?);
        }
        if layout.has_atomic_eth {
            extended.atomic = Some(AtomicEth::parse(reader)?);
        }
        if layout.has_aeth {
            extended.aeth = Some(Aeth::parse(reader)?);
        }
        if layout.has_original_value {
            extended.original_value = Some(reader.take_u64()?);
        }
        if layout.has_imm {
            extended.imm = Some(reader.take_bytes()?);
        }
        if layout.has_ieth {
            extended.ieth_rkey = Some(reader.take_u32()?);
        }
        Ok(extended)
    }

    /// Appends the headers of `layout`; returns `None` if one of them is missing.
    #[inline]
    pub(crate) fn try_emit(&self, layout: OpcodeLayout, out: &mut Vec<u8>) -> Option<()> {
        if layout.has_deth {
            self.deth?.emit(out);
        }
        if layout.has_xrceth {
            out.extend_from_slice(&(self.xrceth_srqn? & MASK_24).to_be_bytes());
        }
        if layout.has_feth {
            self.feth?.emit(out);
        }
        if layout.has_reth {
            self.reth?.emit(out);
        }
        if layout.has_atomic_eth {
            self.atomic?.emit(out);
        }
        if layout.has_aeth {
            self.aeth?.emit(out);
        }
        if layout.has_original_value {
            out.extend_from_slice(&self.original_value?.to_be_bytes());
        }
        if layout.has_imm {
            out.extend_from_slice(&self.imm?);
        }
        if layout.has_ieth {
            out.extend_from_slice(&self.ieth_rkey?.to_be_bytes());
        }
        Some(())
    }

    /// Returns the kind of the additional field in the last packet of the message.
    pub(crate) const fn last_packet_field_kind(&self) -> LastPacketFieldKind {
        match (&self.imm, &self.ieth_rkey) {
            (Some(_), _) => LastPacketFieldKind::Imm,
            (None, Some(_)) => LastPacketFieldKind::Invalidate,
            (None, None) => LastPacketFieldKind::None,
        }
    }
}
