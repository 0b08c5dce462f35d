//! The receiving side of queue pairs that are reached by messages.

use super::*;
use crate::lock::lock;
use crate::path::message::{Message, Op, Psn};
use crate::path::responder::{Responder, Turn};
use crate::send::{Target, execute_request};

/// Datagrams that wait for a receive WR at most; more are dropped.
const MAX_WAITING_DATAGRAMS: usize = 1024;

/// What a queue pair has for requests that reach it by messages.
pub(crate) struct MessageSide {
    responder: Responder,
    /// Own regions that requests name.
    regions: RegionCache,
}

impl MessageSide {
    /// Expects the request with the number `first`.
    pub(crate) fn new(first: u32) -> Self {
        Self {
            responder: Responder::new(Psn::new(first)),
            regions: RegionCache::new(),
        }
    }
}

/// Takes a request to `qp`: one-sided verbs are executed, all others wait for a receive WR.
pub(crate) fn take_request(qp: &Qp, request: Message) {
    if !matches!(
        qp.state(),
        QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
    ) {
        return;
    }
    if qp.qp_type.is_connected() && qp.shared().dest_qpn.load(Ordering::Relaxed) != request.src_qpn
    {
        return;
    }
    let answer = {
        let mut side = lock(&qp.messages);
        let responder = &mut side.responder;
        match (qp.qp_type, responder.turn(request.psn)) {
            (QpType::Rc, Turn::New) => {
                responder.advance();
                process(qp, &mut side, request)
            }
            (QpType::Rc, Turn::Again) => Some(responder.answer_again(&request)),
            // The requester sends it again, behind what was lost.
            (QpType::Rc, Turn::Early | Turn::Behind) => None,
            (QpType::Uc, _) => process(qp, &mut side, request).and(None),
            _ if responder.waits() < MAX_WAITING_DATAGRAMS => {
                responder.wait(request);
                None
            }
            _ => None,
        }
    };
    if let (Some(answer), Some(network)) = (answer, &qp.nic.network) {
        network.send(answer.encode());
    }
    qp.recv_cq.nudge();
}

/// Executes a request, or has it wait for a receive WR; the answer.
fn process(qp: &Qp, side: &mut MessageSide, request: Message) -> Option<Message> {
    let me = Target {
        peer: qp.nic.me(),
        index: qp.index,
        srqn: 0,
    };
    if !matches!(request.op, Op::Send | Op::SendWithImm | Op::SendWithInv) {
        match execute_request(qp, &me, &mut side.regions, &request) {
            Ok(result) if request.op.has_result() => {
                let result = Message {
                    payload: result,
                    ..request.answer(Op::Result, request.psn)
                };
                side.responder.keep(result.clone());
                return Some(result);
            }
            Ok(_) => {}
            Err(status) => {
                let refusal = request.refusal(status);
                if qp.qp_type == QpType::Rc {
                    side.responder.refuse(refusal.clone());
                    me.refuse(status);
                }
                return Some(refusal);
            }
        }
    }
    if request.op == Op::Write {
        return Some(request.answer(Op::Ack, side.responder.done()));
    }
    // The requester need not give up while the message waits.
    let answer = request.answer(Op::Waiting, request.psn);
    side.responder.wait(request);
    Some(answer)
}

impl RecvSide {
    /// Gives the messages that wait to receive WRs. True if one of them waits for a deadline.
    #[cold]
    pub(super) fn receive_messages(&mut self, sink: &mut WcSink<'_>, by_engine: bool) -> bool {
        let qp = Arc::clone(&self.qp);
        let mut waiting = false;
        while !sink.is_full() {
            let mut side = lock(&qp.messages);
            let responder = &mut side.responder;
            let Some(mut message) = responder.take_first_waiting() else {
                break;
            };
            let (answer, goes_on) = match self.hand_over(&mut message, sink, by_engine) {
                Handled::NotReady if !rnr_is_over(&qp, responder, &message) => {
                    waiting |= qp.qp_type.is_connected();
                    responder.put_back(message);
                    break;
                }
                Handled::NotReady => (message.refusal(IBV_WC_RNR_RETRY_EXC_ERR), false),
                Handled::Failed(status) => (message.refusal(status), false),
                // Neither a payload by reference nor a rendezvous comes by messages.
                Handled::Done | Handled::Lost | Handled::Unsendable | Handled::Rendezvous(_) => {
                    (message.answer(Op::Ack, responder.done()), true)
                }
            };
            responder.settle();
            if answer.op == Op::Nak {
                responder.refuse(answer.clone());
            }
            drop(side);
            let fails = answer.op == Op::Nak && answer.imm != IBV_WC_RNR_RETRY_EXC_ERR;
            if qp.qp_type == QpType::Rc
                && let Some(network) = &qp.nic.network
            {
                network.send(answer.encode());
                qp.nic.call_engine();
            }
            if fails {
                qp.fail();
            }
            if !goes_on {
                break;
            }
        }
        waiting
    }

    /// Gives a message to the receive WR at the front.
    fn hand_over(
        &mut self,
        message: &mut Message,
        sink: &mut WcSink<'_>,
        by_engine: bool,
    ) -> Handled {
        let kind = match message.op {
            Op::SendWithImm => Kind::SendWithImm,
            Op::SendWithInv => Kind::SendWithInv,
            Op::WriteWithImm => Kind::WriteWithImm,
            _ => Kind::Send,
        };
        let qp = &*self.qp;
        let is_ud = qp.qp_type == QpType::Ud;
        #[allow(clippy::cast_possible_truncation)] // at most 2^30
        let len = match kind {
            Kind::WriteWithImm => message.len,
            _ => message.payload.len() as u32,
        };
        let flags = if message.solicited { FLAG_SOLICITED } else { 0 };
        let header = header(kind, flags, message.imm, len, message.qkey);
        let mut path = Path::new(message.path, message.grh);
        let record = Record::of_bytes(header, &mut message.payload);
        let mut rq = qp.recv_queue().lock();
        let mut from = Sender {
            peer: qp.nic.me(),
            ring_at: 0,
            src_qpn: message.src_qpn,
            remote: &mut RegionCache::new(),
            path: &mut path,
        };
        let mut to = Receiver {
            window: &mut Window::none(),
            local: &mut self.local,
            sink,
            by_engine,
        };
        let handled = if is_ud {
            handle::<true>(qp, &mut rq, &record, &mut from, &mut to)
        } else {
            handle::<false>(qp, &mut rq, &record, &mut from, &mut to)
        };
        if let Some(srq) = &qp.srq {
            srq.check_limit(&mut rq);
        }
        handled
    }
}

/// Whether a requester has no retries left for a message that finds no receive WR.
fn rnr_is_over(qp: &Qp, responder: &mut Responder, message: &Message) -> bool {
    if !qp.qp_type.is_connected() {
        return false;
    }
    let now = now_ns();
    let since = responder.waiting_since(now);
    rnr_patience_ns(qp, message.rnr_retry.into()).is_some_and(|patience| now - since >= patience)
}
