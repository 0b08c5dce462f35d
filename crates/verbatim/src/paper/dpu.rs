//! Numbers of the study of BlueField-2: the sequencer and SENDs on a simulated host and on its DPU. `dpu_btree` has
//! the numbers of the B-tree.

use std::cell::RefCell;

use anyhow::{Context, Result, bail};
use bench::micro::{Outcome, Parameters, PingPong, Task, Verb};
use bench::simulated::micro::run_towards;
use bench::simulated::sequencer::{Setup, run};
use nicmodel::profile::{Place, Profile};
use sequencer::Design;

use super::dpu_btree::{self, DpuBtree};
use super::number::{Kind, Ours};

/// One simulation of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// The sequencer on all cores of a place, with the paper's clients.
    Sequencer(Design, Place),
    /// Half a round trip of messages from another machine's host to a place.
    Send(Place),
    /// The B-tree.
    Btree(dpu_btree::Run),
}

/// Bytes of a message of the study (`dpu_rpc_msg_bytes`).
const MESSAGE_BYTES: usize = 32;

/// Duration of the timed exchanges, in ms of virtual time.
const PING_MS: u64 = 1;

/// The results of the simulations that have run.
#[derive(Debug, Default)]
pub(super) struct Dpu {
    /// Rates in 10^6 a second, latencies in µs.
    results: Vec<(Run, f64)>,
    pub(super) btree: DpuBtree,
    /// Simulations that a number needs and that have not run.
    missing: RefCell<Vec<Run>>,
}

impl Dpu {
    /// Returns all simulations that the numbers need, and with `draw` those of the figures.
    pub(super) fn runs(draw: bool) -> Vec<Run> {
        let on = |place| {
            [
                Run::Sequencer(Design::Atomics, place),
                Run::Sequencer(Design::Rpc, place),
                Run::Send(place),
            ]
        };
        let mut runs = [on(Place::Host), on(Place::Dpu)].concat();
        runs.extend(DpuBtree::runs(draw).into_iter().map(Run::Btree));
        runs
    }

    /// Runs one simulation and stores its result.
    pub(super) fn add(&mut self, bf2: &Profile, what: Run) -> Result<()> {
        let result = match what {
            Run::Sequencer(design, place) => rate(bf2, design, place)?,
            Run::Send(place) => latency(bf2, place)?,
            Run::Btree(what) => return self.btree.add(bf2, what),
        };
        self.results.push((what, result));
        Ok(())
    }

    fn result(&self, what: Run) -> Option<f64> {
        let mut found = self.results.iter();
        let found = found.find(|(run, _)| *run == what);
        if found.is_none() {
            self.missing.borrow_mut().push(what);
        }
        found.map(|(_, result)| *result)
    }

    /// Removes and returns the simulations that numbers have needed since the last call, each once.
    pub(super) fn missing(&self) -> Vec<Run> {
        let mut all = self.missing.take();
        all.extend(self.btree.missing().into_iter().map(Run::Btree));
        let mut once: Vec<Run> = Vec::new();
        for run in all {
            if !once.contains(&run) {
                once.push(run);
            }
        }
        once
    }

    /// Returns our number for this id; `None` if this study does not give it.
    pub(super) fn number(&self, id: &str) -> Option<Ours> {
        let rate = |design, place| self.result(Run::Sequencer(design, place));
        let (value, kind) = match id {
            "dpu_seq_faa_rate" => (rate(Design::Atomics, Place::Dpu)?, Kind::Fitted),
            "dpu_seq_faa_gain" => {
                let (dpu, host) = (Place::Dpu, Place::Host);
                let gain = rate(Design::Atomics, dpu)? / rate(Design::Atomics, host)?;
                (100.0 * (gain - 1.0), Kind::Fitted)
            }
            "dpu_seq_rpc_cpu_ratio" => {
                let host = rate(Design::Rpc, Place::Host)?;
                (host / rate(Design::Rpc, Place::Dpu)?, Kind::Fitted)
            }
            "dpu_send_lat_saving" => {
                let host = self.result(Run::Send(Place::Host))?;
                (host - self.result(Run::Send(Place::Dpu))?, Kind::Fitted)
            }
            _ => return self.btree.number(id),
        };
        Some(Ours::new(value, kind, "simulation"))
    }
}

/// Returns the rate of a sequencer on all cores of the place.
fn rate(bf2: &Profile, design: Design, place: Place) -> Result<f64> {
    let there = bf2.at(place).context("BlueField-2 has a DPU")?;
    let setup = Setup {
        place: Some(place),
        ..Setup::paper(design, there.host.cores.value as usize)
    };
    let outcome = run(bf2, &setup)?;
    anyhow::ensure!(
        outcome.verified,
        "{design} on the {place}: {}",
        outcome.verdict
    );
    Ok(outcome.rate_mops)
}

/// Returns half a round trip of SENDs that are not inlined, in µs.
fn latency(bf2: &Profile, place: Place) -> Result<f64> {
    let parameters = Parameters {
        payload_bytes: Some(MESSAGE_BYTES),
        inline: Some(false),
        ..Parameters::default()
    };
    let ping = PingPong::new(Verb::RcSend, &parameters, PING_MS)?;
    match run_towards(bf2, &Task::PingPong(ping), place)? {
        Outcome::Latency(latency) => Ok(latency.latency_ns_p50 * 1e-3),
        Outcome::Rate(_) => bail!("a ping-pong has a latency"),
    }
}
