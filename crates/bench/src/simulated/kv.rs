//! The key-value stores' own servers and clients on a simulated cluster: Figures 9 (HERD) and 10 (DrTM-KV) of the paper.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kv::load::{self, LoadReport, Until, Workload, key_bytes, value_bytes};
use kv::store::{LockPlacement, Mode};
use kv::{ClientConfig, Design, Environment, LocalServer, Locations, Pipeline, Scan, ServerConfig};
use nicmodel::{Profile, mixes};
use serde::Serialize;
use simnic::Counters;

use super::sequencer::ATC16_SEND_DEPTH;
use super::{Bed, Gate};

/// What runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// How clients reach the data.
    pub design: Design,
    /// `reads`: bytes of a GET's only READ; with 0 there are two.
    pub read_size: usize,
    /// `atomics`: where locks are.
    pub locks: LockPlacement,
    /// `atomics`: bytes that records begin at multiples of.
    pub record_align: usize,
    /// Cores of the server, a worker each.
    pub cores: usize,
    /// Clients; each sends to all workers.
    pub clients: usize,
    /// Machines that clients run on.
    pub machines: usize,
    /// Requests that a client has outstanding.
    pub window: usize,
    /// Requests that a worker answers with one doorbell, at most.
    pub batch: usize,
    /// UD queue pairs of a worker.
    pub queues: usize,
    /// Whether clients and workers go about their work as in the benchmark of the paper's authors; see [`Setup::atc16`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub atc16: bool,
    /// The share of PUTs.
    pub puts: f64,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// What random numbers start from.
    pub seed: u64,
    /// Virtual time that is measured, after a fifth of it, or 150 µs if that is more, for warming up.
    pub time: Duration,
}

/// Time before the measured time, at least: clients begin at once, with all of their windows, which takes a server some
/// round trips to get used to. At 98 M/s one of 128 clients with 32 requests each is 42 µs.
const WARM_UP: Duration = Duration::from_micros(150);

/// How long clients go on behind the measured time: their last requests have no successors.
const BEHIND: Duration = Duration::from_micros(20);

impl Setup {
    /// The paper's setup (section 4.3): 128 clients on 8 machines, 16-byte keys, 32-byte values, 5 % PUTs, a UD queue pair
    /// of a worker for each of two ports. The window is that of the benchmark that its authors published.
    #[must_use]
    pub fn paper(cores: usize, batched: bool) -> Self {
        Self {
            design: Design::Herd,
            read_size: 0,
            locks: LockPlacement::Spread,
            record_align: 64,
            cores,
            clients: 128,
            machines: 8,
            window: 32,
            batch: if batched { 16 } else { 1 },
            queues: 2,
            atc16: false,
            puts: 0.05,
            value_bytes: 32,
            seed: 1,
            time: Duration::from_micros(300),
        }
    }

    /// The same with the loops of the benchmark that the paper's authors published (`rdma_bench`). A client is stop-and-go:
    /// it posts each request alone, and sends the next 32 when all are answered. A worker's pass takes at most one request
    /// of a client and 32 in all, and answers have a postlist and a doorbell for each port.
    #[must_use]
    pub fn atc16(cores: usize, batched: bool) -> Self {
        Self {
            atc16: true,
            batch: if batched { 32 } else { 1 },
            ..Self::paper(cores, batched)
        }
    }

    /// Figure 10: the same clients and items, but records that clients lock and WRITE themselves (section 4.3). The paper's
    /// clients know where all records are, and so do these. Their windows are as large as the peak needs; the more PUTs,
    /// the longer it takes to see many.
    #[must_use]
    pub fn drtm(puts: f64) -> Self {
        Self {
            design: Design::Atomics,
            window: 8,
            puts,
            time: Duration::from_micros(500) + Duration::from_millis(4).mul_f64(puts),
            ..Self::paper(1, true)
        }
    }

    /// Keys of the simulated store: what a look-up costs is the profile's, not the host's. Of those that clients lock there are
    /// more, so that few of them want the same one.
    fn keys(&self) -> u64 {
        match self.design {
            Design::Herd | Design::Reads => 1 << 16,
            Design::Atomics => 1 << 18,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Operations in the measured time, in 10^6 a second.
    pub rate_mops: f64,
    /// The median of the clients' medians, in ns.
    pub latency_ns_p50: u64,
    /// The worst client's 99th percentile, in ns.
    pub latency_ns_p99: u64,
    /// Answers to a doorbell of the server, or to a WQE that it wrote by MMIO, in the measured time.
    pub answers_per_doorbell: f64,
    /// Operations of the whole run.
    pub operations: u64,
    /// Values that were checked, and whether all was right.
    pub values: u64,
    /// Whether every value was its key's and none was missing.
    pub verified: bool,
    /// Virtual time of the whole run, in ms.
    pub virtual_ms: f64,
}

/// Runs it.
///
/// # Errors
/// When the profile lacks what a simulation needs, or the setup cannot work.
pub fn run(profile: &Profile, setup: &Setup) -> Result<Outcome> {
    let cores = profile.host.cores.value as usize;
    if setup.cores > cores {
        bail!(
            "{} cores are more than the {cores} of {}; lower --cores",
            setup.cores,
            profile.name
        );
    }
    let bed = Bed::new(profile, 1 + setup.machines, setup.seed)?;
    // The cores of a server whose clients do everything have nothing to do.
    if setup.design != Design::Atomics {
        bed.check_costs_of_cores(profile)?;
    }
    // What a request costs a core beside its verbs was fitted to one core of the paper's, in both ways.
    let cost_ns = if setup.batch > 1 {
        mixes::HERD_BATCH_NS
    } else {
        mixes::HERD_NS
    };
    let loops = loops(profile, setup);
    let config = ServerConfig {
        design: setup.design,
        workers: setup.cores,
        batch: setup.batch,
        queues: setup.queues,
        max_clients: setup.clients,
        max_window: setup.window,
        mode: Mode::Store,
        items: usize::try_from(setup.keys())?,
        read_size: setup.read_size,
        lock_placement: setup.locks,
        record_align: setup.record_align,
        value_bytes: setup.value_bytes,
        ..loops
    };
    let cost = Duration::from_secs_f64(cost_ns * 1e-9);
    let mut server = LocalServer::new(
        &bed.contexts[0],
        config,
        Environment::simulated(setup.seed, cost),
    )?;
    let workload = Workload {
        keys: setup.keys(),
        value_bytes: setup.value_bytes,
        puts: setup.puts,
        stop_and_go: setup.atc16,
        ..Workload::default()
    };
    // So many that hardly any two keys share one.
    let room = match setup.design {
        Design::Atomics => usize::try_from(64 * workload.keys)?,
        Design::Herd | Design::Reads => 1,
    };
    let known = Arc::new(Locations::new(room));
    fill(&server, &workload, &known)?;
    for (i, worker) in server.take_workers().into_iter().enumerate() {
        bed.spawn(0, format!("worker {i}"), move || worker.run());
    }
    let warm_up = (setup.time / 5).max(WARM_UP);
    let gate = Gate::default();
    let done = Rc::new(Cell::new(0u64));
    let reports: Rc<RefCell<Vec<LoadReport>>> = Rc::default();
    let failure: Rc<RefCell<Option<String>>> = Rc::default();
    let left = Rc::new(Cell::new(setup.clients));
    let connector = server.connector();
    for i in 0..setup.clients {
        let machine = 1 + i % setup.machines;
        let (context, gate) = (bed.contexts[machine].clone(), gate.clone());
        let (reports, failure, left) = (Rc::clone(&reports), Rc::clone(&failure), Rc::clone(&left));
        let (done, workload) = (Rc::clone(&done), workload.clone());
        let (known, connector) = (Arc::clone(&known), connector.clone());
        let config = ClientConfig {
            window: setup.window,
            batch: if setup.atc16 { 1 } else { setup.window.min(16) },
            value_bytes: setup.value_bytes,
            ..ClientConfig::default()
        };
        let time = warm_up + setup.time + BEHIND;
        let seed = setup.seed.wrapping_mul(1 << 20) + i as u64;
        bed.spawn(machine, format!("client {i}"), move || {
            let connected = Pipeline::connect_through(connector.clone(), &context, config);
            let ran = connected.and_then(|mut pipeline| {
                pipeline.share_locations(known);
                gate.pass();
                let until = Until::At(verbs::time::now() + time);
                load::run_counting(&mut pipeline, &workload, until, seed, |n| {
                    done.set(done.get() + n);
                })
            });
            match ran {
                Ok(report) => reports.borrow_mut().push(report),
                Err(e) => {
                    gate.came.set(gate.came.get() + 1);
                    *failure.borrow_mut() = Some(e.to_string());
                }
            }
            left.set(left.get() - 1);
            if left.get() == 0 {
                connector.stop();
            }
        });
    }
    bed.run_until(|| gate.came.get() == setup.clients)?;
    gate.open.set(true);
    if let Some(failure) = failure.take() {
        bail!("a client cannot connect: {failure}");
    }
    let counters = || bed.cluster.counters(bed.cluster.machine(0));
    bed.pass(warm_up);
    let (from, before, posted) = (bed.cluster.now(), done.get(), counters());
    bed.pass(setup.time);
    let (to, after, posts) = (bed.cluster.now(), done.get(), counters());
    bed.finish()?;
    if let Some(failure) = server.failure().or_else(|| failure.take()) {
        bail!("it failed: {failure}");
    }
    let reports = reports.take();
    let mut medians: Vec<u64> = reports.iter().map(|r| r.latency.p50_ns).collect();
    medians.sort_unstable();
    let sum = |of: fn(&LoadReport) -> u64| reports.iter().map(of).sum::<u64>();
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts and times far below 2^52"
    )]
    Ok(Outcome {
        rate_mops: (after - before) as f64 / (to - from).as_secs_f64() * 1e-6,
        latency_ns_p50: *medians.get(medians.len() / 2).context("no client ran")?,
        latency_ns_p99: reports.iter().map(|r| r.latency.p99_ns).max().unwrap_or(0),
        answers_per_doorbell: answers_per_doorbell(&posted, &posts),
        operations: sum(|r| r.operations),
        values: sum(|r| r.verified),
        verified: reports
            .iter()
            .all(|r| r.is_right() && r.misses == 0 && r.lost == 0),
        virtual_ms: bed.cluster.now().as_secs_f64() * 1e3,
    })
}

/// How workers go about their work.
fn loops(profile: &Profile, setup: &Setup) -> ServerConfig {
    let ours = ServerConfig::default();
    if !setup.atc16 {
        return ours;
    }
    ServerConfig {
        scan: Scan::OneEach,
        split: profile.port.count.value as usize,
        send_depth: ATC16_SEND_DEPTH,
        ..ours
    }
}

/// What left a server between two looks at its NIC's counters, for each time that the NIC was told of something.
#[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
fn answers_per_doorbell(before: &Counters, after: &Counters) -> f64 {
    let posts = |at: &Counters| at.doorbells + at.wqes_by_mmio;
    let posted = posts(after) - posts(before);
    if posted == 0 {
        return 0.0;
    }
    // What is under way at one of the looks is counted on one side only.
    ((after.sent - before.sent) as f64 / posted as f64).max(1.0)
}

/// Puts every key into the store, without a network.
fn fill(server: &LocalServer, workload: &Workload, known: &Locations) -> Result<()> {
    let mut key = vec![0; workload.key_bytes];
    let mut value = vec![0; workload.value_bytes];
    for n in 0..workload.keys {
        key_bytes(n, &mut key);
        value_bytes(n, 0, &mut value);
        server.service().preload(&key, &value, known)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nicmodel::profile::builtin;

    /// The store's own code runs, every value is right, and the same seed gives the same twice; batches pay.
    #[test]
    fn batches_pay_on_a_connect_ib_and_every_value_is_right() {
        let cib = builtin("cib").expect("built in");
        let short = |batched| Setup {
            clients: 16,
            machines: 2,
            time: Duration::from_micros(50),
            ..Setup::paper(1, batched)
        };
        let batched = run(cib, &short(true)).expect("runs");
        let alone = run(cib, &short(false)).expect("runs");
        for outcome in [&batched, &alone] {
            assert!(outcome.verified && outcome.values > 100, "{outcome:?}");
        }
        assert!(
            batched.rate_mops > 1.5 * alone.rate_mops,
            "{batched:?} {alone:?}"
        );
        assert!(batched.answers_per_doorbell > 4.0, "{batched:?}");
        let again = run(cib, &short(true)).expect("runs");
        assert_eq!(again.operations, batched.operations);
    }

    /// With the loops of the paper's authors every value is right, too. Two workers with few clients find few requests in a
    /// pass, and divide their answers over the ports.
    #[test]
    fn the_authors_loops_serve_the_same_values() {
        let cib = builtin("cib").expect("built in");
        let setup = Setup {
            clients: 16,
            machines: 2,
            time: Duration::from_micros(50),
            ..Setup::atc16(2, true)
        };
        let outcome = run(cib, &setup).expect("runs");
        assert!(outcome.verified && outcome.values > 100, "{outcome:?}");
        // A pass takes at most one request of each of 16 clients, and half of them are on each port.
        assert!(outcome.answers_per_doorbell <= 8.0, "{outcome:?}");
    }

    /// GETs by two READs: at most half of what the NIC answers, whatever the server's core does.
    #[test]
    fn the_store_that_is_read_runs_on_simulated_cores() {
        let cib = builtin("cib").expect("built in");
        let setup = Setup {
            design: Design::Reads,
            clients: 64,
            window: 32,
            machines: 8,
            time: Duration::from_micros(50),
            ..Setup::paper(1, true)
        };
        let outcome = run(cib, &setup).expect("runs");
        assert!(outcome.verified && outcome.values > 100, "{outcome:?}");
        let reads = nicmodel::published::get("in_read_le64")
            .expect("published")
            .value;
        let bound = reads / 2.0 / 0.95;
        assert!(
            outcome.rate_mops > 0.6 * bound && outcome.rate_mops < 1.02 * bound,
            "{outcome:?}"
        );
    }

    /// Clients that lock and WRITE records: PUTs cost, locks that lie alike cost more, and one lock for all costs all.
    #[test]
    fn the_store_of_records_runs_on_simulated_nics() {
        let rate = |nic, puts, locks, record_align| {
            let profile = builtin(nic).expect("built in");
            let paper = Setup::drtm(puts);
            let setup = Setup {
                clients: 64,
                time: paper.time / 5,
                locks,
                record_align,
                ..paper
            };
            let outcome = run(profile, &setup).expect("runs");
            assert!(outcome.verified && outcome.rate_mops > 0.5, "{outcome:?}");
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
