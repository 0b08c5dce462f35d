//! Collectives over a ring of simulated machines, one rank each, with the transport's own code.
//! Reductions take no virtual time, as if a GPU did them concurrently.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context as _, Result, bail};
use collective::{Config, connect_local_ring, slice_bytes_for_block};
use nicmodel::bounds::{Resource, Role};
use nicmodel::{Bounds, Mix, MixOperation, Operation, Profile, Transport, Verb};

use super::SimulatedCluster;
pub use crate::collective::{CollectiveParameters, CollectiveResult};
use crate::collective::{combine_ranks, run_rank};

/// Bytes of a clear-to-send entry.
const CLEAR_TO_SEND_BYTES: u32 = 40;

/// Runs the collective.
///
/// # Errors
/// When the profile lacks what a simulation needs, or a rank fails.
pub fn run(profile: &Profile, setup: &CollectiveParameters, seed: u64) -> Result<CollectiveResult> {
    if setup.ranks < 2 {
        bail!("a ring has 2 ranks or more");
    }
    let cluster = SimulatedCluster::new(profile, setup.ranks, seed)?;
    let domains = cluster.host_contexts.iter().map(verbs::Context::alloc_pd);
    let domains = domains.collect::<Result<Vec<_>, _>>()?;
    let config = Config {
        lane_count: setup.qps_per_connection,
        ..Config::default()
    };
    let rings = connect_local_ring(&domains, &config, setup.slice_bytes)?;
    let measured = Rc::new(RefCell::new(Vec::new()));
    for (index, (ring, pd)) in rings.into_iter().zip(domains).enumerate() {
        let (mut ring, setup, measured) = (Box::new(ring), *setup, Rc::clone(&measured));
        cluster.spawn(index, format!("rank {index}"), move || {
            let found = run_rank(&mut ring, &pd, &setup);
            measured.borrow_mut().push(found);
        });
    }
    cluster.run_until_threads_end()?;
    let measured = measured.take().into_iter().collect::<Result<Vec<_>>>()?;
    combine_ranks(setup, &measured)
}

/// Returns the bus bandwidth that the model allows, in 10^9 bytes per second, and its bottleneck.
/// Each machine posts and receives a WRITE of a slice with immediate, and a clear-to-send entry for
/// it. Latency is ignored.
///
/// # Errors
/// When the NIC does not support these verbs.
pub fn bus_bandwidth_bound(
    profile: &Profile,
    setup: &CollectiveParameters,
) -> Result<(f64, Resource)> {
    let block = if setup.collective.is_blockwise() {
        setup.buffer_bytes.div_ceil(setup.ranks)
    } else {
        setup.buffer_bytes
    };
    let slice = slice_bytes_for_block(block, setup.slice_bytes).min(block);
    let slice = u32::try_from(slice).context("slices below 4 GiB")?;
    let data = Operation::new(Verb::RdmaWrite, Transport::Rc, slice);
    let data = data.with_imm().with_signaled_fraction(1.0);
    let clear = Operation::new(Verb::RdmaWrite, Transport::Rc, CLEAR_TO_SEND_BYTES);
    let clear = clear.inlined().with_signaled_fraction(1.0 / 32.0);
    let both = [Role::Requester, Role::Responder];
    #[expect(clippy::cast_possible_truncation, reason = "16 at most")]
    let lanes = setup.qps_per_connection as u32;
    let loads = both.into_iter().flat_map(|role| {
        [data, clear].map(|operation| MixOperation::new(operation, role).on_queue_pairs(lanes))
    });
    let bounds = Bounds::of(profile, &Mix::new(loads.collect()).on_cores(1))?;
    let limit = bounds.bottleneck().context("nothing limits this NIC")?;
    let rate = bounds.rate_mops(limit).context("it has a rate")?;
    Ok((rate * 1e6 * f64::from(slice) / 1e9, limit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Collective;

    fn setup(collective: Collective, ranks: usize, bytes: usize) -> CollectiveParameters {
        CollectiveParameters {
            collective,
            ranks,
            buffer_bytes: bytes,
            iterations: 2,
            qps_per_connection: 1,
            slice_bytes: 64 << 10,
        }
    }

    #[test]
    fn large_buffers_come_near_the_bound_and_small_ones_take_as_many_latencies_as_there_are_steps()
    {
        let profile = nicmodel::profile::builtin_profile("cib").expect("there is one");
        let large = setup(Collective::AllReduce, 4, 4 << 20);
        let (bound, _) = bus_bandwidth_bound(profile, &large).expect("a bound");
        let ran = run(profile, &large, 1).expect("it runs");
        assert!(ran.are_results_right);
        assert!(
            ran.bus_gb_s > 0.5 * bound && ran.bus_gb_s < 1.02 * bound,
            "{} of {bound} GB/s",
            ran.bus_gb_s
        );
        let time = |ranks| {
            let ran = run(profile, &setup(Collective::AllReduce, ranks, 256), 1);
            ran.expect("it runs").slowest_rank_time_ns
        };
        // Apart from a constant time, each step takes one latency: 6, 14 and 30 steps.
        let [four, eight, sixteen] = [4, 8, 16].map(time);
        let (first, second) = ((eight - four) / 8.0, (sixteen - eight) / 16.0);
        assert!(
            (0.7..1.4).contains(&(first / second)) && (500.0..4000.0).contains(&second),
            "{first} and {second} ns a step: {four}, {eight}, {sixteen} ns"
        );
    }

    #[test]
    fn all_collectives_are_right_and_the_same_every_time() {
        let profile = nicmodel::profile::builtin_profile("cib").expect("there is one");
        use Collective::{AllGather, AllReduce, Broadcast, ReduceScatter, SendRecv};
        for collective in [AllReduce, AllGather, ReduceScatter, Broadcast, SendRecv] {
            let setup = setup(collective, 3, 10_000);
            let ran = [(); 2].map(|()| run(profile, &setup, 1).expect("it runs"));
            assert!(ran[0].are_results_right, "{collective:?}");
            assert!(
                (ran[0].slowest_rank_time_ns - ran[1].slowest_rank_time_ns).abs() < f64::EPSILON
            );
        }
    }
}
