//! The sequencer's own server and clients on a simulated cluster.

use std::time::Duration;

use anyhow::{Result, bail};
use kv::load::Random;
use nicmodel::Profile;
use nicmodel::profile::CorePlace;
use sequencer::{
    Client, ClientConfig, ClientError, ClientReport, Design, LocalServer, NumberChecker,
    NumberVerdict, RegionScan, RunEnd, ServerConfig, ServerRuntime, WindowPolicy,
};
use serde::Serialize;

use super::clients::{SimulatedBarrier, SimulatedClients};
use super::{SimulatedCluster, rate_mops, warm_up_duration};

/// Parameters of the experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SequencerParameters {
    /// Design of the sequencer.
    pub design: Design,
    /// Place of the server and its memory; `None` means the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<CorePlace>,
    /// Cores of the server, with one worker each.
    pub cores: usize,
    /// Number of clients.
    pub clients: usize,
    /// Number of workers that each client sends to. The client has a session at each of them and
    /// divides its window among the sessions.
    pub sessions: usize,
    /// Number of client machines; `None` means as few as have a core for each client.
    pub machines: Option<usize>,
    /// Maximum outstanding requests of a client.
    pub window: usize,
    /// Maximum requests that a client posts with one doorbell.
    pub postlist: usize,
    /// Maximum requests that a worker answers with one doorbell.
    pub batch: usize,
    /// Maximum answers per doorbell, if fewer than the requests of a batch. A batch takes its
    /// numbers at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<usize>,
    /// Number of UD queue pairs of a worker; `None` means as in the paper.
    pub queues: Option<usize>,
    /// Loops of clients and workers.
    #[serde(skip_serializing_if = "LoopPolicies::is_default")]
    pub loops: LoopPolicies,
    /// Seed of random numbers, which determine when each client begins, and the keys of the NICs.
    pub seed: u64,
    /// Virtual time that is measured. A warm-up of a fifth of it, at least 150 µs, precedes it.
    pub time: Duration,
}

impl SequencerParameters {
    /// The paper's setup: 70 clients, batches of 16. The paper does not state the number of
    /// outstanding requests. The benchmark published by its authors (`rdma_bench`) has 32, which go
    /// to all workers. For datagrams, which all arrive at one CQ, the distribution over workers
    /// makes no difference.
    #[must_use]
    pub fn paper_setup(design: Design, cores: usize) -> Self {
        Self {
            design,
            place: None,
            cores,
            clients: 70,
            sessions: match design {
                Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => cores,
                Design::Atomics | Design::SpecS0 => 1,
            },
            machines: None,
            window: 32,
            postlist: 16,
            batch: 16,
            answers: None,
            queues: None,
            loops: LoopPolicies::default(),
            seed: 1,
            time: Duration::from_millis(1),
        }
    }

    /// The paper's setup with the loops and parameters of its authors' benchmark. With RPC, a
    /// client posts each request alone, and a worker takes at most 32 requests in a pass. With
    /// Spec-S0, each client sends to one worker and has 16 requests outstanding.
    #[must_use]
    pub fn rdma_bench_setup(design: Design, cores: usize) -> Self {
        let paper = Self {
            loops: LoopPolicies::atc16(design),
            ..Self::paper_setup(design, cores)
        };
        match design {
            Design::Atomics => paper,
            Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => Self {
                sessions: 1,
                postlist: 1,
                batch: 32,
                ..paper
            },
            Design::SpecS0 => Self {
                window: 16,
                batch: 32,
                ..paper
            },
        }
    }
}

/// Loops of clients and workers; the default is this project's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LoopPolicies {
    /// Policy by which a client sends its next requests.
    #[serde(rename = "policy")]
    pub window_policy: WindowPolicy,
    /// If true, a client sends to all workers in turn, over one queue pair and with one window. If
    /// false, it has a session with each worker, and a part of the window for each.
    pub spread: bool,
    /// Number of requests that a worker's pass takes from each client.
    pub scan: RegionScan,
    /// If true, the answers of a batch are sent on one queue pair per port, with a doorbell each.
    pub doorbell_per_port: bool,
    /// If true, with datagrams a worker receives requests on one queue pair and rotates its answers
    /// over several.
    #[serde(rename = "rotate")]
    pub rotates_answer_qps: bool,
    /// Maximum outstanding SENDs of a worker's queue pair, if fewer than this project's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_depth: Option<u32>,
}

/// Send queue depth of the benchmark of the paper's authors. It signals one SEND in 64, and polls
/// for its completion before it posts the next signaled SEND. So fewer than twice 64 SENDs are
/// outstanding.
pub(super) const ATC16_SEND_DEPTH: u32 = 128;

impl LoopPolicies {
    /// Returns the loops of the benchmark published by the paper's authors (`rdma_bench`), which
    /// produced the rates in the paper.
    #[must_use]
    pub fn atc16(design: Design) -> Self {
        match design {
            Design::Atomics => Self::default(),
            Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => Self {
                window_policy: WindowPolicy::StopAndGo,
                spread: true,
                scan: RegionScan::OneEach,
                doorbell_per_port: true,
                rotates_answer_qps: false,
                send_depth: Some(ATC16_SEND_DEPTH),
            },
            Design::SpecS0 => Self {
                window_policy: WindowPolicy::AsAnswered,
                rotates_answer_qps: true,
                send_depth: Some(ATC16_SEND_DEPTH),
                ..Self::default()
            },
        }
    }

    /// Returns true if these are the loops of this project.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Time within which clients begin, about a round trip.
const CLIENT_START_SPREAD_NS: u64 = 2000;

/// About what a core of a server takes for a request.
const SERVER_NS_PER_REQUEST: u64 = 100;

/// Clients that are stop-and-go begin within the time in which the server answers a window of each. If they began
/// together they would stay in step for milliseconds: the server would have nothing to do while all send their next window.
pub(super) fn client_start_spread_ns(clients: usize, window: usize, cores: usize) -> u64 {
    let requests = (clients * window / cores.max(1)) as u64;
    (requests * SERVER_NS_PER_REQUEST).max(CLIENT_START_SPREAD_NS)
}

/// Returns the number of UD queue pairs of a worker in the paper: one for each port of the NIC,
/// three per port with multi-queue.
fn paper_ud_qps_per_worker(setup: &SequencerParameters, profile: &Profile) -> usize {
    let ports = profile.port.count.value as usize;
    match setup.design {
        // All requests of a worker, and their answers, use one port.
        Design::SpecS0 if setup.loops.rotates_answer_qps => 3,
        Design::RpcBatchMq | Design::SpecS0 => 3 * ports,
        _ => ports,
    }
}

/// Returns the number of UD queue pairs of a worker.
#[must_use]
pub fn ud_qps_per_worker(profile: &Profile, setup: &SequencerParameters) -> usize {
    setup
        .queues
        .unwrap_or(paper_ud_qps_per_worker(setup, profile))
}

/// Result of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct SequencerResult {
    /// Numbers assigned in the measured time, in 10^6 per second.
    pub rate_mops: f64,
    /// Median of the clients' medians of a postlist's latency, in ns.
    pub latency_ns_p50: u64,
    /// Largest 99th percentile of a client, in ns.
    pub latency_ns_p99: u64,
    /// Answers per doorbell of the server; 0 with atomics, which the server does not answer.
    pub answers_per_doorbell: f64,
    /// Number of requests that clients lost.
    pub lost: u64,
    /// Numbers that clients received over the whole run.
    pub requests: u64,
    /// Messages that were sent, received and dropped by all NICs.
    pub messages: MessageCounts,
    /// True if the checker accepts the numbers as those of a sequencer.
    pub verified: bool,
    /// Verdict of the checker, in words.
    pub verdict: String,
    /// Virtual time of the whole run, in ms.
    pub virtual_ms: f64,
}

/// Messages of all machines, over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MessageCounts {
    /// Messages sent.
    pub sent: u64,
    /// Messages that arrived and were accepted.
    pub received: u64,
    /// Messages that arrived and were dropped.
    pub dropped: u64,
}

/// Runs the experiment.
///
/// # Errors
/// When the profile lacks what a simulation or the design needs, or the setup cannot work.
pub fn run(profile: &Profile, setup: &SequencerParameters) -> Result<SequencerResult> {
    let place = setup.place.unwrap_or_default();
    check_cores(profile, place, setup.cores)?;
    let client_cores = profile.host.cores.value as usize;
    let machines = setup
        .machines
        .unwrap_or(setup.clients.div_ceil(client_cores))
        .max(1);
    let cluster = SimulatedCluster::new(profile, 1 + machines, setup.seed)?;
    if setup.design != Design::Atomics {
        cluster.check_costs_of_cores(profile)?;
    }
    let (context, machine) = cluster.context_and_machine(0, place)?;
    let config = server_config(profile, setup);
    let mut server = LocalServer::new(context, config, ServerRuntime::CallerThreads)?;
    for (i, worker) in server.take_workers().into_iter().enumerate() {
        let name = format!("worker {i}");
        cluster
            .simulation
            .spawn(machine, name, move || worker.run());
    }
    let within = match setup.loops.window_policy {
        WindowPolicy::StopAndGo => client_start_spread_ns(setup.clients, setup.window, setup.cores),
        _ => CLIENT_START_SPREAD_NS,
    };
    let warm_up =
        warm_up_duration(setup.time) + Duration::from_nanos(within - CLIENT_START_SPREAD_NS);
    let clients = start_clients(&cluster, setup, &server, within, warm_up);
    clients.begin_when_connected(&cluster)?;
    let read = || server.service().next_number();
    let read = cluster.read_around(warm_up, setup.time, read);
    cluster.run_until_threads_end()?;
    if let Some(failure) = server.failure() {
        bail!("the server failed: {failure}");
    }
    let reports = clients.take_reports();
    let mut checker = NumberChecker::new(server.stats().start);
    for (i, report) in reports.iter().enumerate() {
        checker.add(&format!("client {i}"), report);
    }
    let verdict = checker.verdict(Some(server.service().next_number()));
    let rate = rate_mops(read.after - read.before, read.elapsed);
    Ok(outcome(&cluster, &server, &reports, &verdict, rate))
}

/// Starts the sessions of all clients. Each begins within `start_delay_ns_max` after all have connected.
fn start_clients(
    cluster: &SimulatedCluster,
    setup: &SequencerParameters,
    server: &LocalServer,
    start_delay_ns_max: u64,
    warm_up: Duration,
) -> SimulatedClients<ClientReport> {
    let machines = cluster.contexts.len() - 1;
    let window = setup.window.div_ceil(setup.sessions);
    let config = ClientConfig {
        window,
        batch: setup.postlist.min(window),
        policy: setup.loops.window_policy,
        spread: setup.loops.spread,
        latency_digits: 2,
        ..ClientConfig::default()
    };
    let until = RunEnd::DurationMs(client_duration_ms(warm_up + setup.time));
    let clients = SimulatedClients::default();
    for i in 0..setup.clients * setup.sessions {
        let machine = 1 + i / setup.sessions % machines;
        let (context, config) = (cluster.contexts[machine].clone(), config.clone());
        let (connector, stopper) = (server.connector(), server.connector());
        // Clients of a network do not start synchronously.
        let delay_ns = Random::new(setup.seed ^ (i as u64) << 32).below(start_delay_ns_max);
        let run = move |barrier: &SimulatedBarrier| {
            let mut client = Client::connect_in_process(connector, &context, config)?;
            barrier.arrive_and_wait();
            verbs::time::charge_time(Duration::from_nanos(delay_ns));
            Ok::<_, ClientError>(client.run(until))
        };
        clients.start(cluster, machine, run, move || stopper.stop());
    }
    clients
}

/// Fails for a place that the NIC does not have, and for more cores than that place has.
pub(super) fn check_cores(profile: &Profile, place: CorePlace, cores: usize) -> Result<()> {
    let Some(there) = profile.as_seen_from(place) else {
        bail!(
            "{} has no DPU: place the server on the host, or take a NIC whose profile has a section [dpu], such as bf2",
            profile.name
        );
    };
    let all = there.host.cores.value as usize;
    if cores > all {
        let whose = match place {
            CorePlace::Host => profile.name.clone(),
            CorePlace::Dpu => format!("the DPU of {}", profile.name),
        };
        bail!("{cores} cores are more than the {all} of {whose}; lower --cores");
    }
    Ok(())
}

fn server_config(profile: &Profile, setup: &SequencerParameters) -> ServerConfig {
    let queues = ud_qps_per_worker(profile, setup);
    // Clients are spread evenly over workers, and over the queue pairs of each worker.
    let sessions = setup.clients * setup.sessions;
    let window = setup.window.div_ceil(setup.sessions);
    let receiving = if setup.loops.rotates_answer_qps {
        1
    } else {
        queues
    };
    let served = sessions.div_ceil(setup.cores).div_ceil(receiving);
    let outstanding = u32::try_from(served * window).unwrap_or(u32::MAX);
    let ours = ServerConfig::default();
    ServerConfig {
        design: setup.design,
        workers: setup.cores,
        batch: setup.batch,
        answers: setup.answers,
        queues: Some(queues),
        scan: setup.loops.scan,
        split: if setup.loops.doorbell_per_port {
            profile.port.count.value as usize
        } else {
            1
        },
        rotates_answer_qps: setup.loops.rotates_answer_qps,
        send_depth: setup.loops.send_depth.unwrap_or(ours.send_depth),
        max_clients: sessions,
        max_window: window,
        recv_depth: outstanding.clamp(64, 1 << 15),
        ..ours
    }
}

/// Returns the duration of the clients in whole milliseconds, longer than the warm-up and the
/// measured time.
fn client_duration_ms(time: Duration) -> u64 {
    let most = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    most.saturating_add(1)
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn outcome(
    cluster: &SimulatedCluster,
    server: &LocalServer,
    reports: &[ClientReport],
    verdict: &NumberVerdict,
    rate_mops: f64,
) -> SequencerResult {
    let stats = server.stats();
    let mut messages = MessageCounts::default();
    for machine in 0..cluster.contexts.len() {
        let counters = cluster
            .simulation
            .nic_counters(cluster.simulation.host_of_machine(machine));
        messages.sent += counters.sent_messages;
        messages.received += counters.received_messages;
        messages.dropped += counters.dropped_messages;
    }
    let mut medians: Vec<u64> = reports.iter().map(|r| r.latency.p50_ns).collect();
    medians.sort_unstable();
    SequencerResult {
        rate_mops,
        latency_ns_p50: medians.get(medians.len() / 2).copied().unwrap_or(0),
        latency_ns_p99: reports.iter().map(|r| r.latency.p99_ns).max().unwrap_or(0),
        answers_per_doorbell: if stats.doorbells > 0 {
            stats.requests as f64 / stats.doorbells as f64
        } else {
            0.0
        },
        lost: reports.iter().map(|r| r.failures.lost).sum(),
        requests: reports.iter().map(|r| r.requests).sum(),
        messages,
        verified: verdict.ok,
        verdict: verdict.to_string(),
        virtual_ms: cluster.simulation.now().as_secs_f64() * 1e3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nicmodel::profile::builtin;

    /// Each design assigns every number once with the loops of the paper's authors, too.
    #[test]
    fn the_authors_loops_give_the_same_numbers() {
        let cib = builtin("cib").expect("built in");
        for design in Design::ALL {
            let setup = SequencerParameters {
                clients: 12,
                time: Duration::from_micros(50),
                ..SequencerParameters::rdma_bench_setup(design, 3)
            };
            let outcome = run(cib, &setup).expect("runs");
            let right = outcome.verified && outcome.lost == 0 && outcome.requests > 100;
            assert!(right, "{design}: {outcome:?}");
            if design == Design::RpcBatchMq {
                // A pass takes at most one request of each of 12 clients, and each port has half of
                // the answers.
                assert!(outcome.answers_per_doorbell <= 6.0, "{outcome:?}");
            }
        }
    }
}
