//! Completion queues.
//!
//! A poll makes completions directly in the caller's `ibv_wc`, from the state of the queue pairs. The buffer of a
//! completion queue is for completions that the engine made while the program slept.

mod channel;
mod late;
mod overrun;
mod polling;
mod rest;

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use ::faults::CompletionFacts;
use verbs_abi::{IBV_WC_RECV, IBV_WC_SUCCESS, ibv_cq, ibv_cq_ex, ibv_wc};

use crate::biased_lock::BiasedLock;
use crate::comp_cntr;
use crate::context::Context;
use crate::event::UnacknowledgedEvents;
use crate::faults;
use crate::live;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::recv::{RecvSide, round_robin};
use crate::send;
use crate::xrc;
use shm::barrier;
use shm::fabric::armed::ArmedWord;
use shm::fabric::layout::*;

use channel::CqHandle;
pub(crate) use channel::{ChannelCq, CompletionChannel};
use overrun::OverrunState;
pub(crate) use polling::{CurrentCompletion, ExtendedPollState};

/// Number of queue pairs that each poll checks from the front, and as many from the cursor.
const FRONT_AND_CURSOR_QPS_PER_SCAN: usize = 16;
/// Number of empty polls in a row after which peers that owe us progress are woken for the first time.
const EMPTY_POLLS_UNTIL_PEER_WAKEUP: u32 = 4096;

/// The same as a time in nanoseconds, for a program that rarely runs between its polls. It reads the clock once in
/// [`POLLS_PER_CLOCK_READ`] polls.
const EMPTY_TIME_UNTIL_PEER_WAKEUP_NS: u64 = 1_000_000;
const POLLS_PER_CLOCK_READ: u32 = 32;

/// Unsignaled sends are checked once in this many empty polls.
const POLLS_PER_UNSIGNALED_CHECK: u32 = 64;

/// Empty rings are checked for their end once in this many passes over the queue pairs.
const PASSES_PER_CLOSED_RING_CHECK: u32 = 64;

/// Number of passes since a queue was armed after which peers need no barrier any more. Arming the queue again then
/// costs a barrier on every core.
const UNARMED_PASSES_UNTIL_PEERS_NEED_NO_FENCE: u32 = 1 << 16;

/// Number of polls in a row that begin with sends after receives alone have filled a poll, as long as sends fill them.
const SENDS_FIRST_POLLS_AFTER_RECEIVES_FILL_ONE: u8 = 4;

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

/// The destination of polled completions: an array of the caller, filled from the front.
pub(crate) struct WcSink<'a> {
    out: &'a mut [MaybeUninit<ibv_wc>],
    len: usize,
    /// True if a completion was solicited or in error.
    pub(crate) has_solicited_or_error: bool,
    /// True if the completions go to the buffer of the queue, from which the program takes them later.
    pub(crate) is_for_buffer: bool,
}

impl<'a> WcSink<'a> {
    /// Returns a sink for completions that the program gets at once.
    pub(crate) fn new(out: &'a mut [MaybeUninit<ibv_wc>]) -> Self {
        Self {
            out,
            len: 0,
            has_solicited_or_error: false,
            is_for_buffer: false,
        }
    }

    /// Returns a sink for completions that go to the buffer of the queue.
    pub(crate) fn for_buffer(out: &'a mut [MaybeUninit<ibv_wc>]) -> Self {
        Self {
            is_for_buffer: true,
            ..Self::new(out)
        }
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len == self.out.len()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the completions behind the first `before`.
    fn added_since(&self, before: usize) -> &[ibv_wc] {
        let made = self.out.get(before..self.len).unwrap_or_default();
        // SAFETY: the first `len` places have been written (`push`, `push_successful_wc_as_words`).
        unsafe { std::slice::from_raw_parts(made.as_ptr().cast(), made.len()) }
    }

    /// Returns the number of completions that can still be added.
    #[inline(always)]
    pub(crate) fn free_entries(&self) -> usize {
        self.out.len() - self.len
    }

    /// Adds a completion; there is room.
    #[inline]
    pub(crate) fn push(&mut self, wc: ibv_wc) {
        debug_assert!(!self.is_full());
        if wc.status != IBV_WC_SUCCESS {
            self.has_solicited_or_error = true;
        }
        if let Some(place) = self.out.get_mut(self.len) {
            place.write(wc);
            self.len += 1;
        }
    }

    /// Adds the completion of a work request that succeeded; there is room.
    #[inline(always)]
    pub(crate) fn push_sent(&mut self, wr_id: u64, opcode: u32, byte_len: u32, qp_num: u32) {
        self.push_successful_wc_as_words([
            wr_id,
            in_upper_half(opcode),
            in_upper_half(byte_len),
            in_upper_half(qp_num),
            0,
            0,
        ]);
    }

    /// Adds the completion of a receive WR that a SEND has used; there is room.
    #[inline(always)]
    pub(crate) fn push_received(&mut self, wc: &ReceivedSend) {
        self.push_successful_wc_as_words([
            wc.wr_id,
            in_upper_half(IBV_WC_RECV),
            in_upper_half(wc.byte_len),
            in_upper_half(wc.qp_num) | u64::from(wc.imm),
            in_upper_half(wc.wc_flags) | u64::from(wc.src_qp),
            wc.last_wc_word,
        ]);
    }

    /// Adds a successful completion as words. Each store here waits behind WRITEs that wait for their cache line, and
    /// the compiler would make one store of each field.
    #[inline(always)]
    fn push_successful_wc_as_words(&mut self, words: [u64; 6]) {
        const {
            assert!(cfg!(target_endian = "little") && IBV_WC_SUCCESS == 0);
            assert!(size_of::<ibv_wc>() == 48 && std::mem::offset_of!(ibv_wc, opcode) == 12);
            assert!(std::mem::offset_of!(ibv_wc, byte_len) == 20);
            assert!(std::mem::offset_of!(ibv_wc, imm) == 24);
            assert!(std::mem::offset_of!(ibv_wc, qp_num) == 28);
            assert!(std::mem::offset_of!(ibv_wc, src_qp) == 32);
            assert!(std::mem::offset_of!(ibv_wc, wc_flags) == 36);
            assert!(std::mem::offset_of!(ibv_wc, slid) == 42);
            assert!(std::mem::offset_of!(ibv_wc, sl) == 44);
            assert!(std::mem::offset_of!(ibv_wc, dlid_path_bits) == 45);
        }
        debug_assert!(!self.is_full());
        if let Some(place) = self.out.get_mut(self.len) {
            // SAFETY: both types are equally large and consist of integers, for which any bytes are a value.
            place.write(unsafe { std::mem::transmute::<[u64; 6], ibv_wc>(words) });
            self.len += 1;
        }
    }
}

/// Returns a field in the upper half of a word.
#[inline(always)]
fn in_upper_half(field: u32) -> u64 {
    u64::from(field) << 32
}

/// The values in the completion of a received SEND.
pub(crate) struct ReceivedSend {
    pub(crate) wr_id: u64,
    pub(crate) byte_len: u32,
    /// The immediate, as stored in the work request.
    pub(crate) imm: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    /// The last word of the completion: partition index, LID of the sender, service level and path bits.
    pub(crate) last_wc_word: u64,
}

/// The state that the lock of a completion queue protects.
pub(crate) struct CqState {
    buffer: VecDeque<ibv_wc>,
    /// Completions that a fault plan delays.
    delayed_completions: late::LateCompletions,
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
    empty_polls_until_peer_wakeup: u32,
    /// Time of the first reading of the clock in the current row of empty polls.
    idle_since_ns: Option<u64>,
    /// The completions that make the next event: `ARMED_ANY`, `ARMED_SOLICITED`, or `ARMED_NO`. Peers see this in
    /// `CqShared::armed_word`.
    armed_for: u32,
    /// Value of `pass_count` when the queue was armed last.
    armed_at_pass: u32,
    /// Completions added since the last arming that no event has reported.
    unreported_completions: usize,
    /// True if one of them was solicited or in error.
    unreported_has_solicited_or_error: bool,
    /// Time since which moderation has held an event back.
    event_held_by_moderation_since_ns: Option<u64>,
    /// Number of ticks in a row at which the engine found more in the buffer than the queue's depth.
    overfull_engine_ticks: u32,
}

/// A completion queue; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Cq {
    /// The program's structure; it starts with the fields of an `ibv_cq`.
    abi: UnsafeCell<ibv_cq_ex>,
    /// State of the extended poll API, if the queue was made by `ibv_create_cq_ex`.
    pub(crate) polling: Option<ExtendedPollState>,
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
    pub(crate) user_count: AtomicUsize,
    pub(crate) unacknowledged_comp_events: UnacknowledgedEvents,
    /// The same count for asynchronous events.
    pub(crate) unacknowledged_async_events: UnacknowledgedEvents,
    pub(crate) context: &'static Context,
    overrun: OverrunState,
}

// SAFETY: `abi` is written before the handle is given out. Later, the polling thread writes its status and `wr_id`, and
// `polling`; its capacity is an aligned `int`. Everything else is synchronised.
unsafe impl Sync for Cq {}
// SAFETY: as above; the raw pointers in `abi` are not dereferenced here.
unsafe impl Send for Cq {}

live::object!(Cq, ibv_cq);

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
            shared.lost_tokens.store(0, Ordering::Relaxed);
            shared.use_count.store(0, Ordering::Relaxed);
            let device = context.device.number.into();
            shared.device.store(device, Ordering::Relaxed);
            let cqe = u32::try_from(abi.cqe).unwrap_or(0);
            shared.cqe.store(cqe, Ordering::Relaxed);
        }
        Self {
            abi: UnsafeCell::new(abi),
            polling,
            nic,
            index,
            depth: AtomicUsize::new(depth),
            packed_moderation_count_and_period: AtomicU32::new(0),
            channel,
            state: BiasedLock::new(CqState {
                buffer: VecDeque::new(),
                delayed_completions: late::LateCompletions::default(),
                recv_sides: Vec::new(),
                sending_qps: Vec::new(),
                front_receiver_polled_first: 0,
                front_sender_polled_first: 0,
                recv_cursor: 0,
                send_cursor: 0,
                empty_polls_in_row: 0,
                pass_count: 0,
                sends_first_passes_left: 0,
                empty_polls_until_peer_wakeup: EMPTY_POLLS_UNTIL_PEER_WAKEUP,
                idle_since_ns: None,
                armed_for: ARMED_NO,
                armed_at_pass: 0,
                unreported_completions: 0,
                unreported_has_solicited_or_error: false,
                event_held_by_moderation_since_ns: None,
                overfull_engine_ticks: 0,
            }),
            throttle_at_idle_polls: AtomicU32::new(rest::IDLE_POLLS_UNTIL_THROTTLE),
            user_count: AtomicUsize::new(0),
            unacknowledged_comp_events: UnacknowledgedEvents::default(),
            unacknowledged_async_events: UnacknowledgedEvents::default(),
            context,
            overrun: OverrunState::new(ignored),
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
        self.user_count.fetch_add(users as usize, Ordering::Relaxed);
        self.shared().use_count.fetch_add(users, Ordering::Relaxed);
    }

    /// Ends the count of an object that [entered](Self::add_users).
    pub(crate) fn remove_user(&self) {
        self.user_count.fetch_sub(1, Ordering::Relaxed);
        self.shared().use_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Hides the queue, which the program destroys, from those who list the fabric's objects.
    pub(crate) fn hide_from_listing(&self) {
        self.shared().cqe.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn shared(&self) -> &'static CqShared {
        match self.nic.this_process().segment.cq(self.index) {
            Some(shared) => shared,
            None => unreachable!("a completion queue has an index below MAX_CQS"),
        }
    }

    /// Returns the word in which peers find, after publishing, whether the queue is armed.
    #[inline]
    fn armed_word(&self) -> ArmedWord<'static> {
        ArmedWord(&self.shared().armed_word)
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
        if !state.buffer.is_empty() {
            state.overfull_engine_ticks = 0;
            state.take_from_buffer(&mut sink);
            sink.has_solicited_or_error = false;
        }
        let buffered = sink.len();
        if !sink.is_full() {
            state.gather_completions(&mut sink, FRONT_AND_CURSOR_QPS_PER_SCAN);
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
            self.end_peer_fences_if_long_unarmed(&state);
        }
        if sink.len() == 0 {
            state.empty_polls_in_row = state.empty_polls_in_row.saturating_add(1);
            if state
                .empty_polls_in_row
                .is_multiple_of(POLLS_PER_CLOCK_READ)
                && state.check_peer_wakeup_due_and_back_off()
            {
                state.wake_awaited_peers();
            }
            if state.empty_polls_in_row >= self.throttle_at_idle_polls.load(Ordering::Relaxed) {
                drop(state);
                self.throttle_idle_poller();
            }
        } else {
            rest::reset_fruitless_polls();
            state.empty_polls_in_row = 0;
            state.empty_polls_until_peer_wakeup = EMPTY_POLLS_UNTIL_PEER_WAKEUP;
            state.idle_since_ns = None;
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
            rest::throttle_idle_poller_and_get_polls_until_next(self.index),
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
        let (added, waiting) =
            state.fill_with_due_completions(usize::MAX, FRONT_AND_CURSOR_QPS_PER_SCAN);
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
            state.empty_polls_until_peer_wakeup = EMPTY_POLLS_UNTIL_PEER_WAKEUP;
            state.idle_since_ns = None;
        } else {
            state.empty_polls_in_row = state.empty_polls_in_row.saturating_add(1);
            if state
                .empty_polls_in_row
                .is_multiple_of(POLLS_PER_CLOCK_READ)
                && state.check_peer_wakeup_due_and_back_off()
            {
                state.wake_awaited_peers();
            }
        }
        sink.len()
    }

    /// Makes progress for the engine: completions go to the buffer, as many as the queue was made for. Returns true if
    /// the engine is to check again at the next tick: a queue pair waits for a deadline, or the queue may be overrun.
    pub(crate) fn make_engine_progress(&self, look: EngineCheckReason) -> bool {
        if self.is_overrun() {
            return false;
        }
        let mut waiting = false;
        // A thread that holds the lock is polling, and makes the progress. If the queue is armed, that thread may be
        // about to sleep, so wait for the lock.
        let state = if self.armed_word().is_armed() {
            Some(self.state.lock())
        } else {
            self.state.try_lock_unless_in_steady_use()
        };
        // This case does not tell whether a deadline runs, so check again at the next tick. A queue that is polled is
        // not overrun.
        let Some(mut state) = state else {
            return look != EngineCheckReason::OverrunWatch;
        };
        self.write_tokens_peers_could_not_write();
        let mut held_back;
        loop {
            let (n, deadline) = state.fill_completion_buffer(self.engine_buffer_target());
            waiting |= deadline;
            held_back = self.report_event_if_due(&mut state);
            if n == 0 && !(state.armed_for != ARMED_NO && self.reenable_engine_calls()) {
                break;
            }
        }
        if waiting {
            state.wake_awaited_peers();
        }
        waiting | held_back | self.check_overrun(state, look)
    }

    /// Moves completions to the buffer, for a program that does not poll.
    pub(crate) fn move_completions_to_buffer(&self) {
        self.nic.process_arrivals();
        if xrc::is_xrc_in_use() {
            xrc::deliver_in_all_domains(self.nic);
        }
        self.make_engine_progress(EngineCheckReason::Called);
    }

    /// Puts the event of an armed queue into its channel, if a completion for which it is armed has been added. Returns
    /// true if moderation holds the event back.
    fn report_event_if_due(&self, state: &mut CqState) -> bool {
        if !state.has_reason_for_event() {
            return false;
        }
        if self.moderation_holds_event(state) {
            return true;
        }
        let token_of = self.disarm_and_take_token_writer_slot(state);
        if let Some(channel) = &self.channel {
            channel.push(self.index, self.handle(), token_of);
        }
        false
    }

    /// Disarms the queue, because its event has occurred. Returns the slot of the peer that has written the event's
    /// token, or is about to.
    fn disarm_and_take_token_writer_slot(&self, state: &mut CqState) -> Option<usize> {
        state.armed_for = ARMED_NO;
        state.unreported_completions = 0;
        state.unreported_has_solicited_or_error = false;
        self.armed_word().disarm_and_take_waker()
    }

    /// Writes the tokens that peers could not write.
    fn write_tokens_peers_could_not_write(&self) {
        let lost = &self.shared().lost_tokens;
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
    fn report_event_outside_engine(&self, state: &mut CqState) {
        if self.report_event_if_due(state) {
            self.nic.this_process().wake_engine();
        }
    }

    /// Returns true if moderation holds the event back for more completions, or for its period (`ibv_modify_cq(3)`).
    /// The engine reads the clock once in a millisecond.
    fn moderation_holds_event(&self, state: &mut CqState) -> bool {
        let moderation = self
            .packed_moderation_count_and_period
            .load(Ordering::Relaxed);
        let (count, period_us) = (moderation & 0xffff, moderation >> 16);
        if count > 1 && state.unreported_completions < count as usize {
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
    fn reenable_engine_calls(&self) -> bool {
        let armed = self.armed_word();
        let called = armed.clear_engine_wake();
        if called {
            armed.fence_after_change();
        }
        called
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
        if state.buffer.len() > cqe as usize {
            return Err(libc::EINVAL);
        }
        self.depth.store(cqe as usize, Ordering::Relaxed);
        state.overfull_engine_ticks = 0;
        self.recheck_overrun_watch();
        self.shared().cqe.store(cqe, Ordering::Relaxed);
        let cqe = i32::try_from(cqe).map_err(|_| libc::EINVAL)?;
        // SAFETY: an aligned `int` that the program reads without synchronisation, as with the C library.
        unsafe { (&raw mut (*self.abi.get()).cqe).write_volatile(cqe) };
        Ok(())
    }

    /// Executes `ibv_req_notify_cq`.
    pub(crate) fn arm(&self, solicited_only: bool) {
        self.nic.send_owed_answers();
        self.nic.packet_path.flush_before_sleep();
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
        // "If the CQ is armed for any event, arming it for solicited ones has no effect" (IBTA 11.4.2.2).
        if state.armed_for != ARMED_ANY {
            state.armed_for = if solicited_only {
                ARMED_SOLICITED
            } else {
                ARMED_ANY
            };
            let direct = self.may_peers_wake_program(&state);
            if armed.arm(state.armed_for, direct) {
                // SYNC POINT A: from here on a peer that publishes sees the queue armed, or its message is found below.
                barrier::membarrier_all_processes();
            }
        }
        state.armed_at_pass = state.pass_count;
        armed.fence_after_change();
        // Completions up to now are no reason for an event. The engine, kept out by the lock, must not take them for
        // new ones. But completions that a peer has signaled have an event.
        let mut filled = 0;
        while let (n @ 1.., _) = state.fill_completion_buffer(depth) {
            filled += n;
        }
        // The receive queues may have too few RECVs now.
        if filled > 0 && armed.end_program_wakes() {
            self.report_event_outside_engine(&mut state);
        }
        if state.event_held_by_moderation_since_ns.is_none() {
            state.unreported_completions = 0;
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
    fn may_peers_wake_program(&self, state: &CqState) -> bool {
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

    /// Adds a completion to the buffer, for a program that has not polled yet.
    pub(crate) fn add_to_buffer(&self, wc: ibv_wc, solicited: bool) {
        self.add_many_to_buffer(|buffer, any_solicited| {
            buffer.push_back(wc);
            *any_solicited |= solicited;
        });
    }

    /// Adds the completion that `make` may put into a sink with one place.
    pub(crate) fn add_completion_made_by(&self, make: impl FnOnce(&mut WcSink<'_>)) {
        let mut out = [const { MaybeUninit::uninit() }; 1];
        let mut sink = WcSink::new(&mut out);
        let mut state = self.state.lock();
        make(&mut sink);
        if sink.len() == 0 || self.is_overrun() {
            return;
        }
        state.count_unreported_completions(1, sink.has_solicited_or_error);
        if comp_cntr::is_counting() {
            comp_cntr::count_new_completions(sink.added_since(0));
        }
        // SAFETY: the sink has initialised its place.
        state.buffer.push_back(unsafe { out[0].assume_init_read() });
        self.report_event_outside_engine(&mut state);
    }

    /// Adds the completions that `make` puts into the buffer, under the lock. `make` tells whether one was solicited.
    pub(crate) fn add_many_to_buffer(&self, make: impl FnOnce(&mut VecDeque<ibv_wc>, &mut bool)) {
        let mut state = self.state.lock();
        let CqState {
            buffer,
            unreported_has_solicited_or_error: solicited,
            ..
        } = &mut *state;
        let before = buffer.len();
        make(buffer, solicited);
        if self.is_overrun() {
            buffer.truncate(before);
        }
        let made = buffer.len() - before;
        if comp_cntr::is_counting() {
            let new: Vec<ibv_wc> = buffer.range(before..).copied().collect();
            comp_cntr::count_new_completions(&new);
        }
        state.count_unreported_completions(made, false);
        self.report_event_outside_engine(&mut state);
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
            barrier::membarrier_all_processes();
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

    pub(crate) fn add_sender(&self, qp: &Arc<Qp>) {
        let mut state = self.state.lock();
        if !self.is_overrun() {
            qp.index_in_send_cq
                .store(state.sending_qps.len(), Ordering::Relaxed);
            state.sending_qps.push(Arc::clone(qp));
        }
        drop(state);
        self.add_expected_wrs(qp.max_send_and_recv_wrs().0);
    }

    pub(crate) fn remove_sender(&self, qp: &Qp) {
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

    pub(crate) fn add_receiver(&self, qp: &Arc<Qp>) {
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

    pub(crate) fn remove_receiver(&self, qp: &Qp) {
        let mut state = self.state.lock();
        let place = qp.index_in_recv_cq.load(Ordering::Relaxed);
        if state
            .recv_sides
            .get(place)
            .is_some_and(|r| r.qp().index == qp.index)
        {
            state.recv_sides.swap_remove(place).detach_all();
            if let Some(moved) = state.recv_sides.get(place) {
                moved.qp().index_in_recv_cq.store(place, Ordering::Relaxed);
            }
        }
        state.drop_completions_of_qp(qp.qpn);
        drop(state);
        self.remove_expected_receives(qp);
    }

    /// Drops the completions of a queue pair that is being reset.
    pub(crate) fn drop_completions_of_qp(&self, qpn: u32) {
        self.state.lock().drop_completions_of_qp(qpn);
    }

    /// Runs `f` on the receive side of `qp`, or on `None` if the queue is overrun.
    pub(crate) fn with_receiver(&self, qp: &Qp, f: impl FnOnce(Option<&mut RecvSide>)) {
        let mut state = self.state.lock();
        let place = qp.index_in_recv_cq.load(Ordering::Relaxed);
        let side = state.recv_sides.get_mut(place);
        f(side.filter(|r| r.qp().index == qp.index));
    }

    /// Moves completions of the messages that have arrived for `qp` to the buffer, before a flush or reset.
    pub(crate) fn complete_arrived_messages_into_buffer(&self, qp: &Qp) {
        let place = qp.index_in_recv_cq.load(Ordering::Relaxed);
        self.drain_into_buffer(|state, sink| {
            if let Some(side) = state
                .recv_sides
                .get_mut(place)
                .filter(|r| r.qp().index == qp.index)
            {
                side.complete_arrived_records(sink, usize::MAX, true);
            }
        });
    }

    /// Moves completions of the finished sends of `qp` to the buffer, before a flush.
    pub(crate) fn complete_finished_sends_into_buffer(&self, qp: &Qp) {
        self.drain_into_buffer(|_, sink| {
            qp.poll_sends(sink, true);
        });
    }

    /// Moves the completions that `gather` makes to the buffer, until it makes none.
    fn drain_into_buffer(&self, gather: impl Fn(&mut CqState, &mut WcSink<'_>)) {
        let mut state = self.state.lock();
        if self.is_overrun() {
            return;
        }
        // Late completions come first, in the order in which they were made.
        state.move_due_completions_to_buffer(u64::MAX);
        loop {
            let mut out = [const { MaybeUninit::uninit() }; 64];
            let mut sink = WcSink::for_buffer(&mut out);
            gather(&mut state, &mut sink);
            let n = sink.len();
            if n == 0 {
                break;
            }
            state.count_unreported_completions(n, sink.has_solicited_or_error);
            if comp_cntr::is_counting() {
                comp_cntr::count_new_completions(sink.added_since(0));
            }
            // SAFETY: the sink has initialised the first `n` places.
            state
                .buffer
                .extend(out[..n].iter().map(|wc| unsafe { wc.assume_init_read() }));
        }
        self.report_event_outside_engine(&mut state);
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
        if state.has_reason_for_event() && !self.moderation_holds_event(&mut state) {
            self.disarm_and_take_token_writer_slot(&mut state);
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
    /// Drops the completions of a queue pair.
    fn drop_completions_of_qp(&mut self, qpn: u32) {
        self.buffer.retain(|wc| wc.qp_num != qpn);
        self.delayed_completions.drop_completions_of_qp(qpn);
    }

    /// Moves completions from the buffer to a program that polls.
    fn take_from_buffer(&mut self, sink: &mut WcSink<'_>) {
        while !sink.is_full() {
            let Some(wc) = self.buffer.pop_front() else {
                return;
            };
            if wc.opcode < IBV_WC_RECV {
                let mut senders = self.sending_qps.iter();
                if let Some(qp) = senders.find(|qp| qp.qpn == wc.qp_num) {
                    send::free_place_of_polled_completion(qp);
                }
            }
            sink.push(wc);
        }
    }

    /// Returns true if the queue is armed, and a completion for which it is armed has been added.
    fn has_reason_for_event(&self) -> bool {
        match self.armed_for {
            ARMED_ANY => self.unreported_completions > 0,
            ARMED_SOLICITED => self.unreported_has_solicited_or_error,
            _ => false,
        }
    }

    /// Counts completions that have been added.
    #[inline]
    fn count_unreported_completions(&mut self, completions: usize, solicited: bool) {
        self.unreported_completions += completions;
        self.unreported_has_solicited_or_error |= solicited;
    }

    /// Makes completions for `sink` from the queue pairs of this completion queue. Checks `scan` of them from the front
    /// and as many from the cursor on. Returns true if one of them waits for a deadline.
    ///
    /// Receives come first, and the front before the rest. Every eighth time the order is reversed, so that a busy
    /// queue does not starve the others, however few completions are asked for. After receives alone have filled a
    /// poll, sends have their turn. This is for a program that takes one completion at a time, and is always answered
    /// before the next. Otherwise it would never learn that its send queue has room. On a NIC it does, since
    /// completions come in the order of time.
    #[inline(always)]
    fn gather_completions(&mut self, sink: &mut WcSink<'_>, scan: usize) -> bool {
        let all = scan == usize::MAX
            || self.empty_polls_in_row % POLLS_PER_UNSIGNALED_CHECK
                == POLLS_PER_UNSIGNALED_CHECK - 1;
        self.pass_count = self.pass_count.wrapping_add(1);
        let ended =
            scan == usize::MAX || self.pass_count.is_multiple_of(PASSES_PER_CLOSED_RING_CHECK);
        if self.recv_sides.len() <= 1 && self.sending_qps.len() <= 1 {
            self.gather_from_one_qp(sink, scan, all, ended)
        } else {
            self.gather_from_many(sink, scan, all, ended)
        }
    }

    /// [`gather_completions`](Self::gather_completions) for several queue pairs.
    #[inline(never)]
    fn gather_from_many(
        &mut self,
        sink: &mut WcSink<'_>,
        scan: usize,
        all: bool,
        ended: bool,
    ) -> bool {
        match self.pass_count % 16 {
            0 => {
                self.gather_cursor_sends(sink, scan, all)
                    | self.gather_front_sends(sink, scan, all)
                    | self.gather_cursor_receives(sink, scan, ended)
                    | self.gather_front_receives(sink, scan, ended)
            }
            8 => {
                self.gather_cursor_receives(sink, scan, ended)
                    | self.gather_cursor_sends(sink, scan, all)
                    | self.gather_front_receives(sink, scan, ended)
                    | self.gather_front_sends(sink, scan, all)
            }
            _ if self.sends_first_passes_left > 0 => {
                let mut waiting = self.gather_front_sends(sink, scan, all)
                    | self.gather_cursor_sends(sink, scan, all);
                self.sends_first_passes_left = if sink.is_full() {
                    self.sends_first_passes_left - 1
                } else {
                    0
                };
                waiting |= self.gather_front_receives(sink, scan, ended);
                waiting | self.gather_cursor_receives(sink, scan, ended)
            }
            _ => {
                let mut waiting = self.gather_front_receives(sink, scan, ended);
                waiting |= self.gather_cursor_receives(sink, scan, ended);
                if sink.is_full() {
                    self.sends_first_passes_left = SENDS_FIRST_POLLS_AFTER_RECEIVES_FILL_ONE;
                }
                waiting |= self.gather_front_sends(sink, scan, all);
                waiting | self.gather_cursor_sends(sink, scan, all)
            }
        }
    }

    /// [`gather_completions`](Self::gather_completions) for one queue pair, as in a latency-bound program: it needs no
    /// round over queue pairs.
    #[inline(always)]
    fn gather_from_one_qp(
        &mut self,
        sink: &mut WcSink<'_>,
        scan: usize,
        all: bool,
        ended: bool,
    ) -> bool {
        let mut waiting = false;
        if self.sends_first_passes_left > 0 || self.pass_count.is_multiple_of(8) {
            if let [qp] = &self.sending_qps[..] {
                waiting = qp.poll_sends(sink, all);
            }
            let filled = sink.is_full();
            self.sends_first_passes_left =
                self.sends_first_passes_left.saturating_sub(1) * u8::from(filled);
            if !filled && let [side] = &mut self.recv_sides[..] {
                waiting |= side.complete_arrived_records(sink, scan, ended);
            }
        } else {
            if let [side] = &mut self.recv_sides[..] {
                waiting = side.complete_arrived_records(sink, scan, ended);
                if sink.is_full() {
                    self.sends_first_passes_left = SENDS_FIRST_POLLS_AFTER_RECEIVES_FILL_ONE;
                    return waiting;
                }
            }
            if let [qp] = &self.sending_qps[..] {
                waiting |= qp.poll_sends(sink, all);
            }
        }
        waiting
    }

    /// Makes completions for the buffer, at most 64 at a time and no more than `depth` allows. Returns their number,
    /// and whether a queue pair waits for a deadline.
    fn fill_completion_buffer(&mut self, depth: usize) -> (usize, bool) {
        const COMPLETIONS_PER_BATCH: usize = 64;
        let room = depth
            .saturating_sub(self.buffer.len())
            .min(COMPLETIONS_PER_BATCH);
        if room == 0 {
            return (0, false);
        }
        if faults::may_delay_completions() {
            return self.fill_with_due_completions(room, usize::MAX);
        }
        let mut out = [const { MaybeUninit::uninit() }; COMPLETIONS_PER_BATCH];
        let mut sink = WcSink::for_buffer(&mut out[..room]);
        let waiting = self.gather_completions(&mut sink, usize::MAX);
        let n = sink.len();
        self.count_unreported_completions(n, sink.has_solicited_or_error);
        if comp_cntr::is_counting() {
            comp_cntr::count_new_completions(sink.added_since(0));
        }
        // SAFETY: the sink has initialised the first `n` places.
        self.buffer
            .extend(out[..n].iter().map(|wc| unsafe { wc.assume_init_read() }));
        (n, waiting)
    }

    /// [`fill_completion_buffer`](Self::fill_completion_buffer) under a fault plan that delays completions: those that
    /// are due go to the buffer. Returns their number, and whether the engine is to check again at the next tick.
    #[cold]
    fn fill_with_due_completions(&mut self, room: usize, scan: usize) -> (usize, bool) {
        let mut out = [const { MaybeUninit::uninit() }; 64];
        let room = room.min(out.len());
        let mut sink = WcSink::for_buffer(&mut out[..room]);
        let waiting = self.gather_completions(&mut sink, scan);
        let (n, solicited) = (sink.len(), sink.has_solicited_or_error);
        let now = shm::clock::now_ns();
        for place in &out[..n] {
            // SAFETY: the sink has initialised the first `n` places.
            let wc = unsafe { place.assume_init_read() };
            let facts = CompletionFacts {
                operation: late::fault_operation_of_wc_opcode(wc.opcode),
                queue_pair: faults::latest_queue_pair(wc.qp_num),
            };
            let delay_ns = faults::completion_delay_ns(&facts, wc.wr_id);
            self.delayed_completions
                .push(wc, solicited, now.saturating_add(delay_ns));
        }
        let released = self.move_due_completions_to_buffer(now);
        (released, waiting | !self.delayed_completions.is_empty())
    }

    /// Moves completions that are due by `now_ns` to the buffer. Returns their number.
    fn move_due_completions_to_buffer(&mut self, now_ns: u64) -> usize {
        let mut released = 0;
        while let Some((wc, solicited)) = self.delayed_completions.pop_due(now_ns) {
            if comp_cntr::is_counting() {
                comp_cntr::count_new_completions(&[wc]);
            }
            self.buffer.push_back(wc);
            self.count_unreported_completions(1, solicited);
            released += 1;
        }
        released
    }

    #[inline]
    fn gather_front_receives(&mut self, sink: &mut WcSink<'_>, scan: usize, ended: bool) -> bool {
        if sink.is_full() {
            return false;
        }
        let near = self.recv_sides.len().min(scan);
        let mut waiting = false;
        for i in round_robin(self.front_receiver_polled_first, near) {
            waiting |= self.recv_sides[i].complete_arrived_records(sink, scan, ended);
            if sink.is_full() {
                // The next poll starts behind the queue pair where this poll had to stop.
                self.front_receiver_polled_first = i + 1;
                return waiting;
            }
        }
        self.front_receiver_polled_first = 0;
        waiting
    }

    #[inline]
    fn gather_cursor_receives(&mut self, sink: &mut WcSink<'_>, scan: usize, ended: bool) -> bool {
        let n = self.recv_sides.len();
        let mut waiting = false;
        if n > scan {
            for _ in 0..scan {
                if sink.is_full() {
                    break;
                }
                self.recv_cursor = next_cursor(self.recv_cursor, scan, n);
                let before = sink.len();
                waiting |=
                    self.recv_sides[self.recv_cursor].complete_arrived_records(sink, scan, ended);
                if sink.len() > before {
                    self.swap_receivers(self.recv_cursor, self.recv_cursor % scan);
                }
            }
        }
        waiting
    }

    #[inline]
    fn gather_front_sends(&mut self, sink: &mut WcSink<'_>, scan: usize, all: bool) -> bool {
        if sink.is_full() {
            return false;
        }
        let near = self.sending_qps.len().min(scan);
        let mut waiting = false;
        for i in round_robin(self.front_sender_polled_first, near) {
            waiting |= self.sending_qps[i].poll_sends(sink, all);
            if sink.is_full() {
                self.front_sender_polled_first = i + 1;
                return waiting;
            }
        }
        self.front_sender_polled_first = 0;
        waiting
    }

    #[inline]
    fn gather_cursor_sends(&mut self, sink: &mut WcSink<'_>, scan: usize, all: bool) -> bool {
        let n = self.sending_qps.len();
        let mut waiting = false;
        if n > scan {
            for _ in 0..scan {
                if sink.is_full() {
                    break;
                }
                self.send_cursor = next_cursor(self.send_cursor, scan, n);
                let before = sink.len();
                waiting |= self.sending_qps[self.send_cursor].poll_sends(sink, all);
                if sink.len() > before {
                    self.swap_senders(self.send_cursor, self.send_cursor % scan);
                }
            }
        }
        waiting
    }

    fn swap_senders(&mut self, a: usize, b: usize) {
        self.sending_qps.swap(a, b);
        for place in [a, b] {
            self.sending_qps[place]
                .index_in_send_cq
                .store(place, Ordering::Relaxed);
        }
    }

    fn swap_receivers(&mut self, a: usize, b: usize) {
        self.recv_sides.swap(a, b);
        for place in [a, b] {
            self.recv_sides[place]
                .qp()
                .index_in_recv_cq
                .store(place, Ordering::Relaxed);
        }
    }

    /// Returns true if a peer that does not poll is to be woken, so that its engine serves this queue. Does so ever
    /// more rarely.
    #[inline(never)]
    fn check_peer_wakeup_due_and_back_off(&mut self) -> bool {
        let now = shm::clock::now_ns();
        let since = *self.idle_since_ns.get_or_insert(now);
        let (polls, time) = (self.empty_polls_in_row, now - since);
        // The limit counts polls and time: 4,096 polls take from 50 us to minutes, on a machine with more work than
        // cores.
        let wait = u64::from(self.empty_polls_until_peer_wakeup / EMPTY_POLLS_UNTIL_PEER_WAKEUP)
            * EMPTY_TIME_UNTIL_PEER_WAKEUP_NS;
        let starving = polls >= self.empty_polls_until_peer_wakeup || time >= wait;
        if starving {
            self.empty_polls_until_peer_wakeup =
                self.empty_polls_until_peer_wakeup.saturating_mul(2);
        }
        starving
    }

    /// Wakes the engines of the peers whose progress the queue pairs of this queue wait for.
    #[cold]
    fn wake_awaited_peers(&self) {
        for qp in &self.sending_qps {
            qp.wake_awaited_peer();
        }
    }
}

/// Returns the next of `n` places beyond the first `scan`.
fn next_cursor(cursor: usize, scan: usize, n: usize) -> usize {
    if cursor + 1 >= n || cursor < scan {
        scan
    } else {
        cursor + 1
    }
}

#[cfg(test)]
mod tests;
