//! A client's queue of work requests that the server's processor knows nothing of: gathered into postlists, one doorbell
//! each, with a buffer for each slot of the window. Completions say by their `wr_id` which slot they are of.

use rpc::RpcError;
use verbs::{
    Access, CompletionQueue, MemoryRegion, PortGid, Postlist, PreparedQp, ProtectionDomain,
    QpEndpoint, QueuePair, Rc, RemoteMemory, WcBuffer,
};

use super::design::Done;
use super::request::{ClientStats, Pending};

/// A queue that is not connected yet.
#[derive(Debug)]
pub(super) struct Prepared {
    pd: ProtectionDomain,
    qp: PreparedQp<Rc>,
    cq: CompletionQueue,
    window: usize,
    batch: usize,
}

impl Prepared {
    /// A queue for so many requests, of up to `work_requests` each.
    pub(super) fn new(
        pd: &ProtectionDomain,
        port: PortGid,
        window: usize,
        batch: usize,
        work_requests: usize,
    ) -> Result<Self, RpcError> {
        let depth = u32::try_from(work_requests * window + rpc::MAX_BATCH).unwrap_or(u32::MAX);
        let cq = pd.context().create_cq(depth)?;
        let qp = pd
            .qp::<Rc>(&cq, &cq)
            .port_num(port.port_num)
            .gid_index(port.gid_index)
            .max_send_wr(depth)
            .max_recv_wr(1)
            .inline_up_to(0)
            .build()?;
        Ok(Self {
            pd: pd.clone(),
            qp,
            cq,
            window,
            batch,
        })
    }

    pub(super) fn endpoint(&self) -> QpEndpoint {
        self.qp.endpoint()
    }

    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Connects to the server's end, with a buffer of `room` bytes for each slot.
    pub(super) fn connect(self, peer: &QpEndpoint, room: usize) -> Result<OneSided, RpcError> {
        let qp = self.qp.connect(peer)?;
        Ok(OneSided {
            list: qp.postlist(rpc::MAX_BATCH),
            qp,
            cq: self.cq,
            batch: self.batch.min(rpc::MAX_BATCH),
            buffers: self.pd.alloc(self.window * room, Access::LOCAL_WRITE)?,
            room,
            scratch: Some(Scratch::new(room)),
            doorbells: 0,
            broken: None,
        })
    }
}

/// A connected queue.
#[derive(Debug)]
pub(super) struct OneSided {
    pub(super) qp: QueuePair<Rc>,
    pub(super) cq: CompletionQueue,
    /// Work requests of the next doorbell.
    pub(super) list: Postlist<Rc>,
    batch: usize,
    pub(super) buffers: MemoryRegion,
    /// Bytes of the buffers that each slot of the window has.
    pub(super) room: usize,
    /// Taken out while completions are looked at.
    scratch: Option<Box<Scratch>>,
    pub(super) doorbells: u64,
    broken: Option<RpcError>,
}

#[derive(Debug)]
struct Scratch {
    completions: WcBuffer<64>,
    /// What was READ, copied out of the NIC's reach.
    bytes: Vec<u8>,
}

impl Scratch {
    fn new(room: usize) -> Box<Self> {
        Box::new(Self {
            completions: WcBuffer::new(),
            bytes: vec![0; room],
        })
    }
}

/// A place in the server's memory that checks of what the server said should have excluded.
#[cold]
fn outside() -> RpcError {
    RpcError::Config("a place outside of the server's memory".to_owned())
}

impl OneSided {
    /// Where a part of a slot's buffer is among all of them.
    #[inline]
    fn place(&self, slot: u32, at: usize) -> usize {
        slot as usize * self.room + at
    }

    /// Remembers why this cannot go on, if it cannot, for whoever [checks](Self::check).
    #[inline]
    pub(super) fn note(&mut self, failed: Result<(), RpcError>) {
        if let Err(e) = failed {
            self.broken.get_or_insert(e);
        }
    }

    /// Why this cannot go on.
    #[inline]
    pub(super) fn check(&mut self) -> Result<(), RpcError> {
        self.broken.take().map_or(Ok(()), Err)
    }

    /// Prepares a READ into a slot's buffer, which speaks for what was prepared before it, and posts when there is enough
    /// for a doorbell.
    #[inline]
    pub(super) fn read(
        &mut self,
        (slot, at): (u32, usize),
        bytes: usize,
        from: Option<RemoteMemory>,
    ) -> Result<(), RpcError> {
        self.make_room(1);
        let start = self.place(slot, at);
        let into = self.buffers.slice(start..start + bytes)?;
        let read = self.list.rdma_read(into, from.ok_or_else(outside)?);
        read.signaled().wr_id(slot.into());
        if self.list.len() >= self.batch {
            return self.flush();
        }
        Ok(())
    }

    /// Prepares a compare-and-swap, whose result goes into a slot's buffer; `speaks` for what was prepared before it.
    pub(super) fn compare_and_swap(
        &mut self,
        (slot, at): (u32, usize),
        word: Option<RemoteMemory>,
        (from, to): (u64, u64),
        speaks: bool,
    ) -> Result<(), RpcError> {
        let start = self.place(slot, at);
        let into = self.buffers.slice(start..start + 8)?;
        let word = word.ok_or_else(outside)?;
        let swap = self.list.atomic_cmp_and_swp(into, word, from, to);
        if speaks {
            swap.signaled().wr_id(slot.into());
        }
        Ok(())
    }

    /// Puts bytes into a slot's buffer.
    pub(super) fn fill(&mut self, slot: u32, at: usize, bytes: &[u8]) -> Result<(), RpcError> {
        Ok(self.buffers.write_at(self.place(slot, at), bytes)?)
    }

    /// Prepares a WRITE of a part of a slot's buffer.
    pub(super) fn write(
        &mut self,
        (slot, at): (u32, usize),
        bytes: usize,
        to: Option<RemoteMemory>,
    ) -> Result<(), RpcError> {
        let start = self.place(slot, at);
        let from = self.buffers.slice(start..start + bytes)?;
        self.list.rdma_write(from, to.ok_or_else(outside)?);
        Ok(())
    }

    /// Copies from a slot's buffer.
    #[inline]
    pub(super) fn copy(&self, slot: u32, at: usize, into: &mut [u8]) -> Result<(), RpcError> {
        Ok(self.buffers.read_at(self.place(slot, at), into)?)
    }

    /// A word of a slot's buffer.
    #[inline]
    pub(super) fn word(&self, slot: u32, at: usize) -> Result<u64, RpcError> {
        Ok(self.buffers.read_u64(self.place(slot, at))?)
    }

    /// Posts unless there is room for `work_requests` more in the postlist: what belongs together leaves together.
    pub(super) fn make_room(&mut self, work_requests: usize) {
        if self.list.len() + work_requests > self.list.capacity() {
            let flushed = self.flush();
            self.note(flushed);
        }
    }

    /// Posts what is prepared.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<(), RpcError> {
        if self.list.is_empty() {
            return Ok(());
        }
        self.doorbells += 1;
        let posted = self.qp.post_send(&mut self.list);
        self.list.clear();
        Ok(posted?)
    }
}

/// What is done over a queue, slot by slot.
pub(super) trait Steps {
    fn queue(&mut self) -> &mut OneSided;

    /// A slot's work requests are complete: what its request comes to, or nothing if there is more to do. `bytes` is room
    /// for what was READ.
    fn arrived<'b>(
        &mut self,
        pending: &Pending,
        slot: u32,
        stats: &mut ClientStats,
        bytes: &'b mut [u8],
    ) -> Result<Option<Done<'b>>, RpcError>;

    /// Posts what is prepared and goes on where something has come: calls `done` for each request that is over. Returns
    /// how many completions came.
    #[inline]
    fn go_on(
        &mut self,
        pending: &mut [Pending],
        stats: &mut ClientStats,
        done: &mut dyn FnMut(&mut Pending, u32, Done<'_>),
    ) -> Result<usize, RpcError> {
        let queue = self.queue();
        queue.check()?;
        queue.flush()?;
        let room = queue.room;
        let scratch = queue.scratch.take();
        let mut scratch = scratch.unwrap_or_else(|| Scratch::new(room));
        let mut came = 0;
        let polled = queue.cq.poll(&mut scratch.completions);
        let result = polled.map_err(RpcError::from).and_then(|wcs| {
            for wc in wcs {
                let wc = wc.map_err(|e| RpcError::Completion(e.status()))?;
                #[expect(clippy::cast_possible_truncation, reason = "a slot's number")]
                let slot = wc.wr_id() as u32;
                let Some(pending) = pending.get_mut(slot as usize) else {
                    continue;
                };
                came += 1;
                if let Some(over) = self.arrived(pending, slot, stats, &mut scratch.bytes)? {
                    done(pending, slot, over);
                }
            }
            Ok(())
        });
        let queue = self.queue();
        queue.scratch = Some(scratch);
        result?;
        // What comes next leaves at once: nobody may come by for a while, and locks are held meanwhile.
        queue.flush()?;
        Ok(came)
    }
}
