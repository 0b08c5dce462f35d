//! The responder: messages from the network to memory, and the responses to READs and atomics.

use std::sync::atomic::Ordering;

use nicmodel::{Transport, Verb};
use verbs_abi as abi;

use crate::costs::{OperationCosts, PcieCost};
use crate::cq::Cqe;
use crate::event::SimulationEvent;
use crate::event_queue::Ps;
use crate::memory::Payload;
use crate::message::{SUCCESS_STATUS, abi_code_to_u8};
use crate::mr::Mr;
use crate::port::{NicPort, QpPortIndex};
use crate::posted_recvs::PostedRecvs;
use crate::prefetch::prefetch;
use crate::retransmission::RetryCause;
use crate::serial_resource::SerialResource;
use crate::simulation::Simulation;
use crate::srq::pop_recv;

use super::departure::Departure;

/// Bytes of the GRH in front of the payload of a datagram (IBTA vol. 1, 11.4.1.2).
const GRH_BYTES: u32 = 40;

/// Returns the bytes of a RECV that a message fills, with the GRH of a datagram.
#[inline(always)]
fn recv_buffer_bytes_filled(shape: &OperationCosts) -> u32 {
    let length = shape.operation.payload_bytes;
    if shape.is_datagram_send {
        length.saturating_add(GRH_BYTES)
    } else if shape.is_rdma_write {
        0
    } else {
        length
    }
}

impl Simulation {
    /// Processes the first message that has arrived at a NIC, and those that follow within the horizon.
    #[inline(never)]
    pub(crate) fn handle_arrivals(&mut self, index: u32) {
        let (now, horizon) = (self.now, self.lookahead_end());
        let nic = &mut self.nics[index as usize];
        if nic.next_processed_at != Some(now) {
            // An earlier message had its own event, which replaced this one.
            return;
        }
        loop {
            if let Some((responder, at)) = self.receive_frequent_messages(index, horizon) {
                self.fail_responder(responder, at);
                continue;
            }
            let arriving = &mut self.nics[index as usize].messages_by_processed_at;
            let Some((at, id)) = arriving.pop_if(|(at, _)| *at <= horizon) else {
                break;
            };
            // A host has the index of its NIC.
            let machine = self
                .machine_of_qp(self.messages[id].responder_qp)
                .unwrap_or(index);
            self.transfer_processed_message(machine, id, at);
        }
        let nic = &mut self.nics[index as usize];
        nic.next_processed_at = nic.messages_by_processed_at.front().map(|&(at, _)| at);
        if let Some(next) = nic.next_processed_at {
            self.events
                .push(next, SimulationEvent::MessageProcessed { nic: index });
        }
    }

    /// Does the work of `transfer_processed_message` for the most frequent messages, as long as these come first: SENDs
    /// of datagrams, and unreliable WRITEs. Returns the queue pair of a RECV that failed, and the time.
    fn receive_frequent_messages(&mut self, nic: u32, horizon: Ps) -> Option<(u32, Ps)> {
        let now = self.now;
        let Self {
            qps,
            cqs,
            srqs,
            completion_channels: channels,
            mrs,
            machines,
            nics,
            messages,
            cost_table: shapes,
            threads,
            events,
            ..
        } = self;
        let nic = &mut nics[nic as usize];
        while let Some(&(at, id)) = nic.messages_by_processed_at.front()
            && at <= horizon
        {
            // Prefetches the queue pair of the next message, and the message after that.
            let following = nic.messages_by_processed_at.as_slice();
            if let Some(&(_, next)) = following.get(1)
                && let Some(Some(target)) = qps.get(messages[next].responder_qp as usize)
            {
                prefetch(&raw const **target);
                if let Some(Some(queue)) = cqs.get(target.recv_cq as usize) {
                    prefetch(queue.cqes.next_push_address());
                    if let Some(thread) = queue.last_polling_thread {
                        prefetch(threads.as_ptr().wrapping_add(thread as usize));
                    }
                }
            }
            if let Some(&(_, later)) = following.get(2) {
                prefetch(&messages[later]);
            }
            let message = &messages[id];
            let shape = shapes.get(message.cost_index);
            let is_write = shape.is_rdma_write && !shape.has_imm && !shape.waits_for_responder;
            let target = match qps.get_mut(message.responder_qp as usize) {
                Some(Some(target))
                    if is_write || shape.is_datagram_send && target.transport == Transport::Ud =>
                {
                    target
                }
                _ => return None,
            };
            nic.messages_by_processed_at.drop_front(1);
            let machine = target.machine;
            let home = &mut machines[machine as usize];
            // A message that is dropped makes no transfers.
            let (recv, dropped) = if is_write {
                let (key, addr) = (message.qkey_or_rkey, message.remote_addr);
                let length = message.payload.bytes().len();
                let access = target.qkey_or_access_flags.cast_signed();
                let region = mrs.get(key as usize).and_then(Option::as_ref);
                let wanted = abi::IBV_ACCESS_REMOTE_WRITE;
                let allowed =
                    region.is_some_and(|mr| mr.permits(machine, access, wanted, (addr, length)));
                (None, length > 0 && !allowed)
            } else if target.qkey_or_access_flags == message.qkey_or_rkey {
                let recv = pop_recv(target, srqs);
                (recv, recv.is_none())
            } else {
                (None, true)
            };
            if dropped {
                nic.counters.dropped_messages += 1;
                messages.release_one_work_request(id);
                continue;
            }
            nic.counters.received_messages += 1;
            let placed = recv_buffer_bytes_filled(shape);
            let too_long = recv.is_some_and(|recv| placed > recv.len);
            let dma = if too_long {
                shapes.cqe_write_cost(home.place)
            } else {
                shape.transfers_at(home.place).responder_dma_cost
            };
            nic.counters.dma_read_bytes += dma.dma_read_bytes;
            let written = home.pcie_to_host.reserve_time(at, dma.link_time_to_host);
            home.pcie_to_device
                .reserve_without_waiting(at, dma.link_time_to_device);
            home.mmio_write_timetable
                .reserve_time(now, at, dma.link_time_to_device);
            let visible = (written + home.costs.pcie_latency).max(target.last_delivery_visible_at);
            target.last_delivery_visible_at = visible;
            if is_write {
                let (key, addr) = (message.qkey_or_rkey, message.remote_addr);
                let payload = std::mem::replace(&mut messages[id].payload, Payload::EMPTY);
                if !payload.bytes().is_empty()
                    && let Some(Some(mr)) = mrs.get_mut(key as usize)
                {
                    mr.add_pending_write(key, home, visible, addr, payload, threads, events);
                }
                messages.release_one_work_request(id);
                continue;
            }
            let Some(recv) = recv else { continue };
            let mut status = SUCCESS_STATUS;
            if too_long {
                status = abi_code_to_u8(abi::IBV_WC_LOC_LEN_ERR);
            } else if placed > GRH_BYTES {
                let region = mrs.get(recv.lkey as usize).and_then(Option::as_ref);
                let region = region.filter(|mr| mr.machine == machine);
                let (addr, bytes) = (recv.addr + u64::from(GRH_BYTES), message.payload.bytes());
                if !region.is_some_and(|mr| mr.region.write(addr, bytes)) {
                    status = abi_code_to_u8(abi::IBV_WC_LOC_PROT_ERR);
                }
            }
            if let Some(Some(queue)) = cqs.get_mut(target.recv_cq as usize) {
                let cqe = Cqe {
                    visible_at: visible,
                    wr_id: recv.wr_id,
                    byte_len: placed,
                    imm: if shape.has_imm { message.imm } else { 0 },
                    qpn: message.responder_qp,
                    src_qp: message.requester_qp,
                    slid: message.requester_lid,
                    freed_send_queue_slots: 0,
                    has_imm: shape.has_imm,
                    solicited: message.flags.is_solicited(),
                    status,
                    opcode: const { abi_code_to_u8(abi::IBV_WC_RECV) },
                };
                if queue.push_and_wake(cqe, threads, events) {
                    channels.raise_event(target.recv_cq, queue.handle, visible, threads, events);
                }
            }
            let responder = message.responder_qp;
            messages.release_one_work_request(id);
            if status != SUCCESS_STATUS {
                return Some((responder, at));
            }
        }
        None
    }

    /// Makes the DMA transfers of a message that the NIC has processed.
    #[inline(never)]
    fn transfer_processed_message(&mut self, machine: u32, id: u32, at: Ps) {
        let now = self.now;
        let reliable = self
            .cost_table
            .get(self.messages[id].cost_index)
            .waits_for_responder;
        if reliable && !self.check_sequence_or_answer(id, machine, at) {
            return;
        }
        let dma = self.responder_dma_cost(id, machine);
        let home = &mut self.machines[machine as usize];
        let nic = &mut self.nics[home.nic_index as usize];
        let shape = self.cost_table.get(self.messages[id].cost_index);
        nic.counters.dma_read_bytes += dma.dma_read_bytes;
        let written = home.pcie_to_host.reserve_time(at, dma.link_time_to_host);
        let link_time_to_device = dma.link_time_to_device;
        if shape.has_response_data {
            if let Err(status) = self.region_of_read_or_atomic(id, machine) {
                self.refuse_request(id, status, at);
                return;
            }
            let home = &mut self.machines[machine as usize];
            let nic = &mut self.nics[home.nic_index as usize];
            nic.counters.received_messages += 1;
            let read = home.pcie_to_device.reserve_time(at, link_time_to_device);
            self.expect_next_message(self.messages[id].responder_qp);
            self.schedule_response(id, machine, written, read);
            return;
        }
        // The NIC also fetches WQEs of RECVs ahead, and link-layer packets use the link. Both delay the MMIO writes of
        // cores.
        home.pcie_to_device
            .reserve_without_waiting(at, link_time_to_device);
        home.mmio_write_timetable
            .reserve_time(now, at, link_time_to_device);
        let visible = written + home.costs.pcie_latency;
        let status = self.deliver_send_or_write(id, machine, visible);
        if !reliable {
            let responder = self.messages[id].responder_qp;
            self.messages.release_one_work_request(id);
            // A failed RECV ends its queue pair. No requester is told.
            if matches!(status, abi::IBV_WC_REM_INV_REQ_ERR | abi::IBV_WC_REM_OP_ERR) {
                self.fail_responder(responder, at);
            }
            return;
        }
        let message = &mut self.messages[id];
        message.status = abi_code_to_u8(status);
        let (requester, responder) = (message.requester_qp, message.responder_qp);
        match status {
            abi::IBV_WC_SUCCESS => self.expect_next_message(responder),
            abi::IBV_WC_RNR_RETRY_EXC_ERR => self.record_rnr_nak(requester),
            _ => return self.refuse_request(id, status, at),
        }
        self.schedule_acknowledgement(id, at);
    }

    /// Returns the cost of the DMA transfers that a message makes at its responder. A message without a RECV, or
    /// without the right key and access rights, makes none. A message that is longer than its RECV makes that of the
    /// completion.
    fn responder_dma_cost(&self, id: u32, machine: u32) -> PcieCost {
        let message = &self.messages[id];
        let shape = self.cost_table.get(message.cost_index);
        let place = self.machines[machine as usize].place;
        let (all, none) = (
            shape.transfers_at(place).responder_dma_cost,
            PcieCost::default(),
        );
        if shape.has_response_data {
            let allowed = self.region_of_read_or_atomic(id, machine).is_ok();
            return if allowed { all } else { none };
        }
        let target = self.qps.get(message.responder_qp as usize);
        let Some(target) = target.and_then(Option::as_ref) else {
            return none;
        };
        let length = message.payload.bytes().len();
        let write = shape.is_rdma_write;
        let allowed = if write && length > 0 {
            let access = target.qkey_or_access_flags.cast_signed();
            let region = self.mr(machine, message.qkey_or_rkey);
            let wanted = abi::IBV_ACCESS_REMOTE_WRITE;
            let range = (message.remote_addr, length);
            region.is_some_and(|mr| mr.permits(machine, access, wanted, range))
        } else {
            target.transport != Transport::Ud || target.qkey_or_access_flags == message.qkey_or_rkey
        };
        if !allowed {
            return none;
        }
        if write && !shape.has_imm {
            return all;
        }
        let recvs = match target.srq {
            Some(srq) => {
                let srq = self.srqs.get(srq as usize).and_then(Option::as_ref);
                srq.map(|srq| &srq.posted_recvs)
            }
            None => Some(&target.posted_recvs),
        };
        match recvs.and_then(PostedRecvs::front) {
            None => none,
            Some(recv) if recv_buffer_bytes_filled(shape) > recv.len => {
                self.cost_table.cqe_write_cost(place)
            }
            Some(_) => all,
        }
    }

    /// Answers a request with the NAK of an error. The responder of a reliable queue pair enters the error state then
    /// (IBTA vol. 1, 9.9.3), and executes no later request.
    #[cold]
    fn refuse_request(&mut self, id: u32, status: u32, at: Ps) {
        self.messages[id].status = abi_code_to_u8(status);
        self.expect_next_message(self.messages[id].responder_qp);
        self.schedule_acknowledgement(id, at);
        self.fail_responder(self.messages[id].responder_qp, at);
    }

    /// Moves the queue pair of a responder to the error state. The completions of its work requests follow
    /// those of the messages that it has received.
    #[cold]
    fn fail_responder(&mut self, index: u32, at: Ps) {
        let Some(machine) = self.machine_of_qp(index) else {
            return;
        };
        let visible = at + self.machine(machine).costs.pcie_latency;
        if let Some(qp) = self.qp(index) {
            qp.last_delivery_visible_at = qp.last_delivery_visible_at.max(visible);
        }
        self.enter_error_state(index);
    }

    /// Schedules the acknowledgement of a message. Responses keep the order of their requests, also behind the data of
    /// a READ.
    pub(super) fn schedule_acknowledgement(&mut self, id: u32, at: Ps) {
        let responder = self.messages[id].responder_qp;
        let leaves = self
            .qp(responder)
            .map_or(at, |target| target.last_response_at.max(at));
        self.events
            .push(leaves, SimulationEvent::SendResponse { message: id });
    }

    /// Records that a reliable responder has executed a message.
    fn expect_next_message(&mut self, responder: u32) {
        if let Some(target) = self.qp(responder) {
            target.expected_sequence.take_next();
        }
    }

    /// Executes a SEND or WRITE at the responder; returns the status for its requester.
    #[inline(always)]
    fn deliver_send_or_write(&mut self, id: u32, machine: u32, visible: Ps) -> u32 {
        let message = &self.messages[id];
        let shape = self.cost_table.get(message.cost_index);
        let (write, with_imm) = (shape.is_rdma_write, shape.has_imm);
        let length = message.payload.bytes().len();
        let Some(Some(target)) = self.qps.get_mut(message.responder_qp as usize) else {
            return abi::IBV_WC_RETRY_EXC_ERR;
        };
        // Messages to a queue pair keep their order.
        let visible = visible.max(target.last_delivery_visible_at);
        target.last_delivery_visible_at = visible;
        let nic = self.machines[machine as usize].nic_index;
        let counters = &mut self.nics[nic as usize].counters;
        let datagram = target.transport == Transport::Ud;
        if datagram && target.qkey_or_access_flags != message.qkey_or_rkey {
            counters.dropped_messages += 1;
            return abi::IBV_WC_SUCCESS;
        }
        // The contents and the target of a WRITE.
        let mut written = None;
        if write && length > 0 {
            let (addr, key, access) = (
                message.remote_addr,
                message.qkey_or_rkey,
                target.qkey_or_access_flags.cast_signed(),
            );
            let region = self.mrs.get_mut(key as usize).and_then(Option::as_mut);
            let wanted = abi::IBV_ACCESS_REMOTE_WRITE;
            let region = region.filter(|mr| mr.permits(machine, access, wanted, (addr, length)));
            if region.is_none() {
                counters.dropped_messages += 1;
                return abi::IBV_WC_REM_ACCESS_ERR;
            }
            written = Some((key, addr, message.payload.clone()));
        }
        let takes_recv = !write || with_imm;
        let recv = if takes_recv {
            pop_recv(target, &mut self.srqs)
        } else {
            None
        };
        let recv_cq = target.recv_cq;
        if takes_recv && recv.is_none() {
            match target.transport {
                Transport::Rc => counters.rnr_naks += 1,
                _ => counters.dropped_messages += 1,
            }
        } else {
            counters.received_messages += 1;
        }
        if let Some((key, addr, payload)) = written {
            self.add_pending_write(key, visible, addr, payload);
        }
        let Some(recv) = recv else {
            return if takes_recv {
                abi::IBV_WC_RNR_RETRY_EXC_ERR
            } else {
                abi::IBV_WC_SUCCESS
            };
        };
        let message = &self.messages[id];
        let shape = self.cost_table.get(message.cost_index);
        let (length, placed) = (
            shape.operation.payload_bytes,
            recv_buffer_bytes_filled(shape),
        );
        let grh = if datagram { GRH_BYTES } else { 0 };
        let mut status = abi::IBV_WC_SUCCESS;
        if placed > recv.len {
            status = abi::IBV_WC_LOC_LEN_ERR;
        } else if placed > grh {
            let region = self.mr(machine, recv.lkey);
            let addr = recv.addr + u64::from(grh);
            if !region.is_some_and(|mr| mr.region.write(addr, message.payload.bytes())) {
                status = abi::IBV_WC_LOC_PROT_ERR;
            }
        }
        let cqe = Cqe {
            visible_at: visible,
            wr_id: recv.wr_id,
            byte_len: if write { length } else { placed },
            imm: if with_imm { message.imm } else { 0 },
            qpn: message.responder_qp,
            src_qp: message.requester_qp,
            slid: message.requester_lid,
            freed_send_queue_slots: 0,
            has_imm: with_imm,
            solicited: message.flags.is_solicited(),
            status: abi_code_to_u8(status),
            opcode: abi_code_to_u8(if write {
                abi::IBV_WC_RECV_RDMA_WITH_IMM
            } else {
                abi::IBV_WC_RECV
            }),
        };
        self.add_completion(recv_cq, cqe);
        match status {
            abi::IBV_WC_SUCCESS => status,
            abi::IBV_WC_LOC_LEN_ERR => abi::IBV_WC_REM_INV_REQ_ERR,
            _ => abi::IBV_WC_REM_OP_ERR,
        }
    }

    /// Schedules the response to a READ or atomic for the time when its data is available. The DMA read has crossed the
    /// link to the host at `requested`, behind the data of earlier WRITEs; its data the link to the device at `moved`.
    pub(super) fn schedule_response(&mut self, id: u32, machine: u32, requested: Ps, moved: Ps) {
        let lock_bits = self.nic_parameters.atomic_lock_bits;
        let home = &mut self.machines[machine as usize];
        let (hold, pcie) = (home.costs.atomic_lock_hold, home.costs.pcie_latency);
        let message = &self.messages[id];
        let (dest, addr) = (message.responder_qp, message.remote_addr);
        let shape = self.cost_table.get(message.cost_index);
        let mut leaves = if shape.operation.verb == Verb::RdmaRead {
            moved.max(requested + 2 * pcie)
        } else {
            let locks = &mut home.atomic_locks;
            if locks.is_empty() {
                locks.resize(1 << lock_bits, SerialResource::default());
            }
            // The lock is held during the DMA read and the DMA write.
            let slot = usize::try_from(addr & ((1 << lock_bits) - 1)).unwrap_or(0);
            locks[slot].reserve_time(requested, hold).max(moved)
        };
        if let Some(target) = self.qp(dest) {
            // A lock may be held for less than the latency of the link.
            leaves = leaves.max(target.last_response_at);
            leaves = leaves.max(target.last_delivery_visible_at);
            target.last_response_at = leaves;
        }
        self.events
            .push(leaves, SimulationEvent::SendResponse { message: id });
    }

    /// Sends a response or acknowledgement to the requester.
    pub(crate) fn send_response(&mut self, id: u32) {
        let message = &self.messages[id];
        let (requester, responder) = (message.requester_qp, message.responder_qp);
        let homes = self
            .machine_of_qp(requester)
            .zip(self.machine_of_qp(responder));
        let now = self.now;
        let Some((home, machine)) = homes else {
            self.hold_unacknowledged(requester, id, now, None);
            return;
        };
        let shape = self.cost_table.get(message.cost_index);
        // An atomic that is sent again is not executed again.
        let executed = shape.operation.verb.is_atomic() && !message.payload.bytes().is_empty();
        if shape.has_response_data && !executed && message.status == SUCCESS_STATUS {
            match self.execute_read_or_atomic(id, machine) {
                Ok(answer) => self.messages[id].payload = answer,
                Err(status) => {
                    self.messages[id].status = abi_code_to_u8(status);
                    self.fail_responder(responder, now);
                }
            }
        }
        let Some(Departure {
            wire_time: wire,
            delay,
            loss,
            ..
        }) = self.decide_response_departure(id, now)
        else {
            return;
        };
        let nic_of = |machine: u32| self.machines[machine as usize].nic_index as usize;
        let (to, from) = (nic_of(home), nic_of(machine));
        // Messages between a host and its DPU do not use the network.
        let came = if to != from || home == machine {
            let out = self
                .port_mut(responder, from)
                .outgoing_link
                .reserve_time(now, wire);
            if let Some(loss) = loss {
                let seen_at = loss.loss_detection_delay.map(|after| out - wire + after);
                let retry = seen_at.map(|at| (at, RetryCause::MissingResponse));
                if self.messages[id].status == abi_code_to_u8(abi::IBV_WC_RNR_RETRY_EXC_ERR) {
                    self.hold_undelivered(requester, id, now, None);
                } else {
                    self.hold_unacknowledged(requester, id, now, retry);
                }
                return;
            }
            self.port_mut(requester, to)
                .incoming_link
                .reserve_time(out, wire)
                + self.nic_parameters.network_latency
                + delay
        } else {
            now
        };
        // Responses arrive in the order in which they left.
        let came = match self.qp(requester) {
            Some(qp) => {
                qp.last_response_arrived_at = qp.last_response_arrived_at.max(came);
                qp.last_response_arrived_at
            }
            None => came,
        };
        self.events
            .push(came, SimulationEvent::ResponseArrived { message: id });
    }

    /// Returns the port of an existing queue pair on its NIC, which its request has used before.
    fn port_mut(&mut self, index: u32, nic: usize) -> &mut NicPort {
        let ports = &mut self.nics[nic].ports;
        match self.qps.get_mut(index as usize) {
            Some(Some(qp)) => ports.get_or_assign_sending_port(&mut qp.port),
            _ => ports.get_or_assign_sending_port(&mut { QpPortIndex::UNASSIGNED }),
        }
    }

    /// Returns the region that a READ or atomic accesses, or the status of its refusal.
    fn region_of_read_or_atomic(&self, id: u32, machine: u32) -> Result<Option<&Mr>, u32> {
        let message = &self.messages[id];
        let operation = &self.cost_table.get(message.cost_index).operation;
        let length = operation.payload_bytes as usize;
        if length == 0 {
            return Ok(None);
        }
        let target = self.qps.get(message.responder_qp as usize);
        let target = target.and_then(Option::as_ref);
        let qp_access = target.map_or(0, |target| target.qkey_or_access_flags.cast_signed());
        let read = operation.verb == Verb::RdmaRead;
        let wanted = if read {
            abi::IBV_ACCESS_REMOTE_READ
        } else {
            abi::IBV_ACCESS_REMOTE_ATOMIC
        };
        let addr = message.remote_addr;
        let region = self.mr(machine, message.qkey_or_rkey);
        let region = region.filter(|mr| mr.permits(machine, qp_access, wanted, (addr, length)));
        match region {
            None => Err(abi::IBV_WC_REM_ACCESS_ERR),
            Some(mr) if !read && mr.region.atomic_word_at(addr).is_none() => {
                Err(abi::IBV_WC_REM_INV_REQ_ERR)
            }
            region => Ok(region),
        }
    }

    /// Reads or changes the responder's memory; returns the old contents, or the status of a failure.
    fn execute_read_or_atomic(&mut self, id: u32, machine: u32) -> Result<Payload, u32> {
        // Earlier WRITEs must be visible first.
        self.make_writes_visible(machine, self.now);
        let operands = self
            .messages
            .read_or_atomic_fields(id)
            .copied()
            .unwrap_or_default();
        let message = &self.messages[id];
        let addr = message.remote_addr;
        let operation = &self.cost_table.get(message.cost_index).operation;
        let (verb, length) = (operation.verb, operation.payload_bytes as usize);
        let Some(mr) = self.region_of_read_or_atomic(id, machine)? else {
            return Ok(Payload::EMPTY);
        };
        if verb == Verb::RdmaRead {
            return Payload::filled_by(length, |into| mr.region.read(addr, into))
                .ok_or(abi::IBV_WC_REM_ACCESS_ERR);
        }
        let invalid = abi::IBV_WC_REM_INV_REQ_ERR;
        let word = mr.region.atomic_word_at(addr).ok_or(invalid)?;
        let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
        let (operand, swap) = (operands.compare_add, operands.swap);
        let old = if verb == Verb::AtomicFetchAndAdd {
            word.fetch_add(operand, order)
        } else {
            let swapped = word.compare_exchange(operand, swap, order, failed);
            swapped.unwrap_or_else(|old| old)
        };
        Payload::filled_by(8, |into| {
            into.copy_from_slice(&old.to_ne_bytes());
            true
        })
        .ok_or(invalid)
    }
}
