//! The steps of a request, one completion after the other.

use std::sync::Arc;
use std::time::Duration;

use rpc::RpcError;
use rpc::one_sided::{OneSidedQueue, RequestSteps};

use super::{
    AfterUnlock, AwaitedCompletion, READ_DATA_OFFSET_IN_SLOT_BUFFER, RemoteRecordsClientDesign,
    RequestState,
};
use crate::Design;
use crate::client::design::{AnswerEffect, ClientDesign, OneSidedOps, StepOutcome};
use crate::client::error::ClientError;
use crate::client::request::{Answer, ClientStats, WindowSlot};
use crate::record_cache::RecordCache;
use crate::store::record::{DecodedBody, redo, version_after_change_unless_no_op};
use crate::store::{Refusal, SetCondition};
use crate::wire::{self, Op, RecordRequest, Request, Status};

impl ClientDesign for RemoteRecordsClientDesign {
    fn one_sided_ops(&self) -> OneSidedOps {
        OneSidedOps {
            includes_gets: true,
            includes_changes: self.write_parameters.is_some(),
        }
    }

    fn check_op_is_supported_and_fits(&self, op: &Op<'_>) -> Result<(), ClientError> {
        let changes = self.write_parameters.is_some();
        if let Op::Put { ttl_ms: 1.., .. } = op {
            return Err(ClientError::Unsupported {
                design: if changes {
                    Design::Atomics
                } else {
                    Design::Reads
                },
                missing: "keeps no times to live in its records; herd does, and reads with a read size of 0",
            });
        }
        if changes && !self.op_fits_record(op) {
            return Err(ClientError::TooLong);
        }
        Ok(())
    }

    #[inline]
    fn begin_one_sided_request(&mut self, pending: &WindowSlot, slot: u32, hash: u64) {
        self.request_states[slot as usize] = RequestState {
            hash,
            ..RequestState::default()
        };
        let known = self
            .write_parameters
            .and_then(|_| self.record_cache.get(hash));
        match known.filter(|record| *record < self.record_layout.record_count) {
            Some(record) => self.read_or_lock_record(pending, slot, record),
            None => self.read_neighbourhood(pending.lane_index, slot),
        }
    }

    fn poll(
        &mut self,
        all: &mut [WindowSlot],
        stats: &mut ClientStats,
        done: &mut dyn FnMut(&mut WindowSlot, u32, StepOutcome<'_>),
    ) -> Result<usize, RpcError> {
        if !self.slots_with_lock_retry_time.is_empty() {
            self.one_sided_qp.take_error()?;
            self.retry_delayed_locks(all, stats, done);
        }
        self.post_and_poll(all, stats, done)
    }

    fn encode_server_request(&self, pending: &WindowSlot, slot: u32, into: &mut Vec<u8>) {
        let key = wire::key_of_request(&pending.encoded_request).unwrap_or_default();
        let state = &self.request_states[slot as usize];
        match state.awaited_completion {
            AwaitedCompletion::LocateAnswer => RecordRequest::Locate(key).encode(into),
            AwaitedCompletion::ClaimAnswer => RecordRequest::Claim(key).encode(into),
            AwaitedCompletion::ReleaseAnswer => {
                RecordRequest::Release(state.current_record).encode(into)
            }
            _ => into.clone_from(&pending.encoded_request),
        }
    }

    #[inline]
    fn handle_server_answer(
        &mut self,
        pending: &WindowSlot,
        slot: u32,
        answer: (Status, u64),
    ) -> AnswerEffect {
        match self.request_states[slot as usize].awaited_completion {
            AwaitedCompletion::LocateAnswer
            | AwaitedCompletion::ClaimAnswer
            | AwaitedCompletion::ReleaseAnswer => self.handle_record_answer(pending, slot, answer),
            _ => AnswerEffect::AnswerIsFinal,
        }
    }

    fn request_may_have_changed_item(&self, slot: u32) -> bool {
        matches!(
            self.request_states[slot as usize].awaited_completion,
            AwaitedCompletion::Commit { .. }
        )
    }

    fn one_sided_doorbells(&self) -> u64 {
        self.one_sided_qp.posted_doorbells()
    }

    fn record_cache(&self) -> Option<&Arc<RecordCache>> {
        self.write_parameters.map(|_| &self.record_cache)
    }

    fn use_shared_record_cache(&mut self, record_cache: Arc<RecordCache>) {
        self.record_cache = record_cache;
    }
}

impl RequestSteps for RemoteRecordsClientDesign {
    type Pending = WindowSlot;
    type Stats = ClientStats;
    type FinishedResult<'b> = StepOutcome<'b>;

    #[inline]
    fn queue(&mut self) -> &mut OneSidedQueue {
        &mut self.one_sided_qp
    }

    #[inline]
    fn handle_completion<'b>(
        &mut self,
        pending: &WindowSlot,
        slot: u32,
        stats: &mut ClientStats,
        bytes: &'b mut [u8],
    ) -> Result<Option<StepOutcome<'b>>, RpcError> {
        let state = self.request_states[slot as usize];
        let key = wire::key_of_request(&pending.encoded_request).unwrap_or_default();
        let seed = self.hash_seed;
        match state.awaited_completion {
            AwaitedCompletion::ReadRecord => {
                let body = &mut bytes[..self.record_layout.body_bytes()];
                self.one_sided_qp
                    .read_buffer(slot, READ_DATA_OFFSET_IN_SLOT_BUFFER, body)?;
                Ok(
                    match self
                        .record_layout
                        .decode_body(body, (seed, state.current_record), key)
                    {
                        DecodedBody::Match { version, value } => {
                            Some(self.complete_get(slot, version, value))
                        }
                        DecodedBody::Torn => {
                            self.reread_torn_or_request_release(pending, slot, stats)
                        }
                        DecodedBody::OtherKey => self.find_key_again(pending, slot, stats),
                    },
                )
            }
            AwaitedCompletion::ReadNeighbourhood => {
                self.handle_neighbourhood(pending, slot, stats, bytes)
            }
            AwaitedCompletion::LockAndRead => {
                let before = self.one_sided_qp.buffer_word(slot, 0)?;
                if before != 0 {
                    return Ok(self.back_off_or_request_release(slot, stats));
                }
                let body = &mut bytes[..self.record_layout.body_bytes()];
                self.one_sided_qp
                    .read_buffer(slot, READ_DATA_OFFSET_IN_SLOT_BUFFER, body)?;
                self.apply_change_or_unlock(pending, slot, key, body)?;
                Ok(None)
            }
            AwaitedCompletion::Commit { version } => {
                self.request_states[slot as usize].awaited_completion = AwaitedCompletion::Idle;
                if self.one_sided_qp.buffer_word(slot, 8)? == state.held_lock_word {
                    return Ok(Some(StepOutcome::Answer(Answer::Changed { version })));
                }
                // Another client held the lock at the end, which this server's rules do not permit.
                stats.unanswered_requests += 1;
                Ok(Some(StepOutcome::Answer(Answer::NoAnswerInTime)))
            }
            AwaitedCompletion::Unlock(after) => {
                self.request_states[slot as usize].awaited_completion = AwaitedCompletion::Idle;
                Ok(match after {
                    AfterUnlock::NotFound => Some(StepOutcome::Answer(Answer::NotFound)),
                    AfterUnlock::ConditionNotMet(version) => {
                        Some(StepOutcome::Answer(Answer::ConditionNotMet { version }))
                    }
                    AfterUnlock::FindKeyAgain => self.find_key_again(pending, slot, stats),
                })
            }
            // These steps have no outstanding work requests.
            AwaitedCompletion::Idle
            | AwaitedCompletion::Backoff
            | AwaitedCompletion::LocateAnswer
            | AwaitedCompletion::ClaimAnswer
            | AwaitedCompletion::ReleaseAnswer => Ok(None),
        }
    }
}

impl RemoteRecordsClientDesign {
    /// Processes the READ of the key's neighbourhood.
    #[inline]
    fn handle_neighbourhood<'b>(
        &mut self,
        pending: &WindowSlot,
        slot: u32,
        stats: &mut ClientStats,
        bytes: &'b mut [u8],
    ) -> Result<Option<StepOutcome<'b>>, RpcError> {
        let state = self.request_states[slot as usize];
        let key = wire::key_of_request(&pending.encoded_request).unwrap_or_default();
        let seed = self.hash_seed;
        let records = &mut bytes[..self.neighbourhood_bytes];
        self.one_sided_qp
            .read_buffer(slot, READ_DATA_OFFSET_IN_SLOT_BUFFER, records)?;
        let home = self.record_layout.first_record_of_hash(state.hash);
        let Some((record, body)) =
            self.record_layout
                .find_in_neighbourhood(records, (seed, home), key)
        else {
            return Ok(Some(self.ask_server_for_record(pending, slot)));
        };
        self.request_states[slot as usize].current_record = record;
        if self.write_parameters.is_some() {
            self.record_cache.set(state.hash, record);
        }
        Ok(match body {
            _ if !pending.is_get => {
                self.prepare_lock_and_read(pending.lane_index, slot);
                None
            }
            DecodedBody::Match { version, value } => Some(self.complete_get(slot, version, value)),
            _ => self.reread_torn_or_request_release(pending, slot, stats),
        })
    }

    /// Returns true if a record has room for key and value.
    fn op_fits_record(&self, op: &Op<'_>) -> bool {
        let value = match op {
            Op::Put { value, .. } => value,
            _ => &[][..],
        };
        self.record_layout.fits_key_and_value(op.key(), value)
    }

    /// Makes the change under this client's lock, or unlocks the record without a change.
    fn apply_change_or_unlock(
        &mut self,
        pending: &WindowSlot,
        slot: u32,
        key: &[u8],
        body: &[u8],
    ) -> Result<(), RpcError> {
        let state = self.request_states[slot as usize];
        let there =
            self.record_layout
                .decode_body(body, (self.hash_seed, state.current_record), key);
        let (value, condition) = match wire::decode_request(&pending.encoded_request) {
            Some(Request::Whole {
                op: Op::Put {
                    value, condition, ..
                },
                ..
            }) => (Some(value), condition),
            Some(Request::Whole {
                op: Op::Delete { version, .. },
                ..
            }) => (
                None,
                version.map_or(SetCondition::Always, SetCondition::Version),
            ),
            // Changes are encoded only as PUT or DELETE.
            _ => (None, SetCondition::Version(0)),
        };
        let next = match there {
            DecodedBody::Match {
                version,
                value: now,
            } => version_after_change_unless_no_op(
                version,
                now.is_some(),
                value.is_some(),
                condition,
            ),
            // The record belongs to another key now, or is not whole.
            DecodedBody::OtherKey | DecodedBody::Torn => {
                self.request_states[slot as usize].awaited_completion =
                    AwaitedCompletion::Unlock(AfterUnlock::FindKeyAgain);
                self.prepare_unlock(pending.lane_index, slot);
                return Ok(());
            }
        };
        let step = match next {
            Ok(Some(version)) => {
                let mut entry = vec![0; redo::entry_bytes(&self.record_layout)];
                let place = (self.hash_seed, state.current_record);
                self.record_layout.encode_body(
                    &mut entry[redo::ENTRY_BODY_OFFSET..],
                    place,
                    key,
                    version,
                    value,
                );
                redo::write_entry_header_and_checksum(
                    &mut entry,
                    &self.record_layout,
                    (pending.lane_index, state.current_record),
                    state.held_lock_word,
                );
                self.prepare_change_writes(pending.lane_index, slot, &entry)?;
                AwaitedCompletion::Commit { version }
            }
            Err(Refusal::ConditionNotMetAtVersion(version)) => {
                AwaitedCompletion::Unlock(AfterUnlock::ConditionNotMet(version))
            }
            Ok(None) | Err(_) => AwaitedCompletion::Unlock(AfterUnlock::NotFound),
        };
        self.request_states[slot as usize].awaited_completion = step;
        self.prepare_unlock(pending.lane_index, slot);
        Ok(())
    }

    /// Processes the server's answer to a request about records.
    fn handle_record_answer(
        &mut self,
        pending: &WindowSlot,
        slot: u32,
        (status, number): (Status, u64),
    ) -> AnswerEffect {
        let step = std::mem::take(&mut self.request_states[slot as usize].awaited_completion);
        let hash = self.request_states[slot as usize].hash;
        match (step, status) {
            (AwaitedCompletion::LocateAnswer | AwaitedCompletion::ClaimAnswer, Status::Ok)
                if number < self.record_layout.record_count =>
            {
                self.record_cache.set(hash, number);
                self.read_or_lock_record(pending, slot, number);
                AnswerEffect::Continue
            }
            (AwaitedCompletion::ReleaseAnswer, Status::Ok) => {
                self.request_states[slot as usize].locked_or_torn_since = None;
                self.read_or_lock_record(
                    pending,
                    slot,
                    self.request_states[slot as usize].current_record,
                );
                AnswerEffect::Continue
            }
            (AwaitedCompletion::ReleaseAnswer, Status::LeaseNotExpired) => {
                self.schedule_retry(slot, Duration::from_millis(1));
                AnswerEffect::Continue
            }
            (AwaitedCompletion::LocateAnswer, Status::NotFound) => {
                let conditional = !matches!(
                    wire::decode_request(&pending.encoded_request),
                    Some(Request::Whole {
                        op: Op::Get { .. } | Op::Delete { version: None, .. },
                        ..
                    })
                );
                AnswerEffect::CompleteWithAnswer(if conditional {
                    Answer::ConditionNotMet { version: 0 }
                } else {
                    Answer::NotFound
                })
            }
            (_, Status::Full) => AnswerEffect::CompleteWithAnswer(Answer::StoreFull),
            (_, Status::TooLong) => AnswerEffect::CompleteWithAnswer(Answer::TooLong),
            _ => AnswerEffect::CompleteWithAnswer(Answer::NoAnswerInTime),
        }
    }
}
