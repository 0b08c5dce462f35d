//! LMDB behind a plain TCP server with pipelining: the rate of an ordered store that does not use
//! remote memory.
//!
//! The worker is the server. It keeps LMDB's file in memory, without syncing and without locks. Keys and values are
//! integers, which LMDB compares as such, or byte strings. One transaction executes all requests that have arrived, and
//! one write sends their answers. Both ends poll their sockets for a while before they sleep.
//!
//! Loaded keys are even numbers, inserted keys are odd. Values are a function of their keys, and
//! every value is checked.

mod client;
mod idle_wait;
mod numbered_entries;
pub(crate) mod serve_job;
mod server;
mod store;
mod wire;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use service::random::Random;

use crate::job::Job;
use crate::link::WorkerLink;
use client::{Client, LmdbRequests};
use numbered_entries::EntryGenerator;
use serve_job::LmdbServeJob;
use wire::{MAX_SCAN_ENTRIES, Request};

pub use client::LmdbMeasurement;
pub use numbered_entries::LmdbEntryKind;
pub(crate) use server::run_worker_side;

/// Maximum outstanding requests while keys are loaded.
const LOAD_WINDOW: usize = 8192;

/// Parameters of the store and of its client.
#[derive(Clone, Copy, Debug)]
pub struct LmdbParameters {
    /// Number of loaded keys; as many can be inserted afterwards.
    pub loaded_key_count: u64,
    /// The keys and values that stand for numbers.
    pub entry_kind: LmdbEntryKind,
    /// Maximum outstanding requests, 1 or more.
    pub window: usize,
    /// Seed of random choices.
    pub seed: u64,
}

/// A server in the worker's process, and its client in this process.
#[derive(Debug)]
pub struct LmdbPeer<'l> {
    link: &'l mut WorkerLink,
    client: Client,
    setup: LmdbParameters,
    random: Random,
    /// Number of keys that were inserted.
    inserted_key_count: u64,
}

impl<'l> LmdbPeer<'l> {
    /// Makes the worker serve an empty store, and connects a client.
    ///
    /// # Errors
    /// The setup is invalid, the worker has no room for the keys, or the server cannot be reached.
    pub fn start(link: &'l mut WorkerLink, setup: LmdbParameters) -> Result<Self> {
        ensure!(
            (1..1 << 62).contains(&setup.loaded_key_count),
            "1 to 2^62 keys can be loaded, not {}",
            setup.loaded_key_count
        );
        ensure!(setup.window > 0, "a window has at least one request");
        let sizes = setup.entry_kind.entry_sizes();
        link.send(&Job::Lmdb(LmdbServeJob {
            max_keys: 2 * setup.loaded_key_count,
            sizes,
            key_order: setup.entry_kind.key_order(),
        }))?;
        let address: SocketAddr = link.recv()?;
        Ok(Self {
            client: Client::connect(address, sizes)?,
            link,
            setup,
            random: Random::new(setup.seed),
            inserted_key_count: 0,
        })
    }

    /// Loads the keys in ascending order.
    ///
    /// # Errors
    /// The server fails.
    pub fn measure_load(&mut self) -> Result<LmdbMeasurement> {
        let LmdbParameters {
            loaded_key_count: keys,
            entry_kind: entries,
            ..
        } = self.setup;
        let mut load = LmdbPuts {
            key_numbers: (0..keys).map(loaded_key),
            entries: EntryGenerator::new(entries),
            is_append: true,
        };
        self.client.run_requests(&mut load, LOAD_WINDOW, None)
    }

    /// Looks up random loaded keys for `duration`.
    ///
    /// # Errors
    /// The server fails, or a value is wrong.
    pub fn measure_lookups(&mut self, duration: Duration) -> Result<LmdbMeasurement> {
        let (random, keys) = (&mut self.random, self.setup.loaded_key_count);
        let mut lookups = LmdbLookups {
            key_numbers: std::iter::repeat_with(|| loaded_key(random.next_below(keys))),
            entries: EntryGenerator::new(self.setup.entry_kind),
        };
        let until = Some(Instant::now() + duration);
        self.client
            .run_requests(&mut lookups, self.setup.window, until)
    }

    /// Scans ranges of `entries` entries for `duration`, each from a random loaded key on. A scan
    /// counts as one operation.
    ///
    /// # Errors
    /// `entries` is more than 4096, keys were inserted already, or the server fails. An entry is
    /// missing, wrong or superfluous.
    pub fn measure_scans(&mut self, entries: u32, duration: Duration) -> Result<LmdbMeasurement> {
        ensure!(
            entries <= MAX_SCAN_ENTRIES,
            "a scan has at most {MAX_SCAN_ENTRIES} entries, not {entries}"
        );
        ensure!(
            self.inserted_key_count == 0,
            "scans are checked against the loaded keys, so they come before inserts"
        );
        let mut scans = LmdbScans {
            random: &mut self.random,
            loaded_key_count: self.setup.loaded_key_count,
            entries: EntryGenerator::new(self.setup.entry_kind),
            entries_per_scan: entries,
        };
        let until = Some(Instant::now() + duration);
        self.client
            .run_requests(&mut scans, self.setup.window, until)
    }

    /// Inserts new keys in a scattered order, for `duration` or until as many keys are inserted as
    /// were loaded. Afterwards, outside of the measured time, each inserted key is looked up.
    ///
    /// # Errors
    /// The server fails, or does not have a key or its value afterwards.
    pub fn measure_inserts(&mut self, duration: Duration) -> Result<LmdbMeasurement> {
        let LmdbParameters {
            loaded_key_count: keys,
            entry_kind: entries,
            window,
            ..
        } = self.setup;
        let first = self.inserted_key_count;
        let until = Some(Instant::now() + duration);
        let mut inserts = LmdbPuts {
            key_numbers: (first..keys).map(|n| inserted_key(n, keys)),
            entries: EntryGenerator::new(entries),
            is_append: false,
        };
        let rate = self.client.run_requests(&mut inserts, window, until)?;
        self.inserted_key_count += rate.operations;
        let mut lookups = LmdbLookups {
            key_numbers: (first..self.inserted_key_count).map(|n| inserted_key(n, keys)),
            entries: EntryGenerator::new(entries),
        };
        self.client.run_requests(&mut lookups, window, None)?;
        Ok(rate)
    }

    /// Stops the server; the worker then takes the next job.
    ///
    /// # Errors
    /// The server has failed, or the worker is gone.
    pub fn stop(self) -> Result<()> {
        drop(self.client);
        self.link.send(&true).context("cannot end the LMDB server")
    }
}

/// Returns the loaded key with number `n`.
fn loaded_key(n: u64) -> u64 {
    2 * n
}

/// Returns the inserted key with number `n` of `keys`. Each key occurs once, far from its
/// predecessor.
fn inserted_key(n: u64, keys: u64) -> u64 {
    // The step is close to the golden section of the number of keys, and coprime to that number.
    let step = (u128::from(keys) * 0x9e37_79b9_7f4a_7c15) >> 64;
    let step = (u64::try_from(step).unwrap_or(0).max(1)..).find(|step| gcd(*step, keys) == 1);
    let place = u128::from(n) * u128::from(step.unwrap_or(1)) % u128::from(keys.max(1));
    2 * u64::try_from(place).unwrap_or(0) + 1
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// PUTs of the entries of numbers; each must succeed.
struct LmdbPuts<I> {
    key_numbers: I,
    entries: EntryGenerator,
    /// True if each key is behind all keys of the store.
    is_append: bool,
}

impl<I: Iterator<Item = u64>> LmdbRequests for LmdbPuts<I> {
    type AnswerExpectation = ();

    #[inline]
    fn encode_next(&mut self, into: &mut Vec<u8>) -> Option<()> {
        let (key, value) = self
            .entries
            .key_and_value_of_number(self.key_numbers.next()?);
        let request = if self.is_append {
            Request::Append { key, value }
        } else {
            Request::Put { key, value }
        };
        request.encode(into);
        Some(())
    }

    fn check_answer_and_len(&mut self, (): &(), bytes: &[u8]) -> Result<Option<usize>> {
        match bytes.first() {
            None => Ok(None),
            Some(1) => Ok(Some(1)),
            Some(said) => anyhow::bail!("LMDB said {said} to a PUT: it was not made"),
        }
    }
}

/// Lookups of existing keys, by their numbers.
struct LmdbLookups<I> {
    key_numbers: I,
    entries: EntryGenerator,
}

impl<I: Iterator<Item = u64>> LmdbRequests for LmdbLookups<I> {
    /// The number of the key.
    type AnswerExpectation = u64;

    #[inline]
    fn encode_next(&mut self, into: &mut Vec<u8>) -> Option<u64> {
        let number = self.key_numbers.next()?;
        let key = self.entries.key_of_number(number);
        Request::Get { key }.encode(into);
        Some(number)
    }

    #[inline]
    fn check_answer_and_len(&mut self, number: &u64, bytes: &[u8]) -> Result<Option<usize>> {
        let Some((found, length)) = wire::decode_get_answer(bytes, self.entries.sizes()) else {
            return Ok(None);
        };
        let (key, expected) = self.entries.key_and_value_of_number(*number);
        ensure!(
            found == Some(expected),
            "LMDB has {found:02x?} for key {key:02x?}, not {expected:02x?}"
        );
        Ok(Some(length))
    }
}

/// Scans, each from a loaded key on.
struct LmdbScans<'r> {
    random: &'r mut Random,
    loaded_key_count: u64,
    entries: EntryGenerator,
    entries_per_scan: u32,
}

impl LmdbRequests for LmdbScans<'_> {
    /// Number of the first key.
    type AnswerExpectation = u64;

    fn encode_next(&mut self, into: &mut Vec<u8>) -> Option<u64> {
        let first = self.random.next_below(self.loaded_key_count);
        let scan = Request::Scan {
            from: self.entries.key_of_number(loaded_key(first)),
            entries: self.entries_per_scan,
        };
        scan.encode(into);
        Some(first)
    }

    fn check_answer_and_len(&mut self, first: &u64, bytes: &[u8]) -> Result<Option<usize>> {
        let Some((entries, length)) = wire::decode_scan_answer(bytes, self.entries.sizes()) else {
            return Ok(None);
        };
        let mut next = *first;
        for found in entries {
            let expected = self.entries.key_and_value_of_number(loaded_key(next));
            ensure!(
                found == expected,
                "LMDB has {found:02x?} where {expected:02x?} is next in a scan"
            );
            next += 1;
        }
        let end = (first + u64::from(self.entries_per_scan)).min(self.loaded_key_count);
        ensure!(
            next == end,
            "a scan of {} entries from key {} on ends before key {}",
            self.entries_per_scan,
            loaded_key(*first),
            loaded_key(next)
        );
        Ok(Some(length))
    }
}

#[cfg(test)]
mod tests;
