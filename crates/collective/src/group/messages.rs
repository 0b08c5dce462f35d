//! Sends and receives of a group, many at a time.

use std::collections::VecDeque;

use super::transfer::{RankLink, ReceiveProgress, SendProgress};
use crate::error::Error;

/// Memory of a message, owned until the message has gone or come.
pub trait MessageMemory: Send {
    /// The bytes that are sent.
    fn bytes(&self) -> &[u8];
    /// The bytes that are received into.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl MessageMemory for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Called with the message's memory and its outcome.
type OnDone = Box<dyn FnOnce(Box<dyn MessageMemory>, Result<(), Error>) + Send>;

/// A message and how far it is.
struct QueuedMessage<P> {
    payload: Box<dyn MessageMemory>,
    tag: u32,
    progress: P,
    on_done: OnDone,
}

/// A peer with the messages that are to go there and to come from there.
struct PeerQueues {
    /// The first error ends the link.
    link: Result<RankLink, Error>,
    outgoing: VecDeque<QueuedMessage<SendProgress>>,
    incoming: VecDeque<QueuedMessage<ReceiveProgress>>,
}

/// Sends and receives between this rank and others. Those of a pair of ranks match in their order, and must have equal
/// tags and sizes; those with different ranks do not wait for each other. After an error of a message, all others with
/// that rank fail with the same error.
///
/// No call blocks. A message that never finds its match stays under way until this is dropped.
pub struct RankMessenger {
    rank: usize,
    peers: Vec<PeerQueues>,
}

impl std::fmt::Debug for RankMessenger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Messages")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

impl RankMessenger {
    /// `links` are those of the other ranks, in order.
    pub(super) fn new(rank: usize, links: Vec<RankLink>) -> Self {
        let lanes = links.into_iter().map(|link| PeerQueues {
            link: Ok(link),
            outgoing: VecDeque::new(),
            incoming: VecDeque::new(),
        });
        Self {
            rank,
            peers: lanes.collect(),
        }
    }

    fn peer_queues(&mut self, peer: usize) -> Option<&mut PeerQueues> {
        let index = peer
            .checked_sub(usize::from(peer > self.rank))
            .filter(|_| peer != self.rank)?;
        self.peers.get_mut(index)
    }

    /// Sends to another rank. `done` is called by [`progress_all_peers`](Self::progress_all_peers), or at once if there
    /// is no such rank or an earlier message with it has failed.
    pub fn send(&mut self, peer: usize, payload: Box<dyn MessageMemory>, tag: u32, done: OnDone) {
        match self.peer_queues(peer) {
            Some(lane) => match &lane.link {
                Ok(_) => lane.outgoing.push_back(QueuedMessage {
                    payload,
                    tag,
                    progress: SendProgress::default(),
                    on_done: done,
                }),
                Err(e) => done(payload, Err(e.clone())),
            },
            None => done(payload, Err(no_such_peer_error(peer))),
        }
    }

    /// Receives from another rank, as [`send`](Self::send) sends.
    pub fn recv(&mut self, peer: usize, payload: Box<dyn MessageMemory>, tag: u32, done: OnDone) {
        match self.peer_queues(peer) {
            Some(lane) => match &lane.link {
                Ok(_) => lane.incoming.push_back(QueuedMessage {
                    payload,
                    tag,
                    progress: ReceiveProgress::default(),
                    on_done: done,
                }),
                Err(e) => done(payload, Err(e.clone())),
            },
            None => done(payload, Err(no_such_peer_error(peer))),
        }
    }

    /// Makes progress with all messages, without waiting. Returns true if a message made progress.
    pub fn progress_all_peers(&mut self) -> bool {
        let mut moved = false;
        for lane in &mut self.peers {
            moved |= lane.progress_front_messages();
        }
        moved
    }

    /// Returns true if no message is in progress.
    pub fn is_idle(&self) -> bool {
        let mut lanes = self.peers.iter();
        lanes.all(|lane| lane.outgoing.is_empty() && lane.incoming.is_empty())
    }
}

fn no_such_peer_error(peer: usize) -> Error {
    Error::Protocol(format!(
        "rank {peer} is not another rank of this group: messages go to and come from other ranks"
    ))
}

impl PeerQueues {
    fn progress_front_messages(&mut self) -> bool {
        let Ok(link) = &mut self.link else {
            return false;
        };
        let (mut moved, mut failure) = (false, None);
        if let Some(first) = self.outgoing.front_mut() {
            let bytes = first.payload.bytes();
            let stepped = first.progress.step(link, bytes, first.tag);
            let done = first.progress.is_done(bytes.len());
            moved |= *stepped.as_ref().unwrap_or(&true);
            failure = stepped.err();
            if done && failure.is_none() {
                complete_first_message(&mut self.outgoing);
            }
        }
        if let Some(first) = self.incoming.front_mut() {
            let bytes = first.payload.bytes_mut();
            let stepped = first.progress.step(link, bytes, first.tag);
            let done = first.progress.is_done(bytes.len());
            moved |= *stepped.as_ref().unwrap_or(&true);
            match stepped {
                Ok(_) if done => complete_first_message(&mut self.incoming),
                Ok(_) => {}
                Err(e) => failure = Some(e),
            }
        }
        if let Some(error) = failure {
            self.fail(error);
        }
        moved
    }

    /// Ends the link: receives that are posted for a failed message would take pieces of later ones.
    fn fail(&mut self, error: Error) {
        self.link = Err(error.clone());
        for message in self.outgoing.drain(..) {
            (message.on_done)(message.payload, Err(error.clone()));
        }
        for message in self.incoming.drain(..) {
            (message.on_done)(message.payload, Err(error.clone()));
        }
    }
}

/// Takes the first message out of its queue after it was sent or received.
fn complete_first_message<P>(queue: &mut VecDeque<QueuedMessage<P>>) {
    if let Some(message) = queue.pop_front() {
        (message.on_done)(message.payload, Ok(()));
    }
}
