//! Retries of a reliable requester, after messages or responses are lost, or a receiver is not ready.
//!
//! A responder executes the messages of a requester in order. It drops a message if an earlier one is missing, and
//! acknowledges a message again that it has executed before. A requester sends again all messages from the first one
//! that is not acknowledged (go-back-N; IBTA vol. 1, 9.7.5 and 9.7.8). The simulation keeps what is dropped in the
//! requester's [`Retransmission`], until the requester receives a NAK or its timeout ends.

use verbs_abi as abi;

use crate::event::SimulationEvent;
use crate::event_queue::Ps;
use crate::message::{NO_REQUESTER, SUCCESS_STATUS, abi_code_to_u8};
use crate::qp::PostedWqes;
use crate::retransmission::{Retransmission, RetryCause, SequenceNumber, insert_in_order};
use crate::serial_resource::PacketTimes;
use crate::simulation::Simulation;

/// Value of `rnr_retry` for unlimited retries, as stored in the attributes.
const UNLIMITED_RNR_RETRIES: u8 = 7;

impl Simulation {
    /// Keeps a message that did not arrive, or that the responder dropped. The requester learns of this by a NAK at
    /// `nak_at`; otherwise its timeout counts from `now`.
    pub(super) fn hold_undelivered(&mut self, index: u32, id: u32, now: Ps, nak_at: Option<Ps>) {
        if self.hold_message(index, id, now, Retransmission::add_undelivered) {
            let nak = nak_at.map(|at| (at, RetryCause::SequenceError));
            self.schedule_retry_or_timeout(index, now, nak);
        }
    }

    /// Keeps a message that the responder has executed, and whose response did not arrive or came after a missing one. The
    /// requester sends it again at the given time and for the given cause; otherwise its timeout counts from `now`.
    pub(super) fn hold_unacknowledged(
        &mut self,
        index: u32,
        id: u32,
        now: Ps,
        retry: Option<(Ps, RetryCause)>,
    ) {
        if self.hold_message(index, id, now, Retransmission::add_unacknowledged) {
            self.schedule_retry_or_timeout(index, now, retry);
        }
    }

    /// Keeps a message; returns false if it is flushed instead, because the queue pair is in error, or if
    /// the queue pair does not exist any more.
    pub(super) fn hold_message(
        &mut self,
        index: u32,
        id: u32,
        now: Ps,
        add: impl FnOnce(&mut Retransmission, SequenceNumber, u32),
    ) -> bool {
        let number = self.messages[id].sequence_number;
        let Some(qp) = self.qp(index).filter(|qp| qp.is_outstanding(number)) else {
            self.messages.release_one_work_request(id);
            return false;
        };
        let in_error = qp.state == abi::IBV_QPS_ERR;
        add(qp.retransmission.get_or_insert_default(), number, id);
        if in_error {
            self.flush_held_messages(index, now);
        }
        !in_error
    }

    /// Flushes the messages of a queue pair in error that are held, up to the first that has not returned yet.
    pub(super) fn flush_held_messages(&mut self, index: u32, now: Ps) {
        while let Some(qp) = self.qp(index)
            && let Some(retransmission) = qp.retransmission.as_deref_mut()
            && let Some(id) = retransmission.take_first(qp.next_completed_sequence)
        {
            qp.next_completed_sequence.take_next();
            self.finish_work_request(id, abi_code_to_u8(abi::IBV_WC_WR_FLUSH_ERR), now, now);
            self.messages.release_one_work_request(id);
        }
    }

    fn schedule_retry_or_timeout(&mut self, index: u32, now: Ps, retry: Option<(Ps, RetryCause)>) {
        let attributes = self.qp(index).map(|qp| qp.retry_attributes);
        let timeout = attributes.and_then(|attributes| attributes.ack_timeout());
        let timeout = timeout.map(|timeout| (now + timeout, RetryCause::Timeout));
        if let Some((at, cause)) = retry.or(timeout) {
            self.schedule_retry(index, at, cause);
        }
    }

    fn schedule_retry(&mut self, index: u32, at: Ps, cause: RetryCause) {
        let Some(qp) = self.qp(index) else { return };
        let retransmission = qp.retransmission.get_or_insert_default();
        if retransmission.schedule_retry(at, cause) {
            self.events
                .push(at, SimulationEvent::RetransmissionDue { qp: index });
        }
    }

    /// Sends messages again, if the retry is still due.
    pub(crate) fn handle_due_retransmission(&mut self, index: u32, now: Ps) {
        let Some(qp) = self.qp(index).filter(|qp| qp.state == abi::IBV_QPS_RTS) else {
            return;
        };
        let Some(retransmission) = qp.retransmission.as_deref_mut() else {
            return;
        };
        let Some(cause) = retransmission.take_due_retry(now) else {
            return;
        };
        if cause.needs_nak() && retransmission.rnr_nak_sent {
            // The responder has sent an RNR NAK instead, which may be lost.
            self.schedule_retry_or_timeout(index, now, None);
            return;
        }
        // A NAK of a message acknowledges those before it.
        if cause != RetryCause::Timeout {
            self.complete_acknowledged(index, now);
        }
        let Some(qp) = self.qp(index) else { return };
        let (limit, oldest) = (qp.retry_attributes.retry_cnt, qp.next_completed_sequence);
        let Some(retransmission) = qp.retransmission.as_deref_mut() else {
            return;
        };
        let counts = match cause {
            RetryCause::ReceiverNotReady => false,
            // If no earlier message is on its way, the responder expects a message that does not exist.
            RetryCause::Overtaken => retransmission.is_first_to_resend(oldest),
            _ => true,
        };
        if counts {
            retransmission.retry_count += 1;
            if retransmission.retry_count > limit.into()
                && let Some(failed) = retransmission.take_first(oldest)
            {
                qp.next_completed_sequence.take_next();
                self.messages[failed].status = abi_code_to_u8(abi::IBV_WC_RETRY_EXC_ERR);
                self.fail_work_request(index, failed, now, now);
                return;
            }
        }
        let messages = retransmission.take_messages_to_resend();
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
            has_mixed_sizes: false,
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
            retransmission.record_completion(oldest);
            qp.next_completed_sequence.take_next();
        }
        self.finish_work_request(id, SUCCESS_STATUS, now, now);
        self.messages.release_one_work_request(id);
        true
    }

    /// Returns true if the work request of a message completes now: all earlier messages are complete, and the
    /// responder was ready, or refused the message too often. Otherwise keeps the message.
    pub(super) fn accept_response(&mut self, index: u32, id: u32, now: Ps) -> bool {
        let message = &self.messages[id];
        let (number, status) = (message.sequence_number, message.status);
        let responder = message.responder_qp;
        let not_ready = status == abi_code_to_u8(abi::IBV_WC_RNR_RETRY_EXC_ERR);
        let Some(qp) = self.qp(index) else {
            return false;
        };
        if qp.next_completed_sequence == number && qp.state == abi::IBV_QPS_RTS && !not_ready {
            qp.next_completed_sequence.take_next();
            if let Some(retransmission) = qp.retransmission.as_deref_mut() {
                retransmission.record_completion(number);
            }
            return true;
        }
        self.accept_unusual_response(index, id, not_ready.then_some(responder), now)
    }

    /// Completes the oldest messages that the responder has executed, after a later response or NAK has arrived.
    fn complete_acknowledged(&mut self, index: u32, now: Ps) {
        while self.complete_oldest_unacknowledged(index, now) {}
        self.complete_next_if_early(index, now);
    }

    /// Lets the next message complete, after one has completed, if its response or a later one has arrived already.
    /// Asks for its response again if only later ones have arrived.
    pub(super) fn complete_next_if_early(&mut self, index: u32, now: Ps) {
        while let Some(qp) = self.qp(index)
            && let Some(retransmission) = qp.retransmission.as_deref_mut()
        {
            let next = qp.next_completed_sequence;
            if let Some(message) = retransmission.take_early_acknowledged(next) {
                self.events
                    .push(now, SimulationEvent::ResponseArrived { message });
                return;
            }
            if !retransmission.has_early_acknowledged() {
                return;
            }
            let held = retransmission.is_first_to_resend(next);
            if !self.complete_oldest_unacknowledged(index, now) {
                if held {
                    self.schedule_retry(index, now, RetryCause::MissingResponse);
                }
                return;
            }
        }
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
        self.complete_acknowledged(index, now);
        let rnr_wait = not_ready_responder.map(|responder| {
            let responder = self.qp(responder).map(|qp| qp.retry_attributes);
            responder.unwrap_or_default().rnr_wait()
        });
        let Some(qp) = self.qp(index) else {
            return false;
        };
        let (limit, oldest) = (qp.retry_attributes.rnr_retry, qp.next_completed_sequence);
        let in_order = oldest == number && qp.state == abi::IBV_QPS_RTS;
        let retransmission = qp.retransmission.get_or_insert_default();
        let Some(rnr_wait) = rnr_wait else {
            if in_order {
                retransmission.record_completion(number);
                qp.next_completed_sequence.take_next();
                return true;
            }
            if retransmission.unacknowledged_message(oldest).is_some() {
                let retry = (now, RetryCause::MissingResponse);
                self.hold_unacknowledged(index, id, now, Some(retry));
            } else {
                // An earlier message is on its way again. A requester would send this one again, too, and its second
                // response would follow that of the earlier one.
                self.hold_message(index, id, now, Retransmission::add_early_acknowledged);
            }
            return false;
        };
        if in_order {
            retransmission.rnr_naks += 1;
            if limit != UNLIMITED_RNR_RETRIES && retransmission.rnr_naks > limit.into() {
                qp.next_completed_sequence.take_next();
                return true;
            }
        }
        let retry = if retransmission.unacknowledged_message(oldest).is_some() {
            (now, RetryCause::MissingResponse)
        } else {
            (now + rnr_wait, RetryCause::ReceiverNotReady)
        };
        self.messages[id].status = SUCCESS_STATUS;
        if self.hold_message(index, id, now, Retransmission::add_undelivered) {
            self.schedule_retry(index, retry.0, retry.1);
        }
        false
    }

    /// Completes a work request with the status of its failure. The queue pair enters the error state.
    pub(super) fn fail_work_request(&mut self, index: u32, id: u32, now: Ps, done: Ps) {
        let status = self.messages[id].status;
        self.finish_work_request(id, status, now, done);
        self.messages.release_one_work_request(id);
        self.enter_error_state(index);
    }

    /// Moves a queue pair to the error state, and flushes its work requests.
    pub(super) fn enter_error_state(&mut self, index: u32) {
        if let Some(qp) = self.qp(index) {
            qp.state = abi::IBV_QPS_ERR;
            // Messages that a unit still sends are flushed when they leave.
            qp.retransmission.get_or_insert_default();
            qp.update_receive_checks();
            self.flush_work_requests(index);
        }
    }

    /// Returns true if a message of a reliable queue pair is the next one that the responder executes. Otherwise
    /// answers or drops the message.
    #[inline(always)]
    pub(super) fn check_sequence_or_answer(&mut self, id: u32, machine: u32, at: Ps) -> bool {
        let message = &self.messages[id];
        let number = message.sequence_number;
        match self.qps.get(message.responder_qp as usize) {
            Some(Some(target))
                if target.expected_sequence == number
                    && target.can_receive
                    && message.requester_qp != NO_REQUESTER =>
            {
                true
            }
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
        let has_data = shape.has_response_data;
        match target.map(|target| target.expected_sequence) {
            None => self.hold_undelivered(requester, id, at, None),
            Some(expected) if number.is_before(expected) => {
                self.record_wasted_send(requester);
                if has_data {
                    let at = PacketTimes::all_at(at);
                    self.schedule_response(id, machine, at, at);
                } else {
                    self.schedule_acknowledgement(id, at);
                }
            }
            Some(_) => {
                self.record_wasted_send(requester);
                let held = self.hold_message(requester, id, at, Retransmission::add_undelivered);
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

    /// Records that a responder refuses a message with an RNR NAK. It drops later messages without a NAK until the
    /// message comes again.
    pub(super) fn record_rnr_nak(&mut self, requester: u32) {
        self.record_wasted_send(requester);
        if let Some(qp) = self.qp(requester) {
            let retransmission = qp.retransmission.get_or_insert_default();
            retransmission.record_rnr_nak_sent();
        }
    }
}
