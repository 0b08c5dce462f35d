//! The interface of a design at the server.

use std::fmt::Debug;

use rpc::RpcError;
use service::ClientRefusal;
use service::qp::connect_responder_qp;
use verbs::{
    Access, CompletionQueue, PortAndGidIndex, ProtectionDomain, QpEndpoint, QueuePair, Rc,
};

use super::worker::UnstartedWorker;
use crate::Design;
use crate::record_cache::RecordCache;
use crate::rendezvous::{Hello, RemotelyAccessibleMemory};
use crate::store::{PartitionStats, Refusal};

/// A design at the server: where items are kept, and which memory clients access without a worker.
pub(crate) trait ServerDesign: Debug + Send + Sync {
    /// Runs a worker on the items of its partition until the worker gets the stop command.
    fn run_worker(&self, worker: UnstartedWorker) -> Result<(), RpcError>;

    /// Opens memory to a client, if the design has such memory.
    fn open_memory(
        &self,
        _client: &ConnectingClient<'_>,
    ) -> Result<Option<RemotelyAccessibleMemory>, ClientRefusal> {
        Ok(None)
    }

    /// Closes the memory of the client with this index, which has disconnected.
    fn close_memory(&self, _index: u32) {}

    /// Stores an item without the network, before any client connects. Enters its record into `record_cache` if clients
    /// need the record.
    fn preload(&self, key: &[u8], value: &[u8], record_cache: &RecordCache) -> Result<(), Refusal>;

    /// Returns the design's statistics.
    fn stats(&self) -> DesignStats;
}

/// The statistics of a design.
#[derive(Debug, Default)]
pub(crate) struct DesignStats {
    pub(crate) store: PartitionStats,
    /// Locks that were released for clients that had died or exceeded their lease.
    pub(crate) recovered_locks: u64,
    /// Clients whose access was revoked for that.
    pub(crate) expelled_clients: u64,
}

/// A client to which memory is being opened.
#[derive(Debug)]
pub(crate) struct ConnectingClient<'c> {
    pub(crate) hello: &'c Hello,
    /// The client's index at the server.
    pub(crate) index: u32,
    pub(crate) pd: &'c ProtectionDomain,
    pub(crate) cq: &'c CompletionQueue,
    pub(crate) port: PortAndGidIndex,
}

impl ConnectingClient<'_> {
    /// Creates the RC queue pair by which the client has this access.
    pub(crate) fn create_responder_qp(
        &self,
        design: Design,
        access: Access,
    ) -> Result<(QpEndpoint, QueuePair<Rc>), ClientRefusal> {
        let peer = self.hello.memory_access_qp.ok_or_else(|| {
            ClientRefusal::permanent(format!("no RC queue pair, which design {design} needs"))
        })?;
        connect_responder_qp(self.pd, self.cq, self.port, access, &peer)
    }
}
