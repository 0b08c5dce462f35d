//! Bytes of any memory that go to a peer, or come from one, in pieces by registered slots.

use std::collections::VecDeque;

use verbs::{Access, MemoryRegion, ProtectionDomain};

use crate::comm::{Receiver, Sender};
use crate::error::Error;
use crate::request_pool::RequestHandle;

/// Bytes of a piece, at most.
pub(super) const MAX_PIECE_BYTES: usize = 64 << 10;
/// Pieces of a direction that may be under way.
pub(super) const SLOTS_PER_DIRECTION: usize = 8;

/// The connections of two ranks, one in each direction, with registered memory for pieces.
#[derive(Debug)]
pub(super) struct RankLink {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
    pub(super) send_slots: MemoryRegion,
    pub(super) receive_slots: MemoryRegion,
}

impl RankLink {
    pub(super) fn new(
        pd: &ProtectionDomain,
        sender: Sender,
        receiver: Receiver,
    ) -> Result<Self, Error> {
        let bytes = SLOTS_PER_DIRECTION * MAX_PIECE_BYTES;
        Ok(Self {
            sender,
            receiver,
            send_slots: pd.alloc(bytes, Access::LOCAL_WRITE)?,
            receive_slots: pd.alloc(bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
        })
    }
}

/// The connections with another rank.
pub(super) fn link_to_rank(
    links: &mut [Option<RankLink>],
    peer: usize,
) -> Result<&mut RankLink, Error> {
    let link = links.get_mut(peer).and_then(Option::as_mut);
    link.ok_or_else(|| Error::Protocol(format!("there is no other rank {peer}")))
}

/// The error of a message that has another size than was expected.
pub(super) fn wrong_size_error(came: usize, expected: usize) -> Error {
    Error::Protocol(format!(
        "{came} bytes came where {expected} were expected: both ranks must pass equal sizes"
    ))
}

/// Returns the number of pieces of `len` bytes. No bytes are one piece, because a receive of nothing still waits for
/// its send.
pub(super) fn piece_count(len: usize) -> usize {
    len.div_ceil(MAX_PIECE_BYTES).max(1)
}

/// The bytes of a piece, and where its slot begins.
pub(super) fn piece_range_and_slot_offset(
    index: usize,
    len: usize,
) -> (std::ops::Range<usize>, usize) {
    let start = index * MAX_PIECE_BYTES;
    (
        start..(start + MAX_PIECE_BYTES).min(len),
        index % SLOTS_PER_DIRECTION * MAX_PIECE_BYTES,
    )
}

/// The progress of a send.
#[derive(Debug, Default)]
pub(super) struct SendProgress {
    /// Pieces that are in their slots.
    filled_pieces: usize,
    started_pieces: usize,
    delivered_pieces: usize,
    requests: VecDeque<RequestHandle>,
}

impl SendProgress {
    /// Goes on without waiting; whether something moved.
    pub(super) fn step(
        &mut self,
        link: &mut RankLink,
        bytes: &[u8],
        tag: u32,
    ) -> Result<bool, Error> {
        let before = (self.started_pieces, self.delivered_pieces);
        let total = piece_count(bytes.len());
        while self.started_pieces < total
            && self.started_pieces - self.delivered_pieces < SLOTS_PER_DIRECTION
        {
            let (range, slot) = piece_range_and_slot_offset(self.started_pieces, bytes.len());
            if self.filled_pieces == self.started_pieces {
                link.send_slots.write_at(slot, &bytes[range.clone()])?;
                self.filled_pieces += 1;
            }
            let sent = link
                .sender
                .isend(&link.send_slots, slot..slot + range.len(), tag)?;
            let Some(request) = sent else { break };
            self.requests.push_back(request);
            self.started_pieces += 1;
        }
        while let Some(request) = self.requests.front() {
            if link.sender.test(*request)?.is_none() {
                break;
            }
            self.requests.pop_front();
            self.delivered_pieces += 1;
        }
        Ok(before != (self.started_pieces, self.delivered_pieces))
    }

    /// Returns true if `len` bytes have arrived at the peer.
    pub(super) fn is_done(&self, len: usize) -> bool {
        self.delivered_pieces == piece_count(len)
    }
}

/// The progress of a receive.
#[derive(Debug, Default)]
pub(super) struct ReceiveProgress {
    posted_pieces: usize,
    received_pieces: usize,
    requests: VecDeque<RequestHandle>,
}

impl ReceiveProgress {
    /// Goes on without waiting; whether something moved.
    pub(super) fn step(
        &mut self,
        link: &mut RankLink,
        bytes: &mut [u8],
        tag: u32,
    ) -> Result<bool, Error> {
        let before = (self.posted_pieces, self.received_pieces);
        let total = piece_count(bytes.len());
        while self.posted_pieces < total
            && self.posted_pieces - self.received_pieces < SLOTS_PER_DIRECTION
        {
            let (range, slot) = piece_range_and_slot_offset(self.posted_pieces, bytes.len());
            let part = (&link.receive_slots, slot..slot + range.len(), tag);
            let Some(request) = link.receiver.irecv(&[part])? else {
                break;
            };
            self.requests.push_back(request);
            self.posted_pieces += 1;
        }
        while let Some(request) = self.requests.front() {
            let Some(sizes) = link.receiver.test(*request)? else {
                break;
            };
            self.requests.pop_front();
            let (range, slot) = piece_range_and_slot_offset(self.received_pieces, bytes.len());
            let came: usize = sizes.as_slice().iter().map(|s| *s as usize).sum();
            if came != range.len() {
                return Err(wrong_size_error(came, range.len()));
            }
            link.receive_slots.read_at(slot, &mut bytes[range])?;
            self.received_pieces += 1;
        }
        Ok(before != (self.posted_pieces, self.received_pieces))
    }

    /// Returns true if `len` bytes have arrived.
    pub(super) fn is_done(&self, len: usize) -> bool {
        self.received_pieces == piece_count(len)
    }
}
