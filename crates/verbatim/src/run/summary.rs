//! `verbatim run --summary`: a short report on a command's use of RDMA.

use std::collections::BTreeMap;
use std::fmt::Write;

use indicatif::{DecimalBytes, HumanCount};
use nicmodel::op_profile::{OperationProfile, QueuePair};
use nicmodel::{Transport, Verb};
use tap::Ledger;

/// Maximum number of characters of a command line that is printed whole.
const MAX_PRINTED_COMMAND_CHARS: usize = 60;

/// The counts of one process.
#[derive(Default)]
struct ProcessCounts {
    queue_pair_count_by_transport: BTreeMap<Transport, u64>,
    sent_count_and_bytes: BTreeMap<Verb, (u64, u64)>,
    received_messages: u64,
    failed_completions: u64,
    refused_posts: u64,
}

impl ProcessCounts {
    fn of(process: &OperationProfile) -> Self {
        let mut sums = Self::default();
        process
            .queue_pairs
            .iter()
            .for_each(|qp| sums.add_queue_pair(qp));
        sums
    }

    fn add_queue_pair(&mut self, qp: &QueuePair) {
        *self
            .queue_pair_count_by_transport
            .entry(qp.transport)
            .or_default() += 1;
        for counted in &qp.sent {
            let (count, bytes) = self
                .sent_count_and_bytes
                .entry(counted.operation.verb)
                .or_default();
            *count += counted.count;
            *bytes += counted.count * u64::from(counted.operation.payload_bytes);
        }
        self.received_messages += qp.received.iter().map(|counted| counted.count).sum::<u64>();
        self.failed_completions += qp.failed_completions;
        self.refused_posts += qp.refused_wrs;
    }

    fn sent_work_requests(&self) -> u64 {
        self.sent_count_and_bytes
            .values()
            .map(|(count, _)| count)
            .sum()
    }

    fn sent_bytes(&self) -> u64 {
        self.sent_count_and_bytes
            .values()
            .map(|(_, bytes)| bytes)
            .sum()
    }

    /// Formats the counts as one line: queue pairs, work requests by verb, failures.
    fn summary_line(&self) -> String {
        if self.queue_pair_count_by_transport.is_empty() {
            return "opened a device, and created no queue pair".to_owned();
        }
        let mut words: Vec<String> = self
            .queue_pair_count_by_transport
            .iter()
            .map(|(transport, count)| format!("{count} {transport} queue pair{}", plural(*count)))
            .collect();
        for (verb, (count, bytes)) in &self.sent_count_and_bytes {
            words.push(format!(
                "{} {verb} ({})",
                HumanCount(*count),
                DecimalBytes(*bytes)
            ));
        }
        if self.received_messages > 0 {
            words.push(format!("{} RECV", HumanCount(self.received_messages)));
        }
        for (count, what) in [
            (self.failed_completions, "failed"),
            (self.refused_posts, "refused"),
        ] {
            if count > 0 {
                words.push(format!("{} {what}", HumanCount(count)));
            }
        }
        words.join(", ")
    }
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// Formats the report on a command.
pub(super) fn format_report(ledger: &Ledger) -> String {
    let nic = match ledger.provider.as_str() {
        "system" => "the machine's own NIC",
        _ => "the software NIC",
    };
    let processes: Vec<_> = ledger
        .processes
        .iter()
        .map(|process| (process, ProcessCounts::of(process)))
        .collect();
    let count = processes.len() as u64;
    let requests: u64 = processes
        .iter()
        .map(|(_, sums)| sums.sent_work_requests())
        .sum();
    let bytes: u64 = processes.iter().map(|(_, sums)| sums.sent_bytes()).sum();
    let failed: u64 = processes
        .iter()
        .map(|(_, sums)| sums.failed_completions)
        .sum();
    let received: u64 = processes
        .iter()
        .map(|(_, sums)| sums.received_messages)
        .sum();
    let queue_pairs = processes
        .iter()
        .any(|(_, sums)| !sums.queue_pair_count_by_transport.is_empty());
    let processes_word = if count == 1 { "process" } else { "processes" };
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = match (count, requests + received) {
        (0, _) => writeln!(text, "RDMA: not used; no process opened an RDMA device"),
        (_, 0) if queue_pairs => writeln!(
            text,
            "RDMA: {count} {processes_word} created queue pairs on {nic} and sent nothing; peers may have read and \
             written memory of it by RDMA"
        ),
        (_, 0) => writeln!(
            text,
            "RDMA: not used; {count} {processes_word} opened {nic} and created no queue pair"
        ),
        _ => writeln!(
            text,
            "RDMA: used by {count} {processes_word} on {nic}: {} work requests, {} sent, {} failed",
            HumanCount(requests),
            DecimalBytes(bytes),
            if failed == 0 {
                "none".to_owned()
            } else {
                HumanCount(failed).to_string()
            },
        ),
    };
    for (process, sums) in &processes {
        let _ = writeln!(text, "  {}: {}", process_name(process), sums.summary_line());
    }
    for note in &ledger.notes {
        let _ = writeln!(text, "  note: {note}");
    }
    text
}

/// Returns a name for a process: its process id and its command line.
fn process_name(process: &OperationProfile) -> String {
    let shown: String = process
        .program
        .chars()
        .take(MAX_PRINTED_COMMAND_CHARS)
        .collect();
    let cut = if shown.len() < process.program.len() {
        "…"
    } else {
        ""
    };
    format!("process {} ({shown}{cut})", process.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(queue_pairs: &str) -> Ledger {
        let processes = if queue_pairs == "none" {
            String::new()
        } else {
            format!(
                r#"{{"version": 2, "program": "job", "pid": 7, "duration_ns": 1, "complete": true, "threads": [],
                "queue_pairs": [{queue_pairs}], "peers": 1, "memory": {{"registered_bytes": 0, "huge_page_bytes": 0}}}}"#
            )
        };
        let text = format!(
            r#"{{"format": "verbatim ledger", "version": 2, "command": "job", "provider": "softnic",
            "processes": [{processes}], "notes": []}}"#
        );
        Ledger::parse(&text).expect("a ledger")
    }

    #[test]
    fn what_was_not_used_is_said_in_one_line() {
        assert!(format_report(&ledger("none")).starts_with("RDMA: not used; no process"));
        let opened = format_report(&ledger(""));
        assert!(
            opened.starts_with("RDMA: not used; 1 process opened"),
            "{opened}"
        );
        assert!(opened.contains("created no queue pair"), "{opened}");
        let target = format_report(&ledger(
            r#"{"qpn": 1, "transport": "rc", "sent": [], "postlists": 0, "runs": 0, "received": [], "max_outstanding": 0,
            "mean_outstanding": 0.0, "adjacent_reads": 0, "atomic_slots": []}"#,
        ));
        assert!(
            target.starts_with("RDMA: 1 process created queue pairs"),
            "{target}"
        );
    }

    #[test]
    fn verbs_bytes_and_failures_are_counted() {
        let text = format_report(&ledger(
            r#"{"qpn": 1, "transport": "rc", "sent": [{"operation": {"verb": "rdma-write", "transport": "rc",
            "payload_bytes": 64, "inline": false, "imm": false, "signaled": 1.0, "num_sge": 1, "receive": "regular"},
            "count": 1000}], "postlists": 1000, "runs": 1000, "received": [], "max_outstanding": 1,
            "mean_outstanding": 1.0, "adjacent_reads": 0, "atomic_slots": [], "failed": 3}"#,
        ));
        assert!(
            text.contains("1,000 work requests, 64.00 kB sent, 3 failed"),
            "{text}"
        );
        assert!(
            text.contains("process 7 (job): 1 RC queue pair, 1,000 WRITE (64.00 kB), 3 failed"),
            "{text}"
        );
    }
}
