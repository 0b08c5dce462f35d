//! What a program did with its queue pairs: the document between those who count and those who
//! judge.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bounds::{Bounds, Load, Mix, Resource, Role};
use crate::footprint::{Footprint, Side};
use crate::operation::{Method, Operation, OperationError};
use crate::profile::Profile;
use crate::verb::{Transport, Verb};

/// The version of the document that this crate reads and writes.
pub const VERSION: u32 = 2;

/// Postlists in which peers are taken to answer.
const PEERS_POSTLIST: f64 = 16.0;

/// Low bits of an address by which atomics are counted: more than any known NIC uses.
pub const SLOT_BITS: u32 = 12;

/// What a program did, from its first verb to its last.
///
/// Counts are of what the program asked for; costs follow from a profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperationProfile {
    /// [`VERSION`].
    pub version: u32,
    /// What was observed, such as a command line.
    pub program: String,
    /// Its process; 0 if there is none.
    #[serde(default)]
    pub pid: u32,
    /// From the first verb to the last, in ns.
    pub duration_ns: u64,
    /// False if the program ended without saying so: what it did is here up to its end.
    pub complete: bool,
    /// Its threads that used verbs.
    pub threads: Vec<Thread>,
    /// Its queue pairs.
    pub queue_pairs: Vec<QueuePair>,
    /// Different machines that it sent to.
    pub peers: u32,
    /// Its registered memory.
    pub memory: Memory,
    /// What is not in the counts, in words.
    #[serde(default)]
    pub notes: Vec<String>,
    /// What the processors of its peers do for it. Never observed: other designs have it.
    #[serde(skip)]
    pub peers_work: Option<PeersWork>,
}

/// What the processor of a peer does for the requests that it gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeersWork {
    /// Its cores.
    pub cores: u32,
    /// Work of a core beside the verbs for one operation of the program, in ns; nothing if the profile does not say.
    pub app_ns: Option<f64>,
    /// The part of that which only one core can do at a time, in ns.
    pub shared_ns: f64,
}

/// A thread that used verbs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thread {
    /// Its number in the profile.
    pub id: u32,
    /// Calls that posted to send queues.
    pub posts: u64,
    /// Calls that posted RECVs.
    pub recv_posts: u64,
    /// Calls that polled.
    pub polls: u64,
    /// Those of them that found nothing.
    pub empty_polls: u64,
    /// Completions found.
    pub completions: u64,
    /// When it posted to send queues; nothing if that is not known.
    #[serde(default)]
    pub posted: Option<Span>,
}

/// From one moment to another, in ns since some moment of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// The first time, as exactly as time is read.
    pub first_ns: u64,
    /// The last time.
    pub last_ns: u64,
}

impl Span {
    /// The shortest that has both in it.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            first_ns: self.first_ns.min(other.first_ns),
            last_ns: self.last_ns.max(other.last_ns),
        }
    }
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueuePair {
    /// Its number.
    pub qpn: u32,
    /// Its transport.
    pub transport: Transport,
    /// What was posted, by kind.
    pub sent: Vec<Counted>,
    /// Postlists that these came in: each is a doorbell, or a WQE by MMIO.
    pub postlists: u64,
    /// Runs of postlists between which the posting thread polled nothing: what could have been one
    /// postlist.
    pub runs: u64,
    /// What its RECVs took, by kind.
    pub received: Vec<Counted>,
    /// Most operations outstanding at a time.
    pub max_outstanding: u32,
    /// Operations outstanding on average, as each was posted.
    pub mean_outstanding: f64,
    /// READs that continue the READ before them in the same postlist or run: remote memory without
    /// a gap.
    pub adjacent_reads: u64,
    /// Atomics by the low [`SLOT_BITS`] bits of their address.
    pub atomic_slots: Vec<SlotCount>,
    /// Lengths of its postlists.
    #[serde(default)]
    pub postlist_lengths: Vec<Lengths>,
    /// RECVs that were posted to it; those of a shared receive queue are not.
    #[serde(default)]
    pub recvs: Recvs,
    /// Room in its send queue; 0 if that is not known.
    #[serde(default)]
    pub max_send_wr: u32,
    /// Most bytes that it takes inline.
    #[serde(default)]
    pub max_inline_data: u32,
    /// Work requests that were refused, mostly for lack of room in the send queue.
    #[serde(default)]
    pub refused: u64,
    /// Completions with an error.
    #[serde(default)]
    pub failed: u64,
    /// When something was posted on its send queue; nothing if that is not known.
    #[serde(default)]
    pub posted: Option<Span>,
}

/// Postlists that reach the NIC in one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lists {
    /// Work requests in a list, on average.
    pub postlist: f64,
    /// Their share of all work requests, 0 to 1.
    pub share: f64,
}

/// Postlists of similar length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lengths {
    /// Work requests in the longest; more than half as many in the shortest.
    pub at_most: u64,
    /// Postlists of such length.
    pub count: u64,
}

/// RECVs that were posted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recvs {
    /// Calls that posted some.
    pub postlists: u64,
    /// RECVs.
    pub count: u64,
    /// Room in them.
    pub bytes: u64,
}

/// Operations of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// The kind. Payloads may be classes of similar size, by their mean.
    pub operation: Operation,
    /// How many.
    pub count: u64,
}

/// Atomics on addresses with equal low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotCount {
    /// The low bits.
    pub slot: u32,
    /// Atomics there.
    pub count: u64,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Memory {
    /// Most bytes that were registered at a time.
    pub registered_bytes: u64,
    /// Those of them in pages larger than 4 KiB.
    pub huge_page_bytes: u64,
}

/// Why a text is no operation profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpProfileError {
    /// The document is of another version.
    #[error(
        "version {0} of operation profiles is not known; this program reads version {VERSION}: \
         record it again with this one, or read it with the program that wrote it"
    )]
    Version(u32),
    /// A number that contradicts the others.
    #[error("queue pair {qpn:#x}: {problem}")]
    Contradiction {
        /// The queue pair.
        qpn: u32,
        /// What is wrong.
        problem: &'static str,
    },
}

/// How fast a program could go on a NIC that does nothing else.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The program's own machine.
    pub requester: Bounds,
    /// A peer's, for the share that it gets.
    pub responder: Bounds,
    /// The slower of the two, in 10^6 operations a second.
    pub rate_mops: f64,
    /// Which side that is.
    pub slower: Role,
    /// What it lacks.
    pub bottleneck: Resource,
}

impl OperationProfile {
    /// Whether it is of this version and agrees with itself.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), OpProfileError> {
        if self.version != VERSION {
            return Err(OpProfileError::Version(self.version));
        }
        for qp in &self.queue_pairs {
            let sent = qp.operations();
            let atomics = qp.atomics();
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
    pub fn operations(&self) -> u64 {
        total(self.queue_pairs.iter().map(QueuePair::operations))
    }

    /// What a rate counts: operations that were posted, or messages that were received where none were.
    pub fn requests(&self) -> u64 {
        match self.operations() {
            0 => total(
                self.queue_pairs
                    .iter()
                    .flat_map(|qp| qp.received.iter().map(|counted| counted.count)),
            ),
            posted => posted,
        }
    }

    /// The same program as far as the NIC can do it, and in words what it cannot: payload that is too long to be
    /// inlined is fetched, anything else is left out.
    pub fn fitted_to(&self, profile: &Profile) -> (Self, Vec<String>) {
        let mut fitted = self.clone();
        let mut notes = Vec::new();
        for qp in &mut fitted.queue_pairs {
            for counts in [&mut qp.sent, &mut qp.received] {
                counts.retain_mut(|counted| {
                    let error = match counted.operation.check(profile) {
                        Ok(()) => return true,
                        Err(error) => error,
                    };
                    if let OperationError::InlineTooLong { .. } = error {
                        counted.operation.inline = false;
                        if counted.operation.check(profile).is_ok() {
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
            qp.postlists = qp.postlists.min(qp.operations());
            qp.runs = qp.runs.min(qp.postlists);
            qp.adjacent_reads = qp.adjacent_reads.min(qp.operations());
            if qp.atomics() > qp.operations() {
                qp.atomic_slots.clear();
            }
        }
        notes.sort();
        notes.dedup();
        (fitted, notes)
    }

    /// The transactions on the PCIe link of the program's machine for one operation, see [`Self::mix`].
    ///
    /// # Errors
    /// The NIC cannot do one of the operations.
    pub fn side(&self, profile: &Profile) -> Result<Side, OperationError> {
        let mut all = Side::default();
        for load in self.mix().iter().flat_map(|mix| &mix.loads) {
            let one = Footprint::of_one(profile, &load.operation, load.method, load.postlist)?;
            let side = match load.role {
                Role::Requester => &one.requester,
                Role::Responder => &one.responder,
            };
            all.add_times(side, load.per_request);
        }
        Ok(all)
    }

    /// Queue pairs that something was posted on.
    pub fn active(&self) -> impl Iterator<Item = &QueuePair> {
        self.queue_pairs.iter().filter(|qp| qp.operations() > 0)
    }

    /// Queue pairs in use at a time that would be equally busy if all were like the busiest of them, at least one.
    pub fn even_queue_pairs(&self) -> u32 {
        let mut busy = Busy::default();
        for (begins, qp) in self.in_turn() {
            busy.set(qp.operations(), begins);
        }
        busy.most_even
    }

    /// Queue pairs whose RECVs would be equally busy if all were like the busiest of them, at least one.
    fn even_receiving_queue_pairs(&self) -> u32 {
        let each = self.queue_pairs.iter();
        let each = each.map(|qp| total(qp.received.iter().map(|counted| counted.count)));
        let busiest = each.clone().max().unwrap_or(0).max(1);
        whole(real(total(each)) / real(busiest)).max(1)
    }

    /// Queue pairs that were in use at a time, at most.
    pub fn concurrent_queue_pairs(&self) -> u32 {
        at_most(self.active().map(|qp| qp.posted))
    }

    /// Where queue pairs in use begin, true, and end, in their order.
    fn in_turn(&self) -> Vec<(bool, &QueuePair)> {
        in_order(self.active().map(|qp| (qp.posted, qp)))
    }

    /// Whether no queue pair ever had a second operation outstanding: its rate is that of round trips.
    pub fn waits_for_each(&self) -> bool {
        let mut active = self.active().peekable();
        active.peek().is_some() && active.all(|qp| qp.max_outstanding == 1)
    }

    /// Operations outstanding at a time on all queue pairs, at most; nothing if it posted none, or if that was not counted.
    pub fn outstanding(&self) -> Option<f64> {
        let counted = self.active().all(|qp| qp.max_outstanding > 0);
        let all = total(self.active().map(|qp| u64::from(qp.max_outstanding)));
        // Not all queue pairs were in use at a time.
        let at_a_time = f64::from(self.concurrent_queue_pairs());
        let share = at_a_time / real(self.active().count() as u64);
        (counted && all > 0).then(|| (real(all) * share).max(1.0))
    }

    /// Threads that posted to send queues at a time, at least one.
    pub fn posting_threads(&self) -> u32 {
        let posting = self.threads.iter().filter(|thread| thread.posts > 0);
        at_most(posting.map(|thread| thread.posted)).max(1)
    }

    /// What the program's machine does for one operation that it posts, or for one message that it receives if it
    /// posts nothing.
    ///
    /// Work beside the verbs is not in it. Nothing if nothing was posted or received.
    pub fn mix(&self) -> Option<Mix> {
        let total = self.requests();
        if total == 0 {
            return None;
        }
        let queue_pairs = self.even_queue_pairs();
        let receiving = self.even_receiving_queue_pairs();
        let mut loads = Vec::new();
        for qp in &self.queue_pairs {
            for lists in qp.lists() {
                for counted in qp.sent.iter().filter(|counted| counted.count > 0) {
                    loads.push(Load {
                        method: Method::of_postlist(lists.postlist),
                        postlist: lists.postlist,
                        queue_pairs: Some(queue_pairs),
                        lock_slots: qp.effective_slots(),
                        per_request: lists.share * real(counted.count) / real(total),
                        ..Load::new(counted.operation, Role::Requester)
                    });
                }
            }
            for counted in qp.received.iter().filter(|counted| counted.count > 0) {
                loads.push(Load {
                    queue_pairs: Some(receiving),
                    per_request: real(counted.count) / real(total),
                    ..Load::new(counted.operation, Role::Responder)
                });
            }
        }
        Some(Mix {
            outstanding: self.outstanding(),
            ..Mix::new(loads).on_cores(self.posting_threads())
        })
    }

    /// What one of its peers does for one operation of the program.
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
            // How a peer posts is not known: as well as one can.
            if load.role == Role::Requester {
                *load = load.clone().in_postlists(PEERS_POSTLIST);
            }
        }
        // A peer has cores of its own, and what they do is not known unless a design says it.
        let work = self.peers_work;
        Some(Mix {
            cores: work.map(|work| work.cores),
            app_ns: work.and_then(|work| work.app_ns).unwrap_or(0.0) / peers,
            shared_ns: work.map_or(0.0, |work| work.shared_ns) / peers,
            outstanding: None,
            ..mix
        })
    }

    /// How fast this could go on a NIC. Nothing if nothing was posted.
    ///
    /// # Errors
    /// The NIC cannot do one of the operations.
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
    /// One on which nothing was done.
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
            recvs: Recvs::default(),
            max_send_wr: 0,
            max_inline_data: 0,
            refused: 0,
            failed: 0,
            posted: None,
        }
    }

    /// Operations that were posted.
    pub fn operations(&self) -> u64 {
        total(self.sent.iter().map(|counted| counted.count))
    }

    /// Operations of one verb.
    pub fn of_verb(&self, verb: Verb) -> u64 {
        let all = self.sent.iter();
        let of_verb = all.filter(|counted| counted.operation.verb == verb);
        total(of_verb.map(|counted| counted.count))
    }

    /// Operations in a postlist, on average; 1 if there was none.
    pub fn mean_postlist(&self) -> f64 {
        (real(self.operations()) / real(self.postlists.max(1))).max(1.0)
    }

    /// Its postlists by the way they reach the NIC: single work requests, which go by MMIO, and longer lists, which go by
    /// doorbell and DMA. Their mean is no list that it posted: one list of two among many single work requests would turn all of
    /// them into lists.
    ///
    /// One entry where the lengths are not known, or are not those of [`postlists`](Self::postlists).
    pub fn lists(&self) -> Vec<Lists> {
        let operations = real(self.operations());
        let all = vec![Lists {
            postlist: self.mean_postlist(),
            share: 1.0,
        }];
        let known = total(self.postlist_lengths.iter().map(|lengths| lengths.count));
        let of_one = self.postlist_lengths.iter().find(|l| l.at_most == 1);
        let singles = of_one.map_or(0, |lengths| lengths.count);
        let longer = known.saturating_sub(singles);
        let differs = known.abs_diff(self.postlists) > self.postlist_lengths.len() as u64;
        let in_longer = operations - real(singles);
        if differs || singles == 0 || longer == 0 || in_longer < 2.0 * real(longer) {
            return all;
        }
        vec![
            Lists {
                postlist: 1.0,
                share: real(singles) / operations,
            },
            Lists {
                postlist: in_longer / real(longer),
                share: in_longer / operations,
            },
        ]
    }

    /// Operations that could have been one postlist, on average; 1 if there was none.
    pub fn mean_run(&self) -> f64 {
        (real(self.operations()) / real(self.runs.max(1))).max(1.0)
    }

    /// Atomics whose address is known.
    pub fn atomics(&self) -> u64 {
        total(self.atomic_slots.iter().map(|slot| slot.count))
    }

    /// Locks that would be equally busy if all were like the busiest; nothing without atomics.
    pub fn effective_slots(&self) -> Option<u32> {
        let busiest = self.atomic_slots.iter().map(|slot| slot.count).max()?;
        (busiest > 0).then(|| whole(real(self.atomics()) / real(busiest)))
    }
}

/// Where spans begin, true, and end, in their order; what is not known is there all the time.
fn in_order<T: Copy>(all: impl Iterator<Item = (Option<Span>, T)>) -> Vec<(bool, T)> {
    let mut turns: Vec<_> = all
        .flat_map(|(span, one)| {
            let (first, last) = span.map_or((0, u64::MAX), |span| (span.first_ns, span.last_ns));
            // At the same moment what begins comes before what ends, and nothing ends before it begins.
            [(first, false, one), (last.max(first), true, one)]
        })
        .collect();
    turns.sort_by_key(|(at, ends, _)| (*at, *ends));
    let turns = turns.into_iter();
    turns.map(|(_, ends, one)| (!ends, one)).collect()
}

/// How many of them were there at a time.
fn at_most(spans: impl Iterator<Item = Option<Span>>) -> u32 {
    let (mut now, mut most) = (0u32, 0);
    for (begins, ()) in in_order(spans.map(|span| (span, ()))) {
        now = if begins { now + 1 } else { now - 1 };
        most = most.max(now);
    }
    most
}

/// What is in use at a time, by how much it did.
struct Busy {
    by_work: BTreeMap<u64, u64>,
    sum: u64,
    most_even: u32,
}

impl Default for Busy {
    fn default() -> Self {
        Self {
            by_work: BTreeMap::new(),
            sum: 0,
            most_even: 1,
        }
    }
}

impl Busy {
    fn set(&mut self, work: u64, begins: bool) {
        let count = self.by_work.entry(work).or_default();
        if begins {
            *count += 1;
            self.sum = self.sum.saturating_add(work);
            let busiest = self.by_work.last_key_value().map_or(1, |(work, _)| *work);
            let even = whole(real(self.sum) / real(busiest.max(1)));
            self.most_even = self.most_even.max(even);
        } else {
            *count -= 1;
            if *count == 0 {
                self.by_work.remove(&work);
            }
            self.sum = self.sum.saturating_sub(work);
        }
    }
}

/// The sum, or the largest number: a damaged document must not stop its reader.
pub(crate) fn total(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

/// Counts are far below 2^53, or a rounding of them does no harm.
#[expect(clippy::cast_precision_loss, reason = "a share of counts")]
pub(crate) fn real(count: u64) -> f64 {
    count as f64
}

/// A number of at least one, as a whole one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "was clamped to the range"
)]
pub(crate) fn whole(number: f64) -> u32 {
    number.round().clamp(1.0, 1e9) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::builtin;

    fn sends(payload: u32, count: u64, postlists: u64) -> OperationProfile {
        let operation = Operation::new(Verb::Send, Transport::Ud, payload).inlined();
        let qp = QueuePair {
            sent: vec![Counted { operation, count }],
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

    /// Each length has its own way to the NIC: a few lists among single work requests cost what a few lists cost.
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
            .map(|(at_most, count)| Lengths { at_most, count })
            .to_vec();
        assert!((rate(one_list) / singles - 1.0).abs() < 0.001);
        // Half of them in lists of 16.
        let mut mixed = sends(60, 3200, 1700);
        let lengths = [(1, 1600), (16, 100)];
        mixed.queue_pairs[0].postlist_lengths = lengths
            .map(|(at_most, count)| Lengths { at_most, count })
            .to_vec();
        let lists: Vec<_> = mixed.queue_pairs[0].lists();
        assert_eq!(
            lists,
            [(1.0, 0.5), (16.0, 0.5)].map(|(postlist, share)| Lists { postlist, share })
        );
        // A profile that was changed has no lists of these lengths any more.
        mixed.queue_pairs[0].postlists = 200;
        assert_eq!(mixed.queue_pairs[0].lists().len(), 1);
    }

    #[test]
    fn what_comes_one_after_the_other_is_not_there_together() {
        let cib = builtin("cib").expect("built in");
        let span = |first_ns, last_ns| Some(Span { first_ns, last_ns });
        let of = |spans: &[Option<Span>]| {
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
                profile.even_queue_pairs(),
                profile.concurrent_queue_pairs(),
                profile.posting_threads(),
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
        // A queue pair that did little beside one that did all.
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

    #[test]
    fn uneven_locks_count_as_fewer() {
        let slot = |slot, count| SlotCount { slot, count };
        let mut qp = QueuePair::new(1, Transport::Rc);
        assert_eq!(qp.effective_slots(), None);
        qp.atomic_slots = vec![slot(0, 50), slot(8, 25), slot(16, 25)];
        assert_eq!(qp.effective_slots(), Some(2));
    }
}
