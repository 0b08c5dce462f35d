//! Numbers of the study of BlueField-2: the sequencer and SENDs on a simulated host and on its DPU. `dpu_btree` has
//! the numbers of the B-tree.

use std::cell::RefCell;

use anyhow::{Context, Result, bail};
use bench::micro::{MeasurementTask, MicroParameters, PingPong, TaskResult, Verb};
use bench::simulated::micro::run_toward_place;
use bench::simulated::sequencer::{SequencerParameters, run};
use nicmodel::profile::{CorePlace, Profile};
use sequencer::Design;

use super::dpu_btree::{self, DpuBtreeResults};
use super::number::{OurNumber, OurNumberKind};

/// One simulation of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DpuStudySimulation {
    /// The sequencer on all cores of a place, with the paper's clients.
    Sequencer(Design, CorePlace),
    /// Half a round trip of messages from another machine's host to a place.
    SendLatency(CorePlace),
    /// The B-tree.
    Btree(dpu_btree::BtreeSimulation),
}

/// Bytes of a message of the study (`dpu_rpc_msg_bytes`).
const MESSAGE_BYTES: usize = 32;

/// Duration of the timed exchanges, in ms of virtual time.
const PING_PONG_VIRTUAL_MS: u64 = 1;

/// The results of the simulations that have run so far.
#[derive(Debug, Default)]
pub(super) struct DpuStudyResults {
    /// Results of simulations: rates in 10^6 a second, latencies in µs.
    rates_mops_or_latencies_us: Vec<(DpuStudySimulation, f64)>,
    pub(super) btree: DpuBtreeResults,
    /// Simulations that a number needs and that have not run yet.
    requested_simulations: RefCell<Vec<DpuStudySimulation>>,
}

impl DpuStudyResults {
    /// Returns all simulations that the numbers need, and with `draw` those of the figures.
    pub(super) fn needed_simulations(draw: bool) -> Vec<DpuStudySimulation> {
        let on = |place| {
            [
                DpuStudySimulation::Sequencer(Design::Atomics, place),
                DpuStudySimulation::Sequencer(Design::Rpc, place),
                DpuStudySimulation::SendLatency(place),
            ]
        };
        let mut runs = [on(CorePlace::Host), on(CorePlace::Dpu)].concat();
        runs.extend(
            DpuBtreeResults::needed_simulations(draw)
                .into_iter()
                .map(DpuStudySimulation::Btree),
        );
        runs
    }

    /// Runs one simulation and stores its result.
    pub(super) fn simulate_and_keep_result(
        &mut self,
        bf2: &Profile,
        what: DpuStudySimulation,
    ) -> Result<()> {
        let result = match what {
            DpuStudySimulation::Sequencer(design, place) => {
                sequencer_rate_mops(bf2, design, place)?
            }
            DpuStudySimulation::SendLatency(place) => half_round_trip_us(bf2, place)?,
            DpuStudySimulation::Btree(what) => {
                return self.btree.simulate_and_keep_result(bf2, what);
            }
        };
        self.rates_mops_or_latencies_us.push((what, result));
        Ok(())
    }

    fn result_or_request_simulation(&self, what: DpuStudySimulation) -> Option<f64> {
        let mut found = self.rates_mops_or_latencies_us.iter();
        let found = found.find(|(run, _)| *run == what);
        if found.is_none() {
            self.requested_simulations.borrow_mut().push(what);
        }
        found.map(|(_, result)| *result)
    }

    /// Removes and returns the simulations that numbers have needed since the last call, without duplicates.
    pub(super) fn take_requested_simulations(&self) -> Vec<DpuStudySimulation> {
        let mut all = self.requested_simulations.take();
        all.extend(
            self.btree
                .take_requested_simulations()
                .into_iter()
                .map(DpuStudySimulation::Btree),
        );
        let mut once: Vec<DpuStudySimulation> = Vec::new();
        for run in all {
            if !once.contains(&run) {
                once.push(run);
            }
        }
        once
    }

    /// Returns our number for the published number `id`; `None` if this study does not have that number.
    pub(super) fn our_number_for(&self, id: &str) -> Option<OurNumber> {
        let rate = |design, place| {
            self.result_or_request_simulation(DpuStudySimulation::Sequencer(design, place))
        };
        let (value, kind) = match id {
            "dpu_seq_faa_rate" => (
                rate(Design::Atomics, CorePlace::Dpu)?,
                OurNumberKind::Fitted,
            ),
            "dpu_seq_faa_gain" => {
                let (dpu, host) = (CorePlace::Dpu, CorePlace::Host);
                let gain = rate(Design::Atomics, dpu)? / rate(Design::Atomics, host)?;
                (100.0 * (gain - 1.0), OurNumberKind::Fitted)
            }
            "dpu_seq_rpc_cpu_ratio" => {
                let host = rate(Design::Rpc, CorePlace::Host)?;
                (
                    host / rate(Design::Rpc, CorePlace::Dpu)?,
                    OurNumberKind::Fitted,
                )
            }
            "dpu_send_lat_saving" => {
                let host = self.result_or_request_simulation(DpuStudySimulation::SendLatency(
                    CorePlace::Host,
                ))?;
                (
                    host - self.result_or_request_simulation(DpuStudySimulation::SendLatency(
                        CorePlace::Dpu,
                    ))?,
                    OurNumberKind::Fitted,
                )
            }
            _ => return self.btree.our_number_for(id),
        };
        Some(OurNumber::new(value, kind, "simulation"))
    }
}

/// Returns the rate of a sequencer on all cores of the place.
fn sequencer_rate_mops(bf2: &Profile, design: Design, place: CorePlace) -> Result<f64> {
    let there = bf2.as_seen_from(place).context("BlueField-2 has a DPU")?;
    let setup = SequencerParameters {
        server_place: Some(place),
        ..SequencerParameters::paper_setup(design, there.host.cores.value as usize)
    };
    let outcome = run(bf2, &setup)?;
    anyhow::ensure!(
        outcome.are_numbers_right,
        "{design} on the {place}: {}",
        outcome.verdict_text
    );
    Ok(outcome.rate_mops)
}

/// Returns half of the round-trip time of SENDs that are not inlined, in µs.
fn half_round_trip_us(bf2: &Profile, place: CorePlace) -> Result<f64> {
    let parameters = MicroParameters {
        payload_bytes: Some(MESSAGE_BYTES),
        inline: Some(false),
        ..MicroParameters::default()
    };
    let ping = PingPong::new(Verb::RcSend, &parameters, PING_PONG_VIRTUAL_MS)?;
    match run_toward_place(bf2, &MeasurementTask::PingPong(ping), place)? {
        TaskResult::Latency(latency) => Ok(latency.latency_ns_p50 * 1e-3),
        TaskResult::Rate(_) => bail!("a ping-pong has a latency"),
    }
}
