//! The interface of a design at the server.

use std::fmt::Debug;

use rpc::RpcError;
use service::Refused;
use service::qp::responder;
use verbs::{Access, CompletionQueue, PortGid, ProtectionDomain, QpEndpoint, QueuePair, Rc};

use super::worker::Worker;
use crate::Design;
use crate::locations::Locations;
use crate::rendezvous::{Hello, RemoteAccess};
use crate::store::{PartitionStats, Refusal};

/// Where a design keeps items, and what of them clients reach without a worker.
pub(crate) trait ServerDesign: Debug + Send + Sync {
    /// Runs a worker over the items of its partition, until it is told to stop.
    fn run(&self, worker: Worker) -> Result<(), RpcError>;

    /// Opens memory to a client, if the design does.
    fn open_memory(&self, _client: &Opening<'_>) -> Result<Option<RemoteAccess>, Refused> {
        Ok(None)
    }

    /// The client of this index is gone.
    fn close_memory(&self, _index: u32) {}

    /// Puts an item without a network, before any client comes; tells `known` where it is, where clients need to know.
    fn preload(&self, key: &[u8], value: &[u8], known: &Locations) -> Result<(), Refusal>;

    /// What it holds and did.
    fn stats(&self) -> DesignStats;
}

/// What a design reports.
#[derive(Debug, Default)]
pub(crate) struct DesignStats {
    pub(crate) store: PartitionStats,
    /// Locks that were freed for clients that had them.
    pub(crate) recovered_locks: u64,
    /// Clients whose access was taken away for that.
    pub(crate) expelled: u64,
}

/// A client to which memory is opened.
#[derive(Debug)]
pub(crate) struct Opening<'c> {
    pub(crate) hello: &'c Hello,
    /// Of the client at the server.
    pub(crate) index: u32,
    pub(crate) pd: &'c ProtectionDomain,
    pub(crate) cq: &'c CompletionQueue,
    pub(crate) port: PortGid,
}

impl Opening<'_> {
    /// The RC queue pair through which the client has this access.
    pub(crate) fn responder(
        &self,
        design: Design,
        access: Access,
    ) -> Result<(QpEndpoint, QueuePair<Rc>), Refused> {
        let peer = self.hello.rc.ok_or_else(|| {
            Refused::never(format!("no RC queue pair, which design {design} needs"))
        })?;
        responder(self.pd, self.cq, self.port, access, &peer)
    }
}
