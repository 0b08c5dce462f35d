//! What a rule does.

use std::net::IpAddr;

/// The action of a rule that applies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// Something happens to a packet.
    Packet(PacketAction),
    /// A verb is refused with this errno.
    Errno(i32),
    /// A work request completes with this `ibv_wc_status` and is not executed.
    Status(u32),
    /// The receiver of a work request is not ready for so many nanoseconds.
    ReceiverNotReady(u64),
    /// A completion is delayed by so many nanoseconds, from and to.
    Late(u64, u64),
    /// Something happens to the device or the process.
    Incident(Incident),
}

/// An action on a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PacketAction {
    /// It is lost.
    Drop,
    /// It comes twice.
    Duplicate,
    /// One bit of it is inverted.
    Corrupt,
    /// It is marked as having experienced congestion.
    Ecn,
    /// It is late by so many nanoseconds, from and to; those behind it wait.
    Delay(u64, u64),
    /// The same, but those behind it overtake it.
    Reorder(u64, u64),
    /// All packets share so many bits per second; what would wait longer than 100 ms is lost.
    Rate(u64),
    /// It is lost if it goes from the one to the other, or back.
    Partition(Partition),
}

/// Two addresses between which no packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// One end.
    pub one: IpAddr,
    /// The other end.
    pub other: IpAddr,
}

/// How long a packet waits for a limited rate at most.
pub(crate) const QUEUE_NS: u64 = 100_000_000;

/// An action on the device or the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// This `ibv_event_type` is raised.
    Event(u32),
    /// The process stops for so many nanoseconds.
    Pause(u64),
    /// The cable is pulled for so many nanoseconds, or for good.
    LinkDown(Option<u64>),
    /// The cable is back, which no rule says: the time of [`LinkDown`](Self::LinkDown) is over.
    LinkUp,
}

impl PacketAction {
    /// Whether this is done to packets of both directions where the rule does not say which.
    pub(crate) fn is_symmetric(self) -> bool {
        matches!(self, Self::Partition(_))
    }
}
