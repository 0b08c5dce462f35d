//! The remote B-tree's own server and clients on a simulated cluster, on the host or the DPU of the server's machine.
//!
//! Walks cost as in a tree of [`Setup::keys`] keys. The real tree has as many levels and few keys.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use btree::load::{self, LoadReport, Until, Workload, key_of, value_of};
use btree::touch::{Shape, Touches};
use btree::{
    Access, ClientConfig, ClientError, ClientStats, Completion, Environment, LocalServer, Op,
    Owner, Pipeline, Requests, Router, ServerConfig,
};
use kv::load::Random;
use nicmodel::Profile;
use nicmodel::profile::Place;
use serde::Serialize;
use verbs::Context;

use super::sequencer::check_cores;
use super::{Bed, Gate};

/// What runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// How clients reach the tree.
    pub access: Access,
    /// Where the server and its tree are.
    pub place: Place,
    /// With two servers, one on the host and one on the DPU: the share of the keys that the DPU has, the last ones, 0 to 1.
    /// `place` means nothing then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dpu_share: Option<f64>,
    /// Keys of the tree that walks cost the time of.
    pub keys: u64,
    /// Bytes of a node.
    pub node_bytes: usize,
    /// How full its nodes are, up to 1.
    pub fill: f64,
    /// Inner nodes that a client which READs keeps.
    pub cache_nodes: usize,
    /// Cores of a server, a worker each.
    pub cores: usize,
    /// Clients; each sends to all workers.
    pub clients: usize,
    /// Machines that clients run on.
    pub machines: usize,
    /// Requests that a client has outstanding.
    pub window: usize,
    /// Requests that a client posts with one doorbell, at most.
    pub postlist: usize,
    /// Requests that a worker answers with one doorbell, at most; with 1 it walks for one at a time.
    pub batch: usize,
    /// What random numbers start from.
    pub seed: u64,
    /// Virtual time that is measured, after a fifth of it, or 150 µs if that is more, for warming up.
    pub time: Duration,
}

/// Keys of the real tree, at most.
const KEYS: u64 = 1 << 14;

/// Time before the measured time, at least: clients begin with all of their windows.
const WARM_UP: Duration = Duration::from_micros(150);

/// How long clients go on behind the measured time: their last requests have no successors.
const BEHIND: Duration = Duration::from_micros(20);

/// Clients begin within this time: about a round trip.
const ROUND_TRIP_NS: u64 = 2000;

impl Setup {
    /// The study of BlueField-2, as far as it prints its setup: RPCs that are answered one at a time by 8 cores. Nodes are
    /// full, as a bulk load leaves them: then 256 M keys take the study's 5 READs of 2 KiB and 6 of 512 B. Clients keep all
    /// cores busy.
    #[must_use]
    pub fn study(place: Place, keys: u64) -> Self {
        Self {
            access: Access::Rpc,
            place,
            dpu_share: None,
            keys,
            node_bytes: 2048,
            fill: 1.0,
            cache_nodes: 0,
            cores: 8,
            clients: 32,
            machines: 4,
            window: 16,
            postlist: 1,
            batch: 1,
            seed: 1,
            time: Duration::from_micros(500),
        }
    }

    /// The study's clients that READ nodes and keep none. Two of them, whose cores never wait, come to its 0.8 M/s: their
    /// number is fitted to that.
    #[must_use]
    pub fn one_sided(place: Place, node_bytes: usize) -> Self {
        Self {
            access: Access::Read,
            node_bytes,
            clients: 2,
            machines: 1,
            cores: 1,
            time: Duration::from_millis(2),
            ..Self::study(place, 256_000_000)
        }
    }

    /// The same with one client that has one request outstanding: latency.
    #[must_use]
    pub fn alone(self) -> Self {
        Self {
            clients: 1,
            machines: 1,
            window: 1,
            ..self
        }
    }

    fn shape(&self, keys: u64) -> Shape {
        Shape {
            keys,
            node_bytes: self.node_bytes,
            fill: self.fill,
        }
    }

    /// The servers, in the order of their keys.
    fn parts(&self) -> Vec<Part> {
        let all = KEYS.min(self.keys);
        let part = |place, from: f64, to: f64| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "shares of counts far below 2^52"
            )]
            let at = |share: f64, keys: u64| (share * keys as f64).round() as u64;
            let (first, end) = (at(from, all), at(to, all));
            let shape = self.shape(at(to, self.keys) - at(from, self.keys));
            Part {
                place,
                shape,
                first,
                small: shape.smaller(end - first),
            }
        };
        let parts = match self.dpu_share {
            None => vec![part(self.place, 0.0, 1.0)],
            Some(share) => {
                let on_host = 1.0 - share.clamp(0.0, 1.0);
                vec![
                    part(Place::Host, 0.0, on_host),
                    part(Place::Dpu, on_host, 1.0),
                ]
            }
        };
        let has_keys = |part: &Part| part.small.keys > 0;
        parts.into_iter().filter(has_keys).collect()
    }
}

/// A server's part of the keys.
#[derive(Clone, Copy, Debug)]
struct Part {
    place: Place,
    /// The tree that walks cost the time of.
    shape: Shape,
    /// Number of the first key of the real tree.
    first: u64,
    /// The real tree.
    small: Shape,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Look-ups in the measured time, in 10^6 a second.
    pub rate_mops: f64,
    /// The median of the clients' medians, in ns.
    pub latency_ns_p50: u64,
    /// The worst client's 99th percentile, in ns.
    pub latency_ns_p99: u64,
    /// Levels of the tree; of the highest one if there are two.
    pub levels: u64,
    /// READs of a look-up, over the whole run; 0 by RPC.
    pub reads_per_lookup: f64,
    /// Answers to a doorbell of the servers, over the whole run; 0 if they answer nothing.
    pub answers_per_doorbell: f64,
    /// Look-ups of the whole run.
    pub operations: u64,
    /// Answers that were checked.
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
    let parts = setup.parts();
    for part in &parts {
        check_cores(profile, part.place, setup.cores)?;
    }
    let bed = Bed::new(profile, 1 + setup.machines, setup.seed)?;
    check_costs(&bed, profile, setup)?;
    let servers = parts.iter().map(|part| serve(&bed, setup, part));
    let servers = servers.collect::<Result<Vec<_>>>()?;
    disown(&parts, &servers)?;
    let clients = Clients::default();
    clients.start(&bed, setup, &parts, &servers)?;
    bed.pass(warm_up(setup));
    let (from, before) = (bed.cluster.now(), clients.done.get());
    bed.pass(setup.time);
    let (to, after) = (bed.cluster.now(), clients.done.get());
    bed.finish()?;
    let mut failures = servers.iter().filter_map(LocalServer::failure);
    if let Some(failure) = failures.next().or_else(|| clients.failure.take()) {
        bail!("it failed: {failure}");
    }
    let levels = parts.iter().map(|part| part.small.levels().len() as u64);
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts and times far below 2^52"
    )]
    let rate_mops = (after - before) as f64 / (to - from).as_secs_f64() * 1e-6;
    let outcome = clients.outcome(&servers)?;
    Ok(Outcome {
        rate_mops,
        levels: levels.max().unwrap_or(0),
        virtual_ms: bed.cluster.now().as_secs_f64() * 1e3,
        ..outcome
    })
}

/// Look-ups by all cores of the server alone, without network, in 10^6 a second.
///
/// # Errors
/// As [`run`].
pub fn run_local(profile: &Profile, setup: &Setup) -> Result<f64> {
    check_cores(profile, setup.place, setup.cores)?;
    let bed = Bed::new(profile, 1, setup.seed)?;
    let (context, machine) = bed.at(0, setup.place)?;
    let all = Part {
        place: setup.place,
        shape: setup.shape(setup.keys),
        first: 0,
        small: setup.shape(setup.keys).smaller(KEYS),
    };
    let server = load(context, setup, &all)?;
    let (rate, wrong) = (Rc::new(Cell::new(0.0)), Rc::new(Cell::new(false)));
    let touches = Rc::new(Touches::of(&all.shape, 0));
    for i in 0..setup.cores as u64 {
        let (rate, wrong, touches) = (Rc::clone(&rate), Rc::clone(&wrong), Rc::clone(&touches));
        let store = Arc::clone(server.service().store());
        let mut random = Random::new(setup.seed << 8 ^ i);
        bed.cluster.spawn(machine, format!("core {i}"), move || {
            let begun = verbs::time::now();
            for _ in 0..LOCAL {
                let key = key_of(random.below(all.small.keys));
                touches.walk(1);
                if store.get(0, key) != Ok(Some(value_of(key, 0))) {
                    wrong.set(true);
                }
            }
            let took = verbs::time::now() - begun;
            rate.set(rate.get() + f64::from(LOCAL) / took.as_secs_f64() * 1e-6);
        });
    }
    bed.finish()?;
    if wrong.get() {
        bail!("a look-up found no value or another key's");
    }
    Ok(rate.get())
}

/// Look-ups of a core in [`run_local`].
const LOCAL: u32 = 1000;

fn warm_up(setup: &Setup) -> Duration {
    (setup.time / 5).max(WARM_UP)
}

/// Refuses a profile by which what a server's cores do would cost nothing.
fn check_costs(bed: &Bed, profile: &Profile, setup: &Setup) -> Result<()> {
    // The cores of a server whose clients do everything have nothing to do.
    if setup.access != Access::Read {
        bed.check_costs_of_cores(profile)?;
    }
    Ok(())
}

/// A server with its tree.
fn load(context: &Context, setup: &Setup, part: &Part) -> Result<LocalServer> {
    let small = part.small;
    let config = ServerConfig {
        node_bytes: setup.node_bytes,
        // Room for emptier nodes.
        keys: small.keys * (setup.node_bytes as u64 / 16),
        workers: setup.cores,
        batch: setup.batch,
        max_clients: setup.clients,
        max_window: setup.window,
        ..ServerConfig::default()
    };
    let environment = Environment::simulated(setup.seed).walking(part.shape);
    let server = LocalServer::new(context, config, environment)?;
    let entry = |i| {
        let key = key_of(part.first + i);
        (key, value_of(key, 0))
    };
    let store = server.service().store();
    store.load(0, small.keys, small.fill, 1, entry)?;
    Ok(server)
}

/// Says at each server which keys the others have, so that clients that come to the wrong one go to the right one.
fn disown(parts: &[Part], servers: &[LocalServer]) -> Result<()> {
    for (own, server) in servers.iter().enumerate() {
        for (other, part) in (0u16..).zip(parts).filter(|(n, _)| usize::from(*n) != own) {
            let next = parts.get(usize::from(other) + 1);
            let range = (key_of(part.first), next.map(|next| key_of(next.first)));
            let owner = Owner {
                part: other,
                version: 0,
            };
            server.service().store().disown(0, range, owner)?;
        }
    }
    Ok(())
}

/// The same with its workers running.
fn serve(bed: &Bed, setup: &Setup, part: &Part) -> Result<LocalServer> {
    let (context, machine) = bed.at(0, part.place)?;
    let mut server = load(context, setup, part)?;
    for (i, worker) in server.take_workers().into_iter().enumerate() {
        let name = format!("worker {i} on the {}", part.place);
        bed.cluster.spawn(machine, name, move || worker.run());
    }
    Ok(server)
}

/// Clients, and what they say.
#[derive(Clone, Debug, Default)]
struct Clients {
    /// Requests that were answered.
    done: Rc<Cell<u64>>,
    left: Rc<Cell<usize>>,
    reports: Rc<RefCell<Vec<LoadReport>>>,
    failure: Rc<RefCell<Option<String>>>,
}

impl Clients {
    /// Starts all, and lets time pass until they may ask.
    fn start(
        &self,
        bed: &Bed,
        setup: &Setup,
        parts: &[Part],
        servers: &[LocalServer],
    ) -> Result<()> {
        let workload = Workload {
            keys: parts.iter().map(|part| part.small.keys).sum(),
            ..Workload::default()
        };
        let gate = Gate::default();
        self.left.set(setup.clients);
        for i in 0..setup.clients {
            let machine = 1 + i % setup.machines;
            let (context, gate, own) = (bed.contexts[machine].clone(), gate.clone(), self.clone());
            let workload = workload.clone();
            let ways: Vec<_> = servers.iter().map(LocalServer::connector).collect();
            let config = ClientConfig {
                access: setup.access,
                cache_nodes: setup.cache_nodes,
                window: setup.window,
                batch: setup.postlist.min(setup.window),
                ..ClientConfig::default()
            };
            let time = warm_up(setup) + setup.time + BEHIND;
            let seed = setup.seed.wrapping_mul(1 << 20) + i as u64;
            // Clients of a network do not begin in step.
            let later = Random::new(setup.seed ^ (i as u64) << 32).below(ROUND_TRIP_NS);
            bed.spawn(machine, format!("client {i}"), move || {
                let connect =
                    |way| Pipeline::connect_through(Clone::clone(way), &context, config.clone());
                let connected = ways.iter().map(connect).collect::<Result<Vec<_>, _>>();
                let ran = connected.and_then(|pipelines| {
                    gate.pass();
                    verbs::time::work(Duration::from_nanos(later));
                    let until = Until::At(verbs::time::now() + time);
                    let (router, done) = (Router::new(pipelines), Rc::clone(&own.done));
                    load::run(&mut Counted { router, done }, &workload, until, seed)
                });
                match ran {
                    Ok(report) => own.reports.borrow_mut().push(report),
                    Err(e) => {
                        gate.came.set(gate.came.get() + 1);
                        *own.failure.borrow_mut() = Some(e.to_string());
                    }
                }
                own.left.set(own.left.get() - 1);
                if own.left.get() == 0 {
                    ways.iter().for_each(|way| way.stop());
                }
            });
        }
        bed.run_until(|| gate.came.get() == setup.clients)?;
        gate.open.set(true);
        match self.failure.take() {
            Some(failure) => bail!("a client cannot connect: {failure}"),
            None => Ok(()),
        }
    }

    /// What all of them say.
    fn outcome(&self, servers: &[LocalServer]) -> Result<Outcome> {
        let reports = self.reports.take();
        let mut medians: Vec<u64> = reports.iter().map(|r| r.latency.p50_ns).collect();
        medians.sort_unstable();
        let sum = |of: fn(&LoadReport) -> u64| reports.iter().map(of).sum::<u64>();
        let stats = servers.iter().map(LocalServer::stats);
        let answered = stats.fold((0, 0), |(answers, doorbells), stats| {
            (answers + stats.answers, doorbells + stats.doorbells)
        });
        let operations = sum(|r| r.operations);
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let ratio = |a: u64, b: u64| a as f64 / b.max(1) as f64;
        Ok(Outcome {
            rate_mops: 0.0,
            latency_ns_p50: *medians.get(medians.len() / 2).context("no client ran")?,
            latency_ns_p99: reports.iter().map(|r| r.latency.p99_ns).max().unwrap_or(0),
            levels: 0,
            reads_per_lookup: ratio(sum(|r| r.client.reads), operations),
            answers_per_doorbell: ratio(answered.0, answered.1),
            operations,
            values: sum(|r| r.verified),
            verified: reports.iter().all(|r| r.is_right() && r.lost == 0),
            virtual_ms: 0.0,
        })
    }
}

/// Counts what is answered while it runs.
struct Counted {
    router: Router,
    done: Rc<Cell<u64>>,
}

impl Requests for Counted {
    fn submit(&mut self, tree: u8, op: &Op, token: u64) -> Result<bool, ClientError> {
        self.router.submit(tree, op, token)
    }

    fn poll(&mut self, each: impl FnMut(Completion<'_>)) -> Result<usize, ClientError> {
        let done = self.router.poll(each)?;
        self.done.set(self.done.get() + done as u64);
        Ok(done)
    }

    fn outstanding(&self) -> usize {
        self.router.outstanding()
    }

    fn window(&self) -> usize {
        self.router.window()
    }

    fn refresh(&mut self) {
        self.router.refresh();
    }

    fn stats(&self) -> ClientStats {
        self.router.stats()
    }

    fn doorbells(&self) -> u64 {
        self.router.doorbells()
    }
}

#[cfg(test)]
mod tests;
