//! Management datagrams of the general services interface, on QP1 (IBTA vol. 1, 13.4.2).

/// Bytes of a management datagram.
pub const MAD_BYTES: usize = 256;
/// Bytes of the header of a management datagram.
const HEADER_BYTES: usize = 24;
/// Bytes of a management datagram after its header.
const BODY_BYTES: usize = MAD_BYTES - HEADER_BYTES;

/// Number of the queue pair of the general services interface.
pub const GSI_QPN: u32 = 1;
/// Q_Key of the general services interface.
pub const GSI_QKEY: u32 = 0x8001_0000;
/// Management class of communication management.
pub const CLASS_CM: u8 = 0x07;
/// Method of all communication management messages.
pub const METHOD_SEND: u8 = 0x03;

/// Version of the base format.
const BASE_VERSION: u8 = 1;

/// The header of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadHeader {
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method, with the response bit.
    pub method: u8,
    /// Status of a response.
    pub status: u16,
    /// Transaction id, chosen by the requester.
    pub transaction: u64,
    /// Attribute id: the format of the body.
    pub attribute: u16,
    /// Attribute modifier: its meaning depends on the attribute.
    pub modifier: u32,
}

/// The reason why bytes cannot be parsed as a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum MadError {
    /// The length is not 256 bytes.
    #[error("a management datagram has 256 bytes, not {0}")]
    Length(usize),
    /// The base version is not 1.
    #[error("base version {0} of management datagrams is unknown")]
    BaseVersion(u8),
}

/// The body of a management datagram: fields at the offsets of the specification's tables.
#[derive(Clone, Copy)]
pub(crate) struct MadBody([u8; BODY_BYTES]);

impl MadBody {
    pub(crate) const fn zeroed() -> Self {
        Self([0; BODY_BYTES])
    }

    /// Returns the `N` bytes at `at`, which must be an offset of the tables.
    pub(crate) fn bytes_at<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[at..at + N]);
        bytes
    }

    pub(crate) const fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes_at(at))
    }

    /// Returns the upper 24 bits of the word at `at`.
    pub(crate) fn u24(&self, at: usize) -> u32 {
        self.u32(at) >> 8
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes_at(at))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes_at(at))
    }

    pub(crate) fn put_bytes_at(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Writes the lower 24 bits of `value` to the three bytes at `at`.
    pub(crate) fn put_u24(&mut self, at: usize, value: u32) {
        let [_, bytes @ ..] = value.to_be_bytes();
        self.put_bytes_at(at, &bytes);
    }
}

impl MadHeader {
    /// Parses a management datagram into header and body.
    pub(crate) fn parse(bytes: &[u8]) -> Result<(Self, MadBody), MadError> {
        let length = || MadError::Length(bytes.len());
        let mad: &[u8; MAD_BYTES] = bytes.try_into().map_err(|_| length())?;
        let (head, body) = mad.split_first_chunk::<HEADER_BYTES>().ok_or_else(length)?;
        let [base, class, class_version, method, s0, s1, _, _, rest @ ..] = *head;
        let [t0, t1, t2, t3, t4, t5, t6, t7, a0, a1, _, _, m0, m1, m2, m3] = rest;
        if base != BASE_VERSION {
            return Err(MadError::BaseVersion(base));
        }
        let header = Self {
            class,
            class_version,
            method,
            status: u16::from_be_bytes([s0, s1]),
            transaction: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            attribute: u16::from_be_bytes([a0, a1]),
            modifier: u32::from_be_bytes([m0, m1, m2, m3]),
        };
        Ok((header, MadBody(body.try_into().map_err(|_| length())?)))
    }

    /// Encodes a management datagram with this header.
    pub(crate) fn emit(&self, body: &MadBody) -> [u8; MAD_BYTES] {
        let mut mad = [0; MAD_BYTES];
        mad[..4].copy_from_slice(&[BASE_VERSION, self.class, self.class_version, self.method]);
        mad[4..6].copy_from_slice(&self.status.to_be_bytes());
        mad[8..16].copy_from_slice(&self.transaction.to_be_bytes());
        mad[16..18].copy_from_slice(&self.attribute.to_be_bytes());
        mad[20..24].copy_from_slice(&self.modifier.to_be_bytes());
        mad[HEADER_BYTES..].copy_from_slice(&body.0);
        mad
    }
}
