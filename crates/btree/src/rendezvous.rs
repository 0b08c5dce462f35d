//! How clients find a server: the messages of its rendezvous.
//!
//! 1. The server speaks first: [`Welcome`], what it is and offers.
//! 2. The client answers with [`Hello`]: its session, and the endpoints of its queue pairs, a pair for each worker.
//! 3. The server connects its side and [answers](service::Answer) with its endpoints and keys ([`Accepted`]), or with the
//!    reason why not.
//!
//! Then the connection stays open and silent. When it closes, the server frees what the client had, but for what it
//! remembers of its session's changes.

use serde::{Deserialize, Serialize};
use service::Protocol;
use verbs::{QpEndpoint, RemoteMemory};

/// The messages of the B-tree's rendezvous.
#[derive(Debug, Clone, Copy)]
pub enum Rendezvous {}

impl Protocol for Rendezvous {
    const SERVICE: &'static str = "B-tree";
    const NAME: &'static str = "verbatim-btree";
    const VERSION: u32 = 1;
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
    /// A random number: another one after the server was started anew, and knows nothing of before.
    pub server: u64,
    /// The largest window a client may ask for.
    pub max_window: usize,
    /// Workers: a client connects to all of them.
    pub workers: usize,
    /// Trees.
    pub trees: usize,
    /// Bytes of a node.
    pub node_bytes: usize,
    /// The longest message it sends.
    pub max_answer: usize,
    /// The shape of request slots.
    pub layout: rpc::herd::Layout,
    /// Whether clients may READ nodes.
    pub reads: bool,
    /// Whether clients may lock and WRITE leaves.
    pub writes: bool,
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
    /// Its queue pairs, for each worker.
    pub lanes: Vec<LaneHello>,
    /// RC: it READs from there, if it does.
    pub rc: Option<QpEndpoint>,
}

/// A client's queue pairs for one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneHello {
    /// UC: it WRITEs requests from there.
    pub uc: QpEndpoint,
    /// UD: answers go there.
    pub ud: QpEndpoint,
}

/// The server's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Its side of the lanes.
    pub lanes: Vec<LaneAccepted>,
    /// What the client READs by, if it does.
    pub memory: Option<RemoteNodes>,
}

/// The server's side of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneAccepted {
    /// Its UC queue pair for this client.
    pub endpoint: QpEndpoint,
    /// This client's request slots.
    pub slots: RemoteMemory,
    /// Their shape.
    pub layout: rpc::herd::Layout,
}

/// Nodes that a client READs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteNodes {
    /// The server's RC queue pair for this client.
    pub endpoint: QpEndpoint,
    /// The header and all nodes.
    pub nodes: RemoteMemory,
    /// What the client needs to change leaves, if it may.
    pub writes: Option<Writes>,
}

/// What a client needs to change leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writes {
    /// Its name in locks.
    pub owner: u32,
    /// How long it may have one while others wait.
    pub lease_ms: u16,
    /// Where it writes a change down before it makes it: an entry for each request of its window.
    pub redo: RemoteMemory,
}
