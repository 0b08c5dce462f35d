//! Requests of this side that the peer has not answered.

use crate::incoming_room::ReservedRoom;
use crate::memory::Tensor;
use crate::message::TensorName;
use crate::pending_operation::PendingOperation;
use crate::store::OfferedTensor;

/// A caller's request to a peer.
#[derive(Debug)]
pub(crate) enum CallerRequest {
    /// A tensor; into this memory, if there is some.
    Get(TensorName, bool, Option<Tensor>),
    /// That it stores one.
    Put(TensorName, Tensor),
    /// That it removes one.
    Remove(TensorName),
}

/// Memory of a caller that a transfer may still use after the request was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallerMemoryInUse {
    None,
    /// A peer may WRITE into the destination.
    Destination,
    /// Stripes of an offered tensor are being sent.
    Source,
}

/// A request of this side.
#[derive(Debug)]
pub(super) enum OutstandingRequest {
    Get(OutstandingGet),
    IncomingOffer(IncomingOffer),
    Offer(TensorName, Tensor, PendingOperation),
    /// An offer whose caller has gone. The peer has not answered yet.
    WithdrawnOffer,
    Remove(TensorName, PendingOperation),
}

/// An offered tensor that comes.
#[derive(Debug)]
pub(super) struct IncomingOffer {
    pub(super) peer_offer_index: u32,
    pub(super) name: TensorName,
    pub(super) destination: Tensor,
    pub(super) received_stripes: u64,
    pub(super) _room: ReservedRoom<OfferedTensor>,
}

/// A tensor that was asked for.
#[derive(Debug)]
pub(super) struct OutstandingGet {
    pub(super) name: TensorName,
    pub(super) waits_for_publication: bool,
    pub(super) destination: Option<Tensor>,
    /// The destination is the caller's: it can be no other.
    pub(super) is_destination_caller_memory: bool,
    pub(super) received_stripes: u64,
    /// None once the caller has gone.
    pub(super) pending_operation: Option<PendingOperation>,
}

impl OutstandingRequest {
    /// Returns the operation of the caller, if there still is one.
    pub(super) fn into_pending_operation(self) -> Option<PendingOperation> {
        match self {
            Self::Get(get) => get.pending_operation,
            Self::Offer(_, _, pending) | Self::Remove(_, pending) => Some(pending),
            Self::IncomingOffer(..) | Self::WithdrawnOffer => None,
        }
    }
}
