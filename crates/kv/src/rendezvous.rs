//! The messages by which clients find a server and connect to it.
//!
//! 1. The server speaks first: [`ServerOffer`] describes the server and what it offers.
//! 2. The client answers with [`Hello`]: its session, and the endpoints of its two queue pairs for each worker.
//! 3. The server connects its side and [answers](service::Answer) with its endpoints and keys ([`Accepted`]), or with
//!    the reason for refusing.
//!
//! Then the TCP connection stays open and silent. When it closes, the server frees the client's resources, but keeps
//! its record of the session's changes.

use serde::{Deserialize, Serialize};
use service::Protocol;
use verbs::{QpEndpoint, RemoteMemory};

use crate::Design;
use crate::store::RecordLayout;

/// The messages of the key-value store's rendezvous.
#[derive(Debug, Clone, Copy)]
pub enum RendezvousProtocol {}

impl Protocol for RendezvousProtocol {
    const SERVICE: &'static str = "key-value store";
    const NAME: &'static str = "verbatim-kv";
    const VERSION: u32 = 2;
    type ServerOffer = ServerOffer;
    type Hello = Hello;
    type Accepted = Accepted;
}

impl service::ServerOffer for ServerOffer {
    fn protocol(&self) -> &str {
        &self.protocol
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn max_window(&self) -> usize {
        self.max_window
    }
}

impl service::Hello for Hello {
    fn version(&self) -> u32 {
        self.version
    }

    fn window(&self) -> usize {
        self.window
    }
}

/// The server's first message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerOffer {
    /// [`RendezvousProtocol`]'s [`Protocol::NAME`].
    pub protocol: String,
    /// [`RendezvousProtocol`]'s [`Protocol::VERSION`].
    pub version: u32,
    /// The server's design.
    pub design: Design,
    /// The largest window that a client may request.
    pub max_window: usize,
    /// Number of partitions, each with a worker: a client connects to all of them.
    pub partitions: usize,
    /// The seed of key hashes.
    #[serde(rename = "seed")]
    pub hash_seed: u64,
    /// The longest message that the server sends, in bytes.
    #[serde(rename = "max_answer")]
    pub max_answer_bytes: usize,
    /// The layout of request slots.
    #[serde(rename = "layout")]
    pub request_region_layout: rpc::herd::RequestRegionLayout,
}

/// The client's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`RendezvousProtocol`]'s [`Protocol::VERSION`].
    pub version: u32,
    /// The session's name: a random number that stays the same when the client reconnects.
    #[serde(rename = "session")]
    pub session_id: u64,
    /// Largest number of outstanding requests.
    pub window: usize,
    /// The longest message that the client can receive, in bytes.
    #[serde(rename = "answer")]
    pub max_answer_bytes: usize,
    /// The client's queue pairs for each partition.
    pub lanes: Vec<LaneHello>,
    /// The RC queue pair by which the client accesses memory, if the design has one.
    #[serde(rename = "rc")]
    pub memory_access_qp: Option<QpEndpoint>,
}

/// A client's queue pairs for one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneHello {
    /// The UC queue pair by which the client WRITEs requests.
    pub uc: QpEndpoint,
    /// The UD queue pair that receives answers.
    pub ud: QpEndpoint,
}

/// The server's answer: what a connected client needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The server's side of each partition.
    pub lanes: Vec<LaneAccepted>,
    /// The memory that the client may access itself, if the design has such memory.
    #[serde(rename = "reach")]
    pub memory: Option<RemotelyAccessibleMemory>,
}

/// Memory that a client accesses without the server's processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemotelyAccessibleMemory {
    /// The server's RC queue pair for this client.
    #[serde(rename = "endpoint")]
    pub server_rc_qp: QpEndpoint,
    /// The layout of the memory.
    #[serde(rename = "memory")]
    pub memory_layout: RemoteLayout,
}

/// The layout of the partitions' memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoteLayout {
    /// An index and a log per partition.
    Logs {
        /// The memory of each partition.
        partitions: Vec<RemoteIndexAndLog>,
        /// Bytes of an item with key and value of the expected lengths.
        item_bytes: usize,
    },
    /// Records of fixed size.
    Records {
        /// The memory of each partition.
        partitions: Vec<RemoteMemory>,
        /// The layout of the records.
        shape: RecordLayout,
        /// The parameters for changing records, in designs where clients do so.
        writes: Option<RecordWriteParameters>,
    },
}

/// The parameters for a client that changes records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordWriteParameters {
    /// The client's owner number in lock words.
    #[serde(rename = "owner")]
    pub lock_owner: u32,
    /// Milliseconds that the client may hold a lock while others wait for it.
    pub lease_ms: u16,
    /// The memory of the client's redo entries. The client writes a change there before it changes the record.
    #[serde(rename = "redo")]
    pub redo_entries: RemoteMemory,
}

/// A partition's index and log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteIndexAndLog {
    /// The index: buckets of 64 bytes.
    pub index: RemoteMemory,
    /// The log: items, each with a checksum.
    pub log: RemoteMemory,
}

/// The server's side of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneAccepted {
    /// The server's UC queue pair for this client.
    #[serde(rename = "endpoint")]
    pub server_uc_qp: QpEndpoint,
    /// This client's request slots.
    #[serde(rename = "slots")]
    pub request_slots: RemoteMemory,
    /// The layout of the request slots.
    #[serde(rename = "layout")]
    pub request_region_layout: rpc::herd::RequestRegionLayout,
}
