//! The client's access to an index and a log in the server's memory: a GET is a READ of an index bucket and a READ of
//! an item.
//!
//! The client asks the server by RPC if READs cannot decide: for a key that was not found, or an item that expires (by
//! the server's clock). The same applies to an item that is longer than this client's buffers or changes all the time.

use rpc::RpcError;
use rpc::one_sided::{OneSidedQueue, PreparedOneSidedQueue, RequestSteps};
use verbs::{QpEndpoint, RemoteMemory};

use super::design::{ClientDesign, OneSidedOps, StepOutcome};
use super::request::{Answer, ClientStats, WindowSlot};
use crate::rendezvous;
use crate::store::client_reads::{
    BUCKET_BYTES, CandidatePositions, DecodedItem, decode_item, home_bucket_of,
};
use crate::wire;

/// Largest number of READs of torn items before the server is asked.
const MAX_TORN_READS: u8 = 16;
/// Largest number of buckets that are READ for a key.
const MAX_BUCKETS_PER_GET: u8 = 4;

/// A partition's memory.
#[derive(Debug, Clone, Copy)]
struct RemotePartition {
    index_memory: RemoteMemory,
    bucket_count: u64,
    log_memory: RemoteMemory,
}

/// The state of a slot's GET.
#[derive(Debug, Clone, Copy, Default)]
struct GetState {
    hash: u64,
    /// The bucket that was READ last, the number of buckets READ, and the candidates of the last one.
    last_bucket: u64,
    buckets_read: u8,
    candidates: CandidatePositions,
    /// Offset and bytes of the item that is being READ; if `bytes` is 0, a bucket is being READ.
    item_offset: u64,
    item_read_bytes: usize,
    torn_reads: u8,
}

#[derive(Debug)]
pub(super) struct RemoteIndexClientDesign {
    one_sided_qp: OneSidedQueue,
    partitions: Vec<RemotePartition>,
    first_item_read_bytes: usize,
    hash_seed: u64,
    get_states: Box<[GetState]>,
}

impl RemoteIndexClientDesign {
    /// Connects to an index and a log. The buffers have room for values of up to `value_bytes` bytes.
    pub(super) fn new(
        prepared: PreparedOneSidedQueue,
        peer: &QpEndpoint,
        (partitions, item_bytes): (&[rendezvous::RemoteIndexAndLog], usize),
        value_bytes: usize,
        seed: u64,
    ) -> Result<Self, RpcError> {
        let partition = |p: &rendezvous::RemoteIndexAndLog| {
            let buckets = p.index.len / BUCKET_BYTES as u64;
            (buckets > 0 && p.log.len >= 8).then_some(RemotePartition {
                index_memory: p.index,
                bucket_count: buckets,
                log_memory: p.log,
            })
        };
        let partitions = partitions.iter().map(partition).collect::<Option<_>>();
        let item = crate::store::item_bytes(crate::store::MAX_KEY_BYTES, value_bytes, true) + 8;
        let room = item.max(BUCKET_BYTES).next_multiple_of(64);
        Ok(Self {
            partitions: partitions
                .ok_or_else(|| RpcError::Config("the server's memory is too small".to_owned()))?,
            first_item_read_bytes: item_bytes.clamp(8, room),
            hash_seed: seed,
            get_states: vec![GetState::default(); prepared.window()].into(),
            one_sided_qp: prepared.connect(peer, room)?,
        })
    }

    /// Begins the lookup of a key with this hash.
    #[inline]
    fn begin_lookup(&mut self, slot: u32, lane: usize, hash: u64) {
        let Some(buckets) = self.partitions.get(lane).map(|p| p.bucket_count) else {
            return;
        };
        self.get_states[slot as usize] = GetState {
            hash,
            last_bucket: home_bucket_of(hash, buckets),
            ..GetState::default()
        };
        self.prepare_next_read(slot, lane);
    }

    /// Prepares the next READ of a slot.
    #[inline]
    fn prepare_next_read(&mut self, slot: u32, lane: usize) {
        let (get, partition) = (&self.get_states[slot as usize], &self.partitions[lane]);
        let (from, bytes) = match get.item_read_bytes {
            0 => (
                partition
                    .index_memory
                    .starting_at(get.last_bucket * BUCKET_BYTES as u64),
                BUCKET_BYTES,
            ),
            bytes => (partition.log_memory.starting_at(get.item_offset), bytes),
        };
        let prepared = self.one_sided_qp.prepare_read((slot, 0), bytes, from);
        self.one_sided_qp.record_error(prepared);
    }

    fn item_ends_outside_log(&self, slot: u32, lane: usize) -> bool {
        let get = &self.get_states[slot as usize];
        let left = self.partitions[lane]
            .log_memory
            .len
            .saturating_sub(get.item_offset);
        get.item_read_bytes as u64 > left
    }

    /// Restarts the lookup at the home bucket, because an item was torn.
    #[cold]
    fn restart_lookup_after_torn_item<'b>(
        &mut self,
        pending: &WindowSlot,
        slot: u32,
        stats: &mut ClientStats,
    ) -> Option<StepOutcome<'b>> {
        stats.torn_item_reads += 1;
        let get = &mut self.get_states[slot as usize];
        if get.torn_reads == MAX_TORN_READS {
            return Some(StepOutcome::AskServer);
        }
        let (hash, torn) = (get.hash, get.torn_reads + 1);
        self.begin_lookup(slot, pending.lane_index, hash);
        self.get_states[slot as usize].torn_reads = torn;
        None
    }

    /// READs the next candidate item, or the next bucket.
    #[inline]
    fn read_next_item_or_bucket<'b>(
        &mut self,
        pending: &WindowSlot,
        slot: u32,
    ) -> Option<StepOutcome<'b>> {
        let RemotePartition {
            bucket_count: buckets,
            log_memory: log,
            ..
        } = self.partitions[pending.lane_index];
        let get = &mut self.get_states[slot as usize];
        while let Some(at) = get.candidates.pop_item_offset() {
            let left = log.len.saturating_sub(at);
            if left >= 8 {
                get.item_offset = at;
                get.item_read_bytes = usize::try_from(left)
                    .map_or(self.first_item_read_bytes, |l| {
                        l.min(self.first_item_read_bytes)
                    });
                self.prepare_next_read(slot, pending.lane_index);
                return None;
            }
        }
        if !get.candidates.bucket_is_full || get.buckets_read == MAX_BUCKETS_PER_GET {
            return Some(StepOutcome::AskServer);
        }
        get.last_bucket = (get.last_bucket + 1) % buckets;
        get.item_read_bytes = 0;
        self.prepare_next_read(slot, pending.lane_index);
        None
    }
}

impl ClientDesign for RemoteIndexClientDesign {
    fn one_sided_ops(&self) -> OneSidedOps {
        OneSidedOps {
            includes_gets: true,
            includes_changes: false,
        }
    }

    #[inline]
    fn begin_one_sided_request(&mut self, pending: &WindowSlot, slot: u32, hash: u64) {
        self.begin_lookup(slot, pending.lane_index, hash);
    }

    fn poll(
        &mut self,
        all: &mut [WindowSlot],
        stats: &mut ClientStats,
        done: &mut dyn FnMut(&mut WindowSlot, u32, StepOutcome<'_>),
    ) -> Result<usize, RpcError> {
        self.post_and_poll(all, stats, done)
    }

    fn one_sided_doorbells(&self) -> u64 {
        self.one_sided_qp.posted_doorbells()
    }
}

impl RequestSteps for RemoteIndexClientDesign {
    type Pending = WindowSlot;
    type Stats = ClientStats;
    type FinishedResult<'b> = StepOutcome<'b>;

    #[inline]
    fn queue(&mut self) -> &mut OneSidedQueue {
        &mut self.one_sided_qp
    }

    #[inline]
    fn handle_completion<'b>(
        &mut self,
        pending: &WindowSlot,
        slot: u32,
        stats: &mut ClientStats,
        bytes: &'b mut [u8],
    ) -> Result<Option<StepOutcome<'b>>, RpcError> {
        let room = self.one_sided_qp.slot_bytes();
        let get = &mut self.get_states[slot as usize];
        let length = if get.item_read_bytes == 0 {
            BUCKET_BYTES
        } else {
            get.item_read_bytes
        };
        let bytes = &mut bytes[..length];
        self.one_sided_qp.read_buffer(slot, 0, bytes)?;
        if get.item_read_bytes == 0 {
            get.candidates = CandidatePositions::from_bucket(bytes, get.hash);
            get.buckets_read += 1;
            return Ok(self.read_next_item_or_bucket(pending, slot));
        }
        let key = wire::key_of_request(&pending.encoded_request).unwrap_or_default();
        match decode_item(bytes, key, self.hash_seed) {
            DecodedItem::Item { expires: true, .. } => Ok(Some(StepOutcome::AskServer)),
            DecodedItem::Item { version, value, .. } => {
                Ok(Some(StepOutcome::Answer(Answer::Value { value, version })))
            }
            DecodedItem::OtherKey => Ok(self.read_next_item_or_bucket(pending, slot)),
            DecodedItem::NeedsBytes(whole) if whole <= room && whole > length => {
                get.item_read_bytes = whole;
                if self.item_ends_outside_log(slot, pending.lane_index) {
                    return Ok(self.restart_lookup_after_torn_item(pending, slot, stats));
                }
                self.prepare_next_read(slot, pending.lane_index);
                Ok(None)
            }
            DecodedItem::NeedsBytes(_) => Ok(Some(StepOutcome::AskServer)),
            DecodedItem::Torn => Ok(self.restart_lookup_after_torn_item(pending, slot, stats)),
        }
    }
}
