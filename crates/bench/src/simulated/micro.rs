//! The microbenchmarks' own code on a simulated cluster: the measured machine, and a machine for
//! each process of the other side. Every thread has its own core.
//!
//! For SENDs and WRITEs, the rate is what the measured NIC has sent, or received, in the middle of
//! the stream. The number of posted or sent WRs would be larger. It includes all WRs in flight,
//! which are many if a link is the bottleneck.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, bail};
use nicmodel::profile::CorePlace;
use nicmodel::{PayloadDestination, Profile};
use simnic::{HostOrDpu, NicCounters};

use super::SimulatedCluster;
use crate::link::{CancellableBarrier, WorkerLink, root_cause};
use crate::micro::{self, MeasuredRole, MeasurementTask, SharedAtomicCounters, TaskResult};
use crate::open_nic::OpenNic;

/// Runs a task once, in virtual time.
///
/// # Errors
/// When the profile lacks what a simulation needs, or a verb fails.
pub fn run(profile: &Profile, task: &MeasurementTask) -> Result<TaskResult> {
    Ok(run_with_nic_counters(profile, task)?.0)
}

/// Runs a task once and also returns the counters of the measured NIC, from its first to its last
/// work request.
///
/// # Errors
/// As [`run`].
pub fn run_with_nic_counters(
    profile: &Profile,
    task: &MeasurementTask,
) -> Result<(TaskResult, NicCounters)> {
    run_with_payload_destination(profile, task, PayloadDestination::Regular)
}

/// Runs a task once, with the other side on the host or on the DPU of its machines.
///
/// # Errors
/// As [`run`], and when the NIC has no DPU.
pub fn run_toward_place(
    profile: &Profile,
    task: &MeasurementTask,
    other_side: CorePlace,
) -> Result<TaskResult> {
    Ok(run_on_simulated_cluster(profile, task, PayloadDestination::Regular, other_side)?.0)
}

/// Runs a task once, with RECVs that deliver payload in the given way.
///
/// # Errors
/// As [`run`].
pub fn run_with_payload_destination(
    profile: &Profile,
    task: &MeasurementTask,
    receive: PayloadDestination,
) -> Result<(TaskResult, NicCounters)> {
    run_on_simulated_cluster(profile, task, receive, CorePlace::Host)
}

/// One machine of a measurement: its cores, its NIC and the counters of atomics in its memory.
struct Machine {
    cores: HostOrDpu,
    nic: OpenNic,
    atomic_counters: SharedAtomicCounters,
}

/// The results of the threads of a measurement.
#[derive(Default)]
struct ThreadResults {
    /// Number of threads of the measured machine that have ended.
    ended_measured_threads: Cell<usize>,
    measured_results: RefCell<Vec<Result<TaskResult>>>,
    /// Failures of the other side.
    other_side_failures: RefCell<Vec<Error>>,
}

fn run_on_simulated_cluster(
    profile: &Profile,
    task: &MeasurementTask,
    receive: PayloadDestination,
    other_side: CorePlace,
) -> Result<(TaskResult, NicCounters)> {
    let (threads, processes) = match task {
        MeasurementTask::Stream(stream) => (stream.threads, stream.other_side_processes),
        MeasurementTask::PingPong(_) => (1, 1),
    };
    refuse_page_size(task)?;
    check_atomic_times(profile, task)?;
    let cluster = SimulatedCluster::new(profile, 1 + processes, 1)?;
    if receive == PayloadDestination::Inline {
        cluster.simulation.enable_inline_receive();
    }
    let machine = |index| {
        let place = if index == 0 {
            CorePlace::Host
        } else {
            other_side
        };
        let (context, cores) = cluster.context_and_machine(index, place)?;
        let nic = OpenNic::open_on_first_port(context)?;
        let target = SharedAtomicCounters::new(&nic, task)?;
        Ok(Rc::new(Machine {
            cores,
            nic,
            atomic_counters: target,
        }))
    };
    let machines = (0..=processes).map(machine).collect::<Result<Vec<_>>>()?;
    let gate = Arc::new(CancellableBarrier::new(threads));
    let outcomes = Rc::new(ThreadResults::default());
    for lane in 0..threads {
        let pair = [&machines[0], &machines[1 + lane % processes]];
        spawn_lane(&cluster, (lane, task), pair, &gate, &outcomes);
    }
    let counted = match task {
        MeasurementTask::Stream(stream) if is_rate_from_nic_counters(stream) => {
            nic_counted_mops(&cluster, stream, || {
                outcomes.ended_measured_threads.get() == threads
            })
        }
        _ => None,
    };
    let finished = cluster.run_until_threads_end();
    let result = outcomes.combine_thread_results(counted)?;
    finished?;
    for machine in &machines {
        micro::fail_if_wrong(machine.atomic_counters.describe_wrong_sum()?)?;
    }
    let counters = cluster
        .simulation
        .nic_counters(cluster.simulation.host_of_machine(0));
    Ok((result, counters))
}

/// Starts a thread of the measured machine, and its peer on the machine of the other side.
fn spawn_lane(
    cluster: &SimulatedCluster,
    (lane, task): (usize, &MeasurementTask),
    [measured, other]: [&Rc<Machine>; 2],
    gate: &Arc<CancellableBarrier>,
    outcomes: &Rc<ThreadResults>,
) {
    let (mut left, mut right) = WorkerLink::simulated_pair();
    left.set_thread_barrier(gate);
    let task = *task;
    let (own, told, gate) = (Rc::clone(measured), Rc::clone(outcomes), Arc::clone(gate));
    cluster.spawn(0, format!("measured thread {lane}"), move || {
        let measured = micro::run_measured_side(&mut left, &own.nic, &task, &own.atomic_counters);
        if let Err(error) = &measured {
            left.send_failure(error);
            gate.cancel();
        }
        told.measured_results.borrow_mut().push(measured);
        told.ended_measured_threads
            .set(told.ended_measured_threads.get() + 1);
    });
    let (own, told) = (Rc::clone(other), Rc::clone(outcomes));
    let name = format!("thread {lane} of the other side");
    cluster.simulation.spawn(other.cores, name, move || {
        if let Err(error) = micro::run_other_side(&mut right, &own.nic, &task, &own.atomic_counters)
        {
            right.send_failure(&error);
            told.other_side_failures.borrow_mut().push(error);
        }
    });
}

impl ThreadResults {
    /// Returns the result of all threads, with the rate that the NIC counted if it did.
    ///
    /// # Errors
    /// The cause of the first failure of either side.
    fn combine_thread_results(&self, counted_mops: Option<f64>) -> Result<TaskResult> {
        let mut errors = self.other_side_failures.take();
        let outcome = match micro::combine_lane_results(self.measured_results.take()) {
            Ok(TaskResult::Rate(rate)) => Some(TaskResult::Rate(match counted_mops {
                Some(mops) => rate.with_rate(mops),
                None => rate,
            })),
            Ok(latency) => Some(latency),
            Err(error) => {
                errors.insert(0, error);
                None
            }
        };
        match root_cause(errors) {
            Some(error) => Err(error),
            None => outcome.context("nothing was measured"),
        }
    }
}

/// Refuses a size of pages.
fn refuse_page_size(task: &MeasurementTask) -> Result<()> {
    if let MeasurementTask::Stream(stream) = task
        && let Some(pages) = stream.page_size
    {
        bail!(
            "a simulated NIC translates no addresses, so that {} pages make no difference; leave out --pages",
            pages.name()
        );
    }
    Ok(())
}

/// Fails for atomics if the profile has no times for them.
fn check_atomic_times(profile: &Profile, task: &MeasurementTask) -> Result<()> {
    let known = profile.processing.atomic_ns.is_some() && profile.atomics.lock_hold_ns.is_some();
    if task.verb() == micro::Verb::Atomics && !known {
        bail!(
            "profile {} has no processing.atomic_ns or no atomics.lock_hold_ns, so that its NIC has no atomics; choose \
             another verb or --nic",
            profile.name
        );
    }
    Ok(())
}

/// Returns true if the NIC's counters give the rate. Bursts are measured from one burst to the
/// next. READs and atomics are done when their responses are back, which the requesters see
/// themselves.
fn is_rate_from_nic_counters(stream: &micro::VerbStream) -> bool {
    !stream.waits_between_windows
        && !matches!(stream.verb, micro::Verb::RcRead | micro::Verb::Atomics)
}

/// Returns the rate of the measured NIC's sent or received messages in 10^6 per second, without the
/// beginning and the end of a stream. `None` if all threads end before that.
fn nic_counted_mops(
    cluster: &SimulatedCluster,
    stream: &micro::VerbStream,
    ended: impl Fn() -> bool,
) -> Option<f64> {
    let counters = || {
        cluster
            .simulation
            .nic_counters(cluster.simulation.host_of_machine(0))
    };
    let count = || match stream.measured_role {
        // A message that the network loses counts once.
        MeasuredRole::Outbound => {
            let counters = counters();
            counters.sent_messages.saturating_sub(counters.wasted_sends)
        }
        MeasuredRole::Inbound => counters().received_messages,
    };
    cluster.run_until(|| count() > 0 || ended()).ok()?;
    let time = Duration::from_millis(stream.duration_ms);
    cluster.advance_time(time / 10);
    let (from, before) = (cluster.simulation.now(), count());
    cluster.advance_time(time * 17 / 20);
    let (to, after) = (cluster.simulation.now(), count());
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let mops = after.saturating_sub(before) as f64 / (to - from).as_secs_f64() * 1e-6;
    (!ended() && mops > 0.0).then_some(mops)
}

#[cfg(test)]
mod tests {
    use nicmodel::profile::builtin_profile;

    use super::*;
    use crate::micro::{MicroParameters, PingPong, Verb, VerbStream};

    fn cib() -> &'static Profile {
        builtin_profile("cib").expect("built in")
    }

    fn stream(verb: Verb, parameters: &MicroParameters) -> micro::StreamRate {
        let stream = VerbStream::new(verb, parameters, 1).expect("parameters that fit");
        match run(cib(), &MeasurementTask::Stream(stream)).expect("it runs") {
            TaskResult::Rate(rate) => rate,
            TaskResult::Latency(_) => panic!("a stream has a rate"),
        }
    }

    #[test]
    fn every_verb_streams_and_gives_the_same_twice() {
        for verb in Verb::ALL {
            let rate = stream(verb, &MicroParameters::default());
            assert!(rate.rate_mops > 1.0, "{verb:?}: {rate:?}");
            assert_eq!(rate.lost_datagrams, 0, "{verb:?}");
            assert_eq!(rate, stream(verb, &MicroParameters::default()), "{verb:?}");
        }
    }

    /// The paper: "a few microseconds" for a round trip (`gen_rtt`). An atomic holds its lock for 1
    /// / 2.24 M/s.
    #[test]
    fn times_are_those_of_the_profile() {
        for verb in Verb::ALL {
            let ping =
                PingPong::new(verb, &MicroParameters::default(), 1).expect("parameters that fit");
            let outcome = run(cib(), &MeasurementTask::PingPong(ping)).expect("it runs");
            let TaskResult::Latency(latency) = outcome else {
                panic!("a ping-pong has a latency");
            };
            let whole = if ping.has_one_way_latency() { 2.0 } else { 1.0 };
            let round_trip = whole * latency.latency_ns_p50;
            assert!(
                (1200.0..3500.0).contains(&round_trip),
                "{verb:?}: {latency:?}"
            );
        }
        let atomics = stream(Verb::Atomics, &MicroParameters::default());
        assert!((atomics.rate_mops / 2.24 - 1.0).abs() < 0.03, "{atomics:?}");
    }

    /// With one operation at a time, the model's bound is at most a few percent above the simulated
    /// rate.
    #[test]
    fn a_closed_loop_is_as_fast_as_the_model_allows() {
        use nicmodel::bounds::round_trip_ns;
        use nicmodel::{Operation, PostMethod, Transport, Verb as Of};
        let cases = [
            (Verb::RcWrite, Of::RdmaWrite, 8, true),
            (Verb::RcWrite, Of::RdmaWrite, 4096, false),
            (Verb::RcRead, Of::RdmaRead, 8, false),
            (Verb::RcRead, Of::RdmaRead, 4096, false),
            (Verb::Atomics, Of::AtomicFetchAndAdd, 8, false),
        ];
        for (verb, of, payload_bytes, inline) in cases {
            let parameters = MicroParameters {
                wrs_per_doorbell: Some(1),
                window: Some(1),
                signal_every: Some(1),
                payload_bytes: (verb != Verb::Atomics).then_some(payload_bytes),
                inline: (verb == Verb::RcWrite).then_some(inline),
                ..MicroParameters::default()
            };
            let rate = stream(verb, &parameters).rate_mops;
            #[expect(clippy::cast_possible_truncation, reason = "a few KiB")]
            let operation = Operation {
                inline,
                ..Operation::new(of, Transport::Rc, payload_bytes as u32)
            };
            let least_ns = round_trip_ns(cib(), &operation, PostMethod::WqeByMmio).expect("known");
            let bound = 1e3 / least_ns;
            assert!(
                rate < 1.005 * bound && rate > 0.96 * bound,
                "{verb:?}, {payload_bytes}: {rate}, {bound}"
            );
        }
    }

    /// The packets of a long message follow each other through all stages, in the model and in the
    /// simulation.
    #[test]
    fn long_messages_one_at_a_time_are_as_fast_as_the_model_allows() {
        use nicmodel::bounds::round_trip_ns;
        use nicmodel::{Operation, PostMethod, Transport, Verb as Of};
        for name in ["cib", "cx3", "bf2"] {
            let profile = builtin_profile(name).expect("built in");
            for (verb, of) in [(Verb::RcWrite, Of::RdmaWrite), (Verb::RcRead, Of::RdmaRead)] {
                for payload_bytes in [4096, 6000, 65536, 1 << 20] {
                    let parameters = MicroParameters {
                        wrs_per_doorbell: Some(1),
                        window: Some(1),
                        signal_every: Some(1),
                        payload_bytes: Some(payload_bytes as usize),
                        ..MicroParameters::default()
                    };
                    let stream = VerbStream::new(verb, &parameters, 20).expect("they fit");
                    let task = MeasurementTask::Stream(stream);
                    let rate = match run(profile, &task).expect("it runs") {
                        TaskResult::Rate(rate) => rate.rate_mops,
                        TaskResult::Latency(_) => panic!("a stream has a rate"),
                    };
                    let operation = Operation::new(of, Transport::Rc, payload_bytes);
                    let least_ns = round_trip_ns(profile, &operation, PostMethod::WqeByMmio);
                    let ratio = rate * least_ns.expect("known") * 1e-3;
                    assert!(
                        (0.95..1.005).contains(&ratio),
                        "{name}, {verb:?}, {payload_bytes} bytes: {rate} M/s, {ratio} of the model's"
                    );
                }
            }
        }
    }

    /// A queue pair uses one of a Connect-IB's two ports and reaches that port's rate; several
    /// queue pairs fill both ports.
    #[test]
    fn one_queue_pair_fills_one_port() {
        let port = cib().port.gbps.value / 8.0;
        for (verb, direction) in [
            (Verb::RcWrite, MeasuredRole::Outbound),
            (Verb::RcWrite, MeasuredRole::Inbound),
            (Verb::UcWrite, MeasuredRole::Outbound),
            (Verb::UcWrite, MeasuredRole::Inbound),
        ] {
            for (queue_pairs, ports) in [(1, 1.0), (2, 2.0), (4, 2.0)] {
                let parameters = MicroParameters {
                    measured_role: direction,
                    queue_pairs_per_thread: Some(queue_pairs),
                    payload_bytes: Some(65536),
                    window: Some(16),
                    signal_every: Some(1),
                    ..MicroParameters::default()
                };
                let gbytes = stream(verb, &parameters).rate_mops * 65.536;
                let all = ports * port;
                assert!(
                    gbytes < 1.002 * all && gbytes > 0.9 * all,
                    "{verb:?}, {direction:?}, {queue_pairs}: {gbytes} GB/s of {all}"
                );
            }
        }
    }

    /// With WRITEs that wait for a link, the many WRITEs in flight at the end are not counted.
    #[test]
    fn no_rate_is_above_what_binds_it() {
        for payload_bytes in [8, 256] {
            let parameters = MicroParameters {
                measured_role: MeasuredRole::Inbound,
                threads: Some(14),
                queue_pairs_per_thread: Some(4),
                payload_bytes: Some(payload_bytes),
                ..MicroParameters::default()
            };
            let rate = stream(Verb::UcWrite, &parameters).rate_mops;
            let task = VerbStream::new(Verb::UcWrite, &parameters, 1).expect("parameters that fit");
            let bounds = task.rate_bounds(cib()).expect("a Connect-IB does that");
            let bound = bounds.predicted_mops.expect("a bound");
            assert!(
                rate < 1.002 * bound && rate > 0.98 * bound,
                "{payload_bytes}: {rate}, {bound}"
            );
        }
    }

    /// Payload that is not inline crosses the requester's PCIe link, also if each WQE has a post of its own.
    #[test]
    fn a_fetch_of_payload_binds_single_posts() {
        for (verb, payload_bytes) in [
            (Verb::RcWrite, 64),
            (Verb::RcWrite, 256),
            (Verb::UcWrite, 512),
            (Verb::UdSend, 256),
        ] {
            let parameters = MicroParameters {
                threads: Some(14),
                wrs_per_doorbell: Some(1),
                payload_bytes: Some(payload_bytes),
                inline: Some(false),
                ..MicroParameters::default()
            };
            let rate = stream(verb, &parameters).rate_mops;
            let task = VerbStream::new(verb, &parameters, 1).expect("parameters that fit");
            let bounds = task.rate_bounds(cib()).expect("a Connect-IB does that");
            let bound = bounds.predicted_mops.expect("a bound");
            assert!(
                rate < 1.02 * bound && rate > 0.97 * bound,
                "{verb:?}, {payload_bytes}: {rate}, {bound}"
            );
        }
    }

    #[test]
    fn a_profile_without_the_numbers_is_refused() {
        let task = MeasurementTask::Stream(
            VerbStream::new(Verb::UdSend, &MicroParameters::default(), 1).expect("fits"),
        );
        let atomics = MeasurementTask::Stream(
            VerbStream::new(Verb::Atomics, &MicroParameters::default(), 1).expect("fits"),
        );
        let error = run(builtin_profile("cx").expect("built in"), &atomics).expect_err("refused");
        assert!(error.to_string().contains("has no atomics"), "{error}");
        let mut lacking = cib().clone();
        lacking.processing.send_ns = None;
        let error = run(&lacking, &task).expect_err("refused");
        assert!(error.to_string().contains("processing.send_ns"), "{error}");
    }
}
