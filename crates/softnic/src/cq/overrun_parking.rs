//! Parking of the watch for overruns: a completion queue in which nothing happens costs no CPU time.
//!
//! The engine checks a watched queue periodically, because a peer does not call the engine of a queue that is not
//! armed. [`QUIET_CHECKS_UNTIL_PARKING`] checks in a row may find no completion and no poll. The engine then *parks* the
//! watch: it arms the queue's word for itself, looks once more, and stops the periodic checks. Every completion in an
//! armed queue calls the engine (`shm/src/fabric/armed.rs`): of records of peers, of acknowledgements, of work requests
//! that complete when they are posted, and of flushed ones.
//!
//! The next check by the engine resumes the watch, whatever it was called for. So do a poll, an arming and an event of
//! the queue, a post, and a change of what the queue can hold or can get.
//!
//! *Price:* after a pause, the first message calls the engine. An event that is then due wakes the program by way of
//! the engine, and not directly.

use shm::fabric::layout::*;
use shm::membarrier;

use super::{Cq, CqState, EngineCheckReason};
use crate::xrc;

/// Number of periodic checks in a row without a completion and without a poll after which the watch is parked. The
/// engine makes them 100 ms and 300 ms after the last time that it was called.
const QUIET_CHECKS_UNTIL_PARKING: u32 = 2;

impl Cq {
    /// Begins a check by the engine. Resumes a parked watch. Otherwise arms the word for the watch if this check
    /// may park the watch; the caller then looks for completions, and calls
    /// [`end_check_and_park_if_quiet`](Self::end_check_and_park_if_quiet).
    pub(super) fn begin_check_and_arm_if_quiet(
        &self,
        state: &mut CqState,
        look: EngineCheckReason,
    ) {
        self.resume_overrun_watch(state);
        let parking = &mut state.watch_parking;
        if look != EngineCheckReason::OverrunWatch
            || parking.pass_count_at_last_check != state.pass_count
        {
            parking.quiet_checks_in_row = 0;
            return;
        }
        // Messages of an XRC domain arrive at another queue, whose word depends on this one.
        if parking.quiet_checks_in_row + 1 < QUIET_CHECKS_UNTIL_PARKING
            || !self.is_watched_for_overrun()
            || xrc::is_xrc_in_use()
        {
            return;
        }
        parking.is_word_armed = true;
        state.armed_at_pass = state.pass_count;
        let armed = self.armed_word();
        if armed.arm(ARMED_ANY, false) {
            // SYNC POINT A: from here on a peer that publishes sees the word armed, or the caller finds its message.
            membarrier::membarrier_all_processes();
        }
        armed.fence_after_change();
    }

    /// Ends a check by the engine. `is_quiet`: it was a periodic check that has found nothing. Parks the watch if the word is
    /// armed for it.
    pub(super) fn end_check_and_park_if_quiet(&self, state: &mut CqState, is_quiet: bool) {
        let parking = &mut state.watch_parking;
        parking.pass_count_at_last_check = state.pass_count;
        parking.quiet_checks_in_row = if is_quiet {
            parking.quiet_checks_in_row.saturating_add(1)
        } else {
            0
        };
        if !parking.is_word_armed {
            return;
        }
        // A peer that has woken the program calls the engine no more.
        if is_quiet && self.armed_word().program_woken_by().is_none() && self.park_counted_watch() {
            return;
        }
        self.disarm_word_of_watch(state);
    }

    /// Resumes the watch if it is parked. The caller looks for completions afterwards, or has called the engine.
    pub(super) fn resume_overrun_watch(&self, state: &mut CqState) {
        if state.watch_parking.is_word_armed {
            self.disarm_word_of_watch(state);
            state.watch_parking.quiet_checks_in_row = 0;
            self.recheck_overrun_watch();
        }
    }

    /// Returns the word to the state in which the program has left it.
    fn disarm_word_of_watch(&self, state: &mut CqState) {
        state.watch_parking.is_word_armed = false;
        let armed = self.armed_word();
        if state.armed_for == ARMED_NO {
            armed.disarm_and_take_waker();
        } else {
            // The bits of a peer that has woken the engine are kept: the engine clears them and looks again.
            armed.arm(state.armed_for, false);
            armed.fence_after_change();
        }
    }
}

#[cfg(test)]
mod tests {
    use shm::fabric::armed::WakeTarget;

    use super::super::tests::queue;
    use super::*;

    /// Checks the queue as the engine does when nothing happens.
    fn check_quiet(cq: &Cq, state: &mut CqState) {
        cq.begin_check_and_arm_if_quiet(state, EngineCheckReason::OverrunWatch);
        cq.end_check_and_park_if_quiet(state, true);
    }

    /// Parks the watch of the queue. The engine may have checked the queue before.
    fn park(cq: &Cq, state: &mut CqState) {
        cq.resume_overrun_watch(state);
        check_quiet(cq, state);
        for _ in 0..QUIET_CHECKS_UNTIL_PARKING {
            if !cq.is_overrun_watch_parked() {
                check_quiet(cq, state);
            }
        }
        assert!(cq.is_overrun_watch_parked() && !cq.is_checked_for_overrun());
        assert!(cq.is_watched_for_overrun());
    }

    /// Returns the thread that a peer wakes which has published a message that certainly completes.
    fn publish(cq: &Cq, solicited: bool) -> WakeTarget {
        let armed = cq.armed_word();
        armed.choose_and_record_wake_target(solicited, 5, |_| WakeTarget::Program)
    }

    fn assert_resumed(cq: &Cq, state: &CqState) {
        assert!(cq.is_checked_for_overrun() && !state.watch_parking.is_word_armed);
    }

    #[test]
    fn a_message_to_a_parked_queue_calls_the_engine_once() {
        let (cq, _channel) = queue();
        cq.add_expected_wrs(1000);
        let mut state = cq.state.lock();
        park(&cq, &mut state);
        assert_eq!(publish(&cq, false), WakeTarget::Engine);
        assert_eq!(publish(&cq, false), WakeTarget::Nobody);
        cq.begin_check_and_arm_if_quiet(&mut state, EngineCheckReason::Called);
        assert_resumed(&cq, &state);
        assert_eq!(publish(&cq, false), WakeTarget::Nobody);
        drop(state);
        cq.remove_expected_wrs(1000);
    }

    #[test]
    fn parking_keeps_the_arming_of_the_program() {
        let (cq, _channel) = queue();
        cq.add_expected_wrs(1000);
        let mut state = cq.state.lock();
        for (armed_for, solicited) in [(ARMED_ANY, false), (ARMED_SOLICITED, true)] {
            state.armed_for = armed_for;
            cq.armed_word().arm(armed_for, true);
            park(&cq, &mut state);
            // An unsolicited message makes no event, but may overrun the queue. The program is not woken directly:
            // the engine would not see the messages that follow.
            assert_eq!(publish(&cq, false), WakeTarget::Engine);
            cq.begin_check_and_arm_if_quiet(&mut state, EngineCheckReason::Called);
            assert_resumed(&cq, &state);
            assert!(cq.reenable_engine_calls());
            assert_eq!(cq.is_armed_for_solicited_only(), solicited);
            assert_eq!(publish(&cq, true), WakeTarget::Engine);
            cq.disarm_and_take_token_writer_slot(&mut state);
        }
        drop(state);
        cq.remove_expected_wrs(1000);
    }

    #[test]
    fn a_queue_that_is_polled_or_whose_program_is_woken_is_not_parked() {
        let (cq, _channel) = queue();
        cq.add_expected_wrs(1000);
        let mut state = cq.state.lock();
        park(&cq, &mut state);
        cq.resume_overrun_watch(&mut state);
        for _ in 0..4 {
            state.pass_count = state.pass_count.wrapping_add(1);
            check_quiet(&cq, &mut state);
            assert_resumed(&cq, &state);
        }
        state.armed_for = ARMED_ANY;
        cq.armed_word().arm(ARMED_ANY, true);
        assert_eq!(publish(&cq, false), WakeTarget::Program);
        for _ in 0..4 {
            check_quiet(&cq, &mut state);
            assert_resumed(&cq, &state);
        }
        assert_eq!(
            cq.disarm_and_take_token_writer_slot(&mut state),
            Some(5),
            "the token is kept"
        );
        drop(state);
        cq.remove_expected_wrs(1000);
    }

    #[test]
    fn events_and_new_work_requests_resume_the_watch() {
        let (cq, _channel) = queue();
        cq.add_expected_wrs(1000);
        let mut state = cq.state.lock();
        park(&cq, &mut state);
        cq.report_event_outside_engine(&mut state);
        assert_resumed(&cq, &state);
        park(&cq, &mut state);
        cq.disarm_and_take_token_writer_slot(&mut state);
        assert_resumed(&cq, &state);
        park(&cq, &mut state);
        cq.add_expected_wrs(1);
        assert!(cq.is_checked_for_overrun());
        cq.remove_expected_wrs(1001);
        assert!(!cq.is_watched_for_overrun());
        // The word was armed for the watch, and the next check disarms it.
        cq.begin_check_and_arm_if_quiet(&mut state, EngineCheckReason::Called);
        assert!(!cq.armed_word().is_armed() && !cq.is_checked_for_overrun());
    }
}
