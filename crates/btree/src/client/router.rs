//! A client of several servers, each of which owns a range of the keys. It learns from answers which server owns what.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use verbs::time;

use super::error::ClientError;
use super::execute_requests::ExecuteRequests;
use super::pipeline::PipelinedClient;
use super::request::{Answer, ClientStats, Completion};
use crate::key_or_value::KeyOrValue;
use crate::tree::{MovedRange, RangeOwner};
use crate::wire::Operation;

/// The owners of key ranges as known to a client. Servers correct outdated entries.
#[derive(Debug, Clone)]
pub(crate) struct OwnerTable<T: KeyOrValue> {
    /// The first key of each range, with the owner of the keys up to the next one.
    range_owners: BTreeMap<T, RangeOwner>,
}

impl<T: KeyOrValue> OwnerTable<T> {
    /// Creates a table in which the first server owns all keys, until a server says otherwise.
    fn new() -> Self {
        Self {
            range_owners: BTreeMap::from([(T::default(), RangeOwner::default())]),
        }
    }

    /// Returns the owner of a key.
    #[inline]
    fn owner(&self, key: T) -> RangeOwner {
        let range = self.range_owners.range(..=key).next_back();
        range.map_or(RangeOwner::default(), |(_, owner)| *owner)
    }

    /// Enters the owner of a range, as a server reported it. Entries with a greater version stay.
    fn record_owner_if_newer(&mut self, moved: &MovedRange<T>) {
        let behind = moved.end_key.map(|end| (end, self.owner(end)));
        let before = self.owner(moved.first_key);
        let within: Vec<T> = match moved.end_key {
            Some(end) => self.range_owners.range(moved.first_key..end),
            None => self.range_owners.range(moved.first_key..),
        }
        .map(|(from, _)| *from)
        .collect();
        let newer = |known: RangeOwner| moved.owner.version >= known.version;
        if newer(before) {
            self.range_owners.insert(moved.first_key, moved.owner);
        } else {
            self.range_owners.insert(moved.first_key, before);
        }
        for from in within {
            if from != moved.first_key && newer(self.range_owners[&from]) {
                self.range_owners.insert(from, moved.owner);
            }
        }
        if let Some((end, owner)) = behind {
            self.range_owners.insert(end, owner);
        }
        self.join_neighbours();
    }

    /// Joins neighbouring ranges of the same owner.
    fn join_neighbours(&mut self) {
        let mut last = None;
        self.range_owners
            .retain(|_, owner| last.replace(*owner) != Some(*owner));
    }
}

/// A request that was sent to one of the servers.
#[derive(Debug)]
struct RoutedRequest<T: KeyOrValue> {
    caller_token: u64,
    tree: u8,
    op: Operation<T>,
    /// Entries that a SCAN got from earlier servers; `op` requests the rest.
    scanned_entries: Vec<(T, T)>,
    submitted_at: Instant,
}

/// A client of several [`Server`](crate::Server)s with numbers from 0 on, each of which owns a range of the keys.
#[derive(Debug)]
pub struct Router<T: KeyOrValue = u64> {
    servers: Vec<PipelinedClient<T>>,
    owners: OwnerTable<T>,
    window: usize,
    requests: Vec<Option<RoutedRequest<T>>>,
    free_slots: Vec<u32>,
    /// Slots of requests that must be sent again, to the same server or to another.
    resend_queue: VecDeque<u32>,
    /// Slots and intermediate answers of the requests that one poll must continue.
    slots_and_intermediate_answers: Vec<(u32, IntermediateAnswer<T>)>,
    /// Number of requests that reached a server which did not own their key.
    redirected_requests: u64,
}

/// An intermediate answer, copied because the callback borrows the servers.
#[derive(Debug)]
enum IntermediateAnswer<T: KeyOrValue> {
    Moved(MovedRange<T>),
    Entries(Vec<(T, T)>, Option<T>, Instant),
}

impl<T: KeyOrValue> Router<T> {
    /// Creates a router over pipelines to all servers, in the order of their numbers. Its window is the smallest of
    /// theirs.
    ///
    /// # Panics
    /// If `servers` is empty.
    pub fn new(servers: Vec<PipelinedClient<T>>) -> Self {
        let window = servers.iter().map(|p| p.config().window).min();
        let window = window.expect("a router has a server");
        let slots = u32::try_from(window).unwrap_or(u32::MAX);
        Self {
            servers,
            owners: OwnerTable::new(),
            window,
            requests: (0..window).map(|_| None).collect(),
            free_slots: (0..slots).rev().collect(),
            resend_queue: VecDeque::new(),
            slots_and_intermediate_answers: Vec::new(),
            redirected_requests: 0,
        }
    }

    /// Returns the pipelines, for requests to one particular server.
    pub fn servers(&mut self) -> &mut [PipelinedClient<T>] {
        &mut self.servers
    }

    /// Returns the number of requests that reached a server which did not own their key.
    pub fn redirected_requests(&self) -> u64 {
        self.redirected_requests
    }

    /// Returns the number of the server that owns a key, as far as known.
    pub fn server_of(&self, key: T) -> usize {
        usize::from(self.owners.owner(key).server_number).min(self.servers.len() - 1)
    }

    /// Submits a request to the server that owns its key. Returns false if that pipeline has no room.
    fn submit_to_owner(&mut self, slot: u32) -> Result<bool, ClientError> {
        let Some(routed) = &self.requests[slot as usize] else {
            return Ok(true);
        };
        let owner = self.owners.owner(routed.op.key());
        let server = usize::from(owner.server_number).min(self.servers.len() - 1);
        let (tree, op) = (routed.tree, routed.op);
        self.servers[server].submit(tree, &op, slot.into())
    }

    /// Takes answers of all servers.
    fn poll_servers(
        &mut self,
        each: &mut impl FnMut(Completion<'_, T>),
        done: &mut usize,
    ) -> Result<(), ClientError> {
        let (routed, free, scratch) = (
            &mut self.requests,
            &mut self.free_slots,
            &mut self.slots_and_intermediate_answers,
        );
        let mut broken = Ok(());
        for server in &mut self.servers {
            if server.outstanding() == 0 {
                continue;
            }
            let polled = server.poll(|completion| {
                #[expect(clippy::cast_possible_truncation, reason = "a slot")]
                let slot = completion.token as u32;
                let Some(request) = &routed[slot as usize] else {
                    return;
                };
                match completion.answer {
                    Answer::Moved(moved) => {
                        return scratch.push((slot, IntermediateAnswer::Moved(moved)));
                    }
                    Answer::Entries { entries, next } => {
                        let continues = match request.op {
                            Operation::Scan { limit, .. } => {
                                next.is_some() && entries.len() < limit as usize
                            }
                            _ => false,
                        };
                        if continues || !request.scanned_entries.is_empty() {
                            let seen = IntermediateAnswer::Entries(
                                entries.to_vec(),
                                next,
                                completion.completed_at,
                            );
                            return scratch.push((slot, seen));
                        }
                    }
                    _ => {}
                }
                *done += 1;
                each(Completion {
                    token: request.caller_token,
                    submitted_at: request.submitted_at,
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
    fn continue_requests_after_intermediate_answers(
        &mut self,
        each: &mut impl FnMut(Completion<'_, T>),
        done: &mut usize,
    ) {
        for (slot, seen) in std::mem::take(&mut self.slots_and_intermediate_answers) {
            let Some(request) = &mut self.requests[slot as usize] else {
                continue;
            };
            let outcome = match seen {
                IntermediateAnswer::Moved(moved) => {
                    self.redirected_requests += 1;
                    self.owners.record_owner_if_newer(&moved);
                    let now = time::now();
                    let late = now.duration_since(request.submitted_at)
                        >= self.servers[0].config().request_timeout();
                    late.then_some((Answer::NoAnswerInTime, now))
                }
                IntermediateAnswer::Entries(entries, next, seen) => {
                    let (limit, end) = match request.op {
                        Operation::Scan { limit, end, .. } => (limit, end),
                        _ => (0, None),
                    };
                    let received = u32::try_from(entries.len()).unwrap_or(u32::MAX);
                    request.scanned_entries.extend(entries);
                    match next {
                        Some(from) if received < limit => {
                            // The rest of the SCAN goes to the server that owns the next key.
                            let limit = limit - received;
                            request.op = Operation::Scan { from, end, limit };
                            None
                        }
                        next => {
                            let entries = &request.scanned_entries[..];
                            Some((Answer::Entries { entries, next }, seen))
                        }
                    }
                }
            };
            match outcome {
                None => self.resend_queue.push_back(slot),
                Some((answer, seen)) => {
                    *done += 1;
                    each(Completion {
                        token: request.caller_token,
                        answer,
                        submitted_at: request.submitted_at,
                        completed_at: seen,
                    });
                    self.requests[slot as usize] = None;
                    self.free_slots.push(slot);
                }
            }
        }
    }
}

impl<T: KeyOrValue> ExecuteRequests<T> for Router<T> {
    fn submit(&mut self, tree: u8, op: &Operation<T>, token: u64) -> Result<bool, ClientError> {
        if !self.resend_queue.is_empty() {
            return Ok(false);
        }
        let Some(slot) = self.free_slots.pop() else {
            return Ok(false);
        };
        self.requests[slot as usize] = Some(RoutedRequest {
            caller_token: token,
            tree,
            op: *op,
            scanned_entries: Vec::new(),
            submitted_at: time::now(),
        });
        let taken = self.submit_to_owner(slot);
        if !matches!(taken, Ok(true)) {
            self.requests[slot as usize] = None;
            self.free_slots.push(slot);
        }
        taken
    }

    fn poll(&mut self, mut each: impl FnMut(Completion<'_, T>)) -> Result<usize, ClientError> {
        let mut done = 0;
        while let Some(&slot) = self.resend_queue.front() {
            let submitted = self.submit_to_owner(slot);
            if matches!(submitted, Ok(false)) {
                break;
            }
            self.resend_queue.pop_front();
            if submitted.is_err()
                && let Some(request) = self.requests[slot as usize].take()
            {
                // The new owner cannot have such a key: its limits differ.
                done += 1;
                self.free_slots.push(slot);
                each(Completion {
                    token: request.caller_token,
                    answer: Answer::NoAnswerInTime,
                    submitted_at: request.submitted_at,
                    completed_at: time::now(),
                });
            }
        }
        let polled = self.poll_servers(&mut each, &mut done);
        self.continue_requests_after_intermediate_answers(&mut each, &mut done);
        polled.map(|()| done)
    }

    fn outstanding(&self) -> usize {
        self.window - self.free_slots.len()
    }

    fn window(&self) -> usize {
        self.window
    }

    fn refresh_clock(&mut self) {
        self.servers
            .iter_mut()
            .for_each(PipelinedClient::<T>::refresh_clock);
    }

    fn stats(&self) -> ClientStats {
        let mut sum = ClientStats::default();
        for server in &self.servers {
            sum.add(server.stats());
        }
        sum
    }

    fn doorbells(&self) -> u64 {
        self.servers
            .iter()
            .map(PipelinedClient::<T>::doorbells)
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(from: u64, end: Option<u64>, server: u16, version: u64) -> MovedRange {
        let owner = RangeOwner {
            server_number: server,
            version,
        };
        MovedRange {
            first_key: from,
            end_key: end,
            owner,
        }
    }

    #[test]
    fn what_is_said_of_a_later_handover_stays() {
        let mut table = OwnerTable::new();
        let servers = |table: &OwnerTable<u64>, keys: [u64; 4]| {
            keys.map(|key| table.owner(key).server_number)
        };
        table.record_owner_if_newer(&moved(100, None, 1, 0));
        assert_eq!(servers(&table, [0, 99, 100, u64::MAX]), [0, 0, 1, 1]);
        table.record_owner_if_newer(&moved(100, Some(200), 0, 3));
        assert_eq!(servers(&table, [0, 100, 199, 200]), [0, 0, 0, 1]);
        // Older reports about a part of the range, and about a larger range.
        table.record_owner_if_newer(&moved(150, Some(160), 1, 2));
        table.record_owner_if_newer(&moved(50, None, 2, 1));
        assert_eq!(servers(&table, [49, 50, 150, 200]), [0, 2, 0, 2]);
        table.record_owner_if_newer(&moved(0, None, 1, 9));
        assert_eq!(servers(&table, [0, 50, 150, 200]), [1, 1, 1, 1]);
        assert_eq!(table.range_owners.len(), 1);
    }
}
