//! The lane of the HERD designs with requests to all workers in turn, through one queue pair.

use rpc::{RpcError, herd};

use super::{Lane, LaneResults};
use crate::counter::USED_UP_ANSWER;

/// Requests rotate over all workers. Answers carry the worker and the number of their request, so they may overtake
/// each other.
#[derive(Debug)]
pub(crate) struct SpreadLane {
    client: herd::Client,
    window: usize,
    /// One entry for each worker and each of its request slots.
    pending: Box<[Pending]>,
    /// Number of requests sent. `is_answered` tells for each of the last window whether it is answered.
    sent_request_count: u64,
    is_answered: Box<[bool]>,
    /// The oldest unanswered request; its slot must not be reused yet.
    oldest_unanswered_index: u64,
    unanswered_requests: usize,
    /// The worker that gets the next request.
    next_worker: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    /// The immediate of the request's answer.
    answer_imm: u32,
    is_outstanding: bool,
    /// The request's position among all sent.
    request_index: u64,
    min_valid_number: u64,
}

impl SpreadLane {
    pub(crate) fn new(client: herd::Client, window: usize) -> Self {
        let slots = client.layout().slots_per_client as usize;
        Self {
            window: window.min(slots),
            pending: vec![Pending::default(); slots * client.worker_count()].into_boxed_slice(),
            sent_request_count: 0,
            is_answered: vec![true; slots].into_boxed_slice(),
            oldest_unanswered_index: 0,
            unanswered_requests: 0,
            next_worker: 0,
            client,
        }
    }

    /// Returns the index in `pending` of a worker's request, by the lower bits of its number.
    #[inline]
    fn pending_index(worker: usize, number: u32, slots: usize) -> usize {
        worker * slots + (number.wrapping_sub(1) as usize & (slots - 1))
    }
}

impl Lane for SpreadLane {
    #[inline]
    fn room_in_window(&self) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "at most the window")]
        let under_way = (self.sent_request_count - self.oldest_unanswered_index) as usize;
        self.window - under_way
    }

    #[inline]
    fn unanswered_requests(&self) -> usize {
        self.unanswered_requests
    }

    #[inline]
    fn send(&mut self, count: usize, above: u64) -> Result<(), RpcError> {
        let slots = self.is_answered.len();
        for _ in 0..count {
            let worker = self.next_worker;
            self.next_worker = (worker + 1) % self.client.worker_count();
            self.client.select_worker(worker);
            let number = self.client.prepare_request(&[])?;
            let tag = herd::WorkerTag::of_worker(worker);
            let tag = tag.ok_or_else(|| RpcError::Config("too many workers".to_owned()))?;
            self.pending[Self::pending_index(worker, number, slots)] = Pending {
                answer_imm: tag.answer_imm(number),
                is_outstanding: true,
                request_index: self.sent_request_count,
                min_valid_number: above,
            };
            #[expect(clippy::cast_possible_truncation, reason = "of a power of two")]
            let place = self.sent_request_count as usize & (slots - 1);
            self.is_answered[place] = false;
            self.sent_request_count += 1;
        }
        self.client.post_prepared_requests()?;
        self.unanswered_requests += count;
        Ok(())
    }

    #[inline]
    fn poll(&mut self, results: &mut LaneResults) -> Result<usize, RpcError> {
        let Self {
            client,
            pending,
            is_answered: answered,
            unanswered_requests: outstanding,
            ..
        } = self;
        let slots = answered.len();
        let before = *outstanding;
        client.poll(|answer| {
            let place =
                Self::pending_index(herd::WorkerTag::worker_index(answer.imm), answer.imm, slots);
            let found = pending.get_mut(place);
            let found = found.filter(|p| p.is_outstanding && p.answer_imm == answer.imm);
            let Some((request, n)) = found.zip(answer.u64_le()) else {
                results.discarded_answer_count += 1;
                return;
            };
            request.is_outstanding = false;
            #[expect(clippy::cast_possible_truncation, reason = "of a power of two")]
            let index = request.request_index as usize & (slots - 1);
            answered[index] = true;
            *outstanding -= 1;
            if n == USED_UP_ANSWER {
                results.refused_request_count += 1;
            } else {
                results.record_number(n, request.min_valid_number);
            }
        })?;
        #[expect(clippy::cast_possible_truncation, reason = "of a power of two")]
        while self.oldest_unanswered_index < self.sent_request_count
            && self.is_answered[self.oldest_unanswered_index as usize & (slots - 1)]
        {
            self.oldest_unanswered_index += 1;
        }
        Ok(before - self.unanswered_requests)
    }
}
