//! Converts a trace to Chrome's trace event format, which Perfetto opens. A work request is a slice
//! on a track of its queue pair, from post to completion. Each other verb is an instant on the
//! track of its thread.
//!
//! Slices of one track must not overlap unless one contains the other, but work requests of a queue
//! pair do overlap. A queue pair therefore has as many tracks as the maximum number of its work
//! requests that were outstanding at the same time.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;

use anyhow::Result;
use serde_json::{Value, json};
use tap::trace::{TraceEvent, TraceLine};

use super::filtered_lines::FilteredLineReader;
use super::work::{PostToCompletionMatcher, RECV, TracedWork};

/// Converts the lines to trace events.
///
/// # Errors
/// Returns an error if the trace cannot be read, or `out` cannot be written.
pub(super) fn write_trace_events(
    lines: &mut FilteredLineReader<'_>,
    out: &mut impl Write,
) -> Result<()> {
    let mut events = PerfettoEventWriter::new(out)?;
    let mut pairing = PostToCompletionMatcher::default();
    let mut works = Vec::new();
    let mut last_ns = 0;
    while let Some(line) = lines.next()? {
        last_ns = last_ns.max(line.at_ns);
        events.write_instant(&line)?;
        works.extend(pairing.add_line_and_take_completed(&line, &lines.qp_names));
    }
    works.extend(pairing.into_sends_without_completion());
    // Drop RECVs: they wait for messages, and show no work in progress on this side.
    works.retain(|work| work.verb != RECV);
    works.sort_by_key(|work| work.posted_ns);
    for work in &works {
        events.write_slice(work, last_ns)?;
    }
    events.write_end()
}

/// The first track number for queue pairs, which exceeds all thread ids (`PID_MAX_LIMIT` of Linux
/// is 2^22).
const FIRST_QP_TRACK_NUMBER: u64 = 1 << 23;

struct PerfettoEventWriter<'a, W> {
    out: &'a mut W,
    is_first_event: bool,
    tracks: HashMap<(u32, String), QpTracks>,
    next_track: u64,
}

/// The tracks of a queue pair: each track's number, sorted by the time at which it becomes free.
#[derive(Default)]
struct QpTracks {
    free_time_and_track: BTreeSet<(u64, u64)>,
    track_count: u64,
}

impl<'a, W: Write> PerfettoEventWriter<'a, W> {
    fn new(out: &'a mut W) -> Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
        Ok(Self {
            out,
            is_first_event: true,
            tracks: HashMap::new(),
            next_track: FIRST_QP_TRACK_NUMBER,
        })
    }

    fn write_event(&mut self, event: &Value) -> Result<()> {
        if !std::mem::take(&mut self.is_first_event) {
            self.out.write_all(b",\n")?;
        }
        Ok(serde_json::to_writer(&mut *self.out, event)?)
    }

    fn write_instant(&mut self, line: &TraceLine) -> Result<()> {
        let (name, args) = match &line.event {
            TraceEvent::Call {
                verb,
                arguments,
                result,
            } => (
                verb.clone(),
                json!({"arguments": arguments, "result": result}),
            ),
            TraceEvent::Completion(found) => (
                found.opcode.clone().unwrap_or_else(|| found.status.clone()),
                serde_json::to_value(found)?,
            ),
            TraceEvent::Note { text } => (text.clone(), json!({})),
            TraceEvent::PostSend(_) | TraceEvent::PostRecv(_) | TraceEvent::EmptyPolls { .. } => {
                return Ok(());
            }
        };
        self.write_event(&json!({
            "name": name, "ph": "i", "s": "t", "ts": ns_to_microseconds(line.at_ns),
            "pid": line.pid, "tid": line.tid, "args": args,
        }))
    }

    /// Writes the slice of a work request. If its completion is unknown, the slice lasts until the
    /// end of the trace.
    fn write_slice(&mut self, work: &TracedWork, last_ns: u64) -> Result<()> {
        let end = work
            .known_complete_at_ns
            .unwrap_or(last_ns)
            .max(work.posted_ns);
        let track = self.assign_track(work, end)?;
        let mut slice = json!({
            "name": format!("{} {} B", work.verb, work.bytes), "ph": "X", "cat": "work request",
            "ts": ns_to_microseconds(work.posted_ns), "dur": ns_to_microseconds(end - work.posted_ns),
            "pid": work.pid, "tid": track,
            "args": {
                "wr_id": work.wr_id, "signaled": work.is_signaled, "status": work.status,
                "completed": work.known_complete_at_ns.is_some(),
            },
        });
        if work
            .status
            .as_deref()
            .is_some_and(|status| status != "SUCCESS")
        {
            slice["cname"] = json!("terrible");
        }
        self.write_event(&slice)
    }

    /// Returns a track of the queue pair that is free at the time of the work request's post.
    fn assign_track(&mut self, work: &TracedWork, end: u64) -> Result<u64> {
        let tracks = self
            .tracks
            .entry((work.pid, work.qp_or_srq_name.clone()))
            .or_default();
        let free = tracks.free_time_and_track.first().copied();
        if let Some((free_ns, track)) = free.filter(|(free_ns, _)| *free_ns <= work.posted_ns) {
            tracks.free_time_and_track.remove(&(free_ns, track));
            tracks.free_time_and_track.insert((end, track));
            return Ok(track);
        }
        let track = self.next_track;
        self.next_track += 1;
        tracks.track_count += 1;
        tracks.free_time_and_track.insert((end, track));
        let number = tracks.track_count;
        let qpn = work
            .qpn
            .map_or_else(String::new, |qpn| format!(" {qpn:#x}"));
        let name = format!("{}{qpn} · {number}", work.qp_or_srq_name);
        self.write_event(&json!({
            "name": "thread_name", "ph": "M", "pid": work.pid, "tid": track, "args": {"name": name},
        }))?;
        Ok(track)
    }

    fn write_end(self) -> Result<()> {
        self.out.write_all(b"\n]}\n")?;
        Ok(())
    }
}

#[allow(clippy::cast_precision_loss)] // 53 bits are microseconds of centuries
fn ns_to_microseconds(ns: u64) -> f64 {
    ns as f64 / 1000.0
}
