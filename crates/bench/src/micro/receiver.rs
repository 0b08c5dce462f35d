//! The end that receives SENDs, checks each one and reports its progress.

use std::marker::PhantomData;

use anyhow::Result;
use verbs::{Access, HeaderOnly, MemoryRegion, Postlist, RecvList, WcBuffer, WorkCompletion};

use super::parameters::VerbStream;
use super::payload_form::{ImmOnlyPayload, PayloadForm, low_32_bits};
use super::receiver_result::{LOSS_TIMEOUT_NS, ReceiverResult, messages_per_report};
use super::timer::OperationMeter;
use super::transport::{QpAndDestination, SendTransport};
use crate::open_nic::{OpenNic, poll_successful_completions};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Send WRs for reports.
pub(super) const REPORT_WRS: usize = 64;

/// One report in this many is signaled.
const REPORT_SIGNAL_EVERY: usize = 8;

/// Receives on all queue pairs until each has its last message, or until messages stop arriving.
pub(super) fn receive_all_messages<T: SendTransport, F: PayloadForm>(
    stream: &VerbStream,
    qps: &[QpAndDestination<T>],
    places: Vec<RecvBuffers>,
) -> Result<ReceiverResult> {
    let receivers = qps.iter().zip(places);
    let receivers = receivers.map(|(qp, places)| Receiver::<T, F>::new(qp, stream, places));
    let mut receivers: Vec<_> = receivers.collect();
    let mut wcs = WcBuffer::<32>::new();
    let mut meter = OperationMeter::new(stream.duration_ms);
    let mut timeout = PollTimeout::new(if T::IS_LOSSY {
        4 * LOSS_TIMEOUT_NS
    } else {
        DEFAULT_EVENT_TIMEOUT_NS
    });
    let mut received = 0u64;
    let mut quiet = false;
    while !quiet && receivers.iter().any(|receiver| !receiver.has_ended) {
        let mut taken = 0;
        for receiver in receivers.iter_mut().filter(|receiver| !receiver.has_ended) {
            let from = receiver.qp_and_destination;
            let came = poll_successful_completions(from.qp.recv_cq(), &mut wcs, |wc| {
                receiver.check_message(&wc)
            })?;
            if came > 0 {
                taken += came;
                received += came as u64;
                if receiver.repost_and_report_if_chunk_is_full(came, &mut wcs)? {
                    meter.note_total_done_operations(received);
                }
            }
        }
        if taken > 0 {
            timeout.reset();
        } else {
            quiet = timeout.is_over_after_empty_poll();
        }
    }
    let timed = meter.operations_since_warm_up(received, timeout.quiet_since_ns());
    Ok(ReceiverResult {
        received_messages: received,
        measured_ops: timed.ops,
        elapsed_ns: timed.elapsed_ns,
        wrong_data: receivers
            .into_iter()
            .find_map(|receiver| receiver.first_wrong_message),
    })
}

/// Buffers for a window of messages, each with a RECV. The RECVs are posted in lists, each with the RECVs of one chunk.
pub(super) struct RecvBuffers {
    memory: MemoryRegion,
    recv_lists: Vec<RecvList>,
}

impl RecvBuffers {
    /// Posts all RECVs of a queue pair.
    pub(super) fn allocate_and_post<T: SendTransport>(
        nic: &OpenNic,
        stream: &VerbStream,
        qp: &T::UnconnectedQp,
    ) -> Result<RecvBuffers> {
        let room = (T::RECV_HEADER_BYTES + stream.payload_bytes).max(8);
        // Header-only messages share one buffer, because their GRH is not read.
        let stride = if stream.payload_bytes == 0 {
            0
        } else {
            room.next_multiple_of(8)
        };
        let bytes = (stride * stream.window).max(room);
        let memory = nic.alloc_registered_memory(bytes, Access::LOCAL_WRITE, stream.page_size)?;
        let chunk = messages_per_report(stream);
        let mut lists = Vec::new();
        for first in (0..stream.window).step_by(chunk) {
            let mut recvs = T::create_recv_list(qp, chunk);
            for slot in first..first + chunk {
                let at = slot * stride;
                recvs.recv(
                    memory.slice(at..at + room)?,
                    (at + T::RECV_HEADER_BYTES) as u64,
                );
            }
            T::post_recv(qp, &mut recvs)?;
            lists.push(recvs);
        }
        Ok(RecvBuffers {
            memory,
            recv_lists: lists,
        })
    }
}

pub(super) struct Receiver<'q, T: SendTransport, F: PayloadForm> {
    pub(super) qp_and_destination: &'q QpAndDestination<T>,
    payload_bytes: usize,
    /// Length that a completion reports for a message.
    expected_byte_len: u32,
    messages_per_report: usize,
    recv_buffers: RecvBuffers,
    /// Messages whose RECVs are not posted again yet, and the index of the next RECV list to post
    /// again.
    unposted_recvs: usize,
    next_recv_list: usize,
    report_list: Postlist<T>,
    reports_sent: usize,
    outstanding_signaled_reports: usize,
    /// Number of the next expected message.
    pub(super) next_expected_message: u64,
    has_ended: bool,
    pub(super) first_wrong_message: Option<String>,
    form: PhantomData<F>,
}

impl<'q, T: SendTransport, F: PayloadForm> Receiver<'q, T, F> {
    pub(super) fn new(
        from: &'q QpAndDestination<T>,
        stream: &VerbStream,
        recv_buffers: RecvBuffers,
    ) -> Receiver<'q, T, F> {
        let byte_len = u32::try_from(T::RECV_HEADER_BYTES + stream.payload_bytes);
        Receiver {
            qp_and_destination: from,
            payload_bytes: stream.payload_bytes,
            expected_byte_len: byte_len.unwrap_or(u32::MAX),
            messages_per_report: messages_per_report(stream),
            recv_buffers,
            unposted_recvs: 0,
            next_recv_list: 0,
            report_list: from.qp.postlist(1),
            reports_sent: 0,
            outstanding_signaled_reports: 0,
            next_expected_message: 0,
            has_ended: false,
            first_wrong_message: None,
            form: PhantomData,
        }
    }

    /// Checks a message. Nearly every message is the expected one, which one comparison confirms.
    #[inline]
    pub(super) fn check_message(&mut self, wc: &WorkCompletion<'_>) -> Result<()> {
        let stamps = F::received_stamps(&self.recv_buffers.memory, wc, self.payload_bytes)?;
        let is_due = stamps == [F::make_stamp(self.next_expected_message, false); 2];
        if is_due & (wc.byte_len() == self.expected_byte_len) {
            self.next_expected_message += 1;
        } else {
            self.check_unexpected_message(stamps, wc.byte_len());
        }
        Ok(())
    }

    /// Checks the last message, a message after lost ones, or a wrong message.
    #[cold]
    fn check_unexpected_message(&mut self, [stamp, behind]: [u64; 2], byte_len: u32) {
        let (due, mut wrong) = (self.next_expected_message, |what: String| {
            self.first_wrong_message.get_or_insert(what);
        });
        if behind != stamp {
            wrong(format!("{behind:#x} at the end of message {stamp:#x}"));
        }
        let number = F::nearest_number_with_stamp(stamp & !F::LAST_MARK, due);
        if number < due || (number > due && !T::IS_LOSSY) {
            wrong(format!("number {number} where {due} was due"));
        }
        if byte_len != self.expected_byte_len {
            wrong(format!("a message of {byte_len} bytes"));
        }
        self.next_expected_message = number + 1;
        self.has_ended |= stamp & F::LAST_MARK != 0;
    }

    /// Counts `came` messages, posts RECVs again in whole chunks, and reports each chunk. Returns
    /// true if a chunk was complete.
    #[inline]
    fn repost_and_report_if_chunk_is_full(
        &mut self,
        came: usize,
        wcs: &mut WcBuffer<32>,
    ) -> Result<bool> {
        self.unposted_recvs += came;
        let whole = self.unposted_recvs >= self.messages_per_report;
        while self.unposted_recvs >= self.messages_per_report {
            self.unposted_recvs -= self.messages_per_report;
            self.qp_and_destination
                .qp
                .post_recv(&mut self.recv_buffers.recv_lists[self.next_recv_list])?;
            self.next_recv_list = (self.next_recv_list + 1) % self.recv_buffers.recv_lists.len();
            // Exclude messages whose RECVs are not posted again yet.
            self.send_credit_report(self.next_expected_message - self.unposted_recvs as u64, wcs)?;
        }
        Ok(whole)
    }

    /// Posts all RECVs of the window again, without a report.
    pub(super) fn repost_all_recvs(&mut self) -> Result<()> {
        for list in &mut self.recv_buffers.recv_lists {
            self.qp_and_destination.qp.post_recv(list)?;
        }
        Ok(())
    }

    /// Reports the progress to the sender: RECVs are posted for a window of messages from `credit`
    /// on.
    fn send_credit_report(&mut self, credit: u64, wcs: &mut WcBuffer<32>) -> Result<()> {
        self.reports_sent += 1;
        let signaled = self.reports_sent.is_multiple_of(REPORT_SIGNAL_EVERY);
        self.report_list.clear();
        let imm = low_32_bits(ImmOnlyPayload::make_stamp(credit, false));
        let wr = T::add_send(
            &mut self.report_list,
            HeaderOnly,
            Some(imm),
            &self.qp_and_destination.destination,
        );
        if signaled {
            wr.signaled();
            self.outstanding_signaled_reports += 1;
        }
        self.qp_and_destination
            .qp
            .post_send(&mut self.report_list)?;
        let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
        while self.outstanding_signaled_reports >= REPORT_WRS / REPORT_SIGNAL_EVERY / 2 {
            let done =
                poll_successful_completions(self.qp_and_destination.qp.send_cq(), wcs, |_| Ok(()))?;
            self.outstanding_signaled_reports -= done;
            if done == 0 {
                timeout.fail_if_over_after_empty_poll("completions of reports")?;
            }
        }
        Ok(())
    }
}
