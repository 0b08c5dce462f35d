//! Segmentation of requests: the number of packets of a request, and the headers and payload of each packet.

use crate::opcode::{LastPacketField, MessagePosition, PacketOperation, Transport};
use crate::packet::{AtomicEth, Bth, ExtendedHeaders, Feth, Reth};
use crate::psn::Psn;
use crate::request::{Request, RequestOperation};

/// The header fields that all packets from a queue pair to its peer share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionParameters {
    /// Transport service.
    pub(crate) transport: Transport,
    /// Number of the peer's queue pair.
    pub(crate) dest_qpn: u32,
    /// Partition key.
    pub(crate) pkey: u16,
    /// Path MTU.
    pub(crate) mtu_bytes: u32,
    /// Largest number of response packets of one READ request; a longer READ is split into several requests.
    pub(crate) max_responses_per_read_request: u32,
}

impl ConnectionParameters {
    /// Returns a base transport header for this connection.
    pub(crate) const fn make_bth(
        &self,
        operation: PacketOperation,
        position: MessagePosition,
        psn: Psn,
    ) -> Bth {
        Bth {
            transport: self.transport,
            operation,
            position,
            solicited: false,
            pkey: self.pkey,
            fecn: false,
            becn: false,
            dest_qpn: self.dest_qpn,
            ack_request: false,
            psn,
        }
    }

    /// Returns the number of packets of a message of `len` bytes; an empty message takes one.
    pub(crate) fn message_packet_count(&self, len: u32) -> u32 {
        len.div_ceil(self.mtu_bytes).max(1)
    }

    /// Returns the number of PSNs that a request takes: its packets or, for a READ, its responses (IBTA vol. 1,
    /// 9.7.3.1).
    pub(crate) fn request_psn_count(&self, operation: &RequestOperation) -> u32 {
        match *operation {
            RequestOperation::Send { len, .. }
            | RequestOperation::Write { len, .. }
            | RequestOperation::Read { len, .. } => self.message_packet_count(len),
            _ => 1,
        }
    }

    /// Returns the end (exclusive) of the responses to the READ request that asks for response `index`, of `packets` in
    /// all.
    pub(crate) fn read_request_end_index(&self, index: u32, packets: u32) -> u32 {
        let requests = index / self.max_responses_per_read_request + 1;
        requests
            .saturating_mul(self.max_responses_per_read_request)
            .min(packets)
    }

    /// Returns offset and length of the bytes in packet `index` of a message of `len` bytes.
    pub(crate) fn packet_byte_range(&self, len: u32, index: u32) -> (u32, u32) {
        let offset = index.saturating_mul(self.mtu_bytes).min(len);
        (offset, (len - offset).min(self.mtu_bytes))
    }
}

/// Returns true if a request completes only by a response of its own, not by an acknowledgement.
pub(crate) const fn completes_by_own_response(operation: &RequestOperation) -> bool {
    !matches!(
        operation,
        RequestOperation::Send { .. } | RequestOperation::Write { .. }
    )
}

/// A request packet without its payload, which is `payload_bytes` of the work request from byte `payload_offset` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) bth: Bth,
    pub(crate) extended: ExtendedHeaders,
    pub(crate) payload_offset: u32,
    pub(crate) payload_bytes: u32,
}

/// Returns packet `index` of a request; for a READ, the request packet that asks for the responses from `index` on.
pub(crate) fn make_segment(
    connection: &ConnectionParameters,
    request: &Request,
    index: u32,
    psn: Psn,
) -> Segment {
    let is_single = completes_by_own_response(&request.operation);
    let len = match request.operation {
        RequestOperation::Send { len, .. } | RequestOperation::Write { len, .. } => len,
        RequestOperation::AtomicWrite { .. } => 8,
        _ => 0,
    };
    let is_last = is_single || index + 1 == connection.message_packet_count(len);
    let (position, (offset, payload_bytes)) = if is_single {
        (MessagePosition::Only, (0, len))
    } else {
        (
            MessagePosition::from_first_and_last_flags(index == 0, is_last),
            connection.packet_byte_range(len, index),
        )
    };
    let (operation, extended) =
        request_operation_and_headers(connection, &request.operation, index, is_last);
    let mut bth = connection.make_bth(operation, position, psn);
    bth.solicited = is_last && request.solicited;
    Segment {
        bth,
        extended,
        payload_offset: offset,
        payload_bytes,
    }
}

/// Returns the operation and the extended headers of a request packet.
fn request_operation_and_headers(
    connection: &ConnectionParameters,
    operation: &RequestOperation,
    index: u32,
    is_last: bool,
) -> (PacketOperation, ExtendedHeaders) {
    let mut extended = ExtendedHeaders::default();
    let operation = match *operation {
        RequestOperation::Send { tail, .. } => {
            match tail {
                LastPacketField::Imm(imm) if is_last => extended.imm = Some(imm),
                LastPacketField::Invalidate(rkey) if is_last => extended.ieth_rkey = Some(rkey),
                _ => {}
            }
            PacketOperation::Send
        }
        RequestOperation::Write {
            addr,
            rkey,
            len,
            imm,
        } => {
            extended.reth = make_reth(addr, rkey, len).filter(|_| index == 0);
            extended.imm = imm.filter(|_| is_last);
            PacketOperation::Write
        }
        RequestOperation::Read { addr, rkey, len } => {
            let (offset, _) = connection.packet_byte_range(len, index);
            let end =
                connection.read_request_end_index(index, connection.message_packet_count(len));
            let (behind, _) = connection.packet_byte_range(len, end);
            extended.reth = make_reth(addr.wrapping_add(offset.into()), rkey, behind - offset);
            PacketOperation::ReadRequest
        }
        RequestOperation::CompareSwap {
            addr,
            rkey,
            compare,
            swap,
        } => {
            extended.atomic = make_atomic_eth(addr, rkey, swap, compare);
            PacketOperation::CompareSwap
        }
        RequestOperation::FetchAdd { addr, rkey, add } => {
            extended.atomic = make_atomic_eth(addr, rkey, add, 0);
            PacketOperation::FetchAdd
        }
        RequestOperation::AtomicWrite { addr, rkey } => {
            extended.reth = make_reth(addr, rkey, 8);
            PacketOperation::AtomicWrite
        }
        RequestOperation::Flush {
            addr,
            rkey,
            len,
            placement,
            selectivity,
        } => {
            extended.reth = make_reth(addr, rkey, len);
            extended.feth = make_feth(placement, selectivity);
            PacketOperation::Flush
        }
    };
    (operation, extended)
}

fn make_reth(addr: u64, rkey: u32, len: u32) -> Option<Reth> {
    Some(Reth { addr, rkey, len })
}

fn make_feth(placement: u8, selectivity: u8) -> Option<Feth> {
    Some(Feth {
        placement,
        selectivity,
    })
}

fn make_atomic_eth(addr: u64, rkey: u32, swap_or_add: u64, compare: u64) -> Option<AtomicEth> {
    Some(AtomicEth {
        addr,
        rkey,
        swap_or_add,
        compare,
    })
}
