//! SEND on a raw packet queue pair: whole Ethernet frames, delivered to the queue pairs whose flows they match.

use super::*;
use crate::steering::{KnownSteeringRules, SteeredQp};
use nic_core::flows::FrameHeaders;

/// Shortest frame on a wire, without its check sequence: IEEE 802.3, 3.2.8. Shorter ones are padded with zeroes.
const MIN_FRAME_BYTES: usize = 60;

/// Longest frame: a payload of 9000 bytes, the usual size of jumbo frames, behind an Ethernet header and a VLAN tag.
pub(crate) const MAX_FRAME_BYTES: usize = 9018;

/// Slots of the ring from one raw packet queue pair to another: room for seven of the longest frames.
const RAW_RING_SLOTS: u64 = 4096;

/// The state that a raw packet queue pair needs to send.
#[derive(Default)]
pub(super) struct RawQpState {
    steering_rules: KnownSteeringRules,
    /// Buffer for the frame that is being sent.
    frame_buffer: Vec<u8>,
}

/// Sends a frame to each queue pair whose flow it matches, except those of the sending context. A port does not receive
/// its own frames. mlx5 devices have a self-loopback block for this, which applies to a transport domain. Each context
/// has one transport domain.
#[inline(never)]
pub(super) fn send_frame(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> ExecutionResult {
    let mut raw = sq.raw_qp_state.take().unwrap_or_default();
    let outcome = send_frame_with_state(&mut raw, qp, sq, view);
    sq.raw_qp_state = Some(raw);
    outcome
}

fn send_frame_with_state(
    raw: &mut RawQpState,
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
) -> ExecutionResult {
    let total = view
        .sges
        .iter()
        .fold(0, |sum, sge| sum + sge.length as usize);
    if total > MAX_FRAME_BYTES {
        return ExecutionResult::Failed(IBV_WC_LOC_LEN_ERR);
    }
    let frame = &mut raw.frame_buffer;
    frame.clear();
    frame.resize(total.max(MIN_FRAME_BYTES), 0);
    let mut at = 0;
    let gathered = for_each_payload_part(qp, &mut sq.local_regions, view, |src, len| {
        let part = frame.get_mut(at..at + len).ok_or(IBV_WC_LOC_LEN_ERR)?;
        at += len;
        // SAFETY: `part` has `len` bytes of our own.
        unsafe { shm::mem::copy(part.as_mut_ptr(), src, len) }
            .map_err(|MemoryFault| IBV_WC_LOC_PROT_ERR)
    });
    if let Err(status) = gathered {
        return ExecutionResult::Failed(status);
    }
    let Some(headers) = FrameHeaders::parse(&frame[..total]) else {
        return ExecutionResult::Failed(IBV_WC_LOC_LEN_ERR);
    };
    if view.wr.send_flags & IBV_SEND_IP_CSUM != 0 {
        headers.fill_in_checksums(frame);
    }
    raw.steering_rules.refresh_if_changed(&qp.nic.fabric);
    let mut to: Vec<(usize, u32)> = Vec::new();
    for target in raw.steering_rules.steered_qps(&headers) {
        let ring =
            (!is_of_sending_context(qp, &target)).then(|| find_or_create_ring_to(qp, sq, &target));
        // Each ring gets the frame once, however many of its flows match: room is checked once in each ring.
        let new = ring
            .flatten()
            .filter(|i| to.iter().all(|(other, _)| other != i));
        to.extend(new.map(|i| (i, target.flow_tag)));
    }
    if !keep_rings_with_room(qp, sq, frame.len(), &mut to, |&(i, _)| i) {
        return ExecutionResult::NotPossibleYet;
    }
    #[allow(clippy::cast_possible_truncation)] // at most MAX_FRAME
    let len = frame.len() as u32;
    let kind = if headers.checksums_are_right(frame) {
        RecordKind::FrameWithGoodChecksums
    } else {
        RecordKind::Frame
    };
    let solicited = view.wr.send_flags & IBV_SEND_SOLICITED != 0;
    for (i, tag) in to {
        let Some(ring) = open_postlist_in_ring(qp.nic, &mut sq.ud_rings, i) else {
            continue;
        };
        let place = ring.ring_producer.place_for_payload(frame.len());
        // SAFETY: the place has as many bytes as the frame, in memory that is not the frame's.
        unsafe {
            place
                .as_mut_ptr()
                .copy_from_nonoverlapping(frame.as_ptr(), frame.len());
        }
        ring.open_list_has_solicited |= solicited;
        let flags = if solicited { FLAG_SOLICITED } else { 0 };
        ring.ring_producer
            .add_to_postlist(make_record_header(kind, flags, tag, len, 0), frame.len());
    }
    ExecutionResult::Done(u32::try_from(total).unwrap_or(u32::MAX))
}

/// Returns true if the target is a queue pair of the sending context.
fn is_of_sending_context(qp: &Qp, target: &SteeredQp<'_>) -> bool {
    target.peer.is_self
        && qp
            .nic
            .objects
            .do_qps_share_context(target.qp_index, qp.index)
}

fn find_or_create_ring_to(qp: &Qp, sq: &mut SendQueue, target: &SteeredQp<'_>) -> Option<usize> {
    let way = DatagramRingProperties {
        receiver_type: IBV_QPT_RAW_PACKET,
        slot_count: RAW_RING_SLOTS,
        grh: None,
        completion_path_word: 0,
    };
    find_or_create_datagram_ring(qp, sq, &way, Arc::clone(target.peer), target.qp_index)
}

/// Wakes the engines of all processes that may get frames.
#[cold]
pub(super) fn wake_receivers(sq: &SendQueue) {
    for peer in sq
        .raw_qp_state
        .iter()
        .flat_map(|raw| raw.steering_rules.peers_with_flows())
    {
        peer.wake_engine();
    }
}
