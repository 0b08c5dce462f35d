//! Completion channels: their events, and the tokens that announce them.
//!
//! An event is in the channel's queue, or in a completion queue that a peer has signaled
//! ([`ChannelCq::take_peer_signaled_event`]). Each event has one token in the channel's FIFO, and is taken with a
//! token. The descriptor is therefore readable exactly as long as there is an event. A peer signals a completion queue
//! before it writes the token, so the token may come after the event.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, Weak};

use verbs_abi::ibv_cq;

use crate::lock::lock;
use crate::nic::Nic;
use shm::fabric::completion_channel;

/// The address of a completion queue as the program knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CqHandle(pub(crate) *mut ibv_cq);
// SAFETY: an opaque value here, handed back to the program.
unsafe impl Send for CqHandle {}

/// The view that a channel has of a completion queue.
pub(crate) trait ChannelCq: Send + Sync {
    /// Returns the program's handle.
    fn handle(&self) -> CqHandle;
    /// Returns true if a peer has signaled the queue.
    fn is_peer_signaled(&self) -> bool;
    /// Takes the event whose token a peer has written, for the thread that has taken the token, and counts its delivery.
    /// `Some(false)`: the
    /// peer's message has made no completion. `None`: no peer has signaled this queue, or its event is in the channel
    /// by now.
    fn take_peer_signaled_event(&self) -> Option<bool>;
}

/// A completion channel: events of the completion queues that use it.
pub(crate) struct CompletionChannel {
    fifo: completion_channel::OwnCompletionChannel,
    events: Mutex<ChannelEvents>,
    /// The completion queues that use the channel, by index.
    cqs: Mutex<BTreeMap<usize, Weak<dyn ChannelCq>>>,
    /// Number of completion queues that use the channel.
    pub(crate) cq_count: AtomicUsize,
}

#[derive(Default)]
struct ChannelEvents {
    queue: VecDeque<CqEvent>,
    /// Number of tokens for which the FIFO had no room.
    unwritten_token_count: usize,
    /// Number of tokens that were taken before their event was added.
    tokens_taken_before_event: usize,
    /// The peers that still have to write tokens for events that were discarded with their completion queue.
    peers_owing_tokens_of_discarded_events: Vec<usize>,
}

struct CqEvent {
    cq: CqHandle,
    /// The slot of the peer that writes the event's token; `None` if this process has written it.
    token_writer_slot: Option<usize>,
}

impl CompletionChannel {
    pub(crate) fn new(nic: &'static Nic) -> io::Result<Self> {
        Ok(Self {
            fifo: nic.fabric.make_channel()?,
            events: Mutex::default(),
            cqs: Mutex::default(),
            cq_count: AtomicUsize::new(0),
        })
    }

    /// Returns the descriptor to poll. A program may set `O_NONBLOCK` on it; [`Self::next`] then does not wait.
    pub(crate) fn raw_fd(&self) -> i32 {
        self.fifo.fd().as_raw_fd()
    }

    /// Adds a completion queue that uses the channel.
    pub(crate) fn add_cq(&self, index: usize, cq: Weak<dyn ChannelCq>) {
        lock(&self.cqs).insert(index, cq);
    }

    /// Returns the number by which peers find the channel.
    pub(super) fn fifo_number(&self) -> u32 {
        self.fifo.number()
    }

    /// Adds an event of `cq`, whose index is `index`. `token_of`: the slot of the peer that writes its token, if a peer
    /// does.
    pub(super) fn push_event(&self, index: usize, cq: CqHandle, token_of: Option<usize>) {
        let mut events = lock(&self.events);
        events.queue.push_back(CqEvent {
            cq,
            token_writer_slot: token_of,
        });
        match token_of {
            None => self.write_token_or_count_unwritten(&mut events, index),
            Some(_) if events.tokens_taken_before_event > 0 => {
                events.tokens_taken_before_event -= 1;
                self.write_token_or_count_unwritten(&mut events, index);
            }
            Some(_) => {}
        }
    }

    fn write_token_or_count_unwritten(&self, events: &mut ChannelEvents, cq: usize) {
        // A token cannot hold a larger index. It then names no queue, and its reader checks all queues.
        if !self.fifo.put_token(u16::try_from(cq).unwrap_or(u16::MAX)) {
            events.unwritten_token_count += 1;
        }
    }

    /// Writes tokens for which peers had no room.
    pub(super) fn write_tokens_peers_had_no_room_for(&self, count: usize, cq: usize) {
        let mut events = lock(&self.events);
        for _ in 0..count {
            self.write_token_or_count_unwritten(&mut events, cq);
        }
    }

    /// Writes the tokens that the peer in `slot` owed when it died.
    pub(super) fn write_tokens_owed_by(&self, slot: usize) {
        let mut events = lock(&self.events);
        let of_peer = events
            .queue
            .iter()
            .filter(|e| e.token_writer_slot == Some(slot));
        let (of_peer, all) = (of_peer.count(), events.queue.len());
        // The peer may have died after the write.
        let missing = all.saturating_sub(self.fifo.token_count() + events.unwritten_token_count);
        for _ in 0..missing.min(of_peer) {
            self.write_token_or_count_unwritten(&mut events, usize::MAX);
        }
        for event in events
            .queue
            .iter_mut()
            .filter(|e| e.token_writer_slot == Some(slot))
        {
            event.token_writer_slot = None;
        }
        events
            .peers_owing_tokens_of_discarded_events
            .retain(|of| *of != slot);
    }

    /// Writes a token as a peer does.
    #[cfg(test)]
    pub(super) fn put_token(&self, cq: u16) -> bool {
        self.fifo.put_token(cq)
    }

    /// Returns the number of tokens in the FIFO.
    #[cfg(test)]
    pub(super) fn token_count(&self) -> usize {
        self.fifo.token_count()
    }

    /// Returns the next event; waits for one unless the descriptor is non-blocking. `count` counts the delivery before
    /// another thread can find that the event is gone, and destroy its queue.
    ///
    /// # Errors
    /// `EAGAIN` if there is no event and the descriptor is non-blocking, `EINTR` after a signal whose
    /// handler has no `SA_RESTART`.
    pub(crate) fn next(&self, count: &dyn Fn(*mut ibv_cq)) -> io::Result<CqHandle> {
        loop {
            let of_wait = self.fifo.take_token_of_wait();
            if let Some(named) = of_wait.or_else(|| self.fifo.take_token_cq_index()) {
                if let Some(event) = self.take_event_for_token(named.into(), count) {
                    return Ok(event);
                }
                continue;
            }
            self.fifo.wait_for_token()?;
        }
    }

    /// Returns the event for a token that has been taken and that names the queue likely to have it. `None` if the
    /// peer's message has made no completion, or if the event is still to be added.
    fn take_event_for_token(&self, named: usize, count: &dyn Fn(*mut ibv_cq)) -> Option<CqHandle> {
        if let Some(event) = self.pop_event_for_token(false, count) {
            return Some(event);
        }
        let take = |cq: &Arc<dyn ChannelCq>| Some((cq.take_peer_signaled_event()?, cq.handle()));
        let named = lock(&self.cqs).get(&named).and_then(Weak::upgrade);
        let mut taken = named.as_ref().and_then(take);
        if taken.is_none() {
            if let Some(event) = self.pop_event_for_token(false, count) {
                return Some(event);
            }
            let all: Vec<_> = lock(&self.cqs).values().filter_map(Weak::upgrade).collect();
            // Queues that no peer seems to have signaled are asked too. Another thread may be about to add the event,
            // and the call to the queue waits for that thread.
            taken = all.iter().find_map(take);
        }
        match taken {
            Some((true, cq)) => Some(cq),
            Some((false, _)) => None,
            None => self.pop_event_for_token(true, count),
        }
    }

    /// Takes an event from the queue. If there is none, `is_spare` records that the token was taken before its event.
    fn pop_event_for_token(&self, is_spare: bool, count: &dyn Fn(*mut ibv_cq)) -> Option<CqHandle> {
        let mut events = lock(&self.events);
        if events.unwritten_token_count > 0 {
            events.unwritten_token_count -= 1;
            self.write_token_or_count_unwritten(&mut events, usize::MAX);
        }
        let event = events.queue.pop_front();
        if event.is_none()
            && is_spare
            && events
                .peers_owing_tokens_of_discarded_events
                .pop()
                .is_none()
        {
            events.tokens_taken_before_event += 1;
        }
        let cq = event?.cq;
        count(cq.0);
        Some(cq)
    }

    /// Removes the events of a completion queue that is being destroyed. `program_woken_by`: the slot of the peer that has
    /// signaled it.
    pub(super) fn remove_cq(&self, index: usize, cq: CqHandle, program_woken_by: Option<usize>) {
        let others = {
            let mut cqs = lock(&self.cqs);
            cqs.remove(&index);
            let others = cqs.values().filter_map(Weak::upgrade);
            others.filter(|other| other.is_peer_signaled()).count()
        };
        let mut events = lock(&self.events);
        let (gone, kept): (VecDeque<_>, _) = std::mem::take(&mut events.queue)
            .into_iter()
            .partition(|event| event.cq == cq);
        events.queue = kept;
        let gone = gone.into_iter().map(|event| event.token_writer_slot);
        for token_of in gone.chain(program_woken_by.map(Some)) {
            let owed = token_of.filter(|_| self.fifo.token_count() <= events.queue.len() + others);
            match owed {
                Some(slot) => events.peers_owing_tokens_of_discarded_events.push(slot),
                None if events.unwritten_token_count > 0 => events.unwritten_token_count -= 1,
                None => {
                    self.fifo.take_token_cq_index();
                }
            }
        }
    }
}
