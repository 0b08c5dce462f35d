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
use crate::prepared::{INLINE_BYTES, Prepared};
use crate::window::{MessageFlags, Window};

/// Maximum number of completions taken by one poll.
const POLL: usize = 16;
/// Maximum number of messages posted with one doorbell.
const POSTLIST: usize = 16;
/// Payload size in bytes below which received bytes are copied out of their block, so that the
/// block is posted again at once (`rdma_zerocopy_min_size` of brpc).
const ZERO_COPY_MIN: usize = 512;

/// Memory of the payload of a message in flight; it must live until the message has been sent.
enum Sent {
    /// The payload lies in the WR itself.
    Inline,
    One(Block),
    Many(Vec<Block>),
    /// The payload lies in the caller's bytes.
    CallerBytes(#[expect(dead_code, reason = "kept until they are sent")] Bytes),
}

/// Received bytes that the program has not read, as a range of a block.
struct Unread {
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
    message_bytes: usize,
    inline_bytes: usize,
    list: Postlist<Rc>,
    recvs: RecvList,
    /// Blocks of the posted receives, in the order in which they are used.
    posted: VecDeque<Block>,
    /// Blocks that must be posted again, and the number of these blocks that replace a block of a
    /// message with payload.
    returned: Vec<Block>,
    returned_credits: u16,
    unread: VecDeque<Unread>,
    /// Payloads of the messages in flight that have a payload.
    sent: VecDeque<Sent>,
    completions: WcBuffer<POLL>,
    /// Reason why the connection has ended; `None` while it works.
    failure: Option<StreamError>,
}

impl Prepared {
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
        prepared: Prepared,
        peer: &QpEndpoint,
        window: Window,
        peer_block: usize,
    ) -> Result<Self, SetupError> {
        let posted = prepared.posted;
        let qp = prepared.qp.connect(peer)?;
        let gathered = prepared.max_sge.saturating_mul(prepared.pool.block_bytes());
        let inline = usize::try_from(INLINE_BYTES).unwrap_or(0);
        Ok(Self {
            list: qp.postlist(POSTLIST),
            recvs: qp.recv_list(posted.len()),
            inline_bytes: qp.max_inline_data().min(inline),
            qp,
            cq: prepared.cq,
            pool: prepared.pool,
            window,
            message_bytes: peer_block.min(gathered),
            posted,
            returned: Vec::new(),
            returned_credits: 0,
            unread: VecDeque::new(),
            sent: VecDeque::new(),
            completions: WcBuffer::new(),
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
                self.fail(e);
                true
            }
        }
    }

    fn try_progress(&mut self) -> Result<bool, StreamError> {
        let any = self.poll()?;
        self.post_returned()?;
        Ok(any)
    }

    fn poll(&mut self) -> Result<bool, StreamError> {
        let mut any = false;
        let mut failed = None;
        loop {
            let completions = self.cq.poll(&mut self.completions)?;
            let count = completions.len();
            any |= count > 0;
            for wc in completions {
                match wc {
                    Ok(wc) if wc.is_recv() => {
                        let Some(block) = self.posted.pop_front() else {
                            let why = "a receive that was not posted";
                            return Err(StreamError::Verb(why.to_owned()));
                        };
                        self.window
                            .received(wc.imm().ok_or(StreamError::NoImmediate)?)?;
                        match usize::try_from(wc.byte_len()).unwrap_or(usize::MAX) {
                            0 => self.returned.push(block),
                            len => self.unread.push_back(Unread {
                                range: 0..len.min(self.pool.block_bytes()),
                                block,
                            }),
                        }
                    }
                    Ok(wc) => {
                        let freed = self.window.completed(wc.wr_id());
                        self.sent.drain(..usize::from(freed).min(self.sent.len()));
                    }
                    // The cause of a failure is the status of the WR that was not flushed by it.
                    Err(wc) => match failed {
                        None | Some(WcStatus::WrFlushErr) => failed = Some(wc.status()),
                        Some(_) => {}
                    },
                }
            }
            if count < POLL {
                return failed.map_or(Ok(any), |status| Err(StreamError::Failed(status)));
            }
        }
    }

    /// Posts the blocks that the program has read, and sends an acknowledgement if one is due.
    fn post_returned(&mut self) -> Result<(), StreamError> {
        if !self.returned.is_empty() {
            self.recvs.clear();
            for block in &self.returned {
                self.recvs.recv(block.slice(), 0);
            }
            self.posted.extend(self.returned.drain(..));
            self.qp.post_recv(&mut self.recvs)?;
            let credits = std::mem::take(&mut self.returned_credits);
            self.window.reposted(credits);
        }
        if let Some(flags) = self.window.ack() {
            self.post_ack(flags)?;
        }
        Ok(())
    }

    fn post_ack(&mut self, flags: MessageFlags) -> Result<(), StreamError> {
        self.list.clear();
        add_message(&mut self.list, HeaderOnly, flags);
        Ok(self.qp.post_send(&mut self.list)?)
    }

    fn fail(&mut self, why: StreamError) {
        if self.failure.is_none() {
            tracing::debug!(%why, qp = %self.qp.qpn(), "the stream ends");
            self.failure = Some(why);
        }
    }

    /// Ends the connection and records the reason; only the first reason is kept. Received bytes
    /// can still be read.
    pub(crate) fn close(&mut self, why: StreamError) {
        if matches!(why, StreamError::Closed) {
            // The peer's messages are in the completion queue before its end of file is in the
            // socket, so poll first.
            self.progress();
        }
        self.fail(why);
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
            self.give_back(block);
        }
        self.after_read();
        total
    }

    /// Returns received bytes, or `None` if no bytes are available. Pieces of [`ZERO_COPY_MIN`]
    /// bytes or more are not copied.
    pub(crate) fn read_bytes(&mut self) -> Option<Bytes> {
        let Unread { block, range } = self.unread.pop_front()?;
        let fresh = if range.len() < ZERO_COPY_MIN {
            None
        } else {
            // If memory for another block is lacking, copy the bytes and post this block again.
            self.pool.block().ok()
        };
        let bytes = match fresh {
            Some(fresh) => {
                self.give_back(fresh);
                block.freeze_range(range)
            }
            None => {
                let bytes = Bytes::copy_from_slice(&block.as_ref()[range]);
                self.give_back(block);
                bytes
            }
        };
        self.after_read();
        Some(bytes)
    }

    /// Queues a block that takes the place of the block of a message with payload in the receive
    /// queue.
    fn give_back(&mut self, block: Block) {
        self.returned.push(block);
        self.returned_credits += 1;
    }

    fn after_read(&mut self) {
        // Post blocks in lists, with one doorbell for an eighth of the queue. The other blocks are
        // posted before this side waits.
        let due = self.returned.len() * 8 >= self.posted.len();
        if due
            && self.failure.is_none()
            && let Err(e) = self.post_returned()
        {
            self.fail(e);
        }
    }

    /// Copies bytes into messages and posts the messages. Returns the number of copied bytes, or 0
    /// if the window is full.
    ///
    /// # Errors
    /// Returns an error if the connection has ended.
    pub(crate) fn write(&mut self, parts: &[IoSlice<'_>]) -> Result<usize, StreamError> {
        self.check()?;
        let mut gather = Gather::new(parts);
        let result = self.try_write(&mut gather);
        self.posted_or_failed(result)?;
        Ok(gather.taken())
    }

    fn check(&self) -> Result<(), StreamError> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn posted_or_failed(&mut self, result: Result<(), StreamError>) -> Result<(), StreamError> {
        result.inspect_err(|e| self.fail(e.clone()))
    }

    fn try_write(&mut self, gather: &mut Gather<'_, '_>) -> Result<(), StreamError> {
        self.list.clear();
        while !gather.is_empty() && !self.list.is_full() && self.window.room() > 0 {
            let len = gather.remaining().min(self.message_bytes);
            let last = len == gather.remaining();
            if len <= self.inline_bytes {
                let mut small = [0; INLINE_BYTES as usize];
                gather.copy_to(&mut small[..len]);
                let flags = self.window.send(len, last).expect("there is room");
                add_message(&mut self.list, Inline(&small[..len]), flags);
                self.sent.push_back(Sent::Inline);
            } else {
                let sent = self.fill(gather, len)?;
                let flags = self.window.send(len, last).expect("there is room");
                self.push_blocks(&sent, len, flags);
                self.sent.push_back(sent);
            }
        }
        self.post_list()
    }

    /// Copies the next `len` bytes of `gather` into blocks.
    fn fill(&self, gather: &mut Gather<'_, '_>, len: usize) -> Result<Sent, StreamError> {
        let size = self.pool.block_bytes();
        let mut block = self.pool.block()?;
        if len <= size {
            gather.copy_to(&mut block.as_mut_slice()[..len]);
            return Ok(Sent::One(block));
        }
        let mut blocks = Vec::with_capacity(len.div_ceil(size));
        let mut left = len;
        loop {
            let now = left.min(size);
            gather.copy_to(&mut block.as_mut_slice()[..now]);
            blocks.push(block);
            left -= now;
            if left == 0 {
                return Ok(Sent::Many(blocks));
            }
            block = self.pool.block()?;
        }
    }

    fn push_blocks(&mut self, sent: &Sent, len: usize, flags: MessageFlags) {
        let part = |block: &Block, len: usize| {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            block.slice().part(0..len).expect("the block was filled")
        };
        match sent {
            Sent::One(block) => add_message(&mut self.list, part(block, len), flags),
            Sent::Many(blocks) => {
                let size = self.pool.block_bytes();
                let slices: Vec<MrSlice> = blocks
                    .iter()
                    .enumerate()
                    .map(|(i, block)| part(block, size.min(len - i * size)))
                    .collect();
                add_message(&mut self.list, &slices[..], flags);
            }
            Sent::Inline | Sent::CallerBytes(_) => {}
        }
    }

    fn post_list(&mut self) -> Result<(), StreamError> {
        if self.list.is_empty() {
            return Ok(());
        }
        Ok(self.qp.post_send(&mut self.list)?)
    }

    /// Posts messages directly from `bytes` if they are in blocks of the [pool](Self::pool), and
    /// copies them otherwise. Posted bytes are removed from the front of `bytes`. If the window is
    /// full, no bytes are posted.
    ///
    /// # Errors
    /// Returns an error if the connection has ended.
    pub(crate) fn write_bytes(&mut self, bytes: &mut Bytes) -> Result<usize, StreamError> {
        self.check()?;
        let slice = self.pool.find(bytes);
        let Some(slice) = slice.filter(|slice| slice.len() as usize > self.inline_bytes) else {
            let taken = self.write(&[IoSlice::new(bytes)])?;
            bytes.advance(taken);
            return Ok(taken);
        };
        let result = self.try_write_bytes(bytes, slice);
        self.posted_or_failed(result)
            .map(|()| slice.len() as usize - bytes.len())
    }

    fn try_write_bytes(&mut self, bytes: &mut Bytes, whole: MrSlice) -> Result<(), StreamError> {
        self.list.clear();
        let mut offset = 0;
        while !bytes.is_empty() && !self.list.is_full() && self.window.room() > 0 {
            let len = bytes.len().min(self.message_bytes);
            let piece = u32::try_from(len).unwrap_or(u32::MAX);
            let part = whole
                .part(offset..offset + piece)
                .expect("a part of the bytes");
            offset += piece;
            let flags = self.window.send(len, len == bytes.len());
            add_message(&mut self.list, part, flags.expect("there is room"));
            self.sent.push_back(Sent::CallerBytes(bytes.split_to(len)));
        }
        self.post_list()
    }

    /// Returns true if a writer that found no room should try again.
    pub(crate) fn is_writable(&self) -> bool {
        self.failure.is_some() || self.window.has_enough_room()
    }

    /// Posts a marker message. Its completion means that the peer's NIC has received all earlier
    /// messages. Returns false if the marker cannot be posted now.
    pub(crate) fn post_flush_marker(&mut self) -> bool {
        if self.failure.is_some() || self.window.in_flight() == 0 {
            return true;
        }
        let Some(flags) = self.window.force_ack() else {
            return false;
        };
        if let Err(e) = self.post_ack(flags) {
            self.fail(e);
        }
        true
    }

    /// Returns true if the peer's NIC has received all posted messages.
    pub(crate) fn is_flushed(&self) -> bool {
        self.window.is_idle() || self.failure.is_some()
    }

    /// Arms the [completion queue](Self::cq), whose channel becomes readable at the next message. Earlier
    /// messages raise no event, so call [progress](Self::progress) once more. If `sends` is set,
    /// completions of sends raise events, too.
    pub(crate) fn arm(&mut self, sends: bool) {
        // A failed send raises an event in any case.
        let solicited_only = !(sends || self.window.lacks_slots());
        let armed = self.cq.req_notify(solicited_only);
        if let Err(e) = armed {
            self.fail(e.into());
        }
    }

    /// Returns the completion queue.
    pub(crate) fn cq(&self) -> &CompletionQueue {
        &self.cq
    }
}

/// Adds a message with the flags and the immediate of `flags` to the postlist.
fn add_message(list: &mut Postlist<Rc>, payload: impl verbs::Payload, flags: MessageFlags) {
    let mut wr = list.send_with_imm(payload, flags.imm);
    if flags.solicited {
        wr = wr.solicited();
    }
    if let Some(id) = flags.signaled {
        wr.signaled().wr_id(id);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({:?})", self.qp)
    }
}
