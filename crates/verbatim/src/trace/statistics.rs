//! Statistics of the times of work requests from post to completion, by verb.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;
use tap::trace::{TraceEvent, TraceLine};

use super::work::TracedWork;
use crate::output::{format_three_digits, format_time_ns, table};

/// Counts by process and verb and, if the user wants so, by queue pair.
pub(super) struct Statistics {
    is_grouped_by_qp: bool,
    counts_by_process_qp_and_verb: BTreeMap<ProcessQueuePairVerb, VerbCounts>,
    poll_counts_by_cq: BTreeMap<(u32, String), PollCounts>,
}

/// Process, optional queue pair (number and name), and verb.
type ProcessQueuePairVerb = (u32, Option<(u32, String)>, String);

struct VerbCounts {
    requests: u64,
    bytes: u64,
    postlists: u64,
    failed_requests: u64,
    unsignaled_requests: u64,
    /// Number of work requests whose completion is unknown at the end of the trace.
    unknown_completions: u64,
    post_to_completion_ns: Histogram<u64>,
}

/// A row of the statistics.
#[derive(Serialize)]
pub(super) struct Row {
    pid: u32,
    /// Name of the queue pair; null if all queue pairs of a process are counted together.
    #[serde(rename = "qp")]
    qp_name: Option<String>,
    qpn: Option<u32>,
    verb: String,
    requests: u64,
    bytes: u64,
    /// Number of posted lists, each of which rings one doorbell.
    #[serde(rename = "lists")]
    postlists: u64,
    #[serde(rename = "failed")]
    failed_requests: u64,
    #[serde(rename = "unsignaled")]
    unsignaled_requests: u64,
    #[serde(rename = "pending")]
    unknown_completions: u64,
    /// Statistics of the times from post to completion; null without any completion.
    #[serde(rename = "time_ns")]
    post_to_completion_ns: Option<CompletionTimeStatistics>,
}

#[derive(Serialize)]
struct CompletionTimeStatistics {
    #[serde(rename = "p50")]
    p50_ns: u64,
    #[serde(rename = "p90")]
    p90_ns: u64,
    #[serde(rename = "p99")]
    p99_ns: u64,
    #[serde(rename = "max")]
    max_ns: u64,
    /// Histogram of the times. Each entry has an upper bound in ns, a power of two, and the number
    /// of times up to this bound and above the previous one.
    histogram: Vec<(u64, u64)>,
}

/// Counts of the polls of a completion queue.
#[derive(Clone, Default, Serialize)]
pub(super) struct PollCounts {
    pid: u32,
    #[serde(rename = "cq")]
    cq_name: String,
    completions: u64,
    /// Number of polls that found completions.
    #[serde(rename = "polls")]
    successful_polls: u64,
    /// Number of polls that found no completion; they count only if a completion came after them.
    #[serde(rename = "empty")]
    empty_polls: u64,
}

impl Statistics {
    pub(super) fn new(by_qp: bool) -> Self {
        Self {
            is_grouped_by_qp: by_qp,
            counts_by_process_qp_and_verb: BTreeMap::new(),
            poll_counts_by_cq: BTreeMap::new(),
        }
    }

    pub(super) fn count_work(&mut self, work: &TracedWork) {
        let qp = self
            .is_grouped_by_qp
            .then(|| (work.qpn.unwrap_or(0), work.qp_or_srq_name.clone()));
        let counted = self
            .counts_by_process_qp_and_verb
            .entry((work.pid, qp, work.verb.clone()))
            .or_insert_with(VerbCounts::new);
        counted.requests += 1;
        counted.bytes += work.bytes;
        counted.postlists += u64::from(work.is_first_of_postlist);
        counted.unsignaled_requests += u64::from(!work.is_signaled);
        let status = work.status.as_deref();
        counted.failed_requests += u64::from(status.is_some_and(|status| status != "SUCCESS"));
        match work.known_complete_at_ns {
            Some(at) => {
                let took = at.saturating_sub(work.posted_ns);
                // A time above an hour is recorded as an hour.
                counted.post_to_completion_ns.saturating_record(took);
            }
            None => counted.unknown_completions += 1,
        }
    }

    /// Counts the completions and polls of a line.
    pub(super) fn count_polls_and_completions(&mut self, line: &TraceLine) {
        if let TraceEvent::Completion(found) = &line.event {
            let key = (line.pid, found.cq.clone());
            let polls = self
                .poll_counts_by_cq
                .entry(key)
                .or_insert_with(|| PollCounts {
                    pid: line.pid,
                    cq_name: found.cq.clone(),
                    ..PollCounts::default()
                });
            polls.completions += 1;
            polls.successful_polls += u64::from(found.index == 1);
            polls.empty_polls += found.empty_polls;
        }
    }

    pub(super) fn rows(&self) -> Vec<Row> {
        let rows = self
            .counts_by_process_qp_and_verb
            .iter()
            .map(|((pid, qp, verb), counted)| Row {
                pid: *pid,
                qp_name: qp.as_ref().map(|(_, name)| name.clone()),
                qpn: qp.as_ref().map(|(number, _)| *number),
                verb: verb.clone(),
                requests: counted.requests,
                bytes: counted.bytes,
                postlists: counted.postlists,
                failed_requests: counted.failed_requests,
                unsignaled_requests: counted.unsignaled_requests,
                unknown_completions: counted.unknown_completions,
                post_to_completion_ns: counted.completion_time_statistics(),
            });
        rows.collect()
    }

    pub(super) fn poll_counts(&self) -> Vec<PollCounts> {
        self.poll_counts_by_cq.values().cloned().collect()
    }

    /// Formats the statistics as tables.
    pub(super) fn format_tables(&self) -> String {
        let mut rows = table(
            [
                "process",
                "queue pair",
                "verb",
                "requests",
                "bytes",
                "per list",
                "failed",
                "unsignaled",
                "pending",
                "p50",
                "p90",
                "p99",
                "max",
            ],
            &[3, 4, 5, 6, 7, 8, 9, 10, 11, 12],
        );
        for row in self.rows() {
            let shown = |ns: fn(&CompletionTimeStatistics) -> u64| {
                let times = row.post_to_completion_ns.as_ref();
                times.map_or_else(|| "–".to_owned(), |times| format_integer_ns(ns(times)))
            };
            let qp = row.qp_name.as_ref().zip(row.qpn);
            rows.add_row([
                row.pid.to_string(),
                qp.map_or_else(
                    || "all".to_owned(),
                    |(name, qpn)| format!("{name} {qpn:#x}"),
                ),
                row.verb.clone(),
                row.requests.to_string(),
                row.bytes.to_string(),
                format_ratio(row.requests, row.postlists),
                row.failed_requests.to_string(),
                row.unsignaled_requests.to_string(),
                row.unknown_completions.to_string(),
                shown(|t| t.p50_ns),
                shown(|t| t.p90_ns),
                shown(|t| t.p99_ns),
                shown(|t| t.max_ns),
            ]);
        }
        let mut text = format!(
            "From post to completion; of a RECV, until a message was there. Pending: the trace has no completion\n\n{rows}\n"
        );
        for polls in self.poll_counts() {
            text += &format!(
                "\nprocess {} {}: {} completions, {} a poll; {} empty polls before them",
                polls.pid,
                polls.cq_name,
                polls.completions,
                format_ratio(polls.completions, polls.successful_polls),
                polls.empty_polls
            );
        }
        text
    }
}

#[allow(clippy::cast_precision_loss)] // figures for people
fn format_ratio(of: u64, to: u64) -> String {
    format_three_digits(of as f64 / to.max(1) as f64)
}

#[allow(clippy::cast_precision_loss)] // figures for people
fn format_integer_ns(ns: u64) -> String {
    format_time_ns(ns as f64)
}

/// The longest time in ns that the histogram distinguishes: an hour.
const MAX_DISTINGUISHED_NS: u64 = 3_600_000_000_000;

impl VerbCounts {
    fn new() -> Self {
        Self {
            requests: 0,
            bytes: 0,
            postlists: 0,
            failed_requests: 0,
            unsignaled_requests: 0,
            unknown_completions: 0,
            post_to_completion_ns: Histogram::new_with_max(MAX_DISTINGUISHED_NS, 2)
                .expect("the bounds are in range"),
        }
    }

    fn completion_time_statistics(&self) -> Option<CompletionTimeStatistics> {
        let times = &self.post_to_completion_ns;
        if times.is_empty() {
            return None;
        }
        let mut histogram = Vec::new();
        let mut bound = 1;
        for value in times.iter_recorded() {
            let at = value.value_iterated_to();
            bound = at.next_power_of_two().max(bound);
            match histogram.last_mut() {
                Some((last, count)) if *last == bound => {
                    *count += value.count_since_last_iteration()
                }
                _ => histogram.push((bound, value.count_since_last_iteration())),
            }
        }
        Some(CompletionTimeStatistics {
            p50_ns: times.value_at_quantile(0.5),
            p90_ns: times.value_at_quantile(0.9),
            p99_ns: times.value_at_quantile(0.99),
            max_ns: times.max(),
            histogram,
        })
    }
}
