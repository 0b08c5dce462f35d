//! Trace lines about work requests and completions.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use verbs_abi::*;

use super::call::append_timestamped_lines;
use super::errno::{errno, error_text, set_errno};
use super::names::*;
use crate::built_work_requests::{BuiltWr, FlushParameters};
use crate::mapped_counter_file::now_ns;
use crate::objects::Cq;
use crate::postlist::{PostedList, sge_count_and_bytes};
use crate::send_work_request::SendWorkRequest;

/// Time at which a post began, for its trace lines; `None` if tracing is off.
pub(crate) type PostTimeNs = Option<u64>;

/// Returns the current time if tracing is on, else `None`.
#[inline]
pub(crate) fn start_time_if_tracing() -> PostTimeNs {
    super::is_tracing_on().then(now_ns)
}

/// Appends trace lines in the given order and preserves errno. Before each line stand `head` and the line's
/// number such as "1/3".
fn write_numbered_lines(at_ns: u64, head: &str, lines: &[String]) {
    let errno = errno();
    let count = lines.len();
    let lines: Vec<String> = lines
        .iter()
        .enumerate()
        .map(|(at, line)| format!("{head} {}/{count} {line}", at + 1))
        .collect();
    append_timestamped_lines(at_ns, lines.iter().map(String::as_str));
    set_errno(errno);
}

/// Returns the text of a work request in a trace line.
fn work_request_text(
    wr_id: u64,
    opcode: ibv_wr_opcode,
    flags: u32,
    (num_sge, bytes): (u32, u32),
) -> String {
    let mut text = format!("wr_id={wr_id} ");
    // Writing to a string does not fail.
    write_named_value(&mut text, opcode, "IBV_WR_", WR_OPCODES);
    let _ = write!(text, " {bytes} B");
    if num_sge > 1 {
        let _ = write!(text, " in {num_sge} SGEs");
    }
    if flags != 0 {
        text.push(' ');
        write_flag_names(&mut text, flags, "IBV_SEND_", SEND_FLAGS);
    }
    text
}

/// Adds the reason of a refusal to the text.
fn write_refusal(text: &mut String, errno: c_int) {
    let _ = write!(text, " refused: {}", error_text(errno));
}

/// Maximum number of work requests of a list that are traced, so that an unterminated list does not fill the
/// disk.
const MAX_TRACED_REQUESTS: usize = 1 << 16;

/// Traces a postlist that was posted to a queue pair, up to the refused work request.
#[cold]
pub(crate) fn trace_posted_sends(
    at_ns: u64,
    qp: *mut ibv_qp,
    qp_type: ibv_qp_type,
    list: PostedList,
    bad: *mut ibv_send_wr,
    result: c_int,
) {
    let mut lines = Vec::new();
    for wr in list.take(MAX_TRACED_REQUESTS) {
        let mut text = work_request_text(
            wr.wr_id,
            wr.opcode,
            wr.send_flags,
            (&wr).num_sge_and_bytes(),
        );
        // SAFETY: opcode and transport determine the valid members; all are plain numbers.
        unsafe {
            let _ = match wr.opcode {
                IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ => {
                    let to = wr.wr.rdma;
                    write!(text, " to {:#x} rkey {:#x}", to.remote_addr, to.rkey)
                }
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let to = wr.wr.atomic;
                    let (compare_add, swap) = (to.compare_add, to.swap);
                    write!(
                        text,
                        " to {:#x} rkey {:#x} compare_add {compare_add} swap {swap}",
                        to.remote_addr, to.rkey
                    )
                }
                _ if qp_type == IBV_QPT_UD => {
                    let to = wr.wr.ud;
                    text.push_str(" to ");
                    write_handle_name(&mut text, HandleKind("ah"), to.ah.addr(), false);
                    write!(text, " QPN {:#x} qkey {:#x}", to.remote_qpn, to.remote_qkey)
                }
                _ => Ok(()),
            };
            if matches!(wr.opcode, IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM) {
                let _ = write!(text, " imm {:#x}", u32::from_be(wr.imm.imm_data));
            }
        }
        let is_bad = result != 0 && std::ptr::eq(wr, bad);
        if is_bad {
            write_refusal(&mut text, result);
        }
        lines.push(text);
        if is_bad {
            break;
        }
    }
    let mut head = "post_send ".to_owned();
    write_handle_name(&mut head, HandleKind("qp"), qp.addr(), false);
    write_numbered_lines(at_ns, &head, &lines);
}

/// Traces receives that were posted to a queue pair or a shared receive queue, up to the refused receive.
///
/// # Safety
/// The list is NULL or as `ibv_post_recv(3)` describes it.
#[cold]
pub(crate) unsafe fn trace_posted_recvs(
    at_ns: u64,
    (verb, kind, queue): (&str, HandleKind, usize),
    mut wr: *mut ibv_recv_wr,
    bad: *mut ibv_recv_wr,
    result: c_int,
) {
    let mut lines = Vec::new();
    // SAFETY: contract of this function.
    while let Some(this) = unsafe { wr.as_ref() }.filter(|_| lines.len() < MAX_TRACED_REQUESTS) {
        // SAFETY: as above; the provider has read the element list, too.
        let (num_sge, bytes) = unsafe { sge_count_and_bytes(this.sg_list, this.num_sge) };
        let mut text = format!("wr_id={} {bytes} B in {num_sge} SGEs", this.wr_id);
        let is_bad = result != 0 && wr == bad;
        if is_bad {
            write_refusal(&mut text, result);
        }
        lines.push(text);
        wr = if is_bad {
            std::ptr::null_mut()
        } else {
            this.next
        };
    }
    let mut head = format!("{verb} ");
    write_handle_name(&mut head, kind, queue, false);
    write_numbered_lines(at_ns, &head, &lines);
}

/// Traces a list that was built by `ibv_wr_*` and posted by `ibv_wr_complete`.
#[cold]
pub(crate) fn trace_built_list(at_ns: u64, qp: *mut ibv_qp_ex, list: &[BuiltWr], result: c_int) {
    let lines: Vec<String> = list
        .iter()
        .map(|wr| {
            let mut text =
                work_request_text(wr.wr_id, wr.opcode(), wr.flags(), wr.num_sge_and_bytes());
            let (ah, qpn) = wr.ud_destination();
            if let Some(to) = wr.remote_address {
                let _ = write!(text, " to {:#x} rkey {:#x}", to.addr, to.rkey);
            } else if !ah.is_null() {
                text.push_str(" to ");
                write_handle_name(&mut text, HandleKind("ah"), ah.addr(), false);
                let _ = write!(text, " QPN {qpn:#x}");
            }
            if let Some(FlushParameters {
                len,
                placement,
                selectivity,
            }) = wr.flush_parameters
            {
                let _ = write!(text, " length {len} ");
                write_flag_names(
                    &mut text,
                    placement.into(),
                    "IBV_FLUSH_",
                    FLUSH_PLACEMENT_NAMES,
                );
                text.push(' ');
                write_named_value(
                    &mut text,
                    selectivity.into(),
                    "IBV_FLUSH_",
                    FLUSH_SELECTIVITY_NAMES,
                );
            }
            if result != 0 {
                write_refusal(&mut text, result);
            }
            text
        })
        .collect();
    let mut head = "wr_complete ".to_owned();
    write_handle_name(&mut head, HandleKind("qp"), qp.addr(), false);
    write_numbered_lines(at_ns, &head, &lines);
}

/// The fields of a completion that a program requested.
pub(crate) struct PolledCompletion {
    pub(crate) wr_id: u64,
    pub(crate) status: ibv_wc_status,
    pub(crate) opcode: Option<ibv_wc_opcode>,
    pub(crate) byte_len: Option<u32>,
    pub(crate) qp_num: Option<u32>,
    pub(crate) vendor_err: u32,
}

impl PolledCompletion {
    /// Returns the values of the valid fields of a completion from `ibv_poll_cq(3)`.
    fn from_wc(wc: &ibv_wc) -> Self {
        // The field is valid for receives, READs and atomics: "byte_len: number of bytes transferred".
        let has_length = wc.opcode >= IBV_WC_RECV
            || matches!(
                wc.opcode,
                IBV_WC_RDMA_READ | IBV_WC_COMP_SWAP | IBV_WC_FETCH_ADD
            );
        Self {
            wr_id: wc.wr_id,
            status: wc.status,
            opcode: Some(wc.opcode),
            byte_len: has_length.then_some(wc.byte_len),
            qp_num: Some(wc.qp_num),
            vendor_err: wc.vendor_err,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("wr_id={} ", self.wr_id);
        write_named_value(&mut text, self.status, "IBV_WC_", STATUSES);
        if self.status == IBV_WC_SUCCESS {
            if let Some(opcode) = self.opcode {
                text.push(' ');
                write_named_value(&mut text, opcode, "IBV_WC_", WC_OPCODES);
            }
            if let Some(bytes) = self.byte_len {
                let _ = write!(text, " {bytes} B");
            }
        }
        if let Some(qpn) = self.qp_num {
            let _ = write!(text, " QPN {qpn:#x}");
        }
        if self.status != IBV_WC_SUCCESS {
            let _ = write!(text, " vendor_err {:#x}", self.vendor_err);
        }
        text
    }
}

/// Traces the completions in `lines`.
fn trace_completions(verb: &str, queue: usize, cq: &Cq, mut lines: Vec<String>) {
    let empty = cq
        .thread_entry_or_create()
        .empty_polls_since_trace_line
        .swap(0, Relaxed);
    if let Some(first) = lines.first_mut().filter(|_| empty > 0) {
        let _ = write!(first, " after {empty} empty polls");
    }
    let mut head = format!("{verb} ");
    write_handle_name(&mut head, HandleKind("cq"), queue, false);
    write_numbered_lines(now_ns(), &head, &lines);
}

/// Traces the completions that a poll found.
#[cold]
pub(crate) fn trace_found_completions(queue: *mut ibv_cq, cq: &Cq, completions: &[ibv_wc]) {
    let lines = completions
        .iter()
        .map(|wc| PolledCompletion::from_wc(wc).text())
        .collect();
    trace_completions("poll_cq", queue.addr(), cq, lines);
}

/// Traces the completion that `ibv_start_poll` or `ibv_next_poll` found.
#[cold]
pub(crate) fn trace_found_completion(
    verb: &str,
    queue: *mut ibv_cq_ex,
    cq: &Cq,
    completion: &PolledCompletion,
) {
    trace_completions(verb, queue.addr(), cq, vec![completion.text()]);
}

/// Counts a poll that found no completion; writes a line after 1000, 1000000, … such polls in a row.
#[cold]
pub(crate) fn count_and_trace_empty_poll(queue: usize, cq: &Cq) {
    let count = cq
        .thread_entry_or_create()
        .empty_polls_since_trace_line
        .load(Relaxed)
        + 1;
    cq.thread_entry_or_create()
        .empty_polls_since_trace_line
        .store(count, Relaxed);
    if matches!(count, 1_000 | 1_000_000 | 1_000_000_000) {
        let errno = errno();
        let mut line = "poll_cq ".to_owned();
        write_handle_name(&mut line, HandleKind("cq"), queue, false);
        let _ = write!(line, " has found nothing {count} times");
        append_timestamped_lines(now_ns(), [line.as_str()]);
        set_errno(errno);
    }
}
