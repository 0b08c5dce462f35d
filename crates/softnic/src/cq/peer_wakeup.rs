//! Wakes the engines of the peers for which the queue pairs of a completion queue wait.

use nic_core::peer_wakeup::AwaitedPeer;

use super::CqState;

impl CqState {
    /// Wakes the engines of peers that take no messages, if the queue has been polled in vain for long.
    #[inline(never)]
    pub(super) fn wake_starving_peers_if_due(&mut self) {
        let now = shm::clock::now_ns();
        let polls = self.empty_polls_in_row;
        if !self.peer_wakeup_timer.is_due(polls, now) {
            return;
        }
        let (mut any_woken, mut any_takes_messages) = (false, false);
        for qp in &self.sending_qps {
            match qp.wake_awaited_peer_unless_it_takes_messages() {
                AwaitedPeer::None => {}
                AwaitedPeer::TakesMessages => any_takes_messages = true,
                AwaitedPeer::Woken => any_woken = true,
            }
        }
        if any_takes_messages && !any_woken {
            self.peer_wakeup_timer.restart(polls, now);
        } else {
            self.peer_wakeup_timer.back_off();
        }
    }

    /// Wakes the engines of the peers whose progress the queue pairs of this queue wait for. The program is about to
    /// sleep, or only its engine runs.
    #[cold]
    pub(super) fn wake_awaited_peers(&self) {
        for qp in &self.sending_qps {
            qp.wake_awaited_peer();
        }
    }
}
