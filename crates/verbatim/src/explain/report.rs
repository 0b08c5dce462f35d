//! The explanation of a ledger on a NIC: all printed facts in one structure.

use std::path::Path;

use nicmodel::bounds::{Bounds, Resource, Role};
use nicmodel::guidelines::{self, Advice, ChangeStep};
use nicmodel::op_profile::{OperationProfile, PostlistsByMethod, Prediction, QueuePair};
use nicmodel::pcie::TransactionKind;
use nicmodel::profile::Profile;
use nicmodel::uncertainty::{self, LikelyRange};
use nicmodel::{Footprint, LinkTransactions, Operation, OperationError, PostMethod, wqe};
use serde::Serialize;
use tap::Ledger;

use super::spread::GroupSpread;

/// The explanation of a ledger on a NIC.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) nic: String,
    pub(super) nic_title: String,
    pub(super) command: String,
    pub(super) provider: String,
    pub(super) processes: Vec<ProcessPrediction>,
    /// Number of processes that opened a device, but posted and received nothing.
    #[serde(rename = "idle_processes")]
    pub(super) idle_process_count: usize,
    /// Number of processes whose operations the NIC cannot execute at all; the notes give the reasons.
    #[serde(rename = "impossible_processes")]
    pub(super) impossible_process_count: usize,
    /// Cache lines on PCIe that the processor counted, beside the expected numbers.
    pub(super) pcie: Option<PcieLinesCountedAndExpected>,
    pub(super) notes: Vec<String>,
}

/// Cache lines on PCIe: counted on the machine where the program ran, and expected on this NIC.
#[derive(Debug, Serialize)]
pub(super) struct PcieLinesCountedAndExpected {
    pub(super) rd_cur_counted: u64,
    pub(super) rd_cur_expected: f64,
    pub(super) itom_counted: u64,
    pub(super) itom_expected: f64,
    /// Counted reads less expected reads: an estimate of the misses of the NIC's caches.
    #[serde(rename = "cache_misses")]
    pub(super) estimated_nic_cache_misses: f64,
}

/// The prediction for a process, computed as if the process used the NIC alone, beside the counts of the process.
#[derive(Debug, Serialize)]
pub(super) struct ProcessPrediction {
    pub(super) pid: u32,
    pub(super) program: String,
    pub(super) complete: bool,
    /// The spread of the group of processes for which this process stands.
    #[serde(rename = "alike")]
    pub(super) group_spread: Option<GroupSpread>,
    #[serde(rename = "posted")]
    pub(super) posted_wrs: u64,
    #[serde(rename = "received")]
    pub(super) received_messages: u64,
    /// Number of completions with an error, including flush errors.
    #[serde(rename = "failed")]
    pub(super) failed_completions: u64,
    /// Number of work requests whose post failed.
    #[serde(rename = "refused")]
    pub(super) refused_wrs: u64,
    #[serde(rename = "queue_pairs")]
    pub(super) queue_pair_count: usize,
    /// Maximum number of queue pairs that posted at the same time.
    #[serde(rename = "concurrent_queue_pairs")]
    pub(super) max_concurrent_queue_pairs: u32,
    #[serde(rename = "threads")]
    pub(super) thread_count: u32,
    /// Maximum number of threads that posted at the same time.
    #[serde(rename = "concurrent_threads")]
    pub(super) max_concurrent_threads: u32,
    /// True if the queue pairs did not all post at the same time.
    #[serde(rename = "in_turn")]
    pub(super) queue_pairs_post_in_turn: bool,
    #[serde(rename = "peers")]
    pub(super) peer_count: u32,
    pub(super) duration_ns: u64,
    /// Observed rate where the process ran, in 10^6 operations a second.
    pub(super) observed_mops: Option<f64>,
    pub(super) kinds: Vec<OperationKindCost>,
    /// PCIe transactions per operation on the link of the process's machine, the largest first.
    #[serde(rename = "transactions")]
    pub(super) pcie_transactions_per_op: Vec<PurposeTransactions>,
    #[serde(rename = "to_device_bytes")]
    pub(super) to_device_bytes_per_op: f64,
    #[serde(rename = "to_host_bytes")]
    pub(super) to_host_bytes_per_op: f64,
    /// Expected number of cache lines of DMA per operation, as a processor's PCIe counters count them.
    #[serde(rename = "pcie_rd_cur_lines")]
    pub(super) pcie_rd_cur_lines_per_op: f64,
    #[serde(rename = "pcie_itom_lines")]
    pub(super) pcie_itom_lines_per_op: f64,
    pub(super) bounds: Bounds,
    pub(super) predicted_mops: f64,
    /// The range in which the rate probably lies: `low_mops` and `high_mops`. Absent if a resource is unknown.
    #[serde(flatten)]
    pub(super) likely_rate: Option<LikelyRange>,
    #[serde(rename = "slower")]
    pub(super) slower_role: Role,
    /// True if at most one operation is outstanding on each queue pair, so that round trips determine the rate.
    #[serde(rename = "waits_for_each")]
    pub(super) waits_for_each_operation: bool,
    /// Maximum number of operations outstanding at a time.
    #[serde(rename = "outstanding")]
    pub(super) max_outstanding_ops: Option<f64>,
    /// Maximum number of messages for whose answers the process waited at a time, if each was answered.
    #[serde(rename = "unanswered")]
    pub(super) max_unanswered: Option<f64>,
    /// Maximum number of messages that waited for an answer of the process, if it answered each.
    #[serde(rename = "to_answer")]
    pub(super) max_to_answer: Option<f64>,
    /// Maximum number of messages for whose answers its clients waited, if these are in the ledger.
    #[serde(skip)]
    pub(super) clients_unanswered: Option<f64>,
    pub(super) bottleneck: Resource,
    /// Resources of the slower side for which the profile has no number.
    #[serde(rename = "unknown")]
    pub(super) unknown_resources: Vec<Resource>,
    pub(super) polls: u64,
    /// The share of polls that found no completion.
    #[serde(rename = "empty_polls")]
    pub(super) empty_poll_share: f64,
    pub(super) completions_a_poll: f64,
    #[serde(rename = "postlists")]
    pub(super) postlist_counts_by_length: Vec<(u64, u64)>,
    #[serde(rename = "payloads")]
    pub(super) payload_counts_by_size: Vec<(u64, u64)>,
    /// Advised changes, in the order in which to make them.
    pub(super) steps: Vec<ChangeStep>,
    /// Advice on each guideline that the process breaks, judged alone.
    pub(super) advice: Vec<Advice>,
    pub(super) notes: Vec<String>,
}

/// Mean run length above which a run counts as a batch that was waiting, if nothing was received.
const MIN_MEAN_RUN_OF_WAITING_BATCH: f64 = 32.0;

/// Mean lengths of postlists and of runs of a program that may post one work request after each answer in its memory.
const MAX_MEAN_POSTLIST_OF_PING_PONG: f64 = 1.5;
const MIN_MEAN_RUN_OF_PING_PONG: f64 = 2.0;

/// Returns a note if inlining is advised to a program of perftest. It inlines only on devices that it knows.
fn note_if_device_unknown_to_perftest(
    provider: &str,
    process: &ProcessPrediction,
) -> Option<String> {
    let command = process.program.split(' ').next()?;
    let is_perftest = Path::new(command)
        .file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with("ib_"));
    let is_advised = process
        .advice
        .iter()
        .any(|advice| advice.guideline == "inlining");
    (provider == "softnic" && is_perftest && is_advised).then(|| {
        "perftest inlines only on devices that it knows: record it with `verbatim run --nic cib --ledger FILE`".to_owned()
    })
}

/// Returns a note if the tap cannot know whether the work requests of a run were ready at the same time. The tap
/// cannot know this if the program may find its work in memory.
fn note_if_readiness_unknown(observed: &OperationProfile) -> Vec<String> {
    let is_long_run = |qp: &QueuePair| {
        qp.mean_operations_per_run() > MIN_MEAN_RUN_OF_WAITING_BATCH
            || qp.mean_postlist_len() < MAX_MEAN_POSTLIST_OF_PING_PONG
                && qp.mean_operations_per_run() >= MIN_MEAN_RUN_OF_PING_PONG
    };
    let from_memory = observed.max_ready().is_none()
        && observed.queue_pairs.iter().all(|qp| qp.received.is_empty())
        && observed.posting_queue_pairs().any(is_long_run);
    from_memory
        .then(|| {
            "it receives no messages, and finds a completion for many work requests at once, so its work may come through \
             its memory, which is not seen: fewer work requests may have waited than is said. If it waits for answers in \
             its memory, round trips bound its rate below what is said (verbatim model --window N)"
                .to_owned()
        })
        .into_iter()
        .collect()
}

/// The cost of one kind of operation.
#[derive(Debug, Serialize)]
pub(super) struct OperationKindCost {
    pub(super) what: String,
    pub(super) role: Role,
    pub(super) count: u64,
    #[serde(rename = "postlist")]
    pub(super) mean_postlist_length: f64,
    pub(super) wqe_bytes: u32,
    pub(super) wqe_lines: u32,
    #[serde(rename = "mmio_writes")]
    pub(super) mmio_writes_per_op: f64,
    #[serde(rename = "dma_reads")]
    pub(super) dma_reads_per_op: f64,
    #[serde(rename = "dma_writes")]
    pub(super) dma_writes_per_op: f64,
    #[serde(rename = "to_device_bytes")]
    pub(super) to_device_bytes_per_op: f64,
    #[serde(rename = "to_host_bytes")]
    pub(super) to_host_bytes_per_op: f64,
}

/// The transactions that one operation causes for one purpose.
#[derive(Debug, Serialize)]
pub(super) struct PurposeTransactions {
    pub(super) purpose: String,
    pub(super) kind: TransactionKind,
    #[serde(rename = "count")]
    pub(super) count_per_op: f64,
    #[serde(rename = "lines")]
    pub(super) cache_lines_per_op: f64,
    #[serde(rename = "to_device_bytes")]
    pub(super) to_device_bytes_per_op: f64,
    #[serde(rename = "to_host_bytes")]
    pub(super) to_host_bytes_per_op: f64,
}

impl Report {
    /// Explains the processes of a ledger on a NIC. Operations that the NIC cannot execute are skipped, with a note.
    ///
    /// # Errors
    /// Returns an error if the model refuses an operation that the NIC can execute.
    pub(super) fn new(ledger: &Ledger, profile: &Profile) -> Result<Self, OperationError> {
        let mut processes = Vec::new();
        let (mut idle_processes, mut impossible_processes) = (0, 0);
        let mut notes = ledger.notes.clone();
        let mut observed = ledger.processes.clone();
        OperationProfile::exchange_unanswered(&mut observed);
        for process in &observed {
            match ProcessPrediction::new(process, profile)? {
                Some(mut process) => {
                    let note = note_if_device_unknown_to_perftest(&ledger.provider, &process);
                    process.notes.extend(note);
                    processes.push(process);
                }
                None => {
                    if process.posted_or_received_operations() == 0 {
                        idle_processes += 1;
                    } else {
                        impossible_processes += 1;
                        let (_, not_possible) = process.restricted_to_executable(profile);
                        let of = |note| format!("process {}: {note}", process.pid);
                        notes.extend(not_possible.into_iter().map(of));
                    }
                    notes.extend(process.notes.iter().cloned());
                }
            }
        }
        let expected = |of: fn(&ProcessPrediction) -> f64| -> f64 {
            let all = processes.iter();
            all.map(|process| of(process) * count_as_f64(process.posted_or_received_count()))
                .sum()
        };
        let pcie = ledger.pcie.map(|counted| {
            let rd_cur_expected = expected(|process| process.pcie_rd_cur_lines_per_op);
            PcieLinesCountedAndExpected {
                rd_cur_counted: counted.rd_cur,
                rd_cur_expected,
                itom_counted: counted.itom,
                itom_expected: expected(|process| process.pcie_itom_lines_per_op),
                estimated_nic_cache_misses: count_as_f64(counted.rd_cur) - rd_cur_expected,
            }
        });
        Ok(Self {
            nic: profile.name.clone(),
            nic_title: profile.title.clone(),
            command: ledger.command.clone(),
            provider: ledger.provider.clone(),
            processes,
            idle_process_count: idle_processes,
            impossible_process_count: impossible_processes,
            pcie,
            notes,
        })
    }

    /// Returns the lines about processes that the report does not explain.
    pub(super) fn unexplained_process_notes(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.processes.is_empty() && self.impossible_process_count == 0 {
            lines.push(
                "No process of it posted or received anything: there is nothing to explain. One-sided verbs are in the \
                 ledger of the program that posts them, not in that of its peer."
                    .to_owned(),
            );
        } else if self.idle_process_count > 0 {
            lines.push(format!(
                "{} more of its processes opened a device and posted and received nothing.",
                self.idle_process_count
            ));
        }
        if self.impossible_process_count > 0 {
            let which = match (self.processes.is_empty(), self.impossible_process_count) {
                (true, _) => "what its processes did".to_owned(),
                (false, 1) => "what one more of its processes did".to_owned(),
                (false, many) => format!("what {many} more of its processes did"),
            };
            lines.push(format!(
                "This NIC can do nothing of {which}; the notes say why."
            ));
        }
        lines
    }
}

/// The polls of all threads of a process, and what they found.
struct PollCounts {
    all_polls: u64,
    empty_polls: u64,
    completions: u64,
}

impl PollCounts {
    fn sum_over_threads(observed: &OperationProfile) -> Self {
        let sum = |of: fn(&nicmodel::op_profile::Thread) -> u64| {
            observed.threads.iter().map(of).fold(0, u64::saturating_add)
        };
        Self {
            all_polls: sum(|thread| thread.poll_calls),
            empty_polls: sum(|thread| thread.empty_polls),
            completions: sum(|thread| thread.completions),
        }
    }
}

/// Returns the number of messages that a process received.
fn received_messages(observed: &OperationProfile) -> u64 {
    let queue_pairs = observed.queue_pairs.iter();
    let counted = queue_pairs.flat_map(|qp| &qp.received);
    counted.fold(0, |sum, counted| sum.saturating_add(counted.count))
}

/// Returns the rate of a process in 10^6 operations or messages a second; `None` if it took no time.
fn observed_mops(observed: &OperationProfile) -> Option<f64> {
    let count = count_as_f64(observed.posted_or_received_operations());
    (observed.duration_ns > 0).then(|| count / count_as_f64(observed.duration_ns) * 1e3)
}

/// Returns the numbers that the profile lacks for either machine, since each may be the bottleneck.
fn unknown_resources(prediction: &Prediction) -> Vec<Resource> {
    let mut unknown = prediction.own_machine_bounds.unknown_resources.clone();
    unknown.extend(&prediction.peer_bounds.unknown_resources);
    unknown.sort();
    unknown.dedup();
    unknown
}

impl ProcessPrediction {
    pub(super) fn new(
        observed: &OperationProfile,
        profile: &Profile,
    ) -> Result<Option<Self>, OperationError> {
        let (fitted, not_possible) = observed.restricted_to_executable(profile);
        let Some(prediction) = fitted.predict(profile)? else {
            return Ok(None);
        };
        let side = fitted.link_transactions_per_operation(profile)?;
        let posted = observed.posted_operations();
        let unknown = unknown_resources(&prediction);
        let Prediction {
            own_machine_bounds: bounds,
            rate_mops: predicted_mops,
            slower_role: slower,
            bottleneck,
            ..
        } = prediction;
        let polls = PollCounts::sum_over_threads(observed);
        Ok(Some(Self {
            pid: observed.pid,
            program: observed.program.clone(),
            complete: observed.complete,
            group_spread: None,
            posted_wrs: posted,
            received_messages: received_messages(observed),
            failed_completions: sum_over_queue_pairs(observed, |qp| qp.failed_completions),
            refused_wrs: sum_over_queue_pairs(observed, |qp| qp.refused_wrs),
            queue_pair_count: observed.queue_pairs.len(),
            max_concurrent_queue_pairs: observed.max_concurrent_queue_pairs(),
            thread_count: u32::try_from(observed.threads.len()).unwrap_or(u32::MAX),
            max_concurrent_threads: observed.max_concurrent_posters(),
            queue_pairs_post_in_turn: observed.posting_queue_pairs().count() as u64
                > u64::from(observed.max_concurrent_queue_pairs()),
            peer_count: observed.peer_count,
            duration_ns: observed.duration_ns,
            observed_mops: observed_mops(observed),
            kinds: costs_by_operation_kind(&fitted, profile)?,
            pcie_transactions_per_op: transactions_sorted_by_bytes(&side),
            to_device_bytes_per_op: side.bytes_to_device(),
            to_host_bytes_per_op: side.bytes_to_host(),
            pcie_rd_cur_lines_per_op: side.cache_lines_read(),
            pcie_itom_lines_per_op: side.cache_lines_written(),
            bounds,
            predicted_mops,
            likely_rate: match unknown.is_empty() {
                true => uncertainty::likely_range_of_rate(bottleneck, predicted_mops),
                false => None,
            },
            slower_role: slower,
            waits_for_each_operation: observed.waits_after_each_operation(),
            max_outstanding_ops: fitted.max_outstanding(),
            max_unanswered: fitted.max_unanswered(),
            max_to_answer: fitted.max_to_answer(),
            clients_unanswered: fitted.clients_unanswered,
            bottleneck,
            unknown_resources: unknown,
            polls: polls.all_polls,
            empty_poll_share: ratio_or_zero(
                count_as_f64(polls.empty_polls),
                count_as_f64(polls.all_polls),
            ),
            completions_a_poll: ratio_or_zero(
                count_as_f64(polls.completions),
                count_as_f64(polls.all_polls.saturating_sub(polls.empty_polls)),
            ),
            postlist_counts_by_length: postlist_length_counts(observed),
            payload_counts_by_size: payload_size_counts(observed),
            steps: guidelines::change_steps(&fitted, profile)?,
            advice: guidelines::advise(&fitted, profile)?,
            notes: [
                observed.notes.clone(),
                not_possible,
                note_if_readiness_unknown(observed),
            ]
            .concat(),
        }))
    }

    /// Returns the number of operations or messages to which the rates refer.
    pub(super) fn posted_or_received_count(&self) -> u64 {
        if self.posted_wrs > 0 {
            self.posted_wrs
        } else {
            self.received_messages
        }
    }

    /// Names the unit of the rates: posted operations, or received messages if none was posted.
    pub(super) fn rate_unit(&self) -> &'static str {
        if self.posted_wrs > 0 {
            "operation"
        } else {
            "message received"
        }
    }
}

fn sum_over_queue_pairs(observed: &OperationProfile, of: fn(&QueuePair) -> u64) -> u64 {
    observed
        .queue_pairs
        .iter()
        .map(of)
        .fold(0, u64::saturating_add)
}

fn ratio_or_zero(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Converts a count to a float. Counts are far below 2^53, or their rounding does no harm.
#[expect(clippy::cast_precision_loss, reason = "a share of counts")]
pub(super) fn count_as_f64(count: u64) -> f64 {
    count as f64
}

fn costs_by_operation_kind(
    observed: &OperationProfile,
    profile: &Profile,
) -> Result<Vec<OperationKindCost>, OperationError> {
    let mut kinds: Vec<OperationKindCost> = Vec::new();
    for qp in &observed.queue_pairs {
        let received = qp.received.iter().map(|counted| {
            let any = PostlistsByMethod {
                mean_len: 1.0,
                work_request_share: 1.0,
            };
            (Role::Responder, counted, any)
        });
        let sent = qp.postlists_by_method().into_iter().flat_map(|lists| {
            let sent = qp.sent.iter();
            sent.map(move |counted| (Role::Requester, counted, lists))
        });
        for (role, counted, lists) in sent.chain(received) {
            let PostlistsByMethod {
                mean_len: postlist,
                work_request_share: share,
            } = lists;
            let count = rounded_share_of_count(counted.count, share);
            if count == 0 {
                continue;
            }
            let operation = &counted.operation;
            let what = describe_operation(operation);
            let same = |kind: &&mut OperationKindCost| {
                // Thousands of queue pairs with the same operation share one line.
                kind.role == role
                    && kind.what == what
                    && (role == Role::Responder
                        || (kind.mean_postlist_length - postlist).abs() < 0.5)
            };
            if let Some(kind) = kinds.iter_mut().find(same) {
                kind.count = kind.count.saturating_add(count);
                continue;
            }
            let one = Footprint::of_one(
                profile,
                operation,
                PostMethod::of_postlist(postlist),
                postlist,
            )?;
            let side = match role {
                Role::Requester => &one.requester,
                Role::Responder => &one.responder,
            };
            let bytes = operation.wqe_bytes(profile);
            kinds.push(OperationKindCost {
                what,
                role,
                count,
                mean_postlist_length: postlist,
                wqe_bytes: bytes,
                wqe_lines: wqe::cache_line_count(bytes),
                mmio_writes_per_op: side.mmio_writes(),
                dma_reads_per_op: side.dma_reads_without_recv_wqes() + side.recv_wqe_reads(),
                dma_writes_per_op: side.dma_writes(),
                to_device_bytes_per_op: side.bytes_to_device(),
                to_host_bytes_per_op: side.bytes_to_host(),
            });
        }
    }
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.count));
    Ok(kinds)
}

/// Returns a share of `count` as a whole number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share of a count is no larger than the count"
)]
fn rounded_share_of_count(count: u64, share: f64) -> u64 {
    (count_as_f64(count) * share).round() as u64
}

/// Formats a description of an operation.
fn describe_operation(operation: &Operation) -> String {
    let mut words = format!("{} {}", operation.transport, operation.verb);
    if operation.has_imm {
        words.push_str(" with immediate");
    }
    if operation.verb.fixed_payload_bytes().is_none() {
        words.push_str(&format!(", {} B", operation.payload_bytes));
    }
    if operation.inline {
        words.push_str(" inline");
    }
    if operation.num_sge > 1 {
        words.push_str(&format!(", {} SGEs", operation.num_sge));
    }
    words
}

fn transactions_sorted_by_bytes(side: &LinkTransactions) -> Vec<PurposeTransactions> {
    let mut items: Vec<_> = side
        .transactions
        .iter()
        .map(|transactions| PurposeTransactions {
            purpose: transactions.purpose.to_string(),
            kind: transactions.purpose.kind(),
            count_per_op: transactions.count,
            cache_lines_per_op: transactions.cache_lines,
            to_device_bytes_per_op: transactions.bytes_to_device(),
            to_host_bytes_per_op: transactions.bytes_to_host(),
        })
        .collect();
    let bytes =
        |item: &PurposeTransactions| item.to_device_bytes_per_op + item.to_host_bytes_per_op;
    items.sort_by(|a, b| bytes(b).total_cmp(&bytes(a)));
    items
}

/// Counts postlists by length, over all queue pairs.
fn postlist_length_counts(observed: &OperationProfile) -> Vec<(u64, u64)> {
    let all = observed
        .queue_pairs
        .iter()
        .flat_map(|qp| &qp.postlist_lengths);
    sum_counts_by_class(all.map(|lengths| (lengths.max_postlist_len, lengths.count)))
}

/// Counts posted and received payloads by the next power of two.
fn payload_size_counts(observed: &OperationProfile) -> Vec<(u64, u64)> {
    let all = observed
        .queue_pairs
        .iter()
        .flat_map(|qp| qp.sent.iter().chain(&qp.received));
    sum_counts_by_class(all.map(|counted| {
        let bytes = u64::from(counted.operation.payload_bytes);
        let class = if bytes == 0 {
            0
        } else {
            bytes.next_power_of_two()
        };
        (class, counted.count)
    }))
}

fn sum_counts_by_class(counts: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut all = std::collections::BTreeMap::<u64, u64>::new();
    for (class, count) in counts {
        let known = all.entry(class).or_default();
        *known = known.saturating_add(count);
    }
    all.into_iter().collect()
}
