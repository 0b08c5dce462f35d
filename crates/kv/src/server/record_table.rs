//! A partition of [records](crate::store::record) in registered memory, from the server's side.
//!
//! The server decides which key has which record, and keeps this mapping in private memory. In the READ-based design
//! the server also changes records. In the atomics-based design clients change them under locks, and the server only
//! assigns records to keys ([`find_or_assign_record`](RecordTable::find_or_assign_record)). All access is word by word,
//! because clients READ and WRITE concurrently.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use rpc::{LoopbackQp, RpcError};
use service::lock_recovery::{LockTable, SERVER_OWNER, lock_word_owner};
use service::worker::lock;
use verbs::{Access, MemoryRegion, PortAndGidIndex, ProtectionDomain};

use crate::record_cache::RecordCache;
use crate::store::record::{DecodedBody, RecordLayout, redo, version_after_change_unless_no_op};
use crate::store::{PartitionStats, Refusal, SetCondition, hash_of, partition_of};

/// The server's word in locks.
const SERVER_LOCK_WORD: u64 = (SERVER_OWNER as u64) << 40;

/// The tables of all partitions, which have the same layout.
#[derive(Debug)]
pub(crate) struct RecordTables {
    tables_by_partition: Vec<Arc<RecordTable>>,
    record_layout: RecordLayout,
    hash_seed: u64,
}

impl RecordTables {
    /// Creates a table for each of `partitions` partitions; `writes` is true if clients change records.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        port: PortAndGidIndex,
        (shape, seed): (RecordLayout, u64),
        partitions: usize,
        writes: bool,
    ) -> Result<Self, RpcError> {
        let table = |_| Ok(Arc::new(RecordTable::new(pd, port, shape, seed, writes)?));
        let all = (0..partitions)
            .map(table)
            .collect::<Result<_, RpcError>>()?;
        Ok(Self {
            tables_by_partition: all,
            record_layout: shape,
            hash_seed: seed,
        })
    }

    pub(crate) fn tables_by_partition(&self) -> &[Arc<RecordTable>] {
        &self.tables_by_partition
    }

    /// Returns the table of a partition.
    pub(crate) fn table_of_partition(&self, partition: usize) -> Arc<RecordTable> {
        Arc::clone(&self.tables_by_partition[partition])
    }

    pub(crate) fn record_layout(&self) -> &RecordLayout {
        &self.record_layout
    }

    /// Returns the seed of key hashes.
    pub(crate) fn hash_seed(&self) -> u64 {
        self.hash_seed
    }

    pub(crate) fn stats(&self) -> PartitionStats {
        let mut sum = PartitionStats::default();
        for table in &self.tables_by_partition {
            sum.add(&table.stats());
        }
        sum
    }

    /// Stores an item without the network, and enters its record into `record_cache`.
    pub(crate) fn preload(
        &self,
        key: &[u8],
        value: &[u8],
        record_cache: &RecordCache,
    ) -> Result<(), Refusal> {
        let hash = hash_of(key, self.hash_seed);
        let table = &self.tables_by_partition[partition_of(hash, self.tables_by_partition.len())];
        let record = table.preload(hash, key, value)?;
        record_cache.set(hash, record);
        Ok(())
    }
}

/// The records of a partition and their keys.
#[derive(Debug)]
pub(crate) struct RecordTable {
    record_layout: RecordLayout,
    memory: Arc<MemoryRegion>,
    hash_seed: u64,
    /// The loopback queue pair by which the server takes locks, if clients can lock records too.
    loopback_lock_access: Option<Mutex<(LoopbackQp, MemoryRegion)>>,
    keys: Mutex<TableKeys>,
}

#[derive(Debug)]
struct TableKeys {
    /// The hash of each record's key; 0 for a free record.
    hashes: Vec<u64>,
    /// Used records outside all neighbourhoods, by the hash of their key.
    overflow_records: HashMap<u64, Vec<u64>>,
    /// Free records outside all neighbourhoods.
    free_overflow_records: Vec<u64>,
    /// The highest version of a key that lost its record. New keys get greater versions.
    max_removed_version: u64,
    stats: PartitionStats,
    body_buffer: Vec<u8>,
}

/// Returns a record's index in `hashes`.
#[expect(clippy::cast_possible_truncation, reason = "a table that is in memory")]
fn hash_index_of_record(record: u64) -> usize {
    record as usize
}

/// The result of a change or a claim: a version or a record number.
pub(crate) type VersionOrRecordResult = Result<u64, Refusal>;

impl RecordTable {
    /// Creates a table without keys; `writes` is true if clients change records.
    pub(crate) fn new(
        pd: &ProtectionDomain,
        port: PortAndGidIndex,
        shape: RecordLayout,
        seed: u64,
        writes: bool,
    ) -> Result<Self, RpcError> {
        // Clients that WRITE use registrations of their own.
        let access = if writes {
            Access::LOCAL_WRITE
        } else {
            Access::REMOTE_READ
        };
        let bytes = usize::try_from(shape.memory_bytes()).unwrap_or(usize::MAX);
        let count = usize::try_from(shape.record_count).unwrap_or(0);
        let first = shape.home_count + shape.records_per_neighbourhood as u64 - 1;
        let memory = Arc::new(pd.alloc(bytes, access)?);
        let atomics = if writes {
            let own = memory.register_again(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
            Some(Mutex::new((LoopbackQp::new(pd, port)?, own)))
        } else {
            None
        };
        Ok(Self {
            memory,
            hash_seed: seed,
            loopback_lock_access: atomics,
            keys: Mutex::new(TableKeys {
                hashes: vec![0; count],
                overflow_records: HashMap::new(),
                free_overflow_records: (first..shape.record_count).rev().collect(),
                max_removed_version: 0,
                stats: PartitionStats::default(),
                body_buffer: vec![0; shape.body_bytes()],
            }),
            record_layout: shape,
        })
    }

    pub(crate) fn memory(&self) -> &Arc<MemoryRegion> {
        &self.memory
    }

    /// Returns the statistics. `items` counts the keys that have records; in the READ-based design these are the keys
    /// present.
    pub(crate) fn stats(&self) -> PartitionStats {
        PartitionStats {
            memory_bytes: self.record_layout.memory_bytes() + 8 * self.record_layout.record_count,
            ..self.lock_keys().stats
        }
    }

    fn lock_keys(&self) -> MutexGuard<'_, TableKeys> {
        lock(&self.keys)
    }

    fn read_body_bytes(&self, record: u64, into: &mut [u8]) {
        let at = usize::try_from(self.record_layout.body_offset(record)).unwrap_or(usize::MAX);
        if self.memory.read_at(at, into).is_err() {
            into.fill(0);
        }
    }

    fn write_body_bytes(&self, record: u64, body: &[u8]) {
        let at = usize::try_from(self.record_layout.body_offset(record)).unwrap_or(usize::MAX);
        // Records are this table's own or were checked, so the write cannot fail.
        let _ = self.memory.write_at(at, body);
    }

    /// Returns the record of a key.
    fn find_record(&self, keys: &mut TableKeys, hash: u64, key: &[u8]) -> Option<u64> {
        let home = self.record_layout.first_record_of_hash(hash);
        let key_hash = hash.max(1);
        let neighbourhood = (home..home + self.record_layout.records_per_neighbourhood as u64)
            .filter(|&record| keys.hashes.get(hash_index_of_record(record)) == Some(&key_hash));
        let overflow = keys
            .overflow_records
            .get(&key_hash)
            .into_iter()
            .flatten()
            .copied();
        let buffer = &mut keys.body_buffer;
        neighbourhood.chain(overflow).find(|&record| {
            self.read_body_bytes(record, buffer);
            // A torn body also matches: a record's key does not change.
            self.record_layout
                .decode_body(buffer, (self.hash_seed, record), key)
                != DecodedBody::OtherKey
        })
    }

    /// Assigns a record to a key, and stores the key in it without a value.
    fn assign_record(&self, keys: &mut TableKeys, hash: u64, key: &[u8]) -> Option<u64> {
        let record = self.reserve_record(keys, hash)?;
        self.encode_and_write_body(keys, record, key, keys.max_removed_version, None);
        // A record that was reclaimed is locked until now.
        self.release_server_lock(record);
        Some(record)
    }

    /// Reserves a record for a key: a free one of its neighbourhood, one whose key was removed, or one outside all
    /// neighbourhoods.
    fn reserve_record(&self, keys: &mut TableKeys, hash: u64) -> Option<u64> {
        let home = self.record_layout.first_record_of_hash(hash);
        let key_hash = hash.max(1);
        let neighbourhood = home..home + self.record_layout.records_per_neighbourhood as u64;
        let is_free = |record: &u64| keys.hashes.get(hash_index_of_record(*record)) == Some(&0);
        let record = match neighbourhood.clone().find(is_free) {
            Some(record) => record,
            None => match neighbourhood
                .clone()
                .find(|&record| self.lock_removed_record(keys, record))
            {
                Some(record) => record,
                None => {
                    let record = keys.free_overflow_records.pop()?;
                    keys.overflow_records
                        .entry(key_hash)
                        .or_default()
                        .push(record);
                    record
                }
            },
        };
        keys.hashes[hash_index_of_record(record)] = key_hash;
        keys.stats.items += 1;
        Some(record)
    }

    fn encode_and_write_body(
        &self,
        keys: &mut TableKeys,
        record: u64,
        key: &[u8],
        version: u64,
        value: Option<&[u8]>,
    ) {
        let body = &mut keys.body_buffer;
        let identity = (self.hash_seed, record);
        self.record_layout
            .encode_body(body, identity, key, version, value);
        self.write_body_bytes(record, body);
    }

    /// Stores an item before any client connects, and returns its record. The record of a new key is written once,
    /// because no client reads it yet.
    fn preload(&self, hash: u64, key: &[u8], value: &[u8]) -> VersionOrRecordResult {
        if !self.record_layout.fits_key_and_value(key, value) {
            return Err(Refusal::TooLong);
        }
        let mut keys = self.lock_keys();
        if let Some(record) = self.find_record(&mut keys, hash, key) {
            drop(keys);
            self.set_or_remove(hash, key, Some(value), SetCondition::Always)?;
            return Ok(record);
        }
        let Some(record) = self.reserve_record(&mut keys, hash) else {
            keys.stats.refused_full += 1;
            return Err(Refusal::StoreFull);
        };
        let version = keys.max_removed_version + 1;
        self.encode_and_write_body(&mut keys, record, key, version, Some(value));
        self.release_server_lock(record);
        Ok(record)
    }

    /// Locks a record whose key was removed, so that a new key can use the record. Returns true on success.
    fn lock_removed_record(&self, keys: &mut TableKeys, record: u64) -> bool {
        let removed = |keys: &mut TableKeys| {
            self.read_body_bytes(record, &mut keys.body_buffer);
            self.record_layout
                .version_if_removed(&keys.body_buffer, (self.hash_seed, record))
        };
        if removed(keys).is_none() || !self.try_lock_record(record) {
            return false;
        }
        // A client may have set the key again before the lock was taken.
        let Some(version) = removed(keys) else {
            self.release_server_lock(record);
            return false;
        };
        keys.max_removed_version = keys.max_removed_version.max(version);
        keys.stats.items -= 1;
        true
    }

    fn try_lock_record(&self, record: u64) -> bool {
        let Some(atomics) = &self.loopback_lock_access else {
            return false;
        };
        let (loopback, own) = &mut *lock(atomics);
        let word = own
            .remote()
            .starting_at(self.record_layout.lock_offset(record));
        let locked = word.map(|word| loopback.compare_and_swap(word, 0, SERVER_LOCK_WORD));
        match locked {
            Some(Ok(locked)) => locked,
            Some(Err(e)) => {
                tracing::warn!("the server cannot lock a record: {e}");
                false
            }
            None => false,
        }
    }

    /// Releases a record's lock if the server holds it. No client changes the word meanwhile, so a processor atomic
    /// suffices.
    fn release_server_lock(&self, record: u64) {
        if let Some(lock) = self.lock_word_of(record) {
            let _ = lock.compare_exchange(SERVER_LOCK_WORD, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Returns the record of a key, if it has one.
    pub(crate) fn find_key_record(&self, hash: u64, key: &[u8]) -> Option<u64> {
        self.find_record(&mut self.lock_keys(), hash, key)
    }

    /// Returns the record of a key, and assigns one if the key has none.
    pub(crate) fn find_or_assign_record(&self, hash: u64, key: &[u8]) -> VersionOrRecordResult {
        if !self.record_layout.fits_key_and_value(key, b"") {
            return Err(Refusal::TooLong);
        }
        let keys = &mut *self.lock_keys();
        if let Some(record) = self.find_record(keys, hash, key) {
            return Ok(record);
        }
        let assigned = self.assign_record(keys, hash, key);
        keys.stats.refused_full += u64::from(assigned.is_none());
        assigned.ok_or(Refusal::StoreFull)
    }

    /// Copies the value of a key and returns its version. The table must be one that only the server changes.
    pub(crate) fn get(&self, hash: u64, key: &[u8], into: &mut Vec<u8>) -> Option<u64> {
        let keys = &mut *self.lock_keys();
        let record = self.find_record(keys, hash, key)?;
        self.read_body_bytes(record, &mut keys.body_buffer);
        match self
            .record_layout
            .decode_body(&keys.body_buffer, (self.hash_seed, record), key)
        {
            DecodedBody::Match {
                version,
                value: Some(value),
            } => {
                into.clear();
                into.extend_from_slice(value);
                Some(version)
            }
            _ => None,
        }
    }

    /// Sets or removes the value of a key, in a table that only the server changes. Returns the new version; for a
    /// removal, the removed version or 0.
    pub(crate) fn set_or_remove(
        &self,
        hash: u64,
        key: &[u8],
        value: Option<&[u8]>,
        condition: SetCondition,
    ) -> VersionOrRecordResult {
        if !self
            .record_layout
            .fits_key_and_value(key, value.unwrap_or_default())
        {
            return Err(Refusal::TooLong);
        }
        let keys = &mut *self.lock_keys();
        let there = self.find_record(keys, hash, key);
        let (mut last, mut present) = (keys.max_removed_version, false);
        if let Some(record) = there {
            self.read_body_bytes(record, &mut keys.body_buffer);
            if let DecodedBody::Match { version, value } =
                self.record_layout
                    .decode_body(&keys.body_buffer, (self.hash_seed, record), key)
            {
                (last, present) = (version, value.is_some());
            }
        }
        let Some(version) =
            version_after_change_unless_no_op(last, present, value.is_some(), condition)?
        else {
            return Ok(0);
        };
        let Some(record) = there.or_else(|| self.assign_record(keys, hash, key)) else {
            keys.stats.refused_full += 1;
            return Err(Refusal::StoreFull);
        };
        let mut body = std::mem::take(&mut keys.body_buffer);
        match value {
            Some(_) => self.record_layout.encode_body(
                &mut body,
                (self.hash_seed, record),
                key,
                version,
                value,
            ),
            None => {
                body.fill(0);
                let key_hash = std::mem::take(&mut keys.hashes[hash_index_of_record(record)]);
                keys.max_removed_version = keys.max_removed_version.max(version);
                keys.stats.items -= 1;
                if let Some(overflow) = keys.overflow_records.get_mut(&key_hash)
                    && overflow.contains(&record)
                {
                    overflow.retain(|r| *r != record);
                    if overflow.is_empty() {
                        keys.overflow_records.remove(&key_hash);
                    }
                    keys.free_overflow_records.push(record);
                }
            }
        }
        self.write_body_bytes(record, &body);
        keys.body_buffer = body;
        Ok(version)
    }
}

impl LockTable for RecordTable {
    fn lock_word_of(&self, record: u64) -> Option<&AtomicU64> {
        let at = usize::try_from(self.record_layout.lock_offset(record)).ok()?;
        (record < self.record_layout.record_count).then(|| self.memory.atomic_u64(at).ok())?
    }

    fn redo_entry_bytes(&self) -> usize {
        redo::entry_bytes(&self.record_layout)
    }

    fn table_index_of_redo_entry(entry: &[u8]) -> Option<usize> {
        redo::partition_of(entry)
    }

    fn execute_redo_entry(&self, entry: &[u8], owner: u32) -> bool {
        let Some((record, word, body)) = redo::decode_entry(entry, &self.record_layout) else {
            return false;
        };
        let Some(lock) = self.lock_word_of(record) else {
            return false;
        };
        if lock_word_owner(word) != owner || lock.load(Ordering::Acquire) != word {
            return false;
        }
        self.write_body_bytes(record, body);
        lock.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}
