//! Completions of work requests, and the flush of a queue pair in error.

use nicmodel::Transport;
use verbs_abi as abi;

use crate::cq::Cqe;
use crate::event_queue::Ps;
use crate::fifo_queue::FifoQueue;
use crate::message::{SUCCESS_STATUS, abi_code_to_u8};
use crate::posted_recvs::PostedRecvs;
use crate::simulation::Simulation;

impl Simulation {
    /// Ends a work request, with a completion if it is signaled or has failed.
    pub(super) fn finish_work_request(&mut self, id: u32, status: u8, now: Ps, at: Ps) {
        let message = &self.messages[id];
        let (index, wr_id) = (message.requester_qp, message.wr_id);
        let (signaled, shape) = (message.flags.is_signaled(), message.cost_index);
        let Some(qp) = self.qp(index) else { return };
        let (machine, cq, signal_all) = (qp.machine, qp.send_cq, qp.signal_all);
        let at = at.max(qp.last_send_completion_at);
        qp.last_send_completion_at = at;
        if !signaled && !signal_all && status == SUCCESS_STATUS {
            qp.record_completions_without_cqe(1);
            return;
        }
        let completed_before = std::mem::take(&mut qp.wrs_completed_without_cqe);
        let home = &mut self.machines[machine as usize];
        let (cqe_cost, pcie) = (
            self.cost_table.cqe_write_cost(home.place),
            home.costs.pcie_latency,
        );
        let written = home
            .pcie_to_host
            .reserve_time(now, cqe_cost.link_time_to_host)
            .max(at);
        let shape = self.cost_table.get(shape);
        let (opcode, byte_len) = (shape.opcode, shape.operation.payload_bytes);
        let cqe = Cqe {
            visible_at: written + pcie,
            wr_id,
            byte_len,
            imm: 0,
            qpn: index,
            src_qp: 0,
            slid: 0,
            freed_send_queue_slots: completed_before.saturating_add(1),
            has_imm: false,
            solicited: false,
            status,
            opcode: abi_code_to_u8(completion_opcode(opcode.into())),
        };
        self.add_completion(cq, cqe);
    }

    /// Removes the messages of a queue pair that the NIC has not sent, each with its number of work requests, without
    /// those of the list on which a unit works. That list must end one WQE at a time, as the queued events expect.
    fn take_unsent_messages(&mut self, index: u32) -> Vec<(u32, u32)> {
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return Vec::new();
        };
        let nic = self.machines[qp.machine as usize].nic_index;
        qp.outstanding_reads
            .forget_all(&mut self.nics[nic as usize].qps_with_outstanding_reads);
        let keep = match qp.posted_lists.front() {
            Some(list) if qp.has_or_awaits_unit => list.len,
            _ => 0,
        };
        qp.posted_lists.split_off(usize::from(keep > 0));
        qp.lists_at_nic = qp.lists_at_nic.min(u32::from(keep > 0));
        split_after(&mut qp.unsent_messages, keep)
    }

    /// Forgets the work requests of a queue pair that is reset. Reliable messages in the network have no requester any
    /// more. Unreliable messages on which a unit works still leave.
    pub(crate) fn forget_work_requests(&mut self, index: u32) {
        let mut forgotten = self.take_unsent_messages(index);
        let Some(qp) = self.qp(index) else { return };
        qp.posted_recvs = PostedRecvs::default();
        (qp.used_send_queue_slots, qp.wrs_completed_without_cqe) = (0, 0);
        let cqs = [qp.send_cq, qp.recv_cq];
        (qp.last_processed_at, qp.last_response_arrived_at) = (0, 0);
        qp.set_first_sequence_number(qp.next_posted_sequence);
        // With it, `transmit` looks at the messages of the list on which a unit works.
        let held = qp.retransmission.replace(Box::default());
        let held = held.map_or_else(Vec::new, |mut held| held.take_all_messages());
        forgotten.extend(held.into_iter().map(|id| (id, 1)));
        let reliable = qp.transport == Transport::Rc;
        for cq in cqs {
            if let Some(Some(queue)) = self.cqs.get_mut(cq as usize) {
                queue.remove_completions_of_qp(index);
            }
        }
        for (id, times) in forgotten {
            self.messages.release_work_requests(id, times);
        }
        if reliable {
            self.messages.forget_requester(index);
        }
    }

    /// Completes all remaining work requests of a queue pair in error with a flush error.
    pub(crate) fn flush_work_requests(&mut self, index: u32) {
        let now = self.now;
        let mut rest = self.take_unsent_messages(index);
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return;
        };
        let (mut recvs, recv_cq) = (std::mem::take(&mut qp.posted_recvs), qp.recv_cq);
        let visible_at = now.max(qp.last_delivery_visible_at);
        if qp.transport == Transport::Rc {
            // Earlier messages may still be in the network.
            let retransmission = qp.retransmission.get_or_insert_default();
            for (id, _) in rest.drain(..) {
                retransmission.add_undelivered(self.messages[id].sequence_number, id);
            }
            self.flush_held_messages(index, now);
        }
        for (id, times) in rest {
            for _ in 0..times {
                self.finish_work_request(id, abi_code_to_u8(abi::IBV_WC_WR_FLUSH_ERR), now, now);
                self.messages.release_one_work_request(id);
            }
        }
        while let Some(recv) = recvs.pop() {
            let cqe = Cqe {
                visible_at,
                wr_id: recv.wr_id,
                byte_len: 0,
                imm: 0,
                qpn: index,
                src_qp: 0,
                slid: 0,
                freed_send_queue_slots: 0,
                has_imm: false,
                solicited: false,
                status: abi_code_to_u8(abi::IBV_WC_WR_FLUSH_ERR),
                opcode: abi_code_to_u8(abi::IBV_WC_RECV),
            };
            self.add_completion(recv_cq, cqe);
        }
    }
}

/// Removes and returns the WQEs after the first `keep`: messages, with their number of work requests.
fn split_after(wqes: &mut FifoQueue<(u32, u32)>, mut keep: u32) -> Vec<(u32, u32)> {
    let mut whole = 0;
    for &(_, times) in wqes.as_slice() {
        if times > keep {
            break;
        }
        keep -= times;
        whole += 1;
    }
    let mut rest = wqes.split_off(whole);
    // A message is split if only some of its work requests are kept.
    if keep > 0
        && let Some((id, times)) = rest.first_mut()
    {
        *times -= keep;
        wqes.push((*id, keep));
    }
    rest
}

/// Returns the completion opcode of a work request.
fn completion_opcode(opcode: u32) -> u32 {
    match opcode {
        abi::IBV_WR_RDMA_WRITE | abi::IBV_WR_RDMA_WRITE_WITH_IMM => abi::IBV_WC_RDMA_WRITE,
        abi::IBV_WR_RDMA_READ => abi::IBV_WC_RDMA_READ,
        abi::IBV_WR_ATOMIC_CMP_AND_SWP => abi::IBV_WC_COMP_SWAP,
        abi::IBV_WR_ATOMIC_FETCH_AND_ADD => abi::IBV_WC_FETCH_ADD,
        _ => abi::IBV_WC_SEND,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_behind_is_taken_out_of_the_middle_of_a_message_too() {
        let messages = [(7, 2), (8, 3), (9, 1)];
        let each = |messages: &[(u32, u32)]| {
            let times = messages.iter();
            let ids = times.flat_map(|&(id, times)| std::iter::repeat_n(id, times as usize));
            ids.collect::<Vec<_>>()
        };
        for keep in 0..8 {
            let mut wqes = FifoQueue::default();
            messages.iter().for_each(|&message| wqes.push(message));
            let rest = split_after(&mut wqes, keep);
            let (kept, taken) = (each(wqes.as_slice()), each(&rest));
            assert_eq!(kept.len(), 6.min(keep as usize));
            assert_eq!([kept, taken].concat(), each(&messages));
        }
    }
}
