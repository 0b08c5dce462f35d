//! A client's connection to one worker: numbers requests and changes, and matches answers.

use std::collections::VecDeque;
use std::time::Instant;

use rpc::{RpcError, herd};
use verbs::time;

use super::request::{ClientStats, RequestSlot};
use crate::key_or_value::KeyOrValue;
use crate::key_or_value::private::Sizes;
use crate::wire::{self, MAX_SCAN_MESSAGES, Operation};

/// Marks a slot without a request.
const NO_REQUEST: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Lane {
    client: herd::Client,
    /// Number of requests per doorbell.
    requests_per_doorbell: usize,
    /// For each slot of the window: the request's number, its index in `pending`, and the RECVs reserved for its
    /// answer.
    request_number_pending_index_and_recvs_by_slot: Box<[(u32, u32, u32)]>,
    /// The oldest unanswered request number.
    oldest_unanswered: u32,
    /// Number of requests that are prepared but not sent.
    unsent_requests: usize,
    /// RECVs that no request has reserved. A message without a RECV would be lost.
    unreserved_recvs: u32,
    /// Entries that fit into each message of a SCAN's answer.
    scan_entries_per_message: usize,
    /// The number of the last change.
    last_change_seq: u32,
    /// The numbers of outstanding changes, in order.
    outstanding_changes: VecDeque<u32>,
    /// Largest distance between the numbers of outstanding changes.
    max_change_seq_span: u32,
    pub(super) doorbells: u64,
    pub(super) pending_error: Option<RpcError>,
    /// Time of the last message, or of the first request after a pause.
    pub(super) last_activity: Instant,
    /// A copy of an answer, which the NIC can no longer overwrite.
    answer_copy: Vec<u8>,
}

/// A complete answer to a request.
pub(super) struct CompleteAnswer<'a, T: KeyOrValue> {
    pub(super) answer: wire::Answer<'a, T>,
}

impl Lane {
    /// Creates a lane over a connected client with `unreserved_recvs` RECVs of `max_answer_message_bytes` bytes.
    pub(super) fn new(
        client: herd::Client,
        batch: usize,
        span: u32,
        (recvs, answer_bytes): (u32, usize),
        sizes: impl Sizes,
    ) -> Self {
        let window = client.layout().slots_per_client;
        Self {
            oldest_unanswered: client.next_request_number(),
            client,
            requests_per_doorbell: batch,
            request_number_pending_index_and_recvs_by_slot: vec![
                (0, NO_REQUEST, 0);
                window as usize
            ]
            .into(),
            unsent_requests: 0,
            unreserved_recvs: recvs,
            scan_entries_per_message: wire::entries_per_message(answer_bytes, sizes).max(1),
            last_change_seq: 0,
            outstanding_changes: VecDeque::new(),
            max_change_seq_span: span,
            doorbells: 0,
            pending_error: None,
            last_activity: time::now(),
            answer_copy: vec![0; answer_bytes],
        }
    }

    /// Returns the largest number of messages in the answer to a request.
    #[inline]
    fn max_answer_messages<T: KeyOrValue>(&self, op: &Operation<T>, entries_before: usize) -> u32 {
        match op {
            Operation::Scan { limit, .. } => {
                let left = (*limit as usize).saturating_sub(entries_before);
                let messages = left.div_ceil(self.scan_entries_per_message).max(1);
                u32::try_from(messages).map_or(MAX_SCAN_MESSAGES, |m| m.min(MAX_SCAN_MESSAGES))
            }
            Operation::ReadServerLoad => wire::max_load_report_messages::<T>(),
            _ => 1,
        }
    }

    /// Returns true if the lane can take another request.
    #[inline]
    pub(super) fn has_room<T: KeyOrValue>(&self, op: &Operation<T>, entries_before: usize) -> bool {
        let apart = |&oldest: &u32| {
            self.last_change_seq.wrapping_add(2).wrapping_sub(oldest) < self.max_change_seq_span
        };
        self.next_slot_is_free()
            && self.unreserved_recvs >= self.max_answer_messages(op, entries_before)
            && (!op.is_change() || self.outstanding_changes.front().is_none_or(apart))
    }

    /// Returns true if no request is outstanding.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.oldest_unanswered == self.client.next_request_number()
    }

    #[inline]
    fn next_slot_is_free(&self) -> bool {
        let under_way = self
            .client
            .next_request_number()
            .wrapping_sub(self.oldest_unanswered);
        (under_way as usize) < self.request_number_pending_index_and_recvs_by_slot.len()
    }

    /// Returns the number of a new change and marks it outstanding. Number 0 is never used.
    #[inline]
    pub(super) fn allocate_change_seq(&mut self) -> u32 {
        self.last_change_seq = self.last_change_seq.wrapping_add(1).max(1);
        self.outstanding_changes.push_back(self.last_change_seq);
        self.last_change_seq
    }

    /// Marks a change outstanding that is sent again.
    pub(super) fn mark_outstanding(&mut self, seq: u32) {
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
    pub(super) fn enqueue<T: KeyOrValue>(
        &mut self,
        slot: u32,
        pending: &RequestSlot<T>,
    ) -> Result<(), RpcError> {
        let messages = self.max_answer_messages(&pending.op, pending.earlier_entry_count);
        let mut op = pending.op;
        let mut number = pending.change_seq;
        if let Operation::Scan { limit, .. } = &mut op {
            *limit = limit.saturating_sub(u32::try_from(pending.earlier_entry_count).unwrap_or(0));
            number = messages;
        }
        let (bytes, length) = op.encode(pending.tree, number);
        let number = self.client.prepare_request(&bytes.as_ref()[..length])?;
        let place =
            number as usize & (self.request_number_pending_index_and_recvs_by_slot.len() - 1);
        self.request_number_pending_index_and_recvs_by_slot[place] = (number, slot, messages);
        self.unreserved_recvs -= messages;
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

    /// Sends prepared requests and takes answers: calls `done` for each answered request. Returns the number of
    /// messages that arrived.
    #[inline]
    pub(super) fn poll<T: KeyOrValue>(
        &mut self,
        pending: &mut [RequestSlot<T>],
        stats: &mut ClientStats,
        mut done: impl FnMut(&mut RequestSlot<T>, u32, CompleteAnswer<'_, T>),
    ) -> Result<usize, RpcError> {
        if let Some(e) = self.pending_error.take() {
            return Err(e);
        }
        if self.unsent_requests > 0 {
            self.send_prepared_requests()?;
        }
        let Self {
            client,
            request_number_pending_index_and_recvs_by_slot: by_slot,
            outstanding_changes: changes,
            answer_copy: message,
            unreserved_recvs: recvs,
            ..
        } = self;
        let received = client.poll(|r| {
            let place = r.imm as usize & (by_slot.len() - 1);
            let (number, slot, reserved) = by_slot[place];
            let n = r.copy_to(message);
            let Some((pending, answer)) = pending
                .get_mut(slot as usize)
                .filter(|_| number == r.imm)
                .zip(wire::Answer::decode(&message[..n]))
            else {
                stats.discarded_answers += 1;
                return;
            };
            if matches!(
                pending.op,
                Operation::Scan { .. } | Operation::ReadServerLoad
            ) && answer.status == wire::Status::Ok
                && !store_scan_entries(pending, &answer)
            {
                return;
            }
            by_slot[place].1 = NO_REQUEST;
            *recvs += reserved;
            if pending.change_seq != 0
                && let Some(at) = changes.iter().position(|&seq| seq == pending.change_seq)
            {
                changes.remove(at);
            }
            done(pending, slot, CompleteAnswer { answer });
        })?;
        if received > 0 {
            let next = self.client.next_request_number();
            let mask = self.request_number_pending_index_and_recvs_by_slot.len() - 1;
            while self.oldest_unanswered != next
                && self.request_number_pending_index_and_recvs_by_slot
                    [self.oldest_unanswered as usize & mask]
                    .1
                    == NO_REQUEST
            {
                self.oldest_unanswered = self.oldest_unanswered.wrapping_add(1);
            }
        }
        Ok(received)
    }
}

/// Stores the entries of a SCAN's message. Returns true if the answer is complete. A datagram may arrive twice; the
/// copy is ignored.
fn store_scan_entries<T: KeyOrValue>(
    pending: &mut RequestSlot<T>,
    answer: &wire::Answer<'_, T>,
) -> bool {
    let entries_before = pending.earlier_entry_count;
    // Entries beyond the announced count are ignored.
    if pending.received_entry_count == 0 {
        pending
            .entries
            .resize(entries_before + answer.total_entries, Default::default());
        pending.received_first_entry_numbers.clear();
    }
    if pending
        .received_first_entry_numbers
        .contains(&answer.first_entry_number)
    {
        return false;
    }
    let from = entries_before + answer.first_entry_number;
    if let Some(places) = pending.entries.get_mut(from..) {
        pending.received_entry_count += answer.copy_entries_to(places);
    }
    let complete = pending.received_entry_count >= answer.total_entries;
    if !complete {
        pending
            .received_first_entry_numbers
            .push(answer.first_entry_number);
    }
    complete
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_arrives_twice_counts_once() {
        let message = |first_entry_number, entry_bytes| wire::Answer::<u64> {
            first_word: 0,
            status: wire::Status::Ok,
            found: false,
            has_more_entries: false,
            first_entry_number,
            total_entries: 2,
            value_or_next_key: 0,
            encoded_entries: entry_bytes,
        };
        let entry = |number: u64| [number, 10 * number].map(u64::to_le_bytes).concat();
        let bytes = [1, 2, 3, 4].map(entry);
        let mut pending = RequestSlot::unused(time::now());
        for _ in 0..2 {
            assert!(!store_scan_entries(&mut pending, &message(1, &bytes[1])));
        }
        assert!(store_scan_entries(&mut pending, &message(0, &bytes[0])));
        assert_eq!(pending.entries, [(1, 10), (2, 20)]);
        // The messages of the next answer count again.
        pending.earlier_entry_count = 2;
        pending.received_entry_count = 0;
        assert!(!store_scan_entries(&mut pending, &message(1, &bytes[3])));
        assert!(store_scan_entries(&mut pending, &message(0, &bytes[2])));
        assert_eq!(pending.entries, [(1, 10), (2, 20), (3, 30), (4, 40)]);
    }
}
