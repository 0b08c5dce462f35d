//! Tests of single rules of the window, and of two connected windows under random orders of events.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

#[test]
fn windows_keep_three_wrs_for_acknowledgements() {
    let mut w = Window::new(128, 64, 256, 32);
    assert_eq!(w.sendable_messages(), 29, "the peer's receives, less three");
    assert_eq!(
        w.max_in_flight_from_peer, 61,
        "the own receives, less three"
    );
    while w.try_count_message(10, true).is_some() {}
    assert_eq!(w.in_flight_messages(), 29);
}

#[test]
fn every_quarter_of_the_window_is_signaled_with_what_it_frees() {
    let mut w = Window::new(16, 16, 16, 16); // 13 messages
    let ids: Vec<_> = (0..13)
        .map(|_| w.try_count_message(1, true).expect("room").signaled_wr_id)
        .collect();
    let third = |i: usize| (i % 3 == 2).then_some(3);
    assert_eq!(ids, (0..13).map(third).collect::<Vec<_>>());
    assert_eq!(w.process_completion_and_count_messages(3), 3);
    assert_eq!(w.sendable_messages(), 0, "the peer has given no credit");
    w.receive_credits(2).expect("two are missing");
    assert_eq!(w.sendable_messages(), 2);
    assert_eq!(
        w.receive_credits(12),
        Err(TooManyCredits {
            given_credits: 12,
            missing_credits: 11
        })
    );
}

#[test]
fn solicited_is_what_the_receiver_must_wake_for() {
    let mut w = Window::new(19, 19, 19, 19); // 16 messages
    let mut next = |bytes, last| w.try_count_message(bytes, last).expect("room").solicited;
    assert!(next(1, true), "the last of a write");
    let four: Vec<_> = (0..5).map(|_| next(1, false)).collect();
    assert_eq!(
        four,
        [false, false, false, false, true],
        "more than a quarter"
    );
    assert!(!next(1 << 20, false));
    assert!(next(1, false), "more than 1 MiB");
    w.count_reposted_receives(5);
    assert!(
        w.try_count_message(1, false).expect("room").solicited,
        "many credits"
    );
    let rest: Vec<_> =
        std::iter::from_fn(|| w.try_count_message(1, false).map(|m| m.solicited)).collect();
    assert!(rest[rest.len() - 1], "the window is full");
}

#[test]
fn more_than_half_a_window_of_credits_is_acknowledged() {
    let mut w = Window::new(19, 19, 19, 19);
    w.count_reposted_receives(8);
    assert_eq!(w.count_ack_if_due(), None);
    w.count_reposted_receives(1);
    let ack = w.count_ack_if_due().expect("due");
    assert_eq!(
        (ack.credits_imm, ack.signaled_wr_id, ack.solicited),
        (9, Some(ACK_WR_ID_BIT), true)
    );
    w.count_reposted_receives(9);
    assert!(w.count_ack_if_due().is_some());
    w.count_reposted_receives(9);
    assert!(w.count_ack_if_due().is_some());
    w.count_reposted_receives(9);
    assert_eq!(w.count_ack_if_due(), None, "three are under way");
    assert!(w.is_limited_by_send_queue());
    assert_eq!(w.process_completion_and_count_messages(ACK_WR_ID_BIT), 0);
    assert!(w.count_ack_if_due().is_some());
}

#[test]
fn a_marker_completes_what_is_before_it() {
    let mut w = Window::new(128, 128, 128, 128);
    assert!(w.is_idle());
    for _ in 0..5 {
        assert_eq!(
            w.try_count_message(1, true).expect("room").signaled_wr_id,
            None
        );
    }
    let marker = w.try_count_ack().and_then(|flags| flags.signaled_wr_id);
    assert!(!w.is_idle());
    assert_eq!(
        w.process_completion_and_count_messages(marker.expect("signaled")),
        5
    );
    assert!(w.is_idle());
}

/// One side of a connection, with simulated queues.
struct Side {
    window: Window,
    /// Number of posted receives.
    receives: usize,
    /// Arrived messages that the program has not polled: credits and bytes.
    arrived: VecDeque<(u32, usize)>,
    /// Number of polled messages whose receives are not posted again.
    unread: u16,
    /// Send completions that have not been polled.
    completions: VecDeque<u64>,
    sq_size: usize,
    /// Number of slots of the send queue that each signaled WR frees on completion.
    sq: VecDeque<usize>,
    sq_used: usize,
    sq_unsignaled: usize,
    sent: u64,
    got: u64,
}

impl Side {
    fn new(sq: u16, rq: u16, peer: (u16, u16)) -> Self {
        Self {
            window: Window::new(sq, rq, peer.0, peer.1),
            receives: rq.into(),
            arrived: VecDeque::new(),
            unread: 0,
            completions: VecDeque::new(),
            sq_size: sq.into(),
            sq: VecDeque::new(),
            sq_used: 0,
            sq_unsignaled: 0,
            sent: 0,
            got: 0,
        }
    }

    /// Delivers a message at once: completes it at this side, and adds it to the peer's arrived
    /// messages.
    fn post(&mut self, peer: &mut Side, flags: MessagePostParams, bytes: usize) {
        self.sq_used += 1;
        self.sq_unsignaled += 1;
        assert!(self.sq_used <= self.sq_size, "the send queue overflows");
        if let Some(id) = flags.signaled_wr_id {
            self.sq.push_back(std::mem::take(&mut self.sq_unsignaled));
            self.completions.push_back(id);
        }
        assert!(peer.receives > 0, "receiver not ready");
        peer.receives -= 1;
        peer.arrived.push_back((flags.credits_imm, bytes));
        self.sent += u64::from(bytes > 0);
    }

    fn write(&mut self, peer: &mut Side) {
        if let Some(flags) = self.window.try_count_message(1, true) {
            self.post(peer, flags, 1);
        }
    }

    fn poll_sends(&mut self) {
        if let Some(id) = self.completions.pop_front() {
            self.sq_used -= self.sq.pop_front().expect("a signaled WR");
            self.window.process_completion_and_count_messages(id);
        }
    }

    fn poll_receives(&mut self) {
        if let Some((imm, bytes)) = self.arrived.pop_front() {
            self.window.receive_credits(imm).expect("an honest peer");
            if bytes > 0 {
                self.unread += 1;
                self.got += 1;
            } else {
                self.receives += 1;
            }
        }
    }

    fn read(&mut self, peer: &mut Side, count: u16) {
        let count = count.min(self.unread);
        self.unread -= count;
        self.receives += usize::from(count);
        self.window.count_reposted_receives(count);
        if let Some(flags) = self.window.count_ack_if_due() {
            self.post(peer, flags, 0);
        }
    }

    fn act(&mut self, peer: &mut Side, action: u8, count: u16) {
        match action {
            0 => (0..count).for_each(|_| self.write(peer)),
            1 => (0..count).for_each(|_| self.poll_sends()),
            2 => (0..count).for_each(|_| self.poll_receives()),
            _ => self.read(peer, count),
        }
    }
}

proptest! {
    /// Each message finds a posted receive, and no queue overflows. After any history both sides
    /// can still send.
    #[test]
    fn two_windows_neither_overrun_nor_deadlock(
        sizes in (16u16..80, 16u16..80, 16u16..80, 16u16..80),
        actions in prop::collection::vec((any::<bool>(), 0u8..4, 0u16..40), 0..300),
    ) {
        let (a_sq, a_rq, b_sq, b_rq) = sizes;
        let mut a = Side::new(a_sq, a_rq, (b_sq, b_rq));
        let mut b = Side::new(b_sq, b_rq, (a_sq, a_rq));
        for (first, action, count) in actions {
            let (one, other) = if first { (&mut a, &mut b) } else { (&mut b, &mut a) };
            one.act(other, action, count);
        }
        // Both programs now read all messages, so each side can send any number of messages.
        let goals = (a.sent + 500, b.sent + 500);
        for _ in 0..2_000 {
            for action in 0..4 {
                a.act(&mut b, action, 7);
                b.act(&mut a, action, 7);
            }
        }
        prop_assert!(a.sent >= goals.0 && b.sent >= goals.1, "{} {} {:?}", a.sent, b.sent, goals);
        for _ in 0..200 {
            a.act(&mut b, 2, 7);
            b.act(&mut a, 2, 7);
        }
        prop_assert_eq!((a.sent, b.sent), (b.got, a.got));
    }
}
