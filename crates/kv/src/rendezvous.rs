//! How clients find a server: the messages of its rendezvous.
//!
//! 1. The server speaks first: [`Welcome`], what it is and offers.
//! 2. The client answers with [`Hello`]: its session, and the endpoints of its queue pairs, a pair for each worker.
//! 3. The server connects its side and [answers](service::Answer) with its endpoints and keys ([`Accepted`]), or
//!    with the reason why not.
//!
//! Then the connection stays open and silent. When it closes, for whatever reason, the server frees what the client
//! had, but for what it remembers of its session's changes.

use serde::{Deserialize, Serialize};
use service::Protocol;
use verbs::{QpEndpoint, RemoteMemory};

use crate::Design;
use crate::store::Shape;

/// The messages of the key-value store's rendezvous.
#[derive(Debug, Clone, Copy)]
pub enum Rendezvous {}

impl Protocol for Rendezvous {
    const SERVICE: &'static str = "key-value store";
    const NAME: &'static str = "verbatim-kv";
    const VERSION: u32 = 2;
    type Welcome = Welcome;
    type Hello = Hello;
    type Accepted = Accepted;
}

impl service::Welcome for Welcome {
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
pub struct Welcome {
    /// [`Rendezvous`]'s [`Protocol::NAME`].
    pub protocol: String,
    /// [`Rendezvous`]'s [`Protocol::VERSION`].
    pub version: u32,
    /// The design that it serves.
    pub design: Design,
    /// The largest window a client may ask for.
    pub max_window: usize,
    /// Partitions, each with a worker: a client connects to all of them.
    pub partitions: usize,
    /// What hashes of keys start from.
    pub seed: u64,
    /// The longest message it sends.
    pub max_answer: usize,
    /// The shape of request slots.
    pub layout: rpc::herd::Layout,
}

/// The client's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`Rendezvous`]'s [`Protocol::VERSION`].
    pub version: u32,
    /// The name of its session: random, and the same when it connects again.
    pub session: u64,
    /// Requests outstanding at most.
    pub window: usize,
    /// The longest message that it takes.
    pub answer: usize,
    /// Its queue pairs, for each partition.
    pub lanes: Vec<LaneHello>,
    /// RC: it READs from there, where the design does.
    pub rc: Option<QpEndpoint>,
}

/// A client's queue pairs for one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneHello {
    /// UC: it WRITEs requests from there.
    pub uc: QpEndpoint,
    /// UD: answers go there.
    pub ud: QpEndpoint,
}

/// What a connected client needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// For each partition.
    pub lanes: Vec<LaneAccepted>,
    /// The memory that it may reach by itself, where the design says so.
    #[serde(rename = "reach")]
    pub memory: Option<RemoteAccess>,
}

/// Memory that clients reach without the server's processor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteAccess {
    /// The server's RC queue pair for this client.
    pub endpoint: QpEndpoint,
    /// What is there.
    pub memory: RemoteLayout,
}

/// What clients find in the memory of the partitions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemoteLayout {
    /// An index and a log.
    Logs {
        /// Of each partition.
        partitions: Vec<RemoteLog>,
        /// Bytes of an item of the expected length.
        item_bytes: usize,
    },
    /// Records.
    Records {
        /// Of each partition.
        partitions: Vec<RemoteMemory>,
        /// What they look like.
        shape: Shape,
        /// What a client needs to change them, where clients do.
        writes: Option<Writes>,
    },
}

/// What a client needs to change records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writes {
    /// Its name in locks.
    pub owner: u32,
    /// How long it may have one while others wait.
    pub lease_ms: u16,
    /// Where it writes a change down before it makes it.
    pub redo: RemoteMemory,
}

/// A partition's index and log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteLog {
    /// Buckets of 64 bytes.
    pub index: RemoteMemory,
    /// Items, each with a checksum.
    pub log: RemoteMemory,
}

/// The server's side of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneAccepted {
    /// Its UC queue pair for this client.
    pub endpoint: QpEndpoint,
    /// This client's request slots.
    pub slots: RemoteMemory,
    /// Their shape.
    pub layout: rpc::herd::Layout,
}
