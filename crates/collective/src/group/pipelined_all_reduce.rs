//! The all-reduce of many bytes: around the ring of ranks, straight between the caller's memory and registered slots.
//!
//! The bytes are cut into parts, and a part into one piece for each rank. A part takes `2 (ranks - 1)` steps, as in
//! [`Ring`](crate::ring::Ring): in step `s` rank `r` sends piece `r - s - 1` and gets piece `r - s - 2`, modulo
//! `ranks`. It reduces what comes in the first `ranks - 1` steps; in the others the results go around.
//!
//! Steps of different parts take turns: step `s` of a part is followed by step `s + 1` of the part
//! [`PARTS_BETWEEN_STEPS`] before. So a rank has pieces to send while it waits for the ones that later steps need, and
//! a part stays in the cache between its steps.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::transfer::{
    MAX_PIECE_BYTES, RankLink, SLOTS_PER_DIRECTION, link_to_rank, wrong_size_error,
};
use crate::error::Error;
use crate::progress::{StepResult, run_to_completion};
use crate::request_pool::RequestHandle;
use crate::ring::{CollectiveCall, DataType, Reduction, reduce_bytes, slice_bytes_for_block};

/// Parts between two steps of a part.
const PARTS_BETWEEN_STEPS: usize = 2;
/// Bytes that are reduced at a time: in a copy, since peers may write to registered memory.
const REDUCE_COPY_BYTES: usize = 8 << 10;

/// A step of a part. Turns are in the order in which all ranks take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ScheduleTurn {
    /// The part, and [`PARTS_BETWEEN_STEPS`] for each step.
    part_plus_step_delay: usize,
    step_of_part: usize,
}

impl ScheduleTurn {
    const FIRST: Self = Self {
        part_plus_step_delay: 0,
        step_of_part: 0,
    };

    /// The turn in which the piece came that this one sends; none if it is the rank's own.
    fn source_turn(self) -> Option<Self> {
        let step = self.step_of_part.checked_sub(1)?;
        let time = self.part_plus_step_delay - PARTS_BETWEEN_STEPS;
        Some(Self {
            part_plus_step_delay: time,
            step_of_part: step,
        })
    }
}

/// The partition of the bytes into parts, and of a part into pieces.
struct PiecePartition {
    rank: usize,
    rank_count: usize,
    element_count: usize,
    part_count: usize,
    data_type: DataType,
}

/// Returns the first element of block `index` if `count` elements are divided into `blocks` equal blocks.
fn first_element_of_block(count: usize, blocks: usize, index: usize) -> usize {
    count / blocks * index + (count % blocks).min(index)
}

impl PiecePartition {
    fn new(rank: usize, ranks: usize, bytes: usize, data: DataType) -> Self {
        let (count, piece) = (
            bytes / data.element_bytes(),
            slice_bytes_for_block(bytes / ranks, MAX_PIECE_BYTES),
        );
        Self {
            rank,
            rank_count: ranks,
            element_count: count,
            part_count: count.div_ceil(piece / data.element_bytes() * ranks),
            data_type: data,
        }
    }

    fn reduce_steps_per_part(&self) -> usize {
        self.rank_count - 1
    }

    /// The turn after this one; none after the last.
    fn next_turn(&self, turn: ScheduleTurn) -> Option<ScheduleTurn> {
        let steps = 2 * self.reduce_steps_per_part();
        let last = self.part_count - 1 + PARTS_BETWEEN_STEPS * (steps - 1);
        let at = |time: usize| {
            move |step: usize| ScheduleTurn {
                part_plus_step_delay: time,
                step_of_part: step,
            }
        };
        let exists = |turn: &ScheduleTurn| {
            let part = turn
                .part_plus_step_delay
                .checked_sub(PARTS_BETWEEN_STEPS * turn.step_of_part);
            part.is_some_and(|part| part < self.part_count)
        };
        let mut same = (turn.step_of_part + 1..steps).map(at(turn.part_plus_step_delay));
        let mut later =
            (turn.part_plus_step_delay + 1..=last).flat_map(|time| (0..steps).map(at(time)));
        same.find(exists).or_else(|| later.find(exists))
    }

    /// The bytes of a piece of the turn's part.
    fn byte_range(&self, turn: ScheduleTurn, index: usize) -> Range<usize> {
        let part = turn.part_plus_step_delay - PARTS_BETWEEN_STEPS * turn.step_of_part;
        let begin = first_element_of_block(self.element_count, self.part_count, part);
        let count = first_element_of_block(self.element_count, self.part_count, part + 1) - begin;
        let at = |index| {
            (begin + first_element_of_block(count, self.rank_count, index))
                * self.data_type.element_bytes()
        };
        let index = index % self.rank_count;
        at(index)..at(index + 1)
    }

    fn outgoing_byte_range(&self, turn: ScheduleTurn) -> Range<usize> {
        self.byte_range(
            turn,
            self.rank + 2 * self.rank_count - turn.step_of_part - 1,
        )
    }

    fn incoming_byte_range(&self, turn: ScheduleTurn) -> Range<usize> {
        self.byte_range(
            turn,
            self.rank + 2 * self.rank_count - turn.step_of_part - 2,
        )
    }
}

/// Pieces of a direction.
struct PieceQueue {
    /// The next one to be posted or sent; none when all are.
    next_turn_to_start: Option<ScheduleTurn>,
    started_pieces: usize,
    completed_pieces: usize,
    requests: VecDeque<RequestHandle>,
}

impl PieceQueue {
    fn new() -> Self {
        Self {
            next_turn_to_start: Some(ScheduleTurn::FIRST),
            started_pieces: 0,
            completed_pieces: 0,
            requests: VecDeque::with_capacity(SLOTS_PER_DIRECTION),
        }
    }

    /// The slot and the turn of the next piece, if it can be begun.
    fn next_slot_offset_and_turn(&self) -> Option<(usize, ScheduleTurn)> {
        let turn = self
            .next_turn_to_start
            .filter(|_| self.started_pieces - self.completed_pieces < SLOTS_PER_DIRECTION)?;
        Some((
            self.started_pieces % SLOTS_PER_DIRECTION * MAX_PIECE_BYTES,
            turn,
        ))
    }

    fn record_started_piece(
        &mut self,
        plan: &PiecePartition,
        turn: ScheduleTurn,
        request: RequestHandle,
    ) {
        self.requests.push_back(request);
        self.started_pieces += 1;
        self.next_turn_to_start = plan.next_turn(turn);
    }

    fn record_completed_piece(&mut self) {
        self.requests.pop_front();
        self.completed_pieces += 1;
    }

    fn is_done(&self) -> bool {
        self.next_turn_to_start.is_none() && self.requests.is_empty()
    }
}

/// An all-reduce under way.
pub(super) struct PipelinedAllReduce<'a> {
    partition: PiecePartition,
    op: Reduction,
    bytes: &'a mut [u8],
    links: &'a mut [Option<RankLink>],
    sends: PieceQueue,
    receives: PieceQueue,
    /// The turn whose piece is to come next; none when all came.
    next_incoming: Option<ScheduleTurn>,
    /// True if the next piece to be sent is in its slot.
    is_next_send_staged: bool,
}

impl<'a> PipelinedAllReduce<'a> {
    /// `bytes` are whole elements, at least one for each of two or more ranks.
    pub(super) fn new(
        (rank, ranks): (usize, usize),
        bytes: &'a mut [u8],
        (data, op): (DataType, Reduction),
        links: &'a mut [Option<RankLink>],
    ) -> Self {
        Self {
            partition: PiecePartition::new(rank, ranks, bytes.len(), data),
            op,
            bytes,
            links,
            sends: PieceQueue::new(),
            receives: PieceQueue::new(),
            next_incoming: Some(ScheduleTurn::FIRST),
            is_next_send_staged: false,
        }
    }

    pub(super) fn run(mut self, timeout: Duration) -> Result<(), Error> {
        run_to_completion(timeout, || {
            let moved =
                self.post_receives()? | self.take_received_piece()? | self.send_ready_piece()?;
            if self.sends.is_done() && self.receives.is_done() {
                return Ok(StepResult::Done);
            }
            Ok(if moved {
                StepResult::Progress
            } else {
                StepResult::Blocked
            })
        })
    }

    fn call(&self) -> CollectiveCall {
        CollectiveCall::AllReduce(self.partition.data_type, self.op)
    }

    /// Posts receives into free slots while the connection takes them. Returns true if it posted any.
    fn post_receives(&mut self) -> Result<bool, Error> {
        let (ranks, tag) = (self.partition.rank_count, self.call().tag());
        let before = link_to_rank(self.links, (self.partition.rank + ranks - 1) % ranks)?;
        let begun = self.receives.started_pieces;
        while let Some((slot, turn)) = self.receives.next_slot_offset_and_turn() {
            let range = slot..slot + self.partition.incoming_byte_range(turn).len();
            let posted = before
                .receiver
                .irecv(&[(&before.receive_slots, range, tag)])?;
            let Some(request) = posted else { break };
            self.receives
                .record_started_piece(&self.partition, turn, request);
        }
        Ok(self.receives.started_pieces > begun)
    }

    /// Takes a piece that has come; whether one has.
    fn take_received_piece(&mut self) -> Result<bool, Error> {
        let (ranks, rank) = (self.partition.rank_count, self.partition.rank);
        let (Some(request), Some(turn)) = (self.receives.requests.front(), self.next_incoming)
        else {
            return Ok(false);
        };
        let before = link_to_rank(self.links, (rank + ranks - 1) % ranks)?;
        let Some(sizes) = before.receiver.test(*request)? else {
            return Ok(false);
        };
        let range = self.partition.incoming_byte_range(turn);
        let came: usize = sizes.as_slice().iter().map(|s| *s as usize).sum();
        if came != range.len() {
            return Err(wrong_size_error(came, range.len()));
        }
        let slot = self.receives.completed_pieces % SLOTS_PER_DIRECTION * MAX_PIECE_BYTES;
        let ours = &mut self.bytes[range];
        if turn.step_of_part < self.partition.reduce_steps_per_part() {
            let mut block = [0; REDUCE_COPY_BYTES];
            for (index, ours) in ours.chunks_mut(REDUCE_COPY_BYTES).enumerate() {
                let theirs = &mut block[..ours.len()];
                before
                    .receive_slots
                    .read_at(slot + index * REDUCE_COPY_BYTES, theirs)?;
                reduce_bytes(ours, theirs, self.partition.data_type, self.op);
            }
        } else {
            before.receive_slots.read_at(slot, ours)?;
        }
        self.receives.record_completed_piece();
        self.next_incoming = self.partition.next_turn(turn);
        Ok(true)
    }

    /// Sends a piece that is ready, and takes completions of earlier ones; whether there was either.
    fn send_ready_piece(&mut self) -> Result<bool, Error> {
        let call = self.call();
        let next = link_to_rank(
            self.links,
            (self.partition.rank + 1) % self.partition.rank_count,
        )?;
        let (begun, ended) = (self.sends.started_pieces, self.sends.completed_pieces);
        if let Some((slot, turn)) = self.sends.next_slot_offset_and_turn()
            && turn
                .source_turn()
                .is_none_or(|source| self.next_incoming.is_none_or(|next| source < next))
        {
            let range = self.partition.outgoing_byte_range(turn);
            let at = slot..slot + range.len();
            if !self.is_next_send_staged {
                next.send_slots.write_at(slot, &self.bytes[range])?;
                self.is_next_send_staged = true;
            }
            match next.sender.isend(&next.send_slots, at, call.tag())? {
                Some(request) => {
                    self.sends
                        .record_started_piece(&self.partition, turn, request);
                    self.is_next_send_staged = false;
                }
                None => call.check_next_receive(&next.sender)?,
            }
        }
        while let Some(request) = self.sends.requests.front() {
            if next.sender.test(*request)?.is_none() {
                break;
            }
            self.sends.record_completed_piece();
        }
        Ok((begun, ended) != (self.sends.started_pieces, self.sends.completed_pieces))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(rank: usize, ranks: usize, bytes: usize) -> PiecePartition {
        PiecePartition::new(rank, ranks, bytes, DataType::U8)
    }

    fn turns(plan: &PiecePartition) -> Vec<ScheduleTurn> {
        std::iter::successors(Some(ScheduleTurn::FIRST), |turn| plan.next_turn(*turn)).collect()
    }

    proptest! {
        #[test]
        fn neighbours_agree_and_each_byte_takes_each_step_once(ranks in 2usize..9, bytes in 33_000usize..2_000_000) {
            let (mut sent, mut steps) = (0, vec![0; 2 * (ranks - 1)]);
            for rank in 0..ranks {
                let (plan, next) = (plan(rank, ranks, bytes), plan((rank + 1) % ranks, ranks, bytes));
                let turns = turns(&plan);
                prop_assert!(turns.is_sorted());
                for turn in &turns {
                    let range = plan.outgoing_byte_range(*turn);
                    prop_assert!(!range.is_empty() && range.len() <= MAX_PIECE_BYTES);
                    prop_assert_eq!(&range, &next.incoming_byte_range(*turn));
                    if let Some(source) = turn.source_turn() {
                        prop_assert!(source < *turn && turns.binary_search(&source).is_ok());
                        prop_assert_eq!(&range, &plan.incoming_byte_range(source));
                    }
                    sent += range.len();
                    steps[turn.step_of_part] += range.len();
                }
            }
            prop_assert_eq!(sent, bytes * 2 * (ranks - 1));
            prop_assert!(steps.iter().all(|moved| *moved == bytes));
        }
    }
}
