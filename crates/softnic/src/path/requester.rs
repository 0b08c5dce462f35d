//! The sending end of a reliable queue pair over messages: what is in flight, what is sent again, what is done.
//!
//! A pure state machine: messages and the time come in as arguments, messages to be sent come out.

use std::collections::VecDeque;

use verbs_abi::{ibv_sge, ibv_wc_status};

use super::message::{Message, Op, Psn};

/// How long the requester waits for an answer until it sends the oldest requests in flight again.
const RESEND_NS: u64 = 1_000_000;

/// Requests that are sent again at once: where the first of them was lost the responder has dropped all behind it.
const RESEND_AT_ONCE: usize = 16;

/// Where the result of a READ or an atomic goes.
#[derive(Clone)]
pub(crate) struct Destination {
    pub(crate) pd: u32,
    pub(crate) sges: Box<[ibv_sge]>,
}

/// A request whose end is not known.
struct InFlight {
    psn: Psn,
    bytes: Vec<u8>,
    /// Where its result goes, of one that has a result.
    result: Option<Destination>,
    is_done: bool,
    /// The status with which it failed.
    failure: Option<ibv_wc_status>,
}

/// The requests of one queue pair to its peer.
pub(crate) struct Requester {
    /// Number of the peer's queue pair.
    dest_qpn: u32,
    rnr_retry: u8,
    next: Psn,
    in_flight: VecDeque<InFlight>,
    /// How many requests were made, and how many are done.
    made: u64,
    done: u64,
    /// When something was sent or heard last.
    sent_ns: u64,
    /// How often requests were sent again since something was heard.
    resends: u32,
    /// A request has failed: nothing behind it is done.
    failed: bool,
    /// Since when nothing was heard from the responder while a request is in flight.
    silent_since: Option<u64>,
}

impl Requester {
    /// A requester to a queue pair of the peer; its first request has the number 0.
    pub(crate) fn new(dest_qpn: u32) -> Self {
        Self {
            dest_qpn,
            rnr_retry: 0,
            next: Psn::new(0),
            in_flight: VecDeque::new(),
            made: 0,
            done: 0,
            sent_ns: 0,
            resends: 0,
            failed: false,
            silent_since: None,
        }
    }

    /// Number of the peer's queue pair.
    pub(crate) fn dest_qpn(&self) -> u32 {
        self.dest_qpn
    }

    /// Gives the first request the number `first`, as long as there was none.
    pub(crate) fn begin_at(&mut self, first: Psn) {
        if self.made == 0 {
            self.next = first;
        }
    }

    /// How often a message that finds no receive WR is tried again, as coded in `ibv_qp_attr`.
    pub(crate) fn rnr_retry(&self) -> u8 {
        self.rnr_retry
    }

    /// Sets the above.
    pub(crate) fn set_rnr_retry(&mut self, rnr_retry: u8) {
        self.rnr_retry = rnr_retry;
    }

    /// The number of the next request.
    pub(crate) fn next_psn(&self) -> Psn {
        self.next
    }

    /// Takes a request into flight; its position: it is done when as many are [done](Self::done).
    pub(crate) fn submit(
        &mut self,
        request: &Message,
        result: Option<Destination>,
        now_ns: u64,
    ) -> (u64, Vec<u8>) {
        debug_assert_eq!(request.psn, self.next);
        let bytes = request.encode();
        if self.in_flight.is_empty() {
            self.sent_ns = now_ns;
        }
        self.silent_since.get_or_insert(now_ns);
        self.in_flight.push_back(InFlight {
            psn: self.next,
            bytes: bytes.clone(),
            result,
            is_done: false,
            failure: None,
        });
        self.next = self.next.next();
        self.made += 1;
        (self.made, bytes)
    }

    /// How many requests are done, from the first on.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// The status with which the oldest request in flight has failed.
    pub(crate) fn failure(&self) -> Option<ibv_wc_status> {
        self.in_flight.front()?.failure
    }

    /// Whether a READ or an atomic is in flight: what a fence waits for.
    pub(crate) fn awaits_result(&self) -> bool {
        self.in_flight
            .iter()
            .any(|request| request.result.is_some())
    }

    /// Whether the responder has answered neither for `patience_ns` nor to `retry_cnt` repetitions and one more, each of
    /// which had its time.
    pub(crate) fn is_given_up(&self, patience_ns: u64, retry_cnt: u8, now_ns: u64) -> bool {
        let silent_for = |since| now_ns.saturating_sub(since) >= patience_ns;
        self.silent_since.is_some_and(silent_for)
            && self.resends > u32::from(retry_cnt)
            && self.is_overdue(now_ns)
    }

    fn is_overdue(&self, now_ns: u64) -> bool {
        !self.in_flight.is_empty() && now_ns.saturating_sub(self.sent_ns) >= RESEND_NS
    }

    /// Takes an answer; where its payload goes, if it is the result of a request in flight. The caller places it and
    /// [finishes](Self::finish) the request.
    pub(crate) fn on_answer(&mut self, answer: &Message, now_ns: u64) -> Option<Destination> {
        let mut destination = None;
        if self.failed {
            return None;
        }
        match answer.op {
            Op::Ack => self.acknowledge(answer.psn.next()),
            Op::Nak => {
                self.acknowledge(answer.psn);
                self.finish(answer.psn, Err(answer.imm));
            }
            Op::Result => {
                let request = self
                    .in_flight
                    .iter()
                    .find(|request| request.psn == answer.psn);
                destination = request
                    .filter(|r| !r.is_done)
                    .and_then(|r| r.result.clone());
            }
            _ => {}
        }
        self.drop_done();
        self.silent_since = (!self.in_flight.is_empty()).then_some(now_ns);
        (self.resends, self.sent_ns) = (0, now_ns);
        destination
    }

    /// Ends a request in flight, with its status if it has failed.
    pub(crate) fn finish(&mut self, psn: Psn, end: Result<(), ibv_wc_status>) {
        if let Some(request) = self.in_flight.iter_mut().find(|request| request.psn == psn) {
            request.is_done = end.is_ok();
            request.failure = end.err();
            self.failed |= end.is_err();
        }
        self.drop_done();
    }

    /// What is sent again now: the oldest requests, if no answer has come for long.
    pub(crate) fn overdue(&mut self, now_ns: u64) -> Vec<Vec<u8>> {
        if !self.is_overdue(now_ns) {
            return Vec::new();
        }
        self.sent_ns = now_ns;
        self.resends += 1;
        let waiting = self
            .in_flight
            .iter()
            .filter(|r| !r.is_done && r.failure.is_none());
        waiting
            .take(RESEND_AT_ONCE)
            .map(|request| request.bytes.clone())
            .collect()
    }

    /// The requests before `end` are done, except those that still wait for a result.
    fn acknowledge(&mut self, end: Psn) {
        let acknowledged = self
            .in_flight
            .iter_mut()
            .take_while(|r| r.psn.is_before(end));
        for request in acknowledged.filter(|r| r.result.is_none()) {
            request.is_done = true;
        }
    }

    fn drop_done(&mut self) {
        while self
            .in_flight
            .pop_front_if(|request| request.is_done)
            .is_some()
        {
            self.done += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs_abi::IBV_WC_REM_ACCESS_ERR;

    const FIRST: u32 = 0x00ff_fffe;

    /// A requester with `requests` in flight, of which those marked have a result.
    fn requester(requests: &[bool]) -> (Requester, Vec<Message>) {
        let mut requester = Requester::new(2);
        requester.begin_at(Psn::new(FIRST));
        let messages = requests.iter().map(|&has_result| {
            let op = if has_result { Op::Read } else { Op::Send };
            let message = Message::new(op, 1, 2, requester.next_psn());
            let result = has_result.then(|| Destination {
                pd: 1,
                sges: Box::default(),
            });
            requester.submit(&message, result, 0);
            message
        });
        let messages = messages.collect();
        (requester, messages)
    }

    #[test]
    fn an_acknowledgement_ends_all_before_it_also_when_numbers_wrap() {
        let (mut requester, sent) = requester(&[false; 4]);
        requester.on_answer(&sent[2].answer(Op::Ack, sent[2].psn), 1);
        assert_eq!(requester.done(), 3);
        requester.on_answer(&sent[3].answer(Op::Ack, sent[3].psn), 2);
        assert_eq!(requester.done(), 4);
    }

    #[test]
    fn a_read_whose_result_is_lost_is_asked_for_again() {
        let (mut requester, sent) = requester(&[true, false]);
        assert!(
            requester
                .on_answer(&sent[1].answer(Op::Ack, sent[1].psn), 1)
                .is_none()
        );
        assert_eq!(requester.done(), 0);
        assert_eq!(requester.overdue(1 + RESEND_NS), [sent[0].encode()]);
        assert!(requester.overdue(RESEND_NS + 2).is_empty());
        assert!(
            requester
                .on_answer(&sent[0].answer(Op::Result, sent[0].psn), 2)
                .is_some()
        );
        assert_eq!(requester.done(), 0);
        requester.finish(sent[0].psn, Ok(()));
        assert_eq!(requester.done(), 2);
        // A copy that comes late is nothing new.
        assert!(
            requester
                .on_answer(&sent[0].answer(Op::Result, sent[0].psn), 3)
                .is_none()
        );
    }

    #[test]
    fn a_silent_responder_is_given_up_when_the_last_repetition_had_its_time() {
        let (mut requester, sent) = requester(&[false]);
        let mut now = 0;
        for _ in 0..3 {
            now += RESEND_NS;
            assert!(!requester.is_given_up(RESEND_NS, 2, now));
            assert_eq!(requester.overdue(now).len(), 1);
        }
        assert!(!requester.is_given_up(RESEND_NS, 2, now));
        assert!(requester.is_given_up(RESEND_NS, 2, now + RESEND_NS));
        requester.on_answer(&sent[0].answer(Op::Waiting, sent[0].psn), now);
        assert!(!requester.is_given_up(RESEND_NS, 2, now + RESEND_NS));
    }

    #[test]
    fn a_refusal_fails_one_request_behind_those_that_are_done() {
        let (mut requester, sent) = requester(&[false, false, false]);
        requester.on_answer(&sent[1].refusal(IBV_WC_REM_ACCESS_ERR), 1);
        requester.on_answer(&sent[2].answer(Op::Ack, sent[2].psn), 2);
        assert_eq!(
            (requester.done(), requester.failure()),
            (1, Some(IBV_WC_REM_ACCESS_ERR))
        );
    }
}
