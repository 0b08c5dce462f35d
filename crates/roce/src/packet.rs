//! The headers of a packet and its payload: from the BTH to the pad, without the ICRC.

use crate::opcode::{Operation, Position, Transport};
use crate::psn::Psn;

/// The base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The transport service.
    pub transport: Transport,
    /// What the packet asks for or answers.
    pub operation: Operation,
    /// Where it stands in its message.
    pub position: Position,
    /// The responder's completion event is solicited.
    pub solicited: bool,
    /// Partition key.
    pub pkey: u16,
    /// Forward explicit congestion notification.
    pub fecn: bool,
    /// Backward explicit congestion notification: set in a CNP.
    pub becn: bool,
    /// Number of the destination queue pair, 24 bits.
    pub dest_qpn: u32,
    /// The requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Sequence number.
    pub psn: Psn,
}

/// RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address in the responder's region.
    pub addr: u64,
    /// R_Key of the region or window.
    pub rkey: u32,
    /// Bytes of the whole operation.
    pub len: u32,
}

/// Syndrome of an ACK extended transport header (IBTA vol. 1, 9.7.5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// An acknowledgement with a coded credit count; 31: credits are not used.
    Ack(u8),
    /// The receiver has no receive work request; the coded time to wait (`min_rnr_timer`).
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
    /// What is acknowledged, or why not.
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
    /// Address in the responder's region.
    pub addr: u64,
    /// R_Key of the region or window.
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
    /// Selectivity level: 0 a range, 1 the whole region.
    pub selectivity: u8,
}

/// The extended headers of a packet: which of them are there follows from its opcode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// Of datagrams.
    pub deth: Option<Deth>,
    /// XRC: number of the destination shared receive queue.
    pub xrceth: Option<u32>,
    /// Of FLUSH.
    pub feth: Option<Feth>,
    /// Of the first packet of a WRITE, of READ, FLUSH and ATOMIC WRITE requests.
    pub reth: Option<Reth>,
    /// Of atomic requests.
    pub atomic: Option<AtomicEth>,
    /// Of acknowledgements, and of the first and last packet of a READ response.
    pub aeth: Option<Aeth>,
    /// The original value, of an atomic acknowledgement.
    pub original: Option<u64>,
    /// Immediate data, as it lies in the work request.
    pub imm: Option<[u8; 4]>,
    /// The R_Key to invalidate.
    pub ieth: Option<u32>,
}

/// A packet: headers and payload, without pad and ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Base transport header.
    pub bth: Bth,
    /// Extended headers.
    pub extended: Extended,
    /// Payload, without the pad.
    pub payload: &'a [u8],
}
