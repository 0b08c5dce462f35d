//! The queue of requests that are not done, with the progress of transmission and acknowledgement.

use std::collections::VecDeque;

use crate::request::{Request, RequestOperation};
use crate::segment::{ConnectionParameters, completes_by_own_response};
use crate::sequence::FIRST_SEQUENCE;

/// A request with its sequence numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedRequest {
    pub(super) request: Request,
    /// Sequence number of the first packet or, for a READ, of the first response.
    pub(super) first_sequence: u64,
    /// Sequence number after the last packet or response.
    pub(super) end_sequence: u64,
}

impl QueuedRequest {
    /// Returns true if the request completes by a response of its own.
    pub(super) fn completes_by_own_response(&self) -> bool {
        completes_by_own_response(&self.request.operation)
    }

    /// Returns the sequence number after the last response to the READ request that asks for response `sequence`.
    pub(super) fn read_request_end_sequence(
        &self,
        connection: &ConnectionParameters,
        sequence: u64,
    ) -> u64 {
        let packets = self.packet_index_of(self.end_sequence);
        self.first_sequence
            + u64::from(connection.read_request_end_index(self.packet_index_of(sequence), packets))
    }

    /// Returns the index of packet `sequence` within the request.
    pub(super) fn packet_index_of(&self, sequence: u64) -> u32 {
        #[allow(clippy::cast_possible_truncation)] // at most 2^23 packets
        let index = sequence.wrapping_sub(self.first_sequence) as u32;
        index
    }
}

/// The effect of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckEffect {
    /// Everything up to its PSN is acknowledged.
    AllAcknowledged,
    /// An earlier request still waits for its response, which is lost: an implied NAK (IBTA vol. 1, 9.7.5.1.4).
    BlockedByMissingResponse,
}

/// The queue of requests, oldest first.
#[derive(Debug)]
pub(super) struct RequestQueue {
    connection_parameters: ConnectionParameters,
    requests: VecDeque<QueuedRequest>,
    done_request_count: u64,
    /// Sequence number of 64 bits (not the PSN) of the first packet of the request that is posted next.
    posted_end_sequence: u64,
    /// All packets in front of this sequence number are acknowledged.
    acked_until_sequence: u64,
    /// Sequence number of the next packet to send.
    next_send_sequence: u64,
    /// Position of the request that contains packet `next_send_sequence`.
    position_of_next_send: u64,
    /// Sequence number after the last packet that was ever sent.
    sent_end_sequence: u64,
    /// Number of sent requests in front of `next_send_sequence` that wait for their responses.
    requests_awaiting_response: u32,
    /// Number of SENDs that are done and not yet counted.
    uncounted_done_sends: u64,
}

impl RequestQueue {
    pub(super) fn new(connection: ConnectionParameters) -> Self {
        Self {
            connection_parameters: connection,
            requests: VecDeque::new(),
            done_request_count: 0,
            posted_end_sequence: FIRST_SEQUENCE,
            acked_until_sequence: FIRST_SEQUENCE,
            next_send_sequence: FIRST_SEQUENCE,
            position_of_next_send: 1,
            sent_end_sequence: FIRST_SEQUENCE,
            requests_awaiting_response: 0,
            uncounted_done_sends: 0,
        }
    }

    pub(super) fn push(&mut self, request: Request, psns: u32) -> u64 {
        let first = self.posted_end_sequence;
        self.posted_end_sequence += u64::from(psns);
        self.requests.push_back(QueuedRequest {
            request,
            first_sequence: first,
            end_sequence: self.posted_end_sequence,
        });
        self.done_request_count + self.requests.len() as u64
    }

    pub(super) fn done_request_count(&self) -> u64 {
        self.done_request_count
    }

    /// Returns the number of SENDs that completed since the last call.
    pub(super) fn take_done_send_count(&mut self) -> u64 {
        std::mem::take(&mut self.uncounted_done_sends)
    }

    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn acked_until_sequence(&self) -> u64 {
        self.acked_until_sequence
    }

    pub(super) fn next_send_sequence(&self) -> u64 {
        self.next_send_sequence
    }

    pub(super) fn sent_end_sequence(&self) -> u64 {
        self.sent_end_sequence
    }

    pub(super) fn requests_awaiting_response(&self) -> u32 {
        self.requests_awaiting_response
    }

    /// Returns true if packets are outstanding that no retry will send again.
    pub(super) fn has_outstanding_packets(&self) -> bool {
        self.next_send_sequence > self.acked_until_sequence
    }

    /// Returns the request that contains the next packet, with its position.
    pub(super) fn next_request_to_send(&self) -> Option<(u64, QueuedRequest)> {
        #[allow(clippy::cast_possible_truncation)] // less than the queue's length
        let index = (self.position_of_next_send - self.done_request_count - 1) as usize;
        self.requests
            .get(index)
            .map(|slot| (self.position_of_next_send, *slot))
    }

    /// Returns the oldest request, with its position.
    pub(super) fn front(&self) -> Option<(u64, QueuedRequest)> {
        self.requests
            .front()
            .map(|slot| (self.done_request_count + 1, *slot))
    }

    /// Advances `next_send_sequence` after a packet of `slot` was sent; a READ request uses the sequence numbers of all
    /// responses that it asks for.
    pub(super) fn advance_after_send(&mut self, slot: &QueuedRequest) {
        self.next_send_sequence = if slot.completes_by_own_response() {
            self.requests_awaiting_response += 1;
            slot.read_request_end_sequence(&self.connection_parameters, self.next_send_sequence)
        } else {
            self.next_send_sequence + 1
        };
        if self.next_send_sequence == slot.end_sequence {
            self.position_of_next_send += 1;
        }
        self.sent_end_sequence = self.sent_end_sequence.max(self.next_send_sequence);
    }

    /// Acknowledges everything in front of `limit`.
    pub(super) fn acknowledge_before(&mut self, limit: u64) -> AckEffect {
        while self.acked_until_sequence < limit {
            let Some(front) = self.requests.front() else {
                return AckEffect::AllAcknowledged;
            };
            if front.completes_by_own_response() {
                return AckEffect::BlockedByMissingResponse;
            }
            self.acked_until_sequence = limit.min(front.end_sequence);
            self.retire_front_if_done();
        }
        AckEffect::AllAcknowledged
    }

    /// Records the response to packet `acked_until`.
    pub(super) fn record_response_to_oldest(&mut self) {
        let taken = self.acked_until_sequence;
        self.acked_until_sequence += 1;
        // A packet at or after `next_send_sequence` was taken back by a retry, so `requests_awaiting_response` no
        // longer counts its request.
        if let Some(front) = self.requests.front()
            && self.acked_until_sequence
                == front.read_request_end_sequence(&self.connection_parameters, taken)
            && self.next_send_sequence > taken
        {
            self.requests_awaiting_response -= 1;
        }
        self.retire_front_if_done();
    }

    /// Removes the oldest request if it is done, and advances `next_send_sequence` to `acked_until` at least.
    fn retire_front_if_done(&mut self) {
        if let Some(front) = self.requests.front()
            && front.end_sequence <= self.acked_until_sequence
        {
            self.uncounted_done_sends += u64::from(matches!(
                front.request.operation,
                RequestOperation::Send { .. }
            ));
            self.requests.pop_front();
            self.done_request_count += 1;
            self.position_of_next_send =
                self.position_of_next_send.max(self.done_request_count + 1);
        }
        self.next_send_sequence = self.next_send_sequence.max(self.acked_until_sequence);
    }

    /// Sets `next_send_sequence` back, so that everything that is not acknowledged is sent again.
    pub(super) fn rewind_to_acked(&mut self) {
        self.next_send_sequence = self.acked_until_sequence;
        self.position_of_next_send = self.done_request_count + 1;
        self.requests_awaiting_response = 0;
    }
}
