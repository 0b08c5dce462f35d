//! A server's state of handovers, and its load meter.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use service::worker::lock;
use verbs::time;

use crate::key_or_value::KeyOrValue;
use crate::tree::{RangeOwner, Refusal, Store};
use crate::wire::{self, HandoverStep, Status};

/// Time that a taker has for a range that it froze. A range is a few leaves, so only a stopped taker needs longer.
const FREEZE_LEASE: Duration = Duration::from_secs(2);

/// A range that is frozen for a taker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FrozenRange<T> {
    taker_client_index: usize,
    tree: usize,
    key_range: (T, Option<T>),
    lease_end_ns: u64,
}

/// A range that a server was asked to take from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TakeRequest<T> {
    /// The number of the server that has the range.
    pub(crate) giver: u16,
    /// The tree.
    pub(crate) tree: u8,
    /// The first key.
    pub(crate) first_key: T,
    /// The upper bound of the range, exclusive, if any.
    pub(crate) end_key: Option<T>,
}

/// The handovers of a server, shared by its workers.
#[derive(Debug, Default)]
pub(crate) struct Handovers<T> {
    frozen_ranges: Mutex<Vec<FrozenRange<T>>>,
    /// The length of `frozen`, readable without the lock.
    frozen_range_count: AtomicUsize,
    /// The greatest version of the handovers in which this server gave or took a range.
    last_version: AtomicU64,
    waiting_takes: Mutex<Vec<TakeRequest<T>>>,
    /// Ranges that wait to be taken or are being taken.
    unfinished_takes: AtomicUsize,
    /// Number of entries taken.
    taken_entries: AtomicU64,
    /// True if the server is stopping.
    stopping: AtomicBool,
}

impl<T: KeyOrValue> Handovers<T> {
    /// Records the version of a completed handover, so that this server's next version is greater.
    pub(crate) fn raise_last_version(&self, version: u64) {
        self.last_version.fetch_max(version, Ordering::AcqRel);
    }

    /// Executes a step of a handover for a client and returns the first word of the answer.
    pub(crate) fn execute_step_and_encode_answer(
        &self,
        store: &Store<T>,
        (client, tree): (usize, usize),
        step: HandoverStep,
        key_range: (T, Option<T>),
    ) -> Result<u64, Refusal<T>> {
        let done = Ok(wire::first_word_with_version(Status::Ok, 0));
        let refused = Ok(wire::first_word_with_version(Status::MalformedOrRefused, 0));
        let matches_request = |f: &FrozenRange<T>| {
            (f.taker_client_index, f.tree, f.key_range) == (client, tree, key_range)
        };
        match step {
            HandoverStep::Freeze => {
                let mut frozen = lock(&self.frozen_ranges);
                if frozen
                    .iter()
                    .any(|f| f.tree == tree && ranges_overlap(f.key_range, key_range))
                {
                    return refused;
                }
                store.freeze(tree, key_range)?;
                let until_ns = time::now_ns() + u64::try_from(FREEZE_LEASE.as_nanos()).unwrap_or(0);
                frozen.push(FrozenRange {
                    taker_client_index: client,
                    tree,
                    key_range,
                    lease_end_ns: until_ns,
                });
                self.frozen_range_count
                    .store(frozen.len(), Ordering::Release);
                done
            }
            HandoverStep::Thaw => {
                self.thaw(store, matches_request);
                done
            }
            HandoverStep::Cede { to } => {
                let mut frozen = lock(&self.frozen_ranges);
                // The range was thawed meanwhile: the taker's copy may be outdated.
                let Some(at) = frozen.iter().position(matches_request) else {
                    return refused;
                };
                let version = self.last_version.fetch_add(1, Ordering::AcqRel) + 1;
                let owner = RangeOwner {
                    server_number: to,
                    version,
                };
                store.cede(tree, key_range, owner)?;
                frozen.swap_remove(at);
                self.frozen_range_count
                    .store(frozen.len(), Ordering::Release);
                Ok(wire::first_word_with_version(Status::Ok, version))
            }
            HandoverStep::Take { giver } => {
                let (first_key, end_key) = key_range;
                let tree = u8::try_from(tree).unwrap_or(u8::MAX);
                self.unfinished_takes.fetch_add(1, Ordering::AcqRel);
                lock(&self.waiting_takes).push(TakeRequest {
                    giver,
                    tree,
                    first_key,
                    end_key,
                });
                done
            }
        }
    }

    /// Thaws the selected frozen ranges, so that clients can change them again.
    fn thaw(&self, store: &Store<T>, which: impl Fn(&FrozenRange<T>) -> bool) {
        let mut frozen = lock(&self.frozen_ranges);
        frozen.retain(|f| {
            // A client may hold a lock at the moment; a later call thaws the range then.
            !which(f) || store.thaw(f.tree, f.key_range).is_err()
        });
        self.frozen_range_count
            .store(frozen.len(), Ordering::Release);
    }

    /// Thaws the ranges that were frozen for a client that has disconnected.
    pub(crate) fn thaw_client(&self, store: &Store<T>, client: usize) {
        self.thaw(store, |f| f.taker_client_index == client);
    }

    /// Thaws ranges whose lease has expired; called when a change finds its leaf frozen.
    pub(crate) fn thaw_expired(&self, store: &Store<T>) {
        if self.frozen_range_count.load(Ordering::Acquire) > 0 {
            let now = time::now_ns();
            self.thaw(store, |f| f.lease_end_ns < now);
        }
    }

    /// Removes and returns the next range that this server should take.
    pub(crate) fn pop_waiting_take(&self) -> Option<TakeRequest<T>> {
        let mut takes = lock(&self.waiting_takes);
        (!takes.is_empty()).then(|| takes.remove(0))
    }

    /// Records that a range was taken or given up.
    pub(crate) fn record_take_finished(&self) {
        self.unfinished_takes.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts entries that were taken.
    pub(crate) fn add_taken_entries(&self, entries: u64) {
        self.taken_entries.fetch_add(entries, Ordering::Relaxed);
    }

    /// Returns the number of entries taken so far.
    pub(crate) fn taken_entries(&self) -> u64 {
        self.taken_entries.load(Ordering::Relaxed)
    }

    /// Records that the server is stopping: a take no longer waits for its giver.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Returns true if the server is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Returns the number of ranges that wait to be taken or are being taken.
    pub(crate) fn unfinished_takes(&self) -> usize {
        self.unfinished_takes.load(Ordering::Acquire)
    }
}

fn ranges_overlap<T: Ord + Copy>(a: (T, Option<T>), b: (T, Option<T>)) -> bool {
    let below = |key: T, end: Option<T>| end.is_none_or(|end| key < end);
    below(a.0, b.1) && below(b.0, a.1)
}

/// Number of sampled keys that a worker keeps.
const MAX_SAMPLED_REQUEST_KEYS: usize = 160;
/// Sampling interval: the key of one in so many requests is kept.
const REQUESTS_PER_SAMPLE: u32 = 61;

/// A worker's load counters since its start, and its key sample.
#[derive(Debug)]
pub(crate) struct LoadMeter<T> {
    total_requests: u64,
    total_busy_ns: u64,
    /// Time at which the worker began the present batch.
    batch_start_ns: u64,
    keys_since_sample: u32,
    sampled_keys: Vec<T>,
    next_sample_index: usize,
}

impl<T: KeyOrValue> LoadMeter<T> {
    pub(crate) fn new() -> Self {
        Self {
            total_requests: 0,
            total_busy_ns: 0,
            batch_start_ns: 0,
            keys_since_sample: 0,
            sampled_keys: Vec::with_capacity(MAX_SAMPLED_REQUEST_KEYS),
            next_sample_index: 0,
        }
    }

    /// Records that a batch begins.
    #[inline]
    pub(crate) fn begin_batch(&mut self) {
        self.batch_start_ns = time::now_ns();
    }

    /// Counts the requests of a completed poll and their time. The time to find them does not count: empty polls
    /// between requests would make a server that is not full seem slower.
    #[inline]
    pub(crate) fn end_batch(&mut self, requests: usize) {
        if requests > 0 {
            self.total_requests += requests as u64;
            self.total_busy_ns += time::now_ns().saturating_sub(self.batch_start_ns);
        }
    }

    /// Counts a request for a key, and samples the key.
    #[inline]
    pub(crate) fn count_and_sample_key(&mut self, key: T) {
        self.keys_since_sample += 1;
        if self.keys_since_sample == REQUESTS_PER_SAMPLE {
            self.keys_since_sample = 0;
            if self.sampled_keys.len() < MAX_SAMPLED_REQUEST_KEYS {
                self.sampled_keys.push(key);
            } else {
                self.sampled_keys[self.next_sample_index % MAX_SAMPLED_REQUEST_KEYS] = key;
            }
            self.next_sample_index += 1;
        }
    }

    /// Appends the report as pairs of numbers: requests and busy nanoseconds; the time and the number of ranges being
    /// taken; then two sampled keys per pair.
    pub(crate) fn append_as_entries(&self, taking: usize, into: &mut Vec<(T, T)>) {
        let numbers = [
            (self.total_requests, self.total_busy_ns),
            (time::now_ns(), taking as u64),
        ];
        into.extend(numbers.map(|(a, b)| (T::from_number(a), T::from_number(b))));
        into.extend(
            self.sampled_keys
                .chunks_exact(2)
                .map(|pair| (pair[0], pair[1])),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_if_they_share_a_key() {
        assert!(ranges_overlap((0, None), (5, Some(6))) && ranges_overlap((5, Some(6)), (0, None)));
        assert!(
            !ranges_overlap((0, Some(5)), (5, Some(6))) && !ranges_overlap((6, None), (5, Some(6)))
        );
    }
}
