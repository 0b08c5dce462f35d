//! An adaptive split of keys between host and DPU, under a hot spot that jumps. The remote B-tree's
//! own servers, movers, controller and clients run in virtual time.
//!
//! A server on the host and a server on the DPU of the same machine share the keys. Popular keys
//! are neighbours. At each jump other keys become popular, so the split is wrong until ranges have
//! moved. Walks cost as much as in trees with the keys that each server has at the best split for
//! uniform keys. This cost does not change while ranges move.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use btree::balance::ControlLawParameters;
use btree::load::{self, LoadEnd, LoadReport, Popularity, Workload, stable_key, value_of};
use btree::walk_cost::TreeSize;
use btree::{
    ClientConfig, ExecuteRequests, LoadBalancer, LocalConnector, LocalServer, PipelinedClient,
    Router, ServerConfig, ServerEnvironment,
};
use nicmodel::Profile;
use nicmodel::profile::CorePlace;
use serde::Serialize;
use service::workload::KeyGenerator;
use verbs::Waiter;

use super::SimulatedCluster;
use super::clients::{SimulatedBarrier, SimulatedClients};
use super::sequencer::check_place_has_cores;

/// Parameters of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AdaptiveSplitParameters {
    /// Number of keys of the tree that determines the cost of walks.
    #[serde(rename = "keys")]
    pub cost_tree_key_count: u64,
    /// Share of these keys that is in the DPU's tree, for the cost of walks.
    #[serde(rename = "dpu_share")]
    pub cost_tree_dpu_share: f64,
    /// Exponent of Zipf's law, which the popularity of keys follows.
    #[serde(rename = "exponent")]
    pub zipf_exponent: f64,
    /// Time for which the same keys are popular.
    #[serde(rename = "every")]
    pub phase_duration: Duration,
    /// Number of phases; other keys are popular in each.
    #[serde(rename = "jumps")]
    pub phase_count: u32,
    /// Period of the controller; `None` for a fixed split.
    #[serde(rename = "looks")]
    pub controller_period: Option<Duration>,
    /// Place where the controller runs.
    #[serde(rename = "controller")]
    pub controller_place: CorePlace,
    /// Initial share of requests that the DPU serves, 0 to 1 exclusive.
    #[serde(rename = "begin")]
    pub initial_dpu_request_share: f64,
    /// Maximum bytes per second that a server takes from the other server.
    #[serde(rename = "handover_bytes_per_s")]
    pub max_handover_bytes_per_s: u32,
    /// Number of clients.
    pub clients: usize,
    /// Seed of random numbers.
    pub seed: u64,
}

impl Default for AdaptiveSplitParameters {
    fn default() -> Self {
        Self {
            cost_tree_key_count: 1_000_000,
            cost_tree_dpu_share: 0.25,
            zipf_exponent: 0.99,
            phase_duration: Duration::from_millis(100),
            phase_count: 3,
            controller_period: Some(Duration::from_micros(500)),
            controller_place: CorePlace::Host,
            initial_dpu_request_share: 0.25,
            max_handover_bytes_per_s: 1_000_000_000,
            clients: 32,
            seed: 1,
        }
    }
}

/// Number of keys of the real tree.
const REAL_TREE_KEYS: u64 = 1 << 14;
/// Worker cores on each side; one further core moves ranges.
const WORKERS_PER_SIDE: usize = 7;
/// Maximum outstanding requests of a client.
const CLIENT_WINDOW: usize = 16;
/// Number of client machines.
const CLIENT_MACHINES: usize = 4;
/// Length of a step of the recorded course.
const RECORDING_STEP: Duration = Duration::from_micros(500);

/// One step of the recorded course.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AdaptiveSplitPoint {
    /// End of the step, in ms of virtual time since the clients began.
    #[serde(rename = "ms")]
    pub step_end_ms: f64,
    /// Look-ups in 10^6 per second.
    pub rate_mops: f64,
    /// Share of the step's requests that the DPU served.
    pub dpu_share: f64,
    /// Number of entries moved up to the end of the step.
    #[serde(rename = "moved")]
    pub moved_entries_total: u64,
}

/// Result of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct AdaptiveSplitResult {
    /// Recorded course, step by step.
    pub points: Vec<AdaptiveSplitPoint>,
    /// Times at which the phases begin, in ms.
    #[serde(rename = "jumps_ms")]
    pub phase_start_times_ms: Vec<f64>,
    /// Number of answers that were checked.
    #[serde(rename = "values")]
    pub checked_answers: u64,
    /// Number of requests that were sent to the server without the key.
    #[serde(rename = "redirected")]
    pub redirected_requests: u64,
    /// True if every value was that of its key and no key was missing.
    #[serde(rename = "verified")]
    pub are_values_right: bool,
}

impl AdaptiveSplitResult {
    /// Returns the mean rate from `from_ms` on for `for_ms`, in 10^6 per second.
    #[must_use]
    pub fn mean_rate_mops(&self, from_ms: f64, for_ms: f64) -> f64 {
        let within = |p: &&AdaptiveSplitPoint| {
            p.step_end_ms > from_ms && p.step_end_ms <= from_ms + for_ms + 1e-9
        };
        let rates: Vec<f64> = self
            .points
            .iter()
            .filter(within)
            .map(|p| p.rate_mops)
            .collect();
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let count = rates.len().max(1) as f64;
        rates.iter().sum::<f64>() / count
    }

    /// Returns the time from the start of each phase until the mean rate of the following 5 ms
    /// reaches `share` of `best`, in ms. `None` if the rate does not reach it within the phase.
    #[must_use]
    pub fn convergence_ms(&self, best: f64, share: f64) -> Vec<Option<f64>> {
        let end = self.points.last().map_or(0.0, |p| p.step_end_ms);
        let ends = self
            .phase_start_times_ms
            .iter()
            .skip(1)
            .copied()
            .chain([end]);
        let settled = |(from, to): (&f64, f64)| {
            let mut at = *from;
            while at + MIN_SETTLED_DURATION_MS <= to + 1e-9 {
                if self.mean_rate_mops(at, MIN_SETTLED_DURATION_MS) >= share * best {
                    return Some(at - from);
                }
                at += RECORDING_STEP.as_secs_f64() * 1e3;
            }
            None
        };
        self.phase_start_times_ms
            .iter()
            .zip(ends)
            .map(settled)
            .collect()
    }
}

/// Time for which a rate must hold to count as settled, in ms.
const MIN_SETTLED_DURATION_MS: f64 = 5.0;

/// Returns the most popular key of a phase; the keys of different phases are far apart.
fn hottest_key(phase: u32) -> u64 {
    (u64::from(phase) * 7 + 3) * REAL_TREE_KEYS / 11 % REAL_TREE_KEYS
}

fn popularity_in_phase(setup: &AdaptiveSplitParameters, phase: u32) -> Popularity {
    Popularity::ZipfFrom {
        exponent: setup.zipf_exponent,
        first: hottest_key(phase),
    }
}

/// Returns the key at which to split, so that a share `behind` of the phase's requests goes to this
/// key and those after it.
fn key_to_split_at(setup: &AdaptiveSplitParameters, phase: u32, behind: f64) -> u64 {
    let mut chooser = KeyGenerator::new(REAL_TREE_KEYS, popularity_in_phase(setup, phase), 99);
    let mut keys: Vec<u64> = (0..20_000).map(|_| chooser.next(0)).collect();
    keys.sort_unstable();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a small number"
    )]
    let at = ((1.0 - behind.clamp(0.0, 1.0)) * keys.len() as f64) as usize;
    keys.get(at).copied().unwrap_or(REAL_TREE_KEYS - 1).max(1)
}

/// Returns the best rate of a fixed split in the first phase, in 10^6 per second, with the DPU's
/// share of requests at that split.
///
/// # Errors
/// As [`run`].
pub fn best_fixed_split_mops_and_dpu_share(
    profile: &Profile,
    setup: &AdaptiveSplitParameters,
) -> Result<(f64, f64)> {
    let mut best = (0.0, 0.0);
    for percent in (10..=45).step_by(5) {
        let begin = f64::from(percent) / 100.0;
        let still = AdaptiveSplitParameters {
            controller_period: None,
            initial_dpu_request_share: begin,
            phase_count: 1,
            phase_duration: Duration::from_millis(4),
            ..setup.clone()
        };
        let outcome = run(profile, &still)?;
        let rate = outcome.mean_rate_mops(1.0, 3.0);
        if rate > best.0 {
            best = (rate, begin);
        }
    }
    Ok(best)
}

/// Runs the experiment.
///
/// # Errors
/// When the profile has no DPU or lacks what a simulation needs.
pub fn run(profile: &Profile, setup: &AdaptiveSplitParameters) -> Result<AdaptiveSplitResult> {
    for place in [CorePlace::Host, CorePlace::Dpu] {
        check_place_has_cores(profile, place, WORKERS_PER_SIDE + 1)?;
    }
    let cluster = SimulatedCluster::new(profile, 1 + CLIENT_MACHINES, setup.seed)?;
    let split = stable_key(key_to_split_at(setup, 0, setup.initial_dpu_request_share));
    let run_has_ended = Rc::new(Cell::new(false));
    let servers =
        [CorePlace::Host, CorePlace::Dpu].map(|place| start_server(&cluster, setup, place, split));
    let servers = servers.into_iter().collect::<Result<Vec<_>>>()?;
    let connectors: Vec<LocalConnector> = servers.iter().map(LocalServer::connector).collect();
    for (i, server) in servers.iter().enumerate() {
        start_mover(&cluster, i, server, &connectors, &run_has_ended)?;
    }
    if let Some(period) = setup.controller_period {
        start_controller(&cluster, setup, period, split, &connectors, &run_has_ended)?;
    }
    let (clients, counts) = (SimulatedClients::default(), RequestCounts::default());
    for i in 0..setup.clients {
        start_client(i, &cluster, setup, &connectors, (&clients, &counts));
    }
    clients.begin_when_connected(&cluster)?;
    let (points, jumps_ms) = record_points(&cluster, setup, &servers, &counts);
    cluster.run_until(|| clients.have_ended())?;
    run_has_ended.set(true);
    connectors.iter().for_each(LocalConnector::stop);
    cluster.run_until_threads_end()?;
    let mut failures = servers.iter().filter_map(LocalServer::failure);
    if let Some(failure) = failures.next().or_else(|| clients.take_failure()) {
        bail!("it failed: {failure}");
    }
    let reports: Vec<LoadReport> = clients.take_reports().into_iter().flatten().collect();
    Ok(AdaptiveSplitResult {
        points,
        phase_start_times_ms: jumps_ms,
        checked_answers: reports.iter().map(|r| r.checked_answers).sum(),
        redirected_requests: counts.redirected_requests.get(),
        are_values_right: reports
            .iter()
            .all(|r| r.has_no_wrong_answers() && r.unanswered_requests == 0),
    })
}

/// Records the course until the last phase ends.
fn record_points(
    cluster: &SimulatedCluster,
    setup: &AdaptiveSplitParameters,
    servers: &[LocalServer],
    counts: &RequestCounts,
) -> (Vec<AdaptiveSplitPoint>, Vec<f64>) {
    let began = cluster.simulation.now();
    let total = setup.phase_duration * setup.phase_count;
    let mut points = Vec::new();
    let (mut done, mut gets) = (0, [0u64; 2]);
    while cluster.simulation.now() - began < total {
        cluster.advance_time(RECORDING_STEP);
        let now = counts.answered_lookups.get();
        let asked = counts.requests_by_server.get();
        let by = [asked[0] - gets[0], asked[1] - gets[1]];
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        points.push(AdaptiveSplitPoint {
            step_end_ms: (cluster.simulation.now() - began).as_secs_f64() * 1e3,
            rate_mops: (now - done) as f64 / RECORDING_STEP.as_secs_f64() * 1e-6,
            dpu_share: by[1] as f64 / (by[0] + by[1]).max(1) as f64,
            moved_entries_total: servers.iter().map(|s| s.stats().taken_entries).sum(),
        });
        (done, gets) = (now, asked);
    }
    let begins = (0..setup.phase_count).map(|i| (setup.phase_duration * i).as_secs_f64() * 1e3);
    (points, begins.collect())
}

/// Creates a server with its part of the keys, and starts its workers.
fn start_server(
    cluster: &SimulatedCluster,
    setup: &AdaptiveSplitParameters,
    place: CorePlace,
    split: u64,
) -> Result<LocalServer> {
    let (context, machine) = cluster.context_and_machine(0, place)?;
    let (server_number, share) = match place {
        CorePlace::Host => (0, 1.0 - setup.cost_tree_dpu_share),
        CorePlace::Dpu => (1, setup.cost_tree_dpu_share),
    };
    let config = ServerConfig {
        node_bytes: 2048,
        key_capacity: 8 * REAL_TREE_KEYS,
        workers: WORKERS_PER_SIDE,
        batch: 1,
        max_clients: setup.clients + 4,
        max_window: 64,
        splits: vec![split],
        server_number,
        handover_bytes_per_s: setup.max_handover_bytes_per_s,
        ..ServerConfig::default()
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a share of a count far below 2^52"
    )]
    let shape = TreeSize {
        keys: (share * setup.cost_tree_key_count as f64) as u64,
        node_bytes: 2048,
        fill: 1.0,
        strings: None,
    };
    let runtime =
        ServerEnvironment::simulated(setup.seed ^ u64::from(server_number)).charging_walks(shape);
    let mut server = LocalServer::new(context, config, runtime)?;
    let loaded = server.service().bulk_load(0, REAL_TREE_KEYS, 1.0, |i| {
        (stable_key(i), value_of(stable_key(i), 0))
    });
    loaded.map_err(|e| anyhow::anyhow!("cannot load the tree: {e}"))?;
    for (i, worker) in server.take_workers().into_iter().enumerate() {
        let name = format!("worker {i} on the {place}");
        cluster
            .simulation
            .spawn(machine, name, move || worker.run());
    }
    Ok(server)
}

/// Returns the configuration of a client.
fn client_config() -> ClientConfig {
    ClientConfig {
        window: CLIENT_WINDOW,
        batch: 1,
        ..ClientConfig::default()
    }
}

/// Starts the thread that takes ranges from the other server, on its own core.
fn start_mover(
    cluster: &SimulatedCluster,
    part: usize,
    server: &LocalServer,
    connectors: &[LocalConnector],
    run_has_ended: &Rc<Cell<bool>>,
) -> Result<()> {
    let place = [CorePlace::Host, CorePlace::Dpu][part];
    let (context, machine) = cluster.context_and_machine(0, place)?;
    let (context, connectors, run_has_ended) = (
        context.clone(),
        connectors.to_vec(),
        Rc::clone(run_has_ended),
    );
    let service = std::sync::Arc::clone(server.service());
    cluster
        .simulation
        .spawn(machine, format!("mover on the {place}"), move || {
            let mut mover = service.create_mover(move |giver| {
                let connector = connectors[usize::from(giver)].clone();
                PipelinedClient::connect_to_local_server(connector, &context, client_config())
            });
            while !run_has_ended.get() {
                if !mover.attempt_chunk_if_due() {
                    let_time_pass(Duration::ZERO);
                }
            }
        });
    Ok(())
}

fn start_controller(
    cluster: &SimulatedCluster,
    setup: &AdaptiveSplitParameters,
    period: Duration,
    split: u64,
    connectors: &[LocalConnector],
    run_has_ended: &Rc<Cell<bool>>,
) -> Result<()> {
    let (context, machine) = cluster.context_and_machine(0, setup.controller_place)?;
    let (context, connectors, run_has_ended) = (
        context.clone(),
        connectors.to_vec(),
        Rc::clone(run_has_ended),
    );
    cluster
        .simulation
        .spawn(machine, "controller".to_owned(), move || {
            let connect = |connector: &LocalConnector| {
                PipelinedClient::connect_to_local_server(
                    connector.clone(),
                    &context,
                    client_config(),
                )
            };
            let Ok(parts) = connectors
                .iter()
                .map(connect)
                .collect::<Result<Vec<_>, _>>()
            else {
                return;
            };
            // The rates of the study: the host walks three times as fast as the DPU.
            let mut controller = LoadBalancer::new(
                parts,
                0,
                (ControlLawParameters::default(), vec![split]),
                &[3.0, 1.0],
            );
            while !run_has_ended.get() {
                if controller.rebalance_once().is_err() {
                    return;
                }
                let_time_pass(period);
            }
        });
    Ok(())
}

/// Waits in a simulated thread for `time`, and for at least some microseconds.
fn let_time_pass(time: Duration) {
    let until = verbs::time::now() + time;
    let mut waiter = Waiter::new();
    loop {
        waiter.idle();
        waiter.reset();
        if verbs::time::now() >= until {
            return;
        }
    }
}

/// Requests of all clients.
#[derive(Clone, Debug, Default)]
struct RequestCounts {
    /// Number of look-ups that were answered.
    answered_lookups: Rc<Cell<u64>>,
    /// Number of requests to each server.
    requests_by_server: Rc<Cell<[u64; 2]>>,
    /// Number of requests that a server redirected to the other.
    redirected_requests: Rc<Cell<u64>>,
}

/// A router that counts requests and answers.
struct CountingRouter {
    router: Router,
    counts: RequestCounts,
}

impl ExecuteRequests for CountingRouter {
    fn submit(
        &mut self,
        tree: u8,
        op: &btree::Operation,
        token: u64,
    ) -> Result<bool, btree::ClientError> {
        let server = self.router.server_of(op.key()).min(1);
        let taken = self.router.submit(tree, op, token)?;
        if taken {
            let mut asked = self.counts.requests_by_server.get();
            asked[server] += 1;
            self.counts.requests_by_server.set(asked);
        }
        Ok(taken)
    }

    fn poll(
        &mut self,
        each: impl FnMut(btree::Completion<'_>),
    ) -> Result<usize, btree::ClientError> {
        let done = self.router.poll(each)?;
        let answered = &self.counts.answered_lookups;
        answered.set(answered.get() + done as u64);
        Ok(done)
    }

    fn outstanding(&self) -> usize {
        self.router.outstanding()
    }

    fn window(&self) -> usize {
        self.router.window()
    }

    fn refresh_clock(&mut self) {
        self.router.refresh_clock();
    }

    fn stats(&self) -> btree::ClientStats {
        self.router.stats()
    }

    fn doorbells(&self) -> u64 {
        self.router.doorbells()
    }
}

/// Starts client `number`, which runs through all phases and reports each.
fn start_client(
    number: usize,
    cluster: &SimulatedCluster,
    setup: &AdaptiveSplitParameters,
    connectors: &[LocalConnector],
    (clients, counts): (&SimulatedClients<Vec<LoadReport>>, &RequestCounts),
) {
    let machine = 1 + number % CLIENT_MACHINES;
    let (context, counts) = (cluster.host_contexts[machine].clone(), counts.clone());
    let (connectors, setup) = (connectors.to_vec(), setup.clone());
    let run = move |barrier: &SimulatedBarrier| -> Result<Vec<LoadReport>> {
        let connect = |connector| {
            PipelinedClient::connect_to_local_server(connector, &context, client_config())
        };
        let parts = connectors.into_iter().map(connect);
        let mut counted = CountingRouter {
            router: Router::new(parts.collect::<Result<Vec<_>, _>>()?),
            counts: counts.clone(),
        };
        barrier.arrive_and_wait();
        let began = verbs::time::now();
        let mut reports = Vec::new();
        for phase in 0..setup.phase_count {
            let workload = Workload {
                keys: REAL_TREE_KEYS,
                popularity: popularity_in_phase(&setup, phase),
                ..Workload::default()
            };
            let until = LoadEnd::At(began + setup.phase_duration * (phase + 1));
            let seed = setup.seed.wrapping_mul(1 << 20) + number as u64 + 1000 * u64::from(phase);
            let report = load::run(&mut counted, &workload, until, seed);
            reports.push(report.context("a client cannot go on")?);
        }
        let redirected = counts.redirected_requests.get() + counted.router.redirected_requests();
        counts.redirected_requests.set(redirected);
        Ok(reports)
    };
    clients.start(cluster, machine, run, || ());
}

#[cfg(test)]
mod tests {
    use super::*;
    use nicmodel::profile::builtin_profile;

    #[test]
    fn the_split_follows_a_hot_spot_that_jumps() {
        let bf2 = builtin_profile("bf2").expect("built in");
        let setup = AdaptiveSplitParameters {
            phase_duration: Duration::from_millis(12),
            phase_count: 2,
            ..AdaptiveSplitParameters::default()
        };
        let still = AdaptiveSplitParameters {
            controller_period: None,
            ..setup.clone()
        };
        let (adaptive, fixed) = (
            run(bf2, &setup).expect("it runs"),
            run(bf2, &still).expect("it runs"),
        );
        assert!(adaptive.are_values_right && fixed.are_values_right);
        assert!(
            adaptive
                .points
                .last()
                .is_some_and(|p| p.moved_entries_total > 0),
            "something moved"
        );
        // The initial split is wrong in the second phase.
        let (a, f) = (
            adaptive.mean_rate_mops(20.0, 4.0),
            fixed.mean_rate_mops(20.0, 4.0),
        );
        assert!(a > 1.1 * f, "{a} {f}");
    }
}
