//! Collectives of processes on memory that is not registered.
//!
//! Bytes go through registered memory of the group, a part at a time, which stays in the processor's cache. So the
//! caller's memory is never registered: no peer can write into it, even if a collective fails and the memory is freed.
//!
//! An all-reduce chooses its algorithm by size; the fewest messages one after the other win for short ones, the fewest
//! bytes for long ones:
//!
//! - At most [`MAX_RECURSIVE_DOUBLING_BYTES`]: recursive doubling, `log2(ranks)` messages of all bytes.
//! - At most [`MAX_RECURSIVE_HALVING_BYTES`], and 4, 8, 16… ranks: recursive halving, `2 * log2(ranks)` messages. They have as
//!   few bytes as those of the ring.
//! - Longer ones, and other numbers of ranks: the ring, `2 * (ranks - 1)` messages, which are pipelined.

mod connect;
mod forward_blocks;
mod messages;
mod pipelined_all_reduce;
mod recursive_all_reduce;
mod transfer;

use std::time::Duration;

use verbs::{Access, MemoryRegion, ProtectionDomain};

use crate::error::Error;
use crate::progress::{StepResult, run_to_completion};
use crate::ring::{CollectiveCall, DataType, Reduction, Ring};
pub use connect::PreparedGroup;
use forward_blocks::{BlockForwarding, BlockOrder};
pub use messages::{MessageMemory, RankMessenger};
use pipelined_all_reduce::PipelinedAllReduce;
use transfer::{RankLink, ReceiveProgress, SendProgress, link_to_rank};

/// Bytes up to which an all-reduce takes recursive doubling.
const MAX_RECURSIVE_DOUBLING_BYTES: usize = 32 << 10;
/// Bytes up to which an all-reduce of 4, 8, 16… ranks takes recursive halving.
const MAX_RECURSIVE_HALVING_BYTES: usize = 256 << 10;
/// Bytes of registered memory that a reduce-scatter goes through at a time.
const REDUCE_SCATTER_STAGING_BYTES: usize = 1 << 20;
/// Bytes of a slice of the ring, at most.
const MAX_RING_SLICE_BYTES: usize = 128 << 10;

/// One rank of a group of processes. All ranks call the same collectives in the same order with equal sizes.
///
/// After an error the group is of no use any more: drop it, so that other ranks fail as well instead of waiting.
///
/// ```
/// use std::{net::Ipv4Addr, time::Duration};
/// use collective::{Config, DataType, PreparedGroup, Reduction};
///
/// let pd = verbs::Provider::softnic().device(None)?.open()?.alloc_pd()?;
/// let prepare = |rank| PreparedGroup::new(&pd, &Config::default(), (rank, 2), Ipv4Addr::LOCALHOST.into());
/// let ranks = [prepare(0)?, prepare(1)?]; // here threads; usually processes or hosts
/// let addresses = ranks.each_ref().map(PreparedGroup::listener_handles_as_bytes);
/// let threads = ranks.map(|prepared| {
///     let addresses = addresses.clone();
///     std::thread::spawn(move || {
///         let (mut group, _) = prepared.connect(&addresses, Duration::from_secs(10)).expect("both are there");
///         let mut data = (3 + group.rank() as i32).to_ne_bytes();
///         group.all_reduce(&mut data, DataType::I32, Reduction::Sum).expect("both call it");
///         i32::from_ne_bytes(data)
///     })
/// });
/// assert_eq!(threads.map(|t| t.join().expect("no panic")), [7, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Group {
    ring: Ring,
    /// The other ranks; nothing in the place of this one.
    links: Vec<Option<RankLink>>,
    staging: MemoryRegion,
    timeout: Duration,
}

impl Group {
    fn new(
        pd: &ProtectionDomain,
        ring: Ring,
        links: Vec<Option<RankLink>>,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Ok(Self {
            ring,
            links,
            staging: pd.alloc(
                REDUCE_SCATTER_STAGING_BYTES,
                Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            )?,
            timeout,
        })
    }

    /// Returns the number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.ring.rank()
    }

    /// Returns the number of ranks.
    pub fn rank_count(&self) -> usize {
        self.ring.rank_count()
    }

    /// Every rank gets the reduction of all ranks' elements; the same bytes everywhere.
    ///
    /// # Errors
    /// The errors of the connections, including [`Error::Timeout`], and bytes that are not whole elements.
    pub fn all_reduce(
        &mut self,
        bytes: &mut [u8],
        data: DataType,
        op: Reduction,
    ) -> Result<(), Error> {
        check_whole_elements(bytes.len(), data)?;
        let place = (self.rank(), self.rank_count());
        let call = CollectiveCall::AllReduce(data, op);
        if bytes.len() <= MAX_RECURSIVE_DOUBLING_BYTES || place.1 == 1 {
            return self.all_reduce_by_recursive_doubling(call, bytes, (data, op));
        }
        if bytes.len() <= MAX_RECURSIVE_HALVING_BYTES && place.1 >= 4 && place.1.is_power_of_two() {
            return self.all_reduce_by_recursive_halving(call, bytes, (data, op));
        }
        PipelinedAllReduce::new(place, bytes, (data, op), &mut self.links).run(self.timeout)
    }

    /// Every rank gets the bytes of rank `root`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn broadcast(&mut self, bytes: &mut [u8], root: usize) -> Result<(), Error> {
        let place = (self.rank(), self.rank_count());
        if root >= place.1 {
            return Err(Error::InvalidRange(format!(
                "there is no rank {root}: the group has {} ranks",
                place.1
            )));
        }
        let order = BlockOrder::of_broadcast(place, root);
        BlockForwarding::new(place, &mut [bytes], order, &mut self.links).run(self.timeout)
    }

    /// Every rank gets each rank's `input`, in `outputs` by rank.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); an output has another size than the input.
    pub fn all_gather(&mut self, input: &[u8], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        self.check_buffer_count(outputs.len())?;
        check_equal_sizes(outputs.iter().map(|o| o.len()), input.len())?;
        let place = (self.rank(), self.rank_count());
        outputs[place.0].copy_from_slice(input);
        let order = BlockOrder::of_all_gather(place);
        BlockForwarding::new(place, outputs, order, &mut self.links).run(self.timeout)
    }

    /// Rank `r` gets the reduction of all ranks' `inputs[r]`.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce); an input has another size than the output.
    pub fn reduce_scatter(
        &mut self,
        inputs: &[&[u8]],
        output: &mut [u8],
        data: DataType,
        op: Reduction,
    ) -> Result<(), Error> {
        check_whole_elements(output.len(), data)?;
        self.check_buffer_count(inputs.len())?;
        check_equal_sizes(inputs.iter().map(|i| i.len()), output.len())?;
        let (rank, most, len) = (self.rank(), self.max_staged_block_bytes(), output.len());
        for start in (0..len).step_by(most) {
            let part = start..(start + most).min(len);
            for (to, input) in inputs.iter().enumerate() {
                self.staging
                    .write_at(to * part.len(), &input[part.clone()])?;
            }
            let count = inputs.len() * part.len() / data.element_bytes();
            self.ring.reduce_scatter(&self.staging, count, data, op)?;
            self.staging
                .read_at(rank * part.len(), &mut output[part.clone()])?;
        }
        Ok(())
    }

    /// Rank `r` gets `inputs[r]` of each rank, in `outputs` by rank. Sizes may differ; those of a pair of ranks must
    /// agree.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn all_to_all(&mut self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<(), Error> {
        let (rank, ranks) = (self.rank(), self.rank_count());
        self.check_buffer_count(inputs.len())?;
        self.check_buffer_count(outputs.len())?;
        check_equal_sizes(std::iter::once(inputs[rank].len()), outputs[rank].len())?;
        outputs[rank].copy_from_slice(inputs[rank]);
        for step in 1..ranks {
            let (to, from) = ((rank + step) % ranks, (rank + ranks - step) % ranks);
            self.exchange(
                CollectiveCall::AllToAll,
                Some((to, inputs[to])),
                Some((from, outputs[from])),
            )?;
        }
        Ok(())
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn barrier(&mut self) -> Result<(), Error> {
        let elements = (DataType::U8, Reduction::Max);
        self.all_reduce_by_recursive_doubling(CollectiveCall::Barrier, &mut [0], elements)
    }

    /// Bytes of a rank's block in the staging memory: whole elements of any type.
    fn max_staged_block_bytes(&self) -> usize {
        REDUCE_SCATTER_STAGING_BYTES / self.rank_count() / 8 * 8
    }

    /// Refuses buffers that are not one for each rank.
    fn check_buffer_count(&self, buffers: usize) -> Result<(), Error> {
        if buffers == self.rank_count() {
            return Ok(());
        }
        Err(Error::InvalidRange(format!(
            "{buffers} buffers for {} ranks: each rank needs one",
            self.rank_count()
        )))
    }

    /// Sends to a rank while it receives from the same or from another one.
    fn exchange(
        &mut self,
        call: CollectiveCall,
        send: Option<(usize, &[u8])>,
        mut recv: Option<(usize, &mut [u8])>,
    ) -> Result<(), Error> {
        let (mut outgoing, mut incoming) = (SendProgress::default(), ReceiveProgress::default());
        run_to_completion(self.timeout, || {
            let (mut moved, mut done) = (false, true);
            if let Some((from, bytes)) = &mut recv
                && !incoming.is_done(bytes.len())
            {
                moved |= incoming.step(link_to_rank(&mut self.links, *from)?, bytes, call.tag())?;
                done &= incoming.is_done(bytes.len());
            }
            if let Some((to, bytes)) = send
                && !outgoing.is_done(bytes.len())
            {
                let link = link_to_rank(&mut self.links, to)?;
                let sent = outgoing.step(link, bytes, call.tag())?;
                if !sent {
                    call.check_next_receive(&link.sender)?;
                }
                moved |= sent;
                done &= outgoing.is_done(bytes.len());
            }
            Ok(match (done, moved) {
                (true, _) => StepResult::Done,
                (false, true) => StepResult::Progress,
                (false, false) => StepResult::Blocked,
            })
        })
    }
}

/// Refuses bytes that are not whole elements.
fn check_whole_elements(bytes: usize, data: DataType) -> Result<(), Error> {
    if bytes.is_multiple_of(data.element_bytes()) {
        return Ok(());
    }
    Err(Error::InvalidRange(format!(
        "{bytes} bytes are not whole elements of {} bytes",
        data.element_bytes()
    )))
}

/// Refuses buffers that have not all the expected size.
fn check_equal_sizes(mut sizes: impl Iterator<Item = usize>, expected: usize) -> Result<(), Error> {
    match sizes.find(|size| *size != expected) {
        Some(size) => Err(Error::InvalidRange(format!(
            "a buffer of {size} bytes where {expected} bytes are needed"
        ))),
        None => Ok(()),
    }
}
