//! The all-reduce of many bytes: around the ring of ranks, straight between the caller's memory and registered slots.
//!
//! The bytes are cut into parts, and a part into one piece for each rank. A part takes `2 (ranks - 1)` steps, as in
//! [`Ring`](crate::ring::Ring): in step `s` rank `r` sends piece `r - s - 1` and gets piece `r - s - 2`, modulo `ranks`. It
//! reduces what comes in the first `ranks - 1` steps; in the others the results go around.
//!
//! Steps of different parts take turns: step `s` of a part is followed by step `s + 1` of the part [`LAG`] before. So a rank
//! has pieces to send while it waits for the ones that later steps need, and a part stays in the cache between its steps.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::transfer::{Link, SLOT_BYTES, SLOTS, link, wrong_size};
use crate::error::Error;
use crate::pool::Request;
use crate::progress::{Step, drive};
use crate::ring::{DataType, Reduction, reduce_bytes, slice_bytes};

/// Parts between two steps of a part.
const LAG: usize = 2;
/// Bytes that are reduced at a time: in a copy, since peers may write to registered memory.
const BLOCK: usize = 8 << 10;

/// A step of a part. Turns are in the order in which all ranks take them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    /// The part, and [`LAG`] for each step.
    time: usize,
    step: usize,
}

impl Turn {
    const FIRST: Self = Self { time: 0, step: 0 };

    /// The turn in which the piece came that this one sends; none if it is the rank's own.
    fn source(self) -> Option<Self> {
        let step = self.step.checked_sub(1)?;
        let time = self.time - LAG;
        Some(Self { time, step })
    }
}

/// How bytes are cut.
struct Plan {
    rank: usize,
    ranks: usize,
    count: usize,
    parts: usize,
    data: DataType,
}

/// Where block `index` of `blocks` equal ones begins.
fn start(count: usize, blocks: usize, index: usize) -> usize {
    count / blocks * index + (count % blocks).min(index)
}

impl Plan {
    fn new(rank: usize, ranks: usize, bytes: usize, data: DataType) -> Self {
        let (count, piece) = (bytes / data.bytes(), slice_bytes(bytes / ranks, SLOT_BYTES));
        Self {
            rank,
            ranks,
            count,
            parts: count.div_ceil(piece / data.bytes() * ranks),
            data,
        }
    }

    fn reducing_steps(&self) -> usize {
        self.ranks - 1
    }

    /// The turn after this one; none after the last.
    fn after(&self, turn: Turn) -> Option<Turn> {
        let steps = 2 * self.reducing_steps();
        let last = self.parts - 1 + LAG * (steps - 1);
        let at = |time: usize| move |step: usize| Turn { time, step };
        let exists = |turn: &Turn| {
            let part = turn.time.checked_sub(LAG * turn.step);
            part.is_some_and(|part| part < self.parts)
        };
        let mut same = (turn.step + 1..steps).map(at(turn.time));
        let mut later = (turn.time + 1..=last).flat_map(|time| (0..steps).map(at(time)));
        same.find(exists).or_else(|| later.find(exists))
    }

    /// The bytes of a piece of the turn's part.
    fn piece(&self, turn: Turn, index: usize) -> Range<usize> {
        let part = turn.time - LAG * turn.step;
        let begin = start(self.count, self.parts, part);
        let count = start(self.count, self.parts, part + 1) - begin;
        let at = |index| (begin + start(count, self.ranks, index)) * self.data.bytes();
        let index = index % self.ranks;
        at(index)..at(index + 1)
    }

    fn outgoing(&self, turn: Turn) -> Range<usize> {
        self.piece(turn, self.rank + 2 * self.ranks - turn.step - 1)
    }

    fn incoming(&self, turn: Turn) -> Range<usize> {
        self.piece(turn, self.rank + 2 * self.ranks - turn.step - 2)
    }
}

/// Pieces of a direction.
struct Lane {
    /// The next one to be posted or sent; none when all are.
    next: Option<Turn>,
    begun: usize,
    ended: usize,
    requests: VecDeque<Request>,
}

impl Lane {
    fn new() -> Self {
        Self {
            next: Some(Turn::FIRST),
            begun: 0,
            ended: 0,
            requests: VecDeque::with_capacity(SLOTS),
        }
    }

    /// The slot and the turn of the next piece, if it can be begun.
    fn open(&self) -> Option<(usize, Turn)> {
        let turn = self.next.filter(|_| self.begun - self.ended < SLOTS)?;
        Some((self.begun % SLOTS * SLOT_BYTES, turn))
    }

    fn begin(&mut self, plan: &Plan, turn: Turn, request: Request) {
        self.requests.push_back(request);
        self.begun += 1;
        self.next = plan.after(turn);
    }

    fn end(&mut self) {
        self.requests.pop_front();
        self.ended += 1;
    }

    fn is_done(&self) -> bool {
        self.next.is_none() && self.requests.is_empty()
    }
}

/// An all-reduce under way.
pub(super) struct AllReduce<'a> {
    plan: Plan,
    op: Reduction,
    bytes: &'a mut [u8],
    links: &'a mut [Option<Link>],
    out: Lane,
    into: Lane,
    /// The turn whose piece is to come next; none when all came.
    coming: Option<Turn>,
    /// Whether the next piece to be sent is in its slot.
    is_filled: bool,
}

impl<'a> AllReduce<'a> {
    /// `bytes` are whole elements, at least one for each of two or more ranks.
    pub(super) fn new(
        (rank, ranks): (usize, usize),
        bytes: &'a mut [u8],
        (data, op): (DataType, Reduction),
        links: &'a mut [Option<Link>],
    ) -> Self {
        Self {
            plan: Plan::new(rank, ranks, bytes.len(), data),
            op,
            bytes,
            links,
            out: Lane::new(),
            into: Lane::new(),
            coming: Some(Turn::FIRST),
            is_filled: false,
        }
    }

    pub(super) fn run(mut self, timeout: Duration) -> Result<(), Error> {
        drive(timeout, || {
            let moved = self.post()? | self.take()? | self.send()?;
            if self.out.is_done() && self.into.is_done() {
                return Ok(Step::Done);
            }
            Ok(if moved { Step::Moved } else { Step::Stuck })
        })
    }

    /// Posts receives into free slots; whether there were any.
    fn post(&mut self) -> Result<bool, Error> {
        let ranks = self.plan.ranks;
        let before = link(self.links, (self.plan.rank + ranks - 1) % ranks)?;
        let begun = self.into.begun;
        while let Some((slot, turn)) = self.into.open() {
            let range = slot..slot + self.plan.incoming(turn).len();
            let posted = before.receiver.irecv(&[(&before.into, range, 0)])?;
            let Some(request) = posted else { break };
            self.into.begin(&self.plan, turn, request);
        }
        Ok(self.into.begun > begun)
    }

    /// Takes a piece that has come; whether one has.
    fn take(&mut self) -> Result<bool, Error> {
        let (ranks, rank) = (self.plan.ranks, self.plan.rank);
        let (Some(request), Some(turn)) = (self.into.requests.front(), self.coming) else {
            return Ok(false);
        };
        let before = link(self.links, (rank + ranks - 1) % ranks)?;
        let Some(sizes) = before.receiver.test(*request)? else {
            return Ok(false);
        };
        let range = self.plan.incoming(turn);
        let came: usize = sizes.as_slice().iter().map(|s| *s as usize).sum();
        if came != range.len() {
            return Err(wrong_size(came, range.len()));
        }
        let slot = self.into.ended % SLOTS * SLOT_BYTES;
        let ours = &mut self.bytes[range];
        if turn.step < self.plan.reducing_steps() {
            let mut block = [0; BLOCK];
            for (index, ours) in ours.chunks_mut(BLOCK).enumerate() {
                let theirs = &mut block[..ours.len()];
                before.into.read_at(slot + index * BLOCK, theirs)?;
                reduce_bytes(ours, theirs, self.plan.data, self.op);
            }
        } else {
            before.into.read_at(slot, ours)?;
        }
        self.into.end();
        self.coming = self.plan.after(turn);
        Ok(true)
    }

    /// Sends a piece that is ready, and takes completions of earlier ones; whether there was either.
    fn send(&mut self) -> Result<bool, Error> {
        let next = link(self.links, (self.plan.rank + 1) % self.plan.ranks)?;
        let (begun, ended) = (self.out.begun, self.out.ended);
        if let Some((slot, turn)) = self.out.open()
            && turn
                .source()
                .is_none_or(|source| self.coming.is_none_or(|next| source < next))
        {
            let range = self.plan.outgoing(turn);
            let at = slot..slot + range.len();
            if !self.is_filled {
                next.out.write_at(slot, &self.bytes[range])?;
                self.is_filled = true;
            }
            if let Some(request) = next.sender.isend(&next.out, at, 0)? {
                self.out.begin(&self.plan, turn, request);
                self.is_filled = false;
            }
        }
        while let Some(request) = self.out.requests.front() {
            if next.sender.test(*request)?.is_none() {
                break;
            }
            self.out.end();
        }
        Ok((begun, ended) != (self.out.begun, self.out.ended))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(rank: usize, ranks: usize, bytes: usize) -> Plan {
        Plan::new(rank, ranks, bytes, DataType::U8)
    }

    fn turns(plan: &Plan) -> Vec<Turn> {
        std::iter::successors(Some(Turn::FIRST), |turn| plan.after(*turn)).collect()
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
                    let range = plan.outgoing(*turn);
                    prop_assert!(!range.is_empty() && range.len() <= SLOT_BYTES);
                    prop_assert_eq!(&range, &next.incoming(*turn));
                    if let Some(source) = turn.source() {
                        prop_assert!(source < *turn && turns.binary_search(&source).is_ok());
                        prop_assert_eq!(&range, &plan.incoming(source));
                    }
                    sent += range.len();
                    steps[turn.step] += range.len();
                }
            }
            prop_assert_eq!(sent, bytes * 2 * (ranks - 1));
            prop_assert!(steps.iter().all(|moved| *moved == bytes));
        }
    }
}
