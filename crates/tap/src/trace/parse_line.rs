//! Parsing of trace lines.

use serde::Serialize;

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TraceLine {
    /// Time in nanoseconds of `CLOCK_MONOTONIC` at which the verb returned, or at which a post began.
    pub at_ns: u64,
    /// The process id.
    pub pid: u32,
    /// The thread id.
    pub tid: u32,
    /// The verb or the note that the line describes.
    #[serde(flatten)]
    pub event: TraceEvent,
}

/// The verb or the note in a line of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum TraceEvent {
    /// A work request was posted to a send queue.
    PostSend(PostSend),
    /// A work request was posted to a receive queue.
    PostRecv(PostRecv),
    /// A poll found a completion.
    Completion(TracedCompletion),
    /// Consecutive polls of a completion queue found no completion.
    EmptyPolls {
        /// The completion queue, such as `cq1`.
        cq: String,
        /// Number of consecutive polls without a completion.
        count: u64,
    },
    /// A verb that is neither a post nor a poll.
    Call {
        /// The name of the function.
        verb: String,
        /// The text of the arguments in the trace line.
        arguments: String,
        /// The result, and the values that the call stored; `None` for a function that returns nothing.
        result: Option<String>,
    },
    /// A line without a verb, such as that of an injected fault.
    Note {
        /// The text of the line.
        text: String,
    },
}

/// A work request of a send queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PostSend {
    /// The queue pair, such as `qp1`; numbered within the process.
    pub qp: String,
    /// Position of the work request in the postlist, from 1.
    pub index: u32,
    /// Number of work requests in the postlist.
    #[serde(rename = "list")]
    pub list_len: u32,
    /// The program's `wr_id`.
    pub wr_id: u64,
    /// The opcode, such as `RDMA_WRITE`.
    pub opcode: String,
    /// Payload in bytes.
    pub bytes: u64,
    /// Flags of `IBV_SEND_…`, such as `SIGNALED`.
    pub flags: Vec<String>,
    /// The reason why the work request was refused; `None` if it was accepted.
    #[serde(rename = "refused")]
    pub refusal_reason: Option<String>,
}

/// A work request of a receive queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PostRecv {
    /// The queue pair or the shared receive queue, such as `srq1`.
    pub queue: String,
    /// Position of the work request in the posted list, from 1.
    pub index: u32,
    /// Number of work requests in the posted list.
    #[serde(rename = "list")]
    pub list_len: u32,
    /// The program's `wr_id`.
    pub wr_id: u64,
    /// Sum of the buffer sizes in bytes.
    pub bytes: u64,
    /// The reason why the work request was refused; `None` if it was accepted.
    #[serde(rename = "refused")]
    pub refusal_reason: Option<String>,
}

/// A completion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TracedCompletion {
    /// The completion queue, such as `cq1`.
    pub cq: String,
    /// Position of the completion among the completions that the poll found, from 1.
    pub index: u32,
    /// Number of completions that the poll found.
    #[serde(rename = "list")]
    pub completions_in_poll: u32,
    /// The program's `wr_id` of the work request.
    pub wr_id: u64,
    /// The status, such as `SUCCESS`.
    pub status: String,
    /// The opcode, such as `RECV`; `None` if the opcode is not valid or was not requested.
    pub opcode: Option<String>,
    /// Number of bytes received or read; `None` if the completion has no length.
    pub bytes: Option<u64>,
    /// The QP number; `None` if it was not requested.
    pub qpn: Option<u32>,
    /// Vendor error of a failed completion.
    pub vendor_err: Option<u32>,
    /// Number of polls without a completion directly before this completion.
    pub empty_polls: u64,
}

impl TraceLine {
    /// Parses a line of a trace; returns `None` for comments and text that is not a trace line.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (seconds, rest) = line.trim_end().split_once(' ')?;
        let (process, text) = rest.split_once(' ')?;
        let (pid, tid) = process.split_once('/')?;
        Some(Self {
            at_ns: parse_seconds_as_ns(seconds)?,
            pid: pid.parse().ok()?,
            tid: tid.parse().ok()?,
            event: TraceEvent::parse(text),
        })
    }
}

fn parse_seconds_as_ns(seconds: &str) -> Option<u64> {
    let (whole, fraction) = seconds.split_once('.')?;
    if fraction.len() != 9 {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    whole
        .checked_mul(1_000_000_000)?
        .checked_add(fraction.parse().ok()?)
}

impl TraceEvent {
    fn parse(text: &str) -> Self {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let of_the_data_path = match words.as_slice() {
            ["post_send" | "wr_complete", ..] => PostSend::parse(&words).map(Self::PostSend),
            ["post_recv" | "post_srq_recv", ..] => PostRecv::parse(&words).map(Self::PostRecv),
            [_, cq, "has", "found", "nothing", count, "times"] => {
                count.parse().ok().map(|count| Self::EmptyPolls {
                    cq: (*cq).to_owned(),
                    count,
                })
            }
            [_, cq, ..] if cq.starts_with("cq") => {
                TracedCompletion::parse(&words).map(Self::Completion)
            }
            _ => None,
        };
        of_the_data_path.unwrap_or_else(|| Self::parse_call(text))
    }

    fn parse_call(text: &str) -> Self {
        let parts = text.split_once('(').filter(|(verb, _)| {
            !verb.is_empty() && verb.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        });
        let Some((verb, rest)) = parts else {
            return Self::Note {
                text: text.to_owned(),
            };
        };
        let (arguments, result) = match rest.rsplit_once(") = ") {
            Some((arguments, result)) => (arguments, Some(result.to_owned())),
            None => (rest.strip_suffix(')').unwrap_or(rest), None),
        };
        Self::Call {
            verb: verb.to_owned(),
            arguments: arguments.to_owned(),
            result,
        }
    }
}

/// Parses a position and a list length: `2/16` → (2, 16).
fn parse_position_and_list_len(word: &str) -> Option<(u32, u32)> {
    let (index, list) = word.split_once('/')?;
    Some((index.parse().ok()?, list.parse().ok()?))
}

/// Parses the first words of a work request or a completion: queue, position, list length and `wr_id`.
fn parse_queue_position_and_wr_id<'a>(words: &[&'a str]) -> Option<(&'a str, (u32, u32), u64)> {
    let [_, queue, at, wr_id, ..] = words else {
        return None;
    };
    let wr_id = wr_id.strip_prefix("wr_id=")?.parse().ok()?;
    Some((queue, parse_position_and_list_len(at)?, wr_id))
}

/// Returns the words behind `refused:`, which are the reason of a refusal.
fn parse_refusal_reason(words: &[&str]) -> Option<String> {
    let at = words.iter().position(|word| *word == "refused:")?;
    Some(words.get(at + 1..)?.join(" "))
}

/// Returns the number of bytes: the number before the word `B`.
fn parse_byte_count(words: &[&str]) -> Option<u64> {
    let at = words.iter().position(|word| *word == "B")?;
    words.get(at.checked_sub(1)?)?.parse().ok()
}

/// Returns the hexadecimal number behind the word `name`.
fn parse_hex_after(words: &[&str], name: &str) -> Option<u32> {
    let at = words.iter().position(|word| *word == name)?;
    u32::from_str_radix(words.get(at + 1)?.strip_prefix("0x")?, 16).ok()
}

impl PostSend {
    fn parse(words: &[&str]) -> Option<Self> {
        let (qp, (index, list), wr_id) = parse_queue_position_and_wr_id(words)?;
        // Flags follow the payload and its SGEs, and precede the destination.
        let flags = match words.get(7..10) {
            Some(["in", _, "SGEs"]) => words.get(10),
            _ => words.get(7),
        };
        let is_flags = |word: &&str| {
            word.bytes()
                .all(|b| b.is_ascii_uppercase() || matches!(b, b'|' | b'_'))
        };
        Some(Self {
            qp: qp.to_owned(),
            index,
            list_len: list,
            wr_id,
            opcode: (*words.get(4)?).to_owned(),
            bytes: parse_byte_count(words)?,
            flags: flags
                .filter(|word| is_flags(word))
                .map(|word| word.split('|').map(str::to_owned).collect())
                .unwrap_or_default(),
            refusal_reason: parse_refusal_reason(words),
        })
    }
}

impl PostRecv {
    fn parse(words: &[&str]) -> Option<Self> {
        let (queue, (index, list), wr_id) = parse_queue_position_and_wr_id(words)?;
        Some(Self {
            queue: queue.to_owned(),
            index,
            list_len: list,
            wr_id,
            bytes: parse_byte_count(words)?,
            refusal_reason: parse_refusal_reason(words),
        })
    }
}

impl TracedCompletion {
    fn parse(words: &[&str]) -> Option<Self> {
        let (cq, (index, list), wr_id) = parse_queue_position_and_wr_id(words)?;
        let status = (*words.get(4)?).to_owned();
        let opcode = words
            .get(5)
            .filter(|word| status == "SUCCESS" && !matches!(**word, "QPN" | "after"));
        let empty_polls = match words {
            [.., "after", count, "empty", "polls"] => count.parse().ok()?,
            _ => 0,
        };
        Some(Self {
            cq: cq.to_owned(),
            index,
            completions_in_poll: list,
            wr_id,
            opcode: opcode.map(|word| (*word).to_owned()),
            status,
            bytes: parse_byte_count(words),
            qpn: parse_hex_after(words, "QPN"),
            vendor_err: parse_hex_after(words, "vendor_err"),
            empty_polls,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn event(text: &str) -> TraceEvent {
        let line =
            TraceLine::parse(&format!("21377.540164916 17724/17725 {text}")).expect("a line");
        assert_eq!(line.at_ns, 21_377_540_164_916);
        assert_eq!((line.pid, line.tid), (17724, 17725));
        line.event
    }

    #[test]
    fn work_requests() {
        let text = "post_send qp1 2/16 wr_id=7 RDMA_WRITE 64 B INLINE|SIGNALED to 0x7f00 rkey 0x1";
        let post = PostSend {
            qp: "qp1".to_owned(),
            index: 2,
            list_len: 16,
            wr_id: 7,
            opcode: "RDMA_WRITE".to_owned(),
            bytes: 64,
            flags: vec!["INLINE".to_owned(), "SIGNALED".to_owned()],
            refusal_reason: None,
        };
        assert_eq!(event(text), TraceEvent::PostSend(post.clone()));
        let text = "wr_complete qp1 2/16 wr_id=7 RDMA_WRITE 64 B in 3 SGEs to 0x7f00 rkey 0x1 \
                    refused: ENOMEM (Cannot allocate memory)";
        let refused = PostSend {
            flags: Vec::new(),
            refusal_reason: Some("ENOMEM (Cannot allocate memory)".to_owned()),
            ..post.clone()
        };
        assert_eq!(event(text), TraceEvent::PostSend(refused));
        let text = "post_send qp1 2/16 wr_id=7 RDMA_WRITE 64 B in 3 SGEs INLINE|SIGNALED";
        assert_eq!(event(text), TraceEvent::PostSend(post));
        let text = "post_srq_recv srq1 1/1 wr_id=1 4096 B in 1 SGEs";
        let recv = PostRecv {
            queue: "srq1".to_owned(),
            index: 1,
            list_len: 1,
            wr_id: 1,
            bytes: 4096,
            refusal_reason: None,
        };
        assert_eq!(event(text), TraceEvent::PostRecv(recv));
    }

    #[test]
    fn completions() {
        let text =
            "poll_cq cq1 1/2 wr_id=1 SUCCESS RECV 4096 B QPN 0x31c000 after 4632 empty polls";
        let found = TracedCompletion {
            cq: "cq1".to_owned(),
            index: 1,
            completions_in_poll: 2,
            wr_id: 1,
            status: "SUCCESS".to_owned(),
            opcode: Some("RECV".to_owned()),
            bytes: Some(4096),
            qpn: Some(0x31_c000),
            vendor_err: None,
            empty_polls: 4632,
        };
        assert_eq!(event(text), TraceEvent::Completion(found));
        let text = "poll_cq cq1 1/1 wr_id=9 RETRY_EXC_ERR QPN 0x8000 vendor_err 0x22";
        let failed = TracedCompletion {
            cq: "cq1".to_owned(),
            index: 1,
            completions_in_poll: 1,
            wr_id: 9,
            status: "RETRY_EXC_ERR".to_owned(),
            qpn: Some(0x8000),
            vendor_err: Some(0x22),
            ..TracedCompletion::default()
        };
        assert_eq!(event(text), TraceEvent::Completion(failed));
        let empty = TraceEvent::EmptyPolls {
            cq: "cq1".to_owned(),
            count: 1000,
        };
        assert_eq!(event("poll_cq cq1 has found nothing 1000 times"), empty);
    }

    #[test]
    fn other_verbs() {
        let call = |verb: &str, arguments: &str, result: Option<&str>| TraceEvent::Call {
            verb: verb.to_owned(),
            arguments: arguments.to_owned(),
            result: result.map(str::to_owned),
        };
        assert_eq!(
            event("ibv_destroy_qp(qp=qp1) = 0"),
            call("ibv_destroy_qp", "qp=qp1", Some("0"))
        );
        assert_eq!(
            event("ibv_ack_cq_events(cq=cq1, nevents=0)"),
            call("ibv_ack_cq_events", "cq=cq1, nevents=0", None)
        );
        let text = "fault 1 (drop 1% of packets): a packet of qp1";
        let note = TraceEvent::Note {
            text: text.to_owned(),
        };
        assert_eq!(event(text), note);
    }

    #[test]
    fn what_is_no_line() {
        for line in [
            "",
            "# a comment",
            "1.5 3/4 x",
            "1.000000000 3 x",
            "a.000000000 3/4 x",
        ] {
            assert_eq!(TraceLine::parse(line), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "[ -~]{0,80}", verb in "post_send|poll_cq|post_recv|wr_complete|") {
            let _ = TraceLine::parse(&text);
            let _ = TraceLine::parse(&format!("1.000000000 1/1 {verb} {text}"));
            let _ = TraceLine::parse(&format!("1.000000000 1/1 {verb} cq1 1/1 wr_id=1 {text}"));
        }
    }
}
