//! The operation profile of a program: the counts of its verbs, exchanged between the tools that count and the model.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bounds::{Bounds, Mix, MixOperation, Resource, Role};
use crate::footprint::{Footprint, LinkTransactions};
use crate::operation::{Operation, OperationError, PostMethod};
use crate::profile::Profile;
use crate::verb::{Transport, Verb};

/// The version of the document that this crate reads and writes.
pub const VERSION: u32 = 2;

/// Assumed length of the postlists in which peers answer.
const ASSUMED_PEER_POSTLIST_LEN: f64 = 16.0;

/// Number of low address bits by which atomics are counted: more than any known NIC uses.
pub const ATOMIC_SLOT_BITS: u32 = 12;

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
    pub peers: u32,
    /// Registered memory of the program.
    pub memory: RegisteredMemory,
    /// Notes on operations that the counts do not include.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Work of the peers' processors for the program. Never observed: only designs that the guidelines propose have
    /// it.
    #[serde(skip)]
    pub peers_work: Option<PeersWork>,
}

/// The work of a peer's processor for the requests that the peer receives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeersWork {
    /// Cores of the peer.
    pub cores: u32,
    /// Work of a core apart from verbs for one operation of the program, in ns. `None` if the profile does not say.
    pub app_ns: Option<f64>,
    /// The part of `app_ns` that only one core can do at a time, in ns.
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
    pub polls: u64,
    /// Polls that found no completion.
    pub empty_polls: u64,
    /// Completions found.
    pub completions: u64,
    /// Time from the thread's first post to a send queue to its last; `None` if unknown.
    #[serde(default)]
    pub posted: Option<TimeSpan>,
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
    pub runs: u64,
    /// Messages that the RECVs of the queue pair received, by kind.
    pub received: Vec<CountedOperations>,
    /// Most operations outstanding at a time.
    pub max_outstanding: u32,
    /// Operations outstanding on average, as each was posted.
    pub mean_outstanding: f64,
    /// READs that continue the READ before them in the same postlist or run, without a gap in remote memory.
    pub adjacent_reads: u64,
    /// Atomics by the low [`ATOMIC_SLOT_BITS`] bits of their address.
    pub atomic_slots: Vec<SlotCount>,
    /// Postlists of the queue pair by length.
    #[serde(default)]
    pub postlist_lengths: Vec<PostlistsByLength>,
    /// RECVs that were posted to the queue pair, without those of a shared receive queue.
    #[serde(default)]
    pub recvs: PostedRecvs,
    /// Work requests that fit in the send queue; 0 if unknown.
    #[serde(default)]
    pub max_send_wr: u32,
    /// Most bytes that a work request of the queue pair carries inline.
    #[serde(default)]
    pub max_inline_data: u32,
    /// Work requests whose post failed, mostly because the send queue was full.
    #[serde(default)]
    pub refused: u64,
    /// Completions with an error.
    #[serde(default)]
    pub failed: u64,
    /// Time from the first post to the send queue to the last; `None` if unknown.
    #[serde(default)]
    pub posted: Option<TimeSpan>,
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
    pub at_most: u64,
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
    pub bytes: u64,
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
pub struct SlotCount {
    /// The low bits of the address.
    pub slot: u32,
    /// Atomics on addresses with these low bits.
    pub count: u64,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisteredMemory {
    /// Most bytes that were registered at a time.
    pub registered_bytes: u64,
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
    pub requester: Bounds,
    /// Bounds of a peer, for its share of the operations.
    pub responder: Bounds,
    /// Rate of the slower machine, in 10^6 operations a second.
    pub rate_mops: f64,
    /// Side of the slower machine.
    pub slower: Role,
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
                (qp.runs > qp.postlists, "more runs than postlists"),
                (sent > 0 && qp.runs == 0, "operations without a postlist"),
                (
                    qp.posted.is_some_and(|span| span.first_ns > span.last_ns),
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

    /// Returns the program as far as the NIC can execute it, and notes on the differences. Inline payload that is too
    /// long is fetched by DMA instead. Other operations that the NIC cannot execute are left out.
    pub fn restricted_to_executable(&self, profile: &Profile) -> (Self, Vec<String>) {
        let mut fitted = self.clone();
        let mut notes = Vec::new();
        for qp in &mut fitted.queue_pairs {
            for counts in [&mut qp.sent, &mut qp.received] {
                counts.retain_mut(|counted| {
                    let error = match counted.operation.check_executable(profile) {
                        Ok(()) => return true,
                        Err(error) => error,
                    };
                    if let OperationError::InlineTooLong { .. } = error {
                        counted.operation.inline = false;
                        if counted.operation.check_executable(profile).is_ok() {
                            notes.push(format!("{error}: taken as fetched by DMA"));
                            return true;
                        }
                    }
                    notes.push(format!(
                        "{} operations are left out: {error}",
                        counted.count
                    ));
                    false
                });
            }
            qp.postlists = qp.postlists.min(qp.posted_operations());
            qp.runs = qp.runs.min(qp.postlists);
            qp.adjacent_reads = qp.adjacent_reads.min(qp.posted_operations());
            if qp.atomics_of_known_address() > qp.posted_operations() {
                qp.atomic_slots.clear();
            }
        }
        notes.sort();
        notes.dedup();
        (fitted, notes)
    }

    /// Returns the transactions on the PCIe link of the program's machine for one operation of [`Self::mix`].
    ///
    /// # Errors
    /// Returned if the NIC cannot execute one of the operations.
    pub fn link_transactions_per_operation(
        &self,
        profile: &Profile,
    ) -> Result<LinkTransactions, OperationError> {
        let mut all = LinkTransactions::default();
        for load in self.mix().iter().flat_map(|mix| &mix.loads) {
            let one = Footprint::of_one(profile, &load.operation, load.method, load.postlist)?;
            let side = match load.role {
                Role::Requester => &one.requester,
                Role::Responder => &one.responder,
            };
            all.add_multiple(side, load.per_request);
        }
        Ok(all)
    }

    /// Queue pairs with posted operations.
    pub fn posting_queue_pairs(&self) -> impl Iterator<Item = &QueuePair> {
        self.queue_pairs
            .iter()
            .filter(|qp| qp.posted_operations() > 0)
    }

    /// Effective number of queue pairs in use at a time: equally busy queue pairs with the load of the busiest would
    /// do the same work. At least 1.
    pub fn effective_queue_pairs(&self) -> u32 {
        let mut busy = BusyQueuePairs::default();
        for (begins, qp) in self.queue_pair_starts_and_ends() {
            busy.begin_or_end_use(qp.posted_operations(), begins);
        }
        busy.max_effective_count
    }

    /// Effective number of receiving queue pairs: equally busy queue pairs with the load of the busiest would receive
    /// as much. At least 1.
    fn effective_receiving_qps(&self) -> u32 {
        let each = self.queue_pairs.iter();
        let each = each.map(|qp| saturating_sum(qp.received.iter().map(|counted| counted.count)));
        let busiest = each.clone().max().unwrap_or(0).max(1);
        round_to_u32_at_least_1(count_to_f64(saturating_sum(each)) / count_to_f64(busiest)).max(1)
    }

    /// Most queue pairs that were in use at a time.
    pub fn max_concurrent_queue_pairs(&self) -> u32 {
        max_overlapping(self.posting_queue_pairs().map(|qp| qp.posted))
    }

    /// Starts (`true`) and ends (`false`) of the use of queue pairs, in order of time.
    fn queue_pair_starts_and_ends(&self) -> Vec<(bool, &QueuePair)> {
        starts_and_ends(self.posting_queue_pairs().map(|qp| (qp.posted, qp)))
    }

    /// Returns true if no queue pair ever had a second operation outstanding, so that round trips determine the rate.
    pub fn waits_after_each_operation(&self) -> bool {
        let mut active = self.posting_queue_pairs().peekable();
        active.peek().is_some() && active.all(|qp| qp.max_outstanding == 1)
    }

    /// Most operations outstanding at a time on all queue pairs. `None` if nothing was posted, or if outstanding
    /// operations were not counted.
    pub fn max_outstanding(&self) -> Option<f64> {
        let counted = self.posting_queue_pairs().all(|qp| qp.max_outstanding > 0);
        let all = saturating_sum(
            self.posting_queue_pairs()
                .map(|qp| u64::from(qp.max_outstanding)),
        );
        // The queue pairs may have been in use one after the other.
        let at_a_time = f64::from(self.max_concurrent_queue_pairs());
        let share = at_a_time / count_to_f64(self.posting_queue_pairs().count() as u64);
        (counted && all > 0).then(|| (count_to_f64(all) * share).max(1.0))
    }

    /// Threads that posted to send queues at a time; at least 1. If nothing was posted, threads that received.
    pub fn max_concurrent_posters(&self) -> u32 {
        let only_receives = self.posted_operations() == 0;
        let working = self.threads.iter().filter(|thread| {
            thread.posts > 0 || only_receives && (thread.recv_posts > 0 || thread.completions > 0)
        });
        max_overlapping(working.map(|thread| thread.posted)).max(1)
    }

    /// Effective number of locks of the atomics of all queue pairs: equally busy locks with the load of the busiest
    /// would serve the same atomics. `None` without atomics.
    pub fn effective_atomic_locks(&self) -> Option<u32> {
        let mut count_by_slot = BTreeMap::<u32, u64>::new();
        for slot in self.queue_pairs.iter().flat_map(|qp| &qp.atomic_slots) {
            let count = count_by_slot.entry(slot.slot).or_default();
            *count = count.saturating_add(slot.count);
        }
        let busiest = *count_by_slot
            .values()
            .max()
            .filter(|busiest| **busiest > 0)?;
        let all = saturating_sum(count_by_slot.into_values());
        Some(round_to_u32_at_least_1(
            count_to_f64(all) / count_to_f64(busiest),
        ))
    }

    /// The work of the program's machine for one posted operation. If the program posts nothing, the work for one
    /// received message.
    ///
    /// Work apart from verbs is not included. `None` if nothing was posted or received.
    pub fn mix(&self) -> Option<Mix> {
        let total = self.posted_or_received_operations();
        if total == 0 {
            return None;
        }
        let queue_pairs = self.effective_queue_pairs();
        let receiving = self.effective_receiving_qps();
        let lock_slots = self.effective_atomic_locks();
        let mut loads = Vec::new();
        for qp in &self.queue_pairs {
            for lists in qp.postlists_by_method() {
                for counted in qp.sent.iter().filter(|counted| counted.count > 0) {
                    loads.push(MixOperation {
                        method: PostMethod::of_postlist(lists.mean_len),
                        postlist: lists.mean_len,
                        queue_pairs: Some(queue_pairs),
                        lock_slots,
                        per_request: lists.work_request_share * count_to_f64(counted.count)
                            / count_to_f64(total),
                        ..MixOperation::new(counted.operation, Role::Requester)
                    });
                }
            }
            for counted in qp.received.iter().filter(|counted| counted.count > 0) {
                loads.push(MixOperation {
                    queue_pairs: Some(receiving),
                    per_request: count_to_f64(counted.count) / count_to_f64(total),
                    ..MixOperation::new(counted.operation, Role::Responder)
                });
            }
        }
        Some(Mix {
            outstanding: self.max_outstanding(),
            ..Mix::new(loads).on_cores(self.max_concurrent_posters())
        })
    }

    /// The work of one peer for one operation of the program.
    fn peers_mix(&self) -> Option<Mix> {
        let peers = f64::from(self.peers.max(1));
        let mut mix = self.mix()?;
        for load in &mut mix.loads {
            load.role = match load.role {
                Role::Requester => Role::Responder,
                Role::Responder => Role::Requester,
            };
            load.per_request /= peers;
            load.queue_pairs = None;
            // The peer's postlists are not known: they are assumed to be long.
            if load.role == Role::Requester {
                *load = load.clone().in_postlists(ASSUMED_PEER_POSTLIST_LEN);
            }
        }
        // The peer's cores and their work are unknown unless a proposed design defines them.
        let work = self.peers_work;
        Some(Mix {
            cores: work.map(|work| work.cores),
            app_ns: work.and_then(|work| work.app_ns).unwrap_or(0.0) / peers,
            shared_ns: work.map_or(0.0, |work| work.serialized_ns) / peers,
            outstanding: None,
            ..mix
        })
    }

    /// Predicts the program's rate on a NIC. `None` if nothing was posted or received.
    ///
    /// # Errors
    /// Returned if the NIC cannot execute one of the operations.
    pub fn predict(&self, profile: &Profile) -> Result<Option<Prediction>, OperationError> {
        let (Some(own), Some(peers)) = (self.mix(), self.peers_mix()) else {
            return Ok(None);
        };
        let requester = Bounds::of(profile, &own)?;
        let mut responder = Bounds::of(profile, &peers)?;
        let work_is_unknown = self.peers_work.is_some_and(|work| work.app_ns.is_none());
        if work_is_unknown && !responder.unknown.contains(&Resource::Cpu) {
            responder.unknown.push(Resource::Cpu);
        }
        let sides = [(Role::Requester, &requester), (Role::Responder, &responder)];
        let rates = sides.into_iter().filter_map(|(role, bounds)| {
            Some((role, bounds.predicted_mops?, bounds.bottleneck()?))
        });
        let slower = rates.min_by(|a, b| a.1.total_cmp(&b.1));
        Ok(slower.map(|(slower, rate_mops, bottleneck)| Prediction {
            rate_mops,
            slower,
            bottleneck,
            requester,
            responder,
        }))
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
            runs: 0,
            received: Vec::new(),
            max_outstanding: 0,
            mean_outstanding: 0.0,
            adjacent_reads: 0,
            atomic_slots: Vec::new(),
            postlist_lengths: Vec::new(),
            recvs: PostedRecvs::default(),
            max_send_wr: 0,
            max_inline_data: 0,
            refused: 0,
            failed: 0,
            posted: None,
        }
    }

    /// Operations that were posted.
    pub fn posted_operations(&self) -> u64 {
        saturating_sum(self.sent.iter().map(|counted| counted.count))
    }

    /// Operations of one verb.
    pub fn operations_of_verb(&self, verb: Verb) -> u64 {
        let all = self.sent.iter();
        let of_verb = all.filter(|counted| counted.operation.verb == verb);
        saturating_sum(of_verb.map(|counted| counted.count))
    }

    /// Mean number of operations in a postlist; 1 without postlists.
    pub fn mean_postlist(&self) -> f64 {
        (count_to_f64(self.posted_operations()) / count_to_f64(self.postlists.max(1))).max(1.0)
    }

    /// The queue pair's postlists by method: single work requests go by MMIO, longer postlists by doorbell and DMA.
    /// One mean of both would be wrong: a single postlist of two would turn all work requests into postlists.
    ///
    /// Returns one entry if the lengths are unknown, or do not add up to [`postlists`](Self::postlists).
    pub fn postlists_by_method(&self) -> Vec<PostlistsByMethod> {
        let operations = count_to_f64(self.posted_operations());
        let all = vec![PostlistsByMethod {
            mean_len: self.mean_postlist(),
            work_request_share: 1.0,
        }];
        let known = saturating_sum(self.postlist_lengths.iter().map(|lengths| lengths.count));
        let of_one = self.postlist_lengths.iter().find(|l| l.at_most == 1);
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
        (count_to_f64(self.posted_operations()) / count_to_f64(self.runs.max(1))).max(1.0)
    }

    /// Atomics whose address is known.
    pub fn atomics_of_known_address(&self) -> u64 {
        saturating_sum(self.atomic_slots.iter().map(|slot| slot.count))
    }
}

/// Returns the starts (`true`) and ends (`false`) of spans in order of time. An unknown span lasts the whole time.
fn starts_and_ends<T: Copy>(all: impl Iterator<Item = (Option<TimeSpan>, T)>) -> Vec<(bool, T)> {
    let mut turns: Vec<_> = all
        .flat_map(|(span, one)| {
            let (first, last) = span.map_or((0, u64::MAX), |span| (span.first_ns, span.last_ns));
            // At equal times a start precedes an end, and no span ends before its start.
            [(first, false, one), (last.max(first), true, one)]
        })
        .collect();
    turns.sort_by_key(|(at, ends, _)| (*at, *ends));
    let turns = turns.into_iter();
    turns.map(|(_, ends, one)| (!ends, one)).collect()
}

/// Returns the most spans that overlap at a time.
fn max_overlapping(spans: impl Iterator<Item = Option<TimeSpan>>) -> u32 {
    let (mut now, mut most) = (0u32, 0);
    for (begins, ()) in starts_and_ends(spans.map(|span| (span, ()))) {
        now = if begins { now + 1 } else { now - 1 };
        most = most.max(now);
    }
    most
}

/// The queue pairs in use at a time, by their number of operations.
struct BusyQueuePairs {
    queue_pairs_by_operations: BTreeMap<u64, u64>,
    total_operations: u64,
    max_effective_count: u32,
}

impl Default for BusyQueuePairs {
    fn default() -> Self {
        Self {
            queue_pairs_by_operations: BTreeMap::new(),
            total_operations: 0,
            max_effective_count: 1,
        }
    }
}

impl BusyQueuePairs {
    fn begin_or_end_use(&mut self, work: u64, begins: bool) {
        let count = self.queue_pairs_by_operations.entry(work).or_default();
        if begins {
            *count += 1;
            self.total_operations = self.total_operations.saturating_add(work);
            let busiest = self
                .queue_pairs_by_operations
                .last_key_value()
                .map_or(1, |(work, _)| *work);
            let even = round_to_u32_at_least_1(
                count_to_f64(self.total_operations) / count_to_f64(busiest.max(1)),
            );
            self.max_effective_count = self.max_effective_count.max(even);
        } else {
            *count -= 1;
            if *count == 0 {
                self.queue_pairs_by_operations.remove(&work);
            }
            self.total_operations = self.total_operations.saturating_sub(work);
        }
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
    use crate::profile::builtin;

    fn sends(payload: u32, count: u64, postlists: u64) -> OperationProfile {
        let operation = Operation::new(Verb::Send, Transport::Ud, payload).inlined();
        let qp = QueuePair {
            sent: vec![CountedOperations { operation, count }],
            postlists,
            runs: postlists,
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
    fn a_profile_is_predicted_like_the_mix_that_it_is() {
        let cib = builtin("cib").expect("built in");
        let prediction = sends(60, 1600, 100)
            .predict(cib)
            .expect("possible")
            .expect("sent");
        assert_eq!(prediction.bottleneck, Resource::QueuePairUnits);
        assert_eq!(prediction.slower, Role::Requester);
        assert!(
            (prediction.rate_mops - 8.26).abs() < 0.01,
            "{}",
            prediction.rate_mops
        );
        let nothing = OperationProfile::default();
        assert_eq!(nothing.predict(cib), Ok(None));
    }

    /// Single work requests and postlists have different methods: a few postlists among many single work requests
    /// change the rate little.
    #[test]
    fn lengths_of_lists_are_not_averaged() {
        let cib = builtin("cib").expect("built in");
        let rate = |profile: OperationProfile| {
            let prediction = profile.predict(cib).expect("possible").expect("sent");
            prediction.rate_mops
        };
        let singles = rate(sends(60, 100_000, 100_000));
        let mut one_list = sends(60, 100_000, 99_999);
        let lengths = [(1, 99_998), (2, 1)];
        one_list.queue_pairs[0].postlist_lengths = lengths
            .map(|(at_most, count)| PostlistsByLength { at_most, count })
            .to_vec();
        assert!((rate(one_list) / singles - 1.0).abs() < 0.001);
        // Half of the work requests in postlists of 16.
        let mut mixed = sends(60, 3200, 1700);
        let lengths = [(1, 1600), (16, 100)];
        mixed.queue_pairs[0].postlist_lengths = lengths
            .map(|(at_most, count)| PostlistsByLength { at_most, count })
            .to_vec();
        let lists: Vec<_> = mixed.queue_pairs[0].postlists_by_method();
        assert_eq!(
            lists,
            [(1.0, 0.5), (16.0, 0.5)].map(|(postlist, share)| PostlistsByMethod {
                mean_len: postlist,
                work_request_share: share,
            })
        );
        // After a change of the postlist count, the recorded lengths do not apply.
        mixed.queue_pairs[0].postlists = 200;
        assert_eq!(mixed.queue_pairs[0].postlists_by_method().len(), 1);
    }

    #[test]
    fn what_comes_one_after_the_other_is_not_there_together() {
        let cib = builtin("cib").expect("built in");
        let span = |first_ns, last_ns| Some(TimeSpan { first_ns, last_ns });
        let of = |spans: &[Option<TimeSpan>]| {
            let mut profile = sends(60, 1600, 100);
            let qp = profile.queue_pairs[0].clone();
            profile.queue_pairs = spans
                .iter()
                .map(|posted| QueuePair {
                    posted: *posted,
                    ..qp.clone()
                })
                .collect();
            profile.threads = spans
                .iter()
                .map(|posted| Thread {
                    posts: 1,
                    posted: *posted,
                    ..Thread::default()
                })
                .collect();
            profile
        };
        let count = |profile: &OperationProfile| {
            (
                profile.effective_queue_pairs(),
                profile.max_concurrent_queue_pairs(),
                profile.max_concurrent_posters(),
            )
        };
        let one = of(&[span(0, 10)]);
        let rounds = of(&[span(0, 10), span(11, 20), span(21, 30)]);
        assert_eq!((count(&one), count(&rounds)), ((1, 1, 1), (1, 1, 1)));
        let rate = |profile: &OperationProfile| {
            let predicted = profile.predict(cib).expect("possible");
            predicted.expect("sent").rate_mops
        };
        assert!((rate(&one) - rate(&rounds)).abs() < 1e-9);
        assert_eq!(
            count(&of(&[span(0, 10), span(10, 20), span(15, 30)])),
            (2, 2, 2)
        );
        assert_eq!(count(&of(&[None, span(0, 10), span(20, 30)])), (2, 2, 2));
        assert_eq!(count(&of(&[None, None, None])), (3, 3, 3));
        // A queue pair with few operations beside one with many.
        let mut uneven = of(&[span(0, 10), span(0, 10), span(11, 20)]);
        uneven.queue_pairs[1].sent[0].count = 1;
        assert_eq!(count(&uneven), (1, 2, 2));
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
        runs.queue_pairs[0].runs = 6;
        let message = runs.check().expect_err("more runs").to_string();
        assert!(
            message.contains("0x12") && message.contains("runs"),
            "{message}"
        );
    }

    /// Returns the bound of the locks of a program whose queue pairs do atomics on these slots, 100 on each.
    fn lock_bound(slots_of_queue_pairs: &[&[u32]]) -> f64 {
        let queue_pairs = slots_of_queue_pairs.iter().zip(1..).map(|(slots, qpn)| {
            let count = 100 * slots.len() as u64;
            let operation = Operation::new(Verb::AtomicFetchAndAdd, Transport::Rc, 8);
            QueuePair {
                sent: vec![CountedOperations { operation, count }],
                postlists: count,
                runs: count,
                atomic_slots: slots
                    .iter()
                    .map(|&slot| SlotCount { slot, count: 100 })
                    .collect(),
                ..QueuePair::new(qpn, Transport::Rc)
            }
        });
        let profile = OperationProfile {
            version: VERSION,
            queue_pairs: queue_pairs.collect(),
            ..OperationProfile::default()
        };
        let cib = builtin("cib").expect("built in");
        let predicted = profile.predict(cib).expect("possible").expect("sent");
        let bound = predicted.responder.rate_mops(Resource::AtomicLocks);
        bound.expect("atomics need locks")
    }

    #[test]
    fn atomics_of_several_queue_pairs_share_the_locks() {
        let one = lock_bound(&[&[0, 8, 16, 24, 32, 40, 48, 56]]);
        let each_its_own = lock_bound(&[&[0], &[8], &[16], &[24], &[32], &[40], &[48], &[56]]);
        assert!((each_its_own / one - 1.0).abs() < 1e-9);
        let hot = lock_bound(&[&[0], &[0], &[0], &[0], &[0], &[0], &[0], &[0]]);
        assert!((one / hot - 8.0).abs() < 1e-9, "{one} {hot}");
    }

    #[test]
    fn threads_that_only_receive_work_in_parallel() {
        let mut profile = sends(32, 1600, 100);
        let qp = &mut profile.queue_pairs[0];
        qp.received = std::mem::take(&mut qp.sent);
        (qp.postlists, qp.runs) = (0, 0);
        profile.queue_pairs = vec![qp.clone(); 4];
        profile.threads = (0..4)
            .map(|id| Thread {
                id,
                recv_posts: 100,
                completions: 1600,
                ..Thread::default()
            })
            .collect();
        assert_eq!(profile.max_concurrent_posters(), 4);
        let cib = builtin("cib").expect("built in");
        let predicted = profile.predict(cib).expect("possible").expect("received");
        assert_eq!(predicted.bottleneck, Resource::NicInbound);
    }

    #[test]
    fn uneven_locks_count_as_fewer() {
        let slot = |slot, count| SlotCount { slot, count };
        let mut profile = OperationProfile::default();
        assert_eq!(profile.effective_atomic_locks(), None);
        let mut qp = QueuePair::new(1, Transport::Rc);
        qp.atomic_slots = vec![slot(0, 50), slot(8, 25), slot(16, 25)];
        profile.queue_pairs.push(qp);
        assert_eq!(profile.effective_atomic_locks(), Some(2));
    }
}
