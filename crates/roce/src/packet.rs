//! A packet from the BTH through the pad, without the ICRC.

use crate::headers::{FieldReader, OpcodeLayout};
use crate::opcode::{Opcode, Transport};

pub use crate::headers::{
    Aeth, AtomicEth, BTH_BYTES, Bth, Deth, ExtendedHeaders, Feth, NAK_INVALID_REQUEST,
    NAK_PSN_SEQUENCE, NAK_REMOTE_ACCESS, NAK_REMOTE_OPERATIONAL, ParseError, Reth, Syndrome,
};

/// Number of reserved bytes after the BTH of a CNP.
const CNP_RESERVED_BYTES: usize = 16;

/// A packet: headers and payload, without pad and ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// Extended headers.
    pub extended: ExtendedHeaders,
    /// Payload, without the pad.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a packet; `bytes` range from the BTH through the pad, without the ICRC.
    ///
    /// # Errors
    /// The bytes are not a valid packet. The payload length is not checked, since its limit depends on the queue pair.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let mut reader = FieldReader(bytes);
        let (bth, opcode, pad) = Bth::parse(&mut reader)?;
        let layout = OpcodeLayout::for_opcode(opcode);
        let extended = ExtendedHeaders::parse(layout, &mut reader)?;
        if opcode.transport == Transport::Cnp {
            reader.take_bytes::<CNP_RESERVED_BYTES>()?;
        }
        let padded = reader.0;
        let len = padded
            .len()
            .checked_sub(usize::from(pad))
            .ok_or(ParseError::PadTooLong)?;
        if padded.len() % 4 != 0 {
            return Err(ParseError::Misaligned);
        }
        if !layout.can_have_payload && !padded.is_empty() {
            return Err(ParseError::UnexpectedPayload);
        }
        Ok(Self {
            bth,
            extended,
            payload: &padded[..len],
        })
    }

    /// Appends the packet from the BTH through the pad, without the ICRC. Fields of 24 bits are truncated.
    ///
    /// # Panics
    /// The transport has no such packet, or the packet lacks an extended header that its opcode requires: an error of
    /// the caller.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let pad = emit_headers_and_get_pad(&self.bth, &self.extended, self.payload.len(), out);
        out.extend_from_slice(self.payload);
        out.extend_from_slice(pad);
    }
}

/// Appends a packet whose payload `fill` writes. Unlike [`Packet::emit`], the function writes the payload in place,
/// which saves a copy.
///
/// # Errors
/// The error of `fill`; `out` is then unchanged.
pub(crate) fn emit_with_payload_writer<E>(
    bth: &Bth,
    extended: &ExtendedHeaders,
    payload_len: usize,
    out: &mut Vec<u8>,
    fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let start = out.len();
    let pad = emit_headers_and_get_pad(bth, extended, payload_len, out);
    if payload_len > 0 {
        let payload = out.len();
        out.resize(payload + payload_len, 0);
        fill(&mut out[payload..]).inspect_err(|_| out.truncate(start))?;
    }
    out.extend_from_slice(pad);
    Ok(())
}

/// Appends all headers; returns the pad that must follow the payload.
fn emit_headers_and_get_pad(
    bth: &Bth,
    extended: &ExtendedHeaders,
    payload_len: usize,
    out: &mut Vec<u8>,
) -> &'static [u8] {
    let opcode = Opcode {
        transport: bth.transport,
        operation: bth.operation,
        position: bth.position,
        last_packet_field: extended.last_packet_field_kind(),
    };
    let Some(byte) = opcode.to_byte() else {
        panic!("no packet of this kind exists: {opcode:?}");
    };
    let pad = [0_u8, 3, 2, 1][payload_len % 4];
    bth.emit(byte, pad, out);
    assert!(
        extended
            .try_emit(OpcodeLayout::for_opcode(opcode), out)
            .is_some(),
        "a packet {opcode:?} lacks an extended header: {extended:?}",
    );
    if opcode.transport == Transport::Cnp {
        out.extend_from_slice(&[0; CNP_RESERVED_BYTES]);
    }
    &[0; 3][..usize::from(pad)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode::{MessagePosition, PacketOperation};
    use crate::psn::Psn;
    use proptest::prelude::*;

    const BTH: Bth = Bth {
        transport: Transport::Rc,
        operation: PacketOperation::Send,
        position: MessagePosition::Only,
        solicited: false,
        pkey: 0xffff,
        fecn: false,
        becn: false,
        dest_qpn: 17,
        ack_request: true,
        psn: Psn::new(5),
    };

    fn bytes_of(packet: &Packet<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        packet.emit(&mut out);
        out
    }

    /// Builds a packet with `opcode`, whose header fields come from `words`.
    fn packet(opcode: Opcode, words: [u64; 6], flags: u8, payload: &[u8]) -> Packet<'_> {
        let layout = OpcodeLayout::for_opcode(opcode);
        let [a, b, c, d, e, f] = words;
        let [.., low, _, _] = f.to_be_bytes();
        let half = |word: u64| u32::try_from(word >> 32).expect("32 bits");
        let syndromes = [
            Syndrome::Ack(low & 31),
            Syndrome::RnrNak(7),
            Syndrome::Nak(2),
        ];
        Packet {
            bth: Bth {
                transport: opcode.transport,
                operation: opcode.operation,
                position: opcode.position,
                solicited: flags & 1 != 0,
                pkey: u16::from(low) << 4,
                fecn: flags & 2 != 0,
                becn: flags & 4 != 0,
                dest_qpn: half(a) >> 8,
                ack_request: flags & 8 != 0,
                psn: Psn::new(half(b)),
            },
            extended: ExtendedHeaders {
                deth: layout.has_deth.then_some(Deth {
                    qkey: half(c),
                    src_qpn: half(d) >> 8,
                }),
                xrceth_srqn: layout.has_xrceth.then_some(half(e) >> 8),
                feth: layout.has_feth.then_some(Feth {
                    placement: low & 15,
                    selectivity: low >> 4 & 3,
                }),
                reth: layout.has_reth.then_some(Reth {
                    addr: c,
                    rkey: half(d),
                    len: half(e),
                }),
                atomic: layout.has_atomic_eth.then_some(AtomicEth {
                    addr: c,
                    rkey: half(d),
                    swap_or_add: e,
                    compare: f,
                }),
                aeth: layout.has_aeth.then_some(Aeth {
                    syndrome: syndromes[usize::from(flags >> 4) % 3],
                    msn: half(c) >> 8,
                }),
                original_value: layout.has_original_value.then_some(d),
                imm: layout.has_imm.then_some(half(e).to_le_bytes()),
                ieth_rkey: layout.has_ieth.then_some(half(e)),
            },
            payload: if layout.can_have_payload {
                payload
            } else {
                &[]
            },
        }
    }

    proptest! {
        #[test]
        fn what_is_emitted_is_parsed(
            byte in any::<u8>().prop_filter_map("an opcode", Opcode::from_byte),
            words: [u64; 6],
            flags: u8,
            payload in proptest::collection::vec(any::<u8>(), 0..70),
        ) {
            let packet = packet(byte, words, flags, &payload);
            let bytes = bytes_of(&packet);
            prop_assert_eq!(bytes.len() % 4, 0);
            prop_assert_eq!(Packet::parse(&bytes), Ok(packet));
        }

        #[test]
        fn a_packet_that_ends_early_is_an_error(
            byte in any::<u8>().prop_filter_map("an opcode", Opcode::from_byte),
            words: [u64; 6],
        ) {
            let bytes = bytes_of(&packet(byte, words, 0, &[]));
            for end in 0..bytes.len() {
                prop_assert_eq!(Packet::parse(&bytes[..end]), Err(ParseError::Truncated));
            }
        }

        #[test]
        fn any_bytes_are_a_packet_or_an_error(
            opcode: u8,
            mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
            strict: bool,
        ) {
            if let [first, flags, ..] = bytes.as_mut_slice() {
                *first = opcode;
                if strict {
                    *flags &= 0xf0;
                }
            }
            if let Ok(packet) = Packet::parse(&bytes) {
                let again = bytes_of(&packet);
                prop_assert_eq!(Packet::parse(&again), Ok(packet));
            }
        }
    }

    #[test]
    fn each_kind_of_malformed_packet_has_its_reason() {
        let packet = Packet {
            bth: BTH,
            extended: ExtendedHeaders::default(),
            payload: b"abcde",
        };
        let good = bytes_of(&packet);
        let broken = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            Packet::parse(&bytes).map(|packet| packet.payload.len())
        };
        assert_eq!(broken(0, 0x15), Err(ParseError::UnknownOpcode(0x15)));
        assert_eq!(broken(1, 0x31), Err(ParseError::WrongTransportVersion(1)));
        // A READ request needs a RETH of 16 bytes; here the RETH is missing.
        assert_eq!(broken(0, 0x0c), Err(ParseError::Truncated));
        assert_eq!(
            Packet::parse(&good[..good.len() - 1]),
            Err(ParseError::Misaligned)
        );
        let mut no_payload = good[..BTH_BYTES].to_vec();
        no_payload[1] = 0x30;
        assert_eq!(Packet::parse(&no_payload), Err(ParseError::PadTooLong));
        let mut ack = good[..BTH_BYTES].to_vec();
        ack[0] = 0x11;
        ack[1] = 0;
        ack.extend_from_slice(&[0x1f, 0, 0, 1, 9, 9, 9, 9]);
        assert_eq!(Packet::parse(&ack), Err(ParseError::UnexpectedPayload));
        ack.truncate(16);
        assert!(Packet::parse(&ack).is_ok());
        ack[BTH_BYTES] = 0x40;
        assert_eq!(Packet::parse(&ack), Err(ParseError::ReservedSyndrome(0x40)));
    }

    #[test]
    fn headers_lie_where_the_specification_has_them() {
        // FLUSH: BTH, FETH, RETH (annex A19).
        let flush = Packet {
            bth: Bth {
                operation: PacketOperation::Flush,
                solicited: true,
                ..BTH
            },
            extended: ExtendedHeaders {
                feth: Some(Feth {
                    placement: 3,
                    selectivity: 1,
                }),
                reth: Some(Reth {
                    addr: 0x0102_0304_0506_0708,
                    rkey: 0x1112_1314,
                    len: 0x2122_2324,
                }),
                ..ExtendedHeaders::default()
            },
            payload: &[],
        };
        let expected = [
            0x1c, 0xc0, 0xff, 0xff, 0, 0, 0, 17, 0x80, 0, 0, 5, 0, 0, 0, 0x13, 1, 2, 3, 4, 5, 6, 7,
            8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24,
        ];
        assert_eq!(bytes_of(&flush), expected);
    }

    #[test]
    #[should_panic(expected = "lacks an extended header")]
    fn a_write_without_reth_is_not_sent() {
        let packet = Packet {
            bth: Bth {
                operation: PacketOperation::Write,
                ..BTH
            },
            extended: ExtendedHeaders::default(),
            payload: &[],
        };
        bytes_of(&packet);
    }
}
