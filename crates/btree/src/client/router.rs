//! A client of several servers, each of which owns a range of the keys. It learns from answers which server owns what.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use verbs::time;

use super::error::ClientError;
use super::pipeline::Pipeline;
use super::request::{Answer, ClientStats, Completion};
use super::requests::Requests;
use crate::tree::{Elsewhere, Owner};
use crate::wire::Op;

/// The owners of key ranges as known to a client. Servers correct outdated entries.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    /// The first key of each range, with the owner of the keys up to the next one.
    ranges: BTreeMap<u64, Owner>,
}

impl Table {
    /// Creates a table in which the first server owns all keys, until a server says otherwise.
    fn new() -> Self {
        Self {
            ranges: BTreeMap::from([(0, Owner::default())]),
        }
    }

    /// Returns the owner of a key.
    #[inline]
    fn owner(&self, key: u64) -> Owner {
        let range = self.ranges.range(..=key).next_back();
        range.map_or(Owner::default(), |(_, owner)| *owner)
    }

    /// Enters the owner of a range, as a server reported it. Entries with a greater version stay.
    fn learn(&mut self, said: &Elsewhere) {
        let behind = said.end.map(|end| (end, self.owner(end)));
        let before = self.owner(said.from);
        let within: Vec<u64> = match said.end {
            Some(end) => self.ranges.range(said.from..end),
            None => self.ranges.range(said.from..),
        }
        .map(|(from, _)| *from)
        .collect();
        let newer = |known: Owner| said.owner.version >= known.version;
        if newer(before) {
            self.ranges.insert(said.from, said.owner);
        } else {
            self.ranges.insert(said.from, before);
        }
        for from in within {
            if from != said.from && newer(self.ranges[&from]) {
                self.ranges.insert(from, said.owner);
            }
        }
        if let Some((end, owner)) = behind {
            self.ranges.insert(end, owner);
        }
        self.tidy();
    }

    /// Joins neighbouring ranges of the same owner.
    fn tidy(&mut self) {
        let mut last = None;
        self.ranges
            .retain(|_, owner| last.replace(*owner) != Some(*owner));
    }
}

/// A request that was sent to one of the servers.
#[derive(Debug)]
struct Routed {
    token: u64,
    tree: u8,
    op: Op,
    /// Entries that a SCAN got from earlier servers; `op` requests the rest.
    entries: Vec<(u64, u64)>,
    sent: Instant,
}

/// A client of several [`Server`](crate::Server)s with numbers from 0 on, each of which owns a range of the keys.
#[derive(Debug)]
pub struct Router {
    parts: Vec<Pipeline>,
    table: Table,
    window: usize,
    routed: Vec<Option<Routed>>,
    free: Vec<u32>,
    /// Slots of requests that must be sent again, to the same server or to another.
    again: VecDeque<u32>,
    scratch: Vec<(u32, Seen)>,
    /// Number of requests that reached a server which did not own their key.
    redirected: u64,
}

/// An intermediate answer, copied because the callback borrows the servers.
#[derive(Debug)]
enum Seen {
    Moved(Elsewhere),
    Entries(Vec<(u64, u64)>, Option<u64>, Instant),
}

impl Router {
    /// Creates a router over pipelines to all servers, in the order of their numbers. Its window is the smallest of
    /// theirs.
    ///
    /// # Panics
    /// If `parts` is empty.
    pub fn new(parts: Vec<Pipeline>) -> Self {
        let window = parts.iter().map(|p| p.config().window).min();
        let window = window.expect("a router has a server");
        let slots = u32::try_from(window).unwrap_or(u32::MAX);
        Self {
            parts,
            table: Table::new(),
            window,
            routed: (0..window).map(|_| None).collect(),
            free: (0..slots).rev().collect(),
            again: VecDeque::new(),
            scratch: Vec::new(),
            redirected: 0,
        }
    }

    /// Returns the pipelines, for requests to one particular server.
    pub fn parts(&mut self) -> &mut [Pipeline] {
        &mut self.parts
    }

    /// Returns the number of requests that reached a server which did not own their key.
    pub fn redirected(&self) -> u64 {
        self.redirected
    }

    /// Returns the number of the server that owns a key, as far as known.
    pub fn part_of(&self, key: u64) -> usize {
        usize::from(self.table.owner(key).part).min(self.parts.len() - 1)
    }

    /// Submits a request to the server that owns its key. Returns false if that pipeline has no room.
    fn route(&mut self, slot: u32) -> Result<bool, ClientError> {
        let Some(routed) = &self.routed[slot as usize] else {
            return Ok(true);
        };
        let owner = self.table.owner(routed.op.key());
        let part = usize::from(owner.part).min(self.parts.len() - 1);
        let (tree, op) = (routed.tree, routed.op);
        self.parts[part].submit(tree, &op, slot.into())
    }

    /// Takes answers of all servers.
    fn poll_parts(
        &mut self,
        each: &mut impl FnMut(Completion<'_>),
        done: &mut usize,
    ) -> Result<(), ClientError> {
        let (routed, free, scratch) = (&mut self.routed, &mut self.free, &mut self.scratch);
        let mut broken = Ok(());
        for part in &mut self.parts {
            if part.outstanding() == 0 {
                continue;
            }
            let polled = part.poll(|completion| {
                #[expect(clippy::cast_possible_truncation, reason = "a slot")]
                let slot = completion.token as u32;
                let Some(request) = &routed[slot as usize] else {
                    return;
                };
                match completion.answer {
                    Answer::Moved(elsewhere) => {
                        return scratch.push((slot, Seen::Moved(elsewhere)));
                    }
                    Answer::Entries { entries, next } => {
                        let goes_on = match request.op {
                            Op::Scan { limit, .. } => {
                                next.is_some() && entries.len() < limit as usize
                            }
                            _ => false,
                        };
                        if goes_on || !request.entries.is_empty() {
                            let seen = Seen::Entries(entries.to_vec(), next, completion.seen);
                            return scratch.push((slot, seen));
                        }
                    }
                    _ => {}
                }
                *done += 1;
                each(Completion {
                    token: request.token,
                    sent: request.sent,
                    ..completion
                });
                routed[slot as usize] = None;
                free.push(slot);
            });
            // The pipeline has already reported its lost requests.
            broken = broken.and(polled.map(|_| ()));
        }
        broken
    }

    /// Continues the requests that got an intermediate answer.
    fn sort_out(&mut self, each: &mut impl FnMut(Completion<'_>), done: &mut usize) {
        for (slot, seen) in std::mem::take(&mut self.scratch) {
            let Some(request) = &mut self.routed[slot as usize] else {
                continue;
            };
            let over = match seen {
                Seen::Moved(elsewhere) => {
                    self.redirected += 1;
                    self.table.learn(&elsewhere);
                    let now = time::now();
                    let late =
                        now.duration_since(request.sent) >= self.parts[0].config().deadline();
                    late.then_some((Answer::Lost, now))
                }
                Seen::Entries(entries, next, seen) => {
                    let (limit, end) = match request.op {
                        Op::Scan { limit, end, .. } => (limit, end),
                        _ => (0, None),
                    };
                    let came = u32::try_from(entries.len()).unwrap_or(u32::MAX);
                    request.entries.extend(entries);
                    match next {
                        Some(from) if came < limit => {
                            // The rest of the SCAN goes to the server that owns the next key.
                            let limit = limit - came;
                            request.op = Op::Scan { from, end, limit };
                            None
                        }
                        next => {
                            let entries = &request.entries[..];
                            Some((Answer::Entries { entries, next }, seen))
                        }
                    }
                }
            };
            match over {
                None => self.again.push_back(slot),
                Some((answer, seen)) => {
                    *done += 1;
                    each(Completion {
                        token: request.token,
                        answer,
                        sent: request.sent,
                        seen,
                    });
                    self.routed[slot as usize] = None;
                    self.free.push(slot);
                }
            }
        }
    }
}

impl Requests for Router {
    fn submit(&mut self, tree: u8, op: &Op, token: u64) -> Result<bool, ClientError> {
        if !self.again.is_empty() {
            return Ok(false);
        }
        let Some(slot) = self.free.pop() else {
            return Ok(false);
        };
        self.routed[slot as usize] = Some(Routed {
            token,
            tree,
            op: *op,
            entries: Vec::new(),
            sent: time::now(),
        });
        let taken = self.route(slot)?;
        if !taken {
            self.routed[slot as usize] = None;
            self.free.push(slot);
        }
        Ok(taken)
    }

    fn poll(&mut self, mut each: impl FnMut(Completion<'_>)) -> Result<usize, ClientError> {
        while let Some(&slot) = self.again.front() {
            if !self.route(slot)? {
                break;
            }
            self.again.pop_front();
        }
        let mut done = 0;
        let polled = self.poll_parts(&mut each, &mut done);
        self.sort_out(&mut each, &mut done);
        polled.map(|()| done)
    }

    fn outstanding(&self) -> usize {
        self.window - self.free.len()
    }

    fn window(&self) -> usize {
        self.window
    }

    fn refresh(&mut self) {
        self.parts.iter_mut().for_each(Pipeline::refresh);
    }

    fn stats(&self) -> ClientStats {
        let mut sum = ClientStats::default();
        for part in &self.parts {
            sum.add(part.stats());
        }
        sum
    }

    fn doorbells(&self) -> u64 {
        self.parts.iter().map(Pipeline::doorbells).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(from: u64, end: Option<u64>, part: u16, version: u64) -> Elsewhere {
        let owner = Owner { part, version };
        Elsewhere { from, end, owner }
    }

    #[test]
    fn what_is_said_of_a_later_handover_stays() {
        let mut table = Table::new();
        let parts = |table: &Table, keys: [u64; 4]| keys.map(|key| table.owner(key).part);
        table.learn(&said(100, None, 1, 0));
        assert_eq!(parts(&table, [0, 99, 100, u64::MAX]), [0, 0, 1, 1]);
        table.learn(&said(100, Some(200), 0, 3));
        assert_eq!(parts(&table, [0, 100, 199, 200]), [0, 0, 0, 1]);
        // Older reports about a part of the range, and about a larger range.
        table.learn(&said(150, Some(160), 1, 2));
        table.learn(&said(50, None, 2, 1));
        assert_eq!(parts(&table, [49, 50, 150, 200]), [0, 2, 0, 2]);
        table.learn(&said(0, None, 1, 9));
        assert_eq!(parts(&table, [0, 50, 150, 200]), [1, 1, 1, 1]);
        assert_eq!(table.ranges.len(), 1);
    }
}
