//! How peers find each other: the messages of the crate `service`, over TCP.

use serde::{Deserialize, Serialize};
use service::Protocol;
use verbs::QpEndpoint;

/// The rendezvous of tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RendezvousProtocol {}

/// The first message of the listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerHello {
    protocol: String,
    version: u32,
    /// Maximum number of data queue pairs that the listener accepts.
    pub(crate) max_queue_pairs: usize,
}

/// The first message of the connecting side, with its queue pairs: the first for messages, the others for data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    version: u32,
    /// Host name and process of the connecting side, as error messages show them.
    pub(crate) name: String,
    pub(crate) endpoints: Vec<QpEndpoint>,
}

/// The queue pairs of the listener, in the same order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AcceptReply {
    pub(crate) endpoints: Vec<QpEndpoint>,
}

impl ServerHello {
    pub(crate) fn new(max_queue_pairs: usize) -> Self {
        Self {
            protocol: RendezvousProtocol::NAME.to_owned(),
            version: RendezvousProtocol::VERSION,
            max_queue_pairs,
        }
    }
}

impl Hello {
    pub(crate) fn new(name: String, endpoints: Vec<QpEndpoint>) -> Self {
        Self {
            version: RendezvousProtocol::VERSION,
            name,
            endpoints,
        }
    }
}

impl Protocol for RendezvousProtocol {
    const SERVICE: &'static str = "tensor peer";
    const NAME: &'static str = "verbatim-tensor";
    const VERSION: u32 = 1;
    type ServerOffer = ServerHello;
    type Hello = Hello;
    type Accepted = AcceptReply;
}

impl service::ServerOffer for ServerHello {
    fn protocol(&self) -> &str {
        &self.protocol
    }
    fn version(&self) -> u32 {
        self.version
    }
    fn max_window(&self) -> usize {
        crate::requests::REQUESTS_MAX
    }
}

impl service::Hello for Hello {
    fn version(&self) -> u32 {
        self.version
    }
    fn window(&self) -> usize {
        self.endpoints.len()
    }
}
