//! Processing of responses with a result: to READs, atomics, ATOMIC WRITEs and FLUSHes.

use super::queue::{AckEffect, RequestQueue};
use crate::opcode::PacketOperation;
use crate::packet::Packet;
use crate::request::{LocalMemory, RequestFailure, RequestOperation};
use crate::segment::ConnectionParameters;

/// The outcome of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseOutcome {
    /// The response was the expected one.
    Accepted,
    /// An earlier response is lost.
    EarlierResponseMissing,
    /// The request has failed.
    Failed(RequestFailure),
}

/// Processes the response with a sequence number from `acked` to `sent_end` (exclusive).
pub(super) fn process_response(
    queue: &mut RequestQueue,
    connection: &ConnectionParameters,
    sequence: u64,
    packet: &Packet<'_>,
    memory: &mut impl LocalMemory,
) -> ResponseOutcome {
    // A response acknowledges the requests in front of its own (IBTA vol. 1, 9.7.5.1.2).
    if queue.acknowledge_before(sequence) == AckEffect::BlockedByMissingResponse {
        return ResponseOutcome::EarlierResponseMissing;
    }
    let Some((position, slot)) = queue.front() else {
        return ResponseOutcome::Failed(RequestFailure::BadResponse);
    };
    let index = slot.packet_index_of(sequence);
    let is_last = sequence + 1 == slot.read_request_end_sequence(connection, sequence);
    let placed = match (slot.request.operation, packet.bth.operation) {
        (RequestOperation::Read { len, .. }, PacketOperation::ReadResponse) => {
            let (offset, bytes) = connection.packet_byte_range(len, index);
            // The first response to a retried READ is FIRST from hardware and MIDDLE from Soft-RoCE.
            let is_expected =
                packet.payload.len() == bytes as usize && packet.bth.position.is_last() == is_last;
            is_expected.then(|| match bytes {
                0 => Ok(()),
                _ => memory.write_read_or_atomic_result(position, offset, packet.payload),
            })
        }
        (
            RequestOperation::CompareSwap { .. } | RequestOperation::FetchAdd { .. },
            PacketOperation::AtomicAcknowledge,
        ) => packet.extended.original_value.map(|original| {
            memory.write_read_or_atomic_result(position, 0, &original.to_ne_bytes())
        }),
        (
            RequestOperation::AtomicWrite { .. } | RequestOperation::Flush { .. },
            PacketOperation::ReadResponse,
        ) => packet.payload.is_empty().then_some(Ok(())),
        _ => None,
    };
    match placed {
        None => ResponseOutcome::Failed(RequestFailure::BadResponse),
        Some(Err(_)) => ResponseOutcome::Failed(RequestFailure::LocalProtection),
        Some(Ok(())) => {
            queue.record_response_to_oldest();
            ResponseOutcome::Accepted
        }
    }
}
