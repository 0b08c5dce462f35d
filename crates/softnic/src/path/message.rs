//! Messages between queue pairs as bytes: what a path that is not shared memory carries.
//!
//! One message is one work request, its acknowledgement, or its result. Its bytes are a fixed header in
//! little-endian order and the payload behind it.

use verbs_abi::ibv_wc_status;

/// Bytes of a header.
const HEADER_BYTES: usize = 112;

/// A sequence number of messages: 24 bits that wrap, as a PSN does (IBTA vol. 1, 9.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Psn(u32);

impl Psn {
    /// The lower 24 bits of `value`.
    pub(crate) fn new(value: u32) -> Self {
        Self(value & 0x00ff_ffff)
    }

    /// The number after this one.
    pub(crate) fn next(self) -> Self {
        Self::new(self.0 + 1)
    }

    /// The number before this one.
    pub(crate) fn previous(self) -> Self {
        Self::new(self.0.wrapping_sub(1))
    }

    /// Whether this number comes before `other`, of two that are less than 2^23 apart.
    pub(crate) fn is_before(self, other: Self) -> bool {
        self != other && Self::new(other.0.wrapping_sub(self.0)).0 < 1 << 23
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    Send = 1,
    SendWithImm,
    SendWithInv,
    Write,
    WriteWithImm,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
    /// All requests up to the number are done.
    Ack,
    /// The request with the number waits for a receive WR: the requester need not give up.
    Waiting,
    /// The request with the number is refused with the status in `imm`.
    Nak,
    /// The result of a READ or an atomic.
    Result,
}

impl Op {
    const ALL: [Self; 14] = [
        Self::Send,
        Self::SendWithImm,
        Self::SendWithInv,
        Self::Write,
        Self::WriteWithImm,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::AtomicWrite,
        Self::Flush,
        Self::Ack,
        Self::Waiting,
        Self::Nak,
        Self::Result,
    ];

    /// Whether a requester waits for a [`Op::Result`].
    pub(crate) fn has_result(self) -> bool {
        matches!(
            self,
            Self::Read | Self::CompareSwap | Self::FetchAdd | Self::AtomicWrite | Self::Flush
        )
    }

    /// Whether it answers a request.
    pub(crate) fn is_answer(self) -> bool {
        matches!(self, Self::Ack | Self::Waiting | Self::Nak | Self::Result)
    }
}

/// A message, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) op: Op,
    /// The responder's completion is solicited.
    pub(crate) solicited: bool,
    /// `rnr_retry` of the requester.
    pub(crate) rnr_retry: u8,
    pub(crate) src_qpn: u32,
    pub(crate) dest_qpn: u32,
    pub(crate) psn: Psn,
    /// The immediate as it lies in the work request, the key to invalidate, or the status of a NAK.
    pub(crate) imm: u32,
    /// Q_Key of a datagram.
    pub(crate) qkey: u32,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    /// Bytes that a READ asks for.
    pub(crate) len: u32,
    /// Operands of an atomic or a flush.
    pub(crate) operands: [u64; 2],
    /// Of a datagram: LIDs, service level and whether a GRH is there, as in `RingHeader::path`.
    pub(crate) path: u64,
    /// Of a datagram: the GRH.
    pub(crate) grh: [u8; 40],
    pub(crate) payload: Vec<u8>,
}

impl Message {
    /// A message of `op` between two queue pairs, with nothing else in it.
    pub(crate) fn new(op: Op, src_qpn: u32, dest_qpn: u32, psn: Psn) -> Self {
        Self {
            op,
            solicited: false,
            rnr_retry: 0,
            src_qpn,
            dest_qpn,
            psn,
            imm: 0,
            qkey: 0,
            addr: 0,
            rkey: 0,
            len: 0,
            operands: [0; 2],
            path: 0,
            grh: [0; 40],
            payload: Vec::new(),
        }
    }

    /// An answer to the sender of this message.
    pub(crate) fn answer(&self, op: Op, psn: Psn) -> Self {
        Self::new(op, self.dest_qpn, self.src_qpn, psn)
    }

    /// The refusal of this message.
    pub(crate) fn refusal(&self, status: ibv_wc_status) -> Self {
        Self {
            imm: status,
            ..self.answer(Op::Nak, self.psn)
        }
    }

    /// The bytes of the message.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.payload.len());
        bytes.extend([self.op as u8, u8::from(self.solicited), self.rnr_retry, 0]);
        for word in [
            self.src_qpn,
            self.dest_qpn,
            self.psn.0,
            self.imm,
            self.qkey,
            self.rkey,
            self.len,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        for word in [self.addr, self.operands[0], self.operands[1], self.path] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.grh);
        bytes.resize(HEADER_BYTES, 0);
        bytes.extend(&self.payload);
        bytes
    }

    /// The message in `bytes`; `None` if they are none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (header, payload) = bytes.split_at_checked(HEADER_BYTES)?;
        let (&[op, solicited, rnr_retry, _], rest) = header.split_first_chunk::<4>()?;
        let op = Op::ALL.into_iter().find(|known| *known as u8 == op)?;
        let (words, rest) = rest.split_at_checked(28)?;
        let (long_words, rest) = rest.split_at_checked(32)?;
        let (grh, _) = rest.split_first_chunk::<40>()?;
        let word = |i: usize| Some(u32::from_le_bytes(*words[4 * i..].first_chunk()?));
        let long = |i: usize| Some(u64::from_le_bytes(*long_words[8 * i..].first_chunk()?));
        Some(Self {
            op,
            solicited: solicited != 0,
            rnr_retry,
            src_qpn: word(0)?,
            dest_qpn: word(1)?,
            psn: Psn::new(word(2)?),
            imm: word(3)?,
            qkey: word(4)?,
            rkey: word(5)?,
            len: word(6)?,
            addr: long(0)?,
            operands: [long(1)?, long(2)?],
            path: long(3)?,
            grh: *grh,
            payload: payload.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_message_comes_back_as_it_was(
            op in 0..Op::ALL.len(),
            words: [u32; 7],
            longs: [u64; 4],
            solicited: bool,
            payload in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let message = Message {
                solicited,
                imm: words[3],
                qkey: words[4],
                rkey: words[5],
                len: words[6],
                addr: longs[0],
                operands: [longs[1], longs[2]],
                path: longs[3],
                payload,
                ..Message::new(Op::ALL[op], words[0], words[1], Psn::new(words[2]))
            };
            prop_assert_eq!(Message::decode(&message.encode()), Some(message));
        }

        #[test]
        fn no_bytes_make_decoding_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            Message::decode(&bytes);
        }

        #[test]
        fn numbers_keep_their_order_when_they_wrap(start: u32, apart in 1u32..1 << 23) {
            let (first, second) = (Psn::new(start), Psn::new(start.wrapping_add(apart)));
            prop_assert!(first.is_before(second) && !second.is_before(first));
            prop_assert_eq!(first.next().previous(), first);
        }
    }
}
