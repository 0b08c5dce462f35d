//! A client's queue of one-sided work requests: READs, WRITEs and compare-and-swaps, without the
//! server's processor.
//!
//! A client has a window of requests, each in a *slot* with its own buffer. The work requests of
//! all slots are collected in a postlist, which is posted with one doorbell. The `wr_id` of a
//! signaled work request is the number of its slot.
//!
//! [`PreparedOneSidedQueue`] is the queue before the server's queue pair is known, and [`OneSidedQueue`] the
//! connected queue. A system implements [`RequestSteps`]: the next step of a slot whose work requests have
//! completed.

use std::sync::atomic::AtomicU64;

use verbs::{
    Access, CompletionQueue, MemoryRegion, PortAndGidIndex, Postlist, PreparedQp, ProtectionDomain,
    QpEndpoint, QueuePair, Rc, RemoteMemory, WcBuffer,
};

use crate::{MAX_BATCH, RpcError};

#[cfg(test)]
mod tests;

/// A queue that is not connected yet.
#[derive(Debug)]
pub struct PreparedOneSidedQueue {
    pd: ProtectionDomain,
    qp: PreparedQp<Rc>,
    cq: CompletionQueue,
    window: usize,
    max_wrs_per_doorbell: usize,
}

impl PreparedOneSidedQueue {
    /// Creates a queue for `window` simultaneous requests of up to `work_requests` work requests
    /// each. A doorbell posts up to `batch` work requests, and never more than [`MAX_BATCH`].
    ///
    /// # Errors
    /// When a verb fails.
    pub fn new(
        pd: &ProtectionDomain,
        port: PortAndGidIndex,
        window: usize,
        batch: usize,
        work_requests: usize,
    ) -> Result<Self, RpcError> {
        let depth = work_requests.saturating_mul(window) + MAX_BATCH;
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        let cq = pd.context().create_cq(depth)?;
        let qp = pd
            .qp_builder::<Rc>(&cq, &cq)
            .port_num(port.port_num)
            .gid_index(port.gid_index)
            .max_send_wr(depth)
            .max_recv_wr(1)
            .max_inline_data_if_supported(0)
            .build()?;
        Ok(Self {
            pd: pd.clone(),
            qp,
            cq,
            window,
            max_wrs_per_doorbell: batch,
        })
    }

    /// Returns the endpoint to which the server connects its queue pair.
    pub fn endpoint(&self) -> QpEndpoint {
        self.qp.endpoint()
    }

    /// Returns the number of slots in the window.
    pub fn window(&self) -> usize {
        self.window
    }

    /// Connects to the server's queue pair. Each slot gets a buffer of `room` bytes.
    ///
    /// # Errors
    /// When a verb fails.
    pub fn connect(self, peer: &QpEndpoint, room: usize) -> Result<OneSidedQueue, RpcError> {
        let qp = self.qp.connect(peer)?;
        Ok(OneSidedQueue {
            prepared_wrs: qp.postlist(MAX_BATCH),
            qp,
            cq: self.cq,
            max_wrs_per_doorbell: self.max_wrs_per_doorbell.min(MAX_BATCH),
            slot_buffers: self.pd.alloc(self.window * room, Access::LOCAL_WRITE)?,
            slot_bytes: room,
            scratch: Some(Scratch::new(room)),
            posted_doorbells: 0,
            first_error: None,
        })
    }
}

/// A connected queue.
///
/// A place in a buffer is a slot and an offset in bytes from the start of the slot's buffer.
#[derive(Debug)]
pub struct OneSidedQueue {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    /// Work requests of the next doorbell.
    prepared_wrs: Postlist<Rc>,
    max_wrs_per_doorbell: usize,
    slot_buffers: MemoryRegion,
    /// Bytes of a slot's buffer.
    slot_bytes: usize,
    /// Scratch space; `None` while completions are handled.
    scratch: Option<Box<Scratch>>,
    posted_doorbells: u64,
    first_error: Option<RpcError>,
}

#[derive(Debug)]
struct Scratch {
    completions: WcBuffer<64>,
    /// Copy of the bytes that were READ, which the NIC cannot change.
    read_bytes: Vec<u8>,
}

impl Scratch {
    fn new(room: usize) -> Box<Self> {
        Box::new(Self {
            completions: WcBuffer::new(),
            read_bytes: vec![0; room],
        })
    }
}

/// Returns the error of a server that names memory outside of its announced region.
#[cold]
fn outside_region_error() -> RpcError {
    RpcError::Config("a place outside of the server's memory".to_owned())
}

impl OneSidedQueue {
    /// Returns the bytes of a slot's buffer.
    #[inline]
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Returns the number of work requests that are prepared and not posted.
    #[inline]
    pub fn prepared_wr_count(&self) -> usize {
        self.prepared_wrs.len()
    }

    /// Returns the number of doorbells so far.
    #[inline]
    pub fn posted_doorbells(&self) -> u64 {
        self.posted_doorbells
    }

    /// Returns the CQ, for a caller that polls it directly instead of by [`RequestSteps::post_and_poll`].
    pub fn cq(&self) -> &CompletionQueue {
        &self.cq
    }

    /// Returns the offset of a slot's byte in the buffers of all slots.
    #[inline]
    fn buffer_offset(&self, slot: u32, at: usize) -> usize {
        slot as usize * self.slot_bytes + at
    }

    /// Records an error until the next [`take_error`](Self::take_error), for callers that cannot return it.
    #[inline]
    pub fn record_error(&mut self, result: Result<(), RpcError>) {
        if let Err(e) = result {
            self.first_error.get_or_insert(e);
        }
    }

    /// Returns an error that was [noted](Self::record_error).
    ///
    /// # Errors
    /// The first noted error since the last call.
    #[inline]
    pub fn take_error(&mut self) -> Result<(), RpcError> {
        self.first_error.take().map_or(Ok(()), Err)
    }

    /// Prepares a signaled READ into a slot's buffer. Its completion covers all work requests that were prepared before
    /// it. Posts when the batch is full.
    ///
    /// # Errors
    /// When `from` is `None` (outside of the server's memory), the buffer is too short, or posting fails.
    #[inline]
    pub fn prepare_read(
        &mut self,
        (slot, at): (u32, usize),
        bytes: usize,
        from: Option<RemoteMemory>,
    ) -> Result<(), RpcError> {
        self.flush_unless_postlist_has_room(1);
        let start = self.buffer_offset(slot, at);
        let into = self.slot_buffers.slice(start..start + bytes)?;
        let read = self
            .prepared_wrs
            .rdma_read(into, from.ok_or_else(outside_region_error)?);
        read.signaled().wr_id(slot.into());
        if self.prepared_wrs.len() >= self.max_wrs_per_doorbell {
            return self.flush();
        }
        Ok(())
    }

    /// Prepares a compare-and-swap of `word` from the value `from` to `to`. The previous value, 8
    /// bytes, is written to the slot's buffer. If it is `signaled`, its completion covers all work
    /// requests that were prepared before it.
    ///
    /// # Errors
    /// When `word` is `None` (outside of the server's memory), or the buffer is too short.
    pub fn prepare_compare_and_swap(
        &mut self,
        (slot, at): (u32, usize),
        word: Option<RemoteMemory>,
        (from, to): (u64, u64),
        signaled: bool,
    ) -> Result<(), RpcError> {
        let start = self.buffer_offset(slot, at);
        let into = self.slot_buffers.slice(start..start + 8)?;
        let word = word.ok_or_else(outside_region_error)?;
        let swap = self.prepared_wrs.atomic_cmp_and_swp(into, word, from, to);
        if signaled {
            swap.signaled().wr_id(slot.into());
        }
        Ok(())
    }

    /// Copies bytes into a slot's buffer.
    ///
    /// # Errors
    /// When the buffer is too short.
    pub fn write_buffer(&mut self, slot: u32, at: usize, bytes: &[u8]) -> Result<(), RpcError> {
        Ok(self
            .slot_buffers
            .write_at(self.buffer_offset(slot, at), bytes)?)
    }

    /// Prepares an unsignaled WRITE of a part of a slot's buffer. A signaled work request must follow it.
    ///
    /// # Errors
    /// When `to` is `None` (outside of the server's memory), or the buffer is too short.
    pub fn prepare_write(
        &mut self,
        (slot, at): (u32, usize),
        bytes: usize,
        to: Option<RemoteMemory>,
    ) -> Result<(), RpcError> {
        let start = self.buffer_offset(slot, at);
        let from = self.slot_buffers.slice(start..start + bytes)?;
        self.prepared_wrs
            .rdma_write(from, to.ok_or_else(outside_region_error)?);
        Ok(())
    }

    /// Copies bytes from a slot's buffer.
    ///
    /// # Errors
    /// When the buffer is too short.
    #[inline]
    pub fn read_buffer(&self, slot: u32, at: usize, into: &mut [u8]) -> Result<(), RpcError> {
        Ok(self
            .slot_buffers
            .read_at(self.buffer_offset(slot, at), into)?)
    }

    /// Returns a word of a slot's buffer, at an offset that is a multiple of 8.
    ///
    /// # Errors
    /// When the buffer is too short.
    #[inline]
    pub fn buffer_word(&self, slot: u32, at: usize) -> Result<u64, RpcError> {
        Ok(self.slot_buffers.read_u64(self.buffer_offset(slot, at))?)
    }

    /// Returns words of a slot's buffer without a copy, from an offset that is a multiple of 8 on.
    ///
    /// # Errors
    /// When the buffer is too short.
    #[inline]
    pub fn buffer_words(
        &self,
        slot: u32,
        at: usize,
        count: usize,
    ) -> Result<&[AtomicU64], RpcError> {
        Ok(self
            .slot_buffers
            .atomics_u64(self.buffer_offset(slot, at), count)?)
    }

    /// Makes room for `work_requests` more in the postlist, so that one doorbell posts them. Posts
    /// the prepared work requests if necessary. An error is [noted](Self::record_error).
    pub fn flush_unless_postlist_has_room(&mut self, work_requests: usize) {
        if self.prepared_wrs.len() + work_requests > self.prepared_wrs.capacity() {
            let flushed = self.flush();
            self.record_error(flushed);
        }
    }

    /// Posts the prepared work requests.
    ///
    /// # Errors
    /// When posting fails.
    #[inline]
    pub fn flush(&mut self) -> Result<(), RpcError> {
        self.post_first_and_drop_rest(self.prepared_wrs.len())
    }

    /// Posts the first `n` prepared work requests and drops the others. Tests of recovery use this
    /// to simulate a client that dies in the middle of a request.
    ///
    /// # Errors
    /// When posting fails.
    #[inline]
    pub fn post_first_and_drop_rest(&mut self, n: usize) -> Result<(), RpcError> {
        let n = n.min(self.prepared_wrs.len());
        if n == 0 {
            self.prepared_wrs.clear();
            return Ok(());
        }
        self.posted_doorbells += 1;
        let posted = self.qp.post_send_range(&mut self.prepared_wrs, ..n);
        self.prepared_wrs.clear();
        Ok(posted?)
    }
}

/// The steps of a system's requests over a queue, slot by slot.
pub trait RequestSteps {
    /// State of the request in a slot.
    type Pending;
    /// Statistics of the caller.
    type Stats;
    /// Result of a request, which may borrow the bytes that were READ.
    type FinishedResult<'b>;

    /// Returns the queue.
    fn queue(&mut self) -> &mut OneSidedQueue;

    /// Handles the completion of a slot's signaled work request. Returns the result of the request,
    /// or `None` if the request needs further steps. `bytes` is scratch space as long as a slot's
    /// buffer, for [`read_buffer`](OneSidedQueue::read_buffer).
    ///
    /// # Errors
    /// When the queue cannot be used any more.
    fn handle_completion<'b>(
        &mut self,
        pending: &Self::Pending,
        slot: u32,
        stats: &mut Self::Stats,
        bytes: &'b mut [u8],
    ) -> Result<Option<Self::FinishedResult<'b>>, RpcError>;

    /// Posts the prepared work requests and polls once. Calls [`handle_completion`](Self::handle_completion) for each
    /// completion, and `done` for each finished request. `pending` is indexed by slot. Returns the
    /// number of completions.
    ///
    /// # Errors
    /// A [noted](OneSidedQueue::record_error) error, a failed work request, or a failed verb.
    #[inline]
    fn post_and_poll(
        &mut self,
        pending: &mut [Self::Pending],
        stats: &mut Self::Stats,
        mut done: impl FnMut(&mut Self::Pending, u32, Self::FinishedResult<'_>),
    ) -> Result<usize, RpcError> {
        let queue = self.queue();
        queue.take_error()?;
        queue.flush()?;
        let room = queue.slot_bytes;
        let scratch = queue.scratch.take();
        let mut scratch = scratch.unwrap_or_else(|| Scratch::new(room));
        let mut came = 0;
        let polled = queue.cq.poll(&mut scratch.completions);
        let result = polled.map_err(RpcError::from).and_then(|wcs| {
            for wc in wcs {
                let wc = wc.map_err(|e| RpcError::Completion(e.status()))?;
                let slot = u32::try_from(wc.wr_id()).unwrap_or(u32::MAX);
                let Some(pending) = pending.get_mut(slot as usize) else {
                    continue;
                };
                came += 1;
                if let Some(over) =
                    self.handle_completion(pending, slot, stats, &mut scratch.read_bytes)?
                {
                    done(pending, slot, over);
                }
            }
            Ok(())
        });
        let queue = self.queue();
        queue.scratch = Some(scratch);
        result?;
        // Post the next steps immediately: the caller may not poll for a while, and locks are held
        // meanwhile.
        queue.flush()?;
        Ok(came)
    }
}
