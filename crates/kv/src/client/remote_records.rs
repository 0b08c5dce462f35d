//! The client's access to records in the server's memory. A GET is one READ. In the atomics-based design, a change
//! locks the record, WRITEs it and unlocks it.
//!
//! A change is two postlists. The first has a compare-and-swap of the lock and a READ of the record. The server's NIC
//! executes them in this order, so the READ returns the record as of the lock. If the lock was free, the second
//! postlist follows. It has a WRITE of this client's redo entry at the server, a WRITE of the record, and the unlocking
//! compare-and-swap. If the client dies between any two of them, the server finishes the recorded change
//! ([`service::lock_recovery`]). Readers verify a record by its checksum, and ignore locks.
//!
//! The record number of a key is cached ([`RecordCache`]) or found by a READ of the key's neighbourhood. Otherwise the
//! server is asked: only the server knows that a key has no record.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc::RpcError;
use rpc::one_sided::{OneSidedQueue, PreparedOneSidedQueue};
use service::lock_recovery::lock_word;
use verbs::{RemoteMemory, time};

use super::design::StepOutcome;
use super::request::{Answer, ClientStats, WindowSlot};
use crate::record_cache::RecordCache;
use crate::rendezvous::RecordWriteParameters;
use crate::store::SetCondition;
use crate::store::record::{RecordLayout, redo};
use crate::wire::{self, Op, Request};

mod steps;

/// Largest number of READs of torn records before the server is asked for the value, in the READ-based design.
const MAX_TORN_READS: u32 = 16;

/// The completion or answer that a slot's request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum AwaitedCompletion {
    #[default]
    Idle,
    /// The neighbourhood is being READ.
    ReadNeighbourhood,
    /// The record is being READ.
    ReadRecord,
    /// The record is being locked and READ.
    LockAndRead,
    /// The record is being WRITTEN and unlocked.
    Commit { version: u64 },
    /// The record is being unlocked without a change.
    Unlock(AfterUnlock),
    /// The request waits before it tries to lock again.
    Backoff,
    /// The server was asked for the key's record.
    LocateAnswer,
    /// The server was asked for the key's record, and to assign one if the key has none.
    ClaimAnswer,
    /// The server was asked to release the record's lock.
    ReleaseAnswer,
}

/// The next step after a lock that is released without a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterUnlock {
    NotFound,
    ConditionNotMet(u64),
    /// The record belongs to another key: find the key again.
    FindKeyAgain,
}

#[derive(Debug, Clone, Copy, Default)]
struct RequestState {
    hash: u64,
    current_record: u64,
    awaited_completion: AwaitedCompletion,
    /// The lock word with which this request locks its record.
    held_lock_word: u64,
    /// The time at which the record was first found locked or torn, or the server was last asked to release it.
    locked_or_torn_since: Option<Instant>,
    failed_access_attempts: u32,
}

#[derive(Debug)]
pub(super) struct RemoteRecordsClientDesign {
    /// The queue pair and the slots' buffers. A buffer has the result of the lock, the result of the unlock, the READ
    /// bytes and a redo entry.
    pub(super) one_sided_qp: OneSidedQueue,
    neighbourhood_bytes: usize,
    partition_memories: Vec<RemoteMemory>,
    record_layout: RecordLayout,
    hash_seed: u64,
    write_parameters: Option<RecordWriteParameters>,
    record_cache: Arc<RecordCache>,
    request_states: Box<[RequestState]>,
    slots_with_lock_retry_time: Vec<(u32, Instant)>,
    request_timeout: Duration,
    /// The number of the last lock acquisition.
    last_lock_acquisition_number: u32,
}

/// Offset of the READ bytes in a slot's buffer.
const READ_DATA_OFFSET_IN_SLOT_BUFFER: usize = 16;

impl RemoteRecordsClientDesign {
    pub(super) fn new(
        prepared: PreparedOneSidedQueue,
        peer: &verbs::QpEndpoint,
        (partitions, shape, writes): (&[RemoteMemory], RecordLayout, Option<RecordWriteParameters>),
        seed: u64,
        deadline: Duration,
    ) -> Result<Self, RpcError> {
        let wrong = |what: &str| RpcError::Config(format!("the server's {what} cannot be"));
        if !partitions
            .iter()
            .all(|memory| shape.is_valid_for_memory(memory.len))
        {
            return Err(wrong("records"));
        }
        let window = prepared.window();
        let entry = redo::entry_bytes(&shape);
        if writes.is_some_and(|w| w.redo_entries.len < (window * entry) as u64) {
            return Err(wrong("room for redo entries"));
        }
        let read_bytes = shape.records_per_neighbourhood * shape.stride;
        let room = READ_DATA_OFFSET_IN_SLOT_BUFFER + read_bytes.max(shape.body_bytes()) + entry;
        let room = room.next_multiple_of(64);
        let known = 2 * partitions.len() * usize::try_from(shape.record_count).unwrap_or(0);
        Ok(Self {
            one_sided_qp: prepared.connect(peer, room)?,
            neighbourhood_bytes: read_bytes,
            partition_memories: partitions.to_vec(),
            record_layout: shape,
            hash_seed: seed,
            record_cache: Arc::new(RecordCache::new(if writes.is_some() { known } else { 1 })),
            write_parameters: writes,
            request_states: vec![RequestState::default(); window].into(),
            slots_with_lock_retry_time: Vec::new(),
            request_timeout: deadline,
            last_lock_acquisition_number: 0,
        })
    }

    /// READs the neighbourhood of the key.
    fn read_neighbourhood(&mut self, lane: usize, slot: u32) {
        let state = &mut self.request_states[slot as usize];
        state.awaited_completion = AwaitedCompletion::ReadNeighbourhood;
        let from = self
            .record_layout
            .body_offset(self.record_layout.first_record_of_hash(state.hash));
        self.prepare_read(lane, slot, from, self.neighbourhood_bytes);
    }

    /// Continues with the key's record: READs it for a GET, locks it for a change.
    #[inline]
    fn read_or_lock_record(&mut self, pending: &WindowSlot, slot: u32, record: u64) {
        self.request_states[slot as usize].current_record = record;
        if pending.is_get {
            self.request_states[slot as usize].awaited_completion = AwaitedCompletion::ReadRecord;
            self.prepare_read(
                pending.lane_index,
                slot,
                self.record_layout.body_offset(record),
                self.record_layout.body_bytes(),
            );
        } else {
            self.prepare_lock_and_read(pending.lane_index, slot);
        }
    }

    fn prepare_lock_and_read(&mut self, lane: usize, slot: u32) {
        let Some(writes) = self.write_parameters else {
            return;
        };
        self.last_lock_acquisition_number = self.last_lock_acquisition_number.wrapping_add(1);
        let word = lock_word(
            writes.lock_owner,
            writes.lease_ms,
            self.last_lock_acquisition_number,
        );
        let state = &mut self.request_states[slot as usize];
        (state.awaited_completion, state.held_lock_word) = (AwaitedCompletion::LockAndRead, word);
        let record = state.current_record;
        self.one_sided_qp.flush_unless_postlist_has_room(2);
        self.prepare_lock_compare_and_swap(lane, slot, (0, word), 0);
        self.prepare_read(
            lane,
            slot,
            self.record_layout.body_offset(record),
            self.record_layout.body_bytes(),
        );
    }

    fn prepare_unlock(&mut self, lane: usize, slot: u32) {
        let word = self.request_states[slot as usize].held_lock_word;
        self.one_sided_qp.flush_unless_postlist_has_room(1);
        self.prepare_lock_compare_and_swap(lane, slot, (word, 0), 8);
    }

    #[inline]
    fn prepare_read(&mut self, lane: usize, slot: u32, from: u64, bytes: usize) {
        let from = self.partition_memories[lane].starting_at(from);
        let prepared =
            self.one_sided_qp
                .prepare_read((slot, READ_DATA_OFFSET_IN_SLOT_BUFFER), bytes, from);
        self.one_sided_qp.record_error(prepared);
    }

    /// Prepares a compare-and-swap of the record's lock. The completion of an unlock also covers the work requests
    /// prepared before.
    fn prepare_lock_compare_and_swap(
        &mut self,
        lane: usize,
        slot: u32,
        (from, to): (u64, u64),
        result: usize,
    ) {
        let word = self
            .record_layout
            .lock_offset(self.request_states[slot as usize].current_record);
        let word = self.partition_memories[lane].starting_at(word);
        let (result, words) = ((slot, result), (from, to));
        let prepared = self
            .one_sided_qp
            .prepare_compare_and_swap(result, word, words, to == 0);
        self.one_sided_qp.record_error(prepared);
    }

    /// Prepares the WRITEs of a change: the redo entry first, then the record.
    fn prepare_change_writes(
        &mut self,
        lane: usize,
        slot: u32,
        entry: &[u8],
    ) -> Result<(), RpcError> {
        // Both WRITEs are posted together with the unlock.
        self.one_sided_qp.flush_unless_postlist_has_room(3);
        let redo = self.write_parameters.and_then(|w| {
            w.redo_entries
                .starting_at(u64::from(slot) * entry.len() as u64)
        });
        let record = self
            .record_layout
            .body_offset(self.request_states[slot as usize].current_record);
        let record = self.partition_memories[lane].starting_at(record);
        let at = self.one_sided_qp.slot_bytes() - entry.len();
        self.one_sided_qp.write_buffer(slot, at, entry)?;
        self.one_sided_qp
            .prepare_write((slot, at), entry.len(), redo)?;
        let body = (slot, at + redo::ENTRY_BODY_OFFSET);
        self.one_sided_qp
            .prepare_write(body, self.record_layout.body_bytes(), record)
    }

    /// Tries to lock again after the waiting time.
    #[cold]
    fn retry_delayed_locks(
        &mut self,
        pending: &mut [WindowSlot],
        stats: &mut ClientStats,
        done: &mut dyn FnMut(&mut WindowSlot, u32, StepOutcome<'_>),
    ) {
        let now = time::now();
        let mut i = 0;
        while let Some(&(slot, until)) = self.slots_with_lock_retry_time.get(i) {
            if now < until {
                i += 1;
                continue;
            }
            self.slots_with_lock_retry_time.swap_remove(i);
            let Some(pending) = pending.get_mut(slot as usize) else {
                continue;
            };
            match self.expire_if_past_deadline(pending, slot, stats) {
                Some(lost) => done(pending, slot, lost),
                None => self.read_or_lock_record(
                    pending,
                    slot,
                    self.request_states[slot as usize].current_record,
                ),
            }
        }
    }

    #[inline]
    fn complete_get<'b>(
        &mut self,
        slot: u32,
        version: u64,
        value: Option<&'b [u8]>,
    ) -> StepOutcome<'b> {
        self.request_states[slot as usize].awaited_completion = AwaitedCompletion::Idle;
        StepOutcome::Answer(match value {
            Some(value) => Answer::Value { value, version },
            None => Answer::NotFound,
        })
    }

    /// Asks the server for the key's record, because READs did not find the key.
    fn ask_server_for_record<'b>(&mut self, pending: &WindowSlot, slot: u32) -> StepOutcome<'b> {
        let op = wire::decode_request(&pending.encoded_request);
        let may_claim = matches!(
            op,
            Some(Request::Whole {
                op: Op::Put {
                    condition: SetCondition::Always | SetCondition::Absent,
                    ..
                },
                ..
            })
        );
        self.request_states[slot as usize].awaited_completion =
            match (self.write_parameters, may_claim) {
                (None, _) => AwaitedCompletion::Idle,
                (Some(_), true) => AwaitedCompletion::ClaimAnswer,
                (Some(_), false) => AwaitedCompletion::LocateAnswer,
            };
        StepOutcome::AskServer
    }

    /// Returns [`Answer::NoAnswerInTime`] for a request that exceeded its deadline. Such a request holds no lock.
    #[cold]
    fn expire_if_past_deadline(
        &mut self,
        pending: &WindowSlot,
        slot: u32,
        stats: &mut ClientStats,
    ) -> Option<StepOutcome<'static>> {
        if time::now().duration_since(pending.submitted_at) < self.request_timeout {
            return None;
        }
        self.request_states[slot as usize].awaited_completion = AwaitedCompletion::Idle;
        stats.unanswered_requests += 1;
        Some(StepOutcome::Answer(Answer::NoAnswerInTime))
    }

    /// Finds the key again, because the record belongs to another key or is not whole.
    #[cold]
    fn find_key_again<'b>(
        &mut self,
        pending: &WindowSlot,
        slot: u32,
        stats: &mut ClientStats,
    ) -> Option<StepOutcome<'b>> {
        let lost = self.expire_if_past_deadline(pending, slot, stats);
        if lost.is_none() {
            self.record_cache
                .remove(self.request_states[slot as usize].hash);
            self.read_neighbourhood(pending.lane_index, slot);
        }
        lost
    }

    /// READs a torn record again, or asks the server to release its lock, until the deadline: a record may stay torn.
    #[cold]
    fn reread_torn_or_request_release<'b>(
        &mut self,
        pending: &WindowSlot,
        slot: u32,
        stats: &mut ClientStats,
    ) -> Option<StepOutcome<'b>> {
        stats.torn_item_reads += 1;
        if let Some(lost) = self.expire_if_past_deadline(pending, slot, stats) {
            return Some(lost);
        }
        if let Some(release) = self.request_lock_release_if_due(slot) {
            return Some(release);
        }
        let state = &mut self.request_states[slot as usize];
        state.failed_access_attempts += 1;
        if self.write_parameters.is_none() && state.failed_access_attempts > MAX_TORN_READS {
            state.awaited_completion = AwaitedCompletion::Idle;
            return Some(StepOutcome::AskServer);
        }
        if self.write_parameters.is_some() {
            self.read_or_lock_record(
                pending,
                slot,
                self.request_states[slot as usize].current_record,
            );
        } else {
            self.read_neighbourhood(pending.lane_index, slot);
        }
        None
    }

    /// Waits before the next attempt to lock, or asks the server to release the lock.
    #[cold]
    fn back_off_or_request_release<'b>(
        &mut self,
        slot: u32,
        stats: &mut ClientStats,
    ) -> Option<StepOutcome<'b>> {
        stats.failed_lock_attempts += 1;
        if let Some(release) = self.request_lock_release_if_due(slot) {
            return Some(release);
        }
        let state = &mut self.request_states[slot as usize];
        state.failed_access_attempts += 1;
        // The pause doubles up to 256 µs. It differs between slots, so that waiters do not retry at the same time.
        let pause = (1000 << state.failed_access_attempts.min(8)) + 37 * u64::from(slot % 64);
        self.schedule_retry(slot, Duration::from_nanos(pause));
        None
    }

    fn schedule_retry(&mut self, slot: u32, pause: Duration) {
        self.request_states[slot as usize].awaited_completion = AwaitedCompletion::Backoff;
        self.slots_with_lock_retry_time
            .push((slot, time::now() + pause));
    }

    /// Asks the server to release the lock, once the record has been locked or torn for half of a lease.
    fn request_lock_release_if_due<'b>(&mut self, slot: u32) -> Option<StepOutcome<'b>> {
        let lease = Duration::from_millis(self.write_parameters?.lease_ms.into());
        let now = time::now();
        let state = &mut self.request_states[slot as usize];
        let since = *state.locked_or_torn_since.get_or_insert(now);
        if now.duration_since(since) < lease / 2 {
            return None;
        }
        (
            state.locked_or_torn_since,
            state.failed_access_attempts,
            state.awaited_completion,
        ) = (Some(now), 0, AwaitedCompletion::ReleaseAnswer);
        Some(StepOutcome::AskServer)
    }
}

#[cfg(test)]
mod tests;
