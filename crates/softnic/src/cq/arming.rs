//! Arming of completion queues, and their completion events.

use std::sync::atomic::Ordering;

use shm::fabric::layout::*;
use shm::membarrier;

use super::channel::{ChannelCq, CqHandle};
use super::{Cq, CqState};
use crate::{faults, send, xrc};

impl Cq {
    /// Puts the event of an armed queue into its channel, if a completion for which it is armed has been added. Returns
    /// true if moderation holds the event back.
    pub(super) fn report_event_if_due(&self, state: &mut CqState) -> bool {
        if !state.has_reason_for_event() {
            return false;
        }
        if self.does_moderation_hold_event(state) {
            return true;
        }
        let token_of = self.disarm_and_take_token_writer_slot(state);
        if let Some(channel) = &self.channel {
            channel.push_event(self.index, self.handle(), token_of);
        }
        false
    }

    /// Disarms the queue, because its event has occurred. Returns the slot of the peer that has written the event's
    /// token, or is about to.
    pub(super) fn disarm_and_take_token_writer_slot(&self, state: &mut CqState) -> Option<usize> {
        self.resume_overrun_watch(state);
        state.armed_for = ARMED_NO;
        state.unreported_completion_count = 0;
        state.unreported_has_solicited_or_error = false;
        self.armed_word().disarm_and_take_waker()
    }

    /// Writes the tokens that peers could not write.
    pub(super) fn write_lost_tokens(&self) {
        let lost = &self.shared_state().lost_token_count;
        if lost.load(Ordering::Relaxed) != 0
            && let Some(channel) = &self.channel
        {
            // More tokens than a FIFO holds are garbage.
            let lost = lost.swap(0, Ordering::Relaxed).min(1 << 15);
            channel.write_tokens_peers_had_no_room_for(lost as usize, self.index);
        }
    }

    /// [`report_event_if_due`](Self::report_event_if_due) by another thread than the engine. Calls the engine to check
    /// again if the event is held back.
    #[cold]
    pub(super) fn report_event_outside_engine(&self, state: &mut CqState) {
        self.resume_overrun_watch(state);
        if self.report_event_if_due(state) {
            self.nic.this_process().wake_engine();
        }
    }

    /// Returns true if moderation holds the event back for more completions, or for its period (`ibv_modify_cq(3)`).
    /// The engine reads the clock once in a millisecond.
    pub(super) fn does_moderation_hold_event(&self, state: &mut CqState) -> bool {
        let moderation = self
            .packed_moderation_count_and_period
            .load(Ordering::Relaxed);
        let (count, period_us) = (moderation & 0xffff, moderation >> 16);
        if count > 1 && state.unreported_completion_count < count as usize {
            let now = shm::clock::now_ns();
            let since = *state.event_held_by_moderation_since_ns.get_or_insert(now);
            if now - since < u64::from(period_us) * 1000 {
                return true;
            }
        }
        state.event_held_by_moderation_since_ns = None;
        false
    }

    /// Executes `ibv_modify_cq`: one event for `count` completions, or after `period_us` microseconds since the first.
    pub(crate) fn set_moderation(&self, count: u16, period_us: u16) {
        let value = u32::from(count) | u32::from(period_us) << 16;
        self.packed_moderation_count_and_period
            .store(value, Ordering::Relaxed);
        // An event that is held back may be due now.
        self.nic.this_process().wake_engine();
    }

    /// Lets peers that publish call the engine again. Returns true if a peer has called it. Another peer may have
    /// published just before and found the engine called already, so the caller looks for completions once more.
    pub(super) fn reenable_engine_calls(&self) -> bool {
        let armed = self.armed_word();
        let called = armed.clear_engine_wake();
        if called {
            armed.fence_after_change();
        }
        called
    }

    /// Executes `ibv_req_notify_cq`.
    pub(crate) fn arm(&self, solicited_only: bool) {
        self.nic.send_owed_answers();
        self.nic.packet_path.send_before_sleep();
        let depth = self.depth.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        state
            .sending_qps
            .iter()
            .for_each(|qp| send::publish_traffic_if_send_queue_free(qp));
        // Completions up to now belong to the previous arming, or are no reason for an event.
        while state.fill_completion_buffer(depth).0 > 0 {}
        self.report_event_outside_engine(&mut state);
        let armed = self.armed_word();
        let was_armed = state.armed_for != ARMED_NO;
        // "If the CQ is armed for any event, arming it for solicited ones has no effect" (IBTA 11.4.2.2).
        if state.armed_for != ARMED_ANY {
            state.armed_for = if solicited_only {
                ARMED_SOLICITED
            } else {
                ARMED_ANY
            };
            let direct = self.announce_if_peers_may_wake_program(&state);
            if armed.arm(state.armed_for, direct) {
                // SYNC POINT A: from here on a peer that publishes sees the queue armed, or its message is found below.
                membarrier::membarrier_all_processes();
            }
        }
        state.armed_at_pass = state.pass_count;
        armed.fence_after_change();
        // Without an earlier arming, completions up to now are no reason for an event. The engine, kept out by the lock,
        // must not take them for new ones. But completions that a peer has signaled have an event.
        let mut filled = 0;
        while let (n @ 1.., _) = state.fill_completion_buffer(depth) {
            filled += n;
        }
        // The receive queues may have too few RECVs now.
        if filled > 0 && (armed.forbid_program_wakes() || was_armed) {
            self.report_event_outside_engine(&mut state);
        }
        if state.event_held_by_moderation_since_ns.is_none() {
            state.unreported_completion_count = 0;
            state.unreported_has_solicited_or_error = false;
        }
        state.wake_awaited_peers();
        drop(state);
        if xrc::is_xrc_in_use() {
            xrc::arm_domain_cqs(self.nic);
        }
    }

    /// Returns true if peers may wake the program themselves. If so, announces for each queue pair whether any next
    /// message makes a completion.
    fn announce_if_peers_may_wake_program(&self, state: &CqState) -> bool {
        if self.channel.is_none()
            || self
                .packed_moderation_count_and_period
                .load(Ordering::Relaxed)
                != 0
            || faults::may_delay_completions()
            || self.is_overrun()
        {
            return false;
        }
        for side in &state.recv_sides {
            side.publish_whether_any_next_message_completes();
        }
        true
    }

    /// Calls the engine if the queue is armed: something has just completed here.
    #[inline]
    pub(crate) fn call_engine_if_armed(&self) {
        if self.armed_word().is_armed() {
            self.nic.this_process().wake_engine();
        }
    }

    /// Returns true if the queue is armed. Called by threads of this process that have published something.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        let armed = self.armed_word();
        !armed.is_unarmed_unfenced() && {
            // SYNC POINT A
            armed.fence_after_change();
            armed.is_armed()
        }
    }

    /// Returns true if the queue is armed, but only for solicited or failed completions.
    pub(crate) fn is_armed_for_solicited_only(&self) -> bool {
        self.armed_word().is_armed_for_solicited()
    }

    /// Arms the queue for others that are armed (XRC), so that peers that publish call the engine.
    pub(crate) fn arm_for_xrc_cqs(&self) {
        if self.armed_word().arm(ARMED_ANY, false) {
            membarrier::membarrier_all_processes();
        }
    }

    /// Undoes [`arm_for_xrc_cqs`](Self::arm_for_xrc_cqs).
    pub(crate) fn disarm_for_xrc_cqs(&self) {
        self.armed_word().disarm_and_take_waker();
    }

    /// Discards the events of a queue that is being destroyed.
    pub(crate) fn discard_events(&self) {
        let program_woken_by = self.disarm_and_take_token_writer_slot(&mut self.state.lock());
        if let Some(channel) = &self.channel {
            channel.remove_cq(self.index, self.handle(), program_woken_by);
        }
    }

    /// Writes the tokens that the peer in `slot` owed when it died.
    pub(crate) fn write_tokens_owed_by(&self, slot: usize) {
        if self.armed_word().program_woken_by() == Some(slot) {
            // The engine has just processed the messages of that peer.
            self.armed_word().clear_program_wake_and_forbid_more();
        }
        if let Some(channel) = &self.channel {
            channel.write_tokens_owed_by(slot);
        }
    }
}

impl ChannelCq for Cq {
    fn handle(&self) -> CqHandle {
        self.handle()
    }

    fn is_peer_signaled(&self) -> bool {
        self.armed_word().program_woken_by().is_some()
    }

    fn take_peer_signaled_event(&self) -> Option<bool> {
        self.nic.process_arrivals();
        let mut state = self.state.lock();
        let armed = self.armed_word();
        armed.program_woken_by()?;
        let (_, waiting) = state.fill_completion_buffer(self.engine_buffer_target());
        if waiting {
            self.nic.wake_engine_unless_ticking();
        }
        if state.has_reason_for_event() && !self.does_moderation_hold_event(&mut state) {
            self.disarm_and_take_token_writer_slot(&mut state);
            self.unacknowledged_comp_events.note_delivered();
            return Some(true);
        }
        armed.clear_program_wake_and_forbid_more();
        // SYNC POINT A: a peer that has published just before may have found the queue signaled.
        armed.fence_after_change();
        state.fill_completion_buffer(self.engine_buffer_target());
        self.report_event_outside_engine(&mut state);
        Some(false)
    }
}

impl CqState {
    /// Returns true if the queue is armed, and a completion for which it is armed has been added.
    fn has_reason_for_event(&self) -> bool {
        match self.armed_for {
            ARMED_ANY => self.unreported_completion_count > 0,
            ARMED_SOLICITED => self.unreported_has_solicited_or_error,
            _ => false,
        }
    }

    /// Counts completions that have been added.
    #[inline]
    pub(super) fn count_unreported_completions(&mut self, completions: usize, solicited: bool) {
        self.unreported_completion_count += completions;
        self.unreported_has_solicited_or_error |= solicited;
    }
}
