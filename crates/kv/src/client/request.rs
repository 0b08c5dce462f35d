//! An outstanding request and its answer.

use std::time::Instant;

/// The answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A GET found a value.
    Value {
        /// The value.
        value: &'a [u8],
        /// The version of the value.
        version: u64,
    },
    /// A PUT set the value, or a DELETE removed one. The version is that of the value.
    Changed {
        /// The version.
        version: u64,
    },
    /// The key is absent.
    NotFound,
    /// The condition does not hold.
    ConditionNotMet {
        /// The present version, 0 if the key is absent.
        version: u64,
    },
    /// The store is full.
    StoreFull,
    /// The key or the value is too long for the server, or the value for this client's messages.
    TooLong,
    /// No answer arrived in time. A change may have been made. It may be made later only if the server could not be
    /// reached again.
    NoAnswerInTime,
}

/// An answered request.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a> {
    /// The caller's token of the request.
    pub token: u64,
    /// The answer.
    pub answer: Answer<'a>,
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
    /// Items that changed while they were READ, and were READ again.
    #[serde(default)]
    #[serde(rename = "torn")]
    pub torn_item_reads: u64,
    /// Further requests to the server, because a request could not be executed without the server.
    #[serde(default)]
    #[serde(rename = "asked")]
    pub extra_server_requests: u64,
    /// Lock attempts that found the lock taken.
    #[serde(default)]
    #[serde(rename = "contended")]
    pub failed_lock_attempts: u64,
}

/// An outstanding request, or a free slot.
///
/// The fields that each request needs are in the first cache lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct WindowSlot {
    pub(super) caller_token: u64,
    pub(super) submitted_at: Instant,
    /// The position in the order of submission.
    pub(super) submission_number: u64,
    pub(super) lane_index: usize,
    /// Number of received bytes of `chunked_value`.
    pub(super) received_bytes: usize,
    /// The number of the change in its lane; 0 for a GET.
    pub(super) change_seq: u32,
    /// True if the request is outstanding.
    pub(super) is_outstanding: bool,
    pub(super) is_get: bool,
    /// True if the change may already have been made when the connection broke.
    pub(super) may_be_applied: bool,
    /// The encoded request, in case it must be sent again.
    pub(super) encoded_request: Vec<u8>,
    /// A value that is sent in chunks.
    pub(super) chunked_value: Vec<u8>,
    /// The offsets of the chunks that arrived, if the value is not complete.
    pub(super) received_chunk_offsets: Vec<usize>,
}

impl WindowSlot {
    /// Returns the completion of this request.
    #[inline]
    pub(super) fn completion<'a>(&self, answer: Answer<'a>, seen: Instant) -> Completion<'a> {
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
            is_get: false,
            lane_index: 0,
            change_seq: 0,
            submission_number: 0,
            encoded_request: Vec::new(),
            chunked_value: Vec::new(),
            received_bytes: 0,
            received_chunk_offsets: Vec::new(),
            submitted_at: now,
            may_be_applied: false,
        }
    }
}
