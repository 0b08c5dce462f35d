//! A client's way into the server's memory: a GET is a READ of an index bucket and a READ of an item.
//!
//! What cannot be decided by READs is asked of the server, by RPC: a key that does not seem to be there, an item that
//! expires (by the server's clock), one longer than this client's buffers, or one that is changed all the time.

use rpc::RpcError;
use verbs::{
    Access, CompletionQueue, MemoryRegion, PortGid, Postlist, PreparedQp, ProtectionDomain,
    QpEndpoint, QueuePair, Rc, RemoteMemory, WcBuffer,
};

use super::pipeline::{Pending, Trouble};
use crate::rendezvous;
use crate::store::remote::{BUCKET_BYTES, Candidates, Seen, home_of, item};
use crate::wire;

/// READs of torn items after which the server is asked.
const MOST_TORN: u8 = 16;
/// Buckets that are READ for a key at the most.
const MOST_BUCKETS: u8 = 4;

/// A way that is not open yet.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) pd: ProtectionDomain,
    pub(super) qp: PreparedQp<Rc>,
    pub(super) cq: CompletionQueue,
    pub(super) window: usize,
    pub(super) batch: usize,
}

/// A partition's memory.
#[derive(Debug, Clone, Copy)]
struct Partition {
    index: RemoteMemory,
    buckets: u64,
    log: RemoteMemory,
}

/// What a slot of the window READs.
#[derive(Debug, Clone, Copy, Default)]
struct Get {
    hash: u64,
    /// The bucket that was READ last, how many were, and what it said.
    bucket: u64,
    buckets: u8,
    candidates: Candidates,
    /// An item is READ, from here on and so long; a bucket if it has no bytes.
    item: u64,
    bytes: usize,
    torn: u8,
}

#[derive(Debug)]
pub(super) struct Reach {
    qp: QueuePair<Rc>,
    cq: CompletionQueue,
    /// READs of one doorbell.
    list: Postlist<Rc>,
    batch: usize,
    /// Room for what is READ, for each slot of the window.
    buffers: MemoryRegion,
    room: usize,
    partitions: Vec<Partition>,
    item_bytes: usize,
    seed: u64,
    gets: Box<[Get]>,
    completions: Box<WcBuffer<64>>,
    bytes: Vec<u8>,
    pub(super) doorbells: u64,
    pub(super) broken: Option<RpcError>,
}

/// What READs came to.
pub(super) enum Found<'a> {
    /// The key's value.
    Value { version: u64, value: &'a [u8] },
    /// The server must be asked.
    Ask,
}

impl Prepared {
    /// A way for so many requests, of up to `requests` work requests each.
    pub(super) fn new(
        pd: &ProtectionDomain,
        port: PortGid,
        window: usize,
        batch: usize,
        requests: usize,
    ) -> Result<Self, RpcError> {
        let depth = u32::try_from(requests * window + rpc::MAX_BATCH).unwrap_or(u32::MAX);
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

    /// Connects to an index and a log. Values up to `value_bytes` are READ.
    pub(super) fn connect(
        self,
        peer: &QpEndpoint,
        (partitions, item_bytes): (&[rendezvous::ReachedLog], usize),
        value_bytes: usize,
        seed: u64,
    ) -> Result<Reach, RpcError> {
        let partition = |p: &rendezvous::ReachedLog| {
            let buckets = p.index.len / BUCKET_BYTES as u64;
            (buckets > 0 && p.log.len >= 8).then_some(Partition {
                index: p.index,
                buckets,
                log: p.log,
            })
        };
        let partitions = partitions.iter().map(partition).collect::<Option<_>>();
        let item = crate::store::item_bytes(crate::store::MAX_KEY_BYTES, value_bytes, true) + 8;
        let room = item.max(BUCKET_BYTES).next_multiple_of(64);
        let qp = self.qp.connect(peer)?;
        Ok(Reach {
            list: qp.postlist(rpc::MAX_BATCH),
            qp,
            cq: self.cq,
            batch: self.batch.min(rpc::MAX_BATCH),
            buffers: self.pd.alloc(self.window * room, Access::LOCAL_WRITE)?,
            room,
            partitions: partitions
                .ok_or_else(|| RpcError::Config("the server's memory is too small".to_owned()))?,
            item_bytes: item_bytes.clamp(8, room),
            seed,
            gets: vec![Get::default(); self.window].into(),
            completions: Box::default(),
            bytes: vec![0; room],
            doorbells: 0,
            broken: None,
        })
    }
}

impl Reach {
    pub(super) fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// Begins to look for the key of a hash.
    #[inline]
    pub(super) fn begin(&mut self, slot: u32, lane: usize, hash: u64) {
        let Some(buckets) = self.partitions.get(lane).map(|p| p.buckets) else {
            return;
        };
        self.gets[slot as usize] = Get {
            hash,
            bucket: home_of(hash, buckets),
            ..Get::default()
        };
        self.read(slot, lane);
    }

    /// Prepares the READ that a slot is at.
    #[inline]
    fn read(&mut self, slot: u32, lane: usize) {
        let (get, partition) = (&self.gets[slot as usize], &self.partitions[lane]);
        let (from, bytes) = match get.bytes {
            0 => (
                partition.index.at(get.bucket * BUCKET_BYTES as u64),
                BUCKET_BYTES,
            ),
            bytes => (partition.log.at(get.item), bytes),
        };
        let start = slot as usize * self.room;
        let posted = match (from, self.buffers.slice(start..start + bytes)) {
            (Some(from), Ok(into)) => {
                self.list
                    .rdma_read(into, from)
                    .signaled()
                    .wr_id(slot.into());
                if self.list.len() >= self.batch {
                    self.flush()
                } else {
                    Ok(())
                }
            }
            // `next` and `begin` give no such place.
            (None, _) => Err(RpcError::Config("a READ past the end".to_owned())),
            (_, Err(e)) => Err(e.into()),
        };
        if let Err(e) = posted {
            self.broken.get_or_insert(e);
        }
    }

    #[inline]
    fn flush(&mut self) -> Result<(), RpcError> {
        if self.list.is_empty() {
            return Ok(());
        }
        self.doorbells += 1;
        let posted = self.qp.post_send(&mut self.list);
        self.list.clear();
        Ok(posted?)
    }

    /// Posts what is prepared and takes what has been READ: calls `done` for each GET whose READs are over. Returns how
    /// many READs came.
    #[inline]
    pub(super) fn poll(
        &mut self,
        pending: &mut [Pending],
        trouble: &mut Trouble,
        mut done: impl FnMut(&mut Pending, u32, Found<'_>),
    ) -> Result<usize, RpcError> {
        if let Some(e) = self.broken.take() {
            return Err(e);
        }
        self.flush()?;
        let mut completions = std::mem::take(&mut self.completions);
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut came = 0;
        let polled = self.cq.poll(&mut completions);
        let result = polled.map_err(RpcError::from).and_then(|wcs| {
            for wc in wcs {
                let wc = wc.map_err(|e| RpcError::Completion(e.status()))?;
                #[expect(clippy::cast_possible_truncation, reason = "a slot's number")]
                let slot = wc.wr_id() as u32;
                let Some(pending) = pending.get_mut(slot as usize) else {
                    continue;
                };
                came += 1;
                if let Some(found) = self.arrived(pending, slot, trouble, &mut bytes)? {
                    done(pending, slot, found);
                }
            }
            Ok(())
        });
        (self.completions, self.bytes) = (completions, bytes);
        result?;
        // Second READs leave at once: nobody may come by for a while.
        self.flush()?;
        Ok(came)
    }

    /// What a slot has READ is there: what it is, or nothing if there is more to READ.
    #[inline]
    fn arrived<'b>(
        &mut self,
        pending: &Pending,
        slot: u32,
        trouble: &mut Trouble,
        bytes: &'b mut [u8],
    ) -> Result<Option<Found<'b>>, RpcError> {
        let room = self.room;
        let get = &mut self.gets[slot as usize];
        let length = if get.bytes == 0 {
            BUCKET_BYTES
        } else {
            get.bytes
        };
        let bytes = &mut bytes[..length];
        self.buffers.read_at(slot as usize * room, bytes)?;
        if get.bytes == 0 {
            get.candidates = Candidates::of(bytes, get.hash);
            get.buckets += 1;
            return Ok(self.next(pending, slot));
        }
        let key = wire::key_of(&pending.bytes).unwrap_or_default();
        match item(bytes, key, self.seed) {
            Seen::Item { expires: true, .. } => Ok(Some(Found::Ask)),
            Seen::Item { version, value, .. } => Ok(Some(Found::Value { version, value })),
            Seen::Other => Ok(self.next(pending, slot)),
            Seen::Longer(whole) if whole <= room && whole > length => {
                get.bytes = whole;
                if self.item_ends_outside(slot, pending.lane) {
                    return Ok(self.again(pending, slot, trouble));
                }
                self.read(slot, pending.lane);
                Ok(None)
            }
            Seen::Longer(_) => Ok(Some(Found::Ask)),
            Seen::Torn => Ok(self.again(pending, slot, trouble)),
        }
    }

    fn item_ends_outside(&self, slot: u32, lane: usize) -> bool {
        let get = &self.gets[slot as usize];
        let left = self.partitions[lane].log.len.saturating_sub(get.item);
        get.bytes as u64 > left
    }

    /// An item was torn: looks for it anew, from its bucket on.
    #[cold]
    fn again<'b>(
        &mut self,
        pending: &Pending,
        slot: u32,
        trouble: &mut Trouble,
    ) -> Option<Found<'b>> {
        trouble.torn += 1;
        let get = &mut self.gets[slot as usize];
        if get.torn == MOST_TORN {
            return Some(Found::Ask);
        }
        let (hash, torn) = (get.hash, get.torn + 1);
        self.begin(slot, pending.lane, hash);
        self.gets[slot as usize].torn = torn;
        None
    }

    /// READs the next item that may be the one, or the next bucket.
    #[inline]
    fn next<'b>(&mut self, pending: &Pending, slot: u32) -> Option<Found<'b>> {
        let Partition { buckets, log, .. } = self.partitions[pending.lane];
        let get = &mut self.gets[slot as usize];
        while let Some(at) = get.candidates.take() {
            let left = log.len.saturating_sub(at);
            if left >= 8 {
                get.item = at;
                get.bytes =
                    usize::try_from(left).map_or(self.item_bytes, |l| l.min(self.item_bytes));
                self.read(slot, pending.lane);
                return None;
            }
        }
        if !get.candidates.goes_on || get.buckets == MOST_BUCKETS {
            return Some(Found::Ask);
        }
        get.bucket = (get.bucket + 1) % buckets;
        get.bytes = 0;
        self.read(slot, pending.lane);
        None
    }
}
