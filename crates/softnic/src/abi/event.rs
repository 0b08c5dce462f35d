//! Asynchronous events: `ibv_get_async_event(3)`.

use verbs_abi::*;

use super::context::context_of;
use super::edge::{In, OrMinusOne, Out};
use super::wq::Wq;
use crate::cq::Cq;
use crate::event::UnacknowledgedEvents;
use crate::live_handles;
use crate::qp::Qp;
use crate::srq::Srq;
use shm::errno::errno_of;

pub(super) fn get_async_event(
    context: *mut ibv_context,
    event: Out<'_, ibv_async_event>,
) -> OrMinusOne {
    OrMinusOne(context_of(context).and_then(|context| {
        let place = event.get()?;
        let event = context.next_event(|event| {
            with_unacknowledged_event_counter_of(event, UnacknowledgedEvents::note_delivered);
        });
        place.write(event.map_err(|e| errno_of(&e))?);
        Ok(0)
    }))
}

pub(super) fn ack_async_event(event: In<'_, ibv_async_event>) {
    if let Some(event) = event.optional() {
        with_unacknowledged_event_counter_of(event, |counter| counter.acknowledge(1));
    }
}

/// Calls `count` with the counter of the object that an event concerns.
#[allow(unsafe_code)]
fn with_unacknowledged_event_counter_of(
    event: &ibv_async_event,
    count: impl FnOnce(&UnacknowledgedEvents),
) {
    // SAFETY: every event type below concerns an object, whose address is in each pointer of the union.
    let object = || unsafe { event.element.qp };
    match event.event_type {
        IBV_EVENT_CQ_ERR => {
            if let Some(cq) = live_handles::find_object::<Cq>(object().cast()) {
                count(&cq.unacknowledged_async_events);
            }
        }
        IBV_EVENT_SRQ_LIMIT_REACHED | IBV_EVENT_SRQ_ERR => {
            if let Some(srq) = live_handles::find_object::<Srq>(object().cast()) {
                count(&srq.unacknowledged_events);
            }
        }
        IBV_EVENT_QP_FATAL
        | IBV_EVENT_QP_REQ_ERR
        | IBV_EVENT_QP_ACCESS_ERR
        | IBV_EVENT_QP_LAST_WQE_REACHED
        | IBV_EVENT_SQ_DRAINED
        | IBV_EVENT_COMM_EST => {
            if let Some(qp) = live_handles::find_object::<Qp>(object()) {
                count(&qp.unacknowledged_events);
            }
        }
        IBV_EVENT_WQ_FATAL => {
            if let Some(wq) = live_handles::find_object::<Wq>(object().cast()) {
                count(&wq.qp.unacknowledged_events);
            }
        }
        _ => {}
    }
}
