//! A stream over a connected queue pair. Nothing here waits, and nothing knows of a runtime.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use bytes::{Buf, Bytes};
use verbs::{
    CompletionChannel, CompletionQueue, Gid, HeaderOnly, Inline, Lid, MrSlice, Mtu, Postlist, Psn,
    QpEndpoint, Qpn, QueuePair, Rc, RecvList, WcBuffer,
};

use crate::error::{SetupError, StreamError};
use crate::gather::Gather;
use crate::handshake::Hello;
use crate::pool::{Block, Pool};
use crate::prepared::{INLINE_BYTES, Prepared};
use crate::window::{Mark, Window};

/// Completions taken at once.
const POLL: usize = 16;
/// Messages posted with one doorbell.
const POSTLIST: usize = 16;
/// Received payload below this is copied out of its block, which is posted again at once (`rdma_zerocopy_min_size` of brpc).
const ZERO_COPY_MIN: usize = 512;

/// The source of a message in flight.
enum Sent {
    /// The WR itself carried it.
    Inline,
    One(Block),
    Many(Vec<Block>),
    /// Bytes of the caller's.
    Foreign(#[expect(dead_code, reason = "kept until they are sent")] Bytes),
}

/// Received bytes that have not been read: a part of a block.
struct Unread {
    block: Block,
    range: Range<usize>,
}

pub(crate) struct Connection {
    // Before the blocks: the NIC must be done with them when they go back to the pool.
    qp: QueuePair<Rc>,
    send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    channel: CompletionChannel,
    pool: Pool,
    window: Window,
    /// Bytes of a message to the peer at most.
    message_bytes: usize,
    inline_bytes: usize,
    list: Postlist<Rc>,
    recvs: RecvList,
    /// Blocks of the posted receives, in the order in which they are used.
    posted: VecDeque<Block>,
    /// Blocks that are to be posted, and how many of them replace one of a message with payload.
    returned: Vec<Block>,
    returned_credits: u16,
    unread: VecDeque<Unread>,
    /// Messages with payload that are under way.
    sent: VecDeque<Sent>,
    completions: WcBuffer<POLL>,
    /// Why nothing can be sent or received any more.
    failure: Option<StreamError>,
}

impl Prepared {
    /// Takes the queue pair to RTS.
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
    /// Connects a queue pair. `peer_block` is what a message to the peer may hold.
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
            send_cq: prepared.send_cq,
            recv_cq: prepared.recv_cq,
            channel: prepared.channel,
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

    /// The pool of blocks.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Takes what has completed, and acknowledges where the peer lacks credits. Whether something had.
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
        // What came before a failure is taken, and a failed send says more than the receives that it flushes.
        let received = self.poll_receives();
        let sent = self.poll_sends()?;
        let any = received? || sent;
        self.post_returned()?;
        Ok(any)
    }

    fn poll_sends(&mut self) -> Result<bool, StreamError> {
        if self.window.is_idle() {
            return Ok(false);
        }
        let mut any = false;
        loop {
            let completions = self.send_cq.poll(&mut self.completions)?;
            let count = completions.len();
            any |= count > 0;
            for wc in completions {
                let wc = wc.map_err(|failed| StreamError::Failed(failed.status()))?;
                let freed = self.window.completed(wc.wr_id());
                self.sent.drain(..usize::from(freed).min(self.sent.len()));
            }
            if count < POLL {
                return Ok(any);
            }
        }
    }

    fn poll_receives(&mut self) -> Result<bool, StreamError> {
        let mut any = false;
        loop {
            let completions = self.recv_cq.poll(&mut self.completions)?;
            let count = completions.len();
            any |= count > 0;
            for wc in completions {
                let wc = wc.map_err(|failed| StreamError::Failed(failed.status()))?;
                let Some(block) = self.posted.pop_front() else {
                    return Err(StreamError::Verb(
                        "a receive that was not posted".to_owned(),
                    ));
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
            if count < POLL {
                return Ok(any);
            }
        }
    }

    /// Posts blocks that were read, and acknowledges when it is time.
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
        if let Some(mark) = self.window.ack() {
            self.post_ack(mark)?;
        }
        Ok(())
    }

    fn post_ack(&mut self, mark: Mark) -> Result<(), StreamError> {
        self.list.clear();
        marked(&mut self.list, HeaderOnly, mark);
        Ok(self.qp.post_send(&mut self.list)?)
    }

    fn fail(&mut self, why: StreamError) {
        if self.failure.is_none() {
            tracing::debug!(%why, qp = %self.qp.qpn(), "the stream ends");
            self.failure = Some(why);
        }
    }

    /// Ends the connection for a reason, the first of which stays. Received bytes can still be read.
    pub(crate) fn close(&mut self, why: StreamError) {
        if matches!(why, StreamError::Closed) {
            // The peer's messages are in the completion queue before its end of file is in the socket.
            self.progress();
        }
        self.fail(why);
    }

    /// Why the connection has ended.
    pub(crate) fn failure(&self) -> Option<&StreamError> {
        self.failure.as_ref()
    }

    /// Whether received bytes wait.
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Copies received bytes out; 0 when there are none.
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

    /// Takes received bytes, without a copy where they are many; nothing when there are none.
    pub(crate) fn read_bytes(&mut self) -> Option<Bytes> {
        let Unread { block, range } = self.unread.pop_front()?;
        let fresh = if range.len() < ZERO_COPY_MIN {
            None
        } else {
            // Without memory for another block this one is needed.
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

    /// Keeps a block to be posted in place of one that a message with payload took.
    fn give_back(&mut self, block: Block) {
        self.returned.push(block);
        self.returned_credits += 1;
    }

    fn after_read(&mut self) {
        // Posted in lists: one doorbell for an eighth of the queue, and the rest before this side waits.
        let due = self.returned.len() * 8 >= self.posted.len();
        if due
            && self.failure.is_none()
            && let Err(e) = self.post_returned()
        {
            self.fail(e);
        }
    }

    /// Copies bytes into messages and posts them; how many bytes, 0 when the window is full.
    ///
    /// # Errors
    /// The connection has ended.
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
                let mark = self.window.send(len, last).expect("there is room");
                marked(&mut self.list, Inline(&small[..len]), mark);
                self.sent.push_back(Sent::Inline);
            } else {
                let sent = self.fill(gather, len)?;
                let mark = self.window.send(len, last).expect("there is room");
                self.push_blocks(&sent, len, mark);
                self.sent.push_back(sent);
            }
        }
        self.post_list()
    }

    /// Copies the next `len` bytes into blocks.
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

    fn push_blocks(&mut self, sent: &Sent, len: usize, mark: Mark) {
        let part = |block: &Block, len: usize| {
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            block.slice().part(0..len).expect("the block was filled")
        };
        match sent {
            Sent::One(block) => marked(&mut self.list, part(block, len), mark),
            Sent::Many(blocks) => {
                let size = self.pool.block_bytes();
                let slices: Vec<MrSlice> = blocks
                    .iter()
                    .enumerate()
                    .map(|(i, block)| part(block, size.min(len - i * size)))
                    .collect();
                marked(&mut self.list, &slices[..], mark);
            }
            Sent::Inline | Sent::Foreign(_) => {}
        }
    }

    fn post_list(&mut self) -> Result<(), StreamError> {
        if self.list.is_empty() {
            return Ok(());
        }
        Ok(self.qp.post_send(&mut self.list)?)
    }

    /// Posts messages straight from `bytes` if they are in blocks of the [pool](Self::pool), and copies them otherwise.
    /// Posted bytes are removed from the front of `bytes`; none are when the window is full.
    ///
    /// # Errors
    /// The connection has ended.
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
            let mark = self.window.send(len, len == bytes.len());
            marked(&mut self.list, part, mark.expect("there is room"));
            self.sent.push_back(Sent::Foreign(bytes.split_to(len)));
        }
        self.post_list()
    }

    /// Whether a writer that found no room should try again.
    pub(crate) fn is_writable(&self) -> bool {
        self.failure.is_some() || self.window.is_wide()
    }

    /// Makes sure that the completion of a send will tell when everything before was received. False when none can be posted
    /// now.
    pub(crate) fn post_marker(&mut self) -> bool {
        if self.failure.is_some() || self.window.under_way() == 0 {
            return true;
        }
        let Some(mark) = self.window.force_ack() else {
            return false;
        };
        if let Err(e) = self.post_ack(mark) {
            self.fail(e);
        }
        true
    }

    /// Whether the peer's NIC has taken all that was posted.
    pub(crate) fn is_flushed(&self) -> bool {
        self.window.is_idle() || self.failure.is_some()
    }

    /// Makes the [channel](Self::channel) become readable when a message comes. Earlier messages make no event: make
    /// [progress](Self::progress) once more. `sends`: also when a send completes.
    pub(crate) fn arm(&mut self, sends: bool) {
        let armed = self.recv_cq.req_notify(true).and_then(|()| {
            if sends || self.window.lacks_slots() {
                self.send_cq.req_notify(false)
            } else {
                // A failed send must wake whoever waits for the peer.
                self.send_cq.req_notify(true)
            }
        });
        if let Err(e) = armed {
            self.fail(e.into());
        }
    }

    /// Takes the events of the channel.
    pub(crate) fn take_events(&self) {
        while self.channel.wait().is_ok() {}
    }

    /// The completion channel.
    pub(crate) fn channel(&self) -> &CompletionChannel {
        &self.channel
    }
}

/// Adds a message as the window says.
fn marked(list: &mut Postlist<Rc>, payload: impl verbs::Payload, mark: Mark) {
    let mut wr = list.send_with_imm(payload, mark.imm);
    if mark.solicited {
        wr = wr.solicited();
    }
    if let Some(id) = mark.signaled {
        wr.signaled().wr_id(id);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({:?})", self.qp)
    }
}
