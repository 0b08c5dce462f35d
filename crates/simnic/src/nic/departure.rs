//! How messages and responses leave a NIC if the network has faults, or if earlier messages are missing.

use std::ops::Range;

use nicmodel::Transport;
use verbs_abi as abi;

use crate::event_queue::Ps;
use crate::network_faults::{
    MessagePackets, PacketOutcome, fault_plan_name_of_response, fault_plan_name_of_verb,
};
use crate::qp::Qp;
use crate::retransmission::{Retransmission, SequenceNumber};
use crate::simulation::Simulation;

/// How a message leaves its NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    /// Number of packets that leave, and their time on the port; `packet_time`: the time of a full packet there.
    pub(super) packet_count: u32,
    pub(super) wire_time: Ps,
    pub(super) packet_time: Ps,
    /// Further time until the message arrives.
    pub(super) delay: Ps,
    pub(super) loss: Option<MessageLoss>,
}

/// A message that the responder does not receive, or that it drops.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageLoss {
    /// Time from the first bit on the port until the requester knows of the loss: a NAK arrives, or a later packet of
    /// the same response. `None` if it learns of the loss otherwise.
    pub(super) loss_detection_delay: Option<Ps>,
}

/// The packets of a message that leave a port.
struct PacketTrain {
    /// Number of packets of the whole message, and their time on the port.
    message_packet_count: u32,
    wire_time: Ps,
    /// Time of a full packet on the port.
    full_packet_time: Ps,
    /// First packet that leaves.
    first_departing_packet: u32,
}

impl PacketTrain {
    fn departing_packets(&self) -> Range<u32> {
        self.first_departing_packet..self.message_packet_count
    }

    fn packet_time(&self) -> Ps {
        (self.wire_time / u64::from(self.message_packet_count)).max(1)
    }

    /// Returns the time from the first bit to the last one of a packet.
    fn time_to_end_of(&self, packet: u32) -> Ps {
        self.packet_time() * u64::from(packet + 1 - self.first_departing_packet)
    }

    /// Returns the number of packets that leave within `time`.
    fn packets_within(&self, time: Ps) -> u32 {
        let all = self.message_packet_count - self.first_departing_packet;
        let within = u32::try_from(time.div_ceil(self.packet_time()));
        within.unwrap_or(all).min(all)
    }

    fn wire_time_of_packets(&self, packets: u32) -> Ps {
        self.wire_time * u64::from(packets) / u64::from(self.message_packet_count)
    }

    /// Returns the time of a full packet. Not more than the time of all packets that leave, whose average is shorter.
    fn full_packet_time_among(&self, packets: u32) -> Ps {
        self.full_packet_time
            .min(self.wire_time_of_packets(packets))
    }
}

impl Simulation {
    /// Returns true if a message of the queue pair may be lost, or may have to wait for earlier ones.
    #[inline(always)]
    pub(super) fn may_not_arrive(&self, qp: &Qp) -> bool {
        self.network_faults.is_some()
            || (qp.retransmission.is_some() && qp.transport == Transport::Rc)
    }

    /// Decides how a message leaves, if the network has faults or its queue pair has sent messages again. Returns
    /// `None` if the message does not leave now.
    #[cold]
    pub(super) fn decide_departure(&mut self, index: u32, id: u32, at: Ps) -> Option<Departure> {
        if self.messages[id].requester_qp != index {
            self.messages.release_one_work_request(id);
            return None;
        }
        if self.hold_unless_it_may_leave(index, id, at) {
            return None;
        }
        let message = &self.messages[id];
        let number = message.sequence_number;
        let shape = self.cost_table.get(message.cost_index);
        let reliable = shape.waits_for_responder;
        let retransmission = self.qps.get(index as usize)?.as_ref()?;
        let retransmission = retransmission.retransmission.as_deref();
        let train = PacketTrain {
            message_packet_count: shape.request_packets.count,
            wire_time: shape.request_wire_time,
            full_packet_time: shape.request_packet_wire_time(),
            // A READ has one request packet; packets of its response may have arrived.
            first_departing_packet: match retransmission {
                Some(retransmission) if !shape.has_response_data => {
                    retransmission.first_missing_packet(number)
                }
                _ => 0,
            }
            .min(shape.request_packets.count - 1),
        };
        let behind_gap =
            reliable && retransmission.is_some_and(|r| r.has_undelivered_before(number));
        let outcome = self.decide_faults_of_request(index, id, at, &train);
        let lost = outcome.first_lost_packet.filter(|_| !behind_gap);
        if let Some(lost) = lost {
            self.record_lost_request(index, number, lost, &train);
        }
        // A NAK answers the first packet that arrives behind a missing one.
        let gap_found_by = match outcome.first_lost_packet {
            first_lost if behind_gap => (first_lost != Some(train.first_departing_packet))
                .then_some(train.first_departing_packet),
            Some(lost) => Some(lost + 1).filter(|next| *next < train.message_packet_count),
            None => None,
        };
        let round_trip = 2 * self.nic_parameters.network_latency;
        let gap_found_by = gap_found_by.filter(|_| reliable);
        let nak_after = gap_found_by.map(|packet| train.time_to_end_of(packet) + round_trip);
        // The requester stops when it receives the NAK.
        let sent = train.packets_within(nak_after.unwrap_or(Ps::MAX));
        let loss = (behind_gap || lost.is_some()).then_some(MessageLoss {
            loss_detection_delay: nak_after,
        });
        if reliable && loss.is_some() {
            self.record_wasted_send(index);
        }
        Some(Departure {
            packet_count: sent,
            wire_time: train.wire_time_of_packets(sent),
            packet_time: train.full_packet_time_among(sent),
            delay: outcome.delay,
            loss,
        })
    }

    /// Returns true if the requester does not send a reliable message, and keeps the message for a retry. The requester
    /// waits for a receiver, is in error, or receives a NAK before the port is free.
    fn hold_unless_it_may_leave(&mut self, index: u32, id: u32, at: Ps) -> bool {
        let number = self.messages[id].sequence_number;
        let shape = self.cost_table.get(self.messages[id].cost_index);
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return false;
        };
        if qp.transport != Transport::Rc {
            return false;
        }
        let retransmission = qp.retransmission.as_deref();
        let waits_for_receiver = retransmission.is_some_and(Retransmission::waits_for_receiver);
        if qp.state != abi::IBV_QPS_RTS || waits_for_receiver {
            self.hold_undelivered(index, id, at, None);
            return true;
        }
        let Some(retry) = retransmission
            .filter(|retransmission| retransmission.has_undelivered_before(number))
            .and_then(Retransmission::next_retry_at)
        else {
            return false;
        };
        let home = &self.machines[qp.machine as usize];
        let left = if shape.fetches_payload {
            let fetch = &shape.transfers_at(home.place).payload_fetch;
            home.first_payload_at(at, shape.packet_time(fetch.link_time_to_device))
        } else {
            at
        };
        let ports = &mut self.nics[home.nic_index as usize].ports;
        let port = ports.get_or_assign_sending_port(&mut qp.port);
        let too_late = port.outgoing_link.next_start(left) >= retry;
        if too_late {
            self.hold_message(index, id, at, Retransmission::add_undelivered);
        }
        too_late
    }

    fn decide_faults_of_request(
        &mut self,
        index: u32,
        id: u32,
        at: Ps,
        train: &PacketTrain,
    ) -> PacketOutcome {
        let message = &self.messages[id];
        let responder = message.responder_qp;
        let shape = self.cost_table.get(message.cost_index);
        let machines = self.machine_of_qp(index).zip(self.machine_of_qp(responder));
        let machines = machines.filter(|&(from, to)| self.passes_network(from, to));
        let Some((machines, faults)) = machines.zip(self.network_faults.as_mut()) else {
            return PacketOutcome::default();
        };
        let packets = MessagePackets {
            from_and_to_machines: machines,
            from_and_to_qps: (index, responder),
            operation: fault_plan_name_of_verb(shape.operation.verb),
            packet_bytes: shape.request_packets.average_bytes,
            sent_packet_range: train.departing_packets(),
        };
        faults.decide_packet_faults(at, packets)
    }

    /// Counts a lost message, and notes which of its packets arrived, if it is sent again.
    fn record_lost_request(
        &mut self,
        index: u32,
        number: SequenceNumber,
        lost: u32,
        train: &PacketTrain,
    ) {
        let Some(Some(qp)) = self.qps.get_mut(index as usize) else {
            return;
        };
        let nic = &mut self.nics[self.machines[qp.machine as usize].nic_index as usize];
        nic.counters.lost_messages += 1;
        if qp.transport == Transport::Rc && train.message_packet_count > 1 {
            let retransmission = qp.retransmission.get_or_insert_default();
            retransmission.record_partial_arrival(number, train.departing_packets(), lost);
        }
    }

    /// Counts a wasted send of a queue pair.
    pub(super) fn record_wasted_send(&mut self, index: u32) {
        if let Some(machine) = self.machine_of_qp(index) {
            self.nic(machine).counters.wasted_sends += 1;
        }
    }

    /// Decides how the response to a message leaves the responder. Returns `None` if it does not leave, because the
    /// requester has asked for an earlier response again meanwhile.
    pub(super) fn decide_response_departure(&mut self, id: u32, now: Ps) -> Option<Departure> {
        let message = &self.messages[id];
        let (requester, responder) = (message.requester_qp, message.responder_qp);
        let number = message.sequence_number;
        let shape = self.cost_table.get(message.cost_index);
        let (packets, wire_time) = (shape.response_packets, shape.response_wire_time);
        let full_packet_time = shape.response_packet_wire_time();
        let operation = fault_plan_name_of_response(shape.operation.verb);
        let machines = self
            .machine_of_qp(responder)
            .zip(self.machine_of_qp(requester));
        let machines = machines.filter(|&(from, to)| self.passes_network(from, to));
        let Some((machines, faults)) = machines.zip(self.network_faults.as_mut()) else {
            return Some(Departure {
                packet_count: packets.count,
                wire_time,
                packet_time: full_packet_time,
                delay: 0,
                loss: None,
            });
        };
        let nic = &mut self.nics[self.machines[machines.0 as usize].nic_index as usize];
        let latency = self.nic_parameters.network_latency;
        let target = self.qps.get_mut(responder as usize)?.as_mut()?;
        let port = nic.ports.get_or_assign_sending_port(&mut target.port);
        let starts = port.outgoing_link.next_start(now);
        let qp = self.qps.get_mut(requester as usize)?.as_mut()?;
        if let Some(retransmission) = qp.retransmission.as_deref()
            && retransmission.has_unacknowledged_before(number)
            && let Some(retry) = retransmission.next_retry_at()
            && starts >= retry + latency
        {
            self.hold_message(requester, id, now, Retransmission::add_unacknowledged);
            return None;
        }
        // Only a READ has several packets in its response and one in its request.
        let retransmission = qp.retransmission.as_deref().filter(|_| packets.count > 1);
        let train = PacketTrain {
            message_packet_count: packets.count,
            wire_time,
            full_packet_time,
            first_departing_packet: retransmission
                .map_or(0, |retransmission| {
                    retransmission.first_missing_packet(number)
                })
                .min(packets.count - 1),
        };
        let outcome = faults.decide_packet_faults(
            now,
            MessagePackets {
                from_and_to_machines: machines,
                from_and_to_qps: (responder, requester),
                operation,
                packet_bytes: packets.average_bytes,
                sent_packet_range: train.departing_packets(),
            },
        );
        let loss = outcome.first_lost_packet.map(|lost| {
            nic.counters.lost_messages += 1;
            if train.message_packet_count > 1 {
                let retransmission = qp.retransmission.get_or_insert_default();
                retransmission.record_partial_arrival(number, train.departing_packets(), lost);
            }
            // The requester sees a gap when a later packet of the response arrives.
            let seen_by = Some(lost + 1).filter(|next| *next < train.message_packet_count);
            MessageLoss {
                loss_detection_delay: seen_by.map(|packet| train.time_to_end_of(packet) + latency),
            }
        });
        let left = train.message_packet_count - train.first_departing_packet;
        Some(Departure {
            packet_count: left,
            wire_time: train.wire_time_of_packets(left),
            packet_time: train.full_packet_time_among(left),
            delay: outcome.delay,
            loss,
        })
    }
}
