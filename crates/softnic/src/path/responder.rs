//! The receiving end of a queue pair over messages: which requests are new, and which answers are given again.
//!
//! A pure state machine, as the [requester](super::requester) is.

use std::collections::VecDeque;

use super::message::{Message, Op, Psn};

/// Results that are kept to be given again: more than any queue pair may have in flight (`max_dest_rd_atomic`).
const KEPT_RESULTS: usize = 256;

/// What a request is to its responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The one that was expected.
    New,
    /// It was here before.
    Again,
    /// One before it was lost.
    Early,
    /// One before it was refused.
    Behind,
}

/// The requests that one queue pair has received.
pub(crate) struct Responder {
    expected: Psn,
    results: VecDeque<Message>,
    /// The refusal that ended the connection.
    refusal: Option<Message>,
    /// Messages that wait for a receive WR, in order.
    waiting: VecDeque<Message>,
    /// Since when the first of them has waited.
    waiting_since: Option<u64>,
}

impl Responder {
    /// A responder that expects the number `first`.
    pub(crate) fn new(first: Psn) -> Self {
        Self {
            expected: first,
            results: VecDeque::new(),
            refusal: None,
            waiting: VecDeque::new(),
            waiting_since: None,
        }
    }

    /// Whose turn it is.
    pub(crate) fn turn(&self, psn: Psn) -> Turn {
        if self
            .refusal
            .as_ref()
            .is_some_and(|refusal| refusal.psn.is_before(psn))
        {
            Turn::Behind
        } else if psn == self.expected {
            Turn::New
        } else if psn.is_before(self.expected) {
            Turn::Again
        } else {
            Turn::Early
        }
    }

    /// The expected request is here.
    pub(crate) fn advance(&mut self) {
        self.expected = self.expected.next();
    }

    /// Keeps the result of a request, to give it again.
    pub(crate) fn keep(&mut self, result: Message) {
        if self.results.len() == KEPT_RESULTS {
            self.results.pop_front();
        }
        self.results.push_back(result);
    }

    /// Nothing behind the request that `refusal` answers is executed.
    pub(crate) fn refuse(&mut self, refusal: Message) {
        self.refusal = Some(refusal);
    }

    /// Has a message wait for a receive WR.
    pub(crate) fn wait(&mut self, message: Message) {
        self.waiting.push_back(message);
    }

    /// How many messages wait for a receive WR.
    pub(crate) fn waits(&self) -> usize {
        self.waiting.len()
    }

    /// Takes the oldest message that waits for a receive WR: it is done, unless it is [put back](Self::put_back).
    pub(crate) fn take_first_waiting(&mut self) -> Option<Message> {
        self.waiting.pop_front()
    }

    /// The oldest message goes on waiting.
    pub(crate) fn put_back(&mut self, message: Message) {
        self.waiting.push_front(message);
    }

    /// Since when the first message has waited, if it is found waiting at `now_ns`.
    pub(crate) fn waiting_since(&mut self, now_ns: u64) -> u64 {
        *self.waiting_since.get_or_insert(now_ns)
    }

    /// The message that was taken last has its receive WR, or was refused.
    pub(crate) fn settle(&mut self) {
        self.waiting_since = None;
    }

    /// The number up to which all requests are done.
    pub(crate) fn done(&self) -> Psn {
        let next = self
            .waiting
            .front()
            .map_or(self.expected, |message| message.psn);
        next.previous()
    }

    /// The answer to a request that was here before.
    pub(crate) fn answer_again(&self, request: &Message) -> Message {
        let kept = self.results.iter().find(|kept| kept.psn == request.psn);
        let waits = self
            .waiting
            .iter()
            .any(|waiting| waiting.psn == request.psn);
        if let Some(refusal) = self
            .refusal
            .as_ref()
            .filter(|refusal| refusal.psn == request.psn)
        {
            return refusal.clone();
        }
        match kept {
            Some(result) if request.op.has_result() => result.clone(),
            _ if waits => request.answer(Op::Waiting, request.psn),
            _ => request.answer(Op::Ack, self.done()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(op: Op, psn: u32) -> Message {
        Message::new(op, 1, 2, Psn::new(psn))
    }

    #[test]
    fn each_request_has_its_turn_once() {
        let mut responder = Responder::new(Psn::new(0x00ff_ffff));
        assert_eq!(responder.turn(Psn::new(0)), Turn::Early);
        assert_eq!(responder.turn(Psn::new(0x00ff_ffff)), Turn::New);
        responder.advance();
        assert_eq!(responder.turn(Psn::new(0x00ff_ffff)), Turn::Again);
        assert_eq!(responder.turn(Psn::new(0)), Turn::New);
    }

    #[test]
    fn what_waits_for_a_receive_is_not_acknowledged() {
        let mut responder = Responder::new(Psn::new(5));
        responder.advance();
        responder.wait(request(Op::Send, 5));
        responder.advance();
        assert_eq!(responder.done(), Psn::new(4));
        assert_eq!(
            responder.answer_again(&request(Op::Send, 5)).op,
            Op::Waiting
        );
        responder.take_first_waiting();
        assert_eq!(responder.done(), Psn::new(6));
        let again = responder.answer_again(&request(Op::Send, 5));
        assert_eq!((again.op, again.psn), (Op::Ack, Psn::new(6)));
    }

    #[test]
    fn a_result_is_given_again_as_it_was() {
        let mut responder = Responder::new(Psn::new(5));
        responder.advance();
        let result = Message {
            payload: vec![7],
            ..request(Op::Result, 5)
        };
        responder.keep(result.clone());
        assert_eq!(responder.answer_again(&request(Op::FetchAdd, 5)), result);
    }
}
