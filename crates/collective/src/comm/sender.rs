//! The end that sends.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use verbs::{
    CompletionQueue, HeaderOnly, Inline, MemoryRegion, MrSlice, RKey, RemoteMemory, Waiter,
};

use super::lane::{self, Lane};
use crate::error::Error;
use crate::memory_layout::{
    COMPLETION_RECORD_BYTES, CTS_ENTRY_BYTES, ClearToSend, MAX_RECEIVES_PER_GROUP,
    cts_entry_offset, marker_offset, slot_index, slot_marker, stripe_range,
};
use crate::peer_watch::PeerMonitor;
use crate::request_pool::RequestHandle;
use crate::send_state::{MatchedGroup, MatchedSend, SendMatch, SendQueue};

/// Sends into buffers that the receiver has posted.
///
/// No call blocks. Calls are to be made by one thread at a time.
#[derive(Debug)]
pub struct Sender {
    lanes: Vec<Lane>,
    cq: CompletionQueue,
    /// The receiver WRITEs clear-to-send entries here.
    cts_fifo: MemoryRegion,
    /// Sizes of groups, to be written to the receiver's completion records.
    size_staging: MemoryRegion,
    completion_records: RemoteMemory,
    send_queue: SendQueue<Option<MrSlice>>,
    /// WRs of each group under way, for each lane: one completion stands for them.
    wr_counts_per_lane: Vec<VecDeque<u8>>,
    peer_monitor: PeerMonitor,
    first_error: Option<Error>,
}

impl Sender {
    pub(crate) fn new(
        lanes: Vec<Lane>,
        cq: CompletionQueue,
        (fifo, sizes): (MemoryRegion, MemoryRegion),
        records: RemoteMemory,
        peer_monitor: PeerMonitor,
    ) -> Self {
        Self {
            send_queue: SendQueue::new(lanes.len()),
            wr_counts_per_lane: lanes.iter().map(|_| VecDeque::new()).collect(),
            lanes,
            cq,
            cts_fifo: fifo,
            size_staging: sizes,
            completion_records: records,
            peer_monitor,
            first_error: None,
        }
    }

    /// Sends a part of a buffer to the receive with this tag. `None`: the receiver has not posted it yet, or too many
    /// requests are under way; try again. The bytes belong to the NIC until the request is done.
    ///
    /// # Errors
    /// The errors of the connection, which is then broken. [`Error::InvalidRange`] and [`Error::MessageTooLong`]
    /// concern this send alone.
    pub fn isend(
        &mut self,
        buffer: &MemoryRegion,
        range: Range<usize>,
        tag: u32,
    ) -> Result<Option<RequestHandle>, Error> {
        self.fail_if_error_recorded()?;
        let len = lane::checked_range_len(&range, buffer)?;
        let payload = if len == 0 {
            None
        } else {
            Some(buffer.slice(range)?)
        };
        if !self.poll_clear_to_send()? {
            self.fail_if_peer_gone("sends that wait for a receive")?;
            return Ok(None);
        }
        if !self.poll_for_group_room()? {
            return Ok(None);
        }
        match self.send_queue.match_send(tag, len, payload)? {
            SendMatch::TryAgain => {
                self.fail_if_peer_gone("sends that wait for a receive")?;
                Ok(None)
            }
            SendMatch::GroupIncomplete(request) => Ok(Some(request)),
            SendMatch::GroupComplete(request, group) => {
                let posted = self.write_group(&group);
                self.record_first_error(posted)?;
                Ok(Some(request))
            }
        }
    }

    /// Returns the tag of the next receive, if the receiver has posted it alone and not in a group. Another tag is not
    /// matched before a send with this one.
    pub fn next_receive_tag(&self) -> Option<u32> {
        self.send_queue.next_receive_tag()
    }

    /// The bytes of a send that has arrived. The request is then done with.
    ///
    /// # Errors
    /// The errors of the connection, and [`Error::UnknownRequest`].
    pub fn test(&mut self, request: RequestHandle) -> Result<Option<u32>, Error> {
        self.fail_if_error_recorded()?;
        if let Some(len) = self.send_queue.take_if_delivered(request)? {
            return Ok(Some(len));
        }
        if self.poll()? == 0 {
            self.fail_if_peer_gone("sends")?;
        }
        self.send_queue.take_if_delivered(request)
    }

    /// Lets time pass where nothing can be sent: on a simulated NIC until the FIFO may have changed.
    pub fn wait_while_idle(&self, waiter: &mut Waiter) {
        waiter.idle_polling_memory(&self.cts_fifo);
    }

    /// Returns true if no send is in progress and all requests were tested to their end.
    pub fn is_idle(&self) -> bool {
        self.send_queue.is_idle()
    }

    /// Queue pairs of the connection.
    pub fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// Returns true if the receiver has posted the next group.
    fn poll_clear_to_send(&mut self) -> Result<bool, Error> {
        let Some(group) = self.send_queue.awaited_cts_group() else {
            return Ok(true);
        };
        let slot = slot_index(group);
        let index = self.cts_fifo.atomic_u64(marker_offset(slot))?;
        if index.load(Ordering::Acquire) != slot_marker(group) {
            return Ok(false);
        }
        let entry = |part: usize| {
            let mut bytes = [0; CTS_ENTRY_BYTES];
            self.cts_fifo
                .read_at(cts_entry_offset(slot, part), &mut bytes)?;
            Ok::<_, Error>(ClearToSend::decode(&bytes))
        };
        let first = entry(0)?;
        let mut entries = vec![first];
        for part in 1..(first.receives_in_group as usize).min(MAX_RECEIVES_PER_GROUP) {
            entries.push(entry(part)?);
        }
        let offered = self.send_queue.add_cts_entries(&entries);
        self.record_first_error(offered)?;
        Ok(true)
    }

    /// Returns true if each lane has room for a group.
    fn poll_for_group_room(&mut self) -> Result<bool, Error> {
        let full = |lanes: &[Lane]| {
            lanes
                .iter()
                .any(|lane| lane.free_send_wrs <= MAX_RECEIVES_PER_GROUP)
        };
        if full(&self.lanes) || !self.send_queue.has_request_room() {
            self.poll()?;
        }
        if full(&self.lanes) {
            self.fail_if_peer_gone("sends")?;
            return Ok(false);
        }
        Ok(true)
    }

    /// Posts the WRITEs of a group: one doorbell a lane.
    fn write_group(&mut self, group: &MatchedGroup<Option<MrSlice>>) -> Result<(), Error> {
        let lanes = self.lanes.len();
        let record = self.stage_group_sizes(group)?;
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            let list = &mut lane.send_postlist;
            list.clear();
            if let [part] = group.parts[..] {
                let (payload, remote) = lane_stripe(&part, lanes, index)?;
                let wr = match payload {
                    Some(payload) => list.rdma_write_with_imm(payload, remote, part.payload_len),
                    None => list.rdma_write_with_imm(HeaderOnly, remote, part.payload_len),
                };
                wr.signaled()
                    .wr_id(wr_id_of_lane_and_group(index, group.number));
            } else {
                for part in &group.parts {
                    if let (Some(payload), remote) = lane_stripe(part, lanes, index)? {
                        list.rdma_write(payload, remote);
                    }
                }
                #[expect(clippy::cast_possible_truncation, reason = "8 at most")]
                let imm = group.parts.len() as u32;
                // The sizes go with the first lane alone: the group is there once all lanes have told.
                let wr = if index > 0 {
                    list.rdma_write_with_imm(HeaderOnly, record.1, imm)
                } else if lane.qp.max_inline_data() >= COMPLETION_RECORD_BYTES {
                    let mut bytes = [0; COMPLETION_RECORD_BYTES];
                    let sizes = group.parts.iter().flat_map(|p| p.payload_len.to_le_bytes());
                    bytes.iter_mut().zip(sizes).for_each(|(to, b)| *to = b);
                    list.rdma_write_with_imm(Inline(&bytes[..4 * group.parts.len()]), record.1, imm)
                } else {
                    list.rdma_write_with_imm(record.0, record.1, imm)
                };
                wr.signaled()
                    .wr_id(wr_id_of_lane_and_group(index, group.number));
            }
            lane.qp.post_send(list)?;
            lane.free_send_wrs -= list.len();
            self.wr_counts_per_lane[index].push_back(u8::try_from(list.len()).unwrap_or(u8::MAX));
        }
        Ok(())
    }

    /// Copies the sizes of a group to registered memory. Returns that memory, and the receiver's completion record.
    fn stage_group_sizes(
        &self,
        group: &MatchedGroup<Option<MrSlice>>,
    ) -> Result<(MrSlice, RemoteMemory), Error> {
        let at = slot_index(group.number) * COMPLETION_RECORD_BYTES;
        let len = 4 * group.parts.len();
        if group.parts.len() > 1 {
            let sizes: Vec<u8> = group
                .parts
                .iter()
                .flat_map(|p| p.payload_len.to_le_bytes())
                .collect();
            self.size_staging.write_at(at, &sizes)?;
        }
        let remote = self.completion_records.starting_at(at as u64);
        let remote = remote.ok_or_else(|| Error::InvalidRange("no such record".to_owned()))?;
        Ok((self.size_staging.slice(at..at + len)?, remote))
    }

    /// Takes completions and returns their number.
    fn poll(&mut self) -> Result<usize, Error> {
        let Self {
            lanes,
            wr_counts_per_lane: wrs,
            send_queue: state,
            ..
        } = self;
        let taken = lane::drain_completions(&self.cq, |wc| {
            let (lane, group) = lane_and_group_of_wr_id(wc.wr_id());
            if let (Some(lane), Some(posted)) = (lanes.get_mut(lane), wrs[lane].pop_front()) {
                lane.free_send_wrs += usize::from(posted);
            }
            state.complete_group_on_lane(group)
        });
        self.record_first_error(taken)
    }

    /// Returns an error if a call found nothing because the peer is gone.
    fn fail_if_peer_gone(&mut self, what: &'static str) -> Result<(), Error> {
        if self.peer_monitor.is_gone_after_empty_call() && self.poll()? == 0 {
            return self.record_first_error(Err(Error::PeerGone(what)));
        }
        Ok(())
    }

    /// Records the first error of the connection.
    fn record_first_error<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            self.first_error.get_or_insert_with(|| error.clone());
        }
        result
    }

    fn fail_if_error_recorded(&self) -> Result<(), Error> {
        self.first_error.clone().map_or(Ok(()), Err)
    }
}

/// Bits of a `wr_id` that hold the group.
const WR_ID_GROUP_BITS: u32 = 56;

fn wr_id_of_lane_and_group(lane: usize, group: u64) -> u64 {
    (lane as u64) << WR_ID_GROUP_BITS | group & ((1 << WR_ID_GROUP_BITS) - 1)
}

fn lane_and_group_of_wr_id(wr_id: u64) -> (usize, u64) {
    let lane = (wr_id >> WR_ID_GROUP_BITS) as usize;
    (lane, wr_id & ((1 << WR_ID_GROUP_BITS) - 1))
}

/// The piece of a send that a lane carries, and its destination.
fn lane_stripe(
    part: &MatchedSend<Option<MrSlice>>,
    lanes: usize,
    lane: usize,
) -> Result<(Option<MrSlice>, RemoteMemory), Error> {
    let range = stripe_range(part.payload_len, lanes, lane);
    let remote = RemoteMemory {
        addr: part.posted_receive.addr,
        len: part.posted_receive.buffer_bytes.into(),
        rkey: RKey(part.posted_receive.rkey),
    };
    let remote = remote.starting_at(range.start.into());
    let remote = remote.ok_or_else(|| Error::Protocol("a receive wraps around".to_owned()))?;
    let payload = part.payload.filter(|_| !range.is_empty());
    Ok((payload.and_then(|p| p.subrange(range)), remote))
}
