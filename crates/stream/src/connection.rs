//! A stream over a connected queue pair. This module never waits, and does not depend on an async
//! runtime.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use bytes::{Buf, Bytes};
use verbs::{
    CompletionQueue, Gid, HeaderOnly, Inline, Lid, MrSlice, Mtu, Postlist, Psn, QpEndpoint, Qpn,
    QueuePair, Rc, RecvList, WcBuffer, WcStatus,
};

use crate::error::{SetupError, StreamError};
use crate::gather::Gather;
use crate::handshake::Hello;
use crate::pool::{Block, Pool};
use crate::prepared_connection::{MAX_INLINE_BYTES, PreparedConnection};
use crate::window::{MessagePostParams, Window};

/// Maximum number of completions taken by one poll.
const MAX_POLL_COMPLETIONS: usize = 16;
/// Maximum number of messages posted with one doorbell.
const MAX_POSTLIST_MESSAGES: usize = 16;
/// Payload size in bytes below which received bytes are copied out of their block, so that the
/// block is posted again at once (`rdma_zerocopy_min_size` of brpc).
const ZERO_COPY_MIN_BYTES: usize = 512;

/// Memory of the payload of a message in flight; it must live until the message has been sent.
enum InFlightPayload {
    /// The payload lies in the WR itself.
    Inline,
    OneBlock(Block),
    ManyBlocks(Vec<Block>),
    /// The payload lies in the caller's bytes.
    CallerBytes(#[expect(dead_code, reason = "kept until they are sent")] Bytes),
}

/// Received bytes that the program has not read, as a range of a block.
struct UnreadBytes {
    block: Block,
    range: Range<usize>,
}

pub(crate) struct Connection {
    // Fields are dropped in this order: the queue pair must be destroyed before its blocks return
    // to the pool.
    qp: QueuePair<Rc>,
    /// Completion queue of sends and receives.
    cq: CompletionQueue,
    pool: Pool,
    window: Window,
    /// Maximum number of bytes in a message to the peer.
    max_message_bytes: usize,
    max_inline_bytes: usize,
    postlist: Postlist<Rc>,
    recvs: RecvList,
    /// Blocks of the posted receives, in the order in which they are used.
    posted_recv_blocks: VecDeque<Block>,
    /// Blocks that must be posted again, and the number of these blocks that replace a block of a
    /// message with payload.
    blocks_to_repost: Vec<Block>,
    credits_to_return: u16,
    unread: VecDeque<UnreadBytes>,
    /// Payloads of the messages in flight that have a payload.
    in_flight_payloads: VecDeque<InFlightPayload>,
    wc_buffer: WcBuffer<MAX_POLL_COMPLETIONS>,
    /// Reason why the connection has ended; `None` while it works.
    failure: Option<StreamError>,
}

impl PreparedConnection {
    /// Connects the queue pair: moves it to RTS.
    pub(crate) fn connect(self, peer: &Hello) -> Result<Connection, SetupError> {
        let endpoint = QpEndpoint {
            qpn: Qpn(peer.qpn),
            psn: Psn(0),
            lid: Lid(peer.lid),
            gid: Gid(peer.gid),
            mtu: Mtu::Mtu1024,
            qkey: None,
        };
        let size = self.queue_size;
        let window = Window::new(size, size, peer.sq_size, peer.rq_size);
        let peer_block = usize::try_from(peer.block_bytes).unwrap_or(usize::MAX);
        Connection::new(self, &endpoint, window, peer_block)
    }
}

impl Connection {
    /// Connects a queue pair. `peer_block` is the maximum size of a message to the peer.
    pub(crate) fn new(
        prepared: PreparedConnection,
        peer: &QpEndpoint,
        window: Window,
        peer_block: usize,
    ) -> Result<Self, SetupError> {
        let posted = prepared.posted_recv_blocks;
        let qp = prepared.qp.connect(peer)?;
        let gathered = prepared.max_sge.saturating_mul(prepared.pool.block_bytes());
        let inline = usize::try_from(MAX_INLINE_BYTES).unwrap_or(0);
        Ok(Self {
            postlist: qp.postlist(MAX_POSTLIST_MESSAGES),
            recvs: qp.recv_list(posted.len()),
            max_inline_bytes: qp.max_inline_data().min(inline),
            qp,
            cq: prepared.cq,
            pool: prepared.pool,
            window,
            max_message_bytes: peer_block.min(gathered),
            posted_recv_blocks: posted,
            blocks_to_repost: Vec::new(),
            credits_to_return: 0,
            unread: VecDeque::new(),
            in_flight_payloads: VecDeque::new(),
            wc_buffer: WcBuffer::new(),
            failure: None,
        })
    }

    /// Returns the pool of blocks.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Polls completions, and sends an acknowledgement if the peer lacks credits. Returns true if
    /// at least one work request had completed.
    pub(crate) fn progress(&mut self) -> bool {
        if self.failure.is_some() {
            return false;
        }
        match self.try_progress() {
            Ok(any) => any,
            Err(e) => {
                self.record_failure(e);
                true
            }
        }
    }

    fn try_progress(&mut self) -> Result<bool, StreamError> {
        let any = self.poll()?;
        self.repost_blocks_and_ack()?;
        Ok(any)
    }

    fn poll(&mut self) -> Result<bool, StreamError> {
        let mut any = false;
        let mut failed = None;
        loop {
            let completions = self.cq.poll(&mut self.wc_buffer)?;
            let count = completions.len();
            any |= count > 0;
            for wc in completions {
                match wc {
                    Ok(wc) if wc.is_recv() => {
                        let Some(block) = self.posted_recv_blocks.pop_front() else {
                            let why = "a receive that was not posted";
                            return Err(StreamError::Verb(why.to_owned()));
                        };
                        self.window
                            .receive_credits(wc.imm().ok_or(StreamError::NoImmediate)?)?;
                        match usize::try_from(wc.byte_len()).unwrap_or(usize::MAX) {
                            0 => self.blocks_to_repost.push(block),
                            len => self.unread.push_back(UnreadBytes {
                                range: 0..len.min(self.pool.block_bytes()),
                                block,
                            }),
                        }
                    }
                    Ok(wc) => {
                        let freed = self
                            .window
                            .process_completion_and_count_messages(wc.wr_id());
                        self.in_flight_payloads
                            .drain(..usize::from(freed).min(self.in_flight_payloads.len()));
                    }
                    // The cause of a failure is the status of the WR that was not flushed by it.
                    Err(wc) => match failed {
                        None | Some(WcStatus::WrFlushErr) => failed = Some(wc.status()),
                        Some(_) => {}
                    },
                }
            }
            if count < MAX_POLL_COMPLETIONS {
                return failed.map_or(Ok(any), |status| {
                    Err(StreamError::WorkRequestFailed(status))
                });
            }
        }
    }

    /// Posts the blocks that the program has read, and sends an acknowledgement if one is due.
    fn repost_blocks_and_ack(&mut self) -> Result<(), StreamError> {
        if !self.blocks_to_repost.is_empty() {
            self.recvs.clear();
            for block in &self.blocks_to_repost {
                self.recvs.recv(block.slice(), 0);
            }
            self.posted_recv_blocks
                .extend(self.blocks_to_repost.drain(..));
            self.qp.post_recv(&mut self.recvs)?;
            let credits = std::mem::take(&mut self.credits_to_return);
            self.window.count_reposted_receives(credits);
        }
        if let Some(flags) = self.window.count_ack_if_due() {
            self.post_ack(flags)?;
        }
        Ok(())
    }

    fn post_ack(&mut self, flags: MessagePostParams) -> Result<(), StreamError> {
        self.postlist.clear();
        add_message_wr(&mut self.postlist, HeaderOnly, flags);
        Ok(self.qp.post_send(&mut self.postlist)?)
    }

    fn record_failure(&mut self, why: StreamError) {
        if self.failure.is_none() {
            tracing::debug!(%why, qp = %self.qp.qpn(), "the stream ends");
            self.failure = Some(why);
        }
    }

    /// Ends the connection and records the reason; only the first reason is kept. Received bytes
    /// can still be read.
    pub(crate) fn close(&mut self, why: StreamError) {
        if matches!(why, StreamError::ClosedByPeer | StreamError::Tcp(_)) {
            // The peer's messages are in the completion queue before the end of its connection is
            // in the socket, so poll first.
            self.progress();
        }
        self.record_failure(why);
    }

    /// Replaces the failure of a work request by its cause, the end of the TCP connection.
    pub(crate) fn set_cause_of_failed_wr(
        &mut self,
        tcp_ended: impl FnOnce() -> Option<StreamError>,
    ) {
        if matches!(self.failure, Some(StreamError::WorkRequestFailed(_)))
            && let Some(cause @ (StreamError::ClosedByPeer | StreamError::Tcp(_))) = tcp_ended()
        {
            self.failure = Some(cause);
        }
    }

    /// Returns the reason why the connection has ended, if it has.
    pub(crate) fn failure(&self) -> Option<&StreamError> {
        self.failure.as_ref()
    }

    /// Returns true if received bytes are available.
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Passes received bytes to `take`, and returns the number of bytes taken, or 0 if no bytes are
    /// available.
    pub(crate) fn read(&mut self, mut take: impl FnMut(&[u8]) -> usize) -> usize {
        let mut total = 0;
        while let Some(front) = self.unread.front_mut() {
            let bytes = &front.block.as_ref()[front.range.clone()];
            let taken = take(bytes).min(bytes.len());
            total += taken;
            front.range.start += taken;
            if !front.range.is_empty() {
                break;
            }
            let block = self.unread.pop_front().expect("it has a front").block;
            self.queue_block_for_repost(block);
        }
        self.repost_blocks_if_due();
        total
    }

    /// Returns received bytes, or `None` if no bytes are available. Pieces of [`ZERO_COPY_MIN_BYTES`]
    /// bytes or more are not copied.
    pub(crate) fn read_bytes(&mut self) -> Option<Bytes> {
        let UnreadBytes { block, range } = self.unread.pop_front()?;
        let fresh = if range.len() < ZERO_COPY_MIN_BYTES {
            None
        } else {
            // If memory for another block is lacking, copy the bytes and post this block again.
            self.pool.take_block().ok()
        };
        let bytes = match fresh {
            Some(fresh) => {
                self.queue_block_for_repost(fresh);
                block.freeze_range(range)
            }
            None => {
                let bytes = Bytes::copy_from_slice(&block.as_ref()[range]);
                self.queue_block_for_repost(block);
                bytes
            }
        };
        self.repost_blocks_if_due();
        Some(bytes)
    }

    /// Queues a block that takes the place of the block of a message with payload in the receive
    /// queue.
    fn queue_block_for_repost(&mut self, block: Block) {
        self.blocks_to_repost.push(block);
        self.credits_to_return += 1;
    }

    fn repost_blocks_if_due(&mut self) {
        // Post blocks in lists, with one doorbell for an eighth of the queue. The other blocks are
        // posted before this side waits.
        let due = self.blocks_to_repost.len() * 8 >= self.posted_recv_blocks.len();
        if due
            && self.failure.is_none()
            && let Err(e) = self.repost_blocks_and_ack()
        {
            self.record_failure(e);
        }
    }

    /// Copies bytes into messages and posts the messages. Returns the number of copied bytes, or 0
    /// if the window is full.
    ///
    /// # Errors
    /// Returns an error if the connection has ended.
    pub(crate) fn write(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, StreamError> {
        self.check_not_failed()?;
        let mut gather = Gather::new(parts);
        let result = self.try_write(&mut gather);
        self.fail_on_error(result)?;
        Ok(gather.taken_bytes())
    }

    fn check_not_failed(&self) -> Result<(), StreamError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn fail_on_error(&mut self, result: Result<(), StreamError>) -> Result<(), StreamError> {
        result.inspect_err(|e| self.record_failure(e.clone()))
    }

    fn try_write(&mut self, gather: &mut Gather<'_, '_>) -> Result<(), StreamError> {
        self.postlist.clear();
        while !gather.is_empty() && !self.postlist.is_full() && self.window.sendable_messages() > 0
        {
            let len = gather.remaining_bytes().min(self.max_message_bytes);
            let last = len == gather.remaining_bytes();
            if len <= self.max_inline_bytes {
                let mut small = [0; MAX_INLINE_BYTES as usize];
                gather.copy_to(&mut small[..len]);
                let flags = self
                    .window
                    .try_count_message(len, last)
                    .expect("there is room");
                add_message_wr(&mut self.postlist, Inline(&small[..len]), flags);
                self.in_flight_payloads.push_back(InFlightPayload::Inline);
            } else {
                let sent = self.copy_to_blocks(gather, len)?;
                let flags = self
                    .window
                    .try_count_message(len, last)
                    .expect("there is room");
                self.add_block_message_wr(&sent, len, flags);
                self.in_flight_payloads.push_back(sent);
            }
        }
        self.post_postlist()
    }

    /// Copies the next `len` bytes of `gather` into blocks.
    fn copy_to_blocks(
        &self,
        gather: &mut Gather<'_, '_>,
        len: usize,
    ) -> Result<InFlightPayload, StreamError> {
        let size = self.pool.block_bytes();
        let mut block = self.pool.take_block()?;
        if len <= size {
            gather.copy_to(&mut block.as_mut_slice()[..len]);
            return Ok(InFlightPayload::OneBlock(block));
        }
        let mut blocks = Vec::with_capacity(len.div_ceil(size));
        let mut left = len;
        loop {
            let now = left.min(size);
            gather.copy_to(&mut block.as_mut_slice()[..now]);
            blocks.push(block);
            left -= now;
            if left == 0 {
                return Ok(InFlightPayload::ManyBlocks(blocks));
            }
            block = self.pool.take_block()?;
        }
    }

    fn add_block_message_wr(
        &mut self,
        sent: &InFlightPayload,
        len: usize,
        flags: MessagePostParams,
    ) {
        let part = |block: &Block, len: usize| {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            block
                .slice()
                .subrange(0..len)
                .expect("the block was filled")
        };
        match sent {
            InFlightPayload::OneBlock(block) => {
                add_message_wr(&mut self.postlist, part(block, len), flags)
            }
            InFlightPayload::ManyBlocks(blocks) => {
                let size = self.pool.block_bytes();
                let slices: Vec<MrSlice> = blocks
                    .iter()
                    .enumerate()
                    .map(|(i, block)| part(block, size.min(len - i * size)))
                    .collect();
                add_message_wr(&mut self.postlist, &slices[..], flags);
            }
            InFlightPayload::Inline | InFlightPayload::CallerBytes(_) => {}
        }
    }

    fn post_postlist(&mut self) -> Result<(), StreamError> {
        if self.postlist.is_empty() {
            return Ok(());
        }
        Ok(self.qp.post_send(&mut self.postlist)?)
    }

    /// Posts messages directly from `bytes` if they are in blocks of the [pool](Self::pool), and
    /// copies them otherwise. Posted bytes are removed from the front of `bytes`. If the window is
    /// full, no bytes are posted.
    ///
    /// # Errors
    /// Returns an error if the connection has ended.
    pub(crate) fn write_bytes(&mut self, bytes: &mut Bytes) -> Result<usize, StreamError> {
        self.check_not_failed()?;
        let slice = self.pool.find_registered_slice(bytes);
        let Some(slice) = slice.filter(|slice| slice.len() as usize > self.max_inline_bytes) else {
            let taken = self.write(&[IoSlice::new(bytes)])?;
            bytes.advance(taken);
            return Ok(taken);
        };
        let result = self.try_write_bytes(bytes, slice);
        self.fail_on_error(result)
            .map(|()| slice.len() as usize - bytes.len())
    }

    fn try_write_bytes(&mut self, bytes: &mut Bytes, whole: MrSlice) -> Result<(), StreamError> {
        self.postlist.clear();
        let mut offset = 0;
        while !bytes.is_empty() && !self.postlist.is_full() && self.window.sendable_messages() > 0 {
            let len = bytes.len().min(self.max_message_bytes);
            let piece = u32::try_from(len).unwrap_or(u32::MAX);
            let part = whole
                .subrange(offset..offset + piece)
                .expect("a part of the bytes");
            offset += piece;
            let flags = self.window.try_count_message(len, len == bytes.len());
            add_message_wr(&mut self.postlist, part, flags.expect("there is room"));
            self.in_flight_payloads
                .push_back(InFlightPayload::CallerBytes(bytes.split_to(len)));
        }
        self.post_postlist()
    }

    /// Returns true if a writer that found no room should try again.
    pub(crate) fn should_writer_retry(&self) -> bool {
        self.failure.is_some() || self.window.has_room_for_waiting_writer()
    }

    /// Posts a marker message. Its completion means that the peer's NIC has received all earlier
    /// messages. Returns false if the marker cannot be posted now.
    pub(crate) fn post_flush_marker(&mut self) -> bool {
        if self.failure.is_some() || self.window.in_flight_messages() == 0 {
            return true;
        }
        let Some(flags) = self.window.try_count_ack() else {
            return false;
        };
        if let Err(e) = self.post_ack(flags) {
            self.record_failure(e);
        }
        true
    }

    /// Returns true if the peer's NIC has received all posted messages.
    pub(crate) fn is_flushed_or_failed(&self) -> bool {
        self.window.is_idle() || self.failure.is_some()
    }

    /// Returns true if the peer's NIC may not have received all sent bytes, and the peer still expects them.
    pub(crate) fn may_lack_sent_bytes(&self) -> bool {
        self.window.in_flight_messages() > 0
            && !matches!(self.failure, Some(StreamError::ClosedByPeer))
    }

    /// Arms the [completion queue](Self::cq), whose channel becomes readable at the next message. Earlier
    /// messages raise no event, so call [progress](Self::progress) once more. If `sends` is set,
    /// completions of sends raise events, too.
    pub(crate) fn arm_cq(&mut self, sends: bool) {
        // A failed send raises an event in any case.
        let solicited_only = !(sends || self.window.is_limited_by_send_queue());
        let armed = self.cq.req_notify(solicited_only);
        if let Err(e) = armed {
            self.record_failure(e.into());
        }
    }

    /// Returns the completion queue.
    pub(crate) fn cq(&self) -> &CompletionQueue {
        &self.cq
    }
}

/// Adds a message with the flags and the immediate of `flags` to the postlist.
fn add_message_wr(list: &mut Postlist<Rc>, payload: impl verbs::Payload, flags: MessagePostParams) {
    let mut wr = list.send_with_imm(payload, flags.credits_imm);
    if flags.solicited {
        wr = wr.solicited();
    }
    if let Some(id) = flags.signaled_wr_id {
        wr.signaled().wr_id(id);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({:?})", self.qp)
    }
}
