//! The sequencer's own server and clients on a simulated cluster.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use kv::load::Random;
use nicmodel::Profile;
use nicmodel::profile::Place;
use sequencer::{
    Checker, Client, ClientConfig, ClientReport, Design, Environment, LocalServer, Scan,
    ServerConfig, Until, Verdict, WindowPolicy,
};
use serde::Serialize;

use super::{Bed, Gate};

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setup {
    /// The design.
    pub design: Design,
    /// Where the server and its memory are; on the host if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// Cores of the server, a worker each.
    pub cores: usize,
    /// Clients.
    pub clients: usize,
    /// Workers that each client sends to, with a session at each and the window divided among them.
    pub sessions: usize,
    /// Machines that clients run on; as few as have a core for each client if `None`.
    pub machines: Option<usize>,
    /// Requests that a client has outstanding.
    pub window: usize,
    /// Requests that a client posts with one doorbell.
    pub postlist: usize,
    /// Requests that a worker answers with one doorbell, at most.
    pub batch: usize,
    /// Answers to a doorbell, at most, if they are fewer than the requests of a batch, whose numbers are taken at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<usize>,
    /// UD queue pairs of a worker; as in the paper if `None`.
    pub queues: Option<usize>,
    /// The loops of clients and workers.
    #[serde(skip_serializing_if = "Loops::are_ours")]
    pub loops: Loops,
    /// What the random numbers of the simulation start from: when each client begins, and keys of the NICs.
    pub seed: u64,
    /// Virtual time that is measured, after a fifth of it for warming up.
    pub time: Duration,
}

impl Setup {
    /// The paper's setup: 70 clients, batches of 16. How many requests clients have outstanding it does not print;
    /// it is 32, and their requests go to all workers, in the benchmark that its authors published (`rdma_bench`).
    /// For datagrams, which all come to one CQ, that makes no difference.
    #[must_use]
    pub fn paper(design: Design, cores: usize) -> Self {
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
            loops: Loops::default(),
            seed: 1,
            time: Duration::from_millis(1),
        }
    }

    /// The paper's setup with the loops of its authors' benchmark, as that has it. Over RPC a client posts each request
    /// alone, and a worker takes at most 32 requests in a pass. With Spec-S0 each client sends to one worker and has 16
    /// requests outstanding.
    #[must_use]
    pub fn atc16(design: Design, cores: usize) -> Self {
        let paper = Self {
            loops: Loops::atc16(design),
            ..Self::paper(design, cores)
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

/// How clients and workers go about their work; ours by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Loops {
    /// When a client sends its next requests.
    pub policy: WindowPolicy,
    /// A client sends to all workers in turn, over one queue pair with one window for all; ours has a session with each
    /// worker, and a part of the window for each.
    pub spread: bool,
    /// How many requests a worker's pass takes from each client.
    pub scan: Scan,
    /// The answers of a batch leave on a queue pair for each port, with a doorbell each.
    pub doorbell_per_port: bool,
    /// With datagrams a worker's requests come to one queue pair, and its answers rotate over several.
    pub rotate: bool,
    /// SENDs that a queue pair of a worker may have under way, if fewer than ours.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_depth: Option<u32>,
}

/// The benchmark of the paper's authors signals one SEND in 64, and polls for its completion before it posts the next one
/// to be signaled: less than twice as many are under way.
pub(super) const ATC16_SEND_DEPTH: u32 = 128;

impl Loops {
    /// Those of the benchmark that the paper's authors published (`rdma_bench`), whose rates the paper has.
    #[must_use]
    pub fn atc16(design: Design) -> Self {
        match design {
            Design::Atomics => Self::default(),
            Design::Rpc | Design::RpcBatch | Design::RpcBatchMq => Self {
                policy: WindowPolicy::StopAndGo,
                spread: true,
                scan: Scan::OneEach,
                doorbell_per_port: true,
                rotate: false,
                send_depth: Some(ATC16_SEND_DEPTH),
            },
            Design::SpecS0 => Self {
                policy: WindowPolicy::AsAnswered,
                rotate: true,
                send_depth: Some(ATC16_SEND_DEPTH),
                ..Self::default()
            },
        }
    }

    /// Whether these are the loops of this project.
    #[must_use]
    pub fn are_ours(&self) -> bool {
        *self == Self::default()
    }
}

/// Clients begin within this time: about a round trip.
const ROUND_TRIP_NS: u64 = 2000;

/// UD queue pairs of a worker in the paper: one for each port of the NIC, and three with multi-queue.
fn paper_queues(setup: &Setup, profile: &Profile) -> usize {
    let ports = profile.port.count.value as usize;
    match setup.design {
        // All requests of a worker, and their answers, are on one port.
        Design::SpecS0 if setup.loops.rotate => 3,
        Design::RpcBatchMq | Design::SpecS0 => 3 * ports,
        _ => ports,
    }
}

/// UD queue pairs of a worker.
#[must_use]
pub fn queues(profile: &Profile, setup: &Setup) -> usize {
    setup.queues.unwrap_or(paper_queues(setup, profile))
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Numbers handed out in the measured time, in 10^6 a second.
    pub rate_mops: f64,
    /// Median and 99th percentile of the latency of a postlist, over the clients' own, in ns.
    pub latency_ns_p50: u64,
    /// The 99th percentile: the worst client's.
    pub latency_ns_p99: u64,
    /// Answers to a doorbell of the server; 0 with atomics, where it answers nothing.
    pub answers_per_doorbell: f64,
    /// Requests that clients lost.
    pub lost: u64,
    /// Numbers that clients got, over the whole run.
    pub requests: u64,
    /// Messages that left all NICs, that arrived and were taken, and that arrived and were dropped.
    pub messages: Messages,
    /// Whether the numbers are those of a sequencer.
    pub verified: bool,
    /// The checker's words.
    pub verdict: String,
    /// Virtual time of the whole run, in ms.
    pub virtual_ms: f64,
}

/// Messages of all machines, over the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Messages {
    /// That left.
    pub sent: u64,
    /// That arrived and were taken.
    pub received: u64,
    /// That arrived and were dropped.
    pub dropped: u64,
}

/// Runs it.
///
/// # Errors
/// When the profile lacks what a simulation or the design needs, or the setup cannot work.
pub fn run(profile: &Profile, setup: &Setup) -> Result<Outcome> {
    let place = setup.place.unwrap_or_default();
    check_cores(profile, place, setup.cores)?;
    let client_cores = profile.host.cores.value as usize;
    let machines = setup
        .machines
        .unwrap_or(setup.clients.div_ceil(client_cores))
        .max(1);
    let bed = Bed::new(profile, 1 + machines, setup.seed)?;
    if setup.design != Design::Atomics {
        bed.check_costs_of_cores(profile)?;
    }
    let (context, machine) = bed.at(0, place)?;
    let config = server_config(profile, setup);
    let mut server = LocalServer::new(context, config, Environment::Caller)?;
    for (i, worker) in server.take_workers().into_iter().enumerate() {
        let name = format!("worker {i}");
        bed.cluster.spawn(machine, name, move || worker.run());
    }
    let gate = Gate::default();
    let reports: Rc<RefCell<Vec<ClientReport>>> = Rc::default();
    let failure: Rc<RefCell<Option<String>>> = Rc::default();
    let sessions = setup.clients * setup.sessions;
    let window = setup.window.div_ceil(setup.sessions);
    let left = Rc::new(Cell::new(sessions));
    let connector = server.connector();
    for i in 0..sessions {
        let machine = 1 + i / setup.sessions % machines;
        let (context, gate) = (bed.contexts[machine].clone(), gate.clone());
        let (reports, failure, left) = (Rc::clone(&reports), Rc::clone(&failure), Rc::clone(&left));
        let config = ClientConfig {
            window,
            batch: setup.postlist.min(window),
            policy: setup.loops.policy,
            spread: setup.loops.spread,
            latency_digits: 2,
            ..ClientConfig::default()
        };
        let connector = connector.clone();
        let until = Until::DurationMs(ran_ms(setup.time));
        // Clients of a network do not begin in step.
        let later = Random::new(setup.seed ^ (i as u64) << 32).below(ROUND_TRIP_NS);
        bed.spawn(machine, format!("client {i}"), move || {
            match Client::connect_through(connector.clone(), &context, config) {
                Ok(mut client) => {
                    gate.pass();
                    verbs::time::work(Duration::from_nanos(later));
                    let report = client.run(until);
                    reports.borrow_mut().push(report);
                }
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
    bed.run_until(|| gate.came.get() == sessions)?;
    gate.open.set(true);
    if let Some(failure) = failure.take() {
        bail!("a client cannot connect: {failure}");
    }
    bed.pass(setup.time / 5);
    let (from, before) = (bed.cluster.now(), server.service().next());
    bed.pass(setup.time);
    let (to, after) = (bed.cluster.now(), server.service().next());
    bed.finish()?;
    if let Some(failure) = server.failure() {
        bail!("the server failed: {failure}");
    }
    let reports = reports.take();
    let mut checker = Checker::new(server.stats().start);
    for (i, report) in reports.iter().enumerate() {
        checker.add(&format!("client {i}"), report);
    }
    let verdict = checker.verdict(Some(server.service().next()));
    let measured = (after - before, to - from);
    Ok(outcome(&bed, &server, &reports, &verdict, measured))
}

/// Refuses a place that the NIC does not have, and more cores than that place has.
pub(super) fn check_cores(profile: &Profile, place: Place, cores: usize) -> Result<()> {
    let Some(there) = profile.at(place) else {
        bail!(
            "{} has no DPU: place the server on the host, or take a NIC whose profile has a section [dpu], such as bf2",
            profile.name
        );
    };
    let all = there.host.cores.value as usize;
    if cores > all {
        let whose = match place {
            Place::Host => profile.name.clone(),
            Place::Dpu => format!("the DPU of {}", profile.name),
        };
        bail!("{cores} cores are more than the {all} of {whose}; lower --cores");
    }
    Ok(())
}

fn server_config(profile: &Profile, setup: &Setup) -> ServerConfig {
    let queues = queues(profile, setup);
    // Clients are spread evenly over workers, and at each over its queue pairs.
    let sessions = setup.clients * setup.sessions;
    let window = setup.window.div_ceil(setup.sessions);
    let receiving = if setup.loops.rotate { 1 } else { queues };
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
        rotate: setup.loops.rotate,
        send_depth: setup.loops.send_depth.unwrap_or(ours.send_depth),
        max_clients: sessions,
        max_window: window,
        recv_depth: outstanding.clamp(64, 1 << 15),
        ..ours
    }
}

/// How long clients run: longer than warming up and measuring, in whole milliseconds.
fn ran_ms(time: Duration) -> u64 {
    let most = u64::try_from((time + time / 5).as_millis()).unwrap_or(u64::MAX);
    most.saturating_add(1)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts and times far below 2^52"
)]
fn outcome(
    bed: &Bed,
    server: &LocalServer,
    reports: &[ClientReport],
    verdict: &Verdict,
    (numbers, time): (u64, Duration),
) -> Outcome {
    let stats = server.stats();
    let mut messages = Messages::default();
    for machine in 0..bed.contexts.len() {
        let counters = bed.cluster.counters(bed.cluster.machine(machine));
        messages.sent += counters.sent;
        messages.received += counters.received;
        messages.dropped += counters.dropped;
    }
    let mut medians: Vec<u64> = reports.iter().map(|r| r.latency.p50_ns).collect();
    medians.sort_unstable();
    Outcome {
        rate_mops: numbers as f64 / time.as_secs_f64() * 1e-6,
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
        virtual_ms: bed.cluster.now().as_secs_f64() * 1e3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nicmodel::profile::builtin;

    /// With the loops of the paper's authors each design gives every number once, too.
    #[test]
    fn the_authors_loops_give_the_same_numbers() {
        let cib = builtin("cib").expect("built in");
        for design in Design::ALL {
            let setup = Setup {
                clients: 12,
                time: Duration::from_micros(50),
                ..Setup::atc16(design, 3)
            };
            let outcome = run(cib, &setup).expect("runs");
            let right = outcome.verified && outcome.lost == 0 && outcome.requests > 100;
            assert!(right, "{design}: {outcome:?}");
            if design == Design::RpcBatchMq {
                // A pass takes at most one request of each of 12 clients, and half of them are on each port.
                assert!(outcome.answers_per_doorbell <= 6.0, "{outcome:?}");
            }
        }
    }
}
