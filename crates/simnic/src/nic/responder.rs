//! The responder: messages from the network to memory.

use nicmodel::Transport;
use verbs_abi as abi;

use crate::costs::{OperationCosts, PcieCost};
use crate::cq::Cqe;
use crate::event::SimulationEvent;
use crate::event_queue::Ps;
use crate::memory::Payload;
use crate::message::{SUCCESS_STATUS, abi_code_to_u8};
use crate::posted_recvs::PostedRecvs;
use crate::prefetch::prefetch;
use crate::serial_resource::PacketTimes;
use crate::simulation::Simulation;
use crate::srq::pop_recv;

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
            let Some(arriving) = arriving.pop_if(|arriving| arriving.processed_at <= horizon)
            else {
                break;
            };
            // A host has the index of its NIC.
            let machine = self
                .machine_of_qp(self.messages[arriving.message].responder_qp)
                .unwrap_or(index);
            self.transfer_processed_message(machine, arriving.message, arriving.processed());
        }
        let nic = &mut self.nics[index as usize];
        let next = nic.messages_by_processed_at.front();
        nic.next_processed_at = next.map(|arriving| arriving.processed_at);
        if let Some(next) = nic.next_processed_at {
            self.events
                .push(next, SimulationEvent::MessageProcessed { nic: index });
        }
    }

    /// Does the work of `transfer_processed_message` for the most frequent messages, as long as these come first: SENDs
    /// of datagrams and unreliable WRITEs, of one packet. Returns the queue pair of a RECV that failed, and the time.
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
        while let Some(&arriving) = nic.messages_by_processed_at.front()
            && arriving.processed_at <= horizon
        {
            let (at, id) = (arriving.processed_at, arriving.message);
            // Prefetches the queue pair of the next message, and the message after that.
            let following = nic.messages_by_processed_at.as_slice();
            if let Some(next) = following.get(1)
                && let Some(Some(target)) = qps.get(messages[next.message].responder_qp as usize)
            {
                prefetch(&raw const **target);
                if let Some(Some(queue)) = cqs.get(target.recv_cq as usize) {
                    prefetch(queue.cqes.next_push_address());
                    if let Some(thread) = queue.last_polling_thread {
                        prefetch(threads.as_ptr().wrapping_add(thread as usize));
                    }
                }
            }
            if let Some(later) = following.get(2) {
                prefetch(&messages[later.message]);
            }
            let message = &messages[id];
            let shape = shapes.get(message.cost_index);
            let is_write = shape.is_rdma_write && !shape.has_imm && !shape.waits_for_responder;
            let target = match qps.get_mut(message.responder_qp as usize) {
                Some(Some(target))
                    if (is_write
                        || shape.is_datagram_send && target.transport == Transport::Ud)
                        && shape.request_packets.count == 1 =>
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

    /// Makes the DMA transfers of a message whose packets the NIC has processed at `processed`. The event of a message is
    /// at its first packet: the NIC checks the request then and writes the payload from then on. All that follows has
    /// the time of the last packet.
    #[inline(never)]
    fn transfer_processed_message(&mut self, machine: u32, id: u32, processed: PacketTimes) {
        let now = self.now;
        let PacketTimes { first, last: at } = processed;
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
        let (time_to_host, time_to_device) = (dma.link_time_to_host, dma.link_time_to_device);
        let packet_time = shape.packet_time(time_to_host);
        let written = home
            .pcie_to_host
            .reserve_cut_through(processed, time_to_host, packet_time);
        if shape.has_response_data {
            let fetch = (written, time_to_device);
            return self.fetch_data_of_response(id, machine, processed, fetch);
        }
        // The NIC also fetches WQEs of RECVs ahead, and link-layer packets use the link. Both delay the MMIO writes of
        // cores.
        home.pcie_to_device
            .reserve_without_waiting(first, time_to_device);
        home.mmio_write_timetable
            .reserve_time(now, first, time_to_device);
        let visible = written.last + home.costs.pcie_latency;
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

    /// Fetches the data of the response to a READ or atomic. `fetch`: the times at which the DMA read has crossed the link
    /// to the host, and the time of its data on the link to the device.
    #[inline(always)]
    fn fetch_data_of_response(
        &mut self,
        id: u32,
        machine: u32,
        processed: PacketTimes,
        fetch: (PacketTimes, Ps),
    ) {
        if let Err(status) = self.region_of_read_or_atomic(id, machine) {
            return self.refuse_request(id, status, processed.last);
        }
        let (requested, time) = fetch;
        let home = &mut self.machines[machine as usize];
        let nic = &mut self.nics[home.nic_index as usize];
        nic.counters.received_messages += 1;
        let message = &self.messages[id];
        let packet_time = self.cost_table.get(message.cost_index).packet_time(time);
        let moved = home
            .pcie_to_device
            .reserve_cut_through(processed, time, packet_time);
        self.expect_next_message(message.responder_qp);
        self.schedule_response(id, machine, requested, moved);
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
    pub(super) fn fail_responder(&mut self, index: u32, at: Ps) {
        let Some(machine) = self.machine_of_qp(index) else {
            return;
        };
        let visible = at + self.machine(machine).costs.pcie_latency;
        if let Some(qp) = self.qp(index) {
            qp.last_delivery_visible_at = qp.last_delivery_visible_at.max(visible);
        }
        self.enter_error_state(index);
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
        let shape = self.cost_table.get(self.messages[id].cost_index);
        let (length, placed) = (
            shape.operation.payload_bytes,
            recv_buffer_bytes_filled(shape),
        );
        let grh = if datagram { GRH_BYTES } else { 0 };
        let mut status = abi::IBV_WC_SUCCESS;
        if placed > recv.len {
            status = abi::IBV_WC_LOC_LEN_ERR;
        } else if placed > grh {
            let to = (recv.lkey, recv.addr + u64::from(grh));
            if !self.place_payload(id, machine, to, visible) {
                status = abi::IBV_WC_LOC_PROT_ERR;
            }
        }
        let message = &self.messages[id];
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
}
