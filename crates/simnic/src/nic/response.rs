//! Responses: acknowledgements, and the data of READs and atomics from memory to the requester's NIC.

use std::sync::atomic::Ordering;

use nicmodel::Verb;
use verbs_abi as abi;

use crate::event::SimulationEvent;
use crate::event_queue::Ps;
use crate::memory::Payload;
use crate::message::{ReadOrAtomicFields, SUCCESS_STATUS, abi_code_to_u8};
use crate::mr::Mr;
use crate::port::{NicPort, QpPortIndex};
use crate::retransmission::RetryCause;
use crate::serial_resource::{PacketTimes, SerialResource};
use crate::simulation::Simulation;

use super::departure::Departure;

impl Simulation {
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

    /// Schedules the response to a READ or atomic for the time when the data of its first packet is available. The DMA
    /// read has crossed the link to the host at `requested`, behind the data of earlier WRITEs; its data the link to the
    /// device at `moved`.
    pub(super) fn schedule_response(
        &mut self,
        id: u32,
        machine: u32,
        requested: PacketTimes,
        moved: PacketTimes,
    ) {
        let lock_bits = self.nic_parameters.atomic_lock_bits;
        let home = &mut self.machines[machine as usize];
        let (hold, pcie) = (home.costs.atomic_lock_hold, home.costs.pcie_latency);
        let message = &self.messages[id];
        let (dest, addr) = (message.responder_qp, message.remote_addr);
        let shape = self.cost_table.get(message.cost_index);
        let mut leaves = if shape.operation.verb == Verb::RdmaRead {
            let round_trip = requested.delayed_by(2 * pcie);
            moved
                .delayed_by(round_trip.first.saturating_sub(moved.first))
                .not_before_each(round_trip)
        } else {
            let locks = &mut home.atomic_locks;
            if locks.is_empty() {
                locks.resize(1 << lock_bits, SerialResource::default());
            }
            // The lock is held during the DMA read and the DMA write.
            let slot = usize::try_from(addr & ((1 << lock_bits) - 1)).unwrap_or(0);
            let released = locks[slot].reserve_time(requested.last, hold);
            moved.not_before(released)
        };
        if let Some(target) = self.qp(dest) {
            // A lock may be held for less than the latency of the link.
            leaves = leaves
                .not_before(target.last_response_at)
                .not_before(target.last_delivery_visible_at);
            target.last_response_at = leaves.last;
        }
        self.set_response_times(id, leaves);
        self.events
            .push(leaves.first, SimulationEvent::SendResponse { message: id });
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
        self.execute_unless_done(id, machine);
        let Some(Departure {
            wire_time: wire,
            packet_time,
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
        let leaves = PacketTimes {
            first: now,
            last: now + self.last_packet_delay(id),
        };
        let came = if to != from || home == machine {
            let out = self
                .port_mut(responder, from)
                .outgoing_link
                .reserve_cut_through(leaves, wire, packet_time);
            if let Some(loss) = loss {
                let seen_at = loss.loss_detection_delay;
                let seen_at = seen_at.map(|after| out.first - packet_time + after);
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
                .reserve_cut_through(out, wire, packet_time)
                .delayed_by(self.nic_parameters.network_latency + delay)
        } else {
            leaves
        };
        // Responses arrive in the order in which they left.
        let came = match self.qp(requester) {
            Some(qp) => {
                let came = came.not_before(qp.last_response_arrived_at);
                qp.last_response_arrived_at = came.last;
                came
            }
            None => came,
        };
        self.set_response_times(id, came);
        self.events
            .push(came.first, SimulationEvent::ResponseArrived { message: id });
    }

    /// Executes a READ or atomic whose response leaves. An atomic that is sent again is not executed again.
    fn execute_unless_done(&mut self, id: u32, machine: u32) {
        let message = &self.messages[id];
        let responder = message.responder_qp;
        let shape = self.cost_table.get(message.cost_index);
        let executed = shape.operation.verb.is_atomic() && !message.payload.bytes().is_empty();
        if shape.has_response_data && !executed && message.status == SUCCESS_STATUS {
            match self.execute_read_or_atomic(id, machine) {
                Ok(answer) => self.messages[id].payload = answer,
                Err(status) => {
                    self.messages[id].status = abi_code_to_u8(status);
                    self.fail_responder(responder, self.now);
                }
            }
        }
    }

    /// Returns the time from the first to the last packet of a response, where [`Self::set_response_times`] has set it.
    fn last_packet_delay(&mut self, id: u32) -> Ps {
        let fields = self.fields_of_long_response(id);
        fields.map_or(0, |fields| fields.last_packet_delay)
    }

    /// Records when the packets of a response leave or arrive, for the event of the first packet.
    fn set_response_times(&mut self, id: u32, times: PacketTimes) {
        if let Some(fields) = self.fields_of_long_response(id) {
            fields.last_packet_delay = times.last - times.first;
        }
    }

    /// Returns the fields of a READ whose response has several packets.
    fn fields_of_long_response(&mut self, id: u32) -> Option<&mut ReadOrAtomicFields> {
        let shape = self.cost_table.get(self.messages[id].cost_index);
        if shape.response_packets.count == 1 {
            return None;
        }
        self.messages.read_or_atomic_fields(id)
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
    pub(super) fn region_of_read_or_atomic(
        &self,
        id: u32,
        machine: u32,
    ) -> Result<Option<&Mr>, u32> {
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
