//! The client's side of each design: sends requests and takes numbers.
//!
//! # The number that a header-only answer means (`spec-s0`)
//!
//! The answer carries only the lower half. The upper half is the *guess* in the answered request, because the server
//! answers header-only exactly if the guess was right. The client does not know which request an answer belongs to, and
//! does not need to:
//!
//! 1. A session has one guess, which is in all of its requests. So every header-only answer to one of its requests
//!    means `guess << 32 | lower`, whichever request it answers, however late it arrives.
//! 2. A session receives only answers to its own requests. Its queue pair has a new random Q_Key. The server sends
//!    answers to the queue pair number and Q_Key of the session that sent the request. The NIC drops packets to a queue
//!    pair that was destroyed, and packets with another Q_Key.
//! 3. An answer is accepted only if its number is greater than all that the client has accepted. The server's worker
//!    answers on one queue pair in the order of the numbers. So this rule accepts every answer that arrives in order,
//!    and rejects every answer that a network delivers twice or late. A server whose answers rotate over several queue
//!    pairs announces this. Then a number is accepted if the client has not accepted it before, and numbers need not
//!    increase.
//! 4. After a wrong guess the full number shows the right one. The session sends no more requests, waits for the
//!    outstanding answers, and ends; the next session guesses right. This happens once in 2^32 numbers.
//! 5. When a deadline passes, the session ends too, and unanswered requests are repeated in a new session. The numbers
//!    of the old answers are skipped; no other client gets them either.
//!
//! By rules 1 and 2, an accepted number is one that the server took for this session. The server takes each number
//! once, and by rule 3 the client accepts it at most once. So no number is given twice, and no accepted number is
//! wrong.

use std::collections::VecDeque;

use rpc::{RpcError, datagram, herd};
use verbs::{
    CompletionQueue, MemoryRegion, MrSlice, Postlist, QueuePair, Rc, RemoteMemory, WcBuffer,
};

use crate::NumberSet;
use crate::counter::USED_UP_ANSWER;

mod spread;

pub(crate) use spread::SpreadLane;

/// The results of the lanes.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct LaneResults {
    /// One more than the largest number so far, over all sessions.
    pub(crate) one_past_largest_number: u64,
    /// The value of `one_past_largest_number` at the start of the run. No request was outstanding then, so all new
    /// numbers are at least this.
    pub(crate) one_past_largest_number_at_start: u64,
    pub(crate) received_number_count: u64,
    pub(crate) not_increasing_number_count: u64,
    pub(crate) refused_request_count: u64,
    /// All numbers in the order of arrival, if the caller wants them.
    pub(crate) numbers_in_arrival_order: Option<Vec<u64>>,
    pub(crate) number_set: NumberSet,
    pub(crate) discarded_answer_count: u64,
    pub(crate) wrong_guess_count: u64,
}

impl LaneResults {
    /// Counts a number. `floor` is one more than the largest number at the time of the request; a smaller number is an
    /// error.
    #[inline]
    fn record_number(&mut self, n: u64, floor: u64) {
        self.not_increasing_number_count += u64::from(n < floor);
        self.one_past_largest_number = self.one_past_largest_number.max(n + 1);
        self.received_number_count += 1;
        self.number_set.insert(n);
        if let Some(all) = &mut self.numbers_in_arrival_order {
            all.push(n);
        }
    }
}

pub(crate) trait Lane {
    /// Returns the number of requests that may be sent now.
    fn room_in_window(&self) -> usize;
    /// Returns the number of unanswered requests.
    fn unanswered_requests(&self) -> usize;
    /// Sends `count` requests with one doorbell; `above` is [`LaneResults::one_past_largest_number`].
    fn send(&mut self, count: usize, above: u64) -> Result<(), RpcError>;
    /// Returns true if this session can give no more numbers, although nothing failed.
    fn needs_new_session(&self) -> bool {
        false
    }
    /// Takes answers. Returns how many requests they answer.
    fn poll(&mut self, results: &mut LaneResults) -> Result<usize, RpcError>;
    /// Returns true if [`poll`](Self::poll) only polls one completion queue while no answer arrives.
    fn polls_only_cq(&self) -> bool {
        true
    }
}

/// The network interface of [`SpecLane`]. Tests implement a network that loses, duplicates and reorders.
pub(crate) trait DatagramNetwork {
    /// Sends `count` header-only requests with this immediate.
    fn send(&mut self, count: usize, guess: u32) -> Result<(), RpcError>;
    /// Takes answers.
    fn poll(&mut self, each: impl FnMut(SpecAnswer)) -> Result<(), RpcError>;
}

/// A decoded answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpecAnswer {
    /// A header-only answer with the lower half.
    LowerHalf(u32),
    /// The full number, or [`USED_UP_ANSWER`].
    FullNumber(u64),
    /// An answer of any other form.
    Unknown,
}

impl DatagramNetwork for datagram::Client {
    #[inline]
    fn send(&mut self, count: usize, guess: u32) -> Result<(), RpcError> {
        self.send_header_only_requests(count, guess)
    }

    #[inline]
    fn poll(&mut self, mut each: impl FnMut(SpecAnswer)) -> Result<(), RpcError> {
        self.poll(|answer| {
            each(match answer.payload_len {
                0 => SpecAnswer::LowerHalf(answer.imm),
                _ => answer
                    .u64_le()
                    .map_or(SpecAnswer::Unknown, SpecAnswer::FullNumber),
            });
        })?;
        Ok(())
    }
}

/// The lane of `spec-s0`: header-only messages in both directions.
#[derive(Debug)]
pub(crate) struct SpecLane<D = datagram::Client> {
    client: D,
    window: usize,
    guessed_upper_half: u32,
    is_guess_wrong: bool,
    unanswered_requests: usize,
    /// True if answers arrive in the order of their numbers.
    answers_in_order: bool,
}

impl<D> SpecLane<D> {
    pub(crate) fn new(client: D, (window, ordered): (usize, bool), next: u64) -> Self {
        Self {
            client,
            window,
            answers_in_order: ordered,
            guessed_upper_half: upper_half(next),
            is_guess_wrong: false,
            unanswered_requests: 0,
        }
    }
}

fn upper_half(n: u64) -> u32 {
    (n >> 32) as u32
}

impl<D: DatagramNetwork> Lane for SpecLane<D> {
    #[inline]
    fn room_in_window(&self) -> usize {
        // Rule 4.
        if self.is_guess_wrong {
            0
        } else {
            self.window - self.unanswered_requests
        }
    }

    #[inline]
    fn unanswered_requests(&self) -> usize {
        self.unanswered_requests
    }

    #[inline]
    fn needs_new_session(&self) -> bool {
        self.is_guess_wrong && self.unanswered_requests == 0
    }

    #[inline]
    fn send(&mut self, count: usize, _: u64) -> Result<(), RpcError> {
        self.client.send(count, self.guessed_upper_half)?;
        self.unanswered_requests += count;
        Ok(())
    }

    #[inline]
    fn poll(&mut self, results: &mut LaneResults) -> Result<usize, RpcError> {
        let Self {
            client,
            guessed_upper_half: guess,
            is_guess_wrong: wrong,
            unanswered_requests: outstanding,
            answers_in_order: ordered,
            ..
        } = self;
        let before = *outstanding;
        client.poll(|answer| {
            let n = match answer {
                SpecAnswer::LowerHalf(lower) => u64::from(*guess) << 32 | u64::from(lower),
                SpecAnswer::FullNumber(USED_UP_ANSWER) => {
                    results.refused_request_count += 1;
                    *outstanding = outstanding.saturating_sub(1);
                    return;
                }
                SpecAnswer::FullNumber(n) => n,
                SpecAnswer::Unknown => {
                    results.discarded_answer_count += 1;
                    return;
                }
            };
            // Rule 3.
            let late = n < results.one_past_largest_number
                && (*ordered
                    || n < results.one_past_largest_number_at_start
                    || results.number_set.contains(n));
            if late || *outstanding == 0 {
                results.discarded_answer_count += 1;
                return;
            }
            *outstanding -= 1;
            if let SpecAnswer::FullNumber(_) = answer {
                results.wrong_guess_count += 1;
                *wrong = true;
            }
            // The answered request is not known: without an order, any number is permitted.
            results.record_number(
                n,
                if *ordered {
                    results.one_past_largest_number
                } else {
                    0
                },
            );
        })?;
        Ok(before - self.unanswered_requests)
    }
}

/// The lane of the HERD designs. Answers carry the number of their request, so they may overtake each other.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RpcLane {
    window: usize,
    pending: Box<[Pending]>,
    unanswered_requests: usize,
    /// The oldest unanswered request; its slot must not be reused yet.
    oldest_unanswered_number: u32,
    client: herd::Client,
}

#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    request_number: u32,
    is_outstanding: bool,
    min_valid_number: u64,
}

impl RpcLane {
    pub(crate) fn new(client: herd::Client, window: usize) -> Self {
        let slots = client.layout().slots_per_client as usize;
        Self {
            oldest_unanswered_number: client.next_request_number(),
            client,
            window: window.min(slots),
            pending: vec![Pending::default(); slots].into_boxed_slice(),
            unanswered_requests: 0,
        }
    }

    #[inline]
    fn pending_slot(&mut self, number: u32) -> &mut Pending {
        let mask = self.pending.len() - 1;
        &mut self.pending[number.wrapping_sub(1) as usize & mask]
    }
}

impl Lane for RpcLane {
    #[inline]
    fn room_in_window(&self) -> usize {
        self.window.saturating_sub(
            self.client
                .next_request_number()
                .wrapping_sub(self.oldest_unanswered_number) as usize,
        )
    }

    #[inline]
    fn unanswered_requests(&self) -> usize {
        self.unanswered_requests
    }

    #[inline]
    fn send(&mut self, count: usize, above: u64) -> Result<(), RpcError> {
        let mut number = self.client.next_request_number();
        for _ in 0..count {
            *self.pending_slot(number) = Pending {
                request_number: number,
                is_outstanding: true,
                min_valid_number: above,
            };
            number = number.wrapping_add(1);
        }
        self.client.send(count, |_| &[])?;
        self.unanswered_requests += count;
        Ok(())
    }

    #[inline]
    fn poll(&mut self, results: &mut LaneResults) -> Result<usize, RpcError> {
        let Self {
            client,
            pending,
            unanswered_requests: outstanding,
            ..
        } = self;
        let mask = pending.len() - 1;
        let before = *outstanding;
        client.poll(|answer| {
            let slot = &mut pending[answer.imm.wrapping_sub(1) as usize & mask];
            let n = match answer.u64_le() {
                Some(n) if slot.is_outstanding && slot.request_number == answer.imm => n,
                _ => {
                    results.discarded_answer_count += 1;
                    return;
                }
            };
            slot.is_outstanding = false;
            *outstanding -= 1;
            if n == USED_UP_ANSWER {
                results.refused_request_count += 1;
            } else {
                results.record_number(n, slot.min_valid_number);
            }
        })?;
        let answered = before - self.unanswered_requests;
        if answered > 0 {
            let next = self.client.next_request_number();
            while self.oldest_unanswered_number != next
                && !self
                    .pending_slot(self.oldest_unanswered_number)
                    .is_outstanding
            {
                self.oldest_unanswered_number = self.oldest_unanswered_number.wrapping_add(1);
            }
        }
        Ok(answered)
    }
}

/// The lane of `atomics`: remote fetch-and-add. Numbers at or above the limit are held back until a READ shows a higher
/// limit; numbers from `end` on are refused.
#[derive(Debug)]
pub(crate) struct AtomicsLane {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    fetch_add_postlist: Postlist<Rc>,
    read_limit_postlist: Postlist<Rc>,
    /// One word for each request of the window, and one for the limit.
    result_region: MemoryRegion,
    result_words: Box<[MrSlice]>,
    remote_counter: RemoteMemory,
    known_limit: u64,
    is_reading_limit: bool,
    end_of_numbers: u64,
    sent_request_count: u64,
    fetched_number_count: u64,
    answered_request_count: u64,
    held_back_numbers: VecDeque<u64>,
}

/// The `wr_id` of READs of the limit; the `wr_id` of atomics is the number of requests sent so far.
const LIMIT_READ_WR_ID: u64 = u64::MAX;

impl AtomicsLane {
    pub(crate) fn new(
        qp: QueuePair<Rc>,
        cq: CompletionQueue,
        results: MemoryRegion,
        window: usize,
        (counter, limit): (RemoteMemory, RemoteMemory),
        end: u64,
    ) -> Result<Self, RpcError> {
        let words: Box<[MrSlice]> = (0..window)
            .map(|i| results.slice(i * 8..i * 8 + 8))
            .collect::<Result<_, _>>()?;
        let mut read_limit = qp.postlist(1);
        read_limit
            .rdma_read(results.slice(window * 8..window * 8 + 8)?, limit)
            .signaled()
            .wr_id(LIMIT_READ_WR_ID);
        Ok(Self {
            fetch_add_postlist: qp.postlist(rpc::MAX_BATCH),
            read_limit_postlist: read_limit,
            qp,
            cq,
            result_region: results,
            result_words: words,
            remote_counter: counter,
            known_limit: 0,
            is_reading_limit: false,
            end_of_numbers: end,
            sent_request_count: 0,
            fetched_number_count: 0,
            answered_request_count: 0,
            held_back_numbers: VecDeque::with_capacity(window),
        })
    }
}

impl Lane for AtomicsLane {
    /// Returns false: `poll` also READs the limit below which numbers may be used.
    fn polls_only_cq(&self) -> bool {
        false
    }

    #[inline]
    fn room_in_window(&self) -> usize {
        self.result_words.len() - self.unanswered_requests()
    }

    #[inline]
    fn unanswered_requests(&self) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "at most the window")]
        {
            (self.sent_request_count - self.answered_request_count) as usize
        }
    }

    #[inline]
    fn send(&mut self, count: usize, _: u64) -> Result<(), RpcError> {
        self.fetch_add_postlist.clear();
        for _ in 0..count {
            #[expect(clippy::cast_possible_truncation, reason = "below the window")]
            let word = self.result_words
                [(self.sent_request_count % self.result_words.len() as u64) as usize];
            self.fetch_add_postlist
                .atomic_fetch_and_add(word, self.remote_counter, 1);
            self.sent_request_count += 1;
        }
        // Atomics complete in order, so the last completion covers all.
        self.fetch_add_postlist.set_signaled(count - 1, true);
        self.fetch_add_postlist
            .set_wr_id(count - 1, self.sent_request_count);
        Ok(self.qp.post_send(&mut self.fetch_add_postlist)?)
    }

    #[inline]
    fn poll(&mut self, results: &mut LaneResults) -> Result<usize, RpcError> {
        let before = self.answered_request_count;
        let mut buffer = WcBuffer::<16>::new();
        let window = self.result_words.len();
        for wc in self.cq.poll(&mut buffer)? {
            let wc = wc.map_err(|e| RpcError::Completion(e.status()))?;
            if wc.wr_id() == LIMIT_READ_WR_ID {
                self.known_limit = self.result_region.read_u64(window * 8)?;
                self.is_reading_limit = false;
                continue;
            }
            while self.fetched_number_count < wc.wr_id() {
                #[expect(clippy::cast_possible_truncation, reason = "below the window")]
                let slot = (self.fetched_number_count % window as u64) as usize;
                let n = self.result_region.read_u64(slot * 8)?;
                self.fetched_number_count += 1;
                if n >= self.end_of_numbers {
                    results.refused_request_count += 1;
                    self.answered_request_count += 1;
                } else if n < self.known_limit && self.held_back_numbers.is_empty() {
                    results.record_number(n, results.one_past_largest_number);
                    self.answered_request_count += 1;
                } else {
                    self.held_back_numbers.push_back(n);
                }
            }
        }
        while let Some(n) = self
            .held_back_numbers
            .pop_front_if(|n| *n < self.known_limit)
        {
            results.record_number(n, results.one_past_largest_number);
            self.answered_request_count += 1;
        }
        if !self.held_back_numbers.is_empty() && !self.is_reading_limit {
            self.qp.post_send(&mut self.read_limit_postlist)?;
            self.is_reading_limit = true;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most the window")]
        Ok((self.answered_request_count - before) as usize)
    }
}

#[cfg(test)]
mod tests;
