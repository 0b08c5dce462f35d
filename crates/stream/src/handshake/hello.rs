//! The hello of a side.

use super::error::HandshakeError;

/// The least room of a block that brpc accepts.
pub(crate) const MIN_BLOCK: u32 = 1024;
/// The fewest WRs of a queue that brpc accepts.
pub(crate) const MIN_QUEUE: u16 = 16;
/// Queue pair numbers have 24 bits.
const MAX_QPN: u32 = 0xff_ffff;

/// The hello of a side: its queue pair, and the messages that the peer may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Bytes that a message to this side holds at most; 1,024 at least.
    pub block_bytes: u32,
    /// WRs of the send queue; 16 at least.
    pub sq_size: u16,
    /// WRs of the receive queue, all posted; 16 at least.
    pub rq_size: u16,
    /// The port's LID; 0 on Ethernet.
    pub lid: u16,
    /// The port's GID.
    pub gid: [u8; 16],
    /// The queue pair number, 1 to 2^24 - 1.
    pub qpn: u32,
}

impl Hello {
    /// The hello of a side that declines RDMA.
    pub(crate) const DECLINED: Self = Self {
        block_bytes: 0,
        sq_size: 0,
        rq_size: 0,
        lid: 0,
        gid: [0; 16],
        qpn: 0,
    };

    /// Refuses numbers that no queue pair can be connected with.
    pub(crate) fn checked(self) -> Result<Self, HandshakeError> {
        let field = |field, value, least, most| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(HandshakeError::Field {
                field,
                value,
                least,
                most,
            })
        };
        let queue = u32::from(MIN_QUEUE)..=u32::from(u16::MAX);
        field("block_size", self.block_bytes, MIN_BLOCK, u32::MAX)?;
        field("sq_size", self.sq_size.into(), *queue.start(), *queue.end())?;
        field("rq_size", self.rq_size.into(), *queue.start(), *queue.end())?;
        field("qp_num", self.qpn, 1, MAX_QPN)?;
        Ok(self)
    }
}

/// The result of reading a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// The peer can use RDMA.
    Rdma(Hello),
    /// The peer declines, or speaks a version of the protocol that this side does not.
    Declined,
}

/// A hello that is being read: how many bytes are missing, or what it says.
pub(crate) enum Progress {
    Wants(usize),
    Done(Said),
}
