//! Completion queues.
//!
//! A completion queue holds almost nothing: completions are made where they are wanted, in the caller's
//! `ibv_wc`, when somebody polls. Its buffer is for those that the engine made while the program slept.

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
use crate::event::Unacknowledged;
use crate::faults;
use crate::live;
use crate::nic::Nic;
use crate::qp::Qp;
use crate::recv::{RecvSide, round_robin};
use crate::xrc;
use shm::barrier;
use shm::fabric::armed::Armed;
use shm::fabric::layout::*;

use channel::CqHandle;
pub(crate) use channel::{Channel, Signaled};
use overrun::Overrun;
pub(crate) use polling::{Current, Polling};

/// Queue pairs that are looked at in each poll, from the front and from the cursor.
const SCAN: usize = 16;
/// Polls in a row that find nothing until peers that owe us progress are woken for the first time.
const STARVING_POLLS: u32 = 4096;

/// The same for a program that is not let run for long between its polls, which looks at the clock once in so many.
const STARVING_NS: u64 = 1_000_000;
const CLOCK_POLLS: u32 = 32;

/// Unsignaled sends are looked for once in so many empty polls.
const UNSIGNALED_POLLS: u32 = 64;

/// Once in so many looks it is seen whether rings with nothing in them are over.
const ENDED_TURNS: u32 = 64;

/// Looks since a queue was armed until peers need no barrier any more: arming it again costs one on every core.
const UNARMED_TURNS: u32 = 1 << 16;

/// Polls in a row that begin with sends when one was filled by receives alone, as long as sends fill them.
const SEND_TURNS: u8 = 4;

/// Why the engine looks at a completion queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Something may have happened; the last look may have been just now.
    Called,
    /// The same, a tick or more after the last one.
    Tick,
    /// The queue can be overrun.
    Watch,
}

/// Where polled completions go: a place of the caller's, filled from the front.
pub(crate) struct WcSink<'a> {
    out: &'a mut [MaybeUninit<ibv_wc>],
    len: usize,
    /// A completion was solicited or failed.
    pub(crate) solicited: bool,
}

impl<'a> WcSink<'a> {
    pub(crate) fn new(out: &'a mut [MaybeUninit<ibv_wc>]) -> Self {
        Self {
            out,
            len: 0,
            solicited: false,
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

    /// The completions behind the first `before`.
    fn since(&self, before: usize) -> &[ibv_wc] {
        let made = self.out.get(before..self.len).unwrap_or_default();
        // SAFETY: the first `len` places have been written (`push`, `push_words`).
        unsafe { std::slice::from_raw_parts(made.as_ptr().cast(), made.len()) }
    }

    /// Completions that can still be added.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.out.len() - self.len
    }

    /// Adds a completion; there is room.
    #[inline]
    pub(crate) fn push(&mut self, wc: ibv_wc) {
        debug_assert!(!self.is_full());
        if wc.status != IBV_WC_SUCCESS {
            self.solicited = true;
        }
        if let Some(place) = self.out.get_mut(self.len) {
            place.write(wc);
            self.len += 1;
        }
    }

    /// Adds the completion of a work request that succeeded; there is room.
    #[inline(always)]
    pub(crate) fn push_sent(&mut self, wr_id: u64, opcode: u32, byte_len: u32, qp_num: u32) {
        self.push_words([wr_id, upper(opcode), upper(byte_len), upper(qp_num), 0, 0]);
    }

    /// Adds the completion of a receive WR that a SEND has used; there is room.
    #[inline(always)]
    pub(crate) fn push_received(&mut self, wc: &Received) {
        self.push_words([
            wc.wr_id,
            upper(IBV_WC_RECV),
            upper(wc.byte_len),
            upper(wc.qp_num) | u64::from(wc.imm),
            upper(wc.wc_flags) | u64::from(wc.src_qp),
            wc.path,
        ]);
    }

    /// Adds a completion of a status that is success, as words: each store here waits behind the WRITEs that wait for
    /// their line, and of fields the compiler makes one each.
    #[inline(always)]
    fn push_words(&mut self, words: [u64; 6]) {
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
            // SAFETY: as large, and integers only, of which any bytes are a value.
            place.write(unsafe { std::mem::transmute::<[u64; 6], ibv_wc>(words) });
            self.len += 1;
        }
    }
}

/// A field in the upper half of a word.
#[inline(always)]
fn upper(field: u32) -> u64 {
    u64::from(field) << 32
}

/// What a completion says of a SEND that was received.
pub(crate) struct Received {
    pub(crate) wr_id: u64,
    pub(crate) byte_len: u32,
    /// As it lies in the work request.
    pub(crate) imm: u32,
    pub(crate) qp_num: u32,
    pub(crate) src_qp: u32,
    pub(crate) wc_flags: u32,
    /// Its last word: partition index, LID of the sender, service level and path bits.
    pub(crate) path: u64,
}

/// What the lock of a completion queue protects.
pub(crate) struct CqState {
    buffer: VecDeque<ibv_wc>,
    /// Completions that a plan of faults delays.
    late: late::Late,
    recv: Vec<RecvSide>,
    send: Vec<Arc<Qp>>,
    /// The one near the front that is looked at first.
    recv_start: usize,
    send_start: usize,
    recv_cursor: usize,
    send_cursor: usize,
    idle_polls: u32,
    /// Counts the times that completions were looked for.
    turn: u32,
    /// So many of the next looks begin with sends.
    send_turns: u8,
    wake_at: u32,
    /// When the clock was looked at last in a row of polls that find nothing.
    idle_since: Option<u64>,
    /// What makes the next event: `ARMED_ANY`, `ARMED_SOLICITED`, or `ARMED_NO`. Peers see it in [`Cq::armed`].
    armed: u32,
    /// `turn` when it was armed last.
    armed_turn: u32,
    /// Completions added since the last arming that no event has reported.
    unreported: usize,
    /// One of them was solicited or failed.
    solicited: bool,
    /// When the first completion came that moderation keeps from being reported.
    held_since: Option<u64>,
    /// Ticks in a row at which the engine found more in the buffer than the queue was made for.
    overfull_looks: u32,
}

/// A completion queue; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Cq {
    /// It starts with the fields of an `ibv_cq`.
    abi: UnsafeCell<ibv_cq_ex>,
    /// For a queue that was made by `ibv_create_cq_ex`.
    pub(crate) polling: Option<Polling>,
    pub(crate) nic: &'static Nic,
    pub(crate) index: usize,
    /// Completions that it keeps for a program that does not poll.
    depth: AtomicUsize,
    /// `cq_count` and, in the upper half, `cq_period` of `ibv_modify_cq(3)`.
    moderation: AtomicU32,
    pub(crate) channel: Option<Arc<Channel>>,
    state: BiasedLock<CqState>,
    /// Polls in a row that find nothing until the poller rests.
    rest_at: AtomicU32,
    /// Queue pairs (twice, if both queues complete here) that use it.
    pub(crate) uses: AtomicUsize,
    pub(crate) unacknowledged: Unacknowledged,
    /// The same of asynchronous events.
    pub(crate) unacknowledged_errors: Unacknowledged,
    context: &'static Context,
    overrun: Overrun,
}

// SAFETY: `abi` is written before the handle is given out; later its status and `wr_id`, and `polling`, by the
// thread that polls, and its capacity, an aligned `int`; everything else is synchronised.
unsafe impl Sync for Cq {}
// SAFETY: as above; the raw pointers in `abi` are not followed here.
unsafe impl Send for Cq {}

live::object!(Cq, ibv_cq);

impl Cq {
    pub(crate) fn new(
        context: &'static Context,
        index: usize,
        depth: usize,
        abi: ibv_cq_ex,
        channel: Option<Arc<Channel>>,
        polling: Option<Polling>,
    ) -> Self {
        let nic = context.nic;
        let ignored = polling.as_ref().is_some_and(|p| p.ignores_overrun);
        if let Some(shared) = nic.me().segment.cq(index) {
            shared.armed.store(ARMED_NO, Ordering::Relaxed);
            let channel = channel.as_ref().map_or(0, |channel| channel.number());
            shared.channel.store(channel, Ordering::Relaxed);
            shared.lost_tokens.store(0, Ordering::Relaxed);
        }
        Self {
            abi: UnsafeCell::new(abi),
            polling,
            nic,
            index,
            depth: AtomicUsize::new(depth),
            moderation: AtomicU32::new(0),
            channel,
            state: BiasedLock::new(CqState {
                buffer: VecDeque::new(),
                late: late::Late::default(),
                recv: Vec::new(),
                send: Vec::new(),
                recv_start: 0,
                send_start: 0,
                recv_cursor: 0,
                send_cursor: 0,
                idle_polls: 0,
                turn: 0,
                send_turns: 0,
                wake_at: STARVING_POLLS,
                idle_since: None,
                armed: ARMED_NO,
                armed_turn: 0,
                unreported: 0,
                solicited: false,
                held_since: None,
                overfull_looks: 0,
            }),
            rest_at: AtomicU32::new(rest::IDLE_POLLS),
            uses: AtomicUsize::new(0),
            unacknowledged: Unacknowledged::default(),
            unacknowledged_errors: Unacknowledged::default(),
            context,
            overrun: Overrun::new(ignored),
        }
    }

    /// The program's handle.
    pub(crate) fn handle(&self) -> CqHandle {
        CqHandle(self.abi.get().cast())
    }

    /// What the program has in the field of that name.
    pub(crate) fn cq_context(&self) -> *mut c_void {
        // SAFETY: `self` keeps the structure; the program changes this field, if at all, before it waits for events.
        unsafe { (*self.abi.get()).cq_context }
    }

    #[inline]
    fn shared(&self) -> &'static CqShared {
        match self.nic.me().segment.cq(self.index) {
            Some(shared) => shared,
            None => unreachable!("a completion queue has an index below MAX_CQS"),
        }
    }

    /// What peers find out about it when they have published.
    #[inline]
    fn armed(&self) -> Armed<'static> {
        Armed(&self.shared().armed)
    }

    /// `ibv_poll_cq`: fills `out` from its start; the number of completions.
    #[inline(always)]
    pub(crate) fn poll(&self, out: &mut [MaybeUninit<ibv_wc>]) -> usize {
        self.nic.check_arrivals();
        if xrc::in_use() {
            // What has arrived in a domain is handed to the queues.
            xrc::progress(self.nic);
        }
        let mut state = self.state.lock();
        let mut sink = WcSink::new(out);
        if !state.buffer.is_empty() {
            state.overfull_looks = 0;
            while !sink.is_full() {
                match state.buffer.pop_front() {
                    Some(wc) => sink.push(wc),
                    None => break,
                }
            }
            sink.solicited = false;
        }
        let buffered = sink.len();
        if !sink.is_full() {
            state.gather(&mut sink, SCAN);
            if comp_cntr::in_use() {
                comp_cntr::count(sink.since(buffered));
            }
        }
        if state.armed != ARMED_NO && sink.len() > buffered {
            // The queue gets them here, and the next moment loses them to the caller. Another thread may wait.
            state.added(sink.len() - buffered, sink.solicited);
            self.report_outside_engine(&mut state);
        }
        if state.turn.is_multiple_of(ENDED_TURNS) {
            self.consider_fences(&state);
        }
        if sink.len() == 0 {
            state.idle_polls = state.idle_polls.saturating_add(1);
            if state.idle_polls.is_multiple_of(CLOCK_POLLS) && state.is_starving() {
                state.wake_debtors();
            }
            if state.idle_polls >= self.rest_at.load(Ordering::Relaxed) {
                drop(state);
                self.rest();
            }
        } else {
            rest::found();
            state.idle_polls = 0;
            state.wake_at = STARVING_POLLS;
            state.idle_since = None;
        }
        sink.len()
    }

    /// Ends the barriers of peers when the program has polled for long without arming the queue.
    #[inline(never)]
    fn consider_fences(&self, state: &CqState) {
        if state.armed == ARMED_NO && state.turn.wrapping_sub(state.armed_turn) >= UNARMED_TURNS {
            self.armed().end_fences();
        }
    }

    /// A poller has found nothing for long.
    #[cold]
    fn rest(&self) {
        self.rest_at
            .store(rest::rest(self.index), Ordering::Relaxed);
    }

    /// [`poll`](Self::poll) under a plan of faults.
    pub(crate) fn poll_under_faults(&self, out: &mut [MaybeUninit<ibv_wc>]) -> usize {
        if !faults::delay_completions() {
            return self.poll(out);
        }
        self.nic.check_arrivals();
        if xrc::in_use() {
            xrc::progress(self.nic);
        }
        let mut state = self.state.lock();
        // As the program, not as the engine, which leaves datagrams without a receive WR where they are.
        let (added, waiting) = state.fill_late(usize::MAX, SCAN);
        if added > 0 {
            self.report_outside_engine(&mut state);
        }
        if waiting {
            // A program that waits for an event now does not poll.
            self.nic.call_engine();
        }
        let mut sink = WcSink::new(out);
        while !sink.is_full() {
            match state.buffer.pop_front() {
                Some(wc) => sink.push(wc),
                None => break,
            }
        }
        if sink.len() > 0 {
            state.idle_polls = 0;
            state.wake_at = STARVING_POLLS;
            state.idle_since = None;
        } else {
            state.idle_polls = state.idle_polls.saturating_add(1);
            if state.idle_polls.is_multiple_of(CLOCK_POLLS) && state.is_starving() {
                state.wake_debtors();
            }
        }
        sink.len()
    }

    /// Progress by the engine: completions go to the buffer, as many as the queue was made for. True if it is to look
    /// again at the next tick: a queue pair waits for a deadline, or the queue may be overrun.
    pub(crate) fn engine_progress(&self, look: Look) -> bool {
        if self.is_overrun() {
            return false;
        }
        let mut waiting = false;
        // A thread that holds the lock is polling: it makes the progress. But if the queue is armed
        // nobody may be left to do so, so wait for the lock then.
        let state = if self.armed().is_armed() {
            Some(self.state.lock())
        } else {
            self.state.try_lock()
        };
        // Whether a deadline runs is not known then: look again at the next tick. Whoever polls is not overrun.
        let Some(mut state) = state else {
            return look != Look::Watch;
        };
        self.replace_lost_tokens();
        let mut held_back;
        loop {
            let (n, deadline) = state.fill(self.wanted_in_buffer());
            waiting |= deadline;
            held_back = self.report(&mut state);
            if n == 0 && !(state.armed != ARMED_NO && self.lets_peers_call()) {
                break;
            }
        }
        if waiting {
            state.wake_debtors();
        }
        waiting | held_back | self.settle_overrun(state, look)
    }

    /// Looks for completions, for a program that does not poll: they go to the buffer.
    pub(crate) fn look(&self) {
        self.nic.check_arrivals();
        if xrc::in_use() {
            xrc::progress(self.nic);
        }
        self.engine_progress(Look::Called);
    }

    /// Puts the event of an armed queue into its channel, if a completion that it is armed for has been added. True if
    /// moderation holds the event back.
    fn report(&self, state: &mut CqState) -> bool {
        let wanted = match state.armed {
            ARMED_ANY => state.unreported > 0,
            ARMED_SOLICITED => state.solicited,
            _ => false,
        };
        if !wanted {
            return false;
        }
        if self.holds_back(state) {
            return true;
        }
        let token_of = self.disarm(state);
        if let Some(channel) = &self.channel {
            channel.push(self.index, self.handle(), token_of);
        }
        false
    }

    /// Disarms it: there is an event. The slot of the peer that has written its token, or is about to.
    fn disarm(&self, state: &mut CqState) -> Option<usize> {
        state.armed = ARMED_NO;
        state.unreported = 0;
        state.solicited = false;
        self.armed().disarm()
    }

    /// Writes the tokens that peers could not write.
    fn replace_lost_tokens(&self) {
        let lost = &self.shared().lost_tokens;
        if lost.load(Ordering::Relaxed) != 0
            && let Some(channel) = &self.channel
        {
            // More than a FIFO holds is garbage.
            let lost = lost.swap(0, Ordering::Relaxed).min(1 << 15);
            channel.add_tokens(lost as usize, self.index);
        }
    }

    /// The same by another thread than the engine, which is called to look after an event that is held back.
    #[cold]
    fn report_outside_engine(&self, state: &mut CqState) {
        if self.report(state) {
            self.nic.me().wake();
        }
    }

    /// Is the event to wait for more completions, or for its time (`ibv_modify_cq(3)`)? The engine looks at the clock
    /// once in a millisecond.
    fn holds_back(&self, state: &mut CqState) -> bool {
        let moderation = self.moderation.load(Ordering::Relaxed);
        let (count, period_us) = (moderation & 0xffff, moderation >> 16);
        if count > 1 && state.unreported < count as usize {
            let now = shm::clock::now_ns();
            let since = *state.held_since.get_or_insert(now);
            if now - since < u64::from(period_us) * 1000 {
                return true;
            }
        }
        state.held_since = None;
        false
    }

    /// `ibv_modify_cq`: an event for so many completions, or when so many microseconds have passed since the first.
    pub(crate) fn moderate(&self, count: u16, period_us: u16) {
        let value = u32::from(count) | u32::from(period_us) << 16;
        self.moderation.store(value, Ordering::Relaxed);
        // What is held back may be due now.
        self.nic.me().wake();
    }

    /// Lets peers that publish call the engine again. True if one has called it: another may have published just before
    /// and found the engine called already, so look for completions once more.
    fn lets_peers_call(&self) -> bool {
        let armed = self.armed();
        let called = armed.forget_call();
        if called {
            armed.settle();
        }
        called
    }

    /// `ibv_resize_cq`.
    ///
    /// # Errors
    /// `EINVAL`: more completions than that are waiting ("it must be at least the number of unpolled entries
    /// in the CQ", `ibv_resize_cq(3)`).
    pub(crate) fn resize(&self, cqe: u32) -> Result<(), i32> {
        let mut state = self.state.lock();
        // Completions are made when somebody asks for them: as many as decide the question.
        while state.fill(cqe as usize + 1).0 > 0 {}
        self.report_outside_engine(&mut state);
        if state.buffer.len() > cqe as usize {
            return Err(libc::EINVAL);
        }
        self.depth.store(cqe as usize, Ordering::Relaxed);
        state.overfull_looks = 0;
        self.depth_changed();
        let cqe = i32::try_from(cqe).map_err(|_| libc::EINVAL)?;
        // SAFETY: an aligned `int` that the program reads without synchronisation, as with the C library.
        unsafe { (&raw mut (*self.abi.get()).cqe).write_volatile(cqe) };
        Ok(())
    }

    /// `ibv_req_notify_cq`.
    pub(crate) fn arm(&self, solicited_only: bool) {
        self.nic.send_owed_answers();
        self.nic.network.may_sleep();
        let depth = self.depth.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        // What has arrived until now is what it was armed for before, or no reason for an event.
        while state.fill(depth).0 > 0 {}
        self.report_outside_engine(&mut state);
        let armed = self.armed();
        // "If the CQ is armed for any event, arming it for solicited ones has no effect" (IBTA 11.4.2.2).
        if state.armed != ARMED_ANY {
            state.armed = if solicited_only {
                ARMED_SOLICITED
            } else {
                ARMED_ANY
            };
            let direct = !solicited_only && self.lets_peers_signal(&state);
            if armed.arm(state.armed, direct) {
                // SYNC POINT A: from here on a peer that publishes sees the queue armed, or what it published is
                // found now.
                barrier::everywhere();
            }
        }
        state.armed_turn = state.turn;
        armed.settle();
        // What has arrived until now is no reason for an event: the engine, kept out by the lock, must not take
        // it for new. But of what a peer has signaled there is an event.
        let mut filled = 0;
        while let (n @ 1.., _) = state.fill(depth) {
            filled += n;
        }
        // There may be too few RECVs now.
        if filled > 0 && armed.end_direct() {
            self.report_outside_engine(&mut state);
        }
        if state.held_since.is_none() {
            state.unreported = 0;
            state.solicited = false;
        }
        state.wake_debtors();
        drop(state);
        if xrc::in_use() {
            xrc::arm(self.nic);
        }
    }

    /// May a peer wake the program itself? Says at each queue pair whether its next message makes a completion.
    fn lets_peers_signal(&self, state: &CqState) -> bool {
        if self.channel.is_none()
            || self.moderation.load(Ordering::Relaxed) != 0
            || faults::delay_completions()
            || self.is_overrun()
        {
            return false;
        }
        for side in &state.recv {
            side.say_whether_it_takes();
        }
        true
    }

    /// Calls the engine if the queue is armed: something has just completed here.
    #[inline]
    pub(crate) fn nudge(&self) {
        if self.armed().is_armed() {
            self.nic.me().wake();
        }
    }

    /// Gives it a completion, for a program that has not polled it yet.
    pub(crate) fn deliver(&self, wc: ibv_wc, solicited: bool) {
        self.deliver_all(|buffer, any_solicited| {
            buffer.push_back(wc);
            *any_solicited |= solicited;
        });
    }

    /// Gives it the completion that `make` may add to a sink with one place.
    pub(crate) fn complete_here(&self, make: impl FnOnce(&mut WcSink<'_>)) {
        let mut out = [const { MaybeUninit::uninit() }; 1];
        let mut sink = WcSink::new(&mut out);
        let mut state = self.state.lock();
        make(&mut sink);
        if sink.len() == 0 || self.is_overrun() {
            return;
        }
        state.added(1, sink.solicited);
        if comp_cntr::in_use() {
            comp_cntr::count(sink.since(0));
        }
        // SAFETY: the sink has initialised its place.
        state.buffer.push_back(unsafe { out[0].assume_init_read() });
        self.report_outside_engine(&mut state);
    }

    /// Gives it the completions that `make` adds; nobody polls it meanwhile. They say whether one was solicited.
    pub(crate) fn deliver_all(&self, make: impl FnOnce(&mut VecDeque<ibv_wc>, &mut bool)) {
        let mut state = self.state.lock();
        let CqState {
            buffer, solicited, ..
        } = &mut *state;
        let before = buffer.len();
        make(buffer, solicited);
        if self.is_overrun() {
            buffer.truncate(before);
        }
        let made = buffer.len() - before;
        if comp_cntr::in_use() {
            let new: Vec<ibv_wc> = buffer.range(before..).copied().collect();
            comp_cntr::count(&new);
        }
        state.added(made, false);
        self.report_outside_engine(&mut state);
    }

    /// Is it armed? Asked by who has published something in this process.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        let armed = self.armed();
        !armed.is_never() && {
            // SYNC POINT A
            armed.settle();
            armed.is_armed()
        }
    }

    /// Has peers that publish call the engine: it stands for others that are armed (XRC).
    pub(crate) fn arm_for_others(&self) {
        if self.armed().arm(ARMED_ANY, false) {
            barrier::everywhere();
        }
    }

    /// The opposite.
    pub(crate) fn disarm_for_others(&self) {
        self.armed().disarm();
    }

    /// It goes away: its events with it.
    pub(crate) fn discard_events(&self) {
        let signaled_by = self.disarm(&mut self.state.lock());
        if let Some(channel) = &self.channel {
            channel.discard(self.index, self.handle(), signaled_by);
        }
    }

    /// The peer in `slot` has died: the tokens that it owes are written.
    pub(crate) fn replace_tokens_of(&self, slot: usize) {
        if self.armed().signaled_by() == Some(slot) {
            // What has come of its message the engine has just seen to.
            self.armed().forget_signal();
        }
        if let Some(channel) = &self.channel {
            channel.replace_tokens_of(slot);
        }
    }

    pub(crate) fn add_sender(&self, qp: &Arc<Qp>) {
        let mut state = self.state.lock();
        if !self.is_overrun() {
            qp.send_place.store(state.send.len(), Ordering::Relaxed);
            state.send.push(Arc::clone(qp));
        }
        drop(state);
        self.expect_more(qp.max_wr().0);
    }

    pub(crate) fn remove_sender(&self, qp: &Qp) {
        let mut state = self.state.lock();
        let place = qp.send_place.load(Ordering::Relaxed);
        if state.send.get(place).is_some_and(|q| q.index == qp.index) {
            state.send.swap_remove(place);
            if let Some(moved) = state.send.get(place) {
                moved.send_place.store(place, Ordering::Relaxed);
            }
        }
        state.forget(qp.qpn);
        drop(state);
        self.expect_less(qp.max_wr().0);
    }

    pub(crate) fn add_receiver(&self, qp: &Arc<Qp>) {
        if let Some(srq) = &qp.srq {
            srq.note_cq(self.index);
        }
        let mut state = self.state.lock();
        if !self.is_overrun() {
            qp.recv_place.store(state.recv.len(), Ordering::Relaxed);
            state.recv.push(RecvSide::new(Arc::clone(qp)));
        }
        drop(state);
        self.expect_receives(qp);
    }

    pub(crate) fn remove_receiver(&self, qp: &Qp) {
        let mut state = self.state.lock();
        let place = qp.recv_place.load(Ordering::Relaxed);
        if state
            .recv
            .get(place)
            .is_some_and(|r| r.qp().index == qp.index)
        {
            state.recv.swap_remove(place).detach_all();
            if let Some(moved) = state.recv.get(place) {
                moved.qp().recv_place.store(place, Ordering::Relaxed);
            }
        }
        state.forget(qp.qpn);
        drop(state);
        self.expect_no_receives(qp);
    }

    /// Forgets the completions of a queue pair that is being reset.
    pub(crate) fn forget(&self, qpn: u32) {
        self.state.lock().forget(qpn);
    }

    /// Runs `f` on the receive side of `qp`, which is no more where the queue is overrun.
    pub(crate) fn with_receiver(&self, qp: &Qp, f: impl FnOnce(Option<&mut RecvSide>)) {
        let mut state = self.state.lock();
        let place = qp.recv_place.load(Ordering::Relaxed);
        let side = state.recv.get_mut(place);
        f(side.filter(|r| r.qp().index == qp.index));
    }

    /// Takes what has arrived for `qp` so far into the buffer: before it is flushed or reset.
    pub(crate) fn drain_receiver(&self, qp: &Qp) {
        let place = qp.recv_place.load(Ordering::Relaxed);
        self.drain(|state, sink| {
            if let Some(side) = state
                .recv
                .get_mut(place)
                .filter(|r| r.qp().index == qp.index)
            {
                side.receive(sink, usize::MAX, true);
            }
        });
    }

    /// Takes the completions of what `qp` has sent so far into the buffer: before it is flushed.
    pub(crate) fn drain_sender(&self, qp: &Qp) {
        self.drain(|_, sink| {
            qp.poll_sends(sink, true);
        });
    }

    /// Takes into the buffer what `gather` makes, until that is nothing.
    fn drain(&self, gather: impl Fn(&mut CqState, &mut WcSink<'_>)) {
        let mut state = self.state.lock();
        if self.is_overrun() {
            return;
        }
        // In the order in which they were made.
        state.release_late(u64::MAX);
        loop {
            let mut out = [const { MaybeUninit::uninit() }; 64];
            let mut sink = WcSink::new(&mut out);
            gather(&mut state, &mut sink);
            let n = sink.len();
            if n == 0 {
                break;
            }
            state.added(n, sink.solicited);
            if comp_cntr::in_use() {
                comp_cntr::count(sink.since(0));
            }
            // SAFETY: the sink has initialised the first `n` places.
            state
                .buffer
                .extend(out[..n].iter().map(|wc| unsafe { wc.assume_init_read() }));
        }
        self.report_outside_engine(&mut state);
    }
}

impl Signaled for Cq {
    fn handle(&self) -> CqHandle {
        self.handle()
    }

    fn is_signaled(&self) -> bool {
        self.armed().signaled_by().is_some()
    }

    fn take_signaled(&self) -> Option<bool> {
        self.nic.check_arrivals();
        let mut state = self.state.lock();
        let armed = self.armed();
        armed.signaled_by()?;
        let (_, waiting) = state.fill(self.wanted_in_buffer());
        if waiting {
            self.nic.call_engine();
        }
        if state.armed == ARMED_ANY && state.unreported > 0 && !self.holds_back(&mut state) {
            self.disarm(&mut state);
            return Some(true);
        }
        armed.forget_signal();
        // SYNC POINT A: a peer that has published just before may have found it signaled.
        armed.settle();
        state.fill(self.wanted_in_buffer());
        self.report_outside_engine(&mut state);
        Some(false)
    }
}

impl CqState {
    /// Forgets the completions of a queue pair.
    fn forget(&mut self, qpn: u32) {
        self.buffer.retain(|wc| wc.qp_num != qpn);
        self.late.forget(qpn);
    }

    /// So many completions have been added.
    #[inline]
    fn added(&mut self, completions: usize, solicited: bool) {
        self.unreported += completions;
        self.solicited |= solicited;
    }

    /// Makes completions for `sink` from the queue pairs of this completion queue, looking at `scan` of them
    /// from the front and as many from the cursor on. True if one of them waits for a deadline.
    ///
    /// Receives come first, and the front before the rest; but every eighth time it is the other way round,
    /// so that a busy queue starves nobody, however few completions are asked for. When receives have filled a poll
    /// alone, sends have their turn: a program that takes one completion at a time and is always answered before the
    /// next would never hear that its send queue has room. On a NIC it does, for completions come in the order of time.
    #[inline(always)]
    fn gather(&mut self, sink: &mut WcSink<'_>, scan: usize) -> bool {
        let all = scan == usize::MAX || self.idle_polls % UNSIGNALED_POLLS == UNSIGNALED_POLLS - 1;
        self.turn = self.turn.wrapping_add(1);
        let ended = scan == usize::MAX || self.turn.is_multiple_of(ENDED_TURNS);
        if self.recv.len() <= 1 && self.send.len() <= 1 {
            self.gather_from_one(sink, scan, all, ended)
        } else {
            self.gather_from_many(sink, scan, all, ended)
        }
    }

    /// [`gather`](Self::gather) where there are several queue pairs.
    #[inline(never)]
    fn gather_from_many(
        &mut self,
        sink: &mut WcSink<'_>,
        scan: usize,
        all: bool,
        ended: bool,
    ) -> bool {
        match self.turn % 16 {
            0 => {
                self.far_sends(sink, scan, all)
                    | self.near_sends(sink, scan, all)
                    | self.far_receives(sink, scan, ended)
                    | self.near_receives(sink, scan, ended)
            }
            8 => {
                self.far_receives(sink, scan, ended)
                    | self.far_sends(sink, scan, all)
                    | self.near_receives(sink, scan, ended)
                    | self.near_sends(sink, scan, all)
            }
            _ if self.send_turns > 0 => {
                let mut waiting =
                    self.near_sends(sink, scan, all) | self.far_sends(sink, scan, all);
                self.send_turns = if sink.is_full() {
                    self.send_turns - 1
                } else {
                    0
                };
                waiting |= self.near_receives(sink, scan, ended);
                waiting | self.far_receives(sink, scan, ended)
            }
            _ => {
                let mut waiting = self.near_receives(sink, scan, ended);
                waiting |= self.far_receives(sink, scan, ended);
                if sink.is_full() {
                    self.send_turns = SEND_TURNS;
                }
                waiting |= self.near_sends(sink, scan, all);
                waiting | self.far_sends(sink, scan, all)
            }
        }
    }

    /// The same where there is one queue pair, as in a latency-bound program: no rounds to go.
    #[inline(always)]
    fn gather_from_one(
        &mut self,
        sink: &mut WcSink<'_>,
        scan: usize,
        all: bool,
        ended: bool,
    ) -> bool {
        let mut waiting = false;
        if self.send_turns > 0 || self.turn.is_multiple_of(8) {
            if let [qp] = &self.send[..] {
                waiting = qp.poll_sends(sink, all);
            }
            let filled = sink.is_full();
            self.send_turns = self.send_turns.saturating_sub(1) * u8::from(filled);
            if !filled && let [side] = &mut self.recv[..] {
                waiting |= side.receive(sink, scan, ended);
            }
        } else {
            if let [side] = &mut self.recv[..] {
                waiting = side.receive(sink, scan, ended);
                if sink.is_full() {
                    self.send_turns = SEND_TURNS;
                    return waiting;
                }
            }
            if let [qp] = &self.send[..] {
                waiting |= qp.poll_sends(sink, all);
            }
        }
        waiting
    }

    /// Makes completions for the buffer, some at a time and no more than it may hold. How many, and whether a queue
    /// pair waits for a deadline.
    fn fill(&mut self, depth: usize) -> (usize, bool) {
        const AT_ONCE: usize = 64;
        let room = depth.saturating_sub(self.buffer.len()).min(AT_ONCE);
        if room == 0 {
            return (0, false);
        }
        if faults::delay_completions() {
            return self.fill_late(room, usize::MAX);
        }
        let mut out = [const { MaybeUninit::uninit() }; AT_ONCE];
        let mut sink = WcSink::new(&mut out[..room]);
        let waiting = self.gather(&mut sink, usize::MAX);
        let n = sink.len();
        self.added(n, sink.solicited);
        if comp_cntr::in_use() {
            comp_cntr::count(sink.since(0));
        }
        // SAFETY: the sink has initialised the first `n` places.
        self.buffer
            .extend(out[..n].iter().map(|wc| unsafe { wc.assume_init_read() }));
        (n, waiting)
    }

    /// [`fill`](Self::fill) where completions may be late: those whose time has come go to the buffer. How many, and
    /// whether the engine is to look again at the next tick.
    #[cold]
    fn fill_late(&mut self, room: usize, scan: usize) -> (usize, bool) {
        let mut out = [const { MaybeUninit::uninit() }; 64];
        let room = room.min(out.len());
        let mut sink = WcSink::new(&mut out[..room]);
        let waiting = self.gather(&mut sink, scan);
        let (n, solicited) = (sink.len(), sink.solicited);
        let now = shm::clock::now_ns();
        for place in &out[..n] {
            // SAFETY: the sink has initialised the first `n` places.
            let wc = unsafe { place.assume_init_read() };
            let facts = CompletionFacts {
                operation: late::operation(wc.opcode),
                queue_pair: faults::queue_pair(wc.qp_num),
            };
            let delay_ns = faults::completion(&facts, wc.wr_id);
            self.late.push(wc, solicited, now.saturating_add(delay_ns));
        }
        let released = self.release_late(now);
        (released, waiting | !self.late.is_empty())
    }

    /// Puts those whose time has come by `now_ns` into the buffer. How many.
    fn release_late(&mut self, now_ns: u64) -> usize {
        let mut released = 0;
        while let Some((wc, solicited)) = self.late.pop_due(now_ns) {
            if comp_cntr::in_use() {
                comp_cntr::count(&[wc]);
            }
            self.buffer.push_back(wc);
            self.added(1, solicited);
            released += 1;
        }
        released
    }

    #[inline]
    fn near_receives(&mut self, sink: &mut WcSink<'_>, scan: usize, ended: bool) -> bool {
        if sink.is_full() {
            return false;
        }
        let near = self.recv.len().min(scan);
        let mut waiting = false;
        for i in round_robin(self.recv_start, near) {
            waiting |= self.recv[i].receive(sink, scan, ended);
            if sink.is_full() {
                // Where a poll had to stop, the next one starts with the one behind.
                self.recv_start = i + 1;
                return waiting;
            }
        }
        self.recv_start = 0;
        waiting
    }

    #[inline]
    fn far_receives(&mut self, sink: &mut WcSink<'_>, scan: usize, ended: bool) -> bool {
        let n = self.recv.len();
        let mut waiting = false;
        if n > scan {
            for _ in 0..scan {
                if sink.is_full() {
                    break;
                }
                self.recv_cursor = next_cursor(self.recv_cursor, scan, n);
                let before = sink.len();
                waiting |= self.recv[self.recv_cursor].receive(sink, scan, ended);
                if sink.len() > before {
                    self.swap_receivers(self.recv_cursor, self.recv_cursor % scan);
                }
            }
        }
        waiting
    }

    #[inline]
    fn near_sends(&mut self, sink: &mut WcSink<'_>, scan: usize, all: bool) -> bool {
        if sink.is_full() {
            return false;
        }
        let near = self.send.len().min(scan);
        let mut waiting = false;
        for i in round_robin(self.send_start, near) {
            waiting |= self.send[i].poll_sends(sink, all);
            if sink.is_full() {
                self.send_start = i + 1;
                return waiting;
            }
        }
        self.send_start = 0;
        waiting
    }

    #[inline]
    fn far_sends(&mut self, sink: &mut WcSink<'_>, scan: usize, all: bool) -> bool {
        let n = self.send.len();
        let mut waiting = false;
        if n > scan {
            for _ in 0..scan {
                if sink.is_full() {
                    break;
                }
                self.send_cursor = next_cursor(self.send_cursor, scan, n);
                let before = sink.len();
                waiting |= self.send[self.send_cursor].poll_sends(sink, all);
                if sink.len() > before {
                    self.swap_senders(self.send_cursor, self.send_cursor % scan);
                }
            }
        }
        waiting
    }

    fn swap_senders(&mut self, a: usize, b: usize) {
        self.send.swap(a, b);
        for place in [a, b] {
            self.send[place].send_place.store(place, Ordering::Relaxed);
        }
    }

    fn swap_receivers(&mut self, a: usize, b: usize) {
        self.recv.swap(a, b);
        for place in [a, b] {
            self.recv[place]
                .qp()
                .recv_place
                .store(place, Ordering::Relaxed);
        }
    }

    /// Is a peer that does not poll to be called, so that its engine serves it? Says so ever more rarely.
    #[inline(never)]
    fn is_starving(&mut self) -> bool {
        let now = shm::clock::now_ns();
        let since = *self.idle_since.get_or_insert(now);
        let (polls, time) = (self.idle_polls, now - since);
        // As many polls as time: 4,096 of them take from 50 us to minutes, on a machine with more to do than cores.
        let wait = u64::from(self.wake_at / STARVING_POLLS) * STARVING_NS;
        let starving = polls >= self.wake_at || time >= wait;
        if starving {
            self.wake_at = self.wake_at.saturating_mul(2);
        }
        starving
    }

    /// Wakes the engines of the peers whose progress the queue pairs of this queue wait for.
    #[cold]
    fn wake_debtors(&self) {
        for qp in &self.send {
            qp.wake_debtor();
        }
    }
}

/// The next of `n` places beyond the first `scan` ones.
fn next_cursor(cursor: usize, scan: usize, n: usize) -> usize {
    if cursor + 1 >= n || cursor < scan {
        scan
    } else {
        cursor + 1
    }
}

#[cfg(test)]
mod tests;
