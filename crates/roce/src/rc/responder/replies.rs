//! Replies that wait to be sent, in the order of their requests, and what is kept to give them again.

use std::collections::VecDeque;

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// Number of the packet that it answers; of READ responses, of the next one.
    pub(super) sequence: u64,
    /// Message sequence number.
    pub(super) msn: u32,
    pub(super) kind: Kind,
}

/// What a reply says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Ack,
    RnrNak(u8),
    Nak(u8),
    /// The remaining responses of a READ.
    Read(Read),
    /// The empty response to a FLUSH or ATOMIC WRITE.
    Done,
    /// The original value of an atomic.
    Original(u64),
}

/// A READ as it was first requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) len: u32,
    /// Number of its first response.
    pub(super) first: u64,
    /// Number behind its last.
    pub(super) end: u64,
}

/// Replies to be sent.
#[derive(Debug, Default)]
pub(super) struct Replies {
    queue: VecDeque<Reply>,
}

impl Replies {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn front(&self) -> Option<Reply> {
        self.queue.front().copied()
    }

    /// The front has been sent; of READ responses, one.
    pub(super) fn advance(&mut self) {
        if let Some(reply) = self.queue.front_mut() {
            if let Kind::Read(read) = reply.kind
                && reply.sequence + 1 < read.end
            {
                reply.sequence += 1;
            } else {
                self.queue.pop_front();
            }
        }
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Adds a reply. An acknowledgement that nothing has come behind says the same as the reply, and is dropped; not in
    /// front of a NAK, since Soft-RoCE does not take a NAK for progress.
    pub(super) fn push(&mut self, reply: Reply) {
        if !matches!(reply.kind, Kind::Nak(_)) {
            self.queue
                .pop_back_if(|back| back.kind == Kind::Ack && back.sequence <= reply.sequence);
        }
        self.queue.push_back(reply);
    }

    /// Adds a reply to a repeated request, in front of those to later requests: behind them it would look lost, and the
    /// requester would repeat all of them for ever. A reply that still waits goes back to the response that is asked for.
    pub(super) fn push_again(&mut self, reply: Reply) {
        let waiting = self
            .queue
            .iter_mut()
            .find(|waiting| match (waiting.kind, reply.kind) {
                (Kind::Read(waiting), Kind::Read(again)) => waiting.first == again.first,
                (Kind::Done, Kind::Done) | (Kind::Original(_), Kind::Original(_)) => {
                    waiting.sequence == reply.sequence
                }
                _ => false,
            });
        match waiting {
            Some(waiting) => waiting.sequence = waiting.sequence.min(reply.sequence),
            None => {
                let behind = |waiting: &Reply| waiting.sequence > reply.sequence;
                let at = self.queue.iter().position(behind);
                self.queue.insert(at.unwrap_or(self.queue.len()), reply);
            }
        }
    }
}

/// Replies that are kept to be given again: to the newest READs, atomics, ATOMIC WRITEs and FLUSHes.
#[derive(Debug)]
pub(super) struct Resources {
    ring: VecDeque<Reply>,
    size: usize,
}

impl Resources {
    pub(super) fn new(size: u8) -> Self {
        Self {
            ring: VecDeque::new(),
            size: usize::from(size),
        }
    }

    /// How many replies are kept.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Keeps a reply, and forgets the oldest one when there are too many.
    pub(super) fn keep(&mut self, reply: Reply) {
        if self.ring.len() >= self.size {
            self.ring.pop_front();
        }
        self.ring.push_back(reply);
    }

    /// Number of the oldest request behind `sequence` that has a reply of its own.
    pub(super) fn first_behind(&self, sequence: u64) -> Option<u64> {
        let firsts = self.ring.iter().map(|reply| match reply.kind {
            Kind::Read(read) => read.first,
            _ => reply.sequence,
        });
        firsts.filter(|first| *first > sequence).min()
    }

    /// The reply to the request that `sequence` belongs to.
    pub(super) fn find(&self, sequence: u64) -> Option<Reply> {
        self.ring.iter().copied().find(|reply| match reply.kind {
            Kind::Read(read) => (read.first..read.end).contains(&sequence),
            _ => reply.sequence == sequence,
        })
    }
}
