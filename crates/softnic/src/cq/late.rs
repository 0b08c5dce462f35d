//! Completions that a plan of faults delays.
//!
//! Under such a plan a poll takes from the buffer alone, and completions get there when their time has come, in the order
//! in which they were made: by the poll, or by the engine, which looks every millisecond while some are late.

use std::collections::VecDeque;
use std::mem::MaybeUninit;

use ::faults::{CompletionFacts, QueuePair, operation_of_opcode};
use shm::clock::now_ns;
use verbs_abi::*;

use super::{Cq, CqState, WcSink};
use crate::faults;
use crate::xrc;

/// Completions taken at once.
const AT_ONCE: usize = 64;

/// Completions that are late, in order.
#[derive(Default)]
pub(super) struct Late(VecDeque<One>);

struct One {
    due_ns: u64,
    solicited: bool,
    wc: ibv_wc,
}

impl Late {
    pub(super) fn forget(&mut self, qpn: u32) {
        self.0.retain(|one| one.wc.qp_num != qpn);
    }
}

impl Cq {
    /// [`poll`](Self::poll) under a plan of faults.
    pub(crate) fn poll_under_faults(&self, out: &mut [MaybeUninit<ibv_wc>]) -> usize {
        if !faults::delay_completions() {
            return self.poll(out);
        }
        self.nic.check_arrivals();
        if xrc::in_use() {
            xrc::progress(self.nic);
        }
        let mut state = self.state.lock();
        state.idle_polls = state.idle_polls.wrapping_add(1);
        let (added, waiting) = state.fill(usize::MAX);
        if added > 0 {
            self.report_outside_engine(&mut state);
        }
        if waiting {
            // A program that waits for an event now does not poll.
            self.nic.call_engine();
        }
        let mut sink = WcSink::new(out);
        while !sink.is_full() {
            match state.buffer.pop_front() {
                Some(wc) => sink.push(wc),
                None => break,
            }
        }
        if sink.len() == 0 && state.idle_polls.is_multiple_of(super::STARVING_POLLS) {
            state.wake_debtors();
        }
        sink.len()
    }
}

impl CqState {
    /// [`fill`](Self::fill) where completions may be late: those whose time has come go to the buffer. How many, and
    /// whether the engine is to look again at the next tick.
    #[cold]
    pub(super) fn fill_late(&mut self, room: usize) -> (usize, bool) {
        let mut out = [const { MaybeUninit::uninit() }; AT_ONCE];
        let mut sink = WcSink::new(&mut out[..room.min(AT_ONCE)]);
        let waiting = self.gather(&mut sink, usize::MAX);
        let (n, solicited) = (sink.len(), sink.solicited);
        let now = now_ns();
        for place in &out[..n] {
            // SAFETY: the sink has initialised the first `n` places.
            let wc = unsafe { place.assume_init_read() };
            let delay_ns = faults::completion(&self.facts(&wc), wc.wr_id);
            let behind = self.late.0.back().map_or(0, |last| last.due_ns);
            self.late.0.push_back(One {
                due_ns: now.saturating_add(delay_ns).max(behind),
                solicited,
                wc,
            });
        }
        let released = self.release_late(now);
        (released, waiting | !self.late.0.is_empty())
    }

    /// Puts those whose time has come by `now_ns` into the buffer. How many.
    pub(super) fn release_late(&mut self, now_ns: u64) -> usize {
        let mut released = 0;
        while let Some(one) = self.late.0.pop_front_if(|one| one.due_ns <= now_ns) {
            self.buffer.push_back(one.wc);
            self.added(1, one.solicited);
            released += 1;
        }
        released
    }

    fn facts(&self, wc: &ibv_wc) -> CompletionFacts {
        let senders = self.send.iter().map(|qp| qp.facts());
        let receivers = self.recv.iter().map(|side| side.qp().facts());
        let mut known = senders.chain(receivers);
        let queue_pair = known.find(|qp| qp.qpn == wc.qp_num);
        CompletionFacts {
            operation: operation(wc.opcode),
            queue_pair: queue_pair.unwrap_or(QueuePair {
                number: 0,
                qpn: wc.qp_num,
            }),
        }
    }
}

/// The operation of a completion. (Of one that failed, the opcode is not defined, but is 0 here: a SEND.)
fn operation(opcode: ibv_wc_opcode) -> &'static str {
    match opcode {
        opcode if opcode & IBV_WC_RECV != 0 => "RECV",
        IBV_WC_RDMA_WRITE => operation_of_opcode(IBV_WR_RDMA_WRITE),
        IBV_WC_RDMA_READ => operation_of_opcode(IBV_WR_RDMA_READ),
        IBV_WC_COMP_SWAP | IBV_WC_FETCH_ADD => operation_of_opcode(IBV_WR_ATOMIC_FETCH_AND_ADD),
        IBV_WC_BIND_MW => operation_of_opcode(IBV_WR_BIND_MW),
        IBV_WC_LOCAL_INV => operation_of_opcode(IBV_WR_LOCAL_INV),
        IBV_WC_FLUSH => operation_of_opcode(IBV_WR_FLUSH),
        IBV_WC_ATOMIC_WRITE => operation_of_opcode(IBV_WR_ATOMIC_WRITE),
        _ => operation_of_opcode(IBV_WR_SEND),
    }
}
