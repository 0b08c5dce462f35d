//! The end that receives.

use std::collections::VecDeque;
use std::ops::Range;

use verbs::{
    Access, CompletionQueue, Inline, MemoryRegion, ProtectionDomain, QueuePair, Rc, RecvList,
    RemoteMemory, Waiter,
};

use super::lane::{self, Lane};
use crate::config::{CTS_SIGNAL_INTERVAL, Config, RECVS_PER_REPOST};
use crate::error::Error;
use crate::memory_layout::{
    COMPLETION_RECORD_BYTES, CTS_ENTRY_BYTES, ClearToSend, MAX_RECEIVES_PER_GROUP,
    cts_entry_offset, slot_index,
};
use crate::peer_watch::PeerMonitor;
use crate::receive_state::{GroupPartSizes, ImmediateResult, ReceiveQueue};
use crate::request_pool::RequestHandle;

/// Receives into buffers that it posts.
///
/// No call blocks. Calls are to be made by one thread at a time.
#[derive(Debug)]
pub struct Receiver {
    lanes: Vec<Lane>,
    cq: CompletionQueue,
    /// The sender WRITEs the sizes of groups here.
    completion_records: MemoryRegion,
    /// Clear-to-send entries that are too long to go inline.
    cts_staging: MemoryRegion,
    sender_fifo: RemoteMemory,
    receive_queue: ReceiveQueue,
    /// The QP number of each lane: completions name their lane by it.
    lane_qpns: Vec<u32>,
    repost_list: RecvList,
    /// RECVs of each lane that are used up and not posted again.
    recvs_to_repost: Vec<usize>,
    /// Clear-to-send WRITEs of each lane since it posted a signaled one.
    unsignaled_cts_writes: Vec<usize>,
    flush_qp: Option<FlushLoopbackQp>,
    flush_qp_pd_and_config: (ProtectionDomain, Config),
    peer_monitor: PeerMonitor,
    first_error: Option<Error>,
}

/// A queue pair that leads back to itself: a READ by it is behind every WRITE that came before.
#[derive(Debug)]
struct FlushLoopbackQp {
    qp: QueuePair<Rc>,
    read_target: MemoryRegion,
    requests_in_flight: VecDeque<RequestHandle>,
}

/// The `wr_id` of a flush; that of a clear-to-send WRITE is 0.
const FLUSH_WR_ID: u64 = 1;
/// Flushes under way, at most.
const MAX_FLUSHES_IN_FLIGHT: usize = 64;

impl Receiver {
    pub(crate) fn new(
        lanes: Vec<Lane>,
        cq: CompletionQueue,
        (records, staging): (MemoryRegion, MemoryRegion),
        fifo: RemoteMemory,
        recvs: RecvList,
        flush_resources: (ProtectionDomain, Config),
        peer_monitor: PeerMonitor,
    ) -> Self {
        Self {
            receive_queue: ReceiveQueue::new(lanes.len()),
            lane_qpns: lanes.iter().map(|lane| lane.qp.qpn().0).collect(),
            recvs_to_repost: vec![0; lanes.len()],
            unsignaled_cts_writes: vec![0; lanes.len()],
            lanes,
            cq,
            completion_records: records,
            cts_staging: staging,
            sender_fifo: fifo,
            repost_list: recvs,
            flush_qp: None,
            flush_qp_pd_and_config: flush_resources,
            peer_monitor,
            first_error: None,
        }
    }

    /// Posts a group of 1 to 8 receives, each a part of a buffer and the tag of the send that may fill it. `None`: too
    /// many are under way; try again. Groups are filled in their order; tags choose within a group.
    ///
    /// # Errors
    /// The errors of the connection, which is then broken. [`Error::InvalidRange`] and [`Error::InvalidReceiveCount`]
    /// concern this group alone.
    pub fn irecv(
        &mut self,
        parts: &[(&MemoryRegion, Range<usize>, u32)],
    ) -> Result<Option<RequestHandle>, Error> {
        self.fail_if_error_recorded()?;
        if !(1..=MAX_RECEIVES_PER_GROUP).contains(&parts.len()) {
            return Err(Error::InvalidReceiveCount(parts.len()));
        }
        let mut room = [0; MAX_RECEIVES_PER_GROUP];
        for (room, (buffer, range, _)) in room.iter_mut().zip(parts) {
            *room = lane::checked_range_len(range, buffer)?;
        }
        if self.lanes.iter().any(|lane| lane.free_send_wrs == 0) {
            self.poll()?;
            if self.lanes.iter().any(|lane| lane.free_send_wrs == 0) {
                self.fail_if_peer_gone()?;
                return Ok(None);
            }
        }
        let Some((request, group)) = self
            .receive_queue
            .post_receive_group(&room[..parts.len()])?
        else {
            self.poll()?;
            return Ok(None);
        };
        let cleared = self.write_clear_to_send(group, parts, &room);
        self.record_first_error(cleared)?;
        Ok(Some(request))
    }

    /// Returns the sizes that came for each receive of the group, and frees the request; `None` while a receive is
    /// incomplete.
    ///
    /// # Errors
    /// The errors of the connection, and [`Error::UnknownRequest`].
    pub fn test(&mut self, request: RequestHandle) -> Result<Option<GroupPartSizes>, Error> {
        self.fail_if_error_recorded()?;
        if let Some(sizes) = self.receive_queue.take_if_complete(request)? {
            return Ok(Some(sizes));
        }
        if self.poll()? == 0 {
            self.fail_if_peer_gone()?;
        }
        self.receive_queue.take_if_complete(request)
    }

    /// READs a byte of a buffer that was received into, over a queue pair that leads back here. Once its request is
    /// done, devices that the NIC writes to directly have what came before. `None`: too many are under way; try again.
    ///
    /// # Errors
    /// The errors of the connection. The buffer's region needs [`Access::REMOTE_READ`].
    pub fn try_start_flush(
        &mut self,
        buffer: &MemoryRegion,
        offset: usize,
    ) -> Result<Option<RequestHandle>, Error> {
        self.fail_if_error_recorded()?;
        let remote = buffer
            .remote()
            .starting_at(offset as u64)
            .filter(|r| r.len > 0);
        let remote = remote.ok_or_else(|| {
            Error::InvalidRange(format!(
                "offset {offset} is not in a region of {} bytes",
                buffer.len()
            ))
        })?;
        if self.flush_qp.is_none() {
            let (pd, config) = &self.flush_qp_pd_and_config;
            let made = FlushLoopbackQp::new(pd, config, &self.cq);
            self.flush_qp = Some(self.record_first_error(made)?);
        }
        let Some(flush) = self.flush_qp.as_mut() else {
            return Ok(None);
        };
        if flush.requests_in_flight.len() >= MAX_FLUSHES_IN_FLIGHT {
            self.poll()?;
            return Ok(None);
        }
        let Some(request) = self.receive_queue.allocate_flush_request_if_free() else {
            return Ok(None);
        };
        flush.requests_in_flight.push_back(request);
        let into = flush.read_target.slice(0..1)?;
        let posted = flush.qp.post_one(|list| {
            list.rdma_read(into, RemoteMemory { len: 1, ..remote })
                .signaled()
                .wr_id(FLUSH_WR_ID);
        });
        self.record_first_error(posted.map_err(Error::from))?;
        Ok(Some(request))
    }

    /// Lets time pass where nothing has come: on a simulated NIC until something may have.
    pub fn wait_while_idle(&self, waiter: &mut Waiter, until_ns: u64) {
        waiter.idle_polling_cq_until(until_ns);
    }

    /// Returns true if no group waits for bytes.
    pub fn has_no_pending_groups(&self) -> bool {
        self.receive_queue.is_idle()
    }

    /// Queue pairs of the connection.
    pub fn lane_count(&self) -> usize {
        self.lanes.len()
    }

    /// WRITEs the entries of a group into the sender's FIFO.
    fn write_clear_to_send(
        &mut self,
        group: u64,
        parts: &[(&MemoryRegion, Range<usize>, u32)],
        room: &[u32; MAX_RECEIVES_PER_GROUP],
    ) -> Result<(), Error> {
        let count = parts.len();
        let mut bytes = [0; MAX_RECEIVES_PER_GROUP * CTS_ENTRY_BYTES];
        // The first entry comes last: see `cts_entry_offset`.
        let (entries, _) = bytes.as_chunks_mut::<CTS_ENTRY_BYTES>();
        for (part, (buffer, range, tag)) in parts.iter().enumerate() {
            let entry = ClearToSend {
                addr: buffer.addr() + range.start as u64,
                buffer_bytes: room[part],
                rkey: buffer.rkey().0,
                tag: *tag,
                receives_in_group: u32::try_from(count).unwrap_or(u32::MAX),
            };
            entries[count - 1 - part] = entry.encode(group);
        }
        let bytes = &bytes[..count * CTS_ENTRY_BYTES];
        let at = cts_entry_offset(slot_index(group), count - 1);
        let remote = self.sender_fifo.starting_at(at as u64);
        let remote = remote.ok_or_else(|| Error::InvalidRange("no such slot".to_owned()))?;
        #[expect(clippy::cast_possible_truncation, reason = "below the number of lanes")]
        let index = (group % self.lanes.len() as u64) as usize;
        let lane = &mut self.lanes[index];
        lane.send_postlist.clear();
        let mut wr = if bytes.len() <= lane.qp.max_inline_data() {
            lane.send_postlist.rdma_write(Inline(bytes), remote)
        } else {
            self.cts_staging.write_at(at, bytes)?;
            let staged = self.cts_staging.slice(at..at + bytes.len())?;
            lane.send_postlist.rdma_write(staged, remote)
        };
        self.unsignaled_cts_writes[index] += 1;
        if self.unsignaled_cts_writes[index] == CTS_SIGNAL_INTERVAL {
            self.unsignaled_cts_writes[index] = 0;
            wr = wr.signaled();
        }
        wr.wr_id(0);
        lane.qp.post_send(&mut lane.send_postlist)?;
        lane.free_send_wrs -= 1;
        Ok(())
    }

    /// Takes completions and returns their number.
    fn poll(&mut self) -> Result<usize, Error> {
        let Self {
            cq,
            receive_queue: state,
            lanes,
            lane_qpns: qpns,
            recvs_to_repost: used,
            completion_records: records,
            flush_qp: flush,
            ..
        } = self;
        let taken = lane::drain_completions(cq, |wc| {
            if wc.wr_id() == FLUSH_WR_ID {
                let request = flush
                    .as_mut()
                    .and_then(|f| f.requests_in_flight.pop_front());
                return request.map_or(Ok(()), |request| state.complete_flush(request));
            }
            let Some(lane) = qpns.iter().position(|qpn| *qpn == wc.qp_num().0) else {
                return Ok(());
            };
            let Some(imm) = wc.imm().filter(|_| wc.is_recv()) else {
                lanes[lane].free_send_wrs += CTS_SIGNAL_INTERVAL;
                return Ok(());
            };
            used[lane] += 1;
            if let ImmediateResult::SizesInCompletionRecord { group, parts } =
                state.handle_immediate(lane, imm)?
            {
                state.complete_group(group, read_completion_record(records, group, parts)?)?;
            }
            Ok(())
        });
        let taken = self.record_first_error(taken)?;
        let posted = self.repost_recvs();
        self.record_first_error(posted)?;
        Ok(taken)
    }

    /// Posts RECVs again, a batch at a time.
    fn repost_recvs(&mut self) -> Result<(), Error> {
        for (lane, used) in self.lanes.iter().zip(&mut self.recvs_to_repost) {
            while *used >= RECVS_PER_REPOST {
                lane.qp.post_recv(&mut self.repost_list)?;
                *used -= RECVS_PER_REPOST;
            }
        }
        Ok(())
    }

    /// Returns an error if a call found nothing because the peer is gone.
    fn fail_if_peer_gone(&mut self) -> Result<(), Error> {
        if self.peer_monitor.is_gone_after_empty_call() && self.poll()? == 0 {
            return self.record_first_error(Err(Error::PeerGone("receives")));
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

/// The sizes that the sender has written for a group.
fn read_completion_record(
    records: &MemoryRegion,
    group: u64,
    parts: usize,
) -> Result<GroupPartSizes, Error> {
    let mut bytes = [0; COMPLETION_RECORD_BYTES];
    records.read_at(slot_index(group) * COMPLETION_RECORD_BYTES, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<4>();
    let mut sizes = [0; MAX_RECEIVES_PER_GROUP];
    for (size, word) in sizes.iter_mut().zip(words) {
        *size = u32::from_le_bytes(*word);
    }
    Ok(GroupPartSizes::new(&sizes[..parts]))
}

impl FlushLoopbackQp {
    fn new(pd: &ProtectionDomain, config: &Config, cq: &CompletionQueue) -> Result<Self, Error> {
        let mut qp = pd
            .qp_builder::<Rc>(cq, cq)
            .port_num(config.port_num)
            .max_send_wr(128u32)
            .max_recv_wr(1u32);
        if let Some(index) = config.gid_index {
            qp = qp.gid_index(index);
        }
        let qp = qp.build()?;
        let own = qp.endpoint();
        Ok(Self {
            qp: qp.connect(&own)?,
            read_target: pd.alloc(8, Access::LOCAL_WRITE)?,
            requests_in_flight: VecDeque::new(),
        })
    }
}
