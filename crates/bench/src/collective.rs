//! Collectives over a ring: measures their time and checks their results. The same code measures
//! threads over a real-time NIC and, in [`simulated::collective`](crate::simulated::collective),
//! machines in virtual time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use collective::{Config, DataType, Reduction, Ring, connect_local_ring};
use serde::Serialize;
use verbs::{Access, Context, MemoryRegion, ProtectionDomain};

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// Every rank gets the reduction of all ranks' buffers.
    AllReduce,
    /// Every rank gets every rank's block.
    AllGather,
    /// Each rank gets the reduction of its own block.
    ReduceScatter,
    /// Every rank gets the buffer of rank 0.
    Broadcast,
    /// Each rank sends its buffer to the next rank.
    SendRecv,
}

impl Collective {
    /// Returns the ratio of bus bandwidth to algorithm bandwidth, as nccl-tests defines it: the
    /// bytes that a link carries for each byte of the buffer.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // 64 ranks at most
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let n = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (n - 1.0) / n,
            Self::AllGather | Self::ReduceScatter => (n - 1.0) / n,
            Self::Broadcast | Self::SendRecv => 1.0,
        }
    }

    /// Returns true if each step moves one block of the buffer, false if it moves the whole buffer.
    #[must_use]
    pub fn is_blockwise(self) -> bool {
        !matches!(self, Self::Broadcast | Self::SendRecv)
    }
}

/// Parameters of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CollectiveParameters {
    /// Collective that runs.
    pub collective: Collective,
    /// Number of ranks, 2 or more.
    pub ranks: usize,
    /// Bytes of a rank's buffer; its elements are `f32`, and reductions sum them.
    #[serde(rename = "bytes")]
    pub buffer_bytes: usize,
    /// Times that the collective runs in one measurement.
    pub iterations: usize,
    /// Queue pairs per connection.
    #[serde(rename = "lanes")]
    pub qps_per_connection: usize,
    /// Maximum bytes of a slice.
    pub slice_bytes: usize,
}

/// Result of a measurement.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CollectiveResult {
    /// Time of one collective on the slowest rank, in ns.
    #[serde(rename = "time_ns")]
    pub slowest_rank_time_ns: f64,
    /// Bytes of the buffer divided by that time, in 10^9 bytes per second.
    pub algorithm_gb_s: f64,
    /// Bytes that each link carries divided by that time, in 10^9 bytes per second.
    pub bus_gb_s: f64,
    /// True if all results before and after the measurement were right.
    #[serde(rename = "verified")]
    pub are_results_right: bool,
}

/// Measurement of one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankMeasurement {
    duration: Duration,
    are_results_right: bool,
}

/// Combines the measurements of all ranks into the outcome.
pub(crate) fn combine_ranks(
    setup: &CollectiveParameters,
    ranks: &[RankMeasurement],
) -> Result<CollectiveResult> {
    let slowest = ranks.iter().map(|rank| rank.duration).max();
    let slowest = slowest.context("there are no ranks")?;
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let (time_ns, bytes) = (
        slowest.as_nanos() as f64 / setup.iterations as f64,
        setup.buffer_bytes as f64,
    );
    let algorithm_gb_s = bytes / time_ns.max(1.0);
    Ok(CollectiveResult {
        slowest_rank_time_ns: time_ns,
        algorithm_gb_s,
        bus_gb_s: algorithm_gb_s * setup.collective.bus_factor(setup.ranks),
        are_results_right: ranks.iter().all(|rank| rank.are_results_right),
    })
}

/// Runs one rank: a checked run, the measured runs, and another checked run.
pub(crate) fn run_rank(
    ring: &mut Ring,
    pd: &ProtectionDomain,
    setup: &CollectiveParameters,
) -> Result<RankMeasurement> {
    let len = setup.buffer_bytes.max(4);
    let (buffer, other) = (pd.alloc(len, Access::ALL)?, pd.alloc(len, Access::ALL)?);
    let mut verified = run_once_and_verify(ring, &buffer, &other, setup)?;
    let begun = verbs::time::now();
    for _ in 0..setup.iterations {
        run_once(ring, &buffer, &other, setup)?;
    }
    let took = verbs::time::now() - begun;
    verified &= run_once_and_verify(ring, &buffer, &other, setup)?;
    Ok(RankMeasurement {
        duration: took,
        are_results_right: verified,
    })
}

fn run_once(
    ring: &mut Ring,
    buffer: &MemoryRegion,
    other: &MemoryRegion,
    setup: &CollectiveParameters,
) -> Result<(), collective::Error> {
    let count = setup.buffer_bytes / 4;
    let (data, op) = (DataType::F32, Reduction::Sum);
    match setup.collective {
        Collective::AllReduce => ring.all_reduce(buffer, count, data, op),
        Collective::AllGather => ring.all_gather(buffer, count, data),
        Collective::ReduceScatter => ring.reduce_scatter(buffer, count, data, op),
        Collective::Broadcast => ring.broadcast(buffer, setup.buffer_bytes, 0),
        Collective::SendRecv => ring.send_to_next_and_recv_from_previous(
            (buffer, setup.buffer_bytes),
            (other, setup.buffer_bytes),
        ),
    }
}

/// Returns an element of a rank's buffer. Values are small, so that sums of `f32` are exact.
fn initial_element(rank: usize, at: usize) -> f32 {
    #[allow(clippy::cast_precision_loss)] // below 64
    let value = ((at * 7 + rank * 5) % 61) as f32;
    value
}

/// Fills the buffers, runs the collective once, and returns true if the result is right.
fn run_once_and_verify(
    ring: &mut Ring,
    buffer: &MemoryRegion,
    other: &MemoryRegion,
    setup: &CollectiveParameters,
) -> Result<bool> {
    let (rank, ranks) = (ring.rank(), ring.rank_count());
    let count = setup.buffer_bytes / 4;
    let own: Vec<u8> = (0..count)
        .flat_map(|at| initial_element(rank, at).to_ne_bytes())
        .collect();
    buffer.write_at(0, &own)?;
    run_once(ring, buffer, other, setup)?;
    let result = if setup.collective == Collective::SendRecv {
        other
    } else {
        buffer
    };
    let mut bytes = own;
    result.read_at(0, &mut bytes)?;
    let (words, _) = bytes.as_chunks::<4>();
    let sum = |at| {
        (0..ranks)
            .map(|rank| initial_element(rank, at))
            .sum::<f32>()
    };
    let block = ring.element_range(count, rank);
    let owners = (0..ranks).flat_map(|rank| ring.element_range(count, rank).map(move |_| rank));
    Ok(words
        .iter()
        .zip(owners)
        .enumerate()
        .all(|(at, (word, owner))| {
            let expected = match setup.collective {
                Collective::AllReduce => sum(at),
                Collective::ReduceScatter if block.contains(&at) => sum(at),
                Collective::ReduceScatter => return true,
                Collective::AllGather => initial_element(owner, at),
                Collective::Broadcast => initial_element(0, at),
                Collective::SendRecv => initial_element((rank + ranks - 1) % ranks, at),
            };
            f32::from_ne_bytes(*word) == expected
        }))
}

/// Runs the measurement in real time, with a thread for each rank, over one device.
///
/// # Errors
/// When a verb or a rank fails.
pub fn run(
    context: &Context,
    config: &Config,
    setup: &CollectiveParameters,
) -> Result<CollectiveResult> {
    if setup.ranks < 2 {
        bail!("a ring has 2 ranks or more");
    }
    let domains = (0..setup.ranks).map(|_| context.alloc_pd());
    let domains = domains.collect::<Result<Vec<_>, _>>()?;
    let config = Config {
        lane_count: setup.qps_per_connection,
        ..*config
    };
    let rings = connect_local_ring(&domains, &config, setup.slice_bytes)?;
    let measured = std::thread::scope(|scope| {
        let ranks = rings.into_iter().zip(&domains);
        let threads =
            ranks.map(|(mut ring, pd)| scope.spawn(move || run_rank(&mut ring, pd, setup)));
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| {
            let ended = thread.join();
            ended.unwrap_or_else(|_| bail!("a rank panicked"))
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    combine_ranks(setup, &measured)
}

/// Returns the rate of `memcpy` of `bytes` bytes on one core, in 10^9 bytes per second. The best of
/// several runs counts.
#[must_use]
pub fn best_memcpy_gb_s(bytes: usize) -> f64 {
    let from = vec![1u8; bytes.max(1)];
    let mut to = vec![0u8; bytes.max(1)];
    let runs = (64 << 20) / bytes.max(1 << 16) + 2;
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        let begun = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        #[allow(clippy::cast_precision_loss)] // far below 2^52
        let took = begun.elapsed().as_nanos() as f64;
        best = best.min(took.max(1.0));
    }
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let rate = bytes as f64 / best;
    rate
}
