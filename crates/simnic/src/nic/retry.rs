//! Retries of a reliable requester: messages that are lost, and messages and responses that do not count.
//!
//! A responder executes the messages of a requester in order. It drops a message if an earlier one is missing, and
//! acknowledges a message again that it has executed before. A requester sends again all messages from the first one
//! that is not acknowledged (go-back-N; IBTA vol. 1, 9.7.5 and 9.7.8). The simulation keeps what is dropped in the
//! requester's [`Retransmission`], until the requester learns of it.

use nicmodel::Transport;
use verbs_abi as abi;

use crate::event::SimulationEvent;
use crate::message::{SUCCESS_STATUS, code_u8};
use crate::network_faults::{
    MessagePackets, PacketsFate, fault_operation_of_response, fault_operation_of_verb,
};
use crate::qp::{PostedWqes, Qp};
use crate::queue::Ps;
use crate::retransmission::{Retransmission, RetryCause, SequenceNumber, insert_in_order};
use crate::world::Simulation;

/// Value of `rnr_retry` for unlimited retries, as stored in the attributes.
const UNLIMITED_RNR_RETRIES: u8 = 7;

/// How a message leaves its NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departure {
    /// Time on the port.
    pub(super) wire_time: Ps,
    /// Further time until the message arrives.
    pub(super) delay: Ps,
    pub(super) loss: Option<Loss>,
}

/// A message that the responder does not receive, or that it drops.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    /// Time from the first bit on the port until a NAK arrives; `None` if the responder sends none.
    pub(super) nak_after: Option<Ps>,
}

impl Simulation {
    /// Decides how a message leaves, if the network has faults or its queue pair has sent messages again. Returns `None`
    /// if the message does not leave now.
    #[cold]
    pub(super) fn decide_departure(&mut self, index: u32, id: u32, at: Ps) -> Option<Departure> {
        let message = &self.messages[id];
        let number = message.sequence_number;
        let shape = self.cost_table.get(message.cost_index);
        let reliable = shape.waits_for_responder;
        let (count, wire_time) = (shape.request_packets.count, shape.request_wire_time);
        let responder = message.responder_qp;
        let (operation, packet_bytes) = (
            fault_operation_of_verb(shape.operation.verb),
            shape.request_packets.average_bytes,
        );
        let latency = self.nic_parameters.network_latency;
        let target = self.machine_of_qp(responder);
        let qp = self.qps.get_mut(index as usize)?.as_deref_mut()?;
        let machine = qp.machine;
        if reliable && (qp.state != abi::IBV_QPS_RTS || waits_for_receiver(qp)) {
            self.hold_undelivered(index, id, at, None);
            return None;
        }
        let retransmission = qp.retransmission.as_deref();
        // What arrived of a READ is in its response.
        let first = if shape.has_response_data {
            0
        } else {
            first_packet_to_send(retransmission, number)
        };
        let dropped = reliable && retransmission.is_some_and(|r| r.has_undelivered_before(number));
        let retry_at = retransmission.and_then(Retransmission::next_retry_at);
        let ports = &mut self.nics[self.machines[machine as usize].nic as usize].ports;
        let port = ports.port_of_sending_qp(&mut qp.port);
        let starts = port.outgoing_link.next_start(at);
        if dropped && retry_at.is_some_and(|retry| starts >= retry) {
            // The message still waits for its port when the requester learns of the gap.
            self.hold(index, id, at, Retransmission::add_undelivered);
            return None;
        }
        let fate = match (&mut self.network_faults, target) {
            (Some(faults), Some(target)) => {
                let packets = MessagePackets {
                    machines: (machine, target),
                    qps: (index, responder),
                    operation,
                    packet_bytes,
                    packets: first..count,
                };
                faults.decide(at, packets)
            }
            _ => PacketsFate::default(),
        };
        let packet_time = (wire_time / u64::from(count)).max(1);
        // A NAK answers the first packet that arrives behind a missing one.
        let gap_found_by = match fate.first_lost {
            lost if dropped => (lost != Some(first)).then_some(first),
            Some(lost) => (lost + 1 < count).then_some(lost + 1),
            None => None,
        };
        let nak_after = gap_found_by
            .filter(|_| reliable)
            .map(|packet| packet_time * u64::from(packet + 1 - first) + 2 * latency);
        if let Some(lost) = fate.first_lost.filter(|_| !dropped) {
            self.nic(machine).counters.lost_messages += 1;
            if reliable
                && count > 1
                && let Some(qp) = self.qp(index)
            {
                let retransmission = qp.retransmission.get_or_insert_default();
                retransmission.partly_arrived = Some((number, lost));
                if lost > first {
                    retransmission.record_progress();
                }
            }
        }
        // The requester stops when it receives the NAK.
        let packets = count - first;
        let until_nak = nak_after.map(|nak| nak.div_ceil(packet_time));
        let sent = until_nak.map_or(packets, |nak| {
            u32::try_from(nak).unwrap_or(packets).min(packets)
        });
        let loss = (dropped || fate.first_lost.is_some()).then_some(Loss { nak_after });
        if reliable && loss.is_some() {
            let arrived = fate
                .first_lost
                .filter(|_| !dropped)
                .map_or(0, |lost| lost - first);
            self.record_wasted_send(index, id, at, sent.saturating_sub(arrived));
        }
        Some(Departure {
            wire_time: wire_time * u64::from(sent) / u64::from(count),
            delay: fate.delay,
            loss,
        })
    }

    /// Counts a message that was sent in vain. Charges the PCIe link for fetching `packets` packets of its payload again.
    fn record_wasted_send(&mut self, index: u32, id: u32, now: Ps, packets: u32) {
        let shape = self.cost_table.get(self.messages[id].cost_index);
        let Some(Some(qp)) = self.qps.get(index as usize) else {
            return;
        };
        let machine = &mut self.machines[qp.machine as usize];
        let nic = &mut self.nics[machine.nic as usize];
        nic.counters.wasted_sends += 1;
        if shape.fetches_payload {
            let part =
                |whole: u64| whole * u64::from(packets) / u64::from(shape.request_packets.count);
            let fetch = &shape.transfers_at(machine.place).payload_fetch;
            machine
                .link_to_host
                .reserve_without_waiting(now, part(fetch.link_time_to_host));
            machine
                .link_to_device
                .reserve_without_waiting(now, part(fetch.link_time_to_device));
            nic.counters.dma_read_bytes += part(fetch.dma_read_bytes);
        }
    }

    /// Decides how the response to a message leaves the responder. Returns `None` if it does not leave, because the
    /// requester has asked for an earlier response again meanwhile.
    pub(super) fn decide_response_departure(&mut self, id: u32, now: Ps) -> Option<Departure> {
        let message = &self.messages[id];
        let (requester, responder) = (message.requester_qp, message.responder_qp);
        let number = message.sequence_number;
        let shape = self.cost_table.get(message.cost_index);
        let verb = shape.operation.verb;
        let (packets, wire_time) = (shape.response_packets, shape.response_wire_time);
        let whole = Departure {
            wire_time,
            delay: 0,
            loss: None,
        };
        let machines = self
            .machine_of_qp(responder)
            .zip(self.machine_of_qp(requester));
        let Some((machines, faults)) = machines.zip(self.network_faults.as_mut()) else {
            return Some(whole);
        };
        let nic = &mut self.nics[self.machines[machines.0 as usize].nic as usize];
        let latency = self.nic_parameters.network_latency;
        let target = self.qps.get_mut(responder as usize)?.as_mut()?;
        let port = nic.ports.port_of_sending_qp(&mut target.port);
        let starts = port.outgoing_link.next_start(now);
        let qp = self.qps.get_mut(requester as usize)?.as_mut()?;
        if let Some(retransmission) = qp.retransmission.as_deref()
            && retransmission.has_unacknowledged_before(number)
            && let Some(retry) = retransmission.next_retry_at()
            && starts >= retry + latency
        {
            self.hold(requester, id, now, Retransmission::add_unacknowledged);
            return None;
        }
        // Only a READ has several packets in its response and one in its request.
        let several = packets.count > 1;
        let first = match qp.retransmission.as_deref() {
            retransmission if several => first_packet_to_send(retransmission, number),
            _ => 0,
        };
        let fate = faults.decide(
            now,
            MessagePackets {
                machines,
                qps: (responder, requester),
                operation: fault_operation_of_response(verb),
                packet_bytes: packets.average_bytes,
                packets: first..packets.count,
            },
        );
        let loss = fate.first_lost.map(|lost| {
            nic.counters.lost_messages += 1;
            let retransmission = qp.retransmission.get_or_insert_default();
            if several {
                retransmission.partly_arrived = Some((number, lost));
            }
            if lost > first {
                retransmission.record_progress();
            }
            let packet_time = wire_time / u64::from(packets.count);
            // The requester sees a gap when a later packet of the response arrives.
            let gap_after = (lost + 1 < packets.count)
                .then(|| packet_time * u64::from(lost + 2 - first) + latency);
            Loss {
                nak_after: gap_after,
            }
        });
        Some(Departure {
            wire_time: wire_time * u64::from(packets.count - first) / u64::from(packets.count),
            delay: fate.delay,
            loss,
        })
    }

    /// Keeps a message that did not arrive, or that the responder dropped. The requester learns of this by a NAK at
    /// `nak_at`; otherwise its timeout counts from `now`.
    pub(super) fn hold_undelivered(&mut self, index: u32, id: u32, now: Ps, nak_at: Option<Ps>) {
        if self.hold(index, id, now, Retransmission::add_undelivered) {
            self.schedule_retry_of_held(index, now, nak_at);
        }
    }

    /// Keeps a message that the responder has executed, and whose response did not arrive or did not count. The
    /// requester sees this at `gap_at`; otherwise its timeout counts from `now`.
    pub(super) fn hold_unacknowledged(&mut self, index: u32, id: u32, now: Ps, gap_at: Option<Ps>) {
        if self.hold(index, id, now, Retransmission::add_unacknowledged) {
            self.schedule_retry_of_held(index, now, gap_at);
        }
    }

    /// Keeps a message for a retry; returns false if it is flushed instead, because the queue pair is in error, or if
    /// the queue pair does not exist any more.
    fn hold(
        &mut self,
        index: u32,
        id: u32,
        now: Ps,
        add: impl FnOnce(&mut Retransmission, SequenceNumber, u32),
    ) -> bool {
        let number = self.messages[id].sequence_number;
        let Some(qp) = self.qp(index).filter(|qp| qp.state != abi::IBV_QPS_RESET) else {
            self.messages.release_one_work_request(id);
            return false;
        };
        let in_error = qp.state == abi::IBV_QPS_ERR;
        add(qp.retransmission.get_or_insert_default(), number, id);
        if in_error {
            self.flush_held(index, now);
        }
        !in_error
    }

    /// Flushes the messages of a queue pair in error that are held, up to the first that has not returned yet.
    pub(super) fn flush_held(&mut self, index: u32, now: Ps) {
        while let Some(qp) = self.qp(index)
            && let Some(retransmission) = qp.retransmission.as_deref_mut()
            && let Some(id) = retransmission.take_first(qp.next_completed_sequence)
        {
            qp.next_completed_sequence.take_next();
            self.finish_work_request(id, code_u8(abi::IBV_WC_WR_FLUSH_ERR), now, now);
            self.messages.release_one_work_request(id);
        }
    }

    fn schedule_retry_of_held(&mut self, index: u32, now: Ps, known_at: Option<Ps>) {
        let timeout = self
            .qp(index)
            .and_then(|qp| qp.retry_attributes.ack_timeout());
        let retry = match known_at {
            Some(at) => Some((at, RetryCause::SequenceError)),
            None => timeout.map(|timeout| (now + timeout, RetryCause::Timeout)),
        };
        if let Some((at, cause)) = retry {
            self.schedule_retry(index, at, cause);
        }
    }

    fn schedule_retry(&mut self, index: u32, at: Ps, cause: RetryCause) {
        let Some(qp) = self.qp(index) else { return };
        let retransmission = qp.retransmission.get_or_insert_default();
        if retransmission.schedule(at, cause) {
            self.events
                .push(at, SimulationEvent::RetryDue { qp: index });
        }
    }

    /// Sends messages again, if the retry is still due.
    pub(crate) fn handle_due_retry(&mut self, index: u32, now: Ps) {
        let Some(qp) = self.qp(index).filter(|qp| qp.state == abi::IBV_QPS_RTS) else {
            return;
        };
        let (limit, oldest) = (qp.retry_attributes.retry_cnt, qp.next_completed_sequence);
        let Some(retransmission) = qp.retransmission.as_deref_mut() else {
            return;
        };
        let Some(cause) = retransmission.take_due(now) else {
            return;
        };
        let expects_nak = matches!(cause, RetryCause::SequenceError | RetryCause::Overtaken);
        if expects_nak && retransmission.refused_by_receiver {
            // The responder has sent an RNR NAK instead, which may be lost.
            self.schedule_retry_of_held(index, now, None);
            return;
        }
        if matches!(cause, RetryCause::Timeout | RetryCause::SequenceError) {
            retransmission.retries += 1;
            if retransmission.retries > limit.into()
                && let Some(failed) = retransmission.take_first(oldest)
            {
                self.messages[failed].status = code_u8(abi::IBV_WC_RETRY_EXC_ERR);
                self.fail_work_request(index, failed, now, now);
                return;
            }
        }
        // A NAK of a message acknowledges those before it.
        if cause != RetryCause::Timeout {
            while self.complete_oldest_unacknowledged(index, now) {}
        }
        let messages = self
            .qp(index)
            .and_then(|qp| qp.retransmission.as_deref_mut())
            .map_or_else(Vec::new, Retransmission::take_messages);
        self.send_again(index, &messages, now);
    }

    /// Gives messages to the NIC again, in front of those that were posted later. It still has their WQEs.
    fn send_again(&mut self, index: u32, messages: &[u32], now: Ps) {
        let (qps, in_flight) = (&mut self.qps, &self.messages);
        let (Some(Some(qp)), Some(&first)) = (qps.get_mut(index as usize), messages.first()) else {
            return;
        };
        // Messages that the NIC has not sent yet may be before the last one that is sent again.
        let numbered = |message: u32| (in_flight[message].sequence_number, message);
        let mut again: Vec<_> = messages.iter().map(|&message| numbered(message)).collect();
        while let Some((unsent, _)) = qp.unsent_messages.pop_if(|&(unsent, _)| {
            let (number, _) = numbered(unsent);
            again
                .last()
                .is_some_and(|(last, _)| number.is_before(*last))
        }) {
            let (number, _) = numbered(unsent);
            insert_in_order(&mut again, number, unsent);
        }
        let again = again.into_iter().map(|(_, message)| (message, 1));
        qp.unsent_messages.prepend(again);
        qp.posted_lists.prepend([PostedWqes {
            len: u32::try_from(messages.len()).unwrap_or(u32::MAX),
            by_doorbell: false,
            cost_index: in_flight[first].cost_index,
        }]);
        self.handle_arrived_postlist(index, now);
    }

    /// Completes the oldest message of a queue pair if the responder has executed it and a later response shows this.
    /// Returns false if there is none. The response of a READ or atomic has data, so that no other response can stand
    /// for it.
    fn complete_oldest_unacknowledged(&mut self, index: u32, now: Ps) -> bool {
        let Some(qp) = self.qp(index) else {
            return false;
        };
        let oldest = qp.next_completed_sequence;
        let retransmission = qp.retransmission.as_deref();
        let Some(id) = retransmission.and_then(|r| r.unacknowledged_message(oldest)) else {
            return false;
        };
        let message = &self.messages[id];
        if message.status != SUCCESS_STATUS
            || self.cost_table.get(message.cost_index).has_response_data
        {
            return false;
        }
        if let Some(qp) = self.qp(index)
            && let Some(retransmission) = qp.retransmission.as_deref_mut()
        {
            retransmission.take_first(oldest);
            retransmission.record_progress();
            qp.next_completed_sequence.take_next();
        }
        self.finish_work_request(id, SUCCESS_STATUS, now, now);
        self.messages.release_one_work_request(id);
        true
    }

    /// Checks that the response of a message counts now. It does if all earlier messages are complete, and if the
    /// responder was ready. Otherwise keeps the message for a retry, and returns false.
    pub(super) fn accept_response(&mut self, index: u32, id: u32, now: Ps) -> bool {
        let message = &self.messages[id];
        let (number, status) = (message.sequence_number, message.status);
        let responder = message.responder_qp;
        let not_ready = status == code_u8(abi::IBV_WC_RNR_RETRY_EXC_ERR);
        let Some(qp) = self.qp(index) else {
            return false;
        };
        if qp.next_completed_sequence == number && qp.state == abi::IBV_QPS_RTS && !not_ready {
            qp.next_completed_sequence.take_next();
            if let Some(retransmission) = qp.retransmission.as_deref_mut() {
                retransmission.record_progress();
            }
            return true;
        }
        self.accept_unusual_response(index, id, not_ready.then_some(responder), now)
    }

    /// Does the work of `accept_response` if a message was not ready to be received, or if earlier messages are not
    /// complete, or the queue pair is in error.
    #[cold]
    fn accept_unusual_response(
        &mut self,
        index: u32,
        id: u32,
        not_ready_responder: Option<u32>,
        now: Ps,
    ) -> bool {
        let number = self.messages[id].sequence_number;
        while self.complete_oldest_unacknowledged(index, now) {}
        let rnr_wait = not_ready_responder
            .and_then(|responder| self.qp(responder))
            .map(|qp| qp.retry_attributes.rnr_wait());
        let Some(qp) = self.qp(index) else {
            return false;
        };
        let (limit, in_order) = (
            qp.retry_attributes.rnr_retry,
            qp.next_completed_sequence == number && qp.state == abi::IBV_QPS_RTS,
        );
        let retransmission = qp.retransmission.get_or_insert_default();
        let Some(rnr_wait) = rnr_wait else {
            if in_order {
                retransmission.record_progress();
                qp.next_completed_sequence.take_next();
                return true;
            }
            // The missing response is known to be lost, or its message is sent again.
            let oldest = qp.next_completed_sequence;
            let lost = retransmission.unacknowledged_message(oldest).is_some();
            self.hold_unacknowledged(index, id, now, lost.then_some(now));
            return false;
        };
        if in_order {
            retransmission.rnr_naks += 1;
            if limit != UNLIMITED_RNR_RETRIES && retransmission.rnr_naks > limit.into() {
                return true;
            }
        }
        self.messages[id].status = SUCCESS_STATUS;
        self.hold_undelivered(index, id, now, None);
        if in_order {
            self.schedule_retry(index, now + rnr_wait, RetryCause::ReceiverNotReady);
        }
        false
    }

    /// Completes a work request with the status of its failure. The queue pair enters the error state.
    pub(super) fn fail_work_request(&mut self, index: u32, id: u32, now: Ps, done: Ps) {
        let status = self.messages[id].status;
        self.finish_work_request(id, status, now, done);
        self.messages.release_one_work_request(id);
        if let Some(qp) = self.qp(index) {
            qp.state = abi::IBV_QPS_ERR;
            qp.next_completed_sequence.take_next();
            // Messages that a unit still sends are flushed when they leave.
            qp.retransmission.get_or_insert_default();
            qp.update_receive_checks();
            self.flush_work_requests(index);
        }
    }

    /// Returns true if a message of a reliable queue pair is the next one that the responder executes. Otherwise
    /// answers or drops the message.
    #[inline(always)]
    pub(super) fn is_in_sequence(&mut self, id: u32, machine: u32, at: Ps) -> bool {
        let message = &self.messages[id];
        let number = message.sequence_number;
        match self.qps.get(message.responder_qp as usize) {
            Some(Some(target)) if target.expected_sequence == number && target.can_receive => true,
            _ => {
                self.receive_out_of_sequence(id, machine, at);
                false
            }
        }
    }

    #[cold]
    fn receive_out_of_sequence(&mut self, id: u32, machine: u32, at: Ps) {
        let message = &self.messages[id];
        let (requester, number) = (message.requester_qp, message.sequence_number);
        let target = self.qps.get(message.responder_qp as usize);
        let target = target.and_then(Option::as_ref).filter(|qp| qp.can_receive);
        let shape = self.cost_table.get(message.cost_index);
        let (has_data, packets) = (shape.has_response_data, shape.request_packets.count);
        match target.map(|target| target.expected_sequence) {
            None => self.hold_undelivered(requester, id, at, None),
            Some(expected) if number.is_before(expected) => {
                self.record_wasted_send(requester, id, at, packets);
                if has_data {
                    self.schedule_response(id, machine, at, at);
                } else {
                    self.events
                        .push(at, SimulationEvent::SendResponse { message: id });
                }
            }
            Some(_) => {
                self.record_wasted_send(requester, id, at, packets);
                let held = self.hold(requester, id, at, Retransmission::add_undelivered);
                let retransmission = self
                    .qp(requester)
                    .and_then(|qp| qp.retransmission.as_deref());
                // If the requester knows of the gap, it has sent the message again already.
                if held && retransmission.is_some_and(Retransmission::was_overtaken) {
                    self.schedule_retry(requester, at, RetryCause::Overtaken);
                }
            }
        }
    }

    /// Records that a responder refuses a message with an RNR NAK. It drops later messages in silence until the message
    /// comes again.
    pub(super) fn record_rnr_nak(&mut self, requester: u32, id: u32, now: Ps) {
        let shape = self.cost_table.get(self.messages[id].cost_index);
        self.record_wasted_send(requester, id, now, shape.request_packets.count);
        if let Some(qp) = self.qp(requester) {
            let retransmission = qp.retransmission.get_or_insert_default();
            retransmission.refused_by_receiver = true;
        }
    }

    /// Returns true if a message of the queue pair may be lost, or may have to wait for earlier ones.
    #[inline(always)]
    pub(super) fn may_not_arrive(&self, qp: &Qp) -> bool {
        self.network_faults.is_some()
            || (qp.retransmission.is_some() && qp.transport == Transport::Rc)
    }
}

fn waits_for_receiver(qp: &Qp) -> bool {
    let retransmission = qp.retransmission.as_deref();
    retransmission.is_some_and(Retransmission::waits_for_receiver)
}

/// Returns the first packet of a message that has not arrived.
fn first_packet_to_send(retransmission: Option<&Retransmission>, number: SequenceNumber) -> u32 {
    let partly = retransmission.and_then(|retransmission| retransmission.partly_arrived);
    partly.map_or(0, |(of, packets)| if of == number { packets } else { 0 })
}
