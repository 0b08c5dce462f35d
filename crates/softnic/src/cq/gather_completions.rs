//! Making of completions from the state of the queue pairs, in a fair order.

use std::sync::atomic::Ordering;

use super::{CqState, PASSES_PER_CLOSED_RING_CHECK, WcSink};
use crate::recv::round_robin;

/// Unsignaled sends are checked once in this many empty polls.
const POLLS_PER_UNSIGNALED_CHECK: u32 = 64;
/// Number of polls in a row that begin with sends after receives alone have filled a poll, as long as sends fill them.
const SENDS_FIRST_POLLS_AFTER_RECEIVES_FILL_ONE: u8 = 4;

impl CqState {
    /// Makes completions for `sink` from the queue pairs of this completion queue. Checks `scan` of them from the front
    /// and as many from the cursor on. Returns true if one of them waits for a deadline.
    ///
    /// Receives come first, and the front before the rest. Every eighth time the order is reversed, so that a busy
    /// queue does not starve the others, however few completions are asked for. After receives alone have filled a
    /// poll, sends have their turn. This is for a program that takes one completion at a time, and is always answered
    /// before the next. Otherwise it would never learn that its send queue has room. On a NIC it does, since
    /// completions come in the order of time.
    #[inline(always)]
    pub(super) fn gather_completions(&mut self, sink: &mut WcSink<'_>, scan: usize) -> bool {
        let all = scan == usize::MAX
            || self.empty_polls_in_row % POLLS_PER_UNSIGNALED_CHECK
                == POLLS_PER_UNSIGNALED_CHECK - 1;
        self.pass_count = self.pass_count.wrapping_add(1);
        let ended =
            scan == usize::MAX || self.pass_count.is_multiple_of(PASSES_PER_CLOSED_RING_CHECK);
        if self.recv_sides.len() <= 1 && self.sending_qps.len() <= 1 {
            self.gather_from_one_qp(sink, scan, all, ended)
        } else {
            self.gather_from_many_qps(sink, scan, all, ended)
        }
    }

    /// [`gather_completions`](Self::gather_completions) for several queue pairs.
    #[inline(never)]
    fn gather_from_many_qps(
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
}

/// Returns the next of `n` places beyond the first `scan`.
fn next_cursor(cursor: usize, scan: usize, n: usize) -> usize {
    if cursor + 1 >= n || cursor < scan {
        scan
    } else {
        cursor + 1
    }
}
