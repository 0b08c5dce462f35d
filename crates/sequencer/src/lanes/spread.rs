//! The lane of the HERD designs with requests to all workers in turn, through one queue pair.

use rpc::{RpcError, herd};

use super::{Lane, LaneResults};
use crate::counter::USED_UP;

/// Requests rotate over all workers. Answers carry the worker and the number of their request, so they may overtake
/// each other.
#[derive(Debug)]
pub(crate) struct SpreadLane {
    client: herd::Client,
    window: usize,
    /// One entry for each worker and each of its request slots.
    pending: Box<[Pending]>,
    /// Number of requests sent. `answered` tells for each of the last window whether it is answered.
    sent: u64,
    answered: Box<[bool]>,
    /// The oldest unanswered request; its slot must not be reused yet.
    oldest: u64,
    outstanding: usize,
    /// The worker that gets the next request.
    worker: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    /// The immediate of the request's answer.
    imm: u32,
    is_outstanding: bool,
    /// The request's position among all sent.
    index: u64,
    floor: u64,
}

impl SpreadLane {
    pub(crate) fn new(client: herd::Client, window: usize) -> Self {
        let slots = client.layout().window as usize;
        Self {
            window: window.min(slots),
            pending: vec![Pending::default(); slots * client.workers()].into_boxed_slice(),
            sent: 0,
            answered: vec![true; slots].into_boxed_slice(),
            oldest: 0,
            outstanding: 0,
            worker: 0,
            client,
        }
    }

    /// Returns the index in `pending` of a worker's request, by the lower bits of its number.
    #[inline]
    fn place(worker: usize, number: u32, slots: usize) -> usize {
        worker * slots + (number.wrapping_sub(1) as usize & (slots - 1))
    }
}

impl Lane for SpreadLane {
    #[inline]
    fn room(&self) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "at most the window")]
        let under_way = (self.sent - self.oldest) as usize;
        self.window - under_way
    }

    #[inline]
    fn outstanding(&self) -> usize {
        self.outstanding
    }

    #[inline]
    fn send(&mut self, count: usize, above: u64) -> Result<(), RpcError> {
        let slots = self.answered.len();
        for _ in 0..count {
            let worker = self.worker;
            self.worker = (worker + 1) % self.client.workers();
            self.client.select(worker);
            let number = self.client.push(&[])?;
            let tag = herd::Tag::of_worker(worker);
            let tag = tag.ok_or_else(|| RpcError::Config("too many workers".to_owned()))?;
            self.pending[Self::place(worker, number, slots)] = Pending {
                imm: tag.imm(number),
                is_outstanding: true,
                index: self.sent,
                floor: above,
            };
            #[expect(clippy::cast_possible_truncation, reason = "of a power of two")]
            let place = self.sent as usize & (slots - 1);
            self.answered[place] = false;
            self.sent += 1;
        }
        self.client.flush()?;
        self.outstanding += count;
        Ok(())
    }

    #[inline]
    fn poll(&mut self, results: &mut LaneResults) -> Result<usize, RpcError> {
        let Self {
            client,
            pending,
            answered,
            outstanding,
            ..
        } = self;
        let slots = answered.len();
        let before = *outstanding;
        client.poll(|answer| {
            let place = Self::place(herd::Tag::worker_index(answer.imm), answer.imm, slots);
            let found = pending.get_mut(place);
            let found = found.filter(|p| p.is_outstanding && p.imm == answer.imm);
            let Some((request, n)) = found.zip(answer.u64_le()) else {
                results.discarded += 1;
                return;
            };
            request.is_outstanding = false;
            #[expect(clippy::cast_possible_truncation, reason = "of a power of two")]
            let index = request.index as usize & (slots - 1);
            answered[index] = true;
            *outstanding -= 1;
            if n == USED_UP {
                results.refused += 1;
            } else {
                results.record(n, request.floor);
            }
        })?;
        #[expect(clippy::cast_possible_truncation, reason = "of a power of two")]
        while self.oldest < self.sent && self.answered[self.oldest as usize & (slots - 1)] {
            self.oldest += 1;
        }
        Ok(before - self.outstanding)
    }
}
