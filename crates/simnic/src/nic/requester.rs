//! The requester: WQEs through processing units to the network, and responses back.

use nicmodel::Transport;
use verbs_abi as abi;

use crate::event::SimulationEvent;
use crate::event_queue::Ps;
use crate::machine::ArrivingMessage;
use crate::message::{SUCCESS_STATUS, abi_code_to_u8};
use crate::prefetch::prefetch;
use crate::qp::{PostedWqes, Qp};
use crate::serial_resource::PacketTimes;
use crate::simulation::Simulation;

use super::departure::Departure;

impl Simulation {
    /// Processes the arrival of a list of WQEs, or of its doorbell, at the NIC.
    pub(crate) fn handle_arrived_postlist(&mut self, index: u32, at: Ps) {
        let Some(qp) = self.qp(index) else { return };
        if qp.lists_at_nic as usize >= qp.posted_lists.len() {
            // The list was flushed on its way.
            return;
        }
        qp.lists_at_nic += 1;
        if !qp.has_or_awaits_unit {
            qp.has_or_awaits_unit = true;
            let machine = qp.machine;
            self.start_or_queue_for_unit(index, machine, at);
        }
    }

    fn start_or_queue_for_unit(&mut self, index: u32, machine: u32, at: Ps) {
        let units = self.nic_parameters.processing_unit_count;
        let nic = self.nic(machine);
        if nic.busy_units < units {
            nic.busy_units += 1;
            self.start_unit_on_qp(index, at);
        } else {
            nic.qps_waiting_for_unit.push(index);
        }
    }

    /// Starts a unit on the next list of a queue pair.
    fn start_unit_on_qp(&mut self, index: u32, now: Ps) {
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return;
        };
        let machine = &mut self.machines[qp.machine as usize];
        let nic = &mut self.nics[machine.nic_index as usize];
        // These fields are in another cache line and rarely needed.
        let begins = if nic.qps_with_outstanding_reads > 0 {
            qp.wqe_refetch_delay = 0;
            now.max(qp.wqe_refetches_until)
        } else {
            now
        };
        let (
            Some(&PostedWqes {
                len,
                by_doorbell: rung,
                has_mixed_sizes,
                cost_index: shape,
            }),
            Some(&(first, _)),
        ) = (qp.posted_lists.front(), qp.unsent_messages.front())
        else {
            return;
        };
        let ready = if rung {
            let fetch = if has_mixed_sizes {
                let wqes = qp.unsent_messages.as_slice().iter();
                let wqes = wqes.flat_map(|&(id, count)| std::iter::repeat_n(id, count as usize));
                let costs = wqes.map(|id| self.messages[id].cost_index);
                self.cost_table
                    .mixed_wqe_fetch_cost(costs.take(len as usize), machine.place)
            } else {
                self.cost_table.wqe_fetch_cost(shape, len, machine.place)
            };
            nic.counters.dma_read_bytes += fetch.dma_read_bytes;
            machine
                .pcie_to_host
                .reserve_without_waiting(now, fetch.link_time_to_host);
            let wait = machine.costs.wqe_fetch_wait;
            let fetched = machine
                .pcie_to_device
                .reserve_time(now, fetch.link_time_to_device)
                .max(now + wait);
            fetched.max(begins)
        } else {
            begins
        };
        let at = ready
            + self
                .cost_table
                .get(self.messages[first].cost_index)
                .requester_unit_time;
        self.events
            .push(at, SimulationEvent::SendNextWqe { qp: index });
    }

    /// Sends a WQE to the network, and those that follow within the horizon.
    #[inline(never)]
    pub(crate) fn send_due_wqes(&mut self, index: u32, at: Ps) {
        let horizon = self.lookahead_end();
        if let Some(Some(qp)) = self.qps.get_mut(index as usize)
            && self.nics[self.machines[qp.machine as usize].nic_index as usize]
                .qps_with_outstanding_reads
                > 0
            && qp.wqe_refetch_delay > 0
        {
            let at = at + std::mem::take(&mut qp.wqe_refetch_delay);
            return self
                .events
                .push(at, SimulationEvent::SendNextWqe { qp: index });
        }
        let mut next = Some(at);
        while let Some(at) = next {
            if at > horizon {
                return self
                    .events
                    .push(at, SimulationEvent::SendNextWqe { qp: index });
            }
            // The last WQE of a list needs additional work.
            let several = |qp: &mut Qp| qp.posted_lists.front().is_some_and(|list| list.len > 1);
            let run = if self.qp(index).is_some_and(several) {
                self.send_unsignaled_run(index, at, horizon)
            } else {
                None
            };
            next = match run {
                None => self.send_one_wqe(index, at),
                next => next,
            };
        }
    }

    /// Sends one WQE; returns the time at which the next WQE of its list leaves.
    fn send_one_wqe(&mut self, index: u32, at: Ps) -> Option<Ps> {
        let qp = self.qp(index)?;
        let ((message, times), list) = (
            qp.unsent_messages.front_mut()?,
            qp.posted_lists.front_mut()?,
        );
        let message = *message;
        *times -= 1;
        list.len -= 1;
        let done = list.len == 0;
        if *times == 0 {
            qp.unsent_messages.pop();
        }
        let next = qp.unsent_messages.front().map(|&(next, _)| next);
        if done {
            qp.posted_lists.pop();
            qp.lists_at_nic -= 1;
            let (more, machine) = (qp.lists_at_nic > 0, qp.machine);
            qp.has_or_awaits_unit = more;
            self.release_unit_and_requeue_if_more(index, machine, more, at);
        }
        self.transmit(index, message, at);
        let next = next.filter(|_| !done)?;
        Some(
            at + self
                .cost_table
                .get(self.messages[next].cost_index)
                .requester_unit_time,
        )
    }

    /// Sends the most frequent kind of WQEs, up to the last but one of a list: unsignaled and unreliable messages of one
    /// packet to existing queue pairs. Returns the time at which the next WQE of the list leaves, or `None` if the first one is
    /// of another kind. The function does the work of `send_one_wqe` and `transmit`, with common work done once and
    /// variables in registers.
    fn send_unsignaled_run(&mut self, index: u32, at: Ps, horizon: Ps) -> Option<Ps> {
        if self.network_faults.is_some() {
            return None;
        }
        let Self {
            qps,
            cqs,
            machines,
            nics,
            messages,
            cost_table: shapes,
            events,
            nic_parameters: costs,
            ..
        } = self;
        // Takes the queue pair out of the table, so that others can be borrowed. A message to itself is then of another
        // kind.
        let mut qp = qps.get_mut(index as usize)?.take()?;
        let mut left = qp.posted_lists.front().map_or(0, |list| list.len - 1);
        let home = qp.machine as usize;
        let (home_nic, place) = (machines[home].nic_index, machines[home].place);
        let mut port = qp.port;
        let mut link_out = nics[home_nic as usize]
            .ports
            .get_or_assign_sending_port(&mut port)
            .outgoing_link;
        qp.port = port;
        // Destination of a connected queue pair.
        let peer = (qp.transport != Transport::Ud).then_some(qp.remote_qpn);
        let (mut sent, mut next, mut fetched_bytes) = (0, at, 0);
        while left > 0
            && next <= horizon
            && let second = qp.unsent_messages.second().copied()
            && let Some((id, times)) = qp.unsent_messages.front_mut()
        {
            if let Some((second, _)) = second {
                prefetch(&messages[second]);
            }
            let id = *id;
            let message = &mut messages[id];
            let shape = shapes.get(message.cost_index);
            let dest = peer.unwrap_or(message.responder_qp);
            let target = match qps.get_mut(dest as usize) {
                Some(Some(target)) if target.transport == qp.transport && target.can_receive => {
                    target.prefetch_for_arrival(cqs);
                    target
                }
                _ => break,
            };
            if shape.waits_for_responder
                || shape.request_packets.count > 1
                || message.flags.is_signaled()
                || qp.signal_all
            {
                break;
            }
            message.responder_qp = dest;
            let nic = machines[target.machine as usize].nic_index;
            // Messages between a host and its DPU do not use the network.
            let passes_network = nic != home_nic || target.machine == qp.machine;
            let to = &mut nics[nic as usize];
            let (wire, inbound) = (shape.request_wire_time, shape.inbound_processing_time);
            let fetch = shape
                .fetches_payload
                .then(|| &shape.transfers_at(place).payload_fetch);
            // Sends all work requests that this message represents; the time after the last one belongs to the next
            // message.
            loop {
                let leaves = match fetch {
                    Some(fetch) => {
                        fetched_bytes += fetch.dma_read_bytes;
                        let packet_time = fetch.link_time_to_device;
                        machines[home].fetch_payload(next, fetch, packet_time).last
                    }
                    None => next,
                };
                // The message leaves after its port has sent all earlier messages.
                let out = if passes_network {
                    link_out.reserve_time(leaves, wire)
                } else {
                    leaves
                };
                qp.last_send_completion_at = qp.last_send_completion_at.max(out);
                let came = if passes_network {
                    let port = to.ports.get_or_assign_receiving_port(&mut target.port);
                    port.incoming_link.reserve_time(out, wire) + costs.network_latency
                } else {
                    out
                };
                let handled = to
                    .inbound_processing
                    .reserve_time(came, inbound)
                    .max(qp.last_processed_at);
                qp.last_processed_at = handled;
                to.messages_by_processed_at
                    .insert_by_time(ArrivingMessage::of_one_packet(id, handled), |arriving| {
                        arriving.processed_at
                    });
                if to.next_processed_at.is_none_or(|next| handled < next) {
                    to.next_processed_at = Some(handled);
                    events.push(handled, SimulationEvent::MessageProcessed { nic });
                }
                sent += 1;
                left -= 1;
                *times -= 1;
                if *times == 0 {
                    break;
                }
                next += shape.requester_unit_time;
                if left == 0 || next > horizon {
                    break;
                }
            }
            if *times == 0 {
                qp.unsent_messages.pop();
                let following = qp
                    .unsent_messages
                    .front()
                    .map(|&(id, _)| messages[id].cost_index);
                next += following.map_or(0, |shape| shapes.get(shape).requester_unit_time);
            }
        }
        if sent > 0 {
            qp.record_completions_without_cqe(sent);
            if let Some(list) = qp.posted_lists.front_mut() {
                list.len -= sent;
            }
            let from = &mut nics[home_nic as usize];
            from.ports
                .get_or_assign_sending_port(&mut port)
                .outgoing_link = link_out;
            from.counters.dma_read_bytes += fetched_bytes;
            from.counters.sent_messages += u64::from(sent);
        }
        qps[index as usize] = Some(qp);
        (sent > 0).then_some(next)
    }

    /// Releases the unit of a queue pair after a list; the queue pair may have further lists.
    fn release_unit_and_requeue_if_more(&mut self, index: u32, machine: u32, more: bool, at: Ps) {
        if more {
            self.nic(machine).qps_waiting_for_unit.push(index);
        }
        self.reassign_or_idle_unit(machine, at);
    }

    /// Assigns a unit to the queue pair at the front of the waiting ones, or makes the unit idle.
    pub(crate) fn reassign_or_idle_unit(&mut self, machine: u32, at: Ps) {
        match self.nic(machine).qps_waiting_for_unit.pop() {
            Some(next) => self.start_unit_on_qp(next, at),
            None => self.nic(machine).busy_units -= 1,
        }
    }

    /// Sends a message through the network to the responder's NIC.
    #[inline]
    fn transmit(&mut self, index: u32, id: u32, at: Ps) {
        let Some(Some(qp)) = self.qps.get(index as usize) else {
            return;
        };
        let (transport, peer) = (qp.transport, qp.remote_qpn);
        if transport != Transport::Ud {
            self.messages[id].responder_qp = peer;
        }
        let departure = if self.may_not_arrive(qp) {
            let Some(departure) = self.decide_departure(index, id, at) else {
                return;
            };
            Some(departure)
        } else {
            None
        };
        let Self {
            qps,
            cqs,
            machines,
            nics,
            messages,
            cost_table: shapes,
            nic_parameters: costs,
            ..
        } = self;
        let message = &messages[id];
        let shape = shapes.get(message.cost_index);
        let count = shape.request_packets.count;
        let Departure {
            packet_count: packets,
            wire_time,
            packet_time,
            delay,
            loss,
        } = departure.unwrap_or(Departure {
            packet_count: count,
            wire_time: shape.request_wire_time,
            packet_time: shape.request_packet_wire_time(),
            delay: 0,
            loss: None,
        });
        let (dest, reliable, signaled) = (
            message.responder_qp,
            shape.waits_for_responder,
            message.flags.is_signaled(),
        );
        let target = match qps.get(dest as usize) {
            Some(Some(target)) if target.transport == transport && target.can_receive => {
                target.prefetch_for_arrival(cqs);
                Some((target.machine, target.port))
            }
            _ => None,
        };
        let Some(Some(qp)) = qps.get_mut(index as usize) else {
            return;
        };
        let home = &mut machines[qp.machine as usize];
        let home_nic = home.nic_index;
        let sent = &mut nics[home_nic as usize];
        let left = if shape.fetches_payload {
            let fetch = &shape.transfers_at(home.place).payload_fetch;
            let packet_time = shape.packet_time(fetch.link_time_to_device);
            let fetch = fetch.share_for_packets(packets, count);
            sent.counters.dma_read_bytes += fetch.dma_read_bytes;
            home.fetch_payload(at, &fetch, packet_time.min(fetch.link_time_to_device))
        } else {
            PacketTimes::all_at(at)
        };
        // Messages between a host and its DPU do not use the network.
        let nic_of = |machine: u32| machines[machine as usize].nic_index;
        let to = target.map(|(target, port)| (nic_of(target), target == qp.machine, port));
        let passes_network = to.is_none_or(|(nic, itself, _)| nic != home_nic || itself);
        sent.counters.sent_messages += 1;
        let out = if passes_network {
            let port = sent.ports.get_or_assign_sending_port(&mut qp.port);
            port.outgoing_link
                .reserve_cut_through(left, wire_time, packet_time)
        } else {
            left
        };
        // An unreliable message completes when its port has sent it and all earlier messages.
        let told = !reliable && !try_complete_without_cqe(qp, signaled, out.last);
        if let Some((to, _, known_port)) = to.filter(|_| loss.is_none()) {
            let nic = &mut nics[to as usize];
            let mut port = known_port;
            let came = if passes_network {
                let link = &mut nic
                    .ports
                    .get_or_assign_receiving_port(&mut port)
                    .incoming_link;
                link.reserve_cut_through(out, wire_time, packet_time)
                    .delayed_by(costs.network_latency)
            } else {
                out
            };
            // A NIC's processing time is that of a message of one packet.
            let inbound = shape.inbound_processing_time;
            let processed = nic
                .inbound_processing
                .reserve_cut_through(came, inbound, inbound)
                .delayed_by(delay)
                .not_before(qp.last_processed_at);
            let arriving = ArrivingMessage::new(id, processed);
            let handled = arriving.processed_at;
            qp.last_processed_at = arriving.processed().last;
            nic.messages_by_processed_at
                .insert_by_time(arriving, |arriving| arriving.processed_at);
            if port != known_port
                && let Some(Some(target)) = qps.get_mut(dest as usize)
            {
                target.port = port;
            }
            let first = nic.next_processed_at.is_none_or(|next| handled < next);
            if first {
                nic.next_processed_at = Some(handled);
            }
            if told {
                self.finish_work_request(id, SUCCESS_STATUS, at, out.last);
            }
            if first {
                self.events
                    .push(handled, SimulationEvent::MessageProcessed { nic: to });
            }
            return;
        }
        if told {
            self.finish_work_request(id, SUCCESS_STATUS, at, out.last);
        }
        if reliable {
            let nak_after = loss
                .and_then(|loss| loss.loss_detection_delay)
                .filter(|_| to.is_some());
            // Between a host and its DPU, `out` has no time on the wire.
            let nak_at = nak_after.map(|after| (out.first + after).saturating_sub(packet_time));
            self.hold_undelivered(index, id, out.last, nak_at);
        } else {
            self.messages.release_one_work_request(id);
        }
    }

    /// Processes a response or acknowledgement at the requester.
    pub(crate) fn handle_response(&mut self, id: u32) {
        let answer = self
            .messages
            .read_or_atomic_fields(id)
            .copied()
            .unwrap_or_default();
        let (lkey, addr, cache_slot) = (answer.local_lkey, answer.local_addr, answer.read_sequence);
        let message = &self.messages[id];
        let index = message.requester_qp;
        let Some(home) = self.machine_of_qp(index) else {
            self.messages.release_one_work_request(id);
            return;
        };
        let now = self.now;
        if !self.accept_response(index, id, now) {
            return;
        }
        let message = &self.messages[id];
        let capacity = self.nic_parameters.read_wqe_cache_entries;
        let shape = self.cost_table.get(message.cost_index);
        let answers = shape.has_response_data;
        let machine = &mut self.machines[home as usize];
        let transfers = shape.transfers_at(machine.place);
        let (wait, pcie) = (machine.costs.wqe_refetch_wait, machine.costs.pcie_latency);
        let nic = &mut self.nics[machine.nic_index as usize];
        let mut done = now;
        let kept = match (&mut self.qps[index as usize], cache_slot, capacity) {
            (Some(qp), Some(slot), Some(capacity)) => {
                qp.outstanding_reads.record_response_and_was_cached(
                    slot,
                    &mut nic.qps_with_outstanding_reads,
                    capacity,
                )
            }
            _ => true,
        };
        if !kept {
            nic.counters.wqe_cache_misses += 1;
            let refetch = &transfers.wqe_refetch;
            nic.counters.dma_read_bytes += refetch.dma_read_bytes;
            machine
                .pcie_to_host
                .reserve_without_waiting(now, refetch.link_time_to_host);
            let fetched = machine
                .pcie_to_device
                .reserve_time(now, refetch.link_time_to_device);
            // The queue pair's unit fetches the lost WQEs one after the other, and sends nothing in the meantime.
            if let Some(Some(qp)) = self.qps.get_mut(index as usize) {
                done = fetched.max(now.max(qp.wqe_refetches_until) + wait);
                qp.wqe_refetches_until = done;
                qp.wqe_refetch_delay += wait;
            }
        }
        let message = &self.messages[id];
        if answers && message.status == SUCCESS_STATUS && !message.payload.bytes().is_empty() {
            let arrival = PacketTimes {
                first: now,
                last: now + answer.last_packet_delay,
            };
            let time = transfers.response_write.link_time_to_host;
            let written =
                machine
                    .pcie_to_host
                    .reserve_cut_through(arrival, time, shape.packet_time(time));
            done = done.max(written.last) + pcie;
            if !self.place_payload(id, home, (lkey, addr), done) {
                self.messages[id].status = abi_code_to_u8(abi::IBV_WC_LOC_PROT_ERR);
            }
        }
        if self.messages[id].status != SUCCESS_STATUS {
            self.fail_work_request(index, id, now, done);
            return;
        }
        self.finish_work_request(id, SUCCESS_STATUS, now, done);
        self.messages.release_one_work_request(id);
        self.complete_next_if_early(index, now);
    }
}

/// Completes a message without a CQE when it has left; returns false if it must have a CQE.
#[inline(always)]
fn try_complete_without_cqe(qp: &mut Qp, signaled: bool, at: Ps) -> bool {
    if signaled || qp.signal_all {
        return false;
    }
    qp.record_completions_without_cqe(1);
    qp.last_send_completion_at = qp.last_send_completion_at.max(at);
    true
}
