//! The key-value stores' own servers and clients on a simulated cluster, as in Figures 9 (HERD) and
//! 10 (DrTM-KV) of the paper.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kv::load::{self, LoadEnd, LoadReport, Random, Workload, write_key_bytes, write_value_bytes};
use kv::store::{FullPolicy, LockPlacement};
use kv::{
    ClientConfig, Design, LocalServer, PipelinedClient, RecordCache, RequestsPerClient,
    ServerConfig, ServerEnvironment,
};
use nicmodel::profile::CorePlace;
use nicmodel::{Profile, mixes};
use serde::Serialize;
use simnic::NicCounters;

use super::clients::{SimulatedBarrier, SimulatedClients};
use super::sequencer::{RDMA_BENCH_SEND_DEPTH, check_place_has_cores, client_start_spread_ns};
use super::{SimulatedCluster, check_costs_of_cores, rate_mops, warm_up_duration};

/// Parameters of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KvParameters {
    /// Design of the store.
    pub design: Design,
    /// For `reads`: bytes of a GET's only READ; with 0, a GET takes two READs.
    #[serde(rename = "read_size")]
    pub single_read_bytes: usize,
    /// For `atomics`: placement of the locks.
    #[serde(rename = "locks")]
    pub lock_placement: LockPlacement,
    /// For `atomics`: alignment of records, in bytes.
    #[serde(rename = "record_align")]
    pub record_align_bytes: usize,
    /// Cores of the server, with one worker each.
    #[serde(rename = "cores")]
    pub server_cores: usize,
    /// Number of clients; each sends to all workers.
    pub clients: usize,
    /// Number of client machines.
    #[serde(rename = "machines")]
    pub client_machines: usize,
    /// Maximum outstanding requests of a client.
    pub window: usize,
    /// Maximum requests that a worker answers with one doorbell.
    #[serde(rename = "batch")]
    pub max_answers_per_doorbell: usize,
    /// Number of UD queue pairs of a worker.
    #[serde(rename = "queues")]
    pub ud_qps_per_worker: usize,
    /// True if clients and workers use the loops of the benchmark of the paper's authors, see
    /// [`Self::rdma_bench_setup`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[serde(rename = "atc16")]
    pub uses_rdma_bench_loops: bool,
    /// Share of PUTs.
    #[serde(rename = "puts")]
    pub put_share: f64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Seed of random numbers.
    pub seed: u64,
    /// Virtual time that is measured. A warm-up of a fifth of it, at least 150 µs, precedes it.
    #[serde(rename = "time")]
    pub measured_time: Duration,
}

/// Time for which clients continue after the measured time, because their last requests have no
/// successors.
const CLIENT_OVERRUN: Duration = Duration::from_micros(20);

impl KvParameters {
    /// The paper's setup (section 4.3): 128 clients on 8 machines, 16-byte keys, 32-byte values, 5
    /// % PUTs. Each worker has a UD queue pair for each of two ports. The window is that of the
    /// benchmark published by the paper's authors.
    #[must_use]
    pub fn paper_setup(cores: usize, batched: bool) -> Self {
        Self {
            design: Design::Herd,
            single_read_bytes: 0,
            lock_placement: LockPlacement::Spread,
            record_align_bytes: 64,
            server_cores: cores,
            clients: 128,
            client_machines: 8,
            window: 32,
            max_answers_per_doorbell: if batched { 16 } else { 1 },
            ud_qps_per_worker: 2,
            uses_rdma_bench_loops: false,
            put_share: 0.05,
            value_bytes: 32,
            seed: 1,
            measured_time: Duration::from_micros(300),
        }
    }

    /// The paper's setup with the loops of the benchmark published by its authors (`rdma_bench`). A
    /// client is stop-and-go: it posts each request alone, and sends the next 32 once all are
    /// answered. A worker's pass takes at most one request per client and 32 in all. Answers have a
    /// postlist and a doorbell for each port.
    #[must_use]
    pub fn rdma_bench_setup(cores: usize, batched: bool) -> Self {
        Self {
            uses_rdma_bench_loops: true,
            max_answers_per_doorbell: if batched { 32 } else { 1 },
            ..Self::paper_setup(cores, batched)
        }
    }

    /// The setup of Figure 10: the same clients and items, but clients lock and WRITE the records
    /// themselves (section 4.3). As in the paper, the clients know the location of every record.
    /// Windows are as large as the peak needs. The measured time grows with the share of PUTs, to
    /// contain enough of them.
    #[must_use]
    pub fn drtm_setup(puts: f64) -> Self {
        Self {
            design: Design::Atomics,
            window: 8,
            put_share: puts,
            measured_time: Duration::from_micros(500) + Duration::from_millis(4).mul_f64(puts),
            ..Self::paper_setup(1, true)
        }
    }

    /// Returns the number of keys in the simulated store. The cost of a look-up comes from the
    /// profile, so few keys are enough. Stores with locks have more keys, so that clients rarely
    /// want the same lock.
    fn key_count(&self) -> u64 {
        match self.design {
            Design::Herd | Design::Reads => 1 << 16,
            Design::Atomics => 1 << 18,
        }
    }

    fn workload(&self) -> Workload {
        Workload {
            keys: self.key_count(),
            value_bytes: self.value_bytes,
            put_fraction: self.put_share,
            waits_for_whole_window: self.uses_rdma_bench_loops,
            ..Workload::default()
        }
    }
}

/// Result of the experiment.
#[derive(Clone, Debug, Serialize)]
pub struct KvResult {
    /// Operations in the measured time, in 10^6 per second.
    pub rate_mops: f64,
    /// Median of the clients' medians, in ns.
    pub latency_ns_p50: u64,
    /// Largest 99th percentile of a client, in ns.
    pub latency_ns_p99: u64,
    /// Answers of the server per doorbell or WQE written by MMIO, in the measured time.
    pub answers_per_doorbell: f64,
    /// Number of operations of the whole run.
    pub operations: u64,
    /// Number of values that were checked.
    #[serde(rename = "values")]
    pub checked_values: u64,
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
pub fn run(profile: &Profile, setup: &KvParameters) -> Result<KvResult> {
    check_place_has_cores(profile, CorePlace::Host, setup.server_cores)?;
    let cluster = SimulatedCluster::new(profile, 1 + setup.client_machines, setup.seed)?;
    // With `atomics`, the clients do everything and the server's cores do nothing.
    if setup.design != Design::Atomics {
        check_costs_of_cores(profile)?;
    }
    let mut server = create_server(&cluster, profile, setup)?;
    let known = put_every_key(&server, setup)?;
    for (i, worker) in server.take_workers().into_iter().enumerate() {
        cluster.spawn(0, format!("worker {i}"), move || worker.run());
    }
    let within = match setup.uses_rdma_bench_loops {
        true => client_start_spread_ns(setup.clients, setup.window, setup.server_cores),
        false => 0,
    };
    let warm_up = warm_up_duration(setup.measured_time) + Duration::from_nanos(within);
    let clients = SimulatedClients::default();
    let answered_requests = Rc::new(Cell::new(0u64));
    for i in 0..setup.clients {
        let client = ClientToStart {
            client_number: i,
            start_delay_ns_max: within,
            client_duration: warm_up + setup.measured_time + CLIENT_OVERRUN,
            known_record_locations: Arc::clone(&known),
            answered_requests: Rc::clone(&answered_requests),
        };
        client.start(&cluster, setup, &server, &clients);
    }
    clients.begin_when_connected(&cluster)?;
    let server_machine = cluster.simulation.host_of_machine(0);
    let read = || {
        (
            answered_requests.get(),
            cluster.simulation.nic_counters(server_machine),
        )
    };
    let read = cluster.run_and_read_before_after(warm_up, setup.measured_time, read);
    cluster.run_until_threads_end()?;
    if let Some(failure) = server.failure().or_else(|| clients.take_failure()) {
        bail!("it failed: {failure}");
    }
    let reports = clients.take_reports();
    let mut medians: Vec<u64> = reports.iter().map(|r| r.latency.p50_ns).collect();
    medians.sort_unstable();
    let sum = |of: fn(&LoadReport) -> u64| reports.iter().map(of).sum::<u64>();
    Ok(KvResult {
        rate_mops: rate_mops(read.after.0 - read.before.0, read.elapsed),
        latency_ns_p50: *medians.get(medians.len() / 2).context("no client ran")?,
        latency_ns_p99: reports.iter().map(|r| r.latency.p99_ns).max().unwrap_or(0),
        answers_per_doorbell: answers_per_doorbell(&read.before.1, &read.after.1),
        operations: sum(|r| r.operations),
        checked_values: sum(|r| r.checked_values),
        are_values_right: reports
            .iter()
            .all(|r| r.all_checks_passed() && r.misses == 0 && r.unanswered_requests == 0),
        virtual_ms: cluster.simulation.now().as_secs_f64() * 1e3,
    })
}

fn create_server(
    cluster: &SimulatedCluster,
    profile: &Profile,
    setup: &KvParameters,
) -> Result<LocalServer> {
    // The CPU time of a request besides its verbs is fitted to one core of the paper's server,
    // batched and unbatched.
    let cost_ns = mixes::herd_request_work_ns(profile, setup.max_answers_per_doorbell > 1);
    let cost = Duration::from_secs_f64(cost_ns * 1e-9);
    let config = ServerConfig {
        design: setup.design,
        workers: setup.server_cores,
        batch: setup.max_answers_per_doorbell,
        ud_qps_per_worker: setup.ud_qps_per_worker,
        max_clients: setup.clients,
        max_window: setup.window,
        full_policy: FullPolicy::Store,
        item_capacity: usize::try_from(setup.key_count())?,
        neighbourhood_read_bytes: setup.single_read_bytes,
        lock_placement: setup.lock_placement,
        record_align: setup.record_align_bytes,
        expected_value_bytes: setup.value_bytes,
        ..server_config_with_worker_loops(profile, setup)
    };
    let runtime = ServerEnvironment::simulated(setup.seed, cost);
    Ok(LocalServer::new(
        &cluster.host_contexts[0],
        config,
        runtime,
    )?)
}

/// A client, before it is started.
struct ClientToStart {
    /// Number of the client, from 0.
    client_number: usize,
    /// Maximum time after the other clients at which it begins; 0 if all begin together.
    start_delay_ns_max: u64,
    /// Time from the begin to the end of the client.
    client_duration: Duration,
    /// Locations of records that all clients know.
    known_record_locations: Arc<RecordCache>,
    /// Number of requests of all clients that were answered.
    answered_requests: Rc<Cell<u64>>,
}

impl ClientToStart {
    fn start(
        self,
        cluster: &SimulatedCluster,
        setup: &KvParameters,
        server: &LocalServer,
        clients: &SimulatedClients<LoadReport>,
    ) {
        let machine = 1 + self.client_number % setup.client_machines;
        let (context, workload) = (cluster.host_contexts[machine].clone(), setup.workload());
        let config = ClientConfig {
            window: setup.window,
            batch: if setup.uses_rdma_bench_loops {
                1
            } else {
                setup.window.min(16)
            },
            max_single_message_value_bytes: setup.value_bytes,
            ..ClientConfig::default()
        };
        let seed = setup.seed.wrapping_mul(1 << 20) + self.client_number as u64;
        let delay_ns = Random::new(seed).next_below(self.start_delay_ns_max.max(1));
        let (connector, stopper) = (server.connector(), server.connector());
        let run = move |barrier: &SimulatedBarrier| {
            let mut pipeline =
                PipelinedClient::connect_to_local_server(connector, &context, config)?;
            pipeline.use_shared_record_cache(self.known_record_locations);
            barrier.arrive_and_wait();
            let until = LoadEnd::At(verbs::time::now() + self.client_duration);
            verbs::time::charge_time(Duration::from_nanos(delay_ns));
            load::run_with_progress(&mut pipeline, &workload, until, seed, |n| {
                self.answered_requests.set(self.answered_requests.get() + n);
            })
        };
        clients.start(cluster, machine, run, move || stopper.stop());
    }
}

/// Returns a server configuration with the loops of the workers.
fn server_config_with_worker_loops(profile: &Profile, setup: &KvParameters) -> ServerConfig {
    let ours = ServerConfig::default();
    if !setup.uses_rdma_bench_loops {
        return ours;
    }
    ServerConfig {
        request_region_scan: RequestsPerClient::AtMostOne,
        answer_qps_per_batch: profile.port.count.value as usize,
        send_depth: RDMA_BENCH_SEND_DEPTH,
        ..ours
    }
}

/// Returns the messages sent between two readings of the NIC's counters, per doorbell or WQE
/// written by MMIO.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn answers_per_doorbell(before: &NicCounters, after: &NicCounters) -> f64 {
    let posts = |at: &NicCounters| at.doorbells + at.wqes_by_mmio;
    let posted = posts(after) - posts(before);
    if posted == 0 {
        return 0.0;
    }
    // A message in progress at a reading counts as posted or sent only, so the ratio may fall below
    // 1.
    ((after.sent_messages - before.sent_messages) as f64 / posted as f64).max(1.0)
}

/// Puts every key into the store locally, and returns the locations of the records.
fn put_every_key(server: &LocalServer, setup: &KvParameters) -> Result<Arc<RecordCache>> {
    let workload = setup.workload();
    // Room for so many locations that two keys rarely share one.
    let room = match setup.design {
        Design::Atomics => usize::try_from(64 * workload.keys)?,
        Design::Herd | Design::Reads => 1,
    };
    let known = RecordCache::new(room);
    let mut key = vec![0; workload.key_bytes];
    let mut value = vec![0; workload.value_bytes];
    for n in 0..workload.keys {
        write_key_bytes(n, &mut key);
        write_value_bytes(n, 0, &mut value);
        server.service().preload(&key, &value, &known)?;
    }
    Ok(Arc::new(known))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nicmodel::profile::builtin_profile;

    /// The store's own code runs, every value is right, the same seed gives the same result twice,
    /// and batches pay.
    #[test]
    fn batches_pay_on_a_connect_ib_and_every_value_is_right() {
        let cib = builtin_profile("cib").expect("built in");
        let short = |batched| KvParameters {
            clients: 16,
            client_machines: 2,
            measured_time: Duration::from_micros(50),
            ..KvParameters::paper_setup(1, batched)
        };
        let batched = run(cib, &short(true)).expect("runs");
        let alone = run(cib, &short(false)).expect("runs");
        for outcome in [&batched, &alone] {
            assert!(
                outcome.are_values_right && outcome.checked_values > 100,
                "{outcome:?}"
            );
        }
        assert!(
            batched.rate_mops > 1.5 * alone.rate_mops,
            "{batched:?} {alone:?}"
        );
        assert!(batched.answers_per_doorbell > 4.0, "{batched:?}");
        let again = run(cib, &short(true)).expect("runs");
        assert_eq!(again.operations, batched.operations);
    }

    /// Every value is right with the loops of the paper's authors, too. Two workers with few
    /// clients find few requests per pass, and divide their answers over the ports.
    #[test]
    fn the_authors_loops_serve_the_same_values() {
        let cib = builtin_profile("cib").expect("built in");
        let setup = KvParameters {
            clients: 16,
            client_machines: 2,
            measured_time: Duration::from_micros(50),
            ..KvParameters::rdma_bench_setup(2, true)
        };
        let outcome = run(cib, &setup).expect("runs");
        assert!(
            outcome.are_values_right && outcome.checked_values > 100,
            "{outcome:?}"
        );
        // A worker's pass takes at most one request of each of 16 clients. Each of the two ports
        // has half of the answers.
        assert!(outcome.answers_per_doorbell <= 8.0, "{outcome:?}");
    }

    /// GETs by two READs reach at most half of the NIC's READ rate, whatever the server's cores do.
    #[test]
    fn the_store_that_is_read_runs_on_simulated_cores() {
        let cib = builtin_profile("cib").expect("built in");
        let setup = KvParameters {
            design: Design::Reads,
            clients: 64,
            window: 32,
            client_machines: 8,
            measured_time: Duration::from_micros(50),
            ..KvParameters::paper_setup(1, true)
        };
        let outcome = run(cib, &setup).expect("runs");
        assert!(
            outcome.are_values_right && outcome.checked_values > 100,
            "{outcome:?}"
        );
        let reads = nicmodel::published::published_number_by_id("in_read_le64")
            .expect("published")
            .value;
        let bound = reads / 2.0 / 0.95;
        assert!(
            outcome.rate_mops > 0.6 * bound && outcome.rate_mops < 1.02 * bound,
            "{outcome:?}"
        );
    }

    /// If clients lock and WRITE records, PUTs cost. Locks with equal low address bits cost more,
    /// and a NIC with one lock for all costs most.
    #[test]
    fn the_store_of_records_runs_on_simulated_nics() {
        let rate = |nic, puts, locks, record_align| {
            let profile = builtin_profile(nic).expect("built in");
            let paper = KvParameters::drtm_setup(puts);
            let setup = KvParameters {
                clients: 64,
                measured_time: paper.measured_time / 5,
                lock_placement: locks,
                record_align_bytes: record_align,
                ..paper
            };
            let outcome = run(profile, &setup).expect("runs");
            assert!(
                outcome.are_values_right && outcome.rate_mops > 0.5,
                "{outcome:?}"
            );
            outcome.rate_mops
        };
        let spread = |nic, puts| rate(nic, puts, LockPlacement::Spread, 64);
        let (gets, some) = (spread("cib", 0.0), spread("cib", 0.1));
        assert!(some < 0.9 * gets, "{gets} {some}");
        let alike = rate("cib", 0.1, LockPlacement::Record, 4096);
        assert!(alike < 0.5 * some, "{some} {alike}");
        assert!(spread("cx3", 1.0) < 0.1 * spread("cx3", 0.0));
    }
}
