//! Completion queues.
//!
//! A poll makes completions directly in the caller's `ibv_wc`, from the state of the queue pairs. The buffer of a
//! completion queue is for completions that the engine made while the program slept.

mod arming;
mod attached_qps;
mod buffer;
mod channel;
mod delayed_completions;
mod extended_poll_state;
mod gather_completions;
mod idle_throttle;
mod migrate_thread;
mod overrun;
mod overrun_parking;
mod peer_wakeup;
mod sink;
mod watch_parking;

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use nic_core::peer_wakeup::PeerWakeupTimer;
use verbs_abi::{ibv_cq, ibv_cq_ex, ibv_wc};

use crate::biased_lock::BiasedLock;
use crate::comp_cntr;
use crate::context::Context;
use crate::event::UnacknowledgedEvents;
use crate::faults;
use crate::live_handles;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::recv::RecvSide;
use crate::xrc;
use shm::fabric::armed::ArmedWord;
use shm::fabric::layout::*;

pub(crate) use channel::CompletionChannel;
use channel::CqHandle;
pub(crate) use extended_poll_state::{CurrentCompletion, ExtendedPollState};
use overrun::OverrunState;
pub(crate) use sink::{ReceivedSend, WcSink};

/// A poll checks at most this many queue pairs from the front of the list, and as many again from the round-robin
/// cursor.
const QPS_PER_SCAN_PART: usize = 16;
/// Number of empty polls in a row after which a poll reads the clock.
const POLLS_PER_CLOCK_READ: u32 = 32;

/// Empty rings are checked for their end once in this many passes over the queue pairs.
const PASSES_PER_CLOSED_RING_CHECK: u32 = 64;

/// Number of passes since a queue was armed after which peers need no barrier any more. Arming the queue again then
/// costs a barrier on every core.
const UNARMED_PASSES_UNTIL_PEERS_NEED_NO_FENCE: u32 = 1 << 16;

/// The reason why the engine checks a completion queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineCheckReason {
    /// A completion may have occurred; the last check may have been just now.
    Called,
    /// A completion may have occurred, a tick or more after the last check.
    Tick,
    /// The queue can be overrun.
    OverrunWatch,
}

/// The state that the lock of a completion queue protects.
pub(crate) struct CqState {
    buffered_completions: VecDeque<ibv_wc>,
    /// Completions that a fault plan delays.
    delayed_completions: delayed_completions::DelayedCompletions,
    recv_sides: Vec<RecvSide>,
    sending_qps: Vec<Arc<Qp>>,
    /// Index of the queue pair near the front that is polled first.
    front_receiver_polled_first: usize,
    front_sender_polled_first: usize,
    recv_cursor: usize,
    send_cursor: usize,
    empty_polls_in_row: u32,
    /// Counts the passes that looked for completions.
    pass_count: u32,
    /// Number of the next passes that begin with sends.
    sends_first_passes_left: u8,
    peer_wakeup_timer: PeerWakeupTimer,
    /// The completions that make the next event: `ARMED_ANY`, `ARMED_SOLICITED`, or `ARMED_NO`. Peers see this in
    /// `CqShared::armed_word`.
    armed_for: u32,
    /// Value of `pass_count` when the queue was armed last.
    armed_at_pass: u32,
    /// Completions added since the last arming that no event has reported.
    unreported_completion_count: usize,
    /// True if one of them was solicited or in error.
    unreported_has_solicited_or_error: bool,
    /// Time since which moderation has held an event back.
    event_held_by_moderation_since_ns: Option<u64>,
    /// Number of ticks in a row at which the engine found more in the buffer than the queue's depth.
    overfull_engine_ticks: u32,
    watch_parking: watch_parking::WatchParking,
}

/// A completion queue; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Cq {
    /// The program's structure; it starts with the fields of an `ibv_cq`.
    abi: UnsafeCell<ibv_cq_ex>,
    /// State of the extended poll API, if the queue was made by `ibv_create_cq_ex`.
    pub(crate) extended_poll_state: Option<ExtendedPollState>,
    pub(crate) nic: &'static Nic,
    pub(crate) index: usize,
    /// Number of completions that the queue keeps for a program that does not poll.
    depth: AtomicUsize,
    /// `cq_count` and, in the upper half, `cq_period` of `ibv_modify_cq(3)`.
    packed_moderation_count_and_period: AtomicU32,
    pub(crate) channel: Option<Arc<CompletionChannel>>,
    state: BiasedLock<CqState>,
    /// Number of empty polls in a row after which the poller is throttled.
    throttle_at_idle_polls: AtomicU32,
    /// Number of queue pairs that use the queue; a queue pair counts twice if both its queues complete here.
    pub(crate) qp_use_count: AtomicUsize,
    pub(crate) unacknowledged_comp_events: UnacknowledgedEvents,
    /// The same count for asynchronous events.
    pub(crate) unacknowledged_async_events: UnacknowledgedEvents,
    pub(crate) context: &'static Context,
    overrun_state: OverrunState,
}

// SAFETY: `abi` is written before the handle is given out. Later, the polling thread writes its status and `wr_id`, and
// `polling`; its capacity is an aligned `int`. Everything else is synchronised.
unsafe impl Sync for Cq {}
// SAFETY: as above; the raw pointers in `abi` are not dereferenced here.
unsafe impl Send for Cq {}

live_handles::object!(Cq, ibv_cq);

impl Cq {
    pub(crate) fn new(
        context: &'static Context,
        index: usize,
        depth: usize,
        abi: ibv_cq_ex,
        channel: Option<Arc<CompletionChannel>>,
        polling: Option<ExtendedPollState>,
    ) -> Self {
        let nic = context.nic;
        let ignored = polling.as_ref().is_some_and(|p| p.ignores_overrun);
        if let Some(shared) = nic.this_process().segment.cq(index) {
            shared.armed_word.store(ARMED_NO, Ordering::Relaxed);
            let channel = channel.as_ref().map_or(0, |channel| channel.fifo_number());
            shared.channel_number.store(channel, Ordering::Relaxed);
            shared.lost_token_count.store(0, Ordering::Relaxed);
            shared.use_count.store(0, Ordering::Relaxed);
            let device = context.device.number.into();
            shared.device.store(device, Ordering::Relaxed);
            let cqe = u32::try_from(abi.cqe).unwrap_or(0);
            shared.cqe.store(cqe, Ordering::Relaxed);
        }
        Self {
            abi: UnsafeCell::new(abi),
            extended_poll_state: polling,
            nic,
            index,
            depth: AtomicUsize::new(depth),
            packed_moderation_count_and_period: AtomicU32::new(0),
            channel,
            state: BiasedLock::new(CqState {
                buffered_completions: VecDeque::new(),
                delayed_completions: delayed_completions::DelayedCompletions::default(),
                recv_sides: Vec::new(),
                sending_qps: Vec::new(),
                front_receiver_polled_first: 0,
                front_sender_polled_first: 0,
                recv_cursor: 0,
                send_cursor: 0,
                empty_polls_in_row: 0,
                pass_count: 0,
                sends_first_passes_left: 0,
                peer_wakeup_timer: PeerWakeupTimer::new(),
                armed_for: ARMED_NO,
                armed_at_pass: 0,
                unreported_completion_count: 0,
                unreported_has_solicited_or_error: false,
                event_held_by_moderation_since_ns: None,
                overfull_engine_ticks: 0,
                watch_parking: watch_parking::WatchParking::default(),
            }),
            throttle_at_idle_polls: AtomicU32::new(idle_throttle::IDLE_POLLS_UNTIL_THROTTLE),
            qp_use_count: AtomicUsize::new(0),
            unacknowledged_comp_events: UnacknowledgedEvents::default(),
            unacknowledged_async_events: UnacknowledgedEvents::default(),
            context,
            overrun_state: OverrunState::new(ignored),
        }
    }

    /// Returns the program's handle.
    pub(crate) fn handle(&self) -> CqHandle {
        CqHandle(self.abi.get().cast())
    }

    /// Returns the `cq_context` field of the program's structure.
    pub(crate) fn cq_context(&self) -> *mut c_void {
        // SAFETY: `self` keeps the structure; the program changes this field, if at all, before it waits for events.
        unsafe { (*self.abi.get()).cq_context }
    }

    /// Counts `users` objects that use the queue until they [leave](Self::remove_user) it.
    pub(crate) fn add_users(&self, users: u32) {
        self.qp_use_count
            .fetch_add(users as usize, Ordering::Relaxed);
        self.shared_state()
            .use_count
            .fetch_add(users, Ordering::Relaxed);
    }

    /// Ends the count of an object that [entered](Self::add_users).
    pub(crate) fn remove_user(&self) {
        self.qp_use_count.fetch_sub(1, Ordering::Relaxed);
        self.shared_state()
            .use_count
            .fetch_sub(1, Ordering::Relaxed);
    }

    /// Hides the queue, which the program destroys, from those who list the fabric's objects.
    pub(crate) fn hide_from_listing(&self) {
        self.shared_state().cqe.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn shared_state(&self) -> &'static CqShared {
        match self.nic.this_process().segment.cq(self.index) {
            Some(shared) => shared,
            None => unreachable!("a completion queue has an index below MAX_CQS"),
        }
    }

    /// Returns the word in which peers find, after publishing, whether the queue is armed.
    #[inline]
    fn armed_word(&self) -> ArmedWord<'static> {
        ArmedWord(&self.shared_state().armed_word)
    }

    /// Executes `ibv_poll_cq`: fills `out` from its start and returns the number of completions.
    #[inline(always)]
    pub(crate) fn poll(&self, out: &mut [MaybeUninit<ibv_wc>]) -> usize {
        self.nic.process_arrivals();
        if xrc::is_xrc_in_use() {
            // Messages that have arrived in an XRC domain go to their queues first.
            xrc::deliver_in_all_domains(self.nic);
        }
        let mut state = self.state.lock();
        let mut sink = WcSink::new(out);
        if !state.buffered_completions.is_empty() {
            state.overfull_engine_ticks = 0;
            state.take_from_buffer(&mut sink);
            sink.has_solicited_or_error = false;
        }
        let buffered = sink.len();
        if !sink.is_full() {
            state.gather_completions(&mut sink, QPS_PER_SCAN_PART);
            if comp_cntr::is_counting() {
                comp_cntr::count_new_completions(sink.added_since(buffered));
            }
        }
        if state.armed_for != ARMED_NO && sink.len() > buffered {
            // The completions count as added to the queue, although the caller takes them at once. Another thread may
            // wait for their event.
            state.count_unreported_completions(sink.len() - buffered, sink.has_solicited_or_error);
            self.report_event_outside_engine(&mut state);
        }
        if state
            .pass_count
            .is_multiple_of(PASSES_PER_CLOSED_RING_CHECK)
        {
            self.resume_overrun_watch(&mut state);
            self.end_peer_fences_if_long_unarmed(&state);
        }
        if sink.len() == 0 {
            state.empty_polls_in_row = state.empty_polls_in_row.saturating_add(1);
            if state
                .empty_polls_in_row
                .is_multiple_of(POLLS_PER_CLOCK_READ)
            {
                state.wake_starving_peers_if_due();
            }
            if state.empty_polls_in_row >= self.throttle_at_idle_polls.load(Ordering::Relaxed) {
                drop(state);
                self.throttle_idle_poller();
            }
        } else {
            idle_throttle::reset_fruitless_polls();
            state.empty_polls_in_row = 0;
            state.peer_wakeup_timer.reset();
        }
        sink.len()
    }

    /// Ends the barriers of peers after the program has polled for long without arming the queue.
    #[inline(never)]
    fn end_peer_fences_if_long_unarmed(&self, state: &CqState) {
        if state.armed_for == ARMED_NO
            && state.pass_count.wrapping_sub(state.armed_at_pass)
                >= UNARMED_PASSES_UNTIL_PEERS_NEED_NO_FENCE
        {
            self.armed_word().end_peer_fences();
        }
    }

    /// Throttles a poller that has found nothing for long.
    #[cold]
    fn throttle_idle_poller(&self) {
        self.throttle_at_idle_polls.store(
            idle_throttle::throttle_idle_poller_and_get_polls_until_next(self.index),
            Ordering::Relaxed,
        );
    }

    /// [`poll`](Self::poll) under a fault plan.
    pub(crate) fn poll_under_faults(&self, out: &mut [MaybeUninit<ibv_wc>]) -> usize {
        if !faults::may_delay_completions() {
            return self.poll(out);
        }
        self.nic.process_arrivals();
        if xrc::is_xrc_in_use() {
            xrc::deliver_in_all_domains(self.nic);
        }
        let mut state = self.state.lock();
        // This pass is the program's, not the engine's: the engine would leave datagrams without a receive WR in place.
        let (added, waiting) = state.fill_with_due_completions(usize::MAX, QPS_PER_SCAN_PART);
        if added > 0 {
            self.report_event_outside_engine(&mut state);
        }
        if waiting {
            // The program may now wait for an event instead of polling.
            self.nic.wake_engine_unless_ticking();
        }
        let mut sink = WcSink::new(out);
        state.take_from_buffer(&mut sink);
        if sink.len() > 0 {
            state.empty_polls_in_row = 0;
            state.peer_wakeup_timer.reset();
        } else {
            state.empty_polls_in_row = state.empty_polls_in_row.saturating_add(1);
            if state
                .empty_polls_in_row
                .is_multiple_of(POLLS_PER_CLOCK_READ)
            {
                state.wake_starving_peers_if_due();
            }
        }
        sink.len()
    }

    /// Executes `ibv_resize_cq`.
    ///
    /// # Errors
    /// `EINVAL`: more than `cqe` completions are waiting ("it must be at least the number of unpolled entries in the
    /// CQ", `ibv_resize_cq(3)`).
    pub(crate) fn resize(&self, cqe: u32) -> Result<(), i32> {
        let mut state = self.state.lock();
        // Completions are made on demand, so make as many as decide the question.
        while state.fill_completion_buffer(cqe as usize + 1).0 > 0 {}
        self.report_event_outside_engine(&mut state);
        if state.buffered_completions.len() > cqe as usize {
            return Err(libc::EINVAL);
        }
        self.depth.store(cqe as usize, Ordering::Relaxed);
        state.overfull_engine_ticks = 0;
        self.recheck_overrun_watch();
        self.shared_state().cqe.store(cqe, Ordering::Relaxed);
        let cqe = i32::try_from(cqe).map_err(|_| libc::EINVAL)?;
        // SAFETY: an aligned `int` that the program reads without synchronisation, as with the C library.
        unsafe { (&raw mut (*self.abi.get()).cqe).write_volatile(cqe) };
        Ok(())
    }

    /// Drops the completions of a queue pair that is being reset.
    pub(crate) fn drop_completions_of_qp(&self, qpn: u32) {
        self.state.lock().drop_completions_of_qp(qpn);
    }
}

impl CqState {
    /// Drops the completions of a queue pair.
    fn drop_completions_of_qp(&mut self, qpn: u32) {
        self.buffered_completions.retain(|wc| wc.qp_num != qpn);
        self.delayed_completions.drop_completions_of_qp(qpn);
    }
}

#[cfg(test)]
mod tests;
