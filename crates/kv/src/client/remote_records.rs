//! A client's way to records in the server's memory: a GET is one READ; with the atomics-based design a change locks the record,
//! WRITEs it and unlocks it.
//!
//! A change is two postlists. The first is a compare-and-swap of the lock, and a READ of the record, which the
//! server's NIC does in this order, so that it shows the record as the lock found it. The second, if the lock was
//! free: a WRITE to this client's redo entry at the server, a WRITE of the record, and a compare-and-swap that unlocks. Should this
//! client die between any two of them, the server finishes what is written down ([`service::guests`]). What a reader
//! sees is whole by its checksum, so readers look at no lock.
//!
//! Which record a key has is remembered ([`Locations`]) or found by a READ of the key's neighbourhood, and otherwise the server
//! is asked: only it knows that a key has none.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc::RpcError;
use rpc::one_sided::{OneSided, Prepared};
use service::guests::lock_word;
use verbs::{RemoteMemory, time};

use super::design::Done;
use super::request::{Answer, ClientStats, Pending};
use crate::locations::Locations;
use crate::rendezvous::Writes;
use crate::store::Condition;
use crate::store::record::{Shape, redo};
use crate::wire::{self, Op, Request};

mod steps;

/// READs of torn records after which the server is asked for the value, where it can be.
const MOST_TORN: u32 = 16;

/// What a slot of the window is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Step {
    #[default]
    Idle,
    /// READs the neighbourhood.
    Find,
    /// READs the record.
    Get,
    /// Locks the record, and READs it.
    Lock,
    /// WRITEs and unlocks it.
    Commit { version: u64 },
    /// Unlocks it as it was.
    Unlock(After),
    /// Waits until it tries to lock again.
    Wait,
    /// Has asked the server which record the key has.
    Locate,
    /// The same, and to give it one.
    Claim,
    /// Has complained about the record's lock.
    Release,
}

/// What comes after a lock that was for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum After {
    NotFound,
    Condition(u64),
    /// It was another key's record.
    Find,
}

#[derive(Debug, Clone, Copy, Default)]
struct Work {
    hash: u64,
    record: u64,
    step: Step,
    /// What this client locks with.
    word: u64,
    /// Since when the record is locked or torn.
    since: Option<Instant>,
    tries: u32,
}

#[derive(Debug)]
pub(super) struct RemoteRecords {
    /// A slot's buffer: what a lock was before, what it was when it was unlocked, what was READ, a redo entry.
    pub(super) queue: OneSided,
    read_bytes: usize,
    partitions: Vec<RemoteMemory>,
    shape: Shape,
    seed: u64,
    writes: Option<Writes>,
    locations: Arc<Locations>,
    works: Box<[Work]>,
    waiting: Vec<(u32, Instant)>,
    deadline: Duration,
    /// Acquisitions of locks.
    number: u32,
}

/// Where what is READ is in a slot's buffer.
const READ_AT: usize = 16;

impl RemoteRecords {
    pub(super) fn new(
        prepared: Prepared,
        peer: &verbs::QpEndpoint,
        (partitions, shape, writes): (&[RemoteMemory], Shape, Option<Writes>),
        seed: u64,
        deadline: Duration,
    ) -> Result<Self, RpcError> {
        let wrong = |what: &str| RpcError::Config(format!("the server's {what} cannot be"));
        if !partitions.iter().all(|memory| shape.check(memory.len)) {
            return Err(wrong("records"));
        }
        let window = prepared.window();
        let entry = redo::bytes(&shape);
        if writes.is_some_and(|w| w.redo.len < (window * entry) as u64) {
            return Err(wrong("room for redo entries"));
        }
        let read_bytes = shape.neighbours * shape.stride;
        let room = READ_AT + read_bytes.max(shape.body()) + entry;
        let room = room.next_multiple_of(64);
        let known = 2 * partitions.len() * usize::try_from(shape.records).unwrap_or(0);
        Ok(Self {
            queue: prepared.connect(peer, room)?,
            read_bytes,
            partitions: partitions.to_vec(),
            shape,
            seed,
            locations: Arc::new(Locations::new(if writes.is_some() { known } else { 1 })),
            writes,
            works: vec![Work::default(); window].into(),
            waiting: Vec::new(),
            deadline,
            number: 0,
        })
    }

    /// READs the neighbourhood of the key.
    fn find(&mut self, lane: usize, slot: u32) {
        let work = &mut self.works[slot as usize];
        work.step = Step::Find;
        let from = self.shape.at(self.shape.home(work.hash));
        self.read(lane, slot, from, self.read_bytes);
    }

    /// The key's record is known.
    #[inline]
    fn go(&mut self, pending: &Pending, slot: u32, record: u64) {
        self.works[slot as usize].record = record;
        if pending.is_get {
            self.works[slot as usize].step = Step::Get;
            self.read(pending.lane, slot, self.shape.at(record), self.shape.body());
        } else {
            self.lock(pending.lane, slot);
        }
    }

    fn lock(&mut self, lane: usize, slot: u32) {
        let Some(writes) = self.writes else {
            return;
        };
        self.number = self.number.wrapping_add(1);
        let word = lock_word(writes.owner, writes.lease_ms, self.number);
        let work = &mut self.works[slot as usize];
        (work.step, work.word) = (Step::Lock, word);
        let record = work.record;
        self.queue.make_room(2);
        self.swap(lane, slot, (0, word), 0);
        self.read(lane, slot, self.shape.at(record), self.shape.body());
    }

    fn unlock(&mut self, lane: usize, slot: u32) {
        let word = self.works[slot as usize].word;
        self.queue.make_room(1);
        self.swap(lane, slot, (word, 0), 8);
    }

    #[inline]
    fn read(&mut self, lane: usize, slot: u32, from: u64, bytes: usize) {
        let from = self.partitions[lane].at(from);
        let prepared = self.queue.read((slot, READ_AT), bytes, from);
        self.queue.note(prepared);
    }

    /// Prepares a compare-and-swap of the record's lock; an unlocking one speaks for what was prepared before it.
    fn swap(&mut self, lane: usize, slot: u32, (from, to): (u64, u64), result: usize) {
        let word = self.shape.lock_at(self.works[slot as usize].record);
        let word = self.partitions[lane].at(word);
        let (result, words) = ((slot, result), (from, to));
        let prepared = self.queue.compare_and_swap(result, word, words, to == 0);
        self.queue.note(prepared);
    }

    /// Prepares the WRITEs of a change: its redo entry, then the record.
    fn write(&mut self, lane: usize, slot: u32, entry: &[u8]) -> Result<(), RpcError> {
        // They leave together with the unlocking.
        self.queue.make_room(3);
        let redo = self
            .writes
            .and_then(|w| w.redo.at(u64::from(slot) * entry.len() as u64));
        let record = self.shape.at(self.works[slot as usize].record);
        let record = self.partitions[lane].at(record);
        let at = self.queue.room() - entry.len();
        self.queue.fill(slot, at, entry)?;
        self.queue.write((slot, at), entry.len(), redo)?;
        let body = (slot, at + redo::BODY_AT);
        self.queue.write(body, self.shape.body(), record)
    }

    /// Tries to lock again what was locked.
    #[cold]
    fn try_again(
        &mut self,
        pending: &mut [Pending],
        stats: &mut ClientStats,
        done: &mut dyn FnMut(&mut Pending, u32, Done<'_>),
    ) {
        let now = time::now();
        let mut i = 0;
        while let Some(&(slot, until)) = self.waiting.get(i) {
            if now < until {
                i += 1;
                continue;
            }
            self.waiting.swap_remove(i);
            let Some(pending) = pending.get_mut(slot as usize) else {
                continue;
            };
            match self.is_late(pending, slot, stats) {
                Some(lost) => done(pending, slot, lost),
                None => self.go(pending, slot, self.works[slot as usize].record),
            }
        }
    }

    #[inline]
    fn value<'b>(&mut self, slot: u32, version: u64, value: Option<&'b [u8]>) -> Done<'b> {
        self.works[slot as usize].step = Step::Idle;
        Done::Answer(match value {
            Some(value) => Answer::Value { value, version },
            None => Answer::NotFound,
        })
    }

    /// READs could not find the key.
    fn ask_where<'b>(&mut self, pending: &Pending, slot: u32) -> Done<'b> {
        let op = wire::decode(&pending.bytes);
        let claims = matches!(
            op,
            Some(Request::Whole {
                op: Op::Put {
                    condition: Condition::Always | Condition::Absent,
                    ..
                },
                ..
            })
        );
        self.works[slot as usize].step = match (self.writes, claims) {
            (None, _) => Step::Idle,
            (Some(_), true) => Step::Claim,
            (Some(_), false) => Step::Locate,
        };
        Done::Ask
    }

    /// What a request comes to that has taken too long; it has no lock then.
    #[cold]
    fn is_late(
        &mut self,
        pending: &Pending,
        slot: u32,
        stats: &mut ClientStats,
    ) -> Option<Done<'static>> {
        if time::now().duration_since(pending.sent) < self.deadline {
            return None;
        }
        self.works[slot as usize].step = Step::Idle;
        stats.lost += 1;
        Some(Done::Answer(Answer::Lost))
    }

    /// It was another key's record, or none that is whole: looks for the key anew.
    #[cold]
    fn find_again<'b>(
        &mut self,
        pending: &Pending,
        slot: u32,
        stats: &mut ClientStats,
    ) -> Option<Done<'b>> {
        let lost = self.is_late(pending, slot, stats);
        if lost.is_none() {
            self.locations.forget(self.works[slot as usize].hash);
            self.find(pending.lane, slot);
        }
        lost
    }

    /// The record was torn: READs it again, or complains; as long as there is time, for it may stay so.
    #[cold]
    fn torn<'b>(
        &mut self,
        pending: &Pending,
        slot: u32,
        stats: &mut ClientStats,
    ) -> Option<Done<'b>> {
        stats.torn += 1;
        if let Some(over) = self.is_late(pending, slot, stats) {
            return Some(over);
        }
        if let Some(complaint) = self.is_too_long(slot) {
            return Some(complaint);
        }
        let work = &mut self.works[slot as usize];
        work.tries += 1;
        if self.writes.is_none() && work.tries > MOST_TORN {
            work.step = Step::Idle;
            return Some(Done::Ask);
        }
        if self.writes.is_some() {
            self.go(pending, slot, self.works[slot as usize].record);
        } else {
            self.find(pending.lane, slot);
        }
        None
    }

    /// Somebody else has the lock: waits for a while, or complains.
    #[cold]
    fn is_locked<'b>(&mut self, slot: u32, stats: &mut ClientStats) -> Option<Done<'b>> {
        stats.contended += 1;
        if let Some(complaint) = self.is_too_long(slot) {
            return Some(complaint);
        }
        let work = &mut self.works[slot as usize];
        work.tries += 1;
        // Doubled up to 256 µs; different for each slot, so that waiters do not come together.
        let pause = (1000 << work.tries.min(8)) + 37 * u64::from(slot % 64);
        self.wait(slot, Duration::from_nanos(pause));
        None
    }

    fn wait(&mut self, slot: u32, pause: Duration) {
        self.works[slot as usize].step = Step::Wait;
        self.waiting.push((slot, time::now() + pause));
    }

    /// Complains to the server once the record is locked or torn for half of a lease.
    fn is_too_long<'b>(&mut self, slot: u32) -> Option<Done<'b>> {
        let lease = Duration::from_millis(self.writes?.lease_ms.into());
        let now = time::now();
        let work = &mut self.works[slot as usize];
        let since = *work.since.get_or_insert(now);
        if now.duration_since(since) < lease / 2 {
            return None;
        }
        (work.since, work.tries, work.step) = (Some(now), 0, Step::Release);
        Some(Done::Ask)
    }
}

#[cfg(test)]
mod tests;
