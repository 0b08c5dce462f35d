//! Blocks that go around the ring of ranks, straight between the caller's memory and registered slots.
//!
//! A rank gets blocks from the rank before it and sends each piece of them to the rank after it as soon as the piece
//! has come. So all ranks of a broadcast or an all-gather copy at the same time, and pieces stay in the cache.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::transfer::{
    MAX_PIECE_BYTES, RankLink, SLOTS_PER_DIRECTION, link_to_rank, piece_count,
    piece_range_and_slot_offset, wrong_size_error,
};
use crate::error::Error;
use crate::progress::{StepResult, run_to_completion};
use crate::request_pool::RequestHandle;
use crate::ring::CollectiveCall;

/// The blocks that a rank receives and sends, in their order. A block is an index into the caller's blocks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlockOrder {
    call: CollectiveCall,
    incoming: Vec<usize>,
    outgoing: Vec<usize>,
    /// How many of `outgoing` this rank has before any block comes.
    own_block_count: usize,
}

impl BlockOrder {
    /// One block goes from rank `root` to all ranks.
    pub(super) fn of_broadcast((rank, ranks): (usize, usize), root: usize) -> Self {
        let distance = (rank + ranks - root) % ranks;
        let block_if = |is_there: bool| if is_there { vec![0] } else { Vec::new() };
        Self {
            call: CollectiveCall::Broadcast,
            incoming: block_if(distance > 0),
            outgoing: block_if(distance + 1 < ranks),
            own_block_count: usize::from(distance == 0),
        }
    }

    /// The block of each rank goes to all ranks.
    pub(super) fn of_all_gather((rank, ranks): (usize, usize)) -> Self {
        let before = |steps: usize| (rank + ranks - steps) % ranks;
        Self {
            call: CollectiveCall::AllGather,
            incoming: (1..ranks).map(before).collect(),
            outgoing: (0..ranks - 1).map(before).collect(),
            own_block_count: 1,
        }
    }
}

/// Pieces of a direction.
#[derive(Default)]
struct PieceQueue {
    started_pieces: usize,
    completed_pieces: usize,
    requests: VecDeque<RequestHandle>,
}

impl PieceQueue {
    fn has_free_slot(&self) -> bool {
        self.started_pieces - self.completed_pieces < SLOTS_PER_DIRECTION
    }

    fn record_started_piece(&mut self, request: RequestHandle) {
        self.requests.push_back(request);
        self.started_pieces += 1;
    }

    fn record_completed_piece(&mut self) {
        self.requests.pop_front();
        self.completed_pieces += 1;
    }
}

/// Blocks of equal size on their way around the ring.
pub(super) struct BlockForwarding<'a, 'b> {
    rank_and_ranks: (usize, usize),
    blocks: &'a mut [&'b mut [u8]],
    order: BlockOrder,
    links: &'a mut [Option<RankLink>],
    receives: PieceQueue,
    sends: PieceQueue,
    /// Whether the next piece to be sent is in its slot.
    is_next_send_staged: bool,
}

impl<'a, 'b> BlockForwarding<'a, 'b> {
    /// `blocks` have equal sizes, and `order` names only these.
    pub(super) fn new(
        place: (usize, usize),
        blocks: &'a mut [&'b mut [u8]],
        order: BlockOrder,
        links: &'a mut [Option<RankLink>],
    ) -> Self {
        Self {
            rank_and_ranks: place,
            blocks,
            order,
            links,
            receives: PieceQueue::default(),
            sends: PieceQueue::default(),
            is_next_send_staged: false,
        }
    }

    pub(super) fn run(mut self, timeout: Duration) -> Result<(), Error> {
        let each = self.pieces_per_block();
        let (to_receive, to_send) = (
            self.order.incoming.len() * each,
            self.order.outgoing.len() * each,
        );
        run_to_completion(timeout, || {
            let mut moved = false;
            if self.receives.completed_pieces < to_receive {
                moved |= self.receive_pieces(to_receive)?;
            }
            if self.sends.completed_pieces < to_send {
                moved |= self.send_pieces(to_send)?;
            }
            let is_done = self.receives.completed_pieces == to_receive
                && self.sends.completed_pieces == to_send;
            Ok(match (is_done, moved) {
                (true, _) => StepResult::Done,
                (false, true) => StepResult::Progress,
                (false, false) => StepResult::Blocked,
            })
        })
    }

    fn pieces_per_block(&self) -> usize {
        piece_count(self.blocks.first().map_or(0, |block| block.len()))
    }

    /// The block, the bytes in it and the slot of a piece of a direction.
    fn block_range_and_slot_of_piece(
        &self,
        order: &[usize],
        index: usize,
    ) -> (usize, Range<usize>, usize) {
        let each = self.pieces_per_block();
        let block = order[index / each];
        let (range, _) = piece_range_and_slot_offset(index % each, self.blocks[block].len());
        (block, range, index % SLOTS_PER_DIRECTION * MAX_PIECE_BYTES)
    }

    /// Posts receives into free slots and takes pieces that have come. Returns true if there was either.
    fn receive_pieces(&mut self, total: usize) -> Result<bool, Error> {
        let (rank, ranks) = self.rank_and_ranks;
        let before = (rank + ranks - 1) % ranks;
        let at_start = (self.receives.started_pieces, self.receives.completed_pieces);
        while self.receives.started_pieces < total && self.receives.has_free_slot() {
            let (_, range, slot) = self
                .block_range_and_slot_of_piece(&self.order.incoming, self.receives.started_pieces);
            let link = link_to_rank(self.links, before)?;
            let part = (
                &link.receive_slots,
                slot..slot + range.len(),
                self.order.call.tag(),
            );
            let Some(request) = link.receiver.irecv(&[part])? else {
                break;
            };
            self.receives.record_started_piece(request);
        }
        while let Some(request) = self.receives.requests.front() {
            let link = link_to_rank(self.links, before)?;
            let Some(sizes) = link.receiver.test(*request)? else {
                break;
            };
            let (block, range, slot) = self.block_range_and_slot_of_piece(
                &self.order.incoming,
                self.receives.completed_pieces,
            );
            let came: usize = sizes.as_slice().iter().map(|s| *s as usize).sum();
            if came != range.len() {
                return Err(wrong_size_error(came, range.len()));
            }
            let link = link_to_rank(self.links, before)?;
            link.receive_slots
                .read_at(slot, &mut self.blocks[block][range])?;
            self.receives.record_completed_piece();
        }
        Ok(at_start != (self.receives.started_pieces, self.receives.completed_pieces))
    }

    /// Sends pieces that this rank has, and takes completions. Returns true if there was either.
    fn send_pieces(&mut self, total: usize) -> Result<bool, Error> {
        let (rank, ranks) = self.rank_and_ranks;
        let next = (rank + 1) % ranks;
        let at_start = (self.sends.started_pieces, self.sends.completed_pieces);
        let here =
            self.order.own_block_count * self.pieces_per_block() + self.receives.completed_pieces;
        while self.sends.started_pieces < total.min(here) && self.sends.has_free_slot() {
            let (block, range, slot) =
                self.block_range_and_slot_of_piece(&self.order.outgoing, self.sends.started_pieces);
            let link = link_to_rank(self.links, next)?;
            let at = slot..slot + range.len();
            if !self.is_next_send_staged {
                link.send_slots.write_at(slot, &self.blocks[block][range])?;
                self.is_next_send_staged = true;
            }
            let call = self.order.call;
            let sent = link.sender.isend(&link.send_slots, at, call.tag())?;
            let Some(request) = sent else {
                call.check_next_receive(&link.sender)?;
                break;
            };
            self.sends.record_started_piece(request);
            self.is_next_send_staged = false;
        }
        while let Some(request) = self.sends.requests.front() {
            let link = link_to_rank(self.links, next)?;
            if link.sender.test(*request)?.is_none() {
                break;
            }
            self.sends.record_completed_piece();
        }
        Ok(at_start != (self.sends.started_pieces, self.sends.completed_pieces))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn neighbours_agree_and_each_rank_gets_each_block_once(ranks in 2usize..9, root in 0usize..8) {
            for root in [None, Some(root % ranks)] {
                let order = |rank| match root {
                    None => BlockOrder::of_all_gather((rank, ranks)),
                    Some(root) => BlockOrder::of_broadcast((rank, ranks), root),
                };
                for rank in 0..ranks {
                    let ours = order(rank);
                    prop_assert_eq!(&ours.outgoing, &order((rank + 1) % ranks).incoming);
                    // The bytes that this rank has at the beginning, and then those that have come.
                    let mut own: Vec<_> = root.map_or(vec![rank], |root| vec![0; usize::from(root == rank)]);
                    prop_assert_eq!(own.len(), ours.own_block_count);
                    own.extend(&ours.incoming);
                    prop_assert!(own.starts_with(&ours.outgoing));
                    own.sort_unstable();
                    let blocks = if root.is_some() { 1 } else { ranks };
                    prop_assert_eq!(own, (0..blocks).collect::<Vec<_>>());
                }
            }
        }
    }
}
