//! The atomics-based design at the server. Clients change records themselves; workers only assign records to keys, and
//! release locks of dead or slow clients.

use std::sync::Arc;

use rpc::RpcError;
use service::ClientRefusal;
use service::lock_recovery::{ClientAccess, LockRecovery};
use verbs::Access;

use super::design::{ConnectingClient, DesignStats, ServerDesign};
use super::record_table::{RecordTable, RecordTables};
use super::worker::{GetResult, PartitionItems, UnstartedWorker, encode_result_word};
use crate::Design;
use crate::record_cache::RecordCache;
use crate::rendezvous::{RecordWriteParameters, RemoteLayout, RemotelyAccessibleMemory};
use crate::store::record::redo;
use crate::store::{Partition, Refusal, hash_of};
use crate::wire::{self, Op, RecordRequest, Status};

/// Items in records that clients READ, lock and WRITE.
#[derive(Debug)]
pub(crate) struct ClientLockableRecordsDesign {
    pub(crate) record_tables: RecordTables,
    pub(crate) lock_recovery: Arc<LockRecovery<RecordTable>>,
    /// Milliseconds that a client may hold a lock while others wait for it.
    pub(crate) lock_lease_ms: u16,
}

impl ServerDesign for ClientLockableRecordsDesign {
    fn run_worker(&self, worker: UnstartedWorker) -> Result<(), RpcError> {
        let items = ClientChangedRecords {
            table: self
                .record_tables
                .table_of_partition(worker.partition_index),
            hash_seed: self.record_tables.hash_seed(),
            partition_index: worker.partition_index,
            lock_recovery: Arc::clone(&self.lock_recovery),
        };
        worker.run(items)
    }

    /// Opens the records to a client. The client gets its own registrations, so that its access can be revoked.
    fn open_memory(
        &self,
        client: &ConnectingClient<'_>,
    ) -> Result<Option<RemotelyAccessibleMemory>, ClientRefusal> {
        let (endpoint, qp) = client.create_responder_qp(Design::Atomics, Access::ALL)?;
        let shape = *self.record_tables.record_layout();
        let mut memory = Vec::new();
        let mut partitions = Vec::new();
        for table in self.record_tables.tables_by_partition() {
            let own = table.memory().register_again(Access::ALL);
            let own = own.map_err(ClientRefusal::temporary)?;
            partitions.push(own.remote());
            memory.push(own);
        }
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let bytes = client.hello.window * redo::entry_bytes(&shape);
        let redo = client
            .pd
            .alloc(bytes, rights)
            .map_err(ClientRefusal::temporary)?;
        let owner = self.lock_recovery.assign_owner_number();
        let writes = Some(RecordWriteParameters {
            lock_owner: owner,
            lease_ms: self.lock_lease_ms,
            redo_entries: redo.remote(),
        });
        let access = ClientAccess {
            qp,
            client_registrations: memory,
            redo_entries: Some(redo),
        };
        self.lock_recovery.add(client.index, owner, access);
        let memory = RemoteLayout::Records {
            partitions,
            shape,
            writes,
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
        let (recovered_locks, expelled) = self
            .lock_recovery
            .recovered_lock_and_revoked_client_counts();
        DesignStats {
            store: self.record_tables.stats(),
            recovered_locks,
            expelled_clients: expelled,
        }
    }
}

/// Records that clients change: a worker assigns them and releases their locks, but executes no operation on them.
struct ClientChangedRecords {
    table: Arc<RecordTable>,
    hash_seed: u64,
    partition_index: usize,
    lock_recovery: Arc<LockRecovery<RecordTable>>,
}

impl PartitionItems for ClientChangedRecords {
    fn get<R>(
        &mut self,
        _partition: &mut Partition,
        _key: (u64, &[u8]),
        answer: impl FnOnce(GetResult<'_>) -> R,
    ) -> R {
        answer(GetResult::NotServed)
    }

    fn change_and_encode_answer_word_if_served(
        &mut self,
        _partition: &mut Partition,
        _hash: u64,
        _op: Op<'_>,
    ) -> Option<u64> {
        None
    }

    fn encode_record_answer_word_if_served(&mut self, request: RecordRequest<'_>) -> Option<u64> {
        let hash = |key| hash_of(key, self.hash_seed);
        Some(match request {
            RecordRequest::Locate(key) => match self.table.find_key_record(hash(key), key) {
                Some(record) => wire::first_answer_word(Status::Ok, record),
                None => wire::first_answer_word(Status::NotFound, 0),
            },
            RecordRequest::Claim(key) => {
                encode_result_word(self.table.find_or_assign_record(hash(key), key), Status::Ok)
            }
            RecordRequest::Release(record)
                if self
                    .lock_recovery
                    .try_free_lock_on_complaint(self.partition_index, record) =>
            {
                wire::first_answer_word(Status::Ok, 0)
            }
            RecordRequest::Release(_) => wire::first_answer_word(Status::LeaseNotExpired, 0),
        })
    }
}
