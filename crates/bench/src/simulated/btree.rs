//! The remote B-tree's own server and clients on a simulated cluster, with the server on the host
//! or on the DPU of its machine.
//!
//! Walks cost as much as in a tree of [`BtreeParameters::cost_tree_key_count`] keys. The real tree has as many levels
//! but fewer keys.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use btree::load::{
    self, LoadEnd, LoadReport, NumberStrings, NumberedClient, Workload, stable_key, value_of,
};
use btree::walk_cost::{TreeSize, WalkCost};
use btree::{
    AccessDesign, ByteString, ClientConfig, ClientError, ClientStats, Completion, ExecuteRequests,
    KeyOrValue, LocalConnector, LocalServer, NumberSizes, Operation, PipelinedClient, RangeOwner,
    Router, ServerConfig, ServerEnvironment, StringSizes,
};
use kv::load::Random;
use nicmodel::Profile;
use nicmodel::profile::CorePlace;
use serde::Serialize;
use verbs::Context;

use super::clients::{SimulatedBarrier, SimulatedClients};
use super::sequencer::check_place_has_cores;
use super::{SimulatedCluster, check_costs_of_cores, rate_mops, warm_up_duration};

/// Parameters of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BtreeParameters {
    /// Access of the clients to the tree.
    #[serde(rename = "access")]
    pub access_design: AccessDesign,
    /// Place of the server and its tree.
    #[serde(rename = "place")]
    pub server_place: CorePlace,
    /// Share of the keys on the DPU, 0 to 1, with two servers: one on the host, one on the DPU. The
    /// DPU has the last keys. `place` is ignored if this is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "dpu_share")]
    pub dpu_key_share: Option<f64>,
    /// Number of keys of the tree that determines the cost of walks.
    #[serde(rename = "keys")]
    pub cost_tree_key_count: u64,
    /// Bytes of a node.
    pub node_bytes: usize,
    /// Fill level of the nodes, up to 1.
    #[serde(rename = "fill")]
    pub node_fill_level: f64,
    /// Lengths of all keys and values if they are byte strings; otherwise they are 64-bit numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(rename = "strings")]
    pub string_sizes: Option<StringSizes>,
    /// Inner nodes that a client with one-sided READs caches.
    #[serde(rename = "cache_nodes")]
    pub cached_inner_nodes: usize,
    /// Cores of a server, with one worker each.
    #[serde(rename = "cores")]
    pub cores_per_server: usize,
    /// Number of clients; each sends to all workers.
    pub clients: usize,
    /// Number of client machines.
    #[serde(rename = "machines")]
    pub client_machines: usize,
    /// Maximum outstanding requests of a client.
    pub window: usize,
    /// Maximum requests that a client posts with one doorbell.
    #[serde(rename = "postlist")]
    pub max_requests_per_doorbell: usize,
    /// Maximum requests that a worker answers with one doorbell; with 1 it executes one walk at a
    /// time.
    #[serde(rename = "batch")]
    pub max_answers_per_doorbell: usize,
    /// Seed of random numbers.
    pub seed: u64,
    /// Virtual time that is measured. A warm-up of a fifth of it, at least 150 µs, precedes it.
    #[serde(rename = "time")]
    pub measured_time: Duration,
}

/// Maximum number of keys of the real tree.
const MAX_REAL_TREE_KEYS: u64 = 1 << 14;

/// Time for which clients continue after the measured time, because their last requests have no
/// successors.
const CLIENT_OVERRUN: Duration = Duration::from_micros(20);

/// Time within which clients begin, about a round trip.
const CLIENT_START_SPREAD_NS: u64 = 2000;

impl BtreeParameters {
    /// The setup of the study of BlueField-2, as far as it is published: 8 cores answer RPCs one at
    /// a time. Nodes are full, as after a bulk load: then 256 M keys take the study's 5 READs of 2
    /// KiB or 6 of 512 B. The clients keep all cores busy.
    #[must_use]
    pub fn bluefield2_study(place: CorePlace, keys: u64) -> Self {
        Self {
            access_design: AccessDesign::Rpc,
            server_place: place,
            dpu_key_share: None,
            cost_tree_key_count: keys,
            node_bytes: 2048,
            node_fill_level: 1.0,
            string_sizes: None,
            cached_inner_nodes: 0,
            cores_per_server: 8,
            clients: 32,
            client_machines: 4,
            window: 16,
            max_requests_per_doorbell: 1,
            max_answers_per_doorbell: 1,
            seed: 1,
            measured_time: Duration::from_micros(500),
        }
    }

    /// The study's clients that READ nodes and cache none. Their number is fitted: two clients
    /// whose cores never wait reach the study's 0.8 M/s.
    #[must_use]
    pub fn bluefield2_study_one_sided(place: CorePlace, node_bytes: usize) -> Self {
        Self {
            access_design: AccessDesign::Read,
            node_bytes,
            clients: 2,
            client_machines: 1,
            cores_per_server: 1,
            measured_time: Duration::from_millis(2),
            ..Self::bluefield2_study(place, 256_000_000)
        }
    }

    /// Returns the same setup with one client and one outstanding request, which measures latency.
    #[must_use]
    pub fn with_one_outstanding_request(self) -> Self {
        Self {
            clients: 1,
            client_machines: 1,
            window: 1,
            ..self
        }
    }

    fn tree_size(&self, keys: u64) -> TreeSize {
        TreeSize {
            keys,
            node_bytes: self.node_bytes,
            fill: self.node_fill_level,
            strings: self.string_sizes,
        }
    }

    /// Returns the servers' parts, in the order of their keys.
    fn server_key_ranges(&self) -> Vec<ServerKeyRange> {
        let all = MAX_REAL_TREE_KEYS.min(self.cost_tree_key_count);
        let part = |place, from: f64, to: f64| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "shares of counts far below 2^52"
            )]
            let at = |share: f64, keys: u64| (share * keys as f64).round() as u64;
            let (first, end) = (at(from, all), at(to, all));
            let shape = self
                .tree_size(at(to, self.cost_tree_key_count) - at(from, self.cost_tree_key_count));
            ServerKeyRange {
                place,
                cost_tree_size: shape,
                first_key_number: first,
                real_tree_size: shape.with_keys_same_levels(end - first),
            }
        };
        let parts = match self.dpu_key_share {
            None => vec![part(self.server_place, 0.0, 1.0)],
            Some(share) => {
                let on_host = 1.0 - share.clamp(0.0, 1.0);
                vec![
                    part(CorePlace::Host, 0.0, on_host),
                    part(CorePlace::Dpu, on_host, 1.0),
                ]
            }
        };
        let has_keys = |part: &ServerKeyRange| part.real_tree_size.keys > 0;
        parts.into_iter().filter(has_keys).collect()
    }
}

/// The keys and values that stand for the numbers of a workload.
trait SimulatedEntries<T: KeyOrValue>: Copy + Sync + 'static {
    fn sizes(self) -> T::Sizes;
    fn key_of_number(self, number: u64) -> T;
    fn value_of_number(self, number: u64) -> T;
    /// Returns a client that executes requests with numbers.
    fn client_of_numbers(self, router: Router<T>) -> impl ExecuteRequests;

    /// Returns loaded entry number `i`.
    fn loaded_entry(self, i: u64) -> (T, T) {
        let key = stable_key(i);
        (
            self.key_of_number(key),
            self.value_of_number(value_of(key, 0)),
        )
    }
}

/// The numbers themselves.
#[derive(Clone, Copy)]
struct NumberEntries;

impl SimulatedEntries<u64> for NumberEntries {
    fn sizes(self) -> NumberSizes {
        NumberSizes
    }

    fn key_of_number(self, number: u64) -> u64 {
        number
    }

    fn value_of_number(self, number: u64) -> u64 {
        number
    }

    fn client_of_numbers(self, router: Router) -> impl ExecuteRequests {
        router
    }
}

impl SimulatedEntries<ByteString> for NumberStrings {
    fn sizes(self) -> StringSizes {
        NumberStrings::sizes(self)
    }

    fn key_of_number(self, number: u64) -> ByteString {
        NumberStrings::key(self, number)
    }

    fn value_of_number(self, number: u64) -> ByteString {
        NumberStrings::value(self, number)
    }

    fn client_of_numbers(self, router: Router<ByteString>) -> impl ExecuteRequests {
        NumberedClient::new(router, self)
    }
}

/// Returns the strings of a setup.
fn number_strings(sizes: StringSizes) -> Result<NumberStrings> {
    NumberStrings::new(sizes).context("byte strings of a simulation have 8 bytes or more")
}

/// A server's part of the keys.
#[derive(Clone, Copy, Debug)]
struct ServerKeyRange {
    place: CorePlace,
    /// Shape of the tree that determines the cost of walks.
    cost_tree_size: TreeSize,
    /// Number of the first key of the real tree.
    first_key_number: u64,
    /// Shape of the real tree.
    real_tree_size: TreeSize,
}

/// Result of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct BtreeResult {
    /// Look-ups in the measured time, in 10^6 per second.
    pub rate_mops: f64,
    /// Median of the clients' medians, in ns.
    pub latency_ns_p50: u64,
    /// Largest 99th percentile of a client, in ns.
    pub latency_ns_p99: u64,
    /// Levels of the tree, or of the higher tree if there are two.
    #[serde(rename = "levels")]
    pub tree_levels: u64,
    /// READs per look-up over the whole run; 0 with RPCs.
    pub reads_per_lookup: f64,
    /// Answers per doorbell of the servers over the whole run; 0 if the servers answer nothing.
    pub answers_per_doorbell: f64,
    /// Number of look-ups of the whole run.
    pub operations: u64,
    /// Number of answers that were checked.
    #[serde(rename = "values")]
    pub checked_answers: u64,
    /// True if every value was that of its key and no key was missing.
    #[serde(rename = "verified")]
    pub are_values_right: bool,
    /// Virtual time of the whole run, in ms.
    pub virtual_ms: f64,
}

/// Runs the experiment.
///
/// # Errors
/// When the profile lacks what a simulation needs, or the setup cannot work.
pub fn run(profile: &Profile, setup: &BtreeParameters) -> Result<BtreeResult> {
    match setup.string_sizes {
        None => run_with_entries(profile, setup, NumberEntries),
        Some(sizes) => run_with_entries(profile, setup, number_strings(sizes)?),
    }
}

fn run_with_entries<T: KeyOrValue>(
    profile: &Profile,
    setup: &BtreeParameters,
    entries: impl SimulatedEntries<T>,
) -> Result<BtreeResult> {
    let parts = setup.server_key_ranges();
    for part in &parts {
        check_place_has_cores(profile, part.place, setup.cores_per_server)?;
    }
    let cluster = SimulatedCluster::new(profile, 1 + setup.client_machines, setup.seed)?;
    check_profile_has_core_costs(profile, setup)?;
    let start = |part| start_server(&cluster, setup, part, entries);
    let servers = parts.iter().map(start).collect::<Result<Vec<_>>>()?;
    announce_key_ranges(&parts, &servers, entries)?;
    let answered_requests = Rc::new(Cell::new(0));
    let served = (&parts[..], &servers[..]);
    let clients = start_clients(&cluster, setup, served, entries, &answered_requests);
    clients.begin_when_connected(&cluster)?;
    let read = || answered_requests.get();
    let read = cluster.run_and_read_before_after(
        warm_up_duration(setup.measured_time),
        setup.measured_time,
        read,
    );
    cluster.run_until_threads_end()?;
    let mut failures = servers.iter().filter_map(LocalServer::failure);
    if let Some(failure) = failures.next().or_else(|| clients.take_failure()) {
        bail!("it failed: {failure}");
    }
    let levels = parts
        .iter()
        .map(|part| part.real_tree_size.nodes_per_level().len() as u64);
    Ok(BtreeResult {
        rate_mops: rate_mops(read.after - read.before, read.elapsed),
        tree_levels: levels.max().unwrap_or(0),
        virtual_ms: cluster.simulation.now().as_secs_f64() * 1e3,
        ..combined_result(&clients.take_reports(), &servers)?
    })
}

/// Returns the rate of local look-ups by all cores of the server, without a network, in 10^6 per
/// second.
///
/// # Errors
/// As [`run`].
pub fn run_local_lookups_mops(profile: &Profile, setup: &BtreeParameters) -> Result<f64> {
    match setup.string_sizes {
        None => run_local_lookups_with_entries(profile, setup, NumberEntries),
        Some(sizes) => run_local_lookups_with_entries(profile, setup, number_strings(sizes)?),
    }
}

fn run_local_lookups_with_entries<T: KeyOrValue>(
    profile: &Profile,
    setup: &BtreeParameters,
    entries: impl SimulatedEntries<T>,
) -> Result<f64> {
    check_place_has_cores(profile, setup.server_place, setup.cores_per_server)?;
    let cluster = SimulatedCluster::new(profile, 1, setup.seed)?;
    let (context, machine) = cluster.context_and_machine(0, setup.server_place)?;
    let all = ServerKeyRange {
        place: setup.server_place,
        cost_tree_size: setup.tree_size(setup.cost_tree_key_count),
        first_key_number: 0,
        real_tree_size: setup
            .tree_size(setup.cost_tree_key_count)
            .with_keys_same_levels(MAX_REAL_TREE_KEYS),
    };
    let server = create_loaded_server(context, setup, &all, entries)?;
    let (rate, wrong) = (Rc::new(Cell::new(0.0)), Rc::new(Cell::new(false)));
    let walk_cost = Rc::new(WalkCost::of_tree(&all.cost_tree_size, 0));
    for i in 0..setup.cores_per_server as u64 {
        let (rate, wrong, walk_cost) = (Rc::clone(&rate), Rc::clone(&wrong), Rc::clone(&walk_cost));
        let store = Arc::clone(server.service().store());
        let mut random = Random::new(setup.seed << 8 ^ i);
        cluster
            .simulation
            .spawn(machine, format!("core {i}"), move || {
                let begun = verbs::time::now();
                for _ in 0..LOCAL_LOOKUPS_PER_CORE {
                    let number = random.next_below(all.real_tree_size.keys);
                    let (key, value) = entries.loaded_entry(number);
                    walk_cost.charge_walks(1);
                    if store.get(0, key) != Ok(Some(value)) {
                        wrong.set(true);
                    }
                }
                let took = verbs::time::now() - begun;
                rate.set(
                    rate.get() + f64::from(LOCAL_LOOKUPS_PER_CORE) / took.as_secs_f64() * 1e-6,
                );
            });
    }
    cluster.run_until_threads_end()?;
    if wrong.get() {
        bail!("a look-up found no value or another key's");
    }
    Ok(rate.get())
}

/// Number of look-ups of each core in [`run_local_lookups_mops`].
const LOCAL_LOOKUPS_PER_CORE: u32 = 1000;

/// Fails for a profile that lacks the costs of a server's cores.
fn check_profile_has_core_costs(profile: &Profile, setup: &BtreeParameters) -> Result<()> {
    // With one-sided READs, the server's cores do nothing.
    if setup.access_design != AccessDesign::Read {
        check_costs_of_cores(profile)?;
    }
    Ok(())
}

/// Creates a server and loads its tree.
fn create_loaded_server<T: KeyOrValue>(
    context: &Context,
    setup: &BtreeParameters,
    part: &ServerKeyRange,
    entries: impl SimulatedEntries<T>,
) -> Result<LocalServer<T>> {
    let small = part.real_tree_size;
    let config = ServerConfig {
        node_bytes: setup.node_bytes,
        key_and_value_limits: entries.sizes(),
        // Capacity for nodes that are not full.
        key_capacity: small.keys * (setup.node_bytes as u64 / 16),
        workers: setup.cores_per_server,
        batch: setup.max_answers_per_doorbell,
        max_clients: setup.clients,
        max_window: setup.window,
        ..ServerConfig::default()
    };
    let runtime = ServerEnvironment::simulated(setup.seed).charging_walks(part.cost_tree_size);
    let server = LocalServer::new(context, config, runtime)?;
    let first = part.first_key_number;
    let entry = |i| entries.loaded_entry(first + i);
    let store = server.service().store();
    store.bulk_load(0, small.keys, small.fill, 1, entry)?;
    Ok(server)
}

/// Tells each server which keys the other servers have, so that it redirects clients.
fn announce_key_ranges<T: KeyOrValue>(
    parts: &[ServerKeyRange],
    servers: &[LocalServer<T>],
    entries: impl SimulatedEntries<T>,
) -> Result<()> {
    for (own, server) in servers.iter().enumerate() {
        for (other, part) in (0u16..).zip(parts).filter(|(n, _)| usize::from(*n) != own) {
            let next = parts.get(usize::from(other) + 1);
            let first_key =
                |part: &ServerKeyRange| entries.key_of_number(stable_key(part.first_key_number));
            let range = (first_key(part), next.map(first_key));
            let owner = RangeOwner {
                server_number: other,
                version: 0,
            };
            server
                .service()
                .store()
                .assign_range_to_other(0, range, owner)?;
        }
    }
    Ok(())
}

/// Creates a server, loads its tree, and starts its workers.
fn start_server<T: KeyOrValue>(
    cluster: &SimulatedCluster,
    setup: &BtreeParameters,
    part: &ServerKeyRange,
    entries: impl SimulatedEntries<T>,
) -> Result<LocalServer<T>> {
    let (context, machine) = cluster.context_and_machine(0, part.place)?;
    let mut server = create_loaded_server(context, setup, part, entries)?;
    for (i, worker) in server.take_workers().into_iter().enumerate() {
        let name = format!("worker {i} on the {}", part.place);
        cluster
            .simulation
            .spawn(machine, name, move || worker.run());
    }
    Ok(server)
}

/// Starts all clients.
fn start_clients<T: KeyOrValue>(
    cluster: &SimulatedCluster,
    setup: &BtreeParameters,
    (parts, servers): (&[ServerKeyRange], &[LocalServer<T>]),
    entries: impl SimulatedEntries<T>,
    answered_requests: &Rc<Cell<u64>>,
) -> SimulatedClients<LoadReport> {
    let workload = Workload {
        keys: parts.iter().map(|part| part.real_tree_size.keys).sum(),
        ..Workload::default()
    };
    let config = ClientConfig {
        access: setup.access_design,
        max_cached_nodes: setup.cached_inner_nodes,
        window: setup.window,
        batch: setup.max_requests_per_doorbell.min(setup.window),
        ..ClientConfig::default()
    };
    let time = warm_up_duration(setup.measured_time) + setup.measured_time + CLIENT_OVERRUN;
    let clients = SimulatedClients::default();
    for i in 0..setup.clients {
        let machine = 1 + i % setup.client_machines;
        let (context, config) = (cluster.host_contexts[machine].clone(), config.clone());
        let connectors: Vec<_> = servers.iter().map(LocalServer::connector).collect();
        let stoppers = connectors.clone();
        let (workload, answered_requests) = (workload.clone(), Rc::clone(answered_requests));
        let seed = setup.seed.wrapping_mul(1 << 20) + i as u64;
        // Clients of a network do not start synchronously.
        let delay_ns =
            Random::new(setup.seed ^ (i as u64) << 32).next_below(CLIENT_START_SPREAD_NS);
        let run = move |barrier: &SimulatedBarrier| {
            let connect = |connector| {
                PipelinedClient::connect_to_local_server(connector, &context, config.clone())
            };
            let pipelines = connectors.into_iter().map(connect);
            let router = Router::new(pipelines.collect::<Result<Vec<_>, _>>()?);
            let mut client = CountingClient {
                client: entries.client_of_numbers(router),
                answered_requests,
            };
            barrier.arrive_and_wait();
            verbs::time::charge_time(Duration::from_nanos(delay_ns));
            let until = LoadEnd::At(verbs::time::now() + time);
            load::run(&mut client, &workload, until, seed)
        };
        let stop = move || stoppers.iter().for_each(LocalConnector::stop);
        clients.start(cluster, machine, run, stop);
    }
    clients
}

/// Combines the clients' reports and the servers' counts. The rate, the levels and the time are 0.
fn combined_result<T: KeyOrValue>(
    reports: &[LoadReport],
    servers: &[LocalServer<T>],
) -> Result<BtreeResult> {
    let mut medians: Vec<u64> = reports.iter().map(|r| r.latency.p50_ns).collect();
    medians.sort_unstable();
    let sum = |of: fn(&LoadReport) -> u64| reports.iter().map(of).sum::<u64>();
    let stats = servers.iter().map(LocalServer::stats);
    let answered = stats.fold((0, 0), |(answers, doorbells), stats| {
        (answers + stats.answer_messages, doorbells + stats.doorbells)
    });
    let operations = sum(|r| r.operations);
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let ratio = |a: u64, b: u64| a as f64 / b.max(1) as f64;
    Ok(BtreeResult {
        rate_mops: 0.0,
        latency_ns_p50: *medians.get(medians.len() / 2).context("no client ran")?,
        latency_ns_p99: reports.iter().map(|r| r.latency.p99_ns).max().unwrap_or(0),
        tree_levels: 0,
        reads_per_lookup: ratio(sum(|r| r.client_stats.node_reads), operations),
        answers_per_doorbell: ratio(answered.0, answered.1),
        operations,
        checked_answers: sum(|r| r.checked_answers),
        are_values_right: reports
            .iter()
            .all(|r| r.has_no_wrong_answers() && r.unanswered_requests == 0),
        virtual_ms: 0.0,
    })
}

/// A client whose answers are counted while it runs.
struct CountingClient<C> {
    client: C,
    answered_requests: Rc<Cell<u64>>,
}

impl<C: ExecuteRequests> ExecuteRequests for CountingClient<C> {
    fn submit(&mut self, tree: u8, op: &Operation, token: u64) -> Result<bool, ClientError> {
        self.client.submit(tree, op, token)
    }

    fn poll(&mut self, each: impl FnMut(Completion<'_>)) -> Result<usize, ClientError> {
        let done = self.client.poll(each)?;
        self.answered_requests
            .set(self.answered_requests.get() + done as u64);
        Ok(done)
    }

    fn outstanding(&self) -> usize {
        self.client.outstanding()
    }

    fn window(&self) -> usize {
        self.client.window()
    }

    fn refresh_clock(&mut self) {
        self.client.refresh_clock();
    }

    fn stats(&self) -> ClientStats {
        self.client.stats()
    }

    fn doorbells(&self) -> u64 {
        self.client.doorbells()
    }
}

#[cfg(test)]
mod tests;
