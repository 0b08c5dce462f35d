//! The READ-based design at the server: clients READ, and workers make all changes.
//!
//! With a read size of 0 clients READ an index and a log ([`ClientReadableLogDesign`]), otherwise records
//! ([`ClientReadableRecordsDesign`]).

use std::sync::Arc;

use rpc::RpcError;
use service::ClientRefusal;
use service::lock_recovery::{ClientAccess, LockRecovery};
use verbs::Access;

use super::design::{ConnectingClient, DesignStats, ServerDesign};
use super::herd::HerdServerDesign;
use super::record_table::{RecordTable, RecordTables};
use super::worker::{GetResult, PartitionItems, UnstartedWorker, encode_result_word};
use crate::Design;
use crate::record_cache::RecordCache;
use crate::rendezvous::{RemoteIndexAndLog, RemoteLayout, RemotelyAccessibleMemory};
use crate::store::{Partition, Refusal, SetCondition};
use crate::wire::{self, Op, Status};

/// Items in a log that clients READ.
#[derive(Debug)]
pub(crate) struct ClientReadableLogDesign {
    /// The log as its workers use it.
    pub(crate) log: HerdServerDesign,
    pub(crate) lock_recovery: Arc<LockRecovery<RecordTable>>,
    /// Bytes of an item with key and value of the expected lengths.
    pub(crate) expected_item_bytes: usize,
}

impl ServerDesign for ClientReadableLogDesign {
    fn run_worker(&self, worker: UnstartedWorker) -> Result<(), RpcError> {
        self.log.run_worker(worker)
    }

    fn open_memory(
        &self,
        client: &ConnectingClient<'_>,
    ) -> Result<Option<RemotelyAccessibleMemory>, ClientRefusal> {
        let endpoint = create_read_responder_qp(&self.lock_recovery, client)?;
        let store = &self.log.store;
        let partitions = (0..store.partition_count()).filter_map(|n| {
            let (index, log) = store.lock_partition(n).remote_index_and_log()?;
            Some(RemoteIndexAndLog { index, log })
        });
        let memory = RemoteLayout::Logs {
            partitions: partitions.collect(),
            item_bytes: self.expected_item_bytes,
        };
        Ok(Some(RemotelyAccessibleMemory {
            server_rc_qp: endpoint,
            memory_layout: memory,
        }))
    }

    fn close_memory(&self, index: u32) {
        self.lock_recovery.revoke_and_remove_client(index);
    }

    fn preload(&self, key: &[u8], value: &[u8], record_cache: &RecordCache) -> Result<(), Refusal> {
        self.log.preload(key, value, record_cache)
    }

    fn stats(&self) -> DesignStats {
        self.log.stats()
    }
}

/// Items in records that clients READ.
#[derive(Debug)]
pub(crate) struct ClientReadableRecordsDesign {
    pub(crate) record_tables: RecordTables,
    pub(crate) lock_recovery: Arc<LockRecovery<RecordTable>>,
}

impl ServerDesign for ClientReadableRecordsDesign {
    fn run_worker(&self, worker: UnstartedWorker) -> Result<(), RpcError> {
        let table = self
            .record_tables
            .table_of_partition(worker.partition_index);
        worker.run(RecordItems {
            table,
            value_copy: Vec::new(),
        })
    }

    fn open_memory(
        &self,
        client: &ConnectingClient<'_>,
    ) -> Result<Option<RemotelyAccessibleMemory>, ClientRefusal> {
        let endpoint = create_read_responder_qp(&self.lock_recovery, client)?;
        let tables = self.record_tables.tables_by_partition().iter();
        let memory = RemoteLayout::Records {
            partitions: tables.map(|t| t.memory().remote()).collect(),
            shape: *self.record_tables.record_layout(),
            writes: None,
        };
        Ok(Some(RemotelyAccessibleMemory {
            server_rc_qp: endpoint,
            memory_layout: memory,
        }))
    }

    fn close_memory(&self, index: u32) {
        self.lock_recovery.revoke_and_remove_client(index);
    }

    fn preload(&self, key: &[u8], value: &[u8], record_cache: &RecordCache) -> Result<(), Refusal> {
        self.record_tables.preload(key, value, record_cache)
    }

    fn stats(&self) -> DesignStats {
        DesignStats {
            store: self.record_tables.stats(),
            ..DesignStats::default()
        }
    }
}

/// Creates the queue pair by which a client READs.
fn create_read_responder_qp(
    lock_recovery: &LockRecovery<RecordTable>,
    client: &ConnectingClient<'_>,
) -> Result<verbs::QpEndpoint, ClientRefusal> {
    let (endpoint, qp) = client.create_responder_qp(Design::Reads, Access::REMOTE_READ)?;
    let access = ClientAccess {
        qp,
        client_registrations: Vec::new(),
        redo_entries: None,
    };
    lock_recovery.add(client.index, lock_recovery.assign_owner_number(), access);
    Ok(endpoint)
}

/// Records that only their worker changes.
struct RecordItems {
    table: Arc<RecordTable>,
    /// A private copy of a value.
    value_copy: Vec<u8>,
}

impl PartitionItems for RecordItems {
    fn get<R>(
        &mut self,
        _partition: &mut Partition,
        (hash, key): (u64, &[u8]),
        answer: impl FnOnce(GetResult<'_>) -> R,
    ) -> R {
        let version = self.table.get(hash, key, &mut self.value_copy);
        answer(match version {
            Some(version) => GetResult::Value {
                version,
                value: &self.value_copy,
            },
            None => GetResult::Absent,
        })
    }

    fn change_and_encode_answer_word_if_served(
        &mut self,
        _partition: &mut Partition,
        hash: u64,
        op: Op<'_>,
    ) -> Option<u64> {
        let result = match op {
            // The server refuses a time to live in this design.
            Op::Get { .. } | Op::Put { ttl_ms: 1.., .. } => {
                return Some(wire::first_answer_word(Status::BadRequest, 0));
            }
            Op::Put {
                key,
                value,
                condition,
                ..
            } => self.table.set_or_remove(hash, key, Some(value), condition),
            Op::Delete { key, version } => {
                let condition = version.map_or(SetCondition::Always, SetCondition::Version);
                self.table.set_or_remove(hash, key, None, condition)
            }
        };
        Some(encode_result_word(result, Status::NotFound))
    }
}
