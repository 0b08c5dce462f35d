//! The sequencer's own server and clients on a simulated cluster.

use std::time::Duration;

use anyhow::{Result, bail};
use kv::load::Random;
use nicmodel::Profile;
use nicmodel::profile::CorePlace;
use sequencer::{
    Client, ClientConfig, ClientError, ClientReport, Design, LocalServer, NumberChecker,
    NumberVerdict, RequestsPerClient, RunLimit, ServerConfig, WindowPolicy, WorkerThreads,
};
use serde::Serialize;

use super::clients::{SimulatedBarrier, SimulatedClients};
use super::{SimulatedCluster, check_costs_of_cores, rate_mops, warm_up_duration};

/// Parameters of the experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SequencerParameters {
    /// Design of the sequencer.
    pub design: Design,
    /// Place of the server and its memory; `None` means the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "place")]
    pub server_place: Option<CorePlace>,
    /// Cores of the server, with one worker each.
    #[serde(rename = "cores")]
    pub server_cores: usize,
    /// Number of clients.
    pub clients: usize,
    /// Number of workers that each client sends to. The client has a session at each of them and
    /// divides its window among the sessions.
    #[serde(rename = "sessions")]
    pub workers_per_client: usize,
    /// Number of client machines; `None` means as few as have a core for each client.
    #[serde(rename = "machines")]
    pub client_machines: Option<usize>,
    /// Maximum outstanding requests of a client.
    pub window: usize,
    /// Maximum requests that a client posts with one doorbell.
    #[serde(rename = "postlist")]
    pub max_requests_per_doorbell: usize,
    /// Maximum requests that a worker answers with one doorbell.
    #[serde(rename = "batch")]
    pub max_requests_per_batch: usize,
    /// Maximum answers per doorbell, if fewer than the requests of a batch. A batch takes its
    /// numbers at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "answers")]
    pub max_answers_per_doorbell: Option<usize>,
    /// Number of UD queue pairs of a worker; `None` means as in the paper.
    #[serde(rename = "queues")]
    pub ud_qps_per_worker: Option<usize>,
    /// Loops of clients and workers.
    #[serde(skip_serializing_if = "LoopPolicies::is_default")]
    #[serde(rename = "loops")]
    pub loop_policies: LoopPolicies,
    /// Seed of random numbers, which determine when each client begins, and the keys of the NICs.
    pub seed: u64,
    /// Virtual time that is measured. A warm-up of a fifth of it, at least 150 µs, precedes it.
    #[serde(rename = "time")]
    pub measured_time: Duration,
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
            server_place: None,
            server_cores: cores,
            clients: 70,
            workers_per_client: match design {
                Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => cores,
                Design::Atomics | Design::SpecS0 => 1,
            },
            client_machines: None,
            window: 32,
            max_requests_per_doorbell: 16,
            max_requests_per_batch: 16,
            max_answers_per_doorbell: None,
            ud_qps_per_worker: None,
            loop_policies: LoopPolicies::default(),
            seed: 1,
            measured_time: Duration::from_millis(1),
        }
    }

    /// The paper's setup with the loops and parameters of its authors' benchmark. With RPC, a
    /// client posts each request alone, and a worker takes at most 32 requests in a pass. With
    /// Spec-S0, each client sends to one worker and has 16 requests outstanding.
    #[must_use]
    pub fn rdma_bench_setup(design: Design, cores: usize) -> Self {
        let paper = Self {
            loop_policies: LoopPolicies::rdma_bench(design),
            ..Self::paper_setup(design, cores)
        };
        match design {
            Design::Atomics => paper,
            Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => Self {
                workers_per_client: 1,
                max_requests_per_doorbell: 1,
                max_requests_per_batch: 32,
                ..paper
            },
            Design::SpecS0 => Self {
                window: 16,
                max_requests_per_batch: 32,
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
    #[serde(rename = "spread")]
    pub requests_rotate_over_workers: bool,
    /// Number of requests that a worker's pass takes from each client.
    #[serde(rename = "scan")]
    pub requests_taken_per_client: RequestsPerClient,
    /// If true, the answers of a batch are sent on one queue pair per port, with a doorbell each.
    #[serde(rename = "doorbell_per_port")]
    pub rings_doorbell_per_port: bool,
    /// If true, with datagrams a worker receives requests on one queue pair and rotates its answers
    /// over several.
    #[serde(rename = "rotate")]
    pub rotates_answer_qps: bool,
    /// Maximum outstanding SENDs of a worker's queue pair, if fewer than this project's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "send_depth")]
    pub max_outstanding_sends: Option<u32>,
}

/// Send queue depth of the benchmark of the paper's authors. It signals one SEND in 64, and polls
/// for its completion before it posts the next signaled SEND. So fewer than twice 64 SENDs are
/// outstanding.
pub(super) const RDMA_BENCH_SEND_DEPTH: u32 = 128;

impl LoopPolicies {
    /// Returns the loops of the benchmark published by the paper's authors (`rdma_bench`), which
    /// produced the rates in the paper.
    #[must_use]
    pub fn rdma_bench(design: Design) -> Self {
        match design {
            Design::Atomics => Self::default(),
            Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => Self {
                window_policy: WindowPolicy::StopAndGo,
                requests_rotate_over_workers: true,
                requests_taken_per_client: RequestsPerClient::AtMostOne,
                rings_doorbell_per_port: true,
                rotates_answer_qps: false,
                max_outstanding_sends: Some(RDMA_BENCH_SEND_DEPTH),
            },
            Design::SpecS0 => Self {
                window_policy: WindowPolicy::AsAnswered,
                rotates_answer_qps: true,
                max_outstanding_sends: Some(RDMA_BENCH_SEND_DEPTH),
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
const ASSUMED_SERVER_NS_PER_REQUEST: u64 = 100;

/// Clients that are stop-and-go begin within the time in which the server answers a window of each. If they began
/// together they would stay in step for milliseconds: the server would have nothing to do while all send their next
/// window.
pub(super) fn client_start_spread_ns(clients: usize, window: usize, cores: usize) -> u64 {
    let requests = (clients * window / cores.max(1)) as u64;
    (requests * ASSUMED_SERVER_NS_PER_REQUEST).max(CLIENT_START_SPREAD_NS)
}

/// Returns the number of UD queue pairs of a worker in the paper: one for each port of the NIC,
/// three per port with multi-queue.
fn paper_ud_qps_per_worker(setup: &SequencerParameters, profile: &Profile) -> usize {
    let ports = profile.port.count.value as usize;
    match setup.design {
        // All requests of a worker, and their answers, use one port.
        Design::SpecS0 if setup.loop_policies.rotates_answer_qps => 3,
        Design::RpcBatchMq | Design::SpecS0 => 3 * ports,
        _ => ports,
    }
}

/// Returns the number of UD queue pairs of a worker.
#[must_use]
pub fn ud_qps_per_worker(profile: &Profile, setup: &SequencerParameters) -> usize {
    setup
        .ud_qps_per_worker
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
    #[serde(rename = "lost")]
    pub lost_requests: u64,
    /// Numbers that clients received over the whole run.
    #[serde(rename = "requests")]
    pub received_numbers: u64,
    /// Messages that were sent, received and dropped by all NICs.
    #[serde(rename = "messages")]
    pub message_counts: MessageCounts,
    /// True if the checker accepts the numbers as those of a sequencer.
    #[serde(rename = "verified")]
    pub are_numbers_right: bool,
    /// Verdict of the checker, in words.
    #[serde(rename = "verdict")]
    pub verdict_text: String,
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
    #[serde(rename = "dropped")]
    pub dropped_at_receiver: u64,
}

/// Runs the experiment.
///
/// # Errors
/// When the profile lacks what a simulation or the design needs, or the setup cannot work.
pub fn run(profile: &Profile, setup: &SequencerParameters) -> Result<SequencerResult> {
    let place = setup.server_place.unwrap_or_default();
    check_place_has_cores(profile, place, setup.server_cores)?;
    let client_cores = profile.host.cores.value as usize;
    let machines = setup
        .client_machines
        .unwrap_or(setup.clients.div_ceil(client_cores))
        .max(1);
    let cluster = SimulatedCluster::new(profile, 1 + machines, setup.seed)?;
    if setup.design != Design::Atomics {
        check_costs_of_cores(profile)?;
    }
    let (context, machine) = cluster.context_and_machine(0, place)?;
    let config = server_config(profile, setup);
    let mut server = LocalServer::new(context, config, WorkerThreads::CallerThreads)?;
    for (i, worker) in server.take_workers().into_iter().enumerate() {
        let name = format!("worker {i}");
        cluster
            .simulation
            .spawn(machine, name, move || worker.run());
    }
    let within = match setup.loop_policies.window_policy {
        WindowPolicy::StopAndGo => {
            client_start_spread_ns(setup.clients, setup.window, setup.server_cores)
        }
        _ => CLIENT_START_SPREAD_NS,
    };
    let warm_up = warm_up_duration(setup.measured_time)
        + Duration::from_nanos(within - CLIENT_START_SPREAD_NS);
    let clients = start_clients(&cluster, setup, &server, within, warm_up);
    clients.begin_when_connected(&cluster)?;
    let read = || server.service().next_number();
    let read = cluster.run_and_read_before_after(warm_up, setup.measured_time, read);
    cluster.run_until_threads_end()?;
    if let Some(failure) = server.failure() {
        bail!("the server failed: {failure}");
    }
    let reports = clients.take_reports();
    let mut checker = NumberChecker::new(server.stats().first_number);
    for (i, report) in reports.iter().enumerate() {
        checker.add_report(&format!("client {i}"), report);
    }
    let verdict = checker.verdict(Some(server.service().next_number()));
    let rate = rate_mops(read.after - read.before, read.elapsed);
    Ok(result_of_run(&cluster, &server, &reports, &verdict, rate))
}

/// Starts the sessions of all clients. Each begins within `start_delay_ns_max` after all have connected.
fn start_clients(
    cluster: &SimulatedCluster,
    setup: &SequencerParameters,
    server: &LocalServer,
    start_delay_ns_max: u64,
    warm_up: Duration,
) -> SimulatedClients<ClientReport> {
    let machines = cluster.host_contexts.len() - 1;
    let window = setup.window.div_ceil(setup.workers_per_client);
    let config = ClientConfig {
        window,
        batch: setup.max_requests_per_doorbell.min(window),
        window_policy: setup.loop_policies.window_policy,
        requests_rotate_over_workers: setup.loop_policies.requests_rotate_over_workers,
        latency_digits: 2,
        ..ClientConfig::default()
    };
    let until = RunLimit::DurationMs(client_duration_ms(warm_up + setup.measured_time));
    let clients = SimulatedClients::default();
    for i in 0..setup.clients * setup.workers_per_client {
        let machine = 1 + i / setup.workers_per_client % machines;
        let (context, config) = (cluster.host_contexts[machine].clone(), config.clone());
        let (connector, stopper) = (server.connector(), server.connector());
        // Clients of a network do not start synchronously.
        let delay_ns = Random::new(setup.seed ^ (i as u64) << 32).next_below(start_delay_ns_max);
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
pub(super) fn check_place_has_cores(
    profile: &Profile,
    place: CorePlace,
    cores: usize,
) -> Result<()> {
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
    let sessions = setup.clients * setup.workers_per_client;
    let window = setup.window.div_ceil(setup.workers_per_client);
    let receiving = if setup.loop_policies.rotates_answer_qps {
        1
    } else {
        queues
    };
    let served = sessions.div_ceil(setup.server_cores).div_ceil(receiving);
    let outstanding = u32::try_from(served * window).unwrap_or(u32::MAX);
    let ours = ServerConfig::default();
    ServerConfig {
        design: setup.design,
        workers: setup.server_cores,
        batch: setup.max_requests_per_batch,
        max_answers_per_doorbell: setup.max_answers_per_doorbell,
        ud_qps_per_worker: Some(queues),
        request_region_scan: setup.loop_policies.requests_taken_per_client,
        qps_per_answer_batch: if setup.loop_policies.rings_doorbell_per_port {
            profile.port.count.value as usize
        } else {
            1
        },
        rotates_answer_qps: setup.loop_policies.rotates_answer_qps,
        send_depth: setup
            .loop_policies
            .max_outstanding_sends
            .unwrap_or(ours.send_depth),
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
fn result_of_run(
    cluster: &SimulatedCluster,
    server: &LocalServer,
    reports: &[ClientReport],
    verdict: &NumberVerdict,
    rate_mops: f64,
) -> SequencerResult {
    let stats = server.stats();
    let mut messages = MessageCounts::default();
    for machine in 0..cluster.host_contexts.len() {
        let counters = cluster
            .simulation
            .nic_counters(cluster.simulation.host_of_machine(machine));
        messages.sent += counters.sent_messages;
        messages.received += counters.received_messages;
        messages.dropped_at_receiver += counters.dropped_messages;
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
        lost_requests: reports.iter().map(|r| r.failures.lost).sum(),
        received_numbers: reports.iter().map(|r| r.received_number_count).sum(),
        message_counts: messages,
        are_numbers_right: verdict.ok,
        verdict_text: verdict.to_string(),
        virtual_ms: cluster.simulation.now().as_secs_f64() * 1e3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nicmodel::profile::builtin_profile;

    /// Each design assigns every number once with the loops of the paper's authors, too.
    #[test]
    fn the_authors_loops_give_the_same_numbers() {
        let cib = builtin_profile("cib").expect("built in");
        for design in Design::ALL {
            let setup = SequencerParameters {
                clients: 12,
                measured_time: Duration::from_micros(50),
                ..SequencerParameters::rdma_bench_setup(design, 3)
            };
            let outcome = run(cib, &setup).expect("runs");
            let right = outcome.are_numbers_right
                && outcome.lost_requests == 0
                && outcome.received_numbers > 100;
            assert!(right, "{design}: {outcome:?}");
            if design == Design::RpcBatchMq {
                // A pass takes at most one request of each of 12 clients, and each port has half of
                // the answers.
                assert!(outcome.answers_per_doorbell <= 6.0, "{outcome:?}");
            }
        }
    }
}
