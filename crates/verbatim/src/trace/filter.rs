//! The flags that select lines of a trace.

use std::collections::{HashMap, HashSet};

use tap::trace::{TraceEvent, TraceLine};

/// Flags that select lines of a trace.
#[derive(Debug, Default, clap::Args)]
pub(super) struct TraceFilter {
    /// Lines of this process only
    #[arg(long)]
    pid: Option<u32>,
    /// Work requests and completions of this queue pair only: its number (0x8000), or its name in the trace (qp1)
    #[arg(long, value_name = "QPN|NAME")]
    qp: Option<String>,
    /// This verb only: a function (post_send), or an operation (RDMA_WRITE); completions have the operation's name
    #[arg(long, value_name = "NAME")]
    verb: Option<String>,
}

/// The QP number of each queue pair by its name, and the name by the number. Completions contain the number, and
/// posts contain the name. Also the queue pairs whose work requests are all signaled.
#[derive(Debug, Default)]
pub(super) struct QpNamesAndNumbers {
    qpn_by_name: HashMap<(u32, String), u32>,
    name_by_qpn: HashMap<(u32, u32), String>,
    names_with_sq_sig_all: HashSet<(u32, String)>,
}

impl QpNamesAndNumbers {
    /// Records the queue pair that a line creates.
    pub(super) fn record_created_qp(&mut self, line: &TraceLine) {
        let TraceEvent::Call {
            arguments,
            result: Some(result),
            ..
        } = &line.event
        else {
            return;
        };
        // `qp1, QPN 0x8000`
        let mut words = result.split([',', ' ']).filter(|word| !word.is_empty());
        let (Some(name), Some("QPN"), Some(number)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        if let Some(number) = parse_0x_number(number).filter(|_| name.starts_with("qp")) {
            let key = (line.pid, name.to_owned());
            if arguments.contains("sq_sig_all 1") {
                self.names_with_sq_sig_all.insert(key.clone());
            }
            self.qpn_by_name.insert(key, number);
            self.name_by_qpn.insert((line.pid, number), name.to_owned());
        }
    }

    pub(super) fn find_qpn(&self, pid: u32, name: &str) -> Option<u32> {
        self.qpn_by_name.get(&(pid, name.to_owned())).copied()
    }

    /// Returns true if the queue pair signals all work requests.
    pub(super) fn signals_all(&self, pid: u32, name: &str) -> bool {
        self.names_with_sq_sig_all.contains(&(pid, name.to_owned()))
    }

    pub(super) fn name(&self, pid: u32, number: u32) -> Option<&str> {
        self.name_by_qpn.get(&(pid, number)).map(String::as_str)
    }
}

fn parse_0x_number(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

impl TraceFilter {
    /// Returns true if the line passes the filter.
    pub(super) fn admits(&self, line: &TraceLine, queues: &QpNamesAndNumbers) -> bool {
        self.pid.is_none_or(|pid| pid == line.pid)
            && self
                .qp
                .as_ref()
                .is_none_or(|qp| is_about_qp(line, qp, queues))
            && self
                .verb
                .as_ref()
                .is_none_or(|verb| may_concern_verb(line, verb))
    }
}

fn is_about_qp(line: &TraceLine, qp: &str, queues: &QpNamesAndNumbers) -> bool {
    let wanted = parse_0x_number(qp);
    let is_named =
        |name: &str| name == qp || wanted.is_some() && queues.find_qpn(line.pid, name) == wanted;
    match &line.event {
        TraceEvent::PostSend(post) => is_named(&post.qp),
        TraceEvent::PostRecv(post) => is_named(&post.queue),
        TraceEvent::Completion(found) => found.qpn.is_some_and(|qpn| {
            wanted == Some(qpn) || queues.name(line.pid, qpn).is_some_and(|name| name == qp)
        }),
        TraceEvent::EmptyPolls { .. } | TraceEvent::Call { .. } | TraceEvent::Note { .. } => false,
    }
}

fn may_concern_verb(line: &TraceLine, verb: &str) -> bool {
    match &line.event {
        TraceEvent::PostSend(post) => verb == "post_send" || post.opcode == verb,
        TraceEvent::PostRecv(_) => verb == "post_recv" || verb == "RECV",
        // A failed completion does not name its operation, so it passes the filter.
        TraceEvent::Completion(found) => {
            verb == "poll_cq" || found.opcode.as_deref().is_none_or(|opcode| opcode == verb)
        }
        TraceEvent::EmptyPolls { .. } => verb == "poll_cq",
        TraceEvent::Call { verb: called, .. } => called == verb,
        TraceEvent::Note { .. } => false,
    }
}
