//! How clients find a server: a few lines of JSON over TCP.
//!
//! Every message is one JSON object on one line, at most 64 KiB.
//!
//! 1. The server speaks first: [`Welcome`], what it is and offers.
//! 2. The client answers with [`Hello`]: what it wants, and the endpoints of its queue pairs.
//! 3. The server connects its side and [answers](service::Answer) with its endpoints and keys ([`Accepted`]), or
//!    with the reason why not.
//!
//! Then the connection stays open and silent for as long as the client wants its numbers. When it closes,
//! for whatever reason, the server frees what the client had.
//!
//! ```text
//! < {"protocol":"verbatim-sequencer","version":1,"designs":["spec-s0"],"max_window":4096}
//! > {"version":1,"design":"spec-s0","window":64,"ud":{"qpn":17,"psn":1,"lid":0,"gid":"::ffff:10.0.0.7","mtu":1024,"qkey":4711}}
//! < {"accepted":{"design":"spec-s0","start":0,"next":1234,"end":18446744073709551615,"endpoint":{…}}}
//! ```

use serde::{Deserialize, Serialize};
use service::Protocol;
use verbs::{QpEndpoint, RemoteMemory};

use crate::Design;

/// The messages of the sequencer's rendezvous.
#[derive(Debug, Clone, Copy)]
pub enum Rendezvous {}

impl Protocol for Rendezvous {
    const SERVICE: &'static str = "sequencer";
    const NAME: &'static str = "verbatim-sequencer";
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
    /// The designs that it serves.
    pub designs: Vec<Design>,
    /// The largest window a client may ask for.
    pub max_window: usize,
}

/// The client's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`Rendezvous`]'s [`Protocol::VERSION`].
    pub version: u32,
    /// The design it wants.
    pub design: Design,
    /// Requests outstanding at most.
    pub window: usize,
    /// Whether it sends to all workers, through one queue pair (`rpc` and its kin).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub spread: bool,
    /// Its RC queue pair (`atomics`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rc: Option<QpEndpoint>,
    /// Its UC queue pair (`rpc` and its kin).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uc: Option<QpEndpoint>,
    /// Its UD queue pair (all but `atomics`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ud: Option<QpEndpoint>,
}

/// What a connected client needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The design.
    pub design: Design,
    /// The first number of this server.
    pub start: u64,
    /// About the next number: good for a first guess.
    pub next: u64,
    /// Numbers below this are given.
    pub end: u64,
    /// Its queue pair for this client: RC (`atomics`), UC (`rpc` and its kin), UD (`spec-s0`).
    pub endpoint: QpEndpoint,
    /// The counter (`atomics`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter: Option<RemoteMemory>,
    /// The limit word (`atomics`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<RemoteMemory>,
    /// This client's request slots (`rpc` and its kin).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<RemoteMemory>,
    /// Whether answers may overtake each other (`spec-s0`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unordered: bool,
    /// This client's request slots at each worker, if it sends to all of them (`rpc` and its kin).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workers: Vec<RemoteMemory>,
    /// The shape of the slots (`rpc` and its kin).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<rpc::herd::Layout>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_lines_parse() {
        let welcome = r#"{"protocol":"verbatim-sequencer","version":1,"designs":["spec-s0"],"max_window":4096}"#;
        let w: Welcome = serde_json::from_str(welcome).expect("parses");
        assert_eq!(serde_json::to_string(&w).expect("serializes"), welcome);
        let hello = r#"{"version":1,"design":"spec-s0","window":64,"ud":{"qpn":17,"psn":1,"lid":0,"gid":"::ffff:10.0.0.7","mtu":1024,"qkey":4711}}"#;
        let h: Hello = serde_json::from_str(hello).expect("parses");
        assert_eq!(serde_json::to_string(&h).expect("serializes"), hello);
    }
}
