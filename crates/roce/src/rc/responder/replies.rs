//! Replies that wait for transmission, in the order of their requests, and replies kept for duplicate requests.

use std::collections::VecDeque;

/// A reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    /// Sequence number of the acknowledged packet; for READ responses, of the next response.
    pub(super) acked_or_next_response_sequence: u64,
    /// Message sequence number.
    pub(super) msn: u32,
    pub(super) kind: ReplyKind,
}

/// The type of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyKind {
    Ack,
    RnrNak(u8),
    Nak(u8),
    /// The responses of a READ that are not yet sent.
    RemainingReadResponses(ReadRequest),
    /// The empty response to a FLUSH or ATOMIC WRITE.
    EmptyResponse,
    /// The response to an atomic, with the original value.
    AtomicResponse(u64),
}

/// A READ as it was first requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadRequest {
    pub(super) addr: u64,
    pub(super) rkey: u32,
    pub(super) len: u32,
    /// Sequence number of the first response.
    pub(super) first_sequence: u64,
    /// Sequence number after the last response.
    pub(super) end_sequence: u64,
}

/// The queue of replies to send.
#[derive(Debug, Default)]
pub(super) struct ReplyQueue {
    queue: VecDeque<Reply>,
}

impl ReplyQueue {
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn front(&self) -> Option<Reply> {
        self.queue.front().copied()
    }

    /// Removes the front reply after it was sent; for a READ, advances by one response.
    pub(super) fn advance_after_send(&mut self) {
        if let Some(reply) = self.queue.front_mut() {
            if let ReplyKind::RemainingReadResponses(read) = reply.kind
                && reply.acked_or_next_response_sequence + 1 < read.end_sequence
            {
                reply.acked_or_next_response_sequence += 1;
            } else {
                self.queue.pop_front();
            }
        }
    }

    /// Removes all replies.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Adds a reply. An ACK at the back of the queue is dropped if the new reply acknowledges the same packets. In
    /// front of a NAK the ACK stays, since Soft-RoCE does not count a NAK as progress.
    pub(super) fn push(&mut self, reply: Reply) {
        if !matches!(reply.kind, ReplyKind::Nak(_)) {
            self.queue.pop_back_if(|back| {
                back.kind == ReplyKind::Ack
                    && back.acked_or_next_response_sequence <= reply.acked_or_next_response_sequence
            });
        }
        self.queue.push_back(reply);
    }

    /// Adds a reply to a duplicate request, in front of the replies to later requests. Behind them the requester would
    /// consider the reply lost and repeat all its requests again and again. If a reply to the same request is still
    /// queued, that reply moves back to the response that is asked for.
    pub(super) fn push_reply_to_duplicate(&mut self, reply: Reply) {
        let waiting = self
            .queue
            .iter_mut()
            .find(|waiting| match (waiting.kind, reply.kind) {
                (
                    ReplyKind::RemainingReadResponses(waiting),
                    ReplyKind::RemainingReadResponses(again),
                ) => waiting.first_sequence == again.first_sequence,
                (ReplyKind::EmptyResponse, ReplyKind::EmptyResponse)
                | (ReplyKind::AtomicResponse(_), ReplyKind::AtomicResponse(_)) => {
                    waiting.acked_or_next_response_sequence == reply.acked_or_next_response_sequence
                }
                _ => false,
            });
        match waiting {
            Some(waiting) => {
                waiting.acked_or_next_response_sequence = waiting
                    .acked_or_next_response_sequence
                    .min(reply.acked_or_next_response_sequence)
            }
            None => {
                let behind = |waiting: &Reply| {
                    waiting.acked_or_next_response_sequence > reply.acked_or_next_response_sequence
                };
                let at = self.queue.iter().position(behind);
                self.queue.insert(at.unwrap_or(self.queue.len()), reply);
            }
        }
    }
}

/// The replies kept for duplicate requests: those to the newest READs, atomics, ATOMIC WRITEs and FLUSHes.
#[derive(Debug)]
pub(super) struct RepliesForDuplicates {
    kept_replies: VecDeque<Reply>,
    max_kept_replies: usize,
}

impl RepliesForDuplicates {
    pub(super) fn new(size: u8) -> Self {
        Self {
            kept_replies: VecDeque::new(),
            max_kept_replies: usize::from(size),
        }
    }

    /// Returns the largest number of kept replies.
    pub(super) fn max_kept_replies(&self) -> usize {
        self.max_kept_replies
    }

    /// Keeps a reply, and removes the oldest one if the limit is reached.
    pub(super) fn add(&mut self, reply: Reply) {
        if self.kept_replies.len() >= self.max_kept_replies {
            self.kept_replies.pop_front();
        }
        self.kept_replies.push_back(reply);
    }

    /// Returns the number of the oldest request after `sequence` that has a reply of its own.
    pub(super) fn first_own_reply_sequence_after(&self, sequence: u64) -> Option<u64> {
        let firsts = self.kept_replies.iter().map(|reply| match reply.kind {
            ReplyKind::RemainingReadResponses(read) => read.first_sequence,
            _ => reply.acked_or_next_response_sequence,
        });
        firsts.filter(|first| *first > sequence).min()
    }

    /// Returns the reply to the request that contains packet `sequence`.
    pub(super) fn find(&self, sequence: u64) -> Option<Reply> {
        self.kept_replies
            .iter()
            .copied()
            .find(|reply| match reply.kind {
                ReplyKind::RemainingReadResponses(read) => {
                    (read.first_sequence..read.end_sequence).contains(&sequence)
                }
                _ => reply.acked_or_next_response_sequence == sequence,
            })
    }
}
