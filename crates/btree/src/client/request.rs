//! An outstanding request and its answer.

use std::time::Instant;

use crate::key_or_value::KeyOrValue;
use crate::tree::MovedRange;
use crate::wire::Operation;

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a, T: KeyOrValue = u64> {
    /// The value of the key, or `None` if the key is absent.
    Value(Option<T>),
    /// The change was made, or its condition did not hold.
    Changed {
        /// True if the key was present before.
        found: bool,
    },
    /// Entries in the order of their keys.
    Entries {
        /// The entries.
        entries: &'a [(T, T)],
        /// The key at which to continue, if more entries may follow.
        next: Option<T>,
    },
    /// The key belongs to another server; nothing was changed.
    Moved(MovedRange<T>),
    /// A step of a handover was executed.
    HandoverStepDone {
        /// The version of the handover for [`HandoverStep::Cede`](crate::HandoverStep::Cede); otherwise 0.
        version: u64,
    },
    /// A step of a handover was refused: the range is not, or no longer, in the state that the step requires.
    HandoverStepRefused,
    /// The store is full; nothing was changed.
    StoreFull,
    /// No answer arrived in time. A change may have been made; it will not be made later.
    NoAnswerInTime,
}

/// An answered request.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a, T: KeyOrValue = u64> {
    /// The caller's token of the request.
    pub token: u64,
    /// The answer.
    pub answer: Answer<'a, T>,
    /// The approximate time of submission: the pipeline's last clock reading before it.
    pub submitted_at: Instant,
    /// The time at which the answer was seen.
    pub completed_at: Instant,
}

/// Statistics of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ClientStats {
    /// Requests that were sent again over new queue pairs.
    #[serde(rename = "retries")]
    pub resent_requests: u64,
    /// Number of reconnects.
    pub reconnects: u64,
    /// Requests that got no answer before their deadline.
    #[serde(rename = "lost")]
    pub unanswered_requests: u64,
    /// Answers that belong to no outstanding request.
    #[serde(rename = "discarded")]
    pub discarded_answers: u64,
    /// Requests that found a node locked for too long, or frozen, and were sent again.
    #[serde(rename = "busy")]
    pub requests_resent_after_busy_node: u64,
    /// READs of nodes.
    #[serde(rename = "reads")]
    pub node_reads: u64,
    /// Nodes that changed while they were READ, and were READ again.
    #[serde(rename = "torn")]
    pub torn_node_reads: u64,
    /// Walks that reached a wrong node: they went right or restarted.
    #[serde(rename = "stale")]
    pub walks_at_wrong_node: u64,
    /// Requests that READs could not decide and that the server executed.
    #[serde(rename = "asked")]
    pub requests_passed_to_server: u64,
    /// Requests that the client began with READs.
    #[serde(rename = "by_reads")]
    pub requests_begun_by_reads: u64,
    /// Lock attempts that found the lock taken.
    #[serde(rename = "contended")]
    pub failed_lock_attempts: u64,
}

impl ClientStats {
    /// Adds the counters of another client.
    pub fn add(&mut self, other: &Self) {
        self.resent_requests += other.resent_requests;
        self.reconnects += other.reconnects;
        self.unanswered_requests += other.unanswered_requests;
        self.discarded_answers += other.discarded_answers;
        self.requests_resent_after_busy_node += other.requests_resent_after_busy_node;
        self.node_reads += other.node_reads;
        self.torn_node_reads += other.torn_node_reads;
        self.walks_at_wrong_node += other.walks_at_wrong_node;
        self.requests_passed_to_server += other.requests_passed_to_server;
        self.requests_begun_by_reads += other.requests_begun_by_reads;
        self.failed_lock_attempts += other.failed_lock_attempts;
    }
}

/// An outstanding request, or a free slot.
#[derive(Debug)]
pub(super) struct RequestSlot<T: KeyOrValue> {
    pub(super) caller_token: u64,
    /// True if the request is outstanding.
    pub(super) is_outstanding: bool,
    pub(super) op: Operation<T>,
    pub(super) tree: u8,
    pub(super) lane_index: usize,
    /// The number of the change in its lane; 0 for other requests.
    pub(super) change_seq: u32,
    /// The position in the order of submission.
    pub(super) submission_number: u64,
    /// True if the client READs nodes for the request.
    pub(super) uses_reads: bool,
    /// Entries of a SCAN from earlier answers.
    pub(super) earlier_entry_count: usize,
    /// Entries of a SCAN so far, earlier answers included.
    pub(super) entries: Vec<(T, T)>,
    pub(super) received_entry_count: usize,
    /// The first entry numbers of the messages that arrived, if the answer is not complete.
    pub(super) received_first_entry_numbers: Vec<usize>,
    pub(super) submitted_at: Instant,
}

impl<T: KeyOrValue> RequestSlot<T> {
    /// Returns the completion of this request.
    #[inline]
    pub(super) fn completion<'a>(&self, answer: Answer<'a, T>, seen: Instant) -> Completion<'a, T> {
        Completion {
            token: self.caller_token,
            answer,
            submitted_at: self.submitted_at,
            completed_at: seen,
        }
    }

    /// Returns a slot of the window without a request.
    pub(super) fn unused(now: Instant) -> Self {
        Self {
            caller_token: 0,
            is_outstanding: false,
            op: Operation::ReadServerLoad,
            tree: 0,
            lane_index: 0,
            change_seq: 0,
            submission_number: 0,
            uses_reads: false,
            earlier_entry_count: 0,
            entries: Vec::new(),
            received_entry_count: 0,
            received_first_entry_numbers: Vec::new(),
            submitted_at: now,
        }
    }
}
