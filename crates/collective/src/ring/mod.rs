//! Collectives over a ring of ranks: each sends to the next and receives from the one before.
//!
//! A buffer of `n` ranks has `n` blocks, as equal as possible in elements. In step `s` of a reduction rank `r` sends
//! block `r - s - 1` and reduces block `r - s - 2` that comes, all modulo `n`; after `n - 1` steps it has the result of
//! block `r`. In as many more steps the results go around. Blocks travel in slices, so that a slice is reduced while
//! the next comes.

mod call;
mod element;
mod half_precision;
mod slice_forwarding;

use std::ops::Range;
use std::time::Duration;

use verbs::{Access, MemoryRegion, ProtectionDomain};

use crate::comm::{Receiver, Sender};
use crate::config::Config;
use crate::error::Error;
use crate::unconnected_ends::connected_pair;
pub(crate) use call::CollectiveCall;
pub(crate) use element::reduce_bytes;
pub use element::{DataType, Reduction};
use slice_forwarding::{CollectivePlan, MAX_SLICES_IN_FLIGHT, RingNeighbours, SliceDestination};

/// Blocks are cut into so many slices at least, unless these would be shorter than [`MIN_SLICE_BYTES`]: one is under
/// way while the next is made ready.
const MIN_SLICES_PER_BLOCK: usize = 4;
/// Bytes of a slice below which another message costs more than waiting.
const MIN_SLICE_BYTES: usize = 8 << 10;

/// The bytes of a slice of a block of so many bytes, where no slice may have more than `most`; a multiple of 8. All
/// ranks cut alike.
pub fn slice_bytes_for_block(block_bytes: usize, most: usize) -> usize {
    let short = block_bytes
        .div_ceil(MIN_SLICES_PER_BLOCK)
        .max(MIN_SLICE_BYTES);
    short.next_multiple_of(8).min(most.max(8))
}

/// One rank of a ring. Every rank calls the same collectives with as many elements, in the same order.
///
/// ```
/// use collective::{Config, DataType, Reduction, connect_local_ring};
/// use verbs::Access;
///
/// let context = verbs::Provider::softnic().device(None)?.open()?;
/// let domains = [context.alloc_pd()?, context.alloc_pd()?, context.alloc_pd()?];
/// let ranks = connect_local_ring(&domains, &Config::default(), 64 << 10)?; // here threads; usually processes or hosts
/// let threads = ranks.into_iter().zip(domains).map(|(mut ring, pd)| {
///     std::thread::spawn(move || {
///         let buffer = pd.alloc(8, Access::ALL).expect("memory");
///         let mine = 10 + ring.rank() as i64;
///         buffer.write_at(0, &mine.to_ne_bytes()).expect("inside");
///         ring.all_reduce(&buffer, 1, DataType::I64, Reduction::Sum).expect("all ranks call it");
///         buffer.read_u64(0).expect("inside")
///     })
/// });
/// let results: Vec<u64> = threads.collect::<Vec<_>>().into_iter().map(|t| t.join().expect("no panic")).collect();
/// assert_eq!(results, [33, 33, 33]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Ring {
    rank: usize,
    rank_count: usize,
    neighbors: RingNeighbours,
}

impl Ring {
    /// A rank with its connections: `sender` leads to rank `rank + 1`, `receiver` comes from rank `rank - 1`.
    /// `slice_bytes`, a multiple of 8 and the same for all ranks, is how much of a block travels at a time, at most:
    /// see [`slice_bytes_for_block`].
    ///
    /// # Errors
    /// There is no memory for slices.
    pub fn new(
        pd: &ProtectionDomain,
        (rank, ranks): (usize, usize),
        (sender, receiver): (Sender, Receiver),
        slice_bytes: usize,
    ) -> Result<Self, Error> {
        let slice_bytes = slice_bytes.next_multiple_of(8).max(8);
        let scratch = pd.alloc(
            MAX_SLICES_IN_FLIGHT * slice_bytes,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        )?;
        Ok(Self {
            rank,
            rank_count: ranks,
            neighbors: RingNeighbours {
                sender,
                receiver,
                reduce_scratch: scratch,
                max_slice_bytes: slice_bytes,
                timeout: Duration::from_secs(30),
            },
        })
    }

    /// Returns this ring with another timeout of its collectives. The default is 30 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.neighbors.timeout = timeout;
        self
    }

    /// Returns the number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn rank_count(&self) -> usize {
        self.rank_count
    }

    /// The elements of a block: what rank `block` gets from [`reduce_scatter`](Self::reduce_scatter).
    pub fn element_range(&self, count: usize, block: usize) -> Range<usize> {
        let start =
            |block: usize| count / self.rank_count * block + (count % self.rank_count).min(block);
        start(block)..start(block + 1)
    }

    /// Every rank gets the reduction of all ranks' `count` elements, which are at the start of `buffer`.
    ///
    /// # Errors
    /// The errors of the connections; a rank that fails breaks the ring.
    pub fn all_reduce(
        &mut self,
        buffer: &MemoryRegion,
        count: usize,
        data: DataType,
        op: Reduction,
    ) -> Result<(), Error> {
        let last = 2 * (self.rank_count - 1);
        let call = CollectiveCall::AllReduce(data, op);
        self.run_steps(call, (buffer, count), (data, op), 0..last)
    }

    /// Rank `r` gets the reduction of block `r` of all ranks, in its place. Other blocks hold nothing of use
    /// afterwards.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter(
        &mut self,
        buffer: &MemoryRegion,
        count: usize,
        data: DataType,
        op: Reduction,
    ) -> Result<(), Error> {
        let last = self.rank_count - 1;
        let call = CollectiveCall::ReduceScatter(data, op);
        self.run_steps(call, (buffer, count), (data, op), 0..last)
    }

    /// Every rank gets block `r` of rank `r`, in its place.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn all_gather(
        &mut self,
        buffer: &MemoryRegion,
        count: usize,
        data: DataType,
    ) -> Result<(), Error> {
        let steps = self.rank_count - 1..2 * (self.rank_count - 1);
        let call = CollectiveCall::AllGather;
        self.run_steps(call, (buffer, count), (data, Reduction::Sum), steps)
    }

    /// Every rank gets the first `bytes` bytes of rank `root`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn broadcast(
        &mut self,
        buffer: &MemoryRegion,
        bytes: usize,
        root: usize,
    ) -> Result<(), Error> {
        let from_root = (self.rank + self.rank_count - root % self.rank_count) % self.rank_count;
        let slice_bytes = slice_bytes_for_block(bytes, self.neighbors.max_slice_bytes);
        let slices = bytes.div_ceil(slice_bytes);
        let cut = move |i: usize| i * slice_bytes..((i + 1) * slice_bytes).min(bytes);
        self.neighbors.run(&CollectivePlan {
            call: CollectiveCall::Broadcast,
            source: buffer,
            destination: buffer,
            data_type: DataType::I64,
            op: Reduction::Sum,
            slices_to_receive: if from_root > 0 { slices } else { 0 },
            slices_to_send: if from_root + 1 < self.rank_count {
                slices
            } else {
                0
            },
            incoming_slice_destination: &|i| SliceDestination::BufferAfterSends(cut(i), 0),
            outgoing_range_and_needed_receives: &|i| {
                (cut(i), if from_root > 0 { i + 1 } else { 0 })
            },
        })
    }

    /// Sends the first `send` bytes of a buffer to the next rank, while the rank before sends to the first `recv` bytes
    /// of another one. Either may be 0: then the neighbour's is 0, too.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn send_to_next_and_recv_from_previous(
        &mut self,
        (from, send): (&MemoryRegion, usize),
        (into, recv): (&MemoryRegion, usize),
    ) -> Result<(), Error> {
        let most = self.neighbors.max_slice_bytes;
        let cut = move |i: usize, bytes: usize| {
            let slice = slice_bytes_for_block(bytes, most);
            i * slice..((i + 1) * slice).min(bytes)
        };
        let slices = |bytes: usize| bytes.div_ceil(slice_bytes_for_block(bytes, most));
        let (sends, recvs) = (slices(send), slices(recv));
        self.neighbors.run(&CollectivePlan {
            call: CollectiveCall::SendToNext,
            source: from,
            destination: into,
            data_type: DataType::I64,
            op: Reduction::Sum,
            slices_to_receive: recvs,
            slices_to_send: sends,
            incoming_slice_destination: &|i| SliceDestination::BufferAfterSends(cut(i, recv), 0),
            outgoing_range_and_needed_receives: &|i| (cut(i, send), 0),
        })
    }

    /// Runs steps of the ring over blocks: the first `ranks - 1` reduce, the others gather.
    fn run_steps(
        &mut self,
        call: CollectiveCall,
        (buffer, count): (&MemoryRegion, usize),
        (data, op): (DataType, Reduction),
        steps: Range<usize>,
    ) -> Result<(), Error> {
        let (n, rank, element) = (self.rank_count, self.rank, data.element_bytes());
        if count
            .checked_mul(element)
            .is_none_or(|bytes| bytes > buffer.len())
        {
            return Err(Error::InvalidRange(format!(
                "{count} elements of {element} bytes are more than the buffer's {} bytes",
                buffer.len()
            )));
        }
        let longest = self.element_range(count, 0).len();
        let per_slice =
            slice_bytes_for_block(longest * element, self.neighbors.max_slice_bytes) / element;
        let slices = longest.div_ceil(per_slice);
        let blocks: Vec<Range<usize>> = (0..n)
            .map(|block| self.element_range(count, block))
            .collect();
        let bytes = |block: usize, slice: usize| {
            let Range { start, end } = blocks[block % n];
            let at = |slice: usize| element * (start + slice * per_slice).min(end);
            at(slice)..at(slice + 1)
        };
        let total = steps.len() * slices;
        let at = |i: usize| (steps.start + i / slices, i % slices);
        self.neighbors.run(&CollectivePlan {
            call,
            source: buffer,
            destination: buffer,
            data_type: data,
            op,
            slices_to_receive: total,
            slices_to_send: total,
            incoming_slice_destination: &|i| {
                let (step, slice) = at(i);
                let range = bytes(rank + 2 * n - step - 2, slice);
                if step < n - 1 {
                    return SliceDestination::ReduceIntoBuffer(range);
                }
                // The block was sent in this earlier step.
                let sent = (step + 1 - n).checked_sub(steps.start);
                SliceDestination::BufferAfterSends(
                    range,
                    sent.map_or(0, |step| step * slices + slice + 1),
                )
            },
            outgoing_range_and_needed_receives: &|i| {
                let (step, slice) = at(i);
                // What is sent is what came in the step before.
                let needs = (i + 1).saturating_sub(slices);
                (bytes(rank + 2 * n - step - 1, slice), needs)
            },
        })
    }
}

/// Ranks in one process, connected in a ring: rank `i` has its buffers in domain `i`.
///
/// # Errors
/// A verb failed.
pub fn connect_local_ring(
    domains: &[ProtectionDomain],
    config: &Config,
    slice_bytes: usize,
) -> Result<Vec<Ring>, Error> {
    let ranks = domains.len();
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for (rank, from) in domains.iter().enumerate() {
        let (sender, receiver) = connected_pair(from, &domains[(rank + 1) % ranks], config)?;
        senders.push(sender);
        receivers.push(receiver);
    }
    receivers.rotate_right(1);
    let ends = senders.into_iter().zip(receivers).zip(domains).enumerate();
    ends.map(|(rank, (ends, pd))| Ring::new(pd, (rank, ranks), ends, slice_bytes))
        .collect()
}
