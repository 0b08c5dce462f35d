//! The HERD design at the server: items are in a log, which only workers access.

use std::sync::Arc;

use rpc::RpcError;

use super::design::{DesignStats, ServerDesign};
use super::worker::{GetResult, PartitionItems, UnstartedWorker, encode_result_word};
use crate::record_cache::RecordCache;
use crate::store::{Partition, Refusal, SetOptions, Store};
use crate::wire::{self, Op, Status};

/// Items in a log.
#[derive(Debug)]
pub(crate) struct HerdServerDesign {
    pub(crate) store: Arc<Store>,
}

impl ServerDesign for HerdServerDesign {
    fn run_worker(&self, worker: UnstartedWorker) -> Result<(), RpcError> {
        worker.run(PartitionItemsInLog)
    }

    fn preload(
        &self,
        key: &[u8],
        value: &[u8],
        _record_cache: &RecordCache,
    ) -> Result<(), Refusal> {
        let (hash, mut partition) = self.store.hash_and_lock_partition(key);
        partition.set(hash, key, value, SetOptions::default())?;
        Ok(())
    }

    fn stats(&self) -> DesignStats {
        DesignStats {
            store: self.store.stats(),
            ..DesignStats::default()
        }
    }
}

/// The items of a partition's log.
pub(crate) struct PartitionItemsInLog;

impl PartitionItems for PartitionItemsInLog {
    #[inline]
    fn get<R>(
        &mut self,
        partition: &mut Partition,
        (hash, key): (u64, &[u8]),
        answer: impl FnOnce(GetResult<'_>) -> R,
    ) -> R {
        answer(match partition.get(hash, key) {
            Some(entry) => GetResult::Value {
                version: entry.version,
                value: entry.value,
            },
            None => GetResult::Absent,
        })
    }

    #[inline]
    fn change_and_encode_answer_word_if_served(
        &mut self,
        partition: &mut Partition,
        hash: u64,
        op: Op<'_>,
    ) -> Option<u64> {
        let result = match op {
            Op::Get { .. } => return Some(wire::first_answer_word(Status::BadRequest, 0)),
            Op::Put {
                key,
                value,
                condition,
                ttl_ms,
            } => {
                let expires_ms = if ttl_ms == 0 {
                    0
                } else {
                    partition.now_ms().saturating_add(ttl_ms)
                };
                let how = SetOptions {
                    condition,
                    expiry_time_ms: expires_ms,
                };
                partition.set(hash, key, value, how)
            }
            Op::Delete { key, version } => partition.delete(hash, key, version),
        };
        Some(encode_result_word(result, Status::NotFound))
    }
}
