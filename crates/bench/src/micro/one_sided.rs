//! Rates of RDMA WRITEs, READs and fetch-and-adds.
//!
//! The worker offers memory and sleeps. For READs and atomics, the driver checks each result when
//! its completion, or that of a later WR, arrives. For WRITEs, the worker checks at the end the
//! last WRITE of each slot. A queue pair executes WRITEs in order, so finding that WRITE confirms all earlier ones.
//!
//! Each queue pair has its own window of slots; WR number `n` uses slot `n` modulo the window.
//!
//! On UC, a WRITE completes when it is sent, and the requester does not learn whether it has
//! arrived. The stream then measures the requester's rate. If the responder is measured
//! ([`credit`]), its processor polls for arrived WRITEs and WRITEs its progress back. The requester
//! stays at most a window ahead of that progress.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use verbs::{Access, Connected, MemoryRegion, QueuePair, Rc, RemoteMemory, Uc};

use super::credit::{self, ReceivedCredits};
use super::outcome::StreamRate;
use super::parameters::VerbStream;
use super::payload_form::{read_end_stamps, with_write_form};
use super::requests::{NumberedReads, RandomCounterAdds, SingleCounterAdds, StampedWrites};
use super::shared_atomic_counters::{SharedAtomicCounters, fail_if_wrong};
use super::timer::TimedOperations;
use super::verb::{Verb, last_word_offset};
use super::wr_window::run_and_count_wrs_per_qp;
use crate::connect::connect_all;
use crate::link::WorkerLink;
use crate::open_nic::{OpenNic, saturating_u32};
use crate::peers::copy_parameters::byte_pattern;
use crate::poll_timeout::{DEFAULT_EVENT_TIMEOUT_NS, PollTimeout};

/// Maximum wait of the worker for a WRITE that has completed at the requester, in ns. On UC,
/// completion only means that the WRITE was sent.
const ARRIVAL_TIMEOUT_NS: u64 = DEFAULT_EVENT_TIMEOUT_NS / 5;

/// Number of WRITEs or adds on each queue pair.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct OperationsPerQp(u64);

pub(super) fn run_driver_side(
    link: &mut WorkerLink,
    nic: &OpenNic,
    stream: &VerbStream,
) -> Result<StreamRate> {
    let remote: RemoteMemory = link.recv()?;
    let (timed, count) = match stream.verb {
        Verb::UcWrite => {
            let credits = credit::needs_credits(stream)
                .then(|| ReceivedCredits::register_and_send_memory(link, nic, stream));
            let credits = credits.transpose()?;
            let qps = create_connected_qps::<Uc>(link, nic, stream)?;
            let written = run_writes(nic, &qps, stream, remote, credits.as_ref())?;
            if credits.is_some() {
                credit::announce_end_to_responder(nic, &qps[0], stream, remote)?;
            }
            written
        }
        Verb::RcRead => {
            let qps = create_connected_qps::<Rc>(link, nic, stream)?;
            run_and_count_wrs_per_qp(&qps, stream, None, NumberedReads::new(nic, stream, remote)?)?
        }
        Verb::Atomics if stream.atomic_counters == 1 => {
            let qps = create_connected_qps::<Rc>(link, nic, stream)?;
            run_and_count_wrs_per_qp(
                &qps,
                stream,
                None,
                SingleCounterAdds::new(nic, stream, remote)?,
            )?
        }
        Verb::Atomics => {
            let qps = create_connected_qps::<Rc>(link, nic, stream)?;
            let adds = RandomCounterAdds::new(nic, &qps, stream, remote)?;
            run_and_count_wrs_per_qp(&qps, stream, None, adds)?
        }
        _ => {
            let qps = create_connected_qps::<Rc>(link, nic, stream)?;
            run_writes(nic, &qps, stream, remote, None)?
        }
    };
    link.send(&OperationsPerQp(count))?;
    let wrong: Option<String> = link.recv()?;
    fail_if_wrong(wrong)?;
    Ok(StreamRate::new(
        stream,
        timed,
        count * stream.queue_pairs_per_thread as u64,
        0,
    ))
}

fn run_writes<T: Connected>(
    nic: &OpenNic,
    qps: &[QueuePair<T>],
    stream: &VerbStream,
    remote: RemoteMemory,
    credits: Option<&ReceivedCredits>,
) -> Result<(TimedOperations, u64)> {
    with_write_form!(stream.payload_bytes, stream.inline, F => {
        run_and_count_wrs_per_qp(qps, stream, credits, StampedWrites::<F>::new(nic, stream, remote)?)
    })
}

fn create_connected_qps<T: Connected>(
    link: &mut WorkerLink,
    nic: &OpenNic,
    stream: &VerbStream,
) -> Result<Vec<QueuePair<T>>> {
    let prepared = (0..stream.queue_pairs_per_thread).map(|_| {
        let cq = nic.create_cq(stream.window.max(credit::RESPONDER_SEND_WRS_PER_QP) + 1)?;
        let send_wrs = stream.window.max(credit::RESPONDER_SEND_WRS_PER_QP);
        let qp = nic
            .qp_builder::<T>(&cq, &cq)
            .max_send_wr(saturating_u32(send_wrs));
        let qp = qp
            .max_recv_wr(1u32)
            .max_inline_data(saturating_u32(stream.inline_bytes()));
        let qp = qp.build();
        qp.context("cannot make a queue pair for this window and inline payload; lower them")
    });
    let qps = connect_all(link, prepared.collect::<Result<_>>()?)?;
    // UC drops messages that arrive before the other side is ready.
    link.barrier()?;
    Ok(qps)
}

pub(super) fn run_worker_side(
    link: &mut WorkerLink,
    nic: &OpenNic,
    stream: &VerbStream,
    target: &SharedAtomicCounters,
) -> Result<()> {
    if stream.verb == Verb::Atomics {
        link.send(&target.remote_counters()?)?;
        let _qps = create_connected_qps::<Rc>(link, nic, stream)?;
        let OperationsPerQp(count) = link.recv()?;
        target.record_adds(count * stream.queue_pairs_per_thread as u64);
        return link.send(&None::<String>);
    }
    let access = Access::LOCAL_WRITE
        | match stream.verb {
            Verb::RcRead => Access::REMOTE_READ,
            _ => Access::REMOTE_WRITE,
        };
    let credits = credit::needs_credits(stream);
    let end_bytes = if credits { credit::END_WORD_BYTES } else { 0 };
    let bytes = stream.slot_bytes_per_thread() + end_bytes;
    let memory = if stream.private_target_memory {
        nic.pd.register_vec(vec![0; bytes], access)?
    } else {
        nic.alloc_registered_memory(bytes, access, stream.page_size)?
    };
    if stream.verb == Verb::RcRead {
        for place in 0..stream.slots_per_thread() {
            let (at, word) = (
                place * stream.slot_stride_bytes(),
                (place as u64 + 1).to_le(),
            );
            memory.write_u64(at, word)?;
            memory.write_u64(at + last_word_offset(stream.payload_bytes), word)?;
        }
    }
    link.send(&memory.remote())?;
    if stream.verb == Verb::UcWrite {
        let to = if credits { Some(link.recv()?) } else { None };
        let qps = create_connected_qps::<Uc>(link, nic, stream)?;
        if let Some(to) = to {
            credit::send_credits_until_end(nic, &qps, stream, &memory, to)?;
        }
        verify_slots_and_report(link, stream, &memory)
    } else {
        let _qps = create_connected_qps::<Rc>(link, nic, stream)?;
        verify_slots_and_report(link, stream, &memory)
    }
}

/// Receives the number of operations and sends a description of the first wrong slot, or `None`.
fn verify_slots_and_report(
    link: &mut WorkerLink,
    stream: &VerbStream,
    memory: &MemoryRegion,
) -> Result<()> {
    let OperationsPerQp(count) = link.recv()?;
    let mut timeout = PollTimeout::new(ARRIVAL_TIMEOUT_NS);
    let wrong = loop {
        let wrong = match stream.verb {
            Verb::RcRead => None,
            // A check of all payloads in each pass would take minutes on a simulated NIC, where a pass takes 20 ns.
            _ => match describe_wrong_stamp(stream, memory, count)? {
                None => describe_wrong_payload(stream, memory, count)?,
                wrong => wrong,
            },
        };
        if wrong.is_none() || timeout.is_over_after_empty_poll() {
            break wrong;
        }
    };
    link.send(&wrong)
}

/// Returns the last of the numbers `0..count` that was written to slot `place` of a thread; 0 if none was.
fn last_number_of_slot(stream: &VerbStream, place: usize, count: u64) -> u64 {
    let window = stream.window as u64;
    let slot = (place % stream.window) as u64;
    let turns = (count + window - 1 - slot) / window;
    turns.checked_sub(1).map_or(0, |t| t * window + slot + 1)
}

/// Returns a description of a slot that lacks the last of the numbers `0..count` written to it. The number is in the
/// last bytes of a WRITE, too, which are visible after all others.
fn describe_wrong_stamp(
    stream: &VerbStream,
    memory: &MemoryRegion,
    count: u64,
) -> Result<Option<String>> {
    let tail = last_word_offset(stream.payload_bytes);
    for place in 0..stream.slots_per_thread() {
        let number = last_number_of_slot(stream, place, count);
        let at = place * stream.slot_stride_bytes();
        let stamps = read_end_stamps(memory, at, stream.payload_bytes)?;
        for (word, got) in [at, at + tail].into_iter().zip(stamps) {
            if got != number {
                return Ok(Some(format!("{got} at offset {word}, not {number}")));
            }
        }
    }
    Ok(None)
}

/// Returns a description of a slot that has another payload than the one that was written, beside its numbers.
fn describe_wrong_payload(
    stream: &VerbStream,
    memory: &MemoryRegion,
    count: u64,
) -> Result<Option<String>> {
    let mut want = byte_pattern(stream.payload_bytes);
    let mut got = vec![0; stream.payload_bytes];
    let tail = last_word_offset(stream.payload_bytes);
    for place in 0..stream.slots_per_thread() {
        let number = last_number_of_slot(stream, place, count);
        let at = place * stream.slot_stride_bytes();
        memory.read_at(at, &mut got)?;
        for stamp in [0, tail] {
            let stamp = stamp..(stamp + 8).min(want.len());
            want[stamp.clone()].copy_from_slice(&got[stamp]);
        }
        if number > 0 && got != want {
            let offset = (0..want.len()).find(|&i| got[i] != want[i]).unwrap_or(0);
            return Ok(Some(format!(
                "another byte at offset {} of the payload of number {number}",
                at + offset
            )));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::parameters::MicroParameters;
    use crate::open_nic::NicChoice;

    #[test]
    fn a_place_with_another_number_is_found() {
        let nic = OpenNic::open(&NicChoice::first_device_of("softnic")).unwrap();
        let parameters = MicroParameters {
            payload_bytes: Some(24),
            window: Some(4),
            ..MicroParameters::default()
        };
        let stream = VerbStream::new(Verb::RcWrite, &parameters, 1).unwrap();
        let memory = nic.pd.alloc(4 * 24, Access::LOCAL_WRITE).unwrap();
        let wrong_stamp = |count| describe_wrong_stamp(&stream, &memory, count).unwrap();
        let wrong_payload = |count| describe_wrong_payload(&stream, &memory, count).unwrap();
        assert_eq!(wrong_stamp(0), None);
        assert_eq!(wrong_payload(0), None);
        // Six WRITEs: numbers 4 and 5 went to the first two slots. Stamps are one higher than
        // numbers.
        for (slot, stamp) in [(0, 5u64), (1, 6), (2, 3), (3, 4)] {
            memory.write_at(slot * 24, &byte_pattern(24)).unwrap();
            memory.write_u64(slot * 24, stamp).unwrap();
            memory.write_u64(slot * 24 + 16, stamp).unwrap();
        }
        assert_eq!(wrong_stamp(6), None);
        assert_eq!(wrong_payload(6), None);
        assert!(wrong_stamp(5).is_some());
        memory.write_u64(3 * 24 + 16, 8).unwrap();
        let wrong = wrong_stamp(6).unwrap();
        assert_eq!(wrong, "8 at offset 88, not 4");
        memory.write_u64(3 * 24 + 16, 4).unwrap();
        memory.write_at(24 + 10, &[0]).unwrap();
        // A pass of the poll does not look at payloads.
        assert_eq!(wrong_stamp(6), None);
        let wrong = wrong_payload(6).unwrap();
        assert!(wrong.contains("another byte at offset 34"), "{wrong}");
    }
}
