//! The end that SENDs; it stays at most a window ahead of the receiver.

use anyhow::{Context, Result, bail};
use verbs::{Postlist, RecvList, WcBuffer};

use super::outcome::StreamRate;
use super::parameters::VerbStream;
use super::payload_form::{ImmOnlyPayload, PayloadForm, WindowLayout, low_32_bits};
use super::receiver_result::{LOSS_TIMEOUT_NS, ReceiverResult};
use super::selective_signaling::SelectiveSignaling;
use super::timer::{RunTimer, TimedOperations};
use super::transport::{QpAndDestination, SendTransport};
use crate::link::WorkerLink;
use crate::open_nic::{OpenNic, poll_successful_completions};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Sends on all queue pairs for the duration of the stream.
pub(super) fn send_for_duration<T: SendTransport, F: PayloadForm>(
    link: &mut WorkerLink,
    nic: &OpenNic,
    stream: &VerbStream,
    qps: &[QpAndDestination<T>],
    reports: Vec<RecvList>,
) -> Result<StreamRate> {
    let senders = qps.iter().zip(reports);
    let senders = senders.map(|(qp, recvs)| Sender::<T, F>::new(nic, qp, stream, recvs));
    let mut senders: Vec<_> = senders.collect::<Result<_>>()?;
    link.barrier()?;
    let mut timer = RunTimer::new(stream.duration_ms);
    let lists = stream.postlists_per_turn();
    let mut sent = 0;
    let mut last = false;
    while !last {
        last = timer.is_over() && stream.can_next_turn_be_last(sent);
        for sender in &mut senders {
            sender.wait_for_turn(sent)?;
            for list in 1..=lists {
                sender.post(last && list == lists)?;
            }
        }
        sent += stream.wrs_per_turn();
    }
    for sender in &mut senders {
        let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
        while sender.completed_messages < sent {
            if sender.reap_sends()? == 0 {
                timeout.fail_if_over_after_empty_poll("completions of the last SENDs")?;
            }
        }
    }
    let sent = sent * senders.len() as u64;
    let result: ReceiverResult = link.recv()?;
    if let Some(wrong) = result.wrong_data {
        bail!("the receiver found {wrong}");
    }
    if !T::IS_LOSSY && result.received_messages != sent {
        bail!(
            "the receiver got {} of {sent} messages",
            result.received_messages
        );
    }
    let timed = TimedOperations {
        ops: result.measured_ops,
        elapsed_ns: result.elapsed_ns,
    };
    let lost = sent.saturating_sub(result.received_messages);
    Ok(StreamRate::new(
        stream,
        timed,
        result.received_messages,
        lost,
    ))
}

pub(super) struct Sender<'q, T: SendTransport, F: PayloadForm> {
    qp_and_destination: &'q QpAndDestination<T>,
    stream: &'q VerbStream,
    postlist: Postlist<T>,
    form: F,
    signaling: SelectiveSignaling,
    /// True if the postlist holds built WRs of which only the immediate changes.
    has_reusable_wrs: bool,
    /// Number of the next message, and its slot of the window.
    next_message_number: u64,
    next_slot: usize,
    wcs: WcBuffer<32>,
    /// RECVs for reports; once half of them are used, the used ones are posted again together.
    report_recvs: RecvList,
    used_report_recvs: usize,
    /// Messages whose WRs have completed.
    completed_messages: u64,
    /// Number of messages that the receiver has reported as taken.
    credited_messages: u64,
}

impl<'q, T: SendTransport, F: PayloadForm> Sender<'q, T, F> {
    pub(super) fn new(
        nic: &OpenNic,
        to: &'q QpAndDestination<T>,
        stream: &'q VerbStream,
        recvs: RecvList,
    ) -> Result<Sender<'q, T, F>> {
        let layout = WindowLayout {
            payload_bytes: stream.payload_bytes,
            slot_count: stream.window,
            page_size: stream.page_size,
        };
        Ok(Sender {
            qp_and_destination: to,
            stream,
            postlist: to.qp.postlist(stream.wrs_per_doorbell),
            form: F::new(nic, &layout)?,
            signaling: SelectiveSignaling::new(stream.wrs_per_doorbell, stream.signal_every),
            has_reusable_wrs: false,
            next_message_number: 0,
            next_slot: 0,
            wcs: WcBuffer::new(),
            report_recvs: recvs,
            used_report_recvs: 0,
            completed_messages: 0,
            credited_messages: 0,
        })
    }

    /// Posts the next postlist. If `last` is true, its last message is marked as the last of the
    /// stream.
    #[inline]
    pub(super) fn post(&mut self, last: bool) -> Result<()> {
        let end = self.next_message_number + self.stream.wrs_per_doorbell as u64;
        if F::STAMP_IS_IMM && self.has_reusable_wrs {
            for (index, number) in (self.next_message_number..end).enumerate() {
                let imm = low_32_bits(F::make_stamp(number, last && number + 1 == end));
                self.postlist.set_imm(index, imm);
            }
        } else {
            self.build_next_postlist(end, last)?;
        }
        self.next_message_number = end;
        self.next_slot += self.stream.wrs_per_doorbell;
        if self.next_slot == self.stream.window {
            self.next_slot = 0;
        }
        Ok(self.qp_and_destination.qp.post_send(&mut self.postlist)?)
    }

    #[inline]
    fn build_next_postlist(&mut self, end: u64, last: bool) -> Result<()> {
        self.postlist.clear();
        let mut slot = self.next_slot;
        let mut add = |stamp: u64| -> Result<()> {
            let imm = if F::STAMP_IS_IMM {
                Some(low_32_bits(stamp))
            } else {
                None
            };
            let payload = self.form.stamped_payload(slot, stamp)?;
            T::add_send(
                &mut self.postlist,
                payload,
                imm,
                &self.qp_and_destination.destination,
            );
            slot += 1;
            Ok(())
        };
        for number in self.next_message_number..end - 1 {
            add(F::make_stamp(number, false))?;
        }
        add(F::make_stamp(end - 1, last))?;
        self.signaling.mark_signaled_wrs(&mut self.postlist);
        self.has_reusable_wrs = self.signaling.has_fixed_indexes();
        Ok(())
    }

    /// Waits until the next turn may be posted after the first `sent` messages.
    #[inline]
    fn wait_for_turn(&mut self, sent: u64) -> Result<()> {
        let least = self.stream.completions_needed_before_turn(sent);
        if self.completed_messages.min(self.credited_messages) >= least {
            return Ok(());
        }
        self.wait_for_completions_and_credits(least, sent + self.stream.wrs_per_turn())
    }

    fn wait_for_completions_and_credits(&mut self, least: u64, end: u64) -> Result<()> {
        let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
        let mut lost = PollTimeout::new(LOSS_TIMEOUT_NS);
        while self.completed_messages.min(self.credited_messages) < least {
            // Poll both CQs: a NIC in software progresses only when it is polled.
            let done = self.reap_sends()?;
            let taken = self.reap_reports(end)?;
            if done + taken > 0 {
                timeout.reset();
                lost.reset();
                continue;
            }
            // Any message of a transport that loses messages may be lost, including a report. After
            // the timeout, outstanding messages count as taken or lost.
            if T::IS_LOSSY && self.completed_messages >= least && lost.is_over_after_empty_poll() {
                self.credited_messages = least;
            }
            timeout.fail_if_over_after_empty_poll(
                "completions of SENDs, or reports of the receiver",
            )?;
        }
        Ok(())
    }

    /// Takes reports of the receiver. `near` is a number near the progress to expect.
    fn reap_reports(&mut self, near: u64) -> Result<usize> {
        let mut credit = self.credited_messages;
        let taken = poll_successful_completions(
            self.qp_and_destination.qp.recv_cq(),
            &mut self.wcs,
            |wc| {
                let imm = wc.imm().context("a report without its number")?;
                credit = credit.max(ImmOnlyPayload::nearest_number_with_stamp(imm.into(), near));
                Ok(())
            },
        )?;
        self.credited_messages = credit;
        self.used_report_recvs += taken;
        if self.used_report_recvs >= self.report_recvs.capacity() / 2 {
            self.report_recvs.set_len(self.used_report_recvs);
            self.qp_and_destination
                .qp
                .post_recv(&mut self.report_recvs)?;
            self.used_report_recvs = 0;
        }
        Ok(taken)
    }

    #[inline]
    pub(super) fn reap_sends(&mut self) -> Result<usize> {
        let done = poll_successful_completions(
            self.qp_and_destination.qp.send_cq(),
            &mut self.wcs,
            |_| Ok(()),
        )?;
        self.completed_messages += done as u64 * self.stream.signal_every as u64;
        Ok(done)
    }
}
