//! Processing of responses with a result: to READs, atomics, ATOMIC WRITEs and FLUSHes.

use super::queue::{Queue, Reach};
use crate::opcode::Operation;
use crate::packet::Packet;
use crate::request::{Failure, LocalMemory, RequestOperation};
use crate::segment::Connection;

/// The outcome of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The response was the expected one.
    Taken,
    /// An earlier response is lost.
    Gap,
    /// The request has failed.
    Failed(Failure),
}

/// Processes the response with a sequence number from `acked` to `sent_end` (exclusive).
pub(super) fn take(
    queue: &mut Queue,
    connection: &Connection,
    sequence: u64,
    packet: &Packet<'_>,
    memory: &mut impl LocalMemory,
) -> Outcome {
    // A response acknowledges the requests in front of its own (IBTA vol. 1, 9.7.5.1.2).
    if queue.acknowledge(sequence) == Reach::Blocked {
        return Outcome::Gap;
    }
    let Some((position, slot)) = queue.front() else {
        return Outcome::Failed(Failure::BadResponse);
    };
    let index = slot.index_of(sequence);
    let is_last = sequence + 1 == slot.read_end(connection, sequence);
    let placed = match (slot.request.operation, packet.bth.operation) {
        (RequestOperation::Read { len, .. }, Operation::ReadResponse) => {
            let (offset, bytes) = connection.part(len, index);
            // The first response to a retried READ is FIRST from hardware and MIDDLE from Soft-RoCE.
            let is_expected =
                packet.payload.len() == bytes as usize && packet.bth.position.is_last() == is_last;
            is_expected.then(|| match bytes {
                0 => Ok(()),
                _ => memory.write(position, offset, packet.payload),
            })
        }
        (
            RequestOperation::CompareSwap { .. } | RequestOperation::FetchAdd { .. },
            Operation::AtomicAcknowledge,
        ) => packet
            .extended
            .original
            .map(|original| memory.write(position, 0, &original.to_ne_bytes())),
        (
            RequestOperation::AtomicWrite { .. } | RequestOperation::Flush { .. },
            Operation::ReadResponse,
        ) => packet.payload.is_empty().then_some(Ok(())),
        _ => None,
    };
    match placed {
        None => Outcome::Failed(Failure::BadResponse),
        Some(Err(_)) => Outcome::Failed(Failure::LocalProtection),
        Some(Ok(())) => {
            queue.take_response();
            Outcome::Taken
        }
    }
}
