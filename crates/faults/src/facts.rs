//! Facts about packets, verbs, work requests and completions, from which an injector decides on
//! faults.

use std::net::IpAddr;

/// A queue pair of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairIds {
    /// Number of the queue pair in the order in which the process created its queue pairs, from 1;
    /// 0 if unknown.
    pub creation_number: u32,
    /// The queue pair number.
    pub qpn: u32,
}

/// The peer of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerIds {
    /// The peer's address.
    pub address: Option<IpAddr>,
    /// The peer's queue pair number.
    pub qpn: Option<u32>,
}

/// The direction of a packet, as seen from this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// The packet leaves this process.
    #[default]
    Send,
    /// The packet arrives at this process.
    Receive,
}

/// A packet that is sent or received.
#[derive(Clone, Copy, Debug)]
pub struct PacketFacts {
    /// The direction of the packet.
    pub direction: Direction,
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The queue pair of this process that sends or receives the packet.
    pub queue_pair: QueuePairIds,
    /// The queue pair number of the peer, if known.
    pub peer_qpn: Option<u32>,
    /// The operation, one of [`OPERATIONS`](crate::OPERATIONS).
    pub operation: &'static str,
    /// The length of the packet in bytes, without the link-layer header.
    pub len_bytes: u32,
}

impl PacketFacts {
    /// Returns the peer: the destination of a sent packet, or the source of a received packet.
    pub(crate) fn peer(&self) -> PeerIds {
        let address = match self.direction {
            Direction::Send => self.destination,
            Direction::Receive => self.source,
        };
        PeerIds {
            address: Some(address),
            qpn: self.peer_qpn,
        }
    }
}

/// A call of a verb.
#[derive(Clone, Copy, Debug)]
pub struct VerbCallFacts {
    /// The verb's name, such as `ibv_reg_mr`.
    pub verb_name: &'static str,
    /// The queue pair for which the verb is called, if any.
    pub queue_pair: QueuePairIds,
}

impl VerbCallFacts {
    /// Returns a call that concerns no queue pair.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            verb_name: name,
            queue_pair: QueuePairIds {
                creation_number: 0,
                qpn: 0,
            },
        }
    }
}

/// A work request that the program posts.
#[derive(Clone, Copy, Debug)]
pub struct WorkRequestFacts {
    /// The operation, one of [`OPERATIONS`](crate::OPERATIONS).
    pub operation: &'static str,
    /// The queue pair of the work request; its number is 0 for a shared receive queue.
    pub queue_pair: QueuePairIds,
    /// The queue pair's peer, or the destination of a datagram, if known.
    pub peer: PeerIds,
}

/// A completion that is about to be delivered to the program.
#[derive(Clone, Copy, Debug)]
pub struct CompletionFacts {
    /// The operation, one of [`OPERATIONS`](crate::OPERATIONS).
    pub operation: &'static str,
    /// The queue pair of the work request.
    pub queue_pair: QueuePairIds,
}
