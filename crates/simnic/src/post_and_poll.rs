//! The core's side of the data path: posting and polling, and their costs.

use nicmodel::{Transport, Verb};
use verbs_abi as abi;

use crate::costs::{CostTable, OperationCostKey};
use crate::cq::Cqe;
use crate::event::SimulationEvent;
use crate::event_queue::Ps;
use crate::machine::lid_of_machine;
use crate::memory::Payload;
use crate::message::{
    InFlightMessage, MessageFlags, NO_READ_OR_ATOMIC_FIELDS, ReadOrAtomicFields, SUCCESS_STATUS,
};
use crate::posted_recvs::RecvList;
use crate::prefetch::prefetch;
use crate::qp::{PostedWqes, WorkRequestKind};
use crate::retransmission::SequenceNumber;
use crate::simulation::Simulation;

/// A send work request in plain values, as read by the ABI layer.
pub(crate) struct SendRequest<'a> {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    /// Immediate, big-endian as in the work request.
    pub(crate) imm: u32,
    pub(crate) dest_qpn: u32,
    /// Q_Key of a datagram, or R_Key.
    pub(crate) qkey_or_rkey: u32,
    pub(crate) remote_addr: u64,
    /// Operands of an atomic.
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) sges: &'a [abi::ibv_sge],
}

/// A work request for a datagram without payload.
pub(crate) struct EmptyDatagram {
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) wr_id: u64,
    pub(crate) imm: u32,
    pub(crate) dest_qpn: u32,
    pub(crate) qkey: u32,
}

/// Largest number of scatter/gather elements in a work request.
pub(crate) const MAX_SGE: usize = 4;
/// Largest number of those of a READ: the NIC writes its data to one buffer.
pub(crate) const MAX_READ_SGE: u32 = 1;

/// A list of WQEs that are posted together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Postlist {
    len: u32,
    /// Number of further WQEs that fit into the send queue.
    pub(crate) free_send_queue_slots: u32,
    /// Shape of the first WQE.
    first_cost_index: u16,
    /// True if another WQE has a different size.
    has_mixed_sizes: bool,
    /// Last message of the list, if it is a datagram without payload; `flags`: its flags.
    last_empty_datagram: Option<u32>,
    last_empty_datagram_flags: u32,
}

impl Postlist {
    /// Takes the size of the next WQE into account.
    #[inline(always)]
    fn add_wqe_size(&mut self, cost_index: u16, costs: &CostTable) {
        if self.len == 0 {
            self.first_cost_index = cost_index;
        } else if cost_index != self.first_cost_index {
            let bytes = |index| costs.get(index).send_queue_slot_bytes;
            self.has_mixed_sizes |= bytes(cost_index) != bytes(self.first_cost_index);
        }
    }
}

impl Simulation {
    /// Returns an empty list for a queue pair in RTS or in error; otherwise an errno.
    #[inline(always)]
    pub(crate) fn begin_postlist(&self, index: u32) -> Result<Postlist, i32> {
        let Some(Some(qp)) = self.qps.get(index as usize) else {
            return Err(libc::EINVAL);
        };
        match qp.state {
            abi::IBV_QPS_RTS | abi::IBV_QPS_ERR => Ok(Postlist {
                free_send_queue_slots: qp.cap.max_send_wr.saturating_sub(qp.used_send_queue_slots),
                ..Postlist::default()
            }),
            _ => Err(libc::EINVAL),
        }
    }

    /// Appends a datagram without payload to the list, and returns true, if the queue pair has posted one with the same
    /// opcode and flags before. A datagram equal to the one in front of it shares its message.
    #[inline(always)]
    pub(crate) fn append_repeated_datagram(
        &mut self,
        index: u32,
        list: &mut Postlist,
        datagram: &EmptyDatagram,
    ) -> bool {
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return false;
        };
        let shape = match qp.last_empty_datagram {
            Some((opcode, flags, shape))
                if opcode == datagram.opcode && flags == datagram.flags =>
            {
                shape
            }
            _ => return false,
        };
        let (wr_id, imm) = (datagram.wr_id, datagram.imm);
        let (dest, key) = (datagram.dest_qpn, datagram.qkey);
        if let Some(last) = list.last_empty_datagram
            && let before = &mut self.messages[last]
            && before.wr_id == wr_id
            && before.imm == imm
            && before.responder_qp == dest
            && before.qkey_or_rkey == key
            && before.cost_index == shape
            && list.last_empty_datagram_flags == datagram.flags
            && let Some((_, times)) = qp.unsent_messages.back_mut()
        {
            *times += 1;
            before.work_request_count += 1;
        } else {
            let message = self.messages.put(InFlightMessage {
                requester_qp: index,
                responder_qp: dest,
                requester_lid: lid_of_machine(qp.machine),
                sequence_number: SequenceNumber::default(),
                imm,
                qkey_or_rkey: key,
                remote_addr: 0,
                wr_id,
                payload: Payload::EMPTY,
                cost_index: shape,
                status: SUCCESS_STATUS,
                flags: MessageFlags::from_send_flags(datagram.flags),
                read_or_atomic_fields_index: NO_READ_OR_ATOMIC_FIELDS,
                work_request_count: 1,
            });
            qp.unsent_messages.push((message, 1));
            list.add_wqe_size(shape, &self.cost_table);
            list.last_empty_datagram = Some(message);
            list.last_empty_datagram_flags = datagram.flags;
        }
        list.len += 1;
        list.free_send_queue_slots -= 1;
        true
    }

    /// Appends the message of a send work request to the list, or returns the errno of its refusal.
    #[inline(always)]
    pub(crate) fn append_work_request(
        &mut self,
        index: u32,
        list: &mut Postlist,
        request: &SendRequest<'_>,
        inlined: impl FnOnce(usize) -> Option<Payload>,
    ) -> Result<(), i32> {
        if request.flags & abi::IBV_SEND_FENCE != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let length = match request.sges {
            [sge] => u64::from(sge.length),
            sges => sges.iter().map(|sge| u64::from(sge.length)).sum(),
        };
        let kind = WorkRequestKind {
            opcode: request.opcode,
            inline: request.flags & abi::IBV_SEND_INLINE != 0,
            num_sge: u8::try_from(request.sges.len()).unwrap_or(u8::MAX),
            payload_bytes: length,
        };
        let Some(Some(qp)) = self.qps.get(index as usize) else {
            return Err(libc::EINVAL);
        };
        let home = qp.machine;
        // Fetches the destination's cache line, which is needed when the message leaves.
        let dest = match qp.transport {
            Transport::Ud => request.dest_qpn,
            _ => qp.remote_qpn,
        };
        if let Some(Some(target)) = self.qps.get(dest as usize) {
            prefetch(&raw const **target);
        }
        let id = match qp.last_posted_kind_and_cost {
            Some((last, shape)) if last == kind => shape,
            _ => self.find_or_add_cost_index(index, kind)?,
        };
        let shape = self.cost_table.get(id);
        let payload = if kind.payload_bytes == 0 {
            Payload::EMPTY
        } else if kind.inline {
            usize::try_from(kind.payload_bytes)
                .ok()
                .and_then(inlined)
                .ok_or(libc::EINVAL)?
        } else if shape.fetches_payload {
            self.read_payload(home, request.sges, kind.payload_bytes)?
        } else {
            Payload::EMPTY
        };
        let answer = if shape.has_response_data && !kind.inline {
            self.put_read_or_atomic_fields(id, (index, home), request)?
        } else {
            NO_READ_OR_ATOMIC_FIELDS
        };
        let shape = self.cost_table.get(id);
        list.add_wqe_size(id, &self.cost_table);
        let empty_datagram = shape.is_datagram_send && kind.num_sge == 0;
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return Err(libc::EINVAL);
        };
        let message = self.messages.put(InFlightMessage {
            requester_qp: index,
            responder_qp: request.dest_qpn,
            requester_lid: lid_of_machine(home),
            sequence_number: qp.next_posted_sequence.take_next(),
            imm: request.imm,
            qkey_or_rkey: request.qkey_or_rkey,
            remote_addr: request.remote_addr,
            wr_id: request.wr_id,
            payload,
            cost_index: id,
            status: SUCCESS_STATUS,
            flags: MessageFlags::from_send_flags(request.flags),
            read_or_atomic_fields_index: answer,
            work_request_count: 1,
        });
        qp.unsent_messages.push((message, 1));
        if empty_datagram {
            qp.last_empty_datagram = Some((request.opcode, request.flags, id));
        }
        (list.last_empty_datagram, list.last_empty_datagram_flags) =
            (empty_datagram.then_some(message), request.flags);
        list.len += 1;
        list.free_send_queue_slots -= 1;
        Ok(())
    }

    /// Stores the fields of a READ or atomic that its response needs; returns their index.
    fn put_read_or_atomic_fields(
        &mut self,
        shape: u16,
        (index, home): (u32, u32),
        request: &SendRequest<'_>,
    ) -> Result<u32, i32> {
        let verb = self.cost_table.get(shape).operation.verb;
        if verb.is_atomic() && !request.remote_addr.is_multiple_of(8) {
            return Err(libc::EINVAL);
        }
        let local = request.sges.first();
        let nic = self.machines[home as usize].nic_index;
        let reading = &mut self.nics[nic as usize].qps_with_outstanding_reads;
        let cache_slot = match &mut self.qps[index as usize] {
            Some(qp) if verb == Verb::RdmaRead => Some(qp.outstanding_reads.record_read(reading)),
            _ => None,
        };
        let answer = ReadOrAtomicFields {
            compare_add: request.compare_add,
            swap: request.swap,
            local_addr: local.map_or(0, |sge| sge.addr),
            local_lkey: local.map_or(0, |sge| sge.lkey),
            read_sequence: cache_slot,
            last_packet_delay: 0,
        };
        Ok(self.messages.put_read_or_atomic_fields(answer))
    }

    /// Returns the shape of work requests of this kind, or the errno of their refusal.
    #[cold]
    #[inline(never)]
    fn find_or_add_cost_index(&mut self, index: u32, kind: WorkRequestKind) -> Result<u16, i32> {
        let qp = self.qp(index).ok_or(libc::EINVAL)?;
        let (transport, cap) = (qp.transport, qp.cap);
        let (verb, imm) = verb_and_has_imm(kind.opcode).ok_or(libc::EINVAL)?;
        let length = u32::try_from(kind.payload_bytes).map_err(|_| libc::EINVAL)?;
        let num_sge = u32::from(kind.num_sge);
        if kind.inline && length > cap.max_inline_data {
            return Err(libc::ENOMEM);
        }
        if num_sge > cap.max_send_sge && !kind.inline {
            return Err(libc::EINVAL);
        }
        if num_sge > MAX_READ_SGE && !verb.carries_payload_in_request() {
            return Err(libc::EINVAL);
        }
        if verb.is_atomic() && (length != 8 || !self.nic_parameters.has_atomics) {
            return Err(libc::EINVAL);
        }
        let key = OperationCostKey {
            verb,
            transport,
            payload_bytes: length,
            // An empty payload counts as not inline: the NIC has nothing to fetch.
            inline: kind.inline && length > 0,
            has_imm: imm,
            num_sge: num_sge.max(1),
        };
        let shape = self
            .cost_table
            .find_or_add(key, kind.opcode)
            .ok_or(libc::EINVAL)?;
        if let Some(qp) = self.qp(index) {
            qp.last_posted_kind_and_cost = Some((kind, shape));
        }
        Ok(shape)
    }

    /// Reads the payload of a work request that is not inline. Reading it at once is correct, since programs must not
    /// change the buffer before the completion.
    fn read_payload(
        &self,
        machine: u32,
        sges: &[abi::ibv_sge],
        length: u64,
    ) -> Result<Payload, i32> {
        let fill = |into: &mut [u8]| {
            let mut rest = into;
            for sge in sges {
                let (part, after) = rest.split_at_mut(sge.length as usize);
                let mr = self.mr(machine, sge.lkey);
                if !mr.is_some_and(|mr| mr.region.read(sge.addr, part)) {
                    return false;
                }
                rest = after;
            }
            true
        };
        let length = usize::try_from(length).map_err(|_| libc::EINVAL)?;
        Payload::filled_by(length, fill).ok_or(libc::EINVAL)
    }

    /// Posts a list of WQEs to the NIC.
    #[inline(always)]
    pub(crate) fn post_postlist(&mut self, index: u32, list: Postlist) {
        let Postlist {
            len,
            first_cost_index: shape,
            has_mixed_sizes,
            ..
        } = list;
        if len == 0 {
            return;
        }
        let rung = len > 1;
        let Some(qp) = self.qp(index) else { return };
        qp.used_send_queue_slots += len;
        // The NIC needs this part of the queue pair when the list arrives.
        prefetch(&raw const qp.last_send_completion_at);
        let machine = qp.machine;
        qp.posted_lists.push(PostedWqes {
            len,
            by_doorbell: rung,
            has_mixed_sizes,
            cost_index: shape,
        });
        if qp.state == abi::IBV_QPS_ERR {
            self.flush_work_requests(index);
            return;
        }
        self.advance_clock(self.current_core_and_memory_costs().post_wqe * u64::from(len));
        let place = self.machines[machine as usize].place;
        let (writes, link) = if rung {
            (1, self.cost_table.doorbell_cost(place))
        } else {
            let shape = self.cost_table.get(shape);
            (shape.wqe_cache_lines, shape.transfers_at(place).wqe_by_mmio)
        };
        let (now, clock) = (self.now, self.clock());
        let from = &mut self.machines[machine as usize];
        let nic = &mut self.nics[from.nic_index as usize];
        let pcie = from.costs.pcie_latency;
        // The MMIO write stalls the core while earlier writes are in flight. Completions of DMA reads share the link:
        // they delay the write by their time, but a burst of them does not block it.
        let left = from
            .mmio_write_timetable
            .reserve_time(now, clock, link.link_time_to_device);
        let (wait, arrived) = (left - link.link_time_to_device - clock, left + pcie);
        from.pcie_to_device
            .reserve_without_waiting(clock, link.link_time_to_device);
        from.pcie_to_host
            .reserve_without_waiting(clock, link.link_time_to_host);
        if rung {
            nic.counters.doorbells += 1;
        } else {
            nic.counters.wqes_by_mmio += 1;
        }
        self.advance_clock(self.current_core_and_memory_costs().mmio_write * writes + wait);
        self.events
            .push(arrived, SimulationEvent::PostlistArrived { qp: index });
        self.apply_due_writes();
    }

    /// Posts the RECVs of the list. At the first RECV that cannot be posted it stops and returns that RECV's errno.
    #[inline(always)]
    pub(crate) fn post_recvs(&mut self, index: u32, recvs: impl RecvList<i32>) -> Result<(), i32> {
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return Err(libc::EINVAL);
        };
        if qp.state == abi::IBV_QPS_RESET {
            return Err(libc::EINVAL);
        }
        let (most, before) = (qp.cap.max_recv_wr as usize, qp.posted_recvs.len());
        let result = qp.posted_recvs.extend(recvs, most, libc::ENOMEM);
        let posted = (qp.posted_recvs.len() - before) as u64;
        let in_error = qp.state == abi::IBV_QPS_ERR;
        self.advance_clock(self.current_core_and_memory_costs().post_recv * posted);
        if in_error {
            self.flush_work_requests(index);
        }
        self.apply_due_writes();
        // A queue pair with a shared receive queue has no room for RECVs of its own.
        result.map_err(|errno| if most == 0 { libc::EINVAL } else { errno })
    }

    /// Posts the RECVs of the list to a shared receive queue. At the first RECV that cannot be posted it stops and
    /// returns that RECV's errno.
    pub(crate) fn post_shared_recvs(
        &mut self,
        index: u32,
        recvs: impl RecvList<i32>,
    ) -> Result<(), i32> {
        let Some(Some(srq)) = self.srqs.get_mut(index as usize) else {
            return Err(libc::EINVAL);
        };
        let before = srq.posted_recvs.len();
        let result = srq
            .posted_recvs
            .extend(recvs, srq.max_wr as usize, libc::ENOMEM);
        let posted = (srq.posted_recvs.len() - before) as u64;
        self.advance_clock(self.current_core_and_memory_costs().post_recv * posted);
        self.apply_due_writes();
        result
    }

    /// Polls the completions that are visible to the calling thread; `None` if the CQ has overrun.
    #[inline(always)]
    pub(crate) fn poll_cq(
        &mut self,
        cq: u32,
        most: usize,
        mut each: impl FnMut(&Cqe),
    ) -> Option<usize> {
        let clock = self.clock();
        let (queue, qps) = (self.cqs.get_mut(cq as usize)?.as_mut()?, &mut self.qps);
        if queue.wait_period_number_at_last_poll != self.current_wait_period_number
            && let Some(current) = self.current_thread
        {
            queue.record_first_poll(cq, current, &mut self.threads[current as usize]);
        }
        if queue.is_overrun {
            return None;
        }
        let mut taken = 0;
        for cqe in queue.cqes.as_slice().iter().take(most) {
            if cqe.visible_at > clock {
                break;
            }
            each(cqe);
            if cqe.freed_send_queue_slots > 0
                && let Some(Some(qp)) = qps.get_mut(cqe.qpn as usize)
            {
                let used = &mut qp.used_send_queue_slots;
                *used = used.saturating_sub(cqe.freed_send_queue_slots.into());
            }
            taken += 1;
        }
        queue.cqes.drop_front(taken);
        let cost = self.current_core_and_memory_costs().poll_time();
        self.advance_clock(cost * (taken.max(1) as u64));
        self.apply_due_writes();
        Some(taken)
    }

    /// Does the work of [`poll_cq`](Self::poll_cq) and returns true if the running thread, whose polls take
    /// `poll_time`, finds nothing in the queue. Otherwise it does nothing: a completion is visible, or events must run
    /// first. Most polls find nothing, because a client polls the queue of each of its sessions.
    #[inline(always)]
    pub(crate) fn poll_finds_nothing(&mut self, cq: u32, poll_time: Ps) -> bool {
        let clock = self.current_thread_clock;
        let Some(current) = self.current_thread else {
            return false;
        };
        let Some(Some(queue)) = self.cqs.get_mut(cq as usize) else {
            return false;
        };
        if clock > self.now + self.min_pcie_latency || queue.is_overrun {
            return false;
        }
        if let Some(first) = queue.cqes.front()
            && first.visible_at <= clock
        {
            return false;
        }
        if queue.wait_period_number_at_last_poll != self.current_wait_period_number {
            queue.record_first_poll(cq, current, &mut self.threads[current as usize]);
        }
        self.current_thread_clock = clock + poll_time;
        self.apply_due_writes();
        true
    }
}

/// Returns the verb of an opcode, and true if it has an immediate.
fn verb_and_has_imm(opcode: u32) -> Option<(Verb, bool)> {
    Some(match opcode {
        abi::IBV_WR_SEND => (Verb::Send, false),
        abi::IBV_WR_SEND_WITH_IMM => (Verb::Send, true),
        abi::IBV_WR_RDMA_WRITE => (Verb::RdmaWrite, false),
        abi::IBV_WR_RDMA_WRITE_WITH_IMM => (Verb::RdmaWrite, true),
        abi::IBV_WR_RDMA_READ => (Verb::RdmaRead, false),
        abi::IBV_WR_ATOMIC_CMP_AND_SWP => (Verb::AtomicCmpAndSwp, false),
        abi::IBV_WR_ATOMIC_FETCH_AND_ADD => (Verb::AtomicFetchAndAdd, false),
        _ => return None,
    })
}

/// Returns the transport of a queue pair type.
pub(crate) fn transport_of_qp_type(qp_type: u32) -> Option<Transport> {
    Some(match qp_type {
        abi::IBV_QPT_RC => Transport::Rc,
        abi::IBV_QPT_UC => Transport::Uc,
        abi::IBV_QPT_UD => Transport::Ud,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::time::Duration;

    use super::*;
    use crate::Cluster;
    use crate::completion_channel::Arming;
    use crate::cq::Cq;
    use crate::fifo_queue::FifoQueue;
    use crate::spend_core_time::spend_core_time;
    use crate::threads::{
        now_ns, poll_cqs_while_empty, run_due_events_if_far_ahead, suspend_while_polling_memory,
        with_simulation,
    };

    const QUEUES: [u32; 3] = [0, 1, 2];

    fn completion(visible_at: u64) -> Cqe {
        Cqe {
            freed_send_queue_slots: 0,
            visible_at,
            wr_id: 0,
            byte_len: 0,
            imm: 0,
            qpn: 0,
            src_qp: 0,
            slid: 0,
            has_imm: false,
            solicited: false,
            status: SUCCESS_STATUS,
            opcode: 0,
        }
    }

    fn add_queues() {
        let queue = || Cq {
            capacity: 16,
            is_overrun: false,
            armed_for: Arming::Disarmed,
            cqes: FifoQueue::default(),
            handle: std::ptr::null(),
            last_polling_thread: None,
            wait_period_number_at_last_poll: 0,
        };
        with_simulation(|world| world.cqs.extend(QUEUES.map(|_| Some(queue()))));
    }

    /// Returns for each completion its queue, when a thread that polls three queues in turn finds it, and the number of
    /// polls before. `skip` polls the first of the given queues in vain and returns their number.
    fn detections(skip: fn(&[u32]) -> usize) -> Vec<(u32, u64, usize)> {
        let profile = nicmodel::profile::builtin_profile("cib").expect("built in");
        let cluster = Cluster::new(profile, 1, 1).expect("it has all costs");
        add_queues();
        let times = [1_000, 6_100, 6_110, 6_400, 40_000, 40_001, 90_000];
        let found = Rc::new(RefCell::new(Vec::new()));
        let list = Rc::clone(&found);
        cluster.spawn(cluster.host_of_machine(0), "polls", move || {
            let (mut polls, mut misses) = (0, 0);
            while list.borrow().len() < times.len() {
                let (mut next, before) = (0, list.borrow().len());
                loop {
                    let vain = skip(&QUEUES[next..]);
                    (next, polls) = (next + vain, polls + vain);
                    let Some(&queue) = QUEUES.get(next) else {
                        break;
                    };
                    run_due_events_if_far_ahead();
                    if with_simulation(|world| world.poll_cq(queue, 1, |_| {})) == Some(Some(1)) {
                        let now = now_ns().expect("simulated");
                        list.borrow_mut().push((queue, now, polls));
                    }
                    (next, polls) = (next + 1, polls + 1);
                }
                misses = match list.borrow().len() > before {
                    true => 0,
                    false => suspend_while_polling_memory(misses + 1, None),
                };
            }
        });
        cluster.spawn(cluster.host_of_machine(0), "completes", move || {
            for (at, queue) in times.into_iter().zip(QUEUES.into_iter().cycle()) {
                // Runs slightly before the completion becomes visible.
                let now = Duration::from_nanos(now_ns().expect("simulated"));
                spend_core_time(Duration::from_nanos(at - 300).saturating_sub(now));
                run_due_events_if_far_ahead();
                with_simulation(|world| world.add_completion(queue, completion(at * 1000)));
            }
        });
        cluster.run_until_threads_end().expect("both end");
        drop(cluster);
        found.take()
    }

    /// Polls in vain change no result: completions are found at the same times, after as many polls.
    #[test]
    fn polls_in_vain_are_polls() {
        let polled = detections(|_| 0);
        let skipped = detections(poll_cqs_while_empty);
        assert_eq!(polled, skipped);
        assert!(
            polled.len() == 7 && polled.last().is_some_and(|last| last.2 > 20),
            "{polled:?}"
        );
        assert_eq!(poll_cqs_while_empty(&QUEUES), 0, "outside of a simulation");
    }
}
