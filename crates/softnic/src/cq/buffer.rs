//! The buffer of a completion queue: completions that were made before the program polls.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use ::faults::CompletionFacts;
use shm::fabric::layout::*;
use verbs_abi::{IBV_WC_RECV, ibv_wc};

use super::{Cq, CqState, EngineCheckReason, WcSink, delayed_completions};
use crate::qp::Qp;
use crate::{comp_cntr, faults, send, xrc};

impl Cq {
    /// Makes progress for the engine: completions go to the buffer, as many as the queue was made for. Returns true if
    /// the engine is to check again at the next tick: a queue pair waits for a deadline, or the queue may be overrun.
    pub(crate) fn make_engine_progress(&self, look: EngineCheckReason) -> bool {
        if self.is_overrun() {
            return false;
        }
        let mut waiting = false;
        // A thread that holds the lock is polling, and makes the progress. If the queue is armed, that thread may be
        // about to sleep, so wait for the lock.
        let state = if self.armed_word().is_armed() {
            Some(self.state.lock())
        } else {
            self.state.try_lock_unless_in_steady_use()
        };
        // This case does not tell whether a deadline runs, so check again at the next tick. A queue that is polled is
        // not overrun.
        let Some(mut state) = state else {
            return look != EngineCheckReason::OverrunWatch;
        };
        self.write_lost_tokens();
        self.begin_check_and_arm_if_quiet(&mut state, look);
        let mut held_back;
        let mut found = 0;
        loop {
            let (n, deadline) = state.fill_completion_buffer(self.engine_buffer_target());
            found += n;
            waiting |= deadline;
            held_back = self.report_event_if_due(&mut state);
            let is_armed = state.armed_for != ARMED_NO || state.watch_parking.is_word_armed;
            if n == 0 && !(is_armed && self.reenable_engine_calls()) {
                break;
            }
        }
        if waiting {
            state.wake_awaited_peers();
        }
        let is_overfull = self.is_overfull(&state);
        let is_quiet = look == EngineCheckReason::OverrunWatch
            && found == 0
            && !waiting
            && !held_back
            && !is_overfull;
        self.end_check_and_park_if_quiet(&mut state, is_quiet);
        waiting | held_back | self.check_overrun(state, look)
    }

    /// Moves completions to the buffer, for a program that does not poll.
    pub(crate) fn move_completions_to_buffer(&self) {
        self.nic.process_arrivals();
        if xrc::is_xrc_in_use() {
            xrc::deliver_in_all_domains(self.nic);
        }
        self.make_engine_progress(EngineCheckReason::Called);
    }

    /// Adds a completion to the buffer, for a program that has not polled yet.
    pub(crate) fn add_to_buffer(&self, wc: ibv_wc, solicited: bool) {
        self.add_completions_to_buffer(|buffer, any_solicited| {
            buffer.push_back(wc);
            *any_solicited |= solicited;
        });
    }

    /// Adds the completion that `make` may put into a sink with one place.
    pub(crate) fn add_completion_made_by(&self, make: impl FnOnce(&mut WcSink<'_>)) {
        let mut out = [const { MaybeUninit::uninit() }; 1];
        let mut sink = WcSink::new(&mut out);
        let mut state = self.state.lock();
        make(&mut sink);
        if sink.len() == 0 || self.is_overrun() {
            return;
        }
        state.count_unreported_completions(1, sink.has_solicited_or_error);
        if comp_cntr::is_counting() {
            comp_cntr::count_new_completions(sink.added_since(0));
        }
        // SAFETY: the sink has initialised its place.
        state
            .buffered_completions
            .push_back(unsafe { out[0].assume_init_read() });
        self.report_event_outside_engine(&mut state);
    }

    /// Adds the completions that `make` puts into the buffer, under the lock. `make` tells whether one was solicited.
    pub(crate) fn add_completions_to_buffer(
        &self,
        make: impl FnOnce(&mut VecDeque<ibv_wc>, &mut bool),
    ) {
        let mut state = self.state.lock();
        let CqState {
            buffered_completions: buffer,
            unreported_has_solicited_or_error: solicited,
            ..
        } = &mut *state;
        let before = buffer.len();
        make(buffer, solicited);
        if self.is_overrun() {
            buffer.truncate(before);
        }
        let made = buffer.len() - before;
        if comp_cntr::is_counting() {
            let new: Vec<ibv_wc> = buffer.range(before..).copied().collect();
            comp_cntr::count_new_completions(&new);
        }
        state.count_unreported_completions(made, false);
        self.report_event_outside_engine(&mut state);
    }

    /// Moves completions of the messages that have arrived for `qp` to the buffer, before a flush or reset.
    pub(crate) fn complete_arrived_messages_into_buffer(&self, qp: &Qp) {
        let place = qp.index_in_recv_cq.load(Ordering::Relaxed);
        self.drain_into_buffer(|state, sink| {
            if let Some(side) = state
                .recv_sides
                .get_mut(place)
                .filter(|r| r.qp().index == qp.index)
            {
                side.complete_arrived_records(sink, usize::MAX, true);
            }
        });
    }

    /// Moves completions of the finished sends of `qp` to the buffer, before a flush.
    pub(crate) fn complete_finished_sends_into_buffer(&self, qp: &Qp) {
        self.drain_into_buffer(|_, sink| {
            qp.poll_sends(sink, true);
        });
    }

    /// Moves the completions that `gather` makes to the buffer, until it makes none.
    fn drain_into_buffer(&self, gather: impl Fn(&mut CqState, &mut WcSink<'_>)) {
        let mut state = self.state.lock();
        if self.is_overrun() {
            return;
        }
        // Late completions come first, in the order in which they were made.
        state.move_due_completions_to_buffer(u64::MAX);
        loop {
            let mut out = [const { MaybeUninit::uninit() }; 64];
            let mut sink = WcSink::for_buffer(&mut out);
            gather(&mut state, &mut sink);
            let n = sink.len();
            if n == 0 {
                break;
            }
            state.count_unreported_completions(n, sink.has_solicited_or_error);
            if comp_cntr::is_counting() {
                comp_cntr::count_new_completions(sink.added_since(0));
            }
            // SAFETY: the sink has initialised the first `n` places.
            state
                .buffered_completions
                .extend(out[..n].iter().map(|wc| unsafe { wc.assume_init_read() }));
        }
        self.report_event_outside_engine(&mut state);
    }
}

impl CqState {
    /// Moves completions from the buffer to a program that polls.
    pub(super) fn take_from_buffer(&mut self, sink: &mut WcSink<'_>) {
        while !sink.is_full() {
            let Some(wc) = self.buffered_completions.pop_front() else {
                return;
            };
            if wc.opcode < IBV_WC_RECV {
                let mut senders = self.sending_qps.iter();
                if let Some(qp) = senders.find(|qp| qp.qpn == wc.qp_num) {
                    send::free_place_of_polled_completion(qp);
                }
            }
            sink.push(wc);
        }
    }

    /// Makes completions for the buffer, at most 64 at a time and no more than `depth` allows. Returns their number,
    /// and whether a queue pair waits for a deadline.
    pub(super) fn fill_completion_buffer(&mut self, depth: usize) -> (usize, bool) {
        const COMPLETIONS_PER_BATCH: usize = 64;
        let room = depth
            .saturating_sub(self.buffered_completions.len())
            .min(COMPLETIONS_PER_BATCH);
        if room == 0 {
            return (0, false);
        }
        if faults::may_delay_completions() {
            return self.fill_with_due_completions(room, usize::MAX);
        }
        let mut out = [const { MaybeUninit::uninit() }; COMPLETIONS_PER_BATCH];
        let mut sink = WcSink::for_buffer(&mut out[..room]);
        let waiting = self.gather_completions(&mut sink, usize::MAX);
        let n = sink.len();
        self.count_unreported_completions(n, sink.has_solicited_or_error);
        if comp_cntr::is_counting() {
            comp_cntr::count_new_completions(sink.added_since(0));
        }
        // SAFETY: the sink has initialised the first `n` places.
        self.buffered_completions
            .extend(out[..n].iter().map(|wc| unsafe { wc.assume_init_read() }));
        (n, waiting)
    }

    /// [`fill_completion_buffer`](Self::fill_completion_buffer) under a fault plan that delays completions: those that
    /// are due go to the buffer. Returns their number, and whether the engine is to check again at the next tick.
    #[cold]
    pub(super) fn fill_with_due_completions(&mut self, room: usize, scan: usize) -> (usize, bool) {
        let mut out = [const { MaybeUninit::uninit() }; 64];
        let room = room.min(out.len());
        let mut sink = WcSink::for_buffer(&mut out[..room]);
        let waiting = self.gather_completions(&mut sink, scan);
        let (n, solicited) = (sink.len(), sink.has_solicited_or_error);
        let now = shm::clock::now_ns();
        for place in &out[..n] {
            // SAFETY: the sink has initialised the first `n` places.
            let wc = unsafe { place.assume_init_read() };
            let facts = CompletionFacts {
                operation: delayed_completions::fault_operation_of_wc_opcode(wc.opcode),
                queue_pair: faults::latest_queue_pair(wc.qp_num),
            };
            let delay_ns = faults::decide_completion_delay_ns(&facts, wc.wr_id);
            self.delayed_completions
                .push(wc, solicited, now.saturating_add(delay_ns));
        }
        let released = self.move_due_completions_to_buffer(now);
        (released, waiting | !self.delayed_completions.is_empty())
    }

    /// Moves completions that are due by `now_ns` to the buffer. Returns their number.
    fn move_due_completions_to_buffer(&mut self, now_ns: u64) -> usize {
        let mut released = 0;
        while let Some((wc, solicited)) = self.delayed_completions.pop_due(now_ns) {
            if comp_cntr::is_counting() {
                comp_cntr::count_new_completions(&[wc]);
            }
            self.buffered_completions.push_back(wc);
            self.count_unreported_completions(1, solicited);
            released += 1;
        }
        released
    }
}
