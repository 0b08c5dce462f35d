//! The steps of a request, one completion after the other.

use std::sync::Arc;
use std::time::Duration;

use rpc::RpcError;
use rpc::one_sided::{OneSided, Steps};

use super::{After, READ_AT, RemoteRecords, Step, Work};
use crate::Design;
use crate::client::design::{Answered, ByItself, ClientDesign, Done};
use crate::client::error::ClientError;
use crate::client::request::{Answer, ClientStats, Pending};
use crate::locations::Locations;
use crate::store::record::{Body, next_version, redo};
use crate::store::{Condition, Refusal};
use crate::wire::{self, Ask, Op, Request, Status};

impl ClientDesign for RemoteRecords {
    fn by_itself(&self) -> ByItself {
        ByItself {
            gets: true,
            changes: self.writes.is_some(),
        }
    }

    fn check(&self, op: &Op<'_>) -> Result<(), ClientError> {
        let changes = self.writes.is_some();
        if let Op::Put { ttl_ms: 1.., .. } = op {
            return Err(ClientError::NotPromised {
                design: if changes {
                    Design::Atomics
                } else {
                    Design::Reads
                },
                lacks: "keeps no times to live in its records; herd does, and reads with a read size of 0",
            });
        }
        if changes && !self.fits(op) {
            return Err(ClientError::TooLong);
        }
        Ok(())
    }

    #[inline]
    fn begin(&mut self, pending: &Pending, slot: u32, hash: u64) {
        self.works[slot as usize] = Work {
            hash,
            ..Work::default()
        };
        let known = self.writes.and_then(|_| self.locations.get(hash));
        match known.filter(|record| *record < self.shape.records) {
            Some(record) => self.go(pending, slot, record),
            None => self.find(pending.lane, slot),
        }
    }

    fn poll(
        &mut self,
        all: &mut [Pending],
        stats: &mut ClientStats,
        done: &mut dyn FnMut(&mut Pending, u32, Done<'_>),
    ) -> Result<usize, RpcError> {
        if !self.waiting.is_empty() {
            self.queue.check()?;
            self.try_again(all, stats, done);
        }
        self.post_and_poll(all, stats, done)
    }

    fn question(&self, pending: &Pending, slot: u32, into: &mut Vec<u8>) {
        let key = wire::key_of(&pending.bytes).unwrap_or_default();
        let work = &self.works[slot as usize];
        match work.step {
            Step::Locate => Ask::Locate(key).encode(into),
            Step::Claim => Ask::Claim(key).encode(into),
            Step::Release => Ask::Release(work.record).encode(into),
            _ => into.clone_from(&pending.bytes),
        }
    }

    #[inline]
    fn answered(&mut self, pending: &Pending, slot: u32, said: (Status, u64)) -> Answered {
        match self.works[slot as usize].step {
            Step::Locate | Step::Claim | Step::Release => self.answer(pending, slot, said),
            _ => Answered::Request,
        }
    }

    fn may_have_changed(&self, slot: u32) -> bool {
        matches!(self.works[slot as usize].step, Step::Commit { .. })
    }

    fn doorbells(&self) -> u64 {
        self.queue.doorbells()
    }

    fn locations(&self) -> Option<&Arc<Locations>> {
        self.writes.map(|_| &self.locations)
    }

    fn share_locations(&mut self, locations: Arc<Locations>) {
        self.locations = locations;
    }
}

impl Steps for RemoteRecords {
    type Pending = Pending;
    type Stats = ClientStats;
    type Done<'b> = Done<'b>;

    #[inline]
    fn queue(&mut self) -> &mut OneSided {
        &mut self.queue
    }

    #[inline]
    fn arrived<'b>(
        &mut self,
        pending: &Pending,
        slot: u32,
        stats: &mut ClientStats,
        bytes: &'b mut [u8],
    ) -> Result<Option<Done<'b>>, RpcError> {
        let work = self.works[slot as usize];
        let key = wire::key_of(&pending.bytes).unwrap_or_default();
        let seed = self.seed;
        match work.step {
            Step::Get => {
                let body = &mut bytes[..self.shape.body()];
                self.queue.copy(slot, READ_AT, body)?;
                Ok(match self.shape.decode(body, (seed, work.record), key) {
                    Body::Ours { version, value } => Some(self.value(slot, version, value)),
                    Body::Torn => self.torn(pending, slot, stats),
                    Body::Other => self.find_again(pending, slot, stats),
                })
            }
            Step::Find => self.found(pending, slot, stats, bytes),
            Step::Lock => {
                let before = self.queue.word(slot, 0)?;
                if before != 0 {
                    return Ok(self.is_locked(slot, stats));
                }
                let body = &mut bytes[..self.shape.body()];
                self.queue.copy(slot, READ_AT, body)?;
                self.change(pending, slot, key, body)?;
                Ok(None)
            }
            Step::Commit { version } => {
                self.works[slot as usize].step = Step::Idle;
                if self.queue.word(slot, 8)? == work.word {
                    return Ok(Some(Done::Answer(Answer::Done { version })));
                }
                // Another client held the lock at the end, which this server's rules do not permit.
                stats.lost += 1;
                Ok(Some(Done::Answer(Answer::Lost)))
            }
            Step::Unlock(after) => {
                self.works[slot as usize].step = Step::Idle;
                Ok(match after {
                    After::NotFound => Some(Done::Answer(Answer::NotFound)),
                    After::Condition(version) => Some(Done::Answer(Answer::Condition { version })),
                    After::Find => self.find_again(pending, slot, stats),
                })
            }
            // These steps have no outstanding work requests.
            Step::Idle | Step::Wait | Step::Locate | Step::Claim | Step::Release => Ok(None),
        }
    }
}

impl RemoteRecords {
    /// Processes the READ of the key's neighbourhood.
    #[inline]
    fn found<'b>(
        &mut self,
        pending: &Pending,
        slot: u32,
        stats: &mut ClientStats,
        bytes: &'b mut [u8],
    ) -> Result<Option<Done<'b>>, RpcError> {
        let work = self.works[slot as usize];
        let key = wire::key_of(&pending.bytes).unwrap_or_default();
        let seed = self.seed;
        let records = &mut bytes[..self.read_bytes];
        self.queue.copy(slot, READ_AT, records)?;
        let home = self.shape.home(work.hash);
        let Some((record, body)) = self.shape.find(records, (seed, home), key) else {
            return Ok(Some(self.ask_where(pending, slot)));
        };
        self.works[slot as usize].record = record;
        if self.writes.is_some() {
            self.locations.set(work.hash, record);
        }
        Ok(match body {
            _ if !pending.is_get => {
                self.lock(pending.lane, slot);
                None
            }
            Body::Ours { version, value } => Some(self.value(slot, version, value)),
            _ => self.torn(pending, slot, stats),
        })
    }

    /// Returns true if a record has room for key and value.
    fn fits(&self, op: &Op<'_>) -> bool {
        let value = match op {
            Op::Put { value, .. } => value,
            _ => &[][..],
        };
        self.shape.fits(op.key(), value)
    }

    /// Makes the change under this client's lock, or unlocks the record without a change.
    fn change(
        &mut self,
        pending: &Pending,
        slot: u32,
        key: &[u8],
        body: &[u8],
    ) -> Result<(), RpcError> {
        let work = self.works[slot as usize];
        let there = self.shape.decode(body, (self.seed, work.record), key);
        let (value, condition) = match wire::decode(&pending.bytes) {
            Some(Request::Whole {
                op: Op::Put {
                    value, condition, ..
                },
                ..
            }) => (Some(value), condition),
            Some(Request::Whole {
                op: Op::Delete { version, .. },
                ..
            }) => (None, version.map_or(Condition::Always, Condition::Version)),
            // Changes are encoded only as PUT or DELETE.
            _ => (None, Condition::Version(0)),
        };
        let next = match there {
            Body::Ours {
                version,
                value: now,
            } => next_version(version, now.is_some(), value.is_some(), condition),
            // The record belongs to another key now, or is not whole.
            Body::Other | Body::Torn => {
                self.works[slot as usize].step = Step::Unlock(After::Find);
                self.unlock(pending.lane, slot);
                return Ok(());
            }
        };
        let step = match next {
            Ok(Some(version)) => {
                let mut entry = vec![0; redo::bytes(&self.shape)];
                let place = (self.seed, work.record);
                self.shape
                    .encode(&mut entry[redo::BODY_AT..], place, key, version, value);
                redo::seal(
                    &mut entry,
                    &self.shape,
                    (pending.lane, work.record),
                    work.word,
                );
                self.write(pending.lane, slot, &entry)?;
                Step::Commit { version }
            }
            Err(Refusal::Condition(version)) => Step::Unlock(After::Condition(version)),
            Ok(None) | Err(_) => Step::Unlock(After::NotFound),
        };
        self.works[slot as usize].step = step;
        self.unlock(pending.lane, slot);
        Ok(())
    }

    /// Processes the server's answer to a question about records.
    fn answer(
        &mut self,
        pending: &Pending,
        slot: u32,
        (status, number): (Status, u64),
    ) -> Answered {
        let step = std::mem::take(&mut self.works[slot as usize].step);
        let hash = self.works[slot as usize].hash;
        match (step, status) {
            (Step::Locate | Step::Claim, Status::Ok) if number < self.shape.records => {
                self.locations.set(hash, number);
                self.go(pending, slot, number);
                Answered::GoesOn
            }
            (Step::Release, Status::Ok) => {
                self.works[slot as usize].since = None;
                self.go(pending, slot, self.works[slot as usize].record);
                Answered::GoesOn
            }
            (Step::Release, Status::Busy) => {
                self.wait(slot, Duration::from_millis(1));
                Answered::GoesOn
            }
            (Step::Locate, Status::NotFound) => {
                let conditional = !matches!(
                    wire::decode(&pending.bytes),
                    Some(Request::Whole {
                        op: Op::Get { .. } | Op::Delete { version: None, .. },
                        ..
                    })
                );
                Answered::Over(if conditional {
                    Answer::Condition { version: 0 }
                } else {
                    Answer::NotFound
                })
            }
            (_, Status::Full) => Answered::Over(Answer::Full),
            (_, Status::TooLong) => Answered::Over(Answer::TooLong),
            _ => Answered::Over(Answer::Lost),
        }
    }
}
