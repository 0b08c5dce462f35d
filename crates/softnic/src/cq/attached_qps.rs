//! The queue pairs whose completions a queue takes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Cq;
use crate::qp::Qp;
use crate::recv::RecvSide;

impl Cq {
    pub(crate) fn add_sending_qp(&self, qp: &Arc<Qp>) {
        let mut state = self.state.lock();
        if !self.is_overrun() {
            qp.index_in_send_cq
                .store(state.sending_qps.len(), Ordering::Relaxed);
            state.sending_qps.push(Arc::clone(qp));
        }
        drop(state);
        self.add_expected_wrs(qp.max_send_and_recv_wrs().0);
    }

    pub(crate) fn remove_sending_qp(&self, qp: &Qp) {
        let mut state = self.state.lock();
        let place = qp.index_in_send_cq.load(Ordering::Relaxed);
        if state
            .sending_qps
            .get(place)
            .is_some_and(|q| q.index == qp.index)
        {
            state.sending_qps.swap_remove(place);
            if let Some(moved) = state.sending_qps.get(place) {
                moved.index_in_send_cq.store(place, Ordering::Relaxed);
            }
        }
        state.drop_completions_of_qp(qp.qpn);
        drop(state);
        self.remove_expected_wrs(qp.max_send_and_recv_wrs().0);
    }

    pub(crate) fn add_receiving_qp(&self, qp: &Arc<Qp>) {
        if let Some(srq) = &qp.srq {
            srq.note_recv_cq(self.index);
        }
        let mut state = self.state.lock();
        if !self.is_overrun() {
            qp.index_in_recv_cq
                .store(state.recv_sides.len(), Ordering::Relaxed);
            state.recv_sides.push(RecvSide::new(Arc::clone(qp)));
        }
        drop(state);
        self.add_expected_receives(qp);
    }

    pub(crate) fn remove_receiving_qp(&self, qp: &Qp) {
        let mut state = self.state.lock();
        let place = qp.index_in_recv_cq.load(Ordering::Relaxed);
        if state
            .recv_sides
            .get(place)
            .is_some_and(|r| r.qp().index == qp.index)
        {
            state.recv_sides.swap_remove(place).detach_all_rings();
            if let Some(moved) = state.recv_sides.get(place) {
                moved.qp().index_in_recv_cq.store(place, Ordering::Relaxed);
            }
        }
        state.drop_completions_of_qp(qp.qpn);
        drop(state);
        self.remove_expected_receives(qp);
    }

    /// Runs `f` on the receive side of `qp`, or on `None` if the queue is overrun.
    pub(crate) fn with_recv_side(&self, qp: &Qp, f: impl FnOnce(Option<&mut RecvSide>)) {
        let mut state = self.state.lock();
        let place = qp.index_in_recv_cq.load(Ordering::Relaxed);
        let side = state.recv_sides.get_mut(place);
        f(side.filter(|r| r.qp().index == qp.index));
    }
}
