//! SEND on UD, and the rings of a queue pair that sends datagrams.

use super::*;
use crate::multicast::{self, MULTICAST_QPN, MulticastGroup};

/// Largest UD payload: the path MTU (`ibv_post_send(3)`).
pub(crate) const UD_MAX_PAYLOAD_BYTES: usize = 4096;

/// Slots of the ring from one UD queue pair to another: 16 KiB, so that several fit in the L1 cache.
pub(super) const UD_RING_SLOTS: u64 = 1024;

/// The rings of a queue pair that sends datagrams.
#[derive(Default)]
pub(super) struct UdRings {
    pub(super) rings: Vec<Option<OutboundShmRing>>,
    pub(super) ring_index_by_destination: HashMap<(Vec<u8>, u32), usize>,
    /// Recently used rings: direct-mapped, by address handle and QP number.
    pub(super) recently_used_rings: Vec<(u64, u32, usize)>,
    /// The ring with an open postlist.
    pub(super) open_postlist_ring_index: Option<usize>,
}

pub(super) const RECENT_RING_SLOTS: usize = 64;

/// Executes a SEND on UD.
#[inline]
pub(super) fn ud_send(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) -> ExecutionResult {
    let Some(ah) = view.ah else {
        return ExecutionResult::Failed(IBV_WC_LOC_QP_OP_ERR);
    };
    let mut total = 0usize;
    for sge in view.sges {
        total += sge.length as usize;
    }
    if total > UD_MAX_PAYLOAD_BYTES {
        return fail_too_long(total as u64, UD_MAX_PAYLOAD_BYTES as u32);
    }
    // SAFETY: the union's member for UD; a plain integer.
    let qpn = unsafe { view.wr.wr.ud.remote_qpn };
    #[allow(clippy::cast_possible_truncation)] // at most 4096
    let len = total as u32;
    let Some(i) = ud_ring_index(qp, sq, ah, qpn) else {
        return match ah.multicast_group {
            Some(group) if qpn == MULTICAST_QPN => {
                send_to_multicast_group(qp, sq, view, ah, group, total)
            }
            // The receiver does not exist: the datagram is lost, and its completion reports success.
            _ => {
                if ah.local_dest_port.is_some() && is_dest_process_unknown(qp, sq, qpn) {
                    why::report_peer_not_in_fabric(qp.nic.fabric.dir(), (qp.qpn, qpn));
                }
                ExecutionResult::Done(len)
            }
        };
    };
    let outcome = put_datagram_in_ring(qp, sq, view, i, total);
    if matches!(outcome, ExecutionResult::Done(_)) {
        let port = dest_port_of_ring(sq, i);
        count_request_traffic(qp, sq, view, port);
    }
    outcome
}

/// Returns true if the process that `qpn` names is not in the fabric, and this queue pair has no ring to it.
#[cold]
fn is_dest_process_unknown(qp: &Qp, sq: &SendQueue, qpn: u32) -> bool {
    let slot = qpn as usize >> QP_INDEX_BITS;
    let mut known = sq.ud_rings.rings.iter().flatten();
    qp.nic.fabric.peer(slot).is_none() && known.all(|ring| ring.peer.slot != slot)
}

/// Sends to all members of a multicast group. It waits for a member whose ring is full, as SEND to one queue pair does.
/// A member that made no room the last time is not waited for again: it loses datagrams, and the others do not wait for
/// it.
///
/// The sender gets the datagram too, if it is attached. Adapters replicate to the sending queue pair, which is why
/// IPoIB drops its own packets (`ipoib_ib_handle_rx_wc` of `linux:drivers/infiniband/ulp/ipoib/ipoib_ib.c`).
#[cold]
fn send_to_multicast_group(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    ah: &Ah,
    group: MulticastGroup,
    total: usize,
) -> ExecutionResult {
    let block_self = qp.blocks_multicast_loopback.load(Ordering::Relaxed);
    let mut rings = Vec::new();
    for peer in qp.nic.fabric.live_processes() {
        for index in multicast::member_qp_indices(&peer, group) {
            if block_self && peer.is_self && index == qp.index {
                continue;
            }
            rings.extend(find_or_create_ring_to(qp, sq, ah, Arc::clone(&peer), index));
        }
    }
    if !keep_rings_with_room(qp, sq, total, &mut rings, |&i| i) {
        return ExecutionResult::NotPossibleYet;
    }
    for &i in &rings {
        if let ExecutionResult::Failed(status) = put_datagram_in_ring(qp, sq, view, i, total) {
            return ExecutionResult::Failed(status);
        }
    }
    let mut ports: Vec<_> = rings
        .into_iter()
        .map(|i| dest_port_of_ring(sq, i))
        .collect();
    ports.sort_unstable();
    ports.dedup();
    if (sq.unpublished_traffic).count_multicast_datagram(view.wr.opcode, total as u64, &ports) {
        publish_traffic(qp, sq);
    }
    #[allow(clippy::cast_possible_truncation)] // at most 4096
    let len = total as u32;
    ExecutionResult::Done(len)
}

/// Returns the port to which ring `i` leads.
fn dest_port_of_ring(sq: &SendQueue, i: usize) -> DestinationPort {
    let ring = sq.ud_rings.rings.get(i).and_then(Option::as_ref);
    ring.map_or(DestinationPort::PEER, |ring| ring.dest_port)
}

/// Keeps those rings that have room for a datagram. Returns false if the datagram has to wait for one of the others.
pub(super) fn keep_rings_with_room<T>(
    qp: &Qp,
    sq: &mut SendQueue,
    total: usize,
    to: &mut Vec<T>,
    ring_of: impl Fn(&T) -> usize,
) -> bool {
    let mut wait = false;
    to.retain(|to| {
        let Some(Some(ring)) = sq.ud_rings.rings.get_mut(ring_of(to)) else {
            return false;
        };
        match ring.ring_producer.has_room(total) {
            Ok(true) => ring.datagram_waited_in_vain = false,
            Ok(false) => {
                ring.publish_postlist(qp.nic);
                wait |= !ring.datagram_waited_in_vain;
                return false;
            }
            Err(_) => return false,
        }
        true
    });
    !wait
}

/// Ends the wait of a datagram for several receivers. Those without room lose this datagram and later ones, until they
/// have room again.
#[cold]
pub(super) fn stop_waiting_for_room(sq: &mut SendQueue) {
    for ring in sq.ud_rings.rings.iter_mut().flatten() {
        // Rings that are not full will be found to have room, which clears `datagram_waited_in_vain`.
        ring.datagram_waited_in_vain = true;
    }
}

/// Ends the wait of a datagram for one receiver. The datagram is lost, and so are later ones to that receiver until it
/// makes room.
#[cold]
pub(super) fn stop_waiting_for_receiver(qp: &Qp, sq: &mut SendQueue, view: &WrView<'_>) {
    let Some(ah) = view.ah else { return };
    // SAFETY: the union's member for UD; a plain integer.
    let qpn = unsafe { view.wr.wr.ud.remote_qpn };
    if let Some(i) = ud_ring_index(qp, sq, ah, qpn)
        && let Some(Some(ring)) = sq.ud_rings.rings.get_mut(i)
    {
        ring.datagram_waited_in_vain = true;
    }
}

/// Makes ring `i` the one with the open postlist, and publishes the previous one.
#[inline(always)]
pub(super) fn open_postlist_in_ring<'a>(
    nic: &Nic,
    ud: &'a mut UdRings,
    i: usize,
) -> Option<&'a mut OutboundShmRing> {
    if let Some(open) = ud.open_postlist_ring_index
        && open != i
        && let Some(Some(ring)) = ud.rings.get_mut(open)
    {
        ring.publish_postlist(nic);
    }
    let ring = ud.rings.get_mut(i)?.as_mut()?;
    ud.open_postlist_ring_index = Some(i);
    Some(ring)
}

/// Puts a datagram into ring `i` of this queue pair's rings to other UD queue pairs.
#[inline(always)]
fn put_datagram_in_ring(
    qp: &Qp,
    sq: &mut SendQueue,
    view: &WrView<'_>,
    i: usize,
    total: usize,
) -> ExecutionResult {
    // SAFETY: the union's member for UD; a plain integer.
    let qkey = unsafe { view.wr.wr.ud.remote_qkey };
    #[allow(clippy::cast_possible_truncation)] // at most 4096
    let len = total as u32;
    let Some(ring) = open_postlist_in_ring(qp.nic, &mut sq.ud_rings, i) else {
        return ExecutionResult::Done(len);
    };
    match ring.ring_producer.has_room(total) {
        Ok(true) => ring.datagram_waited_in_vain = false,
        // The receiver may be stopped. Datagrams to others would wait behind each datagram to it.
        Ok(false) if ring.datagram_waited_in_vain => return ExecutionResult::Done(len),
        Ok(false) => {
            ring.publish_postlist(qp.nic);
            return ExecutionResult::NotPossibleYet;
        }
        Err(_) => return ExecutionResult::Done(len),
    }
    let mut flags = 0;
    if view.wr.send_flags & IBV_SEND_SOLICITED != 0 {
        flags |= FLAG_SOLICITED;
        ring.open_list_has_solicited = true;
    }
    let (kind, imm) = if view.wr.opcode == IBV_WR_SEND_WITH_IMM {
        // SAFETY: reads the immediate of the union, which is plain bytes.
        (RecordKind::SendWithImm, unsafe { view.wr.imm.imm_data })
    } else {
        (RecordKind::Send, 0)
    };
    if let Err(status) = gather_into_record(
        qp,
        &mut sq.local_regions,
        view,
        &mut ring.ring_producer,
        total,
    ) {
        return ExecutionResult::Failed(status);
    }
    // "If the high-order bit of the Q_Key is set, the one of the queue pair is used" (IBTA 10.2.5).
    let qkey = if qkey >> 31 != 0 {
        qp.qkey.load(Ordering::Relaxed)
    } else {
        qkey
    };
    ring.ring_producer
        .add_to_postlist(make_record_header(kind, flags, imm, len, qkey), total);
    ExecutionResult::Done(len)
}

/// Returns the index of the ring to `qpn` as `ah` addresses it.
#[inline]
pub(super) fn ud_ring_index(qp: &Qp, sq: &mut SendQueue, ah: &Ah, qpn: u32) -> Option<usize> {
    recent_ud_ring_index(sq, ah, qpn).or_else(|| find_or_create_ud_ring(qp, sq, ah, qpn))
}

/// Returns the place of a destination among the recent ones.
#[inline]
pub(super) fn recent_ring_slot(ah: &Ah, qpn: u32) -> usize {
    #[allow(clippy::cast_possible_truncation)] // a hash
    let hash = ah.id as usize ^ qpn as usize ^ (qpn >> QP_INDEX_BITS) as usize;
    hash % RECENT_RING_SLOTS
}

/// Returns the index of the ring to `qpn`, if it was used recently and its queue pair is still the same.
#[inline]
pub(super) fn recent_ud_ring_index(sq: &SendQueue, ah: &Ah, qpn: u32) -> Option<usize> {
    let &(id, q, i) = sq
        .ud_rings
        .recently_used_rings
        .get(recent_ring_slot(ah, qpn))?;
    let ring = sq.ud_rings.rings.get(i)?.as_ref()?;
    let dest = ring.peer.segment.qp(ring.dest_qp_index)?;
    (id == ah.id
        && q == qpn
        && !ring.peer.is_dead()
        && dest.epoch.load(Ordering::Relaxed) == ring.dest_epoch)
        .then_some(i)
}

#[cold]
pub(super) fn find_or_create_ud_ring(
    qp: &Qp,
    sq: &mut SendQueue,
    ah: &Ah,
    qpn: u32,
) -> Option<usize> {
    let port = ah.local_dest_port?;
    if qpn >> 24 != 0 {
        return None;
    }
    let peer = qp.nic.fabric.peer(qpn as usize >> QP_INDEX_BITS)?;
    let dest = peer.segment.find_qp(qpn as usize % MAX_QPS)?;
    // A datagram to another port of the host does not reach it.
    let of_port = dest.host_wide_port_number.load(Ordering::Relaxed);
    if of_port != 0 && of_port != u32::from(port.host_wide_number()) {
        return None;
    }
    let i = find_or_create_ring_to(qp, sq, ah, peer, qpn as usize % MAX_QPS)?;
    if sq.ud_rings.recently_used_rings.is_empty() {
        sq.ud_rings.recently_used_rings = vec![(0, 0, 0); RECENT_RING_SLOTS];
    }
    sq.ud_rings.recently_used_rings[recent_ring_slot(ah, qpn)] = (ah.id, qpn, i);
    Some(i)
}

/// Returns the ring to queue pair `index` of `peer`, if that receives datagrams as `ah` addresses them.
fn find_or_create_ring_to(
    qp: &Qp,
    sq: &mut SendQueue,
    ah: &Ah,
    peer: Arc<Peer>,
    index: usize,
) -> Option<usize> {
    let way = DatagramRingProperties {
        receiver_type: IBV_QPT_UD,
        slot_count: UD_RING_SLOTS,
        grh: ah.grh,
        completion_path_word: ah.completion_path_word,
    };
    find_or_create_datagram_ring(qp, sq, &way, peer, index)
}

/// The properties that datagrams of one ring have in common.
pub(super) struct DatagramRingProperties {
    /// The type of the receiving queue pair.
    pub(super) receiver_type: ibv_qp_type,
    /// Slots of the ring.
    pub(super) slot_count: u64,
    /// The GRH in front of each datagram.
    pub(super) grh: Option<[u8; 40]>,
    /// The path of the datagrams, as in `RingHeader::src_lid_sl_grh`.
    pub(super) completion_path_word: u64,
}

impl DatagramRingProperties {
    /// Returns a key of the properties, which is unique among queue pairs of one type.
    fn key(&self) -> Vec<u8> {
        let mut key = self.completion_path_word.to_ne_bytes().to_vec();
        key.extend(self.grh.iter().flatten());
        key
    }
}

/// Returns the ring to queue pair `index` of `peer`, if that receives such datagrams. Creates the ring if there is
/// none.
pub(super) fn find_or_create_datagram_ring(
    qp: &Qp,
    sq: &mut SendQueue,
    way: &DatagramRingProperties,
    peer: Arc<Peer>,
    index: usize,
) -> Option<usize> {
    #[allow(clippy::cast_possible_truncation)] // 24 bits
    let qpn = (peer.slot << QP_INDEX_BITS | index) as u32;
    let dest = peer.segment.find_qp(index)?;
    let state = dest.state_plus_1.load(Ordering::Acquire);
    let receives = state > 1 + IBV_QPS_INIT && state != 1 + IBV_QPS_ERR;
    if !receives || dest.qp_type.load(Ordering::Relaxed) != way.receiver_type {
        return None;
    }
    let key = (way.key(), qpn);
    let known = sq.ud_rings.ring_index_by_destination.get(&key).copied().filter(|&i| {
        matches!(sq.ud_rings.rings.get(i), Some(Some(r)) if r.peer.incarnation == peer.incarnation
            && r.dest_epoch == dest.epoch.load(Ordering::Relaxed))
    });
    match known {
        Some(i) => Some(i),
        None => {
            close_stale_rings(qp.nic, sq);
            let mut ring = new_ring(
                qp,
                peer,
                &NewRingParameters {
                    slot_count: way.slot_count,
                    dest_qp_index: index,
                    rnr_retry: 0,
                    grh: way.grh,
                    completion_path_word: way.completion_path_word,
                },
            )?;
            if let Some(name) = ring.dest_port_id() {
                ring.dest_port = sq.unpublished_traffic.find_or_add_destination(name);
            }
            let i = match sq.ud_rings.rings.iter().position(Option::is_none) {
                Some(free) => free,
                None => {
                    sq.ud_rings.rings.push(None);
                    sq.ud_rings.rings.len() - 1
                }
            };
            sq.ud_rings.rings[i] = Some(ring);
            sq.ud_rings.ring_index_by_destination.insert(key, i);
            Some(i)
        }
    }
}

/// Closes the rings to queue pairs that no longer exist.
pub(super) fn close_stale_rings(nic: &Nic, sq: &mut SendQueue) {
    let UdRings {
        rings,
        ring_index_by_destination: by_destination,
        open_postlist_ring_index: open,
        ..
    } = &mut sq.ud_rings;
    for (i, place) in rings.iter_mut().enumerate() {
        let gone = *open != Some(i)
            && place.as_ref().is_some_and(|r| {
                r.peer.is_dead()
                    || r.peer
                        .segment
                        .qp(r.dest_qp_index)
                        .is_none_or(|d| d.epoch.load(Ordering::Relaxed) != r.dest_epoch)
            });
        if gone && let Some(ring) = place.take() {
            by_destination.retain(|_, &mut v| v != i);
            ring.close(nic);
        }
    }
}
