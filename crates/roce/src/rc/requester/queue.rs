//! The queue of requests that are not done, with the progress of transmission and acknowledgement.

use std::collections::VecDeque;

use crate::request::{Request, RequestOperation};
use crate::segment::{Connection, has_response};
use crate::sequence::START;

/// A request with its sequence numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedRequest {
    pub(super) request: Request,
    /// Sequence number of the first packet or, for a READ, of the first response.
    pub(super) first: u64,
    /// Sequence number after the last packet or response.
    pub(super) end: u64,
}

impl QueuedRequest {
    /// Returns true if the request completes by a response of its own.
    pub(super) fn has_response(&self) -> bool {
        has_response(&self.request.operation)
    }

    /// Returns the sequence number after the last response to the READ request that asks for response `sequence`.
    pub(super) fn read_end(&self, connection: &Connection, sequence: u64) -> u64 {
        let packets = self.index_of(self.end);
        self.first + u64::from(connection.read_end(self.index_of(sequence), packets))
    }

    /// Returns the index of packet `sequence` within the request.
    pub(super) fn index_of(&self, sequence: u64) -> u32 {
        #[allow(clippy::cast_possible_truncation)] // at most 2^23 packets
        let index = sequence.wrapping_sub(self.first) as u32;
        index
    }
}

/// The effect of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AckEffect {
    /// Everything up to its PSN is acknowledged.
    Complete,
    /// An earlier request still waits for its response, which is lost: an implied NAK (IBTA vol. 1, 9.7.5.1.4).
    Blocked,
}

/// The queue of requests, oldest first.
#[derive(Debug)]
pub(super) struct RequestQueue {
    connection: Connection,
    slots: VecDeque<QueuedRequest>,
    done: u64,
    /// Sequence number of the first packet of the next posted request.
    end: u64,
    /// All packets in front of this sequence number are acknowledged.
    acked: u64,
    /// Sequence number of the next packet to send.
    next: u64,
    /// Position of the request that contains packet `next`.
    next_position: u64,
    /// Sequence number after the last packet that was ever sent.
    sent_end: u64,
    /// Number of sent requests in front of `next` that wait for their responses.
    awaited: u32,
    /// Number of SENDs that are done and not yet counted.
    sends: u64,
}

impl RequestQueue {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            slots: VecDeque::new(),
            done: 0,
            end: START,
            acked: START,
            next: START,
            next_position: 1,
            sent_end: START,
            awaited: 0,
            sends: 0,
        }
    }

    pub(super) fn push(&mut self, request: Request, psns: u32) -> u64 {
        let first = self.end;
        self.end += u64::from(psns);
        self.slots.push_back(QueuedRequest {
            request,
            first,
            end: self.end,
        });
        self.done + self.slots.len() as u64
    }

    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Returns the number of SENDs that completed since the last call.
    pub(super) fn take_sends(&mut self) -> u64 {
        std::mem::take(&mut self.sends)
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn sent_end(&self) -> u64 {
        self.sent_end
    }

    pub(super) fn awaited(&self) -> u32 {
        self.awaited
    }

    /// Returns true if packets are outstanding that no retry will send again.
    pub(super) fn is_outstanding(&self) -> bool {
        self.next > self.acked
    }

    /// Returns the request that contains the next packet, with its position.
    pub(super) fn next_slot(&self) -> Option<(u64, QueuedRequest)> {
        #[allow(clippy::cast_possible_truncation)] // less than the queue's length
        let index = (self.next_position - self.done - 1) as usize;
        self.slots
            .get(index)
            .map(|slot| (self.next_position, *slot))
    }

    /// Returns the oldest request, with its position.
    pub(super) fn front(&self) -> Option<(u64, QueuedRequest)> {
        self.slots.front().map(|slot| (self.done + 1, *slot))
    }

    /// Advances `next` after a packet of `slot` was sent; a READ request uses the sequence numbers of all responses
    /// that it asks for.
    pub(super) fn advance(&mut self, slot: &QueuedRequest) {
        self.next = if slot.has_response() {
            self.awaited += 1;
            slot.read_end(&self.connection, self.next)
        } else {
            self.next + 1
        };
        if self.next == slot.end {
            self.next_position += 1;
        }
        self.sent_end = self.sent_end.max(self.next);
    }

    /// Acknowledges everything in front of `limit`.
    pub(super) fn acknowledge(&mut self, limit: u64) -> AckEffect {
        while self.acked < limit {
            let Some(front) = self.slots.front() else {
                return AckEffect::Complete;
            };
            if front.has_response() {
                return AckEffect::Blocked;
            }
            self.acked = limit.min(front.end);
            self.retire_front();
        }
        AckEffect::Complete
    }

    /// Records the response to packet `acked`.
    pub(super) fn take_response(&mut self) {
        let taken = self.acked;
        self.acked += 1;
        // A packet at or after `next` was taken back by a retry, so `awaited` no longer counts its request.
        if let Some(front) = self.slots.front()
            && self.acked == front.read_end(&self.connection, taken)
            && self.next > taken
        {
            self.awaited -= 1;
        }
        self.retire_front();
    }

    /// Removes the oldest request if it is done, and advances `next` to `acked` at least.
    fn retire_front(&mut self) {
        if let Some(front) = self.slots.front()
            && front.end <= self.acked
        {
            self.sends += u64::from(matches!(
                front.request.operation,
                RequestOperation::Send { .. }
            ));
            self.slots.pop_front();
            self.done += 1;
            self.next_position = self.next_position.max(self.done + 1);
        }
        self.next = self.next.max(self.acked);
    }

    /// Sets `next` back, so that everything that is not acknowledged is sent again.
    pub(super) fn rewind(&mut self) {
        self.next = self.acked;
        self.next_position = self.done + 1;
        self.awaited = 0;
    }
}
