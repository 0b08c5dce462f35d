//! Errors of a connection.

use verbs::WcStatus;

/// Why a call failed. All but [`UnknownRequest`](Self::UnknownRequest),
/// [`InvalidReceiveCount`](Self::InvalidReceiveCount) and [`InvalidRange`](Self::InvalidRange) are errors of the
/// communicator: it fails from then on.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A verb failed.
    #[error("{0}")]
    Verb(String),
    /// A work request failed, mostly because the peer is gone.
    #[error(
        "a work request of queue pair {qpn} failed with {status}: the peer may have ended, or have deregistered memory \
         that it posted"
    )]
    Completion {
        /// The queue pair of this side.
        qpn: u32,
        /// Why.
        status: WcStatus,
    },
    /// The peer closed its end, or its process ended, with requests under way.
    #[error("the peer closed the connection while {0} were under way")]
    PeerGone(&'static str),
    /// The peer wrote what makes no sense.
    #[error("the peer broke the protocol: {0}")]
    Protocol(String),
    /// A send is longer than the receive that it matches.
    #[error(
        "a send of {len} bytes with tag {tag} matches a receive of {room} bytes: post a larger receive"
    )]
    MessageTooLong {
        /// Bytes sent.
        len: u32,
        /// Bytes of the receive.
        room: u32,
        /// The tag of both.
        tag: u32,
    },
    /// The ranks call different collectives, or reduce different elements.
    #[error(
        "this rank calls {ours}, and another rank calls {theirs}: all ranks must call the same collectives in the same \
         order, with equal element types and reductions"
    )]
    CallsDiffer {
        /// The call of this rank.
        ours: String,
        /// The call of the other rank.
        theirs: String,
    },
    /// The rendezvous failed.
    #[error("rendezvous with {peer}: {reason}")]
    Rendezvous {
        /// The peer's address.
        peer: String,
        /// What happened.
        reason: String,
    },
    /// The caller gave the rendezvous up.
    #[error("the rendezvous of a group was given up")]
    RendezvousGivenUp,
    /// A request that was tested to its end, or never made here.
    #[error(
        "this request is not under way: it was tested to its end, or belongs to another communicator"
    )]
    UnknownRequest,
    /// A group of no receive, or of too many.
    #[error("{0} receives in a group: there may be 1 to 8")]
    InvalidReceiveCount(usize),
    /// A part of a memory region that is not there.
    #[error("{0}")]
    InvalidRange(String),
    /// Nothing came in time.
    #[error("{what} did not come to its end within {ms} ms")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long, in milliseconds.
        ms: u128,
    },
}

verbs::from_verb_errors!(Error);

impl From<verbs::VerbError> for Error {
    fn from(e: verbs::VerbError) -> Self {
        Self::Verb(e.to_string())
    }
}

impl From<verbs::PostError> for Error {
    fn from(e: verbs::PostError) -> Self {
        Self::Verb(e.to_string())
    }
}

impl From<verbs::RangeError> for Error {
    fn from(e: verbs::RangeError) -> Self {
        Self::InvalidRange(e.to_string())
    }
}
