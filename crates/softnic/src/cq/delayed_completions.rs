//! Completions that a fault plan delays.
//!
//! Under such a plan a poll takes completions from the buffer only. Completions go to the buffer when they are due, in
//! the order in which they were made. The poll moves them, or the engine, which checks every millisecond while some are
//! late.

use std::collections::VecDeque;

use ::faults::operation_of_opcode;
use verbs_abi::*;

/// Late completions, in the order in which they were made.
#[derive(Default)]
pub(super) struct DelayedCompletions(VecDeque<DelayedCompletion>);

struct DelayedCompletion {
    due_ns: u64,
    solicited: bool,
    wc: ibv_wc,
}

impl DelayedCompletions {
    /// Adds a completion that is due at `due_ns`, or when the completions before it are, if that is later.
    pub(super) fn push(&mut self, wc: ibv_wc, solicited: bool, due_ns: u64) {
        let behind = self.0.back().map_or(0, |last| last.due_ns);
        self.0.push_back(DelayedCompletion {
            due_ns: due_ns.max(behind),
            solicited,
            wc,
        });
    }

    /// Takes the next completion that is due by `now_ns`, and whether it was solicited.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<(ibv_wc, bool)> {
        let one = self.0.pop_front_if(|one| one.due_ns <= now_ns)?;
        Some((one.wc, one.solicited))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn drop_completions_of_qp(&mut self, qpn: u32) {
        self.0.retain(|one| one.wc.qp_num != qpn);
    }
}

/// Returns the operation of a completion. (The opcode of a completion in error is not defined; 0 counts as a SEND.)
pub(super) fn fault_operation_of_wc_opcode(opcode: ibv_wc_opcode) -> &'static str {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_overtakes_another_and_those_of_a_queue_pair_are_forgotten() {
        let mut late = DelayedCompletions::default();
        for (wr_id, qp_num, due_ns) in [(1, 7, 50), (2, 8, 10), (3, 7, 60)] {
            let mut wc = ibv_wc::zeroed();
            (wc.wr_id, wc.qp_num) = (wr_id, qp_num);
            late.push(wc, wr_id == 2, due_ns);
        }
        let next = |late: &mut DelayedCompletions, now| {
            late.pop_due(now)
                .map(|(wc, solicited)| (wc.wr_id, solicited))
        };
        assert_eq!(next(&mut late, 49), None);
        assert_eq!(next(&mut late, 50), Some((1, false)));
        assert_eq!(next(&mut late, 50), Some((2, true)));
        assert_eq!(next(&mut late, 59), None);
        late.drop_completions_of_qp(7);
        assert!(late.is_empty());
    }
}
