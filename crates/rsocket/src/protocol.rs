//! The rsocket protocol of `librdmacm/docs/rsocket` in rdma-core: the data exchanged when a connection is made, and the
//! meaning of immediates.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rdmacm::QpAddress;

/// A buffer that a peer may write: its address, R_Key and length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RemoteBuffer {
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
    pub(crate) len: u32,
}

impl RemoteBuffer {
    /// Bytes of a target in memory: address, R_Key and length.
    pub(crate) const ENCODED_BYTES: usize = 16;

    /// Encodes the target as in the peer's memory, in the byte order of both hosts.
    pub(crate) fn to_memory(self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.len.to_ne_bytes());
        bytes
    }

    /// Decodes a target from its two words in memory.
    pub(crate) fn from_words(addr: u64, key_and_len: u64) -> Self {
        let [k0, k1, k2, k3, l0, l1, l2, l3] = key_and_len.to_ne_bytes();
        Self {
            addr,
            rkey: u32::from_ne_bytes([k0, k1, k2, k3]),
            len: u32::from_ne_bytes([l0, l1, l2, l3]),
        }
    }

    fn to_wire(self) -> [u8; Self::ENCODED_BYTES] {
        let mut bytes = [0; Self::ENCODED_BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    fn from_wire(bytes: &[u8]) -> Option<Self> {
        let (addr, rest) = bytes.split_first_chunk()?;
        let (rkey, rest) = rest.split_first_chunk()?;
        let (len, _) = rest.split_first_chunk()?;
        Some(Self {
            addr: u64::from_be_bytes(*addr),
            rkey: u32::from_be_bytes(*rkey),
            len: u32::from_be_bytes(*len),
        })
    }
}

/// Bytes of an iomap entry in memory: offset and target.
pub(crate) const IOMAP_ENTRY_SIZE: usize = 8 + RemoteBuffer::ENCODED_BYTES;

/// Version of the protocol.
const VERSION: u8 = 1;
/// Flag: the sender is big-endian.
const FLAG_BIG_ENDIAN: u8 = 1 << 0;
/// Flag: the field `iomap_entry_count` is valid.
const FLAG_HAS_IOMAP_ENTRIES: u8 = 1 << 1;

/// The data that both ends exchange in the private data of request and reply (`struct rs_conn_data`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnData {
    /// Number of messages that the peer may send before it gets further credits.
    pub(crate) peer_send_credits: u16,
    /// Number of iomap entries after the target SGL, at most 128 × 256.
    pub(crate) iomap_entry_count: u16,
    /// Location of the target SGL, to which the peer writes its receive buffers; `len` is the number of targets.
    pub(crate) target_sgl: RemoteBuffer,
    /// First receive buffer.
    pub(crate) first_recv_buffer: RemoteBuffer,
}

impl ConnData {
    pub(crate) const SIZE: usize = 40;

    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0] = VERSION;
        bytes[1] = FLAG_HAS_IOMAP_ENTRIES
            | if cfg!(target_endian = "big") {
                FLAG_BIG_ENDIAN
            } else {
                0
            };
        bytes[2..4].copy_from_slice(&self.peer_send_credits.to_be_bytes());
        bytes[7] = encode_entry_count(self.iomap_entry_count);
        bytes[8..24].copy_from_slice(&self.target_sgl.to_wire());
        bytes[24..].copy_from_slice(&self.first_recv_buffer.to_wire());
        bytes
    }

    /// Decodes the data; `None` if the version or the byte order of the sender differs.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::SIZE] = bytes.first_chunk()?;
        let same_order = (bytes[1] & FLAG_BIG_ENDIAN != 0) == cfg!(target_endian = "big");
        if bytes[0] != VERSION || !same_order {
            return None;
        }
        Some(Self {
            peer_send_credits: u16::from_be_bytes([bytes[2], bytes[3]]),
            iomap_entry_count: if bytes[1] & FLAG_HAS_IOMAP_ENTRIES != 0 {
                decode_entry_count(bytes[7])
            } else {
                0
            },
            target_sgl: RemoteBuffer::from_wire(&bytes[8..24])?,
            first_recv_buffer: RemoteBuffer::from_wire(&bytes[24..])?,
        })
    }
}

/// Encodes a number of entries in 8 bits: exactly up to 128, above that in steps of 256.
fn encode_entry_count(entries: u16) -> u8 {
    match u8::try_from(entries) {
        Ok(exact @ 0..=128) => exact,
        _ => 128 | (entries >> 8).min(127) as u8,
    }
}

/// Decodes a number that [`encode_entry_count`] encoded; the result is not larger than that number.
fn decode_entry_count(scale: u8) -> u16 {
    match scale {
        0..=128 => u16::from(scale),
        _ => u16::from(scale & 127) << 8,
    }
}

/// Returns the number of entries that both ends use if one of them has `entries`.
pub(crate) fn agreed_iomap_entry_count(entries: u16) -> u16 {
    decode_entry_count(encode_entry_count(entries))
}

/// The meaning of an immediate value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Immediate {
    /// Number of bytes written to the receive buffer.
    Data(u32),
    /// Number up to which messages may be sent; the target SGL may have changed.
    CreditLimit(u16),
    /// An entry of the iomap has changed.
    Iomap,
    /// The peer will neither read nor send any more.
    Disconnect,
    /// The peer will send no more.
    Shutdown,
    /// Keep-alive message.
    KeepAlive,
}

const IMM_VALUE_BITS: u32 = 29;
const IMM_OP_DATA: u32 = 0;
const IMM_OP_CREDITS: u32 = 4;
const IMM_OP_IOMAP: u32 = 6;
const IMM_OP_CONTROL: u32 = 7;
const CONTROL_DISCONNECT: u32 = 0;
const CONTROL_KEEP_ALIVE: u32 = 1;
const CONTROL_SHUTDOWN: u32 = 2;

impl Immediate {
    /// Encodes the immediate in host byte order. Data never needs more than 29 bits, since transfers are shorter.
    pub(crate) fn encode(self) -> u32 {
        let (op, value) = match self {
            Self::Data(len) => (IMM_OP_DATA, len),
            Self::CreditLimit(upto) => (IMM_OP_CREDITS, u32::from(upto)),
            Self::Iomap => (IMM_OP_IOMAP, 0),
            Self::Disconnect => (IMM_OP_CONTROL, CONTROL_DISCONNECT),
            Self::KeepAlive => (IMM_OP_CONTROL, CONTROL_KEEP_ALIVE),
            Self::Shutdown => (IMM_OP_CONTROL, CONTROL_SHUTDOWN),
        };
        op << IMM_VALUE_BITS | value
    }

    /// Decodes an immediate; `None` for values that the protocol does not define.
    pub(crate) fn decode(imm: u32) -> Option<Self> {
        let value = imm & ((1 << IMM_VALUE_BITS) - 1);
        Some(match (imm >> IMM_VALUE_BITS, value) {
            (IMM_OP_DATA, len) => Self::Data(len),
            (IMM_OP_CREDITS, upto) => Self::CreditLimit(upto as u16),
            (IMM_OP_IOMAP, _) => Self::Iomap,
            (IMM_OP_CONTROL, CONTROL_DISCONNECT) => Self::Disconnect,
            (IMM_OP_CONTROL, CONTROL_KEEP_ALIVE) => Self::KeepAlive,
            (IMM_OP_CONTROL, CONTROL_SHUTDOWN) => Self::Shutdown,
            _ => return None,
        })
    }
}

/// The header of a datagram over RDMA: its sender's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SenderAddressHeader(pub(crate) SocketAddr);

impl SenderAddressHeader {
    /// Largest number of bytes, for an IPv6 address.
    pub(crate) const MAX_ENCODED_BYTES: usize = 20;

    /// Encodes version, length, port and address.
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut bytes = vec![VERSION, 0];
        bytes.extend(self.0.port().to_be_bytes());
        match self.0.ip() {
            IpAddr::V4(ip) => bytes.extend(ip.octets()),
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
        bytes[1] = bytes.len() as u8;
        bytes
    }

    /// Decodes a label; also returns its length in bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let (&[version, len, p0, p1], ip) = bytes.split_first_chunk()?;
        let ip: IpAddr = match len {
            8 => Ipv4Addr::from(*ip.first_chunk::<4>()?).into(),
            20 => Ipv6Addr::from(*ip.first_chunk::<16>()?).into(),
            _ => return None,
        };
        let port = u16::from_be_bytes([p0, p1]);
        (version == VERSION).then(|| (Self(SocketAddr::new(ip, port)), usize::from(len)))
    }
}

/// The contents of a datagram over UDP: the address of the sender's queue pair, and the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpAddressDatagram<'a> {
    pub(crate) sender_qp_address: QpAddress,
    /// True for the answer to a datagram over UDP, which the program does not receive.
    pub(crate) is_answer: bool,
    pub(crate) payload: &'a [u8],
}

impl<'a> QpAddressDatagram<'a> {
    /// Tag that distinguishes these datagrams from those of other programs.
    const TAG: [u8; 4] = *b"VbDg";

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Self::TAG.to_vec();
        bytes.extend([VERSION, u8::from(self.is_answer)]);
        bytes.extend(self.sender_qp_address.lid.to_be_bytes());
        bytes.extend(self.sender_qp_address.qpn.to_be_bytes());
        bytes.extend(self.sender_qp_address.qkey.to_be_bytes());
        bytes.extend(self.sender_qp_address.gid);
        bytes.extend(self.payload);
        bytes
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first_chunk::<4>()?;
        let (&[version, answer, l0, l1], rest) = rest.split_first_chunk()?;
        let (qpn, rest) = rest.split_first_chunk()?;
        let (qkey, rest) = rest.split_first_chunk()?;
        let (gid, payload) = rest.split_first_chunk()?;
        if *tag != Self::TAG || version != VERSION || answer > 1 {
            return None;
        }
        Some(Self {
            sender_qp_address: QpAddress {
                qpn: u32::from_be_bytes(*qpn),
                first_psn_from_peer: 0,
                lid: u16::from_be_bytes([l0, l1]),
                gid: *gid,
                qkey: u32::from_be_bytes(*qkey),
            },
            is_answer: answer == 1,
            payload,
        })
    }
}

/// Fuzz target: decodes arbitrary private data, immediates and datagrams.
///
/// # Panics
/// A decoded value does not encode to the same bytes.
#[cfg(any(test, fuzzing))]
pub fn fuzz_messages(bytes: &[u8]) {
    if let Some(data) = ConnData::decode(bytes) {
        assert_eq!(ConnData::decode(&data.encode()), Some(data));
    }
    if let Some((label, len)) = SenderAddressHeader::decode(bytes) {
        assert_eq!(label.encode(), bytes[..len]);
    }
    if let Some(datagram) = QpAddressDatagram::decode(bytes) {
        assert_eq!(datagram.encode(), bytes);
    }
    if let Some(imm) = bytes.first_chunk().copied().map(u32::from_be_bytes)
        && let Some(read) = Immediate::decode(imm)
    {
        assert_eq!(Immediate::decode(read.encode()), Some(read));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_of_messages_is_replayed() {
        corpus::replay("messages", fuzz_messages);
    }

    #[test]
    fn connection_data_is_laid_out_as_documented() {
        let data = ConnData {
            peer_send_credits: 0x0102,
            iomap_entry_count: 3,
            target_sgl: RemoteBuffer {
                addr: 0x1112_1314_1516_1718,
                rkey: 0x2122_2324,
                len: 2,
            },
            first_recv_buffer: RemoteBuffer {
                addr: 5,
                rkey: 6,
                len: 7,
            },
        };
        let bytes = data.encode();
        assert_eq!(bytes[..8], [1, FLAG_HAS_IOMAP_ENTRIES, 1, 2, 0, 0, 0, 3]);
        assert_eq!(
            bytes[8..16],
            [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]
        );
        assert_eq!(bytes[16..24], [0x21, 0x22, 0x23, 0x24, 0, 0, 0, 2]);
        let mut padded = bytes.to_vec();
        padded.resize(196, 0);
        assert_eq!(ConnData::decode(&padded), Some(data));
        assert_eq!(ConnData::decode(&bytes[..39]), None);
        let mut other = bytes;
        other[0] = 2;
        assert_eq!(ConnData::decode(&other), None);
        let mut other = bytes;
        other[1] |= FLAG_BIG_ENDIAN;
        assert_eq!(ConnData::decode(&other), None);
    }

    #[test]
    fn immediates_come_back_and_others_are_refused() {
        for imm in [
            Immediate::Data(0),
            Immediate::Data(65_536),
            Immediate::CreditLimit(u16::MAX),
            Immediate::Iomap,
            Immediate::Disconnect,
            Immediate::Shutdown,
            Immediate::KeepAlive,
        ] {
            assert_eq!(Immediate::decode(imm.encode()), Some(imm));
        }
        assert_eq!(Immediate::CreditLimit(5).encode(), 0x8000_0005);
        assert_eq!(Immediate::decode(0x2000_0000), None);
        assert_eq!(Immediate::decode(0xe000_0009), None);
    }

    #[test]
    fn targets_survive_memory() {
        let target = RemoteBuffer {
            addr: 0x0102_0304_0506_0708,
            rkey: 9,
            len: 10,
        };
        let bytes = target.to_memory();
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(RemoteBuffer::from_words(word(0), word(8)), target);
    }

    #[test]
    fn the_scale_never_promises_more_entries_than_there_are() {
        for entries in [0, 1, 127, 128, 129, 255, 256, 300, 512, 32_512, u16::MAX] {
            let agreed = agreed_iomap_entry_count(entries);
            assert!(agreed <= entries, "{entries}");
            assert_eq!(agreed_iomap_entry_count(agreed), agreed);
        }
        assert_eq!(agreed_iomap_entry_count(128), 128);
        assert_eq!(agreed_iomap_entry_count(600), 512);
    }
}
