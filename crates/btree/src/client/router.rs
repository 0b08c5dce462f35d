//! A client of several servers, each of which has a range of the keys: finds out who has what, and follows when that changes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use verbs::time;

use super::error::ClientError;
use super::pipeline::Pipeline;
use super::request::{Answer, ClientStats, Completion};
use super::requests::Requests;
use crate::tree::{Elsewhere, Owner};
use crate::wire::Op;

/// Which server has which keys, as far as a client knows: servers correct it where it is wrong.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    /// Where ranges begin, and who has them up to the next.
    ranges: BTreeMap<u64, Owner>,
}

impl Table {
    /// The first server has everything, until it says otherwise.
    fn new() -> Self {
        Self {
            ranges: BTreeMap::from([(0, Owner::default())]),
        }
    }

    /// Who has a key.
    #[inline]
    fn owner(&self, key: u64) -> Owner {
        let range = self.ranges.range(..=key).next_back();
        range.map_or(Owner::default(), |(_, owner)| *owner)
    }

    /// A server has said who has a range. What was said of a later handover stays.
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

    /// Neighbours of one owner become one.
    fn tidy(&mut self) {
        let mut last = None;
        self.ranges
            .retain(|_, owner| last.replace(*owner) != Some(*owner));
    }
}

/// A request at one of the servers.
#[derive(Debug)]
struct Routed {
    token: u64,
    tree: u8,
    op: Op,
    /// Of a SCAN: what servers before have found. The operation asks for the rest.
    entries: Vec<(u64, u64)>,
    sent: Instant,
}

/// Requests to several [`Server`](crate::Server)s with numbers from 0 on, each of which has a range of the keys.
#[derive(Debug)]
pub struct Router {
    parts: Vec<Pipeline>,
    table: Table,
    window: usize,
    routed: Vec<Option<Routed>>,
    free: Vec<u32>,
    /// Requests that go to another server now, or to the same one again.
    again: VecDeque<u32>,
    scratch: Vec<(u32, Seen)>,
    /// Requests that were sent to a server which did not have their key.
    redirected: u64,
}

/// What came from a server, kept until the servers are not borrowed any more.
#[derive(Debug)]
enum Seen {
    Moved(Elsewhere),
    Entries(Vec<(u64, u64)>, Option<u64>, Instant),
}

impl Router {
    /// Over pipelines to all servers, in the order of their numbers, with as many requests under way as the first one may
    /// have.
    ///
    /// # Panics
    /// Without a pipeline.
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

    /// The pipelines, to talk to one server.
    pub fn parts(&mut self) -> &mut [Pipeline] {
        &mut self.parts
    }

    /// Requests that were sent to a server which did not have their key.
    pub fn redirected(&self) -> u64 {
        self.redirected
    }

    /// The number of the server that has a key, as far as is known.
    pub fn part_of(&self, key: u64) -> usize {
        usize::from(self.table.owner(key).part).min(self.parts.len() - 1)
    }

    /// Gives a request to the server that has its key; false if that one has no room.
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
            // Requests that were lost have been told of.
            broken = broken.and(polled.map(|_| ()));
        }
        broken
    }

    /// Goes on with what came of requests that are not over.
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
                            // The rest is asked of the server that has the next key.
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
        // Old news of a part of it, and of more than it.
        table.learn(&said(150, Some(160), 1, 2));
        table.learn(&said(50, None, 2, 1));
        assert_eq!(parts(&table, [49, 50, 150, 200]), [0, 2, 0, 2]);
        table.learn(&said(0, None, 1, 9));
        assert_eq!(parts(&table, [0, 50, 150, 200]), [1, 1, 1, 1]);
        assert_eq!(table.ranges.len(), 1);
    }
}
