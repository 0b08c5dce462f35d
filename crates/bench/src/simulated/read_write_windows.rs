//! Windows of READs or WRITEs from all cores of a machine, as in Figure 13 of the paper. Each core
//! posts a window to its own peer machine, waits until all of it is done, and begins the next
//! window.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use nicmodel::{Profile, Verb};
use serde::Serialize;
use verbs::{Access, Inline, MrSlice, Postlist, QueuePair, RemoteMemory, Waiter, WcBuffer};

use super::SimulatedCluster;

/// Bytes of each READ or WRITE.
const PAYLOAD_BYTES: usize = 8;

/// Maximum time per READ or WRITE with many outstanding, all cores together.
const MAX_TIME_PER_OPERATION: Duration = Duration::from_nanos(20);

/// Parameters of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowParameters {
    /// READs or WRITEs, both over RC.
    pub verb: Verb,
    /// Number of operations that a core posts before it waits for them.
    pub window: usize,
    /// Virtual time that is measured, after a warm-up of the same length. Both are longer if they
    /// would cover too few windows.
    #[serde(rename = "time")]
    pub measured_time: Duration,
}

/// Result of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowResult {
    /// READs or WRITEs of all cores, in 10^6 per second.
    pub rate_mops: f64,
    /// WQEs that the NIC had to fetch again, in 10^6 per second.
    pub wqe_cache_misses_mops: f64,
}

/// A core of the measured machine.
struct MeasuredCore {
    qp: QueuePair<verbs::Rc>,
    postlist: Postlist<verbs::Rc>,
    local_slice: MrSlice,
    remote_memory: RemoteMemory,
    setup: WindowParameters,
}

impl MeasuredCore {
    fn run(mut self, over: &Cell<bool>) -> Result<()> {
        let mut buffer = WcBuffer::<16>::new();
        let mut waiter = Waiter::never_sleeping();
        while !over.get() {
            for i in 1..=self.setup.window {
                self.postlist.clear();
                let wr = if self.setup.verb == Verb::RdmaRead {
                    self.postlist
                        .rdma_read(self.local_slice, self.remote_memory)
                } else {
                    self.postlist
                        .rdma_write(Inline(&[0; PAYLOAD_BYTES]), self.remote_memory)
                };
                if i == self.setup.window {
                    wr.signaled();
                }
                self.qp.post_send(&mut self.postlist)?;
            }
            // Operations complete in order, so the last completion covers all.
            loop {
                let mut came = self.qp.send_cq().poll(&mut buffer)?;
                match came.next() {
                    Some(Ok(_)) => break,
                    Some(Err(failed)) => bail!("{failed}"),
                    None => waiter.idle(),
                }
            }
        }
        Ok(())
    }
}

/// Runs the experiment.
///
/// # Errors
/// When the profile lacks what a simulation needs, or a verb fails.
pub fn run(profile: &Profile, setup: &WindowParameters) -> Result<WindowResult> {
    let cores = profile.host.cores.value as usize;
    let cluster = SimulatedCluster::new(profile, 1 + cores, 1)?;
    let over = Rc::new(Cell::new(false));
    let failure: Rc<RefCell<Option<anyhow::Error>>> = Rc::default();
    let pd = cluster.host_contexts[0].alloc_pd()?;
    let depth = u32::try_from(setup.window + 1)?;
    let mut others = Vec::new();
    for (i, there) in cluster.host_contexts.iter().enumerate().skip(1) {
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let there_pd = there.alloc_pd()?;
        let memory = there_pd.alloc(PAYLOAD_BYTES, access)?;
        let (cq, there_cq) = (
            cluster.host_contexts[0].create_cq(depth)?,
            there.create_cq(1)?,
        );
        let qp = pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let qp = qp.max_send_wr(depth).max_recv_wr(1);
        let qp = qp
            .max_inline_data_if_supported(u32::try_from(PAYLOAD_BYTES)?)
            .build()?;
        let peer = there_pd.qp_builder::<verbs::Rc>(&there_cq, &there_cq);
        let peer = peer.max_recv_wr(1).access(access).build()?;
        let (to, from) = (peer.endpoint(), qp.endpoint());
        let results = pd.alloc(PAYLOAD_BYTES, Access::LOCAL_WRITE)?;
        let qp = qp.connect(&to)?;
        others.push(peer.connect(&from)?);
        let core = MeasuredCore {
            postlist: qp.postlist(1),
            qp,
            local_slice: results.slice(0..PAYLOAD_BYTES)?,
            remote_memory: memory.remote(),
            setup: *setup,
        };
        let (over, failure) = (Rc::clone(&over), Rc::clone(&failure));
        cluster.spawn(0, format!("core {i}"), move || {
            if let Err(error) = core.run(&over) {
                failure.replace(Some(error));
            }
            drop((results, memory));
        });
    }
    // A window leaves in a burst and completes in a burst. The measured time must cover many
    // windows, and the sent messages are counted.
    let windows = u32::try_from(8 * cores * setup.window)?;
    let time = setup.measured_time.max(MAX_TIME_PER_OPERATION * windows);
    let counters = || {
        cluster
            .simulation
            .nic_counters(cluster.simulation.host_of_machine(0))
    };
    cluster.advance_time(time);
    let before = counters();
    cluster.advance_time(time);
    let after = counters();
    over.set(true);
    cluster.run_until_threads_end()?;
    if let Some(error) = failure.take() {
        return Err(error);
    }
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let rate = |count: u64| count as f64 / time.as_secs_f64() * 1e-6;
    Ok(WindowResult {
        rate_mops: rate(after.sent_messages - before.sent_messages),
        wqe_cache_misses_mops: rate(after.wqe_cache_misses - before.wqe_cache_misses),
    })
}

#[cfg(test)]
mod tests {
    use nicmodel::profile::builtin_profile;

    use super::*;

    /// As in the paper: WRITEs never miss. READs miss when more are outstanding than in the best
    /// window.
    #[test]
    fn reads_miss_behind_the_best_window_and_writes_never() {
        let cib = builtin_profile("cib").expect("built in");
        let of = |verb, window| {
            let time = Duration::from_micros(200);
            run(
                cib,
                &WindowParameters {
                    verb,
                    window,
                    measured_time: time,
                },
            )
            .expect("it runs")
        };
        assert_eq!(of(Verb::RdmaRead, 64).wqe_cache_misses_mops, 0.0);
        assert!(of(Verb::RdmaRead, 1024).wqe_cache_misses_mops > 1.0);
        assert_eq!(of(Verb::RdmaWrite, 1024).wqe_cache_misses_mops, 0.0);
        assert!(of(Verb::RdmaRead, 64).rate_mops > 3.0 * of(Verb::RdmaRead, 1).rate_mops);
    }

    /// Section 5.3.2: READs are faster with larger windows, up to the best window. Beyond it, WQEs
    /// that no longer fit the cache cost more than the window gains.
    #[test]
    fn the_rate_of_reads_rises_up_to_the_best_window_and_falls_behind_it() {
        for nic in ["cib", "cx3"] {
            let profile = builtin_profile(nic).expect("built in");
            let best = profile.cache.read_window.as_ref().expect("published").value as usize;
            let of = |window| {
                let time = Duration::from_micros(200);
                let verb = Verb::RdmaRead;
                run(
                    profile,
                    &WindowParameters {
                        verb,
                        window,
                        measured_time: time,
                    },
                )
                .expect("it runs")
            };
            let windows = [best / 4, best / 2, best, 2 * best, 4 * best];
            let [least, less, most, more, many] = windows.map(of);
            assert!(
                least.rate_mops < less.rate_mops && less.rate_mops < most.rate_mops,
                "{nic}: {least:?} {less:?} {most:?}"
            );
            assert!(
                most.rate_mops > 1.1 * more.rate_mops && more.rate_mops > 0.9 * many.rate_mops,
                "{nic}: {most:?} {more:?} {many:?}"
            );
            assert_eq!(most.wqe_cache_misses_mops, 0.0, "{nic}");
            assert!(more.wqe_cache_misses_mops > 1.0, "{nic}: {more:?}");
        }
    }
}
