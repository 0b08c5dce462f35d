//! Tests of events and their tokens, one step at a time.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

use rustix::fs::{OFlags, fcntl_setfl};

use super::channel::ChannelCq;
use super::*;
use crate::symbols;

/// Makes a completion queue and its channel by the program's calls.
pub(super) fn queue() -> (Arc<Cq>, Arc<CompletionChannel>) {
    let verbs = symbols();
    // SAFETY: the calls of a program that opens the first device, in order.
    let cq = unsafe {
        let devices = (verbs.ibv_get_device_list)(null_mut());
        let context = (verbs.ibv_open_device)(*devices);
        let channel = (verbs.ibv_create_comp_channel)(context);
        (verbs.ibv_create_cq)(context, 16, null_mut(), channel, 0)
    };
    let cq = live_handles::find_object::<Cq>(cq).expect("a CQ");
    let channel = cq.channel.clone().expect("its channel");
    // SAFETY: open as long as the channel.
    let fd = unsafe { BorrowedFd::borrow_raw(channel.raw_fd()) };
    fcntl_setfl(fd, OFlags::NONBLOCK).expect("set");
    (cq, channel)
}

fn push(channel: &CompletionChannel, cq: &Cq, token_of: Option<usize>) {
    channel.push_event(cq.index, cq.handle(), token_of);
}

fn is_empty(channel: &CompletionChannel) -> bool {
    channel
        .next(&|_| ())
        .is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
}

#[test]
fn an_event_is_taken_with_its_token() {
    let (cq, channel) = queue();
    push(&channel, &cq, None);
    assert!(
        channel
            .next(&|_| ())
            .is_ok_and(|taken| taken == cq.handle())
    );
    assert!(is_empty(&channel));
    // A peer's token is still to come: the descriptor is not readable, and there is no event.
    push(&channel, &cq, Some(5));
    assert!(is_empty(&channel));
    assert!(channel.put_token(0));
    assert!(
        channel
            .next(&|_| ())
            .is_ok_and(|taken| taken == cq.handle())
    );
    // The token comes before the event.
    assert!(channel.put_token(0));
    assert!(is_empty(&channel));
    push(&channel, &cq, Some(5));
    assert!(
        channel
            .next(&|_| ())
            .is_ok_and(|taken| taken == cq.handle())
    );
    assert!(is_empty(&channel));
}

/// A completion queue that another thread is just disarming: its event is there when that thread releases the lock.
struct Disarmed {
    channel: Arc<CompletionChannel>,
    cq: Arc<Cq>,
}

impl ChannelCq for Disarmed {
    fn handle(&self) -> CqHandle {
        self.cq.handle()
    }

    fn is_peer_signaled(&self) -> bool {
        false
    }

    fn take_peer_signaled_event(&self) -> Option<bool> {
        self.channel.push_event(7, self.handle(), Some(5));
        None
    }
}

/// The descriptor was readable, so there is an event, even while another thread takes the signal for it.
#[test]
fn a_token_waits_for_the_thread_that_adds_its_event() {
    let (cq, channel) = queue();
    let other: Arc<dyn ChannelCq> = Arc::new(Disarmed {
        channel: Arc::clone(&channel),
        cq: Arc::clone(&cq),
    });
    channel.add_cq(usize::MAX, Arc::downgrade(&other));
    assert!(channel.put_token(9));
    assert!(
        channel
            .next(&|_| ())
            .is_ok_and(|taken| taken == cq.handle())
    );
}

#[test]
fn the_token_of_a_peer_that_died_is_written_once() {
    let (cq, channel) = queue();
    push(&channel, &cq, Some(5));
    channel.write_tokens_owed_by(6);
    assert!(is_empty(&channel));
    channel.write_tokens_owed_by(5);
    channel.write_tokens_owed_by(5);
    assert!(
        channel
            .next(&|_| ())
            .is_ok_and(|taken| taken == cq.handle())
    );
    assert!(is_empty(&channel));
    // The peer died after the write.
    push(&channel, &cq, Some(5));
    assert!(channel.put_token(0));
    channel.write_tokens_owed_by(5);
    assert!(channel.next(&|_| ()).is_ok());
    assert!(is_empty(&channel));
    assert_eq!(channel.token_count(), 0);
}

#[test]
fn tokens_go_with_the_events_that_they_announce() {
    let (cq, channel) = queue();
    let (other, _) = queue();
    push(&channel, &other, None);
    push(&channel, &cq, None);
    push(&channel, &cq, Some(5));
    channel.remove_cq(cq.index, cq.handle(), None);
    assert!(
        channel
            .next(&|_| ())
            .is_ok_and(|taken| taken == other.handle())
    );
    // The peer's late token no longer has an event, and does not take another event along.
    assert!(channel.put_token(0));
    assert!(is_empty(&channel));
    push(&channel, &other, Some(5));
    assert!(is_empty(&channel));
}

#[test]
fn more_events_than_tokens_fit_are_kept() {
    let (cq, channel) = queue();
    const EVENTS: usize = 40_000;
    for _ in 0..EVENTS {
        push(&channel, &cq, None);
    }
    assert!(channel.token_count() < EVENTS);
    for _ in 0..EVENTS {
        channel.next(&|_| ()).expect("an event");
    }
    assert!(is_empty(&channel));
}

#[test]
fn garbage_in_the_words_of_a_queue_makes_no_event() {
    let (cq, channel) = queue();
    cq.shared_state()
        .armed_word
        .store(u32::MAX, Ordering::Relaxed);
    assert!(channel.put_token(0xffff));
    assert!(is_empty(&channel));
    cq.arm(false);
    cq.shared_state().armed_word.fetch_or(!0, Ordering::Relaxed);
    assert!(channel.put_token(u16::try_from(cq.index).expect("small")));
    assert!(is_empty(&channel));
}
