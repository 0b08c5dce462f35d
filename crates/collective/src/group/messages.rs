//! Sends and receives of a group, many at a time.

use std::collections::VecDeque;

use super::transfer::{Incoming, Link, Outgoing};
use crate::error::Error;

/// Memory of a message, owned until the message has gone or come.
pub trait Payload: Send {
    /// The bytes that are sent.
    fn bytes(&self) -> &[u8];
    /// The bytes that are received into.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl Payload for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Called with the message's memory and its outcome.
type Done = Box<dyn FnOnce(Box<dyn Payload>, Result<(), Error>) + Send>;

/// A message and how far it is.
struct Message<P> {
    payload: Box<dyn Payload>,
    tag: u32,
    progress: P,
    done: Done,
}

/// A peer with the messages that are to go there and to come from there.
struct Lane {
    link: Link,
    out: VecDeque<Message<Outgoing>>,
    into: VecDeque<Message<Incoming>>,
}

/// Sends and receives between this rank and others. Those of a pair of ranks match in their order, and must have equal tags and
/// sizes; those with different ranks do not wait for each other.
///
/// No call blocks. A message that never finds its match stays under way until this is dropped.
pub struct Messages {
    rank: usize,
    lanes: Vec<Lane>,
}

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Messages")
            .field("rank", &self.rank)
            .finish_non_exhaustive()
    }
}

impl Messages {
    /// `links` are those of the other ranks, in order.
    pub(super) fn new(rank: usize, links: Vec<Link>) -> Self {
        let lanes = links.into_iter().map(|link| Lane {
            link,
            out: VecDeque::new(),
            into: VecDeque::new(),
        });
        Self {
            rank,
            lanes: lanes.collect(),
        }
    }

    fn lane(&mut self, peer: usize) -> Option<&mut Lane> {
        let index = peer
            .checked_sub(usize::from(peer > self.rank))
            .filter(|_| peer != self.rank)?;
        self.lanes.get_mut(index)
    }

    /// Sends to another rank. `done` is called by [`progress`](Self::progress), or at once if there is no such rank.
    pub fn send(&mut self, peer: usize, payload: Box<dyn Payload>, tag: u32, done: Done) {
        match self.lane(peer) {
            Some(lane) => lane.out.push_back(Message {
                payload,
                tag,
                progress: Outgoing::default(),
                done,
            }),
            None => done(payload, Err(no_peer(peer))),
        }
    }

    /// Receives from another rank, as [`send`](Self::send) sends.
    pub fn recv(&mut self, peer: usize, payload: Box<dyn Payload>, tag: u32, done: Done) {
        match self.lane(peer) {
            Some(lane) => lane.into.push_back(Message {
                payload,
                tag,
                progress: Incoming::default(),
                done,
            }),
            None => done(payload, Err(no_peer(peer))),
        }
    }

    /// Goes on with all messages without waiting; whether something moved.
    pub fn progress(&mut self) -> bool {
        let mut moved = false;
        for lane in &mut self.lanes {
            moved |= lane.progress();
        }
        moved
    }

    /// Whether no message is under way.
    pub fn is_idle(&self) -> bool {
        let mut lanes = self.lanes.iter();
        lanes.all(|lane| lane.out.is_empty() && lane.into.is_empty())
    }
}

fn no_peer(peer: usize) -> Error {
    Error::Protocol(format!(
        "rank {peer} is not another rank of this group: messages go to and come from other ranks"
    ))
}

impl Lane {
    fn progress(&mut self) -> bool {
        let mut moved = false;
        if let Some(first) = self.out.front_mut() {
            let bytes = first.payload.bytes();
            let stepped = first.progress.step(&mut self.link, bytes, first.tag);
            let done = stepped.is_err() || first.progress.is_done(bytes.len());
            moved |= *stepped.as_ref().unwrap_or(&true);
            if done && let Some(Message { payload, done, .. }) = self.out.pop_front() {
                done(payload, stepped.map(drop));
            }
        }
        if let Some(first) = self.into.front_mut() {
            let bytes = first.payload.bytes_mut();
            let stepped = first.progress.step(&mut self.link, bytes, first.tag);
            let done = stepped.is_err() || first.progress.is_done(bytes.len());
            moved |= *stepped.as_ref().unwrap_or(&true);
            if done && let Some(Message { payload, done, .. }) = self.into.pop_front() {
                done(payload, stepped.map(drop));
            }
        }
        moved
    }
}
