//! A UD queue pair with its receive buffers and its accounting, used by servers and clients.

use verbs::{
    Access, CompletionChannel, CompletionQueue, GRH_BYTES, MemoryRegion, Postlist,
    ProtectionDomain, QpEndpoint, Qpn, QueuePair, RecvList, Ud, WcBuffer,
};

use crate::error::{MAX_BATCH, RpcError};
use crate::payload_staging::PayloadStaging;

/// Parameters of a [`BufferedUdQp`].
#[derive(Debug, Clone)]
pub struct BufferedUdQpConfig {
    /// Port number of the device, counted from 1.
    pub port_num: u8,
    /// GID index to send from; `None` selects the device's default.
    pub gid_index: Option<u8>,
    /// Depth of the send queue.
    pub send_depth: u32,
    /// Number of RECVs that are kept posted; 0 for a port that only sends.
    pub recv_depth: u32,
    /// Maximum payload of received messages in bytes. With 0, all RECVs share one buffer.
    pub max_recv_payload_bytes: usize,
    /// Maximum payload of sent messages in bytes.
    pub max_send_payload_bytes: u32,
    /// Maximum payload that is sent inline, if the device supports it. Longer payload is sent from
    /// registered memory.
    pub max_inline_payload_bytes: u32,
    /// Channel for events of the receive CQ.
    pub channel: Option<CompletionChannel>,
}

impl Default for BufferedUdQpConfig {
    fn default() -> Self {
        Self {
            port_num: 1,
            gid_index: None,
            send_depth: 512,
            recv_depth: 512,
            max_recv_payload_bytes: 0,
            max_send_payload_bytes: 16,
            max_inline_payload_bytes: u32::MAX,
            channel: None,
        }
    }
}

/// A UD queue pair that posts its RECVs again as they complete, and signals just enough SENDs to
/// know when the send queue has room.
///
/// Fields for polling come first, because caches do not hold the state of hundreds of ports.
#[derive(Debug)]
#[repr(C)]
pub struct BufferedUdQp {
    // Fields are dropped in this order: the queue pair must be destroyed before its memory region. It keeps its
    // completion queues itself.
    recv_cq: CompletionQueue,
    qp: QueuePair<Ud>,
    /// Index in the list of the first RECV that is consumed and not posted again yet.
    next_recv_to_repost: usize,
    recv_list: RecvList,
    recv_buffers: RecvBuffers,
    /// Number of SENDs posted, known to be complete, and posted since the last signaled one.
    posted_sends: u64,
    completed_sends: u64,
    unsignaled_sends: u64,
    send_depth: u64,
    payload_staging: PayloadStaging,
    send_cq: CompletionQueue,
    /// True if the list that is being built has payload in registered memory.
    has_registered_payload: bool,
    /// Number up to which [`poll_registered_payload_sends`](BufferedUdQp::poll_registered_payload_sends) polls for
    /// completions of SENDs.
    poll_sends_up_to_number: u64,
}

#[derive(Debug)]
#[repr(C)]
struct RecvBuffers {
    stride_bytes: usize,
    max_payload_bytes: usize,
    mr: MemoryRegion,
}

/// Fails for a postlist that is longer than the send queue.
pub(crate) fn check_postlist_fits_send_queue(wrs: u64, send_depth: u64) -> Result<(), RpcError> {
    if wrs > send_depth {
        return Err(RpcError::Config(format!(
            "a postlist of {wrs} in a send queue of {send_depth}"
        )));
    }
    Ok(())
}

/// A received datagram.
#[derive(Debug, Clone, Copy)]
pub struct ReceivedDatagram<'a> {
    /// Immediate of the datagram; 0 without an immediate.
    pub imm: u32,
    /// Queue pair number of the sender.
    pub src_qp: Qpn,
    /// Bytes of payload.
    pub payload_len: usize,
    payload_offset: usize,
    mr: &'a MemoryRegion,
}

impl ReceivedDatagram<'_> {
    /// Copies the payload, as much as exists and fits. Returns the number of copied bytes.
    #[inline]
    pub fn copy_to(&self, into: &mut [u8]) -> usize {
        let n = self.payload_len.min(into.len());
        // The range is inside of the region by construction; an error would leave `into` unchanged.
        if self.mr.read_at(self.payload_offset, &mut into[..n]).is_ok() {
            n
        } else {
            0
        }
    }

    /// Returns the payload as a number if it has eight bytes.
    #[inline]
    pub fn u64_le(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.payload_len == 8 && self.copy_to(&mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }
}

impl BufferedUdQp {
    /// Creates the queue pair and posts its RECVs.
    ///
    /// # Errors
    /// [`RpcError`] if the provider refuses the queue pair, its queues or its memory.
    pub fn new(pd: &ProtectionDomain, config: &BufferedUdQpConfig) -> Result<Self, RpcError> {
        let context = pd.context();
        let recv_depth = config.recv_depth.max(1) as usize;
        let send_cq = context.create_cq(config.send_depth.max(1))?;
        let recv_cq = match &config.channel {
            Some(channel) => context.create_cq_with_channel(config.recv_depth.max(1), channel)?,
            None => context.create_cq(config.recv_depth.max(1))?,
        };
        let mut builder = pd
            .qp_builder::<Ud>(&send_cq, &recv_cq)
            .port_num(config.port_num)
            .max_send_wr(config.send_depth)
            .max_recv_wr(config.recv_depth.max(1))
            .max_inline_data_if_supported(
                config
                    .max_send_payload_bytes
                    .min(config.max_inline_payload_bytes),
            );
        if let Some(index) = config.gid_index {
            builder = builder.gid_index(index);
        }
        let qp = builder.build()?;
        // A message of at most 24 bytes takes one cache line; a header-only receiver reads none of
        // them.
        let stride = (GRH_BYTES + config.max_recv_payload_bytes).next_multiple_of(64);
        let shared = config.max_recv_payload_bytes == 0;
        let mr = pd.alloc(
            if shared { stride } else { stride * recv_depth },
            Access::LOCAL_WRITE,
        )?;
        let mut recvs = qp.recv_list(recv_depth);
        for i in 0..recv_depth {
            let start = if shared { 0 } else { i * stride };
            recvs.recv(
                mr.slice(start..start + GRH_BYTES + config.max_recv_payload_bytes)?,
                i as u64,
            );
        }
        if config.recv_depth > 0 {
            qp.post_recv(&mut recvs)?;
        }
        let outbox = PayloadStaging::new(
            pd,
            config.max_send_payload_bytes as usize,
            qp.max_inline_data(),
            qp.max_send_wr(),
        )?;
        Ok(Self {
            payload_staging: outbox,
            send_depth: qp.max_send_wr() as u64,
            qp,
            send_cq,
            has_registered_payload: false,
            poll_sends_up_to_number: 0,
            recv_cq,
            recv_list: recvs,
            recv_buffers: RecvBuffers {
                mr,
                stride_bytes: if shared { 0 } else { stride },
                max_payload_bytes: config.max_recv_payload_bytes,
            },
            next_recv_to_repost: 0,
            posted_sends: 0,
            completed_sends: 0,
            unsignaled_sends: 0,
        })
    }

    /// Returns the endpoint that peers need to send to this port.
    pub fn endpoint(&self) -> QpEndpoint {
        self.qp.endpoint()
    }

    /// Returns the receive CQ, for arming.
    pub fn recv_cq(&self) -> &CompletionQueue {
        &self.recv_cq
    }

    /// Creates a postlist for [`post`](Self::post).
    pub fn create_postlist(&self, capacity: usize) -> Postlist<Ud> {
        self.qp.postlist(capacity)
    }

    /// Returns the outbox for payload of the next [`post`](Self::post), and the number of that
    /// post's first message.
    #[inline]
    pub(crate) fn payload_staging_and_next_number(&self) -> (&PayloadStaging, u64) {
        (&self.payload_staging, self.posted_sends)
    }

    /// Posts a list with one doorbell. Waits first if the send queue has no room.
    ///
    /// # Errors
    /// [`RpcError`] if a completion has failed or the post is refused.
    #[inline]
    pub fn post(&mut self, list: &mut Postlist<Ud>) -> Result<(), RpcError> {
        let wrs = list.len() as u64;
        if wrs == 0 {
            return Ok(());
        }
        // Signal once per quarter of the queue, so that completions are known long before the room
        // runs out.
        let is_long = std::mem::take(&mut self.has_registered_payload);
        let signal = is_long || self.unsignaled_sends + wrs >= self.send_depth / 4;
        let last = list.len() - 1;
        if signal {
            list.set_signaled(last, true);
            list.set_wr_id(last, self.posted_sends + wrs);
        }
        if self.posted_sends + wrs - self.completed_sends > self.send_depth {
            self.wait_for_send_room(wrs)?;
        }
        let result = self.qp.post_send(list);
        if signal {
            // Restore the list, which is posted again unchanged: identical WRs are cheaper to
            // simulate.
            list.set_signaled(last, false);
            list.set_wr_id(last, 0);
            self.unsignaled_sends = 0;
        } else {
            self.unsignaled_sends += wrs;
        }
        self.posted_sends += wrs;
        if is_long {
            self.poll_sends_up_to_number = self.posted_sends;
        }
        Ok(result?)
    }

    /// Notes that the list being built has payload in registered memory.
    #[inline]
    pub(crate) fn mark_registered_payload(&mut self) {
        self.has_registered_payload = true;
    }

    /// Polls for outstanding SENDs with payload in registered memory, for callers that otherwise
    /// poll no queue. On the software NIC, long messages soon exhaust the receiver's room, and
    /// continue when their sender polls.
    ///
    /// # Errors
    /// When a SEND or a verb has failed.
    #[inline]
    pub(crate) fn poll_registered_payload_sends(&mut self) -> Result<(), RpcError> {
        if self.poll_sends_up_to_number > self.completed_sends {
            let mut buffer = WcBuffer::<16>::new();
            for wc in self.send_cq.poll(&mut buffer)? {
                self.completed_sends = wc.map_err(|e| RpcError::Completion(e.status()))?.wr_id();
            }
        }
        Ok(())
    }

    /// Polls send completions until the send queue has room for `wrs` more SENDs.
    #[cold]
    fn wait_for_send_room(&mut self, wrs: u64) -> Result<(), RpcError> {
        check_postlist_fits_send_queue(wrs, self.send_depth)?;
        let mut buffer = WcBuffer::<16>::new();
        let mut waiter = verbs::Waiter::never_sleeping();
        while self.posted_sends + wrs - self.completed_sends > self.send_depth {
            for wc in self.send_cq.poll(&mut buffer)? {
                self.completed_sends = wc.map_err(|e| RpcError::Completion(e.status()))?.wr_id();
            }
            waiter.idle();
        }
        Ok(())
    }

    /// Receives up to `most` datagrams, and never more than [`MAX_BATCH`], and posts their RECVs
    /// again. Returns the number of datagrams.
    ///
    /// # Errors
    /// [`RpcError`] if a completion has failed or a RECV is refused.
    #[inline]
    pub fn poll_received(
        &mut self,
        most: usize,
        buffer: &mut WcBuffer<MAX_BATCH>,
        mut each: impl FnMut(ReceivedDatagram<'_>),
    ) -> Result<usize, RpcError> {
        let wcs = self.recv_cq.poll_up_to(most, buffer)?;
        let n = wcs.len();
        if n == 0 {
            return Ok(0);
        }
        for wc in wcs {
            let wc = match wc {
                Ok(wc) => wc,
                Err(e) => return Err(RpcError::Completion(e.status())),
            };
            let index = usize::try_from(wc.wr_id()).unwrap_or(0);
            each(ReceivedDatagram {
                imm: wc.imm().unwrap_or(0),
                src_qp: wc.src_qp(),
                payload_len: (wc.byte_len() as usize)
                    .saturating_sub(GRH_BYTES)
                    .min(self.recv_buffers.max_payload_bytes),
                payload_offset: index * self.recv_buffers.stride_bytes + GRH_BYTES,
                mr: &self.recv_buffers.mr,
            });
        }
        // RECVs complete in the order of posting, so the consumed ones are adjacent.
        let depth = self.recv_list.capacity();
        let end = self.next_recv_to_repost + n;
        self.qp.post_recv_range(
            &mut self.recv_list,
            self.next_recv_to_repost..end.min(depth),
        )?;
        if end > depth {
            self.qp
                .post_recv_range(&mut self.recv_list, 0..end - depth)?;
        }
        self.next_recv_to_repost = if end >= depth { end - depth } else { end };
        Ok(n)
    }
}
