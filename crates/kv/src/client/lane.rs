//! A client's connection to one partition: numbers requests and changes, and matches answers.

use std::collections::VecDeque;
use std::time::Instant;

use rpc::{RpcError, herd};
use verbs::time;

use super::request::{ClientStats, WindowSlot};
use super::request_window::RequestWindow;
use crate::wire::{self, REQUEST_PART_HEADER_BYTES, Status};

/// Marks a slot without a request.
const NO_REQUEST: u32 = u32::MAX;

/// A lane.
///
/// A poll that finds nothing needs one cache line: the first fields, and those of the client for receiving. A client
/// polls all of its lanes, and most of these polls find nothing.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Lane {
    pub(super) pending_error: Option<Box<RpcError>>,
    /// Requests that are longer than a slot, with the number of bytes sent; `None` if there are none.
    #[expect(
        clippy::box_collection,
        reason = "a thin pointer, which is rarely needed"
    )]
    unsent_long_requests_with_sent_bytes: Option<Box<VecDeque<(u32, usize)>>>,
    /// Number of requests that are prepared but not sent.
    unsent_requests: usize,
    client: herd::Client,
    /// Number of requests per doorbell.
    requests_per_doorbell: usize,
    /// For each slot of the window: the request's number and its index in `pending`.
    request_number_and_pending_index_by_slot: Box<[(u32, u32)]>,
    /// The oldest unanswered request number.
    oldest_unanswered_request_number: u32,
    /// The number of the last change.
    last_change_seq: u32,
    /// The numbers of outstanding changes, in order.
    outstanding_changes: VecDeque<u32>,
    /// Largest distance between the numbers of outstanding changes.
    max_change_seq_span: u32,
    request_window: RequestWindow,
    pub(super) doorbells: u64,
    /// Time of the last message, or of the first request after a pause.
    pub(super) last_activity: Instant,
}

/// Buffers for answers, which the lanes of a client share.
#[derive(Debug)]
pub(super) struct AnswerBuffers {
    /// A copy of an answer, which the NIC can no longer overwrite.
    answer_copy: Vec<u8>,
    /// A value that arrived in chunks, or a request that is encoded.
    pub(super) value_or_encoded_request: Vec<u8>,
}

impl AnswerBuffers {
    pub(super) fn new() -> Self {
        Self {
            answer_copy: vec![0; 4096],
            value_or_encoded_request: Vec::new(),
        }
    }
}

/// An answer that completes a request.
pub(super) struct CompleteAnswer<'a> {
    pub(super) status: Status,
    pub(super) version_or_record: u64,
    pub(super) value: &'a [u8],
}

impl Lane {
    /// Creates a lane that sends up to `batch` requests per doorbell. The numbers of outstanding changes differ by less
    /// than `span`. `recv_depth` and `chunk_bytes` are those of the queue pair for answers.
    pub(super) fn new(
        client: herd::Client,
        (batch, span): (usize, u32),
        (recv_depth, chunk_bytes): (usize, usize),
    ) -> Self {
        let window = client.layout().slots_per_client;
        Self {
            oldest_unanswered_request_number: client.next_request_number(),
            client,
            requests_per_doorbell: batch,
            request_number_and_pending_index_by_slot: vec![(0, NO_REQUEST); window as usize].into(),
            unsent_requests: 0,
            unsent_long_requests_with_sent_bytes: None,
            last_change_seq: 0,
            outstanding_changes: VecDeque::new(),
            max_change_seq_span: span,
            request_window: RequestWindow::new(window as usize, recv_depth, chunk_bytes),
            doorbells: 0,
            pending_error: None,
            last_activity: time::now(),
        }
    }

    /// Returns true if the lane can take another request.
    #[inline]
    pub(super) fn has_room(&self, is_change: bool) -> bool {
        let apart = |&oldest: &u32| {
            self.last_change_seq.wrapping_add(2).wrapping_sub(oldest) < self.max_change_seq_span
        };
        self.next_slot_is_free()
            && self.unsent_long_requests_with_sent_bytes.is_none()
            && (!is_change || self.outstanding_changes.front().is_none_or(apart))
    }

    /// Returns true if no request is outstanding.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.oldest_unanswered_request_number == self.client.next_request_number()
            && self.unsent_long_requests_with_sent_bytes.is_none()
    }

    #[inline]
    fn next_slot_is_free(&self) -> bool {
        let under_way = self
            .client
            .next_request_number()
            .wrapping_sub(self.oldest_unanswered_request_number);
        (under_way as usize) < self.request_window.current_window()
    }

    /// Returns the number of requests that may be unanswered.
    pub(super) fn request_window(&self) -> usize {
        self.request_window.current_window()
    }

    /// Limits the number of unanswered requests to that of an earlier connection.
    pub(super) fn limit_request_window(&mut self, unanswered: usize) {
        self.request_window.limit_to(unanswered);
    }

    /// Returns the number of a new change and marks it outstanding.
    #[inline]
    pub(super) fn allocate_outstanding_change_seq(&mut self) -> u32 {
        let seq = self.allocate_change_seq();
        self.outstanding_changes.push_back(seq);
        seq
    }

    /// Returns the number of a new change that is not outstanding yet. Number 0 is never used.
    pub(super) fn allocate_change_seq(&mut self) -> u32 {
        self.last_change_seq = self.last_change_seq.wrapping_add(1).max(1);
        self.last_change_seq
    }

    /// Marks a change outstanding that is sent again.
    pub(super) fn mark_change_outstanding_again(&mut self, seq: u32) {
        if seq != 0 {
            self.outstanding_changes.push_back(seq);
        }
    }

    pub(super) fn last_change_seq(&self) -> u32 {
        self.last_change_seq
    }

    /// Sets the number of the last change, after which the next ones continue.
    pub(super) fn set_last_change_seq(&mut self, seq: u32) {
        self.last_change_seq = seq;
    }

    /// Prepares a request, and sends the batch when it is full.
    #[inline]
    pub(super) fn enqueue(&mut self, slot: u32, bytes: &[u8]) -> Result<(), RpcError> {
        if bytes.len() > self.client.layout().max_payload_bytes as usize
            || !self.next_slot_is_free()
        {
            self.unsent_long_requests_with_sent_bytes
                .get_or_insert_default()
                .push_back((slot, 0));
            return Ok(());
        }
        self.prepare_in_slot(slot, bytes)
    }

    #[inline]
    fn prepare_in_slot(&mut self, slot: u32, bytes: &[u8]) -> Result<(), RpcError> {
        let number = self.client.prepare_request(bytes)?;
        let place = number as usize & (self.request_number_and_pending_index_by_slot.len() - 1);
        self.request_number_and_pending_index_by_slot[place] = (number, slot);
        self.unsent_requests += 1;
        if self.unsent_requests >= self.requests_per_doorbell {
            return self.send_prepared_requests();
        }
        Ok(())
    }

    #[inline]
    fn send_prepared_requests(&mut self) -> Result<(), RpcError> {
        self.unsent_requests = 0;
        self.doorbells += 1;
        self.client.post_prepared_requests()
    }

    /// Sends parts of long requests, as many as there are free slots.
    #[cold]
    fn send_parts_of_long_requests(&mut self, pending: &[WindowSlot]) -> Result<(), RpcError> {
        let most = self.client.layout().max_payload_bytes as usize;
        while self.next_slot_is_free()
            && let Some(requests) = &mut self.unsent_long_requests_with_sent_bytes
            && let Some(front) = requests.front_mut()
        {
            let (slot, from) = *front;
            let bytes = &pending[slot as usize].encoded_request;
            if bytes.len() <= most {
                requests.pop_front();
                self.prepare_in_slot(slot, bytes)?;
                continue;
            }
            let to = bytes.len().min(from + most - REQUEST_PART_HEADER_BYTES);
            let mut part = wire::part_header(from, bytes.len(), to - from).to_vec();
            part.extend_from_slice(&bytes[from..to]);
            if to == bytes.len() {
                requests.pop_front();
            } else {
                front.1 = to;
            }
            self.prepare_in_slot(slot, &part)?;
        }
        let rest = self.unsent_long_requests_with_sent_bytes.take();
        self.unsent_long_requests_with_sent_bytes = rest.filter(|rest| !rest.is_empty());
        Ok(())
    }

    /// Returns the CQ of answers.
    pub(super) fn recv_cq(&self) -> &verbs::CompletionQueue {
        self.client.recv_cq()
    }

    /// Returns true if [`poll`](Self::poll) does more than to poll the CQ of answers.
    #[inline]
    pub(super) fn has_work_besides_answers(&self) -> bool {
        self.pending_error.is_some()
            || self.unsent_long_requests_with_sent_bytes.is_some()
            || self.unsent_requests > 0
    }

    /// Sends prepared requests and takes answers: calls `done` for each completed request. Returns the number of
    /// messages that arrived, including those about parts of requests.
    #[inline]
    pub(super) fn poll(
        &mut self,
        pending: &mut [WindowSlot],
        stats: &mut ClientStats,
        buffers: &mut AnswerBuffers,
        mut done: impl FnMut(&mut WindowSlot, u32, CompleteAnswer<'_>),
    ) -> Result<usize, RpcError> {
        if let Some(e) = self.pending_error.take() {
            return Err(*e);
        }
        if self.unsent_long_requests_with_sent_bytes.is_some() {
            self.send_parts_of_long_requests(pending)?;
        }
        if self.unsent_requests > 0 {
            self.send_prepared_requests()?;
        }
        let Self {
            client,
            request_number_and_pending_index_by_slot: by_slot,
            outstanding_changes: changes,
            request_window,
            ..
        } = self;
        let AnswerBuffers {
            answer_copy: answer,
            value_or_encoded_request: buffer,
        } = buffers;
        let received = client.poll(|r| {
            let place = r.imm as usize & (by_slot.len() - 1);
            let (number, slot) = by_slot[place];
            let n = r.copy_to(answer);
            let Some((pending, reply)) = pending
                .get_mut(slot as usize)
                .filter(|_| number == r.imm)
                .zip(wire::decode_answer(&answer[..n]))
            else {
                stats.discarded_answers += 1;
                return;
            };
            let mut complete = CompleteAnswer {
                status: reply.status,
                version_or_record: reply.version_or_record,
                value: reply.value,
            };
            if let Some((total, offset)) = reply.value_length_and_chunk_offset {
                request_window.record_chunk(total);
                if !store_value_chunk_is_last(pending, total, offset, reply.value) {
                    return;
                }
                std::mem::swap(buffer, &mut pending.chunked_value);
                complete.value = buffer;
            } else {
                request_window.record_single_datagram_answer();
            }
            by_slot[place].1 = NO_REQUEST;
            // All parts but the last are only acknowledged.
            if reply.status == Status::PartReceived {
                return;
            }
            if pending.change_seq != 0
                && let Some(at) = changes.iter().position(|&seq| seq == pending.change_seq)
            {
                changes.remove(at);
            }
            done(pending, slot, complete);
        })?;
        if received > 0 {
            let next = self.client.next_request_number();
            let mask = self.request_number_and_pending_index_by_slot.len() - 1;
            while self.oldest_unanswered_request_number != next
                && self.request_number_and_pending_index_by_slot
                    [self.oldest_unanswered_request_number as usize & mask]
                    .1
                    == NO_REQUEST
            {
                self.oldest_unanswered_request_number =
                    self.oldest_unanswered_request_number.wrapping_add(1);
            }
        }
        Ok(received)
    }
}

/// Stores a chunk of a value. Returns true if the value is complete. A datagram may arrive twice; the copy is ignored.
#[cold]
fn store_value_chunk_is_last(
    pending: &mut WindowSlot,
    total: usize,
    offset: usize,
    bytes: &[u8],
) -> bool {
    if total > crate::store::MAX_VALUE_BYTES || pending.received_bytes == 0 {
        pending.chunked_value.clear();
        pending
            .chunked_value
            .resize(total.min(crate::store::MAX_VALUE_BYTES), 0);
        pending.received_chunk_offsets.clear();
    }
    if pending.received_chunk_offsets.contains(&offset) {
        return false;
    }
    let end = offset.saturating_add(bytes.len());
    if let Some(into) = pending.chunked_value.get_mut(offset..end) {
        into.copy_from_slice(bytes);
        pending.received_bytes += bytes.len();
        pending.received_chunk_offsets.push(offset);
    }
    pending.received_bytes >= total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_arrives_twice_counts_once() {
        let mut pending = WindowSlot::unused(time::now());
        for _ in 0..2 {
            assert!(!store_value_chunk_is_last(&mut pending, 6, 3, b"def"));
        }
        assert!(store_value_chunk_is_last(&mut pending, 6, 0, b"abc"));
        assert_eq!(pending.chunked_value, b"abcdef");
        // The same chunks of the next attempt count again.
        pending.received_bytes = 0;
        assert!(!store_value_chunk_is_last(&mut pending, 6, 3, b"xyz"));
        assert!(store_value_chunk_is_last(&mut pending, 6, 0, b"uvw"));
        assert_eq!(pending.chunked_value, b"uvwxyz");
    }
}
