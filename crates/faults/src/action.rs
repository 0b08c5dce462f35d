//! The actions of rules.

use std::net::IpAddr;

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// An action on a packet.
    Packet(PacketAction),
    /// The verb fails with this errno.
    Errno(i32),
    /// A work request completes with this `ibv_wc_status` and is not executed.
    CompleteWithStatus(u32),
    /// The receiver of a work request is not ready, for this number of nanoseconds.
    ReceiverNotReady(u64),
    /// A completion is delayed by a random number of nanoseconds between the two values.
    DelayCompletion(u64, u64),
    /// An incident of the device or the process.
    Incident(Incident),
}

/// An action on a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PacketAction {
    /// The packet is lost.
    Drop,
    /// The packet arrives twice.
    Duplicate,
    /// One bit of the packet is inverted.
    Corrupt,
    /// The packet is marked as having experienced congestion (ECN).
    Ecn,
    /// The packet is delayed by a random number of nanoseconds between the two values; later
    /// packets of its stream wait.
    Delay(u64, u64),
    /// The packet is delayed by a random number of nanoseconds between the two values; later
    /// packets overtake it.
    Reorder(u64, u64),
    /// All packets that match the rule share this rate in bits per second. A packet that would wait
    /// longer than 100 ms is lost.
    LimitRate(u64),
    /// The packet is lost if it goes between the two addresses, in either direction.
    Partition(NetworkPartition),
}

/// Two addresses between which no packet passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkPartition {
    /// The first address.
    pub first_address: IpAddr,
    /// The second address.
    pub second_address: IpAddr,
}

/// The longest time in nanoseconds that a packet waits at a limited rate.
pub(crate) const MAX_RATE_QUEUE_NS: u64 = 100_000_000;

/// An incident of the device or the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// This `ibv_event_type` is raised.
    RaiseEvent(u32),
    /// The process stops for this number of nanoseconds.
    PauseProcess(u64),
    /// The link is down for this number of nanoseconds, or permanently if the value is `None`.
    LinkDown(Option<u64>),
    /// The link is up again. No rule has this action; the injector reports it at the end of
    /// [`LinkDown`](Self::LinkDown).
    LinkUp,
}

impl PacketAction {
    /// Returns true if the action applies to both directions unless the rule names one.
    pub(crate) fn applies_to_both_directions(self) -> bool {
        matches!(self, Self::Partition(_))
    }
}
