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

use crate::key_or_value::StringSizes;

/// The messages of the B-tree's rendezvous.
#[derive(Debug, Clone, Copy)]
pub enum RendezvousProtocol {}

impl Protocol for RendezvousProtocol {
    const SERVICE: &'static str = "B-tree";
    const NAME: &'static str = "verbatim-btree";
    const VERSION: u32 = 3;
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
    /// A random number that changes when the server restarts and has lost its memory of sessions.
    #[serde(rename = "server")]
    pub incarnation: u64,
    /// The largest window that a client may request.
    pub max_window: usize,
    /// Number of workers: a client connects to all of them.
    pub workers: usize,
    /// The server's place among those that share its keys.
    pub place: ServerPlace,
    /// Number of trees.
    pub trees: usize,
    /// Bytes of a node.
    pub node_bytes: usize,
    /// The limits of keys and values if they are byte strings; `None` if they are numbers.
    #[serde(rename = "strings")]
    pub string_limits: Option<StringSizes>,
    /// The longest message that the server sends, in bytes.
    #[serde(rename = "max_answer")]
    pub max_answer_bytes: usize,
    /// The layout of request slots.
    #[serde(rename = "layout")]
    pub request_region_layout: rpc::herd::RequestRegionLayout,
    /// True if clients may READ nodes.
    #[serde(rename = "reads")]
    pub allows_reads: bool,
    /// True if clients may lock and WRITE leaves.
    #[serde(rename = "writes")]
    pub allows_writes: bool,
}

/// The place of a server among those that share the keys of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerPlace {
    /// Its number, from 0.
    pub number: usize,
    /// Number of the servers.
    pub of: usize,
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
    /// The client's queue pairs for each worker.
    pub lanes: Vec<LaneHello>,
    /// The RC queue pair by which the client READs nodes, if any.
    #[serde(rename = "rc")]
    pub memory_access_qp: Option<QpEndpoint>,
}

/// A client's queue pairs for one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneHello {
    /// The UC queue pair by which the client WRITEs requests.
    pub uc: QpEndpoint,
    /// The UD queue pair that receives answers.
    pub ud: QpEndpoint,
}

/// The server's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The server's side of each lane.
    pub lanes: Vec<LaneAccepted>,
    /// The memory that the client may READ, if it asked for READs.
    #[serde(rename = "memory")]
    pub remote_nodes: Option<RemoteNodes>,
}

/// The server's side of one lane.
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

/// The nodes that a client READs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteNodes {
    /// The server's RC queue pair for this client.
    #[serde(rename = "endpoint")]
    pub server_rc_qp: QpEndpoint,
    /// The memory with the header and all nodes.
    pub nodes: RemoteMemory,
    /// The parameters for changing leaves, if the client may change them.
    #[serde(rename = "writes")]
    pub write_parameters: Option<LeafWriteParameters>,
}

/// The parameters for a client that changes leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafWriteParameters {
    /// The client's owner number in lock words.
    #[serde(rename = "owner")]
    pub lock_owner: u32,
    /// Milliseconds that the client may hold a lock while others wait for it.
    pub lease_ms: u16,
    /// The memory of the client's redo entries, one for each request of its window. The client writes a change there
    /// before it changes the leaf.
    #[serde(rename = "redo")]
    pub redo_entries: RemoteMemory,
}
