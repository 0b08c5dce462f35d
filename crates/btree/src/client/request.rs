//! A request under way, and what comes of it.

use std::time::Instant;

use crate::tree::Elsewhere;
use crate::wire::Op;

/// How a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// The value of the key, if it is there.
    Value(Option<u64>),
    /// A change was made, or its condition did not hold: whether the key was there before.
    Changed {
        /// Whether the key was there.
        found: bool,
    },
    /// Entries in the order of their keys.
    Entries {
        /// The entries.
        entries: &'a [(u64, u64)],
        /// The key to go on from, if there may be more.
        next: Option<u64>,
    },
    /// The key belongs to another server; nothing was changed.
    Moved(Elsewhere),
    /// A step of a handover was made, with this version.
    Ceded {
        /// The version of the handover; 0 of another step.
        version: u64,
    },
    /// A step of a handover is refused: the range is not, or no longer, what the step needs it to be.
    Refused,
    /// The store is full; nothing was changed.
    Full,
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
    /// Requests that found a node locked for long, and were sent again.
    pub busy: u64,
    /// READs of nodes.
    pub reads: u64,
    /// Nodes that were being changed while they were READ, and were READ again.
    pub torn: u64,
    /// Nodes that were kept and old: the walk went right, or started again.
    pub stale: u64,
    /// Requests that READs did not decide, so that the server was asked.
    pub asked: u64,
    /// Requests that the client began by READs.
    pub by_reads: u64,
    /// Locks that others had when this client wanted them.
    pub contended: u64,
}

impl ClientStats {
    /// Adds what another one has had to do.
    pub fn add(&mut self, other: &Self) {
        self.retries += other.retries;
        self.reconnects += other.reconnects;
        self.lost += other.lost;
        self.discarded += other.discarded;
        self.busy += other.busy;
        self.reads += other.reads;
        self.torn += other.torn;
        self.stale += other.stale;
        self.asked += other.asked;
        self.by_reads += other.by_reads;
        self.contended += other.contended;
    }
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) token: u64,
    /// Whether it is under way.
    pub(super) used: bool,
    pub(super) op: Op,
    pub(super) tree: u8,
    pub(super) lane: usize,
    /// Number of the change; 0 of others.
    pub(super) seq: u32,
    /// When it was submitted, among the others.
    pub(super) order: u64,
    /// Whether the client READs nodes for it.
    pub(super) by_reads: bool,
    /// Entries that a SCAN has found before this answer.
    pub(super) kept: usize,
    /// Entries of a SCAN, and how many of this answer have come.
    pub(super) entries: Vec<(u64, u64)>,
    pub(super) came: usize,
    pub(super) sent: Instant,
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
            op: Op::Get { key: 0 },
            tree: 0,
            lane: 0,
            seq: 0,
            order: 0,
            by_reads: false,
            kept: 0,
            entries: Vec::new(),
            came: 0,
            sent: now,
        }
    }
}
