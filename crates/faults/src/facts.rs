//! The facts of an occurrence, which an injector decides about.

use std::net::IpAddr;

/// A queue pair of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePair {
    /// Its number in the order in which the process has created its queue pairs, from 1 on; 0: unknown.
    pub number: u32,
    /// Its queue pair number.
    pub qpn: u32,
}

/// The other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: Option<IpAddr>,
    /// Its queue pair number.
    pub qpn: Option<u32>,
}

/// Whether a packet leaves this process or reaches it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// It leaves.
    #[default]
    Send,
    /// It arrives.
    Receive,
}

/// A packet.
#[derive(Clone, Copy, Debug)]
pub struct PacketFacts {
    /// Whether it leaves or arrives.
    pub direction: Direction,
    /// Where it comes from.
    pub source: IpAddr,
    /// Where it goes.
    pub destination: IpAddr,
    /// The queue pair of this process that sends it or that it is for.
    pub queue_pair: QueuePair,
    /// The queue pair at the other end, where it is known.
    pub peer_qpn: Option<u32>,
    /// One of [`OPERATIONS`](crate::OPERATIONS).
    pub operation: &'static str,
    /// Its length without the link's header.
    pub bytes: u32,
}

impl PacketFacts {
    /// The address at the other end.
    pub(crate) fn peer(&self) -> Peer {
        let address = match self.direction {
            Direction::Send => self.destination,
            Direction::Receive => self.source,
        };
        Peer {
            address: Some(address),
            qpn: self.peer_qpn,
        }
    }
}

/// A call of a verb.
#[derive(Clone, Copy, Debug)]
pub struct VerbFacts {
    /// Its name, such as `ibv_reg_mr`.
    pub name: &'static str,
    /// The queue pair that it is called for, if it is.
    pub queue_pair: QueuePair,
}

impl VerbFacts {
    /// A verb that is not called for a queue pair.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            queue_pair: QueuePair { number: 0, qpn: 0 },
        }
    }
}

/// A work request that is posted.
#[derive(Clone, Copy, Debug)]
pub struct WorkFacts {
    /// One of [`OPERATIONS`](crate::OPERATIONS).
    pub operation: &'static str,
    /// Where it is posted; of a shared receive queue the number 0.
    pub queue_pair: QueuePair,
    /// The queue pair's peer, or the destination of a datagram, where it is known.
    pub peer: Peer,
}

/// A completion that is about to be delivered.
#[derive(Clone, Copy, Debug)]
pub struct CompletionFacts {
    /// One of [`OPERATIONS`](crate::OPERATIONS).
    pub operation: &'static str,
    /// The queue pair of its work request.
    pub queue_pair: QueuePair,
}
