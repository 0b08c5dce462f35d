//! Messages that arrive at an XRC queue pair: each names the shared receive queue that it is for.

use std::mem::MaybeUninit;

use super::*;
use crate::xrc::Xrcd;

impl RecvSide {
    /// Delivers arrived messages to the shared receive queues of `domain`, and the completions to their CQs. Returns
    /// true if a record waits for a deadline.
    pub(crate) fn receive_xrc(&mut self, domain: &Xrcd) -> bool {
        if !matches!(
            self.qp.state(),
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        ) {
            return false;
        }
        if self.qp.shared_state().has_refused_request() {
            self.fail_if_request_was_refused();
            return false;
        }
        let mut waiting = false;
        for i in 0..self.rings.len() {
            waiting |= self.receive_xrc_from_ring(i, domain);
        }
        if self.rings.iter().any(|r| r.is_stopped) {
            self.remove_closed_rings();
        }
        waiting
    }

    fn receive_xrc_from_ring(&mut self, i: usize, domain: &Xrcd) -> bool {
        let Some(ring) = self.rings.get_mut(i) else {
            return false;
        };
        let qp = &*self.qp;
        let mut waiting = false;
        while !ring.is_stopped {
            let record = match ring.consumer.peek() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    Self::stop_if_sender_ended(ring);
                    break;
                }
                Err(_) => {
                    Self::stop_at_garbage(qp, ring);
                    break;
                }
            };
            let slots = record.slot_count();
            let Some(srq) = domain.find_srq(record.header.extra_value) else {
                // "XRC domain violation, invalid XRCETH: NAK-Invalid Request" (IBTA vol. 1, A14.5.3.2).
                Self::refuse_record_and_fail_qp(qp, ring, IBV_WC_REM_INV_REQ_ERR);
                break;
            };
            if srq.xrc_srq.as_ref().is_some_and(|xrc| xrc.cq.is_overrun()) {
                // The CQ is overrun and has no place for the completion.
                Self::refuse_record_and_fail_qp(qp, ring, IBV_WC_REM_OP_ERR);
                qp.raise_event(IBV_EVENT_QP_FATAL);
                break;
            }
            let mut place = [MaybeUninit::uninit()];
            let mut sink = WcSink::new(&mut place);
            let mut queue = srq.recv_queue.lock();
            let mut from = RecordOrigin {
                peer: &ring.peer,
                ring_offset: ring.ring_offset,
                src_qpn: ring.src_qpn,
                sender_payload_regions: &mut ring.sender_regions,
                path_in_completion: &mut ring.path_in_completion,
            };
            let mut to = RecordDestination {
                last_recv_region: &mut LastRegion::none(),
                local_regions: &mut self.local_regions,
                sink: &mut sink,
                is_engine_thread: false,
            };
            let handled = deliver_record::<false>(qp, &mut queue, &record, &mut from, &mut to);
            srq.raise_limit_event_if_due(&mut queue);
            drop(queue);
            let (n, solicited) = (sink.len(), sink.has_solicited_or_error);
            if n == 1
                && let Some(xrc) = &srq.xrc_srq
            {
                // SAFETY: the sink has initialised the place.
                xrc.cq
                    .add_to_buffer(unsafe { place[0].assume_init_read() }, solicited);
            }
            if !Self::apply_record_result(qp, ring, &handled, slots, &mut waiting) {
                break;
            }
        }
        ring.release_consumed_records(true, true);
        waiting
    }
}
