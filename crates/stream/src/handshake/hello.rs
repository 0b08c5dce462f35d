//! The hello message of either side.

use super::error::HandshakeError;

/// Minimum block size in bytes that brpc accepts.
pub(crate) const MIN_BLOCK_BYTES: u32 = 1024;
/// Minimum queue size in WRs that brpc accepts.
pub(crate) const MIN_QUEUE_WRS: u16 = 16;
/// Maximum queue pair number, which has 24 bits.
const MAX_QPN: u32 = 0xff_ffff;

/// The hello of a side: its queue pair, and the limits for the peer's messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Maximum number of bytes in a message to this side, at least 1,024.
    pub block_bytes: u32,
    /// Number of WRs of the send queue, at least 16.
    pub sq_size: u16,
    /// Number of WRs of the receive queue, all of which are posted, at least 16.
    pub rq_size: u16,
    /// LID of the port; 0 on Ethernet.
    pub lid: u16,
    /// GID of the port.
    pub gid: [u8; 16],
    /// Queue pair number, 1 to 2^24 - 1.
    pub qpn: u32,
}

impl Hello {
    /// The hello by which a side declines RDMA.
    pub(crate) const DECLINED: Self = Self {
        block_bytes: 0,
        sq_size: 0,
        rq_size: 0,
        lid: 0,
        gid: [0; 16],
        qpn: 0,
    };

    /// Returns an error if a number in the hello is out of range, so that no queue pair could be
    /// connected.
    pub(crate) fn checked(self) -> Result<Self, HandshakeError> {
        let field = |field, value, least, most| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(HandshakeError::FieldOutOfRange {
                field,
                value,
                least,
                most,
            })
        };
        let queue = u32::from(MIN_QUEUE_WRS)..=u32::from(u16::MAX);
        field("block_size", self.block_bytes, MIN_BLOCK_BYTES, u32::MAX)?;
        field("sq_size", self.sq_size.into(), *queue.start(), *queue.end())?;
        field("rq_size", self.rq_size.into(), *queue.start(), *queue.end())?;
        field("qp_num", self.qpn, 1, MAX_QPN)?;
        Ok(self)
    }
}

/// Result of parsing a complete hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParsedHello {
    /// The peer can use RDMA.
    Rdma(Hello),
    /// The peer declines, or speaks a version of the protocol that this side does not support.
    Declined,
}

/// Progress of parsing a hello: the number of missing bytes, or the result.
pub(crate) enum HelloParseProgress {
    MissingBytes(usize),
    Done(ParsedHello),
}
