//! A request under way, and what comes of it.

use std::time::Instant;

/// How a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A GET found this.
    Value {
        /// The value.
        value: &'a [u8],
        /// Its version.
        version: u64,
    },
    /// A PUT set the value, which has this version now; a DELETE removed the one that had it.
    Done {
        /// The version.
        version: u64,
    },
    /// The key is not there.
    NotFound,
    /// The condition does not hold.
    Condition {
        /// The version that is there, 0 for none.
        version: u64,
    },
    /// The store is full.
    Full,
    /// Key or value are too long for the server, or the value for this client's messages.
    TooLong,
    /// No answer came in time. A change may have been made, and is not made later.
    Lost,
}

/// An answered request.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a> {
    /// What was given with the request.
    pub token: u64,
    /// How it went.
    pub answer: Answer<'a>,
    /// When it was sent, about: the time that the pipeline read last before.
    pub sent: Instant,
    /// When its answer was seen.
    pub seen: Instant,
}

/// What a client has had to do beside its requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ClientStats {
    /// Requests that were sent again over new queue pairs.
    pub retries: u64,
    /// Times that it connected again.
    pub reconnects: u64,
    /// Requests that got no answer before their deadline.
    pub lost: u64,
    /// Answers to no request.
    pub discarded: u64,
    /// Items that were being changed while they were READ, and were READ again.
    #[serde(default)]
    pub torn: u64,
    /// Requests that could not be carried out without the server, so that it was asked.
    #[serde(default)]
    pub asked: u64,
    /// Locks that others had when this client wanted them.
    #[serde(default)]
    pub contended: u64,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) token: u64,
    /// Whether it is under way.
    pub(super) used: bool,
    pub(super) is_get: bool,
    pub(super) lane: usize,
    /// Number of the change; 0 of a GET.
    pub(super) seq: u32,
    /// When it was submitted, among the others.
    pub(super) order: u64,
    /// Its bytes, in case they have to be sent again.
    pub(super) bytes: Vec<u8>,
    /// A value that comes in several messages, and how much of it has come.
    pub(super) chunks: Vec<u8>,
    pub(super) came: usize,
    pub(super) sent: Instant,
    /// When the connection broke it may have been made.
    pub(super) uncertain: bool,
}

impl Pending {
    /// The request is over, with this answer, which was seen at that time.
    #[inline]
    pub(super) fn completion<'a>(&self, answer: Answer<'a>, seen: Instant) -> Completion<'a> {
        Completion {
            token: self.token,
            answer,
            sent: self.sent,
            seen,
        }
    }

    /// A slot of the window without a request.
    pub(super) fn unused(now: Instant) -> Self {
        Self {
            token: 0,
            used: false,
            is_get: false,
            lane: 0,
            seq: 0,
            order: 0,
            bytes: Vec::new(),
            chunks: Vec::new(),
            came: 0,
            sent: now,
            uncertain: false,
        }
    }
}
