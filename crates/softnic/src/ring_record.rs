//! The contents of records in rings: kinds, flags and headers.

use shm::fabric::ring::RecordHeader;

/// Returns the header of a record that this side writes.
#[inline(always)]
pub(crate) fn make_record_header(
    kind: RecordKind,
    flags: u8,
    imm: u32,
    len: u32,
    extra: u32,
) -> RecordHeader {
    RecordHeader {
        kind: kind as u8,
        flags,
        imm,
        len_or_value: len,
        extra_value: extra,
    }
}

/// `flags` of a record: the message is solicited. The receiver's CQ may be armed for solicited completions only.
pub(crate) const FLAG_SOLICITED: u8 = 1;

/// `flags` of a record: the payload is a list of SGEs in the sender's memory.
pub(crate) const FLAG_BY_REFERENCE: u8 = 2;

/// `flags` of a record: the record answers a message of the receiver, whose completion comes first.
pub(crate) const FLAG_RECEIVER_SEND_COMPLETES_FIRST: u8 = 4;

/// `kind` of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    Send = 1,
    SendWithImm = 2,
    WriteWithImm = 3,
    SendWithInv = 4,
    /// An Ethernet frame. The field of the immediate holds the tag of its flow.
    Frame = 5,
    /// An Ethernet frame whose checksums are right.
    FrameWithGoodChecksums = 6,
    /// An RDMA WRITE behind SENDs. The field of the immediate holds the R_Key; the remote address precedes the payload.
    OrderedWrite = 7,
}

impl RecordKind {
    #[inline]
    pub(crate) fn from_header(kind: u8) -> Option<Self> {
        match kind {
            1 => Some(Self::Send),
            2 => Some(Self::SendWithImm),
            3 => Some(Self::WriteWithImm),
            4 => Some(Self::SendWithInv),
            5 => Some(Self::Frame),
            6 => Some(Self::FrameWithGoodChecksums),
            7 => Some(Self::OrderedWrite),
            _ => None,
        }
    }
}
