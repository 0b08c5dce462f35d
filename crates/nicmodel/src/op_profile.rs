//! The operation profile of a program: the counts of its verbs, exchanged between the tools that count and the model.

mod answers;
mod concurrency;
mod prediction;

use serde::{Deserialize, Serialize};

use crate::bounds::{Bounds, Resource, Role};
use crate::operation::Operation;
use crate::verb::{Transport, Verb};

/// The version of the document that this crate reads and writes.
pub const VERSION: u32 = 2;

/// Number of low address bits by which atomics are counted: more than any known NIC uses.
pub const ATOMIC_SLOT_ADDRESS_BITS: u32 = 12;

/// The counts of one program, from its first verb to its last.
///
/// The document counts the program's requests; their costs follow from a NIC's profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationProfile {
    /// Version of the document: [`VERSION`].
    pub version: u32,
    /// The observed program, such as its command line.
    pub program: String,
    /// Process id of the program; 0 if unknown.
    #[serde(default)]
    pub pid: u32,
    /// Time from the first verb to the last, in ns.
    pub duration_ns: u64,
    /// False if the program ended without closing its counters. The counts then reach up to its end.
    pub complete: bool,
    /// Threads of the program that used verbs.
    pub threads: Vec<Thread>,
    /// Queue pairs of the program.
    pub queue_pairs: Vec<QueuePair>,
    /// Number of different machines that the program sent to.
    #[serde(rename = "peers")]
    pub peer_count: u32,
    /// Registered memory of the program.
    pub memory: RegisteredMemory,
    /// Notes on operations that the counts do not include.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Work of the peers' processors for the program. Never observed: only designs that the guidelines propose have
    /// it.
    #[serde(skip)]
    pub peers_work: Option<PeersWork>,
    /// Most messages that the clients of this program had without an answer. Not part of the document: the profiles of
    /// the clients have it.
    #[serde(skip)]
    pub clients_unanswered: Option<f64>,
}

/// The work of a peer's processor for the requests that the peer receives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeersWork {
    /// Cores of the peer.
    pub cores: u32,
    /// Work of a core apart from verbs for one operation of the program, in ns. `None` if the profile does not say.
    pub app_ns_per_operation: Option<f64>,
    /// The part of `app_ns_per_operation` that only one core can do at a time, in ns.
    pub serialized_ns: f64,
}

/// A thread that used verbs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thread {
    /// Number of the thread in the profile.
    pub id: u32,
    /// Calls that posted to send queues.
    pub posts: u64,
    /// Calls that posted RECVs.
    pub recv_posts: u64,
    /// Calls that polled.
    #[serde(rename = "polls")]
    pub poll_calls: u64,
    /// Polls that found no completion.
    pub empty_polls: u64,
    /// Completions found.
    pub completions: u64,
    /// Time from the thread's first post to a send queue to its last; `None` if unknown.
    #[serde(default)]
    #[serde(rename = "posted")]
    pub post_time_span: Option<TimeSpan>,
    /// Messages of the thread on all its queue pairs; `None` if unknown.
    #[serde(default)]
    pub messages: Option<MessageBalance>,
}

/// The numbers of messages that a thread sent and received, and the most by which one exceeded the other.
///
/// Each posted operation counts as a sent message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageBalance {
    /// Posted operations.
    pub sent: u64,
    /// Messages that RECVs received.
    pub received: u64,
    /// Most sent messages more than received ones, whenever the thread found a received message.
    #[serde(rename = "sent_ahead")]
    pub max_sent_ahead: u64,
    /// Most received messages more than sent ones.
    #[serde(rename = "received_ahead")]
    pub max_received_ahead: u64,
}

/// A span of time, in ns since a fixed moment of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeSpan {
    /// Start of the span, as exactly as the clock was read.
    pub first_ns: u64,
    /// End of the span.
    pub last_ns: u64,
}

impl TimeSpan {
    /// Returns the shortest span that contains both.
    #[must_use]
    pub fn union_with(self, other: Self) -> Self {
        Self {
            first_ns: self.first_ns.min(other.first_ns),
            last_ns: self.last_ns.max(other.last_ns),
        }
    }
}

/// The counts of one queue pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueuePair {
    /// Queue pair number.
    pub qpn: u32,
    /// Transport of the queue pair.
    pub transport: Transport,
    /// Operations that were posted, by kind.
    pub sent: Vec<CountedOperations>,
    /// Postlists of these operations: each is a doorbell, or a WQE by MMIO.
    pub postlists: u64,
    /// Runs of postlists without a poll of the posting thread in between: each run could have been one postlist.
    #[serde(rename = "runs")]
    pub unpolled_postlist_runs: u64,
    /// Messages that the RECVs of the queue pair received, by kind.
    pub received: Vec<CountedOperations>,
    /// Most operations outstanding at a time.
    pub max_outstanding: u32,
    /// Operations outstanding on average, as each was posted.
    pub mean_outstanding: f64,
    /// READs that continue the READ before them in the same postlist or run, without a gap in remote memory.
    pub adjacent_reads: u64,
    /// Atomics by the low [`ATOMIC_SLOT_ADDRESS_BITS`] bits of their address.
    #[serde(rename = "atomic_slots")]
    pub atomics_by_low_address_bits: Vec<AtomicSlotCount>,
    /// Postlists of the queue pair by length.
    #[serde(default)]
    pub postlist_lengths: Vec<PostlistsByLength>,
    /// RECVs that were posted to the queue pair, without those of a shared receive queue.
    #[serde(default)]
    #[serde(rename = "recvs")]
    pub posted_recvs: PostedRecvs,
    /// Work requests that fit in the send queue; 0 if unknown.
    #[serde(default)]
    pub max_send_wr: u32,
    /// Most bytes that a work request of the queue pair carries inline.
    #[serde(default)]
    pub max_inline_data: u32,
    /// Work requests whose post failed, mostly because the send queue was full.
    #[serde(default)]
    #[serde(rename = "refused")]
    pub refused_wrs: u64,
    /// Completions with an error.
    #[serde(default)]
    #[serde(rename = "failed")]
    pub failed_completions: u64,
    /// Time from the first post to the send queue to the last; `None` if unknown.
    #[serde(default)]
    #[serde(rename = "posted")]
    pub post_time_span: Option<TimeSpan>,
}

/// Postlists that reach the NIC by the same method.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PostlistsByMethod {
    /// Work requests in a list, on average.
    pub mean_len: f64,
    /// Share of all work requests that these postlists contain, 0 to 1.
    pub work_request_share: f64,
}

/// Postlists of similar length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostlistsByLength {
    /// Most work requests of a postlist in this class; the shortest has more than half as many.
    #[serde(rename = "at_most")]
    pub max_postlist_len: u64,
    /// Postlists in this class.
    pub count: u64,
}

/// Counts of posted RECVs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PostedRecvs {
    /// Calls that posted RECVs.
    pub postlists: u64,
    /// Posted RECVs.
    pub count: u64,
    /// Sum of the RECVs' buffer lengths.
    #[serde(rename = "bytes")]
    pub buffer_bytes: u64,
}

/// Operations of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountedOperations {
    /// The kind of operation. Payloads may be classes of similar sizes, given by their mean.
    pub operation: Operation,
    /// Number of operations.
    pub count: u64,
}

/// Atomics on addresses with equal low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AtomicSlotCount {
    /// The low bits of the address.
    #[serde(rename = "slot")]
    pub low_address_bits: u32,
    /// Atomics on addresses with these low bits.
    pub count: u64,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisteredMemory {
    /// Most bytes that were registered at a time.
    #[serde(rename = "registered_bytes")]
    pub max_registered_bytes: u64,
    /// Registered bytes in pages larger than 4 KiB.
    pub huge_page_bytes: u64,
}

/// The reason for which a text is not a valid operation profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpProfileError {
    /// The document is of another version.
    #[error(
        "version {0} of operation profiles is not known; this program reads version {VERSION}: \
         record it again with this one, or read it with the program that wrote it"
    )]
    Version(u32),
    /// A count that contradicts other counts.
    #[error("queue pair {qpn:#x}: {problem}")]
    Contradiction {
        /// The queue pair.
        qpn: u32,
        /// The contradiction.
        problem: &'static str,
    },
}

/// The predicted rate of a program on a NIC that does no other work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Bounds of the program's own machine.
    #[serde(rename = "requester")]
    pub own_machine_bounds: Bounds,
    /// Bounds of a peer, for its share of the operations.
    #[serde(rename = "responder")]
    pub peer_bounds: Bounds,
    /// Rate of the slower machine, in 10^6 operations a second.
    pub rate_mops: f64,
    /// Side of the slower machine.
    #[serde(rename = "slower")]
    pub slower_role: Role,
    /// Bottleneck of the slower machine.
    pub bottleneck: Resource,
}

impl OperationProfile {
    /// Checks the version of the document and that its counts do not contradict each other.
    ///
    /// # Errors
    /// The first problem found.
    pub fn check(&self) -> Result<(), OpProfileError> {
        if self.version != VERSION {
            return Err(OpProfileError::Version(self.version));
        }
        for qp in &self.queue_pairs {
            let sent = qp.posted_operations();
            let atomics = qp.atomics_of_known_address();
            let problems = [
                (qp.postlists > sent, "more postlists than operations"),
                (
                    qp.unpolled_postlist_runs > qp.postlists,
                    "more runs than postlists",
                ),
                (
                    sent > 0 && qp.unpolled_postlist_runs == 0,
                    "operations without a postlist",
                ),
                (
                    qp.post_time_span
                        .is_some_and(|span| span.first_ns > span.last_ns),
                    "posted last before it posted first",
                ),
                (atomics > sent, "more atomics than operations"),
                (
                    qp.adjacent_reads > sent,
                    "more adjacent READs than operations",
                ),
            ];
            if let Some((_, problem)) = problems.into_iter().find(|(wrong, _)| *wrong) {
                let qpn = qp.qpn;
                return Err(OpProfileError::Contradiction { qpn, problem });
            }
        }
        Ok(())
    }

    /// Operations that were posted.
    pub fn posted_operations(&self) -> u64 {
        saturating_sum(self.queue_pairs.iter().map(QueuePair::posted_operations))
    }

    /// Operations that a rate counts: posted operations, or received messages if none was posted.
    pub fn posted_or_received_operations(&self) -> u64 {
        match self.posted_operations() {
            0 => saturating_sum(
                self.queue_pairs
                    .iter()
                    .flat_map(|qp| qp.received.iter().map(|counted| counted.count)),
            ),
            posted => posted,
        }
    }

    /// Queue pairs with posted operations.
    pub fn posting_queue_pairs(&self) -> impl Iterator<Item = &QueuePair> {
        self.queue_pairs
            .iter()
            .filter(|qp| qp.posted_operations() > 0)
    }
}

impl QueuePair {
    /// A queue pair without operations.
    pub fn new(qpn: u32, transport: Transport) -> Self {
        Self {
            qpn,
            transport,
            sent: Vec::new(),
            postlists: 0,
            unpolled_postlist_runs: 0,
            received: Vec::new(),
            max_outstanding: 0,
            mean_outstanding: 0.0,
            adjacent_reads: 0,
            atomics_by_low_address_bits: Vec::new(),
            postlist_lengths: Vec::new(),
            posted_recvs: PostedRecvs::default(),
            max_send_wr: 0,
            max_inline_data: 0,
            refused_wrs: 0,
            failed_completions: 0,
            post_time_span: None,
        }
    }

    /// Operations that were posted.
    pub fn posted_operations(&self) -> u64 {
        saturating_sum(self.sent.iter().map(|counted| counted.count))
    }

    /// Messages that the RECVs of the queue pair received.
    pub fn received_messages(&self) -> u64 {
        saturating_sum(self.received.iter().map(|counted| counted.count))
    }

    /// Operations of one verb.
    pub fn operations_of_verb(&self, verb: Verb) -> u64 {
        let all = self.sent.iter();
        let of_verb = all.filter(|counted| counted.operation.verb == verb);
        saturating_sum(of_verb.map(|counted| counted.count))
    }

    /// Mean number of operations in a postlist; 1 without postlists.
    pub fn mean_postlist_len(&self) -> f64 {
        (count_to_f64(self.posted_operations()) / count_to_f64(self.postlists.max(1))).max(1.0)
    }

    /// The queue pair's postlists by method: single work requests go by MMIO, longer postlists by doorbell and DMA.
    /// One mean of both would be wrong: a single postlist of two would turn all work requests into postlists.
    ///
    /// Returns one entry if the lengths are unknown, or do not add up to [`postlists`](Self::postlists).
    pub fn postlists_by_method(&self) -> Vec<PostlistsByMethod> {
        let operations = count_to_f64(self.posted_operations());
        let all = vec![PostlistsByMethod {
            mean_len: self.mean_postlist_len(),
            work_request_share: 1.0,
        }];
        let known = saturating_sum(self.postlist_lengths.iter().map(|lengths| lengths.count));
        let of_one = self
            .postlist_lengths
            .iter()
            .find(|l| l.max_postlist_len == 1);
        let singles = of_one.map_or(0, |lengths| lengths.count);
        let longer = known.saturating_sub(singles);
        let differs = known.abs_diff(self.postlists) > self.postlist_lengths.len() as u64;
        let in_longer = operations - count_to_f64(singles);
        if differs || singles == 0 || longer == 0 || in_longer < 2.0 * count_to_f64(longer) {
            return all;
        }
        vec![
            PostlistsByMethod {
                mean_len: 1.0,
                work_request_share: count_to_f64(singles) / operations,
            },
            PostlistsByMethod {
                mean_len: in_longer / count_to_f64(longer),
                work_request_share: in_longer / operations,
            },
        ]
    }

    /// Mean number of operations in a run, which could have been one postlist; 1 without runs.
    pub fn mean_operations_per_run(&self) -> f64 {
        (count_to_f64(self.posted_operations()) / count_to_f64(self.unpolled_postlist_runs.max(1)))
            .max(1.0)
    }

    /// Atomics whose address is known.
    pub fn atomics_of_known_address(&self) -> u64 {
        saturating_sum(
            self.atomics_by_low_address_bits
                .iter()
                .map(|slot| slot.count),
        )
    }
}

/// Adds counts and saturates: a damaged document must not make its reader panic.
pub(crate) fn saturating_sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// Converts a count to a float. Counts are far below 2^53, or their rounding does no harm.
#[expect(clippy::cast_precision_loss, reason = "a share of counts")]
pub(crate) fn count_to_f64(count: u64) -> f64 {
    count as f64
}

/// Rounds a number to a whole number of at least 1.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "was clamped to the range"
)]
pub(crate) fn round_to_u32_at_least_1(number: f64) -> u32 {
    number.round().clamp(1.0, 1e9) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a profile of `count` SENDs over one UD queue pair.
    pub(super) fn sends(payload: u32, count: u64, postlists: u64) -> OperationProfile {
        let operation = Operation::new(Verb::Send, Transport::Ud, payload).inlined();
        let qp = QueuePair {
            sent: vec![CountedOperations { operation, count }],
            postlists,
            unpolled_postlist_runs: postlists,
            ..QueuePair::new(0x12, Transport::Ud)
        };
        OperationProfile {
            version: VERSION,
            complete: true,
            queue_pairs: vec![qp],
            ..OperationProfile::default()
        }
    }

    #[test]
    fn documents_are_read_back_and_checked() {
        let profile = sends(8, 10, 5);
        let text = serde_json::to_string(&profile).expect("JSON");
        let back: OperationProfile = serde_json::from_str(&text).expect("the same");
        assert_eq!(back, profile);
        assert_eq!(back.check(), Ok(()));
        let other = OperationProfile {
            version: 1,
            ..profile.clone()
        };
        assert_eq!(other.check(), Err(OpProfileError::Version(1)));
        assert!(sends(8, 10, 11).check().is_err());
        assert!(sends(8, 10, 0).check().is_err());
        let mut runs = profile;
        runs.queue_pairs[0].unpolled_postlist_runs = 6;
        let message = runs.check().expect_err("more runs").to_string();
        assert!(
            message.contains("0x12") && message.contains("runs"),
            "{message}"
        );
    }
}
