//! The queue pairs of a connection: one for messages, the others for data.
//!
//! Messages are SENDs from fixed registered buffers into fixed registered buffers
//! ([`ConnectionWindows`](crate::window::ConnectionWindows) says when a buffer is free). Data are RDMA WRITEs; the last
//! of each stripe has the index of the request as its immediate.

use std::collections::VecDeque;

use verbs::{
    Access, CompletionChannel, CompletionQueue, Context, HeaderOnly, Inline, MemoryRegion,
    PortAndGidIndex, Postlist, PreparedQp, ProtectionDomain, QpEndpoint, QueuePair, RKey, Rc,
    RecvList, RemoteMemory, VerbError, WcBuffer,
};

use crate::memory::Tensor;
use crate::message::MESSAGE_BYTES;
use crate::requests::REQUESTS_MAX;
use crate::stripes;
use crate::window::MAX_UNCONSUMED_MESSAGES;

/// Receive buffers for messages. Acknowledgements use them, too.
const MESSAGE_RECV_DEPTH: usize = 2 * MAX_UNCONSUMED_MESSAGES as usize;
/// Send WRs of the queue pair for messages: messages, acknowledgements, probes.
const MESSAGE_SEND_DEPTH: usize = 4 * MAX_UNCONSUMED_MESSAGES as usize;
/// Every so many messages are signaled.
const MESSAGE_SIGNAL_INTERVAL: usize = 16;
/// Send WRs of a queue pair for data.
const DATA_SEND_DEPTH: usize = 128;

/// The operation of a completion: the upper 32 bits of a `wr_id`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum CompletionKind {
    MessageRecv = 1,
    DataRecv,
    MessageSend,
    Probe,
    /// From here on: a WRITE by the queue pair for data of the number that is added.
    FirstDataWrite,
}

fn wr_id_of_kind_and_number(kind: u32, number: usize) -> u64 {
    u64::from(kind) << 32 | number as u64
}

/// An event of the queues of a connection.
#[derive(Debug)]
pub(crate) enum QueueEvent<'b> {
    /// A message.
    Message(&'b [u8]),
    /// The peer has consumed so many messages.
    Acknowledgement(u32),
    /// The bytes of a stripe of this request are in their place.
    StripeReceived(u32),
    /// A stripe of this transfer was sent.
    StripeSent(u32),
}

/// Queue pairs before they are connected.
#[derive(Debug)]
pub(crate) struct PreparedQueues {
    qps: Vec<PreparedQp<Rc>>,
    recv_cq: CompletionQueue,
    send_cq: CompletionQueue,
    recv_buffers: MemoryRegion,
    send_buffers: MemoryRegion,
}

/// Connected queue pairs. When they are dropped, no peer writes into this process by them any more.
#[derive(Debug)]
pub(crate) struct ConnectedQps {
    message_qp: QueuePair<Rc>,
    message_postlist: Postlist<Rc>,
    message_recv_list: RecvList,
    sends_since_signaled: usize,
    outstanding_message_sends: usize,
    data_qps: Vec<DataQp>,
    recv_cq: CompletionQueue,
    send_cq: CompletionQueue,
    recv_buffers: MemoryRegion,
    send_buffers: MemoryRegion,
    is_peer_probe_outstanding: bool,
    wcs: WcBuffer<32>,
}

/// A queue pair for data.
#[derive(Debug)]
struct DataQp {
    qp: QueuePair<Rc>,
    postlist: Postlist<Rc>,
    recv_list: RecvList,
    outstanding_writes: usize,
    /// WRITEs of each posted stripe.
    write_counts_of_stripes: VecDeque<usize>,
}

/// The objects of a NIC with which queue pairs are made.
#[derive(Debug, Clone)]
pub(crate) struct NicResources {
    pub(crate) context: Context,
    pub(crate) pd: ProtectionDomain,
    pub(crate) channel: CompletionChannel,
    pub(crate) port: PortAndGidIndex,
}

/// A verb that cannot be called so.
fn invalid_call_error(verb: &'static str, what: impl Into<String>) -> VerbError {
    let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, what.into());
    VerbError::Other { verb, source }
}

/// No memory: for WRITEs without bytes.
const EMPTY_REMOTE_MEMORY: RemoteMemory = RemoteMemory {
    addr: 0,
    len: 0,
    rkey: RKey(0),
};

impl PreparedQueues {
    /// A queue pair for messages and so many for data, with their RECVs posted.
    pub(crate) fn new(place: &NicResources, data: usize) -> Result<Self, VerbError> {
        let entries =
            |message: usize, each: usize| u32::try_from(message + data * each).unwrap_or(u32::MAX);
        let cq = |n| place.context.create_cq_with_channel(n, &place.channel);
        let recv_cq = cq(entries(MESSAGE_RECV_DEPTH, REQUESTS_MAX))?;
        let send_cq = cq(entries(MESSAGE_SEND_DEPTH, DATA_SEND_DEPTH))?;
        let recvs = place
            .pd
            .alloc(MESSAGE_RECV_DEPTH * MESSAGE_BYTES, Access::LOCAL_WRITE)?;
        let sends = place.pd.alloc(
            MAX_UNCONSUMED_MESSAGES as usize * MESSAGE_BYTES,
            Access::LOCAL_READ,
        )?;
        let mut qps = Vec::with_capacity(1 + data);
        for i in 0..=data {
            let (send, recv) = if i == 0 {
                (MESSAGE_SEND_DEPTH, MESSAGE_RECV_DEPTH)
            } else {
                (DATA_SEND_DEPTH, REQUESTS_MAX)
            };
            let qp = place
                .pd
                .qp_builder::<Rc>(&send_cq, &recv_cq)
                .port_num(place.port.port_num)
                .gid_index(place.port.gid_index)
                .max_send_wr(u32::try_from(send).unwrap_or(u32::MAX))
                .max_recv_wr(u32::try_from(recv).unwrap_or(u32::MAX))
                .max_inline_data_if_supported(if i == 0 { 188 } else { 0 })
                .access(Access::LOCAL_WRITE | Access::REMOTE_WRITE)
                .build()?;
            let mut list = qp.recv_list(recv);
            for slot in 0..recv {
                if i == 0 {
                    add_message_recv(&mut list, &recvs, slot);
                } else {
                    list.recv(
                        HeaderOnly,
                        wr_id_of_kind_and_number(CompletionKind::DataRecv as u32, i - 1),
                    );
                }
            }
            qp.post_recv(&mut list)
                .map_err(|e| invalid_call_error("ibv_post_recv", e.to_string()))?;
            qps.push(qp);
        }
        // The first message wakes who waits.
        recv_cq.req_notify(false)?;
        Ok(Self {
            qps,
            recv_cq,
            send_cq,
            recv_buffers: recvs,
            send_buffers: sends,
        })
    }

    pub(crate) fn endpoints(&self) -> Vec<QpEndpoint> {
        self.qps.iter().map(PreparedQp::endpoint).collect()
    }

    /// Connects each to the peer's of the same place; there must be as many.
    pub(crate) fn connect(self, peer: &[QpEndpoint]) -> Result<ConnectedQps, VerbError> {
        if peer.len() != self.qps.len() {
            let what = format!(
                "the peer has {} queue pairs of {}",
                peer.len(),
                self.qps.len()
            );
            return Err(invalid_call_error("ibv_modify_qp", what));
        }
        let mut qps = self
            .qps
            .into_iter()
            .zip(peer)
            .map(|(qp, to)| qp.connect(to));
        let none = || invalid_call_error("ibv_modify_qp", "no queue pair for messages");
        let message = qps.next().ok_or_else(none)??;
        let data = qps
            .map(|qp| {
                let qp = qp?;
                Ok(DataQp {
                    postlist: qp.postlist(max_writes_per_stripe()),
                    recv_list: qp.recv_list(1),
                    outstanding_writes: 0,
                    write_counts_of_stripes: VecDeque::new(),
                    qp,
                })
            })
            .collect::<Result<_, VerbError>>()?;
        Ok(ConnectedQps {
            message_postlist: message.postlist(1),
            message_recv_list: message.recv_list(1),
            message_qp: message,
            sends_since_signaled: 0,
            outstanding_message_sends: 0,
            data_qps: data,
            recv_cq: self.recv_cq,
            send_cq: self.send_cq,
            recv_buffers: self.recv_buffers,
            send_buffers: self.send_buffers,
            is_peer_probe_outstanding: false,
            wcs: WcBuffer::new(),
        })
    }
}

/// WRITEs of the largest stripe.
fn max_writes_per_stripe() -> usize {
    let count = crate::meta::TENSOR_BYTES_MAX.div_ceil(stripes::WRITE_BYTES_MAX);
    usize::try_from(count).unwrap_or(64)
}

/// A RECV for a message into the buffer of this number, which exists.
fn add_message_recv(list: &mut RecvList, recvs: &MemoryRegion, slot: usize) {
    let at = slot * MESSAGE_BYTES;
    if let Ok(buffer) = recvs.slice(at..at + MESSAGE_BYTES) {
        list.recv(
            buffer,
            wr_id_of_kind_and_number(CompletionKind::MessageRecv as u32, slot),
        );
    }
}

/// Why a connection is of no use any more, for people.
pub(crate) type DisconnectReason = String;

impl ConnectedQps {
    /// Returns the number of queue pairs over which data are striped.
    pub(crate) fn data_queue_pair_count(&self) -> u64 {
        self.data_qps.len() as u64
    }

    /// Returns true if the send queue for messages has room for another message, and for acknowledgements.
    pub(crate) fn has_message_room(&self) -> bool {
        self.outstanding_message_sends + MESSAGE_SIGNAL_INTERVAL < MESSAGE_SEND_DEPTH
    }

    /// Sends a message of at most [`MESSAGE_BYTES`] from the buffer of this number.
    pub(crate) fn send_message(
        &mut self,
        buffer: u32,
        bytes: &[u8],
    ) -> Result<(), DisconnectReason> {
        let at = buffer as usize * MESSAGE_BYTES;
        self.message_postlist.clear();
        let wr = if bytes.len() <= self.message_qp.max_inline_data() {
            self.message_postlist.send(Inline(bytes))
        } else {
            let inside = |e: verbs::RangeError| e.to_string();
            self.send_buffers.write_at(at, bytes).map_err(inside)?;
            let part = self
                .send_buffers
                .slice(at..at + bytes.len())
                .map_err(inside)?;
            self.message_postlist.send(part)
        };
        let wr = wr.wr_id(wr_id_of_kind_and_number(
            CompletionKind::MessageSend as u32,
            self.sends_since_signaled + 1,
        ));
        if self.sends_since_signaled + 1 >= MESSAGE_SIGNAL_INTERVAL {
            wr.signaled();
        }
        self.post_message()
    }

    /// Tells the peer how many of its messages were consumed.
    pub(crate) fn send_acknowledgement(&mut self, consumed: u32) -> Result<(), DisconnectReason> {
        self.message_postlist.clear();
        let wr = self
            .message_postlist
            .rdma_write_with_imm(HeaderOnly, EMPTY_REMOTE_MEMORY, consumed)
            .wr_id(wr_id_of_kind_and_number(
                CompletionKind::MessageSend as u32,
                self.sends_since_signaled + 1,
            ));
        if self.sends_since_signaled + 1 >= MESSAGE_SIGNAL_INTERVAL {
            wr.signaled();
        }
        self.post_message()
    }

    fn post_message(&mut self) -> Result<(), DisconnectReason> {
        self.sends_since_signaled = (self.sends_since_signaled + 1) % MESSAGE_SIGNAL_INTERVAL;
        self.outstanding_message_sends += 1;
        self.message_qp
            .post_send(&mut self.message_postlist)
            .map_err(|e| e.to_string())
    }

    /// Finds out whether the peer is there, by a WRITE of no bytes: it fails if it is not.
    pub(crate) fn probe_peer(&mut self) -> Result<(), DisconnectReason> {
        if self.is_peer_probe_outstanding || !self.has_message_room() {
            return Ok(());
        }
        self.is_peer_probe_outstanding = true;
        self.message_postlist.clear();
        self.message_postlist
            .rdma_write(HeaderOnly, EMPTY_REMOTE_MEMORY)
            .signaled()
            .wr_id(wr_id_of_kind_and_number(
                CompletionKind::Probe as u32,
                self.sends_since_signaled,
            ));
        self.outstanding_message_sends += 1;
        // The WRs before it are complete when it is.
        self.sends_since_signaled = 0;
        self.message_qp
            .post_send(&mut self.message_postlist)
            .map_err(|e| e.to_string())
    }

    /// WRITEs a tensor to `remote` with `index` as the immediate of each stripe. How many stripes there are, each of
    /// which is [`StripeSent`](QueueEvent::StripeSent) later; nothing if the send queues have no room now.
    pub(crate) fn write_tensor(
        &mut self,
        index: u32,
        tensor: &Tensor,
        remote: RemoteMemory,
    ) -> Result<Option<usize>, DisconnectReason> {
        let count = self.data_qps.len();
        let stripes: Vec<_> =
            stripes::stripe_ranges(tensor.meta().total_bytes(), count as u64).collect();
        let queue_pair = |i: usize| (index as usize + i) % count;
        for (i, stripe) in stripes.iter().enumerate() {
            let writes = stripes::write_ranges(stripe.clone()).count();
            if self.data_qps[queue_pair(i)].outstanding_writes + writes > DATA_SEND_DEPTH {
                return Ok(None);
            }
        }
        for (i, stripe) in stripes.iter().enumerate() {
            let q = queue_pair(i);
            self.data_qps[q].write_stripe(q, index, tensor, remote, stripe.clone())?;
        }
        Ok(Some(stripes.len()))
    }

    /// Takes completions; how many there were.
    pub(crate) fn poll(
        &mut self,
        mut arrived: impl FnMut(&mut Self, QueueEvent<'_>) -> Result<(), DisconnectReason>,
    ) -> Result<usize, DisconnectReason> {
        let mut wcs = std::mem::take(&mut self.wcs);
        let mut count = 0;
        let mut result = Ok(());
        for cq in [self.send_cq.clone(), self.recv_cq.clone()] {
            let completions = cq.poll(&mut wcs).map_err(|e| e.to_string())?;
            count += completions.len();
            for wc in completions {
                result = match wc {
                    Ok(wc) => self.handle_completion(&wc, &mut arrived),
                    Err(failed) => Err(failed.status().to_string()),
                };
                if result.is_err() {
                    break;
                }
            }
            if result.is_err() {
                break;
            }
        }
        self.wcs = wcs;
        result.map(|()| count)
    }

    fn handle_completion(
        &mut self,
        wc: &verbs::WorkCompletion<'_>,
        arrived: &mut impl FnMut(&mut Self, QueueEvent<'_>) -> Result<(), DisconnectReason>,
    ) -> Result<(), DisconnectReason> {
        let id = wc.wr_id();
        let number = usize::try_from(id & u64::from(u32::MAX)).unwrap_or(0);
        let kind = u32::try_from(id >> 32).unwrap_or(0);
        if kind == CompletionKind::MessageRecv as u32 {
            let mut bytes = [0; MESSAGE_BYTES];
            let len = (wc.byte_len() as usize).min(MESSAGE_BYTES);
            let inside = |e: verbs::RangeError| e.to_string();
            let at = number * MESSAGE_BYTES;
            self.recv_buffers
                .read_at(at, &mut bytes[..len])
                .map_err(inside)?;
            self.message_recv_list.clear();
            add_message_recv(&mut self.message_recv_list, &self.recv_buffers, number);
            self.message_qp
                .post_recv(&mut self.message_recv_list)
                .map_err(|e| e.to_string())?;
            match wc.imm() {
                Some(imm) => arrived(self, QueueEvent::Acknowledgement(imm)),
                None => arrived(self, QueueEvent::Message(&bytes[..len])),
            }
        } else if kind == CompletionKind::DataRecv as u32 {
            if let Some(data) = self.data_qps.get_mut(number) {
                data.recv_list.clear();
                data.recv_list.recv(HeaderOnly, id);
                data.qp
                    .post_recv(&mut data.recv_list)
                    .map_err(|e| e.to_string())?;
            }
            let imm = wc.imm().ok_or("a SEND came where only data may come")?;
            arrived(self, QueueEvent::StripeReceived(imm))
        } else if kind == CompletionKind::MessageSend as u32 || kind == CompletionKind::Probe as u32
        {
            let is_probe = kind == CompletionKind::Probe as u32;
            self.is_peer_probe_outstanding &= !is_probe;
            self.outstanding_message_sends -=
                (number + usize::from(is_probe)).min(self.outstanding_message_sends);
            Ok(())
        } else {
            let q = usize::try_from(kind - CompletionKind::FirstDataWrite as u32).unwrap_or(0);
            let (index, writes) = self
                .data_qps
                .get_mut(q)
                .map_or((0, 0), |d| d.take_sent_stripe_index_and_writes(number));
            debug_assert!(writes > 0);
            arrived(self, QueueEvent::StripeSent(index))
        }
    }

    /// Has the completion channel tell of what comes from now on; also of WRITEs that complete, if some are under way.
    pub(crate) fn arm_cqs(&self) -> Result<(), DisconnectReason> {
        self.recv_cq.req_notify(false).map_err(|e| e.to_string())?;
        if self.data_qps.iter().any(|d| d.outstanding_writes > 0) {
            self.send_cq.req_notify(false).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

impl DataQp {
    /// WRITEs a stripe; there is room.
    fn write_stripe(
        &mut self,
        q: usize,
        index: u32,
        tensor: &Tensor,
        remote: RemoteMemory,
        stripe: std::ops::Range<u64>,
    ) -> Result<(), DisconnectReason> {
        let kind = CompletionKind::FirstDataWrite as u32 + u32::try_from(q).unwrap_or(0);
        self.postlist.clear();
        let writes: Vec<_> = stripes::write_ranges(stripe).collect();
        for (i, part) in writes.iter().enumerate() {
            let last = i + 1 == writes.len();
            let to = remote
                .starting_at(part.start)
                .ok_or("a destination is too short")?;
            let from = |range: std::ops::Range<u64>| {
                let start = usize::try_from(range.start).ok()?;
                let end = usize::try_from(range.end).ok()?;
                tensor.region()?.slice(start..end).ok()
            };
            match from(part.clone()) {
                Some(from) if last => {
                    let wr = self.postlist.rdma_write_with_imm(from, to, index);
                    wr.signaled()
                        .wr_id(wr_id_of_kind_and_number(kind, index as usize));
                }
                Some(from) => drop(self.postlist.rdma_write(from, to)),
                None if part.is_empty() => {
                    let wr =
                        self.postlist
                            .rdma_write_with_imm(HeaderOnly, EMPTY_REMOTE_MEMORY, index);
                    wr.signaled()
                        .wr_id(wr_id_of_kind_and_number(kind, index as usize));
                }
                None => return Err("a tensor is longer than its memory".to_owned()),
            }
        }
        self.outstanding_writes += writes.len();
        self.write_counts_of_stripes.push_back(writes.len());
        self.qp
            .post_send(&mut self.postlist)
            .map_err(|e| e.to_string())
    }

    /// The oldest stripe was sent: the index of its request, and its WRITEs.
    fn take_sent_stripe_index_and_writes(&mut self, number: usize) -> (u32, usize) {
        let writes = self.write_counts_of_stripes.pop_front().unwrap_or(0);
        self.outstanding_writes -= writes.min(self.outstanding_writes);
        (u32::try_from(number).unwrap_or(0), writes)
    }
}
