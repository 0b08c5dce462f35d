//! Credits of a UC WRITE stream: the responder reports its progress to the requester. The responder
//! polls its memory for the last WRITE of each part of a window, and WRITEs the number of arrived
//! WRITEs back.

use anyhow::{Context, Result};
use verbs::{Access, MemoryRegion, Postlist, QueuePair, RemoteMemory, Uc, WcBuffer};

use super::parameters::{MeasuredRole, VerbStream};
use super::verb::{Verb, last_word_offset};
use crate::link::WorkerLink;
use crate::open_nic::{OpenNic, poll_successful_completions};
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Send WRs of the responder on each queue pair.
pub(super) const RESPONDER_SEND_WRS_PER_QP: usize = 16;

/// Bytes of a reported number. Numbers are in registered memory, because not every NIC supports
/// inline data.
const CREDIT_BYTES: usize = 8;

/// Bytes of the word behind the slots in the responder's memory. A nonzero word says that the
/// requester has ended.
pub(super) const END_WORD_BYTES: usize = CREDIT_BYTES;

/// Returns true if the stream's requester needs credits.
pub(super) fn needs_credits(stream: &VerbStream) -> bool {
    stream.verb == Verb::UcWrite && stream.measured_role == MeasuredRole::Inbound
}

/// Returns the WRITEs per part: the whole postlists that come nearest to a quarter of a window and
/// divide it.
fn writes_per_credit(stream: &VerbStream) -> usize {
    let lists = stream.window / stream.wrs_per_doorbell;
    let a_part = (1..=lists.div_ceil(4))
        .rev()
        .find(|part| lists.is_multiple_of(*part));
    stream.wrs_per_doorbell * a_part.unwrap_or(1)
}

/// The requester's side: the numbers that the responder has written, one for each queue pair.
pub(super) struct ReceivedCredits {
    memory: MemoryRegion,
    writes_per_credit: u64,
}

impl ReceivedCredits {
    pub(super) fn register_and_send_memory(
        link: &mut WorkerLink,
        nic: &OpenNic,
        stream: &VerbStream,
    ) -> Result<ReceivedCredits> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let memory = nic.alloc_registered_memory(
            CREDIT_BYTES * stream.queue_pairs_per_thread,
            access,
            stream.page_size,
        )?;
        link.send(&memory.remote())?;
        let part = writes_per_credit(stream) as u64;
        Ok(ReceivedCredits {
            memory,
            writes_per_credit: part,
        })
    }

    /// Returns true if the responder reports exactly after `posted` WRITEs, so that the stream can
    /// end there.
    pub(super) fn can_end_at(&self, posted: u64) -> bool {
        posted.is_multiple_of(self.writes_per_credit)
    }

    /// Waits until `until` WRITEs have arrived on a queue pair.
    pub(super) fn wait_for_arrivals(&self, queue_pair: usize, until: u64) -> Result<()> {
        let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
        while u64::from_le(self.memory.read_u64(CREDIT_BYTES * queue_pair)?) < until {
            timeout.fail_if_over_after_empty_poll(
                "word of the responder that WRITEs have arrived (UC may lose some)",
            )?;
        }
        Ok(())
    }
}

/// Tells the responder that the requester has ended, by a WRITE behind the slots.
pub(super) fn announce_end_to_responder(
    nic: &OpenNic,
    qp: &QueuePair<Uc>,
    stream: &VerbStream,
    remote: RemoteMemory,
) -> Result<()> {
    let word = nic.pd.alloc(CREDIT_BYTES, Access::LOCAL_READ)?;
    word.write_u64(0, 1u64.to_le())?;
    let to = remote.starting_at(stream.slot_bytes_per_thread() as u64);
    let mut list = qp.postlist(1);
    list.rdma_write(
        word.slice(..)?,
        to.context("the worker offers too little memory")?,
    )
    .signaled();
    qp.post_send(&mut list)?;
    let (mut wcs, mut timeout) = (
        WcBuffer::<1>::new(),
        PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS),
    );
    while poll_successful_completions(qp.send_cq(), &mut wcs, |_| Ok(()))? == 0 {
        timeout.fail_if_over_after_empty_poll("completion of the last WRITE")?;
    }
    Ok(())
}

/// The responder's side of a queue pair.
struct CreditSender<'q> {
    qp: &'q QueuePair<Uc>,
    credit_postlist: Postlist<Uc>,
    /// Number of WRITEs that have arrived when the next part is complete.
    arrived_writes_at_next_credit: u64,
    outstanding_credit_writes: usize,
}

/// Reports the arrived WRITEs until the requester has ended.
pub(super) fn send_credits_until_end(
    nic: &OpenNic,
    qps: &[QueuePair<Uc>],
    stream: &VerbStream,
    memory: &MemoryRegion,
    to: RemoteMemory,
) -> Result<()> {
    let part = writes_per_credit(stream);
    let parts = stream.window / part;
    // One number for each part of a window, because the WRITEs of the last window's numbers may
    // still be outstanding.
    let numbers = nic
        .pd
        .alloc(CREDIT_BYTES * parts * qps.len(), Access::LOCAL_READ)?;
    let sender = |(place, qp): (usize, _)| {
        let mut list = QueuePair::postlist(qp, parts);
        let to = to.starting_at((CREDIT_BYTES * place) as u64);
        let to = to.context("the requester offers too little memory")?;
        for turn in 0..parts {
            let at = CREDIT_BYTES * (place * parts + turn);
            list.rdma_write(numbers.slice(at..at + CREDIT_BYTES)?, to)
                .signaled();
        }
        Ok(CreditSender {
            qp,
            credit_postlist: list,
            arrived_writes_at_next_credit: part as u64,
            outstanding_credit_writes: 0,
        })
    };
    let mut senders: Vec<_> = qps.iter().enumerate().map(sender).collect::<Result<_>>()?;
    let mut wcs = WcBuffer::<RESPONDER_SEND_WRS_PER_QP>::new();
    let mut timeout = PollTimeout::new(DEFAULT_EVENT_TIMEOUT_NS);
    let word = |place: usize| Ok::<_, anyhow::Error>(u64::from_le(memory.read_u64(place)?));
    while word(stream.slot_bytes_per_thread())? == 0 {
        let mut came = false;
        for (place, sender) in senders.iter_mut().enumerate() {
            let slot =
                usize::try_from((sender.arrived_writes_at_next_credit - 1) % stream.window as u64)?;
            let at = (place * stream.window + slot) * stream.slot_stride_bytes()
                + last_word_offset(stream.payload_bytes);
            if word(at)? < sender.arrived_writes_at_next_credit {
                continue;
            }
            came = true;
            while sender.outstanding_credit_writes >= parts.min(RESPONDER_SEND_WRS_PER_QP) {
                sender.outstanding_credit_writes -=
                    poll_successful_completions(sender.qp.send_cq(), &mut wcs, |_| Ok(()))?;
                timeout.fail_if_over_after_empty_poll("completion of a WRITE to the requester")?;
            }
            let turn = slot / part;
            numbers.write_u64(
                CREDIT_BYTES * (place * parts + turn),
                sender.arrived_writes_at_next_credit.to_le(),
            )?;
            sender
                .qp
                .post_send_range(&mut sender.credit_postlist, turn..turn + 1)?;
            sender.outstanding_credit_writes += 1;
            sender.arrived_writes_at_next_credit += part as u64;
        }
        if came {
            timeout.reset();
        } else {
            timeout.fail_if_over_after_empty_poll(
                "WRITEs, or word of the requester that it has ended",
            )?;
        }
    }
    for sender in &mut senders {
        while sender.outstanding_credit_writes > 0 {
            sender.outstanding_credit_writes -=
                poll_successful_completions(sender.qp.send_cq(), &mut wcs, |_| Ok(()))?;
            timeout.fail_if_over_after_empty_poll("completion of a WRITE to the requester")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::parameters::MicroParameters;

    #[test]
    fn parts_are_whole_postlists_and_divide_the_window() {
        for (window, batch) in [
            (256, 16),
            (256, 1),
            (7, 7),
            (12, 3),
            (9, 1),
            (1, 1),
            (10, 5),
        ] {
            let parameters = MicroParameters {
                window: Some(window),
                wrs_per_doorbell: Some(batch),
                signal_every: Some(1),
                ..MicroParameters::default()
            };
            let stream =
                VerbStream::new(Verb::UcWrite, &parameters, 1).expect("parameters that fit");
            let part = writes_per_credit(&stream);
            assert!(
                window.is_multiple_of(part) && part.is_multiple_of(batch),
                "{window} {batch}"
            );
        }
    }
}
