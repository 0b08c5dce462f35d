//! The messages by which clients find a server and connect to it: lines of JSON over TCP.
//!
//! Every message is one JSON object on one line, at most 64 KiB.
//!
//! 1. The server speaks first: [`ServerOffer`] describes the server and what it offers.
//! 2. The client answers with [`Hello`]: its request, and the endpoints of its queue pairs.
//! 3. The server connects its side and [answers](service::Answer) with its endpoints and keys ([`Accepted`]), or with
//!    the reason for refusing.
//!
//! Then the connection stays open and silent while the client uses the sequencer. When it closes, the server frees the
//! client's resources.
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
pub enum RendezvousProtocol {}

impl Protocol for RendezvousProtocol {
    const SERVICE: &'static str = "sequencer";
    const NAME: &'static str = "verbatim-sequencer";
    const VERSION: u32 = 1;
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

/// The server's first message: its protocol, version, designs and largest window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerOffer {
    /// [`RendezvousProtocol`]'s [`Protocol::NAME`].
    pub protocol: String,
    /// [`RendezvousProtocol`]'s [`Protocol::VERSION`].
    pub version: u32,
    /// The designs that the server serves.
    pub designs: Vec<Design>,
    /// The largest window that a client may request.
    pub max_window: usize,
}

/// The client's message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`RendezvousProtocol`]'s [`Protocol::VERSION`].
    pub version: u32,
    /// The design that the client requests.
    pub design: Design,
    /// Largest number of outstanding requests.
    pub window: usize,
    /// True if the client sends to all workers through one queue pair (`rpc` designs).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "spread")]
    pub requests_rotate_over_workers: bool,
    /// The client's RC queue pair (`atomics`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "rc")]
    pub rc_endpoint: Option<QpEndpoint>,
    /// The client's UC queue pair (`rpc` designs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "uc")]
    pub uc_endpoint: Option<QpEndpoint>,
    /// The client's UD queue pair (all designs but `atomics`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "ud")]
    pub ud_endpoint: Option<QpEndpoint>,
}

/// The server's answer: what a connected client needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// The design.
    pub design: Design,
    /// The first number of this server.
    #[serde(rename = "start")]
    pub first_number: u64,
    /// The approximate next number, for a first guess.
    #[serde(rename = "next")]
    pub approximate_next_number: u64,
    /// Numbers below this can be given.
    #[serde(rename = "end")]
    pub end_of_numbers: u64,
    /// The server's queue pair for this client: RC (`atomics`), UC (`rpc` designs), UD (`spec-s0`).
    pub endpoint: QpEndpoint,
    /// The memory of the counter (`atomics`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "counter")]
    pub counter_memory: Option<RemoteMemory>,
    /// The memory of the limit word (`atomics`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "limit")]
    pub limit_memory: Option<RemoteMemory>,
    /// This client's request slots (`rpc` designs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "slots")]
    pub request_slots: Option<RemoteMemory>,
    /// True if answers may overtake each other (`spec-s0`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "unordered")]
    pub answers_may_be_reordered: bool,
    /// This client's request slots at each worker, if the client sends to all of them (`rpc` designs).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(rename = "workers")]
    pub request_slots_by_worker: Vec<RemoteMemory>,
    /// The layout of the request slots (`rpc` designs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(rename = "layout")]
    pub request_region_layout: Option<rpc::herd::RequestRegionLayout>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_lines_parse() {
        let offer = r#"{"protocol":"verbatim-sequencer","version":1,"designs":["spec-s0"],"max_window":4096}"#;
        let w: ServerOffer = serde_json::from_str(offer).expect("parses");
        assert_eq!(serde_json::to_string(&w).expect("serializes"), offer);
        let hello = r#"{"version":1,"design":"spec-s0","window":64,"ud":{"qpn":17,"psn":1,"lid":0,"gid":"::ffff:10.0.0.7","mtu":1024,"qkey":4711}}"#;
        let h: Hello = serde_json::from_str(hello).expect("parses");
        assert_eq!(serde_json::to_string(&h).expect("serializes"), hello);
    }
}
